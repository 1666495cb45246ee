"""Rows kept as they are, first in, first out: for plain objects and for rows of varying shape."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

from aioqueue.elements import Columns, Row
from aioqueue.storage.base import Storage

__all__ = ("ObjectStorage",)


class ObjectStorage(deque[Any], Storage):
    """A FIFO of references. The columns of a batch are the list of its rows.

    It *is* a deque, so that the quick way in and out is the deque's own C code and nothing else.
    """

    put = deque.append
    take = deque.popleft
    __hash__ = object.__hash__  # type: ignore[assignment]  # a place, not a value

    def __init__(self) -> None:
        deque.__init__(self)
        Storage.__init__(self)

    def put_many(self, columns: Columns, start: int, stop: int, owned: bool) -> None:
        self.extend(columns if stop - start == len(columns) else islice(columns, start, stop))

    def pull(self, n: int, into: Columns | None = None) -> Columns:
        if n == len(self):
            rows = list(self)
            self.clear()
            return rows
        popleft = self.popleft
        return [popleft() for _ in range(n)]

    def stack(self, rows: Sequence[Row], into: Columns | None = None) -> Columns:
        return list(rows)

    def split(self, columns: Columns) -> list[Row]:
        return columns

    def concatenate(self, chunks: list[Columns]) -> Columns:
        return list(chain.from_iterable(chunks))
