"""Requests for an explanation from outside: a signal, or ``python -m aioqueue explain PID``.

A daemon thread of the process listens and answers, so it does not matter where the main thread is
or which locks it holds. The signal handler may interrupt the main thread anywhere, so it only
writes a byte to wake that thread. Other processes connect to a Unix socket in a folder that belongs
to the user alone. The thread never waits for one of them, nor for the file of the signal: another
thread writes that.

**The other end.** Anyone may make files in the folder for temporary files. So `ask` accepts an
answer only from the process's user: it checks the owner and the permissions of the folder and the
socket, and, where the system knows it, who is at the other end. An answer has bounds in size and
time, and its control characters are escaped.
"""

from __future__ import annotations

import argparse
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
from typing import Any, Final, NoReturn, TextIO

from aioqueue.base.display_text import in_safe_lines, on_one_line, print_to
from aioqueue.errors import AioQueueError, InvalidArgumentError
from aioqueue.telemetry.explain.gather import explain

ENABLING_VARIABLE: Final = "AIOQUEUE_EXPLAIN"
"""Environment variable that makes a program listen for requests without a change to its code."""

LONGEST_ANSWER: Final = 1 << 22
"""How many bytes an answer has at most. A longer explanation is cut."""

_log: Final = logging.getLogger("aioqueue")

_WAKE: Final = b"e"

_TRUNCATED: Final = "\n... (the rest is too long for an answer)\n"

_MOST_CLIENTS: Final = 64
"""How many clients may read their answers at the same time. One more takes the oldest's place."""

_MOST_READING_SECONDS: Final = 60.0
"""How many seconds a client has to read its answer."""

_DESCRIPTOR_PAUSE: Final = 0.1
"""How many seconds to wait for a descriptor when this process has none left for a client."""

_MOST_WRITING_SECONDS: Final = 1.0
"""How many seconds `undo` waits for an explanation that is being written to a file."""


def explain_on_signal(
    signum: int | None = None, *, file: TextIO | None = None
) -> Callable[[], None]:
    """Let this process explain itself on request from outside; see `explain`.

    On the signal, it writes the explanation to a file. On ``python -m aioqueue explain PID`` by the
    same user, the command prints it. A daemon thread answers, whatever the main thread does; the
    signal handler only wakes it. (A main thread inside a call that never returns to Python receives
    no signals; the command still works.) You need not change a program for this:
    ``AIOQUEUE_EXPLAIN=1`` in its environment does the same when the program imports aioqueue. In a
    fork of the process, call it again.

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
        if signum is None and _missing_features():
            raise OSError(
                "explain_on_signal: this system has neither SIGUSR2 nor Unix sockets, so nobody"
                " could ask; pass a signal that it has, such as signum=signal.SIGBREAK, or call"
                " aioqueue.explain() in the program"
            )
    listener = _Listener(file)
    undo_signal = _install_handler(signum, listener)
    listener.start()

    def undo() -> None:
        undo_signal()
        listener.close()

    return undo


def listen_if_enabled() -> None:
    """Do what the environment variable says, except in worker processes."""
    processes = sys.modules.get("multiprocessing")
    is_worker = processes is not None and processes.parent_process() is not None
    is_main = threading.current_thread() is threading.main_thread()
    if os.environ.get(ENABLING_VARIABLE, "0") in ("", "0") or is_worker or not is_main:
        return
    try:
        explain_on_signal()
    except OSError as error:  # the program must run all the same
        _log.warning(
            "%s is set, but this process cannot listen for requests: %s", ENABLING_VARIABLE, error
        )


def folder_of(uid: int) -> Path:
    return Path(tempfile.gettempdir()) / f"aioqueue-{uid}"


def socket_of(pid: int, uid: int) -> Path:
    return folder_of(uid) / f"{pid}.sock"


def _install_handler(signum: int | None, listener: _Listener) -> Callable[[], None]:
    """Make a signal wake the listener; return a function that undoes it."""
    if signum is None:
        return lambda: None
    before = signal.getsignal(signum) if signum in signal.valid_signals() else None

    # Runs between two instructions of the main thread, which may hold any lock: it must only wake.
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


def _missing_features() -> tuple[str, ...]:
    """Return what this system lacks for the socket."""
    from aioqueue.system import posix  # only when used

    return posix.missing(posix.UNIX_SOCKETS)


class _Listener:
    """A thread that has an explanation written to a file when woken, and sends one to each client.

    Args:
        file: where to write; ``None`` for standard error.
    """

    def __init__(self, file: TextIO | None) -> None:
        self._writer = _FileWriter(file)
        self._pid = os.getpid()
        self._path: Path | None = None
        self._clients: dict[socket.socket, _Client] = {}  # the oldest first
        with ExitStack() as undo:  # closes all if there is no descriptor left for the next
            self._selector = undo.enter_context(selectors.DefaultSelector())
            self._wake_receiver, self._wake_sender = socket.socketpair()
            undo.callback(self._wake_receiver.close)
            undo.callback(self._wake_sender.close)
            self._wake_sender.setblocking(False)  # a signal handler must not block
            self._server = None if _missing_features() else self._listening_socket()
            undo.pop_all()
        self._thread = threading.Thread(target=self._listen, name="aioqueue-explain", daemon=True)
        atexit.register(self._unlink)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Make it write to its file. Safe in a signal handler: it neither waits nor takes a
        lock."""
        try:
            self._wake_sender.send(_WAKE)
        except OSError:
            pass  # the pipe is full, so the thread wakes anyway; or it is closed

    def close(self) -> None:
        atexit.unregister(self._unlink)
        self._unlink()
        self._wake_sender.close()  # ends the thread
        if self._thread.ident is not None:
            self._thread.join()
        else:
            self._close_all()
        self._writer.join(_MOST_WRITING_SECONDS)

    def _listening_socket(self) -> socket.socket:
        """Return a listening socket in the user's own folder.

        Raises:
            PermissionError: another user owns the folder, and could read the explanations.
            OSError: the path is too long.
        """
        from aioqueue.system import posix  # only when used

        user = posix.current_user()
        folder = folder_of(user)
        with suppress(FileExistsError):  # be it a link that leads nowhere
            folder.mkdir(mode=0o700)
        posix.check_private_folder(folder, user)
        _remove_stale_sockets(folder)
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
            self._selector.register(self._wake_receiver, selectors.EVENT_READ)
            if self._server is not None:
                self._selector.register(self._server, selectors.EVENT_READ)
            while True:
                for key, _ in self._selector.select(self._seconds_left()):
                    if key.fileobj is self._wake_receiver:
                        if not self._wake_receiver.recv(4096):
                            return
                        self._writer.request()
                    elif key.fileobj is self._server:
                        self._accept()
                    # One round may both accept a client and report the one dropped for it.
                    elif key.fileobj in self._clients:
                        self._send(key.data)
                self._drop_slow_clients()
        finally:
            self._close_all()

    def _close_all(self) -> None:
        for client in list(self._clients.values()):
            self._drop(client)
        self._selector.close()
        for end in (self._wake_receiver, self._wake_sender, self._server):
            if end is not None:
                end.close()

    def _accept(self) -> None:
        """Accept a client, and send what can be sent without waiting."""
        from aioqueue.system import posix  # only when used

        assert self._server is not None
        try:
            connection, _ = self._server.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                sleep(_DESCRIPTOR_PAUSE)  # the client is still waiting, and would wake us at once
            return  # or it has gone
        connection.setblocking(False)
        with suppress(OSError):
            if posix.peer_user(connection) in (None, posix.current_user(), posix.ROOT):
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

    def _drop_slow_clients(self) -> None:
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
        answer = _explanation_text().encode("utf-8", "replace")
        if len(answer) > LONGEST_ANSWER:
            cut = answer[: LONGEST_ANSWER - len(_TRUNCATED)].decode("utf-8", "ignore")
            answer = (cut + _TRUNCATED).encode()
        self.rest = memoryview(answer)
        self.deadline = monotonic() + _MOST_READING_SECONDS


class _FileWriter:
    """Writes explanations to a file, in a thread of its own: the file may be a pipe that is full.

    Args:
        file: where to write; ``None`` for standard error.
    """

    def __init__(self, file: TextIO | None) -> None:
        self._file = file
        self._lock = threading.Lock()  # guards the next two
        self._is_requested = False
        self._thread: threading.Thread | None = None

    def request(self) -> None:
        """Have one more explanation written, unless one is waiting to be written already."""
        with self._lock:
            self._is_requested = True
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
                if not self._is_requested:
                    self._thread = None
                    return
                self._is_requested = False
            file: Any = sys.stderr if self._file is None else self._file
            with suppress(OSError, ValueError, AttributeError):  # it may be closed or missing
                file.write(_explanation_text() + "\n")
                file.flush()


def _remove_stale_sockets(folder: Path) -> None:
    """Remove the sockets of processes that were killed."""
    for path in folder.glob("*.sock"):
        try:
            os.kill(int(path.stem), 0)
        except (ProcessLookupError, ValueError, OverflowError):
            with suppress(OSError):  # it may be a folder
                path.unlink(missing_ok=True)
        except PermissionError:
            pass  # there is one


def _explanation_text() -> str:
    try:
        return str(explain())
    except Exception:
        return f"aioqueue: the explanation failed\n{traceback.format_exc()}"


_LONGEST_TIMEOUT: Final = 86_400.0  # seconds

_COMMAND_DESCRIPTION: Final = """\
Shows why a running process waits: which callers wait, for what and for how long, and the root
cause, with queues, workers, their items and lines of code. The process keeps running.

The process must listen for requests: call aioqueue.explain_on_signal() in it, or start it with
AIOQUEUE_EXPLAIN=1 in its environment.
"""

_PROCESS_STATES = {
    "T": "is stopped (SIGSTOP); `kill -CONT {pid}` resumes it",
    "t": "is stopped by a debugger",
    "D": "waits in the kernel for a disk or a network file system",
    "Z": "has ended, but its parent has not reaped it yet",
}


class CannotAskError(AioQueueError):
    """A process cannot be asked for an explanation; the message says why, and what would help."""


def ask(pid: int, timeout: float) -> str:
    """Return the explanation of another process, with its control characters escaped.

    Args:
        pid: the process.
        timeout: seconds to wait for the whole answer.

    Raises:
        CannotAskError: there is no such process, it belongs to another user, does not listen, or
            does not answer; or something that another user has made is in its place.
    """
    from aioqueue.system import posix  # only when used

    if posix.missing(posix.UNIX_SOCKETS):
        raise CannotAskError("this system has no Unix sockets, which `explain` needs")
    user = _user_of(pid)
    path = socket_of(pid, user)
    try:
        posix.check_length(path)
        posix.check_private_socket(path, user)
        with posix.connected_socket(path, timeout) as connection:
            peer = posix.peer_user(connection)
            if peer not in (None, user):
                raise PermissionError(f"{path}: user {peer} answers there")
            return in_safe_lines(_read_answer(connection, monotonic() + timeout))
    except (FileNotFoundError, ConnectionRefusedError):
        _raise_not_listening(pid, str(path))
    except ConnectionError:
        raise CannotAskError(f"process {pid} has ended the connection") from None
    except TimeoutError:
        _raise_no_answer(pid, timeout)
    except OSError as error:
        raise CannotAskError(
            f"process {pid} of user {user} cannot be asked: {on_one_line(str(error))}"
        ) from None


def _read_answer(connection: socket.socket, deadline: float) -> str:
    answer = bytearray()
    while len(answer) <= LONGEST_ANSWER:
        left = deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        part = connection.recv(65536)
        if not part:
            break
        answer += part
    if not answer:
        raise CannotAskError("the process ended before it answered")
    text = answer[:LONGEST_ANSWER].decode("utf-8", "replace")
    return text if len(answer) <= LONGEST_ANSWER else text + "\n... (the answer goes on)"


def _user_of(pid: int) -> int:
    """Return the user that a process belongs to: ourselves, unless we are root.

    Raises:
        CannotAskError: there is no such process, or it belongs to another user.
    """
    from aioqueue.system import posix  # only when used

    try:
        return posix.user_of(pid)
    except (ProcessLookupError, OverflowError):
        raise CannotAskError(f"there is no process {pid}") from None
    except PermissionError:
        raise CannotAskError(
            f"process {pid} belongs to another user: ask as that user, or as root"
        ) from None


def _raise_not_listening(pid: int, path: str) -> NoReturn:
    from aioqueue.system import posix  # only when used

    command = on_one_line(posix.command_of(pid))
    command = f" ({command[:60]}{'...' if len(command) > 60 else ''})" if command else ""
    raise CannotAskError(
        f"process {pid}{command} does not listen for requests: call aioqueue.explain_on_signal() in"
        f" it, or start it with {ENABLING_VARIABLE}=1 in its environment (there is no"
        f" {on_one_line(path)}). A fork does not listen by itself, even if its parent does: call"
        " the function in the fork"
    )


def _raise_no_answer(pid: int, timeout: float) -> NoReturn:
    from aioqueue.system import posix  # only when used

    why = _PROCESS_STATES.get(posix.state_of(pid), "may be in a call that holds the GIL").format(
        pid=pid
    )
    raise CannotAskError(f"process {pid} did not answer within {timeout:g} s: it {why}")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``explain PID`` to the commands of a program."""
    parser = commands.add_parser(
        "explain",
        help="show why a running process hangs",
        description=_COMMAND_DESCRIPTION,
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
        print_to(sys.stdout, ask(pid, timeout))
    except CannotAskError as error:
        print_to(sys.stderr, f"{program}: {error}")
        return 1
    return 0


def _pid(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a process id")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_TIMEOUT:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a number of seconds > 0")
    return seconds
