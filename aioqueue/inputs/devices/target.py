"""A small ring of memory of the host, used again and again, in which batches are made.

Making a large batch in new memory means that the system has to find and clear its pages first, and
memory that a device can read by itself (pinned memory) is dearer still. So batches are written to
the same few places by turns; each is written again only when its copy to the device has ended.

What a device is to those who copy to it, and what is copied: arrays of numbers in batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, ClassVar, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from aioqueue import InvalidArgumentError

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
"""By how much memory grows at least: padded batches have all sizes, and ask for more by and by."""


class HostMemory(NamedTuple):
    """Bytes that arrays are made in."""

    array: NDArray[np.uint8]
    owner: Any = None
    """What a framework knows the same bytes as."""


class Slot:
    """The place of one batch: memory for each of its arrays.

    Args:
        memory: gives so many bytes.
    """

    def __init__(self, memory: Callable[[int], HostMemory]) -> None:
        self._memory = memory
        self._pieces: list[HostMemory] = []
        self._lent: list[NDArray[Any]] = []  # of the batch that is being made, one of each piece
        self._wait: Callable[[], None] | None = None

    def begin(self) -> None:
        """Let the next batch be written here, as soon as the one before it has been copied."""
        if self._wait is not None:
            self._wait()
            self._wait = None
        self._lent.clear()

    def keep_until(self, wait: Callable[[], None] | None) -> None:
        """Say what to call before any of it is written again."""
        self._wait = wait

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array to write into: of this place, if it is to hold numbers."""
        if not is_of_numbers(dtype):
            return np.empty(shape, dtype)  # it is not copied, but given to the user
        nbytes = prod(shape) * dtype.itemsize
        array = self._piece(nbytes).array[:nbytes].view(dtype).reshape(shape)
        self._lent.append(array)
        return array

    def memory_of(self, array: NDArray[Any]) -> HostMemory | None:
        """What an array that `empty` has made lies in; ``None`` for any other one."""
        pairs = zip(self._lent, self._pieces, strict=False)
        return next((piece for lent, piece in pairs if lent is array), None)

    def _piece(self, nbytes: int) -> HostMemory:
        """The piece for the next array, large enough."""
        place = len(self._lent)
        if place == len(self._pieces):
            self._pieces.append(self._memory(max(nbytes, 1)))
        elif (size := self._pieces[place].array.size) < nbytes:
            self._pieces[place] = self._memory(max(nbytes, int(size * _GROWTH)))
        return self._pieces[place]


class BufferRing:
    """The places of batches, used by turns.

    Args:
        slots: how many.
        memory: gives so many bytes.
    """

    def __init__(self, slots: int, memory: Callable[[int], HostMemory]) -> None:
        self._slots = [Slot(memory) for _ in range(slots)]
        self._turn = 0

    def next(self) -> Slot:
        """The place of the next batch; waits until what was there has been copied."""
        slot = self._slots[self._turn]
        self._turn = (self._turn + 1) % len(self._slots)
        slot.begin()
        return slot


def is_of_numbers(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of a dtype hold numbers or bools: those of NumPy, or those that JAX adds."""
    return dtype.kind in "biufc" or dtype.type.__module__ == "ml_dtypes"


class Copied:
    """A batch that is on its device, or on the way there.

    Args:
        value: the batch, with arrays of the device.
        wait: waits until what it was copied from may be written again; it may not refer to the
            batch, which would live on for as long as nobody waits.
    """

    def __init__(self, value: Any, wait: Callable[[], None] | None = None) -> None:
        self._value = value
        self.wait = wait

    def arrived(self) -> Any:
        """The batch for whoever computes with it, which is the calling thread."""
        return self._value


class DeviceCopier(ABC):
    """Copies batches to a device, one after another, in one run of a pipeline."""

    slots: ClassVar[int] = 1
    """How many batches the host holds: more than one, if copying goes on while one is made."""

    def memory(self, nbytes: int) -> HostMemory:
        """Memory of the host that this device likes to be copied from."""
        return HostMemory(np.empty(nbytes, np.uint8))

    @abstractmethod
    def copied(self, batch: Any, slot: Slot) -> Copied:
        """Copy the arrays of a batch, or begin to.

        Args:
            batch: arrays, in tuples, mappings and lists.
            slot: what those of them lie in that were made for this; and room for the others.

        Raises:
            InvalidArgumentError: the framework has no such dtype.
        """


class Target(Protocol):
    """A device, as it was asked for."""

    @property
    def name(self) -> str:
        """What it is called."""

    def open(self) -> DeviceCopier:
        """Begin to copy to it: to be called by the thread whose device counts, if there are
        several.
        """


def mapped(function: Callable[[Any], Any], batch: Any) -> Any:
    """A batch with what a function makes of each of its leaves."""
    if isinstance(batch, tuple):
        leaves = [mapped(function, one) for one in batch]
        return getattr(type(batch), "_make", tuple)(leaves)  # a named tuple stays one
    if isinstance(batch, Mapping):
        return {key: mapped(function, one) for key, one in batch.items()}
    if isinstance(batch, list):
        return [mapped(function, one) for one in batch]
    return function(batch)


def numbers_of(leaf: Any) -> NDArray[Any] | None:
    """A leaf as an array of numbers, in the byte order of this machine; ``None`` if it is none."""
    if not isinstance(leaf, np.ndarray | np.generic) or not is_of_numbers(leaf.dtype):
        return None
    if type(leaf) is np.ndarray and leaf.dtype.isnative:
        return leaf  # and no view of it: a ring knows its arrays
    return np.asarray(leaf, leaf.dtype.newbyteorder("="))


def refused(dtype: np.dtype[Any], framework: str) -> InvalidArgumentError:
    """What to raise for numbers of which a framework knows nothing."""
    return InvalidArgumentError(
        f"batch: got an array of {dtype}, a dtype that {framework} does not have; expected another,"
        " such as what .astype('float32') makes of it"
    )
