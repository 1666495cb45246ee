"""Durations, counted in buckets whose bounds double: a distribution in little memory.

Only one thread at a time may add to a `Durations`: the holder of the lock that guards it, or its
only writer. Any thread may read it at any time. A reading may lack the duration that is being
added, and has no other error. No function here reads a clock.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

__all__ = ("BOUNDS", "Counted", "Durations")

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
        self.seconds += seconds * weight
        if seconds > self.longest:
            self.longest = seconds

    def counted(self) -> Counted:
        """Return the counts."""
        return Counted(tuple(self._counts), self.seconds, self.longest)
