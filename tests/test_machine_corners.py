"""Corners of the machine that mutation testing found no test for; see `docs/reliability.md`."""

from __future__ import annotations

import asyncio

import pytest

from aioqueue import QueueFull, sync
from aioqueue.attempts import Put, PutMany, Take
from aioqueue.machine import Machine
from tests.test_machine import DONE, GRANTED, PENDING, Lane, begun, machine_of, rows_of


def gathered(n: int, *rows: int) -> tuple[Machine, Take]:
    """A queue of two, and a batch in line that holds some rows already, since they did not fit."""
    machine = machine_of(capacity=2)
    take = begun(machine, Take(n, up_to=True))
    machine.begin(PutMany(list(rows), len(rows)), Lane())
    assert take.held.count == 2
    return machine, take


def test_a_hurried_batch_has_what_it_holds_and_what_is_inside() -> None:
    machine, take = gathered(9, 1, 2, 3)
    machine.hurry(take)
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
    machine.hurry(first)
    assert first.state is GRANTED
    take = begun(machine, Take(9, up_to=True))
    machine.begin(PutMany([1, 2, 3], 3), Lane())
    assert take.held.count == 2
    machine.close()
    assert take.state is GRANTED
    assert rows_of(machine, take) == [1, 2, 3]


@pytest.mark.parametrize("kind", ["row", "batch", "enqueue"])
def test_what_was_granted_is_done_at_the_commit(kind: str) -> None:
    machine = machine_of(capacity=1)
    attempt = Put(7) if kind == "enqueue" else Take(1, single=kind == "row")
    if kind == "enqueue":
        machine.begin(Put(0), Lane())
    begun(machine, attempt)
    machine.begin(Take(1) if kind == "enqueue" else Put(1), Lane())
    assert attempt.state is GRANTED
    machine.commit(attempt)
    assert attempt.state is DONE


def test_waits_add_up() -> None:
    machine = machine_of(capacity=1)
    for seconds in (2.0, 3.0):
        take = begun(machine, Take(1))
        machine.begin(Put(1), Lane())
        machine.commit(take, seconds)
        machine.begin(Put(1), Lane())
        put = begun(machine, Put(2))
        machine.begin(Take(1), Lane())
        machine.commit(put, 2 * seconds)
        machine.begin(Take(1), Lane())
    assert machine.statistics().dequeue_wait == 5.0
    assert machine.statistics().enqueue_wait == 10.0


def test_who_says_nothing_has_not_waited() -> None:
    machine = machine_of(capacity=1)
    take = begun(machine, Take(1))
    machine.begin(Put(1), Lane())
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
