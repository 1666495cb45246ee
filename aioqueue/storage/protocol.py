"""The storage protocol: where a queue's rows rest, and in which order they leave.

A storage knows layout and order and nothing else: no capacity to respect, nobody waiting, no lock
(the machine calls it under its own, but for `fill`, `wrap` and `columns`). It answers for this:

* ``put`` and ``put_many`` add rows;
* ``take`` and ``pull`` remove the next rows for good, copied: the fast path out;
* ``hold`` moves the next rows into a caller's *hands* (a `Held`), from where ``restore`` can bring
  them back: the way out of a caller that may yet be cancelled. Nothing is copied: the rows stay
  where they are, in memory of the storage, out of line. Their owner copies them (``columns``),
  and then they are released for good (``free``);
* ``claim`` settles *which* rows leave next without moving them, for storages that decide by lot at
  the moment a row arrives;
* ``expect`` tells it of a batch that waits, so that its rows can be written where they are given
  away from.

**Large batches** (``is_large``) are never copied while the machine's lock is held, so that nobody
waits for somebody else's copy. On the way in, a caller ``reserve``s memory under the lock, copies
its rows there without it (``fill``), and puts in what that has made, which only moves references.
If it does not all go in, ``discard`` gives the memory back. Batches that the caller gives away
(``wrap``) need no memory. On the way out there are the hands.

**Rows that come back** are first in line again, in the order in which they had left, whatever the
order in which they come back. So each held row has a *ticket*, and rows that are back stand in
``returned``, sorted by it, in front of everything else. That list is nearly always empty; as long
as it is not, the machine keeps off the fast path out, which does not look there.

**Sizes.** Where all rows have as many bytes, ``row_bytes`` says so. Where they have not, and
someone has to know, the rows bring their sizes with them (`aioqueue.storage.sized`): ``weight``
is what is inside, ``weight_of`` and ``weights`` are what is about to go in.

**Private.** What a caller gets shares no memory with anything inside, and is writable. Rows are
copied out in one place, `aioqueue.storage.columns.RowReader`.

Every method that can fail (memory runs out, a conversion raises) does so before it changes
anything.

**Struck.** A signal handler may raise in the middle of any method, in the main thread, which may be
moving rows for others; `aioqueue.locks` says where. What that may cost is the row or the batch that
is moving. So a change is made by statements that call nothing, or by a call that comes last: no
handler runs in between. `hold` and `hold_one` have moved all rows or none, for an attempt that has
some is taken to have all. And what rests in memory is first out of line, and its memory free for
others afterwards: a slot may be lost, but never has two rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

from aioqueue.elements import Columns, Row

__all__ = ("Held", "Storage")

_BY_TICKET: Final = itemgetter(0)


class Held:
    """Rows in a caller's hands: out of the storage's line, not yet copied or released.

    Attributes:
        parts: the rows, as the storage knows them; ``single`` rows too.
        tickets: the rows' tickets, in the same order, where the storage keeps some.
        count: how many rows.
        out: the caller's own arrays, which the rows are to be copied to.
        single: the row, if it was taken as a row and not as a batch.
    """

    __slots__ = ("count", "out", "parts", "single", "tickets")

    def __init__(self, out: Columns | None = None) -> None:
        self.parts: Sequence[Any] = ()
        self.tickets: Sequence[Any] = ()
        self.count = 0
        self.out = out
        self.single: Row = None

    def clear(self) -> None:
        self.parts, self.tickets, self.count, self.single = (), (), 0, None


class Storage(ABC):
    """One discipline: the order in which rows leave, and how they are laid out until then.

    What is implemented here suits storages of *entries*: a row, or a number that stands for one.
    """

    progressive: bool = True
    """Whether a waiting batch may take rows as they come without disturbing the order."""

    eager: bool = False
    """Whether a row must be claimed at the moment it comes, because the choice depends on it."""

    row_bytes: int | None = None
    """How many bytes a row takes, where all take as many."""

    is_atomic: bool = False
    """Whether `put` and `take` are one step of the interpreter, in which nothing else runs."""

    def __init__(self) -> None:
        self.returned: list[tuple[Any, Any]] = []
        self._next_ticket = 0

    @abstractmethod
    def __len__(self) -> int:
        """How many rows are inside, without those that are back."""

    @property
    def size(self) -> int:
        """How many rows are inside."""
        return len(self) + len(self.returned)

    @property
    def weight(self) -> int | None:
        """How many bytes the rows inside take; ``None`` if nobody counts them."""
        return None if self.row_bytes is None else self.row_bytes * self.size

    def weight_of(self, row: Row) -> int:
        """How many bytes a row takes that is to be put in (only asked where rows bring it)."""
        raise NotImplementedError

    def weights(self, columns: Columns, start: int, stop: int) -> Iterator[int]:
        """The same for rows of a batch, in order, each when it is asked for."""
        raise NotImplementedError

    def is_large(self, n: int) -> bool:
        """Whether a batch of n rows is to be copied without the machine's lock."""
        return False

    # In.

    @abstractmethod
    def put(self, row: Row, /) -> None:
        """Add one row."""

    @abstractmethod
    def put_many(self, columns: Columns, start: int, stop: int) -> None:
        """Add rows ``start`` to ``stop`` of a batch: copied; or, of what `fill` or `wrap` has made,
        as they are."""

    def reserve(self, n: int) -> Any:  # noqa: B027  # most need none
        """Memory for n rows, if some is at hand, for `fill`."""

    def fill(self, reserved: Any, columns: Columns, n: int) -> Columns:
        """Copy a batch to memory that was reserved; returns what is to be put in. No lock."""
        return columns

    def wrap(self, columns: Columns, n: int) -> Columns:
        """Take over a batch that the caller gives away; returns what is to be put in. No lock."""
        return columns

    def discard(self, columns: Columns, start: int) -> None:  # noqa: B027  # most have nothing to do
        """Rows from ``start`` on will not be put in, of what `reserve`, `fill` or `wrap` gave."""

    def expect(self, n: int) -> None:  # noqa: B027  # most have nothing to gain
        """A batch waits, first in line, for n rows, of which fewer are here.

        Rows that come may be written where the batch can be given away from. May be called again
        and again. Whether or not it is done makes no difference that can be seen; so it does not
        fail.
        """

    # Out.

    @abstractmethod
    def take(self) -> Row:
        """Remove the next row. Needs a row inside, and none in ``returned``."""

    @abstractmethod
    def pull(self, n: int, into: Columns | None = None) -> Columns:
        """Remove the next n rows as columns, written to ``into`` if that is given.

        Needs n rows inside; does not look at ``returned``.
        """

    def claim(self, n: int) -> None:
        """Settle which n rows leave next (only called if `eager`)."""
        raise NotImplementedError

    def hold(self, held: Held, n: int) -> None:
        """Move the next n rows into a caller's hands, which are empty. Needs n rows inside."""
        back = self.returned[:n]
        known = len(back)
        tickets: Sequence[Any] = range(self._next_ticket, self._next_ticket + n - known)
        parts: list[Any] = []
        try:
            if n > known:
                self._remove(n - known, parts)
        except BaseException:
            undone = Held()
            undone.parts, undone.tickets = parts, tickets[: len(parts)]
            self._next_ticket += len(parts)
            self.restore(undone)
            raise
        if back:
            parts = [*[entry for _, entry in back], *parts]
            tickets = [*[ticket for ticket, _ in back], *tickets]
        held.parts, held.tickets, held.count = parts, tickets, n
        self._next_ticket += n - known
        del self.returned[:known]

    def hold_one(self, held: Held) -> None:
        """Move the next row into a caller's hands, as a row. Needs one inside."""
        try:
            self.hold(held, 1)
            held.single = held.parts[0]
        except BaseException:
            self.restore(held)
            raise

    def restore(self, held: Held) -> None:
        """Bring rows back from a caller's hands, to the front and in order."""
        self.returned += zip(held.tickets, held.parts, strict=True)
        self.returned.sort(key=_BY_TICKET)
        held.clear()

    def release(self, held: Held) -> None:
        """A batch has failed because the queue has closed: bring back what it held or claimed."""
        self.restore(held)

    def drop(self, value: Any) -> bool:
        """Remove the row that is this object, or whose priority stands before it; tell whether it
        was inside. Only storages of plain objects can do so, in time proportional to where it is.
        """
        raise NotImplementedError

    def _drop_returned(self, value: Any) -> bool:
        """The same, for rows that are back."""
        for index, (_, entry) in enumerate(self.returned):
            if entry is value:
                del self.returned[index]
                return True
        return False

    @abstractmethod
    def columns(self, held: Held) -> Columns:
        """The rows in a caller's hands as columns, private and complete. No lock."""

    def free(self, held: Held) -> None:
        """Let go of rows in a caller's hands, which has copied them."""
        held.clear()

    @abstractmethod
    def empty(self) -> Columns:
        """Columns of no rows. No lock."""

    def _remove(self, n: int, removed: list[Any]) -> None:
        """Move the next n entries from the line to a list; does not look at ``returned``."""
        raise NotImplementedError
