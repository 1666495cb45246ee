"""Tensors to strings and back, as messages of TensorFlow's ``tensor.proto``, without protobuf."""

from __future__ import annotations

import base64
import itertools
import math
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import OpBuilder, Pure, array, invalid, one_text, shape_text
from aioqueue.compat.v1.ops.effects import c_name
from aioqueue.compat.v1.ops.sparse import (
    GROUPED,
    SparseTensor,
    SparseTensorValue,
    add_parts,
    as_sparse,
    check_counts,
    check_indices,
    join_rows,
    sparse_outputs,
)

__all__ = (
    "deserialize_many_sparse", "parse_tensor", "serialize_many_sparse", "serialize_sparse",
    "serialize_tensor",
)  # fmt: skip

_DTYPES = (
    "float32 float64 int32 uint8 int16 int8 string complex64 int64 bool uint16 complex128 float16"
    " uint32 uint64"
)
NUMBERS = dict(zip(_DTYPES.split(), (*range(1, 11), 17, 18, 19, 22, 23), strict=True))

NAMES = {number: name for name, number in NUMBERS.items()}
DTYPE, SHAPE, CONTENT, STRINGS = 1, 2, 4, 8
DIM, SIZE = 2, 1
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
FLOATS = {5: "<f4", 6: "<f8", 9: "<f4", 12: "<f8"}
"""Fields of the message with floats, and how they are stored; the parts of complex ones too."""

INTEGERS = (7, 10, 11, 16, 17)
HALF = 13


def encode_tensor(value: Any, *, packed_strings: bool = False) -> bytes:
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
    try:
        return _decoded(data)
    except (ValueError, IndexError, KeyError, struct.error) as error:
        text = base64.b64encode(data).decode()
        raise invalid(f"Could not parse `serialized` as TensorProto, base64: {text}") from error


def _decoded(data: bytes) -> tuple[DType, NDArray[Any]]:
    number, shape, content = 0, [], None
    parts: list[Any] = []
    for field, kind, value in fields(data):
        if field == DTYPE:
            number = value
        elif field == SHAPE:
            shape = [_size(dim) for place, _, dim in fields(value) if place == DIM]
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


def fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """The fields of a message: number, kind, and the number or the bytes in it."""
    place = 0
    while place < len(data):
        key, place = read_number(data, place)
        kind = key & 7
        if kind == VARINT:
            value, place = read_number(data, place)
            yield key >> 3, kind, value
            continue
        if kind == BYTES:
            length, place = read_number(data, place)
        else:
            length = {FIXED64: 8, FIXED32: 4}[kind]
        if place + length > len(data):
            raise ValueError("it ends within a field")
        yield key >> 3, kind, data[place : place + length]
        place += length


def read_number(data: bytes, place: int) -> tuple[int, int]:
    """A number in base 128, and the place behind it."""
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
    return next((value for place, _, value in fields(dim) if place == SIZE), 0)


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
        number, place = read_number(value, place)
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
        length, place = read_number(content, place)
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


def serialize_tensor(tensor: Any, name: str | None = None) -> Tensor:
    """A tensor as one string, a serialized ``TensorProto``."""
    with OpBuilder("SerializeTensor", name) as op:
        op.tensor(tensor, "tensor")
        return op.output(dtypes.string, (), Pure(encode_tensor))


def parse_tensor(serialized: Any, out_type: Any, name: str | None = None) -> Tensor:
    """The tensor that a string has."""
    wanted = dtypes.as_dtype(out_type)

    def parsed(data: Any) -> Any:
        data = one_text(data, "Expected `serialized` to be a scalar, got shape: ")
        if not data:
            raise invalid("Cannot parse tensor from proto: ")  # a message without a dtype
        dtype, found = decode_tensor(data)
        if dtype != wanted:
            raise invalid(
                f"Type mismatch between parsed tensor ({c_name(dtype)}) and dtype"
                f" ({c_name(wanted)})"
            )
        return found

    with OpBuilder("ParseTensor", name) as op:
        op.rank(op.tensor(serialized, "serialized", dtypes.string), 0)
        return op.output(wanted, None, Pure(parsed))


def serialize_sparse(
    sp_input: Any, name: str | None = None, out_type: Any = dtypes.string
) -> Tensor:
    """A sparse tensor as three strings: indices, values, shape."""
    _check_out_type(out_type)

    def serialized(*parts: Any) -> Any:
        return _strings([encode_tensor(one, packed_strings=True) for one in parts], (3,))

    with OpBuilder("SerializeSparse", name) as op:
        add_parts(op, as_sparse(sp_input), "sparse_indices sparse_values sparse_shape")
        return op.output(dtypes.string, (3,), Pure(serialized))


def serialize_many_sparse(
    sp_input: Any, name: str | None = None, out_type: Any = dtypes.string
) -> Tensor:
    """Each row of a sparse tensor as three strings: ``[rows, 3]``."""
    _check_out_type(out_type)

    def serialized(indices: Any, values: Any, dense_shape: Any) -> Any:
        if len(dense_shape) < 2:
            raise invalid(
                f"Rank of input SparseTensor should be > 1, but saw rank: {len(dense_shape)}"
            )
        check_counts(indices, values, GROUPED)
        check_indices(indices, tuple(dense_shape), in_order=True)
        rows = int(dense_shape[0])
        starts = np.searchsorted(indices[:, 0], np.arange(rows + 1))
        shape = encode_tensor(dense_shape[1:])
        found = []
        for start, stop in itertools.pairwise(starts):
            places = np.ascontiguousarray(indices[start:stop, 1:])
            found += [
                encode_tensor(places),
                encode_tensor(values[start:stop], packed_strings=True),
                shape,
            ]
        return _strings(found, (rows, 3))

    sparse = as_sparse(sp_input)
    with OpBuilder("SerializeManySparse", name) as op:
        add_parts(op, sparse, "sparse_indices sparse_values sparse_shape")
        rows = sparse.shape[0].value if sparse.shape.ndims else None
        return op.output(dtypes.string, (rows, 3), Pure(serialized))


def deserialize_many_sparse(
    serialized_sparse: Any, dtype: Any, rank: int | None = None, name: str | None = None
) -> SparseTensor:
    """One sparse tensor of several, whose number comes first in its indices."""
    wanted = dtypes.as_dtype(dtype)

    def joined(rows: Any) -> Any:
        if array(rows).ndim != 2 or rows.shape[1] != 3:
            raise invalid(
                f"Serialized sparse should have 3 columns but got shape {shape_text(rows.shape)}"
            )
        parsed = [[decode_tensor(one) for one in row] for row in rows.tolist()]
        for _, (found, _), _ in parsed:
            if found != wanted:
                raise invalid(
                    f"Requested SparseTensor of type {c_name(wanted)} but SparseTensor[0].values"
                    f".dtype() == {c_name(found)}"
                )
        values = [SparseTensorValue(*(one for _, one in parts)) for parts in parsed]
        return tuple(join_rows(values, wanted, rank))

    with OpBuilder("DeserializeManySparse", name) as op:
        op.tensor(serialized_sparse, "serialized_sparse", dtypes.string)
        outputs = sparse_outputs(wanted, None if rank is None else rank + 1)
        return SparseTensor(*op.outputs(outputs, Pure(joined)))


def _check_out_type(out_type: Any) -> None:
    if dtypes.as_dtype(out_type) != dtypes.string:
        raise ValueError(f"out_type: got {out_type!r}; expected tf.string")


def _strings(values: list[bytes], shape: tuple[int, ...]) -> NDArray[Any]:
    made = np.empty(len(values), object)
    made[:] = values
    return made.reshape(shape)
