"""Lookup tables: `HashTable`, that of a vocabulary with buckets, and `MutableHashTable`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core import default_graph, dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.default_graph import get_default_graph
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.core.scopes import GraphKeys, add_to_collection, name_scope
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.ops.building import array
from aioqueue.compat.v1.ops.hashing import fingerprint64
from aioqueue.compat.v1.ops.sparse import SparseTensor

__all__ = ("HashTable", "IdTableWithHashBuckets", "MutableHashTable", "StaticVocabularyTable")

SCALAR = TensorShape([])


class _Contents:
    """What a table has in a session; None before it is initialised."""

    def __init__(self) -> None:
        self.pairs: dict[Any, Any] | None = None


def _contents(step: Any, key: object) -> _Contents:
    found: _Contents = step.resources.get_or_create(("table", key), _Contents)
    return found


class _Table:
    """What all tables have in common: lookup, size, names, dtypes."""

    def __init__(self, key_dtype: DType, value_dtype: DType, name: str) -> None:
        self.key_dtype = key_dtype
        self.value_dtype = value_dtype
        self._name = name

    @property
    def name(self) -> str:
        """The name of the table."""
        return self._name

    def lookup(self, keys: Any, name: str | None = None) -> Any:
        """The values of some keys: a tensor of their shape, or a sparse one for sparse ones.

        Raises:
            TypeError: the keys have another dtype.
        """
        if isinstance(keys, SparseTensor):
            return SparseTensor(keys.indices, self.lookup(keys.values, name), keys.dense_shape)
        tensor = convert_to_tensor(keys)
        if tensor.dtype != self.key_dtype:
            raise TypeError(
                f"Dtype of argument `keys` must be {self.key_dtype!r}, received: {tensor.dtype!r}"
            )
        return self._found(tensor, name)

    def _found(self, keys: Tensor, name: str | None) -> Tensor:
        raise NotImplementedError

    def _op(
        self, kind: str, inputs: list[Tensor], outputs: Any, kernel: Any, name: str | None
    ) -> Operation:
        # What finds values is named after the method.
        label = "Lookup" if kind == "Find" else kind
        with name_scope(name, f"{self._name}_{label}", inputs) as scope:
            return default_graph.op(f"LookupTable{kind}V2", inputs, outputs, kernel, name=scope)


def _looked_up(keys: Any, value_of: Callable[[Any], Any], dtype: DType) -> Any:
    """Values by keys, in the shape of these."""
    given = array(keys)
    made = np.empty(given.size, dtype.numpy)
    for place, key in enumerate(given.ravel().tolist()):
        made[place] = value_of(key)
    made = made.reshape(given.shape)
    return made if made.ndim else made[()]


class HashTable(_Table):
    """A table that is filled once, when its ``init`` runs, as `tables_initializer` does.

    Args:
        initializer: a `KeyValueTensorInitializer` or a `TextFileInitializer`.
        default_value: the value of all other keys.
        shared_name: accepted.
        name: of the table.
    """

    def __init__(
        self,
        initializer: Any,
        default_value: Any,
        shared_name: str | None = None,
        name: str | None = None,
    ) -> None:
        del shared_name
        super().__init__(initializer.key_dtype, initializer.value_dtype, name or "hash_table")
        self._key = object()
        self._default = convert_to_tensor(default_value, self.value_dtype, name="Const")
        with name_scope(name, "hash_table", []) as scope:
            self._name = scope.rstrip("/").rpartition("/")[2]
        self._init: Operation = initializer.initialize(self)
        add_to_collection(GraphKeys.TABLE_INITIALIZERS, self._init)

    @property
    def init(self) -> Operation:
        """The op that fills it."""
        return self._init

    @property
    def initializer(self) -> Operation:
        """The same."""
        return self._init

    @property
    def default_value(self) -> Tensor:
        """The value of all keys that it has not."""
        return self._default

    def fill(self, step: Any, pairs: Any) -> None:
        """Put what it consists of into the table of a session; the same again changes nothing.

        Args:
            step: of the session.
            pairs: keys and values.

        Raises:
            FailedPreconditionError: a key is there twice, with different values.
        """
        found: dict[Any, Any] = {}
        for key, value in pairs:
            if found.setdefault(key, value) != value:
                raise errors.FailedPreconditionError(
                    None,
                    None,
                    f"HashTable has different value for same key. Key {_text(key)} has"
                    f" {_text(found[key])} and trying to add value {_text(value)}",
                )
        _contents(step, self._key).pairs = found

    def pairs(self, step: Any) -> Mapping[Any, Any]:
        """What it has in a session.

        Raises:
            FailedPreconditionError: it was not filled.
        """
        found = _contents(step, self._key).pairs
        if found is None:
            raise errors.FailedPreconditionError(None, None, "Table not initialized.")
        return found

    def _found(self, keys: Tensor, name: str | None) -> Tensor:
        def kernel(step: Any, keys: Any, default: Any) -> Any:
            pairs = self.pairs(step)
            return _looked_up(keys, lambda key: pairs.get(key, default), self.value_dtype)

        outputs = [(self.value_dtype, keys.shape)]
        return self._op("Find", [keys, self._default], outputs, kernel, name).outputs[0]

    def count(self, step: Any) -> int:
        """How many keys it has in a step; none before it is filled."""
        return len(_contents(step, self._key).pairs or ())

    def size(self, name: str | None = None) -> Tensor:
        """How many keys it has, int64; none before it is filled."""

        def kernel(step: Any) -> Any:
            return np.int64(self.count(step))

        return self._op("Size", [], [(dtypes.int64, SCALAR)], kernel, name).outputs[0]


class IdTableWithHashBuckets(_Table):
    """A table from strings to numbers that gives strings it has not a number beyond its own.

    Args:
        table: a `HashTable` to int64; None if no string has a number of its own.
        num_oov_buckets: how many numbers there are beyond; 0 for none.
        hasher_spec: accepted; strings are hashed by their fingerprints, as in TensorFlow.
        name: of the ops.
        key_dtype: of the keys; strings if None.
    """

    def __init__(
        self,
        table: HashTable | None,
        num_oov_buckets: int,
        hasher_spec: Any = None,
        name: str | None = None,
        key_dtype: Any = None,
    ) -> None:
        del hasher_spec
        dtype = dtypes.string if key_dtype is None else dtypes.as_dtype(key_dtype)
        inner = f"{table.name}_" if table is not None else ""
        super().__init__(dtype, dtypes.int64, name or f"{inner}string_to_index")
        if table is None and num_oov_buckets <= 0:
            raise ValueError(f"num_oov_buckets: got {num_oov_buckets!r}; expected at least 1")
        self._table = table
        self._buckets = num_oov_buckets

    @property
    def init(self) -> Operation:
        """The op that fills it."""
        if self._table is not None:
            return self._table.init
        return default_graph.op("NoOp", (), (), lambda step: None)

    initializer = init

    def _pairs(self, step: Any) -> Mapping[Any, Any]:
        return {} if self._table is None else self._table.pairs(step)

    def _found(self, keys: Tensor, name: str | None) -> Tensor:
        def kernel(step: Any, keys: Any) -> Any:
            pairs = self._pairs(step)
            size = len(pairs)

            def number(key: Any) -> int:
                found = pairs.get(key)
                if found is not None:
                    return int(found)
                text = key if isinstance(key, bytes) else str(key).encode()
                return size + fingerprint64(text) % self._buckets

            return _looked_up(keys, number, dtypes.int64)

        return self._op("Find", [keys], [(dtypes.int64, keys.shape)], kernel, name).outputs[0]

    def size(self, name: str | None = None) -> Tensor:
        """How many numbers there are, those beyond included; int64."""

        def kernel(step: Any) -> Any:
            known = 0 if self._table is None else self._table.count(step)
            return np.int64(known + self._buckets)

        return self._op("Size", [], [(dtypes.int64, SCALAR)], kernel, name).outputs[0]


class StaticVocabularyTable(IdTableWithHashBuckets):
    """A table from strings to numbers, with numbers beyond for strings that it has not.

    Args:
        initializer: a `KeyValueTensorInitializer` or a `TextFileInitializer` to int64; None if no
            string has a number of its own.
        num_oov_buckets: how many numbers there are beyond, one at least.
        lookup_key_dtype: of the keys; that of the initializer if None.
        name: of the ops.

    Raises:
        ValueError: there are no numbers beyond.
    """

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


class MutableHashTable(_Table):
    """A table that ops put values into.

    Args:
        key_dtype: the keys' dtype.
        value_dtype: the values' dtype.
        default_value: the value of all other keys.
        shared_name: accepted.
        name: of the table.
        checkpoint: accepted; nothing is saved.
    """

    def __init__(
        self,
        key_dtype: Any,
        value_dtype: Any,
        default_value: Any,
        shared_name: str | None = None,
        name: str = "MutableHashTable",
        checkpoint: bool = True,
    ) -> None:
        del shared_name, checkpoint
        super().__init__(
            dtypes.as_dtype(key_dtype),
            dtypes.as_dtype(value_dtype),
            get_default_graph().unique_name(name),
        )
        self._default = convert_to_tensor(default_value, self.value_dtype)
        self._shape = self._default.shape
        self._key = object()

    def _pairs(self, step: Any) -> dict[Any, Any]:
        contents = _contents(step, self._key)
        if contents.pairs is None:
            contents.pairs = {}
        return contents.pairs

    def _found(self, keys: Tensor, name: str | None) -> Tensor:
        def kernel(step: Any, keys: Any, default: Any) -> Any:
            pairs = self._pairs(step)
            given = array(keys)
            shape = (*given.shape, *np.shape(default))
            found = [pairs.get(key, default) for key in given.ravel().tolist()]
            made = np.empty((len(found), *np.shape(default)), self.value_dtype.numpy)
            for place, value in enumerate(found):
                made[place] = value
            made = made.reshape(shape)
            return made if made.ndim else made[()]

        outputs = [(self.value_dtype, keys.shape.concatenate(self._shape))]
        return self._op("Find", [keys, self._default], outputs, kernel, name).outputs[0]

    def insert(self, keys: Any, values: Any, name: str | None = None) -> Operation:
        """An op that puts values in, over those that the keys had."""

        def kernel(step: Any, keys: Any, values: Any) -> None:
            flat = array(keys).ravel().tolist()
            rows = array(values).reshape(len(flat), *np.shape(values)[np.ndim(keys) :])
            self._pairs(step).update(zip(flat, list(rows), strict=True))

        inputs = [
            convert_to_tensor(keys, self.key_dtype),
            convert_to_tensor(values, self.value_dtype),
        ]
        return self._op("Insert", inputs, (), kernel, name)

    def size(self, name: str | None = None) -> Tensor:
        """How many keys it has, int64."""

        def kernel(step: Any) -> Any:
            return np.int64(len(self._pairs(step)))

        return self._op("Size", [], [(dtypes.int64, SCALAR)], kernel, name).outputs[0]


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
