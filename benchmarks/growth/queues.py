"""Queues: what an element costs does not depend on how many are inside, or wait."""

from __future__ import annotations

from benchmarks.growth.rows import Run, instructions


def _shuffled(capacity: int) -> Run:
    from aioqueue import sync

    queue = sync.RandomShuffleQueue(capacity, 0, seed=1)
    queue.enqueue_many(range(capacity))

    def drain() -> None:
        for _ in range(capacity):
            queue.dequeue()

    return drain


instructions("an element out of a full shuffle queue", (1_000, 3_000, 10_000), _shuffled)
