"""Workers that keep a queue filled, for tasks, threads and mixtures."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from traceback import extract_tb
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.errors import InvalidArgumentError, OutOfRangeError, QueueClosedError
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate
from tests.kit.coordinators import group_of, notes
from tests.kit.worlds import PATIENCE, TaskWorld, spin_until, waiting

Op = Callable[[], Any]
context_variable: contextvars.ContextVar[str] = contextvars.ContextVar("test", default="unset")


def counting(queue: aioqueue.FIFOQueue, n: int, *, task: bool) -> Op:
    """An op that enqueues the numbers below n and then says that its input has ended."""
    numbers = iter(range(n))

    def take() -> int:
        try:
            return next(numbers)
        except StopIteration:
            raise OutOfRangeError("no more numbers") from None

    async def enqueue_async() -> None:
        await queue.enqueue(take())

    def enqueue() -> None:
        queue.sync.enqueue(take())

    return enqueue_async if task else enqueue


def failing(error: BaseException, *, task: bool) -> Op:
    async def fail_async() -> None:
        raise error

    def fail() -> None:
        raise error

    return fail_async if task else fail


async def forever() -> None:
    await Gate().wait(current_waker())


async def rest_of(queue: aioqueue.FIFOQueue) -> list[Any]:
    return [element async for element in queue]


async def rest_until_failure(queue: aioqueue.FIFOQueue) -> list[Any]:
    taken = []
    with pytest.raises(OutOfRangeError) as raised:
        async for element in queue:
            taken.append(element)  # noqa: PERF401
    assert raised.value.__cause__ is not None
    return taken


def join_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


async def no_more(queue: aioqueue.FIFOQueue) -> BaseException | None:
    """That the queue is closed and empty, and the failure that closed it."""
    with pytest.raises(OutOfRangeError) as caught:
        await queue.dequeue()
    return caught.value.__cause__


@pytest.fixture(params=[True, False], ids=["task", "thread"])
def task(request: pytest.FixtureRequest) -> bool:
    """Whether workers are tasks."""
    return bool(request.param)


class TestInACoordinator:
    @pytest.mark.parametrize("kinds", [(True,) * 3, (False,) * 3, (True, False, True, False)])
    def test_fills_and_closes_its_queue(
        self, task_world: TaskWorld, kinds: tuple[bool, ...]
    ) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(3)
            runner = aioqueue.QueueRunner(queue, [counting(queue, 20, task=kind) for kind in kinds])
            async with aioqueue.Coordinator() as coord:
                coord.start(runner)
                found = await rest_of(queue)
                assert not coord.should_stop()
                await coord.join()
            assert sorted(found) == sorted([*range(20)] * len(kinds))
            assert await no_more(queue) is None

        task_world.run(body)

    def test_the_last_worker_closes_it(self, task_world: TaskWorld, task: bool) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(9)
            ended = threading.Event()

            def end() -> None:
                ended.set()
                raise OutOfRangeError

            go = Gate()

            async def later() -> None:
                await go.wait(current_waker())
                raise OutOfRangeError

            def later_thread() -> None:
                go.wait_blocking()
                raise OutOfRangeError

            runner = aioqueue.QueueRunner(queue, [end, later if task else later_thread])
            async with aioqueue.Coordinator() as coord:
                coord.start(runner)
                await task_world.until(ended.is_set)
                await task_world.tick()
                assert not queue.is_closed()
                go.open()
                await queue.wait_closed()
                assert not coord.should_stop()

        task_world.run(body)

    def test_a_failure_closes_it_and_is_the_cause(self, task_world: TaskWorld, task: bool) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(9)
            error = ValueError()
            ops = [failing(error, task=task), counting(queue, 10**9, task=True)]
            runner = aioqueue.QueueRunner(queue, ops)

            async def block() -> None:
                async with aioqueue.Coordinator() as coord:
                    coord.start(runner)
                    assert await coord.wait_for_stop()
                    await rest_until_failure(queue)
                    assert await no_more(queue) is error

            group = await group_of(block())
            assert group.exceptions == (error,)
            [note] = notes(error)
            assert note.startswith("in worker aioqueue-fail")
            assert runner.exceptions_raised == []

        task_world.run(body)

    def test_all_failures_are_reported(self, task_world: TaskWorld, task: bool) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(9)
            errors: list[Exception] = [ValueError(number) for number in range(4)]
            everyone = threading.Barrier(4)

            def fail(error: Exception) -> None:
                everyone.wait(PATIENCE)
                raise error

            runner = aioqueue.QueueRunner(queue, [functools.partial(fail, e) for e in errors])

            async def block() -> None:
                async with aioqueue.Coordinator() as coord:
                    coord.start(runner)
                    await coord.wait_for_stop()

            group = await group_of(block())
            assert {id(error) for error in group.exceptions} == {id(error) for error in errors}

        task_world.run(body)

    def test_a_stop_wakes_blocked_workers(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(1)
            kinds = [True, False] * 4
            runner = aioqueue.QueueRunner(queue, [counting(queue, 9, task=kind) for kind in kinds])
            async with aioqueue.Coordinator() as coord:
                coord.start(runner)
                await task_world.until(lambda: waiting(queue) == len(kinds))
                coord.request_stop()
                assert queue.is_closed()
            assert len(queue) == 1
            assert waiting(queue) == 0
            await rest_of(queue)
            assert await no_more(queue) is None

        task_world.run(body)

    def test_a_stop_cancels_tasks_wherever_they_wait(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(1)
            started: list[int] = []
            cancelled: list[int] = []

            async def op() -> None:
                started.append(1)
                try:
                    await forever()
                finally:
                    cancelled.append(1)

            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.QueueRunner(queue, [op] * 5))
                await task_world.until(lambda: len(started) == 5)
            assert len(cancelled) == 5

        task_world.run(body)

    def test_a_second_stop_cancels_tasks_too(self, task_world: TaskWorld) -> None:
        """`clear_stop` makes the coordinator as new, within its block as well."""

        async def body() -> None:
            queue = aioqueue.FIFOQueue(1)
            started, ended = Gate(), Gate()

            async def op() -> None:
                started.open()
                try:
                    await forever()
                finally:
                    ended.open()

            async with aioqueue.Coordinator(stop_grace_period=2) as coord:
                coord.request_stop()
                await coord.join()
                for _ in range(10):
                    await task_world.tick()
                coord.clear_stop()
                coord.start(aioqueue.QueueRunner(queue, [op]))
                await started.wait(current_waker())
                coord.request_stop()
                for _ in range(100):
                    await task_world.tick()
                assert ended.is_open

        task_world.run(body)

    def test_thread_workers_end_after_the_call_they_are_in(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(1)
            go = Gate()
            calls: list[str] = []

            def op() -> None:
                calls.append("begun")
                go.wait_blocking()
                calls.append("ended")

            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.QueueRunner(queue, [op]))
                await task_world.until(lambda: calls)
                coord.request_stop()
                await task_world.tick()
                assert calls == ["begun"]
                go.open()
            assert calls == ["begun", "ended"]

        task_world.run(body)

    def test_started_after_the_stop_it_ends_at_once(
        self, task_world: TaskWorld, task: bool
    ) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(1)
            runner = aioqueue.QueueRunner(queue, [counting(queue, 9, task=task)])
            async with aioqueue.Coordinator() as coord:
                coord.request_stop()
                coord.start(runner)
            assert len(queue) == 0
            assert queue.is_closed()

        task_world.run(body)

    def test_an_upstream_failure_is_the_cause_downstream(self, task_world: TaskWorld) -> None:
        """The consumer at the end of a chain sees the failure at its beginning."""

        async def body() -> None:
            first, second = aioqueue.FIFOQueue(9), aioqueue.FIFOQueue(9)
            error = ValueError()

            async def forward() -> None:
                await second.enqueue(await first.dequeue())

            async def block() -> None:
                async with aioqueue.Coordinator() as coord:
                    coord.start(aioqueue.QueueRunner(second, [forward]))
                    await task_world.until(lambda: waiting(first) == 1)
                    coord.start(aioqueue.QueueRunner(first, [failing(error, task=True)]))
                    assert await no_more(second) is error

            assert (await group_of(block())).exceptions == (error,)
            assert await no_more(first) is error

        task_world.run(body)

    def test_two_runs_at_once_are_refused(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(1)
            runner = aioqueue.QueueRunner(queue, [forever])
            async with aioqueue.Coordinator() as coord:
                coord.start(runner)
                with pytest.raises(RuntimeError, match="running already"):
                    coord.start(runner)
                with pytest.raises(RuntimeError, match="running already"):
                    await runner.run()
                assert repr(runner).endswith("1 worker, running>")
            assert repr(runner).endswith("1 worker, idle>")
            coord.clear_stop()
            async with coord:
                coord.start(runner)

        task_world.run(body)

    def test_an_op_that_returns_a_coroutine(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(1)
            runner = aioqueue.QueueRunner(queue, [lambda: queue.enqueue(1)])

            async def block() -> None:
                async with aioqueue.Coordinator() as coord:
                    coord.start(runner)
                    await coord.wait_for_stop()

            group = await group_of(block())
            assert isinstance(group.exceptions[0], TypeError)
            message = str(group.exceptions[0])
            assert "is a plain function but returned a coroutine" in message
            assert "queue.sync" in message
            assert len(queue) == 0

        task_world.run(body)


class TestWithoutACoordinator:
    def test_ends_when_its_input_does(self, task_world: TaskWorld, task: bool) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(None)
            ops = [counting(queue, 5, task=task), counting(queue, 5, task=not task)]
            runner = aioqueue.QueueRunner(queue, ops)
            await runner.run()
            assert sorted(await rest_of(queue)) == sorted([*range(5)] * 2)
            assert runner.exceptions_raised == []

        task_world.run(body)

    def test_failures_are_collected(self, task_world: TaskWorld, task: bool) -> None:
        """The others continue; the last one closes the queue, caused by the first failure."""

        async def body() -> None:
            queue = aioqueue.FIFOQueue(None)
            error = ValueError()
            runner = aioqueue.QueueRunner(
                queue, [failing(error, task=task), counting(queue, 5, task=not task)]
            )
            group = await group_of(runner.run())
            assert group.exceptions == (error,)
            assert runner.exceptions_raised == [error]
            assert [note.startswith("in worker aioqueue-fail") for note in notes(error)] == [True]
            assert await rest_until_failure(queue) == [*range(5)]
            assert await no_more(queue) is error

        task_world.run(body)

    def test_several_failures(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(None)
            errors = [ValueError(), KeyError()]
            runner: aioqueue.QueueRunner

            async def second() -> None:
                await task_world.until(lambda: runner.exceptions_raised)
                raise errors[1]

            runner = aioqueue.QueueRunner(queue, [second, failing(errors[0], task=True)])
            group = await group_of(runner.run())
            assert list(group.exceptions) == errors == runner.exceptions_raised
            assert await no_more(queue) is errors[0]

        task_world.run(body)

    def test_a_waiting_consumer_does_not_hang(self, task_world: TaskWorld, task: bool) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(1)
            error = ValueError()
            consumer = await task_world.begin(queue.dequeue)
            with pytest.raises(ExceptionGroup):
                await aioqueue.QueueRunner(queue, [failing(error, task=task)]).run()
            with pytest.raises(OutOfRangeError) as caught:
                await consumer.result()
            assert caught.value.__cause__ is error

        task_world.run(body)

    def test_an_upstream_failure_is_the_cause_downstream(
        self, task_world: TaskWorld, task: bool
    ) -> None:
        async def body() -> None:
            first, second, third = (aioqueue.FIFOQueue(9) for _ in range(3))
            error = ValueError()

            def forward(source: aioqueue.FIFOQueue, to: aioqueue.FIFOQueue) -> Op:
                async def op() -> None:
                    await to.enqueue(await source.dequeue())

                return op if task else lambda: to.sync.enqueue(source.sync.dequeue())

            runs = [
                task_world.spawn(aioqueue.QueueRunner(second, [forward(first, second)]).run),
                task_world.spawn(aioqueue.QueueRunner(third, [forward(second, third)]).run),
            ]
            first.close(cause=error)
            for run in runs:
                await run.result()  # that the input has ended, however, is no failure
            assert await no_more(third) is error

        task_world.run(body)

    def test_may_run_again(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(None)
            errors = iter([ValueError(1), ValueError(2)])

            async def op() -> None:
                raise next(errors)

            runner = aioqueue.QueueRunner(queue, [op], close_op=lambda: None)
            for number in (1, 2):
                assert len((await group_of(runner.run())).exceptions) == 1
                assert [error.args for error in runner.exceptions_raised] == [(number,)]

        task_world.run(body)

    def test_two_runs_at_once_are_refused(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(1)
            runner = aioqueue.QueueRunner(queue, [counting(queue, 2, task=True)])
            run = task_world.spawn(runner.run)
            await task_world.until(lambda: waiting(queue) == 1)
            with pytest.raises(RuntimeError, match="running already"):
                await runner.run()
            assert await rest_of(queue) == [0, 1]
            await run.result()

        task_world.run(body)

    def test_cancellation(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(1)
            kinds = (True, False)
            runner = aioqueue.QueueRunner(queue, [counting(queue, 9, task=kind) for kind in kinds])
            run = task_world.spawn(runner.run)
            await task_world.until(lambda: waiting(queue) == 2)
            run.cancel()
            assert await run.was_cancelled()
            assert queue.is_closed()
            assert waiting(queue) == 0
            assert len(await rest_of(queue)) == 1
            assert await no_more(queue) is None
            assert runner.exceptions_raised == []
            assert repr(runner).endswith("idle>")

        task_world.run(body)

    def test_cancellation_waits_for_threads(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(1)
            go, inside = Gate(), Gate()

            def op() -> None:
                inside.open()
                go.wait_blocking()

            run = task_world.spawn(aioqueue.QueueRunner(queue, [op]).run)
            await inside.wait(current_waker())
            run.cancel()
            await task_world.until(queue.is_closed)
            assert not run.done
            go.open()
            assert await run.was_cancelled()

        task_world.run(body)


class TestClosing:
    def test_custom_ops(self, task_world: TaskWorld, task: bool) -> None:
        async def body() -> None:
            for stopped in (False, True):
                calls: list[str] = []
                queue = aioqueue.FIFOQueue(None)

                def close(what: str, queue: aioqueue.FIFOQueue, calls: list[str]) -> None:
                    calls.append(what)
                    queue.close()

                runner = aioqueue.QueueRunner(
                    queue,
                    [forever if stopped else counting(queue, 3, task=task)],
                    close_op=functools.partial(close, "close", queue, calls),
                    cancel_op=functools.partial(close, "cancel", queue, calls),
                )
                async with aioqueue.Coordinator() as coord:
                    coord.start(runner)
                    if stopped:
                        coord.request_stop()
                    await queue.wait_closed()
                assert calls == ["cancel" if stopped else "close"]

        task_world.run(body)

    def test_a_close_op_that_fails(self, task_world: TaskWorld, task: bool) -> None:
        """It is reported, and the queue is closed, so that no consumer hangs."""

        async def body() -> None:
            queue = aioqueue.FIFOQueue(None)
            error = ValueError()

            def close() -> None:
                raise error

            runner = aioqueue.QueueRunner(queue, [counting(queue, 3, task=task)], close_op=close)
            assert (await group_of(runner.run())).exceptions == (error,)
            assert runner.exceptions_raised == [error]
            assert notes(error) == ["in worker that closes the queue"]
            assert queue.is_closed()
            assert await rest_until_failure(queue) == [0, 1, 2]
            assert await no_more(queue) is error

        task_world.run(body)

    @pytest.mark.parametrize("coordinated", [True, False], ids=["block", "alone"])
    def test_an_interrupted_close_op(
        self, task_world: TaskWorld, task: bool, coordinated: bool
    ) -> None:
        """The run ends, and the interruption is reported, as one of an op."""

        async def body() -> None:
            queue = aioqueue.FIFOQueue(None)
            error = KeyboardInterrupt()

            def close() -> None:
                raise error

            runner = aioqueue.QueueRunner(queue, [counting(queue, 3, task=task)], close_op=close)

            async def block() -> None:
                async with aioqueue.Coordinator() as coord:
                    coord.start(runner)
                    await coord.wait_for_stop()

            with pytest.raises(KeyboardInterrupt) as caught:
                await (block() if coordinated else runner.run())
            group = caught.value.__cause__
            assert isinstance(group, BaseExceptionGroup)
            assert group.exceptions == (error,)
            assert notes(error) == ["in worker that closes the queue"]
            assert await rest_of(queue) == [0, 1, 2]
            assert repr(runner).endswith("idle>")

        task_world.run(body)

    def test_a_cancel_op_that_fails(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(1)
            error = ValueError()

            def cancel() -> None:
                raise error

            async def block() -> None:
                async with aioqueue.Coordinator() as coord:
                    coord.start(aioqueue.QueueRunner(queue, [forever], cancel_op=cancel))
                    coord.request_stop()

            assert (await group_of(block())).exceptions == (error,)
            assert queue.is_closed()

        task_world.run(body)

    def test_a_failing_close_op_of_a_run_that_ended_earlier_is_reported(self) -> None:
        """It is called with that of the last run. Explanations name the running workers only."""
        queue, go, error = sync.FIFOQueue(1), Gate(), ValueError()

        def ends() -> None:
            raise OutOfRangeError

        def waits() -> None:
            go.wait_blocking()
            ends()

        def close() -> None:
            raise error

        with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
            [later] = coord.start(sync.QueueRunner(queue, [waits]))
            [first] = coord.start(sync.QueueRunner(queue, [ends], close_op=close))
            first.join(PATIENCE)
            stages = [one for one in coord.explain().stages if one.into == queue.name]
            assert [one.name for one in stages] == ["the QueueRunner of waits (1 worker)"]
            go.open()
            later.join(PATIENCE)
        assert caught.value.exceptions == (error,)

    def test_other_ends_of_the_input(self, task_world: TaskWorld, task: bool) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(1)
            runner = aioqueue.QueueRunner(
                queue,
                [failing(KeyError(), task=task)],
                queue_closed_exception_types=(KeyError, OutOfRangeError),
            )
            await runner.run()
            assert await no_more(queue) is None
            runner = aioqueue.QueueRunner(
                queue, [failing(OutOfRangeError(), task=task)], queue_closed_exception_types=()
            )
            assert isinstance((await group_of(runner.run())).exceptions[0], OutOfRangeError)

        task_world.run(body)

    def test_a_queue_that_someone_else_closed_is_a_failure(
        self, task_world: TaskWorld, task: bool
    ) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(1)
            queue.close()
            runner = aioqueue.QueueRunner(queue, [counting(queue, 3, task=task)])
            group = await group_of(runner.run())
            assert [type(error) for error in group.exceptions] == [QueueClosedError]

        task_world.run(body)


class AsyncCallable:
    """An object that is called like a coroutine function."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    async def __call__(self) -> None:
        self.threads.append(threading.current_thread())
        raise OutOfRangeError

    async def method(self, *_: object) -> None:
        await self()


class TestWhatRunsWhere:
    def test_wrapped_coroutine_functions_are_tasks(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            op = AsyncCallable()
            ops: list[Op] = [
                op,
                functools.partial(op),
                op.method,
                functools.partial(functools.partial(op.method, 1), 2),
            ]
            await aioqueue.QueueRunner(aioqueue.FIFOQueue(1), ops).run()
            assert op.threads == [threading.current_thread()] * 4

        task_world.run(body)

    def test_plain_functions_have_a_thread_each(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            seen: list[threading.Thread] = []

            def op() -> None:
                seen.append(threading.current_thread())
                raise OutOfRangeError

            queue = aioqueue.FIFOQueue(1, name="images")
            await aioqueue.QueueRunner(queue, [op, op, functools.partial(op)]).run()
            assert sorted(thread.name for thread in seen) == [
                f"aioqueue-op-{number}" for number in range(3)
            ]
            assert all(thread.daemon for thread in seen)
            assert threading.current_thread() not in seen

        task_world.run(body)

    def test_workers_inherit_context_variables(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            seen: list[str] = []

            def op() -> None:
                seen.append(context_variable.get())
                context_variable.set("changed")
                raise OutOfRangeError

            async def op_async() -> None:
                op()

            context_variable.set("set")
            await aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [op, op, op_async, op_async]).run()
            assert seen == ["set"] * 4
            assert context_variable.get() == "set"

        task_world.run(body)


class TestThreads:
    """The runner of the thread face."""

    @pytest.mark.parametrize("kinds", [(True,) * 3, (False,) * 3, (True, False, True, False)])
    def test_fills_and_closes_its_queue(self, kinds: tuple[bool, ...]) -> None:
        queue = sync.FIFOQueue(3)
        ops = [counting(queue.aio, 20, task=kind) for kind in kinds]
        with sync.Coordinator() as coord:
            threads = coord.start(sync.QueueRunner(queue, ops))
            found = list(queue)
            coord.join()
        assert sorted(found) == sorted([*range(20)] * len(kinds))
        assert len(threads) == kinds.count(False) + (True in kinds)
        assert not any(thread.is_alive() for thread in threads)

    @pytest.mark.parametrize("stray", [asyncio.CancelledError, GeneratorExit])
    def test_a_cancellation_in_a_thread_is_a_failure(self, stray: type[BaseException]) -> None:
        """A thread cannot be cancelled, so something that it used was."""

        def op() -> None:
            raise stray("strayed")

        queue = sync.FIFOQueue(3)
        with pytest.raises(BaseExceptionGroup) as caught, sync.Coordinator() as coord:
            coord.start(sync.QueueRunner(queue, op))
            assert list(queue) == []
        (failure,) = caught.value.exceptions
        assert isinstance(failure, stray)
        assert any("in worker aioqueue-" in note for note in failure.__notes__)

    def test_coroutine_functions_share_one_event_loop(self) -> None:
        op = AsyncCallable()
        runner = sync.QueueRunner(sync.FIFOQueue(1, name="images"), [op] * 3)
        [thread] = runner.create_threads(start=True)
        join_all([thread])
        assert op.threads == [thread] * 3
        assert "images" in thread.name

    def test_a_failure_closes_it_and_is_the_cause(self, task: bool) -> None:
        queue = sync.FIFOQueue(3)
        error = ValueError()
        coord = sync.Coordinator()
        ops = [failing(error, task=task), counting(queue.aio, 10**9, task=not task)]
        coord.start(sync.QueueRunner(queue, ops))
        with pytest.raises(OutOfRangeError) as closed:
            for _ in queue:
                pass
        assert closed.value.__cause__ is error
        with pytest.raises(ExceptionGroup) as caught:
            coord.join()
        assert caught.value.exceptions == (error,)
        assert len(notes(error)) == 1

    def test_a_stop_wakes_blocked_workers_and_cancels_tasks(self) -> None:
        queue = sync.FIFOQueue(1)
        started, ended = Gate(), Gate()

        async def elsewhere() -> None:
            try:
                started.open()
                await forever()
            finally:
                ended.open()

        ops = [counting(queue.aio, 9, task=kind) for kind in (True, False)]
        with sync.Coordinator() as coord:
            coord.start(sync.QueueRunner(queue, [*ops, elsewhere]))
            spin_until(lambda: waiting(queue) == 2 and started.is_open)
        assert len(queue) == 1
        assert ended.is_open

    def test_without_a_coordinator(self, task: bool) -> None:
        queue = sync.FIFOQueue(9)
        error = ValueError()
        ops = [failing(error, task=task), counting(queue.aio, 3, task=not task)]
        runner = sync.QueueRunner(queue, ops)
        threads = runner.create_threads(start=True)
        join_all(threads)
        assert runner.exceptions_raised == [error]
        assert [one.filename for one in extract_tb(error.__traceback__)] == [__file__]
        taken = []
        with pytest.raises(OutOfRangeError) as caught:
            for number in queue:
                taken.append(number)  # noqa: PERF402
        assert taken == [0, 1, 2]
        assert caught.value.__cause__ is error

    def test_create_threads(self) -> None:
        queue = sync.FIFOQueue(9, name="images")
        go = Gate()

        def op() -> None:
            go.wait_blocking()
            raise OutOfRangeError

        runner = sync.QueueRunner(queue, [op, op])
        coord = sync.Coordinator()
        threads = runner.create_threads(object(), coord, True, False)
        assert [thread.name for thread in threads] == [
            f"aioqueue-op-{number}" for number in range(2)
        ]
        assert all(thread.daemon for thread in threads)
        assert not any(thread.is_alive() for thread in threads)
        coord.join()  # those that were never started count as dead
        coord.clear_stop()
        with pytest.raises(RuntimeError, match="running already"):
            runner.create_threads()
        for thread in threads:
            coord.register(thread)
            thread.start()
        go.open()
        coord.join(threads)
        assert queue.is_closed()
        again = runner.create_threads(start=True)
        assert not any(thread.daemon for thread in again)
        join_all(again)

    def test_its_coordinator_may_be_of_either_face(self) -> None:
        queue = sync.FIFOQueue(1)
        coord = aioqueue.Coordinator()
        runner = sync.QueueRunner(queue, [counting(queue.aio, 9, task=False)])
        threads = runner.create_threads(coord=coord, start=True)
        spin_until(lambda: waiting(queue) == 1)
        coord.request_stop()
        coord.sync.join(threads)
        assert queue.is_closed()

    def test_a_script_of_tensorflow_1(self) -> None:
        queue = sync.FIFOQueue(capacity=50, dtypes=["float32", "int32"], shapes=[(4,), ()])
        numbers = itertools.count()
        runner = sync.QueueRunner(queue, [lambda: queue.enqueue(([0.5] * 4, next(numbers)))] * 4)
        coord = sync.Coordinator()
        threads = runner.create_threads(coord=coord, start=True)
        labels = []
        try:
            while not coord.should_stop():
                _, label = queue.dequeue()
                labels.append(int(label))
                if len(labels) == 200:
                    raise OutOfRangeError
        except Exception as error:
            coord.request_stop(error)
        finally:
            coord.request_stop()
            coord.join(threads)
        assert len(set(labels)) == 200
        assert not any(thread.is_alive() for thread in threads)

    def test_workers_inherit_context_variables(self) -> None:
        seen: list[str] = []

        def op() -> None:
            seen.append(context_variable.get())
            raise OutOfRangeError

        async def op_async() -> None:
            op()

        def start() -> list[threading.Thread]:
            context_variable.set("set")
            runner = sync.QueueRunner(sync.FIFOQueue(1), [op, op, op_async, op_async])
            return runner.create_threads(start=True)

        join_all(contextvars.copy_context().run(start))
        assert seen == ["set"] * 4

    def test_a_thread_that_cannot_start_is_not_waited_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The coordinator knows it already; the one that was started before it ends."""
        start = threading.Thread.start

        def start_some(thread: threading.Thread) -> None:
            if thread.name.endswith("-1"):
                raise RuntimeError("can't start new thread")
            start(thread)

        queue = sync.FIFOQueue(1)
        coord = sync.Coordinator()
        runner = sync.QueueRunner(queue, [lambda: queue.enqueue(1)] * 3)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start_some)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                coord.start(runner)
        assert queue.is_closed()
        assert not coord.should_stop()  # whoever has started it has been told
        coord.request_stop()
        coord.join()
        assert coord.joined
        assert repr(runner).endswith("idle>")

    def test_refuses_a_wrong_coordinator(self) -> None:
        runner = sync.QueueRunner(sync.FIFOQueue(1), [lambda: None])
        with pytest.raises(InvalidArgumentError, match=r"coord: got 5; expected a Coordinator"):
            runner.create_threads(coord=5)  # type: ignore[arg-type]
        assert repr(runner).endswith("idle>")


@pytest.mark.parametrize("face", [aioqueue, sync], ids=["aio", "sync"])
class TestArguments:
    def test_attributes(self, face: Any) -> None:
        queue = face.FIFOQueue(1, name="images")
        runner = face.QueueRunner(queue, forever)
        assert runner.queue is queue
        assert runner.name == "images"
        assert runner.enqueue_ops == [forever]
        assert runner.queue_closed_exception_types == (OutOfRangeError,)
        assert (runner.close_op, runner.cancel_op, runner.exceptions_raised) == (None, None, [])
        kind = f"{face.__name__}.QueueRunner"
        assert repr(runner) == f"<{kind} of 'images', 1 worker, idle>"

    def test_a_missing_argument_is_reported_with_the_public_class(self, face: Any) -> None:
        with pytest.raises(TypeError, match=r"^QueueRunner\.__init__\(\) missing"):
            face.QueueRunner()
        with pytest.raises(
            TypeError, match=r"^Coordinator\(\) got .*; here that is stop_grace_period="
        ):
            face.Coordinator(grace=1)

    def test_takes_a_queue_of_either_face(self, face: Any) -> None:
        queue = aioqueue.FIFOQueue(1)
        assert face.QueueRunner(queue, forever).queue is queue
        assert face.QueueRunner(queue.sync, forever).queue is queue.sync

    @pytest.mark.parametrize("wrong", [5, [], "queue"])
    def test_queue(self, face: Any, wrong: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=r"queue: got .*; expected a queue"):
            face.QueueRunner(wrong, [forever])

    @pytest.mark.parametrize("wrong", [None, 5, [], [5], [forever, None], "op"])
    def test_enqueue_ops(self, face: Any, wrong: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=r"enqueue_ops: got .*; expected callables"):
            face.QueueRunner(face.FIFOQueue(1), wrong)

    def test_an_op_that_is_a_generator(self, face: Any) -> None:
        """A call of it enqueues nothing."""

        def elements() -> Iterator[int]:
            yield 1

        async def async_elements() -> AsyncIterator[int]:
            yield 1

        for op in (elements, async_elements):
            with pytest.raises(InvalidArgumentError, match=r"enqueue_ops: got the generator"):
                face.QueueRunner(face.FIFOQueue(1), [op])

    @pytest.mark.parametrize("wrong", [None, ValueError, [ValueError], (5,), (int,)])
    def test_queue_closed_exception_types(self, face: Any, wrong: Any) -> None:
        with pytest.raises(
            InvalidArgumentError, match=r"queue_closed_exception_types: got .*tuple"
        ):
            face.QueueRunner(face.FIFOQueue(1), forever, queue_closed_exception_types=wrong)

    @pytest.mark.parametrize("name", ["close_op", "cancel_op"])
    @pytest.mark.parametrize("wrong", [5, "close", forever, AsyncCallable()])
    def test_close_and_cancel_op(self, face: Any, name: str, wrong: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=rf"{name}: got .*; expected a plain func"):
            face.QueueRunner(face.FIFOQueue(1), forever, **{name: wrong})
