"""Samples of how full a queue is, and its numbers so far."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Final

from aioqueue.core.meters import Histogram
from aioqueue.queues.queue_core import QueueCore
from aioqueue.telemetry.metrics.snapshots import QueueNumbers
from aioqueue.telemetry.metrics.watch import EndingPart

_TENTHS: Final = 10


class QueuePart(EndingPart):
    """A queue, with samples of how full it is.

    It does not keep the queue alive. To have it for the queue's whole life, add it to the queue's
    parts.

    Args:
        core: the queue.
        now: when sampling begins.
    """

    def __init__(self, core: QueueCore, now: float) -> None:
        self._core = weakref.ref(core)
        self._machine = core.machine
        self._keep = core.keep
        self.name: str = core.name
        self._kind = core.kind
        self._sampled = now
        self._empty = self._full = 0.0
        self._occupancy = [0.0] * _TENTHS

    @property
    def is_over(self) -> bool:
        """Whether nothing more can happen to it."""
        if self._machine.state.value != "closed":
            return False
        counts = self._machine.statistics()
        return not counts.size and counts.enqueued == counts.dequeued

    @property
    def size(self) -> int:
        """Return its size, without its lock."""
        return len(self._machine.storage)

    def is_of(self, core: QueueCore) -> bool:
        return self._core() is core

    def is_such(self, test: Callable[[QueueCore], bool]) -> bool:
        core = self._core()
        return core is not None and test(core)

    @property
    def identity(self) -> str:
        """What identifies it in all processes that share it; empty if it is not shared."""
        core = self._core()
        return "" if core is None or core.shared is None else str(core.shared.identity)

    def leave(self) -> None:
        core = self._core()
        if core is not None and self in core.parts:
            core.parts.remove(self)

    def sample(self, now: float, share: float = 1.0) -> None:
        """Sample its size without its lock; the sample stands for the time since the last one.

        Args:
            now: the time, on the clock of `time.perf_counter`.
            share: which share of the time counts as its own, if several queues share a name.
        """
        passed, self._sampled = (now - self._sampled) * share, now
        machine = self._machine
        size, most = len(machine.storage), machine.max_rows
        if size <= self._keep:
            self._empty += passed
        if size >= most:
            self._full += passed
        if most != float("inf"):
            self._occupancy[min(int(size / most * _TENTHS), _TENTHS - 1)] += passed

    def numbers(self, now: float) -> QueueNumbers:
        waits = self._machine.waits()
        counts = waits.statistics
        return QueueNumbers(
            name=self.name,
            kind=self._kind,
            size=counts.size,
            capacity=counts.capacity,
            held=counts.granted + counts.claimed,
            bytes=counts.bytes,
            max_bytes=counts.max_bytes,
            is_closed=self._machine.state.value != "open",
            enqueued=counts.enqueued,
            dequeued=counts.dequeued,
            enqueue_waits=Histogram(*waits.enqueue_waits),
            dequeue_waits=Histogram(*waits.dequeue_waits),
            enqueue_waiting=_seconds_since(waits.enqueues_since, now),
            dequeue_waiting=_seconds_since(waits.dequeues_since, now),
            seconds_empty=self._empty,
            seconds_full=self._full,
            occupancy=tuple(self._occupancy) if counts.capacity is not None else (),
            # While no consumer calls `task_done`, the number only grows and says nothing.
            unfinished=counts.unfinished if counts.unfinished < counts.enqueued else None,
        )


def _seconds_since(since: list[float], now: float) -> tuple[float, ...]:
    return tuple(max(0.0, now - began) for began in since)
