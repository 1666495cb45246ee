"""Workers that are added to a run: each is started or said to have ended, whenever it comes."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import dataclass

import pytest

import aioqueue
from aioqueue import inputs, sync
from aioqueue.coordination.workers import Latecomers
from tests.kit.worlds import TaskWorld, spin_until, waiting


@dataclass(frozen=True)
class Plan:
    is_task: bool


class Scene:
    """Some latecomers, and what has become of them."""

    def __init__(self) -> None:
        self.is_over = False
        self.started: list[Plan] = []
        self.ended: list[Plan] = []
        self.latecomers = Latecomers[Plan](lambda: self.is_over, self.ended.append)

    def starts(self, *, tasks: bool) -> None:
        self.latecomers.are_started_by(self.started.append, tasks=tasks)


TASK, THREAD = Plan(is_task=True), Plan(is_task=False)


def test_each_waits_until_it_is_known_how_it_is_started() -> None:
    scene = Scene()
    for plan in (TASK, THREAD, TASK):
        scene.latecomers.come(plan)
    assert scene.started == []
    scene.starts(tasks=False)
    assert scene.started == [THREAD]
    scene.starts(tasks=True)
    assert scene.started == [THREAD, TASK, TASK]
    scene.latecomers.come(THREAD)
    assert scene.started == [THREAD, TASK, TASK, THREAD]
    assert scene.ended == []


def test_those_that_come_when_it_is_over_have_ended() -> None:
    scene = Scene()
    scene.starts(tasks=False)
    scene.is_over = True
    scene.latecomers.come(THREAD)
    assert (scene.started, scene.ended) == ([], [THREAD])


def test_those_that_cannot_be_started_have_ended() -> None:
    scene = Scene()

    def fail(plan: Plan) -> None:
        raise RuntimeError("no threads are left")

    scene.latecomers.are_started_by(fail, tasks=False)
    with pytest.raises(RuntimeError, match="no threads are left"):
        scene.latecomers.come(THREAD)
    assert scene.ended == [THREAD]
    scene.starts(tasks=False)
    assert scene.started == []


def test_those_that_nobody_starts_are_given_up_once() -> None:
    scene = Scene()
    scene.latecomers.come(TASK)
    assert scene.latecomers.given_up() == [TASK]
    assert scene.latecomers.given_up() == []
    scene.starts(tasks=True)
    assert scene.started == []


def test_when_all_is_over_nobody_is_started_or_kept() -> None:
    scene = Scene()
    gone = weakref.ref(scene)
    latecomers = scene.latecomers
    scene.starts(tasks=False)
    latecomers.are_over()
    latecomers.come(THREAD)
    latecomers.are_started_by(scene.started.append, tasks=False)
    assert (scene.started, scene.ended) == ([], [])
    assert latecomers.given_up() == [THREAD]
    del scene
    gc.collect()
    assert gone() is None


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
