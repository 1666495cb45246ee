"""The shuffle buffer: rows leave in random order, exactly as TensorFlow 1 drew them.

A draw takes the row at ``word % size`` of a plain list and puts the list's last row in its place.
The words are those of `PhiloxWords`, so a seed gives the order that TensorFlow 1 gave, including
draws between enqueues and after the rows of a failed batch came back.

A batch that waits draws each row at the moment it comes (`eager`): what can be drawn depends on
what is inside then. Drawn rows stay on the shelf, in ``_drawn``, until the batch is complete, so
they cost no copy; a batch that is cancelled leaves them there, first in line. In TensorFlow, what a
batch had drawn when the queue was closed under it goes back and is drawn again, by further words;
so the last batch depends on whether it began before the close. Where that must not be,
``draws_again`` is false, and what was drawn stays drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from aioqueue.elements import Columns, Row
from aioqueue.philox import PhiloxWords, Seed
from aioqueue.storage.base import Held
from aioqueue.storage.shelf import Shelf, ShelvedStorage, Slot

__all__ = ("ShuffleStorage",)


class ShuffleStorage(ShelvedStorage):
    """Rows that leave in random order, each drawn uniformly from what is inside.

    Args:
        shelf: where the rows rest.
        seed: see `resolve_seed`.
        draws_again: whether what a batch had drawn that does not get all is drawn again.
    """

    eager = True

    def __init__(self, shelf: Shelf, seed: Seed, *, draws_again: bool = True) -> None:
        super().__init__(shelf)
        self._draws_again = draws_again
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
        row = self._shelf.look(entry)
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
        missing = n - len(self.returned) - len(self._drawn)
        if missing > 0:
            self._draw(missing)

    def release(self, held: Held) -> None:
        """What was drawn goes back into the buffer, last drawn first, and is drawn again."""
        if not self._draws_again:
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
        # What is drawn is exchanged for the last row, and leaves the list when all have been drawn:
        # every row is in one place all the time.
        order = self._order
        last = len(order)
        for word in self._words.take(n):
            index = word % last
            last -= 1
            order[index], order[last] = order[last], order[index]
        self._drawn += order[last:][::-1]
        del order[last:]
