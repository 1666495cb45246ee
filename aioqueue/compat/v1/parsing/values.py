"""The values of one feature in the rows of a batch, all in one array, and what kinds there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aioqueue.compat.v1 import errors

__all__ = ("TYPES", "Array", "Values", "as_array", "invalid")

Array: TypeAlias = npt.NDArray[Any]

TYPES: dict[str, np.dtype[Any]] = {
    "string": np.dtype(object),
    "float": np.dtype(np.float32),
    "int64": np.dtype(np.int64),
}
"""The NumPy dtype of each kind of feature."""


@dataclass(frozen=True, slots=True)
class Values:
    """One feature of every row.

    Attributes:
        flat: the values, row after row.
        counts: int64 ``[rows]``: how many each row has.
        there: bool ``[rows]``: which rows have the feature, maybe without a value.
    """

    flat: Array
    counts: Array
    there: Array

    @classmethod
    def of(cls, rows: Sequence[Array | None], kind: str) -> Values:
        """The values of rows, None for each that lacks the feature."""
        if len(rows) == 1:
            row = rows[0]
            flat = np.empty(0, TYPES[kind]) if row is None else row
            return cls(flat, np.array([len(flat)]), np.array([row is not None]))
        found = [row for row in rows if row is not None]
        return cls(
            np.concatenate([np.empty(0, TYPES[kind]), *found]),
            np.array([0 if row is None else len(row) for row in rows], np.int64),
            np.array([row is not None for row in rows], np.bool_),
        )


def as_array(values: Sequence[Any], kind: str) -> Array:
    """The values of a list as an array."""
    if kind != "string":
        return np.array(values[:], TYPES[kind])
    array = np.empty(len(values), object)
    array[:] = values if isinstance(values, list) else values[:]
    return array


def invalid(message: str) -> errors.InvalidArgumentError:
    """An error of what was parsed; the executor names the op."""
    return errors.InvalidArgumentError(None, None, message)
