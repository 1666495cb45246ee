"""TFRecord files: records of bytes with checksums, in the format of TensorFlow.

A record is framed by its length and two checksums, all little-endian::

    uint64  length of the data
    uint32  masked CRC-32C of the eight bytes above
    bytes   the data
    uint32  masked CRC-32C of the data

A masked checksum is rotated right by 15 bits, plus a constant. So checksums remain effective for
data that itself contains checksums.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import IO, Any, ClassVar, Final, Self

from aioqueue import DataLossError
from aioqueue.base.display_text import without_secrets
from aioqueue.base.extras import required
from aioqueue.base.public_names import public
from aioqueue.items.quarantine import OnDamage, QuarantinePath
from aioqueue.readers.files import (
    MAX_RECORD_BYTES,
    FilePath,
    StorageOptions,
    checked_limit,
    create,
    exceeds,
    forward,
    path_name,
    read_up_to,
)
from aioqueue.readers.reader import FileFormat, Mark, Paths, Reader, Records
from aioqueue.system.forks import inherited_object, is_inherited, note_for_forks

_LENGTH: Final = struct.Struct("<Q")
_HEADER: Final = struct.Struct("<QI")
_CHECKSUM: Final = struct.Struct("<I")
_MASK: Final = 0xA282EAD8
_BLOCK: Final = 2**16


def read_tfrecords(
    paths: Paths,
    *,
    compression: str | None = "infer",
    max_record_bytes: int | None = MAX_RECORD_BYTES,
    storage_options: StorageOptions = None,
    seed: int | None = None,
    on_error: OnDamage = "stop",
    quarantine: QuarantinePath = None,
) -> Reader[bytes]:
    """Read the records of TFRecord files. Needs the extra ``tfrecord``.

    Keys are ``path:offset``, in bytes (decompressed).

    Args:
        paths: one path or URL, a source of paths such as `files`, or any iterable of paths.
        compression: ``"infer"`` (from the suffix: .gz, .bz2, .xz, .zst), ``None``, or ``"gzip"``,
            ``"bz2"``, ``"xz"``, ``"zstd"`` or ``"zlib"``. TensorFlow writes gzip and zlib, without
            a suffix.
        max_record_bytes: the largest record, in bytes: 256 MiB by default. ``None`` for no limit.
        storage_options: the options of fsspec for a URL's file system, such as credentials.
        seed: the seed of the records' generators, and of the order of paths that have no seed;
            ``None`` takes the seed of a source of paths, or fresh entropy.
        on_error: as for `read_lines`.
        quarantine: as for `read_lines`.

    Returns:
        A reader of bytes. Iterating over it raises `DataLossError` if a record is corrupted,
        truncated or too large, and `OSError` if a file cannot be read.

    Raises:
        InvalidArgumentError: any argument is not as described.
        ModuleNotFoundError: google-crc32c is not installed.
    """
    required_crc32c()
    return TFRecordFormat(checked_limit(max_record_bytes, "max_record_bytes")).reader(
        paths,
        compression=compression,
        storage_options=storage_options,
        seed=seed,
        on_error=on_error,
        quarantine=quarantine,
    )


@dataclass(frozen=True)
class TFRecordFormat(FileFormat[bytes]):
    """TFRecord files. A mark is an offset."""

    function = "read_tfrecords"
    extra: ClassVar[str | None] = "tfrecord"
    suffix: ClassVar[str | None] = ".tfrecord"
    key: ClassVar[str | None] = "offset"
    page = "howto/records.md"

    most: int | None
    """The largest record, in bytes; ``None`` for no limit."""

    ahead = 128

    def options(self) -> dict[str, Any]:
        return {}

    def limits(self) -> dict[str, Any]:
        return {"max_record_bytes": self.most}

    def cut(self, stream: IO[bytes], path: str, mark: Mark) -> Iterator[Records[bytes]]:
        if mark:
            forward(stream, mark, path)
        end: int | None = mark or 0
        while end is not None:
            begin = end
            offsets: list[int] = []
            records: list[bytes] = []
            try:
                end = _read_block(stream, begin, path, self.most, offsets, records)
            except Exception:
                yield Records(offsets, records, begin)  # the records before the damage are sound
                raise
            yield Records(offsets, records, begin)


def _read_block(
    stream: IO[bytes],
    offset: int,
    path: str,
    most: int | None,
    offsets: list[int],
    records: list[bytes],
) -> int | None:
    """Read about a block of records from an offset on; return the offset of the next record."""
    end = offset + _BLOCK
    while offset < end:
        record = read_record(stream, offset, path, most)
        if record is None:
            return None
        offsets.append(offset)
        records.append(record)
        offset += len(record) + _HEADER.size + _CHECKSUM.size
    return offset


@public("aioqueue.inputs", hints="inputs")
class TFRecordWriter:
    """Writes a TFRecord file. Needs the extra ``tfrecord``. Use it in one thread at a time.

    Use it as a context manager, or close it: only then is everything in the file.

    Args:
        path: the path of the file, which is created or emptied; or a URL, for fsspec; or a binary
            stream that is open for writing, which `close` neither closes nor flushes.
        compression: as for `read_tfrecords`. A stream gets uncompressed data.
        storage_options: as for `read_tfrecords`.

    Raises:
        OSError: the file cannot be created.
        InvalidArgumentError: any argument is not as described.
        ModuleNotFoundError: google-crc32c is not installed.
    """

    def __init__(
        self,
        path: FilePath | IO[bytes],
        *,
        compression: str | None = "infer",
        storage_options: StorageOptions = None,
    ) -> None:
        required_crc32c()
        self._stream: IO[bytes]
        self._closing = ExitStack()
        if isinstance(path, str | bytes | os.PathLike) or not hasattr(path, "write"):
            self._path = path_name(path)
            self._stream, self._closing = create(self._path, compression, storage_options)
        else:
            self._path = str(getattr(path, "name", path))
            self._stream = path
        self._is_closed = False
        note_for_forks(self)

    def _was_forked(self) -> None:
        if self._is_closed:
            return
        # Otherwise both processes would write the buffered data.
        what = f"this writer of {without_secrets(repr(self._path))}"
        self._stream = inherited_object(what, self._stream)
        self._closing = inherited_object(what, self._closing)

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ""
        return f"<aioqueue.inputs.TFRecordWriter {without_secrets(repr(self._path))}{state}>"

    def write(self, record: bytes | bytearray | memoryview) -> None:
        """Write one record.

        Args:
            record: the data: bytes, or any object with a contiguous buffer.

        Raises:
            ValueError: the writer has been closed.
            TypeError: the record is not bytes-like.
        """
        self._check()
        write_record(self._stream, record)

    def flush(self) -> None:
        """Pass the records written so far to the operating system, as far as compression allows.

        Raises:
            ValueError: the writer has been closed.
        """
        self._check()
        self._stream.flush()

    def close(self) -> None:
        """Write the remaining data, and close the file. A second call does nothing.

        Raises:
            RuntimeError: this process is a fork of the one that made the writer, which closes it.
        """
        self._is_closed = not is_inherited(self._closing)
        self._closing.close()

    def _check(self) -> None:
        if self._is_closed:
            raise ValueError(f"{without_secrets(self._path)}: the writer has been closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or not is_inherited(self._closing):
            self.close()


def write_record(stream: IO[bytes], record: bytes | bytearray | memoryview) -> None:
    """Write one framed record to a binary stream.

    Args:
        stream: the stream to write to.
        record: the data: bytes, or any object with a contiguous buffer.
    """
    data = record if isinstance(record, bytes) else bytes(memoryview(record).cast("B"))
    length = _LENGTH.pack(len(data))
    header = length + _CHECKSUM.pack(masked_crc32c(length))
    stream.write(b"".join((header, data, _CHECKSUM.pack(masked_crc32c(data)))))


def read_record(
    stream: IO[bytes], offset: int = 0, path: str = "", most: int | None = None
) -> bytes | None:
    """Read one framed record from a binary stream.

    Args:
        stream: the stream to read from, at the start of a record.
        offset: the stream's offset in the file, for errors.
        path: the file's path, for errors.
        most: the largest record to read, in bytes; ``None`` for any.

    Returns:
        The data, or ``None`` if the stream ends.

    Raises:
        DataLossError: the record is too large; or the stream ends within it ("truncated record",
            with the offset of the record), or a checksum is wrong ("corrupted record", with the
            offset of the record if its length is wrong, otherwise with that of the data).
            TensorFlow agrees, except that it has no largest record, and treats a stream that ends
            within the length as complete.
    """
    header = stream.read(_HEADER.size)
    if not header:
        return None
    if len(header) < _HEADER.size:
        raise DataLossError(path=path, offset=offset, fault="truncated record")
    length, checksum = _HEADER.unpack(header)
    if masked_crc32c(header[: _LENGTH.size]) != checksum:
        raise DataLossError(path=path, offset=offset, fault="corrupted record")
    if most is not None and length > most:
        fault = exceeds(f"a record of {length} bytes", "max_record_bytes", most)
        raise DataLossError(path=path, offset=offset, fault=fault)
    data = read_up_to(stream, length)
    framing = stream.read(_CHECKSUM.size)  # apart, because a slice would be a second copy
    if len(data) < length or len(framing) < _CHECKSUM.size:
        raise DataLossError(path=path, offset=offset, fault="truncated record")
    if masked_crc32c(data) != _CHECKSUM.unpack(framing)[0]:
        raise DataLossError(path=path, offset=offset + _HEADER.size, fault="corrupted record")
    return data


def masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C of bytes, masked as in TFRecord files.

    Args:
        data: the bytes.

    Returns:
        An int of 32 bits.
    """
    checksum = required_crc32c()(data)
    return ((checksum >> 15 | checksum << 17) + _MASK) & 0xFFFFFFFF


@cache
def required_crc32c() -> Callable[[bytes], int]:
    found: Callable[[bytes], int] = required(
        "google_crc32c", "tfrecord", "reading and writing TFRecord files"
    ).value
    return found
