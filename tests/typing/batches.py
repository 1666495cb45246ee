"""Pipelines: what a function makes of an item, and what batches are of that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, assert_type

import numpy as np
import numpy.typing as npt

from aioqueue import inputs
from aioqueue.core.elements.spec import Array


class Point(NamedTuple):
    x: float
    y: float


def pair(number: int) -> tuple[npt.NDArray[np.float32], int]:
    return np.full(2, number, np.float32), number


def labelled(number: int, rng: np.random.Generator) -> dict[str, float]:
    return {"x": number + rng.random(), "y": 0.5}


def pieces(number: int) -> Iterator[str]:
    yield from str(number)


async def fetched(number: int) -> npt.NDArray[np.int64]:
    return np.array([number])


def point(number: int) -> Point:
    return Point(number, -number)


def maybe(number: int) -> int | None:
    return number if number % 2 else None


source = inputs.numbers(4, seed=1)

pairs = source.prepare(pair).shuffle(3).batch(2)
assert_type(pairs, inputs.Pipeline[tuple[Array, ...]])
for values, numbers in pairs:
    assert values.shape == (2, 2)
    assert numbers.shape == (2,)

named = source.prepare(labelled, workers=2).batch(4)
assert_type(named, inputs.Pipeline[dict[str, Array]])
for batch in named:
    assert batch["x"].shape == (4,)

texts = source.prepare(pieces)
assert_type(texts, inputs.Pipeline[str])
assert_type(texts.batch(2, drop_remainder=True), inputs.Pipeline[Array])

arrays = source.prepare(fetched)
assert_type(arrays, inputs.Pipeline[npt.NDArray[np.int64]])
assert_type(arrays.batch(2), inputs.Pipeline[Array])
assert sum(float(one.sum()) for one in arrays.batch(2)) == 6.0

points = source.prepare(point).batch(4)
assert_type(points, inputs.Pipeline[Any])  # a `Point`, whose fields are arrays
for made in points:
    assert made.x.shape == (4,)

assert_type(source.prepare(maybe, drop_none=True), inputs.Pipeline[int | None])
assert_type(source.prepare(lambda number: number / 2), inputs.Pipeline[float])
assert_type(source.batch(2, collate=len), inputs.Pipeline[int])
assert list(source.batch(2, collate=sum)) == [1, 5]

with source.prepare(pair).batch(2).epochs(2) as epochs:
    for epoch in epochs:
        for batch_of_pairs in epoch:
            assert_type(batch_of_pairs, tuple[Array, ...])
