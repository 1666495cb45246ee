"""Coordinators in explanations, watchdogs and monitors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import aioqueue
from aioqueue import OutOfRangeError, sync
from aioqueue.testing import wait_until_waiting
from tests.kit.coordinators import Thread, has_begun_to_join
from tests.kit.worlds import PATIENCE, TaskWorld, spin_until, waiting


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if one.name == "aioqueue"]


@contextmanager
def joining(coord: sync.Coordinator, workers: list[Thread]) -> Iterator[None]:
    """A thread, "joiner", joins workers that end when the context is left."""
    for worker in workers:
        worker.start()
    joiner = threading.Thread(target=coord.join, args=(workers,), name="joiner")
    joiner.start()
    try:
        spin_until(has_begun_to_join(coord))
        yield
    finally:
        for worker in workers:
            worker.release()
        joiner.join(PATIENCE)


class TestExplanations:
    def test_a_join_names_its_workers_and_their_places(self) -> None:
        coord = sync.Coordinator()
        with joining(coord, [Thread("stuck")]):
            spin_until(lambda: "coordinators.py" in str(coord.explain()))  # it has begun
            found = coord.explain()
        (wait,) = [one for one in found.waits if "waits in join" in one.what]
        assert (wait.name, wait.what) == ("joiner", "waits in join for stuck")
        (culprit,) = wait.culprits
        assert culprit.worker == "stuck"
        assert "stuck has not ended, and is busy, at" in culprit.sentence
        assert "coordinators.py" in culprit.sentence

    def test_of_many_workers_the_first_ones_are_named(self) -> None:
        coord = sync.Coordinator()
        with joining(coord, [Thread(f"worker-{n}") for n in range(7)]):
            text = str(coord.explain())
        assert "joiner waits in join for worker-0, worker-1" in text
        assert "worker-4 and 2 more" in text

    def test_a_worker_that_waits_at_a_queue_is_explained_by_that(self) -> None:
        coord, queue = sync.Coordinator(), sync.FIFOQueue(1)
        worker = Thread("taker", lambda: queue.dequeue())
        worker.release()
        with joining(coord, [worker]):
            wait_until_waiting(queue, dequeues=1)
            (wait,) = [one for one in coord.explain().waits if "waits in join" in one.what]
            assert wait.culprits == ()
            queue.enqueue(1)

    def test_a_join_in_a_task(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            coord, worker = aioqueue.Coordinator(), Thread("stuck")
            worker.start()
            join = task_world.spawn(coord.join, [worker])
            await task_world.until(has_begun_to_join(coord))
            assert "waits in join for stuck" in str(coord.explain())
            worker.release()
            await join.result()

        task_world.run(body)

    def test_states_and_failures(self) -> None:
        coord = sync.Coordinator()
        assert "running" in str(coord.explain())
        coord.request_stop(ValueError("broken"))
        text = str(coord.explain())
        assert "stopping" in text
        assert "broken" in text
        with pytest.raises(ExceptionGroup):
            coord.join()
        assert "joined" in str(coord.explain())

    def test_waiting_workers_of_a_runner(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            source = task_world.fifo(1, name="source")
            queue = task_world.fifo(1, name="filled")

            async def move() -> None:
                await queue.enqueue(await source.dequeue())

            ticks: list[bool] = []

            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.QueueRunner(queue, [move]))
                coord.start(aioqueue.LooperTask(3600, ticks.append, [True]))
                await task_world.until(lambda: waiting(source))
                await task_world.until(lambda: ticks)
                found = coord.explain()
                (stage,) = [one for one in found.stages if one.into == "filled"]
                assert stage.name == "the QueueRunner of move (1 worker)"
                (worker,) = stage.workers
                assert (worker.name, worker.state) == ("aioqueue-move-0", "running")
                assert worker.stack
                # The stages of their runners list the others.
                assert [one.name for one in found.coordinators[0].workers] == ["aioqueue-append"]
                assert "source" in str(found)
                coord.request_stop()

        task_world.run(body)

    def test_ended_and_unstarted_workers_of_a_runner(self) -> None:
        queue = sync.FIFOQueue(1, name="filled")

        def ends() -> None:
            raise OutOfRangeError("no more")

        runner = sync.QueueRunner(queue, [ends, ends], close_op=lambda: None)
        first, second = runner.create_threads(daemon=True)
        first.start()
        first.join(PATIENCE)
        (stage,) = [one for one in aioqueue.explain().stages if one.into == "filled"]
        assert [one.state for one in stage.workers] == ["ended", "not started"]
        second.start()
        second.join(PATIENCE)
        consumer = threading.Thread(target=partial(next, iter(queue), None), daemon=True)
        consumer.start()
        wait_until_waiting(queue, dequeues=1)
        (found,) = [one for one in aioqueue.explain().queues if one.name == "filled"]
        assert found.last_end == "OutOfRangeError: no more"
        queue.close()
        consumer.join(PATIENCE)


class TestWatchdog:
    """With a period so short that it checks at once."""

    def test_warns_of_a_waiting_worker_without_progress(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue, empty = sync.FIFOQueue(1), sync.FIFOQueue(1, name="empty")
        with sync.Coordinator(watchdog=0.01) as coord:
            coord.start(sync.QueueRunner(queue, lambda: queue.enqueue(empty.dequeue())))
            spin_until(lambda: warnings(caplog))
            coord.request_stop()
        assert "nothing has moved" in warnings(caplog)[0]
        assert "empty" in warnings(caplog)[0]

    def test_warns_of_a_registered_thread_that_waits(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """No runner fills its queue."""
        empty = sync.FIFOQueue(1, name="empty")
        coord = sync.Coordinator(watchdog=0.01)
        thread = threading.Thread(target=empty.dequeue, name="taker")
        thread.start()
        coord.register(thread)
        spin_until(lambda: warnings(caplog))
        empty.enqueue(1)
        coord.request_stop()
        coord.join()
        assert "taker" in warnings(caplog)[0]

    def test_warns_of_a_join_that_waits_for_a_stuck_thread(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        coord = sync.Coordinator(watchdog=0.01)
        with joining(coord, [Thread("stuck")]):
            spin_until(lambda: warnings(caplog))
            coord.request_stop()
        assert "joiner waits in join for stuck" in warnings(caplog)[0]

    def test_ends_at_the_stop_and_starts_again(self) -> None:
        coord = sync.Coordinator(watchdog=0.01)

        def watchdogs() -> int:
            return sum(one.name == "aioqueue-watchdog" for one in threading.enumerate())

        before = watchdogs()
        for _ in range(2):
            worker = Thread("worker")
            worker.start()
            coord.register(worker)
            assert watchdogs() == before + 1
            coord.request_stop()
            spin_until(lambda: watchdogs() == before)
            worker.release()
            coord.join()
            coord.clear_stop()


class TestMonitor:
    """The workers of a runner are stages by the names of their ops."""

    def seen(self, monitor: aioqueue.Monitor, holds: Callable[[Any], object]) -> Any:
        spin_until(lambda: monitor.snapshot().stages and holds(monitor.snapshot().stages[0]))
        return monitor.snapshot().stages[0]

    def test_of_threads(self) -> None:
        source, queue = sync.FIFOQueue(9, name="source"), sync.FIFOQueue(9, name="filled")

        def move() -> None:
            queue.enqueue(source.dequeue())

        with sync.Coordinator() as coord, coord.monitor() as monitor:
            coord.start(sync.QueueRunner(queue, [move, move]))
            source.enqueue_many([1, 2, 3])
            wait_until_waiting(source, dequeues=2)
            stage = self.seen(monitor, lambda one: one.starved > 0)
            assert (stage.name, stage.where) == ("move", "thread")
            assert (stage.source, stage.into) == ("source", "filled")
            assert (stage.delivered, stage.in_flight, len(stage.workers)) == (3, 2, 2)
            assert (stage.max_in_flight, stage.skipped, stage.retried) == (2, 0, 0)
            assert sum(worker.items for worker in stage.workers) == 3
            assert 0 <= stage.busy <= stage.alive
            source.close()
            coord.join()
            stage = monitor.snapshot().stages[0]
            assert (stage.delivered, stage.in_flight, stage.workers) == (3, 0, ())

    def test_of_tasks(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            queue = task_world.fifo(3, name="filled")

            async def fill() -> None:
                await queue.enqueue(1)

            async with aioqueue.Coordinator() as coord:
                with coord.monitor() as monitor:
                    coord.start(aioqueue.QueueRunner(queue, [fill]))
                    await task_world.until(lambda: waiting(queue))
                    stage = monitor.snapshot().stages[0]
                    assert (stage.name, stage.where, stage.into) == ("fill", "task", "filled")
                    assert (stage.delivered, stage.in_flight) == (3, 1)
                    assert monitor.snapshot().stages[0].blocked > 0
                    coord.request_stop()

        task_world.run(body)

    def test_of_a_thread_that_waits_for_a_lock(self) -> None:
        queue, lock = sync.FIFOQueue(1), threading.Lock()

        def fill() -> None:
            with lock:
                queue.enqueue(1)

        with sync.Coordinator() as coord, coord.monitor() as monitor:
            with lock:
                coord.start(sync.QueueRunner(queue, fill))
                stage = self.seen(monitor, lambda one: one.in_line)
                assert str(stage.lock).startswith(f"{__file__}:")
            coord.request_stop()

    def test_a_trace_has_its_workers(self, tmp_path: Path) -> None:
        queue, path = sync.FIFOQueue(3, name="filled"), tmp_path / "trace.json"

        def fill() -> None:
            queue.enqueue(1)

        with sync.Coordinator() as coord, coord.monitor() as monitor:
            coord.start(sync.QueueRunner(queue, fill))
            wait_until_waiting(queue, enqueues=1)
            with monitor.trace(path):
                queue.dequeue()
                wait_until_waiting(queue, enqueues=1)
            coord.request_stop()
        text = path.read_text()
        assert "fill" in text
        assert "filled" in text
