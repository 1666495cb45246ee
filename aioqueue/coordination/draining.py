"""Draining: the sources of a coordinator end now, and what is under way is still delivered.

What ends are the runs that fill queues. Those that take from a queue which others fill go on until
it ends; so the end passes through a chain of queues as it does at the end of any input, and nothing
of it is special but that it comes earlier. Here is which runs and queues there are, and what is
left of them when the time is up.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol
from weakref import WeakSet

from aioqueue.coordination.workers import Worker, told_with_places
from aioqueue.errors import UndeliveredError, counted
from aioqueue.locks import guarded
from aioqueue.queues import QueueFace
from aioqueue.queues.core import QueueCore

__all__ = ("Drainable", "Draining", "undelivered")


class Drainable(Protocol):
    """A run that fills a queue."""

    @property
    def filled(self) -> QueueFace:
        """The queue."""

    def drain(self) -> None:
        """Take on nothing new, finish what was begun, and end. Does not wait; any thread."""

    def in_flight(self) -> int:
        """How many items were taken from the source and are not in the queue, as far as that is
        known."""

    def going(self) -> tuple[str, ...]:
        """The names of the workers that have not ended."""


class Draining:
    """The runs of a coordinator that go on, and the queues that they fill. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards all below
        self._runs: dict[Drainable, None] = {}
        self._queues: WeakSet[QueueCore] = WeakSet()
        self._drain: object | None = None

    @property
    def current(self) -> object | None:
        """What stands for the drain that was asked for; ``None`` if none was."""
        return self._drain

    def begins(self, run: Drainable) -> None:
        """A run begins, and ends at once if a drain was asked for."""
        if self._enter(run):
            run.drain()

    @guarded
    def ended(self, run: Drainable) -> None:
        """A run has ended."""
        self._runs.pop(run, None)

    @guarded
    def ask(self) -> object:
        """A drain is asked for, if none was; returns what stands for it."""
        if self._drain is None:
            self._drain = object()
        return self._drain

    @guarded
    def forget(self) -> None:
        """No drain was asked for."""
        self._drain = None

    @guarded
    def runs(self) -> list[Drainable]:
        """Those that go on."""
        return list(self._runs)

    @guarded
    def queues(self) -> list[QueueCore]:
        """All that were filled, as long as somebody has them."""
        return list(self._queues)

    @guarded
    def _enter(self, run: Drainable) -> bool:
        self._runs[run] = None
        self._queues.add(run.filled._core)
        return self._drain is not None


def undelivered(
    runs: Iterable[Drainable],
    queues: Iterable[QueueCore],
    workers: Sequence[Worker],
    seconds: float,
) -> UndeliveredError | None:
    """What was not delivered when the time of a drain was up; ``None`` if all was.

    Args:
        runs: those that go on.
        queues: all that were filled.
        workers: those that are known.
        seconds: that it had.
    """
    inside, items = Counter[str](), Counter[str]()  # names need not be unique
    for queue in queues:
        inside[queue.name] += queue.machine.statistics().size
    inside = +inside
    going = [(run, names) for run in runs if (names := run.going())]
    if not inside and not going:
        return None
    for run, _ in going:
        items[run.filled.name] += run.in_flight()
    items = +items
    names = tuple(name for _, some in going for name in some)
    parts = [f"{counted(size, 'element')} in '{name}'" for name, size in inside.items()]
    parts += [f"up to {counted(n, 'item')} on the way to '{name}'" for name, n in items.items()]
    if names:
        parts.append(f"{counted(len(names), 'worker')} had not ended")
    places = told_with_places([one for one in workers if one.name in names and one.is_alive()])
    return UndeliveredError(
        f"a drain had {seconds:g} s, which were up before all was delivered: {', '.join(parts)}"
        + places,
        elements=dict(inside),
        items=dict(items),
        workers=names,
    )
