"""`Arrivals`: rows that threads write for a queue without its lock, and that enter together."""

from __future__ import annotations

from collections.abc import Callable

from aioqueue.core.elements.spec import Columns, PackedRow

Joined = Callable[[list[PackedRow]], Columns]
"""Makes columns of packed rows."""


class Arrivals:
    """Rows that their writers have written, and that are not in the queue's line yet.

    To put a row in costs several times as much as to write it. Writers of many rows append them
    here. The one whose row makes them as many as ``limit`` calls `Machine.collect`: then they enter
    together. This delays no consumer: a move that would have to wait for rows takes in what is here
    first, and from then on the limit is no more than what the consumer lacks.

    It needs a global interpreter lock, which orders what the writers and the machine do: a writer
    appends a row, and then reads the limit; the machine sets the limit, and then counts the rows.
    So one of them notices.

    Args:
        joined: makes columns of rows.
        most: the largest limit.

    Attributes:
        rows: what was written. Writers only append, which is atomic. Only the machine removes rows,
            from the front and under its lock.
        limit: the number of rows at which a writer must call `collect`.
    """

    __slots__ = ("joined", "limit", "most", "rows")

    def __init__(self, joined: Joined, most: int) -> None:
        self.joined: Joined = joined
        self.most: int = most
        self.rows: list[PackedRow] = []
        self.limit: int = 1

    def take(self, n: int) -> list[PackedRow]:
        """Remove the first n rows, and return them."""
        rows = self.rows[:n]
        del self.rows[:n]
        return rows
