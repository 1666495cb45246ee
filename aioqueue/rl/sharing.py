"""A shared `RolloutQueue`: what carries its messages between the processes of one machine.

The contract is that of `aioqueue.rl.remote`. In the owner, the server's thread only passes messages
on. An event loop on a thread of its own has the calls of all other processes: their prompts,
functions and states are unpickled there, and batches are pickled on its helper threads. So no code
of the user holds up other shared objects.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from aioqueue import Latest
from aioqueue.base.public_names import World
from aioqueue.errors import InvalidArgumentError, WorkerDiedError, add_note
from aioqueue.remote.failures import message_of_error
from aioqueue.rl.queue import RolloutQueue, RolloutQueueFace
from aioqueue.rl.remote import (
    Caller,
    RemoteBlockingRolloutQueue,
    RemoteCall,
    RemoteRolloutCore,
    RemoteRolloutQueue,
    RolloutSessions,
)
from aioqueue.rl.rollout import Step
from aioqueue.sharing import addresses, frames
from aioqueue.sharing.connection import SharingConnection, connection_to, failure_in
from aioqueue.sharing.memory import Parts, blocks_of, starts_as_bytes
from aioqueue.sharing.owner import Address, ConnectedClient, Server, running_server, server
from aioqueue.sharing.sealing import parts_of
from aioqueue.system.forks import note_for_forks
from aioqueue.worlds.waker import Owner

CALL: Final = frames.FIRST_OF_SERVICE
"""A method and its arguments, pickled; the answer is its result, pickled."""
NOTE: Final = frames.FIRST_OF_SERVICE + 1
"""The same, without an answer."""

_LAST_WORDS: Final = 0.5
"""Seconds that the last answers may take at the end of the owner."""

_ROUNDS: Final = 8
"""Of the event loop: more than a task makes between two of its waits."""


# The owner's side.


class _SocketAnswer:
    """How a call of a client is answered: see `aioqueue.rl.remote.CallAnswer`."""

    __slots__ = ("_client", "_number", "_service")

    def __init__(self, service: RolloutService, client: ConnectedClient, number: int) -> None:
        self._service = service
        self._client = client
        self._number = number

    def pack(self, value: Any) -> Parts:
        return parts_of(value)

    def send(self, packed: Parts) -> None:
        self._service.server.call_soon(partial(self._send, packed))

    def _send(self, packed: Parts) -> None:
        client = self._client
        if client.has_left:
            return
        if client.is_congested:
            client.postpone(partial(self._send, packed))
            return
        try:
            client.answer(self._number, packed)
        except InvalidArgumentError as error:  # it is too long
            client.fail(self._number, error)
            self._service.call_soon(partial(self._service.give_up, client, self._number))

    def fail(self, error: BaseException) -> None:
        message = message_of_error(error)  # pickled here, since that may run code of the user
        self._service.server.call_soon(partial(self._fail, message))

    def _fail(self, message: bytes) -> None:
        if not self._client.has_left:
            self._client.send(frames.FAILED, 0, self._number, message)


class RolloutService:
    """One shared queue, as the owner's thread serves it.

    Args:
        face: the queue.
        server: the server of this process.
    """

    def __init__(self, face: RolloutQueue[Any, Any], server: Server) -> None:
        self.face = face
        self.server = server
        self.number = 0
        self._core = face._core
        self.label: str = str(face._core)
        self.policy: Latest[Any] = face._core.policy.share()
        self._sessions = RolloutSessions(face)
        self._callers: dict[ConnectedClient, Caller] = {}  # of the event loop
        self._loop = asyncio.new_event_loop()
        self._is_over = asyncio.Event()  # of that loop
        self._has_answered = threading.Event()
        name = f"aioqueue-{face.name}-sharing"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def pickled(self, world: World) -> tuple[Any, ...]:
        return restored, (world, *self._arguments())

    def sent_step(self, step: Step) -> object:
        return _SharedStep(self._arguments(), step)

    def _arguments(self) -> tuple[Any, ...]:
        return self.server.address, self.number, self.face.name, self.policy

    def step_of(self, number: int, grant: int) -> Step | None:
        return self._sessions.step_of(number, grant)

    def adopt_in_fork(self, face: RolloutQueueFace[Any, Any]) -> None:
        """Turn a face that a fork has inherited into a handle."""
        face._core = handle_core(*self._arguments())  # type: ignore[assignment]
        is_async = face._world == "aio"
        face.__class__ = RemoteRolloutQueue if is_async else RemoteBlockingRolloutQueue

    def was_forked(self) -> None:
        """Let batches that this fork has inherited report to the owner. Each face is adopted."""
        self._core.elsewhere = handle_core(*self._arguments())

    # In the server's thread.

    def begin(self, client: ConnectedClient, kind: int, number: int, body: memoryview) -> None:
        if kind not in (CALL, NOTE):
            raise frames.FrameError(f"{self.label} has no call of kind {kind}")
        assert client.memory is not None
        data, buffers, blocks = client.memory.unpack(body)
        if blocks:
            client.send(frames.FREE, 0, 0, starts_as_bytes(blocks))
        sent = bytes(data), buffers
        self.call_soon(partial(self._receive, client, kind, number, sent))

    def acknowledge(self, client: ConnectedClient, number: int) -> None:
        """Do nothing: a caller says by a note that it has its step."""

    def cancel(self, client: ConnectedClient, number: int, body: memoryview) -> bytes:
        """Do nothing: a cancellation is a call, since its end has to be waited for."""
        return b""

    def leave(self, client: ConnectedClient) -> None:
        self.call_soon(partial(self._end, client))

    def finish(self) -> None:
        """Let those be answered that can be: a run that has ended leaves trainers with its end."""
        self.call_soon(self._is_over.set)
        self._has_answered.wait(_LAST_WORDS)

    def call_soon(self, call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call)

    # In the event loop.

    def _run(self) -> None:
        """The main function of the thread."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        await self._is_over.wait()
        for _ in range(_ROUNDS):  # let tasks that were woken run to their next wait, or their end
            await asyncio.sleep(0)
        self._has_answered.set()
        callers, self._callers = self._callers, {}
        for caller in callers.values():
            await self._sessions.end(caller)

    def _receive(self, client: ConnectedClient, kind: int, number: int, sent: Any) -> None:
        if self._is_over.is_set():
            return  # the end of the connection answers it
        caller = self._callers.get(client)
        if caller is None:
            caller = self._callers[client] = Caller(str(client))
        answer = _SocketAnswer(self, client, number)
        try:
            method, arguments = pickle.loads(sent[0], buffers=sent[1])
        except Exception as error:
            add_note(error, f"the arguments of a call of {caller.name} are unpickled here")
            answer.fail(error)
            return
        if kind == CALL:
            self._sessions.begin(caller, number, method, arguments, answer)
        else:
            self._sessions.note(caller, method, arguments)

    def give_up(self, client: ConnectedClient, number: int) -> None:
        """End a call whose answer could not be sent."""
        caller = self._callers.get(client)
        call = None if caller is None else caller.calls.get(number)
        if call is not None:
            call.task.cancel()

    def _end(self, client: ConnectedClient) -> None:
        if self._is_over.is_set():
            return  # `_serve` ends all
        caller = self._callers.pop(client, None)
        if caller is not None:
            self._sessions.schedule_end(caller)


# The side of a handle.


class _SocketCall(RemoteCall):
    """A call of a handle: a `SentCall` of the connection."""

    def __init__(self, core: SharedRolloutCore, owner: Owner, what: str) -> None:
        super().__init__(owner, what)
        self.thing = core.thing
        self.is_left = False
        self.connection: SharingConnection | None = None
        self._core = core
        self._kind = 0
        self._body: memoryview | None = None

    def answered(self, kind: int, body: memoryview) -> None:
        assert self.connection is not None
        self.connection.forget(self)
        self._kind, self._body = kind, body
        self.gate.open()
        if self.is_left:  # asked last: its caller may leave just now
            self.drop()

    def cut_off(self) -> None:
        self._kind = _CUT_OFF
        self.gate.open()

    @property
    def has_failed(self) -> bool:
        return self._kind in (frames.FAILED, _CUT_OFF)

    def drop(self) -> None:
        """Drop the answer: the caller does not want it any more."""
        self.is_left = True
        body, self._body = self._body, None
        if self._kind == frames.OK and body is not None and self.connection is not None:
            self.connection.free(blocks_of(body))

    def outcome(self) -> Any:
        connection, body = self.connection, self._body
        assert connection is not None
        if self._kind == _CUT_OFF:
            raise self._core.owner_error(connection)
        self._body = None
        assert body is not None
        if self._kind == frames.FAILED:
            raise failure_in(body)
        return self._core.loads(connection, body)


_CUT_OFF: Final = -1
"""In place of the kind of an answer: none will come."""


class SharedRolloutCore(RemoteRolloutCore):
    """What the faces of a handle share.

    Args:
        address: where the owner listens.
        thing: the number of the queue there.
        name: its name.
        policy: the newest weights.
    """

    def __init__(self, address: Address, thing: int, name: str, policy: Latest[Any]) -> None:
        self.address = address
        self.thing = thing
        super().__init__(name, f"process {address.pid}", policy)

    def pickled(self, world: World) -> tuple[Any, ...]:
        return restored, (world, *self._arguments())

    def sent_step(self, step: Step) -> object:
        return _SharedStep(self._arguments(), step)

    def _arguments(self) -> tuple[Any, ...]:
        return self.address, self.thing, self.name, self.policy

    def adopt_in_fork(self, face: RolloutQueueFace[Any, Any]) -> None:
        """Begin anew in a fork: nothing that the parent waits for is waited for there."""
        self.renew()

    def new_call(self, owner: Owner, what: str) -> RemoteCall:
        return _SocketCall(self, owner, what)

    def send(self, call: RemoteCall, method: str, *arguments: Any) -> None:
        assert isinstance(call, _SocketCall)
        parts = parts_of((method, arguments))
        connection = call.connection = self._connection()
        connection.begin(call, CALL, connection.pack(parts))
        connection.need_reader()

    def leave(self, call: RemoteCall) -> Any:
        assert isinstance(call, _SocketCall)
        heard = super().leave(call)
        call.drop()
        return heard

    def note(self, what: str, *arguments: Any, call: RemoteCall | None = None) -> None:
        connection = getattr(call, "connection", None) or self._connection()
        if connection.memory is None:
            # The owner has not accepted the connection yet. If this process ended now, it never
            # would, and the message would be lost.
            self.ask("note", what, arguments)
        else:
            connection.send(NOTE, self.thing, 0, connection.pack(parts_of((what, arguments))))

    def ask(self, method: str, *arguments: Any) -> Any:
        connection = self._connection()
        try:
            body = connection.request(
                self.thing, CALL, connection.pack(parts_of((method, arguments)))
            )
        except WorkerDiedError:
            raise self.owner_error(connection) from None
        return self.loads(connection, body)

    def loads(self, connection: SharingConnection, body: memoryview) -> Any:
        """Unpickle an answer, in the process and on the thread that wants it."""
        data, buffers, blocks = connection.unpack(body)
        connection.free(blocks)
        try:
            return pickle.loads(data, buffers=buffers)
        except Exception as error:
            add_note(error, f"an answer of {self} cannot be unpickled here")
            raise

    def _connection(self) -> SharingConnection:
        try:
            return connection_to(self.address)
        except WorkerDiedError as error:
            self.over.open()
            raise _named(error, self) from None

    def owner_error(self, connection: SharingConnection) -> BaseException:
        """Make the error of a call that the owner does not answer, since it has ended."""
        error = connection.end_error()
        if isinstance(error, WorkerDiedError):
            self.over.open()
        return _named(error, self)


def _named(error: BaseException, core: RemoteRolloutCore) -> BaseException:
    error.args = (f"{core}: {error}", *error.args[1:])
    return error


class _SharedStep:
    """A step on its way to another process, as part of a batch."""

    def __init__(self, arguments: tuple[Any, ...], step: Step) -> None:
        self._arguments = (*arguments, step.number, step.grant)

    def __reduce__(self) -> tuple[Any, ...]:
        return restored_step, self._arguments


_cores: Final[weakref.WeakValueDictionary[tuple[Address, int], SharedRolloutCore]] = (
    weakref.WeakValueDictionary()
)
_making: Final = threading.RLock()


def handle_core(address: Address, thing: int, name: str, policy: Latest[Any]) -> SharedRolloutCore:
    """Return the core of this process's handle of a queue."""
    with _making:
        core = _cores.get((address, thing))
        if core is None:
            core = _cores[address, thing] = SharedRolloutCore(address, thing, name, policy)
        return core


def restored(world: World, address: Address, thing: int, name: str, policy: Latest[Any]) -> Any:
    """Return a queue that was pickled: itself in its own process, else a handle."""
    running = running_server()
    if running is not None and running.address == address:
        service: Any = running.service(thing)
        return getattr(service.face, world)
    core = handle_core(address, thing, name, policy)
    face: Any = RemoteRolloutQueue.__new__(RemoteRolloutQueue)
    face._core = core
    note_for_forks(face)
    return getattr(face, world)


def restored_step(
    address: Address, thing: int, name: str, policy: Latest[Any], number: int, grant: int
) -> Step | None:
    """Return the step of a batch that was pickled."""
    running = running_server()
    if running is not None and running.address == address:
        service: Any = running.service(thing)
        found: Step | None = service.step_of(number, grant)
        return found
    return Step(handle_core(address, thing, name, policy), number, grant)


_sharing: Final = threading.RLock()


def share_rollouts(face: RolloutQueueFace[Any, Any], name: str | None) -> None:
    """Share a queue; see `RolloutQueueFace.share`."""
    if name is not None:
        name = addresses.checked_name(name)
    core: Any = face._core
    if isinstance(core, RemoteRolloutCore):
        if name is not None:
            raise InvalidArgumentError(
                f"name: got {name!r} for {core}, which another process owns; name it there"
            )
        return
    serving = server()
    with _sharing:  # several threads may share it
        service = core.shared
        if service is None:
            aio: Any = face.aio  # type: ignore[attr-defined]
            service = RolloutService(aio, serving)
            service.number = serving.add(service)
            core.shared = service
    if name is not None:
        serving.add_name(name, service.number)
