"""Storages: how a queue keeps its rows, and in which order they leave.

All storages implement one protocol (`protocol`) and pass one contract test suite. These functions
choose the storage that fits the elements.
"""

from __future__ import annotations

from aioqueue.elements import ElementSpec, Spec
from aioqueue.philox import PhiloxWords, Seed
from aioqueue.storage.blocks import BlockStorage, common_bytes
from aioqueue.storage.priority_and_shuffle import (
    HeapStorage,
    ObjectShelf,
    Shelf,
    ShuffleStorage,
    TypedShelf,
)
from aioqueue.storage.protocol import Held, ObjectStorage, PaddedStorage, Storage
from aioqueue.storage.sized import WeighedStorage, rows_within

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
    "WeighedStorage",
    "fifo_storage",
    "heap_storage",
    "shelf_for",
    "shuffle_storage",
)


def fifo_storage(spec: Spec, capacity: int | None, max_bytes: int | None = None) -> Storage:
    """Make the FIFO that fits the elements: blocks of arrays if all rows have one fixed shape."""
    if _brings_sizes(spec, max_bytes):
        return WeighedStorage(ObjectStorage(), spec)
    if not isinstance(spec, ElementSpec) or (spec.rows_private and not spec.ragged):
        return ObjectStorage()
    if spec.rows_private:
        return PaddedStorage(spec.components)
    return BlockStorage(spec.components, _most_rows(spec, capacity, max_bytes))


def shuffle_storage(
    spec: Spec,
    capacity: int | None,
    max_bytes: int | None = None,
    *,
    seed: Seed = None,
    draws_again: bool = True,
) -> Storage:
    """Make the shuffle buffer that fits the elements."""
    if _brings_sizes(spec, max_bytes):
        entries = ShuffleStorage(ObjectShelf(), seed, draws_again=draws_again)
        return WeighedStorage(entries, spec)
    shelf = shelf_for(spec, _most_rows(spec, capacity, max_bytes))
    return ShuffleStorage(shelf, seed, draws_again=draws_again)


def heap_storage(spec: Spec, capacity: int | None, max_bytes: int | None = None) -> Storage:
    """Make the heap that fits the elements, whose first component is the priority."""
    if _brings_sizes(spec, max_bytes):
        return WeighedStorage(HeapStorage(ObjectShelf(), typed=False), spec)
    shelf = shelf_for(spec, _most_rows(spec, capacity, max_bytes))
    return HeapStorage(shelf, typed=isinstance(shelf, TypedShelf))


def shelf_for(spec: Spec, capacity: int | None) -> Shelf:
    """Make the shelf that fits the elements."""
    if isinstance(spec, ElementSpec) and not spec.rows_private:
        return TypedShelf(spec.components, capacity)
    return ObjectShelf()


def _brings_sizes(spec: Spec, max_bytes: int | None) -> bool:
    """Return whether rows must bring their sizes: there is a bound on bytes, and sizes differ."""
    return max_bytes is not None and _row_bytes(spec) is None


def _row_bytes(spec: Spec) -> int | None:
    return common_bytes(spec.components) if isinstance(spec, ElementSpec) else None


def _most_rows(spec: Spec, capacity: int | None, max_bytes: int | None) -> int | None:
    """Return how many rows there will usually be at most."""
    size = _row_bytes(spec)
    most = None if max_bytes is None or size is None else rows_within(max_bytes, size)
    return min((rows for rows in (capacity, most) if rows is not None), default=None)
