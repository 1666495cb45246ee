"""Changing the capacity of a queue in use: waiting enqueues proceed, and elements stay inside."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from aioqueue import sync
from aioqueue.errors import InvalidArgumentError, QueueFull
from tests.kit.worlds import AwaitedQueue, Kind, World, core_of


def resize(queue: Any, capacity: int | None) -> None:
    (queue.face if isinstance(queue, AwaitedQueue) else queue).capacity = capacity


async def test_a_larger_one_lets_enqueues_in_as_they_came(world: World) -> None:
    queue = world.fifo(1)
    await queue.enqueue(0)
    waiting = [await world.begin(queue.enqueue, number) for number in (1, 2, 3)]
    resize(queue, 3)
    await world.until(lambda: waiting[0].done and waiting[1].done)
    assert not waiting[2].done
    assert (queue.size(), queue.capacity, queue.statistics().capacity) == (3, 3, 3)
    resize(queue, None)
    await waiting[2].result()
    assert [await queue.dequeue() for _ in range(4)] == [0, 1, 2, 3]


async def test_with_a_smaller_one_what_is_inside_stays(world: World, kind: Kind) -> None:
    queue = kind.make(world, 4)
    await queue.enqueue_many(kind.batch(range(4)))
    resize(queue, 2)
    assert queue.size() == 4
    for left in (3, 2):
        with pytest.raises(QueueFull):
            queue.enqueue_nowait(kind.element(9))
        await queue.dequeue()
        assert queue.size() == left
    waiting = await world.begin(queue.enqueue, kind.element(9))
    assert not waiting.done
    await queue.dequeue()
    await waiting.result()
    assert queue.size() == 2


async def test_a_batch_of_priorities_that_waits_still_comes_together(world: World) -> None:
    queue = world.priority(3)
    batch = await world.begin(queue.dequeue_many, 3)
    resize(queue, 1)
    for number in (2, 1, 0):
        await queue.enqueue((number, ""))
    assert await batch.result() == [(0, ""), (1, ""), (2, "")]
    with pytest.raises(InvalidArgumentError, match="expected at most 1, the capacity"):
        await queue.dequeue_many(2)


async def test_bytes_still_bound_it(world: World) -> None:
    queue = world.fifo(1, "int64", (), max_bytes=16)
    resize(queue, 5)
    await queue.enqueue_many([1, 2])
    with pytest.raises(QueueFull):
        queue.enqueue_nowait(3)
    assert queue.capacity == 5


@pytest.mark.parametrize("capacity", [0, -1, 1.5, "2", True], ids=repr)
def test_wrong_ones_change_nothing(capacity: Any) -> None:
    queue = sync.FIFOQueue(3)
    with pytest.raises(InvalidArgumentError, match="capacity: got"):
        queue.capacity = capacity
    assert queue.capacity == 3


def test_no_less_than_a_shuffle_queue_keeps() -> None:
    queue = sync.RandomShuffleQueue(9, 4)
    with pytest.raises(InvalidArgumentError, match="capacity: got 4; expected more than 4"):
        queue.capacity = 4
    queue.capacity = 5
    assert queue.aio.capacity == 5


def test_while_threads_work_nothing_is_lost() -> None:
    queue = sync.FIFOQueue(1)
    total = 2000
    got: list[int] = []

    def produce() -> None:
        for number in range(total):
            queue.enqueue(number)
        queue.close()

    def change() -> None:
        for number in range(300):
            queue.capacity = (1, 7, None, 2)[number % 4]

    threads = [threading.Thread(target=target) for target in (produce, change)]
    for thread in threads:
        thread.start()
    got.extend(queue)
    for thread in threads:
        thread.join()
    assert got == list(range(total))


@pytest.mark.slow
@pytest.mark.parametrize(
    "read",
    [
        lambda queue: core_of(queue).machine.max_rows,
        lambda queue: queue.capacity,
        lambda queue: queue.statistics().capacity,
    ],
    ids=["max_rows", "capacity", "statistics"],
)
def test_what_others_read_meanwhile_was_set(read: Callable[[Any], float]) -> None:
    """Without a global lock, compiled, they could meet what has just been dropped."""
    low, count = 10**9, 30_000
    queue = sync.FIFOQueue(low)
    is_over = threading.Event()
    odd: list[float] = []

    def keep_reading() -> None:
        while not is_over.is_set():
            odd.extend(found for _ in range(200) if not low <= (found := read(queue)) < low + count)

    threads = [threading.Thread(target=keep_reading) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(count):
        queue.capacity = low + number  # each an object of its own
    is_over.set()
    for thread in threads:
        thread.join()
    assert odd == []
