"""Rows 1 to 4: one element at a time, one producer and one consumer."""

from __future__ import annotations

import asyncio
import queue as stdlib_queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

import aioqueue
from aioqueue import sync
from benchmarks.harness import Comparison, Mode, Row, compare, for_build, installed

__all__ = ("measure",)

CAPACITY = 50
BATCH = 100


async def in_one_loop(
    put: Callable[[int], Awaitable[Any]], get: Callable[[], Awaitable[Any]], n: int
) -> float:
    async def producer() -> None:
        for i in range(n):
            await put(i)

    async def consumer() -> None:
        for _ in range(n):
            await get()

    start = perf_counter()
    await asyncio.gather(producer(), consumer())
    return (perf_counter() - start) / n


async def thread_to_coroutine(
    put: Callable[[int], Any], get: Callable[[], Awaitable[Any]], n: int, per_get: int = 1
) -> float:
    def producer() -> None:
        for i in range(n):
            put(i)

    thread = threading.Thread(target=producer)
    start = perf_counter()
    thread.start()
    for _ in range(n // per_get):
        await get()
    elapsed = perf_counter() - start
    thread.join()
    return elapsed / n


def thread_to_thread(put: Callable[[int], Any], get: Callable[[], Any], n: int) -> float:
    def producer() -> None:
        for i in range(n):
            put(i)

    thread = threading.Thread(target=producer)
    start = perf_counter()
    thread.start()
    for _ in range(n):
        get()
    elapsed = perf_counter() - start
    thread.join()
    return elapsed / n


def ours_in_one_loop(n: int) -> float:
    queue = aioqueue.FIFOQueue(CAPACITY)
    return asyncio.run(in_one_loop(queue.enqueue, queue.dequeue, n))


def asyncio_in_one_loop(n: int) -> float:
    async def run() -> float:
        queue: asyncio.Queue[int] = asyncio.Queue(CAPACITY)
        return await in_one_loop(queue.put, queue.get, n)

    return asyncio.run(run())


def ours_across(n: int) -> float:
    queue = aioqueue.FIFOQueue(CAPACITY)
    return asyncio.run(thread_to_coroutine(queue.sync.enqueue, queue.dequeue, n))


def ours_across_in_batches(n: int) -> float:
    queue = aioqueue.FIFOQueue(1000)
    return asyncio.run(
        thread_to_coroutine(queue.sync.enqueue, lambda: queue.dequeue_many(BATCH), n, BATCH)
    )


def culsans_across(n: int, capacity: int = CAPACITY) -> float:
    import culsans

    async def run() -> float:
        queue: Any = culsans.Queue(capacity)
        return await thread_to_coroutine(queue.sync_q.put, queue.async_q.get, n)

    return asyncio.run(run())


def janus_across(n: int) -> float:
    import janus

    async def run() -> float:
        queue: Any = janus.Queue(CAPACITY)
        try:
            return await thread_to_coroutine(queue.sync_q.put, queue.async_q.get, n)
        finally:
            await queue.aclose()

    return asyncio.run(run())


def ours_between_threads(n: int) -> float:
    queue = sync.FIFOQueue(CAPACITY)
    return thread_to_thread(queue.enqueue, queue.dequeue, n)


def stdlib_between_threads(n: int) -> float:
    queue: stdlib_queue.Queue[int] = stdlib_queue.Queue(CAPACITY)
    return thread_to_thread(queue.put, queue.get, n)


def measure(mode: Mode) -> Iterator[Comparison]:
    """Rows 1 to 4, over the peers that are installed."""
    n = mode.scaled(50_000)
    few = mode.scaled(10_000)
    rows = [
        (
            Row("1", "same loop, object queue", "asyncio.Queue", for_build(0.8, 1.4)),
            ours_in_one_loop,
            "asyncio",
        ),
        (
            Row("2", "thread to coroutine", "culsans", for_build(1.6, 2.5)),
            ours_across,
            "culsans",
        ),
        (Row("2", "thread to coroutine", "janus", for_build(3.6, 6)), ours_across, "janus"),
        (
            Row("3", "thread to thread", "queue.Queue", for_build(1.4, 2.3)),
            ours_between_threads,
            "queue",
        ),
        (
            Row(
                "4",
                "thread to coroutine, dequeue_many(100) of 1000",
                "culsans, single gets",
                for_build(3.5, 5),
            ),
            ours_across_in_batches,
            "culsans",
        ),
        (
            Row(
                "4",
                "thread to coroutine, dequeue_many(100) of 1000",
                "culsans, single gets of 50",
                for_build(5, 8),
            ),
            ours_across_in_batches,
            "culsans",
        ),
    ]
    peers: dict[str, Callable[[], float]] = {
        "asyncio.Queue": lambda: asyncio_in_one_loop(n),
        "culsans": lambda: culsans_across(few),
        "janus": lambda: janus_across(few),
        "queue.Queue": lambda: stdlib_between_threads(n),
        "culsans, single gets": lambda: culsans_across(few, 1000),
        "culsans, single gets of 50": lambda: culsans_across(few),
    }
    for row, ours, package in rows:
        if installed(package):
            names = ("aioqueue", row.over.split(",")[0])
            yield compare(row, partial(ours, n), peers[row.over], mode, names=names)
