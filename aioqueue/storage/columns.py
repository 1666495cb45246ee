"""Operations on columns, for the storages that keep typed rows in arrays."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from aioqueue.elements import Columns, Component, Row

__all__ = (
    "LARGE_BYTES",
    "RowReader",
    "allocate",
    "as_dtypes",
    "blank",
    "common_bytes",
    "is_large",
    "row_bytes",
)

LARGE_BYTES: Final = 2**16
"""Bytes from which a batch is copied without the lock: then the copy costs ten times the lock."""

_LARGE_ROWS: Final = 512


def allocate(components: tuple[Component, ...], n: int) -> Columns:
    """Allocate uninitialised arrays of shape ``(n, *shape)``."""
    return [np.empty((n, *_fixed(component)), component.dtype) for component in components]


def _fixed(component: Component) -> tuple[int, ...]:
    assert component.fixed
    assert component.shape is not None
    return component.shape  # type: ignore[return-value]  # it has no None


def as_dtypes(components: tuple[Component, ...], columns: Columns) -> Columns:
    """Cast columns to exactly the components' dtypes, so that they need no cast when they leave."""
    return [
        np.asarray(column, dtype=component.dtype)
        for component, column in zip(components, columns, strict=True)
    ]


def row_bytes(components: tuple[Component, ...]) -> int:
    """Return how many bytes a row takes."""
    return sum(c.dtype.itemsize * int(np.prod(_fixed(c), dtype=np.int64)) for c in components)


def common_bytes(components: tuple[Component, ...]) -> int | None:
    """Return how many bytes every row takes; ``None`` if a component has no fixed size."""
    is_known = all(c.fixed and not c.dtype.hasobject for c in components)
    return row_bytes(components) if is_known else None


def is_large(n: int, row_bytes: int) -> bool:
    """Return whether a copy of n rows takes too long to be made under the lock."""
    return n > _LARGE_ROWS or n * row_bytes > LARGE_BYTES


class RowReader:
    """Copies single rows out of columns. No other code turns rows into separate values.

    NumPy returns a separate scalar for most dtypes. It returns a *view* of the array for an entry
    that is an array itself, and for structured and other ``void`` scalars. Those are copied.

    Args:
        components: the components of a row, each of one fixed shape.
    """

    __slots__ = ("_is_view",)

    def __init__(self, components: tuple[Component, ...]) -> None:
        self._is_view = [not c.scalar or c.dtype.kind == "V" for c in components]

    def row(self, columns: Columns, index: int) -> Row:
        """Return one row; it shares no memory with the columns."""
        return tuple(
            [
                column[index].copy() if is_view else column[index]
                for column, is_view in zip(columns, self._is_view)  # noqa: B905
            ]
        )

    def rows(self, columns: Columns) -> list[Row]:
        """Return all rows; they share no memory with the columns."""
        return [self.row(columns, index) for index in range(len(columns[0]))]


def blank(dtype: np.dtype[Any]) -> Any:
    """Return the value that overwrites references, so that they keep nothing alive."""
    return None if dtype.kind == "O" else np.zeros((), dtype)
