"""`tf.train`'s producers: epochs, shuffles, shapes, ends, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import drained, refused


def runners() -> list[Any]:
    return tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS)


class TestLimitEpochs:
    def test_its_counter_is_a_local_variable(self, sess: Any) -> None:
        limited = tf.train.limit_epochs(tf.constant(5), 3)
        (counter,) = tf.local_variables()
        assert counter.name == "limit_epochs/epochs:0"
        assert counter.dtype == tf.int64
        assert counter not in tf.global_variables()
        assert counter not in tf.trainable_variables()
        refused(tf.errors.FailedPreconditionError, "uninitialized", sess.run, limited)
        sess.run(tf.local_variables_initializer())
        sess.run(limited)
        assert sess.run(counter) == 1


class TestInputProducer:
    def test_one_runner_with_one_op_and_its_cancel_op(self) -> None:
        cancel = tf.no_op()
        queue = tf.train.input_producer([1, 2], cancel_op=cancel)
        (runner,) = runners()
        assert runner.queue is queue
        assert len(runner.enqueue_ops) == 1
        assert runner.cancel_op is cancel

    def test_shapes_that_are_not_known_are_given(self) -> None:
        rows = tf.placeholder(tf.int32, [None, None])
        with pytest.raises(ValueError, match="Either `input_tensor` must have a fully defined"):
            tf.train.input_producer(rows)
        queue = tf.train.input_producer(rows, element_shape=[4])
        assert queue.shapes[0].as_list() == [4]
        with pytest.raises(ValueError, match=r"Shapes \(2,\) and \(3,\) are not compatible"):
            tf.train.input_producer(np.zeros((4, 2)), element_shape=[3])

    def test_without_its_counter_initialised(self, sess: Any) -> None:
        queue = tf.train.input_producer([1], num_epochs=1)
        coord = tf.train.Coordinator()
        tf.train.start_queue_runners(sess, coord)
        refused(tf.errors.OutOfRangeError, "", lambda: sess.run(queue.dequeue()))
        pattern = "uninitialized value input_producer/limit_epochs/epochs"
        refused(tf.errors.FailedPreconditionError, pattern, coord.join)

    def test_names(self) -> None:
        assert tf.train.string_input_producer(["a"]).name == "input_producer"
        assert tf.train.range_input_producer(3).name == "input_producer_1"
        assert tf.train.input_producer([1]).name == "input_producer_2/FIFOQueueV2"
        assert tf.train.range_input_producer(3, name="mine").name == "mine"

    def test_a_shared_name(self, sess: Any) -> None:
        queue = tf.train.string_input_producer(["a"], shared_name="files")
        sess.run(queue.close())
        refused(tf.errors.OutOfRangeError, "'files' is closed", lambda: sess.run(queue.dequeue()))


class TestStringInputProducer:
    @pytest.mark.parametrize("empty", [[], (), None, "", np.array([], dtype=object)])
    def test_nothing_is_refused(self, empty: Any) -> None:
        with pytest.raises(ValueError, match="requires a non-null input tensor"):
            tf.train.string_input_producer(empty)

    def test_nothing_fed_is_reported_by_join(self, sess: Any) -> None:
        names = tf.placeholder_with_default(tf.constant([], tf.string), [None])
        queue = tf.train.string_input_producer(names)
        coord = tf.train.Coordinator()
        tf.train.start_queue_runners(sess, coord)
        refused(tf.errors.OutOfRangeError, "", lambda: sess.run(queue.dequeue()))
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"assertion failed: \[.*string_input_producer requires a non-null input tensor",
        ):
            coord.join()


class TestSliceInputProducer:
    def test_a_short_one_fails_where_it_ends_and_the_row_is_gone(self, sess: Any) -> None:
        pair = tf.train.slice_input_producer([np.arange(4), np.arange(2)], shuffle=False)
        coord = tf.train.Coordinator()
        tf.train.start_queue_runners(sess, coord)
        assert [sess.run(pair) for _ in range(2)] == [[0, 0], [1, 1]]
        for bad in (2, 3):
            with pytest.raises(
                tf.errors.InvalidArgumentError, match=rf"indices = {bad} is not in \[0, 2\)"
            ):
                sess.run(pair)
        assert sess.run(pair) == [0, 0]
        coord.request_stop()
        coord.join()

    def test_nothing_is_refused(self) -> None:
        with pytest.raises(ValueError, match="Expected at least one tensor in slice_input_prod"):
            tf.train.slice_input_producer([])


class TestMatchFilenamesOnce:
    def test_names_in_bytewise_order(self, sess: Any, tmp_path: Path) -> None:
        for name in ("b.txt", "B.txt", "a.txt", "c.log"):
            (tmp_path / name).touch()
        found = tf.train.match_filenames_once(str(tmp_path / "*.txt"))
        assert found in tf.local_variables()
        assert found not in tf.global_variables()
        queue = tf.train.string_input_producer(found, num_epochs=1, shuffle=False)
        got = [Path(one.decode()).name for one in drained(sess, queue.dequeue())]
        assert got == ["B.txt", "a.txt", "b.txt"]

    def test_once_several_patterns_and_no_match(self, sess: Any, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        twice = tf.train.match_filenames_once([str(tmp_path / "a"), str(tmp_path / "*")])
        none = tf.train.match_filenames_once(str(tmp_path / "z*"))
        sess.run(tf.local_variables_initializer())
        (tmp_path / "b").touch()
        names = [Path(one.decode()).name for one in sess.run(twice)]
        assert names == ["a", "a"]
        assert sess.run(none).shape == (0,)
