"""Several examples of one value: functions for `Stages.flat`, and the rows of a batch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from inspect import isasyncgenfunction
from typing import Any

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.arguments import function_name, is_coroutine_function
from aioqueue.components import is_table
from aioqueue.inputs.core.collation import components_of

__all__ = ("flattened", "rows_of")


def flattened(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that returns an iterable, so that it gives the examples one by one.

    You can pickle the result if you can pickle the function.

    Raises:
        TypeError: (when it is called) the function has returned something that is not iterable.
    """
    if isasyncgenfunction(function):
        return function
    return _FlattenedAsync(function) if is_coroutine_function(function) else _Flattened(function)


class _Flattened:
    def __init__(self, function: Callable[..., Any]) -> None:
        # `inspect` follows `__wrapped__`, so that a parameter `rng` of the function is found.
        self.__wrapped__ = function
        self.__name__ = function_name(function)

    def __call__(self, item: Any, **options: Any) -> Iterator[Any]:
        return _each(self.__wrapped__(item, **options), self.__name__)


class _FlattenedAsync(_Flattened):
    async def __call__(self, item: Any, **options: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        for example in _each(await self.__wrapped__(item, **options), self.__name__):
            yield example


def _each(made: Any, name: str) -> Iterator[Any]:
    # Iterating over a mapping or a table gives names, not examples.
    is_named = isinstance(made, str | bytes | Mapping) or is_table(made)
    if not isinstance(made, Iterable) or is_named:
        raise TypeError(
            f"{name} returned a {type(made).__name__}; expected an iterable of examples, because"
            " you passed it to `flat` (for one example per item use `prepare`)"
        )
    yield from made


def rows_of(batch: Any) -> Iterable[Any]:
    """The examples of a batch. They share no memory with the batch, and do not keep it alive.

    Raises:
        InvalidArgumentError: the value is not a batch: its components differ in length, or have no
            length.
    """
    if not isinstance(batch, tuple | Mapping):
        return _rows(batch)
    labels, columns = components_of(batch)
    rows = [_rows(column) for column in columns]
    if len({len(column) for column in columns}) > 1:
        lengths = {label: len(column) for label, column in zip(labels, columns, strict=True)}
        raise InvalidArgumentError(
            f"batch: got components of different lengths, {lengths}; expected as many rows in each"
        )
    tuples = zip(*rows, strict=True)
    if isinstance(batch, Mapping):
        return (dict(zip(labels, row, strict=True)) for row in tuples)
    make: Callable[[Any], Any] = getattr(type(batch), "_make", tuple)  # a named tuple stays one
    return map(make, tuples)


def _rows(column: Any) -> Iterable[Any]:
    has_rows = hasattr(column, "__len__") and _has_axes(column)
    # Iterating over a mapping or a table gives names, not rows.
    if not has_rows or isinstance(column, str | bytes | Mapping) or is_table(column):
        raise InvalidArgumentError(
            f"batch: got {type(column).__name__}; expected arrays or lists, one row per example"
        )
    if isinstance(column, np.ndarray):
        has_views = column.ndim > 1 or column.dtype.kind == "V"  # else rows are scalars, or objects
        return (row.copy() for row in column) if has_views else column
    if hasattr(column, "__dlpack__"):  # an array of another library, such as a tensor of PyTorch
        return map(_copied, column)
    rows: Iterable[Any] = column
    return rows


def _copied(row: Any) -> Any:
    copy = getattr(row, "clone", None) or row.copy
    return copy()


def _has_axes(column: Any) -> bool:
    return getattr(column, "ndim", 1) != 0
