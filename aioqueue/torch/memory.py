"""Memory for large batches, which goes back to the system as soon as a batch is dropped.

What one thread allocates and another frees stays with the allocator of the C library, in pieces
between what is small and lives on: so a process keeps the memory of batches that are long gone, and
more of it the more workers there are. What is mapped by itself is given back as a whole.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from math import prod
from typing import Any, Final

import numpy as np
import torch

__all__ = ("empty",)

_MAPPED: Final = 2**20
"""Bytes from which on memory is mapped by itself."""

_PRIVATE: Final[dict[str, Any]] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
)


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the CPU whose numbers mean nothing yet.

    Raises:
        RuntimeError: there is no room for it.
    """
    size = prod(shape) * dtype.itemsize
    if size < _MAPPED:
        return torch.empty(shape, dtype=dtype)
    # The storage of the tensor, which all of its views have, keeps the array, and that the mapping.
    return torch.from_numpy(np.frombuffer(_mapped(size), np.uint8)).view(dtype).reshape(shape)


def _mapped(size: int) -> mmap.mmap:
    try:
        block = mmap.mmap(-1, size, **_PRIVATE)
    except (OSError, OverflowError) as error:
        raise RuntimeError(f"no memory for {size} bytes") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel may have none
            block.madvise(mmap.MADV_HUGEPAGE)  # so it comes in few pieces
    return block
