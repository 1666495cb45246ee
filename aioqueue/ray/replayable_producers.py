"""Replayable producers: what each has enqueued over all its lives, and what is missing.

Such a producer can make each batch again from its number. So the queue records progress under the
producer's name, whichever program runs it. When a program dies with some of its batches, the next
program of that name makes them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import Final
from weakref import WeakValueDictionary

from aioqueue.ray.segments import Segment

RETURN_SECONDS: Final = 20.0
"""How long consumers wait for a dead producer to restart, if it has elements that they need."""

ProducerBatch = tuple[str, int]
"""A batch of a replayable producer: the producer's name, and the batch number."""


class ProducerRecord:
    """What one producer has enqueued. Used under the lock of the actor.

    Attributes:
        life: the handle that fills now; empty until it has called.
        next: the first batch that is not completely in.
        inside: the rows of that batch that are in.
        rows: its number of rows, once some are in; 0 before.
        call: number of the enqueue in progress, if there is one.
    """

    def __init__(self, following: int = 0, inside: Iterable[int] = (), rows: int = 0) -> None:
        self.life: str = ""
        self.next: int = following
        self.inside: set[int] = set(inside)
        self.rows: int = rows
        self.call: int | None = None
        self._requested: set[int] = set()  # batches to make again
        self._left_at = 0.0  # when the last fill ended; 0.0 during one
        self._segments: WeakValueDictionary[int, Segment] = WeakValueDictionary()

    def begin(self, life: str) -> None:
        """Start a fill by a handle. If the handle is a new one, batches held only by the former are
        lost."""
        if self.life != life:
            self.life = life
            # What only the former handle had has gone with it, even if nobody has noticed yet.
            for number, segment in list(self._segments.items()):
                if not segment.is_in_actor:
                    self._request_again(number, segment)
        self._left_at = 0.0

    def end(self) -> None:
        """Note that the filling handle no longer exists."""
        self._left_at = monotonic()

    def enter(self, number: int, segment: Segment) -> None:
        self._segments[number] = segment

    def note_rows(self, inside: Iterable[int], rows: int) -> None:
        """Record how much of the next batch is in."""
        self.inside.update(inside)
        self.rows = rows if self.inside else 0
        if len(self.inside) == rows:
            self.next += 1
            self.inside.clear()
            self.rows = 0

    def rows_of(self, number: int) -> int | None:
        if number == self.next:
            return self.rows or None
        segment = self._segments.get(number)
        return None if segment is None else segment.rows

    def arrive(self, number: int) -> Segment | None:
        """Accept a batch that was made again; return its segment, if rows of it are still
        undelivered."""
        self._requested.discard(number)
        return self._segments.get(number)

    def missing(self) -> list[int]:
        """Return the batches to make again."""
        self._requested.intersection_update(
            self._segments.keys()
        )  # some may have been given up in the meantime
        return sorted(self._requested)

    def request_again(self, segment: Segment) -> bool:
        """Request a lost batch; return whether it belongs to this producer."""
        number = next((n for n, one in self._segments.items() if one is segment), None)
        # It belongs to another producer, or was copied to the actor in the meantime.
        if number is None or segment.is_in_actor:
            return False
        self._request_again(number, segment)
        return True

    def _request_again(self, number: int, segment: Segment) -> None:
        self._requested.add(number)
        segment.is_awaited = True

    def give_up(self) -> bool:
        """Give up the requested batches if no handle has filled the queue for a long time."""
        if not (self._requested and self._left_at and monotonic() - self._left_at > RETURN_SECONDS):
            return False
        for number in self.missing():
            segment = self._segments.pop(number)
            segment.is_awaited, segment.is_lost = False, True
        self._requested.clear()
        return True

    def outside_actor(self) -> list[Segment]:
        """Return the batches that would be lost with the filling handle."""
        segments = list(self._segments.values())
        return [one for one in segments if not (one.is_in_actor or one.is_awaited)]
