"""Copy large batches in their owners' threads, without the machine's lock.

On the way in, the storage reserves memory under the lock, and the owner copies the batch into it
without the lock. A second move under the lock only links that memory in. On the way out, the owner
copies the rows that its dequeue holds, and then releases them under the lock. No other caller waits
for a copy. If a copy fails, the queue is unchanged.
"""

from __future__ import annotations

from typing import Any

from aioqueue.attempts import Take
from aioqueue.elements import Columns
from aioqueue.locks import OwnedLock, alone, guarded
from aioqueue.storage.protocol import Storage

__all__ = ("BatchCopier",)


class BatchCopier:
    """Copies the batches of one queue.

    Args:
        storage: where the queue's rows are kept.
        lock: the machine's lock.
    """

    __slots__ = ("_lock", "_storage")

    def __init__(self, storage: Storage, lock: OwnedLock) -> None:
        self._storage = storage
        self._lock = lock

    def copy_in(self, columns: Columns, n: int) -> Columns:
        """Copy a batch to memory of the storage; return the columns to put in.

        If the attempt ends early, the machine gives the rest of this memory back.
        """
        reserved = self._reserve(n)
        try:
            return self._storage.fill(reserved, columns, n)
        except BaseException:
            self._discard(reserved)
            raise

    def copy_out(self, attempt: Take) -> Columns:
        """Copy the rows that a dequeue holds, and release them.

        If the copy fails, the dequeue still holds the rows; withdrawing it puts them back.
        """
        columns = self._storage.columns(attempt.held)
        self._free(attempt)
        return columns

    def guard_with(self, lock: OwnedLock) -> None:
        """Replace the lock; see `Machine.guard_with`."""
        self._lock = lock

    def _interrupted(self) -> RuntimeError:
        return RuntimeError(
            "nothing was put in: a finalizer or a signal handler has made this call, and has"
            " interrupted another call of the same thread"
        )

    @alone
    def _reserve(self, n: int) -> Any:
        return self._storage.reserve(n)

    @guarded
    def _discard(self, reserved: Any) -> None:
        if reserved is not None:
            self._storage.discard(reserved, 0)

    @guarded
    def _free(self, attempt: Take) -> None:
        self._storage.free(attempt.held)
