"""Datasets, tables and sessions of old scripts; their ops are on record (see `test_ops`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import calling, refused


def rows(sess: Any, dataset: Any) -> list[Any]:
    element = dataset.make_one_shot_iterator().get_next()
    found = []
    while True:
        try:
            found.append(sess.run(element))
        except tf.errors.OutOfRangeError:
            return found


def test_buckets_by_a_length_of_one_element(sess: Any) -> None:
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
        refused(tf.errors.DataLossError, "pad to a smaller size", sess.run, small)

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
        refused(tf.errors.FailedPreconditionError, "Table not initialized", sess.run, found)

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


def test_raw_bytes_of_a_fixed_length(sess: Any) -> None:
    made = tf.decode_raw(["abc", "defgh"], tf.uint16, fixed_length=4)
    assert sess.run(made).tolist() == [[25185, 99], [25956, 26470]]
