"""Numbers of a part that was there before and of one in its place now, as those of one.

And those of one part at two moments, which never go back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, TypeVar

from aioqueue.telemetry.numbers import QueueNumbers, StageNumbers, StepNumbers

__all__ = ("never_less", "queues_added", "stages_added")

PartT = TypeVar("PartT", QueueNumbers, StageNumbers, StepNumbers)

_SECONDS: Final[dict[type, tuple[str, ...]]] = {
    QueueNumbers: (),  # they are counted under its lock
    StageNumbers: ("busy", "blocked", "starved", "alive", "fed", "seconds_window_full"),
    StepNumbers: ("worked",),
}
"""What grows while it goes on, and is written down when it has ended."""


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
    )
