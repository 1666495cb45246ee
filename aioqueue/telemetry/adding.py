"""Numbers of a part that was there before and of one in its place now, as those of one."""

from __future__ import annotations

from dataclasses import replace

from aioqueue.telemetry.numbers import QueueNumbers, StageNumbers

__all__ = ("queues_added", "stages_added")


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
    )
