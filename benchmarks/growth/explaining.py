"""Explanations: one more caller that waits costs as much as the last, and the text stays short."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from benchmarks.growth.rows import Run, count, instructions

SIZES = (1_000, 3_000, 10_000)
"""Of the text, which is counted without valgrind."""
FEWER = (100, 300, 1_000)

Calls = Callable[[int], Iterable[Any]]


def _consumers(n: int) -> Iterable[Any]:
    import aioqueue

    queue = aioqueue.FIFOQueue(1)
    return [queue.dequeue() for _ in range(n)]


def _crossed(n: int) -> Iterable[Any]:
    """Half of the callers wait for room in one queue, half for elements of another one."""
    import aioqueue

    full, empty = aioqueue.FIFOQueue(1), aioqueue.FIFOQueue(1)
    return [call for i in range(n // 2) for call in (full.enqueue(i), empty.dequeue())]


def _queues(n: int) -> Iterable[Any]:
    import aioqueue

    return [aioqueue.FIFOQueue(1).dequeue() for _ in range(n)]


def _text(calls: Calls, n: int) -> str:
    """Let n callers wait, and return what explains them. Then they are cancelled."""
    import aioqueue

    async def main() -> str:
        tasks = [asyncio.ensure_future(call) for call in calls(n)]
        for _ in range(8):  # the round in which each begins, and those in which it gives way
            await asyncio.sleep(0)
        text = str(aioqueue.explain())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return text

    return asyncio.run(main())


def _explained(calls: Calls) -> Callable[[int], Run]:
    return lambda n: lambda: _text(calls, n)


def _frames_of_a_slow_stop(n: int) -> float:
    """Return how many frames are read for the log of a stop that waits for n threads."""
    from aioqueue.coordination.workers import as_worker, format_with_places

    read = 0
    current_frames = sys._current_frames

    def counted() -> dict[int, FrameType]:
        nonlocal read
        frames = current_frames()
        read += len(frames)
        return frames

    may_end = threading.Event()
    threads = [threading.Thread(target=may_end.wait) for _ in range(n)]
    for thread in threads:
        thread.start()
    sys._current_frames = counted
    try:
        format_with_places([as_worker(thread) for thread in threads])
    finally:
        sys._current_frames = current_frames
        may_end.set()
        for thread in threads:
            thread.join()
    return read


def _letters(n: int) -> float:
    return n * len(_text(_queues, n))


instructions("explain(), per consumer of one queue", FEWER, _explained(_consumers), at_most=460_000)
instructions("explain(), per caller at two queues", FEWER, _explained(_crossed), at_most=460_000)
instructions("explain(), per queue with a consumer", FEWER, _explained(_queues), at_most=1_000_000)
count("a thread in the log of a slow stop", "frames", (20, 60, 200), _frames_of_a_slow_stop)
count("text of explain(), whatever waits", "letters", SIZES, _letters)
