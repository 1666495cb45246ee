"""Workers that are tasks: how many items they begin in a round of their event loop, and how soon
the other tasks of the program run."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import aioqueue
from aioqueue.inputs import from_iterable, numbers
from aioqueue.workers import flow_control
from aioqueue.workers.flow_control import RoundPace
from aioqueue.workers.runner import AsyncPrepareRunner, prepare
from tests.kit.worlds import TaskWorld, TrioWorld

Function = Callable[[Any], Awaitable[Any]]

ITEMS = 1200
MOST = 64
"""The most items of a function that never waits, before other tasks run."""


async def pages() -> AsyncIterator[int]:
    """A source that waits for each page, and has all items of a page then."""
    for page in range(0, ITEMS, 300):
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        for number in range(page, page + 300):
            yield number


async def by_pipeline(function: Function, workers: int) -> list[Any]:
    pipeline = numbers(ITEMS).prepare(function, workers=workers).batch(64)
    return [int(one) async for batch in pipeline for one in batch]


async def by_unordered_pipeline(function: Function, workers: int) -> list[Any]:
    pipeline = numbers(ITEMS).prepare(function, workers=workers, ordered=False).batch(64)
    return sorted([int(one) async for batch in pipeline for one in batch])


async def by_stage_behind_rows(function: Function, workers: int) -> list[Any]:
    """The workers read the rows of a node, by its flow."""
    pipeline = numbers(ITEMS).filter(lambda _: True).prepare(function, workers=workers).batch(64)
    return [int(one) async for batch in pipeline for one in batch]


async def from_pages(function: Function, workers: int) -> list[Any]:
    return await into_queue(pages(), function, workers)


async def from_memory(function: Function, workers: int) -> list[Any]:
    return await into_queue(range(ITEMS), function, workers)


async def into_queue(source: Any, function: Function, workers: int) -> list[Any]:
    queue = aioqueue.FIFOQueue(1000)
    runner = prepare(source, function, into=queue, workers=workers, where="task", ordered=True)
    async with aioqueue.Coordinator() as coord:
        coord.start(runner)
        return [example async for batch in queue.batches(64) for example in batch]
    raise AssertionError


WAYS = [by_pipeline, by_unordered_pipeline, by_stage_behind_rows, from_pages, from_memory]


@asynccontextmanager
async def ticker(each_round: Callable[[], object]) -> AsyncIterator[None]:
    """Make a call in each round of the event loop."""

    async def tick() -> None:
        while True:
            each_round()
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        yield
        group.cancel_scope.cancel()


class Rounds:
    """Counts rounds, and the calls in each."""

    def __init__(self) -> None:
        self.count = 0
        self.calls = 0
        self.most_calls = 0
        self.begun: list[int] = []

    def tick(self) -> None:
        self.count += 1
        self.calls = 0

    async def never_waits(self, number: int) -> int:
        self.begun.append(int(number))
        self.calls += 1
        self.most_calls = max(self.most_calls, self.calls)
        return number

    async def waits_for_a_round(self, number: int) -> int:
        await anyio.lowlevel.checkpoint()
        return number


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("way", WAYS)
async def test_all_workers_are_in_the_function_at_a_time(
    task_world: TaskWorld, way: Callable[..., Any]
) -> None:
    inside = most = 0

    async def function(number: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        inside -= 1
        return number

    assert await way(function, 100) == list(range(ITEMS))
    assert most == 100


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("way", WAYS)
async def test_a_round_brings_many_items(
    task_world: TaskWorld, way: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the end: workers do not leave one in a round."""
    rounds = Rounds()
    monkeypatch.setattr(flow_control, "_SLICE_SECONDS", math.inf)  # however slow this machine is
    async with ticker(rounds.tick):
        assert await way(rounds.waits_for_a_round, 300) == list(range(ITEMS))
    assert ITEMS / rounds.count >= 20


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("workers", [1, 4, 100])
@pytest.mark.parametrize("way", WAYS)
async def test_other_tasks_run_though_the_function_never_waits(
    task_world: TaskWorld, way: Callable[..., Any], workers: int
) -> None:
    rounds = Rounds()
    async with ticker(rounds.tick):
        assert await way(rounds.never_waits, workers) == list(range(ITEMS))
    # In trio, the tasks of a round run in any order: twice as many may come in between.
    in_between = 2 if isinstance(task_world, TrioWorld) else 1
    assert rounds.most_calls <= in_between * min(MOST, 2 * workers)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("source", [range(ITEMS), pages], ids=["memory", "pages"])
async def test_functions_begin_in_the_order_of_their_items(
    task_world: TaskWorld, source: Any, workers: int
) -> None:
    rounds = Rounds()
    items = source() if callable(source) else source
    assert await into_queue(items, rounds.never_waits, workers) == list(range(ITEMS))
    # In trio, the tasks of a round run in any order.
    is_fixed = workers == 1 or not isinstance(task_world, TrioWorld)
    assert rounds.begun == list(range(ITEMS)) or not is_fixed


async def test_what_comes_before_a_failure_is_delivered(task_world: TaskWorld) -> None:
    """No worker fails on a later item while others hold earlier ones and have not begun."""

    async def bad(number: int) -> int:
        if number == 9:
            raise ValueError("bad")
        return number

    for _ in range(5):
        got: list[int] = []
        pipeline = from_iterable(iter(range(30))).prepare(bad, workers=4).batch(2)
        with pytest.raises(ExceptionGroup, match="bad failed on item 9"):
            async for batch in pipeline:
                got += batch.tolist()
        assert got == list(range(8))


async def test_items_left_to_a_worker_that_waits_for_the_queue(task_world: TaskWorld) -> None:
    """Without order, a queue of one place, and functions that end in any order."""

    async def function(number: int) -> int:
        for _ in range(int(number) % 5):
            await anyio.lowlevel.checkpoint()
        return number

    pipeline = numbers(300).prepare(function, workers=20, ordered=False, buffer_size=1)
    assert sorted([int(one) async for one in pipeline]) == list(range(300))


class Blocking:
    """A source that gives some items, and then waits for the request to end."""

    def __init__(self, items: int) -> None:
        self.items = items
        self.is_waiting = anyio.Event()
        self.may_end = anyio.Event()

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in range(self.items):
            yield number
        self.is_waiting.set()
        await self.may_end.wait()


@asynccontextmanager
async def workers_behind(source: Blocking) -> AsyncIterator[tuple[AsyncPrepareRunner, Any]]:
    """Four workers: one waits inside the source, and the others wait for that one."""

    async def same(number: int) -> int:
        return number

    queue = aioqueue.FIFOQueue(None)
    runner = prepare(source, same, into=queue, workers=4, where="task")
    async with aioqueue.Coordinator() as coord:
        coord.start(runner)
        await source.is_waiting.wait()
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        yield runner, queue


def inside(runner: AsyncPrepareRunner) -> int:
    """The number of workers that have not left."""
    return runner._job._inside


async def test_surplus_workers_leave_while_another_one_is_in_the_source(
    task_world: TaskWorld,
) -> None:
    source = Blocking(8)
    async with workers_behind(source) as (runner, queue):
        runner.resize(1)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        assert inside(runner) == 1
        source.may_end.set()
        assert sorted([example async for example in queue]) == list(range(8))


async def test_a_drain_ends_workers_while_another_one_is_in_the_source(
    task_world: TaskWorld,
) -> None:
    source = Blocking(8)
    async with workers_behind(source) as (runner, queue):
        runner._job.drain()
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        assert inside(runner) == 1  # the one in the source, whose item would be delivered
        source.may_end.set()
        assert sorted([example async for example in queue]) == list(range(8))


class TestPace:
    """When to pause, by a clock of the test's own."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [100.0]
        monkeypatch.setattr(flow_control, "perf_counter", lambda: now[0])
        return now

    def test_after_two_items_of_each_worker(self, clock: list[float]) -> None:
        pace, me = RoundPace(), object()
        for _ in range(6):
            pace.asked(me, 3)
            assert not pace.is_pause_due
        pace.asked(me, 3)
        assert pace.is_pause_due

    def test_after_64_items(self, clock: list[float]) -> None:
        pace, me = RoundPace(), object()
        for _ in range(64):
            pace.asked(me, 1000)
            assert not pace.is_pause_due
        pace.asked(me, 1000)
        assert pace.is_pause_due

    def test_a_pause_begins_again(self, clock: list[float]) -> None:
        pace, me = RoundPace(), object()
        for _ in range(65):
            pace.asked(me, 1000)
        pace.paused()
        for _ in range(63):
            pace.asked(me, 1000)
            assert not pace.is_pause_due
        pace.asked(me, 1000)
        assert pace.is_pause_due

    def test_after_each_item_that_takes_long(self, clock: list[float]) -> None:
        pace, me = RoundPace(), object()
        pace.asked(me, 1000)
        clock[0] += 0.001
        pace.asked(me, 1000)
        assert pace.is_pause_due

    def test_not_as_long_as_workers_alternate(self, clock: list[float]) -> None:
        """Each of them has waited since."""
        pace, workers = RoundPace(), (object(), object())
        for number in range(1000):
            clock[0] += 0.001
            pace.asked(workers[number % 2], 2)
        assert not pace.is_pause_due


class TestPaceOfReader:
    """What a reader learns of the workers to which it has dealt items."""

    def dealt(self, pace: RoundPace, workers: list[object]) -> int:
        """Deal items till a pause is due; return how many."""
        for number, worker in enumerate(workers):
            if pace.is_pause_due:
                return number
            pace.dealt(len(workers), worker)
        return len(workers)

    @pytest.fixture
    def workers(self, monkeypatch: pytest.MonkeyPatch) -> list[object]:
        monkeypatch.setattr(flow_control, "perf_counter", lambda: 100.0)
        return [object() for _ in range(100)]

    def test_64_items_as_long_as_it_knows_nothing(self, workers: list[object]) -> None:
        pace = RoundPace()
        pace.paused()
        assert self.dealt(pace, workers) == 64

    def test_more_if_each_function_has_waited(self, workers: list[object]) -> None:
        pace = RoundPace()
        pace.paused()
        self.dealt(pace, workers[:50])
        pace.paused()
        for worker in workers[:50]:
            pace.asked(worker, 100)
        pace.paused()
        assert pace.do_all_wait
        assert self.dealt(pace, workers) == 100

    def test_64_items_if_one_has_not_waited(self, workers: list[object]) -> None:
        pace = RoundPace()
        pace.paused()
        self.dealt(pace, workers[:50])
        pace.paused()
        for worker in workers[1:50]:
            pace.asked(worker, 100)
        pace.dealt(100, workers[0])
        pace.asked(workers[0], 100)
        pace.paused()
        assert not pace.do_all_wait
        assert self.dealt(pace, workers) == 64

    def test_64_items_where_tasks_run_in_any_order(self, workers: list[object]) -> None:
        pace = RoundPace(in_order=False)
        pace.paused()
        self.dealt(pace, workers[:50])
        pace.paused()  # the reader runs before the workers, in their round
        for worker in workers[:50]:
            pace.asked(worker, 100)
        pace.paused()
        assert not pace.do_all_wait
        assert self.dealt(pace, workers) == 64

    def test_a_worker_that_asks_again_has_waited_for_a_round(self, workers: list[object]) -> None:
        pace = RoundPace()
        for _ in range(3):
            for worker in workers:
                pace.asked(worker, 100)
        pace.asked(workers[-1], 100)  # without a wait: perhaps in the round of all others
        assert pace.is_pause_due
        pace.paused()
        pace.asked(workers[0], 100)
        for _ in range(40):
            for worker in workers[:2]:
                pace.asked(worker, 100)
        pace.asked(workers[1], 100)
        assert not pace.is_pause_due

    def test_it_may_run_last_in_the_next_round_where_tasks_run_in_any_order(
        self, workers: list[object]
    ) -> None:
        pace = RoundPace(in_order=False)
        pace.asked(workers[0], 100)
        for _ in range(62):
            pace.asked(workers[1], 100)
        pace.asked(workers[0], 100)
        pace.asked(workers[0], 100)
        assert pace.is_pause_due
