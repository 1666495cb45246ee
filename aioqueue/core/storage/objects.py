"""Objects and rows of different shapes, first in, first out."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any

from aioqueue.core.elements.spec import Columns
from aioqueue.core.storage.protocol import Held, Storage


class ObjectStorage(deque[Any], Storage):
    """A FIFO of references. The columns of a batch are the list of its rows.

    It *is* a deque, so the fast path in and out runs the deque's C code and nothing else.
    """

    is_atomic = True
    put = deque.append
    take = deque.popleft
    __hash__ = object.__hash__  # type: ignore[assignment]  # compared by identity

    def __init__(self) -> None:
        deque.__init__(self)
        Storage.__init__(self)

    def put_many(self, columns: Columns, start: int, stop: int) -> None:
        self.extend(columns if stop - start == len(columns) else columns[start:stop])

    def pull(self, n: int, into: Columns | None = None) -> Columns:
        removed: list[Any] = []
        self._remove(n, removed)
        return removed

    def hold_one(self, held: Held) -> None:
        if self.returned:
            super().hold_one(held)
            return
        row, before = self[0], len(self)
        try:
            self.popleft()
            ticket = self._next_ticket
            held.parts, held.tickets, held.count = (row,), (ticket,), 1
            held.single = row
            self._next_ticket = ticket + 1
        except BaseException:  # from a signal handler: nothing has moved then
            if len(self) < before:
                self.appendleft(row)
            held.clear()
            raise

    def drop(self, value: Any) -> bool:
        for index, row in enumerate(self):
            if row is value:
                del self[index]
                return True
        return self._drop_returned(value)

    def columns(self, held: Held) -> Columns:
        return list(held.parts)

    def empty(self) -> Columns:
        return []

    def _remove(self, n: int, removed: list[Any]) -> None:
        before = len(self)
        try:
            # Copied first, then dropped. After an interruption the lengths say how many rows are in
            # both, and those are still inside.
            removed += islice(self, n)
            self._drop_first(n)
        except BaseException:
            del removed[before - len(self) :]  # rows that are still inside
            raise

    def _drop_first(self, n: int) -> None:
        if n == len(self):
            self.clear()
        else:
            for _ in range(n):
                self.popleft()
