"""Sources, a function on several workers, batches of either face, and several consumers."""

from __future__ import annotations

import asyncio
from typing import assert_type

import numpy as np
import numpy.typing as npt

import aioqueue
from aioqueue import inputs, sync


def decode(number: int) -> npt.NDArray[np.float64]:
    return np.full(3, number, np.float64)


def count_rows() -> int:
    with sync.Coordinator() as coord:
        source = inputs.numbers(10, epochs=1)
        rows = 0
        for batch in inputs.batch(source, 4, coord=coord, function=decode, workers=2, ordered=True):
            rows += len(batch)
        return rows


def stages_keep_the_types() -> None:
    source = inputs.numbers(10)
    assert_type(source.skip(2).enumerate().peek(), list[tuple[int, int]])
    assert_type(source.zip(inputs.items(["a"])).peek(), list[tuple[int, str]])
    assert_type(source.concat(inputs.items(["a"])).peek(), list[int | str])
    train, _ = source.split([0.9, 0.1])
    assert_type(train.repeat(2).peek(), list[int])
    assert_type(len(train), int)
    assert_type(source.batch(2).map_batches(len).peek(), list[int])
    assert_type(source.cache().peek(), list[int])
    assert_type(source.write(inputs.to_json_lines("rows")), inputs.Written)


async def count_shuffled() -> int:
    rows = 0
    async with aioqueue.Coordinator() as coord:
        words = inputs.items(["a", "bb", "ccc"], epochs=1)
        assert_type(next(iter(words)), str)
        stream = inputs.shuffle_batch(
            words, 2, coord=coord, min_after_dequeue=1, seed=3, function=len, where="thread"
        )
        async for batch in stream:
            rows += len(batch)
    return rows


async def count_prepared() -> int:
    queue = aioqueue.FIFOQueue[npt.NDArray[np.float64]](8)
    runner = inputs.prepare(inputs.numbers(10, epochs=1), decode, into=queue, on_error="skip")
    assert_type(runner, inputs.AsyncPrepareRunner)
    rows = 0
    async with aioqueue.Coordinator() as coord:
        coord.start(runner)
        async for example in queue:
            rows += len(example)
    return rows


def count_twice() -> int:
    with sync.Coordinator() as coord:
        first, second = inputs.broadcast([np.zeros(2), np.ones(2)], 2, coord=coord)
        return sum(len(batch) for stream in (first, second) for batch in stream)


assert count_rows() == 10
assert asyncio.run(count_shuffled()) == 3
assert asyncio.run(count_prepared()) == 30
assert count_twice() == 8
