"""The lists of attempts: those that wait, by side and in order, and those that were granted.

The machine decides; this is its bookkeeping. Ordered dicts give the first attempt of a line, and
remove any attempt, in constant time. Plain dicts cost half as much, but their first key takes
longer to find the more keys before it were removed; no code asks for the first of the grants. Every
method tolerates an attempt that it does not find, since Ctrl-C may strike between two steps of a
move.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from aioqueue.attempts import (
    DEQUEUE,
    ENQUEUE,
    PENDING,
    Attempt,
    Put,
    PutMany,
    Take,
    UntilClosed,
    Waker,
)

__all__ = ("Lines",)


class Lines:
    """The attempts of one queue that have begun and not yet ended.

    Attributes:
        enqueues: attempts that wait to put rows in.
        dequeues: attempts that wait to take rows out.
        until_closed: attempts that wait for the end.
        places: granted enqueues that are not committed, all of one waker, in the order of the
            grants. The values are the bytes that they will put in, if the queue counts bytes.
        promised: the sum of those bytes.
        granted: granted dequeues that are not committed.
    """

    __slots__ = ("dequeues", "enqueues", "granted", "places", "promised", "until_closed")

    def __init__(self) -> None:
        self.enqueues: OrderedDict[Put | PutMany, None] = OrderedDict()
        self.dequeues: OrderedDict[Take, None] = OrderedDict()
        self.until_closed: OrderedDict[UntilClosed, None] = OrderedDict()
        self.places: dict[Put, int] = {}
        self.promised: int = 0
        self.granted: dict[Take, None] = {}

    def line_of(self, attempt: Attempt) -> OrderedDict[Any, None]:
        """Return the line in which an attempt waits."""
        if attempt.side is DEQUEUE:
            return self.dequeues
        return self.enqueues if attempt.side is ENQUEUE else self.until_closed

    def first_dequeue(self) -> Take | None:
        """Return the first dequeue in line."""
        return next(iter(self.dequeues), None)

    def remove(self, attempt: Attempt) -> None:
        """Remove an attempt from wherever it stands.

        It may stand nowhere: Ctrl-C can strike before it is in line.
        """
        if attempt.state is PENDING:
            self.line_of(attempt).pop(attempt, None)
        elif isinstance(attempt, Take):
            self.granted.pop(attempt, None)
        elif isinstance(attempt, Put):
            self.leave_place(attempt)

    def give_place(self, attempt: Put, weight: int) -> None:
        """Give an enqueue a place, for this many bytes."""
        self.places[attempt] = weight
        self.promised += weight

    def leave_place(self, attempt: Put) -> None:
        """Remove a place that is not needed any more."""
        self.promised -= self.places.pop(attempt, 0)
        if not self.places:
            self.promised = 0  # corrects what an interrupted `give_place` may have left

    def waiting(self) -> list[Attempt]:
        """Return the enqueues and dequeues that wait, and those that were granted but whose owners
        have not resumed; each side in the order of its line."""
        lines = (self.places, self.enqueues, self.granted, self.dequeues)
        return [attempt for line in lines for attempt in line]

    def of_waker(self, waker: Waker) -> list[Attempt]:
        """Return a waker's attempts that wait or whose owners have not resumed, in any order."""
        lines = (self.places, self.granted, self.enqueues, self.dequeues, self.until_closed)
        return [attempt for line in lines for attempt in line if attempt.waker is waker]
