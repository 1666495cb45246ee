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

`machine_lock` makes the locks of queues: a `GilLock` where this file is compiled, otherwise a
`threading.RLock`.
"""

from __future__ import annotations

import functools
import signal
import sysconfig
import threading
from collections.abc import Callable
from types import FunctionType, TracebackType
from typing import Any, Final, ParamSpec, Protocol, TypeVar, cast

__all__ = (
    "COMPILED",
    "REFUSAL",
    "GilLock",
    "OwnedLock",
    "alone",
    "alone_move",
    "as_gil_lock",
    "guarded",
    "guarded_move",
    "holding",
    "is_held_here",
    "machine_lock",
    "ownership",
    "raise_a_handlers",
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


def raise_a_handlers(error: Exception) -> None:
    """Raise an exception again if it comes from a signal handler, and not from what it interrupted.

    A move of a queue catches the failures of the storage, which belong to the attempt that it makes
    the move for. What a handler raises, such as a `TimeoutError` of the program's own, belongs to
    the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # handlers run in no other
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            raise error
        traceback = traceback.tb_next


def _code_of(handler: Any) -> Any:
    handler = handler.func if isinstance(handler, functools.partial) else handler
    called = handler if hasattr(handler, "__code__") else vars(type(handler)).get("__call__")
    return getattr(called, "__code__", _ABSENT)


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


# ruff: noqa: F821  (the name below is bound by no statement: in compiled code it is a C function)
thread_ident: Callable[[], int]
globals()["thread_ident"] = threading.get_ident


class GilLock:
    """A re-entrant lock that knows its owner, as `threading.RLock` does, for compiled code.

    It relies on the global interpreter lock, and takes a few loads and stores when it is free. A
    call of `threading.RLock` costs as much as any call from Python, and converts its owner to a
    number on the way in and out. In a queue's fast path that is more than everything else. Where
    this file is compiled (see `hatch_build.py`), code that is compiled with it calls this lock as C
    code calls C code.

    Its fields need no guard, because no other thread runs between two calls of Python code, and the
    compiled code makes no such call but to `threading.Lock`. Interpreted, other threads could run
    between any two of its steps; without a global lock it would be no lock at all. In both cases
    `machine_lock` makes a `threading.RLock`. Compiled code then calls that through an `_AnyLock`.

    **How it waits.** The *bolt* is a plain lock that only threads use which find the lock taken. A
    thread that must wait makes sure that the bolt is shut, and sleeps by shutting it once more. A
    thread that releases the lock while others wait opens the bolt, if it is shut, which wakes one
    of them. If the lock has been taken again meanwhile, the woken thread shuts the bolt and sleeps
    again. An open bolt stays open, so no wake is lost. An open bolt without a sleeper does no harm.

    A signal handler may raise in the wait (`threading.Lock.acquire` runs it), and nowhere else.
    Then the lock is not taken, and the bolt is as it was.

    Args:
        make_bolt: makes the lock at which waiting threads sleep.
    """

    __slots__ = ("_depth", "_is_shut", "_open", "_owner", "_shut", "_waiting")

    def __init__(self, make_bolt: Callable[[], Any] = threading.Lock) -> None:
        bolt = make_bolt()
        # Bound once: a call must not create an object, which may start the garbage collector.
        self._shut, self._open, self._is_shut = bolt.acquire, bolt.release, bolt.locked
        self._owner = 0
        self._depth = 0  # how many times its owner holds it; 0: it is free
        self._waiting = 0  # how many threads sleep, or are about to

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock, waiting for it if ``blocking``; return whether it was taken."""
        here = thread_ident()
        if self._depth == 0:
            self._owner = here
            self._depth = 1
            return True
        if self._owner == here:
            self._depth += 1
            return True
        if blocking:
            self._wait()
            self._owner = here
            self._depth = 1
        return blocking

    def release(self) -> None:
        """Release the lock.

        Raises:
            RuntimeError: the calling thread does not hold it.
        """
        if self._depth == 0 or self._owner != thread_ident():
            raise RuntimeError(*REFUSAL)
        self._depth -= 1
        if self._depth == 0 and self._waiting and self._is_shut():
            self._open()

    def _is_owned(self) -> bool:
        """Return whether the calling thread holds it."""
        return self._depth > 0 and self._owner == thread_ident()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def _wait(self) -> None:
        """Sleep until it is free."""
        self._waiting += 1
        try:
            self._sleep()
        finally:
            self._waiting -= 1

    def _sleep(self) -> None:
        # The loop is a function of its own so that Ctrl-C can end it: see the module's docstring.
        while self._depth:
            self._shut(False)
            if self._depth:  # else it was released meanwhile: a finalizer may have run
                self._shut()


class _AnyLock(GilLock):
    """Another lock behind the interface of `GilLock`."""

    __slots__ = ("_lock",)

    def __init__(self, lock: OwnedLock) -> None:
        super().__init__()
        self._lock = lock

    def acquire(self, blocking: bool = True) -> bool:
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()

    def _is_owned(self) -> bool:
        return self._lock._is_owned()


def machine_lock() -> OwnedLock:
    """Make a lock for a queue's machine."""
    if COMPILED and not _CAN_BE_OFF:
        return GilLock()
    return cast(OwnedLock, threading.RLock())


COMPILED: Final = not isinstance(machine_lock, FunctionType)
"""Whether this file was compiled, along with the other files that `hatch_build.py` names."""

# Whether the global lock can be off, not whether it is. A Python that can do without it turns it on
# while it imports an extension module, and a lock made then would be no lock afterwards. (The test
# takes a millisecond, so it is made only where the answer matters.)
_CAN_BE_OFF: Final = COMPILED and bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def as_gil_lock(lock: OwnedLock) -> OwnedLock:
    """Return the object that compiled code calls to take a lock: it, or an `_AnyLock` around it."""
    if COMPILED and not isinstance(lock, GilLock):
        lock = _AnyLock(lock)
    return lock
