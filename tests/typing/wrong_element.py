"""Puts into a queue of requests what is none, and takes out of it what it does not hold."""

from __future__ import annotations

from dataclasses import dataclass

import aioqueue
from aioqueue import sync


@dataclass
class Request:
    text: str


async def serve(queue: aioqueue.FIFOQueue[Request]) -> None:
    await queue.enqueue(Request("right"))
    await queue.enqueue("wrong")  # WRONG
    await queue.enqueue_many(["wrong"])  # WRONG
    async for batch in queue.batches(2):
        for request in batch:
            print(request.txt)  # WRONG


def fill(queue: sync.BlockingQueue[Request]) -> None:
    queue.enqueue(Request("right"), timeout=1)
    queue.enqueue(1)  # WRONG
    queue.enqueue_nowait(1)  # WRONG


async def start() -> None:
    await serve(aioqueue.FIFOQueue(4))
    await serve(aioqueue.FIFOQueue[int](4))  # WRONG
