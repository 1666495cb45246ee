"""How worker processes are started, and how they stay ours until they are gone.

Never by a fork of the program, which would copy locks that threads hold: on Linux by a fork server,
elsewhere they are spawned. What a worker process can rely on, and we with it:

1. *Signals to the program are not for its workers*, from their first instruction. A terminal, or
   whoever runs jobs, sends them to all processes of a program at once; what they mean is decided by
   the program, and it may go on. So processes are started with these signals blocked, which they
   inherit, and stop listening before they unblock them (`StartedProcess.run`).
2. *It dies with the program*, whatever that dies of, and whatever the function is doing. Its end of
   the pipe tells (`worker_process`), unless a call holds the GIL. So on Linux it is also killed by
   the kernel when the fork server ends, and that ends with the program: it reads a pipe whose other
   end the program alone has, neither its workers nor its forks.
3. *It is killed, not asked*: SIGTERM can be ignored. A program that ends kills them before
   multiprocessing comes to them, which would ask them, and wait for ever.

The fork server is our own one of multiprocessing's (`forkserver.py`), since the one that a program
shares may have been started by others, and then it dies of such a signal. What is private in
multiprocessing, and used all the same, is used in this file and those two of the fork server only;
`test_process_life.py` tells when it changes.
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
"""Seconds that the end of the program waits for a process that is just being handed its data."""

# Both are taken by threads that are made for this, where no signal handler runs.
_starting: Any = threading.RLock()  # one process is started at a time
_handing_over = threading.Lock()  # a process may exist, or the server, and not have got its data
_is_ending = False

_UNHEARD: Final = frozenset(
    getattr(signal, name)
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
"""What is sent to all processes of a program at once, and ends those that do not handle it."""


class CannotStartError(Exception):
    """A process cannot be started, and trying again would not help.

    Args:
        why: the reason.
        exitcode: that of the fork server, if it has ended with one.
    """

    def __init__(self, why: str, exitcode: int | None = None) -> None:
        super().__init__(why)
        self.exitcode = exitcode


def is_importing_main() -> bool:
    """Whether this is a new process that is importing the main module of the program."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def is_ending() -> bool:
    """Whether the program ends; then multiprocessing may be about to join what we would close."""
    return _is_ending


def no_more() -> None:
    """The program ends: no process is started from now on."""
    global _is_ending
    _is_ending = True
    # One that got half of its data would complain about that.
    if _handing_over.acquire(timeout=_PATIENCE):
        _handing_over.release()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Nobody else starts a process, nor opens what that would have.

    So the descriptors that were there when a start looked for them are there when it takes them.
    """
    with _starting:
        yield


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """What is started here hears none of them, and neither does what it starts in turn."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _UNHEARD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _unheard(number: int, frame: object) -> None:
    """Do nothing."""


def _stop_listening() -> None:
    """From now on these signals have no effect on this process."""
    for number in _UNHEARD - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
    # What is ignored stays ignored in the programs that the function may start, and the usual way
    # to end one of those is SIGTERM. What is handled is not handled there.
    signal.signal(signal.SIGTERM, _unheard)
    if sys.platform != "win32":
        signal.siginterrupt(signal.SIGTERM, False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _UNHEARD)


def _start_tracker() -> None:
    """Have multiprocessing's tracker of resources run, which starting a process needs.

    It is deaf to two of the signals only; so if it is for us to start it, it inherits that it hears
    none. It has to be there before anything else is started: starting it unblocks those two.
    """
    if sys.platform != "win32":
        from aioqueue.processes.forkserver import ensure_tracker

        with _signals_blocked():
            ensure_tracker()


class Deaf:
    """What is the same however a process is started: signals are not for it."""

    def start(self) -> None:
        """Start it.

        Raises:
            OSError: there are no file descriptors left, or no memory.
            CannotStartError: it would fail again.
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
        """What it does, in the new process."""
        _stop_listening()
        super().run()  # type: ignore[misc]

    def disown(self) -> None:
        """Multiprocessing is not to care for it any more, neither at the end of the program."""
        multiprocessing.process._children.discard(self)  # type: ignore[attr-defined]


if sys.platform == "linux":
    import ctypes
    from io import BytesIO
    from multiprocessing import forkserver, popen_forkserver, reduction, spawn, util
    from multiprocessing.connection import wait
    from multiprocessing.context import ForkServerProcess, set_spawning_popen

    from aioqueue.processes.forkserver import ForkServer

    _SPARE: Final = 5
    """Pipes that there must be room for: starting a process takes up to seven descriptors."""

    _TRIES: Final = 3
    """How often a process is started at most, if the fork server is killed each time."""

    _PR_SET_PDEATHSIG: Final = 1

    class _Server:
        """Our fork server. When it is found dead, another one takes its place."""

        def __init__(self) -> None:
            self.server: ForkServer | None = None
            self._modules: tuple[str, ...] = ()
            self._with_main = True
            self._may_be_main = False  # that it dies of: it has forked nothing yet

        def get_ready(self, module: str) -> None:
            """Have one run that has imported what processes need, or is at it.

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
            """Have it make a process, and send that a message.

            Returns:
                What becomes readable when the process has ended, what the message was written to,
                and its pid.

            Raises:
                OSError: see `Deaf.start`.
                CannotStartError: the fork server cannot.
            """
            for _ in range(_TRIES):
                _check_for_room()
                try:
                    return self._handed_over(fds, message)
                except (ChildProcessError, ConnectionError, EOFError):
                    exitcode = self._bury()
                if self._may_be_main:
                    self._with_main = self._may_be_main = False  # each process tells it by itself
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
            with suppress(BrokenPipeError):  # it was killed, which is going to be noticed
                _write(pipe, message)
            return sentinel, pipe

        def _bury(self) -> int | None:
            """How the server has ended, if that can be known; it certainly has afterwards."""
            server, self.server = self.server, None
            return None if server is None else server.bury()

        def environment(self) -> Mapping[str, str | None]:
            """How that of the program differs from what a process gets."""
            return {} if self.server is None else self.server.environment()

        def forget(self) -> None:
            """In a fork of the program: the server is not ours."""
            self.server = None

    def _check_for_room() -> None:
        """Refuse before anything is begun, if there are not enough file descriptors.

        Multiprocessing would not close all that it has opened by then, and its fork server ends
        when someone connects to it and sends nothing.

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

    _server = _Server()

    class _Popen(popen_forkserver.Popen):
        """A process of our fork server."""

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
            # The file descriptors that it gets were collected while it was pickled.
            fds: list[int] = self._fds  # type: ignore[attr-defined]
            self.sentinel, pipe, self.pid = _server.hand_over(fds, message.getvalue())
            self._server = _server.server  # which it would not outlive
            self.finalizer = util.Finalize(self, util.close_fds, (self.sentinel, pipe))  # type: ignore[attr-defined]

        def poll(self, flag: int = os.WNOHANG) -> int | None:
            """Its exit code, if it has ended.

            There is one to be read, once. So of two threads that find it there, one would wait for
            another one for ever; and it is enough that one of them starts a process of its own, or
            asks for `multiprocessing.active_children`: both poll all.
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
            """Kill it: it does not listen to anything else."""
            self.kill()

    def _die_with_the_server() -> None:
        """In a new process: be killed when the fork server ends, and do not keep it alive.

        It may have ended before. If the program did too, nothing is asked of us any more; else the
        program kills us when it finds that out (`_Popen.poll`).
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
        def _Popen(process_obj: Any) -> Any:  # noqa: N802  # so multiprocessing calls it
            return _Popen(process_obj)

        def run(self) -> None:
            """What it does, in the new process."""
            _die_with_the_server()
            _take_over(self.environment)
            super().run()

    def _take_over(environment: Mapping[str, str | None]) -> None:
        """In a new process: what has changed in that of the program."""
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def get_ready(module: str) -> None:
        """Begin to import what processes need, that the next one starts at once. Waits for nothing.

        Does nothing in a process that is being started, which is to have none of its own.

        Args:
            module: the name of the one that has what they do.
        """
        if is_importing_main():
            return
        if is_held_here(_starting):
            return  # a signal handler asks, which has interrupted this
        try:
            # Else a process is being started: so the server runs, and may take its time to answer.
            if _starting.acquire(blocking=False):
                _get_ready(module)
        finally:
            release_if_held(_starting)

    def _get_ready(module: str) -> None:
        with suppress(OSError, CannotStartError):  # who starts a process is told
            _start_tracker()
            with _signals_blocked():
                _server.get_ready(module)

    _forget_server: Callable[[], None] = _server.forget

else:

    class StartedProcess(Deaf, multiprocessing.get_context("spawn").Process):
        """A process that was spawned.

        Here its death is noticed, and not missed, only if nothing that it has forked lives on: the
        pipe that tells it is open there too.
        """

    def get_ready(module: str) -> None:
        """Nothing can be done before."""

    def _forget_server() -> None:
        """There is none."""


def _after_fork() -> None:
    """In a fork of the program, where nobody holds these locks, and no process is its own."""
    global _starting, _handing_over
    _starting, _handing_over = threading.RLock(), threading.Lock()
    _forget_server()
    for process in list(multiprocessing.process._children):  # type: ignore[attr-defined]
        if isinstance(process, StartedProcess):
            process.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
