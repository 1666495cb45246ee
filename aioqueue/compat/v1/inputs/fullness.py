"""How full the queue of an input pipeline is, as a summary: TensorFlow adds one for each."""

from __future__ import annotations

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.ops.casting import cast
from aioqueue.compat.v1.ops.math import maximum
from aioqueue.compat.v1.queues.base import QueueBase
from aioqueue.compat.v1.summaries.ops import scalar

__all__ = ("summarize_fullness",)


def summarize_fullness(
    queue: QueueBase, capacity: int, min_after_dequeue: int | None = None, *, tag: str = ""
) -> None:
    """Add a summary of how full a queue is, from 0 to 1."""
    if min_after_dequeue is None:
        tag, size, room = tag or f"fraction_of_{capacity}_full", queue.size(), capacity
    else:
        room = capacity - min_after_dequeue
        tag = tag or f"fraction_over_{min_after_dequeue}_of_{room}_full"
        size = maximum(0, queue.size() - min_after_dequeue)
    scalar(tag, cast(size, dtypes.float32) * (1.0 / room if room else 0.0))
