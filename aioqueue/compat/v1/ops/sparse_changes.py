"""Sparse tensors made of others, or made dense: `sparse_to_dense`, `sparse_concat`, and so on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.ops.building import (
    INDICES,
    OpBuilder,
    Pure,
    array,
    invalid,
    shape_text,
)
from aioqueue.compat.v1.ops.sparse import (
    GROUPED,
    SparseTensor,
    as_sparse,
    check_counts,
    check_indices,
)
from aioqueue.compat.v1.ops.static import constant_value, shape_value

__all__ = (
    "add_parts",
    "sparse_concat",
    "sparse_output",
    "sparse_reorder",
    "sparse_reshape",
    "sparse_retain",
    "sparse_to_dense",
    "sparse_to_indicator",
    "strides",
)

_PARTS = ("indices", "values", "dense_shape")


def sparse_to_dense(
    sparse_indices: Any,
    output_shape: Any,
    sparse_values: Any,
    default_value: Any = 0,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """A dense tensor made of some elements and a default for all others.

    Args:
        sparse_indices: ints: ``[n, rank]``, ``[n]`` for a vector, or one for an element of it.
        output_shape: the shape: a vector.
        sparse_values: ``[n]``, or one for all.
        default_value: of all other elements.
        validate_indices: whether indices must be in order and without repetition.
        name: name of the op.

    Raises:
        InvalidArgumentError: when it runs: the shapes do not fit, or an index is out of bounds.
    """

    def dense(indices: Any, shape: Any, values: Any, default: Any) -> Any:
        places, given = np.asarray(indices), array(values)
        places = places.reshape(-1, 1) if places.ndim < 2 else places
        count, rank = places.shape
        if np.ndim(shape) != 1 or len(shape) != rank:
            raise invalid(
                f"output_shape has incorrect number of elements: {np.size(shape)} should be: {rank}"
            )
        if given.ndim and given.shape != (count,):
            wanted = "[]" if np.ndim(indices) == 0 else f"[] or [{count}]"
            raise invalid(
                f"sparse_values has incorrect shape {shape_text(given.shape)}, should be {wanted}"
            )
        sizes = tuple(int(one) for one in shape)
        check_indices(places, sizes, in_order=validate_indices)
        made = np.full(sizes, default, given.dtype)
        made[tuple(places.T)] = given
        return made

    with OpBuilder("SparseToDense", name) as op:
        places = op.tensor(sparse_indices, "sparse_indices", None, INDICES)
        shape = op.tensor(output_shape, "output_shape", places.dtype, like="sparse_indices")
        values = op.tensor(sparse_values, "sparse_values")
        op.tensor(default_value, "default_value", values.dtype, like="sparse_values")
        return op.output(values.dtype, shape_value(shape), Pure(dense))


def add_parts(op: OpBuilder, sparse: SparseTensor) -> None:
    """Make the three tensors of a sparse one the op's next inputs."""
    for argument, one in zip(_PARTS, sparse.parts, strict=True):
        op.tensor(one, argument)


def sparse_output(
    op: OpBuilder,
    dtype: DType,
    rank: int | None,
    function: Callable[..., Any],
    count: int | None = None,
) -> SparseTensor:
    """Add the op, whose one result is sparse.

    Args:
        op: in the making, with all its inputs.
        dtype: of the values.
        rank: of the result, if it is known.
        function: of the inputs' values; returns the values of indices, values and dense shape.
        count: how many elements it has, if that is known.
    """
    outputs = [(dtypes.int64, (count, rank)), (dtype, (count,)), (dtypes.int64, (rank,))]
    return SparseTensor(*op.outputs(outputs, Pure(function)))


def sparse_to_indicator(sp_input: Any, vocab_size: Any, name: str | None = None) -> Tensor:
    """Which ids are there: booleans, whose last dimension is that of the ids.

    Args:
        sp_input: a sparse tensor of ids, int32 or int64.
        vocab_size: how many ids there may be.
        name: name of the op.

    Raises:
        TypeError: the ids are no integers.
        InvalidArgumentError: when it runs: an id is too large.
    """
    sparse = as_sparse(sp_input)
    if not sparse.dtype.is_integer:
        raise TypeError("sp_ids.values must be an int32 or int64 Tensor")
    size = int(vocab_size)

    def dense(indices: Any, values: Any, dense_shape: Any) -> Any:
        shape = (*dense_shape[:-1].tolist(), size)
        places = np.concatenate([indices[:, :-1], values[:, np.newaxis]], axis=1)
        check_indices(places, shape, in_order=False)
        made = np.zeros(shape, np.bool_)
        made[tuple(places.T)] = True
        return made

    with OpBuilder("SparseToIndicator", name) as op:
        add_parts(op, sparse)
        known = sparse.shape.as_tuple()
        return op.output(dtypes.bool, None if known is None else (*known[:-1], size), Pure(dense))


def sparse_reorder(sp_input: Any, name: str | None = None) -> SparseTensor:
    """The same elements in row-major order."""

    def ordered(indices: Any, values: Any, dense_shape: Any) -> Any:
        check_counts(indices, values)
        order = np.lexsort(indices.T[::-1]) if len(indices) else np.arange(0)
        return indices[order], values[order], dense_shape

    sparse = as_sparse(sp_input)
    with OpBuilder("SparseReorder", name) as op:
        add_parts(op, sparse)
        count = sparse.values.shape[0].value if sparse.values.shape.ndims else None
        return sparse_output(op, sparse.dtype, sparse.shape.ndims, ordered, count)


def sparse_retain(sp_input: Any, to_retain: Any) -> SparseTensor:
    """Those of the elements for which a vector of booleans is true."""

    def kept(indices: Any, values: Any, dense_shape: Any, keep: Any) -> Any:
        if keep.shape != values.shape:
            raise invalid(
                f"to_retain: got {shape_text(keep.shape)}; expected {shape_text(values.shape)}"
            )
        return indices[keep], values[keep], dense_shape

    sparse = as_sparse(sp_input)
    with OpBuilder("SparseRetain", None) as op:
        add_parts(op, sparse)
        op.tensor(to_retain, "to_retain", dtypes.bool)
        return sparse_output(op, sparse.dtype, sparse.shape.ndims, kept)


def sparse_reshape(sp_input: Any, shape: Any, name: str | None = None) -> SparseTensor:
    """The same elements in row-major order in another shape.

    Args:
        sp_input: the sparse tensor.
        shape: the shape; one size may be -1, for what is left.
        name: name of the op.

    Raises:
        ValueError: it is known to have another number of elements.
        InvalidArgumentError: when it runs: it has.
    """

    def reshaped(indices: Any, values: Any, dense_shape: Any, shape: Any) -> Any:
        total = math.prod(dense_shape.tolist())
        sizes = [int(one) for one in shape]
        if -1 in sizes:
            place = sizes.index(-1)
            rest = math.prod(sizes[:place] + sizes[place + 1 :])
            sizes[place] = total // rest if rest else 0
        if math.prod(sizes) != total:
            raise invalid(
                f"Input to reshape is a tensor with {total} dense values, but the requested shape"
                f" has {math.prod(sizes)}. input_shape={shape_text(dense_shape.tolist())}"
                f" output_shape={shape_text(sizes)}"
            )
        # As in TensorFlow, nobody looks whether indices are within bounds.
        left = indices @ strides(dense_shape.tolist())
        places = np.empty((len(indices), len(sizes)), np.int64)
        for axis, stride in enumerate(strides(sizes)):
            places[:, axis], left = np.divmod(left, max(stride, 1))
        return places, values, np.array(sizes, np.int64)

    sparse = as_sparse(sp_input)
    with OpBuilder("SparseReshape", name) as op:
        add_parts(op, sparse)
        wanted = op.tensor(shape, "shape", dtypes.int64)
        known = _reshaped(sparse.shape, wanted)
        rank = wanted.shape.as_tuple()
        made = sparse_output(op, sparse.dtype, rank[0] if rank else None, reshaped)
        return made if known is None else made.note_shape(known)


def strides(sizes: Sequence[int]) -> NDArray[np.int64]:
    """How many elements each axis of a dense tensor steps over."""
    return np.array([math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))], np.int64)


def _reshaped(given: TensorShape, wanted: Tensor) -> TensorShape | None:
    """What is known of a new shape; None if it tells nothing of sizes.

    Raises:
        ValueError: it is known to have another number of elements, or leaves two sizes open.
    """
    count, sizes = given.num_elements(), shape_value(wanted)
    if count is None or sizes is None:
        return None
    asked = constant_value(wanted)
    if asked is not None and np.count_nonzero(asked == -1) > 1:
        raise ValueError(f"At most one dimension can be inferred (-1). Found: {asked}")
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) - 1 or (0 in known and None in sizes):
        return TensorShape(sizes)
    left = count // math.prod(known) if None in sizes else None
    filled = [left if size is None else size for size in sizes]
    if (elements := TensorShape(filled).num_elements()) != count:
        raise ValueError(
            f"Cannot reshape a tensor with {count} elements to shape {list(sizes)} ({elements}"
            " elements)."
        )
    return TensorShape(filled)


def sparse_concat(
    axis: int | None = None,
    sp_inputs: Sequence[Any] | None = None,
    name: str | None = None,
    expand_nonconcat_dim: bool = False,
    concat_dim: int | None = None,
) -> SparseTensor:
    """Sparse tensors one after another along an axis.

    Args:
        axis: which.
        sp_inputs: the sparse tensors.
        name: name of the op.
        expand_nonconcat_dim: whether the other sizes may differ; the largest is taken.
        concat_dim: the old name of `axis`.

    Raises:
        InvalidArgumentError: when it runs: other sizes differ.
    """
    sparse = [as_sparse(one) for one in sp_inputs or ()]
    given = concat_dim if axis is None else axis
    if not sparse or given is None:
        raise ValueError("sparse_concat: axis and sp_inputs must be given")
    along = int(given)

    def joined(*parts: Any) -> Any:
        for indices, found in zip(parts[0::3], parts[1::3], strict=True):
            check_counts(indices, found, GROUPED)
        places, values, shapes = parts[0::3], parts[1::3], np.stack(parts[2::3])
        at = along if along >= 0 else along + shapes.shape[1]
        others = np.delete(shapes, at, axis=1)
        if not expand_nonconcat_dim and (others != others[0]).any():
            number, dim = np.argwhere(np.delete(shapes != shapes[0], at, axis=1))[0]
            dim += dim >= at
            raise invalid(
                f"Input shapes must match: expected {shapes[0][dim]} for dimension {dim} but got"
                f" {shapes[number][dim]} at position {number}"
            )
        starts = np.concatenate([[0], np.cumsum(shapes[:, at])[:-1]])
        moved = [one.copy() for one in places]
        for one, start in zip(moved, starts, strict=True):
            one[:, at] += start
        indices, found = np.concatenate(moved), np.concatenate(values)
        order = np.lexsort(indices.T[::-1]) if len(indices) else np.arange(0)
        shape = shapes.max(axis=0)
        shape[at] = shapes[:, at].sum()
        return indices[order], found[order], shape

    with OpBuilder("SparseConcat", name) as op:
        for one in sparse:
            add_parts(op, one)
        made = sparse_output(op, sparse[0].dtype, sparse[0].shape.ndims, joined)
        shapes = [one.shape for one in sparse]
        return made.note_shape(_joined_shape(shapes, along, expand_nonconcat_dim))


def _joined_shape(shapes: Sequence[TensorShape], axis: int, expands: bool) -> TensorShape:
    """What is known of the shape of sparse tensors that are joined."""
    sizes = [shape.as_tuple() for shape in shapes]
    known = [one for one in sizes if one is not None and None not in one]
    if len(known) < len(sizes) or len({len(one) for one in known}) > 1:
        return TensorShape(None)
    table = np.array(known)
    joined = table.max(axis=0) if expands else table[0].copy()
    joined[axis] = table[:, axis].sum()
    return TensorShape(joined.tolist())
