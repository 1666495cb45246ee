"""What a watchdog looks at: the queues of one coordinator, and who waits there."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any

from aioqueue.coordination.filling import living_runs
from aioqueue.coordination.workers import Worker
from aioqueue.locks import guarded, holding
from aioqueue.queues.core import QueueCore
from aioqueue.queues.forks import living_queues
from aioqueue.telemetry.explanations import Explanation
from aioqueue.telemetry.watchdog import Watchdog
from aioqueue.waiting import Gate

__all__ = ("Watchable",)


class Watchable:
    """A coordinator, as far as it concerns its watchdog."""

    stopped: Gate
    _lock: Any
    _workers: dict[int, Worker]
    _watchdog: float | None
    _is_watched = False

    def explain(self) -> Explanation:
        """Who waits for whom."""
        raise NotImplementedError

    def moved(self) -> dict[int, int]:
        """How many elements have gone in and out of its queues, by queue."""
        return {id(core): _moves(core) for core in self._queues()}

    def longest_wait(self) -> float:
        """How long, in seconds, whoever waits at its queues has waited longest; 0.0: nobody."""
        attempts = [attempt for core in self._queues() for attempt in core.machine.waiting()]
        waits = [perf_counter() - attempt.began for attempt in attempts if attempt.began]
        return max(waits, default=0.0)

    def _queues(self) -> list[QueueCore]:
        """The queues that its runs fill or empty, and those at which its workers wait."""
        runs = [run for run in living_runs() if run.belongs_to(self)]
        own = {id(core): core for run in runs for core in run.queues()}
        workers = {worker.key for worker in holding(self._lock, list, self._workers.values())}
        for core in living_queues():
            owners = [attempt.owner for attempt in core.machine.waiting() if attempt.owner]
            if owners and (not runs or workers.intersection(owner.key for owner in owners)):
                own[id(core)] = core
        return list(own.values())

    def start_watchdog(self) -> None:
        """Workers have begun: warn when nothing moves, if that was asked for."""
        if self._watchdog is not None and holding(self._lock, self._begins_to_be_watched):
            Watchdog(self, self._watchdog, self.stopped, _forgetting(self)).start()

    def _begins_to_be_watched(self) -> bool:
        is_first, self._is_watched = not self._is_watched, True
        return is_first

    @guarded
    def is_not_watched(self) -> None:
        """The watchdog has ended: workers that begin from now on need another one."""
        self._is_watched = False


def _moves(core: QueueCore) -> int:
    statistics = core.machine.statistics()
    return statistics.enqueued + statistics.dequeued


def _forgetting(core: Watchable) -> Callable[[], None]:
    """What tells a coordinator that its watchdog has ended, and does not keep it alive."""
    known = weakref.ref(core)

    def forget() -> None:
        watched = known()
        if watched is not None:
            watched.is_not_watched()

    return forget
