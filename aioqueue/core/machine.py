"""The rules of a queue: which attempt may proceed, which must wait, and what closing does.

Every decision about a queue's state is in this module, and nothing else is. The machine does no
I/O, starts nothing, never sleeps, reads no clock, and knows neither asyncio nor threads. Its caller
reports an event: an attempt begins, is withdrawn, is committed, or reaches its deadline; the queue
is closed. The machine returns the *wakers* of the callers whose attempts have ended. The caller
wakes them after it has released the lock.

**Attempts.** An enqueue or dequeue that has begun and not yet ended is an `Attempt`; `AttemptState`
draws its transitions. The attempts of one side proceed strictly in the order in which they began:
only the first may move, even if a later, smaller one could be satisfied. After every change,
enqueues are tried before dequeues, until nothing more can move (`_flush`). If a storage raises, the
attempt that it was moving for fails, whichever thread made the move.

**Grant and commit.** In asyncio a task can be cancelled after its attempt was chosen and before the
task runs. So an attempt is first *granted*, and ends when its owner *commits*. A granted dequeue
holds its rows; if it is withdrawn, they go back. A granted enqueue holds a *place* that counts
against the capacity; its row goes in at the commit. In worlds that exclude this race
(`Waker.two_step` is false) both steps happen at once. Rows must enter in the order of the grants.
So while there are places, only attempts of the same waker get further ones, as their owners resume
in the order of the grants. All other enqueues wait for the commits.

**Leases.** A lease is a grant that its owner commits later: the owner is on another machine, or is
a loop (a `Borrower`) that gives rows back if it is left before it has used them. On a closed queue,
others wait until that is decided. Attempts of the loop itself do not: it would wait for itself.

**Batches in progress.** The first dequeue in line takes rows as they arrive: it *claims* them.
Claimed rows do not count as inside, so producers get their room back at once. They stay in the
storage until the batch is complete, and leave it in one move; so the storage may hold more rows
than the capacity. Storages that draw at random draw the claimed rows at once. After
`disable_claims` nothing is claimed: the rows of a batch that is not complete count as inside, and
keep others out.

**Bytes.** If rows bring their sizes (``max_bytes``, and rows that differ), an enqueue also waits
while its next row would exceed the bound. Everything in the storage counts, even claimed rows, and
every place. But the rows that the next dequeue lacks go in whatever their size; in an empty queue
that is one row. Otherwise the enqueue and the dequeue would wait for each other. If all rows have
one size, the bound on bytes is a bound on rows, and the capacity includes it.

**Copies** of large batches are made by their owners, without the lock: into memory that they
reserve before the enqueue, and out of the rows that a dequeue holds, which they release afterwards
(`BatchCopier`). So every move takes microseconds, and no caller waits for another's copy.

**The fast path.** Nearly all operations affect no other caller: there is room, or a row, and no
attempt waits. `try_enqueue` and its siblings are that branch; `FastPath` has those for single rows,
and `stand_by` and `retry`, beside it, let a task try them again. They compare the number of rows in
the storage with two bounds. The bounds stand for everything else (capacity, order, closing, waiting
callers, rows that came back), because every slow move computes them anew at its end
(`_set_bounds`). A signal handler may raise before that end, so a slow move first disables the fast
path (`_disable_fast_path`):

* below ``_bound_in`` a row can go in, and no caller need be woken;
* above ``_bound_out`` a row can come out, and no caller need be woken.

**Arrivals.** Threads that enqueue many small rows write them down without the lock, and they enter
together (`aioqueue.core.arrivals`). Such a row counts as an enqueue that is
about to begin. Every slow move takes in what has arrived before it decides anything, so no dequeue
waits, fails or gets fewer rows while a row is there for it.

**The lock** is passed in and guards every field. It is held for one move, never across a wait. It
is re-entrant because only such a lock knows its owner. So the machine notices when a signal handler
or a finalizer interrupts a move of the same thread: it refuses what the handler begins
(`aioqueue.system.locks.not_reentrant`), and leaves what it ends or closes to another thread
(`is_entered_here`). Besides, such a lock can be released safely whenever Ctrl-C strikes
(`aioqueue.system.locks`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from aioqueue.core.arrivals import Arrivals, Joined
from aioqueue.core.attempts import (
    CLOSED,
    CLOSING,
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
    UntilDone,
    Waker,
    closed_error,
    join_error,
)
from aioqueue.core.elements.spec import Columns, PackedRow
from aioqueue.core.fast_path import INFINITY, MachineState
from aioqueue.errors import QueueClosedError, out_of_range_error
from aioqueue.system.locks import (
    not_reentrant,
    not_reentrant_move,
    reraise_if_from_signal_handler,
    synchronized,
    synchronized_move,
)


class Machine(MachineState):
    """The moves of one queue, and their rules; see `MachineState` for the arguments."""

    __slots__ = ()

    # The fast path of batches. It disables that of single rows meanwhile: a finalizer or a signal
    # handler may interrupt it, and would take the same rows.

    @not_reentrant_move
    def try_enqueue_many(self, columns: Columns, n: int) -> bool:
        """Put n rows in, if that affects no other caller; return whether it did."""
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

    @not_reentrant_move
    def try_dequeue_many(self, n: int, out: Columns | None = None) -> Columns | None:
        """Take n rows out as a copy, if that affects no other caller; else return ``None``."""
        bound_in, bound_out = self._bound_in, self._bound_out
        self._bound_in, self._bound_out = -1, INFINITY
        try:
            if len(self.storage) - n < bound_out:
                return None
            return self.storage.pull(n, out)
        finally:
            self._bound_in, self._bound_out = bound_in, bound_out

    @not_reentrant
    def try_take(self, attempt: Take) -> bool:
        """Give a new attempt its rows, not copied, if that affects no other caller."""
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

    @not_reentrant_move
    def try_grant(self, attempt: Any, waker: Waker) -> bool:
        """Give a new attempt its rows, not copied, if that affects no other caller.

        A lease is granted them until its owner commits; another attempt is done.

        Args:
            attempt: a `Take`.
            waker: its owner's.

        Returns:
            Whether it has its rows. If not, begin it.
        """
        bound_in, bound_out = self._bound_in, self._bound_out
        self._bound_in, self._bound_out = -1, INFINITY
        try:
            if len(self.storage) - attempt.n < bound_out:
                return False
            if attempt.single:
                self.storage.hold_one(attempt.held)
            else:
                self.storage.hold(attempt.held, attempt.n)
            attempt.host = self
            attempt.waker = waker
            attempt.state = GRANTED if attempt.leased else DONE
            if attempt.leased:
                self._granted[attempt] = None
            return True
        finally:
            self._bound_in, self._bound_out = bound_in, bound_out

    @not_reentrant_move
    def serve(self, attempt: Any) -> Collection[Waker] | None:
        """Put the row of a new attempt in at once, if a dequeue waits for rows.

        The move of `begin` where that ends at once and no other enqueue is concerned: no waker is
        needed. If an exception interrupts it, withdraw the attempt, as any other.

        Args:
            attempt: a `Put`.

        Returns:
            The wakers to wake; ``None`` if the row is not in, and nothing has changed: begin it.
        """
        # Above -1, the bound shows that the queue is open, that no enqueue waits, stands by or has
        # a place, that no rows are back, and that no exception has interrupted the latest move.
        if not self._dequeues or self._bound_in < 0 or self._writers:
            return None
        self._disable_fast_path()
        wakers: dict[Waker, None] = {}
        if self._room() >= 1:
            self._insert_row(attempt)
            self._flush(wakers)
        self._set_bounds()
        return wakers if attempt.state is DONE else None

    # Attempts. Each method returns the wakers to wake after the release of the lock.

    @not_reentrant_move
    def begin(self, attempt: Attempt, waker: Waker | None) -> Collection[Waker]:
        """Begin an attempt, which may end at once; otherwise its owner waits in the waker.

        Args:
            attempt: a new attempt.
            waker: where the owner will wait; ``None`` if it cannot. An attempt without a waker that
                cannot be done at once is withdrawn, and has changed nothing.
        """
        wakers: dict[Waker, None] = {}
        if attempt.host is not None:  # it has stood by
            if attempt.waits or attempt.state is WITHDRAWN:
                return wakers  # another thread has put it in line, or ended it, just before
            self._leave_standby(attempt)
        # An attempt that stands by began before this one: it has to be in line before this one is
        # decided.
        # So did the enqueues of rows that have arrived.
        if (
            self._standby_put is not None
            or self._standby_take is not None
            or (self._writers and self.arrivals.rows)
        ):
            self._disable_fast_path()  # puts them in line
            wakers = self._settle()
        take: Any = attempt if type(attempt) is Take else None
        wait_list: Any
        if take:
            wait_list = self._dequeues
        elif attempt.side is ENQUEUE:
            wait_list = self._enqueues
        else:
            wait_list = self._wait_lists.list_of(attempt)
        # Kept for the case that this attempt ends without a change: then they still hold.
        bound_in, bound_out, batch_waits = self._bound_in, self._bound_out, self._batch_waits
        # In an open queue, one that goes behind others lets nobody proceed, and the bounds depend
        # on the first in line alone: nothing else changes. (A closed queue may fail it at once.)
        goes_behind = bool(wait_list) and self._state is OPEN and not self._writers
        if not goes_behind:
            self._disable_fast_path()
        # No dequeue is refused here: a closed queue still gives out what is inside.
        is_refused = take is None and self._state is not OPEN and attempt.side is ENQUEUE
        if is_refused or (waker is None and not self._ends_at_once(attempt)):
            attempt.state = FAILED if is_refused else WITHDRAWN
            attempt.error = self._closed_error() if is_refused else None
            self._release_rows(attempt)
            self._bound_in, self._bound_out, self._batch_waits = bound_in, bound_out, batch_waits
            return wakers
        attempt.host = self
        attempt.waker = waker
        # While this is set, the attempt's own end notifies nobody: its owner makes this call, and
        # reads the state when it returns.
        self._beginning = attempt
        try:
            if wait_list:
                leaves = False  # those in line go first
            elif take:
                leaves = self._advance_dequeue(take, wakers)
            elif attempt.side is ENQUEUE:
                leaves = self._advance_enqueue(attempt, wakers)
            else:
                leaves = self._wait_is_over(attempt, wakers)
            if not leaves:
                wait_list[attempt] = None
                if self._places:
                    # Other attempts of its waker may hold places. Their owners must resume first,
                    # so this one cannot be done now; it can only be granted a place behind them.
                    self._beginning = None
                # A batch that has just begun to wait has claimed rows, so an enqueue may have room
                # now. A single dequeue claims none: nobody can proceed because it waits.
                if goes_behind:
                    pass
                elif self._enqueues and not take.single if take else self._may_proceed(attempt):
                    self._flush(wakers)
                elif take and self._state is CLOSED and self._granted:
                    self._flush(wakers)  # another dequeue may wait for this caller's borrower
            elif self._enqueues or self._dequeues or self._state is not OPEN:
                # It ended at once, so rows or room have changed. In an open queue without a line
                # no caller is concerned.
                self._flush(wakers)
            if goes_behind:
                if self.observers:
                    self._call_observers()
            else:
                self._set_bounds()
                if self._writers:
                    self._take_in_late_arrivals(wakers)
            if attempt.state is PENDING or attempt.state is GRANTED:
                # A lease that was granted in this call was not notified: there is no wake to come.
                attempt.waits = attempt.state is PENDING or attempt is not self._beginning
                if take or attempt.side is ENQUEUE:
                    self._waiting[attempt] = None
        finally:
            self._beginning = None
        return wakers

    @synchronized_move
    def commit(self, attempt: Attempt, waited: float = 0.0) -> Collection[Waker]:
        """End an attempt whose owner has waited and now runs on.

        Args:
            attempt: an attempt that is no longer pending.
            waited: seconds, for the statistics.
        """
        self._count_wait(attempt, waited)
        if attempt.state is not GRANTED:
            return ()  # granted and committed in one step, or failed: the rows are accounted for
        # Set the state last: after a Ctrl-C before it, the owner withdraws a granted attempt.
        if type(attempt) is Take:
            self._granted.pop(attempt, None)
            attempt.state = DONE
            return self._no_longer_granted()
        assert type(attempt) is Put
        self._disable_fast_path()
        # The place is given up first, since it ends in any case: also if the storage raises.
        if self._brings_sizes:
            self._wait_lists.leave_place(attempt)
        else:
            self._places.pop(attempt, None)
        try:
            put = self._put
            put(attempt.row)
            self._enqueued += 1
            attempt.state = DONE
        except Exception as error:
            attempt.state = FAILED
            attempt.error = error
        if self._places and attempt.state is DONE and not (self._dequeues or self._writers):
            # The row takes the room that its place had, and the other places are still of one
            # waker: so no enqueue has gained anything, and nobody waits for a row.
            self._set_bounds()
            return ()
        return self._settle()

    @synchronized_move
    def commit_leases(self, attempts: Iterable[Take]) -> Collection[Waker]:
        """End leases whose rows were used. Others that were withdrawn meanwhile stay so."""
        for attempt in attempts:
            if attempt.state is GRANTED:
                self._granted.pop(attempt, None)
                attempt.state = DONE
                if not attempt.single or attempt.held.in_place:
                    self.storage.free(attempt.held)
        return self._no_longer_granted()

    @synchronized
    def withdraw_leases(self, attempts: Iterable[Take]) -> Collection[Waker]:
        """End leases whose rows were not used: all of these go back, before anyone takes one."""
        self._disable_fast_path()
        for attempt in attempts:
            if attempt.state is GRANTED:
                self._wait_lists.remove(attempt)
                attempt.state = WITHDRAWN
                self._release_rows(attempt)
        return self._settle()

    @synchronized
    def withdraw(
        self, attempt: Attempt, waited: float = 0.0, *, if_pending: bool = False
    ) -> Collection[Waker]:
        """End an attempt whose owner was cancelled, and undo it.

        What it was granted goes to the next in line. Rows that an `enqueue_many` has put in stay
        in. An enqueue that is done, or an attempt that has failed, remains as it is.

        Args:
            attempt: any attempt.
            waited: seconds, for the statistics.
            if_pending: do nothing unless it is pending; its state shows whether it was withdrawn.
        """
        if if_pending and attempt.state is not PENDING:
            return ()
        self._count_wait(attempt, waited)
        self._leave_standby(attempt)
        # A dequeue holds its rows until its owner has copied them, even if it is done, so they can
        # still go back. The row of an enqueue that is done may be with another caller by now.
        is_taken = attempt.state is DONE and isinstance(attempt, Take)
        if (
            type(attempt) is Take
            and attempt.single
            and attempt.state is PENDING
            and self._bound_in >= 0
            and not self._writers
        ):
            # A single dequeue that waits holds and has claimed nothing: in an open queue nobody can
            # proceed because it leaves. The bound shows, besides, that no enqueue waits, and that
            # no exception has interrupted a move in which others should have proceeded. Until it
            # is set, the old one lets in too few rows, not too many.
            self._dequeues.pop(attempt, None)
            attempt.state = WITHDRAWN
            self._set_bounds()
            if not self._batch_waits:
                return ()
            return self._settle()  # a batch is first in line now, and is to be prepared for
        self._disable_fast_path()
        if not (is_taken or attempt.state is PENDING or attempt.state is GRANTED):
            return self._settle()  # Ctrl-C may have interrupted the move that ended it
        if not is_taken:
            self._remove_attempt(attempt)
        attempt.state = WITHDRAWN
        self._release_rows(attempt)
        return self._settle()

    @synchronized
    def drop(self, value: Any) -> Collection[Waker]:
        """Take an abandoned row out, wherever it is in the queue, so that its room is free at once.

        It counts as dequeued, and as done with: nobody gets it, so nobody could say so. A row that
        an attempt holds stays there.

        Args:
            value: an object that is inside; it is found by identity.
        """
        self._disable_fast_path()
        if not self.storage.drop(value):
            return self._settle()
        # The row may have been one of those that the first dequeue has claimed.
        self._claimed = max(0, min(self._claimed, self._available()))
        self._finished += 1
        wakers = self._settle()
        self._end_joins(wakers)
        return wakers

    @not_reentrant
    def task_done(self, n: int) -> Collection[Waker] | None:
        """Count n rows as done with; ``None`` if fewer than n are unfinished.

        No attempt but a join can proceed because of that, so the rest is left as it is.

        Args:
            n: how many; negative for rows that were done with, and have come back all the same.
        """
        if n > self._enqueued - self._finished:
            return None
        self._finished += n
        if not self._wait_lists.until_done:
            return ()
        wakers: dict[Waker, None] = {}
        self._end_joins(wakers)
        return wakers

    @synchronized
    def end_joins(self) -> Collection[Waker]:
        """End the joins that need not wait any more, after a `task_done` that was interrupted."""
        wakers: dict[Waker, None] = {}
        self._end_joins(wakers)
        return wakers

    @synchronized
    def expire(self, attempt: Attempt) -> Collection[Waker]:
        """Let a `Take` with ``up_to`` end, since its deadline has passed: it gets what is there.

        If nothing is there, it ends with the next row.
        """
        if attempt.state is not PENDING:
            return ()
        assert isinstance(attempt, Take)
        self._disable_fast_path()
        attempt.expired = True
        return self._settle()

    @synchronized
    def close(
        self, *, cancel_pending_enqueues: bool = False, cause: BaseException | None = None
    ) -> Collection[Waker]:
        """Accept no more rows. It may be called more than once.

        Args:
            cancel_pending_enqueues: make the enqueues that have not ended fail at once.
            cause: the failure that becomes the cause of later errors; only the first one counts.
        """
        self._disable_fast_path()
        self._take_in_arrivals()  # their enqueues have begun before
        if self._cause is None:
            self._cause = cause
        if self._state is OPEN:
            self._state = CLOSING
        wakers: dict[Waker, None] = {}
        # A place is an enqueue whose row is not inside yet: it can be cancelled like those in line.
        for attempt in [*self._places, *self._enqueues]:
            if cancel_pending_enqueues and attempt.state is not FAILED:
                self._fail(attempt, self._closed_error(attempt), wakers)
            if attempt.state is FAILED:  # perhaps by an earlier close that Ctrl-C interrupted here
                self._remove_attempt(attempt)
        self._flush(wakers)
        self._set_bounds()
        self._end_joins(wakers)
        return wakers

    @synchronized
    def resize(self, capacity: int | None) -> Collection[Waker]:
        """Change the capacity. Rows that are inside stay, and so do places.

        Args:
            capacity: how many rows fit; ``None`` for no bound.
        """
        self._disable_fast_path()
        self._given_capacity = capacity
        self._capacity = self._rows_that_fit()
        return self._settle()

    @synchronized
    def prepare_arrivals(self, joined: Joined, most: int) -> Arrivals:
        """Return where threads write rows without the lock; see `Arrivals` for the arguments, which
        are the same for all of them."""
        if self.arrivals is None:
            self.arrivals: Any = Arrivals(joined, most)
        arrivals: Arrivals = self.arrivals
        return arrivals

    @synchronized
    def open_arrivals(self, writer: object) -> Collection[Waker]:
        """Take in rows that a thread writes without the lock, from now on.

        Args:
            writer: stands for the thread.
        """
        self._disable_fast_path()
        self._writers.append(writer)
        return self._settle()

    @synchronized
    def collect(self) -> tuple[Collection[Waker], list[PackedRow]]:
        """Take in what has arrived. A writer calls this when the limit is reached.

        Returns:
            The wakers; and the rows for which there is no room: the caller enqueues them, also
            those of other threads.
        """
        self._disable_fast_path()
        wakers = self._settle()
        arrivals = self.arrivals
        return wakers, arrivals.take(len(arrivals.rows)) if arrivals.rows else []

    @synchronized
    def close_arrivals(self, writer: object) -> Collection[Waker]:
        """Note that a thread writes no more; it has collected its rows."""
        self._disable_fast_path()
        if writer in self._writers:
            self._writers.remove(writer)
        return self._settle()

    @synchronized
    def disable_claims(self) -> None:
        """Let batches leave their rows inside, where they count, until they are complete.

        As for a storage that cannot give rows early, a batch must not be larger than the capacity.
        A batch that accepts fewer rows is complete, too, if the bytes leave no room for more.
        """
        self._disable_fast_path()
        self._claims_disabled, self._progressive = True, False
        self._settle()

    @synchronized
    def restore_grant(self, attempt: Take, columns: Columns) -> None:
        """Restore a grant from before this machine was made; the storage is still empty.

        Args:
            attempt: a new attempt for as many rows.
            columns: the rows that its owner holds.
        """
        self.storage.put_many(columns, 0, attempt.n)
        self.storage.hold(attempt.held, attempt.n)
        self._enqueued += attempt.n
        attempt.host, attempt.state = self, GRANTED
        self._granted[attempt] = None

    @synchronized
    def restore_rows(self, columns: Columns, n: int) -> None:
        """Restore rows from before this machine was made; no attempt waits yet.

        They may exceed the bounds, in rows and in bytes: they went in one after another, and some
        were taken out and given back. All of them go in.

        Args:
            columns: the rows.
            n: how many.
        """
        self._disable_fast_path()
        self.storage.put_many(columns, 0, n)
        self._enqueued += n
        self._set_bounds()

    # The moves. All of them run under the lock.

    def _flush(self, wakers: dict[Waker, None]) -> None:
        """Let attempts proceed until none can; add the wakers to wake."""
        enqueues, dequeues = self._enqueues, self._dequeues
        # An attempt leaves its line in the step after its end. If Ctrl-C strikes between the two,
        # the next move finds an ended attempt at the head, and `_advance_enqueue` or
        # `_advance_dequeue` lets it leave then.
        while True:
            while enqueues and self._advance_enqueue(next(iter(enqueues)), wakers):
                enqueues.popitem(False)
            # Closed once the last enqueue from before `close` is in. Only from here on may a
            # dequeue find the queue at its end, so the check is between the two loops.
            if self._state is CLOSING and not enqueues and not self._places:
                self._state = CLOSED
            claimed, moved = self._claimed, False
            while dequeues and self._advance_dequeue(next(iter(dequeues)), wakers):
                dequeues.popitem(False)
                moved = True
            if not enqueues or not (moved or self._claimed > claimed):
                break  # no dequeue has freed room for the next enqueue
        if self._state is CLOSED and self._granted and dequeues:
            self._fail_self_waits(wakers)
        until_closed = self._wait_lists.until_closed
        while until_closed and self._wait_is_over(next(iter(until_closed)), wakers):
            until_closed.popitem(False)

    def _no_longer_granted(self) -> Collection[Waker]:
        """Finish a move in which granted rows have left for good: the dequeues behind them may have
        waited only in case they came back."""
        return self._settle() if self._state is CLOSED and self._dequeues else ()

    def _fail_self_waits(self, wakers: dict[Waker, None]) -> None:
        """Fail the dequeues behind the first one that would wait for their own borrowers.

        What these do then decides about the first one.
        """
        dequeues = self._dequeues
        for attempt in list(dequeues)[1:]:
            if attempt.state is PENDING and self._waits_for_itself(attempt):
                del dequeues[attempt]
                self._fail_out_of_range(attempt, 0, wakers)

    def _settle(self) -> dict[Waker, None]:
        """Finish a change: let attempts proceed and set the bounds; return the wakers to wake."""
        wakers: dict[Waker, None] = {}
        if self._writers:
            self._take_in_arrivals()
        self._flush(wakers)
        self._set_bounds()
        if self._writers:
            self._take_in_late_arrivals(wakers)
        return wakers

    def _take_in_late_arrivals(self, wakers: dict[Waker, None]) -> None:
        """Take in what came while a dequeue began to wait.

        A writer appends a row and then compares with the limit, without the lock. One that has done
        both before the limit was set does not call `collect` for its row.
        """
        while self._dequeues and len(self.arrivals.rows) >= self.arrivals.limit:
            before = self._enqueued
            self._take_in_arrivals()
            if self._enqueued == before:
                return  # there is no room, and their writers wait for it
            self._flush(wakers)
            self._set_bounds()

    def _advance_enqueue(self, attempt: Any, wakers: dict[Waker, None]) -> bool:
        """Let the first enqueue in line proceed; return whether it leaves the line."""
        if attempt.state is not PENDING:
            # It has failed; or Ctrl-C struck before it left the line. If its row was in by then,
            # nobody may have notified its owner.
            if attempt.state is DONE:
                self._finish(attempt, DONE, wakers)
            return True
        n = self._rows_to_enter(attempt)
        # Rows enter in the order of the grants. A place is a grant whose row is still outside, so
        # until it is committed only attempts that commit behind it may be granted another one.
        if n < 1 or (self._places and not self._may_join_places(attempt)):
            return False
        try:
            if type(attempt) is PutMany:
                self._insert_rows(attempt, n)
                if attempt.done < attempt.n:
                    return False  # it stays at the head: no other row comes between its rows
            elif self._in_two_steps(attempt):
                if self._brings_sizes:
                    self._wait_lists.give_place(attempt, self.storage.weight_of(attempt.row))
                else:
                    self._places[attempt] = 0
                self._finish(attempt, GRANTED, wakers)
                return True
            else:
                self._insert_row(attempt)
        except Exception as error:
            # Out of memory, say. The attempt fails, not the thread that makes the move for it.
            reraise_if_from_signal_handler(error)
            self._fail(attempt, error, wakers)
        else:
            self._finish(attempt, DONE, wakers)
        return True

    def _advance_dequeue(self, attempt: Take, wakers: dict[Waker, None]) -> bool:
        """Let the first dequeue in line proceed; return whether it leaves the line.

        1. If there are enough rows, it gets them.
        2. From a closed queue it gets the rest if it accepts fewer rows; otherwise it fails. It
           waits, though, while others hold rows that may come back.
        3. After its deadline it gets what is there, or else the next row.
        4. Otherwise it waits and claims rows.
        """
        if attempt.state is not PENDING:
            return True  # Ctrl-C struck after it had ended and before it left the line
        try:
            if not attempt.held.count:  # else Ctrl-C interrupted a move that had given it its rows
                available = self._available()
                if available >= attempt.n:
                    n: Any = attempt.n
                elif attempt.single and self._state is not CLOSED:
                    n = None  # as in `_rows_for`: it has no row, and more may come
                else:
                    n = self._rows_for(attempt, available)
                if n is None:
                    if self._progressive and not attempt.single:
                        self._claim_for(attempt)
                    return False
                # It leaves the line, and its claim ends: the rows are out in a moment, or belong to
                # the dequeue behind it, which makes a claim of its own.
                claimed, self._claimed = self._claimed, 0
                if n == 0:
                    self._fail_out_of_range(attempt, claimed, wakers)
                    return True
                if attempt.peeks:
                    self._finish(attempt, DONE, wakers)
                    return True
                if attempt.single:
                    self.storage.hold_one(attempt.held)
                else:
                    self.storage.hold(attempt.held, n)
        except Exception as error:
            reraise_if_from_signal_handler(error)
            self._fail(attempt, error, wakers)
            return True
        if attempt.leased:
            # Granted even if its owner makes this call: the owner commits when it has used the
            # rows, or has let other tasks run.
            is_granted = self._in_two_steps(attempt)
            if is_granted:
                self._granted[attempt] = None
            self._finish(attempt, GRANTED if is_granted else DONE, wakers)
        elif attempt is self._beginning:
            attempt.state = DONE  # its owner makes this call: there is nobody to notify
        else:
            waker: Any = attempt.waker
            if waker.two_step:
                self._granted[attempt] = None
                attempt.state = GRANTED
            else:
                attempt.state = DONE
            notify = waker.notify  # what follows is `_finish`, for this type of attempt alone
            notify(attempt)
            wakers[waker] = None
        return True

    def _rows_for(self, attempt: Take, available: int) -> int | None:
        """Return how many rows the first dequeue in line gets, though fewer are available than it
        asks for; 0: it fails; None: it waits."""
        if self._state is CLOSED and self._no_rows_can_return(attempt, available):
            if not attempt.up_to or not self.storage.size:
                return 0
            if self._eager:
                # As in TensorFlow: the rows that the batch has drawn go back, and are drawn again.
                self.storage.release(attempt.held)
            return self.storage.size
        is_over = attempt.expired or self._bytes_block_enqueue(attempt)
        return available if is_over and available > 0 else None

    def _bytes_block_enqueue(self, attempt: Take) -> bool:
        """Return whether an enqueue waits that the bytes keep out, so that a batch that leaves its
        rows inside would wait for it in vain."""
        has_room = not (self._claims_disabled and self._brings_sizes)
        return not has_room and attempt.up_to and bool(self._enqueues) and not self._places

    def _claim_for(self, attempt: Take) -> None:
        """Claim the available rows for the first dequeue in line, a batch, which waits.

        1. Claimed rows do not count as inside, so other callers get their room at once.
        2. The claim never shrinks while this dequeue waits, but by rows that go back
           (`_remove_attempt`).
        3. Rows that arrive on the fast path are claimed at the start of the next slow move
           (`_disable_fast_path`). That is early enough: until then no code reads the claim.
        """
        self._claimed = max(self._claimed, self._available())
        if self._eager:
            self.storage.claim(self._claimed)
        else:
            self.storage.expect(attempt.n)

    def _may_proceed(self, attempt: Any) -> bool:
        """Return whether any attempt may proceed because this one has begun to wait.

        A batch claims rows and so frees room (see `begin`); an enqueue may get a place beside its
        waker's.
        """
        return attempt.side is ENQUEUE and (
            attempt.n > 1 or bool(self._places) or self._claims_disabled
        )

    def _wait_is_over(self, attempt: Attempt, wakers: dict[Waker, None]) -> bool:
        if type(attempt) is UntilDone:
            return self._join_is_over(attempt, wakers)
        if self._state is not CLOSED:
            return False
        self._finish(attempt, DONE, wakers)
        return True

    def _end_joins(self, wakers: dict[Waker, None]) -> None:
        """End the joins that need not wait any more.

        `_flush` does not: only few moves can end a join, and all others would pay for the question.
        """
        joins = self._wait_lists.until_done
        while joins and self._wait_is_over(next(iter(joins)), wakers):
            joins.popitem(False)

    def _join_is_over(self, attempt: Attempt, wakers: dict[Waker, None]) -> bool:
        """Let a join end, if it need not wait; return whether it leaves the line.

        A failure that closed the queue ends it in any case: what the producer could not put in is
        not done. A queue closed in the ordinary way ends no join, since consumers go on.
        """
        if attempt.state is not PENDING:
            return True  # Ctrl-C struck after it had ended and before it left the line
        unfinished = self._enqueued - self._finished
        if self._has_failed():
            error = join_error(self.kind, self.name, unfinished)
            error.__cause__ = self._cause
            self._fail(attempt, error, wakers)
        elif unfinished:
            return False
        else:
            self._finish(attempt, DONE, wakers)
        return True

    def _ends_at_once(self, attempt: Attempt) -> bool:
        """Return whether an attempt that is about to begin would end without waiting."""
        # The same conditions as in `_advance_enqueue` and `_advance_dequeue`, asked without a
        # change: a caller that may not wait must leave the queue as it was.
        if isinstance(attempt, Put | PutMany):
            is_next = not (self._enqueues or self._places) and self._room() >= attempt.n
            if is_next and self._brings_sizes:
                return self._rows_within_bytes(attempt, attempt.n) == attempt.n
            return is_next
        if not isinstance(attempt, Take):
            if type(attempt) is UntilDone:
                return self._enqueued == self._finished or self._has_failed()
            return self._state is CLOSED
        if self._dequeues:
            return self._state is CLOSED and self._waits_for_itself(attempt)
        available = self._available()
        if self._state is CLOSED and self._no_rows_can_return(attempt, available):
            return True
        return available >= (1 if attempt.expired else attempt.n)

    def _may_join_places(self, attempt: Put | PutMany) -> bool:
        """Return whether an enqueue may be granted a place while other places are unused."""
        if not (isinstance(attempt, Put) and self._in_two_steps(attempt)):
            return False
        return attempt.waker is next(reversed(self._places)).waker  # any: all are of one waker

    def _in_two_steps(self, attempt: Attempt) -> bool:
        """Return whether the owner might be cancelled before it learns of the grant.

        It cannot while the owner itself makes this call: then grant and commit are one step. The
        owner of a lease is on another machine, whatever thread makes the call.
        """
        waker: Any = attempt.waker  # not None: only an owner that is calling may have no waker
        return attempt.leased or (attempt is not self._beginning and waker.two_step)

    def _fail_out_of_range(self, attempt: Take, claimed: int, wakers: dict[Waker, None]) -> None:
        self.storage.release(attempt.held)
        size = self.storage.size
        error = out_of_range_error(
            self.kind, self.name, requested=attempt.n, remaining=size, held=claimed
        )
        error.__cause__ = self._cause
        self._fail(attempt, error, wakers)

    def _disable_fast_path(self) -> None:
        """Disable the fast path until the bounds are set: a signal handler may run before that."""
        self._bound_in, self._bound_out = -1, INFINITY  # first: the rest reads the storage's size
        if self._standby_put is not None or self._standby_take is not None:
            self._admit_standby()
        if self._batch_waits:  # rows that came by the fast path meanwhile belong to that batch
            self._claimed = self._claims()
        self._batch_waits = self._progressive  # the safe answer until `_set_bounds`

    def _insert_row(self, attempt: Put) -> None:
        """Put its row in. A handler's exception must not let it go in twice."""
        before = len(self.storage)
        put = self._put
        try:
            put(attempt.row)
            self._enqueued, attempt.state = self._enqueued + 1, DONE
        except BaseException:
            # A handler may have raised after the storage had the row. The attempt is still at the
            # head, and pending, so the next move would put the row in again.
            if attempt.state is PENDING and len(self.storage) > before:
                self._enqueued, attempt.state = self._enqueued + 1, DONE
            raise

    def _insert_rows(self, attempt: PutMany, n: int) -> None:
        before = len(self.storage)
        try:
            self.storage.put_many(attempt.columns, attempt.done, attempt.done + n)
        except BaseException:
            # Count the rows that are in: the handler's exception must not let them go in twice.
            n = len(self.storage) - before
            attempt.done += n
            self._enqueued += n
            raise
        attempt.done += n
        self._enqueued += n

    def _remove_attempt(self, attempt: Attempt) -> None:
        if attempt is self._wait_lists.first_dequeue():
            self._claimed = 0  # its claimed rows are free again
        self._wait_lists.remove(attempt)

    def _release_rows(self, attempt: Attempt) -> None:
        """Release what an attempt that ends early holds or has reserved."""
        if isinstance(attempt, Take):
            if attempt.held.count:
                self.storage.restore(attempt.held)
        elif isinstance(attempt, PutMany):
            self.storage.discard(attempt.columns, attempt.done)

    def _finish(self, attempt: Attempt, state: AttemptState, wakers: dict[Waker, None]) -> None:
        """Record the end of an attempt, and notify its waker unless the owner makes this call."""
        attempt.state = state
        if attempt is not self._beginning and attempt.waker is not None:
            attempt.waker.notify(attempt)
            wakers[attempt.waker] = None

    def _fail(self, attempt: Attempt, error: BaseException, wakers: dict[Waker, None]) -> None:
        attempt.error = error
        self._release_rows(attempt)
        self._finish(attempt, FAILED, wakers)

    def _closed_error(self, attempt: Put | PutMany | None = None) -> QueueClosedError:
        error = closed_error(self.kind, self.name, attempt)
        error.__cause__ = self._cause
        return error

    def _set_bounds(self) -> None:
        """Compute how full the storage may be for the fast path in and out.

        1. No fast path at all while enqueues wait, since they go first, or while rows are back,
           since those go out first. No fast path in if rows bring their sizes.
        2. While no dequeue waits: in below the capacity, if the queue is open and there are no
           places; out above the number of rows that must remain.
        3. While dequeues wait: no fast path out, since they go first. In, it ends one row before
           the first dequeue is complete, or at once if that must see each row. Arriving rows are
           claimed, so the capacity is no bound, except where nothing can be claimed.
        """
        if self._dequeues:
            head = next(iter(self._dequeues))
            self._batch_waits = self._progressive and not head.single
        else:
            head = None
            self._batch_waits = False
        bound_in: float = -1
        bound_out: float = INFINITY
        if not (self._enqueues or self._returned):
            is_open = self._state is OPEN and not self._places and not self._brings_sizes
            if head is None:
                bound_in = self._capacity if is_open else -1
                bound_out = 0 if self._state is CLOSED else self._keep
            elif is_open:
                waits_for_each = self._eager or head.expired
                bound_in = 0 if waits_for_each else self._keep + head.n - 1
                if not self._progressive:
                    bound_in = min(bound_in, self._limit())
        if self._writers:
            bound_in = self._set_limits(bound_in)
        self._bound_in, self._bound_out = bound_in, bound_out
        if self.observers:
            self._call_observers()

    def _set_limits(self, bound_in: float) -> float:
        """Compute how many rows the writers may keep; return the bound of the fast path in.

        4. They keep fewer rows than the first dequeue lacks. While it waits, the fast path in ends
           as many rows earlier as they may have.
        """
        # While none waits, as many as fit. Without a fast path in, each row has to be collected.
        lacking = bound_in - len(self.storage) + bool(self._dequeues)
        limit = max(1, int(min(lacking, self.arrivals.most)))
        self.arrivals.limit = limit
        if self._dequeues:
            bound_in -= limit - 1
        return bound_in
