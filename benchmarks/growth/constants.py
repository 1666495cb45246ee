"""What one more call, worker or queue costs, with many of them at once.

The bounds in instructions leave two fifths for other builds of Python. Those that compare with
`asyncio.Queue` leave less: both run in the same build.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.growth.rows import Run, instructions

SIZES = (100, 300, 1_000)


async def _rounds(n: int = 8) -> None:
    """Let calls begin that have let others run before they wait."""
    for _ in range(n):
        await asyncio.sleep(0)


def _fifo() -> tuple[Any, Any]:
    """Return the functions that enqueue and dequeue, of a queue of one element."""
    import aioqueue

    queue = aioqueue.FIFOQueue(1)
    return queue.enqueue, queue.dequeue


def _asyncio_queue() -> tuple[Any, Any]:
    queue: asyncio.Queue[Any] = asyncio.Queue(1)
    return queue.put, queue.get


Queues = Callable[[], tuple[Any, Any]]


def _cancelled_dequeues(make: Queues, n: int) -> Run:
    async def main() -> None:
        _, dequeue = make()
        tasks = [asyncio.ensure_future(dequeue()) for _ in range(n)]
        await _rounds()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    return lambda: asyncio.run(main())


def _drained_enqueues(make: Queues, n: int) -> Run:
    async def main() -> None:
        enqueue, dequeue = make()
        tasks = [asyncio.ensure_future(enqueue(i)) for i in range(n)]
        await _rounds()
        for _ in range(n):
            await dequeue()
        await asyncio.gather(*tasks)

    return lambda: asyncio.run(main())


def _served_dequeues(make: Queues, n: int) -> Run:
    """All of them wait before the first element comes."""

    async def main() -> None:
        enqueue, dequeue = make()
        tasks = [asyncio.ensure_future(dequeue()) for _ in range(n)]
        await _rounds()
        for i in range(n):
            await enqueue(i)
        await asyncio.gather(*tasks)

    return lambda: asyncio.run(main())


def _served_consumer(make: Queues, n: int) -> Run:
    """One consumer waits anew before each element, for the two rounds that its producer needs."""

    async def main() -> None:
        enqueue, dequeue = make()

        async def consume() -> None:
            for _ in range(n):
                await dequeue()

        consumer = asyncio.ensure_future(consume())
        for i in range(n):
            await _rounds(2)
            await enqueue(i)
        await consumer

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


def _beside_asyncio(
    title: str, work: Callable[[Queues, int], Run], *, at_most: float, times: float
) -> None:
    peer = ("asyncio.Queue", partial(work, _asyncio_queue))
    instructions(title, SIZES, partial(work, _fifo), at_most=at_most, peer=peer, times=times)


_beside_asyncio(
    "a dequeue that waits and is cancelled", _cancelled_dequeues, at_most=172_000, times=2
)
_beside_asyncio(
    "an enqueue that waits until it is let in", _drained_enqueues, at_most=275_000, times=2
)
_beside_asyncio(
    "a dequeue that waits in line until it is served", _served_dequeues, at_most=195_000, times=1.6
)
_beside_asyncio(
    "a consumer that waits for each element", _served_consumer, at_most=180_000, times=2
)
instructions("a typed queue", SIZES, _typed_queues, at_most=460_000)
instructions("a task of a QueueRunner that ends at once", SIZES, _workers, at_most=350_000)
instructions(
    "a task that waits, registered with a coordinator", SIZES, _registered_workers, at_most=440_000
)
instructions("a call of a Batcher beyond its queue's room", SIZES, _batcher_calls, at_most=290_000)
