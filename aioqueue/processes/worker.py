"""One worker process as its program sees it, and the end of all of them with the program."""

from __future__ import annotations

import atexit
import io
import os
import pickle
import weakref
from collections.abc import Callable
from contextlib import ExitStack, closing
from multiprocessing import reduction
from types import FunctionType
from typing import Any, Final, Protocol

from aioqueue.arguments import function_name
from aioqueue.errors import InvalidArgumentError, WorkerDiedError, exception_text
from aioqueue.processes.arena import Arena
from aioqueue.processes.channels import Channel, channels
from aioqueue.processes.program import imports_main, where_main_is
from aioqueue.processes.remote_failures import why_not_begun
from aioqueue.processes.stack_dumps import DumpReader, DumpWriter, dump_pair, state_of
from aioqueue.processes.start import (
    CannotStartError,
    StartedProcess,
    is_ending,
    is_importing_main,
    no_more,
    one_at_a_time,
)
from aioqueue.telemetry.explanation import WorkerState
from aioqueue.telemetry.stacks import Stack

__all__ = (
    "HasProcesses",
    "UnknownToOthersError",
    "WorkerProcess",
    "cannot_start",
    "check_not_importing",
    "dumped",
    "ended_at_exit",
    "not_importable",
    "pickled",
)

_ENDING: Final = 1.0
"""Seconds that a process has to end after it was told so."""

Work = Callable[[Channel, Arena], object]


class WorkerProcess:
    """One worker process, as the thread sees it that talks to it. It is started at once.

    Args:
        name: what it is called.
        arena_size: bytes of the memory that it shares with us.
        work: what it does, a function that it can import: with its end of the channel, and with the
            memory. It begins with `Arena.begin`, and ends at an empty message.

    Raises:
        WorkerDiedError: it could not be started.
        CannotStartError: nor could any other.
    """

    def __init__(self, name: str, arena_size: int, work: Work) -> None:
        try:
            self._start(name, arena_size, work)
        except (OSError, EOFError) as error:
            raise WorkerDiedError(f"worker process {name} cannot be started: {error!r}") from error
        self.name = f"{name} (pid {self._process.pid})"

    def _start(self, name: str, arena_size: int, work: Work) -> None:
        """Start it; if that fails, all that it would have had is closed again."""
        with one_at_a_time(), ExitStack() as undo:
            self.arena = Arena(arena_size)
            undo.callback(self.arena.close)
            self._dumps: DumpReader | None
            self._dumps, writer = dump_pair() or (None, None)
            for end in (self._dumps, writer):
                if end is not None:
                    undo.callback(end.close)
            self.channel, theirs = channels()
            undo.callback(self.channel.close)
            self._process: Any = StartedProcess(
                target=_begin, args=(work, theirs, self.arena, writer), name=name, daemon=True
            )
            with closing(theirs):
                self._process.start()
            if writer is not None:
                writer.close()
            self.arena.handed_over()
            self.channel.watch(self._process.sentinel)
            undo.pop_all()

    def send(self, message: bytes) -> None:
        """Send a message; a process that has died is noticed when reading from it."""
        try:
            self.channel.send(message)
        except (EOFError, OSError):
            pass

    def receive_message(self) -> bytes | bytearray | None:
        """Wait for what it sends next; ``None`` if it has died."""
        try:
            return self.channel.receive()
        except (EOFError, OSError):
            return None  # it may have died in the midst of sending: that counts as not sent

    def exitcode(self) -> int:
        """How it has ended; one that no longer speaks to us is ended."""
        self._process.join(_ENDING)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        exitcode: int = self._process.exitcode
        return exitcode

    def kill(self) -> None:
        """End it, whatever it is doing, and whichever signals it does not listen to. May be called
        from any thread, and at any time."""
        try:
            self._process.kill()
        except (AttributeError, ValueError):
            pass  # its thread has ended it already, or is just about to close it

    def kill_at_exit(self) -> None:
        """The same when the program ends, and nobody is to wait for it."""
        self._process.disown()
        self.kill()

    def end(self, *, at_once: bool) -> None:
        """End it and forget it."""
        if not at_once:
            self.send(b"")
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
        """Where its main thread is, for any thread; empty if it does not say so in that time."""
        pid = self._pid()
        if self._dumps is None or pid is None or not self.arena.has_begun:
            return ()
        if state_of(pid)[0] == "stopped":
            return ()
        return self._dumps.ask(pid, seconds)

    def state(self) -> tuple[WorkerState, str]:
        """What the system says of it, where it does not say so itself, and a word on that."""
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
    """The main function of a worker process."""
    if dumps is not None:
        dumps.answer()
    work(channel, arena)


def pickled(thing: object, function: Callable[..., Any]) -> bytes:
    """A function, or what calls it, as it is sent to every process.

    Raises:
        InvalidArgumentError: it cannot be pickled, or no process could import it.
    """
    try:
        return dumped(thing, reduction.ForkingPickler)
    except UnknownToOthersError as error:
        raise not_importable(function, str(error)) from error
    except Exception as error:
        raise InvalidArgumentError(
            f"function: got {function_name(function)!r}, which cannot be pickled and so cannot"
            f" be sent to a process ({exception_text(error)}); expected a function at the top level of a"
            " module (not a lambda or an inner one), a functools.partial of one, or a picklable"
            " object with __call__; or use where='thread'"
        ) from error


class UnknownToOthersError(Exception):
    """A function or class cannot be imported by a new process: the message says why."""


def dumped(thing: object, pickler: type[pickle.Pickler]) -> bytes:
    """A thing as it is sent to every process.

    Args:
        thing: what is pickled.
        pickler: what pickles it.

    Raises:
        UnknownToOthersError: it has a function or class of a main module that no other process
            imports, such as those of a notebook's cells: pickle writes no more than its name.
        Exception: it cannot be pickled.
    """

    class Refusing(pickler):  # type: ignore[misc, valid-type]  # a base that is an argument
        def reducer_override(self, thing: Any) -> Any:
            if isinstance(thing, FunctionType | type) and thing.__module__ == "__main__":
                raise UnknownToOthersError(
                    f"{thing.__qualname__!r} is defined {where_main_is()} and import that, or use"
                    " where='thread'"
                )
            return NotImplemented

    with io.BytesIO() as file:
        (pickler if imports_main() else Refusing)(file, 5).dump(thing)
        return file.getvalue()


def not_importable(function: Callable[..., Any], why: str = "") -> InvalidArgumentError:
    """What is raised when a new process cannot unpickle the function."""
    return InvalidArgumentError(
        f"function: got {function_name(function)!r}, which a new process"
        " cannot import; expected a function of a module that can be imported there"
        + (f": {why}" if why else "")
    )


def cannot_start(name: str, error: CannotStartError) -> WorkerDiedError:
    """What is raised when there is to be no process of that name, nor any other."""
    why = "" if error.exitcode is None else why_not_begun()
    died = WorkerDiedError(
        f"worker process {name} cannot be started: {error}{why}", exitcode=error.exitcode or 0
    )
    died.__cause__ = error
    return died


def check_not_importing() -> None:
    """Refuse to have processes where that would go on without end.

    Raises:
        RuntimeError: this is a new process itself, which is importing the main module.
    """
    if is_importing_main():
        raise RuntimeError(
            "where='process': the main module is being imported by a new process, and would"
            ' start processes in turn; put what it does under `if __name__ == "__main__":`'
        )


class HasProcesses(Protocol):
    """Somebody who has worker processes, and ends them with the program."""

    def start_no_more(self) -> None:
        """The program ends: what ends from now on is not replaced."""

    def kill_at_exit(self) -> None:
        """End all processes, at the end of the program; their threads end with it."""


_owners: Final[weakref.WeakSet[HasProcesses]] = weakref.WeakSet()
"""Those that may have processes."""


def ended_at_exit(owner: HasProcesses) -> None:
    """See to it that processes end with the program.

    Args:
        owner: who has them; it is not kept alive by this.
    """
    _owners.add(owner)


def _end_all() -> None:
    """The program ends, and may not have stopped its workers.

    It comes before multiprocessing's own step, which was registered when that was imported.
    """
    owners = list(_owners)
    for owner in owners:
        owner.start_no_more()
    no_more()
    for owner in owners:
        owner.kill_at_exit()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_owners.clear)  # they are the program's, not its fork's
