"""Functions that make several examples of one item, as `prepare` wants them: as generators."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from inspect import isasyncgenfunction
from typing import Any

from aioqueue.components import is_table
from aioqueue.functions import function_name, is_coroutine_function

__all__ = ("flattened",)


def flattened(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes each of what another one returns, one by one.

    It can be pickled if the other one can.

    Raises:
        TypeError: (when it is called) what the other one has returned cannot be iterated.
    """
    if isasyncgenfunction(function):
        return function
    return _FlattenedAsync(function) if is_coroutine_function(function) else _Flattened(function)


class _Flattened:
    def __init__(self, function: Callable[..., Any]) -> None:
        # What it is called, and whether it takes `rng`, is asked of the function itself.
        self.__wrapped__ = function
        self.__name__ = function_name(function)

    def __call__(self, item: Any, **options: Any) -> Iterator[Any]:
        return _each(self.__wrapped__(item, **options), self.__name__)


class _FlattenedAsync(_Flattened):
    async def __call__(self, item: Any, **options: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        for example in _each(await self.__wrapped__(item, **options), self.__name__):
            yield example


def _each(made: Any, name: str) -> Iterator[Any]:
    # Of mappings and tables one would get names and no examples.
    is_named = isinstance(made, str | bytes | Mapping) or is_table(made)
    if not isinstance(made, Iterable) or is_named:
        raise TypeError(
            f"{name} returned a {type(made).__name__}; expected an iterable of examples, since it"
            " is given to `flat` (`prepare` takes one example)"
        )
    yield from made
