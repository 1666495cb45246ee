"""One worker process as its parent sees it: its stack, and its end with the program.

A parent can ask for the stack of a process, whatever that is doing. A signal makes `faulthandler`
write the stack of the process's main thread to a pipe. That needs no step of the interpreter, so it
works even in a call that holds the GIL. A process that does not answer is stopped, or waits for a
device in the kernel; then we report what the operating system says about it.
"""

from __future__ import annotations

import atexit
import faulthandler
import io
import os
import pickle
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from multiprocessing import reduction
from time import monotonic
from types import FunctionType
from typing import Any, Final, Protocol

from aioqueue.base.arguments import function_name
from aioqueue.errors import InvalidArgumentError, WorkerDiedError, exception_text
from aioqueue.processes.arena import Arena
from aioqueue.processes.messages import (
    Channel,
    channels,
    is_daemonic,
    refused_children,
    why_not_begun,
)
from aioqueue.processes.program import (
    CannotStartError,
    imports_main,
    is_ending,
    is_importing_main,
    no_more,
    where_main_is,
)
from aioqueue.processes.start import StartedProcess, one_at_a_time
from aioqueue.telemetry.explanation import WorkerState
from aioqueue.telemetry.stacks import Stack, stack_of_dump

_ENDING: Final = 1.0
"""How many seconds a process has to end after it was asked to."""

Work = Callable[[Channel, Arena], object]


class WorkerProcess:
    """One worker process, for the thread that talks to it. It starts at once.

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
            self.arena.handed_over()
            self.channel.watch(self._process.sentinel)
            undo.pop_all()

    def send(self, message: bytes) -> None:
        """Send a message. If the process has died, the next read reports that."""
        try:
            self.channel.send(message)
        except (EOFError, OSError):
            pass

    def receive_message(self) -> bytes | bytearray | None:
        """Wait for its next message; return ``None`` if it has died."""
        try:
            return self.channel.receive()
        except (EOFError, OSError):
            return None  # it may have died while it sent a message: that one does not count

    def exitcode(self) -> int:
        """Return its exit code. A process that has closed its channel is ended first."""
        self._process.join(_ENDING)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
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
    """Run a worker process: its main function."""
    if dumps is not None:
        dumps.answer()
    work(channel, arena)


def pickled(thing: object, function: Callable[..., Any]) -> bytes:
    """Pickle a function, or an object that calls it, for every process.

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
            f" be sent to a process ({exception_text(error)});"
            f" expected a function at the top level of a"
            " module (not a lambda or an inner one), a functools.partial of one, or a picklable"
            " object with __call__; or use where='thread'"
        ) from error


class UnknownToOthersError(Exception):
    """A new process cannot import a function or class; the message says why."""


def dumped(thing: object, pickler: type[pickle.Pickler]) -> bytes:
    """Pickle an object for every process.

    Args:
        thing: the object.
        pickler: the class that pickles it.

    Raises:
        UnknownToOthersError: it refers to a function or class of a main module that other processes
            do not import, such as one from a notebook's cell. Pickle would write only its name.
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
    """Make the error for a function that a new process cannot unpickle."""
    return InvalidArgumentError(
        f"function: got {function_name(function)!r}, which a new process"
        " cannot import; expected a function of a module that can be imported there"
        + (f": {why}" if why else "")
    )


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

    def start_no_more(self) -> None:
        """Replace no process from now on, because the program ends."""

    def kill_at_exit(self) -> None:
        """Kill all processes at the program's exit. Their threads then end, too."""


_owners: Final[weakref.WeakSet[HasProcesses]] = weakref.WeakSet()
"""The objects that may have processes."""


def ended_at_exit(owner: HasProcesses) -> None:
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
        owner.start_no_more()
    no_more()
    for owner in owners:
        owner.kill_at_exit()


atexit.register(end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_owners.clear)  # the parent's processes, not the fork's


_REAL_TIME: Final = getattr(signal, "SIGRTMIN", None)
SIGNAL: Final[int | None] = (
    getattr(signal, "SIGINFO", None) if _REAL_TIME is None else int(_REAL_TIME) + 7
)
"""The signal that asks for a stack. No terminal sends it, and usually no other program."""

_OUTERMOST: Final = ("in <module>\n", "\n  ...\n")
"""The ends of a thread's dump: its outermost call, or the mark of a dump that is cut."""

_STATES: Final[dict[str, tuple[WorkerState, str]]] = {
    "T": ("stopped", "a signal has stopped it (SIGSTOP); SIGCONT lets it continue"),
    "t": ("stopped", "a debugger has stopped it"),
    "D": ("does not answer", "it waits in the kernel for a disk or a network file system"),
    "Z": ("ended", "it has died"),
}


class DumpWriter:
    """The worker's end. It can be passed to a process that is being started.

    Args:
        end: one socket of a pair.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def __reduce__(self) -> tuple[Any, ...]:
        return DumpWriter, (self._end,)

    def answer(self) -> None:
        """Answer requests from now on. Call it in the worker process."""
        if SIGNAL is not None:
            self._end.setblocking(False)  # do not wait for a reader that is not reading
            faulthandler.register(SIGNAL, self._end.fileno(), all_threads=False, chain=False)

    def close(self) -> None:
        """Close this end."""
        self._end.close()


class DumpReader:
    """The parent's end.

    Args:
        end: the other socket of the pair.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._end.setblocking(False)
        self._lock = threading.Lock()  # one request at a time

    def ask(self, pid: int, seconds: float) -> Stack:
        """Return the stack of a process; empty if it does not answer in time.

        Args:
            pid: the process id. The process must answer already (`DumpWriter.answer`): otherwise
                the signal would kill it.
            seconds: how long to wait at most.
        """
        if SIGNAL is None:
            return ()
        with self._lock:
            if self._end.fileno() < 0:
                return ()  # closed meanwhile: the process has ended, and its pid may be reused
            try:
                while self._end.recv(65536):
                    pass  # drop a late answer to an earlier request
            except OSError:
                pass
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, SIGNAL)
                return stack_of_dump(self._read(monotonic() + seconds))
        return ()

    def _read(self, deadline: float) -> str:
        from aioqueue.system import posix  # only when used

        text = ""
        while not text.endswith(_OUTERMOST):
            left = deadline - monotonic()
            if left <= 0 or not posix.is_readable(self._end, left):
                break
            try:
                part = self._end.recv(65536)
            except OSError:
                break
            if not part:
                break
            text += part.decode(errors="replace")
        return text

    def close(self) -> None:
        """Close this end."""
        with self._lock:
            self._end.close()


def dump_pair() -> tuple[DumpReader, DumpWriter] | None:
    """Make the two ends of a pipe; return ``None`` on systems where this does not work.

    Raises:
        OSError: there are no file descriptors left for them.
    """
    if SIGNAL is None or not hasattr(faulthandler, "register"):
        return None
    mine, theirs = socket.socketpair()
    return DumpReader(mine), DumpWriter(theirs)


def state_of(pid: int) -> tuple[WorkerState, str]:
    """Return the state of a process by the operating system, and a remark if it is unusual."""
    from aioqueue.system import posix  # only when used

    if sys.platform != "linux" or not os.path.exists("/proc/self/stat"):
        return "running", ""
    state = posix.state_of(pid)
    if not state:
        return "ended", "it is gone"
    return _STATES.get(state, ("running", ""))
