"""A batcher that other processes call.

A call is a request like those of the owner's own callers: it stands in the same line, counts in the
same statistics, and joins the same batches. Its value is pickled by its caller, and unpickled by
the worker that begins a batch with it; its result is pickled there, too. So a value that cannot be
unpickled, or a result that cannot be pickled, fails one call.

A result is not leased: it is worth nothing without its caller. If a client dies, its calls leave
the line, and the results of those in a batch are dropped.

**Contexts.** A `contextvars.Context` cannot be pickled. A function with a parameter ``contexts``
gets one for each call all the same: an empty one, with the trace and the baggage of the caller, if
both processes have OpenTelemetry.
"""

from __future__ import annotations

import importlib
import json
import pickle
import struct
import sys
import threading
import weakref
from collections import deque
from collections.abc import Collection, Iterable
from contextvars import Context
from functools import partial
from threading import Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from aioqueue.base.arguments import is_int
from aioqueue.batcher.batcher import Batcher, BatcherFace, BlockingBatcher
from aioqueue.batcher.rules import Request
from aioqueue.batcher.statistics import BatcherState, BatcherStatistics
from aioqueue.core.attempts import DONE, FAILED, PENDING, WITHDRAWN, Attempt, Put, Waker
from aioqueue.core.storage.sized import size_of
from aioqueue.errors import (
    InvalidArgumentError,
    QueueClosedError,
    QueueFull,
    WorkerDiedError,
    add_note,
)
from aioqueue.processes.failures import message_of_failure
from aioqueue.remote.failures import sendable
from aioqueue.sharing import addresses, frames
from aioqueue.sharing.connection import (
    CallerWaker,
    EventLoop,
    SharingConnection,
    connection_to,
    failure_in,
)
from aioqueue.sharing.memory import Parts, blocks_of, starts_as_bytes
from aioqueue.sharing.owner import (
    Address,
    ConnectedClient,
    Server,
    running_server,
    server,
    shared_by,
)
from aioqueue.sharing.sealing import parts_of
from aioqueue.system.forks import note_for_forks
from aioqueue.system.locks import is_held_here, synchronized
from aioqueue.worlds.scopes import Gate
from aioqueue.worlds.waker import apply_deferred, deliver, running_loop

if TYPE_CHECKING:
    from aioqueue.base.public_names import World

REQUEST: Final = frames.FIRST_OF_SERVICE
"""A call of the batcher: a head (see `packed_request`), and the pickled value."""
STATISTICS: Final = frames.FIRST_OF_SERVICE + 1
"""The answer is a `BatcherStatistics`."""

_LENGTH: Final = struct.Struct("<I")

_USUAL_HEAD: Final = _LENGTH.pack(0)
"""The head of a call without a priority and a trace, whose size does not count."""


class BatcherDescription(NamedTuple):
    """What a client needs to know of a batcher."""

    name: str
    max_batch: int
    takes_contexts: bool
    has_priorities: bool
    counts_bytes: bool
    """Whether the queue has ``max_bytes``, so that a call says how large its value is."""
    queue_kind: str


# What is sent.


def packed_request(
    value: Any, priority: int | None, carrier: dict[str, str] | None, nbytes: int
) -> Parts:
    """Pickle a call: its value, and before it a head that the owner reads without unpickling.

    Raises:
        Exception: the value cannot be pickled.
    """
    data, buffers = parts_of(value)
    if priority is None and carrier is None and not nbytes:
        return _USUAL_HEAD + data, buffers
    head = json.dumps([priority, carrier, nbytes]).encode()
    return b"".join((_LENGTH.pack(len(head)), head, data)), buffers


def unpacked_request(data: memoryview) -> tuple[tuple[Any, ...], bytes]:
    """Take a call apart: its priority, its trace, and the bytes of its value; and the pickle."""
    (length,) = _LENGTH.unpack_from(data)
    start = _LENGTH.size + length
    head = (None, None, 0) if not length else tuple(json.loads(bytes(data[_LENGTH.size : start])))
    return head, bytes(data[start:])


def carried_context() -> dict[str, str] | None:
    """Return the trace and the baggage of the caller, if it uses OpenTelemetry."""
    # Not imported here: a program that has not loaded it has no trace.
    if "opentelemetry.context" not in sys.modules:
        return None
    propagate = _of_telemetry("propagate")
    if propagate is None:
        return None
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier or None


def context_of(carrier: dict[str, str] | None) -> Context:
    """Return a context with the trace and the baggage of a caller."""
    context = Context()
    propagate = None if carrier is None else _of_telemetry("propagate")
    if propagate is not None:
        telemetry = _of_telemetry("context")
        received = propagate.extract(carrier, context.run(telemetry.get_current))
        context.run(telemetry.attach, received)
    return context


def _of_telemetry(name: str) -> Any:
    """Return a module of OpenTelemetry; ``None`` if that is not installed."""
    try:
        return importlib.import_module(f"opentelemetry.{name}")
    except ImportError:
        return None


# The client's side.


class CallOfHandle(Request):
    """A call of a batcher of another process: a `Call` of the connection.

    The connection's reader only notes the answer. The caller unpickles it.

    Attributes:
        number: its number on the connection; 0 before it is sent.
        thing: the number of the batcher at its owner.
    """

    __slots__ = ("_body", "_kind", "connection", "number", "priority", "thing")

    def __init__(self, value: Any, host: RemoteBatcherCore, waker: Waker) -> None:
        super().__init__(value, host, waker)  # type: ignore[arg-type]
        self.number: int = 0
        self.thing: int = host.thing
        self.priority: int | None = None
        self.connection: SharingConnection | None = None
        self._kind = 0
        self._body: memoryview | None = None

    def answered(self, kind: int, body: memoryview) -> None:
        assert self.connection is not None
        self.connection.forget(self)
        self._kind, self._body = kind, body
        self._end()

    def cut_off(self) -> None:
        self._kind = _CUT_OFF
        self._end()

    def _end(self) -> None:
        core: RemoteBatcherCore = self.host  # type: ignore[assignment]
        apply_deferred(core.end, self)

    @property
    def expects_answer(self) -> bool:
        """Whether the owner has the call, and has not answered it."""
        return self.number != 0 and self._kind == 0

    def outcome(self) -> Any:
        connection, body = self.connection, self._body
        assert connection is not None
        if self._kind == frames.OK:
            assert body is not None
            data, buffers, blocks = connection.unpack(body)
            connection.free(blocks)
            try:
                return pickle.loads(data, buffers=buffers)
            except Exception as error:
                add_note(error, f"the result of {self.host} cannot be unpickled here")
                raise
        if self._kind == frames.FAILED:
            assert body is not None
            raise failure_in(body)
        raise self.host.end_error(connection)  # type: ignore[attr-defined]

    def drop_answer(self) -> None:
        """Drop an answer that the caller does not want any more."""
        connection, body, self._body = self.connection, self._body, None
        if self._kind == frames.OK and body is not None and connection is not None:
            connection.free(blocks_of(body))


class _Cancellation:
    """A call that was cancelled, until the owner has heard of that.

    Attributes:
        heard: opens then.
    """

    def __init__(self, call: CallOfHandle, connection: SharingConnection) -> None:
        self.number, self.thing = call.number, call.thing
        self._connection = connection
        self.heard = Gate()

    def answered(self, kind: int, body: memoryview) -> None:
        if kind == frames.OK:  # the answer was on its way
            self._connection.free(blocks_of(body))
        elif kind != frames.FAILED:
            self.cut_off()

    def cut_off(self) -> None:
        self._connection.forget(self)
        self.heard.open()


_CUT_OFF: Final = -1
"""In place of the kind of an answer: none will come."""


class _OtherLine:
    """The line of the batcher's callers, which is in another process: a call is sent there."""

    def __init__(self, core: RemoteBatcherCore) -> None:
        self._core = core

    async def enqueue(self, call: CallOfHandle) -> None:
        self._core.send(call, running_loop())


class _OtherLineOfThreads(_OtherLine):
    def enqueue(self, call: CallOfHandle, *, timeout: float | None = None) -> None:  # type: ignore[override]
        self._core.send(call)


class RemoteBatcherCore:
    """The state of a batcher of another process, as far as the faces of a handle use it.

    Args:
        address: where its owner listens.
        thing: its number there.
        description: what its owner says of it.
    """

    new_request = CallOfHandle
    is_elsewhere = True
    takes_contexts = False
    refuses = False
    """Whether a full queue refuses calls is known, and decided, where the queue is."""

    def __init__(self, address: Address, thing: int, description: BatcherDescription) -> None:
        self.thing = thing
        self.name: str = description.name
        self._address = address
        self._description = description
        self._lock = threading.RLock()  # guards the state of every call
        self.aio: _OtherLine = _OtherLine(self)
        self.sync: _OtherLineOfThreads = _OtherLineOfThreads(self)
        self.shared: Shared = Shared(address, thing, description)
        note_for_forks(self)

    def _was_forked(self) -> None:
        self._lock = threading.RLock()

    def __str__(self) -> str:
        return f"Batcher '{self.name}' of process {self._address.pid}"

    def new_thread_waker(self) -> CallerWaker:
        return CallerWaker(connection_to(self._address))

    def element(self, call: CallOfHandle, priority: int | None) -> CallOfHandle:
        """Prepare a call.

        Raises:
            InvalidArgumentError: a priority was given, but the queue has none; or it is no int.
        """
        if priority is not None:
            if not self._description.has_priorities:
                raise InvalidArgumentError(
                    f"priority: got {priority!r}, but {self} has a"
                    f" {self._description.queue_kind}; make it with"
                    " `queue=PriorityQueue(capacity)`"
                )
            if not is_int(priority):
                raise InvalidArgumentError(
                    f"element: got the priority {priority!r}; expected an int of 64 bits"
                )
            call.priority = int(priority)
        return call

    def note_accepted(self, call: CallOfHandle) -> None:
        call.is_accepted = True

    def send(self, call: CallOfHandle, loop: EventLoop | None = None) -> None:
        """Send a call to the owner.

        Args:
            call: the call.
            loop: see `SharingConnection.begin`.

        Raises:
            Exception: its value cannot be pickled.
            WorkerDiedError: the owner has ended.
        """
        description = self._description
        carrier = carried_context() if description.takes_contexts else None
        nbytes = size_of((call.value,)) if description.counts_bytes else 0
        parts = packed_request(call.value, call.priority, carrier, nbytes)
        connection = call.connection = connection_to(self._address)
        connection.begin(call, REQUEST, connection.pack(parts), loop)
        connection.need_reader()

    @synchronized
    def end(self, call: CallOfHandle) -> Collection[Waker]:
        """Note that a call was answered, or never will be; return the wakers to wake."""
        if call.state is not PENDING:
            return ()
        call.state = DONE
        assert call.waker is not None
        call.waker.notify(call)
        return (call.waker,)

    @synchronized
    def withdraw(
        self, attempt: Attempt, waited: float = 0.0, *, if_pending: bool = False
    ) -> Collection[Waker]:
        """End a call whose caller has left, here; `leave` ends it at its owner."""
        if attempt.state is PENDING:
            attempt.state = WITHDRAWN
        return ()

    def leave(self, call: CallOfHandle) -> Gate | None:
        """End a call; return the gate that opens when the owner has heard."""
        apply_deferred(self.withdraw, call)
        connection = call.connection
        if connection is None or not call.expects_answer:
            call.drop_answer()
            return None
        cancellation = _Cancellation(call, connection)
        connection.cancel(cancellation)
        return cancellation.heard

    def end_error(self, connection: SharingConnection) -> BaseException:
        """Make the error of a call that the owner will not answer."""
        if connection.ended_in_order:
            return QueueClosedError(f"{self} is closed: that process has ended", queue=self.name)
        return connection.end_error()

    def enter(self) -> NoReturn:
        """Refuse to enter the block.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            f"{self} is a handle: only the process that has made it enters its block. Call it,"
            " without a block"
        )

    def is_entered_here(self) -> bool:
        return is_held_here(self._lock)

    def _asked(self) -> tuple[BatcherState, BatcherStatistics]:
        connection = connection_to(self._address)
        try:
            body = connection.request(self.thing, STATISTICS, b"")
        except WorkerDiedError:
            if connection.ended_in_order:
                raise self.end_error(connection) from None
            raise
        data, buffers, blocks = connection.unpack(body)
        connection.free(blocks)
        found: tuple[BatcherState, BatcherStatistics] = pickle.loads(data, buffers=buffers)
        return found

    @property
    def state(self) -> BatcherState:
        """Its state; closed once its owner has ended."""
        try:
            return self._asked()[0]
        except (WorkerDiedError, QueueClosedError):
            return BatcherState.CLOSED

    def statistics(self) -> BatcherStatistics:
        return self._asked()[1]

    def describe(self) -> str:
        """Return the part of the repr that follows the name. It asks nobody."""
        most = self._description.max_batch
        return f"batches of up to {most}{shared_by(self._address)}"


class Shared:
    """How other processes reach a batcher.

    Args:
        address: where its owner listens.
        thing: its number there.
        description: what its owner says of it.
    """

    def __init__(self, address: Address, thing: int, description: BatcherDescription) -> None:
        self.thing = thing
        self._arguments = address, thing, description

    def pickled(self, world: World) -> tuple[Any, ...]:
        """Return what the batcher is pickled as."""
        return restored, (world, *self._arguments)


_handles: Final[weakref.WeakValueDictionary[tuple[Address, int], RemoteBatcherCore]] = (
    weakref.WeakValueDictionary()
)


def restored(
    world: World, address: Address, thing: int, description: BatcherDescription
) -> BatcherFace[Any, Any]:
    """Return a batcher that was pickled: itself in its own process, else a handle."""
    running = running_server()
    if running is not None and running.address == address:
        service: Any = running.service(thing)
        face: BatcherFace[Any, Any] = service.face
        found: BatcherFace[Any, Any] = getattr(face, world)
        return found
    return _handle(world, address, thing, description)


def _handle(
    world: World, address: Address, thing: int, description: BatcherDescription
) -> BatcherFace[Any, Any]:
    core = _handles.get((address, thing))
    if core is None:
        core = _handles[address, thing] = RemoteBatcherCore(address, thing, description)
    kind: Any = Batcher if world == "aio" else BlockingBatcher
    face: BatcherFace[Any, Any] = kind.__new__(kind)
    face._core = core  # type: ignore[assignment]
    note_for_forks(face)
    return face


_sharing: Final = threading.RLock()


def share_batcher(face: BatcherFace[Any, Any], name: str | None) -> None:
    """Share a batcher; see `BatcherFace.share`."""
    if name is not None:
        name = addresses.checked_name(name)
    core = face._core
    if core.is_elsewhere:
        if name is not None:
            raise InvalidArgumentError(
                f"name: got {name!r} for {core}, which another process owns; name it there"
            )
        return
    serving = server()
    with _sharing:  # several threads may share it
        shared = core.shared
        if shared is None:
            service = BatcherService(serving, face)
            service.number = serving.add(service)
            shared = core.shared = Shared(serving.address, service.number, service.description)
    if name is not None:
        serving.add_name(name, shared.thing)


# The owner's side.


class RemoteRequest(Request):
    """A call of another process. Its value stays pickled until a batch begins with it.

    Attributes:
        failure: the message of the failure, once it has failed.
        put: its enqueue, while that waits for room.
    """

    __slots__ = (
        *("_carrier", "_nbytes", "_sealed", "client", "failure", "is_examined", "number"),
        *("priority", "put", "service"),
    )

    is_sealed = True

    def __init__(
        self, service: BatcherService, client: ConnectedClient, number: int, head: Any, sealed: Any
    ) -> None:
        super().__init__(None, service.face._core, service.waker)
        self.service = service
        self.client = client
        self.number = number
        self.failure: bytes | None = None
        self.put: Put | None = None
        self.priority: int | None
        self.priority, self._carrier, self._nbytes = head
        self._sealed: Any = sealed
        self.is_examined = False

    @property
    def nbytes(self) -> int:
        return int(self._nbytes)

    def open(self) -> None:
        sealed, self._sealed = self._sealed, None
        if sealed is None:
            return  # it was opened to be examined
        data, buffers = sealed
        try:
            self.value: Any = pickle.loads(data, buffers=buffers)
        except BaseException as error:
            failure = _failure_of_one_call(error)
            host = self.host
            add_note(failure, f"the value of a call of {host} from {self.client} is unpickled here")
            raise failure from error.__cause__
        if self.host.takes_contexts:
            self.context: Context = context_of(self._carrier)

    def sealed(self, outcome: Any) -> Any:
        if not isinstance(outcome, BaseException):
            try:
                return parts_of(outcome)
            except BaseException as error:
                outcome = _failure_of_one_call(error)
                add_note(outcome, f"the result of {self.host} cannot be pickled for {self.client}")
        failure = outcome if isinstance(outcome, Exception) else RuntimeError(str(outcome))
        self.failure = message_of_failure(sendable(failure))
        return outcome


def _failure_of_one_call(error: BaseException) -> Exception:
    """Return what a call fails with whose value or result raises on its way.

    A class that raises `SystemExit` there must not end the worker, which has the calls of others.

    Raises:
        KeyboardInterrupt: the user may have pressed Ctrl-C: only the main thread is interrupted.
    """
    if isinstance(error, Exception):
        return error
    if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
        raise error
    return RuntimeError(f"{type(error).__name__}: {error}")


_NO_CONTEXT: Final = Context()


class _Waker:
    """Notes the requests that have been answered, and has the server's thread send the answers."""

    two_step = False

    def __init__(self, service: BatcherService) -> None:
        self._service = service
        self.answered: deque[RemoteRequest] = deque()

    def notify(self, attempt: Attempt, /) -> None:
        assert isinstance(attempt, RemoteRequest)
        self.answered.append(attempt)

    def wake(self, *, from_anywhere: bool = False) -> Iterable[Attempt]:
        if self.answered:
            self._service.server.call_soon(self._service.send_answers)
        return ()

    def is_dead(self) -> bool:
        return False


class _PutWaker:
    """Has the server's thread look at an enqueue that had to wait for room."""

    two_step = False

    def __init__(self, service: BatcherService, request: RemoteRequest) -> None:
        self._service, self._request = service, request

    def notify(self, attempt: Attempt, /) -> None:
        """There is only one."""

    def wake(self, *, from_anywhere: bool = False) -> Iterable[Attempt]:
        service, request = self._service, self._request
        service.server.call_soon(lambda: service.put_ended(request))
        return ()

    def is_dead(self) -> bool:
        return False


class BatcherService:
    """One shared batcher, as the owner's thread serves it.

    Args:
        server: the server of this process.
        face: a face of the batcher.
    """

    def __init__(self, server: Server, face: BatcherFace[Any, Any]) -> None:
        core = face._core
        self.server = server
        self.face = face
        self.number = 0
        self.label: str = str(core)
        self.description: BatcherDescription = BatcherDescription(
            core.name,
            core.max_batch,
            core.takes_contexts,
            core.has_priorities,
            core.aio.max_bytes is not None,
            core.aio._core.kind,
        )
        self._core = core
        self.waker: _Waker = _Waker(self)
        self._requests: set[RemoteRequest] = set()
        self._lock = threading.Lock()  # guards what follows
        self._to_examine: deque[RemoteRequest] = deque()
        self._is_examining = False
        core.has_sealed = True

    def pickled(self, world: World) -> tuple[Any, ...]:
        """Return what the batcher is pickled as."""
        return restored, (world, self.server.address, self.number, self.description)

    def was_forked(self) -> None:
        """Turn the faces that this fork has inherited into handles."""
        handle = RemoteBatcherCore(self.server.address, self.number, self.description)
        _handles[self.server.address, self.number] = handle
        for face in (self.face, self.face._peer):
            if face is not None:
                face._core = handle  # type: ignore[assignment]

    def begin(self, client: ConnectedClient, kind: int, number: int, body: memoryview) -> None:
        if kind == STATISTICS:
            client.answer(number, parts_of((self._core.state, self._core.statistics())))
            return
        if kind != REQUEST:
            raise frames.FrameError(f"a batcher has no call of kind {kind}")
        assert client.memory is not None
        data, buffers, blocks = client.memory.unpack(body)
        if blocks:
            client.send(frames.FREE, 0, 0, starts_as_bytes(blocks))
        head, pickled = unpacked_request(data)
        request = RemoteRequest(self, client, number, head, (pickled, buffers))
        self._requests.add(request)
        client.calls[number] = request
        if self._core.admission.examines and self._core.state is BatcherState.RUNNING:
            self._examine(request)
        else:
            self._admit(request)

    def _examine(self, request: RemoteRequest) -> None:
        """Have the value examined, which runs code of the user: on a thread for that."""
        self._to_examine.append(request)
        with self._lock:
            if self._is_examining:
                return
            self._is_examining = True
        name = f"aioqueue-{self._core.name}-admission"
        Thread(target=self._run_examiner, name=name, daemon=True).start()

    def _run_examiner(self) -> None:
        """Examine what has come, and end: the next request starts another thread."""
        core = self._core
        while True:
            with self._lock:
                if not self._to_examine:
                    self._is_examining = False
                    return
                request = self._to_examine.popleft()
            try:
                request.open()
                core.examine(request)
                request.is_examined = True
                self.server.call_soon(partial(self._admit, request))
            except BaseException as error:  # all later calls wait for this thread
                request.sealed(error)
                self.server.call_soon(partial(self._reject, request))

    def _reject(self, request: RemoteRequest) -> None:
        if self._forget(request):
            assert request.failure is not None
            request.client.send(frames.FAILED, 0, request.number, request.failure)

    def _admit(self, request: RemoteRequest) -> None:
        if request not in self._requests:
            return  # its caller has left
        try:
            self._enqueue(request, self._core.element(request, request.priority))
        except Exception as error:
            self._forget(request)
            request.client.fail(request.number, error)

    def _enqueue(self, request: RemoteRequest, element: Any) -> None:
        core = self._core
        queue = core.aio
        try:
            queue.enqueue_nowait(element)
            core.note_accepted(request)
        except QueueFull:
            if core.refuses:
                raise core.full() from None
            # It waits for room in the same line as all others.
            to_row = queue._core.to_row
            put = request.put = Put(element if to_row is None else to_row(element))
            deliver(queue._machine.begin(put, _PutWaker(self, request)))
        except QueueClosedError as closed:
            refusal = core.refusal()
            raise refusal from refusal.__cause__ or closed.__cause__

    def put_ended(self, request: RemoteRequest) -> None:
        """Look at an enqueue that waited for room, and may have ended."""
        put = request.put
        if put is None or put.state is PENDING:
            return
        request.put = None
        if put.state is DONE:
            self._core.note_accepted(request)
        elif put.state is FAILED and self._forget(request):
            request.client.fail(request.number, self._core.refusal())

    def send_answers(self) -> None:
        """Send the outcomes of the requests that have been answered."""
        answered = self.waker.answered
        while answered:
            request = answered.popleft()
            if not self._forget(request):
                continue  # its caller has left
            if request.error is None:
                try:
                    request.client.answer(request.number, request.result)
                except InvalidArgumentError as error:  # it is too long
                    request.client.fail(request.number, error)
            elif request.failure is not None:
                request.client.send(frames.FAILED, 0, request.number, request.failure)
            else:  # one of ours: it was refused, or its worker has died
                assert isinstance(request.error, Exception)
                request.client.fail(request.number, request.error)

    def acknowledge(self, client: ConnectedClient, number: int) -> None:
        """Do nothing: results are not leased."""

    def cancel(self, client: ConnectedClient, number: int, body: memoryview) -> bytes:
        request = client.calls.get(number)
        if isinstance(request, RemoteRequest) and self._forget(request):
            self._leave(request)
        return b""

    def leave(self, client: ConnectedClient) -> None:
        for request in [one for one in self._requests if one.client is client]:
            self._forget(request)
            self._leave(request)

    def finish(self) -> None:
        for request in list(self._requests):
            self._forget(request)
            self._leave(request)
            error = QueueClosedError(
                f"{self.label} has ended with its process", queue=self._core.aio.name
            )
            request.client.fail(request.number, error)

    def _forget(self, request: RemoteRequest) -> bool:
        """Note that a call needs no answer any more; return whether it needed one."""
        if request not in self._requests:
            return False
        self._requests.discard(request)
        request.client.calls.pop(request.number, None)
        return True

    def _leave(self, request: RemoteRequest) -> None:
        """End a call whose caller has left: its place is free for others."""
        core, put = self._core, request.put
        if put is not None:
            apply_deferred(core.aio._machine.withdraw, put, if_pending=True)
            request.put = None
            request.is_accepted = put.state is DONE
        core.leave(request)
