"""Drains: sources end, items in flight are delivered, and the rest is reported."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import aioqueue
from aioqueue import InvalidArgumentError, QueueClosedError, UndeliveredError, inputs, sync
from aioqueue.errors import counted
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate
from tests.kit.pipelines import coordinated, joined
from tests.kit.worlds import PATIENCE, AwaitedQueue, ThreadWorld, World, spin_until


def face_of(queue: Any) -> Any:
    return queue.face if isinstance(queue, AwaitedQueue) else queue


def runner_of(world: World, queue: Any, op: Any, **options: Any) -> Any:
    """A runner of the face that fits the world."""
    kind = sync.QueueRunner if isinstance(world, ThreadWorld) else aioqueue.QueueRunner
    return kind(face_of(queue), op, **options)


def putting(world: World, queue: Any, numbers: Iterator[int], made: list[int]) -> Any:
    """An op that enqueues the next number, and notes that it was made."""

    def put() -> None:
        made.append(next(numbers))
        queue.sync.enqueue(made[-1])

    async def put_async() -> None:
        made.append(next(numbers))
        await queue.enqueue(made[-1])

    return put if isinstance(world, ThreadWorld) else put_async


def moving(world: World, source: Any, queue: Any) -> Any:
    """An op that moves an element."""

    def move() -> None:
        queue.sync.enqueue(source.sync.dequeue())

    async def move_async() -> None:
        await queue.enqueue(await source.dequeue())

    return move if isinstance(world, ThreadWorld) else move_async


async def rest_of(queue: Any) -> list[Any]:
    return [element async for element in queue]


def no_drain_waits() -> bool:
    return not [one for one in threading.enumerate() if one.name == "aioqueue-drain"]


def test_items_in_flight_are_delivered(world: World) -> None:
    async def body() -> None:
        queue, made = world.fifo(3), list[int]()
        async with coordinated(world) as coord:
            coord.start(runner_of(world, queue, putting(world, queue, itertools.count(), made)))
            taken = [await queue.dequeue() for _ in range(5)]
            assert not coord.draining
            coord.drain(60)
            assert coord.draining
            taken += await rest_of(queue)
            assert taken == made
            await joined(coord)
            assert not coord.should_stop()

    world.run(body)


def test_the_end_passes_through_a_chain(world: World) -> None:
    """A runner with a source queue continues until that queue ends."""

    async def body() -> None:
        one, two, three, made = world.fifo(4), world.fifo(2), world.fifo(1), list[int]()
        async with coordinated(world) as coord:
            coord.start(runner_of(world, three, moving(world, two, three), source=face_of(two)))
            coord.start(runner_of(world, two, moving(world, one, two), source=face_of(one)))
            coord.start(runner_of(world, one, putting(world, one, itertools.count(), made)))
            await world.until(lambda: len(made) > 5)
            coord.drain()
            assert await rest_of(three) == made
            await joined(coord)

    world.run(body)


def test_a_queue_that_no_runner_fills_is_closed(world: World) -> None:
    async def body() -> None:
        requests, replies = world.fifo(9), world.fifo(9)
        await requests.enqueue(1)
        await requests.enqueue(2)
        async with coordinated(world) as coord:
            move = moving(world, requests, replies)
            coord.start(runner_of(world, replies, move, source=face_of(requests)))
            coord.drain()
            with pytest.raises(QueueClosedError):
                await requests.enqueue(3)
            assert await rest_of(replies) == [1, 2]

    world.run(body)


def test_what_is_started_later_ends_at_once(world: World) -> None:
    async def body() -> None:
        queue, made = world.fifo(9), list[int]()
        async with coordinated(world) as coord:
            coord.drain()
            coord.start(runner_of(world, queue, putting(world, queue, itertools.count(), made)))
            assert await rest_of(queue) == made == []

    world.run(body)


def test_at_the_deadline_it_stops_and_reports_what_is_left(world: World) -> None:
    """The runner did not know the source queue of its worker."""

    async def body() -> None:
        one = world.fifo(8, name="one")
        two, made = world.fifo(1, name="two"), list[int]()
        with pytest.raises(ExceptionGroup) as raised:
            async with coordinated(world) as coord:
                coord.start(runner_of(world, one, putting(world, one, itertools.count(), made)))
                await world.until(lambda: len(made) >= 9)
                coord.start(runner_of(world, two, moving(world, one, two)))
                await two.dequeue()
                coord.drain()
                await rest_of(two)
                await one.dequeue()  # a place for what the other worker may have made
                await world.until(one.is_closed)
                coord.drain(0)
                await world.until(coord.should_stop)
        (error,) = raised.value.exceptions
        assert isinstance(error, UndeliveredError)
        left = len(await rest_of(one))
        assert left > 1
        assert error.elements == {"one": left}
        assert error.workers == ()
        assert f"{left} elements in 'one'" in str(error)

    world.run(body)


def test_at_the_deadline_it_names_running_workers(world: World) -> None:
    async def body() -> None:
        queue, gate = world.fifo(4, name="slow"), Gate()

        def wait() -> None:
            gate.wait_blocking()

        async def wait_async() -> None:
            await gate.wait(current_waker())

        is_threads = isinstance(world, ThreadWorld)
        with pytest.raises(ExceptionGroup) as raised:
            async with coordinated(world) as coord:
                coord.start(runner_of(world, queue, wait if is_threads else wait_async))
                coord.drain(0)
                await world.until(coord.should_stop)
                gate.open()
        (error,) = raised.value.exceptions
        assert isinstance(error, UndeliveredError)
        (name,) = error.workers
        assert name == ("aioqueue-wait-0" if is_threads else "aioqueue-wait_async-0")
        assert f"\n  {name}" in str(error)
        assert error.items == {}
        assert "on the way" not in str(error)

    world.run(body)


def test_at_the_deadline_it_reports_items_in_flight() -> None:
    begun, go = threading.Event(), threading.Event()

    def make(number: int) -> int:
        begun.set()
        go.wait(PATIENCE)
        return number

    queue = sync.FIFOQueue(4, name="made")
    with pytest.raises(ExceptionGroup) as raised, sync.Coordinator() as coord:
        coord.start(inputs.prepare(range(9), make, into=queue, workers=1))
        assert begun.wait(PATIENCE)
        coord.drain(0)
        assert coord.wait_for_stop(timeout=PATIENCE)
        go.set()
    (error,) = raised.value.exceptions
    assert isinstance(error, UndeliveredError)
    expected = f"up to {counted(error.items['made'], 'item')} on the way to 'made'"
    assert f"0 s: {expected}, " in str(error)


def test_at_the_deadline_nothing_happens_if_all_was_delivered(world: World) -> None:
    async def body() -> None:
        queue, made = world.fifo(9), list[int]()
        async with coordinated(world) as coord:
            coord.start(runner_of(world, queue, putting(world, queue, itertools.count(), made)))
            coord.drain()
            assert await rest_of(queue) == made
            await joined(coord)
            coord.drain(0)
            await world.until(no_drain_waits)
            assert not coord.should_stop()

    world.run(body)


def test_a_stop_ends_it(world: World) -> None:
    async def body() -> None:
        async with coordinated(world) as coord:
            coord.drain(3600)
            assert not no_drain_waits()
        await world.until(no_drain_waits)

    world.run(body)


def test_a_reused_coordinator_is_not_drained() -> None:
    coord = sync.Coordinator()
    coord.drain(3600)
    coord.request_stop()
    coord.join()
    spin_until(no_drain_waits)
    coord.clear_stop()
    assert not coord.draining


@pytest.mark.parametrize("deadline", [-1, "soon", float("nan")])
def test_deadlines_that_are_refused(deadline: Any) -> None:
    coord = sync.Coordinator()
    with pytest.raises(InvalidArgumentError, match="deadline"):
        coord.drain(deadline)
    assert not coord.draining


def test_sources_that_are_refused() -> None:
    queue = sync.FIFOQueue(1)
    with pytest.raises(InvalidArgumentError, match="source"):
        sync.QueueRunner(queue, print, source=[1])  # type: ignore[arg-type]
