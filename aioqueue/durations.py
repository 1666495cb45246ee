"""Durations, counted in buckets whose bounds double: a distribution in a few words of memory.

Who adds to one holds the lock that guards it, or is the only one who does; anybody may read it at
any time. What is read then may lack the duration that is just being added, and is never more wrong
than that. Nothing here reads a clock.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

__all__ = ("BOUNDS", "Counted", "Durations")

BOUNDS: Final = tuple(1e-6 * 2**power for power in range(25))
"""Upper bounds of the buckets, in seconds: 1 us to 16.8 s, each twice the last."""


class Counted(NamedTuple):
    """What was counted so far."""

    counts: tuple[int, ...]
    """One per bound of `BOUNDS`, and one for those that were longer."""
    seconds: float
    longest: float


class Durations:
    """Durations so far: how many fell into each bucket, their sum, the longest."""

    __slots__ = ("_counts", "longest", "seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0
        self.longest = 0.0

    def add(self, seconds: float, weight: int = 1) -> None:
        """Count one; or as many like it, of which only this one was measured."""
        self._counts[bisect_left(BOUNDS, seconds)] += weight
        self.seconds += seconds * weight
        if seconds > self.longest:
            self.longest = seconds

    def counted(self) -> Counted:
        """What there is."""
        return Counted(tuple(self._counts), self.seconds, self.longest)
