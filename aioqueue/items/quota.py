"""How many items may be read of a source, where later stages want only a part of an epoch.

A `take` passes on, from stage to stage, how many rows it wants. The stages that work ahead are
bounded by that: workers, and threads that read ahead for a coroutine. So nothing is read that
cannot be read again, such as the elements of a queue, and that nobody has asked for.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator
from typing import Final, TypeVar

T = TypeVar("T")

_ANY: Final = sys.maxsize
"""As many items as there are."""


class ItemQuota:
    """How many items of each epoch may be read, where later stages want only the first rows.

    One thread or task reads, and counts what it reads. Another one, which takes the rows, raises
    the number while the epoch goes on. Each writes fields of its own, so no lock is needed.

    Where nothing limits the later stages, there is no quota.

    Args:
        first: how many items may be read of an epoch in which the number was not raised yet.

    Attributes:
        changed: called when more may be read; ``None`` while nobody waits for that.
    """

    __slots__ = ("_allowed", "_first", "_read", "changed")

    def __init__(self, first: int) -> None:
        self.changed: Callable[[], object] | None = None
        self._first = first
        self._allowed = (-1, 0)  # an epoch, and how many of its items may be read
        self._read = (0, 0)  # the epoch that is being read, and how many of its items were

    def begin_at(self, epoch: int, allowed: int) -> None:
        """Begin in an epoch, and let the reader read this many of its items at first."""
        self._read = (epoch, 0)
        self._allowed = (epoch, allowed)

    # For who takes the rows.

    def allow(self, epoch: int, items: int) -> None:
        """Allow at least this many items of an epoch to be read in total."""
        if (epoch, items) <= self._allowed:
            return
        self._allowed = (epoch, items)
        if self.changed is not None:
            self.changed()

    def skip_to(self, epoch: int) -> None:
        """Note that no item of the epochs before is wanted any more: reading goes on behind them.

        Call it when the reader can see it.
        """
        self._allowed = max(self._allowed, (epoch, self._first))
        if self.changed is not None:
            self.changed()

    # For the reader.

    @property
    def remaining(self) -> int:
        """How many items may be read now: any number in order to leave an epoch."""
        epoch, read = self._read
        of, allowed = self._allowed
        if epoch < of:
            return _ANY
        return max(0, (allowed if epoch == of else self._first) - read)

    def count(self) -> None:
        epoch, read = self._read
        self._read = (epoch, read + 1)

    def begin(self, epoch: int) -> None:
        self._read = (epoch, 0)


class QuotaGate:
    """Where a thread that reads ahead waits until it may read the next item. Thread-safe.

    Args:
        quota: how many may be read. The gate hears of its changes.
    """

    def __init__(self, quota: ItemQuota) -> None:
        self._quota = quota
        self._changed = threading.Condition()
        self._is_closed = False
        quota.changed = self._notify

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        self._is_closed = True
        if self._quota.changed == self._notify:
            self._quota.changed = None
        self._notify()

    def throttle(self, run: Generator[T, None, None]) -> Generator[list[T], None, None]:
        """Yield the items of a run, each in a list of its own, as soon as they may be read."""
        quota = self._quota
        try:
            while True:
                with self._changed:
                    while not (self._is_closed or quota.remaining):
                        self._changed.wait()
                if self._is_closed:
                    return
                quota.count()
                try:
                    item = next(run)
                except StopIteration:
                    return
                yield [item]
        finally:
            run.close()
