"""Rows 13 to 16: how the cost grows with capacity and waiters, memory, wakes and stops."""

from __future__ import annotations

import asyncio
import gc
import statistics
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter

import numpy as np

import aioqueue
from aioqueue import sync
from benchmarks.harness import Comparison, Mode, Row, compare

__all__ = ("measure",)


def per_element(capacity: int, kind: str, n: int) -> float:
    """One enqueue and one dequeue of a queue that is half full."""
    queue: sync.FIFOQueue | sync.RandomShuffleQueue
    if kind == "FIFO":
        queue = sync.FIFOQueue(capacity, "int64", ())
    else:
        queue = sync.RandomShuffleQueue(capacity, 0, "int64", (), seed=1)
    queue.enqueue_many(np.arange(capacity // 2))
    start = perf_counter()
    for i in range(n):
        queue.enqueue(i)
        queue.dequeue()
    return (perf_counter() - start) / n


def wake_and_withdraw(waiters: int, n: int) -> float:
    """Wake the first of some waiting tasks and let it wait again; cancel another, likewise."""

    async def run() -> float:
        queue = aioqueue.FIFOQueue(1)

        async def consume() -> None:
            while True:
                await queue.dequeue()

        async def wait_once() -> None:
            await queue.dequeue()

        tasks = [asyncio.create_task(consume()) for _ in range(waiters)]
        while queue.statistics().waiting_dequeues < waiters:
            await asyncio.sleep(0)
        start = perf_counter()
        for i in range(n):
            queue.enqueue_nowait(i)
            extra = asyncio.create_task(wait_once())
            await asyncio.sleep(0)
            extra.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        elapsed = (perf_counter() - start) / n
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return elapsed

    return asyncio.run(run())


def memory_share(kind: str, capacity: int, row: int) -> float:
    """Memory of a full queue over what it is allowed: 1.1 times its elements, and 1 MiB."""
    block = np.zeros((1000, row), dtype="uint8")
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    queue: sync.FIFOQueue | sync.RandomShuffleQueue
    if kind == "FIFO":
        queue = sync.FIFOQueue(capacity, "uint8", (row,))
    else:
        queue = sync.RandomShuffleQueue(capacity, 0, "uint8", (row,), seed=1)
    for _ in range(capacity // len(block)):
        queue.enqueue_many(block)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert queue.size() == capacity // len(block) * len(block)
    return used / (1.1 * capacity * row + 2**20)


def round_trips(n: int) -> tuple[list[float], list[float]]:
    """Seconds from a foreign thread to a coroutine and back: by a queue, and bare.

    Bare means: the coroutine waits for a future, which the thread sets by `call_soon_threadsafe`.
    """

    async def run() -> tuple[list[float], list[float]]:
        loop = asyncio.get_running_loop()
        queue = aioqueue.FIFOQueue(10)
        answered = threading.Event()
        future = loop.create_future()

        async def answer_queue() -> None:
            async for _ in queue:
                answered.set()

        async def answer_bare() -> None:
            nonlocal future
            while await future:
                future = loop.create_future()
                answered.set()

        def ping(send: Callable[[], object]) -> float:
            start = perf_counter()
            send()
            answered.wait()
            answered.clear()
            return perf_counter() - start

        def set_bare(continues: bool = True) -> None:
            loop.call_soon_threadsafe(future.set_result, continues)

        def measure() -> tuple[list[float], list[float]]:
            bare, ours = [], []
            for _ in range(n):  # alternately, so that both meet the same noise
                ours.append(ping(lambda: queue.sync.enqueue(1)))
                bare.append(ping(set_bare))
            queue.close()
            set_bare(continues=False)
            return ours, bare

        tasks = [asyncio.create_task(answer_queue()), asyncio.create_task(answer_bare())]
        result = await asyncio.to_thread(measure)
        await asyncio.gather(*tasks)
        return result

    return asyncio.run(run())


def stop_latency(workers: int) -> float:
    """Seconds from `request_stop` to the last of some blocked task workers awake."""

    async def run() -> float:
        queue = aioqueue.FIFOQueue(1)
        queue.enqueue_nowait(0)
        last = 0.0

        async def work() -> None:
            nonlocal last
            try:
                await queue.enqueue(1)
            finally:
                last = perf_counter()

        async with aioqueue.Coordinator() as coord:
            coord.start(aioqueue.QueueRunner(queue, [work] * workers))
            while queue.statistics().waiting_enqueues < workers:
                await asyncio.sleep(0)
            start = perf_counter()
            coord.request_stop()
        return last - start

    return asyncio.run(run())


def as_one(row: Row, ratios: list[float], figures: dict[str, str]) -> Comparison:
    return Comparison(row, ratios, figures)


def measure(mode: Mode) -> Iterator[Comparison]:
    """Rows 13 to 16."""
    n = mode.scaled(20_000)
    large = 1_000_000 if not mode.quick else 10_000
    for kind in ("FIFO", "RandomShuffle"):
        yield compare(
            Row("13", f"{kind}, per element, capacity {large:,}", "capacity 10", 1 / 1.2),
            partial(per_element, large, kind, n),
            partial(per_element, 10, kind, n),
            mode,
            names=(f"capacity {large:,}", "capacity 10"),
        )
    many = 10_000 if not mode.quick else 500
    yield compare(
        Row("13", f"a wake and a withdrawal, {many:,} waiters", "10 waiters", 1 / 1.2),
        lambda: wake_and_withdraw(many, mode.scaled(2000)),
        lambda: wake_and_withdraw(10, mode.scaled(2000)),
        mode,
        names=(f"{many:,} waiters", "10 waiters"),
    )
    capacity = 100_000 if not mode.quick else 10_000
    for kind, row in (("FIFO", 20), ("FIFO", 1024), ("RandomShuffle", 1024)):
        share = memory_share(kind, capacity, row)
        yield as_one(
            Row("14", f"memory, {kind} of {capacity:,} x {row} bytes", "the bound", 1.0, False),
            [share],
            {"share of 1.1 x elements + 1 MiB": f"{share:.2f}"},
        )
    latencies = [round_trips(mode.scaled(2000)) for _ in range(mode.rounds)]
    for what, at in (("median", 0.5), ("p99", 0.99)):
        pairs = [[float(np.quantile(side, at)) for side in pair] for pair in latencies]
        yield as_one(
            Row(
                "15",
                f"wake, thread to coroutine, {what}",
                "a future set by call_soon_threadsafe",
                1.3,
                False,
            ),
            [ours / bare for ours, bare in pairs],
            {
                name: f"{statistics.median(pair[side] for pair in pairs) * 1e6:.0f} µs"
                for side, name in enumerate(("aioqueue", "call_soon_threadsafe"))
            },
        )
    workers = 1000 if not mode.quick else 100
    stops = []
    for _ in range(mode.rounds):
        gc.collect()  # of what the other rows have left
        stops.append(stop_latency(workers))
    yield as_one(
        Row("16", f"request_stop to the last of {workers:,} workers awake", "10 ms", 1.0, False),
        [seconds / 0.010 for seconds in stops],
        {"aioqueue": f"{statistics.median(stops) * 1e3:.1f} ms"},
    )
