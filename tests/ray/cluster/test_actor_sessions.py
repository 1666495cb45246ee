"""Processes die at a call or its reply: every wait ends, with data, the end, or a named error.

What the actor does about it, call by call, is in `tests/ray/test_queue_actor.py` and
`test_queue_actor_model.py`; these need no cluster. Here real processes are killed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import aioqueue
from tests.kit import clusters
from tests.ray.cluster.test_leases import other
from tests.ray.marks import MARKS

pytestmark = MARKS


def begun(call: Callable[[], Any]) -> Callable[[], Any]:
    """A call in a thread; returns what waits for its result or its failure."""
    ended: list[Any] = []

    def run() -> None:
        try:
            ended.append(call())
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(clusters.PATIENCE)
        (found,) = ended
        return found

    return result


def until(queue: Any, attribute: str, count: int) -> None:
    """Wait for a number of its statistics."""
    while getattr(queue.statistics(), attribute) != count:
        pass


def test_the_actor_dies_while_both_sides_wait(make: Any, cluster: Any) -> None:
    full, empty = make("FIFOQueue", 1).sync, make("FIFOQueue", 1).sync
    put, taken = begun(lambda: full.enqueue_many([1, 2])), begun(lambda: empty.dequeue())
    until(full, "waiting_enqueues", 1)
    until(empty, "waiting_dequeues", 1)
    for queue in (full, empty):
        queue.delete()
    for ended in (put(), taken()):
        assert isinstance(ended, aioqueue.WorkerDiedError)
        assert "the actor of queue" in str(ended)
    with pytest.raises(aioqueue.WorkerDiedError, match="the actor of queue"):
        full.enqueue(3)


def test_a_producer_dies_while_it_waits(make: Any, cluster: Any) -> None:
    """Enqueued rows stay; the other producers continue in order."""
    queue = make("FIFOQueue", 4).sync
    doomed = other(cluster, queue.name, capacity=4)
    doomed.put_numbers.remote(0, 6)
    until(queue, "waiting_enqueues", 1)
    ours = begun(lambda: queue.enqueue_many([10, 11]))
    until(queue, "waiting_enqueues", 2)
    clusters.kill(cluster.get(doomed.pid.remote()))
    for life in cluster.get(clusters.actor_of(queue).clients.remote()):
        if life != queue.consumer:
            cluster.get(clusters.actor_of(queue).dismiss.remote(life))
    assert queue.dequeue_many(4) == [0, 1, 2, 3]
    assert ours() is None
    assert queue.dequeue_many(2) == [10, 11]


def test_a_consumer_dies_while_it_waits(make: Any, cluster: Any) -> None:
    """What it would have got goes to others."""
    queue = make("FIFOQueue", 4).sync
    doomed = other(cluster, queue.name, capacity=4)
    doomed.take.remote(3)
    until(queue, "waiting_dequeues", 1)
    queue.enqueue(1)  # which it has claimed
    clusters.kill(cluster.get(doomed.pid.remote()))
    for life in cluster.get(clusters.actor_of(queue).clients.remote()):
        if life != queue.consumer:
            cluster.get(clusters.actor_of(queue).dismiss.remote(life))
    assert queue.dequeue() == 1


def test_what_cannot_be_pickled_leaves_no_gap(share: Any) -> None:
    queue = share("FIFOQueue", 4).sync
    with pytest.raises(aioqueue.InvalidArgumentError, match="cannot be pickled"):
        queue.enqueue(threading.Lock())
    queue.enqueue(1)
    assert queue.dequeue() == 1


class OddError(Exception):
    """Cannot be made anew from what it says of itself."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")
        self.lock = threading.Lock()


def test_any_failure_can_close_it(share: Any) -> None:
    queue = share("FIFOQueue", 4).sync
    queue.close(cause=OddError(1, 2))
    with pytest.raises(aioqueue.OutOfRangeError) as caught:
        queue.dequeue()
    assert "OddError: 1 and 2" in str(caught.value.__cause__)
