"""Numbers of several parts in one place, as those of one: one after another, or side by side.

And those of one part at two moments, which never go back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, TypeVar

from aioqueue.telemetry.numbers import Histogram, QueueNumbers, StageNumbers, StepNumbers

__all__ = (
    "NO_STEPS",
    "never_less",
    "queue_ended",
    "queues_added",
    "queues_beside",
    "stage_ended",
    "stages_added",
    "stages_beside",
    "steps_beside",
)

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
        limit=_both(one.limit, other.limit),
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
