"""Classify exceptions: an end, a stop or a failure.

Runners, `prepare` and coordinators catch exceptions that need not be failures. The class alone does
not tell; it also matters who requested it:

* an **end** is one of the classes that the catcher names: its own queue or source has ended;
* a **stop** is an exception that a requested stop makes workers raise; a cancellation of this very
  task since the catcher's call began (`Call`), by its scope or by `asyncio.Task.cancel`; or
  `GeneratorExit` in a task whose event loop is gone;
* a **failure** is everything else, including a cancellation that was not requested of this task
  (something that it awaited was cancelled), and the end of a queue that is not the catcher's.

A group counts as its worst member: it is an end only if all are, and a failure if one is.
"""

from __future__ import annotations

import concurrent.futures
import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from time import perf_counter
from typing import Any, Final

from aioqueue.coordination.cancellations import (
    Call,
    is_being_cancelled,
    is_cancellation,
    running_task,
)
from aioqueue.core.elements.values import is_iterable
from aioqueue.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    OutOfRangeError,
    QueueClosedError,
)
from aioqueue.worlds.scopes import current_scopes
from aioqueue.worlds.waker import current_worker

_STOPPING: Final = (QueueClosedError, OutOfRangeError, concurrent.futures.CancelledError)
"""Exceptions that a stop raises in workers that wait for a queue or inside a scope."""

_MISTAKABLE: Final = (*_STOPPING, StopIteration, StopAsyncIteration)
"""Exceptions that a caller further up would mistake for an end or a stop."""


class Classification(IntEnum):
    """The classes of exceptions. In a group, the greatest counts."""

    END = 0
    STOP = 1
    FAILURE = 2


def classify(
    error: BaseException,
    ends: tuple[type[BaseException], ...] = (),
    *,
    stopping: bool = False,
    owner: Call | None = None,
) -> Classification:
    """Classify an exception. Call this where you have caught it, before you await anything.

    Args:
        error: the exception.
        ends: the classes that mean the end of the catcher's own queue or source.
        stopping: whether a stop was requested of the catcher.
        owner: the call of a task whose coroutine has caught it; ``None`` for a thread. If another
            task is running now, the coroutine is being closed.
    """
    if isinstance(error, ends):
        return Classification.END
    if isinstance(error, BaseExceptionGroup):
        return max(
            classify(part, ends, stopping=stopping, owner=owner) for part in error.exceptions
        )
    if isinstance(error, GeneratorExit):
        # Thrown by what closes the coroutine: the collector, after the loop has ended. Another
        # task, or none, runs then. In the task itself, user code has raised it.
        is_closed = owner is not None and owner.task not in (None, running_task())
        return Classification.STOP if is_closed else Classification.FAILURE
    if is_cancellation(error):
        return (
            Classification.STOP if stopping or is_being_cancelled(owner) else Classification.FAILURE
        )
    # Without a stop, the end of another queue than the catcher's is a failure: nobody expects it.
    is_stop = stopping and isinstance(error, _STOPPING)
    return Classification.STOP if is_stop else Classification.FAILURE


def ended_by_scope(error: BaseException) -> bool:
    """Return whether a scope around the calling thread, or the stop of its coordinator, has ended a
    wait by this exception. Then the thread leaves what it is in, and nothing has failed."""
    if not isinstance(error, CancelledError | DeadlineExceededError):
        return False
    # The stop may end a wait by a scope that the thread has not entered: by that of its worker.
    worker = current_worker.get()
    if worker is not None and worker.is_stopped:
        return True
    now = perf_counter()
    return any(one.cancelled or (one.deadline or math.inf) <= now for one in current_scopes())


def owner_of_caller() -> Callable[[], Any]:
    """Return a function that returns the running task (a weak reference), or this thread's id."""
    task = running_task()
    if task is not None:
        return weakref.ref(task)
    ident = threading.get_ident()
    return lambda: ident


def cause_of(error: BaseException) -> BaseException | None:
    """Return the failure behind an end: the cause of the first exception that has one."""
    return next((leaf.__cause__ for leaf in leaves_of(error) if leaf.__cause__ is not None), None)


def is_fatal(error: BaseException) -> bool:
    """Return whether it ends the program rather than an item, as `KeyboardInterrupt` does."""
    return any(
        not isinstance(leaf, Exception) and not _is_task_local(leaf) for leaf in leaves_of(error)
    )


def as_failure(error: BaseException, message: str) -> BaseException:
    """Return the failure in a form that no caller further up mistakes for an end or a stop.

    Args:
        error: the failure. If it is unmistakable, it is returned as it is.
        message: the message of the `RuntimeError` that wraps a failure that is not.
    """
    # A group passes for an end or a stop only if all its members do. A group that is no `Exception`
    # because of a stray cancellation would pass all handlers of `Exception`.
    leaves = list(leaves_of(error))
    could_pass = all(isinstance(leaf, _MISTAKABLE) or _is_task_local(leaf) for leaf in leaves)
    is_mixed = not isinstance(error, Exception) and any(map(_is_task_local, leaves))
    if not (could_pass or is_mixed) or is_fatal(error):
        return error
    wrapped = RuntimeError(message)
    wrapped.__cause__ = error
    return wrapped


def without_stops(error: BaseException, owner: Call | None = None) -> BaseException | None:
    """Return the failures of a group, without the requested cancellations among them.

    Args:
        error: the exception that was caught.
        owner: as for `classify`.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error if classify(error, owner=owner) is Classification.FAILURE else None
    is_stop: Callable[[Any], bool] = lambda leaf: (  # noqa: E731
        is_cancellation(leaf) and is_being_cancelled(owner)
    )
    return error.split(is_stop)[1] if any(map(is_stop, leaves_of(error))) else error


def _is_task_local(error: BaseException) -> bool:
    """Return whether it concerns one task or generator, and means nothing to another."""
    return isinstance(error, GeneratorExit) or is_cancellation(error)


def failures_behind(
    error: BaseException, ends: tuple[type[BaseException], ...], *, of_producers: bool = True
) -> Iterator[BaseException]:
    """Yield the failures that closed the queues whose ends an exception, or a group, reports.

    Args:
        error: the exception that was raised.
        ends: the classes that are ends, also among the causes.
        of_producers: whether a `QueueClosedError` reports such an end, too, although ``ends`` may
            lack it.
    """
    reports = (OutOfRangeError, QueueClosedError) if of_producers else (OutOfRangeError,)
    for leaf in leaves_of(error):
        # The cause of an end may be the end of another queue, and so on: the first that is no end
        # is the failure. A class that was named as an end is one, whatever has caused it.
        cause: BaseException | None = leaf
        while cause is not None and isinstance(cause, (*reports, *ends)):
            is_named = isinstance(cause, ends) and not isinstance(cause, OutOfRangeError)
            cause = None if is_named else cause.__cause__
        if cause is not None and cause is not leaf:
            yield cause


def part_without(known: set[int], error: BaseException) -> BaseException | None:
    """Return an exception without its known members; ``None`` if no other is left.

    Args:
        known: the identities of those.
        error: the exception; one that is no group comes back itself.
    """
    if not isinstance(error, BaseExceptionGroup) or not known:
        return error
    is_known = [id(leaf) in known for leaf in leaves_of(error)]
    if not any(is_known):
        return error
    if all(is_known):
        return None
    is_new: Callable[[Any], bool] = lambda part: (  # noqa: E731
        not isinstance(part, BaseExceptionGroup) and id(part) not in known
    )
    rest: BaseException | None = error.subgroup(is_new)
    return rest


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group, and in the groups inside; or the exception itself."""
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
