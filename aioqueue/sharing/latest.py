"""A shared `Latest`: how the owner serves it, and the core of a handle in another process.

A value goes to a process once, with the first answer that needs it. Later answers have the version
only: the process keeps the newest value that it has got. The first caller that reads the value
unpickles it; the others get the same object.
"""

from __future__ import annotations

import pickle
import struct
import threading
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from time import perf_counter
from types import FrameType
from typing import Any, Final, TypeVar

from aioqueue.base.public_names import World
from aioqueue.core.attempts import DONE, PENDING, WITHDRAWN, Attempt, Waker
from aioqueue.errors import (
    InvalidArgumentError,
    OutOfRangeError,
    QueueClosedError,
    SealedFailure,
    WorkerDiedError,
    open_cause,
)
from aioqueue.latest.latest import BlockingLatest, Latest, LatestFace
from aioqueue.latest.state import UNSET, LatestCore, PendingRead, Versioned
from aioqueue.processes.failures import message_of_failure
from aioqueue.remote.failures import closing_cause, received_cause, sendable
from aioqueue.sharing import addresses, frames
from aioqueue.sharing.connection import CallerWaker, SharingConnection, connection_to, failure_in
from aioqueue.sharing.memory import blocks_of, packed
from aioqueue.sharing.owner import (
    Address,
    ConnectedClient,
    Server,
    running_server,
    server,
    shared_by,
)
from aioqueue.sharing.sealing import Sealed, is_plain, parts_of, seal, unseal
from aioqueue.system.forks import note_for_forks
from aioqueue.system.locks import call_with_lock, machine_lock, synchronized
from aioqueue.telemetry.explain.explanation import ExplainedWait
from aioqueue.worlds.waker import apply_deferred, deliver, in_event_loop

T = TypeVar("T")
FaceT = TypeVar("FaceT", bound="LatestFace[Any]")

READ: Final = frames.FIRST_OF_SERVICE
"""Wait for a version after another one; the answer is a version and perhaps its value."""
PUBLISH: Final = frames.FIRST_OF_SERVICE + 1
CALL: Final = frames.FIRST_OF_SERVICE + 2

_READ: Final = struct.Struct("<QB")
"""The version that the caller has, and whether it may wait."""
_VERSION: Final = struct.Struct("<QB")
"""A version, and whether its value follows."""


class SharedLatestCore(LatestCore):
    """The state of a `Latest` that is shared, in the process that owns it.

    What another process has published is kept as it came, and opened by the first reader here.
    """

    shared: Any
    _opened: Versioned[Any] = Versioned(0, UNSET)

    def publish(self, value: Any) -> int:
        if not is_plain(value):
            # Pickled here, on the publisher's thread. Readers of this process get the object.
            value = _Published(value, seal(value))
        try:
            return super().publish(value)
        except QueueClosedError as error:
            open_cause(error)
            raise

    def publish_received(self, sealed: Sealed) -> int:
        """Publish a value of another process."""
        return super().publish(sealed)

    def close(self, cause: BaseException | None) -> None:
        if isinstance(cause, BaseException) and type(cause) is not SealedFailure:
            cause = closing_cause(cause)
        super().close(cause)

    def newest(self) -> Versioned[Any]:
        return self._open(self.current)

    def newer(self, version: int) -> Versioned[Any] | None:
        try:
            found = super().newer(version)
        except OutOfRangeError as end:
            open_cause(end)
            raise
        return None if found is None else self._open(found)

    def outcome(self, reading: PendingRead) -> Versioned[Any]:
        try:
            return self._open(super().outcome(reading))
        except OutOfRangeError as end:
            open_cause(end)
            raise

    def _open(self, found: Versioned[Any]) -> Versioned[Any]:
        value = found.value
        if type(value) is _Published:
            return Versioned(found.version, value.value)
        if type(value) is not Sealed:
            return found
        opened = self._opened
        if opened.version != found.version:
            opened = self._opened = Versioned(found.version, unseal(value))
        return opened


class _Published:
    """A value that this process has published, with its pickle for the others."""

    __slots__ = ("sealed", "value")

    def __init__(self, value: Any, sealed: Sealed) -> None:
        self.value = value
        self.sealed = sealed


class _Reader:
    """The caller of a client's reading, for explanations: it has no thread or task here."""

    __slots__ = ("name",)

    def __init__(self, client: ConnectedClient) -> None:
        self.name = f"process {client.pid}"

    @property
    def key(self) -> int:
        return id(self)


class _RemoteReading:
    """A reading of a client; also its waker."""

    __slots__ = ("client", "is_answered", "number", "reading", "service", "two_step")

    def __init__(
        self, service: LatestService, client: ConnectedClient, number: int, reading: PendingRead
    ) -> None:
        self.two_step = False
        self.service = service
        self.client = client
        self.number = number
        self.reading = reading
        self.is_answered = False

    def notify(self, attempt: Attempt, /) -> None:
        """Do nothing: there is only one attempt."""

    def wake(self, from_anywhere: bool = False) -> Iterable[Attempt]:
        if not self.is_answered and self.reading.state is not PENDING:
            self.service.server.call_soon(self.answer)
        return ()

    def is_dead(self) -> bool:
        return False

    def answer(self) -> None:
        self.service.answer(self)


class LatestService:
    """One shared `Latest`, as the owner's thread serves it.

    Args:
        core: what is shared.
        server: the thread.
    """

    def __init__(self, core: SharedLatestCore, server: Server) -> None:
        self.core = core
        self.server = server
        self.label: str = str(core)
        self.number = 0
        self._faces: dict[World, weakref.ref[Any]] = {}
        # The version that each client has got last.
        self._sent: weakref.WeakKeyDictionary[ConnectedClient, int] = weakref.WeakKeyDictionary()
        self._packed: tuple[int, Any] = (0, None)  # the newest version that was sent, pickled

    def pickled(self, world: World) -> tuple[Any, ...]:
        return restored, (world, self.server.address, self.number, self.core.name)

    def adopt_in_fork(self, face: LatestFace[Any]) -> None:
        """Turn a face that a fork has inherited into a handle."""
        face._core = handle_core(self.server.address, self.number, self.core.name)
        face.__class__ = RemoteLatest if face._world == "aio" else RemoteBlockingLatest

    def was_forked(self) -> None:
        """Do nothing: each face is adopted."""

    def face(self, world: World) -> Any:
        """Return a face of the object itself."""
        return call_with_lock(self.core._lock, self._find_or_make_face, world)

    def add_face(self, face: LatestFace[Any]) -> None:
        self._faces.setdefault(face._world, weakref.ref(face))

    def _find_or_make_face(self, world: World) -> Any:
        for made in self._faces.values():
            face = made()
            if face is not None:
                return face if face._world == world else getattr(face, world)
        face_class: Any = Latest if world == "aio" else BlockingLatest
        face = face_class.__new__(face_class)
        face._core = self.core
        self._faces[world] = weakref.ref(face)
        return face

    def begin(self, client: ConnectedClient, kind: int, number: int, body: memoryview) -> None:
        if kind == READ:
            self._begin_reading(client, number, body)
        elif kind == PUBLISH:
            assert client.memory is not None
            data, buffers, blocks = client.memory.unpack(body)
            if blocks:
                client.send(frames.FREE, 0, 0, struct.pack(f"<{len(blocks)}Q", *blocks))
            version = self.core.publish_received(Sealed(bytes(data), buffers))
            client.answer(number, pickle.dumps(version))
        elif kind == CALL:
            name, arguments = pickle.loads(body)
            client.answer(number, pickle.dumps(_METHODS[name](self, *arguments)))
        else:
            raise ValueError(f"{self.label}: a call of kind {kind}")

    def _begin_reading(self, client: ConnectedClient, number: int, body: memoryview) -> None:
        after, may_wait = _READ.unpack(body)
        reading = PendingRead(after)
        call = _RemoteReading(self, client, number, reading)
        owner: Any = _Reader(client)
        reading.host, reading.waker, reading.owner = self.core, call, owner
        reading.began = perf_counter()
        client.calls[number] = call
        # Delivers the wakes of others; this call's own is seen below.
        deliver(self.core._begin(reading))
        if reading.state is not PENDING:
            self.answer(call)
        elif not may_wait:
            self._end(call)
            client.answer(number, _VERSION.pack(0, 0))

    def answer(self, call: _RemoteReading) -> None:
        """Send what a reading has found, once."""
        client, number = call.client, call.number
        if call.is_answered or client.has_left or client.calls.get(number) is not call:
            return
        self._end(call)
        reading = call.reading
        found = reading.found
        if found is None:
            client.fail(number, self.core.end_error(reading.after))
            return
        # The newest, not that of the moment when the wait ended: it may be newer by now.
        current = self.core.current
        version = current.version
        if self._sent.get(client, 0) >= version:
            client.answer(number, _VERSION.pack(version, 0))
            return
        if self._packed[0] != version:
            self._packed = version, self._parts_of(current.value)
        try:
            body, _ = packed(client.memory, self._packed[1])
        except InvalidArgumentError as error:  # it is too long
            client.fail(number, error)
            return
        client.send(frames.OK, 0, number, _VERSION.pack(version, 1) + body)
        self._sent[client] = version

    @staticmethod
    def _parts_of(value: Any) -> Any:
        if type(value) is _Published:
            value = value.sealed
        if type(value) is Sealed:
            return value.data, value.buffers
        return parts_of(value)

    def _end(self, call: _RemoteReading) -> None:
        call.is_answered = True
        call.client.calls.pop(call.number, None)
        apply_deferred(self.core.withdraw, call.reading)

    def acknowledge(self, client: ConnectedClient, number: int) -> None:
        """Do nothing: a value is not leased."""

    def cancel(self, client: ConnectedClient, number: int, body: memoryview) -> bytes:
        call = client.calls.get(number)
        if isinstance(call, _RemoteReading) and call.service is self:
            self._end(call)
        return b""

    def leave(self, client: ConnectedClient) -> None:
        for call in list(client.calls.values()):
            if call.service is self:
                self._end(call)

    def finish(self) -> None:
        self.core.close(None)
        for client in self.server.clients:
            for call in list(client.calls.values()):
                if call.service is self:
                    self.answer(call)

    def _state(self) -> tuple[int, bool]:
        return self.core.current.version, self.core.is_closed

    def _close(self, cause: bytes | None) -> None:
        self.core.close(received_cause(cause))


_METHODS: Final[dict[str, Callable[..., Any]]] = {
    "close": LatestService._close,
    "state": LatestService._state,
}


# The client's side.


class _ReadingCall:
    """The call of one reading of a handle."""

    __slots__ = ("body", "connection", "core", "kind", "number", "reading", "thing")

    def __init__(
        self, core: RemoteLatestCore, connection: SharingConnection, reading: PendingRead
    ) -> None:
        self.core = core
        self.connection = connection
        self.reading = reading
        self.thing = core.thing
        self.number = 0
        self.kind = 0
        self.body: Any = b""

    def answered(self, kind: int, body: memoryview) -> None:
        if kind == frames.OK:
            # Kept even if the caller has left: the owner sends a value only once.
            self.core.note_value(self.connection, body)
        if kind == frames.SETTLED:
            self.connection.forget(self)
            return
        if self.reading.state is not PENDING:
            return  # cancelled; the owner's word on that follows
        self.connection.forget(self)
        self.kind, self.body = kind, body
        self._end()

    def cut_off(self) -> None:
        self._end()

    def _end(self) -> None:
        deliver(self.core.end_reading(self))


class _Kept:
    """The newest value that this process has got, as it came or opened."""

    __slots__ = ("body", "connection", "is_open", "value", "version")

    def __init__(self, version: int, body: Any, connection: SharingConnection | None) -> None:
        self.version = version
        self.body = body
        self.connection = connection
        self.value: Any = None
        self.is_open = connection is None


class RemoteLatestCore(LatestCore):
    """The core of the handle of a `Latest`.

    Args:
        address: where the owner listens.
        thing: the number of the object there.
        name: its name.
    """

    def __init__(self, address: Address, thing: int, name: str) -> None:
        self.address = address
        self.thing = thing
        self._reset()
        super().__init__(name)
        self.shared = self
        self.whose: str = shared_by(address)

    def _reset(self) -> None:
        self._kept = _Kept(0, b"", None)
        self._calls: dict[PendingRead, _ReadingCall] = {}
        self._opening = machine_lock()
        self._connection: SharingConnection | None = None

    def pickled(self, world: World) -> tuple[Any, ...]:
        return restored, (world, self.address, self.thing, self.name)

    def adopt_in_fork(self, face: LatestFace[Any]) -> None:
        """Begin anew in a fork: nothing that the parent waits for is waited for there."""
        if self._connection is not None or self._calls or self._kept.version:
            self._reset()
        self.renew()

    @property
    def connection(self) -> SharingConnection:
        """The connection of this process to the owner.

        Raises:
            WorkerDiedError: the owner has ended.
        """
        connection = self._connection
        if connection is None:
            connection = self._connection = connection_to(self.address)
        elif connection.has_ended:
            raise self._owner_error()
        return connection

    def _owner_error(self) -> BaseException:
        """Make the error of a call that the owner does not answer, since it has ended."""
        connection = self._connection
        if connection is None:
            return WorkerDiedError(f"{self}: the process that shares it has ended")
        error = connection.end_error()
        error.args = (f"{self}: {error}", *error.args[1:])
        return error

    @property
    def _has_ended_in_order(self) -> bool:
        return self._connection is not None and self._connection.ended_in_order

    # Readings.

    def note_value(self, connection: SharingConnection, body: memoryview) -> None:
        """Keep a value that has come. The reader calls this, in the order of the answers."""
        version, has_value = _VERSION.unpack_from(body)
        if has_value:
            before, self._kept = self._kept, _Kept(version, body[_VERSION.size :], connection)
            if not before.is_open and before.connection is connection:
                connection.free(blocks_of(before.body))  # nobody has opened it, or ever will

    def newest(self) -> Versioned[Any]:
        found = self._read_now(0)
        return Versioned(0, UNSET) if found is None else found

    def newer(self, version: int) -> Versioned[Any] | None:
        return None  # the owner knows; the caller waits for its answer

    def read_now(self, version: int) -> Versioned[Any] | None:
        """Return the newest value, if its version is after the given one, without waiting.

        Raises:
            OutOfRangeError: it will never come.
        """
        return self._read_now(version)

    def _read_now(self, after: int) -> Versioned[Any] | None:
        reading = PendingRead(after)
        waker = self.new_waker()
        self._send(reading, waker, may_wait=False)
        while reading.state is PENDING:
            waker.wait(None)
        call: Any = reading.found
        is_answered = call is not None and call.kind == frames.OK
        if is_answered and not _VERSION.unpack_from(call.body)[0]:
            return None
        try:
            return self.outcome(reading)
        except OutOfRangeError:
            if after == 0:
                return None  # closed before anything was published
            raise

    def new_waker(self) -> Any:
        try:
            return CallerWaker(self.connection)
        except WorkerDiedError:
            if self._has_ended_in_order:
                return super().new_waker()  # `begin` ends the reading at once
            raise

    def _send(self, reading: PendingRead, waker: Any, *, may_wait: bool) -> None:
        reading.host, reading.waker = self, waker
        if self._has_ended_in_order:
            reading.state = DONE
            return
        connection = self.connection
        call = self._calls[reading] = _ReadingCall(self, connection, reading)
        try:
            connection.begin(call, READ, _READ.pack(reading.after, may_wait))
        except BaseException:
            self._calls.pop(reading, None)
            raise
        if type(waker) is not CallerWaker:
            connection.need_reader()

    @synchronized
    def _begin(self, reading: PendingRead) -> Collection[Waker]:
        self.has_begun = True
        self._waiting[reading] = None
        waker: Any = reading.waker
        self._send(reading, waker, may_wait=True)
        if reading.state is not PENDING:
            waker.notify(reading)
            return (waker,)
        return ()

    @synchronized
    def end_reading(self, call: _ReadingCall) -> Collection[Waker]:
        """Note that a reading was answered, or never will be; return the waker to wake."""
        reading: Any = call.reading
        if reading.state is not PENDING:
            return ()
        # With the reading, and not here: its caller may be cancelled before it reads the answer.
        self._calls.pop(reading, None)
        reading.found = call
        reading.state = DONE
        waker: Any = reading.waker
        waker.notify(reading)
        return (waker,)

    @synchronized
    def withdraw(
        self, attempt: Attempt, waited: float = 0.0, *, if_pending: bool = False
    ) -> Collection[Waker]:
        assert isinstance(attempt, PendingRead)
        self._waiting.pop(attempt, None)
        if attempt.state is PENDING:
            attempt.state = WITHDRAWN
            call = self._calls.pop(attempt, None)
            if call is not None:
                call.connection.cancel(call)  # nothing was taken: nobody waits for the owner's word
        return ()

    def outcome(self, reading: PendingRead) -> Versioned[Any]:
        call: Any = reading.found
        if call is None or not call.kind:
            if self._has_ended_in_order:
                raise self.end_error(reading.after)
            raise self._owner_error()
        if call.kind == frames.FAILED:
            raise failure_in(call.body)
        return call_with_lock(self._opening, self._opened)

    def end_error(self, version: int) -> BaseException:
        return OutOfRangeError(
            f"{self}: the process that shared it has ended, and no version after {version} was"
            " published",
            queue=self.name,
        )

    def _opened(self) -> Versioned[Any]:
        """Return the newest value that has come; the first caller unpickles it."""
        while True:
            kept = self._kept
            if kept.is_open:
                return Versioned(kept.version, kept.value)
            connection = kept.connection
            assert connection is not None
            data, buffers, blocks = connection.unpack(kept.body)
            try:
                kept.value = pickle.loads(data, buffers=buffers)
            except Exception as error:
                error.add_note(f"version {kept.version} of {self} cannot be unpickled here")
                raise
            kept.is_open, kept.body, kept.connection = True, b"", None
            connection.free(blocks)

    # What the owner answers at once.

    def _ask(self, method: str, *arguments: Any) -> Any:
        body = self._request(CALL, pickle.dumps((method, arguments)))
        return pickle.loads(body)

    def _request(self, kind: int, body: bytes) -> memoryview:
        connection = self.connection
        try:
            return connection.request(self.thing, kind, body)
        except WorkerDiedError:
            raise self._owner_error() from None

    def publish(self, value: Any) -> int:
        if self._has_ended_in_order:
            raise QueueClosedError(f"{self}: the process that shared it has ended", queue=self.name)
        parts = parts_of(value)
        version: int = pickle.loads(self._request(PUBLISH, self.connection.pack(parts)))
        return version

    def close(self, cause: BaseException | None) -> None:
        if cause is not None and not isinstance(cause, BaseException):
            raise InvalidArgumentError(f"cause: got {cause!r}; expected an exception or None")
        if not self._has_ended_in_order:
            sent = None if cause is None else message_of_failure(sendable(cause))
            self._ask("close", sent)

    @property
    def current(self) -> Versioned[Any]:
        return Versioned(self._state()[0], UNSET)

    @current.setter
    def current(self, value: Versioned[Any]) -> None:
        """Do nothing: the value is the owner's."""

    @property
    def is_closed(self) -> bool:
        return self._state()[1]

    @is_closed.setter
    def is_closed(self, value: bool) -> None:
        """Do nothing: the owner knows."""

    def _state(self) -> tuple[int, bool]:
        if self._has_ended_in_order:
            return self._kept.version, True
        found: tuple[int, bool] = self._ask("state")
        return found

    # What explanations require. The owner is not asked: it may be what everybody waits for.

    def waits(self, frames: Mapping[int, FrameType]) -> Iterable[ExplainedWait]:
        for reading in self._pending():
            seconds = perf_counter() - reading.began
            what = f"waits for a version after {reading.after} of {self} of process"
            what += f" {self.address.pid}"
            yield ExplainedWait(reading.owner.name, what, seconds, key=reading.owner.key)

    def waits_move(self) -> Hashable:
        return self._kept.version


_cores: Final[weakref.WeakValueDictionary[tuple[Address, int], RemoteLatestCore]] = (
    weakref.WeakValueDictionary()
)


def handle_core(address: Address, thing: int, name: str) -> RemoteLatestCore:
    """Return the core of this process's handle of a `Latest`."""
    core = _cores.get((address, thing))
    if core is None:
        core = _cores[address, thing] = RemoteLatestCore(address, thing, name)
    return core


class RemoteLatest(Latest[T]):
    """The async face of a handle."""

    def _class_of(self, face_class: type[FaceT]) -> Any:
        return RemoteBlockingLatest


class RemoteBlockingLatest(BlockingLatest[T]):
    """The blocking face of a handle."""

    def _newer(self, method: str, version: int, timeout: float | None) -> Versioned[T]:
        if in_event_loop() or timeout == 0:
            # It may not wait: the owner is asked for what there is now.
            core: Any = self._core
            found: Versioned[T] | None = core.read_now(version)
            if found is not None:
                return found
        return super()._newer(method, version, timeout)

    def _class_of(self, face_class: type[FaceT]) -> Any:
        return RemoteLatest


for _face, _local in ((RemoteLatest, Latest), (RemoteBlockingLatest, BlockingLatest)):
    # Handles look like what they are handles of.
    _face.__module__, _face.__name__ = _local.__module__, _local.__name__
    _face.__qualname__, _face.__doc__ = _local.__qualname__, _local.__doc__
del _face, _local


def restored(world: World, address: Address, thing: int, name: str) -> Any:
    """Return what was pickled: the `Latest` itself, in the process that owns it."""
    serving = running_server()
    if serving is not None and serving.address == address:
        service: Any = serving.service(thing)
        return service.face(world)
    core = handle_core(address, thing, name)
    return call_with_lock(core._lock, _find_or_make_handle, core, world)


_handles: Final[weakref.WeakKeyDictionary[RemoteLatestCore, Any]] = weakref.WeakKeyDictionary()


def _find_or_make_handle(core: RemoteLatestCore, world: World) -> Any:
    made = _handles.get(core)
    face: Any = None if made is None else made()
    if face is None:
        face_class: Any = RemoteLatest if world == "aio" else RemoteBlockingLatest
        face = face_class.__new__(face_class)
        face._core = core
        note_for_forks(face)
        _handles[core] = weakref.ref(face)
    return face if face._world == world else getattr(face, world)


_sharing: Final = threading.RLock()


def _service_of(core: Any) -> LatestService:
    """Return the service of a `Latest`; the first call shares it."""
    if core.shared is not None:
        found: LatestService = core.shared
        return found
    serving = server()
    while True:
        # Pickling runs code of the user, so it happens outside of the core's lock.
        current, cause = core.current, core.cause
        sealed_cause = None if cause is None else closing_cause(cause)
        shared = current
        if current.version and not is_plain(current.value):
            shared = Versioned(current.version, _Published(current.value, seal(current.value)))
        if call_with_lock(core._lock, _take_over, core, (current, cause), (shared, sealed_cause)):
            break
    service = LatestService(core, serving)
    service.number = serving.add(service)
    core.shared = service
    return service


def _take_over(core: Any, found: tuple[Any, Any], shared: tuple[Any, Any]) -> bool:
    """Turn a core into a shared one, unless its value, or why it was closed, has changed."""
    if core.current is not found[0] or core.cause is not found[1]:
        return False
    core.current, core.cause = shared
    core.__class__ = SharedLatestCore
    return True


def share_latest(face: LatestFace[Any], name: str | None) -> None:
    """Share a `Latest`; see `LatestFace.share`."""
    if name is not None:
        name = addresses.checked_name(name)
    core: Any = face._core
    if isinstance(core, RemoteLatestCore):
        if name is not None:
            raise InvalidArgumentError(
                f"name: got {name!r} for {core}, which another process owns; name it there"
            )
        return
    with _sharing:  # several threads may share it
        service = _service_of(core)
    service.add_face(face)
    if name is not None:
        service.server.add_name(name, service.number)
