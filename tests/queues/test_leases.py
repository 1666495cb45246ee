"""Leases of loops: what the machine decides about rows that a borrower may give back."""

from __future__ import annotations

import threading
from itertools import chain
from random import Random
from typing import Any

import pytest

from aioqueue import CancelledError, OutOfRangeError, QueueEmpty, sync
from tests.kit.worlds import spin_until


def filled(size: int, *, is_closed: bool = False) -> Any:
    queue = sync.FIFOQueue(100)
    queue.enqueue_many(list(range(size)))
    if is_closed:
        queue.close()
    return queue


def rest_of(queue: Any) -> list[Any]:
    return [queue.dequeue() for _ in range(queue.size())]


def begun(target: Any) -> tuple[threading.Thread, list[Any]]:
    """Call something in a thread; returns the thread, and what comes of it."""
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(target())
        except Exception as error:
            found.append(type(error))

    thread = threading.Thread(target=call)
    thread.start()
    return thread, found


def wait_for_takers(queue: Any, count: int) -> None:
    spin_until(lambda: queue.statistics().waiting_dequeues == count)


def test_all_rows_go_back_before_anyone_takes_one() -> None:
    queue = filled(4)
    leases = queue._leases()
    for number in range(4):
        leases.take(number)
    thread, found = begun(lambda: queue.dequeue_many(2))
    wait_for_takers(queue, 1)
    leases.commit([1])
    leases.give_back()
    thread.join()
    assert found == [[0, 2]]
    assert rest_of(queue) == [3]


def test_the_record_counts_them_as_granted() -> None:
    queue = filled(5)
    leases = queue._leases()
    for number in range(3):
        leases.take(number)
    leases.commit([0])
    record = queue.statistics()
    assert (record.size, record.granted, record.dequeued, record.claimed) == (2, 2, 1, 0)
    leases.give_back()
    record = queue.statistics()
    assert (record.size, record.granted, record.dequeued) == (4, 0, 1)


def test_what_is_taken_when_the_loop_is_over_stays() -> None:
    queue = filled(3)
    leases = queue._leases()
    leases.give_back()
    with pytest.raises(CancelledError):
        leases.take(0)
    assert rest_of(queue) == [0, 1, 2]


def test_a_lease_that_waited_is_one_too() -> None:
    queue = filled(0)
    leases = queue._leases()
    thread, found = begun(lambda: leases.take(0))
    wait_for_takers(queue, 1)
    queue.enqueue("row")
    thread.join()
    assert found == ["row"]
    assert queue.statistics().granted == 1
    leases.give_back()
    assert rest_of(queue) == ["row"]


def test_the_owner_does_not_wait_for_itself_whatever_it_calls() -> None:
    queue = filled(2, is_closed=True)
    leases = queue._leases()
    assert [leases.take(0), leases.take(1)] == [0, 1]
    thread, found = begun(queue.dequeue)
    wait_for_takers(queue, 1)
    for call in (queue.dequeue, queue.dequeue_nowait, lambda: queue.dequeue_many(2)):
        with pytest.raises(OutOfRangeError):
            call()
    with pytest.raises(OutOfRangeError):
        leases.take(2)
    leases.commit([0, 1])
    thread.join()
    assert found == [OutOfRangeError]


def test_another_thread_waits_while_a_lease_may_be_returned() -> None:
    queue = filled(1, is_closed=True)
    leases = queue._leases()
    leases.take(0)
    thread, found = begun(queue.dequeue_nowait)
    thread.join()
    assert found == [QueueEmpty]


def test_borrowers_that_wait_for_each_other_end_one_by_one() -> None:
    queue = filled(2, is_closed=True)
    one, other = queue._leases(), queue._leases()
    taken = [begun(lambda: one.take(0)), begun(lambda: other.take(0))]
    for thread, _ in taken:
        thread.join()
    first, first_report = begun(lambda: one.take(1))
    wait_for_takers(queue, 1)
    second, second_report = begun(lambda: other.take(1))
    first.join()
    assert first_report == [OutOfRangeError]
    wait_for_takers(queue, 1)  # the other waits for what the first one does now
    one.give_back()
    second.join()
    assert second_report == taken[0][1]


def check_sharing(seed: int) -> None:
    """Loops that share a closed queue, each with a remainder, end; nothing is lost."""
    draw = Random(seed)
    queue = filled(draw.randint(0, 30), is_closed=True)
    size = queue.size()
    used: list[list[int]] = [[] for _ in range(3)]

    def loop(at: int, keep: int, leaves_at: int) -> None:
        leases = queue._leases()
        held: list[tuple[int, int]] = []
        number = 0
        try:
            while True:
                held.append((number, leases.take(number)))
                number += 1
                if len(held) > keep:
                    key, row = held.pop(0)
                    used[at].append(row)
                    leases.commit([key])
                if number == leaves_at:
                    return  # what it holds goes back
        except OutOfRangeError:
            used[at] += [row for _, row in held]
            leases.commit([key for key, _ in held])
        finally:
            leases.give_back()

    plans = [(at, draw.randint(0, 4), draw.choice((0, 0, draw.randint(1, 9)))) for at in range(3)]
    threads = [threading.Thread(target=loop, args=plan) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), f"seed {seed}: {plans}"
    assert sorted([*chain(*used), *rest_of(queue)]) == list(range(size)), f"seed {seed}"
    assert queue.statistics().granted == 0


@pytest.mark.parametrize("seed", range(20))
def test_loops_that_share_a_closed_queue(seed: int) -> None:
    check_sharing(seed)


@pytest.mark.slow
def test_many_loops_that_share_a_closed_queue() -> None:
    for seed in range(1000, 2500):
        check_sharing(seed)
