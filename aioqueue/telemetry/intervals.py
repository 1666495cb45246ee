"""Turns two snapshots into an interval: rates, and the share of time spent on what.

The verdict and all views read these. Waits at a queue appear as an average number of waiting
callers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from aioqueue.core.meters import Histogram
from aioqueue.telemetry.snapshots import (
    FunctionNumbers,
    QueueNumbers,
    Snapshot,
    StageNumbers,
    StepNumbers,
)

_FEW_LOOKS = 5
"""Fewer samples of a stage's workers than this are ignored."""


@dataclass(frozen=True, slots=True)
class StageShares:
    """What the workers of a stage did in an interval; numbers are shares of their time, from 0 to
    1.

    Attributes:
        stage: the stage at the end of the interval.
        workers: average number of workers.
        busy: time in the function.
        blocked: time waiting to enqueue examples.
        starved: time waiting for items.
        on: share of the time in the function spent on a processor; `None` if unknown.
        source: share of the time that its source worked, without waits at a queue.
        full: share of the time that as many items as allowed were in flight.
        rate: items delivered per second.
        service: durations of the calls that ended in the interval.
        full_of_bytes: share of the time that as many bytes as allowed were in flight.
        in_line: share of the samples in the function in which the worker waited for a lock.
        full_of_keys: share of the time that workers were idle while ``max_per_key`` deferred items.
    """

    stage: StageNumbers
    workers: float
    busy: float
    blocked: float
    starved: float
    on: float | None
    source: float
    full: float
    rate: float
    service: Histogram
    full_of_bytes: float = 0.0
    in_line: float = 0.0
    full_of_keys: float = 0.0

    @property
    def cores(self) -> float:
        """Processor cores that its function used; 0 if unknown."""
        return (self.on or 0.0) * self.busy * self.workers


@dataclass(frozen=True, slots=True)
class FunctionShares:
    """A function between stages.

    Attributes:
        function: its numbers at the end of the interval.
        busy: share of one thread's time that it took, from 0 to 1.
        service: durations of the calls that ended in the interval.
    """

    function: FunctionNumbers
    busy: float
    service: Histogram


class IntervalShares:
    """What happened between two snapshots of a run.

    Args:
        earlier: the snapshot at the beginning.
        later: the snapshot at the end.

    Attributes:
        seconds: length of the interval.
        stages: the stages, in order.
        starved: share of the time that the training step waited for data, from 0 to 1.
        own: share of the time that the loop itself took to make its batches.
        gil: share of the samples that found the GIL held.
        rate: batches per second; elements, if no loop is watched.
        cores: processor cores that this process used.
    """

    def __init__(self, earlier: Snapshot, later: Snapshot) -> None:
        self.later = later
        self.seconds: float = max(later.seconds - earlier.seconds, 1e-9)
        before = {stage.name: stage for stage in earlier.stages}
        self.stages: list[StageShares] = [
            self._stage(before.get(stage.name), stage) for stage in later.stages
        ]
        self.loops: float = 1.0  # average number of concurrent loops
        if later.steps is not None:
            spent = _spent(later.steps)
            if earlier.steps is not None:
                spent -= _spent(earlier.steps)
            self.loops = max(1.0, spent / self.seconds)
        known = {one.name: one for one in earlier.functions}
        self.functions: list[FunctionShares] = [
            self._function(known.get(one.name), one) for one in later.functions
        ]
        looks = later.gil_looks - earlier.gil_looks
        self.gil: float = (later.gil_taken - earlier.gil_taken) / looks if looks else 0.0
        self.cores: float = max(0.0, later.process_cpu - earlier.process_cpu) / self.seconds
        queues = {queue.name: queue for queue in earlier.queues}
        self.last: QueueNumbers | None = self._last_queue()
        last_before = None if self.last is None else queues.get(self.last.name)
        waited = _queue_wait(last_before, self.last)
        elements = _taken(last_before, self.last)
        self.own: float = 0.0
        if later.steps is None:
            self.starved: float = min(1.0, waited / self.seconds)
            self.rate: float = elements / self.seconds
        else:
            waits, steps = later.steps.waits.seconds + later.steps.waiting, later.steps.steps
            if earlier.steps is not None:
                waits -= earlier.steps.waits.seconds + earlier.steps.waiting
                steps -= earlier.steps.steps
            span = self.seconds * self.loops
            self.starved = min(1.0, max(0.0, waits / span))
            self.rate = steps / self.seconds
            if self.last is not None:
                self.own = max(0.0, self.starved - waited / span)
            else:
                self.own = self.starved
        self.full: float = _full(last_before, self.last) / self.seconds
        # Ends of epochs are elements too, but no batches, where a loop is watched.
        has_come = elements > 0 and later.steps is None
        self.has_moved: bool = has_come or self.rate > 0 or any(one.rate for one in self.stages)

    def _last_queue(self) -> QueueNumbers | None:
        """Return the queue that the training step reads."""
        later = self.later
        by_name = {queue.name: queue for queue in later.queues}
        if later.steps is not None and later.steps.queue in by_name:
            return by_name[later.steps.queue]
        read = {stage.source for stage in later.stages}
        ends = [stage.into for stage in later.stages if stage.into not in read]
        named = [by_name[name] for name in ends if name in by_name]
        return named[-1] if named else (later.queues[-1] if later.queues else None)

    def _stage(self, before: StageNumbers | None, now: StageNumbers) -> StageShares:
        """Return what one stage did."""
        first = before or _nothing_of(now)
        whole = max(now.alive - first.alive, 1e-9)
        sampled = now.cpu_sampled - first.cpu_sampled
        span = max(self.seconds, now.runs - first.runs)  # concurrent runs add up
        looks = now.looks - first.looks
        busy = now.busy - first.busy
        return StageShares(
            stage=now,
            workers=whole / span,
            busy=min(1.0, max(0.0, busy / whole)),
            blocked=min(1.0, max(0.0, (now.blocked - first.blocked) / whole)),
            starved=min(1.0, max(0.0, (now.starved - first.starved) / whole)),
            on=min(1.0, (now.cpu - first.cpu) / sampled) if sampled > 0 else None,
            source=min(1.0, max(0.0, _at_work(now) - _at_work(first)) / span),
            full=min(1.0, (now.seconds_window_full - first.seconds_window_full) / span),
            rate=(now.delivered - first.delivered) / self.seconds,
            service=now.service.since(first.service),
            full_of_bytes=min(1.0, (now.seconds_bytes_full - first.seconds_bytes_full) / span),
            in_line=(now.in_line - first.in_line) / looks if looks >= _FEW_LOOKS else 0.0,
            full_of_keys=min(1.0, (now.seconds_keys_full - first.seconds_keys_full) / span),
        )

    def _function(self, before: FunctionNumbers | None, now: FunctionNumbers) -> FunctionShares:
        busy, service = now.busy, now.service
        if before is not None:
            busy, service = busy - before.busy, service.since(before.service)
        return FunctionShares(now, min(1.0, max(0.0, busy / self.seconds / self.loops)), service)

    def functions_of(self, stage: str | None) -> list[FunctionShares]:
        """Return the functions that a stage waits for; those that the loop waits for, if
        ``None``."""
        return [one for one in self.functions if one.function.within == stage]


def _spent(steps: StepNumbers) -> float:
    """Return the total duration of all loops in seconds."""
    return steps.waits.seconds + steps.waiting + steps.worked


def _at_work(stage: StageNumbers) -> float:
    """Return for how many seconds the source worked."""
    return stage.source_waits.seconds - stage.fed


def _queue_wait(before: QueueNumbers | None, now: QueueNumbers | None) -> float:
    if now is None:
        return 0.0
    return max(0.0, now.dequeue_wait - (0.0 if before is None else before.dequeue_wait))


def _taken(before: QueueNumbers | None, now: QueueNumbers | None) -> int:
    if now is None:
        return 0
    return now.dequeued - (0 if before is None else before.dequeued)


def _full(before: QueueNumbers | None, now: QueueNumbers | None) -> float:
    if now is None:
        return 0.0
    return now.seconds_full - (0.0 if before is None else before.seconds_full)


def _nothing_of(stage: StageNumbers) -> StageNumbers:
    """Return the same stage before it has done anything."""
    return replace(
        stage,
        delivered=0,
        service=Histogram(),
        cpu_sampled=0.0,
        cpu=0.0,
        source_waits=Histogram(),
        blocked=0.0,
        starved=0.0,
        seconds_window_full=0.0,
        busy=0.0,
        alive=0.0,
        fed=0.0,
        runs=0.0,
        seconds_bytes_full=0.0,
        looks=0,
        in_line=0,
        seconds_keys_full=0.0,
    )


_SHORT = 0.5
"""A rate over fewer seconds than this means little."""


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


@dataclass(frozen=True, slots=True)
class StepInterval:
    """The consumer of the data in an interval: the training step, or the reader of the last queue.

    Attributes:
        rate: batches (or elements) handed over per second.
        unit: ``"batches"``, or ``"elements"`` if no loop is watched.
        waits: share of the time spent waiting for data.
    """

    rate: float
    unit: str
    waits: float


@dataclass(frozen=True, slots=True)
class Interval:
    """Everything that happened in a run between two snapshots.

    Attributes:
        begin: seconds since the run began, at the first snapshot.
        end: seconds since the run began, at the second snapshot.
        stages: in the order of the data flow.
        queues: in the order of the data flow.
        step: the consumer of the data.
        functions: the functions between stages, busiest first.
    """

    begin: float
    end: float
    stages: tuple[StageShares, ...]
    queues: tuple[QueueInterval, ...]
    step: StepInterval
    functions: tuple[FunctionShares, ...] = ()

    @classmethod
    def between(cls, earlier: Snapshot, later: Snapshot) -> Interval:
        """Return what happened between two snapshots.

        A part that is only in the later snapshot starts with all counts at zero. A part that is
        only in the earlier one is left out.
        """
        window = IntervalShares(earlier, later)
        queues = {queue.name: queue for queue in earlier.queues}
        return cls(
            earlier.seconds,
            later.seconds,
            tuple(window.stages),
            tuple(_queue(queues.get(now.name), now, window.seconds) for now in later.queues),
            StepInterval(
                window.rate, "elements" if later.steps is None else "batches", window.starved
            ),
            tuple(sorted(window.functions, key=lambda one: -one.busy)),
        )

    @classmethod
    def over(cls, snapshots: Sequence[Snapshot]) -> Interval:
        """Return what happened over at least two snapshots. A stage that has ended is shown with
        the most workers that it had."""
        whole = cls.between(snapshots[0], snapshots[-1])
        stages = [
            replace(shares, workers=float(_workers(shares.stage, snapshots)))
            for shares in whole.stages
        ]
        return replace(whole, stages=tuple(stages))

    @property
    def seconds(self) -> float:
        """Length of the interval."""
        return self.end - self.begin


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
    if len(found) > 1 and now.seconds - found[-1].seconds < _SHORT:
        found.pop()  # extends the last interval, which would be too short
    found.append(now)
    if _SHORT / 2 < found[0].seconds < 1 + _SHORT:
        found.insert(0, _beginning(now))
    return found


def _beginning(of: Snapshot) -> Snapshot:
    """Return an empty snapshot for the beginning of the run."""
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


def _queue(then: QueueNumbers | None, now: QueueNumbers, seconds: float) -> QueueInterval:
    def added(of: Callable[[QueueNumbers], float]) -> float:
        return max(0.0, (of(now) - (0.0 if then is None else of(then))) / seconds)

    low, mean, high = _fill(then, now)
    return QueueInterval(
        now=now,
        rate_in=added(lambda queue: queue.enqueued),
        rate_out=added(lambda queue: queue.dequeued),
        enqueue_waiting=added(lambda queue: queue.enqueue_wait),
        dequeue_waiting=added(lambda queue: queue.dequeue_wait),
        empty=_bounded(added(lambda queue: queue.seconds_empty)),
        full=_bounded(added(lambda queue: queue.seconds_full)),
        low=low,
        mean=mean,
        high=high,
    )


def _fill(then: QueueNumbers | None, now: QueueNumbers) -> tuple[float, float, float]:
    """Return the share of a queue's capacity in use: 10th percentile, mean and 90th percentile."""
    earlier = (0.0,) * len(now.occupancy) if then is None else then.occupancy
    spent = [max(0.0, after - before) for after, before in zip(now.occupancy, earlier, strict=True)]
    total = sum(spent)
    if not total:  # there was no sample in between
        at_end = _bounded(now.size / now.capacity) if now.capacity else 0.0
        return at_end, at_end, at_end
    mean = sum((tenth + 0.5) * time for tenth, time in enumerate(spent)) / len(spent) / total
    # A size that did not change is exact, rather than the middle of its tenth.
    if then is not None and now.size == then.size and spent.count(0.0) == len(spent) - 1:
        mean = _bounded(now.size / now.capacity) if now.capacity else mean
        return mean, mean, mean
    return _reached(spent, 0.1 * total), mean, _reached(spent, 0.9 * total)


def _reached(spent: Sequence[float], wanted: float) -> float:
    """Return the share at or below which the queue spent a given time, interpolated within a
    tenth."""
    below = 0.0
    for tenth, time in enumerate(spent):
        if time and below + time >= wanted:
            return (tenth + (wanted - below) / time) / len(spent)
        below += time
    return 1.0


def _bounded(share: float) -> float:
    """Return a share within 0 to 1; clocks that are read one after another may exceed that."""
    return min(1.0, max(0.0, share))
