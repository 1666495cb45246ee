"""The readings of a run at one moment: a `Snapshot` of its queues, stages, functions and loops.

Every counter only grows from the beginning of the run, so each reader can subtract any two
snapshots, over an interval of its own choice. All other numbers (sizes, limits, waiting callers)
are of that moment. `aioqueue.telemetry.metrics.counters` explains the rules of the fields, and
`aioqueue.telemetry.metrics.intervals` subtracts snapshots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from aioqueue.core.meters import Histogram
from aioqueue.telemetry.metrics.counters import (
    ALL_LISTED,
    COUNT,
    DURATIONS,
    IF_ALL,
    LATEST_KNOWN,
    LONGEST_FIRST,
    NESTED,
    SECONDS,
    SECONDS_BY_FILL,
    SUM,
    SUM_IF_ALL_KNOWN,
    SUM_OF_KNOWN,
)


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
    size: int = field(metadata=SUM)
    capacity: int | None = field(metadata=SUM_IF_ALL_KNOWN)
    held: int = field(metadata=SUM)
    bytes: int | None = field(metadata=SUM_IF_ALL_KNOWN)
    max_bytes: int | None = field(metadata=SUM_IF_ALL_KNOWN)
    is_closed: bool = field(metadata=IF_ALL)
    enqueued: int = field(metadata=COUNT)
    dequeued: int = field(metadata=COUNT)
    enqueue_waits: Histogram = field(metadata=DURATIONS)
    dequeue_waits: Histogram = field(metadata=DURATIONS)
    enqueue_waiting: tuple[float, ...] = field(metadata=LONGEST_FIRST)
    dequeue_waiting: tuple[float, ...] = field(metadata=LONGEST_FIRST)
    seconds_empty: float = field(metadata=SECONDS)
    seconds_full: float = field(metadata=SECONDS)
    occupancy: tuple[float, ...] = field(metadata=SECONDS_BY_FILL)
    unfinished: int | None = field(default=None, metadata=SUM_OF_KNOWN)

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
class GenerationNumbers:
    """What a `RolloutQueue` adds to the numbers of its generation, which is a stage.

    Attributes:
        steps: steps handed out.
        version: how many steps the published weights contain.
        publish_lag: steps handed out, minus the version.
        groups: groups handed out.
        staleness: the staleness of all groups handed out, added up.
        worst_staleness: the highest staleness of a group handed out, of the whole run.
        existing: groups that have a slot.
        ready: those of them that wait to be handed out.
        slots: how many groups may exist; `None` if groups are weighed.
        missing: what a waiting trainer lacks, in words; empty if none waits.
        waits: durations of the trainers' waits for a step that have ended.
        waiting: how long trainers have been waiting now, in seconds, added up.
        waited_for_slots: seconds in which no rollout ran, because no slot was free.
        waited_at_gate: seconds in which no rollout ran, because weights were published.
        publishing: seconds in which weights were published.
        seconds: since the generation began.
    """

    steps: int = field(metadata=COUNT)
    version: int
    publish_lag: int
    groups: int = field(metadata=COUNT)
    staleness: int = field(metadata=COUNT)
    worst_staleness: int
    existing: int
    ready: int
    slots: int | None
    missing: str
    waits: Histogram = field(metadata=DURATIONS)
    waiting: float
    waited_for_slots: float = field(metadata=SECONDS)
    waited_at_gate: float = field(metadata=SECONDS)
    publishing: float = field(metadata=SECONDS)
    seconds: float = field(metadata=SECONDS)

    @property
    def mean_staleness(self) -> float:
        """The mean over the groups handed out; 0.0 without any."""
        return self.staleness / self.groups if self.groups else 0.0

    @property
    def steps_taken(self) -> StepNumbers:
        """The same as of the loop that trains."""
        waited = self.waits.seconds + self.waiting
        return StepNumbers(
            steps=self.steps,
            waits=self.waits,
            waiting=self.waiting,
            worked=max(0.0, self.seconds - waited),
            queue=None,
        )


@dataclass(frozen=True, slots=True)
class StageNumbers:
    """A stage: a function that is called for the items of a source.

    Attributes:
        name: name of the function, unique among stages.
        where: the kind of worker: ``"thread"``, ``"task"``, ``"process"``, ``"interpreter"`` or, on
            a Ray cluster, ``"actor"``.
        source: name of the queue that its source reads; `None` if it reads something else.
        into: name of the queue that it fills; `None` if it fills none.
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
        generation: what a `RolloutQueue` adds: its items are rollouts, and its places
            (``max_in_flight``) stand for workers; `None` for other stages.
    """

    name: str
    where: str
    source: str | None
    into: str | None
    workers: tuple[WorkerNumbers, ...] = field(metadata=ALL_LISTED)
    resizable: bool
    taken: int = field(metadata=COUNT)
    delivered: int = field(metadata=COUNT)
    skipped: int = field(metadata=COUNT)
    retried: int = field(metadata=COUNT)
    in_flight: int = field(metadata=SUM)
    in_flight_bytes: int | None = field(metadata=SUM_IF_ALL_KNOWN)
    max_in_flight: int | None = field(metadata=SUM_IF_ALL_KNOWN)
    service: Histogram = field(metadata=DURATIONS)
    cpu_sampled: float = field(metadata=SECONDS)
    cpu: float = field(metadata=SECONDS)
    source_waits: Histogram = field(metadata=DURATIONS)
    blocked: float = field(metadata=SECONDS)
    starved: float = field(metadata=SECONDS)
    seconds_window_full: float = field(metadata=SECONDS)
    ordered: bool
    busy: float = field(default=0.0, metadata=SECONDS)
    alive: float = field(default=0.0, metadata=SECONDS)
    fed: float = field(default=0.0, metadata=SECONDS)
    deaths: int = field(default=0, metadata=COUNT)
    runs: float = field(default=0.0, metadata=SECONDS)
    limit_bytes: int | None = field(default=None, metadata=SUM_IF_ALL_KNOWN)
    seconds_bytes_full: float = field(default=0.0, metadata=SECONDS)
    looks: int = field(default=0, metadata=COUNT)
    in_line: int = field(default=0, metadata=COUNT)
    lock: str | None = field(default=None, metadata=LATEST_KNOWN)
    max_per_key: int | None = None
    seconds_keys_full: float = field(default=0.0, metadata=SECONDS)
    full_key: str | None = field(default=None, metadata=LATEST_KNOWN)
    generation: GenerationNumbers | None = field(default=None, metadata=NESTED)


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
    service: Histogram = field(metadata=DURATIONS)
    busy: float = field(metadata=SECONDS)

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

    steps: int = field(metadata=COUNT)
    waits: Histogram = field(metadata=DURATIONS)
    waiting: float = field(metadata=SUM)
    worked: float = field(metadata=SECONDS)
    queue: str | None = field(metadata=LATEST_KNOWN)


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
    process_cpu: float = field(metadata=SECONDS)
    queues: tuple[QueueNumbers, ...]
    stages: tuple[StageNumbers, ...]
    steps: StepNumbers | None
    gil_looks: int = field(default=0, metadata=COUNT)
    gil_taken: int = field(default=0, metadata=COUNT)
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


NO_STEPS: Final = StepNumbers(steps=0, waits=Histogram(), waiting=0.0, worked=0.0, queue=None)
"""The reading of a loop that has not begun."""


def final_queue_numbers(last: QueueNumbers) -> QueueNumbers:
    """Return what remains of a queue that is over or was dropped: its elements count as
    dequeued."""
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


def final_stage_numbers(last: StageNumbers) -> StageNumbers:
    """Return what remains of a stage that has ended: it has no workers. If it failed, its items in
    flight are never delivered."""
    return replace(last, workers=())
