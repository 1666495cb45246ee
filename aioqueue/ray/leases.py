"""The leases of an actor's queue: recorded in a journal, with rows that can be lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from aioqueue.core.attempts import Take
from aioqueue.core.elements.spec import Columns
from aioqueue.queues.queue_core import QueueCore
from aioqueue.ray.journal import NoJournal, QueueJournal
from aioqueue.ray.lease_table import Lease, LeaseTable
from aioqueue.ray.ledger import ConsumerProgress, pairs_of
from aioqueue.ray.segments import RowHandle, runs_of


class ActorLeases(LeaseTable):
    """All leases of a queue. Used under the lock of the actor.

    Args:
        core: the queue, of handles of rows.
        journal: where leases are recorded.
    """

    def __init__(self, core: QueueCore, journal: QueueJournal | NoJournal) -> None:
        super().__init__(core)
        self._journal = journal
        self._clients: dict[str, str] = {}  # by life
        self._progress: dict[str, ConsumerProgress] = {}  # by client

    def add_life(self, life: str, client: str) -> None:
        """Add a new life of a client; its lease numbers continue those of the former life."""
        self._clients[life] = client

    def remove_life(self, life: str) -> None:
        """Remove a life. The progress of a named client is kept."""
        self.remove_consumer(life)
        client = self._clients.pop(life, life)
        if client == life:
            self._progress.pop(client, None)

    def progress(self, client: str) -> ConsumerProgress:
        return self._progress.get(client) or ConsumerProgress()

    def _progress_of(self, life: str) -> ConsumerProgress:
        return self._progress.setdefault(self._clients.get(life, life), ConsumerProgress())

    def restore(self, progress: Mapping[str, ConsumerProgress]) -> None:
        """Restore the progress of clients after a restart."""
        for client, one in progress.items():
            self._progress[client] = ConsumerProgress(one.following, one.committed)

    def restore_done(
        self, unfinished: Mapping[str, int], done: Mapping[str, Mapping[int, int]]
    ) -> None:
        """Restore, after the leases, what consumers are done with."""
        self._unfinished = dict(unfinished)
        # The machine counts the restored rows, those in the queue and those on lease. It lacks the
        # committed ones that are not done, and those on lease that are done are too many.
        count = -sum(unfinished.values())
        for life, numbers in done.items():
            for number, rows in numbers.items():
                lease = self._leases.get(life, {}).get(number)
                if lease is not None:
                    lease.done = min(rows, lease.rows)
                    count += lease.done
        self._count_done(count)

    def restore_grant(self, consumer: str, number: int, rows: Sequence[Any]) -> None:
        """Restore a lease of a consumer after a restart, while the queue is still empty."""
        take = Take(len(rows), leased=True)
        self._machine.restore_grant(take, self.entries(rows)[0])
        lease = self.open_lease(consumer, number)
        lease.takes.append(take)
        lease.is_delivered = True
        lease.rows = len(rows)

    def restore_rows(self, rows: Sequence[Any]) -> None:
        self._machine.restore_rows(*self.entries(rows))

    def entries(self, rows: Sequence[Any]) -> tuple[Columns, int]:
        """Return rows as queue entries, with their sizes if bytes are bounded, and their number."""
        columns, n = self._core.spec.columns(rows)
        return self._core.prepare_columns(columns, n, copy=False), n

    def handles_of(self, take: Take) -> list[RowHandle]:
        """Return what a dequeue was granted, without lost rows."""
        return [handle for handle in self.all_handles_of(take) if not handle.segment.is_lost]

    def all_handles_of(self, take: Take) -> list[RowHandle]:
        rows: Collection[Any] = self._core.storage.columns(take.held)
        return [row[1] if isinstance(row, tuple) else row for row in rows]

    def commit_lost(self, take: Take) -> None:
        """Commit what a dequeue got. All of it is lost: no consumer gets it, so it is done."""
        count = take.held.count
        self.commit_take(take)
        self._count_done(count)

    def _rows_of(self, take: Take) -> int:
        return len(self.handles_of(take))

    def _note_delivered(self, consumer: str, number: int, lease: Lease) -> None:
        self._progress_of(consumer).mark_delivered(number)
        if not self._journal.starts:  # without a journal, do not compute its record
            return
        handles = [handle for take in lease.takes for handle in self.handles_of(take)]
        runs = [
            [segment.producer, segment.number, pairs_of(rows)] for segment, rows in runs_of(handles)
        ]
        self._journal.append("lease", consumer, number, runs)

    def _note_committed(self, consumer: str, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._progress_of(consumer).commit(number)
        self._journal.append("used", consumer, numbers)

    def _note_given_back(self, consumer: str, numbers: Sequence[int]) -> None:
        self._journal.append("back", consumer, numbers)
