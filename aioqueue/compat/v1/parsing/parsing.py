"""``parse_example`` and its like: ops that turn serialized examples into tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from aioqueue.compat.v1.core import default_graph
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType, as_dtype, int64, string
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.ops.sparse import SparseTensor
from aioqueue.compat.v1.parsing.batches import BatchReader
from aioqueue.compat.v1.parsing.columns import (
    Column,
    DenseColumn,
    PaddedColumn,
    PairColumn,
    SparseColumn,
)
from aioqueue.compat.v1.parsing.records import RecordReader
from aioqueue.compat.v1.parsing.sequences import Row, StepsColumn, sequence_of, values_of
from aioqueue.compat.v1.parsing.values import TYPES, Array, Values, invalid

__all__ = (
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "SparseFeature",
    "VarLenFeature",
    "parse_example",
    "parse_sequence_example",
    "parse_single_example",
    "parse_single_sequence_example",
)

KINDS = {"string": "string", "float32": "float", "int64": "int64"}
"""The dtypes that features may have, each with what messages call it."""

_PER_BATCH, _PER_COLUMN, _PER_KIND = 14, 4, 10
"""What reading a batch in lock-step costs whatever its size, for each column, and for each kind of
columns; in units of one feature of one record that is read by itself, and as measured."""
_LARGE = 8192
"""Records of more bytes than this are read one after another: in lock-step, all are laid behind
each other, which copies them."""


class FixedLenFeature(NamedTuple):
    """A feature with the same number of values in every example: a dense tensor.

    Args:
        shape: of the values of one example.
        dtype: ``tf.int64``, ``tf.float32`` or ``tf.string``.
        default_value: for examples without the feature; without a default they are refused.
    """

    shape: Any
    dtype: Any
    default_value: Any = None


class VarLenFeature(NamedTuple):
    """A feature with any number of values: a `SparseTensor`.

    Args:
        dtype: ``tf.int64``, ``tf.float32`` or ``tf.string``.
    """

    dtype: Any


class FixedLenSequenceFeature(NamedTuple):
    """A feature with any number of rows of one shape: a dense tensor, padded within a batch.

    Args:
        shape: of one row.
        dtype: ``tf.int64``, ``tf.float32`` or ``tf.string``.
        allow_missing: whether an example may lack it; required except in sequence examples.
        default_value: one value, with which batches are padded; zeros or empty strings if None.
    """

    shape: Any
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None


class SparseFeature(NamedTuple):
    """A vector with few values, stored as two features: where they are, and what they are.

    Args:
        index_key: the feature with the positions; several for more than one axis.
        value_key: the feature with the values.
        dtype: of the values.
        size: length of the vector; several for more than one axis.
        already_sorted: whether positions ascend in every example, so that none are sorted.
    """

    index_key: str | Sequence[str]
    value_key: str
    dtype: Any
    size: int | Sequence[int]
    already_sorted: bool = False


def parse_example(
    serialized: Any,
    features: Mapping[str, Any] | None,
    name: str | None = None,
    example_names: Any = None,
) -> dict[str, Any]:
    """Parse a vector of serialized `Example` messages.

    Args:
        serialized: a string tensor of shape ``[batch]``; of shape ``[]`` for one without a batch.
        features: what to take from each: a `FixedLenFeature`, `VarLenFeature`,
            `FixedLenSequenceFeature` or `SparseFeature` by name.
        name: of the op.
        example_names: strings that error messages call the examples by.

    Returns:
        By name a tensor of shape ``[batch, ...]``, or a `SparseTensor` of shape ``[batch, ?]``.

    Raises:
        ValueError: ``features`` is empty, or one of them is not as described.
        TypeError: a dtype is not one of the three.
    """
    with name_scope(name, "ParseExample", [serialized, example_names]):
        rows = convert_to_tensor(serialized, dtype=string, name="serialized")
        return _parse(_Parser(_checked(features), rows), "ParseExample", example_names)


def parse_single_example(
    serialized: Any,
    features: Mapping[str, Any] | None,
    name: str | None = None,
    example_names: Any = None,
) -> dict[str, Any]:
    """Parse one serialized `Example` message.

    Args:
        serialized: a string tensor of shape ``[]``.
        features: as for `parse_example`.
        name: of the op.
        example_names: a string that error messages call the example by.

    Returns:
        By name a tensor of the shape given, or a `SparseTensor` of shape ``[?]``.

    Raises:
        ValueError: ``features`` is empty, or one of them is not as described.
        TypeError: a dtype is not one of the three.
    """
    with name_scope(name, "ParseSingleExample", [serialized, example_names]):
        row = convert_to_tensor(serialized, dtype=string, name="serialized")
        if row.shape.ndims is None:
            row.set_shape(())
        if row.shape.ndims != 0:
            raise ValueError("Input serialized must be a scalar")
        return _parse(_Parser(_checked(features), row), "ParseSingleExample", example_names)


def parse_single_sequence_example(
    serialized: Any,
    context_features: Mapping[str, Any] | None = None,
    sequence_features: Mapping[str, Any] | None = None,
    example_name: Any = None,
    name: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse one serialized `SequenceExample` message.

    Args:
        serialized: a string tensor of shape ``[]``.
        context_features: what to take from its context, as for `parse_single_example`.
        sequence_features: what to take from its lists: a `FixedLenSequenceFeature`, with one row
            per step, or a `VarLenFeature` by name.
        example_name: a string that error messages call the example by.
        name: of the op.

    Returns:
        The context's tensors by name, and the lists', which have an axis of steps.

    Raises:
        ValueError: both mappings are empty, or a feature is not as described.
        TypeError: a dtype is not one of the three.
    """
    if not (context_features or sequence_features):
        raise ValueError(
            "Both context_features and sequence_features are None, but at least one should have"
            " values."
        )
    with name_scope(name, "ParseSingleSequenceExample", [serialized, example_name]):
        row = convert_to_tensor(serialized, dtype=string, name="serialized")
        row.set_shape(())
        context = _Parser(context_features or {}, row)
        steps = _Parser(sequence_features or {}, row, in_steps=True)
        names = _names(example_name)

        def kernel(step: Any, data: bytes, *rest: Any) -> Any:
            message = sequence_of(data)
            name, defaults = (rest[0], rest[1:]) if names else (None, rest)
            split = len(context.defaults)
            found = [
                *context.single_of(
                    Row(message.context.feature, None, _text(name)), defaults[:split]
                ),
                *steps.steps_of(Row(message.feature_lists.feature_list, None, _text(name))),
            ]
            return found[0] if len(found) == 1 else tuple(found)

        made = default_graph.op(
            "ParseSingleSequenceExample",
            [row, *names, *context.defaults],
            [*context.outputs, *steps.outputs],
            kernel,
        ).values()
        split = len(context.outputs)
        return context.results(made[:split]), steps.results(made[split:])


def parse_sequence_example(
    serialized: Any,
    context_features: Mapping[str, Any] | None = None,
    sequence_features: Mapping[str, Any] | None = None,
    example_names: Any = None,
    name: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]:
    """Parse a vector of serialized `SequenceExample` messages.

    Args:
        serialized: a string tensor of shape ``[batch]``.
        context_features: what to take from their contexts, as for `parse_example`.
        sequence_features: what to take from their lists, as for `parse_single_sequence_example`.
        example_names: strings that error messages call the examples by.
        name: of the op.

    Returns:
        The contexts' tensors by name; the lists', ``[batch, steps, ...]``, where the number of
        steps is the largest of the batch and shorter lists are filled up with zeros or empty
        strings; and how many steps each dense list had, int64 ``[batch]``.

    Raises:
        ValueError: both mappings are empty, or a feature is not as described.
        TypeError: a dtype is not one of the three.
    """
    if not (context_features or sequence_features):
        raise ValueError("Missing features.")
    with name_scope(name, "ParseSequenceExample", [serialized, example_names]):
        rows = convert_to_tensor(serialized, dtype=string, name="serialized")
        rows.set_shape([None])
        context = _Parser(context_features or {}, rows)
        steps = _Parser(sequence_features or {}, rows, in_steps=True)
        names = _names(example_names)
        dense = [key for key, (column, _) in steps.columns.items() if not column.is_sparse]

        def kernel(step: Any, data: Any, *rest: Any) -> Any:
            called, defaults = (rest[0], rest[1:]) if names else (None, rest)
            labels = _labels(called, len(data))
            pairs = list(zip(map(sequence_of, data), labels, strict=True))
            contexts = [
                Row(one.context.feature, at, label) for at, (one, label) in enumerate(pairs)
            ]
            lists = [
                Row(one.feature_lists.feature_list, at, label)
                for at, (one, label) in enumerate(pairs)
            ]
            found = context.batch_of(contexts, defaults[: len(context.defaults)])
            lengths = []
            for column, _ in steps.columns.values():
                assert isinstance(column, StepsColumn), "that is what is made in steps"
                arrays, counts = column.batch_with_lengths(lists)
                found.extend(arrays)
                if not column.is_sparse:
                    lengths.append(counts)
            found.extend(lengths)
            return found[0] if len(found) == 1 else tuple(found)

        count = rows.shape[0].value if rows.shape.ndims else None
        made = default_graph.op(
            "ParseSequenceExampleV2",
            [rows, *names, *context.defaults],
            [*context.outputs, *steps.outputs, *[(int64, TensorShape([count]))] * len(dense)],
            kernel,
        ).values()
        first, last = len(context.outputs), len(context.outputs) + len(steps.outputs)
        return (
            context.results(made[:first]),
            steps.results(made[first:last]),
            dict(zip(dense, made[last:], strict=True)),
        )


class _Parser:
    """The columns that a mapping of features asks for, and the outputs of an op that has them."""

    def __init__(
        self, features: Mapping[str, Any], rows: Tensor, *, in_steps: bool = False
    ) -> None:
        given = rows.shape
        self.rows = rows
        self.is_single = given.ndims == 0
        if not self.is_single and given.ndims not in (None, 1):
            raise ValueError(f"serialized: got shape {given}; expected a vector of strings")
        self._batch = () if self.is_single else (given[0].value if given.ndims else None,)
        self.columns: dict[str, tuple[Column, int | None]] = {}
        self.outputs: list[tuple[DType, TensorShape]] = []
        self.defaults: list[Tensor] = []
        make = _steps_column if in_steps else _column
        for key in sorted(features):
            column, shape = make(key, features[key])
            default = getattr(features[key], "default_value", None)
            place = None
            if default is not None and isinstance(column, DenseColumn | PaddedColumn):
                place = len(self.defaults)
                self.defaults.append(_default(column, default))
            self.columns[key] = column, place
            self._add_outputs(column, shape)
        _check_keys([column for column, _ in self.columns.values()])

    def _add_outputs(self, column: Column, shape: tuple[int | None, ...]) -> None:
        dtype = as_dtype({"float": "float32"}.get(column.kind, column.kind))
        if not column.is_sparse:
            self.outputs.append((dtype, TensorShape([*self._batch, *shape])))
            return
        rank = len(self._batch) + len(shape)
        self.outputs += [
            (int64, TensorShape([None, rank])),
            (dtype, TensorShape([None])),
            (int64, TensorShape([rank])),
        ]

    def single_of(self, row: Row, defaults: Sequence[Any]) -> list[Any]:
        """The values of all outputs for the context of one sequence example."""
        return [
            array
            for column, default in self._with_defaults(defaults)
            for array in column.single(values_of(column, [row], default), default)
        ]

    def batch_of(self, rows: Sequence[Row], defaults: Sequence[Any]) -> list[Any]:
        """The values of all outputs for the contexts of a batch of sequence examples."""
        return [
            array
            for column, default in self._with_defaults(defaults)
            for array in column.batch(values_of(column, rows, default), default)
        ]

    def steps_of(self, row: Row) -> list[Any]:
        """The values of all outputs for the lists of one sequence example."""
        columns = [column for column, _ in self.columns.values()]
        return [
            array
            for column in columns
            if isinstance(column, StepsColumn)
            for array in column.of_sequence(row)
        ]

    def _with_defaults(self, defaults: Sequence[Any]) -> list[tuple[Column, Array | None]]:
        return [
            (column, _default_of(column, place, defaults))
            for column, place in self.columns.values()
        ]

    def results(self, outputs: Sequence[Tensor]) -> dict[str, Any]:
        """The op's outputs by the names of the features."""
        found: dict[str, Any] = {}
        pending = iter(outputs)
        for key, (column, _) in self.columns.items():
            if column.is_sparse:
                found[key] = SparseTensor(next(pending), next(pending), next(pending))
                if isinstance(column, PairColumn):
                    found[key].note_shape(TensorShape([*self._batch, *column.shape]))
            else:
                found[key] = next(pending)
        return found


def _parse(parser: _Parser, op_type: str, example_names: Any) -> dict[str, Any]:
    """Make the op that parses a batch of examples, or one."""
    names = _names(example_names)
    examples = _Examples([(column, place) for column, place in parser.columns.values()])

    def kernel(step: Any, data: Any, *rest: Any) -> Any:
        called, defaults = (rest[0], rest[1:]) if names else (None, rest)
        if parser.is_single:
            if not isinstance(data, bytes):
                raise invalid("assertion failed: [Input serialized must be a scalar]")
            found = examples.single(data, defaults)
        else:
            labels = _labels(called, len(data))
            found = examples.batch(data.tolist(), labels, defaults)
        return found[0] if len(found) == 1 else tuple(found)

    inputs = [parser.rows, *names, *parser.defaults]
    return parser.results(default_graph.op(op_type, inputs, parser.outputs, kernel).values())


class _Examples:
    """Serialized examples to the tensors of columns.

    Args:
        columns: and of each the number of its default; None without one.
    """

    def __init__(self, columns: Sequence[tuple[Column, int | None]]) -> None:
        self._columns = columns
        parts = {part.key: part for column, _ in columns for part in column.parts}
        have_default = {column.key for column, place in columns if place is not None}
        self._keys = list(parts)
        kinds = {part.kind for part in parts.values()}
        fixed = _PER_BATCH + _PER_KIND * len(kinds)
        self._least = _PER_COLUMN + -(-fixed // len(parts))
        self._read_batch = BatchReader(list(parts.values()))
        self._read = RecordReader(list(parts.values()), have_default)

    def single(self, record: bytes, defaults: Sequence[Any]) -> list[Array]:
        """The tensors of one example."""
        values = dict(zip(self._keys, self._read.single(record), strict=True))
        return [
            array
            for column, place in self._columns
            for array in column.single(
                [values[part.key] for part in column.parts], _default_of(column, place, defaults)
            )
        ]

    def batch(
        self, records: list[bytes], names: Sequence[str | None], defaults: Sequence[Any]
    ) -> list[Array]:
        """The tensors of a batch."""
        values = self._values(records, names)
        return [
            array
            for column, place in self._columns
            for array in column.batch(
                [values[part.key] for part in column.parts], _default_of(column, place, defaults)
            )
        ]

    def _values(self, records: list[bytes], names: Sequence[str | None]) -> dict[str, Values]:
        """The values of the features by key: all at once, or one record after another."""
        # Smaller batches are read faster one record after another.
        if len(records) >= self._least and sum(map(len, records)) <= _LARGE * len(records):
            found = self._read_batch(records)
            if found is not None:
                values = dict(zip(self._keys, found, strict=True))
                if all(
                    column.fits(values[column.key], place is not None)
                    for column, place in self._columns
                ):
                    return values
        return dict(zip(self._keys, self._read.batch(records, names), strict=True))


def _names(example_names: Any) -> list[Tensor]:
    if example_names is None:
        return []
    return [convert_to_tensor(example_names, dtype=string, name="names")]


def _labels(called: Any, count: int) -> list[str | None]:
    """What messages call each of so many examples; None for those that have no name.

    Raises:
        InvalidArgumentError: there are names, but not as many.
    """
    names = () if called is None else np.ravel(np.asarray(called, object)).tolist()
    if len(names) not in (0, count):
        raise invalid(
            "Expected names have the same shape as serialized:"
            f" name.shape=[{len(names)}], serialized.shape=[{count}]"
        )
    return [_text(name) for name in names] or [None] * count


def _text(name: bytes | None) -> str | None:
    return None if name is None else name.decode(errors="replace")


def _checked(features: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if not features:
        what = "cannot be None" if features is None else "cannot be empty"
        raise ValueError(f"Invalid argument: features {what}.")
    return features


def _column(key: str, feature: Any) -> tuple[Column, tuple[int | None, ...]]:
    """The column that a feature asks for, and its shape without the axis of the batch."""
    _check_feature(key, feature)
    match feature:
        case FixedLenFeature():
            shape = _fixed_shape(key, feature)
            return DenseColumn(key, _kind(feature.dtype), shape), shape
        case FixedLenSequenceFeature(allow_missing=True):
            shape = _fixed_shape(key, feature)
            return PaddedColumn(key, _kind(feature.dtype), shape), (None, *shape)
        case FixedLenSequenceFeature():
            raise ValueError(
                "Unsupported: FixedLenSequenceFeature requires allow_missing to be True."
            )
        case VarLenFeature():
            return SparseColumn(key, _kind(feature.dtype)), (None,)
        case SparseFeature():
            keys = [feature.index_key] if isinstance(feature.index_key, str) else feature.index_key
            sizes = [feature.size] if isinstance(feature.size, int) else feature.size
            if len(keys) != len(sizes):
                raise ValueError(
                    f"Missing size or index_key of feature {key!r}: got {len(keys)} keys and"
                    f" {len(sizes)} sizes"
                )
            kind, shape = _kind(feature.dtype), tuple(int(size) for size in sizes)
            is_sorted = feature.already_sorted
            return PairColumn(keys, feature.value_key, kind, shape, is_sorted), shape
    raise ValueError(f"Unsupported {type(feature).__name__} {feature} for key {key!r}")


def _check_keys(columns: Sequence[Column]) -> None:
    """Features may share a key if all are sparse, and of one kind.

    Raises:
        ValueError: they do otherwise.
    """
    dense = [column.key for column in columns if not column.is_sparse]
    sparse: dict[str, str] = {}
    for part in (part for column in columns if column.is_sparse for part in column.parts):
        if sparse.setdefault(part.key, part.kind) != part.kind:
            raise ValueError(
                f"Conflicting type {sparse[part.key]} vs {part.kind} for feature {part.key}."
            )
    both = sparse.keys() & set(dense)
    if both:
        raise ValueError(
            f"Dense and sparse keys must not intersect; dense_keys: {dense}, sparse_keys:"
            f" {list(sparse)}, intersection: {both}"
        )


def _steps_column(key: str, feature: Any) -> tuple[Column, tuple[int | None, ...]]:
    """The same for a feature of every step of a sequence."""
    _check_feature(key, feature)
    match feature:
        case FixedLenSequenceFeature():
            shape = _fixed_shape(key, feature)
            kind, may_miss = _kind(feature.dtype), feature.allow_missing
            return StepsColumn(key, kind, shape, may_miss), (None, *shape)
        case VarLenFeature():
            return StepsColumn(key, _kind(feature.dtype), None, True), (None, None)
    raise ValueError(f"Unsupported {type(feature).__name__} {feature} for key {key!r}")


def _check_feature(key: str, feature: Any) -> None:
    """Raise ValueError unless a feature has a dtype, and a shape if it must have one."""
    for what in ("dtype", "shape"):
        if getattr(feature, what, feature) is None:
            missing = {"dtype": "type"}.get(what, what)
            stop = "" if isinstance(feature, VarLenFeature) else "."
            raise ValueError(f"Missing {missing} for feature {key}. Received {feature=!s}{stop}")


def _kind(dtype: Any) -> str:
    name = as_dtype(dtype).name
    if name not in KINDS:
        raise TypeError(
            f"Value passed to parameter 'dense_defaults' has DataType {name} not in list of"
            f" allowed values: {', '.join(sorted(KINDS))}"
        )
    return KINDS[name]


def _fixed_shape(key: str, feature: Any) -> tuple[int, ...]:
    sizes = TensorShape(feature.shape).as_list()
    if sizes and sizes[0] is None:
        raise ValueError(
            f"First dimension of shape for feature {key} unknown. Consider using"
            f" FixedLenSequenceFeature. Received feature={feature}."
        )
    if None in sizes:
        raise ValueError(
            f"All dimensions of shape for feature {key} need to be known but received"
            f" {feature.shape}."
        )
    return tuple(size for size in sizes if size is not None)


def _default(column: DenseColumn | PaddedColumn, value: Any) -> Tensor:
    """A default as a tensor, which must have as many elements as it stands for."""
    shape = column.shape if isinstance(column, DenseColumn) else ()
    dtype = as_dtype({"float": "float32"}.get(column.kind, column.kind))
    name = "key_" + re.sub(r"[^A-Za-z0-9_.\-/]", "_", column.key)
    tensor = convert_to_tensor(value, dtype=dtype, name=name)
    count, needed = tensor.shape.num_elements(), TensorShape(shape).num_elements()
    if count is not None and count != needed:
        raise ValueError(
            f"Cannot reshape a tensor with {count} elements to shape {list(shape)}"
            f" ({needed} elements), as the default of feature {column.key!r} must be"
        )
    return tensor


def _default_of(column: Column, place: int | None, defaults: Sequence[Any]) -> Array | None:
    """The default of a column; None if it has none."""
    return None if place is None else _array(defaults[place], column.kind)


def _array(value: Any, kind: str) -> Array:
    """A default as an array, which a scalar string is not by itself."""
    return np.asarray(value, TYPES[kind])
