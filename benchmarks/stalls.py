"""Rows 22 and 23: nobody is held up by somebody else's copy, and what a row costs is flat."""

from __future__ import annotations

import asyncio
import statistics
import threading
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

import aioqueue
from aioqueue import sync
from benchmarks.harness import Comparison, Mode, Row, compare

__all__ = ("measure",)

IMAGE = (224, 224, 3)
IMAGES = 128
CALLS = 1000


def calls_beside_copies(kind: str, *, same: bool, calls: int, images: int) -> list[float]:
    """Seconds of calls of `size` on an event loop, while a thread moves batches of 19 MB.

    Args:
        kind: of the queue.
        same: whether it is asked of the queue through which they move, or of another one.
        calls: how many.
        images: how many there are in a batch.
    """
    make: Callable[[], Any] = partial(sync.FIFOQueue, 2 * images + 44, "uint8", IMAGE)
    if kind == "RandomShuffle":
        make = partial(sync.RandomShuffleQueue, 2 * images + 44, 0, "uint8", IMAGE, seed=1)
    queue, other = make(), make()
    batch = np.zeros((images, *IMAGE), "uint8")
    out = np.empty_like(batch)
    stop = threading.Event()
    moved = threading.Event()

    def move() -> None:
        while not stop.is_set():
            queue.enqueue_many(batch)
            queue.dequeue_many(images, out=out)
            moved.set()

    async def ask(target: aioqueue.AsyncQueue) -> list[float]:
        seconds = []
        for _ in range(calls):
            began = perf_counter()
            target.size()
            seconds.append(perf_counter() - began)
            await asyncio.sleep(0.001)
        return seconds

    thread = threading.Thread(target=move)
    thread.start()
    moved.wait()
    try:
        return asyncio.run(ask((queue if same else other).aio))
    finally:
        stop.set()
        thread.join()


def beside_copies(mode: Mode) -> Iterator[Comparison]:
    calls = mode.scaled(CALLS)
    images = IMAGES if not mode.quick else 16
    for kind in ("FIFO", "RandomShuffle"):
        rounds = [
            [
                sorted(calls_beside_copies(kind, same=same, calls=calls, images=images))
                for same in (True, False)
            ]
            for _ in range(mode.rounds)
        ]
        at = int(0.99 * calls)
        yield Comparison(
            Row("22", f"{kind}: size() beside copies of it, p99", "another queue", 5.0, False),
            [same[at] / other[at] for same, other in rounds],
            {
                "the same queue": f"{statistics.median(r[0][at] for r in rounds) * 1e6:.1f} µs",
                "another queue": f"{statistics.median(r[1][at] for r in rounds) * 1e6:.1f} µs",
            },
        )
        yield Comparison(
            Row("22", f"{kind}: the longest size(), beyond another's", "10 ms", 1.0, False),
            [max(0.0, same[-1] - other[-1]) / 0.010 for same, other in rounds],
            {
                "the same queue": f"{max(r[0][-1] for r in rounds) * 1e6:.0f} µs",
                "another queue": f"{max(r[1][-1] for r in rounds) * 1e6:.0f} µs",
            },
        )


def long_enqueue(dtype: str | None, n: int) -> float:
    """Seconds per row of a batch of n rows that goes through a queue with room for four."""
    queue: Any = sync.FIFOQueue(4) if dtype is None else sync.FIFOQueue(4, dtype, ())
    rows = list(range(n)) if dtype is None else np.arange(n)
    began = perf_counter()
    thread = threading.Thread(target=lambda: (queue.enqueue_many(rows), queue.close()))
    thread.start()
    for _ in queue.batches(4):
        pass
    thread.join()
    return (perf_counter() - began) / n


def long_dequeue(dtype: str | None, n: int) -> float:
    """Seconds per row of a batch of n rows that is taken from a queue with room for four."""
    queue: Any = sync.FIFOQueue(4) if dtype is None else sync.FIFOQueue(4, dtype, ())

    def put() -> None:
        for number in range(n):
            queue.enqueue(number)

    thread = threading.Thread(target=put)
    began = perf_counter()
    thread.start()
    queue.dequeue_many(n)
    thread.join()
    return (perf_counter() - began) / n


def flat_costs(mode: Mode) -> Iterator[Comparison]:
    few, many = mode.scaled(10_000), mode.scaled(160_000)
    for what, side in (("enqueue_many", long_enqueue), ("dequeue_many", long_dequeue)):
        for dtype in (None, "int64"):
            yield compare(
                Row(
                    "23",
                    f"{what}({many:,}), capacity 4, {dtype or 'objects'}, per row",
                    f"{what}({few:,})",
                    1 / 1.2,
                ),
                partial(side, dtype, many),
                partial(side, dtype, few),
                mode,
                names=(f"{many:,} rows", f"{few:,} rows"),
            )


def measure(mode: Mode) -> Iterator[Comparison]:
    """Rows 22 and 23."""
    yield from beside_copies(mode)
    yield from flat_costs(mode)
