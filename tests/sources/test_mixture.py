"""Mixtures: the shares that were asked for, from the seed alone, and nothing lost."""

from __future__ import annotations

import collections
import gc
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioqueue import InvalidArgumentError
from aioqueue.items.item import Entry
from aioqueue.readers.files import files
from aioqueue.readers.lines import read_lines
from aioqueue.sources.kinds.mixture import mix
from aioqueue.sources.kinds.sequences import items, numbers
from aioqueue.sources.kinds.source import Source
from tests.kit.worlds import TaskWorld, spin_until

properties = settings(derandomize=True, deadline=None, max_examples=50)


class Counted(Source[int]):
    """A source that knows how many of its runs are open."""

    def __init__(self) -> None:
        super().__init__("counted")
        self.open = 0

    def entries(self) -> Iterator[Entry[int]]:
        self.open += 1
        try:
            for number in range(10):
                yield Entry(number, 0, number)
        finally:
            self.open -= 1


def test_shares_are_those_of_the_weights() -> None:
    mixture = mix([items(["a"]), items(["b"]), items(["c"])], [5, 3, 2], seed=1)
    counts = collections.Counter(islice(mixture.run(), 10_000))
    assert abs(counts["a"] - 5000) < 200
    assert abs(counts["b"] - 3000) < 200


def test_without_weights_they_are_equal() -> None:
    counts = collections.Counter(islice(mix([items(["a"]), items(["b"])], seed=1).run(), 10_000))
    assert abs(counts["a"] - 5000) < 200


def test_the_unit_of_weights_does_not_matter() -> None:
    sources = [items(["a"]), items(["b"])]
    one, other = mix(sources, [1, 3], seed=1), mix(sources, [0.25e-9, 0.75e-9], seed=1)
    assert list(islice(one.run(), 100)) == list(islice(other.run(), 100))


def test_the_same_seed_gives_the_same_mixture() -> None:
    """Written down once: it may not change with the platform, nor with a version."""
    mixture = mix([items(["a"]), items(["b"])], [1, 2], seed=3)
    text = "".join(islice(mixture.run(), 30))
    assert text == "".join(islice(mixture.run(), 30)) == "baaabbbababaababaaabaabababbbb"
    other = mix([items(["a"]), items(["b"])], [1, 2], seed=4)
    assert text != "".join(islice(other.run(), 30))


@properties
@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=5),
    seed=st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_nothing_is_lost_and_each_source_keeps_its_order(
    lengths: list[int], seed: int, data: st.DataObject
) -> None:
    weights = data.draw(
        st.lists(st.floats(1e-3, 1e3), min_size=len(lengths), max_size=len(lengths))
    )
    sources = [
        items([(which, number) for number in range(length)], 1)
        for which, length in enumerate(lengths)
    ]
    mixture = mix(sources, weights, seed)
    drawn = list(mixture)
    assert len(mixture) == len(drawn) == sum(lengths)
    for which, length in enumerate(lengths):
        assert [n for source, n in drawn if source == which] == list(range(length))


@properties
@given(lengths=st.lists(st.integers(0, 20), min_size=1, max_size=5), seed=st.integers(0, 2**64 - 1))
def test_stopping_at_the_first_is_a_prefix(lengths: list[int], seed: int) -> None:
    sources = [
        items([(which, number) for number in range(length)], 1)
        for which, length in enumerate(lengths)
    ]
    everything = list(mix(sources, seed=seed))
    until_first = list(mix(sources, seed=seed, stop="first"))
    assert until_first == everything[: len(until_first)]
    counts = collections.Counter(which for which, _ in until_first)
    assert any(counts[which] == length for which, length in enumerate(lengths))


def test_entries_of_several_sources_have_distinct_seeds() -> None:
    mixture = mix([numbers(10, 2), numbers(10, 2), numbers(10, 2)], seed=1)
    entries = list(mixture.entries())
    assert len({(entry.epoch, entry.index) for entry in entries}) == len(entries) == 60
    assert all(entry.value == entry.index // 3 for entry in entries)


def test_weights_do_not_change_what_an_item_is() -> None:
    sources = [numbers(10, 1), numbers(5, 1)]
    assert set(mix(sources, [1, 9], 1).entries()) == set(mix(sources, [9, 1], 2).entries())


def test_mixtures_can_be_mixed() -> None:
    inner = mix([numbers(3, 1), numbers(3, 1)], seed=1)
    entries = list(mix([inner, numbers(3, 1)], seed=2).entries())
    assert len({entry.index for entry in entries}) == 9


def test_a_source_that_is_left_early_is_closed() -> None:
    sources = [Counted(), Counted()]
    run = mix(sources, seed=1).entries()
    next(run)
    next(run)
    run.close()  # type: ignore[attr-defined]
    assert [source.open for source in sources] == [0, 0]


def test_a_length_that_is_not_known_is_not_made_up(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not known"):
        len(mix([numbers(3, 1)], stop="first"))
    with pytest.raises(TypeError):
        len(mix([read_lines(tmp_path / "a.txt")]))


def test_repr() -> None:
    mixture = mix([items([1], 1, seed=1), items([2], 1, seed=2)], [1, 3], seed=3)
    assert repr(mixture) == (
        "<aioqueue.inputs.mix: 0.25 of <aioqueue.inputs.items of 1, epochs=1, seed=1>,"
        " 0.75 of <aioqueue.inputs.items of 1, epochs=1, seed=2>; stop='all', seed=3>"
    )


@pytest.mark.slow("asyncio")
async def test_what_reads_files_is_read_ahead(task_world: TaskWorld, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("x\n" * 1000)
    mixture = mix([items(["y"] * 1000), read_lines(file)], seed=1)
    expected = list(islice(mixture, 500))
    run = aiter(mixture)
    assert [await anext(run) for _ in range(500)] == expected
    assert "aioqueue-read-mix" in {thread.name for thread in threading.enumerate()}
    del run
    gc.collect()
    spin_until(lambda: "aioqueue-read-mix" not in {thread.name for thread in threading.enumerate()})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sources": []}, r"sources: got \[\]"),
        ({"sources": [[1, 2]]}, r"sources: got \[1, 2\]; .* items"),
        ({"sources": 5}, "sources: got 5"),
        ({"sources": numbers(3)}, "sources: got <aioqueue.inputs.numbers of 3, .* in a list"),
        ({"weights": [1]}, "weights: .* each of 2"),
        ({"weights": [1, 0]}, "weights"),
        ({"weights": [1, float("nan")]}, "weights"),
        ({"weights": [1, float("inf")]}, "weights"),
        ({"weights": [1e308, 1e308]}, "weights: .* with a finite sum"),
        ({"weights": 5}, "weights: got 5"),
        ({"weights": ["a", "b"]}, "weights"),
        ({"stop": "last"}, "stop: got 'last'"),
        ({"seed": -1}, "seed"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        mix(**{"sources": [numbers(1), numbers(1)], **arguments})


def test_sources_without_a_seed_take_that_of_the_mixture(tmp_path: Path) -> None:
    def made() -> Source[Any]:
        shuffled = numbers(50, shuffle=True)
        return mix([shuffled, shuffled, mix([numbers(30, shuffle=True)], [1])], seed=7)

    assert list(made()) == list(made())
    ranks = [list(made().batch(1).shard(rank, 2)) for rank in range(2)]
    assert sorted(int(one) for rank in ranks for (one,) in rank) == sorted(made())
    assert len({source.seed for source in mix([numbers(5), numbers(5)], seed=7)._sources}) == 2
    assert mix([numbers(5, seed=3)], seed=7)._sources[0].seed == 3


def test_what_a_pipeline_mixes_in_takes_its_seed() -> None:
    for seeds in ({"seed": 7}, {}):

        def made(rank: int, seeds: Any = seeds) -> Any:
            others = [numbers(40, shuffle=True), numbers(40, shuffle=True).mix(numbers(9), seed=1)]
            first = numbers(50, seed=None if seeds else 5)
            return first.mix(*others, **seeds).shard(rank, 2, uneven="allow")

        both = sorted(int(one) for rank in range(2) for one in made(rank))
        assert both == sorted([*range(50), *range(40), *range(40), *range(9)])


REPEATED: dict[str, Any] = {
    "itself": lambda path: numbers(10, epochs=3),
    "none": lambda path: numbers(10, epochs=0),
    "mix": lambda path: mix([numbers(10, epochs=3), numbers(5)], seed=1),
    "mix of mix": lambda path: mix([mix([numbers(10), items([1], epochs=2)]), numbers(5)]),
    "reader": lambda path: read_lines(files(path, epochs=3)),
    "mix of readers": lambda path: mix([read_lines(path), read_lines(files(path, epochs=3))]),
    "mixed in": lambda path: numbers(5).mix(read_lines(files(path, epochs=3))),
}


@pytest.mark.parametrize("make", REPEATED.values(), ids=REPEATED)
def test_epochs_of_a_source_are_refused_in_a_pipeline(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x\n" * 10)
    with pytest.raises(InvalidArgumentError, match=r"(?s)epochs: got [023] .*small\.repeat\(3\)"):
        make(path).batch(1)


def test_a_small_corpus_comes_several_times_where_it_is_mixed_in_so_often() -> None:
    small, large = items(["small"]), items(["large"] * 5)
    found = list(mix([small, small, small, large], seed=1).take(100))
    assert sorted(found) == ["large"] * 5 + ["small"] * 3


def test_ranks_without_a_seed_are_warned_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    sources: list[Any] = [numbers(10), items(["a", "b"]), numbers(10).epoch(1), read_lines("a")]
    for number, source in enumerate(sources, 1):
        source.batch(2).shard(0, 2).batch(1)
        assert len(caplog.records) == number
        assert "shard: " in caplog.text
    numbers(10).batch(2).shard(0, 1)
    for source in (numbers(10, seed=1), read_lines("a", seed=1), mix([numbers(10)], seed=1)):
        source.batch(2).shard(0, 2)
    assert len(caplog.records) == len(sources)
