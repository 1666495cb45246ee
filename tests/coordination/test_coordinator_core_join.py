"""`join` waits for the workers, at most for the grace period, in every world."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.coordination import coordinator_core as core_module
from aioqueue.coordination.coordinator_core import CoordinatorCore
from aioqueue.errors import AioQueueError, InvalidArgumentError, StillRunningError
from aioqueue.worlds.scopes import Gate
from tests.kit.coordinators import (
    Make,
    StopCallbacks,
    Thread,
    group_of,
    has_begun_to_join,
    joins_waiting,
    notes,
    same,
    stragglers,
)
from tests.kit.worlds import PATIENCE, AsyncioWorld, TaskWorld, World, spin_until


class TestJoin:
    async def test_without_workers_it_returns_at_once(self, world: World, make: Make) -> None:
        coord = make()
        await coord.join()
        await coord.join([])
        assert coord.joined
        assert not coord.should_stop()

    async def test_waits_for_given_and_registered_workers(
        self, world: World, make: Make, thread: Callable[..., Thread]
    ) -> None:
        coord = make()
        given, registered = thread("given"), thread("registered")
        coord.register(registered)
        operation = world.spawn(coord.join, iter([given, given]))
        await world.until(has_begun_to_join(coord))
        given.release()
        await world.until(lambda: not given.is_alive())
        assert not operation.done
        assert not coord.joined
        registered.release()
        await operation.result()
        assert coord.joined
        assert not coord.should_stop()

    async def test_never_polls(
        self,
        world: World,
        make: Make,
        thread: Callable[..., Thread],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The end of the workers wakes the join; without a stop it sets no timer."""
        timers: list[float | None] = []
        really_block, really_move_on = Gate.wait_blocking, anyio.move_on_after

        def block(gate: Gate, timeout: float | None = None, *scopes: Any) -> bool:
            timers.append(timeout)
            return really_block(gate, timeout, *scopes)

        def move_on(delay: float | None, **options: Any) -> anyio.CancelScope:
            timers.append(delay)
            return really_move_on(delay, **options)

        monkeypatch.setattr(Gate, "wait_blocking", block)
        monkeypatch.setattr(anyio, "move_on_after", move_on)
        coord = make()
        workers = [thread() for _ in range(5)]
        operation = world.spawn(coord.join, workers)
        await world.until(has_begun_to_join(coord))
        for worker in workers:
            worker.release()
        await operation.result()
        # One wait for all workers; in several processes, one each before it and after it.
        assert set(timers) == {None}
        assert len(timers) <= 3

    async def test_the_stop_is_not_the_end(
        self, world: World, make: Make, thread: Callable[..., Thread]
    ) -> None:
        coord = make()
        late = ValueError()
        worker = thread("late", lambda: coord.request_stop(late))
        coord.register(worker)
        operation = world.spawn(coord.join)
        await world.until(has_begun_to_join(coord))
        early = KeyError()
        coord.request_stop(early)
        await world.until(coord.should_stop)
        assert not operation.done
        assert joins_waiting(coord)
        worker.release()
        group = await group_of(operation.result())
        assert same(group.exceptions, [early, late])
        assert notes(late) == ["in worker late"]

    async def test_threads_that_were_never_started_count_as_dead(
        self, world: World, make: Make
    ) -> None:
        coord = make()
        coord.register(threading.Thread())
        await coord.join([threading.Thread()])
        assert coord.joined

    async def test_forgets_registered_workers(
        self, world: World, make: Make, thread: Callable[..., Thread]
    ) -> None:
        coord = make()
        worker = thread()
        coord.register(worker)
        coord.request_stop()
        await coord.join(stop_grace_period=0, ignore_live=True)
        assert worker.is_alive()
        await coord.join()
        with pytest.raises(ExceptionGroup):
            await coord.join([worker], stop_grace_period=0)

    def test_from_within_a_worker_thread(self, thread: Callable[..., Thread]) -> None:
        coord = sync.Coordinator()
        joined = threading.Event()

        def join() -> None:
            coord.join()
            joined.set()

        other, joiner = thread("other"), thread("joiner", join)
        coord.register(other)
        coord.register(joiner)
        joiner.release()
        spin_until(has_begun_to_join(coord))
        assert not joined.is_set()
        other.release()
        assert joined.wait(PATIENCE)

    def test_the_calling_thread_is_no_straggler(self, thread: Callable[..., Thread]) -> None:
        coord = sync.Coordinator()
        raised: list[BaseException] = []

        def join() -> None:
            try:
                coord.join(stop_grace_period=0)
            except ExceptionGroup as group:
                raised.extend(group.exceptions)

        joiner, other = thread("joiner", join), thread("other")
        coord.register(joiner)
        coord.register(other)
        coord.request_stop()
        joiner.release()
        joiner.join(PATIENCE)
        assert [getattr(error, "workers", None) for error in raised] == [("other",)]

    def test_from_within_a_registered_task(self, loop_world: AsyncioWorld) -> None:
        """A task does not wait for itself."""

        async def body() -> None:
            coord = aioqueue.Coordinator()

            async def worker() -> None:
                task = asyncio.current_task()
                assert task is not None
                coord.register(task)
                await coord.join(stop_grace_period=0)

            coord.request_stop()
            await worker_task(worker)
            assert coord.joined

        async def worker_task(worker: Callable[[], Any]) -> None:
            await asyncio.create_task(worker())

        loop_world.run(body)

    async def test_several_at_once(
        self, world: World, make: Make, thread: Callable[..., Thread]
    ) -> None:
        coord = make()
        worker = thread()
        error = ValueError()
        coord.register(worker)
        joins = [world.spawn(coord.join) for _ in range(5)]
        await world.until(lambda: joins_waiting(coord) == 5)
        coord.request_stop(error)
        worker.release()
        for join in joins:
            assert same((await group_of(join.result())).exceptions, [error])

    def test_a_cancelled_join_changes_nothing(
        self,
        task_world: TaskWorld,
        thread: Callable[..., Thread],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        async def body() -> None:
            coord = aioqueue.Coordinator()
            kept = StopCallbacks(coord, monkeypatch)
            worker = thread()
            coord.register(worker)
            operation = task_world.spawn(coord.join)
            await task_world.until(has_begun_to_join(coord))
            operation.cancel()
            assert await operation.was_cancelled()
            assert not coord.joined
            assert not joins_waiting(coord)
            assert not kept
            assert worker.is_alive()
            again = task_world.spawn(coord.join)
            await task_world.until(has_begun_to_join(coord))
            worker.release()
            await again.result()

        task_world.run(body)

    async def test_refuses_objects_that_are_no_workers(self, world: World, make: Make) -> None:
        coord = make()
        for wrong in (["thread"], [5], [None], [lambda: None]):
            with pytest.raises(InvalidArgumentError, match=r"worker: got .*; expected a threading"):
                await coord.join(wrong)
        assert not coord.joined

    async def test_refuses_workers_that_are_not_iterable(self, world: World, make: Make) -> None:
        coord = make()
        for wrong in (5, threading.Thread()):
            with pytest.raises(InvalidArgumentError, match="worker"):
                await coord.join(wrong)

    def test_blocking_in_a_running_event_loop_is_refused(
        self, task_world: TaskWorld, thread: Callable[..., Thread]
    ) -> None:
        async def body() -> None:
            coord = sync.Coordinator()
            with pytest.raises(RuntimeError, match=r"use `await coord\.aio\.wait_for_stop\("):
                coord.wait_for_stop()
            with pytest.raises(RuntimeError, match=r"use `await coord\.aio\.join\("):
                coord.join([thread()])
            coord.request_stop()
            assert coord.wait_for_stop() is True

        task_world.run(body)

    def test_blocking_in_a_running_event_loop_where_nothing_is_to_wait_for(
        self, task_world: TaskWorld
    ) -> None:
        async def body() -> None:
            sync.Coordinator().join()

        task_world.run(body)


class TestGrace:
    """Workers that still run after a stop."""

    async def test_threads_still_running_are_named(
        self, world: World, make: Make, thread: Callable[..., Thread]
    ) -> None:
        coord = make()
        failure = ValueError()
        coord.register(thread("a"))
        coord.request_stop(failure)
        group = await group_of(coord.join([thread("b")], stop_grace_period=0.001))
        assert group.exceptions[0] is failure
        still_running = group.exceptions[1]
        assert isinstance(still_running, StillRunningError)
        assert isinstance(still_running, (RuntimeError, AioQueueError))
        assert sorted(still_running.workers) == ["a", "b"]
        assert all(name in str(still_running) for name in still_running.workers)
        assert coord.joined

    async def test_a_single_straggler_is_in_a_group_too(
        self, world: World, make: Make, thread: Callable[..., Thread]
    ) -> None:
        coord = make()
        coord.request_stop()
        group = await group_of(coord.join([thread("slow")], stop_grace_period=0))
        assert stragglers(group) == [("slow",)]

    async def test_ignore_live(
        self,
        world: World,
        make: Make,
        thread: Callable[..., Thread],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        coord = make()
        coord.request_stop()
        with caplog.at_level(logging.WARNING, "aioqueue"):
            await coord.join([thread("slow")], stop_grace_period=-1, ignore_live=True)
        assert "still running: slow" in caplog.text
        failure = ValueError()
        coord.clear_stop()
        coord.request_stop(failure)
        group = await group_of(coord.join([thread()], stop_grace_period=0, ignore_live=True))
        assert same(group.exceptions, [failure])

    async def test_a_worker_that_ends_in_time_is_no_straggler(
        self, world: World, make: Make, thread: Callable[..., Thread]
    ) -> None:
        coord = make()
        workers = [thread(f"worker-{number}") for number in range(3)]
        coord.request_stop()
        for worker in workers[:2]:
            worker.release()
            worker.join(PATIENCE)
        group = await group_of(coord.join(workers, stop_grace_period=0))
        assert stragglers(group) == [("worker-2",)]

    def test_counts_from_the_stop(
        self, thread: Callable[..., Thread], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = 100.0
        monkeypatch.setattr(core_module, "monotonic", lambda: now)
        core = CoordinatorCore(None)
        joining = core.joining([thread()], 10.0, False)
        gate, seconds = next(joining)
        assert (gate.is_open, seconds) == (False, None)
        core.request_stop()
        assert gate.is_open
        now = 103.0
        gate, seconds = next(joining)
        assert (gate.is_open, seconds) == (False, 2.0), "then it is slow"
        now = 105.0
        gate, seconds = next(joining)
        assert (gate.is_open, seconds) == (False, 5.0)
        late = core.joining([thread()], 2.0, True)
        assert next(late)[0].is_open
        assert next(late)[1] == 0.0
        joining.close()
        late.close()

    def test_the_default_is_two_minutes(
        self, thread: Callable[..., Thread], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[float] = []

        def joining(
            core: CoordinatorCore, workers: Any, grace: float, ignore: bool, **_: object
        ) -> Iterator[Any]:
            seen.append(grace)
            yield from ()

        monkeypatch.setattr(CoordinatorCore, "joining", joining)
        sync.Coordinator().join()
        asyncio.run(aioqueue.Coordinator().join())
        with sync.Coordinator():
            pass
        with sync.Coordinator(stop_grace_period=5):
            pass
        assert seen == [120.0, 120.0, 120.0, 5.0]

    def test_tasks_are_cancelled(
        self, loop_world: AsyncioWorld, thread: Callable[..., Thread]
    ) -> None:
        async def body() -> None:
            coord = aioqueue.Coordinator()
            forever = asyncio.ensure_future(asyncio.Event().wait())
            coord.register(forever)
            coord.request_stop()
            slow = thread("slow")
            group = await group_of(coord.join([slow], stop_grace_period=0))
            assert forever.cancelled()
            assert stragglers(group) == [("slow",)]

        loop_world.run(body)

    def test_a_task_that_fails_when_cancelled_is_reported(self, loop_world: AsyncioWorld) -> None:
        async def body() -> None:
            coord = aioqueue.Coordinator()
            failure = ValueError()
            started = asyncio.Event()

            async def worker() -> None:
                try:
                    started.set()
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    raise failure from None

            coord.register(asyncio.create_task(worker(), name="cleaner"))
            await started.wait()
            coord.request_stop()
            group = await group_of(coord.join(stop_grace_period=0))
            assert same(group.exceptions, [failure])
            assert notes(failure) == ["in worker cleaner"]

        loop_world.run(body)

    def test_a_thread_can_wait_for_tasks(self, loop_world: AsyncioWorld) -> None:
        async def body() -> None:
            coord = aioqueue.Coordinator()
            forever = asyncio.ensure_future(asyncio.Event().wait())
            coord.register(forever)
            coord.request_stop()
            await asyncio.to_thread(coord.sync.join, stop_grace_period=0)
            assert forever.cancelled()

        loop_world.run(body)

    def test_a_future_that_cannot_be_cancelled_is_a_straggler(
        self, thread: Callable[..., Thread]
    ) -> None:
        coord = sync.Coordinator()
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        coord.register(future)
        coord.request_stop()
        with pytest.raises(ExceptionGroup) as caught:
            coord.join(stop_grace_period=0)
        assert "Future" in stragglers(caught.value)[0][0]
        future.set_result(None)

    def test_a_task_whose_loop_was_closed_never_ends(self) -> None:
        """It counts as ended, like a thread that was never started."""
        coord = sync.Coordinator()
        loop = asyncio.new_event_loop()
        task = loop.create_task(asyncio.Event().wait())
        loop.run_until_complete(asyncio.sleep(0))
        coord.register(task)
        loop.close()
        coord.request_stop()
        try:
            coord.join(stop_grace_period=0)
        finally:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        assert coord.joined
