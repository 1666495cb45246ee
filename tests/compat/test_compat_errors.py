"""``tf.errors``: the sixteen classes, what they are of aioqueue's, pickling, and where they are."""

from __future__ import annotations

import asyncio
import pickle
from functools import partial
from typing import Any

import pytest

import aioqueue
import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.session.execution import from_aioqueue
from tests.compat.steps import refused

CODES = {
    "CancelledError": 1, "UnknownError": 2, "InvalidArgumentError": 3, "DeadlineExceededError": 4,
    "NotFoundError": 5, "AlreadyExistsError": 6, "PermissionDeniedError": 7,
    "ResourceExhaustedError": 8, "FailedPreconditionError": 9, "AbortedError": 10,
    "OutOfRangeError": 11, "UnimplementedError": 12, "InternalError": 13, "UnavailableError": 14,
    "DataLossError": 15, "UnauthenticatedError": 16,
}  # fmt: skip


def failing(function: Any) -> Any:
    return tf.py_func(function, [], tf.int32)


def raise_it(error: BaseException) -> Any:
    raise error


class TestClasses:
    def test_codes(self) -> None:
        for name, code in CODES.items():
            kind = getattr(tf.errors, name)
            error = kind(None, None, "what went wrong")
            assert isinstance(error, tf.errors.OpError)
            assert isinstance(error, tf.OpError)
            assert error.error_code == code
            assert error.message == str(error) == "what went wrong"
            assert error.op is error.node_def is None
            assert tf.errors.exception_type_from_error_code(code) is kind
            assert tf.errors.error_code_from_exception_type(kind) == code
            constant = "".join(f"_{one}" if one.isupper() else one for one in name[:-5])
            assert getattr(tf.errors, constant[1:].upper()) == code

    def test_survive_pickling_without_their_operation(self) -> None:
        op = tf.no_op("x")
        for name in CODES:
            error = getattr(tf.errors, name)(None, None, "wrong")
            error.blame(op)
            error.__cause__ = aioqueue.OutOfRangeError("the cause", requested=3)
            copy = pickle.loads(pickle.dumps(error))
            assert type(copy) is type(error)
            assert copy.message == error.message == "wrong\n\t [[node x (op NoOp)]]"
            assert copy.error_code == error.error_code
            assert copy.op is None
            assert (copy.node_def.name, copy.node_def.op) == ("x", "NoOp")
            assert copy.__cause__.requested == 3


class TestOpError:
    def test_has_any_code(self) -> None:
        error = tf.errors.OpError(None, None, "text", 99)
        assert (error.error_code, error.message) == (99, "text")
        assert pickle.loads(pickle.dumps(error)).error_code == 99

    def test_unknown_may_have_another_code(self) -> None:
        assert tf.errors.UnknownError(None, None, "text", 77).error_code == 77

    def test_says_where_the_operation_was_made(self) -> None:
        op = tf.no_op("x")
        error = tf.errors.InternalError(op.node_def, op, "wrong")
        assert error.node_def.name == "x"
        assert error.message == "wrong"
        assert str(error).startswith("wrong\n\nOperation 'x' was defined at ")
        assert f"{__file__}:" in str(error)

    def test_is_blamed_on_one_operation_only(self) -> None:
        first, second = tf.no_op("first"), tf.no_op("second")
        error = tf.errors.InternalError(None, None, "wrong")
        error.blame(first)
        error.blame(second)
        assert error.op is first

    @pytest.mark.parametrize("message", ["naïve", "naïve".encode(), ValueError("naïve")])
    def test_the_message_is_text_whatever_it_is_made_of(self, message: Any) -> None:
        error = tf.errors.NotFoundError(None, None, message)
        assert (error.message, str(error)) == ("naïve", "naïve")
        assert type(error.message) is str
        assert pickle.loads(pickle.dumps(error)).message == "naïve"

    def test_bytes_that_are_no_text_are_no_second_failure(self) -> None:
        assert tf.errors.NotFoundError(None, None, b"\xff is gone").message.endswith(" is gone")


class TestAioqueuesOwn:
    @pytest.mark.parametrize(
        ("theirs", "ours"),
        [
            ("OutOfRangeError", aioqueue.OutOfRangeError),
            ("CancelledError", aioqueue.CancelledError),
            ("CancelledError", aioqueue.QueueClosedError),
            ("DeadlineExceededError", aioqueue.DeadlineExceededError),
            ("DeadlineExceededError", TimeoutError),
            ("InvalidArgumentError", aioqueue.InvalidArgumentError),
            ("InvalidArgumentError", ValueError),
        ],
    )
    def test_catch_them(self, theirs: str, ours: type[Exception]) -> None:
        with pytest.raises(ours):
            raise getattr(tf.errors, theirs)(None, None, "text")

    def test_from_a_session(self, sess: Any) -> None:
        queue = tf.FIFOQueue(1, tf.int32, ())
        with pytest.raises(aioqueue.DeadlineExceededError):
            sess.run(queue.dequeue(), options=tf.RunOptions(timeout_in_ms=10))
        sess.run(queue.close())
        refused(aioqueue.OutOfRangeError, "", lambda: sess.run(queue.dequeue()))
        refused(aioqueue.QueueClosedError, "", lambda: sess.run(queue.enqueue(1)))

    def test_have_the_attributes(self) -> None:
        given = aioqueue.OutOfRangeError("text", queue="q", requested=3, remaining=2, held=1)
        made = from_aioqueue(given)
        assert isinstance(made, tf.errors.OutOfRangeError)
        assert (made.queue, made.requested, made.remaining, made.held) == ("q", 3, 2, 1)
        assert made.__cause__ is given
        assert tf.errors.OutOfRangeError(None, None, "").requested == 0

    @pytest.mark.parametrize(
        ("given", "kind", "message"),
        [
            (aioqueue.QueueClosedError("closed"), "CancelledError", "closed"),
            (aioqueue.CancelledError("scope"), "CancelledError", "Operation was cancelled"),
            (
                aioqueue.DeadlineExceededError("late"),
                "DeadlineExceededError",
                "Timed out waiting for notification",
            ),
            (aioqueue.InvalidArgumentError("n: got 3"), "InvalidArgumentError", "n: got 3"),
            (aioqueue.QueueFull("full"), "UnknownError", "QueueFull: full"),
        ],
    )
    def test_become_tensorflows(self, given: Any, kind: str, message: str) -> None:
        made = from_aioqueue(given)
        assert type(made) is getattr(tf.errors, kind)
        assert made.message == message
        assert made.__cause__ is given
        assert from_aioqueue(made) is made


class TestPythonFunctions:
    """What a function raises within a run, as TensorFlow passes it on."""

    @pytest.mark.parametrize(
        ("raised", "kind", "message"),
        [
            (ValueError("bad"), "InvalidArgumentError", "ValueError: bad"),
            (TypeError("bad"), "InvalidArgumentError", "TypeError: bad"),
            (StopIteration(), "OutOfRangeError", "StopIteration: "),
            (NotImplementedError("bad"), "UnimplementedError", "NotImplementedError: bad"),
            (MemoryError("bad"), "ResourceExhaustedError", "MemoryError: bad"),
            (KeyError("k"), "UnknownError", "KeyError: 'k'"),
            (RuntimeError("bad"), "UnknownError", "RuntimeError: bad"),
            (FileNotFoundError("bad"), "UnknownError", "FileNotFoundError: bad"),
        ],
    )
    def test_table(self, sess: Any, raised: Exception, kind: str, message: str) -> None:
        fetch = failing(lambda: raise_it(raised))
        with pytest.raises(tf.errors.OpError) as caught:
            sess.run(fetch)
        error = caught.value
        assert type(error) is getattr(tf.errors, kind)
        assert error.message == f"{message}\n\t [[node PyFunc (op PyFunc)]]"
        assert error.op is fetch.op
        assert error.__cause__ is raised

    def test_an_error_of_another_run_is_unknown(self, sess: Any) -> None:
        other = [
            *(getattr(tf.errors, name)(None, None, "bad") for name in CODES),
            aioqueue.OutOfRangeError("bad"),
            aioqueue.InvalidArgumentError("bad"),
            aioqueue.QueueClosedError("bad"),
            asyncio.CancelledError("bad"),
        ]

        def generate(raised: BaseException) -> Any:
            yield 1
            raise raised

        for raised in other:
            dataset = tf.data.Dataset.from_generator(partial(generate, raised), tf.int32)
            element = tf.data.make_one_shot_iterator(dataset).get_next()
            assert sess.run(element) == 1
            for fetch in (failing(partial(raise_it, raised)), element):
                refused(tf.errors.UnknownError, f"^{type(raised).__name__}: bad", sess.run, fetch)

    def test_the_end_of_an_inner_input_is_a_failure_of_the_outer(self, sess: Any) -> None:
        inner = tf.FIFOQueue(4, tf.int64, shapes=[[]])
        value = inner.dequeue()
        outer = tf.FIFOQueue(4, tf.int64)
        runner = tf.train.QueueRunner(
            outer, [outer.enqueue(tf.py_func(lambda: sess.run(value), [], tf.int64))]
        )
        sess.run([inner.enqueue_many([[1, 2]])])
        sess.run(inner.close())
        coord = tf.train.Coordinator()
        threads = runner.create_threads(sess, coord, start=True)
        threads[0].join()
        refused(tf.errors.UnknownError, r"^OutOfRangeError: FIFOQueue ", coord.join, threads)

    def test_what_is_no_exception_passes_as_it_is(self, sess: Any) -> None:
        with pytest.raises(KeyboardInterrupt):
            sess.run(failing(lambda: raise_it(KeyboardInterrupt())))
