"""Tensors joined, and taken apart: `stack`, `concat`, `unstack`, `split`."""

from __future__ import annotations

from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import (
    INDICES,
    Dims,
    OpBuilder,
    Pure,
    array,
    invalid,
    merge,
    shape_text,
)
from aioqueue.compat.v1.ops.static import constant_value, shape_value

__all__ = (
    "concat",
    "pack",
    "split",
    "stack",
    "unpack",
    "unstack",
)


def stack(values: Any, axis: int = 0, name: str = "stack") -> Tensor:
    """Tensors of one shape along a new axis.

    Raises:
        ValueError: the shapes are known to differ, or there are none.
        InvalidArgumentError: they turn out to differ when it runs.
    """
    values = list(values) if isinstance(values, list | tuple | np.ndarray) else unstack(values)
    if not values:
        raise ValueError("stack: values is empty; expected at least one tensor")

    def stacked(*values: Any) -> Any:
        arrays = [array(one) for one in values]
        for place, one in enumerate(arrays):
            if one.shape != arrays[0].shape:
                first, other = shape_text(arrays[0].shape), shape_text(one.shape)
                raise invalid(
                    f"Shapes of all inputs must match: values[0].shape = {first} !="
                    f" values[{place}].shape = {other}"
                )
        return np.stack(arrays, axis)

    with OpBuilder("Pack", name) as op:
        tensors = op.alike_list(values, "values")
        static: Dims = None
        for place, one in enumerate(tensors):
            try:
                static = merge(static, one.shape.as_tuple())
            except ValueError as error:
                merging = f"\n\tFrom merging shape {place - 1} with other shapes."
                raise op.refuse(f"{error}{merging}") from None
        if static is not None:
            if not -len(static) - 1 <= axis <= len(static):
                raise ValueError(
                    f"Argument `axis` = {axis} not in range [{-len(static) - 1}, {len(static) + 1})"
                )
            place = axis % (len(static) + 1)
            static = (*static[:place], len(tensors), *static[place:])
        return op.output(tensors[0].dtype, static, Pure(stacked), attrs={"axis": axis})


def pack(values: Any, axis: int = 0, name: str = "pack") -> Tensor:
    """The old name of `stack`."""
    return stack(values, axis, name)


def unstack(
    value: Any, num: int | None = None, axis: int = 0, name: str = "unstack"
) -> list[Tensor]:
    """The slices along an axis, whose size must be known.

    Args:
        value: a tensor.
        num: the size of that axis; from the static shape if left out.
        axis: which axis; it may count from the end.
        name: name of the op.

    Raises:
        ValueError: `num` is neither given nor known, or there is no such axis.
    """
    value = convert_to_tensor(value)
    static = value.shape.as_tuple()
    if static is not None and not -len(static) <= axis < len(static):
        raise ValueError(f"Argument `axis` = {axis} not in range [{-len(static)}, {len(static)})")
    if num is None:
        num = None if static is None else static[axis]
        if num is None:
            raise ValueError(f"Cannot infer argument `num` from shape {value.shape}")

    def slices(x: Any) -> Any:
        x = array(x)
        if x.shape[axis] != num:
            raise invalid(
                f"Input shape axis {axis} must equal {num}, got shape {shape_text(x.shape)}"
            )
        parts = tuple(np.moveaxis(x, axis, 0))
        return parts if num != 1 else parts[0]

    with OpBuilder("Unpack", name) as op:
        op.tensor(value, "value")
        if static is not None:
            place = axis % len(static)
            if static[place] not in (None, num):
                raise op.refuse(f"Dimension must be {num} but is {static[place]}")
            static = (*static[:place], *static[place + 1 :])
        return op.outputs([(value.dtype, static)] * num, Pure(slices), attrs={"num": num})


def unpack(value: Any, num: int | None = None, axis: int = 0, name: str = "unpack") -> list[Tensor]:
    """The old name of `unstack`."""
    return unstack(value, num, axis, name)


def concat(values: Any, axis: Any, name: str = "concat") -> Tensor:
    """Tensors one after the other along an axis they have.

    Raises:
        ValueError: the static shapes do not fit.
        InvalidArgumentError: they turn out not to fit when it runs.
    """
    values = list(values) if isinstance(values, list | tuple | np.ndarray) else [values]

    def joined(*values: Any) -> Any:
        arrays, place = [array(one) for one in values[:-1]], int(values[-1])
        first = arrays[0]
        for index, one in enumerate(arrays):
            if one.ndim != first.ndim:
                raise invalid(
                    f"ConcatOp : Ranks of all input tensors should match: shape[0] ="
                    f" {shape_text(first.shape)} vs. shape[{index}] = {shape_text(one.shape)}"
                )
        if not -first.ndim <= place < first.ndim:
            raise invalid(
                "ConcatOp : Expected concatenating dimensions in the range"
                f" [{-first.ndim}, {first.ndim}), but got {place}"
            )
        for index, one in enumerate(arrays):
            rest = [i for i in range(one.ndim) if i != place % one.ndim]
            wrong = [i for i in rest if one.shape[i] != first.shape[i]]
            if wrong:
                raise invalid(
                    f"ConcatOp : Dimension {wrong[0]}"
                    f" in both shapes must be equal: shape[0] = {shape_text(first.shape)} vs."
                    f" shape[{index}] = {shape_text(one.shape)}"
                )
        return np.concatenate(arrays, place)

    with OpBuilder("ConcatV2", name) as op:
        tensors = op.alike_list(values, "values")
        place = _axis(op, axis, "axis", None if isinstance(axis, Tensor) else dtypes.int32)
        static = _concatenated(op, tensors, constant_value(place))
        return op.output(tensors[0].dtype, static, Pure(joined))


def _concatenated(op: OpBuilder, tensors: list[Tensor], axis: Any) -> Dims:
    known = [one.shape.as_tuple() for one in tensors]
    shapes = [one for one in known if one is not None]
    if not shapes:
        return None
    ranks = {len(one) for one in shapes}
    if len(ranks) > 1:
        other = next(len(one) for one in shapes if len(one) != len(shapes[0]))
        raise op.refuse(f"Shape must be rank {len(shapes[0])} but is rank {other}")
    if axis is None:
        return (None,) * len(shapes[0])
    if not -len(shapes[0]) <= int(axis) < len(shapes[0]):
        raise op.refuse(f"Shape must be at least rank {int(axis) + 1} but is rank {len(shapes[0])}")
    place = int(axis) % len(shapes[0])
    merged: Dims = None
    for one in shapes:
        try:
            merged = merge(merged, (*one[:place], *one[place + 1 :]))
        except ValueError as error:
            raise op.refuse(str(error)) from None
    assert merged is not None
    sizes = [None if one is None else one[place] for one in known]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    return (*merged[:place], total, *merged[place:])


def _axis(op: OpBuilder, axis: Any, argument: str, dtype: DType | None) -> Tensor:
    """An axis as the op's next input; before TensorFlow 1.0 it was the first argument."""
    place = op.tensor(axis, argument, dtype, INDICES)
    if place.shape.ndims:
        raise ValueError(
            f"Shape {place.shape} must have rank 0: axis is a scalar, and comes after the values"
            " since TensorFlow 1.0"
        )
    return place


def split(
    value: Any, num_or_size_splits: Any, axis: Any = 0, num: int | None = None, name: str = "split"
) -> list[Tensor]:
    """Pieces along an axis.

    Args:
        value: a tensor.
        num_or_size_splits: how many equal pieces; or a list of sizes, where one may be -1.
        axis: which axis.
        num: how many sizes there are, where that is not known from them.
        name: name of the op.

    Raises:
        ValueError: the axis is known not to divide so, or the number of pieces is not known.
    """
    if isinstance(num_or_size_splits, int | np.integer):
        return _split_evenly(value, int(num_or_size_splits), axis, name)

    def pieces(x: Any, sizes: Any, axis: Any) -> Any:
        x, place = array(x), int(axis)
        sizes = _sizes_of(x.shape[place], sizes)
        parts = tuple(np.split(x, np.cumsum(sizes)[:-1], place))
        return parts if len(parts) != 1 else parts[0]

    with OpBuilder("SplitV", name) as op:
        tensor = op.tensor(value, "value")
        sizes = op.tensor(num_or_size_splits, "size_splits", None, INDICES)
        if sizes.shape.ndims == 0:
            raise ValueError(
                "Rank-0 tensors are not supported as the num_or_size_splits argument to split."
                f" Argument provided: {num_or_size_splits}"
            )
        place = _axis(op, axis, "split_dim", dtypes.int32)
        if num is None:
            num = sizes.shape.num_elements()
        if num is None:
            raise ValueError(f"Cannot infer argument `num` from shape {num_or_size_splits}")
        static, known = tensor.shape.as_tuple(), constant_value(place)
        lengths = shape_value(sizes) or (None,) * num
        shapes: list[Dims] = [None if static is None else (None,) * len(static)] * num
        if static is not None and known is not None:
            at = int(known) % len(static)
            whole = static[at]
            if lengths.count(None) == 1 and whole is not None:
                rest = whole - sum(one for one in lengths if one is not None)
                lengths = tuple(rest if one is None else one for one in lengths)
            shapes = [(*static[:at], one, *static[at + 1 :]) for one in lengths]
        return op.outputs([(tensor.dtype, one) for one in shapes], Pure(pieces))


def _split_evenly(value: Any, num: int, axis: Any, name: str) -> list[Tensor]:
    def pieces(axis: Any, x: Any) -> Any:
        x, place = array(x), int(axis)
        if not -x.ndim <= place < x.ndim:
            raise invalid(
                f"-input rank(-{x.ndim}) <= split_dim < input rank ({x.ndim}), but got {place}"
            )
        if x.shape[place] % num:
            raise invalid(
                "Number of ways to split should evenly divide the split dimension, but got"
                f" split_dim {place} (size = {x.shape[place]}) and num_split {num}"
            )
        parts = tuple(np.split(x, num, place))
        return parts if num != 1 else parts[0]

    with OpBuilder("Split", name) as op:
        place = _axis(op, axis, "split_dim", dtypes.int32)
        tensor = op.tensor(value, "value")
        static, known = tensor.shape.as_tuple(), constant_value(place)
        if static is not None and known is not None:
            at = int(known) % len(static)
            whole = static[at]
            if whole is not None and whole % num:
                raise op.refuse(
                    f"Dimension size must be evenly divisible by {num} but is {whole}\n\tNumber of"
                    " ways to split should evenly divide the split dimension"
                )
            static = (*static[:at], None if whole is None else whole // num, *static[at + 1 :])
        elif static is not None:
            static = (None,) * len(static)
        return op.outputs([(tensor.dtype, static)] * num, Pure(pieces), attrs={"num_split": num})


def _sizes_of(whole: int, sizes: Any) -> list[int]:
    lengths: list[int] = sizes.tolist()
    known = sum(one for one in lengths if one >= 0)
    if lengths.count(-1) == 1 and known <= whole:
        return [whole - known if one == -1 else one for one in lengths]
    if -1 in lengths or known != whole:
        raise invalid(
            "Determined shape must either match input shape along split_dim exactly if fully"
            " specified, or be less than the size of the input along split_dim if not fully"
            f" specified.  Got: {known}"
        )
    return lengths
