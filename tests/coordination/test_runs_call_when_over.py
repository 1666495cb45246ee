"""One callback tells a worker of the end of its run, whatever ends it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import aioqueue
from aioqueue import OutOfRangeError, sync
from aioqueue.inputs import prepare
from aioqueue.worlds.scopes import Gate
from tests.kit.worlds import PATIENCE, core_of, spin_until, waiting


class Worker:
    """An op that registers a callback, and waits for its call."""

    def __init__(self, queue: sync.FIFOQueue) -> None:
        self.runner = sync.QueueRunner(queue, [self])
        self.was_called = threading.Event()
        self.has_begun = threading.Event()
        self.calls = 0

    def over(self) -> None:
        self.calls += 1
        self.was_called.set()

    def __call__(self) -> None:
        run = self.runner._run
        assert run is not None
        run.call_when_over(self.over)
        self.has_begun.set()
        assert self.was_called.wait(PATIENCE)
        raise OutOfRangeError("told")


@pytest.mark.parametrize(
    "how", ["a stop", "a stop before", "a closed queue", "a closed queue before"]
)
def test_every_end_calls_back(how: str) -> None:
    queue = sync.FIFOQueue(3)
    worker = Worker(queue)
    coord = sync.Coordinator()
    threads = worker.runner.create_threads(coord=coord)
    end = coord.request_stop if "stop" in how else queue.close
    if "before" in how:
        # What a run has not begun may not be called, so it is called as the op would be.
        run = worker.runner._run
        assert run is not None
        end()
        run.call_when_over(worker.over)
        assert worker.was_called.is_set()
    for thread in threads:
        thread.start()
    if "before" not in how:
        assert worker.has_begun.wait(PATIENCE)
        assert not worker.was_called.is_set()
        end()
    coord.request_stop()
    coord.join()
    assert worker.calls >= 1


def test_the_queue_keeps_no_callback_of_an_ended_run() -> None:
    """Although other runs still fill it."""
    queue, gate = sync.FIFOQueue(9), Gate()

    def other() -> None:
        gate.wait_blocking()
        raise OutOfRangeError("the end")

    with sync.Coordinator() as coord:
        coord.start(sync.QueueRunner(queue, other))
        runner = prepare(range(3), abs, into=queue, workers=2)
        coord.start(runner)
        spin_until(lambda: repr(runner).endswith("ended>"))
        spin_until(lambda: not core_of(queue).blocked_wakers)
        assert not queue.is_closed()
        gate.open()
        assert sorted(queue) == [0, 1, 2]


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "tasks"])
def test_it_starts_no_thread(is_async: bool) -> None:
    async def double(number: int) -> int:
        return 2 * number

    function: Any = double if is_async else abs
    before = set(threading.enumerate())
    queue = sync.FIFOQueue(1)
    with sync.Coordinator() as coord:
        coord.start(prepare(range(9), function, into=queue, workers=3))
        spin_until(lambda: waiting(queue) == 3)
        # Tasks have one thread, which has their event loop.
        assert len(set(threading.enumerate()) - before) == (1 if is_async else 3)
        coord.request_stop()


async def _never(number: int) -> int:
    await aioqueue.FIFOQueue(1).dequeue()
    return number


def test_a_consumer_that_leaves_ends_tasks_from_another_thread() -> None:
    queue = sync.FIFOQueue(1)
    runner = prepare(range(9), _never, into=queue, workers=3)
    with sync.Coordinator() as coord:
        coord.start(runner)
        spin_until(lambda: runner.statistics().in_flight == 3)
        queue.close()
        spin_until(lambda: repr(runner).endswith("ended>"))
