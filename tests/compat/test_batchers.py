"""`tf.train`'s batchers: batches, padding, remainders, what is kept, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import drained, refused

train = tf.train


def numbers(count: int = 5) -> Any:
    """A scalar that counts from 0."""
    return train.range_input_producer(count, num_epochs=1, shuffle=False).dequeue()


def runner() -> Any:
    """The runner that was made last."""
    return tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS)[-1]


def lists(got: list[Any]) -> Any:
    return [one.tolist() for one in got]


class TestForms:
    """What goes in as a list of one comes out bare; several make a list; a dict a dict."""

    @pytest.mark.parametrize("bare", [1, np.arange(3), "text"])
    def test_a_bare_tensor_is_refused(self, bare: Any) -> None:
        values: list[Any] = [bare, tf.constant(bare)]
        for value in values:
            refused(TypeError, "expected a list or a dict of tensors", train.batch, value, 2)

    def test_nothing_is_refused(self) -> None:
        nothing: list[Any] = [[], {}]
        for empty in nothing:
            refused(ValueError, r"Expected at least one tensor in batch\(\)", train.batch, empty, 2)
        refused(ValueError, "Expected at least one set of tensors", train.batch_join, [], 2)


class TestBatch:
    def test_several_threads_lose_nothing(self, sess: Any) -> None:
        batch = train.batch([numbers(200)], 7, num_threads=4, allow_smaller_final_batch=True)
        assert len(runner().enqueue_ops) == 4
        got = [number for one in drained(sess, batch) for number in one.tolist()]
        assert sorted(got) == list(range(200))

    def test_a_shared_name(self, sess: Any) -> None:
        batch = train.batch([tf.constant(1)], 2, shared_name="batches")
        sess.run(runner().queue.close())
        refused(tf.errors.OutOfRangeError, "'batches' is closed", sess.run, batch)

    def test_names(self) -> None:
        batch = train.batch([tf.constant(1)], 2)
        assert batch.op.name == "batch"
        assert runner().name == "batch/fifo_queue"
        train.batch([tf.constant([1])], 2, dynamic_pad=True, name="mine")
        assert runner().name == "mine/padding_fifo_queue"
        train.shuffle_batch([tf.constant(1)], 2, 10, 3)
        assert runner().name == "shuffle_batch/random_shuffle_queue"
        assert train.batch_join([[tf.constant(1)]], 2).op.name == "batch_join"
        assert train.shuffle_batch_join([[tf.constant(1)]], 2, 10, 3).op.name == (
            "shuffle_batch_join"
        )


class TestShapes:
    def test_what_is_not_known(self) -> None:
        with pytest.raises(ValueError, match="Cannot infer Tensor's rank: "):
            train.batch([tf.placeholder(tf.int32)], 2)
        row = tf.placeholder(tf.int32, [None])
        refused(ValueError, "All shapes must be fully defined", train.batch, [row], 2)
        assert train.batch([row], 2, dynamic_pad=True).shape.as_list() == [2, None]
        assert train.batch([row], 2, shapes=[[3]]).shape.as_list() == [2, 3]
        assert train.batch([tf.placeholder(tf.int32)], 2, shapes=[[]]).shape.as_list() == [2]

    def test_many_need_rows(self) -> None:
        with pytest.raises(ValueError, match="must have rank at least 1"):
            train.batch([tf.constant(1)], 2, enqueue_many=True)

    def test_of_several_sources(self) -> None:
        one, two = tf.constant([1]), tf.constant([1, 2])
        for pad in (False, True):
            with pytest.raises(ValueError, match=r"Shapes \(1,\) and \(2,\) are not compatible"):
                train.batch_join([[one], [two]], 2, dynamic_pad=pad)


class TestJoin:
    def test_one_thread_per_source(self, sess: Any) -> None:
        batch = train.batch_join(
            [[numbers(5)], [numbers(5) + 100]], 2, allow_smaller_final_batch=True
        )
        assert len(runner().enqueue_ops) == 2
        got = [number for one in drained(sess, batch) for number in one.tolist()]
        assert sorted(got) == [*range(5), *range(100, 105)]
        assert [one for one in got if one < 100] == list(range(5))

    def test_dicts(self, sess: Any) -> None:
        batch = train.batch_join([{"a": numbers(2)}, {"a": numbers(2)}], 4)
        assert sorted(drained(sess, batch)[0]["a"].tolist()) == [0, 0, 1, 1]
        with pytest.raises(ValueError, match="All dictionaries in tensors_list must have the same"):
            train.batch_join([{"a": tf.constant(1)}, {"b": tf.constant(1)}], 2)

    def test_the_first_source_settles_how_many(self) -> None:
        batch = train.batch_join([[1], [1, 2]], 2)
        assert len(runner().enqueue_ops) == 2
        assert batch.shape.as_list() == [2]
        with pytest.raises(ValueError, match=r"Inconsistent SparseTensors list: .* vs\. \[1\]"):
            train.batch_join([[1, 2], [1]], 2)

    def test_dtypes_agree(self) -> None:
        with pytest.raises(TypeError, match=r"types to be consistent: int32 vs\. float32\."):
            train.batch_join([[tf.constant(1)], [tf.constant(1.0)]], 2)


class TestShuffle:
    def test_the_capacity_is_above_what_is_kept(self, sess: Any) -> None:
        with pytest.raises(
            ValueError, match=r"capacity 5 must be bigger than min_after_dequeue 5\."
        ):
            train.shuffle_batch([tf.constant(1)], 2, 5, 5)
        batch = train.shuffle_batch_join([[tf.constant(1)]], 2, 5, 7)  # told when it runs
        refused(tf.errors.InvalidArgumentError, "must be < capacity 5", sess.run, batch)


class TestMaybe:
    EVEN = (0, 2, 4, 6, 8)

    @pytest.mark.parametrize(
        "make",
        [
            lambda one, keep: train.maybe_batch([one], keep, 5),
            lambda one, keep: train.maybe_batch_join([[one]], keep, 5),
            lambda one, keep: train.maybe_shuffle_batch([one], 5, 20, 2, keep),
            lambda one, keep: train.maybe_shuffle_batch_join([[one]], 5, 20, 2, keep),
        ],
    )
    def test_a_scalar_keeps_or_drops_an_example(self, sess: Any, make: Callable[..., Any]) -> None:
        one = numbers(9)
        (got,) = drained(sess, make(one, tf.equal(one % 2, 0)))
        assert sorted(got.tolist()) == list(self.EVEN)

    def test_its_rank(self) -> None:
        one = tf.constant([1])
        for keep, many, words in (
            (tf.placeholder(tf.bool), True, "`keep_input` dimensions must be known at graph"),
            ([True], False, "`keep_input` cannot be a vector when `enqueue_many=False`"),
            ([[True]], True, "`keep_input` must be 0 or 1 dimensions"),
        ):
            refused(ValueError, words, train.maybe_batch, [one], keep, 2, enqueue_many=many)


class TestSparse:
    def ragged(self, one: Any) -> Any:
        """``one`` times ``one``, sparse."""
        indices = tf.reshape(tf.cast(tf.range(one), tf.int64), [-1, 1])
        return tf.SparseTensor(
            indices, tf.fill([one], one), tf.reshape(tf.cast(one, tf.int64), [1])
        )

    def test_rows_come_first_in_the_indices(self, sess: Any) -> None:
        one = numbers(5)
        batch = train.batch([one, self.ragged(one)], 2, allow_smaller_final_batch=True)
        assert isinstance(batch[1], tf.SparseTensor)
        got = drained(sess, batch)
        assert isinstance(got[0][1], tf.SparseTensorValue)
        assert [lists(sparse) for _, sparse in got] == [
            [[[1, 0]], [1], [2, 1]],
            [[[0, 0], [0, 1], [1, 0], [1, 1], [1, 2]], [2, 2, 3, 3, 3], [2, 3]],
            [[[0, 0], [0, 1], [0, 2], [0, 3]], [4, 4, 4, 4], [1, 4]],
        ]

    def test_many_at_once(self, sess: Any) -> None:
        one = numbers(4)
        matrix = tf.SparseTensor([[0, 1], [2, 0]], tf.stack([one, one + 10]), [3, 2])
        batch = train.batch([matrix], 2, enqueue_many=True)
        assert lists(drained(sess, batch)[1]) == [[[0, 0], [1, 1]], [10, 1], [2, 2]]

    def test_rows_that_are_kept(self, sess: Any) -> None:
        one = numbers(4)
        matrix = tf.SparseTensor([[0, 1], [2, 0]], tf.stack([one, one + 10]), [3, 2])
        batch = train.maybe_batch([matrix, [7, 8, 9]], [True, False, True], 2, enqueue_many=True)
        sparse, dense = drained(sess, batch)[1]
        assert dense.tolist() == [7, 9]
        assert lists(sparse) == [[[0, 1], [1, 0]], [1, 11], [2, 2]]

    def test_shuffled_and_padded(self, sess: Any) -> None:
        one = numbers(4)
        batch = train.shuffle_batch({"s": self.ragged(one), "n": one}, 4, 10, 2)
        (got,) = drained(sess, batch)
        for row, number in enumerate(got["n"].tolist()):
            assert sum(got["s"].indices[:, 0] == row) == number
        padded = train.batch([self.ragged(one), tf.fill([one], one)], 2, dynamic_pad=True)
        assert len(padded) == 2

    def test_a_tensor_fetched_fed_and_made_dense(self, sess: Any) -> None:
        fed = tf.sparse_placeholder(tf.int32)
        value = tf.SparseTensorValue([[0, 1], [1, 0]], [5, 6], [2, 2])
        dense = tf.sparse_tensor_to_dense(fed, default_value=9)
        assert sess.run(dense, {fed: value}).tolist() == [[9, 5], [6, 9]]
        got = sess.run(fed, {fed: value})
        assert isinstance(got, tf.SparseTensorValue)
        constant = tf.SparseTensor.from_value(value)
        assert constant.eval(session=sess).values.tolist() == [5, 6]
        assert constant.get_shape().as_list() == [2, 2]
        assert (constant.dtype, constant.graph) == (tf.int32, sess.graph)

    @pytest.mark.parametrize(
        ("indices", "words"),
        [
            ([[1, 0], [0, 1]], "is out of order"),
            ([[0, 1], [0, 1]], "is repeated"),
            ([[0, 1], [0, 2]], "is out of bounds"),
        ],
    )
    def test_bad_indices(self, sess: Any, indices: Any, words: str) -> None:
        sparse = tf.SparseTensor(indices, [5, 6], [2, 2])
        with pytest.raises(tf.errors.InvalidArgumentError, match=words):
            sess.run(tf.sparse_tensor_to_dense(sparse))

    def test_shapes_that_do_not_fit(self) -> None:
        for bad in (
            ([0], [1], [2]),
            ([[0]], [[1]], [2]),
            ([[0]], [1, 2], [2]),
            ([[0]], [1], [2, 2]),
        ):
            refused(ValueError, r"rank|compatible", tf.SparseTensor, *bad)
        refused(TypeError, "Neither a SparseTensor nor", tf.SparseTensor.from_value, 3)
