"""Registering workers with a coordinator, and starting them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.errors import CancelledError, InvalidArgumentError, OutOfRangeError
from aioqueue.system import forks
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate
from tests.kit.coordinators import Make, Thread, group_of, has_begun_to_join, notes, same
from tests.kit.worlds import AsyncioWorld, TaskWorld, World


class TestRegister:
    async def test_refuses_nonsense(self, world: World, make: Make) -> None:
        coord = make()
        for wrong in (None, 5, "worker", threading.Thread, object(), lambda: None):
            with pytest.raises(InvalidArgumentError, match=r"worker: got .*; expected a threading"):
                coord.register(wrong)
        await coord.join()

    async def test_the_same_twice(
        self, world: World, make: Make, thread: Callable[..., Thread]
    ) -> None:
        coord = make()
        worker = thread()
        coord.register(worker)
        coord.register(worker)
        operation = world.spawn(coord.join)
        await world.until(has_begun_to_join(coord))
        worker.release()
        await operation.result()

    def test_the_failure_of_a_task_is_collected_and_stops_all(
        self, loop_world: AsyncioWorld
    ) -> None:
        async def body() -> None:
            coord = aioqueue.Coordinator()
            failure = ValueError()

            async def fail() -> None:
                raise failure

            coord.register(asyncio.create_task(fail(), name="failing"))
            assert await coord.wait_for_stop()
            assert same((await group_of(coord.join())).exceptions, [failure])
            assert notes(failure) == ["in worker failing"]

        loop_world.run(body)

    def test_how_tasks_may_end_without_a_failure(self, loop_world: AsyncioWorld) -> None:
        async def body() -> None:
            coord = aioqueue.Coordinator()

            async def end() -> None:
                raise OutOfRangeError

            async def returns() -> str:
                return "returned"

            cancelled = asyncio.ensure_future(asyncio.Event().wait())
            tasks = [asyncio.create_task(returns()), cancelled]
            for task in tasks:
                coord.register(task)
            cancelled.cancel()
            await coord.join()
            assert not coord.should_stop()
            coord.clear_stop()
            coord.register(asyncio.create_task(end()))
            await coord.join()
            assert coord.should_stop()

        loop_world.run(body)

    def test_the_failure_of_a_future_is_collected(self) -> None:
        coord = sync.Coordinator()
        failure = ValueError()
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        coord.register(future)
        future.set_exception(failure)
        assert coord.should_stop()
        with pytest.raises(ExceptionGroup) as caught:
            coord.join()
        assert same(caught.value.exceptions, [failure])

    def test_the_failure_of_a_task_given_to_join(self, loop_world: AsyncioWorld) -> None:
        """All failures are reported: a task that is only given to `join` is a worker too."""

        async def body() -> None:
            coord = aioqueue.Coordinator()
            failure = ValueError()
            release = asyncio.Event()

            async def fail() -> None:
                await release.wait()
                raise failure

            task = asyncio.create_task(fail(), name="failing")
            operation = loop_world.spawn(coord.join, [task])
            await loop_world.until(has_begun_to_join(coord))
            release.set()
            await asyncio.wait([task])
            assert task.exception() is failure
            assert same((await group_of(operation.result())).exceptions, [failure])

        loop_world.run(body)

    @pytest.mark.parametrize("by_join", [False, True], ids=["registered", "given to a join"])
    def test_their_waits_are_found_in_one_pass(
        self, loop_world: AsyncioWorld, monkeypatch: pytest.MonkeyPatch, by_join: bool
    ) -> None:
        """At the stop, for all workers: at each registration, it would cost their square."""
        looks = 0
        listed = forks._queues.listed

        def counted() -> list[Any]:
            nonlocal looks
            looks += 1
            return listed()

        async def body() -> None:
            coord, queue = aioqueue.Coordinator(), loop_world.fifo(1)
            tasks = [asyncio.ensure_future(queue.dequeue()) for _ in range(20)]
            await loop_world.until(lambda: queue.statistics().waiting_dequeues == 20)
            monkeypatch.setattr(forks._queues, "listed", counted)
            if not by_join:
                for task in tasks:
                    coord.register(task)
            join = asyncio.ensure_future(coord.join(tasks if by_join else None))
            await loop_world.until(has_begun_to_join(coord))
            assert looks == 0
            coord.request_stop()
            await join
            assert looks <= 2, "each worker that ends requests the stop again"
            assert all(isinstance(task.exception(), CancelledError) for task in tasks)
            assert queue.statistics().waiting_dequeues == 0

        loop_world.run(body)

    def test_from_another_thread_than_the_task_s(self, loop_world: AsyncioWorld) -> None:
        """`register` is for any thread; asyncio's futures are for the thread of their loop."""

        async def body() -> None:
            coord = aioqueue.Coordinator()
            failure = ValueError()

            async def fail() -> None:
                raise failure

            task = asyncio.create_task(fail())
            await asyncio.wait([task])
            await asyncio.to_thread(coord.register, task)
            assert await coord.wait_for_stop()
            assert same((await group_of(coord.join())).exceptions, [failure])

        loop_world.run(body)

    def test_a_failure_after_the_join_is_logged(
        self, caplog: pytest.LogCaptureFixture, thread: Callable[..., Thread]
    ) -> None:
        coord = sync.Coordinator()
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        coord.register(future)
        coord.request_stop()
        coord.join(stop_grace_period=0, ignore_live=True)
        future.set_exception(ValueError("too late"))
        assert "failed after the join" in caplog.text
        assert "too late" in caplog.text


class TestStart:
    """Starting workers in the block of the async face."""

    def test_only_within_the_block(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            coord = aioqueue.Coordinator()
            looper = aioqueue.LooperTask(None, coord.request_stop)
            with pytest.raises(RuntimeError, match=r"use\s+`async with aioqueue\.Coordinator\("):
                coord.start(looper)
            async with coord:
                pass
            with pytest.raises(RuntimeError, match="start"):
                coord.start(looper)

        task_world.run(body)

    def test_refuses_nonsense(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            async with aioqueue.Coordinator() as coord:
                for wrong in (None, 5, threading.Thread(), lambda: None):
                    with pytest.raises(InvalidArgumentError, match=r"worker: got"):
                        coord.start(wrong)  # type: ignore[arg-type]

        task_world.run(body)

    def test_refuses_nonsense_on_threads(self) -> None:
        with sync.Coordinator() as coord:
            for wrong in (None, 5, threading.Thread(), lambda: None):
                with pytest.raises(InvalidArgumentError, match="runner: got"):
                    coord.start(wrong)  # type: ignore[arg-type]

    def test_tasks_that_outlive_the_grace_period_are_cancelled(self, task_world: TaskWorld) -> None:
        """The stop does not cancel a looper task; the end of the grace does."""

        async def body() -> None:
            running = Gate()
            ended: list[bool] = []

            async def forever() -> None:
                try:
                    running.open()
                    await Gate().wait(current_waker())
                finally:
                    ended.append(True)

            async with aioqueue.Coordinator(stop_grace_period=0) as coord:
                coord.start(aioqueue.LooperTask(None, forever))
                await running.wait(current_waker())
            assert ended == [True]
            assert coord.joined

        task_world.run(body)

    def test_joining_inside_of_a_started_task(self, task_world: TaskWorld) -> None:
        """A task does not wait for itself."""

        async def body() -> None:
            joined: list[bool] = []

            async with aioqueue.Coordinator(stop_grace_period=0) as coord:

                async def join() -> None:
                    await coord.join()
                    joined.append(True)
                    await coord.wait_for_stop()

                coord.start(aioqueue.LooperTask(None, join))
                await task_world.until(lambda: joined)

        task_world.run(body)
