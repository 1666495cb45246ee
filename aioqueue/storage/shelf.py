"""Where rows rest that do not leave in the order in which they came.

Shuffling and priorities pick rows from anywhere, so they keep short *entries* in their order and
leave the rows on a *shelf*: a number for a slot of the shelf's arrays, which never moves while the
row is inside. `ObjectShelf` is for plain objects, which are their own entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from typing import Any, Final, Protocol

import numpy as np

from aioqueue.elements import Columns, Component, Row
from aioqueue.storage.base import Storage
from aioqueue.storage.columns import (
    allocate,
    as_dtypes,
    concatenate,
    first_slots,
    grow,
    split,
    stack,
)

__all__ = ("ObjectShelf", "Shelf", "ShelvedStorage", "TypedShelf")

Entry = Any
_PORTION: Final = 256


class Shelf(Protocol):
    """Rows by entry."""

    def place(self, row: Row) -> Entry:
        """Put one row on the shelf."""

    def place_many(self, columns: Columns, start: int, stop: int, owned: bool) -> Sequence[Entry]:
        """Put rows of a batch on the shelf."""

    def fetch(self, entry: Entry) -> Row:
        """Take one row from the shelf."""

    def fetch_many(self, entries: Sequence[Entry], into: Columns | None) -> Columns:
        """Take rows from the shelf, as columns."""

    def stack(self, rows: Sequence[Row], into: Columns | None) -> Columns:
        """Columns of single rows."""

    def split(self, columns: Columns) -> list[Row]:
        """Single rows of columns."""

    def concatenate(self, chunks: list[Columns]) -> Columns:
        """Columns of the columns of several chunks."""


class ObjectShelf:
    """Objects are their own entries."""

    __slots__ = ()

    def place(self, row: Row) -> Entry:
        return row

    def place_many(self, columns: Columns, start: int, stop: int, owned: bool) -> Sequence[Entry]:
        return columns if stop - start == len(columns) else list(islice(columns, start, stop))

    def fetch(self, entry: Entry) -> Row:
        return entry

    def fetch_many(self, entries: Sequence[Entry], into: Columns | None) -> Columns:
        return list(entries)

    def stack(self, rows: Sequence[Row], into: Columns | None) -> Columns:
        return list(rows)

    def split(self, columns: Columns) -> list[Row]:
        return columns

    def concatenate(self, chunks: list[Columns]) -> Columns:
        return list(chain.from_iterable(chunks))


class _HandedRow:
    """The entry of a row that stays in the batch that it was handed over with."""

    __slots__ = ("columns", "index")

    def __init__(self, columns: Columns, index: int) -> None:
        self.columns = columns
        self.index = index


class TypedShelf:
    """Typed rows in the slots of one contiguous array per component.

    Args:
        components: the components of a row, each of one fixed shape.
        capacity: how many rows there will be at most; ``None`` lets the arrays grow, by doubling.
    """

    __slots__ = (
        "_columns",
        "_components",
        "_free",
        "_fresh",
        "_handed",
        "_limit",
        "_references",
        "_slots",
    )

    def __init__(self, components: tuple[Component, ...], capacity: int | None) -> None:
        self._components = components
        self._limit = capacity
        self._slots = first_slots(components, capacity)
        self._columns = allocate(components, self._slots)
        self._references = any(column.dtype.hasobject for column in self._columns)
        self._free: list[int] = []  # the slot freed last is used first
        self._fresh = 0  # slots from here on have never been used, and are not listed yet
        self._handed = 0  # entries that are no slots

    def place(self, row: Row) -> Entry:
        if not self._free:
            self._free_more(1)
        slot = self._free[-1]
        for column, value in zip(self._columns, row):  # noqa: B905  # not strict: it is quicker
            column[slot] = value
        return self._free.pop()

    def place_many(self, columns: Columns, start: int, stop: int, owned: bool) -> Sequence[Entry]:
        if owned:
            exact = as_dtypes(self._components, columns)
            self._handed += stop - start
            return [_HandedRow(exact, index) for index in range(start, stop)]
        n = stop - start
        if len(self._free) < n:
            self._free_more(n - len(self._free))
        slots = self._free[: -n - 1 : -1]
        for column, values in zip(self._columns, columns, strict=True):
            _scatter(column, slots, values[start:stop])
        del self._free[len(self._free) - n :]
        return slots

    def fetch(self, entry: Entry) -> Row:
        if self._handed and isinstance(entry, _HandedRow):
            return self.split(self.fetch_many([entry], None))[0]
        row = tuple(
            [
                column[entry] if component.scalar else column[entry].copy()
                for column, component in zip(self._columns, self._components, strict=True)
            ]
        )
        self._forget([entry])
        return row

    def fetch_many(self, entries: Sequence[Entry], into: Columns | None) -> Columns:
        target = allocate(self._components, len(entries)) if into is None else into
        if self._handed and any(isinstance(entry, _HandedRow) for entry in entries):
            self._fetch_mixed(entries, target)
            return target
        slots = np.array(entries, dtype=np.intp)
        for column, rows in zip(self._columns, target, strict=True):
            # With mode="clip" NumPy writes to `out` directly; the default mode buffers it.
            column.take(slots, axis=0, out=rows, mode="clip")
        self._forget(entries)
        return target

    def stack(self, rows: Sequence[Row], into: Columns | None) -> Columns:
        return stack(self._components, rows, into)

    def split(self, columns: Columns) -> list[Row]:
        return split(self._components, columns)

    def concatenate(self, chunks: list[Columns]) -> Columns:
        return concatenate(self._components, chunks)

    def _fetch_mixed(self, entries: Sequence[Entry], target: Columns) -> None:
        slots = []
        for index, entry in enumerate(entries):
            handed = isinstance(entry, _HandedRow)
            source = entry.columns if handed else self._columns
            row = entry.index if handed else entry
            for column, rows in zip(source, target, strict=True):
                rows[index] = column[row]
            if not handed:
                slots.append(entry)
        self._handed -= len(entries) - len(slots)
        self._forget(slots)

    def _forget(self, slots: Sequence[int]) -> None:
        if self._references:
            for column in self._columns:
                if column.dtype.hasobject:
                    column[list(slots)] = None
        self._free.extend(slots)

    def _free_more(self, n: int) -> None:
        """List fresh slots, some more than are needed now: a shelf pays for what it has held."""
        if self._fresh + n > self._slots:
            self._grow(n)
        stop = min(self._slots, self._fresh + max(n, _PORTION))
        self._free[:0] = range(stop - 1, self._fresh - 1, -1)
        self._fresh = stop

    def _grow(self, n: int) -> None:
        slots = grow(self._slots, self._fresh + n, self._limit)
        columns = allocate(self._components, slots)
        for column, larger in zip(self._columns, columns, strict=True):
            larger[: self._slots] = column
        self._columns, self._slots = columns, slots


class ShelvedStorage(Storage):
    """What storages have in common whose rows rest on a shelf.

    Args:
        shelf: where the rows rest.
    """

    def __init__(self, shelf: Shelf) -> None:
        super().__init__()
        self._shelf = shelf

    def stack(self, rows: Sequence[Row], into: Columns | None = None) -> Columns:
        return self._shelf.stack(rows, into)

    def split(self, columns: Columns) -> list[Row]:
        return self._shelf.split(columns)

    def concatenate(self, chunks: list[Columns]) -> Columns:
        return self._shelf.concatenate(chunks)


def _scatter(column: Any, slots: list[int], values: Any) -> None:
    """Write rows to slots: as one slice where the slots are a run, as they are in a fresh shelf."""
    if slots[-1] - slots[0] == len(slots) - 1 and slots == list(range(slots[0], slots[-1] + 1)):
        column[slots[0] : slots[-1] + 1] = values
    else:
        column[slots] = values
