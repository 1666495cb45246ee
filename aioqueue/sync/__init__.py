"""The blocking face: the same queues, coordinator, runner, batcher and `Latest`, for threads.

Use it in scripts in the classic threading style. The methods have the names of the async face, and
take ``timeout=`` seconds. ``queue.aio`` is the async face of the same queue.
"""

from __future__ import annotations

import typing

from aioqueue.batching.batcher import BlockingBatcher as Batcher
from aioqueue.coordination.blocking import LooperThread, QueueRunner
from aioqueue.coordination.faces import BlockingCoordinator as Coordinator
from aioqueue.latest.faces import BlockingLatest as Latest
from aioqueue.migration_hints import hint_keywords as _hint_keywords
from aioqueue.migration_hints import no_name as _no_name
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
    "Latest",
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

_hint_keywords((FIFOQueue, RandomShuffleQueue, PaddingFIFOQueue, PriorityQueue), "queues")
_hint_keywords((CancelScope, Coordinator, LooperThread, QueueRunner), "coordinators")
_hint_keywords((Batcher,), "batchers")

if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        """Say what is written here instead of a name of another library."""
        _no_name(__name__, name)
