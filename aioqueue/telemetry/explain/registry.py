"""What an explanation covers: coordinators, runs, and the places where callers may wait.

It knows those of this process. It keeps none alive, and is empty in a fork.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from aioqueue.system.forks import LivingObjects, living_queues

if TYPE_CHECKING:
    from aioqueue.telemetry.explain.explanation import (
        ExplainedCoordinator,
        ExplainedWait,
        Explanation,
    )


class WaitPoint(Protocol):
    """A place where callers may wait other than at a queue."""

    def waits(self, frames: Mapping[int, FrameType]) -> Iterable[ExplainedWait]:
        """Return the current waits."""

    def waits_move(self) -> Hashable:
        """Return a value that changes when whatever the callers wait for makes progress."""

    def longest_of_waits(self) -> float:
        """Return the longest current wait in seconds; 0.0 if nobody waits."""

    def waits_for(self, coordinator: object) -> bool:
        """Return whether this belongs to what a coordinator (its core) watches."""


@runtime_checkable
class Serving(Protocol):
    """Such a place that takes the elements of a queue: a batcher."""

    @property
    def serves(self) -> int:
        """Identifies the queue: the id of its core."""


_waits: Final = LivingObjects()


def note_waits(waiting: WaitPoint) -> None:
    """Register a place where callers may wait; it is not kept alive."""
    _waits.add(waiting)


def known_waits() -> list[WaitPoint]:
    return _waits.listed()


class Coordinating(Protocol):
    """The part of a coordinator that an explanation needs."""

    def explained(
        self, belonging: frozenset[int], frames: Mapping[int, FrameType]
    ) -> ExplainedCoordinator:
        """Return its state, with the workers that belong to no stage (by their keys)."""

    def elsewhere(self) -> Iterable[Explanation]:
        """Return the explanations of the other processes that share it."""


_coordinators: Final = LivingObjects()


def note_coordinator(coordinator: Coordinating) -> None:
    """Register a coordinator; it is not kept alive."""
    _coordinators.add(coordinator)


def forget_coordinator(coordinator: Coordinating) -> None:
    """Leave a coordinator out of explanations: it has no workers, and only decides for others."""
    _coordinators.discard(coordinator)
    _waits.discard(coordinator)


def known_coordinators() -> list[Coordinating]:
    return _coordinators.listed()


_runs: Final = LivingObjects()


def note_run(run: object) -> None:
    """Register a run of workers that fill a queue; it is not kept alive."""
    _runs.add(run)


def forget_run(run: object) -> None:
    _runs.discard(run)


def known_runs() -> list[Any]:
    """Return the runs in this process that have begun and not ended, of all queues."""
    return _runs.listed()


def known_workers() -> frozenset[int]:
    """Return the keys of the threads and tasks that belong to a run or wait at a queue."""
    known = {key for run in known_runs() for key in run.worker_keys()}
    for core in living_queues():
        known.update(one.owner.key for one in core.machine.waiting() if one.owner)
    return frozenset(known - {0})
