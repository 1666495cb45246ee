"""The types that the machine shares with its callers: attempts, wakers, states and statistics.

The rules are in the machine. An `Attempt` is one operation that has begun. A `Waker` is where its
owner waits. A `Host` is the object on which it was begun. `WaitLists` are the attempts of one
queue: those that wait, by side and in order, and those that were granted.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, NoReturn, Protocol
from weakref import WeakSet, ref

from aioqueue.base.public_names import public
from aioqueue.core.elements.spec import Columns, Row
from aioqueue.core.storage.protocol import Held
from aioqueue.errors import QueueClosedError, counted, open_cause, queue_label


@public("aioqueue")
class QueueState(enum.Enum):
    """The stages of closing a queue."""

    OPEN = "open"
    """Elements can be put in."""

    CLOSING = "closing"
    """`close` was called; enqueues that began before it still complete."""

    CLOSED = "closed"
    """Nothing more will come in; what is inside can still be taken out."""


# Module-level names of the members: in CPython 3.11 a lookup in an enum costs as much as a lock.
OPEN: Final = QueueState.OPEN
CLOSING: Final = QueueState.CLOSING
CLOSED: Final = QueueState.CLOSED


class AttemptState(enum.Enum):
    """The states of an attempt::

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
    """Wakes the callers of one world; see `aioqueue.worlds`."""

    two_step: bool
    """Whether a caller can be cancelled after its attempt was granted and before it resumes."""

    def notify(self, attempt: Attempt, /) -> None:
        """Note that an attempt has ended or was granted. Called under the machine's lock, in the
        order of the grants: it must neither block nor call the machine."""

    def wake(self, *, from_anywhere: bool = False) -> Iterable[Attempt]:
        """Wake the owners of the attempts it was notified of; return those whose world has ended.

        Any thread may call it, without the machine's lock, and more often than needed.

        Args:
            from_anywhere: whether the caller may be a signal handler. A sleeping event loop does
                not notice one by itself, though it is in the same thread.
        """

    def is_dead(self) -> bool:
        """Return whether the world of this waker has ended, so that its callers never run again."""


class Host(Protocol):
    """An object on which attempts are begun: a machine, or something simpler to wait for."""

    def withdraw(
        self, attempt: Attempt, waited: float = 0.0, *, if_pending: bool = False
    ) -> Collection[Waker]:
        """End an attempt whose owner was cancelled, or whose world has ended."""


class Side(enum.Enum):
    """The wait list to which an attempt belongs."""

    ENQUEUE = 0
    DEQUEUE = 1
    NEITHER = 2


ENQUEUE: Final = Side.ENQUEUE
DEQUEUE: Final = Side.DEQUEUE
NEITHER: Final = Side.NEITHER


class Attempt:
    """One operation that has begun; its owner keeps it until it has ended.

    Attributes:
        state: its state.
        error: why it failed.
        waker: where its owner waits.
        waiter: for the waker's own use.
        host: the object on which it was begun.
        waits: whether it did not end in `begin`, so that its owner must wait for a wake and commit.
            The state does not show that, because others may have ended the attempt since. An owner
            that resumed before its wake would leave the attempt in the waker, which withdraws its
            attempts when its world ends.
        began: when its owner began to wait, on the clock of `time.perf_counter`; 0.0: not yet.
        owner: its owner, as `aioqueue.worlds` describes it.
    """

    __slots__ = ("began", "error", "host", "owner", "state", "waiter", "waits", "waker")

    side = NEITHER  # of attempts that only wait
    leased = False
    borrower: Any = None

    def __init__(self) -> None:
        self.state: AttemptState = PENDING
        self.error: BaseException | None = None
        self.waker: Waker | None = None
        self.waiter: Any = None
        self.host: Host | None = None
        self.waits: bool = False
        self.began: float = 0.0
        self.owner: Any = None

    def raise_error(self) -> NoReturn:
        """Raise the error, and drop the attempt's reference to it.

        Otherwise a cycle would keep the error and the rows alive: its traceback refers to the
        caller's frame, the frame to the attempt, and the attempt to the error.
        """
        error, self.error = self.error, None
        assert error is not None
        open_cause(error)
        try:
            raise error
        finally:
            del error

    @property
    def is_pending(self) -> bool:
        return self.state is PENDING

    @property
    def is_withdrawn(self) -> bool:
        """Whether it ended before it was granted, or what it was granted was taken back."""
        return self.state is WITHDRAWN


_borrower_numbers = count(1)


class Borrower:
    """A holder of leases within this process: for instance a loop, with all its workers.

    Args:
        loops: what it works for: its own loop last, behind those in whose workers that runs.

    Attributes:
        number: its number in this process.
        owners: the threads and tasks that take the rows, or use them.
        users: references to the callers that wait for the loop: a thread, or a task and its thread.
    """

    __slots__ = ("loops", "number", "owners", "users")

    def __init__(self, loops: tuple[object, ...] = ()) -> None:
        self.number: int = next(_borrower_numbers)
        self.loops: tuple[object, ...] = loops
        self.users: tuple[ref[Any], ...] = ()
        self.owners: WeakSet[Any] = WeakSet()

    def has_begun(self, attempt: Attempt) -> bool:
        """Return whether an attempt is its own: its caller works for the same loop.

        1. The borrower itself has begun it, or another one of the same loop.
        2. A worker of the loop has begun it, or a loop that runs in such a worker.
        3. The user of the rows has begun it: in its own thread or task, in an event loop that runs
           in its thread, or by another loop.
        """
        borrower = attempt.borrower
        if borrower is self:
            return True
        owner = attempt.owner
        if borrower is not None:
            loops, callers = borrower.loops, borrower.users
        elif owner is None:
            return False
        else:
            loops = getattr(owner, "loops", ())
            callers = (owner.reference, getattr(owner, "thread", owner.reference))
        if self.loops and self.loops[-1] in loops:
            return True
        for reference in callers:  # a loop, since Cython compiles no closure in a method
            thing = reference()
            if thing is not None and thing in self.owners:
                return True
        return False


class Put(Attempt):
    """Enqueue one row."""

    __slots__ = ("row",)
    side = ENQUEUE
    n = 1

    def __init__(self, row: Row) -> None:
        self.state = PENDING
        self.error: BaseException | None = None
        self.waker: Waker | None = None
        self.host: Host | None = None
        self.waiter: Any = None
        self.owner: Any = None
        self.waits = False
        self.began: float = 0.0
        self.row: Row = row


class PutMany(Attempt):
    """Enqueue the rows of a batch in order; ``done`` of them are in."""

    __slots__ = ("columns", "done", "n")
    side = ENQUEUE

    def __init__(self, columns: Columns, n: int) -> None:
        super().__init__()
        self.columns: Columns = columns
        self.n: int = n
        self.done: int = 0


class Take(Attempt):
    """Dequeue n rows as a batch; with ``up_to``, fewer if the queue is closed or time is up.

    Attributes:
        held: the rows that it holds.
        single: whether it takes one row as a row, not as a batch.
        expired: whether its deadline has passed: it takes what is there, but at least one row.
        leased: whether its rows may go back until the owner commits, even if they were there at
            once. The owner is on another machine, and may be lost; or it is a task that lets others
            run first, and may be cancelled; or it is a loop that may be left before it has used
            them.
        borrower: that loop.
        peeks: whether it takes nothing, and only waits until the rows are there.
    """

    __slots__ = ("borrower", "expired", "held", "leased", "n", "peeks", "single", "up_to")
    side = DEQUEUE

    def __init__(
        self,
        n: int,
        # Nothing is keyword-only: in CPython 3.11 that costs as much as all the rest.
        single: bool = False,
        up_to: bool = False,
        out: Columns | None = None,
        expired: bool = False,
        leased: bool = False,
        borrower: Borrower | None = None,
        peeks: bool = False,
    ) -> None:
        self.state = PENDING
        self.error: BaseException | None = None
        self.waker: Waker | None = None
        self.host: Host | None = None
        self.waiter: Any = None
        self.owner: Any = None
        self.waits = False
        self.began: float = 0.0
        self.n: int = n
        self.up_to: bool = up_to
        self.single: bool = single
        self.expired: bool = expired
        self.leased: bool = leased
        self.borrower: Borrower | None = borrower
        self.peeks: bool = peeks
        self.held: Held = Held(out)


class UntilClosed(Attempt):
    """Wait until the last enqueue that began before `close` has completed or failed."""

    __slots__ = ()


class UntilDone(Attempt):
    """Wait until every row that went in is done with: a `join`."""

    __slots__ = ()


@public("aioqueue")
@dataclass(frozen=True, slots=True)
class Statistics:
    """The state of a queue and what it has done so far, at one moment.

    How to read it: if a trainer waits for data, ``dequeue_wait`` grows and ``size`` is near zero.
    If the trainer holds up the workers, ``enqueue_wait`` grows, and ``size`` is near ``capacity``
    or ``bytes`` near ``max_bytes``.

    Every element is in one number: ``enqueued == dequeued + size + granted + claimed``, always.
    """

    size: int
    """How many elements are inside and belong to no caller yet: what `size()` returns."""
    capacity: int | None
    """How many elements fit; ``None`` for no bound."""
    enqueued: int
    """How many elements have been put in so far."""
    dequeued: int
    """How many elements have been taken out so far."""
    waiting_enqueues: int
    """How many enqueues wait now."""
    waiting_dequeues: int
    """How many dequeues wait now."""
    enqueue_wait: float
    """How many seconds all enqueues that have ended waited, in total."""
    dequeue_wait: float
    """How many seconds all dequeues that have ended waited, in total."""
    bytes: int | None = None
    """How many bytes are inside, counting those that a waiting batch has taken. ``None`` if they
    are not counted: elements differ in size, and there is no ``max_bytes``."""
    max_bytes: int | None = None
    """How many bytes fit; ``None`` for no bound."""
    granted: int = 0
    """How many elements were given to callers that have not run on yet. A caller that is cancelled
    before it runs on puts its elements back. On Ray: how many are leased and not committed."""
    claimed: int = 0
    """How many elements a `dequeue_many` or `dequeue_up_to` has taken that still waits for more."""
    unfinished: int = 0
    """How many elements have been put in for which `task_done` has not been called."""


def closed_error(kind: str, name: str, attempt: Put | PutMany | None) -> QueueClosedError:
    """Make the error of an enqueue on a closed queue; ``None``: it did not wait."""
    label = queue_label(kind, name)
    if attempt is None:
        return QueueClosedError(f"{label} is closed", queue=name)
    text = f"{label} was closed while this enqueue was waiting"
    if not isinstance(attempt, PutMany):
        return QueueClosedError(text, queue=name)
    text += f"; {attempt.done} of its {counted(attempt.n, 'row')} are in"
    return QueueClosedError(text, queue=name, enqueued=attempt.done)


def join_error(kind: str, name: str, unfinished: int) -> QueueClosedError:
    """Make the error of a join on a queue that a failure has closed."""
    rest = f"{counted(unfinished, 'element')} {'is' if unfinished == 1 else 'are'} unfinished"
    return QueueClosedError(
        f"{queue_label(kind, name)} was closed by a failure; {rest}", queue=name
    )


class WaitLists:
    """The attempts of one queue that have begun and not yet ended: the bookkeeping of the machine.

    Ordered dicts give the first attempt of a line, and remove any attempt, in constant time. Plain
    dicts cost half as much, but their first key takes longer to find the more keys before it were
    removed; no code asks for the first of the grants. Every method tolerates an attempt that it
    does not find, since Ctrl-C may strike between two steps of a move.

    Attributes:
        enqueues: attempts that wait to put rows in.
        dequeues: attempts that wait to take rows out.
        until_closed: attempts that wait for the end.
        until_done: attempts that wait until all rows are done with.
        places: granted enqueues that are not committed, all of one waker, in the order of the
            grants. The values are the bytes that they will put in, if the queue counts bytes.
        promised: the sum of those bytes.
        granted: granted dequeues that are not committed.
    """

    __slots__ = (
        "dequeues",
        "enqueues",
        "granted",
        "places",
        "promised",
        "until_closed",
        "until_done",
    )

    def __init__(self) -> None:
        self.enqueues: OrderedDict[Put | PutMany, None] = OrderedDict()
        self.dequeues: OrderedDict[Take, None] = OrderedDict()
        self.until_closed: OrderedDict[UntilClosed, None] = OrderedDict()
        self.until_done: OrderedDict[UntilDone, None] = OrderedDict()
        self.places: dict[Put, int] = {}
        self.promised: int = 0
        self.granted: dict[Take, None] = {}

    def list_of(self, attempt: Attempt) -> OrderedDict[Any, None]:
        if attempt.side is DEQUEUE:
            return self.dequeues
        if attempt.side is ENQUEUE:
            return self.enqueues
        return self.until_done if type(attempt) is UntilDone else self.until_closed

    def first_dequeue(self) -> Take | None:
        return next(iter(self.dequeues), None)

    def remove(self, attempt: Attempt) -> None:
        """Remove an attempt from its list.

        It may not be queued yet: Ctrl-C can interrupt the move before that.
        """
        if attempt.state is PENDING:
            self.list_of(attempt).pop(attempt, None)
        elif isinstance(attempt, Take):
            self.granted.pop(attempt, None)
        elif isinstance(attempt, Put):
            self.leave_place(attempt)

    def give_place(self, attempt: Put, weight: int) -> None:
        self.places[attempt] = weight
        self.promised += weight

    def leave_place(self, attempt: Put) -> None:
        self.promised -= self.places.pop(attempt, 0)
        if not self.places:
            self.promised = 0  # corrects what an interrupted `give_place` may have left

    def waiting(self) -> list[Attempt]:
        """Return the enqueues and dequeues that wait, and those that were granted but whose owners
        have not resumed; each side in the order of its line."""
        # What is on lease is in use, perhaps in another program: its owner waits for nothing here.
        granted = [one for one in self._not_yet_taken() if one.waits or not one.leased]
        wait_lists = (self.places, self.enqueues, granted, self.dequeues)
        return [attempt for wait_list in wait_lists for attempt in wait_list]

    def _not_yet_taken(self) -> list[Take]:
        """Return the grants whose owners have not resumed; that of a borrower has."""
        return [attempt for attempt in self.granted if attempt.borrower is None]

    def of_waker(self, waker: Waker) -> list[Attempt]:
        """Return a waker's attempts that wait or whose owners have not resumed, in any order."""
        wait_lists: tuple[Iterable[Attempt], ...]
        wait_lists = (self.places, self._not_yet_taken(), self.enqueues, self.dequeues)
        wait_lists += (self.until_closed, self.until_done)
        return [
            attempt for wait_list in wait_lists for attempt in wait_list if attempt.waker is waker
        ]
