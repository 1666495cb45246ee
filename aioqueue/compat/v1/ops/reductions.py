"""Reductions over axes, running totals, and the places of extremes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor, named
from aioqueue.compat.v1.ops import arrays
from aioqueue.compat.v1.ops.building import (
    ANY,
    INDICES,
    NUMBERS,
    REALS,
    Dims,
    OpBuilder,
    Pure,
    invalid,
    unless_given,
)
from aioqueue.compat.v1.ops.static import constant_value

__all__ = (
    "argmax", "argmin", "count_nonzero", "cumprod", "cumsum", "reduce_all", "reduce_any",
    "reduce_max", "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum",
)  # fmt: skip

_BOOLS = frozenset(("bool",))
_Kernel = Callable[[NDArray[Any], tuple[int, ...], bool], Any]
"""Takes an array, the axes that go, and whether they stay as 1."""

_How = tuple[str, _Kernel, frozenset[str], DType | None]
"""The op's type, its kernel, the dtypes that it takes, and the one that it gives if it is fixed."""


def _reduce(
    how: _How, input_tensor: Any, axis: Any, keepdims: Any, name: str | None, old: tuple[Any, Any]
) -> Tensor:
    op_type, function, allowed, result = how
    axis = unless_given(axis, old[0], "axis", "reduction_indices")
    keep = bool(unless_given(keepdims, old[1], "keepdims", "keep_dims"))

    def reduced(x: Any, axes: Any) -> Any:
        x = np.asarray(x, object if isinstance(x, bytes) else None)
        return function(x, tuple(sorted(set(_axes_of(x.ndim, axes)))), keep)

    with OpBuilder(op_type, name) as op:
        tensor = op.tensor(input_tensor, "input_tensor", None, allowed)
        shape = _add_axes(op, tensor, axis, keep)
        if axis is None and not keep:
            shape = ()
        return op.output(result or tensor.dtype, shape, Pure(reduced))


def _add_axes(op: OpBuilder, tensor: Tensor, axis: Any, keep: bool) -> Dims:
    """Add the input of the axes; the static shape of what is left."""
    shape = tensor.shape.as_tuple()
    if axis is None:
        # Of an unknown rank, what TensorFlow makes: a range up to the rank.
        axis = (
            arrays.range(0, arrays.rank(tensor))
            if shape is None
            else np.arange(len(shape), dtype=np.int32)
        )
    axes = constant_value(op.tensor(axis, "reduction_indices", None, INDICES))
    if shape is None:
        return None
    rank = len(shape)
    if axes is None:
        return (None,) * rank if keep else None
    for one in np.ravel(axes).tolist():
        if not -rank <= one < rank:
            raise op.refuse(f"Invalid reduction dimension {one} for input with {rank} dimensions.")
    return _left(shape, {one % rank for one in np.ravel(axes).tolist()}, keep)


def _left(shape: Sequence[int | None], axes: Collection[int], keep: bool) -> tuple[Any, ...]:
    if keep:
        return tuple(1 if place in axes else size for place, size in enumerate(shape))
    return tuple(size for place, size in enumerate(shape) if place not in axes)


def _axes_of(rank: int, axes: Any) -> list[int]:
    """The axes to reduce, counted from the front; InvalidArgumentError if there is no such one."""
    places = []
    for axis in np.ravel(axes).tolist():
        if not -rank <= axis < rank:
            raise invalid(f"Invalid reduction dimension ({axis} for input with {rank} dimension(s)")
        places.append(axis % rank)
    return places


_Reduction = Callable[..., Tensor]


def _reduction(
    name: str, op_type: str, function: _Kernel, what: str, allowed: frozenset[str] = NUMBERS
) -> _Reduction:
    def reduce(
        input_tensor: Any,
        axis: Any = None,
        keepdims: bool | None = None,
        name: str | None = None,
        reduction_indices: Any = None,
        keep_dims: bool | None = None,
    ) -> Tensor:
        how, old = (op_type, function, allowed, None), (reduction_indices, keep_dims)
        return _reduce(how, input_tensor, axis, keepdims, name, old)

    return named(reduce, name, f"{what} over `axis`, or of everything.")


def _same_dtype(function: Callable[..., Any]) -> _Kernel:
    """A function of NumPy that would else compute in a wider dtype."""
    return lambda x, axes, keep: function(x, axis=axes, keepdims=keep, dtype=x.dtype)


def _mean(x: NDArray[Any], axes: tuple[int, ...], keep: bool) -> Any:
    """The mean; that of integers is an integer, cut off."""
    total = np.asarray(np.sum(x, axis=axes, keepdims=keep, dtype=x.dtype))
    count = int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    if x.dtype.kind not in "iu":
        return np.true_divide(total, x.dtype.type(count))
    if not count:
        return np.zeros_like(total)
    return np.floor_divide(total - np.fmod(total, count), count).astype(x.dtype)


def _extreme(function: Callable[..., Any], limit: str, infinity: float) -> _Kernel:
    """The maximum or minimum; of nothing at all, what any number would replace."""

    def extreme(x: NDArray[Any], axes: tuple[int, ...], keep: bool) -> Any:
        if x.size:
            return function(x, axis=axes, keepdims=keep)
        nothing = infinity if x.dtype.kind == "f" else getattr(np.iinfo(x.dtype), limit)
        return function(x, axis=axes, keepdims=keep, initial=nothing)

    return extreme


def _test(function: Callable[..., Any]) -> _Kernel:
    return lambda x, axes, keep: function(x, axis=axes, keepdims=keep)


reduce_sum: _Reduction = _reduction("reduce_sum", "Sum", _same_dtype(np.sum), "The sum")
reduce_prod: _Reduction = _reduction("reduce_prod", "Prod", _same_dtype(np.prod), "The product")
reduce_mean: _Reduction = _reduction("reduce_mean", "Mean", _mean, "The mean")
reduce_max: _Reduction = _reduction(
    "reduce_max", "Max", _extreme(np.max, "min", -np.inf), "The largest", REALS
)
reduce_min: _Reduction = _reduction(
    "reduce_min", "Min", _extreme(np.min, "max", np.inf), "The smallest", REALS
)
reduce_all: _Reduction = _reduction(
    "reduce_all", "All", _test(np.all), "Whether all are true", _BOOLS
)
reduce_any: _Reduction = _reduction(
    "reduce_any", "Any", _test(np.any), "Whether any is true", _BOOLS
)


def count_nonzero(
    input_tensor: Any,
    axis: Any = None,
    keepdims: bool | None = None,
    dtype: Any = dtypes.int64,
    name: str | None = None,
    reduction_indices: Any = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """How many elements are not zero, false or empty."""
    wanted = dtypes.as_dtype(dtype)

    def count(x: NDArray[Any], axes: tuple[int, ...], keep: bool) -> Any:
        return np.sum(x.astype(bool), axis=axes, keepdims=keep, dtype=wanted.numpy)

    how, old = ("CountNonzero", count, ANY, wanted), (reduction_indices, keep_dims)
    return _reduce(how, input_tensor, axis, keepdims, name or "count_nonzero", old)


def _reduce_join(
    inputs: Any,
    axis: Any = None,
    keep_dims: bool | None = None,
    separator: str | bytes = "",
    name: str | None = None,
    reduction_indices: Any = None,
    keepdims: bool | None = None,
) -> Tensor:
    between = separator.encode() if isinstance(separator, str) else separator
    axis = unless_given(axis, reduction_indices, "axis", "reduction_indices")
    keep = bool(unless_given(keepdims, keep_dims, "keepdims", "keep_dims"))

    def joined(x: Any, axes: Any) -> Any:
        x = np.asarray(x, object)
        dropped = _axes_of(x.ndim, axes)
        if axis is not None:
            dropped.reverse()  # what is joined first changes fastest
        kept = [place for place in range(x.ndim) if place not in dropped]
        count = int(np.prod([x.shape[place] for place in kept], dtype=int))
        rows = np.transpose(x, [*kept, *dropped]).reshape([count, -1])
        result = np.empty(len(rows), object)
        result[:] = [between.join(row) for row in rows.tolist()]
        return result.reshape(_left(x.shape, dropped, keep))

    with OpBuilder("ReduceJoin", name) as op:
        tensor = op.tensor(inputs, "inputs", dtypes.string)
        return op.output(dtypes.string, _add_axes(op, tensor, axis, keep), Pure(joined))


_DOC = "Strings joined over one axis after another, in the order given."
reduce_join = named(_reduce_join, "reduce_join", _DOC)


_Place = Callable[..., Tensor]


def _place(name: str, op_type: str, function: Callable[..., Any], what: str) -> _Place:
    def arg(
        input: Any,
        axis: Any = None,
        name: str | None = None,
        dimension: Any = None,
        output_type: Any = dtypes.int64,
    ) -> Tensor:
        axis = unless_given(axis, dimension, "axis", "dimension")
        wanted = dtypes.as_dtype(output_type)

        def place(x: Any, axis: Any) -> Any:
            x = np.asarray(x)
            if not -x.ndim <= axis < x.ndim:
                raise invalid(
                    f"Expected dimension in the range [{-x.ndim}, {x.ndim}), but got {axis}"
                )
            return function(x, axis=int(axis)).astype(wanted.numpy)

        with OpBuilder(op_type, name) as op:
            tensor = op.tensor(input, "input", None, REALS | _BOOLS)
            along = op.tensor(0 if axis is None else axis, "dimension", None, INDICES)
            shape, known = tensor.shape.as_tuple(), constant_value(along)
            if shape is not None and known is not None and -len(shape) <= int(known) < len(shape):
                shape = _left(shape, {int(known) % len(shape)}, False)
            elif shape is not None:
                shape = (None,) * (len(shape) - 1)
            return op.output(wanted, shape, Pure(place))

    return named(
        arg, name, f"The index of the {what} element along `axis`; of equal ones the first."
    )


argmax: _Place = _place("argmax", "ArgMax", np.argmax, "largest")
argmin: _Place = _place("argmin", "ArgMin", np.argmin, "smallest")


def _by_dimension(function: _Place) -> Callable[..., Tensor]:
    def arg(
        input: Any, dimension: Any, output_type: Any = dtypes.int64, name: str | None = None
    ) -> Tensor:
        return function(input, dimension, name, output_type=output_type)

    return arg


arg_max: Callable[..., Tensor] = named(
    _by_dimension(argmax), "arg_max", "The same as `argmax`, by the op's own name."
)
arg_min: Callable[..., Tensor] = named(
    _by_dimension(argmin), "arg_min", "The same as `argmin`, by the op's own name."
)


_Scan = Callable[..., Tensor]


def _scan(name: str, op_type: str, function: Callable[..., Any], start: int, what: str) -> _Scan:
    def scan(
        x: Any,
        axis: Any = 0,
        exclusive: bool = False,
        reverse: bool = False,
        name: str | None = None,
    ) -> Tensor:
        def scanned(x: Any, axis: Any) -> Any:
            x = np.asarray(x)
            if not -x.ndim <= axis < x.ndim:
                raise invalid(
                    f"ScanOp: Expected scan axis in the range [{-x.ndim}, {x.ndim}), but got {axis}"
                )
            axis = int(axis)
            values = np.flip(x, axis) if reverse else x
            if exclusive and x.shape[axis]:
                first = np.full_like(np.take(values, [0], axis), start)
                rest = np.take(values, range(x.shape[axis] - 1), axis)
                values = np.concatenate([first, rest], axis)
            result = function(values, axis=axis, dtype=x.dtype)
            return np.flip(result, axis) if reverse else result

        with OpBuilder(op_type, name) as op:
            tensor = op.tensor(x, "x", None, NUMBERS)
            op.tensor(axis, "axis", None, INDICES)
            return op.output(tensor.dtype, tensor.shape.as_tuple(), Pure(scanned))

    doc = f"Running {what} along `axis`: `exclusive` of the element itself, in `reverse` order."
    return named(scan, name, doc)


cumsum: _Scan = _scan("cumsum", "Cumsum", np.cumsum, 0, "sums")
cumprod: _Scan = _scan("cumprod", "Cumprod", np.cumprod, 1, "products")
