"""Drains of inputs: all that was taken from a source arrives, exactly once."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio.lowlevel
import pytest

from aioqueue import UndeliveredError, sync
from aioqueue.inputs import batch, broadcast, prepare, shuffle_batch
from tests.kit.functions import double
from tests.kit.pipelines import coordinated, joined, rest, take
from tests.kit.worlds import World


class Live:
    """A source that can be read only once, and records what was taken from it."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def __iter__(self) -> Iterator[int]:
        for number in itertools.count():
            self.taken.append(number)
            yield number


class AsyncLive:
    """The same for tasks."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in itertools.count():
            await anyio.lowlevel.checkpoint()
            self.taken.append(number)
            yield number


def same(number: int) -> int:
    return number


async def same_async(number: int) -> int:
    return number


def several(number: int) -> Iterator[int]:
    yield number
    yield -number


async def arrived(world: World, source: Any, function: Any, **options: Any) -> list[Any]:
    """What comes out of a `prepare` that is drained after some of it was taken."""
    queue = world.fifo(3)
    face: Any = getattr(queue, "face", queue)
    async with coordinated(world) as coord:
        coord.start(prepare(source, function, into=face, **options))
        some = [await queue.dequeue() for _ in range(20)]
        coord.drain()
        some += [element async for element in queue]
        await joined(coord)
        assert not coord.should_stop()
        return some
    raise AssertionError


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("live", [Live, AsyncLive])
@pytest.mark.parametrize("function", [same, same_async])
def test_what_is_in_flight_arrives(
    world: World, function: Any, live: type[Any], ordered: bool
) -> None:
    async def body() -> None:
        source = live()
        numbers = await arrived(world, source, function, workers=3, ordered=ordered)
        assert (numbers if ordered else sorted(numbers)) == source.taken

    world.run(body)


@pytest.mark.parametrize("function", [same, same_async])
def test_items_that_were_put_aside_arrive(world: World, function: Any) -> None:
    async def body() -> None:
        source = Live()
        found = await arrived(
            world,
            source,
            function,
            workers=3,
            concurrency_key=lambda number: number % 2,
            max_per_key=1,
        )
        assert sorted(found) == source.taken

    world.run(body)


def test_all_of_an_item_arrives(world: World) -> None:
    async def body() -> None:
        source = Live()
        found = await arrived(world, source, several, workers=2, ordered=True)
        assert found == [part for number in source.taken for part in (number, -number)]

    world.run(body)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_is_left")
def test_what_processes_have_arrives() -> None:
    source, queue = Live(), sync.FIFOQueue(3)
    with sync.Coordinator() as coord:
        coord.start(prepare(source, double, into=queue, workers=2, where="process"))
        found = [queue.dequeue() for _ in range(20)]
        coord.drain()
        found += queue
    assert sorted(found) == [2 * number for number in source.taken]


def test_a_queue_of_the_program(world: World) -> None:
    async def body() -> None:
        requests, replies = world.fifo(9), world.fifo(1)
        for number in range(5):
            await requests.enqueue(number)
        source: Any = getattr(requests, "face", requests)
        into: Any = getattr(replies, "face", replies)
        async with coordinated(world) as coord:
            coord.start(prepare(source, same, into=into, ordered=True))
            coord.drain()
            assert [number async for number in replies] == [0, 1, 2, 3, 4]

    world.run(body)


def test_batches_of_a_queue_of_the_program(world: World) -> None:
    """Which are moved, as many as are there, by a task."""

    async def body() -> None:
        requests = world.fifo(9, "int64", ())
        await requests.enqueue_many([0, 1, 2, 3, 4])
        source: Any = getattr(requests, "face", requests)
        async with coordinated(world) as coord:
            stream = shuffle_batch(source, 2, coord=coord, min_after_dequeue=3)
            coord.drain()
            assert numbers_of(await rest(stream)) == [0, 1, 2, 3, 4]

    world.run(body)


def numbers_of(batches: list[Any]) -> list[int]:
    return sorted(int(number) for one in batches for number in one.ravel())


@pytest.mark.parametrize("live", [Live, AsyncLive])
@pytest.mark.parametrize(
    "batched",
    [
        lambda source, coord: batch(source, 4, coord=coord),
        lambda source, coord: batch(source, 4, coord=coord, function=same, workers=2),
        lambda source, coord: shuffle_batch(source, 4, coord=coord, min_after_dequeue=10),
        lambda source, coord: shuffle_batch(
            source, 4, coord=coord, min_after_dequeue=10, function=same
        ),
        lambda source, coord: broadcast(batch(source, 4, coord=coord), 1, coord=coord)[0],
    ],
    ids=["batch", "batch prepared", "shuffle", "shuffle prepared", "broadcast"],
)
def test_batchers(world: World, batched: Callable[..., Any], live: type[Any]) -> None:
    async def body() -> None:
        source = live()
        async with coordinated(world) as coord:
            stream = batched(source, coord)
            batches = [await take(stream) for _ in range(3)]
            coord.drain()
            batches += await rest(stream)
            assert numbers_of(batches) == source.taken
            await joined(coord)
            assert not coord.should_stop()

    world.run(body)


def test_a_consumer_of_a_stream_continues_until_it_ends(world: World) -> None:
    async def body() -> None:
        source, sums = Live(), world.fifo(1)
        async with coordinated(world) as coord:
            stream = batch(source, 4, coord=coord)
            into: Any = getattr(sums, "face", sums)
            coord.start(prepare(stream, sum, into=into, workers=2))
            found = [await sums.dequeue() for _ in range(3)]
            coord.drain()
            found += [one async for one in sums]
            assert sum(found) == sum(source.taken)

    world.run(body)


def test_at_the_deadline_it_reports_what_is_in_flight(world: World) -> None:
    async def body() -> None:
        queue = world.fifo(1, name="one place")
        face: Any = getattr(queue, "face", queue)
        with pytest.raises(ExceptionGroup) as raised:
            async with coordinated(world) as coord:
                coord.start(prepare(Live(), same, into=face, workers=2, max_in_flight=3))
                await world.until(lambda: queue.statistics().waiting_enqueues == 2)
                coord.drain(0)
                await world.until(coord.should_stop)
        (error,) = raised.value.exceptions
        assert isinstance(error, UndeliveredError)
        assert error.elements == {"one place": 1}
        assert error.items == {"one place": 2}
        assert len(error.workers) == 2
        assert "up to 2 items on the way to 'one place'" in str(error)

    world.run(body)


def test_a_waiting_source_may_check_for_a_drain() -> None:
    """It may wait for long: only it knows how to end that."""
    coord = sync.Coordinator()
    queue = sync.FIFOQueue(1)

    def polls() -> Iterator[int]:
        yield 1
        while not coord.draining:
            coord.wait_for_stop(timeout=0.001)  # stands for a read that times out

    with coord:
        coord.start(prepare(polls(), same, into=queue))
        assert queue.dequeue() == 1
        coord.drain()
        assert list(queue) == []
