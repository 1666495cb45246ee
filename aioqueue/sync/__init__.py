"""The blocking face: the same queues, coordinator, runner and batcher, for threads.

Use it in scripts in the classic threading style. The methods have the names of the async face, and
take ``timeout=`` seconds. ``queue.aio`` is the async face of the same queue.
"""

from __future__ import annotations

from aioqueue.batching.batcher import BlockingBatcher as Batcher
from aioqueue.coordination.blocking import LooperThread, QueueRunner
from aioqueue.coordination.faces import BlockingCoordinator as Coordinator
from aioqueue.queues.blocking import Batches
from aioqueue.queues.faces import BlockingQueue
from aioqueue.queues.fifo import BlockingFIFOQueue as FIFOQueue
from aioqueue.queues.padding import BlockingPaddingFIFOQueue as PaddingFIFOQueue
from aioqueue.queues.priority import BlockingPriorityQueue as PriorityQueue
from aioqueue.queues.shuffle import BlockingRandomShuffleQueue as RandomShuffleQueue
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
    globals()[_name].__name__ = globals()[_name].__qualname__ = _name
del _name
