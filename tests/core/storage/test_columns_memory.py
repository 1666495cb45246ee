"""Calls that are given up keep no memory, however large their batches, however often it happens."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import anyio
import numpy as np
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.core.attempts import Take
from aioqueue.testing import wait_until_waiting
from aioqueue.worlds.waker import ThreadWaker
from tests.kit.worlds import PATIENCE, TaskWorld, core_of

ROW = 1024
ROWS = 1000
CAPACITY = 100


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def most_kept(step: Callable[[], object], times: int = CAPACITY) -> int:
    """The bytes that are there after some steps, over those after the first ones."""
    for _ in range(3):
        step()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(times):
        step()
    return tracemalloc.get_traced_memory()[0] - before


def queue_of(kind: str, face: Any = sync) -> Any:
    arguments: dict[str, tuple[Any, ...]] = {
        "FIFOQueue": (CAPACITY, "uint8", (ROW,)),
        "RandomShuffleQueue": (CAPACITY, 0, "uint8", (ROW,)),
        "PriorityQueue": (CAPACITY, "uint8", [(ROW,)]),
    }
    return getattr(face, kind)(*arguments[kind])


def batch_of(kind: str, n: int) -> Any:
    rows = np.ones((n, ROW), np.uint8)
    return (np.zeros(n, np.int64), rows) if kind == "PriorityQueue" else rows


KINDS = ["FIFOQueue", "RandomShuffleQueue", "PriorityQueue"]


@pytest.mark.parametrize("kind", KINDS)
def test_batches_whose_tasks_are_cancelled(kind: str, task_world: TaskWorld) -> None:
    """Also where that is before the first row could go in."""
    rows = batch_of(kind, ROWS)

    async def body() -> None:
        queue = queue_of(kind, aioqueue)

        async def step() -> None:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await queue.enqueue_many(rows)

        for _ in range(3):
            await step()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(30):
            await step()
        assert tracemalloc.get_traced_memory()[0] - before < ROWS * ROW

    task_world.run(body)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_for_which_there_is_no_room_in_time(kind: str) -> None:
    queue = queue_of(kind)
    queue.enqueue_many(batch_of(kind, CAPACITY))
    rows = batch_of(kind, ROWS)

    def step() -> None:
        with pytest.raises(TimeoutError):
            queue.enqueue_many(rows, timeout=0)

    assert most_kept(step, 20) < ROWS * ROW
    assert queue.size() == CAPACITY


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pending", [0, 3])
def test_batches_that_a_closed_queue_refuses(kind: str, pending: int) -> None:
    """Also those that had begun to wait before, all of which are given up at the close."""
    queue = queue_of(kind)
    queue.enqueue_many(batch_of(kind, CAPACITY))
    rows = batch_of(kind, ROWS)

    def refused() -> None:
        with pytest.raises(aioqueue.QueueClosedError):
            queue.enqueue_many(rows)

    threads = [threading.Thread(target=refused) for _ in range(pending)]
    for thread in threads:
        thread.start()
    wait_until_waiting(queue, enqueues=pending)
    before = tracemalloc.get_traced_memory()[0]
    queue.close(cancel_pending_enqueues=True)
    for thread in threads:
        thread.join(PATIENCE)
    # What these had is used again, so that nothing more is needed for others.
    assert most_kept(refused, 20) < ROWS * ROW
    if pending:
        assert tracemalloc.get_traced_memory()[0] - before < ROWS * ROW


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copy", [True, False])
def test_batches_that_go_in_by_a_few_rows(kind: str, copy: bool) -> None:
    """The rows that are in keep no others."""
    if not copy and kind != "FIFOQueue":
        pytest.skip("rows of a batch that was given away stay in it until they are taken")
    queue = queue_of(kind)
    queue.enqueue_many(batch_of(kind, CAPACITY))

    def step() -> None:
        with pytest.raises(TimeoutError):
            queue.enqueue_many(batch_of(kind, ROWS), copy=copy, timeout=0)
        queue.dequeue()

    assert most_kept(step) < 4 * ROWS * ROW


def test_batches_that_wait_and_are_given_up() -> None:
    """A row that came for them does not keep the memory of all that were expected."""
    queue = queue_of("FIFOQueue")
    queue.enqueue_many(batch_of("FIFOQueue", CAPACITY // 2))
    numbers = iter(range(10**6))

    def step() -> None:
        take = Take(CAPACITY + next(numbers) % 7)
        core_of(queue).machine.begin(take, ThreadWaker())
        queue.enqueue(np.ones(ROW, np.uint8))
        core_of(queue).machine.withdraw(take)
        queue.dequeue()

    assert most_kept(step) < 10 * CAPACITY * ROW


class Token:
    """Something that can be watched."""


@pytest.mark.parametrize("kind", ["FIFOQueue", "RandomShuffleQueue"])
@pytest.mark.parametrize("taken", [0, 5], ids=["none in", "a few in"])
def test_objects_that_did_not_go_in(kind: str, taken: int) -> None:
    """Nor those that went in and have left again."""
    arguments = (ROWS, 0) if kind == "RandomShuffleQueue" else (ROWS,)
    queue = getattr(sync, kind)(*arguments, object, ())
    queue.enqueue_many([None] * (ROWS - taken))
    rows = [Token() for _ in range(ROWS)]
    watched = [weakref.ref(row) for row in rows]
    with suppress(TimeoutError):
        queue.enqueue_many(rows, timeout=0)
    del rows
    queue.dequeue_many(ROWS)
    gc.collect()
    assert [one for one in watched if one() is not None] == []


def test_a_shelf_that_is_empty_is_no_larger_than_the_capacity() -> None:
    queue = queue_of("RandomShuffleQueue")

    def step() -> None:
        thread = threading.Thread(target=queue.enqueue_many, args=(batch_of("FIFOQueue", ROWS),))
        thread.start()
        for _ in range(ROWS // CAPACITY):
            queue.dequeue_many(CAPACITY)
        thread.join()

    before = tracemalloc.get_traced_memory()[0]
    step()
    assert tracemalloc.get_traced_memory()[0] - before < ROWS * ROW // 2
