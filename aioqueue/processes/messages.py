"""Messages between a parent and a worker process, each whole or not at all; failures in them.

A `Channel` is one end of a pair. Its calls fail when the other end is closed, or when the other
process has ended, if the channel watches it. The end of the pipe alone would not be enough: a
process that was forked from the worker, by some library, has a copy of its end and keeps the pipe
open. So no call waits for a dead process, neither to send nor in the middle of a message.

An end belongs to the process that made it or received it. A copy in a fork of that process would
keep the other end waiting in the same way, so forks close theirs.

A failure keeps the traceback that it had in its process. `Succession` decides whether a process
that has died is replaced.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import sys
import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol

from aioqueue.base.tracebacks import shorten, text_of
from aioqueue.errors import PickledByParts, describe_exception, set_cause
from aioqueue.processes.program import imports_main

_open: Final[weakref.WeakSet[Channel]] = weakref.WeakSet()

if sys.platform == "win32":
    import multiprocessing
    from multiprocessing.connection import Connection, wait

    class Channel:
        """One end of a pair. No process can be forked here, so the pipe ends with the process."""

        def __init__(self, connection: Connection) -> None:
            self._connection = connection
            self._sentinel: Any = None

        def __reduce__(self) -> tuple[Any, ...]:
            return Channel, (self._connection,)

        def watch(self, sentinel: Any) -> None:
            self._sentinel = sentinel

        def send(self, message: bytes) -> None:
            self._connection.send_bytes(message)

        def receive(self) -> bytes:
            if self._sentinel is not None:
                came = wait([self._connection, self._sentinel])
                if self._connection not in came and not self._connection.poll():
                    raise EOFError
            return self._connection.recv_bytes()

        def comes_within(self, seconds: float) -> bool:
            return self._connection.poll(seconds)

        def close(self) -> None:
            self._connection.close()

    def channels() -> tuple[Channel, Channel]:
        one, other = multiprocessing.Pipe()
        return Channel(one), Channel(other)

else:
    import select
    import struct

    _LENGTH: Final = struct.Struct("!Q")
    _QUIET: Final = getattr(socket, "MSG_NOSIGNAL", 0)
    """Flags for `send`: a program may have set SIGPIPE to end it."""

    class Channel:
        """One end of a pair. It can be passed to a process that is being started.

        A message is its length followed by its bytes. At most one thread may send at a time, and
        one receive.

        Args:
            end: one socket of a pair.
        """

        def __init__(self, end: socket.socket) -> None:
            self._socket = end
            self._socket.setblocking(True)  # the program may have another default for sockets
            self._sentinel: int | None = None
            _open.add(self)

        def __reduce__(self) -> tuple[Any, ...]:
            return Channel, (self._socket,)

        def watch(self, sentinel: int) -> None:
            """Set the sentinel of the other process, which becomes readable when that ends."""
            self._sentinel = sentinel
            self._socket.setblocking(False)

        def send(self, message: bytes) -> None:
            """Send a message.

            Raises:
                OSError: the other end is gone.
                EOFError: the other end is gone.
            """
            rest = [memoryview(_LENGTH.pack(len(message))), memoryview(message)]
            while rest:
                try:
                    sent = self._socket.sendmsg(rest, (), _QUIET)
                except BlockingIOError:
                    self._wait(select.POLLOUT)
                    continue
                while rest and sent >= len(rest[0]):
                    sent -= len(rest.pop(0))
                if sent:
                    rest[0] = rest[0][sent:]

        def receive(self) -> bytearray:
            """Wait for the next message.

            Raises:
                OSError: the other end is gone. An incomplete message is dropped.
                EOFError: the other end is gone. An incomplete message is dropped.
            """
            (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
            return self._read(length)

        def _read(self, size: int) -> bytearray:
            message = bytearray(size)
            rest = memoryview(message)
            while rest:
                try:
                    n = self._socket.recv_into(rest)
                except BlockingIOError:
                    self._wait(select.POLLIN)
                    continue
                if n == 0:
                    raise EOFError
                rest = rest[n:]
            return message

        def _wait(self, what: int) -> None:
            """Wait until the socket can be read from or written to."""
            poll = select.poll()
            poll.register(self._socket, what)
            if self._sentinel is not None:
                poll.register(self._sentinel, select.POLLIN)
            ready = {fd for fd, _ in poll.poll()}
            if self._socket.fileno() in ready:
                return
            # The process has ended. Read what it had sent before: it may have arrived after the
            # socket was checked, and before the sentinel was.
            if what != select.POLLIN or not self.comes_within(0):
                raise EOFError

        def comes_within(self, seconds: float) -> bool:
            """Return whether there is something to read within some time, be it the end."""
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return bool(poll.poll(seconds * 1000))

        def close(self) -> None:
            """Close this end."""
            _open.discard(self)
            self._socket.close()

    def channels() -> tuple[Channel, Channel]:
        """Make the two ends of a pipe.

        Raises:
            OSError: there are no file descriptors left for them.
        """
        one, other = socket.socketpair()
        return Channel(one), Channel(other)

    def _close_copies() -> None:
        for channel in list(_open):
            channel.close()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_close_copies)


_PLACE: Final = "in a worker process"


class RemoteTraceback(Exception):  # noqa: N818  # it is a cause, and never raised
    """The cause of a failure from another process. It shows the traceback in that process.

    Args:
        text: the traceback.
        place: where the failure happened.
    """

    def __init__(self, text: str, place: str = _PLACE) -> None:
        super().__init__(text, place)
        self.text = text
        self.place = place

    def __str__(self) -> str:
        return f'{self.place}:\n"""\n{self.text}"""'


def message_of_failure(
    error: Exception,
    dumps: Callable[[Any], bytes] = pickle.dumps,
    loads: Callable[[bytes], Any] = pickle.loads,
) -> bytes:
    """Pickle a failure. One that cannot be pickled becomes a `RuntimeError` with its text."""
    error = _by_name(error)
    shorten(error)
    text = text_of(error)
    for sent in (error, PickledByParts(error)):
        try:
            pickled = dumps(sent)
            # Many can be pickled but not unpickled, or change on the way: try it.
            arrived = loads(pickled)
            if type(arrived) is type(error) and describe_exception(arrived) == describe_exception(
                error
            ):
                return pickle.dumps((pickled, text))
        except Exception:
            continue
    return pickle.dumps((dumps(RuntimeError(describe_exception(error))), text))


_MULTIPROCESSING: Final = "daemonic processes are not allowed to have children"
"""The text of the `AssertionError` with which multiprocessing refuses to start a process."""


def is_daemonic() -> bool:
    """Return whether this is a worker process, or another one that may not start processes."""
    return multiprocessing.current_process().daemon


def refused_children(what: str) -> str:
    """Say why a process that is a worker itself starts no others, and what to do instead.

    Args:
        what: what would have started them.
    """
    return (
        f"{what} cannot start processes in a worker process: they would outlive it when it is"
        " killed. Use where='thread' for the function that starts them, and it runs in the program"
        " itself; or let it work alone, on more workers"
    )


def _by_name(error: Exception) -> Exception:
    """Return a failure, with the refusal of multiprocessing in words that say what to do."""
    if type(error) is not AssertionError or str(error) != _MULTIPROCESSING or not is_daemonic():
        return error
    refusal = RuntimeError(refused_children("multiprocessing"))
    refusal.__cause__ = error
    return refusal


def failure_of_message(
    message: bytes, place: str = _PLACE, loads: Callable[[bytes], Any] = pickle.loads
) -> Exception:
    """Unpickle a failure that a worker has reported; its cause shows the traceback there."""
    pickled, text = pickle.loads(message)
    error: Exception
    try:
        error = loads(pickled)
        if not isinstance(error, Exception):
            raise TypeError(f"{error!r} is no exception")
    except Exception as unpickling:  # its class exists only in the worker, for example
        error = RuntimeError(f"a failure that cannot be unpickled here: {unpickling}")
    set_cause(error, RemoteTraceback(text, place))
    return error


MOST_IN_VAIN: Final = 10
"""How many processes in a row may die without having done anything."""

_SEE_OUTPUT: Final = ": its error output says more"
_GUARD: Final = (
    ". Processes import the main module of the program: if that starts"
    ' work when it is imported, put that under `if __name__ == "__main__":`'
)


class DeadProcess(Protocol):
    """A process that has died.

    Attributes:
        is_ready: it had reported that it was ready.
        has_begun: it had begun its own work.
        was_of_use: it has sent something, or its death has a known cause.
    """

    is_ready: bool
    has_begun: bool
    was_of_use: bool


class Succession:
    """Decides whether a process that has died is replaced, from how its predecessors ended."""

    def __init__(self) -> None:
        self._in_vain = 0  # processes in a row that did nothing

    def why_the_last(self, name: str, life: DeadProcess, exitcode: int) -> str | None:
        """Return the reason not to start another process, in words; ``None`` to start one.

        A process that was killed says nothing about the next one, unless all of them are killed.
        One that ended by itself before it was ready would do so again.
        """
        self._in_vain = 0 if life.was_of_use else self._in_vain + 1
        ended = f"worker process {name} {how_it_ended(exitcode)}"
        if exitcode >= 0 and not life.is_ready:
            why = _SEE_OUTPUT if life.has_begun else why_not_begun()
            return f"{ended} while it started{why}"
        if self._in_vain < MOST_IN_VAIN:
            return None
        when = "before it had done anything" if life.is_ready else "while it started"
        return f"{ended} {when}, as did {self._in_vain - 1} before it"


def why_not_begun() -> str:
    """Say why a process may have ended by itself before it began its own work."""
    return _SEE_OUTPUT + (_GUARD if imports_main() else "")


def how_it_ended(exitcode: int) -> str:
    """Say how a process has ended."""
    if exitcode >= 0:
        return f"has ended with exit code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
