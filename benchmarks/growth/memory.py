"""Memory: what a small element takes does not depend on how many are inside."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

from benchmarks.growth.rows import count

SIZES = (20_000, 80_000, 320_000)


def _traced(make: Callable[[int], Any]) -> Callable[[int], float]:
    def traced(n: int) -> float:
        make(10)  # what is imported at the first use
        tracemalloc.start()
        try:
            made = make(n)
            traced = tracemalloc.get_traced_memory()[0]
            del made
            return float(traced)
        finally:
            tracemalloc.stop()

    return traced


def _shuffled(n: int) -> Any:
    import numpy as np

    from aioqueue import sync

    queue = sync.RandomShuffleQueue(n, 0, "int64", (), seed=1)
    queue.enqueue_many(np.arange(n))
    return queue


def _prioritised(n: int) -> Any:
    import numpy as np

    from aioqueue import sync

    queue = sync.PriorityQueue(n, "int64", ())
    queue.enqueue_many((np.arange(n), np.arange(n)))
    return queue


count(
    "an int64 in a shuffle queue",
    "bytes",
    SIZES,
    _traced(_shuffled),
    at_most=20,
)
count(
    "an int64 in a priority queue, with its priority",
    "bytes",
    SIZES,
    _traced(_prioritised),
    at_most=80,
)
