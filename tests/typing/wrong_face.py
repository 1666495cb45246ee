"""Takes one face of a queue or a coordinator for the other one."""

from __future__ import annotations

import aioqueue
from aioqueue import sync


async def consume(queue: aioqueue.FIFOQueue[int], coord: aioqueue.Coordinator) -> int:
    await queue.dequeue(timeout=1)  # WRONG
    number = queue.sync.dequeue(timeout=1)
    late: int = queue.dequeue()  # WRONG
    for _ in queue:  # WRONG
        pass
    coord.sync.join()
    coord.sync.jion()  # WRONG
    return number + late


def produce(queue: sync.FIFOQueue[int]) -> None:
    queue.aio.enqueue_nowait(1)
    queue.aio.enqueue_nowait(1, 2)  # WRONG
    print(queue.aio.min_after_dequeue)  # WRONG
