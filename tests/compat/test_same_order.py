"""Same seed, same order, beside what is on record: rows that come back, and new sessions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import blocked, drained, refused

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
        refused(tf.errors.OutOfRangeError, "", step.result)
        assert sess.run(queue.dequeue_up_to(20)).tolist() == expected

    def test_without_any_seed_orders_differ(self, sess: Any) -> None:
        orders = []
        for _ in range(2):
            queue = tf.RandomShuffleQueue(100, 0, "int32", ())
            sess.run(queue.enqueue_many([np.arange(100)]))
            orders.append(sess.run(queue.dequeue_many(100)).tolist())
        assert orders[0] != orders[1]


def test_another_session_begins_anew() -> None:
    queue = tf.train.range_input_producer(6, num_epochs=1, seed=3)
    for _ in range(2):
        with tf.Session() as sess:
            assert drained(sess, queue.dequeue()) == [5, 4, 2, 0, 3, 1]
