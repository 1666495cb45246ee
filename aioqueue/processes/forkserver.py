"""A fork server of the program's own, which imports in advance what its processes need."""

from __future__ import annotations

import os
import pickle
import weakref
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from multiprocessing import connection, forkserver, resource_tracker, spawn, util
from typing import Any, Final

from aioqueue import posix
from aioqueue.processes.program import (
    COLD,
    WARM,
    ImportOrders,
    Program,
    changes,
    has_changed,
    sources,
)

__all__ = ("ForkServer", "ensure_tracker", "wanted_modules")

_MAIN: Final = "__main__"

_KEY_BYTES: Final = 32

_COMMAND: Final = (
    "import sys; sys.path[:] = {path}; from aioqueue.processes.server import main;"
    " main({orders}, {listener}, {alive}, {keywords})"
)

_servers: Final[weakref.WeakSet[ForkServer]] = weakref.WeakSet()
"""All fork servers of this process."""

_ended: Final[list[int]] = []
"""Servers that were asked to end, and whose exit status has not been read."""


def wanted_modules() -> list[str]:
    """Return the modules that the program wants in every process (`set_forkserver_preload`); by
    default, the main module."""
    wanted: list[str] = forkserver._forkserver._preload_modules  # type: ignore[attr-defined]
    return list(wanted)


def ensure_tracker() -> None:
    """Start multiprocessing's tracker of shared memory and semaphores, if it does not run."""
    resource_tracker.ensure_running()


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

    def __init__(self, modules: tuple[str, ...], *, with_main: bool = True) -> None:
        super().__init__()
        self.with_main = with_main
        self._wanted = wanted_modules()
        self._program = Program.now(with_main=_MAIN in self._wanted)
        self._sources = sources()
        self._environment = dict(os.environ)
        self._launch(modules)
        own: Any = self
        self._end = weakref.finalize(
            self, _end, own._forkserver_alive_fd, self.pid, own._forkserver_address
        )
        self._end.atexit = False  # the pipe ends with the program, which ends the server
        _servers.add(self)

    @property
    def pid(self) -> int:
        """The process id of the server."""
        pid: int = self._forkserver_pid  # type: ignore[attr-defined]
        return pid

    def fits(self) -> bool:
        """Return whether a server that started now would import the same modules."""
        return (
            self._wanted == wanted_modules()
            and self._program == Program.now(with_main=_MAIN in self._wanted)
            and not has_changed(self._sources)
        )

    def environment(self) -> Mapping[str, str | None]:
        """Return how the program's environment has changed since the server started."""
        return changes(self._environment)

    def has_ended(self) -> bool:
        """Return whether it has ended; `bury` then returns how."""
        with suppress(OSError):
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return True

    def bury(self) -> int | None:
        """End it if it runs; return its exit code, if that can be known."""
        own: Any = self
        self.close_copy()
        _unlink(own._forkserver_address)
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            return None  # other code has read its exit status
        return os.waitstatus_to_exitcode(status)

    def close_copy(self) -> None:
        """Close the pipe that keeps it alive. In a fork of the program, do no more than that."""
        own: Any = self
        self._end.detach()
        fd, own._forkserver_alive_fd = own._forkserver_alive_fd, None
        if fd is not None:
            os.close(fd)

    def ensure_running(self) -> None:
        """Do nothing: multiprocessing's own method would start another server of its kind."""
        ensure_tracker()

    def _launch(self, modules: tuple[str, ...]) -> None:
        """Start it. This does not wait."""
        _ask_for_the_ended()
        own: Any = self
        with ExitStack() as handed, ExitStack() as undo:
            address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
            listener = handed.enter_context(posix.listening_socket(address))
            undo.callback(_unlink, address)
            alive, keeps_alive = _pipe(handed, undo)
            wanted = tuple(name for name in self._wanted if name != _MAIN)
            orders = self._written(ImportOrders(self._program, modules, wanted), handed)
            fds = [listener.fileno(), alive, orders]
            keywords = {}
            if hasattr(self, "_forkserver_authkey"):  # clients need it since Python 3.14
                own._forkserver_authkey = key = os.urandom(_KEY_BYTES)
                key_reader, key_writer = _pipe(handed, handed)
                os.write(key_writer, key)
                keywords["authkey_r"] = key_reader
                fds.append(key_reader)
            command = _COMMAND.format(
                path=ascii(self._program.sys_path),
                orders=orders,
                listener=listener.fileno(),
                alive=alive,
                keywords=keywords,
            )
            executable: Any = spawn.get_executable()
            flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
            way = WARM if self.with_main else COLD
            arguments = [executable, *flags, "-c", command, way]
            own._forkserver_pid = util.spawnv_passfds(executable, arguments, fds)
            own._forkserver_address, own._forkserver_alive_fd = address, keeps_alive
            undo.pop_all()

    def _written(self, orders: ImportOrders, handed: ExitStack) -> int:
        """Write the orders to a file that can be read twice; return its descriptor."""
        fd = os.memfd_create("aioqueue-forkserver")
        handed.callback(os.close, fd)
        with open(fd, "wb", closefd=False) as file:
            pickle.dump(orders, file)
        return fd


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """Make a pipe, and register its ends with what closes them."""
    ends = os.pipe()
    reader.callback(os.close, ends[0])
    writer.callback(os.close, ends[1])
    return ends


def _unlink(address: str) -> None:
    with suppress(OSError):
        os.unlink(address)


def _end(alive: int, pid: int, address: str) -> None:
    """End a server whose processes are all gone. Its exit status is read later."""
    os.close(alive)
    _unlink(address)
    _ended.append(pid)


def _ask_for_the_ended() -> None:
    """Read the exit status of servers that have ended, so that the system can forget them."""
    for pid in list(_ended):
        try:
            has_ended = os.waitpid(pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            has_ended = True
        if has_ended:
            _ended.remove(pid)


def _forget_all() -> None:
    """Drop all servers, in a fork of the program: they belong to the parent."""
    for server in list(_servers):
        server.close_copy()
    _ended.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
