"""Dequeued elements are leased: consumers and producers may die, and every loss is reported."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aioqueue
from tests.kit import clusters
from tests.ray.marks import MARKS

pytestmark = MARKS


def test_the_next_dequeue_commits_the_one_before(share: Any) -> None:
    queue = share("FIFOQueue", 10).sync
    queue.enqueue_many(range(6))
    queue.dequeue_many(2)
    queue.dequeue_many(2)
    assert queue.leases() == 1
    queue.commit()
    assert queue.leases() == 0


def test_leases_stay_until_they_are_committed(share: Any) -> None:
    queue = share("FIFOQueue", 10, autocommit=False).sync
    queue.enqueue_many(range(6))
    queue.dequeue_many(2)
    first = queue.last
    queue.dequeue_many(2)
    assert queue.leases() == 2
    queue.commit(first)
    assert queue.leases() == 1


class Consumer:
    """Another program, which may be killed."""

    def __init__(self, name: str, capacity: int = 100, **options: Any) -> None:
        import aioqueue.ray

        self.queue = aioqueue.ray.FIFOQueue(name, capacity, **options).sync

    def pid(self) -> int:
        import os

        return os.getpid()

    def take(self, n: int) -> list[int]:
        return list(self.queue.dequeue_many(n))

    def put_numbers(self, start: int, stop: int) -> None:
        self.queue.enqueue_many(range(start, stop))

    def drain(self) -> None:
        self.queue.drain()

    def put(self, number: int) -> None:
        self.queue.enqueue_many(np.full((4, 50_000), number))


def other(cluster: Any, *args: Any, **options: Any) -> Any:
    """Start a program that reports its identity while it waits."""
    return cluster.remote(num_cpus=0, max_concurrency=2)(Consumer).remote(*args, **options)


def test_what_a_killed_consumer_had_comes_back_first(
    make: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make("FIFOQueue", 100).sync
    queue.enqueue_many(range(32))
    doomed = other(cluster, queue.name)
    assert cluster.get(doomed.take.remote(8)) == list(range(8))
    assert cluster.get(doomed.take.remote(8)) == list(range(8, 16))  # commits the first eight
    clusters.kill(cluster.get(doomed.pid.remote()))
    # It is told by its silence; here at once, as if that time had passed.
    cluster.get(clusters.actor_of(queue).expire.remote(0, 100))
    taken = other(cluster, queue.name).take.remote(8)
    assert cluster.get(taken) == list(range(8, 16))


def test_the_end_is_reported_when_nothing_can_return(share: Any) -> None:
    one = share("FIFOQueue", 10)
    two = share("FIFOQueue", 10, name=one.name)

    async def main() -> None:
        await one.enqueue_many(range(4))
        await one.close()
        assert await one.dequeue_many(4) == [0, 1, 2, 3]
        waiting = asyncio.ensure_future(two.dequeue())
        while not (await one.statistics()).waiting_dequeues:
            pass
        await one.commit()
        with pytest.raises(aioqueue.OutOfRangeError):
            await waiting

    asyncio.run(asyncio.wait_for(main(), clusters.PATIENCE))


def test_a_consumer_does_not_wait_for_its_own_leases(share: Any) -> None:
    queue = share("FIFOQueue", 10, autocommit=False).sync
    queue.enqueue_many(range(4))
    queue.close()
    assert [list(batch) for batch in queue.batches(2)] == [[0, 1], [2, 3]]
    assert queue.leases() == 2


def test_exactly_once_with_saved_lease_numbers(share: Any) -> None:
    first = share("FIFOQueue", 10, consumer="rank 0", autocommit=False).sync
    first.enqueue_many(range(6))
    assert first.dequeue_many(2) == [0, 1]
    saved = first.last  # with what was made of it; then it dies, and never commits
    assert first.dequeue_many(2) == [2, 3]
    again = share(
        "FIFOQueue", 10, name=first.name, consumer="rank 0", autocommit=False, last_committed=saved
    ).sync
    assert again.dequeue_many(4) == [2, 3, 4, 5]


def test_elements_outlive_their_producer_if_the_queue_owns_them(make: Any, cluster: Any) -> None:
    queue = make("FIFOQueue", 100, owned=True).sync
    producer = other(cluster, queue.name, owned=True)
    for number in range(3):
        cluster.get(producer.put.remote(number))
    clusters.kill(cluster.get(producer.pid.remote()))
    got = [queue.dequeue_many(4) for _ in range(3)]
    assert [int(batch[0][0]) for batch in got] == [0, 1, 2]


def test_a_loss_with_its_producer_is_reported(make: Any, cluster: Any) -> None:
    """Each batch arrives completely, or its loss is reported."""
    queue = make("FIFOQueue", 100, ["int64"], [(50_000,)]).sync
    producer = other(cluster, queue.name, dtypes=["int64"], shapes=[(50_000,)])
    for number in range(4):
        cluster.get(producer.put.remote(number))
    clusters.kill(cluster.get(producer.pid.remote()))
    queue.enqueue_many(np.full((2, 50_000), 7))
    queue.close()
    came, reported = [], 0
    while 7 not in came:
        try:
            came += queue.dequeue_many(2)[:, 0].tolist()
        except aioqueue.WorkerDiedError as error:
            assert "has died" in str(error)
            reported += 1
    assert reported == sum(came.count(number) < 4 for number in range(4))
