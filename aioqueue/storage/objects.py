"""Rows kept as they are, first in, first out: for plain objects and for rows of varying shape."""

from __future__ import annotations

from collections import deque
from typing import Any

from aioqueue.elements import Columns
from aioqueue.storage.base import Held, Storage

__all__ = ("ObjectStorage",)


class ObjectStorage(deque[Any], Storage):
    """A FIFO of references. The columns of a batch are the list of its rows.

    It *is* a deque, so that the fast path in and out is the deque's own C code and nothing else.
    """

    put = deque.append
    take = deque.popleft
    __hash__ = object.__hash__  # type: ignore[assignment]  # a place, not a value

    def __init__(self) -> None:
        deque.__init__(self)
        Storage.__init__(self)

    def put_many(self, columns: Columns, start: int, stop: int) -> None:
        self.extend(columns if stop - start == len(columns) else columns[start:stop])

    def pull(self, n: int, into: Columns | None = None) -> Columns:
        return self._remove(n)

    def hold_one(self, held: Held) -> None:
        if self.returned:
            super().hold_one(held)
            return
        row = held.single = self.popleft()
        held.parts, held.tickets, held.count = (row,), (self._next_ticket,), 1
        self._next_ticket += 1

    def columns(self, held: Held) -> Columns:
        return list(held.parts)

    def empty(self) -> Columns:
        return []

    def _remove(self, n: int) -> list[Any]:
        if n == len(self):
            rows = list(self)
            self.clear()
            return rows
        popleft = self.popleft
        return [popleft() for _ in range(n)]
