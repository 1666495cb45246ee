"""Lookup tables: what they are filled with, and the index tables of vocabularies.

`fingerprint64` is FarmHash's: Geoff Pike, Google, 2014 (https://github.com/google/farmhash).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core import default_graph, dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.core.scopes import GraphKeys, add_to_collection, name_scope
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.ops.building import array, invalid
from aioqueue.compat.v1.ops.files import read_bytes
from aioqueue.compat.v1.ops.sparse import SparseTensor

_MASK = (1 << 64) - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_SEED = 81


def fingerprint64(text: bytes) -> int:
    size = len(text)
    if size <= 16:
        return _up_to_16(text, size)
    if size <= 32:
        y, z, _ = _ends(text, size, _K1)
        return _of_two(y, z, _K2 + size * 2)
    return _up_to_64(text, size) if size <= 64 else _longer(text, size)


def _word(text: bytes, place: int) -> int:
    return int.from_bytes(text[place : place + 8], "little")


def _turned(value: int, bits: int) -> int:
    value &= _MASK
    return (value >> bits | value << 64 - bits) & _MASK


def _mixed(value: int) -> int:
    value &= _MASK
    return value ^ value >> 47


def _of_two(first: int, second: int, factor: int) -> int:
    """A number of 64 bits for two of them."""
    one = _mixed((first ^ second) * factor)
    return _mixed((second ^ one) * factor) * factor & _MASK


def _up_to_16(text: bytes, size: int) -> int:
    if size >= 8:
        factor = _K2 + size * 2
        a, b = _word(text, 0) + _K2 & _MASK, _word(text, size - 8)
        c = _turned(b, 37) * factor + a & _MASK
        return _of_two(c, (_turned(a, 25) + b) * factor & _MASK, factor)
    if size >= 4:
        first = int.from_bytes(text[:4], "little")
        return _of_two(size + (first << 3), int.from_bytes(text[-4:], "little"), _K2 + size * 2)
    if size:
        y, z = text[0] + (text[size >> 1] << 8), size + (text[-1] << 2)
        return _mixed(y * _K2 ^ z * _K0) * _K2 & _MASK
    return _K2


def _ends(text: bytes, size: int, first: int) -> tuple[int, int, int]:
    """What the first and the last 16 bytes give: a number of each kind of sum, and the first."""
    factor = _K2 + size * 2
    a, b = _word(text, 0) * first & _MASK, _word(text, 8)
    c, d = _word(text, size - 8) * factor & _MASK, _word(text, size - 16) * _K2 & _MASK
    y = _turned(a + b, 43) + _turned(c, 30) + d & _MASK
    return y, a + _turned(b + _K2, 18) + c & _MASK, a


def _up_to_64(text: bytes, size: int) -> int:
    factor = _K2 + size * 2
    y, other, a = _ends(text, size, _K2)
    z = _of_two(y, other, factor)
    e, f = _word(text, 16) * factor & _MASK, _word(text, 24)
    g = (y + _word(text, size - 32)) * factor & _MASK
    h = (z + _word(text, size - 24)) * factor & _MASK
    return _of_two(
        _turned(e + f, 43) + _turned(g, 30) + h & _MASK, e + _turned(f + a, 18) + g & _MASK, factor
    )


def _weak(text: bytes, place: int, a: int, b: int) -> tuple[int, int]:
    """Two numbers of 32 bytes and two numbers."""
    w, x, y, z = (_word(text, place + step) for step in (0, 8, 16, 24))
    a += w
    b = _turned(b + a + z, 21)
    c = a
    a += x + y
    b += _turned(a, 44)
    return a + z & _MASK, b + c & _MASK


State = tuple[int, int, int, tuple[int, int], tuple[int, int]]


def _round(text: bytes, place: int, state: State, factor: int, weight: int) -> State:
    x, y, z, v, w = state
    x = _turned(x + y + v[0] + _word(text, place + 8), 37) * factor & _MASK
    y = _turned(y + v[1] + _word(text, place + 48), 42) * factor & _MASK
    x ^= w[1] * weight & _MASK
    y = y + v[0] * weight + _word(text, place + 40) & _MASK
    z = _turned(z + w[0], 33) * factor & _MASK
    v = _weak(text, place, v[1] * factor, x + w[0])
    w = _weak(text, place + 32, z + w[1], y + _word(text, place + 16))
    return z, y, x, v, w


def _longer(text: bytes, size: int) -> int:
    y = _SEED * _K1 + 113 & _MASK
    z = _mixed(y * _K2 + 113) * _K2 & _MASK
    x = _SEED * _K2 + _word(text, 0) & _MASK
    state: State = (x, y, z, (0, 0), (0, 0))
    last = (size - 1) // 64 * 64
    for place in range(0, last, 64):
        state = _round(text, place, state, _K1, 1)
    x, y, z, v, w = state
    factor = _K1 + ((z & 0xFF) << 1)
    w = (w[0] + (size - 1 & 63), w[1])
    v = (v[0] + w[0] & _MASK, v[1])
    w = (w[0] + v[0] & _MASK, w[1])
    x, y, z, v, w = _round(text, size - 64, (x, y, z, v, w), factor, 9)
    return _of_two(
        _of_two(v[0], w[0], factor) + _mixed(y) * _K0 + z & _MASK,
        _of_two(v[1], w[1], factor) + x & _MASK,
        factor,
    )


class TextFileIndex:
    """What a column of a text file is, other than a number."""

    WHOLE_LINE = -2
    LINE_NUMBER = -1


class _TensorInitializer:
    def __init__(
        self,
        inputs: list[Tensor],
        pairs: Callable[..., Iterable[tuple[Any, Any]]],
        key_dtype: DType,
        value_dtype: DType,
        scope: str = "table_init",
    ) -> None:
        self._inputs, self._pairs, self._scope = inputs, pairs, scope
        self.key_dtype, self.value_dtype = key_dtype, value_dtype

    def initialize(self, table: HashTable) -> Operation:
        def kernel(step: Any, *values: Any) -> None:
            table.fill(step, self._pairs(*(array(one).ravel().tolist() for one in values)))

        kind = "LookupTableImportV2"
        with name_scope(self._scope, None, self._inputs):
            return default_graph.op(kind, self._inputs, (), kernel, name=kind)


class KeyValueTensorInitializer(_TensorInitializer):
    """Fills a table from two vectors of one length."""

    def __init__(
        self,
        keys: Any,
        values: Any,
        key_dtype: Any = None,
        value_dtype: Any = None,
        name: str | None = None,
    ) -> None:
        with name_scope(name or "key_value_init", None, [keys, values]) as scope:
            self.keys: Tensor = convert_to_tensor(keys, key_dtype, name="keys")
            self.values: Tensor = convert_to_tensor(values, value_dtype, name="values")
        if self.keys.dtype.is_floating:
            raise TypeError(f"keys: got {self.keys.dtype.name}; expected strings or integers")
        inputs, pairs = [self.keys, self.values], partial(zip, strict=True)
        super().__init__(inputs, pairs, self.keys.dtype, self.values.dtype, scope)


class TextFileInitializer:
    """Fills a table from the lines of a text file, by columns or one of `TextFileIndex`."""

    def __init__(
        self,
        filename: Any,
        key_dtype: Any,
        key_index: int,
        value_dtype: Any,
        value_index: int,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str | None = None,
        value_index_offset: int = 0,
    ) -> None:
        self.key_dtype, self.value_dtype = dtypes.as_dtype(key_dtype), dtypes.as_dtype(value_dtype)
        self._columns = (
            (key_index, self.key_dtype, 0),
            (value_index, self.value_dtype, value_index_offset),
        )
        for what, (index, dtype, _) in zip(("key", "value"), self._columns, strict=True):
            if index == TextFileIndex.LINE_NUMBER and dtype != dtypes.int64:
                raise ValueError(f"{what}: the number of a line is int64, got {dtype.name}")
            if index == TextFileIndex.WHOLE_LINE and dtype != dtypes.string:
                raise ValueError(f"{what}: a whole line is a string, got {dtype.name}")
        self._filename = filename
        self._size = vocab_size
        self._delimiter = delimiter.encode()
        self._name = name or "text_file_init"

    def initialize(self, table: HashTable) -> Operation:
        kind = "InitializeTableFromTextFileV2"
        with name_scope(self._name, None, []):
            path = convert_to_tensor(self._filename, dtypes.string, name="asset_filepath")
            add_to_collection(GraphKeys.ASSET_FILEPATHS, path)

            def kernel(step: Any, name: bytes) -> None:
                table.fill(step, self._pairs(name))

            return default_graph.op(kind, [path], (), kernel, name=kind)

    def _pairs(self, name: bytes) -> list[tuple[Any, Any]]:
        lines = read_bytes(name).split(b"\n")
        if lines and not lines[-1]:
            lines.pop()
        if self._size is not None:
            if len(lines) < self._size:
                raise invalid(
                    f"Invalid vocab_size in {name.decode()}: expected {self._size} but got"
                    f" {len(lines)}"
                )
            lines = lines[: self._size]
        key, value = self._columns
        return [
            (self._field(name, number, line, *key), self._field(name, number, line, *value))
            for number, line in enumerate(lines)
        ]

    def _field(
        self, name: bytes, number: int, line: bytes, index: int, dtype: DType, offset: int
    ) -> Any:
        if index == TextFileIndex.LINE_NUMBER:
            return number + offset
        line = line.removesuffix(b"\r")
        if index == TextFileIndex.WHOLE_LINE:
            return line
        parts = line.split(self._delimiter)
        if index >= len(parts):
            raise invalid(
                f"Invalid number of columns in {name.decode()} line {number}"
                f" ({line.decode(errors='replace')}) : expected at least {index + 1} got"
                f" {len(parts)}"
            )
        return parts[index] if dtype == dtypes.string else dtype.numpy.type(parts[index]).item()


class _Table:
    def __init__(self, key_dtype: DType, value_dtype: DType, name: str) -> None:
        self.key_dtype = key_dtype
        self.value_dtype = value_dtype
        self.name = name

    def lookup(self, keys: Any, name: str | None = None) -> Any:
        """The values of some keys: a tensor of their shape, or a sparse one for sparse ones."""
        if isinstance(keys, SparseTensor):
            return SparseTensor(keys.indices, self.lookup(keys.values, name), keys.dense_shape)
        tensor = convert_to_tensor(keys)
        if tensor.dtype != self.key_dtype:
            raise TypeError(
                f"Dtype of argument `keys` must be {self.key_dtype!r}, received: {tensor.dtype!r}"
            )
        return self._found(tensor, name)

    def size(self, name: str | None = None) -> Tensor:
        """How many keys, or numbers with those beyond, it has; none before it is filled."""

        def kernel(step: Any) -> Any:
            return np.int64(self.count(step))

        return self._op("Size", [], (dtypes.int64, TensorShape([])), kernel, name)

    def _found(self, keys: Tensor, name: str | None) -> Tensor:
        raise NotImplementedError

    def count(self, step: Any) -> int:
        raise NotImplementedError

    def _op(
        self, kind: str, inputs: list[Tensor], output: Any, kernel: Any, name: str | None
    ) -> Tensor:
        # What finds values is named after the method.
        label = "Lookup" if kind == "Find" else kind
        with name_scope(name, f"{self.name}_{label}", inputs) as scope:
            made = default_graph.op(f"LookupTable{kind}V2", inputs, [output], kernel, name=scope)
            return made.outputs[0]


def _looked_up(keys: Any, value_of: Callable[[Any], Any], dtype: DType) -> Any:
    given = array(keys)
    made = np.empty(given.size, dtype.numpy)
    for place, key in enumerate(given.ravel().tolist()):
        made[place] = value_of(key)
    made = made.reshape(given.shape)
    return made if made.ndim else made[()]


class _Contents:
    pairs: dict[Any, Any] | None = None


class HashTable(_Table):
    """A table that is filled once, when its ``init`` runs, as `tables_initializer` does."""

    def __init__(
        self,
        initializer: Any,
        default_value: Any,
        shared_name: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(initializer.key_dtype, initializer.value_dtype, name or "hash_table")
        self.default_value = convert_to_tensor(default_value, self.value_dtype, name="Const")
        with name_scope(name, "hash_table", []) as scope:
            self.name = scope.rstrip("/").rpartition("/")[2]
        self.init: Operation = initializer.initialize(self)
        self.initializer = self.init
        add_to_collection(GraphKeys.TABLE_INITIALIZERS, self.init)

    def _contents(self, step: Any) -> _Contents:
        found: _Contents = step.resources.get_or_create(("table", self), _Contents)
        return found

    def fill(self, step: Any, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Put keys and values into the table of a session; the same again changes nothing."""
        found: dict[Any, Any] = {}
        for key, value in pairs:
            if found.setdefault(key, value) != value:
                raise errors.FailedPreconditionError(
                    None,
                    None,
                    f"HashTable has different value for same key. Key {_text(key)} has"
                    f" {_text(found[key])} and trying to add value {_text(value)}",
                )
        self._contents(step).pairs = found

    def pairs(self, step: Any) -> Mapping[Any, Any]:
        found = self._contents(step).pairs
        if found is None:
            raise errors.FailedPreconditionError(None, None, "Table not initialized.")
        return found

    def _found(self, keys: Tensor, name: str | None) -> Tensor:
        def kernel(step: Any, keys: Any, default: Any) -> Any:
            pairs = self.pairs(step)
            return _looked_up(keys, lambda key: pairs.get(key, default), self.value_dtype)

        return self._op(
            "Find", [keys, self.default_value], (self.value_dtype, keys.shape), kernel, name
        )

    def count(self, step: Any) -> int:
        return len(self._contents(step).pairs or ())


class IdTableWithHashBuckets(_Table):
    """A table that gives strings it has not a number beyond its own, by their fingerprints."""

    def __init__(
        self,
        table: HashTable | None,
        num_oov_buckets: int,
        hasher_spec: Any = None,
        name: str | None = None,
        key_dtype: Any = None,
    ) -> None:
        dtype = dtypes.string if key_dtype is None else dtypes.as_dtype(key_dtype)
        inner = f"{table.name}_" if table is not None else ""
        super().__init__(dtype, dtypes.int64, name or f"{inner}string_to_index")
        if table is None and num_oov_buckets <= 0:
            raise ValueError(f"num_oov_buckets: got {num_oov_buckets!r}; expected at least 1")
        self._table = table
        self._buckets = num_oov_buckets

    @property
    def init(self) -> Operation:
        if self._table is not None:
            return self._table.init
        return default_graph.op("NoOp", (), (), lambda step: None)

    initializer = init

    def _found(self, keys: Tensor, name: str | None) -> Tensor:
        def kernel(step: Any, keys: Any) -> Any:
            pairs = {} if self._table is None else self._table.pairs(step)

            def number(key: Any) -> int:
                found = pairs.get(key)
                if found is not None:
                    return int(found)
                text = key if isinstance(key, bytes) else str(key).encode()
                return len(pairs) + fingerprint64(text) % self._buckets

            return _looked_up(keys, number, dtypes.int64)

        return self._op("Find", [keys], (dtypes.int64, keys.shape), kernel, name)

    def count(self, step: Any) -> int:
        return self._buckets + (0 if self._table is None else self._table.count(step))


class StaticVocabularyTable(IdTableWithHashBuckets):
    """A table from strings to numbers, with numbers beyond for strings that it has not."""

    def __init__(
        self,
        initializer: Any,
        num_oov_buckets: int,
        lookup_key_dtype: Any = None,
        name: str | None = None,
    ) -> None:
        if num_oov_buckets <= 0:
            raise ValueError("oov_buckets must be > 0.")
        table = None if initializer is None else HashTable(initializer, -1)
        keys = lookup_key_dtype or (None if initializer is None else initializer.key_dtype)
        called = name or (None if table is None else table.name)
        super().__init__(table, num_oov_buckets, name=called, key_dtype=keys)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def index_table_from_tensor(
    vocabulary_list: Any = None,
    num_oov_buckets: int = 0,
    default_value: int = -1,
    hasher_spec: Any = None,
    dtype: Any = dtypes.string,
    name: str | None = None,
    mapping: Any = None,
) -> Any:
    """A table from strings to their places in a list."""
    given = mapping if vocabulary_list is None else vocabulary_list
    if given is None:
        raise ValueError("`vocabulary_list` must be specified.")
    if num_oov_buckets < 0:
        raise ValueError(
            f"`num_oov_buckets` must be greater than or equal to 0, got {num_oov_buckets}."
        )
    wanted = dtypes.as_dtype(dtype)
    with name_scope(name, "string_to_index", []):
        keys = convert_to_tensor(given)
        if keys.dtype.is_integer != wanted.is_integer or keys.dtype.is_floating:
            kind = "integer" if wanted.is_integer else repr(wanted)
            raise ValueError(f"Invalid `dtype`: Expected {kind}, got {keys.dtype!r}.")
        pairs = lambda keys: ((key, place) for place, key in enumerate(keys))  # noqa: E731
        source = _TensorInitializer([keys], pairs, wanted, dtypes.int64)
        return _with_buckets(source, default_value, num_oov_buckets)


def _with_buckets(source: Any, default_value: int, num_oov_buckets: int) -> Any:
    table = HashTable(source, default_value)
    if not num_oov_buckets:
        return table
    return IdTableWithHashBuckets(
        table, num_oov_buckets, name=table.name, key_dtype=source.key_dtype
    )


def index_table_from_file(
    vocabulary_file: Any = None,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: int = -1,
    hasher_spec: Any = None,
    key_dtype: Any = dtypes.string,
    name: str | None = None,
    key_column_index: int = TextFileIndex.WHOLE_LINE,
    value_column_index: int = TextFileIndex.LINE_NUMBER,
    delimiter: str = "\t",
) -> Any:
    """A table from the lines of a file to their numbers; see `index_table_from_tensor`."""
    columns = key_dtype, key_column_index, dtypes.int64, value_column_index
    with name_scope(name, "string_to_index", []):
        source = _of_file(vocabulary_file, columns, vocab_size, delimiter)
        return _with_buckets(source, default_value, num_oov_buckets)


def index_to_string_table_from_tensor(
    vocabulary_list: Any = None,
    default_value: Any = "UNK",
    name: str | None = None,
    mapping: Any = None,
) -> HashTable:
    """A table from places in a list to its strings."""
    given = mapping if vocabulary_list is None else vocabulary_list
    if given is None:
        raise ValueError("`vocabulary_list` argument must be specified.")
    with name_scope(name, "index_to_string", []):
        strings = convert_to_tensor(given, dtypes.string)
        source = _TensorInitializer([strings], enumerate, dtypes.int64, strings.dtype)
        return HashTable(source, default_value)


def index_to_string_table_from_file(
    vocabulary_file: Any = None,
    vocab_size: int | None = None,
    default_value: Any = "UNK",
    name: str | None = None,
    key_column_index: int = TextFileIndex.LINE_NUMBER,
    value_column_index: int = TextFileIndex.WHOLE_LINE,
    delimiter: str = "\t",
) -> HashTable:
    """A table from numbers of lines to the lines of a file."""
    columns = dtypes.int64, key_column_index, dtypes.string, value_column_index
    with name_scope(name, "index_to_string", []):
        source = _of_file(vocabulary_file, columns, vocab_size, delimiter)
        return HashTable(source, default_value)


def _of_file(
    vocabulary_file: Any, columns: Any, vocab_size: int | None, delimiter: str
) -> TextFileInitializer:
    if vocabulary_file is None or (isinstance(vocabulary_file, str) and not vocabulary_file):
        raise ValueError("`vocabulary_file` must be specified and must not be empty.")
    if vocab_size is not None and vocab_size < 1:
        raise ValueError(f"`vocab_size` must be greater than 0, got {vocab_size}.")
    options: Any = {"vocab_size": vocab_size, "delimiter": delimiter, "name": "table_init"}
    return TextFileInitializer(vocabulary_file, *columns, **options)
