"""Several examples of one value: functions for `Stages.flat`, and the rows of a batch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from inspect import isasyncgenfunction
from typing import Any, Final

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.arguments import function_name, is_coroutine_function
from aioqueue.components import is_table, shortly
from aioqueue.structures import Structure, Wording, structure_of
from aioqueue.trees import Path

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


def rows_of(batch: Any, structure: Structure | None = None) -> Iterable[Any]:
    """The examples of a batch. They share no memory with the batch, and do not keep it alive.

    Args:
        batch: a tree of arrays, or of lists with one row per example.
        structure: of the batch; ``None`` if a list in it has one row per example.

    Raises:
        InvalidArgumentError: the value is not a batch: its components differ in length, or have no
            length.
    """
    if structure is None:
        structure = structure_of(batch, _WORDING, _is_list)
    labels, columns = structure.labels(), structure.leaves(batch, _WORDING)
    rows = [_rows(column) for column in columns]
    if len({len(column) for column in columns}) > 1:
        lengths = {label: len(column) for label, column in zip(labels, columns, strict=True)}
        raise InvalidArgumentError(
            f"batch: got components of different lengths, {lengths}; expected as many rows in each"
        )
    if structure.is_leaf:
        return rows[0]
    if not rows:
        raise InvalidArgumentError(f"batch: got {shortly(batch)}; expected at least one component")
    make = structure.make if structure.is_flat else _made_by(structure)
    return map(make, zip(*rows, strict=True))


def _made_by(structure: Structure) -> Callable[[Sequence[Any]], Any]:
    return lambda row: structure.made(iter(row))


def _is_list(value: Any, path: Path) -> bool:
    return isinstance(value, list)


_WORDING: Final = Wording("batch")


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
