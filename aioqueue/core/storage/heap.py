"""The heap: the row with the smallest priority leaves first; equal ones first in, first out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final

from aioqueue.core.elements.spec import Columns, Row
from aioqueue.core.storage.protocol import Held, Slot
from aioqueue.core.storage.shelf import HeldBatch, Shelf, ShelvedStorage

_Item = Any
"""A row in the heap: ``(priority, arrival, entry)``, or one int of the three; see `HeapStorage`."""

_ARRIVAL_BITS: Final = 64
_SLOT_BITS: Final = 40
_PRIORITY_AT: Final = _ARRIVAL_BITS + _SLOT_BITS
_ARRIVALS: Final = 2**_ARRIVAL_BITS - 1
_SLOTS: Final = 2**_SLOT_BITS - 1
_NO_SLOT: Final = _SLOTS
"""In place of a slot: the row is in a batch that was given away."""


class HeapStorage(ShelvedStorage):
    """Rows by priority, which is the first component of each.

    A row that comes back takes its old place among equal priorities: its ticket is its number of
    arrival. It goes straight into the heap, so that a smaller priority that came meanwhile still
    leaves first. For the same reason a waiting batch must not take rows early: `progressive` is
    false.

    If the shelf has numbers for its rows, the heap has one int for each row: the priority in its
    upper bits, then the arrival, and the number of the slot in the lowest ones. Such an int takes a
    third of the memory of a tuple with three others.

    Args:
        shelf: where the rows are kept.
    """

    progressive = False

    def __init__(self, shelf: Shelf, *, typed: bool) -> None:
        super().__init__(shelf)
        self._typed = typed
        self._has_numbers = shelf.has_numbers
        self._items: list[_Item] = []
        self._arrivals = 0
        self._wrapped: dict[int, Slot] = {}  # entries that are no numbers, by arrival

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Slot]:
        return map(self._entry_of, self._items)

    def put(self, row: Row, /) -> None:
        self._add([int(row[0])], [self._shelf.place(row)])

    def put_many(self, columns: Columns, start: int, stop: int) -> None:
        entries = self._entries(columns, start, stop)
        if isinstance(columns, HeldBatch):
            self._add(columns.keys[start:stop], entries)
        else:
            keys = (
                columns[0][start:stop].tolist() if self._typed else self._keys(columns[start:stop])
            )
            self._add(keys, entries)

    def take(self) -> Row:
        item = self._items[0]
        entry = self._entry_of(item)
        row = self._shelf.read_one(entry)  # before it leaves: the copy may fail
        heappop(self._items)
        if self._wrapped:
            self._forget_wrapped((item,))
        self._shelf.forget((entry,))
        return row

    def pull(self, n: int, into: Columns | None = None) -> Columns:
        held = Held(into)
        self.hold(held, n)
        try:
            columns = self.columns(held)
        except BaseException:
            self.restore(held)
            raise
        self.free(held)
        return columns

    def hold(self, held: Held, n: int) -> None:
        items: list[_Item] = []
        try:
            self._remove(n, items)
            if self._is_plain:
                parts = [item & _SLOTS for item in items]
                tickets = [(item >> _PRIORITY_AT, item >> _SLOT_BITS & _ARRIVALS) for item in items]
            else:
                parts = list(map(self._entry_of, items))
                tickets = list(map(self._ticket_of, items))
        except BaseException:
            if items and self._items and self._items[0] is items[-1]:
                del items[-1]  # that row is still inside
            self._push(items)
            raise
        held.parts, held.tickets, held.count = parts, tickets, n
        if self._wrapped:
            self._forget_wrapped(items)

    def restore(self, held: Held) -> None:
        if held.count and not held.parts:
            held.parts = [self._shelf.place(held.single)]
        self._push(
            [
                self._item_of(priority, arrival, entry)
                for (priority, arrival), entry in zip(held.tickets, held.parts, strict=True)
            ]
        )
        held.clear()

    def drop(self, value: Any) -> bool:
        # Build the new list separately, then replace the old one in a single step.
        items = [item for item in self._items if item[2] is not value and item[2][1] is not value]
        is_inside = len(items) < len(self._items)
        if is_inside:
            heapify(items)
            self._items = items
        return is_inside

    def _keys(self, columns: Columns) -> Sequence[int]:
        return columns[0].tolist() if self._typed else [row[0] for row in columns]

    def _remove(self, n: int, removed: list[_Item]) -> None:
        for _ in range(n):
            # In both lists for a moment, never in neither: `hold` removes the last one again if a
            # handler raises between the two calls.
            removed.append(self._items[0])
            heappop(self._items)

    def _add(self, priorities: Iterable[int], entries: Iterable[Slot]) -> None:
        items, item_of, is_plain = self._items, self._item_of, self._is_plain
        for priority, entry in zip(priorities, entries, strict=True):
            arrival = self._arrivals
            self._arrivals += 1
            if is_plain:  # as `_item_of`, inlined for speed
                heappush(items, priority << _PRIORITY_AT | arrival << _SLOT_BITS | entry)
            else:
                heappush(items, item_of(priority, arrival, entry))

    def _push(self, items: Iterable[_Item]) -> None:
        for item in items:
            heappush(self._items, item)

    @property
    def _is_plain(self) -> bool:
        """Whether the items are ints, and no row is in a batch that was given away."""
        return self._has_numbers and not self._shelf.has_wrapped

    def _item_of(self, priority: int, arrival: int, entry: Slot) -> _Item:
        if not self._has_numbers:
            return priority, arrival, entry
        if type(entry) is not int:
            self._wrapped[arrival] = entry
            entry = _NO_SLOT
        return priority << _PRIORITY_AT | arrival << _SLOT_BITS | entry

    def _entry_of(self, item: _Item) -> Slot:
        if not self._has_numbers:
            return item[2]
        slot = item & _SLOTS
        return self._wrapped[item >> _SLOT_BITS & _ARRIVALS] if slot == _NO_SLOT else slot

    def _ticket_of(self, item: _Item) -> tuple[int, int]:
        """The priority and the arrival of a row."""
        if not self._has_numbers:
            return item[0], item[1]
        return item >> _PRIORITY_AT, item >> _SLOT_BITS & _ARRIVALS

    def _forget_wrapped(self, items: Iterable[_Item]) -> None:
        """Forget the entries of rows that have left the heap."""
        for item in items:
            self._wrapped.pop(item >> _SLOT_BITS & _ARRIVALS, None)
