"""The priority heap: the row with the smallest priority leaves first, equal ones as they came."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from operator import itemgetter
from typing import Final

from aioqueue.elements import Columns, Row
from aioqueue.storage.base import Held
from aioqueue.storage.shelf import Entry, Shelf, ShelvedStorage

__all__ = ("HeapStorage",)

_Item = tuple[int, int, Entry]
_PRIORITY: Final = itemgetter(0)


class HeapStorage(ShelvedStorage):
    """Rows by priority, which is the first component of each.

    A row that comes back takes its old place among its equals: its ticket is its number of arrival.
    It goes straight into the heap, so that a smaller priority that came meanwhile still leaves
    first. Nor may a waiting batch take rows early, for the same reason: `progressive` is false.

    Args:
        shelf: where the rows rest.
    """

    progressive = False

    def __init__(self, shelf: Shelf, *, typed: bool) -> None:
        super().__init__(shelf)
        self._typed = typed
        self._items: list[_Item] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._items)

    def put(self, row: Row, /) -> None:
        self._push([int(row[0])], [self._shelf.place(row)])

    def put_many(self, columns: Columns, start: int, stop: int, owned: bool) -> None:
        entries = self._shelf.place_many(columns, start, stop, owned)
        if self._typed:
            self._push(columns[0][start:stop].tolist(), entries)
        else:
            self._push(map(_PRIORITY, columns[start:stop]), entries)

    def take(self) -> Row:
        row = self._shelf.fetch(self._items[0][2])
        heappop(self._items)
        return row

    def pull(self, n: int, into: Columns | None = None) -> Columns:
        return self._fetch(self._pop(n), into)

    def hold(self, held: Held, n: int) -> None:
        items = self._pop(n)
        held.add(self._fetch(items, held.target(n)), [arrival for _, arrival, _ in items])

    def hold_one(self, held: Held) -> None:
        arrival = self._items[0][1]
        held.single = self.take()
        held.tickets = (arrival,)
        held.count = 1

    def restore(self, held: Held) -> None:
        for arrival, row in zip(held.tickets, self._rows(held), strict=True):
            heappush(self._items, (int(row[0]), arrival, self._shelf.place(row)))
        held.clear()

    def _push(self, priorities: Iterable[int], entries: Iterable[Entry]) -> None:
        for priority, entry in zip(priorities, entries, strict=True):
            heappush(self._items, (priority, self._arrivals, entry))
            self._arrivals += 1

    def _pop(self, n: int) -> list[_Item]:
        return [heappop(self._items) for _ in range(n)]

    def _fetch(self, items: list[_Item], into: Columns | None) -> Columns:
        try:
            return self._shelf.fetch_many([entry for _, _, entry in items], into)
        except BaseException:
            for item in items:
                heappush(self._items, item)
            raise
