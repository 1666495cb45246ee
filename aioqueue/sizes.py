"""How many bytes things take: what is said about sizes wherever memory is bounded by them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ("rows_within", "size_of")


def rows_within(max_bytes: int, row_bytes: int) -> int | None:
    """How many rows of one size fit: one, at least, however large; ``None``: any number."""
    return max(1, max_bytes // row_bytes) if row_bytes else None


def size_of(examples: Iterable[Any]) -> int:
    """About how many bytes some examples take: the arrays and strings in them.

    A container that is met again, in itself perhaps, is counted once. Of an object that says
    nothing about its size (as ``nbytes``, in bytes), only its own is counted, and not that of what
    it refers to.
    """
    total = 0
    pending = list(examples)
    containers: dict[int, Any] = {}  # those met so far, by identity
    while pending:
        thing = pending.pop()
        if isinstance(thing, np.ndarray):
            total += thing.nbytes
            if thing.dtype == object and id(thing) not in containers:
                containers[id(thing)] = thing
                pending.extend(thing.flat)
        elif isinstance(thing, str | bytes | bytearray):
            total += len(thing)
        elif isinstance(thing, tuple | list | dict):
            if id(thing) not in containers:
                containers[id(thing)] = thing
                pending.extend(thing.values() if isinstance(thing, dict) else thing)
        else:
            size = getattr(thing, "nbytes", None)
            total += size if isinstance(size, int) else sys.getsizeof(thing, 64)
    return total
