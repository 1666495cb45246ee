"""Memory for large batches, which goes back to the system as soon as a batch is dropped.

What one thread allocates and another frees stays with the allocator of the C library, in pieces
between what is small and lives on: so a process keeps the memory of batches that are long gone, and
more of it the more workers there are. What is mapped by itself is given back as a whole.

Mapped memory is new, though: the system has to clear it, page by page, before it can be written. So
who makes one batch after the other, none of them huge, has the memory of one that was dropped ready
for the next.
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

_REUSED: Final = 2**24
"""Bytes up to which it is used again. What is larger is better given back at once."""

_PRIVATE: Final[dict[str, Any]] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
)


class BatchMemory:
    """Where one worker makes its batches."""

    def __init__(self) -> None:
        self._spare: deque[mmap.mmap] = deque(maxlen=1)  # whoever drops a batch puts it there

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor on the CPU whose numbers mean nothing yet.

        Raises:
            RuntimeError: there is no room for it.
        """
        size = prod(shape) * dtype.itemsize
        if size < _MAPPED:
            return torch.empty(shape, dtype=dtype)
        block = self._used_before(size) or _mapped(size)
        # The storage of the tensor, which all of its views have, keeps the array, and that the
        # mapping.
        array = np.frombuffer(block, np.uint8)
        if size <= _REUSED:
            weakref.finalize(array, self._spare.append, block).atexit = False
        return torch.from_numpy(array).view(dtype).reshape(shape)

    def _used_before(self, size: int) -> mmap.mmap | None:
        try:
            block = self._spare.pop()
        except IndexError:
            return None
        return block if len(block) == size else None


def _mapped(size: int) -> mmap.mmap:
    try:
        block = mmap.mmap(-1, size, **_PRIVATE)
    except (OSError, OverflowError) as error:
        raise RuntimeError(f"no memory for {size} bytes") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel may have none
            block.madvise(mmap.MADV_HUGEPAGE)  # so it comes in few pieces
    return block
