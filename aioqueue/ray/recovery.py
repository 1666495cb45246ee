"""The recovery of a queue's actor, from its journal and from the producers.

The journal contains only numbers. So recovery first fills the queue with handles whose elements are
awaited, in their former order, and restores the leases of consumers. The elements come from the
producers, which keep them until they are committed. If no producer can send an element any more, it
is lost, and the consumer that would have received it gets an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aioqueue.ray.leases import ActorLeases
from aioqueue.ray.ledger import EnqueuedBatch, Key, QueueLedger, rows_of
from aioqueue.ray.segments import Payload, RowHandle, Segment


class Awaited:
    """The batches whose elements must be sent again. Used under the lock of the actor.

    Attributes:
        partial: enqueues that were in progress when the actor died, with their rows that were
            delivered by then. The other rows are enqueued when the call is repeated.
    """

    def __init__(self) -> None:
        self.partial: dict[Key, set[int]] = {}
        self._segments: dict[Key, Segment] = {}

    def add(self, segment: Segment) -> None:
        """Add a batch that has handles, and no elements."""
        segment.is_awaited = True
        self._segments[segment.producer, segment.number] = segment

    def find(self, key: Key) -> Segment | None:
        return self._segments.get(key)

    def producers(self) -> set[str]:
        return {life for life, _ in (*self._segments, *self.partial)}

    def arrive(self, key: Key, payload: Payload) -> Segment | None:
        """Record that a batch has arrived; return it if it was awaited."""
        segment = self._segments.pop(key, None)
        if segment is not None:
            segment.payload = payload
            segment.is_awaited = False
        return segment

    def give_up(self, life: str, except_calls: Iterable[int] = ()) -> list[Key]:
        """Give up the batches that a producer cannot send any more.

        Args:
            life: life of the producer.
            except_calls: calls that it is repeating.

        Returns:
            The enqueues that will never end.
        """
        repeated = set(except_calls)
        for key in [key for key in self._segments if key[0] == life and key[1] not in repeated]:
            segment = self._segments.pop(key)
            segment.is_awaited, segment.is_lost = False, True
        unended = [key for key in self.partial if key[0] == life and key[1] not in repeated]
        for key in unended:
            del self.partial[key]
        return unended


def restore_queue(lease_table: ActorLeases, ledger: QueueLedger) -> tuple[Awaited, list[Segment]]:
    """Fill a queue and its leases from a journal, in their former order.

    Args:
        lease_table: the leases of the queue, which are empty, as is the queue.
        ledger: the state of the journal.

    Returns:
        The awaited batches, and all batches that are not committed as a whole.
    """
    awaited = Awaited()
    segments = {
        key: Segment(*key, Payload(None), batch.rows, batch.row_bytes)
        for key, batch in ledger.batches.items()
    }
    leased = ledger.leased()
    # First the leases: the machine adopts them only while the queue is empty. Their order is that
    # in which they would go back.
    for consumer, number, rows in _leases(ledger):
        entries = [_entry(segments[key], row, ledger.batches[key]) for key, row in rows]
        if entries:  # without entries, all of it is lost
            lease_table.restore_grant(consumer, number, entries)
    for key, batch in ledger.batches.items():
        delivered = batch.used | leased.get(key, set())
        if batch.inside is None:
            # Its enqueue had not ended. Rows that nobody got are not in the queue: they come with
            # the repeated call.
            awaited.partial[key] = delivered
        inside = [row for row in batch.inside or () if row not in delivered]
        if inside:
            lease_table.restore_rows([_entry(segments[key], row, batch) for row in inside])
        # A lease needs its elements, too: its consumer may have died, and they go back; or its
        # answer was lost, and the dequeue is repeated.
        if inside or key in leased:
            awaited.add(segments[key])
    return awaited, list(segments.values())


def _leases(ledger: QueueLedger) -> list[tuple[str, int, list[tuple[Key, int]]]]:
    """Return all leases in the order in which their first rows were enqueued, in which they would
    return."""
    places = {key: place for place, key in enumerate(ledger.batches)}
    leases = [
        (
            consumer,
            number,
            [((life, call), row) for life, call, pairs in runs for row in rows_of(pairs)],
        )
        for consumer, numbered in ledger.leases.items()
        for number, runs in numbered.items()
    ]
    with_batches = [
        (consumer, number, [(key, row) for key, row in rows if key in places])
        for consumer, number, rows in leases
    ]
    return sorted(with_batches, key=lambda lease: [(places[key], row) for key, row in lease[2][:1]])


def _entry(segment: Segment, row: int, batch: EnqueuedBatch) -> Any:
    handle = RowHandle(segment, row)
    return handle if batch.keys is None else (batch.keys[row], handle)
