"""A queue has one end: who fills it now, and who of them closes it.

However many runs fill a queue, of runners of whatever kind, and by whichever face: it is closed
when the last of them has ended. A run that ends before leaves its part of the closing to one that
goes on. Once the last one has ended, the queue is as good as closed, however long that takes: who
begins then comes too late. Only runs are noted here, by the queue that they fill, and neither is
kept alive by that: a run that is dropped before it has ended is not waited for.
"""

from __future__ import annotations

import threading
from typing import Any, Final, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet

from aioqueue.locks import holding
from aioqueue.queues import QueueFace

__all__ = (
    "Filler",
    "begin_to_fill",
    "close_unless_filled",
    "end_to_fill",
    "is_closed_now",
    "living_runs",
)


class Filler(Protocol):
    """A run, as far as the queue concerns it that it fills."""

    def inherit(self, other: Any) -> None:
        """Take on the part of the closing of a run that has filled the same queue, and ended."""


FillerT = TypeVar("FillerT", bound=Filler)

_lock: Final = threading.RLock()  # guards all below, and what runs leave to each other
_runs: Final[WeakKeyDictionary[object, WeakSet[Filler]]] = WeakKeyDictionary()
_closing: Final[WeakSet[object]] = WeakSet()  # those that the last of their runs is closing


def begin_to_fill(queue: QueueFace, run: Filler) -> bool:
    """Note that a run is going to fill a queue: until it has ended, no other one closes it.

    Returns:
        Whether it comes in time; else the queue is closed, or somebody is just closing it.
    """
    return not holding(_lock, _begin, queue._core, run) and not queue.is_closed()


def end_to_fill(queue: QueueFace, run: FillerT) -> FillerT | None:
    """Note that a run has ended; returns one that goes on, and has taken on its legacy.

    If there is none, the run has to close the queue, and to say so afterwards (`is_closed_now`).
    """
    return cast(FillerT | None, holding(_lock, _end, queue._core, run))


def is_closed_now(queue: QueueFace) -> None:
    """Note that the last run has closed the queue, or has done what it does instead."""
    holding(_lock, _closing.discard, queue._core)


def close_unless_filled(queue: QueueFace) -> None:
    """Close a queue that no run fills; what is inside can still be taken."""
    if not holding(_lock, _is_filled, queue._core):
        queue.close()


def _is_filled(queue: object) -> bool:
    return bool(_runs.get(queue))


def living_runs() -> list[Any]:
    """All runs that have begun and not yet ended, of whatever queue."""
    return cast(list[Any], holding(_lock, _living))


def _living() -> list[Filler]:
    return [run for runs in list(_runs.values()) for run in list(runs)]


def _begin(queue: object, run: Filler) -> bool:
    """Returns whether it comes too late."""
    if queue not in _runs:
        _runs[queue] = WeakSet()
    _runs[queue].add(run)
    return queue in _closing


def _end(queue: object, run: Filler) -> Filler | None:
    runs = _runs.get(queue, WeakSet())
    runs.discard(run)
    heir = next(iter(runs), None)
    if heir is None:
        _runs.pop(queue, None)
        _closing.add(queue)
    else:
        heir.inherit(run)
    return heir
