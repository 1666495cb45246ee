"""What one worker does, event by event, while somebody takes a trace.

What one worker does: how long it waited at queues, and what it is at.

A worker writes its own meter, and nobody else does; anybody may read it at any time. What has to be
read together is one tuple, which is replaced as a whole: so no lock is needed, and who reads never
finds a wait in both places, or in none. The face of a queue finds the meter of its caller in
`current_meter`, when the caller is going to sleep: on the fast path nobody looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from aioqueue.attempts import DEQUEUE, ENQUEUE, Attempt

__all__ = ("Doing", "Event", "EventRing", "Meter", "QueueWaits", "Tracer", "current_meter")


Doing: TypeAlias = Literal[
    "works", "works elsewhere", "next item", "waits for data", "waits for room"
]
"""What a worker does: its function; the same in a process of its own, so that it may do something
here at the same time; it asks its source for an item; it waits at a queue to take something out,
or to put something in."""

_EVENTS: Final = 65_536
"""In one ring: the latest that many."""

_SHORTEST: Final = 2e-6
"""Seconds: what is shorter, and no work, is left out."""


class Event(NamedTuple):
    """What a worker did for a time.

    Attributes:
        doing: what it did.
        began: when, on the clock of `time.perf_counter`.
        ended: until when.
        item: index of the item that it did that for; `None` if that is not known, or it was none.
        items: for how many items.
    """

    doing: Doing
    began: float
    ended: float
    item: int | None = None
    items: int = 1


class EventRing:
    """The latest events of one worker, which alone writes them. Older ones are gone."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: deque[tuple[Any, ...]] = deque(maxlen=_EVENTS)  # as `Event`, but quick

    def worked(self, began: float, ended: float, item: int | None = None) -> None:
        """It was in its function."""
        self._events.append(("works", began, ended, item))

    def worked_elsewhere(self, began: float, ended: float, items: int) -> None:
        """Its process was in its function, for so many items."""
        self._events.append(("works elsewhere", began, ended, None, items))

    def waited(self, doing: Doing, began: float, ended: float) -> None:
        """It waited, if that was no matter of microseconds."""
        if ended - began >= _SHORTEST:
            self._events.append((doing, began, ended))

    def events(self) -> list[Event]:
        """Those that it keeps; for any thread."""
        return [Event(*one) for one in self._events.copy()]  # in one step, also without the GIL


class QueueWaits(NamedTuple):
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
    """

    __slots__ = ("began", "calls", "ended", "name", "reads", "ring", "waits")

    def __init__(self, name: str) -> None:
        self.name = name
        self.waits = QueueWaits()
        self.reads: str | None = None
        self.began = 0.0
        self.ended = 0.0
        self.calls = 0
        self.ring: EventRing | None = None

    def sleeps(self, attempt: Attempt, queue: str, now: float) -> None:
        """It is going to wait at a queue."""
        waits = self.waits
        if attempt.side is ENQUEUE:
            self.waits = QueueWaits(waits.enqueues, waits.dequeues, now, True)
        elif attempt.side is DEQUEUE:
            self.reads = queue
            self.waits = QueueWaits(waits.enqueues, waits.dequeues, now, False)

    def awoke(self, now: float) -> None:
        """The wait has ended, in whatever way."""
        waits = self.waits
        if waits.since:
            self.waits = QueueWaits(*waits.until(now))
            ring = self.ring
            if ring is not None:
                doing: Doing = "waits for room" if waits.is_enqueue else "waits for data"
                ring.waited(doing, waits.since, now)


Tracer: TypeAlias = Callable[[str, Meter], None]
"""Told of each worker, and the name of what it belongs to, while a trace is taken."""

current_meter: Final[ContextVar[Meter | None]] = ContextVar("aioqueue_meter", default=None)
"""That of the worker which is running."""
