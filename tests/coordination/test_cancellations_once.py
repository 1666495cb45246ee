"""A stop cancels a worker of asyncio once: its clean-up may await, until the grace period ends.

Each worker here says what it has done. It runs in a task that is made as usual, and in one that the
program's own factory makes. The stop respects shields, and ends the waits in our calls that began
before it came, under shields, too. Trio keeps its own rule, but those waits end there as well.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.coordination import aio as aio_module
from aioqueue.coordination import coordinator_core as core_module
from aioqueue.coordination.cancellations import WorkerScope
from aioqueue.errors import CancelledError, StillRunningError
from aioqueue.inputs import from_iterable, numbers
from aioqueue.pipeline import run as run_module
from tests.kit.worlds import PATIENCE, AsyncioWorld, TaskWorld, TrioWorld, core_of, spin_until

Op = Callable[[], Awaitable[object]]

ROUNDS = 20
"""Rounds of the loop that a clean-up takes: each is an await that a second one would end."""


async def rounds(n: int = ROUNDS) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


def plain_factory(loop: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coro, loop=loop, **options)


@pytest.fixture(params=[None, plain_factory], ids=["usual", "factory"])
def in_loop(
    request: pytest.FixtureRequest, loop_world: AsyncioWorld
) -> Callable[[Callable[[], Awaitable[object]]], None]:
    """Runs a body in a loop whose tasks are made in one of the ways."""

    def run(body: Callable[[], Awaitable[object]]) -> None:
        async def main() -> None:
            asyncio.get_running_loop().set_task_factory(request.param)
            await body()

        loop_world.run(main)

    return run


Run = Callable[[Callable[[], Awaitable[object]]], None]


async def stop_at_once(op: Op, begun: asyncio.Event, **options: Any) -> aioqueue.Coordinator:
    """Run an op until it has begun, and leave the block."""
    async with aioqueue.Coordinator(**options) as coord:
        coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [op]))
        await begun.wait()
    return coord


class TestCleanUp:
    def test_it_runs_to_its_end(self, in_loop: Run) -> None:
        async def body() -> None:
            begun, done = asyncio.Event(), []

            async def op() -> None:
                begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    await rounds()
                    done.append("clean")

            await stop_at_once(op, begun)
            assert done == ["clean"]

        in_loop(body)

    @pytest.mark.parametrize("how", ["timeout", "task group", "anyio scope", "anyio group"])
    def test_inside_scopes(self, in_loop: Run, how: str) -> None:
        """In scopes that were entered before the stop, and in scopes that the clean-up enters."""

        async def body() -> None:
            begun, done = asyncio.Event(), []

            async def waits(entered: Callable[[], object]) -> None:
                entered()
                await asyncio.Event().wait()

            async def scoped(entered: Callable[[], object]) -> None:
                if how == "timeout":
                    async with asyncio.timeout(PATIENCE):
                        await waits(entered)
                elif how == "task group":
                    async with asyncio.TaskGroup() as group:
                        group.create_task(waits(entered))
                elif how == "anyio scope":
                    with anyio.move_on_after(PATIENCE):
                        await waits(entered)
                else:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(waits, entered)

            async def op() -> None:
                try:
                    await scoped(begun.set)
                finally:
                    done.append("begins")
                    with anyio.move_on_after(0.01) as scope:
                        await asyncio.Event().wait()
                    assert scope.cancelled_caught
                    try:
                        async with asyncio.timeout(0.01):
                            await asyncio.Event().wait()
                    except TimeoutError:
                        done.append("ends")

            await stop_at_once(op, begun)
            assert done == ["begins", "ends"]

        in_loop(body)

    def test_its_failure_is_reported(self, in_loop: Run) -> None:
        async def body() -> None:
            begun = asyncio.Event()

            async def op() -> None:
                begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    await rounds(3)
                    raise ValueError("the disk is full")

            with pytest.raises(ExceptionGroup) as caught:
                await stop_at_once(op, begun)
            assert [repr(error) for error in caught.value.exceptions] == [
                "ValueError('the disk is full')"
            ]

        in_loop(body)

    def test_it_may_call_queues(self, in_loop: Run) -> None:
        async def body() -> None:
            begun, done = asyncio.Event(), []
            results = aioqueue.FIFOQueue[Any](1)
            results.enqueue_nowait("earlier")

            async def op() -> None:
                begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    await results.enqueue("mine")
                    done.append("in")

            async def consume() -> None:
                while not core_of(results).machine.waiting():
                    await asyncio.sleep(0)
                await rounds()  # nothing ends that wait
                done.append(await results.dequeue())

            consumer = asyncio.create_task(consume())
            await stop_at_once(op, begun)
            await consumer
            assert sorted(done) == ["earlier", "in"]
            assert results.dequeue_nowait() == "mine"

        in_loop(body)

    def test_it_is_cancelled_again_after_the_grace_and_then_reported(
        self,
        in_loop: Run,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(core_module, "MIN_CLEAN_UP", 0.05)

        async def body() -> None:
            begun, seen = asyncio.Event(), []

            async def stubborn() -> None:
                begun.set()
                for _ in range(2):
                    try:
                        await asyncio.Event().wait()
                    except asyncio.CancelledError:
                        seen.append("cancelled")
                with anyio.move_on_after(0.3):
                    await asyncio.Event().wait()  # the line that the report names
                seen.append("whole")

            with pytest.raises(ExceptionGroup) as caught:
                await stop_at_once(stubborn, begun, stop_grace_period=0.01)
            (error,) = caught.value.exceptions
            assert isinstance(error, StillRunningError)
            assert "aioqueue-stubborn-0" in str(error)
            assert "test_cancellations_once.py" in str(error)
            assert seen == ["cancelled", "cancelled", "whole"]  # the block has waited for it
            (message,) = caplog.messages  # while it waited
            assert "1 task still running after the grace period" in message
            assert "aioqueue-stubborn-0 in " in message
            assert "test_cancellations_once.py" in message

        in_loop(body)

    @pytest.mark.parametrize("is_entered", [False, True], ids=["before", "after"])
    def test_the_grace_may_end_before_the_stop_has_reached_it(
        self, in_loop: Run, is_entered: bool
    ) -> None:
        """A loop that hangs for longer than the grace makes both moves in one round."""

        async def body() -> None:
            begun, seen = asyncio.Event(), []
            scope = WorkerScope()

            async def stubborn() -> None:
                begun.set()
                for _ in range(2):
                    try:
                        await asyncio.Event().wait()
                    except asyncio.CancelledError:
                        seen.append("cancelled")
                await rounds()
                seen.append("whole")

            async def run() -> None:
                with scope:
                    await scope.observed(stubborn())

            task = asyncio.create_task(run())
            if is_entered:
                await begun.wait()
            scope.cancel()
            scope.cancel_again()
            await asyncio.wait([task], timeout=PATIENCE)
            assert task.done()
            assert seen == ["cancelled", "cancelled", "whole"]

        in_loop(body)

    def test_a_block_that_is_cancelled_from_outside(self, in_loop: Run) -> None:
        async def body() -> None:
            begun, done = asyncio.Event(), []

            async def op() -> None:
                begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    await rounds()
                    done.append("clean")

            async def block() -> None:
                async with aioqueue.Coordinator() as coord:
                    coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [op]))
                    await asyncio.Event().wait()

            task = asyncio.create_task(block())
            await begun.wait()
            for _ in range(5):  # more often than once, while it is left
                task.cancel()
                await rounds(2)
            await asyncio.wait([task])
            assert task.cancelled()
            assert done == ["clean"]

        in_loop(body)

    def test_of_a_runner_without_a_coordinator(
        self, in_loop: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("MIN_CLEAN_UP", "DEFAULT_GRACE", "SLOW_STOP"):
            monkeypatch.setattr(aio_module, name, 0.05)

        async def body(stubborn: bool) -> None:
            begun, done = asyncio.Event(), []

            async def op() -> None:
                begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    await rounds()
                    done.append("clean")
                    if stubborn:
                        try:
                            await asyncio.Event().wait()
                        finally:
                            done.append("again")

            task = asyncio.create_task(aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [op]).run())
            await begun.wait()
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            assert done == ["clean", "again"][: 1 + stubborn]

        in_loop(lambda: body(False))
        in_loop(lambda: body(True))

    def test_of_a_looper(self, in_loop: Run) -> None:
        """The stop ends its wait in a queue call. Only the end of the grace cancels it."""

        async def body() -> None:
            begun, seen = asyncio.Event(), []
            empty = aioqueue.FIFOQueue[int](1)

            async def target() -> None:
                begun.set()
                try:
                    await empty.dequeue()
                except CancelledError:
                    seen.append("woken")
                try:
                    await rounds()
                    await asyncio.Event().wait()
                finally:
                    await rounds()
                    seen.append("clean")

            async with aioqueue.Coordinator(stop_grace_period=0.05) as coord:
                coord.start(aioqueue.LooperTask(None, target))
                await begun.wait()
                while not core_of(empty).machine.waiting():
                    await asyncio.sleep(0)
            assert seen == ["woken", "clean"]

        in_loop(body)

    @pytest.mark.parametrize("where", ["function", "source"])
    def test_of_a_prepare(self, in_loop: Run, where: str) -> None:
        async def body() -> None:
            begun, done = asyncio.Event(), []

            async def source() -> Any:
                try:
                    yield 1
                    yield 2
                    begun.set()
                    await asyncio.Event().wait()
                finally:
                    await rounds()
                    done.append("source")

            async def function(item: int) -> int:
                if where == "source" or item == 1:
                    return item
                begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    await rounds()
                    done.append("function")
                return item

            pipeline = from_iterable(source()).prepare(function, workers=1)
            epochs = pipeline.epochs(1)
            async with epochs:
                async for epoch in epochs:
                    async for _ in epoch:
                        await begun.wait()
                        break
                    break
            assert sorted(done) == (["source"] if where == "source" else ["function", "source"])

        in_loop(body)

    def test_of_a_batcher(self, in_loop: Run) -> None:
        async def body() -> None:
            begun, done = asyncio.Event(), []

            async def function(values: list[int]) -> list[int]:
                begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    await rounds()
                    done.append("clean")
                return values

            async def block() -> None:
                async with aioqueue.Batcher(function) as batcher:
                    await batcher(1)

            task = asyncio.create_task(block())
            await begun.wait()
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            assert done == ["clean"]

        in_loop(body)

    def test_in_the_loop_of_a_thread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A task that swallows the stop is cancelled again after the grace, and reported."""
        monkeypatch.setattr(core_module, "MIN_CLEAN_UP", 0.05)
        begun, may_end, seen = threading.Event(), threading.Event(), []

        async def op() -> None:
            begun.set()
            for _ in range(2):
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    await rounds()
                    seen.append("cancelled")
            while not may_end.is_set():
                await asyncio.sleep(0.001)

        coord = sync.Coordinator(stop_grace_period=0.05)
        with pytest.raises(ExceptionGroup) as caught, coord:
            coord.start(sync.QueueRunner(sync.FIFOQueue(1), [op]))
            assert begun.wait(PATIENCE)
        may_end.set()
        (error,) = caught.value.exceptions
        assert isinstance(error, StillRunningError)
        assert "aioqueue-op-0 at " in str(error)
        assert "test_cancellations_once.py" in str(error)
        assert seen == ["cancelled", "cancelled"]

    @pytest.mark.slow
    @pytest.mark.parametrize("by", ["async for", "for"])
    def test_of_a_pipeline_that_is_left_by_break(
        self, by: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """After the grace the worker is cancelled again; then the log names it and its line.

        The grace is that of loops that are left, not the two minutes of a coordinator.
        """
        monkeypatch.setattr(run_module, "_GRACE_AFTER_LEAVING", 0.05)
        monkeypatch.setattr(core_module, "MIN_CLEAN_UP", 0.05)
        begun, may_end, seen = threading.Event(), threading.Event(), []

        async def function(number: int) -> int:
            if number < 2:
                return number
            begun.set()
            for _ in range(2):
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    await rounds()
                    seen.append("cancelled")
            while not may_end.is_set():
                await asyncio.sleep(0.001)
            return number

        def is_named() -> bool:
            return (
                "still running after the grace period" in caplog.text
                or "StillRunningError" in caplog.text
            )

        async def loop() -> None:
            async for number in numbers(9).prepare(function, workers=1):
                if number == 1:
                    while not begun.is_set():
                        await asyncio.sleep(0.001)
                    break
            while not is_named():
                await asyncio.sleep(0.001)
            may_end.set()

        if by == "async for":
            asyncio.run(loop())
        else:
            for number in numbers(9).prepare(function, workers=1):
                if number == 1:
                    assert begun.wait(PATIENCE)
                    break
            spin_until(is_named)
            may_end.set()
        assert seen == ["cancelled", "cancelled"]
        assert "aioqueue-function-0" in caplog.text
        assert "test_cancellations_once.py" in caplog.text


class TestShields:
    def test_a_shield_of_the_user(self, in_loop: Run) -> None:
        async def body() -> None:
            begun, done = asyncio.Event(), []

            async def op() -> None:
                try:
                    with anyio.CancelScope(shield=True):
                        begun.set()
                        await rounds(50)
                        done.append("held")
                    await asyncio.Event().wait()
                finally:
                    await rounds()
                    done.append("clean")

            await stop_at_once(op, begun)
            assert done == ["held", "clean"]

        in_loop(body)

    def test_a_thread_behind_a_shield(self, in_loop: Run) -> None:
        async def body() -> None:
            begun, go, done = asyncio.Event(), threading.Event(), []
            loop = asyncio.get_running_loop()

            def work() -> None:
                loop.call_soon_threadsafe(begun.set)
                go.wait(PATIENCE)
                done.append("worked")

            async def op() -> None:
                await anyio.to_thread.run_sync(work)
                await asyncio.Event().wait()

            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [op]))
                await begun.wait()
                coord.request_stop()
                await rounds(50)
                assert done == []
                go.set()
            assert done == ["worked"]

        in_loop(body)

    def test_a_timeout_within_is_not_the_stop(self, in_loop: Run) -> None:
        """Both come from anyio. The stop is still to be delivered."""

        async def body() -> None:
            begun, done = asyncio.Event(), []

            async def op() -> None:
                with anyio.CancelScope(shield=True):
                    begun.set()
                    with anyio.move_on_after(0.01):
                        await asyncio.Event().wait()
                    done.append("timeout")
                try:
                    await asyncio.Event().wait()
                finally:
                    done.append("stop")

            await stop_at_once(op, begun)
            assert done == ["timeout", "stop"]

        in_loop(body)

    def test_a_timeout_before_the_stop_leaves_nothing(self, in_loop: Run) -> None:
        async def body() -> None:
            begun, done = asyncio.Event(), []

            async def op() -> None:
                with anyio.move_on_after(0):
                    await asyncio.Event().wait()
                begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    await rounds()
                    done.append("stop")

            await stop_at_once(op, begun)
            assert done == ["stop"]

        in_loop(body)


async def _batcher_call(things: Waits) -> None:
    await things.batcher(1)


class Waits:
    """Calls of queues and coordinators in which a worker can wait."""

    def __init__(self) -> None:
        self.empty = aioqueue.FIFOQueue[int](1)
        self.full = aioqueue.FIFOQueue[int](1)
        self.full.enqueue_nowait(0)
        self.latest = aioqueue.Latest[int]()
        self.other = aioqueue.Coordinator()
        self.batcher: Any = None


WAITS: dict[str, Callable[[Waits], Awaitable[object]]] = {
    "dequeue": lambda things: things.empty.dequeue(),
    "dequeue_many": lambda things: things.empty.dequeue_many(2),
    "enqueue": lambda things: things.full.enqueue(1),
    "enqueue_many": lambda things: things.full.enqueue_many([1, 2]),
    "wait_closed": lambda things: things.empty.wait_closed(),
    "join": lambda things: things.full.join(),
    "latest": lambda things: things.latest.get(),
    "batcher": _batcher_call,
    "wait_for_stop of another": lambda things: things.other.wait_for_stop(),
    "blocking face": lambda things: anyio.to_thread.run_sync(things.empty.sync.dequeue),
}


class TestShieldedWaits:
    @pytest.mark.parametrize("worker", ["runner", "looper"])
    @pytest.mark.parametrize("wait", WAITS)
    def test_the_stop_ends_them(self, task_world: TaskWorld, wait: str, worker: str) -> None:
        seen: list[BaseException] = []

        async def body() -> None:
            things, never, begun = Waits(), anyio.Event(), anyio.Event()

            async def function(values: list[int]) -> list[int]:
                with anyio.move_on_after(PATIENCE):
                    await never.wait()
                return values

            async def op() -> None:
                begun.set()
                try:
                    with anyio.CancelScope(shield=True):
                        await WAITS[wait](things)
                except CancelledError as error:
                    seen.append(error)
                    raise

            async with aioqueue.Batcher(function) as things.batcher:
                async with aioqueue.Coordinator() as coord:
                    if worker == "looper":
                        coord.start(aioqueue.LooperTask(None, op))
                    else:
                        coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [op]))
                    await begun.wait()
                    for _ in range(30):
                        await task_world.tick()
                    if wait == "blocking face":
                        await task_world.until(core_of(things.empty).machine.waiting)
                never.set()
            (error,) = seen
            assert "stop of" in str(error)
            assert (things.empty.size(), things.full.size()) == (0, 1)

        task_world.run(body)

    @pytest.mark.parametrize("how", ["shield", "function", "task", "group", "thread"])
    def test_in_tasks_that_the_worker_started(self, in_loop: Run, how: str) -> None:
        """A wait in a task belongs to the worker that started the task."""

        async def body() -> None:
            begun, queue = asyncio.Event(), aioqueue.FIFOQueue[int](1)
            tasks: list[asyncio.Task[Any]] = []

            async def helper() -> None:
                await queue.dequeue()

            async def op() -> None:
                begun.set()
                if how == "shield":
                    tasks.append(asyncio.ensure_future(queue.dequeue()))
                    await asyncio.shield(tasks[0])
                elif how == "function":
                    tasks.append(asyncio.ensure_future(helper()))
                    await asyncio.shield(tasks[0])
                elif how == "thread":
                    await asyncio.to_thread(queue.sync.dequeue)
                elif how == "task":
                    tasks.append(asyncio.create_task(helper()))
                    await asyncio.wait(tasks)
                else:
                    with anyio.CancelScope(shield=True):
                        async with asyncio.TaskGroup() as group:
                            group.create_task(helper())

            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [op]))
                await begun.wait()
                while not core_of(queue).machine.waiting():
                    await asyncio.sleep(0)
            while core_of(queue).machine.waiting():
                await asyncio.sleep(0)
            for task in tasks:
                with pytest.raises(CancelledError):
                    await task

        in_loop(body)

    def test_their_exception_is_the_only_cancellation(self, in_loop: Run) -> None:
        """The clean-up after it is not cancelled, under the shield or behind it."""

        async def body() -> None:
            begun, done = asyncio.Event(), []
            queue, results = aioqueue.FIFOQueue[int](1), aioqueue.FIFOQueue[int](1)
            results.enqueue_nowait(0)

            async def op() -> None:
                begun.set()
                try:
                    with anyio.CancelScope(shield=True):
                        try:
                            await queue.dequeue()
                        finally:
                            await rounds()
                            await results.enqueue(1)
                            done.append("under the shield")
                finally:
                    await rounds()
                    done.append("behind it")

            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [op]))
                await begun.wait()
                while not core_of(queue).machine.waiting():
                    await asyncio.sleep(0)
                coord.request_stop()
                while not core_of(results).machine.waiting():
                    await asyncio.sleep(0)
                await rounds()
                assert [results.dequeue_nowait(), done] == [0, []]
            assert done == ["under the shield", "behind it"]

        in_loop(body)

    def test_a_wait_that_begins_while_the_stop_is_shielded_off(self, in_loop: Run) -> None:
        """The stop was sent and not delivered: it ends the worker's next wait."""

        async def body() -> None:
            begun, go, done = asyncio.Event(), asyncio.Event(), []
            queue = aioqueue.FIFOQueue[int](1)

            async def op() -> None:
                begun.set()
                with anyio.CancelScope(shield=True):
                    await go.wait()
                    try:
                        await queue.dequeue()
                    except CancelledError:
                        done.append("woken")
                        raise

            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [op]))
                await begun.wait()
                coord.request_stop()
                await rounds()
                go.set()
            assert done == ["woken"]

        in_loop(body)

    def test_a_late_wait_in_a_thread(self, in_loop: Run) -> None:
        """The worker waits for the thread under a shield, so the stop was not delivered."""

        async def body() -> None:
            begun, go = asyncio.Event(), threading.Event()
            loop, queue = asyncio.get_running_loop(), aioqueue.FIFOQueue[int](1)
            seen: list[BaseException] = []

            def work() -> None:
                loop.call_soon_threadsafe(begun.set)
                assert go.wait(PATIENCE)
                try:
                    queue.sync.dequeue()
                except CancelledError as error:
                    seen.append(error)
                    raise

            async with aioqueue.Coordinator() as coord:
                op = partial(anyio.to_thread.run_sync, work)
                coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [op]))
                await begun.wait()
                coord.request_stop()
                await rounds()
                go.set()
            assert "stop of its coordinator" in str(seen[0])

        in_loop(body)

    def test_a_pipeline_inside_a_worker_closes_normally(self, in_loop: Run, caplog: Any) -> None:
        """The workers of the pipeline do not belong to the worker that reads it."""

        async def body() -> None:
            begun, never = asyncio.Event(), asyncio.Event()

            async def function(number: int) -> int:
                if number == 3:
                    begun.set()
                    await never.wait()
                return number

            async def op() -> None:
                async for _ in numbers(9).prepare(function, workers=1):
                    pass

            with caplog.at_level(logging.WARNING, "aioqueue"):
                await stop_at_once(op, begun)
            assert caplog.messages == []

        in_loop(body)


def test_in_trio_each_await_of_the_clean_up_is_cancelled() -> None:
    """As trio does it everywhere: only a shield protects a clean-up."""
    trio = pytest.importorskip("trio")

    async def body() -> None:
        begun, done = trio.Event(), []

        async def op() -> None:
            begun.set()
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.lowlevel.checkpoint()
                    done.append("shielded")
                await trio.lowlevel.checkpoint()
                done.append("not reached")

        async with aioqueue.Coordinator() as coord:
            coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [op]))
            await begun.wait()
        assert done == ["shielded"]

    TrioWorld().run(body)


def test_stacks_show_where_the_worker_is(in_loop: Run) -> None:
    """Also if the program's own task factory makes the tasks."""

    async def body() -> None:
        begun = asyncio.Event()

        async def op() -> None:
            begun.set()
            await asyncio.Event().wait()

        async with aioqueue.Coordinator() as coord:
            coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(1, name="into"), [op]))
            await begun.wait()
            await rounds(2)
            text = str(coord.explain())
            (worker,) = coord._core._known()
        assert "test_cancellations_once.py" in text
        assert "await asyncio.Event().wait()" in text
        assert "test_cancellations_once.py" in worker.where({}) or not worker.is_alive()

    in_loop(body)


def test_the_clean_up_after_an_interrupted_enqueue_is_not_cancelled(in_loop: Run) -> None:
    """The closed queue delivers the stop, and no cancellation follows."""

    async def body() -> None:
        queue, done = aioqueue.FIFOQueue[int](1), []

        async def op() -> None:
            try:
                await queue.enqueue(1)
            finally:
                if queue.is_closed():
                    await rounds(10)
                    done.append("closed")

        async with aioqueue.Coordinator() as coord:
            coord.start(aioqueue.QueueRunner(queue, [op]))
            while not queue.statistics().waiting_enqueues:
                await rounds(1)
        assert done == ["closed"]

        queue, done[:] = aioqueue.FIFOQueue[int](1), []
        run = asyncio.create_task(aioqueue.QueueRunner(queue, [op]).run())
        while not queue.statistics().waiting_enqueues:
            await rounds(1)
        run.cancel()
        await asyncio.wait([run])
        assert done == ["closed"]

    in_loop(body)
