"""`item_timeout`: an item that takes too long is cut short, wherever it is, and exactly once."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, cast

import anyio
import pytest

import aioqueue
from aioqueue import InvalidArgumentError, ItemTimeoutError, sync
from aioqueue.inputs import Retry, numbers, prepare
from aioqueue.workers.runner import PrepareRunner
from tests.kit import functions
from tests.kit.worlds import PATIENCE, TASK_WORLDS, TaskWorld, sampling, spin_until

SHORT = 0.1
"""Seconds that an item may take here; others take none at all."""

SLOW = frozenset((3, 7))


class Slow:
    """Functions that hang on some items until the test releases them."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.returned: list[int] = []
        self.lock = threading.Lock()
        self.calls: list[int] = []

    def hangs(self, number: int) -> int:
        with self.lock:
            self.calls.append(number)
        if number in SLOW:
            self.go.wait(PATIENCE)
            with self.lock:
                self.returned.append(number)
        return number

    def hangs_at_first(self, number: int) -> int:
        with self.lock:
            self.calls.append(number)
            again = self.calls.count(number) > 1
        if number in SLOW and not again:
            self.go.wait(PATIENCE)
            with self.lock:
                self.returned.append(number)
        return number

    def parts(self, number: int) -> Iterator[int]:
        yield number
        if number in SLOW:
            self.go.wait(PATIENCE)
        yield number


@pytest.fixture
def slow() -> Iterator[Slow]:
    one = Slow()
    yield one
    one.go.set()
    spin_until(lambda: not [one for one in threading.enumerate() if "deputy" in one.name])


def drained(function: Callable[..., Any], **options: Any) -> tuple[list[Any], PrepareRunner]:
    """What comes of ten items, and who has made it."""
    queue = sync.FIFOQueue(4, name="examples")
    runner = prepare(
        range(10), function, into=queue, **{"workers": 2, "item_timeout": SHORT, **options}
    )
    with sync.Coordinator() as coord:
        coord.start(runner)
        return list(queue), runner


def failure_of(group: ExceptionGroup[Any]) -> ItemTimeoutError:
    (error,) = {str(one): one for one in group.exceptions}.values()
    assert isinstance(error, ItemTimeoutError)
    return error


PLACES = [
    pytest.param("thread", "hangs", id="threads"),
    pytest.param("process", "slow_at", id="processes"),
    pytest.param("task", "sleeps", id="tasks"),
]


def function_of(where: str, slow: Slow) -> Callable[..., Any]:
    if where == "process":
        return partial(functions.slow_at, SLOW)
    return _sleeps if where == "task" else slow.hangs


async def _sleeps(number: int) -> int:
    if number in SLOW:
        await anyio.sleep(3600)
    return number


async def _is_given_twice(number: int) -> AsyncIterator[int]:
    """The second time late, if the number is slow."""
    yield number
    yield await _sleeps(number)


@pytest.mark.parametrize("where", ["thread", "process", "task"])
class TestEverywhere:
    def test_the_failure_names_the_item_the_seconds_and_the_place(
        self, where: str, slow: Slow
    ) -> None:
        with pytest.raises(ExceptionGroup) as caught:
            drained(function_of(where, slow), where=where, workers=1)
        error = failure_of(caught.value)
        assert str(error).startswith(
            "item 3 (epoch 0, index 3) was not prepared within item_timeout=0.1 s; it was at "
        )
        assert error.seconds == SHORT
        assert re.search(r"\.py:\d+ in .*(hangs|never_ends|_sleeps): ", error.where)
        assert isinstance(error, TimeoutError)

    @pytest.mark.slow
    @pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
    def test_workers_come_and_go_meanwhile(self, where: str, slow: Slow, ordered: bool) -> None:
        """Workers leave, are replaced and are added: every item comes once, or is skipped once;
        and who looks on, from any thread, may do so."""
        queue = sync.FIFOQueue(4)
        runner: Any = prepare(
            range(120),
            function_of(where, slow),
            into=queue,
            workers=2,
            where=cast(Any, where),
            item_timeout=10 * SHORT,
            on_error="skip",
            ordered=ordered,
        )
        found = []
        with sampling(aioqueue.explain), sync.Coordinator() as coord:
            coord.start(runner)
            runner.resize(4)
            for number, example in enumerate(queue):
                found.append(example)
                if number % 10 == 0:
                    runner.resize((2, 5, 3, 6)[number // 10 % 4])
        wanted = [number for number in range(120) if number not in SLOW]
        assert (found if ordered else sorted(found)) == wanted
        assert sorted(one.item for one in runner.quarantine) == sorted(SLOW)
        statistics = runner.statistics()
        assert (statistics.prepared, statistics.skipped, statistics.in_flight) == (118, 2, 0)

    @pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
    def test_skipped_items_are_quarantined(self, where: str, slow: Slow, ordered: bool) -> None:
        found, runner = drained(
            function_of(where, slow), where=where, on_error="skip", ordered=ordered
        )
        assert sorted(found) == [0, 1, 2, 4, 5, 6, 8, 9]
        assert not ordered or found == sorted(found)
        assert sorted(one.item for one in runner.quarantine) == [3, 7]
        for one in runner.quarantine:
            assert one.error.startswith("aioqueue.ItemTimeoutError: item")
            assert one.attempts == 1
        statistics = runner.statistics()
        assert (statistics.prepared, statistics.skipped, statistics.timed_out) == (8, 2, 2)
        assert (statistics.in_flight, statistics.workers_died) == (0, 0)

    def test_retries_count_each_time(self, where: str, slow: Slow) -> None:
        found, runner = drained(
            function_of(where, slow), where=where, on_error=Retry(1, then="skip"), workers=4
        )
        assert sorted(found) == [0, 1, 2, 4, 5, 6, 8, 9]
        assert [one.attempts for one in runner.quarantine] == [2, 2]
        assert runner.statistics().timed_out == 4
        assert runner.statistics().retried == 2

    def test_with_limits_by_key(self, where: str, slow: Slow) -> None:
        found, runner = drained(
            function_of(where, slow),
            where=where,
            on_error="skip",
            concurrency_key=lambda number: number % 2,
            max_per_key=1,
        )
        assert sorted(found) == [0, 1, 2, 4, 5, 6, 8, 9]
        assert sorted(one.item for one in runner.quarantine) == [3, 7]

    def test_the_stages_of_a_pipeline(self, where: str, slow: Slow) -> None:
        options: Any = {
            "where": where,
            "workers": 2,
            "item_timeout": SHORT,
            "on_error": "skip",
        }
        pipeline = numbers(10).prepare(function_of(where, slow), **options)
        with pipeline.batch(4).epochs(1) as epochs:
            found = [batch.tolist() for epoch in epochs for batch in epoch]
            (stage,) = epochs.statistics()
        assert found == [[0, 1, 2, 4], [5, 6, 8, 9]]
        assert stage.timed_out == 2

    def test_items_that_are_in_time_are_not_cut_short(self, where: str, slow: Slow) -> None:
        slow.go.set()
        call: Any = functions.double if where == "process" else float
        if where == "task":
            call = _at_once
        found, runner = drained(call, where=where, item_timeout=30)
        assert len(found) == 10
        assert runner.statistics().timed_out == 0


async def _at_once(number: int) -> int:
    await asyncio.sleep(0)
    return number


class TestThreads:
    def test_what_comes_late_is_dropped(self, slow: Slow) -> None:
        queue = sync.FIFOQueue(100)
        runner = prepare(
            range(10),
            slow.hangs_at_first,
            into=queue,
            workers=2,
            item_timeout=SHORT,
            on_error=Retry(1),
        )
        with sync.Coordinator() as coord:
            coord.start(runner)
            spin_until(lambda: runner.statistics().prepared == 10)
            slow.go.set()
            spin_until(lambda: sorted(slow.returned) == [3, 7])
        assert sorted(queue) == list(range(10))
        assert sorted(slow.calls) == sorted([*range(10), 3, 7])

    def test_generators_deliver_nothing_of_what_was_cut_short(self, slow: Slow) -> None:
        found, runner = drained(slow.parts, on_error="skip")
        assert sorted(found) == sorted([0, 1, 2, 4, 5, 6, 8, 9] * 2)
        assert runner.statistics().skipped == 2

    def test_no_more_are_replaced_than_there_are_workers(self, slow: Slow) -> None:
        def hangs(number: int) -> int:
            slow.go.wait(PATIENCE)
            return number

        with pytest.raises(ExceptionGroup) as caught:
            drained(hangs, on_error="skip", workers=1)
        error = failure_of(caught.value)
        assert "2 threads left behind still run: no more are replaced" in error.__notes__

    def test_those_that_have_ended_do_not_count(self) -> None:
        late = [threading.Event() for _ in range(4)]

        def slow_in_turn(number: int) -> int:
            late[number].wait(PATIENCE)
            return number

        queue = sync.FIFOQueue(4)
        runner = prepare(
            range(4),
            slow_in_turn,
            into=queue,
            workers=1,
            item_timeout=SHORT,
            on_error="skip",
        )
        with sync.Coordinator() as coord:
            coord.start(runner)
            for number in range(4):
                spin_until(partial(has_timed_out, runner, number))
                late[number].set()
                spin_until(lambda: len(extra_threads()) <= 1)
            assert list(queue) == []
        assert runner.statistics().skipped == 4

    def test_a_stop_waits_until_the_deadline_and_names_the_rest(
        self, slow: Slow, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = sync.FIFOQueue(4, name="examples")
        runner = prepare([3], slow.hangs, into=queue, workers=1, item_timeout=SHORT)
        with sync.Coordinator() as coord, caplog.at_level(logging.WARNING):
            coord.start(runner)
            spin_until(lambda: slow.calls)
            coord.request_stop()
        assert coord.joined
        assert len(extra_threads()) == 1
        (name,) = (one.name for one in extra_threads())
        assert f"its thread {name} is left behind" in caplog.text
        explained = rf"still running:\n  {name}, at item 3 \(epoch 0, index 0\), in .*(hangs|wait)"
        assert "prepare into 'examples' has ended; a thread was left behind" in caplog.text
        assert re.search(explained, caplog.text)

    def test_a_consumer_that_is_slow_is_not_held_against_an_item(self, slow: Slow) -> None:
        slow.go.set()
        queue = sync.FIFOQueue(1)
        runner = prepare(range(4), float, into=queue, workers=1, item_timeout=SHORT)
        with sync.Coordinator() as coord:
            coord.start(runner)
            spin_until(lambda: queue.statistics().waiting_enqueues)
            threading.Event().wait(2 * SHORT)  # what is not to matter
            assert list(queue) == [0.0, 1.0, 2.0, 3.0]

    def test_an_explanation_shows_the_timed_thread_and_its_item(self, slow: Slow) -> None:
        queue = sync.FIFOQueue(4, name="examples")
        runner = prepare([3], slow.hangs, into=queue, workers=1, item_timeout=PATIENCE)
        with sync.Coordinator() as coord:
            coord.start(runner)
            spin_until(lambda: slow.calls)
            explained = coord.explain()
            slow.go.set()
        (worker,) = (one for stage in explained.stages for one in stage.workers if one.item)
        assert worker.item is not None
        assert worker.item.text == "3"
        assert any(frame.function.endswith("Slow.hangs") for frame in worker.stack)
        assert explained.coordinators[0].workers == ()


def has_timed_out(runner: PrepareRunner, times: int) -> bool:
    return runner.statistics().timed_out > times


def extra_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if "deputy" in one.name]


@pytest.mark.parametrize("world_type", TASK_WORLDS, ids=lambda world: world.name)
class TestTasks:
    def test_they_are_cancelled(self, world_type: type[TaskWorld]) -> None:
        if world_type.missing():
            pytest.skip(world_type.missing())
        world = world_type()
        cleaned: list[int] = []

        async def sleeps(number: int) -> int:
            try:
                await _sleeps(number)
            finally:
                if number in SLOW:
                    cleaned.append(number)
            return number

        async def body() -> None:
            examples = world.fifo(99)
            runner = prepare(range(10), sleeps, into=examples, item_timeout=SHORT, on_error="skip")
            async with aioqueue.Coordinator() as coord:
                coord.start(runner)
                assert sorted([one async for one in examples]) == [0, 1, 2, 4, 5, 6, 8, 9]
            assert sorted(one.item for one in runner.quarantine) == [3, 7]

        world.run(body)
        assert sorted(cleaned) == [3, 7]

    def test_async_generators_deliver_nothing_of_what_was_cut_short(
        self, world_type: type[TaskWorld]
    ) -> None:
        if world_type.missing():
            pytest.skip(world_type.missing())
        world = world_type()

        async def body() -> None:
            examples = world.fifo(99)
            runner = prepare(
                range(10),
                _is_given_twice,
                into=examples,
                item_timeout=SHORT,
                on_error="skip",
            )
            async with aioqueue.Coordinator() as coord:
                coord.start(runner)
                found = sorted([one async for one in examples])
            assert found == sorted([0, 1, 2, 4, 5, 6, 8, 9] * 2)

        world.run(body)

    def test_async_generators_that_are_slow_fail(self, world_type: type[TaskWorld]) -> None:
        """Also where their examples might else be delivered as they come."""
        if world_type.missing():
            pytest.skip(world_type.missing())
        world = world_type()

        async def body() -> None:
            examples = world.fifo(99)
            with pytest.raises(ExceptionGroup) as caught:
                async with aioqueue.Coordinator() as coord:
                    coord.start(prepare([3], _is_given_twice, into=examples, item_timeout=SHORT))
                    assert [one async for one in examples] == []
            assert "was not prepared within item_timeout" in str(failure_of(caught.value))

        world.run(body)


class TestProcesses:
    def test_one_that_holds_the_gil_is_located_and_killed(self) -> None:
        with pytest.raises(ExceptionGroup) as caught:
            drained(functions.holds_the_gil, where="process", workers=1, item_timeout=0.3)
        error = failure_of(caught.value)
        assert "in holds_the_gil: return re.match(" in error.where

    def test_what_waits_behind_a_slow_item_is_prepared_by_another(self) -> None:
        found, runner = drained(
            partial(functions.slow_at, frozenset([0])), where="process", workers=1, on_error="skip"
        )
        assert sorted(found) == list(range(1, 10))
        assert runner.statistics().workers_died == 0


class TestArguments:
    @pytest.mark.parametrize("wrong", [0, -1, "1", True, float("nan")])
    def test_what_is_no_number_of_seconds_is_refused(self, wrong: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=r"^item_timeout: got .*number of seconds"):
            prepare([1], float, into=sync.FIFOQueue(1), item_timeout=wrong)
        with pytest.raises(InvalidArgumentError, match=r"^item_timeout: got "):
            numbers(1).prepare(float, item_timeout=wrong)

    def test_interpreters_cannot_be_cut_short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import concurrent.futures

        monkeypatch.setattr(concurrent.futures, "InterpreterPoolExecutor", object, raising=False)
        with pytest.raises(
            InvalidArgumentError, match=r"^item_timeout: got 1\.0 with where='interpreter'"
        ):
            prepare([1], float, into=sync.FIFOQueue(1), where="interpreter", item_timeout=1)
