"""Frames on a Unix socket: what the owner of shared objects and its clients send each other.

A frame has a kind, the number of the shared object, the number of the call, and a body. The calls
of a connection count up from 1, so each has one number for as long as the connection lives.

Neither side ever blocks on its socket. What the kernel does not accept at once stays in a buffer
until the socket can be written to again; who sends bounds what may be in it.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from typing import Final, TypeAlias

from aioqueue.errors import InvalidArgumentError
from aioqueue.system.locks import call_with_lock, is_held_here, machine_lock

VERSION: Final = 2
"""The version of the protocol. Both ends must have the same one."""

HEAD: Final = struct.Struct("<IBIQ")
"""The head of a frame: the bytes of its body, its kind, the object, and the call."""

_LENGTH: Final = struct.Struct("<I")

LONGEST_HELLO: Final = 64
"""How many bytes the body of the first frame has at most."""

LONGEST: Final = 1 << 31
"""How many bytes a body has at most. A longer one is refused before memory is reserved for it."""

_PART: Final = 1 << 16
"""How many bytes to read at most in one system call. That many are allocated for each: from 128 KiB
on, glibc maps fresh pages each time, which costs more than all else that a small frame does."""

Frame: TypeAlias = tuple[int, int, int, memoryview]
"""Kind, object, call, body."""

# From either side.
HELLO: Final = 1
"""The first frame: the version, and the process."""
FREE: Final = 2
"""The receiver of arrays has read them: their places in the shared memory are free."""

# From a client.
ACKNOWLEDGE: Final = 3
"""The callers of these calls have run on with what they got."""
CANCEL: Final = 4
"""A call is to end; the owner answers what has become of it."""

# From the owner.
OK: Final = 5
"""The answer of a call."""
FAILED: Final = 6
"""The call raises: the body is the failure."""
SETTLED: Final = 7
"""The answer to a cancellation: what has become of the call."""
NEWS: Final = 8
"""Something has happened to an object, and no call has asked for it."""
BYE: Final = 9
"""The owner ends in order, and answers no more."""

DESCRIBE: Final = 10
"""A client asks what an object is. (A client sends it.)"""

FIRST_OF_SERVICE: Final = 16
"""Kinds from here on begin a call. What they mean is up to the object's service."""


class FrameError(Exception):
    """What came is no frame: another program is at the other end, or another version of ours."""


def check_length(nbytes: int) -> None:
    """Check that a message is not too long to be sent: the receiver would end the connection.

    Raises:
        InvalidArgumentError: it is longer than `LONGEST`.
    """
    if nbytes > LONGEST:
        raise InvalidArgumentError(
            f"elements: got {nbytes:,} bytes for one message to another process; expected at most"
            f" {LONGEST:,}: send fewer rows with one call, or smaller elements"
        )


class FrameSocket:
    """A non-blocking socket of frames, with a buffer on each side.

    Any thread may send; a signal handler or a finalizer, too, in the middle of a call of its own
    thread. One thread at a time receives. An exception of a signal handler may interrupt any call,
    and the next one continues: what a system call has done is recorded by the same C call.

    Args:
        connection: a connected stream socket.
        longest: how many bytes a body has at most that comes.
    """

    def __init__(self, connection: socket.socket, longest: int = LONGEST) -> None:
        connection.setblocking(False)
        self.longest = longest
        self.socket = connection
        self._lock = machine_lock()  # guards what is to be sent
        self._outgoing: deque[memoryview] = deque()
        self._late: deque[bytes] = deque()  # sent by handlers that have interrupted a `send`
        self.outgoing_bytes: int = 0
        self._sent: list[int] = []
        self._corked: list[bytes] = []  # whole frames, which go with the next ones
        self._parts: deque[bytes] = deque()  # read, and not yet taken apart
        self._incoming = b""
        self._at = 0  # where the next frame begins in it
        self._large: bytearray | None = None  # the body of a large frame, as far as it has come
        self._large_filled = 0
        self._large_head = (0, 0, 0)
        self.is_closed: bool = False

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, kind: int, thing: int, call: int, body: bytes = b"") -> bool:
        """Send a frame, as far as the kernel takes it now; return whether all has gone."""
        return self.send_frames(HEAD.pack(len(body), kind, thing, call) + body)

    def cork(self, frame: bytes) -> None:
        """Keep a whole frame, to send it with the next ones, and before them."""
        call_with_lock(self._lock, self._cork, frame)

    def _cork(self, frame: bytes) -> None:
        self._corked.append(frame)

    @property
    def has_corked(self) -> bool:
        return bool(self._corked)

    def send_frames(self, frames: bytes, notes: bytes = b"") -> bool:
        """Send whole frames, as `frame` makes them: notes, what was corked, and the rest.

        Args:
            frames: go last.
            notes: go first.
        """
        if is_held_here(self._lock):
            # A signal handler or a finalizer: its frame must not land in the middle of another.
            self._late.append(notes + frames)
            return False
        return call_with_lock(self._lock, self._send, frames, notes)

    def _send(self, data: bytes, notes: bytes) -> bool:
        if self.is_closed:
            return True
        if self._outgoing or self._late:
            self._keep(memoryview(notes))
            self._keep_corked()
            self._keep(memoryview(data))
            return self._flush()
        # The usual case: the kernel takes all of it, and nothing is kept.
        sent: list[int] = []
        if notes or self._corked:
            data = b"".join((notes, *self._corked, data))
            # No call from here to the `try`: no handler can raise where these frames would be lost.
            self._corked = []
        try:
            sent.extend(map(self.socket.send, (data,)))
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            return True  # the other end has gone; the next read finds the end
        except BaseException:  # from a signal handler; the list says whether it was sent
            self._keep(memoryview(data)[sum(sent) :])
            raise
        if sent and sent[0] == len(data):
            return not self._late
        self._keep(memoryview(data)[sum(sent) :])
        return False

    def _keep(self, rest: memoryview) -> None:
        if rest:
            self._outgoing.append(rest)
            self.outgoing_bytes += len(rest)

    def _keep_corked(self) -> None:
        if self._corked:
            joined = memoryview(b"".join(self._corked))
            outgoing = deque((*self._outgoing, joined))
            # One statement without a call after it: they are in one place, and never in both.
            self._outgoing, self._corked = outgoing, []
            self.outgoing_bytes += len(joined)

    def flush(self) -> bool:
        """Send what is in the buffer, as far as the kernel takes it; return whether that is all."""
        if is_held_here(self._lock):
            return False
        return call_with_lock(self._lock, self._flush)

    def _flush(self) -> bool:
        self._keep_corked()  # before the late ones: a cancellation must not overtake its call
        outgoing, late, sent = self._outgoing, self._late, self._sent
        while outgoing or late:
            if sent:  # a signal handler has raised before this was noted
                self._note_sent()
                continue
            if not outgoing:
                self._keep(memoryview(late.popleft()))
                continue
            try:
                sent.extend(map(self.socket.send, (outgoing[0],)))
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                outgoing.clear()
                self.outgoing_bytes = 0
                return True
            self._note_sent()
        return True

    def _note_sent(self) -> None:
        sent, first = self._sent[0], self._outgoing[0]
        if sent == len(first):
            del self._sent[:], self._outgoing[0]
        else:
            self._outgoing[0] = first[sent:]
            del self._sent[:]
        self.outgoing_bytes = max(0, self.outgoing_bytes - sent)

    @property
    def has_outgoing(self) -> bool:
        return bool(self._outgoing or self._late)

    def receive(self) -> None:
        """Read what has come, without waiting for more; `next_frame` takes it apart.

        Raises:
            EOFError: the other end is closed.
        """
        try:
            if self._large is not None:
                self._receive_large(self._large)
            else:
                self._parts.extend(map(self.socket.recv, (_PART,)))
                if not self._parts[-1]:
                    raise EOFError
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            raise EOFError from None

    def next_frame(self) -> Frame | None:
        """Return the first frame that has come whole; it stays first until `drop_frame`.

        Raises:
            FrameError: what came is no frame.
        """
        large = self._large
        if large is not None:
            if self._large_filled < len(large):
                return None
            return *self._large_head, memoryview(large)
        if self._parts:
            self._join_parts()
        incoming, at = self._incoming, self._at
        body = at + HEAD.size
        if len(incoming) < body:
            return None
        length, kind, thing, call = HEAD.unpack_from(incoming, at)
        if length > self.longest:
            raise FrameError(f"a frame of {length} bytes")
        if len(incoming) >= body + length:
            return kind, thing, call, memoryview(incoming)[body : body + length]
        if length > _PART:
            # Its body gets memory of its own once, and is read straight into that.
            rest = memoryview(incoming)[body:]
            large = bytearray(length)
            large[: len(rest)] = rest
            self._large_filled, self._large_head = len(rest), (kind, thing, call)
            self._large, self._incoming, self._at = large, b"", 0
        return None

    def drop_frame(self) -> None:
        """Go on to the next frame."""
        if self._large is not None:
            self._large = None
        else:
            (length,) = _LENGTH.unpack_from(self._incoming, self._at)
            self._at += HEAD.size + length

    def _join_parts(self) -> None:
        rest = self._incoming[self._at :]
        parts = list(self._parts)
        joined = parts[0] if not rest and len(parts) == 1 else b"".join((rest, *parts))
        # One statement without a call after it: an interruption leaves all as it was, or all new.
        self._incoming, self._at, self._parts = joined, 0, deque()

    def _receive_large(self, large: bytearray) -> None:
        """Read on into the body of a large frame."""
        view = memoryview(large)
        while self._large_filled < len(large):
            n = self.socket.recv_into(view[self._large_filled :])
            if not n:
                raise EOFError
            self._large_filled += n

    def close(self) -> None:
        self.is_closed = True
        self._outgoing.clear()
        self._late.clear()
        self._corked = []
        self.outgoing_bytes = 0
        self.socket.close()


def frame(kind: int, thing: int, call: int, body: bytes = b"") -> bytes:
    return HEAD.pack(len(body), kind, thing, call) + body
