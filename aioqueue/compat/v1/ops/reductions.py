"""Reductions over axes, running totals, and the places of extremes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor, named
from aioqueue.compat.v1.ops import arrays, filling
from aioqueue.compat.v1.ops.building import (
    ANY,
    FLOATS,
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
    "arg_max",
    "arg_min",
    "argmax",
    "argmin",
    "count_nonzero",
    "cumprod",
    "cumsum",
    "reduce_all",
    "reduce_any",
    "reduce_join",
    "reduce_logsumexp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_std",
    "reduce_sum",
    "reduce_variance",
)

_BOOLS = frozenset(("bool",))


def _reduce(
    op_type: str,
    function: Callable[[NDArray[Any], tuple[int, ...], bool], Any],
    input_tensor: Any,
    axis: Any,
    keepdims: Any,
    name: str | None,
    old_axis: Any,
    old_keepdims: Any,
    allowed: frozenset[str] = NUMBERS,
    result: DType | None = None,
) -> Tensor:
    """One reduction; `function` takes an array, the axes that go, and whether they stay as 1."""
    axis = unless_given(axis, old_axis, "axis", "reduction_indices")
    keep = bool(unless_given(keepdims, old_keepdims, "keepdims", "keep_dims"))

    def reduced(x: Any, axes: Any) -> Any:
        x = np.asarray(x, object if isinstance(x, bytes) else None)
        return function(x, _axes_of(x.ndim, axes), keep)

    with OpBuilder(op_type, name) as op:
        tensor = op.tensor(input_tensor, "input_tensor", None, allowed)
        goes_whole = axis is None
        if goes_whole:
            axis = _all_axes(tensor)
        axes = op.tensor(axis, "reduction_indices", None, INDICES)
        shape = _reduced_shape(op, tensor.shape.as_tuple(), constant_value(axes), keep)
        if goes_whole and not keep:
            shape = ()
        return op.output(result or tensor.dtype, shape, Pure(reduced))


def _all_axes(tensor: Tensor) -> Any:
    if tensor.shape.ndims is not None:
        return np.arange(tensor.shape.ndims, dtype=np.int32)
    # What TensorFlow makes of an unknown rank: a range up to the rank.
    return filling.range(0, arrays.rank(tensor))


def _axes_of(rank: int, axes: Any) -> tuple[int, ...]:
    """The axes to reduce, counted from the front.

    Raises:
        InvalidArgumentError: there are not so many.
    """
    places = []
    for axis in np.ravel(axes).tolist():
        if not -rank <= axis < rank:
            raise invalid(f"Invalid reduction dimension ({axis} for input with {rank} dimension(s)")
        places.append(axis % rank)
    return tuple(sorted(set(places)))


def _reduced_shape(op: OpBuilder, shape: Dims, axes: Any, keep: bool) -> Dims:
    if shape is None:
        return None
    rank = len(shape)
    if axes is None:
        return (None,) * rank if keep else None
    for axis in np.ravel(axes).tolist():
        if not -rank <= axis < rank:
            raise op.refuse(f"Invalid reduction dimension {axis} for input with {rank} dimensions.")
    gone = {axis % rank for axis in np.ravel(axes).tolist()}
    if keep:
        return tuple(1 if place in gone else size for place, size in enumerate(shape))
    return tuple(size for place, size in enumerate(shape) if place not in gone)


class _Reduction(Protocol):
    """What makes a reduction."""

    def __call__(
        self,
        input_tensor: Any,
        axis: Any = None,
        keepdims: bool | None = None,
        name: str | None = None,
        reduction_indices: Any = None,
        keep_dims: bool | None = None,
    ) -> Tensor:
        """The op's output."""


def _reduction(
    name: str,
    op_type: str,
    function: Callable[..., Any],
    what: str,
    allowed: frozenset[str] = NUMBERS,
) -> _Reduction:
    def reduce(
        input_tensor: Any,
        axis: Any = None,
        keepdims: bool | None = None,
        name: str | None = None,
        reduction_indices: Any = None,
        keep_dims: bool | None = None,
    ) -> Tensor:
        old = reduction_indices, keep_dims
        return _reduce(op_type, function, input_tensor, axis, keepdims, name, *old, allowed)

    return named(reduce, name, f"{what} over `axis`, or of everything.")


def _in_own_dtype(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of NumPy that would else compute in a wider dtype."""

    def computed(x: NDArray[Any], axes: tuple[int, ...], keep: bool) -> Any:
        return function(x, axis=axes, keepdims=keep, dtype=x.dtype)

    return computed


def _mean(x: NDArray[Any], axes: tuple[int, ...], keep: bool) -> Any:
    """The mean; that of integers is an integer, cut off."""
    total = np.asarray(np.sum(x, axis=axes, keepdims=keep, dtype=x.dtype))
    count = int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    if x.dtype.kind not in "iu":
        return np.true_divide(total, x.dtype.type(count))
    if not count:
        return np.zeros_like(total)
    return np.floor_divide(total - np.fmod(total, count), count).astype(x.dtype)


def _extreme(
    function: Callable[..., Any], of_nothing: Callable[[np.dtype[Any]], Any]
) -> Callable[..., Any]:
    """The maximum or minimum; of nothing at all, what any number would replace."""

    def extreme(x: NDArray[Any], axes: tuple[int, ...], keep: bool) -> Any:
        if x.size:
            return function(x, axis=axes, keepdims=keep)
        return function(x, axis=axes, keepdims=keep, initial=of_nothing(x.dtype))

    return extreme


def _lowest(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _highest(dtype: np.dtype[Any]) -> Any:
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


def _logsumexp(x: NDArray[Any], axes: tuple[int, ...], keep: bool) -> Any:
    """``log(sum(exp(x)))`` without overflow."""
    top = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, x.dtype.type(0))
    total = np.log(np.sum(np.exp(x - top), axis=axes, keepdims=True)) + top
    return total if keep else np.squeeze(total, axis=axes)


def _every(x: NDArray[Any], axes: tuple[int, ...], keep: bool) -> Any:
    return np.all(x, axis=axes, keepdims=keep)


def _some(x: NDArray[Any], axes: tuple[int, ...], keep: bool) -> Any:
    return np.any(x, axis=axes, keepdims=keep)


reduce_sum: _Reduction = _reduction("reduce_sum", "Sum", _in_own_dtype(np.sum), "The sum")
reduce_prod: _Reduction = _reduction("reduce_prod", "Prod", _in_own_dtype(np.prod), "The product")
reduce_mean: _Reduction = _reduction("reduce_mean", "Mean", _mean, "The mean")
reduce_max: _Reduction = _reduction(
    "reduce_max", "Max", _extreme(np.max, _lowest), "The largest", REALS
)
reduce_min: _Reduction = _reduction(
    "reduce_min", "Min", _extreme(np.min, _highest), "The smallest", REALS
)
reduce_all: _Reduction = _reduction("reduce_all", "All", _every, "Whether all are true", _BOOLS)
reduce_any: _Reduction = _reduction("reduce_any", "Any", _some, "Whether any is true", _BOOLS)
reduce_logsumexp: _Reduction = _reduction(
    "reduce_logsumexp", "ReduceLogSumExp", _logsumexp, "``log(sum(exp(x)))``", FLOATS
)


def reduce_variance(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The variance (that of the population) over `axis`, or of everything."""
    how = "ReduceVariance", _in_own_dtype(np.var)
    return _reduce(*how, input_tensor, axis, keepdims, name, None, None, FLOATS)


def reduce_std(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The standard deviation (that of the population) over `axis`, or of everything."""
    how = "ReduceStd", _in_own_dtype(np.std)
    return _reduce(*how, input_tensor, axis, keepdims, name, None, None, FLOATS)


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

    return _reduce(
        "CountNonzero",
        count,
        input_tensor,
        axis,
        keepdims,
        name or "count_nonzero",
        reduction_indices,
        keep_dims,
        ANY,
        wanted,
    )


def reduce_join(
    inputs: Any,
    axis: Any = None,
    keep_dims: bool | None = None,
    separator: str | bytes = "",
    name: str | None = None,
    reduction_indices: Any = None,
    keepdims: bool | None = None,
) -> Tensor:
    """Strings joined over one axis after another, in the order given.

    Args:
        inputs: strings.
        axis: which axes go: of ``[0, 1]`` the columns are joined first. All in row-major order if
            left out.
        keep_dims: the old name of `keepdims`.
        separator: the text between them.
        name: name of the op.
        reduction_indices: the old name of `axis`.
        keepdims: whether the axes stay, with size 1.
    """
    between = separator.encode() if isinstance(separator, str) else separator
    axis = unless_given(axis, reduction_indices, "axis", "reduction_indices")
    keep = bool(unless_given(keepdims, keep_dims, "keepdims", "keep_dims"))

    def joined(x: Any, axes: Any) -> Any:
        x = np.asarray(x, object)
        _axes_of(x.ndim, axes)
        gone = [one % x.ndim for one in np.ravel(axes).tolist()]
        if axis is not None:
            gone.reverse()  # what is joined first changes fastest
        kept = [place for place in range(x.ndim) if place not in gone]
        sizes = [x.shape[place] for place in kept]
        rows = np.transpose(x, [*kept, *gone]).reshape([int(np.prod(sizes, dtype=int)), -1])
        result = np.empty(len(rows), object)
        result[:] = [between.join(row) for row in rows.tolist()]
        if keep:
            sizes = [1 if place in gone else size for place, size in enumerate(x.shape)]
        return result.reshape(sizes)

    with OpBuilder("ReduceJoin", name) as op:
        tensor = op.tensor(inputs, "inputs", dtypes.string)
        axes = op.tensor(
            _all_axes(tensor) if axis is None else axis, "reduction_indices", None, INDICES
        )
        shape = _reduced_shape(op, tensor.shape.as_tuple(), constant_value(axes), keep)
        return op.output(dtypes.string, shape, Pure(joined))


def argmax(
    input: Any,
    axis: Any = None,
    name: str | None = None,
    dimension: Any = None,
    output_type: Any = dtypes.int64,
) -> Tensor:
    """The index of the largest element along `axis` (0 if left out); the first of equal ones."""
    axis = unless_given(axis, dimension, "axis", "dimension")
    return _arg("ArgMax", np.argmax, input, axis, name, output_type)


def argmin(
    input: Any,
    axis: Any = None,
    name: str | None = None,
    dimension: Any = None,
    output_type: Any = dtypes.int64,
) -> Tensor:
    """The index of the smallest element along `axis` (0 if left out); the first of equal ones."""
    axis = unless_given(axis, dimension, "axis", "dimension")
    return _arg("ArgMin", np.argmin, input, axis, name, output_type)


def arg_max(
    input: Any, dimension: Any, output_type: Any = dtypes.int64, name: str | None = None
) -> Tensor:
    """The same as `argmax`, by the op's own name."""
    return argmax(input, dimension, name, output_type=output_type)


def arg_min(
    input: Any, dimension: Any, output_type: Any = dtypes.int64, name: str | None = None
) -> Tensor:
    """The same as `argmin`, by the op's own name."""
    return argmin(input, dimension, name, output_type=output_type)


def _arg(
    op_type: str,
    function: Callable[..., Any],
    value: Any,
    axis: Any,
    name: str | None,
    output_type: Any,
) -> Tensor:
    wanted = dtypes.as_dtype(output_type)

    def place(x: Any, axis: Any) -> Any:
        x = np.asarray(x)
        if not -x.ndim <= axis < x.ndim:
            raise invalid(f"Expected dimension in the range [{-x.ndim}, {x.ndim}), but got {axis}")
        return function(x, axis=int(axis)).astype(wanted.numpy)

    with OpBuilder(op_type, name) as op:
        tensor = op.tensor(value, "input", None, REALS | {"bool"})
        axis_tensor = op.tensor(0 if axis is None else axis, "dimension", None, INDICES)
        shape, known = tensor.shape.as_tuple(), constant_value(axis_tensor)
        if shape is not None and known is not None and -len(shape) <= int(known) < len(shape):
            gone = int(known) % len(shape)
            shape = (*shape[:gone], *shape[gone + 1 :])
        elif shape is not None:
            shape = (None,) * (len(shape) - 1)
        return op.output(wanted, shape, Pure(place))


def cumsum(
    x: Any,
    axis: Any = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor:
    """Running sums along `axis`.

    Args:
        x: numbers.
        axis: the axis to go along.
        exclusive: whether each sum leaves out its own element.
        reverse: whether to go from the end.
        name: name of the op.
    """
    return _scan("Cumsum", np.cumsum, 0, x, axis, exclusive, reverse, name)


def cumprod(
    x: Any,
    axis: Any = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor:
    """Running products along `axis`; the arguments are those of `cumsum`."""
    return _scan("Cumprod", np.cumprod, 1, x, axis, exclusive, reverse, name)


def _scan(
    op_type: str,
    function: Callable[..., Any],
    start: int,
    x: Any,
    axis: Any,
    exclusive: bool,
    reverse: bool,
    name: str | None,
) -> Tensor:
    def scanned(x: Any, axis: Any) -> Any:
        x = np.asarray(x)
        if not -x.ndim <= axis < x.ndim:
            raise invalid(
                f"ScanOp: Expected scan axis in the range [{-x.ndim}, {x.ndim}), but got {axis}"
            )
        axis = int(axis)
        values = np.flip(x, axis) if reverse else x
        if exclusive:
            first = np.full_like(np.take(values, [0] if x.shape[axis] else [], axis), start)
            values = np.concatenate([first, np.take(values, range(x.shape[axis] - 1), axis)], axis)
        result = function(values, axis=axis, dtype=x.dtype)
        return np.flip(result, axis) if reverse else result

    with OpBuilder(op_type, name) as op:
        tensor = op.tensor(x, "x", None, NUMBERS)
        op.tensor(axis, "axis", None, INDICES)
        return op.output(tensor.dtype, tensor.shape.as_tuple(), Pure(scanned))
