"""Containers survive every stage: what an example is made of is known, and never guessed.

Random examples go through random stages as batches, and are taken apart again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

from aioqueue.core.elements.trees import mapped
from aioqueue.inputs import items, numbers, to_json_lines


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Box:
    left: Any
    right: Any


class Thing:
    """An object that is no container."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)


Make = Callable[[int], Any]

LEAVES: Sequence[Make] = (
    lambda n: n,
    lambda n: n + 0.5,
    lambda n: bool(n % 2),
    lambda n: f"text {n}",
    lambda n: f"bytes {n}".encode(),
    lambda n: np.arange(n, n + 2),
    lambda n: np.float32(n),
    lambda n: [n, n + 1, n + 2],
    lambda n: None,
)


def random_maker(draw: Random, depth: int, *, objects: bool) -> Make:
    """Makes examples of one structure, of their numbers."""
    kind = draw.randint(0, 6) if depth else 6
    if kind == 6:
        leaves = [*LEAVES, Thing] if objects else LEAVES
        return draw.choice(leaves)
    parts = [random_maker(draw, depth - 1, objects=objects) for _ in range(draw.randint(1, 3))]
    first, last = parts[0], parts[-1]
    if kind == 0:
        return lambda n: tuple(part(n) for part in parts)
    if kind == 1:
        return lambda n: {f"key {at}": part(n) for at, part in enumerate(parts)}
    if kind == 2:
        return lambda n: Pair(first(n), last(n))
    if kind == 3:
        return lambda n: Box(first(n), last(n))
    # Lists twice as often. A list of nothing but numbers, or text, would be an array: so one of its
    # parts is a container.
    return lambda n: [*(part(n) for part in parts), {"in": n}]


def random_example(draw: Random, *, objects: bool) -> Make:
    if draw.random() < 0.2:  # as many parts as a batch has rows, perhaps
        inner = random_maker(draw, 1, objects=objects)
        return lambda n: [{"only": inner(n)}]
    return random_maker(draw, 3, objects=objects)


def plain(value: Any) -> Any:
    """A value that can be compared, with the types of its containers."""
    if isinstance(value, np.ndarray):
        return [plain(one) for one in value.tolist()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return (type(value).__name__, *map(plain, value))
    if isinstance(value, list):
        return list(map(plain, value))
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, Box):
        return ("Box", plain(value.left), plain(value.right))
    return value


def has_component(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(has_component, value))
    if isinstance(value, dict):
        return any(map(has_component, value.values()))
    if isinstance(value, Box):
        return has_component(value.left) or has_component(value.right)
    return value is not None


def same(batch: Any) -> Any:
    return batch


async def same_async(batch: Any) -> Any:
    return batch


def rebuilt(batch: Any) -> Any:
    """The same, in new containers."""
    return mapped(lambda leaf: leaf, batch)


def true(batch: Any) -> bool:
    return True


def between(
    draw: Random, n: int, folder: Path, *, objects: bool
) -> tuple[str, Callable[[Any], Any]]:
    """A stage that leaves batches as they are, with its name."""
    stages: dict[str, Callable[[Any], Any]] = {
        "prepare": lambda one: one.prepare(same, workers=2),
        "on tasks": lambda one: one.prepare(same_async),
        "rebuilt": lambda one: one.prepare(rebuilt),
        "map_batches": lambda one: one.map_batches(same),
        "filter": lambda one: one.filter(true),
        "shuffle": lambda one: one.shuffle(1, seed=1),
        "prefetch": lambda one: one.prefetch(2),
        "cache": lambda one: one.cache(),
        "take": lambda one: one.take(100),
        "skip": lambda one: one.skip(0),
        "again": lambda one: one.unbatch().batch(n, objects=objects),
        "nested": lambda one: one.batch(1, objects=objects).prepare(rebuilt).unbatch(),
        "concat": lambda one: one.concat(items([]).prepare(same)),
        "mix": lambda one: one.mix(items([]), seed=1, stop="all"),
    }
    if draw.random() < 0.1 and not objects:
        path = folder / str(draw.random())
        return "cache in files", lambda one: one.cache(path)
    name = draw.choice(list(stages))
    return name, stages[name]


def check(seed: int, folder: Path) -> None:
    draw = Random(seed)
    objects = draw.random() < 0.3
    make = random_example(draw, objects=objects)
    examples = [make(number) for number in range(draw.randint(1, 7))]
    if not has_component(examples[0]):
        return
    n = draw.randint(1, 4)
    pipeline: Any = items(examples).batch(n, objects=objects)
    reported = [f"seed {seed}", repr(examples[0]), f"batch {n}"]
    for _ in range(draw.randint(0, 3)):
        name, stage = between(draw, n, folder, objects=objects)
        if name == "nested" and len(examples) % n:
            continue  # batches of different sizes cannot be stacked
        reported.append(name)
        pipeline = stage(pipeline)
    end = draw.choice(["unbatch", "async unbatch", *["write"] * is_json(examples[0])])
    reported.append(end)
    expected = list(map(plain, examples))
    if end == "unbatch":
        found = list(pipeline.unbatch())
    elif end == "async unbatch":
        found = asyncio.run(all_of(pipeline.unbatch()))
    else:
        found = written(pipeline, folder / "written")
        expected = written(items(examples), folder / "expected")
        assert in_order(found, reported) == in_order(expected, reported), reported
        return
    assert in_order(map(plain, found), reported) == in_order(expected, reported), reported


def in_order(values: Iterable[Any], reported: Sequence[str]) -> list[Any]:
    """The values, in one order if a shuffle has changed theirs."""
    return sorted(values, key=repr) if "shuffle" in reported else list(values)


async def all_of(pipeline: Any) -> list[Any]:
    return [one async for one in pipeline]


def is_json(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(is_json, value))
    if isinstance(value, dict):
        return all(map(is_json, value.values()))
    return not isinstance(value, bytes | Box | Thing)


def written(pipeline: Any, path: Path) -> list[Any]:
    done = pipeline.write(to_json_lines(path))
    lines = [line for one in done.paths for line in Path(one).read_text().splitlines()]
    return list(map(json.loads, lines))


@pytest.mark.parametrize("seed", range(60))
def test_examples_come_out_as_they_went_in(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_many_examples_come_out_as_they_went_in(part: int, tmp_path: Path) -> None:
    for seed in range(1000 + 150 * part, 1150 + 150 * part):
        (folder := tmp_path / str(seed)).mkdir()
        check(seed, folder)


ROWS = [[{"a": number}, (number, number + 0.5)] for number in range(4)]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_zipped_batches_of_lists(n: int) -> None:
    zipped = items(ROWS).batch(n).zip(numbers(4).batch(n)).prepare(rebuilt).unbatch()
    assert [plain(one) for one in zipped] == [
        ("tuple", plain(row), number) for number, row in enumerate(ROWS)
    ]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_buckets_of_lists(n: int) -> None:
    rows = [[np.arange(number + 1), {"a": number}] for number in range(4)]
    pipeline = items(rows).bucket([9], batch_size=n, length=lambda row: len(row[0]))
    found = list(pipeline.prepare(rebuilt).unbatch())
    assert [plain(row[1]) for _, row in found] == [{"a": number} for number in range(4)]
    assert all(type(row) is list and len(row) == 2 for _, row in found)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_batches_of_batches(n: int) -> None:
    twice = items(ROWS).batch(1).batch(n).prepare(rebuilt).unbatch().prepare(rebuilt).unbatch()
    assert list(map(plain, twice)) == list(map(plain, ROWS))


def test_a_list_that_a_function_makes_has_one_row_per_example() -> None:
    """Where no list was a container, as ever."""
    made = numbers(4).batch(2).prepare(lambda batch: [{"n": int(one)} for one in batch]).unbatch()
    assert list(made) == [{"n": number} for number in range(4)]
    listed = items(ROWS).batch(2, collate=list).prepare(rebuilt).unbatch()
    assert list(map(plain, listed)) == list(map(plain, ROWS))


def test_a_cache_in_files_knows_it_in_another_run(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")

    def cached() -> Any:
        return items(ROWS).batch(2).cache(tmp_path / "cache")

    assert len(list(cached())) == 2
    assert list(map(plain, cached().unbatch())) == list(map(plain, ROWS))


def swapped(batch: Any) -> Any:
    return [batch[1], batch[0]]


def wrapped(batch: Any) -> Any:
    return {"in": (batch, batch)}


def of_columns(batch: Any) -> Any:
    return [batch[0]["a"], batch[1][0]]


def second(pair: Any) -> Any:
    return pair[1]


MOVES: dict[str, Callable[[Any], Any]] = {
    "swapped": lambda batches: batches.prepare(swapped),
    "wrapped": lambda batches: batches.prepare(wrapped),
    "of columns": lambda batches: batches.prepare(of_columns),
    "behind enumerate": lambda batches: batches.enumerate().prepare(second),
    "behind zip": lambda batches: numbers(9).take(9).zip(batches).prepare(second),
    "behind a cache": lambda batches: batches.cache().enumerate().prepare(second),
    "in a process": lambda batches: batches.enumerate().prepare(second, where="process"),
}


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("move", MOVES)
def test_a_function_moves_and_makes_lists(move: str, n: int) -> None:
    """What it returns is no batch of rows, whether or not it has as many parts as rows."""
    change = {"swapped": swapped, "wrapped": wrapped}.get(move, lambda row: row)
    if move == "of columns":
        change = of_columns
    found = list(MOVES[move](items(ROWS).batch(n)).unbatch())
    assert list(map(plain, found)) == [plain(change(row)) for row in ROWS]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_the_batch_alone_behind_bucket(n: int) -> None:
    rows = [[np.arange(3) + number, {"a": number}] for number in range(4)]
    pipeline = items(rows).bucket([9], batch_size=n, length=lambda row: len(row[0]))
    assert list(map(plain, pipeline.prepare(second).unbatch())) == list(map(plain, rows))


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_rows_that_a_function_makes_of_batches_of_lists(n: int) -> None:
    def apart(batch: Any) -> Any:
        dicts, pairs = batch
        return [[{"a": a.item()}, pair] for a, *pair in zip(dicts["a"], *pairs, strict=True)]

    found = list(items(ROWS).batch(n).prepare(apart).unbatch())
    assert [plain(one) for one in found] == [[row[0], list(row[1])] for row in ROWS]


def test_a_cache_in_files_knows_it_behind_enumerate(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for _ in range(2):
        cached = items(ROWS).batch(2).cache(tmp_path / "cache")
        found = list(cached.enumerate().prepare(second).unbatch())
        assert list(map(plain, found)) == list(map(plain, ROWS))
