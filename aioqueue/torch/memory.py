"""Memory for large batches, which goes back to the system when batches are dropped.

What one thread allocates and another frees stays with the allocator of the C library, in pieces
between what is small and lives on: so a process keeps the memory of batches that are long gone, and
more of it the more workers there are. What is mapped by itself is given back as a whole.

Mapped memory is new, though: the system has to clear it, page by page, before it can be written. So
where a new batch is begun for each that is dropped, the new one gets the memory of the old one.
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from contextlib import suppress
from math import prod
from typing import Any, Final

import numpy as np
import torch

__all__ = ("BatchMemory",)

_MAPPED: Final = 2**20
"""Bytes from which on memory is mapped by itself."""

_FEW: Final = 2**25
"""Bytes of batches that are too little to be given back."""

_HUGE: Final = 2**21
"""Bytes of a huge page. Memory that begins in the middle of one begins with hundreds of small."""

_PRIVATE: Final[dict[str, Any]] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
)


class BatchMemory:
    """Where workers make their batches. Thread-safe, and a finalizer may strike anywhere in it.

    A batch that is dropped leaves its memory to the next one, unless there are more batches than
    one for each worker and one that is looked at: then the consumer is who is slow, and nobody
    waits for memory.

    Args:
        workers: how many make batches in it at the same time.
    """

    def __init__(self, workers: int = 1) -> None:
        self._batches = workers + 1
        self._used: set[int] = set()  # which blocks are those of batches
        self._spare: deque[mmap.mmap] = deque()  # whoever drops a batch puts its block there
        self._is_resting = False

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor on the CPU whose numbers mean nothing yet.

        Raises:
            RuntimeError: there is no room for it.
        """
        size = prod(shape) * dtype.itemsize
        if size < _MAPPED:
            return torch.empty(shape, dtype=dtype, device="cpu")
        self._is_resting = False
        block = self._used_before(size) or _mapped(size)
        self._used.add(id(block))
        # The storage of the tensor, which all of its views have, keeps the array, and that the
        # mapping.
        array = np.frombuffer(block, np.uint8, size, _first_in(block))
        weakref.finalize(array, self._dropped, block, size).atexit = False
        return torch.from_numpy(array).view(dtype).reshape(shape)

    def rest(self) -> None:
        """Keep nothing until there is a batch to be made again."""
        self._is_resting = True
        self._spare.clear()

    def _used_before(self, size: int) -> mmap.mmap | None:
        """A spare block, if there is one of this size; those of another one are let go of."""
        with suppress(IndexError):
            while True:
                block = self._spare.pop()
                if len(block) == size + _HUGE:
                    return block
        return None

    def _dropped(self, block: mmap.mmap, size: int) -> None:
        self._used.discard(id(block))
        most = max(self._batches, _FEW // size)
        if not self._is_resting and len(self._used) + len(self._spare) < most:
            self._spare.append(block)


def _mapped(size: int) -> mmap.mmap:
    """A block with room for so many bytes, wherever a huge page begins in it."""
    try:
        block = mmap.mmap(-1, size + _HUGE, **_PRIVATE)
    except (OSError, OverflowError) as error:
        raise RuntimeError(f"no memory for {size} bytes") from error
    whole = size - size % _HUGE  # none of which would be there for what is behind the end
    if whole and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel may have none
            block.madvise(mmap.MADV_HUGEPAGE, _first_in(block), whole)  # so it comes in few pieces
    return block


def _first_in(block: mmap.mmap) -> int:
    """Where the first huge page begins in a block. (What is not touched takes no memory.)"""
    return -np.frombuffer(block, np.uint8).ctypes.data % _HUGE
