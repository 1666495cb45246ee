"""How the function is called that prepares an item."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any, Final

import numpy as np

from aioqueue.coordination.outcomes import add_note, as_failure, told
from aioqueue.functions import function_name, refuse_awaitable
from aioqueue.inputs.ownership import FIXED, private
from aioqueue.inputs.prepare.first_call import FirstCall
from aioqueue.inputs.sources.item import EpochEnd, Item
from aioqueue.inputs.sources.seeds import rng

__all__ = ("Call", "failure_of", "takes_rng")

_PLAIN: Final = FIXED | {tuple, list, dict, np.ndarray}
"""What needs no second look: a look at an object's interfaces costs more than all of its way."""

_CALLERS: Final = frozenset({__name__, FirstCall.__module__})


class Call:
    """Calls the function with an item, and checks what comes back.

    Args:
        function: what prepares an item.
        seed: what the generators of the items are derived from; for functions that take ``rng``.
        skip_none: whether ``None`` means to leave the item out.
    """

    def __init__(self, function: Callable[..., Any], seed: int, skip_none: bool) -> None:
        self.function = function
        self.seed = seed
        self.skip_none = skip_none
        self._takes_rng = takes_rng(function)
        self._call: Callable[..., Any] = FirstCall(function, self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Call, (self.function, self.seed, self.skip_none)

    def examples(self, item: Item) -> Iterable[Any]:
        """Prepare an item on the spot.

        Returns:
            Its examples: a tuple of one or none, or an iterator that is making them.
        """
        value = item.value
        if isinstance(value, EpochEnd):
            return (value,)
        made = self._made(item) if self._takes_rng else self._call(value)
        kind = type(made)
        if kind in FIXED:
            return (made,) if made is not None else self._none()
        if kind in _PLAIN:
            return (private(made, value),)
        examples = self.examples_of(made)
        if type(examples) is not tuple or not examples:
            return examples
        del examples  # which has what is to have one owner
        return (private(made, value),)

    def examples_of(self, made: Any) -> Iterable[Any]:
        """The examples in what the function has returned."""
        if inspect.isgenerator(made):
            return self._many(made)
        if made is None:
            return self._none()
        refuse_awaitable(function_name(self.function), made)
        return (made,)

    async def examples_async(self, item: Item) -> Iterable[Any] | AsyncIterator[Any]:
        """Prepare an item by a coroutine function or an async generator function."""
        if isinstance(item.value, EpochEnd):
            return (item.value,)
        made = self._made(item)
        if inspect.isasyncgen(made):
            return self._many_async(made)
        made = await made
        return self._none() if made is None else (private(made, item.value),)

    def is_seen_through(self) -> None:
        """The function need not be watched any more."""
        self._call = self.function

    def _made(self, item: Item) -> Any:
        if not self._takes_rng:
            return self._call(item.value)
        return self._call(item.value, rng=rng(self.seed, item.epoch, item.index))

    def _many(self, made: Iterator[Any]) -> Iterator[Any]:
        for example in made:
            if example is not None:
                yield private(example)
            else:
                self._none()

    async def _many_async(self, made: AsyncGenerator[Any, Any]) -> AsyncIterator[Any]:
        async with aclosing(made):  # else it would be closed when somebody finds it forgotten
            async for example in made:
                if example is not None:
                    yield private(example)
                else:
                    self._none()

    def _none(self) -> tuple[()]:
        if not self.skip_none:
            raise TypeError(
                f"{function_name(self.function)} returned None; return an example, or pass"
                " skip_none=True to leave such items out"
            )
        return ()


def takes_rng(function: Any) -> bool:
    """Whether a function has a parameter named ``rng``, which no partial has bound."""
    if isinstance(function, functools.partial) and "rng" in function.keywords:
        return False
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some builtins have none
        return False
    return "rng" in parameters and parameters["rng"].kind is not inspect.Parameter.POSITIONAL_ONLY


def failure_of(item: Item, error: BaseException) -> Exception:
    """The failure of an item as it is reported: with a note that names the item.

    What would be taken for the end of the source is wrapped: it came from the function.
    """
    message = f"the function raised {told(error)}"
    failure = as_failure(error, message)
    if not isinstance(failure, Exception):
        failure = RuntimeError(message)
        failure.__cause__ = error
    add_note(failure, f"while preparing {item.describe()}")
    if isinstance(error, ValueError) and "read-only" in str(error):
        add_note(
            failure,
            "items of arrays are read-only views: the function is to write into item.copy(), say",
        )
    if isinstance(item.value, tuple) and _wants_more(error):
        add_note(
            failure, "an item is given as one argument: the function is to take the tuple apart"
        )
    return failure


def _wants_more(error: BaseException) -> bool:
    """Whether a call of ours has failed for want of arguments, and not one in the function."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    is_ours = traceback is not None and traceback.tb_frame.f_globals.get("__name__") in _CALLERS
    return is_ours and type(error) is TypeError and "required positional argument" in str(error)
