"""Rows 5 to 8: typed batches, in one thread through the blocking face."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from aioqueue import sync
from benchmarks.harness import Comparison, Mode, Row, compare, for_build, installed

__all__ = ("measure",)

ROWS = 128
IMAGE = (224, 224, 3)
IMAGES = 32


def small_batch() -> tuple[Any, Any]:
    return np.random.rand(ROWS, 4).astype("float32"), np.arange(ROWS, dtype="int32")


def per_pair(step: Callable[[], object], n: int) -> float:
    step()
    start = perf_counter()
    for _ in range(n):
        step()
    return (perf_counter() - start) / n


def ours(kind: str, n: int) -> float:
    dtypes, shapes = ["float32", "int32"], [(4,), ()]
    queue: Any
    if kind == "FIFO":
        queue = sync.FIFOQueue(1024, dtypes, shapes)
    else:
        queue = sync.RandomShuffleQueue(1024, 512, dtypes, shapes, seed=1)
        for _ in range(4):
            queue.enqueue_many(small_batch())
    batch = small_batch()

    def step() -> None:
        queue.enqueue_many(batch)
        queue.dequeue_many(ROWS)

    return per_pair(step, n) / ROWS


class TensorFlowQueue:
    """A queue of TensorFlow 1, run through a session that is kept."""

    def __init__(self, kind: str, capacity: int, keep: int, components: list[Any]) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        import tensorflow

        tf = tensorflow.compat.v1
        graph = tf.Graph()
        with graph.as_default():
            dtypes = [tf.as_dtype(array.dtype) for array in components]
            shapes = [array.shape[1:] for array in components]
            feeds = [tf.placeholder(t, (None, *s)) for t, s in zip(dtypes, shapes, strict=True)]
            if kind == "FIFO":
                queue = tf.FIFOQueue(capacity, dtypes, shapes)
            else:
                queue = tf.RandomShuffleQueue(capacity, keep, dtypes, shapes, seed=1)
            enqueue, dequeue = queue.enqueue_many(feeds), queue.dequeue_many(len(components[0]))
        session = tf.Session(graph=graph)
        self.put = session.make_callable(enqueue, feeds)
        self.get = session.make_callable(dequeue)
        self.components = components
        for _ in range(keep // len(components[0])):
            self.put(*components)

    def step(self) -> None:
        self.put(*self.components)
        self.get()

    def per_batch(self, n: int) -> float:
        return per_pair(self.step, n)

    def per_row(self, n: int) -> float:
        return self.per_batch(n) / len(self.components[0])


class Images:
    """Batches of images through a queue of aioqueue, and the copy that is the limit.

    Both walk through buffers as large as the queue, so that they meet the same caches.
    """

    def __init__(self, kind: str, mode: Mode) -> None:
        self.capacity = (256 if kind == "FIFO" else 512) if not mode.quick else 96
        shape = (IMAGES, *IMAGE)
        self.batches = [
            np.random.randint(0, 255, shape, dtype="uint8") for _ in range(self.capacity // IMAGES)
        ]
        self.out = [np.empty_like(batch) for batch in self.batches]
        self.index = 0
        self.queue: Any
        if kind == "FIFO":
            self.queue = sync.FIFOQueue(self.capacity, "uint8", IMAGE)
        else:
            keep = self.capacity - 2 * IMAGES
            self.queue = sync.RandomShuffleQueue(self.capacity, keep, "uint8", IMAGE, seed=1)

    def fill(self, *, copy: bool) -> None:
        """Make the queue as full as it can be with room for one more batch."""
        for batch in self.batches[:-1]:
            self.queue.enqueue_many(batch, copy=copy)

    def next(self) -> tuple[Any, Any]:
        self.index = (self.index + 1) % len(self.batches)
        return self.batches[self.index], self.out[self.index]

    def through(self, n: int, *, copy: bool) -> float:
        def step() -> None:
            batch, out = self.next()
            self.queue.enqueue_many(batch, copy=copy)
            self.queue.dequeue_many(IMAGES, out=out)

        return per_pair(step, n)

    def limit(self, n: int) -> float:
        def step() -> None:
            batch, out = self.next()
            np.copyto(out, batch)

        return per_pair(step, n)


def rows_per_second(seconds: float) -> str:
    return f"{1e-6 / seconds:.2f} M rows/s"


def images_per_second(seconds: float) -> str:
    return f"{IMAGES / seconds:,.0f} images/s"


def small_rows(mode: Mode) -> Iterator[Comparison]:
    if not installed("tensorflow"):
        return
    n = mode.scaled(3000)
    aims = [("5", "FIFO", for_build(38, 45)), ("6", "RandomShuffle", for_build(10, 14))]
    for number, kind, target in aims:
        keep = 0 if kind == "FIFO" else 512
        theirs = TensorFlowQueue(kind, 1024, keep, list(small_batch()))
        yield compare(
            Row(number, f"{kind}, 128 rows in and out", "TensorFlow", target),
            partial(ours, kind, n),
            partial(theirs.per_row, n // 3),
            mode,
            names=("aioqueue", "TensorFlow"),
            show=rows_per_second,
        )


def image_rows(mode: Mode) -> Iterator[Comparison]:
    aims = [
        ("7", "FIFO", True, 0.45, 1.3),
        ("7", "FIFO", False, 0.9, 2.0),
        ("8", "RandomShuffle", True, 0.4, 1.3),
        ("8", "RandomShuffle", False, 0.8, 2.0),
    ]
    for number, kind, copy, of_limit, over_tensorflow in aims:
        yield from images_through(number, kind, copy, of_limit, over_tensorflow, mode)


def images_through(
    number: str, kind: str, copy: bool, of_limit: float, over_tensorflow: float, mode: Mode
) -> Iterator[Comparison]:
    n = 4 if mode.quick else 100
    how = "copied in and out" if copy else "handed over"
    images = Images(kind, mode)
    images.fill(copy=copy)
    ours = partial(images.through, n, copy=copy)
    yield compare(
        Row(number, f"{kind}, 32 images, {how}", "one np.copyto", of_limit),
        ours,
        partial(images.limit, n),
        mode,
        names=("aioqueue", "np.copyto"),
        show=images_per_second,
    )
    if installed("tensorflow"):
        keep = 0 if kind == "FIFO" else images.capacity - 2 * IMAGES
        theirs = TensorFlowQueue(kind, images.capacity, keep, [images.batches[0]])
        yield compare(
            Row("8", f"{kind}, 32 images, {how}", "TensorFlow", over_tensorflow),
            ours,
            partial(theirs.per_batch, n // 2),
            mode,
            names=("aioqueue", "TensorFlow"),
            show=images_per_second,
        )


def measure(mode: Mode) -> Iterator[Comparison]:
    """Rows 5 to 8."""
    yield from small_rows(mode)
    yield from image_rows(mode)
