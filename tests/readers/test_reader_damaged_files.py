"""Damaged files that are left out: what is sound before the damage comes; the file is listed."""

from __future__ import annotations

import asyncio
import gc
import gzip
import io
import json
import logging
import random
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.inputs import (
    Quarantined,
    TFRecordWriter,
    items,
    mix,
    numbers,
    read_csv,
    read_json_lines,
    read_lines,
    read_parquet,
    read_quarantine,
    read_records,
    read_tar,
    read_tfrecords,
    read_whole_files,
)
from aioqueue.readers import lines as reading

Make = Callable[..., Any]


def lines(path: Path, number: int, count: int) -> list[Any]:
    found = [f"{number} {n}" for n in range(count)]
    path.write_text("".join(f"{line}\n" for line in found))
    return found


def compressed_lines(path: Path, number: int, count: int) -> list[Any]:
    draw = random.Random(number)
    found = [f"{number} {draw.random()}" for _ in range(count)]
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in found).encode()))
    return found


def table(path: Path, number: int, count: int) -> list[Any]:
    path.write_text("".join(f"{number},{n}\n" for n in range(count)))
    return [(number, n) for n in range(count)]


def json_lines(path: Path, number: int, count: int) -> list[Any]:
    found = [{"file": number, "n": n} for n in range(count)]
    path.write_text("".join(f"{json.dumps(one)}\n" for one in found))
    return found


def fixed(path: Path, number: int, count: int) -> list[Any]:
    found = [bytes([number, n % 256]) for n in range(count)]
    path.write_bytes(b"".join(found))
    return found


def tfrecords(path: Path, number: int, count: int) -> list[Any]:
    found = [f"{number} {n}".encode() for n in range(count)]
    with TFRecordWriter(path) as writer:
        for record in found:
            writer.write(record)
    return found


def archive(path: Path, number: int, count: int) -> list[Any]:
    found = [(f"{number}-{n}.x", bytes(n % 7)) for n in range(count)]
    with tarfile.open(path, "w") as file:
        for name, data in found:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return found


def rows(path: Path, number: int, count: int) -> list[Any]:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    values = list(range(count))
    parquet.write_table(
        pa.table({"file": [number] * count, "n": values}),
        path,
        row_group_size=4,
        write_page_checksum=True,
    )
    return [{"file": number, "n": n} for n in values]


def cut_off(content: bytes) -> bytes:
    return content[: len(content) * 2 // 3]


def with_bad_line(content: bytes) -> bytes:
    all_lines = content.splitlines(keepends=True)
    return b"".join([*all_lines[:-3], b"\xff\n", *all_lines[-3:]])


def with_a_flipped_byte(content: bytes) -> bytes:
    at = len(content) // 2
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


def with_a_damaged_page(content: bytes) -> bytes:
    parquet = pytest.importorskip("pyarrow.parquet")
    group = parquet.ParquetFile(io.BytesIO(content)).metadata.row_group(2)
    at = group.column(1).data_page_offset + group.column(1).total_compressed_size - 1
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


CASES: dict[str, tuple[Make, Make, Callable[[bytes], bytes]]] = {
    "lines": (read_lines, lines, with_bad_line),
    "gzip": (
        lambda paths, **more: read_lines(paths, compression="gzip", **more),
        compressed_lines,
        cut_off,
    ),
    "csv": (partial(read_csv, dtypes=[int, int]), table, with_bad_line),
    "json": (read_json_lines, json_lines, with_bad_line),
    "records": (partial(read_records, record_bytes=2), fixed, lambda raw: raw[:-1]),
    "tfrecord": (read_tfrecords, tfrecords, with_a_flipped_byte),
    "tar": (partial(read_tar, grouped=False), archive, cut_off),
    "parquet": (read_parquet, rows, with_a_damaged_page),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Make, list[str], list[Any], str]:
    """A reader, three files, what they have without the damage, and which is damaged."""
    if request.param == "tfrecord":
        pytest.importorskip("google_crc32c")
    make, write, damage = CASES[request.param]
    paths = [tmp_path / f"file-{number}" for number in range(3)]
    whole = [write(path, number, 20) for number, path in enumerate(paths)]
    paths[1].write_bytes(damage(paths[1].read_bytes()))
    return make, list(map(str, paths)), whole, str(paths[1])


class TestDamage:
    def test_is_left_out_and_listed(self, case: Any, caplog: pytest.LogCaptureFixture) -> None:
        make, paths, whole, bad = case
        before = []
        with pytest.raises(DataLossError) as reported:
            for record in make(paths):
                before.append(record)  # noqa: PERF402  # what was read before the failure
        sound = before[len(whole[0]) :]
        assert before[: len(whole[0])] == whole[0]
        assert sound == whole[1][: len(sound)]
        assert len(sound) < len(whole[1])

        reader = make(paths, on_error="skip")
        expected = [*whole[0], *sound, *whole[2]]
        with caplog.at_level(logging.WARNING, "aioqueue"):
            assert list(reader) == expected
            assert list(reader) == expected
        (record,) = reader.quarantine
        assert (record.item, record.offset, record.epoch) == (bad, reported.value.offset, 0)
        assert record.index == (1 << 40) + len(sound)
        first_line = str(reported.value).splitlines()[0]
        assert record.error == f"aioqueue.DataLossError: {first_line}"
        assert first_line in record.traceback
        assert "traceback=" not in repr(record)
        (message,) = caplog.messages
        assert f"leaves out the rest of a damaged file: {first_line}" in message

    def test_a_run_continues_from_any_position(self, case: Any) -> None:
        make, paths, _, _ = case
        expected = list(make(paths, on_error="skip"))
        first = make(paths, on_error="skip")
        for number, placed in enumerate(list(first.placed()), 1):
            reader = make(paths, on_error="skip")
            rest = list(reader.after(first.position(placed.place)))
            assert rest == expected[number:]
        interleaved = make(paths, on_error="skip").interleave(2)
        mixed = list(interleaved)
        assert sorted(map(repr, mixed)) == sorted(map(repr, expected))
        for number, placed in enumerate(list(interleaved.placed()), 1):
            assert list(interleaved.after(interleaved.position(placed.place))) == mixed[number:]

    def test_for_coroutines(self, case: Any) -> None:
        make, paths, _, bad = case
        reader = make(paths, on_error="skip")

        async def main() -> list[Any]:
            return [record async for record in reader]

        assert asyncio.run(main()) == list(make(paths, on_error="skip"))
        assert [record.item for record in reader.quarantine] == [bad]

    def test_in_a_pipeline(self, case: Any) -> None:
        make, paths, _, bad = case
        reader = make(items(paths), on_error="skip")
        expected = list(make(paths, on_error="skip"))
        pipeline = reader.prepare(lambda record: record).batch(3, collate=list)
        with pipeline.epochs(2) as epochs:
            for epoch in epochs:
                assert [record for batch in epoch for record in batch] == expected
            assert [record.item for record in epochs.quarantine] == [bad]
        assert [record.item for record in reader.quarantine] == [bad]


@pytest.mark.parametrize(
    "derived",
    [
        lambda reader: reader.repeat(2),
        lambda reader: reader.interleave(2),
        lambda reader: reader.epoch(3),
        lambda reader: reader.split([0.5, 0.5])[1],
        lambda reader: mix([reader, numbers(3)]),
        lambda reader: numbers(3).batch(1).concat(reader.batch(1)),
    ],
)
def test_a_pipeline_lists_those_of_any_source_in_it(derived: Any, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"sound\n\xff\n")
    source = derived(read_lines(str(tmp_path / "a"), on_error="skip"))
    with source.prepare(str).epochs(1) as epochs:
        list(next(epochs))
        assert [record.offset for record in epochs.quarantine] == [6]


class TestQuarantine:
    @pytest.fixture
    def paths(self, tmp_path: Path) -> list[str]:
        for number in range(4):
            lines(tmp_path / f"{number}", number, 9)
        for number in (1, 3):
            path = tmp_path / f"{number}"
            path.write_bytes(with_bad_line(path.read_bytes()))
        return [str(tmp_path / f"{number}") for number in range(4)]

    def test_is_a_file_of_paths_to_read_again(self, paths: list[str], tmp_path: Path) -> None:
        file = tmp_path / "bad.jsonl"
        reader = read_lines(paths, on_error="skip", quarantine=file, seed=1)
        assert len(list(reader)) == 30
        fields = [json.loads(line) for line in file.read_text().splitlines()]
        assert [(one["item"], one["offset"]) for one in fields] == [(paths[1], 24), (paths[3], 24)]
        again = read_quarantine(file)
        assert list(again) == [paths[1], paths[3]]
        assert [record.offset for record in again.records] == [24, 24]
        assert len(list(read_lines(again, errors="replace"))) == 20

    def test_several_readers_may_share_it(self, paths: list[str], tmp_path: Path) -> None:
        file = tmp_path / "bad.jsonl"
        for path, seed in ((paths[1], 1), (paths[3], 2)):
            list(read_lines(path, on_error="skip", quarantine=file, seed=seed))
        assert list(read_quarantine(file)) == [paths[1], paths[3]]

    def test_a_damage_is_in_it_once(self, paths: list[str], tmp_path: Path) -> None:
        """Also if a later process resumes within the file, or before it."""
        file = tmp_path / "bad.jsonl"
        file.write_text("no JSON\n{}\n[]\n")
        for _ in range(2):
            reader = read_lines(paths, on_error="skip", quarantine=file)
            list(reader)
            list(reader)
            assert [record.item for record in reader.quarantine] == [paths[1], paths[3]]
        assert len(file.read_text().splitlines()) == 5

    def test_records_are_in_the_file_alone(self, tmp_path: Path) -> None:
        paths = []
        for number in range(50):
            path = tmp_path / f"{number:02}.jsonl"
            path.write_text('{"a": 1}\n{"a": \n')
            paths.append(str(path))
        listed = tmp_path / "bad.jsonl"
        reader = read_json_lines(paths, on_error="skip", quarantine=listed)
        for _ in range(2):
            assert len(list(reader)) == 50
            assert [record.item for record in reader.quarantine] == paths
        gc.collect()
        kept = [one for one in gc.get_objects() if isinstance(one, Quarantined)]
        assert not [one for one in kept if one.item in paths]
        again = read_json_lines(paths[:2], on_error="skip", quarantine=listed)
        list(again)
        assert [record.item for record in again.quarantine] == paths[:2]
        assert len(listed.read_text().splitlines()) == 50
        listed.write_text(listed.read_text().split("\n", 1)[1])
        with pytest.raises(DataLossError, match="of 1 damaged file are gone: the file was changed"):
            _ = reader.quarantine

    def test_a_run_that_has_stopped_may_skip_from_there(self, paths: list[str]) -> None:
        reader = read_lines(paths, seed=1)
        run = reader.placed()
        place: Any = None
        with pytest.raises(DataLossError):
            while True:
                place = next(run).place
        skipping = read_lines(paths, seed=1, on_error="skip")
        assert list(skipping.after(reader.position(place))) == list(skipping)[15:]

    def test_a_missing_file_is_no_damage(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            list(read_lines(str(tmp_path / "no"), on_error="skip"))

    def test_nothing_is_listed_by_default(self, paths: list[str]) -> None:
        reader = read_whole_files(paths)
        assert len(list(reader)) == 4
        assert reader.quarantine == []

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"on_error": "raise"}, "on_error: got 'raise'; expected 'stop' or 'skip'"),
            ({"quarantine": "bad"}, "quarantine: given with on_error='stop'"),
            ({"on_error": "skip", "quarantine": "/no/such/folder/f"}, "quarantine: got .*written"),
        ],
    )
    def test_wrong_arguments_are_named(self, arguments: Any, message: str) -> None:
        with pytest.raises(InvalidArgumentError, match=message):
            read_lines("a", **arguments)


@pytest.mark.parametrize("seed", range(20))
def test_random_damage(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with a bad line anywhere: the lines before it come, and all of the other files."""
    draw = random.Random(seed)
    monkeypatch.setattr(reading, "_BLOCK", draw.choice([1, 4, 30, 2**16]))
    paths, expected, bad = [], [], []
    for number in range(draw.randrange(1, 6)):
        path = tmp_path / f"{number}"
        found = lines(path, number, draw.randrange(6))
        if draw.random() < 0.5:
            at = draw.randrange(len(found) + 1)
            raw = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(b"".join([*raw[:at], b"x\xff\n", *raw[at:]]))
            bad.append((str(path), sum(map(len, raw[:at])) + 1))
            found = found[:at]
        paths.append(str(path))
        expected += found
    reader = read_lines(paths, on_error="skip")
    assert list(reader) == expected
    assert [(record.item, record.offset) for record in reader.quarantine] == bad
    for number, placed in enumerate(list(reader.placed()), 1):
        assert list(reader.after(reader.position(placed.place))) == expected[number:]
