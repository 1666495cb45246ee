"""Corners of the machine that mutation testing found no test for; see `docs/mutation.md`."""

from __future__ import annotations

import asyncio
import linecache
import signal
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import QueueFull, sync
from aioqueue.core import machine as machine_module
from aioqueue.core.attempts import Attempt, Put, PutMany, Take
from aioqueue.core.elements.component import Component
from aioqueue.core.machine import Machine
from aioqueue.core.storage.blocks import BlockStorage
from aioqueue.core.storage.objects import ObjectStorage
from aioqueue.errors import QueueClosedError
from aioqueue.worlds import waker
from aioqueue.worlds.waker import enter
from proofs.explorer import FakeLock
from tests.core.test_machine import (
    DONE,
    FAILED,
    GRANTED,
    PENDING,
    WITHDRAWN,
    Waker,
    begun,
    drained,
    failing,
    machine_of,
    rows_of,
)
from tests.kit.invariants import violations
from tests.system.test_locks import PAIRS, Handler, HandlerError, InjectedError, InterruptedLock


def gathered(n: int, *rows: int) -> tuple[Machine, Take]:
    """A queue of two, and a batch in line that has claimed more rows than fit."""
    machine = machine_of(capacity=2)
    take = begun(machine, Take(n, up_to=True))
    machine.begin(PutMany(list(rows), len(rows)), Waker())
    assert machine.size == 0
    return machine, take


def test_an_expired_batch_has_what_it_holds_and_what_is_inside() -> None:
    machine, take = gathered(9, 1, 2, 3)
    machine.expire(take)
    assert take.state is GRANTED
    assert rows_of(machine, take) == [1, 2, 3]


def test_a_last_batch_may_hold_as_many_rows_as_are_inside() -> None:
    machine, take = gathered(9, 1, 2, 3, 4)
    machine.close()
    assert take.state is GRANTED
    assert rows_of(machine, take) == [1, 2, 3, 4]


def test_a_last_batch_does_not_wait_for_rows_that_might_come_back() -> None:
    machine = machine_of(0, capacity=2)
    first = Take(2, up_to=True)
    begun(machine, first)
    machine.expire(first)
    assert first.state is GRANTED
    take = begun(machine, Take(9, up_to=True))
    machine.begin(PutMany([1, 2, 3], 3), Waker())
    assert machine.size == 0
    machine.close()
    assert take.state is GRANTED
    assert rows_of(machine, take) == [1, 2, 3]


@pytest.mark.parametrize("kind", ["row", "batch", "enqueue"])
def test_what_was_granted_is_done_at_the_commit(kind: str) -> None:
    machine = machine_of(capacity=1)
    attempt = Put(7) if kind == "enqueue" else Take(1, single=kind == "row")
    if kind == "enqueue":
        machine.begin(Put(0), Waker())
    begun(machine, attempt)
    machine.begin(Take(1) if kind == "enqueue" else Put(1), Waker())
    assert attempt.state is GRANTED
    machine.commit(attempt)
    assert attempt.state is DONE


def test_waits_add_up() -> None:
    machine = machine_of(capacity=1)
    for seconds in (2.0, 3.0):
        take = begun(machine, Take(1))
        machine.begin(Put(1), Waker())
        machine.commit(take, seconds)
        machine.begin(Put(1), Waker())
        put = begun(machine, Put(2))
        machine.begin(Take(1), Waker())
        machine.commit(put, 2 * seconds)
        machine.begin(Take(1), Waker())
    assert machine.statistics().dequeue_wait == 5.0
    assert machine.statistics().enqueue_wait == 10.0


def test_a_wait_counts_when_it_ends_whatever_becomes_of_a_lease() -> None:
    machine = machine_of(capacity=1)
    take = begun(machine, Take(1, leased=True))
    machine.begin(Put(1), Waker())
    assert take.state is GRANTED
    machine.count_wait(take, 2.0)
    assert (machine.statistics().dequeue_wait, machine.statistics().dequeued) == (2.0, 0)
    machine.commit(take, 3.0)
    assert (machine.statistics().dequeue_wait, machine.statistics().dequeued) == (2.0, 1)


def test_an_end_without_a_duration_counts_no_wait() -> None:
    machine = machine_of(capacity=1)
    take = begun(machine, Take(1))
    machine.begin(Put(1), Waker())
    machine.commit(take)
    machine.withdraw(begun(machine, Take(1)))
    assert machine.statistics().dequeue_wait == 0.0


def test_an_enqueue_that_may_not_wait_does_not_overtake_a_place() -> None:
    """A task was granted a place and has not run on; what a thread enqueues now would be first."""
    queue = sync.FIFOQueue(2)
    queue.enqueue_many([1, 2])

    async def overtaken() -> list[int]:
        task = asyncio.create_task(queue.aio.enqueue(3))
        while not queue.statistics().waiting_enqueues:
            await asyncio.sleep(0)
        taken = [queue.dequeue_nowait(), queue.dequeue_nowait()]
        with pytest.raises(QueueFull):
            queue.enqueue_nowait(4)
        await task
        queue.enqueue_nowait(4)
        return [*taken, queue.dequeue_nowait(), queue.dequeue_nowait()]

    assert asyncio.run(overtaken()) == [1, 2, 3, 4]


def test_a_blocking_batch_that_may_not_wait_takes_what_is_there() -> None:
    """In the thread of a running event loop nothing may wait, and this need not."""
    queue = sync.FIFOQueue(4, "int64", ())
    queue.enqueue(1)

    async def take() -> list[int]:
        return list(queue.dequeue_up_to(3, max_wait=0).tolist())

    assert asyncio.run(take()) == [1]


def test_a_withdrawn_batch_leaves_what_it_held_in_front() -> None:
    machine, take = gathered(9, 1, 2, 3)
    assert take.state is PENDING
    machine.withdraw(take)
    whole = Take(3)
    machine.begin(whole, None)
    assert rows_of(machine, whole) == [1, 2, 3]


def test_a_machine_with_default_arguments() -> None:
    machine = Machine(ObjectStorage(), FakeLock())
    assert machine.try_enqueue(1)
    assert machine.try_dequeue() == 1
    machine.close()
    put = Put(2)
    machine.begin(put, None)
    assert isinstance(put.error, QueueClosedError)
    assert str(put.error) == "Queue 'queue' is closed"


def test_a_batch_is_copied_unless_it_is_given_away() -> None:
    machine = machine_of(storage=BlockStorage((Component("x", "int64", ()),), 4))
    columns = [np.arange(2)]
    assert machine.try_enqueue_many(columns, 2)
    columns[0][:] = -1
    taken = machine.try_dequeue_many(2)
    assert taken is not None
    assert taken[0].tolist() == [0, 1]


def test_another_lock_guards_from_now_on() -> None:
    machine, lock = machine_of(1), FakeLock()
    machine.guard_with(lock)
    with lock:
        assert machine.is_entered_here()
    assert not machine.is_entered_here()
    assert drained(machine) == [1]


def test_rows_claimed_by_a_waiting_batch_are_not_out() -> None:
    machine, _ = gathered(9, 1, 2, 3)
    counts = machine.statistics()
    assert (counts.enqueued, counts.size, counts.dequeued) == (3, 0, 0)


def test_an_expired_batch_has_what_it_holds_though_nothing_is_inside() -> None:
    machine, storage = failing(capacity=2)
    take = begun(machine, Take(9, up_to=True))
    machine.begin(PutMany([1, 2], 2), Waker())
    storage.fails = {"put"}
    put = Put(3)
    machine.begin(put, Waker())
    assert put.state is FAILED
    machine.expire(take)
    assert take.state is GRANTED
    assert rows_of(machine, take) == [1, 2]


def test_the_last_row_that_a_batch_needs_does_not_come_in_unseen() -> None:
    machine = machine_of(capacity=3)
    take = begun(machine, Take(5))
    machine.begin(PutMany([1, 2, 3, 4], 4), Waker())
    assert machine.size == 0
    assert not machine.try_enqueue(5)
    machine.begin(Put(5), Waker())
    assert take.state is GRANTED
    assert rows_of(machine, take) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("singly", [True, False])
def test_claimed_rows_stay_in_the_storage_however_many_there_are(singly: bool) -> None:
    machine = machine_of(capacity=3)
    take = begun(machine, Take(9))
    for rows in [[1], [2], [3], [4]] if singly else [[1, 2], [3, 4]]:
        attempt = Put(rows[0]) if singly else PutMany(list(rows), len(rows))
        machine.begin(attempt, Waker())
        assert take.held.count == 0
    assert (machine.size, len(machine.storage)) == (0, 4)


def test_all_rows_leave_by_the_fast_path_after_close() -> None:
    machine = machine_of(1, 2, keep=1)
    machine.close()
    assert [machine.try_dequeue(), machine.try_dequeue()] == [1, 2]


# Ctrl-C in the middle of a move.


class InterruptedWaker(Waker):
    """A waker that Ctrl-C interrupts once."""

    interrupted = False

    def notify(self, attempt: Attempt, /) -> None:
        super().notify(attempt)
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt


def test_a_dequeue_that_could_not_leave_the_line_does_not_hold_up_the_next() -> None:
    machine = machine_of()
    first, second = begun(machine, Take(1), InterruptedWaker()), begun(machine, Take(1))
    with pytest.raises(KeyboardInterrupt):
        machine.begin(PutMany([1, 2], 2), Waker())
    machine.begin(Put(3), Waker())
    assert (first.state, second.state) == (GRANTED, GRANTED)
    assert (rows_of(machine, first), rows_of(machine, second)) == ([1], [2])
    assert drained(machine) == [3]


class InterruptedStorage(ObjectStorage):
    """A storage that Ctrl-C interrupts once, after a row or a batch has entered."""

    interrupted = False

    def put(self, row: Any, /) -> None:
        self.append(row)
        if row == "struck" and not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt

    def put_many(self, columns: Any, start: int, stop: int) -> None:
        super().put_many(columns, start, stop)
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt


@pytest.mark.parametrize(("capacity", "inside"), [(9, [1, 2, 3]), (2, [1, 2])])
def test_rows_inserted_before_ctrl_c_are_counted(capacity: int, inside: list[int]) -> None:
    """They do not enter again: the withdrawn attempt reports how many are inside."""
    machine = machine_of(capacity=capacity, storage=InterruptedStorage())
    put = PutMany([1, 2, 3], 3)
    with pytest.raises(KeyboardInterrupt):
        machine.begin(put, Waker())
    assert put.done == machine.statistics().enqueued == len(inside)
    machine.withdraw(put)
    assert put.done == len(inside)
    assert drained(machine) == inside


def interrupted_at(line: int, move: Callable[..., object], *arguments: Any, **options: Any) -> bool:
    """Raise KeyboardInterrupt at the n-th line of a move; return whether the move had that many."""
    lines = count()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != machine_module.__file__:
            return None
        # Lines at which Python looks for no signals: the end of a block, and a mere `try`.
        source = linecache.getline(machine_module.__file__, frame.f_lineno).strip()
        quiet = source in ("with self._lock:", "try:")
        if event == "line" and not quiet and next(lines) == line:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        move(*arguments, **options)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def granted(side: str) -> tuple[Machine, Attempt]:
    machine = machine_of(0, capacity=1)
    if side == "enqueue":
        put = begun(machine, Put(1))
        machine.begin(Take(1), Waker())
        return machine, put
    machine.begin(Take(1), Waker())
    take = begun(machine, Take(1))
    machine.begin(Put(1), Waker())
    return machine, take


has_lines = pytest.mark.skipif(
    aioqueue.__compiled__, reason="a compiled move has no lines at which a handler could strike"
)


@has_lines
@pytest.mark.parametrize(
    ("side", "move", "may_be_inside"),
    [
        ("enqueue", "commit", [[], [1]]),
        ("enqueue", "withdraw", [[]]),
        ("dequeue", "commit", [[1]]),
        ("dequeue", "withdraw", [[], [1]]),
    ],
)
def test_an_interrupted_move_can_be_followed_by_a_withdrawal(
    side: str, move: str, may_be_inside: list[list[int]]
) -> None:
    """Whatever line is interrupted: no row is duplicated, and no place is leaked."""
    for line in count():
        machine, attempt = granted(side)
        assert attempt.state is GRANTED
        if not interrupted_at(line, getattr(machine, move), attempt):
            assert line > 3
            break
        assert not machine.is_entered_here()
        machine.withdraw(attempt)
        assert attempt.state in (WITHDRAWN, DONE)
        assert drained(machine) in may_be_inside
        put = Put(2)
        machine.begin(put, None)
        assert put.state is DONE


@has_lines
@pytest.mark.parametrize("cancelled", [True, False])
def test_an_interrupted_close_leaves_granted_places_to_be_committed(cancelled: bool) -> None:
    for line in count():
        machine, put = granted("enqueue")
        if not interrupted_at(line, machine.close, cancel_pending_enqueues=cancelled):
            assert line > 3
            break
        machine.commit(put)
        assert put.state in (DONE, FAILED)
        assert drained(machine) == ([1] if put.state is DONE else [])
        machine.close()
        assert machine.state.value == "closed"


@has_lines
def test_an_interrupted_commit_of_a_dequeue_can_be_made_again() -> None:
    for line in count():
        machine, take = granted("dequeue")
        if not interrupted_at(line, machine.commit, take):
            assert line > 3
            break
        machine.commit(take)
        assert take.state is DONE
        assert drained(machine) == []


@has_lines
def test_an_interrupted_close_is_completed_by_what_comes_next() -> None:
    seen = set()
    for line in count():
        machine = machine_of(1, 2)
        if not interrupted_at(line, machine.close):
            break
        before = machine.state
        machine.begin(Take(1), None)
        seen.add((before.value, machine.state.value))
    assert seen == {("open", "open"), ("closing", "closed"), ("closed", "closed")}


def test_another_callers_row_enters_once_despite_ctrl_c() -> None:
    """A dequeue inserts the row of a waiting enqueue, and is interrupted then."""
    machine = machine_of(1, capacity=1, storage=InterruptedStorage())
    waker = Waker(two_step=False)
    put, take = begun(machine, Put("struck"), waker), Take(1)
    with pytest.raises(KeyboardInterrupt):
        machine.begin(take, Waker())
    machine.withdraw(take)
    assert put.state is DONE
    assert put in waker.notified
    assert machine.statistics().enqueued == 2
    assert drained(machine) == [1, "struck"]


@has_lines
def test_an_enqueue_interrupted_before_its_notification_is_notified_later() -> None:
    for line in count():
        machine, waker = machine_of(1, capacity=1), Waker(two_step=False)
        put, take = begun(machine, Put(2), waker), Take(1)
        if not interrupted_at(line, machine.begin, take, Waker()):
            assert line > 3
            break
        machine.withdraw(take)
        assert drained(machine) == [1, 2]
        assert put.state is DONE
        assert put in waker.notified


class FaultyStorage(ObjectStorage):
    """A storage that a handler interrupts, and that may then run out of memory."""

    def __init__(self, handler: Handler, *, fails: bool) -> None:
        super().__init__()
        self.handler = handler
        self.fails = fails

    def put(self, row: Any, /) -> None:
        self._inject()
        self.append(row)

    def take(self) -> Any:
        self._inject()
        return self.popleft()

    def _inject(self) -> None:
        self.handler("in the storage")
        if self.fails:
            self.handler.last = MemoryError()
            raise self.handler.last


@pytest.mark.parametrize("kind", [InjectedError, HandlerError])
@pytest.mark.parametrize("fails", [False, True], ids=["well", "failing"])
@pytest.mark.parametrize("way", ["in", "out"])
@pytest.mark.parametrize("injected", PAIRS, ids=str)
def test_a_handler_may_raise_anywhere_on_the_fast_path(
    way: str, injected: tuple[int, ...], fails: bool, kind: type[BaseException]
) -> None:
    """As for `synchronized`: the lock is free, the last exception comes out, and all is counted."""
    lock, handler = InterruptedLock(), Handler(injected, kind)
    storage = FaultyStorage(handler, fails=fails)
    machine = Machine(storage, lock)
    if way == "out":
        storage.append(1)
    lock.handler = handler
    try:
        made = machine.try_enqueue(1) if way == "in" else machine.try_dequeue() == 1
        assert made
    except (InjectedError, HandlerError, MemoryError) as error:
        assert error is handler.last
    else:
        assert handler.last is None
    lock.handler = lambda moment: None
    assert not lock.is_held()
    if way == "in":
        assert machine.statistics().enqueued == len(storage)


class SignalledStorage(ObjectStorage):
    """A storage that a signal interrupts while a row leaves."""

    def popleft(self) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return super().popleft()


def expire(number: int, frame: object) -> None:
    raise TimeoutError("the program's own")


class Expiring:
    def __call__(self, number: int, frame: object) -> None:
        expire(number, frame)


@pytest.mark.parametrize("handler", [expire, partial(expire), Expiring(), Expiring().__call__])
def test_a_signal_handlers_exception_does_not_fail_the_moved_attempt(
    handler: Any,
) -> None:
    """A `TimeoutError` of the program's own concerns the main thread, not a consumer that waits."""
    machine = Machine(SignalledStorage(), FakeLock())
    take = begun(machine, Take(1, True))
    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(TimeoutError, match="own"):
            machine.begin(Put(1), Waker())
        assert take.state is PENDING
    finally:
        signal.signal(signal.SIGTERM, before)


class TakenLock(FakeLock):
    """A lock that another thread holds, for some time."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals
        self.blocked = 0

    def acquire(self, blocking: bool = True, /) -> bool:
        if not blocking and self.refusals:
            self.refusals -= 1
            return False
        self.blocked += blocking
        return super().acquire(blocking)


@pytest.mark.parametrize(("refusals", "ways", "blocked"), [(0, 0, 0), (3, 3, 0), (1000, 100, 1)])
def test_the_fast_path_yields_to_the_lock_holder(
    monkeypatch: pytest.MonkeyPatch, refusals: int, ways: int, blocked: int
) -> None:
    """For some time; then it waits for the lock, so that it does not try for ever."""
    lock = TakenLock(refusals)
    given: list[float] = []
    monkeypatch.setattr(waker, "sleep", given.append)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    machine = Machine(ObjectStorage(), lock, enter=enter)
    assert machine.try_enqueue(1)
    assert (len(given), lock.blocked, lock.depth) == (ways, blocked, 0)
    assert machine.try_dequeue() == 1
    assert (lock.blocked, lock.depth) == (2 * blocked, 0)


@pytest.mark.parametrize("size", [0, 2])
def test_a_peek_takes_nothing(size: int) -> None:
    machine = machine_of(*range(size), capacity=4)
    peek = Take(1, peeks=True)
    machine.begin(peek, Waker())
    assert peek.state is (DONE if size else PENDING)
    machine.begin(Put(7), Waker())
    assert peek.state is DONE  # in no two steps: nothing is granted that could go back
    assert (machine.size, peek.held.count) == (size + 1, 0)
    assert machine.statistics().dequeued == 0
    machine.withdraw(peek)
    assert drained(machine) == [*range(size), 7]
    assert not violations(machine)


def test_a_peek_ends_with_a_closed_queue() -> None:
    machine = machine_of(capacity=4)
    peek = begun(machine, Take(1, peeks=True))
    machine.close()
    assert peek.state is FAILED


def test_a_batch_that_is_held_back_counts_until_it_is_complete() -> None:
    machine = machine_of(capacity=3)
    machine.disable_claims()
    take = begun(machine, Take(3, up_to=True))
    for row in range(2):
        assert machine.try_enqueue(row)
        assert (machine.size, take.state) == (row + 1, PENDING)
    machine.begin(Put(2), Waker())
    assert (machine.size, take.state) == (0, GRANTED)
    machine.withdraw(take)
    assert drained(machine) == [0, 1, 2]
    assert not violations(machine)


def test_a_batch_that_is_held_back_ends_with_its_queue() -> None:
    machine = machine_of(capacity=3)
    machine.disable_claims()
    take = begun(machine, Take(3, up_to=True))
    machine.begin(Put(1), Waker())
    machine.close()
    assert take.state is GRANTED
    assert rows_of(machine, take) == [1]
