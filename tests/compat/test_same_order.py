"""Same seed, same order: literal sequences, as TensorFlow 2.21 gave them in graph mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import blocked, drained

LIMIT = 2**31 - 1


class TestRandomShuffleQueue:
    """Numbers from 0 on go in; 2 stay inside while it is open."""

    def make(self, graph_seed: int | None, seed: int, keep: int = 2, **options: Any) -> Any:
        if graph_seed is not None:
            tf.set_random_seed(graph_seed)
        return tf.RandomShuffleQueue(100, keep, "int32", (), seed=seed, **options)

    @pytest.mark.parametrize(
        ("graph_seed", "seed", "expected"),
        [
            (None, 1, [7, 3, 6, 10, 8, 0, 9, 5, 4, 11, 2, 1]),
            (None, 7, [7, 4, 1, 6, 0, 11, 10, 9, 8, 5, 3, 2]),
            (5, 3, [2, 3, 7, 8, 9, 5, 1, 10, 0, 4, 11, 6]),
            (5, 0, [5, 4, 1, 8, 0, 2, 10, 6, 9, 11, 7, 3]),
            (0, 0, [6, 3, 5, 8, 7, 10, 9, 4, 2, 0, 1, 11]),
            (LIMIT, 2**31, [1, 5, 3, 7, 9, 11, 4, 2, 6, 0, 8, 10]),
            (None, -3, [3, 4, 5, 0, 7, 11, 10, 1, 2, 8, 6, 9]),
        ],
    )
    def test_batches_between_enqueues(
        self, sess: Any, graph_seed: int | None, seed: int, expected: list[int]
    ) -> None:
        queue = self.make(graph_seed, seed)
        one = queue.dequeue()
        sess.run(queue.enqueue_many([np.arange(8)]))
        got = [int(sess.run(one)) for _ in range(3)]
        sess.run(queue.enqueue_many([np.arange(8, 12)]))
        got += sess.run(queue.dequeue_many(4)).tolist()
        got += [int(sess.run(one)) for _ in range(2)]
        sess.run(queue.close())
        got += sess.run(queue.dequeue_up_to(9)).tolist()
        assert got == expected

    @pytest.mark.parametrize(
        ("graph_seed", "seed", "expected"),
        [
            (None, 1, [0, 3, 4, 5, 2, 1, 6]),
            (None, 7, [0, 6, 3, 1, 5, 4, 2]),
            (5, 3, [6, 1, 2, 4, 5, 3, 0]),
            (LIMIT, 2**31, [4, 0, 2, 6, 5, 3, 1]),
        ],
    )
    def test_after_the_rows_of_a_batch_came_back(
        self, sess: Any, graph_seed: int | None, seed: int, expected: list[int]
    ) -> None:
        queue = self.make(graph_seed, seed)
        sess.run(queue.enqueue_many([np.arange(4)]))
        step = blocked(sess, queue, queue.dequeue_many(12))
        sess.run(queue.enqueue_many([np.arange(4, 7)]))
        sess.run(queue.close())
        with pytest.raises(tf.errors.OutOfRangeError):
            step.result()
        assert sess.run(queue.dequeue_up_to(20)).tolist() == expected

    def test_a_shared_name_stands_in_for_a_seed(self, sess: Any) -> None:
        tf.set_random_seed(11)
        queue = tf.RandomShuffleQueue(100, 0, "int32", (), shared_name="abc")
        one = queue.dequeue()
        sess.run(queue.enqueue_many([np.arange(10)]))
        got = [int(sess.run(one)) for _ in range(4)]
        sess.run(queue.enqueue_many([np.arange(10, 15)]))
        got += [int(sess.run(one)) for _ in range(11)]
        assert got == [3, 7, 9, 8, 11, 2, 10, 13, 1, 0, 14, 12, 5, 6, 4]

    def test_without_any_seed_orders_differ(self, sess: Any) -> None:
        orders = []
        for _ in range(2):
            queue = tf.RandomShuffleQueue(100, 0, "int32", ())
            sess.run(queue.enqueue_many([np.arange(100)]))
            orders.append(sess.run(queue.dequeue_many(100)).tolist())
        assert orders[0] != orders[1]


class TestProducers:
    @pytest.mark.parametrize(
        ("count", "seed", "expected"),
        [
            (1, 1, "aaa"),
            (2, 1, "bababa"),
            (2, 7, "baabab"),
            (5, 1, "ceadbcdaebedacb"),
            (5, 7, "cedabaecbddebca"),
            (9, 1, "aihcgdebfcheiafbdgbgidfchea"),
            (9, 7, "debhcigfacegbhfdaiecbhidgaf"),
        ],
    )
    def test_strings(self, sess: Any, count: int, seed: int, expected: str) -> None:
        """Three epochs, each shuffled anew."""
        names = list("abcdefghi"[:count])
        queue = tf.train.string_input_producer(names, num_epochs=3, seed=seed)
        assert b"".join(drained(sess, queue.dequeue())).decode() == expected

    def test_strings_with_a_graph_seed_besides(self, sess: Any) -> None:
        tf.set_random_seed(11)
        queue = tf.train.string_input_producer(list("abcde"), num_epochs=2, seed=3)
        assert b"".join(drained(sess, queue.dequeue())) == b"bdcaedaebc"

    def test_ranges(self, sess: Any) -> None:
        queue = tf.train.range_input_producer(6, num_epochs=2, seed=3)
        got = drained(sess, queue.dequeue())
        assert got == [5, 4, 2, 0, 3, 1, 1, 3, 4, 5, 2, 0]

    def test_slices(self, sess: Any) -> None:
        pair = tf.train.slice_input_producer(
            [np.arange(6), np.arange(12).reshape(6, 2)], num_epochs=2, seed=3
        )
        got = drained(sess, pair)
        assert [int(one) for one, _ in got] == [5, 4, 2, 0, 3, 1, 1, 3, 4, 5, 2, 0]
        assert all(two.tolist() == [2 * one, 2 * one + 1] for one, two in got)

    def test_another_session_begins_anew(self) -> None:
        queue = tf.train.range_input_producer(6, num_epochs=1, seed=3)
        for _ in range(2):
            with tf.Session() as sess:
                assert drained(sess, queue.dequeue()) == [5, 4, 2, 0, 3, 1]


def test_shuffle_batch(sess: Any) -> None:
    """One thread enqueues everything at once, so that nothing but the seed settles the order."""
    source = tf.train.input_producer(np.arange(20, dtype=np.int64), num_epochs=1, shuffle=False)
    batch = tf.train.shuffle_batch([source.dequeue_many(20)], 4, 40, 6, seed=5, enqueue_many=True)
    assert [one.tolist() for one in drained(sess, batch)] == [
        [11, 19, 6, 5],
        [8, 4, 1, 9],
        [15, 13, 12, 17],
        [14, 18, 10, 2],
        [16, 3, 0, 7],
    ]
