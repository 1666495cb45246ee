"""Columns of parsed examples: one feature of many rows, checked and put into arrays.

Nothing here knows of graphs: `parsing` makes the columns, and its kernels call them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.ops.escaping import c_escaped
from aioqueue.compat.v1.protos.examples import KINDS, feature_values

__all__ = (
    "TYPES",
    "Column",
    "DenseColumn",
    "PaddedColumn",
    "PairColumn",
    "Row",
    "SparseColumn",
    "StepsColumn",
    "as_array",
    "invalid",
    "joined",
    "parsed",
)

Array: TypeAlias = npt.NDArray[Any]

TYPES: dict[str, np.dtype[Any]] = {
    "string": np.dtype(object),
    "float": np.dtype(np.float32),
    "int64": np.dtype(np.int64),
}
"""The NumPy dtype of each kind of feature."""


@dataclass(frozen=True)
class Row:
    """The features of one example, and what error messages call it.

    Attributes:
        features: the message's map of features.
        index: its place in the batch; None if it was parsed alone.
        name: what the caller calls it.
    """

    features: Mapping[str, Any]
    index: int | None = None
    name: str | None = None

    def values(self, key: str, kind: str, is_sparse: bool = False) -> Array | None:
        """The values of a feature, which must be of a kind; None if it is not there."""
        found = feature_values(self.features.get(key))
        if found is None:
            return None
        actual = KINDS[found[0]]
        if actual != kind:
            types = (
                f"Expected type: {kind}, Actual type: {actual}"
                if is_sparse
                else f"Data type: {actual} but expected type: {kind}"
            )
            raise self.error(key, f"Data types don't match. {types}")
        return as_array(found[1], kind)

    def error(self, key: str, what: str) -> errors.InvalidArgumentError:
        """Something is wrong with a feature of this row."""
        if self.index is None:
            return invalid(f"Key: {key}.  {what}")
        return invalid(f"{self._prefix}Key: {key}, Index: {self.index}.  {what}")

    def missing(self, key: str, kind: str) -> errors.InvalidArgumentError:
        """A feature without a default is not there."""
        return invalid(
            f"{self._prefix}Feature: {key} (data type: {kind}) is required but could not be found."
        )

    @property
    def _prefix(self) -> str:
        return "" if self.index is None else f"Name: {self.name or '<unknown>'}, "


class Column:
    """One feature of every row.

    Args:
        key: its name.
        kind: ``"string"``, ``"float"`` or ``"int64"``.
    """

    is_sparse = False

    def __init__(self, key: str, kind: str) -> None:
        self.key = key
        self.kind = kind

    def batch(self, rows: Sequence[Row], default: Array | None) -> tuple[Array, ...]:
        """The arrays of a batch; several for a sparse column.

        Args:
            rows: the parsed examples.
            default: what stands for a feature that is not there; None if nothing does.
        """
        raise NotImplementedError

    def single(self, row: Row, default: Array | None) -> tuple[Any, ...]:
        """The same for one example, without the axis of the batch."""
        return tuple(array[0] for array in self.batch([row], default))


class DenseColumn(Column):
    """Values of one shape in every row: ``FixedLenFeature``."""

    def __init__(self, key: str, kind: str, shape: tuple[int, ...]) -> None:
        super().__init__(key, kind)
        self.shape = shape
        self._size = math.prod(shape)

    def batch(self, rows: Sequence[Row], default: Array | None) -> tuple[Array, ...]:
        plain = _lists(rows, self.key, self.kind)
        if plain is not None and all(len(one) == self._size for one in plain):
            return (_joined_lists(plain, self.kind).reshape(len(rows), *self.shape),)
        # One row after another: slower, and it finds out what is missing or wrong.
        out = np.empty((len(rows), self._size), TYPES[self.kind])
        for place, row in zip(out, rows, strict=True):
            values = row.values(self.key, self.kind)
            if values is None:
                if default is None:
                    raise row.missing(self.key, self.kind)
                values = default.reshape(-1)
            if values.size != self._size:
                raise row.error(
                    self.key,
                    f"Number of {_plural(self.kind)} != expected.  Values size: {values.size}"
                    f" but output shape: {_text(self.shape)}",
                )
            place[:] = values
        return (out.reshape(len(rows), *self.shape),)


class PaddedColumn(Column):
    """Any number of rows of one shape, padded to the longest: ``FixedLenSequenceFeature``."""

    def __init__(self, key: str, kind: str, shape: tuple[int, ...]) -> None:
        super().__init__(key, kind)
        self.shape = shape
        self._stride = math.prod(shape)

    def batch(self, rows: Sequence[Row], default: Array | None) -> tuple[Array, ...]:
        parts = [self._steps(row) for row in rows]
        longest = max((len(part) for part in parts), default=0)
        out = np.empty((len(rows), longest, *self.shape), TYPES[self.kind])
        out[...] = _filler(self.kind) if default is None else default.reshape(())[()]
        for place, part in zip(out, parts, strict=True):
            place[: len(part)] = part
        return (out,)

    def _steps(self, row: Row) -> Array:
        values = row.values(self.key, self.kind)
        if values is None:
            values = np.empty(0, TYPES[self.kind])
        if values.size % self._stride:
            expected = _text((None, *self.shape))
            raise row.error(
                self.key,
                f"Number of {_plural(self.kind)} is not a multiple of stride length."
                f" Saw {values.size} values but output shape is: {expected}",
            )
        return values.reshape(-1, *self.shape)


class SparseColumn(Column):
    """Any number of values in every row, as a sparse tensor: ``VarLenFeature``."""

    is_sparse = True

    def batch(self, rows: Sequence[Row], default: Array | None) -> tuple[Array, ...]:
        plain = _lists(rows, self.key, self.kind)
        parts: Sequence[Any] = [self._part(row) for row in rows] if plain is None else plain
        counts = np.array([len(part) for part in parts], np.int64)
        starts = np.cumsum(counts) - counts
        total = int(counts.sum())
        indices = np.empty((total, 2), np.int64)
        indices[:, 0] = np.repeat(np.arange(len(parts)), counts)
        indices[:, 1] = np.arange(total) - np.repeat(starts, counts)
        shape = np.array([len(parts), counts.max(initial=0)], np.int64)
        if plain is None:
            return indices, joined(parts, TYPES[self.kind]), shape
        return indices, _joined_lists(plain, self.kind), shape

    def single(self, row: Row, default: Array | None) -> tuple[Any, ...]:
        values = self._part(row)
        length = np.array([len(values)], np.int64)
        return np.arange(len(values))[:, np.newaxis], values, length

    def _part(self, row: Row) -> Array:
        values = row.values(self.key, self.kind, is_sparse=True)
        return np.empty(0, TYPES[self.kind]) if values is None else values


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
        self.place_keys = tuple(place_keys)
        self.shape = shape
        self._is_sorted = is_sorted

    def batch(self, rows: Sequence[Row], default: Array | None) -> tuple[Array, ...]:
        parts = [self.single(row, default) for row in rows]
        counts = [len(values) for _, values, _ in parts]
        places = np.concatenate(
            [np.empty((0, len(self.shape)), np.int64), *(places for places, _, _ in parts)]
        )
        of_row = np.repeat(np.arange(len(parts)), counts)
        indices = np.concatenate([of_row[:, np.newaxis], places], axis=1)
        values = joined([values for _, values, _ in parts], TYPES[self.kind])
        return indices, values, np.array([len(parts), *self.shape], np.int64)

    def single(self, row: Row, default: Array | None) -> tuple[Any, ...]:
        values = SparseColumn(self.key, self.kind)._part(row)
        axes = [SparseColumn(key, "int64")._part(row) for key in self.place_keys]
        for axis in axes:
            if len(axis) != len(values):
                raise invalid(
                    f"Number of elements in indices ({len(axis)}) and values ({len(values)})"
                    " do not match"
                )
        places = np.stack(axes, axis=1)
        if not self._is_sorted:
            order = np.lexsort(axes[::-1])
            places, values = places[order], values[order]
        return places, values, np.array(self.shape, np.int64)


class StepsColumn(Column):
    """One feature of every step of one sequence.

    Args:
        key: its name.
        kind: as for every column.
        shape: of the values of one step; None if their number varies, for a sparse tensor.
        may_miss: whether the sequence may lack it, and has no steps then.
    """

    def __init__(self, key: str, kind: str, shape: tuple[int, ...] | None, may_miss: bool) -> None:
        super().__init__(key, kind)
        self.shape = shape
        self.is_sparse = shape is None
        self._may_miss = may_miss

    def single(self, row: Row, default: Array | None) -> tuple[Any, ...]:
        """The arrays of one sequence, whose lists are the `row`'s features."""
        if self.key not in row.features and not self._may_miss:
            raise invalid(
                f"Name: {row.name or '<unknown>'}, Feature list '{self.key}' is required but could"
                " not be found.  Did you mean to include it in"
                " feature_list_dense_missing_assumed_empty or feature_list_dense_defaults?"
            )
        steps = row.features[self.key].feature if self.key in row.features else ()
        rows = [Row({self.key: step}, at, row.name) for at, step in enumerate(steps)]
        if self.shape is None:
            return SparseColumn(self.key, self.kind).batch(rows, None)
        return DenseColumn(self.key, self.kind, self.shape).batch(rows, None)

    def batch_with_lengths(self, rows: Sequence[Row]) -> tuple[tuple[Array, ...], Array]:
        """The arrays of a batch of sequences, and how many steps each has.

        Args:
            rows: whose features are the lists of a sequence.
        """
        parts = [self.single(row, None) for row in rows]
        if not self.is_sparse:
            counts = np.array([len(part) for (part,) in parts], np.int64)
            shape = (len(rows), counts.max(initial=0), *(self.shape or ()))
            out = np.full(shape, _filler(self.kind), TYPES[self.kind])
            for place, (part,) in zip(out, parts, strict=True):
                place[: len(part)] = part
            return (out,), counts
        counts = np.array([shape[0] for _, _, shape in parts], np.int64)
        numbers = np.repeat(np.arange(len(parts)), [len(values) for _, values, _ in parts])
        places = np.concatenate([np.empty((0, 2), np.int64), *(indices for indices, _, _ in parts)])
        indices = np.concatenate([numbers[:, np.newaxis], places], axis=1)
        values = joined([values for _, values, _ in parts], TYPES[self.kind])
        largest = np.max([np.zeros(2, np.int64), *(shape for _, _, shape in parts)], axis=0)
        return (indices, values, np.array([len(parts), *largest], np.int64)), counts


_FIELDS = {"string": "bytes_list", "float": "float_list", "int64": "int64_list"}


def _lists(rows: Sequence[Row], key: str, kind: str) -> list[Any] | None:
    """The values of a feature in each row; None if a row has none, or values of another kind."""
    features = [row.features.get(key) for row in rows]
    if not features or None in features:
        return None
    found = [getattr(feature, _FIELDS[kind]).value for feature in features]
    return found if all(found) else None


def _joined_lists(lists: Sequence[Any], kind: str) -> Array:
    """The values of lists, one after another."""
    if kind != "string":
        total = sum(map(len, lists))
        return np.fromiter(chain.from_iterable(lists), TYPES[kind], total)
    values = list(chain.from_iterable(lists))
    array = np.empty(len(values), object)
    array[:] = values
    return array


def as_array(values: Sequence[Any], kind: str) -> Array:
    """The values of a list message as an array."""
    if kind != "string":
        return np.array(values[:], TYPES[kind])
    array = np.empty(len(values), object)
    array[:] = values[:]
    return array


def joined(parts: Sequence[Array], dtype: np.dtype[Any]) -> Array:
    """Arrays one after another; an empty one of the dtype if there are none."""
    return np.concatenate([np.empty(0, dtype), *parts])


def invalid(message: str) -> errors.InvalidArgumentError:
    """An error of what was parsed; the executor names the op."""
    return errors.InvalidArgumentError(None, None, message)


def parsed(kind: Callable[[], Any], data: bytes, what: str = "example input") -> Any:
    """A message of a class, from its serialized form."""
    message = kind()
    try:
        message.ParseFromString(data)
    except Exception as error:  # DecodeError; its place differs between versions of protobuf
        raise invalid(f"Could not parse {what}, value: '{c_escaped(data)}'") from error
    return message


def _plural(kind: str) -> str:
    return f"{'bytes' if kind == 'string' else kind} values"


def _text(shape: tuple[int | None, ...]) -> str:
    return f"[{','.join('?' if size is None else str(size) for size in shape)}]"


def _filler(kind: str) -> Any:
    return b"" if kind == "string" else 0
