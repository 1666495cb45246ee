"""What the tests of worker processes share: how to look at them, and at what they leave behind."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel

from aioqueue import sync
from aioqueue.batcher import child as batcher_child
from aioqueue.processes.fork_server.spawn import StartedProcess
from aioqueue.workers.executors import process_child
from aioqueue.workers.runner import prepare
from tests.kit import functions
from tests.kit.preparing import drained

ROOT = Path(__file__).resolve().parents[2]
HAS_PROC = sys.platform == "linux"


@functools.cache
def start_the_forkserver() -> None:
    """Its pipes, and those of the resource tracker, stay open as long as we live."""
    if HAS_PROC:
        # What is imported once there is imported by every process: it starts in no time.
        multiprocessing.set_forkserver_preload(
            [
                functions.__name__,
                process_child.__name__,
                "tests.batcher.functions",
                batcher_child.__name__,
                "tests.sharing.members",
                "aioqueue.sharing.coordinator",
            ]
        )
    process = StartedProcess(daemon=True)
    process.start()
    process.join()
    process.close()
    queue = sync.FIFOQueue(1)  # event loops in threads keep something open too
    assert drained(queue, prepare(async_numbers(0), int, into=queue)) == []


async def async_numbers(n: int) -> AsyncIterator[int]:
    for number in range(n):
        await anyio.lowlevel.checkpoint()
        yield number


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if HAS_PROC else 0


def shared_memory() -> set[str]:
    """What there is of it, but for that of other libraries, which other programs may use now; where
    tests run side by side, without the semaphores of others."""
    names = set(os.listdir("/dev/shm")) if HAS_PROC else set()
    names = {name for name in names if not name.startswith(("torch_", "plasma", "__KMP"))}
    if "PYTEST_XDIST_WORKER" in os.environ:
        names = {name for name in names if not name.startswith("sem.mp-")}
    return names


def pids() -> list[int]:
    """Those of our worker processes."""
    return [child.pid for child in multiprocessing.active_children() if child.pid]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_blocked_in_a_write(pid: int) -> bool:
    """Whether a thread of a process waits for room in a socket; true where that cannot be seen."""
    try:
        places = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/wchan")]
    except OSError:
        return True
    return any(place in ("0", "", "sock_alloc_send_pskb") for place in places)
