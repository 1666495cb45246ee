"""The storage protocol: how a queue keeps its rows.

A storage knows layout and order and nothing else: it has no capacity to respect, no callers that
wait, and no lock. The machine calls it under its own lock, except for `fill`, `wrap` and `columns`.
These are its operations:

* ``put`` and ``put_many`` add rows;
* ``take`` and ``pull`` remove the next rows for good, as copies: the fast path out;
* ``hold`` moves the next rows out of line into a `Held`, for a caller that may still be cancelled.
  ``restore`` puts them back. Nothing is copied: the rows stay where they are, in memory of the
  storage. Their owner copies them (``columns``), and then releases them for good (``free``);
* ``claim`` decides *which* rows leave next, without moving them, for storages that draw a row at
  random as it arrives;
* ``expect`` announces a waiting batch, so that its rows can be written to memory that the caller
  will get as it is.

**Large batches** (``is_large``) are never copied under the machine's lock, so that no caller waits
for another's copy. On the way in, a caller reserves memory under the lock (``reserve``) and copies
its rows there without the lock (``fill``). Putting in the result only moves references. If not all
of it goes in, ``discard`` gives the memory back. A batch that the caller gives away (``wrap``)
needs no memory. On the way out, a `Held` serves the same purpose. `BatchCopier` does both.

**Rows that come back** are first in line again, in the order in which they had left, even if they
come back in another order. So each held row has a *ticket*. Rows that are back are in ``returned``,
sorted by ticket, before everything else. That list is nearly always empty. While it is not, the
machine disables the fast path out, which does not look there.

**Sizes.** If all rows have the same number of bytes, ``row_bytes`` says so. If not, and there is a
bound on bytes, rows bring their sizes with them (`aioqueue.core.storage.sized`). ``weight`` is then
the size of everything inside; ``weight_of`` and ``weights`` are the sizes of rows about to go in.

**FIFOs of objects.** `ObjectStorage` keeps rows by reference. `PaddedStorage` keeps rows whose
shapes vary, and pads a batch to one shape when the batch leaves.

**Privacy.** What a caller gets shares no memory with anything inside, and is writable. One class
copies rows out: `aioqueue.core.storage.blocks.RowReader`.

A method that can fail (for want of memory, or in a conversion) does so before it changes anything.

**Interruptions.** A signal handler may raise in the middle of any method, in the main thread, which
may be moving rows for others; `aioqueue.system.locks` says where. At worst that may lose the row or
batch that is moving. So a method makes its change by statements that call nothing, or by one call
that comes last: no handler can run in between. `hold` and `hold_one` move all rows or none, because
the machine takes an attempt that has some rows to have all. And a row that leaves is taken out of
line first, and its memory freed afterwards: a slot may be lost, but never has two rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from aioqueue.core.elements.spec import Columns, Row
from aioqueue.system.locks import OwnedLock, not_reentrant, synchronized

if TYPE_CHECKING:
    from aioqueue.core.storage.columns import RowPacking

Slot = Any
"""What a storage keeps in its order instead of a row."""

_BY_TICKET: Final = itemgetter(0)


class Held:
    """Rows that a caller holds: out of the storage's line, not yet copied or released.

    Attributes:
        parts: the rows in the storage's own form; single rows too.
        tickets: the rows' tickets, in the same order, if the storage uses tickets.
        count: how many rows.
        out: the caller's own arrays, to which the rows will be copied.
        single: the row, if it was taken as a row and not as a batch.
        in_place: whether a single row is to be held as a batch is, not copied, by storages that
            can.
    """

    __slots__ = ("count", "in_place", "out", "parts", "single", "tickets")

    def __init__(self, out: Columns | None = None) -> None:
        self.in_place: bool = False
        self.parts: Sequence[Any] = ()
        self.tickets: Sequence[Any] = ()
        self.count: int = 0
        self.out: Columns | None = out
        self.single: Row = None

    def clear(self) -> None:
        self.parts, self.tickets, self.count, self.single = (), (), 0, None


class Storage(ABC):
    """The base class of storages: the order in which rows leave, and their layout until then.

    The methods implemented here suit storages of *entries*: rows, or numbers that stand for rows.
    """

    progressive: bool = True
    """Whether a waiting batch may take rows as they arrive without disturbing the order."""

    eager: bool = False
    """Whether a row must be claimed as it arrives, because the choice depends on that moment."""

    row_bytes: int | None = None
    """The size of a row in bytes, if all rows have the same size."""

    is_atomic: bool = False
    """Whether `put` and `take` are one step of the interpreter, which nothing can interrupt."""

    def __init__(self) -> None:
        self.returned: list[tuple[Any, Any]] = []
        self._next_ticket = 0

    @abstractmethod
    def __len__(self) -> int:
        """Return how many rows are inside, not counting those in ``returned``."""

    @property
    def size(self) -> int:
        return len(self) + len(self.returned)

    @property
    def weight(self) -> int | None:
        """How many bytes the rows inside take; ``None`` if they are not counted."""
        return None if self.row_bytes is None else self.row_bytes * self.size

    def weight_of(self, row: Row) -> int:
        """Return the size of a row that is about to go in; for storages whose rows bring it."""
        raise NotImplementedError

    def weights(self, columns: Columns, start: int, stop: int) -> Iterator[int]:
        """Yield the sizes of rows of a batch in order, lazily."""
        raise NotImplementedError

    def is_large(self, n: int) -> bool:
        """Return whether a batch of n rows must be copied without the machine's lock."""
        return False

    # The way in.

    @abstractmethod
    def put(self, row: Row, /) -> None: ...

    @abstractmethod
    def put_many(self, columns: Columns, start: int, stop: int) -> None:
        """Add rows ``start`` to ``stop`` of a batch. They are copied, unless `fill` or `wrap` has
        made the batch."""

    def row_packing(self, n: int) -> RowPacking | None:
        """Return how to pack up to n rows that threads write before they go in together; ``None``:
        one by one they go in as fast, or must not share a copy."""
        return None

    def reserve(self, n: int) -> Any:  # noqa: B027  # most need none
        """Reserve memory for `fill` to copy n rows to, if the storage has some."""

    def fill(self, reserved: Any, columns: Columns, n: int) -> Columns:
        """Copy a batch to reserved memory; return the columns to put in. No lock."""
        return columns

    def wrap(self, columns: Columns, n: int) -> Columns:
        """Take over a batch that the caller gives away; return the columns to put in. No lock."""
        return columns

    def discard(self, columns: Columns, start: int) -> None:  # noqa: B027  # most have nothing to do
        """Release what `reserve`, `fill` or `wrap` made, from row ``start`` on."""

    def expect(self, n: int) -> None:  # noqa: B027  # most have nothing to gain
        """Announce a batch that waits, first in line, for n rows; fewer are inside.

        The storage may write new rows to memory that the batch's owner will get as it is. The
        machine may call this repeatedly. It is an optimisation without visible effect, so it must
        not fail.
        """

    # The way out.

    @abstractmethod
    def take(self) -> Row: ...

    @abstractmethod
    def pull(self, n: int, into: Columns | None = None) -> Columns:
        """Remove the next n rows and return them as columns, written to ``into`` if that is given.

        There must be n rows inside; ``returned`` is ignored.
        """

    def claim(self, n: int) -> None:
        """Decide which n rows leave next (only called if `eager`)."""
        raise NotImplementedError

    def hold(self, held: Held, n: int) -> None:
        """Move the next n rows into an empty `Held`. There must be n rows inside."""
        back = self.returned[:n]
        known = len(back)
        tickets: Sequence[Any] = range(self._next_ticket, self._next_ticket + n - known)
        parts: list[Any] = []
        try:
            if n > known:
                self._remove(n - known, parts)
        except BaseException:
            # Some rows may be out of the order already. They come back as if a batch of just these
            # had been held and cancelled.
            partial = Held()
            partial.parts, partial.tickets = parts, tickets[: len(parts)]
            self._next_ticket += len(parts)
            self.restore(partial)
            raise
        if back:
            parts = [*[entry for _, entry in back], *parts]
            tickets = [*[ticket for ticket, _ in back], *tickets]
        # No call from here on, so the rows are held, numbered and off the list in one step.
        held.parts, held.tickets, held.count = parts, tickets, n
        self._next_ticket += n - known
        del self.returned[:known]

    def hold_one(self, held: Held) -> None:
        """Move the next row into a `Held`, as a row. There must be one inside."""
        try:
            self.hold(held, 1)
            held.single = held.parts[0]
        except BaseException:
            self.restore(held)
            raise

    def restore(self, held: Held) -> None:
        """Put held rows back, to the front and in order."""
        self.returned += zip(held.tickets, held.parts, strict=True)
        self.returned.sort(key=_BY_TICKET)
        held.clear()

    def release(self, held: Held) -> None:
        """Put back what a batch held or claimed that has failed because the queue has closed."""
        self.restore(held)

    def drop(self, value: Any) -> bool:
        """Remove the row that is this object, or whose object it is behind a priority; return
        whether it was inside. For storages of plain objects only; linear in its place."""
        raise NotImplementedError

    def _drop_returned(self, value: Any) -> bool:
        """Remove one row from ``returned``; return whether it was there."""
        for index, (_, entry) in enumerate(self.returned):
            if entry is value:
                del self.returned[index]
                return True
        return False

    @abstractmethod
    def columns(self, held: Held) -> Columns:
        """Return held rows as columns, private and complete. No lock."""

    def free(self, held: Held) -> None:
        """Release held rows that their owner has copied."""
        held.clear()

    @abstractmethod
    def empty(self) -> Columns: ...

    def _remove(self, n: int, removed: list[Any]) -> None:
        """Move the next n entries from the line to a list; ``returned`` is ignored."""
        raise NotImplementedError


class BatchCopier:
    """Copies the large batches of one queue, in their owners' threads, without the machine's lock.

    On the way in, the storage reserves memory under the lock, and the owner copies the batch into
    it without the lock. A second move under the lock only links that memory in. On the way out, the
    owner copies the rows that its dequeue holds, and then releases them under the lock. If a copy
    fails, the queue is unchanged.

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

    def copy_out(self, held: Held) -> Columns:
        """Copy the rows that a dequeue holds, and release them.

        If the copy fails, the dequeue still holds the rows; withdrawing it puts them back.
        """
        columns = self._storage.columns(held)
        self._free(held)
        return columns

    def guard_with(self, lock: OwnedLock) -> None:
        self._lock = lock

    def _interrupted(self) -> RuntimeError:
        return RuntimeError(
            "nothing was put in: a finalizer or a signal handler has made this call, and has"
            " interrupted another call of the same thread"
        )

    @not_reentrant
    def _reserve(self, n: int) -> Any:
        return self._storage.reserve(n)

    @synchronized
    def _discard(self, reserved: Any) -> None:
        if reserved is not None:
            self._storage.discard(reserved, 0)

    @synchronized
    def _free(self, held: Held) -> None:
        self._storage.free(held)
