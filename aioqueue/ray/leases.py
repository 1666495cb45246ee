"""The leases of one queue: what consumers hold, and may still give back.

A lease is a dequeue that is granted and not committed. The queue's state machine keeps that state
until the remote consumer commits. So the machine also provides the rest: rows that are given back
return to the front, and the end of a closed queue is reported only when nothing can come back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from aioqueue.core.attempts import GRANTED, Attempt, Take, Waker
from aioqueue.core.elements.spec import Columns
from aioqueue.queues.queue_core import QueueCore
from aioqueue.ray.journal import NoJournal, QueueJournal
from aioqueue.ray.ledger import ConsumerProgress, pairs_of
from aioqueue.ray.segments import RowHandle, runs_of
from aioqueue.worlds.waker import deliver


class DequeueWaiter:
    """The waiter of one dequeue: calls back when the dequeue has ended or was granted.

    Args:
        wake: the callback; called in any thread, at least once.
    """

    two_step = True

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake

    def notify(self, attempt: Attempt, /) -> None:
        pass

    def wake(self, *, from_anywhere: bool = False) -> Iterable[Attempt]:
        self._wake()
        return ()

    def is_dead(self) -> bool:
        """See `Waker`; the actor ends a waiter whose client is dead."""
        return False


class Lease:
    """What one dequeue got, or is getting.

    Attributes:
        takes: its dequeues; several if some rows of the first were lost.
        is_delivered: whether its consumer has received it.
        rows: how many elements its consumer has received.
        done: how many of those its consumer is done with. It may not have committed them: if they
            go back, they are not done.
    """

    __slots__ = ("done", "is_delivered", "rows", "takes")

    def __init__(self) -> None:
        self.takes: list[Take] = []
        self.is_delivered: bool = False
        self.rows: int = 0
        self.done: int = 0


class LeaseTable:
    """All leases of a queue. Used under the lock of the actor.

    Args:
        core: the queue.
        journal: where leases are recorded.
    """

    def __init__(self, core: QueueCore, journal: QueueJournal | NoJournal) -> None:
        self._core = core
        self._journal = journal
        self._machine = core.machine
        self._leases: dict[str, dict[int, Lease]] = {}
        self._clients: dict[str, str] = {}  # by life
        self._progress: dict[str, ConsumerProgress] = {}  # by client
        self._unfinished: dict[str, int] = {}  # by life: elements committed and not done with

    def add_life(self, life: str, client: str) -> None:
        """Add a new life of a client; its lease numbers continue those of the former life."""
        self._clients[life] = client

    def remove_life(self, life: str) -> None:
        """Remove a life. The progress of a named client is kept.

        What it has committed counts as done: it does not come back, and nobody else has it.
        """
        self._count_done(self._unfinished.pop(life, 0))
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

    def task_done(self, consumer: str, n: int) -> int | None:
        """Note that a consumer is done with n elements, committed ones first.

        Returns:
            How many it could be done with, if those are fewer; nothing has changed then.
        """
        delivered = [self._leases[consumer][number] for number in self.numbers_of(consumer)]
        unfinished = self._unfinished.get(consumer, 0)
        possible = unfinished + sum(lease.rows - lease.done for lease in delivered)
        if n > possible:
            return possible
        # Committed ones first: they cannot go back. What counts on a lease is counted again if the
        # lease goes back. `QueueLedger` follows the same order.
        self._set_unfinished(consumer, unfinished - min(n, unfinished))
        left = n - min(n, unfinished)
        for lease in delivered:
            done = min(left, lease.rows - lease.done)
            lease.done += done
            left -= done
        self._count_done(n)
        return None

    def _set_unfinished(self, consumer: str, count: int) -> None:
        if count:
            self._unfinished[consumer] = count
        else:
            self._unfinished.pop(consumer, None)

    def _count_done(self, n: int) -> None:
        """Count rows as done with; a negative number, as not done with after all."""
        wakers = self._machine.task_done(n)
        if wakers:
            deliver(wakers)

    def entries(self, rows: Sequence[Any]) -> tuple[Columns, int]:
        """Return rows as queue entries, with their sizes if bytes are bounded, and their number."""
        columns, n = self._core.spec.columns(rows)
        return self._core.prepare_columns(columns, n, copy=False), n

    def begin(self, attempt: Attempt, waker: Waker) -> None:
        """Start an attempt, which may end or be granted at once."""
        deliver(self._machine.begin(attempt, waker))

    def count_wait(self, attempt: Attempt, waited: float) -> None:
        self._machine.count_wait(attempt, waited)

    def expire(self, attempt: Attempt) -> None:
        """End the wait of a dequeue, which takes what is there."""
        deliver(self._machine.expire(attempt))

    def withdraw(self, attempt: Attempt) -> None:
        """End an attempt that its caller has abandoned; rows granted to a dequeue go back."""
        deliver(self._machine.withdraw(attempt))

    def handles_of(self, take: Take) -> list[RowHandle]:
        """Return what a dequeue was granted, without lost rows."""
        return [handle for handle in self.all_handles_of(take) if not handle.segment.is_lost]

    def all_handles_of(self, take: Take) -> list[RowHandle]:
        rows: Collection[Any] = self._core.storage.columns(take.held)
        return [row[1] if isinstance(row, tuple) else row for row in rows]

    def open_lease(self, consumer: str, number: int) -> Lease:
        """Open a lease for a consumer; its dequeues are entered there."""
        lease = self._leases.setdefault(consumer, {})[number] = Lease()
        return lease

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

    def mark_delivered(self, consumer: str, number: int) -> bool:
        """Deliver a lease to its consumer, unless all of it has gone back."""
        lease = self._leases.get(consumer, {}).get(number)
        if lease is None:
            return False
        if not lease.is_delivered:  # else a repeated call, which gets the same lease
            lease.is_delivered = True
            self._progress_of(consumer).mark_delivered(number)
            handles = [handle for take in lease.takes for handle in self.handles_of(take)]
            lease.rows = len(handles)
            if not self._journal.starts:  # without a journal, do not compute its record
                return True
            runs = [
                [segment.producer, segment.number, pairs_of(rows)]
                for segment, rows in runs_of(handles)
            ]
            self._journal.append("lease", consumer, number, runs)
        return True

    def commit_take(self, take: Take) -> None:
        wakers = self._machine.commit(take)
        # Releases the rows in the storage; a batch in the object store goes with its last row.
        self._core.copier.copy_out(take.held)
        deliver(wakers)

    def commit_lost(self, take: Take) -> None:
        """Commit what a dequeue got. All of it is lost: no consumer gets it, so it is done."""
        count = take.held.count
        self.commit_take(take)
        self._count_done(count)

    def commit(self, consumer: str, numbers: Iterable[int]) -> None:
        """Commit leases of a consumer; its other leases stay."""
        delivered = set(self.numbers_of(consumer))
        used = [number for number in numbers if number in delivered]
        for number in used:
            lease = self._pop(consumer, number)
            # The takes also hold rows that were lost before the delivery. Nobody received them, so
            # nobody says that it is done with them.
            held = sum(take.held.count for take in lease.takes)
            for take in lease.takes:
                self.commit_take(take)
            self._count_done(held - lease.rows)
            unfinished = self._unfinished.get(consumer, 0) + lease.rows - lease.done
            self._set_unfinished(consumer, unfinished)
            self._progress_of(consumer).commit(number)
        if used:
            self._journal.append("used", consumer, used)

    def give_back(self, consumer: str, number: int | None = None) -> list[int]:
        """Return the rows of a consumer to the front of the queue.

        Args:
            consumer: the consumer.
            number: the lease; ``None`` for all its leases.

        Returns:
            The numbers of those leases that it had received.
        """
        leases = self._leases.get(consumer, {})
        numbers = sorted(leases) if number is None else [number] if number in leases else []
        delivered = [each for each in numbers if leases[each].is_delivered]
        if delivered:  # the journal knows only of those
            self._journal.append("back", consumer, delivered)
        # Each goes to the front of the queue. So the last one goes first, and the oldest rows end
        # up in front.
        for each in reversed(numbers):
            lease = self._pop(consumer, each)
            self._count_done(-lease.done)  # they come again
            for take in reversed(lease.takes):
                self.withdraw(take)
        return delivered

    def _pop(self, consumer: str, number: int) -> Lease:
        leases = self._leases[consumer]
        lease = leases.pop(number)
        if not leases:
            del self._leases[consumer]
        return lease

    def numbers_of(self, consumer: str) -> list[int]:
        leases = self._leases.get(consumer, {})
        return sorted(number for number, lease in leases.items() if lease.is_delivered)

    def count_of(self, consumers: Iterable[str]) -> int:
        return sum(len(self.numbers_of(consumer)) for consumer in consumers)

    def count(self) -> int:
        return self.count_of(self._leases)

    def others_hold_rows(self, consumer: str) -> bool:
        """Return whether another consumer holds rows that may come back."""
        return any(
            take.state is GRANTED
            for owner, leases in self._leases.items()
            if owner != consumer
            for lease in leases.values()
            for take in lease.takes
        )

    def takes_of(self, consumer: str, number: int) -> list[Take]:
        """Return the dequeues of a lease; none if there is no such lease."""
        lease = self._leases.get(consumer, {}).get(number)
        return [] if lease is None else list(lease.takes)
