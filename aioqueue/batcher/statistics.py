"""The statistics of a batcher: the record that users see, and the counts behind it."""

from __future__ import annotations

import enum
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aioqueue.base.arguments import checked_share
from aioqueue.base.hints import Hinted, hint_attributes
from aioqueue.base.public_names import public

_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets in seconds. The last bucket has none."""


@public("aioqueue")
@hint_attributes("the statistics of a batcher")
@dataclass(frozen=True, slots=True)
class BatcherStatistics(Hinted):
    """The statistics of a batcher.

    How to read them: if ``waiting`` is near ``capacity`` and ``refused`` grows, the function cannot
    keep up. If ``batch_sizes`` are near 1 under load, ``max_wait`` is too short to fill a batch.
    ``queue_seconds / requests`` is the mean time that a request waits for its batch,
    ``function_seconds / batches`` the mean time of a call of the function, and ``latency_seconds /
    (answered + failed)`` the mean time from call to answer. `latency_quantile` has the percentiles.

    Every accepted request is in one of five counts, in each record: ``requests == waiting +
    in_flight + answered + failed + cancelled``.
    """

    requests: int
    """How many calls were accepted."""
    answered: int
    """How many of the requests got a result."""
    failed: int
    """How many of the requests got a failure."""
    cancelled: int
    """How many of the requests lost their caller before the answer."""
    refused: int
    """How many calls were refused with `QueueFull`. They do not count as ``requests``."""
    waiting: int
    """How many requests wait for a batch now, or for the batch that a worker collects to fill."""
    waiting_for_room: int
    """How many callers wait for room in the queue now."""
    capacity: int | None
    """How many requests may wait; ``None`` for no bound."""
    in_flight: int
    """How many requests are in the batches that workers have taken and not answered, and still have
    their callers."""
    batches: int
    """How many batches the function was called with."""
    batch_sizes: Mapping[int, int]
    """How many batches there were of each size."""
    queue_seconds: float
    """Seconds from call to batch, summed over all requests that have entered a batch."""
    function_seconds: float
    """Seconds that the function took, summed over all calls that have ended."""
    latency_seconds: float
    """Seconds from call to answer, summed over all answered and failed requests."""
    latencies: Mapping[float, int]
    """How many of these requests took how long: upper bound of the bucket in seconds (``inf`` for
    the last) -> requests in this bucket alone."""
    workers_died: int
    """How many worker processes have died. Each was replaced, unless the batcher has failed."""
    rejected: int
    """How many calls ``check`` has refused, or their weight. They do not count as ``requests``."""
    retried: int
    """How many requests the function was called with once more, one by one, since their batch had
    failed (``on_failure="one_by_one"``). These calls do not count as ``batches``."""

    def latency_quantile(self, share: float) -> float:
        """Return within how many seconds a share of the answered and failed requests had an answer.

        ``latency_quantile(0.99)`` is the 99th percentile (p99). It is interpolated within its
        bucket of ``latencies``, as by Prometheus. In the last bucket, which has no upper bound, it
        is the lower one, 10 seconds.

        Args:
            share: from 0 to 1.

        Returns:
            Seconds; 0.0 before the first answer.

        Raises:
            InvalidArgumentError: the share is not a number from 0 to 1.
        """
        wanted = checked_share(share, "share") * sum(self.latencies.values())
        low, below = 0.0, 0
        for high, count in self.latencies.items():
            if count and below + count >= wanted:
                return low if math.isinf(high) else low + (high - low) * (wanted - below) / count
            low, below = high, below + count
        return 0.0


class BatcherCounts:
    """The running counts. The core's lock guards them."""

    def __init__(self) -> None:
        self.answered = 0
        self.failed = 0
        self.cancelled = 0
        self.refused = 0
        self.batch_sizes: Counter[int] = Counter()
        self.queue_seconds: float = 0.0
        self.function_seconds: float = 0.0
        self.latency_seconds: float = 0.0
        self.workers_died = 0
        self.rejected = 0
        self.retried = 0
        self._latencies = [0] * (len(_BOUNDS) + 1)

    def add_latency(self, seconds: float) -> None:
        self.latency_seconds += seconds
        self._latencies[bisect_left(_BOUNDS, seconds)] += 1

    def latencies(self) -> Mapping[float, int]:
        return dict(zip((*_BOUNDS, math.inf), self._latencies, strict=True))

    def sizes(self) -> Mapping[int, int]:
        return dict(sorted(self.batch_sizes.items()))


class BatcherState(enum.Enum):
    """The stages in the life of a batcher."""

    NEW = "not entered"
    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"
