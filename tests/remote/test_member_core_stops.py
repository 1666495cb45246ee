"""Code in ``with coord.stop_on_exception():`` of a coordinator of several processes.

Joins of all processes wait for it. So a stop ends the calls in which it waits, as those of workers.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from tests.kit.processing import start_the_forkserver
from tests.kit.worlds import PATIENCE, TaskWorld, spin_until
from tests.sharing.members import FORKSERVER, members

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")


@pytest.fixture
def coord() -> Iterator[Any]:
    shared = sync.Coordinator(stop_grace_period=0.1).share()
    yield shared
    shared._core.shared.end()


def test_a_stop_ends_the_wait_of_a_thread(coord: Any) -> None:
    queue = sync.FIFOQueue(1)
    left = threading.Event()

    def work() -> None:
        with coord.stop_on_exception():
            queue.dequeue()
        left.set()

    thread = threading.Thread(target=work)
    thread.start()
    spin_until(lambda: queue.statistics().waiting_dequeues)
    coord.request_stop()
    assert left.wait(PATIENCE)
    thread.join()
    coord.join()  # the end of the wait is no failure


async def test_a_stop_ends_the_wait_of_a_task(task_world: TaskWorld, coord: Any) -> None:
    queue = task_world.fifo(1)
    left = []

    async def work() -> None:
        with coord.stop_on_exception():
            await queue.dequeue()
        left.append("the block")

    working = task_world.spawn(work)
    await task_world.until(lambda: queue.statistics().waiting_dequeues)
    coord.request_stop()
    await working.result()
    assert left == ["the block"]
    assert coord.should_stop()


def test_work_that_begins_after_the_stop_does_not_wait(coord: Any) -> None:
    coord.request_stop()
    with coord.stop_on_exception():
        sync.FIFOQueue(1).dequeue()
    coord.join()


def test_only_the_block_is_stopped(coord: Any) -> None:
    """What the thread waits for behind the block is its own affair; and so is the next run."""
    queue = sync.FIFOQueue(1)
    with coord.stop_on_exception(), coord.stop_on_exception():
        coord.request_stop()
        with pytest.raises(aioqueue.CancelledError):
            queue.dequeue()
    with pytest.raises(TimeoutError):
        queue.dequeue(timeout=0.001)
    with coord.stop_on_exception():
        coord.clear_stop()
        with pytest.raises(TimeoutError):
            queue.dequeue(timeout=0.001)
    assert not coord.should_stop()


def _simulate(coord: Any, report: Callable[[Any], Any]) -> None:
    """Fill a queue of another process until the stop."""
    episodes = report("ready")
    with coord.stop_on_exception():
        for episode in range(100):
            episodes.enqueue(episode)
    report(coord.should_stop())


def test_a_process_that_fills_a_full_queue_ends_with_the_block_of_the_owner() -> None:
    start_the_forkserver()
    episodes = sync.FIFOQueue(4)
    with members() as start:
        with sync.Coordinator(stop_grace_period=PATIENCE) as coord:
            simulator = start(_simulate, coord.share(), FORKSERVER)
            assert simulator.reported() == "ready"
            simulator.answer(episodes.share())
            spin_until(lambda: episodes.statistics().waiting_enqueues)
            assert episodes.dequeue() == 0
        assert simulator.reported() is True
        simulator.answer()
        assert simulator.end() == 0
