"""Whole tensors: made of one value, in another shape, joined, and taken apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import (
    as_value,
    convert_to_tensor,
    register_tensor_conversion_function,
)
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor, named
from aioqueue.compat.v1.core.shapes import Dimension, TensorShape
from aioqueue.compat.v1.ops.building import (
    ANY,
    INDICES,
    REALS,
    Dims,
    OpBuilder,
    Pure,
    array,
    dtype_hint,
    invalid,
    merge,
    shape_text,
    unless_given,
)
from aioqueue.compat.v1.ops.casting import cast
from aioqueue.compat.v1.ops.static import constant_value, shape_value

__all__ = (
    "concat", "expand_dims", "eye", "fill", "lin_space", "linspace", "meshgrid",
    "ones", "ones_like", "pack", "pad", "range", "rank", "reshape", "reverse", "reverse_v2",
    "shape", "size", "split", "squeeze", "stack", "tile", "transpose", "unpack", "unstack",
    "zeros", "zeros_like",
)  # fmt: skip

_LARGEST_CONSTANT = 1000
"""Elements: larger tensors of one value are filled when they run, as in TensorFlow."""


def _shape_to_tensor(
    value: TensorShape, dtype: DType | None = None, name: str | None = None, as_ref: bool = False
) -> Tensor:
    if not value.is_fully_defined():
        raise ValueError(f"Cannot convert a partially known TensorShape {value} to a Tensor.")
    sizes = np.array(value.as_list(), (dtype or dtypes.int32).numpy)
    return convert_to_tensor(sizes, name=name or "shape_as_tensor")


def _dimension_to_tensor(
    value: Dimension, dtype: DType | None = None, name: str | None = None, as_ref: bool = False
) -> Tensor:
    if value.value is None:
        raise ValueError(f"Cannot convert an unknown Dimension to a Tensor: {value}")
    return convert_to_tensor((dtype or dtypes.int32).numpy.type(value.value), name=name)


register_tensor_conversion_function(TensorShape, _shape_to_tensor, 100)
register_tensor_conversion_function(Dimension, _dimension_to_tensor, 100)


def shape(input: Any, name: str | None = None, out_type: Any = dtypes.int32) -> Tensor:
    """The shape, as a vector of int32 or int64."""
    wanted = dtypes.as_dtype(out_type)
    with OpBuilder("Shape", name) as op:
        tensor = op.tensor(input, "input")
        kernel = Pure(lambda x: np.array(np.shape(x), wanted.numpy))
        return op.output(wanted, (tensor.shape.ndims,), kernel)


def size(input: Any, name: str | None = None, out_type: Any = dtypes.int32) -> Tensor:
    """The number of elements."""
    wanted = dtypes.as_dtype(out_type)
    with OpBuilder("Size", name) as op:
        op.tensor(input, "input")
        return op.output(wanted, (), Pure(lambda x: wanted.numpy.type(np.size(x))))


def rank(input: Any, name: str | None = None) -> Tensor:
    """The number of dimensions."""
    with OpBuilder("Rank", name) as op:
        op.tensor(input, "input")
        return op.output(dtypes.int32, (), Pure(lambda x: np.int32(np.ndim(x))))


def reshape(tensor: Any, shape: Any, name: str | None = None) -> Tensor:
    """The same elements, in the same order, in another shape; one size may be -1: what is left."""

    def reshaped(x: Any, sizes: Any) -> Any:
        x = array(x)
        _check_sizes(x.size, sizes)
        return x.reshape(tuple(sizes.tolist()))

    with OpBuilder("Reshape", name) as op:
        tensor = op.tensor(tensor, "tensor")
        shape = op.tensor(shape, "shape", None, INDICES)
        static = _reshaped(op, tensor, shape_value(shape))
        return op.output(tensor.dtype, static, Pure(reshaped))


def _product(sizes: Any) -> int:
    """Of those that are known."""
    product = 1
    for one in sizes:
        product *= 1 if one in (-1, None) else one
    return product


def _check_sizes(count: int, sizes: Any) -> None:
    known, free = _product(sizes.tolist()), np.flatnonzero(sizes == -1)
    if len(free) > 1:
        raise invalid(f"Only one input size may be -1, not both {free[0]} and {free[1]}")
    given = f"Input to reshape is a tensor with {count} values, but the requested shape"
    if not len(free):
        if known != count:
            raise invalid(f"{given} has {known}")
    elif known == 0:
        raise invalid(
            "reshape cannot infer the missing input size for an empty tensor unless all specified"
            " input sizes are non-zero"
        )
    elif count % known:
        raise invalid(f"{given} requires a multiple of {known}")


def _reshaped(op: OpBuilder, tensor: Tensor, wanted: Dims) -> Dims:
    count = tensor.shape.num_elements()
    if wanted is None or count is None:
        return wanted
    known, unknown = _product(wanted), wanted.count(None)
    if not unknown and known != count:
        raise op.refuse(
            f"Cannot reshape a tensor with {count} elements to shape {shape_text(wanted)}"
            f" ({known} elements)"
        )
    if unknown != 1 or known == 0:
        return wanted
    if count % known:
        raise op.refuse(f"Dimension size must be evenly divisible by {known} but is {count}")
    return tuple(count // known if one is None else one for one in wanted)


def expand_dims(input: Any, axis: Any = None, name: str | None = None, dim: Any = None) -> Tensor:
    """A new dimension of size 1 at `axis`, which may count from the end."""
    axis = unless_given(axis, dim, "axis", "dim")
    if axis is None:
        raise ValueError("Must specify an axis argument to tf.expand_dims()")

    def expanded(x: Any, place: Any) -> Any:
        x, place = array(x), int(np.ravel(place)[0])
        if not -x.ndim - 1 <= place <= x.ndim:
            raise invalid(f"Tried to expand dim index {place} for tensor with {x.ndim} dimensions.")
        return np.expand_dims(x, place)

    with OpBuilder("ExpandDims", name) as op:
        tensor = op.tensor(input, "input")
        known = constant_value(op.tensor(axis, "dim", None, INDICES))
        static = tensor.shape.as_tuple() if known is not None else None
        if static is not None:
            index, count = int(np.ravel(known)[0]), len(static)
            if not -count - 1 <= index <= count:
                raise op.refuse(f"dim {index} not in the interval [{-count - 1}, {count}].")
            index %= count + 1
            static = (*static[:index], 1, *static[index:])
        return op.output(tensor.dtype, static, Pure(expanded))


def squeeze(
    input: Any, axis: Any = None, name: str | None = None, squeeze_dims: Any = None
) -> Tensor:
    """The dimensions in `axis` removed, or all of size 1."""
    axis = unless_given(axis, squeeze_dims, "axis", "squeeze_dims")
    axes = [] if axis is None else [int(one) for one in np.ravel(axis)]

    def why_not(sizes: Any) -> str | None:
        for one in axes:
            if not -len(sizes) <= one < len(sizes):
                return f"Tried to squeeze dim index {one} for tensor with {len(sizes)} dimensions."
            if sizes[one] not in (1, None):
                place = one % len(sizes)
                return f"Can not squeeze dim[{place}], expected a dimension of 1, got {sizes[one]}"
        return None

    def squeezed(x: Any) -> Any:
        x = array(x)
        if problem := why_not(x.shape):
            raise invalid(problem)
        return np.squeeze(x, tuple(axes) if axes else None)

    with OpBuilder("Squeeze", name) as op:
        tensor = op.tensor(input, "input")
        static = tensor.shape.as_tuple()
        if static is not None:
            if problem := why_not(static):
                raise op.refuse(problem)
            dropped = {one % len(static) for one in axes}
            if axes:
                static = tuple(one for place, one in enumerate(static) if place not in dropped)
            else:
                static = None if None in static else tuple(one for one in static if one != 1)
        return op.output(tensor.dtype, static, Pure(squeezed))


def transpose(a: Any, perm: Any = None, name: str = "transpose", conjugate: bool = False) -> Tensor:
    """The dimensions in another order: reversed, or as `perm` says."""

    def transposed(x: Any, order: Any) -> Any:
        x = array(x)
        if len(order) != x.ndim:
            raise invalid(
                f"transpose expects a vector of size {x.ndim}. But input(1) is a vector of size"
                f" {len(order)}"
            )
        for place in np.arange(x.ndim):
            if place not in order:
                raise invalid(f"{place} is missing from {{{','.join(map(str, order))}}}.")
        moved = np.transpose(x, order)
        return moved.conj() if conjugate else moved

    with OpBuilder("Transpose", name) as op:
        tensor = op.tensor(a, "a")
        static = tensor.shape.as_tuple()
        if perm is None and static is None:
            with OpBuilder("ReversedRange", None, "perm") as inner:
                inner.tensor(tensor, "a")
                kernel = Pure(lambda x: np.arange(np.ndim(x), dtype=np.int32)[::-1])
                perm = inner.output(dtypes.int32, (None,), kernel)
        elif perm is None and static is not None:
            perm = np.arange(len(static), dtype=np.int32)[::-1]
        order = op.tensor(perm, "perm", None, INDICES)
        return op.output(tensor.dtype, _transposed(op, static, order), Pure(transposed))


def _transposed(op: OpBuilder, static: Dims, order: Tensor) -> Dims:
    known = constant_value(order)
    if known is None:
        count = order.shape.num_elements() if static is None else len(static)
        return None if count is None else (None,) * count
    if static is None:
        return (None,) * len(known)
    if len(known) != len(static):
        raise op.refuse(f"Dimension must be {len(static)} but is {len(known)}")
    for place in known.tolist():
        if not -len(static) <= place < len(static):
            raise op.refuse(f"perm dim {place} is out of range of input rank {len(static)}")
    return tuple(static[place] for place in known.tolist())


def reverse(tensor: Any, axis: Any, name: str | None = None) -> Tensor:
    """The elements along some axes in reversed order."""

    def reversed_along(x: Any, axes: Any) -> Any:
        x = array(x)
        for place, one in enumerate(axes.tolist()):
            if not -x.ndim <= one < x.ndim:
                raise invalid(f"'axis'[{place}] = {one} is out of valid range [0, {x.ndim - 1}")
        return np.flip(x, tuple(axes.tolist()))

    with OpBuilder("ReverseV2", name) as op:
        tensor = op.tensor(tensor, "tensor")
        op.tensor(axis, "axis", None, INDICES)
        return op.output(tensor.dtype, tensor.shape.as_tuple(), Pure(reversed_along))


reverse_v2 = reverse


def tile(input: Any, multiples: Any, name: str | None = None) -> Tensor:
    """The tensor repeated `multiples` times along each of its axes."""

    def tiled(x: Any, times: Any) -> Any:
        x = array(x)
        if len(times) != x.ndim:
            raise invalid(
                f"Expected multiples argument to be a vector of length {x.ndim} but got length"
                f" {len(times)}"
            )
        return np.tile(x, times.tolist()) if x.ndim else x

    with OpBuilder("Tile", name) as op:
        tensor = op.tensor(input, "input")
        times = op.tensor(multiples, "multiples", None, INDICES)
        static, known = tensor.shape.as_tuple(), shape_value(times)
        if static is None and known is not None:
            static = (None,) * len(known)
        if static is not None and known is None:
            static = (None,) * len(static)
        elif static is not None and known is not None:
            if len(static) != len(known):
                raise op.refuse(f"Shape must be rank {len(static)} but is rank {len(known)}")
            static = tuple(map(_times, static, known))
        return op.output(tensor.dtype, static, Pure(tiled))


def _times(size: int | None, many: int | None) -> int | None:
    """The size of an axis that is repeated: that of nothing is known, whatever the other is."""
    if size == 0 or many == 0:
        return 0
    return None if size is None or many is None else size * many


def pad(
    tensor: Any,
    paddings: Any,
    mode: str = "CONSTANT",
    name: str | None = None,
    constant_values: Any = 0,
) -> Tensor:
    """The tensor with more elements along each axis; modes as in `numpy.pad`."""
    mode = mode.upper()
    types = {"CONSTANT": "Pad", "REFLECT": "MirrorPad", "SYMMETRIC": "MirrorPad"}
    if mode not in types:
        raise ValueError(f"Unknown padding mode: {mode}; expected one of {', '.join(types)}")

    def padded(x: Any, widths: Any, *value: Any) -> Any:
        x = array(x)
        if len(widths) != x.ndim:
            raise invalid(
                "The first dimension of paddings must be the rank of inputs"
                f"{shape_text(widths.shape)} {shape_text(x.shape)}"
            )
        if mode != "CONSTANT":
            return np.pad(x, widths, mode.lower())  # type: ignore[call-overload]
        if x.dtype != object:
            return np.pad(x, widths, constant_values=value[0])
        # NumPy would make zeros of strings first.
        result = np.full(np.add(x.shape, widths.sum(axis=1)), value[0], object)
        inside = zip(widths[:, 0].tolist(), x.shape, strict=True)
        result[tuple(slice(before, before + size) for before, size in inside)] = x
        return result

    # The first version of the op knows no value but zero.
    has_value = mode == "CONSTANT" and (dtype_hint(constant_values) or np.any(constant_values))
    with OpBuilder("PadV2" if has_value else types[mode], name) as op:
        tensor = op.tensor(tensor, "tensor")
        widths = op.tensor(paddings, "paddings", None, INDICES)
        if mode == "CONSTANT":
            blank = tensor.dtype == dtypes.string and isinstance(constant_values, int)
            op.tensor(b"" if blank else constant_values, "constant_values", tensor.dtype)
        return op.output(tensor.dtype, _padded(op, tensor, widths), Pure(padded))


def _padded(op: OpBuilder, tensor: Tensor, widths: Tensor) -> Dims:
    static, known = tensor.shape.as_tuple(), constant_value(widths)
    if known is None:
        rows = widths.shape.as_tuple()
        count = len(static) if static is not None else rows[0] if rows else None
        return None if count is None else (None,) * count
    if static is None:
        return (None,) * len(known)
    if len(known) != len(static):
        raise op.refuse(f"Shape must be rank {len(known)} but is rank {len(static)}")
    more = known.sum(axis=1).tolist()
    return tuple(None if a is None else a + b for a, b in zip(static, more, strict=True))


def stack(values: Any, axis: int = 0, name: str = "stack") -> Tensor:
    """Tensors of one shape along a new axis."""
    values = list(values) if isinstance(values, list | tuple | np.ndarray) else unstack(values)
    if not values:
        raise ValueError("stack: values is empty; expected at least one tensor")

    def stacked(*values: Any) -> Any:
        arrays = [array(one) for one in values]
        for place, one in enumerate(arrays):
            if one.shape != arrays[0].shape:
                raise invalid(
                    "Shapes of all inputs must match: values[0].shape ="
                    f" {shape_text(arrays[0].shape)} != values[{place}].shape ="
                    f" {shape_text(one.shape)}"
                )
        return np.stack(arrays, axis)

    with OpBuilder("Pack", name) as op:
        tensors = op.alike_list(values, "values")
        static = op.same_shape(tensors)
        if static is not None:
            _check_axis(axis, len(static) + 1)
            place = axis % (len(static) + 1)
            static = (*static[:place], len(tensors), *static[place:])
        return op.output(tensors[0].dtype, static, Pure(stacked), attrs={"axis": axis})


def _check_axis(axis: int, count: int) -> None:
    if not -count <= axis < count:
        raise ValueError(f"Argument `axis` = {axis} not in range [{-count}, {count})")


def pack(values: Any, axis: int = 0, name: str = "pack") -> Tensor:
    """The old name of `stack`."""
    return stack(values, axis, name)


def unstack(
    value: Any, num: int | None = None, axis: int = 0, name: str = "unstack"
) -> list[Tensor]:
    """The slices along an axis, whose size must be known: `num`, or the static shape's."""
    value = convert_to_tensor(value)
    static = value.shape.as_tuple()
    if static is not None:
        _check_axis(axis, len(static))
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
        return _pieces(tuple(np.moveaxis(x, axis, 0)))

    with OpBuilder("Unpack", name) as op:
        op.tensor(value, "value")
        if static is not None:
            place = axis % len(static)
            if static[place] not in (None, num):
                raise op.refuse(f"Dimension must be {num} but is {static[place]}")
            static = (*static[:place], *static[place + 1 :])
        return op.outputs([(value.dtype, static)] * num, Pure(slices), attrs={"num": num})


def _pieces(parts: Any) -> Any:
    return tuple(parts) if len(parts) != 1 else parts[0]


def unpack(value: Any, num: int | None = None, axis: int = 0, name: str = "unpack") -> list[Tensor]:
    """The old name of `unstack`."""
    return unstack(value, num, axis, name)


def concat(values: Any, axis: Any, name: str = "concat") -> Tensor:
    """Tensors one after the other along an axis they have."""
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
            for at, sizes in enumerate(zip(first.shape, one.shape, strict=True)):
                if at != place % first.ndim and sizes[0] != sizes[1]:
                    raise invalid(
                        f"ConcatOp : Dimension {at} in both shapes must be equal: shape[0] ="
                        f" {shape_text(first.shape)} vs. shape[{index}] = {shape_text(one.shape)}"
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
    count = len(shapes[0])
    for one in shapes:
        if len(one) != count:
            raise op.refuse(f"Shape must be rank {count} but is rank {len(one)}")
    if axis is None:
        return (None,) * count
    if not -count <= int(axis) < count:
        raise op.refuse(f"Shape must be at least rank {int(axis) + 1} but is rank {count}")
    place = int(axis) % count
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
    """Pieces along an axis: so many equal ones, or of a list of sizes, where one may be -1."""
    if isinstance(num_or_size_splits, int | np.integer):
        return _split_evenly(value, int(num_or_size_splits), axis, name)

    def pieces(x: Any, sizes: Any, axis: Any) -> Any:
        x, place = array(x), int(axis)
        lengths = _lengths(x.shape[place], sizes.tolist())
        return _pieces(np.split(x, np.cumsum(lengths)[:-1], place))

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
        lengths = shape_value(sizes) or (None,) * num
        static, known = tensor.shape.as_tuple(), constant_value(place)
        whole = None if static is None or known is None else static[int(known) % len(static)]
        if lengths.count(None) == 1 and whole is not None:
            rest = whole - sum(one or 0 for one in lengths)
            lengths = tuple(rest if one is None else one for one in lengths)
        shapes = [_with_size(static, known, one) for one in lengths]
        return op.outputs([(tensor.dtype, one) for one in shapes], Pure(pieces))


def _lengths(whole: int, lengths: list[int]) -> list[int]:
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


def _with_size(static: Dims, axis: Any, size: int | None) -> Dims:
    """A static shape with another size along an axis, which may be unknown, too."""
    if static is None or axis is None:
        return None if static is None else (None,) * len(static)
    at = int(axis) % len(static)
    return (*static[:at], size, *static[at + 1 :])


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
        return _pieces(np.split(x, num, place))

    with OpBuilder("Split", name) as op:
        known = constant_value(_axis(op, axis, "split_dim", dtypes.int32))
        tensor = op.tensor(value, "value")
        static = tensor.shape.as_tuple()
        whole = None if static is None or known is None else static[int(known) % len(static)]
        if whole is not None and whole % num:
            raise op.refuse(
                f"Dimension size must be evenly divisible by {num} but is {whole}\n\tNumber of"
                " ways to split should evenly divide the split dimension"
            )
        part = _with_size(static, known, None if whole is None else whole // num)
        return op.outputs([(tensor.dtype, part)] * num, Pure(pieces), attrs={"num_split": num})


def fill(dims: Any, value: Any, name: str | None = None) -> Tensor:
    """A tensor of shape `dims` whose elements are all `value`."""

    def filled(sizes: Any, value: Any) -> Any:
        for one in sizes.tolist():
            if one < 0:
                raise invalid(f"Dimension {one} must be >= 0")
        dtype = object if isinstance(value, bytes) else value.dtype
        return np.full(sizes.tolist(), value, dtype)

    with OpBuilder("Fill", name) as op:
        sizes = op.tensor(dims, "dims", None, INDICES)
        element = op.tensor(value, "value")
        op.rank(element, 0)
        return op.output(element.dtype, shape_value(sizes), Pure(filled))


def _full(shape: Any, dtype: Any, name: str | None, default: str, value: int) -> Tensor:
    wanted = dtypes.as_dtype(dtype).base_dtype
    element = _element(wanted, value)
    if not isinstance(shape, Tensor):
        static = _static_shape(shape)
        if static is not None and _product(static) < _LARGEST_CONSTANT:
            filled = np.full(static, element, wanted.numpy)
            return convert_to_tensor(filled, name=name or default)
    with OpBuilder("Fill", name, default) as op:
        sizes = op.tensor(shape, "shape_as_tensor", None, INDICES)
        op.tensor(element, "Const", wanted)
        kernel = Pure(lambda sizes, value: np.full(sizes.tolist(), value, wanted.numpy))
        return op.output(wanted, shape_value(sizes), kernel)


def _element(dtype: DType, value: int) -> Any:
    return b"" if dtype == dtypes.string else dtype.numpy.type(value)


def _static_shape(shape: Any) -> list[Any] | None:
    """A shape given as numbers; None if part of it is a tensor."""
    try:
        static = TensorShape(shape)
    except (TypeError, ValueError):
        return None
    if not static.is_fully_defined():
        raise ValueError(f"Cannot convert a partially known TensorShape {static} to a Tensor.")
    return static.as_list()


def zeros(shape: Any, dtype: Any = dtypes.float32, name: str | None = None) -> Tensor:
    """A tensor of zeros; of empty strings or False for those dtypes."""
    return _full(shape, dtype, name, "zeros", 0)


def ones(shape: Any, dtype: Any = dtypes.float32, name: str | None = None) -> Tensor:
    """A tensor of ones."""
    if dtypes.as_dtype(dtype) == dtypes.string:
        raise TypeError("ones: got dtype string; expected numbers or bool")
    return _full(shape, dtype, name, "ones", 1)


def _full_like(name: str, op_type: str, value: int, what: str) -> Callable[..., Tensor]:
    default = name

    def full(tensor: Any, dtype: Any = None, name: Any = None, optimize: bool = True) -> Tensor:
        with OpBuilder(op_type, name, default) as op:
            given = op.tensor(tensor, "tensor")
            wanted = given.dtype if dtype is None else dtypes.as_dtype(dtype).base_dtype
            element = _element(wanted, value)
            kernel = Pure(lambda x: np.full(np.shape(x), element, wanted.numpy))
            return op.output(wanted, given.shape.as_tuple(), kernel)

    doc = f"{what} in the shape of `tensor`, and in its dtype if none is given."
    return named(full, name, doc)


zeros_like: Callable[..., Tensor] = _full_like("zeros_like", "ZerosLike", 0, "Zeros")
ones_like: Callable[..., Tensor] = _full_like("ones_like", "OnesLike", 1, "Ones")


def eye(
    num_rows: int,
    num_columns: int | None = None,
    batch_shape: Any = None,
    dtype: Any = dtypes.float32,
    name: str | None = None,
) -> Tensor:
    """An identity matrix, or a batch of them."""
    matrix = np.eye(num_rows, num_columns, dtype=dtypes.as_dtype(dtype).numpy)
    lead: Any = () if batch_shape is None else TensorShape(batch_shape).as_tuple()
    return convert_to_tensor(np.broadcast_to(matrix, (*lead, *matrix.shape)), name=name or "eye")


def range(
    start: Any, limit: Any = None, delta: Any = 1, dtype: Any = None, name: str = "range"
) -> Tensor:
    """Numbers from `start` (0 if there is one number) up to `limit`, without it."""
    if limit is None:
        start, limit = 0, start
    arguments: dict[str, Any] = {"start": start, "limit": limit, "delta": delta}

    with OpBuilder("Range", name) as op:
        wanted = dtypes.as_dtype(dtype) if dtype is not None else _widest(list(arguments.values()))
        for argument, value in arguments.items():
            if dtype_hint(value) is not None:
                value = cast(value, wanted)
            elif wanted.is_floating or isinstance(value, np.generic):
                value = wanted.numpy.type(value)
            op.tensor(value, argument, wanted, REALS)
        known = [constant_value(one) for one in op.inputs]
        count: int | None = None
        if all(one is not None for one in known):
            try:
                count = len(_range(*known))
            except Exception as error:
                raise op.refuse(getattr(error, "message", str(error))) from None
        return op.output(wanted, (count,), Pure(_range))


def _widest(values: list[Any]) -> DType:
    """The first of int32, int64, float32 and float64 that holds all of the arguments."""
    order = [dtypes.int32, dtypes.int64, dtypes.float32, dtypes.float64]
    found = [dtype_hint(one) or dtypes.as_dtype(np.asarray(as_value(one)).dtype) for one in values]
    return max(found, key=lambda one: order.index(one) if one in order else len(order))


def _range(start: Any, limit: Any, delta: Any) -> Any:
    if delta == 0:
        raise invalid("Requires delta != 0")
    if delta > 0 and start > limit:
        raise invalid(f"Requires start <= limit when delta > 0: {start}/{limit}")
    if delta < 0 and start < limit:
        raise invalid(f"Requires start >= limit when delta < 0: {start}/{limit}")
    dtype = np.asarray(start).dtype
    if dtype.kind in "iu":
        return np.arange(int(start), int(limit), int(delta), dtype=dtype)
    count = int(np.ceil(np.abs((limit - start) / delta)))
    # Running sums, as TensorFlow makes them: rounding adds up.
    values = np.full(count, delta, dtype)
    values[:1] = start
    return np.cumsum(values, dtype=dtype)


def linspace(start: Any, stop: Any, num: Any, name: str | None = None) -> Tensor:
    """`num` numbers from `start` to `stop`, both included."""

    def spaced(start: Any, stop: Any, num: Any) -> Any:
        count = int(num)
        if count <= 0:
            raise invalid(f"Requires num > 0: {count}")
        if count == 1:
            return np.array([start])
        step = (stop - start) / start.dtype.type(count - 1)
        values = start + step * np.arange(count, dtype=start.dtype)
        values[-1] = stop
        return values

    with OpBuilder("LinSpace", name) as op:
        first, _ = op.alike(frozenset(("float32", "float64")), start=start, stop=stop)
        known = constant_value(op.tensor(num, "num", None, INDICES))
        size = None if known is None else int(known)
        if size is not None and size <= 0:
            raise op.refuse(f"Requires num > 0: {size}")
        return op.output(first.dtype, (size,), Pure(spaced))


lin_space = linspace


def meshgrid(*args: Any, indexing: str = "xy", name: str | None = None) -> list[Tensor]:
    """Coordinates of a grid, one tensor per axis; with ``"xy"`` the first two axes are swapped."""
    if indexing not in ("xy", "ij"):
        raise ValueError(
            f"Argument `indexing` parameter must be either 'xy' or 'ij', got '{indexing}'"
        )

    def grid(*values: Any) -> Any:
        return _pieces(np.meshgrid(*map(array, values), indexing=indexing))  # type: ignore[call-overload]

    with OpBuilder("Meshgrid", name, "meshgrid") as op:
        tensors = [op.tensor(one, f"axis_{place}", None, ANY) for place, one in enumerate(args)]
        sizes = [one.shape.num_elements() for one in tensors]
        if indexing == "xy":
            sizes[:2] = sizes[:2][::-1]
        return op.outputs([(one.dtype, tuple(sizes)) for one in tensors], Pure(grid))
