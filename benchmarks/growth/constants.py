"""What one more call, worker or queue costs, with many of them at once.

The bounds leave two fifths for other builds of Python.
"""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.growth.rows import Run, instructions

SIZES = (100, 300, 1_000)


async def _rounds(n: int = 8) -> None:
    """Let calls begin that have let others run before they wait."""
    for _ in range(n):
        await asyncio.sleep(0)


def _cancelled_dequeues(n: int) -> Run:
    import aioqueue

    async def main() -> None:
        queue = aioqueue.FIFOQueue(1)
        tasks = [asyncio.ensure_future(queue.dequeue()) for _ in range(n)]
        await _rounds()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    return lambda: asyncio.run(main())


def _drained_enqueues(n: int) -> Run:
    import aioqueue

    async def main() -> None:
        queue = aioqueue.FIFOQueue(1)
        tasks = [asyncio.ensure_future(queue.enqueue(i)) for i in range(n)]
        await _rounds()
        for _ in range(n):
            await queue.dequeue()
        await asyncio.gather(*tasks)

    return lambda: asyncio.run(main())


def _typed_queues(n: int) -> Run:
    from aioqueue import sync

    def make() -> None:
        for _ in range(n):
            sync.FIFOQueue(50, ["float32", "int64"], [(4,), ()])

    return make


def _workers(n: int) -> Run:
    import aioqueue

    async def ended() -> None:
        raise aioqueue.OutOfRangeError("nothing to enqueue")

    async def main() -> None:
        queue = aioqueue.FIFOQueue(1)
        async with aioqueue.Coordinator() as coord:
            coord.start(aioqueue.QueueRunner(queue, [ended] * n))
            await coord.join()

    return lambda: asyncio.run(main())


def _registered_workers(n: int) -> Run:
    """Workers that wait at a queue before the coordinator hears of them."""
    import aioqueue

    async def main() -> None:
        queue = aioqueue.FIFOQueue(1)
        coord = aioqueue.Coordinator()
        tasks = [asyncio.ensure_future(queue.dequeue()) for _ in range(n)]
        await _rounds()
        for task in tasks:
            coord.register(task)
        queue.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        await coord.join()

    return lambda: asyncio.run(main())


def _batcher_calls(n: int) -> Run:
    import aioqueue

    async def answer(rows: list[Any]) -> list[Any]:
        return rows

    async def main() -> None:
        queue = aioqueue.FIFOQueue(8)
        async with aioqueue.Batcher(answer, 8, 0, queue=queue) as batcher:
            await asyncio.gather(*[batcher(i) for i in range(n)])

    return lambda: asyncio.run(main())


instructions("a dequeue that waits and is cancelled", SIZES, _cancelled_dequeues, at_most=200_000)
instructions("an enqueue that waits until it is let in", SIZES, _drained_enqueues, at_most=290_000)
instructions("a typed queue", SIZES, _typed_queues, at_most=460_000)
instructions("a task of a QueueRunner that ends at once", SIZES, _workers, at_most=350_000)
instructions(
    "a task that waits, registered with a coordinator", SIZES, _registered_workers, at_most=440_000
)
instructions("a call of a Batcher beyond its queue's room", SIZES, _batcher_calls, at_most=290_000)
