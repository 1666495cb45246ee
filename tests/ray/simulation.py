"""Programs and the actor of a queue, of which any may be killed at any call or at its reply.

The programs run the library's own code, on a simulated object store and network: no cluster, no
thread, one event loop. All calls and replies are counted, so a test can kill a program or the actor
at each moment of a run, one after another.

A killed program does nothing more: all its calls and waits raise `Killed`. Its objects in the store
are lost. A killed actor restarts from the durable part of its journal, and gets its unanswered
calls again, as with Ray.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import aioqueue.ray
from aioqueue.ray import actor_sessions, queue_actor, queue_calls, queue_connection, queues
from aioqueue.ray.actor_handle import ActorHandle
from aioqueue.ray.packing import packed_answer, unpacked
from aioqueue.ray.segments import Payload
from tests.ray.local_handles import Records, RestartableActor

__all__ = ("Killed", "Program", "Wire")

PACKED = ("enqueue", "dequeue")
"""The calls whose arguments are sent as one."""


class Killed(BaseException):  # no failure: nothing of a killed program runs on
    """This program has been killed."""


class LostError(Exception):
    """An object was lost with its owner."""


class DeadActorError(Exception):
    """The actor has died, and does not come back."""


class FailedError(Exception):
    """A call has failed. Its text has colours, as Ray's has."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"\x1b[36mray::call()\x1b[39m has failed:\n{cause!r}")
        self.cause = cause

    def __reduce__(self) -> Any:
        return FailedError, (self.cause,)


class Wire:
    """All that there is in one run: an object store, an actor, and the programs that call it.

    Args:
        monkeypatch: puts these in the place of Ray.
        faults: what is done at which moment; the first one is 1.

    Attributes:
        moments: what has passed so far, in words.
        kept: whether the actor has a journal, from which it comes back.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, faults: Mapping[int, Callable[[Wire], None]]
    ) -> None:
        self.moments: list[str] = []
        self._faults = faults
        self.loop = asyncio.get_running_loop()
        self._others = asyncio.all_tasks()
        self.programs: list[Program] = []
        self._objects: dict[int, tuple[object, bytes]] = {}  # owners, and pickled values
        self._calls: dict[Call, asyncio.Task[None]] = {}  # that have no answer
        self.actor: RestartableActor | None = None
        self.deaths = 0
        self._silent: list[str] = []  # lives of programs that are known to be dead
        errors = SimpleNamespace(RayActorError=DeadActorError, RayTaskError=FailedError)
        monkeypatch.setattr(
            queue_connection, "required_ray", lambda: SimpleNamespace(exceptions=errors)
        )
        monkeypatch.setattr(queue_connection, "connected", lambda: FakeRay(self, None))
        monkeypatch.setattr(
            queue_connection.ActorConnection, "start", lambda connection: self._started(connection)
        )
        monkeypatch.setattr(queues, "connected", lambda: self.programs[-1].ray)
        monkeypatch.setattr(queues, "remote_class", lambda: Builder(self, self.programs[-1]))
        for module in (actor_sessions, queue_calls):
            monkeypatch.setattr(module, "is_loss", lambda error: isinstance(error, LostError))
        for module in (queue_actor, actor_sessions):
            monkeypatch.setattr(module, "copy_to_actor", self._copy_to_actor)

    def _started(self, connection: queue_connection.ActorConnection) -> None:
        """No thread says that a program is alive: the test does."""
        self.programs[-1].connections.append(connection)

    def passes(self, what: str) -> None:
        """A call or a reply is about to pass: now is the moment."""
        self.moments.append(what)
        inject = self._faults.get(len(self.moments))
        if inject is not None:
            inject(self)

    # The object store.

    def put(self, owner: object, value: Any) -> Stored:
        """Have an object."""
        stored = Stored(len(self._objects))
        self._objects[stored.number] = owner, pickle.dumps(value)
        return stored

    def get(self, stored: Stored) -> Any:
        """What it is.

        Raises:
            LostError: it has gone with its owner.
        """
        owner, value = self._objects[stored.number]
        if owner is None:
            raise LostError("the owner has died")
        return pickle.loads(value)

    def _lose(self, owner: object) -> None:
        for number, (its, _) in self._objects.items():
            if its is owner:
                self._objects[number] = None, b""

    async def _copy_to_actor(self, payload: Payload) -> Payload:
        columns = payload.columns
        if columns is None:
            columns = self.get(payload.ref[0].stored)
        return Payload(None, (self.bound(self.put(self.actor, columns), None),))

    def bound(self, stored: Stored, program: Program | None) -> Fetching:
        """A reference that can be waited for."""
        return Fetching(self, stored, program)

    # The actor.

    def build(self, name: str, description: Any) -> None:
        """Create the actor, unless it exists."""
        if self.actor is None:
            journal = None if description.journal is None else Records()
            self.actor = RestartableActor(name, description, journal)

    def begin(self, call: Call) -> None:
        """A call has come to the actor."""
        self._calls[call] = self.loop.create_task(self._make(call))

    async def _make(self, call: Call) -> None:
        here = self.actor
        if here is None:  # without a journal it does not come back
            call.end(None, DeadActorError("its worker process has died"))
            return
        try:
            arguments = self._received(call.arguments, None)
            if call.method in PACKED:
                arguments = unpacked(*arguments)
            answer = getattr(here, call.method)(*arguments)
            if inspect.isawaitable(answer):
                answer = await answer
            if call.method in PACKED:
                answer = packed_answer(answer)
        except Exception as error:
            answer = FailedError(error)
        if here is self.actor:
            self.passes(f"the reply to {call.method}")
        if here is self.actor:
            del self._calls[call]
            call.end(pickle.dumps(answer), None)

    def _received(self, sent: bytes, program: Program | None) -> Any:
        return bound_again(pickle.loads(sent), partial(self.bound, program=program))

    def kill_actor(self) -> None:
        """Kill the actor. With a journal it restarts, and its unanswered calls are repeated."""
        dead, calls = self.actor, list(self._calls.items())
        assert dead is not None
        self.deaths += 1
        self._lose(dead)
        self._calls.clear()
        self.actor = None if dead.records is None else dead.restarted()
        for call, task in calls:
            task.cancel()
            self.begin(call)
        for program in self.programs:
            program.heartbeat()
        self._dismiss()

    def kill(self, name: str) -> None:
        """Kill the program of this name that is running, if there is one."""
        for program in self.programs:
            if program.name == name and not program.is_dead:
                self.deaths += 1
                program.kill()

    def notice(self, program: Program) -> None:
        """The actor takes a program for dead: at once, as if it had been silent for long."""
        self._silent += [connection.caller.life for connection in program.connections]
        self._dismiss()

    def _dismiss(self) -> None:
        if self.actor is not None:
            for life in self._silent:
                self.actor.dismiss(life)

    async def end(self) -> None:
        """Let nothing run on."""
        tasks = asyncio.all_tasks() - self._others
        for program in self.programs:
            program.is_dead = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Stored:
    """An object in the store, as it is sent."""

    def __init__(self, number: int) -> None:
        self.number = number


class Fetching:
    """The same where it can be waited for, as a reference of Ray."""

    def __init__(self, wire: Wire, stored: Stored, program: Program | None) -> None:
        self._wire, self.stored, self._program = wire, stored, program

    def __reduce__(self) -> Any:
        return Stored, (self.stored.number,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fetching) and self.stored.number == other.stored.number

    def __hash__(self) -> int:
        return hash(self.stored.number)

    def future(self) -> Future[Any]:
        """Its value."""
        wire, program = self._wire, self._program
        wire.passes("a get")
        found: Future[Any] = Future()
        try:
            if program is not None:
                program.check()
            found.set_result(wire.get(self.stored))
        except BaseException as error:
            found.set_exception(error)
        return found


def bound_again(value: Any, bind: Callable[[Stored], Fetching]) -> Any:
    """What was received, with references that can be waited for."""
    if isinstance(value, Stored):
        return bind(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(bound_again(part, bind) for part in value))
    if isinstance(value, tuple | list):
        return type(value)(bound_again(part, bind) for part in value)
    return value


class Program:
    """A process that uses the queue.

    Args:
        wire: by which.
        name: what it does.
    """

    def __init__(self, wire: Wire, name: str) -> None:
        self.wire, self.name = wire, name
        self.is_dead = False
        self.calls: set[Call] = set()
        self.connections: list[Any] = []
        self.ray = FakeRay(wire, self)
        wire.programs.append(self)

    def open(self, *args: Any, **options: Any) -> Any:
        """A handle of the queue."""
        self.wire.programs.remove(self)
        self.wire.programs.append(self)
        return aioqueue.ray.FIFOQueue("wire", *args, **options)

    def check(self) -> None:
        """Run on.

        Raises:
            Killed: no.
        """
        if self.is_dead:
            raise Killed(self.name)

    def kill(self) -> None:
        """End it, whatever it is doing."""
        self.is_dead = True
        self.wire._lose(self)
        for call in list(self.calls):
            call.end(None, Killed(self.name))

    def heartbeat(self) -> None:
        """Send a heartbeat, as its thread does every few seconds."""
        with suppress(Killed):  # at this call
            for connection in self.connections:
                connection.heartbeat()


class Call:
    """A call in progress, until its reply arrives."""

    def __init__(self, program: Program, method: str, arguments: tuple[Any, ...]) -> None:
        self.program, self.method = program, method
        self.arguments = pickle.dumps(arguments)
        self.reply: Future[Any] = Future()
        program.calls.add(self)

    def future(self) -> Future[Any]:
        """Its reply."""
        return self.reply

    def end(self, answer: bytes | None, error: BaseException | None) -> None:
        """It has come, or will not."""
        program = self.program
        program.calls.discard(self)
        if self.reply.done():
            return
        if program.is_dead:
            error = Killed(program.name)
        found = None if answer is None else program.wire._received(answer, program)
        if error is None and isinstance(found, Exception):
            error = found
        with suppress(Killed):  # whoever it calls back may be killed by what it asks then
            if error is not None:
                self.reply.set_exception(error)
            else:
                self.reply.set_result(found)


class FakeRay:
    """What a handle asks of the library."""

    def __init__(self, wire: Wire, program: Program | None) -> None:
        self._wire, self._program = wire, program
        self.cloudpickle = pickle
        self.ObjectRef: type = Fetching
        self.actor = SimpleNamespace(ActorHandle=Fetching)
        self.runtime_context = self

    def get_runtime_context(self) -> Any:
        """Where it is: there is one place."""
        return SimpleNamespace(get_node_id=lambda: "here", get_job_id=lambda: "job")

    def put(self, value: Any) -> Fetching:
        """Into the object store."""
        wire, program = self._wire, self._program
        assert program is not None
        program.check()
        return wire.bound(wire.put(program, value), program)


class Builder:
    """What makes the actor, or finds it."""

    def __init__(self, wire: Wire, program: Program) -> None:
        self._wire, self._program = wire, program

    def options(self, **_: Any) -> Builder:
        """Where it runs is the same place."""
        return self

    def remote(self, name: str, description: Any) -> ActorHandle:
        """The one of this name."""
        self._wire.build(name, description)
        return ActorHandle(WireHandle(self._wire, self._program), pickle.dumps)


class WireHandle:
    """Ray's handle of the actor, in one program."""

    def __init__(self, wire: Wire, program: Program) -> None:
        self._wire, self._program = wire, program

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=partial(self._remote, method))

    def _remote(self, method: str, *arguments: Any) -> Call | None:
        wire, program = self._wire, self._program
        if method == "leave" and program.is_dead:  # by a finalizer, which runs no more
            return None
        program.check()
        wire.passes(f"a call of {method}")
        if method != "leave":
            program.check()
        call = Call(program, method, arguments)
        wire.loop.call_soon(wire.begin, call)
        return call
