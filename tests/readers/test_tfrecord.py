"""TFRecord files: reading what TensorFlow wrote, writing what it can read, reporting damage."""

from __future__ import annotations

import gc
import importlib.util
import io
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioqueue import DataLossError
from aioqueue.readers import tfrecord as records
from aioqueue.readers.tfrecord import (
    TFRecordWriter,
    masked_crc32c,
    read_record,
    read_tfrecords,
    write_record,
)
from tests.kit.worlds import TaskWorld

if importlib.util.find_spec("google_crc32c") is None:
    pytest.skip("google-crc32c is not installed", allow_module_level=True)

properties = settings(derandomize=True, deadline=None, max_examples=60)

RECORDS = [b"hello", b"", b"\x00" * 20]

WRITTEN = (
    b"\x05\x00\x00\x00\x00\x00\x00\x00\xea\xb2\x04>hello\xbb\x1f\x1c\x19"
    b"\x00\x00\x00\x00\x00\x00\x00\x00)\x03\x98\x07\xd8\xea\x82\xa2"
    b"\x14\x00\x00\x00\x00\x00\x00\x00^=)\x15" + b"\x00" * 20 + b"bd\x00O"
)
"""What TensorFlow 2.21 made of them."""

OFFSETS = [0, 21, 37]

GZIPPED = bytes.fromhex(
    "1f8b080000000000000363658080579b58ec32527372f277cbcb4842c518349967b0df78d5b44804ca8fb3d51465c002925218fc010459fa9049000000"
)
DEFLATED = bytes.fromhex(
    "789c63658080579b58ec32527372f277cbcb4842c518349967b0df78d5b44804ca8fb3d51465c002925218fc01dd550aba"
)
"""The same, with its compression types GZIP and ZLIB."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


@pytest.fixture
def long_file(path: Path) -> Path:
    path.write_bytes(WRITTEN * 3000)
    return path


def read_before_loss(path: Path) -> tuple[list[bytes], DataLossError | None]:
    """The records up to the damage, and the damage, if there is one."""
    records: list[bytes] = []
    try:
        for record in read_tfrecords(path):
            records.append(record)  # noqa: PERF402  # what was read before the failure
    except DataLossError as error:
        return records, error
    return records, None


class TestFormat:
    def test_is_the_one_that_tensorflow_reads(self, path: Path) -> None:
        with TFRecordWriter(path) as writer:
            for record in RECORDS:
                writer.write(record)
        assert path.read_bytes() == WRITTEN

    def test_is_the_one_that_tensorflow_writes(self, path: Path) -> None:
        path.write_bytes(WRITTEN)
        assert list(read_tfrecords(path)) == RECORDS

    @pytest.mark.parametrize(("kind", "content"), [("gzip", GZIPPED), ("zlib", DEFLATED)])
    def test_so_is_its_compression(self, kind: str, content: bytes, path: Path) -> None:
        path.write_bytes(content)
        assert list(read_tfrecords(path, compression=kind)) == RECORDS

    def test_checksums(self) -> None:
        """CRC-32C of "123456789" is 0xE3069283 (RFC 3720, appendix B.4, has others)."""
        checksum = 0xE3069283
        rotated = (checksum >> 15 | checksum << 17) & 0xFFFFFFFF
        assert masked_crc32c(b"123456789") == (rotated + 0xA282EAD8) % 2**32

    def test_keys_are_offsets(self, path: Path) -> None:
        path.write_bytes(WRITTEN)
        keys = [key for key, _ in read_tfrecords(path).with_keys()]
        assert keys == [f"{path}:{offset}" for offset in OFFSETS]

    @properties
    @given(records=st.lists(st.binary(max_size=200)))
    def test_what_is_written_is_read(self, records: list[bytes]) -> None:
        stream = io.BytesIO()
        for record in records:
            write_record(stream, record)
        stream.seek(0)
        assert list(iter(lambda: read_record(stream), None)) == records

    def test_of_many_blocks(self, path: Path) -> None:
        records = [os.urandom(size) for size in (10, 70_000, 0, 200_000, *[100] * 3000)]
        with TFRecordWriter(path) as writer:
            for record in records:
                writer.write(record)
        assert list(read_tfrecords(path)) == records

    async def test_read_ahead(self, task_world: TaskWorld, long_file: Path) -> None:
        assert [record async for record in read_tfrecords(long_file)] == RECORDS * 3000


class TestDamage:
    @pytest.mark.parametrize("size", range(len(WRITTEN) + 1))
    def test_truncated_at_any_byte(self, size: int, path: Path) -> None:
        path.write_bytes(WRITTEN[:size])
        records, error = read_before_loss(path)
        if size in (*OFFSETS, len(WRITTEN)):
            assert error is None
            assert len(records) == [*OFFSETS, len(WRITTEN)].index(size)
            return
        assert error is not None
        start = max(offset for offset in OFFSETS if offset < size)
        assert (error.path, error.offset, error.fault) == (str(path), start, "truncated record")
        assert str(error) == f"{path}: truncated record at {start}"
        assert records == RECORDS[: OFFSETS.index(start)]

    @pytest.mark.parametrize("at", range(len(WRITTEN)))
    def test_any_byte_changed(self, at: int, path: Path) -> None:
        damaged = bytearray(WRITTEN)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        records, error = read_before_loss(path)
        start = max(offset for offset in OFFSETS if offset <= at)
        # As in TensorFlow's message: where the length is, or where the data is.
        part = start if at < start + 12 else start + 12
        assert error is not None
        assert (error.path, error.offset, error.fault) == (str(path), part, "corrupted record")
        assert records == RECORDS[: OFFSETS.index(start)]

    def test_an_absurd_length_takes_no_memory(self) -> None:
        length = (2**60).to_bytes(8, "little")
        stream = io.BytesIO(length + masked_crc32c(length).to_bytes(4, "little") + b"some data")
        with pytest.raises(DataLossError, match="truncated record at 5"):
            read_record(stream, 5, "a")

    def test_it_is_found_again_each_time(self, path: Path) -> None:
        path.write_bytes(WRITTEN[:-1])
        reader = read_tfrecords(path)
        for _ in range(2):
            with pytest.raises(DataLossError, match="truncated record at 37"):
                list(reader)

    def test_in_compressed_data_after_what_could_be_read(self, path: Path) -> None:
        records = [os.urandom(10_000) for _ in range(20)]
        with TFRecordWriter(path, compression="zlib") as writer:
            for record in records:
                writer.write(record)
        path.write_bytes(path.read_bytes()[:-60_000])
        reader = iter(read_tfrecords(path, compression="zlib"))
        assert [next(reader) for _ in range(10)] == records[:10]
        with pytest.raises(DataLossError, match="damaged zlib data") as caught:
            list(reader)
        assert 10 * 10_016 <= caught.value.offset < 15 * 10_016


class TestWriter:
    def test_takes_whatever_has_a_buffer(self, path: Path) -> None:
        with TFRecordWriter(path) as writer:
            writer.write(bytearray(b"one"))
            writer.write(memoryview(b"two"))
        assert list(read_tfrecords(path)) == [b"one", b"two"]

    @pytest.mark.parametrize("record", ["text", 5, None])
    def test_and_nothing_else(self, record: Any, path: Path) -> None:
        with TFRecordWriter(path) as writer, pytest.raises(TypeError):
            writer.write(record)
        assert path.read_bytes() == b""

    @pytest.mark.parametrize(("suffix", "magic"), [(".gz", b"\x1f\x8b"), (".xz", b"\xfd7zXZ")])
    def test_compresses_by_suffix(self, suffix: str, magic: bytes, tmp_path: Path) -> None:
        path = tmp_path / f"file{suffix}"
        with TFRecordWriter(path) as writer:
            writer.write(b"hello")
        assert path.read_bytes().startswith(magic)
        assert list(read_tfrecords(path)) == [b"hello"]

    def test_zlib_is_a_plain_zlib_stream(self, path: Path) -> None:
        with TFRecordWriter(path, compression="zlib") as writer:
            for record in RECORDS:
                writer.write(record)
        assert zlib.decompress(path.read_bytes()) == WRITTEN

    def test_flush_lets_others_see(self, path: Path) -> None:
        with TFRecordWriter(path) as writer:
            writer.write(b"hello")
            writer.flush()
            assert list(read_tfrecords(path)) == [b"hello"]

    def test_close(self, path: Path) -> None:
        writer = TFRecordWriter(path)
        assert repr(writer) == f"<aioqueue.inputs.TFRecordWriter '{path}'>"
        writer.close()
        writer.close()
        assert repr(writer) == f"<aioqueue.inputs.TFRecordWriter '{path}', closed>"
        with pytest.raises(ValueError, match="closed"):
            writer.write(b"late")

    def test_a_stream_is_written_to_and_left_open(self) -> None:
        stream = io.BytesIO(b"head")
        stream.seek(4)
        with TFRecordWriter(stream, compression="gzip") as writer:
            for record in RECORDS:
                writer.write(record)
            writer.flush()
            assert repr(writer).startswith("<aioqueue.inputs.TFRecordWriter '<_io.BytesIO")
        assert stream.getvalue() == b"head" + WRITTEN
        with pytest.raises(ValueError, match="the writer has been closed"):
            writer.write(b"late")
        with pytest.raises(ValueError, match="the writer has been closed"):
            writer.flush()

    def test_left_open_it_warns(self, path: Path) -> None:
        with pytest.warns(ResourceWarning, match="unclosed file"):
            self.leave_open(path)

    @staticmethod
    def leave_open(path: Path) -> None:
        TFRecordWriter(path)
        gc.collect()

    def test_a_directory_that_is_missing_is_an_ordinary_error(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            TFRecordWriter(tmp_path / "none" / "file")


@pytest.mark.skipif(importlib.util.find_spec("fsspec") is None, reason="fsspec is not installed")
def test_urls_are_written_and_read() -> None:
    import fsspec

    with TFRecordWriter("memory://records.gz") as writer:
        writer.write(b"hello")
    assert list(read_tfrecords("memory://records.gz").with_keys()) == [
        ("memory://records.gz:0", b"hello")
    ]
    fsspec.filesystem("memory").rm("/records.gz")


def test_a_missing_extra_is_reported_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    records.required_crc32c.cache_clear()
    with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[tfrecord\]'"):
        read_tfrecords("a")
    with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[tfrecord\]'"):
        TFRecordWriter("a")
