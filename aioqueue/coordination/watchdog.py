"""The watchdog: logs a warning with an explanation when nothing moves while someone waits.

It compares all element counts once per period. If none has changed and a caller has waited for a
whole period, that is a hang. Each hang is reported once; progress re-arms the watchdog.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Protocol

from aioqueue.base.display_text import LogLines
from aioqueue.coordination.cancellations import running_task
from aioqueue.coordination.workers import Worker
from aioqueue.errors import counted
from aioqueue.queues.queue_core import QueueCore
from aioqueue.system.forks import living_queues
from aioqueue.system.locks import call_with_lock, synchronized
from aioqueue.telemetry.explain.registry import WaitPoint, known_runs, known_waits
from aioqueue.telemetry.explain.stacks import place_of, stack_of
from aioqueue.worlds.scopes import Gate
from aioqueue.worlds.waker import Owner

if TYPE_CHECKING:
    from aioqueue.telemetry.explain.explanation import ExplainedWait, Explanation

_log: Final = logging.getLogger("aioqueue")


class WatchedQueues(Protocol):
    """The queues that a watchdog looks at."""

    def explain(self) -> Explanation:
        """Return which callers wait, and for what."""

    def progress(self) -> Mapping[int, Hashable]:
        """Return how many elements each queue has passed on, and other values that change on
        progress."""

    def longest_wait(self) -> float:
        """Return the longest current wait in seconds; 0.0 if nobody waits."""


class Watchdog:
    """Watches the queues of a coordinator until the coordinator stops.

    Args:
        watched: the owner of the queues; the watchdog does not keep it alive.
        seconds: the period, and the shortest wait that counts as a hang.
        stopped: opened when there is nothing left to watch.
        ended: called when the watchdog has noticed that.
    """

    def __init__(
        self, watched: WatchedQueues, seconds: float, stopped: Gate, ended: Callable[[], object]
    ) -> None:
        self._watched: Any = weakref.ref(watched)
        self._seconds = seconds
        self._stopped = stopped
        self._ended = ended
        self._before: Mapping[int, Hashable] | None = None
        self._has_warned = False

    def start(self) -> None:
        threading.Thread(target=self._watch, name="aioqueue-watchdog", daemon=True).start()

    def check(self) -> bool:
        """Check once, and warn about a hang; return whether to continue."""
        # A local name only: between two checks nothing here keeps the coordinator alive.
        watched: WatchedQueues | None = self._watched()
        if watched is None:
            return False
        progress = watched.progress()
        # Equal counts alone are no hang: a loop that computes changes nothing either. Somebody must
        # have waited for the whole period, too.
        is_stalled, self._before = progress == self._before, progress
        if not is_stalled:
            self._has_warned = False
        elif not self._has_warned and (waited := watched.longest_wait()) >= self._seconds:
            self._has_warned = True
            self._warn(watched.explain(), waited)
        return True

    def _warn(self, explanation: Explanation, waited: float) -> None:
        from aioqueue.telemetry.explain.explanation import format_seconds

        found = counted(len(explanation.culprits), "culprit")
        _log.warning(
            "nothing has moved for %s while someone waits (watchdog=%g), %s:%s",
            format_seconds(waited),
            self._seconds,
            found,
            LogLines(f"\n{explanation}"),
        )

    def _watch(self) -> None:
        try:
            while not self._stopped.wait_blocking(self._seconds) and self._check_unless_ended():
                pass
        finally:
            self._ended()

    def _check_unless_ended(self) -> bool:
        try:
            return self.check()
        except Exception:
            with suppress(Exception):  # if it is the log's handler that fails
                _log.exception("the watchdog failed to look; it continues")
            return True


_MAX_NAMED: Final = 5
"""Name at most this many workers one by one."""


class Join:
    """A join in progress, seen from outside.

    Args:
        workers: the workers that it waits for.
    """

    def __init__(self, workers: list[Worker]) -> None:
        self._workers = workers
        self._owner = Owner(running_task() or threading.current_thread())
        self._began = perf_counter()

    @property
    def seconds(self) -> float:
        return perf_counter() - self._began

    def _alive(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.is_alive()]

    def has_others(self, known: Container[int]) -> bool:
        """Return whether it waits for workers whose keys are not among the known ones."""
        return any(worker.key not in known for worker in self._alive())

    def places(self, frames: Mapping[int, FrameType]) -> Hashable:
        return tuple(worker.explained(frames).stack for worker in self._alive())

    def explained(self, frames: Mapping[int, FrameType]) -> ExplainedWait:
        """Describe the join. Its root causes are all workers; those that are known to wait, or to
        work for a runner, have others."""
        from aioqueue.telemetry.explain.explanation import Culprit, ExplainedWait, format_seconds

        owner, alive = self._owner, self._alive()
        names = ", ".join(worker.name for worker in alive[:_MAX_NAMED])
        more = f" and {len(alive) - _MAX_NAMED} more" if len(alive) > _MAX_NAMED else ""
        what = f"waits in join for {names}{more}"
        waits = f"{owner.name} {what}, for {format_seconds(self.seconds)}"
        culprits = []
        for worker in alive:
            place = place_of(worker.explained(frames).stack)
            at = "" if place is None else f", at {place}"
            sentence = f"{worker.name} has not ended, and is busy{at}"
            culprits.append(
                Culprit("worker", sentence, (waits,), worker=worker.name, key=worker.key)
            )
        stack = stack_of(owner.thing, frames)
        return ExplainedWait(
            owner.name, what, self.seconds, tuple(culprits), stack, True, key=owner.key
        )


class WatchdogTarget:
    """The part of a coordinator that its watchdog needs."""

    stopped: Gate
    _lock: Any
    _workers: dict[int, Worker]
    watchdog: float | None
    _is_watched = False
    _progress: Mapping[int, Hashable] = {}
    _stalled: Sequence[WaitPoint] = ()
    """Places outside queues where nothing has moved between the last two checks."""
    _hanging: frozenset[int] = frozenset()
    """Those of them where a caller had waited for a whole period at the last check."""
    _ended_hangs = 0
    """How many checks have found that such a place has moved."""

    def explain(self) -> Explanation:
        raise NotImplementedError

    def progress(self) -> dict[int, int]:
        """Return how many elements have entered and left each queue; by 0, `_ended_hangs`."""
        before, waits = self._progress, known_waits()
        # Each place counts by itself, so that progress elsewhere does not hide a hang here.
        self._progress = {id(one): one.waits_move() for one in waits if one.waits_for(self)}
        self._stalled = [one for one in waits if _is_same(before, self._progress, id(one))]
        # A hang that has ended re-arms the watchdog, as elements of a queue do. To count what moves
        # in all places would not do: one that moves would hide a hang elsewhere.
        self._ended_hangs += not self._hanging <= {id(one) for one in self._stalled}
        period = self.watchdog or 0.0
        self._hanging = frozenset(
            id(one) for one in self._stalled if one.longest_of_waits() >= period
        )
        return {0: self._ended_hangs} | {id(core): _progress(core) for core in self._queues()}

    def longest_wait(self) -> float:
        attempts = [attempt for core in self._queues() for attempt in core.machine.waiting()]
        waits = [perf_counter() - attempt.began for attempt in attempts if attempt.began]
        return max([*waits, *(one.longest_of_waits() for one in self._stalled)], default=0.0)

    def _queues(self) -> list[QueueCore]:
        """Return the queues that its runs fill or empty, and those at which its workers wait."""
        runs = [run for run in known_runs() if run.belongs_to(self)]
        found = {id(core): core for run in runs for core in run.queues()}
        workers = {
            worker.key for worker in call_with_lock(self._lock, list, self._workers.values())
        }
        for core in living_queues():
            owners = [attempt.owner for attempt in core.machine.waiting() if attempt.owner]
            if owners and (not runs or workers.intersection(owner.key for owner in owners)):
                found[id(core)] = core
        return list(found.values())

    def _claim_watch(self) -> bool:
        """Note that it is watched; return whether it was not."""
        is_first, self._is_watched = not self._is_watched, True
        return is_first

    @synchronized
    def watchdog_ended(self) -> None:
        """Note that the watchdog has ended: workers that start later need another one."""
        self._is_watched = False


def _progress(core: QueueCore) -> int:
    statistics = core.recent_statistics()
    return statistics.enqueued + statistics.dequeued


def _is_same(before: Mapping[int, Hashable], now: Mapping[int, Hashable], key: int) -> bool:
    return key in before and key in now and before[key] == now[key]


def end_callback(core: WatchdogTarget) -> Callable[[], None]:
    """Return a callback that reports the watchdog's end and does not keep the coordinator alive."""
    known = weakref.ref(core)

    def note_end() -> None:
        watched = known()
        if watched is not None:
            watched.watchdog_ended()

    return note_end
