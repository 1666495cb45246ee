"""A `RolloutQueue` in an actor of a Ray cluster: its trainers are programs of the cluster.

The contract is that of `aioqueue.rl.remote`; this is what carries its messages. An actor owns the
queue, and generates in its event loop.

Ray starts the calls of one program in any order. So messages are numbered, and the actor takes
those of each program in order. Ray repeats none of them, since the actor is not restarted.

Programs report that they live. One that is silent for half a minute counts as dead.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import uuid
import weakref
from collections.abc import AsyncIterable, Callable, Iterable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar

from aioqueue import InvalidArgumentError
from aioqueue.base.public_names import World
from aioqueue.coordination.no_queue import NoQueue
from aioqueue.errors import CancelledError, WorkerDiedError, add_note, exception_text
from aioqueue.ray.coordinator_connection import place_here
from aioqueue.ray.messages import LEASE_SECONDS
from aioqueue.ray.queues import NAMESPACE, checked_name
from aioqueue.remote.failures import error_of_message, message_of_error
from aioqueue.rl import RolloutQueue as LocalRolloutQueue
from aioqueue.rl.generation import checked_work
from aioqueue.rl.remote import (
    Caller,
    RemoteCall,
    RemoteRolloutCore,
    RemoteRolloutQueue,
    RolloutSessions,
)
from aioqueue.rl.rollout import Step
from aioqueue.system.forks import note_for_forks
from aioqueue.workers.executors.ray_cluster import (
    checked_options,
    connected,
    not_connected,
    session_of,
    why_lost,
)
from aioqueue.worlds.waker import Owner

P = TypeVar("P")
R = TypeVar("R")

_BEAT: Final = LEASE_SECONDS / 6
_MOST_CALLS: Final = 100_000
"""Most calls that may wait in the actor."""

_SHUT_DOWN: Final = "the connection has ended: ray.shutdown() was called"


# The actor.


class _Program:
    """A program that uses the queue, as the actor knows it. It takes its messages in order."""

    def __init__(self, place: str) -> None:
        self.caller: Caller = Caller(place)
        self.last_heard: float = monotonic()
        self._next = 0
        self._early: dict[int, Callable[[], object]] = {}

    def take(self, order: int, message: Callable[[], object]) -> None:
        self.last_heard = monotonic()
        self._early[order] = message
        while (first := self._early.pop(self._next, None)) is not None:
            self._next += 1
            first()


class _RayAnswer:
    """How one call of a program is answered: see `aioqueue.rl.remote.CallAnswer`."""

    def __init__(self, dumps: Callable[[Any], bytes]) -> None:
        self._dumps = dumps
        self._loop = asyncio.get_running_loop()
        self.sent: asyncio.Future[tuple[bool, bytes]] = self._loop.create_future()

    def pack(self, value: Any) -> bytes:
        return self._dumps(value)

    def send(self, packed: bytes) -> None:
        self._loop.call_soon_threadsafe(self._set, True, packed)

    def fail(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self._set, False, message_of_error(error))

    def _set(self, is_success: bool, message: bytes) -> None:
        if not self.sent.done():
            self.sent.set_result((is_success, message))


class _ActorSide:
    """What the queue in the actor is for others: see `RolloutCore.shared`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def pickled(self, world: World) -> tuple[Any, ...]:
        return restored, (world, self._name)

    def sent_step(self, step: Step) -> object:
        return _RayStep(self._name, step)

    def adopt_in_fork(self, face: object) -> None:
        """Do nothing: processes of a generation do not use the queue."""


class RolloutActor:
    """The actor of one queue. All its calls run in one event loop.

    Args:
        name: its name in the cluster.
        content: the prompts and the options, pickled.
    """

    def __init__(self, name: str, content: bytes) -> None:
        from ray import cloudpickle

        self._dumps, self._loads = cloudpickle.dumps, cloudpickle.loads
        prompts, options = self._loads(content)
        face = LocalRolloutQueue(prompts, **options, name=name)
        face._core.shared = _ActorSide(name)
        self._sessions = RolloutSessions(face)
        self._programs: dict[str, _Program] = {}
        self._left: set[str] = set()
        self._watching: asyncio.Task[None] | None = None

    async def call(
        self, life: str, place: str, order: int, number: int, packed: bytes
    ) -> tuple[bool, bytes]:
        """Take a call, and return whether it succeeded, with its answer."""
        answer = _RayAnswer(self._dumps)
        if life in self._left:
            answer.fail(
                WorkerDiedError(f"{place} was silent for {LEASE_SECONDS:.0f} s, so it was dead")
            )
        else:
            begin = partial(self._begin, life, number, packed, answer)
            self._program(life, place).take(order, begin)
        return await answer.sent

    async def note(self, life: str, place: str, order: int, packed: bytes) -> None:
        """Take a message that has no answer."""
        if life not in self._left:
            self._program(life, place).take(order, partial(self._note, life, packed))

    async def heartbeat(self, life: str) -> None:
        if life in self._programs:
            self._programs[life].last_heard = monotonic()

    async def leave(self, life: str) -> None:
        """End a program, which does not use the queue any more."""
        self._end(life)

    async def expire(self, seconds: float) -> None:
        """End programs that have been silent for some time."""
        for life, program in list(self._programs.items()):
            if program.last_heard < monotonic() - seconds:
                self._end(life)

    def _program(self, life: str, place: str) -> _Program:
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._watch())
        program = self._programs.get(life)
        if program is None:
            program = self._programs[life] = _Program(place)
        return program

    def _begin(self, life: str, number: int, packed: bytes, answer: _RayAnswer) -> None:
        caller = self._programs[life].caller
        try:
            method, arguments = self._loads(packed)
        except Exception as error:
            add_note(error, f"the arguments of a call of {caller.name} are unpickled here")
            answer.fail(error)
            return
        self._sessions.begin(caller, number, method, arguments, answer)

    def _note(self, life: str, packed: bytes) -> None:
        self._sessions.note(self._programs[life].caller, *self._loads(packed))

    def _end(self, life: str) -> None:
        program = self._programs.pop(life, None)
        if program is not None:
            self._left.add(life)
            self._sessions.schedule_end(program.caller)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_BEAT)
            await self.expire(LEASE_SECONDS)


@functools.cache
def remote_class() -> Any:
    import ray

    return ray.remote(max_concurrency=_MOST_CALLS)(RolloutActor)


# The handle.


class _RayCall(RemoteCall):
    """A call of a handle."""

    def __init__(self, core: RayRolloutCore, owner: Owner, what: str) -> None:
        super().__init__(owner, what)
        self._core = core
        self._answer: tuple[bool, bytes] | None = None
        self._error: BaseException | None = None

    def answered(self, future: Any) -> None:
        self._core.forget(self)
        self._error = future.exception()
        if self._error is None:
            self._answer = future.result()
        self.gate.open()

    def cut_off(self) -> None:
        self.gate.open()

    @property
    def has_failed(self) -> bool:
        if not self.gate.is_open:
            return False
        return self._answer is None or not self._answer[0]

    def outcome(self) -> Any:
        if self._answer is None:
            raise self._core.end_error(self._error)
        is_success, message = self._answer
        if not is_success:
            raise error_of_message(message, "in the actor of the queue")
        return self._core.loads(message)


class RayRolloutCore(RemoteRolloutCore):
    """What the faces of a handle share.

    Args:
        ray: the library.
        name: the name of the queue.
        actor: Ray's handle.
    """

    def __init__(self, ray: Any, name: str, actor: Any) -> None:
        super().__init__(name, "a Ray actor", None)
        self.actor = actor
        self._ray = ray
        self._session = session_of(ray)
        self._pid = os.getpid()
        self._place = place_here()
        self._life = f"program-{uuid.uuid4().hex[:12]}"
        self._lock = threading.Lock()  # guards the numbers, and the order in which calls are made
        self._number = 0
        self._order = 0
        self._pending: set[_RayCall] = set()
        self._ended = threading.Event()
        self._why = _SHUT_DOWN
        self._stop = weakref.finalize(self, _leave, self._ended, actor, self._life, self._pid)
        thread = threading.Thread(
            target=_beat,
            args=(weakref.ref(self), self._ended, actor, self._life),
            name=f"aioqueue-ray-{name}",
            daemon=True,
        )
        thread.start()

    def pickled(self, world: World) -> tuple[Any, ...]:
        return restored, (world, self.name)

    def sent_step(self, step: Step) -> object:
        return _RayStep(self.name, step)

    def adopt_in_fork(self, face: object) -> None:
        """Do nothing: each call refuses to be made in a fork."""

    def generation(self, function: Any, **options: Any) -> Any:
        checked_work(function, **{**options, "where": _CHECKED_AS.get(options["where"])})
        return RayGeneration(self, function, options)

    def new_call(self, owner: Owner, what: str) -> _RayCall:
        return _RayCall(self, owner, what)

    def send(self, call: RemoteCall, method: str, *arguments: Any) -> None:
        assert isinstance(call, _RayCall)
        packed = self._packed(method, arguments)
        with self._lock:
            self._check()
            self._number += 1
            call.number = self._number
            reference = self.actor.call.remote(
                self._life, self._place, self._order, call.number, packed
            )
            self._order += 1
            self._pending.add(call)
        # Without the lock: the callback runs at once if the answer is there already.
        reference.future().add_done_callback(call.answered)

    def note(self, what: str, *arguments: Any, call: RemoteCall | None = None) -> None:
        packed = self._packed(what, arguments)
        with self._lock:
            self._check()
            self.actor.note.remote(self._life, self._place, self._order, packed)
            self._order += 1

    def ask(self, method: str, *arguments: Any) -> Any:
        call = self.new_call(Owner(threading.current_thread()), f"{method}()")
        self.send(call, method, *arguments)
        call.gate.wait_blocking(None, ())
        return call.outcome()

    def _packed(self, method: str, arguments: tuple[Any, ...]) -> bytes:
        packed: bytes = self._ray.cloudpickle.dumps((method, arguments))
        return packed

    def loads(self, packed: bytes) -> Any:
        try:
            return self._ray.cloudpickle.loads(packed)
        except Exception as error:
            add_note(error, f"an answer of {self} cannot be unpickled here")
            raise

    def forget(self, call: _RayCall) -> None:
        with self._lock:
            self._pending.discard(call)

    def is_connected(self) -> bool:
        ray = connected()  # a call would make Ray start a cluster
        return ray is not None and session_of(ray) == self._session

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"the handle of {self} belongs to the process that this one was forked from: call"
                " ray.init() here and make a new handle with the same name"
            )
        if self._ended.is_set() or not self.is_connected():
            raise self.end_error(None)

    def end(self, why: str) -> None:
        """Fail all calls that wait: no answer can come."""
        self._why = why
        self._ended.set()
        self.over.open()
        with self._lock:
            pending = list(self._pending)
        for call in pending:
            call.cut_off()

    def end_error(self, error: BaseException | None) -> WorkerDiedError:
        """Make the error of a call that the actor does not answer."""
        if error is None:
            return WorkerDiedError(f"{self}: {self._why}")
        self.over.open()
        found = WorkerDiedError(f"{self}: its actor {why_lost(error)}")
        found.__cause__ = error
        return found


def _beat(core: Any, ended: threading.Event, actor: Any, life: str) -> None:
    """Report that this program lives, until the handle is not used any more."""
    while not ended.wait(_BEAT):
        found = core()
        if found is None:
            return
        if not found.is_connected():
            found.end(_SHUT_DOWN)
            return
        del found  # else it would never be collected
        with suppress(Exception):
            actor.heartbeat.remote(life)


def _leave(ended: threading.Event, actor: Any, life: str, pid: int) -> None:
    was_ended = ended.is_set()
    ended.set()
    with suppress(Exception):  # the connection may have gone at exit
        if not was_ended and os.getpid() == pid and connected() is not None:
            actor.leave.remote(life)


_CHECKED_AS: Final = {"process": None}
"""Whether a function can be sent to a process is for the actor to say, which starts it."""


class RayGeneration:
    """Has the actor generate: pass it to ``start`` of a coordinator of either face."""

    def __init__(self, core: RayRolloutCore, function: Any, options: dict[str, Any]) -> None:
        self._core = core
        self._arguments = (function, options)
        self.name: Final = f"aioqueue-{core.name}"
        self.filled: NoQueue = NoQueue(core.name)

    def __repr__(self) -> str:
        return f"<generation of {self._core}>"

    def _start(self, coordinator: Any) -> None:
        """Start a task that waits for the end of the generation."""
        coordinator._spawn(
            self.name,
            partial(self._run, coordinator._core),
            cancel_at_stop=True,
            never_ran=lambda error=None: None,
        )

    async def _run(self, coordinator: Any) -> None:
        try:
            await self._core.wait_for("generate()", "generate", *self._arguments)
        except CancelledError:
            pass  # by the stop
        except Exception as error:
            coordinator.report(error, self.name)

    def _start_on_thread(self, coordinator: Any) -> list[threading.Thread]:
        """Start a thread that waits for the end of the generation."""
        thread = threading.Thread(
            target=self._run_blocking, args=(coordinator,), name=self.name, daemon=True
        )
        coordinator.register(thread)  # before it starts: a stop must find it
        thread.start()
        return [thread]

    def _run_blocking(self, coordinator: Any) -> None:
        try:
            self._core.wait_blocking_for("generate()", None, "generate", *self._arguments)
        except CancelledError:
            pass  # by the stop
        except Exception as error:
            coordinator._core.report(error, self.name)


class RolloutQueue(RemoteRolloutQueue[P, R]):
    """A `aioqueue.rl.RolloutQueue` in an actor of a Ray cluster.

    The program that gives it prompts makes it, and others find it by its name::

        rollouts = aioqueue.ray.RolloutQueue("grpo", prompts, batch_size=64, group_size=8)
        async with aioqueue.Coordinator() as coord:
            coord.start(rollouts.generate(generate))
            await coord.join()

        rollouts = aioqueue.ray.RolloutQueue("grpo")  # in the trainer
        for batch in rollouts.sync.batches(steps=1000):
            ...

    The actor generates, in its own process: `generate` sends it the function, and the coordinator
    that starts that stops it, and gets its failure. Prompts, functions and results are pickled with
    Ray's cloudpickle.

    A trainer in any program has the methods of a handle (`aioqueue.rl.RolloutQueue.share`), with
    the same guarantees. If its program dies, what it has is given back after half a minute of
    silence. A handle can be sent to other tasks and actors; so can batches, and parts of them.
    ``publishing`` takes no weights, and there is no ``policy``: put weights into the object store.

    The actor is detached: it stays until `delete`. If it dies, calls raise `WorkerDiedError`.

    Args:
        name: the name in the cluster.
        prompts: as for `aioqueue.rl.RolloutQueue`; ``None`` finds the queue of that name.
        ray: options of Ray for the actor, such as ``{"num_cpus": 4}``; by default it takes none.
        options: the other arguments of `aioqueue.rl.RolloutQueue`.

    Raises:
        InvalidArgumentError: an argument is not as described, the prompts cannot be pickled, or
            there is a queue of that name.
        LookupError: there are no prompts, and no queue of that name.
        RuntimeError: this program is not connected to a Ray cluster.
    """

    _core: RayRolloutCore  # type: ignore[assignment]

    def __init__(
        self,
        name: str,
        prompts: Iterable[P] | AsyncIterable[P] | None = None,
        *,
        ray: Any = None,
        **options: Any,
    ) -> None:
        checked_name(name)
        library = connected()
        if library is None:
            raise not_connected()
        if prompts is None:
            if options or ray is not None:
                raise InvalidArgumentError(
                    f"prompts: got None with {', '.join([*options, *(['ray'] if ray else [])])};"
                    " expected prompts, to make a queue, or the name only, to find one"
                )
            self._core = core_of(name)
            note_for_forks(self)
            return
        LocalRolloutQueue(prompts, **options)  # checks them here
        try:
            content = library.cloudpickle.dumps((prompts, options))
        except Exception as error:
            raise InvalidArgumentError(
                f"prompts: got what cannot be pickled, with its options, for the actor"
                f" ({exception_text(error)}); expected a source, or a sequence"
            ) from error
        placed = checked_options({"num_cpus": 0, **(ray or {})})
        try:
            actor = (
                remote_class()
                .options(name=_actor_name(name), namespace=NAMESPACE, lifetime="detached", **placed)
                .remote(name, content)
            )
        except ValueError as error:
            raise InvalidArgumentError(
                f"name: got {name!r}, and there is a RolloutQueue of that name; expected another"
                " one, or no prompts, to use that queue"
            ) from error
        self._core = RayRolloutCore(library, name, actor)
        _cores[name] = self._core
        note_for_forks(self)

    def delete(self) -> None:
        """End the actor. Programs that use the queue get a `WorkerDiedError`."""
        core = self._core
        core._check()
        core._ray.kill(core.actor)
        core._stop.detach()
        core.end("it was deleted")


def _actor_name(name: str) -> str:
    return f"rollouts {name}"


_cores: Final[weakref.WeakValueDictionary[str, RayRolloutCore]] = weakref.WeakValueDictionary()
_making: Final = threading.RLock()


def core_of(name: str) -> RayRolloutCore:
    """Return the core of this program's handles of a queue.

    Raises:
        LookupError: there is no queue of that name.
        RuntimeError: this program is not connected to a Ray cluster.
    """
    with _making:
        core = _cores.get(name)
        if core is not None and core.is_connected() and not core._ended.is_set():
            return core
        ray = connected()
        if ray is None:
            raise not_connected()
        try:
            actor = ray.get_actor(_actor_name(name), namespace=NAMESPACE)
        except ValueError:
            raise LookupError(f"there is no RolloutQueue {name!r} in this cluster") from None
        core = _cores[name] = RayRolloutCore(ray, name, actor)
        return core


def restored(world: World, name: str) -> Any:
    """Return a handle that was sent here."""
    face: Any = RolloutQueue.__new__(RolloutQueue)
    face._core = core_of(name)
    note_for_forks(face)
    return getattr(face, world)


def restored_step(name: str, number: int, grant: int) -> Step:
    """Return the step of a batch that was sent here."""
    return Step(core_of(name), number, grant)


class _RayStep:
    """A step on its way to another program, as part of a batch."""

    def __init__(self, name: str, step: Step) -> None:
        self._arguments = (name, step.number, step.grant)

    def __reduce__(self) -> tuple[Any, ...]:
        return restored_step, self._arguments
