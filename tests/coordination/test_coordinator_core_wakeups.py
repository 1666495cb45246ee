"""A stop wakes workers that are blocked in a queue call of either face, or in a Batcher.

Every call that can wait, in every kind of worker: the block is left, and nobody waits out a grace
period (which is longer than the test may take).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.errors import CancelledError
from tests.kit.worlds import PATIENCE, AsyncioWorld, TaskWorld, core_of, spin_until

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "dequeue": lambda empty, full: empty.dequeue(),
    "dequeue_many": lambda empty, full: empty.dequeue_many(2),
    "dequeue_up_to": lambda empty, full: empty.dequeue_up_to(2, PATIENCE),
    "enqueue": lambda empty, full: full.enqueue(2),
    "enqueue_many": lambda empty, full: full.enqueue_many([2, 3]),
}


def waiting(*queues: Any) -> int:
    return sum(len(core_of(queue).machine.waiting()) for queue in queues)


@pytest.mark.parametrize(
    "worker", ["runner", "looper", "registered", "registered late", "registered last", "given"]
)
@pytest.mark.parametrize("call", CALLS)
def test_a_thread(call: str, worker: str) -> None:
    empty, full = sync.FIFOQueue(1), sync.FIFOQueue(1)
    full.enqueue(1)
    raised: list[BaseException] = []

    def op() -> None:
        try:
            CALLS[call](empty, full)
        except CancelledError as error:
            raised.append(error)
            if "runner" in worker or "looper" in worker:
                raise

    thread = threading.Thread(target=op)
    with sync.Coordinator() as coord:
        if worker == "runner":
            [thread] = coord.start(sync.QueueRunner(sync.FIFOQueue(1), [op]))
        elif worker == "looper":
            thread = sync.LooperThread.loop(coord, None, op)
        else:
            if worker == "registered":
                coord.register(thread)
            thread.start()
        spin_until(lambda: waiting(empty, full) == 1 or not thread.is_alive())
        if worker == "registered late":
            coord.register(thread)
        if worker in ("given", "registered last"):
            coord.request_stop()
        if worker == "registered last":
            coord.register(thread)
            thread.join(PATIENCE)  # no second stop is needed
            assert not thread.is_alive()
        if worker == "given":
            coord.join([thread])
    assert not thread.is_alive()
    assert "stop of its coordinator" in str(raised[0])
    assert (empty.size(), full.size(), waiting(empty, full)) == (0, 1, 0)


def test_a_thread_that_waits_for_a_batcher() -> None:
    has_begun, go = threading.Event(), threading.Event()

    def function(values: list[int]) -> list[int]:
        has_begun.set()
        go.wait(PATIENCE)
        return values

    with sync.Batcher(function) as batcher:
        with sync.Coordinator() as coord:
            coord.start(sync.QueueRunner(sync.FIFOQueue(1), [lambda: batcher(1)]))
            assert has_begun.wait(PATIENCE)
        go.set()


@pytest.mark.parametrize("call", CALLS)
def test_a_looper_task(task_world: TaskWorld, call: str) -> None:
    async def body() -> None:
        empty, full = aioqueue.FIFOQueue(1), aioqueue.FIFOQueue(1)
        await full.enqueue(1)

        async def target() -> None:
            await CALLS[call](empty, full)

        async with aioqueue.Coordinator() as coord:
            coord.start(aioqueue.LooperTask(None, target))
            await task_world.until(lambda: waiting(empty, full) == 1)
        assert (empty.size(), full.size(), waiting(empty, full)) == (0, 1, 0)

    task_world.run(body)


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "late"])
def test_a_task_that_is_registered(loop_world: AsyncioWorld, is_late: bool) -> None:
    async def body() -> None:
        queue = aioqueue.FIFOQueue(1)
        async with aioqueue.Coordinator() as coord:
            task = asyncio.create_task(queue.dequeue())
            if not is_late:
                coord.register(task)
            await loop_world.until(lambda: waiting(queue) == 1)
            if is_late:
                coord.register(task)
        assert isinstance(task.exception(), CancelledError)

    loop_world.run(body)


def test_tasks_that_take_turns(loop_world: AsyncioWorld) -> None:
    """Neither waits for long: each gets its element in the next round of the loop."""

    async def body() -> None:
        queue = aioqueue.FIFOQueue(1)
        late: list[int] = []

        async def put() -> None:
            for element in count():
                await queue.enqueue(element)

        async def take(coord: aioqueue.Coordinator) -> None:
            while True:
                element = await queue.dequeue()
                if coord.should_stop():
                    late.append(element)

        async with aioqueue.Coordinator() as coord:
            tasks = [asyncio.create_task(put()), asyncio.create_task(take(coord))]
            for task in tasks:
                coord.register(task)
            await loop_world.until(lambda: queue.statistics().dequeued > 20)
        for task in tasks:
            assert "the stop of the coordinator" in str(task.exception())
        assert len(late) < 5

    loop_world.run(body)


def test_a_call_that_would_wait_after_the_stop(loop_world: AsyncioWorld) -> None:
    async def body() -> None:
        queue: aioqueue.FIFOQueue[int] = aioqueue.FIFOQueue(1)
        coord = aioqueue.Coordinator()
        go = asyncio.Event()

        async def take() -> int:
            await go.wait()
            return await queue.dequeue()

        task = asyncio.create_task(take())
        coord.register(task)
        coord.request_stop()
        go.set()
        await loop_world.until(task.done)
        assert "the stop of the coordinator" in str(task.exception())

    loop_world.run(body)


def test_a_looper_task_that_waits_for_a_batcher(task_world: TaskWorld) -> None:
    async def body() -> None:
        has_begun: list[int] = []

        async def function(values: list[int]) -> list[int]:
            has_begun.extend(values)
            await queue.dequeue()
            return values

        queue = aioqueue.FIFOQueue(1)
        async with aioqueue.Batcher(function) as batcher:
            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.LooperTask(None, batcher, [1]))
                await task_world.until(lambda: bool(has_begun))
            await queue.enqueue(1)

    task_world.run(body)


def test_after_clear_stop_calls_wait_again() -> None:
    queue, coord = sync.FIFOQueue(1), sync.Coordinator()
    taken: list[int] = []
    thread = threading.Thread(target=lambda: taken.append(queue.dequeue()))
    coord.register(thread)
    coord.request_stop()
    coord.clear_stop()
    thread.start()
    spin_until(lambda: waiting(queue) == 1)
    queue.enqueue(1)
    thread.join(PATIENCE)
    assert taken == [1]
