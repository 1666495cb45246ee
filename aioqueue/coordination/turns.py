"""Turns of an event loop: a worker that never waits lets the others have theirs."""

from __future__ import annotations

from time import perf_counter
from typing import Final

import anyio.lowlevel

__all__ = ("Turns",)

_LONG: Final = 0.005
"""Seconds that a worker may keep its loop to itself: as long as a thread keeps the interpreter.
Whether it has waited is not known, so one that does gives up a turn in each of these as well."""

_MOST: Final = 64
"""Calls after which to look at the clock at the latest, since the next ones may take longer."""


class Turns:
    """For a task that awaits a function again and again, which may return without having waited.

    Such as one that enqueues by the blocking face, or into a queue with much room: nothing else of
    the loop would ever run, and no timeout or cancellation be felt.

    Attributes:
        calls: after how many of them to give others a turn, if one is due.
    """

    __slots__ = ("_began", "_looked", "calls")

    def __init__(self) -> None:
        self._began = self._looked = perf_counter()
        self.calls = 1

    async def give(self) -> None:
        """Let others run, if that is due."""
        now = perf_counter()
        is_quick = now - self._looked < _LONG / 4
        self.calls = min(2 * self.calls, _MOST) if is_quick else max(self.calls // 2, 1)
        if now - self._began >= _LONG:
            await anyio.lowlevel.checkpoint()
            now = self._began = perf_counter()
        self._looked = now
