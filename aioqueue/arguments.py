"""Checks of arguments that all parts of the house have in common, each said once.

What is an int, how many, how many seconds, whether: whoever takes such an argument accepts the same
values, Python's and NumPy's, and refuses the same ones in the same words.

Questions about functions that users hand over: how one is to be called, and what it is called.

A coroutine function has to be awaited in an event loop and a plain one has to run on a thread, so
whoever takes functions asks which of the two it was given. All ask here, and get the same answer
for a function, a method, a `functools.partial` of one, and an object with ``__call__``.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np

from aioqueue.errors import InvalidArgumentError, counted

__all__ = (
    "Answers",
    "EnqueueOp",
    "check_version",
    "checked_count",
    "checked_flag",
    "checked_grace",
    "checked_seconds",
    "checked_watchdog",
    "counted",
    "function_name",
    "is_async",
    "is_coroutine_function",
    "is_int",
    "makes_several",
    "refuse_awaitable",
)


def check_version(version: Any, expected: int, name: str) -> None:
    """Check the version of something that was saved.

    Args:
        version: what it has.
        expected: what this aioqueue writes.
        name: of the argument.

    Raises:
        InvalidArgumentError: it is another one; the message says what to do.
    """
    if is_int(version) and version == expected:
        return
    if not is_int(version):
        raise InvalidArgumentError(f"{name}: got version {version!r}; expected version {expected}")
    is_newer = version > expected
    whose = "a newer" if is_newer else "an earlier"
    instead = (
        "install that one to go on from it"
        if is_newer
        else ("it cannot be read any more, so begin the run anew, or end it with that aioqueue")
    )
    raise InvalidArgumentError(
        f"{name}: got version {version}, which {whose} aioqueue has written; expected version"
        f" {expected}: {instead}"
    )


def is_int(value: Any) -> TypeGuard[int]:
    """Whether it is an int, NumPy's included, and no bool.

    A `numpy.timedelta64` is none, though NumPy derives it from its ints.
    """
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)


def checked_count(value: Any, what: str, *, least: int = 0) -> int:
    """Check how many, or how large: an int that is large enough.

    Args:
        value: what was given.
        what: what the message calls it.
        least: the smallest that is right.

    Raises:
        InvalidArgumentError: it is none.
    """
    if not is_int(value) or value < least:
        raise InvalidArgumentError(f"{what}: got {value!r}; expected an int >= {least}")
    return int(value)


def checked_seconds(value: Any, what: str, *, otherwise: str = "") -> float:
    """Check a duration: a number of seconds >= 0, however large.

    Args:
        value: what was given.
        what: what the message calls it.
        otherwise: what else would have been right: ", or None", say.

    Returns:
        The seconds; of those that no clock can count, the most that a thread can wait.

    Raises:
        InvalidArgumentError: it is none.
    """
    number = _number(value)
    if number is None or not number >= 0:
        raise InvalidArgumentError(
            f"{what}: got {value!r}; expected a number of seconds >= 0{otherwise}"
        )
    return float(min(number, threading.TIMEOUT_MAX))


def checked_grace(value: Any, what: str) -> float:
    """Check a grace period: a number of seconds, where less than none is none.

    Raises:
        InvalidArgumentError: it is none.
    """
    number = _number(value)
    if number is None or number != number:
        raise InvalidArgumentError(f"{what}: got {value!r}; expected a number of seconds")
    return checked_seconds(max(number, 0), what)


def checked_watchdog(seconds: Any) -> float | None:
    """Check a watchdog: more than 0 seconds, or ``None`` for none.

    Raises:
        InvalidArgumentError: it is neither.
    """
    if seconds is None:
        return None
    number = _number(seconds)
    if number is None or not number > 0:
        raise InvalidArgumentError(
            f"watchdog: got {seconds!r}; expected a number of seconds > 0, or None"
        )
    return checked_seconds(seconds, "watchdog")


def checked_flag(value: Any, what: str) -> bool:
    """Check a bool.

    Raises:
        InvalidArgumentError: it is none.
    """
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{what}: got {value!r}; expected a bool")
    return value


def _number(value: Any) -> float | None:
    """A number as Python's own, which are compared by value; ``None`` if it is none."""
    if is_int(value):
        return int(value)
    return float(value) if isinstance(value, float | np.floating) else None


EnqueueOp = Callable[[], Any]
"""What a worker calls again and again: it makes an element and enqueues it. A coroutine function
runs as a task, a plain function on a thread."""


def is_coroutine_function(function: Any) -> bool:
    """Whether calling it returns a coroutine, which has to be awaited."""
    return any(map(inspect.iscoroutinefunction, _called(function)))


def is_async(function: Any) -> bool:
    """Whether it has to run in an event loop: a coroutine or an async generator function."""
    return any(
        inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one)
        for one in _called(function)
    )


def makes_several(function: Any) -> bool:
    """Whether it is a generator function of either kind."""
    return any(
        inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one)
        for one in _called(function)
    )


def function_name(function: Any) -> str:
    """What messages and workers call it: its ``__name__``, or that of its class if it has none."""
    function = _without_partials(function)
    return str(getattr(function, "__name__", type(function).__name__))


def refuse_awaitable(what: str, result: object, instead: str | None = None) -> None:
    """Refuse what a plain function has returned if someone would have to await it.

    Args:
        what: who has returned it.
        result: what it has returned.
        instead: what to do; ``None``: to make it a function that is awaited.

    Raises:
        TypeError: it must be awaited.
    """
    if result is None:  # as of most that enqueue
        return
    is_asyncgen = inspect.isasyncgen(result)
    if not (is_asyncgen or inspect.isawaitable(result)):
        return
    if inspect.iscoroutine(result):
        result.close()
    if instead is None:
        instead = "make it a coroutine function (`async def`)"
        if is_asyncgen:
            instead = "make it an async generator function (`async def` with `yield`)"
    kind = type(result).__name__
    article = "an" if kind[0] in "aeiouAEIOU" else "a"
    raise TypeError(f"{what} is a plain function but returned {article} {kind}: {instead}")


class Answers:
    """Sees to it that the answers of a plain function are not to be awaited; each kind once.

    For functions that are called for every row.

    Args:
        what: the argument that the function was given as.
        function: whose answers they are.
        instead: what to do.
    """

    __slots__ = ("_instead", "_kinds", "_what")

    def __init__(self, what: str, function: Any, instead: str) -> None:
        self._what = f"{what}: {function_name(function)}"
        self._instead = instead
        self._kinds: set[type] = set()

    def check(self, answer: object) -> None:
        """Check one.

        Raises:
            TypeError: it must be awaited.
        """
        kind = type(answer)
        if kind not in self._kinds:
            refuse_awaitable(self._what, answer, self._instead)
            self._kinds.add(kind)


def _called(function: Any) -> tuple[Any, Any]:
    """The function itself, and the method that runs if it is an object that can be called."""
    function = _without_partials(function)
    call = getattr(type(function), "__call__", None)  # noqa: B004  # the method itself
    return function, call


def _without_partials(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function
