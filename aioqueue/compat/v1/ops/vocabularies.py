"""Index tables of vocabularies: from strings to their places in a list or a file, and back."""

from __future__ import annotations

from typing import Any

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.ops.table_sources import (
    NameInitializer,
    NumberInitializer,
    TextFileIdTableInitializer,
    TextFileIndex,
    TextFileStringTableInitializer,
)
from aioqueue.compat.v1.ops.tables import HashTable, IdTableWithHashBuckets

__all__ = (
    "index_table_from_file",
    "index_table_from_tensor",
    "index_to_string_table_from_file",
    "index_to_string_table_from_tensor",
)


def index_table_from_tensor(
    vocabulary_list: Any = None,
    num_oov_buckets: int = 0,
    default_value: int = -1,
    hasher_spec: Any = None,
    dtype: Any = dtypes.string,
    name: str | None = None,
    mapping: Any = None,
) -> Any:
    """A table from strings to their places in a list.

    Args:
        vocabulary_list: the strings.
        num_oov_buckets: how many numbers there are for strings that are not in the list.
        default_value: the number of those, if there are none.
        hasher_spec: accepted; strings are hashed by their fingerprints, as in TensorFlow.
        dtype: of the keys.
        name: of the ops.
        mapping: the old name of `vocabulary_list`.

    Raises:
        ValueError: no list is given, or it has another dtype.
    """
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
        table = HashTable(NumberInitializer(keys, wanted), default_value)
        if num_oov_buckets:
            return IdTableWithHashBuckets(table, num_oov_buckets, name=table.name, key_dtype=wanted)
    return table


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
    """A table from the lines of a file to their numbers; arguments as for `TextFileInitializer`
    and `index_table_from_tensor`.

    Raises:
        ValueError: no file is given.
    """
    _check_file(vocabulary_file, vocab_size)
    with name_scope(name, "string_to_index", []):
        filled = TextFileIdTableInitializer(
            vocabulary_file,
            key_column_index,
            value_column_index,
            vocab_size,
            delimiter,
            "table_init",
            key_dtype,
        )
        table = HashTable(filled, default_value)
        if num_oov_buckets:
            keys = filled.key_dtype
            return IdTableWithHashBuckets(table, num_oov_buckets, name=table.name, key_dtype=keys)
    return table


def index_to_string_table_from_tensor(
    vocabulary_list: Any = None,
    default_value: Any = "UNK",
    name: str | None = None,
    mapping: Any = None,
) -> HashTable:
    """A table from places in a list to its strings.

    Args:
        vocabulary_list: the strings.
        default_value: the string of all other numbers.
        name: of the ops.
        mapping: the old name of `vocabulary_list`.

    Raises:
        ValueError: no list is given.
    """
    given = mapping if vocabulary_list is None else vocabulary_list
    if given is None:
        raise ValueError("`vocabulary_list` argument must be specified.")
    with name_scope(name, "index_to_string", []):
        strings = convert_to_tensor(given, dtypes.string)
        return HashTable(NameInitializer(strings), default_value)


def index_to_string_table_from_file(
    vocabulary_file: Any = None,
    vocab_size: int | None = None,
    default_value: Any = "UNK",
    name: str | None = None,
    key_column_index: int = TextFileIndex.LINE_NUMBER,
    value_column_index: int = TextFileIndex.WHOLE_LINE,
    delimiter: str = "\t",
) -> HashTable:
    """A table from numbers of lines to the lines of a file; arguments as for
    `TextFileInitializer` and `index_to_string_table_from_tensor`.

    Raises:
        ValueError: no file is given.
    """
    _check_file(vocabulary_file, vocab_size)
    with name_scope(name, "index_to_string", []):
        filled = TextFileStringTableInitializer(
            vocabulary_file,
            key_column_index,
            value_column_index,
            vocab_size,
            delimiter,
            "table_init",
        )
        return HashTable(filled, default_value)


def _check_file(vocabulary_file: Any, vocab_size: int | None) -> None:
    if vocabulary_file is None or (isinstance(vocabulary_file, str) and not vocabulary_file):
        raise ValueError("`vocabulary_file` must be specified and must not be empty.")
    if vocab_size is not None and vocab_size < 1:
        raise ValueError(f"`vocab_size` must be greater than 0, got {vocab_size}.")
