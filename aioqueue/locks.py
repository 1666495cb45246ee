"""Locks that are released, whatever interrupts their owner.

A signal handler may raise anywhere in the main thread, `KeyboardInterrupt` above all. On CPython
3.14 that can be between the moment in which a ``with lock:`` has taken the lock and its body, and
then it is never released (https://github.com/python/cpython/issues/148874; on 3.11 to 3.13 no
handler runs there). So locks whose owner a handler may interrupt are taken within a ``try``:
`holding` for a call, `guarded` for a whole method.

A handler runs when a function written in Python begins, when a call has returned, and when a loop
goes round; nowhere else. From this follows how the two are written:

* The lock is taken within the ``try``: a handler may raise when `acquire` has returned.
* What is done with the lock held is done in a function of its own. On CPython 3.13 and 3.14 the
  jump by which a loop goes round may lie outside of the ``try`` or ``with`` that the loop is
  written in, and what a handler raises there passes by its ``except``, ``finally`` and ``__exit__``
  (https://github.com/python/cpython/issues/130279). It does not pass by those of a caller. So this
  concerns everything that is to be undone, and not only locks.
* Once something is on its way out, the lock is released *first*, by a method that is written in C.
  To call a function of ours for it, or to ask who holds the lock, would let a handler in before the
  release: that of a second signal, or the first one while the call raises something of its own.
* Whether it was held is then told by the release, which refuses with a `RuntimeError` if not:
  waiting for it was interrupted, or the handler raised when it had just been released. Any other
  `RuntimeError` there is one that a handler raised when the release had returned, and goes on.

The lock must be one that knows its owner, as `threading.RLock` does: that alone tells whether it
is held when a call begins. A signal handler or a finalizer may run in a thread that holds it
already; it goes on, and leaves the release to the call that it interrupted.

What no lock can do: a handler that raises when the lock has just been released makes the call raise
though it was made.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar, cast

__all__ = (
    "REFUSAL",
    "OwnedLock",
    "alone",
    "guarded",
    "holding",
    "is_held_here",
    "ownership",
    "release_if_held",
)

P = ParamSpec("P")
T = TypeVar("T")
MethodT = TypeVar("MethodT", bound=Callable[..., Any])


def _refusal() -> tuple[Any, ...]:
    """What a lock says that is released by a thread which does not hold it."""
    try:
        threading.RLock().release()
    except RuntimeError as error:
        return error.args
    raise AssertionError("a lock was released that no thread held")


REFUSAL = _refusal()
"""The arguments of the `RuntimeError` of a lock that the calling thread does not hold."""


class OwnedLock(Protocol):
    """A lock that knows whether the calling thread holds it, as `threading.RLock` does."""

    def acquire(self, blocking: bool = True, /) -> bool:
        """Take it, waiting for it or not; tell whether it was taken."""

    def release(self) -> None:
        """Release it.

        Raises:
            RuntimeError: the calling thread does not hold it.
        """

    def _is_owned(self) -> bool:
        """Whether the calling thread holds it."""

    def __enter__(self) -> bool:
        """Take it."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Release it."""


def is_held_here(lock: Any) -> bool:
    """Whether the calling thread holds a lock.

    `threading.RLock` knows, and tells `threading.Condition` by ``_is_owned``, a method without
    documentation. Nothing public says the same: ``locked``, new in Python 3.14, is also true while
    another thread has it, and to try `release` changes what is asked for. All implementations of
    Python have it, as `Condition` needs it; should one no longer, a test of this file tells.

    Only this file uses it. Others call this function; `holding` and `guarded`, through which every
    move of a queue goes, save that call.
    """
    return bool(lock._is_owned())


def ownership(lock: Any) -> Callable[[], bool]:
    """What tells whether the calling thread holds a lock, for where that is asked for each row."""
    tells: Callable[[], bool] = lock._is_owned
    return tells


def release_if_held(lock: Any) -> None:
    """Release a lock, if the calling thread holds it.

    For code that no handler interrupts, or only once: a second one may run as this begins.
    """
    if lock._is_owned():
        lock.release()


def holding(lock: Any, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Make a call with a lock held.

    Args:
        lock: an `OwnedLock`; it may be held by the calling thread already.
        call: what to call.
        args: what to call it with.
        kwargs: the same, by name.
    """
    if lock._is_owned():
        return call(*args, **kwargs)
    try:
        lock.acquire()
        result = call(*args, **kwargs)
        lock.release()
    except BaseException:
        try:
            lock.release()  # before anything else: see the module's docstring
        except RuntimeError as error:
            if error.args != REFUSAL:
                raise
        raise
    return result


def guarded(method: MethodT) -> MethodT:
    """Make a method that holds its object's ``_lock`` all the time."""

    @functools.wraps(method)
    def with_lock_held(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        # `holding`, written out: that saves a call for each of the calls that are guarded.
        lock = self._lock
        if lock._is_owned():
            return method(self, *args, **kwargs)
        try:
            lock.acquire()
            result = method(self, *args, **kwargs)
            lock.release()
        except BaseException:
            try:
                lock.release()
            except RuntimeError as error:
                if error.args != REFUSAL:
                    raise
            raise
        return result

    return cast(MethodT, with_lock_held)


def alone(method: MethodT) -> MethodT:
    """As `guarded`, for a move that cannot be made in the middle of another one of its thread.

    A finalizer or a signal handler that Python runs there would find, and leave, a half-made state.
    """

    @functools.wraps(method)
    def alone_with_lock_held(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        lock = self._lock
        if lock._is_owned():
            raise self._interrupted()
        try:
            lock.acquire()
            result = method(self, *args, **kwargs)
            lock.release()
        except BaseException:
            try:
                lock.release()
            except RuntimeError as error:
                if error.args != REFUSAL:
                    raise
            raise
        return result

    return cast(MethodT, alone_with_lock_held)
