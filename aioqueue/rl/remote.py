"""A `RolloutQueue` and its trainers in other processes: the contract, whatever carries messages.

The owner's side is `RolloutSessions`: each call from elsewhere that may wait is a task there, which
uses the queue as a local trainer does. So nothing is decided twice: the line of the trainers, the
gate of a publication and what a cancellation means are those of the queue.

The other side is a handle, `RemoteRolloutQueue` or `RemoteBlockingRolloutQueue`. A subclass of
`RemoteRolloutCore` sends what it says.

**A step** is handed over in two steps. It is granted, pickled and sent; the caller that runs on
with it confirms that, and only then does the next trainer in line get its turn. A call that is
cancelled before that gives the step back, and is over when the owner has said so.

**Deaths.** If a process dies, its calls end, a publication in which it was fails, and the steps
that it has and that are not done are given back, the newest first.

**Parts.** A batch refers to its step by the number of the grant. So any process in which a batch,
or a part of it, is unpickled can report it, any number of times.
"""

from __future__ import annotations

import asyncio
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from functools import partial
from threading import current_thread
from time import perf_counter
from types import EllipsisType, FrameType, TracebackType
from typing import Any, Final, Literal, Protocol, TypeVar

from aioqueue import Coordinator, Explanation, Latest
from aioqueue.base.arguments import checked_count, checked_flag
from aioqueue.base.display_text import on_one_line
from aioqueue.base.public_names import World
from aioqueue.base.tracebacks import SHORTENED
from aioqueue.coordination.cancellations import cancellation_to_raise, running_task
from aioqueue.coordination.tasks import wait_shielded
from aioqueue.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    WorkerDiedError,
    add_note,
)
from aioqueue.inputs import Retry
from aioqueue.rl.core import Publisher, Taker
from aioqueue.rl.queue import (
    BlockingRolloutQueue,
    Drain,
    RolloutQueue,
    RolloutQueueFace,
    RolloutQueueMethods,
    checked_drain,
    checked_timeout,
)
from aioqueue.rl.rollout import Batch, Group, Part, Publication, Step
from aioqueue.rl.statistics import RolloutStatistics
from aioqueue.system.forks import note_for_forks
from aioqueue.telemetry.explain.explanation import ExplainedWait
from aioqueue.telemetry.explain.registry import note_waits
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate, current_scopes
from aioqueue.worlds.waker import Owner

P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")

_UNSET: Final[Any] = ...


# The owner's side.


class CallAnswer(Protocol):
    """How one call from elsewhere is answered, once."""

    def pack(self, value: Any) -> Any:
        """Pickle an answer. Any thread may do that.

        Raises:
            Exception: it cannot be pickled.
        """

    def send(self, packed: Any) -> None:
        """Send what `pack` has returned."""

    def fail(self, error: BaseException) -> None:
        """Let the call raise."""


class Caller:
    """A process that uses the queue from elsewhere.

    Args:
        name: what explanations call it.

    Attributes:
        calls: those that may wait, and have not ended, by number.
        steps: those that it has, by their grants. Some may be done already.
        has_left: whether it has ended, or is not served any more.
    """

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.calls: dict[int, _WaitingCall] = {}
        self.steps: dict[int, Step] = {}
        self.has_left: bool = False


class _WaitingCall:
    """A call that waits, or a block, in a task of its own.

    Attributes:
        reply: what the caller says after it was answered.
        received: called when the caller has what it was answered with.
    """

    task: asyncio.Task[None]
    received: Callable[[], object] = bool

    def __init__(self, caller: Caller, number: int, answer: CallAnswer) -> None:
        self.caller = caller
        self.number = number
        self.answer = answer
        self.is_answered = False
        self.is_received = False
        self.reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def succeed(self, value: Any) -> None:
        packed = self.answer.pack(value)
        self.is_answered = True
        self.answer.send(packed)

    async def succeed_with(self, value: Any) -> None:
        """CallAnswer with something large. It is pickled on a thread."""
        try:
            packed = await asyncio.to_thread(self.answer.pack, value)
        except Exception as error:
            add_note(error, f"while pickling {value!r} for {self.caller.name}")
            raise
        self.is_answered = True
        self.answer.send(packed)


class _BlockFailedError(Exception):
    """The block of a publication has failed elsewhere, where that is reported."""


class RolloutSessions:
    """The calls of other processes to one queue. All methods are called in one event loop.

    Args:
        face: the queue.
    """

    def __init__(self, face: RolloutQueue[Any, Any]) -> None:
        self._face = face
        self._core = face._core
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self,
        caller: Caller,
        number: int,
        method: str,
        arguments: tuple[Any, ...],
        answer: CallAnswer,
    ) -> None:
        """Begin a call, which is answered now or later.

        Args:
            caller: who calls.
            number: the number of the call; each of a caller has another one.
            method: ``"take"``, ``"publish"``, ``"evaluate"``, ``"leave"``, ``"end_block"``,
                ``"note"``, or one of those that are answered at once.
            arguments: its arguments.
            answer: how it is answered.
        """
        if caller.has_left:
            return
        waiting = _WAITING.get(method)
        if waiting is not None:
            call = _WaitingCall(caller, number, answer)
            caller.calls[number] = call
            body = partial(waiting, self, call, *arguments)
            call.task = self._start(self._run(call, body), caller.name)
            call.task.add_done_callback(lambda _: caller.calls.pop(number, None))
        elif method == "leave":
            self._leave(caller, arguments[0], answer)
        elif method == "note":
            self.note(caller, *arguments)
            answer.send(answer.pack(None))
        elif method == "end_block":
            self._end_block(caller, arguments, answer)
        else:
            immediate = _IMMEDIATE.get(method)
            ask = _SLOW.get(method) if immediate is None else immediate
            if ask is None:
                answer.fail(AttributeError(f"{self._core} has no method {method!r} for others"))
            elif immediate is None:
                self._start(self._answer_later(ask, arguments, answer), caller.name)
            else:
                _answer(answer, ask, self._face, *arguments)

    def note(self, caller: Caller, what: str, arguments: tuple[Any, ...]) -> None:
        """Take a message that has no answer."""
        if what == "received":
            call = caller.calls.get(arguments[0])
            if call is not None and not call.reply.done():
                call.received()
                call.is_received = True
                call.reply.set_result(None)
            return
        number, grant, *part = arguments
        step = self.step_of(number, grant)
        if step is not None:
            caller.steps.pop(grant, None)
            if what == "done":
                self._core.part_done(step, *part)
            else:
                self._core.give_back(step)

    def step_of(self, number: int, grant: int) -> Step | None:
        """Return a step that was handed out; ``None`` if it was given back, or is done."""
        step = self._core.steps.get(number)
        return step if step is not None and step.grant == grant else None

    async def end(self, caller: Caller) -> None:
        """End all calls of a process that has gone, and give back what it has."""
        caller.has_left = True
        tasks = [call.task for call in caller.calls.values()]
        for task in tasks:
            task.cancel()
        # First its calls: one that waits would get what is given back.
        await asyncio.gather(*tasks, return_exceptions=True)
        held = self._core.machine.held
        for step in sorted(caller.steps.values(), key=lambda one: one.number, reverse=True):
            if step.number in held:
                self._core.give_back(step)
        caller.steps.clear()

    def schedule_end(self, caller: Caller) -> None:
        caller.has_left = True
        self._start(self.end(caller), caller.name)

    def _start(self, body: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(body, name=name)
        self._tasks.add(task)  # the event loop refers to tasks weakly
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, call: _WaitingCall, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await body()
        except _BlockFailedError:
            pass
        except Exception as error:
            if not call.is_answered:
                call.answer.fail(error)

    async def _answer_later(
        self, ask: Callable[..., Any], arguments: tuple[Any, ...], answer: CallAnswer
    ) -> None:
        await asyncio.to_thread(_answer, answer, ask, self._face, *arguments)

    async def _take(self, call: _WaitingCall, steps: int | None) -> None:
        core = self._core
        if steps is not None and core.given_out >= steps:
            call.succeed(None)
            return
        taker = Taker(Owner(call.task))
        call.received = partial(self._commit, call.caller, taker)
        try:
            core.join(taker)
            await taker.gate.wait(current_waker())
            if taker.batch is not None:
                await call.succeed_with(taker.batch)
                await call.reply
                return
        except BaseException:
            if not call.is_received:
                core.leave(taker)
            raise
        core.commit(taker)
        call.succeed(None)

    def _commit(self, caller: Caller, taker: Taker) -> None:
        """Note that a caller has its step. At once: its next message may say that it is done."""
        core = self._core
        batch = core.commit(taker)
        assert batch is not None
        step = batch._step
        assert step is not None
        caller.steps = {
            grant: one
            for grant, one in caller.steps.items()
            if one.number in core.machine.held and core.steps.get(one.number) is one
        }
        caller.steps[step.grant] = step

    async def _publish(self, call: _WaitingCall, drain: Drain, steps: int | None) -> None:
        async with self._face.publishing(drain=drain, steps=steps) as publication:
            call.succeed(tuple(publication))
            if not await call.reply:
                raise _BlockFailedError

    async def _evaluate(
        self, call: _WaitingCall, prompts: list[Any], generate: Any, size: int, has_priority: bool
    ) -> None:
        groups = await self._face.evaluate(
            prompts, generate, group_size=size, priority=has_priority
        )
        await call.succeed_with(groups)

    async def _generate(
        self, call: _WaitingCall, function: Any, options: Mapping[str, Any]
    ) -> None:
        """Generate here, for as long as the caller's coordinator runs."""
        core = self._core
        async with Coordinator(raise_single=True) as coordinator:
            coordinator.start(self._face.generate(function, **options))
            try:
                await coordinator.join()
            except asyncio.CancelledError:
                if call.caller.has_left:
                    error = WorkerDiedError(
                        f"{call.caller.name}, which had started the generation of {core}, has died"
                    )
                    core.apply(core.machine.stop, error)
                raise
        call.succeed(None)

    def _leave(self, caller: Caller, number: int, answer: CallAnswer) -> None:
        """End a call that was cancelled, and answer when it is over."""
        call = caller.calls.get(number)
        if call is None:
            answer.send(answer.pack(None))
            return
        call.task.cancel()
        call.task.add_done_callback(lambda _: answer.send(answer.pack(None)))

    def _end_block(self, caller: Caller, arguments: tuple[Any, ...], answer: CallAnswer) -> None:
        """End the block of a publication, and answer when its gate is open."""
        number, is_published = arguments
        call = caller.calls.get(number)
        if call is None:
            answer.fail(RuntimeError(f"the block of publishing() of {self._core} has ended"))
            return
        if not call.reply.done():
            call.reply.set_result(is_published)
        call.task.add_done_callback(lambda _: answer.send(answer.pack(None)))


def _answer(answer: CallAnswer, ask: Callable[..., Any], *arguments: Any) -> None:
    try:
        packed = answer.pack(ask(*arguments))
    except Exception as error:
        answer.fail(error)
    else:
        answer.send(packed)


_Face = RolloutQueue[Any, Any]

_WAITING: Final[Mapping[str, Callable[..., Coroutine[Any, Any, None]]]] = {
    "take": RolloutSessions._take,
    "publish": RolloutSessions._publish,
    "evaluate": RolloutSessions._evaluate,
    "generate": RolloutSessions._generate,
}

_IMMEDIATE: Final[Mapping[str, Callable[..., Any]]] = {
    "set": lambda face, options: face.set(**options),
    "close": _Face.close,
    "statistics": _Face.statistics,
    "step": lambda face: face.step,
    "version": lambda face: face.version,
    "seed": lambda face: face.seed,
}
_SLOW: Final[Mapping[str, Callable[..., Any]]] = {
    "explain": _Face.explain,
    "state_dict": _Face.state_dict,
    "load_state_dict": _Face.load_state_dict,
}
"""What may wait for a file, or for a process of the generation: on a thread."""


# The side of a handle.


class RemoteCall(ABC):
    """A call that may wait at the owner.

    Attributes:
        gate: opens when it was answered, or will never be.
        owner: the thread or task that waits.
        what: what it waits for, for explanations.
        began: when it began.
        number: its number at the owner; 0 before it is sent.
    """

    number: int = 0

    def __init__(self, owner: Owner, what: str) -> None:
        self.gate: Gate = Gate()
        self.owner: Owner = owner
        self.what: str = what
        self.began: float = perf_counter()

    @abstractmethod
    def outcome(self) -> Any:
        """Return the answer.

        Raises:
            Exception: what the call raises.
            WorkerDiedError: the owner has ended.
        """

    @property
    @abstractmethod
    def has_failed(self) -> bool:
        """Whether it was answered with a failure, or will not be: it is over at the owner."""


class RemoteRolloutCore(ABC):
    """What the faces of a handle share. A subclass sends the messages.

    Args:
        name: the name of the queue.
        place: where it is: ``"process 123"``.
        policy: the newest weights; ``None`` if the transport carries none.

    Attributes:
        publisher: the block of this process in which weights are published.
        over: open once the owner is known to have ended.
    """

    def __init__(self, name: str, place: str, policy: Latest[Any] | None) -> None:
        self.name: str = name
        self.place: str = place
        self._policy = policy
        self.over: Gate = Gate()
        self.shared: RemoteRolloutCore = self
        self.renew()
        self._waits = _RemoteWaits(self)
        note_waits(self._waits)

    def __str__(self) -> str:
        return f"RolloutQueue '{self.name}' of {self.place}"

    @property
    def policy(self) -> Latest[Any]:
        """The newest weights.

        Raises:
            RuntimeError: the transport carries none.
        """
        if self._policy is None:
            raise RuntimeError(f"{self} has no policy: its transport carries no weights")
        return self._policy

    def renew(self) -> None:
        """Begin anew in a fork, in which nobody waits."""
        self.publisher: Publisher | None = None
        self.waiting: dict[RemoteCall, None] = {}
        self.answered: int = 0

    # What a transport does.

    @abstractmethod
    def pickled(self, world: World) -> tuple[Any, ...]:
        """Return what a face is pickled as."""

    @abstractmethod
    def new_call(self, owner: Owner, what: str) -> RemoteCall:
        """Make a call."""

    @abstractmethod
    def send(self, call: RemoteCall, method: str, *arguments: Any) -> None:
        """Send a call, whose gate opens when it is answered.

        Raises:
            Exception: an argument cannot be pickled.
            WorkerDiedError: the owner has ended.
        """

    @abstractmethod
    def note(self, what: str, *arguments: Any, call: RemoteCall | None = None) -> None:
        """Send a message that is not answered, by the connection of a call if there is one.

        Raises:
            WorkerDiedError: the owner has ended.
        """

    @abstractmethod
    def ask(self, method: str, *arguments: Any) -> Any:
        """Make a call that does not wait there, and block for its answer.

        Raises:
            Exception: what it raises.
            WorkerDiedError: the owner has ended.
        """

    @abstractmethod
    def sent_step(self, step: Step) -> object:
        """Return what becomes the step in another process."""

    def leave(self, call: RemoteCall) -> Gate | None:
        """End a call at the owner; return the gate that opens when it is over there."""
        if not call.number or call.has_failed:
            return None
        leaving = self.new_call(call.owner, call.what)
        try:
            self.send(leaving, "leave", call.number)
        except WorkerDiedError:
            return None
        return leaving.gate

    # What batches report: see `StepReports`.

    def part_done(self, step: Step, part: Part) -> None:
        self.note("done", step.number, step.grant, part)

    def give_back(self, step: Step) -> None:
        self.note("give_back", step.number, step.grant)

    def generation(self, function: Any, **options: Any) -> Any:
        """Return what has the owner generate.

        Raises:
            RuntimeError: it does so by itself.
        """
        raise RuntimeError(
            f"{self} is a handle, and rollouts are generated where the queue is: call generate()"
            " there, with where='process' for a generation in a process of its own"
        )

    def check_weights(self) -> None:
        """Check that weights can be published with `policy`.

        Raises:
            InvalidArgumentError: they cannot.
        """
        if self._policy is None:
            raise InvalidArgumentError(
                f"weights: {self} takes none: put them into the object store (`ray.put`), or send"
                " them to the engine in the block"
            )

    # Calls that wait.

    async def wait_for(self, what: str, method: str, *arguments: Any) -> tuple[RemoteCall, Any]:
        """Make a call, and wait for its answer in a task.

        Returns:
            The call, and its answer.

        Cancellation:
            A cancelled call has changed nothing.
        """
        waker = current_waker()
        call = self.new_call(Owner(waker.runner()), what)
        self.waiting[call] = None
        try:
            self.send(call, method, *arguments)
            await call.gate.wait(waker, until_stop=True)
            return call, self._outcome(call, method)
        except BaseException as error:
            heard = self.leave(call)
            if heard is not None and not isinstance(error, GeneratorExit):
                await wait_shielded(heard)
            raise
        finally:
            self.waiting.pop(call, None)

    def wait_blocking_for(
        self, what: str, timeout: float | None, method: str, *arguments: Any
    ) -> tuple[RemoteCall, Any]:
        """Do the same in a thread."""
        call = self.new_call(Owner(current_thread()), what)
        self.waiting[call] = None
        try:
            self.send(call, method, *arguments)
            if not call.gate.wait_blocking(timeout, current_scopes()):
                raise DeadlineExceededError(
                    f"{what} of {self} has waited its timeout of {timeout:.4g} s"
                )
            return call, self._outcome(call, method)
        except BaseException:
            heard = self.leave(call)
            if heard is not None:
                heard.wait_blocking()
            raise
        finally:
            self.waiting.pop(call, None)

    def _outcome(self, call: RemoteCall, method: str) -> Any:
        """Return the answer of a call. From here on it is the caller's."""
        found = call.outcome()
        self.answered += 1
        if method == "take" and found is not None:
            self.note("received", call.number, call=call)
        return found


class _RemoteWaits:
    """Who waits here for the owner, for explanations. The owner is not asked: it may be what
    everybody waits for."""

    def __init__(self, core: RemoteRolloutCore) -> None:
        self._core = weakref.ref(core)

    def _calls(self) -> list[RemoteCall]:
        core = self._core()
        return [] if core is None else list(core.waiting)

    def waits(self, frames: Mapping[int, FrameType]) -> Iterable[ExplainedWait]:
        now, core = perf_counter(), self._core()
        for call in self._calls():
            what = f"waits in {call.what} of {core}"
            yield ExplainedWait(call.owner.name, what, now - call.began, key=call.owner.key)

    def waits_move(self) -> Hashable:
        core = self._core()
        return None if core is None else core.answered

    def longest_of_waits(self) -> float:
        now = perf_counter()
        return max((now - call.began for call in self._calls()), default=0.0)

    def waits_for(self, coordinator: object) -> bool:
        return False


class RemoteMethods(RolloutQueueMethods[P, R]):
    """What never waits, in either face of a handle: short trips to the owner."""

    _core: RemoteRolloutCore  # type: ignore[assignment]

    def __repr__(self) -> str:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return on_one_line(f"<{kind} '{self.name}', of {self._core.place}>")

    @property
    def seed(self) -> int:
        found: int = self._core.ask("seed")
        return found

    @property
    def step(self) -> int:
        found: int = self._core.ask("step")
        return found

    @property
    def version(self) -> int:
        found: int = self._core.ask("version")
        return found

    def generate(
        self,
        function: Any,
        *,
        retry: Retry | None = None,
        timeout: float | None = None,
        where: Literal["task", "thread", "process"] | None = None,
        workers: int | None = None,
    ) -> Any:
        return self._core.generation(
            function, retry=retry, timeout=timeout, where=where, workers=workers
        )

    def set(
        self,
        *,
        batch_size: float | EllipsisType = ...,
        steps_ahead: float | EllipsisType = ...,
        max_in_flight: int | EllipsisType | None = ...,
    ) -> None:
        options = {
            "batch_size": batch_size,
            "steps_ahead": steps_ahead,
            "max_in_flight": max_in_flight,
        }
        changed = {name: value for name, value in options.items() if value is not ...}
        self._core.ask("set", changed)

    def close(self) -> None:
        self._core.ask("close")

    def state_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = self._core.ask("state_dict")
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._core.ask("load_state_dict", dict(state))

    def statistics(self) -> RolloutStatistics:
        found: RolloutStatistics = self._core.ask("statistics")
        return found

    def explain(self) -> Explanation:
        found: Explanation = self._core.ask("explain")
        return found


class RemoteRolloutQueue(RemoteMethods[P, R], RolloutQueue[P, R]):
    """The async face of a handle."""

    @property
    def sync(self) -> BlockingRolloutQueue[P, R]:
        face: Any = RemoteBlockingRolloutQueue.__new__(RemoteBlockingRolloutQueue)
        face._core, face._aio = self._core, self
        note_for_forks(face)
        found: BlockingRolloutQueue[P, R] = face
        return found

    async def _take(self, what: str, steps: int | None = None) -> Batch[P, R] | None:
        self._check_not_publishing(what, running_task())
        _, batch = await self._core.wait_for(what, "take", steps)
        found: Batch[P, R] | None = batch
        return found

    def publishing(
        self, weights: Any = ..., *, drain: Drain = False, steps: int | None = None
    ) -> Any:
        return _AsyncRemotePublishing(self, weights, drain, steps)

    async def evaluate(
        self,
        prompts: Iterable[Any],
        generate: Any = None,
        *,
        group_size: int = 1,
        priority: bool = True,
    ) -> list[Group[Any, Any]]:
        with SHORTENED:
            self._check_not_publishing("evaluate()", running_task())
            arguments = _checked_evaluation(prompts, generate, group_size, priority)
            _, groups = await self._core.wait_for("evaluate()", "evaluate", *arguments)
            found: list[Group[Any, Any]] = groups
            return found


class RemoteBlockingRolloutQueue(RemoteMethods[P, R], BlockingRolloutQueue[P, R]):
    """The blocking face of a handle."""

    def _take(
        self, what: str, steps: int | None = None, timeout: float | None = None
    ) -> Batch[P, R] | None:
        timeout = checked_timeout(timeout)
        self._check_may_block(what)
        self._check_not_publishing(what, current_thread())
        _, batch = self._core.wait_blocking_for(what, timeout, "take", steps)
        found: Batch[P, R] | None = batch
        return found

    def publishing(
        self,
        weights: Any = ...,
        *,
        drain: Drain = False,
        steps: int | None = None,
        timeout: float | None = None,
    ) -> Any:
        block = _RemotePublishing(self, weights, drain, steps)
        block.timeout = checked_timeout(timeout)
        return block

    def evaluate(
        self,
        prompts: Iterable[Any],
        generate: Any = None,
        *,
        group_size: int = 1,
        priority: bool = True,
        timeout: float | None = None,
    ) -> list[Group[Any, Any]]:
        with SHORTENED:
            timeout = checked_timeout(timeout)
            self._check_may_block("evaluate()")
            self._check_not_publishing("evaluate()", current_thread())
            arguments = _checked_evaluation(prompts, generate, group_size, priority)
            _, groups = self._core.wait_blocking_for("evaluate()", timeout, "evaluate", *arguments)
            found: list[Group[Any, Any]] = groups
            return found


for _face, _local in (
    (RemoteRolloutQueue, RolloutQueue),
    (RemoteBlockingRolloutQueue, BlockingRolloutQueue),
):
    # Handles look like what they are handles of.
    _face.__module__, _face.__name__ = _local.__module__, _local.__name__
    _face.__qualname__, _face.__doc__ = _local.__qualname__, _local.__doc__
del _face, _local


def _checked_evaluation(
    prompts: Iterable[Any], generate: Any, group_size: Any, priority: Any
) -> tuple[Any, ...]:
    size = checked_count(group_size, "group_size", least=1)
    return list(prompts), generate, size, checked_flag(priority, "priority")


class _RemoteBlock:
    """A block in which weights are published, in either face of a handle."""

    def __init__(
        self, rollouts: RolloutQueueFace[Any, Any], weights: Any, drain: Drain, steps: int | None
    ) -> None:
        checked_drain(drain)
        self._rollouts: Any = rollouts
        self._core: RemoteRolloutCore = rollouts._core  # type: ignore[assignment]
        if weights is not _UNSET:
            self._core.check_weights()
        self._weights = weights
        self._arguments = (drain, steps)
        self._call: RemoteCall | None = None

    def _begin(self, call: RemoteCall, publication: tuple[int, int]) -> Publication:
        self._call = call
        self._core.publisher = Publisher(call.owner)
        return Publication(*publication)

    def _publish(self, error: BaseException | None) -> BaseException | None:
        """Publish the weights, after a block without an error; return what that raises."""
        self._core.publisher = None
        if error is None and self._weights is not _UNSET:
            try:
                self._core.policy.publish(self._weights)
            except BaseException as failure:
                return failure
        return error

    def _send_end(self, *, is_published: bool) -> RemoteCall:
        call = self._call
        assert call is not None
        ending = self._core.new_call(call.owner, "publishing()")
        self._core.send(ending, "end_block", call.number, is_published)
        return ending


class _AsyncRemotePublishing(_RemoteBlock):
    async def __aenter__(self) -> Publication:
        with SHORTENED:
            self._rollouts._check_not_publishing("publishing()", running_task())
            found = await self._core.wait_for("publishing()", "publish", *self._arguments)
            return self._begin(*found)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with SHORTENED:
            failure = self._publish(error)
            try:
                ending = self._send_end(is_published=failure is None)
            except WorkerDiedError:
                if failure is None:
                    raise
            else:
                interruptions: list[None] = []
                # The gate must open there, even if the caller is cancelled here.
                await wait_shielded(ending.gate, cancelled=lambda: interruptions.append(None))
                if failure is None:
                    ending.outcome()
                    if interruptions:
                        raise await cancellation_to_raise()
            if failure is not error:
                assert failure is not None
                raise failure


class _RemotePublishing(_RemoteBlock):
    timeout: float | None = None

    def __enter__(self) -> Publication:
        with SHORTENED:
            self._rollouts._check_may_block("publishing()")
            self._rollouts._check_not_publishing("publishing()", current_thread())
            found = self._core.wait_blocking_for(
                "publishing()", self.timeout, "publish", *self._arguments
            )
            return self._begin(*found)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with SHORTENED:
            failure = self._publish(error)
            try:
                ending = self._send_end(is_published=failure is None)
            except WorkerDiedError:
                if failure is None:
                    raise
            else:
                ending.gate.wait_blocking()
                if failure is None:
                    ending.outcome()
            if failure is not error:
                assert failure is not None
                raise failure
