"""What each worker of a job has in hand at this moment, for whoever asks why it takes so long."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from aioqueue.inputs.prepare.limits import Pending
from aioqueue.inputs.sources.item import Item
from aioqueue.locks import holding

__all__ = ("Hand", "Hands")


class Hand:
    """What one worker has in hand. Written by that worker, read by anyone.

    Attributes:
        item: what it prepares; ``None``: nothing.
        failures: how often that has failed before.
        began: when it took it, on the clock of `time.perf_counter`; of the last item, if it has
            none now.
        process: the process that does it, if one does.
        thread: the thread that does it, if that is another one than the worker's.
        pending: the same item, where keys are limited and items have a time limit.
    """

    __slots__ = ("began", "failures", "item", "pending", "process", "thread")

    def __init__(self) -> None:
        self.item: Item | None = None
        self.failures = 0
        self.began = perf_counter()
        self.process: Any = None
        self.thread: threading.Thread | None = None
        self.pending: Pending | None = None

    def take(self, item: Item, failures: int = 0) -> None:
        """An item comes into the hand."""
        self.failures = failures
        self.began = perf_counter()
        self.item = item  # last: who reads it finds the rest

    def let_go(self) -> None:
        """It has been prepared, or has failed."""
        self.item = None

    @property
    def seconds(self) -> float:
        """How long ago the item, or the last one, was taken."""
        return perf_counter() - self.began


class Hands:
    """The hands of the workers of a job, by the keys of their threads or tasks.

    Args:
        lock: guards them.
    """

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._hands: dict[int, Hand] = {}

    def give(self, worker: object, hand: Hand) -> None:
        """A worker has this hand from now on: a thread or a task."""
        holding(self._lock, self._hands.__setitem__, id(worker), hand)

    def drop(self, worker: object) -> None:
        """The worker has ended."""
        holding(self._lock, self._hands.pop, id(worker), None)

    def all(self) -> Mapping[int, Hand]:
        """All there are now."""
        return holding(self._lock, dict, self._hands)
