"""Journals: which items were in each batch, also after crashes."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.inputs import (
    Origin,
    Pipeline,
    Position,
    files,
    items,
    merge_positions,
    mix,
    numbers,
    read_journal,
    read_lines,
    read_records,
)
from aioqueue.items.journal import JournalWriter
from tests.kit.going import plain
from tests.kit.resuming import How, noisy, ordered_shapes, several, through_json, write_files
from tests.kit.worlds import TaskWorld

EPOCHS = 2


def continued(
    pipeline: Any, path: Path, most: int | None = None, state: Any = None
) -> tuple[list[Any], Any]:
    """Take so many batches; returns them and the state behind them."""
    taken: list[Any] = []
    with pipeline.epochs(EPOCHS, resume=state, journal=path) as epochs:
        for epoch in epochs:
            for batch in epoch:
                taken.append((epoch.number, plain(batch)))
                if len(taken) == most:
                    return taken, through_json(epochs.state_dict())
        return taken, through_json(epochs.state_dict())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("journals"))


def numbers_in(value: Any) -> list[int]:
    """The items that are in a batch of these shapes: each function keeps them first."""
    while isinstance(value, tuple):
        value = value[0]
    return list(np.ravel(value))


SHAPES = [
    "source alone",
    "batches",
    "prepare",
    "shuffle before",
    "shuffle after",
    "shuffle larger than an epoch",
    "generators, shuffled",
    "two in a row",
    "three in a row",
    "skips, shuffled",
    "left out",
    "filter",
    "take, shuffled",
    "prefetch",
    "batches of batches",
    "unbatch",
    "shuffled batches",
    "across epochs",
    "one rank",
    "a padded rank that skips",
]


class TestWhatIsNoted:
    @pytest.mark.parametrize("name", SHAPES)
    def test_the_items_of_each_batch(self, name: str, folder: Path, tmp_path: Path) -> None:
        path = tmp_path / "journal"
        taken, _ = continued(ordered_shapes(folder)[name](How()), path)
        journal = read_journal(path)
        assert len(journal) == len(taken)
        for number, (epoch, batch) in enumerate(taken):
            entry = journal[number]
            assert (entry.batch, entry.epoch) == (number, epoch)
            assert entry.indices.tolist() == numbers_in(batch)
            assert "across" in name or {one.epoch for one in entry.items} == {epoch}
        assert [one.batch for one in journal] == list(range(len(taken)))

    @pytest.mark.parametrize("name", ["buckets", "buckets of tokens", "packing", "packing pieces"])
    def test_sequences(self, name: str, folder: Path, tmp_path: Path) -> None:
        path = tmp_path / "journal"
        taken, _ = continued(ordered_shapes(folder)[name](How()), path)
        for (_, batch), entry in zip(taken, read_journal(path), strict=True):
            found = set(np.ravel(batch[1] if "buckets" in name else batch[0]))
            named = set(entry.indices.tolist())
            assert found - {0} == named - {0}
            if "buckets" in name:
                assert len(entry.items) == len(batch[0])

    @pytest.mark.slow(every=30)
    @pytest.mark.parametrize("name", ordered_shapes(Path()))
    def test_every_shape_after_crashes(self, name: str, folder: Path, tmp_path: Path) -> None:
        """The journal of a run that was left and resumed is that of one that was not."""
        shape = ordered_shapes(folder)[name]
        whole, _ = continued(shape(How()), tmp_path / "whole")
        path = tmp_path / "journal"
        _, state = continued(shape(How(2)), path, len(whole) // 3)
        continued(shape(How(3)), path, 3, state)  # which are lost, and come again
        _, state = continued(shape(How(1)), path, 2, state)
        continued(shape(How(4)), path, None, state)
        assert list(read_journal(path)) == list(read_journal(tmp_path / "whole"))

    def test_mixtures_record_their_sources(self, tmp_path: Path) -> None:
        path = tmp_path / "journal"
        others = numbers(40, seed=2).prepare(noisy)
        continued(numbers(30, seed=1).prepare(several).mix(others).shuffle(7).batch(5), path)
        found = Counter(one for entry in read_journal(path) for one in entry.items)
        expected = Counter(Origin(1, epoch, n) for epoch in range(EPOCHS) for n in range(40))
        expected.update({Origin(0, e, n): n % 4 for e in range(EPOCHS) for n in range(30) if n % 4})
        assert found == expected

    @pytest.mark.parametrize("ordered", [True, False])
    def test_ranks(self, ordered: bool, tmp_path: Path) -> None:
        """The same that tells which items of a rank were delivered, names them."""
        for rank in range(3):
            pipeline = (
                numbers(50, shuffle=True, seed=1)
                .prepare(several, workers=3, ordered=ordered)
                .shuffle(9)
                .batch(4)
                .shard(rank, 3, uneven="allow")
            )
            path = tmp_path / f"{rank}"
            taken, state = continued(pipeline, path, 5)
            taken += continued(pipeline, path, None, state)[0]
            entries = list(read_journal(path))
            assert [one.indices.tolist() for one in entries] == [numbers_in(b) for _, b in taken]
            assert [one.epoch for one in entries] == [epoch for epoch, _ in taken]
            assert [one.batch for one in entries] == [*range(len(taken))]
            first = [one.place for one in entries if not one.epoch]
            assert first == [*range(len(first))]

    def test_copies_that_make_ranks_equal(self, tmp_path: Path) -> None:
        pipeline = (
            numbers(20, shuffle=True, seed=1)
            .prepare(lambda n: n if n % 3 else 1 // 0, on_error="skip")
            .batch(3)
            .shard(0, 2)
        )
        taken, _ = continued(pipeline, tmp_path / "journal")
        found = read_journal(tmp_path / "journal")
        assert [one.indices.tolist() for one in found] == [numbers_in(b) for _, b in taken]
        assert sum(len(one.items) for one in found) == 10 * EPOCHS

    def test_examples_that_are_made_of_a_batch_have_all_its_items(self, tmp_path: Path) -> None:
        path = tmp_path / "journal"
        pipeline = numbers(12).batch(4).flat(lambda batch: [int(batch[0]), int(batch[1])])
        taken, _ = continued(pipeline, path)
        assert len(taken) == 6 * EPOCHS
        found = [one.indices.tolist() for one in read_journal(path)][:6]
        assert found == [[0, 1, 2, 3]] * 2 + [[4, 5, 6, 7]] * 2 + [[8, 9, 10, 11]] * 2

    def test_ranks_whose_number_changes(self, tmp_path: Path) -> None:
        """Batches go on in number, in new files; in all of them each item is there once."""

        def make(rank: int, ranks: int) -> Any:
            one = numbers(60, shuffle=True, seed=1).prepare(noisy).shuffle(9).batch(2)
            return one.shard(rank, ranks, uneven="allow")

        path = tmp_path / "0"
        states = [continued(make(rank, 3), tmp_path / f"{rank}", 4)[1] for rank in range(3)]
        found = [one for rank in range(3) for one in read_journal(tmp_path / f"{rank}")]
        position = through_json(merge_positions(states))
        for rank in range(2):
            continued(make(rank, 2), tmp_path / f"{rank}", None, position)
            journal = read_journal(tmp_path / f"{rank}")
            assert journal.first == 4
            assert journal[4].place == 4
            found += journal
        assert len(read_journal(tmp_path / "0.1")) == 4
        assert path.exists()
        items = Counter(one for entry in found for one in entry.items)
        assert items == Counter(Origin(0, epoch, n) for epoch in range(EPOCHS) for n in range(60))

    @pytest.mark.slow
    def test_with_processes(self, tmp_path: Path) -> None:
        path = tmp_path / "journal"
        taken, _ = continued(
            numbers(20, seed=1).prepare(several, where="process", workers=1).batch(4), path
        )
        assert [entry.indices.tolist() for entry in read_journal(path)] == [
            numbers_in(batch) for _, batch in taken
        ]

    async def test_for_tasks(self, task_world: TaskWorld, tmp_path: Path) -> None:
        pipeline = numbers(50, shuffle=True, seed=3).prepare(lambda n: n).shuffle(8).batch(4)
        taken: list[Any] = []
        async with pipeline.epochs(EPOCHS, journal=tmp_path / "journal") as epochs:
            async for epoch in epochs:
                taken += [batch.tolist() async for batch in epoch]
        found = read_journal(tmp_path / "journal")
        assert [entry.indices.tolist() for entry in found] == taken

    def test_batches_that_are_left_out_are_not_in_it(self, tmp_path: Path) -> None:
        pipeline, path = numbers(60).batch(4), tmp_path / "journal"
        _, state = continued(pipeline, path, 5)
        taken, _ = continued(pipeline, path, 2, Position(state).skip(batches=3))
        journal = read_journal(path)
        assert [entry.indices.tolist() for entry in journal][5:] == [one for _, one in taken]
        assert [entry.place for entry in journal] == [0, 1, 2, 3, 4, 8, 9]
        assert len(journal) == 7


class TestTheFile:
    def written(self, path: Path, count: int = 10) -> bytes:
        writer = JournalWriter(path, "run", 0)
        for batch in range(count):
            writer.add(batch, 0, batch, [Origin(0, 0, 7 * n + batch) for n in range(5)])
        return path.read_bytes()

    @pytest.mark.slow
    def test_it_is_small(self, tmp_path: Path) -> None:
        path = tmp_path / "journal"
        continued(numbers(10**6, shuffle=True, seed=1).take(64_000).batch(128), path)
        size, count = path.stat().st_size, 2 * 64_000
        assert 3 * count <= size <= 4.4 * count

    def test_a_torn_end(self, tmp_path: Path) -> None:
        path = tmp_path / "journal"
        data = self.written(path)
        length = (len(data) - len(self.written(tmp_path / "other", 0))) // 10
        for cut in range(1, length):
            path.write_bytes(data[:-cut])
            journal = read_journal(path)
            assert len(journal) == 9
            assert journal.is_torn
            assert journal.damage is None
        path.write_bytes(data[:-5] + bytes(5))
        assert read_journal(path).is_torn
        path.write_bytes(data + bytes(1000))  # whose bytes never came to the disk
        journal = read_journal(path)
        assert journal.is_torn
        assert len(journal) == 10
        # Who goes on with it cuts that off.
        JournalWriter(path, "run", 10).add(10, 0, 10, [Origin(0, 0, 3)])
        assert not read_journal(path).is_torn
        assert read_journal(path)[10].items == (Origin(0, 0, 3),)

    def test_every_bit_flipped(self, tmp_path: Path) -> None:
        path = tmp_path / "journal"
        start = len(self.written(tmp_path / "other", 0))
        data = self.written(path, 3)
        whole = list(read_journal(path))
        for bit in range(8 * start, 8 * len(data)):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            journal = read_journal(path)
            found = list(journal)
            assert found == whole[: len(found)]
            assert len(found) < 3
            assert journal.damage is not None or (journal.is_torn and len(found) == 2)

    def test_no_journal(self, tmp_path: Path) -> None:
        path = tmp_path / "journal"
        for content in (b"", b"text\n", b"aioqueue journal 1\n", b"aioqueue journal 1\n{}\n"):
            path.write_bytes(content)
            with pytest.raises(DataLossError, match="no journal"):
                read_journal(path)
        path.write_bytes(b"mine\n")
        with pytest.raises(InvalidArgumentError, match="a new file"):
            continued(numbers(9).batch(2), path)
        assert path.read_bytes() == b"mine\n"
        with pytest.raises(InvalidArgumentError, match="cannot be written"):
            continued(numbers(9).batch(2), tmp_path / "none" / "journal")

    def test_another_run_writes_over_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "journal"
        for size in (9, 12, 15):
            continued(numbers(size).batch(3), path)
        found = [tmp_path / "journal.1", tmp_path / "journal.2", path]
        assert [len(read_journal(one)) for one in found] == [6, 8, 10]

    def test_a_damaged_one_is_put_aside(self, tmp_path: Path) -> None:
        path, pipeline = tmp_path / "journal", numbers(30).batch(3)
        _, state = continued(pipeline, path, 10)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        continued(pipeline, path, None, state)
        assert read_journal(tmp_path / "journal.1").damage is not None
        journal = read_journal(path)
        assert (journal.first, len(journal)) == (10, 10)
        with pytest.raises(IndexError, match="batches 10 to 19"):
            journal[9]

    @pytest.mark.parametrize(
        "indices", [[], [0], [2**63 - 1, 0], [2**64, 5, 2**127], [5, 5, 5], [300, 2, 70_000]]
    )
    def test_any_indices(self, indices: list[int], tmp_path: Path) -> None:
        origins = tuple(Origin(at % 3, at + 1, index) for at, index in enumerate(indices))
        JournalWriter(tmp_path / "journal", "run", 0).add(0, 1, 0, origins)
        assert read_journal(tmp_path / "journal")[0].items == origins


class TestWhereItemsAre:
    def test_what_sources_know(self, folder: Path, tmp_path: Path) -> None:
        records = tmp_path / "records.bin"
        records.write_bytes(bytes(50))
        lines = read_lines(files(str(folder / "*.txt")))
        mixed: list[Any] = [numbers(9), lines]
        binary = read_records(str(records), 8, header_bytes=2)
        found: list[tuple[Any, int, str]] = [
            (items(list("abc"), seed=1), 2, "items[2]"),
            (lines, (2 << 40) + 5, f"{folder / '2.txt'}, record 5"),
            (binary, 3, f"{records}, record 3, at byte 26"),
            (mix(mixed), 2 * ((3 << 40) + 1) + 1, f"{folder / '3.txt'}, record 1"),
            (lines.epoch(3), 4, f"{folder / '0.txt'}, record 4"),
        ]
        for source, index, reported in found:
            assert source.locate(index) == reported
            assert Pipeline(source).locate(Origin(0, 0, index)) == reported

    def test_of_what_was_mixed_in(self) -> None:
        pipeline = numbers(9).mix(items(list("abc"), name="letters")).batch(2)
        assert pipeline.locate(Origin(1, 0, 2)) == "letters[2]"
        for origin in (Origin(2, 0, 0), Origin(1, 0, 3)):
            with pytest.raises(InvalidArgumentError, match="expected"):
                pipeline.locate(origin)

    def test_a_line_of_a_batch_is_found(self, folder: Path, tmp_path: Path) -> None:
        source = read_lines(files(str(folder / "*.txt"), shuffle=True, seed=1))
        pipeline = source.prepare(str.strip).shuffle(9).batch(4)
        taken, _ = continued(pipeline, tmp_path / "journal")
        for (_, batch), entry in zip(taken, read_journal(tmp_path / "journal"), strict=True):
            for line, item in zip(batch, entry.items, strict=True):
                path, number = pipeline.locate(item).split(", record ")
                assert Path(path).read_text().splitlines()[int(number)] == line


class TestTheCommand:
    def reported(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "aioqueue", "journal", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    @pytest.mark.slow
    def test_it_prints(self, tmp_path: Path) -> None:
        path = tmp_path / "journal"
        continued(numbers(9).mix(numbers(2, seed=1), weights=[1, 9], seed=0).batch(3), path)
        found = self.reported(path, 0, 5)
        assert found.returncode == 0, found.stderr
        assert found.stdout.startswith("batch 0: number 0 of epoch 0\n  item ")
        assert "batch 5: number 1 of epoch 1\n" in found.stdout
        assert "of source 1" in found.stdout
        assert self.reported(path).stdout == f"{path}: batches 0 to 7\n"
        missing = self.reported(path, 99)
        assert missing.returncode == 1
        assert "batches 0 to 7" in missing.stderr
        path.write_bytes(b"no")
        assert self.reported(path).returncode == 1

    @pytest.mark.slow
    def test_no_command(self) -> None:
        command = [sys.executable, "-m", "aioqueue"]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "journal" in found.stdout
        wrong = subprocess.run([*command, "other"], capture_output=True, text=True, check=False)
        assert wrong.returncode == 2
