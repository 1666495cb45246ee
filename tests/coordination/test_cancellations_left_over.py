"""Only requests since the start of a call count, not leftovers of earlier calls.

Everything that calls coroutines of the user again and again is tried with everything that may be
left behind: a cancellation that an earlier call has swallowed, or one of a task group of Python
3.11 whose child failed. Then a later call sees a stray cancellation, of something that it awaits:
that is a failure, and is reported. Or somebody does cancel the task: that is no failure.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import aioqueue
from aioqueue import OutOfRangeError
from aioqueue.inputs import Retry, from_iterable, numbers
from tests.kit.worlds import PATIENCE, AsyncioWorld

CALLS = 8


async def swallow() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        pass


async def failing_group() -> None:
    """The group cancels its task. In Python 3.11 it forgets to take that back."""

    async def fail() -> None:
        raise ValueError

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            await asyncio.Event().wait()
    except* ValueError:
        pass


async def expired_timeout() -> None:
    try:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    except TimeoutError:
        pass


async def nothing() -> None:
    """Leave nothing behind."""


LEFT: dict[str, Callable[[], Awaitable[None]]] = {
    "nothing": nothing,
    "swallowed": swallow,
    "group": failing_group,
    "timeout": expired_timeout,
}


async def stray() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


class Calls:
    """The script of the calls of one function.

    Args:
        left: by the number of a call, what it leaves behind.
        ends: the number of the call that ends it all.
        how: "stray", or "cancelled" (somebody cancels the task).
    """

    def __init__(self, left: dict[int, str], ends: int, how: str) -> None:
        self.left, self.ends, self.how = left, ends, how
        self.number = -1

    async def __call__(self) -> int:
        self.number += 1
        if self.number in self.left:
            await LEFT[self.left[self.number]]()
        if self.number == self.ends:
            if self.how == "stray":
                await stray()
            else:
                task = asyncio.current_task()
                assert task is not None
                asyncio.get_running_loop().call_soon(task.cancel)
                await asyncio.Event().wait()
        return self.number


Place = Callable[[Calls], Awaitable[list[Any]]]


async def runner(calls: Calls) -> list[Any]:
    queue = aioqueue.FIFOQueue[int](CALLS)

    async def op() -> None:
        await queue.enqueue(await calls())

    async with aioqueue.Coordinator() as coord:
        coord.start(aioqueue.QueueRunner(queue, [op]))
        return [number async for number in queue]


async def runner_alone(calls: Calls) -> list[Any]:
    queue = aioqueue.FIFOQueue[int](CALLS)

    async def op() -> None:
        await queue.enqueue(await calls())

    await aioqueue.QueueRunner(queue, [op]).run()
    return [number async for number in queue]


async def looper(calls: Calls) -> list[Any]:
    async with aioqueue.Coordinator() as coord:
        coord.start(aioqueue.LooperTask(None, calls))
        while not all(not worker.is_alive() for worker in coord._core._known()):
            await asyncio.sleep(0)
    return list(range(calls.number))


async def prepared(calls: Calls) -> list[Any]:
    async def function(number: int) -> int:
        return await calls()

    return [number async for number in numbers(CALLS).prepare(function, workers=1)]


async def prepared_by_key(calls: Calls) -> list[Any]:
    async def function(number: int) -> int:
        return await calls()

    pipeline = numbers(CALLS).prepare(
        function, workers=1, concurrency_key=lambda number: number % 2, max_per_key=1
    )
    return [number async for number in pipeline]


async def source(calls: Calls) -> list[Any]:
    return [number async for number in from_iterable(_source(calls)).batch(1)]


async def source_of_prepare(calls: Calls) -> list[Any]:
    async def function(number: int) -> int:
        return number

    return [number async for number in from_iterable(_source(calls)).prepare(function, workers=2)]


async def source_of_threads(calls: Calls) -> list[Any]:
    pipeline = from_iterable(_source(calls)).prepare(lambda number: number, workers=2)
    return [number async for number in pipeline]


async def _source(calls: Calls) -> AsyncIterator[int]:
    for _ in range(CALLS):
        yield await calls()


async def batcher(calls: Calls) -> list[Any]:
    async def function(values: list[int]) -> list[int]:
        await calls()
        return values

    async with aioqueue.Batcher(function, max_batch=1) as batched:
        return [await batched(number) for number in range(CALLS)]


PLACES: dict[str, Place] = {
    place.__name__: place
    for place in (
        runner,
        runner_alone,
        looper,
        prepared,
        prepared_by_key,
        source,
        source_of_prepare,
        source_of_threads,
        batcher,
    )
}


def plain_factory(loop: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coro, loop=loop, **options)


def check(world: AsyncioWorld, place: str, calls: Calls, factory: Any = None) -> None:
    """Check that a stray cancellation is a failure, and that a requested one is not."""

    async def body() -> None:
        asyncio.get_running_loop().set_task_factory(factory)

        async def within() -> list[Any]:
            async with asyncio.timeout(PATIENCE):
                return await PLACES[place](calls)

        task = asyncio.create_task(within())
        await asyncio.wait([task])
        about = f"{place}: {calls.left}, {calls.how} in {calls.ends}"
        raised = None if task.cancelled() else task.exception()
        if calls.how == "stray":
            assert raised is not None, f"{about}: ended quietly"
            expected = ["CancelledError", "was cancelled"]
            if sys.version_info >= (3, 13):
                # The group repeats what was swallowed before, and a wait between two calls gets it.
                expected.append("stopped from outside")
            assert any(text in _text(raised) for text in expected), about
        else:
            assert "but was not cancelled" not in _text(raised), about
            assert "awaited was" not in _text(raised), about

    world.run(body)


def _text(error: BaseException | None) -> str:
    text = ""
    while error is not None:
        text += repr(error)
        error = error.__cause__
    return text


@pytest.mark.parametrize("factory", [None, plain_factory], ids=["usual", "factory"])
@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("place", PLACES)
def test_leftovers_of_earlier_calls(
    loop_world: AsyncioWorld, place: str, left: str, factory: Any
) -> None:
    for how in ("stray", "cancelled"):
        if how == "cancelled" and place in ("source", "source_of_threads", "batcher"):
            continue  # that task is the reader's, or a helper's
        check(loop_world, place, Calls({2: left}, 5, how), factory)


@pytest.mark.parametrize("left", LEFT)
def test_a_worker_is_started_again_after_a_stray_one(loop_world: AsyncioWorld, left: str) -> None:
    async def body() -> None:
        calls, queue = Calls({2: left}, 5, "stray"), aioqueue.FIFOQueue[int](CALLS)

        async def op() -> None:
            number = await calls()
            if number == CALLS:
                raise OutOfRangeError("the end")
            await queue.enqueue(number)

        async with aioqueue.Coordinator() as coord:
            coord.start(aioqueue.QueueRunner(queue, [op], restart=aioqueue.Restart(times=1)))
            assert [number async for number in queue] == [0, 1, 2, 3, 4, 6, 7]

    loop_world.run(body)


@pytest.mark.parametrize("left", LEFT)
def test_an_item_is_tried_again_after_a_stray_one(loop_world: AsyncioWorld, left: str) -> None:
    async def body() -> None:
        calls = Calls({2: left}, 5, "stray")

        async def function(number: int) -> int:
            await calls()
            return number

        pipeline = numbers(CALLS).prepare(function, workers=1, on_error=Retry(2))
        assert [number async for number in pipeline] == list(range(CALLS))

    loop_world.run(body)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="no group repeats a cancellation")
@pytest.mark.parametrize("factory", [None, plain_factory], ids=["usual", "factory"])
@pytest.mark.parametrize("is_left", [False, True])
def test_a_request_that_a_group_repeats_still_counts(
    loop_world: AsyncioWorld, is_left: bool, factory: Any
) -> None:
    """Other code cancels a worker in a group, whose child then fails in its clean-up."""

    async def body() -> None:
        asyncio.get_running_loop().set_task_factory(factory)
        queue = aioqueue.FIFOQueue[int](CALLS)

        async def child() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise ValueError

        async def op() -> None:
            if is_left and queue.statistics().enqueued == 0:
                await swallow()
                await queue.enqueue(1)
                return
            task = asyncio.current_task()
            assert task is not None
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(child())
                    await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.Event().wait()
            except* ValueError:
                pass
            await asyncio.Event().wait()  # the request comes again

        runner = aioqueue.QueueRunner(queue, [op])
        async with asyncio.timeout(PATIENCE), aioqueue.Coordinator() as coord:
            coord.start(runner)
            await queue.wait_closed()
            await coord.join()
        assert runner.exceptions_raised == []

    loop_world.run(body)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_many(loop_world: AsyncioWorld, place: str) -> None:
    """Any number of calls leaves anything behind."""
    rng = random.Random(place)
    for factory, _ in itertools.product((None, plain_factory), range(60)):
        ends = rng.randrange(CALLS)
        left = {number: rng.choice(list(LEFT)) for number in range(ends) if rng.random() < 0.7}
        check(loop_world, place, Calls(left, ends, "stray"), factory)
