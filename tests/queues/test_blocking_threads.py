"""One queue, many threads and several event loops at the same time, each element exactly once.

The interpreter is set to switch threads as often as it can, so that they meet in the middle of
everything.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from time import perf_counter
from typing import Any

import anyio
import pytest
import trio
import uvloop

import aioqueue
from aioqueue import sync
from aioqueue.core.attempts import QueueState
from aioqueue.errors import OutOfRangeError, QueueClosedError
from aioqueue.queues import queue_core
from aioqueue.testing import wait_until_waiting
from aioqueue.worlds import waker
from tests.kit.worlds import (
    PATIENCE,
    AnyQueue,
    AsyncioWorld,
    Kind,
    core_of,
    press_until,
    spin_until,
    switching_often,
    waiting,
)

PER_PRODUCER = 60


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    with switching_often():
        yield


Runner = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]


def run_uvloop(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def run_asyncio(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(main())


LOOPS: tuple[Runner, ...] = (run_asyncio, run_uvloop, trio.run)


class Crowd:
    """Threads that start together; their failures are raised at the end."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self._start = threading.Event()

    def add(self, call: Callable[..., object], *arguments: object) -> None:
        def run() -> None:
            self._start.wait(PATIENCE)
            try:
                call(*arguments)
            except BaseException as failure:
                self._failures.append(failure)

        self._threads.append(threading.Thread(target=run, daemon=True))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        self._start.set()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(2 * PATIENCE)
        assert [thread for thread in self._threads if thread.is_alive()] == []
        if self._failures:
            raise BaseExceptionGroup("in the crowd", self._failures)


class Factory:
    """Producers and consumers of one queue, in threads and in event loops of every kind."""

    def __init__(self, kind: Kind, capacity: int | None) -> None:
        self.kind = kind
        self.queue: AnyQueue = kind.make(AsyncioWorld(), capacity)
        self.crowd = Crowd()
        self.producers = Crowd()
        self.count = 0
        self.received: list[list[int]] = []

    def numbers(self) -> range:
        """The numbers of one more producer."""
        start = self.count
        self.count += PER_PRODUCER
        return range(start, self.count)

    def add_thread_producer(self, batch: int) -> None:
        numbers, kind, queue = self.numbers(), self.kind, self.queue.sync

        def produce() -> None:
            for start in range(0, PER_PRODUCER, batch):
                if batch == 1:
                    queue.enqueue(kind.element(numbers[start]))
                else:
                    queue.enqueue_many(kind.batch(numbers[start : start + batch]))

        self.producers.add(produce)

    def add_loop_producer(self, run: Runner, batch: int) -> None:
        numbers, kind, queue = self.numbers(), self.kind, self.queue

        async def produce() -> None:
            for start in range(0, PER_PRODUCER, batch):
                if batch == 1:
                    await queue.enqueue(kind.element(numbers[start]))
                else:
                    await queue.enqueue_many(kind.batch(numbers[start : start + batch]))

        self.producers.add(run, produce)

    def add_thread_consumer(self, batch: int) -> None:
        kind, queue = self.kind, self.queue.sync
        received: list[int] = []
        self.received.append(received)

        def consume() -> None:
            if batch == 1:
                received.extend(kind.number(element) for element in queue)
            else:
                for several in queue.batches(batch):
                    received.extend(kind.numbers(several))

        self.crowd.add(consume)

    def add_loop_consumer(self, run: Runner, batch: int) -> None:
        kind, queue = self.kind, self.queue
        received: list[int] = []
        self.received.append(received)

        async def consume() -> None:
            if batch == 1:
                received.extend([kind.number(element) async for element in queue])
            else:
                async for several in queue.batches(batch):
                    received.extend(kind.numbers(several))

        self.crowd.add(run, consume)

    def run(self) -> None:
        self.crowd.start()
        self.producers.start()
        self.producers.join()
        self.queue.close()
        self.crowd.join()
        everything = Counter(number for received in self.received for number in received)
        assert everything == Counter(range(self.count))
        statistics = self.queue.statistics()
        assert (statistics.enqueued, statistics.dequeued) == (self.count, self.count)
        assert waiting(self.queue) == 0

    def check_order_of_producers(self) -> None:
        """Each consumer sees what one producer made in the order in which it was made."""
        for received in self.received:
            for producer in range(0, self.count, PER_PRODUCER):
                own = [n for n in received if producer <= n < producer + PER_PRODUCER]
                assert own == sorted(own)


class TestOneQueue:
    @pytest.mark.parametrize("capacity", [1, 4, None])
    def test_threads(self, kind: Kind, capacity: int | None) -> None:
        factory = Factory(kind, capacity)
        for batch in (1, 1, 5):
            factory.add_thread_producer(batch)
        for batch in (1, 1, 1 if capacity == 1 else 3):
            factory.add_thread_consumer(batch)
        factory.run()
        if kind.name in ("fifo", "padding"):
            factory.check_order_of_producers()

    @pytest.mark.slow(every=5)
    @pytest.mark.parametrize("capacity", [1, 4, None])
    def test_threads_and_loops(self, kind: Kind, capacity: int | None) -> None:
        factory = Factory(kind, capacity)
        for index, run in enumerate(LOOPS):
            factory.add_loop_producer(run, 1 + 4 * (index % 2))
            factory.add_loop_consumer(run, 1 if index % 2 or capacity == 1 else 3)
        factory.add_thread_producer(1)
        factory.add_thread_producer(5)
        factory.add_thread_consumer(1)
        factory.add_thread_consumer(1 if capacity == 1 else 4)
        factory.run()
        if kind.name in ("fifo", "padding"):
            factory.check_order_of_producers()

    @pytest.mark.parametrize("run", LOOPS, ids=["asyncio", "uvloop", "trio"])
    def test_a_thread_fills_what_a_coroutine_empties(self, kind: Kind, run: Runner) -> None:
        factory = Factory(kind, 2)
        factory.add_thread_producer(1)
        factory.add_loop_consumer(run, 1)
        factory.run()
        if kind.ordered and kind.name != "priority":
            assert factory.received == [list(range(PER_PRODUCER))]

    @pytest.mark.parametrize("run", LOOPS, ids=["asyncio", "uvloop", "trio"])
    def test_a_coroutine_fills_what_a_thread_empties(self, kind: Kind, run: Runner) -> None:
        factory = Factory(kind, 2)
        factory.add_loop_producer(run, 1)
        factory.add_thread_consumer(2)
        factory.run()
        if kind.ordered and kind.name != "priority":
            assert factory.received == [list(range(PER_PRODUCER))]

    @pytest.mark.slow(but=("fifo", "large-shuffle", "padding"))
    def test_timeouts_and_cancellations_among_them(self, kind: Kind) -> None:
        """Consumers that give up again and again lose nothing, and neither do the others."""
        factory = Factory(kind, 2)
        for batch in (1, 5):
            factory.add_thread_producer(batch)
        factory.add_thread_consumer(1)
        factory.add_loop_consumer(run_asyncio, 1)
        queue = factory.queue

        def one_more() -> list[int]:
            received: list[int] = []
            factory.received.append(received)
            return received

        def impatient() -> None:
            received = one_more()
            for turn in range(10_000):
                try:
                    received.append(kind.number(queue.sync.dequeue(timeout=turn % 3 * 1e-5)))
                except TimeoutError:
                    continue
                except OutOfRangeError:
                    return

        async def fickle() -> None:
            received = one_more()
            for turn in range(10_000):
                with trio.move_on_after(turn % 3 * 1e-5):
                    try:
                        received.append(kind.number(await queue.dequeue()))
                    except OutOfRangeError:
                        return

        async def wavering() -> None:
            received = one_more()
            while not queue.is_closed():
                tasks = [asyncio.create_task(queue.dequeue()) for _ in range(3)]
                await asyncio.sleep(0)
                tasks[1].cancel()
                tasks[0].cancel()
                tasks[2].cancel()
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
                received.extend(
                    kind.number(outcome)
                    for outcome in outcomes
                    if not isinstance(outcome, BaseException)
                )

        factory.crowd.add(impatient)
        factory.crowd.add(trio.run, fickle)
        factory.crowd.add(run_asyncio, wavering)
        factory.crowd.add(run_uvloop, wavering)
        factory.run()


class TestClose:
    def test_wakes_all_consumers(self) -> None:
        queue = aioqueue.FIFOQueue(1)
        crowd = Crowd()
        ended: list[int] = []

        def thread() -> None:
            with pytest.raises(OutOfRangeError):
                queue.sync.dequeue()
            ended.append(1)

        async def task() -> None:
            with pytest.raises(OutOfRangeError):
                await queue.dequeue_many(3)
            ended.append(1)

        for _ in range(40):
            crowd.add(thread)
        for run in LOOPS:
            crowd.add(run, task)
        crowd.start()
        wait_until_waiting(queue, dequeues=43)
        queue.close()
        crowd.join()
        assert len(ended) == 43

    def test_wakes_all_producers(self) -> None:
        queue = aioqueue.FIFOQueue(1)
        queue.enqueue_nowait(0)
        crowd = Crowd()
        enqueued: list[int] = []

        def thread() -> None:
            with pytest.raises(QueueClosedError) as caught:
                queue.sync.enqueue_many([1, 2])
            enqueued.append(caught.value.enqueued)

        async def task() -> None:
            with pytest.raises(QueueClosedError) as caught:
                await queue.enqueue(3)
            enqueued.append(caught.value.enqueued)

        for _ in range(20):
            crowd.add(thread)
        for run in LOOPS:
            crowd.add(run, task)
        crowd.start()
        wait_until_waiting(queue, enqueues=23)
        queue.close()
        assert queue.statistics().waiting_enqueues == 23
        queue.close(cancel_pending_enqueues=True)
        crowd.join()
        assert enqueued == [0] * 23
        assert queue.dequeue_nowait() == 0

    def test_from_many_threads(self) -> None:
        queue = sync.FIFOQueue(1)
        crowd = Crowd()
        for number in range(10):
            crowd.add(lambda number=number: queue.close(cause=OSError(number)))
        crowd.start()
        crowd.join()
        with pytest.raises(OutOfRangeError) as first:
            queue.dequeue()
        with pytest.raises(OutOfRangeError) as second:
            queue.dequeue()
        assert isinstance(first.value.__cause__, OSError)
        assert first.value.__cause__ is second.value.__cause__


PACKAGE = queue_core.__name__.partition(".")[0]


class Interruption:
    """Calls something once, at the k-th line that this thread runs of aioqueue.

    That is what a signal handler or a finalizer is: code of the same thread, between two lines.
    """

    def __init__(self, line: int, call: Callable[[], object]) -> None:
        self._left = line
        self._call = call

    @property
    def happened(self) -> bool:
        return self._left < 0

    def __enter__(self) -> Interruption:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: Any, event: str, argument: object) -> Any:
        if self._left < 0 or not str(frame.f_globals.get("__name__")).startswith(PACKAGE):
            return None
        if event == "line":
            self._left -= 1
            if self._left < 0:
                self._call()
        return self._trace


def at_every_line(test: Callable[[int], bool]) -> None:
    """Run a test, in a thread, for every line of aioqueue that it comes to; it must not hang."""
    lines = 0
    is_running = True

    def next_line() -> None:
        nonlocal is_running
        is_running = test(lines)

    while is_running:
        crowd = Crowd()
        crowd.add(next_line)
        crowd.start()
        crowd.join()
        lines += 1
    assert lines > 5


class TestInTheMiddleOfAMove:
    """`close`, from a signal handler or a finalizer, between any two lines: no dead-lock."""

    @pytest.mark.slow(but=("fifo", "structured"))
    def test_close_during_a_move(self, kind: Kind) -> None:
        def test(line: int) -> bool:
            queue = kind.make(AsyncioWorld(), 3)
            queue.enqueue_nowait(kind.element(0))
            taken = []
            with Interruption(line, queue.close) as interruption:
                try:
                    queue.sync.enqueue(kind.element(1))
                    inside = [0, 1]
                except QueueClosedError:
                    inside = [0]
                taken.append(kind.number(queue.sync.dequeue()))
            if interruption.happened:
                queue.sync.wait_closed(timeout=PATIENCE)
            queue.close()
            while True:
                try:
                    taken.append(kind.number(queue.sync.dequeue(timeout=PATIENCE)))
                except OutOfRangeError:
                    break
            assert kind.in_order(taken) == inside
            return interruption.happened

        at_every_line(test)

    @pytest.mark.slow
    @pytest.mark.parametrize("run", LOOPS, ids=["asyncio", "uvloop", "trio"])
    def test_close_while_tasks_are_woken(self, run: Runner) -> None:
        """A thread wakes the tasks of a loop, and closes the queue in the middle of that."""

        def test(line: int) -> bool:
            queue = aioqueue.FIFOQueue(9)
            got: list[int] = []
            happened: list[bool] = []

            async def consume() -> None:
                got.extend([element async for element in queue])

            async def main() -> None:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(consume)
                    tasks.start_soon(consume)

            def wake() -> None:
                # One of them is given the element; the other one is told the end meanwhile.
                wait_until_waiting(queue, dequeues=2)
                with Interruption(line, queue.close) as interruption:
                    try:
                        queue.sync.enqueue(0)
                    except QueueClosedError:
                        got.append(0)
                happened.append(interruption.happened)
                queue.close()

            crowd = Crowd()
            crowd.add(run, main)
            crowd.add(wake)
            crowd.start()
            crowd.join()
            assert got == [0]
            return happened[0]

        at_every_line(test)

    @pytest.mark.slow(but=("fifo", "structured"))
    def test_a_task_is_collected_during_a_move(self, kind: Kind) -> None:
        """A finalizer withdraws what a coroutine had waited for, in the middle of an enqueue."""

        def test(line: int) -> bool:
            queue = kind.make(AsyncioWorld(), 9)

            async def main() -> bool:
                waiters: list[Any] = [queue.dequeue_many(3)]
                while waiters[0].send(None) is None:
                    pass  # it lets others run first, perhaps; then it waits for a future
                queue.enqueue_nowait(kind.element(0))
                with Interruption(line, waiters.clear) as interruption:
                    queue.sync.enqueue(kind.element(1))
                happened = interruption.happened
                waiters.clear()
                return happened

            happened = asyncio.run(main())
            got = [kind.number(queue.sync.dequeue(timeout=PATIENCE)) for _ in range(2)]
            assert kind.in_order(got) == [0, 1]
            return happened

        at_every_line(test)


IDLE = {"select", "get_events", "run"}
"""The innermost Python function of an event loop that sleeps: asyncio's, trio's and uvloop's."""


class TestSignals:
    """The real thing, in the main thread."""

    @pytest.fixture(autouse=True)
    def _own_handler(self) -> Iterator[None]:
        before = signal.getsignal(signal.SIGUSR1)
        yield
        signal.signal(signal.SIGUSR1, before)

    @pytest.mark.parametrize("run", LOOPS, ids=["asyncio", "uvloop", "trio"])
    def test_close_from_a_handler_wakes_an_idle_loop(self, run: Runner) -> None:
        queue = aioqueue.FIFOQueue(9)
        handled = threading.Event()

        def handle(*_: object) -> None:
            queue.close()
            handled.set()

        signal.signal(signal.SIGUSR1, handle)
        main_thread = threading.main_thread().ident
        assert main_thread is not None

        def interrupt() -> None:
            wait_until_waiting(queue, dequeues=1)
            spin_until(lambda: sys._current_frames()[main_thread].f_code.co_name in IDLE)
            press_until(handled)

        async def main() -> bool:
            crowd = Crowd()
            crowd.add(interrupt)
            crowd.start()
            began = perf_counter()
            with anyio.move_on_after(PATIENCE), pytest.raises(OutOfRangeError):
                await queue.dequeue()
            crowd.join()
            # The deadline wakes the loop, and might be what delivers the end.
            return perf_counter() - began < PATIENCE / 2

        assert run(main)

    def test_close_from_a_handler_wakes_the_main_thread(self) -> None:
        queue = sync.FIFOQueue(9)
        handled = threading.Event()

        def handle(*_: object) -> None:
            queue.close(cause=OSError("signal"))
            handled.set()

        signal.signal(signal.SIGUSR1, handle)

        def interrupt() -> None:
            wait_until_waiting(queue, dequeues=1)
            press_until(handled)

        crowd = Crowd()
        crowd.add(interrupt)
        crowd.start()
        began = perf_counter()
        with pytest.raises(OutOfRangeError) as caught:
            queue.dequeue(timeout=PATIENCE)
        crowd.join()
        assert isinstance(caught.value.__cause__, OSError)
        # Its deadline wakes the thread too, and might be what lets the handler run.
        assert perf_counter() - began < PATIENCE / 2


def test_a_move_in_the_middle_of_another_is_left_to_a_thread() -> None:
    """`apply_deferred` notices that its own thread holds the lock."""
    queue = sync.FIFOQueue(9)
    machine, lock = core_of(queue).machine, threading.RLock()
    machine.guard_with(lock)
    with lock:
        waker.apply_deferred(machine.close)
        assert queue.state is QueueState.OPEN
    spin_until(queue.is_closed)
    assert lock.acquire()
    lock.release()
