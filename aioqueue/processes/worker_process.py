"""One worker process as its parent sees it: its start, its state, and its end with the program."""

from __future__ import annotations

import atexit
import os
import pickle
import weakref
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any, Final, Protocol

from aioqueue.errors import WorkerDiedError
from aioqueue.processes.arena import Arena
from aioqueue.processes.channel import Channel, channels
from aioqueue.processes.child import Ready
from aioqueue.processes.fork_server.bootstrap import (
    CannotStartError,
    is_daemonic,
    is_ending,
    is_importing_main,
    refuse_starts,
    refused_children,
)
from aioqueue.processes.fork_server.spawn import StartedProcess, one_at_a_time
from aioqueue.processes.respawning import why_not_begun
from aioqueue.processes.stack_dumps import DumpReader, DumpWriter, dump_pair, state_of
from aioqueue.telemetry.explain.explanation import WorkerState
from aioqueue.telemetry.explain.stacks import Stack

_ENDING: Final = 1.0
"""How many seconds a process has to end after it was asked to."""

Work = Callable[[Channel, Arena], object]


class WorkerProcess:
    """One worker process, for the thread that talks to it. It starts at once.

    Attributes:
        is_ready: it has reported that it can call the function.
        has_begun: it had reached its own code when it died. Known once `exitcode` was called.
        was_of_use: it has returned something, or its death has a known cause.

    Args:
        name: its name.
        arena_size: the size of the shared memory in bytes.
        work: its main function, which it must be able to import. It gets the process's end of the
            channel, and the memory. It calls `Arena.begin` first, and ends at an empty message.

    Raises:
        WorkerDiedError: it could not be started.
        CannotStartError: neither it nor any other process can be started.
    """

    def __init__(self, name: str, arena_size: int, work: Work) -> None:
        self.is_ready: bool = False
        self.has_begun: bool = False
        self.was_of_use: bool = False
        try:
            self._start(name, arena_size, work)
        except (OSError, EOFError) as error:
            raise WorkerDiedError(f"worker process {name} cannot be started: {error!r}") from error
        self.name: str = f"{name} (pid {self._process.pid})"

    def _start(self, name: str, arena_size: int, work: Work) -> None:
        """Start it; on a failure, close everything that it would have had."""
        with one_at_a_time(), ExitStack() as undo:
            self.arena: Arena = Arena(arena_size)
            undo.callback(self.arena.close)
            self._dumps: DumpReader | None
            self._dumps, writer = dump_pair() or (None, None)
            for end in (self._dumps, writer):
                if end is not None:
                    undo.callback(end.close)
            ours, theirs = channels()
            self.channel: Channel = ours
            undo.callback(self.channel.close)
            self._process: Any = StartedProcess(
                target=_begin, args=(work, theirs, self.arena, writer), name=name, daemon=True
            )
            with closing(theirs):
                self._process.start()
            if writer is not None:
                writer.close()
            self.arena.close_descriptor()
            self.channel.watch(self._process.sentinel)
            undo.pop_all()

    def send_message(self, message: bytes) -> None:
        """Send a message. If the process has died, the next read reports that."""
        try:
            self.channel.send(message)
        except (EOFError, OSError):
            pass

    def receive_reply(self) -> Any | None:
        """Wait for its next reply; return ``None`` if it has died."""
        try:
            message = self.channel.receive()
        except (EOFError, OSError):
            return None  # it may have died while it sent a message: that one does not count
        return pickle.loads(message)

    def assign(self, payload: bytes) -> Ready | None:
        """Send it the pickled function, and wait for its first reply; ``None`` if it has died."""
        self.send_message(payload)
        ready: Ready | None = self.receive_reply()
        self.is_ready = ready is not None
        return ready

    def exitcode(self) -> int:
        """Return its exit code. A process that has closed its channel is ended first."""
        self._process.join(_ENDING)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.has_begun = self.arena.has_begun
        exitcode: int = self._process.exitcode
        return exitcode

    def kill(self) -> None:
        """Kill it, whatever it is doing. Any thread may call this at any time."""
        try:
            self._process.kill()
        except (AttributeError, ValueError):
            pass  # its own thread has ended it, or is about to close it

    def kill_at_exit(self) -> None:
        """Kill it at the program's exit, without waiting for it."""
        self._process.disown()
        self.kill()

    def end(self, *, at_once: bool) -> None:
        if not at_once:
            self.send_message(b"")
            self._process.join(_ENDING)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        if not is_ending():
            self._process.close()
        self.channel.close()
        if self._dumps is not None:
            self._dumps.close()
        self.arena.close()

    def stack(self, seconds: float) -> Stack:
        """Return the stack of its main thread; empty if it does not answer in time. Thread-safe."""
        pid = self._pid()
        if self._dumps is None or pid is None or not self.arena.has_begun:
            return ()
        if state_of(pid)[0] == "stopped":
            return ()
        return self._dumps.ask(pid, seconds)

    def condition(self, seconds: float) -> tuple[Stack, WorkerState, str]:
        """Return its stack, its state, and a remark. Any thread may call it.

        Args:
            seconds: how long to wait for its stack.
        """
        stack = self.stack(seconds)
        return (stack, "running", "") if stack else (stack, *self.state())

    def state(self) -> tuple[WorkerState, str]:
        """Return its state by the operating system, and a remark, for a process without a stack."""
        pid = self._pid()
        if pid is None:
            return "ended", ""
        if not self.arena.has_begun:
            return "running", "it is being started"
        state, note = state_of(pid)
        if self._dumps is None or state != "running":
            return state, note
        return "does not answer", ""

    def _pid(self) -> int | None:
        try:
            pid: int | None = self._process.pid if self._process.is_alive() else None
        except (AttributeError, ValueError, AssertionError):
            return None  # its thread has ended it
        return pid


def _begin(work: Work, channel: Channel, arena: Arena, dumps: DumpWriter | None) -> None:
    if dumps is not None:
        dumps.answer()
    work(channel, arena)


def cannot_start(name: str, error: CannotStartError) -> WorkerDiedError:
    """Make the error for a process that cannot be started, nor any other."""
    why = "" if error.exitcode is None else why_not_begun()
    died = WorkerDiedError(
        f"worker process {name} cannot be started: {error}{why}", exitcode=error.exitcode or 0
    )
    died.__cause__ = error
    return died


def check_may_start() -> None:
    """Refuse to start processes where that is not allowed, or would never end.

    Raises:
        RuntimeError: this is itself a new process, which is importing the main module; or a worker
            process, which may not start others.
    """
    if is_daemonic():
        raise RuntimeError(refused_children("a stage or Batcher with where='process'"))
    if is_importing_main():
        raise RuntimeError(
            "where='process': the main module is being imported by a new process, and would start"
            ' processes in turn: put the code that starts them under `if __name__ == "__main__":`'
        )


class HasProcesses(Protocol):
    """An object that has worker processes, and ends them with the program."""

    def stop_replacing(self) -> None:
        """Replace no process from now on, because the program ends."""

    def kill_at_exit(self) -> None:
        """Kill all processes at the program's exit. Their threads then end, too."""


_owners: Final[weakref.WeakSet[HasProcesses]] = weakref.WeakSet()
"""The objects that may have processes."""


def end_at_exit(owner: HasProcesses) -> None:
    """Register an object whose processes must end with the program.

    Args:
        owner: the object; it is not kept alive.
    """
    _owners.add(owner)


def end_all() -> None:
    """Kill all processes of a program that ends without having stopped its workers.

    This runs before multiprocessing's own exit step, which was registered on its import.
    """
    owners = list(_owners)
    for owner in owners:
        owner.stop_replacing()
    refuse_starts()
    for owner in owners:
        owner.kill_at_exit()


atexit.register(end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_owners.clear)  # the parent's processes, not the fork's
