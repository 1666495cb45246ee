"""Looking after the time that items take in worker processes: one timer, for the nearest deadline.

When an item begins is written by the process itself, into the memory that it shares with us; so an
item that waits behind another one, in a process that was sent several, is not taken for slow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from aioqueue.inputs.prepare.job import Job
from aioqueue.inputs.prepare.processes.books import Books
from aioqueue.locks import guarded
from aioqueue.processes.arena import NONE, Arena

__all__ = ("Clock", "Timed")


class Timed(Protocol):
    """A process, as far as it concerns the clock."""

    books: Books
    arena: Arena


TimedT = TypeVar("TimedT", bound=Timed)


class Clock(Generic[TimedT]):
    """Says which processes take too long for an item.

    Args:
        job: what they work for.
        timeout: seconds that an item may take.
    """

    def __init__(self, job: Job, timeout: float) -> None:
        self._job = job
        self._lock = job.lock
        self._timeout = timeout
        self._changed = threading.Condition(job.lock)
        self._is_unlimited = False  # it waits for something to do
        self._is_over = False

    def watch(
        self,
        processes: Callable[[], Sequence[TimedT]],
        too_slow: Callable[[TimedT, int], object],
    ) -> None:
        """Watch until there is nothing more to do.

        Args:
            processes: tells which there are.
            too_slow: called with a process and the number of its item, in the thread of the clock.

        Raises:
            NothingMore: then.
        """
        while True:
            with self._lock:
                self._wait(processes())
            for process, number in self._slow(processes()):
                too_slow(process, number)

    def begins(self) -> None:
        """A process was given something to do."""
        if self._is_unlimited:
            with self._lock:
                self._changed.notify_all()

    @guarded
    def stop(self) -> None:
        """There is nothing more to do."""
        self._is_over = True
        self._changed.notify_all()

    def _wait(self, processes: Sequence[TimedT]) -> None:
        """Wait until the nearest deadline there may be. Called under the lock."""
        if self._is_over or self._job.is_halted:
            raise self._job.nothing_more()
        left = min(map(self._left, filter(_is_busy, processes)), default=None)
        if left is None or left > 0:
            self._is_unlimited = left is None
            self._changed.wait(left)
            self._is_unlimited = False

    def _left(self, process: TimedT) -> float:
        """How long until a process is too slow: one that is just about to begin has all its time,
        but for one that is being killed, which has it once more."""
        number = process.arena.item
        if number == NONE or process.books.find(number) is None or process.books.overdue:
            return self._timeout
        return max(0.0, self._timeout - process.arena.seconds)

    def _slow(self, processes: Sequence[TimedT]) -> list[tuple[TimedT, int]]:
        busy = [(process, process.arena.item) for process in processes]
        return [
            (process, number)
            for process, number in busy
            if process.books.find(number) is not None and self._left(process) <= 0
        ]


def _is_busy(process: Timed) -> bool:
    return len(process.books) > 0
