"""Locks that are always released, even if a signal handler raises.

A signal handler may raise anywhere in the main thread; `KeyboardInterrupt` is the usual case. On
CPython 3.14 it may strike after a ``with lock:`` has taken the lock and before the body begins.
Then the lock is never released (https://github.com/python/cpython/issues/148874; on 3.11 to 3.13 no
handler runs there). So every lock whose owner a handler may interrupt is taken inside a ``try``: by
`holding` for a call, by `guarded` for a whole method.

Handlers run when a function written in Python begins, when a call has returned, and when a loop
starts its next round; nowhere else. From this follow four rules:

* The lock is taken inside the ``try``: a handler may raise right after `acquire` has returned.
* The code that needs the lock is a function of its own. On CPython 3.13 and 3.14 the jump to a
  loop's next round may lie outside of the ``try`` or ``with`` around the loop. An exception raised
  there bypasses the ``except``, ``finally`` and ``__exit__`` of that block
  (https://github.com/python/cpython/issues/130279), but not those of a caller. This concerns all
  code that has to be undone, not only locks.
* When an exception is on its way out, the lock is released *first*, by a method written in C. A
  call of a Python function, even to ask for the lock's owner, would let a handler run before the
  release: that of a second signal, or of the first one if the exception is not a handler's.
* The release tells whether the lock was held. If not, it raises `RuntimeError`: the wait for the
  lock was interrupted, or the handler raised just after a release. Any other `RuntimeError` there
  comes from a handler that ran after the release, and is raised.

The lock must know its owner, as `threading.RLock` does: only that tells whether it is held when a
call begins. A signal handler or a finalizer may run in a thread that already holds it. Its call
proceeds, and leaves the release to the call that it interrupted.

No lock can prevent this: if a handler raises just after the release, the call raises although it
took effect.
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
    "alone_move",
    "guarded",
    "guarded_move",
    "holding",
    "is_held_here",
    "ownership",
    "release_if_held",
)

P = ParamSpec("P")
T = TypeVar("T")
MethodT = TypeVar("MethodT", bound=Callable[..., Any])

_ABSENT: Any = object()


def _refusal() -> tuple[Any, ...]:
    """Return the message of a lock that is released by a thread that does not hold it."""
    try:
        threading.RLock().release()
    except RuntimeError as error:
        return error.args
    raise AssertionError("a lock was released that no thread held")


REFUSAL = _refusal()
"""The arguments of the `RuntimeError` from a lock that the calling thread does not hold."""


class OwnedLock(Protocol):
    """A lock that knows whether the calling thread holds it, as `threading.RLock` does."""

    def acquire(self, blocking: bool = True, /) -> bool:
        """Take the lock, waiting for it if ``blocking``; return whether it was taken."""

    def release(self) -> None:
        """Release the lock.

        Raises:
            RuntimeError: the calling thread does not hold it.
        """

    def _is_owned(self) -> bool:
        """Return whether the calling thread holds it."""

    def __enter__(self) -> bool:
        """Take the lock."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Release the lock."""


def is_held_here(lock: Any) -> bool:
    """Return whether the calling thread holds a lock.

    `threading.RLock` knows, and tells `threading.Condition` through ``_is_owned``, an undocumented
    method. Nothing public does the same: ``locked``, new in Python 3.14, is also true while another
    thread holds it, and a trial `release` changes the answer. Every implementation of Python has
    the method, since `Condition` needs it. If one drops it, a test of this file fails.

    Only this file uses the method; other code calls this function. `holding` and `guarded`, through
    which every move of a queue goes, save the call.
    """
    return bool(lock._is_owned())


def ownership(lock: Any) -> Callable[[], bool]:
    """Return a function that tells whether the calling thread holds a lock, for use per row."""
    tells: Callable[[], bool] = lock._is_owned
    return tells


def release_if_held(lock: Any) -> None:
    """Release a lock if the calling thread holds it.

    Only for code that at most one signal handler interrupts: a second one may run as this begins.
    """
    if lock._is_owned():
        lock.release()


def holding(lock: Any, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Make a call with a lock held.

    Args:
        lock: an `OwnedLock`; the calling thread may hold it already.
        call: the function to call.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    if lock._is_owned():
        return call(*args, **kwargs)
    try:
        lock.acquire()
        result = call(*args, **kwargs)
        lock.release()
    except BaseException:
        try:
            lock.release()  # first of all: see the module's docstring
        except RuntimeError as error:
            if error.args != REFUSAL:
                raise
        raise
    return result


def guarded(method: MethodT) -> MethodT:
    """Decorate a method: it runs with its object's ``_lock`` held."""

    @functools.wraps(method)
    def with_lock_held(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        # The code of `holding`, repeated: that saves one call per guarded call.
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
    """Decorate a method as `guarded` does, and refuse to interrupt another move of its thread.

    A finalizer or a signal handler that Python runs in the middle of a move would see, and leave, a
    half-made state.
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


# The same for the moves of a queue that callers make for each element or batch. A wrapper that
# passes on any arguments packs them twice, and costs as much as a small move.


def guarded_move(method: MethodT) -> MethodT:
    """Do what `guarded` does, for a method of one or two positional arguments."""

    @functools.wraps(method)
    def move_with_lock_held(self: Any, first: Any, second: Any = _ABSENT, /) -> Any:
        if second is _ABSENT:
            return holding(self._lock, method, self, first)
        lock = self._lock
        if lock._is_owned():
            return method(self, first, second)
        try:
            lock.acquire()
            result = method(self, first, second)
            lock.release()
        except BaseException:
            try:
                lock.release()
            except RuntimeError as error:
                if error.args != REFUSAL:
                    raise
            raise
        return result

    return cast(MethodT, move_with_lock_held)


def alone_move(method: MethodT) -> MethodT:
    """Do what `alone` does, for a method of one or two positional arguments."""

    @functools.wraps(method)
    def lone_move_with_lock_held(self: Any, first: Any, second: Any = _ABSENT, /) -> Any:
        lock = self._lock
        if lock._is_owned():
            raise self._interrupted()
        if second is _ABSENT:
            return holding(lock, method, self, first)
        try:
            lock.acquire()
            result = method(self, first, second)
            lock.release()
        except BaseException:
            try:
                lock.release()
            except RuntimeError as error:
                if error.args != REFUSAL:
                    raise
            raise
        return result

    return cast(MethodT, lone_move_with_lock_held)
