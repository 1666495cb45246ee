"""TFRecord files: records of bytes with checksums, as TensorFlow writes and reads them.

A record is framed by its length and two checksums, all little-endian::

    uint64  length of the data
    uint32  masked CRC-32C of the eight bytes above
    bytes   the data
    uint32  masked CRC-32C of the data

A masked checksum is rotated right by 15 bits, plus a constant, so that the checksum of data which
itself has checksums in it stays a good one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from types import TracebackType
from typing import IO, Final, Self

from aioqueue import DataLossError
from aioqueue.inputs.readers.compression import required
from aioqueue.inputs.readers.files import (
    FilePath,
    StorageOptions,
    create,
    forward,
    path_name,
    read_up_to,
)
from aioqueue.inputs.readers.reader import Mark, Paths, Reader, Records

__all__ = ("TFRecordWriter", "masked_crc32c", "read_record", "read_tfrecords", "write_record")

_LENGTH: Final = struct.Struct("<Q")
_HEADER: Final = struct.Struct("<QI")
_CHECKSUM: Final = struct.Struct("<I")
_MASK: Final = 0xA282EAD8
_BLOCK: Final = 2**16


def read_tfrecords(
    paths: Paths,
    *,
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
) -> Reader[bytes]:
    """The records of TFRecord files. Needs the extra ``tfrecord``.

    Keys are ``path:offset``, in bytes (decompressed).

    Args:
        paths: one path or URL, a source of them such as `files`, or any iterable of them.
        compression: ``"infer"`` (from the suffix: .gz, .bz2, .xz, .zst), ``None``, or ``"gzip"``,
            ``"bz2"``, ``"xz"``, ``"zstd"`` or ``"zlib"``. TensorFlow knows gzip and zlib, and puts
            no suffix.
        storage_options: what fsspec needs to know about a URL's file system: credentials, say.
        seed: for the generators of the records, and for the order of paths that have no seed;
            ``None`` takes that of a source of paths, or fresh entropy.

    Returns:
        A reader of bytes. Going through it raises `DataLossError` at a record that is corrupted or
        truncated, and `OSError` for a file that cannot be read.

    Raises:
        InvalidArgumentError: an argument is wrong.
        ModuleNotFoundError: google-crc32c is not installed.
    """
    _crc32c()

    return Reader(
        "read_tfrecords",
        paths,
        _runs,
        ahead=128,
        compression=compression,
        storage_options=storage_options,
        seed=seed,
    )


def _runs(stream: IO[bytes], path: str, mark: Mark) -> Iterator[Records[bytes]]:
    """The records of an open file from an offset on, about a block of it at a time."""
    if mark:
        forward(stream, mark, path)
    end: int | None = mark or 0
    while end is not None:
        begin = end
        offsets: list[int] = []
        records: list[bytes] = []
        try:
            end = _read_block(stream, begin, path, offsets, records)
        except Exception:
            yield Records(offsets, records, begin)  # what was read before the damage is sound
            raise
        yield Records(offsets, records, begin)


def _read_block(
    stream: IO[bytes], offset: int, path: str, offsets: list[int], records: list[bytes]
) -> int | None:
    """Read about a block of records from an offset on; returns that of the next one."""
    end = offset + _BLOCK
    while offset < end:
        record = read_record(stream, offset, path)
        if record is None:
            return None
        offsets.append(offset)
        records.append(record)
        offset += len(record) + _HEADER.size + _CHECKSUM.size
    return offset


class TFRecordWriter:
    """Writes a TFRecord file. Needs the extra ``tfrecord``. For one thread at a time.

    Use it as a context manager, or close it: what it still holds is in the file only then.

    Args:
        path: of the file, which is made, or emptied; or a URL, for fsspec; or a binary stream that
            is open for writing, which `close` leaves open, and does not flush.
        compression: as for `read_tfrecords`. What goes to a stream is not compressed.
        storage_options: as for `read_tfrecords`.

    Raises:
        OSError: the file cannot be made.
        InvalidArgumentError: an argument is wrong.
        ModuleNotFoundError: google-crc32c is not installed.
    """

    def __init__(
        self,
        path: FilePath | IO[bytes],
        *,
        compression: str | None = "infer",
        storage_options: StorageOptions = None,
    ) -> None:
        _crc32c()
        self._stream: IO[bytes]
        self._closing = ExitStack()
        if isinstance(path, str | bytes | os.PathLike) or not hasattr(path, "write"):
            self._path = path_name(path)
            self._stream, self._closing = create(self._path, compression, storage_options)
        else:
            self._path = str(getattr(path, "name", path))
            self._stream = path
        self._is_closed = False

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ""
        return f"<aioqueue.inputs.TFRecordWriter {self._path!r}{state}>"

    def write(self, record: bytes | bytearray | memoryview) -> None:
        """Write one record.

        Args:
            record: its data: bytes, or anything with a buffer of contiguous bytes.

        Raises:
            ValueError: the writer has been closed.
            TypeError: the record is no bytes.
        """
        self._check()
        write_record(self._stream, record)

    def flush(self) -> None:
        """Hand what has been written to the operating system, as far as compression allows.

        Raises:
            ValueError: the writer has been closed.
        """
        self._check()
        self._stream.flush()

    def close(self) -> None:
        """Write what is left, and close the file. A second time does nothing."""
        self._is_closed = True
        self._closing.close()

    def _check(self) -> None:
        if self._is_closed:
            raise ValueError(f"{self._path}: the writer has been closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def write_record(stream: IO[bytes], record: bytes | bytearray | memoryview) -> None:
    """Write one framed record to a binary stream.

    Args:
        stream: what to write to.
        record: the data: bytes, or anything with a buffer of contiguous bytes.
    """
    data = record if isinstance(record, bytes) else bytes(memoryview(record).cast("B"))
    length = _LENGTH.pack(len(data))
    header = length + _CHECKSUM.pack(masked_crc32c(length))
    stream.write(b"".join((header, data, _CHECKSUM.pack(masked_crc32c(data)))))


def read_record(stream: IO[bytes], offset: int = 0, path: str = "") -> bytes | None:
    """Read one framed record from a binary stream.

    Args:
        stream: what to read from; it must stand at the start of a record.
        offset: where that is in the file, for errors.
        path: what errors call the file.

    Returns:
        The data, or ``None`` where the stream ends.

    Raises:
        DataLossError: the stream ends within the record ("truncated record", at its start), or a
            checksum is wrong ("corrupted record", at the record's start if it is that of the
            length, at the data's if it is theirs). TensorFlow says the same, but takes a stream
            that ends within the length for one that ends before it.
    """
    header = stream.read(_HEADER.size)
    if not header:
        return None
    if len(header) < _HEADER.size:
        raise DataLossError(path=path, offset=offset, fault="truncated record")
    length, checksum = _HEADER.unpack(header)
    if masked_crc32c(header[: _LENGTH.size]) != checksum:
        raise DataLossError(path=path, offset=offset, fault="corrupted record")
    framed = read_up_to(stream, length + _CHECKSUM.size)
    if len(framed) < length + _CHECKSUM.size:
        raise DataLossError(path=path, offset=offset, fault="truncated record")
    data = framed[:length]
    if masked_crc32c(data) != _CHECKSUM.unpack_from(framed, length)[0]:
        raise DataLossError(path=path, offset=offset + _HEADER.size, fault="corrupted record")
    return data


def masked_crc32c(data: bytes) -> int:
    """The CRC-32C of some bytes, masked as TFRecord files have it.

    Args:
        data: the bytes.

    Returns:
        An int of 32 bits.
    """
    checksum = _crc32c()(data)
    return ((checksum >> 15 | checksum << 17) + _MASK) & 0xFFFFFFFF


@cache
def _crc32c() -> Callable[[bytes], int]:
    found: Callable[[bytes], int] = required(
        "google_crc32c", "tfrecord", "reading and writing TFRecord files"
    ).value
    return found
