"""Another thread acts between a look at a queue and the act that the look allows.

The executor asks operations to run if they need not wait, outside of the step's scope. One that
blocks there could not be cancelled, and would keep the others of its step from running.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.session.state import Workers
from tests.compat.steps import Step, native, refused, waiting
from tests.kit.worlds import spin_until


def before(queue: Any, method: str, act: Callable[[], Any]) -> None:
    """Let `act` happen once, right before a native queue's method."""
    real = getattr(queue, method)

    def raced(*args: Any, **options: Any) -> Any:
        if vars(queue).pop(method, None):
            act()
        return real(*args, **options)

    setattr(queue, method, raced)


def number(value: int) -> Any:
    return np.int32(value)


class TestOneThatWaits:
    """What has lost the race waits where the end of the session reaches it."""

    def test_a_batch_for_which_there_was_room(self) -> None:
        queue = tf.FIFOQueue(2, tf.int32, ())
        put = queue.enqueue_many([[1, 2]])
        with tf.Session() as sess:
            inside = native(sess, queue)
            before(inside, "enqueue_many", lambda: inside.enqueue(number(7)))
            step = Step(lambda: sess.run(put))
            spin_until(lambda: waiting(sess, queue) == 1)
        refused(tf.errors.CancelledError, "Enqueue operation was cancelled", step.result)
        assert inside.dequeue_many(2).tolist() == [7, 1]

    @pytest.mark.parametrize("method", ["dequeue_many", "dequeue_up_to"])
    def test_a_batch_that_was_there(self, method: str) -> None:
        queue = tf.FIFOQueue(2, tf.int32, ())
        take = getattr(queue, method)(2)
        with tf.Session() as sess:
            sess.run(queue.enqueue_many([[1, 2]]))
            inside = native(sess, queue)
            before(inside, method, inside.dequeue)
            step = Step(lambda: sess.run(take))
            spin_until(lambda: waiting(sess, queue) == 1)
        refused(tf.errors.CancelledError, "Dequeue operation was cancelled", step.result)
        assert inside.dequeue() == 2

    def test_a_time_limit_holds(self, sess: Any) -> None:
        queue = tf.FIFOQueue(1, tf.int32, ())
        put = queue.enqueue_many([[1]])
        inside = native(sess, queue)
        before(inside, "enqueue_many", lambda: inside.enqueue(number(7)))
        with pytest.raises(tf.errors.DeadlineExceededError):
            sess.run(put, options=tf.RunOptions(timeout_in_ms=1))
        assert inside.dequeue() == 7


class TestOneOfSeveral:
    """What has lost the race does not keep the others of its step from running."""

    def test_a_batch_for_which_there_was_room(self, sess: Any) -> None:
        queue = tf.FIFOQueue(1, tf.int32, ())
        put, take = queue.enqueue_many([[1]]), queue.dequeue()
        inside = native(sess, queue)
        before(inside, "enqueue_many", lambda: inside.enqueue(number(7)))
        assert Step(lambda: sess.run([put, take])).result() == [None, 7]
        assert inside.dequeue() == 1

    @pytest.mark.parametrize("method", ["dequeue_many", "dequeue_up_to"])
    def test_a_batch_that_was_there(self, sess: Any, method: str) -> None:
        queue, other = tf.FIFOQueue(2, tf.int32, ()), tf.FIFOQueue(2, tf.int32, ())
        sess.run([queue.enqueue_many([[1, 2]]), other.enqueue(3)])
        take, move = getattr(queue, method)(2), queue.enqueue(other.dequeue())
        inside = native(sess, queue)
        before(inside, method, inside.dequeue)
        got = Step(lambda: sess.run([take, move])).result()
        assert got[0].tolist() == [2, 3]

    def test_a_close_that_nobody_delayed(self, sess: Any) -> None:
        queue = tf.FIFOQueue(1, tf.int32, ())
        sess.run(queue.enqueue(1))
        close, take, put = queue.close(), queue.dequeue(), queue.enqueue(2)
        inside = native(sess, queue)
        late: list[Step] = []

        def put_late() -> None:
            late.append(Step(lambda: sess.run(put)))
            spin_until(lambda: late[0].done or waiting(sess, queue) == 1)

        before(inside, "close", put_late)
        assert Step(lambda: sess.run([close, take])).result() == [None, 1]
        late[0].result()
        assert inside.dequeue() == 2


def test_what_begins_while_the_session_ends_has_a_thread() -> None:
    workers, leave, ran = Workers(), threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def stay() -> None:
        threads.append(threading.current_thread())
        leave.wait()

    workers.start(stay)
    workers.close()
    leave.set()
    spin_until(lambda: bool(threads) and not threads[0].is_alive())
    workers.start(ran.set)
    assert ran.wait(30)
