"""However a process ends that shares a queue or uses one: nothing is left of it, on either side."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import aioqueue
from aioqueue.sharing import addresses
from aioqueue.sharing.owner import running_server
from tests.kit.children import ROOT, complaints, environment
from tests.kit.processing import open_files, shared_memory
from tests.kit.worlds import PATIENCE, spin_until
from tests.sharing.ends import LARGE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc"),
]

ENDS: dict[str, tuple[Callable[[subprocess.Popen[str]], object] | None, int, str]] = {
    "normal": (None, 0, ""),
    "exception": (None, 1, "ValueError: as was asked for"),
    "exit code": (None, 3, ""),
    "os._exit": (None, 4, ""),
    "in the middle": (None, 0, ""),
    "SIGTERM": (subprocess.Popen.terminate, -signal.SIGTERM, ""),
    "SIGINT": (lambda process: process.send_signal(signal.SIGINT), -signal.SIGINT, "Keyboard"),
    "SIGKILL": (subprocess.Popen.kill, -signal.SIGKILL, ""),
}
"""How it is made to end, its exit code, and the last line that it prints on stderr."""


@contextmanager
def running(role: str, name: str, end: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-X", "dev", "-m", "tests.sharing.ends", role, name, end],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()[1]
            yield process
        finally:
            process.kill()


def end(process: subprocess.Popen[str], how: str) -> None:
    """Let it end so, and check what it prints."""
    act, code, last_line = ENDS[how]
    if act is not None:
        act(process)
        output, errors = process.communicate(timeout=PATIENCE)
    else:
        output, errors = process.communicate("go\n", timeout=PATIENCE)
    assert process.returncode == code, errors
    assert output == ""
    messages = complaints(errors).strip().splitlines()
    assert (messages[-1] if messages else "").startswith(last_line), errors
    if not last_line:
        assert not messages, errors


def files(pid: int, name: str) -> list[str]:
    """What there is in the folder of shared objects of a process, and of a name."""
    found = (one.name for one in addresses.folder().iterdir())
    return [one for one in found if one.startswith((f"{pid}-", f"{name}."))]


def map_rows() -> None:
    """Have the memory that large rows of all queues are kept in: from then on, it stays."""
    server = running_server()
    assert server is not None
    assert server.row_blocks.block([], 1) is not None


class Open(NamedTuple):
    """How many files are open, and which threads of ours run."""

    files: int
    threads: Counter[str]

    @classmethod
    def now(cls) -> Open:
        names = [one.name for one in threading.enumerate() if "aioqueue" in one.name]
        return cls(open_files(), Counter(names))

    def is_no_more_than(self, before: Open) -> bool:
        """What other tests have left may go meanwhile."""
        return self.files <= before.files and self.threads <= before.threads


@pytest.mark.parametrize("how", ENDS)
def test_of_a_client(how: str) -> None:
    """All that its owner has for it goes; what it had taken and not got is there again."""
    name = f"left-{os.getpid()}-{how.replace(' ', '')}"
    queue: Any = aioqueue.FIFOQueue(10_000, "float64", LARGE)
    queue.share(name=name)
    map_rows()
    before, memory_before = Open.now(), shared_memory()
    with running("client", name, how) as process:
        queue.sync.enqueue_many(np.ones((10, *LARGE)))  # rows that its calls have claimed
        end(process, how)
        spin_until(lambda: queue.statistics().waiting_dequeues == 0)
    spin_until(lambda: queue.statistics().size >= 10)
    spin_until(lambda: Open.now().is_no_more_than(before))
    assert shared_memory() == memory_before
    queue.close()
    assert (queue.sync.dequeue_many(10) == 1).all()


@pytest.mark.parametrize("how", ENDS)
def test_of_an_owner(how: str) -> None:
    """Its clients learn of it at once, and keep nothing of it; nor does the system."""
    before, memory_before = Open.now(), shared_memory()
    name = f"left-owner-{os.getpid()}-{how.replace(' ', '')}"
    with running("owner", name, how) as process:
        assert len(files(process.pid, name)) == 2
        kind, text = what_a_client_gets(process, name, how)
    was_killed = how in ("SIGTERM", "SIGKILL", "os._exit")
    expected = aioqueue.WorkerDiedError if was_killed else aioqueue.OutOfRangeError
    assert kind is expected, text
    if was_killed:
        assert str(process.pid) in text
    spin_until(lambda: Open.now().is_no_more_than(before))
    assert shared_memory() == memory_before
    spin_until(lambda: not files(process.pid, name))


def what_a_client_gets(
    process: subprocess.Popen[str], name: str, how: str
) -> tuple[type[BaseException], str]:
    """Wait at the owner's queue until it ends; return what the call raises."""
    queue: Any = aioqueue.connect(name)
    queue.sync.enqueue(np.ones(LARGE))
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            queue.sync.dequeue_many(2000)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    spin_until(lambda: queue.statistics().waiting_dequeues == 3)
    end(process, how)
    thread.join(PATIENCE)
    (error,) = errors
    return type(error), str(error)


def clients() -> int:
    server = running_server()
    assert server is not None
    return len(server.clients)


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
def test_a_child_ends_while_it_is_connected(start_method: str) -> None:
    """However it was started: its end is no different."""
    import multiprocessing

    context = multiprocessing.get_context(start_method)
    queue: Any = aioqueue.FIFOQueue(3)
    handle = queue.share()
    left: list[Open] = []
    before = clients()  # a process that other tests use may be one
    for _ in range(3):  # the first one leaves what multiprocessing keeps: a tracker, a server
        process = context.Process(target=put_one, args=(handle,))  # type: ignore[attr-defined]
        process.start()
        assert queue.sync.dequeue(timeout=PATIENCE) == process.pid
        process.join(PATIENCE)
        assert process.exitcode == 0
        process.close()
        spin_until(lambda: clients() == before)
        spin_until(lambda: not left or Open.now().is_no_more_than(left[0]))
        left.append(Open.now())


def put_one(queue: Any) -> None:
    queue.sync.enqueue(os.getpid())


def test_a_stopped_client_holds_what_it_has_and_no_more(tmp_path: Path) -> None:
    """Nothing frees what a stopped process holds; all others go on. Its death does."""
    name = f"left-{os.getpid()}-stopped"
    queue: Any = aioqueue.FIFOQueue(10_000, "float64", LARGE)
    queue.share(name=name)
    with running("client", name, "normal") as process:
        process.send_signal(signal.SIGSTOP)
        queue.sync.enqueue_many(np.ones((3, *LARGE)))
        assert queue.statistics().waiting_dequeues == 2
        process.kill()
        process.communicate(timeout=PATIENCE)
        spin_until(lambda: queue.statistics().waiting_dequeues == 0)
        assert len(queue.sync.dequeue_many(3, timeout=PATIENCE)) == 3
