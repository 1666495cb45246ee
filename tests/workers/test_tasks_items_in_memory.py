"""Items that are in memory: tasks take them without waiting for each other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import aioqueue
from aioqueue.inputs import files, items
from aioqueue.sources.source_reader import SourceReader, next_without_waiting
from aioqueue.workers.runner import prepare
from tests.kit.worlds import TaskWorld


async def none_of(number: int) -> None:
    """Without an example, and without waiting for anything."""


async def same(number: int) -> int:
    return number


async def counted() -> AsyncIterator[int]:
    yield 0


class TestWithoutWaiting:
    @pytest.mark.parametrize("source", [range(3), [0, 1, 2], items(range(3), epochs=1)])
    def test_what_is_in_memory(self, source: Any) -> None:
        taken = SourceReader(source).items_without_waiting()
        assert taken is not None
        assert [(item.number, item.value) for item in taken] == [(0, 0), (1, 1), (2, 2)]

    def test_not_what_has_to_be_waited_for(self, tmp_path: Path) -> None:
        (tmp_path / "one").write_text("")
        queue = aioqueue.FIFOQueue(1)
        blocking = items(range(3), epochs=1)
        blocking.blocking = True
        for source in (counted(), queue, queue.sync, blocking):
            assert SourceReader(source).items_without_waiting() is None
        assert (
            SourceReader(files(str(tmp_path / "*"), epochs=1)).items_without_waiting() is not None
        )

    def test_an_end_that_is_not_its_own_is_a_failure(self) -> None:
        def broken() -> int:
            raise StopAsyncIteration

        with pytest.raises(RuntimeError, match="the source raised StopAsyncIteration"):
            next_without_waiting(iter(broken, None))


class TestOthers:
    @pytest.mark.slow(every=3)
    @pytest.mark.parametrize("workers", [1, 3])
    async def test_run_though_nothing_is_waited_for(
        self, task_world: TaskWorld, workers: int
    ) -> None:
        """Neither the function waits, nor anybody for the queue."""
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await anyio.lowlevel.checkpoint()

        queue = aioqueue.FIFOQueue(None)
        runner = prepare(range(300), none_of, into=queue, workers=workers, drop_none=True)
        async with anyio.create_task_group() as group:
            group.start_soon(turn)
            async with aioqueue.Coordinator() as coord:
                coord.start(runner)
                assert [example async for example in queue] == []
            group.cancel_scope.cancel()
        assert runner.statistics().left_out == 300
        assert turns > 300 // (2 * workers)  # each comes by in every round

    async def test_can_stop_it(self, task_world: TaskWorld) -> None:
        """A source without an end, and a queue without bounds."""
        queue = aioqueue.FIFOQueue(None)
        runner = prepare(items([1]), same, into=queue, workers=2)
        async with aioqueue.Coordinator() as coord:
            coord.start(runner)
            assert await queue.dequeue() == 1
            coord.request_stop()
        assert queue.is_closed()


@pytest.mark.slow("asyncio")
async def test_one_waits_for_room_and_is_not_overtaken(task_world: TaskWorld) -> None:
    """Exactly once and in order, though some wait for their turns and some do not."""
    queue = aioqueue.FIFOQueue(2)
    async with aioqueue.Coordinator() as coord:
        coord.start(prepare(range(500), same, into=queue, workers=5, ordered=True, max_in_flight=3))
        assert [example async for example in queue] == list(range(500))


async def test_the_failure_of_the_source_ends_all(task_world: TaskWorld) -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError("broken")

    queue = aioqueue.FIFOQueue(4)
    with pytest.raises(ExceptionGroup) as caught:
        async with aioqueue.Coordinator() as coord:
            coord.start(prepare(source(), same, into=queue, workers=3))
            assert [example async for example in queue] in ([], [1])
    (error,) = caught.value.exceptions
    assert isinstance(error, OSError)
    assert error.__notes__[0] == "in the source of a prepare"
