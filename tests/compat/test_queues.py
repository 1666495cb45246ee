"""Queues in a session: order, blocking, counts, closing, batches, names, static shapes."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import aioqueue
import aioqueue.compat.v1 as tf
from tests.compat.steps import Step, blocked, native, waiting
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
    "fifo": fifo,
    "shuffle": shuffle,
    "padding": padding,
    "priority": tf.PriorityQueue,
}
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
    def test_what_is_put_in_comes_out(self, sess: Any, numbers: _OfNumbers) -> None:
        queue = numbers()
        number = tf.placeholder(tf.int32, [])
        put, take = queue.enqueue(numbers.element(number)), queue.dequeue()
        for one in (1, 2, 3):
            sess.run(put, {number: one})
        assert sess.run(queue.size()) == 3
        got = sorted(int(numbers.value(sess.run(take))) for _ in range(3))
        assert got == [1, 2, 3]
        assert sess.run(queue.size()) == 0

    def test_nothing_happens_before_a_session_runs_it(self, sess: Any) -> None:
        queue = fifo()
        queue.enqueue(1)
        assert sess.run(queue.size()) == 0

    def test_each_run_is_a_new_attempt(self, sess: Any) -> None:
        queue = fifo()
        put = queue.enqueue(1)
        sess.run(put)
        sess.run(put)
        assert sess.run(queue.size()) == 2

    def test_size_and_is_closed_have_their_types(self, sess: Any) -> None:
        queue = fifo()
        size, closed = sess.run([queue.size(), queue.is_closed()])
        assert (type(size), type(closed)) == (np.int32, np.bool_)
        assert (queue.size().dtype, queue.is_closed().dtype) == (tf.int32, tf.bool)

    def test_a_full_queue_blocks_and_room_wakes(self, sess: Any, numbers: _OfNumbers) -> None:
        queue = numbers(1)
        put = queue.enqueue(numbers.element(tf.constant(7)))
        take = queue.dequeue()
        sess.run(put)
        second = blocked(sess, queue, put)
        sess.run(take)
        second.result()
        assert sess.run(queue.size()) == 1

    def test_an_empty_queue_blocks_and_an_element_wakes(
        self, sess: Any, numbers: _OfNumbers
    ) -> None:
        queue = numbers()
        put, take = queue.enqueue(numbers.element(tf.constant(7))), queue.dequeue()
        first = blocked(sess, queue, take)
        sess.run(put)
        assert numbers.value(first.result()) == 7

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

    def test_a_small_dequeue_waits_behind_a_big_one(self, sess: Any) -> None:
        queue = fifo()
        put, take = queue.enqueue_many([[1, 2]]), queue.dequeue()
        big = blocked(sess, queue, queue.dequeue_many(4))
        small = blocked(sess, queue, take)
        sess.run(put)
        assert waiting(sess, queue) == 2
        sess.run(put)
        assert big.result().tolist() == [1, 2, 1, 2]
        sess.run(put)
        assert small.result() == 1

    def test_waiting_enqueues_enter_in_order(self, sess: Any, numbers: _OfNumbers) -> None:
        """Also those of a priority queue: by arrival, not by priority."""
        queue = numbers(1)
        number = tf.placeholder(tf.int32, [])
        put, take = queue.enqueue(numbers.element(number)), queue.dequeue()
        sess.run(put, {number: 5})
        steps = [blocked(sess, queue, put, {number: one}) for one in (9, 1, 4)]
        got = [int(numbers.value(sess.run(take))) for _ in range(4)]
        assert got == [5, 9, 1, 4]
        for step in steps:
            step.result()

    def test_a_blocked_element_cannot_be_the_one_drawn(self, sess: Any) -> None:
        for seed in range(8):
            queue = tf.RandomShuffleQueue(2, 0, "int32", (), seed=seed)
            put = queue.enqueue(3)
            sess.run(queue.enqueue_many([[1, 2]]))
            step = blocked(sess, queue, put)
            assert sess.run(queue.dequeue()) in (1, 2)
            step.result()

    def test_run_of_both_ends_on_an_empty_queue(self, sess: Any, numbers: _OfNumbers) -> None:
        queue = numbers()
        put, take = queue.enqueue(numbers.element(tf.constant(5))), queue.dequeue()
        element, nothing = sess.run([take, put])
        assert (numbers.value(element), nothing) == (5, None)

    def test_the_same_dequeue_twice_is_one_element_and_two_ops_are_two(self, sess: Any) -> None:
        queue = fifo()
        sess.run(queue.enqueue_many([[1, 2, 3]]))
        take, other = queue.dequeue(), queue.dequeue()
        assert sess.run([take, take]) == [1, 1]
        assert sorted(sess.run([take, other])) == [2, 3]

    def test_one_component_fetched_takes_the_whole_element(self, sess: Any) -> None:
        queue = fifo(dtypes=["int32", "int32"], shapes=[(), ()])
        sess.run(queue.enqueue_many([[1, 2], [3, 4]]))
        first, _ = queue.dequeue()
        assert sess.run(first) == 1
        assert sess.run(first) == 2

    def test_a_fed_dequeue_takes_nothing(self, sess: Any) -> None:
        queue = fifo()
        sess.run(queue.enqueue(1))
        take = queue.dequeue()
        assert sess.run(take + 1, {take: 41}) == 42
        assert sess.run(queue.size()) == 1


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
        with pytest.raises(tf.errors.CancelledError, match=CANCELLED_IN):
            putting.result()
        with pytest.raises(tf.errors.OutOfRangeError, match=r"requested 1, current size 0"):
            getting.result()
        assert sess.run(queue.is_closed())

    def test_zero_closes_when_no_one_waits(self, sess: Any) -> None:
        queue = fifo(0)
        sess.run(queue.close())
        assert sess.run(queue.is_closed())
        with pytest.raises(tf.errors.CancelledError, match=CLOSED):
            sess.run(queue.enqueue(1))

    def test_zero_for_elements_of_any_type(self, sess: Any) -> None:
        types, shapes = ["string", "string", "bool", "float32"], [[], [0], [], [2, None]]
        queue = tf.PaddingFIFOQueue(0, types, shapes)
        assert sess.run(queue.size()) == 0

    @pytest.mark.parametrize("capacity", [-1, -7, None])
    def test_below_zero_there_is_no_bound(self, sess: Any, capacity: Any) -> None:
        queue = fifo(capacity)
        sess.run(queue.enqueue_many([list(range(5000))]))
        assert sess.run(queue.size()) == 5000

    def test_a_float_is_cut(self, sess: Any) -> None:
        queue = fifo(2.5)
        sess.run(queue.enqueue_many([[1, 2]]))
        assert waiting(sess, queue) == 0
        step = blocked(sess, queue, queue.enqueue(3))
        sess.run(queue.dequeue())
        step.result()


class TestEnqueueMany:
    def test_rows_enter_as_there_is_room_and_stay_together(self, sess: Any) -> None:
        queue = fifo(2)
        take = queue.dequeue()
        many = blocked(sess, queue, queue.enqueue_many([[1, 2, 3, 4]]))
        one = blocked(sess, queue, queue.enqueue(9))
        assert sess.run(queue.size()) == 2
        assert [sess.run(take) for _ in range(5)] == [1, 2, 3, 4, 9]
        many.result()
        one.result()

    def test_rows_that_are_in_stay_in(self, sess: Any) -> None:
        queue = fifo(2)
        step = blocked(sess, queue, queue.enqueue_many([[1, 2, 3, 4]]))
        sess.run(queue.close(cancel_pending_enqueues=True))
        with pytest.raises(tf.errors.CancelledError, match=CANCELLED_IN):
            step.result()
        assert sess.run(queue.dequeue_up_to(9)).tolist() == [1, 2]

    def test_so_they_do_after_a_timeout(self, sess: Any) -> None:
        queue = fifo(2)
        with pytest.raises(tf.errors.DeadlineExceededError, match=r"^Timed out waiting"):
            sess.run(queue.enqueue_many([[1, 2, 3, 4]]), options=tf.RunOptions(timeout_in_ms=20))
        assert sess.run(queue.size()) == 2

    def test_no_rows_succeed_whatever_the_state(self, sess: Any, numbers: _OfNumbers) -> None:
        queue = numbers(1)
        none = np.zeros(0, np.int32)
        nothing = queue.enqueue_many([none.astype(np.int64), none] if numbers.pairs else [none])
        put = queue.enqueue(numbers.element(tf.constant(1)))
        sess.run(put)
        step = blocked(sess, queue, put)
        sess.run(nothing)
        sess.run(queue.close(cancel_pending_enqueues=True))
        with pytest.raises(tf.errors.CancelledError):
            step.result()
        sess.run(nothing)
        assert sess.run(queue.size()) == 1


class TestBatches:
    def test_more_than_the_capacity(self, sess: Any, make: Callable[..., Any]) -> None:
        queue = make(2)
        many = blocked(sess, queue, queue.dequeue_many(7))
        sess.run(queue.enqueue_many([list(range(7))]))
        assert sorted(many.result().tolist()) == list(range(7))

    def test_rows_are_held_back_at_once(self, sess: Any, make: Callable[..., Any]) -> None:
        queue = make(3)
        many = blocked(sess, queue, queue.dequeue_many(4))
        sess.run(queue.enqueue_many([[1, 2, 3]]))
        assert sess.run(queue.size()) == 0
        sess.run(queue.enqueue_many([[4, 5, 6]]))
        assert len(many.result()) == 4
        assert sess.run(queue.size()) == 2

    def test_none_are_returned_at_once(self, sess: Any, numbers: _OfNumbers) -> None:
        queue = numbers()
        step = blocked(sess, queue, queue.dequeue())
        for take in (queue.dequeue_many(0), queue.dequeue_up_to(0)):
            assert numbers.value(sess.run(take)).shape == (0,)
        sess.run(queue.close())
        with pytest.raises(tf.errors.OutOfRangeError):
            step.result()
        assert numbers.value(sess.run(queue.dequeue_many(0))).shape == (0,)

    def test_closing_puts_rows_back_for_the_next_in_line(self, sess: Any) -> None:
        queue = fifo()
        many = blocked(sess, queue, queue.dequeue_many(4))
        one = blocked(sess, queue, queue.dequeue())
        sess.run(queue.enqueue_many([[1, 2]]))
        sess.run(queue.close())
        with pytest.raises(tf.errors.OutOfRangeError, match=r"requested 2, current size 0"):
            many.result()
        assert one.result() == 1

    def test_and_for_a_smaller_batch(self, sess: Any) -> None:
        queue = fifo()
        big = blocked(sess, queue, queue.dequeue_many(5))
        small = blocked(sess, queue, queue.dequeue_many(2))
        sess.run(queue.enqueue_many([[1, 2, 3]]))
        sess.run(queue.close())
        with pytest.raises(tf.errors.OutOfRangeError):
            big.result()
        assert small.result().tolist() == [1, 2]
        assert sess.run(queue.size()) == 1

    def test_rows_that_are_back_may_exceed_the_capacity(self, sess: Any) -> None:
        queue = fifo(2)
        many = blocked(sess, queue, queue.dequeue_many(6))
        sess.run(queue.enqueue_many([[1, 2, 3, 4, 5]]))
        sess.run(queue.close())
        with pytest.raises(tf.errors.OutOfRangeError):
            many.result()
        assert sess.run(queue.size()) == 5

    def test_the_numbers_told_are_those_of_the_moment(
        self, sess: Any, make: Callable[..., Any]
    ) -> None:
        queue = make()
        many = queue.dequeue_many(4)
        step = blocked(sess, queue, many)
        sess.run(queue.enqueue_many([[1, 2, 3]]))
        sess.run(queue.close())
        with pytest.raises(tf.errors.OutOfRangeError, match=r"requested 1, current size 0\)"):
            step.result()
        with pytest.raises(tf.errors.OutOfRangeError, match=r"requested 4, current size 3\)"):
            sess.run(many)

    def test_a_priority_queue_takes_nothing_early(self, sess: Any) -> None:
        queue = tf.PriorityQueue(10, "int32", ())
        step = blocked(sess, queue, queue.dequeue_many(4))
        sess.run(queue.enqueue_many([np.array([3, 1, 2]), [30, 10, 20]]))
        assert sess.run(queue.size()) == 3
        sess.run(queue.close())
        with pytest.raises(tf.errors.OutOfRangeError, match=r"requested 4, current size 3\)"):
            step.result()

    def test_a_priority_queue_never_has_more_than_its_capacity(self, sess: Any) -> None:
        queue = tf.PriorityQueue(2, "int32", ())
        sess.run(queue.enqueue_many([np.array([2, 1]), [20, 10]]))
        step = Step(lambda: sess.run(queue.dequeue_many(3)))
        sess.run(queue.close())
        with pytest.raises(tf.errors.OutOfRangeError, match=r"requested 3, current size 2\)"):
            step.result()
        assert sess.run(queue.dequeue_up_to(3))[1].tolist() == [10, 20]
        with pytest.raises(tf.errors.OutOfRangeError, match=r"requested 3, current size 0\)"):
            sess.run(queue.dequeue_up_to(3))

    def test_up_to_waits_for_all_while_it_is_open(self, sess: Any, numbers: _OfNumbers) -> None:
        queue = numbers()
        number = tf.placeholder(tf.int32, [])
        put = queue.enqueue(numbers.element(number))
        sess.run(put, {number: 1})
        step = blocked(sess, queue, queue.dequeue_up_to(3))
        for one in (2, 3):
            assert not step.done
            sess.run(put, {number: one})
        assert sorted(numbers.value(step.result()).tolist()) == [1, 2, 3]

    def test_up_to_gives_the_last_ones_and_never_none(self, sess: Any, numbers: _OfNumbers) -> None:
        """Of a priority queue as well: TensorFlow lost them."""
        queue = numbers()
        number = tf.placeholder(tf.int32, [])
        put, take = queue.enqueue(numbers.element(number)), queue.dequeue_up_to(5)
        step = blocked(sess, queue, take)
        for one in (1, 2):
            sess.run(put, {number: one})
        sess.run(queue.close())
        assert sorted(numbers.value(step.result()).tolist()) == [1, 2]
        with pytest.raises(tf.errors.OutOfRangeError):
            sess.run(take)

    def test_n_may_be_fed_also_as_a_vector_of_one(self, sess: Any) -> None:
        queue = fifo()
        sess.run(queue.enqueue_many([[1, 2, 3]]))
        n = tf.placeholder(tf.int32)
        take = queue.dequeue_many(n)
        assert take.shape.as_list() == [None]
        assert sess.run(take, {n: 2}).tolist() == [1, 2]
        assert sess.run(take, {n: [1]}).tolist() == [3]


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
        with pytest.raises(tf.errors.CancelledError, match=CLOSED):
            after.result()
        sess.run(take)

    def test_twice_is_an_error(self, sess: Any, numbers: _OfNumbers) -> None:
        queue = numbers()
        close = queue.close()
        sess.run(close)
        with pytest.raises(tf.errors.CancelledError, match=r"Queue '_\d+_.*' is already closed\."):
            sess.run(close)

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
        with pytest.raises(tf.errors.CancelledError, match="already closed"):
            second.result()

    def test_cancelling_cancels_enqueues_and_closes(self, sess: Any) -> None:
        queue = fifo(1)
        put, close = queue.enqueue(1), queue.close()
        sess.run(put)
        waits = blocked(sess, queue, put)
        closing = Step(lambda: sess.run(close))
        spin_until(native(sess, queue).is_closed)
        sess.run(queue.close(cancel_pending_enqueues=True))
        for step in (waits, closing):
            with pytest.raises(tf.errors.CancelledError, match=CANCELLED_IN):
                step.result()
        assert sess.run(queue.is_closed())

    def test_cancelling_may_be_done_again_and_a_plain_one_not(self, sess: Any) -> None:
        queue = fifo()
        cancel = queue.close(cancel_pending_enqueues=True)
        for _ in range(3):
            sess.run(cancel)
        with pytest.raises(tf.errors.CancelledError, match="already closed"):
            sess.run(queue.close())
        with pytest.raises(tf.errors.CancelledError, match=CLOSED):
            sess.run(queue.enqueue(1))

    def test_what_is_inside_comes_out(self, sess: Any, numbers: _OfNumbers) -> None:
        queue = numbers()
        put, take = queue.enqueue(numbers.element(tf.constant(1))), queue.dequeue()
        for _ in range(2):
            sess.run(put)
        sess.run(queue.close())
        for _ in range(2):
            assert numbers.value(sess.run(take)) == 1
        with pytest.raises(tf.errors.OutOfRangeError, match="is closed and has insufficient"):
            sess.run(take)

    def test_waiting_dequeues_fail_at_once(self, sess: Any, numbers: _OfNumbers) -> None:
        queue = numbers()
        steps = [blocked(sess, queue, queue.dequeue()) for _ in range(3)]
        sess.run(queue.close())
        for step in steps:
            with pytest.raises(tf.errors.OutOfRangeError, match=r"requested 1, current size 0\)"):
                step.result()

    def test_errors_are_aioqueues_own(self, sess: Any) -> None:
        queue = fifo()
        sess.run(queue.close())
        with pytest.raises(aioqueue.OutOfRangeError) as caught:
            sess.run(queue.dequeue())
        assert (caught.value.requested, caught.value.remaining) == (1, 0)
        with pytest.raises(aioqueue.QueueClosedError):
            sess.run(queue.enqueue(1))


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
            with pytest.raises(tf.errors.DeadlineExceededError):
                sess.run(queue.dequeue())
            sess.run(queue.enqueue(1))
            assert sess.run(queue.dequeue()) == 1

    def test_those_behind_one_that_is_gone_go_on(self, sess: Any) -> None:
        queue = fifo()
        sess.run(queue.enqueue(1))
        soon = tf.RunOptions(timeout_in_ms=200)
        head = blocked(sess, queue, queue.dequeue_many(3), options=soon)
        behind = blocked(sess, queue, queue.dequeue())
        with pytest.raises(tf.errors.DeadlineExceededError):
            head.result()
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
            with pytest.raises(tf.errors.CancelledError, match=CANCELLED_OUT):
                step.result()
        with pytest.raises(tf.errors.CancelledError, match=CANCELLED_IN):
            putting.result()

    def test_a_failing_op_ends_the_others_of_its_step(self, sess: Any) -> None:
        queue, other = fifo(), fifo()
        take = queue.dequeue()
        sess.run(other.close())
        with pytest.raises(tf.errors.OutOfRangeError):
            sess.run([take, other.dequeue()])
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
        with pytest.raises(tf.errors.CancelledError, match=CANCELLED_IN):
            waits.result()
        with pytest.raises(tf.errors.CancelledError, match=r"^Run call was cancelled$"):
            closing.result()


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

    def test_scalars_are_numpy_scalars_and_strings_bytes(self, sess: Any) -> None:
        queue = fifo(dtypes=["int32", "string", "string"], shapes=[(), (), (2,)])
        sess.run(queue.enqueue([1, "a", ["b", "cd"]]))
        number, text, texts = sess.run(queue.dequeue())
        assert type(number) is np.int32
        assert text == b"a"
        assert type(text) is bytes
        assert texts.dtype == object
        assert texts.tolist() == [b"b", b"cd"]

    def test_without_shapes_elements_have_any(self, sess: Any) -> None:
        queue = tf.FIFOQueue(10, ["int32", "string"])
        for value, text in ((1, "a"), ([1, 2], ["b"]), ([[3]], [["c", "d"]])):
            sess.run(queue.enqueue([value, text]))
        got = [sess.run(queue.dequeue()) for _ in range(3)]
        assert [np.shape(one) for one, _ in got] == [(), (2,), (1, 1)]
        assert got[0][1] == b"a"
        sess.run(queue.enqueue_many([[1, 2], ["x", "y"]]))
        assert sess.run(queue.dequeue()) == [1, b"x"]

    def test_surplus_components_are_dropped(self, sess: Any) -> None:
        queue = fifo()
        sess.run(queue.enqueue([1, 2, 3]))
        assert sess.run(queue.dequeue()) == 1

    def test_numpy_values_are_cast(self, sess: Any) -> None:
        queue = fifo()
        sess.run(queue.enqueue(np.float64(3.7)))
        assert sess.run(queue.dequeue()) == 3

    def test_an_empty_list_has_the_components_dtype(self, sess: Any) -> None:
        queue = fifo(shapes=[0])
        assert queue.enqueue([[]]).inputs[1].dtype == tf.int32

    def test_names_make_dicts(self, sess: Any) -> None:
        queue = fifo(dtypes=["int32", "float32"], shapes=[(), ()], names=["n", "x"])
        sess.run(queue.enqueue({"x": 0.5, "n": 1}))
        sess.run(queue.enqueue_many({"x": [1.5, 2.5], "n": [2, 3]}))
        assert sess.run(queue.dequeue()) == {"n": 1, "x": 0.5}
        batch = sess.run(queue.dequeue_many(2))
        assert {key: value.tolist() for key, value in batch.items()} == {
            "n": [2, 3],
            "x": [1.5, 2.5],
        }


class TestPadding:
    def make(self) -> Any:
        return tf.PaddingFIFOQueue(10, ["int32", "string", "int32"], [[None, 2], [None], [2]])

    def fill(self, sess: Any, queue: Any, *sizes: int) -> None:
        for size in sizes:
            sess.run(queue.enqueue([np.full((size, 2), size), ["s"] * size, [size, size]]))

    def test_batches_are_padded_to_their_own_largest(self, sess: Any) -> None:
        queue = self.make()
        self.fill(sess, queue, 1, 3, 5)
        numbers, texts, fixed = sess.run(queue.dequeue_many(2))
        assert numbers.shape == (2, 3, 2)
        assert numbers[0].tolist() == [[1, 1], [0, 0], [0, 0]]
        assert texts.tolist() == [[b"s", b"", b""], [b"s", b"s", b"s"]]
        assert fixed.tolist() == [[1, 1], [3, 3]]

    def test_single_elements_are_not(self, sess: Any) -> None:
        queue = self.make()
        self.fill(sess, queue, 2)
        assert [np.shape(one) for one in sess.run(queue.dequeue())] == [(2, 2), (2,), (2,)]

    def test_a_remainder_is_padded_to_its_own_largest(self, sess: Any) -> None:
        queue = self.make()
        self.fill(sess, queue, 5, 1, 2)
        sess.run(queue.close())
        sess.run(queue.dequeue())
        assert sess.run(queue.dequeue_up_to(9))[0].shape == (2, 2, 2)

    def test_a_batch_of_none_has_no_size(self, sess: Any) -> None:
        queue = self.make()
        assert [one.shape for one in sess.run(queue.dequeue_many(0))] == [(0, 0, 2), (0, 0), (0, 2)]

    def test_any_rank(self, sess: Any) -> None:
        """TensorFlow stopped at 4."""
        queue = tf.PaddingFIFOQueue(10, "float32", [[None] * 5])
        for size in (1, 2):
            sess.run(queue.enqueue(np.ones([size] * 5)))
        assert sess.run(queue.dequeue_many(2)).shape == (2, 2, 2, 2, 2, 2)

    def test_zero_sizes(self, sess: Any) -> None:
        queue = tf.PaddingFIFOQueue(10, "int32", [[None]])
        for size in (0, 2):
            sess.run(queue.enqueue(np.ones(size)))
        assert sess.run(queue.dequeue_many(2)).tolist() == [[0, 0], [1, 1]]

    def test_bools_and_whole_batches_in(self, sess: Any) -> None:
        queue = tf.PaddingFIFOQueue(10, "bool", [[None]])
        sess.run(queue.enqueue_many([[[True, True], [True, True]]]))
        sess.run(queue.enqueue([[True]]))
        assert sess.run(queue.dequeue_many(3)).tolist() == [[True] * 2, [True] * 2, [True, False]]


class TestPriority:
    def test_the_smallest_leaves_first_over_all_of_int64(self, sess: Any) -> None:
        info = np.iinfo(np.int64)
        keys = np.array([3, info.max, -1, info.min, 0])
        queue = tf.PriorityQueue(10, "int32", ())
        sess.run(queue.enqueue_many([keys, np.arange(5)]))
        priorities, values = sess.run(queue.dequeue_many(5))
        assert priorities.tolist() == sorted(keys)
        assert values.tolist() == [3, 2, 4, 0, 1]

    def test_ties_leave_as_they_came(self, sess: Any) -> None:
        queue = tf.PriorityQueue(-1, "int32", ())
        sess.run(queue.enqueue_many([np.zeros(12), np.arange(12)]))
        assert sess.run(queue.dequeue_many(12))[1].tolist() == list(range(12))

    def test_its_dtypes_shapes_and_names_begin_with_the_priority(self) -> None:
        queue = tf.PriorityQueue(10, "float32", [(2,)], names=("p", "x"))
        assert queue.dtypes == [tf.int64, "float32"]
        assert [shape.as_list() for shape in queue.shapes] == [[], [2]]
        assert queue.names == ("p", "x"), "as they were given"


class TestShuffle:
    def test_it_keeps_some_inside_until_closed(self, sess: Any) -> None:
        queue = tf.RandomShuffleQueue(10, 3, "int32", (), seed=1)
        sess.run(queue.enqueue_many([list(range(5))]))
        take = queue.dequeue()
        first = {int(sess.run(take)) for _ in range(2)}
        step = blocked(sess, queue, take)
        assert sess.run(queue.size()) == 3
        sess.run(queue.close())
        rest = {int(step.result()), *sess.run(queue.dequeue_many(2)).tolist()}
        assert first | rest == set(range(5))

    def test_a_batch_takes_down_to_what_is_kept_and_waits(self, sess: Any) -> None:
        queue = tf.RandomShuffleQueue(10, 2, "int32", (), seed=1)
        sess.run(queue.enqueue_many([list(range(5))]))
        step = blocked(sess, queue, queue.dequeue_many(4))
        assert sess.run(queue.size()) == 2
        sess.run(queue.enqueue(5))
        assert len(step.result()) == 4
        assert sess.run(queue.size()) == 2

    def test_unbounded_queues_may_keep_any_number(self, sess: Any) -> None:
        queue = tf.RandomShuffleQueue(-1, 10**6, "int32", ())
        sess.run(queue.enqueue(1))
        assert sess.run(queue.size()) == 1


class TestStaticShapes:
    def test_of_what_comes_out(self) -> None:
        queue = fifo(dtypes=["int32", "float32"], shapes=[(), (3, 2)])
        shapes = [one.shape.as_list() for one in queue.dequeue()]
        assert shapes == [[], [3, 2]]
        assert [one.shape.as_list() for one in queue.dequeue_many(5)] == [[5], [5, 3, 2]]
        assert [one.shape.as_list() for one in queue.dequeue_up_to(5)] == [[None], [None, 3, 2]]

    def test_without_shapes_nothing_is_known(self) -> None:
        queue = tf.FIFOQueue(10, "int32")
        assert queue.dequeue().shape.ndims is None
        assert queue.dequeue_many(3).shape.ndims is None

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ((), [[]]),
            ([], [[]]),
            ((3, 2), [[3, 2]]),
            ([3, 2], [[3, 2]]),
            ([[3, 2]], [[3, 2]]),
            (tf.TensorShape([4]), [[4]]),
        ],
    )
    def test_one_shape_in_its_many_forms(self, given: Any, expected: Any) -> None:
        queue = tf.FIFOQueue(10, "int32", given)
        assert [shape.as_list() for shape in queue.shapes] == expected

    def test_a_size_in_a_list_of_shapes_is_a_shape(self) -> None:
        queue = tf.FIFOQueue(10, ["int32", "int32"], [2, [3]])
        assert [shape.as_list() for shape in queue.shapes] == [[2], [3]]

    def test_dtypes_are_as_given(self) -> None:
        assert tf.FIFOQueue(10, ("float", tf.int32)).dtypes == ["float", tf.int32]


class TestNames:
    def test_of_ops(self) -> None:
        queue = fifo(name="q")
        assert queue.name == "q"
        assert [
            queue.enqueue(1).name,
            queue.enqueue(1).name,
            queue.enqueue_many([[1]]).name,
            queue.dequeue().op.name,
            queue.dequeue_many(1).op.name,
            queue.dequeue_up_to(1).op.name,
            queue.close().name,
            queue.size().op.name,
            queue.is_closed().op.name,
            queue.size(name="mine").op.name,
        ] == [
            *("q_enqueue", "q_enqueue_1", "q_EnqueueMany", "q_Dequeue", "q_DequeueMany"),
            *("q_DequeueUpTo", "q_Close", "q_Size", "q_Is_Closed", "mine"),
        ]

    def test_of_components(self) -> None:
        inputs = fifo(dtypes=["int32", "int32"], shapes=None, name="q").enqueue([1, 2]).inputs
        assert [one.op.name for one in inputs] == [
            "q",
            "q_enqueue/component_0",
            "q_enqueue/component_1",
        ]

    def test_ops_are_made_in_the_current_scope(self) -> None:
        with tf.name_scope("a"):
            queue = fifo(name="q")
        with tf.name_scope("b"):
            assert queue.name == "a/q"
            assert queue.enqueue(1).name == "b/q_enqueue"
            assert queue.size().op.name == "b/q_Size"

    def test_defaults(self) -> None:
        assert tf.FIFOQueue(1, "int32").name == "fifo_queue"
        assert tf.FIFOQueue(1, "int32").name == "fifo_queue_1"
        assert tf.RandomShuffleQueue(1, 0, "int32").name == "random_shuffle_queue"
        assert tf.PaddingFIFOQueue(1, "int32", [[]]).name == "padding_fifo_queue"
        assert tf.PriorityQueue(1, "int32", ()).name == "priority_queue"
        assert tf.FIFOQueue(1, "int32", name=None).name == "FIFOQueueV2"

    def test_in_messages(self, sess: Any) -> None:
        with tf.name_scope("a"):
            queue = fifo(name="q")
        shared = fifo(shared_name="common")
        for one, pattern in ((queue, r"FIFOQueue '_\d+_a/q' is"), (shared, "'common' is closed")):
            sess.run(one.close())
            with pytest.raises(tf.errors.OutOfRangeError, match=pattern):
                sess.run(one.dequeue())

    def test_they_are_exported_in_three_places(self) -> None:
        for name in ("QueueBase", "RandomShuffleQueue", "PaddingFIFOQueue", "PriorityQueue"):
            assert getattr(tf, name) is getattr(tf.queue, name) is getattr(tf.io, name)
        assert tf.FIFOQueue is tf.queue.FIFOQueue


class TestFromList:
    def test_the_index_is_evaluated_by_each_run(self, sess: Any) -> None:
        queues = [fifo(), shuffle()]
        index = tf.placeholder(tf.int32, [])
        chosen = tf.QueueBase.from_list(index, queues)
        put, take = chosen.enqueue(index), chosen.dequeue()
        for one in (0, 1, 1):
            sess.run(put, {index: one})
        assert sess.run([queue.size() for queue in queues]) == [1, 2]
        assert sess.run(take, {index: 1}) == 1
        assert chosen.name.endswith(chosen.queue_ref.op.name)

    @pytest.mark.parametrize("bad", [3, -1, 2])
    def test_a_bad_index(self, sess: Any, bad: int) -> None:
        chosen = tf.QueueBase.from_list(tf.constant(bad), [fifo(), fifo()])
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=rf"indices = {bad} is not in \[0, 2\)"
        ):
            sess.run(chosen.size())

    def test_shapes_are_merged(self) -> None:
        def shapes(*given: Any) -> Any:
            merged = tf.QueueBase.from_list(0, [fifo(shapes=[one]) for one in given]).shapes
            return merged[0].as_list() if merged[0].ndims is not None else None

        assert shapes([2, 3], [2, 4]) == [2, None]
        assert shapes([2], [2]) == [2]
        assert shapes([2], [2, 3]) is None

    def test_what_is_no_list_of_like_queues(self) -> None:
        wrong: list[Any] = [(fifo(),), [], [fifo(), 3]]
        for bad in wrong:
            with pytest.raises(TypeError, match="A list of queues expected"):
                tf.QueueBase.from_list(0, bad)
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
