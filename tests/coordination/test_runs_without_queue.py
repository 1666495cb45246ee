"""Workers that fill no queue, such as a learner: ``QueueRunner(None, ops)``."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.errors import OutOfRangeError
from tests.kit.coordinators import group_of, notes
from tests.kit.worlds import PATIENCE, TaskWorld, spin_until, waiting

ROUNDS = 5


def taking(queue: aioqueue.FIFOQueue[int], taken: list[int], *, task: bool) -> Any:
    async def learn_in_task() -> None:
        taken.append(await queue.dequeue())

    def learn() -> None:
        taken.append(queue.sync.dequeue())

    return learn_in_task if task else learn


@pytest.fixture(params=[True, False], ids=["task", "thread"])
def task(request: pytest.FixtureRequest) -> bool:
    """Whether workers are tasks."""
    return bool(request.param)


def test_its_workers_end_with_their_input(task_world: TaskWorld, task: bool) -> None:
    async def body() -> None:
        queue, taken = aioqueue.FIFOQueue[int](ROUNDS), list[int]()
        await queue.enqueue_many(range(ROUNDS))
        runner = aioqueue.QueueRunner(None, taking(queue, taken, task=task))
        async with aioqueue.Coordinator() as coord:
            coord.start(runner)
            queue.close()
            await coord.join()
            assert not coord.should_stop()
        assert taken == [*range(ROUNDS)]

    task_world.run(body)


def test_it_runs_again(task_world: TaskWorld, task: bool) -> None:
    async def body() -> None:
        taken = list[int]()
        left = iter(range(2 * ROUNDS))

        def learn() -> None:
            taken.append(next(left))
            if len(taken) % ROUNDS == 0:
                raise OutOfRangeError("the end of an epoch")

        async def learn_in_task() -> None:
            learn()

        runner = aioqueue.QueueRunner(None, learn_in_task if task else learn)
        await runner.run()
        await runner.run()
        assert taken == [*range(2 * ROUNDS)]

    task_world.run(body)


def test_a_failure_stops_the_others_and_is_reported(task_world: TaskWorld, task: bool) -> None:
    async def body() -> None:
        def fail() -> None:
            raise ValueError("a loss that is no number")

        async def fail_in_task() -> None:
            fail()

        queue = aioqueue.FIFOQueue[int](1)
        ops = [taking(queue, [], task=task), fail_in_task if task else fail]

        async def learn() -> None:
            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.QueueRunner(None, ops))
                await coord.wait_for_stop()

        [failure] = (await group_of(learn())).exceptions
        assert "a loss that is no number" in str(failure)
        assert "in worker aioqueue-fail" in notes(failure)[0]

    task_world.run(body)


def test_a_stop_ends_its_workers(task_world: TaskWorld, task: bool) -> None:
    async def body() -> None:
        queue = aioqueue.FIFOQueue[int](1)
        runner = aioqueue.QueueRunner(None, [taking(queue, [], task=task)] * 2)
        async with aioqueue.Coordinator() as coord:
            coord.start(runner)
            await task_world.until(lambda: waiting(queue) == 2)
        assert not queue.is_closed()
        assert "idle" in repr(runner)

    task_world.run(body)


def test_on_threads() -> None:
    queue, taken = aioqueue.FIFOQueue[int](ROUNDS), list[int]()
    queue.sync.enqueue_many(range(ROUNDS))
    queue.close()
    ops = [taking(queue, taken, task=True), taking(queue, taken, task=False)]
    runner = sync.QueueRunner(None, ops)
    assert runner.name == "learn_in_task+learn"
    assert repr(runner) == "<aioqueue.sync.QueueRunner of 'learn_in_task+learn', 2 workers, idle>"
    with sync.Coordinator() as coord:
        coord.start(runner)
        coord.join()
    assert sorted(taken) == [*range(ROUNDS)]
    assert runner.queue is None


@pytest.mark.parametrize("has_source", [True, False])
def test_a_drain_lets_it_finish(has_source: bool) -> None:
    queue, taken = aioqueue.FIFOQueue[int](ROUNDS), list[int]()
    queue.sync.enqueue_many(range(ROUNDS))
    begun, may_go = threading.Event(), threading.Event()

    def learn() -> None:
        begun.set()
        may_go.wait(PATIENCE)
        taken.append(queue.sync.dequeue())

    with sync.Coordinator() as coord:
        coord.start(sync.QueueRunner(None, learn, source=queue if has_source else None))
        begun.wait(PATIENCE)
        coord.drain(deadline=PATIENCE)
        may_go.set()
        coord.join()
    assert taken == ([*range(ROUNDS)] if has_source else [0])


@pytest.mark.parametrize("is_stopped", [True, False])
def test_it_calls_its_own_close(is_stopped: bool) -> None:
    weights = aioqueue.Latest(0)
    closed = []

    def learn() -> None:
        weights.publish(weights.version)
        if is_stopped:
            weights.sync.wait_newer(weights.version)
        raise OutOfRangeError("it has converged")

    def close(how: str) -> None:
        closed.append(how)
        weights.close()

    runner = sync.QueueRunner(
        None,
        learn,
        close_op=functools.partial(close, "at the end"),
        cancel_op=functools.partial(close, "at the stop"),
    )
    with sync.Coordinator() as coord:
        coord.start(runner)
        if not is_stopped:
            coord.join()
    assert closed == ["at the stop" if is_stopped else "at the end"]


def test_it_is_started_again() -> None:
    calls: list[None] = []

    def learn() -> None:
        calls.append(None)
        if len(calls) == 1:
            raise ValueError("a bad step")
        raise OutOfRangeError

    runner = sync.QueueRunner(None, learn, restart=aioqueue.Restart(times=1, backoff=0.0))
    with sync.Coordinator() as coord:
        coord.start(runner)
        coord.join()
    assert (len(calls), runner.times_restarted) == (2, 1)


def test_monitors_and_explanations_name_no_queue() -> None:
    queue = sync.FIFOQueue[int](1, name="episodes")
    with sync.Coordinator() as coord, coord.monitor() as monitor:
        coord.start(sync.QueueRunner(None, [taking(queue.aio, [], task=False)]))
        spin_until(lambda: waiting(queue))
        explanation = coord.explain()
        [stage] = [one for one in explanation.stages if "of learn" in one.name]  # of this test
        assert (stage.into, stage.name) == (None, "the QueueRunner of learn (1 worker)")
        assert "the QueueRunner of learn (1 worker)\n" in str(explanation)
        assert "'episodes' is empty, and no runner fills it" in str(explanation)
        [numbers] = monitor.snapshot().stages
        assert (numbers.into, numbers.source) == (None, "episodes")
        queue.close()


def test_a_wrong_queue_is_refused() -> None:
    with pytest.raises(aioqueue.InvalidArgumentError, match="a queue of aioqueue, or None if"):
        sync.QueueRunner([], print)  # type: ignore[arg-type]
