"""Calls whose attempt another thread ends just after it has begun, before its owner sleeps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from aioqueue import OutOfRangeError, sync
from aioqueue.attempts import Attempt, Put
from aioqueue.waiting.waker import deliver
from tests.waiting.test_scopes import Caller
from tests.worlds import PATIENCE

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
    return pytest.importorskip("trio").run(call)


def run_in_asyncio(call: Callable[[], Any]) -> Any:
    async def main() -> Any:
        return await call()

    return asyncio.run(main())


def run_in_thread(call: Callable[[], Any]) -> Any:
    return Caller(call).outcome.result(PATIENCE)


WORLDS = {
    "asyncio": (run_in_asyncio, "aio"),
    "trio": (run_in_trio, "aio"),
    "thread": (run_in_thread, "sync"),
    "main thread": (lambda call: call(), "sync"),
}


@pytest.fixture(params=WORLDS)
def overtake(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes a call of a queue, in each world, which another thread overtakes by a move."""
    run, world = WORLDS[request.param]

    def overtake(queue: Any, move: Callable[[Any], Any], method: str, *arguments: Any) -> Any:
        face = getattr(queue, world)
        face._machine = overtaken = Overtaken(queue._machine, move)
        try:
            return run(lambda: getattr(face, method)(*arguments))
        finally:
            overtaken.is_over.set()
            overtaken.thread.join(PATIENCE)
            face._machine = overtaken.machine

    return overtake


def test_an_element_is_not_given_back_when_its_caller_has_gone(overtake: Any) -> None:
    """A trio run that ended before the wake came gave back what its task had returned with."""
    queue = sync.FIFOQueue(1)
    element = overtake(queue, lambda machine: machine.begin(Put("element"), None), "dequeue")
    assert (element, len(queue)) == ("element", 0)
    assert queue.statistics().dequeued == 1


def test_nor_are_the_last_rows(overtake: Any) -> None:
    queue = sync.FIFOQueue(4, dtypes="int64", shapes=())
    queue.enqueue_many([1, 2])
    batch = overtake(queue, lambda machine: machine.close(), "dequeue_up_to", 3)
    assert (batch.tolist(), len(queue)) == ([1, 2], 0)


def test_who_did_not_sleep_does_not_seem_to_wait_for_ever(overtake: Any) -> None:
    taken, failed = sync.FIFOQueue(1), sync.FIFOQueue(1)
    overtake(taken, lambda machine: machine.begin(Put("element"), None), "dequeue")
    with pytest.raises(OutOfRangeError):
        overtake(failed, lambda machine: machine.close(), "dequeue")
    for queue in (taken, failed):
        waits = queue._machine.waits()
        assert (waits.dequeues_since, sum(waits.dequeue_waits.counts)) == ([], 1)
        assert not queue._machine._waiting
