"""Coroutines and plain code mixed up: the error says what to write."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import aioqueue
from aioqueue import InvalidArgumentError, sync
from tests.kit.worlds import TaskWorld

Op = Callable[[], Any]


def plain(queue: Any) -> Op:
    return lambda: queue.enqueue(1)


def unawaited(queue: Any) -> Op:
    async def op() -> Any:
        return queue.enqueue(1)

    return op


def awaits_a_call_that_blocks(queue: Any) -> Op:
    async def op() -> None:
        await queue.sync.enqueue(1)

    return op


def awaits_what_is_plain(queue: Any) -> Op:
    async def op() -> None:
        async for _ in queue.sync:
            pass

    return op


def awaits_batches(queue: Any) -> Op:
    async def op() -> None:
        async for _ in queue.sync.batches(2):
            pass

    return op


def loops_over_what_is_awaited(queue: Any) -> Op:
    def op() -> None:
        for _ in queue:
            pass

    return op


def loops_over_async_batches(queue: Any) -> Op:
    def op() -> None:
        for _ in queue.batches(2):
            pass

    return op


OPS: dict[Callable[[Any], Op], str] = {
    plain: r"enqueue op '<lambda>' is a plain function but returned a coroutine: make it a"
    r" coroutine function \(`async def`\) to run it as a task, or enqueue with `queue\.sync`",
    unawaited: r"enqueue op 'op' returned the coroutine of 'enqueue', which nobody awaits: await",
    awaits_a_call_that_blocks: r"await(?s:.)*write `await queue\.aio\.dequeue\(\)`",
    awaits_what_is_plain: r"__aiter__(?s:.)*write `async for element in queue\.aio`",
    awaits_batches: r"__aiter__(?s:.)*write `async for element in queue\.aio`",
    loops_over_what_is_awaited: r"not iterable(?s:.)*write `async for element in queue` there",
    loops_over_async_batches: r"not iterable(?s:.)*write `async for element in queue` there",
}


def check(error: BaseException, pattern: str) -> None:
    assert isinstance(error, TypeError)
    text = "\n".join([str(error), *error.__notes__])
    assert re.search(pattern, text), text


def failure_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    assert len(group.exceptions) == 1
    return group.exceptions[0]


@pytest.mark.parametrize("make", OPS)
class TestOps:
    async def test_of_a_block_of_tasks(
        self, task_world: TaskWorld, make: Callable[[Any], Op]
    ) -> None:
        queue = aioqueue.FIFOQueue(3, name="q")
        queue.enqueue_nowait(1)
        with pytest.raises(ExceptionGroup) as caught:
            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.QueueRunner(queue, [make(queue)]))
                await coord.wait_for_stop()
        check(failure_of(caught.value), OPS[make])

    def test_of_threads(self, make: Callable[[Any], Op]) -> None:
        queue = aioqueue.FIFOQueue(3, name="q")
        queue.enqueue_nowait(1)
        with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
            coord.start(sync.QueueRunner(queue, [make(queue)]))
            coord.wait_for_stop()
        check(failure_of(caught.value), OPS[make])

    def test_without_a_coordinator(self, make: Callable[[Any], Op]) -> None:
        queue = aioqueue.FIFOQueue(3, name="q")
        queue.enqueue_nowait(1)
        runner = sync.QueueRunner(queue, [make(queue)])
        for thread in runner.create_threads(start=True):
            thread.join()
        (failure,) = runner.exceptions_raised
        check(failure, OPS[make])


class TestDroppedCoroutines:
    """An op that drops a coroutine continues; Python's warning names the method."""

    def test_of_a_plain_op(self) -> None:
        queue = aioqueue.FIFOQueue(3)
        calls = iter(range(2))

        def op() -> None:
            if next(calls, None) is None:
                raise aioqueue.OutOfRangeError("the end")
            queue.enqueue(1)  # type: ignore[unused-coroutine]

        runner = sync.QueueRunner(queue, [op])
        (thread,) = runner.create_threads()
        with pytest.warns(RuntimeWarning, match=r"'AsyncQueue\.enqueue' was never awaited"):
            thread.run()
        assert (runner.exceptions_raised, queue.size()) == ([], 0)

    def test_of_a_coordinator(self) -> None:
        with pytest.warns(RuntimeWarning, match=r"'Coordinator\.join' was never awaited"):
            aioqueue.Coordinator().join()  # type: ignore[unused-coroutine]


class TestResultsOfOps:
    """A plain op must return nothing to await; a coroutine function, no further coroutine."""

    def test_a_refused_op_is_called_once(self) -> None:
        queue = aioqueue.FIFOQueue(3)
        calls = []

        def op() -> Any:
            calls.append(1)
            return queue.enqueue(1)

        runner = sync.QueueRunner(queue, [op])
        for thread in runner.create_threads(start=True):
            thread.join()
        assert (calls, queue.size()) == ([1], 0)

    def test_a_task_that_runs_may_be_returned(self) -> None:
        queue = aioqueue.FIFOQueue(3)
        calls = iter(range(2))

        async def op() -> Any:
            if next(calls, None) is None:
                raise aioqueue.OutOfRangeError("the end")
            return asyncio.create_task(queue.enqueue(1))

        async def main() -> None:
            await aioqueue.QueueRunner(queue, [op]).run()

        asyncio.run(main())


async def target() -> None:
    """A coroutine function in place of a plain one."""


def makes_several() -> Iterator[int]:
    yield 1


async def makes_several_in_a_task() -> AsyncIterator[int]:
    yield 1


class TestLoopers:
    async def test_of_a_task(self, task_world: TaskWorld) -> None:
        queue = aioqueue.FIFOQueue(3, name="q")
        with pytest.raises(ExceptionGroup) as caught:
            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.LooperTask(None, plain(queue)))
                await coord.wait_for_stop()
        check(failure_of(caught.value), "aioqueue-<lambda> is a plain function but returned a cor")

    def test_of_a_thread(self) -> None:
        queue = aioqueue.FIFOQueue(3, name="q")
        with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
            sync.LooperThread.loop(coord, None, plain(queue))
            coord.wait_for_stop()
        check(failure_of(caught.value), "aioqueue-<lambda> is a plain function but returned a cor")

    def test_a_looper_thread_with_a_coroutine_function(self) -> None:
        class Looper(sync.LooperThread):
            async def run_loop(self) -> None:  # type: ignore[override]
                pass

        with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
            Looper(coord, None).start()
            coord.wait_for_stop()
        check(failure_of(caught.value), "aioqueue-loop is a plain function but returned a cor")

    @pytest.mark.parametrize("function", [makes_several, makes_several_in_a_task])
    def test_of_a_generator_function(self, function: Any) -> None:
        text = rf"target: got the generator function '{function.__name__}': calling it runs none"
        with pytest.raises(InvalidArgumentError, match=text):
            sync.LooperThread.loop(sync.Coordinator(), None, function)
        with pytest.raises(InvalidArgumentError, match=text):
            aioqueue.LooperTask(None, function)

    def test_a_looper_thread_with_a_later_coroutine(self) -> None:
        results: list[Any] = [None, target()]
        with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
            sync.LooperThread.loop(coord, None, lambda: results.pop(0))
            coord.wait_for_stop()
        check(failure_of(caught.value), "aioqueue-<lambda> .* returned a coroutine: make it")

    def test_of_a_coroutine_function_on_a_thread(self) -> None:
        with pytest.raises(
            InvalidArgumentError, match=r"use an aioqueue\.LooperTask for a coroutine"
        ):
            sync.LooperThread(sync.Coordinator(), None, target)


def queue_runner(face: Any) -> Any:
    return face.QueueRunner(aioqueue.FIFOQueue(1), [print])


def looper_thread() -> sync.LooperThread:
    return sync.LooperThread(sync.Coordinator(), 1, print)


STARTS: list[tuple[Callable[[], Any], str, str]] = [
    (
        lambda: target,
        r"write `coord\.start\(aioqueue\.QueueRunner\(queue, \[function\]\)\)`.*"
        r"`coord\.start\(aioqueue\.LooperTask\(seconds, function\)\)` to call it again",
        r"write `coord\.start\(aioqueue\.sync\.QueueRunner\(queue, \[function\]\)\)`.*"
        r"`sync\.LooperThread\.loop\(coord, seconds, function\)` to call it again",
    ),
    (
        lambda: target(),
        r"got the coroutine that target\(\) has returned;.*QueueRunner\(queue, \[func",
        r"got the coroutine that target\(\) has returned;.*QueueRunner\(queue, \[func",
    ),
    (
        lambda: sync.LooperThread,
        r"write `coord\.start\(aioqueue\.LooperTask\(seconds, function\)\)`; a LooperThread is for",
        r"starts itself, with `sync\.LooperThread\.loop\(coord, seconds, function\)`",
    ),
    (
        looper_thread,
        r"write `coord\.start\(aioqueue\.LooperTask\(seconds, function\)\)`; a LooperThread is for",
        r"starts itself, with `sync\.LooperThread\.loop\(coord, seconds, function\)`",
    ),
    (
        lambda: aioqueue.QueueRunner,
        r"a class; write `coord\.start\(aioqueue\.QueueRunner\(queue, \[function\]\)\)`",
        r"a class; write `coord\.start\(aioqueue\.sync\.QueueRunner\(queue, \[function\]\)\)`",
    ),
    (
        lambda: aioqueue.LooperTask,
        r"write `coord\.start\(aioqueue\.LooperTask\(seconds, function\)\)`",
        r"write `sync\.LooperThread\.loop\(coord, seconds, function\)`",
    ),
    (
        threading.Thread,
        r"`thread\.start\(\)`, then call `coord\.register\(thread\)`",
        r"`thread\.start\(\)`, then call `coord\.register\(thread\)`",
    ),
    (lambda: 3, r"got 3; expected an aioqueue\.QueueRunner or LooperTask$", r"sync.QueueRunner$"),
]


@pytest.mark.parametrize(("given", "for_tasks", "for_threads"), STARTS)
class TestStart:
    async def test_in_tasks(
        self, task_world: TaskWorld, given: Callable[[], Any], for_tasks: str, for_threads: str
    ) -> None:
        async with aioqueue.Coordinator() as coord:
            with pytest.raises(InvalidArgumentError, match=for_tasks):
                coord.start(given())

    def test_in_threads(self, given: Callable[[], Any], for_tasks: str, for_threads: str) -> None:
        with sync.Coordinator() as coord, pytest.raises(InvalidArgumentError, match=for_threads):
            coord.start(given())


class TestTheOtherKind:
    async def test_a_runner_for_threads(self, task_world: TaskWorld) -> None:
        async with aioqueue.Coordinator() as coord:
            with pytest.raises(InvalidArgumentError, match=r"`coord\.sync\.start\(runner\)`"):
                coord.start(queue_runner(sync))

    def test_a_runner_for_tasks(self) -> None:
        with (
            sync.Coordinator() as coord,
            pytest.raises(InvalidArgumentError, match=r"`coord\.aio\.start\(runner\)`"),
        ):
            coord.start(queue_runner(aioqueue))

    def test_a_looper_for_tasks(self) -> None:
        looper: Any = aioqueue.LooperTask(1, print)
        with (
            sync.Coordinator() as coord,
            pytest.raises(InvalidArgumentError, match=r"write `sync\.LooperThread\.loop\("),
        ):
            coord.start(looper)

    def test_a_task(self) -> None:
        async def main() -> None:
            async with aioqueue.Coordinator() as coord:
                task: Any = asyncio.current_task()
                with pytest.raises(InvalidArgumentError, match=r"`coord\.register\(task\)`"):
                    coord.start(task)

        asyncio.run(main())


class TestResultsOfCalls:
    """``op()`` in place of ``op``: the coroutine is closed."""

    @pytest.mark.parametrize("face", [aioqueue, sync])
    @pytest.mark.parametrize("wrap", [lambda one: one, lambda one: [target, one]])
    def test_enqueue_ops(self, face: Any, wrap: Callable[[Any], Any]) -> None:
        with pytest.raises(InvalidArgumentError, match=r"that target\(\).*the function itself"):
            face.QueueRunner(aioqueue.FIFOQueue(1), wrap(target()))

    def test_loopers(self) -> None:
        given: Any = target()
        with pytest.raises(InvalidArgumentError, match=r"coroutine that target\(\) has returned"):
            aioqueue.LooperTask(1, given)
        given = target()
        with pytest.raises(InvalidArgumentError, match=r"coroutine that target\(\) has returned"):
            sync.LooperThread(sync.Coordinator(), 1, given)

    def test_register(self) -> None:
        with pytest.raises(InvalidArgumentError, match=r"write `asyncio\.create_task\(\.\.\.\)`"):
            sync.Coordinator().register(target())


class TestBlocks:
    def test_a_plain_block_of_the_async_coordinator(self) -> None:
        coord: Any = aioqueue.Coordinator()
        with (
            pytest.raises(TypeError, match=r"write `async with aioqueue\.Coordinator\(\) as"),
            coord,
        ):
            pass

    async def test_an_async_block_of_the_plain_coordinator(self, task_world: TaskWorld) -> None:
        coord: Any = sync.Coordinator()
        with pytest.raises(TypeError, match=r"write `with aioqueue\.sync\.Coordinator\(\) as"):
            async with coord:
                pass

    async def test_of_a_batcher(self, task_world: TaskWorld) -> None:
        awaited: Any = aioqueue.Batcher(list)
        blocking: Any = sync.Batcher(list)
        with (
            pytest.raises(TypeError, match=r"write `async with aioqueue\.Batcher\(\.\.\.\) as"),
            awaited,
        ):
            pass
        with pytest.raises(TypeError, match=r"write `with aioqueue\.sync\.Batcher\(\.\.\.\) as"):
            async with blocking:
                pass

    async def test_a_body_that_awaits_a_blocking_call(self, task_world: TaskWorld) -> None:
        queue: Any = sync.FIFOQueue(1)
        with pytest.raises(ExceptionGroup) as caught:
            async with aioqueue.Coordinator():
                await queue.enqueue(1)
        check(failure_of(caught.value), "write `await queue.aio")

    def test_a_queue_has_one_kind_of_iterator(self) -> None:
        """Otherwise code that checks for `__iter__` would choose the wrong one."""
        assert not hasattr(sync.FIFOQueue(1), "__aiter__")
        assert not hasattr(aioqueue.FIFOQueue(1), "__iter__")
