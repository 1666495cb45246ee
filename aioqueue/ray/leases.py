"""The leases of one queue: what consumers have, and may still lose.

A lease is a dequeue that was granted and is not committed: the machine's own state, kept for as
long as its owner, who is elsewhere, has not said that it has used what it got. So all that follows
is the machine's: what is given back is first in line, and the end of a closed queue is told only
when nothing can come back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from aioqueue.attempts import GRANTED, Attempt, Take, Waker
from aioqueue.queues.core import QueueCore
from aioqueue.ray.handles import Handle
from aioqueue.waiting.base import deliver

__all__ = ("Book", "Lease", "Sleeper")


class Sleeper:
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


class Book:
    """Who has what. Used under the lock of the actor.

    Args:
        core: the queue.
    """

    def __init__(self, core: QueueCore) -> None:
        self._core = core
        self._machine = core.machine
        self._leases: dict[str, dict[int, Lease]] = {}

    def begin(self, attempt: Attempt, waker: Waker) -> None:
        """Begin an attempt, which may end at once, or be granted."""
        deliver(self._machine.begin(attempt, waker))

    def expire(self, attempt: Attempt) -> None:
        """The time of a dequeue is up: it takes what is there."""
        deliver(self._machine.expire(attempt))

    def withdraw(self, attempt: Attempt) -> None:
        """End an attempt that nobody waits for any more; what a dequeue was granted goes back."""
        deliver(self._machine.withdraw(attempt))

    def handles_of(self, take: Take) -> list[Handle]:
        """What a dequeue was granted, but for what is lost, of which nobody is to hear again."""
        rows: Collection[Any] = self._core.storage.columns(take.held)
        handles = [row[1] if isinstance(row, tuple) else row for row in rows]
        return [handle for handle in handles if not handle.segment.is_lost]

    def open(self, consumer: str, number: int) -> Lease:
        """Begin a lease: the takes that are entered there are those of this consumer."""
        lease = self._leases.setdefault(consumer, {})[number] = Lease()
        return lease

    def hand_over(self, consumer: str, number: int) -> bool:
        """A consumer is told what it has got; unless all that has gone back by now."""
        lease = self._leases.get(consumer, {}).get(number)
        if lease is None:
            return False
        lease.is_handed = True
        return True

    def use(self, take: Take) -> None:
        """What a dequeue has got does not come back."""
        wakers = self._machine.commit(take)
        self._core.copier.copy_out(take)
        deliver(wakers)

    def commit(self, consumer: str, numbers: Iterable[int]) -> None:
        """A consumer has used what it got by these leases. Others of it stay."""
        handed = set(self.numbers_of(consumer))
        for number in numbers:
            if number in handed:
                for take in self._pop(consumer, number).takes:
                    self.use(take)

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

    def count(self) -> int:
        """How many leases there are that were not committed."""
        return sum(len(self.numbers_of(consumer)) for consumer in self._leases)

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
