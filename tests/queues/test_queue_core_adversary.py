"""What a hostile program may do: failures without notes, Ctrl-C in callbacks, what is left."""

from __future__ import annotations

import asyncio
import dataclasses
import dis
import gc
import signal
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import anyio
import numpy as np
import pytest

import aioqueue
from aioqueue import OutOfRangeError, QueueClosedError, sync
from aioqueue.coordination.workers import StartedTask
from aioqueue.worlds.waker import ThreadWaker
from tests.kit.worlds import PATIENCE, TaskWorld, core_of, spin_until, waiting, waiting_at


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """A failure that nothing can be set on, a note neither."""

    code: int = 3


class Thing:
    """Something whose end can be seen."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    """A dropped queue is freed without the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class TestAFailureThatTakesNoNote:
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    @pytest.mark.parametrize("with_coordinator", [True, False])
    def test_is_reported_and_no_consumer_hangs(self, with_coordinator: bool) -> None:
        queue = sync.FIFOQueue(1)
        failure = FrozenError()

        def fail() -> None:
            raise failure

        coord = sync.Coordinator() if with_coordinator else None
        runner = sync.QueueRunner(queue, [fail])
        runner.create_threads(coord=coord, daemon=True, start=True)
        with pytest.raises(OutOfRangeError) as caught:
            queue.dequeue(timeout=1)
        assert caught.value.__cause__ is failure
        if coord is None:
            assert runner.exceptions_raised == [failure]
        else:
            with pytest.raises(ExceptionGroup) as group:
                coord.join()
            assert group.value.exceptions == (failure,)

    def test_is_recorded_by_request_stop(self) -> None:
        coord = sync.Coordinator()
        coord.request_stop(FrozenError())
        assert coord.should_stop()


class TestCtrlCInACallback:
    def test_the_next_stop_reports_the_others(self) -> None:
        coord = sync.Coordinator()

        def interrupted() -> None:
            raise KeyboardInterrupt

        queues = [sync.FIFOQueue(1) for _ in range(3)]
        for index, queue in enumerate(queues):
            sync.QueueRunner(
                queue, [partial(queue.enqueue, 1)], cancel_op=None if index else interrupted
            ).create_threads(coord=coord, daemon=True, start=True)
        spin_until(lambda: all(queue.statistics().waiting_enqueues == 1 for queue in queues))
        with pytest.raises(KeyboardInterrupt):
            coord.request_stop()
        coord.request_stop()
        coord.join(stop_grace_period=PATIENCE)
        assert all(queue.is_closed() for queue in queues)


@pytest.mark.usefixtures("no_collector")
class TestNothingIsKeptAlive:
    @pytest.mark.parametrize("call", ["enqueue", "enqueue_nowait"])
    def test_by_a_refused_enqueue(self, call: str) -> None:
        queue = sync.FIFOQueue(1)
        queue.close()
        thing = Thing()
        reference = weakref.ref(thing)
        with pytest.raises(QueueClosedError) as caught:
            getattr(queue, call)(thing)
        del thing, caught
        assert reference() is None

    def test_by_a_refused_enqueue_of_a_task(self) -> None:
        async def body() -> weakref.ref[Thing]:
            queue = aioqueue.FIFOQueue(1)
            queue.close()
            thing = Thing()
            try:
                await queue.enqueue(thing)
            except QueueClosedError:
                pass
            return weakref.ref(thing)

        assert asyncio.run(body())() is None

    @pytest.mark.parametrize("both", [False, True])
    def test_by_a_queue_that_is_dropped(self, both: bool) -> None:
        queue = sync.FIFOQueue(1)
        if both:
            assert queue.aio.sync is queue
        thing = Thing()
        reference = weakref.ref(thing)
        queue.enqueue(thing)
        del thing, queue
        assert reference() is None


class TestNothingPilesUp:
    @pytest.mark.slow(every=3)
    def test_runs_of_a_coordinator(self, task_world: TaskWorld) -> None:
        async def body() -> None:
            gc.collect()
            before = sum(isinstance(one, StartedTask) for one in gc.get_objects())
            async with aioqueue.Coordinator() as coord:
                for _ in range(100):
                    queue = aioqueue.FIFOQueue(1)

                    async def end() -> None:
                        raise OutOfRangeError("nothing")

                    coord.start(aioqueue.QueueRunner(queue, [end]))
                    await queue.wait_closed()
                await task_world.tick()
                assert waiting_at(core_of(coord).stopped) <= 2
                workers = [one for one in gc.get_objects() if isinstance(one, StartedTask)]
                assert len(workers) - before <= 64

        task_world.run(body)

    def test_joins_that_were_given_up(self) -> None:
        async def body() -> None:
            coord, end = aioqueue.Coordinator(), threading.Event()
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            coord.register(thread)
            before = set(threading.enumerate())
            for _ in range(10):
                with anyio.move_on_after(0):
                    await coord.join()
            assert len(set(threading.enumerate()) - before) <= 1
            end.set()
            await coord.join()

        asyncio.run(body())

    @pytest.mark.parametrize("world", ["asyncio", "trio"])
    def test_wakers(self, world: str) -> None:
        """Of worlds that have ended, and of loops that take turns in one thread."""
        queue = aioqueue.FIFOQueue(1)

        async def use() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(queue.dequeue)
                while waiting(queue) == 0:
                    await anyio.lowlevel.checkpoint()
                await queue.enqueue(1)

        if world == "trio":
            trio = pytest.importorskip("trio")
            for _ in range(10):
                trio.run(use)
        else:
            loops = [asyncio.new_event_loop() for _ in range(2)]
            for _ in range(10):
                for loop in loops:
                    loop.run_until_complete(use())
            for loop in loops:
                loop.close()
        assert len(core_of(queue).wakers) <= 2


class TestADeadLoop:
    def test_closing_gives_back_what_it_had(self) -> None:
        """A consumer that waits already behind it is not left there for ever."""
        queue = aioqueue.FIFOQueue(3)
        loop = asyncio.new_event_loop()
        task = loop.create_task(queue.dequeue())
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # that is the point
        loop.run_until_complete(asyncio.sleep(0))
        got: list[Any] = []
        consumer = threading.Thread(target=lambda: got.append(queue.sync.dequeue(timeout=1)))
        consumer.start()
        spin_until(lambda: waiting(queue) == 2)
        queue.enqueue_nowait("precious")
        loop.close()
        queue.close()
        consumer.join()
        assert got == ["precious"]


class TestARunThatCannotStart:
    @pytest.mark.parametrize("face", ["aio", "sync"])
    def test_ends(self, monkeypatch: pytest.MonkeyPatch, face: str) -> None:
        """There is no thread left for the second worker."""
        start = threading.Thread.start

        def start_one(thread: threading.Thread) -> None:
            if thread.name.endswith("-1"):
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_one)
        queue = sync.FIFOQueue(1)
        ops = [lambda: queue.enqueue(1)] * 3
        runner: Any = (
            sync.QueueRunner(queue, ops) if face == "sync" else aioqueue.QueueRunner(queue, ops)
        )
        before = set(threading.enumerate())
        try:
            with pytest.raises((RuntimeError, ExceptionGroup)):
                if face == "sync":
                    runner.create_threads(daemon=True, start=True)
                else:
                    asyncio.run(runner.run())
            assert queue.is_closed()
            spin_until(lambda: set(threading.enumerate()) <= before)
            assert repr(runner).endswith("3 workers, idle>")
        finally:
            queue.close(True)


class TestStrayCancellation:
    @pytest.mark.parametrize("with_coordinator", [True, False])
    def test_is_a_failure_and_not_the_end_of_the_input(self, with_coordinator: bool) -> None:
        async def body() -> None:
            queue = aioqueue.FIFOQueue(9)

            async def fetch() -> None:
                other = asyncio.ensure_future(asyncio.sleep(60))
                other.cancel()
                await other

            runner = aioqueue.QueueRunner(queue, [fetch])
            with pytest.raises(ExceptionGroup, match="aioqueue-fetch-0 failed") as caught:
                if with_coordinator:
                    async with aioqueue.Coordinator() as coord:
                        coord.start(runner)
                        await coord.wait_for_stop()
                else:
                    await runner.run()
            (failure,) = caught.value.exceptions
            assert "'fetch' raised CancelledError, but was not cancelled" in str(failure)
            assert isinstance(failure.__cause__, asyncio.CancelledError)

        asyncio.run(asyncio.wait_for(body(), PATIENCE))


def test_the_end_may_come_out_of_a_task_group(task_world: TaskWorld) -> None:
    async def body() -> None:
        queue = aioqueue.FIFOQueue(9)

        async def end() -> None:
            raise OutOfRangeError("nothing more")

        async def in_a_group() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(end)

        async with aioqueue.Coordinator() as coord:
            coord.start(aioqueue.QueueRunner(queue, [in_a_group]))
            await queue.wait_closed()

    task_world.run(body)


def test_a_lock_that_wakes_early_is_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows: the time is not up, and there is no scope whose deadline it could be."""
    wait = ThreadWaker.wait
    monkeypatch.setattr(
        ThreadWaker, "wait", lambda waker, s: wait(waker, None if s is None else s / 2)
    )
    assert sync.Coordinator().wait_for_stop(0.001) is False


NOT_TAKEN = dis.opmap.get("NOT_TAKEN")
"""A mark of CPython 3.14 and later, at which no handler runs: no `except` is in force there."""


def test_ctrl_c_leaves_no_attempt_without_an_owner() -> None:
    """At any step of an async dequeue that is about to wait, outside of `asyncio.run`."""

    async def call(queue: aioqueue.FIFOQueue, step: int) -> bool:
        count = 0

        def trace(frame: Any, event: str, _: Any) -> Callable[..., Any] | None:
            nonlocal count
            if frame.f_code.co_name != "_complete":
                return None
            frame.f_trace = trace  # first: since CPython 3.13, opcodes of a frame without are not
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_code.co_code[frame.f_lasti] != NOT_TAKEN:
                count += 1
                if count == step:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            asyncio.get_running_loop().call_soon(queue.enqueue_nowait, 1)
            await queue.dequeue()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        return count >= step

    step = 1
    while True:
        queue = aioqueue.FIFOQueue(1)
        interrupted = asyncio.run(call(queue, step))
        assert core_of(queue).machine.waiting() == [], step
        if not interrupted:
            break
        step += 1


@pytest.mark.parametrize("seconds", [float("inf"), 10**400])
def test_for_ever_is_a_time_too(seconds: float) -> None:
    queue = sync.FIFOQueue(1)
    queue.enqueue(1)
    assert queue.dequeue(timeout=seconds) == 1
    with sync.Coordinator(stop_grace_period=seconds) as coord:
        coord.start(sync.QueueRunner(queue, [lambda: queue.enqueue(1)]))


def test_uvloop_runs_coroutine_functions_where_it_is_installed() -> None:
    pytest.importorskip("uvloop")
    queue = sync.FIFOQueue(1)

    async def report() -> None:
        await queue.aio.enqueue(type(asyncio.get_running_loop()).__module__)

    with sync.Coordinator() as coord:
        coord.start(sync.QueueRunner(queue, [report]))
        assert queue.dequeue(timeout=PATIENCE).startswith("uvloop")


def test_max_wait_counts_from_the_call() -> None:
    trio = pytest.importorskip("trio")
    clock = pytest.importorskip("trio.testing").MockClock(autojump_threshold=0)

    async def body() -> None:
        queue = aioqueue.FIFOQueue(5)
        await queue.enqueue(1)
        assert await queue.dequeue_up_to(3, max_wait=10) == [1]
        assert trio.current_time() == pytest.approx(began + 10)

    began = clock.current_time()
    trio.run(body, clock=clock)


def test_the_wait_of_a_cancelled_task_counts(task_world: TaskWorld) -> None:
    async def body() -> None:
        queue = aioqueue.FIFOQueue(5)
        taking = await task_world.begin(queue.dequeue)
        taking.cancel()
        assert await taking.was_cancelled()
        assert queue.statistics().dequeue_wait > 0

    task_world.run(body)


def test_a_large_shelf_costs_what_it_holds() -> None:
    tracemalloc.start()
    try:
        sync.RandomShuffleQueue(10**6, 0, ["int8"], [()])
        assert tracemalloc.get_traced_memory()[1] < 2 * 10**6  # of which a million are the rows
    finally:
        tracemalloc.stop()


class TestSomeoneElsesAbsurdRequest:
    """What one caller asks for can be too much for any memory; that is nobody else's affair."""

    @pytest.mark.parametrize("n", [10**12, sys.maxsize, 10**30])
    @pytest.mark.parametrize("shape", [(), (2**13,), (0,)])
    def test_is_its_own(self, n: int, shape: tuple[int, ...]) -> None:
        queue = sync.FIFOQueue(10, "float32", shape)
        got: dict[str, Any] = {}

        def first() -> None:
            got["first"] = queue.dequeue()

        def absurd() -> None:
            got["absurd"] = queue.dequeue_up_to(n)

        threads = [threading.Thread(target=call) for call in (first, absurd)]
        for count, thread in enumerate(threads, 1):
            thread.start()
            spin_until(lambda count=count: waiting(queue) == count)  # type: ignore[misc]
        for value in (1.0, 2.0, 3.0):
            queue.enqueue(np.full(shape, value, "float32"), timeout=PATIENCE)
        spin_until(lambda: "first" in got)
        queue.close()
        for thread in threads:
            thread.join(PATIENCE)
        assert np.array_equal(got["first"], np.full(shape, 1.0))
        assert got["absurd"].shape == (2, *shape)

    def test_only_the_failing_attempt_gets_the_storages_error(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whichever thread makes the move: its owner gets the failure."""
        queue = sync.FIFOQueue(10, "float32", (2**14,))
        storage = core_of(queue).storage
        got: dict[str, Any] = {}

        def take() -> None:
            try:
                queue.dequeue_many(3)
            except ValueError as error:
                got["taker"] = error

        def fail(*_: Any) -> None:
            raise ValueError("array is too big")

        monkeypatch.setattr(storage, "expect", fail)
        other = threading.Thread(target=lambda: got.update(other=queue.dequeue()))
        other.start()
        spin_until(lambda: waiting(queue) == 1)
        taker = threading.Thread(target=take)
        taker.start()
        spin_until(lambda: waiting(queue) == 2)
        queue.enqueue(np.zeros(2**14, "float32"))
        for thread in (other, taker):
            thread.join(PATIENCE)
        assert got["other"].shape == (2**14,)
        assert "too big" in str(got["taker"])
        assert queue.statistics().enqueued == 1

    @pytest.mark.parametrize("capacity", [sys.maxsize, None])
    def test_capacities_beyond_all_memory(self, capacity: int | None) -> None:
        for shape in ((), (0,), (2**13,)):
            queue = sync.FIFOQueue(capacity, "float32", shape)
            queue.enqueue(np.ones(shape, "float32"))
            assert queue.dequeue().shape == shape


class TestASignalHandlerThatRaises:
    """A handler's exception may look like one of ours: the attempt's state decides."""

    @pytest.mark.parametrize(
        "error",
        [
            aioqueue.DeadlineExceededError("the watchdog of the program"),
            aioqueue.CancelledError("not by any scope"),
            OutOfRangeError("of another queue"),
            QueueClosedError("of another queue"),
            FrozenError(),
            ExceptionGroup("several", [OutOfRangeError("x")]),
            GeneratorExit(),
            KeyboardInterrupt(),
        ],
        ids=lambda error: type(error).__name__,
    )
    @pytest.mark.parametrize("method", ["dequeue", "dequeue_many", "enqueue", "enqueue_many"])
    def test_leaves_nothing_behind(self, error: BaseException, method: str) -> None:
        queue = sync.FIFOQueue(1)
        if method.startswith("enqueue"):
            queue.enqueue("first")
        arguments = {"enqueue": ("x",), "enqueue_many": (["x", "y"],), "dequeue_many": (2,)}
        is_felt = threading.Event()

        def handler(*_: object) -> None:
            if not is_felt.is_set():
                is_felt.set()
                raise error

        def press() -> None:
            spin_until(lambda: waiting(queue) == 1)
            while not is_felt.is_set():
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                is_felt.wait(0.02)

        before = signal.signal(signal.SIGUSR1, handler)
        presser = threading.Thread(target=press)
        presser.start()
        try:
            with pytest.raises(type(error)) as caught:
                getattr(queue, method)(*arguments.get(method, ()))
        finally:
            presser.join(PATIENCE)
            signal.signal(signal.SIGUSR1, before)
        assert caught.value is error
        assert waiting(queue) == 0
        if method.startswith("enqueue"):
            assert queue.dequeue(timeout=0) == "first"
        queue.enqueue("precious", timeout=0)
        assert queue.dequeue(timeout=0) == "precious"
        assert queue.size() == 0


def test_a_dead_loop_s_arrays_are_not_where_rows_come_back_from() -> None:
    queue = aioqueue.FIFOQueue(100, "float32", (1024,))
    out = np.zeros((64, 1024), "float32")
    loop = asyncio.new_event_loop()
    task = loop.create_task(queue.dequeue_many(64, out=out))
    loop.run_until_complete(asyncio.sleep(0))
    for number in range(10):
        queue.sync.enqueue(np.full(1024, number + 1, "float32"))
    loop.close()  # and the task is never cancelled
    out[:] = -1
    assert [int(queue.sync.dequeue(timeout=PATIENCE)[0]) for _ in range(10)] == [*range(1, 11)]
    unfinished: Any = task
    unfinished._log_destroy_pending = False
    unfinished.get_coro().close()
