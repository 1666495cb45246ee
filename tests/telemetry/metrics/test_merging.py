"""Numbers of several processes add up; a queue that they share is counted once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aioqueue import sync
from aioqueue.telemetry.metrics.merging import (
    ProcessNumbers,
    final,
    one_after_another,
    together,
)
from aioqueue.telemetry.metrics.snapshots import NO_STEPS, Snapshot


@pytest.fixture
def run() -> Snapshot:
    """Of one process: an op has put three numbers into a queue, of which one was taken."""
    coord = sync.Coordinator()
    queue = sync.FIFOQueue(10, name="numbers")
    left = iter(range(3))

    def op() -> None:
        for number in left:
            queue.enqueue(number)
            return
        coord.wait_for_stop()

    with coord.monitor() as monitor:
        coord.start(sync.QueueRunner(queue, [op]))
        assert queue.dequeue() == 0
        while queue.statistics().enqueued < 3:
            pass
        found = monitor.snapshot()
        coord.request_stop()
    coord.join()
    (stage,) = found.stages
    return replace(found, stages=(replace(stage, delivered=3),))


def numbers(run: Snapshot, *shared: str) -> ProcessNumbers:
    return ProcessNumbers(run, dict.fromkeys(shared, "there"))


def counts(found: Snapshot) -> Any:
    queue, stage = found.queue("numbers"), found.stage("op")
    return queue.enqueued, queue.size, stage.delivered, len(stage.workers)


def test_queues_and_stages_of_one_name_add_up(run: Snapshot) -> None:
    found = together(run, [numbers(run), numbers(run)])
    assert counts(found) == (9, 6, 9, 3)
    assert found.process_cpu == pytest.approx(3 * run.process_cpu)


def test_a_queue_of_the_owner_counts_once(run: Snapshot) -> None:
    assert counts(together(run, [numbers(run, "numbers")])) == (3, 2, 6, 2)
    bare = replace(run, queues=(), stages=())
    assert counts(together(bare, [numbers(run, "numbers")] * 2)) == (3, 2, 6, 2)


def test_what_has_ended_counts_on(run: Snapshot) -> None:
    ended = one_after_another(None, final(numbers(run)))
    assert counts(ended.snapshot) == (3, 0, 3, 0)
    ended = one_after_another(ended, final(numbers(run)))
    assert counts(ended.snapshot) == (6, 0, 6, 0)
    assert counts(together(run, [ended])) == (9, 2, 9, 1)


def test_a_shared_queue_outlives_its_users(run: Snapshot) -> None:
    ended = one_after_another(None, final(numbers(run, "numbers")))
    ended = one_after_another(ended, final(numbers(run, "numbers")))
    assert counts(ended.snapshot) == (3, 2, 6, 0)


def test_steps_of_all_loops_add_up(run: Snapshot) -> None:
    stepping = replace(run, steps=replace(NO_STEPS, steps=2))
    for one, others in ((run, [stepping] * 2), (stepping, [stepping, run])):
        found = together(one, map(numbers, others)).steps
        assert found is not None
        assert found.steps == 4
    ended = one_after_another(final(numbers(stepping)), final(numbers(stepping)))
    assert ended.snapshot.steps is not None
    assert ended.snapshot.steps.steps == 4
