"""A small ring of memory of the host, used again and again, in which batches are made.

Making a large batch in new memory means that the system has to find and clear its pages first, and
memory that a device can read by itself (pinned memory) is dearer still. So batches are written to
the same few places by turns; each is written again only when its copy to the device has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ("HostMemory", "Ring", "Slot", "is_of_numbers")

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


class Ring:
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
