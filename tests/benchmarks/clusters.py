"""Rows 30 and 31: preparing on Ray actors, against what Ray's object store can do, and its queue.

Batches of 128 images, of which an actor makes one per item: what is measured is the way home. The
limit is `ray.put` of such batches, in one process; the peer is `ray.util.queue`, one image each.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import numpy as np

from aioqueue import sync
from aioqueue.inputs import numbers, prepare
from tests import clusters
from tests.benchmarks.harness import Comparison, Mode, Row, compare, installed

__all__ = ("measure",)

_IMAGES = 128
_SHAPE = (_IMAGES, 224, 224, 3)
_pool: list[Any] = []


def _batch(number: int) -> Any:
    """One of three batches that lie ready in each process."""
    if not _pool:
        rng = np.random.default_rng(0)
        _pool.extend(rng.integers(0, 255, _SHAPE, np.uint8) for _ in range(3))
    return _pool[number % 3]


def _touch(batch: Any) -> int:
    return int(batch.reshape(len(batch), -1)[:, ::50_000].sum())


def _prepared(batches: int) -> float:
    """Seconds per image; the first two batches, which wait for actors to start, do not count."""
    queue = sync.FIFOQueue(4)
    with sync.Coordinator() as coord:
        source = numbers(batches + 2, epochs=1)
        options = {"num_cpus": 0}
        coord.start(
            prepare(source, _batch, into=queue, where="ray", workers=2, limit=8, ray=options)
        )
        for _ in range(2):
            _touch(queue.dequeue())
        began = perf_counter()
        for _ in range(batches):
            _touch(queue.dequeue())
        return (perf_counter() - began) / (batches * _IMAGES)
    raise AssertionError("unreachable")


def _put(batches: int) -> float:
    import ray

    began = perf_counter()
    for number in range(batches):
        ray.put(_batch(number))
    return (perf_counter() - began) / (batches * _IMAGES)


def _queued(images: int) -> float:
    """By ray.util.queue, one image each, from an actor to this process."""
    import ray
    from ray.util.queue import Queue

    def produce(queue: Any, count: int) -> None:
        batch = _batch(0)
        for number in range(count):
            queue.put(batch[number % _IMAGES])

    queue = Queue(maxsize=2 * _IMAGES, actor_options={"num_cpus": 0})
    queue.size()
    done = ray.remote(num_cpus=0)(produce).remote(queue, images)
    queue.get()
    began = perf_counter()
    for _ in range(images - 1):
        queue.get()
    seconds = (perf_counter() - began) / (images - 1)
    ray.get(done)
    queue.shutdown()
    return seconds


def _rate(seconds: float) -> str:
    return f"{1 / seconds:,.0f} images/s"


def measure(mode: Mode) -> Iterator[Comparison]:
    """Measure all rows, if Ray is there."""
    if not installed("ray"):
        return
    batches = 10 if mode.quick else 100
    images = 100 if mode.quick else 500
    with clusters.one_node(store=2**30):
        yield compare(
            Row("30", "prepare on Ray, batches of 128 images", "ray.put of them", 0.9),
            lambda: _prepared(batches),
            lambda: _put(batches),
            mode,
            names=("prepare", "ray.put"),
            show=_rate,
        )
        yield compare(
            Row("31", "prepare on Ray, batches of 128 images", "ray.util.queue, one each", 150),
            lambda: _prepared(batches),
            lambda: _queued(images),
            mode,
            names=("prepare", "ray.util.queue"),
            show=_rate,
        )
