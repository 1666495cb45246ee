"""The two faces of one coordinator, and the references that it leaves."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.coordination import coordinator_core as core_module
from aioqueue.coordination.methods import CoordinatorFace
from aioqueue.errors import StillRunningError
from aioqueue.worlds.current import current_waker
from tests.kit.coordinators import StopCallbacks, Thread, same, waiting_for_stop
from tests.kit.worlds import TaskWorld, core_of, spin_until, waiting_at


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
        """As for queues. Otherwise the two faces could disagree on whether a block was entered."""
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
    def test_a_join_leaves_nothing_behind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        coord = sync.Coordinator()
        kept, known = StopCallbacks(coord, monkeypatch), list[weakref.ref[Thread]]()
        for is_registered in (False, True) * 10:
            worker = Thread("worker")
            known.append(weakref.ref(worker))
            if is_registered:
                coord.register(worker)
            worker.start()
            worker.release()
            coord.join([worker])
            del worker
        spin_until(lambda: "aioqueue-join" not in [one.name for one in threading.enumerate()])
        spin_until(lambda: [one() for one in known] == [None] * len(known))
        assert not kept

    def test_a_removed_callback_is_neither_called_nor_kept(self) -> None:
        core = core_of(sync.Coordinator())
        called: list[str] = []

        def removed() -> None:
            called.append("forgotten")

        core.call_on_stop(removed)
        core.call_on_stop(lambda: called.append("kept"))
        core.forget_on_stop(removed)
        reference = weakref.ref(removed)
        del removed
        assert reference() is None
        core.request_stop()
        core.request_stop()
        assert called == ["kept"]

    def test_an_interrupted_stop_ends_the_waits_of_all_workers(self) -> None:
        core = core_module.CoordinatorCore(None)
        cancelled: list[int] = []

        class Scope:
            def __init__(self, number: int) -> None:
                self.number = self.key = number

            def cancel(self) -> None:
                cancelled.append(self.number)
                if cancelled == [0]:
                    raise KeyboardInterrupt

        core._stop_scopes = {0: Scope(0), 1: Scope(1)}  # type: ignore[dict-item]
        assert isinstance(core.stop_despite_interrupts(None, "the test"), KeyboardInterrupt)
        assert cancelled == [0, 0, 1]

    def test_an_abandoned_join_keeps_nothing(self) -> None:
        coord = aioqueue.Coordinator()
        gate = core_of(coord).stopped
        waker_of: partial[Any] = partial(current_waker)

        async def body() -> None:
            waiting = gate.wait(waker_of())
            waiting.send(None)  # as a loop would
            assert waiting_at(gate) == 1
            del waiting
            gc.collect()
            assert waiting_at(gate) == 0

        asyncio.run(body())


class TestJoinedCoordinators:
    """A joined coordinator refuses its block: each worker would stop at once, unnoticed."""

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
async def test_a_task_that_ignores_its_cancellation_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core_module, "MIN_CLEAN_UP", 0.0)
    may_end = asyncio.Event()

    async def stubborn() -> None:
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    coord = aioqueue.Coordinator()
    task = asyncio.create_task(stubborn(), name="stubborn")
    coord.register(task)
    coord.request_stop()
    with pytest.raises(ExceptionGroup) as caught:
        await coord.join(stop_grace_period=0.0)
    (error,) = caught.value.exceptions
    assert isinstance(error, StillRunningError)
    assert error.workers == ("stubborn",)
    may_end.set()
    await task
