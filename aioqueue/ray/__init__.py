"""Named queues on a Ray cluster, with many producers and several consumers.

`FIFOQueue` and the other classes are the queues of `aioqueue`, each in an actor of the cluster. The
actor holds handles of the elements; the data stays in the object store. A dequeue leases its
elements to the consumer until they are committed. If the consumer dies, they return to the front of
the queue. A `Coordinator` stops workers everywhere, and collects their failures. A `RolloutQueue`
is that of `aioqueue.rl` in an actor, for trainers anywhere in the cluster.

To prepare examples on a cluster you need no such queue: `prepare` with ``where="ray"`` fills a
queue in your program.
"""

from __future__ import annotations

from aioqueue.base.hints import hint_keywords as _hint_keywords
from aioqueue.ray.coordinator import Coordinator
from aioqueue.ray.queues import (
    BlockingRayQueue,
    FIFOQueue,
    PaddingFIFOQueue,
    PriorityQueue,
    RandomShuffleQueue,
    RayQueue,
)
from aioqueue.ray.rollouts import RolloutQueue

__all__ = (
    "BlockingRayQueue",
    "Coordinator",
    "FIFOQueue",
    "PaddingFIFOQueue",
    "PriorityQueue",
    "RandomShuffleQueue",
    "RayQueue",
    "RolloutQueue",
)

for _name in __all__:
    # Tracebacks and reprs show the public path.
    globals()[_name].__module__ = __name__
del _name

_hint_keywords((FIFOQueue, RandomShuffleQueue, PaddingFIFOQueue, PriorityQueue), "queues")
_hint_keywords((Coordinator,), "coordinators")
_hint_keywords((RolloutQueue,), "rollouts")
