"""Threads and tasks have the same values: `for`, and `async for` on asyncio and trio."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import aioqueue
from tests.contracts.programs import Program, asked
from tests.kit.exact import Exact
from tests.kit.kinds import queue_kinds
from tests.kit.resuming import How
from tests.kit.worlds import HAS_TRIO, KINDS, AsyncioWorld, needs_trio

if HAS_TRIO:
    import trio


async def in_tasks(pipeline: Any) -> list[Any]:
    return [Exact(value) async for value in pipeline]


@asked("worlds")
def test_tasks_have_what_threads_have(program: Program, folder: Path) -> None:
    whole = [Exact(value) for value in program.pipeline(How(2), folder)]
    assert asyncio.run(in_tasks(program.pipeline(How(2), folder))) == whole


@needs_trio
@asked("worlds")
def test_trio_has_what_threads_have(program: Program, folder: Path) -> None:
    whole = [Exact(value) for value in program.pipeline(How(2), folder)]
    assert trio.run(in_tasks, program.pipeline(How(2), folder)) == whole


@asked("worlds")
def test_a_task_that_is_cancelled_leaves_the_pipeline(program: Program, folder: Path) -> None:
    """Afterwards another run has all values: nothing waits, and nothing was lost."""
    pipeline = program.pipeline(How(2), folder)

    async def main() -> None:
        async def take() -> None:
            async for _ in pipeline:
                taken.set()
                await asyncio.Event().wait()

        taken = asyncio.Event()
        task = asyncio.create_task(take())
        await taken.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    whole = [Exact(value) for value in program.pipeline(How(2), folder)]
    assert [Exact(value) for value in pipeline] == whole


class TestQueues:
    """All tests of queues that take a `kind` run with each kind in each world."""

    def test_each_kind_is_among_those_of_the_tests(self) -> None:
        world = AsyncioWorld()
        tried = {type(kind.make(world)) for kind in KINDS}
        missing = [str(kind) for kind in queue_kinds() if kind.cls not in tried]
        assert not missing, f"give them a `Kind` in tests/kit/worlds.py: {', '.join(missing)}"

    @pytest.mark.parametrize("kind", queue_kinds(), ids=lambda one: one.name)
    def test_a_kind_has_a_public_face_for_tasks_and_for_threads(self, kind: Any) -> None:
        for face in (aioqueue, aioqueue.sync):
            assert kind.name in face.__all__, f"{kind} is missing in {face.__name__}"
        blocking = getattr(aioqueue.sync, kind.name)
        assert issubclass(blocking, aioqueue.sync.BlockingQueue)
