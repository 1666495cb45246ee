"""Durations, counted in buckets whose bounds double: a distribution in little memory.

Only one thread at a time may add to a `Durations`: the holder of the lock that guards it, or its
only writer. Any thread may read it at any time. A reading may lack the duration that is being
added, and has no other error. No function here reads a clock.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ("BOUNDS", "Counted", "Durations", "Histogram")

BOUNDS: Final = tuple(1e-6 * 2**power for power in range(25))
"""The buckets' upper bounds in seconds: 1 us to 16.8 s, each twice the one before."""


class Counted(NamedTuple):
    """The counts so far."""

    counts: tuple[int, ...]
    """One count per bound in `BOUNDS`, and one for longer durations."""
    seconds: float
    longest: float


class Durations:
    """The durations so far: how many there are in each bucket, their sum, and the longest."""

    __slots__ = ("_counts", "longest", "seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.seconds: float = 0.0
        self.longest: float = 0.0

    def add(self, seconds: float, weight: int = 1) -> None:
        """Count a duration, with the weight of all those that it was sampled from."""
        self._counts[bisect_left(BOUNDS, seconds)] += weight
        self.seconds += seconds if weight == 1 else seconds * weight
        if seconds > self.longest:
            self.longest = seconds

    def counted(self) -> Counted:
        """Return the counts."""
        return Counted(tuple(self._counts), self.seconds, self.longest)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations, counted in buckets whose bounds double.

    Attributes:
        counts: number of durations in each bucket: one per bound of `BOUNDS`, and one for longer
            ones.
        seconds: sum of the durations.
        longest: the longest duration, in seconds.
    """

    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    seconds: float = 0.0
    longest: float = 0.0

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Mean duration in seconds; 0.0 without any duration."""
        return self.seconds / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """Return a quantile in seconds, interpolated within its bucket; 0.0 without any
        duration."""
        wanted = share * self.count
        below = 0
        for bucket, count in enumerate(self.counts):
            if count and below + count >= wanted:
                low = BOUNDS[bucket - 1] if bucket else 0.0
                high = BOUNDS[bucket] if bucket < len(BOUNDS) else max(self.longest, low)
                high = max(low, min(high, self.longest))
                return low + (high - low) * (wanted - below) / count
            below += count
        return 0.0

    def plus(self, other: Histogram) -> Histogram:
        """Return the durations of both."""
        counts = tuple(map(int.__add__, self.counts, other.counts))
        longest = max(self.longest, other.longest)
        return Histogram(counts, self.seconds + other.seconds, longest)

    def since(self, earlier: Histogram) -> Histogram:
        """Return the durations since an earlier snapshot; ``longest`` is that of the whole run."""
        counts = tuple(now - then for now, then in zip(self.counts, earlier.counts, strict=True))
        return Histogram(counts, self.seconds - earlier.seconds, self.longest)
