"""The words that the machine and its callers share: attempts, wakers, and what there is to see.

No rules here: those are the machine's. An `Attempt` is one operation that has begun; a `Waker` is
where its owner waits, and a `Host` what it was begun on.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

from aioqueue.elements import Columns, Row
from aioqueue.errors import OutOfRangeError, QueueClosedError, counted
from aioqueue.storage.protocol import Held

__all__ = (
    "CLOSED",
    "CLOSING",
    "DEQUEUE",
    "DONE",
    "ENQUEUE",
    "FAILED",
    "GRANTED",
    "NEITHER",
    "OPEN",
    "PENDING",
    "WITHDRAWN",
    "Attempt",
    "AttemptState",
    "Host",
    "Put",
    "PutMany",
    "QueueState",
    "Side",
    "Statistics",
    "Take",
    "UntilClosed",
    "Waker",
    "closed_error",
    "out_of_range_error",
)


class QueueState(enum.Enum):
    """How far a queue is with closing."""

    OPEN = "open"
    """Elements can be put in."""

    CLOSING = "closing"
    """`close` was called; enqueues that began before it are still being served."""

    CLOSED = "closed"
    """Nothing more will come in; what is inside can still be taken out."""


# Members by name of their own: in CPython 3.11 a look-up in an enum costs as much as a lock.
OPEN: Final = QueueState.OPEN
CLOSING: Final = QueueState.CLOSING
CLOSED: Final = QueueState.CLOSED


class AttemptState(enum.Enum):
    """What has become of an attempt::

    PENDING ──► GRANTED ──► DONE          its owner runs on and commits it
       │           ├──────► WITHDRAWN     its owner was cancelled in between: all is put back
       │           └──────► FAILED        (an enqueue only) closed with its enqueues cancelled
       ├──────────────────► DONE          granted and committed in one step
       ├──────────────────► FAILED        closed, and it can never be satisfied
       └──────────────────► WITHDRAWN     its owner was cancelled or timed out
    """

    PENDING = "pending"
    GRANTED = "granted"
    DONE = "done"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"


PENDING: Final = AttemptState.PENDING
GRANTED: Final = AttemptState.GRANTED
DONE: Final = AttemptState.DONE
FAILED: Final = AttemptState.FAILED
WITHDRAWN: Final = AttemptState.WITHDRAWN


class Waker(Protocol):
    """Wakes the callers of one world; see `aioqueue.waiting`."""

    two_step: bool
    """Whether a caller can be cancelled between being chosen and running on."""

    def notify(self, attempt: Attempt, /) -> None:
        """Note that an attempt has ended or was granted. Called under the machine's lock, in the
        order of the grants: it may not block, nor call the machine."""

    def wake(self, *, from_anywhere: bool = False) -> Iterable[Attempt]:
        """Wake the owners of the attempts it was notified of; return those whose world has ended.

        May be called from any thread, without the machine's lock, and more often than needed.

        Args:
            from_anywhere: it may come from a signal handler, which a sleeping event loop does not
                notice, though it is of the same thread.
        """

    def is_dead(self) -> bool:
        """Whether the world of this waker has ended, so that no one in it will ever run again."""


class Host(Protocol):
    """What attempts are begun on: a machine, or something simpler that callers wait at."""

    def withdraw(
        self, attempt: Attempt, waited: float = 0.0, *, if_pending: bool = False
    ) -> Collection[Waker]:
        """End an attempt whose owner was cancelled, or whose world has ended."""


class Side(enum.Enum):
    """Which line an attempt stands in."""

    ENQUEUE = 0
    DEQUEUE = 1
    NEITHER = 2


ENQUEUE: Final = Side.ENQUEUE
DEQUEUE: Final = Side.DEQUEUE
NEITHER: Final = Side.NEITHER


class Attempt:
    """One operation that has begun; its owner keeps it until it has ended.

    Attributes:
        state: what has become of it.
        error: why it failed.
        waker: where its owner waits.
        waiter: for the waker's own use.
        host: what it was begun on.
        waits: whether it did not end as it began: then its owner waits to be woken, and commits it.
            Its state does not tell, as others may have ended it since; and an owner that ran on
            before its wake would leave it in the waker, which gives back what it has there when
            its world is over.
        began: when its owner went to sleep, on the clock of `time.perf_counter`; 0.0: not yet.
        owner: who that is, as `aioqueue.waiting` says it.
    """

    __slots__ = ("began", "error", "host", "owner", "state", "waiter", "waits", "waker")

    side = NEITHER  # of those that only wait
    leased = False

    def __init__(self) -> None:
        self.state = PENDING
        self.error: BaseException | None = None
        self.waker: Waker | None = None
        self.waiter: Any = None
        self.host: Host | None = None
        self.waits = False
        self.began = 0.0
        self.owner: Any = None

    def raise_error(self) -> NoReturn:
        """Raise why it failed, and let go of it.

        Else the error would keep itself alive, and what was to be put in with it: its traceback
        leads to the caller's frame, that to the attempt, and the attempt to the error.
        """
        error, self.error = self.error, None
        assert error is not None
        try:
            raise error
        finally:
            del error

    @property
    def is_pending(self) -> bool:
        """Whether it still waits to be granted."""
        return self.state is PENDING

    @property
    def is_withdrawn(self) -> bool:
        """Whether its wait was ended before it was granted, or what it was granted taken back."""
        return self.state is WITHDRAWN


class Put(Attempt):
    """Enqueue one row."""

    __slots__ = ("row",)
    side = ENQUEUE
    n = 1

    def __init__(self, row: Row) -> None:
        self.state = PENDING
        self.error = self.waker = self.host = self.waiter = self.owner = None
        self.waits = False
        self.began = 0.0
        self.row = row


class PutMany(Attempt):
    """Enqueue the rows of a batch, one after another; ``done`` of them are in."""

    __slots__ = ("columns", "done", "n")
    side = ENQUEUE

    def __init__(self, columns: Columns, n: int) -> None:
        super().__init__()
        self.columns = columns
        self.n = n
        self.done = 0


class Take(Attempt):
    """Dequeue n rows as a batch; or, with ``up_to``, fewer when the queue is closed or in a hurry.

    Attributes:
        held: the rows it has.
        single: whether it takes one row, as a row and not as a batch.
        expired: whether its deadline has passed: it takes what is there, but at least one row.
        leased: whether what it has may come back for as long as its owner does not commit it, even
            if it was there at once: the owner is on another machine, and may be lost.
    """

    __slots__ = ("expired", "held", "leased", "n", "single", "up_to")
    side = DEQUEUE

    def __init__(
        self,
        n: int,
        *,
        up_to: bool = False,
        out: Columns | None = None,
        single: bool = False,
        expired: bool = False,
        leased: bool = False,
    ) -> None:
        self.state = PENDING
        self.error = self.waker = self.host = self.waiter = self.owner = None
        self.waits = False
        self.began = 0.0
        self.n = n
        self.up_to = up_to
        self.single = single
        self.expired = expired
        self.leased = leased
        self.held = Held(out)


class UntilClosed(Attempt):
    """Wait until the last enqueue that began before `close` is in or has failed."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a queue has done and is doing, at one moment.

    How to read it: a trainer that waits for data shows as ``dequeue_wait`` growing and ``size``
    near zero; workers that are held up by the trainer show as ``enqueue_wait`` growing and ``size``
    near ``capacity``, or ``bytes`` near ``max_bytes``.
    """

    size: int
    """Elements inside."""
    capacity: int | None
    """Elements that fit; None where there is no bound."""
    enqueued: int
    """Elements put in so far."""
    dequeued: int
    """Elements taken out so far."""
    waiting_enqueues: int
    """Enqueues that are waiting now."""
    waiting_dequeues: int
    """Dequeues that are waiting now."""
    enqueue_wait: float
    """Seconds that enqueues which have ended had waited, in total."""
    dequeue_wait: float
    """Seconds that dequeues which have ended had waited, in total."""
    bytes: int | None = None
    """Bytes of the elements inside, and of those that a waiting batch has taken. None where nobody
    counts them: elements differ in size, and there is no ``max_bytes``."""
    max_bytes: int | None = None
    """Bytes that fit; None where there is no bound."""


def closed_error(kind: str, name: str, attempt: Put | PutMany | None) -> QueueClosedError:
    """What an enqueue is told by a closed queue, of a kind and name; None: it did not wait."""
    if attempt is None:
        return QueueClosedError(f"{kind} '{name}' is closed", queue=name)
    text = f"{kind} '{name}' was closed while this enqueue was waiting"
    if not isinstance(attempt, PutMany):
        return QueueClosedError(text, queue=name)
    text += f"; {attempt.done} of its {counted(attempt.n, 'row')} are in"
    return QueueClosedError(text, queue=name, enqueued=attempt.done)


def out_of_range_error(
    kind: str, name: str, attempt: Take, *, remaining: int, held: int
) -> OutOfRangeError:
    """What a dequeue is told by a closed queue, which has less than it needs."""
    return OutOfRangeError(
        f"{kind} '{name}' is closed and has insufficient elements"
        f" (requested {attempt.n}, current size {remaining})",
        queue=name,
        requested=attempt.n,
        remaining=remaining,
        held=held,
    )
