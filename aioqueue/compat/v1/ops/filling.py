"""Tensors made from nothing: `zeros`, `ones`, `fill`, `range`, `linspace`, `meshgrid`."""

from __future__ import annotations

from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import as_value, convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.ops.building import (
    ANY,
    INDICES,
    REALS,
    OpBuilder,
    Pure,
    array,
    dtype_hint,
    invalid,
)
from aioqueue.compat.v1.ops.casting import cast
from aioqueue.compat.v1.ops.static import constant_value, shape_value

__all__ = (
    "eye",
    "fill",
    "lin_space",
    "linspace",
    "meshgrid",
    "ones",
    "ones_like",
    "range",
    "zeros",
    "zeros_like",
)

_LARGEST_CONSTANT = 1000
"""Elements: larger tensors of one value are filled when they run, as in TensorFlow."""


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
        if static is not None and int(np.prod(static, dtype=np.int64)) < _LARGEST_CONSTANT:
            return convert_to_tensor(_filled_array(static, wanted, element), name=name or default)
    if isinstance(shape, list | tuple) and not shape:
        shape = np.zeros(0, np.int32)
    with OpBuilder("Fill", name, default) as op:
        sizes = op.tensor(shape, "shape_as_tensor", None, INDICES)
        op.tensor(element, "Const", wanted)
        return op.output(
            wanted,
            shape_value(sizes),
            Pure(lambda sizes, value: np.full(sizes.tolist(), value, wanted.numpy)),
        )


def _element(dtype: DType, value: int) -> Any:
    if dtype == dtypes.string:
        return b""
    return dtype.numpy.type(value)


def _filled_array(shape: list[int], dtype: DType, element: Any) -> Any:
    return np.full(shape, element, dtype.numpy)


def _static_shape(shape: Any) -> list[int] | None:
    """A shape that was given as numbers, as a list; None if part of it is a tensor."""
    try:
        static = TensorShape(shape)
    except (TypeError, ValueError):
        return None
    if not static.is_fully_defined():
        raise ValueError(f"Cannot convert a partially known TensorShape {static} to a Tensor.")
    return [int(one) for one in static.as_list() if one is not None]


def zeros(shape: Any, dtype: Any = dtypes.float32, name: str | None = None) -> Tensor:
    """A tensor of zeros; of empty strings or False for those dtypes."""
    return _full(shape, dtype, name, "zeros", 0)


def ones(shape: Any, dtype: Any = dtypes.float32, name: str | None = None) -> Tensor:
    """A tensor of ones.

    Raises:
        TypeError: the dtype is string.
    """
    if dtypes.as_dtype(dtype) == dtypes.string:
        raise TypeError("ones: got dtype string; expected numbers or bool")
    return _full(shape, dtype, name, "ones", 1)


def zeros_like(
    tensor: Any, dtype: Any = None, name: str | None = None, optimize: bool = True
) -> Tensor:
    """Zeros in the shape of `tensor`, and in its dtype if none is given."""
    return _full_like("ZerosLike", tensor, dtype, name, "zeros_like", 0)


def ones_like(
    tensor: Any, dtype: Any = None, name: str | None = None, optimize: bool = True
) -> Tensor:
    """Ones in the shape of `tensor`, and in its dtype if none is given."""
    return _full_like("OnesLike", tensor, dtype, name, "ones_like", 1)


def _full_like(
    op_type: str, tensor: Any, dtype: Any, name: str | None, default: str, value: int
) -> Tensor:
    with OpBuilder(op_type, name, default) as op:
        given = op.tensor(tensor, "tensor")
        wanted = given.dtype if dtype is None else dtypes.as_dtype(dtype).base_dtype
        element = _element(wanted, value)
        kernel = Pure(lambda x: np.full(np.shape(x), element, wanted.numpy))
        return op.output(wanted, given.shape.as_tuple(), kernel)


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
    """Numbers from `start` up to `limit`, without it, in steps of `delta`.

    With one number it is the limit, and the start is 0.

    Raises:
        ValueError: it is known to have no end in that direction.
        InvalidArgumentError: it turns out to have none when it runs.
    """
    if limit is None:
        start, limit = 0, start
    arguments: dict[str, Any] = {"start": start, "limit": limit, "delta": delta}

    with OpBuilder("Range", name) as op:
        wanted = dtypes.as_dtype(dtype) if dtype is not None else _widest(list(arguments.values()))
        for argument, value in arguments.items():
            _range_argument(op, value, argument, wanted)
        known = [constant_value(one) for one in op.inputs]
        count: int | None = None
        if None not in [None if one is None else 1 for one in known]:
            try:
                count = len(_range(*known))
            except Exception as error:
                raise op.refuse(getattr(error, "message", str(error))) from None
        return op.output(wanted, (count,), Pure(_range))


def _range_argument(op: OpBuilder, value: Any, argument: str, wanted: DType) -> None:
    if dtype_hint(value) is not None:
        value = cast(value, wanted)
    elif wanted.is_floating or isinstance(value, np.generic):
        value = wanted.numpy.type(value)
    op.tensor(value, argument, wanted, REALS)


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
        count = op.tensor(num, "num", None, INDICES)
        known = constant_value(count)
        size = None if known is None else int(known)
        if size is not None and size <= 0:
            raise op.refuse(f"Requires num > 0: {size}")
        return op.output(first.dtype, (size,), Pure(spaced))


lin_space = linspace


def meshgrid(*args: Any, indexing: str = "xy", name: str | None = None) -> list[Tensor]:
    """Coordinates of a grid, one tensor per axis.

    Args:
        *args: the coordinates along each axis.
        indexing: ``"xy"``, where the first two axes are swapped, or ``"ij"``.
        name: name of the op.

    Raises:
        ValueError: `indexing` is neither.
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(
            f"Argument `indexing` parameter must be either 'xy' or 'ij', got '{indexing}'"
        )

    def grid(*values: Any) -> Any:
        found = np.meshgrid(*map(array, values), indexing=indexing)  # type: ignore[call-overload]
        return tuple(found) if len(found) != 1 else found[0]

    with OpBuilder("Meshgrid", name, "meshgrid") as op:
        tensors = [op.tensor(one, f"axis_{place}", None, ANY) for place, one in enumerate(args)]
        sizes = [one.shape.num_elements() for one in tensors]
        if indexing == "xy":
            sizes[:2] = sizes[:2][::-1]
        return op.outputs([(one.dtype, tuple(sizes)) for one in tensors], Pure(grid))
