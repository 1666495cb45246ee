"""Calls whose attempt another thread ends just after it has begun, before its owner sleeps."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

import aioqueue
from aioqueue import OutOfRangeError, sync
from aioqueue.core.attempts import Attempt, Put
from aioqueue.worlds.waker import deliver
from tests.kit.worlds import PATIENCE, core_of, needs_trio
from tests.worlds.test_scopes import Caller

A_MOMENT = 0.1
"""Seconds that a thread is held up between a move and its wakes."""


class Overtaken:
    """A queue's machine, where another thread makes a move as soon as an attempt waits.

    That thread is held up before it delivers the wakes: until `is_over`, or for a moment.
    """

    def __init__(self, machine: Any, move: Callable[[Any], Any]) -> None:
        self.machine, self.move = machine, move
        self.has_moved, self.is_over = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.run)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)

    def begin(self, attempt: Attempt, waker: Any) -> Any:
        wakers = self.machine.begin(attempt, waker)
        assert attempt.is_pending
        self.thread.start()
        assert self.has_moved.wait(PATIENCE)
        return wakers

    def run(self) -> None:
        wakers = self.move(self.machine)
        self.has_moved.set()
        self.is_over.wait(A_MOMENT)
        deliver(wakers)


def run_in_trio(call: Callable[[], Any]) -> Any:
    import trio

    return trio.run(call)


def run_in_asyncio(call: Callable[[], Any]) -> Any:
    async def main() -> Any:
        return await call()

    return asyncio.run(main())


def run_in_thread(call: Callable[[], Any]) -> Any:
    return Caller(call).outcome.result(PATIENCE)


WORLDS = {
    "asyncio": (run_in_asyncio, sync, "aio"),
    "trio": (run_in_trio, sync, "aio"),
    "thread": (run_in_thread, aioqueue, "sync"),
    "main thread": (lambda call: call(), aioqueue, "sync"),
}
"""How a call is made, by which face; and where a queue is made that has only the other one yet."""

Overtake = Callable[..., Any]


@pytest.fixture(
    params=[pytest.param(name, marks=needs_trio if name == "trio" else ()) for name in WORLDS]
)
def world(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def fifo(world: str) -> Callable[..., Any]:
    """Makes a queue for `overtake`."""
    make: Callable[..., Any] = WORLDS[world][1].FIFOQueue
    return make


@pytest.fixture
def overtake(world: str) -> Overtake:
    """Makes a call of a queue, in each world, which another thread overtakes by a move."""
    run, _, face = WORLDS[world]

    def overtake(queue: Any, move: Callable[[Any], Any], method: str, *arguments: Any) -> Any:
        core = core_of(queue)
        core.machine = overtaken = Overtaken(core.machine, move)
        call = getattr(getattr(queue, face), method)  # that face is made now
        core.machine = overtaken.machine
        try:
            return run(lambda: call(*arguments))
        finally:
            overtaken.is_over.set()
            overtaken.thread.join(PATIENCE)

    return overtake


def test_an_element_is_not_returned_after_its_caller_ended(fifo: Any, overtake: Overtake) -> None:
    """A trio run that ended before the wake came gave back what its task had returned with."""
    queue = fifo(1)
    element = overtake(queue, lambda machine: machine.begin(Put("element"), None), "dequeue")
    assert (element, len(queue)) == ("element", 0)
    assert queue.statistics().dequeued == 1


def test_nor_are_the_last_rows(fifo: Any, overtake: Overtake) -> None:
    queue = fifo(4, dtypes="int64", shapes=())
    queue.enqueue_nowait(1)
    queue.enqueue_nowait(2)
    batch = overtake(queue, lambda machine: machine.close(), "dequeue_up_to", 3)
    assert (batch.tolist(), len(queue)) == ([1, 2], 0)


@pytest.mark.slow(every=3)
def test_a_call_that_did_not_sleep_does_not_seem_to_wait_for_ever(
    fifo: Any, overtake: Overtake
) -> None:
    taken, failed = fifo(1), fifo(1)
    overtake(taken, lambda machine: machine.begin(Put("element"), None), "dequeue")
    with pytest.raises(OutOfRangeError):
        overtake(failed, lambda machine: machine.close(), "dequeue")
    for queue in (taken, failed):
        machine = core_of(queue).machine
        waits = machine.waits()
        assert (waits.dequeues_since, sum(waits.dequeue_waits.counts)) == ([], 1)
        gc.collect()
        attempts = [one for one in gc.get_objects() if isinstance(one, Attempt)]
        assert not any(one.host is machine for one in attempts), "it keeps one that has ended"
