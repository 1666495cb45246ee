"""A watchdog: warns, with an explanation, when nothing moves while someone waits.

It looks once in its own period. Nothing has moved if every count of elements is what it was the
last time; and a hang is told once, until something has moved and stands still again.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, Protocol

from aioqueue.errors import counted
from aioqueue.telemetry.explanations import Explanation, seconds_told
from aioqueue.waiting import Gate

__all__ = ("Watchdog", "Watched")

_log: Final = logging.getLogger("aioqueue")


class Watched(Protocol):
    """Whose queues are looked at."""

    def explain(self) -> Explanation:
        """Who waits for whom."""

    def moved(self) -> Mapping[int, Hashable]:
        """How many elements have gone in and out, by queue, and what else may move."""

    def longest_wait(self) -> float:
        """How long, in seconds, whoever waits has waited longest; 0.0 if nobody waits."""


class Watchdog:
    """Looks at the queues of a coordinator until that is stopped.

    Args:
        watched: who has the queues; it is not kept alive by this.
        seconds: how often to look, and how long someone must have waited.
        stopped: opened when there is nothing more to watch.
        ended: called when that was noticed.
    """

    def __init__(
        self, watched: Watched, seconds: float, stopped: Gate, ended: Callable[[], object]
    ) -> None:
        self._watched: Any = weakref.ref(watched)
        self._seconds = seconds
        self._stopped = stopped
        self._ended = ended
        self._before: Mapping[int, Hashable] | None = None
        self._is_told = False

    def start(self) -> None:
        """Begin, in a thread of its own, which keeps nothing running."""
        threading.Thread(target=self._watch, name="aioqueue-watchdog", daemon=True).start()

    def look(self) -> bool:
        """Look once, and warn if there is something to warn of; tell whether to go on."""
        watched: Watched | None = self._watched()
        if watched is None:
            return False
        moved = watched.moved()
        stands_still, self._before = moved == self._before, moved
        if not stands_still:
            self._is_told = False
        elif not self._is_told and (waited := watched.longest_wait()) >= self._seconds:
            self._is_told = True
            self._warn(watched.explain(), waited)
        return True

    def _warn(self, explanation: Explanation, waited: float) -> None:
        found = counted(len(explanation.culprits), "culprit")
        _log.warning(
            "nothing has moved for %s while someone waits (watchdog=%g), %s:\n%s",
            seconds_told(waited),
            self._seconds,
            found,
            explanation,
        )

    def _watch(self) -> None:
        try:
            while not self._stopped.wait_blocking(self._seconds) and self._looked():
                pass
        finally:
            self._ended()

    def _looked(self) -> bool:
        try:
            return self.look()
        except Exception:
            _log.exception("the watchdog has failed")
            return False
