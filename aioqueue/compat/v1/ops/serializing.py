"""Tensors to strings and back: `serialize_tensor`, `parse_tensor`, and those of sparse ones."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import OpBuilder, Pure, array, invalid, one_text, shape_text
from aioqueue.compat.v1.ops.sparse import (
    GROUPED,
    SparseTensor,
    as_sparse,
    check_counts,
    check_indices,
)
from aioqueue.compat.v1.ops.tensor_protos import decode_tensor, encode_tensor

__all__ = (
    "deserialize_many_sparse",
    "parse_tensor",
    "serialize_many_sparse",
    "serialize_sparse",
    "serialize_tensor",
)

_C_NAMES = {"float16": "half", "float32": "float", "float64": "double"}


def serialize_tensor(tensor: Any, name: str | None = None) -> Tensor:
    """A tensor as one string, a serialized ``TensorProto``."""
    with OpBuilder("SerializeTensor", name) as op:
        op.tensor(tensor, "tensor")
        return op.output(dtypes.string, (), Pure(encode_tensor))


def parse_tensor(serialized: Any, out_type: Any, name: str | None = None) -> Tensor:
    """The tensor that a string has.

    Args:
        serialized: a string, as from `serialize_tensor`.
        out_type: the tensor's dtype.
        name: name of the op.

    Raises:
        InvalidArgumentError: when it runs: it is no tensor, or one of another dtype.
    """
    wanted = dtypes.as_dtype(out_type)

    def parsed(data: Any) -> Any:
        data = one_text(data, "Expected `serialized` to be a scalar, got shape: ")
        if not data:
            raise invalid("Cannot parse tensor from proto: ")  # a message without a dtype
        dtype, found = decode_tensor(data)
        if dtype != wanted:
            raise invalid(
                f"Type mismatch between parsed tensor ({_c_name(dtype)}) and dtype"
                f" ({_c_name(wanted)})"
            )
        return found

    with OpBuilder("ParseTensor", name) as op:
        op.rank(op.tensor(serialized, "serialized", dtypes.string), 0)
        return op.output(wanted, None, Pure(parsed))


def _c_name(dtype: DType) -> str:
    return _C_NAMES.get(dtype.name, dtype.name)


def serialize_sparse(
    sp_input: Any, name: str | None = None, out_type: Any = dtypes.string
) -> Tensor:
    """A sparse tensor as three strings: indices, values, shape.

    Args:
        sp_input: the sparse tensor.
        name: name of the op.
        out_type: ``tf.string``.
    """
    _check_out_type(out_type)

    def serialized(*parts: Any) -> Any:
        return _strings([encode_tensor(one, packed_strings=True) for one in parts], (3,))

    with OpBuilder("SerializeSparse", name) as op:
        for argument, one in zip(_PARTS, as_sparse(sp_input).parts, strict=True):
            op.tensor(one, argument)
        return op.output(dtypes.string, (3,), Pure(serialized))


def serialize_many_sparse(
    sp_input: Any, name: str | None = None, out_type: Any = dtypes.string
) -> Tensor:
    """Each row of a sparse tensor as three strings: ``[rows, 3]``.

    Args:
        sp_input: the sparse tensor, of at least two dimensions, its indices in order.
        name: name of the op.
        out_type: ``tf.string``.
    """
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
        for argument, one in zip(_PARTS, sparse.parts, strict=True):
            op.tensor(one, argument)
        rows = sparse.shape[0].value if sparse.shape.ndims else None
        return op.output(dtypes.string, (rows, 3), Pure(serialized))


_PARTS = ("sparse_indices", "sparse_values", "sparse_shape")


def deserialize_many_sparse(
    serialized_sparse: Any, dtype: Any, rank: int | None = None, name: str | None = None
) -> SparseTensor:
    """One sparse tensor of several, whose number comes first in its indices.

    Args:
        serialized_sparse: ``[n, 3]``, as from `serialize_sparse`, stacked.
        dtype: of the values.
        rank: of each of them, if it is known.
        name: name of the op.

    Raises:
        InvalidArgumentError: when it runs: they are none, or differ in rank or dtype.
    """
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
                    f"Requested SparseTensor of type {_c_name(wanted)} but SparseTensor[0].values"
                    f".dtype() == {_c_name(found)}"
                )
        shapes = [shape for _, _, (_, shape) in parsed]
        if len({len(one) for one in shapes}) > 1:
            raise invalid(
                f"Inconsistent rank across SparseTensors: rank prior to SparseTensor[1] was:"
                f" {len(shapes[0])}"
            )
        counts = [len(values) for _, (_, values), _ in parsed]
        known = len(shapes[0]) if shapes else rank or 0
        places = [np.zeros((0, known), np.int64), *(one for (_, one), _, _ in parsed)]
        numbers = np.repeat(np.arange(len(parsed), dtype=np.int64), counts)
        largest = np.max(shapes, axis=0) if shapes else np.zeros(known, np.int64)
        return (
            np.concatenate([numbers[:, np.newaxis], np.concatenate(places)], axis=1),
            np.concatenate([np.empty(0, wanted.numpy), *(one for _, (_, one), _ in parsed)]),
            np.concatenate([[len(parsed)], largest]).astype(np.int64),
        )

    with OpBuilder("DeserializeManySparse", name) as op:
        op.tensor(serialized_sparse, "serialized_sparse", dtypes.string)
        size = None if rank is None else rank + 1
        outputs = [(dtypes.int64, (None, size)), (wanted, (None,)), (dtypes.int64, (size,))]
        return SparseTensor(*op.outputs(outputs, Pure(joined)))


def _check_out_type(out_type: Any) -> None:
    if dtypes.as_dtype(out_type) != dtypes.string:
        raise ValueError(f"out_type: got {out_type!r}; expected tf.string")


def _strings(values: list[bytes], shape: tuple[int, ...]) -> NDArray[Any]:
    made = np.empty(len(values), object)
    made[:] = values
    return made.reshape(shape)
