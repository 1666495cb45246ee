"""Runs of pipelines: how they end, fail, are interrupted and left; who may take from them, when."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from aioqueue import OutOfRangeError
from aioqueue.inputs import Entry, Pipeline, Source, from_iterable, items, numbers, read_lines
from aioqueue.pipeline import epochs as epochs_module
from aioqueue.pipeline import run as runs_module
from aioqueue.pipeline.epochs import Epoch, Epochs
from aioqueue.pipeline.run import AsyncRun
from aioqueue.preemption import ALARM, PreemptionAlarm
from tests.kit.going import Counting, epochs_of, first, results
from tests.kit.worlds import PATIENCE, TaskWorld, ThreadWorld, World, spin_until

ROOT = Path(__file__).resolve().parents[2]


def tenfold(item: int) -> int:
    return 10 * item


async def tenfold_in_a_task(item: int) -> int:
    await anyio.lowlevel.checkpoint()
    return 10 * item


def pid(item: int) -> int:
    return os.getpid()


def bad_at(which: int, error: Exception) -> Callable[[int], int]:
    def function(item: int) -> int:
        if item == which:
            raise error
        return item

    return function


class Watched(Source[int]):
    """Ten numbers; knows how many runs through it are open."""

    def __init__(self, *, blocking: bool = False, error: Exception | None = None) -> None:
        super().__init__("watched")
        self.blocking = blocking
        self.open = 0
        self._error = error

    def entries(self) -> Iterator[Entry[int]]:
        self.open += 1
        try:
            for number in range(10):
                yield Entry(number, 0, number)
        finally:
            self.open -= 1
            if self._error is not None:
                raise self._error


class _Own(BaseException):
    """A custom one."""


class Lingering:
    """Waits for ever, but for the first item, and ends slowly when it is cancelled in that."""

    def __init__(self) -> None:
        self.running = 0
        self.cleaning = 0

    async def __call__(self, item: int) -> int:
        if item == 0:
            return item
        self.running += 1
        try:
            await anyio.sleep_forever()
        finally:
            self.cleaning += 1
            with anyio.CancelScope(shield=True):
                for _ in range(50):
                    await anyio.lowlevel.checkpoint()
            self.running -= 1
        return item


def _group(message: str) -> BaseException:
    return BaseExceptionGroup(message, [KeyboardInterrupt(message)])


class TestFailures:
    @pytest.mark.parametrize("error", [OutOfRangeError("mine"), StopIteration("mine")])
    async def test_what_resembles_an_end_is_a_failure(self, world: World, error: Exception) -> None:
        bad = bad_at(5, error)
        for pipeline in (
            numbers(9).filter(bad),
            numbers(9).filter(bad).prepare(tenfold),
            numbers(9).prepare(tenfold).filter(bad_at(50, error)),
            numbers(9).batch(2, collate=lambda rows: bad(rows[1])),
            numbers(9).prepare(bad),
        ):
            with pytest.raises(ExceptionGroup) as failure:
                await results(world, pipeline)
            (only,) = failure.value.exceptions
            assert "mine" in f"{only} {only.__cause__}"

    @pytest.mark.parametrize("function", [bad_at(5, ValueError("mine")), abs])
    async def test_it_is_traced_to_where_the_next_was_asked_for(
        self, world: World, function: Callable[[int], Any]
    ) -> None:
        """And not through the join that has found it."""
        collate: Any = None if function is not abs else lambda rows: bad_at(0, ValueError())(0)
        with pytest.raises(ExceptionGroup) as failed:
            await results(world, numbers(9).prepare(function).batch(3, collate=collate))
        reported = "".join(traceback.format_exception(failed.value))
        assert "coordination" not in reported.partition("ValueError")[0].partition("+-+")[0]

    @pytest.mark.slow(every=20)
    @pytest.mark.parametrize("where", ["thread", "task", "filter", "source"])
    @pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, _Own, _group])
    async def test_what_ends_more_than_an_item_is_raised_as_it_is(
        self, world: World, kind: Callable[[str], BaseException], where: str
    ) -> None:
        """A coordinator reports these in a `BaseExceptionGroup`, which is no `Exception`."""

        def bad(item: int) -> int:
            if item == 5:
                raise kind("enough")
            return item

        async def bad_in_a_task(item: int) -> int:
            return bad(item)

        def source() -> Iterator[int]:
            yield from map(bad, range(9))

        pipelines: dict[str, Callable[[], Any]] = {
            "thread": lambda: numbers(9).prepare(bad),
            "task": lambda: numbers(9).prepare(bad_in_a_task),
            "filter": lambda: numbers(9).filter(bad).prefetch(1),
            "source": lambda: from_iterable(source).prepare(tenfold),
        }
        # Where all is Ctrl-C, that is raised itself, with the group as its cause.
        is_interrupt = kind in (KeyboardInterrupt, _group)
        with pytest.raises(KeyboardInterrupt if is_interrupt else BaseExceptionGroup) as raised:
            await results(world, pipelines[where]())
        group = raised.value.__cause__ if is_interrupt else raised.value
        assert isinstance(group, BaseExceptionGroup)
        (failure,) = group.exceptions
        assert isinstance(failure, type(kind("")))
        gc.collect()  # nothing that was dropped tells it again

    def test_what_ends_an_event_loop_is_raised_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As by a signal handler, wherever it strikes: also in a task that nobody awaits."""

        def exit_now(run: object) -> None:
            raise SystemExit(7)

        reported: list[dict[str, Any]] = []

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what))
            await anext(aiter(numbers(9).batch(3)))

        monkeypatch.setattr(AsyncRun, "_note_last_queue", exit_now)
        with pytest.raises(SystemExit, match="7"):
            asyncio.run(main())
        gc.collect()
        assert reported == []

    @pytest.mark.parametrize("stage", ["alone", "thread", "task", "filter"])
    @pytest.mark.parametrize("kind", [StopAsyncIteration, StopIteration, asyncio.CancelledError])
    async def test_the_end_of_something_else_is_not_that_of_a_source(
        self, world: World, kind: type[BaseException], stage: str
    ) -> None:
        """A call of a plain iterator in a task would take some of these for its end."""

        def source() -> Iterator[int]:
            yield from range(5)
            raise kind

        def is_wanted(item: int) -> bool:
            if item == 5:
                raise kind
            return True

        pipelines: dict[str, Callable[[], Any]] = {
            "alone": lambda: Pipeline(from_iterable(source)),
            "thread": lambda: from_iterable(source).prepare(tenfold),
            "task": lambda: from_iterable(source).prepare(tenfold_in_a_task),
            "filter": lambda: numbers(9).filter(is_wanted).prefetch(1),
        }
        with pytest.raises((BaseExceptionGroup, asyncio.CancelledError)) as raised:
            await results(world, pipelines[stage]())
        reported = [raised.value, *getattr(raised.value, "exceptions", ())]
        reported += [error.__cause__ for error in reported if error.__cause__ is not None]
        assert any(isinstance(error, kind) for error in reported)

    async def test_a_clean_up_that_fails_is_reported(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        """By the run, or, where nobody waits for the thread that reads ahead, by the log."""
        has_ended = threading.Event()

        def source() -> Iterator[int]:
            try:
                yield from range(9)
            finally:
                has_ended.set()
                raise OSError("no clean-up")

        reported: list[BaseException | None] = []
        try:
            assert await results(world, from_iterable(source).take(3)) == [0, 1, 2]
        except ExceptionGroup as group:
            reported += group.exceptions
        await world.until(has_ended.is_set)

        def logged() -> list[BaseException | None]:
            return [one.exc_info[1] for one in caplog.records if one.exc_info]

        if not reported:
            await world.until(logged)
        reported += logged()
        assert list(map(str, reported)) == ["no clean-up"]

    async def test_a_source_that_runs_into_the_end_of_something_fails(self, world: World) -> None:
        class Broken(Source[int]):
            def entries(self) -> Iterator[Entry[int]]:
                yield Entry(0, 0, 0)
                raise OutOfRangeError("mine")

        for blocking in (False, True):
            for pipeline in (
                Pipeline(Broken("broken")),
                Broken("broken").prepare(tenfold),
                Broken("broken").prepare(tenfold_in_a_task),
            ):
                pipeline.source.blocking = blocking
                with pytest.raises(ExceptionGroup) as failure:
                    await results(world, pipeline)
                assert "mine" in str(failure.value.exceptions[0])

    @pytest.mark.parametrize("prepared", [False, True])
    async def test_a_failed_run_raises_its_failure(self, world: World, prepared: bool) -> None:
        """Nobody takes what comes after the failure for the whole."""
        bad = bad_at(2, ValueError("two"))
        pipeline = numbers(5).prepare(bad) if prepared else numbers(5).filter(bad)
        epochs: Any = pipeline.epochs(3)
        if isinstance(world, ThreadWorld):
            epoch = next(epochs)
            with pytest.raises(ExceptionGroup):
                list(epoch)
            for _ in range(2):
                with pytest.raises(RuntimeError, match="it has failed"):
                    next(epoch)
            with pytest.raises(RuntimeError, match="it has failed"):
                next(epochs)
            epochs.close()
        else:
            epoch = await anext(epochs)
            with pytest.raises(ExceptionGroup):
                [value async for value in epoch]
            for _ in range(2):
                with pytest.raises(RuntimeError, match="it has failed"):
                    await anext(epoch)
            with pytest.raises(RuntimeError, match="it has failed"):
                await anext(epochs)
            await epochs.aclose()

    async def test_a_failure_that_a_cancelled_call_has_met_is_reported(self, world: World) -> None:
        if not isinstance(world, TaskWorld):
            pytest.skip("threads are not cancelled")
        gate = threading.Event()

        def slow(item: int) -> int:
            gate.wait()
            return item

        pipeline = numbers(9).filter(bad_at(2, ValueError("two")))
        epoch: Any = aiter(pipeline.mix(numbers(9).prepare(slow), weights=[1e9, 1]))
        assert await anext(epoch) == 1
        operation = world.spawn(epoch.__anext__)
        await world.until(lambda: epoch._run.is_over)  # and waits for the slow worker
        operation.cancel()
        assert await operation.was_cancelled()
        gate.set()
        with pytest.raises(ExceptionGroup) as failure:
            await anext(epoch)
        assert failure.group_contains(ValueError, match="two")

    async def test_a_failure_of_closing_is_reported(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        pipeline = Watched(error=ValueError("closing")).filter(lambda _: True)
        with pytest.raises(ExceptionGroup) as failure:
            await results(world, pipeline)
        assert failure.group_contains(ValueError, match="closing")
        if isinstance(world, ThreadWorld):
            with pytest.raises(ExceptionGroup), pipeline.epochs(1) as epochs:
                next(next(epochs))
            for _ in pipeline:
                break
        else:
            with pytest.raises(ExceptionGroup):
                async with pipeline.epochs(1) as epochs:
                    await anext(await anext(epochs))
            async for _ in pipeline:
                break
        # Debug messages of asyncio have the name of this test, and so "closing".
        await world.until(lambda: "a pipeline that was left has failed" in caplog.text)
        assert "ValueError: closing" in caplog.text


class TestEnding:
    @pytest.mark.parametrize("blocking", [False, True])
    async def test_sources_are_closed(self, world: World, blocking: bool) -> None:
        source = Watched(blocking=blocking)
        for pipeline in (
            Pipeline(source),
            source.filter(lambda _: True),
            source.filter(lambda _: True).prepare(tenfold, max_in_flight=1, buffer_size=1),
            source.prepare(tenfold, max_in_flight=1, buffer_size=1),
            source.prepare(tenfold_in_a_task, max_in_flight=1, buffer_size=1, workers=1),
            source.shard(1, 2),
            source.take(1),
            numbers(3).mix(source),
        ):
            epochs = pipeline.epochs(3)  # is kept: it is not its being dropped that closes
            if isinstance(world, ThreadWorld):
                with epochs:
                    next(next(epochs))
                    next(next(epochs))
            else:
                async with epochs:
                    await anext(await anext(epochs))
                    await anext(await anext(epochs))
            await world.until(lambda: source.open == 0)

    @pytest.mark.parametrize("asked", ["raises", "is cancelled", "is left, and cancelled in that"])
    async def test_a_block_has_joined_however_it_is_left(self, world: World, asked: str) -> None:
        """Its workers take their time to clean up, and have done so when it is over."""
        if not isinstance(world, TaskWorld):
            pytest.skip("what is left in threads is below")
        worker = Lingering()
        operation = world.spawn(self._leave, worker, asked)
        await world.until(lambda: worker.running == 2)
        if asked == "raises":
            with pytest.raises(ValueError, match="of the block"):
                await operation.result()
        elif asked == "is cancelled":
            operation.cancel()
            assert await operation.was_cancelled()
        else:
            await world.until(lambda: worker.cleaning == 2)
            operation.cancel()
            assert await operation.was_cancelled()
        assert worker.running == 0

    async def _leave(self, worker: Lingering, asked: str) -> None:
        async with numbers(100).prepare(worker, workers=2).epochs(None) as epochs:
            epoch = await anext(epochs)
            assert await anext(epoch) == 0
            while worker.running < 2:
                await anyio.lowlevel.checkpoint()
            if asked == "raises":
                raise ValueError("of the block")
            if asked == "is cancelled":
                await anext(epoch)

    def test_a_block_joins_also_where_another_thread_takes(self) -> None:
        before = {*threading.enumerate()}
        begun = threading.Event()

        def take() -> None:
            with pytest.raises(RuntimeError, match="it belongs to was left"):
                for _ in epoch:
                    begun.set()

        with pytest.raises(_Own), numbers(10**9).prepare(tenfold, workers=2).epochs(1) as epochs:
            epoch = next(epochs)
            taker = threading.Thread(target=take)
            taker.start()
            assert begun.wait(PATIENCE)
            raise _Own
        assert {*threading.enumerate()} <= {*before, taker}
        taker.join(PATIENCE)

    async def test_an_epoch_of_a_left_run_raises_an_error(self, world: World) -> None:
        for pipeline in (numbers(5).prepare(tenfold), numbers(5).filter(bool)):
            if isinstance(world, ThreadWorld):
                epoch = next(iter(pipeline.epochs(2)))
                with pytest.raises(RuntimeError, match=r"was dropped, .* in a variable while"):
                    next(epoch)
            else:
                with pytest.raises(RuntimeError, match=r"was dropped, .* in a variable while"):
                    await anext(await anext(pipeline.epochs(2)))

    def test_another_thread_may_close(self) -> None:
        taken = threading.Event()
        gate = threading.Event()
        reported: list[BaseException] = []

        def slow(item: int) -> int:
            if item == 1:
                gate.wait()
            return item

        epochs: Any = numbers(5).prepare(slow, workers=1).epochs(1)
        epoch = next(epochs)

        def consume() -> None:
            try:
                for _ in epoch:
                    taken.set()
            except RuntimeError as error:
                reported.append(error)

        consumer = threading.Thread(target=consume)
        consumer.start()
        taken.wait()
        closer = threading.Thread(target=epochs.close)
        closer.start()
        spin_until(lambda: epochs._run.is_over)
        gate.set()
        closer.join()
        consumer.join()
        assert "was left" in str(reported[0])

    def test_for_is_refused_in_an_event_loop(self) -> None:
        async def main() -> None:
            with pytest.raises(RuntimeError, match="use `async for` here"):
                next(numbers(3).prepare(tenfold).epochs(1))
            with pytest.raises(RuntimeError, match="use `async for` here"):
                next(iter(numbers(3).prepare(tenfold)))

        asyncio.run(main())

    async def test_the_faces_do_not_mix(self, world: World) -> None:
        epochs: Any = numbers(3).prepare(tenfold).epochs(2)
        if isinstance(world, ThreadWorld):
            next(epochs)
            with pytest.raises(RuntimeError, match=r"epochs\.close"):
                await epochs.aclose()
            epochs.close()
            return
        epoch = await anext(epochs)
        with pytest.raises(RuntimeError, match=r"epochs\.aclose"):
            epochs.close()
        with pytest.raises(TypeError, match="; continue with `async for`"):
            next(epochs)
        assert [value async for value in epoch] == [0, 10, 20]
        await epochs.aclose()

    @pytest.mark.slow
    @pytest.mark.usefixtures("nothing_is_left")
    def test_garbage_is_collected_in_the_workers_themselves(self) -> None:
        """A loop that is part of a cycle is dropped wherever the collector happens to run."""

        class Owner:
            loop: Any
            me: Owner

        def collecting(item: int) -> int:
            gc.collect()
            return item

        for _ in range(5):
            owner = Owner()
            owner.me, owner.loop = owner, iter(numbers(10**6).prepare(collecting, workers=2))
            next(owner.loop)
            del owner
        assert len(list(numbers(50).prepare(collecting, workers=2))) == 50
        # A call returns at once while another thread collects, so one may not be enough.
        spin_until(
            lambda: (
                gc.collect() >= 0
                and not [one for one in threading.enumerate() if "collecting" in one.name]
            )
        )

    @pytest.mark.slow
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
    def test_a_fork_has_no_workers_to_wait_for(self) -> None:
        program = """
import gc, os, warnings
warnings.simplefilter("ignore")
from aioqueue.inputs import numbers
loop = iter(numbers(10**6).prepare(lambda n: n))
assert next(loop) == 0
child = os.fork()
if not child:
    del loop
    gc.collect()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert next(loop) == 1
"""
        assert run_program(program) == ""

    @pytest.mark.slow
    @pytest.mark.parametrize("where", ["thread", "process"])
    def test_the_program_may_end_in_the_middle(self, where: str) -> None:
        program = f"""
from aioqueue.inputs import numbers
if __name__ == "__main__":
    epochs = numbers(10**6).prepare(abs, where={where!r}, workers=2).batch(4).epochs()
    epoch = next(epochs)
    print(next(epoch).tolist())
"""
        assert run_program(program) == "[0, 1, 2, 3]\n"

    async def test_the_documented_context_holds_for_workers(self, world: World) -> None:
        if not isinstance(world, TaskWorld):
            pytest.skip("threads have contexts of their own")
        number = ContextVar("number", default=0)

        async def reported(item: int) -> int:
            return number.get()

        number.set(7)
        assert await results(world, numbers(2).prepare(reported)) == [7, 7]


class TestInterrupts:
    """Ctrl-C may strike anywhere; a notebook keeps its traceback, and with that the frames."""

    @pytest.fixture
    def before(self) -> set[threading.Thread]:
        return set(threading.enumerate())

    @staticmethod
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    @pytest.mark.parametrize("function", [tenfold, tenfold_in_a_task])
    @pytest.mark.parametrize(
        ("kind", "method"),
        [(Epochs, "_epoch_of"), (Epoch, "_begin"), (PreemptionAlarm, "wake")],
    )
    def test_workers_end_though_the_traceback_is_kept(
        self,
        before: set[threading.Thread],
        monkeypatch: pytest.MonkeyPatch,
        kind: type,
        method: str,
        function: Callable[[int], Any],
    ) -> None:
        epochs = numbers(100).prepare(function, workers=2).epochs(None)
        if kind is not PreemptionAlarm:
            epoch = next(epochs)
            assert next(epoch) == 0
        else:
            monkeypatch.setattr(ALARM, "reasons", {self: "so that the next run asks it"})
        monkeypatch.setattr(kind, method, self.interrupt)
        with pytest.raises(KeyboardInterrupt) as kept:
            next(epoch if kind is Epoch else epochs)
        spin_until(lambda: {*threading.enumerate()} <= before)
        monkeypatch.undo()
        if kind is not PreemptionAlarm:
            with pytest.raises(RuntimeError, match="it was interrupted"):
                next(epoch)
        assert kept.value.__traceback__ is not None

    def test_what_is_half_made_is_dropped_quietly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for place, name in ((epochs_module, "ResumePoint"), (runs_module, "EpochRange")):
            monkeypatch.setattr(place, name, self.interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(numbers(3).epochs(None))
            monkeypatch.undo()
        gc.collect()  # what fails in that would be a warning, and so a failure


class TestTurns:
    async def test_an_epoch_that_was_never_begun_can_be_left(self, world: World) -> None:
        pipeline = numbers(4, shuffle=True, seed=5).filter(lambda _: True)
        whole = await epochs_of(world, pipeline.epochs(3))
        epochs: Any = pipeline.epochs(3)
        if isinstance(world, ThreadWorld):
            left = [next(epochs), next(epochs)]
            assert list(next(epochs)) == whole[2]
        else:
            left = [await anext(epochs), await anext(epochs)]
            assert [value async for value in await anext(epochs)] == whole[2]
        assert [epoch.number for epoch in left] == [0, 1]

    async def test_what_is_ready_of_the_next_epoch_is_kept(self, world: World) -> None:
        """The buffer is larger than an epoch, whose source is an epoch ahead then."""
        pipeline = numbers(30, seed=1).prepare(tenfold, ordered=False).shuffle(100)
        found = await first(world, pipeline.epochs(5), 2)
        assert [len(epoch) for epoch in found] == [2] * 5
        both = await first(world, pipeline.mix(numbers(3), stop="first").epochs(5), 1)
        assert [len(epoch) for epoch in both] == [1] * 5

    @pytest.mark.slow
    def test_threads_in_different_epochs_take_turns(self) -> None:
        for _ in range(20):
            epochs = numbers(200).prepare(tenfold, workers=2, buffer_size=2).batch(2).epochs(2)
            epoch = next(epochs)
            before: list[Any] = []

            def consume(epoch: Any = epoch, before: list[Any] = before) -> None:
                try:
                    for batch in epoch:
                        before += batch.tolist()
                except RuntimeError as error:
                    assert "epoch 0 was left" in str(error)

            consumer = threading.Thread(target=consume)
            consumer.start()
            after = [n for batch in next(epochs) for n in batch.tolist()]
            consumer.join()
            assert after == [10 * n for n in range(200)]
            assert before == after[: len(before)]

    async def test_several_tasks_share_an_epoch(self, world: World) -> None:
        if not isinstance(world, TaskWorld):
            pytest.skip("of threads there is a test of its own")
        found: list[int] = []

        async def consume(epoch: AsyncIterator[int]) -> None:
            async for value in epoch:
                found.append(value)
                await anyio.lowlevel.checkpoint()

        async with (
            numbers(200).prepare(tenfold).epochs(1) as epochs,
            anyio.create_task_group() as g,
        ):
            epoch = await anext(aiter(epochs))
            for _ in range(3):
                g.start_soon(consume, epoch)
        assert sorted(found) == [10 * n for n in range(200)]

    async def test_one_pipeline_in_two_loops_at_once(self, world: World) -> None:
        pipeline = numbers(20, shuffle=True, seed=1).prepare(tenfold).batch(3)
        expected = await results(world, pipeline)
        if isinstance(world, ThreadWorld):
            pairs = [(a.tolist(), b.tolist()) for a, b in zip(pipeline, pipeline, strict=True)]
        else:
            other = aiter(pipeline)
            pairs = [(a.tolist(), (await anext(other)).tolist()) async for a in pipeline]
            with pytest.raises(StopAsyncIteration):
                await anext(other)
        assert pairs == [(batch, batch) for batch in expected]

    async def test_a_pipeline_within_the_worker_of_another(self, world: World) -> None:
        def total(item: int) -> int:
            return sum(numbers(item).prepare(tenfold, workers=2))

        async def total_in_a_task(item: int) -> int:
            return sum([n async for n in numbers(item).prepare(tenfold_in_a_task)])

        for function in (total, total_in_a_task):
            found = await results(world, numbers(5).prepare(function, workers=2))
            assert found == [0, 0, 10, 30, 60]


class TestCancelling:
    @pytest.mark.slow(every=3)
    @pytest.mark.parametrize("prepared", [True, False])
    async def test_at_every_await_nothing_is_lost(
        self, world: World, prepared: bool, tmp_path: Path
    ) -> None:
        if not isinstance(world, TaskWorld):
            pytest.skip("threads are not cancelled")
        (tmp_path / "numbers").write_text("".join(f"{n}\n" for n in range(60)))
        pipeline: Any = read_lines(str(tmp_path / "numbers"))
        if prepared:
            pipeline = pipeline.prepare(int, workers=2).batch(3).prepare(list).prefetch(1)
            pipeline = pipeline.unbatch()
        else:
            pipeline = pipeline.filter(bool).batch(7, collate=list).unbatch()
        chance = random.Random(1)
        async with pipeline.epochs(3) as epochs:
            async for epoch in epochs:
                found: list[int] = []
                while await self._take(world, epoch, found, chance.randrange(12)):
                    pass
                assert found == list(range(60))

    async def _take(self, world: TaskWorld, epoch: Any, found: list[int], ticks: int) -> bool:
        """Ask for one more, and cancel that after a while; tell whether more may come."""
        operation = world.spawn(self._one, epoch, found)
        for _ in range(ticks):
            await world.tick()
        operation.cancel()
        return await operation.was_cancelled() or not epoch._has_ended

    async def _one(self, epoch: Any, found: list[int]) -> None:
        try:
            value = await anext(epoch)
        except StopAsyncIteration:
            return
        found.append(int(value))

    @pytest.mark.slow
    @pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there is no timer here")
    def test_ctrl_c_in_the_middle_ends_the_run(self) -> None:
        """Wherever it interrupts: what was delivered is in order and once, and workers end."""
        reported = json.loads(run_program(INTERRUPTED, may_complain=True))
        assert reported == {"in order": True, "threads": 0, "after": [0, 1, 2, 3]}


INTERRUPTED = """
import json, random, signal, threading
from aioqueue.inputs import numbers

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
chance = random.Random(1)
pipeline = numbers(10**9).prepare(abs, workers=2, buffer_size=16).filter(lambda n: True).batch(4)
in_order = True
for _ in range(100):
    found = []
    try:
        # Again later: Python drops what is raised while it cleans up.
        signal.setitimer(signal.ITIMER_REAL, 1e-4 + chance.random() * 3e-3, 0.05)
        with pipeline.epochs(1) as epochs:
            epoch = next(epochs)
            while True:
                for batch in epoch:
                    found.append(batch.tolist())
    except (KeyboardInterrupt, RuntimeError) as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        # Where it strikes the wait in Thread.start(), Python itself makes that of it.
        if isinstance(error, RuntimeError) and str(error) != "release unlocked lock":
            raise
        try:
            found.append(next(epoch).tolist())
        except (RuntimeError, NameError, TypeError):  # it is over, or had not begun
            pass
    epochs = epoch = None
    flat = [n for batch in found for n in batch]
    in_order &= flat == sorted(set(flat))
stuck = []
for thread in threading.enumerate():
    if thread.name.startswith(("aioqueue-abs-", "aioqueue-pipeline")) and thread.ident:
        # One that was struck while it was started is on its way, and one without an ident never
        # was. If it struck the wait for that start, Python may have left the lock of the thread's
        # own event taken: then the thread stays where it reports its start, and calls nothing.
        if thread._started._cond.acquire(timeout=10):
            thread._started._cond.release()
            thread._started.wait(20)
            thread.join(20)
        else:
            stuck.append(thread)
names = [one.name for one in threading.enumerate() if one.ident and one not in stuck]
left = [name for name in names if name.startswith("aioqueue-abs-")]
print(json.dumps({
    "in order": in_order,
    "threads": len(left),
    "after": next(iter(pipeline)).tolist(),
}))
"""


class TestWorkers:
    @pytest.mark.slow("asyncio", "threads")
    @pytest.mark.usefixtures("nothing_is_left")
    async def test_processes_live_on(self, world: World) -> None:
        pipeline = numbers(6).prepare(pid, where="process", workers=2)
        found = await epochs_of(world, pipeline.epochs(4))
        assert len({one for epoch in found for one in epoch} - {os.getpid()}) <= 2

    async def test_an_epoch_that_was_left_is_not_prepared_for_long(self, world: World) -> None:
        function = Counting(tenfold)
        pipeline = numbers(10**6).prepare(function, workers=2, buffer_size=4, max_in_flight=8)
        await first(world, pipeline.batch(2).prefetch(1).epochs(3), 2)
        assert len(function.calls) < 500

    @pytest.mark.slow
    async def test_nothing_grows(self, world: World) -> None:
        """Over a thousand epochs, some of which are left."""
        pipeline = numbers(5, seed=1).prepare(tenfold, workers=2).shuffle(3).batch(2)
        if isinstance(world, ThreadWorld):
            with pipeline.epochs(1000) as epochs:
                counts = [self._objects(number) for number in map(self._half, epochs)]
        else:
            counts = []
            async with pipeline.epochs(1000) as epochs:
                async for epoch in epochs:
                    for _ in range(1 + epoch.number % 3):
                        await anext(epoch)
                    counts.append(self._objects(epoch.number))
        measured = [count for count in counts if count]
        assert max(measured[1:]) < measured[0] + 1000

    @staticmethod
    def _half(epoch: Any) -> int:
        for _ in range(1 + epoch.number % 3):
            next(epoch)
        return int(epoch.number)

    @staticmethod
    def _objects(number: int) -> int:
        """How many there are, looked up now and then."""
        if number % 250 != 100:
            return 0
        gc.collect()
        return len(gc.get_objects())

    async def test_empty_epochs(self, world: World) -> None:
        for pipeline in (
            numbers(5).filter(lambda _: False),
            numbers(5).prepare(lambda _: None, drop_none=True).batch(2),
            numbers(0).shuffle(3).prepare(tenfold).prefetch(),
            numbers(4).flat(lambda _: []).batch(3, across_epochs=True),
        ):
            assert await epochs_of(world, pipeline.epochs(3)) == [[], [], []]

    async def test_large_items(self, world: World) -> None:
        def large(item: int) -> Any:
            return np.full(2_000_000, item, np.uint8)

        pipeline = (
            numbers(12).prepare(large, workers=2, limit_bytes=4_000_000, buffer_size=2).batch(3)
        )
        sums: list[int] = []
        if isinstance(world, ThreadWorld):
            sums += [int(batch.sum(dtype=np.int64)) for batch in pipeline]
        else:
            sums += [int(batch.sum(dtype=np.int64)) async for batch in pipeline]
        assert sums == [2_000_000 * (9 * k + 3) for k in range(4)]


class TestRanks:
    def test_what_was_mixed_in_is_cut_too(self) -> None:
        whole = numbers(10, seed=1).mix(items([100, 101, 102]).prepare(tenfold))
        parts = [list(whole.shard(rank, 2, uneven="allow")) for rank in range(2)]
        assert sorted(parts[0] + parts[1]) == sorted(whole)

    @pytest.mark.parametrize("size", [3, 4])
    def test_batches_across_epochs_are_as_many_on_all_ranks(self, size: int) -> None:
        whole = numbers(7).batch(size, across_epochs=True)
        counts = [
            [len(list(epoch)) for epoch in whole.shard(rank, 2).epochs(5)] for rank in range(2)
        ]
        assert counts[0] == counts[1]

    async def test_epochs_do_not_mix_where_items_were_skipped(self, world: World) -> None:
        def picky(item: int) -> int:
            if item % 3:
                raise ValueError(item)
            return item

        source = numbers(12, shuffle=True, seed=3)
        pipeline = source.prepare(picky, on_error="skip").shard(0, 2)
        both = await epochs_of(world, pipeline.epochs(2))
        assert await epochs_of(world, pipeline.epochs(1, start=1)) == both[1:]

    def test_several_examples_of_an_item_are_found_out(self) -> None:
        def several(item: int) -> Any:
            return (item for _ in range(2))

        with pytest.raises(ExceptionGroup) as failure:
            list(numbers(4).prepare(several).shard(0, 2))
        assert "makes several, use `flat`" in str(failure.value.exceptions[0])


class TestStatistics:
    async def test_each_stage_with_workers_reports(self, world: World, tmp_path: Path) -> None:
        def picky(item: int) -> int:
            if item % 4 == 1:
                raise ValueError(item)
            return item

        other = numbers(2).prepare(tenfold, workers=1)
        pipeline = numbers(8).prepare(picky, on_error="skip").mix(other).prefetch(2)
        epochs: Any = pipeline.epochs(2)
        assert epochs.statistics() == ()
        assert epochs.quarantine == []
        await epochs_of(world, epochs)
        first, mixed, last = epochs.statistics()
        assert "picky on 4 threads" in first.stage
        assert (first.prepared, first.skipped, first.in_flight, first.ready) == (12, 4, 0, 0)
        assert (mixed.stage, mixed.prepared) == ("prepare tenfold on 1 thread", 4)
        assert (last.stage, last.examples) == ("prefetch 2", 16)
        records = [(record.item, record.epoch) for record in epochs.quarantine]
        assert sorted(records) == [(1, 0), (1, 1), (5, 0), (5, 1)]

    async def test_skipped_items_in_a_file(self, world: World, tmp_path: Path) -> None:
        path = tmp_path / "skipped"
        bad = bad_at(2, ValueError("two"))
        pipeline = numbers(4).prepare(bad, on_error="skip", quarantine=path)
        for _ in range(2):
            epochs: Any = pipeline.epochs(1)
            await epochs_of(world, epochs)
            assert [record.item for record in epochs.quarantine] == [2]

    async def test_too_many_failures(self, world: World) -> None:
        def bad(item: int) -> int:
            raise ValueError(item)

        for most in (3, 0.5):
            pipeline = numbers(40).prepare(bad, on_error="skip", max_failures=most)
            with pytest.raises(ExceptionGroup):
                await results(world, pipeline)


def run_program(program: str, *, may_complain: bool = False) -> str:
    """What a program writes, which must end well and not complain."""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    assert may_complain or ran.stderr == ""
    return ran.stdout
