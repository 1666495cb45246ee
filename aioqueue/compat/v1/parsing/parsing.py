"""``parse_example`` and its like: ops that turn serialized examples into tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from aioqueue.compat.v1.core import default_graph
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType, as_dtype, int64, string
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.ops.building import invalid, shape_text
from aioqueue.compat.v1.ops.effects import c_escaped
from aioqueue.compat.v1.ops.sparse import SparseTensor
from aioqueue.compat.v1.parsing.columns import (
    TYPES,
    Array,
    Chunk,
    Column,
    DenseColumn,
    PaddedColumn,
    PairColumn,
    SparseColumn,
    Values,
)
from aioqueue.compat.v1.parsing.records import RecordReader
from aioqueue.compat.v1.protos import KINDS as LISTS
from aioqueue.compat.v1.protos import example_classes, feature_values

__all__ = (
    "FixedLenFeature", "FixedLenSequenceFeature", "SparseFeature", "VarLenFeature", "parse_example",
    "parse_single_example", "parse_single_sequence_example",
)  # fmt: skip

KINDS = {"string": "string", "float32": "float", "int64": "int64"}
"""The dtypes that features may have, each with what messages call it."""
DTYPES = {kind: name for name, kind in KINDS.items()}


class FixedLenFeature(NamedTuple):
    """A feature with the same number of values in every example: a dense tensor."""

    shape: Any
    dtype: Any
    default_value: Any = None


class VarLenFeature(NamedTuple):
    """A feature with any number of values: a `SparseTensor`."""

    dtype: Any


class FixedLenSequenceFeature(NamedTuple):
    """A feature with any number of rows of one shape: a dense tensor, padded within a batch."""

    shape: Any
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None


class SparseFeature(NamedTuple):
    """A vector with few values, stored as two features: where they are, and what they are."""

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
    """Parse a vector of serialized `Example` messages."""
    with name_scope(name, "ParseExample", [serialized, example_names]):
        rows = convert_to_tensor(serialized, dtype=string, name="serialized")
        return _parse(_Parser(_checked(features), rows), "ParseExample", example_names)


def parse_single_example(
    serialized: Any,
    features: Mapping[str, Any] | None,
    name: str | None = None,
    example_names: Any = None,
) -> dict[str, Any]:
    """Parse one serialized `Example` message."""
    with name_scope(name, "ParseSingleExample", [serialized, example_names]):
        row = convert_to_tensor(serialized, dtype=string, name="serialized")
        if row.shape.ndims is None:
            row.set_shape(())
        if row.shape.ndims != 0:
            raise ValueError("Input serialized must be a scalar")
        return _parse(_Parser(_checked(features), row), "ParseSingleExample", example_names)


def _parse(parser: _Parser, op_type: str, example_names: Any) -> dict[str, Any]:
    """Make the op that parses a batch of examples, or one."""
    names = _names(example_names)
    columns = [column for column, _ in parser.columns.values()]
    parts = {part.key: part for column in columns for part in column.parts}
    have_default = {column.key for column, at in parser.columns.values() if at is not None}
    reader = RecordReader(list(parts.values()), have_default)

    def kernel(step: Any, data: Any, *rest: Any) -> Any:
        called, defaults = (rest[0], rest[1:]) if names else (None, rest)
        if not parser.is_single:
            values = reader.batch(data.tolist(), _labels(called, len(data)))
        elif isinstance(data, bytes):
            values = reader.single(data)
        else:
            raise invalid("assertion failed: [Input serialized must be a scalar]")
        by_key = dict(zip(parts, values, strict=True))
        found = parser.arrays(
            lambda column, _: [by_key[part.key] for part in column.parts], defaults
        )
        return found[0] if len(found) == 1 else tuple(found)

    inputs = [parser.rows, *names, *parser.defaults]
    return parser.results(default_graph.op(op_type, inputs, parser.outputs, kernel).values())


def parse_single_sequence_example(
    serialized: Any,
    context_features: Mapping[str, Any] | None = None,
    sequence_features: Mapping[str, Any] | None = None,
    example_name: Any = None,
    name: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse one serialized `SequenceExample` message: its context, and its lists of steps."""
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
            message = _sequence_of(data)
            called, defaults = (_text(rest[0]), rest[1:]) if names else (None, rest)
            features = message.context.feature
            found = context.arrays(
                lambda column, default: [
                    Values.of([_chunk(features, part, default)], part.kind) for part in column.parts
                ],
                defaults,
            )
            lists = message.feature_lists.feature_list
            for column, _ in steps.columns.values():
                assert isinstance(column, _StepsColumn), "that is what is made in steps"
                found += column.of_sequence(lists, called or "<unknown>")
            return found[0] if len(found) == 1 else tuple(found)

        made = default_graph.op(
            "ParseSingleSequenceExample",
            [row, *names, *context.defaults],
            [*context.outputs, *steps.outputs],
            kernel,
        ).values()
        split = len(context.outputs)
        return context.results(made[:split]), steps.results(made[split:])


def _sequence_of(data: bytes) -> Any:
    message = example_classes()["SequenceExample"]()
    try:
        message.ParseFromString(data)
    except Exception as error:  # DecodeError; its place differs between versions of protobuf
        raise invalid(
            f"Could not parse sequence example input, value: '{c_escaped(data)}'"
        ) from error
    return message


def _chunk(features: Mapping[str, Any], column: Column, default: Array | None) -> Chunk | None:
    """The values of a feature of a context, or of a step; None if it is not there."""
    found = feature_values(features.get(column.key))
    if found is None:
        if column.must_be_there and default is None:
            raise invalid(
                f"Feature: {column.key} (data type: {column.kind}) is required but could not be"
                " found."
            )
        return None
    kind, values = LISTS[found[0]], found[1]
    what = column.refusal(len(values)) if kind == column.kind else column.wrong_kind(kind)
    if what:
        raise invalid(f"Key: {column.key}.  {what}")
    return np.array(values, "<f4").tobytes() if kind == "float" else list(values)


class _StepsColumn(Column):
    """One feature of every step of sequences."""

    def __init__(self, key: str, kind: str, shape: tuple[int, ...] | None, may_miss: bool) -> None:
        super().__init__(key, kind)
        self.shape = shape
        self.is_sparse = shape is None
        self._may_miss = may_miss
        self._of_step: Column = (
            SparseColumn(key, kind) if shape is None else DenseColumn(key, kind, shape)
        )

    def of_sequence(self, lists: Mapping[str, Any], name: str) -> tuple[Array, ...]:
        """The arrays of one sequence."""
        if self.key not in lists and not self._may_miss:
            raise invalid(
                f"Name: {name}, Feature list '{self.key}' is required but could"
                " not be found.  Did you mean to include it in"
                " feature_list_dense_missing_assumed_empty or feature_list_dense_defaults?"
            )
        steps = lists[self.key].feature if self.key in lists else ()
        counts = [self._count(name, at, step) for at, step in enumerate(steps)]
        if self.shape is not None:
            self._check_counts(name, counts, self.shape)
        column = self._of_step
        rows = [_chunk({self.key: step}, column, None) for step in steps]
        return column.batch([Values.of(rows, self.kind)], None)

    def _count(self, name: str, at: int, step: Any) -> int:
        found = feature_values(step)
        if found is None:
            return 0
        if LISTS[found[0]] != self.kind:
            raise invalid(
                f"Name: {name}, Feature list: {self.key}, Index: {at}.  Data"
                f" types don't match. Expected type: {self.kind}"
            )
        return len(found[1])

    def _check_counts(self, name: str, counts: Sequence[int], shape: tuple[int, ...]) -> None:
        size, total = int(np.prod(shape, dtype=int)), sum(counts)
        if size and total % size:
            raise invalid(
                f"Feature list '{self.key}' has an unexpected number of values.  Total values"
                f" size: {total} is not consistent with output shape: {shape_text((None, *shape))}"
            )
        for at, count in enumerate(counts):
            if count != size:
                raise invalid(
                    f"Name: {name}, Key: {self.key}, Index: {at}.  Number of"
                    f" values != expected.  values size: {count} but output shape:"
                    f" {shape_text(shape)}"
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
        dtype = as_dtype(DTYPES[column.kind])
        if not column.is_sparse:
            self.outputs.append((dtype, TensorShape([*self._batch, *shape])))
            return
        rank = len(self._batch) + len(shape)
        self.outputs += [
            (int64, TensorShape([None, rank])),
            (dtype, TensorShape([None])),
            (int64, TensorShape([rank])),
        ]

    def arrays(
        self, values: Callable[[Column, Array | None], Sequence[Values]], defaults: Sequence[Any]
    ) -> list[Any]:
        """The values of all outputs."""
        found: list[Any] = []
        for column, place in self.columns.values():
            # A scalar string is no array by itself.
            default = None if place is None else np.asarray(defaults[place], TYPES[column.kind])
            make = column.single if self.is_single else column.batch
            found += make(values(column, default), default)
        return found

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


def _names(example_names: Any) -> list[Tensor]:
    if example_names is None:
        return []
    return [convert_to_tensor(example_names, dtype=string, name="names")]


def _labels(called: Any, count: int) -> list[str | None]:
    """What messages call each of so many examples; None for those that have no name."""
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
    """Features may share a key if all are sparse, and of one kind."""
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
            return _StepsColumn(key, kind, shape, may_miss), (None, *shape)
        case VarLenFeature():
            return _StepsColumn(key, _kind(feature.dtype), None, True), (None, None)
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
    dtype = as_dtype(DTYPES[column.kind])
    name = "key_" + re.sub(r"[^A-Za-z0-9_.\-/]", "_", column.key)
    tensor = convert_to_tensor(value, dtype=dtype, name=name)
    count, needed = tensor.shape.num_elements(), TensorShape(shape).num_elements()
    if count is not None and count != needed:
        raise ValueError(
            f"Cannot reshape a tensor with {count} elements to shape {list(shape)}"
            f" ({needed} elements), as the default of feature {column.key!r} must be"
        )
    return tensor
