"""Typed rows, first in, first out, in one contiguous array per component.

A row is written straight into the arrays; a batch leaves them as one slice, or two where the ring
wraps around. Whenever the ring runs empty it starts again at slot 0, so a queue that is kept short
reuses the same few slots, which the processor still has in its cache.

**Handed-over batches** (``enqueue_many(..., copy=False)``) are not copied into the ring at all:
they wait as *segments* between the ring's rows, and are copied once, into the batch that leaves::

    next row                                                          last row
    ┌──────────────┬─────────────┬──────────────┬─────────────┬──────────────┐
    │ ring rows    │ segment 1   │ ring rows    │ segment 2   │ ring rows    │
    │ (1.before)   │             │ (2.before)   │             │ (the rest)   │
    └──────────────┴─────────────┴──────────────┴─────────────┴──────────────┘

**A batch that waits** lends the ring its own arrays, if copying them costs more than exchanging
them (`adopt`). Then rows are written where the batch needs them, and when the last one has come
they have been copied once. That is the usual state of a pipeline whose workers are slower than
what they feed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from aioqueue.elements import Columns, Component, Row
from aioqueue.storage.base import Held, Storage
from aioqueue.storage.columns import (
    allocate,
    as_dtypes,
    concatenate,
    first_slots,
    grow,
    row_bytes,
    split,
    stack,
)

__all__ = ("RingStorage",)

_WORTH_ADOPTING: Final = 2**16
"""Bytes of a batch from which a copy less is worth the trouble."""


class _Segment:
    """Rows ``start`` to ``stop`` of a handed-over batch, after ``before`` rows of the ring."""

    __slots__ = ("before", "columns", "start", "stop")

    def __init__(self, before: int, columns: Columns, start: int, stop: int) -> None:
        self.before = before
        self.columns = columns
        self.start = start
        self.stop = stop


class RingStorage(Storage):
    """A FIFO of typed rows.

    Args:
        components: the components of a row, each of one fixed shape.
        capacity: how many rows there will be at most; ``None`` lets the arrays grow, by doubling.
    """

    def __init__(self, components: tuple[Component, ...], capacity: int | None) -> None:
        super().__init__()
        self._components = components
        self._limit = capacity
        self._slots = first_slots(components, capacity)
        self._columns = allocate(components, self._slots)
        # Objects must not be kept alive by a slot that their row has left.
        self._references = [c for c in self._columns if c.dtype.hasobject]
        self._row_bytes = row_bytes(components)
        self._own: tuple[Columns, int] | None = None  # arrays and slots, while others are adopted
        self._copied = [not component.scalar for component in components]
        self._start = 0  # slot of the next row
        self._count = 0  # rows in the ring
        self._segments: deque[_Segment] = deque()
        self._before = 0  # ring rows that have a segment behind them
        self._handed = 0  # rows in the segments

    def __len__(self) -> int:
        return self._count + self._handed

    def put(self, row: Row, /) -> None:
        if self._count == self._slots:
            self._grow(1)
        slot = self._start + self._count
        if slot >= self._slots:
            slot -= self._slots
        for column, value in zip(self._columns, row):  # noqa: B905  # not strict: it is quicker
            column[slot] = value
        self._count += 1

    def put_many(self, columns: Columns, start: int, stop: int, owned: bool) -> None:
        n = stop - start
        if owned:
            self.give_back()
            exact = as_dtypes(self._components, columns)
            self._segments.append(_Segment(self._count - self._before, exact, start, stop))
            self._before = self._count
            self._handed += n
            return
        if self._count + n > self._slots:
            self._grow(n)
        slot = (self._start + self._count) % self._slots
        first = min(n, self._slots - slot)
        for column, values in zip(self._columns, columns, strict=True):
            column[slot : slot + first] = values[start : start + first]
            if first < n:
                column[: n - first] = values[start + first : stop]
        self._count += n

    def take(self) -> Row:
        if self._segments:
            return split(self._components, self.pull(1))[0]
        slot = self._start
        row = tuple(
            [
                column[slot].copy() if copied else column[slot]
                for column, copied in zip(self._columns, self._copied, strict=True)
            ]
        )
        self._drop(1)
        return row

    def pull(self, n: int, into: Columns | None = None) -> Columns:
        if self._own is not None:
            return self._complete_adopted(n, into)
        columns = allocate(self._components, n) if into is None else into
        if not self._segments:
            self._read(columns, 0, n)
            self._drop(n)
            return columns
        done = 0
        while done < n:
            segment = self._segments[0] if self._segments else None
            if segment is None or segment.before:
                step = n - done if segment is None else min(n - done, segment.before)
                self._read(columns, done, step)
                self._drop(step)
                if segment is not None:
                    segment.before -= step
                    self._before -= step
            else:
                step = min(n - done, segment.stop - segment.start)
                self._read_segment(segment, columns, done, step)
            done += step
        return columns

    def adopt(self, held: Held, n: int) -> None:
        if self._own is not None or self.returned or self._segments or self._references:
            return
        # Without arrays of the caller's, what a batch already holds has to be copied once more.
        is_in_parts = held.out is None and held.count > 0
        if is_in_parts or n * self._row_bytes < _WORTH_ADOPTING:
            return
        try:
            fits = n if self._limit is None else min(n, self._limit)
            if fits > self._slots:  # there must be room for all when it has to be given back
                self._grow(fits - self._count)
            adopted = held.target(n) or allocate(self._components, n)
        except MemoryError:
            return
        self._read(adopted, 0, self._count)
        self._own = self._columns, self._slots
        self._columns, self._slots, self._start = adopted, n, 0

    def give_back(self) -> None:
        if self._own is not None:
            self._leave_adopted(0)

    def stack(self, rows: Sequence[Row], into: Columns | None = None) -> Columns:
        return stack(self._components, rows, into)

    def split(self, columns: Columns) -> list[Row]:
        return split(self._components, columns)

    def concatenate(self, chunks: list[Columns]) -> Columns:
        return concatenate(self._components, chunks)

    def _complete_adopted(self, n: int, into: Columns | None) -> Columns:
        """The next n rows of the batch whose arrays were adopted: they are where they belong."""
        columns = self._columns
        if into is None and n < self._slots:
            columns = [column[:n].copy() for column in columns]
        self._leave_adopted(n)
        return columns if into is None else into

    def _leave_adopted(self, n: int) -> None:
        """Return to the ring's own arrays, with all rows but the first n."""
        assert self._own is not None
        adopted = self._columns
        (self._columns, self._slots), self._own = self._own, None
        stop, self._start, self._count = self._count, 0, self._count - n
        for column, rows in zip(self._columns, adopted, strict=True):
            column[: self._count] = rows[n:stop]

    def _read(self, columns: Columns, offset: int, n: int) -> None:
        """Copy the ring's next n rows to rows ``offset`` and on of the columns."""
        start = self._start
        first = min(n, self._slots - start)
        for column, target in zip(self._columns, columns, strict=True):
            target[offset : offset + first] = column[start : start + first]
            if first < n:
                target[offset + first : offset + n] = column[: n - first]

    def _read_segment(self, segment: _Segment, columns: Columns, offset: int, n: int) -> None:
        for values, target in zip(segment.columns, columns, strict=True):
            target[offset : offset + n] = values[segment.start : segment.start + n]
        segment.start += n
        self._handed -= n
        if segment.start == segment.stop:
            self._segments.popleft()

    def _drop(self, n: int) -> None:
        """Free the slots of the ring's next n rows."""
        stop = self._start + n
        for column in self._references:
            column[self._start : min(stop, self._slots)] = None
            if stop > self._slots:
                column[: stop - self._slots] = None
        self._count -= n
        self._start = stop % self._slots if self._count else 0

    def _grow(self, n: int) -> None:
        self.give_back()
        if self._count + n <= self._slots:
            return
        slots = grow(self._slots, self._count + n, self._limit)
        columns: Columns = allocate(self._components, slots)
        self._read(columns, 0, self._count)
        self._columns, self._slots, self._start = columns, slots, 0
        self._references = [c for c in self._columns if c.dtype.hasobject]
