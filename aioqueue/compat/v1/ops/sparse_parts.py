"""Parts of sparse tensors, and the same elements elsewhere: `sparse_slice`, `sparse_merge`, ..."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.ops.building import OpBuilder, Pure, array, invalid, shape_text
from aioqueue.compat.v1.ops.casting import cast
from aioqueue.compat.v1.ops.sparse import (
    SparseTensor,
    SparseTensorValue,
    as_sparse,
    check_bounds,
    check_counts,
)
from aioqueue.compat.v1.ops.sparse_changes import add_parts, sparse_output, sparse_reorder
from aioqueue.compat.v1.ops.static import constant_value, shape_value

__all__ = (
    "from_dense",
    "sparse_expand_dims",
    "sparse_fill_empty_rows",
    "sparse_merge",
    "sparse_reset_shape",
    "sparse_slice",
    "sparse_split",
    "sparse_transpose",
)


def from_dense(tensor: Any, name: str | None = None) -> SparseTensor:
    """The elements of a dense tensor that are not zero, or not the empty string."""

    def found(values: Any) -> Any:
        values = array(values)
        blank = b"" if values.dtype == object else values.dtype.type(0)
        places = np.argwhere(values != blank)
        return places, values[tuple(places.T)], np.array(values.shape, np.int64)

    with OpBuilder("DenseToSparse", name, "dense_to_sparse") as op:
        dense = op.tensor(tensor, "tensor")
        made = sparse_output(op, dense.dtype, dense.shape.ndims, found)
        return made.note_shape(dense.shape)


def _count(sparse: SparseTensor) -> int | None:
    """How many elements are given, if that is known."""
    known = sparse.values.shape.as_tuple()
    return None if known is None else known[0]


def sparse_slice(sp_input: Any, start: Any, size: Any, name: str | None = None) -> SparseTensor:
    """A box out of a sparse tensor.

    Args:
        sp_input: the sparse tensor.
        start: its first index along each axis: a vector of int64.
        size: its size along each axis: a vector of int64; what goes beyond the end is left out.
        name: name of the op.
    """

    def sliced(indices: Any, values: Any, shape: Any, start: Any, size: Any) -> Any:
        check_counts(indices, values)
        sizes = np.clip(np.minimum(size, shape - start), 0, None)
        inside = ((indices >= start) & (indices < start + sizes)).all(axis=1)
        return indices[inside] - start, values[inside], sizes

    sparse = as_sparse(sp_input)
    with OpBuilder("SparseSlice", name) as op:
        add_parts(op, sparse)
        op.tensor(start, "start", dtypes.int64)
        op.tensor(size, "size", dtypes.int64)
        return sparse_output(op, sparse.dtype, sparse.shape.ndims, sliced)


def sparse_split(
    keyword_required: Any = None,
    sp_input: Any = None,
    num_split: int | None = None,
    axis: int | None = None,
    name: str | None = None,
    split_dim: int | None = None,
) -> list[SparseTensor]:
    """A sparse tensor in parts along an axis, the first ones one larger if there is a remainder.

    Args:
        keyword_required: nothing: all others are given by name.
        sp_input: the sparse tensor.
        num_split: how many parts.
        axis: along which axis.
        name: name of the op.
        split_dim: the old name of `axis`.

    Raises:
        ValueError: an argument is missing, or given by its place.
        InvalidArgumentError: when it runs: there are not so many rows, or an index is out of
            bounds.
    """
    along = axis if split_dim is None else split_dim
    if keyword_required is not None:
        raise ValueError("Keyword arguments are required for this function.")
    for what, given in (("sp_input", sp_input), ("num_split", num_split), ("axis", along)):
        if given is None:
            raise ValueError(f"{what} is required")
    assert num_split is not None
    assert along is not None
    sparse, count, place = as_sparse(sp_input), int(num_split), int(along)

    def split(indices: Any, values: Any, shape: Any) -> Any:
        at = place % len(shape)
        if not 0 < count <= shape[at]:
            raise invalid(
                f"Input num_split should be between 1 and the splitting dimension size"
                f" ({shape[at]}), got {count}"
            )
        check_counts(indices, values)
        check_bounds(indices, shape)
        edges = _edges(int(shape[at]), count)
        found: list[Any] = []
        for first, last in pairwise(edges):
            inside = (indices[:, at] >= first) & (indices[:, at] < last)
            moved, sizes = indices[inside].copy(), shape.copy()
            moved[:, at] -= first
            sizes[at] = last - first
            found.append((moved, values[inside], sizes))
        return tuple(part for kind in zip(*found, strict=True) for part in kind)

    with OpBuilder("SparseSplit", name) as op:
        add_parts(op, sparse)
        rank = sparse.shape.ndims
        outputs = [
            *[(dtypes.int64, (None, rank))] * count,
            *[(sparse.dtype, (None,))] * count,
            *[(dtypes.int64, (rank,))] * count,
        ]
        made = op.outputs(outputs, Pure(split))
    return [SparseTensor(*made[number::count]) for number in range(count)]


def _edges(size: int, count: int) -> list[int]:
    least, more = divmod(size, count)
    return [number * least + min(number, more) for number in range(count + 1)]


def sparse_transpose(sp_input: Any, perm: Any = None, name: str | None = None) -> SparseTensor:
    """A sparse tensor whose axes are in another order: reversed, or as `perm` says."""

    def transposed(indices: Any, values: Any, shape: Any, *given: Any) -> Any:
        check_counts(indices, values)
        axes = given[0] if given else np.arange(len(shape))[::-1]
        moved = indices[:, axes]
        order = np.lexsort(moved.T[::-1]) if len(moved) else np.arange(0)
        return moved[order], values[order], shape[axes]

    sparse = as_sparse(sp_input)
    with OpBuilder("SparseTranspose", name) as op:
        add_parts(op, sparse)
        order = None if perm is None else op.tensor(perm, "perm")
        count = _count(sparse)
        made = sparse_output(op, sparse.dtype, sparse.shape.ndims, transposed, count)
        sizes = sparse.shape.as_tuple()
        if sizes is None:
            return made
        axes = range(len(sizes))[::-1] if order is None else constant_value(order)
        return made if axes is None else made.note_shape(TensorShape([sizes[one] for one in axes]))


def sparse_fill_empty_rows(
    sp_input: Any, default_value: Any, name: str | None = None
) -> tuple[SparseTensor, Tensor]:
    """A sparse matrix whose empty rows have one element, the first; and which rows these are.

    Args:
        sp_input: the sparse matrix.
        default_value: of the elements that are added.
        name: name of the op.
    """

    def filled(indices: Any, values: Any, shape: Any, default: Any) -> Any:
        check_counts(
            values,
            indices,
            "The length of `values` ({}) must match the first dimension of `indices` ({}).",
        )
        count = int(shape[0])
        outside = (indices[:, 0] < 0) | (indices[:, 0] >= count)
        for number in np.flatnonzero(outside)[:1].tolist():
            raise invalid(f"indices({number}, 0) is invalid: {indices[number, 0]} >= {count}")
        empty = np.bincount(indices[:, 0], minlength=count) == 0
        added = np.zeros((int(empty.sum()), len(shape)), np.int64)
        added[:, 0] = np.flatnonzero(empty)
        blanks = np.empty(len(added), array(values).dtype)
        blanks[:] = default
        places = np.concatenate([indices, added])
        order = np.argsort(places[:, 0], kind="stable")
        return places[order], np.concatenate([values, blanks])[order], shape, empty

    sparse = as_sparse(sp_input)
    with OpBuilder("SparseFillEmptyRows", name) as op:
        add_parts(op, sparse)
        op.tensor(default_value, "default_value", sparse.dtype)
        rank, sizes = sparse.shape.ndims, sparse.shape.as_tuple()
        outputs = [
            (dtypes.int64, (None, rank)),
            (sparse.dtype, (None,)),
            (dtypes.int64, (rank,)),
            (dtypes.bool, (sizes[0] if sizes else None,)),
        ]
        *parts, empty = op.outputs(outputs, Pure(filled))
    return SparseTensor(*parts).note_shape(sparse.shape), empty


def sparse_reset_shape(sp_input: Any, new_shape: Any = None) -> SparseTensor:
    """The same elements in another shape, the smallest that has all of them if None.

    Args:
        sp_input: the sparse tensor.
        new_shape: the shape, which is not smaller along any axis.

    Raises:
        ValueError: it is known to be smaller, or has another rank.
        InvalidArgumentError: when it runs: it is smaller.
    """
    sparse = as_sparse(sp_input)

    def tight(indices: Any, values: Any, shape: Any) -> Any:
        largest = indices.max(axis=0) + 1 if len(indices) else np.zeros(len(shape), np.int64)
        return indices, values, largest

    def larger(indices: Any, values: Any, shape: Any, wanted: Any) -> Any:
        if (wanted < shape).any():
            raise invalid(
                f"new_shape {shape_text(wanted)} is smaller than the shape {shape_text(shape)}"
            )
        return indices, values, wanted

    with OpBuilder("SparseResetShape", None) as op:
        add_parts(op, sparse)
        if new_shape is None:
            return sparse_output(op, sparse.dtype, sparse.shape.ndims, tight, _count(sparse))
        wanted = op.tensor(new_shape, "new_shape", dtypes.int64)
        known = TensorShape(shape_value(wanted))
        _check_larger(sparse.shape, known)
        made = sparse_output(op, sparse.dtype, known.ndims, larger, _count(sparse))
        return made.note_shape(known)


def _check_larger(shape: TensorShape, wanted: TensorShape) -> None:
    sizes, others = shape.as_tuple(), wanted.as_tuple()
    if sizes is None or others is None:
        return
    if len(sizes) != len(others):
        raise ValueError(f"Dimensions {len(others)} and {len(sizes)} are not compatible")
    pairs = zip(sizes, others, strict=True)
    if any(one is not None and other is not None and other < one for one, other in pairs):
        raise ValueError(
            "Requested new_shape should have dimension sizes >= sp_input.shape.  Found new_shape"
            f" ({wanted}), sp_input.shape ({shape})."
        )


def sparse_expand_dims(sp_input: Any, axis: int | None = None, name: str | None = None) -> Any:
    """A new axis of size 1 in a sparse tensor, at `axis`, which may count from the end.

    Args:
        sp_input: the sparse tensor.
        axis: where; at the end if None.
        name: name of the op.

    Raises:
        ValueError: there is no such place.
    """
    sparse = as_sparse(sp_input)
    place = -1 if axis is None else int(axis)

    def expanded(indices: Any, values: Any, shape: Any) -> Any:
        at = place if place >= 0 else place + len(shape) + 1
        return np.insert(indices, at, 0, axis=1), values, np.insert(shape, at, 1)

    with OpBuilder("SparseExpandDims", name, "expand_dims") as op:
        add_parts(op, sparse)
        sizes = sparse.shape.as_tuple()
        if sizes is None:
            return sparse_output(op, sparse.dtype, None, expanded, _count(sparse))
        if not -len(sizes) - 1 <= place <= len(sizes):
            raise ValueError(f"axis {place} not in [{-len(sizes) - 1}, {len(sizes)}]")
        at = place if place >= 0 else place + len(sizes) + 1
        made = sparse_output(op, sparse.dtype, len(sizes) + 1, expanded, _count(sparse))
        return made.note_shape(TensorShape([*sizes[:at], 1, *sizes[at:]]))


def sparse_merge(
    sp_ids: Any,
    sp_values: Any,
    vocab_size: Any,
    name: str | None = None,
    already_sorted: bool = False,
) -> SparseTensor:
    """A sparse tensor of values, whose last index is an id of a vocabulary.

    Args:
        sp_ids: a sparse tensor of ids, int32 or int64; several for several last indices.
        sp_values: a sparse tensor of values at the same places.
        vocab_size: how many ids there may be; several for several ids.
        name: name of the ops.
        already_sorted: whether ids ascend in every row, so that none are sorted.

    Raises:
        TypeError: an argument is not sparse, or one is a list and the other is not.
        ValueError: the lists are not of one length.
    """
    single = isinstance(sp_ids, SparseTensor | SparseTensorValue)
    if not single and not isinstance(sp_ids, Sequence):
        raise TypeError(f"sp_ids has to be a SparseTensor or list thereof. Found {type(sp_ids)}")
    if not single and not isinstance(vocab_size, Sequence):
        raise TypeError(
            f"vocab_size has to be a list of Tensors or Python ints. Found {type(vocab_size)}"
        )
    ids = [as_sparse(one) for one in ([sp_ids] if single else sp_ids)]
    sizes = [vocab_size] if single else list(vocab_size)
    if len(ids) != len(sizes):
        raise ValueError("sp_ids and vocab_size have to have equal lengths.")
    values = as_sparse(sp_values)
    merged = _merged(ids, values, sizes, name)
    return merged if already_sorted else sparse_reorder(merged)


def _merged(
    ids: list[SparseTensor], values: SparseTensor, sizes: Sequence[Any], name: str | None
) -> SparseTensor:
    count = len(ids)

    def joined(indices: Any, values: Any, shape: Any, *rest: Any) -> Any:
        columns = [np.asarray(one, np.int64)[:, np.newaxis] for one in rest[:count]]
        places: NDArray[Any] = np.concatenate([indices[:, :-1], *columns], axis=1)
        return places, values, np.concatenate([shape[:-1], np.array(rest[count:], np.int64)])

    with OpBuilder("SparseMerge", name) as op:
        op.tensor(ids[0].indices, "indices")
        op.tensor(values.values, "values")
        op.tensor(ids[0].dense_shape, "shape")
        for one in ids:
            op.tensor(one.values, "ids")
        wide = [cast(convert_to_tensor(one), dtypes.int64) for one in sizes]
        known = [op.tensor(one, "vocab_size") for one in wide]
        rank = ids[0].shape.ndims
        inner = None if rank is None else rank - 1 + count
        made = sparse_output(op, values.dtype, inner, joined, _count(values))
        outer = ids[0].shape.as_tuple()
        if outer is None:
            return made
        last = [constant_value(one) for one in known]
        return made.note_shape(
            TensorShape([*outer[:-1], *(None if one is None else int(one) for one in last)])
        )
