"""What one worker does: how long it waited at queues, and what it is at.

A worker writes its own meter, and nobody else does; anybody may read it at any time. What has to be
read together is one tuple, which is replaced as a whole: so no lock is needed, and who reads never
finds a wait in both places, or in none. The face of a queue finds the meter of its caller in
`current_meter`, when the caller is going to sleep: on the fast path nobody looks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, TypeAlias

from aioqueue.attempts import DEQUEUE, ENQUEUE, Attempt
from aioqueue.events import Doing, Ring

__all__ = ("Meter", "Tracer", "Waits", "current_meter")


class Waits(NamedTuple):
    """How long a worker has waited at queues."""

    enqueues: float = 0.0
    """Seconds of waits that have ended."""
    dequeues: float = 0.0
    since: float = 0.0
    """When the wait began that still goes on; 0 if there is none."""
    is_enqueue: bool = False
    """Which kind it is."""

    def until(self, now: float) -> tuple[float, float]:
        """Seconds in enqueues and in dequeues, the wait that still goes on included."""
        going_on = max(0.0, now - self.since) if self.since else 0.0
        if self.is_enqueue:
            return self.enqueues + going_on, self.dequeues
        return self.enqueues, self.dequeues + going_on


class Meter:
    """What one worker does.

    Args:
        name: of the worker.

    Attributes:
        waits: at queues.
        reads: name of the queue that it has waited for elements of, last; ``None`` if it has not.
        began: when it began, on the clock of `time.perf_counter`; 0 if it has not.
        ended: when it ended; 0 if it has not.
        calls: how many calls of its function have ended.
        ring: where it writes what it does; ``None`` while nobody takes a trace.
        owner: tells its task, or the ident of its thread; ``None`` before it has begun.
    """

    __slots__ = ("began", "calls", "ended", "name", "owner", "reads", "ring", "waits")

    def __init__(self, name: str) -> None:
        self.name = name
        self.waits = Waits()
        self.reads: str | None = None
        self.began = 0.0
        self.ended = 0.0
        self.calls = 0
        self.ring: Ring | None = None
        self.owner: Callable[[], Any] | None = None

    def asked_for_key(self, seconds: float) -> None:
        """A function of the user's has told the key of an item; for those who have items."""

    def sleeps(self, attempt: Attempt, queue: str, now: float) -> None:
        """It is going to wait at a queue."""
        waits = self.waits
        if attempt.side is ENQUEUE:
            self.waits = Waits(waits.enqueues, waits.dequeues, now, True)
        elif attempt.side is DEQUEUE:
            self.reads = queue
            self.waits = Waits(waits.enqueues, waits.dequeues, now, False)

    def awoke(self, now: float) -> None:
        """The wait has ended, in whatever way."""
        waits = self.waits
        if waits.since:
            self.waits = Waits(*waits.until(now))
            ring = self.ring
            if ring is not None:
                doing: Doing = "waits for room" if waits.is_enqueue else "waits for data"
                ring.waited(doing, waits.since, now)


Tracer: TypeAlias = Callable[[str, Meter], None]
"""Told of each worker, and the name of what it belongs to, while a trace is taken."""

current_meter: Final[ContextVar[Meter | None]] = ContextVar("aioqueue_meter", default=None)
"""That of the worker which is running."""
