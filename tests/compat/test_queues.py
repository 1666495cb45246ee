"""Queues in a session: order, blocking, counts, closing, batches, names, static shapes."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import aioqueue
import aioqueue.compat.v1 as tf
from tests.compat.steps import Step, blocked, native, refused, waiting
from tests.kit.worlds import spin_until, threads_of_work

CLOSED = r"is closed\."
CANCELLED_IN = r"^Enqueue operation was cancelled"
CANCELLED_OUT = r"^Dequeue operation was cancelled"


def fifo(capacity: Any = 10, dtypes: Any = "int32", shapes: Any = (), **options: Any) -> Any:
    return tf.FIFOQueue(capacity, dtypes, shapes, **options)


def shuffle(capacity: Any = 10, dtypes: Any = "int32", shapes: Any = (), **options: Any) -> Any:
    return tf.RandomShuffleQueue(capacity, 0, dtypes, shapes, **options)


def padding(capacity: Any = 10, dtypes: Any = "int32", **options: Any) -> Any:
    return tf.PaddingFIFOQueue(capacity, dtypes, [[]], **options)


class _OfNumbers:
    """A queue of int32 scalars, whichever kind it is; a number is its own priority."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make
        self.pairs = make is tf.PriorityQueue

    def __call__(self, capacity: int = 10, **options: Any) -> Any:
        if self.pairs:
            return tf.PriorityQueue(capacity, "int32", (), **options)
        return self.make(capacity, **options)

    def element(self, number: Any) -> Any:
        return [tf.cast(number, tf.int64), number] if self.pairs else [number]

    def value(self, element: Any) -> Any:
        return element[1] if self.pairs else element


KINDS: dict[str, Callable[..., Any]] = {
    "fifo": fifo, "shuffle": shuffle, "padding": padding, "priority": tf.PriorityQueue,
}  # fmt: skip
PROGRESSIVE = ["fifo", "shuffle", "padding"]


@pytest.fixture(params=KINDS)
def numbers(request: pytest.FixtureRequest) -> _OfNumbers:
    """Each kind of queue in turn, as one of numbers."""
    return _OfNumbers(KINDS[request.param])


@pytest.fixture(params=PROGRESSIVE)
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Each kind whose batches take elements as they come."""
    return KINDS[request.param]


class TestMoves:
    def test_size_and_is_closed_have_their_types(self, sess: Any) -> None:
        queue = fifo()
        size, closed = sess.run([queue.size(), queue.is_closed()])
        assert (type(size), type(closed)) == (np.int32, np.bool_)
        assert (queue.size().dtype, queue.is_closed().dtype) == (tf.int32, tf.bool)

    def test_each_element_goes_to_one_dequeue(self, sess: Any) -> None:
        queue = fifo(3)
        number = tf.placeholder(tf.int32, [])
        put, take = queue.enqueue(number), queue.dequeue()
        steps = [Step(lambda: [int(sess.run(take)) for _ in range(50)]) for _ in range(4)]
        for one in range(200):
            sess.run(put, {number: one})
        got = [step.result() for step in steps]
        assert sorted(number for one in got for number in one) == list(range(200))
        assert all(one == sorted(one) for one in got)

    def test_a_blocked_element_cannot_be_the_one_drawn(self, sess: Any) -> None:
        for seed in range(8):
            queue = tf.RandomShuffleQueue(2, 0, "int32", (), seed=seed)
            put = queue.enqueue(3)
            sess.run(queue.enqueue_many([[1, 2]]))
            step = blocked(sess, queue, put)
            assert sess.run(queue.dequeue()) in (1, 2)
            step.result()


class TestCapacity:
    def test_zero_blocks_every_enqueue_for_ever(self, sess: Any, numbers: _OfNumbers) -> None:
        if numbers.make is shuffle:
            return  # refuses it, see test_queue_errors
        queue = numbers(0)
        put, take = queue.enqueue(numbers.element(tf.constant(1))), queue.dequeue()
        getting = blocked(sess, queue, take)
        putting = blocked(sess, queue, put)
        assert sess.run(queue.size()) == 0
        assert not getting.done
        sess.run(queue.close(cancel_pending_enqueues=True))
        refused(tf.errors.CancelledError, CANCELLED_IN, putting.result)
        refused(tf.errors.OutOfRangeError, r"requested 1, current size 0", getting.result)
        assert sess.run(queue.is_closed())

    def test_zero_for_elements_of_any_type(self, sess: Any) -> None:
        types, shapes = ["string", "string", "bool", "float32"], [[], [0], [], [2, None]]
        queue = tf.PaddingFIFOQueue(0, types, shapes)
        assert sess.run(queue.size()) == 0


class TestEnqueueMany:
    def test_rows_that_are_in_stay_in(self, sess: Any) -> None:
        queue = fifo(2)
        step = blocked(sess, queue, queue.enqueue_many([[1, 2, 3, 4]]))
        sess.run(queue.close(cancel_pending_enqueues=True))
        refused(tf.errors.CancelledError, CANCELLED_IN, step.result)
        assert sess.run(queue.dequeue_up_to(9)).tolist() == [1, 2]

    def test_so_they_do_after_a_timeout(self, sess: Any) -> None:
        queue = fifo(2)
        with pytest.raises(tf.errors.DeadlineExceededError, match=r"^Timed out waiting"):
            sess.run(queue.enqueue_many([[1, 2, 3, 4]]), options=tf.RunOptions(timeout_in_ms=20))
        assert sess.run(queue.size()) == 2


class TestBatches:
    def test_a_priority_queue_takes_nothing_early(self, sess: Any) -> None:
        queue = tf.PriorityQueue(10, "int32", ())
        step = blocked(sess, queue, queue.dequeue_many(4))
        sess.run(queue.enqueue_many([np.array([3, 1, 2]), [30, 10, 20]]))
        assert sess.run(queue.size()) == 3
        sess.run(queue.close())
        refused(tf.errors.OutOfRangeError, r"requested 4, current size 3\)", step.result)

    def test_a_priority_queue_never_has_more_than_its_capacity(self, sess: Any) -> None:
        queue = tf.PriorityQueue(2, "int32", ())
        sess.run(queue.enqueue_many([np.array([2, 1]), [20, 10]]))
        step = Step(lambda: sess.run(queue.dequeue_many(3)))
        sess.run(queue.close())
        refused(tf.errors.OutOfRangeError, r"requested 3, current size 2\)", step.result)
        assert sess.run(queue.dequeue_up_to(3))[1].tolist() == [10, 20]
        with pytest.raises(tf.errors.OutOfRangeError, match=r"requested 3, current size 0\)"):
            sess.run(queue.dequeue_up_to(3))


class TestClose:
    def test_it_waits_for_the_enqueues_before_it(self, sess: Any, numbers: _OfNumbers) -> None:
        queue = numbers(1)
        put = queue.enqueue(numbers.element(tf.constant(1)))
        close, closed, take = queue.close(), queue.is_closed(), queue.dequeue()
        sess.run(put)
        before = blocked(sess, queue, put)
        closing = Step(lambda: sess.run(close))
        spin_until(native(sess, queue).is_closed)
        assert not sess.run(closed)
        after = Step(lambda: sess.run(put))
        sess.run(take)
        before.result()
        closing.result()
        assert sess.run(closed)
        refused(tf.errors.CancelledError, CLOSED, after.result)
        sess.run(take)

    def test_a_second_one_waits_for_the_first(self, sess: Any) -> None:
        queue = fifo(1)
        put, close = queue.enqueue(1), queue.close()
        sess.run(put)
        waits = blocked(sess, queue, put)
        first = Step(lambda: sess.run(close))
        spin_until(native(sess, queue).is_closed)
        second = Step(lambda: sess.run(close))
        sess.run(queue.dequeue())
        waits.result()
        first.result()
        refused(tf.errors.CancelledError, "already closed", second.result)

    def test_cancelling_cancels_enqueues_and_closes(self, sess: Any) -> None:
        queue = fifo(1)
        put, close = queue.enqueue(1), queue.close()
        sess.run(put)
        waits = blocked(sess, queue, put)
        closing = Step(lambda: sess.run(close))
        spin_until(native(sess, queue).is_closed)
        sess.run(queue.close(cancel_pending_enqueues=True))
        for step in (waits, closing):
            refused(tf.errors.CancelledError, CANCELLED_IN, step.result)
        assert sess.run(queue.is_closed())

    def test_errors_are_aioqueues_own(self, sess: Any) -> None:
        queue = fifo()
        sess.run(queue.close())
        with pytest.raises(aioqueue.OutOfRangeError) as caught:
            sess.run(queue.dequeue())
        assert (caught.value.requested, caught.value.remaining) == (1, 0)
        refused(aioqueue.QueueClosedError, "", lambda: sess.run(queue.enqueue(1)))


class TestCancellation:
    def test_a_timeout_takes_nothing(self, sess: Any, numbers: _OfNumbers) -> None:
        """Also not the rows that a batch held already: TensorFlow lost them."""
        queue = numbers()
        put = queue.enqueue(numbers.element(tf.constant(1)))
        for _ in range(3):
            sess.run(put)
        with pytest.raises(tf.errors.DeadlineExceededError, match=r"^Timed out") as caught:
            sess.run(queue.dequeue_many(4), options=tf.RunOptions(timeout_in_ms=20))
        assert caught.value.op is None
        assert sess.run(queue.size()) == 3

    def test_the_session_may_have_a_timeout(self) -> None:
        queue = fifo()
        with tf.Session(config=tf.ConfigProto(operation_timeout_in_ms=20)) as sess:
            refused(tf.errors.DeadlineExceededError, "", lambda: sess.run(queue.dequeue()))
            sess.run(queue.enqueue(1))
            assert sess.run(queue.dequeue()) == 1

    def test_those_behind_one_that_is_gone_go_on(self, sess: Any) -> None:
        queue = fifo()
        sess.run(queue.enqueue(1))
        soon = tf.RunOptions(timeout_in_ms=200)
        head = blocked(sess, queue, queue.dequeue_many(3), options=soon)
        behind = blocked(sess, queue, queue.dequeue())
        refused(tf.errors.DeadlineExceededError, "", head.result)
        assert behind.result() == 1

    def test_closing_the_session_ends_what_is_blocked(self, numbers: _OfNumbers) -> None:
        queue, full = numbers(), numbers(1)
        put = full.enqueue(numbers.element(tf.constant(1)))
        take, many = queue.dequeue(), queue.dequeue_many(2)
        sess = tf.Session()
        sess.run(put)
        taking = [blocked(sess, queue, one) for one in (take, many)]
        putting = blocked(sess, full, put)
        sess.close()
        for step in taking:
            refused(tf.errors.CancelledError, CANCELLED_OUT, step.result)
        refused(tf.errors.CancelledError, CANCELLED_IN, putting.result)

    def test_a_failing_op_ends_the_others_of_its_step(self, sess: Any) -> None:
        queue, other = fifo(), fifo()
        take = queue.dequeue()
        sess.run(other.close())
        refused(tf.errors.OutOfRangeError, "", lambda: sess.run([take, other.dequeue()]))
        assert waiting(sess, queue) == 0
        sess.run(queue.enqueue(1))
        assert sess.run(take) == 1

    def test_a_pending_close_is_not_withdrawn(self, sess: Any) -> None:
        """Its run returns when the queue is closed, and tells then that it took too long."""
        queue = fifo(1)
        put, close = queue.enqueue(1), queue.close()
        sess.run(put)
        waits = blocked(sess, queue, put)
        closing = Step(lambda: sess.run(close, options=tf.RunOptions(timeout_in_ms=1)))
        spin_until(native(sess, queue).is_closed)
        began = perf_counter()
        spin_until(lambda: perf_counter() > began + 0.01)
        assert not closing.done
        sess.run(queue.dequeue())
        waits.result()
        with pytest.raises(tf.errors.DeadlineExceededError, match=r"^Timed out waiting") as late:
            closing.result()
        assert late.value.op is None
        assert sess.run(queue.is_closed())

    def test_closing_the_session_lets_a_pending_close_go_on(self) -> None:
        queue = fifo(1)
        put, close = queue.enqueue(1), queue.close()
        sess = tf.Session()
        sess.run(put)
        waits = blocked(sess, queue, put)
        behind = native(sess, queue)
        closing = Step(lambda: sess.run(close))
        spin_until(behind.is_closed)
        sess.close()
        refused(tf.errors.CancelledError, CANCELLED_IN, waits.result)
        refused(tf.errors.CancelledError, r"^Run call was cancelled$", closing.result)


class TestValues:
    def test_they_are_copied_in_and_out(self, sess: Any) -> None:
        for queue in (fifo(shapes=[2]), tf.FIFOQueue(10, "int32")):
            fed = tf.placeholder(tf.int32, [2])
            given = np.array([1, 2], np.int32)
            sess.run(queue.enqueue(fed), {fed: given})
            given[:] = 9
            got = sess.run(queue.dequeue())
            assert got.tolist() == [1, 2]
            got[:] = 5


class TestPadding:
    def make(self) -> Any:
        return tf.PaddingFIFOQueue(10, ["int32", "string", "int32"], [[None, 2], [None], [2]])

    def fill(self, sess: Any, queue: Any, *sizes: int) -> None:
        for size in sizes:
            sess.run(queue.enqueue([np.full((size, 2), size), ["s"] * size, [size, size]]))

    def test_any_rank(self, sess: Any) -> None:
        """TensorFlow stopped at 4."""
        queue = tf.PaddingFIFOQueue(10, "float32", [[None] * 5])
        for size in (1, 2):
            sess.run(queue.enqueue(np.ones([size] * 5)))
        assert sess.run(queue.dequeue_many(2)).shape == (2, 2, 2, 2, 2, 2)


class TestPriority:
    def test_ties_leave_as_they_came(self, sess: Any) -> None:
        queue = tf.PriorityQueue(-1, "int32", ())
        sess.run(queue.enqueue_many([np.zeros(12), np.arange(12)]))
        assert sess.run(queue.dequeue_many(12))[1].tolist() == list(range(12))


class TestStaticShapes:
    def test_dtypes_are_as_given(self) -> None:
        assert tf.FIFOQueue(10, ("float", tf.int32)).dtypes == ["float", tf.int32]


class TestNames:
    def test_they_are_exported_in_three_places(self) -> None:
        for name in ("QueueBase", "RandomShuffleQueue", "PaddingFIFOQueue", "PriorityQueue"):
            assert getattr(tf, name) is getattr(tf.queue, name) is getattr(tf.io, name)
        assert tf.FIFOQueue is tf.queue.FIFOQueue


class TestFromList:
    def test_what_is_no_list_of_like_queues(self) -> None:
        wrong: list[Any] = [(fifo(),), [], [fifo(), 3]]
        for bad in wrong:
            refused(TypeError, "A list of queues expected", tf.QueueBase.from_list, 0, bad)
        with pytest.raises(TypeError, match="matching component dtypes"):
            tf.QueueBase.from_list(0, [fifo(), fifo(dtypes="float32")])
        with pytest.raises(TypeError, match="matching component names"):
            tf.QueueBase.from_list(0, [fifo(names="a"), fifo()])


def test_one_graph_in_two_sessions_is_two_queues() -> None:
    queue = fifo(shared_name="q")
    with tf.Session() as one, tf.Session() as two:
        one.run(queue.enqueue(1))
        assert (one.run(queue.size()), two.run(queue.size())) == (1, 0)


def test_no_thread_is_started_for_what_does_not_block_together(sess: Any) -> None:
    queue = fifo()
    put, take = queue.enqueue(1), queue.dequeue()
    before = threads_of_work()
    for _ in range(5):
        sess.run(put)
        sess.run(take)
        sess.run([take, put])
    assert threads_of_work() <= before
