"""Why a trainer waits, or a publication: the part of a `RolloutQueue` in explanations."""

from __future__ import annotations

import os
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Final

from aioqueue.errors import counted, describe_exception
from aioqueue.rl.machine import GroupState
from aioqueue.telemetry.explain.explanation import (
    Culprit,
    CulpritKind,
    ExplainedWait,
    Explanation,
    format_seconds,
)
from aioqueue.telemetry.explain.frames import current_frames
from aioqueue.telemetry.explain.registry import note_waits
from aioqueue.telemetry.explain.stacks import place_of, stack_of

if TYPE_CHECKING:
    from aioqueue.rl.core import Publisher, RolloutCore

_MOST_SHOWN: Final = 3
"""Rollouts that an explanation names."""


class RolloutWaits:
    """The waits of one queue, for explanations and watchdogs. It does not keep the queue alive."""

    def __init__(self, core: RolloutCore) -> None:
        self._core = weakref.ref(core)

    def waits(self, frames: Mapping[int, FrameType]) -> Iterable[ExplainedWait]:
        core = self._core()
        return () if core is None else tuple(_waits_of(core, frames))

    def waits_move(self) -> Hashable:
        core = self._core()
        return None if core is None else core.progress()

    def longest_of_waits(self) -> float:
        core = self._core()
        if core is None:
            return 0.0
        now = perf_counter()
        waits = [now - taker.began for taker in core.waiting_takers()]
        waits += [now - call[0].began for call in core.waiting_evaluations()]
        waits += [now - publisher.joined for publisher in list(core.publishers)]
        if core.publisher is not None and _waits_to_begin(core, core.publisher):
            waits.append(now - core.publisher.began)
        return max(waits, default=0.0)

    def waits_for(self, coordinator: object) -> bool:
        core = self._core()
        return core is not None and core.coordinator is coordinator


def note_rollouts(core: RolloutCore) -> None:
    """Let explanations and watchdogs know of a queue."""
    core.waits = RolloutWaits(core)
    note_waits(core.waits)


def explanation_of(core: RolloutCore) -> Explanation:
    """Explain the waits at one queue."""
    with current_frames() as frames:
        waits = tuple(_waits_of(core, frames))
        culprits = tuple(culprit for wait in waits for culprit in wait.culprits)
        hints = () if waits else tuple(_hints(core))
    return Explanation(culprits, (), (), (), os.getpid(), waits, hints)


def _waits_of(core: RolloutCore, frames: Mapping[int, FrameType]) -> Iterator[ExplainedWait]:
    machine, now = core.machine, perf_counter()
    for number, taker in enumerate(core.waiting_takers()):
        seconds, owner = now - taker.began, taker.owner
        ready, size = machine.census[GroupState.READY], machine.batch_size
        groups = "" if machine.is_weighed else f": {ready} of {size:g} groups are ready"
        what = f"waits for step {machine.step + number} of {core}{groups}"
        chain = (f"{owner.name} {what}, for {format_seconds(seconds)}",)
        culprits = tuple(_causes(core, chain, frames, now))
        yield ExplainedWait(
            owner.name, what, seconds, culprits, stack_of(owner.thing, frames), key=owner.key
        )
    for evaluations in core.waiting_evaluations():
        seconds, owner = now - evaluations[0].began, evaluations[0].owner
        what = f"waits in evaluate() of {core} for {counted(len(evaluations), 'prompt')}"
        chain = (f"{owner.name} {what}, for {format_seconds(seconds)}",)
        culprits = tuple(_why_nothing_starts(core, chain, now))
        culprits += tuple(_slow_calls(core, chain, frames, now))
        yield ExplainedWait(
            owner.name, what, seconds, culprits, stack_of(owner.thing, frames), key=owner.key
        )
    publisher = core.publisher
    if publisher is not None and _waits_to_begin(core, publisher):
        seconds, owner = now - publisher.began, publisher.owner
        what = f"waits in publishing() of {core} for {_before_body(core, publisher)}"
        chain = (f"{owner.name} {what}, for {format_seconds(seconds)}",)
        culprits = (_open_publication(core, publisher, chain, now),)
        culprits += tuple(_slow_calls(core, chain, frames, now))
        yield ExplainedWait(
            owner.name, what, seconds, culprits, stack_of(owner.thing, frames), key=owner.key
        )
    for waiting in list(core.publishers):
        seconds, owner = now - waiting.joined, waiting.owner
        what = f"waits in publishing() of {core} for another publication to end"
        chain = (f"{owner.name} {what}, for {format_seconds(seconds)}",)
        culprits = ()
        if publisher is not None:
            place = place_of(stack_of(publisher.owner.thing, frames))
            sentence = (
                f"publishing() of {core} is open for {format_seconds(now - publisher.began)}, in"
                f" {publisher.owner.name}" + (f", at {place}" if place else "")
            )
            culprits = (Culprit("unfinished", sentence, chain, queue=core.name),)
        yield ExplainedWait(
            owner.name, what, seconds, culprits, stack_of(owner.thing, frames), key=owner.key
        )


def _waits_to_begin(core: RolloutCore, publisher: Publisher) -> bool:
    """Whether the body of a publication, whose turn it is, has to wait."""
    if core.is_revoking:
        return True
    return publisher.drain != "no" and not publisher.drained.is_open


def _before_body(core: RolloutCore, publisher: Publisher) -> str:
    """Return what the body of a publication waits for."""
    unconfirmed = ", ".join(core.unconfirmed())
    if unconfirmed:
        return f"{unconfirmed} to confirm that nothing starts there"
    left = counted(core.machine.running - len(core.machine._parked), "rollout")
    return f"{left} to end" if publisher.drain == "ended" else f"{left} to reach a safe point"


def _open_publication(
    core: RolloutCore, publisher: Publisher, chain: tuple[str, ...], now: float
) -> Culprit:
    """Return the publication in which nothing starts, as a cause."""
    if _waits_to_begin(core, publisher):
        text = f"publishing() of {core} is open: it waits for {_before_body(core, publisher)}"
    else:
        seconds = format_seconds(now - publisher.began)
        text = f"publishing() of {core} is open for {seconds}: nothing starts in it"
    return Culprit("unfinished", text, chain, queue=core.name)


def _causes(
    core: RolloutCore, chain: tuple[str, ...], frames: Mapping[int, FrameType], now: float
) -> Iterator[Culprit]:
    """Yield what a trainer waits for."""
    machine = core.machine

    def culprit(kind: CulpritKind, sentence: str) -> Culprit:
        return Culprit(kind, sentence, chain, queue=core.name)

    if not core.has_started:
        yield culprit(
            "unfinished",
            f"nothing generates for {core}: coordinator.start(rollouts.generate(function))",
        )
        return
    budget = machine.batch_size * (machine.steps_ahead + 1)
    if machine.held and machine.census[GroupState.HELD] >= int(budget):
        last = max(machine.held)
        yield culprit(
            "unfinished",
            f"step {machine.step} of {core} waits for done() of step {last}: all"
            f" {counted(int(budget), 'slot')} belong to steps that are not done",
        )
    yield from _why_nothing_starts(core, chain, now)
    if machine.error is not None:
        yield culprit("source", _source_failure(core, machine.error))
    yield from _slow_calls(core, chain, frames, now)
    if machine.is_pulling and not machine.running:
        since = now - core.pulled_at
        yield culprit(
            "source", f"the prompts of {core} have given none for {format_seconds(since)}"
        )
    if machine.census[GroupState.JUDGED]:
        groups = counted(machine.census[GroupState.JUDGED], "group")
        longest = core.describe_judging(frames)
        which = f": {longest}" if longest else ""
        does = "accept= of {} decides about" if core.judge.accept else "weigh= of {} weighs"
        yield culprit("worker", f"{does.format(core)} {groups}{which}")


def _why_nothing_starts(core: RolloutCore, chain: tuple[str, ...], now: float) -> Iterator[Culprit]:
    """Yield why no rollout starts at all, be it of the training or of an evaluation."""
    if core.machine.limit == 0:
        text = f"max_in_flight of {core} is 0, which is a pause"
        yield Culprit("unfinished", text, chain, queue=core.name)
    for process, starting in core.starting_processes():
        text = f"{process} of {core} has been starting for {format_seconds(starting)}"
        yield Culprit("process", text, chain, queue=core.name)
    if core.publisher is not None:
        yield _open_publication(core, core.publisher, chain, now)


def _slow_calls(
    core: RolloutCore, chain: tuple[str, ...], frames: Mapping[int, FrameType], now: float
) -> Iterator[Culprit]:
    for call, began in core.slowest_calls(_MOST_SHOWN):
        sentence = core.describe_running(call, began, frames)
        yield Culprit("item", sentence, chain, queue=core.name, worker=core.describe_call(call))
    for backoff in core.slowest_backoffs(_MOST_SHOWN):
        which = core.describe_call(backoff.call)
        text = core.describe_backoff(backoff)
        yield Culprit("item", text, chain, queue=core.name, worker=which)


def _source_failure(core: RolloutCore, error: BaseException) -> str:
    failure = describe_exception(error)
    return f"the prompts of {core} have failed with {failure}; what exists is trained first"


def _hints(core: RolloutCore) -> Iterator[Culprit]:
    """Yield the state of a queue at which nobody waits."""
    machine = core.machine
    ready, existing = machine.census[GroupState.READY], len(machine.groups)
    running = len(core.calls) if machine.grants_ahead else machine.running
    sentence = (
        f"nobody waits for a step of {core}: {ready} of {counted(existing, 'group')} are ready,"
        f" {counted(running, 'rollout')} in flight"
    )
    yield Culprit("too few", sentence, queue=core.name)
    if machine.error is not None:
        if machine.is_stopped:
            text = f"{core} was stopped by {describe_exception(machine.error)}"
        else:
            text = _source_failure(core, machine.error)
        yield Culprit("source", text, queue=core.name)
