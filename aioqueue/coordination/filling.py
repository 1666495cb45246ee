"""A queue has one end: who fills it now, and who of them closes it.

However many runs fill a queue, of runners of whatever kind, and by whichever face: it is closed
when the last of them has ended. A run that ends before leaves its part of the closing to one that
goes on. Only runs are noted here, by the queue that they fill, and neither is kept alive by that: a
run that is dropped before it has ended is not waited for.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary, WeakSet

from aioqueue.locks import holding
from aioqueue.queues import QueueFace

if TYPE_CHECKING:
    from aioqueue.coordination.runs import Run

__all__ = ("begin_to_fill", "end_to_fill")

_lock: Final = threading.RLock()  # guards all below, and what runs leave to each other
_runs: Final[WeakKeyDictionary[object, WeakSet[Run]]] = WeakKeyDictionary()


def begin_to_fill(queue: QueueFace, run: Run) -> None:
    """Note that a run is going to fill a queue: until it has ended, no other one closes it."""
    holding(_lock, _begin, queue._core, run)


def end_to_fill(queue: QueueFace, run: Run) -> Run | None:
    """Note that a run has ended; returns one that goes on, and has taken on its legacy."""
    return holding(_lock, _end, queue._core, run)


def _begin(queue: object, run: Run) -> None:
    if queue not in _runs:
        _runs[queue] = WeakSet()
    _runs[queue].add(run)


def _end(queue: object, run: Run) -> Run | None:
    runs = _runs.get(queue, WeakSet())
    runs.discard(run)
    heir = next(iter(runs), None)
    if heir is None:
        _runs.pop(queue, None)
    else:
        heir.legacy += [*run.legacy, run]
        run.legacy = []
    return heir
