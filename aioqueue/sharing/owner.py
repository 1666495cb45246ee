"""The owner's side: one thread that serves all shared objects of this process to all clients.

The thread never waits for a client, and never runs code of the user. A call of a client is begun at
once, as an attempt like those of the owner's own threads and tasks; so it has its place in the same
line. The caller that ends the attempt only notes the call and wakes the thread, which answers.

**The end of a client.** The thread sees the death of a client's process by its pidfd, and the end
of a connection by its socket. It reads what is still in the socket, then the page of
acknowledgements, and then gives back what the client's callers have not got, newest first: so the
oldest elements end up in front.

**The end of the owner.** At the interpreter's exit the objects end in order: each waiting call gets
what the last state of its object says. A process that is killed answers nothing; its clients see
that for themselves.
"""

from __future__ import annotations

import atexit
import errno
import heapq
import itertools
import logging
import os
import pickle
import selectors
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol

from aioqueue.base.public_names import World
from aioqueue.remote.failures import message_of_error
from aioqueue.sharing import addresses, frames, memory
from aioqueue.sharing.frames import FrameError, FrameSocket
from aioqueue.sharing.memory import Parts, SharedMemory
from aioqueue.sharing.peers import Peer, peer_pid
from aioqueue.sharing.row_blocks import RowBlocks
from aioqueue.system.forks import note_for_forks

_log: Final = logging.getLogger("aioqueue")

_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE

MOST_CLIENTS: Final = 4096
"""How many clients can be connected at the same time."""

MOST_CALLS: Final = memory.SLOTS
"""How many calls of one client can be unsettled at the same time."""

MOST_UNSENT: Final = 4 << 20
"""How many bytes may wait in this process for the other end to read. Beyond that, the owner makes
no answers for a client, and callers of a client wait before they pickle."""

_DESCRIPTOR_PAUSE: Final = 0.1
"""Seconds to wait for a descriptor when this process has none left for a client."""

_NOTHING_LEFT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""What the system says then."""

_FINALIZER: Final = -20
"""After the queues of `multiprocessing` have sent what they have, and after other finalizers."""

_LAST_WORDS: Final = 1.0
"""Seconds that the last answers may take at the end of this process."""


class Address(NamedTuple):
    """Where an object is served."""

    path: str
    """The path of the owner's socket."""
    token: str
    """Distinguishes the owner from all other processes, whatever their numbers."""
    pid: int
    """The owner, for messages."""


def shared_by(address: Address) -> str:
    """Return what the text of a handle says at its end."""
    return f", shared by process {address.pid}"


class Service(Protocol):
    """One shared object, as the owner's thread serves it. Only that thread calls its methods.

    None of them may wait, raise for what a client has done, or run code of the user.
    """

    label: str

    def pickled(self, world: World) -> tuple[Any, ...]:
        """Return what makes a face of the object in another process: a function of ours, and its
        arguments, as ``__reduce__`` returns them. Finding an object by its name uses it, too."""

    def begin(self, client: ConnectedClient, kind: int, number: int, body: memoryview) -> None:
        """Begin a call of a client. Answer it now or later, once.

        See `ConnectedClient.answer` and `ConnectedClient.fail`.

        Raises:
            Exception: the call fails with it.
        """

    def acknowledge(self, client: ConnectedClient, number: int) -> None:
        """Note that the caller has run on with what it got."""

    def cancel(self, client: ConnectedClient, number: int, body: memoryview) -> bytes:
        """End a call, if it has not ended; return what has become of it, for the caller."""

    def leave(self, client: ConnectedClient) -> None:
        """End all calls of a client that has gone; `is_acknowledged` reads the page."""

    def finish(self) -> None:
        """End in order: answer all calls that wait."""

    def was_forked(self) -> None:
        """Turn the object that this fork has inherited into a handle."""


class ConnectedClient:
    """The owner's view of one connection.

    Attributes:
        pid: the client's process.
        calls: for the services: their calls of this client that are not settled, by number. Each
            has its ``service``.
        is_awaiting_room: for the server: whether it watches for room in the socket.
    """

    def __init__(self, server: Server, connection: socket.socket) -> None:
        self._server = server
        # Until it has introduced itself: who knows who connects.
        self.socket: FrameSocket = FrameSocket(connection, frames.LONGEST_HELLO)
        self.peer: Peer = Peer(peer_pid(connection))
        self.pid: int = self.peer.pid
        self.calls: dict[int, Any] = {}
        self.services: set[Service] = set()
        self.memory: SharedMemory | None = None
        self.has_left = False
        self.is_awaiting_room = False
        self._postponed: deque[Callable[[], object]] = deque()
        self._answer_bytes = 0
        self._block_calls: dict[int, int] = {}  # whose answer is in a block of the shared memory
        self._answers: list[bytes] = []  # what this round of the thread sends together

    def __str__(self) -> str:
        return f"process {self.pid}"

    def answer(self, number: int, parts: Parts | bytes = b"") -> tuple[int, ...]:
        """Answer a call; return the blocks of shared memory that the answer has taken.

        Raises:
            InvalidArgumentError: the answer is too long; nothing was sent.
        """
        blocks: tuple[int, ...] = ()
        if isinstance(parts, bytes):
            body = parts
            frames.check_length(len(body))
        else:
            assert self.memory is not None
            body, blocks = memory.packed(self.memory, parts)
            self._block_calls.update(dict.fromkeys(blocks, number))
        self.send(frames.OK, 0, number, body)
        return blocks

    def free_blocks(self, number: int, blocks: Iterable[int]) -> None:
        """Free what an answer has taken, but not what the client has freed itself.

        A lease whose caller has read it may still be given back. Its blocks may have the answer of
        another call by then.
        """
        self._free([start for start in blocks if self._block_calls.get(start) == number])

    def note_freed(self, blocks: Iterable[int]) -> None:
        """Note that the client has read what was in some blocks."""
        self._free(list(blocks))

    def _free(self, blocks: list[int]) -> None:
        for start in blocks:
            self._block_calls.pop(start, None)
        if self.memory is not None:
            self.memory.free(blocks)

    def fail(self, number: int, error: BaseException) -> None:
        """Let a call raise."""
        self.send(frames.FAILED, 0, number, message_of_error(error))

    def send(self, kind: int, thing: int, number: int, body: bytes) -> None:
        """Send a frame, with all others of this round. Only the owner's thread calls this."""
        self._answers.append(frames.frame(kind, thing, number, body))
        self._answer_bytes += len(body)
        self._server.note_answers(self)

    def is_acknowledged(self, number: int) -> bool:
        return self.memory is not None and self.memory.is_acknowledged(number)

    @property
    def is_congested(self) -> bool:
        """Whether more waits for this client to read than it should: do not answer it now."""
        return self.socket.outgoing_bytes + self._answer_bytes > MOST_UNSENT

    def postpone(self, answer: Callable[[], object]) -> None:
        """Have an answer made once the client has read what waits for it."""
        self._postponed.append(answer)

    def make_postponed(self) -> None:
        while self._postponed and not self.is_congested:
            self._postponed.popleft()()

    def send_answers(self) -> bool:
        """Send what this round has to say; return whether all has gone."""
        answers, self._answers = self._answers, []
        self._answer_bytes = 0
        if not answers:
            return self.socket.flush()
        return self.socket.send_frames(answers[0] if len(answers) == 1 else b"".join(answers))


class LaterCall:
    """A call at a later time; `Server.call_later` returns it."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call


class Server:
    """The thread that serves the shared objects of this process. `server` returns it."""

    def __init__(self) -> None:
        self._services: dict[int, Service] = {}
        self._numbers = itertools.count(1)
        self._clients: set[ConnectedClient] = set()
        self._calls: deque[Callable[[], object]] = deque()
        self._calls_after_answers: deque[Callable[[], object]] = deque()
        self._is_awake = False  # whether the thread will make what calls are noted in any case
        self._timers: list[tuple[float, int, LaterCall]] = []
        self._cancelled_timers = 0  # how many of them
        self._timer_numbers = itertools.count()
        self._with_answers: dict[ConnectedClient, None] = {}
        self._is_ending = False
        self._names: dict[str, addresses.Name] = {}
        self._lock = threading.Lock()  # guards the services and names
        self.row_blocks: RowBlocks = RowBlocks(self.call_soon)
        try:
            self._listener, path = addresses.listening_socket()
        except BaseException:
            self.row_blocks.close()
            raise
        self.address: Address = Address(path, os.urandom(16).hex(), os.getpid())
        self._unwelcomed: socket.socket | None = None  # accepted, without descriptors to serve it
        self._is_pausing = False  # whether nobody is accepted for a moment
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        for end in (self._wake_receiver, self._wake_sender, self._listener):
            end.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="aioqueue-sharing", daemon=True)
        note_for_forks(self)

    def start(self) -> None:
        self._thread.start()
        atexit.register(self.close)
        # A process that `multiprocessing` has started calls this, and not what `atexit` knows.
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(None, self.close, exitpriority=_FINALIZER)

    # For any thread.

    def add(self, service: Service) -> int:
        """Serve an object; return its number."""
        with self._lock:
            number = next(self._numbers)
            self._services[number] = service
        return number

    def remove(self, number: int) -> None:
        """Serve an object no longer."""
        with self._lock:
            self._services.pop(number, None)

    def add_name(self, name: str, number: int) -> None:
        """Let other processes of this user find an object by a name. It may have it already.

        Raises:
            ValueError: another object has the name; the message says whose.
            OSError: the name cannot be noted.
        """
        with self._lock:
            taken = self._names.get(name)
            if taken is None or taken.number != number:
                self._names[name] = addresses.take_name(name, self.address, number)

    def service(self, number: int) -> Service:
        """Return a served object.

        Raises:
            LookupError: no object has that number.
        """
        return self._services[number]

    def call_soon(self, call: Callable[[], object]) -> None:
        """Have the thread make a call. Any thread, signal handler or finalizer may ask for it."""
        self._calls.append(call)
        if not self._is_awake:
            self._is_awake = True
            with suppress(OSError):  # the pipe is full, so the thread wakes anyway; or it is closed
                self._wake_sender.send(b"w")

    def is_current(self) -> bool:
        """Return whether the calling thread is the server's."""
        return threading.current_thread() is self._thread

    @property
    def clients(self) -> list[ConnectedClient]:
        return list(self._clients)

    def close(self) -> None:
        """End all objects in order, and the thread."""
        atexit.unregister(self.close)
        self._is_ending = True
        self.call_soon(bool)
        if self._thread.is_alive():
            self._thread.join(2 * _LAST_WORDS)
        _forget(self)

    def _was_forked(self) -> None:
        """Close what this fork has inherited: else clients would not see the end of the owner."""
        self._is_ending = True
        self._close_descriptors()
        for client in self._clients:
            client.socket.socket.close()
            client.peer.close()
        self._clients = set()
        _forget(self)
        with suppress(Exception):
            atexit.unregister(self.close)
        for service in list(self._services.values()):
            service.was_forked()

    # For the thread, and the services in it.

    def call_later(self, seconds: float, call: Callable[[], object]) -> LaterCall:
        timer = LaterCall(call)
        heapq.heappush(self._timers, (monotonic() + seconds, next(self._timer_numbers), timer))
        return timer

    def cancel(self, timer: LaterCall) -> None:
        """Forget a timer that has not called yet."""
        timer.call = None  # with all that it refers to
        self._cancelled_timers += 1
        if 2 * self._cancelled_timers > len(self._timers):  # so that each costs a few steps only
            self._timers[:] = [entry for entry in self._timers if entry[2].call is not None]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def call_after_answers(self, call: Callable[[], object]) -> None:
        """Have a call made once the answers of this round are on their way."""
        self._calls_after_answers.append(call)

    def note_answers(self, client: ConnectedClient) -> None:
        self._with_answers[client] = None

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException:
            # A dead thread must not leave its clients waiting: they see the closed sockets.
            _log.exception("the thread that serves shared objects has failed")
        finally:
            self._make_calls_after_answers()  # callers of this process may wait for them
            for client in list(self._clients):
                with suppress(Exception):
                    self._drop(client)
            self._close_descriptors()
            self._remove_files()

    def _serve(self) -> None:
        selector = self._selector
        selector.register(self._listener, _READ)
        selector.register(self._wake_receiver, _READ)
        while not self._is_ending:
            ready = selector.select(self._seconds_left())
            self._is_awake = True  # until `_make_calls` looks: what is noted needs no byte
            for key, mask in ready:
                client = key.data
                if client is None:
                    self._handle_own(key.fileobj)
                elif client in self._clients:
                    self._handle_client(client, key, mask)
            self._make_calls()
            self._send_answers()
            while self._calls_after_answers:
                self._make_calls_after_answers()
                self._make_calls()
                self._send_answers()
        self._end()

    def _handle_own(self, fileobj: Any) -> None:
        if fileobj is self._listener:
            self._accept()
        else:
            with suppress(BlockingIOError, InterruptedError):
                self._wake_receiver.recv(4096)

    def _handle_client(
        self, client: ConnectedClient, key: selectors.SelectorKey, mask: int
    ) -> None:
        if key.fileobj == client.peer.sentinel:
            self._drop(client)
            return
        if mask & _WRITE:
            self._note_answers_of(client)
        if mask & _READ:
            self._receive(client)

    def _receive(self, client: ConnectedClient) -> None:
        """Handle the frames that have come from a client."""
        try:
            client.socket.receive()
            self._handle_frames(client)
        except EOFError:
            self._drop(client)
        except FrameError as error:
            _log.warning("%s sends what is no frame (%s); it is not served any more", client, error)
            self._drop(client, reads_rest=False)
        except BaseException:
            # One client's message must not end the service of all others, whatever it raises.
            _log.exception("a message of %s could not be handled; it is not served", client)
            self._drop(client, reads_rest=False)

    def _handle_frames(self, client: ConnectedClient) -> None:
        frame_socket = client.socket
        while True:
            frame = frame_socket.next_frame()
            if frame is None:
                return
            self._handle(client, *frame)
            frame_socket.drop_frame()

    def _handle(
        self, client: ConnectedClient, kind: int, thing: int, number: int, body: memoryview
    ) -> None:
        if client.socket.longest != frames.LONGEST and kind != frames.HELLO:
            raise FrameError("it has not introduced itself")
        if kind >= frames.FIRST_OF_SERVICE:
            service = self._services.get(thing)
            try:
                if service is None:
                    raise LookupError(f"process {os.getpid()} shares no object {thing}")
                if len(client.calls) >= MOST_CALLS:
                    raise RuntimeError(f"{client} has {MOST_CALLS} calls under way already")
                client.services.add(service)
                service.begin(client, kind, number, body)
            except Exception as error:
                client.fail(number, error)
        elif kind == frames.ACKNOWLEDGE:
            for settled in memory.starts_of(body):
                call = client.calls.get(settled)
                if call is not None:
                    call.service.acknowledge(client, settled)
        elif kind == frames.CANCEL:
            service = self._services.get(thing)
            word = b"" if service is None else service.cancel(client, number, body)
            client.send(frames.SETTLED, thing, number, word)
        elif kind == frames.FREE:
            client.note_freed(memory.starts_of(body))
        elif kind == frames.DESCRIBE:
            service = self._services.get(thing)
            if service is None:
                client.fail(number, LookupError(f"process {os.getpid()} shares no object {thing}"))
            else:
                world: Any = "sync" if bytes(body) == b"sync" else "aio"
                client.answer(number, pickle.dumps(service.pickled(world)))
        elif kind == frames.HELLO:
            check_version(body)
            client.socket.longest = frames.LONGEST
        else:
            raise FrameError(f"a frame of kind {kind}")

    def _note_answers_of(self, client: ConnectedClient) -> None:
        self._with_answers[client] = None

    def _make_calls(self) -> None:
        # Clear the flag first: whatever is noted from now on wakes the thread once more.
        self._is_awake = False
        calls, timers = self._calls, self._timers
        while True:
            if calls:
                call = calls.popleft()
            elif timers and timers[0][0] <= monotonic():
                due = heapq.heappop(timers)[2].call
                if due is None:
                    self._cancelled_timers -= 1
                    continue
                call = due
            else:
                return
            try:
                call()
            except Exception:
                _log.exception("a call to a shared object has failed")

    def _make_calls_after_answers(self) -> None:
        self._is_awake = True
        calls = self._calls_after_answers
        while calls:
            try:
                calls.popleft()()
            except Exception:
                _log.exception("a call to a shared object has failed")

    def _send_answers(self) -> None:
        while self._with_answers:
            client, _ = self._with_answers.popitem()
            if client not in self._clients:
                continue
            all_sent = client.send_answers()
            client.make_postponed()
            if client.is_awaiting_room is all_sent:
                client.is_awaiting_room = not all_sent
                self._selector.modify(client.socket, _READ if all_sent else _READ | _WRITE, client)

    def _seconds_left(self) -> float | None:
        if self._calls or self._with_answers:
            return 0.0
        return max(0.0, self._timers[0][0] - monotonic()) if self._timers else None

    def _accept(self) -> None:
        """Accept a client, give it its memory, and introduce this process."""
        connection, self._unwelcomed = self._unwelcomed, None
        if connection is None:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if error.errno in _NOTHING_LEFT:
                    self._pause_accepting()
                return  # or it has gone
        client: ConnectedClient | None = None
        try:
            if len(self._clients) >= MOST_CLIENTS or not addresses.is_trusted(connection):
                connection.close()
                return
            client = ConnectedClient(self, connection)
            self._introduce(client, connection)
            self._selector.register(client.socket, _READ, client)
            if client.peer.sentinel is not None:
                self._selector.register(client.peer.sentinel, _READ, client)
            self._clients.add(client)
        except (OSError, KeyError, ValueError) as error:
            if client is not None:
                client.peer.close()
                if client.memory is not None:
                    client.memory.close()
            if isinstance(error, OSError) and error.errno in _NOTHING_LEFT:
                # The client waits to be welcomed; it is, once there are descriptors again.
                self._unwelcomed = connection
                self._pause_accepting()
            else:  # it has gone
                connection.close()

    def _introduce(self, client: ConnectedClient, connection: socket.socket) -> None:
        descriptor = memory.new_file()
        try:
            # Before the message, after which nothing may fail for want of a descriptor.
            client.memory = SharedMemory(os.dup(descriptor), is_owner=True)
            hello = frames.frame(frames.HELLO, 0, 0, hello_body())
            socket.send_fds(connection, [hello], [descriptor, self.row_blocks.descriptor])
        finally:
            os.close(descriptor)

    def _pause_accepting(self) -> None:
        """Accept nobody for a moment. The waiting client would wake the thread at once again."""
        if not self._is_pausing:
            self._is_pausing = True
            self._selector.unregister(self._listener)
            self.call_later(_DESCRIPTOR_PAUSE, self._resume_accepting)

    def _resume_accepting(self) -> None:
        self._is_pausing = False
        if not self._is_ending:
            self._selector.register(self._listener, _READ)
            self._accept()

    def _drop(self, client: ConnectedClient, *, reads_rest: bool = True) -> None:
        """End the service of a client, which has gone, or which nobody understands.

        Args:
            client: the client.
            reads_rest: whether to handle what it has sent and was not read yet.
        """
        if client not in self._clients:
            return
        # What it had sent before its end comes first, its acknowledgements above all. A process
        # forked from it may keep the socket open: then there is no end to read, only no more.
        try:
            while reads_rest and _is_readable(client.socket):
                client.socket.receive()
                self._handle_frames(client)
        except (EOFError, FrameError):
            pass
        except BaseException:  # the client is dropped all the same, and no other one
            _log.exception("the last messages of %s could not be handled", client)
        self._clients.discard(client)
        client.has_left = True
        self._with_answers.pop(client, None)
        with suppress(KeyError, ValueError):
            self._selector.unregister(client.socket)
        if client.peer.sentinel is not None:
            with suppress(KeyError, ValueError):
                self._selector.unregister(client.peer.sentinel)
        for service in list(client.services):
            try:
                service.leave(client)
            except BaseException:
                _log.exception("the calls of %s could not be ended", client)
        client.socket.close()
        client.peer.close()
        if client.memory is not None:
            client.memory.close()

    def _end(self) -> None:
        """End in order: answer all, and give the answers some time to go out."""
        self._listener.close()
        for service in list(self._services.values()):
            try:
                service.finish()
            except Exception:
                _log.exception("%s could not be ended in order", service.label)
        self._make_calls_after_answers()
        self._make_calls()
        for client in list(self._clients):
            client.send(frames.BYE, 0, 0, b"")
        deadline = monotonic() + _LAST_WORDS
        self._send_answers()
        while (left := deadline - monotonic()) > 0:
            waiting = [one for one in self._clients if one.socket.has_outgoing]
            if not waiting:
                break
            for key, mask in self._selector.select(left):
                if key.data in self._clients and mask & _WRITE:
                    key.data.socket.flush()
                    if not key.data.socket.has_outgoing:
                        self._selector.modify(key.data.socket, 0 or _READ, key.data)

    def _close_descriptors(self) -> None:
        self._selector.close()
        for end in (self._listener, self._wake_receiver, self._wake_sender, self._unwelcomed):
            if end is not None:
                end.close()
        self.row_blocks.close()
        for name in self._names.values():
            name.close()

    def _remove_files(self) -> None:
        for name in self._names.values():
            name.remove()
        self._names = {}
        with suppress(OSError):
            os.unlink(self.address.path)


def _is_readable(frame_socket: FrameSocket) -> bool:
    from aioqueue.system import posix  # only when used

    try:
        return posix.is_readable(frame_socket.socket, 0)
    except (OSError, ValueError):
        return False


def hello_body() -> bytes:
    return frames.VERSION.to_bytes(4, "little")


def check_version(body: memoryview) -> None:
    """Check the version of the process at the other end.

    Raises:
        FrameError: it has another version of aioqueue.
    """
    version = int.from_bytes(body[:4], "little")
    if version != frames.VERSION:
        raise FrameError(
            f"version {version} of the protocol, and this process has {frames.VERSION}: all"
            " processes need the same version of aioqueue"
        )


_current: Server | None = None
_starting: Final = threading.Lock()


def server() -> Server:
    """Return the server of this process; the first call starts it.

    Raises:
        OSError: its socket cannot be made.
    """
    global _current
    with _starting:
        if _current is None:
            _current = made = Server()
            made.start()
        return _current


def running_server() -> Server | None:
    return _current


def _forget(ended: Server) -> None:
    global _current
    if _current is ended:
        _current = None
