"""Tensors as bytes: serialized ``TensorProto`` messages, written and read without protobuf.

The layout is that of TensorFlow's ``tensor.proto``, in the wire format of protocol buffers.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.ops.building import array, invalid

__all__ = ("NUMBERS", "decode_tensor", "encode_tensor")

NUMBERS = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "string": 7,
    "complex64": 8,
    "int64": 9,
    "bool": 10,
    "uint16": 17,
    "complex128": 18,
    "float16": 19,
    "uint32": 22,
    "uint64": 23,
}
"""TensorFlow's number of each dtype."""
NAMES = {number: name for name, number in NUMBERS.items()}

DTYPE, SHAPE, CONTENT, STRINGS = 1, 2, 4, 8
DIM, SIZE = 2, 1
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
FLOATS = {5: "<f4", 6: "<f8", 9: "<f4", 12: "<f8"}
"""Fields of the message with floats, and how they are stored; the parts of complex ones too."""
INTEGERS = (7, 10, 11, 16, 17)
HALF = 13


def encode_tensor(value: Any, *, packed_strings: bool = False) -> bytes:
    """A serialized ``TensorProto``.

    Args:
        value: an array, a NumPy scalar or ``bytes``.
        packed_strings: whether strings are written as one, as within serialized sparse tensors.
    """
    given = array(value)
    dtype = dtypes.as_dtype(given.dtype)
    dims = b"".join(_field(DIM, _varint(SIZE << 3) + _varint(size)) for size in given.shape)
    head = _varint(DTYPE << 3) + _varint(NUMBERS[dtype.name]) + _field(SHAPE, dims)
    if dtype != dtypes.string:
        stored = given.astype(given.dtype.newbyteorder("<"), copy=False)
        return head + _field(CONTENT, np.ascontiguousarray(stored).tobytes())
    texts = given.ravel().tolist()
    if packed_strings:
        return head + _field(CONTENT, b"".join([*(_varint(len(one)) for one in texts), *texts]))
    return head + b"".join(_field(STRINGS, one) for one in texts)


def _varint(number: int) -> bytes:
    out = bytearray()
    number &= (1 << 64) - 1
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | BYTES) + _varint(len(content)) + content


def decode_tensor(data: bytes) -> tuple[DType, NDArray[Any]]:
    """The dtype and the array that a serialized ``TensorProto`` has.

    Raises:
        InvalidArgumentError: the bytes are not a ``TensorProto``.
    """
    try:
        return _decoded(data)
    except (ValueError, IndexError, KeyError, struct.error) as error:
        text = base64.b64encode(data).decode()
        raise invalid(f"Could not parse `serialized` as TensorProto, base64: {text}") from error


def _decoded(data: bytes) -> tuple[DType, NDArray[Any]]:
    number, shape, content = 0, [], None
    parts: list[Any] = []
    for field, kind, value in _fields(data):
        if field == DTYPE:
            number = value
        elif field == SHAPE:
            shape = [_size(dim) for place, _, dim in _fields(value) if place == DIM]
        elif field == CONTENT:
            content = value
        elif field == STRINGS:
            parts.append(value)
        else:
            parts.extend(_numbers(field, kind, value))
    dtype = dtypes.as_dtype(NAMES[number])
    if content:
        return dtype, _from_content(dtype, content, shape)
    return dtype, _from_parts(dtype, parts, shape)


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """The fields of a message: number, wire type and content."""
    place = 0
    while place < len(data):
        key, place = _read_varint(data, place)
        kind = key & 7
        if kind == VARINT:
            value, place = _read_varint(data, place)
            yield key >> 3, kind, value
            continue
        if kind == BYTES:
            length, place = _read_varint(data, place)
        else:
            length = {FIXED64: 8, FIXED32: 4}[kind]
        if place + length > len(data):
            raise ValueError("it ends within a field")
        yield key >> 3, kind, data[place : place + length]
        place += length


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[place]
        number |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return number, place
        if shift > 63:
            raise ValueError("a number is too long")


def _size(dim: bytes) -> int:
    return next((value for place, _, value in _fields(dim) if place == SIZE), 0)


def _numbers(field: int, kind: int, value: Any) -> list[Any]:
    """The values of a field of numbers, which may be packed."""
    if field in FLOATS:
        return list(np.frombuffer(value, FLOATS[field]).tolist())
    if field not in (*INTEGERS, HALF):
        return []
    if kind == VARINT:
        return [_signed(value)]
    found = []
    place = 0
    while place < len(value):
        number, place = _read_varint(value, place)
        found.append(_signed(number))
    return found


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _from_content(dtype: DType, content: bytes, shape: list[int]) -> NDArray[Any]:
    if dtype != dtypes.string:
        stored = np.frombuffer(content, dtype.numpy.newbyteorder("<"))
        return stored.astype(dtype.numpy).reshape(shape)
    lengths = []
    place = 0
    for _ in range(math.prod(shape)):
        length, place = _read_varint(content, place)
        lengths.append(length)
    texts = np.empty(len(lengths), object)
    for index, length in enumerate(lengths):
        texts[index] = content[place : place + length]
        place += length
    return texts.reshape(shape)


def _from_parts(dtype: DType, parts: list[Any], shape: list[int]) -> NDArray[Any]:
    """Single values; the last one is repeated as often as the shape asks for."""
    count = math.prod(shape)
    if dtype.is_complex:
        parts = [complex(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    filler = parts[-1] if parts else b"" if dtype == dtypes.string else 0
    values = [*parts[:count], *[filler] * (count - len(parts))]
    if dtype == dtypes.float16:
        return np.array(values, np.uint16).view(np.float16).reshape(shape)
    made = np.empty(count, dtype.numpy)
    made[:] = values if dtype != dtypes.uint64 else [one & (1 << 64) - 1 for one in values]
    return made.reshape(shape)
