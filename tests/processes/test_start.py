"""How worker processes are started, as far as it is decided without any."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import signal
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from aioqueue.processes import start
from aioqueue.processes.start import CannotStartError, StartedProcess
from tests.inputs.prepare.processing import open_files

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no fork server")


def test_in_a_fork_of_the_program_no_process_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, another = StartedProcess(daemon=True), multiprocessing.get_context("spawn").Process()
    children, forgot = {ours, another}, list[str]()
    monkeypatch.setattr(multiprocessing.process, "_children", children)
    monkeypatch.setattr(start, "_forget_server", lambda: forgot.append("server"))
    for lock in ("_starting", "_handing_over"):
        monkeypatch.setattr(start, lock, getattr(start, lock))
    before = start._starting
    with before, start._handing_over:  # by threads that are not there any more
        start._after_fork()
        assert start._starting is not before
        assert not start._handing_over.locked()
    assert children == {another}
    assert forgot == ["server"]


@linux
class TestSignals:
    def test_what_is_started_hears_none(self) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        with start._signals_blocked():
            assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before | start._UNHEARD
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before

    def test_a_process_stops_listening_before_it_lets_them_in(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handlers: dict[int, Any] = {}
        others: list[Any] = []

        def mask(how: int, signals: Any) -> None:
            others.append((how, signals, len(handlers)))

        monkeypatch.setattr(signal, "signal", handlers.__setitem__)
        monkeypatch.setattr(signal, "pthread_sigmask", mask)
        monkeypatch.setattr(signal, "siginterrupt", lambda *given: others.append(given))
        start._stop_listening()
        handled = handlers.pop(signal.SIGTERM)
        assert handled(signal.SIGTERM, None) is None
        names = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2")
        assert handlers == {signal.Signals[name]: signal.SIG_IGN for name in names}
        assert others == [
            (signal.SIGTERM, False),
            (signal.SIG_UNBLOCK, start._UNHEARD, 6),
        ]

    @pytest.mark.parametrize("error", [None, OSError, AttributeError])
    def test_a_process_dies_with_the_server(
        self, error: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where the kernel can do that, and it does not keep the server alive in any case."""
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
        shared = SimpleNamespace(_forkserver_alive_fd=alive)
        monkeypatch.setattr("multiprocessing.forkserver._forkserver", shared)
        start._die_with_the_server()
        assert asked == [(1, signal.SIGKILL)]  # PR_SET_PDEATHSIG
        assert shared._forkserver_alive_fd is None
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(alive)
        os.close(other)
        start._die_with_the_server()  # there is nothing more to close


class TestTheEndOfTheProgram:
    def test_no_process_is_started_then(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(start, "_is_ending", False)
        assert start.is_ending() is False
        start.no_more()
        assert start.is_ending() is True
        with pytest.raises(CannotStartError, match=r"^the program is ending$") as caught:
            StartedProcess(daemon=True).start()
        assert caught.value.exitcode is None

    def test_a_process_that_gets_its_data_is_waited_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(start, "_is_ending", False)
        monkeypatch.setattr(start, "_PATIENCE", 60.0)
        start._handing_over.acquire()
        ended = threading.Thread(target=start.no_more)
        ended.start()
        try:
            ended.join(0.02)
            assert ended.is_alive()
        finally:
            start._handing_over.release()
        ended.join()
        assert not start._handing_over.locked()

    def test_but_not_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(start, "_is_ending", False)
        monkeypatch.setattr(start, "_PATIENCE", 0.001)
        with start._handing_over:
            start.no_more()
            assert start._handing_over.locked()
        assert start.is_ending()


@linux
class TestTheForkServer:
    def server(self, monkeypatch: pytest.MonkeyPatch, *ends: Any) -> Any:
        """One that fails each time, and has then ended so."""
        server = start._Server()
        left = list(ends)

        def fail(fds: list[int], message: bytes) -> Any:
            if not left:
                return 1, 2, 3
            raise EOFError

        monkeypatch.setattr(server, "_handed_over", fail)
        monkeypatch.setattr(server, "_bury", lambda: left.pop(0))
        return server

    @pytest.mark.parametrize("exitcode", [0, 1, 3])
    def test_one_that_ends_by_itself_would_do_so_again(
        self, exitcode: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = self.server(monkeypatch, exitcode, None, None)
        message = rf"^the fork server has ended with exit code {exitcode} while it started$"
        with pytest.raises(CannotStartError, match=message) as caught:
            server.hand_over([], b"")
        assert caught.value.exitcode == exitcode

    @pytest.mark.parametrize("exitcode", [-9, None])
    def test_one_that_was_killed_is_replaced(
        self, exitcode: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.server(monkeypatch, exitcode, exitcode).hand_over([], b"") == (1, 2, 3)

    def test_three_that_were_killed_are_enough(self, monkeypatch: pytest.MonkeyPatch) -> None:
        server = self.server(monkeypatch, -9, -9, -9)
        with pytest.raises(CannotStartError, match="is killed again and again") as caught:
            server.hand_over([], b"")
        assert caught.value.exitcode is None

    @pytest.mark.parametrize("exitcode", [0, 3, -9, None])
    def test_the_main_module_may_be_what_it_has_died_of(
        self, exitcode: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Then the next one leaves that to the processes, which tell what it is."""
        server = self.server(monkeypatch, exitcode)
        server._may_be_main = True
        assert server._with_main
        assert server.hand_over([], b"") == (1, 2, 3)
        assert (server._with_main, server._may_be_main) == (False, False)

    def test_a_process_that_does_not_tell_its_number_leaves_nothing_open(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = open_files()
        server: Any = start._Server()
        server.server = SimpleNamespace()

        def connect(fds: list[int], message: bytes) -> tuple[int, int]:
            sentinel, theirs = os.pipe()
            os.close(theirs)
            return sentinel, os.open(os.devnull, os.O_WRONLY)

        monkeypatch.setattr(server, "_connect", connect)
        with pytest.raises(EOFError):
            server._handed_over([], b"")
        assert open_files() == before

    def test_what_has_changed_in_the_environment_is_taken_over(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIOQUEUE_OLD", "1")
        monkeypatch.setenv("AIOQUEUE_GONE", "1")
        start._take_over({"AIOQUEUE_OLD": "2", "AIOQUEUE_GONE": None, "AIOQUEUE_NEVER": None})
        assert os.environ["AIOQUEUE_OLD"] == "2"
        assert "AIOQUEUE_GONE" not in os.environ

    def test_all_of_a_message_is_written(self) -> None:
        here, there = os.pipe()
        message, got = os.urandom(300_000), bytearray()

        def read() -> None:
            while part := os.read(here, 70_000):
                got.extend(part)

        reader = threading.Thread(target=read)
        reader.start()
        start._write(there, message)
        os.close(there)
        reader.join()
        os.close(here)
        assert got == message
