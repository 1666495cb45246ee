"""Ops that old scripts use besides queues: values, errors and messages are TensorFlow's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import calling


def rows(sess: Any, dataset: Any) -> list[Any]:
    element = dataset.make_one_shot_iterator().get_next()
    found = []
    while True:
        try:
            found.append(sess.run(element))
        except tf.errors.OutOfRangeError:
            return found


class TestConversion:
    def test_tensors_of_another_dtype_are_cast_within_lists(self, sess: Any) -> None:
        size = tf.size(tf.placeholder_with_default([1, 2, 3], [None]))
        made = tf.convert_to_tensor([size, 10], dtype=tf.int64)
        assert made.dtype == tf.int64
        assert sess.run(made).tolist() == [3, 10]
        sparse = tf.SparseTensor([[0, 1]], [5], (size, 10))
        assert sparse.shape.as_list() == [None, 10]
        assert sess.run(sparse).dense_shape.tolist() == [3, 10]

    def test_sparse_ones_are_cast(self, sess: Any) -> None:
        made = sess.run(tf.cast(tf.SparseTensor([[0]], [1.5], [2]), tf.int32))
        assert (made.values.dtype, made.values.tolist()) == (np.int32, [1])

    def test_buckets_by_a_length_of_one_element(self, sess: Any) -> None:
        length = tf.train.input_producer([[1], [5], [2]], num_epochs=1, shuffle=False).dequeue()
        lengths, _ = tf.contrib.training.bucket_by_sequence_length(
            length, [length], 2, [4], allow_smaller_final_batch=True
        )
        assert lengths.shape.as_list() == [None, 1]
        sess.run(tf.local_variables_initializer())
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess, coord)
        found = [sess.run(lengths).ravel().tolist() for _ in range(2)]
        coord.request_stop()
        coord.join(threads)
        assert sorted(found) == [[1, 2], [5]]


class TestSparse:
    def test_dense_ones(self, sess: Any) -> None:
        assert sess.run(tf.sparse_to_dense([1, 3], [4], 5, -1)).tolist() == [-1, 5, -1, 5]
        bad = tf.sparse_to_dense([1, 3], [4], [5, 6, 7])
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"should be \[\] or \[2\]"):
            sess.run(bad)
        far = tf.sparse_to_dense([1, 5], [4], [5, 6])
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"indices\[1\] = \[5\] is out of bounds: need"
        ):
            sess.run(far)

    def test_changed_ones(self, sess: Any) -> None:
        one = tf.SparseTensor([[0, 1], [1, 2]], [b"a", b"bc"], [2, 4])
        shaped, kept, joined = sess.run(
            [
                tf.sparse_reshape(one, [4, -1]),
                tf.sparse_retain(one, [True, False]),
                tf.sparse_concat(1, [one, one]),
            ]
        )
        assert shaped.indices.tolist() == [[0, 1], [3, 0]]
        assert kept.values.tolist() == [b"a"]
        assert joined.indices.tolist() == [[0, 1], [0, 5], [1, 2], [1, 6]]
        assert joined.dense_shape.tolist() == [2, 8]

    def test_serialized_ones_are_the_bytes_of_tensorflow(self, sess: Any) -> None:
        one = tf.SparseTensor([[0, 1], [1, 2]], [b"a", b"bc"], [2, 4])
        indices, values, shape = sess.run(tf.serialize_sparse(one)).tolist()
        assert values == b'\x08\x07\x12\x04\x12\x02\x08\x02"\x05\x01\x02abc'
        assert indices[:14] == b'\x08\t\x12\x08\x12\x02\x08\x02\x12\x02\x08\x02" '
        assert shape.endswith(b"\x02\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0")
        again = tf.deserialize_many_sparse([[indices, values, shape]] * 2, tf.string)
        assert sess.run(again).dense_shape.tolist() == [2, 2, 4]


class TestTensors:
    @pytest.mark.parametrize("value", [[[1, 2]], ["a", "b"], 1.5, [True], np.float16(2)])
    def test_they_are_serialized_and_parsed(self, sess: Any, value: Any) -> None:
        tensor = tf.constant(value)
        again = tf.parse_tensor(tf.serialize_tensor(tensor), tensor.dtype)
        np.testing.assert_array_equal(*sess.run([tensor, again]))

    def test_bytes_that_are_none(self, sess: Any) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError, match="as TensorProto, base64: YWJj"):
            sess.run(tf.parse_tensor("abc", tf.int32))
        other = tf.parse_tensor(tf.serialize_tensor(tf.constant([1])), tf.float32)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"\(int32\) and dtype \(float\)"):
            sess.run(other)

    def test_raw_bytes_of_a_fixed_length(self, sess: Any) -> None:
        made = tf.decode_raw(["abc", "defgh"], tf.uint16, fixed_length=4)
        assert sess.run(made).tolist() == [[25185, 99], [25956, 26470]]


class TestAsserts:
    def test_what_is_known_to_fail_fails_at_once(self) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError, match="did not hold element-wise"):
            tf.assert_equal(1, 2, message="they differ")
        with pytest.raises(ValueError, match=r"must have rank 2\.  Received rank 1"):
            tf.assert_rank(tf.zeros([3]), 2)
        with pytest.raises(TypeError, match="integer type"):
            tf.assert_integer(1.5)

    def test_the_rest_fails_when_it_runs(self, sess: Any) -> None:
        x = tf.placeholder(tf.int32, None)
        checks = (
            (tf.assert_less(x, 3), 3),
            (tf.assert_positive(x), 0),
            (tf.assert_rank_in(x, [0, 2]), [1]),
            (tf.assert_none_equal(x, 1), [1, 2]),
        )
        for check, value in checks:
            with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed: "):
                sess.run(check, {x: value})


class TestDatasets:
    def test_datasets_of_each_element(self, sess: Any) -> None:
        outer = tf.data.Dataset.range(1, 4)
        flat = outer.flat_map(lambda n: tf.data.Dataset.range(n).map(lambda one: one + n * 10))
        assert rows(sess, flat) == [10, 20, 21, 30, 31, 32]
        turns = outer.interleave(
            lambda n: tf.data.Dataset.from_tensors(n).repeat(n), cycle_length=2, block_length=1
        )
        assert rows(sess, turns) == [1, 2, 2, 3, 3, 3]

    def test_padded_batches(self, sess: Any) -> None:
        lists = tf.data.Dataset.range(1, 4).map(lambda n: tf.fill([n], n))
        made = rows(sess, lists.padded_batch(2, [None], np.int64(-1)))
        assert [one.tolist() for one in made] == [[[1, -1], [2, 2]], [[3, 3, 3]]]
        small = lists.padded_batch(3, [2]).make_one_shot_iterator().get_next()
        with pytest.raises(tf.errors.DataLossError, match="pad to a smaller size"):
            sess.run(small)

    def test_buckets_by_length(self, sess: Any) -> None:
        lists = tf.data.Dataset.range(1, 6).map(lambda n: tf.fill([n], n))
        made = lists.apply(tf.data.experimental.bucket_by_sequence_length(tf.size, [3], [2, 2]))
        assert [one.shape for one in rows(sess, made)] == [(2, 2), (2, 4), (1, 5)]

    def test_sparse_elements(self, sess: Any) -> None:
        sparse = tf.data.Dataset.range(3).map(
            lambda n: tf.SparseTensor([[n]], tf.reshape(n, [1]), [3])
        )
        assert sparse.output_classes is tf.SparseTensor
        assert [one.indices.tolist() for one in rows(sess, sparse)] == [[[0]], [[1]], [[2]]]
        dense = sparse.batch(3).map(tf.sparse_tensor_to_dense)
        assert rows(sess, dense)[0].tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 2]]


class TestTables:
    def test_strings_that_are_not_in_it_get_buckets(self, sess: Any) -> None:
        table = tf.contrib.lookup.index_table_from_tensor(["a", "b"], num_oov_buckets=3)
        sess.run(tf.tables_initializer())
        found = table.lookup(tf.constant(["b", "zz", "yy", "qqq"]))
        assert sess.run([found, table.size()])[0].tolist() == [1, 3, 3, 4]

    def test_one_that_is_not_initialised(self, sess: Any) -> None:
        table = tf.contrib.lookup.index_to_string_table_from_tensor(["a"])
        found = table.lookup(tf.constant([0], tf.int64))
        with pytest.raises(tf.errors.FailedPreconditionError, match="Table not initialized"):
            sess.run(found)

    def test_fingerprints_of_every_length(self, sess: Any) -> None:
        texts = ["", "a", "hello world this is a longer string than 16", "x" * 70]
        table = tf.contrib.lookup.index_table_from_tensor(["none of them"], num_oov_buckets=2**40)
        sess.run(tf.tables_initializer())
        found = (sess.run(table.lookup(tf.constant(texts))) - 1).tolist()
        assert found == [254201053263, 436859794915, 221568315653, 283218923905]


class _Aborts(tf.train.SessionRunHook):
    def __init__(self, where: str) -> None:
        self.where = where

    def _hit(self, where: str) -> None:
        if where == self.where:
            self.where = ""
            raise tf.errors.AbortedError(None, None, where)

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._hit("create")

    def before_run(self, run_context: Any) -> None:
        self._hit("before")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._hit("after")


@pytest.mark.parametrize("where", ["create", "before", "after"])
def test_a_monitored_session_recovers_when_a_hook_is_aborted(where: str) -> None:
    count = tf.assign_add(tf.Variable(0), 1)
    with tf.train.MonitoredSession(hooks=[_Aborts(where)]) as sess:
        assert [sess.run(count) for _ in range(3)] == [1, 2, 3]


def test_so_it_does_when_the_session_without_hooks_is_aborted() -> None:
    failures = [tf.errors.AbortedError(None, None, "gone")]

    def call() -> np.int32:
        if failures:
            raise failures.pop()
        return np.int32(7)

    value = calling(call, tf.int32)
    with tf.train.MonitoredSession() as sess:
        assert sess.run_step_fn(lambda step_context: step_context.session.run(value)) == 7


def test_names_that_old_scripts_have_for_others(sess: Any) -> None:
    x = tf.constant([[3, 1, 2], [4, 5, 0]])
    assert sess.run(tf.arg_max(x, 1)).tolist() == [0, 1]
    assert sess.run(tf.arg_min(x, 0, tf.int32)).tolist() == [0, 0, 1]
    assert sess.run(tf.reverse_v2(x, [1])).tolist() == [[2, 1, 3], [0, 5, 4]]
    held = tf.stop_gradient(x)
    assert (held.op.type, held.op.name, held.shape.as_list()) == (
        *("StopGradient", "StopGradient"),
        [2, 3],
    )
    assert sess.run(held).tolist() == sess.run(x).tolist()
