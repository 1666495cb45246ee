"""`tf.contrib.training`'s buckets: who goes where, how it ends, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import drained, refused, waiting
from tests.kit.worlds import spin_until

bucket = tf.contrib.training.bucket
by_length = tf.contrib.training.bucket_by_sequence_length


def numbers(count: int = 12) -> Any:
    """A scalar that counts from 0."""
    return tf.train.range_input_producer(count, num_epochs=1, shuffle=False).dequeue()


def by_bucket(got: list[Any]) -> dict[int, list[Any]]:
    """The batches of each bucket, in their order."""
    found: dict[int, list[Any]] = {}
    for number, batch in got:
        found.setdefault(int(number), []).append(batch.tolist())
    return found


class TestBucket:
    def test_each_batch_is_of_one_bucket(self, sess: Any) -> None:
        one = numbers(12)
        number, batch = bucket([one], one % 3, 2, 3)
        assert number.dtype == tf.int32
        assert batch.shape.as_list() == [2]
        assert by_bucket(drained(sess, (number, batch))) == {
            0: [[0, 3], [6, 9]],
            1: [[1, 4], [7, 10]],
            2: [[2, 5], [8, 11]],
        }

    def test_or_make_a_smaller_batch_of_each(self, sess: Any) -> None:
        one = numbers(7)
        number, batch = bucket([one], one % 2, 3, 2, allow_smaller_final_batch=True)
        assert batch.shape.as_list() == [None]
        assert by_bucket(drained(sess, (number, batch))) == {0: [[0, 2, 4], [6]], 1: [[1, 3, 5]]}

    def test_examples_of_no_bucket_are_dropped(self, sess: Any) -> None:
        one = numbers(9)
        assert by_bucket(drained(sess, bucket([one], one - 3, 2, 4))) == {}
        with tf.Graph().as_default(), tf.Session() as other:
            one = numbers(9)
            got = by_bucket(drained(other, bucket([one], one // 2 - 1, 2, 3)))
        assert got == {0: [[2, 3]], 1: [[4, 5]], 2: [[6, 7]]}

    def test_sizes_and_capacities_of_each(self, sess: Any) -> None:
        one = numbers(10)
        number, batch = bucket([one], one % 2, [1, 5], 2, bucket_capacities=[3, 7])
        assert batch.shape.as_list() == [None]
        assert by_bucket(drained(sess, (number, batch))) == {
            0: [[0], [2], [4], [6], [8]],
            1: [[1, 3, 5, 7, 9]],
        }

    def test_dict(self, sess: Any) -> None:
        one = numbers(4)
        _, batch = bucket({"b": one, "a": one * 2}, 0, 2, 1)
        got = drained(sess, batch)[0]
        assert {key: value.tolist() for key, value in got.items()} == {"a": [0, 2], "b": [0, 1]}

    def test_padding(self, sess: Any) -> None:
        one = numbers(4)
        fetch = bucket([tf.fill([one], one)], 0, 2, 1, dynamic_pad=True)
        assert by_bucket(drained(sess, fetch)) == {0: [[[0], [1]], [[2, 2, 0], [3, 3, 3]]]}

    def test_only_what_is_wanted(self, sess: Any) -> None:
        one = numbers(10)
        fetch = bucket([one], 0, 2, 1, keep_input=tf.greater(one, 5))
        assert by_bucket(drained(sess, fetch)) == {0: [[6, 7], [8, 9]]}
        with pytest.raises(ValueError, match="`keep_input` cannot be a vector"):
            bucket([one], 0, 2, 1, keep_input=[True])

    def test_sparse(self, sess: Any) -> None:
        one = numbers(4)
        sparse = tf.SparseTensor(
            tf.reshape(tf.cast(one, tf.int64), [1, 1]), tf.reshape(one, [1]), [9]
        )
        _, batch = bucket([sparse, one], 0, 2, 1)
        values, dense = drained(sess, batch)[1]
        assert dense.tolist() == [2, 3]
        assert [part.tolist() for part in values] == [[[0, 2], [1, 3]], [2, 3], [2, 9]]

    def test_several_threads_lose_nothing(self, sess: Any) -> None:
        one = numbers(200)
        fetch = bucket([one], one % 4, 3, 4, num_threads=3, allow_smaller_final_batch=True)
        found = by_bucket(drained(sess, fetch))
        for number, batches in found.items():
            got = sorted(example for batch in batches for example in batch)
            assert got == list(range(number, 200, 4))

    def test_its_runners(self) -> None:
        bucket([tf.constant(1)], 0, 2, 3, num_threads=2, shared_name="s")
        takes, puts = tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS)
        assert (takes.name, puts.name) == ("bucket/bucket_queue_0", "bucket/top_queue")
        assert (len(takes.enqueue_ops), len(puts.enqueue_ops)) == (3, 2)
        for runner in (takes, puts):
            assert runner.queue_closed_exception_types == (
                tf.errors.OutOfRangeError,
                tf.errors.CancelledError,
            )
        assert takes.queue.queue_ref.op.get_attr("shared_name") == b"s_0"
        assert puts.queue.queue_ref.op.get_attr("shared_name") == b"s"

    def test_a_full_bucket_holds_everything_back(self, sess: Any) -> None:
        """Nobody takes batches: the batches' queue fills, then bucket 0, then nothing moves."""
        one = numbers(100)
        bucket([one], tf.cast(tf.greater(one, 50), tf.int32), 1, 2, capacity=2)
        sess.run(tf.local_variables_initializer())
        coord = tf.train.Coordinator()
        tf.train.start_queue_runners(sess, coord)
        takes, puts = tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS)[-2:]
        spin_until(lambda: waiting(sess, takes.queue) and waiting(sess, puts.queue))
        assert sess.run([takes.queue.size(), puts.queue.size()]) == [2, 2]
        coord.request_stop()
        coord.join()

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (([], 0, 2, 1), r"Expected at least one tensor in bucket\(\)"),
            (([1], 0, [2], 3), "If batch_size is a list it must have num_buckets elements"),
        ],
    )
    def test_what_is_refused(self, arguments: Any, words: str) -> None:
        refused(ValueError, words, bucket, *arguments)

    def test_capacities_are_one_for_each(self) -> None:
        pattern = r"bucket_capacities \(\[1\]\) must have exactly num_buckets \(2\) elements"
        refused(ValueError, pattern, bucket, [1], 0, 2, 2, bucket_capacities=[1])


class TestBucketBySequenceLength:
    def test_boundaries_include_what_is_above_them(self, sess: Any) -> None:
        one = numbers(9)
        lengths, (batch,) = by_length(one, [tf.fill([one], one)], 3, [3, 6], dynamic_pad=True)
        got = drained(sess, (lengths, batch))
        assert sorted(one.tolist() for one, _ in got) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
        assert sorted(batch.shape for _, batch in got) == [(3, 2), (3, 5), (3, 8)]

    def test_dict_of_one_holds_a_list(self, sess: Any) -> None:
        """As in TensorFlow."""
        one = numbers(4)
        _, batch = by_length(one, {"x": one}, 2, [10])
        assert [part.tolist() for part in drained(sess, batch)[0]["x"]] == [[0, 1]]

    def test_shapes_may_be_given(self) -> None:
        _, (batch,) = by_length(1, [tf.placeholder(tf.int32)], 2, [3], shapes=[[4]])
        assert batch.shape.as_list() == [2, 4]

    @pytest.mark.parametrize(
        ("boundaries", "error", "words"),
        [
            (5, TypeError, "bucket_boundaries must be a list or tuple, but received: 5"),
            (np.array([1, 2]), TypeError, "must be a list or tuple"),
            ([], ValueError, "bucket_boundaries must not be empty"),
            ([1, 2.5], TypeError, r"bucket boundaries must be integers, but saw: 1 and 2\.5"),
            ([3, 3], ValueError, "sequential increasing lengths, but saw: 3 before 3"),
            ([1, 5, 4], ValueError, "but saw: 5 before 4"),
        ],
    )
    def test_boundaries_that_are_refused(
        self, boundaries: Any, error: type[Exception], words: str
    ) -> None:
        refused(error, words, lambda: by_length(1, [tf.constant(1)], 2, boundaries))
