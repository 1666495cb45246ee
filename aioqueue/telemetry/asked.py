"""Being asked for an explanation from outside: by a signal, or by ``python -m aioqueue explain``.

A daemon thread of its own listens and answers, so that it does not matter where the main thread is,
nor which locks it holds: a signal handler, which runs in the middle of whatever the main thread was
doing, only writes a byte to wake it. From another process it is asked through a socket, in a folder
that belongs to the user alone.
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
from typing import Any, Final, TextIO

from aioqueue.errors import InvalidArgumentError
from aioqueue.telemetry.explaining import explain

__all__ = ("PREPARE", "explain_on_signal", "folder_of", "prepare_as_asked", "socket_of")

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
