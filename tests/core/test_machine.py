"""The machine, move by move: what each returns, and what it leaves behind when something fails.

`tests.core.test_machine_exhaustive` tries every order of events; here are the cases that it cannot
make: storages that fail, Ctrl-C, batches above the capacity, priorities, shuffling, causes and
waits.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest

from aioqueue import sync
from aioqueue.core.attempts import (
    Attempt,
    AttemptState,
    Put,
    PutMany,
    QueueState,
    Take,
    UntilClosed,
    UntilDone,
)
from aioqueue.core.elements.element_spec import ElementSpec
from aioqueue.core.elements.philox import PhiloxWords
from aioqueue.core.elements.spec import Columns, Row
from aioqueue.core.fast_path import NOTHING
from aioqueue.core.machine import Machine
from aioqueue.core.storage.blocks import BlockStorage
from aioqueue.core.storage.heap import HeapStorage
from aioqueue.core.storage.objects import ObjectStorage
from aioqueue.core.storage.protocol import Held, Storage
from aioqueue.core.storage.shelf import ObjectShelf
from aioqueue.core.storage.shuffle import ShuffleStorage
from aioqueue.errors import DeadlineExceededError, OutOfRangeError, QueueClosedError
from proofs.explorer import FakeLock
from tests.kit.invariants import violations
from tests.kit.worlds import core_of

PENDING = AttemptState.PENDING
GRANTED = AttemptState.GRANTED
DONE = AttemptState.DONE
FAILED = AttemptState.FAILED
WITHDRAWN = AttemptState.WITHDRAWN


class Waker:
    """A waker that notes what was notified."""

    def __init__(self, *, two_step: bool = True) -> None:
        self.two_step = two_step
        self.notified: list[Attempt] = []

    def notify(self, attempt: Attempt, /) -> None:
        self.notified.append(attempt)

    def wake(self, *, from_anywhere: bool = False) -> Collection[Attempt]:
        """Nobody sleeps here."""
        return ()

    def is_dead(self) -> bool:
        return False


def machine_of(
    *rows: Any, capacity: int | None = None, keep: int = 0, storage: Storage | None = None
) -> Machine:
    """A machine with some rows inside."""
    machine = Machine(
        ObjectStorage() if storage is None else storage,
        FakeLock(),
        capacity=capacity,
        keep=keep,
        kind="TestQueue",
        name="q",
    )
    for row in rows:
        assert machine.try_enqueue(row)
    return machine


def begun(machine: Machine, attempt: Attempt, waker: Waker | None = None) -> Any:
    """Begin an attempt that is expected to wait."""
    assert list(machine.begin(attempt, waker or Waker())) == []
    assert attempt.state is PENDING
    return attempt


def rows_of(machine: Machine, take: Take) -> list[Row]:
    return list(machine.storage.columns(take.held))


def drained(machine: Machine) -> list[Row]:
    """Everything that is inside, in the order in which it leaves."""
    rows: list[Row] = []
    while machine.size:
        take = Take(1, single=True)
        machine.begin(take, None)
        assert take.state is DONE
        rows.append(take.held.single)
    return rows


# The fast path.


def test_the_fast_path_respects_capacity_and_min_after_dequeue() -> None:
    machine = machine_of(1, 2, capacity=3, keep=1)
    assert machine.try_enqueue(3)
    assert not machine.try_enqueue(4)
    assert not machine.try_enqueue_many([4, 5], 2)
    assert machine.try_dequeue_many(3) is None
    assert machine.try_dequeue_many(2) == [1, 2]
    assert machine.try_dequeue() is NOTHING
    assert machine.try_enqueue_many([4, 5], 2)
    assert machine.try_dequeue() == 3


def test_the_fast_path_is_disabled_while_others_wait() -> None:
    machine = machine_of(1, capacity=1)
    begun(machine, Put(2))
    assert machine.try_dequeue() is NOTHING
    assert machine.try_dequeue_many(1) is None
    other = machine_of()
    begun(other, Take(1))
    assert not other.try_enqueue(1)


def test_rows_below_what_a_batch_needs_come_in_quickly_and_are_its_own() -> None:
    machine = machine_of()
    take = begun(machine, Take(3))
    assert machine.try_enqueue(1)
    assert machine.try_enqueue(2)
    assert machine.size == 0
    assert not machine.try_enqueue(3)
    machine.begin(Put(3), Waker())
    assert rows_of(machine, take) == [1, 2, 3]


def test_an_expired_batch_sees_the_first_row() -> None:
    machine = machine_of()
    take = begun(machine, Take(3, up_to=True))
    assert list(machine.expire(take)) == []
    assert not machine.try_enqueue(1)
    wakers = machine.begin(Put(1), Waker())
    assert list(wakers) == [take.waker]
    assert rows_of(machine, take) == [1]


@pytest.mark.parametrize("state", ["done", "withdrawn", "granted"])
def test_an_expiry_comes_too_late(state: str) -> None:
    machine = machine_of()
    take = begun(machine, Take(2, up_to=True))
    if state == "withdrawn":
        machine.withdraw(take)
    else:
        machine.begin(PutMany([1, 2], 2), Waker())
    if state == "done":
        machine.commit(take)
    before = take.state
    assert list(machine.expire(take)) == []
    assert take.state is before
    assert not take.expired


class Interrupting(ObjectStorage):
    """A storage that Ctrl-C interrupts."""

    def _inject(self, *_: Any) -> Any:
        raise KeyboardInterrupt

    put = _inject
    take = _inject


def test_ctrl_c_on_the_fast_path_releases_the_lock() -> None:
    machine = machine_of(storage=Interrupting())
    with pytest.raises(KeyboardInterrupt):
        machine.try_enqueue(1)
    assert not machine.is_entered_here()
    machine.storage.put_many([1], 0, 1)
    with pytest.raises(KeyboardInterrupt):
        machine.try_dequeue()
    assert not machine.is_entered_here()
    assert machine.statistics().enqueued == 0


class InterruptedLock(FakeLock):
    """A lock that Ctrl-C interrupts: before it is acquired, or after it was released."""

    __slots__ = ("moment",)

    def __init__(self, moment: str) -> None:
        super().__init__()
        self.moment = moment

    def acquire(self, blocking: bool = True, /) -> bool:
        if self.moment == "before":
            raise KeyboardInterrupt
        return super().acquire()

    def release(self) -> None:
        super().release()
        if self.moment == "after":
            raise KeyboardInterrupt


@pytest.mark.parametrize("moment", ["before", "after"])
def test_ctrl_c_beside_the_lock_does_not_release_it_twice(moment: str) -> None:
    lock = InterruptedLock(moment)
    machine = Machine(ObjectStorage(), lock)
    for quick in (lambda: machine.try_enqueue(1), machine.try_dequeue):
        with pytest.raises(KeyboardInterrupt):
            quick()
        assert lock.depth == 0


def test_is_entered_here_in_the_middle_of_a_move() -> None:
    seen = []

    class Peeking(Waker):
        def notify(self, attempt: Attempt, /) -> None:
            seen.append(machine.is_entered_here())

    machine = machine_of()
    begun(machine, Take(1), Peeking())
    assert not machine.is_entered_here()
    machine.begin(Put(1), Waker())
    assert seen == [True]
    assert not machine.is_entered_here()


# Attempts that cannot wait.


def test_an_attempt_without_a_waker_is_made_at_once_or_not_at_all() -> None:
    machine = machine_of(1, capacity=2)
    assert not machine.try_dequeue_many(2)
    for attempt in (PutMany([2, 3], 2), Take(2), UntilClosed()):
        assert list(machine.begin(attempt, None)) == []
        assert attempt.state is WITHDRAWN
    assert machine.statistics().waiting_dequeues == 0
    put = PutMany([2], 1)
    machine.begin(put, None)
    assert put.state is DONE
    take = Take(2)
    machine.begin(take, None)
    assert rows_of(machine, take) == [1, 2]


def test_an_attempt_without_a_waker_overtakes_no_one() -> None:
    full = machine_of(1, capacity=1)
    begun(full, PutMany([2, 3], 2))
    put = Put(4)
    full.begin(put, None)
    assert put.state is WITHDRAWN
    empty = machine_of()
    begun(empty, Take(2))
    assert empty.try_enqueue(1)
    take = Take(1)
    empty.begin(take, None)
    assert take.state is WITHDRAWN


def test_an_attempt_without_a_waker_wakes_those_that_can_proceed() -> None:
    machine = machine_of(1, capacity=1)
    put = begun(machine, Put(2))
    take = Take(1)
    assert list(machine.begin(take, None)) == [put.waker]
    assert rows_of(machine, take) == [1]
    assert put.state is GRANTED


def test_an_attempt_without_a_waker_learns_that_the_queue_is_closed() -> None:
    machine = machine_of()
    machine.close()
    take, until = Take(1), UntilClosed()
    machine.begin(take, None)
    machine.begin(until, None)
    assert isinstance(take.error, OutOfRangeError)
    assert until.state is DONE
    put = Put(1)
    machine.begin(put, None)
    assert str(put.error) == "TestQueue 'q' is closed"


# Grant and commit.


def test_places_of_different_wakers_come_one_after_the_other() -> None:
    machine = machine_of(1, 2, capacity=2)
    first, second = Waker(), Waker()
    a, b, c = Put("a"), Put("b"), Put("c")
    for put, waker in ((a, first), (b, first), (c, second)):
        begun(machine, put, waker)
    assert list(machine.begin(Take(2), Waker())) == [first]
    assert (a.state, b.state, c.state) == (GRANTED, GRANTED, PENDING)
    take = begun(machine, Take(1))
    assert list(machine.commit(a)) == [take.waker]
    # There is room now, but b has not put its row in yet.
    assert (machine.size, c.state) == (0, PENDING)
    assert list(machine.commit(b)) == [second]
    assert c.state is GRANTED
    machine.commit(c)
    assert drained(machine) == ["b", "c"]


def test_a_batch_waits_until_the_places_before_it_are_used() -> None:
    machine = machine_of(1, 2, capacity=2)
    put, many = Put("a"), PutMany(["b", "c"], 2)
    for attempt in (put, many):
        begun(machine, attempt)
    machine.begin(Take(2), Waker())
    assert (put.state, many.done) == (GRANTED, 0)
    assert list(machine.commit(put)) == []
    assert many.done == 1


def test_a_withdrawn_place_goes_to_the_next_caller() -> None:
    machine = machine_of(1, capacity=1)
    first, second = begun(machine, Put("a")), begun(machine, Put("b"))
    machine.begin(Take(1), Waker())
    assert list(machine.withdraw(first)) == [second.waker]
    assert (first.state, second.state) == (WITHDRAWN, GRANTED)
    machine.commit(second)
    assert drained(machine) == ["b"]


def test_a_batch_behind_a_withdrawn_dequeue_gets_the_rows_that_come() -> None:
    machine = machine_of(capacity=1)
    first = begun(machine, Take(1, True))
    batch = begun(machine, Take(2))
    put = PutMany(["a", "b"], 2)
    assert list(machine.withdraw(first)) == []
    assert not violations(machine)
    assert list(machine.begin(put, Waker())) == [batch.waker]
    assert rows_of(machine, batch) == ["a", "b"]


def test_a_row_back_from_a_withdrawn_dequeue_serves_the_next_one() -> None:
    machine = machine_of()
    first, second = begun(machine, Take(1, True)), begun(machine, Take(1, True))
    machine.begin(Put("a"), Waker())
    assert first.state is GRANTED
    assert list(machine.withdraw(first)) == [second.waker]
    assert second.held.single == "a"


def test_a_put_serves_the_first_dequeue_in_line() -> None:
    machine = machine_of(capacity=1)
    first, second = begun(machine, Take(1, True)), begun(machine, Take(1, True))
    put = Put("a")
    wakers = machine.serve(put)
    assert wakers is not None
    assert list(wakers) == [first.waker]
    assert (put.state, first.state, second.state) == (DONE, GRANTED, PENDING)
    assert not violations(machine)


def test_a_put_serves_no_caller_where_it_would_have_to_wait_or_others_go_first() -> None:
    assert machine_of().serve(Put("a")) is None  # nobody waits
    closed = machine_of("a", keep=1)
    begun(closed, Take(1, True))
    closed.close()
    assert closed.serve(Put("b")) is None
    behind = machine_of("a", capacity=1)
    other = begun(behind, Put("b"))
    behind.begin(Take(1), None)  # its place is not filled yet
    begun(behind, Take(1, True))
    assert other.state is GRANTED
    put = Put("c")
    assert behind.serve(put) is None
    assert put.state is PENDING
    assert put.host is None


def test_an_interrupted_put_lets_the_dequeue_proceed_when_it_is_withdrawn() -> None:
    class InterruptsHold(ObjectStorage):
        interrupts = True

        def hold_one(self, held: Held) -> None:
            if self.interrupts:
                self.interrupts = False
                raise KeyboardInterrupt
            super().hold_one(held)

    machine = machine_of(storage=InterruptsHold())
    take = begun(machine, Take(1, True))
    put = Put("a")
    with pytest.raises(KeyboardInterrupt):
        machine.serve(put)
    assert list(machine.withdraw(put)) == [take.waker]
    assert (put.state, take.held.single) == (DONE, "a")
    assert not violations(machine)


def test_if_pending_withdraws_only_pending_attempts() -> None:
    machine = machine_of()
    take = begun(machine, Take(1), Waker(two_step=False))
    machine.begin(Put(1), Waker())
    assert list(machine.withdraw(take, if_pending=True)) == []
    assert rows_of(machine, take) == [1]


def test_a_dequeue_that_was_done_can_still_be_undone() -> None:
    machine = machine_of()
    take = begun(machine, Take(1), Waker(two_step=False))
    machine.begin(Put(1), Waker())
    counts = machine.statistics()  # its owner has not run on yet
    assert (take.state, counts.dequeued, counts.granted) == (DONE, 0, 1)
    machine.withdraw(take)
    counts = machine.statistics()
    assert (take.state, counts.dequeued, counts.granted) == (WITHDRAWN, 0, 0)
    assert machine.try_dequeue() is NOTHING
    assert drained(machine) == [1]


@pytest.mark.parametrize("attempt", [Put(1), UntilClosed()])
def test_what_is_done_and_holds_nothing_is_left_as_it_is(attempt: Attempt) -> None:
    machine = machine_of()
    machine.begin(attempt, Waker())
    machine.close()
    assert list(machine.withdraw(attempt)) == []
    assert attempt.state is DONE


def test_a_dequeue_that_was_done_counts_as_such_when_its_owner_runs_on() -> None:
    machine = machine_of()
    take = begun(machine, Take(1), Waker(two_step=False))
    machine.begin(Put(1), Waker())
    machine.commit(take)
    counts = machine.statistics()
    assert (counts.dequeued, counts.granted, counts.unfinished) == (1, 0, 1)


def test_a_row_that_is_dropped_is_done_with() -> None:
    """Nobody gets it, so nobody could say so."""
    machine = machine_of()
    value = object()
    assert machine.try_enqueue(value)
    join = begun(machine, UntilDone(), waker := Waker())
    assert list(machine.drop(object())) == []
    assert list(machine.drop(value)) == [waker]
    assert join.state is DONE
    counts = machine.statistics()
    assert (counts.enqueued, counts.dequeued, counts.unfinished) == (1, 1, 0)


def test_a_task_done_that_was_interrupted_is_made_up_for() -> None:
    """A handler may raise between the count and the wakes."""
    machine = machine_of()
    assert machine.try_enqueue(1)
    join = begun(machine, UntilDone(), waker := Waker())
    machine._finished += 1
    assert list(machine.end_joins()) == [waker]
    assert join.state is DONE


def test_a_commit_of_what_has_ended_changes_nothing() -> None:
    machine = machine_of(1)
    take = Take(1)
    machine.begin(take, Waker())
    assert list(machine.commit(take)) == []
    assert machine.statistics().dequeued == 1


def test_what_waits_in_a_waker_is_known() -> None:
    machine = machine_of(capacity=1)
    waker, other = Waker(), Waker()
    granted = begun(machine, Take(1), waker)
    machine.begin(Put(1), Waker())
    assert machine.try_enqueue(2)
    place, waiting = begun(machine, Put(3), waker), begun(machine, Put(4), waker)
    elsewhere = begun(machine, Put(5), other)
    machine.begin(Take(1), waker)
    take, until = begun(machine, Take(1), waker), begun(machine, UntilClosed(), waker)
    assert set(machine.attempts_in(waker)) == {granted, place, waiting, take, until}
    assert machine.attempts_in(other) == [elsewhere]
    machine.commit(granted)
    machine.withdraw(until)
    assert set(machine.attempts_in(waker)) == {place, waiting, take}


# Batches in progress.


def test_a_batch_may_be_larger_than_the_capacity() -> None:
    machine = machine_of(capacity=2)
    take = begun(machine, Take(5), Waker(two_step=False))
    machine.begin(PutMany([1, 2, 3], 3), Waker())
    assert (take.state, machine.size) == (PENDING, 0)
    machine.begin(Put(4), Waker())
    wakers = machine.begin(PutMany([5, 6, 7], 3), Waker())
    assert list(wakers) == [take.waker]
    assert rows_of(machine, take) == [1, 2, 3, 4, 5]
    assert drained(machine) == [6, 7]


def test_a_large_batch_that_is_withdrawn_gives_all_back() -> None:
    machine = machine_of(capacity=2)
    take = begun(machine, Take(9))
    machine.begin(PutMany([1, 2, 3, 4, 5], 5), Waker())
    assert machine.size == 0
    machine.withdraw(take)
    assert machine.size == 5
    begun(machine, Put(6))
    assert drained(machine)[:4] == [1, 2, 3, 4]


def test_a_place_is_used_beside_a_full_batch_in_progress() -> None:
    machine = machine_of(1, capacity=1)
    put = begun(machine, Put(2))
    take = begun_wanting_more(machine, Take(3))
    assert put.state is GRANTED
    # The storage is full of the batch's row, and takes the new one all the same.
    machine.commit(put)
    assert (machine.size, len(machine.storage)) == (0, 2)
    machine.withdraw(take)
    assert drained(machine) == [1, 2]


def begun_wanting_more(machine: Machine, take: Take) -> Take:
    """Begin a dequeue that takes what there is, and so lets others in, and waits for more."""
    machine.begin(take, Waker())
    assert take.state is PENDING
    return take


def test_a_second_batch_takes_nothing_early() -> None:
    machine = machine_of()
    first, second = begun(machine, Take(2)), begun(machine, Take(2))
    machine.begin(PutMany([1, 2, 3], 3), Waker())
    assert (first.state, second.state) == (GRANTED, PENDING)
    machine.withdraw(second)
    assert drained(machine) == [3]


def test_a_later_dequeue_in_line_can_be_withdrawn() -> None:
    machine = machine_of()
    first, second = begun(machine, Take(2)), begun(machine, Take(1))
    assert machine.try_enqueue(1)
    machine.withdraw(second)
    assert machine.size == 0
    machine.begin(Put(2), Waker())
    assert rows_of(machine, first) == [1, 2]


# Closing.


def test_closing_waits_for_earlier_enqueues_and_can_be_repeated() -> None:
    machine = machine_of(1, capacity=1)
    put = begun(machine, Put(2))
    until = begun(machine, UntilClosed())
    for _ in range(2):
        assert list(machine.close()) == []
        assert machine.state is QueueState.CLOSING
    late = PutMany([3], 1)
    machine.begin(late, Waker())
    assert isinstance(late.error, QueueClosedError)
    assert (late.state, late.error.enqueued) == (FAILED, 0)
    machine.begin(Take(1), Waker())
    assert machine.state is QueueState.CLOSING
    assert set(machine.commit(put)) == {until.waker}
    assert (machine.state, until.state) == (QueueState.CLOSED, DONE)
    assert list(machine.close(cancel_pending_enqueues=True)) == []
    assert drained(machine) == [2]


def test_until_closed_can_be_withdrawn() -> None:
    machine = machine_of()
    until = begun(machine, UntilClosed())
    assert list(machine.withdraw(until, 5.0)) == []
    assert list(machine.close()) == []
    assert until.state is WITHDRAWN
    counts = machine.statistics()
    assert (counts.enqueue_wait, counts.dequeue_wait) == (0.0, 0.0)


def test_cancelled_enqueues_report_the_rows_inside_and_the_cause() -> None:
    machine = machine_of(1, capacity=2)
    cause = ValueError("no more files")
    many = begun(machine, PutMany([2, 3, 4], 3))
    put = begun(machine, Put(5))
    wakers = machine.close(cancel_pending_enqueues=True, cause=cause)
    assert set(wakers) == {many.waker, put.waker}
    assert isinstance(many.error, QueueClosedError)
    assert (many.error.enqueued, many.error.queue) == (1, "q")
    assert str(many.error) == (
        "TestQueue 'q' was closed while this enqueue was waiting; 1 of its 3 rows are in"
    )
    assert str(put.error) == "TestQueue 'q' was closed while this enqueue was waiting"
    assert many.error.__cause__ is cause
    assert put.error is not None
    assert put.error.__cause__ is cause
    assert drained(machine) == [1, 2]


def test_the_first_cause_counts() -> None:
    machine = machine_of(1)
    first, second = ValueError("first"), ValueError("second")
    machine.close()
    machine.close(cause=first)
    machine.close(cause=second)
    take = Take(2)
    machine.begin(take, Waker())
    assert isinstance(take.error, OutOfRangeError)
    assert take.error.__cause__ is first
    assert str(take.error) == (
        "TestQueue 'q' is closed and has insufficient elements (requested 2, current size 1)"
    )
    assert (take.error.requested, take.error.remaining, take.error.held) == (2, 1, 0)
    put = Put(1)
    machine.begin(put, Waker())
    assert isinstance(put.error, QueueClosedError)
    assert put.error.__cause__ is first


def test_what_a_failed_batch_held_serves_the_next() -> None:
    machine = machine_of()
    batch, single = begun(machine, Take(4)), begun(machine, Take(1))
    assert machine.try_enqueue_many([1, 2], 2)
    machine.close()
    assert isinstance(batch.error, OutOfRangeError)
    assert (batch.error.requested, batch.error.remaining, batch.error.held) == (4, 2, 2)
    assert rows_of(machine, single) == [1]
    assert drained(machine) == [2]


def test_what_had_to_stay_inside_leaves_after_the_close() -> None:
    machine = machine_of(1, 2, keep=2)
    take = begun(machine, Take(1))
    assert list(machine.close()) == [take.waker]
    assert rows_of(machine, take) == [1]


def test_a_dequeue_from_a_closed_queue_waits_for_rows_that_may_come_back() -> None:
    machine = machine_of()
    first, second, third = (begun(machine, Take(1)) for _ in range(3))
    machine.begin(Put(1), Waker())
    assert (first.state, list(machine.close())) == (GRANTED, [])
    late = Take(1)
    machine.begin(late, None)
    assert late.state is WITHDRAWN
    assert list(machine.withdraw(first)) == [second.waker]
    assert rows_of(machine, second) == [1]
    assert list(machine.commit(second)) == [third.waker]
    assert isinstance(third.error, OutOfRangeError)


def test_a_batch_of_what_is_left_does_not_wait_for_rows_that_may_come_back() -> None:
    machine = machine_of()
    first, second = begun(machine, Take(1)), begun(machine, Take(3, up_to=True))
    machine.begin(PutMany([1, 2], 2), Waker())
    assert list(machine.close()) == [second.waker]
    assert rows_of(machine, second) == [2]
    machine.withdraw(first)
    assert drained(machine) == [1]


def test_what_was_interrupted_while_it_began_can_be_withdrawn() -> None:
    """Ctrl-C may interrupt an attempt before it is in line."""
    machine = machine_of(1, capacity=1)
    waiting = begun(machine, Put(2))
    for attempt in (Put(3), Take(2), UntilClosed()):
        assert list(machine.withdraw(attempt)) == []
        assert attempt.state is WITHDRAWN
    assert waiting.state is PENDING
    assert drained(machine) == [1]


# Waits.


def test_waits_are_counted_by_side() -> None:
    machine = machine_of(1, capacity=1)
    put = begun(machine, Put(2))
    machine.begin(Take(1), Waker())
    machine.commit(put, 1.5)
    machine.begin(Take(1), Waker())
    take = begun(machine, Take(1))
    machine.withdraw(take, 0.25)
    counts = machine.statistics()
    assert (counts.enqueue_wait, counts.dequeue_wait) == (1.5, 0.25)
    assert counts.capacity == 1
    assert machine_of().statistics().capacity is None


# Storages that fail.


class Failing(ObjectStorage):
    """A storage that runs out of memory on request."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: set[str] = set()

    def _maybe(self, what: str) -> None:
        if what in self.fails:
            raise MemoryError(what)

    def put(self, row: Row, /) -> None:
        self._maybe("put")
        self.append(row)

    def put_many(self, columns: Columns, start: int, stop: int) -> None:
        self._maybe("put_many")
        super().put_many(columns, start, stop)

    def take(self) -> Row:
        self._maybe("take")
        return self.popleft()

    def hold(self, held: Held, n: int) -> None:
        self._maybe("hold")
        super().hold(held, n)

    def hold_one(self, held: Held) -> None:
        self._maybe("hold_one")
        super().hold_one(held)

    def _remove(self, n: int, removed: list[Any]) -> None:
        self._maybe("remove")
        super()._remove(n, removed)

    def pull(self, n: int, into: Columns | None = None) -> Columns:
        self._maybe("pull")
        return super().pull(n, into)


def failing(*rows: Any, capacity: int | None = None) -> tuple[Machine, Failing]:
    storage = Failing()
    return machine_of(*rows, capacity=capacity, storage=storage), storage


def test_memory_runs_out_on_the_fast_path() -> None:
    machine, storage = failing(1)
    storage.fails = {"put", "put_many", "pull", "take"}
    for quick in (
        lambda: machine.try_enqueue(2),
        lambda: machine.try_enqueue_many([2, 3], 2),
        lambda: machine.try_dequeue_many(1),
        machine.try_dequeue,
    ):
        with pytest.raises(MemoryError):
            quick()
        assert not machine.is_entered_here()
    storage.fails.clear()
    assert machine.statistics().enqueued == 1
    assert drained(machine) == [1]


@pytest.mark.parametrize("attempt", [Put(2), PutMany([2, 3], 2)])
def test_an_enqueue_that_begins_fails_alone(attempt: Put | PutMany) -> None:
    machine, storage = failing(1)
    storage.fails = {"put", "put_many"}
    assert list(machine.begin(attempt, Waker())) == []
    assert (attempt.state, type(attempt.error)) == (FAILED, MemoryError)
    storage.fails.clear()
    assert machine.try_enqueue(4)
    assert drained(machine) == [1, 4]


def test_a_waiting_enqueue_that_fails_lets_the_next_one_proceed() -> None:
    machine, storage = failing(1, capacity=1)
    waker = Waker(two_step=False)
    many = begun(machine, PutMany([2, 3], 2), waker)
    put = begun(machine, Put(4), waker)
    storage.fails = {"put_many"}
    take = Take(1)
    assert list(machine.begin(take, Waker())) == [waker]
    assert (many.state, type(many.error), many.done) == (FAILED, MemoryError, 0)
    assert put.state is DONE
    assert rows_of(machine, take) == [1]
    assert drained(machine) == [4]


def test_a_failed_row_leaves_its_place_to_the_next_enqueue() -> None:
    machine, storage = failing(1, capacity=1)
    first, second = begun(machine, Put(2)), begun(machine, Put(3))
    machine.begin(Take(1), Waker())
    assert first.state is GRANTED
    storage.fails = {"put"}
    # The next in line must be told of the place, whatever became of this one.
    assert list(machine.commit(first)) == [second.waker]
    assert (first.state, type(first.error)) == (FAILED, MemoryError)
    storage.fails.clear()
    machine.commit(second)
    assert drained(machine) == [3]
    assert machine.statistics().enqueued == 2


@pytest.mark.parametrize("two_step", [True, False])
def test_a_dequeue_that_fails_leaves_its_rows(two_step: bool) -> None:
    machine, storage = failing()
    take = begun(machine, Take(2), Waker(two_step=two_step))
    other = begun(machine, Take(2), Waker(two_step=two_step))
    assert machine.try_enqueue(1)
    storage.fails = {"hold"}
    put = Put(2)
    assert list(machine.begin(put, Waker())) == [take.waker, other.waker]
    assert put.state is DONE
    assert [type(attempt.error) for attempt in (take, other)] == [MemoryError, MemoryError]
    storage.fails.clear()
    assert drained(machine) == [1, 2]


def test_a_dequeue_that_fails_half_way_puts_back_what_it_had() -> None:
    machine, storage = failing(1, 2, 3)
    back = Take(1)
    machine.begin(back, Waker())
    machine.withdraw(back)
    storage.fails = {"remove"}
    take = Take(3)
    machine.begin(take, Waker())
    assert isinstance(take.error, MemoryError)
    assert take.held.count == 0
    storage.fails.clear()
    assert drained(machine) == [1, 2, 3]


def test_a_single_dequeue_that_fails_leaves_its_row() -> None:
    machine, storage = failing(1)
    storage.fails = {"hold_one"}
    take = Take(1, single=True)
    machine.begin(take, Waker())
    assert isinstance(take.error, MemoryError)
    storage.fails.clear()
    assert drained(machine) == [1]


# Priorities: nothing is taken early.


def priorities(*rows: tuple[int, str], capacity: int | None = None) -> Machine:
    return machine_of(*rows, capacity=capacity, storage=HeapStorage(ObjectShelf(), typed=False))


def test_a_batch_by_priority_waits_for_all_of_its_rows() -> None:
    machine = priorities((5, "e"), (3, "c"), capacity=4)
    take = begun(machine, Take(3))
    assert machine.size == 2
    machine.begin(Put((1, "a")), Waker())
    assert rows_of(machine, take) == [(1, "a"), (3, "c"), (5, "e")]


def test_a_batch_by_priority_has_room_for_all_of_its_rows() -> None:
    """The faces refuse one of more than the capacity; but that may have been larger before."""
    machine = priorities((5, "e"), (4, "d"), capacity=3)
    take = begun(machine, Take(3))
    assert machine.resize(1) == {}
    put = Put((1, "a"))
    assert list(machine.begin(put, Waker())) == [take.waker]
    assert (put.state, take.state) == (DONE, GRANTED)
    assert machine.storage.columns(take.held) == [(1, "a"), (4, "d"), (5, "e")]
    assert machine.try_enqueue((2, "b"))
    late = begun(machine, Put((3, "c")))
    machine.close()
    assert late.state is PENDING
    assert machine.state is QueueState.CLOSING


def test_a_row_that_comes_back_is_not_ahead_of_a_smaller_one() -> None:
    machine = priorities((3, "c"))
    take = Take(1)
    machine.begin(take, Waker())
    assert machine.try_enqueue((1, "a"))
    machine.withdraw(take)
    assert machine.try_dequeue() == (1, "a")
    assert machine.try_dequeue() == (3, "c")


def test_a_batch_by_priority_in_a_hurry_takes_what_is_there() -> None:
    machine = priorities((2, "b"), (1, "a"))
    take = begun(machine, Take(3, up_to=True))
    assert list(machine.expire(take)) == [take.waker]
    assert rows_of(machine, take) == [(1, "a"), (2, "b")]


# Shuffling: rows are drawn at the moment they come, and again after a close.


def shuffled(seed: tuple[int, int], *rows: Any, keep: int = 0) -> Machine:
    return machine_of(*rows, keep=keep, storage=ShuffleStorage(ObjectShelf(), seed))


class Buffer:
    """TensorFlow 1's shuffle buffer, after section 3 of its description."""

    def __init__(self, seed: tuple[int, int], rows: Sequence[Any] = ()) -> None:
        self.words = PhiloxWords(seed)
        self.rows = list(rows)

    def draw(self) -> Any:
        index = self.words.take(1)[0] % len(self.rows)
        row = self.rows[index]
        self.rows[index] = self.rows[-1]
        self.rows.pop()
        return row


SEED = (87654321, 7)


def test_a_waiting_batch_draws_each_row_as_it_comes() -> None:
    machine, buffer = shuffled(SEED, *range(5), keep=3), Buffer(SEED, range(5))
    take = begun_wanting_more(machine, Take(4))
    drawn = [buffer.draw(), buffer.draw()]
    assert machine.size == 3
    for row in (5, 6):
        assert not machine.try_enqueue(row)
        machine.begin(Put(row), Waker())
        buffer.rows.append(row)
        drawn.append(buffer.draw())
    assert rows_of(machine, take) == drawn


def test_what_a_batch_had_drawn_is_drawn_again_after_a_close() -> None:
    machine, buffer = shuffled(SEED, *range(6), keep=2), Buffer(SEED, range(6))
    take = begun_wanting_more(machine, Take(8))
    single = begun(machine, Take(1))
    drawn = [buffer.draw() for _ in range(4)]
    machine.close()
    buffer.rows += reversed(drawn)
    assert isinstance(take.error, OutOfRangeError)
    assert (take.error.remaining, take.error.held) == (6, 4)
    assert rows_of(machine, single) == [buffer.draw()]
    assert drained(machine) == [buffer.draw() for _ in range(5)]


def test_a_batch_of_what_is_left_is_drawn_again_after_a_close() -> None:
    machine, buffer = shuffled(SEED, *range(6), keep=2), Buffer(SEED, range(6))
    take = begun_wanting_more(machine, Take(8, up_to=True))
    drawn = [buffer.draw() for _ in range(4)]
    machine.close()
    buffer.rows += reversed(drawn)
    assert rows_of(machine, take) == [buffer.draw() for _ in range(6)]


def test_what_a_withdrawn_batch_had_drawn_is_first_in_line() -> None:
    machine, buffer = shuffled(SEED, *range(5), keep=2), Buffer(SEED, range(5))
    take = begun_wanting_more(machine, Take(4))
    drawn = [buffer.draw() for _ in range(3)]
    machine.withdraw(take)
    assert machine.size == 5
    assert machine.try_dequeue_many(3) == drawn
    machine.close()
    assert drained(machine) == [buffer.draw(), buffer.draw()]


def test_a_batch_in_arrays_larger_than_the_capacity() -> None:
    spec = ElementSpec(["int64"], [()])
    machine = machine_of(capacity=2, storage=BlockStorage(spec.components, 2))
    take = begun(machine, Take(3, out=[np.zeros(3, np.int64)]))
    machine.begin(PutMany([np.arange(5)], 5), Waker())
    assert machine.storage.columns(take.held)[0].tolist() == [0, 1, 2]
    assert machine.size == 2


# What the explorer and its readers have found.


@pytest.mark.parametrize("capacity", [1, 2, 4])
def test_an_earlier_row_that_comes_back_goes_before_those_a_batch_holds(capacity: int) -> None:
    machine, waker = machine_of(capacity=capacity), Waker()
    first, batch = begun(machine, Take(1), waker), begun(machine, Take(3), waker)
    for number in range(3):  # at a small capacity, some must move into the batch's hands
        machine.begin(PutMany([number], 1), waker)
    assert first.state is GRANTED
    machine.withdraw(first)
    assert rows_of(machine, batch) == [0, 1, 2]


def test_an_enqueue_joins_the_places_of_its_waker_at_once() -> None:
    machine, waker = machine_of(1, 2, capacity=2), Waker()
    first = begun(machine, Put(3), waker)
    machine.begin(Take(2), Waker())
    second = Put(4)
    machine.begin(second, waker)
    assert (first.state, second.state) == (GRANTED, GRANTED)
    assert waker.notified == [first, second]  # so that they resume in this order
    other = begun(machine, Put(5), Waker())
    machine.commit(first)
    machine.commit(second)
    assert drained(machine)[:2] == [3, 4]
    assert other.state is GRANTED


def test_a_call_that_cannot_wait_gets_the_last_rows_while_others_hold_some() -> None:
    machine = machine_of()
    begun(machine, Take(1), Waker())
    machine.begin(PutMany([1, 2], 2), Waker())
    machine.close()
    take = Take(3, up_to=True)
    machine.begin(take, None)
    assert take.state is DONE
    assert rows_of(machine, take) == [2]


# What a queue on a cluster does before anybody uses it: it comes back.


@pytest.mark.parametrize("capacity", [None, 1, 4, 6])
def test_a_refill_is_as_if_there_had_been_no_bound_yet(capacity: int | None) -> None:
    """So there is no state after it that the explorer does not know."""
    machines = machine_of(capacity=capacity), machine_of(*range(4))
    machines[0].restore_rows([0, 1], 2)
    machines[0].restore_rows([2, 3], 2)
    machines[1].resize(capacity)
    found = [
        # The invariants say which bounds the fast path must have in a state.
        (one.statistics(), one.waits(), one.max_rows, one.state, violations(one))
        for one in machines
    ]
    assert found[0][-1] == []
    assert found[0] == found[1]
    for machine in machines:
        late = Put(4)
        machine.begin(late, Waker())
        assert (late.state is PENDING) == (capacity is not None and capacity <= 4)
        assert drained(machine)[:4] == [0, 1, 2, 3]


def test_a_refill_comes_in_whatever_its_bytes_which_count_from_then_on() -> None:
    queue = sync.FIFOQueue(None, max_bytes=16)
    columns, n = core_of(queue).spec.columns([np.full(1, number) for number in range(4)])
    late = np.full(1, 4)
    core_of(queue).machine.restore_rows(core_of(queue).prepare_columns(columns, n, copy=False), n)
    for left in (3, 2):
        queue.dequeue()
        with pytest.raises(DeadlineExceededError):
            queue.enqueue(late, timeout=0)
        assert queue.size() == left
    queue.dequeue()
    queue.enqueue(late, timeout=0)
    assert queue.dequeue_many(2) == [np.full(1, 3), late]


# Dropping what nobody wants any more.


def test_a_dropped_row_makes_room_for_the_first_waiting_enqueue() -> None:
    values = [object() for _ in range(4)]
    machine = machine_of(*values[:2], capacity=2)
    waker = Waker()
    first, second = (begun(machine, Put(value), waker) for value in values[2:])
    assert list(machine.drop(values[0])) == [waker]
    assert (first.state, second.state) == (GRANTED, PENDING)
    machine.commit(first)
    assert list(machine.drop(values[0])) == []  # it is not inside any more
    machine.withdraw(second)
    assert drained(machine) == [values[1], values[2]]


def test_a_dropped_row_is_no_longer_what_a_waiting_batch_has_claimed() -> None:
    values = [object() for _ in range(3)]
    machine = machine_of(capacity=2)
    take = begun(machine, Take(2))
    machine.begin(Put(values[0]), Waker())
    machine.drop(values[0])
    machine.begin(Put(values[1]), Waker())
    assert take.state is PENDING
    machine.begin(Put(values[2]), Waker())
    assert rows_of(machine, take) == values[1:]


def test_random_moves_with_dropped_rows_keep_the_invariants() -> None:
    rng = random.Random(11)
    for _ in range(60):
        machine = machine_of(capacity=3)
        going: list[Attempt] = []
        for _ in range(40):
            move = rng.choice(["put", "put", "take", "end", "drop"])
            if move == "put":
                going.append(Put(object()))
                machine.begin(going[-1], Waker(two_step=rng.random() < 0.5))
            elif move == "take":
                going.append(Take(rng.randrange(1, 5), up_to=rng.random() < 0.5))
                machine.begin(going[-1], Waker(two_step=rng.random() < 0.5))
            elif move == "end" and going:
                attempt = going.pop(rng.randrange(len(going)))
                ends = machine.withdraw if attempt.state is PENDING else machine.commit
                ends(attempt)
            elif move == "drop":
                storage: Any = machine.storage
                rows = list(storage)
                machine.drop(rng.choice(rows) if rows else object())
            assert violations(machine) == []
