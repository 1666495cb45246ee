"""Start worker processes, and keep control of them until they are gone.

Processes are never forked from the program, since a fork copies locks that threads hold. On Linux a
fork server makes them; elsewhere they are spawned. Three guarantees hold:

1. *Workers ignore the program's signals*, from their first instruction. A terminal, or a job
   scheduler, sends signals to all processes of a program at once. The program decides what they
   mean, and may continue. So processes start with these signals blocked, which they inherit, and
   ignore them before they unblock them (`StartedProcess.run`).
2. *A worker dies with the program*, whatever ends the program, and whatever the worker is doing.
   The end of its pipe tells the worker (`worker`), unless a call holds the GIL. So on Linux the
   kernel also kills it when the fork server ends. The fork server ends with the program: it reads a
   pipe whose other end only the program has, neither its workers nor its forks.
3. *Workers are killed, not asked to end*, because SIGTERM can be ignored. A program that ends kills
   them before multiprocessing would ask them to end, and wait for ever.

We use a fork server of our own (`forkserver.py`). The one that multiprocessing shares may have been
started by other code, and would die of such a signal. Only this file and the two files of the fork
server use private parts of multiprocessing; `test_process_life.py` fails when those change.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

from aioqueue.locks import is_held_here, release_if_held

__all__ = (
    "PARENT_GONE",
    "CannotStartError",
    "Deaf",
    "StartedProcess",
    "get_ready",
    "is_ending",
    "is_importing_main",
    "no_more",
    "one_at_a_time",
)

PARENT_GONE: Final = 70
"""The exit code of a process whose program has ended."""

_PATIENCE: Final = 1.0
"""How many seconds the program's exit waits for a process that is just getting its data."""

# Only threads that are made for this take these two locks, and no signal handler runs in them.
_starting: Any = threading.RLock()  # one process is started at a time
_handing_over = threading.Lock()  # a process, or the server, may exist without its data
_is_ending = False

_PROGRAM_SIGNALS: Final = frozenset(
    getattr(signal, name)
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
"""Signals that are sent to all processes of a program at once, and end those without a handler."""


class CannotStartError(Exception):
    """A process cannot be started, and another try would fail, too.

    Args:
        why: the reason.
        exitcode: the fork server's exit code, if it has ended with one.
    """

    def __init__(self, why: str, exitcode: int | None = None) -> None:
        super().__init__(why)
        self.exitcode = exitcode


def is_importing_main() -> bool:
    """Return whether this is a new process that is importing the program's main module."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def is_ending() -> bool:
    """Return whether the program ends. Then multiprocessing may join what we would close."""
    return _is_ending


def no_more() -> None:
    """Start no process from now on, because the program ends."""
    global _is_ending
    _is_ending = True
    # A process that got half of its data would print an error.
    if _handing_over.acquire(timeout=_PATIENCE):
        _handing_over.release()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let no other thread start a process, or open a descriptor that a process would get.

    So the descriptors are still there when a process takes those that a start has found.
    """
    with _starting:
        yield


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block these signals for whatever is started in this context, and for its children."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PROGRAM_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignore(number: int, frame: object) -> None:
    """Handle a signal by doing nothing."""


def _ignore_signals() -> None:
    """Ignore these signals in this process from now on."""
    for number in _PROGRAM_SIGNALS - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
    # A program that the function starts would inherit an ignored signal, and SIGTERM is the usual
    # way to end one. So the signals are handled by a function that does nothing.
    signal.signal(signal.SIGTERM, _ignore)
    if sys.platform != "win32":
        signal.siginterrupt(signal.SIGTERM, False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PROGRAM_SIGNALS)


def _start_tracker() -> None:
    """Start multiprocessing's resource tracker, which a new process needs.

    The tracker itself ignores only two of the signals. If we start it, it inherits all of them
    blocked. It must run before anything else is started, because its start unblocks those two.
    """
    if sys.platform != "win32":
        from aioqueue.processes.forkserver import ensure_tracker

        with _signals_blocked():
            ensure_tracker()


class Deaf:
    """The common part of all ways to start a process: it ignores the program's signals."""

    def start(self) -> None:
        """Start the process.

        Raises:
            OSError: there are no file descriptors left, or no memory.
            CannotStartError: another try would fail, too.
        """
        with _starting:
            if is_ending():
                raise CannotStartError("the program is ending")
            _start_tracker()
            with _signals_blocked():
                super().start()  # type: ignore[misc]
            if is_ending():
                self.disown()

    def run(self) -> None:
        """Run in the new process."""
        _ignore_signals()
        super().run()  # type: ignore[misc]

    def disown(self) -> None:
        """Remove it from multiprocessing's list: that must not end or join it at exit."""
        multiprocessing.process._children.discard(self)  # type: ignore[attr-defined]


if sys.platform == "linux":
    import ctypes
    from io import BytesIO
    from multiprocessing import forkserver, popen_forkserver, reduction, spawn, util
    from multiprocessing.connection import wait
    from multiprocessing.context import ForkServerProcess, set_spawning_popen

    from aioqueue.processes.forkserver import ForkServer

    _SPARE: Final = 5
    """How many pipes must be possible: a start takes up to seven descriptors."""

    _TRIES: Final = 3
    """How often to start a process at most, if the fork server is killed each time."""

    _PR_SET_PDEATHSIG: Final = 1

    class Server:
        """Our fork server. If it is found dead, another one replaces it."""

        def __init__(self) -> None:
            self.server: ForkServer | None = None
            self._modules: tuple[str, ...] = ()
            self._with_main = True
            self._may_be_main = False  # whether the main module may kill it: no fork has worked yet

        def get_ready(self, module: str) -> None:
            """Have a server run that imports, or has imported, what processes need.

            Raises:
                OSError: see `Deaf.start`.
            """
            if module not in self._modules:
                self._modules += (module,)
            if self.server is not None and self.server.has_ended():
                self._bury()
            if self.server is not None and not self.server.fits():
                self.server = None  # it ends with the last of its processes
            if self.server is None:
                self._with_main = True
                self._launch()

        def _launch(self) -> None:
            _check_for_room()
            with _handing_over:
                if is_ending():
                    raise CannotStartError("the program is ending")
                self.server = ForkServer(self._modules, with_main=self._with_main)
            self._may_be_main = self._with_main

        def hand_over(self, fds: list[int], message: bytes) -> tuple[int, int, int]:
            """Let the server make a process, and send the process a message.

            Returns:
                The descriptor that becomes readable when the process has ended, the one to which
                the message was written, and the process id.

            Raises:
                OSError: see `Deaf.start`.
                CannotStartError: the fork server cannot make one.
            """
            for _ in range(_TRIES):
                _check_for_room()
                try:
                    return self._handed_over(fds, message)
                except (ChildProcessError, ConnectionError, EOFError):
                    exitcode = self._bury()
                if self._may_be_main:
                    self._with_main = self._may_be_main = False  # each process reports it itself
                elif exitcode is not None and exitcode >= 0:
                    why = f"the fork server has ended with exit code {exitcode} while it started"
                    raise CannotStartError(why, exitcode)
            raise CannotStartError("the fork server is killed again and again")

        def _handed_over(self, fds: list[int], message: bytes) -> tuple[int, int, int]:
            if self.server is None:
                self._launch()
            with ExitStack() as undo:
                with _handing_over:
                    sentinel, pipe = self._connect(fds, message)
                undo.callback(util.close_fds, sentinel, pipe)  # type: ignore[attr-defined]
                pid = forkserver.read_signed(sentinel)
                undo.pop_all()
            self._may_be_main = False
            return sentinel, pipe, pid

        def _connect(self, fds: list[int], message: bytes) -> tuple[int, int]:
            if is_ending():
                raise CannotStartError("the program is ending")
            server: Any = self.server
            sentinel, pipe = server.connect_to_new_process(fds)
            with suppress(BrokenPipeError):  # it was killed, which the sentinel will show
                _write(pipe, message)
            return sentinel, pipe

        def _bury(self) -> int | None:
            """End the server; return its exit code, if that can be known."""
            server, self.server = self.server, None
            return None if server is None else server.bury()

        def environment(self) -> Mapping[str, str | None]:
            """Return how the program's environment differs from that of a process."""
            return {} if self.server is None else self.server.environment()

        def forget(self) -> None:
            """Drop the server, in a fork of the program: it belongs to the parent."""
            self.server = None

    def _check_for_room() -> None:
        """Check that there are enough file descriptors, before anything has begun.

        Without them, multiprocessing would not close all that it has opened, and its fork server
        would end if a client connects and sends nothing.

        Raises:
            OSError: there are not enough.
        """
        with ExitStack() as undo:
            for _ in range(_SPARE):
                undo.callback(util.close_fds, *os.pipe())  # type: ignore[attr-defined]

    def _write(fd: int, message: bytes) -> None:
        rest = memoryview(message)
        while rest:
            rest = rest[os.write(fd, rest) :]

    _server = Server()

    class _Popen(popen_forkserver.Popen):
        """A process made by our fork server."""

        def __init__(self, process: Any) -> None:
            self._polling = threading.Lock()
            super().__init__(process)

        def _launch(self, process: Any) -> None:
            message = BytesIO()
            process.environment = _server.environment()
            set_spawning_popen(self)
            try:
                reduction.dump(spawn.get_preparation_data(process.name), message)
                reduction.dump(process, message)
            finally:
                set_spawning_popen(None)
            # Pickling the process has collected the file descriptors that it gets.
            fds: list[int] = self._fds  # type: ignore[attr-defined]
            self.sentinel, pipe, self.pid = _server.hand_over(fds, message.getvalue())
            self._server = _server.server  # keeps it alive: the process would die with it
            self.finalizer = util.Finalize(self, util.close_fds, (self.sentinel, pipe))  # type: ignore[attr-defined]

        def poll(self, flag: int = os.WNOHANG) -> int | None:
            """Return its exit code, if it has ended.

            The code can be read only once. Two threads may both find it ready; the second would
            wait for ever. It takes no more than one thread that starts a process of its own or
            calls `multiprocessing.active_children`, since both poll all processes.
            """
            with self._polling:
                timeout = 0 if flag == os.WNOHANG else None
                if self.returncode is None and wait([self.sentinel], timeout):
                    try:
                        self.returncode = forkserver.read_signed(self.sentinel)
                    except (EOFError, OSError):
                        # The fork server was killed, and its processes with it.
                        self.kill()
                        self.returncode = -signal.SIGKILL
                return self.returncode

        def terminate(self) -> None:
            """Kill it: it ignores every other signal."""
            self.kill()

    def _die_with_the_server() -> None:
        """Let the kernel kill this new process when the fork server ends, without keeping it alive.

        The server may have ended before. If the program has ended, too, this process gets no work.
        If not, the program kills it when it notices (`_Popen.poll`).
        """
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        shared: Any = forkserver._forkserver
        if shared._forkserver_alive_fd is not None:
            os.close(shared._forkserver_alive_fd)
            shared._forkserver_alive_fd = None

    class StartedProcess(Deaf, ForkServerProcess):
        """A process that our fork server has forked."""

        environment: Mapping[str, str | None]

        @staticmethod
        def _Popen(process_obj: Any) -> Any:  # noqa: N802  # multiprocessing requires this name
            return _Popen(process_obj)

        def run(self) -> None:
            """Run in the new process."""
            _die_with_the_server()
            _take_over(self.environment)
            super().run()

    def _take_over(environment: Mapping[str, str | None]) -> None:
        """Apply changes of the program's environment, in a new process."""
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def get_ready(module: str) -> None:
        """Import in advance what processes need, so that the next one starts at once. No waiting.

        In a process that is being started it does nothing: that must not have processes itself.

        Args:
            module: the name of the module with the processes' main function.
        """
        if is_importing_main():
            return
        if is_held_here(_starting):
            return  # a signal handler makes this call, in the middle of another one
        try:
            # Otherwise a process is being started: the server runs, and may be slow to answer.
            if _starting.acquire(blocking=False):
                _get_ready(module)
        finally:
            release_if_held(_starting)

    def _get_ready(module: str) -> None:
        with suppress(OSError, CannotStartError):  # the thread that starts a process gets it
            _start_tracker()
            with _signals_blocked():
                _server.get_ready(module)

    _forget_server: Callable[[], None] = _server.forget

else:

    class StartedProcess(Deaf, multiprocessing.get_context("spawn").Process):
        """A process that was spawned.

        Its death is noticed only if no process that it has forked is alive, since such a process
        has the sentinel's pipe open, too.
        """

    def get_ready(module: str) -> None:
        """Do nothing: spawned processes cannot be prepared."""

    def _forget_server() -> None:
        """Do nothing: there is no server."""


def _after_fork() -> None:
    """Reset the locks and forget all processes, in a fork of the program."""
    global _starting, _handing_over
    _starting, _handing_over = threading.RLock(), threading.Lock()
    _forget_server()
    for process in list(multiprocessing.process._children):  # type: ignore[attr-defined]
        if isinstance(process, StartedProcess):
            process.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
