"""How the actor of a queue comes back: from its journal, and from those who had put elements in.

The journal has numbers only. So the queue is first filled with handles whose elements are awaited,
in the order that they had, and leases with those that consumers have; the elements come from the
programs that had put them in, which keep them until they have been used. Those that nobody can
send any more are lost, and that is told to who would have got them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aioqueue.ray.handles import Handle, Payload, Segment
from aioqueue.ray.leases import LeaseTable
from aioqueue.ray.ledger import EnqueuedBatch, Key, QueueLedger, rows_of

__all__ = ("Awaited", "refilled")


class Awaited:
    """The batches whose elements have to come again. Used under the lock of the actor.

    Attributes:
        partial: enqueues that had not ended when the actor died: which of their rows were given
            away by then. The others are put in when the call comes again.
    """

    def __init__(self) -> None:
        self.partial: dict[Key, set[int]] = {}
        self._segments: dict[Key, Segment] = {}

    def add(self, segment: Segment) -> None:
        """A batch of which there are handles, and nothing else."""
        segment.is_awaited = True
        self._segments[segment.producer, segment.number] = segment

    def find(self, key: Key) -> Segment | None:
        """One that has not come yet."""
        return self._segments.get(key)

    def producers(self) -> set[str]:
        """Those who have to send something."""
        return {life for life, _ in (*self._segments, *self.partial)}

    def come(self, key: Key, payload: Payload) -> Segment | None:
        """One has come; returns it, if it was awaited."""
        segment = self._segments.pop(key, None)
        if segment is not None:
            segment.payload = payload
            segment.is_awaited = False
        return segment

    def give_up(self, life: str, but: Iterable[int] = ()) -> list[Key]:
        """What a producer cannot send any more is lost.

        Args:
            life: of that producer.
            but: calls that are on their way again.

        Returns:
            The enqueues that will never end.
        """
        coming = set(but)
        for key in [key for key in self._segments if key[0] == life and key[1] not in coming]:
            segment = self._segments.pop(key)
            segment.is_awaited, segment.is_lost = False, True
        unended = [key for key in self.partial if key[0] == life and key[1] not in coming]
        for key in unended:
            del self.partial[key]
        return unended


def refilled(book: LeaseTable, ledger: QueueLedger) -> tuple[Awaited, list[Segment]]:
    """Fill a queue and its book with what a journal says, in the order in which it was.

    Args:
        book: the leases of the queue; there are none, and nothing is inside.
        ledger: what was there.

    Returns:
        What is awaited; and all batches of which something is left.
    """
    awaited = Awaited()
    segments = {
        key: Segment(*key, Payload(None), batch.rows, batch.row_bytes)
        for key, batch in ledger.batches.items()
    }
    leased = ledger.leased()
    for consumer, number, rows in _leases(ledger):
        entries = [_entry(segments[key], row, ledger.batches[key]) for key, row in rows]
        if entries:  # else all of it is lost
            book.adopt(consumer, number, entries)
    for key, batch in ledger.batches.items():
        given = batch.used | leased.get(key, set())
        if batch.inside is None:
            awaited.partial[key] = given
        inside = [row for row in batch.inside or () if row not in given]
        if inside:
            book.refill([_entry(segments[key], row, batch) for row in inside])
        if inside or key in leased:
            awaited.add(segments[key])
    return awaited, list(segments.values())


def _leases(ledger: QueueLedger) -> list[tuple[str, int, list[tuple[Key, int]]]]:
    """All of them, in the order in which their first rows had come in: so they would come back."""
    places = {key: place for place, key in enumerate(ledger.batches)}
    leases = [
        (
            consumer,
            number,
            [((life, call), row) for life, call, pairs in runs for row in rows_of(pairs)],
        )
        for consumer, of_it in ledger.leases.items()
        for number, runs in of_it.items()
    ]
    known = [
        (consumer, number, [(key, row) for key, row in rows if key in places])
        for consumer, number, rows in leases
    ]
    return sorted(known, key=lambda lease: [(places[key], row) for key, row in lease[2][:1]])


def _entry(segment: Segment, row: int, batch: EnqueuedBatch) -> Any:
    """What rests in the queue for a row."""
    handle = Handle(segment, row)
    return handle if batch.keys is None else (batch.keys[row], handle)
