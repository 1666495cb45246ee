"""Sources made of sources: parts of one, one several times, and several files at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import Pipeline, arrays, from_iterable, items, mix, numbers, read_lines
from tests.kit.going import results
from tests.kit.resuming import LINES, run, write_files
from tests.kit.worlds import World


def drawn(item: Any, rng: np.random.Generator) -> tuple[Any, float]:
    return item, float(rng.random())


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return sorted(map(str, write_files(tmp_path_factory.mktemp("split")).iterdir()))


def lines(paths: list[str]) -> Any:
    return read_lines(items(paths, shuffle=True, seed=3))


class TestSplit:
    @pytest.mark.parametrize(
        "make",
        [
            lambda paths: numbers(100, shuffle=True, seed=3),
            lambda paths: arrays(np.arange(30), seed=1),
            lines,
            lambda paths: mix([lines(paths), numbers(40, shuffle=True)], seed=5),
            lambda paths: numbers(30, shuffle=True, seed=3).repeat(2),
        ],
    )
    def test_parts_are_disjoint_and_together_the_whole(
        self, make: Callable[[Any], Any], paths: list[str]
    ) -> None:
        first = [set(part) for part in make(paths).split([0.5, 0.3, 0.2])]
        for epoch in (0, 2):
            parts = [Counter(part.epoch(epoch)) for part in make(paths).split([0.5, 0.3, 0.2])]
            assert [set(part) for part in parts] == first
            assert sum(parts, Counter()) == Counter(make(paths).epoch(epoch))

    @pytest.mark.parametrize("shard", [None, (1, 2)])
    def test_a_source_that_does_not_shuffle_keeps_its_order(self, shard: Any) -> None:
        for source in (numbers(50, shard=shard), items(range(50), shard=shard)):
            parts = [list(part) for part in source.split([0.5, 0.3, 0.2])]
            assert parts == [sorted(part) for part in parts]

    def test_shards_cut_each_part(self) -> None:
        train, _ = numbers(20, seed=3).split([0.7, 0.3])
        shards = [numbers(20, seed=3, shard=(at, 2)).split([0.7, 0.3])[0] for at in range(2)]
        assert sorted(item for shard in shards for item in shard) == sorted(train)
        ranks = [train.shard(rank, 2, uneven="allow") for rank in range(2)]
        assert sorted(item for rank in ranks for item in rank) == sorted(train)

    def test_sizes_of_what_has_a_length_are_exact(self) -> None:
        train, valid = numbers(101, shuffle=True, seed=1).split([0.9, 0.1])
        assert [len(list(train)), len(list(valid))] == [91, 10]
        assert [train.items_per_epoch(), valid.items_per_epoch()] == [91, 10]
        assert list(train.epoch(0)) != list(train.epoch(1))
        other, _ = numbers(101).split([0.9, 0.1], seed=1)
        assert set(other) != set(train)

    def test_the_seed_of_the_source_does_not_matter(self) -> None:
        parts = [set(numbers(50, shuffle=True).split([0.8, 0.2])[1]) for _ in range(3)]
        assert parts[0] == parts[1] == parts[2]

    def test_an_item_has_the_generator_that_it_has_in_the_whole(self, paths: list[str]) -> None:
        for source in (numbers(20, seed=4), lines(paths)):
            whole = dict(source.prepare(drawn))
            for part in source.split([0.5, 0.5]):
                found = dict(part.prepare(drawn))
                assert found
                assert found == {item: whole[item] for item in found}

    def test_no_table_is_made_of_a_trillion(self) -> None:
        left, right = numbers(10**12, shuffle=True, seed=1).split([0.5, 0.5])
        assert len(left) == len(right) == 5 * 10**11
        assert list(left.take(2)) != list(right.take(2))

    @pytest.mark.parametrize("given", [[], [0.5], [0.5, 0.6], [1.5, -0.5], "ab", [True], 0.5])
    def test_other_fractions_are_refused(self, given: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="fractions: got"):
            numbers(3).split(given)

    def test_a_random_seed_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="another run would train on items"):
            numbers(3).split([0.5, 0.5], seed=None)  # type: ignore[arg-type]

    def test_a_position_of_another_part_is_refused(self) -> None:
        train, valid = numbers(20, seed=1).split([0.5, 0.5])
        with pytest.raises(InvalidArgumentError, match=r"part\.start"):
            Pipeline(valid).resume(Pipeline(train).epochs(1).state_dict())


class TestRepeat:
    def test_each_pass_is_an_epoch_of_its_own(self, paths: list[str]) -> None:
        for source in (numbers(5, shuffle=True, seed=1), lines(paths)):
            thrice = source.repeat(3)
            passes = [item for number in (3, 4, 5) for item in source.epoch(number)]
            assert list(thrice.epoch(1)) == passes
            noises = [noise for _, noise in thrice.prepare(drawn)]
            assert len(set(noises)) == len(noises)

    async def test_in_a_mixture(self, world: World) -> None:
        small, large = items(["a", "b"], seed=1), numbers(6, seed=2)
        found = await results(world, small.repeat(3).mix(large))
        assert Counter(map(str, found)) == Counter("ababab012345")
        assert len(small.repeat(3).mix(large)) == 12

    async def test_of_an_async_iterable(self, world: World) -> None:
        class Ticks:
            async def __aiter__(self) -> Any:
                for tick in range(3):
                    yield tick

        source = from_iterable(Ticks())
        assert await results(world, source.repeat(2).prepare(str)) == ["0", "1", "2"] * 2
        even, odd = source.split([0.5, 0.5])
        found = await results(world, even.concat(odd))
        assert sorted(found) == [0, 1, 2]

    def test_what_is_refused(self) -> None:
        for times in (0, 1.5):
            with pytest.raises(InvalidArgumentError, match="times: got"):
                numbers(3).repeat(times)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="repeat: got"):
            from_iterable(iter([1])).repeat(2)
        with pytest.raises(InvalidArgumentError, match=r"small\.repeat\(3\)"):
            numbers(3, epochs=2).repeat(2).batch(2)


class TestInterleave:
    def expected(self, paths: list[str], files: int, block: int) -> list[str]:
        """The simplest way: lists, one line at a time."""
        waiting = [Path(path).read_text().split() for path in paths]
        slots: list[list[str]] = [[] for _ in range(files)]
        found: list[str] = []
        at = 0
        while waiting or any(slots):
            for _ in range(block):
                while not slots[at] and waiting:
                    slots[at] = waiting.pop(0)
                found += slots[at][:1]
                del slots[at][:1]
            at = (at + 1) % files
        return found

    @pytest.mark.parametrize(("files", "block"), [(1, 1), (2, 1), (3, 1), (9, 1)])
    def test_a_record_of_each_in_turn(self, paths: list[str], files: int, block: int) -> None:
        source = read_lines(paths).interleave(files, block=block)
        assert list(source) == self.expected(paths, files, block)
        assert Counter(source) == Counter(read_lines(paths))

    def test_blocks(self, paths: list[str]) -> None:
        found = list(read_lines(paths).interleave(2, block=5))
        assert found[:11] == [*(f"0-{n}" for n in range(5)), *(f"2-{n}" for n in range(5)), "0-5"]
        assert len(found) == sum(LINES)

    def test_generators_and_places_are_those_of_the_reader(self, paths: list[str]) -> None:
        reader = lines(paths)
        assert dict(reader.interleave(2).prepare(drawn)) == dict(reader.prepare(drawn))
        entries = list(reader.interleave(2).entries())
        assert {reader.interleave(2).locate(one.index) for one in entries} == {
            reader.locate(one.index) for one in entries
        }

    async def test_both_faces(self, world: World, paths: list[str]) -> None:
        source = lines(paths).interleave(3)
        assert await results(world, source.batch(20)) == await results(world, source.batch(20))
        assert await results(world, source) == list(source)

    def test_what_is_refused(self, paths: list[str]) -> None:
        with pytest.raises(InvalidArgumentError, match="files: got 0"):
            read_lines(paths).interleave(0)
        with pytest.raises(InvalidArgumentError, match="block: got 0"):
            read_lines(paths).interleave(2, block=0)
        with pytest.raises(InvalidArgumentError, match="paths: got"):
            read_lines(iter(paths)).interleave(2)


@pytest.mark.parametrize("which", ["part", "part of lines", "repeated", "repeated lines", "files"])
def test_it_continues_anywhere(which: str, paths: list[str]) -> None:
    made: dict[str, Callable[[], Any]] = {
        "part": lambda: numbers(9, shuffle=True, seed=1).split([0.6, 0.4])[0],
        "part of lines": lambda: lines(paths).split([0.2, 0.8])[0],
        "repeated": lambda: numbers(3, shuffle=True, seed=1).repeat(2),
        "repeated lines": lambda: lines(paths).split([0.1, 0.9])[0].repeat(2),
        "files": lambda: lines(paths).interleave(2).split([0.3, 0.7])[0],
    }
    whole, _ = run(Pipeline(made[which]()), 2)
    for most in _some(len(whole)):
        head, state = run(Pipeline(made[which]()), 2, most)
        assert head + run(Pipeline(made[which]()), 2, None, state)[0] == whole


def _some(count: int) -> Iterator[int]:
    yield from {1, count // 4, count // 2, count // 2 + 1, count - 1, count} - {0}
