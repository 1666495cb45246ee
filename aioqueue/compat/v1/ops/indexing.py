"""Indexing by position: ``x[...]``, `slice`, `strided_slice`, `gather`, `gather_nd`."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.shapes import Dimension
from aioqueue.compat.v1.ops.building import (
    INDICES,
    Dims,
    OpBuilder,
    Pure,
    array,
    dtype_hint,
    invalid,
    shape_text,
)
from aioqueue.compat.v1.ops.casting import cast
from aioqueue.compat.v1.ops.joining import stack
from aioqueue.compat.v1.ops.selecting import boolean_mask
from aioqueue.compat.v1.ops.static import constant_value, shape_value

__all__ = ("gather", "gather_nd", "item", "slice", "strided_slice")

_FULL = builtins.slice(None)
_UNKNOWN = object()
"""In a sketch of an index: an integer, or the ends of a slice, that only a run will tell."""


class _Spec:
    """What ``x[...]`` says, as the arguments of `strided_slice`."""

    def __init__(self) -> None:
        self.begin: list[Any] = []
        self.end: list[Any] = []
        self.strides: list[Any] = []
        self.masks = dict.fromkeys(
            ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0
        )

    def add(self, begin: Any, end: Any, stride: Any, *masks: str) -> None:
        for mask in masks:
            self.masks[mask] |= 1 << len(self.begin)
        self.begin.append(begin)
        self.end.append(end)
        self.strides.append(stride)

    def add_key(self, key: Any) -> None:
        """One of the things between the brackets."""
        if key is None:
            self.add(0, 0, 1, "new_axis_mask")
        elif key is Ellipsis:
            if self.masks["ellipsis_mask"]:
                raise ValueError("Multiple ellipses in slice spec not allowed")
            self.add(0, 0, 1, "ellipsis_mask")
        elif isinstance(key, builtins.slice):
            self._add_slice(key)
        else:
            place = _place(key)
            # Past -1 is the end, which as a number would be 0.
            self.add(place, place + 1, 1, "shrink_axis_mask")

    def _add_slice(self, key: builtins.slice) -> None:
        masks = []
        if key.start is None:
            masks.append("begin_mask")
        if key.stop is None:
            masks.append("end_mask")
        begin = 0 if key.start is None else _place(key.start)
        end = 0 if key.stop is None else _place(key.stop)
        self.add(begin, end, 1 if key.step is None else _place(key.step), *masks)


def _place(key: Any) -> Any:
    """An integer, or a scalar tensor of integers.

    Raises:
        TypeError: it is neither.
    """
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


def item(tensor: Any, key: Any) -> Tensor:
    """``tensor[key]``: integers, slices, ``...``, ``None``, scalar tensors, or one boolean mask.

    Raises:
        TypeError: something else is among the keys.
        ValueError: the static shape shows that there is no such place.
    """
    if _is_mask(key):
        return boolean_mask(tensor, key)
    spec = _Spec()
    for one in key if isinstance(key, tuple | list) else (key,):
        spec.add_key(one)
    with OpBuilder("StridedSlice", None, "strided_slice") as op:
        tensor = op.tensor(tensor, "input")
        parts = (("stack", spec.begin), ("stack_1", spec.end), ("stack_2", spec.strides))
        for name, values in parts:
            op.tensor(_vector(values), name)
        return _strided(op, tensor, spec.masks)


def _is_mask(key: Any) -> bool:
    if isinstance(key, np.ndarray):
        return bool(key.dtype == np.bool_)
    return isinstance(key, bool) or dtype_hint(key) == dtypes.bool


def _vector(values: list[Any]) -> Any:
    """The places as one vector: int64 if one of the tensors among them is."""
    hints = [dtype_hint(one) for one in values]
    if not any(hints):
        return np.array(values, np.int32 if _fits_int32(values) else np.int64).reshape(len(values))
    wanted = dtypes.int64 if dtypes.int64 in hints else dtypes.int32
    return stack(
        [cast(one, wanted) if dtype_hint(one) else wanted.numpy.type(one) for one in values]
    )


def _fits_int32(values: list[int]) -> bool:
    return all(-(2**31) <= one < 2**31 for one in values)


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
    """``input_[begin[0]:end[0]:strides[0], ...]``; bit ``i`` of a mask is about entry ``i``.

    Args:
        input_: any tensor.
        begin: where each slice begins.
        end: where each slice ends.
        strides: the steps; 1 if left out.
        begin_mask: entries that begin at the beginning.
        end_mask: entries that end at the end.
        ellipsis_mask: the entry that stands for ``...``.
        new_axis_mask: entries that make a new axis of size 1.
        shrink_axis_mask: entries that take one place, ``begin``, and drop the axis.
        var: a variable to assign to through the result; not supported.
        name: name of the op.

    Raises:
        ValueError: `var` is given, or the static shape shows that there is no such place.
    """
    if var is not None:
        raise ValueError("strided_slice: var is not supported; assign to the whole variable")
    masks = {
        "begin_mask": begin_mask,
        "end_mask": end_mask,
        "ellipsis_mask": ellipsis_mask,
        "new_axis_mask": new_axis_mask,
        "shrink_axis_mask": shrink_axis_mask,
    }
    with OpBuilder("StridedSlice", name) as op:
        tensor = op.tensor(input_, "input")
        first = op.tensor(begin, "begin", None, INDICES)
        op.tensor(end, "end", first.dtype)
        if strides is None:
            length = first.shape.as_tuple()  # known where the entries themselves are not
            count = length[0] if length else None
            strides = np.ones(1 if count is None else count, first.dtype.numpy)
        op.tensor(strides, "strides", first.dtype)
        return _strided(op, tensor, masks)


def _strided(op: OpBuilder, tensor: Tensor, masks: dict[str, int]) -> Tensor:
    """Add the op whose inputs are there already."""
    begin, end, strides = map(constant_value, op.inputs[1:])
    index: tuple[Any, ...] | None = None
    if begin is not None and end is not None and strides is not None:
        index = _index(begin.tolist(), end.tolist(), strides.tolist(), masks)
        fixed = index
        shape = _sliced_shape(op, tensor.shape.as_tuple(), index)
        kernel = Pure(lambda x, *_: _take(array(x), fixed))
    else:
        count = op.inputs[1].shape.num_elements()
        if count is None:
            shape = None
        else:
            blank = [_UNKNOWN] * count
            steps = blank if strides is None else strides.tolist()
            starts = blank if begin is None else begin.tolist()
            stops = blank if end is None else end.tolist()
            sketch = _index(starts, stops, steps, masks)
            shape = _sliced_shape(op, tensor.shape.as_tuple(), sketch)

        def sliced(x: Any, begin: Any, end: Any, strides: Any) -> Any:
            found = _index(begin.tolist(), end.tolist(), strides.tolist(), masks)
            return _take(array(x), found)

        kernel = Pure(sliced)
    return op.output(tensor.dtype, shape, kernel, attrs={**masks, "index": index})


def _index(
    begin: list[Any], end: list[Any], strides: list[Any], masks: dict[str, int]
) -> tuple[Any, ...]:
    """The Python index that the arguments of `strided_slice` mean."""
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
                raise invalid(f"strides[{place}] must be non-zero")
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
    """Each axis of a shape with its key; without those that are new.

    Raises:
        ValueError: there are more keys than axes.
    """
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
            count = len(shape) - len(
                [one for one in index if one is not None and one is not Ellipsis]
            )
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
    """A block of `size` elements along each axis, from `begin`; size -1 is all that is left.

    Raises:
        ValueError: the static shape shows that the block does not fit.
        InvalidArgumentError: it turns out not to fit when it runs.
    """

    def block(x: Any, begin: Any, size: Any) -> Any:
        x = array(x)
        if not len(begin) == len(size) == x.ndim:
            raise invalid(
                "Expected begin and size arguments to be 1-D tensors of size"
                f" {x.ndim}, but got shapes {shape_text(begin.shape)} and"
                f" {shape_text(size.shape)} instead."
            )
        keys = []
        for axis, (start, count, whole) in enumerate(
            zip(begin.tolist(), size.tolist(), x.shape, strict=True)
        ):
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
    """The slices of `params` along an axis that `indices` names.

    Args:
        params: any tensor of rank 1 or more.
        indices: integers, of any shape.
        validate_indices: accepted and without effect: indices are always checked.
        name: name of the op.
        axis: which axis; `batch_dims` if left out.
        batch_dims: how many leading axes `params` and `indices` share.

    Raises:
        InvalidArgumentError: when it runs: an index is not in range.
    """
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
        at = op.tensor(0 if axis is None else axis, "axis", None, INDICES)
        whole, inner, known = tensor.shape.as_tuple(), places.shape.as_tuple(), constant_value(at)
        shape: Dims = None
        if whole is not None and inner is not None:
            if known is None:
                shape = (None,) * (len(whole) + len(inner) - 1)
            elif not -len(whole) <= int(known) < len(whole):
                raise op.refuse(
                    f"Shape must be at least rank {int(known) + 1} but is rank {len(whole)}"
                )
            else:
                axis = int(known) % len(whole)
                shape = (*whole[:axis], *inner, *whole[axis + 1 :])
        return op.output(tensor.dtype, shape, Pure(gathered))


def _check_range(places: Any, size: int) -> None:
    wrong = (places < 0) | (places >= size)
    if wrong.any():
        at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        where = shape_text([int(one) for one in at]) if at else ""
        raise invalid(f"indices{where} = {places[at]} is not in [0, {size})")


def gather_nd(params: Any, indices: Any, name: str | None = None, batch_dims: int = 0) -> Tensor:
    """The slices of `params` at the coordinates in the last axis of `indices`.

    Raises:
        InvalidArgumentError: when it runs: a coordinate is not in range.
    """
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
        sizes = np.array(x.shape[:depth], np.int64)
        wrong = ((places < 0) | (places >= sizes)).any(axis=-1)
        if wrong.any():
            last = int(np.flatnonzero(wrong)[-1])  # TensorFlow tells the last one
            at = np.unravel_index(last, wrong.shape)
            where = shape_text([int(one) for one in at]) if at else ""
            found = shape_text(places[at].tolist())
            raise invalid(
                f"indices{where} = {found} does not index into param shape {shape_text(x.shape)}"
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
