"""A process that shares a queue, or uses one of another process, and ends in one of several ways:

    python -m tests.sharing.ends owner|client NAME END

It prints "ready" once it has begun, and ends once a line comes on its standard input, or by a
signal. At that moment, threads and tasks of the process wait at the queue.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from typing import Any

import numpy as np

import aioqueue

LARGE = (1 << 15,)
"""256 KiB of float64, so that they go through shared memory."""


def waits_for_ever(queue: Any) -> None:
    """A thread of the user, which waits at the queue as the process ends."""

    def wait() -> None:
        while True:
            try:
                queue.sync.dequeue_many(1000)
            except aioqueue.AioQueueError:
                return

    threading.Thread(target=wait, daemon=True).start()
    threading.Thread(target=lambda: asyncio.run(wait_in_task(queue)), daemon=True).start()
    while queue.statistics().waiting_dequeues < 2:
        time.sleep(0.001)


async def wait_in_task(queue: Any) -> None:
    try:
        await queue.dequeue_many(1000)
    except aioqueue.AioQueueError:
        pass


def main(role: str, name: str, end: str) -> None:
    if role == "owner":
        queue: Any = aioqueue.FIFOQueue(10_000, "float64", LARGE)
        queue.share(name=name)
    else:
        queue = aioqueue.connect(name, timeout=20)
        queue.sync.enqueue(np.ones(LARGE))
        assert queue.sync.dequeue().sum() == LARGE[0]
    waits_for_ever(queue)
    print("ready", flush=True)
    sys.stdin.readline()
    if end == "exception":
        raise ValueError("as was asked for")
    if end == "exit code":
        sys.exit(3)
    if end == "os._exit":
        os._exit(4)
    if end == "in the middle":  # the interpreter ends while a thread that is no daemon calls

        def call() -> None:
            for _ in range(50):
                try:
                    queue.sync.enqueue(np.zeros(LARGE), timeout=0.001)
                except (aioqueue.AioQueueError, TimeoutError):
                    return

        threading.Thread(target=call).start()
    # Otherwise a normal end, or a signal.


if __name__ == "__main__":
    main(*sys.argv[1:])
