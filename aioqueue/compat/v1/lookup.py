"""``tf.lookup``: tables, under their later names."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops.tables import HashTable as StaticHashTable
from aioqueue.compat.v1.ops.tables import (
    KeyValueTensorInitializer,
    StaticVocabularyTable,
    TextFileIndex,
    TextFileInitializer,
)

__all__ = (
    "KeyValueTensorInitializer", "StaticHashTable", "StaticVocabularyTable", "TextFileIndex",
    "TextFileInitializer",
)  # fmt: skip

__getattr__ = names_of(__name__)
