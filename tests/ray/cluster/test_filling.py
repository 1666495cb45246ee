"""Producers that have a book: programs come and go, and each batch is there once, in its place."""

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


def test_what_a_dead_producer_had_is_made_again_by_the_next(make: Any, cluster: Any) -> None:
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


def test_it_goes_on_where_it_was(share: Any) -> None:
    queue = share("FIFOQueue", *SPEC).sync
    filling = threading.Thread(target=queue.fill, args=(page,), kwargs={"producer": "shard"})
    filling.start()
    assert queue.dequeue_many(4 * BATCHES)[:, 0].tolist() == np.repeat(range(BATCHES), 4).tolist()
    filling.join()
    small = share("FIFOQueue", 100).sync
    for _ in range(2):  # all of it was in
        small.fill(lambda number: [number] * 3 if number < 4 else None, producer="shard")
    assert small.dequeue_many(12) == np.repeat(range(4), 3).tolist()
    assert small.statistics().size == 0


def test_a_book_of_coroutines(share: Any) -> None:
    queue = share("FIFOQueue", 2)

    async def made(number: int) -> list[int] | None:
        await asyncio.sleep(0)
        return [number, number] if number < 5 else None

    async def main() -> list[int]:
        filling = asyncio.ensure_future(queue.fill(made, producer="shard"))
        got = [await queue.dequeue() for _ in range(3)]
        filling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await filling
        filling = asyncio.ensure_future(queue.fill(made, producer="shard"))
        got += [await queue.dequeue() for _ in range(7)]
        await filling
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
