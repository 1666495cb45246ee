"""The leases of one queue: what consumers in other processes hold, and may still give back.

A lease is a dequeue that is granted and not committed. The queue's state machine keeps that state
until the remote consumer commits. So the machine also provides the rest: rows that are given back
return to the front, and the end of a closed queue is reported only when nothing can come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from aioqueue.core.attempts import GRANTED, Attempt, Take, Waker
from aioqueue.queues.queue_core import QueueCore
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
        """See `Waker`; the owner ends a waiter whose client is dead."""
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
    """All leases of a queue. Used under the lock of the queue's owner.

    An owner that can restart overrides the methods that note what happens.

    Args:
        core: the queue.
    """

    def __init__(self, core: QueueCore) -> None:
        self._core = core
        self._machine = core.machine
        self._leases: dict[str, dict[int, Lease]] = {}  # by consumer
        self._unfinished: dict[str, int] = {}  # by consumer: elements committed and not done with

    def remove_consumer(self, consumer: str) -> None:
        """Remove a consumer whose leases have ended.

        What it has committed counts as done: it does not come back, and nobody else has it.
        """
        self._count_done(self._unfinished.pop(consumer, 0))

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
        # lease goes back. A ledger follows the same order.
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

    def open_lease(self, consumer: str, number: int) -> Lease:
        """Open a lease for a consumer; its dequeues are entered there."""
        lease = self._leases.setdefault(consumer, {})[number] = Lease()
        return lease

    def mark_delivered(self, consumer: str, number: int) -> bool:
        """Deliver a lease to its consumer, unless all of it has gone back."""
        lease = self._leases.get(consumer, {}).get(number)
        if lease is None:
            return False
        if not lease.is_delivered:  # else a repeated call, which gets the same lease
            lease.is_delivered = True
            lease.rows = sum(map(self._rows_of, lease.takes))
            self._note_delivered(consumer, number, lease)
        return True

    def commit_take(self, take: Take) -> None:
        wakers = self._machine.commit(take)
        # Releases the rows in the storage.
        self._core.copier.copy_out(take.held)
        deliver(wakers)

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
        if used:
            self._note_committed(consumer, used)

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
        if delivered:
            self._note_given_back(consumer, delivered)
        # Each goes to the front of the queue. So the last one goes first, and the oldest rows end
        # up in front.
        for each in reversed(numbers):
            lease = self._pop(consumer, each)
            self._count_done(-lease.done)  # they come again
            for take in reversed(lease.takes):
                self.withdraw(take)
        return delivered

    # What the table of an owner with a journal overrides.

    def _rows_of(self, take: Take) -> int:
        """Return how many elements a consumer receives of what a dequeue was granted."""
        return take.held.count

    def _note_delivered(self, consumer: str, number: int, lease: Lease) -> None:
        """Note that a consumer receives a lease."""

    def _note_committed(self, consumer: str, numbers: Sequence[int]) -> None:
        """Note that a consumer has committed leases."""

    def _note_given_back(self, consumer: str, numbers: Sequence[int]) -> None:
        """Note that leases that a consumer had received go back."""

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
