"""Columns: the arrays in which rows lie side by side, and how one row is read and written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from struct import calcsize, pack
from typing import Any, Final

import numpy as np

from aioqueue.core.elements.component import Component
from aioqueue.core.elements.spec import Columns, PackedRow, Row
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


class RowPacking:
    """How rows are packed that are written one by one, and leave together as columns.

    A packed row is a tuple. It has numbers of a native dtype as they are, and everything else as
    bytes. They are joined later: that costs a third of what it costs to assign each value to a row
    of an array.

    Args:
        components: the components of a row, each of one fixed shape, small, without references.
        most: how many rows may be joined.
    """

    __slots__ = ("_joins", "_packs", "is_number", "most")

    def __init__(self, components: tuple[Component, ...], most: int) -> None:
        typecodes = [_typecode(component) for component in components]
        self.most: int = most
        self.is_number: list[bool] = [typecode is not None for typecode in typecodes]
        self._packs: list[Callable[[Any], Any]] = [
            partial(_packed, component.dtype, is_number)
            for component, is_number in zip(components, self.is_number, strict=True)
        ]
        self._joins: list[Callable[[Sequence[Any]], np.ndarray[Any, Any]]] = [
            partial(_joined_bytes, component.dtype, _fixed(component))
            if typecode is None
            else partial(_joined_numbers, component.dtype, typecode)
            for component, typecode in zip(components, typecodes, strict=True)
        ]

    def packed(self, row: Row) -> PackedRow:
        """Return a row in its packed form. The casts are those of an assignment."""
        return tuple([make(value) for make, value in zip(self._packs, row, strict=True)])

    def joined(self, rows: Sequence[PackedRow]) -> Columns:
        """Return columns of one or more packed rows."""
        values = zip(*rows, strict=True)
        return [join(column) for join, column in zip(self._joins, values, strict=True)]


_TYPECODES: Final = {
    ("f" if code in "fd" else "u" if code.isupper() else "i", calcsize(code)): code
    for code in "bBhHiIqQfd"
}


def _typecode(component: Component) -> str | None:
    """Return how `struct` calls numbers of a component; ``None`` if they are no plain numbers."""
    if not (component.scalar and component.dtype.isnative):
        return None
    return _TYPECODES.get((component.dtype.kind, component.dtype.itemsize))


def _packed(dtype: np.dtype[Any], is_number: bool, value: Any) -> Any:
    exact = np.asarray(value, dtype)
    return exact[()] if is_number else exact.tobytes()


def _joined_bytes(
    dtype: np.dtype[Any], shape: tuple[int, ...], values: Sequence[bytes]
) -> np.ndarray[Any, Any]:
    rows = (len(values), *shape)
    memory = b"".join(values)
    return np.frombuffer(memory, dtype).reshape(rows) if memory else np.empty(rows, dtype)


def _joined_numbers(
    dtype: np.dtype[Any], typecode: str, values: Sequence[Any]
) -> np.ndarray[Any, Any]:
    return np.frombuffer(pack(f"{len(values)}{typecode}", *values), dtype)


def empty_value(dtype: np.dtype[Any]) -> Any:
    """Return the value that overwrites references, so that they keep nothing alive."""
    return None if dtype.kind == "O" else np.zeros((), dtype)
