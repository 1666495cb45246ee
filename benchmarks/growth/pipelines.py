"""Pipelines: what an example costs does not depend on how many a stage holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.growth.rows import Run, instructions

ROWS_OF_A_BATCH = 100


def _drained(iterator: Iterator[Any]) -> Run:
    """The rest of an epoch, whose first batch has filled all buffers."""
    next(iterator)

    def drain() -> None:
        for _ in iterator:
            pass

    return drain


def _shuffled(size: int) -> Run:
    from aioqueue.inputs import numbers

    return _drained(iter(numbers(size).shuffle(size).batch(ROWS_OF_A_BATCH)))


instructions(
    "an example out of a shuffle at the end of an epoch", (25_000, 50_000, 100_000), _shuffled
)
