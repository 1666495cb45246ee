"""`shard(..., by="file")`: ranks read their own files only, and every record comes once."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="runs are drawn by hypothesis, which is not installed")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioqueue import InvalidArgumentError
from aioqueue.inputs import (
    Pipeline,
    files,
    from_iterable,
    items,
    merge_positions,
    numbers,
    read_json_lines,
    read_lines,
    read_tfrecords,
)
from aioqueue.sources.file_parts import FileSegment, left_in_files, part_number

SIZES = [7, 0, 12, 3, 1, 20, 0, 5, 9]
RECORDS = [f"{file}:{record}" for file, size in enumerate(SIZES) for record in range(size)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("files")
    for file, size in enumerate(SIZES):
        lines = "".join(f"{file}:{record}\n" for record in range(size))
        (found / f"{file}.txt.gz").write_bytes(gzip.compress(lines.encode()))
    return found


def paths_in(folder: Path) -> list[str]:
    return [str(path) for path in sorted(folder.glob("*.gz"))]


def plain(folder: Path) -> Pipeline[Any]:
    return read_lines(paths_in(folder), seed=1).prepare(str, workers=2)


def shuffled(folder: Path) -> Pipeline[Any]:
    paths = files(str(folder / "*.gz"), shuffle=True, seed=3)
    return read_lines(paths).shuffle(5).prepare(str)


def unordered(folder: Path) -> Pipeline[Any]:
    return read_lines(paths_in(folder), seed=1).prepare(str, workers=3, ordered=False)


def filtered(folder: Path) -> Pipeline[Any]:
    return read_lines(paths_in(folder), seed=1).filter(lambda line: not line.endswith("3"))


def doubled(folder: Path) -> Pipeline[Any]:
    return read_lines(paths_in(folder), seed=1).flat(lambda line: [line + "a", line + "b"])


def mixed(folder: Path) -> Pipeline[Any]:
    paths = paths_in(folder)
    other = read_lines(paths[5:], seed=2)
    return read_lines(paths[:5], seed=1).mix(other, weights=[1, 2], seed=3)


SHAPES: dict[str, tuple[Callable[[Path], Pipeline[Any]], list[str]]] = {
    "plain": (plain, RECORDS),
    "shuffled": (shuffled, RECORDS),
    "unordered": (unordered, RECORDS),
    "filtered": (filtered, [one for one in RECORDS if not one.endswith("3")]),
    "mixed": (mixed, RECORDS),
    "flat": (doubled, [one + part for one in RECORDS for part in "ab"]),
    "source": (lambda folder: read_lines(paths_in(folder), seed=1)._pipeline(), RECORDS),
}


def by_file(pipeline: Pipeline[Any], rank: int, ranks: int) -> Pipeline[Any]:
    return pipeline.shard(rank, ranks, uneven="allow", by="file")


class TestParts:
    def test_each_rank_reads_its_own_files(self, folder: Path) -> None:
        for ranks in (1, 2, 4, 20):
            parts = [list(by_file(plain(folder), rank, ranks)) for rank in range(ranks)]
            for rank, part in enumerate(parts):
                assert {one.split(":")[0] for one in part} <= set("012345678"[rank::ranks])
            assert sorted(one for part in parts for one in part) == sorted(RECORDS)

    def test_it_opens_no_others(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from aioqueue.readers import files as files_module
        from aioqueue.readers import reader

        opened = []
        original = files_module.open_for_reading

        def noting(name: str, *arguments: Any) -> Any:
            opened.append(Path(name).name)
            return original(name, *arguments)

        monkeypatch.setattr(reader, "open_for_reading", noting)
        list(by_file(plain(folder), 1, 3))
        assert opened == ["1.txt.gz", "4.txt.gz", "7.txt.gz"]

    def test_items_keep_their_indices_and_generators(self, folder: Path) -> None:
        def noisy(line: str, rng: np.random.Generator) -> tuple[str, float]:
            return line, float(rng.random())

        whole = dict(read_lines(paths_in(folder), seed=1).prepare(noisy))
        pipeline = read_lines(paths_in(folder), seed=1).prepare(noisy)
        parts = [dict(by_file(pipeline, rank, 2)) for rank in range(2)]
        assert parts[0] | parts[1] == whole

    def test_other_formats(self, tmp_path: Path) -> None:
        for number in range(3):
            path = tmp_path / f"{number}.jsonl"
            path.write_text("".join(json.dumps({"n": number}) + "\n" for _ in range(4)))
        found = read_json_lines(files(str(tmp_path / "*.jsonl")), seed=1)
        assert [one["n"] for one in by_file(found._pipeline(), 1, 2)] == [1] * 4

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            (lambda: numbers(4, seed=1), "by: got 'file' for .*, which does not read records"),
            (lambda: items(["ab"], seed=1), "by: got 'file' for "),
            (lambda: read_lines(["a", "b"], seed=1).interleave(2), "by: got 'file' for "),
            (lambda: read_lines(from_iterable(lambda: iter("ab"))), "number of files is not"),
            (lambda: read_tfrecords(iter(["a"])), "paths: got "),
        ],
    )
    def test_what_has_no_files(self, source: Any, message: str) -> None:
        with pytest.raises(InvalidArgumentError, match=message):
            source().shard(0, 2, uneven="allow", by="file")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"by": "file"}, "uneven: got 'pad' with by='file'; expected uneven='allow'"),
            ({"by": "shard"}, "by: got 'shard'; expected 'item' or 'file'"),
        ],
    )
    def test_wrong_options(self, folder: Path, options: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidArgumentError, match=f"^{message}"):
            plain(folder).shard(0, 2, **options)


FEW = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
HISTORIES = (
    st.sampled_from(sorted(SHAPES)),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 20)), min_size=1, max_size=4),
    st.integers(1, 5),
)
"""The shape, the numbers of ranks of each run and of its steps, and how many ranks end it."""


def check_continued(folder: Path, shape: str, runs: list[tuple[int, int]], last: int) -> None:
    make, expected = SHAPES[shape]
    found: list[str] = []
    resume = None
    for ranks, steps in runs:
        positions = []
        for rank in range(ranks):
            with by_file(make(folder), rank, ranks).epochs(1, resume=resume) as epochs:
                for epoch in epochs:
                    for _, one in zip(range(steps), epoch, strict=False):
                        found.append(one)
                    break
                positions.append(json.loads(json.dumps(epochs.state_dict())))
        resume = json.loads(json.dumps(merge_positions(positions, lockstep=False)))
    for rank in range(last):
        with by_file(make(folder), rank, last).epochs(1, resume=resume) as epochs:
            found += [one for epoch in epochs for one in epoch]
    assert Counter(found) == Counter(expected)


class TestResume:
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("ranks", [1, 2, 3])
    def test_a_killed_rank_continues(self, folder: Path, shape: str, ranks: int) -> None:
        make, expected = SHAPES[shape]
        found: list[str] = []
        for rank in range(ranks):
            mine = by_file(make(folder), rank, ranks)
            whole = list(mine)
            for stop in (0, 1, len(whole) // 2, len(whole) - 1, len(whole)):
                first: list[str] = []
                with mine.epochs(1) as epochs:
                    for epoch in epochs:
                        for _, one in zip(range(stop), epoch, strict=False):
                            first.append(one)
                        break
                    position = json.loads(json.dumps(epochs.state_dict()))
                with mine.epochs(1, resume=position) as epochs:
                    rest = [one for epoch in epochs for one in epoch]
                assert Counter(first + rest) == Counter(whole)
                if shape != "unordered":
                    assert first + rest == whole
            found += whole
        assert Counter(found) == Counter(expected)

    def test_coroutines_read_them_too(self, folder: Path) -> None:
        import asyncio

        async def main() -> list[str]:
            return [one async for one in by_file(shuffled(folder), 0, 2)]

        assert asyncio.run(main()) == list(by_file(shuffled(folder), 0, 2))

    @pytest.mark.slow
    @settings(FEW)
    @given(*HISTORIES)
    def test_other_numbers_of_ranks_continue_with_the_rest(
        self, folder: Path, shape: str, runs: list[tuple[int, int]], last: int
    ) -> None:
        check_continued(folder, shape, runs, last)

    @pytest.mark.slow
    @settings(FEW, max_examples=200)
    @given(*HISTORIES)
    def test_many_other_numbers_of_ranks_continue_with_the_rest(
        self, folder: Path, shape: str, runs: list[tuple[int, int]], last: int
    ) -> None:
        check_continued(folder, shape, runs, last)

    def test_ranks_may_be_in_different_epochs(self, folder: Path) -> None:
        positions, found = [], Counter[tuple[int, str]]()
        for rank in range(2):
            with by_file(plain(folder), rank, 2).epochs(steps=30) as epochs:
                for epoch in epochs:
                    for one in epoch:
                        found[epoch.number, one] += 1
                positions.append(epochs.state_dict())
        resume = merge_positions(positions)
        for rank in range(3):
            with by_file(plain(folder), rank, 3).epochs(3, resume=resume) as epochs:
                for epoch in epochs:
                    for one in epoch:
                        found[epoch.number, one] += 1
        assert found == Counter((epoch, one) for epoch in range(3) for one in RECORDS)

    def test_positions_of_the_other_way_are_refused(self, folder: Path) -> None:
        with by_file(plain(folder), 0, 2).epochs(1) as epochs:
            next(next(epochs))
            position = epochs.state_dict()
        with pytest.raises(InvalidArgumentError, match="by"):
            plain(folder).shard(0, 2, uneven="allow").epochs(1, resume=position)


class TestLeftInFiles:
    def test_nothing_was_read(self) -> None:
        assert left_in_files([], [], 0, {}, None) == ([], 0, {})
        assert left_in_files([], [], 0, {}, 3) == ([], 3, {})

    def test_the_last_file_may_have_more(self) -> None:
        segments = [FileSegment(0, 0, 0), FileSegment(7, 1, 0)]
        begun, upto, parts = left_in_files(segments, [3], 10, {}, None)
        assert (begun, upto) == ([0, 1], 2)
        assert parts == {
            0: {part_number(0, 3): None, part_number(4, 7): None},
            1: {part_number(0, 3): None},
        }
        assert left_in_files(segments, [3], 10, {}, 2) == ([0], 2, {0: parts[0]})

    def test_records_that_were_dropped_before(self) -> None:
        segments = [FileSegment(4, 2, 5), FileSegment(6, 2, 9)]
        begun, upto, parts = left_in_files(segments, [5], 8, {5: {0: None}}, None)
        assert (begun, upto) == ([2], 3)
        assert parts == {
            2: {
                part_number(0, 6): None,
                part_number(6, 7): {0: None},
                part_number(7, 11): None,
            }
        }
