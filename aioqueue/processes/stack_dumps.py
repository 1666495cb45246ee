"""Asking a worker process where it is, whatever it is doing.

A signal has `faulthandler` write the stack of the process's main thread to a pipe. That needs no
step of the interpreter there: it works in the middle of a call that holds the GIL, too. A process
that does not answer is stopped, or waits in the kernel for a device; what the operating system says
of it is told instead.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from aioqueue.telemetry.explanation import WorkerState
from aioqueue.telemetry.stacks import Stack, stack_of_dump

__all__ = ("DumpReader", "DumpWriter", "dump_pair", "state_of")

_REAL_TIME: Final = getattr(signal, "SIGRTMIN", None)
SIGNAL: Final[int | None] = (
    getattr(signal, "SIGINFO", None) if _REAL_TIME is None else int(_REAL_TIME) + 7
)
"""What asks for a stack. Nobody else sends it, and no terminal does."""

_OUTERMOST: Final = ("in <module>\n", "\n  ...\n")
"""How the dump of a thread ends: by its outermost call, or because there are too many."""

_STATES: Final[dict[str, tuple[WorkerState, str]]] = {
    "T": ("stopped", "a signal has stopped it (SIGSTOP); SIGCONT lets it go on"),
    "t": ("stopped", "a debugger has stopped it"),
    "D": ("does not answer", "it waits in the kernel for a disk or a network file system"),
    "Z": ("ended", "it has died"),
}


class DumpWriter:
    """The worker's end. It can be handed to a process that is being started.

    Args:
        end: one of a pair of sockets.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def __reduce__(self) -> tuple[Any, ...]:
        return DumpWriter, (self._end,)

    def answer(self) -> None:
        """Answer from now on; in the worker's process."""
        if SIGNAL is not None:
            self._end.setblocking(False)  # who does not read the answer is not waited for
            faulthandler.register(SIGNAL, self._end.fileno(), all_threads=False, chain=False)

    def close(self) -> None:
        """Close the end."""
        self._end.close()


class DumpReader:
    """The program's end.

    Args:
        end: the other one of the pair.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._end.setblocking(False)
        self._lock = threading.Lock()  # one asks at a time

    def ask(self, pid: int, seconds: float) -> Stack:
        """Where a process is; empty if it does not answer in time.

        Args:
            pid: of the process, which answers already (`DumpWriter.answer`), or would be killed.
            seconds: how long to wait at most.
        """
        if SIGNAL is None:
            return ()
        with self._lock:
            if self._end.fileno() < 0:
                return ()  # closed meanwhile: the process has ended, and its pid may be another's
            try:
                while self._end.recv(65536):
                    pass  # what came too late for who asked before
            except OSError:
                pass
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, SIGNAL)
                return stack_of_dump(self._read(monotonic() + seconds))
        return ()

    def _read(self, deadline: float) -> str:
        text = ""
        while not text.endswith(_OUTERMOST):
            left = deadline - monotonic()
            if left <= 0 or not select.select([self._end], [], [], left)[0]:
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
        """Close the end."""
        with self._lock:
            self._end.close()


def dump_pair() -> tuple[DumpReader, DumpWriter] | None:
    """Two ends of one pipe; ``None`` where processes cannot be asked.

    Raises:
        OSError: there are no file descriptors left for them.
    """
    if SIGNAL is None or not hasattr(faulthandler, "register"):
        return None
    mine, theirs = socket.socketpair()
    return DumpReader(mine), DumpWriter(theirs)


def state_of(pid: int) -> tuple[WorkerState, str]:
    """What the operating system says of a process, and that in words, if it is out of the usual."""
    if sys.platform != "linux":
        return "running", ""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return "ended", "it is gone"
    return _STATES.get(state, ("running", ""))
