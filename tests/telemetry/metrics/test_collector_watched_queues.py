"""Monitors of queues that no runner fills or reads."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from tests.kit.worlds import spin_until

FACES = [aioqueue.FIFOQueue, sync.FIFOQueue]


@pytest.mark.parametrize("face", FACES, ids=["async", "sync"])
def test_a_queue_alone_is_watched(face: Any) -> None:
    queue = face(4, name="requests")
    with aioqueue.Monitor(queue) as monitor:
        queue.enqueue_nowait(1)
        queue.enqueue_nowait(2)
        queue.dequeue_nowait()
        found = monitor.snapshot().queue("requests")
        assert (found.size, found.enqueued, found.dequeued) == (1, 2, 1)
        spin_until(lambda: any(monitor.snapshot().queue("requests").occupancy))
        assert "requests" in str(monitor.scalars())
        assert str(monitor.verdict())


def test_queues_are_added_and_come_before_those_of_stages() -> None:
    """The last queue is what the run makes: its elements are counted."""
    made = sync.FIFOQueue(4, name="made")
    requests = sync.FIFOQueue(4, name="requests")
    unnamed = sync.FIFOQueue(4)
    with sync.Coordinator() as coord, coord.monitor() as monitor:
        assert monitor.watch(requests, unnamed.aio) is monitor
        coord.start(sync.QueueRunner(made, [lambda: made.enqueue(1)]))
        made.dequeue()
        names = [one.name for one in monitor.snapshot().queues]
        assert sorted(names[:2]) == sorted(["requests", unnamed.name])
        assert names[2:] == ["made"]
        monitor.watch(requests, made)  # again changes nothing
        assert sorted(one.name for one in monitor.snapshot().queues) == sorted(names)


def test_a_watched_queue_is_not_kept() -> None:
    queue = sync.FIFOQueue(4, name="requests")
    with aioqueue.Monitor(queue) as monitor:
        queue.enqueue(1)
        del queue
        gc.collect()
        assert monitor.snapshot().queue("requests").enqueued == 1


def test_prometheus_gets_them() -> None:
    prometheus_client = pytest.importorskip("prometheus_client")
    registry = prometheus_client.CollectorRegistry()
    queue = sync.FIFOQueue(4, name="requests")
    with aioqueue.Monitor(queue) as monitor:
        registry.register(monitor.prometheus())
        queue.enqueue("a request")
        page = prometheus_client.generate_latest(registry).decode()
    assert 'aioqueue_queue_size{queue="requests"} 1.0' in page
    assert 'aioqueue_queue_capacity{queue="requests"} 4.0' in page


@pytest.mark.parametrize("given", [sync.Coordinator(), "requests", None])
def test_others_are_refused(given: Any) -> None:
    refused = pytest.raises(aioqueue.InvalidArgumentError, match=r"^queues: got .*expected queues")
    with aioqueue.Monitor(sync.FIFOQueue(1)) as monitor, refused:
        monitor.watch(given)
