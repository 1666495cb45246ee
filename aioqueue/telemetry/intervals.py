"""What happened between two snapshots: rates, and the shares of time that went into what.

What all ways to look have in common: what `aioqueue.telemetry.shares` reads for the verdict, and
how full queues were. Waits at a queue are a mean number of callers that waited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from aioqueue.telemetry.numbers import QueueNumbers, Snapshot, StageNumbers
from aioqueue.telemetry.shares import FunctionShares, StageShares, Window

__all__ = (
    "Interval",
    "QueueInterval",
    "StepInterval",
    "latest",
    "recorded",
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
        window = Window(earlier, later)
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
