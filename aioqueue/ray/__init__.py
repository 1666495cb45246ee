"""Queues on a Ray cluster, by name: many programs put in, and several take out.

`FIFOQueue` and its sisters are the queues of `aioqueue`, each in an actor of the cluster, with
handles of elements inside: data stay in the object store. What is taken out is leased, until it has
been used: what a consumer has when it dies comes back, first in line. A `Coordinator` stops workers
everywhere, and brings their failures home.

To prepare examples on a cluster no such queue is needed: ``where="ray"`` of `prepare` fills a queue
in this program.
"""

from __future__ import annotations

from aioqueue.migration_hints import hint_keywords as _hint_keywords
from aioqueue.ray.coordinator import Coordinator
from aioqueue.ray.queues import (
    BlockingRayQueue,
    FIFOQueue,
    PaddingFIFOQueue,
    PriorityQueue,
    RandomShuffleQueue,
    RayQueue,
)

__all__ = (
    "BlockingRayQueue",
    "Coordinator",
    "FIFOQueue",
    "PaddingFIFOQueue",
    "PriorityQueue",
    "RandomShuffleQueue",
    "RayQueue",
)

for _name in __all__:
    # Tracebacks and reprs show the public path.
    globals()[_name].__module__ = __name__
del _name

_hint_keywords((FIFOQueue, RandomShuffleQueue, PaddingFIFOQueue, PriorityQueue), "queues")
_hint_keywords((Coordinator,), "coordinators")
