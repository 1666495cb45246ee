"""How queues and datasets hold sparse tensors and batch them.

In a queue each sparse tensor is one component, a scalar whose value is a `SparseRow`. A batch of
them becomes a sparse tensor of one rank more, in whose indices the number of the row comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.default_graph import op
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.ops.sparse import SparseTensor, SparseTensorValue

__all__ = (
    "SparseRow",
    "joined_rows",
    "pack_sparse",
    "pack_sparse_rows",
    "unpack_one",
    "unpack_sparse",
)


class SparseRow:
    """The value of a sparse tensor as one object, for queues; arrays do not take it apart."""

    __slots__ = ("value",)

    def __init__(self, value: SparseTensorValue) -> None:
        self.value: SparseTensorValue = value


def pack_sparse(sparse: SparseTensor) -> Tensor:
    """A scalar that holds a sparse tensor, for a queue."""

    def kernel(step: Any, *parts: Any) -> Any:
        return SparseRow(SparseTensorValue(*parts))

    outputs = [(dtypes.variant, TensorShape([]))]
    return op("SerializeSparse", sparse.parts, outputs, kernel).outputs[0]


def pack_sparse_rows(sparse: SparseTensor) -> Tensor:
    """A vector that holds the rows of a sparse tensor, for a queue."""

    def kernel(step: Any, indices: Any, values: Any, dense_shape: Any) -> Any:
        rows = np.empty(int(dense_shape[0]), dtype=object)
        for number in range(len(rows)):
            of_row = indices[:, 0] == number
            rows[number] = SparseRow(
                SparseTensorValue(indices[of_row, 1:], values[of_row], dense_shape[1:])
            )
        return rows

    count = sparse.shape[0] if sparse.shape.ndims else None
    outputs = [(dtypes.variant, TensorShape([count]))]
    return op("SerializeManySparse", sparse.parts, outputs, kernel).outputs[0]


def unpack_one(held: Tensor, dtype: DType, shape: TensorShape) -> SparseTensor:
    """The sparse tensor that a scalar holds.

    Args:
        held: what `pack_sparse` makes.
        dtype: of the values.
        shape: what is known of its shape.
    """

    def kernel(step: Any, held: Any) -> Any:
        return tuple(held.value)

    rank = shape.ndims
    outputs = [
        (dtypes.int64, TensorShape([None, rank])),
        (dtype, TensorShape([None])),
        (dtypes.int64, TensorShape([rank])),
    ]
    return SparseTensor(*op("DeserializeSparse", [held], outputs, kernel).outputs)


def joined_rows(rows: Sequence[SparseRow]) -> SparseRow:
    """One of several, of at least one: the number of the row comes first in its indices."""
    values = [row.value for row in rows]
    return SparseRow(_joined(values, dtypes.as_dtype(np.asarray(values[0].values).dtype), None))


def unpack_sparse(rows: Tensor, dtype: DType, rank: int | None) -> SparseTensor:
    """The sparse tensor whose rows a vector holds.

    Args:
        rows: a vector of what `pack_sparse` makes.
        dtype: of the values.
        rank: of the rows, if that is known.
    """

    def kernel(step: Any, held: Any) -> Any:
        return tuple(_joined([row.value for row in held], dtype, rank))

    batch_rank = None if rank is None else rank + 1
    outputs = [
        (dtypes.int64, TensorShape([None, batch_rank])),
        (dtype, TensorShape([None])),
        (dtypes.int64, TensorShape([batch_rank])),
    ]
    return SparseTensor(*op("DeserializeManySparse", [rows], outputs, kernel).outputs)


def _joined(
    values: Sequence[SparseTensorValue], dtype: DType, rank: int | None
) -> SparseTensorValue:
    """One sparse value of several: the number of the row comes first in its indices."""
    if not values:
        known = rank or 0
        return SparseTensorValue(
            np.zeros((0, known + 1), np.int64),
            np.zeros(0, dtype.numpy),
            np.zeros(known + 1, np.int64),
        )
    shapes = [value.dense_shape for value in values]
    if len({len(shape) for shape in shapes}) > 1:
        raise errors.InvalidArgumentError(
            None,
            None,
            f"Inconsistent rank across SparseTensors: {[len(shape) for shape in shapes]}",
        )
    counts = [len(value.indices) for value in values]
    numbers = np.repeat(np.arange(len(values), dtype=np.int64), counts)
    places = np.concatenate([value.indices for value in values])
    return SparseTensorValue(
        np.concatenate([numbers[:, None], places], axis=1),
        np.concatenate([value.values for value in values]),
        np.concatenate([[len(values)], np.max(shapes, axis=0)]).astype(np.int64),
    )
