"""Locks that are let go of, whatever strikes.

A signal handler may raise anywhere in the main thread, `KeyboardInterrupt` above all. On CPython
3.14 that can be between the moment in which a ``with lock:`` has taken the lock and its body, and
then nobody lets go of it (https://github.com/python/cpython/issues/148874; not on 3.11 to 3.13,
where no handler runs there). So locks that a handler may strike are taken within a ``try``:
`holding` for a call, `guarded` for a whole method.

The lock must be one that knows its owner, as `threading.RLock` does: that alone tells whether it
had been taken when the handler struck. Whoever holds it already, because a signal handler or a
finalizer runs in the middle of what it interrupted, simply goes on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar, cast

__all__ = ("OwnedLock", "guarded", "holding", "let_go")

P = ParamSpec("P")
T = TypeVar("T")
MethodT = TypeVar("MethodT", bound=Callable[..., Any])


class OwnedLock(Protocol):
    """A lock that knows whether the calling thread holds it, as `threading.RLock` does."""

    def acquire(self, blocking: bool = True, /) -> bool:
        """Take it, waiting for it or not; tell whether it was taken."""

    def release(self) -> None:
        """Let go of it."""

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
        """Let go of it."""


def let_go(lock: Any) -> None:
    """Release a lock, if the calling thread holds it."""
    if lock._is_owned():
        lock.release()


def holding(lock: Any, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
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
        lock.release()  # here and not in a `finally`: there a handler could come before it
    except BaseException:
        let_go(lock)
        raise
    return result


def guarded(method: MethodT) -> MethodT:
    """Make a method that holds its object's ``_lock`` all the time."""

    @functools.wraps(method)
    def with_lock_held(self: Any, *args: Any, **kwargs: Any) -> Any:
        lock = self._lock
        if lock._is_owned():
            return method(self, *args, **kwargs)
        try:
            lock.acquire()
            result = method(self, *args, **kwargs)
            lock.release()
        except BaseException:
            let_go(lock)
            raise
        return result

    return cast(MethodT, with_lock_held)
