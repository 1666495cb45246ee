"""The numbers of a run at one moment: what there is to be read, shown and sent.

All that counts is a monotone counter since the run began, so any number of readers can difference
any two snapshots, each with windows of its own; the rest (sizes, limits, who waits) is as it is at
that moment. No rules here: the reading of the numbers is `aioqueue.telemetry.bottleneck`.

Numbers of several parts in one place, as those of one: one after another, or side by side.

And those of one part at two moments, which never go back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from aioqueue.durations import BOUNDS

__all__ = (
    "BOUNDS",
    "FUNCTION",
    "NO_STEPS",
    "FunctionNumbers",
    "Histogram",
    "QueueNumbers",
    "Snapshot",
    "StageNumbers",
    "StepNumbers",
    "WorkerNumbers",
    "never_less",
    "queue_ended",
    "queues_added",
    "queues_beside",
    "stage_ended",
    "stages_added",
    "stages_beside",
    "steps_beside",
)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations, counted in buckets whose bounds double.

    Attributes:
        counts: how many durations fell into each bucket: one per bound of `BOUNDS`, and one for
            those that were longer.
        seconds: their sum.
        longest: the longest of all, in seconds.
    """

    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    seconds: float = 0.0
    longest: float = 0.0

    @property
    def count(self) -> int:
        """How many durations there are."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Their mean in seconds; 0.0 if there are none."""
        return self.seconds / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """The duration, in seconds, that this share of all does not exceed, within a bucket by
        linear interpolation; 0.0 if there are none."""
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
        """All durations of both."""
        counts = tuple(map(int.__add__, self.counts, other.counts))
        longest = max(self.longest, other.longest)
        return Histogram(counts, self.seconds + other.seconds, longest)

    def since(self, earlier: Histogram) -> Histogram:
        """What was added since an earlier snapshot; ``longest`` is that of the whole run."""
        counts = tuple(now - then for now, then in zip(self.counts, earlier.counts, strict=True))
        return Histogram(counts, self.seconds - earlier.seconds, self.longest)


@dataclass(frozen=True, slots=True)
class QueueNumbers:
    """One queue.

    Attributes:
        name: its name, the same in all snapshots of a run, and different from all others.
        kind: its class, as ``"FIFOQueue"``.
        size: elements inside.
        capacity: how many there may be; `None` if there is no bound.
        held: elements taken out by dequeues that may still be put back, or not yet put in by
            enqueues that are half done: ``enqueued == dequeued + size + held``.
        bytes: of the elements inside; `None` if it keeps no account.
        max_bytes: how many there may be; `None` if there is no bound.
        is_closed: nothing will come in any more.
        enqueued: elements put in.
        dequeued: elements taken out.
        enqueue_waits: how long enqueues waited that have ended, each once.
        dequeue_waits: how long dequeues waited that have ended, each once.
        enqueue_waiting: seconds that the enqueues which wait now have waited, one value each,
            longest first.
        dequeue_waiting: the same of the dequeues that wait now.
        seconds_empty: how long it was empty, as far as looks ten times a second tell.
        seconds_full: how long it was full, told in the same way.
        occupancy: how long it was filled to a tenth, two tenths and so on of its capacity, in
            seconds: ten values, empty where there is no bound. Told in the same way.

    Counts and waits are exact. How full it was is seen ten times a second, for on the way of an
    element no clock is read: of a window of a second that is ten looks, of a minute six hundred.
    What was empty while somebody wanted an element is exact, too: that is ``dequeue_wait``.
    """

    name: str
    kind: str
    size: int
    capacity: int | None
    held: int
    bytes: int | None
    max_bytes: int | None
    is_closed: bool
    enqueued: int
    dequeued: int
    enqueue_waits: Histogram
    dequeue_waits: Histogram
    enqueue_waiting: tuple[float, ...]
    dequeue_waiting: tuple[float, ...]
    seconds_empty: float
    seconds_full: float
    occupancy: tuple[float, ...]

    @property
    def enqueue_wait(self) -> float:
        """Seconds that enqueues waited, those that still go on included."""
        return self.enqueue_waits.seconds + sum(self.enqueue_waiting)

    @property
    def dequeue_wait(self) -> float:
        """Seconds that dequeues waited, those that still go on included."""
        return self.dequeue_waits.seconds + sum(self.dequeue_waiting)


@dataclass(frozen=True, slots=True)
class WorkerNumbers:
    """One worker of a stage.

    Attributes:
        name: of its thread, task or process.
        busy: seconds in the function, the call that still goes on included.
        idle: seconds in which it waited for an item or for room.
        items: how many items it has done.
        deaths: how often it died and was replaced.
        item: index of the item it is at; `None` if it is at none.
        seconds: how long it has been at that item.
    """

    name: str
    busy: float
    idle: float
    items: int
    deaths: int
    item: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class StageNumbers:
    """One stage: a function that is called for the items of a source.

    Attributes:
        name: of the function, different from that of all other stages.
        where: what a worker is: ``"thread"``, ``"task"``, ``"process"``, ``"interpreter"`` or, on a
            Ray cluster, ``"actor"``.
        source: name of the queue that its source reads from; `None` if it reads something else.
        into: name of the queue that it fills.
        workers: as they are now.
        resizable: its number of workers can be changed while it runs.
        taken: items taken from the source.
        delivered: items whose examples are in the queue.
        skipped: items given up by the failure policy.
        retried: calls that were made again.
        in_flight: items taken and not yet delivered.
        in_flight_bytes: of those that are prepared; `None` if it keeps no account.
        max_in_flight: how many items may be in flight; `None` if there is no bound.
        service: how long the function took, each call once, or one that stands for several where
            calls are quick. Of workers that call enqueue ops only the sum is known.
        cpu_sampled: seconds of calls whose processor time was measured too.
        cpu: processor seconds of those calls.
        source_waits: how long the source took to give an item.
        blocked: seconds that workers waited to put their examples in.
        starved: seconds that workers waited for an item.
        seconds_window_full: how long ``in_flight`` was at its limit.
        ordered: examples keep the order of the items.
        busy: seconds in the function, of all its workers, those included that have ended, and
            calls that still go on.
        alive: seconds that its workers have been there, all together.
        fed: seconds of ``source_waits`` in which the source itself waited at a queue.
        deaths: how many of its workers died and were replaced, those included that have ended.
        runs: seconds that the stage has been there; where several runs go on side by side, of all
            of them together.
        limit_bytes: how many bytes of prepared examples may wait; `None` if there is no bound.
        seconds_bytes_full: how much of ``seconds_window_full`` was for ``limit_bytes``, and not for
            ``max_in_flight``.
        looks: how often a thread was seen in the function, of ten looks a second,
        in_line: and how often it was seen to wait for a lock there.
        lock: where that was, last: ``file:line``; `None` if it was not seen.
        max_per_key: how many items of one key may be in preparation; `None` if there is no bound.
        seconds_keys_full: how long workers had nothing to do while items were put aside for that.
        full_key: the key of most of those that are put aside now, in a few letters.
    """

    name: str
    where: str
    source: str | None
    into: str
    workers: tuple[WorkerNumbers, ...]
    resizable: bool
    taken: int
    delivered: int
    skipped: int
    retried: int
    in_flight: int
    in_flight_bytes: int | None
    max_in_flight: int | None
    service: Histogram
    cpu_sampled: float
    cpu: float
    source_waits: Histogram
    blocked: float
    starved: float
    seconds_window_full: float
    ordered: bool
    busy: float = 0.0
    alive: float = 0.0
    fed: float = 0.0
    deaths: int = 0
    runs: float = 0.0
    limit_bytes: int | None = None
    seconds_bytes_full: float = 0.0
    looks: int = 0
    in_line: int = 0
    lock: str | None = None
    max_per_key: int | None = None
    seconds_keys_full: float = 0.0
    full_key: str | None = None


FUNCTION: Final = "function"
"""Instead of a kind of worker: of a part that has none."""


@dataclass(frozen=True, slots=True)
class FunctionNumbers:
    """A function that no worker of its own calls: a ``collate``, say, or a source that the loop
    itself reads.

    Attributes:
        name: of the function; of the stage, if that has none.
        kind: the stage, as ``"batch 8"``; ``"source"`` for a source.
        within: name of the stage whose workers wait for it; `None` if the loop itself calls it.
        service: how long it took, each call once, or one that stands for several where calls are
            quick.
        busy: seconds that it took, the call that still goes on included.
    """

    name: str
    kind: str
    within: str | None
    service: Histogram
    busy: float

    def __str__(self) -> str:
        return self.name if self.name == self.kind else f"{self.name} of {self.kind}"


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """The training step, as seen by the loop that asks for batches.

    Attributes:
        steps: batches handed over.
        waits: how long the loop waited for each.
        waiting: seconds that it waits now; 0.0 if it does not.
        worked: seconds in the loop's own body.
        queue: name of the queue that it reads from; `None` if it is not known.
    """

    steps: int
    waits: Histogram
    waiting: float
    worked: float
    queue: str | None


_Numbers = TypeVar("_Numbers", QueueNumbers, StageNumbers)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All numbers of a run at one moment.

    Attributes:
        seconds: since the run began, on a monotone clock.
        time: seconds since the epoch, for people.
        cores: how many processor cores the process may use.
        process_cpu: processor seconds that this process has used.
        queues: in the order in which data go through them.
        stages: in the order in which data go through them.
        steps: of the training step; `None` if its loop is not watched.
        gil_looks: how often a thread that had nothing to do asked for the interpreter,
        gil_taken: and how often it had to wait for it as one does whom others do not let in.
        functions: what is called between the stages, in no particular order.
    """

    seconds: float
    time: float
    cores: float
    process_cpu: float
    queues: tuple[QueueNumbers, ...]
    stages: tuple[StageNumbers, ...]
    steps: StepNumbers | None
    gil_looks: int = 0
    gil_taken: int = 0
    functions: tuple[FunctionNumbers, ...] = ()

    def queue(self, name: str) -> QueueNumbers:
        """The queue of this name; raises `KeyError`."""
        return _named(self.queues, name)

    def stage(self, name: str) -> StageNumbers:
        """The stage of this name; raises `KeyError`."""
        return _named(self.stages, name)


def _named(things: Sequence[_Numbers], name: str) -> _Numbers:
    for thing in things:
        if thing.name == name:
            return thing
    raise KeyError(name)


PartT = TypeVar("PartT", QueueNumbers, StageNumbers, StepNumbers)

_SECONDS: Final[dict[type, tuple[str, ...]]] = {
    QueueNumbers: (),  # they are counted under its lock
    StageNumbers: (
        *("busy", "blocked", "starved", "alive", "fed", "runs"),
        *("seconds_window_full", "seconds_bytes_full", "seconds_keys_full"),
    ),
    StepNumbers: ("worked",),
}
"""What grows while it goes on, and is written down when it has ended."""


NO_STEPS: Final = StepNumbers(steps=0, waits=Histogram(), waiting=0.0, worked=0.0, queue=None)
"""Of a loop that has not begun."""


def never_less(before: PartT, now: PartT) -> PartT:
    """Numbers in which nothing is less than it was told to be before. What goes on is counted up to
    the moment of asking; who has just ended it may have read the clock before, and written after:
    by so little a sum may go back, and whoever differences counters would take it for a new one."""
    less: dict[str, Any] = {
        name: told
        for name in _SECONDS[type(now)]
        if getattr(now, name) < (told := getattr(before, name))
    }
    return replace(now, **less) if less else now


def queues_added(before: QueueNumbers, now: QueueNumbers) -> QueueNumbers:
    """What was left in the one before has left it, when it was dropped."""
    return replace(
        now,
        enqueued=before.enqueued + now.enqueued,
        dequeued=before.dequeued + before.size + before.held + now.dequeued,
        enqueue_waits=before.enqueue_waits.plus(now.enqueue_waits),
        dequeue_waits=before.dequeue_waits.plus(now.dequeue_waits),
        seconds_empty=before.seconds_empty + now.seconds_empty,
        seconds_full=before.seconds_full + now.seconds_full,
        occupancy=tuple(map(float.__add__, before.occupancy, now.occupancy))
        if len(before.occupancy) == len(now.occupancy)
        else now.occupancy,
    )


def stages_added(before: StageNumbers, now: StageNumbers) -> StageNumbers:
    """What was in flight in the one before was dropped with it: taken, and never delivered."""
    return replace(
        now,
        taken=before.taken + now.taken,
        delivered=before.delivered + now.delivered,
        skipped=before.skipped + now.skipped,
        retried=before.retried + now.retried,
        service=before.service.plus(now.service),
        cpu_sampled=before.cpu_sampled + now.cpu_sampled,
        cpu=before.cpu + now.cpu,
        busy=before.busy + now.busy,
        alive=before.alive + now.alive,
        fed=before.fed + now.fed,
        source_waits=before.source_waits.plus(now.source_waits),
        blocked=before.blocked + now.blocked,
        starved=before.starved + now.starved,
        seconds_window_full=before.seconds_window_full + now.seconds_window_full,
        deaths=before.deaths + now.deaths,
        seconds_bytes_full=before.seconds_bytes_full + now.seconds_bytes_full,
        looks=before.looks + now.looks,
        in_line=before.in_line + now.in_line,
        lock=now.lock or before.lock,
        seconds_keys_full=before.seconds_keys_full + now.seconds_keys_full,
        full_key=now.full_key or before.full_key,
    )


def queue_ended(last: QueueNumbers) -> QueueNumbers:
    """Of a queue that has gone: what was in it has left it, when it was dropped."""
    return replace(
        last,
        size=0,
        held=0,
        bytes=None if last.bytes is None else 0,
        dequeued=last.dequeued + last.size + last.held,
        enqueue_waiting=(),
        dequeue_waiting=(),
        is_closed=True,
    )


def stage_ended(last: StageNumbers) -> StageNumbers:
    """Of a stage that has gone, and so have its workers; what was in flight then, if it has failed,
    nobody delivers any more."""
    return replace(last, workers=())


def queues_beside(one: QueueNumbers, other: QueueNumbers) -> QueueNumbers:
    """Of two queues in the same place, of runs that go on side by side."""
    return replace(
        queues_added(replace(one, size=0, held=0), other),
        size=one.size + other.size,
        held=one.held + other.held,
        capacity=_both(one.capacity, other.capacity),
        bytes=_both(one.bytes, other.bytes),
        max_bytes=_both(one.max_bytes, other.max_bytes),
        is_closed=one.is_closed and other.is_closed,
        enqueue_waiting=_longest_first(one.enqueue_waiting, other.enqueue_waiting),
        dequeue_waiting=_longest_first(one.dequeue_waiting, other.dequeue_waiting),
    )


def stages_beside(one: StageNumbers, other: StageNumbers) -> StageNumbers:
    """The same of two stages."""
    return replace(
        stages_added(one, other),
        workers=(*one.workers, *other.workers),
        in_flight=one.in_flight + other.in_flight,
        in_flight_bytes=_both(one.in_flight_bytes, other.in_flight_bytes),
        max_in_flight=_both(one.max_in_flight, other.max_in_flight),
        limit_bytes=_both(one.limit_bytes, other.limit_bytes),
    )


def steps_beside(one: StepNumbers, other: StepNumbers) -> StepNumbers:
    """The same of two loops."""
    return StepNumbers(
        steps=one.steps + other.steps,
        waits=one.waits.plus(other.waits),
        waiting=one.waiting + other.waiting,
        worked=one.worked + other.worked,
        queue=other.queue or one.queue,
    )


def _both(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _longest_first(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sorted((*one, *other), reverse=True))
