"""Producers that have a book: what they have put in, over all of their lives, and what is missing.

Such a producer can make each of its batches again, by its number. So the queue counts what has come
of it, under the producer's name, whichever program that is; and what is lost with one of them is
asked of it, or of the next one, instead of being given up.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import Final
from weakref import WeakValueDictionary

from aioqueue.ray.handles import Segment

__all__ = ("RETURN_SECONDS", "Entry", "ProducerRecord")

RETURN_SECONDS: Final = 20.0
"""How long consumers wait for a producer that is gone to begin anew, if it has what they lack."""

Entry = tuple[str, int]
"""A batch of a book: the name of the producer, and the number of the batch."""


class ProducerRecord:
    """What one producer has put in. Used under the lock of the actor.

    Attributes:
        life: of the handle that fills now; empty until it is heard of.
        next: the first batch that is not in, or not as a whole.
        inside: the rows of that one that are in.
        rows: how many it has, once some are; else 0.
        call: the number of the enqueue by which a batch is being put in, if one is.
    """

    def __init__(self, following: int = 0, inside: Iterable[int] = (), rows: int = 0) -> None:
        self.life = ""
        self.next = following
        self.inside = set(inside)
        self.rows = rows
        self.call: int | None = None
        self._wanted: set[int] = set()  # to be made again
        self._gone = 0.0  # when it was heard that nobody fills any more; 0.0 while somebody does
        self._segments: WeakValueDictionary[int, Segment] = WeakValueDictionary()

    def begin(self, life: str) -> None:
        """A handle fills from now on. If it is not the one before, what only that had is lost."""
        if self.life != life:
            self.life = life
            for number, segment in list(self._segments.items()):
                if not segment.is_here:
                    self._want(number, segment)
        self._gone = 0.0

    def end(self) -> None:
        """The handle that filled is gone."""
        self._gone = monotonic()

    def enter(self, number: int, segment: Segment) -> None:
        """A batch is put in."""
        self._segments[number] = segment

    def note_rows(self, inside: Iterable[int], rows: int) -> None:
        """So much of the next batch is in."""
        self.inside.update(inside)
        self.rows = rows if self.inside else 0
        if len(self.inside) == rows:
            self.next += 1
            self.inside.clear()
            self.rows = 0

    def rows_of(self, number: int) -> int | None:
        """How many rows a batch has that was put in before, as far as is known."""
        if number == self.next:
            return self.rows or None
        segment = self._segments.get(number)
        return None if segment is None else segment.rows

    def come(self, number: int) -> Segment | None:
        """A batch comes that is wanted; its segment, if anything of it is still to be given out."""
        self._wanted.discard(number)
        return self._segments.get(number)

    def missing(self) -> list[int]:
        """The batches that are to be made again."""
        self._wanted.intersection_update(self._segments.keys())  # some may have been given up
        return sorted(self._wanted)

    def want(self, segment: Segment) -> bool:
        """A batch is lost; returns whether it is one of these, and will be asked for again."""
        number = next((n for n, one in self._segments.items() if one is segment), None)
        if number is None or segment.is_here:
            return False
        self._want(number, segment)
        return True

    def _want(self, number: int, segment: Segment) -> None:
        self._wanted.add(number)
        segment.is_awaited = True

    def give_up(self) -> bool:
        """If nobody fills any more, and has not for long: what is wanted is lost."""
        if not (self._wanted and self._gone and monotonic() - self._gone > RETURN_SECONDS):
            return False
        for number in self.missing():
            segment = self._segments.pop(number)
            segment.is_awaited, segment.is_lost = False, True
        self._wanted.clear()
        return True

    def elsewhere(self) -> list[Segment]:
        """What would be lost with who fills."""
        segments = list(self._segments.values())
        return [one for one in segments if not (one.is_here or one.is_awaited)]
