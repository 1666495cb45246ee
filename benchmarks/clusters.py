"""Rows 30 to 34: preparing on Ray actors, and queues there, beside what Ray has.

Rows 30 and 31: batches of 128 images, of which an actor makes one per item: what is measured is the
way home. The limit is `ray.put` of such batches, in one process; the peer is `ray.util.queue`, one
image each.

Rows 32 to 34: from a producer in an actor to this program, by a queue of `aioqueue.ray`, with four
batches of images in flight on both sides, or eight of small rows. The peers are `ray.util.queue`,
one element each, and the best that can be made of it by hand: references of batches. There each
call waits for the one before, since that queue does not keep the order of those in flight.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np

from aioqueue import sync
from aioqueue.inputs import numbers, prepare
from benchmarks.harness import Comparison, Mode, Row, compare, installed
from tests.kit import clusters

__all__ = ("measure",)

_IMAGES = 128
_SHAPE = (_IMAGES, 224, 224, 3)
_ROOM, _LIMIT = 4, 8
"""How many batches a queue has room for, and how many are in flight before it."""
_WARM = 40
"""How many batches do not count at first."""
_pool: list[Any] = []


def _batch(number: int) -> Any:
    """One of three batches that lie ready in each process."""
    if not _pool:
        rng = np.random.default_rng(0)
        _pool.extend(rng.integers(0, 255, _SHAPE, np.uint8) for _ in range(3))
    return _pool[number % 3]


def _touch(batch: Any) -> int:
    return int(batch.reshape(len(batch), -1)[:, ::50_000].sum())


def _made(number: int) -> tuple[Any, int]:
    """The same, and who has it."""
    return _batch(number), os.getpid()


@contextmanager
def _preparing() -> Iterator[Callable[[int], float]]:
    """Two actors at work for as long as the block; gives what measures so many batches.

    They have begun, and their processes have the object store in their memory, as this one has.
    """
    queue = sync.FIFOQueue(_ROOM)
    with sync.Coordinator() as coord:
        source = numbers(1000, epochs=None)
        options = {"num_cpus": 0}
        coord.start(
            prepare(
                source, _made, into=queue, where="ray", workers=2, max_in_flight=_LIMIT, ray=options
            )
        )

        def take(batches: int) -> set[int]:
            makers = set()
            for _ in range(batches):
                batch, maker = queue.dequeue()
                _touch(batch)
                makers.add(maker)
            return makers

        def seconds(batches: int) -> float:
            take(_ROOM + _LIMIT)  # what was made while nobody took any
            began = perf_counter()
            take(batches)
            return (perf_counter() - began) / (batches * _IMAGES)

        makers: set[int] = set()
        while len(makers) < 2:
            makers |= take(1)
        take(_WARM)
        yield seconds
        coord.request_stop()


def _put(batches: int) -> float:
    import ray

    began = perf_counter()
    for number in range(batches):
        ray.put(_batch(number))
    return (perf_counter() - began) / (batches * _IMAGES)


@contextmanager
def _their_queue(most: int) -> Iterator[Any]:
    """A queue of Ray, for all rounds: after an actor has ended, or begun, Ray starts processes."""
    from ray.util.queue import Queue

    queue = Queue(maxsize=most, actor_options={"num_cpus": 0})
    queue.size()
    yield queue
    queue.shutdown()


def _queued(queue: Any, images: int, make: Make = _batch) -> float:
    """By ray.util.queue, one element each, from another process to this one."""
    import ray

    def produce(queue: Any, count: int) -> None:
        batch = make(0)
        for number in range(count):
            queue.put(batch[number % _IMAGES])

    done = ray.remote(num_cpus=0)(produce).remote(queue, images)
    queue.get()
    began = perf_counter()
    for _ in range(images - 1):
        queue.get()
    seconds = (perf_counter() - began) / (images - 1)
    ray.get(done)
    return seconds


_IN_FLIGHT = {True: 4, False: 8}
"""How many calls of one side, of images or of small rows."""
Make = Callable[[int], Any]


def _rows(number: int) -> Any:
    """A batch of small ones, of 24 bytes each."""
    return np.full((_IMAGES, 3), number, np.float64)


def _queue(name: str, of_images: bool) -> Any:
    import aioqueue.ray

    dtype, shape = ("uint8", _SHAPE[1:]) if of_images else ("float64", (3,))
    return aioqueue.ray.FIFOQueue(name, 16 * _IMAGES, dtype, [shape])


@contextmanager
def _our_queue(make: Make) -> Iterator[Any]:
    """A queue of ours, for all rounds."""
    queue = _queue(f"measured {uuid.uuid4().hex}", make is _batch)
    yield queue
    queue.sync.delete()


def _shared(queue: Any, batches: int, make: Make) -> float:
    """Seconds per element, by a queue of ours; the first batches do not count."""
    import ray

    name = queue.name
    of_images = make is _batch
    in_flight = _IN_FLIGHT[of_images]

    async def each(call: Callable[[int], Any], count: int) -> None:
        numbers = iter(range(count))

        async def some() -> None:
            for number in numbers:
                await call(number)

        await asyncio.gather(*(some() for _ in range(in_flight)))

    def produce() -> None:
        queue = _queue(name, of_images)
        asyncio.run(each(lambda number: queue.enqueue_many(make(number)), batches + _WARM))

    async def consume(count: int) -> None:
        async def take(_: int) -> None:
            _touch(await queue.dequeue_many(_IMAGES))

        await each(take, count)

    done = ray.remote(num_cpus=0)(produce).remote()
    asyncio.run(consume(_WARM))
    began = perf_counter()
    asyncio.run(consume(batches))
    seconds = (perf_counter() - began) / (batches * _IMAGES)
    ray.get(done)
    return seconds


def _without_pipeline(queue: Any, batches: int) -> float:
    """Seconds per image, by ray.util.queue and references of batches."""
    import ray

    def produce(queue: Any, count: int) -> None:
        for number in range(count):
            queue.put([ray.put(_batch(number))])  # in a list, else it would be fetched there

    done = ray.remote(num_cpus=0)(produce).remote(queue, batches + _WARM)
    for _ in range(_WARM):
        _touch(ray.get(queue.get()[0]))
    began = perf_counter()
    for _ in range(batches):
        _touch(ray.get(queue.get()[0]))
    seconds = (perf_counter() - began) / (batches * _IMAGES)
    ray.get(done)
    return seconds


def _rate(seconds: float) -> str:
    return f"{1 / seconds:,.0f} images/s"


def _rate_of_rows(seconds: float) -> str:
    return f"{1 / seconds:,.0f} rows/s"


def measure(mode: Mode) -> Iterator[Comparison]:
    """Measure all rows, if Ray is there."""
    if not installed("ray"):
        return
    batches = 10 if mode.quick else 100
    images = 100 if mode.quick else 500
    with clusters.one_node(store=2**30), _their_queue(2 * _IMAGES) as each:
        with _preparing() as seconds:
            yield compare(
                Row("30", "prepare on Ray, batches of 128 images", "ray.put of them", 0.9),
                lambda: seconds(batches),
                lambda: _put(batches),
                mode,
                names=("prepare", "ray.put"),
                show=_rate,
            )
            yield compare(
                Row("31", "prepare on Ray, batches of 128 images", "ray.util.queue, one each", 150),
                lambda: seconds(batches),
                lambda: _queued(each, images),
                mode,
                names=("prepare", "ray.util.queue"),
                show=_rate,
            )
        with _our_queue(_batch) as queue, _their_queue(16) as their_queue:
            yield compare(
                Row("32", "a queue on Ray, batches of 128 images", "ray.util.queue, one each", 50),
                lambda: _shared(queue, batches, _batch),
                lambda: _queued(each, images),
                mode,
                names=("aioqueue.ray", "ray.util.queue"),
                show=_rate,
            )
            yield compare(
                Row("33", "a queue on Ray, batches of 128 images", "the same by hand", 1.1),
                lambda: _shared(queue, batches, _batch),
                lambda: _without_pipeline(their_queue, batches),
                mode,
                names=("aioqueue.ray", "ray.util.queue"),
                show=_rate,
            )
        with _our_queue(_rows) as queue:
            yield compare(
                Row("34", "a queue on Ray, batches of 128 rows", "ray.util.queue, one each", 150),
                lambda: _shared(queue, 10 * batches, _rows),
                lambda: _queued(each, images, _rows),
                mode,
                names=("aioqueue.ray", "ray.util.queue"),
                show=_rate_of_rows,
            )
