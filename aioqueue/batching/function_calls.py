"""How the function of a batcher is called, and what its results and failures mean.

A batch ends with one outcome per request: a result, or an exception for that caller. What the
function raises is the outcome of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import partial
from types import TracebackType
from typing import Any, Protocol

from aioqueue.arguments import function_name, refuse_awaitable
from aioqueue.coordination.classify import (
    Call,
    Classification,
    as_failure,
    classify,
    describe_exception,
    is_fatal,
)
from aioqueue.elements import is_iterable

__all__ = ("CallsHere", "FunctionCaller", "call", "call_async", "failure_of")


class FunctionCaller(Protocol):
    """Who calls the function, for one worker that is a thread; there as long as that works."""

    def __enter__(self) -> FunctionCaller:
        """The worker begins."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """It has ended."""

    def make_ready(self) -> None:
        """See to it that a batch could be worked on at once. Nobody waits for this yet.

        Raises:
            BaseException: that is not possible, and will not be.
        """

    def __call__(self, batch: list[Any]) -> list[Any]:
        """See `call`."""


class CallsHere:
    """Calls it in the worker's own thread.

    Args:
        function: what is called.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._call = partial(call, function)

    def __enter__(self) -> CallsHere:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def make_ready(self) -> None:
        pass

    def __call__(self, batch: list[Any]) -> list[Any]:
        return self._call(batch)


def call(function: Callable[..., Any], batch: list[Any]) -> list[Any]:
    """Call a plain function with a batch.

    Returns:
        One outcome per value; those that are exceptions are failures.

    Raises:
        BaseException: `SystemExit` and the like, which end more than a batch.
    """
    n = len(batch)  # the list is the function's, which may empty it
    try:
        return _outcomes(function, function(batch), n)
    except BaseException as error:
        if is_fatal(error):
            raise
        return [failure_of(function, error)] * n


async def call_async(function: Callable[..., Any], batch: list[Any]) -> list[Any]:
    """Call a coroutine function with a batch, and await it.

    Returns:
        As `call`.

    Raises:
        BaseException: `SystemExit` and the like, and the cancellation of the task that calls.
    """
    call, n = Call(), len(batch)
    try:
        return _outcomes(function, await function(batch), n)
    except BaseException as error:
        if is_fatal(error) or classify(error, owner=call) is Classification.STOP:
            raise
        return [failure_of(function, error)] * n


def _outcomes(function: Any, returned: Any, n: int) -> list[Any]:
    name = function_name(function)
    refuse_awaitable(name, returned, "make it a coroutine function (`async def`)")
    if isinstance(returned, str | bytes | Mapping | Set) or not is_iterable(returned):
        raise TypeError(
            f"{name} returned a {type(returned).__name__}; expected a list or an array of"
            f" {n} results, one per request in the order of the batch"
        )
    results = list(returned)
    if len(results) != n:
        raise ValueError(
            f"{name} returned {len(results)} results for a batch of {n}; expected one per request"
            " in the order of the batch"
        )
    return [
        failure_of(function, result) if isinstance(result, BaseException) else result
        for result in results
    ]


def failure_of(function: Any, error: BaseException) -> Exception:
    """A failure as callers get it: nothing that they could take for an end or a stop of theirs."""
    message = f"{function_name(function)} raised {describe_exception(error)}"
    failure = as_failure(error, message)
    if not isinstance(failure, Exception):
        failure = RuntimeError(message)
        failure.__cause__ = error
    return failure
