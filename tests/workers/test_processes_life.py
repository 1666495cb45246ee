"""A worker process belongs to its program until its end.

It lives through the signals that are sent to all of them, and no longer than the program.
"""

from __future__ import annotations

import functools
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, popen_forkserver, process, resource_tracker, spawn, util
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from aioqueue import WorkerDiedError, sync
from aioqueue.processes.channel import Channel, channels
from aioqueue.processes.fork_server.spawn import StartedProcess
from aioqueue.workers.executors.chunks import SendPace
from aioqueue.workers.runner import prepare
from tests.kit import functions
from tests.kit.preparing import drained, failures_of
from tests.kit.processing import (
    HAS_PROC,
    ROOT,
    is_blocked_in_a_write,
    is_running,
    open_files,
    parent_of,
    pids,
)
from tests.kit.worlds import PATIENCE, spin_until, waiting

pytestmark = pytest.mark.skipif(not HAS_PROC, reason="looks into /proc")
in_this_process = pytest.mark.usefixtures("nothing_is_left")

SIGNALS = ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2"]


@contextmanager
def program(text: str, *arguments: object, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a session of its own, of which nothing is left afterwards."""
    script = path / "program.py"
    script.write_text(text)
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(script), *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            yield running
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)


def run(text: str, *arguments: object, path: Path) -> tuple[str, str, int]:
    """Run a program to its end; return its output, its error output and its exit code."""
    with program(text, *arguments, path=path) as running:
        output, errors = running.communicate(timeout=100)
    return output, errors, running.returncode


SIGNALLED = """
import multiprocessing, os, signal, sys, threading
from aioqueue import sync
from aioqueue.processes import worker_process as processes
from aioqueue.workers.runner import prepare
from tests.kit.functions import SpawnedProcess, double, never_ends

def family():
    \"\"\"How many processes there are in our group, the resource tracker and all.\"\"\"
    return sum(1 for pid in os.listdir("/proc") if pid.isdigit() and group_of(pid) == os.getpid())

def group_of(pid):
    try:
        return os.getpgid(int(pid))
    except ProcessLookupError:
        return 0

def signal_all():
    for number in numbers:
        os.killpg(os.getpid(), number)

def signal_each_that_starts():
    seen = 1
    while not over.is_set():
        now = family()
        if now > seen:
            seen = now
            signal_all()
        if seen == 5:
            all_there.set()
    print("processes", seen)

def signal_always():
    times = 0
    while not over.is_set():
        signal_all()
        times += 1
        if times > 50:
            many.set()
        over.wait(0.001)
    print("times", times)

def source():
    for number in range(400):
        if number in (0, 200, 399):
            signal_all()
        if number == 200:
            (all_there if sys.argv[1] == "each" else many).wait()
        yield number
    signal_all()

if __name__ == "__main__":
    numbers = [getattr(signal, name) for name in sys.argv[2].split()]
    heard, all_there, many, over = set(), *(threading.Event() for _ in range(3))
    for number in numbers:
        signal.signal(number, lambda number, frame: heard.add(number))
    if sys.argv[3] == "spawned":
        processes.StartedProcess = SpawnedProcess
    queue = sync.FIFOQueue(16)
    when = {"each": signal_each_that_starts, "always": signal_always}[sys.argv[1]]
    watcher = threading.Thread(target=when)
    watcher.start()
    with sync.Coordinator() as coord:
        runner = prepare(source(), double, into=queue, where="process", workers=2)
        coord.start(runner)
        got = [queue.dequeue()]
        signal_all()
        got += queue
    signal_all()
    over.set()
    watcher.join()
    print("every item once", sorted(got) == list(range(0, 800, 2)))
    print("heard all", heard == set(numbers))
    print("died", runner.statistics().workers_died)
"""


class TestSignalsToAllProcesses:
    """They are for the program, which may handle them and continue."""

    @pytest.mark.slow
    @pytest.mark.parametrize("name", SIGNALS)
    def test_at_each_moment_of_a_start_and_later(self, name: str, tmp_path: Path) -> None:
        """From the moment at which the process can be seen: none of our code has run by then."""
        output, errors, code = run(SIGNALLED, "each", name, "forked", path=tmp_path)
        assert errors == ""
        assert code == 0
        # Ourselves, the resource tracker, the fork server, and two workers.
        assert output == "processes 5\nevery item once True\nheard all True\ndied 0\n"

    @pytest.mark.slow
    @pytest.mark.parametrize("how", ["forked", "spawned"])
    def test_all_signals_all_the_time(self, how: str, tmp_path: Path) -> None:
        output, errors, code = run(SIGNALLED, "always", " ".join(SIGNALS), how, path=tmp_path)
        assert errors == ""
        assert code == 0
        times, rest = output.split("\n", 1)
        assert int(times.split()[1]) > 50
        assert rest == "every item once True\nheard all True\ndied 0\n"

    @in_this_process
    def test_programs_that_the_function_starts_get_them(self) -> None:
        """They end such programs, as always."""
        queue = sync.FIFOQueue(4)
        runner = prepare([0], functions.ends_a_program, into=queue, where="process", workers=1)
        assert drained(queue, runner) == [-signal.SIGTERM]


BUSY = """
import functools, os, signal, sys, time, warnings
from aioqueue import sync
from aioqueue.workers.runner import prepare
from tests.kit.functions import never_ends_that_way

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # it has threads, and forks
    path, how = sys.argv[1:]
    for name in ("SIGTERM", "SIGINT", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    queue = sync.FIFOQueue(16)
    function = functools.partial(never_ends_that_way, path, how)
    sync.Coordinator().start(prepare(range(9), function, into=queue, where="process", workers=2))
    while sum(name.startswith("begun") for name in os.listdir(path)) < 2:
        time.sleep(0.001)
    if "program has a fork" in how:
        if (pid := os.fork()) == 0:
            time.sleep(600)
        with open(os.path.join(path, f"helper-{pid}"), "w") as file:
            file.write(str(pid))
    print("ready", flush=True)
    if how.startswith("killed"):
        time.sleep(600)
"""

WAYS = ["", "deaf", "holds the GIL", "forked", "deaf, forked, holds the GIL"]


class TestTheEndOfTheProgram:
    """It ends the workers, whatever ends it and whatever they do."""

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("end", "how"),
        [
            *[("killed", way) for way in WAYS],
            *[("killed", f"{way}, program has a fork") for way in WAYS[:2]],
            *[("falls off its end", way) for way in (WAYS[0], WAYS[-1])],
            ("falls off its end", f"{WAYS[2]}, program has a fork"),
        ],
    )
    def test_no_worker_outlives_it(self, end: str, how: str, tmp_path: Path) -> None:
        with program(BUSY, tmp_path, f"{end}, {how}", path=tmp_path) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            assert running.stdout.readline() == "ready\n", running.stderr.read()
            workers = [int(path.name[6:]) for path in tmp_path.glob("begun-*")]
            assert len(workers) == 2
            if end == "killed":
                assert all(map(is_running, workers))
                running.kill()
            assert running.wait(PATIENCE) == (-signal.SIGKILL if end == "killed" else 0)
            spin_until(lambda: not any(map(is_running, workers)))
            for path in tmp_path.glob("helper-*"):
                os.kill(int(path.read_text()), signal.SIGKILL)
            assert running.stderr.read() == ""

    @pytest.mark.slow
    @pytest.mark.parametrize("processes", [1, 2, 3, 4, 5])
    def test_while_processes_start(self, processes: int, tmp_path: Path) -> None:
        """It prints nothing."""
        text = (
            SIGNALLED.split("def signal_all")[0]
            + """
if __name__ == "__main__":
    queue = sync.FIFOQueue(16)
    sync.Coordinator().start(prepare(range(9), never_ends, into=queue, where="process", workers=3))
    while family() < int(sys.argv[1]):
        pass
"""
        )
        assert run(text, processes, path=tmp_path) == ("", "", 0)

    @pytest.mark.slow
    def test_a_fork_of_the_program_ends(self, tmp_path: Path) -> None:
        """That does not end the program or its workers."""
        text = (
            SIGNALLED.split("def family")[0]
            + """
import atexit, warnings

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # we have threads, and fork
    queue = sync.FIFOQueue(4)
    with sync.Coordinator() as coord:
        runner = prepare(range(100), double, into=queue, where="process", workers=2)
        coord.start(runner)
        got = [queue.dequeue()]
        if (pid := os.fork()) == 0:
            atexit._run_exitfuncs()
            os._exit(0)
        print(os.waitpid(pid, 0)[1])
        got += queue
    print(sorted(got) == list(range(0, 200, 2)), runner.statistics().workers_died)
"""
        )
        assert run(text, path=tmp_path) == ("0\nTrue 0\n", "", 0)


@in_this_process
class TestTheEndOfAProcess:
    def test_a_process_that_it_started_lives_longer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It has a copy of the end of the pipe, which contains half a message."""
        # One item is sent ahead, also where the first one took so long that none would be.
        monkeypatch.setattr(SendPace, "chunk", lambda pace: (1, 1))
        queue = sync.FIFOQueue(1)
        function = functools.partial(functions.sends_much, str(tmp_path))
        runner = prepare(range(4), function, into=queue, where="process", workers=1)
        with sync.Coordinator() as coord:
            coord.start(runner)
            spin_until(lambda: waiting(queue) > 0)  # and does not read
            (pid,) = pids()
            spin_until(lambda: is_blocked_in_a_write(pid))
            os.kill(pid, signal.SIGKILL)
            assert [len(example) for (example,) in queue] == [2_000_000] * 4
        assert runner.statistics().workers_died == 1
        (helper,) = (int(path.read_text()) for path in tmp_path.glob("helper-*"))
        assert is_running(helper)
        os.kill(helper, signal.SIGKILL)

    @pytest.mark.slow
    def test_the_fork_server_is_killed(self) -> None:
        """Its processes die with it. The server and the processes are replaced."""
        queue = sync.FIFOQueue(4)
        runner = prepare(range(100), functions.double, into=queue, where="process", workers=2)
        with sync.Coordinator() as coord:
            coord.start(runner)
            got = [queue.dequeue()]
            spin_until(lambda: len(pids()) == 2)
            old = pids()
            os.kill(parent_of(old[0]), signal.SIGKILL)
            got += queue
        assert sorted(got) == list(range(0, 200, 2))
        spin_until(lambda: not any(map(is_running, old)))

    def test_it_ends_before_it_can_work(self) -> None:
        """The message does not name the guard: the main module was imported."""
        queue = sync.FIFOQueue(4)
        runner = prepare([0], functions.LeavesBefore(), into=queue, where="process", workers=1)
        with pytest.raises(ExceptionGroup) as caught:
            drained(queue, runner)
        (reported,) = failures_of(caught.value)
        assert "has ended with exit code 3 while it started: its error output says more" in reported
        assert "__main__" not in reported

    @pytest.mark.slow(every=4)
    @pytest.mark.parametrize("spare", range(20, 60, 4))
    def test_many_start_at_once_with_too_few_descriptors(self, spare: int) -> None:
        """None takes them from another start, which would end the server of all."""
        before = open_files()
        with bystander() as (process, server):
            queue = sync.FIFOQueue(4)
            source = range(2, 99)
            runner = prepare(source, functions.never_ends, into=queue, where="process", workers=20)
            with descriptors(spare):
                outcome = outcome_of(lambda: drained(queue, runner))
            assert outcome == WorkerDiedError
            assert is_running(server)
            assert process.is_alive()
        spin_until(lambda: open_files() <= before)

    @pytest.mark.slow(but=("6-runs", "0-runs"))
    @pytest.mark.parametrize(
        ("spare", "server"),
        [
            *[(spare, "runs") for spare in range(0, 36, 3)],
            *[(spare, "was killed") for spare in range(0, 36, 5)],
        ],
    )
    def test_there_are_too_few_descriptors(self, spare: int, server: str) -> None:
        """No descriptor leaks."""
        before = open_files()
        if server == "was killed":
            kill_the_fork_server()
        queue = sync.FIFOQueue(4)
        runner = prepare(range(3), functions.double, into=queue, where="process", workers=2)
        with descriptors(spare):
            outcome = outcome_of(lambda: sorted(drained(queue, runner)))
        assert outcome == WorkerDiedError if spare < 12 else outcome in ([0, 2, 4], WorkerDiedError)
        spin_until(lambda: open_files() <= before)
        # Nor has the fork server come to harm for good.
        queue = sync.FIFOQueue(4)
        runner = prepare(range(3), functions.double, into=queue, where="process", workers=1)
        assert sorted(drained(queue, runner)) == [0, 2, 4]


@contextmanager
def bystander() -> Iterator[tuple[StartedProcess, int]]:
    """Start a process that does nothing; return it and the pid of the fork server."""
    process = StartedProcess(target=functions.never_ends, args=(2,), daemon=True)
    process.start()
    assert process.pid is not None
    try:
        yield process, parent_of(process.pid)
    finally:
        process.kill()
        process.join(PATIENCE)
        process.close()


def kill_the_fork_server() -> None:
    with bystander() as (process, server):
        os.kill(server, signal.SIGKILL)
        process.join(PATIENCE)


@contextmanager
def descriptors(spare: int) -> Iterator[None]:
    """Let this process open only a few more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, hard))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(1))
        for _ in range(spare):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


def outcome_of(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or the types of the failures that it raises."""
    try:
        return call()
    except ExceptionGroup as group:
        (kind,) = {type(error) for error in group.exceptions}
        return kind


def socket_of(channel: Channel) -> socket.socket:
    """Pass a channel as to another process."""
    _, (end,) = channel.__reduce__()
    assert isinstance(end, socket.socket)
    return end


class End:
    """The other end of a channel, its process, and a helper that never closes the pipe."""

    def __init__(self) -> None:
        self.ours, theirs = channels()
        self.raw: socket.socket = socket_of(theirs).dup()
        theirs.close()
        sentinel, self._alive = os.pipe()
        self.sentinel = sentinel
        self.ours.watch(sentinel)

    def dies(self) -> None:
        os.close(self._alive)

    def close(self) -> None:
        self.ours.close()
        self.raw.close()
        os.close(self.sentinel)


@pytest.fixture
def end() -> Iterator[End]:
    end = End()
    yield end
    end.close()


class TestChannels:
    """The death of a process is noticed, even if another one has its end of the pipe."""

    def test_whole_messages_are_read_after_its_death(self, end: End) -> None:
        for message in (b"one", b"", bytes(50_000)):
            end.raw.sendall(struct.pack("!Q", len(message)) + message)
        end.dies()
        assert [end.ours.receive() for _ in range(3)] == [b"one", b"", bytes(50_000)]
        with pytest.raises(EOFError):
            end.ours.receive()

    @pytest.mark.parametrize("part", [b"", b"\0\0\0", struct.pack("!Q", 9), bytes(7) + b"\x09half"])
    @pytest.mark.parametrize("first", ["waits", "dies"])
    def test_half_a_message_is_dropped(self, end: End, part: bytes, first: str) -> None:
        end.raw.sendall(part)
        if first == "dies":
            end.dies()
            with pytest.raises(EOFError):
                end.ours.receive()
            return
        failed = raised_in_a_thread(end.ours.receive)
        end.dies()
        spin_until(lambda: failed)
        assert isinstance(failed[0], EOFError)

    def test_sending_to_a_process_that_does_not_read(self, end: End) -> None:
        failed = raised_in_a_thread(lambda: end.ours.send(bytes(5_000_000)))
        spin_until(lambda: not is_writable(end.ours))
        end.dies()
        spin_until(lambda: failed)
        assert isinstance(failed[0], EOFError)

    def test_large_messages_both_ways(self) -> None:
        one, other = channels()
        message = os.urandom(3_000_000)
        thread = threading.Thread(target=one.send, args=(message,), daemon=True)
        thread.start()
        assert other.receive() == message
        thread.join(PATIENCE)
        one.close()
        with pytest.raises(EOFError):
            other.receive()
        other.close()

    def test_a_fork_does_not_keep_it_open(self) -> None:
        one, other = channels()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # there may be other threads
            pid = os.fork()
        if pid == 0:
            signal.pause()
            os._exit(0)
        try:
            one.close()
            failed = raised_in_a_thread(other.receive)
            spin_until(lambda: failed)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        assert isinstance(failed[0], EOFError)
        other.close()

    def test_it_ignores_the_default_timeout_of_sockets(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        socket.setdefaulttimeout(0.01)
        try:
            one, other = channels()
        finally:
            socket.setdefaulttimeout(None)
        failed = raised_in_a_thread(other.receive)
        assert not other.comes_within(0.05)
        assert failed == []
        one.close()
        spin_until(lambda: failed)
        assert isinstance(failed[0], EOFError)
        other.close()


def raised_in_a_thread(call: Callable[[], Any]) -> list[BaseException]:
    """Make a call in a thread; its failure will be in the list."""
    raised: list[BaseException] = []

    def body() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    threading.Thread(target=body, daemon=True).start()
    return raised


def is_writable(channel: Channel) -> bool:
    poll = select.poll()
    poll.register(socket_of(channel), select.POLLOUT)
    return bool(poll.poll(0))


class TestPrivatePartsOfMultiprocessing:
    """`processes.fork_server` relies on them."""

    def test_the_fork_server(self) -> None:
        server: Any = forkserver.ForkServer()
        assert (server._forkserver_pid, server._forkserver_alive_fd) == (None, None)
        server.set_forkserver_preload([])
        assert server._preload_modules == []
        assert callable(server.ensure_running)
        assert callable(server.connect_to_new_process)
        shared: Any = forkserver._forkserver
        assert isinstance(shared, forkserver.ForkServer)
        assert callable(forkserver.read_signed)

    def test_a_process(self) -> None:
        assert isinstance(process._children, set)  # type: ignore[attr-defined]
        assert callable(ForkServerProcess._Popen)
        popen: Any = popen_forkserver.Popen
        for name in (
            "_launch",
            "poll",
            "wait",
            "kill",
            "terminate",
            "close",
            "duplicate_for_child",
        ):
            assert callable(getattr(popen, name)), name

    def test_the_data_for_a_process(self) -> None:
        assert "name" in spawn.get_preparation_data("a name")
        assert callable(util.Finalize)
        assert callable(util.close_fds)  # type: ignore[attr-defined]

    def test_the_resource_tracker(self) -> None:
        resource_tracker.ensure_running()
        assert callable(resource_tracker.getfd)
