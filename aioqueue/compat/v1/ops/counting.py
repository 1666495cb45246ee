"""How often numbers occur, and where they belong: `bincount`, `searchsorted` and their kin."""

from __future__ import annotations

from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import INDICES, REALS, Dims, OpBuilder, Pure, invalid
from aioqueue.compat.v1.ops.static import constant_value

__all__ = ("bincount", "histogram_fixed_width", "searchsorted")


def bincount(
    arr: Any,
    weights: Any = None,
    minlength: int | None = None,
    maxlength: int | None = None,
    dtype: Any = dtypes.int32,
) -> Tensor:
    """How often each number from zero on occurs, or the sums of weights.

    Args:
        arr: int32, none negative, of any shape.
        weights: what each counts, of the shape of `arr`; one if None.
        minlength: how many numbers are counted at least.
        maxlength: how many are counted at most; larger numbers are left out.
        dtype: of the counts, if there are no weights.

    Raises:
        InvalidArgumentError: when it runs: a number is negative.
    """
    counted = dtypes.as_dtype(dtype)

    def counts(numbers: Any, *given: Any) -> Any:
        flat = np.ravel(numbers)
        if (flat < 0).any():
            raise invalid("Input arr must be non-negative!")
        size = max(int(flat.max(initial=-1)) + 1, minlength or 0)
        size = size if maxlength is None else min(size, maxlength)
        made = np.zeros(size, given[0].dtype if given else counted.numpy)
        inside = flat < size
        np.add.at(made, flat[inside], np.ravel(given[0])[inside] if given else 1)
        return made

    with OpBuilder("Bincount", None, "bincount") as op:
        numbers = op.tensor(arr, "arr", dtypes.int32)
        given = [] if weights is None else [op.tensor(weights, "weights")]
        size = _largest(constant_value(numbers), minlength, maxlength)
        return op.output(given[0].dtype if given else counted, (size,), Pure(counts))


def _largest(known: Any, least: int | None, most: int | None) -> int | None:
    if known is None:
        return None
    size = max(int(np.ravel(known).max(initial=-1)) + 1, least or 0)
    return size if most is None else min(size, most)


def histogram_fixed_width(
    values: Any,
    value_range: Any,
    nbins: Any = 100,
    dtype: Any = dtypes.int32,
    name: str | None = None,
) -> Tensor:
    """How many numbers fall into each of some intervals of one width.

    Args:
        values: the numbers.
        value_range: the beginning of the first interval and the end of the last, of the dtype of
            `values`; what is outside is counted in the first and the last.
        nbins: how many intervals there are.
        dtype: of the counts: int32 or int64.
        name: name of the op.

    Raises:
        InvalidArgumentError: when it runs: the range is empty.
    """
    counted = dtypes.as_dtype(dtype)

    def counts(values: Any, limits: Any, number: Any) -> Any:
        low, high = limits
        if not low < high:
            raise invalid(f"value_range should satisfy value_range[0] < value_range[1]: {limits}")
        step = (high - low) / limits.dtype.type(number)
        places = np.floor((np.ravel(values) - low) / step).clip(0, number - 1)
        return np.bincount(places.astype(np.int64), minlength=number).astype(counted.numpy)

    with OpBuilder("HistogramFixedWidth", name, "histogram_fixed_width") as op:
        numbers = op.tensor(values, "values", None, REALS)
        op.tensor(value_range, "value_range", numbers.dtype, like="values")
        count = op.tensor(nbins, "nbins", dtypes.int32)
        known = constant_value(count)
        shape: Dims = (None if known is None else int(known),)
        return op.output(counted, shape, Pure(counts))


def searchsorted(
    sorted_sequence: Any,
    values: Any,
    side: str = "left",
    out_type: Any = dtypes.int32,
    name: str | None = None,
) -> Tensor:
    """Where numbers belong in sequences that are in order.

    Args:
        sorted_sequence: ``[..., n]``, in order along the last axis.
        values: ``[..., m]``, of the same dtype.
        side: ``"left"`` for the first such place of each, ``"right"`` for the last.
        out_type: int32 or int64.
        name: name of the op.

    Raises:
        ValueError: `side` is neither.
    """
    wanted = dtypes.as_dtype(out_type)
    if side not in ("left", "right"):
        raise ValueError(f"side must be either 'right' or 'left'.  Saw: {side}.")
    if wanted.name not in INDICES:
        raise TypeError(f"out_type: got {wanted!r}; expected int32 or int64")

    def places(sequences: Any, values: Any) -> Any:
        rows = sequences.reshape(-1, sequences.shape[-1])
        asked = values.reshape(-1, values.shape[-1])
        pairs = zip(rows, asked, strict=True)
        found = [np.searchsorted(row, one, side) for row, one in pairs]  # type: ignore[call-overload]
        return np.array(found, wanted.numpy).reshape(values.shape)

    with OpBuilder("SearchSorted", name, "searchsorted") as op:
        sequences = op.tensor(sorted_sequence, "sorted_sequence", None, REALS)
        asked = op.tensor(values, "values", sequences.dtype, like="sorted_sequence")
        return op.output(wanted, asked.shape.as_tuple(), Pure(places))
