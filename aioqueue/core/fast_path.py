"""The state of one queue: its fields, the numbers that follow, and the fast path.

`aioqueue.core.machine` makes all changes but those of the fast path: one row in or out, if that
affects no other caller. The machine decides what may take this path. It sets two bounds with every
slow move (`Machine._set_bounds`), and `FastPath` only compares. A task that stands by tries the
same once more (`MachineState.retry`).

The fields have invariants, which hold whenever the lock is free. The proofs check them after every
step (`tests.kit.invariants`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from aioqueue.core.attempts import (
    CLOSED,
    DEQUEUE,
    DONE,
    ENQUEUE,
    OPEN,
    WITHDRAWN,
    Attempt,
    Put,
    PutMany,
    QueueState,
    Side,
    Statistics,
    Take,
    WaitLists,
    Waker,
)
from aioqueue.core.elements.spec import Row
from aioqueue.core.meters import Counted, Durations
from aioqueue.core.storage.protocol import Storage
from aioqueue.core.storage.sized import rows_within
from aioqueue.errors import SealedFailure, queue_label
from aioqueue.system import locks
from aioqueue.system._compiled import bind_uncompiled
from aioqueue.system.locks import (
    NOT_HELD,
    OwnedLock,
    as_gil_lock,
    held_here_check,
    not_reentrant_move,
    synchronized,
)

# ruff: noqa: F821  (no statement binds the name below: in compiled code it is a C function)
thread_ident: Callable[[], int]
bind_uncompiled(globals(), thread_ident=locks.thread_ident)

NOTHING: Final[Any] = object()
"""The result of a try that would have to wait or to wake another caller."""


class FastPath:
    """The fields that a try reads, and the tries. Each returns at once and wakes no caller.

    Nearly all operations of a queue end here. Two invariants make it safe. The lock is always
    released first when something raises, since a second signal handler may strike at any later step
    (see `aioqueue.system.locks`). And the storage's size, not a counter, is compared with the
    bounds, so an interrupted step cannot leave the two apart.

    A function that an attribute holds gets a local name before it is called. CPython 3.11 looks for
    a method in ``self.f()``, and does so in the slow way each time if it finds none in the class.

    Args:
        storage: where the rows are kept.
        lock: guards everything here.
        enter: takes the lock if another thread has it.
    """

    __slots__ = (
        "_bound_in",
        "_bound_out",
        "_enqueued",
        "_enter",
        "_is_held_here",
        "_latch",
        "_lock",
        "_put",
        "_take",
        "storage",
    )

    def __init__(
        self, storage: Storage, lock: OwnedLock, enter: Callable[[OwnedLock], object]
    ) -> None:
        self.storage: Storage = storage
        self._lock = lock
        self._latch = as_gil_lock(lock)
        self._is_held_here = held_here_check(lock)
        self._enter = enter
        self._put = storage.put
        self._take = storage.take
        self._enqueued = 0  # rows so far
        # How full the storage may be for the fast path in and out. At first nothing passes.
        self._bound_in: float = -1
        self._bound_out: float = float("inf")

    def put_with(self, put: Callable[[Row], None]) -> None:
        """Replace what puts a row into the storage. Call it under the lock.

        Args:
            put: another method of the storage that takes all that ``put`` takes.
        """
        self._put = put

    def take_with(self, take: Callable[[], Row]) -> None:
        """Replace what the fast path takes a row with. Call it under the lock.

        Args:
            take: takes the next row, or returns `NOTHING`: then the caller takes another path.
        """
        self._take = take

    def guard_with(self, lock: OwnedLock) -> None:
        """Replace the lock. No other thread may be in the middle of a move."""
        self._lock = lock
        self._latch = as_gil_lock(lock)
        self._is_held_here = held_here_check(lock)

    def try_enqueue(self, row: Row) -> bool:
        """Put a row in, if that affects no other caller; return whether it did."""
        latch, me = self._latch, thread_ident()
        owner, latch._owner = latch._owner, latch._owner or me  # one line: see `GilLock`
        if owner:  # another thread, or this one: a handler or finalizer has interrupted a move
            return self._try_enqueue_contended(row)
        try:
            fits = len(self.storage) < self._bound_in
            if fits:
                put = self._put
                put(row)
                self._enqueued += 1
        finally:
            latch._owner = 0  # first of all: see `aioqueue.system.locks`
            if latch._rings_on_release:
                latch._rings_on_release = False
                latch._ring(None)
        return fits

    def try_dequeue(self) -> Row:
        """Take a row out, if that affects no other caller; else return `NOTHING`."""
        latch, me = self._latch, thread_ident()
        owner, latch._owner = latch._owner, latch._owner or me  # one line: see `GilLock`
        if owner:
            return self._try_dequeue_contended()
        try:
            take = self._take
            row = take() if len(self.storage) > self._bound_out else NOTHING
        except IndexError as raised:
            if not _lost_last_row(raised):
                raise
            row = NOTHING
        finally:
            latch._owner = 0
            if latch._rings_on_release:
                latch._rings_on_release = False
                latch._ring(None)
        return row

    # The same if the lock is held, or is of another kind. A storage that is not atomic moves a row
    # in several Python steps. A finalizer or a signal handler may run between them and would see
    # half a move, so its own try is refused here.

    def _try_enqueue_contended(self, row: Row) -> bool:
        is_held_here = self._is_held_here
        if not self.storage.is_atomic and is_held_here():
            return False
        try:
            if not self._latch.acquire(False):
                self._enter(self._lock)  # lets the other thread finish its move first
            fits = len(self.storage) < self._bound_in
            if fits:
                put = self._put
                put(row)
                self._enqueued += 1
            self._latch.release()
        except BaseException:
            try:
                self._latch.release()
            except RuntimeError as error:
                # A refusal: a handler raised before the lock was taken or after it was released.
                if error.args != NOT_HELD:
                    raise
            raise
        return fits

    def _try_dequeue_contended(self) -> Row:
        is_held_here = self._is_held_here
        if not self.storage.is_atomic and is_held_here():
            return NOTHING
        try:
            if not self._latch.acquire(False):
                self._enter(self._lock)
            take = self._take
            row = take() if len(self.storage) > self._bound_out else NOTHING
            self._latch.release()
        except BaseException as raised:
            try:
                self._latch.release()
            except RuntimeError as error:
                if error.args != NOT_HELD:
                    raise
            if _lost_last_row(raised):
                return NOTHING
            raise
        return row


def _lost_last_row(error: BaseException) -> bool:
    """Return whether a signal handler has taken the only row between the comparison and the take.

    Then the storage itself has raised the error, not a user's handler: there is no further frame.
    """
    traceback = error.__traceback__
    return isinstance(error, IndexError) and (traceback is None or traceback.tb_next is None)


INFINITY: Final = float("inf")


class Waiting(NamedTuple):
    """The waits of a queue at one moment."""

    statistics: Statistics
    enqueue_waits: Counted
    dequeue_waits: Counted
    enqueues_since: list[float]
    """When the enqueues that wait now began to wait, by the faces' clock; the oldest first."""
    dequeues_since: list[float]


class MachineState(FastPath):
    """The state of one queue.

    Args:
        storage: where the rows are kept.
        lock: guards everything here.
        capacity: how many rows fit; ``None`` for no bound.
        max_bytes: how many bytes fit; ``None`` for no bound. If all rows have one size, it is a
            bound on rows. Otherwise rows must bring their sizes (`aioqueue.core.storage.sized`).
        keep: how many rows a dequeue must leave inside until the queue is closed
            (``min_after_dequeue``).
        kind: the name of the queue's class, for messages.
        name: the queue's name, for messages.
        enter: takes the lock for the fast path if another thread has it.
    """

    __slots__ = (
        "_batch_waits",
        "_beginning",
        "_brings_sizes",
        "_capacity",
        "_cause",
        "_claimed",
        "_claims_disabled",
        "_dequeue_waits",
        "_dequeues",
        "_eager",
        "_enqueue_waits",
        "_enqueues",
        "_finished",
        "_given_capacity",
        "_granted",
        "_keep",
        "_max_bytes",
        "_places",
        "_progressive",
        "_returned",
        "_standby_put",
        "_standby_take",
        "_state",
        "_wait_lists",
        "_waiting",
        "_writers",
        "arrivals",
        "kind",
        "max_bytes",
        "name",
        "observers",
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
        # What never changes of the storage: each slow move asks for it several times.
        self._progressive, self._eager = storage.progressive, storage.eager
        self._claims_disabled = False  # whether a batch leaves its rows inside until it is complete
        self._returned = storage.returned  # this very list
        self.kind: str = kind
        self.name: str = name
        self._given_capacity = capacity
        self.max_bytes: int | None = max_bytes
        self._keep = keep
        self._capacity = self._rows_that_fit()
        # Only if the bound on rows does not already include the bound on bytes.
        self._brings_sizes = max_bytes is not None and storage.row_bytes is None
        self._max_bytes: float = INFINITY if max_bytes is None else max_bytes
        self._state = OPEN
        self._cause: BaseException | None = None
        self._wait_lists = wait_lists = WaitLists()
        self._enqueues, self._dequeues = wait_lists.enqueues, wait_lists.dequeues
        self._places, self._granted = wait_lists.places, wait_lists.granted
        self.arrivals: Any = None  # the `Arrivals`, if a thread writes rows without the lock
        self._writers: list[object] = []  # one of each thread that writes rows there
        self._claimed = 0  # rows in the storage that belong to the first waiting dequeue
        # Rows that are done with. The rest of those that went in are unfinished: that costs nothing
        # where nobody asks.
        self._finished = 0
        self._batch_waits = False  # whether the first waiting dequeue claims rows
        self._beginning: Attempt | None = None  # the attempt whose owner makes this call
        self._standby_put: Put | None = None  # the attempts that stand by; see `stand_by`
        self._standby_take: Take | None = None
        self._enqueue_waits = Durations()  # of attempts that have ended
        self._dequeue_waits = Durations()
        self._waiting: dict[Attempt, None] = {}  # attempts whose wait is not in the counts yet
        # Called under the lock when callers may have begun to wait; see `aioqueue.testing`.
        self.observers: tuple[Callable[[], object], ...] = ()
        # The bounds of the fast path. Every slow move sets them.
        self._bound_in = -1 if self._brings_sizes else self._capacity
        self._bound_out = keep

    def _interrupted(self) -> RuntimeError:
        return RuntimeError(
            f"{queue_label(self.kind, self.name)}: nothing was put in or taken out. A finalizer or"
            " a signal handler has made this call, and has interrupted another call of the same"
            " thread: let a thread make it, or `loop.call_soon_threadsafe`; only `close` is"
            " possible in the handler"
        )

    def is_entered_here(self) -> bool:
        """Return whether the calling thread is in the middle of a move already.

        Then it runs a signal handler or a finalizer, and must leave its own move to another thread.
        """
        is_held_here = self._is_held_here
        return is_held_here()

    @synchronized
    def attempts_in(self, waker: Waker) -> list[Attempt]:
        """Return a waker's attempts that wait or whose owners have not resumed, in any order."""
        standby = [attempt for attempt in self._standby_attempts() if attempt.waker is waker]
        return self._wait_lists.of_waker(waker) + standby

    @synchronized
    def waiting(self) -> list[Attempt]:
        """Return the enqueues and dequeues that have begun and not ended, first come first."""
        return self._wait_lists.waiting() + self._standby_attempts()

    @synchronized
    def joins(self) -> list[Attempt]:
        """Return the attempts that wait until all rows are done with, in their order."""
        return list(self._wait_lists.until_done)

    def _standby_attempts(self) -> list[Attempt]:
        both = (self._standby_put, self._standby_take)
        return [attempt for attempt in both if attempt is not None]

    # Standing by. A task that finds no room, or no row, lets its event loop run for one round and
    # tries again before it waits. Often another task brings what it lacks in that round, by the
    # fast path: then nobody has to be woken. Meanwhile it is first in line. The fast path of its
    # own side is disabled, and the next slow move puts it in line, as if it had begun.

    @not_reentrant_move
    def stand_by(self, attempt: Any, waker: Waker) -> bool:
        """Let the owner of a new attempt for one row try again, with `retry`, before it waits.

        Args:
            attempt: a `Put`, or a `Take` of a single row.
            waker: where its owner will wait, if it has to.

        Returns:
            Whether it stands by. If not, it can proceed, or others wait or stand by on its side, or
            the queue is not open: begin the attempt at once.
        """
        if type(attempt) is Take:
            if self._state is not OPEN or not len(self.storage) <= self._bound_out < INFINITY:
                return False
            if self._writers and self.arrivals.rows:
                return False
            self._standby_take, self._bound_out = attempt, INFINITY
        else:
            if self._dequeues or not len(self.storage) >= self._bound_in == self._capacity:
                return False
            self._standby_put, self._bound_in = attempt, -1
        attempt.host = self
        attempt.waker = waker
        self._waiting[attempt] = None
        if self.observers:
            self._call_observers()
        return True

    @not_reentrant_move
    def retry(self, attempt: Any, waited: float) -> bool:
        """Let an attempt proceed that has stood by, if it can; return whether it did.

        If not, its owner begins it at once, unless a slow move has put it in line (`waits`).

        Args:
            attempt: an attempt that has stood by.
            waited: seconds, for the statistics.
        """
        take, put = self._standby_take, self._standby_put
        # While it stands by, the bound of its side is disabled, so the number behind the bound is
        # compared. That is enough: nobody is in line, and the queue is open, because a slow move
        # that changes this puts the attempt in line (`_admit_standby`).
        if take is not None and take is attempt:
            if len(self.storage) <= self._keep:
                return False
            self.storage.hold_one(take.held)
            take.state = DONE
            self._standby_take, self._bound_out = None, self._keep
            waits = self._dequeue_waits
        elif put is not None and put is attempt:
            if len(self.storage) >= self._capacity:
                return False
            put_row = self._put
            put_row(put.row)
            self._enqueued += 1
            put.state = DONE
            self._standby_put, self._bound_in = None, self._capacity
            waits = self._enqueue_waits
        else:
            return False
        del self._waiting[attempt]
        waits.add(waited)
        return True

    def _call_observers(self) -> None:
        for observe in self.observers:
            observe()

    def _admit_standby(self) -> None:
        """Put the attempts that stand by in line, unless their owners will never run again.

        (One that a signal handler's exception leaves outside is begun by its owner.)
        """
        both = self._standby_attempts()
        self._standby_put = self._standby_take = None
        for attempt in both:
            waker: Any = attempt.waker
            if waker.is_dead():  # in line, it would hold up all others for ever
                attempt.state = WITHDRAWN
                self._waiting.pop(attempt, None)
            else:
                self._wait_lists.list_of(attempt)[attempt] = None
                attempt.waits = True

    def _leave_standby(self, attempt: Attempt) -> None:
        self._waiting.pop(attempt, None)
        if attempt is self._standby_put:
            self._standby_put = None
        elif attempt is self._standby_take:
            self._standby_take = None

    # Views.

    @property
    def state(self) -> QueueState:
        return self._get_state()

    @property
    def size(self) -> int:
        """How many elements are inside, not counting those that a waiting batch has taken."""
        return self._get_size()

    @property
    def weight(self) -> int | None:
        """How many bytes are inside, including a waiting batch's; ``None`` if unknown."""
        return self._get_weight()

    @property
    def capacity(self) -> int | None:
        """How many elements fit, as the user has set it; ``None`` for no bound."""
        return self._get_capacity()

    @property
    def max_rows(self) -> float:
        """How many elements fit, as far as that is known in advance. Takes no lock."""
        return self._capacity

    @property
    def lines(self) -> tuple[Collection[Attempt], Collection[Attempt]]:
        """The enqueues and the dequeues that wait: these very collections, to ask without the lock
        whether they are empty."""
        return self._enqueues, self._dequeues

    @property
    def waiting_enqueues(self) -> int:
        """How many enqueues wait. Takes no lock."""
        return len(self._enqueues)

    @synchronized
    def statistics(self) -> Statistics:
        """Return all counts, of one moment."""
        self._take_in_arrivals()
        claimed = self._claims()
        inside = self.storage.size - claimed
        granted = self._granted_rows()
        return Statistics(
            size=inside,
            capacity=self._given_capacity,
            enqueued=self._enqueued,
            dequeued=self._enqueued - inside - granted - claimed,
            waiting_enqueues=len(self._enqueues) + (self._standby_put is not None),
            waiting_dequeues=len(self._dequeues) + (self._standby_take is not None),
            enqueue_wait=self._enqueue_waits.seconds,
            dequeue_wait=self._dequeue_waits.seconds,
            bytes=self.storage.weight,
            max_bytes=self.max_bytes,
            granted=granted,
            claimed=claimed,
            unfinished=self._enqueued - self._finished,
        )

    @synchronized
    def waits(self) -> Waiting:
        """Return how long callers have waited, and since when they wait, at one moment."""
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

    @synchronized
    def count_wait(self, attempt: Attempt, waited: float) -> None:
        """Count the wait of an owner that stops waiting but does not end its attempt: a lease.

        Args:
            attempt: an attempt that is no longer pending.
            waited: seconds, for the statistics.
        """
        self._count_wait(attempt, waited)

    @synchronized
    def replace_cause(self, cause: BaseException, instead: BaseException) -> None:
        """Have later errors name another failure as their cause, if they would name this one."""
        known = self._cause
        if known is cause or (type(known) is SealedFailure and known.is_of(cause)):
            self._cause = instead

    @property
    def cause(self) -> BaseException | None:
        """The failure that has closed the queue."""
        return self._cause

    @synchronized
    def _get_state(self) -> QueueState:
        return self._state

    @synchronized
    def _get_capacity(self) -> int | None:
        return self._given_capacity

    @synchronized
    def _get_size(self) -> int:
        self._take_in_arrivals()
        return self.storage.size - self._claims()

    @synchronized
    def _get_weight(self) -> int | None:
        self._take_in_arrivals()
        return self.storage.weight

    def _take_in_arrivals(self) -> None:
        """Put rows in that wait in `Arrivals`, as far as there is room.

        It lets no attempt proceed. A caller that does not do so either need not: as long as a
        dequeue lacks rows, those that have arrived are too few for it, unless their writer is about
        to call `Machine.collect`.
        """
        if not self._writers:
            return
        arrivals = self.arrivals
        n = len(arrivals.rows)
        if not n or self._state is not OPEN or self._enqueues or self._places:
            return  # their writers learn of a closed queue, or wait in line
        head = self._wait_lists.first_dequeue()
        # In a slow move, `_batch_waits` is no more than the safe answer.
        claims = self._progressive and head is not None and not head.single
        if claims:
            self._claimed = self._claims()
        room = self._room()
        if room < 1:
            return
        n = int(min(max(room, self._claims_to_come()), n))  # as in `_rows_to_enter`
        columns = arrivals.joined(arrivals.rows[:n])
        before = len(self.storage)
        try:
            self.storage.put_many(columns, 0, n)
        finally:
            # What is in, even if a handler has raised: it must not go in twice.
            n = len(self.storage) - before
            self._enqueued += n
            del arrivals.rows[:n]
        if claims:
            self._claimed = self._claims()

    def _claims(self) -> int:
        """Return how many rows in the storage belong to the first waiting dequeue, as of now."""
        if not (self._batch_waits and self._dequeues):
            return 0
        return max(0, min(self._available(), next(iter(self._dequeues)).n))

    def _room(self) -> float:
        """Return how many rows may go in now; negative if some came back to a full queue."""
        inside = len(self.storage) + len(self._returned) - self._claimed + len(self._places)
        # `_limit` says when it may be more than the capacity.
        return (self._limit() if self._dequeues else self._capacity) - inside

    def _limit(self) -> float:
        """Return how many rows may be inside: the capacity, or the size of a waiting batch that
        must find all its rows there. The queue may have been larger when that began to wait."""
        if not self._dequeues or self._progressive:
            return self._capacity
        return max(self._capacity, next(iter(self._dequeues)).n)

    def _rows_that_fit(self) -> float:
        """Return the capacity, or fewer rows of one size if they fill the bytes first; but enough
        rows that one can leave."""
        given = self._given_capacity
        most = INFINITY if given is None else given
        size = self.storage.row_bytes
        if self.max_bytes is not None and size is not None:
            by_size = rows_within(self.max_bytes, size)
            most = most if by_size is None else min(most, max(by_size, self._keep + 1))
        return most if most < sys.maxsize else INFINITY  # no storage holds that many

    def _claims_to_come(self) -> int:
        """Return how many rows the first waiting dequeue will claim before its last one.

        0 once the queue closes: the claim of then is reported by the dequeue's failure.
        """
        head = self._wait_lists.first_dequeue()
        if head is None or head.expired or self._state is not OPEN:
            return 0
        if not self._progressive or self._eager:
            return 0
        return head.n - self._claimed - 1

    def _granted_rows(self) -> int:
        """Return how many rows belong to dequeues whose owners have not run on, or committed.

        Where grant and commit are one step, such a dequeue is done, and only its wait is open.
        """
        held = sum(attempt.held.count for attempt in self._granted)
        for attempt in self._waiting:
            if attempt.state is DONE and isinstance(attempt, Take):
                held += attempt.held.count
        return held

    def _has_failed(self) -> bool:
        return self._cause is not None and self._state is not OPEN

    def _no_rows_can_return(self, attempt: Take, available: int) -> bool:
        """Return whether a closed queue will not have more rows than now.

        Rows that granted dequeues hold may come back if their owners are cancelled. A waiting
        dequeue must not fail before that is decided.
        """
        if not self._granted or (attempt.up_to and available > 0):
            return True
        return self._waits_for_itself(attempt)

    def _waits_for_itself(self, attempt: Take) -> bool:
        """Return whether a dequeue would wait for its own borrower: all granted rows that may come
        back are on lease to that, or to borrowers that wait here, too, and so would do nothing."""
        held_by = {granted.borrower for granted in self._granted}
        borrowers = [one for one in held_by if one is not None]
        if len(borrowers) < len(held_by):
            return False  # others may be cancelled
        # The rows come back only from borrowers. One that runs on may give some back; one that
        # waits here, in this attempt or behind it, gives them back only after this one has ended.
        is_borrowers = False
        for one in borrowers:  # loops, since Cython compiles no closure here
            if one.has_begun(attempt):
                is_borrowers = True
                continue
            for other in self._dequeues:
                if one.has_begun(other):
                    break
            else:
                return False  # that borrower runs on, and may give rows back
        return is_borrowers

    def _rows_to_enter(self, attempt: Put | PutMany) -> int:
        """Return how many rows of the first waiting enqueue may enter now."""
        inside = len(self.storage) - self._claimed
        if self._returned or self._places:
            inside += len(self._returned) + len(self._places)
        # As in `_room`; where a batch claims its rows, the limit is the capacity.
        is_limited = self._dequeues and not self._progressive
        room = (self._limit() if is_limited else self._capacity) - inside
        if room < 1:
            return 0
        if type(attempt) is not PutMany:
            return self._rows_within_bytes(attempt, 1) if self._brings_sizes else 1
        # A waiting batch claims each row as it enters, so these rows take up no room, up to the one
        # that completes the batch. All of them may enter in one move.
        n = int(min(max(room, self._claims_to_come()), attempt.n - attempt.done))
        return self._rows_within_bytes(attempt, n) if self._brings_sizes else n

    def _rows_within_bytes(self, attempt: Put | PutMany, n: int) -> int:
        """Return how many of an enqueue's next n rows may go in, by their sizes.

        Rows inside, claimed rows and places all count. But the rows that the next dequeue lacks may
        go in whatever their size: otherwise it and the enqueue would wait for each other.
        """
        storage, missing = self.storage, self._shortage()
        assert storage.weight is not None
        total = storage.weight + self._wait_lists.promised
        if isinstance(attempt, PutMany):
            weights = storage.weights(attempt.columns, attempt.done, attempt.done + n)
        else:
            weights = iter((storage.weight_of(attempt.row),))
        for count, weight in enumerate(weights):  # rows enter in order: stop at the first too many
            total += weight
            if count >= missing and total > self._max_bytes:
                return count
        return n

    def _shortage(self) -> int:
        """Return how many rows the first dequeue lacks; without one, what a `dequeue` would."""
        head = self._wait_lists.first_dequeue()
        needed = 1 if head is None or head.expired or self._claims_disabled else head.n
        return needed - self._available() - len(self._places)

    def _available(self) -> int:
        """Return how many rows may go out now, including the claimed ones."""
        inside = len(self.storage)
        if self._returned:  # a test costs less than the length of what is nearly always empty
            inside += len(self._returned)
        return inside if self._state is CLOSED else inside - self._keep

    def _count_wait(self, attempt: Attempt, waited: float) -> None:
        """Count a wait that has ended, which was in the list of current waits until now."""
        if self._waiting.pop(attempt, attempt) is attempt:
            return  # it has been counted, or did not wait
        waits = self._dequeue_waits if type(attempt) is Take else self._enqueue_waits
        waits.add(waited)
