"""Meters: what each worker does, how long it waits at queues, its events, and counts of durations.

Only a worker itself writes its meter; any thread may read it at any time. Values that belong
together are one tuple, which is replaced as a whole. So no lock is needed, and a reader never finds
a wait counted twice, or not at all. A queue's face finds its caller's meter in `current_meter` when
the caller goes to sleep. The fast path does not look for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from aioqueue.core.attempts import DEQUEUE, ENQUEUE, Attempt

Doing: TypeAlias = Literal[
    "works", "works elsewhere", "next item", "waits for data", "waits for room"
]
"""What a worker does: "works" runs its function; "works elsewhere" runs it in a process, so the
worker may do something here at the same time; "next item" waits for an item of its source; the
others wait at a queue to take something out, or to put something in."""

_MOST_EVENTS: Final = 65_536
"""How many of the latest events a ring keeps."""

_SHORTEST_WAIT: Final = 2e-6
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


class LockSamples:
    """Counts samples of worker stacks that show a wait for a lock.

    Attributes:
        count: number of samples.
        waiting: number of samples in which the worker waited for a lock.
        lock: where it last did: ``file:line``; ``None`` if no sample found that.
    """

    def __init__(self) -> None:
        self.count: int = 0
        self.waiting: int = 0
        self.lock: str | None = None

    def add(self, places: Collection[str | None]) -> None:
        """Count samples: for each worker, where it waits for a lock, or ``None``."""
        self.count += len(places)
        waiting = [place for place in places if place is not None]
        if waiting:
            self.waiting += len(waiting)
            self.lock = waiting[-1]


class EventRing:
    """The latest events of one worker, which alone writes them. Older ones are dropped."""

    __slots__ = ("_events", "traces")

    def __init__(self) -> None:
        self.traces: int = 0
        """How many traces read it."""
        self._events: deque[tuple[Any, ...]] = deque(
            maxlen=_MOST_EVENTS
        )  # tuples are faster to make

    def worked(self, began: float, ended: float, item: int | None = None) -> None:
        self._events.append(("works", began, ended, item))

    def worked_elsewhere(self, began: float, ended: float, items: int) -> None:
        self._events.append(("works elsewhere", began, ended, None, items))

    def waited(self, doing: Doing, began: float, ended: float) -> None:
        """Record that the worker waited, unless it was for microseconds."""
        if ended - began >= _SHORTEST_WAIT:
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
        current = max(0.0, now - self.since) if self.since else 0.0
        if self.is_enqueue:
            return self.enqueues + current, self.dequeues
        return self.enqueues, self.dequeues + current


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

    def key_computed(self, seconds: float) -> None:
        """Count the time that a user's function took for the key of an item; here, do nothing."""

    def wait_started(self, attempt: Attempt, queue: str, now: float) -> None:
        waits = self.waits
        if attempt.side is ENQUEUE:
            self.waits = QueueWaits(waits.enqueues, waits.dequeues, now, True)
        elif attempt.side is DEQUEUE:
            self.reads = queue
            self.waits = QueueWaits(waits.enqueues, waits.dequeues, now, False)

    def wait_ended(self, now: float) -> None:
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


BOUNDS: Final = tuple(1e-6 * 2**power for power in range(25))
"""The buckets' upper bounds in seconds: 1 us to 16.8 s, each twice the one before."""


class Counted(NamedTuple):
    """The counts so far."""

    counts: tuple[int, ...]
    """One count per bound in `BOUNDS`, and one for longer durations."""
    seconds: float
    longest: float


class Durations:
    """The durations so far: how many there are in each bucket, their sum, and the longest.

    Only one thread at a time may add to it: the holder of the lock that guards it, or its only
    writer. Any thread may read it at any time. A reading may lack the duration that is being added,
    and has no other error.
    """

    __slots__ = ("_counts", "longest", "seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.seconds: float = 0.0
        self.longest: float = 0.0

    def add(self, seconds: float, weight: int = 1) -> None:
        """Count a duration, with the weight of all those that it was sampled from."""
        self._counts[bisect_left(BOUNDS, seconds)] += weight
        self.seconds += seconds if weight == 1 else seconds * weight
        if seconds > self.longest:
            self.longest = seconds

    def counted(self) -> Counted:
        return Counted(tuple(self._counts), self.seconds, self.longest)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations, counted in buckets whose bounds double.

    Attributes:
        counts: number of durations in each bucket: one per bound of `BOUNDS`, and one for longer
            ones.
        seconds: sum of the durations.
        longest: the longest duration, in seconds.
    """

    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    seconds: float = 0.0
    longest: float = 0.0

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Mean duration in seconds; 0.0 without any duration."""
        return self.seconds / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """Return a quantile in seconds, interpolated within its bucket; 0.0 without any
        duration."""
        wanted = share * self.count
        below = 0
        for bucket, count in enumerate(self.counts):
            if count and below + count >= wanted:
                low = BOUNDS[bucket - 1] if bucket else 0.0
                high = BOUNDS[bucket] if bucket < len(BOUNDS) else max(self.longest, low)
                high = max(low, min(high, self.longest))
                return low + (high - low) * (wanted - below) / count
            below += count
        return 0.0

    def plus(self, other: Histogram) -> Histogram:
        """Return the durations of both."""
        counts = tuple(map(int.__add__, self.counts, other.counts))
        longest = max(self.longest, other.longest)
        return Histogram(counts, self.seconds + other.seconds, longest)

    def since(self, earlier: Histogram) -> Histogram:
        """Return the durations since an earlier snapshot; ``longest`` is that of the whole run."""
        counts = tuple(now - then for now, then in zip(self.counts, earlier.counts, strict=True))
        return Histogram(counts, self.seconds - earlier.seconds, self.longest)
