"""What queues refuse: when, with which class of error, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import refused

INVALID = tf.errors.InvalidArgumentError


def fifo(dtypes: Any = "int32", shapes: Any = (), **options: Any) -> Any:
    return tf.FIFOQueue(10, dtypes, shapes, **options)


class TestConstruction:
    @pytest.mark.parametrize(
        ("make", "error", "words"),
        [
            (lambda: tf.FIFOQueue(1, None), AssertionError, "expected a dtype"),
            (lambda: tf.FIFOQueue(1, []), ValueError, "at least one"),
            (lambda: fifo(shapes="x"), TypeError, "Shapes must be a TensorShape or a list or"),
            (lambda: fifo(shapes=5), TypeError, "Shapes must be a TensorShape or a list or"),
            (lambda: fifo(shapes=[[None]]), ValueError, "All shapes must be fully defined: "),
            (lambda: fifo(shapes=[None, 2]), ValueError, "All shapes must be fully defined: "),
            (
                lambda: fifo(shapes=[tf.TensorShape(None)]),
                ValueError,
                "All shapes must be fully defined: ",
            ),
            (
                lambda: fifo(shapes=[[], []]),
                ValueError,
                "Queue shapes must have the same length as dtypes",
            ),
            (
                lambda: fifo(names=["a", "b"]),
                ValueError,
                "List of names must have the same length as the list of dtypes",
            ),
            (lambda: fifo(dtypes="no such type"), TypeError, "no such type"),
        ],
    )
    def test_of_any(self, make: Callable[[], Any], error: type[Exception], words: str) -> None:
        refused(error, words, make)

    def test_numbers_of_rows_are_numbers(self) -> None:
        wanted = r"^Expected int for argument 'capacity' not "
        for wrong in ("3", [3], 1j, tf.constant(3)):
            for make in (
                lambda one: tf.FIFOQueue(one, "int32"),
                lambda one: tf.PaddingFIFOQueue(one, ["int32"], [[None]]),
                lambda one: tf.PriorityQueue(one, ["int32"], [[]]),
                lambda one: tf.RandomShuffleQueue(one, 1, "int32"),
                lambda one: tf.train.batch([tf.constant(1)], 2, capacity=one),
            ):
                refused(TypeError, wanted, make, wrong)
        with pytest.raises(TypeError, match="argument 'min_after_dequeue' not 'x'"):
            tf.RandomShuffleQueue(3, "x", "int32")  # type: ignore[arg-type]
        rights: tuple[Any, ...] = (2.5, np.int64(3), np.float32(2.7), True, None)
        for right in rights:
            tf.FIFOQueue(right, "int32")

    def test_a_tensor_of_another_type_is_named(self) -> None:
        queue = tf.FIFOQueue(3, ["int32", "string"], [[], []])
        for index, row in enumerate(([tf.constant(1.5), "a"], [1, tf.constant(1)])):
            with pytest.raises(
                ValueError, match=f"^component_{index}: Tensor conversion requested"
            ):
                queue.enqueue(row)
            with pytest.raises(
                ValueError, match=f"^component_{index}: Tensor conversion requested"
            ):
                queue.enqueue_many([tf.expand_dims(one, 0) for one in row])

    def test_padding_needs_one_shape_each_of_known_rank(self) -> None:
        with pytest.raises(ValueError, match="but received 1 dtypes and 2 shapes"):
            tf.PaddingFIFOQueue(1, "int32", [[None], [None]])
        with pytest.raises(ValueError, match="List of names must have the same length"):
            tf.PaddingFIFOQueue(1, "int32", [[None], [None]], names=["a", "b"])
        with pytest.raises(ValueError, match="All shapes must have a defined rank: "):
            tf.PaddingFIFOQueue(1, ["int32", "int32"], [tf.TensorShape(None)])

    def test_priority_needs_shapes_and_names_for_all(self) -> None:
        refused(TypeError, "Expected list for 'shapes' argument to", tf.PriorityQueue, 1, "int32")
        for names in ("a", ["a"], ["a", "b", "c"]):
            with pytest.raises(ValueError, match="Queue names must have the same length"):
                tf.PriorityQueue(1, "int32", (), names=names)
        with pytest.raises(ValueError, match=r"received len\(shapes\)=2, len\(dtypes\)=1"):
            tf.PriorityQueue(1, [], [])
        with pytest.raises(ValueError, match=r"received len\(shapes\)=2, len\(dtypes\)=3"):
            tf.PriorityQueue(1, ["int32", "int32"], [2])

    def test_of_the_base_class(self) -> None:
        ref = fifo().queue_ref
        with pytest.raises(ValueError, match="Queue shapes must have the same length"):
            tf.QueueBase(["int32"], [[], []], None, ref)
        with pytest.raises(ValueError, match="Queue names must have the same length"):
            tf.QueueBase(["int32"], [[]], ["a", "b"], ref)


class TestBuilding:
    def test_numbers_for_strings(self) -> None:
        queue = fifo("string")
        refused(TypeError, "Expected string, but got 1 of type 'int'", queue.enqueue, 1)
        with pytest.raises(TypeError, match=r"Expected binary or unicode string, got 1\.0"):
            queue.enqueue(np.ones(()))

    def test_shapes(self) -> None:
        with pytest.raises(ValueError, match=r"Shapes \(2,\) and \(\) are incompatible"):
            fifo().enqueue([[1, 2]])
        with pytest.raises(ValueError, match=r"Shape \(\) must have rank at least 1"):
            fifo().enqueue_many([1, 2, 3])  # a list is the tuple of components
        with pytest.raises(ValueError, match="Dimensions 2 and 3 are not compatible"):
            fifo(["int32"] * 2, [(), ()]).enqueue_many([[1, 2], [1, 2, 3]])
        with pytest.raises(ValueError, match=r"Shapes \(3,\) and \(2,\) are incompatible"):
            fifo(shapes=[2]).enqueue_many([[[1, 2, 3]]])

    def test_names(self) -> None:
        named, plain = fifo(names="a"), fifo()
        with pytest.raises(ValueError, match="Queue must have names to enqueue a dictionary"):
            plain.enqueue({"a": 1})
        refused(ValueError, "You must enqueue a dictionary in a Queue with names", named.enqueue, 1)
        refused(ValueError, r"Dictionary: \['b'\],Queue: \['a'\]", named.enqueue, {"b": 1})
        twins = fifo(["int32"] * 2, [(), ()], names=["a", "a"])
        with pytest.raises(ValueError, match="Keys in dictionary to enqueue do not match names"):
            twins.enqueue({"a": 1})

    def test_the_number_of_rows(self) -> None:
        queue = fifo()
        refused(ValueError, "must be >= 0, but is -1", queue.dequeue_many, -1)
        queue.dequeue_up_to(-1)  # only when it runs
        for take in (queue.dequeue_many, queue.dequeue_up_to):
            with pytest.raises(TypeError, match="int64 that does not match expected type of int32"):
                take(tf.constant(1, tf.int64))
            refused(TypeError, "Expected int32", take, 2.5)

    def test_there_are_components(self) -> None:
        for method, kind in (("enqueue", "QueueEnqueueV2"), ("enqueue_many", "QueueEnqueueManyV2")):
            with pytest.raises(ValueError, match=f"'{kind}' Op passed list of length 0 less than"):
                getattr(fifo(), method)([])


class TestRunning:
    @pytest.mark.parametrize("shapes", [None, ()])
    def test_a_fed_scalar_is_no_batch(self, sess: Any, shapes: Any) -> None:
        """TensorFlow read whatever lay in memory there."""
        queue = tf.FIFOQueue(9, "int32", shapes)
        value = tf.placeholder(tf.int32)
        refused(INVALID, "", lambda: sess.run(queue.enqueue_many(value), {value: 1}))

    def test_numbers_of_rows_that_are_no_scalar(self, sess: Any) -> None:
        queue = fifo()
        n = tf.placeholder(tf.int32)
        refused(INVALID, "expected a scalar", lambda: sess.run(queue.dequeue_many(n), {n: [1, 2]}))

    def test_errors_know_their_op(self, sess: Any) -> None:
        queue = fifo(name="q")
        sess.run(queue.close())
        take = queue.dequeue(name="take")
        with pytest.raises(tf.errors.OutOfRangeError) as caught:
            sess.run(take)
        assert caught.value.op is take.op
        assert caught.value.error_code == 11
        assert "take" in caught.value.message


class TestSharedNames:
    def check(self, sess: Any, first: Any, second: Any, words: str) -> None:
        """The second is refused when it runs for the first time, whichever op it is."""
        sess.run(first.size())
        for op in (second.size(), second.close()):
            refused(INVALID, words, sess.run, op)

    def test_other_shapes(self, sess: Any) -> None:
        first = fifo(shared_name="q")
        words = r"has component shapes \[\[\]\] but requested component shapes were "
        self.check(sess, first, fifo(shapes=[2], shared_name="q"), words + r"\[\[2\]\]")
        self.check(sess, first, fifo(shapes=None, shared_name="q"), words + r"\[\]")

    def test_of_shuffle_queues(self, sess: Any) -> None:
        def make(keep: int, seed: Any) -> Any:
            return tf.RandomShuffleQueue(10, keep, "int32", (), seed=seed, shared_name="q")

        first = make(1, 3)
        words = r"has min_after_dequeue 1 but requested min_after_dequeue was 2\."
        self.check(sess, first, make(2, 3), words)
        words = r"has random seeds \(87654321, 3\) but requested seeds are \(87654321, 4\)\."
        self.check(sess, first, make(1, 4), words)
        assert sess.run(make(1, None).size()) == 0  # without any seed, any will do

    def test_of_padding_queues_shapes_need_only_be_compatible(self, sess: Any) -> None:
        def make(size: Any) -> Any:
            return tf.PaddingFIFOQueue(9, "int32", [[size]], shared_name="q")

        sess.run(make(None).size())
        assert sess.run(make(3).size()) == 0
        other = tf.PaddingFIFOQueue(9, "int32", [[None, None]], shared_name="q")
        refused(INVALID, r"has component shapes \[\[\?\]\]", lambda: sess.run(other.size()))
