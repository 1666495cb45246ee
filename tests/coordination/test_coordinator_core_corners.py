"""Further cases of coordinators and workers that mutation testing found no test for; see
`docs/mutation.md`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.coordination import aio, coordinator_core
from aioqueue.coordination.tasks import new_tasks, threadsafe_caller, wait_shielded
from aioqueue.coordination.workers import as_worker
from aioqueue.errors import OutOfRangeError
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate
from tests.kit.coordinators import StopCallbacks, has_begun_to_join, notes
from tests.kit.worlds import (
    PATIENCE,
    AsyncioWorld,
    CancelledError,
    StillClock,
    TaskWorld,
    spin_until,
)


class FatalError(BaseException):
    """Like Ctrl-C, but it does not end the event loop."""


async def forever() -> None:
    await Gate().wait(current_waker())


async def no_more() -> None:
    raise OutOfRangeError


def test_the_async_face_of_an_async_coordinator_is_itself() -> None:
    coord = aioqueue.Coordinator()
    assert coord.aio is coord
    assert coord.sync.sync is coord.sync


class TestCancelledBeforeItsFirstStep:
    """Other code cancels a worker's task: this worker ends, without a failure."""

    def test_of_a_runner_without_a_coordinator(self, loop_world: AsyncioWorld) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(1)
            runner = aioqueue.QueueRunner(queue, [forever, forever])
            run = asyncio.create_task(runner.run())
            await asyncio.sleep(0)
            workers = asyncio.all_tasks() - {run, asyncio.current_task()}
            assert len(workers) == 2
            for worker in workers:
                worker.cancel()
            await run
            assert queue.is_closed()
            assert repr(runner).endswith("idle>")
            assert runner.exceptions_raised == []

        loop_world.run(body)

    def test_within_a_block(self, loop_world: AsyncioWorld) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(1)
            runner = aioqueue.QueueRunner(queue, [forever, forever])
            async with aioqueue.Coordinator() as coord:
                coord.start(runner)
                for worker in asyncio.all_tasks() - {asyncio.current_task()}:
                    worker.cancel()
                with pytest.raises(OutOfRangeError):
                    await queue.dequeue()
                assert not coord.should_stop()
                await asyncio.sleep(0)
                assert repr(runner).endswith("idle>")

        loop_world.run(body)

    def test_while_others_run(self, loop_world: AsyncioWorld) -> None:
        """The end of the run waits for the workers that run."""

        async def body() -> None:
            lost: list[str] = []
            messages: list[str] = []
            go = Gate()

            async def work() -> None:
                try:
                    await forever()
                finally:
                    while not go.is_open:  # a task may take its time, and not only once
                        await wait_shielded(go)
                    messages.append("worked")

            tasks = new_tasks(lambda error: messages.append(repr(error)))
            await tasks.begin()
            own, _ = tasks.start("one", work, lambda: lost.append("one"))
            await asyncio.sleep(0)
            never, _ = tasks.start("two", work, lambda: lost.append("two"))
            (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "two"]
            task.cancel()
            ended = asyncio.create_task(tasks.end())
            while never.is_alive():
                await asyncio.sleep(0)
            for _ in range(5):
                await asyncio.sleep(0)
            assert (own.is_alive(), ended.done(), lost) == (True, False, ["two"])
            go.open()
            assert await ended is None
            assert (own.is_alive(), messages, lost) == (False, ["worked"], ["two"])

        loop_world.run(body)


class TestTasks:
    def test_are_made_by_the_factory_of_the_program(self, loop_world: AsyncioWorld) -> None:
        async def body() -> None:
            made: list[asyncio.Task[Any]] = []

            def make(loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
                task = asyncio.Task[Any](coroutine, loop=loop, **options)
                made.append(task)
                return task

            loop = asyncio.get_running_loop()
            loop.set_task_factory(make)
            queue = aioqueue.FIFOQueue(1)
            await aioqueue.QueueRunner(queue, [no_more]).run()
            loop.set_task_factory(None)
            assert [task.get_name() for task in made] == ["aioqueue-no_more-0"]
            assert queue.is_closed()

        loop_world.run(body)

    def test_their_end_cancels_those_that_are_left(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            tasks = new_tasks(lambda error: None)
            await tasks.begin()
            own, _ = tasks.start("one", forever, lambda: None)
            await task_world.tick()
            assert own.is_alive()
            assert await tasks.end() is None
            assert not own.is_alive()

        task_world.run(body)

    def test_a_call_into_a_loop_that_has_ended_is_not_made(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            calls.append(threadsafe_caller())

        calls: list[Callable[[Callable[[], object]], None]] = []
        made: list[bool] = []
        task_world.run(body)
        calls[0](lambda: made.append(True))
        assert made == []

    def test_ended_tasks_are_not_kept(self, task_world: TaskWorld) -> None:
        """A block may start any number of tasks."""

        async def body() -> None:
            async with aioqueue.Coordinator() as coord:
                for _ in range(3):
                    queue = task_world.fifo(1)
                    coord.start(aioqueue.QueueRunner(queue, [no_more, no_more]))
                    await queue.wait_closed()
                assert coord._tasks is not None
                tasks = coord._tasks
                await task_world.until(lambda: not tasks._scopes)
                assert not tasks.scopes()

        task_world.run(body)


class TestCancellation:
    def test_a_runner_with_a_task_that_waits_elsewhere(self, task_world: TaskWorld) -> None:
        """Closing the queue would not wake it."""

        async def body() -> None:
            began, ended = Gate(), Gate()

            async def op() -> None:
                began.open()
                try:
                    await forever()
                finally:
                    ended.open()

            queue = task_world.fifo(1)
            run = task_world.spawn(aioqueue.QueueRunner(queue, [op]).run)
            await began.wait(current_waker())
            run.cancel()
            with pytest.raises(CancelledError):
                await run.result()
            assert ended.is_open
            assert queue.is_closed()

        task_world.run(body)

    def test_a_stop_lets_a_looper_end_the_call_that_it_is_in(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            began, go = Gate(), Gate()
            messages: list[str] = []

            async def call() -> None:
                began.open()
                await go.wait(current_waker())
                messages.append("ended")

            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.LooperTask(None, call))
                await began.wait(current_waker())
                coord.request_stop()
                for _ in range(10):
                    await task_world.tick()
                go.open()
            assert messages == ["ended"]

        task_world.run(body)

    def test_every_stop_cancels_those_that_were_started_before_it(
        self, task_world: TaskWorld
    ) -> None:
        """Also a second stop, after a first one has cancelled some."""

        async def body() -> None:
            ended: list[int] = []

            def has_ended(number: int) -> bool:
                return ended.count(number) == 2

            async def block() -> None:
                async with aioqueue.Coordinator() as coord:
                    for number in range(2):
                        began = Gate()

                        async def op(number: int = number, began: Gate = began) -> None:
                            began.open()
                            try:
                                await forever()
                            finally:
                                ended.append(number)

                        coord.start(aioqueue.QueueRunner(task_world.fifo(1), [op, op]))
                        await began.wait(current_waker())
                        coord.request_stop()
                        await task_world.until(partial(has_ended, number))
                        await coord.join()
                        coord.clear_stop()

            await block()
            assert ended == [0, 0, 1, 1]

        task_world.run(body)

    @pytest.mark.parametrize("by", ["task", "scope"])
    def test_of_a_block_cancels_a_looper_in_its_call(self, task_world: TaskWorld, by: str) -> None:
        async def body() -> None:
            began, scope = Gate(), anyio.CancelScope()

            async def call() -> None:
                began.open()
                await forever()

            async def block() -> None:
                with scope:
                    async with aioqueue.Coordinator() as coord:
                        coord.start(aioqueue.LooperTask(None, call))
                        await forever()

            operation = task_world.spawn(block)
            await began.wait(current_waker())
            if by == "task":
                operation.cancel()
            else:
                scope.cancel()
            await task_world.until(lambda: operation.done)
            assert await operation.was_cancelled() is (by == "task")
            assert scope.cancelled_caught is (by == "scope")

        task_world.run(body)

    def test_requested_as_the_block_ends_is_raised(self, loop_world: AsyncioWorld) -> None:
        async def body() -> None:
            async def block() -> None:
                async with aioqueue.Coordinator() as coord:
                    coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [forever]))
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()

            assert await loop_world.spawn(block).was_cancelled()

        loop_world.run(body)

    def test_requested_twice_is_raised_once(
        self, loop_world: AsyncioWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second request comes from the task itself, as from a signal handler."""
        monkeypatch.setattr(
            coordinator_core, "monotonic", StillClock()
        )  # the grace begins with the wait

        async def body() -> None:
            async def block() -> None:
                task = asyncio.current_task()
                assert task is not None
                cancel = task.cancel

                class Asks(Future):
                    def cancel(self) -> bool:
                        cancel()
                        return super().cancel()

                with pytest.raises(asyncio.CancelledError):
                    async with aioqueue.Coordinator(stop_grace_period=0.01) as coord:
                        coord.register(Asks())
                        asyncio.get_running_loop().call_soon(cancel)  # in the join
                await asyncio.sleep(0)

            assert not await loop_world.spawn(block).was_cancelled()

        loop_world.run(body)

    @pytest.mark.parametrize("was_asked", [False, True], ids=["fresh", "after-another"])
    def test_of_something_that_the_block_awaits_is_a_failure(
        self, loop_world: AsyncioWorld, was_asked: bool
    ) -> None:
        async def body() -> None:
            if was_asked:  # earlier, and that was not for the block
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await forever()
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            with pytest.raises(ExceptionGroup) as caught:
                async with aioqueue.Coordinator():
                    await future
            (error,) = caught.value.exceptions
            assert type(error) is RuntimeError
            assert str(error) == (
                "the block raised CancelledError, but was not cancelled: something that it awaited"
                " was"
            )
            assert isinstance(error.__cause__, asyncio.CancelledError)

        loop_world.run(body)

    def test_of_something_that_a_looper_awaits_is_a_failure(self, loop_world: AsyncioWorld) -> None:
        async def body() -> None:
            future = asyncio.get_running_loop().create_future()
            future.cancel()

            async def call() -> None:
                await future

            with pytest.raises(ExceptionGroup) as caught:
                async with aioqueue.Coordinator() as coord:
                    coord.start(aioqueue.LooperTask(None, call))
                    await coord.wait_for_stop()
            (error,) = caught.value.exceptions
            assert str(error) == "aioqueue-call raised CancelledError, but was not cancelled"
            assert isinstance(error.__cause__, asyncio.CancelledError)
            assert notes(error) == ["in worker aioqueue-call"]

        loop_world.run(body)


def test_a_looper_is_named_after_its_function_or_the_class_of_an_object() -> None:
    class Caller:
        def __call__(self) -> None: ...

    assert aioqueue.LooperTask(None, partial(print)).name == "aioqueue-print"
    assert aioqueue.LooperTask(None, Caller()).name == "aioqueue-Caller"


def test_a_looper_that_returns_an_awaitable_is_named(task_world: TaskWorld) -> None:
    async def body() -> None:
        async def target() -> None: ...

        with pytest.raises(ExceptionGroup) as caught:
            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.LooperTask(None, lambda: target()))
                await coord.wait_for_stop()
        (error,) = caught.value.exceptions
        assert str(error).startswith("aioqueue-<lambda> is a plain function but returned a coro")

    task_world.run(body)


def test_a_failing_stop_is_reported_beside_its_reason(
    task_world: TaskWorld,
) -> None:
    """The stop runs a `cancel_op` where it is requested, as in a failed looper."""

    async def body() -> None:
        failed, fatal = ValueError(), FatalError()

        def cancel() -> None:
            raise fatal

        def fail() -> None:
            raise failed

        with pytest.raises(BaseExceptionGroup) as caught:
            async with aioqueue.Coordinator() as coord:
                queue = task_world.fifo(1)
                coord.start(aioqueue.QueueRunner(queue, [forever], cancel_op=cancel))
                coord.start(aioqueue.LooperTask(None, fail))
                await coord.wait_for_stop()
        assert caught.value.exceptions == (failed, fatal)
        assert notes(fatal) == ["in worker of the coordinator"]

    task_world.run(body)


class TestBlockExit:
    @pytest.mark.parametrize("failed", [ValueError(), None], ids=["failing", "well"])
    def test_ctrl_c_has_the_failures_as_its_context(
        self, task_world: TaskWorld, monkeypatch: pytest.MonkeyPatch, failed: ValueError | None
    ) -> None:
        fatal = FatalError()

        async def interrupted(*_: Any) -> None:
            raise fatal

        async def body() -> None:
            with pytest.raises(FatalError) as caught:
                async with aioqueue.Coordinator() as coord:
                    coord.start(aioqueue.LooperTask(None, forever))
                    if failed:
                        coord.request_stop(failed)
                    monkeypatch.setattr(aio, "wait_shielded", interrupted)
            assert caught.value is fatal
            context = caught.value.__context__
            if failed:
                assert isinstance(context, ExceptionGroup)
                assert context.exceptions == (failed,)
            else:
                assert context is None

        task_world.run(body)

    @pytest.mark.parametrize("by", ["task", "scope"])
    def test_a_cancellation_cancels_its_tasks_at_once(self, task_world: TaskWorld, by: str) -> None:
        """Otherwise it would wait for the current call of a looper."""

        async def body() -> None:
            began = Gate()
            messages: list[str] = []
            scope = anyio.CancelScope()

            async def call() -> None:
                began.open()
                await forever()

            async def block() -> None:
                with scope:
                    async with aioqueue.Coordinator() as coord:
                        coord.start(aioqueue.LooperTask(None, call))
                        await began.wait(current_waker())
                        coords.append(coord)
                    messages.append("goes on")

            coords: list[aioqueue.Coordinator] = []
            operation = task_world.spawn(block)
            await task_world.until(lambda: coords and coords[0].should_stop())
            for _ in range(5):
                await task_world.tick()
            assert not operation.done
            if by == "scope":
                scope.cancel()
                await operation.result()  # its task was not cancelled, but the block was
                assert scope.cancelled_caught
            else:
                operation.cancel()
                with pytest.raises(CancelledError):
                    await operation.result()
            assert messages == []

        task_world.run(body)

    def test_a_looper_is_cancelled_after_its_grace(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            began, ended = Gate(), Gate()

            async def call() -> None:
                began.open()
                try:
                    await forever()
                finally:
                    ended.open()

            async with aioqueue.Coordinator(stop_grace_period=0.05) as coord:
                coord.start(aioqueue.LooperTask(None, call))
                await began.wait(current_waker())
            assert ended.is_open

        task_world.run(body)

    def test_a_closed_coroutine_does_not_wait(self, loop_world: AsyncioWorld) -> None:
        """The coroutine of the exit is closed, as when the event loop was closed."""

        async def body() -> None:
            go = threading.Event()
            thread = threading.Thread(target=go.wait, args=(PATIENCE,))
            thread.start()
            is_left = []

            async def block() -> None:
                async with aioqueue.Coordinator() as coord:
                    coord.register(thread)
                is_left.append(True)

            coroutine = block()
            coroutine.send(None)  # until it waits for the thread
            coroutine.close()
            assert is_left == []
            go.set()
            thread.join()

        loop_world.run(body)


class TestClosedCoroutines:
    """A closed coroutine ends without waiting, as when its event loop was closed."""

    def test_a_runner_without_a_coordinator(self, loop_world: AsyncioWorld) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(1)
            runner = aioqueue.QueueRunner(queue, [forever])
            coroutine = runner.run()
            coroutine.send(None)  # until it waits for its worker
            coroutine.close()
            assert queue.is_closed()
            await loop_world.until(lambda: repr(runner).endswith("idle>"))
            assert runner.exceptions_raised == []

        loop_world.run(body)

    def test_a_looper(self, loop_world: AsyncioWorld) -> None:
        async def body() -> None:
            coord = aioqueue.Coordinator()
            coroutine = aioqueue.LooperTask(None, forever)._loop(coord)
            coroutine.send(None)

            async def close() -> None:
                coroutine.close()

            await asyncio.create_task(close())
            assert not coord.should_stop()

        loop_world.run(body)


class TestNoMoreThreads:
    """The call that needs a thread raises, and nothing hangs."""

    @pytest.fixture
    def refused(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        names: list[str] = []
        start = threading.Thread.start

        def start_some(thread: threading.Thread) -> None:
            if any(name in thread.name for name in names):
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_some)
        return names

    def test_for_a_worker_of_a_runner_without_a_coordinator(
        self, task_world: TaskWorld, refused: list[str]
    ) -> None:
        async def body() -> None:
            queue = task_world.fifo(1)

            def worker() -> None:
                raise OutOfRangeError

            refused.append("worker")
            runner = aioqueue.QueueRunner(queue, [forever, worker])
            with pytest.raises(RuntimeError, match="can't start new thread") as caught:
                await runner.run()
            with pytest.raises(OutOfRangeError) as end:
                await queue.dequeue()
            assert end.value.__cause__ is caught.value
            assert repr(runner).endswith("idle>")

        task_world.run(body)

    def test_for_the_end_of_a_successful_block(
        self, task_world: TaskWorld, refused: list[str]
    ) -> None:
        async def body() -> None:
            go = threading.Event()
            thread = threading.Thread(target=go.wait, args=(PATIENCE,))
            thread.start()
            refused.append("aioqueue-join")
            with pytest.raises(ExceptionGroup) as caught:
                async with aioqueue.Coordinator() as coord:
                    coord.register(thread)
            (error,) = caught.value.exceptions
            assert str(error) == "can't start new thread"
            go.set()
            thread.join()

        task_world.run(body)


class TestManyWorkers:
    def test_running_workers_are_not_pruned(
        self, task_world: TaskWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Workers that have ended are removed from time to time."""
        monkeypatch.setattr(coordinator_core, "_PRUNE_AT", 3)

        async def body() -> None:
            go = Gate()
            messages: list[int] = []

            async def call() -> None:
                await go.wait(current_waker())
                messages.append(1)

            async with aioqueue.Coordinator() as coord:
                for _ in range(8):
                    coord.start(aioqueue.LooperTask(None, call))
                    queue = task_world.fifo(1)
                    coord.start(aioqueue.QueueRunner(queue, [no_more]))
                    await queue.wait_closed()
                await task_world.until(lambda: len(coord._tasks._scopes) == 8)  # type: ignore[union-attr]
                coord.request_stop()
                for _ in range(5):
                    await task_world.tick()
                task_world.spawn(opened, go)
            assert len(messages) == 8

        task_world.run(body)

    def test_an_ended_runner_is_not_kept(
        self, task_world: TaskWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def body() -> None:
            async with aioqueue.Coordinator() as coord:
                kept = StopCallbacks(coord, monkeypatch)
                for _ in range(5):
                    queue = task_world.fifo(1)
                    runner = aioqueue.QueueRunner(queue, [no_more])
                    coord.start(runner)
                    await queue.wait_closed()
                    await task_world.until(partial(is_idle, runner))
                assert len(kept) <= 1  # that cancels tasks

        task_world.run(body)


async def opened(gate: Gate) -> None:
    gate.open()


def is_idle(runner: aioqueue.QueueRunner) -> bool:
    return repr(runner).endswith("idle>")


class Future:
    """A future of no event loop, which calls back in the thread that ends it."""

    def __init__(self, error: BaseException | None = None) -> None:
        self._callbacks: list[Callable[[Any], object]] = []
        self._error = error
        self._is_done = False

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        if self._is_done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def done(self) -> bool:
        return self._is_done

    def cancel(self) -> bool:
        self.end()
        return True

    def cancelled(self) -> bool:
        return False

    def exception(self) -> BaseException | None:
        return self._error

    def end(self) -> None:
        self._is_done = True
        for callback in self._callbacks:
            callback(self)


class TestHowWorkersEnd:
    def test_of_no_event_loop(self) -> None:
        error = ValueError()
        future = Future(error)
        coord = sync.Coordinator()
        coord.register(future)
        thread = threading.Thread(target=future.end)
        thread.start()
        with pytest.raises(ExceptionGroup) as caught:
            coord.join(stop_grace_period=PATIENCE)
        assert caught.value.exceptions == (error,)
        assert notes(error) == [f"in worker {future!r}"]
        thread.join()

    def test_of_no_event_loop_in_a_block_of_tasks(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            future = Future()
            async with aioqueue.Coordinator(stop_grace_period=0.0) as coord:
                coord.register(future)
            assert future.done()

        task_world.run(body)

    def test_of_no_event_loop_are_cancelled_after_the_grace(self) -> None:
        future = Future()
        coord = sync.Coordinator()
        coord.register(future)
        coord.request_stop()
        coord.join(stop_grace_period=0)
        assert future.done()

    @pytest.mark.parametrize("cancelled", [True, False])
    def test_of_a_loop_that_is_closed_while_a_join_waits(self, cancelled: bool) -> None:
        """It can never end. The join continues as if it had ended."""
        loop = asyncio.new_event_loop()
        task = loop.create_task(asyncio.sleep(3600))
        coord = sync.Coordinator()
        if cancelled:
            loop.call_soon(task.cancel)
        loop.run_until_complete(asyncio.sleep(0))
        coord.register(task)
        loop.run_until_complete(asyncio.sleep(0))
        assert task.done() is cancelled
        if not cancelled:
            task.cancel()
        loop.close()
        coord.request_stop()
        coord.join(stop_grace_period=PATIENCE)
        assert coord.joined

    def test_of_a_loop_that_is_closed_before_the_callback_is_added(self) -> None:
        """After the check that it is alive: it never runs again, which counts as its end."""
        loop = asyncio.new_event_loop()
        task = loop.create_task(asyncio.sleep(0))
        worker, called = as_worker(task), []
        loop.run_until_complete(task)
        loop.close()
        worker.when_ended(lambda: called.append(True))
        assert called == [True]
        assert not worker.is_alive()

    def test_a_thread_calls_back_when_it_has_ended(self) -> None:
        go, called = threading.Event(), threading.Event()
        thread = threading.Thread(target=go.wait, args=(PATIENCE,))
        thread.start()
        as_worker(thread).when_ended(called.set)
        assert not called.is_set()
        go.set()
        assert called.wait(PATIENCE)
        thread.join()

    def test_callbacks_are_added_in_the_loops_thread(self, loop_world: AsyncioWorld) -> None:
        """A join in another thread adds the callback through the loop: only its thread may."""

        async def body() -> None:
            go = asyncio.Event()
            task = asyncio.create_task(go.wait())
            coord = sync.Coordinator()
            thread = threading.Thread(target=coord.join, args=([task],))
            thread.start()
            await asyncio.to_thread(spin_until, has_begun_to_join(coord))
            coord.request_stop()
            go.set()
            await asyncio.to_thread(thread.join, PATIENCE)
            assert coord.joined

        loop_world.run(body)
