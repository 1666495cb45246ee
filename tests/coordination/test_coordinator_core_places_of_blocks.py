"""A block must be left in its own event loop, in trio by its own task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

import aioqueue
from tests.kit.worlds import HAS_TRIO, TrioWorld, needs_trio

if TYPE_CHECKING or HAS_TRIO:
    import trio


def endless(queue: aioqueue.FIFOQueue) -> Callable[[], object]:
    async def op() -> None:
        await queue.enqueue(1)

    return op


async def leave(coord: aioqueue.Coordinator) -> None:
    await coord.__aexit__(None, None, None)


class TestAsyncio:
    def test_two_cells_of_a_notebook(self) -> None:
        """Each cell is a task of one loop."""
        queue = aioqueue.FIFOQueue(1)
        coord = aioqueue.Coordinator()

        async def first() -> None:
            await coord.__aenter__()
            coord.start(aioqueue.QueueRunner(queue, [endless(queue)]))

        async def second() -> None:
            assert await queue.dequeue_many(10) == [1] * 10
            await leave(coord)

        with asyncio.Runner() as runner:
            runner.run(first())
            runner.run(second())
        assert coord.joined

    def test_failures_are_raised_in_the_leaving_task(self) -> None:
        coord = aioqueue.Coordinator()

        async def fail() -> None:
            raise OSError("no disk")

        async def first() -> None:
            await coord.__aenter__()
            coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [fail]))

        with asyncio.Runner() as runner:
            runner.run(first())
            with pytest.raises(ExceptionGroup):
                runner.run(leave(coord))

    def test_another_loop_is_refused_and_workers_stop(self) -> None:
        queue = aioqueue.FIFOQueue(1)
        coord = aioqueue.Coordinator()

        async def first() -> None:
            await coord.__aenter__()
            coord.start(aioqueue.QueueRunner(queue, [lambda: queue.sync.enqueue(1)]))

        async def again() -> None:
            with pytest.raises(RuntimeError, match=r"^start: this is not the event loop"):
                coord.start(aioqueue.LooperTask(None, print))
            with pytest.raises(RuntimeError, match=r"^leaving the block: this is not the event"):
                await leave(coord)

        with asyncio.Runner() as runner:
            runner.run(first())
            asyncio.run(again())
            assert coord.should_stop()
            runner.run(leave(coord))
        assert coord.joined

    def test_a_thread_without_a_loop_is_refused(self) -> None:
        async def main() -> None:
            async with aioqueue.Coordinator() as coord:
                starting = asyncio.to_thread(coord.start, aioqueue.LooperTask(None, print))
                with pytest.raises(RuntimeError, match=r"^start: this is not the event loop"):
                    await starting

        asyncio.run(main())


@needs_trio
class TestTrio:
    def test_another_task_is_refused_and_workers_stop(self) -> None:
        async def main() -> None:
            queue = aioqueue.FIFOQueue(1)
            coord = aioqueue.Coordinator()

            async def elsewhere() -> None:
                with pytest.raises(RuntimeError, match=r"not the task in which .*pytest-trio"):
                    await leave(coord)

            await coord.__aenter__()
            coord.start(aioqueue.QueueRunner(queue, [endless(queue)]))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(elsewhere)
            assert coord.should_stop()
            await leave(coord)
            assert coord.joined

        trio.run(main)

    def test_workers_are_started_by_any_task(self) -> None:
        async def main() -> None:
            queue = aioqueue.FIFOQueue(1)
            async with aioqueue.Coordinator() as coord:

                async def elsewhere() -> None:
                    coord.start(aioqueue.QueueRunner(queue, [endless(queue)]))

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(elsewhere)
                assert await queue.dequeue_many(10) == [1] * 10

        TrioWorld().run(main)
