"""Being asked from outside: by a signal, and by ``python -m aioqueue explain``."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import aioqueue
from aioqueue import InvalidArgumentError, posix, sync
from aioqueue.__main__ import main
from aioqueue.telemetry import explain_socket
from aioqueue.telemetry.explain_client import CannotAskError, ask
from tests.telemetry.hangs import HANGS, program_of
from tests.worlds import PATIENCE, core_of, spin_until, threads_of_work

ROOT = Path(aioqueue.__file__).parents[1]

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "SIGUSR2"), reason="there are no such signals, nor Unix sockets"
)

PROGRAM = """
import sys, threading
import aioqueue
from aioqueue import sync

{prepare}
queue = sync.FIFOQueue(8, name="examples")
waiting = lambda: queue.statistics().waiting_dequeues
threading.Thread(target=queue.dequeue, name="trainer", daemon=True).start()
while not waiting():
    pass
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def program(
    prepare: str = "", text: str = PROGRAM, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """A program that waits for ever at a queue."""
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    process = subprocess.Popen(
        [sys.executable, "-c", text.format(prepare=prepare)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the sockets are, in this process and in those that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return explain_socket.folder_of(os.getuid())


class TestSignals:
    def test_the_explanation_is_written_by_another_thread(self, folder: Path) -> None:
        file = io.StringIO()
        undo = aioqueue.explain_on_signal(file=file)
        try:
            queue = sync.FIFOQueue(8, name="examples")
            trainer = threading.Thread(target=lambda: list(queue), name="trainer")
            trainer.start()
            spin_until(lambda: queue.statistics().waiting_dequeues)
            # In the middle of a move of the same queue, whose lock this thread holds.
            with core_of(queue).machine._lock:
                signal.raise_signal(signal.SIGUSR2)
            spin_until(lambda: "no failures" in file.getvalue() or "queues" in file.getvalue())
            queue.close()
            trainer.join(PATIENCE)
        finally:
            undo()
        assert "trainer waits for 1 element in 'examples' (0/8)" in file.getvalue()

    def test_a_handler_that_was_there_is_called_as_well(self, folder: Path) -> None:
        calls: list[Any] = []
        before = signal.signal(signal.SIGUSR2, lambda number, frame: calls.append(number))
        try:
            file = io.StringIO()
            undo = aioqueue.explain_on_signal(file=file)
            signal.raise_signal(signal.SIGUSR2)
            spin_until(lambda: "why process" in file.getvalue())
            undo()
            signal.raise_signal(signal.SIGUSR2)
            assert calls == [signal.SIGUSR2] * 2
        finally:
            signal.signal(signal.SIGUSR2, before)

    def test_undoing_leaves_nothing_behind(self, folder: Path) -> None:
        handler, threads = signal.getsignal(signal.SIGUSR1), threads_of_work()
        undo = aioqueue.explain_on_signal(signal.SIGUSR1)
        assert list(folder.iterdir()) == [folder / f"{os.getpid()}.sock"]
        undo()
        assert signal.getsignal(signal.SIGUSR1) is handler
        assert threads_of_work() <= threads
        assert list(folder.iterdir()) == []

    def test_sockets_of_the_dead_are_taken_away(self, folder: Path) -> None:
        with program("aioqueue.explain_on_signal()") as process:
            left = explain_socket.socket_of(process.pid, os.getuid())
            assert left.exists()
        assert left.exists()  # it was killed
        aioqueue.explain_on_signal()()
        assert not left.exists()

    @pytest.mark.parametrize("wrong", [signal.SIGKILL, 0, 9999])
    def test_a_signal_that_cannot_be_handled_is_refused(self, wrong: int, folder: Path) -> None:
        with pytest.raises(InvalidArgumentError, match=r"^signum: got .*; expected a signal"):
            aioqueue.explain_on_signal(wrong)
        assert list(folder.iterdir()) == []

    def test_only_the_main_thread_can(self) -> None:
        raised: list[BaseException] = []

        def call() -> None:
            try:
                aioqueue.explain_on_signal()
            except RuntimeError as error:
                raised.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join(PATIENCE)
        assert "in the main thread" in str(raised[0])

    def test_a_folder_that_others_can_look_into_is_refused(self, folder: Path) -> None:
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
        with pytest.raises(PermissionError, match=r"expected a folder that user \d+ owns"):
            aioqueue.explain_on_signal()

    def test_a_program_that_cannot_be_prepared_runs_all_the_same(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder.write_text("in the way", encoding="utf-8")
        monkeypatch.setenv(explain_socket.PREPARE, "1")
        explain_socket.prepare_as_asked()
        assert "AIOQUEUE_EXPLAIN is set, but this process cannot listen for requests" in caplog.text


class TestTheCommand:
    @pytest.mark.parametrize("by", ["call", "environment"])
    def test_asks_a_process(
        self, by: str, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        call = "aioqueue.explain_on_signal()" if by == "call" else ""
        with program(call, AIOQUEUE_EXPLAIN="1" if by == "environment" else "") as process:
            assert main(["explain", str(process.pid)]) == 0
        told = capsys.readouterr().out
        assert told.startswith(f"aioqueue: why process {process.pid} waits\n")
        assert "nobody fills 'examples': nothing was ever put in" in told
        assert "trainer waits for 1 element" in told

    def test_a_process_that_is_not_prepared(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with program() as process:
            assert main(["explain", str(process.pid)]) == 1
        told = capsys.readouterr().err
        assert f"process {process.pid} (" in told
        assert "does not listen for requests: call aioqueue.explain_on_signal() in it" in told

    def test_there_is_no_such_process(self, folder: Path) -> None:
        with program() as process:
            pass
        with pytest.raises(CannotAskError, match=f"^there is no process {process.pid}$"):
            ask(process.pid, 1.0)
        with pytest.raises(CannotAskError, match=r"^there is no process"):
            ask(10**20, 1.0)

    def test_a_process_of_somebody_else(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise PermissionError

        monkeypatch.setattr(os, "kill", refuse)
        with pytest.raises(CannotAskError, match="belongs to another user: ask as that user"):
            ask(1, 1.0)

    @pytest.mark.skipif(sys.platform != "linux", reason="the state of a process is read there")
    def test_a_process_that_is_stopped(self, folder: Path) -> None:
        with program("aioqueue.explain_on_signal()") as process:
            process.send_signal(signal.SIGSTOP)
            spin_until(lambda: posix.state_of(process.pid) == "T")
            with pytest.raises(CannotAskError, match=r"within 0.1 s: it is stopped \(SIGSTOP\)"):
                ask(process.pid, 0.1)

    def test_helps(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([]) == 0
        assert "why a running process hangs" in capsys.readouterr().out
        with pytest.raises(SystemExit) as ended:
            main(["explain", "--help"])
        assert ended.value.code == 0
        assert "AIOQUEUE_EXPLAIN=1" in capsys.readouterr().out

    @pytest.mark.parametrize(
        "wrong", [["explain"], ["explain", "0"], ["explain", "-1"], ["explain", "x"], ["explian"]]
    )
    def test_what_is_not_understood_is_refused(
        self, wrong: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            main(wrong)
        assert ended.value.code == 2
        assert "usage: python -m aioqueue" in capsys.readouterr().err

    @pytest.mark.parametrize("wrong", ["0", "-1", "soon", "nan"])
    def test_the_timeout_is_a_number_of_seconds(self, wrong: str) -> None:
        with pytest.raises(SystemExit):
            main(["explain", "1", f"--timeout={wrong}"])

    @pytest.mark.slow
    def test_is_a_command_of_the_package(self) -> None:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "aioqueue", "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=50,
            check=True,
        )
        assert done.stdout.startswith("usage: python -m aioqueue [-h] COMMAND")


@pytest.mark.slow
@pytest.mark.parametrize("what", HANGS)
def test_who_is_to_blame_is_named_by_call_by_pid_and_by_watchdog(what: str, folder: Path) -> None:
    """By its own call the program is ready, and then it is asked from outside."""
    words, _ = HANGS[what]
    file = folder.parent / "hangs.py"  # what has no file of its own is not told as the user's
    file.write_text(program_of(what))
    start = f"import runpy; runpy.run_path({str(file)!r})"
    with program(text=start, AIOQUEUE_EXPLAIN="1") as process:
        first, culprit, *_ = ask(process.pid, PATIENCE).splitlines()
        assert process.stderr is not None
        title = f"aioqueue: why process {process.pid} waits"
        before = line = ""
        while not (before.rstrip() == title and words in line):
            # It may have warned of a process that had not started yet, before.
            before, line = line, process.stderr.readline()
            assert line, "the watchdog has not named it"
    assert first == title
    assert words in culprit
