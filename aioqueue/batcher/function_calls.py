"""Call the function of a batcher, and turn its results and failures into outcomes.

A batch has one outcome per request: a result, or an exception for that caller. An exception that
the function raises is the outcome of every request. A result is its caller's alone: a function may
use the memory of one batch for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from types import TracebackType
from typing import Any, Literal, Protocol, get_args

import numpy as np

from aioqueue.base.arguments import function_name, is_coroutine_function, refuse_awaitable, takes
from aioqueue.coordination.cancellations import Call
from aioqueue.coordination.classify import Classification, as_failure, classify, is_fatal
from aioqueue.core.elements.ownership import FIXED, copy_if_shared, copy_shared_parts
from aioqueue.core.elements.values import is_iterable, is_table
from aioqueue.errors import InvalidArgumentError, describe_exception

Where = Literal["auto", "task", "thread", "process"]
"""Where the function of a batcher runs."""


OnFailure = Literal["fail", "one_by_one"]
"""How a batch ends for which the function of a batcher has raised."""


class FailedBatch(list[Any]):
    """The outcomes of a batch that has failed as a whole: one failure, once per request."""


class FunctionCaller(Protocol):
    """Calls the function for one worker on a thread, for as long as the worker runs."""

    def __enter__(self) -> FunctionCaller: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def make_ready(self) -> None:
        """Prepare for a batch, so that it can start at once. No caller waits for this yet.

        Raises:
            BaseException: that is impossible, and will remain so.
        """

    def __call__(self, batch: list[Any], **more: Any) -> list[Any]: ...


class CallsHere:
    """Calls the function in the worker's own thread.

    Args:
        function: the function to call.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._call = partial(call, function)

    def __enter__(self) -> CallsHere:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def make_ready(self) -> None:
        pass

    def __call__(self, batch: list[Any], **more: Any) -> list[Any]:
        return self._call(batch, **more)


def call(function: Callable[..., Any], batch: list[Any], **more: Any) -> list[Any]:
    """Call a plain function with a batch.

    Args:
        function: the function.
        batch: its first argument, a list of one value per caller.
        **more: its keyword arguments.

    Returns:
        One outcome per value; an exception is a failure. A `FailedBatch` if the function has
        raised, or returned no results for the batch.

    Raises:
        BaseException: `SystemExit` and the like, which end more than a batch.
    """
    n = len(batch)  # counted now, because the function may empty its list
    try:
        return _outcomes(function, function(batch, **more), batch, n)
    except BaseException as error:
        if is_fatal(error):
            raise
        return FailedBatch([failure_of(function, error)] * n)


async def call_async(function: Callable[..., Any], batch: list[Any], **more: Any) -> list[Any]:
    """Call a coroutine function with a batch, and await it.

    Args:
        function: the function.
        batch: its first argument.
        **more: its keyword arguments.

    Returns:
        The same as `call`.

    Raises:
        BaseException: `SystemExit` and the like, or the cancellation of the calling task.
    """
    call, n = Call(), len(batch)
    try:
        return _outcomes(function, await function(batch, **more), batch, n)
    except BaseException as error:
        if is_fatal(error) or classify(error, owner=call) is Classification.STOP:
            raise
        return FailedBatch([failure_of(function, error)] * n)


def _outcomes(function: Any, returned: Any, batch: list[Any], n: int) -> list[Any]:
    """Return one result per caller, which is the caller's alone.

    No other batch can change it, though the function may write each batch to the same array, or
    return what it keeps. No other caller can, though several may get the same row, or overlapping
    ones. And no request changes with it, though the function may return a part of its batch.
    """
    name = function_name(function)
    refuse_awaitable(name, returned, "make it a coroutine function (`async def`)")
    if _is_no_list(returned):
        raise TypeError(
            f"{name} returned a {type(returned).__name__}; expected a list or an array of"
            f" {n} results, one per request in the order of the batch"
        )
    if type(returned) is list and FIXED.issuperset(map(type, returned)):
        results = list(returned)
    elif isinstance(returned, Iterator):
        results = [copy_if_shared(result) for result in returned]
    elif _is_array(returned):
        returned = copy_if_shared(returned)  # as a whole: its rows are apart
        results = list(returned)
    else:
        if type(returned) is not list:
            returned = list(returned)  # drops the container, which holds its parts, too
        results = copy_shared_parts(returned)
    if len(results) != n:
        raise ValueError(
            f"{name} returned {len(results)} results for a batch of {n}; expected one per request"
            " in the order of the batch"
        )
    return [
        failure_of(function, result) if isinstance(result, BaseException) else result
        for result in results
    ]


def _is_array(returned: Any) -> bool:
    """Return whether its rows are views of memory that can be copied as a whole."""
    if isinstance(returned, np.ndarray):
        return not returned.dtype.hasobject
    return hasattr(returned, "__dlpack__")


def _is_no_list(returned: Any) -> bool:
    """Return whether it has no results in the order of the batch. The parts of a named tuple, such
    as the labels and scores of a model, are each for the whole batch."""
    is_named = isinstance(returned, str | bytes | Mapping | Set) or is_table(returned)
    is_record = isinstance(returned, tuple) and type(returned) is not tuple
    return is_named or is_record or not is_iterable(returned)


def failure_of(function: Any, error: BaseException) -> Exception:
    """Make the failure for callers: one that they cannot mistake for an end or a stop."""
    message = f"{function_name(function)} raised {describe_exception(error)}"
    failure = as_failure(error, message)
    if not isinstance(failure, Exception):
        failure = RuntimeError(message)
        failure.__cause__ = error
    return failure


def checked_function(function: Any) -> Callable[..., Any]:
    """Return the function if it can be called.

    Raises:
        InvalidArgumentError: it cannot be called.
    """
    if not callable(function):
        raise InvalidArgumentError(
            f"function: got {function!r}; expected a function that gets a list of requests and"
            " returns one result per request"
        )
    return function  # type: ignore[no-any-return]


def takes_contexts(function: Any, where: Where) -> bool:
    """Return whether a function has a parameter ``contexts``, for the contexts of the callers.

    Raises:
        InvalidArgumentError: it has, and runs in a process.
    """
    if not takes(function, "contexts"):
        return False
    if where == "process":
        raise InvalidArgumentError(
            f"function: got {function_name(function)!r}, which has a parameter 'contexts', with"
            " where='process'; expected a function without it, since contexts cannot be pickled:"
            " put what it needs of them into the values, or use where='thread'"
        )
    return True


def checked_where(where: Any, function: Any) -> Where:
    """Return where the function runs, with ``"auto"`` resolved.

    Raises:
        InvalidArgumentError: ``where`` is unknown, or the function cannot run there.
    """
    if where not in get_args(Where):
        raise InvalidArgumentError(
            f"where: got {where!r}; expected 'auto', 'task', 'thread' or 'process'"
        )
    fitting: Where = "task" if is_coroutine_function(function) else "thread"
    if where == "process" and fitting == "thread":
        return "process"
    if where not in ("auto", fitting):
        what = "a coroutine function" if where == "task" else "a plain function"
        raise InvalidArgumentError(
            f"function: got {function_name(function)!r} with where={where!r}; expected {what}, or"
            " where='auto'"
        )
    return fitting
