"""The first calls of the function that prepares an item: what it forgets to await is seen there."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, closing
from typing import Any, Final, Protocol
from weakref import ref

from aioqueue.coordination.unawaited import Unawaited
from aioqueue.functions import function_name, is_async

__all__ = ("FirstCall", "SeenThrough")

_END: Final = object()


class SeenThrough(Protocol):
    """What calls a function that is watched at first."""

    def is_seen_through(self) -> None:
        """The function need not be watched any more."""


class FirstCall:
    """Calls the function, and refuses it if it drops a coroutine: ``save(x)`` without ``await``.

    It steps aside when a call has ended well, so that later ones cost nothing. Those that fail are
    followed by another that is watched: a function that is tried again does not pass by that.

    Args:
        function: what prepares an item.
        call: is told when a call has ended well. It owns this one, and is not kept alive by it.
    """

    def __init__(self, function: Callable[..., Any], call: SeenThrough) -> None:
        self._function = function
        self._call = ref(call)
        self._is_async = is_async(function)
        self._name = function_name(function)

    def __call__(self, value: Any, **named: Any) -> Any:
        with self._watch() as unawaited:
            made = self._function(value, **named)
        unawaited.refuse()
        if inspect.isgenerator(made):
            return self._each(made)
        if inspect.isasyncgen(made):
            return self._each_async(made)
        if inspect.isawaitable(made):
            # One that a plain function returns is refused by whoever gets it.
            return self._awaited(made) if self._is_async else made
        self._step_aside()
        return made

    def _step_aside(self) -> None:
        call = self._call()
        if call is not None:
            call.is_seen_through()

    def _watch(self) -> Unawaited:
        return Unawaited(self._name, can_await=self._is_async)

    async def _awaited(self, made: Awaitable[Any]) -> Any:
        with self._watch() as unawaited:
            result = await made
        unawaited.refuse()
        self._step_aside()
        return result

    def _each(self, made: Generator[Any, Any, Any]) -> Generator[Any, None, None]:
        with closing(made):
            while True:
                with self._watch() as unawaited:
                    example = next(made, _END)
                unawaited.refuse()
                if example is _END:
                    break
                yield example
        self._step_aside()

    async def _each_async(self, made: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, None]:
        async with aclosing(made):  # else it would be closed when somebody finds it forgotten
            while True:
                with self._watch() as unawaited:
                    example = await anext(made, _END)
                unawaited.refuse()
                if example is _END:
                    break
                yield example
        self._step_aside()
