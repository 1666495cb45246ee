"""Requests for an explanation from outside: a signal, or ``python -m aioqueue explain PID``.

A daemon thread of the process listens and answers, so it does not matter where the main thread is
or which locks it holds. The signal handler may interrupt the main thread anywhere, so it only
writes a byte to wake that thread. Other processes connect to a Unix socket in a folder that belongs
to the user alone. The thread never waits for one of them, nor for the file of the signal: another
thread writes that. `aioqueue.telemetry.explain_client` asks.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import selectors
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic, sleep
from types import FrameType
from typing import Any, Final, TextIO

from aioqueue.errors import InvalidArgumentError
from aioqueue.telemetry.wait_graph import explain

__all__ = (
    "LONGEST_ANSWER",
    "PREPARE",
    "explain_on_signal",
    "folder_of",
    "prepare_as_asked",
    "socket_of",
)


PREPARE: Final = "AIOQUEUE_EXPLAIN"
"""Environment variable that makes a program listen for requests without a change to its code."""

LONGEST_ANSWER: Final = 1 << 22
"""How many bytes an answer has at most. A longer explanation is cut."""

_log: Final = logging.getLogger("aioqueue")

_WAKE: Final = b"e"

_CUT: Final = "\n... (the rest is too long for an answer)\n"

_MOST_CLIENTS: Final = 64
"""How many clients may read their answers at the same time. One more takes the oldest's place."""

_READING: Final = 60.0
"""How many seconds a client has to read its answer."""

_PAUSE: Final = 0.1
"""How many seconds to wait for a descriptor when this process has none left for a client."""

_WRITING: Final = 1.0
"""How many seconds `undo` waits for an explanation that is being written to a file."""


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
        signum: which signal; ``None`` for SIGUSR2. An existing handler still runs, afterwards.
        file: where to write; ``None`` for the standard error of that moment.

    Returns:
        A function that undoes this; call it in the main thread.

    Raises:
        InvalidArgumentError: `signum` is not a signal that can be handled.
        RuntimeError: this is not the main thread, which alone can set handlers.
        OSError: the folder for sockets cannot be created, its path is too long, or others can
            access it. Or this system has neither that signal nor Unix sockets (Windows): then give
            a signal that it has, or call `explain` in the program.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "explain_on_signal: called in another thread; call it in the main thread, which handles"
            " signals"
        )
    if signum is None:
        signum = getattr(signal, "SIGUSR2", None)
        if signum is None and _lacking():
            raise OSError(
                "explain_on_signal: this system has neither SIGUSR2 nor Unix sockets, so nobody"
                " could ask; pass a signal that it has, such as signum=signal.SIGBREAK, or call"
                " aioqueue.explain() in the program"
            )
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


def _lacking() -> tuple[str, ...]:
    """Return what this system lacks for the socket."""
    from aioqueue import posix  # only when used

    return posix.missing(posix.UNIX_SOCKETS)


class _Listener:
    """A thread that has an explanation written to a file when woken, and sends one to each client.

    Args:
        file: where to write; ``None`` for standard error.
    """

    def __init__(self, file: TextIO | None) -> None:
        self._writer = _Writer(file)
        self._pid = os.getpid()
        self._path: Path | None = None
        self._clients: dict[socket.socket, _Client] = {}  # the oldest first
        with ExitStack() as undo:  # closes all if there is no descriptor left for the next
            self._selector = undo.enter_context(selectors.DefaultSelector())
            self._mine, self._theirs = socket.socketpair()
            undo.callback(self._mine.close)
            undo.callback(self._theirs.close)
            self._theirs.setblocking(False)  # a signal handler must not block
            self._server = None if _lacking() else self._served()
            undo.pop_all()
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
        self._writer.join(_WRITING)

    def _served(self) -> socket.socket:
        """Return a listening socket in the user's own folder.

        Raises:
            PermissionError: another user owns the folder, and could read the explanations.
            OSError: the path is too long.
        """
        from aioqueue import posix  # only when used

        user = posix.own_user()
        folder = folder_of(user)
        folder.mkdir(mode=0o700, exist_ok=True)
        posix.check_private_folder(folder, user)
        _tidy(folder)
        path = socket_of(self._pid, user)
        path.unlink(missing_ok=True)  # left by an earlier process of this pid
        server = posix.listening_socket(path)
        server.setblocking(False)
        self._path = path
        return server

    def _unlink(self) -> None:
        if (
            self._path is not None and os.getpid() == self._pid
        ):  # in a fork, the socket is still the parent's
            self._path.unlink(missing_ok=True)

    def _listen(self) -> None:
        try:
            self._selector.register(self._mine, selectors.EVENT_READ)
            if self._server is not None:
                self._selector.register(self._server, selectors.EVENT_READ)
            while True:
                for key, _ in self._selector.select(self._seconds_left()):
                    if key.fileobj is self._mine:
                        if not self._mine.recv(4096):
                            return
                        self._writer.ask()
                    elif key.fileobj is self._server:
                        self._accept()
                    elif key.fileobj in self._clients:  # it may have been dropped for another
                        self._send(key.data)
                self._drop_the_slow()
        finally:
            self._close_all()

    def _close_all(self) -> None:
        for client in list(self._clients.values()):
            self._drop(client)
        self._selector.close()
        for end in (self._mine, self._theirs, self._server):
            if end is not None:
                end.close()

    def _accept(self) -> None:
        """Take a client, and send what goes at once."""
        from aioqueue import posix  # only when used

        assert self._server is not None
        try:
            connection, _ = self._server.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                sleep(_PAUSE)  # the client is still waiting, and would wake us at once
            return  # or it has gone
        connection.setblocking(False)
        with suppress(OSError):
            if posix.peer_user(connection) in (None, posix.own_user(), posix.ROOT):
                client = _Client(connection)
                if len(self._clients) >= _MOST_CLIENTS:
                    self._drop(next(iter(self._clients.values())))
                self._clients[connection] = client
                self._selector.register(connection, selectors.EVENT_WRITE, client)
                self._send(client)
                return
        connection.close()

    def _send(self, client: _Client) -> None:
        try:
            sent = client.connection.send(client.rest)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            sent = len(client.rest)  # it has gone
        client.rest = client.rest[sent:]
        if not client.rest:
            self._drop(client)

    def _seconds_left(self) -> float | None:
        """Return when the first client has had enough time; ``None`` without clients."""
        if not self._clients:
            return None
        oldest = next(iter(self._clients.values()))
        return max(0.0, oldest.deadline - monotonic())

    def _drop_the_slow(self) -> None:
        now = monotonic()
        for client in list(self._clients.values()):
            if client.deadline > now:
                return
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        del self._clients[client.connection]
        self._selector.unregister(client.connection)
        client.connection.close()


class _Client:
    """A client, what it has not read yet of its answer, and until when it may read."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        answer = _explained().encode("utf-8", "replace")
        if len(answer) > LONGEST_ANSWER:
            cut = answer[: LONGEST_ANSWER - len(_CUT)].decode("utf-8", "ignore")
            answer = (cut + _CUT).encode()
        self.rest = memoryview(answer)
        self.deadline = monotonic() + _READING


class _Writer:
    """Writes explanations to a file, in a thread of its own: the file may be a pipe that is full.

    Args:
        file: where to write; ``None`` for standard error.
    """

    def __init__(self, file: TextIO | None) -> None:
        self._file = file
        self._lock = threading.Lock()  # guards the next two
        self._is_asked = False
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """Have one more explanation written, unless one is waiting to be written already."""
        with self._lock:
            self._is_asked = True
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._write_all, name="aioqueue-explain-writer", daemon=True
                )
                self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait until it has written all, for some time at most."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _write_all(self) -> None:
        while True:
            with self._lock:
                if not self._is_asked:
                    self._thread = None
                    return
                self._is_asked = False
            file: Any = sys.stderr if self._file is None else self._file
            with suppress(OSError, ValueError, AttributeError):  # it may be closed or missing
                file.write(_explained() + "\n")
                file.flush()


def _tidy(folder: Path) -> None:
    """Remove the sockets of processes that were killed."""
    for path in folder.glob("*.sock"):
        try:
            os.kill(int(path.stem), 0)
        except (ProcessLookupError, ValueError):
            path.unlink(missing_ok=True)
        except PermissionError:
            pass  # there is one


def _explained() -> str:
    try:
        return str(explain())
    except Exception:
        return f"aioqueue: the explanation failed\n{traceback.format_exc()}"
