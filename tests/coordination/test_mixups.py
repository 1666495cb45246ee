"""Coroutines and plain code mixed up, as newcomers do: refused at once, with what to write."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio.lowlevel
import pytest

import aioqueue
from aioqueue import InvalidArgumentError, sync
from aioqueue.coordination.misuse import Unawaited
from tests.kit.worlds import TaskWorld

Op = Callable[[], Any]


async def enqueue_elsewhere(queue: Any) -> None:
    await queue.aio.enqueue(1)


def plain(queue: Any) -> Op:
    def op() -> None:
        queue.enqueue(1)

    return op


def forgets(queue: Any) -> Op:
    async def op() -> None:
        queue.enqueue(1)

    return op


def drops(queue: Any) -> Op:
    def op() -> None:
        enqueue_elsewhere(queue)  # type: ignore[unused-coroutine]

    return op


def drops_in_a_task(queue: Any) -> Op:
    async def op() -> None:
        enqueue_elsewhere(queue)  # type: ignore[unused-coroutine]

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
    plain: r"enqueue op 'op' is a plain function, but called `enqueue` of the async FIFOQueue"
    r" 'q', which must be awaited: write `async def` and `await queue\.enqueue\(\.\.\.\)`"
    r".*`queue\.sync\.enqueue\(\.\.\.\)`",
    forgets: r"enqueue op 'op' called `enqueue` of the async FIFOQueue 'q' without `await`:"
    r" write `await queue\.enqueue\(\.\.\.\)`",
    drops: r"the coroutine function 'enqueue_elsewhere' and did not await it: make this a",
    drops_in_a_task: r"the coroutine function 'enqueue_elsewhere' and did not await it: await it",
    awaits_a_call_that_blocks: r"await(?s:.)*write `await queue\.aio\.dequeue\(\)`",
    awaits_what_is_plain: r"__aiter__(?s:.)*write `async for element in queue\.aio`",
    awaits_batches: r"__aiter__(?s:.)*write `async for element in queue\.aio`",
    loops_over_what_is_awaited: r"not iterable(?s:.)*write `async for element in queue` there",
    loops_over_async_batches: r"not iterable(?s:.)*write `async for element in queue` there",
}


def check(error: BaseException, pattern: str) -> None:
    assert isinstance(error, TypeError)
    told = "\n".join([str(error), *error.__notes__])
    assert re.search(pattern, told), told


def failure_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    assert len(group.exceptions) == 1
    return group.exceptions[0]


@pytest.mark.parametrize("make", OPS)
class TestOps:
    """Warnings are errors in this suite: Python says nothing of a coroutine that was dropped."""

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


def loops(queue: Any, is_over: Callable[[], bool]) -> Op:
    def op() -> None:
        while not is_over():
            queue.enqueue(1)

    return op


def loops_in_a_task(queue: Any, is_over: Callable[[], bool]) -> Op:
    async def op() -> None:
        while not is_over():
            queue.enqueue(1)
            await anyio.lowlevel.checkpoint()

    return op


def loops_well_at_first(queue: Any, is_over: Callable[[], bool]) -> Op:
    async def op() -> None:
        for _ in range(3):
            await queue.enqueue(1)
        while not is_over():
            queue.enqueue(1)
            await anyio.lowlevel.checkpoint()

    return op


@pytest.mark.parametrize("make", [loops, loops_in_a_task, loops_well_at_first])
class TestOpsThatLoopByThemselves:
    """Their first call does not end: they are stopped when they have dropped the first one."""

    async def test_of_a_block_of_tasks(self, task_world: TaskWorld, make: Any) -> None:
        queue = aioqueue.FIFOQueue(3, name="q")
        with pytest.raises(ExceptionGroup) as caught:
            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.QueueRunner(queue, [make(queue, coord.should_stop)]))
                await coord.wait_for_stop()
        check(failure_of(caught.value), r"call(?s:.*)`enqueue` of the async FIFOQueue 'q'")
        (cause,) = caught.value.exceptions
        assert queue.is_closed()
        with pytest.raises(aioqueue.OutOfRangeError) as ended:
            await queue.dequeue_many(9)
        assert ended.value.__cause__ is cause

    def test_of_threads(self, make: Any) -> None:
        queue = aioqueue.FIFOQueue(3, name="q")
        with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
            coord.start(sync.QueueRunner(queue, [make(queue, coord.should_stop)]))
            coord.wait_for_stop()
        check(failure_of(caught.value), r"call(?s:.*)`enqueue` of the async FIFOQueue 'q'")

    def test_without_a_coordinator(self, make: Any) -> None:
        queue = aioqueue.FIFOQueue(3, name="q")
        runner = sync.QueueRunner(queue, [make(queue, queue.is_closed)])
        for thread in runner.create_threads(start=True):
            thread.join()
        (failure,) = runner.exceptions_raised
        check(failure, r"call(?s:.*)`enqueue` of the async FIFOQueue 'q'")
        with pytest.raises(aioqueue.OutOfRangeError) as ended:
            queue.sync.dequeue_many(9)
        assert ended.value.__cause__ is failure


class TestWatching:
    """Who is not watched hears Python's warning, as ever."""

    def test_the_op_has_moved_nothing_and_is_called_once(self) -> None:
        queue = aioqueue.FIFOQueue(3)
        calls = []

        def op() -> None:
            calls.append(1)
            queue.enqueue(1)  # type: ignore[unused-coroutine]

        runner = sync.QueueRunner(queue, [op])
        for thread in runner.create_threads(start=True):
            thread.join()
        assert (calls, queue.size()) == ([1], 0)

    def test_others_are_warned(self) -> None:
        queue = aioqueue.FIFOQueue(3)
        before = warnings._warn_unawaited_coroutine  # type: ignore[attr-defined]

        def another() -> None:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                queue.enqueue(1)  # type: ignore[unused-coroutine]
            assert "was never awaited" in str(caught[0].message)

        with Unawaited("somebody", can_await=False) as unawaited:
            assert warnings._warn_unawaited_coroutine is not before  # type: ignore[attr-defined]
            thread = threading.Thread(target=another)
            thread.start()
            thread.join()
        unawaited.refuse()
        assert warnings._warn_unawaited_coroutine is before  # type: ignore[attr-defined]

    def test_what_was_dropped_before_a_failure_is_warned_of(self) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with (
                pytest.raises(ZeroDivisionError),
                Unawaited("somebody", can_await=False),
            ):
                for _ in range(3):
                    target()  # type: ignore[unused-coroutine]
                    enqueue_elsewhere(None)  # type: ignore[unused-coroutine]
                raise ZeroDivisionError
        told = [str(one.message) for one in caught]
        assert [one.partition("'")[2].partition("'")[0] for one in told] == [
            "target",
            "enqueue_elsewhere",
        ]

    def test_where_warnings_are_errors_the_failure_has_them_as_notes(self) -> None:
        with (
            pytest.raises(ZeroDivisionError) as failed,
            Unawaited("somebody", can_await=False),
        ):
            target()  # type: ignore[unused-coroutine]
            raise ZeroDivisionError
        (note,) = failed.value.__notes__
        assert note.startswith("RuntimeWarning: coroutine 'target' was never awaited")

    def test_nothing_is_kept_of_those_that_follow(self) -> None:
        kept: list[weakref.ref[Thing]] = []

        class Thing:
            pass

        async def target(thing: Thing) -> None:
            """Its coroutine keeps what it was given."""

        def drop() -> None:
            thing = Thing()
            kept.append(weakref.ref(thing))
            target(thing)  # type: ignore[unused-coroutine]

        def kept_alive() -> int:
            return sum(one() is not None for one in kept)

        told: list[TypeError] = []
        with Unawaited("somebody", can_await=False) as unawaited:
            for _ in range(3):
                drop()
            assert [len(kept), kept_alive()] == [3, 1]
        assert kept_alive() == 0
        with pytest.raises(TypeError, match=r"the coroutine function '.*target'"):
            unawaited.refuse()
        kept.clear()
        with Unawaited("somebody", can_await=False, at_once=told.append) as unawaited:
            drop()
            assert len(told) == 1, "at once"
            drop()
            assert kept_alive() == 0
        unawaited.refuse()
        assert len(told) == 1

    def test_what_the_collector_comes_upon_is_somebody_elses(self) -> None:
        ring: list[Any] = [aioqueue.FIFOQueue(3).enqueue(1)]
        ring.append(ring)
        del ring
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with Unawaited("somebody", can_await=False) as unawaited:
                gc.collect()
        unawaited.refuse()
        assert "was never awaited" in str(caught[0].message)

    def test_a_hook_that_came_later_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        heard: list[Any] = []
        before = warnings._warn_unawaited_coroutine  # type: ignore[attr-defined]
        queue = aioqueue.FIFOQueue(3)
        with Unawaited("the first", can_await=False):
            ours = warnings._warn_unawaited_coroutine  # type: ignore[attr-defined]
            monkeypatch.setattr(warnings, "_warn_unawaited_coroutine", heard.append)
        queue.enqueue(1)  # type: ignore[unused-coroutine]
        assert len(heard) == 1
        monkeypatch.setattr(warnings, "_warn_unawaited_coroutine", ours)
        with Unawaited("the second", can_await=False):
            pass
        monkeypatch.undo()  # which puts back ours, that is not to stay
        warnings._warn_unawaited_coroutine = before  # type: ignore[attr-defined]

    def test_two_tasks_of_one_loop_are_told_apart(self) -> None:
        queue = aioqueue.FIFOQueue(3, name="q")
        entered = asyncio.Event()
        dropped = asyncio.Event()

        async def well_behaved() -> None:
            with Unawaited("this one", can_await=True) as unawaited:
                entered.set()
                await dropped.wait()
            unawaited.refuse()

        async def forgetful() -> None:
            await entered.wait()
            with Unawaited("that one", can_await=True) as unawaited:
                queue.dequeue()  # type: ignore[unused-coroutine]
            dropped.set()
            with pytest.raises(
                TypeError, match=r"that one called `dequeue` .*await queue\.dequeue"
            ):
                unawaited.refuse()

        async def main() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(well_behaved())
                group.create_task(forgetful())

        asyncio.run(main())


async def target() -> None:
    """What a newcomer wants to have run."""


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
        check(failure_of(caught.value), "aioqueue-op is a plain function, but called `enqueue`")

    def test_of_a_thread(self) -> None:
        queue = aioqueue.FIFOQueue(3, name="q")
        with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
            sync.LooperThread.loop(coord, None, plain(queue))
            coord.wait_for_stop()
        check(failure_of(caught.value), "aioqueue-op is a plain function, but called `enqueue`")

    async def test_of_a_task_whose_first_call_does_not_end(self, task_world: TaskWorld) -> None:
        """It is stopped when it has dropped the first one."""
        queue, turns = aioqueue.FIFOQueue(3, name="q"), iter(range(9))
        with pytest.raises(ExceptionGroup) as caught:
            async with aioqueue.Coordinator() as coord:

                def is_over() -> bool:
                    return coord.should_stop() or next(turns, None) is None

                coord.start(aioqueue.LooperTask(None, loops(queue, is_over)))
                await coord.wait_for_stop()
        assert next(turns, None) is not None
        check(failure_of(caught.value), "aioqueue-op is a plain function, but called `enqueue`")

    @pytest.mark.parametrize("function", [makes_several, makes_several_in_a_task])
    def test_of_which_a_call_runs_nothing(self, function: Any) -> None:
        told = rf"target: got the generator function '{function.__name__}': calling it runs none"
        with pytest.raises(InvalidArgumentError, match=told):
            sync.LooperThread.loop(sync.Coordinator(), None, function)
        with pytest.raises(InvalidArgumentError, match=told):
            aioqueue.LooperTask(None, function)

    def test_of_a_thread_that_is_to_await_later_on(self) -> None:
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
    """Somebody has written ``op()`` where ``op`` is wanted. The coroutine is closed."""

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

    async def test_a_body_that_awaits_what_blocks(self, task_world: TaskWorld) -> None:
        queue: Any = sync.FIFOQueue(1)
        with pytest.raises(ExceptionGroup) as caught:
            async with aioqueue.Coordinator():
                await queue.enqueue(1)
        check(failure_of(caught.value), "write `await queue.aio")

    def test_a_queue_is_no_iterable_of_the_other_kind(self) -> None:
        """Else whoever asks what it is would choose what does not work."""
        assert not hasattr(sync.FIFOQueue(1), "__aiter__")
        assert not hasattr(aioqueue.FIFOQueue(1), "__iter__")
