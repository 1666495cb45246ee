"""`Monitor`: what it sees of coordinators and pipelines, in every world."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import aioqueue
from aioqueue import InvalidArgumentError, Monitor, inputs, sync
from aioqueue.telemetry import Snapshot
from aioqueue.testing import wait_until_waiting
from tests.kit.functions import double
from tests.kit.worlds import PATIENCE, TaskWorld, spin_until
from tests.telemetry.fluid_model import usual
from tests.telemetry.growing import Growing


def train(**options: Any) -> Any:
    return inputs.items(range(64), epochs=None).prepare(double, workers=2, **options).batch(8)


def wait_for_snapshot(monitor: Monitor, holds: Callable[[Snapshot], bool]) -> None:
    spin_until(lambda: holds(monitor.snapshot()))


class TestPipelines:
    def test_parts_have_names_in_flow_order(self) -> None:
        pipeline = inputs.items(range(64)).prepare(double).prepare(abs).batch(8).prefetch()
        with pipeline.monitor() as monitor:
            assert len(list(pipeline)) == 8
        seen = monitor.history[-1]
        assert [stage.name for stage in seen.stages] == ["double", "abs", "prefetch"]
        assert [stage.source for stage in seen.stages] == [
            None,
            "double",
            "abs",
        ]
        assert [stage.into for stage in seen.stages] == [queue.name for queue in seen.queues]
        assert seen.stage("double").delivered == 64
        assert seen.stage("double").taken == 64
        assert seen.queue("prefetch").dequeued >= 8

    def test_step_time_and_wait_time_are_separate(self) -> None:
        pipeline = train()
        with pipeline.monitor() as monitor:
            for _ in pipeline:
                assert monitor.snapshot().steps is not None
        steps = monitor.history[-1].steps
        assert steps is not None
        assert steps.steps == 8
        assert steps.waits.count == 8
        assert steps.queue == "double"
        assert steps.waiting == 0.0
        assert steps.worked > 0.0

    def test_consecutive_runs_add_up(self) -> None:
        pipeline = train()
        with pipeline.monitor() as monitor:
            for _ in range(3):
                assert len(list(pipeline)) == 8
                (stage,) = monitor.snapshot().stages
                (queue,) = monitor.snapshot().queues
                assert queue.enqueued == queue.dequeued + queue.size + queue.held
        assert stage.delivered == 3 * 64
        assert queue.dequeued == 3 * 65  # the ends of epochs, too

    def test_epochs_can_be_monitored(self) -> None:
        epochs = train().epochs(2)
        with epochs.monitor() as monitor:
            for epoch in epochs:
                list(epoch)
        steps = monitor.history[-1].steps
        assert steps is not None
        assert steps.steps == 16

    def test_a_resumed_pipeline(self) -> None:
        pipeline = train()
        epochs = pipeline.epochs(2)
        with epochs:
            next(iter(next(epochs)))
            state = epochs.state_dict()
        with pipeline.monitor() as monitor:
            assert len(list(pipeline.resume(state))) == 7
        assert monitor.history[-1].stage("double").delivered >= 56

    def test_branches_have_distinct_names(self) -> None:
        other = inputs.items(range(64)).prepare(double)
        pipeline = inputs.items(range(64)).prepare(double).mix(other).batch(8)
        with pipeline.monitor() as monitor:
            list(pipeline)
        seen = monitor.history[-1]
        assert [stage.name for stage in seen.stages] == ["double", "double-2"]
        assert len({queue.name for queue in seen.queues}) == 2

    def test_in_tasks(self, task_world: TaskWorld) -> None:
        pipeline = train()

        async def body() -> None:
            with pipeline.monitor() as monitor:
                assert len([batch async for batch in pipeline]) == 8
            steps = monitor.history[-1].steps
            assert steps is not None
            assert steps.steps == 8
            assert monitor.history[-1].stage("double").delivered == 64

        task_world.run(body)

    @pytest.mark.slow
    def test_sums_agree_wherever_a_loop_of_tasks_was_cancelled(self) -> None:
        async def make(item: int) -> int:
            await asyncio.sleep(0)
            return item

        async def go() -> None:
            async for _ in pipeline:
                pass

        async def cancelled_after(turns: int) -> None:
            loop = asyncio.ensure_future(go())
            for _ in range(turns):
                await asyncio.sleep(0)
            loop.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loop

        async def body() -> None:
            with pipeline.monitor() as monitor:
                for turns in range(40):
                    await cancelled_after(turns)
                    seen = monitor.snapshot()
                    for queue in seen.queues:
                        assert queue.enqueued == queue.dequeued + queue.size + queue.held
                        assert not queue.dequeue_waiting
                    for stage in seen.stages:  # what was in flight has gone with its run
                        assert stage.taken >= stage.delivered + stage.skipped + stage.in_flight
                    assert seen.steps is None or seen.steps.waiting == 0.0

        source = inputs.items(range(100_000))
        pipeline = source.prepare(make, workers=2, where="task").batch(4)
        asyncio.run(body())

    def test_workers_measure_themselves_while_it_is_on(self) -> None:
        pipeline = inputs.items(range(64)).prepare(double, workers=1)
        batches = iter(pipeline)
        next(batches)
        with pipeline.monitor() as monitor:
            wait_for_snapshot(
                monitor, lambda seen: bool(list(batches)) or seen.stages[0].service.count > 0
            )


class Big:
    """What one can see the end of."""


class TestEndedParts:
    """A monitor keeps nothing alive, and sums up by name what has ended."""

    def manual_epochs(self, coord: Any, count: int, name: str | None) -> list[weakref.ref[Big]]:
        made: list[weakref.ref[Big]] = []

        def make(_: int) -> Big:
            one = Big()
            made.append(weakref.ref(one))
            return one

        for _ in range(count):
            queue = sync.FIFOQueue(4, name=name)
            runner = inputs.prepare(range(3), make, into=queue, workers=1)
            coord.start(runner)
            queue.dequeue()
            queue.wait_closed()  # with two elements in it
        return made

    @pytest.mark.parametrize("name", ["same", None])
    def test_ended_parts_are_not_kept_and_share_one_label(self, name: str | None) -> None:
        with sync.Coordinator() as coord, coord.monitor() as monitor:
            made = self.manual_epochs(coord, 12, name)
            gc.collect()  # as it takes without a monitor
            spin_until(lambda: not any(one() for one in made))
            seen = monitor.snapshot()
            coord.request_stop()
        (queue,), (stage,) = seen.queues, seen.stages
        assert stage.into == queue.name
        assert (stage.delivered, queue.enqueued) == (36, 36)
        assert queue.enqueued == queue.dequeued + queue.size + queue.held

    def test_a_closed_monitor_keeps_no_part(self) -> None:
        with sync.Coordinator() as coord:
            monitor = coord.monitor()
            made = self.manual_epochs(coord, 2, "same")
            monitor.close()
            gc.collect()
            spin_until(lambda: not any(one() for one in made))
            coord.request_stop()
        assert monitor.snapshot().queue("same").enqueued == 6

    def test_stages_with_one_name_and_different_queues_are_distinct(self) -> None:
        with sync.Coordinator() as coord, coord.monitor() as monitor:
            queues = [sync.FIFOQueue(8, name=f"q{number}") for number in range(2)]
            for queue in queues:
                coord.start(inputs.prepare(range(3), double, into=queue, workers=1))
            for queue in queues:
                queue.wait_closed()
            seen = monitor.snapshot()
            coord.request_stop()
        assert [stage.name for stage in seen.stages] == ["double", "double-2"]
        assert [queue.name for queue in seen.queues] == ["q0", "q1"]

    def test_the_last_numbers_of_a_dropped_queue_count(self) -> None:
        """Also if no snapshot was taken in between."""
        with sync.Coordinator() as coord, coord.monitor() as monitor:
            for count in (3, 5):
                queue = sync.FIFOQueue(8, name="q")
                coord.start(inputs.prepare(range(count), double, into=queue, workers=1))
                assert len(list(queue)) == count
                del queue
            seen = monitor.snapshot()
        assert seen.queue("q").enqueued == 8


class TestConcurrentRuns:
    @pytest.mark.parametrize("count", [2, 3])
    def test_are_added_up(self, count: int) -> None:
        go = threading.Event()

        def doubled(number: int) -> int:
            go.wait(PATIENCE)  # no loop is over before all have begun
            return double(number)

        pipeline = inputs.items(range(40)).prepare(doubled, workers=2).batch(10)
        with pipeline.monitor() as monitor:
            loops = [iter(pipeline.epochs(1)) for _ in range(count)]
            epochs = [next(loop) for loop in loops]
            go.set()
            for _ in zip(*epochs, strict=True):
                seen = monitor.snapshot()
                for queue in seen.queues:
                    assert queue.enqueued == queue.dequeued + queue.size + queue.held
            seen = monitor.snapshot()
        assert seen.steps is not None
        assert seen.steps.steps == 4 * count
        assert seen.steps.waits.count == 4 * count
        assert [stage.delivered for stage in seen.stages] == [40 * count]
        assert [queue.dequeued for queue in seen.queues] == [41 * count]

    def test_a_waiting_loop_does_not_count_as_working(self) -> None:
        """Two loops, of which one waits all the time: half of the time is waited."""
        go = threading.Event()

        def slow(number: int) -> int:
            go.wait(PATIENCE)
            return number

        pipeline = inputs.items(range(2)).prepare(slow, workers=1)
        other = inputs.items(range(2)).prepare(abs, workers=1)
        with sync.Coordinator() as coord, coord.monitor() as monitor:
            waiting = threading.Thread(target=lambda: list(monitor.steps(pipeline)))
            waiting.start()
            working = iter(monitor.steps(other))
            next(working)
            spin_until(lambda: monitor.snapshot().steps.waiting > 0.05)  # type: ignore[union-attr]
            verdict = monitor.snapshot().steps
            go.set()
            waiting.join()
            del working
        assert verdict is not None
        assert verdict.steps == 1
        assert verdict.worked > 0.0


class TestFunctionsBetweenStages:
    def test_have_names_and_a_calling_stage(self) -> None:
        def odd(number: int) -> bool:
            return number % 2 == 1

        def together(numbers: list[int]) -> list[int]:
            return numbers

        pipeline = (
            inputs.items(range(40))
            .filter(odd)
            .prepare(double, workers=1)
            .batch(4, collate=together)
            .prefetch(1)
            .unbatch()
        )
        with pipeline.monitor() as monitor:
            list(pipeline)
        functions = {one.name: one for one in monitor.history[-1].functions}
        assert {name: (one.kind, one.within) for name, one in functions.items()} == {
            "source": ("source", "double"),
            "odd": ("filter", "double"),
            "together": ("batch", "prefetch"),
            "unbatch": ("unbatch", None),
        }
        assert functions["together"].service.count >= 4
        assert functions["together"].busy > 0.0
        assert [stage.name for stage in monitor.history[-1].stages] == ["double", "prefetch"]

    def test_calls_are_counted_from_the_first(self) -> None:
        """Calls of the function, not transfers of rows; a ``collate`` is called once a batch."""
        calls: list[int] = []

        def together(numbers: list[int]) -> list[int]:
            calls.append(len(numbers))
            return numbers

        def keeps(number: int) -> bool:
            return number % 3 > 0

        pipeline: Any = inputs.items(range(60)).filter(keeps).batch(4, collate=together)
        pipeline = pipeline.unbatch().prepare(double, workers=1).filter(keeps)
        with pipeline.monitor() as monitor:
            list(pipeline)
        functions = {one.name: one.service for one in monitor.history[-1].functions}
        assert functions["together"].count == len(calls) == 10
        assert functions["unbatch"].count == 10

    def test_the_first_call_in_progress_is_counted(self) -> None:
        go = threading.Event()

        def source() -> Any:
            go.wait(PATIENCE)
            yield 1

        pipeline = inputs.from_iterable(source).filter(bool).prepare(double, workers=1).batch(1)
        with pipeline.monitor() as monitor:
            trainer = threading.Thread(target=lambda: list(pipeline))
            trainer.start()
            wait_for_snapshot(monitor, lambda seen: any(one.busy for one in seen.functions))
            seen = monitor.snapshot()
            assert [one.name for one in seen.functions if one.busy] == ["source"]
            go.set()
            trainer.join(PATIENCE)

    def test_stages_with_one_name_have_separate_functions(self) -> None:
        pipeline = inputs.items(range(8)).prepare(double).filter(bool).prepare(double).batch(4)
        with pipeline.monitor() as monitor:
            list(pipeline)
        seen = monitor.history[-1]
        assert [stage.name for stage in seen.stages] == ["double", "double-2"]
        within = {one.name: one.within for one in seen.functions}
        assert within == {"source": "double", "bool": "double-2", "batch": None}

    def test_a_meter_keeps_no_node_alive(self) -> None:
        class Keeps:
            def __call__(self, number: int) -> bool:
                return True

        keeps = Keeps()
        is_alive = weakref.ref(keeps)
        pipeline = inputs.items(range(8)).filter(keeps).batch(4)
        gc.collect()
        gc.disable()
        try:
            with pipeline.monitor():
                list(pipeline)
                del pipeline, keeps
                spin_until(lambda: is_alive() is None)
        finally:
            gc.enable()

    def test_are_not_measured_without_a_monitor(self) -> None:
        epochs = inputs.items(range(40)).prepare(double, workers=1).batch(4).epochs(1)
        with epochs:
            epoch = next(epochs)
            with epochs.monitor() as monitor:
                next(epoch)
                monitor.close()
            before = monitor.snapshot().functions
            next(epoch)
            assert [one.service.count for one in monitor.snapshot().functions] == [
                one.service.count for one in before
            ]


class TestWaitsOfWorkers:
    """How workers spend their time: the tests wait for states, and not for a clock."""

    def test_a_worker_in_its_function(self) -> None:
        may_go, is_in = threading.Event(), threading.Event()

        def stay(item: int) -> int:
            is_in.set()
            may_go.wait()
            return item

        queue = sync.FIFOQueue(8)
        with sync.Coordinator() as coord, coord.monitor() as monitor:
            coord.start(inputs.prepare(range(5), stay, into=queue, workers=1))
            is_in.wait()
            wait_for_snapshot(monitor, lambda seen: seen.stages[0].workers[0].item == 0)
            before = monitor.snapshot().stages[0].workers[0].seconds
            wait_for_snapshot(monitor, lambda seen: seen.stages[0].workers[0].seconds > before)
            may_go.set()
            assert sorted(queue) == list(range(5))

    def test_a_worker_that_waits_for_room(self) -> None:
        queue = sync.FIFOQueue(1)
        with sync.Coordinator() as coord, coord.monitor() as monitor:
            coord.start(inputs.prepare(iter(int, 1), abs, into=queue, workers=1))
            wait_until_waiting(queue, enqueues=1)
            wait_for_snapshot(monitor, lambda seen: seen.stages[0].blocked > 0)
            first = monitor.snapshot().stages[0].blocked
            wait_for_snapshot(monitor, lambda seen: seen.stages[0].blocked > first)
            coord.request_stop()

    @pytest.mark.parametrize("where", ["thread", "task"])
    def test_workers_idle_because_of_max_per_key(self, where: str) -> None:
        go = threading.Event()

        def fetch(url: str) -> str:
            go.wait(PATIENCE)
            return url

        async def fetch_task(url: str) -> str:
            while not go.is_set():
                await asyncio.sleep(0)
            return url

        pipeline = inputs.items(["a/1", "a/2", "a/3", "a/4"]).prepare(
            fetch if where == "thread" else fetch_task,
            workers=2,
            concurrency_key=lambda url: url[0],
            max_per_key=1,
        )
        with pipeline.monitor() as monitor:
            trainer = threading.Thread(target=lambda: list(pipeline))
            trainer.start()
            wait_for_snapshot(
                monitor, lambda seen: any(one.seconds_keys_full > 0 for one in seen.stages)
            )
            (stage,) = monitor.snapshot().stages
            assert (stage.max_per_key, stage.full_key) == (1, "'a'")
            go.set()
            trainer.join(PATIENCE)
        (stage,) = monitor.snapshot().stages
        assert stage.delivered == 4
        assert 0 < stage.seconds_keys_full <= stage.starved + 0.1
        assert stage.full_key is None or stage.delivered == 4

    def test_the_function_that_gives_keys_is_work_of_the_worker(self) -> None:
        def key(number: int) -> int:
            time.sleep(0.02)
            return number

        pipeline = inputs.items(range(5)).prepare(
            abs, workers=1, concurrency_key=key, max_per_key=1
        )
        with pipeline.monitor() as monitor:
            assert len(list(pipeline)) == 5
        (stage,) = monitor.history[-1].stages
        assert stage.busy >= 0.1
        assert stage.service.seconds >= 0.1

    def test_workers_that_wait_for_a_lock(self) -> None:
        """Tasks, and ops of a plain runner, too."""
        lock, lock_of_tasks = threading.Lock(), asyncio.Lock()
        queue, ops = sync.FIFOQueue(8), sync.FIFOQueue(8)

        async def in_a_task(number: int) -> int:
            async with lock_of_tasks:
                await asyncio.Event().wait()  # until it is stopped
            return number

        def in_an_op() -> None:
            with lock:
                ops.enqueue(1)

        with sync.Coordinator() as coord, coord.monitor() as monitor:
            lock.acquire()
            coord.start(inputs.prepare(range(2), in_a_task, into=queue, workers=2))
            coord.start(sync.QueueRunner(ops, in_an_op))
            wait_for_snapshot(monitor, lambda seen: all(one.in_line for one in seen.stages))
            for stage in monitor.snapshot().stages:
                assert str(stage.lock).startswith(f"{__file__}:")
            coord.request_stop()
            lock.release()

    def test_ops_of_a_queue_runner(self) -> None:
        names, queue = sync.FIFOQueue(1, name="names"), sync.FIFOQueue(1, name="examples")

        def read() -> None:
            queue.enqueue(names.dequeue())

        with sync.Coordinator() as coord, coord.monitor() as monitor:
            coord.start(sync.QueueRunner(queue, [read, read]))
            wait_until_waiting(names, dequeues=2)
            wait_for_snapshot(monitor, lambda seen: seen.stages[0].starved > 0)
            stage = monitor.snapshot().stages[0]
            assert (stage.name, stage.where, stage.into) == ("read", "thread", "examples")
            assert stage.source == "names"
            assert len(stage.workers) == 2
            assert not stage.resizable
            coord.request_stop()
            names.close()

    @pytest.mark.parametrize("where", ["thread", "process"])
    def test_every_kind_of_worker(self, where: Any) -> None:
        queue = sync.FIFOQueue(8)
        with sync.Coordinator() as coord, coord.monitor() as monitor:
            source = inputs.items(range(200), epochs=1)
            coord.start(inputs.prepare(source, double, into=queue, workers=2, where=where))
            assert len(list(queue)) == 200
            coord.request_stop()
        (stage,) = monitor.history[-1].stages
        assert (stage.where, stage.delivered, stage.in_flight) == (where, 200, 0)
        if where == "process":  # which always tell
            assert stage.service.count == 200
            assert stage.busy > 0


class TestSteps:
    def test_of_any_loop(self) -> None:
        queue = sync.FIFOQueue(8)
        with sync.Coordinator() as coord, coord.monitor() as monitor:
            coord.start(inputs.prepare(range(10), abs, into=queue))
            assert sorted(monitor.steps(queue)) == list(range(10))
            steps = monitor.snapshot().steps
            assert steps is not None
            assert (steps.steps, steps.waiting) == (10, 0.0)

    def test_of_an_async_loop(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            queue = task_world.fifo(8)
            async with aioqueue.Coordinator() as coord:
                with coord.monitor() as monitor:
                    coord.start(inputs.prepare(range(10), abs, into=queue))
                    got = [example async for example in monitor.steps(queue)]
            assert sorted(got) == list(range(10))
            steps = monitor.history[-1].steps
            assert steps is not None
            assert steps.steps == 10

        task_world.run(body)

    def test_that_wait_now(self) -> None:
        queue: Any = sync.FIFOQueue(1, name="batches")
        with sync.Coordinator() as coord, coord.monitor() as monitor:
            loop = threading.Thread(target=lambda: list(monitor.steps(queue)))
            loop.start()
            wait_until_waiting(queue, dequeues=1)
            wait_for_snapshot(
                monitor, lambda seen: seen.steps is not None and seen.steps.waiting > 0
            )
            steps = monitor.snapshot().steps
            assert steps is not None
            assert steps.queue == "batches"
            queue.close()
            loop.join()

    def test_refuse_what_is_not_iterable(self) -> None:
        monitor: Any = sync.Coordinator().monitor()
        with pytest.raises(InvalidArgumentError, match="batches"):
            monitor.steps(7)


def sampling_threads() -> set[threading.Thread]:
    """The threads of all monitors."""
    return {one for one in threading.enumerate() if one.name == "aioqueue-monitor"}


class TestLifetime:
    def test_it_keeps_a_snapshot_a_second(self) -> None:
        with sync.Coordinator().monitor() as monitor:
            spin_until(lambda: len(monitor.history) >= 2)
            first, second = monitor.history[:2]
            assert second.seconds > first.seconds

    def test_its_history_can_be_read_while_it_grows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        growing = "aioqueue.telemetry.monitor.deque"
        monkeypatch.setattr(growing, lambda seen, maxlen: Growing(seen, 9))
        with sync.Coordinator().monitor() as monitor:
            assert len(monitor.history) == 1
            assert monitor.verdict().cause == "nothing"

    def test_it_ends_with_its_block(self) -> None:
        before = sampling_threads()
        with sync.Coordinator().monitor() as monitor:
            (looker,) = sampling_threads() - before
        looker.join()
        monitor.close()
        assert "closed" in repr(monitor)

    def test_it_ends_when_it_is_dropped(self) -> None:
        before = sampling_threads()
        monitor = sync.Coordinator().monitor()
        (looker,), ref = sampling_threads() - before, weakref.ref(monitor)
        del monitor
        gc.collect()
        looker.join()
        assert ref() is None

    def test_it_keeps_no_run_alive_that_was_dropped(self) -> None:
        pipeline = train()
        with pipeline.monitor() as monitor:
            list(pipeline)
            ref = weakref.ref(pipeline)
            del pipeline
            gc.collect()
            assert ref() is None
            assert monitor.snapshot().stages[0].delivered == 64

    def test_workers_measure_no_more_when_it_is_closed(self) -> None:
        queue = sync.FIFOQueue(1)
        with sync.Coordinator() as coord:
            runner = inputs.prepare(iter(int, 1), abs, into=queue, workers=1)
            with coord.monitor() as monitor:
                coord.start(runner)
                wait_for_snapshot(monitor, lambda _: runner._job.gauge.is_on)
            assert not runner._job.gauge.is_on
            coord.request_stop()

    def test_any_number_may_watch_at_once(self) -> None:
        pipeline = train()
        with ExitStack() as stack:
            monitors = [stack.enter_context(pipeline.monitor()) for _ in range(20)]
            list(pipeline)
        assert {one.history[-1].stages[0].delivered for one in monitors} == {64}

    def test_a_closed_monitor_writes_no_scalars(self) -> None:
        """The writer may be closed, too."""
        steps: list[int | None] = []

        class Writer:
            def add_scalar(self, tag: str, value: float, step: int | None = None) -> None:
                steps.append(step)

        pipeline = train()
        with pipeline.monitor() as monitor:
            monitor.to(Writer(), every=1)
            list(pipeline)
        written = list(steps)
        assert set(written) == set(range(8))
        list(pipeline)
        assert steps == written

    def test_each_counts_from_its_creation_on(self) -> None:
        """Steps are metered for all monitors of a pipeline together."""
        pipeline = train()
        with pipeline.monitor():
            list(pipeline)
        with pipeline.monitor() as monitor:
            before = monitor.snapshot().steps
            list(pipeline)
        steps = monitor.snapshot().steps
        assert before is not None
        assert (before.steps, before.waits.count, before.worked) == (0, 0, 0.0)
        assert steps is not None
        assert steps.steps == steps.waits.count == 8

    def test_entering_it_twice_ends_it_once(self) -> None:
        pipeline = train()
        with pipeline.monitor() as monitor:
            with monitor:
                list(pipeline)
            list(pipeline)
        assert "closed" in repr(monitor)
        assert monitor.snapshot().stages[0].delivered == 128

    def test_an_ended_run_has_no_verdict_afterwards(self) -> None:
        pipeline = train()
        list(pipeline)
        with pipeline.monitor() as monitor:
            assert monitor.verdict().cause == "nothing"
        assert monitor.scalars()["data/rate"] == 0.0

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
    @pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
    def test_in_a_fork_it_is_closed_and_keeps_its_last_snapshot(self) -> None:
        """Also if its thread is at work in that moment, so that its lock is held there for ever."""
        pipeline = train()
        with pipeline.monitor() as monitor:
            list(pipeline)
            seen, held, may_go = monitor.snapshot(), threading.Event(), threading.Event()

            def hold() -> None:
                with monitor._collector._lock:
                    held.set()
                    may_go.wait(PATIENCE)

            holder = threading.Thread(target=hold)
            holder.start()
            held.wait()
            child = os.fork()
            if child == 0:
                os._exit(0 if _is_frozen(monitor, seen) else 1)
            may_go.set()
            holder.join()
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _is_frozen(monitor: Monitor, seen: Snapshot) -> bool:
    """Called in the fork, which must neither wait nor raise."""
    signal.alarm(int(PATIENCE))  # what waits there ends
    try:
        monitor.close()
        monitor.verdict()
        last = monitor.snapshot()
    except BaseException:
        return False
    return "closed" in repr(monitor) and last.seconds >= seen.seconds and last == monitor.snapshot()


class TestVerdicts:
    def test_no_verdict_before_anything_has_moved(self) -> None:
        with sync.Coordinator().monitor() as monitor:
            verdict = monitor.verdict()
        assert verdict.cause == "nothing"
        assert str(verdict) == "too little has happened yet for a verdict"

    def test_nothing_of_an_epoch_of_no_examples(self) -> None:
        pipeline = inputs.items([]).prepare(double, workers=2).batch(8)
        with pipeline.monitor() as monitor:
            assert list(pipeline) == []
        assert monitor.verdict().cause == "nothing"
        assert monitor.history[-1].stages[0].delivered == 0

    def test_a_function_that_raises_leaves_sums_that_agree(self) -> None:
        def fails(item: int) -> int:
            if item == 7:
                raise ValueError("seven")
            return item

        pipeline = inputs.items(range(64)).prepare(fails, workers=2).batch(8)
        with pipeline.monitor() as monitor:
            with pytest.raises(ExceptionGroup):
                list(pipeline)
            seen = monitor.snapshot()
        (stage,), (queue,) = seen.stages, seen.queues
        assert stage.taken == stage.delivered + stage.skipped + stage.in_flight
        assert queue.enqueued == queue.dequeued + queue.size + queue.held

    @pytest.mark.slow("png")
    @pytest.mark.parametrize("ending", ["html", "png"])
    def test_a_file_that_cannot_be_written_raises(self, ending: str, tmp_path: Path) -> None:
        if ending == "png":
            pytest.importorskip("matplotlib")
        with sync.Coordinator().monitor() as monitor:
            with pytest.raises(OSError, match="nowhere"):
                monitor.save(tmp_path / "nowhere" / f"run.{ending}")
            with pytest.raises(OSError, match="nowhere"):
                monitor.trace(tmp_path / "nowhere" / "run.json", seconds=60).stop()
        assert list(tmp_path.iterdir()) == []

    def test_time_before_the_run_does_not_count(self) -> None:
        """Else workers that came a second ago would be a fraction of one, by the mean."""
        run = usual(3)
        idle = [
            replace(run.seen[0], seconds=run.seen[0].seconds - back, stages=())
            for back in range(30, 0, -1)
        ]
        monitor = sync.Coordinator().monitor()
        monitor.close()
        monitor._history = deque([*idle, *run.seen, run.now])
        earlier, later = monitor._window(20.0)
        assert later is run.now
        assert earlier in (idle[-1], run.seen[0])

    def test_scalars_are_flat(self) -> None:
        pipeline = train()
        with pipeline.monitor() as monitor:
            list(pipeline)
        scalars = monitor.scalars()
        assert {"data/rate", "data/step_wait", "data/double/busy"} <= scalars.keys()

    @pytest.mark.parametrize("seconds", [-1, "ten", float("nan")])
    def test_seconds_are_checked(self, seconds: Any) -> None:
        monitor = sync.Coordinator().monitor()
        with pytest.raises(InvalidArgumentError, match="seconds"):
            monitor.verdict(seconds)

    @pytest.mark.parametrize("of", [None, 3, sync.Coordinator, sync.FIFOQueue, sync.Latest(1)])
    def test_an_object_without_a_watch_is_refused(self, of: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="of: got"):
            Monitor(of)

    def test_a_log_line_a_minute_and_a_warning_when_data_are_late(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = sync.FIFOQueue(1)
        with sync.Coordinator() as coord, coord.monitor(log=True) as monitor:
            coord.start(inputs.prepare(range(10), abs, into=queue))
            list(monitor.steps(queue))
            reader = threading.Thread(target=lambda: list(monitor.steps(sync.FIFOQueue(1))))
            del reader
            with caplog.at_level(logging.INFO, "aioqueue"):
                monitor._take_sample(20 * 60)
        texts = [record.message for record in caplog.records if "per second" in record.message]
        assert len(texts) == 1


async def numbers() -> AsyncIterator[int]:
    for number in range(8):
        yield number


def test_an_async_source_is_a_separate_stage() -> None:
    pipeline = inputs.from_iterable(numbers).prepare(double)
    with pipeline.monitor() as monitor:
        assert len(list(pipeline)) == 8
    assert [stage.name for stage in monitor.history[-1].stages] == ["read", "double"]
