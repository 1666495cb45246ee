"""Storages: how a queue keeps its rows, and in which order they leave.

All storages implement one protocol (`protocol`) and pass one contract test suite. Each kind of
queue chooses the one that fits its elements.
"""

from __future__ import annotations

from aioqueue.core.elements.philox import PhiloxWords, Seed
from aioqueue.core.storage.blocks import BlockStorage
from aioqueue.core.storage.priority_and_shuffle import (
    HeapStorage,
    ObjectShelf,
    Shelf,
    ShuffleStorage,
    TypedShelf,
)
from aioqueue.core.storage.protocol import Held, ObjectStorage, PaddedStorage, Storage
from aioqueue.core.storage.sized import WeighedStorage

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
)
