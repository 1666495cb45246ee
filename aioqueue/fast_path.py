"""The fast path of a queue: one row in or out, where that concerns nobody else.

What may go this way is not decided here: the machine says so by two bounds, which it sets afresh
with every slow move (`Machine._set_bounds`). This is the machine's own state, and nearly all that a
queue ever does; so it has a file of its own, which can be compiled (`fast_path.pxd` says how its
fields are kept then).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from aioqueue.elements import Row
from aioqueue.gil_lock import as_gil_lock
from aioqueue.locks import REFUSAL, OwnedLock, ownership
from aioqueue.storage.protocol import Storage

__all__ = ("NOTHING", "FastPath")

NOTHING: Final[Any] = object()
"""What a try returns that could not be made without waiting or waking someone."""


class FastPath:
    """The fields that a try reads, and the tries. Each returns at once, and wakes no one.

    Args:
        storage: where the rows rest.
        lock: guards everything here.
        enter: takes the lock when another thread was found to have it.
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
        self.storage = storage
        self._lock = lock
        self._latch = as_gil_lock(lock)
        self._is_held_here = ownership(lock)
        self._enter = enter
        self._put = storage.put
        self._take = storage.take
        self._enqueued = 0  # rows so far
        # How full the storage may be for the fast path in and out; none until they are set.
        self._bound_in: float = -1
        self._bound_out: float = float("inf")

    def guard_with(self, lock: OwnedLock) -> None:
        """Use another lock from now on, where no one else can be in the middle of a move."""
        self._lock = lock
        self._latch = as_gil_lock(lock)
        self._is_held_here = ownership(lock)

    def try_enqueue(self, row: Row) -> bool:
        """Put a row in, if that concerns no one else."""
        try:
            if not self._latch.acquire(False):
                self._enter(self._lock)
            fits = len(self.storage) < self._bound_in
            if fits:
                self._put(row)
                self._enqueued += 1
            self._latch.release()
        except BaseException:
            try:
                self._latch.release()  # before anything else: see `aioqueue.locks`
            except RuntimeError as error:
                if error.args != REFUSAL:
                    raise
            raise
        return fits

    def try_dequeue(self) -> Row:
        """Take a row out, if that concerns no one else; else return `NOTHING`."""
        try:
            if not self._latch.acquire(False):
                self._enter(self._lock)
            row = self._take() if len(self.storage) > self._bound_out else NOTHING
            self._latch.release()
        except BaseException:
            try:
                self._latch.release()  # before anything else: see `aioqueue.locks`
            except RuntimeError as error:
                if error.args != REFUSAL:
                    raise
            raise
        return row

    # The same where a storage moves a row by steps of Python, in the middle of which a finalizer or
    # a signal handler may come: what that tries does not go this way. Written out, as it saves a
    # call for each row.

    def try_enqueue_alone(self, row: Row) -> bool:
        """As `try_enqueue`, for a storage that is not atomic."""
        if self._is_held_here():
            return False
        try:
            if not self._latch.acquire(False):
                self._enter(self._lock)
            fits = len(self.storage) < self._bound_in
            if fits:
                self._put(row)
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
        """As `try_dequeue`, for a storage that is not atomic."""
        if self._is_held_here():
            return NOTHING
        try:
            if not self._latch.acquire(False):
                self._enter(self._lock)
            row = self._take() if len(self.storage) > self._bound_out else NOTHING
            self._latch.release()
        except BaseException:
            try:
                self._latch.release()
            except RuntimeError as error:
                if error.args != REFUSAL:
                    raise
            raise
        return row
