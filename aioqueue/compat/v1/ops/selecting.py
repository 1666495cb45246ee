"""Selecting by value: masks, `where`, `one_hot`, `unique`, sorting and the largest elements."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import as_value
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.ops.building import (
    INDICES,
    INTEGERS,
    REALS,
    Dims,
    OpBuilder,
    Pure,
    array,
    dtype_hint,
    invalid,
    merge,
    shape_text,
)
from aioqueue.compat.v1.ops.static import constant_value

__all__ = (
    "TopKV2",
    "Unique",
    "UniqueWithCounts",
    "argsort",
    "boolean_mask",
    "one_hot",
    "sequence_mask",
    "sort",
    "top_k",
    "unique",
    "unique_with_counts",
    "where",
)

_BOOLS = frozenset(("bool",))


class Unique(NamedTuple):
    """The different elements of a vector, and which of them each element is."""

    y: Tensor
    idx: Tensor


class UniqueWithCounts(NamedTuple):
    """The same, and how often each is there."""

    y: Tensor
    idx: Tensor
    count: Tensor  # type: ignore[assignment]  # TensorFlow's name


class TopKV2(NamedTuple):
    """The largest elements of each row, and where they are."""

    values: Tensor
    indices: Tensor


def boolean_mask(
    tensor: Any, mask: Any, name: str = "boolean_mask", axis: int | None = None
) -> Tensor:
    """The slices where the mask is true.

    Args:
        tensor: any tensor.
        mask: booleans of the shape of some axes of `tensor`; its rank must be known.
        name: name of the op.
        axis: the first of these axes; 0 if left out.

    Raises:
        ValueError: the mask is a scalar, its rank is not known, or the static shapes do not fit.
    """
    first = int(axis or 0)

    def masked(x: Any, mask: Any) -> Any:
        x, mask = array(x), np.asarray(mask)
        start = first % x.ndim
        if x.shape[start : start + mask.ndim] != mask.shape:
            raise invalid(
                f"boolean_mask: mask has shape {shape_text(mask.shape)}, the tensor's axes from"
                f" {start} on have {shape_text(x.shape[start : start + mask.ndim])}"
            )
        return x[(*(np.s_[:],) * start, mask)]

    with OpBuilder("BooleanMask", name) as op:
        tensor = op.tensor(tensor, "tensor")
        mask = op.tensor(mask, "mask", dtypes.bool)
        whole, part = tensor.shape.as_tuple(), mask.shape.as_tuple()
        if part is None:
            raise ValueError(
                "Number of mask dimensions must be specified, even if some dimensions are None."
                "  E.g. shape=[None] is ok, but shape=None is not."
            )
        if not part:
            raise ValueError("mask cannot be scalar.")
        shape: Dims = None
        if whole is not None:
            start = first % len(whole)
            try:
                merge(whole[start : start + len(part)], part)
            except ValueError:
                raise ValueError(
                    f"Shapes {TensorShape(whole[start : start + len(part)])} and"
                    f" {TensorShape(part)} are incompatible"
                ) from None
            shape = (*whole[:start], None, *whole[start + len(part) :])
        return op.output(tensor.dtype, shape, Pure(masked))


def where(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Tensor:
    """Elements of `x` where the condition is true and of `y` elsewhere; or where it is true.

    Args:
        condition: booleans: of the shape of `x`, a vector with one element per row of it, or one.
        x: a tensor; without `x` and `y` the result is the coordinates, int64, one row for each
            true element.
        y: a tensor of the same dtype and shape.
        name: name of the op.

    Raises:
        ValueError: just one of `x` and `y` is given, or the static shapes do not fit.
    """
    if (x is None) != (y is None):
        raise ValueError("x and y must both be non-None or both be None.")
    if x is None:
        with OpBuilder("Where", name) as op:
            tensor = op.tensor(condition, "condition")
            return op.output(
                dtypes.int64, (None, tensor.shape.ndims), Pure(lambda x: np.argwhere(x))
            )
    return _select(condition, x, y, name)


def _select(condition: Any, x: Any, y: Any, name: str | None) -> Tensor:
    def selected(condition: Any, x: Any, y: Any) -> Any:
        condition, x, y = np.asarray(condition), array(x), array(y)
        if condition.ndim == 1 and x.ndim > 1:
            condition = condition.reshape([-1, *[1] * (x.ndim - 1)])
        if x.shape != y.shape or np.broadcast_shapes(condition.shape, x.shape) != x.shape:
            raise invalid(
                f"'then' and 'else' must have the same size.  but received:"
                f" {shape_text(x.shape)} vs. {shape_text(y.shape)}"
            )
        return np.where(condition, x, y)

    with OpBuilder("Select", name) as op:
        choice = op.tensor(condition, "condition", None, _BOOLS).shape.as_tuple()
        x, y = op.alike(t=x, e=y)
        try:
            shape = merge(x.shape.as_tuple(), y.shape.as_tuple())
            if choice is not None and len(choice) > 1:  # else it may choose whole rows
                shape = merge(shape, choice)
        except ValueError as error:
            raise op.refuse(str(error)) from None
        return op.output(x.dtype, shape, Pure(selected))


def one_hot(
    indices: Any,
    depth: Any,
    on_value: Any = None,
    off_value: Any = None,
    axis: int | None = None,
    dtype: Any = None,
    name: str | None = None,
) -> Tensor:
    """For each index a vector of `depth` elements: `on_value` at the index, else `off_value`.

    Args:
        indices: integers; one that is not below `depth`, or negative, is nowhere.
        depth: how many elements.
        on_value: 1 if left out.
        off_value: 0 if left out.
        axis: where the new axis is; last if left out.
        dtype: of the result; that of the values, else float32.
        name: name of the op.

    Raises:
        TypeError: the values have another dtype than `dtype`, or than each other.
    """
    wanted = _one_hot_dtype(on_value, off_value, dtype)

    def spread(indices: Any, depth: Any, on: Any, off: Any) -> Any:
        indices = np.asarray(indices)
        place = indices.ndim if axis in (None, -1) else int(axis or 0)
        hits = np.expand_dims(indices, place) == np.arange(int(depth)).reshape(
            [-1, *[1] * (indices.ndim - place)]
        )
        result = np.full(hits.shape, off, wanted.numpy)
        result[hits] = on
        return result

    with OpBuilder("OneHot", name, "one_hot") as op:
        places = op.tensor(indices, "indices", None, INDICES | {"uint8", "int8"})
        count = op.tensor(depth, "depth", dtypes.int32)
        blank = wanted == dtypes.string
        op.tensor(
            (b"" if blank else wanted.numpy.type(1)) if on_value is None else on_value,
            "on_value",
            wanted,
        )
        op.tensor(
            (b"" if blank else wanted.numpy.type(0)) if off_value is None else off_value,
            "off_value",
            wanted,
        )
        shape, known = places.shape.as_tuple(), constant_value(count)
        if shape is not None:
            size = None if known is None else int(known)
            place = len(shape) if axis in (None, -1) else int(axis or 0)
            shape = (*shape[:place], size, *shape[place:])
        return op.output(wanted, shape, Pure(spread))


def _one_hot_dtype(on_value: Any, off_value: Any, dtype: Any) -> DType:
    values = [one for one in (on_value, off_value) if one is not None]
    if dtype is not None:
        wanted = dtypes.as_dtype(dtype)
        found = [one for one in map(dtype_hint, values) if one is not None]
    else:
        found = [
            dtype_hint(one) or dtypes.as_dtype(np.asarray(as_value(one)).dtype) for one in values
        ]
        wanted = found[0] if found else dtypes.float32
    for one in found:
        if one != wanted:
            raise TypeError(f"one_hot: a value is {one.name}, where {wanted.name} is wanted")
    return wanted


def sequence_mask(
    lengths: Any, maxlen: Any = None, dtype: Any = dtypes.bool, name: str | None = None
) -> Tensor:
    """For each length a row that is true up to it.

    Args:
        lengths: integers.
        maxlen: the size of the rows; the largest length if left out.
        dtype: of the result.
        name: name of the op.
    """
    wanted = dtypes.as_dtype(dtype)

    def masked(lengths: Any, *most: Any) -> Any:
        lengths = np.asarray(lengths)
        size = int(most[0]) if most else max(int(lengths.max(initial=0)), 0)
        return (np.arange(size) < np.expand_dims(lengths, -1)).astype(wanted.numpy)

    with OpBuilder("SequenceMask", name) as op:
        tensor = op.tensor(lengths, "lengths", None, INTEGERS)
        size: int | None = None
        if maxlen is not None:
            known = constant_value(op.tensor(maxlen, "maxlen", None, INTEGERS))
            size = None if known is None else int(known)
        elif constant_value(tensor) is not None:
            size = max(int(np.max(constant_value(tensor), initial=0)), 0)
        shape = tensor.shape.as_tuple()
        return op.output(wanted, None if shape is None else (*shape, size), Pure(masked))


def unique(x: Any, out_idx: Any = dtypes.int32, name: str | None = None) -> Unique:
    """The different elements of a vector, in the order in which they first appear."""
    wanted = dtypes.as_dtype(out_idx)
    with OpBuilder("Unique", name) as op:
        tensor = op.tensor(x, "x")
        size = op.rank(tensor, 1)
        made = op.outputs(
            [(tensor.dtype, (None,)), (wanted, size)],
            Pure(lambda x: _unique(x, wanted.numpy)[:2]),
        )
        return Unique(*made)


def unique_with_counts(
    x: Any, out_idx: Any = dtypes.int32, name: str | None = None
) -> UniqueWithCounts:
    """The same as `unique`, and how often each element is there."""
    wanted = dtypes.as_dtype(out_idx)
    with OpBuilder("UniqueWithCounts", name) as op:
        tensor = op.tensor(x, "x")
        size = op.rank(tensor, 1)
        made = op.outputs(
            [(tensor.dtype, (None,)), (wanted, size), (wanted, (None,))],
            Pure(lambda x: _unique(x, wanted.numpy)),
        )
        return UniqueWithCounts(*made)


def _unique(x: Any, dtype: np.dtype[Any]) -> tuple[Any, Any, Any]:
    """`numpy.unique` sorts; here the elements stay in the order of their first appearance."""
    _, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first, kind="stable")
    places = np.empty(len(order), dtype)
    places[order] = np.arange(len(order))
    return x[first[order]], places[inverse.reshape(-1)], counts[order].astype(dtype)


def top_k(input: Any, k: Any = 1, sorted: bool = True, name: str | None = None) -> TopKV2:
    """The `k` largest elements along the last axis, and their indices; of equal ones the first.

    Raises:
        ValueError: the last axis is known to be shorter.
        InvalidArgumentError: it turns out to be shorter when it runs.
    """

    def largest(x: Any, k: Any) -> Any:
        x, count = np.asarray(x), int(k)
        if x.ndim < 1 or x.shape[-1] < count:
            raise invalid(f"input must have at least k columns. Had {x.shape[-1:]}, needed {count}")
        order = _descending(x)[..., :count]
        return np.take_along_axis(x, order, -1), order.astype(np.int32)

    with OpBuilder("TopKV2", name) as op:
        tensor = op.tensor(input, "input", None, REALS)
        known = constant_value(op.tensor(k, "k", dtypes.int32))
        shape = tensor.shape.as_tuple()
        if shape is not None:
            size = None if known is None else int(known)
            if size is not None and shape[-1] is not None and shape[-1] < size:
                raise op.refuse(f"input must have last dimension >= k = {size} but is {shape[-1]}")
            shape = (*shape[:-1], size)
        made = op.outputs([(tensor.dtype, shape), (dtypes.int32, shape)], Pure(largest))
        return TopKV2(*made)


def _descending(x: Any) -> Any:
    """Where the elements are from the largest to the smallest; equal ones keep their order."""
    backwards = np.argsort(np.flip(x, -1), axis=-1, kind="stable")
    return x.shape[-1] - 1 - np.flip(backwards, -1)


def sort(
    values: Any, axis: int = -1, direction: str = "ASCENDING", name: str | None = None
) -> Tensor:
    """The elements in order along an axis.

    Raises:
        ValueError: `direction` is neither ``"ASCENDING"`` nor ``"DESCENDING"``.
    """
    descends = _descends(direction)

    def ordered(x: Any) -> Any:
        x = np.sort(x, axis=axis)
        return np.flip(x, axis) if descends else x

    with OpBuilder("Sort", name, "sort") as op:
        tensor = op.tensor(values, "values", None, REALS)
        return op.output(tensor.dtype, tensor.shape.as_tuple(), Pure(ordered))


def argsort(
    values: Any,
    axis: int = -1,
    direction: str = "ASCENDING",
    stable: bool = False,
    name: str | None = None,
) -> Tensor:
    """Where the elements are, in their order along an axis; equal ones keep theirs.

    Raises:
        ValueError: `direction` is neither ``"ASCENDING"`` nor ``"DESCENDING"``.
    """
    descends = _descends(direction)

    def order(x: Any) -> Any:
        x = np.moveaxis(x, axis, -1)
        places = _descending(x) if descends else np.argsort(x, axis=-1, kind="stable")
        return np.moveaxis(places, -1, axis).astype(np.int32)

    with OpBuilder("ArgSort", name, "argsort") as op:
        tensor = op.tensor(values, "values", None, REALS)
        return op.output(dtypes.int32, tensor.shape.as_tuple(), Pure(order))


def _descends(direction: str) -> bool:
    if direction not in ("ASCENDING", "DESCENDING"):
        raise ValueError(f"direction: got {direction!r}; expected 'ASCENDING' or 'DESCENDING'")
    return direction == "DESCENDING"
