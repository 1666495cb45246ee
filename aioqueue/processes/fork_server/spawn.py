"""Start worker processes, and keep control of them until they are gone.

Processes are never forked from the program, since a fork copies locks that threads hold. On Linux a
fork server makes them (`client.py`). Elsewhere, and in programs that are no Python interpreter
(frozen ones), multiprocessing spawns them. Three guarantees hold:

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

We use a fork server of our own (`client.py`). The one that multiprocessing shares may have been
started by other code, and would die of such a signal. Only this file and the three files of the
fork server use private parts of multiprocessing; `test_processes_life.py` fails when those change.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing.context import SpawnProcess
from typing import Any, Final

from aioqueue.processes.fork_server import bootstrap
from aioqueue.processes.fork_server.bootstrap import (
    STARTS,
    CannotStartError,
    is_ending,
    is_importing_main,
    is_python,
    refusing_self_start,
)
from aioqueue.system.locks import is_held_here, release_if_held

# Only threads that are made for this take this lock, and no signal handler runs in them.
_starting: Any = threading.RLock()  # one process is started at a time

_PROGRAM_SIGNALS: Final = frozenset(
    getattr(signal, name)
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
"""Signals that are sent to all processes of a program at once, and end those without a handler."""


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let no other thread start a process, or open a descriptor that a process would get.

    So the descriptors are still there when a process takes those that a start has found.
    """
    with _starting:
        yield


def uses_fork_server() -> bool:
    """Return whether a fork server makes the processes. If not, they are spawned."""
    from aioqueue.system import posix  # only when used

    return sys.platform == "linux" and is_python() and not posix.missing(posix.FORK_SERVER)


def _signals_blocked() -> AbstractContextManager[None]:
    """Block these signals for whatever is started in this context, and for its children."""
    from aioqueue.system import posix  # only when used

    return posix.signals_blocked(_PROGRAM_SIGNALS)


def _ignore(number: int, frame: object) -> None:
    """Handle a signal by doing nothing."""


def _ignore_signals() -> None:
    from aioqueue.system import posix  # only when used

    for number in _PROGRAM_SIGNALS - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
    # A program that the function starts would inherit an ignored signal, and SIGTERM is the usual
    # way to end one. So the signals are handled by a function that does nothing.
    signal.signal(signal.SIGTERM, _ignore)
    posix.unblock_signals(_PROGRAM_SIGNALS, restarting=signal.SIGTERM)


def _start_tracker() -> None:
    """Start multiprocessing's resource tracker, which a new process needs.

    The tracker itself ignores only two of the signals. If we start it, it inherits all of them
    blocked. It must run before anything else is started, because its start unblocks those two.
    """
    if sys.platform != "win32":
        with _signals_blocked():
            bootstrap.ensure_tracker()


class IgnoresSignals:
    """The common part of all ways to start a process: it ignores the program's signals."""

    def start(self) -> None:
        """Start the process.

        Raises:
            OSError: there are no file descriptors left, or no memory.
            CannotStartError: another try would fail, too.
        """
        with _starting, refusing_self_start():
            if is_ending():
                raise CannotStartError("the program is ending")
            # Before the signals are blocked: its start unblocks two of them.
            _start_tracker()
            # The new process inherits the mask, so no signal can end it before `run`.
            with _signals_blocked():
                super().start()  # type: ignore[misc]
            # The exit may have begun meanwhile, and its list of processes may lack this one. Then
            # multiprocessing would join it, and nobody would end it.
            if is_ending():
                self.disown()

    def run(self) -> None:
        _ignore_signals()
        super().run()  # type: ignore[misc]

    def disown(self) -> None:
        """Remove it from multiprocessing's list: that must not end or join it at exit."""
        multiprocessing.process._children.discard(self)  # type: ignore[attr-defined]


class StartedProcess(IgnoresSignals, SpawnProcess):
    """A worker process. Our fork server forks it (`uses_fork_server`), or it is spawned.

    The death of a spawned process is noticed only if no process that it has forked is alive, since
    such a process has the sentinel's pipe open, too.
    """

    environment: Mapping[str, str | None] | None = None
    """How the program's environment differs from that of the fork server, if that has made it."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802  # multiprocessing requires this name
        if uses_fork_server():
            from aioqueue.processes.fork_server import client  # only when used

            return client.Popen(process_obj)
        return SpawnProcess._Popen(process_obj)

    def run(self) -> None:
        os.environ.pop(STARTS, None)
        if self.environment is not None:
            from aioqueue.processes.fork_server import client  # only when used

            client.begin(self.environment)
        super().run()


def get_ready(module: str) -> None:
    """Import in advance what processes need, so that the next one starts at once. No waiting.

    It does nothing for processes that are spawned. Neither does it in a process that is being
    started: that must not have processes itself.

    Args:
        module: the name of the module with the processes' main function.
    """
    if is_importing_main() or not uses_fork_server():
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
    from aioqueue.processes.fork_server import client  # only when used

    with suppress(OSError, CannotStartError):  # the thread that starts a process gets it
        _start_tracker()
        with _signals_blocked():
            client.preload(module)


def _after_fork() -> None:
    """Reset the lock and forget all processes, in a fork of the program."""
    global _starting
    _starting = threading.RLock()
    for process in list(multiprocessing.process._children):  # type: ignore[attr-defined]
        if isinstance(process, StartedProcess):
            process.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
