"""What the programs of a cluster and the actor of a queue say to each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import aioqueue
from aioqueue.ray.handles import Run

__all__ = ("LEASE_SECONDS", "SMALL", "Answer", "Description")

SMALL: Final = 64 * 1024
"""Bytes of a batch that is kept in the memory of the actor, and not in the object store."""

LEASE_SECONDS: Final = 30.0
"""How long a client may be silent until what it has been given goes back, or its calls end."""


class Description(NamedTuple):
    """What a queue is: all who use it must agree."""

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
        """A queue of handles in its order."""
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
    """What becomes of a call."""

    error: BaseException | None = None
    """What it has failed by."""
    rows: int = 0
    """How many rows an enqueue has put in."""
    runs: Sequence[Run] = ()
    """What a dequeue has got."""
    cause: bytes | None = None
    """What the error comes from, as a message: its class need not exist where the actor is."""
    began: int = 0
    """The actor has come back, so often by now: the call is to be made again, once it is told how
    its caller stands."""
    freed: Sequence[int] = ()
    """The enqueues of which nothing is left: nobody needs to keep their elements any more."""
    wanted: Sequence[int] = ()
    """The batches of a book that are to be made again."""
    is_elsewhere: bool = False
    """What was lost is not: the dequeue is to be made again."""
    is_outdated: bool = False
    """How its caller stands was told to the actor before it came back once more: it is to be told
    anew."""
