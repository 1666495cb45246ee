"""`tf.train.QueueRunner`: who closes the queue, where failures go, what stops the threads."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import Step, refused, waiting
from tests.kit.worlds import spin_until


@pytest.fixture
def coord() -> Any:
    """A coordinator."""
    return tf.train.Coordinator()


@pytest.fixture
def excepthook(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What threads have raised that nobody caught."""
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_value))
    return raised


def queue(capacity: int = 10, **options: Any) -> Any:
    return tf.FIFOQueue(capacity, "int32", (), **options)


def counted(limit: int, **options: Any) -> Any:
    """A tensor that counts to a limit and then raises OutOfRangeError."""
    return tf.Variable(0, **options).count_up_to(limit)


def failing(error: Exception) -> Any:
    """A tensor whose op raises an error."""

    def fail() -> Any:
        raise error

    return tf.py_func(fail, [], tf.int32)


def initialised(sess: Any) -> Any:
    sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    return sess


class TestEnd:
    @pytest.mark.parametrize("with_coord", [False, True])
    def test_the_last_thread_closes_the_queue(
        self, sess: Any, coord: Any, with_coord: bool
    ) -> None:
        full = queue()
        runner = tf.train.QueueRunner(full, [full.enqueue(counted(3)), full.enqueue(counted(4))])
        initialised(sess)
        threads = runner.create_threads(sess, coord if with_coord else None, start=True)
        for _ in range(7):
            sess.run(full.dequeue())
        refused(tf.errors.OutOfRangeError, "", lambda: sess.run(full.dequeue()))
        assert sess.run(full.is_closed())
        if with_coord:
            coord.request_stop()
        for thread in threads:
            thread.join()
        assert runner.exceptions_raised == []

    def test_an_error_in_closing_is_ignored(self, sess: Any) -> None:
        full = queue()
        runner = tf.train.QueueRunner(full, [counted(1)])
        initialised(sess)
        sess.run(full.close())
        (thread,) = runner.create_threads(sess, start=True)
        thread.join()
        assert runner.exceptions_raised == []

    def test_a_chain_ends_from_its_beginning(self, sess: Any, coord: Any) -> None:
        first, second = queue(2), queue(2)
        for full, put in (
            (first, first.enqueue(counted(20))),
            (second, second.enqueue(first.dequeue())),
        ):
            tf.train.add_queue_runner(tf.train.QueueRunner(full, [put]))
        initialised(sess)
        tf.train.start_queue_runners(sess, coord)
        take = second.dequeue()
        assert [int(sess.run(take)) for _ in range(20)] == list(range(20))
        refused(tf.errors.OutOfRangeError, "", sess.run, take)
        coord.request_stop()
        coord.join()


class TestFailures:
    def test_without_one_they_are_kept_and_raised_and_the_queue_stays_open(
        self, sess: Any, excepthook: list[Any]
    ) -> None:
        full = queue()
        runner = tf.train.QueueRunner(full, [full.enqueue(failing(ValueError("x")))])
        (thread,) = runner.create_threads(sess, start=True)
        thread.join()
        (error,) = runner.exceptions_raised
        assert excepthook == [error]
        assert isinstance(error, tf.errors.InvalidArgumentError)
        assert not sess.run(full.is_closed())

    @pytest.mark.parametrize(("error_first", "closes"), [(True, True), (False, False)])
    def test_only_the_last_one_closes_and_only_by_an_end(
        self, sess: Any, excepthook: list[Any], error_first: bool, closes: bool
    ) -> None:
        full = queue()
        put, error = full.enqueue(counted(1)), full.enqueue(failing(ValueError()))
        runner = tf.train.QueueRunner(full, [error, put])
        initialised(sess)
        threads = runner.create_threads(sess)
        for thread in threads if error_first else reversed(threads):
            thread.start()
            thread.join()
        assert bool(sess.run(full.is_closed())) is closes
        assert len(excepthook) == 1

    def test_an_uninitialised_counter_is_reported_by_join_only(self, sess: Any, coord: Any) -> None:
        full = queue()
        put = full.enqueue(counted(3, name="epochs"))
        tf.train.QueueRunner(full, [put]).create_threads(sess, coord, start=True)
        refused(tf.errors.OutOfRangeError, "", lambda: sess.run(full.dequeue()))
        refused(tf.errors.FailedPreconditionError, "uninitialized value epochs", coord.join)

    def test_what_is_no_op_of_the_graph(self, sess: Any, coord: Any) -> None:
        full = queue()
        runner = tf.train.QueueRunner(full, ["not there"])
        runner.create_threads(sess, coord, start=True)
        refused(ValueError, "Operation not in the graph", coord.join)


class TestStop:
    def test_after_it_no_op_is_run(self, sess: Any, coord: Any) -> None:
        full = queue()
        coord.request_stop()
        tf.train.QueueRunner(full, [full.enqueue(1)]).create_threads(sess, coord, start=True)
        coord.join()
        assert sess.run(full.size()) == 0

    def test_join_waits_for_a_stop_even_when_the_data_has_ended(
        self, sess: Any, coord: Any
    ) -> None:
        full = queue()
        runner = tf.train.QueueRunner(full, [full.enqueue(counted(1))])
        initialised(sess)
        threads = runner.create_threads(sess, coord, start=True)
        threads[0].join()
        joining = Step(coord.join)
        assert threads[-1].is_alive()
        assert not joining.done
        coord.request_stop()
        joining.result()

    def test_a_session_closed_before_it_is_a_failure(self, coord: Any) -> None:
        full = queue(1)
        with tf.Session() as sess:
            runner = tf.train.QueueRunner(full, [full.enqueue(1)])
            threads = runner.create_threads(sess, coord, start=True)
            spin_until(lambda: waiting(sess, full) == 1)
        refused(tf.errors.CancelledError, r"^Enqueue operation was cancelled", coord.join, threads)

    def test_without_a_coordinator_it_is_kept(self, excepthook: list[Any]) -> None:
        full = queue(1)
        with tf.Session() as sess:
            runner = tf.train.QueueRunner(full, [full.enqueue(1)])
            (thread,) = runner.create_threads(sess, start=True)
            spin_until(lambda: waiting(sess, full) == 1)
        thread.join()
        (error,) = runner.exceptions_raised
        assert isinstance(error, tf.errors.CancelledError)
        assert excepthook == [error]


class TestThreads:
    def test_their_names_and_kinds(self, sess: Any, coord: Any) -> None:
        full = queue(name="q")
        tensor = counted(3)
        runner = tf.train.QueueRunner(full, [full.enqueue(1), tensor])
        assert runner.name == "q"
        threads = runner.create_threads(sess, coord)
        assert [thread.name for thread in threads] == [
            "QueueRunnerThread-q-q_enqueue",
            f"QueueRunnerThread-q-{tensor.name}",
            "QueueRunnerThread-q-close_on_stop",
        ]
        assert tensor.name.endswith(":0")
        assert not any(thread.daemon or thread.is_alive() for thread in threads)
        coord.request_stop()
        coord.join(threads)

    def test_daemon_is_what_is_asked_for(self, sess: Any) -> None:
        full = queue()
        tf.train.add_queue_runner(tf.train.QueueRunner(full, [full.enqueue(1)]))
        (runner,) = tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS)
        with tf.Session() as other:
            assert runner.create_threads(other, daemon=True)[0].daemon
        assert tf.train.start_queue_runners(sess, start=False)[0].daemon

    def test_exceptions_are_forgotten_by_the_next_call(
        self, sess: Any, excepthook: list[Any]
    ) -> None:
        full = queue()
        runner = tf.train.QueueRunner(full, [full.enqueue(failing(ValueError()))])
        for _ in range(2):
            (thread,) = runner.create_threads(sess, start=True)
            thread.join()
            assert len(runner.exceptions_raised) == 1
        assert len(excepthook) == 2

    def test_a_runner_does_not_keep_sessions_alive(self) -> None:
        full = queue()
        runner = tf.train.QueueRunner(full, [full.enqueue(1)])
        with tf.Session() as sess:
            runner.create_threads(sess)
        session = weakref.ref(sess)
        del sess
        gc.collect()
        assert session() is None


class TestArguments:
    def test_names_in_two_places(self) -> None:
        for name in ("QueueRunner", "add_queue_runner", "start_queue_runners"):
            assert getattr(tf.train.queue_runner, name) is getattr(tf.train, name)

    def test_what_is_missing(self) -> None:
        full = queue()
        for bad in ({}, {"queue": full}, {"enqueue_ops": [1]}, {"queue": full, "enqueue_ops": []}):
            with pytest.raises(ValueError, match=r"Must provide queue and enqueue_ops\."):
                tf.train.QueueRunner(**bad)

    def test_what_is_no_list_of_ops_fails_when_threads_are_made(self, sess: Any) -> None:
        runner = tf.train.QueueRunner(queue(), 5)  # type: ignore[arg-type]
        assert runner.enqueue_ops == 5
        refused(TypeError, r"object of type 'int' has no len\(\)", runner.create_threads, sess)

    @pytest.mark.parametrize(
        "types", [(), [tf.errors.OutOfRangeError], tf.errors.OutOfRangeError, (ValueError,), (3,)]
    )
    def test_types_are_a_tuple_of_our_errors(self, types: Any) -> None:
        full = queue()
        with pytest.raises(TypeError, match=r"must be a tuple of tf.error types, but saw: "):
            tf.train.QueueRunner(full, [1], queue_closed_exception_types=types)

    def test_defaults(self) -> None:
        full = queue(name="q")
        put = full.enqueue(1)
        runner = tf.train.QueueRunner(full, [put])
        assert runner.queue is full
        assert runner.enqueue_ops == [put]
        assert (runner.close_op.name, runner.cancel_op.name) == ("q_Close", "q_Close_1")
        assert runner.queue_closed_exception_types == (tf.errors.OutOfRangeError,)
        assert runner.exceptions_raised == []

    def test_it_may_become_data_and_come_back(self, sess: Any) -> None:
        with tf.name_scope("a"):
            full = queue(name="q")
            runner = tf.train.QueueRunner(full, [full.enqueue(counted(3)), counted(2)])
        given = runner.to_proto()
        assert given is not None
        assert (given.queue_name, given.close_op_name) == ("a/q", "a/q_Close")
        assert given.queue_closed_exception_types == [11]
        assert runner.to_proto(export_scope="other") is None
        stripped = runner.to_proto(export_scope="a")
        assert stripped is not None
        assert stripped.queue_name == "q"
        for back in (
            tf.train.QueueRunner.from_proto(given),
            tf.train.QueueRunner.from_proto(stripped, import_scope="a"),
        ):
            assert back.name == "a/q"
            assert back.enqueue_ops == runner.enqueue_ops
            assert back.queue_closed_exception_types == runner.queue_closed_exception_types
        initialised(sess)
        for thread in back.create_threads(sess, start=True):
            thread.join()
        assert sess.run([full.size(), full.is_closed()]) == [3, True]
        with pytest.raises(ValueError, match="mutually exclusive"):
            tf.train.QueueRunner(full, [1], queue_runner_def=given)


class TestStartQueueRunners:
    @pytest.fixture(autouse=True)
    def _runner(self, graph: Any) -> None:
        full = queue()
        tf.train.add_queue_runner(tf.train.QueueRunner(full, [full.enqueue(counted(3))]))

    def test_it_uses_the_default_session(self) -> None:
        refused(ValueError, "No default session is registered", tf.train.start_queue_runners)
        with tf.Session() as sess:
            initialised(sess)
            threads = tf.train.start_queue_runners()
            assert len(threads) == 1
            threads[0].join()

    def test_it_looks_into_the_sessions_graph(self) -> None:
        with tf.Session() as sess, tf.Graph().as_default():
            assert len(tf.train.start_queue_runners(sess, start=False)) == 1

    def test_what_is_no_session(self) -> None:
        with pytest.raises(TypeError, match=r"sess must be a `tf.Session` object. Given class: "):
            tf.train.start_queue_runners(3)

        class MonitoredSession:
            pass

        assert tf.train.start_queue_runners(MonitoredSession()) == []


def test_a_stop_wakes_nobody(sess: Any) -> None:
    """A consumer that the coordinator joins takes what is still to come, as TensorFlow's does."""
    queue = tf.FIFOQueue(1, [tf.int32], [[]])
    number, close = tf.placeholder(tf.int32, []), queue.close()
    put, take = queue.enqueue(number), queue.dequeue()
    coord = tf.train.Coordinator()
    got: list[int] = []

    def consume() -> None:
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                got.append(sess.run(take))

    threads = [threading.Thread(target=consume, daemon=True) for _ in range(2)]
    coord.register_thread(threads[0])
    for thread in threads:
        thread.start()
    spin_until(lambda: waiting(sess, queue) == 2)
    coord.request_stop()
    refused(RuntimeError, "still running", coord.join, [threads[1]], stop_grace_period_secs=0.001)
    for one in range(4):
        sess.run(put, {number: one})
    sess.run(close)
    coord.join(threads)
    assert sorted(got) == [0, 1, 2, 3]


def test_a_thread_that_joins_does_not_wait_for_itself(coord: Any) -> None:
    thread = threading.Thread(target=coord.join, daemon=True)
    coord.register_thread(thread)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert coord.joined
