"""Interrupted joins: failures are still reported, and nothing is left behind."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.errors import OutOfRangeError
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate
from tests.kit.worlds import PATIENCE, AsyncioWorld, TaskWorld, core_of, spin_until


class TestCancelledExit:
    """The task of a block is cancelled while a worker thread is in a call."""

    @pytest.mark.parametrize("failing", [False, True], ids=["well", "failing"])
    @pytest.mark.parametrize("by", ["timeout", "task group"])
    def test_by_scopes_timeouts_and_cancel(
        self, loop_world: AsyncioWorld, by: str, failing: bool
    ) -> None:
        error = ValueError("must be reported")
        in_call, go = threading.Event(), threading.Event()

        def slow() -> None:
            in_call.set()
            go.wait(PATIENCE)

        async def block(
            coord: aioqueue.Coordinator, at_last: Callable[[], object] = lambda: None
        ) -> None:
            queue = aioqueue.FIFOQueue(4)
            async with coord:
                coord.start(aioqueue.QueueRunner(queue, [slow]))
                await loop_world.until(in_call.is_set)
                if failing:
                    coord.request_stop(error)
                at_last()

        async def cancelled(coord: aioqueue.Coordinator) -> None:
            if by == "timeout":
                async with asyncio.timeout(None) as timeout:
                    call_soon = partial(asyncio.get_running_loop().call_soon, timeout.reschedule, 0)
                    await block(coord, call_soon)
                return
            async with asyncio.TaskGroup() as group:
                group.create_task(block(coord))
                await loop_world.until(coord.should_stop)
                await asyncio.sleep(0)
                raise KeyError("why the group is aborted")

        async def body() -> None:
            coord = aioqueue.Coordinator()
            task = asyncio.create_task(cancelled(coord))
            await loop_world.until(coord.should_stop)
            for _ in range(10):
                await asyncio.sleep(0)
            assert not task.done()
            go.set()
            await asyncio.wait([task])
            raised = task.exception()
            text = repr(raised)
            assert coord.joined
            assert ("must be reported" in text) is failing
            if by == "timeout":
                assert isinstance(raised, ExceptionGroup if failing else TimeoutError)
            else:
                assert "why the group is aborted" in text
            assert task.cancelling() == 0

        loop_world.run(body)

    def test_a_scope_around_a_block_of_threads(self) -> None:
        error = ValueError("must be reported")
        go = threading.Event()
        thread = threading.Thread(target=go.wait, args=(PATIENCE,))
        thread.start()
        with (
            pytest.raises(ExceptionGroup) as caught,
            sync.CancelScope() as scope,
            sync.Coordinator() as coord,
        ):
            coord.register(thread)
            coord.request_stop(error)
            scope.cancel()
        assert caught.value.exceptions == (error,)
        assert isinstance(caught.value.__context__, aioqueue.CancelledError)
        go.set()
        thread.join()


class TestInsideABlock:
    @pytest.mark.parametrize("failing", [False, True], ids=["well", "failing"])
    def test_the_end_of_the_grace_cancels_the_workers_only(
        self, task_world: TaskWorld, failing: bool
    ) -> None:
        async def body() -> None:
            error = ValueError("must be reported")
            running = Gate()
            messages: list[str] = []

            async def forever() -> None:
                running.open()
                await Gate().wait(current_waker())

            coord = aioqueue.Coordinator()
            try:
                async with coord:
                    coord.start(aioqueue.LooperTask(None, forever))
                    await running.wait(current_waker())
                    coord.request_stop(error if failing else None)
                    await coord.join(stop_grace_period=0)
                    messages.append("joined")
                    await task_world.tick()
                    messages.append("goes on")
            except ExceptionGroup as group:
                assert group.exceptions == (error,)
                messages.append("reported")
            assert messages == (["reported"] if failing else ["joined", "goes on"])

        task_world.run(body)

    def test_a_cancelled_worker_does_not_affect_others(self, loop_world: AsyncioWorld) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(2)

            async def op() -> None:
                await queue.enqueue(1)

            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.QueueRunner(queue, [op] * 3))
                await loop_world.until(lambda: queue.size() == 2)
                workers = [
                    t for t in asyncio.all_tasks() if t.get_name().startswith("aioqueue-op-")
                ]
                workers[0].cancel()
                await asyncio.wait(workers[:1])
                assert [await queue.dequeue() for _ in range(9)] == [1] * 9
                for worker in workers:
                    worker.cancel()
                with pytest.raises(OutOfRangeError):
                    while True:
                        await queue.dequeue()
                assert not coord.should_stop()
            assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]

        loop_world.run(body)

    def test_a_task_that_ignores_its_cancellation_is_cancelled_again(
        self, loop_world: AsyncioWorld
    ) -> None:
        """The test cancels it, then the stop, then the end of the grace period."""

        async def body() -> None:
            queue = aioqueue.FIFOQueue(2)
            interrupted: list[int] = []

            async def op() -> None:
                while True:
                    try:
                        await Gate().wait(current_waker())
                    except asyncio.CancelledError:
                        interrupted.append(1)
                        if len(interrupted) == 3:
                            raise

            async with aioqueue.Coordinator(stop_grace_period=0) as coord:
                coord.start(aioqueue.QueueRunner(queue, [op]))
                await asyncio.sleep(0)
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                await asyncio.sleep(0)
            assert len(interrupted) == 3

        loop_world.run(body)


class TestFailuresOfFutures:
    def test_a_future_that_has_just_failed(self) -> None:
        """Its callbacks were not called yet, or are just being called."""
        for _ in range(200):
            error = ValueError()
            future = concurrent.futures.Future[None]()
            coord = sync.Coordinator()
            coord.register(future)
            setter = threading.Thread(target=future.set_exception, args=(error,))
            setter.start()
            spin_until(future.done)
            coord.request_stop()
            with pytest.raises(ExceptionGroup) as caught:
                coord.join()
            assert caught.value.exceptions == (error,)
            setter.join()

    def test_a_future_whose_failure_is_just_being_reported(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another thread has taken the failure and has not stopped the coordinator yet."""
        coord, error = sync.Coordinator(), ValueError()
        future = concurrent.futures.Future[None]()
        coord.register(future)
        stop, has_taken, is_joined = core_of(coord).stop, threading.Event(), threading.Event()

        def stop_late(error: BaseException | None, worker: str) -> None:
            if threading.current_thread() is setter:
                has_taken.set()
                assert is_joined.wait(PATIENCE)
            stop(error, worker)

        monkeypatch.setattr(core_of(coord), "stop", stop_late)
        setter = threading.Thread(target=future.set_exception, args=(error,))
        setter.start()
        assert has_taken.wait(PATIENCE)
        coord.request_stop()
        with pytest.raises(ExceptionGroup) as caught:
            coord.join()
        is_joined.set()
        setter.join()
        assert caught.value.exceptions == (error,)

    def test_a_second_join_reports_them(self) -> None:
        """It reports the failures of the first join, and later ones."""
        errors = [ValueError("first"), ValueError("second")]
        coord = sync.Coordinator()
        for n, error in enumerate(errors):
            future = concurrent.futures.Future[None]()
            future.set_exception(error)
            coord.request_stop()
            with pytest.raises(ExceptionGroup) as caught:
                coord.join([future])
            assert list(caught.value.exceptions) == errors[: n + 1]


class TestNoMoreThreads:
    """The system has no more threads for a moment ("can't start new thread")."""

    def test_for_a_join(self, monkeypatch: pytest.MonkeyPatch) -> None:
        go = threading.Event()
        thread = threading.Thread(target=go.wait, args=(PATIENCE,))
        thread.start()
        coord = sync.Coordinator()
        coord.register(thread)
        self.refuse(monkeypatch, "aioqueue-join")
        with pytest.raises(RuntimeError, match="can't start new thread"):
            coord.join()
        error = ValueError("must be reported")
        coord.request_stop(error)
        with pytest.raises(ExceptionGroup) as caught:
            coord.join()
        assert [str(failure) for failure in caught.value.exceptions] == [
            "must be reported",
            "can't start new thread",
        ]
        monkeypatch.undo()
        assert not coord.joined
        go.set()
        with pytest.raises(ExceptionGroup) as caught:
            coord.join()
        assert caught.value.exceptions == (error,)
        assert not thread.is_alive()

    @pytest.mark.parametrize("face", [aioqueue, sync], ids=["aio", "sync"])
    def test_for_the_end_of_a_block(self, face: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        go = threading.Event()
        thread = threading.Thread(target=go.wait, args=(PATIENCE,))
        thread.start()
        self.refuse(monkeypatch, "aioqueue-join")
        error = ValueError("must be reported")

        async def block() -> None:
            async with aioqueue.Coordinator() as coord:
                coord.register(thread)
                coord.request_stop(error)

        def block_sync() -> None:
            with sync.Coordinator() as coord:
                coord.register(thread)
                coord.request_stop(error)

        with pytest.raises(ExceptionGroup) as caught:
            AsyncioWorld().run(block) if face is aioqueue else block_sync()
        assert error in caught.value.exceptions
        go.set()
        thread.join()

    def refuse(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        start = threading.Thread.start

        def start_others(thread: threading.Thread) -> None:
            if thread.name == name:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_others)
