"""The messages between programs and the actor of a queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import aioqueue
from aioqueue.ray.segments import Run

SMALL: Final = 64 * 1024
"""Batches of at most this many bytes stay in the actor rather than in the object store."""

LEASE_SECONDS: Final = 30.0
"""A client that is silent for this long loses its leases, and its calls end."""


class Description(NamedTuple):
    """What kind of queue it is; all its users must agree."""

    kind: str
    capacity: int | None
    min_after_dequeue: int
    dtypes: Any
    shapes: Any
    names: Any
    seed: Any
    max_bytes: int | None
    journal: str | None = None

    def handles(self, name: str) -> Any:
        if self.kind == "RandomShuffleQueue":
            return aioqueue.RandomShuffleQueue(
                *(self.capacity, self.min_after_dequeue),
                seed=self.seed,
                max_bytes=self.max_bytes,
                name=name,
            )
        if self.kind == "PriorityQueue":
            return aioqueue.PriorityQueue(self.capacity, max_bytes=self.max_bytes, name=name)
        return aioqueue.FIFOQueue(self.capacity, max_bytes=self.max_bytes, name=name)


class Answer(NamedTuple):
    """The answer to a call."""

    error: BaseException | None = None
    """The error of the call."""
    rows: int = 0
    """How many rows an enqueue put in."""
    runs: Sequence[Run] = ()
    """The rows that a dequeue got."""
    cause: bytes | None = None
    """The cause of the error, as a message: the actor may not be able to import its class."""
    starts: int = 0
    """How often the actor has started. Set if it has restarted: the caller must rejoin, and then
    repeat the call."""
    freed: Sequence[int] = ()
    """Enqueues whose elements are all committed; their producer can drop them."""
    requested: Sequence[int] = ()
    """Batches that a replayable producer must make again."""
    must_retry: bool = False
    """Whether the lost rows exist after all; the caller must repeat the dequeue."""
    is_outdated: bool = False
    """Whether the caller's report preceded another restart; the caller must report again."""
