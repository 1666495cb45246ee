"""A lock for whoever holds the interpreter: it costs a few loads and stores while nobody waits.

`threading.RLock` is called as any object is, and makes its owner a number on the way in and out:
for a queue's fast path that is more than all the rest. `GilLock` does what it does, and where this
file is compiled (see `hatch_build.py`), what is compiled with it calls it as C code calls C code.

It relies on the global interpreter lock: between two calls of Python code nobody else runs, so its
fields need no guard of their own. Compiled, it calls none but `threading.Lock`. Interpreted, any
two of its steps are far apart; and without a global lock it would be no lock at all. In both cases
`machine_lock` makes a `threading.RLock`, which compiled code then calls by way of an `_AnyLock`.

**How it waits.** There is a *bolt*, a plain lock, which only those touch who find the lock taken.
Who has to wait makes sure that the bolt is shut, and sleeps by shutting it once more. Who lets go
while somebody waits opens it, if it is shut, which lets one of them out. That one need not be the
first to come to the lock, which it then finds taken: it shuts the bolt and sleeps again. An open
bolt stays open, so no wake is lost; and one that nobody waits behind does no harm.

A handler may raise in the wait (`threading.Lock.acquire` runs it), and nowhere else. Then the lock
is not taken, and the bolt is as it was.
"""

from __future__ import annotations

import sysconfig
import threading
from collections.abc import Callable
from types import FunctionType, TracebackType
from typing import Any, Final, cast

from aioqueue.locks import REFUSAL, OwnedLock

__all__ = ("COMPILED", "GilLock", "as_gil_lock", "machine_lock")

# ruff: noqa: F821  (of this name, which is not bound by a statement: compiled, it is a function of C)
thread_ident: Callable[[], int]
globals()["thread_ident"] = threading.get_ident


class GilLock:
    """A re-entrant lock that knows its owner, as `threading.RLock`, for compiled code.

    Args:
        make_bolt: makes what those sleep at who have to wait.
    """

    __slots__ = ("_depth", "_is_shut", "_open", "_owner", "_shut", "_waiting")

    def __init__(self, make_bolt: Callable[[], Any] = threading.Lock) -> None:
        bolt = make_bolt()
        # Bound once: a call must not make an object, since the collector may then run.
        self._shut, self._open, self._is_shut = bolt.acquire, bolt.release, bolt.locked
        self._owner = 0
        self._depth = 0  # how many times its owner has it; 0: it is free
        self._waiting = 0  # how many sleep, or are about to

    def acquire(self, blocking: bool = True) -> bool:
        """Take it, waiting for it or not; tell whether it was taken."""
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
        """Release it.

        Raises:
            RuntimeError: the calling thread does not hold it.
        """
        if self._depth == 0 or self._owner != thread_ident():
            raise RuntimeError(*REFUSAL)
        self._depth -= 1
        if self._depth == 0 and self._waiting and self._is_shut():
            self._open()

    def _is_owned(self) -> bool:
        """Whether the calling thread holds it."""
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
        # In a function of its own, since it loops: see `aioqueue.locks`.
        while self._depth:
            self._shut(False)
            if self._depth:  # else it was let go of meanwhile: a finalizer may have run
                self._shut()


class _AnyLock(GilLock):
    """Another lock, for those who know a `GilLock` only."""

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
    """A new lock for a queue's machine."""
    if COMPILED and not _CAN_BE_OFF:
        return GilLock()
    return cast(OwnedLock, threading.RLock())


COMPILED: Final = not isinstance(machine_lock, FunctionType)
"""Whether this file was compiled, and with it all that `hatch_build.py` names."""

# Whether the global lock can be off, not whether it is: a Python that can do without turns it on
# while it imports an extension module, and a lock made meanwhile would be none afterwards. (To ask
# takes a millisecond: not where nobody wants to know.)
_CAN_BE_OFF: Final = COMPILED and bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def as_gil_lock(lock: OwnedLock) -> OwnedLock:
    """What compiled code calls to take a lock: itself, or what does so; else the lock it is."""
    if COMPILED and not isinstance(lock, GilLock):
        lock = _AnyLock(lock)
    return lock
