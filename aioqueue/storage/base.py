"""The storage protocol: where a queue's rows rest, and in which order they leave.

A storage knows layout and order and nothing else: no capacity to respect, nobody waiting, no lock
(the machine calls it under its own). It answers for five things:

* ``put`` and ``put_many`` add rows;
* ``take`` and ``pull`` remove the next rows for good: the quick way out;
* ``hold`` moves the next rows into a caller's *hands* (a `Held`), from where ``restore`` can bring
  them back: the way out of a caller that may yet be cancelled;
* ``claim`` settles *which* rows leave next without moving them, for storages that decide by lot at
  the moment a row arrives;
* ``adopt`` lends it the arrays of a batch that waits, so that rows need not be copied twice.

**Rows that come back** are first in line again, in the order in which they had left, whatever the
order in which they come back. So each held row has a *ticket*, and rows that are back wait in
``returned``, sorted by it, in front of everything else. That list is nearly always empty; as long
as it is not, the machine keeps off the quick way out, which does not look there.

Every method that can fail (memory runs out, a conversion raises) does so before it changes
anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, ClassVar, Final

from aioqueue.elements import Columns, Row

__all__ = ("Held", "Storage")

_BY_TICKET: Final = itemgetter(0)


class Held:
    """Rows in a caller's hands: out of the storage, not yet committed.

    Attributes:
        chunks: columns, one chunk for each time that rows came.
        tickets: the rows' tickets, in the same order.
        count: how many rows.
        out: the caller's own arrays, which the chunks are then slices of.
        single: the row, if it was taken as a row and not as a batch.
    """

    __slots__ = ("chunks", "count", "out", "single", "tickets")

    def __init__(self, out: Columns | None = None) -> None:
        self.chunks: Sequence[Columns] = ()
        self.tickets: Sequence[Any] = ()
        self.count = 0
        self.out = out
        self.single: Row = None

    def add(self, columns: Columns, tickets: Sequence[Any]) -> None:
        self.chunks = [*self.chunks, columns]
        self.tickets = [*self.tickets, *tickets] if self.tickets else tickets
        self.count += len(tickets)

    def clear(self) -> None:
        self.chunks, self.tickets, self.count, self.single = (), (), 0, None

    def target(self, n: int) -> Columns | None:
        """Where in the caller's arrays the next n rows belong."""
        if self.out is None:
            return None
        return [array[self.count : self.count + n] for array in self.out]


class Storage(ABC):
    """One discipline: the order in which rows leave, and how they are laid out until then."""

    progressive: ClassVar[bool] = True
    """Whether a waiting batch may take rows as they come without disturbing the order."""

    eager: ClassVar[bool] = False
    """Whether a row must be claimed at the moment it comes, because the choice depends on it."""

    finishes: ClassVar[bool] = False
    """Whether `finish` has work to do, which may fail: then batches must be able to go back."""

    def __init__(self) -> None:
        self.returned: list[tuple[Any, Row]] = []
        self._next_ticket = 0

    @abstractmethod
    def __len__(self) -> int:
        """How many rows are inside, without those that are back."""

    @property
    def size(self) -> int:
        """How many rows are inside."""
        return len(self) + len(self.returned)

    @abstractmethod
    def put(self, row: Row, /) -> None:
        """Add one row."""

    @abstractmethod
    def put_many(self, columns: Columns, start: int, stop: int, owned: bool) -> None:
        """Add rows ``start`` to ``stop`` of a batch.

        Args:
            columns: the batch.
            start: its first row to add.
            stop: the row after the last one.
            owned: whether the columns may be kept, because the caller has given them away.
        """

    @abstractmethod
    def take(self) -> Row:
        """Remove the next row. Needs a row inside, and none in ``returned``."""

    @abstractmethod
    def pull(self, n: int, into: Columns | None = None) -> Columns:
        """Remove the next n rows as columns, written to ``into`` if that is given.

        Needs n rows inside; does not look at ``returned``.
        """

    @abstractmethod
    def stack(self, rows: Sequence[Row], into: Columns | None = None) -> Columns:
        """Make columns of single rows, written to ``into`` if that is given."""

    @abstractmethod
    def split(self, columns: Columns) -> list[Row]:
        """Make single rows of columns; they share no memory with them."""

    @abstractmethod
    def concatenate(self, chunks: list[Columns]) -> Columns:
        """Make columns of the columns of several chunks. Called without the machine's lock."""

    def finish(self, columns: Columns) -> Columns:
        """The last step to a batch, done without the machine's lock."""
        return columns

    def claim(self, n: int) -> None:
        """Settle which n rows leave next (only called if `eager`)."""
        raise NotImplementedError

    def adopt(self, held: Held, n: int) -> None:  # noqa: B027  # most have nothing to gain
        """A batch waits, first in line, for n rows more: its arrays may be where they rest.

        Then they need not be copied when the batch is complete. May be called again and again.
        Whether or not it is done makes no difference that can be seen; so it does not fail.
        """

    def give_back(self) -> None:  # noqa: B027
        """The batch whose arrays were adopted does not wait any more: keep its rows elsewhere."""

    def hold(self, held: Held, n: int) -> None:
        """Move the next n rows into a caller's hands. Needs n rows inside."""
        back = self.returned[:n]
        if back:
            columns = self.stack([row for _, row in back], held.target(len(back)))
            held.add(columns, [ticket for ticket, _ in back])
            del self.returned[: len(back)]
        rest = n - len(back)
        if rest:
            columns = self.pull(rest, held.target(rest))
            held.add(columns, range(self._next_ticket, self._next_ticket + rest))
            self._next_ticket += rest

    def hold_one(self, held: Held) -> None:
        """Move the next row into a caller's hands, as a row. Needs one inside."""
        if self.returned:
            ticket, held.single = self.returned.pop(0)
        else:
            held.single = self.take()
            ticket = self._next_ticket
            self._next_ticket += 1
        held.tickets = (ticket,)
        held.count = 1

    def restore(self, held: Held) -> None:
        """Bring rows back from a caller's hands, to the front and in order."""
        self.give_back()
        self.returned += zip(held.tickets, self._rows(held), strict=True)
        self.returned.sort(key=_BY_TICKET)
        held.clear()

    def release(self, held: Held) -> None:
        """Bring back what a batch held that failed because the queue has closed."""
        self.restore(held)

    def columns(self, held: Held) -> Columns:
        """The rows in a caller's hands as columns. Called without the machine's lock."""
        if held.out is not None:
            return held.out
        return held.chunks[0] if len(held.chunks) == 1 else self.concatenate(list(held.chunks))

    def _rows(self, held: Held) -> Iterable[Row]:
        if held.count and not held.chunks:
            return [held.single]
        return [row for chunk in held.chunks for row in self.split(chunk)]
