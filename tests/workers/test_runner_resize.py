"""Another number of workers while they run: none is lost or made twice, and the order is kept."""

from __future__ import annotations

import threading
from typing import Any

import anyio.lowlevel
import anyio.to_thread
import pytest

import aioqueue
from aioqueue import InvalidArgumentError, inputs, sync
from aioqueue.testing import no_threads_left
from tests.kit.functions import double
from tests.kit.preparing import fitting
from tests.kit.worlds import TaskWorld, spin_until

COUNTS = (1, 5, 2, 8, 3)
ITEMS = 600


async def double_async(number: int) -> int:
    await anyio.lowlevel.checkpoint()
    return 2 * number


def prepared(into: Any, where: str, **options: Any) -> Any:
    function: Any = double_async if where == "task" else double
    source = inputs.items(range(ITEMS), epochs=1)
    options |= {"workers": 2, "where": where}
    return inputs.prepare(source, function, into=into, **options)


PLACES = ("thread", "task", "process")
LIMITS = pytest.mark.parametrize(
    "limits",
    [{}, {"concurrency_key": lambda number: number % 3, "max_per_key": 2}],
    ids=["without keys", "by key"],
)


@pytest.mark.slow("False-by", "True-without")
@LIMITS
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("where", PLACES)
def test_every_item_comes_once(where: str, ordered: bool, limits: dict[str, Any]) -> None:
    queue = sync.FIFOQueue(16)
    got: list[int] = []
    with no_threads_left(), sync.Coordinator() as coord:
        runner = prepared(queue, where, ordered=ordered, **limits)
        coord.start(runner)
        for place, example in enumerate(queue):
            got.append(example)
            if place % 20 == 0:
                runner.resize(COUNTS[place // 20 % len(COUNTS)])
    wanted = [2 * number for number in range(ITEMS)]
    assert (got if ordered else sorted(got)) == wanted
    assert runner.statistics().prepared == ITEMS
    assert runner.statistics().in_flight == 0


@pytest.mark.slow(but="trio-thread")
@pytest.mark.parametrize("where", ["thread", "task"])
def test_in_tasks(where: str, task_world: TaskWorld) -> None:
    got: list[int] = []

    async def body() -> None:
        queue = task_world.fifo(16)
        async with aioqueue.Coordinator() as coord:
            runner = prepared(queue, where, ordered=True)
            coord.start(runner)
            async for example in queue:
                got.append(example)
                if len(got) % 20 == 1:
                    runner.resize(COUNTS[len(got) // 20 % len(COUNTS)])

    task_world.run(body)
    assert got == [2 * number for number in range(ITEMS)]


@pytest.mark.slow("asyncio")
def test_without_a_coordinator(task_world: TaskWorld) -> None:
    got: list[int] = []

    async def body() -> None:
        queue = task_world.fifo(16)
        runner = prepared(queue, "task")
        running = task_world.spawn(runner.run)
        async for example in queue:
            got.append(example)
            if len(got) % 50 == 1:
                runner.resize(COUNTS[len(got) // 50 % len(COUNTS)])
        await running.result()

    task_world.run(body)
    assert sorted(got) == [2 * number for number in range(ITEMS)]


class Held:
    """A function whose calls stay until they are let go, and which tells how many there are."""

    def __init__(self) -> None:
        self.calls = threading.Semaphore(0)
        self.may_go = threading.Event()

    def __call__(self, item: int) -> int:
        self.calls.release()
        self.may_go.wait()
        return item


def test_as_many_work_as_were_asked_for() -> None:
    held, queue = Held(), sync.FIFOQueue(64)
    with no_threads_left(), sync.Coordinator() as coord:
        runner = inputs.prepare(range(40), held, into=queue, workers=1)
        coord.start(runner)
        held.calls.acquire()
        runner.resize(5)
        for _ in range(4):
            held.calls.acquire()  # four more are in the function, beside the one that stays there
        assert runner.workers == 5
        held.may_go.set()
        assert sorted(queue) == list(range(40))


def test_tasks_that_are_added_before_their_loop_has_begun_come_with_it() -> None:
    """Else fewer would work than are counted, and those that are too many would be all of them."""
    inside, gate, queue = threading.Semaphore(0), sync.FIFOQueue(64), sync.FIFOQueue(64)

    async def held(item: int) -> int:
        inside.release()
        await gate.aio.dequeue()
        return item

    with no_threads_left(), sync.Coordinator() as coord:
        runner = inputs.prepare(range(40), held, into=queue, workers=2)
        threads = runner.create_threads(coord=coord)
        runner.resize(4)
        for thread in threads:
            thread.start()
        for _ in range(4):
            inside.acquire()
        runner.resize(2)
        for _ in range(40):
            gate.enqueue(None)
        assert sorted(queue) == list(range(40))


def test_the_last_one_does_not_leave_before_others_have_begun() -> None:
    queue = sync.FIFOQueue(64)
    runner = inputs.prepare(range(40), abs, into=queue, workers=3)
    first, *others = runner.create_threads()
    runner.resize(1)
    first.start()
    assert [queue.dequeue() for _ in range(40)] == list(range(40))
    for thread in others:
        thread.start()
    assert list(queue) == []
    for thread in (first, *others):
        thread.join()


def test_those_that_are_too_many_leave() -> None:
    held, queue = Held(), sync.FIFOQueue(1)
    coord = sync.Coordinator()
    runner = inputs.prepare(iter(int, 1), held, into=queue, workers=6)
    threads = coord.start(runner)
    for _ in range(6):
        held.calls.acquire()
    runner.resize(2)
    held.may_go.set()
    while sum(thread.is_alive() for thread in threads) > 2:
        queue.dequeue()
    for _ in range(50):
        queue.dequeue()
    assert sum(thread.is_alive() for thread in threads) == 2
    coord.request_stop()
    coord.join()


def test_a_worker_that_waits_for_room_leaves_too() -> None:
    """One has the turn and waits for room, others wait for the turn: they hear of it at once."""
    queue = sync.FIFOQueue(1)
    coord = sync.Coordinator()
    runner = inputs.prepare(iter(int, 1), abs, into=queue, workers=4, max_in_flight=4)
    threads = coord.start(runner)
    runner.resize(1)
    while sum(thread.is_alive() for thread in threads) > 1:
        queue.dequeue()
    runner.resize(3)
    for _ in range(20):
        queue.dequeue()
    coord.request_stop()
    coord.join()


@pytest.mark.parametrize("where", ["thread", "task"])
def test_a_worker_that_waits_for_room_leaves_though_none_comes(where: str) -> None:
    held, queue = Held(), sync.FIFOQueue(9)
    function = fitting(held, where)
    with no_threads_left(), sync.Coordinator() as coord, coord.monitor() as monitor:
        runner = inputs.prepare(range(9), function, into=queue, workers=2, max_in_flight=1)
        coord.start(runner)
        held.calls.acquire()
        spin_until(lambda: runner._job.is_room_awaited)
        runner.resize(1)
        spin_until(lambda: [len(stage.workers) for stage in monitor.snapshot().stages] == [1])
        held.may_go.set()
        assert sorted(queue) == list(range(9))


@LIMITS
@pytest.mark.parametrize("where", ["thread", "task"])
def test_a_worker_that_waits_for_items_leaves_too(where: str, limits: dict[str, Any]) -> None:
    """With a key limit at once, however long the source takes; else when they have the turn."""

    def workers() -> int:
        return sum(len(stage.workers) for stage in monitor.snapshot().stages)

    items, queue = sync.FIFOQueue(9), sync.FIFOQueue(9)
    function: Any = double_async if where == "task" else double
    with no_threads_left(), sync.Coordinator() as coord, coord.monitor() as monitor:
        runner = inputs.prepare(items, function, into=queue, workers=4, **limits)
        coord.start(runner)
        spin_until(lambda: workers() == 4)
        runner.resize(1)
        if not limits:
            items.enqueue(1)
        spin_until(lambda: workers() == 1)
        items.close()


class TestWhatIsRefused:
    @pytest.mark.parametrize("workers", [0, -1, 1.5, "2", None])
    def test_what_is_no_number_of_workers(self, workers: Any) -> None:
        runner = inputs.prepare(range(3), abs, into=sync.FIFOQueue(1))
        with pytest.raises(InvalidArgumentError, match="workers"):
            runner.resize(workers)

    def test_what_was_not_started(self) -> None:
        runner = inputs.prepare(range(3), abs, into=sync.FIFOQueue(1))
        with pytest.raises(RuntimeError, match=r"has not been started.*workers=3"):
            runner.resize(3)

    def test_what_has_ended(self) -> None:
        queue = sync.FIFOQueue(8)
        with sync.Coordinator() as coord:
            runner = inputs.prepare(range(3), abs, into=queue)
            coord.start(runner)
            assert sorted(queue) == [0, 1, 2]
            coord.request_stop()
        with pytest.raises(RuntimeError, match=r"has ended.*workers=9"):
            runner.resize(9)
        assert runner.workers == 4

    def test_a_thread_that_cannot_be_started_changes_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = sync.FIFOQueue(8)
        with sync.Coordinator() as coord:
            runner = inputs.prepare(range(100), abs, into=queue, workers=2)
            coord.start(runner)

            def fail(thread: threading.Thread) -> None:
                raise RuntimeError("can't start new thread")

            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", fail)
                with pytest.raises(RuntimeError, match="new thread"):
                    runner.resize(4)
            assert runner.workers < 4
            assert sorted(queue) == list(range(100))


def test_the_limit_goes_by_the_workers_where_it_was_not_given() -> None:
    held, queue = Held(), sync.FIFOQueue(1)
    with sync.Coordinator() as coord:
        runner = inputs.prepare(iter(int, 1), held, into=queue, workers=2)
        given = inputs.prepare(iter(int, 1), held, into=queue, workers=2, max_in_flight=9)
        coord.start(runner)
        coord.start(given)
        runner.resize(4)
        given.resize(4)
        assert runner._job.window.max_in_flight == 64
        assert given._job.window.max_in_flight == 9
        held.may_go.set()
        coord.request_stop()
