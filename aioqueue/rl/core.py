"""The state of a `RolloutQueue`, shared by its faces: the machine, and who waits for it.

Every event goes through `RolloutCore.apply`: the machine decides under the lock, and what it asks
for is done after the release (`_perform`). Threads may do it in another order, without harm. A
call that is started after it was cancelled finds that it may not enter; a cancellation that comes
before its start finds nothing to cancel.

A trainer waits as a `Taker`, in the order of the requests. Only the first one has asked the
machine. A step is granted to it under the lock, and is handed out when it *commits*: in asyncio a
task may be cancelled after the grant and before it runs. Then the step is given back, which is
always possible, since nobody else is granted one in between.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from itertools import islice
from time import perf_counter
from types import FrameType
from typing import Any, Final, NamedTuple, Protocol

from aioqueue import Latest
from aioqueue.base.arguments import checked_count
from aioqueue.core.meters import Durations
from aioqueue.errors import InvalidArgumentError, add_note, counted
from aioqueue.items.value_text import short_value
from aioqueue.rl.clock import IdleTimes
from aioqueue.rl.machine import (
    NOTHING,
    CallState,
    Effects,
    MachineGroup,
    RolloutCall,
    RolloutMachine,
    Stored,
)
from aioqueue.rl.prompts import Mark, PromptReader
from aioqueue.rl.rollout import Batch, Group, Part, Rollout, Step, StepReports
from aioqueue.rl.state import ResultFolder
from aioqueue.system.locks import (
    call_with_lock,
    held_here_check,
    machine_lock,
    synchronized_move,
)
from aioqueue.telemetry.explain.explanation import format_seconds
from aioqueue.telemetry.explain.stacks import place_of, stack_of
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate
from aioqueue.worlds.waker import Owner, in_trio, running_loop

_log: Final = logging.getLogger("aioqueue")
_numbers = itertools.count(1)
_grants = itertools.count(1)
_main_thread: Final = threading.main_thread().ident
_RUNNING: Final = CallState.RUNNING


class Prompt(NamedTuple):
    """A prompt, as the machine keeps it.

    Attributes:
        value: the prompt of the user.
        mark: where the run was in front of it; ``None`` for an evaluation.
    """

    value: Any
    mark: Mark


class Judge(NamedTuple):
    """The functions of the user that see a complete group.

    Attributes:
        accept: ``accept=``.
        is_async: whether it is a coroutine function.
        weigh: ``weigh=``.
    """

    accept: Callable[[Group[Any, Any]], Any] | None
    is_async: bool
    weigh: Callable[[Group[Any, Any]], float] | None


class RolloutHost(Protocol):
    """What runs the calls of a function, in one event loop, with its threads."""

    def start(self, call: RolloutCall) -> None:
        """Start a call; from any thread."""

    def cancel(self, call: RolloutCall) -> None:
        """Cancel a call that has started, if that is possible; from any thread."""

    def spawn(self, body: Callable[[], Awaitable[object]]) -> None:
        """Run a coroutine function of the queue's own in the event loop; from any thread."""

    def pull(self, ordinal: int) -> None:
        """Read the prompt with this ordinal, and report it; from any thread."""

    def running_thing(self, call: RolloutCall) -> object:
        """Return the task or thread that runs a call; ``None`` if it does not run here."""

    def remote_place_of(self, call: RolloutCall) -> str:
        """Return where a call in another process is; empty if it is here, or not known."""


class CallsElsewhere(Protocol):
    """Calls that run in another process, where the gate for their first steps is, too."""

    def revoke(self, *, is_parking: bool) -> list[RolloutCall] | None:
        """Have no call begin until `reopen`. Called under the lock.

        Returns:
            The calls that were granted, if none can have begun. ``None`` if the other process must
            confirm it: `RolloutCore.child_closed`.
        """

    def reopen(self, version: int) -> None:
        """Let calls begin, with weights that contain so many steps. Called under the lock."""

    def set_limit(self, limit: float) -> None:
        """Report how many calls may run at once."""


class Evaluation:
    """One prompt of `RolloutQueue.evaluate`.

    Attributes:
        number: its place among the prompts of the evaluation.
        host: what runs its rollouts; ``None`` for the host of the training.
        work: what generates them; ``None`` for the function of the training.
        owner: the thread or task that waits for them.
        began: when it began to wait.
        ended: opens when they have ended.
        group: the result.
        error: what has ended it without a result.
    """

    def __init__(self, number: int, host: RolloutHost | None, work: Any, owner: Owner) -> None:
        self.number: int = number
        self.host: RolloutHost | None = host
        self.work: Any = work
        self.owner: Owner = owner
        self.began: float = perf_counter()
        self.ended: Gate = Gate()
        self.group: Group[Any, Any] | None = None
        self.error: BaseException | None = None
        self.machine_group: MachineGroup | None = None


class GroupPayload:
    """What the queue keeps with a group of the machine."""

    __slots__ = ("evaluation", "public", "rollouts")

    def __init__(self, size: int, evaluation: Evaluation | None = None) -> None:
        self.rollouts: list[Rollout[Any] | None] = [None] * size
        self.public: Group[Any, Any] | None = None
        self.evaluation: Evaluation | None = evaluation


class Taker:
    """A trainer that waits for a step.

    Attributes:
        gate: opens when `batch` is there, or the loop ends.
        batch: the step that it was granted.
        is_end: whether there are no more.
        began: when it began to wait.
        owner: the thread or task that waits.
    """

    def __init__(self, owner: Owner) -> None:
        self.gate: Gate = Gate()
        self.batch: Batch[Any, Any] | None = None
        self.is_end: bool = False
        self.began: float = perf_counter()
        self.owner: Owner = owner


class Publisher:
    """A block of `publishing`.

    Attributes:
        owner: its task or thread.
        gate: opens when it is its turn.
        closed: opens when nothing starts any more.
        drained: opens when what it waits for has happened.
        began: when its turn began.
        drain: what it waits for.
    """

    def __init__(self, owner: Owner) -> None:
        self.owner: Owner = owner
        self.gate: Gate = Gate()
        self.closed: Gate = Gate()
        self.drained: Gate = Gate()
        self.began: float = perf_counter()
        self.drain: str = "no"


def check_answer(is_accepted: Any) -> None:
    """Check what ``accept`` has returned.

    Raises:
        InvalidArgumentError: nothing.
    """
    if is_accepted is None:
        raise InvalidArgumentError(
            "accept: returned None; expected whether to train on the group: True or False"
        )


class RolloutCore:
    """The state of one queue.

    Attributes:
        machine: the rules.
        host: what generates for the training; ``None`` before the start and after the end.
        given_out: how many steps trainers have received.
        over: opens when nothing remains to be generated for the training.
        publication_over: open while no weights are published.
        publisher: the block in which weights are published.
        takers: the trainers that wait, in order.
        calls: what runs, with the time of its start.
    """

    def __init__(
        self,
        machine: RolloutMachine,
        prompts: PromptReader,
        judge: Judge,
        group_size: int | Callable[[Any], int],
        seed: int,
        name: str | None,
    ) -> None:
        self.machine: RolloutMachine = machine
        self.next_mark: tuple[int, Mark] = (0, prompts.mark())
        """The ordinal of the prompt that comes next, and where the run is in front of it."""
        self.prompts: PromptReader = prompts
        self.judge: Final = judge
        self.group_size: Final = group_size
        self.seed: int = seed
        self.name: Final = name or f"RolloutQueue-{next(_numbers)}"
        self.policy: Latest[Any] = Latest(name=f"{self.name}.policy")
        self.host: RolloutHost | None = None
        self.begun: Gate = Gate()
        """Open once the generation has its host, or has ended without one."""
        self.work: Any = None
        """The function of the training, a `Work`."""
        self.coordinator: object = None
        """The core of the coordinator in which it generates."""
        self.waits: object = None
        self.stage: object = None
        """What monitors see of the generation; they do not keep it alive."""
        self.pulled_at: float = 0.0
        self.results: int = 0
        """How many rollouts have a result."""
        self.retried: int = 0
        self.lost: int = 0
        """How many rollouts have failed for good."""
        self.durations: Durations = Durations()
        """Of calls that have ended, while `is_measured`."""
        self.is_measured: bool = False
        """Whether a monitor watches the generation."""
        self.has_started: bool = False
        self.given_out: int = 0
        self.over: Gate = Gate()
        self.publication_over: Gate = Gate()
        self.publication_over.open()
        self.publisher: Publisher | None = None
        self.publishers: deque[Publisher] = deque()
        self.takers: deque[Taker] = deque()
        self.steps: dict[int, Step] = {}
        """Those that were handed out, by number. Some may be done already."""
        self.calls: dict[RolloutCall, float] = {}
        self.judging: Final[dict[MachineGroup, tuple[float, Owner]]] = {}
        """The groups that a coroutine function for ``accept`` decides about: since when, and in
        which task."""
        self.first_ordinal: int = 0
        """The ordinal of the prompt that the reader gives first."""
        self.most_threads: int | None = None
        self._reopens = False
        self.is_revoking: bool = False
        """Whether a publication waits for other processes, in which nothing may start."""
        self._generating_children: list[CallsElsewhere] = []
        self._revoked: set[CallsElsewhere] = set()
        """Those that have not confirmed it."""
        self._turned_away: list[RolloutCall] = []
        """Calls that come back from them meanwhile."""
        self.stored: dict[int, tuple[Stored, Group[Any, Any]]] = {}
        self.times: IdleTimes = IdleTimes()
        self.max_in_flight: int | None = None
        self.seed_was_drawn: bool = False
        self.folder: ResultFolder | None = None
        self.shared: Any = None
        """Its sessions with other processes, once it is shared."""
        self.elsewhere: StepReports | None = None
        """In a fork: the handle of the queue that was shared, to which batches report."""
        self._lock = machine_lock()
        self._is_deciding = held_here_check(self._lock)
        self._local = threading.local()

    def __str__(self) -> str:
        return f"RolloutQueue '{self.name}'"

    def renew(self) -> None:
        """Begin anew in a fork: nobody holds a new lock there."""
        self._lock = machine_lock()
        self._is_deciding = held_here_check(self._lock)

    def limit(self) -> float:
        """Return how many rollouts may run at once."""
        machine = self.machine
        limit: float = math.inf
        if self.max_in_flight is not None:
            limit = self.max_in_flight
        elif isinstance(self.group_size, int) and not machine.is_weighed:
            slots = math.floor(machine.batch_size * (machine.steps_ahead + 1) + 1e-9)
            limit = self.group_size * slots
        return limit if self.most_threads is None else min(limit, self.most_threads)

    # ---- the generation ----------------------------------------------------------------------

    def begin(self, most_threads: int | None) -> None:
        """Begin to generate, with so many threads at most."""
        self.most_threads = most_threads
        self.machine.limit = self.limit()
        self.apply(self.machine.begin)

    async def wait_until_over(self) -> None:
        """Wait until nothing remains to be generated."""
        while True:
            await self.over.wait(current_waker())
            if call_with_lock(self._lock, self._close_host):
                return

    def _close_host(self) -> bool:
        """Let the host start no more calls, unless an evaluation needs it; return whether so."""
        if self.machine.is_stopped:
            return True  # the calls are cancelled, and report their ends
        if self.machine.evaluations:
            self._reopens = True
            self.over.shut()
            return False
        self.host = None
        return True

    # ---- events and effects ------------------------------------------------------------------

    def apply(self, event: Callable[..., Any], *args: Any) -> Any:
        """Report an event to the machine, and do what it asks for.

        Args:
            event: a method of the machine, or of this object, that returns effects, or a result
                together with effects.
            args: its arguments.

        Returns:
            The result, if there is one.
        """
        if self._is_deciding():
            # A signal handler, or a finalizer, in the middle of another event of this thread.
            # Nobody joins the thread: this one holds the lock that it needs.
            call = partial(self.apply, event, *args)
            threading.Thread(target=call, name="aioqueue-deferred-move", daemon=True).start()
            return None
        if running_loop() is None and threading.get_ident() == _main_thread and not in_trio():
            # Ctrl-C may raise anywhere in a plain script, and must not leave an event half-made.
            return self._apply_elsewhere(event, args)
        return self._apply_here(event, *args)

    def _apply_here(self, event: Callable[..., Any], *args: Any) -> Any:
        """Do the same in code of an event loop or of a worker, which Ctrl-C does not interrupt."""
        result = call_with_lock(self._lock, self._decide, event, args)
        if type(result) is tuple:
            result, effects = result
        else:
            effects, result = result, None
        if effects is not NOTHING:
            self._perform(effects)
        return result

    def _apply_elsewhere(self, event: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Do the same on a thread, and wait for it. If Ctrl-C ends the wait, it is done even so."""
        results: list[Any] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(self.apply(event, *args))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="aioqueue-move", daemon=True)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    def _decide(self, event: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        decided = event(*args)
        self._note(decided[1] if type(decided) is tuple else decided)
        return decided

    def _note(self, effects: Effects) -> None:
        """Do under the lock what belongs to an event of the machine."""
        if effects is not NOTHING:
            if effects.step is not None:
                self._grant(effects)
            elif effects.is_end:
                self.takers[0].is_end = True
        self.times.note(self.machine)

    def _grant(self, effects: Effects) -> None:
        assert effects.step is not None
        step, version = effects.step, self.machine.version
        groups = []
        for group in effects.groups:
            if group.is_refused:
                continue
            public = group.payload.public
            public.staleness = 0 if group.version is None else step - group.version
            groups.append(public)
        if len(self.steps) > len(self.machine.held):
            self.steps = {
                number: held for number, held in self.steps.items() if number in self.machine.held
            }
        held = self.steps[step] = Step(self, step, next(_grants))
        self.takers[0].batch = Batch(held, step, version, groups)

    def _perform(self, effects: Effects) -> None:
        """Do what the machine asks for. An event that comes out of that is done here, too.

        In a loop and not by recursion: a task may run as soon as it is made, and end at once.
        """
        pending: list[Effects] | None = getattr(self._local, "pending", None)
        if pending is not None:
            pending.append(effects)
            return
        pending = self._local.pending = [effects]
        try:
            for one in pending:
                self._perform_one(one)
        finally:
            self._local.pending = None

    def _perform_one(self, effects: Effects) -> None:
        for call in effects.cancels:
            host = self._host_of(call)
            if host is not None:
                host.cancel(call)
        if effects.pull is not None and self.host is not None:
            self.pulled_at = perf_counter()
            self.host.pull(effects.pull)
        for call in effects.starts:
            evaluation = call.group.payload.evaluation
            host = self.host if evaluation is None else evaluation.host or self.host
            if host is None:
                self.apply(self.machine.call_ended, call)
            else:
                host.start(call)
        for group in effects.judge:
            self._judge(group)
        if effects.step is not None or effects.is_end:
            for taker in list(self.takers)[:1]:
                if taker.batch is not None or taker.is_end:
                    taker.gate.open()
        if effects.is_drained and self.publisher is not None:
            self.publisher.drained.open()
        for group in effects.evaluated:
            self._evaluated(group)
        if effects.is_stopped or effects.is_end:
            self.over.open()
        if effects.is_end:
            self._warn_of_no_step()

    def _warn_of_no_step(self) -> None:
        """Log that everything was refused or dropped: the loop of the trainer does not say so."""
        machine = self.machine
        dropped = sum(machine.dropped.values())
        if machine.step or machine.is_stopped or not machine.refused + dropped:
            return
        _log.warning(
            "%s has ended without a step: %s refused, %s dropped",
            self,
            counted(machine.refused, "group"),
            counted(dropped, "group"),
        )

    def _host_of(self, call: RolloutCall) -> RolloutHost | None:
        payload = call.group.payload
        if payload is not None and payload.evaluation is not None:
            return payload.evaluation.host or self.host
        return self.host

    # ---- calls -------------------------------------------------------------------------------

    def enter(self, call: RolloutCall, kind: type[Rollout[Any]]) -> Rollout[Any] | None:
        """Report that the first step of a call runs; return its rollout, or ``None`` to end."""
        if not self._enter(call):
            self._apply_here(self.machine.turned_away, call)
            return None
        return kind(self, call, self.seed)

    @synchronized_move
    def _enter(self, call: RolloutCall) -> bool:
        if not self.machine.enter(call):
            return False
        self.calls[call] = perf_counter()
        return True

    def entered(self, call: RolloutCall, kind: type[Rollout[Any]]) -> Rollout[Any] | None:
        """Report that the first step of a call has run in another process.

        Returns:
            Its rollout; ``None`` if it was cancelled meanwhile: its end is reported all the same.
        """
        is_wanted = call_with_lock(self._lock, self.machine.enter, call)
        self.calls[call] = perf_counter()
        return kind(self, call, self.seed) if is_wanted else None

    def turn_away(self, call: RolloutCall) -> None:
        """Report that a call of another process has not begun, and will not."""
        self.apply(self._turn_away, call)

    def _turn_away(self, call: RolloutCall) -> Effects:
        if self.is_revoking:
            # The rules would start it again at once: the publication has not begun for them.
            self._turned_away.append(call)
            return NOTHING
        return self.machine.turned_away(call)

    def finished(self, call: RolloutCall, rollout: Rollout[Any], result: Any) -> None:
        """Report what the user's function has returned."""
        rollout.result = result
        rollout._end()
        effects = self._finish(call, rollout)
        if effects is not NOTHING:
            self._perform(effects)

    @synchronized_move
    def _finish(self, call: RolloutCall, rollout: Rollout[Any]) -> Effects:
        # What `_decide` does, without what it takes to do that for any event: thousands of rollouts
        # may end in one turn of the event loop.
        self._forget(call)
        self.results += 1
        if call.state is _RUNNING:
            call.group.payload.rollouts[call.index] = rollout
        effects = self.machine.finished(call)
        if effects is not NOTHING or not self.machine.running:
            self._note(effects)
        return effects

    def call_ended(self, call: RolloutCall) -> None:
        """Report that a cancelled call has ended."""
        self.apply(self._call_ended, call)

    def _call_ended(self, call: RolloutCall) -> Effects:
        self._forget(call)
        return self.machine.call_ended(call)

    def _forget(self, call: RolloutCall) -> None:
        """Note the end of a call. Called under the lock."""
        began = self.calls.pop(call, None)
        if self.is_measured and began is not None:
            self.durations.add(perf_counter() - began)

    def failed(self, call: RolloutCall, error: BaseException, delay: float | None) -> bool:
        """Report that a call has raised.

        Args:
            call: the call.
            error: what it has raised.
            delay: seconds until it is tried again; ``None`` for never.

        Returns:
            Whether the caller has to report `RolloutMachine.due` after these seconds.
        """
        if not call.is_current:
            self.call_ended(call)
            return False
        self._describe(call, error)
        retry = "no" if delay is None else "later" if delay else "now"
        self.apply(self._failed, call, error, retry)
        return retry == "later"

    def _failed(self, call: RolloutCall, error: BaseException, retry: Any) -> Effects:
        self._forget(call)
        self._count_failure(call, retry)
        return self.machine.failed(call, error, retry)

    def _count_failure(self, call: RolloutCall, retry: str) -> None:
        if call.is_current:
            self.lost += retry == "no"
            self.retried += retry != "no"

    def expired(self, call: RolloutCall, error: BaseException, delay: float | None) -> bool:
        """Report that a call which cannot be cancelled has taken too long; see `failed`."""
        if not call.is_current:
            return False
        self._describe(call, error)
        retry = "no" if delay is None else "later" if delay else "now"
        self.apply(self._expired, call, error, retry)
        return retry == "later"

    def _expired(self, call: RolloutCall, error: BaseException, retry: Any) -> Effects:
        self._count_failure(call, retry)
        return self.machine.expired(call, error, retry)

    def _describe(self, call: RolloutCall, error: BaseException) -> None:
        which = f"attempt {call.attempt}, version {call.version}"
        add_note(error, f"{self.describe_call(call)}, {which}, in {self}")

    @staticmethod
    def describe_call(call: RolloutCall) -> str:
        """Return how messages call a rollout."""
        group = call.group
        where = "of an evaluation" if group.is_evaluation else f"ordinal {group.ordinal}"
        return f"rollout {call.index} of prompt {short_value(group.prompt.value)} ({where})"

    # What rollouts report: see `Reports`.

    @property
    def version(self) -> int:
        return self.machine.version

    def freeze(self, call: RolloutCall) -> None:
        self.apply(self.machine.freeze, call)

    def parks(self, call: RolloutCall) -> bool:
        return bool(self.apply(self.machine.park, call))

    def unpark(self, call: RolloutCall) -> None:
        self.apply(self.machine.unpark, call)

    # ---- prompts and groups ------------------------------------------------------------------

    def admit(self, prompt: Prompt) -> None:
        """Report the prompt that the machine has asked for."""
        try:
            size = self.group_size
            if callable(size):
                size = checked_count(size(prompt.value), "group_size", least=1)
        except BaseException as error:
            add_note(error, f"in group_size of prompt {short_value(prompt.value)}, in {self}")
            self.apply(self.machine.stop, error)
            if not isinstance(error, Exception):
                raise
            return
        self.apply(self._admit, prompt, size)

    def _admit(self, prompt: Prompt, size: int) -> Effects:
        self.next_mark = (self.machine.next_ordinal + 1, self.prompts.mark())
        stored = self.stored.pop(self.machine.next_ordinal, None)
        if stored is None:
            return self.machine.prompt(prompt, size)[1]
        group, effects = self.machine.prompt(prompt, size, stored[0])
        if group is not None:
            public = group.payload.public = stored[1]
            public.prompt = prompt.value
        return effects

    def _judge(self, group: MachineGroup) -> None:
        """Let the user's functions see a complete group, and report what they say."""
        if self.judge.is_async:
            assert self.host is not None
            self.host.spawn(partial(self._judge_async, group))
            return
        accept = self.judge.accept
        try:
            public = self._public_group(group)
            is_accepted = True if accept is None else accept(public)
            if isinstance(is_accepted, Awaitable):
                assert self.host is not None
                self.host.spawn(partial(self._judge_async, group, is_accepted))
                return
            check_answer(is_accepted)
        except BaseException as error:
            self._judging_failed(group, error, "accept=")
            if not isinstance(error, Exception):
                raise
            return
        self._judged(group, public, is_accepted)

    async def _judge_async(self, group: MachineGroup, answer: Awaitable[Any] | None = None) -> None:
        accept = self.judge.accept
        assert accept is not None
        self.judging[group] = (perf_counter(), Owner(current_waker().runner()))
        try:
            public = self._public_group(group)
            is_accepted = await (accept(public) if answer is None else answer)
            check_answer(is_accepted)
        except Exception as error:
            self._judging_failed(group, error, "accept=")
            return
        finally:
            del self.judging[group]
        self._judged(group, public, is_accepted)

    def _judged(self, group: MachineGroup, public: Group[Any, Any], is_accepted: Any) -> None:
        """Let ``weigh`` see a group that ``accept`` has decided about, and report both."""
        try:
            weight = self._weight(public)
        except BaseException as error:
            self._judging_failed(group, error, "weigh=")
            if not isinstance(error, Exception):
                raise
            return
        self.apply(self.machine.judged, group, bool(is_accepted), weight)

    def _judging_failed(self, group: MachineGroup, error: BaseException, where: str) -> None:
        what = f"in {where} of the group of prompt {short_value(group.prompt.value)}"
        add_note(error, f"{what} (ordinal {group.ordinal}), in {self}")
        self.apply(self.machine.stop, error)

    def _public_group(self, group: MachineGroup) -> Group[Any, Any]:
        payload, machine = group.payload, self.machine
        if payload.public is None:
            rollouts = tuple(one for one in payload.rollouts if one is not None)
            payload.rollouts = []
            version = group.version
            if version is None:
                version = min((one.version for one in rollouts), default=machine.version)
            staleness = 0 if group.version is None else machine.step - version
            evaluation = payload.evaluation
            ordinal = group.ordinal if evaluation is None else evaluation.number
            payload.public = Group(
                group.prompt.value, ordinal, rollouts, version, max(staleness, 0)
            )
        public: Group[Any, Any] = payload.public
        return public

    def _weight(self, group: Group[Any, Any]) -> float:
        weigh = self.judge.weigh
        if weigh is None:
            return 1
        weight = weigh(group)
        if not weight > 0 or weight == float("inf"):
            raise InvalidArgumentError(f"weigh: returned {weight!r}; expected a finite number > 0")
        return weight

    # ---- evaluations -------------------------------------------------------------------------

    def evaluate(self, prompt: Any, size: int, evaluation: Evaluation, has_priority: bool) -> None:
        """Generate rollouts for a prompt that is not trained on."""
        self.apply(self._evaluate, prompt, size, evaluation, has_priority)

    def _evaluate(
        self, prompt: Any, size: int, evaluation: Evaluation, has_priority: bool
    ) -> Effects:
        if self.machine.is_stopped:
            evaluation.error = RuntimeError(f"{self} has been stopped")
            evaluation.ended.open()
            return NOTHING
        payload = GroupPayload(size, evaluation)
        group, effects = self.machine.evaluate(
            Prompt(prompt, None), size, has_priority=has_priority, payload=payload
        )
        evaluation.machine_group = group
        return effects

    def _evaluated(self, group: MachineGroup) -> None:
        evaluation = group.payload.evaluation
        if group.error is not None:
            evaluation.error = group.error
        elif group.pending:
            evaluation.error = RuntimeError(f"{self} was stopped during the evaluation")
        else:
            evaluation.group = self._public_group(group)
        evaluation.ended.open()
        if self._reopens and not self.machine.evaluations:
            self.over.open()

    def withdraw(self, evaluations: list[Evaluation]) -> None:
        """Cancel what is left of an evaluation."""
        for evaluation in evaluations:
            if evaluation.machine_group is not None and not evaluation.ended.is_open:
                self.apply(self.machine.withdraw, evaluation.machine_group)
        if self._reopens and not self.machine.evaluations:
            self.over.open()

    # ---- trainers ----------------------------------------------------------------------------

    def join(self, taker: Taker) -> None:
        """Let a trainer wait for a step, behind those that wait already."""
        self.apply(self._join, taker)

    def _join(self, taker: Taker) -> Effects:
        self.takers.append(taker)
        return self._ask_for_first()

    def _ask_for_first(self) -> Effects:
        """Ask the machine for the step of the first trainer, unless that was done."""
        if not self.takers:
            return NOTHING
        first = self.takers[0]
        if first.batch is not None or first.is_end or self.machine.is_taking:
            return NOTHING
        return self.machine.take()

    def commit(self, taker: Taker) -> Batch[Any, Any] | None:
        """Report that a trainer has received its step; return it, or ``None`` at the end.

        Raises:
            BaseException: what has ended the run.
        """
        self.apply(self._commit, taker)
        self.apply(self._ask_for_first)
        if taker.batch is None and self.machine.error is not None:
            raise self.machine.error
        return taker.batch

    def _commit(self, taker: Taker) -> Effects:
        assert self.takers[0] is taker
        self.takers.popleft()
        self.times.waits.add(perf_counter() - taker.began)
        if taker.batch is not None:
            self.given_out = max(self.given_out, taker.batch.step + 1)
            self.times.handed_out(taker.batch)
        return NOTHING

    def leave(self, taker: Taker) -> None:
        """Report that a trainer no longer waits. A step that it was granted stays for the next."""
        self.apply(self._leave, taker)
        self.apply(self._ask_for_first)

    def _leave(self, taker: Taker) -> Effects:
        if taker not in self.takers:
            return NOTHING
        is_first = self.takers[0] is taker
        self.takers.remove(taker)
        self.times.waits.add(perf_counter() - taker.began)
        if taker.batch is not None:
            return self._give_back(self.steps[taker.batch.step])
        return self.machine.untake() if is_first else NOTHING

    # What batches report: see `StepReports`.

    def part_done(self, step: Step, part: Part) -> None:
        if self.elsewhere is not None:
            self.elsewhere.part_done(step, part)
        else:
            self.apply(self._part_done, step, part)

    def _part_done(self, step: Step, part: Part) -> Effects:
        if self.steps.get(step.number) is not step or not step.end_part(part):
            return NOTHING
        return self.machine.done(step.number)

    def give_back(self, step: Step) -> None:
        if self.elsewhere is not None:
            self.elsewhere.give_back(step)
        else:
            self.apply(self._give_back, step)

    def _give_back(self, step: Step) -> Effects:
        # Another one may have this number: this one was given back, by another part of it say.
        if self.steps.get(step.number) is not step:
            return NOTHING
        del self.steps[step.number]
        effects = self.machine.give_back(step.number)
        self.given_out = min(self.given_out, self.machine.step)
        return effects

    def sent_step(self, step: Step) -> object:
        return None if self.shared is None else self.shared.sent_step(step)

    # ---- publications ------------------------------------------------------------------------

    def begin_publisher(self, publisher: Publisher) -> None:
        """Let a publication wait for its turn, behind those that wait already."""
        self.apply(self._begin_publisher, publisher)

    def _begin_publisher(self, publisher: Publisher) -> Effects:
        self.publishers.append(publisher)
        if self.publisher is None:
            self._next_publisher()
        return NOTHING

    def _next_publisher(self) -> None:
        self.publisher = self.publishers.popleft() if self.publishers else None
        if self.publisher is not None:
            self.publisher.began = perf_counter()
            self.publisher.gate.open()

    def pause(self, publisher: Publisher, drain: Any) -> None:
        """Begin a publication, whose turn it is. It may go on when `Publisher.closed` opens.

        A call in another process begins there, without a question. So each such process closes its
        gate first, and confirms it: what has begun was reported before that. Only then do the rules
        close theirs. Until then they know of nothing that would refuse such a report.
        """
        publisher.drain = drain
        self.publication_over.shut()
        self.apply(self._revoke, publisher)
        self._begin_if_closed()

    def _revoke(self, publisher: Publisher) -> Effects:
        self.is_revoking = True
        for child in self._generating_children:
            turned_away = child.revoke(is_parking=publisher.drain != "ended")
            if turned_away is None:
                self._revoked.add(child)
            else:
                self._turned_away += turned_away
        return NOTHING if self._revoked else self._close_gate()

    def child_closed(self, child: CallsElsewhere) -> None:
        """Report that nothing starts in another process any more."""
        self.apply(self._child_closed, child)
        self._begin_if_closed()

    def _child_closed(self, child: CallsElsewhere) -> Effects:
        if child not in self._revoked:
            return NOTHING
        self._revoked.discard(child)
        return NOTHING if self._revoked else self._close_gate()

    def _close_gate(self) -> Effects:
        self.is_revoking = False
        assert self.publisher is not None
        return self.machine.pause(self.publisher.drain)  # type: ignore[arg-type]

    def _begin_if_closed(self) -> None:
        """Let the publication go on if all gates are closed."""
        for call in call_with_lock(self._lock, self._take_turned_away):
            self.apply(self.machine.turned_away, call)
        publisher = self.publisher
        if publisher is not None and self.machine.is_paused:
            publisher.closed.open()

    def _take_turned_away(self) -> list[RolloutCall]:
        if self.is_revoking:
            return []
        calls, self._turned_away = self._turned_away, []
        return calls

    def add_child(self, child: CallsElsewhere) -> None:
        """Note calls in another process."""
        self.apply(self._add_child, child)

    def _add_child(self, child: CallsElsewhere) -> Effects:
        self._generating_children.append(child)
        return NOTHING

    def remove_child(self, child: CallsElsewhere) -> None:
        self.apply(self._remove_child, child)
        self.child_closed(child)

    def _remove_child(self, child: CallsElsewhere) -> Effects:
        self._generating_children.remove(child)
        return NOTHING

    def limit_changed(self) -> None:
        """Report the limit of the machine to other processes, which keep it."""
        for child in self._generating_children.copy():
            child.set_limit(self.machine.limit)

    def end_publisher(self, publisher: Publisher, version: int | None) -> None:
        """End a publication, in whatever way, or its wait.

        Args:
            publisher: the publication.
            version: what the new weights contain; ``None`` for the old ones.
        """
        self.apply(self._end_publisher, publisher, version)
        self._begin_if_closed()
        self.publication_over.open()

    def _end_publisher(self, publisher: Publisher, version: int | None) -> Effects:
        if self.publisher is not publisher:
            if publisher in self.publishers:
                self.publishers.remove(publisher)
            return NOTHING
        is_paused = self.machine.is_paused
        effects = self.machine.resume(version) if is_paused else NOTHING
        if is_paused or self.is_revoking:
            self.is_revoking = False
            self._revoked.clear()
            for child in self._generating_children:
                child.reopen(self.machine.version)
        self._next_publisher()
        return effects

    # ---- for reports -------------------------------------------------------------------------

    def slowest_calls(self, most: int) -> list[tuple[RolloutCall, float]]:
        """Return the calls that run longest, each with its start."""
        return list(islice(self.calls.copy().items(), most))

    def describe_running(
        self, call: RolloutCall, began: float, frames: Mapping[int, FrameType] | None = None
    ) -> str:
        """Say since when a rollout runs, and where it is. Not under the lock: another process may
        have to say where."""
        place = self._place_of(call, frames)
        return self.describe_time(call, began) + (f", at {place}" if place else "")

    def describe_time(self, call: RolloutCall, began: float) -> str:
        """Say since when a rollout runs."""
        return f"{self.describe_call(call)} runs for {format_seconds(perf_counter() - began)}"

    def describe_judging(self, frames: Mapping[int, FrameType]) -> str:
        """Say about which group ``accept`` has decided for the longest time; empty for none."""
        for group, (began, owner) in self.judging.copy().items():
            prompt = short_value(group.prompt.value)
            place = place_of(stack_of(owner.thing, frames))
            text = f"that of prompt {prompt} for {format_seconds(perf_counter() - began)}"
            return text if place is None else f"{text}, at {place}"
        return ""

    def _place_of(self, call: RolloutCall, frames: Mapping[int, FrameType] | None) -> str:
        """Return where in the user's code a rollout is; empty if that is not known."""
        host = self._host_of(call)
        if host is None:
            return ""
        remote = host.remote_place_of(call)
        if remote:
            return remote
        thing = host.running_thing(call)
        place = None if thing is None else place_of(stack_of(thing, frames))
        return "" if place is None else str(place)

    def waiting_takers(self) -> list[Taker]:
        return [taker for taker in list(self.takers) if not taker.gate.is_open]

    def waiting_evaluations(self) -> list[list[Evaluation]]:
        """Return the evaluations that have not ended, together for each call of `evaluate`."""
        found: dict[int, list[Evaluation]] = {}
        for group in list(self.machine.evaluations.values()):
            evaluation = group.payload.evaluation
            found.setdefault(id(evaluation.owner), []).append(evaluation)
        return list(found.values())

    def progress(self) -> Hashable:
        """Return a value that changes when anything moves."""
        machine = self.machine
        return (machine.admitted, self.results, machine.step, machine.version, machine.refused)
