"""A lock that relies on the global interpreter lock: a few loads and stores when it is free.

A call of `threading.RLock` costs as much as any call from Python, and converts its owner to a
number on the way in and out. In a queue's fast path that is more than everything else. `GilLock`
does the same job. Where this file is compiled (see `hatch_build.py`), code that is compiled with it
calls it as C code calls C code.

Its fields need no guard, because no other thread runs between two calls of Python code, and the
compiled code makes no such call but to `threading.Lock`. Interpreted, other threads could run
between any two of its steps; without a global lock it would be no lock at all. In both cases
`machine_lock` makes a `threading.RLock`. Compiled code then calls that through an `_AnyLock`.

**How it waits.** The *bolt* is a plain lock that only threads use which find the lock taken. A
thread that must wait makes sure that the bolt is shut, and sleeps by shutting it once more. A
thread that releases the lock while others wait opens the bolt, if it is shut, which wakes one of
them. If the lock has been taken again meanwhile, the woken thread shuts the bolt and sleeps again.
An open bolt stays open, so no wake is lost. An open bolt without a sleeper does no harm.

A signal handler may raise in the wait (`threading.Lock.acquire` runs it), and nowhere else. Then
the lock is not taken, and the bolt is as it was.
"""

from __future__ import annotations

import sysconfig
import threading
from collections.abc import Callable
from types import FunctionType, TracebackType
from typing import Any, Final, cast

from aioqueue.locks import REFUSAL, OwnedLock

__all__ = ("COMPILED", "GilLock", "as_gil_lock", "machine_lock")

# ruff: noqa: F821  (the name below is bound by no statement: in compiled code it is a C function)
thread_ident: Callable[[], int]
globals()["thread_ident"] = threading.get_ident


class GilLock:
    """A re-entrant lock that knows its owner, as `threading.RLock` does, for compiled code.

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
        # The loop is a function of its own so that Ctrl-C can end it: see `aioqueue.locks`.
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
