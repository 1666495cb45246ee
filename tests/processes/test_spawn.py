"""How worker processes are started; no process is started here."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from types import SimpleNamespace
from typing import Any

import pytest

from aioqueue.processes.fork_server import bootstrap, spawn
from aioqueue.processes.fork_server.bootstrap import CannotStartError
from aioqueue.processes.fork_server.spawn import IgnoresSignals, StartedProcess
from tests.kit.processing import open_files
from tests.kit.worlds import PATIENCE

if sys.platform == "linux":
    from aioqueue.processes.fork_server import client as ours

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no fork server")

UNHEARD = {
    getattr(signal, name, None)
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")
}
"""Signals that are sent to all processes of a program at once."""


@contextmanager
def delaying_exit() -> Iterator[threading.Event]:
    """Hand data to a process until the yielded event is set."""
    begun, continues = threading.Event(), threading.Event()

    def connect(fds: list[int]) -> tuple[int, int]:
        begun.set()
        assert continues.wait(PATIENCE)
        raise MemoryError

    server: Any = ours.ForkServerClient()
    server.server = SimpleNamespace(connect_to_new_process=connect)

    def fork() -> None:
        with pytest.raises(MemoryError):
            server.fork([], b"data")

    thread = threading.Thread(target=fork)
    thread.start()
    try:
        assert begun.wait(PATIENCE)
        yield continues
    finally:
        continues.set()
        thread.join()


@linux
def test_a_fork_of_the_program_has_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, another = StartedProcess(daemon=True), multiprocessing.get_context("spawn").Process()
    children = {ours, another}
    monkeypatch.setattr(multiprocessing.process, "_children", children)
    monkeypatch.setattr(bootstrap, "_PATIENCE", PATIENCE)
    begun, continues = threading.Event(), threading.Event()

    def starts() -> None:
        with spawn.one_at_a_time():
            begun.set()
            assert continues.wait(PATIENCE)

    starting = threading.Thread(target=starts)
    starting.start()
    assert begun.wait(PATIENCE)
    with delaying_exit(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fork while there are threads
        child = os.fork()
        if not child:
            try:
                signal.alarm(int(PATIENCE / 2))
                with spawn.one_at_a_time():  # which a thread had that is not there any more
                    bootstrap.refuse_starts()  # nobody is waited for
                os._exit(0 if children == {another} else 1)
            finally:
                os._exit(2)
        continues.set()
        starting.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert children == {ours, another}


class Begun:
    """A stand-in for a process of multiprocessing: notes the signal mask at its start and run."""

    def __init__(self) -> None:
        self.masks: list[set[Any]] = []
        self.has_run = False

    def start(self) -> None:
        self.masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    def run(self) -> None:
        self.has_run = True


class Ours(IgnoresSignals, Begun):
    """The same with our common base."""


@linux
class TestSignals:
    def test_a_process_starts_with_blocked_signals(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The tracker, too, which is started before."""
        process, before = Ours(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
        monkeypatch.setattr(
            "aioqueue.processes.fork_server.bootstrap.ensure_tracker", Begun.start.__get__(process)
        )
        process.start()
        assert process.masks == [before | UNHEARD] * 2
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before

    def test_a_process_ignores_signals_before_it_unblocks_them(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handlers: dict[int, Any] = {}
        others: list[Any] = []

        def mask(how: int, signals: Any) -> None:
            others.append((how, signals, len(handlers)))

        monkeypatch.setattr(signal, "signal", handlers.__setitem__)
        monkeypatch.setattr(signal, "pthread_sigmask", mask)
        monkeypatch.setattr(signal, "siginterrupt", lambda *given: others.append(given))
        process = Ours()
        process.run()
        assert process.has_run
        handled = handlers.pop(signal.SIGTERM)
        assert handled(signal.SIGTERM, None) is None
        assert handlers == dict.fromkeys(UNHEARD - {signal.SIGTERM}, signal.SIG_IGN)
        assert others == [(signal.SIGTERM, False), (signal.SIG_UNBLOCK, UNHEARD, 6)]


@linux
class TestSpawnedProcess:
    @pytest.fixture(autouse=True)
    def deaf(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It may run here without changing anything."""
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        monkeypatch.setattr(signal, "siginterrupt", lambda *_: None)
        monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
        monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace(prctl=lambda *_: None))
        shared = SimpleNamespace(_forkserver_alive_fd=None)
        monkeypatch.setattr("multiprocessing.forkserver._forkserver", shared)

    def run(self, **environment: str | None) -> None:
        ran: list[int] = []
        process = StartedProcess(target=ran.append, args=(1,), daemon=True)
        process.environment = environment
        process.run()
        assert ran == [1]

    @pytest.mark.parametrize("error", [None, OSError, AttributeError])
    def test_dies_with_the_server(
        self, error: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If the kernel can do that. It never keeps the server alive."""
        asked: list[Any] = []

        class Library:
            def __init__(self, name: str | None) -> None:
                assert name is None

            def prctl(self, *given: int) -> None:
                asked.append(given)
                if error is not None:
                    raise error

        monkeypatch.setattr("ctypes.CDLL", Library)
        alive, other = os.pipe()
        monkeypatch.setattr("multiprocessing.forkserver._forkserver._forkserver_alive_fd", alive)
        self.run()
        assert asked == [(1, signal.SIGKILL)]  # PR_SET_PDEATHSIG
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(alive)
        os.close(other)
        self.run()  # there is nothing more to close

    def test_takes_over_changes_of_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIOQUEUE_OLD", "1")
        monkeypatch.setenv("AIOQUEUE_GONE", "1")
        self.run(AIOQUEUE_OLD="2", AIOQUEUE_GONE=None, AIOQUEUE_NEVER=None)
        assert os.environ["AIOQUEUE_OLD"] == "2"
        assert "AIOQUEUE_GONE" not in os.environ


@linux
class TestTheEndOfTheProgram:
    def test_no_process_is_started_any_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bootstrap, "_is_ending", False)
        assert bootstrap.is_ending() is False
        bootstrap.refuse_starts()
        assert bootstrap.is_ending() is True
        with pytest.raises(CannotStartError, match=r"^the program is ending$") as caught:
            StartedProcess(daemon=True).start()
        assert caught.value.exitcode is None

    def test_the_exit_waits_for_a_process_that_gets_its_data(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bootstrap, "_is_ending", False)
        monkeypatch.setattr(bootstrap, "_PATIENCE", 60.0)
        with delaying_exit() as continues:
            ended = threading.Thread(target=bootstrap.refuse_starts)
            ended.start()
            ended.join(0.02)
            assert ended.is_alive()
            continues.set()
            ended.join()

    def test_the_exit_does_not_wait_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bootstrap, "_is_ending", False)
        monkeypatch.setattr(bootstrap, "_PATIENCE", 0.001)
        with delaying_exit() as continues:
            bootstrap.refuse_starts()
            assert not continues.is_set()
        assert bootstrap.is_ending()


class ServerStandIn:
    """A stand-in for the process of a fork server.

    Args:
        ends: its exit code, where it dies of what it is asked; else it makes a process of number 3.
    """

    def __init__(self, *ends: int | None) -> None:
        self._ends = ends

    def connect_to_new_process(self, fds: list[int]) -> tuple[int, int]:
        if self._ends:
            raise EOFError
        sentinel, writer = os.pipe()
        forkserver.write_signed(writer, 3)
        os.close(writer)
        return sentinel, os.open(os.devnull, os.O_WRONLY)

    def reap(self) -> int | None:
        return self._ends[0]

    def has_ended(self) -> bool:
        return False

    def fits(self) -> bool:
        return True


@linux
class TestTheForkServer:
    @pytest.fixture
    def launched(self, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
        """For each server that was launched: whether it imports the main module."""
        launched: list[bool] = []

        def launch(modules: tuple[str, ...], *, with_main: bool) -> ServerStandIn:
            launched.append(with_main)
            return self.those.pop(0)

        monkeypatch.setattr(ours, "ForkServer", launch)
        return launched

    def server(self, *those: ServerStandIn, has_forked: bool = True) -> Any:
        """Ours, of which one after the other is launched; the first one has forked something, or
        may still die of what it imports."""
        server: Any = ours.ForkServerClient()
        self.those = list(those)
        if has_forked:
            server.server = self.those.pop(0)
        else:
            server.preload("tests.kit.worlds")
        return server

    def close_descriptor(self, server: Any) -> int:
        """Returns the number of the process."""
        sentinel, pipe, pid = server.fork([], b"data")
        os.close(sentinel)
        os.close(pipe)
        return int(pid)

    @pytest.mark.parametrize("is_used", [True, False])
    def test_no_server_is_preloaded_where_processes_are_spawned(
        self, is_used: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ready: list[str] = []
        monkeypatch.setattr(spawn, "uses_fork_server", lambda: is_used)
        monkeypatch.setattr(ours, "preload", ready.append)
        spawn.get_ready("tests.kit.worlds")
        assert ready == (["tests.kit.worlds"] if is_used else [])

    def test_preloading_does_not_wait_for_a_process_that_is_being_started(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ready: list[str] = []
        monkeypatch.setattr(spawn, "uses_fork_server", lambda: True)
        monkeypatch.setattr(ours, "preload", ready.append)
        is_held, continues = threading.Event(), threading.Event()

        def starts() -> None:
            with spawn._starting:
                is_held.set()
                assert continues.wait(PATIENCE)

        starting = threading.Thread(target=starts)
        starting.start()
        assert is_held.wait(PATIENCE)
        spawn.get_ready("tests.kit.worlds")
        assert starting.is_alive()
        continues.set()
        starting.join()
        assert ready == []

    @pytest.mark.parametrize("exitcode", [0, 1, 3])
    def test_one_that_ends_by_itself_is_not_replaced(
        self, exitcode: int, launched: list[bool]
    ) -> None:
        server = self.server(ServerStandIn(exitcode), ServerStandIn())
        message = rf"^the fork server has ended with exit code {exitcode} while it started$"
        with pytest.raises(CannotStartError, match=message) as caught:
            server.fork([], b"")
        assert caught.value.exitcode == exitcode

    @pytest.mark.parametrize("exitcode", [-9, None])
    def test_one_that_was_killed_is_replaced(
        self, exitcode: int | None, launched: list[bool]
    ) -> None:
        server = self.server(ServerStandIn(exitcode), ServerStandIn(exitcode), ServerStandIn())
        assert self.close_descriptor(server) == 3

    def test_after_three_that_were_killed_there_is_no_other(self, launched: list[bool]) -> None:
        server = self.server(*[ServerStandIn(-9)] * 3, ServerStandIn())
        with pytest.raises(CannotStartError, match="is killed again and again") as caught:
            server.fork([], b"")
        assert caught.value.exitcode is None

    @pytest.mark.parametrize("exitcode", [0, 3, -9, None])
    def test_after_a_death_the_next_one_does_not_import_the_main_module(
        self, exitcode: int | None, launched: list[bool]
    ) -> None:
        """It may be the cause. Each process then imports it, and reports the failure."""
        server = self.server(ServerStandIn(exitcode), ServerStandIn(), has_forked=False)
        assert self.close_descriptor(server) == 3
        assert launched == [True, False]

    def test_a_process_that_sends_no_pid_leaves_nothing_open(self, launched: list[bool]) -> None:
        class Dies(ServerStandIn):
            def connect_to_new_process(self, fds: list[int]) -> tuple[int, int]:
                sentinel, theirs = os.pipe()
                os.close(theirs)
                return sentinel, os.open(os.devnull, os.O_WRONLY)

        before = open_files()
        server = self.server(*[Dies(-9)] * 3)
        with pytest.raises(CannotStartError):
            server.fork([], b"")
        assert open_files() == before

    def test_a_message_is_written_as_a_whole(self, launched: list[bool]) -> None:
        here, there = os.pipe()
        message, got = os.urandom(300_000), bytearray()

        def read() -> None:
            while part := os.read(here, 70_000):
                got.extend(part)

        def write(fd: int, data: memoryview) -> int:
            return write_some(fd, data[:7000])  # as many as there is room for

        write_some = os.write

        class Reads(ServerStandIn):
            def connect_to_new_process(self, fds: list[int]) -> tuple[int, int]:
                sentinel, null = super().connect_to_new_process(fds)
                os.dup2(there, null)
                return sentinel, null

        reader = threading.Thread(target=read)
        reader.start()
        server = self.server(Reads())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("aioqueue.processes.fork_server.client.os.write", write)
            sentinel, pipe, _ = server.fork([], message)
        for end in (sentinel, pipe, there):
            os.close(end)
        reader.join()
        os.close(here)
        assert got == message
