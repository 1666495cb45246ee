"""The runs that fill a queue: the last one to end closes it. Workers that join a run later.

A queue has one end. Any number of runs may fill it, of any kind of runner and through either face;
the queue is closed when the last of them has ended. A run that ends earlier leaves its part of the
closing to one that continues. Once the last run has ended, the queue counts as closed, however long
its `close_op` takes: a run that begins then is too late. This module keeps neither queues nor runs
alive, so a run that is dropped before its end does not hold a queue open.

`Latecomers` starts workers that are added during a run, once it is known how to start them.
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
    """A run, as far as its queue is concerned."""

    def inherit(self, other: Any) -> None:
        """Take over the closing of an ended run that filled the same queue."""


FillerT = TypeVar("FillerT", bound=Producer)

_lock: Final = threading.RLock()  # guards everything below, and what runs leave to each other
_runs: Final[WeakKeyDictionary[object, WeakSet[Producer]]] = WeakKeyDictionary()
_closing: Final[WeakSet[object]] = WeakSet()  # queues that their last run is closing now


def begin_to_fill(queue: QueueFace, run: Producer) -> bool:
    """Register a run that fills a queue: no other run closes the queue until this one has ended.

    Returns:
        Whether the run is in time; if not, the queue is closed or just being closed.
    """
    return not holding(_lock, _begin, queue._core, run) and not queue.is_closed()


def end_to_fill(queue: QueueFace, run: FillerT) -> FillerT | None:
    """Unregister a run that has ended; return a run that continues and takes over its closing.

    If it returns ``None``, the run has to close the queue itself, and then call `is_closed_now`.
    """
    return cast(FillerT | None, holding(_lock, _end, queue._core, run))


def is_closed_now(queue: QueueFace) -> None:
    """Note that the last run has closed the queue, by whatever its `close_op` does."""
    holding(_lock, _closing.discard, queue._core)


def close_unless_filled(queue: QueueFace) -> None:
    """Close a queue that no run fills. Its elements can still be taken."""
    if not holding(_lock, _is_filled, queue._core):
        queue.close()


def _is_filled(queue: object) -> bool:
    return bool(_runs.get(queue))


def living_runs() -> list[Any]:
    """Return all runs that have begun and not ended, of all queues."""
    return cast(list[Any], holding(_lock, _living))


def _living() -> list[Producer]:
    return [run for runs in list(_runs.values()) for run in list(runs)]


def _begin(queue: object, run: Producer) -> bool:
    """Register a run; return whether it is too late."""
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
        """Whether the worker is a task, not a thread."""


PlanT = TypeVar("PlanT", bound=_Plan)


class Latecomers(Generic[PlanT]):
    """Workers that wait to be started. Thread-safe.

    Args:
        is_over: returns whether no worker may be started any more.
        ended: called with each worker that was not started.
    """

    def __init__(self, is_over: Callable[[], bool], ended: Callable[[PlanT], object]) -> None:
        self._is_over, self._ended = is_over, ended
        self._lock = threading.RLock()  # guards everything below
        self._waiting: list[PlanT] = []
        self._start: dict[bool, Callable[[PlanT], object]] = {}  # is a task -> how to start it
        self._has_ended = False

    def are_started_by(self, start: Callable[[PlanT], object], *, tasks: bool) -> None:
        """Set how threads or tasks are started, and start those that have waited for it."""
        self._add_start(start, tasks)
        self._start_all()

    @guarded
    def _add_start(self, start: Callable[[PlanT], object], tasks: bool) -> None:
        if not self._has_ended:
            self._start[tasks] = start

    def come(self, plan: PlanT) -> None:
        """Add a worker and start it. A task waits here until its event loop has begun.

        Raises:
            RuntimeError: it cannot be started, for want of threads say.
        """
        self._waiting.append(plan)
        self._start_all()

    @guarded
    def are_over(self) -> None:
        """Accept no more workers, and drop the functions that start and end them.

        Those functions refer to the run, and the run refers to this object. The cycle would keep
        the run's queue alive until the garbage collector runs.
        """
        self._has_ended = True
        self._start.clear()
        self._is_over, self._ended = _yes, _yes

    @guarded
    def given_up(self) -> list[PlanT]:
        """Take the workers that still wait and will not be started."""
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
