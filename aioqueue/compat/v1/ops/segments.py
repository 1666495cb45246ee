"""Rows that belong together, reduced to one: `segment_sum`, `unsorted_segment_max` and kin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.ops import math
from aioqueue.compat.v1.ops.building import (
    INDICES,
    NUMBERS,
    REALS,
    Dims,
    OpBuilder,
    Pure,
    array,
    invalid,
    shape_text,
)
from aioqueue.compat.v1.ops.static import constant_value

__all__ = (
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_sum",
    "unsorted_segment_max",
    "unsorted_segment_mean",
    "unsorted_segment_min",
    "unsorted_segment_prod",
    "unsorted_segment_sqrt_n",
    "unsorted_segment_sum",
)

Array = NDArray[Any]


def segment_sum(data: Any, segment_ids: Any, name: str | None = None) -> Tensor:
    """The sums of rows that follow each other and have the same number.

    Args:
        data: numbers, ``[n, ...]``.
        segment_ids: int32 or int64 ``[n]``, none smaller than the one before it: the number of the
            row of the result that each row is part of. Zero for a number that is left out.
        name: name of the op.

    Returns:
        ``[last number + 1, ...]``, of the data's dtype.

    Raises:
        InvalidArgumentError: when it runs: the numbers are not in order, or not as many as rows.
    """
    return _sorted("SegmentSum", np.add.reduceat, data, segment_ids, name)


def segment_prod(data: Any, segment_ids: Any, name: str | None = None) -> Tensor:
    """The products of rows that follow each other; one for a number that is left out.

    Arguments, result and errors are those of `segment_sum`.
    """
    return _sorted("SegmentProd", np.multiply.reduceat, data, segment_ids, name, gap=1)


def segment_mean(data: Any, segment_ids: Any, name: str | None = None) -> Tensor:
    """The means of rows that follow each other, whole numbers of whole numbers.

    Arguments, result and errors are those of `segment_sum`.
    """

    def means(rows: Array, starts: Array, axis: int, dtype: Any) -> Array:
        totals = np.add.reduceat(rows, starts, axis, dtype)
        counts = np.diff([*starts, len(rows)]).reshape(-1, *[1] * (rows.ndim - 1))
        quotients: Array = totals / counts
        return quotients

    return _sorted("SegmentMean", means, data, segment_ids, name)


def segment_min(data: Any, segment_ids: Any, name: str | None = None) -> Tensor:
    """The least of rows that follow each other, element by element.

    Arguments, result and errors are those of `segment_sum`.
    """
    return _sorted("SegmentMin", np.minimum.reduceat, data, segment_ids, name, REALS)


def segment_max(data: Any, segment_ids: Any, name: str | None = None) -> Tensor:
    """The largest of rows that follow each other, element by element.

    Arguments, result and errors are those of `segment_sum`.
    """
    return _sorted("SegmentMax", np.maximum.reduceat, data, segment_ids, name, REALS)


def _sorted(
    op_type: str,
    reduce: Callable[[Array, Array, int, Any], Array],
    data: Any,
    segment_ids: Any,
    name: str | None,
    allowed: frozenset[str] = NUMBERS,
    gap: int = 0,
) -> Tensor:
    """One op on rows whose numbers are in order.

    Args:
        op_type: its type.
        reduce: takes the rows, where each segment begins, the axis and the dtype.
        data: the rows.
        segment_ids: their numbers.
        name: its name.
        allowed: the dtypes of the rows.
        gap: what a number has that is left out.
    """

    def reduced(rows: Any, numbers: Any) -> Any:
        rows = array(rows)
        if numbers.ndim != 1:
            raise invalid("segment_ids should be a vector.")
        if len(numbers) != len(rows):
            raise invalid("segment_ids should be the same size as dimension 0 of input.")
        if not len(numbers):
            return np.zeros((0, *rows.shape[1:]), rows.dtype)
        _check_numbers(numbers)
        present, starts = np.unique(numbers, return_index=True)
        made = np.full((int(numbers[-1]) + 1, *rows.shape[1:]), gap, rows.dtype)
        made[present] = reduce(rows, starts, 0, rows.dtype)
        return made

    with OpBuilder(op_type, name) as op:
        rows = op.tensor(data, "data", None, allowed)
        numbers = op.tensor(segment_ids, "segment_ids", None, INDICES)
        op.rank(numbers, 1)
        shape = rows.shape.as_tuple()
        return op.output(rows.dtype, None if shape is None else (None, *shape[1:]), Pure(reduced))


def _check_numbers(numbers: NDArray[Any]) -> None:
    """Refuse the first segment, in TensorFlow's order, whose number is wrong.

    Raises:
        InvalidArgumentError: it is followed by a lesser one, or is below zero or above the last.
    """
    first = numbers[np.append(0, np.flatnonzero(np.diff(numbers)) + 1)]
    falls = np.append(np.diff(first) < 0, False)
    outside = (first < 0) | (first > numbers[-1])
    for place in np.flatnonzero(falls | outside)[:1].tolist():
        if falls[place]:
            raise invalid("segment ids are not increasing")
        raise invalid(
            f"Segment id {first[place]} out of range [0, {numbers[-1] + 1}), possibly because"
            " 'segment_ids' input is not sorted."
        )


def unsorted_segment_sum(
    data: Any, segment_ids: Any, num_segments: Any, name: str | None = None
) -> Tensor:
    """The sums of rows that have the same number, in any order.

    Args:
        data: numbers.
        segment_ids: int32 or int64, a shape that the data's begins with: the number of the row of
            the result that each row is part of. Rows of negative numbers are left out.
        num_segments: how many rows the result has. Those without rows are zero.
        name: name of the op.

    Returns:
        ``[num_segments, ...]``, of the data's dtype.

    Raises:
        InvalidArgumentError: when it runs: a number is too large, or the shapes do not fit.
    """
    return _unsorted("UnsortedSegmentSum", np.add, data, segment_ids, num_segments, name)


def unsorted_segment_prod(
    data: Any, segment_ids: Any, num_segments: Any, name: str | None = None
) -> Tensor:
    """The products of rows that have the same number; one where there are none.

    Arguments, result and errors are those of `unsorted_segment_sum`.
    """
    return _unsorted("UnsortedSegmentProd", np.multiply, data, segment_ids, num_segments, name)


def unsorted_segment_max(
    data: Any, segment_ids: Any, num_segments: Any, name: str | None = None
) -> Tensor:
    """The largest of rows that have the same number; the dtype's least number where there are none.

    Arguments, result and errors are those of `unsorted_segment_sum`.
    """
    return _unsorted("UnsortedSegmentMax", np.maximum, data, segment_ids, num_segments, name, REALS)


def unsorted_segment_min(
    data: Any, segment_ids: Any, num_segments: Any, name: str | None = None
) -> Tensor:
    """The least of rows that have the same number; the dtype's largest number where there are none.

    Arguments, result and errors are those of `unsorted_segment_sum`.
    """
    return _unsorted("UnsortedSegmentMin", np.minimum, data, segment_ids, num_segments, name, REALS)


def unsorted_segment_mean(
    data: Any, segment_ids: Any, num_segments: Any, name: str | None = None
) -> Tensor:
    """The means of rows that have the same number; zero where there are none.

    Arguments and errors are those of `unsorted_segment_sum`.
    """
    with name_scope(name, "UnsortedSegmentMean"):
        total = unsorted_segment_sum(data, segment_ids, num_segments)
        return math.truediv(total, _counts(total, segment_ids))


def unsorted_segment_sqrt_n(
    data: Any, segment_ids: Any, num_segments: Any, name: str | None = None
) -> Tensor:
    """The sums of rows that have the same number, divided by the root of how many there are.

    Arguments and errors are those of `unsorted_segment_sum`.
    """
    with name_scope(name, "UnsortedSegmentSqrtN"):
        total = unsorted_segment_sum(data, segment_ids, num_segments)
        return math.truediv(total, math.sqrt(_counts(total, segment_ids)))


_STARTS: dict[np.ufunc, Callable[[np.dtype[Any]], Any]] = {
    np.add: lambda dtype: 0,
    np.multiply: lambda dtype: 1,
    np.maximum: lambda dtype: _limits(dtype).min,
    np.minimum: lambda dtype: _limits(dtype).max,
}
"""What each reduction begins with."""


def _limits(dtype: np.dtype[Any]) -> Any:
    return np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)


def _unsorted(
    op_type: str,
    reduce: np.ufunc,
    data: Any,
    segment_ids: Any,
    num_segments: Any,
    name: str | None,
    allowed: frozenset[str] = NUMBERS,
) -> Tensor:
    """One op on rows whose numbers are in any order."""

    def reduced(rows: Any, numbers: Any, count: Any) -> Any:
        rows, numbers, count = array(rows), np.asarray(numbers), int(count)
        rest = rows.shape[numbers.ndim :]
        if rows.shape[: numbers.ndim] != numbers.shape:
            raise invalid(
                f"data.shape = {shape_text(rows.shape)} does not start with segment_ids.shape ="
                f" {shape_text(numbers.shape)}"
            )
        if count < 0:
            raise invalid(f"Input num_segments == {count} must not be negative.")
        if (numbers >= count).any():
            place = tuple(np.argwhere(numbers >= count)[0].tolist())
            raise invalid(
                f"segment_ids{shape_text(place)} = {numbers[place]} is out of range [0, {count})"
            )
        wanted = numbers.ravel() >= 0
        made = np.full((count, *rest), _STARTS[reduce](rows.dtype), rows.dtype)
        reduce.at(made, numbers.ravel()[wanted], rows.reshape(-1, *rest)[wanted])
        return made

    with OpBuilder(op_type, name) as op:
        rows = op.tensor(data, "data", None, allowed)
        numbers = op.tensor(segment_ids, "segment_ids", None, INDICES)
        count = op.tensor(num_segments, "num_segments", None, INDICES)
        shape = _unsorted_shape(op, rows, numbers, constant_value(count))
        return op.output(rows.dtype, shape, Pure(reduced))


def _unsorted_shape(op: OpBuilder, rows: Tensor, numbers: Tensor, count: Any) -> Dims:
    shape, of_numbers = rows.shape.as_tuple(), numbers.shape.as_tuple()
    if shape is None or of_numbers is None:
        return None
    for one, other in zip(shape, of_numbers, strict=False):
        if None not in (one, other) and one != other:
            raise op.refuse(f"Dimensions must be equal, but are {one} and {other}")
    return (None if count is None else int(count), *shape[len(of_numbers) :])


def _counts(total: Tensor, segment_ids: Any) -> Tensor:
    """How many rows each row of a sum is made of, at least one; it divides the sum."""

    def counted(total: Any, numbers: Any) -> Any:
        found = np.bincount(numbers[numbers >= 0], minlength=len(total))
        return np.maximum(found, 1).astype(total.dtype).reshape(-1, *[1] * (total.ndim - 1))

    with OpBuilder("UnsortedSegmentCount", None) as op:
        op.tensor(total, "total")
        op.tensor(segment_ids, "segment_ids", None, INDICES)
        shape = total.shape.as_tuple()
        known = None if shape is None else (shape[0], *[1] * (len(shape) - 1))
        return op.output(total.dtype, known, Pure(counted))
