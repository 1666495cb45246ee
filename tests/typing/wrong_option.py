"""Misspells the keyword options that batchers hand on, and gives one a wrong value."""

from __future__ import annotations

import aioqueue
from aioqueue import inputs, sync


async def train(coord: aioqueue.Coordinator) -> None:
    source = inputs.numbers(10)
    stream = inputs.batch(source, 4, coord=coord, function=float, workers=2)
    inputs.batch(source, 4, coord=coord, function=float, wrokers=2)  # WRONG
    inputs.batch(source, 4, coord=coord, function=float, where="proces")  # WRONG
    async for _ in stream:
        pass


def shuffle(coord: sync.Coordinator) -> None:
    source = inputs.numbers(10)
    inputs.shuffle_batch(source, 4, coord=coord, min_after_dequeue=2, seed=1, ordered=True)
    inputs.shuffle_batch(source, 4, coord=coord, min_after_dequeue=2, order=True)  # WRONG
    inputs.bucket_by_sequence_length(source, [4], 2, coord=coord, drop_none=True)
    inputs.bucket_by_sequence_length(source, [4], 2, coord=coord, skip_nones=True)  # WRONG
