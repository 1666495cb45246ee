"""Resumable streams of every shape, which tests leave and resume."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from aioqueue import sync
from aioqueue.inputs import (
    Retry,
    arrays,
    batch,
    bucket_by_sequence_length,
    files,
    items,
    mix,
    numbers,
    read_lines,
    shuffle_batch,
)
from tests.kit.exact import Exact
from tests.kit.resuming import (
    LINES,
    How,
    again,
    noisy,
    not_sevens,
    only_even,
    several,
    slowly,
    through_json,
)

Shape = Callable[..., Any]
"""Makes a stream, given a `How`, a coordinator, and ``resume`` or nothing."""


def twice() -> Any:
    """Two epochs of numbers, which are one run."""
    return numbers(31, epochs=2, shuffle=True, seed=7)


def sequence(item: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return np.full(int(rng.integers(1, 9)), item)


def named(item: int, rng: np.random.Generator) -> dict[str, Any]:
    return {"item": item, "noise": rng.random()}


def pieces(item: int, rng: np.random.Generator) -> Iterator[np.ndarray[Any, Any]]:
    for _ in range(item % 3):
        yield sequence(item, rng)


def lines_of(path: str) -> Iterator[str]:
    with open(path) as file:
        yield from file


def text(item: Any, rng: np.random.Generator) -> tuple[str, float]:
    return str(item), float(rng.random())


def _position(items: int) -> Any:
    """That of the source behind so many items."""
    (placed,) = itertools.islice(twice().placed(), items - 1, items)
    return twice().position(placed.place)


def _options(how: How, **options: Any) -> dict[str, Any]:
    return {"workers": how.workers, "where": how.where, "max_in_flight": how.limit, **options}


def _batch(source: Any, function: Any, size: int = 4, **options: Any) -> Shape:
    def made(how: How, coord: Any, **more: Any) -> Any:
        return batch(
            source(), size, coord=coord, function=function, **_options(how, **options), **more
        )

    return made


def _shuffled(source: Any, function: Any, keep: int = 9, **options: Any) -> Shape:
    def made(how: How, coord: Any, **more: Any) -> Any:
        return shuffle_batch(
            source(),
            4,
            coord=coord,
            min_after_dequeue=keep,
            **{"seed": (3, 4), **options},
            function=function,
            **_options(how),
            **more,
        )

    return made


def _buckets(source: Any, function: Any, sizes: Any = None, **options: Any) -> Shape:
    def made(how: How, coord: Any, **more: Any) -> Any:
        make: Any = bucket_by_sequence_length
        return make(
            source(),
            [3, 6],
            sizes,
            coord=coord,
            function=function,
            **_options(how, **options),
            **more,
        )

    return made


def _plain(make: Any, source: Any, *arguments: Any, **options: Any) -> Shape:
    """One without a function."""
    return lambda how, coord, **more: make(source(), *arguments, coord=coord, **options, **more)


def ordered_streams(folder: Path) -> dict[str, Shape]:
    """Streams that keep the order, by what is special about them."""
    paths = [str(folder / f"{number}.txt") for number in range(len(LINES))]

    def lines() -> Any:
        return read_lines(items(paths, epochs=2, shuffle=True, seed=3))

    def lines_in_order() -> Any:
        return read_lines(paths)

    def mixture() -> Any:
        return mix([twice(), numbers(20, 1, seed=1)], [2, 1], seed=5)

    def mixed_files() -> Any:
        return mix([lines(), items([f"<{n}>" for n in range(30)], 1, seed=2)], seed=4)

    on: dict[str, Any] = {"ordered": True}
    typed: dict[str, Any] = {"dtypes": ["int32", "float32"], "shapes": [(), ()]}
    return {
        "batch": _batch(twice, slowly, **on),
        "batch of a list": _batch(lambda: list(range(30)), noisy, seed=4, **on),
        "batch without a function": _plain(batch, twice, 7),
        "batch of lines without a function": _plain(batch, lines, 5),
        "batch of lines": _batch(lines, str.upper, **on),
        "batch of a mixture": _batch(mixture, noisy, **on),
        "batch of a mixture with files": _batch(mixed_files, str.upper, **on),
        "batch of generators": _batch(twice, several, **on),
        "batch with skips": _batch(twice, not_sevens, on_error="skip", **on),
        "batch with retries": _batch(twice, not_sevens, on_error=Retry(1, then="skip"), **on),
        "batch with some left out": _batch(twice, only_even, drop_none=True, **on),
        "batch of a shard": _batch(
            lambda: numbers(31, 3, shuffle=True, seed=7, shard=(1, 3)), noisy, **on
        ),
        "batch of one epoch": _batch(lambda: twice().epoch(3), noisy, **on),
        "batch of the rest of a source": _batch(lambda: twice().after(_position(40)), noisy, **on),
        "batch of arrays": _batch(
            lambda: arrays({"x": np.arange(20), "y": np.arange(20) / 2}, 2, shuffle=True, seed=3),
            again,
            **on,
        ),
        "padded batch": _batch(twice, sequence, dynamic_pad=True, **on),
        "whole batches": _batch(twice, noisy, 7, allow_smaller_final_batch=False, **on),
        "typed batch": _batch(twice, slowly, **typed, **on),
        "typed padded batch": _batch(
            twice, sequence, dtypes="int64", shapes=[(None,)], dynamic_pad=True, **on
        ),
        "shuffled": _shuffled(twice, slowly, **on),
        "shuffled a little": _shuffled(twice, noisy, 0, **on),
        "shuffled as a whole": _shuffled(twice, noisy, 200, seed=1, **on),
        "shuffled lines": _shuffled(lines, str.upper, **on),
        "shuffled lines without a function": _plain(
            shuffle_batch, lines, 4, min_after_dequeue=10, seed=2
        ),
        "shuffled files": _shuffled(
            lambda: files(str(folder / "*.txt"), epochs=2, shuffle=True, seed=2), lines_of, **on
        ),
        "shuffled mixture that stops early": _shuffled(
            lambda: mix([numbers(9, seed=1), lines_in_order()], stop="first", seed=3), text, **on
        ),
        "shuffled mixture": _shuffled(mixed_files, str.upper, 5, **on),
        "shuffled generators": _shuffled(twice, several, **on),
        "shuffled with names": _shuffled(
            twice, named, **{**typed, "names": ["item", "noise"]}, capacity=20, **on
        ),
        "shuffled whole batches": _shuffled(twice, noisy, allow_smaller_final_batch=False, **on),
        "buckets": _buckets(twice, sequence, 4, **on),
        "buckets of generators": _buckets(twice, pieces, [5, 4, 2], **on),
        "buckets of tokens": _buckets(
            twice, sequence, tokens_per_batch=6, on_too_long="skip", name="few", **on
        ),
        "buckets without a function": _plain(
            bucket_by_sequence_length,
            lambda: items([np.arange(n % 9) for n in range(40)], 2, shuffle=True, seed=1),
            [3, 6],
            4,
        ),
    }


def unordered_streams() -> dict[str, Shape]:
    """Streams that do not keep the order, and give each example by itself."""
    return {
        "batch": _batch(twice, slowly),
        "batch of generators": _batch(twice, several),
        "batch with skips": _batch(twice, not_sevens, on_error="skip"),
        "typed batch": _batch(twice, slowly, dtypes=["int32", "float32"], shapes=[(), ()]),
        "shuffled": _shuffled(twice, slowly),
        "shuffled generators": _shuffled(twice, several),
    }


def go(shape: Shape, how: How, most: int | None = None, state: Any = None) -> tuple[list[Any], Any]:
    """Batches of a stream, and the state behind them.

    Args:
        shape: makes the stream.
        how: by which workers.
        most: how many batches are taken before it is left; ``None`` for all.
        state: where to begin.
    """
    taken: list[Any] = []
    with sync.Coordinator() as coord:
        stream = shape(how, coord, resume=state)
        while len(taken) != most:
            made = next(stream, None)
            if made is None:
                break
            taken.append(Exact(made))
        return taken, through_json(stream.state_dict())


def undisturbed(shape: Shape) -> list[Any]:
    """What the stream gives that cannot be resumed."""
    with sync.Coordinator() as coord:
        return [Exact(made) for made in shape(How(), coord)]


def shuffling(how: How, coord: Any, **more: Any) -> Any:
    """A stream of one shape, for what does not depend on that."""
    return shuffle_batch(
        twice(),
        4,
        coord=coord,
        min_after_dequeue=9,
        seed=1,
        function=noisy,
        ordered=True,
        workers=how.workers,
        **more,
    )
