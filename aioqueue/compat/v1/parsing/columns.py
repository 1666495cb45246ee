"""Columns of parsed examples: the values of one feature of many rows, made into tensors.

Nothing here knows of graphs or of how examples are written: `parsing` makes the columns, and hands
them what `batches`, `records` or `sequences` has read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aioqueue.compat.v1.parsing.values import TYPES, Array, Values, invalid

__all__ = ("Column", "DenseColumn", "PaddedColumn", "PairColumn", "SparseColumn", "filler")


class Column:
    """One or more tensors of a batch, made of one feature of every row.

    Args:
        key: its name.
        kind: ``"string"``, ``"float"`` or ``"int64"``.
    """

    is_sparse = False

    def __init__(self, key: str, kind: str) -> None:
        self.key = key
        self.kind = kind

    @property
    def parts(self) -> tuple[Column, ...]:
        """The columns of a single feature that it is made of: as a rule itself."""
        return (self,)

    @property
    def must_be_there(self) -> bool:
        """Whether a row without the feature needs a default."""
        return False

    def refusal(self, count: int) -> str | None:
        """What is wrong with a row of so many values; None if nothing is."""
        del count
        return None

    def fits(self, values: Values, has_default: bool) -> bool:
        """Whether no row is wrong."""
        del values, has_default
        return True

    def batch(self, parts: Sequence[Values], default: Array | None) -> tuple[Array, ...]:
        """The tensors of a batch; several for a sparse column.

        Args:
            parts: the values of each of its `parts`, which fit.
            default: what stands for a feature that is not there; None if nothing does.
        """
        raise NotImplementedError

    def single(self, parts: Sequence[Values], default: Array | None) -> tuple[Array, ...]:
        """The same for one row, without the axis of the batch."""
        return tuple(array[0] for array in self.batch(parts, default))


class DenseColumn(Column):
    """Values of one shape in every row: ``FixedLenFeature``."""

    def __init__(self, key: str, kind: str, shape: tuple[int, ...]) -> None:
        super().__init__(key, kind)
        self.shape = shape
        self.size: int = math.prod(shape)

    @property
    def must_be_there(self) -> bool:
        return True

    def refusal(self, count: int) -> str | None:
        if count == self.size:
            return None
        return (
            f"Number of {_plural(self.kind)} != expected.  Values size: {count}"
            f" but output shape: {_text(self.shape)}"
        )

    def fits(self, values: Values, has_default: bool) -> bool:
        if not has_default:
            return bool(values.there.all() and (values.counts == self.size).all())
        return bool((values.counts[values.there] == self.size).all())

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

    def single(self, parts: Sequence[Values], default: Array | None) -> tuple[Array, ...]:
        (values,) = parts
        if not values.there[0]:
            return tuple(array[0] for array in self.batch(parts, default))
        return (values.flat.reshape(self.shape)[()],)


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
            f" Saw {count} values but output shape is: {_text((None, *self.shape))}"
        )

    def fits(self, values: Values, has_default: bool) -> bool:
        return not (values.counts % self.stride).any()

    def batch(self, parts: Sequence[Values], default: Array | None) -> tuple[Array, ...]:
        (values,) = parts
        longest = int(values.counts.max(initial=0))
        padding = filler(self.kind) if default is None else default.reshape(())[()]
        out = np.empty((len(values.counts), longest), TYPES[self.kind])
        out[...] = padding
        out[np.arange(longest) < values.counts[:, np.newaxis]] = values.flat
        return (out.reshape(len(out), longest // self.stride, *self.shape),)


class SparseColumn(Column):
    """Any number of values in every row, as a sparse tensor: ``VarLenFeature``."""

    is_sparse = True

    def batch(self, parts: Sequence[Values], default: Array | None) -> tuple[Array, ...]:
        (values,) = parts
        counts = values.counts
        indices = np.empty((len(values.flat), 2), np.int64)
        indices[:, 0], indices[:, 1] = _places(counts)
        return indices, values.flat, np.array([len(counts), counts.max(initial=0)], np.int64)

    def single(self, parts: Sequence[Values], default: Array | None) -> tuple[Array, ...]:
        (values,) = parts
        length = len(values.flat)
        return np.arange(length)[:, np.newaxis], values.flat, np.array([length], np.int64)


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
        self._check(parts)
        values, *axes = parts
        # As in TensorFlow, the values of all rows are one list, and the places of all rows another.
        rows, _ = _places(axes[0].counts)
        indices, flat = self._sorted([rows, *(axis.flat for axis in axes)], values.flat)
        return indices, flat, np.array([len(values.counts), *self.shape], np.int64)

    def single(self, parts: Sequence[Values], default: Array | None) -> tuple[Array, ...]:
        self._check(parts)
        values, *axes = parts
        places, flat = self._sorted([axis.flat for axis in axes], values.flat)
        return places, flat, np.array(self.shape, np.int64)

    def _check(self, parts: Sequence[Values]) -> None:
        """Raise InvalidArgumentError unless there are as many places as values."""
        values, *axes = parts
        for axis in axes:
            if len(axis.flat) != len(values.flat):
                raise invalid(
                    f"Number of elements in indices ({len(axis.flat)}) and values"
                    f" ({len(values.flat)}) do not match"
                )

    def _sorted(self, axes: list[Array], values: Array) -> tuple[Array, Array]:
        """Places and values, in the order of the places."""
        places = np.stack(axes, axis=1)
        if self._is_sorted:
            return places, values
        order = np.lexsort(axes[::-1])
        return places[order], values[order]


def _places(counts: Array) -> tuple[Array, Array]:
    """Of each value its row, and its place within the row."""
    starts = np.cumsum(counts) - counts
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows, np.arange(len(rows)) - starts[rows]


def _plural(kind: str) -> str:
    return f"{'bytes' if kind == 'string' else kind} values"


def _text(shape: tuple[int | None, ...]) -> str:
    return f"[{','.join('?' if size is None else str(size) for size in shape)}]"


def filler(kind: str) -> bytes | int:
    """What pads tensors of a kind."""
    return b"" if kind == "string" else 0
