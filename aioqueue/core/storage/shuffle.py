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

from collections.abc import Iterator
from itertools import chain

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

    def __init__(self, shelf: Shelf, seed: Seed, *, redraws: bool = True) -> None:
        super().__init__(shelf)
        self._redraws = redraws
        self._words = PhiloxWords(seed)
        self._order: list[Slot] = []
        self._drawn: list[Slot] = []

    def __len__(self) -> int:
        return len(self._order) + len(self._drawn)

    def __iter__(self) -> Iterator[Slot]:
        return chain(self._drawn, self._order)

    def put(self, row: Row, /) -> None:
        self._order.append(self._shelf.place(row))

    def put_many(self, columns: Columns, start: int, stop: int) -> None:
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
        self._order += entries
        self._drawn, held.parts, held.count = [], [], 0
        held.clear()

    def _remove(self, n: int, removed: list[Slot]) -> None:
        if len(self._drawn) < n:
            self._draw(n - len(self._drawn))
        removed += self._drawn[:n]
        del self._drawn[:n]

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
