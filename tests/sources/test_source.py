"""Sources: every item once an epoch, in an order that the seed decides, cut without overlap."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioqueue import InvalidArgumentError
from aioqueue.items.item import Entry
from aioqueue.sources.kinds.iterables import from_iterable
from aioqueue.sources.kinds.sequences import arrays, items, numbers
from aioqueue.sources.kinds.source import Source
from aioqueue.sources.shuffling import LONGEST_TABLE, feistel, indices, rng
from tests.kit.worlds import TaskWorld

LARGE = LONGEST_TABLE + 1

properties = settings(derandomize=True, deadline=None, max_examples=60)
seeds = st.integers(0, 2**64 - 1)
lengths = st.one_of(st.integers(0, 40), st.integers(4090, 4100), st.integers(8180, 8200))


class Letters(Source[str]):
    """The least that a source of the user's must have."""

    def __init__(self, text: str, seed: int | None = None) -> None:
        super().__init__("letters", seed)
        self.text = text

    def entries(self) -> Iterator[Entry[str]]:
        return (Entry(letter, 0, index) for index, letter in enumerate(self.text))


class WaitedForLetters(Letters):
    blocking = True


class TestOrder:
    def test_without_shuffling_it_is_that_of_the_sequence(self) -> None:
        assert list(items(["a", "b"], 2)) == ["a", "b", "a", "b"]
        assert list(items([3, 1, 2], epochs=1)) == [3, 1, 2]

    # What tf.train.range_input_producer gave, in TensorFlow 2.21.
    @pytest.mark.parametrize(
        ("n", "epochs", "seed", "order"),
        [
            (7, 3, 7, [0, 2, 1, 5, 3, 6, 4, 3, 2, 1, 4, 0, 5, 6, 5, 2, 6, 0, 3, 4, 1]),
            (2, 5, 3, [1, 0, 1, 0, 1, 0, 0, 1, 1, 0]),
            (1, 2, 1, [0, 0]),
            (9000, 1, 99, [7103, 2781, 8489, 8762, 4814, 6463, 5811, 8010, 2329, 5203, 6888]),
        ],
    )
    def test_it_is_the_one_of_tensorflow(
        self, n: int, epochs: int, seed: int, order: list[int]
    ) -> None:
        assert list(numbers(n, epochs, True, seed))[: len(order)] == order

    def test_of_a_long_sequence_it_is_always_the_same_too(self) -> None:
        """Written down once: it may not change with the platform, nor with a version."""
        assert list(islice(numbers(10**12, 1, True, 5), 3)) == [
            114432688889,
            451336539033,
            308134285128,
        ]

    @properties
    @given(n=lengths, seed=seeds, epoch=st.integers(0, 1000))
    def test_every_epoch_is_a_permutation(self, n: int, seed: int, epoch: int) -> None:
        assert sorted(indices(n, seed, epoch, (0, 1))) == list(range(n))

    @properties
    @given(
        n=st.integers(1, 3000),
        keys=st.lists(seeds, min_size=8, max_size=8),
    )
    def test_a_network_is_a_permutation_of_any_length(self, n: int, keys: list[int]) -> None:
        words = np.array(keys, np.uint64)
        moved = feistel(np.arange(n, dtype=np.uint64), n, words)
        assert sorted(moved.tolist()) == list(range(n))

    def test_a_network_reaches_the_largest_length(self) -> None:
        n = 2**63 - 1
        places = np.array([0, 1, n // 2, n - 1], np.uint64)
        moved = feistel(places, n, np.arange(1, 9, dtype=np.uint64) << np.uint64(60))
        assert len(set(moved.tolist())) == 4
        assert max(moved.tolist()) < n

    @pytest.mark.parametrize("n", [10**4, LARGE])
    def test_no_pattern_is_left(self, n: int) -> None:
        """Where the first thousand go is spread evenly, and neighbours are parted."""
        order = np.array(list(islice(indices(n, 1, 0, (0, 1)), 1000)))
        assert abs(order.mean() / n - 0.5) < 0.05
        assert np.histogram(order, 10, (0, n))[0].min() > 60
        assert np.count_nonzero(np.abs(np.diff(order)) == 1) < 5

    @pytest.mark.slow
    def test_small_orders_are_equally_likely(self) -> None:
        counts: dict[tuple[int, ...], int] = {}
        for seed in range(1, 2401):
            order = tuple(indices(4, seed, 0, (0, 1)))
            counts[order] = counts.get(order, 0) + 1
        assert len(counts) == 24
        chi_squared = sum((count - 100) ** 2 / 100 for count in counts.values())
        assert chi_squared < 49.7  # 23 degrees of freedom, one in a thousand

    @pytest.mark.parametrize("n", [100, LARGE])
    def test_epochs_and_seeds_differ(self, n: int) -> None:
        def head(seed: int, epoch: int) -> tuple[int, ...]:
            return tuple(islice(indices(n, seed, epoch, (0, 1)), 50))

        heads = {head(seed, epoch) for seed in range(5) for epoch in range(5)}
        assert len(heads) == 25

    def test_a_run_can_be_repeated(self) -> None:
        source = items(range(50), 2, shuffle=True)
        first = list(source.entries())
        assert list(source.entries()) == first
        assert list(items(range(50), 2, shuffle=True, seed=source.seed).entries()) == first

    def test_two_runs_at_once_do_not_disturb_each_other(self) -> None:
        source = numbers(9, 1, shuffle=True, seed=1)
        pairs = list(zip(source, source, strict=True))
        assert all(one == other for one, other in pairs)

    def test_a_trillion_numbers_make_no_list(self) -> None:
        source = numbers(10**12, shuffle=True, seed=1)
        assert len(set(islice(source, 10_000))) == 10_000
        last = islice(numbers(10**12, 1, True, 1, (10**12 - 1, 10**12)), 2)
        assert len(list(last)) == 1


class TestShards:
    @properties
    @given(
        n=st.integers(0, 100),
        count=st.integers(1, 12),
        seed=seeds,
        epoch=st.integers(0, 3),
        shuffle=st.booleans(),
    )
    def test_cut_the_common_order(
        self, n: int, count: int, seed: int, epoch: int, shuffle: bool
    ) -> None:
        key = seed if shuffle else None
        whole = list(indices(n, key, epoch, (0, 1)))
        parts = [list(indices(n, key, epoch, (index, count))) for index in range(count)]
        assert parts == [whole[index::count] for index in range(count)]

    @pytest.mark.parametrize("n", [4095, 4096, 4097, 9001])
    def test_cut_it_where_chunks_meet_too(self, n: int) -> None:
        whole = list(indices(n, 3, 1, (0, 1)))
        assert [list(indices(n, 3, 1, (index, 3))) for index in range(3)] == [
            whole[index::3] for index in range(3)
        ]

    def test_of_a_long_sequence(self) -> None:
        whole = list(islice(indices(LARGE, 3, 1, (0, 1)), 12_300))
        assert [list(islice(indices(LARGE, 3, 1, (index, 3)), 4100)) for index in range(3)] == [
            whole[index::3] for index in range(3)
        ]

    @properties
    @given(n=st.integers(0, 50), count=st.integers(1, 8), epochs=st.integers(0, 3))
    def test_have_the_declared_length(self, n: int, count: int, epochs: int) -> None:
        shards = [numbers(n, epochs, True, 1, (index, count)) for index in range(count)]
        lengths = [len(shard) for shard in shards]
        assert lengths == [len(list(shard)) for shard in shards]
        assert sum(lengths) == n * epochs
        assert max(lengths) - min(lengths) <= epochs

    @properties
    @given(n=st.integers(0, 50), count=st.integers(1, 8))
    def test_without_remainder_have_one_length(self, n: int, count: int) -> None:
        shards = [
            numbers(n, 2, True, 1, (index, count), drop_remainder=True) for index in range(count)
        ]
        assert {len(list(shard)) for shard in shards} == {len(shards[0])} == {n // count * 2}

    def test_dropped_items_are_others_in_every_epoch(self) -> None:
        source = numbers(5, 20, True, 1, (0, 4), drop_remainder=True)
        assert set(source) == set(range(5))

    def test_do_not_change_what_an_item_is(self) -> None:
        whole = set(numbers(20, 2).entries())
        parts = [set(numbers(20, 2, True, 5, (index, 3)).entries()) for index in range(3)]
        assert set.union(*parts) == whole
        assert sum(map(len, parts)) == len(whole)

    def test_of_one_shuffle_need_one_seed(self) -> None:
        with pytest.raises(
            InvalidArgumentError, match=r"seed: got None with .*, the same for every"
        ):
            numbers(10, shuffle=True, shard=(0, 2))
        assert list(numbers(4, 1, shard=(1, 2))) == [1, 3]


class TestEntries:
    def test_report_epoch_and_index(self) -> None:
        entries = list(items(["a", "b", "c"], 2, shuffle=True, seed=4).entries())
        assert [entry.epoch for entry in entries] == [0, 0, 0, 1, 1, 1]
        assert all("abc"[entry.index] == entry.value for entry in entries)

    def test_continue_for_ever(self) -> None:
        source = items(["a", "b"])
        assert source._epochs_per_run is None
        assert [entry.epoch for entry in islice(source.entries(), 5)] == [0, 0, 1, 1, 2]
        assert list(islice(source.run(), 5)) == ["a", "b", "a", "b", "a"]

    @pytest.mark.timeout(5)
    def test_an_empty_sequence_ends_at_once(self) -> None:
        assert list(items([])) == []
        assert list(numbers(2, shard=(2, 3))) == []
        assert len(items([], 3)) == 0

    def test_a_sequence_that_grows_is_seen_at_the_next_epoch(self) -> None:
        sequence = [1]
        run = items(sequence).run()
        assert next(run) == 1
        sequence.append(2)
        assert list(islice(run, 2)) == [1, 2]

    def test_a_sequence_that_raises_is_not_hidden(self) -> None:
        class Broken(list[int]):
            def __getitem__(self, index: Any) -> Any:
                raise OSError("no such item")

        with pytest.raises(OSError, match="no such item"):
            list(items(Broken([1])))


class TestRng:
    def test_known_words(self) -> None:
        """Philox 4x64 under key 1, from counter (0, 3, 0, 2) on."""
        words = rng(1, 2, 3).bit_generator.random_raw(2).tolist()
        assert words == np.random.Philox(key=1, counter=[0, 3, 0, 2]).random_raw(2).tolist()
        assert words == [17659706628967076034, 17541062808127975640]

    @pytest.mark.parametrize(
        "arguments", [(-1, 0, 0), (2**64, 0, 0), (0, 2**64, 0), (0, 0, 2**128), (0, 0, 1.0)]
    )
    def test_wrong_arguments_are_named(self, arguments: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=r"(seed|epoch|index): got"):
            rng(*arguments)

    def test_numpy_ints_do_not_overflow(self) -> None:
        ours, theirs = rng(1, 2, 3), rng(*np.array([1, 2, 3]))
        assert ours.random() == theirs.random()

    def test_every_item_has_its_own(self) -> None:
        draws = {
            rng(seed, epoch, index).integers(2**62).item()
            for seed in (0, 1, 2**64 - 1)
            for epoch in (0, 1, 2**64 - 1)
            for index in (0, 1, 2**64, 2**128 - 1)
        }
        assert len(draws) == 36

    def test_is_the_same_whatever_the_shard_and_the_order(self) -> None:
        def noise(source: Source[int]) -> set[tuple[int, float]]:
            return {
                (entry.value, rng(source.seed, entry.epoch, entry.index).random())
                for entry in source.entries()
            }

        whole = noise(numbers(20, 2, seed=6))
        assert whole == noise(numbers(20, 2, True, 6))
        assert whole == noise(numbers(20, 2, True, 6, (0, 2))) | noise(
            numbers(20, 2, True, 6, (1, 2))
        )


class TestArrays:
    def test_rows_of_one(self) -> None:
        data = np.arange(6).reshape(3, 2)
        assert [row.tolist() for row in arrays(data, 1)] == [[0, 1], [2, 3], [4, 5]]
        assert list(arrays(np.array([1.5, 2.5]), 1)) == [1.5, 2.5]

    def test_rows_of_several(self) -> None:
        images, labels = np.zeros((2, 3)), [7, 8]
        rows = list(arrays((images, labels), 1))
        assert [label for _, label in rows] == [7, 8]
        assert rows[0][0].shape == (3,)
        assert [row["y"] for row in arrays({"x": images, "y": labels}, 1)] == [7, 8]

    def test_rows_are_views_that_cannot_be_written(self) -> None:
        data = np.zeros((2, 3))
        row = next(iter(arrays(data, 1)))
        assert np.shares_memory(row, data)
        with pytest.raises(ValueError, match="read-only"):
            row += 1
        data += 1  # the array itself stays as it was
        assert row.tolist() == [1, 1, 1]

    @pytest.mark.parametrize(
        "tensors", [([1, 2], [1]), {"x": [1], "y": [1, 2]}, (), {}, 5, ([1], 5), {"x": 5}]
    )
    def test_must_have_one_length(self, tensors: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="tensors: got"):
            arrays(tensors)

    def test_must_have_no_mask(self) -> None:
        """It would be lost, and what it covers be taken for data."""
        masked = np.ma.masked_array([1, 2], [False, True])
        for tensors in (masked, {"x": masked}):
            with pytest.raises(InvalidArgumentError, match=r"got a masked array.* without a mask"):
                arrays(tensors)


class TestSource:
    def test_needs_only_entries(self) -> None:
        source = Letters("abc", seed=9)
        assert list(source) == list(source) == ["a", "b", "c"]
        assert (source.name, source.seed, bool(source)) == ("letters", 9, True)
        assert repr(source) == "<aioqueue.inputs.letters, seed=9>"

    def test_draws_a_seed_once_and_shows_it(self) -> None:
        one, other = numbers(5), numbers(5)
        assert one.seed != other.seed
        assert one.seed == one.seed
        assert f"seed={one.seed}" in repr(one)
        assert json.loads(json.dumps(float(one.seed))) == one.seed

    def test_repr_shows_all_options(self) -> None:
        assert repr(items([1, 2])).startswith("<aioqueue.inputs.items of 2, seed=")
        assert (
            repr(numbers(9, 2, True, 7, (1, 3), name="n"))
            == "<aioqueue.inputs.n of 9, epochs=2, shuffled, seed=7, shard 1 of 3>"
        )

    async def test_items_in_memory_are_taken_without_waiting(self, task_world: TaskWorld) -> None:
        source = items([1, 2, 3], 1)
        assert [item async for item in source] == [1, 2, 3]
        assert [entry.index async for entry in source._aentries()] == [0, 1, 2]
        async for item in source:
            assert item == 1
            break
        gc.collect()  # what was left is dropped without a warning

    async def test_what_blocks_is_read_ahead(self, task_world: TaskWorld) -> None:
        source = WaitedForLetters("abc")
        assert [item async for item in source] == ["a", "b", "c"]
        assert [entry.index async for entry in source._aentries()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sequence": iter([1])}, "sequence: got .* list"),
        ({"sequence": {1: 2}}, "sequence"),
        ({"sequence": {1, 2}}, "sequence"),
        ({"sequence": "abc"}, "sequence: got 'abc'"),
        ({"sequence": 5}, "sequence"),
        ({"epochs": -1}, "epochs: got -1"),
        ({"epochs": 1.5}, "epochs"),
        ({"epochs": True}, "epochs"),
        ({"shuffle": 1}, "shuffle: got 1"),
        ({"drop_remainder": None}, "drop_remainder"),
        ({"seed": -1}, "seed: got -1"),
        ({"seed": 2**64}, "seed"),
        ({"seed": "7"}, "seed"),
        ({"seed": True}, "seed"),
        ({"shard": (2, 2)}, r"shard: got \(2, 2\)"),
        ({"shard": (-1, 2)}, "shard"),
        ({"shard": 3}, "shard"),
        ({"shard": (0, 1, 2)}, "shard"),
        ({"shard": (0.0, 2)}, "shard"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        items(**{"sequence": [1, 2], **arguments})


@pytest.mark.parametrize("limit", [-1, 2**63, 1.0, None, True])
def test_wrong_limits_are_refused(limit: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="limit: got"):
        numbers(limit)


def test_numpy_ints_are_ints() -> None:
    source = numbers(np.int64(4), np.int32(1), True, np.uint8(7), (np.int64(0), np.int64(2)))  # type: ignore[arg-type]
    assert list(source) == list(numbers(4, 1, True, 7, (0, 2)))
    assert type(source.seed) is int


class Series:
    """As those of pandas: ``[...]`` goes by label."""

    def __init__(self, by_label: dict[int, Any]) -> None:
        self.by_label = by_label
        self.iloc = list(by_label.values())

    def __len__(self) -> int:
        return len(self.iloc)

    def __getitem__(self, label: int) -> Any:
        return self.by_label[label]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.iloc, dtype)


class Frame:
    """As a data frame of pandas: ``for`` and ``[...]`` go through columns, ``len`` counts rows."""

    def __init__(self, columns: list[str], series: Series) -> None:
        self.columns = columns
        self.series = series
        self.iloc = series.iloc

    def __len__(self) -> int:
        return len(self.series)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __getitem__(self, name: str) -> Series:
        return dict.fromkeys(self.columns, self.series)[name]


class TestPandas:
    series = Series({2: 1.5, 0: 2.5, 1: 3.5})

    def test_a_series_is_read_by_position(self) -> None:
        assert list(items(self.series)) == [1.5, 2.5, 3.5]
        assert sorted(items(self.series, shuffle=True, seed=1)) == [1.5, 2.5, 3.5]
        assert list(arrays(self.series)) == [1.5, 2.5, 3.5]

    def test_rows_of_a_frame_are_dicts(self) -> None:
        rows = list(arrays(Frame(["x", "y"], self.series)))
        assert rows == [{"x": value, "y": value} for value in (1.5, 2.5, 3.5)]
        with pytest.raises(InvalidArgumentError, match=r"tensors: .*\['x', 'x'\]; .*different"):
            arrays(Frame(["x", "x"], self.series))

    @pytest.mark.parametrize("make", [items, from_iterable])
    def test_of_a_frame_the_items_are_unknown(self, make: Any) -> None:
        expected = r'arrays\(frame\), or items\(frame.to_dict\("records"\)\)'
        with pytest.raises(InvalidArgumentError, match=f"got a Frame, .*{expected}"):
            make(Frame(["x"], self.series))


class TestArrow:
    """Its tables go through columns, too: with as many as rows, nobody would notice."""

    def test_rows_of_a_table_are_dicts(self) -> None:
        pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        table = pa.table({"x": [1, 2], "y": [1.5, 2.5]})
        for one in (table, *table.to_batches()):
            assert list(arrays(one)) == [{"x": 1, "y": 1.5}, {"x": 2, "y": 2.5}]
            for make in (items, from_iterable):
                with pytest.raises(InvalidArgumentError, match=r"items\(frame.to_pylist\(\)\)"):
                    make(one)

    def test_rows_of_an_array_are_its_scalars(self) -> None:
        pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        column = pa.array([1, 2])
        assert list(from_iterable([{"x": column}]).unbatch()) == [{"x": one} for one in column]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: items(Series),  # type: ignore[arg-type]
            r"sequence: got the class Series; .*: items\(Series\(...\)\)",
        ),
        (lambda: arrays([1], [2]), r"epochs: got \[2\]; .* arrays\(\(x, y\)\)"),  # type: ignore[call-overload]
        (
            lambda: from_iterable(Series({0: 1})),  # type: ignore[call-overload]
            r"iterable: got a Series, which has len\(\) and \[index\]; expected items\(dataset\)",
        ),
    ],
)
def test_what_is_meant_is_named(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()
