"""Rows are whole numbers in the proof: what they look like in each kind of queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import aioqueue
from tests.kit.worlds import LARGE, STRUCTURED

__all__ = ("KINDS", "Codec", "priority_of")

KINDS = (
    "fifo",
    "large",
    "structured",
    "objects",
    "shuffle",
    "large-shuffle",
    "padding",
    "priority",
    "large-priority",
    "weighty",
    "weighty-priority",
)
_LARGE = ("large", "large-shuffle")


def priority_of(number: int) -> int:
    """The priority of a row: some come in order, some do not, some are equal."""
    return number * 7 % 5


MAX_BYTES = {"weighty": 4, "weighty-priority": 20}
"""Of the queues whose rows differ in size."""


def weight_of(kind: str, row: int) -> int:
    """How many bytes a row of such a queue takes, its priority included."""
    return 1 + row % 3 + (8 if kind == "weighty-priority" else 0)


class Weighty(int):
    """A row that says how large it is."""

    @property
    def nbytes(self) -> int:
        return weight_of("weighty", self)


class Codec:
    """Makes a queue of one kind, and elements and batches of numbers; reads them again."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def queue(self, capacity: int | None, keep: int) -> Any:
        if self.kind == "fifo":
            return aioqueue.FIFOQueue(capacity, "int64", (2,))
        if self.kind == "large":
            return aioqueue.FIFOQueue(capacity, "int64", (LARGE,))
        if self.kind == "objects":
            return aioqueue.FIFOQueue(capacity)
        if self.kind == "weighty":
            return aioqueue.FIFOQueue(capacity, max_bytes=MAX_BYTES[self.kind])
        if self.kind == "weighty-priority":
            return aioqueue.PriorityQueue(capacity, max_bytes=MAX_BYTES[self.kind])
        if self.kind == "structured":
            return aioqueue.FIFOQueue(capacity, STRUCTURED, ())
        if self.kind == "large-shuffle":
            return aioqueue.RandomShuffleQueue(capacity, keep, "int64", (LARGE,), seed=1)
        if self.kind == "large-priority":
            return aioqueue.PriorityQueue(capacity, "int64", [(LARGE,)])
        if self.kind == "shuffle":
            return aioqueue.RandomShuffleQueue(capacity, keep, "int64", (), seed=1)
        if self.kind == "padding":
            return aioqueue.PaddingFIFOQueue(capacity, "int64", [(None,)])
        return aioqueue.PriorityQueue(capacity, "int64", [()])

    def element(self, row: int) -> Any:
        if self.kind == "fifo":
            return (row, -row)
        if self.kind in _LARGE:
            return np.full(LARGE, row)
        if self.kind == "structured":
            return np.array((row, -row), STRUCTURED)
        if self.kind == "large-priority":
            return priority_of(row), np.full(LARGE, row)
        if self.kind == "padding":
            return [row + 1] * (1 + row % 3)
        if self.kind == "weighty":
            return Weighty(row)
        if self.kind == "weighty-priority":
            return priority_of(row), Weighty(row)
        return (priority_of(row), row) if self.kind == "priority" else row

    def batch(self, rows: Sequence[int]) -> Any:
        if self.kind == "objects":
            return list(rows)
        if self.kind in MAX_BYTES:
            return [self.element(row) for row in rows]
        column = np.array(rows, "int64")
        if self.kind == "fifo":
            return np.stack([column, -column], axis=1)
        if self.kind in _LARGE:
            return np.repeat(column[:, None], LARGE, axis=1)
        if self.kind == "structured":
            return np.array([(row, -row) for row in rows], STRUCTURED)
        if self.kind == "large-priority":
            pages = np.repeat(column[:, None], LARGE, axis=1)
            return np.array([priority_of(row) for row in rows], "int64"), pages
        if self.kind == "padding":
            return np.repeat(column[:, None] + 1, 1 + len(rows) % 3, axis=1)
        if self.kind == "priority":
            return np.array([priority_of(row) for row in rows], "int64"), column
        return column

    def out(self, n: int) -> Any:
        """Arrays of the caller's for a batch of n rows; None where a queue writes to none."""
        if self.kind in ("objects", "padding", *MAX_BYTES):
            return None
        batch = self.batch(range(n))
        for column in batch if isinstance(batch, tuple) else (batch,):
            column[...] = column.dtype.type() if column.dtype.names is None else (-1, -1)
        return batch

    def row(self, element: Any) -> int:
        if self.kind == "fifo":
            assert element[1] == -element[0]
            return int(element[0])
        if self.kind in _LARGE:
            assert (element == element[0]).all()
            return int(element[0])
        if self.kind == "structured":
            assert element["weight"] == -element["id"]
            return int(element["id"])
        if self.kind == "large-priority":
            assert (element[1] == element[1][0]).all()
            assert element[0] == priority_of(int(element[1][0]))
            return int(element[1][0])
        if self.kind == "padding":
            assert (element == element[0]).all()
            return int(element[0]) - 1
        if self.kind in ("priority", "weighty-priority"):
            assert element[0] == priority_of(int(element[1]))
            return int(element[1])
        return int(element)

    def rows(self, batch: Any) -> tuple[int, ...]:
        if self.kind == "padding":
            if len(batch):
                assert batch[:, -1].any(), "padded to more than the longest"
            return tuple(self.row(line[line != 0]) for line in batch)
        if self.kind in ("priority", "large-priority"):
            batch = list(zip(*batch, strict=True))
        return tuple(self.row(element) for element in batch)
