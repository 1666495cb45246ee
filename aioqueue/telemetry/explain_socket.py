"""Being asked for an explanation from outside: by a signal, or by ``python -m aioqueue explain``.

A daemon thread of its own listens and answers, so that it does not matter where the main thread is,
nor which locks it holds: a signal handler, which runs in the middle of whatever the main thread was
doing, only writes a byte to wake it. From another process it is asked through a socket, in a folder
that belongs to the user alone.

Asking another process for an explanation, and saying clearly why there is none.
"""

from __future__ import annotations

import argparse
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
from typing import Any, Final, NoReturn, TextIO

from aioqueue.errors import AioQueueError, InvalidArgumentError
from aioqueue.telemetry.wait_graph import explain

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
"""The environment variable by which a program is prepared without being changed."""

_log: Final = logging.getLogger("aioqueue")

_WAKE: Final = b"e"
_HAS_SOCKETS: Final = hasattr(socket, "AF_UNIX")


def explain_on_signal(
    signum: int | None = None, *, file: TextIO | None = None
) -> Callable[[], None]:
    """Have this process explain itself when it is asked from outside, see `explain`.

    By a signal, the explanation is written to a file; by ``python -m aioqueue explain PID`` of the
    same user, it is printed there. A thread of its own answers, whatever the main thread does; the
    signal's handler only wakes it. (A main thread within a call that never returns to Python hears
    no signal; it can still be asked by the command.) A program need not be changed for this:
    ``AIOQUEUE_EXPLAIN=1`` in its environment does the same when aioqueue is imported.

    Args:
        signum: which signal; ``None`` for SIGUSR2, or for none where there is none (on Windows). A
            handler that it has is called as well, afterwards.
        file: where to write; ``None`` for standard error, as it is then.

    Returns:
        What undoes it, to be called in the main thread.

    Raises:
        InvalidArgumentError: it is no signal that can be handled.
        RuntimeError: this is not the main thread, which alone can set handlers.
        OSError: the folder for sockets cannot be made, or is not the user's own alone.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("explain_on_signal: call it in the main thread, which handles signals")
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
    """Do what the environment says, in a program; not in its worker processes."""
    processes = sys.modules.get("multiprocessing")
    is_worker = processes is not None and processes.parent_process() is not None
    is_main = threading.current_thread() is threading.main_thread()
    if os.environ.get(PREPARE, "0") in ("", "0") or is_worker or not is_main:
        return
    try:
        explain_on_signal()
    except OSError as error:  # the program is to run all the same
        _log.warning("%s is set, but this process cannot be asked: %s", PREPARE, error)


def folder_of(uid: int) -> Path:
    """Where the sockets of a user's processes are."""
    return Path(tempfile.gettempdir()) / f"aioqueue-{uid}"


def socket_of(pid: int, uid: int) -> Path:
    """The socket by which a process can be asked."""
    return folder_of(uid) / f"{pid}.sock"


def _handled(signum: int | None, listener: _Listener) -> Callable[[], None]:
    """Have a signal wake the listener; returns what undoes that."""
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
    """A thread that explains, to a file when it is woken, and to whoever connects.

    Args:
        file: where to write; ``None`` for standard error.
    """

    def __init__(self, file: TextIO | None) -> None:
        self._file = file
        self._pid = os.getpid()
        self._path: Path | None = None
        self._server = self._served() if _HAS_SOCKETS else None
        self._mine, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)  # a handler may not wait
        self._thread = threading.Thread(target=self._listen, name="aioqueue-explain", daemon=True)
        atexit.register(self._unlink)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def wake(self) -> None:
        """Have it explain to its file. For signal handlers: does not wait, and takes no lock."""
        try:
            self._theirs.send(_WAKE)
        except OSError:
            pass  # it has been woken often enough, or is closed

    def close(self) -> None:
        """Listen no more."""
        atexit.unregister(self._unlink)
        self._unlink()
        self._theirs.close()  # which ends the thread
        if self._thread.ident is not None:
            self._thread.join()
        else:
            self._close_all()

    def _served(self) -> socket.socket:
        """A socket in the user's own folder.

        Raises:
            PermissionError: somebody else has made the folder, who could read what is told.
        """
        uid = os.getuid()
        folder = folder_of(uid)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
            raise PermissionError(f"{folder} is not a folder of this user's alone")
        _tidy(folder)
        path = socket_of(self._pid, uid)
        path.unlink(missing_ok=True)  # of a process that had this pid before
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
        server.listen()
        self._path = path
        return server

    def _unlink(self) -> None:
        if self._path is not None and os.getpid() == self._pid:  # else it is that of our parent
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
        with suppress(OSError, ValueError, AttributeError):  # it may be closed, or there is none
            file.write(_explained() + "\n")
            file.flush()

    def _answer(self) -> None:
        assert self._server is not None
        with suppress(OSError):  # whoever has asked is gone
            connection, _ = self._server.accept()
            with connection:
                connection.sendall(_explained().encode("utf-8", "replace"))


def _tidy(folder: Path) -> None:
    """Take away the sockets of processes that were killed."""
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
        return f"aioqueue: the explanation has failed\n{traceback.format_exc()}"


_LONGEST = 86_400.0  # seconds

_EXPLAIN = """\
Asks a running process who waits for whom, since when, and for what in the end: queues, workers and
the items that they are at, with the lines of code where they are. The process goes on meanwhile.

It must have been prepared: by aioqueue.explain_on_signal(), or by AIOQUEUE_EXPLAIN=1 in the
environment in which it was started.
"""

_STATES = {
    "T": "is stopped (SIGSTOP): `kill -CONT {pid}` lets it go on",
    "t": "is stopped by a debugger",
    "D": "waits in the kernel for a disk or a network file system",
    "Z": "has ended, and its parent has not noticed yet",
}


class CannotAskError(AioQueueError):
    """A process cannot be asked; the message says why, and what would help."""


def ask(pid: int, timeout: float) -> str:
    """Ask a process why it waits.

    Args:
        pid: of the process.
        timeout: seconds to wait for the answer.

    Raises:
        CannotAskError: there is no such process, it is not ours, is not prepared, or does not
            answer.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise CannotAskError("processes cannot be asked on this system, which has no Unix sockets")
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
        raise CannotAskError("the process has ended while it was asked")
    return b"".join(parts).decode("utf-8", "replace")


def _owner_of(pid: int) -> int:
    """The user that a process belongs to, who must be us (or we are root).

    Raises:
        CannotAskError: there is none, or it is somebody else's.
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
        f"process {pid}{_command_of(pid)} is not prepared to be asked: call"
        f" aioqueue.explain_on_signal() in it, or start it with {PREPARE}=1 in its environment"
        f" (looked for {path})"
    )


def _no_answer(pid: int, timeout: float) -> NoReturn:
    state = state_of(pid)
    why = _STATES.get(state, "may be within a call that holds the GIL").format(pid=pid)
    raise CannotAskError(f"process {pid} has not answered within {timeout:g} s: it {why}")


def state_of(pid: int) -> str:
    """What Linux says of a process, in one letter; empty if that is not known."""
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
    parser = commands.add_parser(
        "explain",
        help="why does it hang? asks a running process",
        description=_EXPLAIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pid", type=_pid, metavar="PID", help="of the process")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="how long to wait for its answer (default: 10)",
    )
    parser.set_defaults(do=lambda given: _show(given.pid, given.timeout, parser.prog))


def _show(pid: int, timeout: float, program: str) -> int:
    """Print the answer; returns the exit status."""
    try:
        sys.stdout.write(ask(pid, timeout) + "\n")
    except CannotAskError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 1
    return 0


def _pid(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected the number of a process")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a number of seconds > 0")
    return seconds
