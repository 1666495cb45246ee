"""The heap: the row with the smallest priority leaves first; equal ones first in, first out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from aioqueue.core.elements.spec import Columns, Row
from aioqueue.core.storage.protocol import Held, Slot
from aioqueue.core.storage.shelf import HeldBatch, Shelf, ShelvedStorage

_Item = tuple[int, int, Slot]


class HeapStorage(ShelvedStorage):
    """Rows by priority, which is the first component of each.

    A row that comes back takes its old place among equal priorities: its ticket is its number of
    arrival. It goes straight into the heap, so that a smaller priority that came meanwhile still
    leaves first. For the same reason a waiting batch must not take rows early: `progressive` is
    false.

    Args:
        shelf: where the rows are kept.
    """

    progressive = False

    def __init__(self, shelf: Shelf, *, typed: bool) -> None:
        super().__init__(shelf)
        self._typed = typed
        self._items: list[_Item] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Slot]:
        return (entry for _, _, entry in self._items)

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
        entry = self._items[0][2]
        row = self._shelf.read_one(entry)  # before it leaves: the copy may fail
        heappop(self._items)
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
            parts = [entry for _, _, entry in items]
            tickets = [(priority, arrival) for priority, arrival, _ in items]
        except BaseException:
            if items and self._items and self._items[0] is items[-1]:
                del items[-1]  # that row is still inside
            self._push(items)
            raise
        held.parts, held.tickets, held.count = parts, tickets, n

    def restore(self, held: Held) -> None:
        if held.count and not held.parts:
            held.parts = [self._shelf.place(held.single)]
        self._push(
            [(*ticket, entry) for ticket, entry in zip(held.tickets, held.parts, strict=True)]
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
        for priority, entry in zip(priorities, entries, strict=True):
            arrival = self._arrivals
            self._arrivals += 1
            heappush(self._items, (priority, arrival, entry))

    def _push(self, items: Iterable[_Item]) -> None:
        for item in items:
            heappush(self._items, item)
