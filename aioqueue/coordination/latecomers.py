"""Workers that are added to a run while it goes on: started as soon as it is known how."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from aioqueue.locks import guarded

__all__ = ("Latecomers",)


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
