"""What was done between two snapshots, as shares of the time.

What happened between two snapshots: rates, and the shares of time that went into what.

What all ways to look have in common: what `aioqueue.telemetry.intervals` reads for the verdict, and
how full queues were. Waits at a queue are a mean number of callers that waited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from aioqueue.telemetry.metrics import (
    FunctionNumbers,
    Histogram,
    QueueNumbers,
    Snapshot,
    StageNumbers,
    StepNumbers,
)

__all__ = (
    "FunctionShares",
    "Interval",
    "IntervalShares",
    "QueueInterval",
    "StageShares",
    "StepInterval",
    "latest",
    "recorded",
)


_FEW_LOOKS = 5
"""Looks at workers in their function, fewer than which say nothing."""


@dataclass(frozen=True, slots=True)
class StageShares:
    """What the workers of a stage did, each number a share of their time, from 0 to 1.

    Attributes:
        stage: the stage at the end of the window.
        workers: how many it had, in the mean.
        busy: in the function.
        blocked: they waited to put examples in.
        starved: they waited for items.
        on: of the time in the function, on a processor; `None` if that is not known.
        source: its source was at work, of which waits at a queue are no part.
        full: as many items as may be were in flight.
        rate: items delivered per second.
        service: calls that ended in the window.
        full_of_bytes: as many bytes as may be were in flight.
        in_line: of the looks that found a worker in the function, it waited for a lock.
        full_of_keys: workers had nothing to do, and items were put aside, for there were as many of
            their keys in preparation as may be.
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
        """Processor cores that its function has used; 0 if that is not known."""
        return (self.on or 0.0) * self.busy * self.workers


@dataclass(frozen=True, slots=True)
class FunctionShares:
    """A function between the stages.

    Attributes:
        function: it, at the end of the window.
        busy: share of the time that it took, from 0 to 1: of one thread's.
        service: calls that ended in the window.
    """

    function: FunctionNumbers
    busy: float
    service: Histogram


class IntervalShares:
    """What was done between two snapshots of one run.

    Args:
        earlier: what was before.
        later: what is now.

    Attributes:
        seconds: how long it was.
        stages: by stage, in order.
        starved: share of the time that the training step waited for data, from 0 to 1.
        own: share of the time that the loop itself took to make what it waited for.
        gil: share of looks that found the interpreter taken.
        rate: batches (or elements, where no loop is watched) per second.
        cores: processor cores that this process has used.
    """

    def __init__(self, earlier: Snapshot, later: Snapshot) -> None:
        self.later = later
        self.seconds = max(later.seconds - earlier.seconds, 1e-9)
        before = {stage.name: stage for stage in earlier.stages}
        self.stages = [self._stage(before.get(stage.name), stage) for stage in later.stages]
        self.loops = 1.0  # that went on side by side, in the mean
        if later.steps is not None:
            spent = _spent(later.steps)
            if earlier.steps is not None:
                spent -= _spent(earlier.steps)
            self.loops = max(1.0, spent / self.seconds)
        known = {one.name: one for one in earlier.functions}
        self.functions = [self._function(known.get(one.name), one) for one in later.functions]
        looks = later.gil_looks - earlier.gil_looks
        self.gil = (later.gil_taken - earlier.gil_taken) / looks if looks else 0.0
        self.cores = max(0.0, later.process_cpu - earlier.process_cpu) / self.seconds
        queues = {queue.name: queue for queue in earlier.queues}
        self.last = self._last_queue()
        last_before = None if self.last is None else queues.get(self.last.name)
        waited = _queue_wait(last_before, self.last)
        elements = _taken(last_before, self.last)
        self.own = 0.0
        if later.steps is None:
            self.starved = min(1.0, waited / self.seconds)
            self.rate = elements / self.seconds
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
        self.full = _full(last_before, self.last) / self.seconds
        # The ends of epochs are elements too; but where a loop is watched, they are no batches.
        has_come = elements > 0 and later.steps is None
        self.has_moved = has_come or self.rate > 0 or any(one.rate for one in self.stages)

    def _last_queue(self) -> QueueNumbers | None:
        """The queue that the training step reads from."""
        later = self.later
        by_name = {queue.name: queue for queue in later.queues}
        if later.steps is not None and later.steps.queue in by_name:
            return by_name[later.steps.queue]
        read = {stage.source for stage in later.stages}
        ends = [stage.into for stage in later.stages if stage.into not in read]
        named = [by_name[name] for name in ends if name in by_name]
        return named[-1] if named else (later.queues[-1] if later.queues else None)

    def _stage(self, before: StageNumbers | None, now: StageNumbers) -> StageShares:
        """What one did."""
        first = before or _nothing_of(now)
        whole = max(now.alive - first.alive, 1e-9)
        sampled = now.cpu_sampled - first.cpu_sampled
        span = max(self.seconds, now.runs - first.runs)  # of runs side by side, of all together
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
        """Those that a stage waits for; or the loop, if it is ``None``."""
        return [one for one in self.functions if one.function.within == stage]


def _spent(steps: StepNumbers) -> float:
    """Seconds that loops went on, all together."""
    return steps.waits.seconds + steps.waiting + steps.worked


def _at_work(stage: StageNumbers) -> float:
    """Seconds that the source was at work."""
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
    """The same stage before it has done anything."""
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
"""Seconds, less than which is too short for a rate to mean much."""


@dataclass(frozen=True, slots=True)
class QueueInterval:
    """One queue.

    Attributes:
        now: its numbers at the end.
        rate_in: elements put in per second.
        rate_out: elements taken out per second.
        enqueue_waiting: mean number of enqueues that waited.
        dequeue_waiting: mean number of dequeues that waited.
        empty: share of the time in which it was empty.
        full: share of the time in which it was full.
        low: it was filled to less than this share in a tenth of the time.
        mean: share of its capacity to which it was filled.
        high: it was filled to more than this share in a tenth of the time.
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
    """What takes the data out: the training step, or whoever reads the last queue.

    Attributes:
        rate: batches (or elements) handed over per second.
        unit: what is counted: ``"batches"``, or ``"elements"`` where no loop is watched.
        waits: share of the time spent waiting for data.
    """

    rate: float
    unit: str
    waits: float


@dataclass(frozen=True, slots=True)
class Interval:
    """All of a run between two snapshots.

    Attributes:
        begin: seconds since the run began.
        end: the same, of the later one.
        stages: in the order in which data go through them.
        queues: in the order in which data go through them.
        step: what takes the data out.
        functions: what is called between the stages, busiest first.
    """

    begin: float
    end: float
    stages: tuple[StageShares, ...]
    queues: tuple[QueueInterval, ...]
    step: StepInterval
    functions: tuple[FunctionShares, ...] = ()

    @classmethod
    def between(cls, earlier: Snapshot, later: Snapshot) -> Interval:
        """What happened between two snapshots. What is in the later one only has begun with all
        counts at zero; what is in the earlier one only is left out."""
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
        """What happened over all of several snapshots, two at least. The workers of a stage that
        has ended are as many as there were."""
        whole = cls.between(snapshots[0], snapshots[-1])
        stages = [
            replace(shares, workers=float(_workers(shares.stage, snapshots)))
            for shares in whole.stages
        ]
        return replace(whole, stages=tuple(stages))

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.begin


def latest(history: Sequence[Snapshot], now: Snapshot, seconds: float) -> Interval:
    """What happened in the last seconds, or as far back as the history goes; at its beginning,
    since the run began."""
    since = now.seconds - seconds
    for snapshot in reversed(history):
        if snapshot.seconds <= since + 1e-3:
            return Interval.between(snapshot, now)
    if history and history[0].seconds < now.seconds:
        return Interval.between(history[0], now)
    return Interval.between(_beginning(now), now)


def recorded(history: Sequence[Snapshot], now: Snapshot) -> list[Snapshot]:
    """All snapshots of a run at different times, up to now, and from its beginning if the history
    goes back that far. One alone, if the run has only just begun."""
    found = [snapshot for snapshot in history if snapshot.seconds < now.seconds]
    if len(found) > 1 and now.seconds - found[-1].seconds < _SHORT:
        found.pop()  # so that the last interval is a long one, and not a very short one
    found.append(now)
    if _SHORT / 2 < found[0].seconds < 1 + _SHORT:
        found.insert(0, _beginning(now))
    return found


def _beginning(of: Snapshot) -> Snapshot:
    """The snapshot in which there was nothing yet."""
    return Snapshot(0.0, of.time - of.seconds, of.cores, 0.0, (), (), None)


def _workers(stage: StageNumbers, snapshots: Sequence[Snapshot]) -> int:
    """How many a stage has; if it has ended, the most that it had."""
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
    """To which share of its capacity a queue was filled: P10, mean and P90 over the time."""
    earlier = (0.0,) * len(now.occupancy) if then is None else then.occupancy
    spent = [max(0.0, after - before) for after, before in zip(now.occupancy, earlier, strict=True)]
    total = sum(spent)
    if not total:  # nobody has looked in the meantime
        at_end = _bounded(now.size / now.capacity) if now.capacity else 0.0
        return at_end, at_end, at_end
    mean = sum((tenth + 0.5) * time for tenth, time in enumerate(spent)) / len(spent) / total
    # A queue that stood still at one end is not half a tenth away from there.
    if then is not None and now.size == then.size and spent.count(0.0) == len(spent) - 1:
        mean = _bounded(now.size / now.capacity) if now.capacity else mean
        return mean, mean, mean
    return _reached(spent, 0.1 * total), mean, _reached(spent, 0.9 * total)


def _reached(spent: Sequence[float], wanted: float) -> float:
    """The share below which so much of the time was spent, within a tenth by interpolation."""
    below = 0.0
    for tenth, time in enumerate(spent):
        if time and below + time >= wanted:
            return (tenth + (wanted - below) / time) / len(spent)
        below += time
    return 1.0


def _bounded(share: float) -> float:
    """What clocks that are read one after the other may push out of bounds, back within them."""
    return min(1.0, max(0.0, share))
