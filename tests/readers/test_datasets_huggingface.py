"""Datasets of Hugging Face, with the real library: rows, orders, positions."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import huggingface_dataset
from aioqueue.sources.kinds import iterables

datasets = pytest.importorskip("datasets", reason="the library datasets is not installed")

COUNT = 150


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The library warns of shuffle buffers whenever a state is loaded, also of one row."""
    log = logging.getLogger("datasets")
    level = log.level
    log.setLevel(logging.ERROR)
    yield
    log.setLevel(level)


def rows_in_memory() -> Any:
    return datasets.Dataset.from_dict(
        {"a": list(range(COUNT)), "text": [f"text {n}" for n in range(COUNT)]}
    )


def generated(shards: list[int]) -> Iterator[dict[str, Any]]:
    for shard in shards:
        for number in range(15):
            yield {"a": shard * 100 + number, "text": f"{shard} {number}"}


def doubled(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {"a": [a for a in batch["a"] for _ in range(2)], "text": batch["text"] * 2}


def stream() -> Any:
    return datasets.IterableDataset.from_generator(generated, gen_kwargs={"shards": list(range(6))})


STREAMS: dict[str, Callable[[], Any]] = {
    "generator": stream,
    "arrow": lambda: rows_in_memory().to_iterable_dataset(num_shards=4),
    "map": lambda: stream().map(lambda row: {"b": 2 * row["a"]}),
    "batched map": lambda: (
        rows_in_memory().to_iterable_dataset(num_shards=3).map(doubled, batched=True, batch_size=7)
    ),
    "filter": lambda: stream().filter(lambda row: row["a"] % 3 == 0),
    "skip and take": lambda: stream().skip(7).take(50),
    "shuffled files": lambda: stream().shuffle(seed=3, buffer_size=1),
    "shuffled arrow": lambda: (
        rows_in_memory().to_iterable_dataset(num_shards=5).shuffle(seed=3, buffer_size=1)
    ),
    "interleaved": lambda: datasets.interleave_datasets(
        [stream(), rows_in_memory().to_iterable_dataset()], probabilities=[0.3, 0.7], seed=3
    ),
    "concatenated": lambda: datasets.concatenate_datasets(
        [stream(), rows_in_memory().to_iterable_dataset()]
    ),
    "arrays": lambda: rows_in_memory().to_iterable_dataset(num_shards=3).with_format("numpy"),
}


class TestMapStyle:
    def test_is_read_by_index(self) -> None:
        source: Any = huggingface_dataset(rows_in_memory())
        assert len(source) == COUNT
        assert list(source) == [{"a": n, "text": f"text {n}"} for n in range(COUNT)]

        async def main() -> list[Any]:
            return [row async for row in source]

        assert asyncio.run(main()) == list(source)

    def test_has_the_orders_and_shards_of_items(self) -> None:
        source = huggingface_dataset(rows_in_memory(), 2, shuffle=True, seed=7)
        order = [row["a"] for row in source]
        assert sorted(order[:COUNT]) == sorted(order[COUNT:]) == list(range(COUNT))
        assert order[:COUNT] != order[COUNT:]
        shards = [
            huggingface_dataset(rows_in_memory(), 1, shuffle=True, seed=7, shard=(n, 4))
            for n in range(4)
        ]
        assert [[row["a"] for row in shard] for shard in shards] == [
            order[n:COUNT:4] for n in range(4)
        ]
        train, valid = source.split([0.8, 0.2])
        assert not {row["a"] for row in train} & {row["a"] for row in valid}

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_resumes_at_any_row(self, shuffle: bool) -> None:
        first = huggingface_dataset(rows_in_memory(), 2, shuffle, 7)
        rows = list(first)
        for number, placed in enumerate(islice(first.placed(), 0, None, 23)):
            position = json.loads(json.dumps(first.position(placed.place)))
            second = huggingface_dataset(rows_in_memory(), 2, shuffle, 7)
            assert list(second.after(position)) == rows[23 * number + 1 :]

    def test_a_pipeline_resumes_exactly(self) -> None:
        def make() -> Any:
            source = huggingface_dataset(rows_in_memory(), shuffle=True, seed=7)
            return source.prepare(lambda row: row["a"], workers=2).shuffle(20, seed=1).batch(8)

        whole = [batch.tolist() for epoch in make().epochs(2) for batch in epoch]
        for stop in (1, 7, 19, 25):
            with make().epochs(2) as epochs:
                batches = (batch.tolist() for epoch in epochs for batch in epoch)
                assert list(islice(batches, stop)) == whole[:stop]
                state = json.loads(json.dumps(epochs.state_dict()))
            rest = [batch.tolist() for epoch in make().epochs(2, resume=state) for batch in epoch]
            assert rest == whole[stop:]

    def test_other_rows_are_refused(self) -> None:
        source = huggingface_dataset(rows_in_memory(), 1)
        *_, last = islice(source.placed(), 5)
        position = source.position(last.place)
        other = rows_in_memory().map(lambda row: {"a": row["a"] + 1})
        with pytest.raises(InvalidArgumentError, match=r"source\.items"):
            huggingface_dataset(other, 1).after(position)
        renamed = rows_in_memory().rename_column("a", "b")
        with pytest.raises(InvalidArgumentError, match=r"source\.columns"):
            huggingface_dataset(renamed, 1).after(position)

    def test_formats_and_transforms(self) -> None:
        arrays = list(huggingface_dataset(rows_in_memory().with_format("numpy")))
        assert [int(row["a"]) for row in arrays] == list(range(COUNT))
        assert arrays[0]["a"].dtype == "int64"
        made = rows_in_memory().with_transform(lambda batch: {"b": [a + 1 for a in batch["a"]]})
        assert [row["b"] for row in huggingface_dataset(made)] == list(range(1, COUNT + 1))
        assert len(list(huggingface_dataset(rows_in_memory().select(range(0))))) == 0

    def test_a_row_that_fails_comes_after_those_before_it(self) -> None:
        def transform(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
            if 100 in batch["a"]:
                raise ValueError("row 100")
            return batch

        found = []
        with pytest.raises(ValueError, match="row 100"):
            for row in huggingface_dataset(rows_in_memory().with_transform(transform)):
                found.append(row["a"])  # noqa: PERF401  # what was read before the failure
        assert found == list(range(100))


class TestStreaming:
    @pytest.fixture(autouse=True)
    def states_at_any_row(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(iterables, "_EVERY", 3)
        monkeypatch.setattr(iterables, "_SHARE", 0)

    @pytest.mark.slow(but=("generator", "batched"))
    @pytest.mark.parametrize("name", STREAMS)
    @pytest.mark.parametrize("epoch", [0, 1])
    def test_resumes_at_any_row(self, name: str, epoch: int) -> None:
        """From states that were JSON meanwhile, in another dataset that was made alike."""
        draw = random.Random(epoch)
        first = huggingface_dataset(STREAMS[name](), seed=1)
        rows = [repr(entry.value) for entry in first.epoch_entries(epoch)]
        placed = list(first._scan(epoch, None).placed())
        assert [repr(one.entry.value) for one in placed] == rows
        assert len(rows) >= 30
        for number in draw.sample(range(len(placed)), 8):
            place = json.loads(json.dumps(placed[number].place))
            second = huggingface_dataset(STREAMS[name](), seed=1)
            rest = [repr(one.entry.value) for one in second._scan(epoch, place).placed()]
            assert rest == rows[number + 1 :]
            assert second.fingerprint() == first.fingerprint()

    def test_a_pipeline_resumes_exactly(self) -> None:
        def make() -> Any:
            source = huggingface_dataset(stream().shuffle(seed=2, buffer_size=1), seed=7)
            return source.prepare(lambda row: row["a"], workers=2).shuffle(20).batch(8)

        whole = [batch.tolist() for epoch in make().epochs(2) for batch in epoch]
        half = len(whole) // 2
        first, second = (list(chain(*part)) for part in (whole[:half], whole[half:]))
        assert sorted(first) == sorted(second)
        assert first != second
        for stop in (1, 7, 13, 19):
            with make().epochs(2) as epochs:
                batches = (batch.tolist() for epoch in epochs for batch in epoch)
                assert list(islice(batches, stop)) == whole[:stop]
                state = json.loads(json.dumps(epochs.state_dict()))
            rest = [batch.tolist() for epoch in make().epochs(2, resume=state) for batch in epoch]
            assert rest == whole[stop:]

    def test_for_coroutines(self) -> None:
        async def main() -> list[Any]:
            return [row["a"] async for row in huggingface_dataset(stream())]

        assert asyncio.run(main()) == [row["a"] for row in stream()]

    def test_your_dataset_stays_as_it_is(self) -> None:
        dataset = stream()
        source = huggingface_dataset(dataset)
        runs = [source.epoch_entries(epoch) for epoch in (0, 0, 2)]
        for found in zip(*runs, strict=True):
            assert found[0].value == found[1].value
        assert dataset.epoch == 0

    def test_a_shuffle_buffer_has_no_position(self) -> None:
        shuffled = stream().shuffle(seed=3, buffer_size=20)
        source = huggingface_dataset(shuffled, seed=1)
        assert sorted(row["a"] for row in source) == sorted(row["a"] for row in stream())
        asked: list[Callable[[], object]] = [
            source.position,
            source.batch(2).epochs(1).state_dict,
        ]
        for refused in asked:
            with pytest.raises(InvalidArgumentError, match=r"with a shuffle buffer.*buffer_size=1"):
                refused()
        replaying = huggingface_dataset(shuffled, seed=1, replay=True)
        rows = list(replaying)
        for number, placed in enumerate(list(replaying.placed()), 1):
            if number % 20 == 0:
                assert list(replaying.after(replaying.position(placed.place))) == rows[number:]

    def test_states_of_earlier_versions_are_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """They lose rows: those of 4.0 for a batched map, those of 5.0 after skip()."""
        monkeypatch.setattr(datasets, "__version__", "4.8.5")
        with pytest.raises(InvalidArgumentError, match=r"of datasets 4\.8\.5, whose states lose"):
            huggingface_dataset(stream()).position()
        assert len(list(huggingface_dataset(stream(), replay=True).placed())) == 90
        assert huggingface_dataset(rows_in_memory()).position()

    def test_a_seed_that_was_drawn_is_refused_in_another_process(self) -> None:
        position = huggingface_dataset(stream().shuffle(buffer_size=1), seed=1).position()
        other = huggingface_dataset(stream().shuffle(buffer_size=1), seed=1)
        with pytest.raises(InvalidArgumentError, match=r"source\.seeds"):
            other.after(position)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (lambda: [1], {}, "dataset: got a list; expected a datasets.Dataset or"),
        (lambda: "squad", {}, r"got a str; .*: datasets\.load_dataset\('squad', split='train'\)"),
        (
            lambda: datasets.DatasetDict(train=rows_in_memory()),
            {},
            "dataset: got a DatasetDict; .* choose one of its splits: 'train'",
        ),
        (stream, {"shuffle": True}, r"shuffle: given .*dataset\.shuffle\(seed"),
        (stream, {"epochs": 2}, r"epochs: given .*\.epochs\(count\)"),
        (stream, {"shard": (0, 2)}, r"shard: given .*\.shard\(rank"),
        (rows_in_memory, {"replay": True}, "replay: got True for a map-style dataset"),
        (rows_in_memory, {"epochs": -1}, "epochs: got -1"),
    ],
)
def test_wrong_arguments_are_named(given: Any, options: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        huggingface_dataset(given(), **options)
