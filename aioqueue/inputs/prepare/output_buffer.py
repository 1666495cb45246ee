"""Examples of a pipeline that go into its queue together.

Where an item takes microseconds, to put it into the queue by itself is a good part of all work. So
a worker lays down what it has prepared where anybody can take it, and several are put into the
queue at once, in the order of the source if that is kept.

Nobody waits for that. Whoever is about to wait for the queue says how much of it he wants. What
lies there goes in if that is enough then, and else it is put in by whoever lays down the last that
is wanted: also while all workers are in the middle of a function, or wait for the source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from aioqueue import QueueClosedError, QueueFull, sync
from aioqueue.inputs.prepare.failures import PrepareProgress
from aioqueue.inputs.prepare.flow_control import InFlightWindow, ReadPace
from aioqueue.inputs.prepare.prepared_items import Prepared
from aioqueue.locks import guarded, release_if_held

__all__ = ("OutputBuffer",)

_MOST: Final = 32
"""How many may lie there before they are put into the queue, if there is nobody who wants them."""

_NONE: Final[Sequence[Prepared]] = ()


class OutputBuffer:
    """Holds what is prepared, until several can be enqueued together. Thread-safe.

    Nothing lies here while all that is in flight does: of what may be in flight it holds less than
    half, so that there is room for more. So it is for a window that counts items alone.

    Args:
        queue: of items as a whole (`Delivered`), which nobody else fills, and one reads.
        window: what is in flight, this among it.
        progress: where items are counted when they have left. Its lock guards all of this.
        pace: tells whether items go so quickly that it pays to wait for more.
        ordered: whether the order of the source is kept; else they go in as they come.

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
        self._ready: list[Prepared] = []  # in order, to be enqueued next
        self._early: dict[int, Prepared] = {}  # what one before it is waited for
        self._next = 0  # the number behind those that are ready
        self._is_busy = False  # a worker is putting some into the queue
        self._entered = 0  # items that are in the queue or were, all together
        self._taken = 0  # those of them that were taken out
        self._wanted = 0  # how many of them somebody waits for, all together

    @property
    def early(self) -> int:
        """How many items have been prepared and wait for one before them. Called under the lock."""
        return len(self._early)

    # For workers.

    def bring(self, prepared: Prepared) -> Sequence[Prepared]:
        """Lay down an item.

        Returns:
            The items that the caller is to enqueue now, and then to say that they have `entered`.
        """
        lock = self._lock
        try:  # as `guarded`, on the way of every item
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
        """Items are in the queue.

        Returns:
            Those that the caller is to enqueue next.
        """
        self._count(run)
        self._is_busy = False
        return self._all() if self._is_due() else _NONE

    @guarded
    def rest(self) -> Sequence[Prepared]:
        """A worker ends.

        Returns:
            The items that it is to enqueue before that: all that lie there, unless another worker,
            which goes on, is enqueuing some.
        """
        return self._all() if self._ready and not self._is_busy else _NONE

    # For whoever takes them out of the queue.

    def want(self, n: int) -> None:
        """Somebody is about to wait until there are n items in the queue. Does not wait itself.

        Args:
            n: >= 1, and not more than are sure to come.
        """
        wanted = self._taken + n
        if self._entered < wanted:
            self._want(wanted)

    def took(self, n: int) -> None:
        """So many were taken out."""
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
            pass  # there is enough; or whoever waits is told
        run = self._ready[:n]
        del self._ready[:n]
        self._count(run)

    # All of it with the lock held.

    def _is_due(self) -> bool:
        """Whether what is ready is to go into the queue now."""
        n = len(self._ready)
        if not n or self._is_busy:
            return False
        if self._entered < self._wanted <= self._entered + n:
            return True
        return n >= self._most or 2 * n >= self._window.max_in_flight or not self._pace.is_quick

    def _all(self) -> Sequence[Prepared]:
        """All that is ready, for a worker that enqueues it."""
        self._is_busy = True
        run, self._ready = self._ready, []
        return run

    def _close_up(self) -> None:
        """What was early may be next."""
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
