"""A worker that never waits yields to the other tasks of its event loop."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.coordination import tasks as turns_module
from aioqueue.coordination.tasks import CooperativeYield
from tests.kit.worlds import PATIENCE, StillClock, TaskWorld

AT_MOST = 2_000_000
"""Calls after which nobody else has had a turn."""


def nowait(queue: aioqueue.FIFOQueue) -> Callable[[], Awaitable[None]]:
    async def op() -> None:
        assert queue.size() < AT_MOST
        queue.enqueue_nowait(1)

    return op


def by_the_blocking_face(queue: aioqueue.FIFOQueue) -> Callable[[], Awaitable[None]]:
    async def op() -> None:
        assert queue.size() < AT_MOST
        queue.sync.enqueue(1)

    return op


def with_room(queue: aioqueue.FIFOQueue) -> Callable[[], Awaitable[None]]:
    async def op() -> None:
        assert queue.size() < AT_MOST
        await queue.enqueue(1)

    return op


@pytest.mark.parametrize("make", [nowait, by_the_blocking_face, with_room])
class TestOtherTasksRun:
    async def test_beside_it(self, task_world: TaskWorld, make: Any) -> None:
        queue = aioqueue.FIFOQueue(None)
        async with aioqueue.Coordinator() as coord:
            coord.start(aioqueue.QueueRunner(queue, [make(queue)]))
            assert await queue.dequeue() == 1
            with pytest.raises(TimeoutError), anyio.fail_after(0.001):
                await coord.wait_for_stop()

    def test_in_the_loop_of_a_thread(self, make: Any) -> None:
        queue = aioqueue.FIFOQueue(None)
        came = threading.Event()

        async def beside() -> None:
            came.set()
            raise aioqueue.OutOfRangeError("all is seen")

        with sync.Coordinator() as coord:
            coord.start(sync.QueueRunner(queue, [make(queue), beside]))
            assert came.wait(PATIENCE)


class TestIntervals:
    """The tests control the clock."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> StillClock:
        one = StillClock()
        monkeypatch.setattr(turns_module, "perf_counter", one)
        return one

    @pytest.fixture
    def given(self, clock: StillClock, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        given: list[float] = []

        async def checkpoint() -> None:
            given.append(clock.now)

        monkeypatch.setattr("anyio.lowlevel.checkpoint", checkpoint)
        return given

    async def calls(self, turns: CooperativeYield, clock: StillClock, seconds: float) -> int:
        """Make the calls until the next check, each of this duration."""
        clock.now += seconds * turns.calls
        await turns.yield_if_due()
        return turns.calls

    async def test_quick_calls(
        self, task_world: TaskWorld, clock: StillClock, given: list[float]
    ) -> None:
        turns = CooperativeYield()
        found = [await self.calls(turns, clock, 1e-6) for _ in range(8)]
        assert found == [2, 4, 8, 16, 32, 64, 64, 64]
        assert given == []
        for _ in range(100):
            await self.calls(turns, clock, 1e-6)
        assert len(given) == 1, "6.5 ms have passed"

    async def test_slow_calls(
        self, task_world: TaskWorld, clock: StillClock, given: list[float]
    ) -> None:
        turns = CooperativeYield()
        assert [await self.calls(turns, clock, 0.01) for _ in range(3)] == [1, 1, 1]
        assert len(given) == 3

    async def test_calls_that_become_slow(
        self, task_world: TaskWorld, clock: StillClock, given: list[float]
    ) -> None:
        turns = CooperativeYield()
        for _ in range(6):
            await self.calls(turns, clock, 1e-6)
        found = [await self.calls(turns, clock, 0.01) for _ in range(7)]
        assert found == [32, 16, 8, 4, 2, 1, 1]
        assert len(given) == 7
