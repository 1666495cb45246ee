"""Other dtypes for the same numbers, clipped to what those can hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aioqueue.compat.v1.core.dtypes import DType

__all__ = ("saturating",)


def saturating(dtype: DType, wanted: DType) -> Callable[[Any], Any]:
    """What makes arrays of one dtype those of another, clipped to what that can hold."""
    low, high = _limits(dtype, wanted)
    to = wanted.numpy

    def clipped(x: Any) -> Any:
        return np.minimum(np.maximum(x, low), high).astype(to)

    return clipped


def _limits(dtype: DType, wanted: DType) -> tuple[Any, Any]:
    """The least and the largest value that both dtypes have, as values of the first."""
    limits = []
    for ours, theirs, inwards in ((dtype.min, wanted.min, max), (dtype.max, wanted.max, min)):
        limit = dtype.numpy.type(inwards(ours, theirs))
        if wanted.is_integer and dtype.is_floating and not wanted.min <= int(limit) <= wanted.max:
            limit = np.nextafter(limit, dtype.numpy.type(0))  # 2**31 - 1 is no float32
        limits.append(limit)
    return limits[0], limits[1]
