"""What sequence examples have, as protobuf reads them: their contexts, and lists of steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.ops.building import shape_text
from aioqueue.compat.v1.ops.effects import c_escaped
from aioqueue.compat.v1.parsing.columns import Column, DenseColumn, SparseColumn, filler
from aioqueue.compat.v1.parsing.values import TYPES, Array, Values, as_array, invalid
from aioqueue.compat.v1.protos.examples import KINDS, example_classes, feature_values

__all__ = ("Row", "StepsColumn", "sequence_of", "values_of")


@dataclass(frozen=True)
class Row:
    """The features of a context, or the lists of a sequence, and what messages call it.

    Attributes:
        features: the message's map.
        index: its place in the batch; None if it was parsed alone.
        name: what the caller calls it.
    """

    features: Mapping[str, Any]
    index: int | None = None
    name: str | None = None

    def values(self, column: Column, default: Array | None) -> Array | None:
        """The values of a feature, as the column wants them; None if it is not there.

        Raises:
            InvalidArgumentError: they are of another kind, or not as many as it wants.
        """
        found = feature_values(self.features.get(column.key))
        if found is None:
            if column.must_be_there and default is None:
                raise self._missing(column)
            return None
        actual = KINDS[found[0]]
        if actual != column.kind:
            types = (
                f"Expected type: {column.kind}, Actual type: {actual}"
                if column.is_sparse
                else f"Data type: {actual} but expected type: {column.kind}"
            )
            raise self._error(column.key, f"Data types don't match. {types}")
        refusal = column.refusal(len(found[1]))
        if refusal:
            raise self._error(column.key, refusal)
        return as_array(found[1], column.kind)

    def _error(self, key: str, what: str) -> errors.InvalidArgumentError:
        if self.index is None:
            return invalid(f"Key: {key}.  {what}")
        return invalid(f"{self._prefix}Key: {key}, Index: {self.index}.  {what}")

    def _missing(self, column: Column) -> errors.InvalidArgumentError:
        return invalid(
            f"{self._prefix}Feature: {column.key} (data type: {column.kind}) is required but could"
            " not be found."
        )

    @property
    def _prefix(self) -> str:
        return "" if self.index is None else f"Name: {self.name or '<unknown>'}, "


def values_of(column: Column, rows: Sequence[Row], default: Array | None) -> list[Values]:
    """The values of each part of a column in rows.

    Raises:
        InvalidArgumentError: of the first row that does not fit.
    """
    return [
        Values.of([row.values(part, default) for row in rows], part.kind) for part in column.parts
    ]


class StepsColumn(Column):
    """One feature of every step of sequences.

    Args:
        key: its name.
        kind: as for every column.
        shape: of the values of one step; None if their number varies, for a sparse tensor.
        may_miss: whether a sequence may lack it, and has no steps then.
    """

    def __init__(self, key: str, kind: str, shape: tuple[int, ...] | None, may_miss: bool) -> None:
        super().__init__(key, kind)
        self.shape = shape
        self.is_sparse: bool = shape is None
        self._may_miss = may_miss
        self._of_step: Column = (
            SparseColumn(key, kind) if shape is None else DenseColumn(key, kind, shape)
        )

    def of_sequence(self, row: Row) -> tuple[Array, ...]:
        """The arrays of one sequence, whose lists are the `row`'s features."""
        if self.key not in row.features and not self._may_miss:
            raise invalid(
                f"Name: {row.name or '<unknown>'}, Feature list '{self.key}' is required but could"
                " not be found.  Did you mean to include it in"
                " feature_list_dense_missing_assumed_empty or feature_list_dense_defaults?"
            )
        steps = row.features[self.key].feature if self.key in row.features else ()
        counts = [self._count(row, at, step) for at, step in enumerate(steps)]
        if self.shape is not None:
            self._check_counts(row, counts, self.shape)
        rows = [Row({self.key: step}, at, row.name) for at, step in enumerate(steps)]
        return self._of_step.batch(values_of(self._of_step, rows, None), None)

    def _count(self, row: Row, at: int, step: Any) -> int:
        """How many values a step has.

        Raises:
            InvalidArgumentError: they are of another kind.
        """
        found = feature_values(step)
        if found is None:
            return 0
        if KINDS[found[0]] != self.kind:
            raise invalid(
                f"Name: {row.name or '<unknown>'}, Feature list: {self.key}, Index: {at}.  Data"
                f" types don't match. Expected type: {self.kind}"
            )
        return len(found[1])

    def _check_counts(self, row: Row, counts: Sequence[int], shape: tuple[int, ...]) -> None:
        """Raise InvalidArgumentError if a step has not as many values as its shape needs."""
        size, total = math.prod(shape), sum(counts)
        if size and total % size:
            raise invalid(
                f"Feature list '{self.key}' has an unexpected number of values.  Total values"
                f" size: {total} is not consistent with output shape: {shape_text((None, *shape))}"
            )
        for at, count in enumerate(counts):
            if count != size:
                raise invalid(
                    f"Name: {row.name or '<unknown>'}, Key: {self.key}, Index: {at}.  Number of"
                    f" values != expected.  values size: {count} but output shape:"
                    f" {shape_text(shape)}"
                )

    def batch_with_lengths(self, rows: Sequence[Row]) -> tuple[tuple[Array, ...], Array]:
        """The arrays of a batch of sequences, and how many steps each has.

        Args:
            rows: whose features are the lists of a sequence.
        """
        parts = [self.of_sequence(row) for row in rows]
        if not self.is_sparse:
            counts = np.array([len(part) for (part,) in parts], np.int64)
            shape = (len(rows), counts.max(initial=0), *(self.shape or ()))
            out = np.full(shape, filler(self.kind), TYPES[self.kind])
            for place, (part,) in zip(out, parts, strict=True):
                place[: len(part)] = part
            return (out,), counts
        counts = np.array([shape[0] for _, _, shape in parts], np.int64)
        numbers = np.repeat(np.arange(len(parts)), [len(values) for _, values, _ in parts])
        places = np.concatenate([np.empty((0, 2), np.int64), *(indices for indices, _, _ in parts)])
        indices = np.concatenate([numbers[:, np.newaxis], places], axis=1)
        values = np.concatenate([np.empty(0, TYPES[self.kind]), *(found for _, found, _ in parts)])
        largest = np.max([np.zeros(2, np.int64), *(shape for _, _, shape in parts)], axis=0)
        return (indices, values, np.array([len(parts), *largest], np.int64)), counts


def sequence_of(data: bytes) -> Any:
    """A ``SequenceExample`` from its serialized form.

    Raises:
        InvalidArgumentError: the bytes are not a ``SequenceExample``.
    """
    message_class: Callable[[], Any] = example_classes()["SequenceExample"]
    message = message_class()
    try:
        message.ParseFromString(data)
    except Exception as error:  # DecodeError; its place differs between versions of protobuf
        raise invalid(
            f"Could not parse sequence example input, value: '{c_escaped(data)}'"
        ) from error
    return message
