"""Corners of `prepare` that mutation testing found no test for; see `docs/mutation.md`."""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from time import perf_counter
from typing import Any

import anyio.lowlevel
import anyio.to_thread
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.base.arguments import is_async
from aioqueue.inputs import prepare
from aioqueue.items.item import Item
from aioqueue.processes.channel import channels
from aioqueue.workers.flow_control import Pending
from aioqueue.workers.key_limits import Inbox
from aioqueue.workers.options import Retry
from tests.kit import functions
from tests.kit.functions import cannot_come_back
from tests.kit.preparing import drained, failures_of, fitting, prepared
from tests.kit.worlds import PATIENCE, TaskWorld, World, spin_until, waiting


def test_tasks_do_not_run_ahead_of_a_slow_item(task_world: TaskWorld) -> None:
    """In order, and with a limit: the source is asked for no more than that."""

    async def body() -> None:
        taken: list[int] = []
        go = task_world.fifo(1)

        async def make(number: int) -> int:
            if number == 0:
                await go.dequeue()
            return number

        def source() -> Any:
            for number in range(20):
                taken.append(number)
                yield number

        queue = task_world.fifo(20)
        runner = prepare(source(), make, into=queue, workers=4, ordered=True, max_in_flight=6)
        async with aioqueue.Coordinator() as coord:
            coord.start(runner)
            await task_world.until(lambda: len(taken) == 6)
            for _ in range(20):
                await task_world.tick()
            assert taken == list(range(6))
            await go.enqueue(None)
            assert [number async for number in queue] == list(range(20))

    task_world.run(body)


@pytest.mark.parametrize("retries", [1, 2])
async def test_the_failure_counts_how_often_an_item_has_failed(world: World, retries: int) -> None:
    def fail(number: int) -> int:
        raise ValueError(number)

    with pytest.raises(ExceptionGroup) as caught:
        await prepared(world, [7], fail, on_error=Retry(retries), workers=1)
    (failure,) = failures_of(caught.value)
    assert failure.count("while preparing item 7 (epoch 0, index 0)") == 1
    assert f"it has failed {retries + 1} times" in failure


def test_the_failure_of_an_item_that_fails_once_has_no_count() -> None:
    queue = sync.FIFOQueue(1)
    with pytest.raises(ExceptionGroup) as caught:
        drained(queue, prepare([0], lambda number: 1 // number, into=queue))
    assert "times" not in failures_of(caught.value)[0]


class TestWhatWaitsForAProcess:
    def task(self, number: int) -> Pending:
        return Pending(Item(number, None, 0, number))

    def test_is_sent_in_order(self) -> None:
        inbox, tasks = Inbox(), [self.task(number) for number in range(4)]
        for task in tasks[2:]:
            inbox.put(task)
        inbox.put_back(tasks[:2])
        assert inbox.take(3) == tasks[:3]
        assert inbox.take(3) == tasks[3:]
        assert inbox.seconds() is None

    def test_or_when_its_time_has_come(self) -> None:
        inbox, next_one, late, latest = Inbox(), self.task(3), self.task(2), self.task(1)
        inbox.put_off(latest, 2000)
        inbox.put_off(late, 1000)
        assert inbox.take(9) == []
        seconds = inbox.seconds()
        assert seconds is not None
        assert 900 < seconds <= 1000
        other = self.task(0)
        inbox.put(other)
        inbox.put_off(next_one, -1)
        assert inbox.seconds() == 0
        assert inbox.take(1) == [next_one]
        assert inbox.take(9) == [other]

    def test_no_more_than_were_asked_for(self) -> None:
        inbox, tasks = Inbox(), [self.task(number) for number in range(5)]
        for number, task in enumerate(tasks[:3]):
            inbox.put_off(task, number - 10)
        for task in tasks[3:]:
            inbox.put(task)
        assert [inbox.take(2), inbox.take(2), inbox.take(2)] == [tasks[:2], tasks[2:4], tasks[4:]]

    @pytest.mark.parametrize(("ready", "workers", "share"), [(0, 3, 0), (7, 3, 3), (6, 3, 2)])
    def test_is_shared_among_all(self, ready: int, workers: int, share: int) -> None:
        inbox = Inbox()
        for number in range(ready):
            inbox.put(self.task(number))
        assert inbox.share(workers) == share


BY_KEY: dict[str, Any] = {"concurrency_key": abs, "max_per_key": 1}


@pytest.mark.parametrize("options", [{}, BY_KEY], ids=["", "by key"])
@pytest.mark.parametrize("ending", ["function", "generator", "failure"])
@pytest.mark.parametrize("place", ["threads", "tasks"])
@pytest.mark.parametrize("is_monitored", [False, True], ids=["", "monitored"])
def test_a_worker_has_an_item_until_that_has_ended(
    place: str, ending: str, options: dict[str, Any], is_monitored: bool
) -> None:
    begun, ended, is_asked, more = (threading.Event() for _ in range(4))

    def source() -> Iterator[int]:
        yield 7
        is_asked.set()
        assert more.wait(PATIENCE)

    def make(number: int) -> int:
        begun.set()
        assert ended.wait(PATIENCE)
        if ending == "failure":
            raise ValueError(number)
        return number

    def make_each(number: int) -> Iterator[int]:
        yield make(number)

    make_async = fitting(make, "task")

    async def make_each_async(number: int) -> AsyncIterator[int]:
        yield await make_async(number)

    async def source_async() -> AsyncIterator[int]:
        yield 7
        is_asked.set()
        assert await anyio.to_thread.run_sync(more.wait, PATIENCE)

    def has_item() -> bool:
        # Stages whose event loop was closed, by other tests, are never over.
        (explained,) = (one for one in coord.explain().stages if one.into == queue.name)
        (worker,) = (one for one in explained.workers if "take" not in one.name)
        if monitor is not None:
            (measured,) = (one for stage in monitor.snapshot().stages for one in stage.workers)
            assert measured.name == worker.name
            assert (worker.item is None) is (measured.item is None)
        return worker.item is not None

    function: Any = make_each if ending == "generator" else make
    if place == "tasks":
        function = make_each_async if ending == "generator" else make_async
    queue = sync.FIFOQueue(8)
    if ending == "failure":
        options = {**options, "on_error": "skip"}
    with sync.Coordinator() as coord, ExitStack() as stack:
        monitor = stack.enter_context(coord.monitor()) if is_monitored else None
        runner: Any = prepare(
            source_async() if place == "tasks" else source(),
            function,
            into=queue,
            workers=1,
            **options,
        )
        coord.start(runner)
        assert begun.wait(PATIENCE)
        assert has_item()
        ended.set()
        assert is_asked.wait(PATIENCE)
        spin_until(lambda: runner.statistics().in_flight == 1)
        spin_until(lambda: not has_item())
        more.set()


def test_a_channel_reports_whether_something_arrives() -> None:
    one, other = channels()
    assert not one.comes_within(0)
    began = perf_counter()
    assert not one.comes_within(0.02)
    assert perf_counter() - began >= 0.02
    other.send(b"message")
    assert one.comes_within(60)
    assert one.receive() == b"message"
    assert not one.comes_within(0)
    other.close()
    assert one.comes_within(60)  # the end
    with pytest.raises(EOFError):
        one.receive()
    one.close()


class Awaited:
    async def __call__(self, number: int) -> int:
        return number


class Called:
    def __call__(self, number: int) -> int:
        return number


def test_what_has_to_run_in_an_event_loop() -> None:
    async def generator(number: int) -> Any:
        yield number

    function: Any
    runs_there = [Awaited(), generator, Awaited().__call__]
    does_not = [Called(), print, len, Called, sys]
    for function in runs_there:
        assert is_async(function)
        assert is_async(functools.partial(functools.partial(function), 1))
    for function in does_not:
        assert not is_async(function)


@pytest.mark.usefixtures("nothing_is_left")
def test_a_source_of_processes_is_closed_when_they_are_stopped() -> None:
    closed_in: list[str] = []

    def source() -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            closed_in.append(threading.current_thread().name)

    queue = sync.FIFOQueue(2)
    with sync.Coordinator() as coord:
        coord.start(prepare(source(), functions.double, into=queue, workers=1, where="process"))
        assert queue.dequeue() == 0
        coord.request_stop()
        coord.join()
        assert len(closed_in) == 1
        assert closed_in != [threading.current_thread().name]


@pytest.mark.usefixtures("nothing_is_left")
def test_what_cannot_be_unpickled_is_the_failure_of_its_item() -> None:
    queue = sync.FIFOQueue(8)
    runner = prepare(
        range(8), cannot_come_back, into=queue, workers=1, where="process", on_error="skip"
    )
    assert drained(queue, runner) == list(range(1, 8))
    (record,) = runner.quarantine
    assert "only once" in record.traceback
    assert "while unpickling what the function returned" in record.traceback.splitlines()
    assert "while preparing item 0 " in record.traceback
    assert runner.statistics().skipped == 1


def test_a_stop_ends_other_threads_than_that_which_the_source_blocks() -> None:
    go, is_asked = threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        yield from range(2)
        is_asked.set()
        assert go.wait(PATIENCE)

    queue, coord = sync.FIFOQueue(1), sync.Coordinator()
    runner = prepare(source(), abs, into=queue, workers=2)
    threads = runner.create_threads(None, coord, True, True)
    assert is_asked.wait(PATIENCE)
    spin_until(lambda: waiting(queue) == 1)
    assert all(thread.is_alive() for thread in threads)
    coord.request_stop()
    spin_until(lambda: [thread.is_alive() for thread in threads].count(True) == 1)
    go.set()
    coord.join()


def test_a_stop_closes_the_source_though_a_function_hangs() -> None:
    go, hangs, closed = threading.Event(), threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        try:
            yield from range(3)
        finally:
            closed.set()

    def make(number: int) -> int:
        if number == 0:
            hangs.set()
            assert go.wait(PATIENCE)
        return number

    queue, coord = sync.FIFOQueue(1), sync.Coordinator()
    prepare(source(), make, into=queue, workers=2).create_threads(None, coord, True, True)
    assert hangs.wait(PATIENCE)
    spin_until(lambda: waiting(queue) == 1)
    coord.request_stop()
    assert closed.wait(PATIENCE)
    go.set()
    coord.join()


def test_a_drain_ends_waits_for_room_though_others_wait_for_the_queue() -> None:
    queue, coord = sync.FIFOQueue(1), sync.Coordinator()
    runner = prepare(iter(range(9)), abs, into=queue, workers=2, max_in_flight=1)
    threads = runner.create_threads(None, coord, True, True)
    spin_until(lambda: waiting(queue) == 1 and runner._job.is_room_awaited)
    coord.drain()
    spin_until(lambda: [thread.is_alive() for thread in threads].count(True) == 1)
    assert list(queue) == [0, 1]
    coord.join()


@pytest.mark.usefixtures("nothing_is_left")
def test_a_source_that_cannot_be_closed_is_reported_by_its_reader() -> None:
    """Also if that is a helper, and all workers have ended."""
    go, is_asked = threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        try:
            yield 0
            is_asked.set()
            assert go.wait(PATIENCE)
            yield 1
        finally:
            raise OSError("it cannot be closed")

    queue = sync.FIFOQueue(1)
    runner = prepare(source(), abs, into=queue, workers=1, **BY_KEY)
    with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
        coord.start(runner)
        assert is_asked.wait(PATIENCE)
        coord.request_stop()
        spin_until(lambda: repr(runner).endswith("ended>"))
        go.set()
    (failure,) = failures_of(caught.value)
    assert failure.startswith("OSError('it cannot be closed') | in the source of a prepare")


@pytest.mark.parametrize("task", [True, False], ids=["task", "thread"])
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "as they come"])
@pytest.mark.parametrize("on_error", ["skip", Retry(1)], ids=["skip", "retry"])
async def test_no_example_enters_twice_or_of_an_item_that_fails(
    world: World, task: bool, ordered: bool, on_error: Any
) -> None:
    failed: set[int] = set()

    def refuse(number: int) -> int:
        if number % 3 == 0 and number not in failed:
            failed.add(number)
            raise ValueError(number)
        return -number

    def make(number: int) -> Iterator[int]:
        yield number
        yield refuse(number)

    async def make_async(number: int) -> AsyncIterator[int]:
        yield number
        await anyio.lowlevel.checkpoint()
        yield refuse(number)

    function: Any = make_async if task else make
    got = await prepared(world, range(1, 10), function, on_error=on_error, ordered=ordered)
    whole = [number for number in range(1, 10) if number % 3 or on_error != "skip"]
    assert sorted(got) == sorted([sign * number for number in whole for sign in (1, -1)])


def test_the_share_of_failures_is_not_judged_by_what_came_before_a_stop() -> None:
    def make(number: int) -> int:
        if number < 3:
            raise ValueError(number)
        return number

    queue = sync.FIFOQueue(1)
    options: Any = {"on_error": "skip", "max_failures": 0.1}
    runner = prepare(range(1000), make, into=queue, workers=1, **options)
    with sync.Coordinator() as coord:
        coord.start(runner)
        assert queue.dequeue() == 3
    assert runner.statistics().skipped == 3


def test_a_retry_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    failed: list[int] = []

    def make(number: int) -> int:
        if not failed:
            failed.append(number)
            raise ValueError(number)
        return number

    caplog.set_level(logging.DEBUG, "aioqueue")
    queue = sync.FIFOQueue(1)
    assert drained(queue, prepare([7], make, into=queue, on_error=Retry(1), workers=1)) == [7]
    expected = "item 7 (epoch 0, index 0) failed, trying again in 0 s"
    assert expected in caplog.messages


def test_a_backoff_may_be_a_function() -> None:
    message = r"backoff: got .*, or a function of the number of failures that returns one$"
    with pytest.raises(aioqueue.InvalidArgumentError, match=message):
        Retry(1, backoff="soon")  # type: ignore[arg-type]
