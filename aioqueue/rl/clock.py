"""How long the trainer and the generation have waited, and how old what was trained is."""

from __future__ import annotations

from collections import Counter
from time import perf_counter
from typing import TYPE_CHECKING, Any

from aioqueue.core.meters import Durations

if TYPE_CHECKING:
    from aioqueue.rl.machine import RolloutMachine


class IdleTimes:
    """Measures waits. Its methods are called under the lock of the queue.

    Attributes:
        began: when the generation began; ``None`` before.
        waits: the waits of trainers for steps.
        slots: seconds in which nothing was generated, for want of slots.
        gate: seconds in which nothing was generated, since weights were published.
        publishing: seconds in which weights were published.
        staleness: how many groups of each staleness were handed out.
        last_staleness: that of the last batch.
        groups: how many groups were handed out.
        sum_of_staleness: their staleness, added up.
    """

    def __init__(self) -> None:
        self.began: float | None = None
        self.waits: Durations = Durations()
        self.slots: float = 0.0
        self.gate: float = 0.0
        self.publishing: float = 0.0
        self.staleness: Counter[int] = Counter()
        self.last_staleness: tuple[int, ...] = ()
        self.groups: int = 0
        self.sum_of_staleness: int = 0
        self._is_idle = False
        self._is_paused = False
        self._since = 0.0

    def note(self, machine: RolloutMachine) -> None:
        """Note the state of the machine after an event."""
        is_idle = not machine.running
        if is_idle is self._is_idle and machine.is_paused is self._is_paused:
            return
        self.add_time(perf_counter(), machine)
        self._is_idle, self._is_paused = is_idle, machine.is_paused

    def add_time(self, now: float, machine: RolloutMachine) -> None:
        """Add the time since the last note."""
        if not machine.has_begun:
            self._since = now
            return
        if self.began is None:
            self.began = self._since = now
        seconds, self._since = now - self._since, now
        if self._is_paused:
            self.publishing += seconds
        if self._is_idle and not machine.is_stopped:
            if self._is_paused:
                self.gate += seconds
            elif not machine.is_pulling and not machine.is_source_ended:
                self.slots += seconds

    @property
    def worst_staleness(self) -> int:
        return max(self.staleness, default=0)

    def handed_out(self, batch: Any) -> None:
        self.last_staleness = batch.staleness
        self.staleness.update(batch.staleness)
        self.groups += len(batch.staleness)
        self.sum_of_staleness += sum(batch.staleness)
