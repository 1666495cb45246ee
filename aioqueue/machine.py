"""THE rules: who may put in, who may take out, who must wait, and what closing does to them.

Everything that decides about a queue's state is in this module, and nothing else is: it does no
I/O, starts nothing, sleeps never, reads no clock and has never heard of asyncio or threads. It is
told what happened (an attempt begins, is withdrawn, is committed, its deadline passes; the queue is
closed) and it returns what to do: the *wakers* of the callers whose attempts have ended. The
caller of the machine wakes them after the lock is released.

**Attempts.** One enqueue or dequeue that has begun and not yet ended is an `Attempt`, whose moves
`AttemptState` draws. Attempts of one side proceed strictly in the order in which they began:
only the first may move, even if a later, smaller one could be satisfied. After every change
enqueues are tried before dequeues, until nothing more can move (`_flush`). What a storage raises
is the failure of the one attempt that it was moving for, no matter who made the move.

**Grant and commit.** In asyncio a caller can be cancelled after it was chosen and before it runs.
So its attempt is first *granted* and ends when its owner *commits*. A granted dequeue holds its
rows in its hands; they go back if it is withdrawn. A granted enqueue holds a *place*, which counts
against the capacity; its row goes in at the commit. Callers whose world excludes that race
(`Waker.two_step` is false) have both steps at once. Rows must enter in the order of the grants, so
while places are outstanding, only attempts of the same waker, whose owners resume in the order of
their grants, are given further ones; everybody else waits for the commit.

**Batches in progress.** The first dequeue in line takes rows as they come. They are *claimed*: they
no longer count as inside, so producers get their room back at once, but they stay in the storage
until the batch is complete and leave it in one move; so the storage may hold more than the
capacity. Storages that draw by lot are told to draw at once.

**Bytes.** Where rows bring their sizes (``max_bytes``, and rows that differ), an enqueue also waits
as long as what is inside and its next row are too many bytes together. All that the storage has
counts, also what is claimed, and what has a place. But as many rows as the next dequeue lacks go in
however large they are: one, if the queue is empty. So nothing ever waits for itself. Where all rows
have one size, all this is a bound on rows, which the capacity then stands for.

**Copies** of large batches are made by their owners, without the lock: into memory that they
reserve before they put the batch in, and out of the rows in their hands, which they release
afterwards (`aioqueue.copying`). So every move takes microseconds, and nobody waits for another's
copy.

**The fast path.** Nearly all operations concern nobody else: there is room, or a row, and no one
waits. `try_enqueue` and its sisters are that branch; those of one row are in `aioqueue.fast_path`.
They compare the number of rows in the storage with two bounds, which say it all (capacity, order,
closing, waiting callers, rows that are back) because every slow move sets them afresh when it ends
(`_set_bounds`); a signal handler may raise before it ends, so until then there is no fast path at
all (`_shut`):

* below ``_bound_in`` a row can go in, and no one has to be told;
* above ``_bound_out`` a row can come out, and no one has to be told.

**The lock** is passed in and guards every field. It is held for a move and never across a wait. It
is a re-entrant one, for one reason: such a lock knows who holds it. A signal handler or a finalizer
that Python runs in the middle of a move can therefore be told apart: what it begins is refused
(`aioqueue.locks.alone`), and what ends or closes something is left to a thread (`is_entered_here`);
and a lock can be released whenever Ctrl-C comes (`aioqueue.locks`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from aioqueue.attempts import (
    CLOSED,
    CLOSING,
    DEQUEUE,
    DONE,
    ENQUEUE,
    FAILED,
    GRANTED,
    OPEN,
    PENDING,
    WITHDRAWN,
    Attempt,
    AttemptState,
    Put,
    PutMany,
    Take,
    Waker,
    closed_error,
    out_of_range_error,
)
from aioqueue.elements import Columns, Row
from aioqueue.errors import QueueClosedError
from aioqueue.fast_path import NOTHING
from aioqueue.locks import alone, guarded
from aioqueue.machine_state import INFINITY, MachineState

__all__ = ("NOTHING", "Machine")


class Machine(MachineState):
    """The moves of one queue, and every rule about them; see `MachineState` for the arguments."""

    __slots__ = ()

    # The fast path of batches; that of single rows is the base class's, and is shut meanwhile: a
    # finalizer or a signal handler may come in the middle, and would take the same rows.

    @alone
    def try_enqueue_many(self, columns: Columns, n: int) -> bool:
        """Put n rows in, if that concerns no one else."""
        bound_in, bound_out = self._bound_in, self._bound_out
        self._bound_in, self._bound_out = -1, INFINITY
        try:
            if len(self.storage) + n > bound_in:
                return False
            self.storage.put_many(columns, 0, n)
            self._enqueued += n
            return True
        finally:
            self._bound_in, self._bound_out = bound_in, bound_out

    @alone
    def try_dequeue_many(self, n: int, out: Columns | None = None) -> Columns | None:
        """Take n rows out, copied at once, if that concerns no one else; else return None."""
        bound_in, bound_out = self._bound_in, self._bound_out
        self._bound_in, self._bound_out = -1, INFINITY
        try:
            if len(self.storage) - n < bound_out:
                return None
            return self.storage.pull(n, out)
        finally:
            self._bound_in, self._bound_out = bound_in, bound_out

    @alone
    def try_take(self, attempt: Take) -> bool:
        """Give an attempt that has not begun its rows, not copied, if that concerns no one else."""
        bound_in, bound_out = self._bound_in, self._bound_out
        self._bound_in, self._bound_out = -1, INFINITY
        try:
            if len(self.storage) - attempt.n < bound_out:
                return False
            self.storage.hold(attempt.held, attempt.n)
            attempt.state = DONE
            return True
        finally:
            self._bound_in, self._bound_out = bound_in, bound_out

    # Attempts. Each method returns the wakers to wake once the lock is released.

    @alone
    def begin(self, attempt: Attempt, waker: Waker | None) -> Collection[Waker]:
        """Begin an attempt, which may end at once; if it does not, it waits in the waker.

        Args:
            attempt: a new one.
            waker: where its owner is going to wait; ``None`` if it cannot wait: what cannot be done
                at once is then withdrawn, without having changed anything.
        """
        before = self._bound_in, self._bound_out, self._batch_waits
        self._shut()
        is_refused = attempt.side is ENQUEUE and self._state is not OPEN
        if is_refused or (waker is None and not self._ends_at_once(attempt)):
            attempt.state = FAILED if is_refused else WITHDRAWN
            attempt.error = self._closed_error() if is_refused else None
            self._give_up(attempt)
            self._bound_in, self._bound_out, self._batch_waits = before
            return ()
        attempt.host = self
        attempt.waker = waker
        line = self._lines.line_of(attempt)
        wakers: dict[Waker, None] = {}
        self._beginning = attempt
        try:
            if line or not self._advance(attempt, wakers):
                line[attempt] = None
                if self._places:
                    # It may be given a place beside others of its waker. They must resume
                    # before it, so it cannot be done while it begins, but only granted.
                    self._beginning = None
                if self._may_proceed(attempt):
                    self._flush(wakers)
            elif self._enqueues or self._dequeues or self._state is not OPEN:
                self._flush(wakers)
            self._set_bounds()
            if attempt.state is PENDING or attempt.state is GRANTED:
                attempt.waits = True
                self._note_wait(attempt)
        finally:
            self._beginning = None
        return wakers

    @guarded
    def commit(self, attempt: Attempt, waited: float = 0.0) -> Collection[Waker]:
        """End an attempt whose owner has waited and now runs on.

        Args:
            attempt: one that is no longer pending.
            waited: seconds, for the statistics.
        """
        self._count_wait(attempt, waited)
        if attempt.state is not GRANTED:
            return ()
        # The state comes last: if Ctrl-C comes in between, it is withdrawn as granted.
        if isinstance(attempt, Take):
            self._granted.pop(attempt, None)
            attempt.state = DONE
            # Others may have waited for the last rows, in case they came back.
            is_last = self._state is CLOSED and not self._granted
            return self._settle() if is_last and self._dequeues else ()
        assert isinstance(attempt, Put)
        self._shut()
        self._lines.leave_place(attempt)
        try:
            self._insert(attempt.row)
            attempt.state = DONE
        except Exception as error:
            attempt.state = FAILED
            attempt.error = error
        return self._settle()

    @guarded
    def withdraw(
        self, attempt: Attempt, waited: float = 0.0, *, if_pending: bool = False
    ) -> Collection[Waker]:
        """End an attempt whose owner was cancelled: put everything back.

        Whatever it had been granted is undone, and serves the next in line. What a batch had put in
        stays in. An enqueue that is done, or an attempt that failed, is left as it is.

        Args:
            attempt: any attempt.
            waited: seconds, for the statistics.
            if_pending: only if it is still pending; its state tells.
        """
        if if_pending and attempt.state is not PENDING:
            return ()
        self._count_wait(attempt, waited)
        is_taken = attempt.state is DONE and isinstance(attempt, Take)
        if not (is_taken or attempt.state is PENDING or attempt.state is GRANTED):
            return ()
        self._shut()
        if not is_taken:
            self._forget(attempt)
        attempt.state = WITHDRAWN
        self._give_up(attempt)
        return self._settle()

    @guarded
    def drop(self, value: Any) -> Collection[Waker]:
        """Take a row out that nobody wants any more, wherever it stands: its room is free at once.

        It counts as one that was taken out. What is in somebody's hands stays there.

        Args:
            value: an object that is inside, which is found by its identity.
        """
        self._shut()
        if self.storage.drop(value):
            self._claimed = max(0, min(self._claimed, self._available()))
        return self._settle()

    @guarded
    def expire(self, attempt: Attempt) -> Collection[Waker]:
        """The deadline of a `Take` with ``up_to`` has passed: let it have what is there.

        If nothing is there, it ends with the first row that comes.
        """
        if attempt.state is not PENDING:
            return ()
        assert isinstance(attempt, Take)
        self._shut()
        attempt.expired = True
        return self._settle()

    @guarded
    def close(
        self, *, cancel_pending_enqueues: bool = False, cause: BaseException | None = None
    ) -> Collection[Waker]:
        """Let nothing more in; any number of times.

        Args:
            cancel_pending_enqueues: fail the enqueues that have not ended yet, at once.
            cause: the failure that later errors name as their cause; the first one given counts.
        """
        self._shut()
        if self._cause is None:
            self._cause = cause
        if self._state is OPEN:
            self._state = CLOSING
        wakers: dict[Waker, None] = {}
        if cancel_pending_enqueues:
            for attempt in [*self._places, *self._enqueues]:
                self._forget(attempt)
                self._fail(attempt, self._closed_error(attempt), wakers)
        self._flush(wakers)
        self._set_bounds()
        return wakers

    @guarded
    def resize(self, capacity: int | None) -> Collection[Waker]:
        """Let more rows in from now on, or fewer: what is inside stays, and so does a place.

        Args:
            capacity: how many rows fit; ``None`` for no bound.
        """
        self._shut()
        self._given_capacity = capacity
        self._capacity = self._rows_that_fit()
        return self._settle()

    @guarded
    def adopt(self, attempt: Take, columns: Columns) -> None:
        """Grant rows that an owner has had since before this machine was made; nothing is inside.

        Args:
            attempt: a new one, of as many rows.
            columns: these.
        """
        self.storage.put_many(columns, 0, attempt.n)
        self.storage.hold(attempt.held, attempt.n)
        self._enqueued += attempt.n
        attempt.host, attempt.state = self, GRANTED
        self._granted[attempt] = None

    @guarded
    def refill(self, columns: Columns, n: int) -> None:
        """Have rows inside that were there before this machine was made; nobody waits yet.

        They had come in one after another, and some of them had been taken out and given back: so
        there may be more of them than the bounds let in, in rows and in bytes. All of them come in.

        Args:
            columns: the rows.
            n: how many.
        """
        self._shut()
        self.storage.put_many(columns, 0, n)
        self._enqueued += n
        self._set_bounds()

    # How it moves. All of this runs under the lock.

    def _flush(self, wakers: dict[Waker, None]) -> None:
        """Let attempts proceed until none can; add the wakers to wake."""
        enqueues, dequeues = self._enqueues, self._dequeues
        while True:
            while enqueues and self._advance_enqueue(next(iter(enqueues)), wakers):
                enqueues.popitem(False)
            if self._state is CLOSING and not enqueues and not self._places:
                self._state = CLOSED
            claimed, moved = self._claimed, False
            while dequeues and self._advance_dequeue(next(iter(dequeues)), wakers):
                dequeues.popitem(False)
                moved = True
            if not enqueues or not (moved or self._claimed > claimed):
                break
        until_closed = self._lines.until_closed
        while until_closed and self._wait_is_over(next(iter(until_closed)), wakers):
            until_closed.popitem(False)

    def _settle(self) -> Collection[Waker]:
        """After a change: let attempts proceed and set the bounds; return the wakers to wake."""
        wakers: dict[Waker, None] = {}
        self._flush(wakers)
        self._set_bounds()
        return wakers

    def _advance_enqueue(self, attempt: Put | PutMany, wakers: dict[Waker, None]) -> bool:
        """Let the first enqueue in line proceed; tell whether it need not stand there any more."""
        if attempt.state is not PENDING:
            return True  # Ctrl-C came before it could leave the line
        n = self._rows_to_enter(attempt)
        if n < 1 or (self._places and not self._may_join_places(attempt)):
            return False
        try:
            if isinstance(attempt, PutMany):
                self._insert_rows(attempt, n)
                if attempt.done < attempt.n:
                    return False
            elif self._in_two_steps(attempt):
                weight = self.storage.weight_of(attempt.row) if self._brings_sizes else 0
                self._lines.give_place(attempt, weight)
                self._finish(attempt, GRANTED, wakers)
                return True
            else:
                self._insert(attempt.row)
        except Exception as error:
            # Out of memory, say. The owner of the attempt is told, not the thread that runs this.
            self._fail(attempt, error, wakers)
        else:
            self._finish(attempt, DONE, wakers)
        return True

    def _rows_to_enter(self, attempt: Put | PutMany) -> int:
        """How many rows of the first enqueue in line may go in now."""
        room = self._room()
        if room < 1:
            return 0
        if not isinstance(attempt, PutMany):
            return self._rows_light_enough(attempt, 1) if self._brings_sizes else 1
        n = int(min(max(room, self._claims_to_come()), attempt.n - attempt.done))
        return self._rows_light_enough(attempt, n) if self._brings_sizes else n

    def _rows_light_enough(self, attempt: Put | PutMany, n: int) -> int:
        """How many of the next n rows of an enqueue may go in, by their sizes.

        What is inside, what a waiting batch has claimed there, and what has a place all count. But
        the rows that the next dequeue lacks may go in however large they are: else it and they
        would wait for each other.
        """
        storage, missing = self.storage, self._missing()
        assert storage.weight is not None
        total = storage.weight + self._lines.promised
        if isinstance(attempt, PutMany):
            weights = storage.weights(attempt.columns, attempt.done, attempt.done + n)
        else:
            weights = iter((storage.weight_of(attempt.row),))
        for count, weight in enumerate(weights):
            total += weight
            if count >= missing and total > self._max_bytes:
                return count
        return n

    def _advance_dequeue(self, attempt: Take, wakers: dict[Waker, None]) -> bool:
        """Let the first dequeue in line proceed; tell whether it need not stand there any more.

        1. With as many rows as it wants, it has them.
        2. Of a closed queue it has what is left, if it takes fewer; else it fails. But not while
           others hold rows that may yet come back, and would be the last.
        3. When its time is up, it has what is there; and if nothing is, the first row that comes.
        4. Else it waits, and the storage is told what for.
        """
        if attempt.state is not PENDING:
            return True  # Ctrl-C came before it could leave the line
        try:
            if not attempt.held.count:  # else Ctrl-C came when it had its rows
                n = self._rows_for(attempt)
                if n is None:
                    self._claim_for(attempt)
                    return False
                claimed, self._claimed = self._claimed, 0
                if n == 0:
                    self._fail_out_of_range(attempt, claimed, wakers)
                    return True
                if attempt.single:
                    self.storage.hold_one(attempt.held)
                else:
                    self.storage.hold(attempt.held, n)
        except Exception as error:
            self._fail(attempt, error, wakers)
            return True
        if self._in_two_steps(attempt):
            self._granted[attempt] = None
            self._finish(attempt, GRANTED, wakers)
        else:
            self._finish(attempt, DONE, wakers)
        return True

    def _rows_for(self, attempt: Take) -> int | None:
        """How many rows the first dequeue in line has now; 0: it fails; None: it waits."""
        available = self._available()
        if available >= attempt.n:
            return attempt.n
        if self._state is CLOSED and self._nothing_comes_back(attempt, available):
            if not attempt.up_to or not self.storage.size:
                return 0
            if self.storage.eager:
                # As in TensorFlow: what the batch has drawn goes back, and all is drawn again.
                self.storage.release(attempt.held)
            return self.storage.size
        return available if attempt.expired and available > 0 else None

    def _claim_for(self, attempt: Take) -> None:
        """The first dequeue in line waits: set aside what is there, and say what it waits for.

        1. What is set aside does not count as inside any more, so others get its room at once.
        2. It never becomes less while this dequeue waits, but by rows that come back (`_forget`).
        3. Rows that come by the fast path are noted when the next slow move begins
           (`_shut`), which is early enough: until then nobody asks.
        """
        if attempt.single or not self.storage.progressive:
            return
        self._claimed = max(self._claimed, self._available())
        if self.storage.eager:
            self.storage.claim(self._claimed)
        else:
            self.storage.expect(attempt.n)

    def _advance(self, attempt: Any, wakers: dict[Waker, None]) -> bool:
        """Let an attempt proceed that has no one in front of it."""
        if attempt.side is DEQUEUE:
            return self._advance_dequeue(attempt, wakers)
        if attempt.side is ENQUEUE:
            return self._advance_enqueue(attempt, wakers)
        return self._wait_is_over(attempt, wakers)

    def _may_proceed(self, attempt: Any) -> bool:
        """Whether anyone may proceed since an attempt has begun to wait.

        A batch takes and gives early, and an enqueue may join the places of its waker.
        """
        if attempt.side is DEQUEUE:
            return bool(self._enqueues) and not attempt.single
        return attempt.side is ENQUEUE and (attempt.n > 1 or bool(self._places))

    def _wait_is_over(self, attempt: Attempt, wakers: dict[Waker, None]) -> bool:
        if self._state is not CLOSED:
            return False
        self._finish(attempt, DONE, wakers)
        return True

    def _ends_at_once(self, attempt: Attempt) -> bool:
        """Whether an attempt that is about to begin would end without waiting."""
        if isinstance(attempt, Put | PutMany):
            is_next = not (self._enqueues or self._places) and self._room() >= attempt.n
            if is_next and self._brings_sizes:
                return self._rows_light_enough(attempt, attempt.n) == attempt.n
            return is_next
        if not isinstance(attempt, Take):
            return self._state is CLOSED
        if self._dequeues:
            return False
        available = self._available()
        if self._state is CLOSED and self._nothing_comes_back(attempt, available):
            return True
        return available >= (1 if attempt.expired else attempt.n)

    def _may_join_places(self, attempt: Put | PutMany) -> bool:
        """Whether an enqueue may be granted a place while others have not used theirs yet."""
        first = next(iter(self._places))
        return (
            isinstance(attempt, Put)
            and self._in_two_steps(attempt)
            and attempt.waker is first.waker
        )

    def _in_two_steps(self, attempt: Attempt) -> bool:
        """Whether the attempt's owner might be cancelled before it knows that it was granted.

        Not while the owner itself is calling: then grant and commit are one step. But of what is
        leased the owner is elsewhere, whoever calls.
        """
        if attempt.leased:
            return True
        waker: Any = attempt.waker  # there is one: only the owner who is calling may have none
        return attempt is not self._beginning and waker.two_step

    def _nothing_comes_back(self, attempt: Take, available: int) -> bool:
        """Whether a closed queue will not have more rows than now.

        Rows in the hands of callers that may yet be cancelled could come back, and must not find
        everybody gone.
        """
        return not self._granted or (attempt.up_to and available > 0)

    def _fail_out_of_range(self, attempt: Take, claimed: int, wakers: dict[Waker, None]) -> None:
        self.storage.release(attempt.held)
        error = out_of_range_error(
            self.kind, self.name, attempt, remaining=self.storage.size, held=claimed
        )
        error.__cause__ = self._cause
        self._fail(attempt, error, wakers)

    def _shut(self) -> None:
        """Nothing goes the fast path until the bounds are set: a signal handler may run before."""
        self._bound_in, self._bound_out = -1, INFINITY  # first: all else looks at what is inside
        if self._batch_waits:  # rows that came the fast path meanwhile are that batch's
            self._claimed = self._claims()
        self._batch_waits = self.storage.progressive  # for all that is known

    def _claims_to_come(self) -> int:
        """How many rows the first waiting dequeue is going to claim before it has all.

        Not of the last ones: what had been claimed when the queue closed is told to who fails.
        """
        head = self._lines.first_dequeue()
        if head is None or head.expired or self._state is not OPEN:
            return 0
        if not self.storage.progressive or self.storage.eager:
            return 0
        return head.n - self._claimed - 1

    def _insert(self, row: Row) -> None:
        self.storage.put(row)
        self._enqueued += 1

    def _insert_rows(self, attempt: PutMany, n: int) -> None:
        before = len(self.storage)
        try:
            self.storage.put_many(attempt.columns, attempt.done, attempt.done + n)
        except BaseException:
            # What is in is in, though a handler interrupted just then: it must not go in again.
            n = len(self.storage) - before
            attempt.done += n
            self._enqueued += n
            raise
        attempt.done += n
        self._enqueued += n

    def _forget(self, attempt: Attempt) -> None:
        """Take an attempt out of wherever it stands."""
        if attempt is self._lines.first_dequeue():
            self._claimed = 0  # it was the first: what it had claimed is free again
        self._lines.remove(attempt)

    def _give_up(self, attempt: Attempt) -> None:
        """An attempt has ended before it was done: release what it has, or has made ready."""
        if isinstance(attempt, Take):
            if attempt.held.count:
                self.storage.restore(attempt.held)
        elif isinstance(attempt, PutMany):
            self.storage.discard(attempt.columns, attempt.done)

    def _finish(self, attempt: Attempt, state: AttemptState, wakers: dict[Waker, None]) -> None:
        """Record what has become of an attempt, and tell its waker unless its owner is calling."""
        attempt.state = state
        if attempt is not self._beginning and attempt.waker is not None:
            attempt.waker.notify(attempt)
            wakers[attempt.waker] = None

    def _fail(self, attempt: Attempt, error: BaseException, wakers: dict[Waker, None]) -> None:
        attempt.error = error
        self._give_up(attempt)
        self._finish(attempt, FAILED, wakers)

    def _closed_error(self, attempt: Put | PutMany | None = None) -> QueueClosedError:
        error = closed_error(self.kind, self.name, attempt)
        error.__cause__ = self._cause
        return error

    def _set_bounds(self) -> None:
        """Say how full the storage may be for the fast path in and out.

        1. Callers that wait to put in go first, and rows that are back are not looked at there: no
           fast path at all. Nor in, where rows bring their sizes, which it does not look at.
        2. With no one waiting to take out, a row may go in below the capacity, if the queue is open
           and nobody has a place; and out above what must remain.
        3. Callers that wait to take out go first: no fast path out. In, it ends one row before the
           first of them has all that it needs; at once, if it wants to see each row. Meanwhile all
           that comes is claimed, so the capacity is no bound, but where nothing can be claimed.
        """
        storage = self.storage
        head = next(iter(self._dequeues)) if self._dequeues else None
        self._batch_waits = head is not None and storage.progressive and not head.single
        bound_in: float = -1
        bound_out: float = INFINITY
        if not (self._enqueues or storage.returned):
            is_open = self._state is OPEN and not self._places and not self._brings_sizes
            if head is None:
                bound_in = self._capacity if is_open else -1
                bound_out = 0 if self._state is CLOSED else self._keep
            elif is_open:
                waits_for_each = storage.eager or head.expired
                bound_in = 0 if waits_for_each else self._keep + head.n - 1
                if not storage.progressive:
                    bound_in = min(bound_in, self._limit())
        self._bound_in, self._bound_out = bound_in, bound_out
        for look in self.onlookers:
            look()
