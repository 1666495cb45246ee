"""The numbers of a run at one moment, and how to add them up.

Every count grows monotonically from the beginning of the run, so each reader can subtract any two
snapshots, over an interval of its own choice. All other numbers (sizes, limits, waiting callers)
are of that moment. `aioqueue.telemetry.bottleneck` interprets them.

The functions at the end combine the numbers of several parts in one place, sequential or
concurrent, and keep counts from going backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from aioqueue.core.meters import Histogram


@dataclass(frozen=True, slots=True)
class QueueNumbers:
    """A queue.

    Attributes:
        name: its name, unique in a snapshot and the same in all snapshots of a run.
        kind: its class, such as ``"FIFOQueue"``.
        size: elements in the queue.
        capacity: most elements that it holds; `None` if it is unbounded.
        held: elements that dequeues which have not ended have taken and may put back:
            ``enqueued == dequeued + size + held``.
        bytes: bytes of the elements in the queue; `None` if it does not count them.
        max_bytes: most bytes that it holds; `None` if there is no bound.
        is_closed: whether it accepts no further elements.
        enqueued: elements enqueued.
        dequeued: elements dequeued.
        enqueue_waits: durations of the enqueues' waits that have ended.
        dequeue_waits: durations of the dequeues' waits that have ended.
        enqueue_waiting: how long each waiting enqueue has waited, in seconds, longest first.
        dequeue_waiting: how long each waiting dequeue has waited, in seconds, longest first.
        seconds_empty: how long it was empty, by ten samples per second.
        seconds_full: how long it was full, by ten samples per second.
        occupancy: how many seconds its size was in each tenth of its capacity, by ten samples per
            second: ten values; empty if it is unbounded.
        unfinished: elements enqueued for which `task_done` has not been called; `None` as long as
            nobody has called it.

    Counts and waits are exact. Fill levels are sampled ten times a second, because reading a clock
    for every element would slow the queue down: an interval of a second has ten samples, one of a
    minute six hundred. How long a caller waited at an empty queue is exact (``dequeue_wait``).
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
    unfinished: int | None = None

    @property
    def enqueue_wait(self) -> float:
        """Seconds that enqueues have waited, including current waits."""
        return self.enqueue_waits.seconds + sum(self.enqueue_waiting)

    @property
    def dequeue_wait(self) -> float:
        """Seconds that dequeues have waited, including current waits."""
        return self.dequeue_waits.seconds + sum(self.dequeue_waiting)


@dataclass(frozen=True, slots=True)
class WorkerNumbers:
    """A worker of a stage.

    Attributes:
        name: name of its thread, task or process.
        busy: seconds in the function, including the current call.
        idle: seconds waiting for items or for room.
        items: number of items that it has finished.
        deaths: how often it died and was replaced, or failed and was started again.
        item: index of its current item; `None` for none.
        seconds: how long it has worked on that item.
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
    """A stage: a function that is called for the items of a source.

    Attributes:
        name: name of the function, unique among stages.
        where: the kind of worker: ``"thread"``, ``"task"``, ``"process"``, ``"interpreter"`` or, on
            a Ray cluster, ``"actor"``.
        source: name of the queue that its source reads; `None` if it reads something else.
        into: name of the queue that it fills.
        workers: its current workers.
        resizable: whether its number of workers can change while it runs.
        taken: items taken from the source.
        delivered: items whose examples are in the queue.
        skipped: items that the failure policy has given up.
        retried: calls that were retried.
        in_flight: items taken and not yet delivered.
        in_flight_bytes: bytes of the finished ones among them; `None` if it does not count them.
        max_in_flight: most items in flight; `None` if there is no bound.
        service: durations of calls of the function; where calls are quick, one stands for several.
            For workers that call enqueue ops, only the sum is known.
        cpu_sampled: seconds of calls whose processor time was measured too.
        cpu: processor seconds of those calls.
        source_waits: how long the source took to yield each item.
        blocked: seconds that workers waited to enqueue their examples.
        starved: seconds that workers waited for an item.
        seconds_window_full: how long ``in_flight`` was at its limit.
        ordered: whether examples keep the order of the items.
        busy: seconds in the function, of current and former workers, including current calls.
        alive: total lifetime of its workers in seconds.
        fed: seconds of ``source_waits`` in which the source itself waited at a queue.
        deaths: how often its workers, current and former, died and were replaced, or failed and
            were started again.
        runs: lifetime of the stage in seconds; concurrent runs add up.
        limit_bytes: most bytes of finished examples that may wait; `None` if there is no bound.
        seconds_bytes_full: the part of ``seconds_window_full`` due to ``limit_bytes`` rather than
            ``max_in_flight``.
        looks: how many samples, ten a second, found a thread in the function.
        in_line: how many of these samples found it waiting for a lock.
        lock: where it last waited for one: ``file:line``; `None` if no sample found that.
        max_per_key: most items of one key in preparation; `None` if there is no bound.
        seconds_keys_full: how long workers were idle while ``max_per_key`` deferred items.
        full_key: the key of most deferred items, shortened.
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
"""Takes the place of the kind of worker for a part without workers."""


@dataclass(frozen=True, slots=True)
class FunctionNumbers:
    """A function that has no workers of its own, such as a ``collate``, or a source that the loop
    reads.

    Attributes:
        name: name of the function, or of the stage if the function has none.
        kind: the stage, such as ``"batch 8"``; ``"source"`` for a source.
        within: name of the stage whose workers wait for it; `None` if the loop itself calls it.
        service: durations of its calls; where calls are quick, one stands for several.
        busy: seconds that it took, including the current call.
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
        waits: how long the loop waited for each batch.
        waiting: how long the loop has been waiting now, in seconds; 0.0 if it is not.
        worked: seconds in the body of the loop.
        queue: name of the queue that it reads; `None` if unknown.
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
        seconds: seconds since the run began, on a monotonic clock.
        time: seconds since the epoch, for people.
        cores: how many processor cores the process may use.
        process_cpu: processor seconds that this process has used.
        queues: the queues, in the order of the data flow.
        stages: the stages, in the order of the data flow.
        steps: the training step; `None` if its loop is not watched.
        gil_looks: how many samples an idle thread took of the GIL.
        gil_taken: how many of these samples found other threads competing for it.
        functions: the functions between stages, in no particular order.
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
        """Return the queue of this name; raises `KeyError`."""
        return _named(self.queues, name)

    def stage(self, name: str) -> StageNumbers:
        """Return the stage of this name; raises `KeyError`."""
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
"""Durations that include an interval still in progress, and so may be rounded back when it ends."""


NO_STEPS: Final = StepNumbers(steps=0, waits=Histogram(), waiting=0.0, worked=0.0, queue=None)
"""The numbers of a loop that has not begun."""


def never_less(before: PartT, now: PartT) -> PartT:
    """Return the numbers with no duration below its previous value.

    A current call counts up to the moment of the snapshot. A call that just ended may have read the
    clock earlier and stored it later, so a sum could shrink a little; a reader that subtracts
    counters would take that for a restart.
    """
    less: dict[str, Any] = {
        name: earlier
        for name in _SECONDS[type(now)]
        if getattr(now, name) < (earlier := getattr(before, name))
    }
    return replace(now, **less) if less else now


def queues_added(before: QueueNumbers, now: QueueNumbers) -> QueueNumbers:
    """Return the sum of two consecutive queues; elements left in the first count as dequeued."""
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
    """Return the sum of two consecutive stages; items in flight in the first count as taken, but
    never as delivered."""
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
    """Return the final numbers of a dropped queue; its elements count as dequeued."""
    return replace(
        last,
        size=0,
        held=0,
        bytes=None if last.bytes is None else 0,
        dequeued=last.dequeued + last.size + last.held,
        unfinished=None if last.unfinished is None else 0,
        enqueue_waiting=(),
        dequeue_waiting=(),
        is_closed=True,
    )


def stage_ended(last: StageNumbers) -> StageNumbers:
    """Return the final numbers of a stage that has ended, without workers. If it failed, its items
    in flight are never delivered."""
    return replace(last, workers=())


def queues_beside(one: QueueNumbers, other: QueueNumbers) -> QueueNumbers:
    """Return the sum of two queues in the same place, of concurrent runs."""
    return replace(
        queues_added(replace(one, size=0, held=0), other),
        size=one.size + other.size,
        held=one.held + other.held,
        unfinished=_of_either(one.unfinished, other.unfinished),
        capacity=_both(one.capacity, other.capacity),
        bytes=_both(one.bytes, other.bytes),
        max_bytes=_both(one.max_bytes, other.max_bytes),
        is_closed=one.is_closed and other.is_closed,
        enqueue_waiting=_longest_first(one.enqueue_waiting, other.enqueue_waiting),
        dequeue_waiting=_longest_first(one.dequeue_waiting, other.dequeue_waiting),
    )


def stages_beside(one: StageNumbers, other: StageNumbers) -> StageNumbers:
    """Return the sum of two stages in the same place, of concurrent runs."""
    return replace(
        stages_added(one, other),
        workers=(*one.workers, *other.workers),
        in_flight=one.in_flight + other.in_flight,
        in_flight_bytes=_both(one.in_flight_bytes, other.in_flight_bytes),
        max_in_flight=_both(one.max_in_flight, other.max_in_flight),
        limit_bytes=_both(one.limit_bytes, other.limit_bytes),
    )


def steps_beside(one: StepNumbers, other: StepNumbers) -> StepNumbers:
    """Return the sum of two concurrent loops."""
    return StepNumbers(
        steps=one.steps + other.steps,
        waits=one.waits.plus(other.waits),
        waiting=one.waiting + other.waiting,
        worked=one.worked + other.worked,
        queue=other.queue or one.queue,
    )


def steps_since(earlier: StepNumbers, now: StepNumbers) -> StepNumbers:
    """Return the steps since an earlier moment."""
    return StepNumbers(
        steps=now.steps - earlier.steps,
        waits=now.waits.since(earlier.waits),
        waiting=now.waiting,
        worked=max(0.0, now.worked - earlier.worked),
        queue=now.queue,
    )


def _both(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _of_either(one: int | None, other: int | None) -> int | None:
    return None if one is None and other is None else (one or 0) + (other or 0)


def _longest_first(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sorted((*one, *other), reverse=True))
