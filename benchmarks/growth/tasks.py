"""`prepare` on tasks: calls at a time, rounds of the event loop, and instructions of an item."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from benchmarks.growth.rows import Run, count, instructions

_ITEMS = 3000
_WORKERS = 1000

Function = Callable[[int], Awaitable[int]]


async def _ordered(function: Function, items: int, workers: int) -> None:
    from aioqueue.inputs import numbers

    async for _ in numbers(items).prepare(function, workers=workers).batch(64):
        pass


async def _unordered(function: Function, items: int, workers: int) -> None:
    from aioqueue.inputs import numbers

    pipeline = numbers(items).prepare(function, workers=workers, ordered=False)
    async for _ in pipeline.batch(64):
        pass


async def _into_queue(function: Function, items: int, workers: int) -> None:
    await _from(range(items), function, workers)


async def _from_pages(function: Function, items: int, workers: int) -> None:
    async def pages() -> AsyncIterator[int]:
        for page in range(0, items, 1000):
            await asyncio.sleep(0)
            for number in range(page, min(page + 1000, items)):
                yield number

    await _from(pages(), function, workers)


async def _from(source: Any, function: Function, workers: int) -> None:
    import aioqueue
    from aioqueue.inputs import prepare

    queue = aioqueue.FIFOQueue(1000)
    async with aioqueue.Coordinator() as coord:
        coord.start(prepare(source, function, into=queue, workers=workers, where="task"))
        async for _ in queue.batches(64):
            pass


Way = Callable[[Function, int, int], Awaitable[None]]


async def _waits(number: int) -> int:
    await asyncio.sleep(0)
    return number


async def _never_waits(number: int) -> int:
    return number


def _calls_at_a_time(way: Way, workers: int) -> int:
    """Return the most calls at a time, of a function that takes 20 rounds."""
    now = most = 0

    async def function(number: int) -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(20):
            await asyncio.sleep(0)
        now -= 1
        return number

    asyncio.run(way(function, _ITEMS, workers))  # type: ignore[arg-type]  # a coroutine function
    return most


def _rounds(way: Way, function: Function, workers: int, items: int) -> int:
    """Return the rounds of the event loop that items take."""
    rounds = 0

    async def main() -> None:
        async def tick() -> None:
            nonlocal rounds
            while True:
                rounds += 1
                await asyncio.sleep(0)

        ticker = asyncio.create_task(tick())
        await way(function, items, workers)
        ticker.cancel()

    asyncio.run(main())
    return rounds


def _items(way: Way, function: Function, workers: int, items: int) -> Run:
    return lambda: asyncio.run(way(function, items, workers))  # type: ignore[arg-type]  # as above


_WAYS: dict[str, Way] = {
    "in order": _ordered,
    "without order": _unordered,
    "into a queue": _into_queue,
    "of a source of pages": _from_pages,
}

for _how, _way in _WAYS.items():
    count(
        f"calls at a time per worker, `prepare` on n tasks {_how}",
        "calls",
        (20, 200, 1000),
        partial(_calls_at_a_time, _way),
        at_least=1.0,
    )
    count(
        f"an item by `prepare` on {_WORKERS:,} tasks {_how}",
        "rounds of the event loop",
        (2000, 4000, 8000),
        partial(_rounds, _way, _waits, _WORKERS),
        at_most=1 / 40,
    )
    count(
        f"an item by `prepare` {_how} on 100 tasks whose function never waits",
        "rounds of the event loop",
        (2000, 6000, 18_000),
        partial(_rounds, _way, _never_waits, 100),
        at_least=1 / 64,
    )
for _how in ("in order", "without order"):
    # The consumer takes one batch of 64 a round.
    count(
        f"an item by `prepare` on 100 tasks {_how}",
        "rounds of the event loop",
        (4000, 8000, 16_000),
        partial(_rounds, _WAYS[_how], _waits, 100),
        at_most=1 / 50,
    )
for _how in ("in order", "into a queue"):
    instructions(
        f"an item by `prepare` on four tasks {_how}",
        (2000, 4000, 8000),
        partial(_items, _WAYS[_how], _waits, 4),
        at_most=62_000,
    )
