"""What a monitor counts of queues that the processes of a run share."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aioqueue import sync
from tests.kit.processing import start_the_forkserver
from tests.kit.worlds import spin_until
from tests.sharing.members import FORKSERVER, members

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")


@pytest.fixture
def coord() -> Iterator[Any]:
    shared = sync.Coordinator().share()
    yield shared
    shared._core.shared.end()


def _fill(coord: Any, report: Callable[[Any], Any]) -> None:
    """Fill a queue of another process with three elements."""
    results = report("ready")
    answered = threading.Event()

    def make() -> None:
        results.enqueue_many([1, 2, 3])
        answered.wait()

    coord.start(sync.QueueRunner(results, [make]))
    report("started")
    answered.set()


def test_the_owner_counts_the_waits_at_a_queue_that_others_fill(coord: Any) -> None:
    start_the_forkserver()
    results = sync.FIFOQueue(4, name="results")
    with members() as start, coord.monitor() as monitor:
        filling = start(_fill, coord, FORKSERVER)
        filling.reported()
        filling.answer(results.share())
        filling.reported()
        assert results.dequeue_many(3) == [1, 2, 3]
        reader = threading.Thread(target=lambda: list(results), name="reader")
        reader.start()

        def waits() -> int:
            monitor._ask_elsewhere(wait=True)
            return sum(len(one.dequeue_waiting) for one in monitor.snapshot().queues)

        try:
            spin_until(waits)
            (queue,) = monitor.snapshot().queues
            assert (queue.name, queue.enqueued, queue.dequeued) == ("results", 3, 3)
            spin_until(lambda: monitor.snapshot().queue("results").seconds_empty)
        finally:
            coord.request_stop()
            results.close()
            filling.answer()
            reader.join()
