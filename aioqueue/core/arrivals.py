"""`Arrivals`: rows that a thread writes for a queue without its lock, and that enter together."""

from __future__ import annotations

from collections.abc import Callable

from aioqueue.core.elements.spec import Columns

Joined = Callable[[Columns, int, int], Columns]
"""Makes columns of the rows from one index up to another, of what a writer has written."""


class Arrivals:
    """Rows that their writer has written, and that are not in the queue's line yet.

    To put a row in costs several times as much as to write it. A writer of many rows writes them
    here, and calls `Machine.collect` when there are as many rows of all writers as ``limit`` says:
    then they enter together. This delays no consumer: a move that would have to wait for rows takes
    in what is here first, and from then on the limit is no more than what the consumer lacks.

    It needs a global interpreter lock, which orders what the writer and the machine do: the writer
    counts a row, and then reads the limit; the machine sets the limit, and then reads the count. So
    one of them notices.

    Args:
        columns: memory for the rows, to which the writer writes in a form of its own.
        rows: how many fit.
        marks: the list of all writers of the queue. A writer appends anything to it before it
            counts a row in ``filled``; so it is never shorter than the rows that are here, and
            appending to it is atomic.
        joined: makes columns of rows that were written.

    Attributes:
        filled: the rows that were written. Only the writer changes it, or its call of `collect`.
        taken: how many of these are in the queue. Only the machine changes it, under its lock.
        limit: the length of ``marks`` at which the writer must call `collect`.
    """

    __slots__ = ("columns", "filled", "joined", "limit", "marks", "rows", "taken")

    def __init__(self, columns: Columns, rows: int, marks: list[None], joined: Joined) -> None:
        self.columns: Columns = columns
        self.rows: int = rows
        self.joined: Joined = joined
        self.marks: list[None] = marks
        self.filled: int = 0
        self.taken: int = 0
        self.limit: int = 1
