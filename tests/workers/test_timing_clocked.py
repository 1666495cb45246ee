"""`Clocked`: a coroutine whose steps are measured is otherwise awaited as ever, in every world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aioqueue import Coordinator, Monitor, inputs
from aioqueue.telemetry.explain.stacks import stack_of
from aioqueue.workers import timing as room
from aioqueue.workers.timing import Clocked
from tests.kit.worlds import StillClock, TaskOperation, TaskWorld


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StillClock:
    clock = StillClock(0.0)
    monkeypatch.setattr(room, "thread_time", clock)
    return clock


class TestClocked:
    def test_its_steps_are_counted_and_its_waits_are_not(
        self, task_world: TaskWorld, clock: StillClock
    ) -> None:
        world = task_world

        async def computes_twice() -> str:
            clock.now += 2.0
            await world.tick()
            clock.now += 3.0
            return "made"

        async def body() -> None:
            measured = Clocked(computes_twice())

            async def awaits() -> str:
                return await measured

            operation = world.spawn(awaits)
            clock.now += 100.0  # of others
            assert await operation.result() == "made"
            assert measured.cpu == 5.0

        world.run(body)

    def test_failures_come_out(self, task_world: TaskWorld, clock: StillClock) -> None:
        async def fails() -> None:
            clock.now += 2.0
            raise LookupError("of its own")

        async def body() -> None:
            measured = Clocked(fails())
            with pytest.raises(LookupError, match="of its own"):
                await measured
            assert measured.cpu == 2.0

        task_world.run(body)

    def test_a_cancellation_goes_in_and_comes_out(
        self, task_world: TaskWorld, clock: StillClock
    ) -> None:
        world = task_world
        ended: list[str] = []

        async def waits() -> None:
            try:
                await world.fifo(1).dequeue()
            finally:
                clock.now += 4.0
                ended.append("ended")

        async def body() -> None:
            measured = Clocked(waits())

            async def awaits() -> None:
                await measured

            operation = world.spawn(awaits)
            await world.tick()
            assert isinstance(operation, TaskOperation)
            operation.cancel()
            assert await operation.was_cancelled()
            assert ended == ["ended"]
            assert measured.cpu == 4.0

        world.run(body)

    def test_one_that_is_closed_ends(self) -> None:
        ended: list[str] = []

        async def waits() -> None:
            try:
                await never()
            finally:
                ended.append("ended")

        measured = Clocked(waits())
        measured.__await__().send(None)
        measured.close()
        assert ended == ["ended"]

    def test_a_stack_goes_through_it(self) -> None:
        async def innermost() -> None:
            await never()

        async def outermost() -> None:
            await Clocked(innermost())

        class Task:
            coro = outermost()

        Task.coro.send(None)
        names = [frame.function.rpartition(".")[2] for frame in stack_of(Task)]
        Task.coro.close()
        assert names[-2:] == ["innermost", "outermost"]


class never:  # noqa: N801  # spelled like a function
    """Waits for good."""

    def __await__(self) -> Any:
        yield None


def compute(number: int) -> int:
    return sum(range(number % 7))


async def computing(number: int) -> int:
    return compute(number)


def by_key(number: int) -> int:
    return number % 3


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(
    "options", [{}, {"concurrency_key": by_key, "max_per_key": 1}], ids=["", "by key"]
)
def test_a_stage_of_tasks_has_processor_time(
    task_world: TaskWorld, options: dict[str, Any]
) -> None:
    """As one of threads has; of its own calls only, however many tasks there are."""
    function: Callable[[int], Any] = computing

    async def body() -> None:
        queue = task_world.fifo(8)
        async with Coordinator() as coord:
            with Monitor(coord) as monitor:
                runner = inputs.prepare(range(200), function, into=queue, workers=3, **options)
                coord.start(runner)
                seen = [example async for example in queue]
        assert sorted(seen) == sorted(compute(number) for number in range(200))
        [stage] = monitor.history[-1].stages
        assert stage.cpu_sampled > 0
        assert 0 < stage.cpu <= stage.busy

    task_world.run(body)
