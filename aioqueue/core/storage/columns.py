"""Columns: the arrays in which rows lie side by side, and how one row is read and written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from aioqueue.core.elements.component import Component
from aioqueue.core.elements.spec import Columns, Row
from aioqueue.system._compiled import make_function

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
    return sum(c.dtype.itemsize * prod(_fixed(c)) for c in components)


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

    Attributes:
        row: returns the row at an index of columns; it shares no memory with them.
    """

    __slots__ = ("row",)

    def __init__(self, components: tuple[Component, ...]) -> None:
        copies = [".copy()" if not c.scalar or c.dtype.kind == "V" else "" for c in components]
        values = [f"columns[{i}][index]{copy}" for i, copy in enumerate(copies)]
        self.row: Callable[[Columns, int], Row] = make_function(
            "columns, index", f"return {', '.join(values)},"
        )

    def rows(self, columns: Columns) -> list[Row]:
        """Return all rows; they share no memory with the columns."""
        return [self.row(columns, index) for index in range(len(columns[0]))]


def row_writer(n: int) -> Callable[[Sequence[Any], int, Row], object]:
    """Return a function that writes a row of n values to an index of columns."""
    columns, values = ([f"{name}{i}" for i in range(n)] for name in ("column", "value"))
    write: Callable[[Sequence[Any], int, Row], object] = make_function(
        "columns, index, row",
        f"{', '.join(columns)}, = columns",
        f"{', '.join(values)}, = row",
        *(f"{column}[index] = {value}" for column, value in zip(columns, values, strict=True)),
    )
    return write


_MOST_AS_BYTES: Final = 1024
"""Larger arrays are written to an array: to copy their bytes once more costs what it saves."""


class RowMemory:
    """Memory for rows that are written one by one, and leave together as columns.

    The values of a component that are small arrays are kept as their bytes, which are joined later:
    that costs half as much as to assign each of them to a row of an array.

    Args:
        components: the components of a row, each of one fixed shape, without references.
        rows: how many rows fit.

    Attributes:
        columns: what is written to, by component: an array, or a list of bytes.
        as_bytes: of each component, whether it is a list of bytes.
        write_row: writes a row to an index of columns.
    """

    __slots__ = ("_components", "as_bytes", "columns", "rows", "write_row")

    def __init__(self, components: tuple[Component, ...], rows: int) -> None:
        self._components = components
        self.rows: int = rows
        self.as_bytes: list[bool] = [_fits_as_bytes(component) for component in components]
        self.columns: Columns = [
            [b""] * rows if as_bytes else array
            for array, as_bytes in zip(allocate(components, rows), self.as_bytes, strict=True)
        ]
        self.write_row: Callable[[Columns, int, Row], object] = row_writer(len(components))
        if any(self.as_bytes):
            self.write_row = self._write_as_bytes

    def joined(self, columns: Columns, start: int, stop: int) -> Columns:
        """Return the rows from one index up to another, of what was written to columns."""
        joined: Columns = []
        for component, column, as_bytes in zip(
            self._components, columns, self.as_bytes, strict=True
        ):
            rows = column[start:stop]
            if as_bytes:
                values = np.frombuffer(b"".join(rows), component.dtype)
                rows = values.reshape(stop - start, *_fixed(component))
            joined.append(rows)
        return joined

    def _write_as_bytes(self, columns: Columns, index: int, row: Row) -> None:
        for component, column, value, as_bytes in zip(
            self._components, columns, row, self.as_bytes, strict=True
        ):
            # The cast is that of an assignment.
            column[index] = np.asarray(value, component.dtype).tobytes() if as_bytes else value


def _fits_as_bytes(component: Component) -> bool:
    is_array = not component.scalar and component.dtype.kind in "biufc"
    return is_array and 0 < row_bytes((component,)) <= _MOST_AS_BYTES


def empty_value(dtype: np.dtype[Any]) -> Any:
    """Return the value that overwrites references, so that they keep nothing alive."""
    return None if dtype.kind == "O" else np.zeros((), dtype)
