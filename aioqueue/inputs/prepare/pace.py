"""How many items may be taken from a source together, before anybody prepares them."""

from __future__ import annotations

from time import perf_counter
from typing import Final

__all__ = ("Pace",)

_CHEAP: Final = 5e-5
"""Seconds that a worker may need for an item."""

_AHEAD: Final = 5e-4
"""Seconds in which those that were taken together are to be prepared, about."""

_MOST: Final = 64


class Pace:
    """How many items are taken together: one, and more and more while they go quickly.

    How quickly they go is seen from when the next ones are asked for, and all that may keep them
    counts: the function, the queue, other threads. Not thread-safe.
    """

    __slots__ = ("_n", "_since")

    def __init__(self) -> None:
        self._n = 1
        self._since = 0.0

    @property
    def is_quick(self) -> bool:
        """Whether items go so quickly that several were taken together the last time."""
        return self._n > 1

    def next(self, workers: int) -> int:
        """All that were taken are in preparation: how many to take now.

        Args:
            workers: how many prepare them.
        """
        now = perf_counter()
        each = max(1e-9, now - self._since) / self._n
        self._since = now
        if each * workers > _CHEAP:
            self._n = 1
        else:
            self._n = max(1, min(2 * self._n, int(_AHEAD / each), _MOST))
        return self._n
