"""Systems that have less than Linux: what works there does, and what does not says so.

They are simulated, as far as that goes: a Python without these names of the standard library, in
this process's children and in theirs. (The jobs of `.github/workflows/ci.yml` run on real ones.)
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import aioqueue

PACKAGE = Path(aioqueue.__file__).parent

ROOM = {
    "system/posix.py",
    "processes/fork_server/client.py",
    "processes/fork_server/server.py",
}
"""The only files that may use what only POSIX systems have. They are imported when used."""

POSIX = {
    "os": "fork getuid geteuid getgid getppid memfd_create waitid killpg getpgid setsid mkfifo",
    "signal": "pthread_sigmask pthread_kill sigwait siginterrupt setitimer SIGKILL SIGALRM SIGUSR1",
    "socket": "AF_UNIX SO_PEERCRED SCM_RIGHTS",
    "fcntl": "fcntl flock ioctl lockf",
}
"""Names of the standard library that other systems lack."""

MODULES = {"fcntl", "resource", "pwd", "grp", "termios"}

WITHOUT = f"""
import _signal, _socket, os, posix, sys
names = {POSIX!r}
del names["fcntl"]
names["os"] += " register_at_fork sched_getaffinity forkpty"
names["signal"] += " SIGUSR2 SIGHUP SIGQUIT SIGRTMIN SIGRTMAX"
names["socket"] += " socketpair"  # Python makes one of two connected sockets
for module in (os, posix, _signal, _socket):
    for name in names[module.__name__.strip("_").replace("posix", "os")].split():
        if hasattr(module, name) and name != "SIGKILL":  # multiprocessing ends processes by it
            delattr(module, name)
for name in {sorted(MODULES)!r}:
    sys.modules[name] = None
"""
"""What Python runs first (`sitecustomize`), so that no module has ever seen these names."""

PROGRAM = """
import asyncio, math, os, signal, socket, sys
import aioqueue
from aioqueue import sync
from aioqueue.inputs import Preemption, numbers

async def trains():
    queue = aioqueue.FIFOQueue(3)

    async def put():
        await queue.enqueue(1)

    async with aioqueue.Coordinator() as coord:
        coord.start(aioqueue.QueueRunner(queue, [put] * 2))
        return sum([await queue.dequeue() for _ in range(5)])

def roots(numbers):
    return [math.sqrt(number) for number in numbers]

if __name__ == "__main__":
    assert not (hasattr(socket, "AF_UNIX") or hasattr(os, "fork") or hasattr(signal, "SIGUSR1"))
    print("core", asyncio.run(trains()))
    queue = sync.FIFOQueue(3)
    with sync.Coordinator() as coord:
        coord.start(sync.QueueRunner(queue, [lambda: queue.enqueue(1)]))
        print("threads", queue.dequeue())
    rooms = {"aioqueue.system.posix", "aioqueue.processes.fork_server.client"}
    print("room", rooms & set(sys.modules))
    for where in ("thread", "process"):
        batches = numbers(8).prepare(math.sqrt, workers=2, where=where).batch(4)
        print(where, [round(float(batch.sum())) for batch in batches])
    with sync.Batcher(roots, max_batch=4, where="process") as batcher:
        print("batcher", batcher(4))
    with Preemption() as preempted:
        print("preempted", bool(preempted))
    print("explained", "nobody waits" in str(aioqueue.explain()))
    try:
        aioqueue.explain_on_signal()
    except OSError as error:
        print("refused", error)
"""

EXPECTED = """\
core 5
threads 1
room set()
thread [4, 9]
process [4, 9]
batcher 2.0
preempted False
explained True
refused explain_on_signal: this system has neither SIGUSR2 nor Unix sockets, so nobody could ask; \
pass a signal that it has, such as signum=signal.SIGBREAK, or call aioqueue.explain() in the program
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it needs no simulation")
def test_core_threads_and_processes_need_nothing_of_posix(tmp_path: Path) -> None:
    tmp_path.joinpath("sitecustomize.py").write_text(WITHOUT)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    path = os.pathsep.join([str(tmp_path), str(PACKAGE.parent)])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True, text=True, timeout=90, env=environment, check=False,
    )  # fmt: skip
    assert done.stdout == EXPECTED, done.stderr
    assert not done.stderr
    asked = subprocess.run(
        [sys.executable, "-m", "aioqueue", "explain", "1"],
        capture_output=True, text=True, timeout=60, env=environment, check=False,
    )  # fmt: skip
    assert "explain: this system has no Unix sockets, which `explain` needs" in asked.stderr


@pytest.mark.slow
def test_posix_is_in_one_room() -> None:
    """Other files neither use these names nor import the room before they need it."""
    names = {f"{module}.{name}" for module, names in POSIX.items() for name in names.split()}
    room = {f"aioqueue.{place.removesuffix('.py').replace('/', '.')}" for place in ROOM}
    words = {name.split(".")[-1] for name in names | room} | MODULES
    suspicious = re.compile(rf"\b(?:{'|'.join(words)})\b")
    users, early = set(), set()
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        place = path.relative_to(PACKAGE).as_posix()
        if place in ROOM or not suspicious.search(text):
            continue
        tree = ast.parse(text)
        for node in ast.walk(tree):
            found = set()
            if isinstance(node, ast.Attribute):
                found = {ast.unparse(node)} & names
            elif isinstance(node, ast.Import):
                found = {one.name for one in node.names} & MODULES
            users |= {f"{place}: {name}" for name in found}
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module == "aioqueue":
                early |= {place for one in node.names if one.name == "posix"}
            elif isinstance(node, ast.ImportFrom) and node.module in room:
                early.add(place)
    assert not users
    assert not early
