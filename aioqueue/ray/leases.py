"""The leases of one queue: what consumers have, and may still lose.

A lease is a dequeue that was granted and is not committed: the machine's own state, kept for as
long as its owner, who is elsewhere, has not said that it has used what it got. So all that follows
is the machine's: what is given back is first in line, and the end of a closed queue is told only
when nothing can come back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any

from aioqueue.attempts import Attempt, Take, Waker
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
    """What one dequeue has got.

    Attributes:
        takes: its dequeues; more than one, where some of what the first had got was lost.
    """

    __slots__ = ("takes",)

    def __init__(self) -> None:
        self.takes: list[Take] = []


class Book:
    """Who has what. Thread-safe.

    Args:
        core: the queue.
    """

    def __init__(self, core: QueueCore) -> None:
        self._core = core
        self._machine = core.machine
        self._lock = threading.RLock()  # guards all below; the machine's is taken within
        self._leases: dict[str, dict[int, Lease]] = {}
        self._unwanted: set[tuple[str, int]] = set()  # dequeues whose callers are gone

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

    def enter(self, consumer: str, number: int, lease: Lease) -> None:
        """A consumer has a lease; unless its call was cancelled: then all goes back."""
        with self._lock:
            if (consumer, number) not in self._unwanted:
                self._leases.setdefault(consumer, {})[number] = lease
                return
        self._back(lease)

    def cancel(self, consumer: str, number: int) -> None:
        """Nobody wants what this call has got, or is about to get."""
        with self._lock:
            self._unwanted.add((consumer, number))
        self.give_back(consumer, lambda other: other != number)

    def ended(self, consumer: str, number: int) -> None:
        """A call has ended, and will not enter anything any more."""
        with self._lock:
            self._unwanted.discard((consumer, number))

    def commit(self, consumer: str, numbers: Iterable[int]) -> None:
        """A consumer has used what it got by these leases. Others of it stay."""
        with self._lock:
            mine = self._leases.get(consumer, {})
            done = [mine.pop(number) for number in numbers if number in mine]
        for lease in done:
            for take in lease.takes:
                wakers = self._machine.commit(take)
                self._core.copier.copy_out(take)
                deliver(wakers)

    def give_back(self, consumer: str, keep: Callable[[int], bool] = lambda _: False) -> int:
        """A consumer has not used what it got: it is first in line again.

        Args:
            consumer: who.
            keep: says of which leases that is not so.

        Returns:
            How many leases were given back.
        """
        with self._lock:
            mine = self._leases.get(consumer, {})
            back = [mine.pop(number) for number in sorted(mine) if not keep(number)]
        for lease in reversed(back):
            self._back(lease)
        return len(back)

    def _back(self, lease: Lease) -> None:
        for take in reversed(lease.takes):
            self.withdraw(take)

    def numbers_of(self, consumer: str) -> list[int]:
        """The leases that a consumer has."""
        with self._lock:
            return sorted(self._leases.get(consumer, ()))

    def count(self) -> int:
        """How many leases there are."""
        with self._lock:
            return sum(map(len, self._leases.values()))

    def are_all_of(self, consumer: str) -> bool:
        """Whether nobody else has any."""
        with self._lock:
            return all(not mine or who == consumer for who, mine in self._leases.items())

    def takes_of(self, consumer: str, number: int) -> list[Take]:
        """The dequeues of a lease; none if there is no such lease any more."""
        with self._lock:
            lease = self._leases.get(consumer, {}).get(number)
            return [] if lease is None else list(lease.takes)
