"""`prepare` on tasks and threads: every item once, in order if wanted, whatever happens."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

import aioqueue
from aioqueue import InvalidArgumentError, OutOfRangeError, sync
from aioqueue.sources.kinds.sequences import items, numbers
from aioqueue.sources.shuffling import rng
from aioqueue.workers.options import Retry
from aioqueue.workers.rates import per_second
from aioqueue.workers.runner import AsyncPrepareRunner, PrepareRunner, prepare
from tests.kit.functions import double, negative_too, noise
from tests.kit.preparing import Runner, drained, failures_of, in_loop, prepared, stand_in
from tests.kit.worlds import (
    PATIENCE,
    AsyncioWorld,
    TaskWorld,
    ThreadWorld,
    World,
    spin_until,
    waiting,
)

N = 40

Where = str


@pytest.fixture(params=["task", "thread"])
def where(request: pytest.FixtureRequest) -> Where:
    """What the workers are."""
    return str(request.param)


def fitting(function: Callable[..., Any], where: Where) -> Callable[..., Any]:
    return in_loop(function) if where == "task" else function


async def async_numbers() -> AsyncIterator[int]:
    for number in range(N):
        await anyio.lowlevel.checkpoint()
        yield number


def full_queue() -> sync.FIFOQueue:
    queue = sync.FIFOQueue(N)
    queue.enqueue_many(range(N))
    queue.close()
    return queue


SOURCES: dict[str, Callable[[], Any]] = {
    "a list": lambda: list(range(N)),
    "a generator": lambda: (number for number in range(N)),
    "an array": lambda: np.arange(N),
    "a source": lambda: numbers(N, 1),
    "an async generator": async_numbers,
    "a blocking queue": full_queue,
    "an async queue": lambda: full_queue().aio,
}


class TestEveryItemOnce:
    @pytest.mark.slow(every=4)
    @pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
    @pytest.mark.parametrize("ordered", [False, True], ids=["as they come", "ordered"])
    async def test_of_any_source(
        self, world: World, where: Where, source: Callable[[], Any], ordered: bool
    ) -> None:
        got = await prepared(world, source(), fitting(double, where), ordered=ordered)
        assert (got if ordered else sorted(got)) == [2 * number for number in range(N)]

    async def test_of_an_empty_source(self, world: World, where: Where) -> None:
        assert await prepared(world, [], fitting(double, where)) == []

    async def test_by_more_workers_than_items(self, world: World, where: Where) -> None:
        assert await prepared(world, [1], fitting(double, where), workers=9) == [2]

    async def test_in_stages(self, world: World, where: Where) -> None:
        first, second = sync.FIFOQueue(4), world.fifo(4)
        feeding = prepare(range(N), double, into=first, ordered=True)
        coord = sync.Coordinator()  # without a block: in most of the worlds an event loop runs here
        threads = coord.start(feeding)
        got = await prepared(world, first, fitting(double, where), second, ordered=True)
        await world.until(lambda: not any(thread.is_alive() for thread in threads))
        assert got == [4 * number for number in range(N)]

    async def test_into_typed_queues(self, world: World, where: Where) -> None:
        queue = world.fifo(8, ["int64", "float32"], [(), (2,)])

        def make(number: int) -> Any:
            return number, np.full(2, number)

        got = await prepared(world, range(N), fitting(make, where), queue)
        assert sorted((int(n), float(xs[1])) for n, xs in got) == [(n, n) for n in range(N)]

    async def test_without_a_coordinator(self, task_world: TaskWorld, where: Where) -> None:
        queue = task_world.fifo(N)
        runner = prepare(range(N), fitting(double, where), into=queue)
        await runner.run()
        assert sorted([example async for example in queue]) == [2 * n for n in range(N)]

    async def test_a_failure_without_a_coordinator(
        self, task_world: TaskWorld, where: Where
    ) -> None:
        """It ends all workers, also the one that waits for more."""
        source: Any = sync.FIFOQueue(N)
        source.enqueue("x")
        runner = prepare(source, fitting(int, where), into=task_world.fifo(N))
        with pytest.raises(ExceptionGroup) as caught:
            await runner.run()
        assert "while preparing item 'x' (epoch 0, index 0)" in failures_of(caught.value)[0]


class TestWhatFunctionsReturn:
    async def test_generators_make_many(self, world: World) -> None:
        got = await prepared(world, range(N), negative_too, ordered=True)
        assert got == [sign * number for number in range(N) for sign in (1, -1)]

    async def test_generators_that_are_not_collected(self, world: World) -> None:
        """An example is there before the next one is made."""
        queue = world.fifo(N)
        seen: list[int] = []

        def make(number: int) -> Iterator[int]:
            yield number
            seen.append(queue.statistics().enqueued)

        await prepared(world, [7], make, queue, workers=1)
        assert seen == [1]

    async def test_async_generators_make_many(self, world: World) -> None:
        async def make(number: int) -> AsyncIterator[int]:
            yield number
            await anyio.lowlevel.checkpoint()
            yield -number

        got = await prepared(world, range(N), make)
        assert sorted(got) == sorted(sign * number for number in range(N) for sign in (1, -1))
        got = await prepared(world, range(N), make, ordered=True)
        assert got == [sign * number for number in range(N) for sign in (1, -1)]

    async def test_partials_and_callables(self, world: World) -> None:
        class Adds:
            def __call__(self, number: int, more: int = 1) -> int:
                return number + more

        assert sorted(await prepared(world, range(3), Adds())) == [1, 2, 3]
        assert sorted(await prepared(world, range(3), functools.partial(Adds(), more=2))) == [
            2,
            3,
            4,
        ]

    async def test_none_leaves_an_item_out_if_it_may(self, world: World, where: Where) -> None:
        def odd(number: int) -> int | None:
            return number if number % 2 else None

        runners: list[Runner] = []
        got = await prepared(
            world, range(N), fitting(odd, where), runners=runners, drop_none=True, ordered=True
        )
        assert got == list(range(1, N, 2))
        progress = runners[0].statistics()
        assert (progress.prepared, progress.left_out, progress.examples) == (N // 2, N // 2, N // 2)
        with pytest.raises(ExceptionGroup) as caught:
            await prepared(world, range(N), fitting(odd, where))
        assert "returned None; return an example, or pass drop_none=True" in str(
            failures_of(caught.value)
        )

    async def test_a_plain_function_that_returns_a_coroutine(self, world: World) -> None:
        with pytest.raises(ExceptionGroup) as caught:
            await prepared(world, [0], lambda number: in_loop(double)(number))
        assert "is a plain function but returned a coroutine" in failures_of(caught.value)[0]


class TestOrder:
    @pytest.mark.slow(every=4)
    @pytest.mark.parametrize("workers", [1, 2, 7])
    async def test_same_batches_byte_for_byte(
        self, world: World, where: Where, workers: int
    ) -> None:
        """With random delays, and failures that are tried again."""
        tried: dict[int, int] = {}

        def make(number: int, rng: np.random.Generator) -> Iterator[Any]:
            tried[number] = tried.get(number, 0) + 1
            if number % 5 == 0 and tried[number] < 3:
                raise OSError(number)
            for _ in range(number % 3):
                yield rng.random(3)

        def make_late(number: int, rng: np.random.Generator) -> Iterator[Any]:
            time.sleep(random.random() / 1000)
            yield from make(number, rng)

        async def make_async(number: int, rng: np.random.Generator) -> AsyncIterator[Any]:
            await anyio.sleep(random.random() / 1000)
            for example in make(number, rng):
                yield example

        queue = world.fifo(8, "float64", (3,))
        got = await prepared(
            world,
            items(range(100), 1, shuffle=True, seed=3),
            make_async if where == "task" else make_late,
            queue,
            workers=workers,
            ordered=True,
            on_error=Retry(2),
        )
        batch = np.stack(got)
        source = items(range(100), 1, shuffle=True, seed=3)
        tried = dict.fromkeys(range(100), 3)
        expected = np.stack(
            [x for n, epoch, index in source.entries() for x in make(n, rng(3, epoch, index))]
        )
        assert batch.tobytes() == expected.tobytes()

    @pytest.mark.slow(every=5)
    @pytest.mark.parametrize("workers", [1, 2, 7])
    async def test_same_set_without_order(self, world: World, workers: int) -> None:
        got = await prepared(world, items(range(100), 2, seed=3), noise, workers=workers)
        alone = await prepared(world, items(range(100), 2, seed=3), noise, workers=1, ordered=True)
        assert sorted(got) == sorted(alone)
        assert len(set(got)) == 200  # an item has another generator in every epoch

    async def test_rng_of_other_sources(self, world: World) -> None:
        """The running index stands for the place in the source."""
        got = await prepared(world, range(20), noise, seed=3)
        assert sorted(got) == sorted(await prepared(world, numbers(20, 1, seed=3), noise))
        assert sorted(got) != sorted(await prepared(world, range(20), noise, seed=4))

    async def test_an_rng_that_is_bound_stays(self, world: World) -> None:
        bound = functools.partial(noise, rng=np.random.default_rng(7))
        (got,) = await prepared(world, [0], bound)
        assert got == noise(0, np.random.default_rng(7))


class TestLimits:
    """What is in flight: taken from the source, and not yet in the queue."""

    @pytest.mark.parametrize("limit", [1, 3, 20])
    def test_items(self, limit: int) -> None:
        taken: list[int] = []
        first = threading.Event()

        def source() -> Iterator[int]:
            for number in range(N):
                taken.append(number)
                yield number

        def make(number: int) -> int:
            if number == 0:
                assert first.wait(PATIENCE)
            return number

        queue = sync.FIFOQueue(N)
        with sync.Coordinator() as coord:
            coord.start(prepare(source(), make, into=queue, ordered=True, max_in_flight=limit))
            spin_until(lambda: len(taken) == limit)
            assert queue.size() == 0
            first.set()
            assert list(queue) == list(range(N))

    def test_bytes(self) -> None:
        """After the first example it is known what the others will take."""
        started: list[int] = []
        go = [threading.Event() for _ in range(N)]

        def make(number: int) -> Any:
            started.append(number)
            assert go[number].wait(PATIENCE)
            return np.zeros(100, "uint8")

        queue = sync.FIFOQueue(N, "uint8", (100,))
        runner = prepare(range(N), make, into=queue, workers=8, ordered=True, limit_bytes=450)
        with sync.Coordinator() as coord:
            coord.start(runner)
            spin_until(lambda: len(started) == 8)
            for number in range(1, 8):
                go[number].set()  # they wait for the first one, and are too many already
            spin_until(lambda: runner.statistics().prepared == 0 and len(started) == 8)
            for event in go:
                event.set()
            assert len(list(queue)) == N

    def test_one_item_is_always_let_in(self) -> None:
        queue = sync.FIFOQueue(N)
        runner = prepare(range(3), np.zeros, into=queue, limit_bytes=1, max_in_flight=1)
        assert len(drained(queue, runner)) == 3


class TestEnds:
    """Whatever ends a pipeline, all its workers end, and the failure is reported."""

    async def test_the_first_failure_stops_it(self, world: World, where: Where) -> None:
        def make(number: int) -> int:
            if number == 20:
                raise KeyError("broken")
            return number

        with pytest.raises(ExceptionGroup) as caught:
            await prepared(world, items([*range(100, 140)], 3), fitting(make_shifted(make), where))
        (failure,) = failures_of(caught.value)
        assert failure.startswith(
            "KeyError('broken') | while preparing item 120 (epoch 0, index 20)"
        )

    async def test_a_long_item_is_shortened_in_the_report(self, world: World) -> None:
        with pytest.raises(ExceptionGroup) as caught:
            await prepared(world, ["x" * 10_000], int)
        (failure,) = failures_of(caught.value)
        assert "while preparing item 'xxxx" in failure
        assert len(caught.value.exceptions[0].__notes__[0]) < 300

    def test_a_long_repr_is_shortened_in_the_middle(self) -> None:
        class Image:
            def __repr__(self) -> str:
                return f"Image({'x' * 200}, id=7)"

        source: list[Any] = [Image()]
        queue = sync.FIFOQueue(1)
        runner = prepare(source, int, into=queue, on_error="skip")
        assert drained(queue, runner) == []
        message = f"item Image({'x' * 52}...{'x' * 52}, id=7) (epoch 0, index 0)"
        assert message in runner.quarantine[0].traceback

    @pytest.mark.parametrize("kind", [OutOfRangeError, aioqueue.QueueClosedError, StopIteration])
    async def test_what_resembles_an_end_but_is_none(
        self, world: World, kind: type[Exception]
    ) -> None:
        def make(number: int) -> int:
            raise kind("from within")

        with pytest.raises(ExceptionGroup) as caught:
            await prepared(world, range(N), make)
        assert f"the function raised {kind.__name__}: from within" in failures_of(caught.value)[0]

    def test_a_cancellation_that_is_not_ours(self) -> None:
        """The function has awaited a task that someone has cancelled: the item has failed."""

        async def make(number: int) -> None:
            task = asyncio.create_task(asyncio.sleep(99))
            task.cancel()
            await task

        world = AsyncioWorld()
        with pytest.raises(ExceptionGroup) as caught:
            world.run(functools.partial(prepared, world, [5], make))
        assert failures_of(caught.value)[0].startswith(
            "RuntimeError('what the function awaited was cancelled') | while preparing item 5"
        )

    def test_what_a_stop_drops_is_counted(self) -> None:
        queue = sync.FIFOQueue(1)
        runner = prepare(range(N), double, into=queue, workers=2)
        with sync.Coordinator() as coord:
            coord.start(runner)
            spin_until(lambda: waiting(queue) == 2)
        progress = runner.statistics()
        assert (progress.prepared, progress.in_flight) == (1, 2)

    @pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
    async def test_a_source_that_raises(self, world: World, where: Where, is_async: bool) -> None:
        def source() -> Iterator[int]:
            yield 1
            raise OSError("the disk is gone")

        async def async_source() -> AsyncIterator[int]:
            for number in source():
                yield number

        with pytest.raises(ExceptionGroup) as caught:
            await prepared(world, async_source() if is_async else source(), fitting(double, where))
        (failure,) = failures_of(caught.value)
        assert failure.startswith("OSError('the disk is gone') | in the source of a prepare")

    async def test_what_closed_the_source_closes_the_queue(
        self, world: World, where: Where
    ) -> None:
        failure = OSError("upstream")
        source = sync.FIFOQueue(3)
        source.enqueue(1)
        source.close(cause=failure)
        queue = world.fifo(3)
        with pytest.raises(ExceptionGroup) as caught:
            await prepared(world, source, fitting(double, where), queue)
        (end,) = caught.value.exceptions  # that of the loop over the queue
        assert isinstance(end, OutOfRangeError)
        assert end.__cause__ is failure
        assert queue.statistics().dequeued == 1

    async def test_a_source_is_closed_when_the_rest_is_not_wanted(
        self, world: World, where: Where
    ) -> None:
        closed: list[str] = []

        def endless() -> Iterator[int]:
            try:
                yield from range(1_000_000_000)
            finally:
                closed.append("now")

        class Endless:
            def __iter__(self) -> Iterator[int]:
                return endless()

        def make(number: int) -> int:
            if number == 10:
                raise ValueError
            return number

        with pytest.raises(ExceptionGroup):
            await prepared(world, Endless(), fitting(make, where))
        with pytest.raises(ExceptionGroup):
            await prepared(world, endless(), fitting(make, where))
        assert closed == ["now", "now"]

    async def test_a_stop_ends_a_wait_for_the_source(self, world: World, where: Where) -> None:
        """Nobody else will ever close it."""
        source = sync.FIFOQueue(3)
        queue = world.fifo(3)
        await left_early(world, source, fitting(double, where), queue, lambda: waiting(source) > 0)
        assert not source.is_closed()

    async def test_a_stop_ends_a_wait_for_another_try(self, world: World, where: Where) -> None:
        tried = threading.Event()

        def make(number: int) -> int:
            tried.set()
            raise OSError

        await left_early(
            world,
            range(N),
            fitting(make, where),
            world.fifo(1),
            tried.is_set,
            on_error=Retry(3, 99),
        )

    async def test_a_stop_ends_a_wait_for_the_queue(self, world: World, where: Where) -> None:
        queue = world.fifo(1)
        await left_early(
            world, range(N), fitting(double, where), queue, lambda: waiting(queue) > 0, ordered=True
        )

    @pytest.mark.parametrize("source", ["a queue", "numbers"])
    async def test_a_consumer_that_closes_the_queue(
        self, world: World, where: Where, source: str
    ) -> None:
        """A closed queue is no failure, and nothing waits for a stop."""
        given: Any = sync.FIFOQueue(3) if source == "a queue" else range(1_000_000_000)
        queue = world.fifo(3)

        def close() -> bool:
            arrived = waiting(given) > 0 if source == "a queue" else queue.size() == 3
            if arrived:
                queue.close(cancel_pending_enqueues=True)
            return arrived

        await left_early(world, given, fitting(double, where), queue, close, alone=True)

    def test_it_runs_once(self) -> None:
        queue = sync.FIFOQueue(N)
        runner = prepare(range(N), double, into=queue)
        assert len(drained(queue, runner)) == N
        with pytest.raises(ExceptionGroup, match="has run already"):
            drained(queue, runner)
        assert runner.statistics().prepared == N


def make_shifted(make: Callable[[int], int]) -> Callable[[int], int]:
    return lambda number: make(number - 100)


async def left_early(
    world: World,
    source: Any,
    function: Callable[..., Any],
    queue: Any,
    arrived: Callable[[], bool],
    *,
    alone: bool = False,
    **options: Any,
) -> None:
    """Start a pipeline, wait for a state, and leave; or, if it ends alone, wait until it has."""
    if isinstance(world, ThreadWorld):
        runner = prepare(source, function, into=queue.face, **options)
        with sync.Coordinator() as coord:
            threads = coord.start(runner)
            await world.until(arrived)
            if alone:
                spin_until(lambda: not any(thread.is_alive() for thread in threads))
        return
    async_runner = prepare(source, function, into=queue, **options)
    async with aioqueue.Coordinator() as async_coord:
        async_coord.start(async_runner)
        await world.until(arrived)
        if alone:
            await world.until(lambda: repr(async_runner).endswith("ended>"))


class TestSurface:
    def test_the_face_follows_from_the_queue(self) -> None:
        queue = sync.FIFOQueue(3)
        blocking, awaited = prepare([], double, into=queue), prepare([], double, into=queue.aio)
        assert isinstance(blocking, PrepareRunner)
        assert isinstance(blocking, sync.QueueRunner)
        assert isinstance(awaited, AsyncPrepareRunner)
        assert isinstance(awaited, aioqueue.QueueRunner)

    def test_repr(self) -> None:
        queue = sync.FIFOQueue(N, name="images")
        runner = prepare(range(N), double, into=queue, workers=3)
        assert repr(runner).endswith("of double on 3 threads into 'images', idle>")
        alone = prepare(range(N), double, into=sync.FIFOQueue(N, name="one"), workers=1)
        assert repr(alone).endswith("of double on 1 thread into 'one', idle>")
        drained(queue, runner)
        assert repr(runner).endswith(f"of double on 3 threads into 'images', {N} prepared, ended>")

    def test_the_log_has_the_totals(self, caplog: pytest.LogCaptureFixture) -> None:
        queue = sync.FIFOQueue(N, name="images")
        with caplog.at_level(logging.INFO, "aioqueue"):
            drained(queue, prepare(range(N), double, into=queue))
        (record,) = [r for r in caplog.records if r.levelno == logging.INFO]
        assert record.getMessage() == (
            f"prepare into 'images' has ended: {N} prepared ({N} examples), 0 retried, 0 skipped,"
            " 0 left out, 0 dropped by the stop, 0 workers died"
        )

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"rate": per_second(10_000), "burst": N},
            {"concurrency_key": bool, "max_per_key": 2},
        ],
    )
    async def test_an_element_that_a_stopped_helper_waits_for_was_not_dropped(
        self,
        world: World,
        where: Where,
        options: dict[str, Any],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Nothing is lost: all elements of the source were prepared."""
        source, queue = sync.FIFOQueue[int](N), world.fifo(N)
        source.enqueue_many(range(N))

        def all_arrived() -> bool:
            return queue.size() == N and waiting(source) > 0

        with caplog.at_level(logging.INFO, "aioqueue"):
            await left_early(world, source, fitting(double, where), queue, all_arrived, **options)
        texts = [record.getMessage() for record in caplog.records]
        (text,) = [text for text in texts if text.startswith("prepare into")]
        assert f"{N} prepared" in text
        assert "0 dropped by the stop" in text

    @pytest.mark.parametrize("in_file", [False, True])
    def test_items_that_were_skipped_are_worth_a_warning(
        self, in_file: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Every one may have been, and then nothing comes out, as of an empty source."""

        def mistyped(item: int) -> int:
            return item.real_part  # type: ignore[attr-defined, no-any-return]

        quarantine = tmp_path / "skipped.jsonl" if in_file else None
        queue = sync.FIFOQueue(N, name="images")
        runner = prepare(range(N), mistyped, into=queue, on_error="skip", quarantine=quarantine)
        assert drained(queue, runner) == []
        (record,) = caplog.records
        assert (record.name, record.levelno) == ("aioqueue", logging.WARNING)
        message = record.getMessage()
        assert message.startswith("prepare into 'images' has ended: 0 prepared (0 examples), 0 ret")
        assert f", {N} skipped," in message
        why = r"AttributeError: 'int' object has no attribute 'real_part'"
        assert re.search(rf"; skipped first was item \d+ \(epoch 0, index \d+\): {why}$", message)

    @pytest.mark.parametrize(
        ("message", "options"),
        [
            ("into: got 3; expected a queue of aioqueue", {"into": 3}),
            ("source: got 3; expected an iterable, an async iterable, a queue", {"source": 3}),
            ("function: got 3; expected a callable", {"function": 3}),
            ("workers: got 0; expected an int >= 1", {"workers": 0}),
            ("workers: got True; expected an int >= 1", {"workers": True}),
            ("where: got 'moon'; expected 'auto', 'task'", {"where": "moon"}),
            ("with where='task'; expected a coroutine function", {"where": "task"}),
            (
                "with where='thread'; expected a plain function",
                {"where": "thread", "function": in_loop(double)},
            ),
            ("ordered: got 1; expected a bool", {"ordered": 1}),
            ("drop_none: got 1; expected a bool", {"drop_none": 1}),
            ("max_in_flight: got 0; expected an int >= 1", {"max_in_flight": 0}),
            ("limit_bytes: got 0.5; expected an int >= 1", {"limit_bytes": 0.5}),
            ("on_error: got 'ignore'; expected 'stop', 'skip' or", {"on_error": "ignore"}),
            ("max_failures: got 1.5; expected", {"max_failures": 1.5, "on_error": "skip"}),
            ("max_failures: got 0.0; expected", {"max_failures": 0.0, "on_error": "skip"}),
            ("max_failures: got 1.0; expected", {"max_failures": 1.0, "on_error": "skip"}),
            ("max_failures: given with on_error='stop'", {"max_failures": 3}),
            ("quarantine: given with on_error='stop'", {"quarantine": "x"}),
            (
                "quarantine: got '/does/not/exist', which cannot be written",
                {"quarantine": "/does/not/exist", "on_error": "skip"},
            ),
            ("seed: got -1; expected", {"seed": -1}),
        ],
    )
    def test_wrong_arguments(self, message: str, options: dict[str, Any]) -> None:
        given: dict[str, Any] = {
            "source": [],
            "function": double,
            "into": sync.FIFOQueue(3),
            **options,
        }
        with pytest.raises(InvalidArgumentError) as caught:
            prepare(given.pop("source"), given.pop("function"), **given)
        assert message in str(caught.value)

    def test_its_own_queue_is_no_source(self) -> None:
        queue = sync.FIFOQueue(3)
        with pytest.raises(InvalidArgumentError, match="the queue that is also `into`"):
            prepare(queue, double, into=queue.aio)

    def test_memory_stays_flat(self) -> None:
        """No reference to a delivered item remains."""
        alive = 0
        lock = threading.RLock()  # several threads make and drop them

        class Counted:
            def __init__(self) -> None:
                nonlocal alive
                with lock:
                    alive += 1

            def __del__(self) -> None:
                nonlocal alive
                with lock:
                    alive -= 1

        most = 0
        queue = sync.FIFOQueue(4)
        with sync.Coordinator() as coord:
            coord.start(
                prepare(range(3000), lambda _: Counted(), into=queue, workers=2, ordered=True)
            )
            for _ in queue:
                most = max(most, alive)
        assert most < 50


class TestInterpreters:
    def test_where_python_has_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Whether there are interpreters is known to Python by this; without it there is no pool.
        monkeypatch.setattr("concurrent.futures._interpreters", None, raising=False)
        monkeypatch.delattr("concurrent.futures.InterpreterPoolExecutor", raising=False)
        with pytest.raises(InvalidArgumentError, match=r"needs Python 3\.14 or later"):
            prepare([], double, into=sync.FIFOQueue(3), where="interpreter")

    def test_functions_that_do_not_fit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stand_in(monkeypatch)
        for function in (negative_too, noise):
            with pytest.raises(InvalidArgumentError, match="generator function or takes `rng`"):
                prepare([], function, into=sync.FIFOQueue(3), where="interpreter")

    def test_calls_are_made_by_the_pool(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a pool of threads in its place, so that it is tested on any Python."""
        stand_in(monkeypatch)
        queue = sync.FIFOQueue(8)
        runner = prepare(range(N), double, into=queue, where="interpreter", ordered=True)
        assert drained(queue, runner) == [2 * number for number in range(N)]
        # They end with the run, though its runner is still there.
        spin_until(lambda: "ThreadPoolExecutor" not in str(threading.enumerate()))
        assert repr(runner).endswith("ended>")


@pytest.mark.parametrize(
    ("count", "workers"), [(1, "1 thread"), (2, "2 threads"), (3, "3 threads")]
)
def test_a_repr_has_the_number_of_workers(count: int, workers: str) -> None:
    queue = sync.FIFOQueue(3, name="images")
    runner = prepare([], double, into=queue, workers=count)
    assert f"of double on {workers} into 'images'" in repr(runner)
