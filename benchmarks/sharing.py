"""Rows 51 to 58: a queue and a batcher that the processes of one machine share.

Elements go from the process that has the queue to another one. The peer is `multiprocessing.Queue`,
whose reader shares a pipe: it owes nobody an order, a cancellation, or what a dead reader had.
Large arrays have two more. One is what is written by hand: a segment of `shared_memory` for each
array, whose name goes through a queue. The other is the limit: memory that both sides know, with
two semaphores; nobody asks for an element, and nobody answers. At each, who puts an array in copies
it there, and who takes it out gets a copy, as at a queue. Both sides take what the other process
puts in meanwhile.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import shared_memory
from time import perf_counter
from typing import Any

import numpy as np

import aioqueue
from aioqueue import sync
from benchmarks.harness import Comparison, Mode, Row, compare

__all__ = ("measure",)

SMALL = b"x" * 100
LARGE = (1 << 17,)  # of float64: 1 MiB
TASKS = 32
BATCH = 100
SLOTS = 4
"""Arrays that fit into the bare shared memory, and into the queues."""
FIRST_CALL = 0.05
"""Seconds that the first call of a process may take."""

_context = multiprocessing.get_context("spawn")


# What the other process does.


def _serve(connection: Any, *things: Any) -> None:
    """Serve the other process, with the things that this one was started with."""
    while True:
        try:
            take, n = connection.recv()
        except EOFError:
            return
        began = perf_counter()
        take(n, *things)
        connection.send(perf_counter() - began)


def _one_by_one(n: int, queue: Any, *_: Any) -> None:
    face = queue.sync
    for _number in range(n):
        face.dequeue()


def _in_tasks(n: int, queue: Any, *_: Any) -> None:
    async def take() -> None:
        for _ in range(n // TASKS):
            await queue.aio.dequeue()

    async def main() -> None:
        await asyncio.gather(*(take() for _ in range(TASKS)))

    asyncio.run(main())


def _in_batches(n: int, queue: Any, *_: Any) -> None:
    face = queue.sync
    for _number in range(n // BATCH):
        face.dequeue_many(BATCH)


def _from_theirs(n: int, _: Any, theirs: Any, *__: Any) -> None:
    for _ in range(n):
        theirs.get()


def _by_name(n: int, _: Any, names: Any, *__: Any) -> None:
    for _ in range(n):
        memory = shared_memory.SharedMemory(names.get())
        np.ndarray(LARGE, np.float64, memory.buf).copy()
        memory.close()
        memory.unlink()


def _from_memory(n: int, _: Any, __: Any, name: str, full: Any, free: Any) -> None:
    memory = shared_memory.SharedMemory(name)
    slots = np.ndarray((SLOTS, *LARGE), np.float64, memory.buf)
    try:
        for number in range(n):
            full.acquire()
            slots[number % SLOTS].copy()
            free.release()
    finally:
        del slots
        memory.close()


def _first_call(n: int, queue: Any) -> None:
    for _ in range(n):
        queue.sync.size()


def _ask(n: int, batcher: Any) -> None:
    asyncio.run(_asked(batcher, n))


# What this process does.


class _Beside:
    """Another process, which has been started with some things and does what it is asked to."""

    def __init__(self, *things: Any) -> None:
        self._connection, theirs = _context.Pipe()
        self._process = _context.Process(target=_serve, args=(theirs, *things), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, take: Callable[..., None], n: int) -> None:
        self._connection.send((take, n))

    def seconds(self) -> float:
        return float(self._connection.recv())

    def close(self) -> None:
        self._connection.close()
        self._process.join()


@contextmanager
def _beside(*things: Any) -> Iterator[_Beside]:
    made = _Beside(*things)
    try:
        yield made
    finally:
        made.close()


def _taken(beside: _Beside, take: Callable[..., None], n: int, put: Callable[[], object]) -> float:
    """The seconds per element that the other process takes while this one puts all in."""
    beside.begin(take, n)
    for _ in range(n):
        put()
    return beside.seconds() / n


def _small(mode: Mode) -> Iterator[Comparison]:
    ours, theirs = sync.FIFOQueue(1 << 17), _context.Queue()
    with _beside(ours.share(), theirs) as beside:

        def side(take: Callable[..., None], n: int, put: Callable[[], object]) -> Any:
            return lambda: _taken(beside, take, n, put)

        def put_ours() -> None:
            ours.enqueue(SMALL)

        def put_theirs() -> None:
            theirs.put(SMALL)

        for number, title, target, take, n in (
            ("51", "elements of 100 B to another process, one by one", 0.12, _one_by_one, 5_000),
            ("52", f"the same, {TASKS} tasks wait", 0.25, _in_tasks, 16_000),
            ("53", f"the same, in batches of {BATCH}", 5.0, _in_batches, 50_000),
        ):
            count = mode.scaled(n) // (TASKS * BATCH) * (TASKS * BATCH) or TASKS * BATCH
            yield compare(
                Row(number, title, "multiprocessing.Queue", target),
                side(take, count, put_ours),
                side(_from_theirs, count, put_theirs),
                mode,
                names=("aioqueue", "multiprocessing.Queue"),
            )
    theirs.close()


def _large(mode: Mode) -> Iterator[Comparison]:
    array = np.arange(LARGE[0], dtype=np.float64)
    count = mode.scaled(1000) // 2
    ours, theirs = sync.FIFOQueue(SLOTS, "float64", LARGE), _context.Queue(SLOTS)
    memory = shared_memory.SharedMemory(create=True, size=SLOTS * array.nbytes)
    full, free = _context.Semaphore(0), _context.Semaphore(SLOTS)
    slots: Any = np.ndarray((SLOTS, *LARGE), np.float64, memory.buf)
    numbers = iter(range(1 << 60))

    def put_by_name() -> None:
        segment = shared_memory.SharedMemory(create=True, size=array.nbytes)
        np.ndarray(LARGE, np.float64, segment.buf)[:] = array
        segment.close()
        theirs.put(segment.name)

    def put_in_memory() -> None:
        free.acquire()
        slots[next(numbers) % SLOTS] = array
        full.release()

    try:
        with _beside(ours.share(), theirs, memory.name, full, free) as beside:

            def by_ours() -> float:
                return _taken(beside, _one_by_one, count, lambda: ours.enqueue(array))

            yield compare(
                Row("54", "arrays of 1 MiB to another process", "multiprocessing.Queue", 3.0),
                by_ours,
                lambda: _taken(beside, _from_theirs, count, lambda: theirs.put(array)),
                mode,
                names=("aioqueue", "multiprocessing.Queue"),
            )
            yield compare(
                Row("55", "arrays of 1 MiB to another process", "shared_memory by name", 0.8),
                by_ours,
                lambda: _taken(beside, _by_name, count, put_by_name),
                mode,
                names=("aioqueue", "shared_memory"),
            )
            yield compare(
                Row("58", "arrays of 1 MiB to another process", "memory that both know", 0.8),
                by_ours,
                lambda: _taken(beside, _from_memory, count // SLOTS * SLOTS, put_in_memory),
                mode,
                names=("aioqueue", "two semaphores"),
            )
    finally:
        slots = None  # a view of the memory that is closed
        memory.close()
        memory.unlink()
        theirs.close()


def _doubled(values: list[Any]) -> Any:
    return (np.array(values) * 2).tolist()


async def _asked(batcher: Any, n: int) -> None:
    async def ask(first: int) -> None:
        for value in range(first, n, TASKS):
            assert await batcher.aio(value) == 2 * value

    await asyncio.gather(*(ask(first) for first in range(TASKS)))


def _calls(mode: Mode) -> Comparison:
    count = mode.scaled(20_000)
    batcher = aioqueue.Batcher(_doubled, max_batch=TASKS, max_wait=0)
    ready, is_over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with batcher:
            ready.set()
            await asyncio.to_thread(is_over.wait)

    def direct() -> float:
        began = perf_counter()
        asyncio.run(_asked(batcher, count))
        return (perf_counter() - began) / count

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    try:
        with _beside(batcher.share()) as one, _beside(batcher.share()) as other:

            def shared() -> float:
                one.begin(_ask, count // 2)
                other.begin(_ask, count // 2)
                return max(one.seconds(), other.seconds()) / count

            return compare(
                Row("56", "calls of a batcher by two other processes", "by its own", 0.3),
                shared,
                direct,
                mode,
                names=("from two processes", "in one process"),
            )
    finally:
        is_over.set()
        thread.join()


def _first(mode: Mode) -> Comparison:
    queue = sync.FIFOQueue(1)
    seconds = []
    for _ in range(mode.rounds):
        with _beside(queue.share()) as beside:
            beside.begin(_first_call, 0)  # its imports are done once this is answered
            beside.seconds()
            beside.begin(_first_call, 1)
            seconds.append(beside.seconds())
    row = Row("57", "the first call of a process", f"{FIRST_CALL * 1e3:.0f} ms", 1.0, False)
    figure = f"{statistics.median(seconds) * 1e3:.1f} ms"
    return Comparison(row, [one / FIRST_CALL for one in seconds], {"aioqueue": figure})


def measure(mode: Mode) -> Iterator[Comparison]:
    yield from _small(mode)
    yield from _large(mode)
    yield _calls(mode)
    yield _first(mode)
