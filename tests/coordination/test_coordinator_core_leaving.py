"""Leaving a block stops, joins and reports once, despite interruptions; it leaves no references."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CodeType, FrameType
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.coordination.classify import leaves_of
from aioqueue.errors import OutOfRangeError, StillRunningError
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate
from tests.kit.coordinators import has_begun_to_join
from tests.kit.worlds import (
    PATIENCE,
    AsyncioWorld,
    TaskWorld,
    TrioWorld,
    core_of,
    needs_trio,
    spin_until,
)

WORLD_TYPES = [AsyncioWorld, pytest.param(TrioWorld, marks=needs_trio)]


def ends() -> None:
    raise OutOfRangeError("the first phase has ended")


async def forever() -> None:
    await Gate().wait(current_waker())


class TestAJoinInside:
    def test_a_later_failure_stops_all_and_is_reported(self) -> None:
        error = ValueError("of the second phase")

        def fails() -> None:
            raise error

        with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
            coord.start(sync.QueueRunner(sync.FIFOQueue(3), [ends]))
            coord.join()
            coord.start(sync.QueueRunner(sync.FIFOQueue(3), [fails]))
            assert coord.wait_for_stop(timeout=PATIENCE)
        assert caught.value.exceptions == (error,)

    def test_a_later_failure_in_tasks(self, task_world: TaskWorld) -> None:
        error = ValueError("of the second phase")

        async def first() -> None:
            ends()

        async def second() -> None:
            raise error

        async def body() -> None:
            with pytest.raises(ExceptionGroup) as caught:
                async with aioqueue.Coordinator() as coord:
                    coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(3), [first]))
                    await coord.join()
                    coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(3), [second]))
                    await coord.wait_for_stop()
            assert caught.value.exceptions == (error,)

        task_world.run(body)

    def test_a_worker_that_starts_meanwhile_is_joined_by_the_block(self) -> None:
        go_first, go_second = threading.Event(), threading.Event()
        error = ValueError("of who came later")

        def first() -> None:
            go_first.wait(PATIENCE)
            ends()

        def second() -> None:
            go_second.wait(PATIENCE)
            raise error

        with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
            coord.start(sync.QueueRunner(sync.FIFOQueue(3), [first]))
            joins = threading.Thread(target=coord.join)
            joins.start()
            spin_until(has_begun_to_join(coord))
            [late] = coord.start(sync.QueueRunner(sync.FIFOQueue(3), [second]))
            go_first.set()
            joins.join(PATIENCE)
            core_of(coord).call_on_stop(go_second.set)  # the block is being left
        assert caught.value.exceptions == (error,)
        assert not late.is_alive()

    def test_a_request_after_the_block_is_raised(self) -> None:
        """No join is left that could report it."""
        coord, go = sync.Coordinator(), threading.Event()
        with coord:
            thread = threading.Thread(target=go.wait, args=(PATIENCE,))
            thread.start()
            with pytest.raises(aioqueue.DeadlineExceededError), sync.CancelScope(0):
                coord.join([thread])
            go.set()
            thread.join()
        error = ValueError()
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            coord.request_stop(error)
        assert caught.value is error

    def test_a_request_after_it_is_recorded(self) -> None:
        error = ValueError()
        returned = False
        with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
            coord.join()
            coord.request_stop(error)  # which raises where no join is left that could tell
            returned = True
        assert caught.value.exceptions == (error,)
        assert returned


class TestCloseOpsThatEndTheProgram:
    @pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
    def test_in_threads(self, kind: type[BaseException]) -> None:
        error = ValueError("beside")

        def cancel() -> None:
            raise kind

        with pytest.raises(kind) as caught, sync.Coordinator() as coord:
            queues = [sync.FIFOQueue(1), sync.FIFOQueue(1)]
            ops = [[lambda queue=queue: queue.enqueue(1)] for queue in queues]
            threads = [
                *coord.start(sync.QueueRunner(queues[0], ops[0], cancel_op=cancel)),
                *coord.start(sync.QueueRunner(queues[1], ops[1])),
            ]
            raise error
        assert coord.joined
        assert not any(thread.is_alive() for thread in threads)
        assert all(queue.is_closed() for queue in queues)
        group = caught.value.__cause__
        assert isinstance(group, ExceptionGroup)
        assert group.exceptions == (error,)

    @pytest.mark.parametrize("cancelled", [False, True], ids=["well", "cancelled"])
    def test_in_tasks(self, task_world: TaskWorld, cancelled: bool) -> None:
        messages: list[object] = []
        began: list[int] = []

        async def body() -> None:
            is_stopping = anyio.Event()

            def cancel() -> None:
                is_stopping.set()
                raise SystemExit(3)

            async def worker() -> None:
                began.append(1)
                with anyio.CancelScope(shield=True):  # else it may end before the stop begins
                    await is_stopping.wait()
                messages.append("ended")

            queues = [aioqueue.FIFOQueue(1), aioqueue.FIFOQueue(1)]
            try:
                with anyio.CancelScope() as scope:
                    async with aioqueue.Coordinator() as coord:
                        coord.start(aioqueue.QueueRunner(queues[0], [worker], cancel_op=cancel))
                        coord.start(aioqueue.QueueRunner(queues[1], [worker]))
                        await task_world.until(lambda: len(began) == 2)
                        if cancelled:
                            scope.cancel()
                            await forever()
            except SystemExit as error:
                messages.append(error.code)
            assert coord.joined
            assert all(queue.is_closed() for queue in queues)

        task_world.run(body)
        assert messages == ["ended", "ended", 3]

    @needs_trio
    def test_a_second_one_in_a_failing_task(self) -> None:
        """In trio this cancels the block; the second Ctrl-C leaves it, with all failures."""
        failed, injected = ValueError(), [KeyboardInterrupt(), KeyboardInterrupt()]
        left = list(injected)

        def cancel() -> None:
            raise left.pop(0)

        def fail() -> None:
            raise failed

        async def body() -> None:
            with pytest.raises(KeyboardInterrupt) as caught:
                async with aioqueue.Coordinator() as coord:
                    for _ in injected:
                        queue = aioqueue.FIFOQueue(1)
                        coord.start(aioqueue.QueueRunner(queue, [forever], cancel_op=cancel))
                    coord.start(aioqueue.LooperTask(None, fail))
                    await forever()
            assert caught.value is injected[1]
            cause = caught.value.__cause__
            assert isinstance(cause, BaseExceptionGroup)
            assert cause.exceptions == (failed, injected[0])

        TrioWorld().run(body)


def test_ctrl_c_during_the_exit_of_a_block_of_threads_is_raised_at_its_end() -> None:
    coord = sync.Coordinator()
    main = threading.main_thread().ident
    assert main is not None

    def inject() -> None:
        spin_until(lambda: any(one.name == "aioqueue-join" for one in threading.enumerate()))
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=inject)
    with pytest.raises(KeyboardInterrupt), coord:
        coord.register(thread)
        thread.start()
    assert coord.joined
    assert not thread.is_alive()


@pytest.mark.slow
# Python drops an exception that is raised in a callback of the collector or of a weak reference.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_in_a_block_of_trio_at_random_moments() -> None:
    """Anywhere in the block or its exit: all workers are joined, and no nursery is corrupt."""
    trio = pytest.importorskip("trio")
    randomly = random.Random(5)
    interrupted = 0
    code: list[CodeType] = []

    async def main(made: list[Any]) -> None:
        queue = aioqueue.FIFOQueue(3)

        async def op() -> None:
            await queue.enqueue(1)

        async with aioqueue.Coordinator(stop_grace_period=PATIENCE) as coord:
            made.append(coord)
            coord.start(aioqueue.QueueRunner(queue, [op, op]))
            await queue.dequeue()
            signal.setitimer(signal.ITIMER_REAL, randomly.uniform(1e-5, 1e-3))
        while signal.getitimer(signal.ITIMER_REAL)[0]:
            pass
        made.append("left before")

    def inject(_: int, frame: FrameType | None) -> None:
        assert frame is not None
        code.append(frame.f_code)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGALRM, inject)
    try:
        for _ in range(300):
            made: list[Any] = []
            try:
                trio.run(main, made)
            except BaseException as error:  # what it is, is what is tested
                interrupted += len(made) == 1
                if made and not made[0].joined:
                    # Python has called `__aexit__`, and the signal strikes before the caller awaits
                    # the coroutine: none of our code has run yet.
                    assert code[-1] is main.__code__
                else:
                    assert all(isinstance(one, KeyboardInterrupt) for one in leaves_of(error))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
        gc.collect()  # a run that broke in Python's gap: what is said of it belongs to this test
    assert interrupted


def test_ctrl_c_while_a_block_of_trio_is_left() -> None:
    trio = pytest.importorskip("trio")
    coord = aioqueue.Coordinator()
    messages: list[str] = []
    began = Gate()

    async def worker() -> None:
        began.open()
        try:
            await forever()
        finally:
            signal.raise_signal(signal.SIGINT)  # the block is being left, and waits for this one
            messages.append("ended")

    async def body() -> None:
        async with coord:
            coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [worker]))
            await began.wait(current_waker())

    with pytest.raises((KeyboardInterrupt, BaseExceptionGroup)) as caught:
        trio.run(body)
    assert all(isinstance(one, KeyboardInterrupt) for one in leaves_of(caught.value))
    assert coord.joined


Way = Callable[[aioqueue.Coordinator], Any]


async def by_a_task_group(coord: aioqueue.Coordinator) -> None:
    async def watch() -> None:
        await coord.wait_for_stop()
        coord.raise_requested_exception()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)


async def by_a_join_in_a_task_group(coord: aioqueue.Coordinator) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(coord.join)


async def by_two_groups(coord: aioqueue.Coordinator) -> None:
    try:
        await coord.join()
    except ExceptionGroup as error:
        raise ExceptionGroup("outer", [ExceptionGroup("inner", [error])]) from None


class TestAFailureIsReportedOnce:
    @pytest.mark.parametrize("way", [by_a_task_group, by_a_join_in_a_task_group, by_two_groups])
    def test_in_groups(self, task_world: TaskWorld, way: Way) -> None:
        error = ValueError("the only one")

        async def fails() -> None:
            raise error

        async def body() -> None:
            with pytest.raises(ExceptionGroup) as caught:
                async with aioqueue.Coordinator() as coord:
                    coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(3), [fails]))
                    await way(coord)
            assert list(leaves_of(caught.value)) == [error]

        task_world.run(body)

    def test_beside_a_straggler(self) -> None:
        error, go = ValueError("the only one"), threading.Event()
        thread = threading.Thread(target=go.wait, args=(PATIENCE,))
        thread.start()
        with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
            coord.request_stop(error)
            coord.join([thread], stop_grace_period=0)
        go.set()
        thread.join()
        found = list(leaves_of(caught.value))
        assert found[0] is error
        assert [type(one) for one in found] == [ValueError, StillRunningError]

    @pytest.mark.parametrize("seed", range(5))
    def test_in_nested_groups(self, seed: int) -> None:
        randomly = random.Random(seed)
        errors: list[Exception] = [ValueError(str(number)) for number in range(6)]

        def nest(depth: int) -> Exception:
            if depth == 0 or randomly.random() < 0.3:
                return randomly.choice(errors)
            parts = [nest(depth - 1) for _ in range(randomly.randint(1, 3))]
            return ExceptionGroup("nested", parts)

        given = [nest(3) for _ in range(8)]
        coord = sync.Coordinator()
        for error in given:
            coord.request_stop(error)
        with pytest.raises(ExceptionGroup) as caught:
            coord.join()
        firsts: list[BaseException] = []
        for error in given:
            known = set(firsts)  # what one report holds twice by itself stays so
            firsts += [leaf for leaf in leaves_of(error) if leaf not in known]
        assert list(leaves_of(caught.value)) == firsts


@contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Payload:
    """An object of the program that must be freed."""

    def __init__(self, known: list[Any]) -> None:
        known.append(weakref.ref(self))


def fails() -> None:
    raise ValueError


async def fails_async() -> None:
    raise ValueError


class TestNothingIsLeft:
    @pytest.mark.slow(but=("plain", "trio-fails"))
    @pytest.mark.parametrize("kind", ["plain", "both faces", "ends", "fails", "looper fails"])
    @pytest.mark.parametrize("world_type", WORLD_TYPES, ids=lambda one: one.name)
    def test_of_a_block(self, world_type: type[TaskWorld], kind: str) -> None:
        known: list[Any] = []

        async def op() -> None:
            if kind == "ends":
                ends()
            if kind == "fails":
                fails()
            await anyio.lowlevel.checkpoint()

        async def block() -> None:
            async with aioqueue.Coordinator() as coord:
                known.extend([weakref.ref(coord), weakref.ref(core_of(coord))])
                if kind == "both faces":
                    assert coord.sync.aio is coord
                if kind == "looper fails":
                    coord.start(aioqueue.LooperTask(None, fails_async))
                else:
                    coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(1), [op] * 2))
                await world.tick()

        async def body() -> None:
            try:
                await block()
            except ExceptionGroup:
                assert "fails" in kind
            await world.until(lambda: all(one() is None for one in known))

        world = world_type()
        with no_collector():
            world.run(body)

    @pytest.mark.parametrize("kind", ["plain", "both faces", "fails"])
    def test_of_a_block_of_threads(self, kind: str) -> None:
        known: list[Any] = []
        queue = sync.FIFOQueue(1)

        def block() -> None:
            with sync.Coordinator() as coord:
                known.extend([weakref.ref(coord), weakref.ref(core_of(coord))])
                if kind == "both faces":
                    assert coord.aio.sync is coord
                op = fails if kind == "fails" else lambda: queue.enqueue(1)
                coord.start(sync.QueueRunner(queue, [op]))
                if "fails" in kind:
                    coord.wait_for_stop()

        with no_collector():
            try:
                block()
            except ExceptionGroup:
                assert "fails" in kind
            spin_until(lambda: all(one() is None for one in known))

    @pytest.mark.slow(every=2)
    def test_of_cancelled_joins(self, loop_world: AsyncioWorld) -> None:
        def size() -> int:
            gc.collect()
            return len(gc.get_objects())

        def is_settled() -> bool:
            """Whether no other thread makes objects, or drops them."""
            before, sizes[-1] = sizes[-1], size()
            return before == sizes[-1]

        sizes: list[int] = []

        async def body() -> None:
            gate = Gate()

            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.QueueRunner(aioqueue.FIFOQueue(3), [forever]))
                task = asyncio.create_task(gate.wait(current_waker()))
                coord.register(task)
                await loop_world.tick()
                for _ in range(3):
                    for _ in range(20):
                        join = asyncio.create_task(coord.join())
                        await asyncio.sleep(0)
                        join.cancel()
                        await asyncio.wait([join])
                    del join
                    sizes.append(size())
                    await loop_world.until(is_settled)
                gate.open()
            assert sizes[2] - sizes[1] < 20

        loop_world.run(body)

    def test_of_runs_that_end_while_another_fills(self) -> None:
        queue, gate = sync.FIFOQueue(1), threading.Event()

        def ends_later() -> None:
            gate.wait(PATIENCE)
            ends()

        known: list[Any] = []
        with no_collector(), sync.Coordinator() as coord:
            coord.start(sync.QueueRunner(queue, [ends_later]))
            for _ in range(3):
                runner = sync.QueueRunner(queue, [ends])
                known.append(weakref.ref(runner))
                [thread] = coord.start(runner)
                thread.join(PATIENCE)
                del runner, thread
            assert not queue.is_closed()
            spin_until(lambda: all(one() is None for one in known))
            gate.set()

    @pytest.mark.parametrize("has_queue", [False, True], ids=["alone", "with a queue"])
    def test_of_a_failing_block_of_threads(self, has_queue: bool) -> None:
        """The failure refers to the block's frame, and so to the coordinator and its queues."""
        known: list[Any] = []

        def block() -> None:
            data = Payload(known)
            with sync.Coordinator() as coord:
                queue = sync.FIFOQueue(1)
                if has_queue:
                    coord.start(sync.QueueRunner(queue, [partial(queue.enqueue, 1)]))
                raise ValueError(str(data))

        with no_collector():
            with pytest.raises(ExceptionGroup):
                block()
            spin_until(lambda: known[0]() is None)

    @pytest.mark.parametrize("world_type", WORLD_TYPES, ids=lambda one: one.name)
    def test_of_a_failing_block_of_tasks(self, world_type: type[TaskWorld]) -> None:
        known: list[Any] = []

        async def block() -> None:
            data = Payload(known)
            async with aioqueue.Coordinator() as coord:
                queue = aioqueue.FIFOQueue(1)
                coord.start(aioqueue.QueueRunner(queue, [partial(queue.enqueue, 1)]))
                raise ValueError(str(data))

        async def body() -> None:
            with pytest.raises(ExceptionGroup):
                await block()
            await world.until(lambda: known[0]() is None)

        world = world_type()
        with no_collector():
            world.run(body)

    def test_queues_keep_the_failure_of_a_block_as_their_cause(self) -> None:
        queue = sync.FIFOQueue(1)
        with pytest.raises(ExceptionGroup), sync.Coordinator() as coord:
            coord.start(sync.QueueRunner(queue, [partial(queue.enqueue, 1)]))
            raise ValueError("of the block")
        with pytest.raises(OutOfRangeError) as raised:
            list(queue)
        assert repr(raised.value.__cause__) == "ValueError('of the block')"

    @pytest.mark.parametrize("where", ["start_loop", "run_loop", "stop_loop"])
    def test_of_a_looper_thread_that_fails(self, where: str) -> None:
        known: list[Any] = []

        def fails_with_data(self: Any) -> None:
            raise ValueError(str(Payload(known)))

        def block() -> None:
            looper = type("Looper", (sync.LooperThread,), {where: fails_with_data})
            with pytest.raises(ExceptionGroup), sync.Coordinator() as coord:
                known.append(weakref.ref(coord._core))
                looper(coord, None).start()
                if where != "stop_loop":
                    assert coord.wait_for_stop(timeout=PATIENCE)

        with no_collector():
            block()
            spin_until(lambda: all(one() is None for one in known))

    def test_of_a_run_without_a_coordinator_that_fails(self) -> None:
        known: list[Any] = []

        def fails_with_data() -> None:
            data = Payload(known)
            raise ValueError(str(data))

        with no_collector():
            runner = sync.QueueRunner(sync.FIFOQueue(1), [fails_with_data])
            [thread] = runner.create_threads(start=True)
            thread.join(PATIENCE)
            del runner, thread
            spin_until(lambda: known[0]() is None)


def test_a_block_stops_and_joins_although_a_signal_handler_raises_during_its_exit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The exception of the handler is raised when all workers have ended."""
    queue = sync.FIFOQueue(2)
    coord = sync.Coordinator()
    stop, injected = coord._core.stop, [TimeoutError("the program's own")]

    def interrupted(error: BaseException | None, worker: str) -> None:
        if injected:
            raise injected.pop()
        stop(error, worker)

    monkeypatch.setattr(coord._core, "stop", interrupted)
    with pytest.raises(TimeoutError, match="own"), coord:
        coord.start(sync.QueueRunner(queue, [lambda: queue.enqueue(1)]))
        (worker,) = coord._core.worker_threads()
        queue.dequeue()
    assert coord.joined
    assert queue.is_closed()
    assert not worker.is_alive()
