"""Tar shards: the samples that are there, from any writer; whatever is damaged is reported."""

from __future__ import annotations

import gzip
import importlib.util
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.readers.files import files
from aioqueue.readers.tar import read_tar
from tests.items.test_positions import check_every_position
from tests.kit.worlds import TaskWorld
from tests.readers.test_files import COMPRESSORS

properties = settings(derandomize=True, deadline=None, max_examples=60)
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}

Contents = list[tuple[str, bytes]]


def archive(contents: Contents, format: int = tarfile.GNU_FORMAT, **fields: Any) -> bytes:
    """What Python's own library makes of some files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=format, errors="surrogateescape") as writer:
        for name, data in contents:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for field, value in fields.items():
                setattr(member, field, value)
            writer.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def plain(path: Any, **options: Any) -> Contents:
    return list(read_tar(path, grouped=False, **options))


def read_before_loss(path: Path, **options: Any) -> tuple[list[Any], DataLossError]:
    found = []
    with pytest.raises(DataLossError) as caught:
        for record in read_tar(path, **options):
            found.append(record)  # noqa: PERF402  # what was read before the failure
    assert caught.value.path == str(path)
    return found, caught.value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shard.tar"


SHARD: Contents = [
    ("cats/1.jpg", b"one"),
    ("cats/1.seg.png", b""),
    ("cats/1.cls", b"0"),
    ("cats/2.jpg", b"two"),
    ("dogs/2.jpg", b"x" * 3000),
    ("README", b"read"),
    (".hidden", b"h"),
]


class TestSamples:
    def test_are_files_with_one_name(self, path: Path) -> None:
        path.write_bytes(archive(SHARD))
        url = str(path)
        assert list(read_tar(path)) == [
            {"__key__": "cats/1", "__url__": url, "jpg": b"one", "seg.png": b"", "cls": b"0"},
            {"__key__": "cats/2", "__url__": url, "jpg": b"two"},
            {"__key__": "dogs/2", "__url__": url, "jpg": b"x" * 3000},
        ]

    def test_dots_in_folders_do_not_count(self, path: Path) -> None:
        path.write_bytes(archive([("./v1.0/a.x", b"1"), ("./v1.0/a.y.z", b"2")]))
        (sample,) = read_tar(path)
        assert sample["__key__"] == "./v1.0/a"
        assert set(sample) == {"__key__", "__url__", "x", "y.z"}

    def test_have_keys(self, path: Path) -> None:
        path.write_bytes(archive(SHARD))
        keys = [key for key, _ in read_tar(path).with_keys()]
        assert keys[:2] == [f"{path}:cats/1", f"{path}:cats/2"]
        keys = [key for key, _ in read_tar(path, grouped=False).with_keys()]
        assert keys == [f"{path}:{name}" for name, _ in SHARD]

    def test_or_each_file_by_itself(self, path: Path) -> None:
        path.write_bytes(archive(SHARD))
        assert plain(path) == SHARD

    @pytest.mark.parametrize("name", ["a.jpg", "a.__key__", "a.__url__"])
    def test_with_two_of_a_kind_are_refused(self, name: str, path: Path) -> None:
        extension = name.removeprefix("a.")
        path.write_bytes(archive([("0.x", b"0"), ("a.jpg", b"1"), (name, b"2")]))
        found, error = read_before_loss(path)
        assert [sample["__key__"] for sample in found] == ["0"]
        assert f"sample 'a' has '{extension}' twice: the second one is '{name}', at 2048" in str(
            error
        )
        assert (error.fault, error.offset) == ("duplicate extension", 2048)

    @properties
    @given(
        contents=st.lists(
            st.tuples(st.text("ab./é", min_size=1, max_size=150), st.binary(max_size=1100)),
            max_size=8,
        ),
        format=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    )
    def test_only_what_has_no_extension_is_left_out(
        self, tmp_path_factory: pytest.TempPathFactory, contents: Contents, format: int
    ) -> None:
        path = tmp_path_factory.getbasetemp() / "any.tar"
        contents = [(name.strip("/") or "a", data) for name, data in contents]
        path.write_bytes(archive(contents, format))
        assert plain(path) == contents
        try:
            samples = list(read_tar(path))
        except DataLossError as error:
            assert error.fault == "duplicate extension"
        else:
            lasts = [name.rpartition("/")[2] for name, _ in contents]
            named = [last for last in lasts if "." in last and not last.startswith(".")]
            assert sum(len(sample) - 2 for sample in samples) == len(named)

    @pytest.mark.parametrize("grouped", [0, None, "yes"])
    def test_wrong_arguments_are_named(self, grouped: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="grouped: got"):
            read_tar("a", grouped=grouped)

    async def test_read_ahead(self, task_world: TaskWorld, path: Path) -> None:
        path.write_bytes(archive(SHARD))  # noqa: ASYNC240  # nothing else runs
        assert [sample async for sample in read_tar(path)] == list(read_tar(path))


class TestFormats:
    @pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
    def test_names(self, format: int, path: Path) -> None:
        names = ["a", "x" * 100, f"{'d' * 120}/{'x' * 90}"]
        if format != tarfile.USTAR_FORMAT:
            names += ["x" * 500, f"{'long/' * 300}é.jpg"]
        if format == tarfile.GNU_FORMAT:
            names += [os.fsdecode(b"no text \xff")]
        path.write_bytes(
            archive([(name, name.encode("utf-8", "replace")) for name in names], format)
        )
        assert [name for name, _ in plain(path)] == names

    def test_directories_are_left_out(self, tmp_path: Path, path: Path) -> None:
        (tmp_path / "folder" / "sub").mkdir(parents=True)
        (tmp_path / "folder" / "sub" / "a").write_bytes(b"a")
        with tarfile.open(path, "w") as writer:
            writer.add(tmp_path / "folder", "folder")
        assert plain(path) == [("folder/sub/a", b"a")]
        path.write_bytes(archive([("old/", b"")], type=tarfile.AREGTYPE))
        assert plain(path) == []

    @pytest.mark.parametrize(
        ("kind", "what"),
        [
            (tarfile.LNKTYPE, "a hard link (to 'there')"),
            (tarfile.SYMTYPE, "a symbolic link (to 'there')"),
            (tarfile.FIFOTYPE, "a FIFO"),
            (tarfile.CHRTYPE, "a character device"),
            (b"M", "a member of kind b'M'"),
        ],
    )
    def test_what_has_no_data_is_refused(self, kind: bytes, what: str, path: Path) -> None:
        """It would be lost."""
        member = tarfile.TarInfo("here")
        member.type, member.linkname = kind, "there"
        first = archive([("a", b"1")])[:1024]
        path.write_bytes(first + member.tobuf() + bytes(1024))
        found, error = read_before_loss(path, grouped=False)
        assert found == [("a", b"1")]
        assert f"'here' is {what}" in error.fault
        assert error.offset == 1024

    def test_global_headers_hold_for_nothing_that_matters(self, path: Path) -> None:
        stream = io.BytesIO()
        with tarfile.open(
            fileobj=stream, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "c0ffee"}
        ) as writer:
            member = tarfile.TarInfo("a")
            member.size = 1
            writer.addfile(member, io.BytesIO(b"1"))
        path.write_bytes(stream.getvalue())
        assert plain(path) == [("a", b"1")]

    @pytest.mark.parametrize("field", ["path", "size", "GNU.sparse.map"])
    def test_fields_that_a_global_header_must_not_set(self, field: str, path: Path) -> None:
        stream = io.BytesIO()
        with tarfile.open(
            fileobj=stream, mode="w", format=tarfile.PAX_FORMAT, pax_headers={field: "1"}
        ):
            pass
        path.write_bytes(stream.getvalue())
        assert f"a global header sets {field}='1'" in read_before_loss(path)[1].fault

    def test_large_sizes_are_binary(self, path: Path) -> None:
        """Nobody keeps 8 GiB for a test; a small size may be written so too."""
        block = bytearray(archive([("a", b"123")]))
        block[124:136] = b"\x80" + (3).to_bytes(11, "big")
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block[:512])
        path.write_bytes(block)
        assert plain(path) == [("a", b"123")]
        block[124:136] = b"\xff" * 12
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block[:512])
        path.write_bytes(block)
        _, error = read_before_loss(path)
        assert "is not a number" in error.fault

    def test_a_size_of_pax_counts(self, path: Path) -> None:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as writer:
            member = tarfile.TarInfo("a")
            member.size, member.pax_headers = 3, {"size": "3", "mtime": "1.5"}
            writer.addfile(member, io.BytesIO(b"123"))
        path.write_bytes(stream.getvalue())
        assert plain(path) == [("a", b"123")]

    @pytest.mark.skipif(shutil.which("tar") is None, reason="there is no tar program")
    @pytest.mark.parametrize(
        "options",
        [
            ["--format=gnu"],
            ["--format=posix", "--sparse-version=0.0"],
            ["--format=posix", "--sparse-version=0.1"],
            ["--format=posix", "--sparse-version=1.0"],
        ],
        ids=" ".join,
    )
    def test_sparse_files_of_the_tar_program(self, options: list[str], tmp_path: Path) -> None:
        contents = {}
        for number, parts in enumerate((0, 1, 3, 40)):
            name = f"sparse{number}"
            with open(tmp_path / name, "wb") as file:
                for part in range(parts):
                    file.seek((2 * part + 1) * 2**16)
                    file.write(bytes([part + 1]) * (4096 + part))
                file.truncate((2 * parts + 1) * 2**16)
            contents[name] = (tmp_path / name).read_bytes()
        (tmp_path / "dense").write_bytes(b"dense")
        contents["dense"] = b"dense"
        made = subprocess.run(
            ["tar", "-c", "-f", "a.tar", *options, "--sparse", *contents],
            cwd=tmp_path,
            check=False,
            capture_output=True,
        )
        if made.returncode:
            pytest.skip(f"this tar cannot: {made.stderr!r}")
        assert dict(plain(tmp_path / "a.tar")) == contents

    @pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
    @pytest.mark.parametrize("kind", COMPRESSORS)
    def test_compressed(self, kind: str, format: int, tmp_path: Path) -> None:
        suffix, compress = COMPRESSORS[kind]
        path = tmp_path / f"a.tar{suffix}"
        path.write_bytes(compress(archive(SHARD, format)))
        compression = "infer" if suffix else kind
        assert plain(path, compression=compression) == SHARD

    @pytest.mark.parametrize("zeros", [0, 1, 512, 20 * 512, 700])
    def test_archives_may_follow_each_other(self, zeros: int, path: Path) -> None:
        one, other = archive(SHARD[:2]), archive(SHARD[2:])
        if zeros % 512 == 0:
            path.write_bytes(one + bytes(zeros) + other)
            assert plain(path) == SHARD
        path.write_bytes(one + bytes(zeros))
        assert plain(path) == SHARD[:2]

    @pytest.mark.skipif(importlib.util.find_spec("fsspec") is None, reason="needs fsspec")
    def test_of_an_url(self) -> None:
        import fsspec

        system = fsspec.filesystem("memory")
        system.pipe("/shard.tar.gz", gzip.compress(archive(SHARD)))
        check_every_position(lambda: read_tar("memory://shard.tar.gz"))
        assert next(iter(read_tar("memory://shard.tar.gz")))["__url__"] == "memory://shard.tar.gz"
        system.rm("/shard.tar.gz")


SMALL: Contents = [("a.x", b"1"), ("a.y", b"2" * 600), ("b.x", b"3")]


class TestDamage:
    @pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
    def test_cut_off_anywhere(self, format: int, path: Path) -> None:
        whole = archive([("n" * 90 + "/" + "m" * 90, b"0"), *SMALL], format)
        end = len(whole.rstrip(b"\0"))
        end += -end % 512 + 1024  # the end mark; zeros behind it may be missing
        names = [name for name, _ in plain(self.written(path, whole))]
        for size in [*range(0, end, 64), *range(end - 3, end)]:
            found, error = read_before_loss(self.written(path, whole[:size]), grouped=False)
            assert [name for name, _ in found] == names[: len(found)]
            assert error.offset <= size
            assert "truncated" in error.fault
        assert plain(self.written(path, whole[:end])) == plain(self.written(path, whole))

    @pytest.mark.slow(every=3)
    @pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
    def test_any_bit_of_a_header(self, format: int, path: Path) -> None:
        """A header has a checksum, and so has whatever it says; data and padding have none."""
        name = "x" * 120 + ".y"
        whole = archive([("a.x", b"1"), (name, b"2")], tarfile.GNU_FORMAT)
        if format != tarfile.GNU_FORMAT:
            whole = archive([("a.x", b"1"), ("b.y", b"2")], format)
        second = 1024
        for place in range(second, second + 512):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << (place % 8)
            self.written(path, bytes(damaged))
            if 148 <= place - second < 156:
                try:  # a checksum may be written in several ways
                    assert plain(path) == plain(self.written(path, whole))
                except DataLossError:
                    pass
                continue
            found, error = read_before_loss(path, grouped=False)
            assert found == [("a.x", b"1")]
            assert (error.fault, error.offset) == ("corrupted header", 1024)

    def test_a_sample_that_is_not_complete_is_none(self, path: Path) -> None:
        whole = archive(SMALL)
        path.write_bytes(whole[:1024])
        found, error = read_before_loss(path)
        assert found == []
        assert (error.fault, error.offset) == ("truncated archive: no end mark", 1024)

    def test_a_single_block_of_zeros_is_no_end(self, path: Path) -> None:
        whole = archive(SMALL)
        path.write_bytes(whole[:1024] + bytes(512) + whole[1024:])
        found, error = read_before_loss(path, grouped=False)
        assert found == SMALL[:1]
        assert (error.fault, error.offset) == ("a single block of zeros", 1024)

    @pytest.mark.parametrize("garbage", [b"x", b"x" * 512, b"x" * 2000])
    def test_garbage_behind_the_end(self, garbage: bytes, path: Path) -> None:
        whole = archive(SMALL)
        path.write_bytes(whole + garbage)
        found, error = read_before_loss(path)
        assert len(found) == 2
        assert error.offset == len(whole)
        assert "header" in error.fault

    def test_what_is_no_archive(self, path: Path) -> None:
        path.write_bytes(b"no archive at all, " * 100)
        assert read_before_loss(path)[1].fault == "corrupted header"
        path.write_bytes(b"")
        assert read_before_loss(path)[1].fault == "truncated archive: no end mark"

    def test_an_absurd_size_takes_no_memory(self, path: Path) -> None:
        block = bytearray(archive([("a", b"123")]))
        block[124:136] = b"\x80" + b"\x7f" * 11
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block[:512])
        path.write_bytes(block)
        assert "exceeds max_record_bytes=268435456" in read_before_loss(path)[1].fault
        fault = read_before_loss(path, max_record_bytes=None)[1].fault
        assert fault == "truncated member"

    def test_damaged_compression(self, tmp_path: Path) -> None:
        path = tmp_path / "a.tar.gz"
        path.write_bytes(gzip.compress(archive(SMALL))[:-3])
        assert "damaged gzip data" in read_before_loss(path)[1].fault

    @pytest.mark.parametrize(
        "fields",
        [
            {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"},
            {"GNU.sparse.map": "0,5", "GNU.sparse.size": "5"},
            {"GNU.sparse.map": "4,1,0,1", "GNU.sparse.size": "5"},
            {"GNU.sparse.map": "0,1,2", "GNU.sparse.size": "5"},
            {"GNU.sparse.map": "0,x", "GNU.sparse.size": "5"},
            {"GNU.sparse.map": "0,2"},
            {"GNU.sparse.numblocks": "1", "GNU.sparse.offset": "0", "GNU.sparse.size": "5"},
        ],
    )
    def test_maps_of_sparse_files_that_cannot_be(self, fields: dict[str, str], path: Path) -> None:
        path.write_bytes(archive([("a", b"12")], tarfile.PAX_FORMAT, pax_headers=fields))
        assert "corrupted" in read_before_loss(path)[1].fault

    @staticmethod
    def written(path: Path, content: bytes) -> Path:
        path.write_bytes(content)
        return path


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("grouped", [True, False])
def test_every_position(
    grouped: Any, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioqueue.readers.tar._SAMPLE_BLOCK", 2000)
    pack: Callable[[bytes], bytes] = gzip.compress if suffix else bytes
    for shard, count in enumerate((12, 0, 5)):
        contents = [
            (f"{'long/' * (30 * (n % 3))}{shard}-{n}.{extension}", bytes([n]) * (n * 97 % 900))
            for n in range(count)
            for extension in ("x", "y")
        ]
        data = archive(contents, tarfile.PAX_FORMAT) + archive([("last.x", b"")])
        (tmp_path / f"{shard}.tar{suffix}").write_bytes(pack(data))
    pattern = f"{tmp_path}/*"
    check_every_position(
        lambda: read_tar(files(pattern, 2, True, 4), grouped=grouped).with_keys(), step=3
    )


@pytest.mark.parametrize("size", [10**17, 10**25])
def test_a_sparse_file_larger_than_memory_is_reported_with_its_place(size: int, path: Path) -> None:
    fields = {"GNU.sparse.major": "0", "GNU.sparse.map": "0,0", "GNU.sparse.size": str(size)}
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("a.bin")
        info.pax_headers = fields
        archive.addfile(info)
    for most, message in ((None, "a sparse file of"), (2**40, "a file of")):
        with pytest.raises(DataLossError, match=f"{message} {size} bytes") as caught:
            list(read_tar(path, max_record_bytes=most))
        assert caught.value.offset == 0


def test_a_position_within_another_file_is_refused(path: Path) -> None:
    path.write_bytes(archive(SMALL))
    source = read_tar(path)
    *_, (_, place) = islice(source.placed(), 1)
    before, number, _, taken = place
    wrong = source.after(source.position((before, number, 700, taken)))
    with pytest.raises(DataLossError, match="at 700"):
        list(wrong)


NO_SAMPLES = [
    "._1.jpg",
    "d/._1.jpg",
    ".DS_Store",
    "LICENSE",
    "d/README",
    "__meta__",
    "__meta__/info.json",
    "./__meta__/info.json",
    "PaxHeaders/1.jpg",
    "d/PaxHeaders.77/1.jpg",
    "__MACOSX/._1.jpg",
    "__MACOSX/1.jpg",
]


class TestWhatIsNoSample:
    @pytest.mark.parametrize("name", NO_SAMPLES)
    def test_cuts_none_and_is_reported(
        self, name: str, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        contents = [("1.jpg", b"A"), (name, b"x"), ("1.cls", b"0"), (f"{name}", b"y")]
        path.write_bytes(archive(contents))
        reader = read_tar(path)
        for _ in range(2):
            (sample,) = reader
            assert sample == {"__key__": "1", "__url__": str(path), "jpg": b"A", "cls": b"0"}
        (record,) = caplog.records
        assert name in record.getMessage()
        assert "grouped=False" in record.getMessage()
        assert plain(path) == contents

    def test_what_resembles_an_archive_is_one(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        names = ["__init__.py", "a/__meta__/b.json", "PaxHeaders.jpg", "_.x", "a_.b", "__MACOSX.y"]
        path.write_bytes(archive([(name, b"x") for name in names]))
        assert sum(len(sample) - 2 for sample in read_tar(path)) == len(names)
        assert not caplog.records

    def test_positions_know_nothing_of_it(self, path: Path) -> None:
        names = [f"{number}.{ext}" for number in range(9) for ext in ("jpg", "cls")]
        mixed = [one for name in names for one in (f"._{name}", name, "LICENSE")]
        path.write_bytes(archive([(name, b"x" * 9000) for name in mixed]))
        check_every_position(lambda: read_tar(files(path, 1)))
