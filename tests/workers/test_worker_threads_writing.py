"""Quick items on threads are enqueued together: what that must not change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.inputs import numbers, prepare
from aioqueue.queues.element_writer import ElementWriter
from tests.kit.worlds import spin_until

Made = tuple[Any, int]


def typed_queue(capacity: int | None = 1000) -> sync.FIFOQueue[Any]:
    return sync.FIFOQueue(capacity, ["float32", "int64"], [(4,), ()])


def make(i: int) -> Made:
    return np.full(4, i, "float32"), i


@pytest.fixture
def collects(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each `collect` of a writer has found."""
    found: list[int] = []
    collect = ElementWriter.collect

    def counted(writer: ElementWriter) -> None:
        found.append(len(writer.arrivals.rows))
        collect(writer)

    monkeypatch.setattr(ElementWriter, "collect", counted)
    return found


class Slow:
    """Makes examples quickly until one number, and waits there until it may go on."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.is_there, self.may_continue = threading.Event(), threading.Event()

    def __call__(self, i: int) -> Made:
        if i == self.at:
            self.is_there.set()
            assert self.may_continue.wait(60)
        return make(i)


def slow_at_one_kept_back(queue: Any, workers: int = 1) -> tuple[Slow, Any, sync.Coordinator]:
    """Start a prepare that waits in an item while examples of earlier ones are not in line."""
    slow = Slow(at=100)
    coord = sync.Coordinator()
    runner = prepare(numbers(1000, epochs=1), slow, into=queue, workers=workers, where="thread")
    coord.start(runner)
    assert slow.is_there.wait(60)
    return slow, runner, coord


class TestExamplesThatAreKeptBack:
    """A worker waits in its function, with examples in its memory: everybody has them."""

    @pytest.fixture(params=[1, 2])
    def queue(self, request: pytest.FixtureRequest) -> Any:
        self.queue_ = typed_queue()
        self.slow, _, self.coord = slow_at_one_kept_back(self.queue_, request.param)
        self.workers = request.param
        yield self.queue_
        self.slow.may_continue.set()
        self.coord.request_stop()
        self.coord.join()

    def first(self, n: int) -> set[int]:
        return set(range(n))

    def test_dequeue(self, queue: Any) -> None:
        found = {int(queue.dequeue(timeout=60)[1]) for _ in range(100)}
        assert found >= self.first(100) or self.workers > 1

    def test_dequeue_nowait(self, queue: Any) -> None:
        found = [int(queue.dequeue_nowait()[1]) for _ in range(100)]
        if self.workers == 1:
            assert found == list(range(100))

    def test_dequeue_many(self, queue: Any) -> None:
        features, found = queue.dequeue_many(100, timeout=60)
        assert (features[:, 0] == found).all()
        if self.workers == 1:
            assert found.tolist() == list(range(100))

    def test_dequeue_up_to(self, queue: Any) -> None:
        if self.workers > 1:
            return
        _, found = queue.dequeue_up_to(500, 0)
        assert found.tolist() == list(range(100))
        with pytest.raises(aioqueue.QueueEmpty):
            queue.dequeue_nowait()

    def test_size_and_statistics(self, queue: Any) -> None:
        if self.workers > 1:
            return
        assert queue.size() == len(queue) == 100
        counts = queue.statistics()
        assert (counts.size, counts.enqueued, counts.unfinished) == (100, 100, 100)
        assert counts.bytes == 100 * 24

    def test_what_was_made_before_the_close_is_inside(self, queue: Any) -> None:
        if self.workers > 1:
            return
        queue.close()
        assert queue.dequeue_many(100)[1].tolist() == list(range(100))

    def test_a_waiting_batch_has_them_with_the_last_row(self, queue: Any) -> None:
        taken: list[Any] = []
        thread = threading.Thread(target=lambda: taken.append(queue.dequeue_many(101, timeout=60)))
        thread.start()
        spin_until(lambda: queue.statistics().waiting_dequeues or taken)
        self.slow.may_continue.set()
        thread.join(60)
        assert len(taken[0][1]) == 101


def test_they_are_enqueued_together(collects: list[int]) -> None:
    queue = typed_queue()
    with sync.Coordinator() as coord:
        coord.start(prepare(numbers(5000, epochs=1), make, into=queue, workers=2, where="thread"))
        found = [i for _, rows in queue.batches(128) for i in rows.tolist()]
    assert sorted(found) == list(range(5000))
    assert len(collects) < 1000
    assert sum(collects) >= 4000


def test_one_worker_keeps_the_order() -> None:
    queue = typed_queue(50)
    with sync.Coordinator() as coord:
        coord.start(prepare(numbers(3000, epochs=1), make, into=queue, workers=1, where="thread"))
        assert [int(number) for _, number in queue] == list(range(3000))


@pytest.mark.parametrize("capacity", [1, 3, 64, 100, None])
def test_no_example_is_lost_at_any_capacity(capacity: int | None) -> None:
    queue = typed_queue(capacity)
    with sync.Coordinator() as coord:
        coord.start(prepare(numbers(2000, epochs=1), make, into=queue, workers=3, where="thread"))
        found = []
        while True:
            try:
                assert capacity is None or queue.size() <= capacity
                found.append(int(queue.dequeue()[1]))
            except aioqueue.OutOfRangeError:
                break
    assert sorted(found) == list(range(2000))


def test_a_function_may_return_the_same_array_again() -> None:
    kept = np.zeros(4, "float32")

    def fill(i: int) -> Made:
        kept[:] = i
        return kept, i

    queue = typed_queue()
    with sync.Coordinator() as coord:
        coord.start(prepare(numbers(2000, epochs=1), fill, into=queue, workers=1, where="thread"))
        for features, found in queue.batches(100):
            assert (features == found[:, None]).all()


def many_good_then(bad: Callable[[int], Any], **options: Any) -> tuple[list[int], Any, Any]:
    """Prepare items of which number 100 is bad; return what arrived, the runner and the error."""
    queue = typed_queue()
    runner: Any = prepare(
        numbers(300, epochs=1),
        lambda i: bad(i) if i == 100 else make(i),
        into=queue,
        workers=1,
        where="thread",
        **options,
    )
    coord = sync.Coordinator()
    found: list[int] = []
    error = None
    coord.start(runner)
    try:
        while True:
            found.append(int(queue.dequeue()[1]))
    except aioqueue.OutOfRangeError:
        pass
    try:
        coord.join()
    except BaseException as raised:
        error = raised
    return found, runner, error


def fails(i: int) -> Any:
    raise ValueError("a bad item")


def test_examples_before_a_failure_are_enqueued() -> None:
    found, _, error = many_good_then(fails)
    assert found == list(range(100))
    assert "a bad item" in str(error.exceptions[0])


@pytest.mark.parametrize("bad", [fails, lambda i: (np.zeros(5, "float32"), i), lambda i: ()])
def test_a_skipped_item_leaves_out_itself_alone(bad: Callable[[int], Any]) -> None:
    found, runner, error = many_good_then(bad, on_error="skip")
    assert error is None
    assert found == [i for i in range(300) if i != 100]
    counts = runner.statistics()
    assert (counts.prepared, counts.examples, counts.skipped) == (299, 299, 1)


def test_examples_of_a_generator_come_behind_those_before_it() -> None:
    def two(i: int) -> Any:
        yield make(i)
        yield make(i)

    found, _, error = many_good_then(two)
    assert error is None
    assert found == [*range(101), *range(100, 300)]


def test_what_a_stop_drops_is_not_counted() -> None:
    queue = typed_queue(200)
    coord = sync.Coordinator()
    runner = prepare(numbers(100_000, epochs=1), make, into=queue, workers=2, where="thread")
    coord.start(runner)
    spin_until(lambda: queue.size() == 200)
    coord.request_stop()
    coord.join()
    assert runner.statistics().examples == queue.statistics().enqueued == 200


def test_a_join_waits_for_what_was_written() -> None:
    queue = typed_queue()
    slow, _, coord = slow_at_one_kept_back(queue)
    queue.dequeue_many(queue.size())
    queue.task_done(100)
    slow.may_continue.set()
    spin_until(lambda: queue.size() > 100)
    with pytest.raises(aioqueue.DeadlineExceededError):
        queue.join(timeout=0)
    coord.request_stop()
    coord.join()
