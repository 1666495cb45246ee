"""Shapes: `reshape`, `expand_dims`, `transpose`, `tile`, `pad`, ...

An argument that says how (a shape, an axis, multiples) may be a tensor. What of it is known while
the graph is built goes into the static shape of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor, register_tensor_conversion_function
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.shapes import Dimension, TensorShape
from aioqueue.compat.v1.ops.building import (
    INDICES,
    Dims,
    OpBuilder,
    Pure,
    array,
    broadcast,
    dtype_hint,
    invalid,
    shape_text,
    unless_given,
)
from aioqueue.compat.v1.ops.static import constant_value, shape_value

__all__ = (
    "broadcast_dynamic_shape",
    "broadcast_static_shape",
    "broadcast_to",
    "expand_dims",
    "pad",
    "rank",
    "repeat",
    "reshape",
    "reverse",
    "reverse_v2",
    "roll",
    "shape",
    "shape_n",
    "size",
    "squeeze",
    "tile",
    "transpose",
)


def _shape_to_tensor(
    value: TensorShape, dtype: DType | None = None, name: str | None = None, as_ref: bool = False
) -> Tensor:
    if not value.is_fully_defined():
        raise ValueError(f"Cannot convert a partially known TensorShape {value} to a Tensor.")
    wanted = dtype or dtypes.int32
    return convert_to_tensor(
        np.array(value.as_list(), wanted.numpy), name=name or "shape_as_tensor"
    )


def _dimension_to_tensor(
    value: Dimension, dtype: DType | None = None, name: str | None = None, as_ref: bool = False
) -> Tensor:
    if value.value is None:
        raise ValueError(f"Cannot convert an unknown Dimension to a Tensor: {value}")
    return convert_to_tensor((dtype or dtypes.int32).numpy.type(value.value), name=name)


register_tensor_conversion_function(TensorShape, _shape_to_tensor, 100)
register_tensor_conversion_function(Dimension, _dimension_to_tensor, 100)


# What a tensor's shape is.


def shape(input: Any, name: str | None = None, out_type: Any = dtypes.int32) -> Tensor:
    """The shape, as a vector of integers.

    Args:
        input: anything that is a tensor, or becomes one.
        name: name of the op.
        out_type: int32 or int64.
    """
    wanted = dtypes.as_dtype(out_type)
    with OpBuilder("Shape", name) as op:
        tensor = op.tensor(input, "input")
        return op.output(
            wanted, (tensor.shape.ndims,), Pure(lambda x: np.array(np.shape(x), wanted.numpy))
        )


def shape_n(
    input: Sequence[Any], out_type: Any = dtypes.int32, name: str | None = None
) -> list[Tensor]:
    """The shapes of several tensors of one dtype."""
    wanted = dtypes.as_dtype(out_type)

    def shapes(*values: Any) -> Any:
        found = tuple(np.array(np.shape(one), wanted.numpy) for one in values)
        return found if len(found) > 1 else found[0]

    with OpBuilder("ShapeN", name) as op:
        tensors = op.alike_list(input, "input")
        return op.outputs([(wanted, (one.shape.ndims,)) for one in tensors], Pure(shapes))


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


def broadcast_static_shape(shape_x: TensorShape, shape_y: TensorShape) -> TensorShape:
    """The static shape of two broadcast operands.

    Raises:
        ValueError: they do not fit.
    """
    one, other = TensorShape(shape_x), TensorShape(shape_y)
    try:
        return TensorShape(broadcast(one.as_tuple(), other.as_tuple()))
    except ValueError:
        raise ValueError(
            "Incompatible shapes for broadcasting. Two shapes are compatible if for each dimension"
            " pair they are either equal or one of them is 1. Received:"
            f" {one} and {other}."
        ) from None


def broadcast_dynamic_shape(shape_x: Any, shape_y: Any) -> Tensor:
    """The shape of two broadcast operands whose shapes are tensors."""

    def together(x: Any, y: Any) -> Any:
        try:
            return np.array(np.broadcast_shapes(tuple(x.tolist()), tuple(y.tolist())), x.dtype)
        except ValueError as error:
            raise invalid(f"Incompatible shapes: {shape_text(x)} vs. {shape_text(y)}") from error

    with OpBuilder("BroadcastArgs", None) as op:
        x, _ = op.alike(INDICES, s0=shape_x, s1=shape_y)
        ranks = [one.shape.num_elements() for one in op.inputs]
        most = None if None in ranks else max(one for one in ranks if one is not None)
        return op.output(x.dtype, (most,), Pure(together))


# Other shapes for the same elements.


def reshape(tensor: Any, shape: Any, name: str | None = None) -> Tensor:
    """The same elements, in the same order, in another shape.

    Args:
        tensor: any tensor.
        shape: the new shape; one size may be -1: what is left.
        name: name of the op.

    Raises:
        ValueError: the static shapes show that the sizes do not fit.
        InvalidArgumentError: they turn out not to fit when it runs.
    """

    def reshaped(x: Any, sizes: Any) -> Any:
        x = array(x)
        _check_sizes(x.size, sizes)
        return x.reshape(tuple(sizes.tolist()))

    with OpBuilder("Reshape", name) as op:
        tensor = op.tensor(tensor, "tensor")
        shape = op.tensor(shape, "shape", None, INDICES)
        static = _reshaped(op, tensor, shape_value(shape), constant_value(shape))
        return op.output(tensor.dtype, static, Pure(reshaped))


def _check_sizes(count: int, sizes: Any) -> None:
    known = 1
    for one in sizes.tolist():
        known *= 1 if one == -1 else one
    if np.count_nonzero(sizes == -1) > 1:
        first, second = np.flatnonzero(sizes == -1)[:2]
        raise invalid(f"Only one input size may be -1, not both {first} and {second}")
    if (sizes == -1).any():
        if known == 0:
            raise invalid(
                "reshape cannot infer the missing input size for an empty tensor unless all"
                " specified input sizes are non-zero"
            )
        if count % known:
            raise invalid(
                f"Input to reshape is a tensor with {count} values, but the requested shape"
                f" requires a multiple of {known}"
            )
    elif known != count:
        raise invalid(
            f"Input to reshape is a tensor with {count} values, but the requested shape has {known}"
        )


def _reshaped(op: OpBuilder, tensor: Tensor, wanted: Dims, exact: Any) -> Dims:
    """The static shape of `reshape`; `exact` is the argument itself, if it is known."""
    count = tensor.shape.num_elements()
    if wanted is None or count is None:
        return wanted
    unknown = [place for place, one in enumerate(wanted) if one is None]
    known = 1
    for one in wanted:
        known *= 1 if one is None else one
    if not unknown:
        if known != count:
            raise op.refuse(
                f"Cannot reshape a tensor with {count} elements to shape {shape_text(wanted)}"
                f" ({known} elements)"
            )
        return wanted
    if len(unknown) > 1 or known == 0:
        return wanted
    if count % known:
        if exact is None:
            return wanted
        raise op.refuse(f"Dimension size must be evenly divisible by {known} but is {count}")
    return tuple(count // known if one is None else one for one in wanted)


def expand_dims(input: Any, axis: Any = None, name: str | None = None, dim: Any = None) -> Tensor:
    """A new dimension of size 1 at `axis`, which may count from the end."""
    axis = unless_given(axis, dim, "axis", "dim")
    if axis is None:
        raise ValueError("Must specify an axis argument to tf.expand_dims()")

    def expanded(x: Any, place: Any) -> Any:
        x = array(x)
        place = int(np.ravel(place)[0])
        if not -x.ndim - 1 <= place <= x.ndim:
            raise invalid(f"Tried to expand dim index {place} for tensor with {x.ndim} dimensions.")
        return np.expand_dims(x, place)

    with OpBuilder("ExpandDims", name) as op:
        tensor = op.tensor(input, "input")
        place = op.tensor(axis, "dim", None, INDICES)
        static, known = tensor.shape.as_tuple(), constant_value(place)
        if static is not None and known is not None:
            index = int(np.ravel(known)[0])
            if not -len(static) - 1 <= index <= len(static):
                raise op.refuse(
                    f"dim {index} not in the interval [{-len(static) - 1}, {len(static)}]."
                )
            index = index % (len(static) + 1)
            static = (*static[:index], 1, *static[index:])
        elif static is not None:
            static = (None,) * (len(static) + 1)
        return op.output(tensor.dtype, static, Pure(expanded))


def squeeze(
    input: Any, axis: Any = None, name: str | None = None, squeeze_dims: Any = None
) -> Tensor:
    """The dimensions in `axis` removed, or all of size 1.

    Raises:
        ValueError: a dimension in `axis` is known to have another size.
        InvalidArgumentError: it turns out to have one when it runs.
    """
    axis = unless_given(axis, squeeze_dims, "axis", "squeeze_dims")
    axes = [] if axis is None else [int(one) for one in np.ravel(axis)]

    def squeezed(x: Any) -> Any:
        x = array(x)
        for one in axes:
            if not -x.ndim <= one < x.ndim:
                raise invalid(
                    f"Tried to squeeze dim index {one} for tensor with {x.ndim} dimensions."
                )
            if x.shape[one] != 1:
                raise invalid(_not_one(one % x.ndim, x.shape[one]))
        return np.squeeze(x, tuple(axes) if axes else None)

    with OpBuilder("Squeeze", name) as op:
        tensor = op.tensor(input, "input")
        return op.output(tensor.dtype, _squeezed(op, tensor.shape.as_tuple(), axes), Pure(squeezed))


def _not_one(place: int, size: int | None) -> str:
    return f"Can not squeeze dim[{place}], expected a dimension of 1, got {size}"


def _squeezed(op: OpBuilder, static: Dims, axes: list[int]) -> Dims:
    if static is None:
        return None
    if not axes:
        return None if None in static else tuple(one for one in static if one != 1)
    gone = set()
    for one in axes:
        if not -len(static) <= one < len(static):
            raise op.refuse(
                f"Tried to squeeze dim index {one} for tensor with {len(static)} dimensions."
            )
        gone.add(one % len(static))
        if static[one] not in (1, None):
            raise op.refuse(_not_one(one % len(static), static[one]))
    return tuple(size for place, size in enumerate(static) if place not in gone)


def transpose(a: Any, perm: Any = None, name: str = "transpose", conjugate: bool = False) -> Tensor:
    """The dimensions in another order: reversed, or as `perm` says."""

    def transposed(x: Any, order: Any) -> Any:
        x = array(x)
        if len(order) != x.ndim:
            raise invalid(
                f"transpose expects a vector of size {x.ndim}. But input(1) is a vector of size"
                f" {len(order)}"
            )
        if sorted(order.tolist()) != list(range(x.ndim)):
            raise invalid(f"{shape_text(order)} is not a permutation of 0 to {x.ndim - 1}")
        moved = np.transpose(x, order)
        return moved.conj() if conjugate else moved

    def reversed_order(x: Any) -> Any:
        return np.arange(np.ndim(x), dtype=np.int32)[::-1]

    with OpBuilder("Transpose", name) as op:
        tensor = op.tensor(a, "a")
        if perm is None and tensor.shape.ndims is None:
            with OpBuilder("ReversedRange", None, "perm") as inner:
                inner.tensor(tensor, "a")
                perm = inner.output(dtypes.int32, (None,), Pure(reversed_order))
        elif perm is None:
            assert tensor.shape.ndims is not None
            perm = np.arange(tensor.shape.ndims, dtype=np.int32)[::-1]
        order = op.tensor(perm, "perm", None, INDICES)
        static = _transposed(op, tensor.shape.as_tuple(), order)
        return op.output(tensor.dtype, static, Pure(transposed))


def _transposed(op: OpBuilder, static: Dims, order: Tensor) -> Dims:
    known = constant_value(order)
    if known is None:
        length = order.shape.num_elements()
        count = length if static is None else len(static)
        return None if count is None else (None,) * count
    if static is None:
        return (None,) * len(known)
    if sorted(known.tolist()) != list(range(len(static))):
        raise op.refuse(
            f"Dimension must be {len(static)} but is {len(known)}"
            if len(known) != len(static)
            else f"perm {shape_text(known)} is no permutation"
        )
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


def reverse_v2(tensor: Any, axis: Any, name: str | None = None) -> Tensor:
    """The same as `reverse`."""
    return reverse(tensor, axis, name)


def roll(input: Any, shift: Any, axis: Any, name: str | None = None) -> Tensor:
    """The elements moved along axes; what falls off one end comes in at the other."""

    def rolled(x: Any, shift: Any, axis: Any) -> Any:
        places = tuple(np.ravel(axis).tolist())
        return np.roll(x, tuple(np.ravel(shift).tolist()), places)

    with OpBuilder("Roll", name) as op:
        tensor = op.tensor(input, "input")
        op.tensor(shift, "shift", None, INDICES)
        op.tensor(axis, "axis", None, INDICES)
        return op.output(tensor.dtype, tensor.shape.as_tuple(), Pure(rolled))


# Repeating and padding.


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
            static = (None,) * len(known)  # and an axis that is repeated 0 times is empty
        if static is None or known is None:
            static = None if static is None else (None,) * len(static)
        elif len(static) != len(known):
            raise op.refuse(f"Shape must be rank {len(static)} but is rank {len(known)}")
        else:
            pairs = zip(static, known, strict=True)
            static = tuple(_times(size, many) for size, many in pairs)
        return op.output(tensor.dtype, static, Pure(tiled))


def _times(size: int | None, many: int | None) -> int | None:
    """The size of an axis that is repeated: that of nothing is known, whatever the other is."""
    if size == 0 or many == 0:
        return 0
    return None if size is None or many is None else size * many


def repeat(input: Any, repeats: Any, axis: int | None = None, name: str | None = None) -> Tensor:
    """Each element (or slice along `axis`) repeated, as `numpy.repeat` does."""

    def repeated(x: Any, times: Any) -> Any:
        return np.repeat(array(x), times, axis)

    with OpBuilder("Repeat", name) as op:
        tensor = op.tensor(input, "input")
        times = op.tensor(repeats, "repeats", None, INDICES)
        static, known = tensor.shape.as_tuple(), constant_value(times)
        count: int | None = None
        if axis is None:
            elements = tensor.shape.num_elements()
            if known is not None and elements is not None:
                count = int(np.broadcast_to(known, elements).sum())
            static = (count,)
        elif static is not None:
            place = axis % len(static)
            along = static[place]
            if known is not None and along is not None:
                count = int(np.broadcast_to(known, along).sum())
            static = (*static[:place], count, *static[place + 1 :])
        return op.output(tensor.dtype, static, Pure(repeated))


def pad(
    tensor: Any,
    paddings: Any,
    mode: str = "CONSTANT",
    name: str | None = None,
    constant_values: Any = 0,
) -> Tensor:
    """The tensor with more elements before and after, along each axis.

    Args:
        tensor: a tensor of rank n.
        paddings: shape (n, 2): how many before and how many after.
        mode: ``"CONSTANT"``, ``"REFLECT"`` or ``"SYMMETRIC"``, as in `numpy.pad`.
        name: name of the op.
        constant_values: the value of the new elements.

    Raises:
        ValueError: `mode` is not one of these.
    """
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
        sizes = [size + int(sum(width)) for size, width in zip(x.shape, widths, strict=True)]
        result = np.full(sizes, value[0], object)
        inside = zip(widths.tolist(), x.shape, strict=True)
        result[tuple(slice(before, before + size) for (before, _), size in inside)] = x
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


def broadcast_to(input: Any, shape: Any, name: str | None = None) -> Tensor:
    """The tensor repeated, by the rules of broadcasting, to fill a shape."""

    def spread(x: Any, sizes: Any) -> Any:
        try:
            return np.broadcast_to(array(x), tuple(sizes.tolist())).copy()
        except ValueError:
            text = f"{shape_text(np.shape(x))} vs. {shape_text(sizes)}"
            raise invalid(f"Incompatible shapes: {text}") from None

    with OpBuilder("BroadcastTo", name) as op:
        tensor = op.tensor(input, "input")
        sizes = op.tensor(shape, "shape", None, INDICES)
        static, known = shape_value(sizes), tensor.shape.as_tuple()
        if static is not None and known is not None and len(known) <= len(static):
            # A size that is not 1 stays what it is.
            lead = len(static) - len(known)
            larger = [None] * lead + [None if one == 1 else one for one in known]
            static = tuple(a if b is None else b for a, b in zip(static, larger, strict=True))
        return op.output(tensor.dtype, static, Pure(spread))
