"""`asyncio.Task.cancel` at every step of coordinators, runners and pipelines.

A shield of anyio does not keep it out, and a handler that cancels all tasks of a loop meets workers
and what waits for them alike. So each program here is run again and again: cancelled once, or
three times in a row, at its first await, at its second and so on, until it ends before its turn
comes; and with its workers cancelled in the first turn of the loop, the second and so on. Whatever
happens: it ends, everything that it has started has ended, its queues are closed, all that has
failed is reported, and no cancellation is raised that nobody has asked for.
"""

from __future__ import annotations

import asyncio
import threading
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import anyio
import pytest

import aioqueue
from aioqueue.errors import OutOfRangeError
from aioqueue.workers.runner import prepare
from tests.kit.worlds import AsyncioWorld, TaskWorld

PATIENCE = 20.0
ENOUGH = 400
"""Steps after which a program is taken never to end."""


class BrokenError(Exception):
    """The failure of a program."""


class Scenario:
    """The objects of a program, which are checked at its end.

    Args:
        failing: whether something in the program is to fail.
    """

    def __init__(self, *, failing: bool) -> None:
        self.failing = failing
        self.coord: aioqueue.Coordinator | None = None
        self.runners: list[Any] = []
        self.transferred: list[BaseException] = []
        self.has_entered = False

    def runner(self, runner: Any) -> Any:
        self.runners.append(runner)
        return runner

    def fail(self) -> None:
        """Raise a failure that has to be reported from now on, if this program has any."""
        if self.failing:
            error = BrokenError(len(self.transferred))
            self.transferred.append(error)
            raise error


Program = Callable[[Scenario], Coroutine[Any, Any, None]]


def numbers(queue: aioqueue.FIFOQueue, n: int, stage: Scenario) -> Callable[[], Any]:
    """A coroutine op that enqueues some numbers, and then ends or fails."""
    left = iter(range(n))

    async def op() -> None:
        number = next(left, None)
        if number is None:
            stage.fail()
            raise OutOfRangeError("no more numbers")
        await asyncio.sleep(0)
        await queue.enqueue(number)

    return op


async def tasks_in_a_block(stage: Scenario) -> None:
    queue = aioqueue.FIFOQueue(2)
    stage.coord = aioqueue.Coordinator()

    async def tick() -> None:
        await asyncio.sleep(0)

    async with stage.coord as coord:
        stage.has_entered = True
        ops = [numbers(queue, 3, stage), numbers(queue, 2, stage)]
        coord.start(stage.runner(aioqueue.QueueRunner(queue, ops)))
        coord.start(aioqueue.LooperTask(0.0, tick))
        async for _ in queue:
            pass


async def a_join_in_a_block(stage: Scenario) -> None:
    queue = aioqueue.FIFOQueue(None)
    stage.coord = aioqueue.Coordinator()
    async with stage.coord as coord:
        stage.has_entered = True
        coord.start(stage.runner(aioqueue.QueueRunner(queue, [numbers(queue, 2, stage)] * 2)))
        await coord.join()
        await asyncio.sleep(0)


async def threads_in_a_block(stage: Scenario) -> None:
    queue = aioqueue.FIFOQueue(2)
    left = iter(range(5))

    def op() -> None:
        number = next(left, None)
        if number is None:
            stage.fail()
            raise OutOfRangeError("no more numbers")
        queue.sync.enqueue(number)

    stage.coord = aioqueue.Coordinator()
    async with stage.coord as coord:
        stage.has_entered = True
        coord.start(stage.runner(aioqueue.QueueRunner(queue, [op])))
        async for _ in queue:
            pass


async def a_registered_task(stage: Scenario) -> None:
    async def work() -> None:
        stage.fail()

    stage.coord = aioqueue.Coordinator()
    async with stage.coord as coord:
        stage.has_entered = True
        coord.register(asyncio.create_task(work()))
        await asyncio.sleep(0)


async def a_runner_by_itself(stage: Scenario) -> None:
    queue = aioqueue.FIFOQueue(None)
    ops = [numbers(queue, 2, stage), numbers(queue, 1, stage)]
    await stage.runner(aioqueue.QueueRunner(queue, ops)).run()


def preparing(**options: Any) -> Program:
    async def program(stage: Scenario) -> None:
        queue = aioqueue.FIFOQueue(2)

        async def source() -> AsyncIterator[int]:
            try:
                for number in range(5):
                    await asyncio.sleep(0)
                    yield number
            finally:
                await asyncio.sleep(0)
            stage.fail()  # not above: what is cancelled there would take its place

        async def make(number: int) -> int:
            await asyncio.sleep(0)
            return number

        stage.coord = aioqueue.Coordinator()
        async with stage.coord as coord:
            stage.has_entered = True
            coord.start(stage.runner(prepare(source(), make, into=queue, workers=2, **options)))
            async for _ in queue:
                pass
        runner = stage.runners[0]
        assert not runner.statistics().skipped
        assert not runner.statistics().retried

    return program


def preparing_on_threads(stage: Scenario) -> Coroutine[Any, Any, None]:
    async def program() -> None:
        queue = aioqueue.FIFOQueue(2)

        async def source() -> AsyncIterator[int]:
            for number in range(4):
                await asyncio.sleep(0)
                yield number
            stage.fail()

        stage.coord = aioqueue.Coordinator()
        async with stage.coord as coord:
            stage.has_entered = True
            coord.start(stage.runner(prepare(source(), abs, into=queue, workers=2)))
            async for _ in queue:
                pass

    return program()


PROGRAMS: dict[str, Program] = {
    "tasks": tasks_in_a_block,
    "a join within": a_join_in_a_block,
    "threads": threads_in_a_block,
    "a registered task": a_registered_task,
    "run": a_runner_by_itself,
    "prepare": preparing(),
    "prepare, skip": preparing(on_error="skip"),
    "prepare, ordered": preparing(ordered=True),
    "prepare on threads": preparing_on_threads,
}
OF_TASKS = [name for name in PROGRAMS if "threads" not in name]


class Cancelling:
    """Runs a coroutine as a task, and cancels it as it is about to wait: from a step on.

    Args:
        coroutine: what to run.
        first: the step, counted from 0.
        times: at how many steps from there on.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, None], first: int, times: int) -> None:
        self._coroutine = coroutine
        self._steps = range(first, first + times)
        self.asked = 0
        self.task = asyncio.get_running_loop().create_task(self._all())

    async def _all(self) -> None:
        await self._stepped()

    @types.coroutine
    def _stepped(self) -> Iterator[Any]:
        resume: Callable[[], Any] = lambda: self._coroutine.send(None)  # noqa: E731
        step = 0
        while True:
            try:
                awaited = resume()
            except StopIteration:
                return
            if step in self._steps:
                self.asked += 1
                self.task.cancel()
            step += 1
            try:
                value = yield awaited
            except BaseException as error:
                resume = _throwing(self._coroutine, error)
            else:
                resume = _sending(self._coroutine, value)


def _throwing(coroutine: Coroutine[Any, Any, None], error: BaseException) -> Callable[[], Any]:
    return lambda: coroutine.throw(error)


def _sending(coroutine: Coroutine[Any, Any, None], value: Any) -> Callable[[], Any]:
    return lambda: coroutine.send(value)


async def result_of(task: asyncio.Task[None]) -> BaseException | None:
    """Wait for the end of a program; return what it has raised."""
    done, _ = await asyncio.wait({task}, timeout=PATIENCE)
    assert done, "it hangs"
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception()


def check(stage: Scenario, raised: BaseException | None, *, asked: bool) -> None:
    """Check that everything has ended and all failures are reported."""
    me = asyncio.current_task()
    left = [task for task in asyncio.all_tasks() if task is not me and not task.done()]
    assert not left, f"they were left: {left}"
    for runner in stage.runners:
        assert repr(runner).endswith(("idle>", "ended>")), repr(runner)
        assert runner.queue.is_closed() or not repr(runner).endswith("ended>")
    if stage.has_entered:
        assert stage.coord is not None
        assert stage.coord.joined
    if isinstance(raised, asyncio.CancelledError):
        assert asked, "nobody has asked for it"
        assert not stage.transferred, "a failure is lost"
        return
    if raised is None:
        assert not stage.transferred, "a failure is lost"
        return
    assert isinstance(raised, ExceptionGroup), repr(raised)
    # Of a prepare whose tasks somebody has cancelled, items are missing: no loop takes it for all.
    reported = [one for one in raised.exceptions if not isinstance(one, OutOfRangeError)]
    ends = [one for one in raised.exceptions if isinstance(one, OutOfRangeError)]
    assert all(end.__cause__ is not None and end.__cause__ not in reported for end in ends)
    assert len(reported) == len(stage.transferred), raised
    assert all(any(error is one for one in reported) for error in stage.transferred)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive(), thread.name


@pytest.mark.slow(every=6)
@pytest.mark.parametrize("failing", [False, True], ids=["well", "failing"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_at_every_await(loop_world: AsyncioWorld, name: str, times: int, failing: bool) -> None:
    async def once(step: int) -> bool:
        stage = Scenario(failing=failing)
        run = Cancelling(PROGRAMS[name](stage), step, times)
        raised = await result_of(run.task)
        check(stage, raised, asked=run.asked > 0)
        if stage.runners and run.asked == 0:
            assert stage.runners[0].queue.is_closed()
        return run.asked == 0

    async def body() -> None:
        for step in range(ENOUGH):
            if await once(step):
                return
        pytest.fail("it never ends by itself")

    loop_world.run(body)


@pytest.mark.slow(every=35)
@pytest.mark.parametrize("cancelled", ["all", "all others", "one", "another one"])
@pytest.mark.parametrize("failing", [False, True], ids=["well", "failing"])
@pytest.mark.parametrize("name", OF_TASKS)
def test_of_workers_in_any_order(
    loop_world: AsyncioWorld, name: str, failing: bool, cancelled: str
) -> None:
    """All tasks, as a handler that ends a program cancels them, or one, as a debugger does."""

    async def once(turns: int) -> bool:
        stage = Scenario(failing=failing)
        me = asyncio.current_task()
        main = asyncio.get_running_loop().create_task(PROGRAMS[name](stage))
        for _ in range(turns):
            await asyncio.sleep(0)
        is_over = main.done()
        tasks = asyncio.all_tasks() - {me, main}
        others = sorted(tasks, key=lambda task: (len(task.get_name()), task.get_name()))
        if cancelled.endswith("one"):
            others = others[:1] if cancelled == "one" else others[-1:]
        elif cancelled == "all" and not is_over:
            main.cancel()
        for task in others:
            task.cancel()
        raised = await result_of(main)
        check(stage, raised, asked=cancelled == "all")
        for runner in stage.runners:
            assert runner.queue.is_closed()
        return is_over

    async def body() -> None:
        for turns in range(ENOUGH):
            if await once(turns):
                return
        pytest.fail("it never ends by itself")

    loop_world.run(body)


def test_the_cancellation_of_a_scope_is_not_repeated(task_world: TaskWorld) -> None:
    """A failure that wins over the cancellation by a scope leaves nothing that the scope does not
    know as its own: not even where somebody awaits on the way there."""

    async def main() -> None:
        # A task group awaits, whatever it is that leaves it.
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group(), aioqueue.Coordinator() as coord:
                coord.request_stop(BrokenError())
                scope.cancel()
                await anyio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        task_world.run(main)
    assert caught.value.subgroup(BrokenError) is not None
