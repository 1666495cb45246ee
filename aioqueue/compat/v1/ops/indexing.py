"""Elements by position and by value: indices, masks, `gather`, `where`, `unique`, `scatter_add`."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import as_value, convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Operators, Tensor, named
from aioqueue.compat.v1.core.shapes import Dimension, TensorShape
from aioqueue.compat.v1.ops.arrays import stack
from aioqueue.compat.v1.ops.building import (
    INDICES,
    INTEGERS,
    NUMBERS,
    Dims,
    OpBuilder,
    Pure,
    array,
    dtype_hint,
    invalid,
    merge,
    shape_text,
)
from aioqueue.compat.v1.ops.casting import cast
from aioqueue.compat.v1.ops.static import constant_value, shape_value
from aioqueue.compat.v1.ops.variables import Variable, variable_cell, variable_op

__all__ = (
    "boolean_mask", "gather", "gather_nd", "one_hot", "scatter_add", "scatter_nd",
    "scatter_nd_add", "scatter_nd_sub", "scatter_nd_update", "scatter_sub", "scatter_update",
    "sequence_mask", "slice", "strided_slice", "unique", "unique_with_counts", "where",
)  # fmt: skip

_FULL = builtins.slice(None)
_UNKNOWN = object()
"""In a sketch of an index: an integer, or the ends of a slice, that only a run will tell."""

_BOOLS = frozenset(("bool",))
_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def _spec(keys: Iterable[Any]) -> tuple[list[list[Any]], dict[str, int]]:
    """What ``x[...]`` says, as arguments of `strided_slice`: begin, end, strides, and the masks."""
    parts: list[list[Any]] = []
    masks = dict.fromkeys(_MASKS, 0)
    for bit, key in enumerate(keys):
        marks = []
        if key is None:
            part, marks = [0, 0, 1], ["new_axis_mask"]
        elif key is Ellipsis:
            if masks["ellipsis_mask"]:
                raise ValueError("Multiple ellipses in slice spec not allowed")
            part, marks = [0, 0, 1], ["ellipsis_mask"]
        elif isinstance(key, builtins.slice):
            ends = {"begin_mask": key.start, "end_mask": key.stop}
            marks = [mask for mask, end in ends.items() if end is None]
            part = [0 if end is None else _place(end) for end in ends.values()]
            part.append(1 if key.step is None else _place(key.step))
        else:
            place = _place(key)
            # Past -1 is the end, which as a number would be 0.
            part, marks = [place, place + 1, 1], ["shrink_axis_mask"]
        parts.append(part)
        for mask in marks:
            masks[mask] |= 1 << bit
    return [[part[at] for part in parts] for at in range(3)], masks


def _place(key: Any) -> Any:
    """An integer, or a scalar tensor of integers; TypeError if it is neither."""
    if isinstance(key, Dimension):
        key = key.value
    if dtype_hint(key) is not None:
        tensor = convert_to_tensor(key)
        if tensor.dtype.name in INDICES and tensor.shape.ndims in (0, None):
            return tensor
    elif (isinstance(key, int | np.integer) and not isinstance(key, bool)) or (
        isinstance(key, np.ndarray) and key.ndim == 0 and key.dtype.kind in "iu"
    ):
        return int(key)
    raise TypeError(
        "Only integers, slices (`:`), ellipsis (`...`), tf.newaxis (`None`) and scalar"
        f" tf.int32/tf.int64 tensors are valid indices, got {key!r}"
    )


def _item(tensor: Any, key: Any) -> Tensor:
    """``tensor[key]``: integers, slices, ``...``, ``None``, scalar tensors, or one boolean mask."""
    is_mask = key.dtype == np.bool_ if isinstance(key, np.ndarray) else isinstance(key, bool)
    if is_mask or dtype_hint(key) == dtypes.bool:
        return boolean_mask(tensor, key)
    parts, masks = _spec(key if isinstance(key, tuple | list) else (key,))
    with OpBuilder("StridedSlice", None, "strided_slice") as op:
        tensor = op.tensor(tensor, "input")
        for name, values in zip(("stack", "stack_1", "stack_2"), parts, strict=True):
            op.tensor(_vector(values), name)
        return _strided(op, tensor, masks)


def _vector(values: list[Any]) -> Any:
    """The places as one vector: int64 if one of the tensors among them is."""
    hints = [dtype_hint(one) for one in values]
    if not any(hints):
        is_small = all(-(2**31) <= one < 2**31 for one in values)
        return np.array(values, np.int32 if is_small else np.int64).reshape(len(values))
    wanted = dtypes.int64 if dtypes.int64 in hints else dtypes.int32
    return stack(
        [cast(one, wanted) if dtype_hint(one) else wanted.numpy.type(one) for one in values]
    )


Operators._override_operator("__getitem__", _item)


def strided_slice(
    input_: Any,
    begin: Any,
    end: Any,
    strides: Any = None,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    var: Any = None,
    name: str | None = None,
) -> Tensor:
    """``input_[begin[0]:end[0]:strides[0], ...]``; bit ``i`` of a mask is about entry ``i``."""
    if var is not None:
        raise ValueError("strided_slice: var is not supported; assign to the whole variable")
    masks = (begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    with OpBuilder("StridedSlice", name) as op:
        tensor = op.tensor(input_, "input")
        first = op.tensor(begin, "begin", None, INDICES)
        op.tensor(end, "end", first.dtype)
        if strides is None:
            length = first.shape.as_tuple()  # known where the entries themselves are not
            count = length[0] if length else None
            strides = np.ones(1 if count is None else count, first.dtype.numpy)
        op.tensor(strides, "strides", first.dtype)
        return _strided(op, tensor, dict(zip(_MASKS, masks, strict=True)))


def _strided(op: OpBuilder, tensor: Tensor, masks: dict[str, int]) -> Tensor:
    known = [constant_value(one) for one in op.inputs[1:]]
    count = op.inputs[1].shape.num_elements()
    index: tuple[Any, ...] | None = None
    shape: Dims = None
    if count is not None:
        # A sketch, if only a run will give some places: integers drop an axis whatever they are.
        blank = [_UNKNOWN] * count
        try:
            index = _index(masks, *(blank if one is None else one.tolist() for one in known))
        except ValueError as error:
            raise op.refuse(str(error)) from None
        shape = _sliced_shape(op, tensor.shape.as_tuple(), index)
    fixed = index if all(one is not None for one in known) else None

    def sliced(x: Any, *places: Any) -> Any:
        try:
            found = fixed or _index(masks, *(one.tolist() for one in places))
        except ValueError as error:
            raise invalid(str(error)) from None
        return _take(array(x), found)

    return op.output(tensor.dtype, shape, Pure(sliced), attrs={**masks, "index": fixed})


def _index(
    masks: dict[str, int], begin: list[Any], end: list[Any], strides: list[Any]
) -> tuple[Any, ...]:
    """The Python index that the arguments of `strided_slice` mean; ValueError for a stride of 0."""
    index: list[Any] = []
    for place, (start, stop, step) in enumerate(zip(begin, end, strides, strict=True)):
        bit = 1 << place
        if masks["ellipsis_mask"] & bit:
            index.append(Ellipsis)
        elif masks["new_axis_mask"] & bit:
            index.append(None)
        elif masks["shrink_axis_mask"] & bit:
            index.append(start)
        else:
            if step == 0:
                raise ValueError(f"strides[{place}] must be non-zero")
            first = None if masks["begin_mask"] & bit else start
            last = None if masks["end_mask"] & bit else stop
            index.append(builtins.slice(first, last, step))
    return tuple(index)


def _take(x: Any, index: tuple[Any, ...]) -> Any:
    try:
        return x[index]
    except IndexError:
        raise invalid(_why_not(x.shape, index)) from None


def _why_not(shape: tuple[int, ...], index: tuple[Any, ...]) -> str:
    try:
        for place, (size, key) in enumerate(_by_axis(shape, index)):
            if isinstance(key, int) and not -size <= key < size:
                return f"slice index {key} of dimension {place} out of bounds."
    except ValueError as error:
        return str(error)
    return f"index {index} does not fit shape {shape_text(shape)}"


def _by_axis(shape: Any, index: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """Each axis of a shape with its key; ValueError if there are more keys than axes."""
    keys = [key for key in index if key is not None]
    wanted = len([key for key in keys if key is not Ellipsis])
    if wanted > len(shape):
        raise ValueError(
            f"Index out of range using input dim {len(shape)}; input has only {len(shape)} dims"
        )
    place = keys.index(Ellipsis) if Ellipsis in keys else len(keys)
    rest = [_FULL] * (len(shape) - wanted)
    return list(zip(shape, [*keys[:place], *rest, *keys[place + 1 :]], strict=True))


def _sliced_shape(op: OpBuilder, shape: Dims, index: tuple[Any, ...]) -> Dims:
    """The static shape of what an index, or a sketch of one, takes."""
    if shape is None:
        return None
    try:
        pairs = _by_axis(shape, index)
    except ValueError as error:
        raise op.refuse(str(error)) from None
    sizes: list[int | None] = []
    axis = 0
    for key in [*index, Ellipsis] if Ellipsis not in index else index:
        if key is None:
            sizes.append(1)
        elif key is Ellipsis:
            count = len(shape) - len([one for one in index if one not in (None, Ellipsis)])
            sizes += [size for size, _ in pairs[axis : axis + count]]
            axis += count
        else:
            size = pairs[axis][0]
            if isinstance(key, builtins.slice):
                sizes.append(_slice_length(size, key))
            elif key is not _UNKNOWN and size is not None and not -size <= key < size:
                raise op.refuse(f"slice index {key} of dimension {axis} out of bounds.")
            axis += 1
    return tuple(sizes)


def _slice_length(size: int | None, key: builtins.slice) -> int | None:
    if key.start is None and key.stop is None and key.step in (1, -1):
        return size
    if size is None or _UNKNOWN in (key.start, key.stop, key.step):
        return None
    return len(range(*key.indices(size)))


def slice(input_: Any, begin: Any, size: Any, name: str | None = None) -> Tensor:
    """A block of `size` elements along each axis, from `begin`; size -1 is all that is left."""

    def block(x: Any, begin: Any, size: Any) -> Any:
        x = array(x)
        if not len(begin) == len(size) == x.ndim:
            raise invalid(
                "Expected begin and size arguments to be 1-D tensors of size"
                f" {x.ndim}, but got shapes {shape_text(begin.shape)} and"
                f" {shape_text(size.shape)} instead."
            )
        keys = []
        axes = zip(begin.tolist(), size.tolist(), x.shape, strict=True)
        for axis, (start, count, whole) in enumerate(axes):
            if not 0 <= start <= whole:
                raise invalid(f"Expected begin[{axis}] in [0, {whole}], but got {start}")
            count = whole - start if count == -1 else count
            if not 0 <= start + count <= whole or count < 0:
                raise invalid(f"Expected size[{axis}] in [0, {whole - start}], but got {count}")
            keys.append(builtins.slice(start, start + count))
        return x[tuple(keys)]

    with OpBuilder("Slice", name) as op:
        tensor = op.tensor(input_, "input")
        first, counts = op.alike(INDICES, begin=begin, size=size)
        return op.output(tensor.dtype, _block_shape(op, tensor, first, counts), Pure(block))


def _block_shape(op: OpBuilder, tensor: Tensor, begin: Tensor, size: Tensor) -> Dims:
    whole, starts, counts = tensor.shape.as_tuple(), constant_value(begin), constant_value(size)
    if counts is None:
        known = shape_value(size)
        return known if known is not None or whole is None else (None,) * len(whole)
    if whole is None:
        return tuple(None if one == -1 else one for one in counts.tolist())
    if len(counts) != len(whole):
        raise op.refuse(f"Shape must be rank {len(counts)} but is rank {len(whole)}")
    first = [None] * len(whole) if starts is None else starts.tolist()
    sizes: list[int | None] = []
    for axis, (start, count, along) in enumerate(zip(first, counts.tolist(), whole, strict=True)):
        if count == -1:
            sizes.append(None if along is None or start is None else along - start)
        elif along is not None and start is not None and start + count > along:
            raise op.refuse(f"Expected size[{axis}] in [0, {along - start}], but got {count}")
        else:
            sizes.append(count)
    return tuple(sizes)


def gather(
    params: Any,
    indices: Any,
    validate_indices: bool | None = None,
    name: str | None = None,
    axis: Any = None,
    batch_dims: int = 0,
) -> Tensor:
    """The slices of `params` along an axis that `indices` names, which are always checked."""
    if batch_dims:
        raise NotImplementedError("gather: batch_dims is not supported; use gather_nd")

    def gathered(x: Any, places: Any, axis: Any) -> Any:
        x, places, axis = array(x), np.asarray(places), int(axis)
        if not -x.ndim <= axis < x.ndim:
            raise invalid(f"Expected axis in the range [{-x.ndim}, {x.ndim}), but got {axis}")
        _check_range(places, x.shape[axis])
        return np.take(x, places, axis)

    with OpBuilder("GatherV2", name) as op:
        tensor = op.tensor(params, "params")
        places = op.tensor(indices, "indices", None, INDICES)
        known = constant_value(op.tensor(0 if axis is None else axis, "axis", None, INDICES))
        whole, inner = tensor.shape.as_tuple(), places.shape.as_tuple()
        shape: Dims = None
        if whole is not None and inner is not None:
            at = None if known is None else int(known)
            if at is None:
                shape = (None,) * (len(whole) + len(inner) - 1)
            elif not -len(whole) <= at < len(whole):
                raise op.refuse(f"Shape must be at least rank {at + 1} but is rank {len(whole)}")
            else:
                at %= len(whole)
                shape = (*whole[:at], *inner, *whole[at + 1 :])
        return op.output(tensor.dtype, shape, Pure(gathered))


def _where_in(wrong: NDArray[Any], number: int) -> tuple[Any, str]:
    """The place of an element, and how messages show it."""
    at = np.unravel_index(number, wrong.shape)
    return at, shape_text([int(one) for one in at]) if at else ""


def _check_range(places: Any, size: int) -> None:
    wrong = (places < 0) | (places >= size)
    if wrong.any():
        at, where = _where_in(wrong, int(np.argmax(wrong)))
        raise invalid(f"indices{where} = {places[at]} is not in [0, {size})")


def gather_nd(params: Any, indices: Any, name: str | None = None, batch_dims: int = 0) -> Tensor:
    """The slices of `params` at the coordinates in the last axis of `indices`."""
    if batch_dims:
        raise NotImplementedError("gather_nd: batch_dims is not supported; add the coordinates")

    def gathered(x: Any, places: Any) -> Any:
        x, places = array(x), np.asarray(places)
        depth = places.shape[-1]
        if depth > x.ndim:
            raise invalid(
                "index innermost dimension length must be <= params rank; saw:"
                f" {depth} vs. {x.ndim}"
            )
        wrong = ((places < 0) | (places >= np.array(x.shape[:depth], np.int64))).any(axis=-1)
        if wrong.any():
            # TensorFlow reports the last one.
            at, where = _where_in(wrong, int(np.flatnonzero(wrong)[-1]))
            raise invalid(
                f"indices{where} = {shape_text(places[at].tolist())} does not index into param"
                f" shape {shape_text(x.shape)}, node name: {op.name.rstrip('/')}"
            )
        return x[tuple(np.moveaxis(places, -1, 0))]

    with OpBuilder("GatherNd", name) as op:
        tensor = op.tensor(params, "params")
        places = op.tensor(indices, "indices", None, INDICES)
        whole, inner = tensor.shape.as_tuple(), places.shape.as_tuple()
        shape: Dims = None
        if whole is not None and inner is not None and inner[-1] is not None:
            if inner[-1] > len(whole):
                raise op.refuse(
                    f"indices.shape[-1] must be <= params.rank, but saw indices shape:"
                    f" {shape_text(inner)} and params shape: {shape_text(whole)}"
                )
            shape = (*inner[:-1], *whole[inner[-1] :])
        return op.output(tensor.dtype, shape, Pure(gathered))


def boolean_mask(
    tensor: Any, mask: Any, name: str = "boolean_mask", axis: int | None = None
) -> Tensor:
    """The slices where the mask, of the shape of some axes from `axis` on, is true."""
    first = int(axis or 0)

    def masked(x: Any, mask: Any) -> Any:
        x, mask = array(x), np.asarray(mask)
        start = first % x.ndim
        part = x.shape[start : start + mask.ndim]
        if part != mask.shape:
            raise invalid(
                f"boolean_mask: mask has shape {shape_text(mask.shape)}, the tensor's axes from"
                f" {start} on have {shape_text(part)}"
            )
        return x[(*(_FULL,) * start, mask)]

    with OpBuilder("BooleanMask", name) as op:
        tensor = op.tensor(tensor, "tensor")
        mask = op.tensor(mask, "mask", dtypes.bool)
        shape, part = tensor.shape.as_tuple(), mask.shape.as_tuple()
        if part is None:
            raise ValueError(
                "Number of mask dimensions must be specified, even if some dimensions are None."
                "  E.g. shape=[None] is ok, but shape=None is not."
            )
        if not part:
            raise ValueError("mask cannot be scalar.")
        if shape is not None:
            start = first % len(shape)
            end = start + len(part)
            try:
                merge(shape[start:end], part)
            except ValueError:
                raise ValueError(
                    f"Shapes {TensorShape(shape[start:end])} and {TensorShape(part)} are"
                    " incompatible"
                ) from None
            shape = (*shape[:start], None, *shape[end:])
        return op.output(tensor.dtype, shape, Pure(masked))


def where(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Tensor:
    """Elements of `x`, or of `y`, as the condition chooses; without them, where it is true."""
    if (x is None) != (y is None):
        raise ValueError("x and y must both be non-None or both be None.")
    if x is None:
        with OpBuilder("Where", name) as op:
            count = op.tensor(condition, "condition").shape.ndims
            return op.output(dtypes.int64, (None, count), Pure(np.argwhere))

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
    """For each index a vector of `depth` elements: `on_value` at the index, else `off_value`."""
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
        known = constant_value(op.tensor(depth, "depth", dtypes.int32))
        for argument, value, usual in (("on_value", on_value, 1), ("off_value", off_value, 0)):
            if value is None:
                value = b"" if wanted == dtypes.string else wanted.numpy.type(usual)
            op.tensor(value, argument, wanted)
        shape = places.shape.as_tuple()
        if shape is not None:
            place = len(shape) if axis in (None, -1) else int(axis or 0)
            shape = (*shape[:place], None if known is None else int(known), *shape[place:])
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
    """For each length a row that is true up to it, of size `maxlen` or of the largest length."""
    wanted = dtypes.as_dtype(dtype)

    def masked(lengths: Any, *most: Any) -> Any:
        lengths = np.asarray(lengths)
        size = int(most[0]) if most else max(int(lengths.max(initial=0)), 0)
        return (np.arange(size) < np.expand_dims(lengths, -1)).astype(wanted.numpy)

    with OpBuilder("SequenceMask", name) as op:
        tensor = op.tensor(lengths, "lengths", None, INTEGERS)
        given = tensor if maxlen is None else op.tensor(maxlen, "maxlen", None, INTEGERS)
        known, shape = constant_value(given), tensor.shape.as_tuple()
        size: int | None = None
        if known is not None:
            size = int(known) if maxlen is not None else max(int(np.max(known, initial=0)), 0)
        return op.output(wanted, None if shape is None else (*shape, size), Pure(masked))


class _Unique(NamedTuple):
    y: Tensor
    idx: Tensor


class _UniqueWithCounts(NamedTuple):
    y: Tensor
    idx: Tensor
    count: Tensor  # type: ignore[assignment]  # TensorFlow's name


_Unique.__name__, _UniqueWithCounts.__name__ = "Unique", "UniqueWithCounts"


def unique(x: Any, out_idx: Any = dtypes.int32, name: str | None = None) -> _Unique:
    """The different elements of a vector, in the order in which they first appear."""
    return _Unique(*_unique("Unique", x, out_idx, name, 2))


def unique_with_counts(
    x: Any, out_idx: Any = dtypes.int32, name: str | None = None
) -> _UniqueWithCounts:
    """The same as `unique`, and how often each element is there."""
    return _UniqueWithCounts(*_unique("UniqueWithCounts", x, out_idx, name, 3))


def _unique(op_type: str, x: Any, out_idx: Any, name: str | None, count: int) -> list[Tensor]:
    wanted = dtypes.as_dtype(out_idx)

    def found(x: Any) -> Any:
        """`numpy.unique` sorts; here the elements stay in the order of their first appearance."""
        _, first, inverse, counts = np.unique(
            x, return_index=True, return_inverse=True, return_counts=True
        )
        order = np.argsort(first, kind="stable")
        places = np.empty(len(order), wanted.numpy)
        places[order] = np.arange(len(order))
        parts = x[first[order]], places[inverse.reshape(-1)], counts[order].astype(wanted.numpy)
        return parts[:count]

    with OpBuilder(op_type, name) as op:
        tensor = op.tensor(x, "x")
        outputs = [(tensor.dtype, (None,)), (wanted, op.rank(tensor, 1)), (wanted, (None,))]
        return op.outputs(outputs[:count], Pure(found))


# Slices written to places of variables, and of zeros.

_Write = Callable[[NDArray[Any], Any, Any], None]
"""Writes slices to places of an array: its arguments are the array, the index, and the slices."""


def _rows(indices: NDArray[Any], updates: NDArray[Any], shape: tuple[int, ...]) -> Any:
    """The index of rows: all rows exist, and their updates fit."""
    if updates.ndim and updates.shape != (*indices.shape, *shape[1:]):
        raise invalid(
            "Must have updates.shape = indices.shape + params.shape[1:] or updates.shape = [], got"
            f" updates.shape {shape_text(updates.shape)}, indices.shape"
            f" {shape_text(indices.shape)}, params.shape {shape_text(shape)}"
        )
    _check_range(indices, shape[0])
    return indices


def _places(indices: NDArray[Any], updates: NDArray[Any], shape: tuple[int, ...]) -> Any:
    """The index of slices: all slices exist, and their updates fit."""
    depth, outer = indices.shape[-1], indices.ndim - 1
    if updates.shape[:outer] != indices.shape[:-1]:
        raise invalid(
            f"Dimensions [0,{outer}) of indices[shape={shape_text(indices.shape)}] must match"
            f" dimensions [0,{outer}) of updates[shape={shape_text(updates.shape)}]"
        )
    if depth > len(shape) or updates.shape[outer:] != tuple(shape[depth:]):
        raise invalid(
            f"Dimensions [{depth},{len(shape)}) of input[shape={shape_text(shape)}] must match"
            f" dimensions [{outer},{updates.ndim}) of updates[shape={shape_text(updates.shape)}]"
        )
    flat = indices.reshape(-1, depth)
    wrong = ((flat < 0) | (flat >= np.array(shape[:depth]))).any(axis=1)
    if wrong.any():
        number = int(np.flatnonzero(wrong)[-1])  # TensorFlow reports the last one
        raise invalid(
            f"indices[{number}] = {shape_text(flat[number])} does not index into shape"
            f" {shape_text(shape)}"
        )
    return tuple(np.moveaxis(indices, -1, 0))


def _check_rows(places: Dims, slices: Dims, shape: Dims) -> None:
    if places is not None and slices and shape:
        merge(slices, (*places, *shape[1:]))


def _check_places(places: Dims, slices: Dims, shape: Dims) -> None:
    if not places or slices is None:
        return
    outer, depth = len(places) - 1, places[-1]
    parts = [("indices", places, 0, outer, 0, outer)]
    if shape is not None and depth is not None:
        parts.append(("input", shape, depth, len(shape), outer, len(slices)))
    for whose, sizes, start, end, first, last in parts:
        try:
            merge(sizes[start:end], slices[first:last])
        except ValueError as error:
            raise ValueError(
                f"Dimensions [{start},{end}) of {whose}[shape={shape_text(sizes)}] ="
                f" {shape_text(sizes[start:end])} must match dimensions [{first},{last}) of"
                f" updates[shape={shape_text(slices)}] = {shape_text(slices[first:last])}: {error}"
            ) from None


_Scattering = Callable[..., Tensor]


def _scattering(name: str, op_type: str, write: _Write, what: str) -> _Scattering:
    index_of, check = (_places, _check_places) if "_nd_" in name else (_rows, _check_rows)

    def scatter(
        ref: Any, indices: Any, updates: Any, use_locking: bool = False, name: Any = None
    ) -> Tensor:
        variable = variable_op(ref)
        kind = variable.outputs[0]

        def kernel(step: Any, indices: Any, updates: Any) -> Any:
            index, slices = np.asarray(indices), array(updates)

            def changed(old: Any) -> Any:
                made = array(old).copy()
                with np.errstate(all="ignore"):
                    write(made, index_of(index, slices, made.shape), slices)
                return made

            return variable_cell(step, variable).change(variable.name, changed)

        with OpBuilder(op_type, name) as op:
            places = op.tensor(indices, "indices", None, INDICES)
            slices = op.tensor(updates, "updates", kind.dtype, like="ref")
            static = kind.shape.as_tuple()
            check(places.shape.as_tuple(), slices.shape.as_tuple(), static)
            before = [] if isinstance(ref, Variable) or ref.op is variable else [ref]
            with variable.graph.control_dependencies(before):
                return op.output(kind.dtype, static, kernel, {"variable_op": variable})

    doc = (
        f"A variable's new value, with {what} at `indices`. Changes are atomic: if an index is not"
        " there, nothing is changed. `use_locking` has no effect."
    )
    return named(scatter, name, doc)


def _set(target: NDArray[Any], index: Any, updates: Any) -> None:
    target[index] = updates


_ADDED, _TAKEN = "`updates` added", "`updates` subtracted"
scatter_update: _Scattering = _scattering("scatter_update", "ScatterUpdate", _set, "`updates`")
scatter_add: _Scattering = _scattering("scatter_add", "ScatterAdd", np.add.at, _ADDED)
scatter_sub: _Scattering = _scattering("scatter_sub", "ScatterSub", np.subtract.at, _TAKEN)
scatter_nd_update: _Scattering = _scattering(
    "scatter_nd_update", "ScatterNdUpdate", _set, "`updates`"
)
scatter_nd_add: _Scattering = _scattering("scatter_nd_add", "ScatterNdAdd", np.add.at, _ADDED)
scatter_nd_sub: _Scattering = _scattering("scatter_nd_sub", "ScatterNdSub", np.subtract.at, _TAKEN)


def scatter_nd(indices: Any, updates: Any, shape: Any, name: str | None = None) -> Tensor:
    """Zeros, with `updates` added at coordinates: the last axis of `indices`."""

    def scattered(indices: Any, updates: Any, shape: Any) -> Any:
        slices = array(updates)
        made = np.zeros(tuple(shape.tolist()), slices.dtype)
        np.add.at(made, _places(np.asarray(indices), slices, made.shape), slices)
        return made

    with OpBuilder("ScatterNd", name) as op:
        places = op.tensor(indices, "indices", None, INDICES)
        slices = op.tensor(updates, "updates", None, NUMBERS)
        sizes = op.tensor(shape, "shape", places.dtype, like="indices")
        known = shape_value(sizes)
        _check_places(places.shape.as_tuple(), slices.shape.as_tuple(), known)
        return op.output(slices.dtype, known, Pure(scattered))
