"""What ends a `prepare`, what does not, and what is closed then; streams as sources."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio.lowlevel
import pytest

import aioqueue
from aioqueue import InvalidArgumentError, OutOfRangeError, sync
from aioqueue.pipeline.streams.batch import batch
from aioqueue.workers.job import Job
from aioqueue.workers.runner import prepare
from tests.kit.functions import double
from tests.kit.pipelines import coordinated, rest
from tests.kit.preparing import Runner, drained, failures_of, in_loop, prepared
from tests.kit.worlds import AsyncioWorld, TaskWorld, ThreadWorld, World, spin_until

STRAYS = [asyncio.CancelledError, GeneratorExit]


async def awaits_what_is_cancelled() -> None:
    task = asyncio.create_task(asyncio.sleep(99))
    task.cancel()
    await task


class TestStrays:
    """A cancellation of something else, come astray, is a failure: nothing ends quietly by it."""

    @pytest.mark.parametrize("stray", STRAYS)
    @pytest.mark.parametrize("options", [{}, {"ordered": True}], ids=["as they come", "ordered"])
    async def test_from_a_function_on_a_thread(
        self, world: World, stray: type[BaseException], options: dict[str, Any]
    ) -> None:
        def make(number: int) -> int:
            if number == 3:
                raise stray("from within")
            return number

        with pytest.raises(ExceptionGroup) as caught:
            await prepared(world, range(6), make, **options)
        (failure,) = failures_of(caught.value)
        assert f"the function raised {stray.__name__}: from within" in failure
        assert "while preparing item 3" in failure
        assert caught.value.message.startswith("make failed on item 3: RuntimeError: the function")
        runners: list[Runner] = []
        got = await prepared(world, range(6), make, None, runners, on_error="skip", **options)
        assert sorted(got) == [0, 1, 2, 4, 5]
        assert runners[0].statistics().skipped == 1

    @pytest.mark.parametrize("stray", STRAYS)
    async def test_from_a_generator_function_on_a_thread(
        self, world: World, stray: type[BaseException]
    ) -> None:
        def make(number: int) -> Iterator[int]:
            yield number
            raise stray("from within")

        with pytest.raises(ExceptionGroup) as caught:
            await prepared(world, [5], make)
        assert f"the function raised {stray.__name__}" in failures_of(caught.value)[0]

    @pytest.mark.parametrize("stray", [*STRAYS, aioqueue.CancelledError])
    async def test_from_a_source_on_a_thread(
        self, world: World, stray: type[BaseException]
    ) -> None:
        def source() -> Iterator[int]:
            yield 1
            raise stray("from within")

        with pytest.raises(ExceptionGroup) as caught:
            await prepared(world, source(), double)
        assert f"the source raised {stray.__name__}: from within" in failures_of(caught.value)[0]

    @pytest.mark.parametrize("stray", STRAYS)
    async def test_from_a_source_of_batches(self, world: World, stray: type[BaseException]) -> None:
        def source() -> Iterator[int]:
            yield 1
            raise stray("from within")

        with pytest.raises(ExceptionGroup) as caught:
            async with coordinated(world) as coord:
                await rest(batch(source(), 2, coord=coord))
        assert f"the source raised {stray.__name__}: from within" in failures_of(caught.value)[0]

    def test_from_an_async_generator_function(self) -> None:
        async def make(number: int) -> AsyncIterator[int]:
            yield number
            await awaits_what_is_cancelled()

        world = AsyncioWorld()
        with pytest.raises(ExceptionGroup) as caught:
            world.run(functools.partial(prepared, world, [5], make))
        assert failures_of(caught.value)[0].startswith(
            "RuntimeError('what the function awaited was cancelled') | while preparing item 5"
        )

    @pytest.mark.parametrize("make", [double, in_loop(double)], ids=["threads", "tasks"])
    def test_from_an_async_source(self, make: Callable[[int], Any]) -> None:
        world = AsyncioWorld()
        with pytest.raises(ExceptionGroup) as caught:
            world.run(lambda: prepared(world, broken_source(), make))
        assert failures_of(caught.value)[0].startswith(
            "RuntimeError('what the source awaited was cancelled') | in the source of a prepare"
        )

    def test_from_an_async_source_of_batches(self) -> None:
        async def main() -> None:
            async with aioqueue.Coordinator() as coord:
                await rest(batch(broken_source(), 2, coord=coord))

        with pytest.raises(ExceptionGroup) as caught:
            AsyncioWorld().run(main)
        assert "what the source awaited was cancelled" in failures_of(caught.value)[0]

    async def test_a_closed_queue_within_an_async_source(self, world: World) -> None:
        """It is not the one into which its items go."""

        async def source() -> AsyncIterator[int]:
            yield 1
            raise aioqueue.QueueClosedError("another one")

        with pytest.raises(ExceptionGroup) as caught:
            await prepared(world, source(), double)
        assert failures_of(caught.value)[0].startswith(
            "QueueClosedError('another one') | in the source of a prepare"
        )


async def broken_source() -> AsyncIterator[int]:
    yield 1
    await awaits_what_is_cancelled()


class TestClosing:
    @pytest.mark.parametrize("make", [double, in_loop(double)], ids=["threads", "tasks"])
    @pytest.mark.parametrize("how", ["a stop", "a closed queue", "a cancellation"])
    @pytest.mark.parametrize(
        "options", [{}, {"concurrency_key": abs, "max_per_key": 2}], ids=["", "by key"]
    )
    async def test_an_async_source_is_closed_to_its_end(
        self, task_world: TaskWorld, make: Callable[[int], Any], how: str, options: dict[str, Any]
    ) -> None:
        """Also where its own closing has to wait for something."""
        closed = []

        async def endless() -> AsyncIterator[int]:
            try:
                while True:
                    yield 1
            finally:
                await anyio.lowlevel.checkpoint()
                closed.append("now")

        queue, source = (
            task_world.fifo(2),
            endless(),
        )  # kept, so that the garbage collector does not close it
        with anyio.CancelScope() as scope:
            async with aioqueue.Coordinator() as coord:
                runner = prepare(source, make, into=queue, workers=2, **options)
                coord.start(runner)
                await task_world.until(lambda: queue.size() == 2)
                if how == "a closed queue":
                    queue.close(cancel_pending_enqueues=True)
                    await task_world.until(lambda: repr(runner).endswith("ended>"))
                if how == "a cancellation":
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
        assert closed == ["now"]

    @pytest.mark.parametrize("is_async", [False, True], ids=["threads", "tasks"])
    async def test_a_failure_before_other_workers_have_begun(
        self, world: World, is_async: bool
    ) -> None:
        """They never will; and yet the run ends, closes its source and tells its progress."""
        closed = []

        def endless() -> Iterator[int]:
            try:
                while True:
                    yield 1
            finally:
                closed.append("now")

        def make(number: int) -> int:
            raise ValueError("at once")

        async def make_async(number: int) -> int:
            return make(number)

        runners: list[Runner] = []
        with pytest.raises(ExceptionGroup):
            await prepared(
                world,
                endless(),
                make_async if is_async else make,
                runners=runners,
                workers=50,
            )
        assert repr(runners[0]).endswith("ended>")
        assert closed == ["now"]


class TestStatistics:
    @pytest.mark.parametrize("is_async", [False, True], ids=["threads", "tasks"])
    async def test_count_the_examples_of_items_that_fail_half_way(
        self, world: World, is_async: bool
    ) -> None:
        def make(number: int) -> Iterator[int]:
            yield number
            yield number
            if number == 2:
                raise ValueError

        async def make_async(number: int) -> AsyncIterator[int]:
            for example in make(number):
                yield example

        runners: list[Runner] = []
        queue = world.fifo(9)
        with pytest.raises(ExceptionGroup):
            await prepared(
                world, range(5), make_async if is_async else make, queue, runners, workers=1
            )
        progress = runners[0].statistics()
        assert progress.examples == queue.statistics().enqueued == 6
        assert (progress.prepared, progress.in_flight) == (2, 1)

    def test_count_the_examples_of_items_that_a_stop_cuts_off(self) -> None:
        def make(number: int) -> Iterator[int]:
            while True:
                yield number

        queue = sync.FIFOQueue(3)
        runner = prepare([5], make, into=queue, workers=1)
        with sync.Coordinator() as coord:
            coord.start(runner)
            assert [queue.dequeue() for _ in range(4)] == [5, 5, 5, 5]
        assert runner.statistics().examples == queue.statistics().enqueued
        assert (runner.statistics().prepared, runner.statistics().in_flight) == (0, 1)


class TestStreams:
    """A stream of batches as the source of the next stage."""

    @pytest.mark.parametrize("face", ["sync", "aio"])
    @pytest.mark.parametrize("is_async", [False, True], ids=["threads", "tasks"])
    async def test_either_face_for_any_workers(
        self, world: World, face: str, is_async: bool
    ) -> None:
        upstream = sync.FIFOQueue(4)
        queue = sync.FIFOQueue(4)
        total: Callable[[Any], int] = lambda examples: int(examples.sum())  # noqa: E731
        async with coordinated(world) as coord:
            is_blocking = isinstance(world, ThreadWorld)
            numbers: Any = prepare(
                range(20), double, into=upstream if is_blocking else upstream.aio, ordered=True
            )
            coord.start(numbers)
            stream = getattr(batch(upstream, 5, coord=coord, capacity=10), face)
            sums: Any = prepare(
                stream,
                in_loop(total) if is_async else total,
                into=queue if is_blocking else queue.aio,
                ordered=True,
            )
            coord.start(sums)
            assert await rest(queue.batches(1) if is_blocking else queue.aio.batches(1)) == [
                [20],
                [70],
                [120],
                [170],
            ]

    @pytest.mark.parametrize("is_async", [False, True], ids=["threads", "tasks"])
    async def test_the_failure_of_one_closes_what_follows(
        self, world: World, is_async: bool
    ) -> None:
        def source() -> Iterator[int]:
            yield 1
            raise OSError("the disk is gone")

        queue = sync.FIFOQueue(4)
        with pytest.raises(ExceptionGroup) as caught:
            async with coordinated(world) as coord:
                is_blocking = isinstance(world, ThreadWorld)
                stream = batch(source(), 1, coord=coord)
                runner: Any = prepare(
                    stream,
                    in_loop(len) if is_async else len,
                    into=queue if is_blocking else queue.aio,
                )
                coord.start(runner)
                await rest(queue.batches(1) if is_blocking else queue.aio.batches(1))
        assert len(caught.value.exceptions) == 1
        with pytest.raises(OutOfRangeError) as ended:
            while True:
                queue.dequeue()
        assert ended.value.__cause__ is caught.value.exceptions[0]


@pytest.mark.parametrize("source", ["*.jpg", b"*.jpg"])
def test_a_string_is_no_source(source: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"source: got .*use files\(pattern\)"):
        prepare(source, double, into=sync.FIFOQueue(3))
    queue = sync.FIFOQueue(3)
    assert drained(queue, prepare([source], len, into=queue)) == [5]


def test_one_that_is_started_after_its_queue_was_closed() -> None:
    """Nothing of it would arrive, as if the source were empty."""
    queue = sync.FIFOQueue(10)
    with sync.Coordinator() as coord:
        coord.start(prepare([1, 2, 3], double, into=queue, workers=2))
        assert sorted(queue) == [2, 4, 6]
    closed: list[str] = []

    def source() -> Iterator[int]:
        closed.append("begun")
        yield 1

    for make in (double, in_loop(double)):
        runner = prepare(source(), make, into=queue, workers=3)
        with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
            coord.start(runner)
            coord.join()
        (failure,) = failures_of(caught.value)
        assert "was closed before the prepare into it was started" in failure
        assert repr(runner).endswith("ended>")
    assert not closed


def test_a_second_start_is_refused() -> None:
    """Its queue is closed, so nothing would come, as if the source were empty."""
    queue = sync.FIFOQueue(10)
    runner = prepare([1, 2, 3], double, into=queue, workers=2)
    with sync.Coordinator() as coord:
        coord.start(runner)
        assert sorted(queue) == [2, 4, 6]
    with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
        coord.start(runner)
        coord.join()
    assert "has run already, and its queue is closed" in failures_of(caught.value)[0]


async def counting() -> AsyncIterator[int]:
    for number in itertools.count():
        yield number


async def same(number: int) -> int:
    return number


BY_KEY = {"concurrency_key": lambda number: number % 3, "max_per_key": 1}


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize(
    ("source", "make", "options"),
    [
        (itertools.count, abs, BY_KEY),
        (itertools.count, same, BY_KEY),
        (counting, abs, {}),
        (counting, abs, BY_KEY),
        (itertools.count, abs, {"where": "process", "workers": 1}),  # two may share unevenly
    ],
    ids=["by key", "tasks by key", "async source", "async source by key", "processes"],
)
def test_the_helper_ends_with_the_last_worker(
    monkeypatch: pytest.MonkeyPatch,
    source: Callable[[], Any],
    make: Callable[[int], Any],
    options: dict[str, Any],
) -> None:
    """A closed queue may have ended all of them before anybody could tell them to stop."""
    stop = Job.stop

    def stop_late(job: Job) -> None:
        spin_until(lambda: job.state == "ended")
        stop(job)

    monkeypatch.setattr(Job, "stop", stop_late)
    queue = sync.FIFOQueue(1)
    workers = options.get("workers", 2)
    runner = prepare(source(), make, into=queue, max_in_flight=4, **{"workers": workers, **options})
    with sync.Coordinator(stop_grace_period=1.0) as coord:
        coord.start(runner)
        spin_until(lambda: queue.statistics().waiting_enqueues == workers)
        full = 2 if source is counting and not options else 4  # workers that take items themselves
        spin_until(lambda: runner.statistics().in_flight == full)
        queue.close(cancel_pending_enqueues=True)
        spin_until(lambda: not helper_threads())


def helper_threads() -> list[str]:
    """The threads that take items from the source for the workers."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if "take_items" in name or "read_source" in name]
