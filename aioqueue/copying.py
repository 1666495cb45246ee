"""Large batches, copied by their owners without the machine's lock.

On the way in: memory is reserved under the lock, the batch is copied there without it, and what
that has made is put in by a move that only passes references on. On the way out: the rows that a
dequeue has in its hands are copied by its owner, and then released under the lock. Nobody else
waits for either, and should a copy fail, nothing has changed.
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
        storage: where their rows rest.
        lock: the machine's.
    """

    __slots__ = ("_lock", "_storage")

    def __init__(self, storage: Storage, lock: OwnedLock) -> None:
        self._storage = storage
        self._lock = lock

    def copy_in(self, columns: Columns, n: int) -> Columns:
        """Copy a batch to memory of the storage; returns what is to be put in.

        What does not all go in, because its attempt ends before, is given back by the machine.
        """
        reserved = self._reserve(n)
        try:
            return self._storage.fill(reserved, columns, n)
        except BaseException:
            self._discard(reserved)
            raise

    def copy_out(self, attempt: Take) -> Columns:
        """The rows that a dequeue has in its hands, copied; they are not in its hands any more.

        If that fails they still are, and can be put back by withdrawing it.
        """
        columns = self._storage.columns(attempt.held)
        self._free(attempt)
        return columns

    def guard_with(self, lock: OwnedLock) -> None:
        """Use another lock from now on; see `Machine.guard_with`."""
        self._lock = lock

    def _interrupted(self) -> RuntimeError:
        return RuntimeError(
            "nothing was put in: this call comes from a finalizer or a signal handler that has"
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
