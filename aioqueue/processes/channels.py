"""Messages between a program and a worker process, whole or not at all.

A `Channel` is one end of a pair. It is gone when the other end is closed; or, once it watches the
other process, when that has ended. The end of the pipe alone would not do: whoever was forked from
that process, a helper of some library, holds a copy of its end and keeps the pipe open. So no call
here waits for a process that has died, neither in the middle of a message nor to send one.

An end belongs to the process that made it, or that it was sent to. A copy of it in a fork of that
process would keep the other end waiting in the same way, so forks close theirs.
"""

from __future__ import annotations

import os
import socket
import sys
import weakref
from typing import Any, Final

__all__ = ("Channel", "channels")

_open: Final[weakref.WeakSet[Channel]] = weakref.WeakSet()

if sys.platform == "win32":
    import multiprocessing
    from multiprocessing.connection import Connection, wait

    class Channel:
        """One end. Here nothing can be forked, so the pipe ends with the process."""

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
    """A program may have given SIGPIPE its deadly meaning back."""

    class Channel:
        """One end. It can be handed to a process that is being started.

        A message is its length and then its bytes. At most one thread may send at a time, and one
        receive.

        Args:
            end: one of a pair of sockets.
        """

        def __init__(self, end: socket.socket) -> None:
            self._socket = end
            self._socket.setblocking(True)  # whatever the program's default for sockets
            self._sentinel: int | None = None
            _open.add(self)

        def __reduce__(self) -> tuple[Any, ...]:
            return Channel, (self._socket,)

        def watch(self, sentinel: int) -> None:
            """The other end is in the process whose end makes a file descriptor readable."""
            self._sentinel = sentinel
            self._socket.setblocking(False)

        def send(self, message: bytes) -> None:
            """Send a message.

            Raises:
                OSError: the other end is gone.
                EOFError: the same.
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
                OSError: the other end is gone. Of a message that it had begun, nothing is told.
                EOFError: the same.
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
            """Wait until a part can be read or sent."""
            poll = select.poll()
            poll.register(self._socket, what)
            if self._sentinel is not None:
                poll.register(self._sentinel, select.POLLIN)
            ready = {fd for fd, _ in poll.poll()}
            if self._socket.fileno() in ready:
                return
            # The process has ended. What it had sent by then can be read now, if there is any: it
            # may have come after the socket was looked at, and before the sentinel was.
            if what != select.POLLIN or not self.comes_within(0):
                raise EOFError

        def comes_within(self, seconds: float) -> bool:
            """Whether there is something to read, within some time; the end is something too."""
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return bool(poll.poll(seconds * 1000))

        def close(self) -> None:
            """Close this end."""
            _open.discard(self)
            self._socket.close()

    def channels() -> tuple[Channel, Channel]:
        """Two ends of one pipe.

        Raises:
            OSError: there are no file descriptors left for them.
        """
        one, other = socket.socketpair()
        return Channel(one), Channel(other)

    def _close_copies() -> None:
        for channel in list(_open):
            channel.close()

    os.register_at_fork(after_in_child=_close_copies)
