"""The stack of a worker process, which it writes to a pipe when a signal asks for it.

A parent can ask for the stack of a process, whatever that is doing. A signal makes `faulthandler`
write the stack of the process's main thread to a pipe. That needs no step of the interpreter, so it
works even in a call that holds the GIL. A process that does not answer is stopped, or waits for a
device in the kernel; then we report what the operating system says about it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from aioqueue.telemetry.explain.explanation import WorkerState
from aioqueue.telemetry.explain.stacks import Stack, stack_of_dump

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
