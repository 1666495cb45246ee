"""Requests for an explanation from outside: a signal, or ``python -m aioqueue explain PID``.

A daemon thread of the process listens and answers, so it does not matter where the main thread is
or which locks it holds. The signal handler may interrupt the main thread anywhere, so it only
writes a byte to wake that thread. Other processes connect to a Unix socket in a folder that belongs
to the user alone. `ask` is the client; it says clearly why there is no answer.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import signal
import socket
import stat
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

from aioqueue.errors import AioQueueError, InvalidArgumentError
from aioqueue.telemetry.wait_graph import explain

if TYPE_CHECKING:
    import argparse

__all__ = (
    "PREPARE",
    "CannotAskError",
    "add_command",
    "ask",
    "explain_on_signal",
    "folder_of",
    "prepare_as_asked",
    "socket_of",
    "state_of",
)


PREPARE: Final = "AIOQUEUE_EXPLAIN"
"""Environment variable that makes a program listen for requests without a change to its code."""

_log: Final = logging.getLogger("aioqueue")

_WAKE: Final = b"e"
_HAS_SOCKETS: Final = hasattr(socket, "AF_UNIX")


def explain_on_signal(
    signum: int | None = None, *, file: TextIO | None = None
) -> Callable[[], None]:
    """Let this process explain itself on request from outside; see `explain`.

    On the signal, it writes the explanation to a file. On ``python -m aioqueue explain PID`` by the
    same user, the command prints it. A daemon thread answers, whatever the main thread does; the
    signal handler only wakes it. (A main thread inside a call that never returns to Python receives
    no signals; the command still works.) You need not change a program for this:
    ``AIOQUEUE_EXPLAIN=1`` in its environment does the same when the program imports aioqueue.

    Args:
        signum: which signal; ``None`` for SIGUSR2, or for no signal on Windows. An existing handler
            still runs, afterwards.
        file: where to write; ``None`` for the standard error of that moment.

    Returns:
        A function that undoes this; call it in the main thread.

    Raises:
        InvalidArgumentError: `signum` is not a signal that can be handled.
        RuntimeError: this is not the main thread, which alone can set handlers.
        OSError: the folder for sockets cannot be created, or others can access it.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "explain_on_signal: called in another thread; call it in the main thread, which handles"
            " signals"
        )
    if signum is None:
        signum = getattr(signal, "SIGUSR2", None)
    listener = _Listener(file)
    undo_signal = _handled(signum, listener)
    listener.start()

    def undo() -> None:
        undo_signal()
        listener.close()

    return undo


def prepare_as_asked() -> None:
    """Do what the environment variable says, except in worker processes."""
    processes = sys.modules.get("multiprocessing")
    is_worker = processes is not None and processes.parent_process() is not None
    is_main = threading.current_thread() is threading.main_thread()
    if os.environ.get(PREPARE, "0") in ("", "0") or is_worker or not is_main:
        return
    try:
        explain_on_signal()
    except OSError as error:  # the program must run all the same
        _log.warning("%s is set, but this process cannot listen for requests: %s", PREPARE, error)


def folder_of(uid: int) -> Path:
    """Return the folder for the sockets of a user's processes."""
    return Path(tempfile.gettempdir()) / f"aioqueue-{uid}"


def socket_of(pid: int, uid: int) -> Path:
    """Return the path of a process's socket."""
    return folder_of(uid) / f"{pid}.sock"


def _handled(signum: int | None, listener: _Listener) -> Callable[[], None]:
    """Make a signal wake the listener; return a function that undoes it."""
    if signum is None:
        return lambda: None
    before = signal.getsignal(signum) if signum in signal.valid_signals() else None

    def handle(number: int, frame: FrameType | None) -> None:
        listener.wake()
        if callable(before):
            before(number, frame)

    try:
        signal.signal(signum, handle)
    except (OSError, ValueError, TypeError) as error:
        listener.close()
        raise InvalidArgumentError(
            f"signum: got {signum!r}; expected a signal that can be handled, such as"
            " signal.SIGUSR2, or None"
        ) from error

    def undo() -> None:
        if signal.getsignal(signum) is handle:
            signal.signal(signum, signal.SIG_DFL if before is None else before)

    return undo


class _Listener:
    """A thread that writes an explanation to a file when woken, and to each client that connects.

    Args:
        file: where to write; ``None`` for standard error.
    """

    def __init__(self, file: TextIO | None) -> None:
        self._file = file
        self._pid = os.getpid()
        self._path: Path | None = None
        self._server = self._served() if _HAS_SOCKETS else None
        self._mine, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)  # a signal handler must not block
        self._thread = threading.Thread(target=self._listen, name="aioqueue-explain", daemon=True)
        atexit.register(self._unlink)

    def start(self) -> None:
        """Start listening."""
        self._thread.start()

    def wake(self) -> None:
        """Make it write to its file. Safe in a signal handler: it neither waits nor takes a
        lock."""
        try:
            self._theirs.send(_WAKE)
        except OSError:
            pass  # the pipe is full, so the thread wakes anyway; or it is closed

    def close(self) -> None:
        """Stop listening."""
        atexit.unregister(self._unlink)
        self._unlink()
        self._theirs.close()  # ends the thread
        if self._thread.ident is not None:
            self._thread.join()
        else:
            self._close_all()

    def _served(self) -> socket.socket:
        """Return a listening socket in the user's own folder.

        Raises:
            PermissionError: another user owns the folder, and could read the explanations.
        """
        uid = os.getuid()
        folder = folder_of(uid)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
            raise PermissionError(
                f"{folder}: expected a folder that this user owns and nobody else can read"
            )
        _tidy(folder)
        path = socket_of(self._pid, uid)
        path.unlink(missing_ok=True)  # left by an earlier process of this pid
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
        server.listen()
        self._path = path
        return server

    def _unlink(self) -> None:
        if (
            self._path is not None and os.getpid() == self._pid
        ):  # in a fork, the socket is still the parent's
            self._path.unlink(missing_ok=True)

    def _listen(self) -> None:
        sources: list[socket.socket] = [self._mine]
        if self._server is not None:
            sources.append(self._server)
        try:
            while True:
                ready = select.select(sources, [], [])[0]
                if self._mine in ready:
                    if not self._mine.recv(4096):
                        return
                    self._write()
                if self._server in ready:
                    self._answer()
        finally:
            self._close_all()

    def _close_all(self) -> None:
        for end in (self._mine, self._theirs, self._server):
            if end is not None:
                end.close()

    def _write(self) -> None:
        file: Any = sys.stderr if self._file is None else self._file
        with suppress(OSError, ValueError, AttributeError):  # the file may be closed or missing
            file.write(_explained() + "\n")
            file.flush()

    def _answer(self) -> None:
        assert self._server is not None
        with suppress(OSError):  # the client has gone
            connection, _ = self._server.accept()
            with connection:
                connection.sendall(_explained().encode("utf-8", "replace"))


def _tidy(folder: Path) -> None:
    """Remove the sockets of processes that were killed."""
    for path in folder.glob("*.sock"):
        try:
            os.kill(int(path.stem), 0)
        except (ProcessLookupError, ValueError):
            path.unlink(missing_ok=True)
        except PermissionError:
            pass


def _explained() -> str:
    try:
        return str(explain())
    except Exception:
        return f"aioqueue: the explanation failed\n{traceback.format_exc()}"


_LONGEST = 86_400.0  # seconds

_EXPLAIN = """\
Shows why a running process waits: who waits for whom, for how long, and what the root cause is,
with queues, workers, their items and lines of code. The process keeps running.

The process must listen for requests: call aioqueue.explain_on_signal() in it, or start it with
AIOQUEUE_EXPLAIN=1 in its environment.
"""

_STATES = {
    "T": "is stopped (SIGSTOP); `kill -CONT {pid}` resumes it",
    "t": "is stopped by a debugger",
    "D": "waits in the kernel for a disk or a network file system",
    "Z": "has ended, but its parent has not reaped it yet",
}


class CannotAskError(AioQueueError):
    """A process cannot be asked for an explanation; the message says why, and what would help."""


def ask(pid: int, timeout: float) -> str:
    """Return the explanation of another process.

    Args:
        pid: the process.
        timeout: seconds to wait for the answer.

    Raises:
        CannotAskError: there is no such process, it belongs to another user, does not listen, or
            does not answer.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise CannotAskError("this system has no Unix sockets, which `explain` needs")
    uid = _owner_of(pid)
    path = socket_of(pid, uid)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(str(path))
            return _all_of(connection)
        except (FileNotFoundError, ConnectionRefusedError):
            _not_prepared(pid, path)
        except PermissionError:
            _not_permitted(pid, uid)
        except TimeoutError:
            _no_answer(pid, timeout)


def _all_of(connection: socket.socket) -> str:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    if not parts:
        raise CannotAskError("the process ended before it answered")
    return b"".join(parts).decode("utf-8", "replace")


def _owner_of(pid: int) -> int:
    """Return the user that a process belongs to: ourselves, unless we are root.

    Raises:
        CannotAskError: there is no such process, or it belongs to another user.
    """
    own = os.getuid()
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        raise CannotAskError(f"there is no process {pid}") from None
    except PermissionError:
        _not_permitted(pid, None)
    proc = Path(f"/proc/{pid}")
    return proc.stat().st_uid if proc.exists() else own


def _not_permitted(pid: int, uid: int | None) -> NoReturn:
    who = "another user" if uid is None else f"user {uid}"
    raise CannotAskError(f"process {pid} belongs to {who}: ask as that user, or as root")


def _not_prepared(pid: int, path: Path) -> NoReturn:
    raise CannotAskError(
        f"process {pid}{_command_of(pid)} does not listen for requests: call"
        f" aioqueue.explain_on_signal() in it, or start it with {PREPARE}=1 in its environment"
        f" (there is no {path})"
    )


def _no_answer(pid: int, timeout: float) -> NoReturn:
    state = state_of(pid)
    why = _STATES.get(state, "may be in a call that holds the GIL").format(pid=pid)
    raise CannotAskError(f"process {pid} did not answer within {timeout:g} s: it {why}")


def state_of(pid: int) -> str:
    """Return the state of a process on Linux, as one letter; empty if unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def _command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    text = b" ".join(words).decode("utf-8", "replace").strip()
    return f" ({text[:60]}{'...' if len(text) > 60 else ''})" if text else ""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``explain PID`` to the commands of a program."""
    import argparse

    parser = commands.add_parser(
        "explain",
        help="show why a running process hangs",
        description=_EXPLAIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pid", type=_pid, metavar="PID", help="the process")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="how long to wait for the answer (default: 10)",
    )
    parser.set_defaults(do=lambda given: _show(given.pid, given.timeout, parser.prog))


def _show(pid: int, timeout: float, program: str) -> int:
    """Print the answer; return the exit status."""
    try:
        sys.stdout.write(ask(pid, timeout) + "\n")
    except CannotAskError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 1
    return 0


def _pid(text: str) -> int:
    from argparse import ArgumentTypeError

    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"got {text!r}; expected a process id")
    return int(text)


def _seconds(text: str) -> float:
    from argparse import ArgumentTypeError

    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST:
        raise ArgumentTypeError(f"got {text!r}; expected a number of seconds > 0")
    return seconds
