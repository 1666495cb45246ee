"""What was left is gone with its last reference, without the garbage collector: in every way of
leaving, wherever the function runs, in threads and in tasks."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import random
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import anyio
import numpy as np
import pytest

import aioqueue
from aioqueue import inputs, sync
from aioqueue.inputs import from_iterable
from tests.kit.worlds import spin_until


class Data(np.ndarray):
    """An example that can be referred to weakly."""


class Open:
    """Stands for a file that a source has open."""


class Traces:
    """Which objects are alive."""

    def __init__(self) -> None:
        self._refs: dict[int, weakref.ref[Any]] = {}
        self._changed = threading.Condition(threading.RLock())
        self.made = 0

    def of(self, thing: Any) -> Any:
        self.made += 1
        number = self.made
        self._refs[number] = weakref.ref(thing, lambda _: self._collected(number))
        return thing

    def _collected(self, number: int) -> None:
        with self._changed:
            self._refs.pop(number)
            self._changed.notify_all()

    def are_collected(self) -> bool:
        """Wait until nothing is alive, as workers may be about to end."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._refs, timeout=5)

    def source(self) -> Iterator[Any]:
        file = self.of(Open())
        for number in range(30):
            data = np.full(3, number).view(Data)
            yield self.of(data)
            del data
        del file


@pytest.fixture
def traces(caplog: pytest.LogCaptureFixture) -> Iterator[Traces]:
    caplog.set_level(logging.CRITICAL, "aioqueue")  # a record keeps its exception
    gc.collect()
    gc.disable()
    try:
        yield Traces()
    finally:
        gc.enable()


class BodyError(Exception):
    """Of the loop's own body."""


def same(example: Any) -> Any:
    return example


async def same_async(example: Any) -> Any:
    return example


def bad(example: Any) -> Any:
    if example[0] == 9:
        raise ValueError("bad")
    return example


async def bad_async(example: Any) -> Any:
    return bad(example)


def leave_by_break(pipeline: Any) -> None:
    for _ in pipeline:
        break


def leave_by_del(pipeline: Any) -> None:
    iterator = iter(pipeline)
    next(iterator)
    del iterator


def leave_by_close(pipeline: Any) -> None:
    try:
        with pipeline.epochs(2) as epochs:
            next(next(epochs))
    except ExceptionGroup:
        pass  # of a worker, that was not told yet


def leave_by_failure(pipeline: Any) -> None:
    with pytest.raises(BodyError), pipeline.epochs(2) as epochs:
        next(next(epochs))
        raise BodyError


def leave_by_body(pipeline: Any) -> None:
    try:
        for _ in pipeline:
            raise BodyError
    except BodyError:
        pass


def leave_by_timeout(pipeline: Any) -> None:
    try:
        with sync.CancelScope() as scope:
            for _ in pipeline:
                scope.cancel()
    except (aioqueue.CancelledError, ExceptionGroup):
        pass


def leave_at_end(pipeline: Any) -> None:
    try:
        for _ in pipeline:
            pass
    except ExceptionGroup:
        pass  # of a worker


async def leave_by_break_async(pipeline: Any) -> None:
    async for _ in pipeline:
        break


async def leave_by_close_async(pipeline: Any) -> None:
    try:
        async with pipeline.epochs(2) as epochs:
            async for epoch in epochs:
                await anext(epoch)
                break
    except ExceptionGroup:
        pass


async def leave_by_body_async(pipeline: Any) -> None:
    try:
        async for _ in pipeline:
            raise BodyError
    except BodyError:
        pass


async def leave_by_cancellation(pipeline: Any) -> None:
    begun = asyncio.Event()

    async def loop() -> None:
        async for _ in pipeline:
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(loop())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def leave_at_end_async(pipeline: Any) -> None:
    try:
        async for _ in pipeline:
            pass
    except ExceptionGroup:
        pass


WAYS = [
    leave_by_break,
    leave_by_del,
    leave_by_close,
    leave_by_failure,
    leave_by_body,
    leave_by_timeout,
    leave_at_end,
]
ASYNC_WAYS = [
    leave_by_break_async,
    leave_by_close_async,
    leave_by_body_async,
    leave_by_cancellation,
    leave_at_end_async,
]
PIPELINES: dict[str, Callable[[Traces], Any]] = {
    "plain": lambda traces: from_iterable(traces.source()).batch(2),
    "thread": lambda traces: from_iterable(traces.source()).prepare(same, workers=2).batch(2),
    "task": lambda traces: from_iterable(traces.source()).prepare(same_async, workers=2).batch(2),
    "failing": lambda traces: from_iterable(traces.source()).prepare(bad, workers=2).batch(2),
    "failing task": lambda traces: from_iterable(traces.source()).prepare(bad_async).batch(2),
    "skipping": lambda traces: (
        from_iterable(traces.source()).prepare(bad, on_error="skip").shuffle(4).prefetch(2)
    ),
    "timed": lambda traces: (
        from_iterable(traces.source()).prepare(bad, on_error="skip", item_timeout=60).batch(2)
    ),
    "keyed": lambda traces: from_iterable(traces.source()).prepare(
        same, ordered=False, concurrency_key=lambda example: int(example[0]) % 2, max_per_key=1
    ),
}


async def and_wait(way: Callable[[Any], Awaitable[None]], make: Any, traces: Traces) -> bool:
    await way(make(traces))
    return await asyncio.to_thread(traces.are_collected)


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("kind", PIPELINES)
def test_a_pipeline_that_was_left_is_collected(traces: Traces, kind: str) -> None:
    make = PIPELINES[kind]
    for way in WAYS:
        way(make(traces))
        assert traces.are_collected(), way.__name__
    for async_way in ASYNC_WAYS:
        assert asyncio.run(and_wait(async_way, make, traces)), async_way.__name__
    assert traces.made > len(WAYS)


@pytest.mark.slow
def test_a_pipeline_on_processes_that_was_left_is_collected(traces: Traces) -> None:
    def make(traces: Traces) -> Any:
        return from_iterable(traces.source()).prepare(same, where="process", workers=1).batch(2)

    for way in WAYS:
        way(make(traces))
        assert traces.are_collected(), way.__name__
    for async_way in (leave_by_break_async, leave_by_cancellation):
        assert asyncio.run(and_wait(async_way, make, traces)), async_way.__name__


def test_pipelines_made_at_random_leave_nothing(traces: Traces) -> None:
    """The generator of the class: stages, faces and ways of leaving, drawn by a seed."""
    draw = random.Random(20)
    stages: list[Callable[[Any], Any]] = [
        lambda one: one.prepare(same, workers=2),
        lambda one: one.prepare(same_async),
        lambda one: one.prepare(bad, on_error="skip", ordered=False),
        lambda one: one.shuffle(5),
        lambda one: one.filter(lambda example: True),
        lambda one: one.prefetch(2),
        lambda one: one.take(20),
    ]
    for _ in range(12):
        pipeline = from_iterable(traces.source())
        names = draw.choices(range(len(stages)), k=draw.randint(1, 3))
        for number in names:
            pipeline = stages[number](pipeline)
        if draw.random() < 0.5:
            way = draw.choice(WAYS)
            way(pipeline)
            del pipeline
            assert traces.are_collected(), (names, way.__name__)
        else:
            async_way = draw.choice(ASYNC_WAYS)
            made = [pipeline]
            del pipeline
            assert asyncio.run(and_wait(async_way, lambda _, made=made: made.pop(), traces)), (
                names,
                async_way.__name__,
            )


@pytest.mark.parametrize("function", [same, bad, same_async, bad_async])
@pytest.mark.parametrize("on_error", ["skip", "stop"])
def test_a_prepare_that_was_left_is_collected(traces: Traces, function: Any, on_error: Any) -> None:
    def run() -> None:
        queue = sync.FIFOQueue(5)
        try:
            with sync.Coordinator() as coord:
                coord.start(
                    inputs.prepare(
                        traces.source(), function, into=queue, workers=2, on_error=on_error
                    )
                )
                queue.dequeue()
        except ExceptionGroup:
            pass

    async def run_async() -> None:
        queue = aioqueue.FIFOQueue(5)
        try:
            async with aioqueue.Coordinator() as coord:
                coord.start(
                    inputs.prepare(
                        traces.source(), function, into=queue, workers=2, on_error=on_error
                    )
                )
                await queue.dequeue()
        except ExceptionGroup:
            pass

    run()
    assert traces.are_collected()
    asyncio.run(run_async())
    assert traces.are_collected()


def test_a_runner_that_was_never_started_is_collected(traces: Traces) -> None:
    kept = traces.of(Open())

    def function(item: Any, kept: Any = kept) -> Any:
        return item

    for where in ("thread", "task"):
        inputs.prepare([1], same_async if where == "task" else function, into=sync.FIFOQueue(5))
    del kept, function
    assert traces.are_collected()


@pytest.mark.parametrize("way", ["break", "close", "end"])
def test_a_stream_that_was_left_is_collected(traces: Traces, way: str) -> None:
    def run() -> None:
        with sync.Coordinator() as coord:
            stream = inputs.shuffle_batch(
                traces.source(), 2, capacity=8, min_after_dequeue=2, coord=coord
            )
            for _ in stream:
                if way == "break":
                    break
                if way == "close":
                    coord.request_stop()

    run()
    assert traces.are_collected()


class Connection:
    """A source that says good-bye when it is closed, which takes a while."""

    def __init__(self, *, hangs_at: int) -> None:
        self.hangs_at = hangs_at
        self.open = 0

    async def items(self) -> AsyncIterator[int]:
        self.open += 1
        try:
            for number in range(100):
                if number == self.hangs_at:
                    await asyncio.Event().wait()
                yield number
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(10):
                    await asyncio.sleep(0)
            self.open -= 1


@pytest.mark.parametrize("hangs_at", [6, 1000])
@pytest.mark.parametrize("way", [leave_by_break_async, leave_by_body_async])
def test_a_source_is_closed_though_the_program_ends_at_once(hangs_at: int, way: Any) -> None:
    """`asyncio.run` cancels the tasks that are left, and waits for them."""
    makes: list[Callable[[Any], Any]] = [
        lambda source: source.batch(2),
        lambda source: source.filter(lambda _: True).shuffle(3),
        lambda source: source.prepare(same_async).batch(2),
        lambda source: source.prepare(same, workers=2).batch(2),
    ]
    for make in makes:
        connection = Connection(hangs_at=hangs_at)
        asyncio.run(way(make(from_iterable(connection.items))))
        assert not connection.open


def test_a_collection_during_a_snapshot_blocks_no_caller(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A finalizer that strikes in the middle of a call of ours does not wait for workers that need
    the very lock which that call holds."""
    gauge = importlib.import_module("aioqueue.workers.timing")
    copy = gauge._Sum.copy
    names: dict[str, Any] = {"gc": gc, "copy": copy}
    # Written there, so to speak: where collections strike by themselves nobody can say.
    code = "def collects(total):\n    gc.collect()\n    return copy(total)\n"
    exec(compile(code, str(gauge.__file__), "exec"), names)
    pipeline = inputs.items(range(10**6)).prepare(float, workers=2).batch(4)
    with pipeline.monitor() as monitor:
        loop = iter(pipeline)
        next(loop)
        circle: list[Any] = [loop]
        circle.append(circle)
        working = [thread for thread in threading.enumerate() if "aioqueue-float" in thread.name]
        assert working
        gc.disable()
        try:
            del loop, circle
            monkeypatch.setattr(gauge._Sum, "copy", names["collects"])
            monitor.snapshot()
        finally:
            gc.enable()
        for thread in working:
            thread.join(5)
            assert not thread.is_alive()
    assert "has failed" not in caplog.text


class TestScopes:
    """A scope around a loop, or the stop of the coordinator whose worker loops, has not failed."""

    @staticmethod
    def waiting(gate: threading.Event) -> Any:
        def prepared(number: int) -> int:
            if number:
                gate.wait(60)
            return number

        return inputs.items(range(100)).prepare(prepared, workers=1).batch(1)

    @pytest.mark.parametrize("timeout", [None, 0.05])
    def test_the_end_of_a_scope_is_no_failure(
        self, timeout: float | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        gate = threading.Event()
        pipeline = self.waiting(gate)
        expected = aioqueue.CancelledError if timeout is None else aioqueue.DeadlineExceededError
        with pytest.raises(expected), sync.CancelScope(timeout) as scope:
            for _ in pipeline:
                if timeout is None:
                    scope.cancel()
        gate.set()
        spin_until(lambda: not names_of_ours())
        assert not caplog.records

    def test_a_worker_that_loops_sees_the_stop_as_at_any_wait(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        gate, begun = threading.Event(), threading.Event()
        pipeline = self.waiting(gate)
        raised: list[BaseException] = []

        def work() -> None:
            try:
                for _ in pipeline:
                    begun.set()
            except Exception as error:
                raised.append(error)

        with sync.Coordinator() as coord:
            worker = threading.Thread(target=work)
            coord.register(worker)
            worker.start()
            assert begun.wait(60)
            coord.request_stop()
            gate.set()
        assert [type(error) for error in raised] == [aioqueue.CancelledError]
        spin_until(lambda: not names_of_ours())
        assert not caplog.records

    @pytest.mark.parametrize("is_function", [False, True])
    def test_a_pipeline_within_another_is_left_with_it(
        self, is_function: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        inner = inputs.items(range(1000)).prepare(takes_a_while, workers=1).batch(1)
        if is_function:
            outer = inputs.items(range(100)).prepare(lambda _: len(next(iter(inner))), workers=2)
        else:
            outer = from_iterable(lambda: iter(inner)).prepare(len, workers=2)
        for _ in range(4):
            with outer.batch(1).epochs(1) as epochs:
                assert next(next(epochs)).tolist() == [1]
        spin_until(lambda: not names_of_ours())
        assert not caplog.records


def takes_a_while(number: int) -> int:
    time.sleep(0.01)  # so that the loop around it waits in its queue
    return number


def names_of_ours() -> list[str]:
    """The threads of runs; those of shared objects stay, and are of other tests."""
    names = [one.name for one in threading.enumerate()]
    return [name for name in names if name.startswith("aioqueue-") and name[9:13] != "shar"]
