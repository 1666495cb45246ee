"""``tf.contrib.lookup``: tables, and index tables of vocabularies."""

from __future__ import annotations

from typing import Any

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.tables import (
    HashTable,
    IdTableWithHashBuckets,
    KeyValueTensorInitializer,
    TextFileIndex,
    TextFileInitializer,
    index_table_from_file,
    index_table_from_tensor,
    index_to_string_table_from_file,
    index_to_string_table_from_tensor,
)

__all__ = (
    "HashTable",
    "IdTableWithHashBuckets",
    "KeyValueTensorInitializer",
    "TextFileIndex",
    "TextFileInitializer",
    "index_table_from_file",
    "index_table_from_tensor",
    "index_to_string",
    "index_to_string_table_from_file",
    "index_to_string_table_from_tensor",
    "string_to_index",
)


def string_to_index(
    tensor: Any, mapping: Any, default_value: int = -1, name: str | None = None
) -> Tensor:
    """The places of strings in a list; the table behind it is to be initialised.

    Args:
        tensor: the strings.
        mapping: the list.
        default_value: the number of all other strings.
        name: of the ops.
    """
    table = index_table_from_tensor(mapping, default_value=default_value, name=name)
    found: Tensor = table.lookup(tensor)
    return found


def index_to_string(
    tensor: Any, mapping: Any, default_value: Any = "UNK", name: str | None = None
) -> Tensor:
    """The strings at places of a list; the table behind it is to be initialised.

    Args:
        tensor: the places, int64.
        mapping: the list.
        default_value: the string of all other places.
        name: of the ops.
    """
    table = index_to_string_table_from_tensor(mapping, default_value, name)
    found: Tensor = table.lookup(tensor)
    return found


__getattr__ = names_of(__name__)
