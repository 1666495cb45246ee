"""What a machine knows: the state of one queue, and what can be seen of it.

The fields, and what follows from them by counting. What changes them is in `aioqueue.machine`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, NamedTuple

from aioqueue.attempts import (
    CLOSED,
    DEQUEUE,
    ENQUEUE,
    NEITHER,
    OPEN,
    Attempt,
    QueueState,
    Side,
    Statistics,
    Waker,
)
from aioqueue.durations import Counted, Durations
from aioqueue.fast_path import FastPath
from aioqueue.invariants import violations
from aioqueue.locks import OwnedLock, guarded, is_held_here
from aioqueue.storage.protocol import Storage
from aioqueue.storage.sized import rows_within
from aioqueue.wait_lists import Lines

__all__ = ("INFINITY", "MachineState", "Waiting")

INFINITY: Final = float("inf")


class Waiting(NamedTuple):
    """What can be counted of a queue, with its waits, at one moment."""

    statistics: Statistics
    enqueue_waits: Counted
    dequeue_waits: Counted
    enqueues_since: list[float]
    """When the enqueues began to wait that wait now, in their faces' time; the first one first."""
    dequeues_since: list[float]


class MachineState(FastPath):
    """The state of one queue.

    Args:
        storage: where the rows rest.
        lock: guards everything here.
        capacity: how many rows fit; ``None`` for no bound.
        max_bytes: how many bytes fit; ``None`` for no bound. Rows of one size make it a bound on
            rows; others must bring their sizes (`aioqueue.storage.sized`).
        keep: how many rows a dequeue must leave inside until the queue is closed
            (``min_after_dequeue``).
        kind: the queue's class, for messages.
        name: the queue's name, for messages.
        enter: takes the lock for the fast path when another thread was found to have it.
    """

    __slots__ = (
        "_batch_waits",
        "_beginning",
        "_brings_sizes",
        "_capacity",
        "_cause",
        "_claimed",
        "_dequeue_waits",
        "_dequeues",
        "_enqueue_waits",
        "_enqueues",
        "_given_capacity",
        "_granted",
        "_keep",
        "_lines",
        "_max_bytes",
        "_places",
        "_state",
        "_waiting",
        "kind",
        "max_bytes",
        "name",
        "onlookers",
    )

    def __init__(
        self,
        storage: Storage,
        lock: OwnedLock,
        *,
        capacity: int | None = None,
        max_bytes: int | None = None,
        keep: int = 0,
        kind: str = "Queue",
        name: str = "queue",
        enter: Callable[[OwnedLock], object] = lambda lock: lock.acquire(),
    ) -> None:
        super().__init__(storage, lock, enter)
        self.kind = kind
        self.name = name
        self._given_capacity = capacity
        self.max_bytes = max_bytes
        self._keep = keep
        self._capacity = self._rows_that_fit()
        # Only where that bound says nothing of bytes.
        self._brings_sizes = max_bytes is not None and storage.row_bytes is None
        self._max_bytes: float = INFINITY if max_bytes is None else max_bytes
        self._state = OPEN
        self._cause: BaseException | None = None
        self._lines = lines = Lines()
        self._enqueues, self._dequeues = lines.enqueues, lines.dequeues
        self._places, self._granted = lines.places, lines.granted
        self._claimed = 0  # rows in the storage that belong to the first waiting dequeue
        self._batch_waits = False  # whether the first waiting dequeue can have rows to claim
        self._beginning: Attempt | None = None  # the attempt whose owner is calling right now
        self._enqueue_waits = Durations()  # of attempts that have ended
        self._dequeue_waits = Durations()
        self._waiting: dict[Attempt, None] = {}  # that have begun to, and have not been counted
        # Called under the lock whenever callers may have begun to wait; see `aioqueue.testing`.
        self.onlookers: tuple[Callable[[], object], ...] = ()
        # Of the fast path, set afresh by every slow move.
        self._bound_in = -1 if self._brings_sizes else self._capacity
        self._bound_out = keep

    def _interrupted(self) -> RuntimeError:
        """Why a call is refused that comes in the middle of a move of its own thread."""
        return RuntimeError(
            f"{self.kind} '{self.name}': nothing was put in or taken out. This call comes from a"
            " finalizer or a signal handler that has interrupted another call of the same thread:"
            " leave it to a thread, or to `loop.call_soon_threadsafe`; only `close` can be called"
            " there"
        )

    def is_entered_here(self) -> bool:
        """Whether the calling thread is in the middle of a move already.

        So it is in a signal handler or a finalizer, and must leave its own move to another thread.
        """
        return is_held_here(self._lock)

    @guarded
    def attempts_in(self, waker: Waker) -> list[Attempt]:
        """The attempts whose owners wait in a waker or have not run on yet, in no special order."""
        return self._lines.of_waker(waker)

    @guarded
    def waiting(self) -> list[Attempt]:
        """The enqueues and dequeues that have begun and not yet ended, as they stand in line."""
        return self._lines.waiting()

    # Looking at it.

    @property
    def state(self) -> QueueState:
        """How far the queue is with closing."""
        return self._get_state()

    @property
    def size(self) -> int:
        """How many elements are inside, without those that a waiting batch has taken."""
        return self._get_size()

    @property
    def weight(self) -> int | None:
        """How many bytes are inside, also of what a waiting batch has taken; ``None``: unknown."""
        return self._get_weight()

    @property
    def capacity(self) -> int | None:
        """How many elements fit, as it was given; ``None`` for no bound."""
        return self._get_capacity()

    @property
    def most(self) -> float:
        """How many elements fit, as far as that is known beforehand. Takes no lock."""
        return self._capacity

    @guarded
    def statistics(self) -> Statistics:
        """Everything that can be counted, at one moment."""
        claimed = self._claims()
        inside = self.storage.size - claimed
        held = claimed + sum(attempt.held.count for attempt in self._granted)
        return Statistics(
            size=inside,
            capacity=self._given_capacity,
            enqueued=self._enqueued,
            dequeued=self._enqueued - inside - held,
            waiting_enqueues=len(self._enqueues),
            waiting_dequeues=len(self._dequeues),
            enqueue_wait=self._enqueue_waits.seconds,
            dequeue_wait=self._dequeue_waits.seconds,
            bytes=self.storage.weight,
            max_bytes=self.max_bytes,
        )

    @guarded
    def waits(self) -> Waiting:
        """How long callers have waited, and since when they wait now, at one moment."""
        began: dict[Side, list[float]] = {ENQUEUE: [], DEQUEUE: []}
        for attempt in self._waiting:
            if attempt.began:
                began[attempt.side].append(attempt.began)
        return Waiting(
            self.statistics(),
            self._enqueue_waits.counted(),
            self._dequeue_waits.counted(),
            sorted(began[ENQUEUE]),
            sorted(began[DEQUEUE]),
        )

    @guarded
    def count_wait(self, attempt: Attempt, waited: float) -> None:
        """The owner of an attempt waits no more, but need not have ended it: it has a lease.

        Args:
            attempt: one that is no longer pending.
            waited: seconds, for the statistics.
        """
        self._count_wait(attempt, waited)

    @guarded
    def check_invariants(self) -> list[str]:
        """What must always be true and is not, in words; see `aioqueue.invariants`."""
        return violations(self)

    @guarded
    def _get_state(self) -> QueueState:
        return self._state

    @guarded
    def _get_capacity(self) -> int | None:
        return self._given_capacity

    @guarded
    def _get_size(self) -> int:
        return self.storage.size - self._claims()

    @guarded
    def _get_weight(self) -> int | None:
        return self.storage.weight

    def _claims(self) -> int:
        """Rows in the storage that belong to the first waiting dequeue, as of now."""
        if not (self._batch_waits and self._dequeues):
            return 0
        return max(0, min(self._available(), next(iter(self._dequeues)).n))

    def _room(self) -> float:
        """How many rows may go in now; below zero when some came back to a full queue."""
        inside = len(self.storage) + len(self.storage.returned) - self._claimed
        return self._limit() - inside - len(self._places)

    def _limit(self) -> float:
        """How many rows may be inside: the capacity, or as many as a batch waits for that has to
        find all of them there, for the queue may have been larger when it began to wait."""
        if not self._dequeues or self.storage.progressive:
            return self._capacity
        return max(self._capacity, next(iter(self._dequeues)).n)

    def _rows_that_fit(self) -> float:
        """The capacity, or fewer where rows of one size fill the bytes before; but enough rows that
        one can leave."""
        given = self._given_capacity
        most = INFINITY if given is None else given
        size = self.storage.row_bytes
        if self.max_bytes is not None and size is not None:
            by_size = rows_within(self.max_bytes, size)
            most = most if by_size is None else min(most, max(by_size, self._keep + 1))
        return most if most < sys.maxsize else INFINITY  # no storage holds as many

    def _missing(self) -> int:
        """How many rows the dequeue that is next lacks: one that waits, or else any of one row."""
        head = self._lines.first_dequeue()
        needed = 1 if head is None or head.expired else head.n
        return needed - self._available() - len(self._places)

    def _available(self) -> int:
        """How many rows may go out now, those that are claimed included."""
        inside = len(self.storage) + len(self.storage.returned)
        return inside - (0 if self._state is CLOSED else self._keep)

    def _note_wait(self, attempt: Attempt) -> None:
        """The owner of an attempt is going to wait."""
        if attempt.side is not NEITHER:
            self._waiting[attempt] = None

    def _count_wait(self, attempt: Attempt, waited: float) -> None:
        """The owner of an attempt waits no more: what was a wait that goes on is one that was."""
        if attempt not in self._waiting:
            return  # it was counted, or there was none
        del self._waiting[attempt]
        waits = self._dequeue_waits if attempt.side is DEQUEUE else self._enqueue_waits
        waits.add(waited)
