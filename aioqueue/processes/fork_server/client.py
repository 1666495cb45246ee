"""A fork server of the program's own: imports in advance, and the processes that it forks (Linux).

`spawn` imports this module when it uses a fork server, and decides whether it does. The server
imports in advance what its processes need.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import threading
import weakref
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from io import BytesIO
from multiprocessing import forkserver, popen_forkserver, reduction, spawn, util
from multiprocessing.connection import wait
from multiprocessing.context import set_spawning_popen
from typing import Any, Final

from aioqueue.processes.fork_server import bootstrap
from aioqueue.processes.fork_server.bootstrap import (
    COLD,
    WARM,
    CannotStartError,
    ImportPlan,
    Program,
    delaying_exit,
    environment_changes,
    has_changed,
    source_times,
)
from aioqueue.system import posix

_MAIN: Final = "__main__"

_KEY_BYTES: Final = 32

_COMMAND: Final = (
    "import sys; sys.path[:] = {path}; from aioqueue.processes.fork_server.server import main;"
    " main({plan}, {listener}, {alive}, {folder}, {keywords})"
)

_servers: Final[weakref.WeakSet[ForkServer]] = weakref.WeakSet()
"""All fork servers of this process."""

_unreaped: Final[list[int]] = []
"""Servers that were asked to end, and whose exit status has not been read."""


def wanted_modules() -> list[str]:
    """Return the modules that the program wants in every process (`set_forkserver_preload`); by
    default, the main module."""
    wanted: list[str] = forkserver._forkserver._preload_modules  # type: ignore[attr-defined]
    return list(wanted)


class ForkServer(forkserver.ForkServer):
    """A fork server that imports what all processes need before it forks. It starts at once.

    It ends with the program. If it is dropped, it ends along with all processes that it has forked;
    so each process keeps a reference to it.

    Args:
        modules: the modules of aioqueue that processes need.
        with_main: whether it imports the program's own modules. If not, each process does.

    Raises:
        OSError: there are no file descriptors left, or no memory.
    """

    _folder: str | None
    _address_fd: int | None

    def __init__(self, modules: tuple[str, ...], *, with_main: bool = True) -> None:
        super().__init__()
        self.with_main = with_main
        self._wanted = wanted_modules()
        self._program = Program.current(with_main=_MAIN in self._wanted)
        self._sources = source_times()
        self._environment = dict(os.environ)
        self._launch(modules)
        untyped: Any = self
        # A finalizer, because a server that was replaced still has processes. It ends with the last
        # of them, since each refers to it.
        self._end = weakref.finalize(
            self, _end, untyped._forkserver_alive_fd, self.pid, self._folder, self._address_fd
        )
        self._end.atexit = False  # the pipe ends with the program, which ends the server
        _servers.add(self)

    @property
    def pid(self) -> int:
        pid: int = self._forkserver_pid  # type: ignore[attr-defined]
        return pid

    def is_current(self) -> bool:
        """Return whether a server that started now would import the same modules."""
        return (
            self._wanted == wanted_modules()
            and self._program == Program.current(with_main=_MAIN in self._wanted)
            and not has_changed(self._sources)
        )

    def environment(self) -> Mapping[str, str | None]:
        """Return how the program's environment has changed since the server started."""
        return environment_changes(self._environment)

    def has_ended(self) -> bool:
        """Return whether it has ended; `reap` then returns how."""
        # Without reading its exit status (`WNOWAIT`): `reap` does that.
        with suppress(OSError):
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return True

    def reap(self) -> int | None:
        """End it if it runs; return its exit code, if that can be known."""
        # First the pipe: the server ends when it is closed, and the wait would last for ever.
        self.close_keepalive()
        posix.remove_listener(self._folder)
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            return None  # other code has read its exit status
        return os.waitstatus_to_exitcode(status)

    def close_keepalive(self) -> None:
        """Close the pipe that keeps it alive, and what keeps its address. In a fork of the program,
        do no more than that."""
        untyped: Any = self
        self._end.detach()
        fds = [untyped._forkserver_alive_fd, self._address_fd]
        untyped._forkserver_alive_fd = self._address_fd = None
        for fd in fds:
            if fd is not None:
                os.close(fd)

    def ensure_running(self) -> None:
        """Do nothing: multiprocessing's own method would start another server of its kind."""
        bootstrap.ensure_tracker()

    def _launch(self, modules: tuple[str, ...]) -> None:
        """Start it. This does not wait."""
        _reap_ended()
        untyped: Any = self
        # What the server inherits is closed here in any case. `undo` has what stays open here, and
        # is closed only if the start fails.
        with ExitStack() as inherited, ExitStack() as undo:
            listener, address, folder, fd = posix.private_listener()
            inherited.enter_context(listener)
            undo.callback(posix.remove_listener, folder)
            if fd is not None:
                undo.callback(os.close, fd)
            alive, keeps_alive = _pipe(inherited, undo)
            wanted = tuple(name for name in self._wanted if name != _MAIN)
            plan = self._write_plan(ImportPlan(self._program, modules, wanted), inherited)
            fds = [listener.fileno(), alive, plan]
            keywords = {}
            if hasattr(self, "_forkserver_authkey"):  # clients need it since Python 3.14
                untyped._forkserver_authkey = key = os.urandom(_KEY_BYTES)
                key_reader, key_writer = _pipe(inherited, inherited)
                os.write(key_writer, key)
                keywords["authkey_r"] = key_reader
                fds.append(key_reader)
            command = _COMMAND.format(
                path=ascii(self._program.sys_path),
                plan=plan,
                listener=listener.fileno(),
                alive=alive,
                folder=ascii(folder),
                keywords=keywords,
            )
            executable: Any = spawn.get_executable()
            flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
            way = WARM if self.with_main else COLD
            arguments = [executable, *flags, "-c", command, way]
            untyped._forkserver_pid = util.spawnv_passfds(executable, arguments, fds)
            untyped._forkserver_address, untyped._forkserver_alive_fd = address, keeps_alive
            self._folder, self._address_fd = folder, fd
            undo.pop_all()

    def _write_plan(self, plan: ImportPlan, inherited: ExitStack) -> int:
        """Write the plan to a file that can be read twice; return its descriptor."""
        fd = os.memfd_create("aioqueue-forkserver")
        inherited.callback(os.close, fd)
        with open(fd, "wb", closefd=False) as file:
            pickle.dump(plan, file)
        return fd


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """Make a pipe, and register its ends with what closes them."""
    ends = os.pipe()
    reader.callback(os.close, ends[0])
    writer.callback(os.close, ends[1])
    return ends


def _end(alive: int, pid: int, folder: str | None, address_fd: int | None) -> None:
    """End a server without living processes. Its exit status is read later."""
    os.close(alive)
    if address_fd is not None:
        os.close(address_fd)
    posix.remove_listener(folder)
    _unreaped.append(pid)


def _reap_ended() -> None:
    """Read the exit status of servers that have ended, so that the system can forget them."""
    for pid in list(_unreaped):
        try:
            has_ended = os.waitpid(pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            has_ended = True
        if has_ended:
            _unreaped.remove(pid)


def _forget_all() -> None:
    """Drop all servers, in a fork of the program: they belong to the parent."""
    for server in list(_servers):
        server.close_keepalive()
    _unreaped.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


_SPARE: Final = 5
"""How many pipes must be possible: a start takes up to seven descriptors."""

_TRIES: Final = 3
"""How often to start a process at most, if the fork server is killed each time."""

_PR_SET_PDEATHSIG: Final = 1


class ForkServerClient:
    """Our fork server. If it is found dead, another one replaces it."""

    def __init__(self) -> None:
        self.server: ForkServer | None = None
        self._modules: tuple[str, ...] = ()
        self._with_main = True
        self._may_be_main = False  # whether the main module may kill it: no fork has worked yet

    def preload(self, module: str) -> None:
        """Have a server run that imports, or has imported, what processes need.

        Raises:
            OSError: see `IgnoresSignals.start`.
        """
        if module not in self._modules:
            self._modules += (module,)
        if self.server is not None and self.server.has_ended():
            self._reap()
        # A module was edited since, or the path has changed: a process of that server would have
        # the old version.
        if self.server is not None and not self.server.is_current():
            self.server = None  # it ends with the last of its processes
        if self.server is None:
            self._with_main = True
            self._launch()

    def _launch(self) -> None:
        _check_descriptors()
        with delaying_exit():
            self.server = ForkServer(self._modules, with_main=self._with_main)
        self._may_be_main = self._with_main

    def fork(self, fds: list[int], message: bytes) -> tuple[int, int, int]:
        """Let the server make a process, and send the process a message.

        Returns:
            The descriptor that becomes readable when the process has ended, the one to which
            the message was written, and the process id.

        Raises:
            OSError: see `IgnoresSignals.start`.
            CannotStartError: the fork server cannot make one.
        """
        for _ in range(_TRIES):
            _check_descriptors()
            try:
                return self._fork(fds, message)
            except (ChildProcessError, ConnectionError, EOFError):
                exitcode = self._reap()
            # The server has died before it could fork. If it imports the main module, that may be
            # the cause: then the next one imports less, and each process meets the failure itself
            # and reports it. If it ended by itself all the same, another would do so, too. If it
            # was killed, another may have more luck.
            if self._may_be_main:
                self._with_main = self._may_be_main = False
            elif exitcode is not None and exitcode >= 0:
                why = f"the fork server has ended with exit code {exitcode} while it started"
                raise CannotStartError(why, exitcode)
        raise CannotStartError("the fork server is killed again and again")

    def _fork(self, fds: list[int], message: bytes) -> tuple[int, int, int]:
        if self.server is None:
            self._launch()
        with ExitStack() as undo:
            # A process whose program ends before it has its data prints a traceback.
            with delaying_exit():
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

    def _reap(self) -> int | None:
        server, self.server = self.server, None
        return None if server is None else server.reap()

    def environment(self) -> Mapping[str, str | None]:
        """Return how the program's environment differs from that of a process."""
        return {} if self.server is None else self.server.environment()

    def forget(self) -> None:
        """Drop the server, in a fork of the program: it belongs to the parent."""
        self.server = None


def _check_descriptors() -> None:
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


_client = ForkServerClient()


class Popen(popen_forkserver.Popen):
    """A process made by our fork server."""

    def __init__(self, process: Any) -> None:
        self._polling = threading.Lock()
        super().__init__(process)

    def _launch(self, process: Any) -> None:
        message = BytesIO()
        process.environment = _client.environment()
        set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process.name), message)
            reduction.dump(process, message)
        finally:
            set_spawning_popen(None)
        # Pickling the process has collected the file descriptors that it gets.
        fds: list[int] = self._fds  # type: ignore[attr-defined]
        self.sentinel, pipe, self.pid = _client.fork(fds, message.getvalue())
        self._server = _client.server  # keeps it alive: the process would die with it
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
    # A fork inherits the descriptor that keeps the server alive. Without its copy, the server ends
    # with the program, and this process with the server.
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


def preload(module: str) -> None:
    """Have a server run that imports, or has imported, what processes need.

    Raises:
        OSError: see `IgnoresSignals.start`.
    """
    _client.preload(module)


def _forget_server() -> None:
    """Drop the server, in a fork of the program: it belongs to the parent."""
    _client.forget()


# Registered after `_forget_all`, and so called after it, which detaches the servers: one that is
# dropped before would end the server of the parent.
os.register_at_fork(after_in_child=_forget_server)
