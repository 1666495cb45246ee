"""Storages: where a queue's rows rest, and in which order they leave. NumPy lives here.

One discipline per file, one protocol (`base`), one contract test-suite for all of them.
"""

from __future__ import annotations

from aioqueue.elements import ElementSpec, Spec
from aioqueue.philox import PhiloxWords, Seed
from aioqueue.storage.base import Held, Storage
from aioqueue.storage.blocks import BlockStorage
from aioqueue.storage.heap import HeapStorage
from aioqueue.storage.objects import ObjectStorage
from aioqueue.storage.padded import PaddedStorage
from aioqueue.storage.shelf import ObjectShelf, Shelf, TypedShelf
from aioqueue.storage.shuffle import ShuffleStorage

__all__ = (
    "BlockStorage",
    "HeapStorage",
    "Held",
    "ObjectShelf",
    "ObjectStorage",
    "PaddedStorage",
    "PhiloxWords",
    "Seed",
    "Shelf",
    "ShuffleStorage",
    "Storage",
    "TypedShelf",
    "fifo_storage",
    "shelf_for",
)


def fifo_storage(spec: Spec, capacity: int | None) -> Storage:
    """The FIFO that suits the elements: blocks of arrays where every row has one fixed shape."""
    if not isinstance(spec, ElementSpec) or (spec.rows_private and not spec.ragged):
        return ObjectStorage()
    if spec.rows_private:
        return PaddedStorage(spec.components)
    return BlockStorage(spec.components, capacity)


def shelf_for(spec: Spec, capacity: int | None) -> Shelf:
    """The shelf that suits the elements."""
    if isinstance(spec, ElementSpec) and not spec.rows_private:
        return TypedShelf(spec.components, capacity)
    return ObjectShelf()
