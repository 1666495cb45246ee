"""The process at the other end of a connection: who it is, and how it ended.

A socket stays open as long as any process has it, also one that was forked from the process that
ended. So both ends watch the process itself, by a *pidfd* where the system has them (Linux). Where
it has none, the end of the socket has to do.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress

from aioqueue.errors import WorkerDiedError


def peer_pid(connection: socket.socket) -> int:
    """Return the process at the other end of a Unix socket; 0 if the system does not say."""
    from aioqueue.system import posix  # only when used

    return posix.peer_pid(connection)


class Peer:
    """The process at the other end of a connection.

    Args:
        pid: its number; 0 if unknown.

    Attributes:
        pid: its number; 0 if unknown.
        sentinel: a descriptor that becomes readable when it ends; ``None`` if the system has none.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.sentinel: int | None = None
        self._code: int | None = None  # how it has ended, once that was asked
        if pid and hasattr(os, "pidfd_open"):
            with suppress(OSError):  # it has ended, or there are no descriptors left
                self.sentinel = os.pidfd_open(pid)

    def exit_code(self) -> int | None:
        """Return its exit code, or minus the signal that killed it; ``None`` if unknown.

        The parent knows. Others know while the parent has not asked for it yet, and on recent
        systems afterwards, too.
        """
        if self._code is None and self.has_ended():
            status = self._status()
            if status is not None:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def _status(self) -> int | None:
        if self.sentinel is None:
            return None
        # It may be reaped between the two questions: then the first one has an answer now.
        for ask in (self._status_of_reaped, self._status_of_zombie, self._status_of_reaped):
            status = ask()
            if status is not None:
                return status
        return None

    def _status_of_reaped(self) -> int | None:
        """Return its status if its parent has asked for it, on systems that keep it."""
        from aioqueue.system import posix  # only when used

        return None if self.sentinel is None else posix.status_of_reaped(self.sentinel)

    def _status_of_zombie(self) -> int | None:
        """Return its status if nobody has asked for it: the kernel shows it to the same user."""
        with suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            if fields[0] == b"Z":
                return int(fields[-1])
        return None

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Return whether it has ended, or ends within some time; false if that is unknown."""
        sentinel = self.sentinel
        if sentinel is not None:
            from aioqueue.system import posix  # only when used

            # Another thread may close it meanwhile, once it has seen the end.
            with suppress(OSError, ValueError):
                return posix.is_readable(sentinel, seconds)
        return False

    def close(self) -> None:
        """Forget the process; how it has ended stays known."""
        self.exit_code()
        sentinel, self.sentinel = self.sentinel, None
        if sentinel is not None:
            os.close(sentinel)


def died_error(what: str, peer: Peer) -> WorkerDiedError:
    """Make the error of calls whose other end has ended.

    Args:
        what: what the process did, such as "the process that shares FIFOQueue 'a'".
        peer: the process.
    """
    code = peer.exit_code()
    return WorkerDiedError(f"{what} {how_ended(peer.pid, code)}", exitcode=code or 0)


def how_ended(pid: int, code: int | None) -> str:
    """Describe how a process has ended."""
    process = f"(pid {pid}) " if pid else ""
    if code is None:
        return f"{process}has ended; its exit status is known to its parent only"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"{process}was killed by {name}"
    return f"{process}has ended with exit code {code}"
