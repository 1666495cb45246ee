"""Checks of arguments, and questions about functions that users pass.

Every part of the library that takes an int, a count, a number of seconds or a flag checks it here.
So all accept the same values, Python's and NumPy's, and refuse the same values with the same words.

A coroutine function must be awaited in an event loop, and a plain function runs on a thread. Code
that takes either asks here which one it is. The answer is right for a function, a method, a
`functools.partial` of one, and an object with ``__call__``.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Protocol, TypeAlias, TypeGuard

from aioqueue.errors import InvalidArgumentError, with_article


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


def numpy_class(name: str) -> Any:
    """Return a class of NumPy to ask `isinstance`, without loading NumPy, which takes 0.1 s.

    If NumPy is not loaded, it is an empty tuple: no value can be of that class. (While another
    thread is loading it, this one cannot have such a value either.)
    """
    return getattr(sys.modules.get("numpy"), name, ())


def is_int(value: Any) -> TypeGuard[int]:
    """Return whether it is an int, NumPy's included, but not a bool.

    A `numpy.timedelta64` is not an int, though NumPy derives its class from one.
    """
    if isinstance(value, int):
        return not isinstance(value, bool)
    is_numpys = isinstance(value, numpy_class("integer"))
    return is_numpys and not isinstance(value, numpy_class("timedelta64"))


def checked_count(value: Any, what: str, *, least: int = 0) -> int:
    """Return a count or size as an int, if it is large enough.

    Args:
        value: the argument.
        what: its name in the message.
        least: the smallest valid value.

    Raises:
        InvalidArgumentError: it is not an int, or too small.
    """
    if not is_int(value) or value < least:
        raise InvalidArgumentError(f"{what}: got {value!r}; expected an int >= {least}")
    return int(value)


def checked_seconds(value: Any, what: str, *, otherwise: str = "") -> float:
    """Return a duration: a number of seconds >= 0, however large.

    Args:
        value: the argument.
        what: its name in the message.
        otherwise: further valid values for the message, such as ", or None".

    Returns:
        The seconds, at most as many as a thread can wait.

    Raises:
        InvalidArgumentError: it is not a duration.
    """
    number = _number(value)
    if number is None or not number >= 0:
        raise InvalidArgumentError(
            f"{what}: got {value!r}; expected a number of seconds >= 0{otherwise}"
        )
    return float(min(number, threading.TIMEOUT_MAX))


def checked_delay(seconds: Any) -> float:
    """Return the seconds to wait before a retry or a restart: a ``backoff``, or what it returned.

    Raises:
        InvalidArgumentError: it is not such a number.
    """
    function = ", or a function of the number of failures that returns one"
    return checked_seconds(seconds, "backoff", otherwise=function)


class BackoffWithError(Protocol):
    """A backoff that has a parameter ``error``."""

    def __call__(self, failures: int, /, *, error: Exception) -> float: ...


Backoff: TypeAlias = Callable[[int], float] | BackoffWithError
"""Returns the seconds to wait before a retry or a restart, from the number of failures."""


def delay_of(backoff: float | Backoff, failures: int, error: BaseException) -> float:
    """Return the seconds to wait after a failure, from a ``backoff``.

    Args:
        backoff: the seconds, or a function that returns them.
        failures: the number of failures, which the function gets.
        error: the latest one, which it gets if it has a parameter ``error``.

    Raises:
        InvalidArgumentError: what it returned are no such seconds.
        BaseException: what it raised.
    """
    if not callable(backoff):
        return checked_delay(backoff)
    more = {"error": error} if takes(backoff, "error") else {}
    function: Callable[..., float] = backoff
    return checked_delay(function(failures, **more))


def checked_exceptions(kinds: Any, what: str) -> tuple[type[Exception], ...]:
    """Return an exception class, or a tuple of them, as a tuple.

    Raises:
        InvalidArgumentError: it is neither.
    """
    listed = kinds if isinstance(kinds, tuple) else (kinds,)
    if not listed or not all(isinstance(k, type) and issubclass(k, Exception) for k in listed):
        raise InvalidArgumentError(
            f"{what}: got {kinds!r}; expected an exception class or a tuple of them"
        )
    return listed


def checked_share(value: Any, what: str) -> float:
    """Return a number from 0 to 1.

    Raises:
        InvalidArgumentError: it is not such a number.
    """
    number = _number(value)
    if number is None or not 0 <= number <= 1:
        raise InvalidArgumentError(f"{what}: got {value!r}; expected a number from 0 to 1")
    return float(number)


def checked_grace(value: Any, what: str) -> float:
    """Return a grace period: a number of seconds; a negative one counts as 0.

    Raises:
        InvalidArgumentError: it is not a number.
    """
    number = _number(value)
    if number is None or number != number:
        raise InvalidArgumentError(f"{what}: got {value!r}; expected a number of seconds")
    return checked_seconds(max(number, 0), what)


def checked_watchdog(seconds: Any) -> float | None:
    """Return a watchdog's period: more than 0 seconds, or ``None`` for no watchdog.

    Raises:
        InvalidArgumentError: it is neither.
    """
    return None if seconds is None else checked_period(seconds, "watchdog", otherwise=", or None")


def checked_period(value: Any, what: str, *, otherwise: str = "") -> float:
    """Return a number of seconds above 0, at most the longest time that a thread can wait.

    Args:
        value: what the caller gave.
        what: the argument's name, for the message.
        otherwise: what else the argument may be, as the end of the message.

    Raises:
        InvalidArgumentError: the value is not such a number.
    """
    checked_positive(value, what, kind="a number of seconds", otherwise=otherwise)
    return checked_seconds(value, what)


def checked_positive(
    value: Any, what: str, *, kind: str = "a number", otherwise: str = ""
) -> float:
    """Return a number above 0. The arguments are those of `checked_period`.

    Raises:
        InvalidArgumentError: the value is not such a number.
    """
    number = _number(value)
    if number is None or not number > 0:
        raise InvalidArgumentError(f"{what}: got {value!r}; expected {kind} > 0{otherwise}")
    return number


def checked_flag(value: Any, what: str) -> bool:
    """Return a bool.

    Raises:
        InvalidArgumentError: it is not a bool.
    """
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{what}: got {value!r}; expected a bool")
    return value


def checked_labels(value: Any, what: str) -> dict[str, Any]:
    """Return a copy of labels for metrics, such as ``{"rank": 3}``; ``None`` stands for no label.

    Raises:
        InvalidArgumentError: it is not a mapping with names as keys.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(
            f'{what}: got {value!r}; expected a mapping, such as {{"rank": 3}}'
        )
    for name in value:
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(f"{what}: got the name {name!r}; expected text")
    return dict(value)


def _number(value: Any) -> float | None:
    """Return a number as a Python number, which compares by value; ``None`` if it is not one."""
    if is_int(value):
        return int(value)
    return float(value) if isinstance(value, (float, numpy_class("floating"))) else None


EnqueueOp = Callable[[], Any]
"""The function that a worker calls in a loop: it makes an element and enqueues it. A coroutine
function runs in a task, a plain function on a thread."""


def is_coroutine_function(function: Any) -> bool:
    """Return whether calling it returns a coroutine, which must be awaited."""
    return any(map(inspect.iscoroutinefunction, _called(function)))


def takes(function: Any, name: str) -> bool:
    """Return whether a function can be given a parameter by name, and no partial has bound it."""
    if isinstance(function, functools.partial) and name in function.keywords:
        return False
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return False
    return name in parameters and parameters[name].kind is not inspect.Parameter.POSITIONAL_ONLY


def is_async(function: Any) -> bool:
    """Return whether it must run in an event loop: a coroutine or async generator function."""
    return any(
        inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one)
        for one in _called(function)
    )


def makes_several(function: Any) -> bool:
    """Return whether it is a generator function, plain or async."""
    return any(
        inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one)
        for one in _called(function)
    )


def function_name(function: Any) -> str:
    """Return its name for messages and workers: its ``__name__``, or that of its class."""
    function = _without_partials(function)
    return str(getattr(function, "__name__", type(function).__name__))


def name_of_work(function: Any, otherwise: str) -> str:
    """Return how workers and queues are named after a function; ``otherwise`` for a lambda."""
    name = function_name(function)
    return otherwise if name.startswith("<") else name


def refuse_awaitable(what: str, result: object, instead: str | None = None) -> None:
    """Refuse the result of a plain function if it must be awaited.

    Args:
        what: the function's name.
        result: its result.
        instead: what the user should do; ``None`` says to make it an async function.

    Raises:
        TypeError: the result must be awaited.
    """
    if result is None:  # the quick way out: most ops return nothing
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
    returned = with_article(type(result).__name__)
    raise TypeError(f"{what} is a plain function but returned {returned}: {instead}")


class Answers:
    """Checks that the results of a plain function need no await. It checks each class once.

    The check must be fast, because it runs for every row.

    Args:
        what: the name of the argument that the function is.
        function: the function.
        instead: what the user should do.
    """

    __slots__ = ("_instead", "_kinds", "_what")

    def __init__(self, what: str, function: Any, instead: str) -> None:
        self._what = f"{what}: {function_name(function)}"
        self._instead = instead
        self._kinds: set[type] = set()

    def check(self, answer: object) -> None:
        """Check a result.

        Raises:
            TypeError: it must be awaited.
        """
        kind = type(answer)
        if kind not in self._kinds:
            refuse_awaitable(self._what, answer, self._instead)
            self._kinds.add(kind)


def _called(function: Any) -> tuple[Any, Any]:
    """Return the function itself, and the method that runs if it is a callable object."""
    function = _without_partials(function)
    call = getattr(type(function), "__call__", None)  # noqa: B004  # the method itself
    return function, call


def _without_partials(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


class _WithoutThisFrame(AbstractContextManager[None]):
    """Leaves the frame that is in the context out of the tracebacks of what leaves it."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and traceback is not None:
            error.__traceback__ = traceback.tb_next


_WITHOUT_THIS_FRAME: Final = _WithoutThisFrame()


def with_known_keywords(
    function: Callable[..., Any],
    known: Collection[str],
    refuse: Callable[[tuple[Any, ...], str], Exception],
) -> Callable[..., Any]:
    """Return a function that looks at the names of its arguments before it calls another one.

    Args:
        function: what it calls.
        known: the names that it takes.
        refuse: makes the exception for another name, of the positional arguments and that name.
    """

    def check(args: tuple[Any, ...], keywords: Collection[str]) -> None:
        for keyword in keywords:
            if keyword not in known:
                raise refuse(args, keyword)

    @functools.wraps(function)
    def checked(*args: Any, **keywords: Any) -> Any:
        check(args, keywords)
        with _WITHOUT_THIS_FRAME:
            return function(*args, **keywords)

    # Its caller may ask first whether the function must be awaited.
    @functools.wraps(function)
    async def checked_when_awaited(*args: Any, **keywords: Any) -> Any:
        check(args, keywords)
        with _WITHOUT_THIS_FRAME:
            return await function(*args, **keywords)

    return checked_when_awaited if inspect.iscoroutinefunction(function) else checked
