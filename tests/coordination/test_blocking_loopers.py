"""`LooperThread` and `LooperTask` call a function at an interval.

No test waits for a clock: threads get a clock of their own, and tasks run under trio's, which jumps
to the next deadline when all are asleep.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

import aioqueue
from aioqueue import sync
from aioqueue.coordination import aio, blocking
from aioqueue.errors import InvalidArgumentError, OutOfRangeError
from aioqueue.testing import wait_until_waiting
from tests.kit.worlds import PATIENCE, TaskWorld, core_of


class Clock:
    """Stands in for `monotonic` and for the wait between two calls of a looper thread."""

    def __init__(self, coord: sync.Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []
        self.coord = coord
        monkeypatch.setattr(blocking, "monotonic", lambda: self.now)
        monkeypatch.setattr(core_of(coord).stopped, "wait_blocking", self.wait)

    def wait(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now += seconds
        return self.coord.should_stop()


class Recording(sync.LooperThread):
    """A looper that records its calls, and stops after some."""

    def __init__(self, coord: sync.Coordinator, interval: float | None, calls: int = 3) -> None:
        super().__init__(coord, interval)
        self.coord = coord
        self.left = calls
        self.messages: list[str] = []
        self.during_call: Callable[[], object] = lambda: None

    def start_loop(self) -> None:
        self.messages.append("start")

    def run_loop(self) -> None:
        self.messages.append("run")
        self.during_call()
        self.left -= 1
        if not self.left:
            self.coord.request_stop()

    def stop_loop(self) -> None:
        self.messages.append("stop")


class TestThread:
    def test_hooks(self) -> None:
        coord = sync.Coordinator()
        looper = Recording(coord, None)
        looper.start()
        coord.join()
        assert looper.messages == ["start", "run", "run", "run", "stop"]
        assert not looper.is_alive()

    def test_is_a_daemon_that_registers_itself(self) -> None:
        coord = sync.Coordinator()
        looper = Recording(coord, None)
        assert looper.daemon
        assert core_of(coord).worker_threads() == [looper]
        coord.join()  # it was never started

    def test_never_called_after_a_stop(self) -> None:
        coord = sync.Coordinator()
        coord.request_stop()
        looper = Recording(coord, None)
        looper.start()
        coord.join()
        assert looper.messages == ["start", "stop"]

    def test_a_target_with_arguments(self) -> None:
        coord = sync.Coordinator()
        seen: list[Any] = []

        def target(*arguments: Any, **options: Any) -> None:
            seen.append((arguments, options, threading.current_thread()))
            coord.request_stop()

        looper = sync.LooperThread.loop(coord, None, target, (1, 2), {"key": 3})
        coord.join()
        assert seen == [((1, 2), {"key": 3}, looper)]
        assert looper.name == "aioqueue-target"

    @pytest.mark.parametrize("hook", ["start_loop", "run_loop"])
    def test_stop_loop_is_not_called_after_a_failure(self, hook: str) -> None:
        coord = sync.Coordinator()
        error = ValueError()
        looper = Recording(coord, None)

        def fail() -> None:
            raise error

        setattr(looper, hook, fail)
        looper.start()
        with pytest.raises(ExceptionGroup) as caught:
            coord.join()
        assert caught.value.exceptions == (error,)
        assert error.__notes__ == [f"in worker {looper.name}"]
        assert "stop" not in looper.messages

    def test_stop_loop_may_wait(self) -> None:
        """The stop ends the waits of `run_loop`, and not those of `stop_loop`."""
        queue = sync.FIFOQueue(1)
        queue.enqueue("first")
        is_stopping, taken = threading.Event(), []

        class Last(sync.LooperThread):
            def run_loop(self) -> None:
                queue.enqueue("never")

            def stop_loop(self) -> None:
                is_stopping.set()
                queue.enqueue("last")

        def take_both() -> None:
            assert is_stopping.wait(PATIENCE)
            wait_until_waiting(queue, enqueues=1)
            taken.extend([queue.dequeue(), queue.dequeue(timeout=PATIENCE)])

        thread = threading.Thread(target=take_both)
        thread.start()
        with sync.Coordinator() as coord:
            Last(coord, None).start()
            wait_until_waiting(queue, enqueues=1)
        thread.join(PATIENCE)
        assert taken == ["first", "last"]

    def test_a_clean_stop_is_no_failure(self) -> None:
        coord = sync.Coordinator()
        looper = Recording(coord, None)

        def end() -> None:
            raise OutOfRangeError

        looper.during_call = end
        looper.start()
        coord.join()
        assert coord.should_stop()

    def test_a_grid_of_times(self, monkeypatch: pytest.MonkeyPatch) -> None:
        coord = sync.Coordinator()
        clock = Clock(coord, monkeypatch)
        looper = Recording(coord, 10, calls=4)
        times: list[float] = []

        def call() -> None:
            times.append(clock.now)
            clock.now += 3

        looper.during_call = call
        looper.run()
        assert times == [1000, 1010, 1020, 1030]
        assert clock.pauses[:3] == [7, 7, 7]

    def test_late_calls_are_made_up_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        coord = sync.Coordinator()
        clock = Clock(coord, monkeypatch)
        looper = Recording(coord, 10, calls=6)
        times: list[float] = []

        def call() -> None:
            times.append(clock.now)
            clock.now += 35 if len(times) == 1 else 0

        looper.during_call = call
        looper.run()
        assert times == [1000, 1035, 1035, 1035, 1040, 1050]
        assert clock.pauses[:5] == [0, 0, 0, 5, 10]

    def test_without_an_interval_it_does_not_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        coord = sync.Coordinator()
        clock = Clock(coord, monkeypatch)
        Recording(coord, None, calls=4).run()
        assert set(clock.pauses) <= {0.0}
        assert clock.now == 1000

    def test_a_stop_ends_the_pause(self) -> None:
        coord = sync.Coordinator()
        called = threading.Event()
        looper = sync.LooperThread.loop(coord, 10**6, called.set)
        assert called.wait(PATIENCE)
        coord.request_stop()
        coord.join()
        assert not looper.is_alive()

    def test_takes_a_coordinator_of_either_face(self) -> None:
        coord = aioqueue.Coordinator()
        sync.LooperThread.loop(coord, None, coord.request_stop)
        coord.sync.join()

    def test_wrong_arguments(self) -> None:
        coord: Any = sync.Coordinator()
        wrong: Any
        for wrong in (None, 5, "coord"):
            with pytest.raises(
                InvalidArgumentError, match=r"coord: got .*; expected a Coordinator"
            ):
                sync.LooperThread(wrong, None)
        for wrong in (-1, "1", True, float("nan")):
            with pytest.raises(InvalidArgumentError, match=r"timer_interval_secs: got .* seconds"):
                sync.LooperThread(coord, wrong)
        for options in ({"args": (1,)}, {"kwargs": {"a": 1}}):
            with pytest.raises(InvalidArgumentError, match="without a target"):
                sync.LooperThread(coord, None, **options)
        assert not core_of(coord).worker_threads()

    def test_refuses_targets_that_are_not_callable(self) -> None:
        coord = sync.Coordinator()

        async def target() -> None: ...

        for wrong in (5, target):
            with pytest.raises(InvalidArgumentError, match="target: got"):
                sync.LooperThread(coord, None, wrong)  # type: ignore[arg-type]


class TestTask:
    @pytest.mark.parametrize("kind", ["function", "coroutine function", "partial"])
    def test_calls_until_the_stop(self, task_world: TaskWorld, kind: str) -> None:
        async def body() -> None:
            seen: list[Any] = []

            def target(*arguments: Any, **options: Any) -> None:
                seen.append((arguments, options, threading.current_thread()))
                if len(seen) == 3:
                    coord.request_stop()

            async def target_async(*arguments: Any, **options: Any) -> None:
                await task_world.tick()
                target(*arguments, **options)

            function: Callable[..., Any] = target if kind == "function" else target_async
            if kind == "partial":
                function = functools.partial(function)
            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.LooperTask(None, function, (1, 2), {"key": 3}))
                await coord.wait_for_stop()
            assert seen == [((1, 2), {"key": 3}, threading.current_thread())] * 3

        task_world.run(body)

    def test_lets_other_tasks_run(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            calls: list[int] = []
            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.LooperTask(None, lambda: calls.append(1)))
                await task_world.until(lambda: len(calls) >= 5)

        task_world.run(body)

    def test_a_failure(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            error = ValueError()

            def fail() -> None:
                raise error

            async def block() -> None:
                async with aioqueue.Coordinator() as coord:
                    coord.start(aioqueue.LooperTask(None, fail))
                    await coord.wait_for_stop()

            with pytest.raises(ExceptionGroup) as caught:
                await block()
            assert caught.value.exceptions == (error,)
            assert error.__notes__ == ["in worker aioqueue-fail"]

        task_world.run(body)

    def test_a_clean_stop_is_no_failure(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            def end() -> None:
                raise OutOfRangeError

            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.LooperTask(None, end))
                assert await coord.wait_for_stop()

        task_world.run(body)

    def test_never_called_after_a_stop(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            calls: list[int] = []
            async with aioqueue.Coordinator() as coord:
                coord.request_stop()
                coord.start(aioqueue.LooperTask(None, calls.append, (1,)))
            assert calls == []

        task_world.run(body)

    def test_a_stop_ends_the_pause(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            calls: list[int] = []
            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.LooperTask(10**6, calls.append, (1,)))
                await task_world.until(lambda: calls)
            assert calls == [1]

        task_world.run(body)

    @pytest.mark.parametrize(
        ("busy", "expected"),
        [
            ([3] * 4, [0, 10, 20, 30]),
            ([0, 35, 0, 0, 0, 0], [0, 10, 45, 45, 45, 50]),
        ],
        ids=["on time", "missed ticks"],
    )
    def test_a_grid_of_times(
        self, monkeypatch: pytest.MonkeyPatch, busy: list[float], expected: list[float]
    ) -> None:
        monkeypatch.setattr(aio, "monotonic", trio.current_time)
        times: list[float] = []

        async def main() -> None:
            began = trio.current_time()

            async def target() -> None:
                times.append(round(trio.current_time() - began, 3))
                if len(times) == len(busy):
                    coord.request_stop()
                else:
                    await trio.sleep(busy[len(times) - 1])

            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.LooperTask(10, target))
                await coord.wait_for_stop()

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
        assert times == expected

    def test_wrong_arguments(self) -> None:
        wrong: Any
        for wrong in (None, 5, "target"):
            with pytest.raises(InvalidArgumentError, match=r"target: got .*; expected a callable"):
                aioqueue.LooperTask(None, wrong)
        for wrong in (-1, "1", True, float("nan")):
            with pytest.raises(InvalidArgumentError, match=r"interval: got .* seconds"):
                aioqueue.LooperTask(wrong, print)

    def test_a_target_that_returns_a_coroutine(self, task_world: TaskWorld) -> None:
        """It is refused, as for the ops of a runner."""

        async def body() -> None:
            async def target() -> None: ...

            async def block() -> None:
                async with aioqueue.Coordinator() as coord:
                    coord.start(aioqueue.LooperTask(None, lambda: target()))
                    for _ in range(20):
                        await task_world.tick()

            with pytest.raises(ExceptionGroup) as caught:
                await block()
            assert [type(error) for error in caught.value.exceptions] == [TypeError]

        task_world.run(body)
