"""Columns of parsed examples: one feature's values of many rows, made into tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aioqueue.compat.v1.ops.building import invalid, shape_text

Array: TypeAlias = npt.NDArray[Any]
Chunk: TypeAlias = Sequence[Any]
"""The values of a feature in one row: a list; of floats their bytes, four for each."""

TYPES: dict[str, np.dtype[Any]] = {
    "string": np.dtype(object),
    "float": np.dtype(np.float32),
    "int64": np.dtype(np.int64),
}
"""The NumPy dtype of each kind of feature."""


@dataclass(frozen=True, slots=True)
class Values:
    """One feature of every row."""

    flat: Array
    counts: Array
    there: Array

    @classmethod
    def of(cls, rows: Sequence[Chunk | None], kind: str) -> Values:
        """The values of rows, None for each that lacks the feature."""
        found: list[Any] = [row for row in rows if row is not None]
        flat: Array
        if kind == "float":
            flat = np.frombuffer(b"".join(found), "<f4").astype(TYPES[kind], copy=False)
        else:
            listed = list(chain.from_iterable(found))
            flat = np.empty(len(listed), TYPES[kind])
            flat[:] = listed
        counts = [0 if row is None else count_of(row, kind) for row in rows]
        return cls(flat, np.array(counts, np.int64), np.array([row is not None for row in rows]))


def count_of(chunk: Chunk, kind: str) -> int:
    """How many values a row has."""
    return len(chunk) // 4 if kind == "float" else len(chunk)


class Column:
    """One or more tensors of a batch, made of one feature of every row."""

    is_sparse = False
    must_be_there = False
    """Whether a row without the feature needs a default."""

    def __init__(self, key: str, kind: str) -> None:
        self.key = key
        self.kind = kind

    @property
    def parts(self) -> tuple[Column, ...]:
        """The columns of a single feature that it is made of: as a rule itself."""
        return (self,)

    def refusal(self, count: int) -> str | None:
        """What is wrong with a row of so many values; None if nothing is."""
        return None

    def wrong_kind(self, kind: str) -> str:
        """What is wrong with a row of another kind."""
        types = (
            f"Expected type: {self.kind}, Actual type: {kind}"
            if self.is_sparse
            else f"Data type: {kind} but expected type: {self.kind}"
        )
        return f"Data types don't match. {types}"

    def batch(self, parts: Sequence[Values], default: Array | None) -> tuple[Array, ...]:
        """The tensors of a batch; several for a sparse column."""
        raise NotImplementedError

    def single(self, parts: Sequence[Values], default: Array | None) -> tuple[Array, ...]:
        """The same for one row, without the axis of the batch."""
        if not self.is_sparse:
            return tuple(array[0] for array in self.batch(parts, default))
        indices, flat, shape = self.batch(parts, default)
        return indices[:, 1:], flat, shape[1:]


class DenseColumn(Column):
    """Values of one shape in every row: ``FixedLenFeature``."""

    must_be_there = True

    def __init__(self, key: str, kind: str, shape: tuple[int, ...]) -> None:
        super().__init__(key, kind)
        self.shape = shape
        self.size: int = math.prod(shape)

    def refusal(self, count: int) -> str | None:
        if count == self.size:
            return None
        return (
            f"Number of {_plural(self.kind)} != expected.  Values size: {count}"
            f" but output shape: {shape_text(self.shape)}"
        )

    def batch(self, parts: Sequence[Values], default: Array | None) -> tuple[Array, ...]:
        (values,) = parts
        shape = (len(values.there), *self.shape)
        if values.there.all():
            return (values.flat.reshape(shape),)
        assert default is not None, "else a row that lacks the feature does not fit"
        out = np.empty((len(values.there), self.size), TYPES[self.kind])
        out[values.there] = values.flat.reshape(-1, self.size)
        out[~values.there] = default.reshape(-1)
        return (out.reshape(shape),)


class PaddedColumn(Column):
    """Any number of rows of one shape, padded to the longest: ``FixedLenSequenceFeature``."""

    def __init__(self, key: str, kind: str, shape: tuple[int, ...]) -> None:
        super().__init__(key, kind)
        self.shape = shape
        self.stride: int = math.prod(shape)

    def refusal(self, count: int) -> str | None:
        if not count % self.stride:
            return None
        return (
            f"Number of {_plural(self.kind)} is not a multiple of stride length."
            f" Saw {count} values but output shape is: {shape_text((None, *self.shape))}"
        )

    def batch(self, parts: Sequence[Values], default: Array | None) -> tuple[Array, ...]:
        (values,) = parts
        longest = int(values.counts.max(initial=0))
        filler = b"" if self.kind == "string" else 0
        out = np.empty((len(values.counts), longest), TYPES[self.kind])
        out[...] = filler if default is None else default.reshape(())[()]
        out[np.arange(longest) < values.counts[:, np.newaxis]] = values.flat
        return (out.reshape(len(out), longest // self.stride, *self.shape),)


class SparseColumn(Column):
    """Any number of values in every row, as a sparse tensor: ``VarLenFeature``."""

    is_sparse = True

    def batch(self, parts: Sequence[Values], default: Array | None) -> tuple[Array, ...]:
        (values,) = parts
        counts = values.counts
        indices = np.stack(_places(counts), axis=1)
        return indices, values.flat, np.array([len(counts), counts.max(initial=0)], np.int64)


class PairColumn(Column):
    """A sparse array of a known shape, whose places are features too: ``SparseFeature``."""

    is_sparse = True

    def __init__(
        self,
        place_keys: Sequence[str],
        key: str,
        kind: str,
        shape: tuple[int, ...],
        is_sorted: bool,
    ) -> None:
        super().__init__(key, kind)
        self.shape = shape
        self._is_sorted = is_sorted
        axes = [SparseColumn(one, "int64") for one in place_keys]
        self._parts = (SparseColumn(key, kind), *axes)

    @property
    def parts(self) -> tuple[Column, ...]:
        return self._parts

    def batch(self, parts: Sequence[Values], default: Array | None) -> tuple[Array, ...]:
        values, *axes = parts
        for axis in axes:
            if len(axis.flat) != len(values.flat):
                raise invalid(
                    f"Number of elements in indices ({len(axis.flat)}) and values"
                    f" ({len(values.flat)}) do not match"
                )
        # As in TensorFlow, the values of all rows are one list, and the places of all rows another.
        rows, _ = _places(axes[0].counts)
        columns = [rows, *(axis.flat for axis in axes)]
        indices, flat = np.stack(columns, axis=1), values.flat
        if not self._is_sorted:
            order = np.lexsort(columns[::-1])
            indices, flat = indices[order], flat[order]
        return indices, flat, np.array([len(values.counts), *self.shape], np.int64)


def _places(counts: Array) -> tuple[Array, Array]:
    """Of each value its row, and its place within the row."""
    starts = np.cumsum(counts) - counts
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows, np.arange(len(rows)) - starts[rows]


def _plural(kind: str) -> str:
    return f"{'bytes' if kind == 'string' else kind} values"
