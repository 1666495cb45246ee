"""A script in the classic threading style, and a coroutine that empties what a thread fills."""

from __future__ import annotations

import asyncio
import threading
from typing import assert_type

import aioqueue
from aioqueue import sync


def longest(words: list[str]) -> str:
    """What is returned out of the block is what the function returns: nothing is swallowed."""
    queue = sync.FIFOQueue[str](4)
    pending = iter(words)
    runner = sync.QueueRunner(
        queue,
        lambda: queue.enqueue(next(pending)),
        queue_closed_exception_types=(StopIteration,),
    )
    with sync.Coordinator() as coord:
        threads = coord.start(runner)
        assert_type(threads, list[threading.Thread])
        return max(queue, key=len)


async def total(queue: aioqueue.AsyncQueue[int]) -> int:
    async with aioqueue.Coordinator() as coord:
        assert_type(coord.sync, sync.Coordinator)
        assert_type(coord.sync.aio, aioqueue.Coordinator)
        numbers = [number async for number in queue]
        return sum(numbers)


def fill(queue: sync.BlockingQueue[int]) -> None:
    for number in range(10):
        queue.enqueue(number, timeout=5)
    queue.close()


def main() -> None:
    assert longest(["a", "ccc", "bb"]) == "ccc"
    queue = sync.FIFOQueue[int](2)
    assert_type(queue.aio, aioqueue.FIFOQueue[int])
    thread = threading.Thread(target=fill, args=(queue,))
    thread.start()
    assert asyncio.run(total(queue.aio)) == 45
    thread.join()
    with sync.CancelScope(timeout=5):
        assert queue.is_closed()


main()
