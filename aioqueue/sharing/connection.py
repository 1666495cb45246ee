"""The client's side: one connection to an owner, for all handles of this process to its objects.

A caller sends on its own thread, and never waits for the socket. One thread at a time reads the
answers: it has the *reading role*. It only notes answers and wakes callers: what an answer holds
is unpacked by the caller. The role belongs to the connection's own thread, or to a blocked caller
that is alone: it reads for itself, which saves the switch between threads. Nobody has it while
nothing is expected.

**Forks.** A connection belongs to one process. A fork closes its copy, and connects anew at its
first call.
"""

from __future__ import annotations

import atexit
import errno
import os
import select
import socket
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from threading import get_ident
from time import perf_counter
from typing import Any, Final, Protocol

from aioqueue.core.attempts import Attempt
from aioqueue.errors import WorkerDiedError
from aioqueue.remote.failures import error_of_message
from aioqueue.sharing import addresses, frames, memory
from aioqueue.sharing.frames import FrameError, FrameSocket
from aioqueue.sharing.memory import SLOTS, Parts, SharedMemory, packed
from aioqueue.sharing.owner import MOST_UNSENT, Address, check_version, hello_body
from aioqueue.sharing.peers import Peer, died_error, peer_pid
from aioqueue.sharing.row_blocks import MappedRows
from aioqueue.system.forks import note_for_forks
from aioqueue.system.locks import call_with_lock, machine_lock

_MOMENT: Final = 1.0
"""Milliseconds that an acknowledgement waits, once or twice, for a call that takes it along."""

_LONGEST_CORKED: Final = 4096
"""Bytes of a message that may wait for the end of its loop's round."""

_END_SECONDS: Final = 0.5
"""Seconds in which a process ends after its sockets were closed, unless it goes on without us."""

_LATE_END_SECONDS: Final = 5.0
"""Seconds in which it does so on a busy machine."""

_PLACE: Final = "in the process that shares it"


class Room(Attempt):
    """A caller that waits, before it pickles, until less is on the way to the owner."""

    __slots__ = ()


class EventLoop(Protocol):
    """What a connection uses of an event loop whose tasks make calls."""

    def call_soon(self, callback: Callable[[], object], /) -> object:
        """Make a call in the next round."""

    def is_closed(self) -> bool:
        """Return whether it will make none any more."""


class SentCall(Protocol):
    """A call that has been sent, and has not ended. The reader calls the methods, under no lock.

    Attributes:
        number: its number on its connection.
        thing: the object that it concerns.
    """

    number: int
    thing: int

    def answered(self, kind: int, body: memoryview) -> None:
        """Note an answer, and wake the caller. It may come twice; only the first counts."""

    def cut_off(self) -> None:
        """Note that no answer will come (`SharingConnection.end_error`), and wake the caller."""


class SharingConnection:
    """A connection of this process to one owner. `connection_to` returns it.

    Args:
        address: where the owner listens.

    Attributes:
        peer: the owner's process.
        memory: what the two share; ``None`` until the owner has introduced itself.
        rows: where the owner keeps large rows; likewise.
        ended_here: whether it has ended for want of descriptors: the next call connects anew.

    Raises:
        WorkerDiedError: nobody listens there.
        OSError: this process cannot connect.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        try:
            connected = addresses.connected_socket(address.path)
        except (FileNotFoundError, ConnectionRefusedError):
            addresses.remove_files_of(address.path)
            peer = _ended_owners.get(address) or Peer(0)
            peer.pid = address.pid
            raise died_error("the process that shares it", peer) from None
        self.socket: FrameSocket = FrameSocket(connected)
        self.peer: Peer = Peer(peer_pid(connected) or address.pid)
        self.memory: SharedMemory | None = None
        self.rows: MappedRows | None = None
        self.ended_here: bool = False
        self._lock = machine_lock()  # guards what follows
        self._calls: dict[int, SentCall] = {}  # those that expect an answer, by slot: see `memory`
        self._held: set[int] = set()  # slots of calls that were answered, and are not settled
        self._last_number = 0
        self._to_acknowledge: list[int] = []
        self._to_free: list[int] = []
        self._corking: EventLoop | None = None  # which is about to `_uncork`
        self._is_thread_armed = False  # whether the thread sends these lists within two moments
        self._number_of_moment = 0  # of the last call at the end of the last moment
        self.reading_thread: int = 0  # the blocked caller that reads
        self._has_reader = True  # whether somebody has the reading role: at first, the thread
        self.listeners: dict[int, Callable[[memoryview], object]] = {}  # of news, by object
        self._when_flushed: list[Callable[[], bool]] = []
        self._end: Callable[[], BaseException] | None = None
        self._thread = threading.Thread(
            target=self._run, name="aioqueue-shared-client", daemon=True
        )
        made: list[Callable[[], object]] = [connected.close, self.peer.close]
        try:
            self._wake_receiver, self._wake_sender = socket.socketpair()
            for end in (self._wake_receiver, self._wake_sender):
                end.setblocking(False)
            made += self._wake_receiver.close, self._wake_sender.close
            self._poll = select.poll()
            self._poll.register(self._wake_receiver, select.POLLIN)
            self._poll.register(connected, select.POLLIN)
            if self.peer.sentinel is not None:
                self._poll.register(self.peer.sentinel, select.POLLIN)
            self._polls_writing = False
            # While the thread does not read, it watches for the end of the owner.
            self._idle_receiver, self._idle_sender = socket.socketpair()
            for end in (self._idle_receiver, self._idle_sender):
                end.setblocking(False)
            made += self._idle_receiver.close, self._idle_sender.close
            self._idle_poll = select.poll()
            self._idle_poll.register(self._idle_receiver, select.POLLIN)
            self._idle_poll.register(connected, 0)  # which reports only that it is closed
            if self.peer.sentinel is not None:
                self._idle_poll.register(self.peer.sentinel, select.POLLIN)
            self._thread_has_role = True
            self.socket.send(frames.HELLO, 0, 0, hello_body())
            self._thread.start()
        except BaseException:  # no descriptors or threads are left, or from a signal handler
            if self._thread.is_alive():
                self._finish(self._ended_error)
                self._wake_reader()
            else:
                for close in made:
                    close()
            raise

    # Calls.

    def begin(
        self,
        call: SentCall,
        kind: int,
        body: bytes,
        loop: EventLoop | None = None,
    ) -> None:
        """Send a call. Its answer comes by `SentCall.answered`, or `SentCall.cut_off` is called.

        The caller sees to it that somebody reads: `need_reader`, or a `CallerWaker`.

        Args:
            call: the call.
            kind: its kind.
            body: what it says.
            loop: the running loop of a task that is about to await. The first call of a round of
                the loop is sent at once; all others are sent together when the round is over,
                with what the tasks acknowledge meanwhile.

        Raises:
            InvalidArgumentError: the body is too long; nothing was sent.
        """
        frames.check_length(len(body))
        call_with_lock(self._lock, self._register, call)
        corking = self._corking
        if loop is None or corking is not loop or len(body) > _LONGEST_CORKED:
            self.send(kind, call.thing, call.number, body)
            # Another loop may be busy, and must not hold this one's calls up.
            if loop is not None and (corking is None or corking.is_closed()):
                # First the callback: a handler that raises in between makes it superfluous only.
                loop.call_soon(self._uncork)
                self._corking = loop
        else:
            head = frames.HEAD.pack(len(body), kind, call.thing, call.number)
            self.socket.cork(head + body)

    def _uncork(self) -> None:
        """Send what the tasks of a loop have begun in its last round."""
        self._corking = None
        if self.socket.has_corked:
            self._send_frames(b"")

    def _register(self, call: SentCall) -> None:
        calls = self._calls
        if len(calls) + len(self._held) >= SLOTS:
            raise RuntimeError(
                f"this process has {SLOTS} calls under way to process {self.address.pid} already"
            )
        number = self._last_number + 1
        # The slot may belong to a call that waits still, or whose caller has not run on yet.
        while number % SLOTS in calls or number % SLOTS in self._held:
            number += 1
        self._last_number = call.number = number
        if self._end is None:
            calls[number % SLOTS] = call
        else:
            call.cut_off()

    @property
    def has_room(self) -> bool:
        """Whether a caller may pickle more for the owner now."""
        return self.socket.outgoing_bytes <= MOST_UNSENT

    def call_when_flushed(self, make_room: Callable[[], bool]) -> None:
        """Have a call made each time that the owner has read something, until it returns false."""
        if make_room not in self._when_flushed:
            self._when_flushed.append(make_room)
        self.need_reader()
        self._wake_reader()

    def _note_flushed(self) -> None:
        self._when_flushed = [make_room for make_room in self._when_flushed if make_room()]

    def forget(self, call: SentCall) -> None:
        """Forget a call that expects no answer any more."""
        if self._calls.get(call.number % SLOTS) is call:
            self._calls.pop(call.number % SLOTS, None)

    def forget_unless(self, call: SentCall, is_cancelled: Callable[[], bool]) -> None:
        """Forget a call that was answered, unless it is being cancelled and expects a word on that.

        Args:
            call: the call.
            is_cancelled: asked under the lock under which `cancel` expects that word.
        """
        call_with_lock(self._lock, self._forget_unless, call, is_cancelled)

    def _forget_unless(self, call: SentCall, is_cancelled: Callable[[], bool]) -> None:
        if not is_cancelled():
            self.forget(call)

    def hold(self, call: SentCall) -> None:
        """Keep the slot of a call that was answered, until it is settled."""
        self._held.add(call.number % SLOTS)

    def settle(self, number: int) -> None:
        """Free the slot of a call."""
        self._held.discard(number % SLOTS)

    def _expect(self, call: SentCall) -> None:
        if self._end is None:
            self._calls[call.number % SLOTS] = call
        else:
            call.cut_off()

    def cancel(self, call: SentCall, body: bytes = b"") -> None:
        """Ask the owner to end a call. Its word comes as an answer."""
        call_with_lock(self._lock, self._expect, call)
        self.send(frames.CANCEL, call.thing, call.number, body)
        self.need_reader()

    def acknowledge(self, number: int) -> None:
        """Make the hand-over of what a call got: its caller runs on with it.

        The store in the page is all that counts. The message that spares the owner the look goes
        with the next call, if one follows at once; else the thread sends it.
        """
        shared = self.memory
        assert shared is not None  # it comes before the first answer
        shared.acknowledge(number)
        self._held.discard(number % SLOTS)
        self._to_acknowledge.append(number)
        if not self._is_thread_armed:
            self._arm_thread()

    def free(self, blocks: Collection[int]) -> None:
        """Tell the owner that blocks of its memory were read, or never will be."""
        if blocks:
            self._to_free.extend(blocks)
            if not self._is_thread_armed:
                self._arm_thread()

    def _arm_thread(self) -> None:
        """Let the thread send what no call has taken along within a moment."""
        self._is_thread_armed = True
        if self._thread_has_role:
            self._wake_reader()
        else:
            with suppress(OSError):
                self._idle_sender.send(b"a")

    def _send_frames(self, frames_to_send: bytes) -> None:
        """Send frames, after the notes that go with them."""
        numbers = tuple(self._to_acknowledge)
        notes = b""
        if self._to_free:
            # Exchanged in one line. Blocks that a signal handler's exception loses here are free
            # with the connection; one that is freed twice might be another one by then.
            blocks, self._to_free = self._to_free, []
            notes = frames.frame(frames.FREE, 0, 0, memory.starts_as_bytes(blocks))
        if numbers:
            notes = frames.frame(frames.ACKNOWLEDGE, 0, 0, memory.starts_as_bytes(numbers)) + notes
        self._note_sent(self.socket.send_frames(frames_to_send, notes))
        # Removed once they are sent: an acknowledgement may come twice, and must not be lost.
        for number in numbers:
            try:
                self._to_acknowledge.remove(number)
            except ValueError:
                pass  # another thread has sent it, too

    def _send_notes(self) -> None:
        if self._to_acknowledge or self._to_free:
            self._send_frames(b"")

    def pack(self, parts: Parts) -> bytes:
        """Make the body of a message.

        Raises:
            InvalidArgumentError: it would be too long.
        """
        return packed(self.memory, parts)[0]

    def unpack(self, body: memoryview) -> tuple[memoryview, list[Any], tuple[int, ...]]:
        """Return the pickle in a message, copies of its buffers, and the blocks to free."""
        assert self.memory is not None  # it comes before the first answer
        return self.memory.unpack(body)

    def send(self, kind: int, thing: int, number: int, body: bytes) -> None:
        sent = frames.HEAD.pack(len(body), kind, thing, number) + body
        if self._to_acknowledge or self._to_free:
            self._send_frames(sent)
        else:
            self._note_sent(self.socket.send_frames(sent))

    def _note_sent(self, is_all: bool) -> None:
        if not is_all:
            self.need_reader()  # who also sends the rest
            self._wake_reader()

    def request(
        self, thing: int, kind: int, body: bytes, seconds: float | None = None
    ) -> memoryview:
        """Make a call that the owner answers at once, and block for its answer.

        Args:
            thing: the object that it concerns.
            kind: the kind of the call.
            body: what it says.
            seconds: how long to wait at most.

        Raises:
            Exception: what the call raises there.
            WorkerDiedError: the owner has died.
            TimeoutError: the owner has not answered in time: it may be stopped.
        """
        request = ImmediateCall(self, thing)
        deadline = None if seconds is None else perf_counter() + seconds
        try:
            self.begin(request, kind, body)
            while not request.has_ended:
                left = None if deadline is None else deadline - perf_counter()
                if left is not None and left <= 0:
                    self.need_reader()  # who forgets the call once it is answered
                    raise TimeoutError(f"process {self.peer.pid} has not answered in {seconds} s")
                request.waker.wait(left)
        except TimeoutError:
            raise
        except BaseException:
            self.forget(request)
            raise
        return request.outcome()

    @property
    def has_ended(self) -> bool:
        return self._end is not None

    @property
    def ended_in_order(self) -> bool:
        return self._end is not None and self._got_bye

    def end_error(self) -> BaseException:
        """Make the error of a call that the owner will not answer."""
        end = self._end
        return end() if end is not None else died_error("the process that shares it", self.peer)

    # The reading role.

    def need_reader(self) -> None:
        """See to it that somebody reads."""
        if not self._has_reader and call_with_lock(self._lock, self.take_role):
            self.leave_role()

    def reclaim_role(self) -> None:
        """Give the role up if a signal handler has kept the calling thread from that."""
        if self.reading_thread == get_ident():
            self.leave_role()

    def take_role(self) -> bool:
        """Take the reading role for the calling thread, unless somebody has it; return whether it
        was taken. Call it under the lock."""
        if self._has_reader:
            return False
        # First who, then that: an exception of a signal handler may come in between, or before the
        # caller uses the role. Then its next wait, or `reclaim_role`, finds it here.
        self.reading_thread = get_ident()
        self._has_reader = True
        return True

    def keeps_role(self) -> bool:
        """Return whether a signal handler has kept the calling thread from giving the role up."""
        if self.reading_thread != get_ident():
            return False
        return call_with_lock(self._lock, self._keep_role)

    def _keep_role(self) -> bool:
        if self.reading_thread != get_ident() or self._thread_has_role:
            return False
        self._has_reader = True
        return True

    def _give_role_to_thread(self) -> None:
        self._thread_has_role = True
        with suppress(OSError):  # the pipe is full, so it wakes anyway; or it is closed
            self._idle_sender.send(b"r")

    def leave_role(self) -> None:
        """Give the reading role up: to the thread, if anything is expected still."""
        if not call_with_lock(self._lock, self._free_role):
            self._give_role_to_thread()
            call_with_lock(self._lock, self._forget_reading_thread)

    def _free_role(self) -> bool:
        """Free the role, unless a reader is needed: then the thread is to have it."""
        if self._thread_has_role:  # given already, but perhaps not woken: a handler has raised
            return False
        if self._calls or self.listeners or self.socket.has_outgoing:
            self._has_reader = True
            return False
        self._has_reader = False
        self._forget_reading_thread()
        return True

    def _forget_reading_thread(self) -> None:
        # Another caller may have taken the role meanwhile.
        if self.reading_thread == get_ident():
            self.reading_thread = 0

    def _leave_role_of_thread(self) -> bool:
        self.reading_thread = get_ident()  # the thread noted there has given the role up
        self._thread_has_role = False
        return self._free_role()

    def read(self, seconds: float | None) -> bool:
        """Wait until something comes, for some time at most, and handle it.

        Only who has the reading role calls this. It returns early if `wake_reader` was called.

        Returns:
            Whether anything has come.
        """
        writes = self.socket.has_outgoing
        if writes != self._polls_writing:
            self._poll.modify(self.socket, select.POLLIN | (select.POLLOUT if writes else 0))
            self._polls_writing = writes
        ready = self._poll.poll(None if seconds is None else max(0.0, seconds) * 1000.0)
        socket_fd = self.socket.fileno()
        is_dead = False
        for descriptor, events in ready:
            if descriptor == socket_fd:
                if events & select.POLLOUT:
                    self.socket.flush()
                    if self._when_flushed:
                        self._note_flushed()
                if events & ~select.POLLOUT:
                    self._receive()
            elif descriptor == self.peer.sentinel:
                is_dead = True
            else:
                with suppress(OSError):  # closed, if this reader has just seen the owner's end
                    self._wake_receiver.recv(4096)
        if is_dead and self._end is None:
            self._read_rest()
            self._finish(lambda: died_error("the process that shares it", self.peer))
        return bool(ready)

    def _read_rest(self) -> None:
        """Read what the owner had sent before its end."""
        from aioqueue.system import posix  # only when used

        with suppress(OSError, ValueError):
            while self._end is None and posix.is_readable(self.socket.socket, 0):
                self._receive()

    def _receive(self) -> None:
        try:
            self.socket.receive()
            self._handle_frames()
        except EOFError:
            if self._got_bye:
                self._finish(self._ended_error)
            else:
                # A process closes its sockets a moment before it has ended, in the way to report.
                self.peer.has_ended(_END_SECONDS)
                self._finish(lambda: died_error("the process that shares it", self.peer))
        except FrameError as error:
            why = str(error)
            self._finish(
                lambda: WorkerDiedError(f"the process that shares it (pid {self.peer.pid}): {why}")
            )

    _got_bye = False

    def _ended_error(self) -> BaseException:
        return WorkerDiedError(f"the process that shares it (pid {self.peer.pid}) has ended")

    def _handle_frames(self) -> None:
        frame_socket, calls = self.socket, self._calls
        while True:
            frame = frame_socket.next_frame()
            if frame is None:
                return
            kind, thing, number, body = frame
            if number:
                call = calls.get(number % SLOTS)
                if call is not None and call.number == number:
                    call.answered(kind, body)
                elif kind == frames.OK:
                    self._drop_answer(body)
            elif kind == frames.FREE:
                if self.memory is not None:
                    self.memory.free(memory.starts_of(body))
            elif kind == frames.NEWS:
                listener = self.listeners.get(thing)
                if listener is not None:
                    listener(body)
            elif kind == frames.BYE:
                self._got_bye = True
            elif kind == frames.HELLO:
                check_version(body)
            frame_socket.drop_frame()

    def _drop_answer(self, body: memoryview) -> None:
        """Drop the answer of a call that nobody waits for any more."""
        if self.memory is not None:
            self.free(memory.blocks_of(body))

    def _wake_reader(self) -> None:
        with suppress(OSError):  # the pipe is full, so it wakes anyway; or it is closed
            self._wake_sender.send(b"w")

    wake_reader = _wake_reader

    # The thread.

    def _run(self) -> None:
        try:
            self._introduce()
            while self._end is None:
                while self._end is None and self._is_needed():
                    if not self.read(_MOMENT / 1000.0 if self._is_thread_armed else None):
                        self._send_late_notes()
                if not call_with_lock(self._lock, self._leave_role_of_thread):
                    self._give_role_to_thread()
                while self._end is None and not self._thread_has_role:
                    self._watch()
        except BaseException as error:  # a dead thread must not leave callers waiting
            why = repr(error)
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                self._note_no_descriptors(error.errno)
            self._finish(
                lambda: WorkerDiedError(f"the connection to process {self.peer.pid} failed: {why}")
            )
        finally:
            self._close_descriptors()

    def _note_no_descriptors(self, number: int) -> None:
        """End the connection for want of a descriptor. The next call connects anew."""
        # The owner may have answered calls already. It must see this end before it gets the next
        # call, or that one would overtake what goes back. So first the socket ends, then the calls.
        with suppress(OSError):
            self.socket.socket.shutdown(socket.SHUT_RDWR)
        self.ended_here = True
        where = f"this process could not connect to process {self.peer.pid}"
        self._finish(lambda: OSError(number, f"{os.strerror(number)}: {where}"))

    def _send_late_notes(self) -> None:
        """Send what no call has taken along since the last time; called once in a moment.

        While calls follow each other, they take everything along: then nothing is sent here, and
        the thread stays armed. To arm it again for each call would cost more than the moments do.
        """
        if self._last_number != self._number_of_moment:
            self._number_of_moment = self._last_number
        elif not (self._to_acknowledge or self._to_free):
            self._is_thread_armed = False
            # Something may have been noted between the look and the store.
            self._is_thread_armed = bool(self._to_acknowledge or self._to_free)
        else:
            self._send_notes()

    def _watch(self) -> None:
        """Wait until the thread is given the reading role; take it when the owner has ended."""
        ready = self._idle_poll.poll(_MOMENT if self._is_thread_armed else None)
        if not ready:
            self._send_late_notes()
        for descriptor, _ in ready:
            if descriptor == self._idle_receiver.fileno():
                with suppress(BlockingIOError, InterruptedError):
                    self._idle_receiver.recv(4096)
            elif call_with_lock(self._lock, self.take_role):
                self._thread_has_role = True
                self.read(None)
            else:
                self._idle_poll.unregister(descriptor)  # who reads sees it, too

    def _is_needed(self) -> bool:
        return bool(self._calls or self.listeners or self.socket.has_outgoing)

    def _introduce(self) -> None:
        """Wait for the owner's first frame, which brings the shared memory."""
        raw = self.socket.socket
        size = frames.HEAD.size + len(hello_body())
        received = b""
        while len(received) < size and self._end is None:
            for descriptor, _ in self._poll.poll():
                if descriptor == raw.fileno():
                    data, descriptors, _, _ = socket.recv_fds(raw, size - len(received), 2)
                    if len(descriptors) == 2:
                        self.memory = SharedMemory(descriptors[0], is_owner=False)
                        self.rows = MappedRows(descriptors[1])
                    elif data and self.memory is None:  # the system could not make them ours
                        for descriptor in descriptors:
                            os.close(descriptor)
                        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                    if not data:
                        self._finish(lambda: died_error("the process that shares it", self.peer))
                    received += data
                elif descriptor == self.peer.sentinel:
                    self._finish(lambda: died_error("the process that shares it", self.peer))
                else:
                    with suppress(BlockingIOError):
                        self._wake_receiver.recv(4096)
                    self.socket.flush()
        if self._end is None:
            try:
                check_version(memoryview(received)[frames.HEAD.size :])
            except FrameError as error:
                why = str(error)
                self._finish(
                    lambda: WorkerDiedError(
                        f"the process that shares it (pid {self.peer.pid}) has {why}"
                    )
                )

    def _finish(self, error: Callable[[], BaseException]) -> None:
        """End the connection: no call will be answered any more."""
        # Before the callers hear of it: they may end this process, and with it the tidying.
        if not self._got_bye:
            addresses.remove_files_of(self.address.path)
        call_with_lock(self._lock, self._set_end, error)
        self._cut_off_all()
        self._give_role_to_thread()

    def _set_end(self, error: Callable[[], BaseException]) -> None:
        if self._end is None:
            self._end = error
        # Later calls say the same of its end: its exit status may be known only now.
        _ended_owners[self.address] = self.peer
        while len(_ended_owners) > _MOST_ENDED_OWNERS:
            _ended_owners.pop(next(iter(_ended_owners)), None)
        _forget(self)

    def _cut_off_all(self) -> None:
        for call in list(self._calls.values()):
            call.cut_off()
            self.forget(call)
        self._note_flushed()
        for listener in list(self.listeners.values()):
            with suppress(Exception):
                listener(memoryview(b""))

    def _close_descriptors(self) -> None:
        if self._end is None:
            self._finish(self._ended_error)
        self._cut_off_all()  # once more: a signal handler may have raised in the middle
        self.socket.close()
        self._close_pipes()
        if self.memory is not None:
            self.memory.close()
        if self.rows is not None:
            self.rows.close()
        if not (self._got_bye or self.ended_here) and os.path.exists(self.address.path):
            # The owner takes long to end: callers have their errors, and its files go here.
            self.peer.has_ended(_LATE_END_SECONDS)
            addresses.remove_files_of(self.address.path)
        self.peer.close()

    def _close_pipes(self) -> None:
        for end in (
            self._wake_receiver,
            self._wake_sender,
            self._idle_receiver,
            self._idle_sender,
        ):
            end.close()

    def close_inherited(self) -> None:
        """Close what a fork has inherited; nothing of it is used there."""
        self.socket.socket.close()
        self._close_pipes()
        self.peer.close()


class CallerWaker:
    """The waker of one blocked thread that waits for one answer.

    It reads the connection itself while nobody else does.

    Args:
        connection: where the answer will come.
    """

    __slots__ = ("_asleep", "_connection", "_reader", "two_step")

    def __init__(self, connection: SharingConnection) -> None:
        self.two_step: bool = True
        self._connection = connection
        self._asleep = threading.Lock()
        self._asleep.acquire()
        self._reader = 0  # the thread, while it reads

    def reads(self, connection: SharingConnection) -> bool:
        """Return whether it reads this connection, and not one that has ended meanwhile."""
        return self._connection is connection

    def notify(self, attempt: Attempt, /) -> None:
        """Do nothing: there is only one attempt."""

    def wake(self, from_anywhere: bool = False) -> Iterable[Attempt]:
        try:
            self._asleep.release()
        except RuntimeError:
            pass  # it was woken already, but has not run yet
        reader = self._reader
        if reader and reader != get_ident():
            self._connection.wake_reader()
        return ()

    def is_dead(self) -> bool:
        return False

    def wait(self, seconds: float | None) -> bool:
        """Sleep until woken, for ``seconds`` at most; return whether it was woken."""
        connection = self._connection
        # This thread may have the role still: a signal handler has raised before it gave it up.
        if connection.keeps_role() or (
            not connection._has_reader and call_with_lock(connection._lock, connection.take_role)
        ):
            return self._read(seconds)
        if seconds is None:
            return self._asleep.acquire()
        return self._asleep.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))

    def _read(self, seconds: float | None) -> bool:
        """Read the connection until this thread is woken."""
        connection, asleep = self._connection, self._asleep
        deadline = None if seconds is None else perf_counter() + seconds
        self._reader = get_ident()
        try:
            # First the flag, then the look: a wake from now on ends the wait of `read`.
            while not asleep.acquire(False):
                left = None if deadline is None else deadline - perf_counter()
                if left is not None and left <= 0.0:
                    return False
                connection.read(left)
            return True
        finally:
            self._reader = 0
            connection.leave_role()


class ImmediateCall:
    """A call that the owner answers at once."""

    __slots__ = ("_body", "_connection", "_kind", "has_ended", "number", "thing", "waker")

    def __init__(self, connection: SharingConnection, thing: int) -> None:
        self._connection = connection
        self.thing: int = thing
        self.number: int = 0
        self._kind = 0
        self._body: Any = b""
        self.has_ended: bool = False
        self.waker: CallerWaker = CallerWaker(connection)

    def answered(self, kind: int, body: memoryview) -> None:
        self._kind, self._body = kind, body
        self.has_ended = True
        self.waker.wake()
        self._connection.forget(self)  # last: see `AttemptCall.answered`

    def cut_off(self) -> None:
        self.has_ended = True
        self.waker.wake()

    def outcome(self) -> memoryview:
        """Return the answer, or raise what it says."""
        if self._kind == frames.OK:
            found: memoryview = self._body
            return found
        if self._kind == frames.FAILED:
            raise error_of_message(bytes(self._body), _PLACE)
        raise self._connection.end_error()


def failure_in(body: memoryview) -> Exception:
    """Return the failure in an answer."""
    return error_of_message(bytes(body), _PLACE)


_connections: Final[dict[Address, SharingConnection]] = {}
_ended_owners: Final[dict[Address, Peer]] = {}
"""The processes of connections that have ended, the oldest first."""
_MOST_ENDED_OWNERS: Final = 64
_lock = machine_lock()


def connection_to(address: Address) -> SharingConnection:
    """Return the connection of this process to an owner; the first call connects.

    Raises:
        WorkerDiedError: the owner has ended.
        OSError: this process cannot connect.
    """
    connection = _connections.get(address)
    return connection or call_with_lock(_lock, _connect, address)


def _connect(address: Address) -> SharingConnection:
    connection = _connections.get(address)
    if connection is None:
        connection = _connections[address] = SharingConnection(address)
        if connection.has_ended:  # before it was noted, so its end has not removed it
            _forget(connection)
    return connection


def _forget(connection: SharingConnection) -> None:
    if _connections.get(connection.address) is connection:
        _connections.pop(connection.address, None)


class _Inherited:
    """Closes, in a fork, the connections of its parent."""

    def _was_forked(self) -> None:
        for connection in list(_connections.values()):
            connection.close_inherited()
            _kept.append(connection)
        _connections.clear()
        global _lock
        _lock = machine_lock()  # the thread that held the other one does not exist here


_kept: Final[list[SharingConnection]] = []
_inherited: Final = _Inherited()
note_for_forks(_inherited)


@atexit.register
def _flush_all() -> None:
    """Send the acknowledgements that wait still. The end of this process closes the sockets."""
    for connection in list(_connections.values()):
        connection._send_notes()
