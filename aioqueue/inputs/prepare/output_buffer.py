"""`OutputBuffer`: collects examples of a pipeline, to enqueue several at once.

If an item takes microseconds, enqueuing it by itself is a good part of all work. So workers hand in
their results here, and one of them enqueues several together, in order if the order is kept.

This delays no consumer. A consumer that is about to wait for the queue says how many items it
wants. If the buffer holds enough, they are enqueued at once. Otherwise the worker that hands in the
last one wanted enqueues them, even while all other workers are inside a function or wait for the
source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from aioqueue import QueueClosedError, QueueFull, sync
from aioqueue.inputs.core.items import Prepared
from aioqueue.inputs.prepare.failures import PrepareProgress
from aioqueue.inputs.prepare.flow_control import InFlightWindow, ReadPace
from aioqueue.locks import guarded, release_if_held

__all__ = ("OutputBuffer",)

_MOST: Final = 32
"""The number of items at which the buffer is enqueued although no consumer wants them."""

_NONE: Final[Sequence[Prepared]] = ()


class OutputBuffer:
    """Holds prepared items until several can be enqueued together. Thread-safe.

    It holds less than half of what may be in flight, so that there is room for more items. So it
    suits windows that count only items. If everything in flight is here, it is enqueued.

    Args:
        queue: a queue of whole items (`Delivered`), which nothing else fills, and one consumer
            reads.
        window: counts what is in flight, including the items here.
        progress: counts items that have left. Its lock guards this buffer.
        pace: shows whether items are so fast that it is worth collecting them.
        ordered: whether to keep the order of the source.

    Attributes:
        left: called, with the lock held, when there may be room for more items.
    """

    left: Callable[[], None] | None = None

    def __init__(
        self,
        queue: sync.BlockingQueue,
        window: InFlightWindow,
        progress: PrepareProgress,
        pace: ReadPace,
        *,
        ordered: bool,
    ) -> None:
        self._lock = progress.lock
        self._queue = queue
        self._window = window
        self._progress = progress
        self._pace = pace
        self._is_ordered = ordered
        self._most = _MOST if queue.capacity is None else min(_MOST, queue.capacity // 2)
        self._ready: list[Prepared] = []  # the next to enqueue, in order
        self._early: dict[int, Prepared] = {}  # items that wait for an earlier one
        self._next = 0  # the number after the ready ones
        self._is_busy = False  # a worker is enqueuing some
        self._entered = 0  # the total of items that were ever enqueued
        self._taken = 0  # the total of these that were taken out
        self._wanted = 0  # the total that the consumer waits for

    @property
    def early(self) -> int:
        """The number of prepared items that wait for an earlier one. Called under the lock."""
        return len(self._early)

    # For workers.

    def bring(self, prepared: Prepared) -> Sequence[Prepared]:
        """Hand in an item.

        Returns:
            The items that the caller must enqueue now, followed by a call of `entered`.
        """
        lock = self._lock
        try:  # as `guarded`, inlined for speed
            lock.acquire()
            number = prepared.item.number
            if number != self._next and self._is_ordered:
                self._early[number] = prepared
                run = _NONE
            else:
                self._next = number + 1
                self._ready.append(prepared)
                if self._early:
                    self._close_up()
                run = self._all() if self._is_due() else _NONE
            lock.release()
        except BaseException:
            release_if_held(lock)
            raise
        return run

    @guarded
    def entered(self, run: Sequence[Prepared]) -> Sequence[Prepared]:
        """Note that items are in the queue.

        Returns:
            The items that the caller must enqueue next.
        """
        self._count(run)
        self._is_busy = False
        return self._all() if self._is_due() else _NONE

    @guarded
    def rest(self) -> Sequence[Prepared]:
        """Let a worker end.

        Returns:
            The items that it must enqueue first: all that are here, unless another worker is
            enqueuing some and will continue.
        """
        return self._all() if self._ready and not self._is_busy else _NONE

    # For the consumer.

    def want(self, n: int) -> None:
        """Announce that the consumer is about to wait for n items in the queue. Does not wait.

        Args:
            n: >= 1, and at most as many as are sure to arrive.
        """
        wanted = self._taken + n
        if self._entered < wanted:
            self._want(wanted)

    def took(self, n: int) -> None:
        """Note that n items were taken out."""
        self._taken += n

    @guarded
    def _want(self, wanted: int) -> None:
        self._wanted = wanted
        if not self._is_due():
            return
        n = 0
        try:
            for prepared in self._ready:
                self._queue.enqueue_nowait(prepared.examples[0])
                n += 1
        except (QueueFull, QueueClosedError):
            pass  # there is enough, or the consumer learns of the stop
        run = self._ready[:n]
        del self._ready[:n]
        self._count(run)

    # All methods below need the lock.

    def _is_due(self) -> bool:
        """Return whether the ready items should be enqueued now."""
        n = len(self._ready)
        if not n or self._is_busy:
            return False
        if self._entered < self._wanted <= self._entered + n:
            return True
        return n >= self._most or 2 * n >= self._window.max_in_flight or not self._pace.is_quick

    def _all(self) -> Sequence[Prepared]:
        """Return all ready items, for the worker that enqueues them."""
        self._is_busy = True
        run, self._ready = self._ready, []
        return run

    def _close_up(self) -> None:
        """Move items from early to ready, if their turn has come."""
        early, at = self._early, self._next
        while (following := early.pop(at, None)) is not None:
            self._ready.append(following)
            at += 1
        self._next = at

    def _count(self, run: Sequence[Prepared]) -> None:
        for prepared in run:
            self._progress.left(prepared)
        self._entered += len(run)
        self._window.leave(len(run))
        if self.left is not None:
            self.left()
