"""A cancellation counts as requested if the request came after the start of the call.

A task group of Python 3.11 whose child fails while it is left, and a task that swallows a
cancellation, leave a count behind. No caller has requested it: a stray cancellation after it is a
failure, as it is without. And a request that comes just before a block is left is felt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import aioqueue
from aioqueue import inputs
from tests.kit.worlds import AsyncioWorld


async def leave_by_a_group() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise OSError

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
    except* OSError:
        pass


async def leave_by_a_timeout() -> None:
    """Swallow a request of the task's own scope, and do not take it back."""
    try:
        async with asyncio.timeout(0):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    except TimeoutError:
        pass


async def leave_nothing() -> None:
    await asyncio.sleep(0)


LEFT: dict[str, Callable[[], Awaitable[None]]] = {
    "nothing": leave_nothing,
    "group": leave_by_a_group,
    "timeout": leave_by_a_timeout,
}


async def stray() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


def work(leave: Callable[[], Awaitable[None]]) -> Callable[[int], Awaitable[int]]:
    async def prepared(number: int) -> int:
        await leave()
        if number == 3:
            await stray()
        return number

    return prepared


async def by_a_runner(prepared: Callable[[int], Awaitable[int]]) -> list[int]:
    queue, numbers = aioqueue.FIFOQueue(10), iter(range(8))

    async def op() -> None:
        await queue.enqueue(await prepared(next(numbers)))

    async with aioqueue.Coordinator() as coord:
        coord.start(aioqueue.QueueRunner(queue, [op]))
        await coord.join()
    return []


async def by_a_looper(prepared: Callable[[int], Awaitable[int]]) -> list[int]:
    numbers = iter(range(8))

    async def target() -> None:
        await prepared(next(numbers))

    async with aioqueue.Coordinator() as coord:
        coord.start(aioqueue.LooperTask(None, target))
        await coord.join()
    return []


async def by_a_pipeline(prepared: Callable[[int], Awaitable[int]]) -> list[int]:
    return [one async for one in inputs.numbers(8).prepare(prepared, workers=1)]


async def by_a_source(prepared: Callable[[int], Awaitable[int]]) -> list[int]:
    async def items() -> Any:
        for number in range(8):
            yield await prepared(number)

    queue = aioqueue.FIFOQueue(10)
    async with aioqueue.Coordinator() as coord:
        coord.start(inputs.prepare(items(), lambda item: item, into=queue))
        await coord.join()
    return []


async def by_a_batcher(prepared: Callable[[int], Awaitable[int]]) -> list[int]:
    async def function(values: list[int]) -> list[int]:
        return [await prepared(value) for value in values]

    async with aioqueue.Batcher(function, max_wait=0) as batcher:
        return [await batcher(number) for number in range(8)]


@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize(
    "way", [by_a_runner, by_a_looper, by_a_pipeline, by_a_source, by_a_batcher]
)
def test_a_stray_cancellation_is_a_failure(way: Callable[..., Any], left: str) -> None:
    with pytest.raises((ExceptionGroup, RuntimeError)) as caught:
        AsyncioWorld().run(lambda: way(work(LEFT[left])))
    assert "cancel" in repr(caught.value).lower()
    assert "stopped from outside" not in str(caught.value)


@pytest.mark.parametrize("left", LEFT)
def test_a_request_is_no_failure(left: str) -> None:
    async def body() -> None:
        async def op() -> None:
            await LEFT[left]()
            is_there.set()
            await asyncio.get_running_loop().create_future()

        is_there = asyncio.Event()
        async with aioqueue.Coordinator() as coord:
            coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(3), [op]))
            await is_there.wait()
            [worker] = [one for one in asyncio.all_tasks() if one.get_name() == "aioqueue-op-0"]
            worker.cancel()
            await coord.join()
            assert not coord.should_stop()

    AsyncioWorld().run(body)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def leave_a_block() -> None:
    async with aioqueue.Coordinator() as coord:
        coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [forever]))
        await asyncio.sleep(0)
        ask()


async def leave_an_empty_block() -> None:
    async with aioqueue.Coordinator():
        ask()


async def leave_a_batcher() -> None:
    async def function(values: list[int]) -> list[int]:
        return values

    async with aioqueue.Batcher(function) as batcher:
        await batcher(1)
        ask()


async def leave_a_pipeline() -> None:
    async def prepared(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async with inputs.numbers(8).prepare(prepared, workers=1).epochs(1) as epochs:
        async for epoch in epochs:
            async for _ in epoch:
                break
            break
        ask()


def ask() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@pytest.mark.parametrize(
    "leave", [leave_a_block, leave_an_empty_block, leave_a_batcher, leave_a_pipeline]
)
@pytest.mark.parametrize("has_left", [False, True], ids=["fresh", "left over"])
def test_a_request_just_before_the_end_of_a_block_is_delivered_once(
    loop_world: AsyncioWorld, leave: Callable[[], Awaitable[None]], has_left: bool
) -> None:
    felt: list[str] = []

    async def program() -> None:
        if has_left:
            await leave_by_a_group()
        try:
            await leave()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            felt.append("once")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            felt.append("goes on")

    async def body() -> None:
        await asyncio.create_task(program())

    loop_world.run(body)
    assert felt == ["once", "goes on"]
