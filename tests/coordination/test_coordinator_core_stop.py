"""Stops wake all callers, also from signal handlers, in every world."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import threading
from collections.abc import Callable
from functools import partial

import pytest
import trio

import aioqueue
from aioqueue import sync
from aioqueue.coordination.coordinator_core import CoordinatorCore
from aioqueue.errors import InvalidArgumentError
from tests.kit.coordinators import (
    Make,
    StopCallbacks,
    Thread,
    group_of,
    has_begun_to_join,
    joins_waiting,
    notes,
    same,
    throw,
    waiting_for_stop,
)
from tests.kit.worlds import (
    PATIENCE,
    AsyncioWorld,
    TaskWorld,
    ThreadWorld,
    UvloopWorld,
    World,
    core_of,
    ctrl_c,
    press_until,
    spin_until,
)


class TestStop:
    async def test_a_request_is_permanent(self, world: World, make: Make) -> None:
        coord = make()
        assert coord.should_stop() is False
        assert coord.request_stop() is None
        assert coord.should_stop() is True
        coord.request_stop()
        assert coord.should_stop() is True
        await coord.join()
        assert coord.should_stop() is True

    async def test_waiting_for_a_past_stop_returns_at_once(self, world: World, make: Make) -> None:
        coord = make()
        coord.request_stop()
        assert await coord.wait_for_stop() is True
        assert await coord.wait_for_stop() is True

    async def test_waiting_for_it(self, world: World, make: Make) -> None:
        coord = make()
        operation = world.spawn(coord.wait_for_stop)
        await world.until(lambda: waiting_for_stop(coord) == 1)
        assert not operation.done
        coord.request_stop()
        assert await operation.result() is True
        assert waiting_for_stop(coord) == 0

    @pytest.mark.slow("asyncio")
    async def test_wakes_all_waiting_callers(self, world: World, make: Make) -> None:
        coord = make()
        many = 200 if isinstance(world, ThreadWorld) else 1000
        operations = [world.spawn(coord.wait_for_stop) for _ in range(many)]
        await world.until(lambda: waiting_for_stop(coord) == many)
        assert not any(operation.done for operation in operations)
        coord.request_stop()
        assert [await operation.result() for operation in operations] == [True] * many

    async def test_may_be_requested_in_any_thread(self, world: World, make: Make) -> None:
        coord = make()
        operation = world.spawn(coord.wait_for_stop)
        await world.until(lambda: waiting_for_stop(coord) == 1)
        other = threading.Thread(target=coord.request_stop)
        other.start()
        assert await operation.result() is True
        other.join(PATIENCE)

    async def test_clear_stop_forgets_everything(self, world: World, make: Make) -> None:
        coord = make()
        coord.request_stop(ValueError())
        await group_of(coord.join())
        assert coord.joined
        coord.clear_stop()
        assert not coord.should_stop()
        assert not coord.joined
        coord.raise_requested_exception()
        operation = world.spawn(coord.wait_for_stop)
        await world.until(lambda: waiting_for_stop(coord) == 1)
        assert not operation.done
        again = KeyError()
        coord.request_stop(again)
        assert await operation.result() is True
        assert same((await group_of(coord.join())).exceptions, [again])

    def test_a_cancelled_wait_changes_nothing(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            coord = aioqueue.Coordinator()
            first = task_world.spawn(coord.wait_for_stop)
            second = task_world.spawn(coord.wait_for_stop)
            await task_world.until(lambda: waiting_for_stop(coord) == 2)
            first.cancel()
            assert await first.was_cancelled()
            assert waiting_for_stop(coord) == 1
            assert not coord.should_stop()
            coord.request_stop()
            assert await second.result() is True

        task_world.run(body)

    def test_a_timeout_in_a_thread(self) -> None:
        coord = sync.Coordinator()
        assert coord.wait_for_stop(timeout=0) is False
        assert coord.wait_for_stop(timeout=0.001) is False
        assert waiting_for_stop(coord) == 0
        coord.request_stop()
        assert coord.wait_for_stop(timeout=0) is True
        for wrong in (-1, float("nan"), "1", True):
            with pytest.raises(InvalidArgumentError, match=r"timeout: got .*; expected a number"):
                coord.wait_for_stop(timeout=wrong)  # type: ignore[arg-type]

    def test_tasks_of_every_world_and_threads_are_woken_together(self) -> None:
        coord = sync.Coordinator()

        async def wait() -> bool:
            return await coord.aio.wait_for_stop()

        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            results = [
                pool.submit(coord.wait_for_stop),
                pool.submit(lambda: trio.run(wait)),
                pool.submit(lambda: asyncio.run(wait())),
            ]
            spin_until(lambda: waiting_for_stop(coord) == 3)
            coord.request_stop()
            assert [result.result(PATIENCE) for result in results] == [True] * 3

    def test_a_loop_that_was_closed_while_a_task_waited(self) -> None:
        coord = aioqueue.Coordinator()
        loop = asyncio.new_event_loop()
        task = loop.create_task(coord.wait_for_stop())
        spun = loop.create_task(asyncio.sleep(0))
        loop.run_until_complete(spun)
        assert waiting_for_stop(coord) == 1
        loop.close()
        coord.request_stop()
        assert waiting_for_stop(coord) == 0
        assert coord.should_stop()
        assert not task.done()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        task.get_coro().close()  # else its wait is kept for ever

    def test_failures_of_callbacks_are_reported(self) -> None:
        core, error = CoordinatorCore(None), ValueError()
        core.call_on_stop(partial(throw, error))
        core.request_stop(None, "the culprit")
        assert core.failures() == [error]
        assert notes(error) == ["in worker the culprit"]

    def test_no_callback_is_missed_by_a_concurrent_stop(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A callback that is added during a stop is called by it, or at once."""
        core = CoordinatorCore(None)
        called = threading.Event()
        late = threading.Thread(target=core.call_on_stop, args=(called.set,))
        really_open = core.stopped.open

        def open_late() -> None:
            late.start()
            late.join(0.05)  # it may have to wait for us
            really_open()

        monkeypatch.setattr(core.stopped, "open", open_late)
        core.request_stop()
        late.join(PATIENCE)
        assert called.is_set()


class TestSignals:
    """Cases that need the main thread."""

    def test_a_stop_from_a_handler_wakes_the_thread_it_interrupts(self) -> None:
        coord = sync.Coordinator()
        handled = threading.Event()

        def handle(*_: object) -> None:
            coord.request_stop()
            handled.set()

        def interrupt() -> None:
            spin_until(lambda: waiting_for_stop(coord) == 1)
            press_until(handled)

        before = signal.signal(signal.SIGUSR1, handle)
        helper = threading.Thread(target=interrupt)
        try:
            helper.start()
            assert coord.wait_for_stop() is True
        finally:
            helper.join(PATIENCE)
            signal.signal(signal.SIGUSR1, before)

    def test_a_stop_from_a_handler_in_the_middle_of_a_move(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        coord = sync.Coordinator()
        error, gate = ValueError(), core_of(coord).stopped
        shut = gate.shut

        def interrupted() -> None:
            assert core_of(coord).is_entered_here()
            shut()
            signal.raise_signal(signal.SIGUSR1)
            assert not coord.should_stop()  # it cannot be done here, and we are still alive

        monkeypatch.setattr(gate, "shut", interrupted)
        before = signal.signal(signal.SIGUSR1, lambda *_: coord.request_stop(error))
        try:
            coord.clear_stop()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert coord.wait_for_stop(timeout=PATIENCE)
        with pytest.raises(ExceptionGroup) as caught:
            coord.join()
        assert same(caught.value.exceptions, [error])

    @pytest.mark.parametrize("world_type", [AsyncioWorld, UvloopWorld], ids=lambda w: w.name)
    def test_a_stop_from_a_handler_wakes_tasks(self, world_type: type[AsyncioWorld]) -> None:
        coord = aioqueue.Coordinator()
        world = world_type()

        async def body() -> None:
            operation = world.spawn(coord.wait_for_stop)
            await world.until(lambda: waiting_for_stop(coord) == 1)
            signal.raise_signal(signal.SIGUSR1)
            assert await operation.result() is True

        before = signal.signal(signal.SIGUSR1, lambda *_: coord.request_stop())
        try:
            world.run(body)
        finally:
            signal.signal(signal.SIGUSR1, before)

    def test_ctrl_c_ends_a_blocked_join(
        self, thread: Callable[..., Thread], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        coord = sync.Coordinator()
        coord.register(thread())
        kept = StopCallbacks(coord, monkeypatch)

        with pytest.raises(KeyboardInterrupt), ctrl_c(has_begun_to_join(coord)):
            coord.join()
        assert not coord.joined
        assert not joins_waiting(coord)
        assert not kept

    def test_ctrl_c_in_a_block_of_asyncio(self) -> None:
        coord = aioqueue.Coordinator()

        async def body() -> None:
            async with coord:
                signal.raise_signal(signal.SIGINT)
                await asyncio.get_running_loop().create_future()

        with pytest.raises(KeyboardInterrupt), asyncio.Runner(debug=True) as runner:
            runner.run(body())
        assert coord.joined

    def test_ctrl_c_in_a_block_of_threads(self, thread: Callable[..., Thread]) -> None:
        coord = sync.Coordinator()
        worker = thread()
        coord.register(worker)
        failure = ValueError()

        def fail() -> None:
            spin_until(coord.should_stop)
            coord.request_stop(failure)
            worker.release()

        helper = threading.Thread(target=fail)
        helper.start()
        felt = ctrl_c(lambda: waiting_for_stop(coord) == 1)
        with pytest.raises(KeyboardInterrupt) as caught, felt, coord:
            coord.wait_for_stop()
        helper.join(PATIENCE)
        assert coord.joined
        assert isinstance(caught.value.__context__, ExceptionGroup)
        assert same(caught.value.__context__.exceptions, [failure])
