"""What surrounds the machine of a `RolloutQueue`, with everything that can happen next."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from aioqueue.rl.machine import (
    CallState,
    Effects,
    GroupState,
    MachineGroup,
    RolloutCall,
    RolloutMachine,
    Stored,
)

Event = tuple[Any, ...]

PUBLISHERS: Final = ("each", "second", "failing", "late")
"""A trainer publishes each step, each second step, or fails to publish some; or it reads ahead and
ends its steps with `done`, late."""
INTERRUPTIONS: Final = frozenset(
    (
        "stop",
        "close",
        "untake",
        "restore",
        "evaluate",
        "withdraw",
        "limit",
        "grow",
        "shrink",
        "freeze",
        "die",
        "abandon",
    )
)
"""Events that may happen, and that nobody needs for the run to go on."""


class ViolationError(Exception):
    """A guarantee does not hold."""


@dataclass(frozen=True)
class Setting:
    """One configuration.

    Attributes:
        name: what it is called.
        prompts: how many the source has.
        trainer: one of `PUBLISHERS`.
        faults: how often each thing may happen in a run: ``fail``, ``refuse``, ``stop`` and others.
        drain: what publications wait for.
        weights: what a group may weigh.
        enters: whether a call's first step is an event of its own.
        lingers: whether the end of a cancelled call is.
        rests: whether a retry is due later.
        stores: whether ready groups are stored with the state.
        source_fails: whether the source ends with an error.
        group_size: how many rollouts each group has.
        tries: how often a rollout is attempted.
        in_process: whether the calls run in a child process, see `proofs.rollouts.process_world`.
        machine: the class.
        options: of the machine.
    """

    name: str
    prompts: int
    trainer: str = "each"
    faults: dict[str, int] = field(default_factory=dict)
    drain: str = "no"
    weights: tuple[int, ...] = (1,)
    enters: bool = False
    lingers: bool = False
    rests: bool = False
    stores: bool = False
    source_fails: bool = False
    group_size: int = 1
    tries: int = 1
    in_process: bool = False
    machine: type[RolloutMachine] = RolloutMachine
    options: dict[str, Any] = field(default_factory=dict)

    def new_machine(self) -> RolloutMachine:
        machine = self.machine(**{"min_group_size": 1, **self.options})
        machine.grants_ahead = self.in_process
        return machine


def machine_key(machine: RolloutMachine) -> Any:
    """What the future of a machine depends on."""
    places = sorted(
        group.place for group in machine.groups.values() if group.state is GroupState.READY
    )
    ranks = {place: rank for rank, place in enumerate(places)}

    def group_key(group: MachineGroup) -> Any:
        return (
            *(group.ordinal, group.size, group.state, group.version, group.weight),
            *(group.is_refused, group.pending, group.lost, group.next_index, group.threshold),
            ranks.get(group.place) if group.state is GroupState.READY else None,
            tuple(sorted(group.renewed)),
            tuple(sorted(group.attempts.items())),
            tuple(sorted(group.versions.items())),
            tuple(sorted((index, call.state, call.version) for index, call in group.calls.items())),
        )

    return (
        tuple(group_key(machine.groups[key]) for key in sorted(machine.groups)),
        tuple(group_key(machine.evaluations[key]) for key in sorted(machine.evaluations)),
        tuple(sorted((s, tuple(g.ordinal for g in groups)) for s, groups in machine.held.items())),
        tuple(machine.given_back),
        tuple(sorted(key for key in range(machine.next_ordinal) if key in machine.back.values)),
        *(machine.is_source_ended, machine.is_pulling, machine.is_taking, machine.is_paused),
        *(machine.drain, machine.parks, machine.is_stopped, str(machine.error)),
        *(machine.step, machine.version, machine.running, machine.next_ordinal, machine.in_vain),
        *(machine.batch_size, machine.steps_ahead, machine.limit),
        *(machine.trained, machine.refused),
        tuple(sorted(machine.dropped.items())),
        machine.ended.lowest_open,
        str(machine.ended.ranges()),
        tuple(sorted(machine.refused_places)),
        tuple(machine._weights),
    )


class World:
    """The source, the user's functions, the trainer and the threads, around a machine."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.machine = setting.new_machine()
        self.faults = dict(setting.faults)
        self.pulled: int | None = None
        self.calls: list[RolloutCall] = []
        """Those whose function has not ended."""
        self.parked: list[RolloutCall] = []
        """Those at safe points."""
        self.judged: list[MachineGroup] = []
        self.resting: list[tuple[MachineGroup, int]] = []
        self.evaluations: list[MachineGroup] = []
        self.trainer = "idle"
        self.holds: list[tuple[int, list[int]]] = []
        """The steps that the trainer has and has not finished with, with their prompts."""
        self.trained: set[int] = set()
        self.refused: set[int] = set()
        self.stored: dict[int, Stored] = {}
        self.is_ended = False
        self.vain = 0
        """Groups in a row that were refused or dropped."""
        self.frozen: set[int] = set()
        """Prompts whose only rollout is frozen."""
        self.was_resized = False
        self.last_ordinal = -1
        self.do(self.machine.begin())

    def key(self) -> Any:
        """What the future of a world depends on."""
        calls = sorted(
            (
                *(call.group.is_evaluation, call.group.ordinal, call.index, call.attempt),
                *(call.state.value, call.is_current, call.version, call in self.parked),
            )
            for call in self.calls
        )
        return (
            machine_key(self.machine),
            tuple(calls),
            tuple(sorted((g.ordinal, g.state is GroupState.JUDGED) for g in self.judged)),
            tuple(sorted((g.ordinal, g.state.value, index) for g, index in self.resting)),
            tuple(sorted(self.faults.items())),
            *(self.pulled, len(self.evaluations), self.trainer, str(self.holds), self.last_ordinal),
            *(
                self.is_ended,
                self.vain,
                frozenset(self.frozen),
                frozenset(self.trained),
                frozenset(self.refused),
                str(self.stored),
            ),
        )

    # ---- effects -----------------------------------------------------------------------------

    def do(self, effects: Effects) -> None:
        machine = self.machine
        if effects.pull is not None:
            if self.pulled is not None:
                raise ViolationError("two prompts are asked for at once")
            self.pulled = effects.pull
        for call in effects.cancels:
            if machine.is_paused and machine.drain == "no" and not machine.is_stopped:
                raise ViolationError("a call is cancelled while the engine is paused")
            if call not in self.calls:
                raise ViolationError("what does not run is cancelled")
            if call in self.parked:
                self.parked.remove(call)
        for call in effects.starts:
            self._start(call)
        if not self.setting.lingers:
            for call in effects.cancels:
                self.calls.remove(call)
                self.do(machine.call_ended(call))
        self.judged += effects.judge
        for group in effects.evaluated:
            self.evaluations.remove(group)
            if group.pending and group.error is None and not machine.is_stopped:
                raise ViolationError("an evaluation ends before its rollouts")
        if effects.is_drained:
            waited_for = [one for one in self.calls if one not in self.parked]
            if waited_for or (self.calls and self.setting.drain == "ended"):
                raise ViolationError("a publication goes on while calls run")
            if self.trainer != "draining":
                raise ViolationError("a publication that does not wait goes on")
            self.trainer = "publishing"
        if effects.step is not None:
            self._take(effects.step, list(effects.groups))
        if effects.is_end:
            self.trainer = "ended"
            self.is_ended = True

    def _start(self, call: RolloutCall) -> None:
        machine = self.machine
        if machine.is_paused or machine.is_stopped:
            raise ViolationError("a call starts while weights are published, or after the stop")
        for other in self.calls:
            if other.is_current and (other.group, other.index) == (call.group, call.index):
                raise ViolationError("a rollout is started twice")
        self.calls.append(call)
        if len(self.calls) > machine.limit and "limit" not in self.setting.faults:
            raise ViolationError("more calls run than max_in_flight")
        if not self.setting.enters:
            self._enter(call)

    def _enter(self, call: RolloutCall) -> None:
        if self.machine.enter(call):
            if self.machine.is_paused:
                raise ViolationError("a call begins while weights are published")
        else:
            self.calls.remove(call)
            self.do(self.machine.turned_away(call))

    def _take(self, step: int, groups: list[MachineGroup]) -> None:
        setting, machine = self.setting, self.machine
        self.trainer = "got" if setting.trainer != "late" else "idle"
        self.holds.append((step, [group.prompt for group in groups if not group.is_refused]))
        if not self.holds[-1][1]:
            raise ViolationError("a batch has no group that can be trained")
        weight = sum(group.weight for group in groups)
        if weight < machine.batch_size and not machine.is_source_ended:
            raise ViolationError("a batch is short though there are more prompts")
        states = machine.census
        if weight < machine.batch_size and (states[GroupState.OPEN] or states[GroupState.JUDGED]):
            raise ViolationError("a batch is short though groups are generated")
        options = setting.options
        order, on_stale = options.get("order"), options.get("on_stale", "train")
        is_exact = setting.trainer == "each" and not self.was_resized
        for group in groups:
            may_lack = group.is_refused or "freeze" in setting.faults
            may_lack = may_lack or group.ordinal in self.stored
            if len(group.versions) + group.lost < setting.group_size and not may_lack:
                raise ViolationError("a group has fewer rollouts than its size")
            age = 0 if group.version is None else step - group.version
            is_known = len(setting.weights) == 1 or machine.max_weight == max(setting.weights)
            is_bound = order == "strict" and is_exact and is_known
            if is_bound and age > math.ceil(machine.steps_ahead):
                raise ViolationError(f"staleness is {age} with order='strict'")
            if on_stale != "train" and is_exact and age > options["max_staleness"]:
                raise ViolationError(f"staleness is {age} with on_stale={on_stale!r}")
        ordinals = [group.ordinal for group in groups]
        if order == "strict" and on_stale == "train":
            if ordinals != sorted(ordinals) or ordinals[0] <= self.last_ordinal:
                raise ViolationError("a batch is out of order with order='strict'")
            self.last_ordinal = ordinals[-1]

    # ---- events ------------------------------------------------------------------------------

    def may(self, fault: str) -> bool:
        return self.faults.get(fault, 0) > 0

    def events(self) -> list[Event]:
        """Everything that can happen next."""
        setting, machine = self.setting, self.machine
        events: list[Event] = []
        if self.pulled is not None:
            events.append(("prompt",))
        for number, call in enumerate(self.calls):
            if call.state is CallState.STARTED and setting.enters:
                events.append(("enter", number))
                continue
            if call in self.parked:
                continue
            events.append(("finish", number))
            if call.is_current and self.may("fail"):
                events.append(("fail", number))
            if call.is_current and self.may("expire"):
                events.append(("expire", number))
            if call.is_current and self.may("freeze"):
                events.append(("freeze", number))
            if call.is_current and (
                self.may("park") or (setting.drain == "safe" and machine.parks)
            ):
                events.append(("park", number))
        for number in range(len(self.judged)):
            events += [("judge", number, True, weight) for weight in setting.weights]
            if self.may("refuse"):
                events.append(("judge", number, False, 1))
        events += [("due", number) for number in range(len(self.resting))]
        if self.trainer == "idle":
            events.append(("take",))
        elif self.trainer == "got":
            events.append(("train",))
        elif self.trainer == "publishing":
            events.append(("publish",))
        elif self.trainer == "waiting" and self.may("untake"):
            events.append(("untake",))
        if setting.trainer == "late" and self.holds:
            events.append(("done",))
        if self.trainer == "got" and self.may("give_back"):
            events.append(("give_back",))
        if setting.trainer == "late" and self.may("lose"):
            events += [("lose", number) for number in range(len(self.holds))]
        if not machine.is_stopped and not self.is_ended:
            names = ("stop", "close", "evaluate", "limit", "grow", "shrink")
            events += [(name,) for name in names if self.may(name)]
        if self.evaluations and self.may("withdraw"):
            events.append(("withdraw",))
        if self.may("restore") and not self.is_ended:
            events.append(("restore",))
        return events

    def happen(self, event: Event) -> None:
        """Let one of `events` happen."""
        name = event[0]
        if name in self.faults:
            self.faults[name] -= 1
        getattr(self, f"_on_{name}")(*event[1:])
        self._check()

    def _on_prompt(self) -> None:
        ordinal, self.pulled = self.pulled, None
        assert ordinal is not None
        if ordinal < self.setting.prompts:
            stored = self.stored.get(ordinal)
            size = self.setting.group_size
            self.do(self.machine.prompt(ordinal, size, stored)[1])
        else:
            error = OSError("the source") if self.setting.source_fails else None
            self.do(self.machine.source_end(error))

    def _on_enter(self, number: int) -> None:
        self._enter(self.calls[number])

    def _on_finish(self, number: int) -> None:
        call = self.calls.pop(number)
        self.do(self.machine.finished(call))

    def _on_fail(self, number: int) -> None:
        call = self.calls.pop(number)
        is_last = call.attempt >= self.setting.tries
        if not is_last and self.setting.rests:
            self.resting.append((call.group, call.index))
            self.do(self.machine.failed(call, ValueError("rollout"), "later"))
        else:
            retry: Literal["no", "now"] = "no" if is_last else "now"
            self.vain += is_last and call.is_current
            self.do(self.machine.failed(call, ValueError("rollout"), retry))

    def _on_expire(self, number: int) -> None:
        call = self.calls[number]
        is_last = call.attempt >= self.setting.tries
        self.vain += is_last
        if call in self.parked:
            self.parked.remove(call)
        self.do(self.machine.expired(call, ValueError("rollout"), "no" if is_last else "now"))

    def _on_due(self, number: int) -> None:
        group, index = self.resting.pop(number)
        self.do(self.machine.due(group, index))

    def _on_freeze(self, number: int) -> None:
        call = self.calls[number]
        if call.group.size == 1 and not call.group.is_evaluation:
            self.frozen.add(call.group.prompt)
        self.do(self.machine.freeze(call))

    def _on_park(self, number: int) -> None:
        parks, effects = self.machine.park(self.calls[number])
        if parks:
            self.parked.append(self.calls[number])
        self.do(effects)

    def _on_judge(self, number: int, is_accepted: bool, weight: int) -> None:
        group = self.judged.pop(number)
        if not is_accepted:
            self.faults["refuse"] -= 1
            if group.state is GroupState.JUDGED:
                self.refused.add(group.prompt)
                self.vain += 1
        elif group.state is GroupState.JUDGED:
            self.vain = 0
        self.do(self.machine.judged(group, is_accepted, weight))

    def _on_take(self) -> None:
        self.trainer = "waiting"
        if self.setting.trainer != "late":  # to ask for the next step is `done` of the last
            for step, prompts in self.holds:
                self._count(prompts)
                self.do(self.machine.done(step))
            self.holds = []
        self.do(self.machine.take())

    def _on_untake(self) -> None:
        self.trainer = "idle"
        self.do(self.machine.untake())

    def _on_train(self) -> None:
        setting, step = self.setting, self.holds[-1][0]
        publishes = {"each": True, "second": step % 2 == 1, "failing": step % 2 == 0}
        if not publishes[setting.trainer]:
            self.trainer = "idle"
            return
        self._begin_publication()

    def _begin_publication(self) -> None:
        drain = self.setting.drain
        self.trainer = "publishing" if drain == "no" else "draining"
        self.do(self.machine.pause(drain))  # type: ignore[arg-type]

    def _on_publish(self) -> None:
        step = self.holds[-1][0]
        self.parked = []
        if self.setting.trainer == "failing" and step % 4 == 0:
            self._end_publication(None)
        else:
            for _, prompts in self.holds:
                self._count(prompts)
            self.holds = []
            self._end_publication(step + 1)

    def _end_publication(self, version: int | None) -> None:
        self.trainer = "idle"
        self.do(self.machine.resume(version))

    def _on_done(self) -> None:
        step, prompts = self.holds.pop(0)
        self._count(prompts)
        self.do(self.machine.done(step))

    def _on_give_back(self) -> None:
        """The trainer dies with its step, and another one asks."""
        step, _ = self.holds.pop()
        for other, prompts in self.holds:
            self._count(prompts)
            self.do(self.machine.done(other))
        self.holds, self.trainer, self.last_ordinal = [], "idle", -1
        self.do(self.machine.give_back(step))

    def _on_lose(self, number: int) -> None:
        """One of several trainers dies with a step, be it the newest or an older one. Another asks
        again, though there may have been nothing left but this step."""
        step, _ = self.holds.pop(number)
        self.last_ordinal = -1
        if self.trainer == "ended":
            self.trainer, self.is_ended = "idle", False
        self.do(self.machine.give_back(step))

    def _on_stop(self) -> None:
        self.do(self.machine.stop())

    def _on_close(self) -> None:
        self.do(self.machine.close())

    def _on_evaluate(self) -> None:
        has_priority = self.faults["evaluate"] % 2 == 0
        group, effects = self.machine.evaluate(
            "question", self.setting.group_size, has_priority=has_priority
        )
        self.evaluations.append(group)
        self.do(effects)

    def _on_withdraw(self) -> None:
        self.do(self.machine.withdraw(self.evaluations.pop()))

    def _on_limit(self) -> None:
        self.do(self.machine.set(limit=1))

    def _on_grow(self) -> None:
        self.was_resized = True
        self.do(self.machine.set(batch_size=self.machine.batch_size + 1))

    def _on_shrink(self) -> None:
        self.was_resized = True
        size, ahead = self.machine.batch_size, self.machine.steps_ahead
        self.do(self.machine.set(batch_size=max(1, size - 1), steps_ahead=max(0, ahead - 1)))

    def _on_restore(self) -> None:
        """The process dies, and a new one continues from the state."""
        state = json.loads(json.dumps(self.machine.state()))
        if self.setting.stores:
            self.stored = {
                group.ordinal: Stored(group.version, group.weight)
                for group in self.machine.groups.values()
                if group.state is GroupState.READY and not group.is_refused
            }
        self.machine = self.setting.new_machine()
        self.machine.restore(state)
        self.pulled, self.calls, self.judged, self.resting, self.holds = None, [], [], [], []
        self.evaluations, self.trainer, self.last_ordinal = [], "idle", -1
        self.do(self.machine.begin())

    def _count(self, prompts: list[int]) -> None:
        for prompt in prompts:
            if prompt in self.trained or prompt in self.refused:
                raise ViolationError(f"prompt {prompt} is trained twice, or though it was refused")
        self.trained |= set(prompts)

    # ---- what must hold ----------------------------------------------------------------------

    def _check(self) -> None:
        machine = self.machine
        left = machine.trained + machine.refused + machine.returned + sum(machine.dropped.values())
        if machine.admitted != left + len(machine.groups):
            raise ViolationError("the counts do not add up")
        if machine.running != len(self.calls):
            raise ViolationError(f"{machine.running} calls are counted, and {len(self.calls)} run")
        held = {group.ordinal for groups in machine.held.values() for group in groups}
        if held != {g.ordinal for g in machine.groups.values() if g.state is GroupState.HELD}:
            raise ViolationError("what is held is not what was handed out")
        states = [group.state for group in machine.groups.values()]
        if any(
            states.count(state) != machine.census[state]
            for state in GroupState
            if state is not GroupState.ENDED
        ):
            raise ViolationError("the census is wrong")
        budget = machine.batch_size * (machine.steps_ahead + 1)
        used = len(machine.groups) + machine.is_pulling
        if len(self.setting.weights) == 1 and not self.was_resized and used > budget:
            raise ViolationError("there are more groups than slots")

        most = self.setting.options["max_refused"]
        if most is not None and self.vain >= most * machine.batch_size and not machine.is_stopped:
            raise ViolationError("the queue does not give up")

    def needs_nothing(self) -> bool:
        """Whether everything has ended that can end."""
        return self.is_ended and not (
            self.calls or self.judged or self.resting or self.pulled is not None or self.holds
        )

    def check_end(self) -> None:
        """Check a world that needs nothing."""
        machine, setting, options = self.machine, self.setting, self.setting.options
        if self.evaluations:
            raise ViolationError("an evaluation never ends")
        if "stop" not in setting.faults and machine._startable.values:
            raise ViolationError("a group remains listed")
        may_drop = options.get("on_stale") in ("drop", "cancel") or options.get("drop_remainder")
        may_drop = may_drop or options.get("on_error") in ("drop", "partial")
        if machine.dropped and not may_drop:
            raise ViolationError(f"{dict(machine.dropped)} are dropped though nobody asked for it")
        if machine.is_stopped or machine.error is not None:
            return
        if machine.groups:
            raise ViolationError("groups are left behind")
        if not self.frozen <= self.trained:
            raise ViolationError("a frozen rollout grows old")
        if self.faults.get("close", 0) == setting.faults.get("close", 0):
            ended = machine.trained + machine.refused + sum(machine.dropped.values())
            if ended != setting.prompts:
                raise ViolationError(f"{ended} of {setting.prompts} prompts have ended")
        if machine.trained != len(self.trained):
            raise ViolationError("prompts were trained that are not counted")
        if machine.refused != len(self.refused):
            raise ViolationError("prompts were refused that are not counted")
