"""Sums, products and extremes of sparse tensors: `sparse_add`, `sparse_reduce_sum`, and so on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.errors import InternalError
from aioqueue.compat.v1.ops.building import (
    NUMBERS,
    Dims,
    OpBuilder,
    Pure,
    invalid,
    shape_text,
    unless_given,
)
from aioqueue.compat.v1.ops.sparse import (
    GROUPED,
    SparseTensor,
    SparseTensorValue,
    as_sparse,
    check_bounds,
    check_counts,
)
from aioqueue.compat.v1.ops.sparse_changes import add_parts, sparse_output, strides

__all__ = (
    "sparse_add",
    "sparse_maximum",
    "sparse_minimum",
    "sparse_reduce_max",
    "sparse_reduce_max_sparse",
    "sparse_reduce_sum",
    "sparse_reduce_sum_sparse",
    "sparse_tensor_dense_matmul",
)

Array = NDArray[Any]


def sparse_add(a: Any, b: Any, threshold: Any = None, thresh: Any = None) -> Any:
    """The sum of two tensors of one shape, of which one is sparse at least.

    Args:
        a: a sparse or a dense tensor.
        b: the other one. The sum is sparse if both are.
        threshold: sums of two sparse tensors whose magnitude is below it are left out.
        thresh: the old name of `threshold`.

    Raises:
        TypeError: both are dense, or they are of different dtypes.
        InvalidArgumentError: when it runs: their shapes differ.
    """
    least = unless_given(threshold, thresh, "threshold", "thresh")
    kinds = (SparseTensor, SparseTensorValue)
    if isinstance(a, kinds) and isinstance(b, kinds):
        return _sparse_sum(as_sparse(a), as_sparse(b), 0 if least is None else least)
    if not isinstance(a, kinds) and not isinstance(b, kinds):
        raise TypeError("At least one input should be SparseTensor; do you mean to use tf.add()?")
    sparse, dense = (a, b) if isinstance(a, kinds) else (b, a)
    return _dense_sum(as_sparse(sparse), dense)


def _sparse_sum(a: SparseTensor, b: SparseTensor, least: Any) -> SparseTensor:
    def added(*parts: Any) -> Any:
        (a_indices, a_values, _), (b_indices, b_values, _) = parts[:3], parts[3:6]
        if len(a_indices) != len(a_values) or len(b_indices) != len(b_values):
            raise invalid(
                f"Expected {len(a_indices)} and {len(b_indices)} non-empty input values, got"
                f" {len(a_values)} and {len(b_values)}"
            )
        shape, indices, sides, in_both = _laid_over(parts[:3], parts[3:6])
        made = sides[0] + sides[1]
        # As in TensorFlow, what only one of them has is kept, however small.
        kept = ~in_both | (np.abs(made) >= parts[6])
        return indices[kept], made[kept], shape

    with OpBuilder("SparseAdd", None) as op:
        add_parts(op, a)
        op.tensor(b.indices, "b_indices")
        op.tensor(b.values, "b_values", a.dtype, like="a_values")
        op.tensor(b.dense_shape, "b_shape")
        op.tensor(least, "thresh", a.dtype.real_dtype)
        made = sparse_output(op, a.dtype, a.shape.ndims, added)
        return made.note_shape(a.shape.merge_with(b.shape))


def _dense_sum(sparse: SparseTensor, dense: Any) -> Tensor:
    def added(indices: Any, values: Any, dense_shape: Any, dense: Any) -> Any:
        check_counts(indices, values, "Dimensions {} and {} are not compatible")
        for axis, (one, other) in enumerate(zip(dense_shape, dense.shape, strict=False)):
            if one != other:
                raise invalid(
                    f"Dimension {axis} does not equal (no broadcasting is supported): sparse side"
                    f" {one} vs dense side {other}"
                )
        outside = np.argwhere((indices < 0) | (indices >= dense_shape))
        if len(outside):
            number, axis = outside[0]
            raise invalid(
                f"Sparse tensor has an invalid index on dimension {axis}: a_indices({number},"
                f"{axis}) = {indices[number, axis]}, dense tensor shape:"
                f" {' '.join(map(str, dense.shape))}"
            )
        made = np.array(dense)
        np.add.at(made, tuple(indices.T), values)
        return made

    with OpBuilder("SparseTensorDenseAdd", None) as op:
        add_parts(op, sparse)
        tensor = op.tensor(dense, "b", sparse.dtype, like="a_values")
        return op.output(tensor.dtype, tensor.shape.as_tuple(), Pure(added))


def sparse_maximum(sp_a: Any, sp_b: Any, name: str | None = None) -> SparseTensor:
    """The larger of two sparse tensors' elements, of which one that is not given is zero.

    Args:
        sp_a: one of them.
        sp_b: the other one, of the same shape and dtype.
        name: name of the op.

    Raises:
        InvalidArgumentError: when it runs: their shapes differ, or an index is out of bounds.
    """
    return _sparse_extreme("SparseSparseMaximum", np.maximum, sp_a, sp_b, name)


def sparse_minimum(sp_a: Any, sp_b: Any, name: str | None = None) -> SparseTensor:
    """The lesser of two sparse tensors' elements; see `sparse_maximum`."""
    return _sparse_extreme("SparseSparseMinimum", np.minimum, sp_a, sp_b, name)


def _sparse_extreme(
    op_type: str, choose: Callable[..., Array], sp_a: Any, sp_b: Any, name: str | None
) -> SparseTensor:
    def chosen(*parts: Any) -> Any:
        for indices, values, shape in (parts[:3], parts[3:]):
            check_counts(indices, values)
            check_bounds(indices, shape)
        shape, indices, sides, _ = _laid_over(parts[:3], parts[3:])
        return indices, choose(*sides), shape

    a, b = as_sparse(sp_a), as_sparse(sp_b)
    with OpBuilder(op_type, name) as op:
        add_parts(op, a)
        op.tensor(b.indices, "b_indices")
        op.tensor(b.values, "b_values", a.dtype, like="a_values")
        op.tensor(b.dense_shape, "b_shape")
        return sparse_output(op, a.dtype, a.shape.ndims, chosen).note_shape(a.shape)


def _laid_over(a: Any, b: Any) -> tuple[Array, Array, list[Array], Array]:
    """Two sparse values, one over the other; as in TensorFlow, indices may be out of bounds.

    Returns:
        Their shape, the indices of either merged, what each has there or zero, and
        which indices both have.
    """
    (a_indices, a_values, shape), (b_indices, b_values, other) = a, b
    for axis, (size, asked) in enumerate(zip(shape, other, strict=False)):
        if size != asked:
            raise invalid(
                f"Operands' shapes do not match: got {size} and {asked} for dimension {axis}"
            )
    sides = []
    indices, places = _merged(a_indices, b_indices)
    for found, values in zip(places, (a_values, b_values), strict=True):
        side = np.zeros(len(indices), values.dtype)
        side[found] = values
        sides.append(side)
    in_both = np.bincount(np.concatenate(places), minlength=len(indices)) > 1
    return shape, indices, sides, in_both


def _merged(a: Array, b: Array) -> tuple[Array, list[Array]]:
    """Two lists of indices merged, and where those of each are then.

    As in TensorFlow, what is not in order stays so, and an index that comes twice in one of them
    comes twice.
    """
    if all(len(one) == len(np.unique(one, axis=0)) and _ascend(one) for one in (a, b)):
        merged, numbers = np.unique(np.concatenate([a, b]), axis=0, return_inverse=True)
        return merged, np.split(numbers.ravel(), [len(a)])
    rows: list[list[int]] = []
    places: list[list[int]] = [[], []]
    lists = [a.tolist(), b.tolist()]
    while heads := [
        one[len(found)] for one, found in zip(lists, places, strict=True) if len(found) < len(one)
    ]:
        least = min(heads)
        for one, found in zip(lists, places, strict=True):
            if len(found) < len(one) and one[len(found)] == least:
                found.append(len(rows))
        rows.append(least)
    indices = np.array(rows, np.int64).reshape(len(rows), a.shape[1])
    return indices, [np.array(found, np.intp) for found in places]


def _ascend(indices: Array) -> bool:
    """Whether indices are in row-major order."""
    return bool((np.lexsort(indices.T[::-1]) == np.arange(len(indices))).all())


def sparse_reduce_sum(
    sp_input: Any,
    axis: Any = None,
    keepdims: bool | None = None,
    reduction_axes: Any = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """The sums over axes of a sparse tensor, as a dense one.

    Args:
        sp_input: the sparse tensor.
        axis: the axes that go, which may count from the end; all of them if None.
        keepdims: whether they stay, of size 1.
        reduction_axes: the old name of `axis`.
        keep_dims: the old name of `keepdims`.

    Raises:
        InvalidArgumentError: when it runs: there is no such axis.
    """
    axes = unless_given(axis, reduction_axes, "axis", "reduction_axes")
    keep = unless_given(keepdims, keep_dims, "keepdims", "keep_dims")
    return _dense_reduction("SparseReduceSum", np.add, sp_input, axes, bool(keep))


def sparse_reduce_max(
    sp_input: Any,
    axis: Any = None,
    keepdims: bool | None = None,
    reduction_axes: Any = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """The largest elements over axes of a sparse tensor, of those that are given; else zero.

    Arguments and errors are those of `sparse_reduce_sum`.
    """
    axes = unless_given(axis, reduction_axes, "axis", "reduction_axes")
    keep = unless_given(keepdims, keep_dims, "keepdims", "keep_dims")
    return _dense_reduction("SparseReduceMax", np.maximum, sp_input, axes, bool(keep))


def sparse_reduce_sum_sparse(
    sp_input: Any,
    axis: Any = None,
    keepdims: bool | None = None,
    reduction_axes: Any = None,
    keep_dims: bool | None = None,
) -> SparseTensor:
    """The sums over axes of a sparse tensor, as a sparse one; see `sparse_reduce_sum`."""
    axes = unless_given(axis, reduction_axes, "axis", "reduction_axes")
    keep = unless_given(keepdims, keep_dims, "keepdims", "keep_dims")
    return _sparse_reduction("SparseReduceSumSparse", np.add, sp_input, axes, bool(keep))


def sparse_reduce_max_sparse(
    sp_input: Any,
    axis: Any = None,
    keepdims: bool | None = None,
    reduction_axes: Any = None,
    keep_dims: bool | None = None,
) -> SparseTensor:
    """The largest elements over axes, as a sparse tensor; see `sparse_reduce_max`."""
    axes = unless_given(axis, reduction_axes, "axis", "reduction_axes")
    keep = unless_given(keepdims, keep_dims, "keepdims", "keep_dims")
    return _sparse_reduction("SparseReduceMaxSparse", np.maximum, sp_input, axes, bool(keep))


def _dense_reduction(
    op_type: str, reduce: np.ufunc, sp_input: Any, axes: Any, keep: bool
) -> Tensor:
    def reduced(indices: Any, values: Any, dense_shape: Any) -> Any:
        shape, places, found = _reduced(reduce, indices, values, dense_shape, axes, keep)
        made = np.zeros(math.prod(shape), values.dtype)
        flat = places @ strides(shape) if shape else np.zeros(len(places), np.int64)
        for wrong in flat[(flat < 0) | (flat >= len(made))][:1].tolist():
            raise InternalError(
                None,
                None,
                f"Obtained a write index of {wrong} which is outside of bounds of [0, {len(made)})",
            )
        made[flat] = found
        return made.reshape(shape)

    sparse = as_sparse(sp_input)
    with OpBuilder(op_type, None) as op:
        add_parts(op, sparse)
        return op.output(sparse.dtype, _reduced_dims(sparse.shape, axes, keep), Pure(reduced))


def _sparse_reduction(
    op_type: str, reduce: np.ufunc, sp_input: Any, axes: Any, keep: bool
) -> SparseTensor:
    def reduced(indices: Any, values: Any, dense_shape: Any) -> Any:
        shape, places, found = _reduced(reduce, indices, values, dense_shape, axes, keep)
        return places, found, np.array(shape, np.int64)

    sparse = as_sparse(sp_input)
    with OpBuilder(op_type, None) as op:
        add_parts(op, sparse)
        known = _reduced_dims(sparse.shape, axes, keep)
        return sparse_output(op, sparse.dtype, None if known is None else len(known), reduced)


def _reduced(
    reduce: np.ufunc, indices: Array, values: Array, dense_shape: Array, axes: Any, keep: bool
) -> tuple[tuple[int, ...], Array, Array]:
    """The shape of what is left, the indices that have values in row-major order, and those.

    Raises:
        InvalidArgumentError: there are not as many indices as values.
    """
    check_counts(indices, values, GROUPED)
    sizes = dense_shape.tolist()
    gone = _axes_of(axes, len(sizes))
    left = [axis for axis in range(len(sizes)) if axis not in gone]
    kept = indices.copy()
    kept[:, sorted(gone)] = 0
    order = np.lexsort(kept.T[::-1])
    present, starts = np.unique(kept[order], axis=0, return_index=True)
    found = reduce.reduceat(values[order], starts, dtype=values.dtype) if len(values) else values
    if keep:
        return tuple(1 if axis in gone else size for axis, size in enumerate(sizes)), present, found
    return tuple(sizes[axis] for axis in left), present[:, left], found


def _axes_of(axes: Any, rank: int) -> set[int]:
    if axes is None:
        return set(range(rank))
    found = [int(one) for one in np.ravel(axes)]
    for axis in found:
        if not -rank <= axis < rank:
            raise invalid(f"Invalid reduction dimension {axis}, for input with {rank} dimensions.")
    return {axis % rank for axis in found}


def _reduced_dims(shape: TensorShape, axes: Any, keep: bool) -> Dims:
    """What is known of the shape of what is left."""
    sizes = shape.as_tuple()
    if sizes is None or (axes is not None and isinstance(axes, Tensor)):
        return None
    rank = len(sizes)
    found = range(rank) if axes is None else [int(one) for one in np.ravel(axes)]
    if any(not -rank <= axis < rank for axis in found):
        return None
    gone = {axis % rank for axis in found}
    if keep:
        return tuple(1 if axis in gone else size for axis, size in enumerate(sizes))
    return tuple(size for axis, size in enumerate(sizes) if axis not in gone)


def sparse_tensor_dense_matmul(
    sp_a: Any, b: Any, adjoint_a: bool = False, adjoint_b: bool = False, name: str | None = None
) -> Tensor:
    """The product of a sparse matrix and a dense one.

    Args:
        sp_a: the sparse matrix.
        b: the dense one.
        adjoint_a: whether the first is transposed, and conjugated, before.
        adjoint_b: the same for the second.
        name: name of the op.

    Raises:
        InvalidArgumentError: when it runs: the sizes do not fit, or an index is out of bounds.
    """

    def product(indices: Any, values: Any, dense_shape: Any, b: Any) -> Any:
        if len(indices) != len(values):
            raise invalid(
                "Number of rows of a_indices does not match number of entries in a_values"
            )
        rows, columns = indices.T
        shape = dense_shape.tolist()
        if adjoint_a:
            rows, columns, values, shape = columns, rows, np.conj(values), shape[::-1]
        right = np.conj(b.T) if adjoint_b else b
        if right.shape[0] != shape[1]:
            raise invalid(
                f"Cannot multiply A and B because inner dimension does not match: {shape[1]} vs."
                f" {right.shape[0]}.  Did you forget a transpose?  Dimensions of A:"
                f" [{shape[0]}, {shape[1]}).  Dimensions of B: {shape_text(right.shape)}"
            )
        turned = (1, 0) if adjoint_a else (0, 1)
        sides = (("m", rows, shape[0], turned[0]), ("k", columns, shape[1], turned[1]))
        for what, places, size, axis in sides:
            for number in np.flatnonzero((places < 0) | (places >= size))[:1].tolist():
                raise invalid(
                    f"{what} ({places[number]}) from index[{number},{axis}] out of bounds"
                    f" (>={size})"
                )
        made = np.zeros((shape[0], right.shape[1]), right.dtype)
        np.add.at(made, rows, values[:, np.newaxis] * right[columns])
        return made

    sparse = as_sparse(sp_a)
    with name_scope(name, "SparseTensorDenseMatMul") as scope:
        dense = convert_to_tensor(b, name="b")
        with OpBuilder("SparseTensorDenseMatMul", scope) as op:
            add_parts(op, sparse)
            right = op.rank(op.tensor(dense, "b", sparse.dtype, NUMBERS, like="a_values"), 2)
            left = sparse.shape.as_tuple() or (None, None)
            shape = (left[1 if adjoint_a else 0], (right or (None, None))[0 if adjoint_b else 1])
            return op.output(sparse.dtype, shape, Pure(product))
