"""A queue has one end, however many runners fill it: it is closed when the last has ended."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import aioqueue
from aioqueue import OutOfRangeError, sync
from aioqueue.coordination import shutdown
from aioqueue.workers.runner import prepare
from aioqueue.worlds.scopes import Gate
from tests.kit.functions import double
from tests.kit.pipelines import coordinated
from tests.kit.preparing import in_loop
from tests.kit.worlds import TaskWorld, ThreadWorld, World, core_of, spin_until

KINDS = ("op", "async op", "prepare", "prepare tasks", "prepare ordered")


def gated(numbers: list[int], gate: Gate | None) -> Iterator[int]:
    """Numbers, of which the last comes when the gate is open."""
    for place, number in enumerate(numbers):
        if gate is not None and place == len(numbers) - 1:
            gate.wait_blocking()
        yield number


def runner_of(kind: str, queue: Any, numbers: Iterator[int]) -> Any:
    """A runner of one kind that puts twice the numbers into a queue of either face."""
    if kind.startswith("prepare"):
        make = in_loop(double) if kind == "prepare tasks" else double
        return prepare(numbers, make, into=queue, workers=2, ordered=kind == "prepare ordered")

    def taken() -> int:
        number = next(numbers, None)
        if number is None:
            raise OutOfRangeError("no more numbers")
        return 2 * number

    def op() -> None:
        queue.sync.enqueue(taken())

    async def op_async() -> None:
        await queue.aio.enqueue(taken())

    face = sync if isinstance(queue, sync.BlockingQueue) else aioqueue
    return face.QueueRunner(queue, op if kind == "op" else op_async)


def face_of(world: World, capacity: int) -> Any:
    queue: Any = world.fifo(capacity)
    return queue.face if isinstance(world, ThreadWorld) else queue


async def rest_of(queue: Any) -> list[int]:
    if isinstance(queue, sync.BlockingQueue):
        return list(queue)
    return [number async for number in queue]


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
async def test_all_arrives(world: World, first: str, second: str) -> None:
    """Whichever runner ends first, the other one continues, and only its end closes the queue."""
    queue = face_of(world, 3)
    async with coordinated(world) as coord:
        runners = [
            runner_of(first, queue, iter(range(9))),  # more than fit, so it has not ended yet
            runner_of(second, queue, iter(range(9, 40))),
        ]
        for runner in runners:
            coord.start(runner)
        assert sorted(await rest_of(queue)) == [2 * number for number in range(40)]
        await coord.join() if isinstance(world, TaskWorld) else coord.join()
        for runner in runners:
            assert repr(runner).endswith(("idle>", "ended>"))


@pytest.mark.parametrize("kind", KINDS)
def test_it_stays_open_until_the_last_has_ended(kind: str) -> None:
    queue = sync.FIFOQueue(100)
    gate = Gate()
    with sync.Coordinator() as coord:
        early = runner_of(kind, queue, iter([1, 2]))
        late = runner_of("op", queue, gated([3, 4], gate))
        coord.start(late)
        coord.start(early)
        spin_until(lambda: queue.size() == 3)
        spin_until(lambda: repr(early).endswith(("idle>", "ended>")))
        assert not queue.is_closed()
        # One that is begun now counts as well.
        latest = runner_of("op", queue, gated([5], other := Gate()))
        coord.start(latest)
        gate.open()
        spin_until(lambda: repr(late).endswith("idle>"))
        assert not queue.is_closed()
        other.open()
        assert sorted(queue) == [2, 4, 6, 8, 10]


def test_a_failure_of_one_stops_all(world: World) -> None:
    error = ValueError("of the first")

    async def body() -> None:
        queue = face_of(world, 3)

        def fail() -> None:
            raise error

        face = sync if isinstance(world, ThreadWorld) else aioqueue
        with pytest.raises(ExceptionGroup) as caught:
            async with coordinated(world) as coord:
                coord.start(prepare(iter(int, 1), double, into=queue))
                coord.start(face.QueueRunner(queue, fail))
                await rest_of(queue)
        assert caught.value.exceptions == (error,)
        with pytest.raises(OutOfRangeError) as ended:
            while True:
                queue.sync.dequeue()
        assert ended.value.__cause__ is error

    world.run(body)


def test_without_a_coordinator_a_failure_waits_for_the_others() -> None:
    queue = sync.FIFOQueue(100)
    error = ValueError("of the first")
    gate = Gate()

    def fail() -> None:
        raise error

    failing = sync.QueueRunner(queue, fail)
    is_running = runner_of("op", queue, gated([1, 2], gate))
    threads = [*is_running.create_threads(start=True), *failing.create_threads(start=True)]
    spin_until(lambda: repr(failing).endswith("idle>"))
    assert not queue.is_closed()
    gate.open()
    assert [queue.dequeue(), queue.dequeue()] == [2, 4]
    with pytest.raises(OutOfRangeError) as ended:
        queue.dequeue()
    assert ended.value.__cause__ is error
    for thread in threads:
        thread.join()


class TestClosingIt:
    def make(
        self, name: str, queue: sync.FIFOQueue, gate: Gate, messages: list[str]
    ) -> sync.QueueRunner:
        numbers = gated([1], gate)

        def op() -> None:
            if next(numbers, None) is None:
                raise OutOfRangeError

        return sync.QueueRunner(
            queue,
            op,
            close_op=lambda: messages.append(f"close {name}"),
            cancel_op=lambda: messages.append(f"cancel {name}"),
        )

    def is_idle(self, runner: sync.QueueRunner) -> bool:
        return repr(runner).endswith("idle>")

    def test_each_in_its_way_in_the_order_of_their_ends(self) -> None:
        queue, messages = sync.FIFOQueue(5), list[str]()
        gates = [Gate() for _ in range(3)]
        runners = [self.make(str(i), queue, gate, messages) for i, gate in enumerate(gates)]
        with sync.Coordinator() as coord:
            for runner in runners:
                coord.start(runner)
            for i in (1, 0, 2):
                assert not messages
                gates[i].open()
                spin_until(partial(self.is_idle, runners[i]))
            assert sorted(messages) == ["close 0", "close 1", "close 2"]
            assert messages[-1] == "close 2"

    def test_a_stop_closes_it_at_once(self) -> None:
        queue, messages = sync.FIFOQueue(5), list[str]()
        gates = [Gate(), Gate()]
        runners = [self.make(str(i), queue, gate, messages) for i, gate in enumerate(gates)]
        coord = sync.Coordinator()
        for runner in runners:
            coord.start(runner)
        gates[0].open()
        spin_until(lambda: repr(runners[0]).endswith("idle>"))
        assert not messages
        coord.request_stop()
        assert messages == ["cancel 0", "cancel 1"]
        gates[1].open()
        coord.join()
        assert messages == ["cancel 0", "cancel 1"]


def test_nothing_is_kept() -> None:
    """Neither by runs that have ended, nor by threads that are never started."""
    queue = sync.FIFOQueue(5)
    threads = sync.QueueRunner(queue, [lambda: None]).create_threads()
    ended = runner_of("op", queue, iter([1]))
    for thread in ended.create_threads(start=True):
        thread.join()
    assert not queue.is_closed()  # it might still be started
    known = weakref.ref(core_of(queue))
    del queue, threads, thread, ended
    gc.collect()
    assert known() is None
    assert all(runs for runs in shutdown._runs.values())


def test_a_dropped_run_is_not_waited_for() -> None:
    queue = sync.FIFOQueue(5)
    sync.QueueRunner(queue, [lambda: None]).create_threads()
    gc.collect()
    is_running = runner_of("op", queue, iter([1]))
    for thread in is_running.create_threads(start=True):
        thread.join()
    assert queue.is_closed()


def test_many_that_end_at_once() -> None:
    """Exactly one runner closes the queue, whichever is the last, and none too early."""
    for _ in range(50):
        queue = sync.FIFOQueue(None)
        closed: list[int] = []
        barrier = threading.Barrier(8)

        def op(queue: sync.FIFOQueue = queue, barrier: threading.Barrier = barrier) -> None:
            queue.enqueue(1)
            barrier.wait()
            raise OutOfRangeError

        def close(queue: sync.FIFOQueue = queue, closed: list[int] = closed) -> None:
            closed.append(queue.size())

        runners = [sync.QueueRunner(queue, op, close_op=close) for _ in range(8)]
        with sync.Coordinator() as coord:
            for runner in runners:
                coord.start(runner)
            coord.join()
        assert closed == [8] * 8


@pytest.mark.parametrize("kind", ["prepare", "prepare ordered"])
def test_a_worker_that_begins_while_the_last_one_closes_it(kind: str) -> None:
    """It comes too late, and says so: nothing of what it has would arrive."""
    queue = sync.FIFOQueue(5)
    late = runner_of(kind, queue, iter(range(9)))
    coord = sync.Coordinator()

    def close() -> None:
        coord.start(late)
        queue.close()

    first = sync.QueueRunner(queue, end, close_op=close)
    with pytest.raises(ExceptionGroup) as caught, coord:
        coord.start(first)
        assert list(queue) == []
        coord.join()
    assert "was closed before" in str(caught.value.exceptions[0])


def end() -> None:
    raise OutOfRangeError("no more")


def test_a_runner_that_leaves_the_queue_open_refuses_no_other() -> None:
    """A runner whose way of closing leaves the queue open leaves it to others."""
    queue = sync.FIFOQueue(20)
    with sync.Coordinator() as coord:
        coord.start(sync.QueueRunner(queue, end, close_op=lambda: None))
        coord.join()
    with sync.Coordinator() as coord:
        coord.start(runner_of("prepare", queue, iter(range(9))))
        assert sorted(queue) == [2 * number for number in range(9)]
