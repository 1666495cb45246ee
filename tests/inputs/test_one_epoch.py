"""A source that is iterated over itself is one epoch, unless it was told of several.

What is handed to workers goes on for ever, as it always has: so all sources are gone through both
ways here.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioqueue import sync
from aioqueue.inputs import (
    Source,
    arrays,
    batch,
    files,
    items,
    mix,
    numbers,
    read_lines,
)
from tests.worlds import TaskWorld

pytestmark = pytest.mark.timeout(60)


def lines(folder: Path, **options: Any) -> Source[Any]:
    for name in "abc":
        (folder / name).write_text(f"{name}0\n{name}1\n")
    return read_lines(files(f"{folder}/*", shuffle=True, seed=3, **options))


MAKERS: dict[str, Callable[[Path], Source[Any]]] = {
    "items": lambda _: items(["a", "b", "c"]),
    "numbers": lambda _: numbers(5, shuffle=True, seed=2),
    "shard": lambda _: numbers(5, shuffle=True, seed=2, shard=(1, 2)),
    "arrays": lambda _: arrays(np.arange(4)),
    "reader": lines,
    "mixture": lambda _: mix([numbers(3), numbers(4, shuffle=True, seed=1)], seed=5),
    "first": lambda _: mix([numbers(3), numbers(9)], stop="first", seed=5),
    "with one that ends": lambda _: mix([numbers(3), numbers(4, epochs=1)], seed=5),
    "mixture of readers": lambda folder: mix([lines(folder), lines(folder)], seed=5),
}


@pytest.fixture(params=MAKERS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source[Any]:
    return MAKERS[request.param](tmp_path)


def test_it_is_one_epoch_the_one_that_a_pipeline_begins_with(source: Source[Any]) -> None:
    assert source.is_endless
    once = list(source)
    assert once == list(source) == list(source.epoch(0)) == list(source.filter(lambda _: True))
    assert len(list(islice(source.run(), 3 * len(once)))) == 3 * len(once)  # as before


async def test_the_same_in_tasks(source: Source[Any], task_world: TaskWorld) -> None:
    assert [item async for item in source] == list(source)


def test_its_length_is_that_of_iterating_over_it(source: Source[Any]) -> None:
    sized: Any = source
    try:
        length = len(sized)
    except TypeError as error:
        assert "has no len" in str(error) or "is not known" in str(error)
    else:
        assert length == len(list(source))


def test_what_goes_on_behind_a_position_ends_with_its_epoch(source: Source[Any]) -> None:
    size = len(list(source))
    whole = list(islice(source.placed(), 2 * size))
    for taken, (entry, place) in enumerate(whole, 1):
        rest = source.after(source.position(place))
        if source.name == "mix":  # each of the sources ends its own epoch
            assert len(list(rest)) < size
        else:
            assert list(rest) == [one.value for one, _ in whole[taken:] if one.epoch == entry.epoch]


def test_a_mixture_that_ends_with_the_first_source_to_end_is_not_endless() -> None:
    mixture = mix([numbers(3), numbers(100, epochs=1)], stop="first", seed=5)
    assert not mixture.is_endless
    assert list(mixture) == list(mixture.run())
    assert len(set(mixture)) == 100


@pytest.mark.parametrize("epochs", [1, 2])
def test_so_many_epochs_as_were_said(epochs: int) -> None:
    source = numbers(3, epochs)
    assert not source.is_endless
    assert list(source) == [0, 1, 2] * epochs
    assert len(source) == 3 * epochs


def test_files_without_records_end_as_well(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert list(read_lines(files(f"{tmp_path}/*"))) == []


def test_batches_made_by_workers_go_on(tmp_path: Path) -> None:
    for source in (numbers(3), lines(tmp_path)):
        with sync.Coordinator() as coord:
            stream = batch(source, 4, coord=coord)
            for _ in range(5):
                assert len(next(iter(stream))) == 4


def test_its_repr_speaks_of_no_epochs() -> None:
    assert repr(numbers(3, seed=1)) == "<aioqueue.inputs.numbers of 3, seed=1>"
