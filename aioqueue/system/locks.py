"""Locks that are always released, even if a signal handler raises.

A signal handler may raise anywhere in the main thread; `KeyboardInterrupt` is the usual case. On
CPython 3.14 it may strike after a ``with lock:`` has taken the lock and before the body begins.
Then the lock is never released (https://github.com/python/cpython/issues/148874; on 3.11 to 3.13 no
handler runs there). So every lock whose owner a handler may interrupt is taken inside a ``try``: by
`call_with_lock` for a call, by `synchronized` for a whole method.

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

`machine_lock` makes the locks of queues: a `GilLock`, or a `threading.RLock` in a Python without a
global interpreter lock.
"""

from __future__ import annotations

import functools
import signal
import sys
import sysconfig
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FunctionType, TracebackType
from typing import Any, Final, ParamSpec, Protocol, TypeVar, cast

from aioqueue.system._compiled import bind_uncompiled

P = ParamSpec("P")
T = TypeVar("T")
MethodT = TypeVar("MethodT", bound=Callable[..., Any])

_ABSENT: Any = object()


def _not_held() -> tuple[Any, ...]:
    """Return the message of a lock that is released by a thread that does not hold it."""
    try:
        threading.RLock().release()
    except RuntimeError as error:
        return error.args
    raise AssertionError("a lock was released that no thread held")


NOT_HELD = _not_held()
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

    def _is_owned(self) -> bool: ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


def is_held_here(lock: Any) -> bool:
    """Return whether the calling thread holds a lock.

    `threading.RLock` knows, and `threading.Condition` asks it by ``_is_owned``, an undocumented
    method. Nothing public does the same: ``locked``, new in Python 3.14, is also true while another
    thread holds it, and a trial `release` changes the answer. Every implementation of Python has
    the method, since `Condition` needs it. If one drops it, a test of this file fails.

    Only this file uses the method; other code calls this function. `call_with_lock` and
    `synchronized`, through which every move of a queue goes, save the call.
    """
    return bool(lock._is_owned())


def held_here_check(lock: Any) -> Callable[[], bool]:
    """Return a function that checks whether the calling thread holds a lock, for use per row."""
    check: Callable[[], bool] = lock._is_owned
    return check


def release_if_held(lock: Any) -> None:
    """Release a lock if the calling thread holds it.

    Only for code that at most one signal handler interrupts: a second one may run as this begins.
    """
    if lock._is_owned():
        lock.release()


def reraise_if_from_signal_handler(error: Exception) -> None:
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


def call_with_lock(lock: Any, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Make a call with a lock held.

    Args:
        lock: an `OwnedLock`; the calling thread may hold it already.
        call: the function to call.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    if type(lock) is GilLock:
        return lock.run(call, args, kwargs)
    if lock._is_owned():
        # A handler or a finalizer has interrupted a call that holds the lock. The interrupted call
        # releases it, so this one must not, however it ends.
        return call(*args, **kwargs)
    try:
        lock.acquire()
        result = call(*args, **kwargs)
        lock.release()
    except BaseException:
        try:
            lock.release()  # first of all: see the module's docstring
        except RuntimeError as error:
            if error.args != NOT_HELD:
                raise
        raise
    return result


def synchronized(method: MethodT) -> MethodT:
    """Decorate a method: it runs with its object's ``_lock`` held."""

    @functools.wraps(method)
    def synchronized_method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        latch = self._lock
        if COMPILED or type(latch) is not GilLock:
            return call_with_lock(latch, method, self, *args, **kwargs)
        # The code of `GilLock.run`, repeated: that saves one call per synchronized call.
        me = thread_ident()
        owner, latch._owner = latch._owner, latch._owner or me
        if owner == me:
            return method(self, *args, **kwargs)
        try:
            if owner:
                latch._wait(me)
            result = method(self, *args, **kwargs)
        finally:
            if latch._owner == me:
                latch._owner = 0
                if latch._rings_on_release:
                    latch._rings_on_release = False
                    latch._ring(None)
        return result

    return cast(MethodT, synchronized_method)


def not_reentrant(method: MethodT) -> MethodT:
    """Decorate a method as `synchronized` does, and refuse to interrupt another move of its thread.

    A finalizer or a signal handler that Python runs in the middle of a move would see, and leave, a
    half-made state.
    """

    @functools.wraps(method)
    def not_reentrant_method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        lock = self._lock
        if lock._is_owned():
            raise self._interrupted()
        if type(lock) is GilLock:
            return lock.run(method, (self, *args), kwargs)
        try:
            lock.acquire()
            result = method(self, *args, **kwargs)
            lock.release()
        except BaseException:
            try:
                lock.release()
            except RuntimeError as error:
                if error.args != NOT_HELD:
                    raise
            raise
        return result

    return cast(MethodT, not_reentrant_method)


# The same for the moves of a queue that callers make for each element or batch. A wrapper that
# passes on any arguments packs them twice, and costs as much as a small move.


def synchronized_move(method: MethodT) -> MethodT:
    """Do what `synchronized` does, for a method of one or two positional arguments."""
    return _move(method, refuses_reentry=False)


def not_reentrant_move(method: MethodT) -> MethodT:
    """Do what `not_reentrant` does, for a method of one or two positional arguments."""
    return _move(method, refuses_reentry=True)


def _move(method: MethodT, *, refuses_reentry: bool) -> MethodT:
    @functools.wraps(method)
    def synchronized_move_method(self: Any, first: Any, second: Any = _ABSENT, /) -> Any:
        latch = self._lock
        if COMPILED or type(latch) is not GilLock:
            if refuses_reentry and latch._is_owned():
                raise self._interrupted()
            args = (first,) if second is _ABSENT else (first, second)
            return call_with_lock(latch, method, self, *args)
        # The code of `GilLock.run`, repeated: that saves one call per move.
        me = thread_ident()
        owner, latch._owner = latch._owner, latch._owner or me
        if owner == me:
            if refuses_reentry:
                raise self._interrupted()
            return method(self, first) if second is _ABSENT else method(self, first, second)
        try:
            if owner:
                latch._wait(me)
            result = method(self, first) if second is _ABSENT else method(self, first, second)
        finally:
            if latch._owner == me:
                latch._owner = 0
                if latch._rings_on_release:
                    latch._rings_on_release = False
                    latch._ring(None)
        return result

    return cast(MethodT, synchronized_move_method)


# ruff: noqa: F821  (the name below is bound by no statement: in compiled code it is a C function)
thread_ident: Callable[[], int]
bind_uncompiled(globals(), thread_ident=threading.get_ident)


class GilLock:
    """A re-entrant lock that knows its owner, as `threading.RLock` does, but much faster.

    A call of `threading.RLock` parses its arguments, asks for the time, and converts its owner to a
    number on the way in and out. In a queue's fast path that is more than everything else. This
    lock takes a few loads and stores when it is free. Compiled (see `hatch_build.py`), it is called
    as C code calls C code; interpreted, the fast path does its steps itself.

    It relies on the global interpreter lock. CPython lets another thread, or a signal handler, run
    only when a function written in Python begins, when a call has returned, and when a loop starts
    its next round. So a line without a call is atomic, even under a tracer, which runs between
    lines. The lock is taken in one such line::

        owner, lock._owner = lock._owner, lock._owner or me

    It was free if ``owner`` is 0; otherwise nothing has changed. It is released by a store, and a
    call of C code if somebody waits. So no handler can come in between. Without a global lock it
    would be no lock at all; then `machine_lock` makes a `threading.RLock`.

    **How it waits.** A thread that must wait *asks*, tries again, and listens to the *bell*. The
    thread that releases the lock while another one asks rings the bell, once, which wakes one
    listener. The listener asks again and tries. When it has the lock, or gives up, it asks for the
    others that still wait. So whenever the lock is free while threads wait, the bell has rung or
    one of them is awake.

    A signal handler may raise in the wait. Then the lock is not taken, and another one that waits
    is woken in its place.

    Args:
        make_bell: makes a queue whose ``put`` rings and whose ``get`` listens.
    """

    __slots__ = ("_depth", "_listen", "_owner", "_ring", "_rings_on_release", "_waiting")

    def __init__(self, make_bell: Callable[[], Any] = SimpleQueue) -> None:
        bell = make_bell()
        # Bound once: a call must not create an object, which may start the garbage collector.
        self._ring, self._listen = bell.put, bell.get
        self._rings_on_release = False  # whether a release is to ring the bell
        self._owner = 0  # 0: it is free
        self._depth = 0  # how many times more its owner has taken it
        self._waiting = 0  # how many threads wait

    def acquire(self, blocking: bool = True) -> bool:
        me = thread_ident()
        owner, self._owner = self._owner, self._owner or me
        if owner == me:
            self._depth += 1
        elif owner:
            if not blocking:
                return False
            self._wait(me)
        return True

    def release(self) -> None:
        """Release the lock.

        Raises:
            RuntimeError: the calling thread does not hold it.
        """
        if self._owner != thread_ident():
            raise RuntimeError(*NOT_HELD)
        if self._depth:
            self._depth -= 1
        else:
            # Released before the bell rings: a thread that wakes at once must find it free.
            self._owner = 0
            if self._rings_on_release:
                self._rings_on_release = False
                self._ring(None)

    def run(self, call: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        """Make a call with the lock held; the calling thread may hold it already."""
        me = thread_ident()
        owner, self._owner = self._owner, self._owner or me
        if owner == me:
            return call(*args, **kwargs)
        try:
            if owner:
                self._wait(me)
            result = call(*args, **kwargs)
        finally:
            if self._owner == me:  # else the wait was interrupted
                self._owner = 0
                if self._rings_on_release:
                    self._rings_on_release = False
                    self._ring(None)
        return result

    def _is_owned(self) -> bool:
        return self._owner == thread_ident()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def _wait(self, me: int) -> None:
        """Take it as soon as it is free."""
        self._waiting += 1
        try:
            self._sleep(me)
        finally:
            # One bell wakes one thread, and a request is used up by one bell. So the thread that
            # was woken, or was interrupted, renews the request for the others.
            self._waiting -= 1
            self._rings_on_release = self._waiting > 0
            # The lock is free here only if an exception came after the bell had woken this thread.
            if self._rings_on_release and not self._owner:
                self._rings_on_release = False
                self._ring(None)

    def _sleep(self, me: int) -> None:
        # The loop is a function of its own so that Ctrl-C can end it: see the module's docstring.
        owner = me
        while owner:
            # Ask, then try, then listen: if the lock is released after the try has failed, the bell
            # rings, and is heard whenever this thread listens.
            self._rings_on_release = True
            owner, self._owner = self._owner, self._owner or me
            if owner:
                self._listen()


class _AnyLock(GilLock):
    """Another lock behind the interface of `GilLock`. It never looks free, so it is called."""

    __slots__ = ("_lock",)

    def __init__(self, lock: OwnedLock) -> None:
        super().__init__()
        self._lock = lock
        self._owner = _NO_THREAD

    def acquire(self, blocking: bool = True) -> bool:
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()

    def _is_owned(self) -> bool:
        return self._lock._is_owned()


_NO_THREAD: Final = 1
"""What is no thread's identity: those are addresses, or small multiples of four."""


def machine_lock() -> OwnedLock:
    return cast(OwnedLock, threading.RLock()) if _CAN_BE_OFF else GilLock()


COMPILED: Final = not isinstance(machine_lock, FunctionType)
"""Whether this file was compiled, along with the other files that `hatch_build.py` names."""

# Whether the global lock can be off, not whether it is. A Python that can do without it turns it on
# while it imports an extension module, and a lock made then would be no lock afterwards. (The test
# takes a millisecond, so only a Python is asked that may be of that kind.)
_CAN_BE_OFF: Final = sys.implementation.name != "cpython" or (
    hasattr(sys, "_is_gil_enabled") and bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
)


def as_gil_lock(lock: OwnedLock) -> GilLock:
    """Return the object through which the machine takes a lock: it, or an `_AnyLock` around it."""
    return lock if isinstance(lock, GilLock) else _AnyLock(lock)
