"""The rules of a `RolloutQueue`: what is generated, what is trained, and when a step is done.

The machine does no I/O, starts nothing, knows no clock and calls no function of the user. Its
caller reports an event, and gets the `Effects`: what it has to do now. Every event ends in
`RolloutMachine._settle`, which repeats until nothing more can be decided. Nothing else decides, and
nothing else wakes.

**Slots.** A prompt is asked for while fewer than ``batch_size * (steps_ahead + 1)`` groups exist;
the prompt that is asked for counts as one. A group gives its slot back when its step is *done*, or
when it is refused, dropped or returned. No history enters this rule, so nothing makes it drift.

**Versions** count steps: a version is the number of steps that the published weights contain. The
number of the next step, not the version, makes waiting groups older.

**Two gates, in two places.** Slots gate the admission of groups. The limit of rollouts in flight,
and a publication, gate the start of calls, be they of new groups, of further rollouts, of retries
or of evaluations.

**A call starts in two steps.** The machine starts it, and later the caller reports its first step
with `enter`: a task's body begins a turn of the event loop after the decision, and a publication
may begin in between. `enter` then refuses, and `turned_away` starts it again after the publication.
The version that a rollout starts with is that of `enter`.

**Cancelled calls** count as running until they have ended, since a thread cannot be cancelled.
While weights are published, and nobody waits for running rollouts, cancellations are postponed: an
engine that is paused may not survive them.

**Costs.** No event costs more than the logarithm of the number of groups, beside what it takes out
of the machine. So there is an index for each question: the groups with rollouts to start, those
that are ready, those that grow too old, and counts by version.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from heapq import heappop, heappush
from typing import Any, Final, Literal

from aioqueue.errors import StarvedError, counted
from aioqueue.rl.indexes import OrdinalSet, SortedIndex

Order = Literal["ready", "oldest", "strict"]
OnStale = Literal["train", "wait", "drop", "cancel"]
StalePrompt = Literal["again", "drop"]
OnRefused = Literal["replace", "shorten"]
OnError = Literal["raise", "drop", "partial"]
Drain = Literal["no", "ended", "safe"]


class GroupState(IntEnum):
    """Where a group is on its way."""

    OPEN = 0
    """Its rollouts are generated."""
    JUDGED = 1
    """It is complete, and ``accept=`` decides about it."""
    READY = 2
    """It waits to be handed out."""
    HELD = 3
    """It was handed out with a step that is not done."""
    ENDED = 4


class CallState(Enum):
    STARTED = "started"
    RUNNING = "running"
    """It has entered: the user's function has begun."""
    LATE = "late"
    """It will be cancelled when the publication ends."""
    CANCELLED = "cancelled"
    ENDED = "ended"


_OPEN: Final = GroupState.OPEN
_JUDGED: Final = GroupState.JUDGED
_READY: Final = GroupState.READY
_HELD: Final = GroupState.HELD
_GROUP_ENDED: Final = GroupState.ENDED
_STARTED: Final = CallState.STARTED
_RUNNING: Final = CallState.RUNNING
_LATE: Final = CallState.LATE
_CANCELLED: Final = CallState.CANCELLED
_CALL_ENDED: Final = CallState.ENDED


class MachineGroup:
    """All rollouts of a prompt.

    Attributes:
        ordinal: the place of its prompt in the source; of an evaluation, a number of its own.
        prompt: what the rollouts are generated from.
        size: how many rollouts it has.
        is_evaluation: whether it takes no slot and is never trained.
        is_refused: whether it is an empty place in a batch (``on_refused="shorten"``).
        version: that at which the first of its rollouts started; ``None`` if none has started, or
            if those that have are frozen.
        weight: what it counts in a batch, once it was judged.
        lost: how many of its rollouts have failed for good.
        error: what has ended an evaluation.
        payload: whatever the caller keeps with it.
    """

    __slots__ = (
        "attempts",
        "calls",
        "error",
        "is_evaluation",
        "is_refused",
        "lost",
        "next_index",
        "ordinal",
        "payload",
        "pending",
        "place",
        "prompt",
        "renewed",
        "size",
        "state",
        "threshold",
        "version",
        "versions",
        "weight",
    )

    def __init__(
        self, ordinal: int, prompt: Any, size: int, *, is_evaluation: bool = False
    ) -> None:
        self.ordinal: int = ordinal
        self.prompt: Any = prompt
        self.size: int = size
        self.is_evaluation: bool = is_evaluation
        self.is_refused: bool = False
        self.state: GroupState = _OPEN
        self.version: int | None = None
        self.weight: float = 1
        self.place: int = 0
        """Its number among the groups that became ready."""
        self.pending: int = size
        """Rollouts that have neither a result nor failed for good."""
        self.lost: int = 0
        self.next_index: int = 0
        """The first rollout that was never started."""
        self.renewed: list[int] = []
        """A heap of the rollouts that are to be started again."""
        self.attempts: dict[int, int] = {}
        """The number of the next attempt, of rollouts that have failed."""
        self.versions: dict[int, int] = {}
        """The version at which each rollout first started, without those that are frozen."""
        self.calls: dict[int, RolloutCall] = {}
        self.threshold: int | None = None
        """Of an evaluation without priority: prompts with lower ordinals start first."""
        self.error: BaseException | None = None
        self.payload: Any = None

    def __repr__(self) -> str:
        kind = "evaluation" if self.is_evaluation else "group"
        state = self.state.name.lower()
        return f"<{kind} {self.ordinal}, {state}, {self.pending} of {self.size} pending>"


class RolloutCall:
    """One attempt at a rollout.

    Attributes:
        group: the group that the rollout belongs to.
        index: the rollout's number in the group.
        attempt: 1, or more after failures.
        version: that of the weights when it entered.
        payload: whatever the caller keeps with it.
    """

    __slots__ = ("attempt", "group", "index", "payload", "state", "version")

    def __init__(self, group: MachineGroup, index: int, attempt: int) -> None:
        self.group: MachineGroup = group
        self.index: int = index
        self.attempt: int = attempt
        self.version: int = 0
        self.state: CallState = _STARTED
        self.payload: Any = None

    def __repr__(self) -> str:
        return f"<call {self.index} of {self.group!r}, attempt {self.attempt}, {self.state.value}>"

    @property
    def is_current(self) -> bool:
        """Whether its result would still be used."""
        return self.state is _RUNNING or self.state is _STARTED


@dataclass(slots=True)
class Effects:
    """What the caller of the machine has to do.

    Attributes:
        pull: ask the source for the prompt with this ordinal. Answer with `RolloutMachine.prompt`
            or `RolloutMachine.source_end`.
        starts: call the user's function. Report `RolloutMachine.enter`, then an end of the call.
        cancels: cancel these calls. Their end must be reported all the same.
        judge: score and filter these groups. Answer with `RolloutMachine.judged`.
        step: the number of the step that is handed to the trainer.
        groups: those of the step.
        is_end: the trainer's loop ends, with `RolloutMachine.error` if there is one.
        is_stopped: the run has been stopped just now, even if there is nothing else to do.
        is_drained: the publication may go on.
        evaluated: these evaluations have ended.
    """

    pull: int | None = None
    starts: list[RolloutCall] = field(default_factory=list)
    cancels: list[RolloutCall] = field(default_factory=list)
    judge: list[MachineGroup] = field(default_factory=list)
    step: int | None = None
    groups: Sequence[MachineGroup] = ()
    is_end: bool = False
    is_stopped: bool = False
    is_drained: bool = False
    evaluated: list[MachineGroup] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stored:
    """A group that was ready when the state of a run was taken: nothing is generated again.

    Attributes:
        version: as of the group.
        weight: as of the group.
    """

    version: int | None
    weight: float


class RolloutMachine:
    """See the module. The arguments are those of `RolloutQueue`, and checked there.

    Args:
        new_payload: makes the payload of a group that is admitted, from its size.

    Attributes:
        step: the number of the next step that is handed out.
        version: how many steps the published weights contain.
        running: how many calls have started and not ended, cancelled ones included.
        error: what the trainer's loop ends with.
    """

    def __init__(
        self,
        *,
        batch_size: float,
        steps_ahead: float = 1,
        limit: int | None = None,
        order: Order = "oldest",
        on_refused: OnRefused = "replace",
        on_error: OnError = "raise",
        min_group_size: int = 2,
        max_staleness: int | None = None,
        on_stale: OnStale = "train",
        stale_prompt: StalePrompt = "again",
        is_weighed: bool = False,
        max_weight: float | None = None,
        drop_remainder: bool = False,
        max_refused: int | None = 10,
        new_payload: Callable[[int], Any] | None = None,
    ) -> None:
        self.batch_size: float = batch_size
        self.steps_ahead: float = steps_ahead
        self.limit: float = math.inf if limit is None else limit
        self.order: Final[Order] = order
        self.on_refused: Final[OnRefused] = on_refused
        self.on_error: Final[OnError] = on_error
        self.min_group_size: Final[int] = min_group_size
        self.max_staleness: Final[int | None] = max_staleness
        self.on_stale: Final[OnStale] = on_stale
        self.stale_prompt: Final[StalePrompt] = stale_prompt
        self.is_weighed: Final[bool] = is_weighed
        self.max_weight: Final[float | None] = max_weight
        self.drop_remainder: Final[bool] = drop_remainder
        self.max_refused: Final[int | None] = max_refused
        self._new_payload: Final = new_payload

        self.grants_ahead: bool = False
        """Whether the caller keeps ``limit``: all calls start that the slots allow."""
        self.step: int = 0
        self.version: int = 0
        self.running: int = 0
        self.error: BaseException | None = None
        self.has_begun: bool = False
        self.is_source_ended: bool = False
        self.is_pulling: bool = False
        self.is_taking: bool = False
        self.is_paused: bool = False
        self.drain: Drain = "no"
        """What the publication waits for; ``"no"`` once that has happened."""
        self.parks: bool = False
        """Whether calls wait at their safe points for the end of the publication."""
        self.is_stopped: bool = False

        self.admitted: int = 0
        self.trained: int = 0
        self.refused: int = 0
        self.returned: int = 0
        self.dropped: Counter[str] = Counter()
        self.in_vain: int = 0
        """How many groups in a row were refused or dropped."""

        self.next_ordinal: int = 0
        self.ended: OrdinalSet = OrdinalSet()
        """The ordinals of the groups that were trained, refused or dropped."""
        self.refused_places: set[int] = set()
        """Ordinals that were empty places in batches when the run was stopped."""
        self.groups: dict[int, MachineGroup] = {}
        """All groups that have a slot, by ordinal."""
        self.evaluations: dict[int, MachineGroup] = {}
        self.held: dict[int, list[MachineGroup]] = {}
        """The groups of the steps that were handed out and are not done."""
        self.given_back: list[int] = []
        """Steps that were given back and are not the newest, in order: the next that are handed
        out, as they were."""
        self.back: SortedIndex[tuple[Any, int]] = SortedIndex()
        """Prompts that were returned, with the sizes of their groups. They go before the source."""
        self.census: list[int] = [0] * len(GroupState)
        """How many groups with a slot are in each state."""

        self._effects: Effects | None = None
        self._next_evaluation = 0
        self._next_place = 0
        self._late: dict[RolloutCall, None] = {}
        self._parked: set[RolloutCall] = set()
        self._startable: SortedIndex[MachineGroup] = SortedIndex()
        self._urgent: SortedIndex[MachineGroup] = SortedIndex()
        """Evaluations with rollouts to start."""
        self._patient: SortedIndex[MachineGroup] = SortedIndex()
        """Those without priority."""
        self._ready: SortedIndex[MachineGroup] = SortedIndex()
        """In the queue's order; without those of ``_prefix``."""
        self._ready_weight: float = 0
        """Of all groups that are ready."""
        self._prefix: deque[MachineGroup] = deque()
        """With ``order="strict"``, the groups that are ready before the first that is not."""
        self._prefix_weight: float = 0
        self._unready: SortedIndex[MachineGroup] = SortedIndex()
        """With ``order="strict"``, the groups that are not ready."""
        self._settled_weight: float = 0
        """Of all groups that were judged and have a slot."""
        self._unsettled = 0
        """How many groups have a slot and no weight yet."""
        self._weights: deque[float] = deque(maxlen=64)
        """The last ones, from which the next is estimated."""
        self._sum_of_weights: float = 0
        self._aging: dict[int, dict[int, MachineGroup]] = {}
        """What may be dropped or cancelled, by version and ordinal."""
        self._aging_versions: list[int] = []
        """A heap of the keys of ``_aging``."""
        self._waits: Final = on_stale == "wait" and order != "strict"
        """Whether `_choose_in_time` chooses. A strict order leaves no choice."""
        self._waiting_counts: Counter[int | None] = Counter()
        """With `_waits`: the groups that are not held, by version."""
        self._ready_by_version: dict[int | None, SortedIndex[MachineGroup]] = {}
        """With `_waits`: the groups that are ready."""

    # ---- events: prompts ---------------------------------------------------------------------

    def begin(self) -> Effects:
        """Begin to ask for prompts: there is somebody who generates. Also after `restore`."""
        self.has_begun = True
        return self._settle()

    def prompt(
        self, prompt: Any, size: int, stored: Stored | None = None
    ) -> tuple[MachineGroup | None, Effects]:
        """Admit the prompt that was asked for.

        Args:
            prompt: the prompt.
            size: how many rollouts its group has.
            stored: what is known of its group, if its results were stored with the state.

        Returns:
            Its group, and the effects. No group if the queue has been stopped: the prompt is then
            none of those that have ended, and the next run begins with it.
        """
        self.is_pulling = False
        group = None
        if not self.is_stopped:
            ordinal = self.next_ordinal
            self.next_ordinal = self.ended.first_open(ordinal + 1)
            group = self._admit(ordinal, prompt, size)
            if ordinal in self.refused_places:
                self.refused_places.discard(ordinal)
                self._keep_refused_place(group, self._estimate())
            elif stored is not None:
                group.pending = 0
                group.next_index = size
                self._startable.discard(ordinal)
                self._set_version(group, stored.version)
                self._become_ready(group, stored.weight)
        return group, self._settle()

    def source_end(self, error: BaseException | None = None) -> Effects:
        """Note that there are no more prompts. An error is raised after what exists is trained."""
        self.is_pulling = False
        self.is_source_ended = True
        self.error = self.error or error
        return self._settle()

    def close(self) -> Effects:
        """Ask for no more prompts. What exists, also a prompt that was asked for, is trained."""
        self.is_source_ended = True
        return self._settle()

    # ---- events: calls -----------------------------------------------------------------------

    def enter(self, call: RolloutCall) -> bool:
        """Report that the first step of a call is about to run, and learn whether it may.

        If it may not, report `turned_away`.
        """
        if self.is_paused or call.state is not _STARTED:
            return False
        call.state = _RUNNING
        version = call.version = self.version
        group = call.group
        group.versions.setdefault(call.index, version)
        if group.version is None:
            self._set_version(group, version)
        return True

    def turned_away(self, call: RolloutCall) -> Effects:
        """Report that a call has ended before its first step, as `enter` or a stop demanded."""
        if self._leave(call):
            call.group.attempts[call.index] = call.attempt
            self._renew(call.group, call.index)
        return self._settle()

    def finished(self, call: RolloutCall) -> Effects:
        """Report that a call has returned a result. It counts if the call is current."""
        if self._leave(call) and self._lack_one_less(call.group):
            return self._settle()
        return self._settle_calls()

    def failed(
        self, call: RolloutCall, error: BaseException, retry: Literal["no", "now", "later"] = "no"
    ) -> Effects:
        """Report that a call has raised.

        Args:
            call: the call.
            error: what it has raised.
            retry: whether it is started again in its turn: at once, or when `due` is reported.
        """
        if self._leave(call):
            self._fail(call, error, retry)
        return self._settle()

    def expired(
        self, call: RolloutCall, error: BaseException, retry: Literal["no", "now", "later"] = "no"
    ) -> Effects:
        """Report that a call that cannot be cancelled has taken too long.

        Its rollout has failed, but the call keeps its place until `call_ended`.
        """
        if call.is_current:
            call.state = _CANCELLED
            self._parked.discard(call)
            del call.group.calls[call.index]
            self._fail(call, error, retry)
        return self._settle()

    def _fail(
        self, call: RolloutCall, error: BaseException, retry: Literal["no", "now", "later"]
    ) -> None:
        group = call.group
        if retry != "no":
            group.attempts[call.index] = call.attempt + 1
            if retry == "now":
                self._renew(group, call.index)
        elif group.is_evaluation:
            if self.on_error == "raise":
                self._end_evaluation(group, error)
            else:
                group.lost += 1
                self._lack_one_less(group)
        elif self.on_error == "raise":
            self._stop(error)
        else:
            group.lost += 1
            left = group.size - group.lost
            if self.on_error == "drop" or left < self.min_group_size:
                self._drop(group, "failed")
            else:
                self._lack_one_less(group)

    def due(self, group: MachineGroup, index: int) -> Effects:
        """Report that the time before a rollout's next attempt is over."""
        if group.state is _OPEN:
            self._renew(group, index)
        return self._settle()

    def call_ended(self, call: RolloutCall) -> Effects:
        """Report that a call has ended without a result of interest: it was cancelled."""
        self._leave(call)
        return self._settle_calls()

    def park(self, call: RolloutCall) -> tuple[bool, Effects]:
        """Report that a call is at a safe point, and learn whether it has to wait there."""
        parks = self.parks and call.state in (_RUNNING, _LATE)
        if parks:
            self._parked.add(call)
        return parks, self._settle()

    def unpark(self, call: RolloutCall) -> Effects:
        """Report that a call no longer waits at a safe point."""
        self._parked.discard(call)
        return self._settle()

    def freeze(self, call: RolloutCall) -> Effects:
        """Report that a rollout is of weights that are never published: it does not grow old."""
        group = call.group
        if call.state is _RUNNING and group.versions.pop(call.index, None) is not None:
            self._set_version(group, min(group.versions.values(), default=None))
        return self._settle()

    # ---- events: groups ----------------------------------------------------------------------

    def judged(self, group: MachineGroup, is_accepted: bool = True, weight: float = 1) -> Effects:
        """Report what ``accept=`` says of a complete group, and what it weighs."""
        if group.state is _JUDGED:
            if is_accepted:
                if not self._is_stale(group):
                    self.in_vain = 0
                self._become_ready(group, weight)
            elif self.on_refused == "shorten":
                self.in_vain += 1
                self._keep_refused_place(group, weight)
            else:
                self.in_vain += 1
                self._refuse(group)
        return self._settle()

    def evaluate(
        self, prompt: Any, size: int, *, has_priority: bool = True, payload: Any = None
    ) -> tuple[MachineGroup, Effects]:
        """Generate rollouts that take no slot. They start first, or in turn with the prompts."""
        serial = self._next_evaluation
        self._next_evaluation += 1
        group = MachineGroup(serial, prompt, size, is_evaluation=True)
        group.payload = payload
        if not has_priority:
            group.threshold = self.next_ordinal
        self.evaluations[serial] = group
        self._list(group)
        return group, self._settle()

    def withdraw(self, group: MachineGroup) -> Effects:
        """Cancel an evaluation that nobody waits for any more."""
        if group.state is not _GROUP_ENDED:
            self._cancel_calls(group)
            self._remove_evaluation(group)
        return self._settle()

    # ---- events: the trainer -----------------------------------------------------------------

    def take(self) -> Effects:
        """Report that the trainer waits for a step."""
        self.is_taking = True
        return self._settle()

    def untake(self) -> Effects:
        """Report that the trainer no longer waits."""
        self.is_taking = False
        return self._settle()

    def done(self, step: int) -> Effects:
        """Report that the trainer has finished with a step. A step that is not held is ignored."""
        self._done(step)
        return self._settle()

    def give_back(self, step: int) -> Effects:
        """Report that a step was not trained. A step that is not held is ignored.

        The groups of the newest step are ready again. An older one cannot become part of other
        steps, whose numbers are higher: it is the next that is handed out, as it was.
        """
        if step in self.held and step not in self.given_back:
            insort(self.given_back, step)
            while self.given_back and self.given_back[-1] == self.step - 1:
                self._undo_step(self.given_back.pop())
        return self._settle()

    def pause(self, drain: Drain = "no") -> Effects:
        """Report that a publication begins: no call starts until `resume`.

        Args:
            drain: what the publication waits for, before `Effects.is_drained`: ``"ended"`` until
                no call runs, ``"safe"`` until all calls that run are at safe points.
        """
        if self.is_paused:
            raise RuntimeError("publishing() within publishing()")
        self.is_paused = True
        self.drain = drain
        self.parks = drain != "ended"
        return self._settle()

    def resume(self, version: int | None) -> Effects:
        """Report that a publication ends.

        Args:
            version: how many steps the new weights contain; ``None`` if they are the old ones.
        """
        self.is_paused = False
        self.drain = "no"
        self.parks = False
        self._parked.clear()
        self._cancel_late()
        if version is not None:
            self._publish(version)
        return self._settle()

    def publish(self, version: int) -> Effects:
        """Report a publication that has taken no time."""
        self._publish(version)
        return self._settle()

    def set(
        self,
        *,
        batch_size: float | None = None,
        steps_ahead: float | None = None,
        limit: float | None = None,
    ) -> Effects:
        """Change numbers. What exists and runs stays."""
        if batch_size is not None:
            self.batch_size = batch_size
        if steps_ahead is not None:
            self.steps_ahead = steps_ahead
        if limit is not None:
            self.limit = limit
        return self._settle()

    def stop(self, error: BaseException | None = None) -> Effects:
        """Cancel everything that is not held by the trainer, whose loop ends."""
        self._stop(error)
        return self._settle()

    # ---- the state of a run ------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what a later run has to know, as JSON: no step that is held is trained in it."""
        existing = len(self.groups)
        places = [group.ordinal for group in self.groups.values() if group.is_refused]
        return {
            "step": self.step - len(self.held),
            "version": self.version,
            "lowest_open": self.ended.lowest_open,
            "ended": self.ended.ranges(),
            "refused_places": sorted({*places, *self.refused_places}),
            "admitted": self.admitted - existing,
            "trained": self.trained,
            "refused": self.refused,
            "dropped": dict(self.dropped),
            "returned": self.returned,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, before anything has begun."""
        self.step = state["step"]
        self.version = state["version"]
        self.ended = OrdinalSet(state["lowest_open"], state["ended"])
        self.next_ordinal = self.ended.lowest_open
        self.refused_places = set(state["refused_places"])
        self.admitted = state["admitted"]
        self.trained = state["trained"]
        self.refused = state["refused"]
        self.dropped = Counter(state["dropped"])
        self.returned = state["returned"]

    # ---- decisions ---------------------------------------------------------------------------

    def _settle(self) -> Effects:
        """Decide until nothing more can be decided, and return what the caller has to do.

        A start changes none of the other decisions, so all of them come last.
        """
        while True:
            self._sweep()
            if self.max_refused is not None and self.in_vain:
                self._check_starvation()
            if not (self._serve() or self._admit_next()):
                break
        return self._settle_calls()

    def _settle_calls(self) -> Effects:
        """Decide what depends on the number of running calls alone.

        That is all that an end of a call can change, unless it makes its group complete.
        """
        if self._startable.values or self._urgent.values or self._patient.values:
            self._start_calls()
        if self.drain != "no" and self.running == len(self._parked):
            self.drain = "no"
            self._do.is_drained = True
        effects = self._effects
        if effects is None:
            return NOTHING
        self._effects = None
        return effects

    @property
    def _do(self) -> Effects:
        if self._effects is None:
            self._effects = Effects()
        return self._effects

    def _sweep(self) -> None:
        """Drop what would be too old for the next step.

        Never what began with the current version: nothing fresher can be had, so it would be
        generated again for ever.
        """
        versions = self._aging_versions
        if not versions:
            return
        assert self.max_staleness is not None
        oldest = min(self.version, self.step - self.max_staleness)
        while versions and versions[0] < oldest:
            for group in self._aging.pop(heappop(versions)).values():
                if self.stale_prompt == "again":
                    self._return(group)
                else:
                    self._drop(group, "stale")

    def _is_stale(self, group: MachineGroup) -> bool:
        return (
            self.on_stale in ("drop", "cancel")
            and self.max_staleness is not None
            and group.version is not None
            and group.version < min(self.version, self.step - self.max_staleness)
        )

    def _check_starvation(self) -> None:
        """Stop if ``max_refused`` batches of groups were refused or dropped in a row."""
        assert self.max_refused is not None
        batch = max(1, self.batch_size / self._estimate())
        if self.is_stopped or self.in_vain < self.max_refused * batch:
            return
        # Refused groups that keep the places of their batches are counted when these are done.
        refused = self.refused + sum(group.is_refused for group in self.groups.values())
        reasons = [f"{refused} refused by accept="] if refused else []
        reasons += [
            f"{number} dropped because they {_REASONS[why]}" for why, number in self.dropped.items()
        ]
        shorten = self.on_refused == "shorten"
        outcome = "batches stay empty" if shorten else "no batch would ever be complete"
        self._stop(
            StarvedError(
                f"{counted(self.in_vain, 'group')} in a row were refused or dropped (max_refused="
                f"{self.max_refused} batches), so {outcome}; in the whole run:"
                f" {', '.join(reasons)}",
                refused=refused,
                dropped=self.dropped,
            )
        )

    def _serve(self) -> bool:
        """Hand out a step, or end the trainer's loop. Return whether anything has changed."""
        if not self.is_taking:
            return False
        if self.is_stopped:
            chosen: Sequence[MachineGroup] = ()
        elif self.given_back:
            self._deliver(self.given_back.pop(0))
            return True
        elif self._ready_weight >= self.batch_size:
            found = self._choose()
            if found is None:
                return False
            chosen = found
        elif self._can_become_ready():
            return False
        else:  # the last, short batch
            chosen = self._take_ready(math.inf)
            if self.drop_remainder and chosen:
                self._remove_chosen(chosen)
                return True
        if chosen and all(group.is_refused for group in chosen):
            # A batch of nothing but empty places is no step: the slots are given back.
            self._remove_chosen(chosen)
            return True
        if not chosen:
            self.is_taking = False
            self._do.is_end = True
            return True
        for group in chosen:
            self._remove_from_waiting(group)
            self._move(group, _HELD)
        self.held[self.step] = list(chosen)
        self.step += 1
        self._deliver(self.step - 1)
        return True

    def _deliver(self, step: int) -> None:
        self.is_taking = False
        self._do.step = step
        self._do.groups = self.held[step]

    def _can_become_ready(self) -> bool:
        """Whether there is anything that may still become ready."""
        census = self.census
        return bool(
            census[_OPEN]
            or census[_JUDGED]
            or self.is_pulling
            or self.back.values
            or not self.is_source_ended
        )

    def _choose(self) -> Sequence[MachineGroup] | None:
        """Choose a full batch, by the order. There are enough groups that are ready."""
        if self._waits:
            return self._choose_in_time()
        if self.order == "strict":
            self._extend_prefix()
            if self._prefix_weight < self.batch_size:
                return None
        return self._take_ready(self.batch_size)

    def _take_ready(self, weight: float) -> list[MachineGroup]:
        """Take groups out of those that are ready, until they weigh enough or there are no more."""
        chosen = []
        if self.order == "strict":
            self._extend_prefix()
            while self._prefix and weight > 0:
                group = self._prefix.popleft()
                self._prefix_weight -= group.weight
                chosen.append(group)
                weight -= group.weight
        else:
            while self._ready.values and weight > 0:
                group = self._ready.pop()
                if self._waits:
                    self._ready_by_version[group.version].discard(group.ordinal)
                chosen.append(group)
                weight -= group.weight
        self._ready_weight -= sum(group.weight for group in chosen)
        return chosen

    def _remove_chosen(self, chosen: Sequence[MachineGroup]) -> None:
        """Remove groups that were chosen and are not handed out."""
        for group in chosen:
            self._add_ready(group)
        for group in chosen:
            if group.is_refused:
                self._refuse(group)
            else:
                self._drop(group, "remainder")

    def _extend_prefix(self) -> None:
        """Move what is ready before the first group that is not into ``_prefix``."""
        first_unready = self._unready.first_key()
        while (first := self._ready.first_key()) is not None:
            if first_unready is not None and first > first_unready:
                break
            group = self._ready.pop()
            self._prefix.append(group)
            self._prefix_weight += group.weight

    def _undo_prefix(self) -> None:
        """Let the prefix be found anew: a group came, or leaves, among those in it."""
        for group in self._prefix:
            self._ready.add(group.ordinal, group)
        self._prefix.clear()
        self._prefix_weight = 0

    def _choose_in_time(self) -> Sequence[MachineGroup] | None:
        """Choose a batch that leaves none behind which would be too old in its turn.

        By counts: the groups that are left are taken in the order of their versions, so those up to
        a version are in time if there are at most ``batch_size`` of them for each step until that
        version is too old. The groups with the lowest versions are the choice that leaves the least
        behind: only if they pass can another choice pass. If they do not pass, although waiting
        could not bring a choice that leaves less, the batch is handed out all the same. Without
        that, a trainer would wait for ever if it publishes every second step or reads ahead.
        """
        current = self.version
        waiting: Counter[int] = Counter()
        for version, number in self._waiting_counts.items():
            if number:
                waiting[current if version is None else version] += number
        versions = sorted(waiting)
        ready: Counter[int] = Counter()
        for version, groups in self._ready_by_version.items():
            ready[current if version is None else version] += len(groups.values)
        lowest = self._lowest(versions, ready)
        if not self._is_in_time(versions, waiting, lowest):
            if lowest != self._lowest(versions, waiting):
                return None  # what is still generated may be the better choice
            return self._take_lowest_versions(versions)
        chosen = self._take_ready(self.batch_size)
        counts = Counter(current if group.version is None else group.version for group in chosen)
        if self._is_in_time(versions, waiting, counts):
            return chosen
        for group in chosen:
            self._add_ready(group)
        return self._take_lowest_versions(versions)

    def _lowest(self, versions: Sequence[int], counts: Counter[int]) -> Counter[int]:
        """Return how many groups of each version a batch has that takes the lowest versions."""
        room = int(self.batch_size)
        lowest: Counter[int] = Counter()
        for version in versions:
            lowest[version] = min(room, counts[version])
            room -= lowest[version]
        return lowest

    def _is_in_time(
        self, versions: Sequence[int], waiting: Counter[int], chosen: Counter[int]
    ) -> bool:
        assert self.max_staleness is not None
        behind = 0
        for version in versions:
            left = waiting[version] - chosen[version]
            behind += left
            steps = version + self.max_staleness - self.step
            if left and behind > steps * self.batch_size:
                return False
        return True

    def _take_lowest_versions(self, versions: Sequence[int]) -> list[MachineGroup]:
        chosen: list[MachineGroup] = []
        for version in versions:
            for key in (version, None) if version == self.version else (version,):
                groups = self._ready_by_version.get(key)
                while groups is not None and groups.values and len(chosen) < self.batch_size:
                    group = groups.pop()
                    self._ready.discard(self._key(group))
                    self._ready_weight -= group.weight
                    chosen.append(group)
        return chosen

    def _admit_next(self) -> bool:
        """Admit a prompt that was returned, or ask for one. Return whether one was admitted.

        One prompt is asked for at a time, and it counts as a slot: else a slow source would get a
        burst of questions.
        """
        if self.is_stopped or not self.has_begun:
            return False
        load = self._load()
        budget = self.batch_size * (self.steps_ahead + 1)
        # Not "while one more fits": if 3 are wanted, 2 are there and the next may be 2, nothing
        # would move. Groups of 1 always fit or do not.
        if load >= budget if self.is_weighed else load + 1 > budget + 1e-9:
            return False
        if self.back.values:
            ordinal = self.back.first_key()
            assert ordinal is not None
            prompt, size = self.back.pop()
            self._admit(ordinal, prompt, size)
            return True
        if not self.is_source_ended and not self.is_pulling:
            self.is_pulling = True
            self._do.pull = self.next_ordinal
        return False

    def _load(self) -> float:
        """What the groups with a slot weigh, and the prompt that was asked for."""
        estimate = self._estimate()
        return self._settled_weight + (self._unsettled + self.is_pulling) * estimate

    def _start_calls(self) -> None:
        limit = math.inf if self.grants_ahead else self.limit
        if self.is_paused or self.is_stopped or self.running >= limit:
            return
        urgent, patient, startable = self._urgent, self._patient, self._startable
        while self.running < limit:
            if urgent.values:
                index, group = urgent, urgent.first()
            elif patient.values and self._is_patient_due():
                index, group = patient, patient.first()
            elif startable.values:
                index, group = startable, startable.first()
            else:
                return
            if self._start_calls_of(group, limit):
                index.discard(group.ordinal)

    def _start_calls_of(self, group: MachineGroup, limit: float) -> bool:
        """Start calls of one group; return whether it has no more to start."""
        starts, calls, attempts = self._do.starts, group.calls, group.attempts
        renewed, member, size = group.renewed, group.next_index, group.size
        room = limit - self.running
        begin = len(starts)
        while room > 0 and renewed:
            index = heappop(renewed)
            call = calls[index] = RolloutCall(group, index, attempts.get(index, 1))
            starts.append(call)
            room -= 1
        while room > 0 and member < size:
            call = calls[member] = RolloutCall(group, member, 1)
            starts.append(call)
            member += 1
            room -= 1
        group.next_index = member
        self.running += len(starts) - begin
        return member >= size and not renewed

    def _is_patient_due(self) -> bool:
        first = self._startable.first_key()
        threshold = self._patient.first().threshold
        return first is None or threshold is None or first >= threshold

    # ---- changes -----------------------------------------------------------------------------

    def _admit(self, ordinal: int, prompt: Any, size: int) -> MachineGroup:
        group = MachineGroup(ordinal, prompt, size)
        if self._new_payload is not None:
            group.payload = self._new_payload(size)
        self.groups[ordinal] = group
        self.admitted += 1
        self.census[_OPEN] += 1
        self._unsettled += 1
        if self._waits:
            self._waiting_counts[None] += 1
        if self.order == "strict":
            self._unready.add(ordinal, group)
            if self._prefix and ordinal < self._prefix[-1].ordinal:
                self._undo_prefix()
        self._list(group)
        return group

    def _list(self, group: MachineGroup) -> None:
        """List a group among those with rollouts to start."""
        if not group.is_evaluation:
            index = self._startable
        else:
            index = self._urgent if group.threshold is None else self._patient
        if group.ordinal not in index.values:
            index.add(group.ordinal, group)

    def _renew(self, group: MachineGroup, index: int) -> None:
        heappush(group.renewed, index)
        self._list(group)

    def _leave(self, call: RolloutCall) -> bool:
        """Free the place of a call that has ended. Return whether its result counts."""
        state = call.state
        if state is _CALL_ENDED:
            return False
        call.state = _CALL_ENDED
        self.running -= 1
        if self._parked:
            self._parked.discard(call)
        if state is not _RUNNING and state is not _STARTED:
            if state is _LATE:
                del self._late[call]
            return False
        del call.group.calls[call.index]
        return True

    def _lack_one_less(self, group: MachineGroup) -> bool:
        """Count a rollout that has ended. A complete group is judged. Return whether it is."""
        group.pending -= 1
        if group.pending:
            return False
        if group.is_evaluation:
            self._end_evaluation(group, None)
        else:
            self._move(group, _JUDGED)
            self._do.judge.append(group)
        return True

    def _become_ready(self, group: MachineGroup, weight: float) -> None:
        self._settle_weight(group, weight)
        self._move(group, _READY)
        self._unready.discard(group.ordinal)
        group.place = self._next_place
        self._next_place += 1
        self._add_ready(group)

    def _settle_weight(self, group: MachineGroup, weight: float) -> None:
        group.weight = weight
        self._unsettled -= 1
        self._settled_weight += weight
        if self.is_weighed and self.max_weight is None:
            if len(self._weights) == self._weights.maxlen:
                self._sum_of_weights -= self._weights[0]
            self._weights.append(weight)
            self._sum_of_weights += weight

    def _estimate(self) -> float:
        """What a group weighs that is not complete: at most a batch, before one is known."""
        if not self.is_weighed:
            return 1
        if self.max_weight is not None:
            return self.max_weight
        if not self._weights:
            return self.batch_size
        return self._sum_of_weights / len(self._weights)

    def _key(self, group: MachineGroup) -> int:
        return group.place if self.order == "ready" else group.ordinal

    def _add_ready(self, group: MachineGroup) -> None:
        if self._prefix and group.ordinal < self._prefix[-1].ordinal:
            self._undo_prefix()
        self._ready.add(self._key(group), group)
        self._ready_weight += group.weight
        if self._waits:
            index = self._ready_by_version.get(group.version)
            if index is None:
                index = self._ready_by_version[group.version] = SortedIndex()
            index.add(group.ordinal, group)
        if self.on_stale == "drop":
            self._add_aging(group)

    def _remove_ready(self, group: MachineGroup) -> None:
        if self._prefix:
            self._undo_prefix()
        self._ready.discard(self._key(group))
        self._ready_weight -= group.weight
        if self._waits:
            self._ready_by_version[group.version].discard(group.ordinal)

    def _keep_refused_place(self, group: MachineGroup, weight: float) -> None:
        """Keep an empty place in a batch. It holds no data, so it does not grow old."""
        group.is_refused = True
        group.pending = 0
        group.next_index = group.size
        self._startable.discard(group.ordinal)
        self._set_version(group, None)
        self._become_ready(group, weight)

    def _set_version(self, group: MachineGroup, version: int | None) -> None:
        if group.is_evaluation or version == group.version:
            group.version = version
            return
        if self._waits:
            self._count_waiting(group.version, -1)
            self._count_waiting(version, 1)
        is_aging = self.on_stale == "cancel"
        if is_aging:
            self._remove_aging(group)
        group.version = version
        if is_aging:
            self._add_aging(group)

    def _count_waiting(self, version: int | None, change: int) -> None:
        counts = self._waiting_counts
        counts[version] += change
        if not counts[version]:
            del counts[version]
            self._ready_by_version.pop(version, None)

    def _add_to_waiting(self, group: MachineGroup) -> None:
        """Count a group that is no longer held."""
        if self._waits:
            self._count_waiting(group.version, 1)
        if self.on_stale == "cancel":
            self._add_aging(group)

    def _remove_from_waiting(self, group: MachineGroup) -> None:
        """Forget a group that is handed out or leaves, where ages are compared."""
        if self._waits:
            self._count_waiting(group.version, -1)
        self._remove_aging(group)

    def _add_aging(self, group: MachineGroup) -> None:
        version = group.version
        if version is None:
            return
        groups = self._aging.get(version)
        if groups is None:
            groups = self._aging[version] = {}
            heappush(self._aging_versions, version)
        groups[group.ordinal] = group

    def _remove_aging(self, group: MachineGroup) -> None:
        if self._aging and group.version in self._aging:
            self._aging[group.version].pop(group.ordinal, None)

    def _move(self, group: MachineGroup, state: GroupState) -> None:
        self.census[group.state] -= 1
        self.census[state] += 1
        group.state = state

    def _refuse(self, group: MachineGroup) -> None:
        self.refused += 1
        self.ended.add(group.ordinal)
        self._remove(group)

    def _drop(self, group: MachineGroup, why: str) -> None:
        self.dropped[why] += 1
        if why != "remainder":
            self.in_vain += 1
        self.ended.add(group.ordinal)
        self._remove(group)

    def _return(self, group: MachineGroup) -> None:
        """Let a group go whose prompt stays open: it comes back, in this run or the next."""
        self.returned += 1
        self._remove(group)
        self.back.add(group.ordinal, (group.prompt, group.size))

    def _remove(self, group: MachineGroup) -> None:
        """Remove a group that is not held, and give its slot back."""
        if group.state is _READY:
            self._remove_ready(group)
            self._settled_weight -= group.weight
        else:
            self._unsettled -= 1
            self._unready.discard(group.ordinal)
        self._remove_from_waiting(group)
        self._cancel_calls(group)
        self._startable.discard(group.ordinal)
        self._move(group, _GROUP_ENDED)
        del self.groups[group.ordinal]
        self._forget_rounding()

    def _forget_rounding(self) -> None:
        """Let no error of floating point arithmetic outlive the weights that it comes from."""
        if not self._ready.values and not self._prefix:
            self._ready_weight = 0
        if len(self.groups) == self._unsettled:
            self._settled_weight = 0

    def _cancel_calls(self, group: MachineGroup) -> None:
        is_late = self.is_paused and self.drain == "no" and not self.is_stopped
        for call in group.calls.values():
            if is_late:  # cancelling in an engine that is paused can kill it
                call.state = _LATE
                self._late[call] = None
            else:
                call.state = _CANCELLED
                self._parked.discard(call)  # what is cancelled leaves its safe point
                self._do.cancels.append(call)
        group.calls = {}

    def _cancel_late(self) -> None:
        for call in self._late:
            call.state = _CANCELLED
            self._do.cancels.append(call)
        self._late = {}

    def _end_evaluation(self, group: MachineGroup, error: BaseException | None) -> None:
        group.error = error
        self._cancel_calls(group)
        self._remove_evaluation(group)
        self._do.evaluated.append(group)

    def _remove_evaluation(self, group: MachineGroup) -> None:
        group.state = _GROUP_ENDED
        self._urgent.discard(group.ordinal)
        self._patient.discard(group.ordinal)
        del self.evaluations[group.ordinal]

    def _undo_step(self, step: int) -> None:
        """Let the groups of the newest step be ready again."""
        self.step -= 1
        for group in self.held.pop(step):
            self._move(group, _READY)
            self._add_to_waiting(group)
            self._add_ready(group)

    def _done(self, step: int) -> None:
        if step in self.given_back:
            return  # nobody has trained it
        for group in self.held.pop(step, ()):
            self._settled_weight -= group.weight
            self._move(group, _GROUP_ENDED)
            del self.groups[group.ordinal]
            self.ended.add(group.ordinal)
            if group.is_refused:
                self.refused += 1
            else:
                self.trained += 1
        self._forget_rounding()

    def _publish(self, version: int) -> None:
        self.version = version
        for step in [step for step in self.held if step < version]:
            self._done(step)

    def _stop(self, error: BaseException | None) -> None:
        self.is_stopped = True
        self._do.is_stopped = True
        self.error = self.error or error
        self._cancel_late()
        for evaluation in list(self.evaluations.values()):
            self._end_evaluation(evaluation, error)
        for group in list(self.groups.values()):
            if group.state is not _HELD:
                self._return(group)


_REASONS: Final = {
    "failed": "failed",
    "stale": "were older than max_staleness",
    "remainder": "were fewer than a batch",
}
NOTHING: Final = Effects()
"""No effects. Nobody changes it."""
