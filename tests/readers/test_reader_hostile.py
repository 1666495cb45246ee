"""Files made to harm: they take a bounded amount of memory, and are reported as damaged.

A *bomb* is a small file that stands for gigabytes: a sparse member of an archive, a compressed
line, a picture. Each reader that holds a whole record has a limit, and says which option raises it.
"""

from __future__ import annotations

import gzip
import inspect
import json
import lzma
import random
import struct
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.base.json_files import MAX_DEPTH
from aioqueue.inputs import (
    from_iterable,
    items,
    load_position,
    mix,
    read_csv,
    read_journal,
    read_lines,
    read_quarantine,
    read_tar,
    read_tfrecords,
    read_whole_files,
    save_position,
)
from aioqueue.items.positions import digest_of
from aioqueue.items.quarantine import QuarantineFile
from aioqueue.readers import tar
from aioqueue.readers.reader import Reader

MIB = 2**20


@contextmanager
def memory_below(most: int) -> Iterator[None]:
    """Check that the block never has this many bytes allocated."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def lost(reader: Reader[Any]) -> DataLossError:
    with pytest.raises(DataLossError) as caught:
        list(reader)
    return caught.value


def header(kind: bytes, size: int = 0, **fields: Any) -> bytes:
    """A header of a tar archive, with a right checksum."""
    block = bytearray(512)
    block[:5] = b"x.bin"
    block[124:136] = b"%011o\0" % size
    block[156:157] = kind
    for place, value in fields.items():
        begin = int(place.removeprefix("at"))
        block[begin : begin + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pax(fields: dict[str, str], data: bytes = b"") -> bytes:
    """A member with extended fields. `tarfile` would refuse to write some of them."""
    text = b""
    for key, value in fields.items():
        body = f" {key}={value}\n".encode()
        length = len(body)
        while len(str(length)) + len(body) != length:
            length = len(str(length)) + len(body)
        text += str(length).encode() + body
    padded = text + bytes(-len(text) % 512)
    return (
        header(b"x", len(text)) + padded + header(b"0", len(data)) + data + bytes(-len(data) % 512)
    )


def sparse(size: int) -> dict[str, bytes]:
    """Archives of 1.5 to 3 KiB with one sparse file of this size, in each format."""
    large = b"\x80" + size.to_bytes(11, "big")
    one = b"1\n%d\n0\n" % size
    return {
        "gnu": header(b"S", at483=large),
        "pax 0.0": pax({"GNU.sparse.numblocks": "0", "GNU.sparse.size": str(size)}),
        "pax 0.1": pax({"GNU.sparse.map": "", "GNU.sparse.size": str(size)}),
        "pax 1.0": pax(
            {"GNU.sparse.major": "1", "GNU.sparse.realsize": str(size)}, one + bytes(512 - len(one))
        ),
    }


class TestTar:
    @pytest.mark.parametrize("grouped", [True, False])
    def test_a_sparse_bomb_is_refused_before_it_takes_memory(
        self, grouped: Any, tmp_path: Path
    ) -> None:
        path = tmp_path / "bomb.tar"
        for size in (512 * MIB, 2200 * MIB, 2**60):
            for name, member in sparse(size).items():
                path.write_bytes(member + bytes(1024))
                with memory_below(4 * MIB):
                    error = lost(read_tar(path, grouped=grouped))
                assert f"a file of {size} bytes exceeds max_record_bytes" in error.fault, name
                assert error.offset == 0

    def test_the_limit_is_for_a_whole_sample(self, tmp_path: Path) -> None:
        path = tmp_path / "bomb.tar"
        parts = [
            header(b"S", at0=b"a.%03d" % number, at483=b"\x80" + (1000).to_bytes(11, "big"))
            for number in range(100)
        ]
        path.write_bytes(b"".join(parts) + bytes(1024))
        assert len(list(read_tar(path, grouped=False, max_record_bytes=1000))) == 100
        fault = lost(read_tar(path, max_record_bytes=20_000)).fault
        assert fault.startswith("sample 'a' exceeds max_record_bytes=20000")
        (sample,) = read_tar(path, max_record_bytes=100_000)
        assert len(sample) == 102

    def test_empty_files_are_not_held_all_at_once(self, tmp_path: Path) -> None:
        path = tmp_path / "empty.tgz"
        path.write_bytes(gzip.compress(header(b"0") * 20_000 + bytes(1024), 1))
        with memory_below(MIB):
            assert next(iter(read_tar(path, grouped=False))) == ("x.bin", b"")

    def test_a_sample_of_empty_files_without_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tar, "_MOST_FILES", 100)
        path = tmp_path / "empty.tgz"
        files = b"".join(header(b"0", at0=b"a.%05d" % number) for number in range(200))
        path.write_bytes(gzip.compress(files + bytes(1024), 1))
        assert "sample 'a' has more than 100 files" in lost(read_tar(path)).fault
        (sample,) = read_tar(path, max_record_bytes=None)
        assert len(sample) == 202

    def test_a_file_is_held_once(self, tmp_path: Path) -> None:
        size = 8 * MIB
        path = tmp_path / "large.tar"
        with tarfile.open(path, "w") as archive:
            info = tarfile.TarInfo("a.bin")
            info.size = size
            archive.addfile(info, BytesIO(bytes(size)))
        for content in (path.read_bytes(), sparse(size)["gnu"] + bytes(1024)):
            path.write_bytes(content)
            with memory_below(size + size // 4):
                ((_, data),) = read_tar(path, grouped=False)
                assert len(data) == size

    def test_absurd_fields_are_damage(self, tmp_path: Path) -> None:
        """Whatever the fields of an extended header say, reading ends with `DataLossError`."""
        keys = ["size", "path", "GNU.sparse.name", "GNU.sparse.major", "GNU.sparse.minor"]
        keys += [f"GNU.sparse.{one}" for one in ("map", "size", "realsize", "numblocks")]
        values = ["9" * 5000, "1" * 31, "-1", "", "0", "1", "2", "x", "0,1", "1,0,0,1", "\0", "٣"]
        generator = random.Random(7)
        path = tmp_path / "a.tar"
        ends = set()
        for _ in range(120):
            chosen = generator.sample(keys, generator.randint(1, 4))
            fields = {key: generator.choice(values) for key in chosen}
            path.write_bytes(pax(fields, b"12345") + bytes(1024))
            try:
                list(read_tar(path, grouped=False))
            except DataLossError as error:
                assert len(str(error)) < 500
                ends.add(error.fault[:20])
        assert len(ends) > 4
        path.write_bytes(header(b"x", 2**30) + bytes(2048))
        assert "bytes of names" in lost(read_tar(path)).fault
        path.write_bytes(pax({"size": "9" * 5000}) + bytes(1024))
        assert "is not a number" in lost(read_tar(path)).fault


class TestLimits:
    def test_a_compressed_line_without_end(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv.gz"
        path.write_bytes(b"".join(gzip.compress(bytes(MIB)) for _ in range(4)))
        with memory_below(8 * MIB):
            fault = lost(read_lines(path, max_line_bytes=MIB)).fault
            assert fault.startswith("a line exceeds max_line_bytes=1048576")
            lost(read_csv(path, float, max_line_bytes=MIB))
        readers: list[tuple[Any, str, int]] = [
            *((reader, "max_line_bytes", 64) for reader in (read_lines, read_csv)),
            *((reader, "max_record_bytes", 256) for reader in (read_tar, read_whole_files)),
            (read_tfrecords, "max_record_bytes", 256),
        ]
        for reader, limit, mib in readers:
            assert inspect.signature(reader).parameters[limit].default == mib * MIB

    def test_lines_before_the_long_one_come(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aioqueue.readers.lines._BLOCK", 7)
        generator = random.Random(3)
        path = tmp_path / "a.txt"
        for _ in range(100):
            lengths = [generator.randint(0, 12) for _ in range(generator.randint(1, 6))]
            lines = [b"x" * length for length in lengths]
            end = generator.choice((b"", b"\n")) if lengths[-1] else b"\n"
            path.write_bytes(b"\n".join(lines) + end)
            most = generator.randint(1, 12)
            sound = []
            for line in lines:
                if len(line) > most:
                    break
                sound.append(line)
            found = []
            try:
                for line in read_lines(path, encoding=None, max_line_bytes=most):
                    found.append(line)  # noqa: PERF402  # what was read before the failure
            except DataLossError as error:
                assert error.offset == sum(map(len, sound)) + len(sound)
                assert len(sound) < len(lines)
            else:
                assert len(sound) == len(lines)
            assert found == sound

    def test_records_and_whole_files(self, tmp_path: Path) -> None:
        pytest.importorskip("google_crc32c")
        from aioqueue.readers.tfrecord import write_record

        path = tmp_path / "a.gz"
        framed = BytesIO()
        write_record(framed, b"first")
        write_record(framed, bytes(20 * MIB))
        path.write_bytes(gzip.compress(framed.getvalue(), 1))
        for reader in (read_whole_files, read_tfrecords):
            read: Any = reader
            with memory_below(4 * MIB):
                fault = lost(read(path, max_record_bytes=MIB)).fault
                assert "exceeds max_record_bytes=1048576" in fault
            with memory_below(26 * MIB):
                assert list(map(len, read(path)))[-1] >= 20 * MIB
        plain = tmp_path / "plain"
        plain.write_bytes(bytes(100))
        assert lost(read_whole_files(plain, max_record_bytes=99)).offset == 0
        assert list(read_whole_files(plain, max_record_bytes=100)) == [bytes(100)]

    def test_an_xz_file_that_asks_for_a_large_window(self, tmp_path: Path) -> None:
        path = tmp_path / "a.xz"
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**20}]
        content = bytearray(lzma.compress(b"line\n", filters=filters))
        place = content.index(b"\x21\x01", 12) + 2  # the filter's size of the window
        content[place] = 39  # 3 GiB
        content[20:24] = struct.pack("<I", zlib.crc32(content[12:20]))
        path.write_bytes(content)
        assert "damaged xz data" in lost(read_lines(path)).fault

    @pytest.mark.parametrize("value", [0, -1, 1.5, "9", True])
    def test_wrong_limits(self, value: Any, tmp_path: Path) -> None:
        for make in (read_tar, read_whole_files):
            with pytest.raises(InvalidArgumentError, match="max_record_bytes: got"):
                make(tmp_path, max_record_bytes=value)
        with pytest.raises(InvalidArgumentError, match="max_line_bytes: got"):
            read_lines(tmp_path, max_line_bytes=value)


def deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def record(**fields: Any) -> dict[str, Any]:
    whole = {"item": 1, "epoch": 0, "index": 2, "error": "e", "traceback": "t", "attempts": 1}
    return {**whole, "seed": 7, **fields}


DOCUMENTS = {
    "deep": deep(10**5),
    "deeper than ours": b'{"format": "aioqueue.position-file", "state": %s}' % deep(MAX_DEPTH + 5),
    "long int": b'{"epoch": ' + b"9" * 5000 + b"}",
    "not text": b'{"state": "\xff"}',
    "a list": b"[1]",
    "null": b"null",
    "state is a list": b'{"format": "aioqueue.position-file", "checksum": "0", "state": [1]}',
    "checksum is null": b'{"format": "aioqueue.position-file", "checksum": null, "state": {}}',
}
WRONG: list[Any] = [None, [], -1.5, True]
RECORDS: list[dict[str, Any]] = [
    {field: value}
    for field in ("epoch", "index", "attempts", "seed", "error", "traceback", "pickle", "other")
    for value in [*WRONG, "text" if field not in ("error", "traceback") else 3]
]


STATES: dict[str, Callable[[], Any]] = {
    "take": lambda: items(range(40)).take(30).batch(4),
    "skip": lambda: items(range(40)).skip(5).batch(4),
    "window": lambda: items(range(40)).window(3).batch(2),
    "pack": lambda: items([np.zeros(n % 7 + 1) for n in range(40)]).pack(10),
    "bucket": lambda: items([np.zeros(n % 7 + 1) for n in range(40)]).bucket([3, 6], 4),
    "unbatch": lambda: items(range(40)).batch(5).unbatch().batch(3),
    "mix": lambda: items(range(40)).mix(items(range(40)), weights=[1, 1], seed=2).batch(4),
    "workers": lambda: items(range(40)).prepare(abs, workers=2, ordered=False).batch(4),
    "names": lambda: items([{"a": n, "b": 1.0} for n in range(40)]).batch(4),
    "epochs": lambda: items(range(14)).batch(4, across_epochs=True),
}
WRONGS: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**63,
    1.5,
    "x",
    "",
    [],
    [[1]],
    {},
    "low16(1)A",
    "zlib99AAAA",
    "1,2,-9",
)


class Steps:
    """An iterable with a state."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 40:
            yield self.at
            self.at += 1

    def state_dict(self) -> int:
        return self.at + 1

    def load_state_dict(self, state: Any) -> None:
        self.at = state if type(state) is int else 0


def placed(folder: Path) -> dict[str, Any]:
    lines = [folder / name for name in ("a.csv", "b.csv")]
    for path in lines:
        path.write_text("1,2\n" * 20)
    with tarfile.open(folder / "t.tar", "w") as archive:
        for number in range(9):
            archive.add(lines[0], f"{number}.txt")
    return {
        "items": items(range(40), shuffle=True, seed=1),
        "lines": read_lines(lines),
        "csv": read_csv(lines, ["i8", "i8"]),
        "tar": read_tar(folder / "t.tar"),
        "mix": mix([read_lines(lines[0]), items(range(40))], seed=1),
        "interleave": read_lines(lines).interleave(2),
        "steps": from_iterable(Steps()),
    }


def places_in(value: Any) -> Iterator[tuple[Any, ...]]:
    """The keys that lead to each part of a document."""
    yield ()
    parts = dict(enumerate(value)) if isinstance(value, list) else value
    for key, one in parts.items() if isinstance(parts, dict) else ():
        yield from ((key, *rest) for rest in places_in(one))


def resealed(document: Any, where: tuple[Any, ...], value: Any) -> Any:
    """A document with another value in one place, and with a right checksum."""
    changed = json.loads(json.dumps(document))
    holder = changed
    for key in where[:-1]:
        holder = holder[key]
    holder[where[-1]] = value
    del changed["checksum"]
    return {**changed, "checksum": digest_of(changed)}


class TestOurDocuments:
    @pytest.mark.parametrize("content", DOCUMENTS.values(), ids=DOCUMENTS)
    def test_damage_is_reported_as_such(self, content: bytes, tmp_path: Path) -> None:
        path = tmp_path / "file"
        reads: list[Callable[[], Any]] = [
            lambda: load_position(path),
            lambda: read_quarantine(path, trusted=True),
        ]
        for read in reads:
            path.write_bytes(content + b"\n")
            with pytest.raises(DataLossError) as caught:
                read()
            assert caught.value.path == str(path)
        path.write_bytes(b"aioqueue journal 1\n" + content + b"\n")
        with pytest.raises(DataLossError):
            read_journal(path)

    def test_records_with_values_of_wrong_types(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        for change in RECORDS:
            line = record(**change)
            if "pickle" in change:
                del line["item"]
            path.write_text(json.dumps(line) + "\n")
            with pytest.raises(DataLossError, match="no record of a quarantine"):
                read_quarantine(path, trusted=True)
        for field in record():
            line = record()
            del line[field]
            path.write_text(json.dumps(line) + "\n")
            with pytest.raises(DataLossError, match="no record of a quarantine"):
                read_quarantine(path, trusted=True)

    def test_pickles_that_are_damaged(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        for text in ("", "gASV", "Li4u", "gARYBQAAAGhlbGxv", "Y25vdGhpbmcKbm90aGluZwou", "?"):
            line = record(pickle=text)
            del line["item"]
            path.write_text(json.dumps(line) + "\n")
            with pytest.raises(DataLossError, match="no record of a quarantine"):
                read_quarantine(path, trusted=True)

    @pytest.mark.parametrize("levels", [1, MAX_DEPTH - 2, MAX_DEPTH - 1, MAX_DEPTH, 400])
    def test_what_is_written_can_be_read(self, levels: int, tmp_path: Path) -> None:
        """The bounds of reading are those of writing, whatever an item is."""
        from aioqueue.items.quarantined import Quarantined

        item: Any = 1
        for _ in range(levels):
            item = [item]
        path = tmp_path / "file"
        QuarantineFile(path).add(Quarantined(item, 0, 0, "e", "t", 1, 7))
        assert read_quarantine(path, trusted=True).records[0].item == item
        try:
            save_position(tmp_path / "position", {"mine": item})
        except InvalidArgumentError as error:
            assert levels >= MAX_DEPTH
            assert "deeper than" in str(error)
        else:
            assert load_position(tmp_path / "position") == {"mine": item}

    def test_a_position_with_values_that_no_run_has_saved(self) -> None:
        """Its checksum is right, so that only the values can tell."""

        def make() -> Any:
            return items(range(60), shuffle=True, seed=1).shuffle(9, seed=2).batch(4)

        epochs = make().epochs(2)
        for number, _ in enumerate(next(epochs)):
            if number == 3:
                break
        state = epochs.state_dict()
        epochs.close()
        places: list[tuple[Any, ...]] = [(field,) for field in ("epoch", "batches", "skip", "run")]
        places += [("read", field) for field in state["read"]]
        for number, stage in enumerate(state["stages"]):
            own = {"given", "epoch", "made", "drawn", "buffered", "taken", "held"} & set(stage)
            places += [("stages", number, field) for field in sorted(own)]
        for *where, last in places:
            wrongs = [[], {}, 1.5, -(10**30)]
            for wrong in wrongs:
                changed = json.loads(json.dumps(state))
                holder = changed
                for key in where:
                    holder = holder[key]
                holder[last] = wrong
                del changed["checksum"]
                changed["checksum"] = digest_of(changed)
                with pytest.raises(InvalidArgumentError, match="position: got"):
                    list(make().epochs(2, resume=changed))
        nested: Any = {}
        for _ in range(10**4):
            nested = {"format": "aioqueue.position", "version": 3, "source": nested}
        with pytest.raises(InvalidArgumentError, match="nested deeper"):
            make().epochs(2, resume=nested)

    @pytest.mark.parametrize("kind", STATES)
    def test_a_state_with_any_value_changed(self, kind: str) -> None:
        """The same for each field of each stage."""
        make = STATES[kind]
        with make().epochs(2) as epochs:
            for _ in islice(next(epochs), 3):
                pass
            state = json.loads(json.dumps(epochs.state_dict()))
        refused = 0
        for where in places_in(state["stages"]):
            for wrong in WRONGS:
                changed = resealed(state, ("stages", *where), wrong)
                try:
                    with make().epochs(2, resume=changed) as epochs:
                        for _ in islice(next(epochs), 2):
                            pass
                except* InvalidArgumentError:
                    refused += 1
                except* RuntimeError as group:
                    assert "other examples than before" in str(group.exceptions)
                except* StopIteration:
                    pass  # a later epoch, which there is not
        assert refused > 50

    @pytest.mark.parametrize("kind", ["items", "lines", "csv", "tar", "mix", "interleave", "steps"])
    def test_a_place_with_any_value_changed(self, kind: str, tmp_path: Path) -> None:
        source = placed(tmp_path)[kind]
        *_, last = islice(source.placed(), 5)
        position = json.loads(json.dumps(source.position(last.place)))
        for where in places_in(position["place"]):
            for wrong in (*WRONGS, 2**70):
                changed = resealed(position, ("place", *where), wrong)
                try:
                    list(islice(source.after(changed), 2))
                except (InvalidArgumentError, DataLossError):
                    pass
