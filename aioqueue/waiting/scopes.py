"""Ending blocking calls from outside: what a cancel scope is in anyio and trio, for threads.

A blocked thread cannot be cancelled as a task can. But what it waits for can be withdrawn, under
the lock of the queue, so that either the call has happened or nothing has.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from time import perf_counter
from types import TracebackType
from typing import Any, Final, Self
from weakref import WeakValueDictionary

from aioqueue.arguments import checked_seconds
from aioqueue.attempts import PENDING, WITHDRAWN, Attempt, Waker
from aioqueue.errors import counted
from aioqueue.locks import guarded
from aioqueue.waiting.waker import apply_deferred

__all__ = (
    "CancelScope",
    "StopScope",
    "cancelled_by",
    "current_scopes",
    "entered_scopes",
    "least_left",
    "stop_scopes",
    "unwatch",
    "watch",
)


class _Scopes(threading.local):
    """The scopes that the calling thread is in, outermost first."""

    entered: tuple[CancelScope, ...] = ()


_scopes = _Scopes()


def entered_scopes() -> tuple[CancelScope, ...]:
    """The scopes that the calling thread has entered, outermost first."""
    return _scopes.entered


def current_scopes() -> tuple[CancelScope, ...]:
    """The scopes that end the waits of the calling thread: its own, and its coordinator's."""
    if not _stops:
        return _scopes.entered
    return (*stop_scopes(threading.current_thread()), *_scopes.entered)


def stop_scopes(worker: object) -> tuple[CancelScope, ...]:
    """The scopes by which the stop of a coordinator ends the waits of a thread or task."""
    scope = _stops.get(id(worker)) if _stops else None
    return () if scope is None else scope.chain()


def cancelled_by(scopes: Iterable[CancelScope]) -> str:
    """What has cancelled a wait: in words."""
    if any(scope.cancelled for scope in scopes if isinstance(scope, StopScope)):
        return "ended by the stop of its coordinator"
    return "cancelled by its CancelScope"


def least_left(scopes: Iterable[CancelScope], timeout: float | None) -> float | None:
    """The seconds until the first of some deadlines; ``None`` if there is none."""
    limits = [scope.deadline - perf_counter() for scope in scopes if scope.deadline is not None]
    if timeout is not None:
        limits.append(timeout)
    return max(0.0, min(limits)) if limits else None


class _Watched:
    """An attempt that a thread waits for in a scope, as `apply_deferred` wants it."""

    __slots__ = ("attempt", "began")

    def __init__(self, attempt: Attempt, began: float) -> None:
        self.attempt = attempt
        self.began = began

    def is_entered_here(self) -> bool:
        host: Any = self.attempt.host
        return bool(host.is_entered_here())

    def end(self) -> Iterable[Waker]:
        """Withdraw it, unless it has ended; returns who is to be woken, its owner among them."""
        attempt = self.attempt
        assert attempt.host is not None
        assert attempt.waker is not None
        state = attempt.state
        if state is not PENDING:
            return ()
        waited = perf_counter() - self.began
        wakers = attempt.host.withdraw(attempt, waited, if_pending=True)
        if attempt.state is WITHDRAWN:
            attempt.waker.notify(attempt)
        return (*wakers, attempt.waker)


class CancelScope:
    """Blocking calls made within ``with scope:`` can be cancelled from any thread.

    A call that waits when `cancel` is called, or would have to wait afterwards, raises
    `CancelledError`, and it did not happen: a dequeue leaves every element in the queue, first in
    line; an `enqueue` has put nothing in; an `enqueue_many` has put in a prefix, which the
    exception tells. A call that need not wait is not affected.

    Scopes nest. One scope may be entered by several threads, and again after it was left; a thread
    that is started within it is not in it.

    Args:
        timeout: seconds from now after which calls that wait raise `DeadlineExceededError`, all of
            them together; ``None`` for no limit.

    Raises:
        InvalidArgumentError: the timeout is not a number of seconds.
    """

    def __init__(self, timeout: float | None = None) -> None:
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout", otherwise=", or None")
        self._deadline = None if timeout is None else perf_counter() + timeout
        self._lock = threading.RLock()  # guards all below; a signal handler may cancel
        self._cancelled = False
        self._watched: dict[Attempt, _Watched] = {}

    def __repr__(self) -> str:
        state = "cancelled" if self._cancelled else f"{counted(len(self._watched), 'call')} waiting"
        return f"<{type(self).__module__}.{type(self).__name__}, {state}>"

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` has been called."""
        return self._cancelled

    @property
    def deadline(self) -> float | None:
        """When its time is up, on the clock of `time.perf_counter`; ``None`` for no limit."""
        return self._deadline

    def cancel(self) -> None:
        """Cancel the calls that wait within the scope, and those that will have to.

        Returns at once; may be called from any thread, task or signal handler, and more than once.
        """
        for one in self._cancel():
            apply_deferred(one.end)

    def __enter__(self) -> Self:
        _scopes.entered = (*_scopes.entered, self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        entered = list(_scopes.entered)
        # From the innermost outwards: the same scope may have been entered twice.
        for place in range(len(entered) - 1, -1, -1):
            if entered[place] is self:
                del entered[place]
                break
        _scopes.entered = tuple(entered)

    @guarded
    def _cancel(self) -> list[_Watched]:
        self._cancelled = True
        return list(self._watched.values())

    @guarded
    def _watch(self, watched: _Watched) -> bool:
        """Note that a call waits; tell whether the scope was cancelled."""
        self._watched[watched.attempt] = watched
        return self._cancelled  # after it is in: a signal handler may come in between

    @guarded
    def _unwatch(self, attempt: Attempt) -> None:
        self._watched.pop(attempt, None)


class StopScope(CancelScope):
    """What ends the calls that a worker of a coordinator waits in, when that stops.

    The worker has not entered it. It is known by the thread or task that it is, and forgotten with
    the last reference to the scope.

    Args:
        worker: the thread or task.
    """

    def __init__(self, worker: object) -> None:
        super().__init__()
        self._beside = _stops.get(id(worker))  # of another coordinator, which has it too
        _stops[id(worker)] = self

    def chain(self) -> tuple[CancelScope, ...]:
        """It, and those that were there before it."""
        return (self,) if self._beside is None else (self, *self._beside.chain())

    @guarded
    def renew(self) -> None:
        """The stop is forgotten."""
        self._cancelled = False


_stops: Final[WeakValueDictionary[int, StopScope]] = WeakValueDictionary()


def watch(scopes: Iterable[CancelScope], attempt: Attempt, began: float) -> None:
    """A call begins to wait: end it when one of its scopes is cancelled, or now if one was.

    Args:
        scopes: those that the calling thread is in.
        attempt: what it waits for; it has begun.
        began: when, on the clock of `time.perf_counter`.
    """
    for scope in scopes:
        watched = _Watched(attempt, began)
        if scope._watch(watched):
            apply_deferred(watched.end)


def unwatch(scopes: Iterable[CancelScope], attempt: Attempt) -> None:
    """The call has ended."""
    for scope in scopes:
        scope._unwatch(attempt)
