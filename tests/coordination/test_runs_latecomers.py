"""Workers that are added to a run: each is started, or counted as ended."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import dataclass

import pytest

import aioqueue
from aioqueue import inputs, sync
from aioqueue.coordination.workers import AddedWorkers
from tests.kit.worlds import TaskWorld, spin_until, waiting


@dataclass(frozen=True)
class Plan:
    is_task: bool


class Scene:
    """Added workers, and what has happened to them."""

    def __init__(self) -> None:
        self.is_over = False
        self.started: list[Plan] = []
        self.ended: list[Plan] = []
        self.added_workers = AddedWorkers[Plan](lambda: self.is_over, self.ended.append)

    def starts(self, *, tasks: bool) -> None:
        self.added_workers.set_starter(self.started.append, tasks=tasks)


TASK, THREAD = Plan(is_task=True), Plan(is_task=False)


def test_each_waits_for_a_function_that_starts_it() -> None:
    scene = Scene()
    for plan in (TASK, THREAD, TASK):
        scene.added_workers.add(plan)
    assert scene.started == []
    scene.starts(tasks=False)
    assert scene.started == [THREAD]
    scene.starts(tasks=True)
    assert scene.started == [THREAD, TASK, TASK]
    scene.added_workers.add(THREAD)
    assert scene.started == [THREAD, TASK, TASK, THREAD]
    assert scene.ended == []


def test_workers_added_after_the_end_count_as_ended() -> None:
    scene = Scene()
    scene.starts(tasks=False)
    scene.is_over = True
    scene.added_workers.add(THREAD)
    assert (scene.started, scene.ended) == ([], [THREAD])


def test_workers_that_cannot_be_started_count_as_ended() -> None:
    scene = Scene()

    def fail(plan: Plan) -> None:
        raise RuntimeError("no threads are left")

    scene.added_workers.set_starter(fail, tasks=False)
    with pytest.raises(RuntimeError, match="no threads are left"):
        scene.added_workers.add(THREAD)
    assert scene.ended == [THREAD]
    scene.starts(tasks=False)
    assert scene.started == []


def test_waiting_workers_are_taken_once() -> None:
    scene = Scene()
    scene.added_workers.add(TASK)
    assert scene.added_workers.take_waiting() == [TASK]
    assert scene.added_workers.take_waiting() == []
    scene.starts(tasks=True)
    assert scene.started == []


def test_after_close_nothing_is_started_or_kept() -> None:
    scene = Scene()
    reference = weakref.ref(scene)
    added_workers = scene.added_workers
    scene.starts(tasks=False)
    added_workers.close()
    added_workers.add(THREAD)
    added_workers.set_starter(scene.started.append, tasks=False)
    assert (scene.started, scene.ended) == ([], [])
    assert added_workers.take_waiting() == [THREAD]
    del scene
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "tasks"])
def test_workers_that_are_added_to_a_run_work_and_are_joined(is_async: bool) -> None:
    go = threading.Event()
    begun: list[int] = []

    async def in_a_task(number: int) -> int:
        begun.append(number)
        await aioqueue.FIFOQueue(1).dequeue()
        return number

    def in_a_thread(number: int) -> int:
        begun.append(number)
        go.wait()
        return number

    queue = sync.FIFOQueue(9)
    function = in_a_task if is_async else in_a_thread
    runner = inputs.prepare(range(9), function, into=queue, workers=1, ordered=False)
    with sync.Coordinator() as coord:
        coord.start(runner)
        spin_until(lambda: len(begun) == 1)
        runner.resize(3)
        spin_until(lambda: len(begun) == 3)
        go.set()
        coord.request_stop()
    assert waiting(queue) == 0


def test_tasks_that_are_added_beside_an_event_loop(task_world: TaskWorld) -> None:
    async def body() -> None:
        begun: list[int] = []
        never = task_world.fifo(1)

        async def wait(number: int) -> int:
            begun.append(number)
            await never.dequeue()
            return number

        queue = task_world.fifo(9)
        async with aioqueue.Coordinator() as coord:
            runner = inputs.prepare(range(9), wait, into=queue, workers=1, ordered=False)
            coord.start(runner)
            await task_world.until(lambda: len(begun) == 1)
            runner.resize(3)
            await task_world.until(lambda: len(begun) == 3)
            coord.request_stop()

    task_world.run(body)
