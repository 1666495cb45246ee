"""Worker processes that are forked by a fork server of the program's own. Only Linux has them.

`start` imports this module when it uses a fork server, and decides whether it does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from io import BytesIO
from multiprocessing import forkserver, popen_forkserver, reduction, spawn, util
from multiprocessing.connection import wait
from multiprocessing.context import set_spawning_popen
from typing import Any, Final

from aioqueue.processes.forkserver import ForkServer
from aioqueue.processes.start_checks import CannotStartError, handing_over

__all__ = ("Popen", "Server", "begin", "get_ready")

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
        with handing_over():
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
            with handing_over():
                sentinel, pipe = self._connect(fds, message)
            undo.callback(util.close_fds, sentinel, pipe)  # type: ignore[attr-defined]
            pid = forkserver.read_signed(sentinel)
            undo.pop_all()
        self._may_be_main = False
        return sentinel, pipe, pid

    def _connect(self, fds: list[int], message: bytes) -> tuple[int, int]:
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


class Popen(popen_forkserver.Popen):
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
    If not, the program kills it when it notices (`Popen.poll`).
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    shared: Any = forkserver._forkserver
    if shared._forkserver_alive_fd is not None:
        os.close(shared._forkserver_alive_fd)
        shared._forkserver_alive_fd = None


def begin(environment: Mapping[str, str | None]) -> None:
    """Let a new process die with the program, and have the program's environment as it is now."""
    _die_with_the_server()
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def get_ready(module: str) -> None:
    """Have a server run that imports, or has imported, what processes need.

    Raises:
        OSError: see `Deaf.start`.
    """
    _server.get_ready(module)


def _forget_server() -> None:
    """Drop the server, in a fork of the program: it belongs to the parent."""
    _server.forget()


# After `forkserver` has detached its servers there: one that is dropped before would be ended.
os.register_at_fork(after_in_child=_forget_server)
