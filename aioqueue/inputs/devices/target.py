"""The interface of devices that batches are copied to, and the host buffers that are copied from.

Making a large batch in new memory forces the system to find and clear its pages first. Pinned
memory, which a device can read directly, is even more expensive to allocate. So batches are written
to a small ring of buffers. A buffer is written again only when its copy to the device has ended.

`Target` and `DeviceCopier` are the interface of a device. Only arrays of numbers are copied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import numpy as np

from aioqueue import InvalidArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = (
    "BufferRing",
    "Copied",
    "DeviceCopier",
    "HostMemory",
    "Slot",
    "Target",
    "is_of_numbers",
    "mapped",
    "numbers_of",
    "refused",
)


_GROWTH: Final = 1.5
"""The least factor by which memory grows. Padded batches vary in size and slowly need more."""


class HostMemory(NamedTuple):
    """Bytes that arrays are made in."""

    array: NDArray[np.uint8]
    owner: Any = None
    """The framework's object for the same bytes."""


class Slot:
    """The buffer of one batch: memory for each of its arrays.

    Args:
        memory: allocates the given number of bytes.
    """

    def __init__(self, memory: Callable[[int], HostMemory]) -> None:
        self._memory = memory
        self._pieces: list[HostMemory] = []
        self._lent: list[NDArray[Any]] = []  # the current batch's arrays, one per piece of memory
        self._wait: Callable[[], None] | None = None

    def begin(self) -> None:
        """Wait until the buffer's last batch has been copied, then free it for the next."""
        if self._wait is not None:
            self._wait()
            self._wait = None
        self._lent.clear()

    def keep_until(self, wait: Callable[[], None] | None) -> None:
        """Set the function to call before the buffer is written again."""
        self._wait = wait

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array to write into. If it is to hold numbers, it lies in this buffer."""
        if not is_of_numbers(dtype):
            return np.empty(shape, dtype)  # not copied to the device: the user gets it as it is
        nbytes = prod(shape) * dtype.itemsize
        array = self._piece(nbytes).array[:nbytes].view(dtype).reshape(shape)
        self._lent.append(array)
        return array

    def memory_of(self, array: NDArray[Any]) -> HostMemory | None:
        """Return the memory of an array that `empty` made; ``None`` for any other array."""
        pairs = zip(self._lent, self._pieces, strict=False)
        return next((piece for lent, piece in pairs if lent is array), None)

    def _piece(self, nbytes: int) -> HostMemory:
        """Return a large enough piece of memory for the next array."""
        place = len(self._lent)
        if place == len(self._pieces):
            self._pieces.append(self._memory(max(nbytes, 1)))
        elif (size := self._pieces[place].array.size) < nbytes:
            self._pieces[place] = self._memory(max(nbytes, int(size * _GROWTH)))
        return self._pieces[place]


class BufferRing:
    """The buffers of batches, used in rotation.

    Args:
        slots: the number of buffers.
        memory: allocates the given number of bytes.
    """

    def __init__(self, slots: int, memory: Callable[[int], HostMemory]) -> None:
        self._slots = [Slot(memory) for _ in range(slots)]
        self._turn = 0

    def next(self) -> Slot:
        """Return the next batch's buffer; wait until its last batch has been copied."""
        slot = self._slots[self._turn]
        self._turn = (self._turn + 1) % len(self._slots)
        slot.begin()
        return slot


def is_of_numbers(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype holds numbers or bools: a dtype of NumPy, or one that JAX adds."""
    return dtype.kind in "biufc" or dtype.type.__module__ == "ml_dtypes"


class Copied:
    """A batch on its device, or on the way there.

    Args:
        value: the batch, with the device's arrays.
        wait: waits until the buffer may be written again. It must not refer to the batch, which
            would otherwise stay alive until somebody waits.
    """

    def __init__(self, value: Any, wait: Callable[[], None] | None = None) -> None:
        self._value = value
        self.wait = wait

    def arrived(self) -> Any:
        """Return the batch, ready for computations in the calling thread."""
        return self._value


class DeviceCopier(ABC):
    """Copies batches to a device, one after another, in one run of a pipeline."""

    slots: ClassVar[int] = 1
    """The number of buffers: more than one if a copy overlaps with the making of a batch."""

    def memory(self, nbytes: int) -> HostMemory:
        """Allocate host memory that suits copies to this device."""
        return HostMemory(np.empty(nbytes, np.uint8))

    @abstractmethod
    def copied(self, batch: Any, slot: Slot) -> Copied:
        """Copy the arrays of a batch, or begin to.

        Args:
            batch: arrays, in tuples, mappings and lists.
            slot: the buffer that holds the arrays made for it, and room for the others.

        Raises:
            InvalidArgumentError: the framework does not have the dtype.
        """


class Target(Protocol):
    """A device that the user has chosen."""

    @property
    def name(self) -> str:
        """Its name."""

    def open(self) -> DeviceCopier:
        """Make a copier, in the thread whose current device counts if there are several."""


def mapped(function: Callable[[Any], Any], batch: Any) -> Any:
    """Return a batch with the function applied to each leaf."""
    if isinstance(batch, tuple):
        leaves = [mapped(function, one) for one in batch]
        return getattr(type(batch), "_make", tuple)(leaves)  # a named tuple stays one
    if isinstance(batch, Mapping):
        return {key: mapped(function, one) for key, one in batch.items()}
    if isinstance(batch, list):
        return [mapped(function, one) for one in batch]
    return function(batch)


def numbers_of(leaf: Any) -> NDArray[Any] | None:
    """Return a leaf as an array of numbers in native byte order; ``None`` if it is not one."""
    if not isinstance(leaf, np.ndarray | np.generic) or not is_of_numbers(leaf.dtype):
        return None
    if type(leaf) is np.ndarray and leaf.dtype.isnative:
        return leaf  # not a view of it: a ring recognises its own arrays
    return np.asarray(leaf, leaf.dtype.newbyteorder("="))


def refused(dtype: np.dtype[Any], framework: str) -> InvalidArgumentError:
    """Return the error for a dtype that a framework does not have."""
    return InvalidArgumentError(
        f"batch: got an array of {dtype}, a dtype that {framework} does not have; convert it, for"
        " example with .astype('float32')"
    )
