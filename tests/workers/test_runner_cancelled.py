"""If workers of a `prepare` are cancelled, the consumer of its examples learns of it."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

import aioqueue
from aioqueue import OutOfRangeError
from aioqueue.workers.runner import prepare
from tests.kit.worlds import AsyncioWorld, TaskWorld, TrioWorld

MESSAGE = "was cancelled before"


async def never(number: int) -> int:
    await asyncio.Event().wait()
    return number


async def at_once(number: int) -> int:
    return number


async def three() -> AsyncIterator[int]:
    for number in range(3):
        yield number
    await asyncio.Event().wait()


def tasks_named(what: str) -> list[asyncio.Task[Any]]:
    """Those of the workers that do so, in their order."""
    name = re.compile(rf"aioqueue-{what}-\d+")
    found = [task for task in asyncio.all_tasks() if name.fullmatch(task.get_name())]
    return sorted(found, key=asyncio.Task.get_name)


async def end_of(queue: aioqueue.FIFOQueue) -> tuple[list[Any], BaseException | None]:
    """What still comes, and why no more does."""
    got = []
    while True:
        try:
            got.append(await queue.dequeue())
        except OutOfRangeError as end:
            return got, end.__cause__


class TestOneWorker:
    @pytest.mark.parametrize("ordered", [False, True], ids=["as they come", "ordered"])
    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_at_its_work(self, loop_world: AsyncioWorld, which: int, ordered: bool) -> None:
        async def main() -> None:
            queue = aioqueue.FIFOQueue(9)
            async with aioqueue.Coordinator() as coord:
                runner = prepare(range(9), never, into=queue, workers=3, ordered=ordered)
                coord.start(runner)
                await loop_world.until(lambda: runner.statistics().in_flight == 3)
                tasks_named("never")[which].cancel()
                got, cause = await end_of(queue)
                assert got == []
                assert isinstance(cause, RuntimeError)
                assert MESSAGE in str(cause)
                assert f"'{queue.name}'" in str(cause)
                await coord.join()
            assert repr(runner).endswith("ended>")

        loop_world.run(main)

    @pytest.mark.parametrize("keyed", [False, True], ids=["", "by key"])
    def test_before_its_first_step(self, loop_world: AsyncioWorld, keyed: bool) -> None:
        options: dict[str, Any] = {"concurrency_key": abs, "max_per_key": 1} if keyed else {}

        async def main(name: str, which: int) -> None:
            queue = aioqueue.FIFOQueue(9)
            async with aioqueue.Coordinator() as coord:
                coord.start(prepare(range(9), never, into=queue, workers=3, **options))
                tasks_named(name)[which].cancel()
                _, cause = await end_of(queue)
                assert MESSAGE in str(cause)

        for which in range(3):
            loop_world.run(functools.partial(main, "never", which))
        if keyed:
            loop_world.run(lambda: main("never-take-items", 0))

    def test_all_of_them(self, loop_world: AsyncioWorld) -> None:
        async def main() -> None:
            queue = aioqueue.FIFOQueue(9)
            async with aioqueue.Coordinator() as coord:
                coord.start(prepare(range(9), at_once, into=queue, workers=3))
                for task in tasks_named("at_once"):
                    task.cancel()
                got, cause = await end_of(queue)
                assert got == []
                assert MESSAGE in str(cause)

        loop_world.run(main)

    def test_the_worker_that_takes_items_for_the_others(self, loop_world: AsyncioWorld) -> None:
        async def main() -> None:
            queue = aioqueue.FIFOQueue(9)
            async with aioqueue.Coordinator() as coord:
                coord.start(
                    prepare(three(), at_once, into=queue, concurrency_key=abs, max_per_key=1)
                )
                await loop_world.until(lambda: queue.size() == 3)
                (task,) = tasks_named("at_once-take-items")
                task.cancel()
                got, cause = await end_of(queue)
                assert sorted(got) == [0, 1, 2]
                assert MESSAGE in str(cause)

        loop_world.run(main)

    @pytest.mark.parametrize("early", [False, True], ids=["at its work", "before its first step"])
    def test_the_reader_of_the_source_for_threads(
        self, loop_world: AsyncioWorld, early: bool
    ) -> None:
        async def main() -> None:
            queue = aioqueue.FIFOQueue(9)
            async with aioqueue.Coordinator() as coord:
                coord.start(prepare(three(), abs, into=queue, workers=2))
                if not early:
                    await loop_world.until(lambda: queue.size() == 3)
                (task,) = tasks_named("abs-read-source")
                task.cancel()
                got, cause = await end_of(queue)
                assert sorted(got) == ([] if early else [0, 1, 2])
                assert isinstance(cause, RuntimeError)
                assert (MESSAGE if early else "task that reads the source") in str(cause)

        loop_world.run(main)

    def test_the_next_stage_hears_of_it_too(self, loop_world: AsyncioWorld) -> None:
        async def main() -> None:
            first, second = aioqueue.FIFOQueue(9), aioqueue.FIFOQueue(9)
            async with aioqueue.Coordinator() as coord:
                runner = prepare(range(9), never, into=first)
                coord.start(runner)
                await loop_world.until(lambda: runner.statistics().in_flight == 4)
                workers = tasks_named("never")
                coord.start(prepare(first, abs, into=second))
                workers[0].cancel()
                _, cause = await end_of(second)
                assert MESSAGE in str(cause)

        loop_world.run(main)

    def test_that_failed_at_the_same_time_as_another(self, loop_world: AsyncioWorld) -> None:
        """The failure is the cause."""
        failure = ValueError("this one")

        async def fails(number: int) -> int:
            if number == 0:
                raise failure
            return await never(number)

        async def main() -> None:
            queue = aioqueue.FIFOQueue(9)
            with pytest.raises(ExceptionGroup) as caught:
                async with aioqueue.Coordinator() as coord:
                    coord.start(prepare(range(9), fails, into=queue, workers=2))
                    await end_of(queue)
            assert caught.value.exceptions == (failure,)
            _, cause = await end_of(queue)
            assert cause is failure

        loop_world.run(main)


@pytest.mark.skipif(bool(TrioWorld.missing()), reason=TrioWorld.missing())
def test_a_foreign_cancel_scope() -> None:
    """In trio one around the block is around the workers as well; here the block's body is not."""
    world = TrioWorld()

    async def main() -> None:
        queue = aioqueue.FIFOQueue(9)
        causes: list[BaseException | None] = []
        with anyio.CancelScope() as scope:
            async with aioqueue.Coordinator() as coord:
                runner = prepare(range(9), anyio_never, into=queue, workers=2)
                coord.start(runner)
                await world.until(lambda: runner.statistics().in_flight == 2)
                scope.cancel()
                with anyio.CancelScope(shield=True):
                    causes.append((await end_of(queue))[1])
        assert MESSAGE in str(causes[0])

    world.run(main)


async def anyio_never(number: int) -> int:
    await anyio.sleep_forever()
    return number


def test_a_stopped_worker_ends_before_the_program(
    loop_world: AsyncioWorld,
) -> None:
    """It cancels all tasks and waits for them; but these were stopped before, and clean up."""
    cleaned: list[str] = []
    runs: list[asyncio.Task[None]] = []

    async def cleans_up(number: int) -> int:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                cleaned.append("begun")
                for _ in range(9):
                    await asyncio.sleep(0)
                cleaned.append("ended")
        return number

    async def main() -> None:
        queue = aioqueue.FIFOQueue(9)
        runner = prepare(range(9), cleans_up, into=queue, workers=1)
        runs.append(asyncio.create_task(runner.run()))
        await loop_world.until(lambda: runner.statistics().in_flight == 1)
        queue.close(cancel_pending_enqueues=True)
        await loop_world.until(lambda: cleaned)

    loop_world.run(main)
    assert cleaned == ["begun", "ended"]
    assert all(run.done() for run in runs)


class TestNoCause:
    """No example is missing, or only the coordinator has cancelled the workers."""

    def test_of_a_stop(self, task_world: TaskWorld) -> None:
        async def main() -> None:
            queue = aioqueue.FIFOQueue(9)
            async with aioqueue.Coordinator() as coord:
                runner = prepare(range(9), anyio_never, into=queue, workers=2)
                coord.start(runner)
                await task_world.until(lambda: runner.statistics().in_flight == 2)
                coord.request_stop()
            assert await end_of(queue) == ([], None)

        task_world.run(main)

    def test_of_a_consumer_that_leaves(self, task_world: TaskWorld) -> None:
        async def main() -> None:
            queue = aioqueue.FIFOQueue(9)
            async with aioqueue.Coordinator() as coord:
                runner = prepare(range(9), anyio_never, into=queue, workers=2)
                coord.start(runner)
                await task_world.until(lambda: runner.statistics().in_flight == 2)
                queue.close(cancel_pending_enqueues=True)
                await task_world.until(lambda: repr(runner).endswith("ended>"))
                assert await end_of(queue) == ([], None)

        task_world.run(main)

    def test_of_a_run_that_is_cancelled(self, loop_world: AsyncioWorld) -> None:
        async def main() -> None:
            queue = aioqueue.FIFOQueue(9)
            runner = prepare(range(9), never, into=queue, workers=2)
            running = asyncio.create_task(runner.run())
            await loop_world.until(lambda: runner.statistics().in_flight == 2)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert await end_of(queue) == ([], None)

        loop_world.run(main)
