"""Where attempts stand: those that wait, by side, first come first; and those that were granted.

Plain bookkeeping. Ordered dicts give the first of a line, and any withdrawal, in constant time.
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
        enqueues: those that wait to put something in.
        dequeues: those that wait to take something out.
        until_closed: those that wait for the end.
        places: granted enqueues, not yet committed; all of one waker, in the order of the grants;
            each with how many bytes it is going to put in, where that is of any matter.
        promised: the sum of those bytes.
        granted: granted dequeues, not yet committed.
    """

    __slots__ = ("dequeues", "enqueues", "granted", "places", "promised", "until_closed")

    def __init__(self) -> None:
        self.enqueues: OrderedDict[Put | PutMany, None] = OrderedDict()
        self.dequeues: OrderedDict[Take, None] = OrderedDict()
        self.until_closed: OrderedDict[UntilClosed, None] = OrderedDict()
        self.places: OrderedDict[Put, int] = OrderedDict()
        self.promised = 0
        self.granted: OrderedDict[Take, None] = OrderedDict()

    def line_of(self, attempt: Attempt) -> OrderedDict[Any, None]:
        """Where an attempt waits for its turn."""
        if attempt.side is DEQUEUE:
            return self.dequeues
        return self.enqueues if attempt.side is ENQUEUE else self.until_closed

    def first_dequeue(self) -> Take | None:
        """The dequeue that is next."""
        return next(iter(self.dequeues), None)

    def remove(self, attempt: Attempt) -> None:
        """Take an attempt out of wherever it stands.

        It may stand nowhere: Ctrl-C can strike before it is in line.
        """
        if attempt.state is PENDING:
            self.line_of(attempt).pop(attempt, None)
        elif isinstance(attempt, Take):
            self.granted.pop(attempt, None)
        elif isinstance(attempt, Put):
            self.leave_place(attempt)

    def give_place(self, attempt: Put, weight: int) -> None:
        """An enqueue is granted a place, for so many bytes."""
        self.places[attempt] = weight
        self.promised += weight

    def leave_place(self, attempt: Put) -> None:
        """A place is not needed any more."""
        self.promised -= self.places.pop(attempt, 0)
        if not self.places:
            self.promised = 0  # whatever Ctrl-C may have left of it

    def waiting(self) -> list[Attempt]:
        """Those that wait to put something in or take something out, and those that were granted
        it and whose owners have not run on yet; each side in the order of its line."""
        lines = (self.places, self.enqueues, self.granted, self.dequeues)
        return [attempt for line in lines for attempt in line]

    def of_waker(self, waker: Waker) -> list[Attempt]:
        """Those whose owners wait in a waker or have not run on yet, in no special order."""
        lines = (self.places, self.granted, self.enqueues, self.dequeues, self.until_closed)
        return [attempt for line in lines for attempt in line if attempt.waker is waker]
