"""A source that is iterated over itself is one epoch, unless it has several.

What is handed to workers goes on for ever, as it always has: so all sources are iterated over both
ways here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioqueue import InvalidArgumentError, sync
from aioqueue.inputs import (
    Entry,
    Source,
    arrays,
    batch,
    files,
    from_iterable,
    items,
    mix,
    numbers,
    read_lines,
)
from tests.kit.going import epochs_of, results
from tests.kit.worlds import TaskWorld, World

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
    assert source._is_endless
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


def test_what_continues_behind_a_position_ends_with_its_epoch(source: Source[Any]) -> None:
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
    assert not mixture._is_endless
    assert list(mixture) == list(mixture.run())
    assert len(set(mixture)) == 100


@pytest.mark.parametrize("epochs", [1, 2])
def test_as_many_epochs_as_were_given(epochs: int) -> None:
    source = numbers(3, epochs)
    assert not source._is_endless
    assert list(source) == [0, 1, 2] * epochs
    assert len(source) == 3 * epochs


def test_files_without_records_end_as_well(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert list(read_lines(files(f"{tmp_path}/*"))) == []


def test_batches_made_by_workers_continue(tmp_path: Path) -> None:
    for source in (numbers(3), lines(tmp_path)):
        with sync.Coordinator() as coord:
            stream = batch(source, 4, coord=coord)
            for _ in range(5):
                assert len(next(iter(stream))) == 4


def test_its_repr_speaks_of_no_epochs() -> None:
    assert repr(numbers(3, seed=1)) == "<aioqueue.inputs.numbers of 3, seed=1>"


class TestOneOfThemInAPipeline:
    async def test_workers_read_it_too(self, source: Source[Any], world: World) -> None:
        expected = [list(source.epoch(number)) for number in (2, 3)]
        one = source.epoch(2)
        assert await epochs_of(world, one.prepare(itself, workers=2).epochs(2)) == expected
        assert await epochs_of(world, one.filter(lambda _: True).epochs(2)) == expected

    async def test_of_an_async_iterable(self, world: World) -> None:
        async def readings(epoch: int) -> AsyncIterator[int]:
            for number in range(3):
                yield 10 * epoch + number

        one = from_iterable(readings).epoch(4)
        assert await results(world, one.prepare(itself)) == [40, 41, 42]
        assert await results(world, one.batch(2)) == [[40, 41], [42]]
        if isinstance(world, TaskWorld):
            assert [value async for value in one] == [40, 41, 42]

    def test_draws_otherwise_than_another_one(self) -> None:
        source = numbers(50, seed=3)
        noise = lambda _, rng: rng.random()  # noqa: E731
        drawn = [list(source.epoch(number).prepare(noise)) for number in range(3)]
        assert drawn[0] == list(source.prepare(noise))
        assert len({one for epoch in drawn for one in epoch}) == 150
        assert drawn[2] == list(source.epoch(2).prepare(noise, workers=1))
        orders = [list(source.epoch(number).shuffle(20)) for number in range(3)]
        assert len({tuple(order) for order in orders}) == 3

    def test_what_is_not_repeatable_has_no_position_there(self) -> None:
        one = from_iterable([1, 2, 3]).epoch(0)
        assert not one._is_repeatable
        with pytest.raises(InvalidArgumentError, match="which has no position"):
            next(one.batch(2).epochs(1)).state_dict()

    def test_the_promises_of_its_source_hold(self) -> None:
        assert numbers(3).epoch(1)._is_in_memory
        assert numbers(3).epoch(1)._never_waits
        assert not read_lines_of().epoch(1)._never_waits


class Mislabelled(Source[int]):
    """A user's source that takes every epoch for another one."""

    def entries(self) -> Iterator[Entry[int]]:
        return self.epoch_entries(0)

    def epoch_entries(self, epoch: int) -> Iterator[Entry[int]]:
        for number in range(4):
            yield Entry(10 * epoch + number, self.value_at(epoch), number)

    def value_at(self, epoch: int) -> int:
        return 0


class MislabelledAhead(Mislabelled):
    def value_at(self, epoch: int) -> int:
        return epoch + 1


@pytest.mark.parametrize("kind", [Mislabelled, MislabelledAhead])
async def test_the_epoch_is_that_of_the_pipeline(kind: type[Source[int]], world: World) -> None:
    expected = [[0, 1, 2, 3], [10, 11, 12, 13]]
    for ordered in (True, False):
        pipeline = kind("own").prepare(itself, workers=1, ordered=ordered)
        assert await epochs_of(world, pipeline.epochs(2)) == expected


class TestLengths:
    def test_of_pipelines_of_sources_that_know_it(self) -> None:
        sources: list[Any] = [
            numbers(10).epoch(1),
            mix([numbers(4), items([5, 6, 7]), numbers(3)], seed=1),
            mix([numbers(4), numbers(6)], seed=1).epoch(2),
            mix([numbers(4), mix([numbers(2), numbers(4)], seed=1)], seed=2),
        ]
        for source in sources:
            assert len(source.batch(4)) == len(list(source.batch(4))) == 3
            for rank in range(3):
                share = source.prepare(itself).batch(4).shard(rank, 3)
                assert len(share) == len(list(share)) == 1
        one: Any = numbers(10).epoch(1)
        assert len(one) == 10

    def test_of_others_are_not_known(self) -> None:
        unknown: list[Any] = [
            mix([numbers(3), numbers(9)], stop="first").batch(2),
            mix([numbers(3), from_iterable([1])]).batch(2),
            from_iterable([1]).epoch(0).batch(2),
            from_iterable([1]).epoch(0),
        ]
        for one in unknown:
            with pytest.raises(TypeError, match="is not known"):
                len(one)

    def test_a_custom_source_may_declare_it(self) -> None:
        class Four(Mislabelled):
            def items_per_epoch(self) -> int:
                return 4

        assert len(Four("four").batch(3)) == 2


class TestOneThatBeginsBehindAPosition:
    """It has no epochs: what is left is a part of one, or of several."""

    def test_is_refused_by_pipelines(self, source: Source[Any]) -> None:
        *_, last = islice(source.placed(), 2)
        rest = source.after(source.position(last.place))
        refused: list[Callable[[], Any]] = [
            lambda: rest.batch(2),
            lambda: rest.epochs(2),
            lambda: rest.epoch(0),
            lambda: numbers(3).prepare(itself).mix(rest.prepare(itself)),
        ]
        for make in refused:
            with pytest.raises(InvalidArgumentError, match="which begins behind a position"):
                make()
        with pytest.raises(ExceptionGroup) as failed:
            list(mix([rest, numbers(3)]).batch(2))
        assert "which begins behind a position" in str(failed.value.exceptions[0])


def itself(value: Any) -> Any:
    return value


def read_lines_of() -> Source[str]:
    return read_lines("no such file")


def test_a_stream_of_one_epoch_continues_behind_a_position() -> None:
    source = numbers(20, shuffle=True, seed=3).epoch(1)
    with sync.Coordinator() as coord:
        stream: Any = batch(source, 4, coord=coord, resume=None)
        before = [next(stream).tolist() for _ in range(2)]
        state = stream.state_dict()
    with sync.Coordinator() as coord:
        rest = [one.tolist() for one in batch(source, 4, coord=coord, resume=state)]
    assert [item for one in before + rest for item in one] == list(source)
