"""Replayable producers on a cluster: programs die, and each batch arrives once, in order."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import numpy as np
import pytest

from aioqueue import InvalidArgumentError
from tests.kit import clusters
from tests.ray.marks import MARKS

pytestmark = MARKS

ROW = 25_000
SPEC = (8, "int64", [(ROW,)])
BATCHES = 10


def page(number: int) -> np.ndarray[Any, Any] | None:
    """Four rows, of 800 KB together: they lie with their producer."""
    return np.full((4, ROW), number) if number < BATCHES else None


class Producer:
    """A program that may be killed."""

    def __init__(self, name: str, capacity: int = SPEC[0]) -> None:
        import aioqueue.ray

        self.queue = aioqueue.ray.FIFOQueue(name, capacity, *SPEC[1:]).sync

    def pid(self) -> int:
        return os.getpid()

    def fill(self) -> None:
        self.queue.fill(page, producer="shard")
        self.queue.close()


def test_batches_of_a_dead_producer_are_made_again(make: Any, cluster: Any) -> None:
    queue = make("FIFOQueue", *SPEC).sync
    kind = cluster.remote(num_cpus=0, max_concurrency=2)(Producer)
    doomed = kind.remote(queue.name)
    doomed.fill.remote()
    got = queue.dequeue_many(6)[:, 0].tolist()
    while queue.statistics().size < 8:  # which lie with it, too
        pass
    clusters.kill(cluster.get(doomed.pid.remote()))
    done = kind.remote(queue.name).fill.remote()
    for batch in queue.batches(5):
        got += batch[:, -1].tolist()
    assert got == [number for number in range(BATCHES) for _ in range(4)]
    cluster.get(done)


def test_when_it_has_ended_nothing_is_lost_with_its_program(make: Any, cluster: Any) -> None:
    queue = make("FIFOQueue", 4 * BATCHES, *SPEC[1:]).sync
    producer = cluster.remote(num_cpus=0)(Producer).remote(queue.name, 4 * BATCHES)
    pid = cluster.get(producer.pid.remote())
    cluster.get(producer.fill.remote())
    clusters.kill(pid)
    assert queue.dequeue_many(4 * BATCHES)[:, 0].tolist() == np.repeat(range(BATCHES), 4).tolist()


def test_it_continues_where_it_was(share: Any) -> None:
    queue = share("FIFOQueue", *SPEC).sync
    producer_record = threading.Thread(
        target=queue.fill, args=(page,), kwargs={"producer": "shard"}
    )
    producer_record.start()
    assert queue.dequeue_many(4 * BATCHES)[:, 0].tolist() == np.repeat(range(BATCHES), 4).tolist()
    producer_record.join()
    small = share("FIFOQueue", 100).sync
    for _ in range(2):  # all of it was in
        small.fill(lambda number: [number] * 3 if number < 4 else None, producer="shard")
    assert small.dequeue_many(12) == np.repeat(range(4), 3).tolist()
    assert small.statistics().size == 0


def test_fill_with_a_coroutine_function(share: Any) -> None:
    queue = share("FIFOQueue", 2)

    async def made(number: int) -> list[int] | None:
        await asyncio.sleep(0)
        return [number, number] if number < 5 else None

    async def main() -> list[int]:
        producer_record = asyncio.ensure_future(queue.fill(made, producer="shard"))
        got = [await queue.dequeue() for _ in range(3)]
        producer_record.cancel()
        with pytest.raises(asyncio.CancelledError):
            await producer_record
        producer_record = asyncio.ensure_future(queue.fill(made, producer="shard"))
        got += [await queue.dequeue() for _ in range(7)]
        await producer_record
        return got

    got = asyncio.run(asyncio.wait_for(main(), clusters.PATIENCE))
    assert got == [number for number in range(5) for _ in range(2)]


@pytest.mark.parametrize(
    ("book", "producer", "message"),
    [
        (3, "shard", "make_batch: got 3"),
        (page, "", "producer: got ''"),
        (lambda number: [], "shard", "make_batch: got no rows for batch 0"),
    ],
)
def test_wrong_arguments(share: Any, book: Any, producer: str, message: str) -> None:
    queue = share("FIFOQueue", 4).sync
    with pytest.raises(InvalidArgumentError, match=message):
        queue.fill(book, producer=producer)
