"""The shuffle buffer: rows leave in random order, exactly as TensorFlow 1 drew them.

A draw takes the row at ``word % size`` of a plain list and puts the list's last row in its place.
The words are those of `PhiloxWords`. So a seed gives TensorFlow 1's order, even with draws between
enqueues, and after the rows of a failed batch came back.

A waiting batch draws each row as it arrives (`eager`), because what can be drawn depends on what is
inside at that moment. Drawn rows stay on the shelf, listed in ``_drawn``, until the batch is
complete, so they cost no copy. A cancelled batch leaves them there, first in line. In TensorFlow,
the rows of a batch that fails as its queue closes go back and are drawn again, by further words. So
the last batch depends on whether it began before the close. With ``redraws=False`` such rows
stay drawn, and the last batch does not depend on that.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, MutableSequence
from itertools import chain
from typing import ClassVar

from aioqueue.core.elements.philox import PhiloxWords, Seed
from aioqueue.core.elements.spec import Columns, Row
from aioqueue.core.storage.protocol import Held, Slot
from aioqueue.core.storage.shelf import Shelf, ShelvedStorage


class ShuffleStorage(ShelvedStorage):
    """Rows that leave in random order, each drawn uniformly from those inside.

    Args:
        shelf: where the rows are kept.
        seed: see `resolve_seed`.
        draws_again: whether the rows of a batch that fails as the queue closes are drawn again.
    """

    eager = True
    most_listed: ClassVar[int] = 2**14
    """Up to so many numbers of slots are in a list, which is faster as long as its ints fit into
    the processor's caches. Of more than that, an array is faster, with a fifth of the memory."""

    def __init__(self, shelf: Shelf, seed: Seed, *, redraws: bool = True) -> None:
        super().__init__(shelf)
        self._redraws = redraws
        self._words = PhiloxWords(seed)
        self._order: MutableSequence[Slot] = []
        self._drawn: list[Slot] = []

    def __len__(self) -> int:
        return len(self._order) + len(self._drawn)

    def __iter__(self) -> Iterator[Slot]:
        return chain(self._drawn, self._order)

    def put(self, row: Row, /) -> None:
        if len(self._order) == self.most_listed:
            self._fit_order(1)
        self._order.append(self._shelf.place(row))

    def put_many(self, columns: Columns, start: int, stop: int) -> None:
        self._fit_order(stop - start)
        self._order.extend(self._entries(columns, start, stop))

    def take(self) -> Row:
        if not self._drawn:
            self._draw(1)
        entry = self._drawn[0]
        row = self._shelf.read_one(entry)  # before it leaves: the copy may fail
        del self._drawn[0]
        self._shelf.forget((entry,))
        return row

    def pull(self, n: int, into: Columns | None = None) -> Columns:
        if len(self._drawn) < n:
            self._draw(n - len(self._drawn))
        entries = self._drawn[:n]
        columns = self._shelf.read(entries, into)
        del self._drawn[:n]
        self._shelf.forget(entries)
        return columns

    def claim(self, n: int) -> None:
        # Rows that came back, and rows drawn for a cancelled batch, leave first: they count, too.
        missing = n - len(self.returned) - len(self._drawn)
        if missing > 0:
            self._draw(missing)

    def release(self, held: Held) -> None:
        """Put drawn rows back into the buffer, the last drawn first, to be drawn again."""
        if not self._redraws:
            super().release(held)
            return
        entries = [*reversed(self._drawn), *reversed(held.parts)]
        self._order.extend(entries)
        self._drawn, held.parts, held.count = [], [], 0
        held.clear()

    def _remove(self, n: int, removed: list[Slot]) -> None:
        if len(self._drawn) < n:
            self._draw(n - len(self._drawn))
        removed += self._drawn[:n]
        del self._drawn[:n]

    def _fit_order(self, n: int) -> None:
        """Let the order be of the type that suits it when n more rows are inside.

        Before these are added, so that the change comes last: see *Interruptions* in `protocol`.
        """
        shelf, order = self._shelf, self._order
        if type(order) is not list:
            if shelf.has_wrapped:
                self._order = list(order)
        elif len(order) + n > self.most_listed and shelf.has_numbers and not shelf.has_wrapped:
            self._order = array("q", order)

    def _draw(self, n: int) -> None:
        # A drawn row is swapped with the last one, and leaves the list once all have been drawn:
        # so every row is in exactly one place all the time.
        order = self._order
        last = len(order)
        for word in self._words.take(n):
            index = word % last
            last -= 1
            order[index], order[last] = order[last], order[index]
        self._drawn += order[last:][::-1]
        del order[last:]
