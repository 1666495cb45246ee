"""Waking those who wait for a batch when this process is to end soon.

Who waits is a run of a pipeline; who wakes it is a `Preemption`. Neither knows the other: both know
the alarm, of which there is one per process, as signals are for all of it.
"""

from __future__ import annotations

import threading
from typing import Final, Protocol
from weakref import WeakSet

from aioqueue.locks import guarded

__all__ = ("ALARM", "Alarm", "Sleeper")


class Sleeper(Protocol):
    """What may wait for a batch."""

    def wake(self, reason: str) -> None:
        """No batch is to be waited for any more, for this reason.

        Called in any thread or signal handler, and more than once; does neither wait nor raise.
        """


class Alarm:
    """Rings until whoever has rung it turns it off: who goes to sleep meanwhile hears it as well.

    Sleepers are not kept alive by it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards all below; a signal handler may ring
        self._sleepers: WeakSet[Sleeper] = WeakSet()
        self._ringing: dict[object, str] = {}  # for what reason, by who has rung it

    def listen(self, sleeper: Sleeper) -> None:
        """Have somebody woken when it rings; at once, if it does."""
        reason = self._enter(sleeper)
        if reason is not None:
            sleeper.wake(reason)

    def ring(self, who: object, reason: str) -> None:
        """Wake all, and those who come later."""
        for sleeper in self._ring(who, reason):
            sleeper.wake(reason)

    def turn_off(self, who: object) -> None:
        """Somebody does not ring it any more, who may never have."""
        self._turn_off(who)

    @guarded
    def _enter(self, sleeper: Sleeper) -> str | None:
        self._sleepers.add(sleeper)  # and then ask: a signal handler may ring in between
        return next(iter(self._ringing.values()), None)

    @guarded
    def _ring(self, who: object, reason: str) -> list[Sleeper]:
        self._ringing[who] = reason
        return list(self._sleepers)

    @guarded
    def _turn_off(self, who: object) -> None:
        self._ringing.pop(who, None)


ALARM: Final = Alarm()
