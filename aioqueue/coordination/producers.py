"""A queue has one end: who fills it now, and who of them closes it.

However many runs fill a queue, of runners of whatever kind, and by whichever face: it is closed
when the last of them has ended. A run that ends before leaves its part of the closing to one that
goes on. Once the last one has ended, the queue is as good as closed, however long that takes: who
begins then comes too late. Only runs are noted here, by the queue that they fill, and neither is
kept alive by that: a run that is dropped before it has ended is not waited for.

Workers that are added to a run while it goes on: started as soon as it is known how.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet

from aioqueue.locks import guarded, holding
from aioqueue.queues import QueueFace

__all__ = (
    "Latecomers",
    "Producer",
    "begin_to_fill",
    "close_unless_filled",
    "end_to_fill",
    "is_closed_now",
    "living_runs",
)


class Producer(Protocol):
    """A run, as far as the queue concerns it that it fills."""

    def inherit(self, other: Any) -> None:
        """Take on the part of the closing of a run that has filled the same queue, and ended."""


FillerT = TypeVar("FillerT", bound=Producer)

_lock: Final = threading.RLock()  # guards all below, and what runs leave to each other
_runs: Final[WeakKeyDictionary[object, WeakSet[Producer]]] = WeakKeyDictionary()
_closing: Final[WeakSet[object]] = WeakSet()  # those that the last of their runs is closing


def begin_to_fill(queue: QueueFace, run: Producer) -> bool:
    """Note that a run is going to fill a queue: until it has ended, no other one closes it.

    Returns:
        Whether it comes in time; else the queue is closed, or somebody is just closing it.
    """
    return not holding(_lock, _begin, queue._core, run) and not queue.is_closed()


def end_to_fill(queue: QueueFace, run: FillerT) -> FillerT | None:
    """Note that a run has ended; returns one that goes on, and has taken on its legacy.

    If there is none, the run has to close the queue, and to say so afterwards (`is_closed_now`).
    """
    return cast(FillerT | None, holding(_lock, _end, queue._core, run))


def is_closed_now(queue: QueueFace) -> None:
    """Note that the last run has closed the queue, or has done what it does instead."""
    holding(_lock, _closing.discard, queue._core)


def close_unless_filled(queue: QueueFace) -> None:
    """Close a queue that no run fills; what is inside can still be taken."""
    if not holding(_lock, _is_filled, queue._core):
        queue.close()


def _is_filled(queue: object) -> bool:
    return bool(_runs.get(queue))


def living_runs() -> list[Any]:
    """All runs that have begun and not yet ended, of whatever queue."""
    return cast(list[Any], holding(_lock, _living))


def _living() -> list[Producer]:
    return [run for runs in list(_runs.values()) for run in list(runs)]


def _begin(queue: object, run: Producer) -> bool:
    """Returns whether it comes too late."""
    if queue not in _runs:
        _runs[queue] = WeakSet()
    _runs[queue].add(run)
    return queue in _closing


def _end(queue: object, run: Producer) -> Producer | None:
    runs = _runs.get(queue, WeakSet())
    runs.discard(run)
    heir = next(iter(runs), None)
    if heir is None:
        _runs.pop(queue, None)
        _closing.add(queue)
    else:
        heir.inherit(run)
    return heir


class _Plan(Protocol):
    @property
    def is_task(self) -> bool:
        """Whether it is a task, and else a thread."""


PlanT = TypeVar("PlanT", bound=_Plan)


class Latecomers(Generic[PlanT]):
    """Those that are to be started. Thread-safe.

    Args:
        is_over: whether nobody is to be started any more.
        ended: called with each one that was not started.
    """

    def __init__(self, is_over: Callable[[], bool], ended: Callable[[PlanT], object]) -> None:
        self._is_over, self._ended = is_over, ended
        self._lock = threading.RLock()  # guards all below
        self._waiting: list[PlanT] = []
        self._start: dict[bool, Callable[[PlanT], object]] = {}  # by whether it is a task
        self._has_ended = False

    def are_started_by(self, start: Callable[[PlanT], object], *, tasks: bool) -> None:
        """From now on, threads or tasks are started so; those that have waited for it too."""
        self._add_start(start, tasks)
        self._start_all()

    @guarded
    def _add_start(self, start: Callable[[PlanT], object], tasks: bool) -> None:
        if not self._has_ended:
            self._start[tasks] = start

    def come(self, plan: PlanT) -> None:
        """There is one more. Those that come before their event loop has begun wait for it.

        Raises:
            RuntimeError: it cannot be started: there are no more threads, say.
        """
        self._waiting.append(plan)
        self._start_all()

    @guarded
    def are_over(self) -> None:
        """Nobody comes any more: forget who would start them, and who would hear of their ends.

        What starts workers knows the run, and the run has this object: a cycle, which would keep
        the run's queue until the garbage collector runs.
        """
        self._has_ended = True
        self._start.clear()
        self._is_over, self._ended = _yes, _yes

    @guarded
    def given_up(self) -> list[PlanT]:
        """Those that still wait, which nobody is going to start."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def _start_all(self) -> None:
        while (found := self._next()) is not None:
            start, plan = found
            try:
                if self._is_over():
                    self._ended(plan)
                else:
                    start(plan)
            except BaseException:
                self._ended(plan)
                raise

    @guarded
    def _next(self) -> tuple[Callable[[PlanT], object], PlanT] | None:
        for plan in self._waiting:
            if plan.is_task in self._start:
                self._waiting.remove(plan)
                return self._start[plan.is_task], plan
        return None


def _yes(*_: object) -> bool:
    return True
