"""Pipelines of every shape that are left and resumed: what the tests of resuming share."""

from __future__ import annotations

import functools
import importlib.util
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aioqueue.inputs import Pipeline, Retry, items, mix, numbers, read_lines
from aioqueue.pipeline.state.checkpoint import resume_point_in
from tests.kit.exact import Exact, plain_form
from tests.kit.going import packed
from tests.kit.trees import MAKERS, SEQUENCES, Both, Frozen, leaves, record

SIZE = 61
HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None
LINES = (13, 0, 30, 18)
"""Of the files that some of them read."""


def write_files(folder: Path) -> Path:
    """Write them."""
    for number, count in enumerate(LINES):
        path = folder / f"{number}.txt"
        path.write_text("".join(f"{number}-{line}\n" for line in range(count)))
    return folder


def noisy(item: int, rng: np.random.Generator) -> tuple[int, float]:
    return item, float(rng.random())


def slowly(item: int, rng: np.random.Generator) -> tuple[int, float]:
    """Workers overtake each other."""
    time.sleep(float(rng.random()) * 0.001)
    return noisy(item, rng)


def several(item: int, rng: np.random.Generator) -> Iterator[tuple[int, float]]:
    for _ in range(item % 4):
        yield item, float(rng.random())


def returns_several(item: int, rng: np.random.Generator) -> Any:
    """The same: but nobody can tell by looking at it."""
    return several(item, rng)


def twice(pair: Any, rng: np.random.Generator) -> Iterator[tuple[int, float]]:
    for _ in range(2):
        yield pair[0], float(rng.random())


def not_sevens(item: int, rng: np.random.Generator) -> tuple[int, float]:
    if item % 7 == 3:
        raise ValueError("seven")
    return noisy(item, rng)


def only_even(item: int, rng: np.random.Generator) -> tuple[int, float] | None:
    return None if item % 2 else noisy(item, rng)


def sequence(item: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return np.full(int(rng.integers(1, 9)), item)


def long_sequence(item: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return np.full(int(rng.integers(0, 25)), item)


class Pair(NamedTuple):
    """A named example."""

    left: Any
    right: Any


RECORD = np.dtype([("id", "<i2"), ("parts", "<f4", (2,)), ("word", "S3")])


def of_every_kind(item: int, rng: np.random.Generator) -> dict[str, Any]:
    """What two values may differ in that look the same: dtypes, zeros, empty shapes, structure."""
    return {
        "single": np.float32(rng.random()),
        "zero": -0.0 if item % 3 else 0.0,
        "none": np.empty((0, 3), np.int16),
        "swapped": np.array([item, 1], ">u4"),
        "record": np.array((item, rng.random(2), b"ab"), RECORD),
        "text": "x" * (item % 4),
        "day": np.datetime64(item, "D"),
        "nested": Pair([item, {"bytes": b"%d" % item}], (np.int8(item), None)),
    }


def again(pair: Any, rng: np.random.Generator) -> tuple[Any, float]:
    return pair, float(rng.random())


def total(batch: Any) -> float:
    return float(np.sum(batch[0]))


@dataclass(frozen=True)
class How:
    """What may be another from one run to the next."""

    workers: int = 3
    where: Any = "auto"
    limit: int | None = None

    def prepare(self, before: Any, function: Any, **options: Any) -> Any:
        return before.prepare(
            function, workers=self.workers, where=self.where, max_in_flight=self.limit, **options
        )


Shape = Callable[[How], Pipeline[Any]]


def shuffled() -> Any:
    return numbers(SIZE, shuffle=True, seed=7)


def ordered_shapes(folder: Path) -> dict[str, Shape]:
    """Pipelines that keep the order, by what is special about them."""
    paths = [str(folder / f"{number}.txt") for number in range(len(LINES))]

    def lines(seed: int = 3) -> Any:
        return read_lines(items(paths, shuffle=True, seed=seed))

    def mixture() -> Any:
        return mix([shuffled(), numbers(20, seed=1)], [2, 1], seed=5)

    def batch(before: Any) -> Any:
        return before.batch(4)

    def in_files(how: How) -> Any:
        cached = how.prepare(shuffled(), several).cache(folder / "cache")
        return on(how.prepare(cached.shuffle(5), noisy))

    on = batch
    return {
        "source alone": lambda how: Pipeline(shuffled()),
        "batches": lambda how: on(shuffled()),
        "prepare": lambda how: on(how.prepare(shuffled(), slowly)),
        "lines": lambda how: on(how.prepare(lines(), str.upper)),
        "lines, shuffled": lambda how: on(how.prepare(lines(), str.upper).shuffle(10)),
        "shuffled lines": lambda how: on(how.prepare(lines().shuffle(10), str.upper)),
        "a mixture of sources": lambda how: on(how.prepare(mixture(), noisy)),
        "a mixture with files": lambda how: on(
            how.prepare(mix([lines(), lines(4)], seed=2).shuffle(5), str.upper)
        ),
        "shuffle before": lambda how: on(how.prepare(shuffled().shuffle(9), noisy)),
        "shuffle after": lambda how: on(how.prepare(shuffled(), slowly).shuffle(9)),
        "shuffled twice": lambda how: on(
            how.prepare(shuffled().shuffle(30), noisy).shuffle(7).shuffle(3)
        ),
        "shuffle larger than an epoch": lambda how: on(
            how.prepare(shuffled(), noisy).shuffle(2 * SIZE)
        ),
        "generators": lambda how: on(how.prepare(shuffled(), several)),
        "generators, shuffled": lambda how: on(how.prepare(shuffled(), several).shuffle(11)),
        "generators of generators": lambda how: on(
            how.prepare(how.prepare(shuffled(), several), twice)
        ),
        "two in a row": lambda how: on(how.prepare(how.prepare(shuffled(), several), again)),
        "three in a row": lambda how: on(
            how.prepare(how.prepare(how.prepare(shuffled(), several).shuffle(5), again), again)
        ),
        "skips": lambda how: on(how.prepare(shuffled(), not_sevens, on_error="skip")),
        "skips, listed": lambda how: on(
            how.prepare(
                shuffled(), not_sevens, on_error="skip", quarantine=folder / "skipped.jsonl"
            ).shuffle(6)
        ),
        "skips, shuffled": lambda how: on(
            how.prepare(shuffled(), not_sevens, on_error="skip").shuffle(6)
        ),
        "retries": lambda how: on(
            how.prepare(shuffled(), not_sevens, on_error=Retry(1, then="skip"))
        ),
        "left out": lambda how: on(how.prepare(shuffled(), only_even, drop_none=True).shuffle(4)),
        "filter": lambda how: on(
            how.prepare(shuffled().filter(lambda n: n % 3), noisy)
            .filter(lambda pair: pair[0] % 5)
            .shuffle(6)
        ),
        "take": lambda how: on(how.prepare(shuffled(), noisy).take(21)),
        "take, shuffled": lambda how: on(how.prepare(shuffled(), noisy).take(40).shuffle(8)),
        "prefetch": lambda how: on(how.prepare(shuffled(), noisy).shuffle(9)).prefetch(2),
        "prepared batches": lambda how: how.prepare(
            on(how.prepare(shuffled(), noisy)), total
        ).prefetch(3),
        "batches of batches": lambda how: (
            how.prepare(shuffled(), noisy).batch(3, drop_remainder=True).batch(2)
        ),
        "unbatch": lambda how: how.prepare(shuffled(), noisy).batch(5).unbatch().batch(3),
        "shuffled batches": lambda how: how.prepare(shuffled(), noisy).batch(3).shuffle(4),
        "across epochs": lambda how: how.prepare(shuffled(), noisy).batch(7, across_epochs=True),
        "long batches across epochs": lambda how: how.prepare(shuffled().shuffle(5), noisy).batch(
            100, across_epochs=True
        ),
        "drop the remainder": lambda how: how.prepare(shuffled(), noisy).batch(
            8, drop_remainder=True
        ),
        "buckets": lambda how: how.prepare(shuffled(), sequence).bucket([3, 6], 4),
        "buckets of tokens": lambda how: how.prepare(shuffled(), sequence).bucket(
            [3, 6], tokens_per_batch=10
        ),
        "buckets after a shuffle": lambda how: (
            how.prepare(shuffled(), sequence).shuffle(10).bucket([3, 6], 4).prefetch()
        ),
        "packing": lambda how: packed(how.prepare(shuffled(), sequence), 10, 3).batch(2),
        "packing pieces": lambda how: (
            packed(how.prepare(shuffled(), long_sequence), 8, 2, on_too_long="split")
            .batch(2)
            .prefetch(1)
        ),
        "of every kind": lambda how: how.prepare(shuffled(), of_every_kind).shuffle(6).batch(4),
        "trees": lambda how: how.prepare(shuffled(), MAKERS["all of it"]).shuffle(6).batch(4),
        "trees, one by one": lambda how: (
            how.prepare(shuffled(), MAKERS["all of it"]).batch(5).unbatch().shuffle(4).window(3, 3)
        ),
        "buckets of trees": lambda how: how.prepare(shuffled(), SEQUENCES["dicts"]).bucket([3], 4),
        "packing trees": lambda how: (
            packed(how.prepare(shuffled(), SEQUENCES["tuples"]), 8, 2).batch(2).prefetch(1)
        ),
        "of every kind, one by one": lambda how: (
            how.prepare(shuffled(), of_every_kind).batch(5).unbatch().shuffle(4).batch(3)
        ),
        "mix": lambda how: on(
            how.prepare(shuffled(), noisy).mix(
                how.prepare(numbers(30, seed=2), several).shuffle(4), weights=[2, 1]
            )
        ),
        "mix of generators, which are drawn seldom": lambda how: (
            how.prepare(shuffled(), noisy)
            .mix(how.prepare(numbers(9, seed=2), several), weights=[5, 1])
            .batch(2)
        ),
        "mix, stopped": lambda how: on(
            how.prepare(shuffled(), noisy)
            .mix(how.prepare(numbers(9, seed=2), noisy), stop="first")
            .shuffle(5)
        ),
        "windows": lambda how: (
            how.prepare(shuffled().skip(5), noisy).enumerate(3).window(6, 4).shuffle(3)
        ),
        "zip": lambda how: (
            how.prepare(shuffled(), slowly)
            .zip(how.prepare(numbers(80, seed=2), several).shuffle(4), lines())
            .batch(4, collate=list)
        ),
        "concat": lambda how: on(
            how.prepare(shuffled(), noisy)
            .concat(how.prepare(numbers(30, seed=2), several), how.prepare(shuffled(), noisy))
            .shuffle(6)
        ),
        "mix by tokens": lambda how: (
            how.prepare(shuffled(), sequence)
            .mix(how.prepare(numbers(30, seed=2), sequence), weights=[2, 1], tokens=len)
            .bucket([3, 6], 4)
        ),
        "interleaved lines, repeated": lambda how: on(
            how.prepare(lines().interleave(2).repeat(2), str.upper)
        ),
        "a repeated part": lambda how: how.prepare(
            shuffled().split([0.7, 0.3])[0].repeat(2), noisy
        ).map_batches(total, 4),
        "cached in memory": lambda how: on(how.prepare(shuffled(), several).shuffle(6).cache()),
        **({"cached in files": in_files} if HAS_PYARROW else {}),
        "one rank": lambda how: on(how.prepare(shuffled().shard(1, 3), noisy).shuffle(4)),
        "a padded rank": lambda how: on(how.prepare(shuffled().shard(2, 3), noisy)),
        "a padded rank of full batches": lambda how: shuffled().batch(7).shard(2, 3),
        "a padded rank that skips": lambda how: on(
            how.prepare(shuffled().shard(2, 4), not_sevens, on_error="skip").shuffle(4)
        ),
        "a rank of lines": lambda how: on(
            how.prepare(lines().shard(1, 2, uneven="allow").shuffle(4), str.upper)
        ),
        "one epoch of a source": lambda how: on(shuffled().epoch(3).shuffle(5)),
        "one epoch of a source, prepared": lambda how: on(
            how.prepare(shuffled().epoch(3), noisy).shuffle(5)
        ),
        "generators that a function returns": lambda how: on(
            how.prepare(shuffled(), returns_several)
        ),
    }


def unordered_shapes(folder: Path) -> dict[str, Shape]:
    """Pipelines that do not keep the order, and give each example by itself in the end."""
    path = folder / "2.txt"
    free = functools.partial
    return {
        "prepare": lambda how: how.prepare(shuffled(), slowly, ordered=False).batch(4),
        "lines": lambda how: how.prepare(
            read_lines(items([str(path)], seed=3)), str.upper, ordered=False
        ).batch(4),
        "shuffle": lambda how: (
            how.prepare(shuffled().shuffle(9), slowly, ordered=False).shuffle(8).batch(4)
        ),
        "generators": lambda how: how.prepare(shuffled(), several, ordered=False).batch(4),
        "generators that a function returns": lambda how: how.prepare(
            shuffled(), returns_several, ordered=False
        ).batch(4),
        "generators, shuffled": lambda how: (
            how.prepare(shuffled(), several, ordered=False).shuffle(12).batch(4)
        ),
        "prefetch": lambda how: (
            how.prepare(shuffled(), slowly, ordered=False).shuffle(8).batch(4).prefetch(2)
        ),
        "filter": lambda how: (
            how.prepare(shuffled(), slowly, ordered=False).filter(lambda one: one[0] % 3).batch(4)
        ),
        "skips": lambda how: free(how.prepare, on_error="skip")(
            shuffled(), not_sevens, ordered=False
        ).batch(4),
        "packing pieces": lambda how: packed(
            how.prepare(shuffled(), long_sequence, ordered=False), 8, 2, on_too_long="split"
        ).batch(2),
        "packing": lambda how: packed(
            how.prepare(shuffled(), sequence, ordered=False), 10, 3
        ).batch(2),
        "buckets": lambda how: how.prepare(shuffled(), sequence, ordered=False).bucket([3, 6], 4),
    }


NOT_ELASTIC = (
    "take",
    "take, shuffled",
    "across epochs",
    "long batches across epochs",
    "unbatch",
    "of every kind, one by one",
    "trees, one by one",
    "buckets of trees",
    "packing trees",
    "mix, stopped",
    "windows",
    "zip",
    "a repeated part",
    "one rank",
    "a padded rank",
    "a padded rank of full batches",
    "a padded rank that skips",
    "a rank of lines",
    "batches of batches",
    "drop the remainder",
    "prepared batches",
)
"""Shapes that leave something out, have ranks already, or cannot be cut into ranks and go on."""


def through_json(state: Any) -> Any:
    """What comes back from a file; a state is made of plain JSON types only."""
    text = json.dumps(state)
    assert json.loads(text) == state
    return json.loads(text)


def place_of(state: Any) -> Any:
    """Where a state is, by the fields of a `ResumePoint`."""
    return resume_point_in(state)._asdict()


Batches = list[tuple[int, Any]]
"""Each with its epoch, and as `Exact`."""


def run(
    pipeline: Pipeline[Any], epochs: int, most: int | None = None, state: Any = None
) -> tuple[Batches, Any]:
    """Batches with their epochs, and the state behind them.

    Args:
        pipeline: what is run.
        epochs: how many there are in all.
        most: how many batches are taken before it is left; ``None`` for all.
        state: where to begin.
    """
    taken: Batches = []
    going = pipeline.epochs(epochs, resume=state)
    with going:
        for epoch in going:
            for batch in epoch:
                taken.append((epoch.number, Exact(batch)))
                if len(taken) == most:
                    return taken, through_json(going.state_dict())
    return taken, through_json(going.state_dict())


def unstacked(batch: Any) -> list[Any]:
    """The rows of a batch in containers."""
    if isinstance(batch, dict):
        rows = zip(*map(unstacked, batch.values()), strict=True)
        return [dict(zip(batch, row, strict=True)) for row in rows]
    if isinstance(batch, Both | Frozen):
        return [record(type(batch), row) for row in unstacked((batch.left, batch.right))]
    if not isinstance(batch, tuple | list):
        return list(batch)
    size = len(next(leaf for leaf in leaves(batch)))
    parts = [[None] * size if part is None else unstacked(part) for part in batch]
    make: Any = getattr(type(batch), "_make", type(batch))
    return [make(row) for row in zip(*parts, strict=True)]


def rows_in(batch: Any) -> Iterator[Any]:
    """The examples in a batch."""
    if isinstance(batch, tuple) and len(batch) == 3:  # packed rows: each segment is an example
        for row, segments, places in zip(*batch, strict=True):
            for segment in range(1, segments.max() + 1):
                yield row[segments == segment], places[segments == segment]
    elif isinstance(batch, tuple) and batch[1].ndim > 1:  # buckets
        for length, row in zip(*batch, strict=True):
            yield row[:length]
    elif isinstance(batch, tuple | dict | np.ndarray):
        yield from unstacked(batch)
    else:
        yield batch


def examples(runs: Iterable[Batches]) -> Counter[Any]:
    """How often each example came in each epoch."""
    return Counter(
        (epoch, json.dumps(plain_form(row)))
        for batches in runs
        for epoch, batch in batches
        for row in rows_in(batch.value)
    )
