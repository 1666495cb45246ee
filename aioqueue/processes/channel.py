"""A pipe of messages between a parent and a worker process: each arrives whole or not at all.

A `Channel` is one end of a pair. Its calls fail when the other end is closed, or when the other
process has ended, if the channel watches it. The end of the pipe alone would not be enough: a
process that was forked from the worker, by some library, has a copy of its end and keeps the pipe
open. So no call waits for a dead process, neither to send nor in the middle of a message.

An end belongs to the process that made it or received it. A copy in a fork of that process would
keep the other end waiting in the same way, so forks close theirs.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import weakref
from typing import Any, Final

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
