"""Checkpoints that TensorFlow has written, read without it: the second version of its format.

``<name>.index`` is a sorted table: blocks of keys and values, and an index of the blocks, as in
LevelDB (https://github.com/google/leveldb/blob/main/doc/table_format.md). Each value is a message
that says where in ``<name>.data-00000-of-00001`` a tensor lies.
"""

from __future__ import annotations

import importlib.util
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from aioqueue.compat.v1.core.dtypes import DType, as_dtype
from aioqueue.compat.v1.errors import DataLossError, UnimplementedError

__all__ = ("is_bundle", "read_bundle")

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TRAILER = 5
"""Behind each block: how it is compressed, and its checksum."""

Fields = dict[int, list[Any]]


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where a tensor lies, and what it is."""

    dtype: DType
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


def read_bundle(prefix: str) -> dict[str, Any]:
    """The tensors of a checkpoint by name.

    Checksums are verified where google-crc32c is installed (the extra ``tfrecord``).
    """
    path = f"{prefix}.index"
    with open(path, "rb") as file:
        table = file.read()
    try:
        rows = dict(_rows(table))
        shards = int(_fields(rows.pop(b"")).get(1, [1])[0])
        entries = {key.decode(): _entry(key.decode(), _fields(row)) for key, row in rows.items()}
    except (IndexError, KeyError, ValueError, TypeError, OverflowError, struct.error) as error:
        raise _damaged(path, error) from error
    found: dict[str, Any] = {}
    for shard in range(shards):
        path = f"{prefix}.data-{shard:05d}-of-{shards:05d}"
        with open(path, "rb") as file:
            there = os.fstat(file.fileno()).st_size
            for name, entry in entries.items():
                if entry.shard == shard:
                    if entry.offset + entry.size > there:
                        raise _damaged(path, f"{name}: the file ends before it does")
                    file.seek(entry.offset)
                    found[name] = _tensor(path, name, entry, file.read(entry.size))
    return found


def _damaged(path: str, why: object) -> DataLossError:
    return DataLossError(None, None, f"{path}: damaged, or no checkpoint of TensorFlow: {why}")


def _tensor(path: str, name: str, entry: _Entry, data: bytes) -> Any:
    """A tensor from its bytes."""
    try:
        if entry.dtype.name == "string":
            return _strings(entry, data)
        _verify(data, entry.checksum)
        numbers = np.frombuffer(data, np.dtype(entry.dtype.as_numpy_dtype).newbyteorder("<"))
        return numbers.astype(entry.dtype.as_numpy_dtype).reshape(entry.shape)[()]
    except (IndexError, ValueError, struct.error) as error:
        raise _damaged(path, f"{name}: {error}") from error


def _strings(entry: _Entry, data: bytes) -> Any:
    """Strings: their lengths, the checksum of these, and their bytes."""
    count, place = int(np.prod(entry.shape, dtype=np.int64)), 0
    lengths: list[int] = []
    for _ in range(count):
        length, place = _number(data, place)
        lengths.append(length)
    widths = ["I" if length < 2**32 else "Q" for length in lengths]
    packed = struct.pack(f"<{''.join(widths)}", *lengths)
    checksum = data[place : place + 4]
    _verify(packed, *struct.unpack("<I", checksum))
    place += 4
    _verify(packed + data[place - 4 :], entry.checksum)
    strings = np.empty(count, object)
    for number, length in enumerate(lengths):
        strings[number] = data[place : place + length]
        place += length
    if place != len(data):
        raise ValueError("the lengths of its strings do not add up")
    return strings.reshape(entry.shape)[()]


def _verify(data: bytes, checksum: int) -> None:
    """Compare a checksum, if there is what computes it."""
    if importlib.util.find_spec("google_crc32c") is None:
        return
    from google_crc32c import value

    plain = value(data)
    if ((plain >> 15 | plain << 17) + 0xA282EAD8) & 0xFFFFFFFF != checksum:
        raise ValueError("the checksum is another one")


# The table.


def _rows(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a table, in order."""
    footer = table[-_FOOTER:]
    if len(footer) < _FOOTER or struct.unpack_from("<Q", footer, _FOOTER - 8)[0] != _MAGIC:
        raise ValueError("it does not end as a table does")
    place = 0
    for _ in range(2):  # the index of other data comes first
        _, place = _number(footer, place)
    for _, handle in _block(table, footer[place:]):
        yield from _block(table, handle)


def _block(table: bytes, handle: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of one block; keys leave out what they share with the one before."""
    start, place = _number(handle, 0)
    size, _ = _number(handle, place)
    block = table[start : start + size]
    compression, checksum = struct.unpack_from("<BI", table, start + size)
    _verify(table[start : start + size + _TRAILER - 4], checksum)
    if compression:
        raise UnimplementedError(None, None, "The index of the checkpoint is compressed.")
    (restarts,) = struct.unpack_from("<I", block, size - 4)
    end, place, key = size - 4 - 4 * restarts, 0, b""
    while place < end:
        shared, place = _number(block, place)
        own, place = _number(block, place)
        length, place = _number(block, place)
        key = key[:shared] + block[place : place + own]
        place += own
        yield key, block[place : place + length]
        place += length


# Messages of protobuf.


def _number(data: bytes, place: int) -> tuple[int, int]:
    """A number in base 128, and the place behind it."""
    number = shift = 0
    while True:
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _fields(message: bytes) -> Fields:
    """The fields of a message by number, each with all its values."""
    found: Fields = {}
    place = 0
    while place < len(message):
        tag, place = _number(message, place)
        value: Any
        match tag & 7:
            case 0:
                value, place = _number(message, place)
            case 2:
                length, place = _number(message, place)
                value = message[place : place + length]
                place += length
            case 5:
                (value,) = struct.unpack_from("<I", message, place)
                place += 4
            case kind:
                raise ValueError(f"a field of kind {kind}")
        found.setdefault(tag >> 3, []).append(value)
    return found


def _entry(name: str, fields: Fields) -> _Entry:
    """What a ``BundleEntryProto`` says."""
    if 7 in fields:
        raise UnimplementedError(None, None, f"{name} is kept in slices, which are not read.")
    try:
        dtype = as_dtype(int(fields[1][0]))
    except TypeError:
        message = f"{name} has the type number {fields[1][0]}, which is not read."
        raise UnimplementedError(None, None, message) from None
    dims = _fields(fields.get(2, [b""])[0]).get(2, [])
    shape = tuple(int(_fields(dim).get(1, [0])[0]) for dim in dims)
    shard, offset, size, checksum = (int(fields.get(key, [0])[0]) for key in (3, 4, 5, 6))
    return _Entry(dtype, shape, shard, offset, size, checksum)


def is_bundle(prefix: str) -> bool:
    """Whether TensorFlow has written a checkpoint of this name."""
    return os.path.isfile(f"{prefix}.index")
