"""Batchers whose workers die, and that are called from several worlds."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import gc
import inspect
import logging
import math
import os
import pickle
import re
import signal
import sys
import threading
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_process
import pytest

import aioqueue
from aioqueue import sync
from tests.batcher.models import NEVER, Model, batcher_of, begun
from tests.batcher.test_batcher import Calls, raised_by, workers_alive
from tests.kit.worlds import PATIENCE, AsyncioWorld, ThreadWorld, World, spin_until


class TestAnotherLoop:
    """For example, a fixture has entered the block in the loop of the module."""

    async def model(self, batch: list[int]) -> list[int]:
        return batch

    async def refused(self, batcher: aioqueue.Batcher[int, int], why: str) -> None:
        reported = rf"^a call of Batcher 'scores': the event loop .* {why}, .*loop_scope=.module"
        with pytest.raises(RuntimeError, match=reported):
            await batcher(1)
        assert batcher.statistics().requests == 0

    def test_while_the_loop_of_the_block_does_not_run(self) -> None:
        batcher = aioqueue.Batcher(self.model, name="scores")
        home = asyncio.new_event_loop()
        home.run_until_complete(batcher.__aenter__())
        asyncio.run(self.refused(batcher, "does not run while this one does"))
        home.run_until_complete(batcher.__aexit__(None, None, None))
        home.close()

    def test_when_the_loop_of_the_block_is_closed(self) -> None:
        batcher = aioqueue.Batcher(self.model, name="scores")
        home = asyncio.new_event_loop()
        home.run_until_complete(batcher.__aenter__())
        (worker,) = asyncio.all_tasks(home)
        home.close()
        asyncio.run(self.refused(batcher, "has been closed"))
        worker._log_destroy_pending = False  # type: ignore[attr-defined]  # nobody ends it any more

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_when_the_loop_of_the_block_was_freed(self) -> None:
        """Its tasks will never answer: threads that wait get an error when the block is freed."""
        home, begun = asyncio.new_event_loop(), asyncio.Event()
        batchers: list[aioqueue.Batcher[int, int]] = []
        reported: list[str] = []

        async def never(values: list[int]) -> list[int]:
            begun.set()
            await asyncio.Event().wait()
            return values

        async def serve() -> None:
            async with aioqueue.Batcher(never, max_batch=1, max_wait=0) as batcher:
                batchers.append(batcher)
                await asyncio.Event().wait()

        def ask(number: int) -> None:
            with pytest.raises(aioqueue.QueueClosedError, match="was stopped") as caught:
                batchers[0].sync(number)
            reported.append(str(caught.value))

        server = home.create_task(serve())
        while not batchers:
            home.run_until_complete(asyncio.sleep(0))
        askers = [threading.Thread(target=ask, args=(n,), daemon=True) for n in range(2)]
        for asker in askers:
            asker.start()
        home.run_until_complete(asyncio.wait_for(begun.wait(), PATIENCE))
        for task in asyncio.all_tasks(home):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        home.close()
        del server, home, task
        gc.collect()
        for asker in askers:
            asker.join(PATIENCE)
        assert len(reported) == 2

    def test_both_of_which_run(self) -> None:
        entered, asked = threading.Event(), threading.Event()
        batchers: list[aioqueue.Batcher[int, int]] = []

        async def serve() -> None:
            async with aioqueue.Batcher(self.model) as batcher:
                batchers.append(batcher)
                entered.set()
                await asyncio.to_thread(asked.wait, PATIENCE)

        async def ask() -> int:
            return await batchers[0](1)

        server = threading.Thread(target=asyncio.run, args=(serve(),))
        server.start()
        assert entered.wait(PATIENCE)
        assert asyncio.run(ask()) == 1
        asked.set()
        server.join(PATIENCE)


class Interrupt(BaseException):
    """Stops a batcher, as Ctrl-C does."""


class TestDyingWorkers:
    async def test_fail_all_callers(self, world: World, model_here: Model) -> None:
        """Those in the batch, in the queue, those that wait for room, and later ones."""
        queue = aioqueue.FIFOQueue(2)
        operations = []
        with pytest.raises(aioqueue.WorkerDiedError) as left:
            async with batcher_of(
                world, model_here, queue=queue, max_batch=1, max_wait=0, name="scores"
            ) as batcher:
                calls = Calls(world, batcher)
                operations += await calls.begin_running(model_here, "exit")
                operations += await calls.begin(1, 2, 3)
                model_here.gate.open()
                for operation in operations:
                    failure = await raised_by(operation)
                    assert isinstance(failure, aioqueue.WorkerDiedError)
                    assert isinstance(failure.__cause__, SystemExit)
                    assert str(failure) == (
                        "a worker of Batcher 'scores' has died:"
                        " SystemExit: the model has had enough"
                    )
                with pytest.raises(aioqueue.WorkerDiedError):
                    await batcher(4)
                assert "failed" in repr(batcher)
        assert isinstance(left.value.__cause__, SystemExit)
        assert model_here.batches == [["exit"]]
        assert batcher.statistics().in_flight == 0
        assert workers_alive("scores") == []

    async def test_let_others_finish_their_batches(self, world: World, model_here: Model) -> None:
        with pytest.raises(aioqueue.WorkerDiedError):
            async with batcher_of(world, model_here, max_batch=1, max_wait=0, workers=2) as batcher:
                calls = Calls(world, batcher)
                operations = await calls.begin_running(model_here, 1)
                operations += await calls.begin("exit at once")
                assert isinstance(await raised_by(operations[1]), aioqueue.WorkerDiedError)
                assert not operations[0].done
                model_here.gate.open()
                assert await operations[0].result() == 2

    async def test_do_not_hide_what_the_block_raises(self, world: World, model_here: Model) -> None:
        with pytest.raises(KeyError):
            async with batcher_of(world, model_here) as batcher:
                with pytest.raises(aioqueue.WorkerDiedError):
                    await batcher("exit")
                raise KeyError

    @pytest.mark.parametrize("has_batch", [True, False])
    def test_cancelled_by_other_code(self, has_batch: bool) -> None:
        """`asyncio.all_tasks` gives access to them."""
        world = AsyncioWorld()
        model = Model("task")

        async def body() -> None:
            with pytest.raises(aioqueue.WorkerDiedError, match="has died: CancelledError"):
                async with aioqueue.Batcher(
                    model.function, 1 if has_batch else 2, NEVER, name="scores"
                ) as batcher:
                    model.gate.shut()
                    operations = await Calls(world, batcher).begin(1)
                    await world.until(lambda: batcher.statistics().in_flight == has_batch)
                    await world.until(lambda: len(model.batches) == has_batch)
                    (worker,) = (
                        task
                        for task in asyncio.all_tasks()
                        if task.get_name() == "aioqueue-scores-0"
                    )
                    worker.cancel()
                    assert isinstance(await raised_by(operations[0]), aioqueue.WorkerDiedError)

        world.run(body)

    @pytest.mark.parametrize("attempt", range(6))  # trio wakes the tasks in a random order
    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test_stopped_while_the_function_makes_another_cancellation_of_it(
        self, backend: str, attempt: int
    ) -> None:
        """In trio, too, where no task is cancelled by asyncio's exception."""
        pytest.importorskip(backend)
        is_running: anyio.Event
        batcher: aioqueue.Batcher[int, int]

        async def function(batch: list[int]) -> list[int]:
            is_running.set()
            try:
                await anyio.sleep_forever()
            except BaseException:
                raise asyncio.CancelledError from None
            return batch

        async def ask() -> None:
            with pytest.raises(aioqueue.QueueClosedError, match="was stopped"):
                await batcher(1)

        async def cancel_the_block_that_ends(scope: anyio.CancelScope) -> None:
            while ", running" in repr(batcher):
                await anyio.lowlevel.checkpoint()
            scope.cancel()

        async def main() -> None:
            nonlocal batcher, is_running
            batcher, is_running = aioqueue.Batcher(function, 1), anyio.Event()
            async with anyio.create_task_group() as tasks:
                with anyio.CancelScope() as scope:
                    async with batcher:
                        tasks.start_soon(ask)
                        await is_running.wait()
                        tasks.start_soon(cancel_the_block_that_ends, scope)
                assert scope.cancelled_caught

        anyio.run(main, backend=backend)

    def test_cancelled_before_the_first_step(self) -> None:
        world = AsyncioWorld()

        async def body() -> None:
            with pytest.raises(aioqueue.WorkerDiedError, match="cancelled before its first step"):
                async with aioqueue.Batcher(Model("task").function, name="scores") as batcher:
                    for task in asyncio.all_tasks():
                        if task.get_name().startswith("aioqueue-scores"):
                            task.cancel()
                    with pytest.raises(aioqueue.WorkerDiedError):
                        await batcher(1)

        world.run(body)

    @pytest.mark.parametrize("started", [0, 2])
    async def test_that_cannot_be_started(
        self, world: World, monkeypatch: pytest.MonkeyPatch, started: int
    ) -> None:
        """For example, no thread is left."""
        left = [None] * started

        class Thread(threading.Thread):
            def start(self) -> None:
                if not left:
                    raise RuntimeError("can't start new thread")
                left.pop()
                super().start()

        monkeypatch.setattr("aioqueue.batcher.workers.threading.Thread", Thread)
        batcher = batcher_of(world, Model("thread").function, workers=3, name="scores")
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await batcher.__aenter__()
        monkeypatch.undo()
        await world.until(lambda: not workers_alive("scores"))
        with pytest.raises(aioqueue.WorkerDiedError):
            await batcher(1)

    def test_an_event_loop_that_cannot_be_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def start(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        batcher = sync.Batcher(Model("task").function)
        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            batcher.__enter__()

    @pytest.mark.parametrize("is_stopped", [False, True])
    async def test_that_keep_their_block_waiting_are_named(
        self,
        world: World,
        model_here: Model,
        is_stopped: bool,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr("aioqueue.batcher.batcher.SLOW_STOP", 0.0)
        if is_stopped and model_here.where == "task":
            pytest.skip("tasks are cancelled, and end at once")

        def allow_to_end() -> None:
            spin_until(lambda: caplog.messages)
            model_here.gate.open()

        waits = threading.Thread(target=allow_to_end)
        with contextlib.suppress(Interrupt):
            async with batcher_of(world, model_here, max_batch=1, name="scores") as batcher:
                await Calls(world, batcher).begin_running(model_here, 1)
                waits.start()
                if is_stopped:
                    raise Interrupt
        waits.join()
        until = "120 s in all" if is_stopped else "all calls to be answered"
        (message,) = caplog.messages
        first, _, second = message.partition("\n  ")
        assert first.startswith("Batcher 'scores': 1 worker still running 5 s after the ")
        assert first.endswith(f"; waiting for {until}:")
        assert re.match(r"aioqueue-scores-0 in .*models\.py:\d+ Model\.", second), second

    def test_that_outlive_their_block_are_named(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("aioqueue.batcher.batcher.DEFAULT_GRACE", 0.01)
        world, model = AsyncioWorld(), Model("thread")

        async def body() -> None:
            with caplog.at_level(logging.WARNING, "aioqueue"), anyio.CancelScope() as scope:
                async with aioqueue.Batcher(
                    model.function, max_batch=1, where=model.where, name="scores"
                ) as batcher:
                    await Calls(world, batcher).begin_running(model, 1)
                    scope.cancel()
                    await anyio.sleep_forever()

        world.run(body)
        model.gate.open()
        (message,) = caplog.messages
        first, place = message.splitlines()
        assert first == "Batcher 'scores' stopped with workers still running: aioqueue-scores-0"
        assert place.startswith("  aioqueue-scores-0 in /")
        spin_until(lambda: not workers_alive("scores"))


def doubled(values: list[Any]) -> list[Any]:
    """Runs in a process of its own."""
    if "kill" in values:
        os.kill(os.getpid(), signal.SIGKILL)
    return [2 * value for value in values]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_the_function_may_use_a_pool_of_processes() -> None:
    """A process that is killed fails its batch, and no other."""

    async def in_processes(values: list[Any]) -> list[Any]:
        return await anyio.to_process.run_sync(doubled, values)

    async def main() -> None:
        async with aioqueue.Batcher(in_processes, 2) as batcher:
            assert [await batcher(1), await batcher(2)] == [2, 4]
            ends = await asyncio.gather(batcher("kill"), batcher(3), return_exceptions=True)
            assert {type(end) for end in ends} == {anyio.BrokenWorkerProcess}
            assert [await batcher(4), await batcher(5)] == [8, 10]

    asyncio.run(main())


class TestTheOtherFace:
    def test_threads_and_tasks_call_one_batcher(self, model: Model) -> None:
        answers: dict[int, int] = {}

        async def main() -> None:
            async with aioqueue.Batcher(model.function, where=model.where, max_batch=8) as batcher:
                assert batcher.sync.aio is batcher
                assert batcher.sync is batcher.sync.sync
                assert batcher.aio is batcher

                def ask(number: int) -> None:
                    answers[number] = batcher.sync(number)

                threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
                for thread in threads:
                    thread.start()
                ours = await asyncio.gather(*[batcher(number) for number in range(20, 40)])
                for thread in threads:
                    await asyncio.to_thread(thread.join)
                assert ours == [2 * number for number in range(20, 40)]

        asyncio.run(main())
        assert answers == {number: 2 * number for number in range(20)}

    def test_tasks_of_several_event_loops_call_one_batcher(self, model: Model) -> None:
        results: list[list[int]] = []

        async def ask(batcher: aioqueue.Batcher[int, int]) -> None:
            results.append(list(await asyncio.gather(*[batcher(number) for number in range(50)])))

        with sync.Batcher(model.function, where=model.where, max_batch=8) as batcher:
            threads = [
                threading.Thread(target=asyncio.run, args=(ask(batcher.aio),)) for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert results == [[2 * number for number in range(50)]] * 4

    def test_callers_of_an_ended_event_loop(self, model: Model) -> None:
        with sync.Batcher(
            model.function, where=model.where, max_batch=2, max_wait=NEVER
        ) as batcher:
            loop = asyncio.new_event_loop()
            task = loop.create_task(batcher.aio(1))
            loop.run_until_complete(asyncio.sleep(0))
            assert batcher.statistics().requests == 1
            loop.close()
            assert batcher(2) == 4
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    def test_a_blocking_call_is_refused_where_an_event_loop_runs(self, model: Model) -> None:
        async def main() -> None:
            async with aioqueue.Batcher(model.function, where=model.where) as batcher:
                with pytest.raises(RuntimeError, match=r"use `await batcher\.aio\(\.\.\.\)` here"):
                    batcher.sync(1)
                with pytest.raises(RuntimeError, match=r"use `async with batcher\.aio` here"):
                    sync.Batcher(model.function, where=model.where).__enter__()

        asyncio.run(main())


class TestItsOwnFunction:
    """A call by its own function would wait for a worker while it occupies one."""

    @pytest.mark.parametrize("workers", [1, 2])
    def test_may_not_call_it_from_a_thread(self, workers: int) -> None:
        def ask_again(values: list[int]) -> list[int]:
            return [batcher(value - 1) if value else 0 for value in values]

        with sync.Batcher(ask_again, workers=workers) as batcher:
            with pytest.raises(RuntimeError, match="was called by its own function"):
                batcher(2)
            assert batcher(0) == 0

    @pytest.mark.parametrize("workers", [1, 2])
    def test_nor_from_a_task_and_those_that_it_starts(self, workers: int) -> None:
        async def main() -> None:
            async def ask_again(values: list[int]) -> list[int]:
                later = [batcher(value - 1) for value in values if value]
                return [*await asyncio.gather(*later), *(0 for value in values if not value)]

            async with aioqueue.Batcher(ask_again, workers=workers) as batcher:
                with pytest.raises(RuntimeError, match="was called by its own function"):
                    await batcher(2)
                assert await batcher(0) == 0

        asyncio.run(main())

    def test_tasks_that_it_leaves_behind_may_call_it(self) -> None:
        """In a context that still says of which call it was a part, when that is over."""

        async def main() -> None:
            is_over = asyncio.Event()
            tasks: list[asyncio.Task[int]] = []

            async def call_later() -> int:
                await is_over.wait()
                return await batcher(2)

            async def leave_behind(values: list[int]) -> list[int]:
                if 1 in values:
                    tasks.append(asyncio.create_task(call_later()))
                return values

            async with aioqueue.Batcher(leave_behind) as batcher:
                assert await batcher(1) == 1
                is_over.set()
                assert await tasks[0] == 2

        asyncio.run(main())

    def test_may_call_another(self) -> None:
        def double(values: list[int]) -> list[int]:
            return [2 * value for value in values]

        another: sync.Batcher[int, int] = sync.Batcher(double)

        def ask_another(values: list[int]) -> list[int]:
            return [1 + another(value) for value in values]

        with another, sync.Batcher(ask_another) as batcher:
            assert batcher(3) == 7


class TestArguments:
    @pytest.mark.parametrize("face", [aioqueue.Batcher, sync.Batcher])
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"function": 3}, "function: got 3; expected a function that gets a list"),
            ({"max_batch": 0}, "max_batch: got 0; expected an int >= 1"),
            ({"max_batch": 1.5}, r"max_batch: got 1\.5; expected an int >= 1"),
            ({"max_wait": -1}, "max_wait: got -1; expected a number of seconds >= 0"),
            ({"max_wait": None}, "max_wait: got None; expected a number of seconds >= 0"),
            ({"workers": 0}, "workers: got 0; expected an int >= 1"),
            (
                {"where": "moon"},
                "where: got 'moon'; expected 'auto', 'task', 'thread' or 'process'",
            ),
            ({"where": "task"}, "got 'plain' with where='task'; expected a coroutine function"),
            ({"on_full": "cry"}, "on_full: got 'cry'; expected 'wait' or 'refuse'"),
            ({"name": 3}, "name: got 3; expected a string or None"),
            ({"queue": 64}, "queue: got 64; expected a FIFOQueue or PriorityQueue of plain obj"),
            ({"queue": aioqueue.FIFOQueue(5, "int64", ())}, "queue: got .* of plain objects"),
            ({"queue": aioqueue.RandomShuffleQueue(5, 0)}, "queue: got .* of plain objects"),
            (
                {"queue": aioqueue.FIFOQueue(31)},
                "queue: got a FIFOQueue with a capacity of 31; expected at least max_batch, 32",
            ),
            (
                {"queue": aioqueue.PriorityQueue(5)},
                "capacity of 5; expected at least max_batch",
            ),
        ],
    )
    def test_wrong_ones_are_refused(self, face: Any, options: dict[str, Any], message: str) -> None:
        def plain(values: list[Any]) -> list[Any]:
            return values

        with pytest.raises(aioqueue.InvalidArgumentError, match=message):
            face(**{"function": plain, **options})

    def test_a_coroutine_function_runs_on_no_thread(self) -> None:
        with pytest.raises(aioqueue.InvalidArgumentError, match="expected a plain function, or"):
            aioqueue.Batcher(Model("task").function, where="thread")

    @pytest.mark.parametrize("how", ["used", "closed"])
    def test_a_queue_that_was_in_use_is_refused(self, how: str) -> None:
        queue = aioqueue.FIFOQueue(3)
        if how == "used":
            queue.enqueue_nowait(1)
        else:
            queue.close()
        with pytest.raises(aioqueue.InvalidArgumentError, match="is or was in use; expected a new"):
            aioqueue.Batcher(Model("thread").function, queue=queue)

    def test_a_queue_may_be_given_by_either_face(self) -> None:
        queue = sync.FIFOQueue(32)
        with sync.Batcher(Model("thread").function, queue=queue, max_wait=0) as batcher:
            assert batcher(1) == 2
        assert queue.statistics().enqueued == 1

    def test_an_object_with_an_async_call_is_a_coroutine_function(self) -> None:
        class Callable:
            async def __call__(self, values: list[int]) -> list[int]:
                return values

        with sync.Batcher(Callable()) as batcher:
            assert batcher(1) == 1
            assert "1 task" in repr(batcher)


def test_both_faces_take_the_same_arguments() -> None:
    assert inspect.signature(aioqueue.Batcher) == inspect.signature(sync.Batcher)
    ours = inspect.signature(aioqueue.Batcher.__call__).parameters
    theirs = dict(inspect.signature(sync.Batcher.__call__).parameters)
    assert theirs.pop("timeout").default is None
    assert list(theirs.values()) == list(ours.values())


class TestWhatThereIsToSee:
    async def test_statistics(self, world: World, model: Model) -> None:
        async with batcher_of(world, model, max_batch=2, max_wait=0) as batcher:
            calls = Calls(world, batcher)
            operations = await calls.begin_running(model, 0)
            operations += await calls.begin(1, 2, ValueError())
            counts = batcher.statistics()
            assert (counts.requests, counts.waiting, counts.in_flight) == (4, 3, 1)
            assert (counts.batches, counts.batch_sizes) == (1, {1: 1})
            assert counts.function_seconds == counts.latency_seconds == 0
            model.gate.open()
            assert await operations[1].result() == 2
            await raised_by(operations[3])
        counts = batcher.statistics()
        assert (counts.requests, counts.answered, counts.failed) == (4, 3, 1)
        assert (counts.waiting, counts.waiting_for_room, counts.in_flight) == (0, 0, 0)
        assert counts.capacity == 1024
        assert sum(size * count for size, count in counts.batch_sizes.items()) == 4
        assert list(counts.batch_sizes) == sorted(counts.batch_sizes)
        assert counts.batches == sum(counts.batch_sizes.values())
        assert 0 < counts.queue_seconds < counts.latency_seconds
        assert 0 < counts.function_seconds < counts.latency_seconds
        assert sum(counts.latencies.values()) == 4
        assert max(counts.latencies) == math.inf

    def test_statistics_are_plain_values(self) -> None:
        counts = aioqueue.Batcher(Model("task").function).statistics()
        assert pickle.loads(pickle.dumps(counts)) == counts
        assert dataclasses.asdict(counts)["batches"] == 0
        with pytest.raises(dataclasses.FrozenInstanceError):
            counts.batches = 3  # type: ignore[misc]

    async def test_repr(self, world: World, model: Model) -> None:
        face = "aioqueue.sync" if isinstance(world, ThreadWorld) else "aioqueue"
        batcher = batcher_of(world, model, max_batch=2, workers=2, name="scores")
        plural = {"process": "processes"}.get(model.where, f"{model.where}s")
        start = f"<{face}.Batcher 'scores' batches of up to 2 on 2 {plural}, "
        assert repr(batcher) == f"{start}not entered>"
        async with batcher:
            calls = Calls(world, batcher)
            await calls.begin_running(model, 1, 2)
            assert repr(batcher) == f"{start}running, 0 waiting, 2 in flight>"
            model.gate.open()
        assert repr(batcher) == f"{start}closed>"

    def test_the_name_is_made_up_from_the_function(self) -> None:
        def score(values: list[int]) -> list[int]:
            return values

        batcher = aioqueue.Batcher(functools.partial(score))
        assert batcher.name.startswith("score-")
        assert batcher.sync.name == batcher.name
        assert begun(batcher) == 0
