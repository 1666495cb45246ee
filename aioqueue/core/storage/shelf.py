"""Shelves: where rows lie that leave in another order than they came.

A storage that picks rows from anywhere keeps short *entries* in its order, and leaves the rows on a
*shelf*. In an `ObjectShelf`, for plain objects, each object is its own entry. In a `TypedShelf`
(`aioqueue.core.storage.typed_shelf`), an entry is the number of a slot in its arrays.

Held rows stay in their slots until they have been copied, and a large batch is copied to slots that
were reserved for it, so neither needs the machine's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from aioqueue.core.elements.spec import Columns, Row, Spec
from aioqueue.core.storage.protocol import Held, Slot, Storage


class HeldBatch(list[Any]):
    """The entries of a batch that is on the shelf and not in line yet.

    Attributes:
        keys: the rows' sort keys, if the order has keys.
    """

    __slots__ = ("keys",)
    __hash__ = object.__hash__  # type: ignore[assignment]  # compared by identity

    def __init__(self, entries: Sequence[Slot], keys: Sequence[int]) -> None:
        super().__init__(entries)
        self.keys: Sequence[int] = keys


class Shelf(Protocol):
    """Rows by entry.

    Attributes:
        row_bytes: the size of a row in bytes, if all rows have the same size.
        has_numbers: whether entries are ints.
        has_wrapped: whether some of them are not, because their rows are in a batch that was given
            away.
    """

    row_bytes: int | None

    has_wrapped: bool
    has_numbers: bool

    def is_large(self, n: int) -> bool: ...

    def place(self, row: Row) -> Slot:
        """Put one row on the shelf; return its entry."""

    def place_many(self, columns: Columns, start: int, stop: int) -> Sequence[Slot]:
        """Put rows of a batch on the shelf; return their entries."""

    def reserve(self, n: int) -> Sequence[Slot]: ...

    def fill(self, entries: Sequence[Slot], columns: Columns) -> Sequence[Slot]:
        """Copy a batch to reserved entries; return the batch's entries. No lock."""

    def wrap(self, columns: Columns) -> Sequence[Slot]:
        """Return the entries of a batch that was given away. No lock."""

    def read_one(self, entry: Slot) -> Row: ...

    def read(self, entries: Sequence[Slot], into: Columns | None) -> Columns:
        """Return rows as columns; they stay on the shelf. No lock."""

    def forget(self, entries: Sequence[Slot]) -> None: ...


class ObjectShelf:
    """A shelf for plain objects, which are their own entries."""

    __slots__ = ()
    row_bytes: int | None = None
    has_wrapped: bool = False
    has_numbers: bool = False

    def is_large(self, n: int) -> bool:
        return False

    def place(self, row: Row) -> Slot:
        return row

    def place_many(self, columns: Columns, start: int, stop: int) -> Sequence[Slot]:
        return columns if stop - start == len(columns) else columns[start:stop]

    def reserve(self, n: int) -> Sequence[Slot]:
        return ()

    def fill(self, entries: Sequence[Slot], columns: Columns) -> Sequence[Slot]:
        return columns

    def wrap(self, columns: Columns) -> Sequence[Slot]:
        return columns

    def read_one(self, entry: Slot) -> Row:
        return entry

    def read(self, entries: Sequence[Slot], into: Columns | None) -> Columns:
        return list(entries)

    def forget(self, entries: Sequence[Slot]) -> None:
        """Do nothing: the objects are not kept here."""


def shelf_for(spec: Spec, capacity: int | None) -> Shelf:
    if spec.components is None or spec.rows_private:
        return ObjectShelf()
    from aioqueue.core.storage.typed_shelf import TypedShelf  # it loads NumPy

    return TypedShelf(spec.components, capacity)


class ShelvedStorage(Storage):
    """The base class of storages whose rows are on a shelf.

    Args:
        shelf: where the rows are kept.
    """

    def __init__(self, shelf: Shelf) -> None:
        super().__init__()
        self._shelf = shelf
        self.row_bytes: int | None = shelf.row_bytes

    def is_large(self, n: int) -> bool:
        return self._shelf.is_large(n)

    def reserve(self, n: int) -> Any:
        return HeldBatch(self._shelf.reserve(n), ())

    def fill(self, reserved: Any, columns: Columns, n: int) -> Columns:
        return HeldBatch(self._shelf.fill(reserved, columns), self._keys(columns))

    def wrap(self, columns: Columns, n: int) -> Columns:
        return HeldBatch(self._shelf.wrap(columns), self._keys(columns))

    def discard(self, columns: Columns, start: int) -> None:
        if isinstance(columns, HeldBatch):
            self._shelf.forget(columns[start:])

    def hold_one(self, held: Held) -> None:
        try:
            self.hold(held, 1)
            held.single = self._shelf.read_one(held.parts[0])
        except BaseException:
            self.restore(held)
            raise
        entries, held.parts = held.parts, ()
        self._shelf.forget(entries)

    def restore(self, held: Held) -> None:
        if held.count and not held.parts:
            held.parts = [self._shelf.place(held.single)]
        super().restore(held)

    def columns(self, held: Held) -> Columns:
        return self._shelf.read(held.parts, held.out)

    def free(self, held: Held) -> None:
        entries = held.parts
        held.clear()  # first: after a Ctrl-C here, rows that are being reused must not come back
        self._shelf.forget(entries)

    def empty(self) -> Columns:
        return self._shelf.read((), None)

    def _keys(self, columns: Columns) -> Sequence[int]:
        """Return the sort keys of the rows of a batch."""
        return ()

    def _entries(self, columns: Columns, start: int, stop: int) -> Sequence[Slot]:
        """Put rows of a batch on the shelf, if they are not there; return their entries."""
        if isinstance(columns, HeldBatch):
            return columns[start:stop]
        return self._shelf.place_many(columns, start, stop)
