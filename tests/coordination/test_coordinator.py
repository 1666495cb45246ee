"""Stopping together, joining and reporting, in every world."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

import anyio
import pytest
import trio

import aioqueue
from aioqueue import sync
from aioqueue.coordination import core as core_module
from aioqueue.coordination.core import CoordinatorCore
from aioqueue.coordination.face import CoordinatorFace
from aioqueue.errors import (
    AioQueueError,
    InvalidArgumentError,
    OutOfRangeError,
    QueueClosedError,
    StillRunningError,
)
from aioqueue.waiting import Gate
from tests.worlds import (
    PATIENCE,
    AsyncioWorld,
    CancelledError,
    TaskWorld,
    ThreadWorld,
    TrioWorld,
    UvloopWorld,
    World,
    ctrl_c,
    press_until,
    spin_until,
)

Make = Callable[..., Any]


class AwaitedCoordinator:
    """The thread face of a coordinator; its waiting methods block, but are spelled with await."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.face = sync.Coordinator(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.face, name)

    async def join(self, *arguments: Any, **options: Any) -> None:
        self.face.join(*arguments, **options)

    async def wait_for_stop(self, **options: Any) -> bool:
        return self.face.wait_for_stop(**options)

    async def __aenter__(self) -> AwaitedCoordinator:
        self.face.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self.face.__exit__(kind, error, traceback)


class Thread(threading.Thread):
    """A thread that runs until it is released; then it may still do something."""

    def __init__(self, name: str, last: Callable[[], object] = lambda: None) -> None:
        super().__init__(name=name, daemon=True)
        self.go = threading.Event()
        self.last = last

    def run(self) -> None:
        self.go.wait()
        self.last()

    def release(self) -> None:
        self.go.set()


@pytest.fixture
def make(world: World) -> Make:
    """Makes coordinators of the face that fits the world."""
    return AwaitedCoordinator if isinstance(world, ThreadWorld) else aioqueue.Coordinator


@pytest.fixture
def thread() -> Iterator[Callable[..., Thread]]:
    """Starts threads that run until they are released, at the latest when the test has ended."""
    threads: list[Thread] = []

    def start(name: str = "worker", last: Callable[[], object] = lambda: None) -> Thread:
        threads.append(Thread(name, last))
        threads[-1].start()
        return threads[-1]

    yield start
    for one in threads:
        one.release()
        one.join(PATIENCE)
        assert not one.is_alive()


@pytest.fixture(params=[AsyncioWorld, UvloopWorld], ids=lambda world: world.name)
def loop_world(request: pytest.FixtureRequest) -> AsyncioWorld:
    """The two worlds that have `asyncio.Task`."""
    made: AsyncioWorld = request.param()
    return made


def waiting_for_stop(coord: Any) -> int:
    """How many wait for the stop, a coordinator's own task not counted."""
    core: CoordinatorCore = coord._core
    return len(core.stopped._waiting)


def has_begun_to_join(coord: Any) -> Callable[[], bool]:
    core: CoordinatorCore = coord._core
    return lambda: bool(core._on_stop)


async def group_of(call: Awaitable[object]) -> ExceptionGroup[Exception]:
    """Await something that raises an `ExceptionGroup`; return that."""
    with pytest.raises(ExceptionGroup) as caught:
        await call
    group: ExceptionGroup[Exception] = caught.value
    return group


def stragglers(group: BaseExceptionGroup[BaseException]) -> list[tuple[str, ...]]:
    """The names in a group of nothing but `StillRunningError`."""
    assert all(isinstance(error, StillRunningError) for error in group.exceptions)
    return [getattr(error, "workers", ()) for error in group.exceptions]


def notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


def throw(error: Exception) -> None:
    """Raise, so that mypy does not take what follows for unreachable."""
    raise error


def same(found: tuple[BaseException, ...], expected: list[BaseException]) -> bool:
    """Whether these are the very same objects, in the same order."""
    return [id(error) for error in found] == [id(error) for error in expected]


class TestStop:
    async def test_is_asked_for_once_and_for_all(self, world: World, make: Make) -> None:
        coord = make()
        assert coord.should_stop() is False
        assert coord.request_stop() is None
        assert coord.should_stop() is True
        coord.request_stop()
        assert coord.should_stop() is True
        await coord.join()
        assert coord.should_stop() is True

    async def test_waiting_for_it_that_has_come_returns_at_once(
        self, world: World, make: Make
    ) -> None:
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

    async def test_wakes_all_who_wait(self, world: World, make: Make) -> None:
        coord = make()
        many = 200 if isinstance(world, ThreadWorld) else 1000
        operations = [world.spawn(coord.wait_for_stop) for _ in range(many)]
        await world.until(lambda: waiting_for_stop(coord) == many)
        assert not any(operation.done for operation in operations)
        coord.request_stop()
        assert [await operation.result() for operation in operations] == [True] * many

    async def test_may_be_asked_for_in_any_thread(self, world: World, make: Make) -> None:
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

    def test_no_one_slips_in_between_the_stop_and_its_callbacks(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who comes while a stop is under way is either called back by it, or at once."""
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
    """What only the main thread can show."""

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
        self, thread: Callable[..., Thread]
    ) -> None:
        coord = sync.Coordinator()
        error = ValueError()
        before = signal.signal(signal.SIGUSR1, lambda *_: coord.request_stop(error))
        try:
            with coord._core._lock:
                signal.raise_signal(signal.SIGUSR1)
                assert not coord.should_stop()  # it cannot be done here, and we are still alive
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

    def test_ctrl_c_ends_a_blocked_join(self, thread: Callable[..., Thread]) -> None:
        coord = sync.Coordinator()
        coord.register(thread())

        with pytest.raises(KeyboardInterrupt), ctrl_c(has_begun_to_join(coord)):
            coord.join()
        assert not coord.joined
        assert not coord._core._on_stop

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


class TestFailures:
    async def test_the_very_object_is_recorded(self, world: World, make: Make) -> None:
        coord = make()
        error = ValueError("x")
        coord.request_stop(error)
        group = await group_of(coord.join())
        assert same(group.exceptions, [error])
        assert str(group) == "1 failure among coordinated workers (1 sub-exception)"
        assert error.__traceback__ is None

    async def test_the_object_and_not_the_one_being_handled(self, world: World, make: Make) -> None:
        coord = make()
        error = ValueError("x")
        try:
            raise KeyError
        except KeyError:
            coord.request_stop(error)
        assert same((await group_of(coord.join())).exceptions, [error])

    async def test_all_are_reported_in_order(self, world: World, make: Make) -> None:
        coord = make()
        errors: list[BaseException] = [ValueError(number) for number in range(5)]
        for error in errors:
            coord.request_stop(error)
        group = await group_of(coord.join())
        assert same(group.exceptions, errors)
        assert str(group).startswith("5 failures among")

    async def test_a_note_names_the_worker(self, world: World, make: Make) -> None:
        coord = make()
        error = ValueError()
        other = threading.Thread(target=coord.request_stop, args=(error,), name="reader-7")
        other.start()
        other.join(PATIENCE)
        assert notes(error) == ["in worker reader-7"]
        assert same((await group_of(coord.join())).exceptions, [error])
        assert notes(error) == ["in worker reader-7"]

    def test_a_note_names_the_task(self, loop_world: AsyncioWorld) -> None:
        async def body() -> None:
            coord = aioqueue.Coordinator()
            error = ValueError()

            async def fail() -> None:
                coord.request_stop(error)

            await asyncio.create_task(fail(), name="reader-7")
            assert notes(error) == ["in worker reader-7"]

        loop_world.run(body)

    def test_a_note_names_the_trio_task(self) -> None:
        coord = aioqueue.Coordinator()
        error = ValueError()

        async def fail() -> None:
            coord.request_stop(error)

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail, name="reader-7")

        trio.run(main)
        assert notes(error) == ["in worker reader-7"]

    async def test_one_object_counts_once(self, world: World, make: Make) -> None:
        coord = make()
        error = ValueError()
        for _ in range(3):
            coord.request_stop(error)
        assert same((await group_of(coord.join())).exceptions, [error])
        assert len(notes(error)) == 1

    async def test_equal_ones_are_not_the_same(self, world: World, make: Make) -> None:
        class EqualError(Exception):
            def __eq__(self, other: object) -> bool:
                return True

            __hash__ = Exception.__hash__

        coord = make()
        errors: list[BaseException] = [EqualError(), EqualError()]
        for error in errors:
            coord.request_stop(error)
        assert same((await group_of(coord.join())).exceptions, errors)

    async def test_clean_stops_are_left_out(self, world: World, make: Make) -> None:
        coord = make()
        coord.request_stop(OutOfRangeError())
        assert coord.should_stop()
        coord.raise_requested_exception()
        await coord.join()

    async def test_a_failure_after_a_clean_stop(self, world: World, make: Make) -> None:
        coord = make()
        coord.request_stop(OutOfRangeError())
        error = ValueError()
        coord.request_stop(error)
        assert same((await group_of(coord.join())).exceptions, [error])

    async def test_other_clean_types(self, world: World, make: Make) -> None:
        for types in ((KeyError, StopIteration), [KeyError], iter([KeyError]), KeyError):
            coord = make(types)
            coord.request_stop(KeyError())
            out_of_range = OutOfRangeError()
            assert coord.should_stop()
            coord.raise_requested_exception()
            coord.clear_stop()
            coord.request_stop(out_of_range)
            assert same((await group_of(coord.join())).exceptions, [out_of_range])

    async def test_no_clean_types(self, world: World, make: Make) -> None:
        coord = make(())
        error = OutOfRangeError()
        coord.request_stop(error)
        assert same((await group_of(coord.join())).exceptions, [error])

    async def test_failures_after_a_stop_are_recorded(self, world: World, make: Make) -> None:
        coord = make()
        coord.request_stop()
        error = ValueError()
        coord.request_stop(error)
        assert same((await group_of(coord.join())).exceptions, [error])

    @pytest.mark.parametrize(
        "kind",
        [
            QueueClosedError,
            OutOfRangeError,
            asyncio.CancelledError,
            concurrent.futures.CancelledError,
        ],
    )
    async def test_what_stopping_causes_is_left_out_after_a_stop(
        self, world: World, make: Make, kind: type[BaseException]
    ) -> None:
        coord = make()
        coord.request_stop()
        coord.request_stop(kind())
        await coord.join()

    async def test_what_stopping_causes_within_a_worker_s_own_task_group(
        self, world: World, make: Make
    ) -> None:
        coord = make()
        coord.request_stop()
        coord.request_stop(ExceptionGroup("", [QueueClosedError(), OutOfRangeError()]))
        coord.raise_requested_exception()
        mixed = ExceptionGroup("", [QueueClosedError(), ValueError()])
        coord.request_stop(mixed)
        assert same((await group_of(coord.join())).exceptions, [mixed])

    async def test_a_closed_queue_before_the_stop_is_a_failure(
        self, world: World, make: Make
    ) -> None:
        coord = make()
        error = QueueClosedError()
        coord.request_stop(error)
        assert same((await group_of(coord.join())).exceptions, [error])

    def test_the_cancellation_of_a_trio_task_is_what_stopping_causes(self) -> None:
        async def main() -> None:
            coord = aioqueue.Coordinator()
            coord.request_stop()
            with trio.CancelScope() as scope:
                scope.cancel()
                try:
                    await trio.lowlevel.checkpoint()
                except trio.Cancelled as error:
                    coord.request_stop(error)
                    raise
            await coord.join()
            assert coord.joined

        trio.run(main)

    async def test_raise_requested_exception(self, world: World, make: Make) -> None:
        coord = make()
        coord.raise_requested_exception()
        coord.request_stop()
        coord.raise_requested_exception()
        errors: list[BaseException] = [ValueError(), KeyError()]
        for error in errors:
            coord.request_stop(error)
        for _ in range(2):
            with pytest.raises(ExceptionGroup) as caught:
                coord.raise_requested_exception()
            assert same(caught.value.exceptions, errors)

    async def test_every_join_raises(self, world: World, make: Make) -> None:
        coord = make()
        error = ValueError()
        coord.request_stop(error)
        groups = [await group_of(coord.join()) for _ in range(3)]
        assert all(same(group.exceptions, [error]) for group in groups)
        assert len({id(group) for group in groups}) == 3
        assert coord.joined

    async def test_after_the_join_a_failure_is_raised_at_once(
        self, world: World, make: Make
    ) -> None:
        coord = make()
        await coord.join()
        assert coord.joined
        error = ValueError()
        with pytest.raises(ValueError) as caught:  # noqa: PT011  # the very object
            coord.request_stop(error)
        assert caught.value is error
        assert not coord.should_stop()
        coord.request_stop(OutOfRangeError())
        assert coord.should_stop()
        coord.request_stop()
        await coord.join()

    async def test_base_exceptions_make_a_base_group(self, world: World, make: Make) -> None:
        coord = make()
        error = KeyboardInterrupt()
        coord.request_stop(error)
        with pytest.raises(BaseExceptionGroup) as caught:
            await coord.join()
        assert not isinstance(caught.value, ExceptionGroup)
        assert same(caught.value.exceptions, [error])

    async def test_refuses_what_is_no_exception(self, world: World, make: Make) -> None:
        for wrong in ("x", ValueError, (ValueError, ValueError(), None), 0):
            coord = make()
            with pytest.raises(InvalidArgumentError, match=r"error: got .*; expected an exception"):
                coord.request_stop(wrong)
            assert not coord.should_stop()
            await coord.join()

    async def test_repr(self, world: World, make: Make) -> None:
        coord = make()
        face = coord.face if isinstance(coord, AwaitedCoordinator) else coord
        kind = "aioqueue.sync" if isinstance(coord, AwaitedCoordinator) else "aioqueue"
        assert repr(face) == f"<{kind}.Coordinator running, 0 failures>"
        coord.request_stop(ValueError())
        assert repr(face) == f"<{kind}.Coordinator stopped, 1 failure>"
        await group_of(coord.join())
        assert repr(face) == f"<{kind}.Coordinator joined, 1 failure>"

    async def test_wrong_clean_types(self, world: World, make: Make) -> None:
        for wrong in (5, [5], ["ValueError"], [int]):
            with pytest.raises(InvalidArgumentError, match=r"clean_stop_exception_types: got"):
                make(wrong)

    async def test_wrong_grace_periods(self, world: World, make: Make) -> None:
        coord = make()
        for wrong in ("1", None, True, float("nan")):
            with pytest.raises(InvalidArgumentError, match=r"stop_grace_period: got .* seconds"):
                make(stop_grace_period=wrong)
            with pytest.raises(InvalidArgumentError, match=r"stop_grace_period: got .* seconds"):
                await coord.join(stop_grace_period=wrong)
        assert not coord.joined


class TestStopOnException:
    async def test_nothing_happens_without_one(self, world: World, make: Make) -> None:
        coord = make()
        with coord.stop_on_exception():
            pass
        assert not coord.should_stop()

    async def test_a_failure_goes_no_further(self, world: World, make: Make) -> None:
        coord = make()
        error = ValueError()
        with coord.stop_on_exception():
            throw(error)
        assert coord.should_stop()
        assert same((await group_of(coord.join())).exceptions, [error])
        assert error.__traceback__ is not None

    async def test_a_clean_stop(self, world: World, make: Make) -> None:
        coord = make()
        with coord.stop_on_exception():
            throw(OutOfRangeError())
        assert coord.should_stop()
        await coord.join()

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
    async def test_what_is_no_failure_goes_on(
        self, world: World, make: Make, kind: type[BaseException]
    ) -> None:
        coord = make()
        with pytest.raises(kind), coord.stop_on_exception():
            raise kind
        assert coord.should_stop()
        await coord.join()

    def test_a_cancellation_goes_on(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            coord = aioqueue.Coordinator()
            never = Gate()

            async def worker() -> None:
                with coord.stop_on_exception():
                    await never.wait(aioqueue.waiting.current_waker())

            operation = task_world.spawn(worker)
            await task_world.until(lambda: never._waiting)
            operation.cancel()
            assert await operation.was_cancelled()
            assert coord.should_stop()
            await coord.join()

        task_world.run(body)

    async def test_after_the_join_it_goes_on(self, world: World, make: Make) -> None:
        coord = make()
        await coord.join()
        error = ValueError()
        with pytest.raises(ValueError) as caught, coord.stop_on_exception():  # noqa: PT011
            raise error
        assert caught.value is error


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

    async def test_never_wakes_up_to_look(
        self,
        world: World,
        make: Make,
        thread: Callable[..., Thread],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A natural end comes as a wake: until then, and without a stop, no timer is set."""
        timers: list[float | None] = []
        really_block, really_move_on = Gate.wait_blocking, anyio.move_on_after

        def block(gate: Gate, timeout: float | None = None) -> bool:
            timers.append(timeout)
            return really_block(gate, timeout)

        def move_on(delay: float | None, **options: Any) -> anyio.CancelScope:
            timers.append(delay)
            return really_move_on(delay, **options)

        monkeypatch.setattr(Gate, "wait_blocking", block)
        monkeypatch.setattr(anyio, "move_on_after", move_on)
        coord = make()
        workers = [thread(), thread()]
        operation = world.spawn(coord.join, workers)
        await world.until(lambda: timers)
        for worker in workers:
            worker.release()
        await operation.result()
        assert timers == [None]

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
        await world.until(lambda: not coord._core._on_stop)
        assert not operation.done
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

    def test_from_within_a_worker_thread_which_is_no_straggler(
        self, thread: Callable[..., Thread]
    ) -> None:
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
        """As for threads: no one waits for itself."""

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
        await world.until(lambda: len(coord._core._on_stop) == 5)
        coord.request_stop(error)
        worker.release()
        for join in joins:
            assert same((await group_of(join.result())).exceptions, [error])

    def test_a_cancelled_one_changes_nothing(
        self, task_world: TaskWorld, thread: Callable[..., Thread]
    ) -> None:
        async def body() -> None:
            coord = aioqueue.Coordinator()
            worker = thread()
            coord.register(worker)
            operation = task_world.spawn(coord.join)
            await task_world.until(has_begun_to_join(coord))
            operation.cancel()
            assert await operation.was_cancelled()
            assert not coord.joined
            assert not coord._core._on_stop
            assert worker.is_alive()
            again = task_world.spawn(coord.join)
            await task_world.until(has_begun_to_join(coord))
            worker.release()
            await again.result()

        task_world.run(body)

    async def test_refuses_what_cannot_be_joined(self, world: World, make: Make) -> None:
        coord = make()
        for wrong in (["thread"], [5], [None], [lambda: None]):
            with pytest.raises(InvalidArgumentError, match=r"worker: got .*; expected a threading"):
                await coord.join(wrong)
        assert not coord.joined

    async def test_refuses_workers_that_are_no_collection(self, world: World, make: Make) -> None:
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
            coord.join()  # there is nothing to wait for
            with pytest.raises(RuntimeError, match=r"use `await coord\.aio\.join\("):
                coord.join([thread()])
            coord.request_stop()
            assert coord.wait_for_stop() is True

        task_world.run(body)


class TestGrace:
    """What happens to workers that outlive a stop."""

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

    async def test_alone_it_is_a_member_too(
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

    async def test_who_ends_in_time_is_no_straggler(
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
        """It counts as dead, like a thread that was never started: no one can end it any more."""
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


class TestBlock:
    async def test_a_normal_end(
        self, world: World, make: Make, thread: Callable[..., Thread]
    ) -> None:
        """It requests a stop, and joins."""
        async with make() as coord:
            worker = thread("worker", coord.wait_for_stop)
            if isinstance(world, TaskWorld):
                worker.last = coord.sync.wait_for_stop
            else:
                worker.last = coord.face.wait_for_stop
            coord.register(worker)
            worker.release()
            assert not coord.should_stop()
        assert coord.should_stop()
        assert coord.joined
        assert not worker.is_alive()

    async def test_an_exception_is_one_more_member(
        self, world: World, make: Make, thread: Callable[..., Thread]
    ) -> None:
        failure, ours = KeyError(), ValueError()

        async def block() -> None:
            async with make() as coord:
                coord.request_stop(failure)
                raise ours

        group = await group_of(block())
        assert same(group.exceptions, [failure, ours])
        assert notes(ours) == ["in the block of the coordinator"]

    async def test_an_exception_alone(self, world: World, make: Make) -> None:
        coord = make()
        ours = ValueError()

        async def block() -> None:
            async with coord:
                raise ours

        group = await group_of(block())
        assert same(group.exceptions, [ours])
        assert ours.__traceback__ is not None
        assert coord.joined

    async def test_what_workers_say_after_the_stop(
        self, world: World, make: Make, thread: Callable[..., Thread]
    ) -> None:
        coord = make()
        ours, theirs = ValueError(), KeyError()

        def last() -> None:
            spin_until(coord.should_stop)
            coord.request_stop(theirs)
            coord.request_stop(QueueClosedError())

        worker = thread("worker", last)
        coord.register(worker)
        worker.release()

        async def block() -> None:
            async with coord:
                raise ours

        assert same((await group_of(block())).exceptions, [ours, theirs])

    async def test_a_clean_stop_ends_it_normally(self, world: World, make: Make) -> None:
        coord = make()
        async with coord:
            throw(OutOfRangeError())
        assert coord.joined
        async with make(KeyError) as other:
            throw(KeyError())
        assert other.joined

    async def test_a_clean_stop_and_failures(self, world: World, make: Make) -> None:
        failure = ValueError()

        async def block() -> None:
            async with make() as coord:
                coord.request_stop(failure)
                raise OutOfRangeError

        assert same((await group_of(block())).exceptions, [failure])

    async def test_what_stopping_causes_ends_it_normally(self, world: World, make: Make) -> None:
        async with make() as coord:
            coord.request_stop()
            throw(QueueClosedError())
        assert coord.joined

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
    async def test_ctrl_c_goes_on(
        self, world: World, make: Make, kind: type[BaseException]
    ) -> None:
        coord = make()
        failure = ValueError()

        async def block(*failures: Exception) -> None:
            async with coord:
                for error in failures:
                    coord.request_stop(error)
                raise kind

        with pytest.raises(kind):
            await block()
        assert coord.joined
        coord.clear_stop()
        with pytest.raises(kind) as caught:
            await block(failure)
        assert isinstance(caught.value.__context__, ExceptionGroup)
        assert same(caught.value.__context__.exceptions, [failure])

    async def test_ctrl_c_keeps_its_context(self, world: World, make: Make) -> None:
        context = ValueError()

        async def block() -> None:
            async with make():
                try:
                    raise context
                except ValueError:
                    raise KeyboardInterrupt  # noqa: B904  # the context is what this is about

        with pytest.raises(KeyboardInterrupt) as caught:
            await block()
        assert caught.value.__context__ is context

    async def test_a_join_inside_of_it_that_raises(self, world: World, make: Make) -> None:
        coord = make()
        failure = ValueError()

        async def block() -> None:
            async with coord:
                coord.request_stop(failure)
                await coord.join()

        group = await group_of(block())
        assert failure in group.exceptions
        await self.check_reusable(coord)

    async def test_an_exception_after_a_join_inside_of_it(self, world: World, make: Make) -> None:
        coord = make()
        failure = ValueError()

        async def block() -> None:
            async with coord:
                await coord.join()
                raise failure

        with pytest.raises((ValueError, ExceptionGroup)) as caught:
            await block()
        assert failure in (caught.value, *getattr(caught.value, "exceptions", ()))
        await self.check_reusable(coord)

    async def check_reusable(self, coord: Any) -> None:
        """The block was really left: it can be entered again."""
        coord.clear_stop()
        async with coord:
            assert not coord.should_stop()
        assert coord.joined

    async def test_again_after_clear_stop(self, world: World, make: Make) -> None:
        coord = make()
        async with coord:
            pass
        await self.check_reusable(coord)

    async def test_its_grace_period(
        self, world: World, make: Make, thread: Callable[..., Thread]
    ) -> None:
        async def block() -> None:
            async with make(stop_grace_period=0) as coord:
                coord.register(thread("slow"))

        group = await group_of(block())
        assert stragglers(group) == [("slow",)]

    def test_cannot_be_entered_twice_at_once(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            async with aioqueue.Coordinator() as coord:
                with pytest.raises(RuntimeError, match="entered already"):
                    await coord.__aenter__()

        task_world.run(body)

    @pytest.mark.parametrize("failing", [False, True], ids=["clean", "failing"])
    @pytest.mark.parametrize("by", ["cancel", "timeout", "anyio"])
    def test_cancellation(
        self, task_world: TaskWorld, by: str, failing: bool, thread: Callable[..., Thread]
    ) -> None:
        """It stops and joins all the same; failures win over it, as in `asyncio.TaskGroup`."""
        coord = aioqueue.Coordinator()
        failure = ValueError()
        inside = Gate()

        def last() -> None:
            coord.sync.wait_for_stop()
            if failing:
                coord.request_stop(failure)

        worker = thread("worker", last)
        coord.register(worker)
        worker.release()

        async def block() -> None:
            async with coord:
                inside.open()
                await Gate().wait(aioqueue.waiting.current_waker())

        async def in_scope() -> None:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(block)
                    await inside.wait(aioqueue.waiting.current_waker())
                    scope.cancel()
            raise CancelledError

        async def cancelled() -> None:
            if by == "timeout":
                await task_world.within(0.001, block)
            elif by == "anyio":
                await in_scope()
            else:
                operation = task_world.spawn(block)
                await task_world.until(lambda: inside.is_open)
                operation.cancel()
                await operation.result()

        async def body() -> None:
            if failing:
                group = await group_of(cancelled())
                while by == "anyio" and len(group.exceptions) == 1:
                    inner = group.exceptions[0]
                    if not isinstance(inner, ExceptionGroup):
                        break
                    group = inner  # a task group has wrapped it
                assert same(group.exceptions, [failure])
            else:
                with pytest.raises(CancelledError):
                    await cancelled()
            assert coord.should_stop()
            assert coord.joined
            assert not worker.is_alive()

        task_world.run(body)

    def test_cancellation_while_it_is_left(
        self, task_world: TaskWorld, thread: Callable[..., Thread]
    ) -> None:
        """By a scope or by `Task.cancel`: the join goes on to its end, and then it is cancelled."""

        async def body() -> None:
            coord = aioqueue.Coordinator()
            worker = thread()
            coord.register(worker)

            async def block() -> None:
                async with coord:
                    pass

            operation = task_world.spawn(block)
            await task_world.until(coord.should_stop)
            for _ in range(3):
                operation.cancel()
                await task_world.tick()
                await task_world.tick()
                assert not operation.done
            worker.release()
            was_cancelled = await operation.was_cancelled()
            # In trio, what was asked for when the last thing is being done is too late.
            assert was_cancelled or isinstance(task_world, TrioWorld)
            assert coord.joined
            assert not worker.is_alive()
            coord.clear_stop()
            async with coord:  # it has been left properly
                assert not coord.should_stop()

        task_world.run(body)


class TestStart:
    """Workers within the block of the async face."""

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
        """A looper task is not cancelled at the stop, but then."""

        async def body() -> None:
            running = Gate()
            ended: list[bool] = []

            async def forever() -> None:
                try:
                    running.open()
                    await Gate().wait(aioqueue.waiting.current_waker())
                finally:
                    ended.append(True)

            async with aioqueue.Coordinator(stop_grace_period=0) as coord:
                coord.start(aioqueue.LooperTask(None, forever))
                await running.wait(aioqueue.waiting.current_waker())
            assert ended == [True]
            assert coord.joined

        task_world.run(body)

    def test_joining_inside_of_a_started_task(self, task_world: TaskWorld) -> None:
        """As for threads: no one waits for itself."""

        async def body() -> None:
            joined: list[bool] = []

            async with aioqueue.Coordinator(stop_grace_period=0) as coord:

                async def join() -> None:
                    await coord.join()
                    joined.append(True)
                    await coord.wait_for_stop()

                coord.start(aioqueue.LooperTask(None, join))
                for _ in range(100):
                    await task_world.tick()
            assert joined == [True]

        task_world.run(body)


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
