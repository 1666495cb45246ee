"""Calls of the user's function: what it receives, and what it may return."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from types import AsyncGeneratorType
from typing import Any, Final

import numpy as np

from aioqueue.base.arguments import function_name, refuse_awaitable, takes
from aioqueue.base.global_generators import DrawsFinder, SamplingFinder
from aioqueue.base.tracebacks import FailureNote
from aioqueue.coordination.classify import as_failure
from aioqueue.core.elements.ownership import FIXED, copy_if_shared
from aioqueue.errors import add_note, describe_exception
from aioqueue.items.item import EpochEnd, Item
from aioqueue.sources.shuffling import rng

_CURE: Final = (
    "Pass where='process', whose workers have generators of their own; or give the function a"
    " parameter rng, whose numbers depend on the seed and the item alone."
)


_PLAIN: Final = FIXED | {tuple, list, dict, np.ndarray}
"""Types that need no check: testing an object's interfaces costs more than everything else."""


_IMMUTABLE: Final = FIXED - {type(None)}


_CALLERS: Final = frozenset(
    {
        __name__,
        f"{__package__}.executors.tasks",
        f"{__package__}.executors.threads",
        SamplingFinder.__module__,
    }
)
"""The modules that call the function."""


class ItemCall:
    """Calls the function with an item, and checks what it returns.

    Args:
        function: prepares an item.
        seed: the seed of the items' generators, for functions that take ``rng``.
        drop_none: whether ``None`` means to leave the item out.

    Attributes:
        takes_rng: whether the function also takes ``rng``.
        complete_types: the types of results that need neither a check nor a copy: each is an
            example.
        call: the function, or what watches its calls.
    """

    def __init__(self, function: Callable[..., Any], seed: int, drop_none: bool) -> None:
        self.function = function
        self.seed = seed
        self.drop_none = drop_none
        self.takes_rng: bool = takes_rng(function)
        self.complete_types: frozenset[type] = _IMMUTABLE
        self.call: Callable[..., Any] = function
        self._finder: DrawsFinder | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ItemCall, (self.function, self.seed, self.drop_none)

    def examples(self, item: Item) -> Iterable[Any]:
        """Prepare an item in the calling thread.

        Returns:
            Its examples: a tuple of one or none, or an iterator that makes them.
        """
        value = item[1]
        if type(value) is EpochEnd:
            return (value,)
        made = self._made(item) if self.takes_rng else self.call(value)
        if type(made) in self.complete_types:
            return (made,)
        results = [made]
        del made  # see `examples_in`
        return self.examples_in(results, value)

    def examples_in(self, results: list[Any], value: Any) -> Iterable[Any]:
        """Return the examples in a result whose type is not one of the ``complete_types``.

        Args:
            results: a list of the result, which is taken out. An example must have only one owner,
                or it would be copied; so the caller keeps no reference to it.
            value: the value for which the function was called.
        """
        made = results.pop()
        if type(made) in _PLAIN and made is not None:
            return (copy_if_shared(made, value),)
        examples = self.examples_of(made)
        if type(examples) is not tuple or not examples:
            return examples
        del examples  # the example must have only one owner
        return (copy_if_shared(made, value),)

    def examples_of(self, made: Any) -> Iterable[Any]:
        if inspect.isgenerator(made):
            return self._many(made)
        if made is None:
            return self._none()
        refuse_awaitable(function_name(self.function), made)
        return (made,)

    def begin_async(self, item: Item) -> Any:
        """Call a coroutine function or an async generator function with an item.

        Returns:
            An async generator that makes its examples, or an awaitable; pass what that returns to
            `single_example`.
        """
        made = self._made(item) if self.takes_rng else self.call(item.value)
        return self.examples_of_async(made) if type(made) is AsyncGeneratorType else made

    def single_example(self, made: Any, item: Item) -> tuple[Any, ...]:
        """Return what a coroutine function has returned as the examples of its item."""
        if made is None:
            return self._none()
        return (made if type(made) in _IMMUTABLE else copy_if_shared(made, item.value),)

    def make_no_copies(self) -> None:
        """Return examples as they are: each caller enqueues one, and so copies it, at once."""
        self.complete_types = _PLAIN - {type(None)}

    def watch_draws(self) -> None:
        """Watch the next calls on threads for draws from the program's global generators."""
        if self._finder is None:
            if getattr(self.function, "finds_draws", False):
                return  # it does so itself
            self._finder = DrawsFinder(function_name(self.function), _CURE)
        self.call = SamplingFinder(self._finder, self)

    def remove_finder(self) -> None:
        self.call = self.function

    def _made(self, item: Item) -> Any:
        if not self.takes_rng:
            return self.call(item.value)
        return self.call(item.value, rng=rng(self.seed, item.epoch, item.index))

    def _many(self, made: Iterator[Any]) -> Iterator[Any]:
        for example in made:
            if example is not None:
                yield copy_if_shared(example)
            else:
                self._none()

    async def examples_of_async(self, made: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, None]:
        async with aclosing(made):  # otherwise the garbage collector would close it, later
            async for example in made:
                if example is not None:
                    yield copy_if_shared(example)
                else:
                    self._none()

    def _none(self) -> tuple[()]:
        if not self.drop_none:
            raise TypeError(
                f"{function_name(self.function)} returned None; return an example, or pass"
                " drop_none=True to leave such items out"
            )
        return ()


def takes_rng(function: Any) -> bool:
    """Return whether a function has a parameter ``rng`` that no partial has bound."""
    return takes(function, "rng")


def failure_of(item: Item, error: BaseException, name: str) -> Exception:
    """Return the failure of an item as it is reported, with a note that names the item.

    An exception that would look like the end of the source is wrapped, as the function raised it.

    Args:
        item: the item.
        error: the exception that was raised.
        name: the name of the stage.
    """
    message = f"the function raised {describe_exception(error)}"
    failure = as_failure(error, message)
    if not isinstance(failure, Exception):
        failure = RuntimeError(message)
        failure.__cause__ = error
    note = f"while preparing {item.describe()}"
    add_note(failure, FailureNote(note, f"{name} failed on {item.title()}"))
    if isinstance(error, ValueError) and "read-only" in str(error):
        add_note(
            failure,
            "items of arrays are read-only views: let the function write into item.copy()",
        )
    if isinstance(item.value, tuple) and _wants_more(error):
        add_note(
            failure, "an item is passed as one argument: let the function unpack the tuple itself"
        )
    return failure


def _wants_more(error: BaseException) -> bool:
    """Return whether our own call lacked arguments, rather than a call in the function."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    is_ours = traceback is not None and traceback.tb_frame.f_globals.get("__name__") in _CALLERS
    return is_ours and type(error) is TypeError and "required positional argument" in str(error)


_TOO_FEW: Final = 10
"""Up to this number of failures, their share is not judged before the end."""


_log: Final = logging.getLogger("aioqueue")
