"""How workers measure their turns: a turn may stand for several, and no slow turn is missed."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from aioqueue import inputs, sync
from aioqueue.items.item import Item
from tests.kit.preparing import Gate, fitting
from tests.kit.worlds import StillClock, spin_until

gauge = importlib.import_module("aioqueue.workers.timing")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StillClock:
    clock = StillClock()
    monkeypatch.setattr(gauge, "perf_counter", clock)
    return clock


def run_turns(
    worker: Any, clock: StillClock, seconds: float, sample_after: int | None = None
) -> int:
    """Run the skipped turns and the measured one. Returns how many there were.

    Args:
        worker: the gauge.
        clock: what it measures by.
        seconds: of each turn, all of them in the function.
        sample_after: the turn after which a monitor samples the worker; ``None`` for never.
    """
    skipped = 0
    for skipped in worker.skipped_turns():
        clock.now += seconds
        if skipped == sample_after:
            worker.sample(clock.now)
    worker.item_wait_started(skipped)
    worker.item_received(Item(0, 0, 0, 0))
    clock.now += seconds
    worker.call_finished()
    worker.delivery_finished(as_made=False)
    return skipped + 1


class TestQuickTurns:
    def test_one_stands_for_many_and_all_are_counted(self, clock: StillClock) -> None:
        worker = gauge.WorkerGauge("one")
        began = clock.now
        worker.start_measuring()
        turns = [run_turns(worker, clock, 1e-5) for _ in range(50)]
        assert turns[0] == 1
        assert 100 < max(turns) <= 512
        assert worker.calls == sum(turns)
        assert sum(worker.service.counted().counts) == sum(turns)
        assert worker.service.seconds == pytest.approx(1e-5 * sum(turns))
        assert worker.spent.busy == pytest.approx(clock.now - began)

    def test_a_sample_has_the_next_turn_measured(self, clock: StillClock) -> None:
        worker = gauge.WorkerGauge("one")
        worker.start_measuring()
        while run_turns(worker, clock, 1e-5) < 100:
            pass
        assert run_turns(worker, clock, 1.0, sample_after=3) == 4
        assert run_turns(worker, clock, 1.0) == 1, "they are slow now: each of them is measured"
        assert run_turns(worker, clock, 1.0) == 1

    def test_the_mean_is_true_where_turns_differ(self, clock: StillClock) -> None:
        """Every third takes ten times as long; looks come whenever they come."""
        worker = gauge.WorkerGauge("one")
        worker.start_measuring()
        began, turns = clock.now, 0
        for number in range(3000):
            sample_after = 7 if number % 5 == 0 else None
            turns += run_turns(worker, clock, (1e-5, 1e-5, 1e-4)[number % 3], sample_after)
        assert worker.calls == turns
        assert worker.spent.busy == pytest.approx(clock.now - began, rel=1e-6)
        mean = worker.service.seconds / turns
        assert mean == pytest.approx((clock.now - began) / turns, rel=0.35)


def test_slow_turns_are_measured_one_by_one(clock: StillClock) -> None:
    worker = gauge.WorkerGauge("one")
    worker.start_measuring()
    assert [run_turns(worker, clock, 0.01) for _ in range(5)] == [1] * 5
    assert worker.service.longest == pytest.approx(0.01)


class TestFullWindow:
    """While the window is full, no worker starves. The reported seconds never decrease."""

    def test_the_current_wait_is_no_starving_either(self, clock: StillClock) -> None:
        job = gauge.Gauge()
        worker = job.worker("one")
        worker.start_measuring()
        worker.item_wait_started(0, job.seconds_full)
        clock.now += 1.0  # the source takes its time
        job.is_full()
        starved = [job.sum(clock.now).starved]
        for _ in range(3):
            clock.now += 5.0
            starved.append(job.sum(clock.now).starved)
        job.has_room()
        clock.now += 2.0
        starved.append(job.sum(clock.now).starved)
        worker.item_received(Item(0, 0, 0, 0), job.seconds_full)
        starved.append(job.sum(clock.now).starved)
        assert starved == [1.0, 1.0, 1.0, 1.0, 3.0, 3.0]

    def test_a_worker_that_gets_its_items_from_a_helper(self, clock: StillClock) -> None:
        """A helper takes the items, and only the helper knows of the room."""
        job = gauge.Gauge()
        worker = job.worker("one")
        job.is_full()
        clock.now += 1.0
        worker.item_wait_started()
        clock.now += 4.0
        assert job.sum(clock.now).starved == 4.0
        worker.item_received(Item(0, 0, 0, 0))
        assert job.sum(clock.now).starved == 4.0


class TestRuns:
    """The final numbers of workers, with a clock that only source and function advance."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> StillClock:
        clock = StillClock()
        executors = [f"executors.{name}" for name in ("threads", "tasks", "worker_threads")]
        for name in ("timing", "key_limits", *executors):
            module = importlib.import_module(f"aioqueue.workers.{name}")
            monkeypatch.setattr(module, "perf_counter", clock)
        return clock

    @pytest.mark.parametrize(
        "kind", ["function", "generator", "coroutine", "async generator", "async source"]
    )
    def test_each_second_is_of_the_source_or_the_function(
        self, clock: StillClock, kind: str
    ) -> None:
        def take(number: int) -> int:
            clock.now += 10.0
            return number

        async def take_async() -> AsyncIterator[int]:
            for number in range(5):
                yield take(number)

        def make(number: int, seconds: float = 3.0) -> int:
            clock.now += seconds
            return number

        def make_each(number: int) -> Iterator[int]:
            yield make(number, 1.0)
            make(number, 2.0)

        async def make_async(number: int) -> int:
            return make(number)

        async def make_each_async(number: int) -> AsyncIterator[int]:
            for example in make_each(number):
                yield example

        functions: dict[str, Callable[[int], Any]] = {
            "function": make,
            "generator": make_each,
            "async generator": make_each_async,
        }
        function = functions.get(kind, make_async)
        source: Any = take_async() if kind == "async source" else map(take, range(5))
        queue = sync.FIFOQueue(8)
        with sync.Coordinator() as coord, coord.monitor() as monitor:
            coord.start(inputs.prepare(source, function, into=queue, workers=1))
            assert list(queue) == list(range(5))
            coord.join()
            (stage,) = monitor.snapshot().stages
        assert (stage.busy, stage.service.seconds, stage.service.count) == (15.0, 15.0, 5)
        assert stage.cpu_sampled == (0.0 if "generator" in kind else 15.0)
        assert (stage.starved, stage.source_waits.seconds) == (50.0, 50.0)

    @pytest.mark.parametrize("limit", ["max_in_flight", "limit_bytes"])
    @pytest.mark.parametrize("where", ["thread", "task"])
    def test_a_worker_that_waits_for_room_does_not_starve(
        self, clock: StillClock, where: str, limit: str
    ) -> None:
        gate, queue = Gate(1, 2), sync.FIFOQueue(8)
        with sync.Coordinator() as coord, coord.monitor() as monitor:
            options: Any = {limit: 1}
            function = fitting(gate, where)
            runner = inputs.prepare(iter(range(3)), function, into=queue, workers=2, **options)
            coord.start(runner)
            spin_until(lambda: {*gate.came} == {0, 1} and runner._job.is_room_awaited)
            clock.now += 5.0
            gate.opened.set()
            assert sorted(queue) == [0, 1, 2]
            coord.join()
            (stage,) = monitor.snapshot().stages
        assert (stage.starved, stage.seconds_window_full) == (0.0, 5.0)
        assert stage.seconds_bytes_full == (5.0 if limit == "limit_bytes" else 0.0)

    @pytest.mark.parametrize("where", ["thread", "task"])
    def test_keys_keep_no_worker_idle_while_all_work(self, clock: StillClock, where: str) -> None:
        gate, queue = Gate("a0", "a1", "b0"), sync.FIFOQueue(8)
        with sync.Coordinator() as coord, coord.monitor() as monitor:
            runner = inputs.prepare(
                iter(["a0", "a1", "b0"]),
                fitting(gate, where),
                into=queue,
                workers=2,
                concurrency_key=lambda name: name[0],
                max_per_key=1,
            )
            coord.start(runner)
            spin_until(lambda: sorted(gate.came) == ["a0", "b0"])  # and the other one is put aside
            clock.now += 5.0
            gate.opened.set()
            assert sorted(queue) == ["a0", "a1", "b0"]
            coord.join()
            (stage,) = monitor.snapshot().stages
        assert (stage.busy, stage.seconds_keys_full) == (10.0, 0.0)


def test_deaths_of_workers_that_have_ended_are_counted(clock: StillClock) -> None:
    job = gauge.Gauge()
    workers = [job.worker(name) for name in ("one", "two")]
    for number, worker in enumerate(workers):
        worker.deaths = number + 1
    job.worker_ended(workers[0])
    assert job.sum(clock.now).deaths == 3
    job.worker_ended(workers[1])
    assert job.sum(clock.now).deaths == 3
