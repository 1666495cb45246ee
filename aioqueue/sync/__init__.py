"""The blocking face: the same queues, coordinator, runner, batcher and `Latest`, for threads.

Use it in scripts in the classic threading style. The methods have the names of the async face, and
take ``timeout=`` seconds. ``queue.aio`` is the async face of the same queue.
"""

from __future__ import annotations

import typing

from aioqueue.base.public_names import PublicNames as _PublicNames

if typing.TYPE_CHECKING:
    from aioqueue.batcher.batcher import BlockingBatcher as Batcher
    from aioqueue.coordination.blocking import LooperThread, QueueRunner
    from aioqueue.coordination.coordinator import BlockingCoordinator as Coordinator
    from aioqueue.latest.latest import BlockingLatest as Latest
    from aioqueue.queues.base import BlockingQueue
    from aioqueue.queues.blocking import Batches
    from aioqueue.queues.fifo import BlockingFIFOQueue as FIFOQueue
    from aioqueue.queues.fifo import BlockingPaddingFIFOQueue as PaddingFIFOQueue
    from aioqueue.queues.priority import BlockingPriorityQueue as PriorityQueue
    from aioqueue.queues.shuffle import BlockingRandomShuffleQueue as RandomShuffleQueue
    from aioqueue.sharing.connecting import connect_blocking as connect
    from aioqueue.worlds.scopes import CancelScope

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
    "connect",
)

_names = _PublicNames(
    __name__,
    {
        "aioqueue.batcher.batcher": "Batcher=BlockingBatcher",
        "aioqueue.coordination.blocking": "LooperThread QueueRunner",
        "aioqueue.coordination.coordinator": "Coordinator=BlockingCoordinator",
        "aioqueue.latest.latest": "Latest=BlockingLatest",
        "aioqueue.queues.blocking": "Batches",
        "aioqueue.queues.base": "BlockingQueue",
        "aioqueue.queues.fifo": """
            FIFOQueue=BlockingFIFOQueue PaddingFIFOQueue=BlockingPaddingFIFOQueue
        """,
        "aioqueue.queues.priority": "PriorityQueue=BlockingPriorityQueue",
        "aioqueue.queues.shuffle": "RandomShuffleQueue=BlockingRandomShuffleQueue",
        "aioqueue.sharing.connecting": "connect=connect_blocking",
        "aioqueue.worlds.scopes": "CancelScope",
    },
)

if not typing.TYPE_CHECKING:
    __getattr__ = _names.get


def __dir__() -> list[str]:
    """Return the public names, without the modules that they come from."""
    return sorted(__all__)
