"""Meters: what each worker does, how long it waits at queues, and its events during a trace.

Only a worker itself writes its meter; any thread may read it at any time. Values that belong
together are one tuple, which is replaced as a whole. So no lock is needed, and a reader never finds
a wait counted twice, or not at all. A queue's face finds its caller's meter in `current_meter` when
the caller goes to sleep. The fast path does not look for it.
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
"""What a worker does: "works" runs its function; "works elsewhere" runs it in a process, so the
worker may do something here at the same time; "next item" waits for an item of its source; the
others wait at a queue to take something out, or to put something in."""

_EVENTS: Final = 65_536
"""How many of the latest events a ring keeps."""

_SHORTEST: Final = 2e-6
"""Seconds. Shorter events that are not work are left out."""


class Event(NamedTuple):
    """What a worker did during a time.

    Attributes:
        doing: what it did.
        began: the start, on the clock of `time.perf_counter`.
        ended: the end.
        item: the index of the item concerned; ``None`` without an item, or if it is unknown.
        items: how many items are concerned.
    """

    doing: Doing
    began: float
    ended: float
    item: int | None = None
    items: int = 1


class EventRing:
    """The latest events of one worker, which alone writes them. Older ones are dropped."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: deque[tuple[Any, ...]] = deque(maxlen=_EVENTS)  # tuples are faster to make

    def worked(self, began: float, ended: float, item: int | None = None) -> None:
        """Record that the worker ran its function."""
        self._events.append(("works", began, ended, item))

    def worked_elsewhere(self, began: float, ended: float, items: int) -> None:
        """Record that the worker's process ran its function, for this many items."""
        self._events.append(("works elsewhere", began, ended, None, items))

    def waited(self, doing: Doing, began: float, ended: float) -> None:
        """Record that the worker waited, unless it was for microseconds."""
        if ended - began >= _SHORTEST:
            self._events.append((doing, began, ended))

    def events(self) -> list[Event]:
        """Return the events that are kept; any thread may call this."""
        return [Event(*one) for one in self._events.copy()]  # a copy is atomic even without the GIL


class QueueWaits(NamedTuple):
    """How long a worker has waited at queues."""

    enqueues: float = 0.0
    """Seconds of waits that have ended."""
    dequeues: float = 0.0
    since: float = 0.0
    """The start of the current wait; 0 if the worker does not wait."""
    is_enqueue: bool = False
    """Whether the current wait is that of an enqueue."""

    def until(self, now: float) -> tuple[float, float]:
        """Return the seconds in enqueues and in dequeues, including the current wait."""
        going_on = max(0.0, now - self.since) if self.since else 0.0
        if self.is_enqueue:
            return self.enqueues + going_on, self.dequeues
        return self.enqueues, self.dequeues + going_on


class Meter:
    """What one worker does.

    Args:
        name: the name of the worker.

    Attributes:
        waits: its waits at queues.
        reads: the name of the queue where it last waited for elements; ``None`` if it never has.
        began: when it began, on the clock of `time.perf_counter`; 0 if it has not.
        ended: when it ended; 0 if it has not.
        calls: how many calls of its function have ended.
        restarts: how often it was started again after a failure.
        paused: how many seconds it has waited for its restarts.
        ring: records its events; ``None`` unless a trace is being taken.
        owner: returns its task, or the id of its thread; ``None`` before it has begun.
    """

    __slots__ = (
        "began",
        "calls",
        "ended",
        "name",
        "owner",
        "paused",
        "reads",
        "restarts",
        "ring",
        "waits",
    )

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.waits: QueueWaits = QueueWaits()
        self.reads: str | None = None
        self.began: float = 0.0
        self.ended: float = 0.0
        self.calls: int = 0
        self.restarts: int = 0
        self.paused: float = 0.0
        self.ring: EventRing | None = None
        self.owner: Callable[[], Any] | None = None

    def asked_for_key(self, seconds: float) -> None:
        """Count the time that a user's function took for the key of an item; here, do nothing."""

    def sleeps(self, attempt: Attempt, queue: str, now: float) -> None:
        """Note that the worker begins to wait at a queue."""
        waits = self.waits
        if attempt.side is ENQUEUE:
            self.waits = QueueWaits(waits.enqueues, waits.dequeues, now, True)
        elif attempt.side is DEQUEUE:
            self.reads = queue
            self.waits = QueueWaits(waits.enqueues, waits.dequeues, now, False)

    def awoke(self, now: float) -> None:
        """Note that the wait has ended, in whatever way."""
        waits = self.waits
        if waits.since:
            self.waits = QueueWaits(*waits.until(now))
            ring = self.ring
            if ring is not None:
                doing: Doing = "waits for room" if waits.is_enqueue else "waits for data"
                ring.waited(doing, waits.since, now)


Tracer: TypeAlias = Callable[[str, Meter], None]
"""Gets each worker's meter, and the name of the stage it belongs to, while a trace is taken."""

current_meter: Final[ContextVar[Meter | None]] = ContextVar("aioqueue_meter", default=None)
"""The meter of the running worker."""
