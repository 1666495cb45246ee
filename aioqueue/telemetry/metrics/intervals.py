"""Intervals: what happened in a run between two snapshots, as rates and as shares of the time.

The verdict, the scalars and all views read these. An interval is the difference of two snapshots
(`aioqueue.telemetry.metrics.counters`), divided by the time in between. Waits at a queue appear as
an average number of waiting callers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from aioqueue.core.meters import Histogram
from aioqueue.telemetry.metrics.counters import difference
from aioqueue.telemetry.metrics.snapshots import (
    FunctionNumbers,
    GenerationNumbers,
    QueueNumbers,
    Snapshot,
    StageNumbers,
    StepNumbers,
)

_FEWEST_SAMPLES = 5
"""Fewer samples of a stage's workers than this are ignored."""

_SHORTEST = 0.5
"""A rate over fewer seconds than this means little."""

_NEVER_ZERO = 1e-9
"""Replaces a duration of 0, so that shares and rates need no special case."""


@dataclass(frozen=True, slots=True)
class GenerationInterval:
    """What a `RolloutQueue` did in an interval; waits are shares of the time.

    Attributes:
        now: its numbers at the end.
        group_rate: groups handed out per second.
        mean_staleness: of the groups handed out in the interval; of all, without any.
        trainer: how long trainers waited for steps.
        slots: how long nothing was generated because no slot was free.
        gate: how long nothing was generated because weights were published.
        publishing: how long weights were published.
    """

    now: GenerationNumbers
    group_rate: float
    mean_staleness: float
    trainer: float
    slots: float
    gate: float
    publishing: float

    @classmethod
    def between(
        cls, earlier: GenerationNumbers | None, now: GenerationNumbers, seconds: float
    ) -> GenerationInterval:
        change = difference(earlier, now)
        # Not of the change: these also count the waits that go on.
        waited = now.waits.seconds + now.waiting
        if earlier is not None:
            waited -= earlier.waits.seconds + earlier.waiting
        return cls(
            now=now,
            group_rate=change.groups / seconds,
            mean_staleness=change.mean_staleness if change.groups else now.mean_staleness,
            trainer=_share(waited, seconds),
            slots=_share(change.waited_for_slots, seconds),
            gate=_share(change.waited_at_gate, seconds),
            publishing=_share(change.publishing, seconds),
        )


@dataclass(frozen=True, slots=True)
class StageInterval:
    """What the workers of a stage did in an interval; numbers are shares of their time, from 0 to
    1.

    Attributes:
        now: the stage at the end of the interval.
        workers: average number of workers.
        busy: time in the function.
        blocked: time waiting to enqueue examples.
        starved: time waiting for items.
        on_processor: share of the time in the function spent on a processor; `None` if unknown.
        source: share of the time that its source worked, without waits at a queue.
        full: share of the time that as many items as allowed were in flight.
        rate: items delivered per second.
        service: durations of the calls that ended in the interval.
        full_of_bytes: share of the time that as many bytes as allowed were in flight.
        at_lock: share of the samples in the function in which the worker waited for a lock.
        full_of_keys: share of the time that workers were idle while ``max_per_key`` deferred items.
        generation: what a `RolloutQueue` adds; `None` for other stages.
    """

    now: StageNumbers
    workers: float
    busy: float
    blocked: float
    starved: float
    on_processor: float | None
    source: float
    full: float
    rate: float
    service: Histogram
    full_of_bytes: float
    at_lock: float
    full_of_keys: float
    generation: GenerationInterval | None = None

    @classmethod
    def between(
        cls, earlier: StageNumbers | None, now: StageNumbers, seconds: float
    ) -> StageInterval:
        change = difference(earlier, now)
        lifetimes = max(change.alive, _NEVER_ZERO)
        span = max(seconds, change.runs)  # the lifetimes of concurrent runs add up
        is_sampled = change.looks >= _FEWEST_SAMPLES
        generation: GenerationInterval | None = None
        if now.generation is not None:
            before = None if earlier is None else earlier.generation
            generation = GenerationInterval.between(before, now.generation, seconds)
        return cls(
            now=now,
            workers=lifetimes / span,
            busy=_share(change.busy, lifetimes),
            blocked=_share(change.blocked, lifetimes),
            starved=_share(change.starved, lifetimes),
            on_processor=_share(change.cpu, change.cpu_sampled) if change.cpu_sampled else None,
            source=_share(change.source_waits.seconds - change.fed, span),
            full=_share(change.seconds_window_full, span),
            rate=change.delivered / seconds,
            service=change.service,
            full_of_bytes=_share(change.seconds_bytes_full, span),
            at_lock=change.in_line / change.looks if is_sampled else 0.0,
            full_of_keys=_share(change.seconds_keys_full, span),
            generation=generation,
        )

    @property
    def cores(self) -> float:
        """Processor cores that its function used; 0 if unknown."""
        return (self.on_processor or 0.0) * self.busy * self.workers


@dataclass(frozen=True, slots=True)
class FunctionInterval:
    """A function between stages, in an interval.

    Attributes:
        now: its numbers at the end of the interval.
        busy: share of one thread's time that it took, from 0 to 1.
        service: durations of the calls that ended in the interval.
    """

    now: FunctionNumbers
    busy: float
    service: Histogram

    @classmethod
    def between(
        cls, earlier: FunctionNumbers | None, now: FunctionNumbers, seconds: float
    ) -> FunctionInterval:
        """Return what a function did between two readings; the first is `None` if it is new."""
        change = difference(earlier, now)
        return cls(now, _share(change.busy, seconds), change.service)


@dataclass(frozen=True, slots=True)
class QueueInterval:
    """A queue in an interval.

    Attributes:
        now: its numbers at the end.
        rate_in: elements enqueued per second.
        rate_out: elements dequeued per second.
        enqueue_waiting: average number of waiting enqueues.
        dequeue_waiting: average number of waiting dequeues.
        empty: share of the time that it was empty.
        full: share of the time that it was full.
        low: 10th percentile of the share of its capacity in use.
        mean: mean share of its capacity in use.
        high: 90th percentile of the share of its capacity in use.
    """

    now: QueueNumbers
    rate_in: float
    rate_out: float
    enqueue_waiting: float
    dequeue_waiting: float
    empty: float
    full: float
    low: float
    mean: float
    high: float

    @classmethod
    def between(
        cls, earlier: QueueNumbers | None, now: QueueNumbers, seconds: float
    ) -> QueueInterval:
        """Return what a queue did between two readings; the first is `None` if it is new."""
        change = difference(earlier, now)
        waits = (0.0, 0.0) if earlier is None else (earlier.enqueue_wait, earlier.dequeue_wait)
        low, mean, high = _fill(earlier, now, change.occupancy)
        return cls(
            now=now,
            rate_in=max(0.0, change.enqueued / seconds),
            rate_out=max(0.0, change.dequeued / seconds),
            # Not of the change: these also count the waits that go on.
            enqueue_waiting=max(0.0, (now.enqueue_wait - waits[0]) / seconds),
            dequeue_waiting=max(0.0, (now.dequeue_wait - waits[1]) / seconds),
            empty=_share(change.seconds_empty, seconds),
            full=_share(change.seconds_full, seconds),
            low=low,
            mean=mean,
            high=high,
        )


@dataclass(frozen=True, slots=True)
class StepInterval:
    """The consumer of the data in an interval: the training step, or the reader of the last queue.

    Attributes:
        rate: batches (or elements) handed over per second.
        unit: ``"batches"``, or ``"elements"`` if no loop is watched.
        waits: share of the time spent waiting for data, from 0 to 1.
        preparing: share of the time that the loop itself took to make its batches.
    """

    rate: float
    unit: str
    waits: float
    preparing: float = 0.0


@dataclass(frozen=True, slots=True)
class Interval:
    """Everything that happened in a run between two snapshots.

    Attributes:
        begin: seconds since the run began, at the first snapshot.
        later: the second snapshot.
        stages: in the order of the data flow.
        queues: in the order of the data flow.
        functions: the functions between stages, in no particular order.
        step: the consumer of the data.
        last_queue: the queue that the consumer reads; `None` without one.
        gil: share of the samples that found the GIL held.
        cores: processor cores that this process used.
    """

    begin: float
    later: Snapshot
    stages: tuple[StageInterval, ...]
    queues: tuple[QueueInterval, ...]
    functions: tuple[FunctionInterval, ...]
    step: StepInterval
    last_queue: QueueInterval | None
    gil: float
    cores: float

    @classmethod
    def between(cls, earlier: Snapshot, later: Snapshot) -> Interval:
        """Return what happened between two snapshots.

        A part that is only in the later snapshot starts with all counts at zero. A part that is
        only in the earlier one is left out.
        """
        seconds = max(later.seconds - earlier.seconds, _NEVER_ZERO)
        stages = {stage.name: stage for stage in earlier.stages}
        functions = {function.name: function for function in earlier.functions}
        queues = {queue.name: queue for queue in earlier.queues}
        ends = [
            QueueInterval.between(queues.get(queue.name), queue, seconds) for queue in later.queues
        ]
        last_name = _last_queue(later)
        last_queue = next((queue for queue in ends if queue.now.name == last_name), None)
        loops = _concurrent_loops(earlier.steps, later.steps, seconds)
        change = difference(earlier, later)
        return cls(
            begin=earlier.seconds,
            later=later,
            stages=tuple(
                StageInterval.between(stages.get(stage.name), stage, seconds)
                for stage in later.stages
            ),
            queues=tuple(ends),
            functions=tuple(
                FunctionInterval.between(functions.get(one.name), one, seconds * loops)
                for one in later.functions
            ),
            step=_step(earlier.steps, later.steps, last_queue, seconds, loops),
            last_queue=last_queue,
            gil=change.gil_taken / change.gil_looks if change.gil_looks else 0.0,
            cores=change.process_cpu / seconds,
        )

    @classmethod
    def over(cls, snapshots: Sequence[Snapshot]) -> Interval:
        """Return what happened over at least two snapshots. A stage that has ended is shown with
        the most workers that it had."""
        whole = cls.between(snapshots[0], snapshots[-1])
        stages = [
            replace(stage, workers=float(_workers(stage.now, snapshots))) for stage in whole.stages
        ]
        return replace(whole, stages=tuple(stages))

    @property
    def end(self) -> float:
        """Seconds since the run began, at the second snapshot."""
        return self.later.seconds

    @property
    def seconds(self) -> float:
        """Length of the interval; never 0."""
        return max(self.end - self.begin, _NEVER_ZERO)

    @property
    def has_moved(self) -> bool:
        """Whether any stage has delivered an item, or the consumer has got one.

        Where a loop is watched, an element of its queue alone does not count: it may be the end of
        an epoch, which is no batch.
        """
        return self.step.rate > 0 or any(stage.rate for stage in self.stages)

    def in_flow_order(self) -> Iterator[StageInterval | QueueInterval]:
        """Yield the stages and the queues: each stage before the queue that it fills."""
        filling: dict[str | None, list[StageInterval]] = {}
        for stage in self.stages:
            filling.setdefault(stage.now.into, []).append(stage)
        for queue in self.queues:
            yield from filling.pop(queue.now.name, ())
            yield queue
        for stages in filling.values():  # their queues are not watched
            yield from stages

    def functions_within(self, stage: str | None) -> list[FunctionInterval]:
        """Return the functions that a stage waits for; those that the loop waits for, if
        ``None``."""
        return [one for one in self.functions if one.now.within == stage]

    def busiest_functions(self) -> list[FunctionInterval]:
        """Return the functions, busiest first."""
        return sorted(self.functions, key=lambda one: -one.busy)


def _last_queue(snapshot: Snapshot) -> str | None:
    """Return the name of the queue that the consumer reads."""
    names = {queue.name for queue in snapshot.queues}
    if snapshot.steps is not None and snapshot.steps.queue in names:
        return snapshot.steps.queue
    # Nobody says which one it is: take the last one that a stage fills and no stage reads.
    read = {stage.source for stage in snapshot.stages}
    ends = [stage.into for stage in snapshot.stages if stage.into in names - read]
    return ends[-1] if ends else (snapshot.queues[-1].name if snapshot.queues else None)


def _concurrent_loops(
    earlier: StepNumbers | None, later: StepNumbers | None, seconds: float
) -> float:
    """Return the average number of concurrent loops, at least 1."""
    if later is None:
        return 1.0
    spent = _waited(later) + later.worked
    if earlier is not None:
        spent -= _waited(earlier) + earlier.worked
    return max(1.0, spent / seconds)


def _waited(steps: StepNumbers) -> float:
    """Return how long all loops have waited, including current waits."""
    return steps.waits.seconds + steps.waiting


def _step(
    earlier: StepNumbers | None,
    later: StepNumbers | None,
    last_queue: QueueInterval | None,
    seconds: float,
    loops: float,
) -> StepInterval:
    at_queue = 0.0 if last_queue is None else last_queue.dequeue_waiting
    if later is None:
        rate = 0.0 if last_queue is None else last_queue.rate_out
        return StepInterval(rate, "elements", min(1.0, at_queue))
    change = difference(earlier, later)
    waited = _waited(later) - (0.0 if earlier is None else _waited(earlier))
    waits = _share(waited, seconds * loops)
    # While the loop's thread waits for a batch, but not at its queue, it makes the batch itself.
    preparing = max(0.0, waits - at_queue / loops)
    return StepInterval(change.steps / seconds, "batches", waits, preparing)


def latest(history: Sequence[Snapshot], now: Snapshot, seconds: float) -> Interval:
    """Return the interval of the last seconds, or as much of it as the history or the run
    covers."""
    since = now.seconds - seconds
    for snapshot in reversed(history):
        if snapshot.seconds <= since + 1e-3:
            return Interval.between(snapshot, now)
    if history and history[0].seconds < now.seconds:
        return Interval.between(history[0], now)
    return Interval.between(_beginning(now), now)


def recorded(history: Sequence[Snapshot], now: Snapshot) -> list[Snapshot]:
    """Return all snapshots of a run, up to now, with one at its beginning if the history goes back
    that far. A run that has only just begun has a single one."""
    found = [snapshot for snapshot in history if snapshot.seconds < now.seconds]
    if len(found) > 1 and now.seconds - found[-1].seconds < _SHORTEST:
        found.pop()  # extends the last interval, which would be too short
    found.append(now)
    if _SHORTEST / 2 < found[0].seconds < 1 + _SHORTEST:
        found.insert(0, _beginning(now))
    return found


def _beginning(of: Snapshot) -> Snapshot:
    return Snapshot(0.0, of.time - of.seconds, of.cores, 0.0, (), (), None)


def _workers(stage: StageNumbers, snapshots: Sequence[Snapshot]) -> int:
    """Return the number of workers of a stage; if it has ended, the most that it had."""
    return len(stage.workers) or max(
        (
            len(one.workers)
            for snapshot in snapshots
            for one in snapshot.stages
            if one.name == stage.name
        ),
        default=0,
    )


def _fill(
    earlier: QueueNumbers | None, now: QueueNumbers, spent: Sequence[float]
) -> tuple[float, float, float]:
    """Return the share of a queue's capacity in use: 10th percentile, mean and 90th percentile.

    Args:
        earlier: the queue at the beginning of the interval; `None` if it is new.
        now: the queue at its end.
        spent: how many seconds its size was in each tenth of its capacity.
    """
    total = sum(spent)
    if not total:  # there was no sample in between
        at_end = _share(now.size, now.capacity) if now.capacity else 0.0
        return at_end, at_end, at_end
    mean = sum((tenth + 0.5) * time for tenth, time in enumerate(spent)) / len(spent) / total
    # A size that did not change is exact, rather than the middle of its tenth.
    if earlier is not None and now.size == earlier.size and spent.count(0.0) == len(spent) - 1:
        mean = _share(now.size, now.capacity) if now.capacity else mean
        return mean, mean, mean
    return _quantile(spent, 0.1 * total), mean, _quantile(spent, 0.9 * total)


def _quantile(spent: Sequence[float], wanted: float) -> float:
    """Return the share at or below which the queue spent a given time, interpolated within a
    tenth."""
    below = 0.0
    for tenth, time in enumerate(spent):
        if time and below + time >= wanted:
            return (tenth + (wanted - below) / time) / len(spent)
        below += time
    return 1.0


def _share(part: float, whole: float) -> float:
    """Return a share within 0 to 1; clocks that are read one after another may exceed that."""
    return min(1.0, max(0.0, part / whole))
