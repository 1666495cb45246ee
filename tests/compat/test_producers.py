"""`tf.train`'s producers: epochs, shuffles, shapes, ends, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import drained, waiting
from tests.kit.worlds import spin_until


def runners() -> list[Any]:
    return tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS)


class TestLimitEpochs:
    def test_it_gives_the_tensor_so_many_times(self, sess: Any) -> None:
        limited = tf.train.limit_epochs(tf.constant(5), 3)
        assert drained(sess, limited) == [5, 5, 5]
        with pytest.raises(tf.errors.OutOfRangeError, match=r"^Reached limit of 3"):
            sess.run(limited)

    def test_its_counter_is_a_local_variable(self, sess: Any) -> None:
        limited = tf.train.limit_epochs(tf.constant(5), 3)
        (counter,) = tf.local_variables()
        assert counter.name == "limit_epochs/epochs:0"
        assert counter.dtype == tf.int64
        assert counter not in tf.global_variables()
        assert counter not in tf.trainable_variables()
        with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized"):
            sess.run(limited)
        sess.run(tf.local_variables_initializer())
        sess.run(limited)
        assert sess.run(counter) == 1

    def test_without_a_limit_it_is_the_tensor_itself(self) -> None:
        tensor = tf.constant(5)
        assert tf.train.limit_epochs(tensor) is tensor
        assert tf.local_variables() == []

    @pytest.mark.parametrize("bad", [0, -1])
    def test_the_limit_is_positive(self, bad: int) -> None:
        with pytest.raises(ValueError, match=rf"num_epochs must be > 0 not {bad}\."):
            tf.train.limit_epochs(tf.constant(5), bad)


class TestInputProducer:
    def test_epochs_follow_each_other(self, sess: Any) -> None:
        queue = tf.train.input_producer([1, 2, 3], num_epochs=3, seed=1)
        got = drained(sess, queue.dequeue())
        assert [sorted(got[start : start + 3]) for start in (0, 3, 6)] == [[1, 2, 3]] * 3

    def test_in_order(self, sess: Any) -> None:
        queue = tf.train.input_producer([1, 2, 3], num_epochs=2, shuffle=False)
        assert drained(sess, queue.dequeue()) == [1, 2, 3, 1, 2, 3]

    def test_without_end(self, sess: Any) -> None:
        queue = tf.train.input_producer([1, 2], shuffle=False, capacity=1)
        assert drained(sess, queue.dequeue(), most=7) == [1, 2, 1, 2, 1, 2, 1]

    def test_rows(self, sess: Any) -> None:
        queue = tf.train.input_producer(np.arange(6).reshape(3, 2), num_epochs=1, shuffle=False)
        assert [shape.as_list() for shape in queue.shapes] == [[2]]
        assert sess.graph is not None
        assert [one.tolist() for one in drained(sess, queue.dequeue())] == [[0, 1], [2, 3], [4, 5]]

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

    def test_a_scalar_has_no_rows(self) -> None:
        with pytest.raises(ValueError, match="must have rank at least 1"):
            tf.train.input_producer(5)

    def test_a_full_queue_holds_the_epoch_back(self, sess: Any) -> None:
        queue = tf.train.input_producer(np.arange(10), capacity=3, num_epochs=1, shuffle=False)
        sess.run(tf.local_variables_initializer())
        coord = tf.train.Coordinator()
        tf.train.start_queue_runners(sess, coord)
        spin_until(lambda: waiting(sess, queue) == 1)
        assert sess.run(queue.size()) == 3
        coord.request_stop()
        coord.join()

    def test_without_its_counter_initialised(self, sess: Any) -> None:
        queue = tf.train.input_producer([1], num_epochs=1)
        coord = tf.train.Coordinator()
        tf.train.start_queue_runners(sess, coord)
        with pytest.raises(tf.errors.OutOfRangeError):
            sess.run(queue.dequeue())
        pattern = "uninitialized value input_producer/limit_epochs/epochs"
        with pytest.raises(tf.errors.FailedPreconditionError, match=pattern):
            coord.join()

    def test_names(self) -> None:
        assert tf.train.string_input_producer(["a"]).name == "input_producer"
        assert tf.train.range_input_producer(3).name == "input_producer_1"
        assert tf.train.input_producer([1]).name == "input_producer_2/FIFOQueueV2"
        assert tf.train.range_input_producer(3, name="mine").name == "mine"

    def test_a_shared_name(self, sess: Any) -> None:
        queue = tf.train.string_input_producer(["a"], shared_name="files")
        sess.run(queue.close())
        with pytest.raises(tf.errors.OutOfRangeError, match="'files' is closed"):
            sess.run(queue.dequeue())


class TestStringInputProducer:
    def test_it_shuffles_unless_told_not_to(self, sess: Any) -> None:
        names = [f"{number:02}" for number in range(50)]
        queue = tf.train.string_input_producer(names, num_epochs=1)
        got = [one.decode() for one in drained(sess, queue.dequeue())]
        assert got != names
        assert sorted(got) == names

    @pytest.mark.parametrize("empty", [[], (), None, "", np.array([], dtype=object)])
    def test_nothing_is_refused(self, empty: Any) -> None:
        with pytest.raises(ValueError, match="requires a non-null input tensor"):
            tf.train.string_input_producer(empty)

    def test_nothing_fed_is_told_by_join(self, sess: Any) -> None:
        names = tf.placeholder_with_default(tf.constant([], tf.string), [None])
        queue = tf.train.string_input_producer(names)
        coord = tf.train.Coordinator()
        tf.train.start_queue_runners(sess, coord)
        with pytest.raises(tf.errors.OutOfRangeError):
            sess.run(queue.dequeue())
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"assertion failed: \[.*string_input_producer requires a non-null input tensor",
        ):
            coord.join()


class TestRangeInputProducer:
    def test_an_empty_range_ends(self, sess: Any) -> None:
        queue = tf.train.range_input_producer(0, num_epochs=2)
        assert drained(sess, queue.dequeue()) == []

    def test_the_limit_may_be_a_tensor(self, sess: Any) -> None:
        queue = tf.train.range_input_producer(tf.constant(3), num_epochs=1, shuffle=False)
        assert drained(sess, queue.dequeue()) == [0, 1, 2]


class TestSliceInputProducer:
    def test_slices_stay_together(self, sess: Any) -> None:
        numbers, texts = np.arange(5), np.array(list("abcde"), dtype=object)
        pair = tf.train.slice_input_producer([numbers, texts], num_epochs=2)
        assert isinstance(pair, list)
        got = drained(sess, pair)
        assert all(texts[number].encode() == text for number, text in got)
        assert sorted(int(number) for number, _ in got) == sorted([*range(5)] * 2)

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
