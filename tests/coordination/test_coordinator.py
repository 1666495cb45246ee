"""The two faces of one coordinator, and what is left when it is done."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.coordination import core as core_module
from aioqueue.coordination.face import CoordinatorFace
from aioqueue.errors import StillRunningError
from tests.coordination.coordinators import Thread, same, waiting_for_stop
from tests.worlds import TaskWorld, spin_until


class TestFaces:
    def test_share_everything(self, thread: Callable[..., Thread]) -> None:
        threads = sync.Coordinator([KeyError], stop_grace_period=0)
        tasks = threads.aio
        assert isinstance(tasks, aioqueue.Coordinator)
        assert isinstance(tasks.sync, sync.Coordinator)
        tasks.request_stop(KeyError())
        assert threads.should_stop()
        failure = ValueError()
        threads.request_stop(failure)
        with pytest.raises(ExceptionGroup) as caught:
            tasks.raise_requested_exception()
        assert same(caught.value.exceptions, [failure])
        tasks.register(thread("slow"))
        with pytest.raises(ExceptionGroup) as caught, tasks.sync:
            pass  # the grace period is shared too
        assert caught.value.exceptions[0] is failure
        assert isinstance(caught.value.exceptions[1], StillRunningError)
        assert tasks.joined
        assert threads.joined
        threads.clear_stop()
        assert not tasks.should_stop()
        assert not tasks.joined

    def test_a_thread_stops_tasks_and_a_task_stops_threads(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            coord = aioqueue.Coordinator()
            woken = threading.Event()

            def wait() -> None:
                coord.sync.wait_for_stop()
                woken.set()

            other = threading.Thread(target=wait)
            other.start()
            await task_world.until(lambda: waiting_for_stop(coord) == 1)
            coord.request_stop()
            await coord.join([other])
            assert woken.is_set()

        task_world.run(body)

    def test_a_face_of_a_face_is_the_first_one(self) -> None:
        """As for queues; else what is within a block would depend on whom one asks."""
        tasks, threads = aioqueue.Coordinator(), sync.Coordinator()
        assert tasks.sync.aio is tasks
        assert threads.aio.sync is threads

    def test_a_block_is_shared(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            calls: list[int] = []
            async with aioqueue.Coordinator() as coord:
                again = coord.sync.aio

                def call() -> None:
                    calls.append(1)
                    again.request_stop()

                again.start(aioqueue.LooperTask(None, call))
                await coord.wait_for_stop()
            assert calls == [1]

        task_world.run(body)

    def test_both_are_coordinators(self) -> None:
        for face in (aioqueue.Coordinator(), sync.Coordinator()):
            assert isinstance(face, CoordinatorFace)


class TestLeaks:
    def test_a_join_leaves_nothing_behind(self, thread: Callable[..., Thread]) -> None:
        coord = sync.Coordinator()
        for _ in range(20):
            worker = thread()
            worker.release()
            coord.join([worker])
        spin_until(lambda: "aioqueue-join" not in [one.name for one in threading.enumerate()])
        assert not coord._core._workers
        assert not coord._core._on_stop

    def test_a_wait_that_was_abandoned_is_forgotten(self) -> None:
        coord = aioqueue.Coordinator()
        gate = coord._core.stopped
        waker_of: partial[Any] = partial(aioqueue.waiting.current_waker)

        async def body() -> None:
            waiting = gate.wait(waker_of())
            waiting.send(None)  # as a loop would
            assert len(gate._waiting) == 1
            del waiting
            gc.collect()
            assert len(gate._waiting) == 0

        asyncio.run(body())


class TestUsedUp:
    """A coordinator that has been joined would stop every worker at once, unnoticed."""

    async def test_a_block_of_tasks(self, task_world: TaskWorld) -> None:
        coord = aioqueue.Coordinator()
        async with coord:
            pass
        with pytest.raises(RuntimeError, match=r"joined: call clear_stop\(\)"):
            async with coord:
                pytest.fail("it was entered")
        coord.clear_stop()
        async with coord:
            assert not coord.should_stop()

    def test_a_block_of_threads(self) -> None:
        coord = sync.Coordinator()
        with coord:
            pass
        with pytest.raises(RuntimeError, match="joined"), coord:
            pytest.fail("it was entered")
        coord.clear_stop()
        with coord:
            assert not coord.should_stop()


@pytest.mark.asyncio
async def test_a_task_that_will_not_be_cancelled_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core_module, "_CLEANUP", 0.0)
    let_go = asyncio.Event()

    async def stubborn() -> None:
        while not let_go.is_set():
            with suppress(asyncio.CancelledError):
                await let_go.wait()

    coord = aioqueue.Coordinator()
    task = asyncio.create_task(stubborn(), name="stubborn")
    coord.register(task)
    coord.request_stop()
    with pytest.raises(ExceptionGroup) as caught:
        await coord.join(stop_grace_period=0.0)
    (error,) = caught.value.exceptions
    assert isinstance(error, StillRunningError)
    assert error.workers == ("stubborn",)
    let_go.set()
    await task
