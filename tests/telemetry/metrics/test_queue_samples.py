"""How long callers wait at a queue: each wait counts once, also those in progress."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from aioqueue import sync
from aioqueue.errors import DeadlineExceededError, OutOfRangeError, QueueClosedError
from aioqueue.queues import aio, blocking
from aioqueue.telemetry.metrics.counters import concurrent
from aioqueue.telemetry.metrics.queue_samples import QueuePart
from aioqueue.telemetry.metrics.snapshots import QueueNumbers, final_queue_numbers
from aioqueue.testing import wait_until_waiting
from tests.kit.worlds import StillClock, TaskOperation, TaskWorld, World, core_of, spin_until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StillClock:
    clock = StillClock()
    monkeypatch.setattr(blocking, "perf_counter", clock)
    monkeypatch.setattr(aio, "perf_counter", clock)
    return clock


def numbers(queue: Any, clock: StillClock) -> QueueNumbers:
    return QueuePart(core_of(queue), clock.now).numbers(clock.now)


class TestWaits:
    def test_of_one_consumer(self, clock: StillClock) -> None:
        """Wall time less service, exactly: five seconds of waiting, three of work, each time."""
        queue = sync.FIFOQueue(2)
        began = clock.now
        may_take, has_taken = threading.Semaphore(0), threading.Semaphore(0)

        def consume() -> None:
            for _ in range(10):
                may_take.acquire()
                queue.dequeue()
                has_taken.release()

        consumer = threading.Thread(target=consume)
        consumer.start()
        for number in range(10):
            may_take.release()
            wait_until_waiting(queue, dequeues=1)
            clock.now += 5.0
            assert numbers(queue, clock).dequeue_wait == 5.0 * (number + 1)
            queue.enqueue(number)
            has_taken.acquire()
            clock.now += 3.0  # of work
        consumer.join()
        assert numbers(queue, clock).dequeue_wait == clock.now - began - 10 * 3.0

    def test_waits_in_progress_are_counted_and_listed(self, clock: StillClock) -> None:
        queue = sync.FIFOQueue(1)
        threads = []
        for seconds in (4.0, 2.0, 1.0):
            threads.append(threading.Thread(target=queue.dequeue))
            threads[-1].start()
            wait_until_waiting(queue, dequeues=len(threads))
            clock.now += seconds
        found = numbers(queue, clock)
        assert found.dequeue_waiting == (7.0, 3.0, 1.0)
        assert found.dequeue_waits.count == 0
        for _ in threads:
            queue.enqueue(None)
        for thread in threads:
            thread.join()
        found = numbers(queue, clock)
        assert found.dequeue_waiting == ()
        assert found.dequeue_waits.count == 3
        assert found.dequeue_waits.longest == 7.0
        assert found.dequeue_wait == 11.0

    def test_that_time_out_are_counted_once(self) -> None:
        queue = sync.FIFOQueue(1)
        with pytest.raises(DeadlineExceededError):
            queue.dequeue(timeout=0.0)
        with pytest.raises(DeadlineExceededError):
            queue.dequeue(timeout=0.001)
        found = numbers(queue, StillClock())
        assert found.dequeue_waits.count == 2
        assert found.dequeue_waiting == ()

    def test_that_fail_are_counted_once(self, clock: StillClock) -> None:
        queue = sync.FIFOQueue(1)
        raised: list[BaseException] = []

        def consume() -> None:
            try:
                queue.dequeue()
            except OutOfRangeError as error:
                raised.append(error)

        consumer = threading.Thread(target=consume)
        consumer.start()
        wait_until_waiting(queue, dequeues=1)
        clock.now += 2.0
        queue.close()
        consumer.join()
        assert raised
        assert numbers(queue, clock).dequeue_waits.count == 1
        assert numbers(queue, clock).dequeue_wait == 2.0

    def test_no_waits(self) -> None:
        queue = sync.FIFOQueue(8)
        for number in range(8):
            queue.enqueue(number)
        for _ in range(8):
            queue.dequeue()
        found = numbers(queue, StillClock())
        assert not found.dequeue_waits.count + found.enqueue_waits.count


class TestInEveryWorld:
    def test_a_cancelled_wait_is_counted_once(self, task_world: TaskWorld) -> None:
        world = task_world

        async def body() -> None:
            queue = world.fifo(4)
            operation = await world.begin(queue.dequeue)
            assert isinstance(operation, TaskOperation)
            operation.cancel()
            assert await operation.was_cancelled()
            found = numbers(queue, StillClock())
            assert found.dequeue_waits.count == 1
            assert found.dequeue_waiting == ()

        world.run(body)

    def test_a_wait_that_ends_well_is_counted_once(self, world: World) -> None:
        async def body() -> None:
            queue = world.fifo(4)
            operation = await world.begin(queue.dequeue)
            assert len(numbers(queue, StillClock()).dequeue_waiting) == 1
            await queue.enqueue(1)
            assert await operation.result() == 1
            found = numbers(queue, StillClock())
            assert found.dequeue_waits.count == 1
            assert found.dequeue_wait > 0
            assert found.dequeue_waiting == ()

        world.run(body)


class Tally:
    """A count that several threads add to."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self.count += count


class TestSumsAgree:
    @pytest.mark.slow
    def test_in_every_snapshot_under_load(self) -> None:
        """Elements inside, taken and held add up while four threads move them and one reads."""
        queue = sync.FIFOQueue(7)
        got: list[int] = []

        def produce(first: int) -> None:
            for number in range(first, 2000, 2):
                queue.enqueue(number)

        def consume() -> None:
            for _ in range(1000):
                got.append(queue.dequeue())  # noqa: PERF401  # what is extended is longer meanwhile

        threads = [
            *(threading.Thread(target=produce, args=(first,)) for first in range(2)),
            *(threading.Thread(target=consume) for _ in range(2)),
        ]
        part, clock, before = QueuePart(core_of(queue), 0.0), StillClock(), None
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            taken = len(got)
            now = part.numbers(clock.now)
            assert now.enqueued == now.dequeued + now.size + now.held
            assert 0 <= now.held <= 2
            assert 0 <= now.size <= 7
            assert now.dequeued >= taken
            if before is not None:
                assert now.enqueued >= before.enqueued
                assert now.dequeued >= before.dequeued
                assert now.dequeue_waits.count >= before.dequeue_waits.count
            before = now
        for thread in threads:
            thread.join()
        now = part.numbers(clock.now)
        assert (now.enqueued, now.dequeued, now.size, now.held) == (2000, 2000, 0, 0)
        assert sorted(got) == list(range(2000))

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["fifo", "shuffle", "priority"])
    def test_in_every_snapshot_while_callers_give_up_and_it_is_closed(self, kind: str) -> None:
        """Single elements and batches, with and without timeouts; three threads read meanwhile."""
        queue: Any = {
            "fifo": sync.FIFOQueue(7),
            "shuffle": sync.RandomShuffleQueue(7, 2, seed=1),
            "priority": sync.PriorityQueue(7),
        }[kind]
        put, got, wrong = Tally(), Tally(), list[str]()
        over = threading.Event()

        def element(number: int) -> Any:
            return (number, number) if kind == "priority" else number

        def produce(first: int) -> None:
            for number in range(first, 20_000, 4):
                try:
                    queue.enqueue(element(number), timeout=0.0 if number % 3 else None)
                except DeadlineExceededError:
                    continue
                except QueueClosedError:
                    return
                put.add(1)

        def produce_batches() -> None:
            while True:
                try:
                    queue.enqueue_many([element(-n) for n in range(11)], timeout=0.0005)
                    put.add(11)
                except DeadlineExceededError as error:
                    put.add(error.enqueued)
                except QueueClosedError as error:
                    put.add(error.enqueued)
                    return

        def consume(batch: int, patience: float | None) -> None:
            while True:
                try:
                    if batch:
                        got.add(len(queue.dequeue_many(batch, timeout=patience)))
                    else:
                        queue.dequeue(timeout=patience)
                        got.add(1)
                except DeadlineExceededError:
                    continue
                except OutOfRangeError:
                    return

        def sample() -> None:
            part = QueuePart(core_of(queue), 0.0)
            before = part.numbers(0.0)
            while not over.is_set():
                now = part.numbers(0.0)
                if now.enqueued != now.dequeued + now.size + now.held:
                    wrong.append(f"sum: {now}")
                if not (0 <= now.size <= 7 and now.held >= 0):
                    wrong.append(f"bounds: {now}")
                if now.enqueued < before.enqueued or now.dequeued < before.dequeued:
                    wrong.append(f"backwards: {before}, {now}")
                before = now

        movers = [
            *(threading.Thread(target=produce, args=(first,)) for first in range(2)),
            threading.Thread(target=produce_batches),
            threading.Thread(target=consume, args=(0, None)),
            threading.Thread(target=consume, args=(0, 0.0005)),
            threading.Thread(target=consume, args=(3, 0.0005)),
        ]
        lookers = [threading.Thread(target=sample) for _ in range(3)]
        for thread in (*lookers, *movers):
            thread.start()
        spin_until(lambda: got.count >= 2000)
        queue.close(cancel_pending_enqueues=True)
        for thread in movers:
            thread.join()
        over.set()
        for thread in lookers:
            thread.join()
        assert wrong == []
        now = QueuePart(core_of(queue), 0.0).numbers(0.0)
        assert now.held == 0
        assert now.dequeued + now.size == now.enqueued == put.count
        assert got.count == now.dequeued


def test_unfinished_elements_are_reported_after_the_first_task_done() -> None:
    """Before that, all elements would count as unfinished."""
    queue, clock = sync.FIFOQueue(9), StillClock()
    queue.enqueue_many([1, 2, 3])
    before = numbers(queue, clock)
    assert before.unfinished is None
    queue.task_done()
    now = numbers(queue, clock)
    assert now.unfinished == 2
    assert concurrent(now, now).unfinished == 4
    assert concurrent(before, now).unfinished == 2
    assert concurrent(before, before).unfinished is None
    assert final_queue_numbers(now).unfinished == 0
    assert final_queue_numbers(before).unfinished is None
