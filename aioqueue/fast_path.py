"""The fast path of a queue: one row in or out, if that affects no other caller.

The machine decides what may take this path. It sets two bounds with every slow move
(`Machine._set_bounds`), and this code only compares. Nearly all operations of a queue end here, so
the code has a file of its own that can be compiled (`fast_path.pxd` declares its fields).

Two invariants make it safe. The lock is always released first when something raises, since a second
signal handler may strike at any later step (see `aioqueue.locks`). And the storage's size, not a
counter, is compared with the bounds, so an interrupted step cannot leave the two apart.

A function that an attribute holds gets a local name before it is called. CPython 3.11 looks for a
method in ``self.f()``, and does so in the slow way each time if it finds none in the class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from aioqueue.elements import Row
from aioqueue.locks import REFUSAL, OwnedLock, as_gil_lock, ownership
from aioqueue.storage.protocol import Storage

__all__ = ("NOTHING", "FastPath")

NOTHING: Final[Any] = object()
"""The result of a try that would have to wait or to wake another caller."""


class FastPath:
    """The fields that a try reads, and the tries. Each returns at once and wakes no caller.

    Args:
        storage: where the rows are kept.
        lock: guards everything here.
        enter: takes the lock if another thread has it.
    """

    __slots__ = (
        "_bound_in",
        "_bound_out",
        "_enqueued",
        "_enter",
        "_is_held_here",
        "_latch",
        "_lock",
        "_put",
        "_take",
        "storage",
    )

    def __init__(
        self, storage: Storage, lock: OwnedLock, enter: Callable[[OwnedLock], object]
    ) -> None:
        self.storage: Storage = storage
        self._lock = lock
        self._latch = as_gil_lock(lock)
        self._is_held_here = ownership(lock)
        self._enter = enter
        self._put = storage.put
        self._take = storage.take
        self._enqueued = 0  # rows so far
        # How full the storage may be for the fast path in and out. At first nothing passes.
        self._bound_in: float = -1
        self._bound_out: float = float("inf")

    def guard_with(self, lock: OwnedLock) -> None:
        """Replace the lock. No other thread may be in the middle of a move."""
        self._lock = lock
        self._latch = as_gil_lock(lock)
        self._is_held_here = ownership(lock)

    def try_enqueue(self, row: Row) -> bool:
        """Put a row in, if that affects no other caller; return whether it did."""
        try:
            if not self._latch.acquire(False):
                self._enter(self._lock)
            fits = len(self.storage) < self._bound_in
            if fits:
                put = self._put
                put(row)
                self._enqueued += 1
            self._latch.release()
        except BaseException:
            try:
                self._latch.release()  # first of all: see `aioqueue.locks`
            except RuntimeError as error:
                # A refusal: a handler raised before the lock was taken or after it was released.
                if error.args != REFUSAL:
                    raise
            raise
        return fits

    def try_dequeue(self) -> Row:
        """Take a row out, if that affects no other caller; else return `NOTHING`."""
        try:
            if not self._latch.acquire(False):
                self._enter(self._lock)
            take = self._take
            row = take() if len(self.storage) > self._bound_out else NOTHING
            self._latch.release()
        except BaseException as raised:
            try:
                self._latch.release()  # first of all: see `aioqueue.locks`
            except RuntimeError as error:
                if error.args != REFUSAL:
                    raise
            if _took_the_last(raised):
                return NOTHING
            raise
        return row

    # The same for a storage that moves a row in several Python steps. A finalizer or a signal
    # handler may run between them and would see half a move, so its own try is refused here.
    # The code is repeated because a call would cost too much for each row.

    def try_enqueue_alone(self, row: Row) -> bool:
        """Do what `try_enqueue` does, for a storage that is not atomic."""
        is_held_here = self._is_held_here
        if is_held_here():
            return False
        try:
            if not self._latch.acquire(False):
                self._enter(self._lock)
            fits = len(self.storage) < self._bound_in
            if fits:
                put = self._put
                put(row)
                self._enqueued += 1
            self._latch.release()
        except BaseException:
            try:
                self._latch.release()
            except RuntimeError as error:
                if error.args != REFUSAL:
                    raise
            raise
        return fits

    def try_dequeue_alone(self) -> Row:
        """Do what `try_dequeue` does, for a storage that is not atomic."""
        is_held_here = self._is_held_here
        if is_held_here():
            return NOTHING
        try:
            if not self._latch.acquire(False):
                self._enter(self._lock)
            take = self._take
            row = take() if len(self.storage) > self._bound_out else NOTHING
            self._latch.release()
        except BaseException:
            try:
                self._latch.release()
            except RuntimeError as error:
                if error.args != REFUSAL:
                    raise
            raise
        return row


def _took_the_last(error: BaseException) -> bool:
    """Return whether a signal handler has taken the only row between the comparison and the take.

    Then the storage itself has raised the error, not a user's handler: there is no further frame.
    """
    traceback = error.__traceback__
    return isinstance(error, IndexError) and (traceback is None or traceback.tb_next is None)
