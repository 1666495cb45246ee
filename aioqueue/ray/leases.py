"""The leases of one queue: what consumers have, and may still lose.

A lease is a dequeue that was granted and is not committed: the machine's own state, kept for as
long as its owner, who is elsewhere, has not said that it has used what it got. So all that follows
is the machine's: what is given back is first in line, and the end of a closed queue is told only
when nothing can come back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from aioqueue.attempts import GRANTED, Attempt, Take, Waker
from aioqueue.elements import Columns
from aioqueue.queues.core import QueueCore
from aioqueue.ray.handles import Handle, runs_of
from aioqueue.ray.journal import NoJournal, QueueJournal
from aioqueue.ray.ledger import ConsumerProgress, pairs_of
from aioqueue.waiting.waker import deliver

__all__ = ("DequeueWaiter", "Lease", "LeaseTable")


class DequeueWaiter:
    """Where one dequeue waits: calls back when it has ended, or was granted.

    Args:
        wake: called then, in any thread, once or more.
    """

    two_step = True

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake

    def notify(self, attempt: Attempt, /) -> None:
        """See `Waker`."""

    def wake(self, *, from_anywhere: bool = False) -> Iterable[Attempt]:
        """See `Waker`."""
        self._wake()
        return ()

    def is_dead(self) -> bool:
        """See `Waker`: who waits for it is ended by whoever notices."""
        return False


class Lease:
    """What one dequeue has got, or is getting.

    Attributes:
        takes: its dequeues; more than one, where some of what the first had got was lost.
        is_handed: whether its consumer has been told of it.
    """

    __slots__ = ("is_handed", "takes")

    def __init__(self) -> None:
        self.takes: list[Take] = []
        self.is_handed = False


class LeaseTable:
    """Who has what. Used under the lock of the actor.

    Args:
        core: the queue.
        journal: where it is put down.
    """

    def __init__(self, core: QueueCore, journal: QueueJournal | NoJournal) -> None:
        self._core = core
        self._journal = journal
        self._machine = core.machine
        self._leases: dict[str, dict[int, Lease]] = {}
        self._clients: dict[str, str] = {}  # by their lives
        self._progress: dict[str, ConsumerProgress] = {}  # by client

    def meet(self, life: str, client: str) -> None:
        """A client has a new life, whose leases go on where those of the former one have ended."""
        self._clients[life] = client

    def leave(self, life: str) -> None:
        """A life has ended. How far its client is stays known, if that has a name."""
        client = self._clients.pop(life, life)
        if client == life:
            self._progress.pop(client, None)

    def progress(self, client: str) -> ConsumerProgress:
        """How far a client is."""
        return self._progress.get(client) or ConsumerProgress()

    def _progress_of(self, life: str) -> ConsumerProgress:
        return self._progress.setdefault(self._clients.get(life, life), ConsumerProgress())

    def restore(self, progress: Mapping[str, ConsumerProgress]) -> None:
        """How far clients were when an actor died."""
        for client, one in progress.items():
            self._progress[client] = ConsumerProgress(one.following, one.committed)

    def entries(self, rows: Sequence[Any]) -> tuple[Columns, int]:
        """Rows as they are put in, with their sizes where bytes are bounded; and how many."""
        columns, n = self._core.spec.columns(rows)
        return self._core.made_ready(columns, n, copy=False), n

    def begin(self, attempt: Attempt, waker: Waker) -> None:
        """Begin an attempt, which may end at once, or be granted."""
        deliver(self._machine.begin(attempt, waker))

    def count_wait(self, attempt: Attempt, waited: float) -> None:
        """An attempt has ended or was granted, after so many seconds."""
        self._machine.count_wait(attempt, waited)

    def expire(self, attempt: Attempt) -> None:
        """The time of a dequeue is up: it takes what is there."""
        deliver(self._machine.expire(attempt))

    def withdraw(self, attempt: Attempt) -> None:
        """End an attempt that nobody waits for any more; what a dequeue was granted goes back."""
        deliver(self._machine.withdraw(attempt))

    def handles_of(self, take: Take) -> list[Handle]:
        """What a dequeue was granted, but for what is lost, of which nobody is to hear again."""
        return [handle for handle in self.all_handles_of(take) if not handle.segment.is_lost]

    def all_handles_of(self, take: Take) -> list[Handle]:
        """What a dequeue was granted."""
        rows: Collection[Any] = self._core.storage.columns(take.held)
        return [row[1] if isinstance(row, tuple) else row for row in rows]

    def open(self, consumer: str, number: int) -> Lease:
        """Begin a lease: the takes that are entered there are those of this consumer."""
        lease = self._leases.setdefault(consumer, {})[number] = Lease()
        return lease

    def adopt(self, consumer: str, number: int, rows: Sequence[Any]) -> None:
        """A consumer was given rows by an actor that has died since; nothing is inside yet."""
        take = Take(len(rows), leased=True)
        self._machine.adopt(take, self.entries(rows)[0])
        lease = self.open(consumer, number)
        lease.takes.append(take)
        lease.is_handed = True

    def refill(self, rows: Sequence[Any]) -> None:
        """Rows were inside when an actor died; they are so again."""
        self._machine.refill(*self.entries(rows))

    def hand_over(self, consumer: str, number: int) -> bool:
        """A consumer is told what it has got; unless all that has gone back by now."""
        lease = self._leases.get(consumer, {}).get(number)
        if lease is None:
            return False
        if not lease.is_handed:
            lease.is_handed = True
            self._progress_of(consumer).hand_over(number)
            if not self._journal.starts:
                return True
            handles = [handle for take in lease.takes for handle in self.handles_of(take)]
            runs = [
                [segment.producer, segment.number, pairs_of(rows)]
                for segment, rows in runs_of(handles)
            ]
            self._journal.note("lease", consumer, number, runs)
        return True

    def use(self, take: Take) -> None:
        """What a dequeue has got does not come back."""
        wakers = self._machine.commit(take)
        self._core.copier.copy_out(take)
        deliver(wakers)

    def commit(self, consumer: str, numbers: Iterable[int]) -> None:
        """A consumer has used what it got by these leases. Others of it stay."""
        handed = set(self.numbers_of(consumer))
        used = [number for number in numbers if number in handed]
        for number in used:
            for take in self._pop(consumer, number).takes:
                self.use(take)
            self._progress_of(consumer).commit(number)
        if used:
            self._journal.note("used", consumer, used)

    def give_back(self, consumer: str, number: int | None = None) -> list[int]:
        """A consumer has not used what it got: it is first in line again.

        Args:
            consumer: who.
            number: of the only lease to be given back; ``None`` for all.

        Returns:
            The numbers of the leases that it had been told of.
        """
        mine = self._leases.get(consumer, {})
        numbers = sorted(mine) if number is None else [number] if number in mine else []
        handed = [each for each in numbers if mine[each].is_handed]
        if handed:
            self._journal.note("back", consumer, handed)
        for each in reversed(numbers):
            for take in reversed(self._pop(consumer, each).takes):
                self.withdraw(take)
        return handed

    def _pop(self, consumer: str, number: int) -> Lease:
        mine = self._leases[consumer]
        lease = mine.pop(number)
        if not mine:
            del self._leases[consumer]
        return lease

    def numbers_of(self, consumer: str) -> list[int]:
        """The leases that a consumer has been told of."""
        mine = self._leases.get(consumer, {})
        return sorted(number for number, lease in mine.items() if lease.is_handed)

    def of(self, consumers: Iterable[str]) -> int:
        """How many leases some consumers have been told of."""
        return sum(len(self.numbers_of(consumer)) for consumer in consumers)

    def count(self) -> int:
        """How many leases there are that were not committed."""
        return self.of(self._leases)

    def can_come_from_others(self, consumer: str) -> bool:
        """Whether anybody else has what may come back."""
        return any(
            take.state is GRANTED
            for who, leases in self._leases.items()
            if who != consumer
            for lease in leases.values()
            for take in lease.takes
        )

    def takes_of(self, consumer: str, number: int) -> list[Take]:
        """The dequeues of a lease; none if there is no such lease any more."""
        lease = self._leases.get(consumer, {}).get(number)
        return [] if lease is None else list(lease.takes)
