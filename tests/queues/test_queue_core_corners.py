"""Corners of queues and workers that mutation testing found no test for; see `docs/mutation.md`."""

from __future__ import annotations

import asyncio
import threading
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.coordination import aio, coordinator_core
from aioqueue.errors import InvalidArgumentError, OutOfRangeError, QueueClosedError
from aioqueue.queues import aio as queues_aio
from aioqueue.worlds import waker
from tests.kit.worlds import (
    HAS_TRIO,
    PATIENCE,
    CancelledError,
    TaskWorld,
    World,
    core_of,
    needs_trio,
    waiting,
)

if TYPE_CHECKING or HAS_TRIO:
    import trio
    import trio.testing

KINDS: dict[str, tuple[Any, ...]] = {
    "FIFOQueue": (2,),
    "RandomShuffleQueue": (2, 0),
    "PriorityQueue": (2,),
}


@pytest.mark.parametrize("face", [aioqueue, sync], ids=["async", "sync"])
@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    @pytest.mark.parametrize("argument", ["shapes", "names"])
    def test_objects_have_neither_shapes_nor_names(
        self, face: Any, kind: str, argument: str
    ) -> None:
        with pytest.raises(InvalidArgumentError, match=f"{argument}: got .* without dtypes"):
            getattr(face, kind)(*KINDS[kind], **{argument: [()]})

    def test_errors_name_the_queue(self, face: Any, kind: str) -> None:
        queue = getattr(face, kind)(*KINDS[kind], name="images")
        queue.close()
        with pytest.raises(QueueClosedError, match=f"^{kind} 'images' is closed$"):
            queue.enqueue_nowait((1, "element"))
        with pytest.raises(OutOfRangeError, match=f"^{kind} 'images' is closed and has insuff"):
            queue.dequeue_nowait()


async def test_a_wrong_wait_is_named(world: World) -> None:
    queue = world.fifo(2, "int64", ())
    with pytest.raises(InvalidArgumentError, match=r"^max_wait: got -1"):
        await queue.dequeue_up_to(1, max_wait=-1)


@pytest.mark.parametrize("face", [aioqueue, sync], ids=["async", "sync"])
def test_errors_name_a_padding_queue_too(face: Any) -> None:
    queue = face.PaddingFIFOQueue(2, "int64", [None], name="texts")
    queue.close()
    with pytest.raises(QueueClosedError, match=r"^PaddingFIFOQueue 'texts' is closed$"):
        queue.enqueue_nowait([1])


@pytest.mark.parametrize("face", [aioqueue, sync], ids=["async", "sync"])
def test_batches_of_nothing_are_refused(face: Any) -> None:
    """They would never end."""
    with pytest.raises(InvalidArgumentError, match=r"^n: got 0; expected an int >= 1$"):
        face.FIFOQueue(1).batches(0)


async def test_waits_are_counted_in_the_seconds_that_they_took(world: World) -> None:
    queue = world.fifo(1)
    began = perf_counter()
    dequeue = await world.begin(queue.dequeue)
    await queue.enqueue(1)
    assert await dequeue.result() == 1
    enqueues = [await world.begin(queue.enqueue, number) for number in range(2)]
    await queue.dequeue()
    for enqueue in enqueues:
        await enqueue.result()
    statistics = queue.statistics()
    assert 0 < statistics.dequeue_wait <= perf_counter() - began
    assert 0 < statistics.enqueue_wait <= perf_counter() - began


async def cancelled_dequeue(world: TaskWorld, queue: aioqueue.FIFOQueue) -> None:
    dequeue = await world.begin(queue.dequeue)
    dequeue.cancel()
    assert await dequeue.was_cancelled()


async def test_waits_that_were_cancelled_are_counted_too(task_world: TaskWorld) -> None:
    queue = task_world.fifo(1)
    began = perf_counter()
    await cancelled_dequeue(task_world, queue)
    assert 0 < queue.statistics().dequeue_wait <= perf_counter() - began


FIRST_CALLS: dict[str, list[Any]] = {
    "enqueue": [1],
    "enqueue_many": [[1]],
    "dequeue": [],
    "dequeue_many": [1],
    "dequeue_up_to": [1],
    "wait_closed": [],
    "join": [],
}


@needs_trio
@pytest.mark.parametrize("call", FIRST_CALLS)
@pytest.mark.parametrize("by", ["constructor", "sync"])
def test_the_first_call_is_a_checkpoint_in_trio_as_all_are(call: str, by: str) -> None:
    """Though there is nothing to wait for; and then it did not happen."""

    async def main() -> None:
        queue = sync.FIFOQueue(2, "int64", ())
        queue.enqueue(0)
        if call == "wait_closed":
            queue.close()
        face = queue.aio
        if by == "constructor":
            face = aioqueue.FIFOQueue(2, "int64", ())
            face.sync.enqueue(0)
        if call == "join":
            face.task_done()
        with trio.CancelScope() as scope:
            scope.cancel()
            await getattr(face, call)(*FIRST_CALLS[call])
        assert scope.cancelled_caught
        assert face.size() == 1

    trio.run(main)


class InjectedError(BaseException):
    """What a signal handler has raised."""


def striking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise in a handler, once, when a waiting call is about to deliver wakes."""

    def interrupted(wakers: Any) -> None:
        monkeypatch.undo()
        raise InjectedError

    monkeypatch.setattr(queues_aio, "deliver", interrupted)


async def waits_in_line(queue: aioqueue.FIFOQueue[Any]) -> None:
    """Until a task that has stood by needs to be woken."""
    machine = core_of(queue).machine
    while not any(attempt.waits for attempt in machine.waiting()):
        await asyncio.sleep(0)


def test_a_handler_at_the_beginning_loses_no_wake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        queue = aioqueue.FIFOQueue(1)
        dequeue = asyncio.create_task(queue.dequeue())
        await waits_in_line(queue)
        striking(monkeypatch)
        with pytest.raises(InjectedError):
            await queue.enqueue(1)
        assert await asyncio.wait_for(dequeue, PATIENCE) == 1

    asyncio.run(main())


def test_a_handler_at_the_commit_loses_no_wake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        queue = aioqueue.FIFOQueue(1)
        await queue.enqueue(1)
        enqueue = asyncio.create_task(queue.enqueue(2))
        await waits_in_line(queue)
        dequeue = asyncio.create_task(queue.dequeue())  # which comes when the place is granted
        assert queue.dequeue_nowait() == 1
        striking(monkeypatch)
        with pytest.raises(InjectedError):
            await enqueue
        assert await asyncio.wait_for(dequeue, PATIENCE) == 2

    asyncio.run(main())


@pytest.mark.parametrize("change", ["a larger capacity", "the close"])
def test_handlers_before_a_notification_lose_no_wake(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    injected = [1, 2]

    def interrupted(wakers: Any, *, from_anywhere: bool) -> None:
        if injected:
            injected.pop()
            raise InjectedError

    async def main() -> None:
        queue = aioqueue.FIFOQueue(1)
        await queue.enqueue(1)
        enqueue = asyncio.create_task(queue.enqueue(2))
        await waits_in_line(queue)
        monkeypatch.setattr(waker, "deliver", interrupted)
        with pytest.raises(InjectedError):
            if change == "the close":
                queue.close(cancel_pending_enqueues=True)
            else:
                queue.capacity = 2
        assert not injected
        done, _ = await asyncio.wait([enqueue], timeout=PATIENCE)
        assert done == {enqueue}
        was_refused = isinstance(enqueue.exception(), QueueClosedError)
        assert was_refused is (change == "the close")

    asyncio.run(main())


def test_a_timer_ends_with_its_call() -> None:
    """Else the loop would keep a batch for as long as it might have waited."""

    async def main() -> None:
        queue = aioqueue.FIFOQueue(2, "int64", ())
        call = asyncio.create_task(queue.dequeue_up_to(2, max_wait=3600))
        while not waiting(queue):
            await asyncio.sleep(0)
        await queue.enqueue_many([1, 2])
        await call
        loop: Any = asyncio.get_running_loop()
        assert [timer for timer in loop._scheduled if not timer.cancelled()] == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        *[("enqueue_many", [[]]), ("dequeue_many", [0]), ("dequeue_up_to", [0])],
        *[("wait_closed", []), ("join", [])],
    ],
)
def test_calls_that_move_nothing_let_others_run(
    task_world: TaskWorld, call: str, arguments: list[Any]
) -> None:
    """Else a loop of them would keep the event loop for ever."""

    async def body() -> None:
        queue, other = task_world.fifo(2, "int64", ()), task_world.fifo(1)
        operation = task_world.spawn(other.enqueue, 0)
        if call == "wait_closed":
            queue.close()
        while not operation.done:
            await getattr(queue, call)(*arguments)
        assert other.size() == 1

    task_world.run(body)


class TestNames:
    """Workers have different names in a debugger and in a log."""

    @pytest.mark.parametrize("alone", [True, False], ids=["run", "started"])
    def test_of_tasks(self, alone: bool) -> None:
        async def main() -> None:
            seen: list[str] = []

            async def op() -> None:
                task = asyncio.current_task()
                assert task is not None
                seen.append(task.get_name())
                raise OutOfRangeError

            queue = aioqueue.FIFOQueue(1, name="images")
            runner = aioqueue.QueueRunner(queue, [op, op])
            if alone:
                await runner.run()
            else:
                async with aioqueue.Coordinator() as coord:
                    coord.start(runner)
                    await queue.wait_closed()
            assert sorted(seen) == ["aioqueue-op-0", "aioqueue-op-1"]

        asyncio.run(main())

    @needs_trio
    def test_of_tasks_of_trio(self) -> None:
        async def main() -> None:
            seen: list[str] = []

            async def op() -> None:
                seen.append(trio.lowlevel.current_task().name)
                raise OutOfRangeError

            await aioqueue.QueueRunner(aioqueue.FIFOQueue(1, name="images"), [op]).run()
            assert seen == ["aioqueue-op-0"]

        trio.run(main)

    def test_of_those_that_still_run(self, caplog: pytest.LogCaptureFixture) -> None:
        go = threading.Event()
        thread = threading.Thread(target=go.wait, name="reader-7")
        thread.start()
        coord = sync.Coordinator()
        coord.request_stop()
        coord.join([thread], stop_grace_period=0, ignore_live=True)
        (message,) = caplog.messages
        first, where = message.splitlines()
        assert first == "coordinator stopped with workers still running: reader-7"
        assert where.startswith("  reader-7 in ")
        assert "threading.py" in where
        go.set()
        thread.join()

    def test_of_loopers(self) -> None:
        async def main() -> None:
            seen: list[str] = []

            def call() -> None:
                task = asyncio.current_task()
                assert task is not None
                seen.append(task.get_name())
                coord.request_stop()

            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.LooperTask(None, call))
                await coord.wait_for_stop()
            assert seen == ["aioqueue-call"]

        asyncio.run(main())


@needs_trio
def test_a_looper_without_an_interval_does_not_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "monotonic", trio.current_time)
    times: list[float] = []

    async def main() -> None:
        def call() -> None:
            times.append(trio.current_time())
            if len(times) == 4:
                coord.request_stop()

        async with aioqueue.Coordinator() as coord:
            coord.start(aioqueue.LooperTask(None, call))
            await coord.wait_for_stop()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(set(times)) == 1


def test_a_block_that_is_cancelled_cancels_its_loopers(task_world: TaskWorld) -> None:
    """A mere stop would wait for the end of the call that each is in."""

    async def body() -> None:
        queue, other = task_world.fifo(1), task_world.fifo(1)

        async def block() -> None:
            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.LooperTask(None, queue.dequeue))
                await other.dequeue()

        began = perf_counter()
        with pytest.raises(CancelledError):
            await task_world.within(0.05, block)
        assert perf_counter() - began < PATIENCE
        assert queue.statistics().waiting_dequeues == 0

    task_world.run(body)


@pytest.mark.parametrize(("there", "entered"), [(0, 2), (2, 0)])
def test_a_timeout_reports_how_many_rows_are_in(there: int, entered: int) -> None:
    queue = sync.FIFOQueue(2, "int64", ())
    queue.enqueue_many(list(range(there)))
    with pytest.raises(aioqueue.DeadlineExceededError) as caught:
        queue.enqueue_many([1, 2, 3], timeout=0.01)
    assert caught.value.enqueued == entered
    assert ("; 2 of its rows are in" in str(caught.value)) == (entered == 2)
    assert ("of its rows" in str(caught.value)) == (entered > 0)


def test_a_thread_that_waits_with_a_timeout_sleeps() -> None:
    queue = sync.FIFOQueue(1)
    used = thread_time()
    with pytest.raises(aioqueue.DeadlineExceededError):
        queue.dequeue(timeout=0.3)
    assert thread_time() - used < 0.1


@pytest.mark.parametrize("daemon", [True, False])
def test_the_event_loop_of_a_runner_is_a_daemon_as_its_threads_are(daemon: bool) -> None:
    async def op() -> None:
        raise OutOfRangeError

    runner = sync.QueueRunner(sync.FIFOQueue(1, name="images"), [op, op])
    (thread,) = runner.create_threads(daemon=daemon)
    assert thread.daemon is daemon
    assert thread.name == "aioqueue-images-event-loop"
    thread.start()
    thread.join(PATIENCE)


def test_threads_of_a_runner_are_daemons_in_a_block_too() -> None:
    async def main() -> None:
        seen: list[bool] = []

        def op() -> None:
            seen.append(threading.current_thread().daemon)
            raise OutOfRangeError

        queue = aioqueue.FIFOQueue(1)
        async with aioqueue.Coordinator() as coord:
            coord.start(aioqueue.QueueRunner(queue, [op]))
            await queue.wait_closed()
        assert seen == [True]

    asyncio.run(main())


def test_a_looper_that_does_not_end_is_named(
    task_world: TaskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_core, "MIN_CLEAN_UP", 0.0)

    async def body() -> None:
        go, began = anyio.Event(), task_world.fifo(1)  # a stop ends the waits at our own queues

        async def stay() -> None:
            with anyio.CancelScope(shield=True):
                began.enqueue_nowait(None)
                await go.wait()

        async with aioqueue.Coordinator() as coord:
            coord.start(aioqueue.LooperTask(None, stay))
            await began.dequeue()
            coord.request_stop()
            with pytest.raises(ExceptionGroup) as caught:
                await coord.join(stop_grace_period=0.01)
            (error,) = caught.value.exceptions
            assert isinstance(error, aioqueue.StillRunningError)
            assert error.workers == ("aioqueue-stay",)
            go.set()

    task_world.run(body)
