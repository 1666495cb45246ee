"""Gathering what an explanation consists of, from where the facts are.

Everything is looked at from outside, one thing after another, while all goes on: an explanation is
of one moment only where nothing moves, which is where one is asked for. Locks are held for as long
as it takes to copy what they guard. It may be asked for by any thread; what a signal handler does
instead says `aioqueue.telemetry.signals`.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from time import perf_counter
from types import FrameType
from typing import Any, Literal, Protocol
from weakref import WeakSet

from aioqueue.attempts import DEQUEUE, ENQUEUE, GRANTED, Attempt, PutMany, Side, Take
from aioqueue.coordination.filling import living_runs
from aioqueue.coordination.whereabouts import current_frames
from aioqueue.queues.forks import living_queues
from aioqueue.telemetry.culprits import culprits_of
from aioqueue.telemetry.explanations import (
    ExplainedCaller,
    ExplainedCoordinator,
    ExplainedQueue,
    ExplainedWait,
    Explanation,
    seconds_told,
)
from aioqueue.telemetry.stacks import stack_of
from aioqueue.waiting import Owner

__all__ = (
    "Coordinating",
    "Waiting",
    "explain",
    "explain_for",
    "items_in_hand",
    "known_coordinators",
    "known_waits",
    "note_coordinator",
    "note_waits",
)


class Waiting(Protocol):
    """Where somebody may wait, and at no queue."""

    def waits(self, frames: Mapping[int, FrameType]) -> Iterable[ExplainedWait]:
        """Who waits there now."""

    def waits_move(self) -> Hashable:
        """Something that is another one once what they wait for has moved."""

    def longest_of_waits(self) -> float:
        """How long, in seconds, whoever waits there has waited longest; 0.0 if nobody does."""

    def waits_for(self, coordinator: object) -> bool:
        """Whether it is a part of what a coordinator (its core) watches."""


_waits: WeakSet[Any] = WeakSet()


def note_waits(waiting: Waiting) -> None:
    """Know where somebody may wait, for as long as that is there."""
    _waits.add(waiting)


def known_waits() -> list[Waiting]:
    """All of them in this process."""
    return _listed(_waits)


class Coordinating(Protocol):
    """A coordinator, as far as it can be explained."""

    def explained(self, belonging: frozenset[int]) -> ExplainedCoordinator:
        """What it knows; of its workers those that do not belong to a stage (by their keys)."""


_coordinators: WeakSet[Any] = WeakSet()


def note_coordinator(coordinator: Coordinating) -> None:
    """Know a coordinator, for as long as there is one."""
    _coordinators.add(coordinator)


def known_coordinators() -> list[Coordinating]:
    """The coordinators that there are in this process."""
    return _listed(_coordinators)


def _listed(known: WeakSet[Any]) -> list[Any]:
    while True:
        try:
            return list(known)
        except RuntimeError:  # one was made meanwhile, by another thread
            continue


def explain() -> Explanation:
    """Tell who waits for whom in this process, since when, and for what in the end.

    It looks at all queues at which someone waits, all runners and their workers, wherever these run
    (threads, tasks of any event loop, processes), and all coordinators. Any thread or task may ask,
    at any time; nothing is stopped for it. Worker processes that do not answer are waited for half
    a second, all of them together.

    Returns:
        Who waits and who is to blame, as records and, by ``str``, as text.
    """
    return explain_for(known_coordinators())


def items_in_hand() -> dict[int, str]:
    """What workers of stages prepare, in words, by the keys of their threads or tasks."""
    frames = current_frames()
    workers = [worker for run in living_runs() for worker in run.explained(frames).workers]
    return {
        key: f"{worker.item} for {seconds_told(worker.item.seconds)}"
        for worker in workers
        if worker.item is not None
        for key in (worker.key, worker.registered)
    }


def explain_for(coordinators: Sequence[Coordinating]) -> Explanation:
    """The same, with what some coordinators know."""
    frames = current_frames()
    stages = tuple(run.explained(frames) for run in living_runs())
    named = {key for stage in stages for key in (stage.into_key, stage.source_key)}
    queues = tuple(_explained_queues(named, frames))
    workers = [worker for stage in stages for worker in stage.workers]
    belonging = frozenset(key for worker in workers for key in (worker.key, worker.registered))
    waits = tuple(wait for one in known_waits() for wait in one.waits(frames))
    return Explanation(
        culprits_of(queues, stages, waits),
        queues,
        stages,
        tuple(one.explained(belonging) for one in coordinators),
        os.getpid(),
        waits,
    )


def _explained_queues(
    named: Iterable[int], frames: Mapping[int, FrameType]
) -> Iterable[ExplainedQueue]:
    named = set(named)
    for core in living_queues():
        try:
            waiting = core.machine.waiting()
            if waiting or id(core) in named:
                yield _explained_queue(core, waiting, frames)
        except RuntimeError:
            continue  # it is of another process, of which this one is a fork


def _explained_queue(
    core: Any, waiting: Iterable[Attempt], frames: Mapping[int, FrameType]
) -> ExplainedQueue:
    statistics = core.machine.statistics()
    taker: Owner | None = core.last_waiter.get(DEQUEUE)
    giver: Owner | None = core.last_waiter.get(ENQUEUE)
    return ExplainedQueue(
        core.name,
        core.kind,
        statistics.size,
        statistics.capacity,
        statistics.enqueued - statistics.size - statistics.dequeued,
        core.keep,
        core.machine.state.value,
        statistics.enqueued,
        statistics.dequeued,
        tuple(_explained_caller(attempt, frames) for attempt in waiting),
        last_dequeuer=None if taker is None else taker.name,
        last_dequeuer_ended=taker is not None and taker.has_ended(),
        last_dequeuer_stack=() if taker is None else stack_of(taker.thing, frames),
        last_enqueuer=None if giver is None else giver.name,
        last_enqueuer_ended=giver is not None and giver.has_ended(),
        last_end=core.last_end,
        key=id(core),
        last_dequeuer_key=0 if taker is None else taker.key,
        last_enqueuer_key=0 if giver is None else giver.key,
    )


def _explained_caller(attempt: Attempt, frames: Mapping[int, FrameType]) -> ExplainedCaller:
    owner: Owner | None = attempt.owner
    return ExplainedCaller(
        "somebody" if owner is None else owner.name,
        _SIDES[attempt.side],
        _elements_of(attempt),
        max(0.0, perf_counter() - attempt.began) if attempt.began else 0.0,
        attempt.state is GRANTED,
        () if owner is None else stack_of(owner.thing, frames),
        key=0 if owner is None else owner.key,
    )


def _elements_of(attempt: Attempt) -> int:
    if isinstance(attempt, PutMany):
        return attempt.n - attempt.done
    return max(1, attempt.n - attempt.held.count) if isinstance(attempt, Take) else 1


_SIDES: dict[Side, Literal["enqueue", "dequeue"]] = {ENQUEUE: "enqueue", DEQUEUE: "dequeue"}
