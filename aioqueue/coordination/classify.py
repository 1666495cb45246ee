"""What a raised object means to the code that has caught it: decided here, once.

Runners, `prepare` and coordinators all meet exceptions that need not be failures. What one is shows
not in its class alone, but in who asked for it:

* an **end** is one of the classes that the catcher has named: its own queue or source has ended;
* a **stop** is what stopping makes workers raise, once a stop was requested; or the cancellation of
  this very task, by its scope or by `asyncio.Task.cancel`, by anyone, since the catcher's call
  began (`Call`); or `GeneratorExit` in a task that nobody runs any more;
* everything else is a **failure**: also a cancellation that nobody has asked of this task (what it
  awaited was cancelled), and a clean stop of somebody else's queue.

A group is the worst of what is in it: an end if all are, a failure if one is.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Any, Final

import anyio

from aioqueue.elements import is_iterable
from aioqueue.errors import (
    InvalidArgumentError,
    OutOfRangeError,
    QueueClosedError,
    add_note,
    describe_exception,
    exception_text,
    set_cause,
)
from aioqueue.waiting import loaded_trio, running_loop

__all__ = (
    "Call",
    "Classification",
    "add_note",
    "as_failure",
    "cause_of",
    "checked_clean_types",
    "classify",
    "delivered_cancellations",
    "describe_exception",
    "exception_text",
    "failures_behind",
    "is_being_cancelled",
    "is_cancellation",
    "is_fatal",
    "leaves_of",
    "running_task",
    "set_cause",
    "without_stops",
)

_STOPPING: Final = (QueueClosedError, OutOfRangeError, concurrent.futures.CancelledError)
"""What a stop makes those raise that wait for a queue or within a scope."""

_PASSING: Final = (*_STOPPING, StopIteration, StopAsyncIteration)
"""What someone further up would take for an end or a stop."""


class Call:
    """A call that begins now in the running task, if there is one.

    Whether somebody cancels the task is judged from here on. What was left behind before (by a
    task group of Python 3.11 whose child has failed, by an old timeout) is nobody's request.
    """

    __slots__ = ("cancellations", "task")

    def __init__(self) -> None:
        self.task = running_task()
        self.cancellations = delivered_cancellations(self.task)


class Classification(IntEnum):
    """What a raised object means; of several, the greatest counts."""

    END = 0
    STOP = 1
    FAILURE = 2


def classify(
    error: BaseException,
    ends: tuple[type[BaseException], ...] = (),
    *,
    stopping: bool = False,
    owner: object = None,
) -> Classification:
    """Decide what an exception means; to be called where it was caught, before anything is awaited.

    Args:
        error: what was caught.
        ends: the classes by which the catcher's own queue or source ends.
        stopping: whether the catcher was told to stop.
        owner: the task whose coroutine has caught it (`running_task`, asked before), or the `Call`
            that has; ``None`` for a thread. If another one is running, the coroutine is just being
            closed.
    """
    if isinstance(error, ends):
        return Classification.END
    if isinstance(error, BaseExceptionGroup):
        return max(
            classify(part, ends, stopping=stopping, owner=owner) for part in error.exceptions
        )
    if isinstance(error, GeneratorExit):
        task = owner.task if isinstance(owner, Call) else owner
        is_closed = task is not None and running_task() is not task
        return Classification.STOP if is_closed else Classification.FAILURE
    if is_cancellation(error):
        return (
            Classification.STOP if stopping or is_being_cancelled(owner) else Classification.FAILURE
        )
    is_stop = stopping and isinstance(error, _STOPPING)
    return Classification.STOP if is_stop else Classification.FAILURE


def is_cancellation(error: BaseException) -> bool:
    """Whether an exception is how asyncio or trio cancels a task."""
    if isinstance(error, asyncio.CancelledError):
        return True
    trio = loaded_trio()
    return trio is not None and isinstance(error, trio.Cancelled)


def is_being_cancelled(since: object = None) -> bool:
    """Whether someone has cancelled the running task, and not just something that it awaits.

    Args:
        since: the `Call` from which on requests count; if it is none, all of the task's life does.
    """
    if running_loop() is not None:
        task = asyncio.current_task()
        if task is None:
            return False
        before = since.cancellations if isinstance(since, Call) else 0
        if _requests(task) > before:
            return True
        return bool(anyio.current_effective_deadline() == -math.inf)
    trio = loaded_trio()
    if trio is None or not trio.lowlevel.in_trio_task():
        return False  # a thread, which no one can cancel
    return bool(trio.current_effective_deadline() == -math.inf)


def delivered_cancellations(task: object) -> int:
    """How many requests of `asyncio.Task.cancel` the running task has felt so far; 0 in trio.

    One that comes while the task itself runs is felt at its next wait, and is not among them.
    """
    if not isinstance(task, asyncio.Task):
        return 0
    return _requests(task) - bool(getattr(task, "_must_cancel", False))


def _requests(task: asyncio.Task[Any]) -> int:
    """How often a task has been asked to end; of our own tasks, by what is outside of them."""
    inner: int = getattr(task, "inner_cancellations", 0)
    return task.cancelling() - inner


def running_task() -> object:
    """The task that is running; ``None`` outside of tasks."""
    if running_loop() is not None:
        return asyncio.current_task()
    trio = loaded_trio()
    if trio is not None and trio.lowlevel.in_trio_task():
        task: object = trio.lowlevel.current_task()
        return task
    return None


def cause_of(error: BaseException) -> BaseException | None:
    """The failure that an end has brought along: the cause of the first one that has any."""
    return next((leaf.__cause__ for leaf in leaves_of(error) if leaf.__cause__ is not None), None)


def is_fatal(error: BaseException) -> bool:
    """Whether it is like `KeyboardInterrupt` or `SystemExit`: no failure of an item, but of all."""
    return any(not isinstance(leaf, Exception) and not _is_stray(leaf) for leaf in leaves_of(error))


def as_failure(error: BaseException, message: str) -> BaseException:
    """A failure in a form that no one further up can take for an end or a stop.

    Args:
        error: the failure; what could not be mistaken comes back as it is.
        message: what to say of one that could, which becomes the cause of a `RuntimeError`.
    """
    leaves = list(leaves_of(error))
    could_pass = all(isinstance(leaf, _PASSING) or _is_stray(leaf) for leaf in leaves)
    is_mixed = not isinstance(error, Exception) and any(map(_is_stray, leaves))
    if not (could_pass or is_mixed) or is_fatal(error):
        return error
    wrapped = RuntimeError(message)
    wrapped.__cause__ = error
    return wrapped


def without_stops(error: BaseException, owner: object = None) -> BaseException | None:
    """What has failed, without the cancellations that were asked for and are grouped with it.

    Args:
        error: what was caught.
        owner: as for `classify`.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error if classify(error, owner=owner) is Classification.FAILURE else None
    is_stop: Callable[[Any], bool] = lambda leaf: (  # noqa: E731
        is_cancellation(leaf) and is_being_cancelled(owner)
    )
    return error.split(is_stop)[1] if any(map(is_stop, leaves_of(error))) else error


def _is_stray(error: BaseException) -> bool:
    """What belongs to one task or generator, and has no meaning to another."""
    return isinstance(error, GeneratorExit) or is_cancellation(error)


def failures_behind(
    error: BaseException, ends: tuple[type[BaseException], ...]
) -> Iterator[BaseException]:
    """The failures that have closed the queues whose ends an exception, or a group, tells.

    Args:
        error: what was raised.
        ends: the classes that are ends, also those of what has closed a queue.
    """
    for leaf in leaves_of(error):
        cause: BaseException | None = leaf
        while isinstance(cause, (OutOfRangeError, *ends)):
            cause = cause.__cause__ if isinstance(cause, OutOfRangeError) else None
        if cause is not None and cause is not leaf:
            yield cause


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group, and in the groups within; or the exception itself."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from leaves_of(part)
    else:
        yield error


def checked_clean_types(
    types: Iterable[type[BaseException]] | None,
) -> tuple[type[BaseException], ...]:
    if types is None:
        return (OutOfRangeError,)
    listed: tuple[Any, ...] = tuple(types) if is_iterable(types) else (types,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in listed):
        raise InvalidArgumentError(
            f"clean_stop_exception_types: got {types!r}; expected a tuple of exception classes"
        )
    return listed
