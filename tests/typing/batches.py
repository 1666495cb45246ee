"""Pipelines: what a function makes of an item, and what batches are of that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict, assert_type

import numpy as np
import numpy.typing as npt

from aioqueue import inputs
from aioqueue.core.elements.spec import Array


class Point(NamedTuple):
    x: Any  # a float, or an array of them
    y: Any


class Sample(TypedDict):
    image: npt.NDArray[np.float32]
    label: Any


@dataclass
class Frame:
    pixels: npt.NDArray[np.uint8]
    label: Any


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


def sample(number: int) -> Sample:
    return {"image": np.full(2, number, np.float32), "label": number}


def frame(number: int) -> Frame:
    return Frame(np.full(2, number, np.uint8), number)


def nested(number: int) -> tuple[tuple[int, int], str]:
    return (number, number), str(number)


def maybe(number: int) -> int | None:
    return number if number % 2 else None


async def maybe_later(number: int) -> int | None:
    return maybe(number)


def maybe_random(number: int, rng: np.random.Generator) -> float | None:
    return rng.random() if number % 2 else None


def digits(number: int, rng: np.random.Generator) -> list[str]:
    return [*str(number), str(rng.random())]


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
assert_type(points, inputs.Pipeline[Point])
for made in points:
    assert made.x.shape == (4,)

samples = source.prepare(sample).batch(4)
assert_type(samples, inputs.Pipeline[Sample])
for batch_of_samples in samples:
    assert batch_of_samples["image"].shape == (4, 2)
    assert batch_of_samples["label"].tolist() == [0, 1, 2, 3]

frames = source.prepare(frame).batch(4)
assert_type(frames, inputs.Pipeline[Frame])
for batch_of_frames in frames:
    assert batch_of_frames.pixels.shape == (4, 2)

assert_type(source.prepare(nested).batch(2), inputs.Pipeline[Any])

assert_type(source.prepare(maybe), inputs.Pipeline[int | None])
assert_type(source.prepare(maybe, drop_none=True), inputs.Pipeline[int])
assert_type(source.prepare(maybe_later, drop_none=True, workers=2), inputs.Pipeline[int])
assert_type(source.prepare(maybe_random, drop_none=True), inputs.Pipeline[float])
assert_type(source.prepare(pair, drop_none=False).batch(2), inputs.Pipeline[tuple[Array, ...]])
odd = source.prepare(lambda number: number if number % 2 else None, drop_none=True, seed=1)
assert_type(odd, inputs.Pipeline[int])
assert list(odd) == [1, 3]

assert_type(source.flat(lambda number: [number, number + 1]), inputs.Pipeline[int])
assert_type(source.flat(lambda number: map(str, range(number))), inputs.Pipeline[str])
assert_type(source.flat(digits), inputs.Pipeline[str])
assert list(source.flat(lambda number: [number] * number)) == [1, 2, 2, 3, 3, 3]

images, labels = np.zeros((4, 2), np.float32), np.arange(4)
rows = inputs.arrays((images, labels))
assert_type(rows.peek(), list[tuple[Any, Any]])
assert_type(rows.batch(2), inputs.Pipeline[tuple[Array, ...]])
assert_type(inputs.arrays((images, labels, labels)).peek(), list[tuple[Any, Any, Any]])
assert_type(inputs.arrays([images, labels]).batch(2), inputs.Pipeline[tuple[Array, ...]])
by_name = inputs.arrays({"x": images, "y": labels})
assert_type(by_name.peek(), list[dict[str, Any]])
assert_type(by_name.batch(2), inputs.Pipeline[dict[str, Array]])
for one, label in rows:
    assert one.shape == (2,)
    assert label.dtype == np.int64

assert_type(source.prepare(lambda number: number / 2), inputs.Pipeline[float])
assert_type(source.batch(2, collate=len), inputs.Pipeline[int])
assert list(source.batch(2, collate=sum)) == [1, 5]

with source.prepare(pair).batch(2).epochs(2) as epochs:
    for epoch in epochs:
        for batch_of_pairs in epoch:
            assert_type(batch_of_pairs, tuple[Array, ...])
