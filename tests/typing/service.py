"""A service that answers requests in batches: a queue of objects of one class."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import assert_type

import aioqueue


@dataclass
class Request:
    text: str
    answer: asyncio.Future[int] = field(default_factory=asyncio.Future)


async def serve(queue: aioqueue.FIFOQueue[Request]) -> int:
    served = 0
    async for batch in queue.batches(4):
        assert_type(batch, list[Request])
        for request in batch:
            request.answer.set_result(len(request.text))
        served += len(batch)
    return served


async def ask(queue: aioqueue.AsyncQueue[Request], text: str) -> int:
    request = Request(text)
    await queue.enqueue(request)
    return await request.answer


async def main() -> None:
    queue = aioqueue.FIFOQueue[Request](capacity=16)
    server = asyncio.create_task(serve(queue))
    answers = await asyncio.gather(*(ask(queue, "x" * length) for length in range(12)))
    assert answers == list(range(12))
    queue.close()
    assert await server == 12

    await queue_of_known_ones()


async def queue_of_known_ones() -> None:
    queue = aioqueue.FIFOQueue[Request](2)
    queue.enqueue_nowait(Request("a"))
    await queue.enqueue_many([Request("b")])
    first = await queue.dequeue()
    assert_type(first, Request)
    assert_type(queue.sync, aioqueue.sync.FIFOQueue[Request])
    assert_type(queue.sync.dequeue(timeout=1.0), Request)
    queue.close()
    async for request in queue:
        assert_type(request, Request)


asyncio.run(main())
