"""Arithmetic on columns, shared by the storages that keep typed rows in arrays."""

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
"""Bytes of a batch from which it is copied without the lock: what a lock costs, some ten times."""

_LARGE_ROWS: Final = 512


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


def row_bytes(components: tuple[Component, ...]) -> int:
    """How many bytes a row takes."""
    return sum(c.dtype.itemsize * int(np.prod(_fixed(c), dtype=np.int64)) for c in components)


def common_bytes(components: tuple[Component, ...]) -> int | None:
    """How many bytes every row takes; ``None`` if they differ, for want of a fixed size."""
    is_known = all(c.fixed and not c.dtype.hasobject for c in components)
    return row_bytes(components) if is_known else None


def is_large(n: int, row_bytes: int) -> bool:
    """Whether copying n rows takes so long that nobody should have to wait for it."""
    return n > _LARGE_ROWS or n * row_bytes > LARGE_BYTES


class RowReader:
    """Copies single rows out of columns: the one place where rows become values of their own.

    NumPy gives a scalar of its own for most dtypes, but a *view* of the array for an entry that is
    an array itself, and for structured and other ``void`` scalars.

    Args:
        components: the components of a row, each of one fixed shape.
    """

    __slots__ = ("_is_view",)

    def __init__(self, components: tuple[Component, ...]) -> None:
        self._is_view = [not c.scalar or c.dtype.kind == "V" for c in components]

    def row(self, columns: Columns, index: int) -> Row:
        """One row; it shares no memory with the columns."""
        return tuple(
            [
                column[index].copy() if is_view else column[index]
                for column, is_view in zip(columns, self._is_view)  # noqa: B905
            ]
        )

    def rows(self, columns: Columns) -> list[Row]:
        """All rows; they share no memory with the columns."""
        return [self.row(columns, index) for index in range(len(columns[0]))]


def blank(dtype: np.dtype[Any]) -> Any:
    """What to write over values that hold references, so that these keep nothing alive."""
    return None if dtype.kind == "O" else np.zeros((), dtype)
