"""Seeded mistakes: each must be found by an exploration.

Most are reports of users of other systems, written as changes of the machine. Others are readings
of the guarantees that seem right, or mistakes that were made in this machine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from aioqueue.rl.machine import (
    CallState,
    Drain,
    Effects,
    GroupState,
    MachineGroup,
    RolloutCall,
    RolloutMachine,
)
from proofs.rollouts.exploring import explore
from proofs.rollouts.process_world import ChildProcess, ProcessWorld
from proofs.rollouts.settings import SETTINGS


class RefusedStillCounts(RolloutMachine):
    """A refused group still counts as accepted, so the budget shrinks."""

    def _load(self) -> float:
        return super()._load() + self.refused


class FormulaAfterRestore(RolloutMachine):
    """Slots by the formula ``(ahead + version + 1) * size - accepted``, whose count begins anew."""

    base = 0

    def restore(self, state: Any) -> None:
        super().restore(state)
        self.base = self.trained

    def _load(self) -> float:
        return self.trained - self.base + super()._load() - self.version * self.batch_size


class FailureLeavesTheStepShort(RolloutMachine):
    """The slot of a group that failed for good is given back only with its step."""

    def _load(self) -> float:
        return super()._load() + max(0, self.dropped["failed"] - self.version)


class ClaimIsAResult(RolloutMachine):
    """The saved position is behind the prompts that were taken."""

    def state(self) -> dict[str, Any]:
        return {**super().state(), "lowest_open": self.next_ordinal, "ended": []}


class WaitsForAFullBatch(RolloutMachine):
    """The prompts end, and the trainer waits for a full batch."""

    def _can_become_ready(self) -> bool:
        return not self.is_stopped


class EndsWithTheSource(RolloutMachine):
    """The loop ends when the prompts do, while groups are still generated."""

    def _can_become_ready(self) -> bool:
        return self.is_pulling or not self.is_source_ended


class DropsTheOldest(RolloutMachine):
    """A full queue drops its oldest group, and says nothing."""

    def judged(self, group: MachineGroup, is_accepted: bool = True, weight: float = 1) -> Effects:
        effects = super().judged(group, is_accepted, weight)
        if self._ready_weight > self.batch_size and not effects.groups:
            self._return(self._ready.first())
            self.back.pop()
            return self._settle()
        return effects


class ReturnsAPart(RolloutMachine):
    """A group that was cancelled is generated again without the rollouts that had ended."""

    def _return(self, group: MachineGroup) -> None:
        pending = group.pending
        super()._return(group)
        if 0 < pending < group.size:
            self.back.discard(group.ordinal)
            self.back.add(group.ordinal, (group.prompt, pending))


class PublicationCancels(RolloutMachine):
    """A publication cancels everything that runs."""

    def resume(self, version: int | None) -> Effects:
        for group in list(self.groups.values()):
            if group.calls:
                self._drop(group, "stale")
        return super().resume(version)


class CancelsInAPublication(RolloutMachine):
    """A call is cancelled while the engine is paused."""

    def _cancel_calls(self, group: MachineGroup) -> None:
        paused, self.is_paused = self.is_paused, False
        super()._cancel_calls(group)
        self.is_paused = paused


class SlotBackAtDelivery(RolloutMachine):
    """A slot is free when its group is handed out: ``steps_ahead=0`` is one step stale."""

    def _load(self) -> float:
        held = sum(group.weight for groups in self.held.values() for group in groups)
        return super()._load() - held


class SlotBackAtPublicationOnly(RolloutMachine):
    """Slots come back with a publication: a trainer that publishes every second step hangs."""

    def done(self, step: int) -> Effects:
        if step >= self.version and not self.is_stopped and not self.is_source_ended:
            return self._settle()
        return super().done(step)


class PublicationStopsAdmissionOnly(RolloutMachine):
    """No prompt is admitted in a publication, but further rollouts and retries start."""

    def _admit_next(self) -> bool:
        return not self.is_paused and super()._admit_next()

    def _start_calls(self) -> None:
        paused, self.is_paused = self.is_paused, False
        super()._start_calls()
        self.is_paused = paused


class EvaluationNeedsASlot(RolloutMachine):
    """An evaluation waits at the gate of the prompts, which never opens again."""

    def _start_calls(self) -> None:
        is_full = super()._load() >= self.batch_size * (self.steps_ahead + 1)
        if not (is_full and not self._startable) and not (self.is_source_ended and not self.groups):
            super()._start_calls()


class FailureKeepsTheGateShut(RolloutMachine):
    """A publication fails, and nobody ends it."""

    def resume(self, version: int | None) -> Effects:
        return Effects() if version is None else super().resume(version)


class StaleOnlyAtPublication(RolloutMachine):
    """What is too old is looked for at publications; what is judged then is overlooked."""

    sweeps = False

    def _sweep(self) -> None:
        if self.sweeps:
            super()._sweep()

    def resume(self, version: int | None) -> Effects:
        self.sweeps = True
        try:
            return super().resume(version)
        finally:
            self.sweeps = False


class WaitsForTheOrdersChoice(RolloutMachine):
    """Only the choice of the order is tried with ``on_stale="wait"``."""

    def _take_lowest_versions(self, versions: Sequence[int]) -> list[MachineGroup]:
        return None  # type: ignore[return-value]


class WaitsForWhatCannotCome(RolloutMachine):
    """With ``on_stale="wait"``, a batch that is too old is never handed out."""

    def _lowest(self, versions: Sequence[int], counts: Counter[int]) -> Counter[int]:
        lowest = super()._lowest(versions, counts)
        return lowest + Counter({-1: id(counts)})


class LosesEffects(RolloutMachine):
    """`done` within `resume` settles, and nobody does what it asks for."""

    def _publish(self, version: int) -> None:
        self.version = version
        for step in [step for step in self.held if step < version]:
            self.done(step)


class CountsAFailureTwice(RolloutMachine):
    """A rollout that failed still counts as running when its group is dropped."""

    def _drop(self, group: MachineGroup, why: str) -> None:
        if why == "failed":
            self.running -= 1
        super()._drop(group, why)


class AdmitsWhatFits(RolloutMachine):
    """With weights, a prompt is admitted only if its group surely fits: nothing moves."""

    def _admit_next(self) -> bool:
        if self._load() + self._estimate() > self.batch_size * (self.steps_ahead + 1):
            return False
        return super()._admit_next()


class FreshIsStale(RolloutMachine):
    """What began with the current version is dropped: it is generated again for ever."""

    def _sweep(self) -> None:
        version, self.version = self.version, self.step + 1
        super()._sweep()
        self.version = version


class EntersAPublication(RolloutMachine):
    """A task that was started just before a publication begins in it."""

    def enter(self, call: RolloutCall) -> bool:
        paused, self.is_paused = self.is_paused, False
        entered = super().enter(call)
        self.is_paused = paused
        return entered


class ForgetsWhatWasTurnedAway(RolloutMachine):
    """A call that may not enter a publication is not started again."""

    def turned_away(self, call: RolloutCall) -> Effects:
        return self.call_ended(call)


class StartIsTheVersion(RolloutMachine):
    """A rollout's version is that of the decision to start it, not that of its first step."""

    def enter(self, call: RolloutCall) -> bool:
        version = self.version
        self.version = call.payload if call.payload is not None else version
        entered = super().enter(call)
        self.version = version
        return entered

    def _settle(self) -> Effects:
        effects = super()._settle()
        for call in effects.starts:
            call.payload = self.version
        return effects


class CancelledIsOver(RolloutMachine):
    """A cancelled call frees its place before it has ended."""

    def _cancel_calls(self, group: MachineGroup) -> None:
        self.running -= len(group.calls)
        super()._cancel_calls(group)

    def _leave(self, call: RolloutCall) -> bool:
        self.running += call.state in (CallState.CANCELLED, CallState.LATE)
        return super()._leave(call)


class RestIsForgotten(RolloutMachine):
    """A retry that is due in the middle of a publication is forgotten."""

    def due(self, group: MachineGroup, index: int) -> Effects:
        return self._settle() if self.is_paused else super().due(group, index)


class SafePointsDoNotCount(RolloutMachine):
    """A publication that waits for safe points waits for the ends of calls."""

    def park(self, call: RolloutCall) -> tuple[bool, Effects]:
        parks, effects = super().park(call)
        self._parked.clear()
        return parks, effects


class ParksInADrain(RolloutMachine):
    """A call waits at a safe point for a publication that waits for the call."""

    def pause(self, drain: Drain = "no") -> Effects:
        effects = super().pause(drain)
        self.parks = True
        return effects


class FrozenGrowsOld(RolloutMachine):
    """A frozen rollout grows old."""

    def freeze(self, call: RolloutCall) -> Effects:
        return self._settle()


class EmptyPlaceIsAStep(RolloutMachine):
    """A batch of nothing but refused groups is handed out."""

    def _remove_chosen(self, chosen: Sequence[MachineGroup]) -> None:
        if self.drop_remainder:
            super()._remove_chosen(chosen)
            return
        for group in chosen:
            self._move(group, GroupState.HELD)
        self.held[self.step] = list(chosen)
        self._do.step, self._do.groups = self.step, chosen
        self.is_taking = False
        self.step += 1


class EmptyPlaceIsTrained(RolloutMachine):
    """A refused group whose place was kept is counted as trained."""

    def _done(self, step: int) -> None:
        for group in self.held.get(step, ()):
            group.is_refused = False
        super()._done(step)


class NeverGivesUp(RolloutMachine):
    """Every group is refused, and the queue goes on for ever."""

    def _check_starvation(self) -> None:
        pass


class ForgetsAnOlderStep(RolloutMachine):
    """An older step that is given back remains held, and nobody gets it."""

    def give_back(self, step: int) -> Effects:
        return super().give_back(step) if step == self.step - 1 else self._settle()


class ReturnsAStepTwice(RolloutMachine):
    """A step that is handed out again is still to be handed out."""

    def _deliver(self, step: int) -> None:
        super()._deliver(step)
        if step != self.step - 1 and step not in self.given_back:
            self.given_back.insert(0, step)


class TakesBackTheOldest(RolloutMachine):
    """A step that is given back keeps its slots' weight out of what is ready."""

    def give_back(self, step: int) -> Effects:
        held = self.held.get(step, [])
        effects = super().give_back(step)
        if held and step not in self.held:
            self._ready_weight -= held[0].weight
        return effects


class RoundsSlotsUp(RolloutMachine):
    """A part of a step ahead is a whole slot more."""

    def _load(self) -> float:
        ahead = self.batch_size * (self.steps_ahead + 1)
        return super()._load() - (math.ceil(ahead) - ahead)


# Mistakes of the protocol with a child process, in which the calls run.


class BeginsBeforeTheAnswer(ProcessWorld):
    """A publication begins before the child has confirmed that its gate is shut."""

    def _begin_publication(self) -> None:
        super()._begin_publication()
        if self.is_revoking:
            self._closed()


class TakesAnyAnswer(ProcessWorld):
    """The answer to a publication that was abandoned counts for the next one."""

    def _reported_closed(self, publication: int) -> None:
        super()._reported_closed(self.publication)


class AnswersBeforeItsReports(ProcessWorld):
    """The child confirms before it has sent the reports of what has begun."""

    class Child(ChildProcess):
        def _do_close(self, publication: int) -> None:
            super()._do_close(publication)
            self.outbox.insert(0, self.outbox.pop())

    child_type = Child


class WaitsBehindTheGate(ProcessWorld):
    """A call that arrives at a closed gate waits there, and a drain waits for it."""

    class Child(ChildProcess):
        def _do_start(self, call: RolloutCall) -> None:
            self.waiting.append(call)

    child_type = Child


class BeginsBehindTheGate(ProcessWorld):
    """A task that has a place begins, though the gate was shut before its first step."""

    class Child(ChildProcess):
        def enter(self, number: int) -> bool:
            is_open, self.is_open = self.is_open, True
            try:
                return super().enter(number)
            finally:
                self.is_open = is_open

    child_type = Child


class StartsAllThatIsGranted(ProcessWorld):
    """The child starts whatever it is granted."""

    class Child(ChildProcess):
        def start_next(self) -> None:
            self.limit = 1000
            super().start_next()

    child_type = Child


class LeavesTheGateShut(ProcessWorld):
    """The child never hears that a publication has ended."""

    def _reopen(self) -> None:
        pass


class ForgetsWhatWasRevoked(ProcessWorld):
    """What was turned away before a publication is not started after it."""

    def _report_turned_away(self) -> None:
        for call in self.turned_away:
            self._end(call)
            self.do(self.machine.call_ended(call))
        self.turned_away = []


class WaitsForTheDead(ProcessWorld):
    """A publication waits for the answer of a process that has died."""

    def _on_eof(self) -> None:
        is_revoking, self.is_revoking = self.is_revoking, False
        super()._on_eof()
        self.is_revoking = is_revoking


class LosesTheCallsOfTheDead(ProcessWorld):
    """What had not begun when the process died starts in no other."""

    def _on_eof(self) -> None:
        assert self.child is not None
        for call in [one for one in self.calls if one not in self.child.begun]:
            self._end(call)
            self.do(self.machine.call_ended(call))
        super()._on_eof()


PROTOCOL_MISTAKES: Final = tuple(
    cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, ProcessWorld) and cls is not ProcessWorld
)

MISTAKES: Final = tuple(
    cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, RolloutMachine) and cls is not RolloutMachine
)

FOUND_BY: Final[dict[str, str]] = {
    "RefusedStillCounts": "ready B2 S0 G2 drop what fails",
    "FormulaAfterRestore": "ready restore twice",
    "FailureLeavesTheStepShort": "ready G2 fail in a publication",
    "ClaimIsAResult": "ready restore twice",
    "WaitsForAFullBatch": "ready G2 fail in a publication",
    "EndsWithTheSource": "ready G2 fail in a publication",
    "DropsTheOldest": "ready G2 fail in a publication",
    "ReturnsAPart": "oldest cancel G2 again",
    "PublicationCancels": "ready G2 frozen",
    "CancelsInAPublication": "ready G2 fail in a publication",
    "SlotBackAtDelivery": "strict B1 S0 refuse",
    "SlotBackAtPublicationOnly": "oldest second",
    "PublicationStopsAdmissionOnly": "ready B1 S1 refuse",
    "EvaluationNeedsASlot": "ready S0 evaluate",
    "FailureKeepsTheGateShut": "oldest failing",
    "StaleOnlyAtPublication": "oldest drop again",
    "WaitsForTheOrdersChoice": "ready wait B2 S1 M1",
    "WaitsForWhatCannotCome": "oldest wait second",
    "LosesEffects": "oldest B1 S0 refuse",
    "CountsAFailureTwice": "ready G2 fail in a publication",
    "AdmitsWhatFits": "oldest weigh B2 S0",
    "FreshIsStale": "oldest drop again second",
    "EntersAPublication": "oldest enter",
    "ForgetsWhatWasTurnedAway": "oldest enter",
    "StartIsTheVersion": "oldest cancel enter",
    "CancelledIsOver": "oldest G2 cancelled calls last",
    "RestIsForgotten": "oldest G2 retries rest",
    "SafePointsDoNotCount": "oldest G2 drain to safe points",
    "ParksInADrain": "oldest drain, safe points",
    "FrozenGrowsOld": "oldest cancel drop frozen",
    "EmptyPlaceIsAStep": "oldest each B2 S0 shorten",
    "EmptyPlaceIsTrained": "oldest each B2 S0 shorten",
    "NeverGivesUp": "oldest B2 replace starves",
    "ForgetsAnOlderStep": "strict B2 lose",
    "ReturnsAStepTwice": "strict B2 lose",
    "TakesBackTheOldest": "oldest B2 S0 give back",
    "RoundsSlotsUp": "oldest B3 S0.1 a part of a step",
    "BeginsBeforeTheAnswer": "process B1 S1, drain no",
    "TakesAnyAnswer": "process abandon, drain no",
    "AnswersBeforeItsReports": "process B1 S1, drain no",
    "WaitsBehindTheGate": "process B1 S1, drain ended",
    "BeginsBehindTheGate": "process B1 S1, drain no",
    "StartsAllThatIsGranted": "process B1 S1, drain no",
    "LeavesTheGateShut": "process B1 S1, drain no",
    "ForgetsWhatWasRevoked": "process abandon, drain no",
    "WaitsForTheDead": "process dies, abandon, drain no",
    "LosesTheCallsOfTheDead": "process dies, drain no",
}
"""The name of a configuration that finds each mistake, so that a test need not look for it."""


def finder_of(mistake: type[RolloutMachine] | type[ProcessWorld]) -> tuple[str, str] | None:
    """Return the first configuration that finds a mistake, and what it says; ``None`` if none does.

    The configuration in `FOUND_BY` comes first, then the others, the smallest first.
    """
    known = FOUND_BY.get(mistake.__name__)
    for setting in sorted(SETTINGS, key=lambda one: (one.name != known, one.prompts)):
        if issubclass(mistake, RolloutMachine):
            result = explore(replace(setting, machine=mistake), max_states=60_000)
        elif setting.in_process:
            result = explore(setting, kind=mistake, max_states=60_000)
        else:
            continue
        if result.violation and result.violation != "too many states":
            return setting.name, result.violation
    return None
