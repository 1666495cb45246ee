"""Arithmetic on columns, shared by the storages that keep typed rows in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from aioqueue.elements import Columns, Component, Row

__all__ = (
    "allocate",
    "as_dtypes",
    "concatenate",
    "first_slots",
    "grow",
    "row_bytes",
    "split",
    "stack",
)

_EAGER_BYTES: Final = 2**30
"""Arrays up to this size are reserved whole: memory that is not touched costs nothing."""

_FIRST_SLOTS: Final = 64


def allocate(components: tuple[Component, ...], n: int) -> Columns:
    """Uninitialised arrays of shape ``(n, *shape)``."""
    return [np.empty((n, *_fixed(component)), component.dtype) for component in components]


def _fixed(component: Component) -> tuple[int, ...]:
    assert component.fixed
    assert component.shape is not None
    return component.shape  # type: ignore[return-value]  # no None in it


def as_dtypes(components: tuple[Component, ...], columns: Columns) -> Columns:
    """Columns of exactly the components' dtypes: cast here, and not when they leave, if need be."""
    return [
        np.asarray(column, dtype=component.dtype)
        for component, column in zip(components, columns, strict=True)
    ]


def first_slots(components: tuple[Component, ...], capacity: int | None) -> int:
    """How many slots to begin with: all of them, if that is a reasonable amount of memory."""
    eager = capacity is not None and capacity * row_bytes(components) <= _EAGER_BYTES
    if capacity is not None and (capacity <= _FIRST_SLOTS or eager):
        return capacity
    return _FIRST_SLOTS


def row_bytes(components: tuple[Component, ...]) -> int:
    """How many bytes a row takes."""
    return sum(c.dtype.itemsize * int(np.prod(_fixed(c), dtype=np.int64)) for c in components)


def grow(slots: int, needed: int, limit: int | None) -> int:
    """The next number of slots: doubled, at least what is needed, not above a limit it can keep."""
    wanted = max(2 * slots, needed)
    return wanted if limit is None else max(needed, min(wanted, limit))


def stack(
    components: tuple[Component, ...], rows: Sequence[Row], into: Columns | None = None
) -> Columns:
    """Columns of single rows."""
    columns = allocate(components, len(rows)) if into is None else into
    for index, row in enumerate(rows):
        for column, value in zip(columns, row, strict=True):
            column[index] = value
    return columns


def split(components: tuple[Component, ...], columns: Columns) -> list[Row]:
    """Single rows of columns; they share no memory with them."""
    return [
        tuple(
            [
                column[index] if component.scalar else column[index].copy()
                for component, column in zip(components, columns, strict=True)
            ]
        )
        for index in range(len(columns[0]))
    ]


def concatenate(components: tuple[Component, ...], chunks: list[Columns]) -> Columns:
    """Columns of the rows of several chunks, one after the other; of no rows, if there are none."""
    if not chunks:
        return allocate(components, 0)
    return [np.concatenate(columns) for columns in zip(*chunks, strict=True)]
