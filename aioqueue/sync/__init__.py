"""The thread face: the same queues, coordinator and runner, blocking.

For scripts in the classic threading style. Methods have the names of the async face and take
``timeout=`` seconds; ``queue.aio`` is the async face of the same queue.
"""

from __future__ import annotations

from aioqueue.batching.blocking import Batcher
from aioqueue.coordination.blocking import Coordinator, LooperThread, QueueRunner
from aioqueue.queues.blocking import (
    Batches,
    BlockingQueue,
    FIFOQueue,
    PaddingFIFOQueue,
    PriorityQueue,
    RandomShuffleQueue,
)
from aioqueue.waiting import CancelScope

__all__ = (
    "Batcher",
    "Batches",
    "BlockingQueue",
    "CancelScope",
    "Coordinator",
    "FIFOQueue",
    "LooperThread",
    "PaddingFIFOQueue",
    "PriorityQueue",
    "QueueRunner",
    "RandomShuffleQueue",
)

for _name in __all__:
    # Tracebacks and reprs show the public path.
    globals()[_name].__module__ = __name__
del _name
