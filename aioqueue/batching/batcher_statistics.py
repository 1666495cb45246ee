"""What a batcher has done and is doing: the record that users see, and the counts behind it."""

from __future__ import annotations

import enum
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ("BatcherCounts", "BatcherState", "BatcherStatistics")

_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds. The last bucket is without a bound."""


@dataclass(frozen=True, slots=True)
class BatcherStatistics:
    """What a batcher has done and is doing.

    How to read it: ``waiting`` near ``capacity`` and growing ``refused`` show that the function
    cannot keep up; ``batch_sizes`` near 1 under load, that ``max_wait`` is too short to fill a
    batch. ``queue_seconds / requests`` is the mean wait of a request for its batch,
    ``function_seconds / batches`` the mean call of the function, and ``latency_seconds / (answered
    + failed)`` the mean time to an answer.

    Every request that was accepted is ``answered``, ``failed`` or ``cancelled``, or it is still
    ``waiting`` or ``in_flight`` (but for one that is just moving from there).
    """

    requests: int
    """Calls accepted so far."""
    answered: int
    """Of these, those that got a result."""
    failed: int
    """Those that got a failure."""
    cancelled: int
    """Those whose caller has gone before the answer came."""
    refused: int
    """Calls that found no room and were told so (`QueueFull`); they are not among ``requests``."""
    waiting: int
    """Requests that wait for a batch now."""
    waiting_for_room: int
    """Callers that wait until the queue has room for their request."""
    capacity: int | None
    """Requests that may wait; None where there is no bound."""
    in_flight: int
    """Requests in the batches that the function works on now."""
    batches: int
    """Batches that the function was called with."""
    batch_sizes: Mapping[int, int]
    """How many batches there were of each size."""
    queue_seconds: float
    """Seconds from call to batch, over all requests that have come into one."""
    function_seconds: float
    """Seconds spent in calls of the function that have ended, over all batches."""
    latency_seconds: float
    """Seconds from call to answer, over all requests that are answered or failed."""
    latencies: Mapping[float, int]
    """How many of these took how long: by bucket, each named by its upper bound in seconds
    (``inf`` for the last). A bucket does not count what is in a smaller one."""
    workers_died: int
    """Worker processes that have died. Each was replaced, or the batcher has failed."""


class BatcherCounts:
    """The counts that change. Guarded by the lock of the core."""

    def __init__(self) -> None:
        self.answered = 0
        self.failed = 0
        self.cancelled = 0
        self.refused = 0
        self.in_flight = 0
        self.batch_sizes: Counter[int] = Counter()
        self.queue_seconds = 0.0
        self.function_seconds = 0.0
        self.latency_seconds = 0.0
        self.workers_died = 0
        self._latencies = [0] * (len(_BOUNDS) + 1)

    def took(self, seconds: float) -> None:
        """A request was answered after so many seconds."""
        self.latency_seconds += seconds
        self._latencies[bisect_left(_BOUNDS, seconds)] += 1

    def latencies(self) -> Mapping[float, int]:
        """See `BatcherStatistics.latencies`."""
        return dict(zip((*_BOUNDS, math.inf), self._latencies, strict=True))

    def sizes(self) -> Mapping[int, int]:
        """See `BatcherStatistics.batch_sizes`; by ascending size."""
        return dict(sorted(self.batch_sizes.items()))


class BatcherState(enum.Enum):
    """How far a batcher is."""

    NEW = "not entered"
    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"
