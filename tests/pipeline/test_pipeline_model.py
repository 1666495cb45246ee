"""Random pipelines beside the simplest model of them: lists, and plain loops over them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioqueue.inputs import Pipeline, numbers
from tests.kit.worlds import HAS_TRIO

if TYPE_CHECKING or HAS_TRIO:
    import trio

Value = Any
"""An int, or a list of values: what batches are made of."""


def total(value: Value) -> int:
    """All numbers in a value together."""
    return sum(map(total, value)) if isinstance(value, list | tuple) else value


def changed(value: Value) -> Value:
    return [changed(one) for one in value] if isinstance(value, list) else 3 * value + 1


async def changed_in_a_task(value: Value) -> Value:
    await anyio.lowlevel.checkpoint()
    return changed(value)


def with_noise(value: Value, rng: np.random.Generator) -> list[Any]:
    return [value, int(rng.integers(2**40))]


def several(value: Value) -> list[Value]:
    """None, one or two of it."""
    return [value] * (total(value) % 3)


def is_wanted(value: Value) -> bool:
    return total(value) % 4 != 1


class NotWantedError(Exception):
    """What an item is skipped for."""


def picky(value: Value) -> Value:
    if not is_wanted(value):
        raise NotWantedError
    return changed(value)


def in_batches(values: list[Value], size: int, *, drop_remainder: bool) -> list[Value]:
    batches = [values[at : at + size] for at in range(0, len(values), size)]
    return [one for one in batches if len(one) == size or not drop_remainder]


def tokens(value: Value) -> int:
    return total(value) % 5


def mixed_by_tokens(parts: list[list[Value]], weights: list[int]) -> list[Value]:
    """Each from the part that has had the least of its share."""
    left, spent, found = [list(part) for part in parts], [0] * len(parts), []
    while any(left):
        at = min((at for at, one in enumerate(left) if one), key=lambda at: spent[at] / weights[at])
        found.append(left[at].pop(0))
        spent[at] += tokens(found[-1])
    return found


@dataclass(frozen=True)
class Stage:
    """A stage: how it is added to a pipeline, and what it makes of a list."""

    description: str
    add: Callable[[Any], Any]
    made: Callable[[list[Value]], list[Value]]

    def __repr__(self) -> str:
        return self.description


@st.composite
def options(draw: st.DrawFn, *, is_async: bool = False) -> dict[str, Any]:
    """Of a `prepare`, none of which may be seen in what it makes."""
    return {
        "where": "task" if is_async else "thread",
        "workers": draw(st.integers(1, 4)),
        "buffer_size": draw(st.sampled_from([None, 1, 2, 5])),
        "max_in_flight": draw(st.sampled_from([None, 1, 3])),
    }


@st.composite
def stages(draw: st.DrawFn) -> Stage:
    kind = draw(st.sampled_from(["prepare", "task", "flat", "filter", "picky", *_PLAIN]))
    if kind == "prepare":
        description = draw(options())
        return Stage(
            f"prepare {description}",
            lambda before: before.prepare(changed, **description),
            lambda values: list(map(changed, values)),
        )
    if kind == "task":
        description = draw(options(is_async=True))
        return Stage(
            f"prepare {description}",
            lambda before: before.prepare(changed_in_a_task, **description),
            lambda values: list(map(changed, values)),
        )
    if kind == "picky":
        description = draw(options())
        return Stage(
            f"picky {description}",
            lambda before: before.prepare(picky, on_error="skip", **description),
            lambda values: [changed(value) for value in values if is_wanted(value)],
        )
    if kind == "flat":
        description = draw(options())
        return Stage(
            f"flat {description}",
            lambda before: before.flat(several, **description),
            lambda values: [one for value in values for one in several(value)],
        )
    if kind == "filter":
        return Stage(
            "filter",
            lambda before: before.filter(is_wanted),
            lambda values: list(filter(is_wanted, values)),
        )
    return _PLAIN[kind](draw(st.integers(1, 5)))


_PLAIN: dict[str, Callable[[int], Stage]] = {
    "batch": lambda n: Stage(
        f"batch {n}",
        lambda before: before.batch(n, collate=list),
        lambda values: in_batches(values, n, drop_remainder=False),
    ),
    "whole batches": lambda n: Stage(
        f"batch {n} drop_remainder",
        lambda before: before.batch(n, collate=list, drop_remainder=True),
        lambda values: in_batches(values, n, drop_remainder=True),
    ),
    "unbatch": lambda n: Stage(
        f"batch {n}, unbatch",
        lambda before: before.batch(n, collate=list).unbatch(),
        lambda values: values,
    ),
    "take": lambda n: Stage(
        f"take {3 * n - 3}",
        lambda before: before.take(3 * n - 3),
        lambda values: values[: 3 * n - 3],
    ),
    "skip": lambda n: Stage(f"skip {n}", lambda before: before.skip(n), lambda values: values[n:]),
    "enumerate": lambda n: Stage(
        f"enumerate {n}",
        lambda before: before.enumerate(n).prepare(list),
        lambda values: [[at, value] for at, value in enumerate(values, n)],
    ),
    "window": lambda n: Stage(
        f"window {n} 2",
        lambda before: before.window(n, 2, collate=list),
        lambda values: [values[at : at + n] for at in range(0, len(values) - n + 1, 2)],
    ),
    "short windows": lambda n: Stage(
        f"window 3 {n} short",
        lambda before: before.window(3, n, collate=list, drop_remainder=False),
        lambda values: [values[at : at + 3] for at in range(0, len(values), n)],
    ),
    "map_batches": lambda n: Stage(
        f"map_batches {n}",
        lambda before: before.batch(n, collate=list).map_batches(changed),
        lambda values: [changed(one) for one in in_batches(values, n, drop_remainder=False)],
    ),
    "concat": lambda n: Stage(
        f"concat {n}",
        lambda before: before.concat(numbers(n, seed=1).prepare(changed), numbers(1, seed=1)),
        lambda values: [*values, *map(changed, range(n)), 0],
    ),
    "zip": lambda n: Stage(
        f"zip {4 * n}",
        lambda before: before.zip(numbers(4 * n, seed=1).prepare(changed)).prepare(list),
        lambda values: [[one, changed(at)] for at, one in zip(range(4 * n), values, strict=False)],
    ),
    "mix by tokens": lambda n: Stage(
        f"mix by tokens {n}",
        lambda before: before.mix(numbers(2 * n, seed=1), weights=[2, n], tokens=tokens),
        lambda values: mixed_by_tokens([values, list(range(2 * n))], [2, n]),
    ),
    "prefetch": lambda n: Stage(
        f"prefetch {n}", lambda before: before.prefetch(n), lambda values: values
    ),
}


def in_threads(pipeline: Any, start: int, counts: list[int]) -> list[list[Value]]:
    epochs = pipeline.epochs(len(counts), start=start)
    return [list(islice(epoch, n)) for epoch, n in zip(epochs, counts, strict=True)]


async def _in_tasks(pipeline: Any, start: int, counts: list[int]) -> list[list[Value]]:
    found: list[list[Value]] = []
    async for epoch in pipeline.epochs(len(counts), start=start):
        values: list[Value] = []
        wanted = counts[len(found)]
        while len(values) < wanted:
            try:
                values.append(await anext(epoch))
            except StopAsyncIteration:
                break
        found.append(values)
    return found


def in_asyncio(pipeline: Any, start: int, counts: list[int]) -> list[list[Value]]:
    return asyncio.run(_in_tasks(pipeline, start, counts))


def in_trio(pipeline: Any, start: int, counts: list[int]) -> list[list[Value]]:
    return trio.run(_in_tasks, pipeline, start, counts)


GOING = [in_threads, in_asyncio, *([in_trio] if HAS_TRIO else [])]
ALL = 10**6
counts_of_epochs = st.lists(st.one_of(st.just(ALL), st.integers(0, 12)), min_size=1, max_size=4)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 40),
    st.lists(stages(), max_size=5),
    counts_of_epochs,
    st.integers(0, 3),
    st.sampled_from(GOING),
    st.booleans(),
)
def test_every_epoch_has_what_the_model_has(
    size: int,
    description: list[Stage],
    counts: list[int],
    start: int,
    go: Callable[..., list[list[Value]]],
    shuffle: bool,
) -> None:
    source = numbers(size, shuffle=shuffle, seed=5)
    pipeline: Any = Pipeline(source)
    for stage in description:
        pipeline = stage.add(pipeline)
    found = go(pipeline, start, counts)
    for number, (values, count) in enumerate(zip(found, counts, strict=True), start):
        model = list(source.epoch(number))
        for stage in description:
            model = stage.made(model)
        assert values == model[:count]
        if not any(stage.description.startswith("picky") for stage in description):
            _check_length(pipeline, len(model))


def _check_length(pipeline: Any, length: int) -> None:
    try:
        reported = len(pipeline)
    except TypeError:
        return
    assert reported == length


@st.composite
def described(draw: st.DrawFn, depth: int = 0) -> list[tuple[str, int]]:
    """Stages by name and number: what may be distinguished by nothing but seed and epoch."""
    kinds = [
        "noise",
        "shuffle",
        "batch",
        "flat",
        "unbatch",
        "filter",
        "take",
        "skip",
        "enumerate",
        *["mix", "zip", "concat"] * (not depth),
    ]
    return draw(st.lists(st.tuples(st.sampled_from(kinds), st.integers(1, 6)), max_size=6))


def made_of(description: list[tuple[str, int]], workers: int, where: str, ahead: int | None) -> Any:
    """A pipeline, run by workers of some kind and number."""
    how: dict[str, Any] = {"workers": workers, "buffer_size": ahead}
    pipeline: Any = Pipeline(numbers(30, shuffle=True, seed=3))
    for kind, n in description:
        if kind == "noise":
            function = with_noise_in_a_task if where == "task" else with_noise
            pipeline = pipeline.prepare(function, where=where, **how)
        elif kind == "flat":
            pipeline = pipeline.flat(twice, **how)
        elif kind == "filter":
            pipeline = pipeline.filter(is_wanted)
        elif kind == "batch":
            pipeline = pipeline.batch(n, collate=list)
        elif kind == "enumerate":
            pipeline = pipeline.enumerate(n)
        elif kind in ("zip", "concat"):
            other = numbers(25, seed=n).prepare(with_noise, **how)
            pipeline = pipeline.zip(other) if kind == "zip" else pipeline.concat(other)
        elif kind == "unbatch":
            pipeline = pipeline.batch(n, collate=list).unbatch()
        elif kind == "mix":
            other = numbers(9, seed=n).prepare(with_noise, **how).flat(twice).shuffle(n)
            pipeline = pipeline.mix(other, weights=[n, 2], stop="first" if n % 2 else "all")
        else:
            pipeline = getattr(pipeline, kind)(3 * n)
    return pipeline


def twice(value: Value) -> list[Value]:
    return [value, value]


async def with_noise_in_a_task(value: Value, rng: np.random.Generator) -> list[Any]:
    await anyio.lowlevel.checkpoint()
    return with_noise(value, rng)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    described(),
    counts_of_epochs,
    st.sampled_from(GOING),
    st.integers(2, 4),
    st.sampled_from(["thread", "task"]),
    st.sampled_from([None, 1, 3]),
)
def test_seed_and_epoch_decide_all(
    description: list[tuple[str, int]],
    counts: list[int],
    go: Callable[..., list[list[Value]]],
    workers: int,
    where: str,
    ahead: int | None,
) -> None:
    """Not workers, nor how far they are ahead, nor what was left of the epochs before."""
    one = made_of(description, 1, "thread", None)
    found = go(made_of(description, workers, where, ahead), 0, counts)
    for number, (values, count) in enumerate(zip(found, counts, strict=True)):
        (alone,) = in_threads(one, number, [ALL])
        assert values == alone[:count]


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_is_left")
def test_processes_make_the_same() -> None:
    description = [("noise", 1), ("shuffle", 2), ("batch", 4), ("noise", 1)]
    expected = in_threads(made_of(description, 1, "thread", None), 0, [ALL, 2, ALL])
    assert in_threads(made_of(description, 2, "process", None), 0, [ALL, 2, ALL]) == expected
    assert in_asyncio(made_of(description, 2, "process", None), 0, [ALL, 2, ALL]) == expected


def test_every_example_has_a_generator_of_its_own() -> None:
    """Also those that were made of one item, and again of those, and mixed."""
    eight = numbers(5, seed=1).flat(twice).prepare(changed).flat(twice).prepare(changed).flat(twice)
    pipeline = eight.mix(numbers(5, seed=2).flat(twice)).prepare(with_noise)
    noises = [noise for _, noise in pipeline]
    assert len(set(noises)) == len(noises) == 50
