"""A training loop that fits a line to batches from a queue, and one that meets a broken example.

The training step is plain NumPy in a `tf.py_func`: gradients are the business of whatever framework
does the training. A failure in a thread that makes examples ends the loop, and `join` raises it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import aioqueue.compat.v1 as tf

STEPS = 400


class Line:
    """A line that is fitted by gradient descent."""

    def __init__(self) -> None:
        self.slope = 0.0
        self.offset = 0.0

    def step(self, x: Any, y: Any) -> Any:
        error = self.slope * x + self.offset - y
        self.slope -= 0.5 * float(np.mean(error * x))
        self.offset -= 0.5 * float(np.mean(error))
        return np.float32(np.mean(error**2))


def train(line: Line, make_example: Callable[[], Any], steps: int) -> int:
    """Train for some steps; returns how many were made."""
    with tf.Graph().as_default(), tf.Session() as sess:
        x, y = tf.py_func(make_example, [], [tf.float32, tf.float32])
        queue = tf.RandomShuffleQueue(256, 64, [tf.float32, tf.float32], [(), ()], seed=1)
        runner = tf.train.QueueRunner(queue, [queue.enqueue((x, y))] * 4)
        train_op = tf.py_func(line.step, queue.dequeue_many(32), tf.float32)

        coord = tf.train.Coordinator()
        threads = runner.create_threads(sess, coord=coord, start=True)
        made = 0
        try:
            for _ in range(steps):
                if coord.should_stop():
                    break
                sess.run(train_op)
                made += 1
        except Exception as error:
            coord.request_stop(error)
        finally:
            coord.request_stop()
            coord.join(threads)
        return made


def main() -> None:
    rng = np.random.default_rng(7)

    def example() -> tuple[Any, Any]:
        x = np.float32(rng.uniform(-1.0, 1.0))
        return x, np.float32(3.0 * x + 0.5)

    line = Line()
    steps = train(line, example, STEPS)
    print(f"{steps} steps: y = {line.slope:.2f} x + {line.offset:.2f}")

    def broken() -> tuple[Any, Any]:
        raise ValueError("this example cannot be read")

    try:
        train(line, broken, STEPS)
    except tf.errors.InvalidArgumentError as error:
        print(f"join raised: {error.message.splitlines()[0]}")


if __name__ == "__main__":
    main()
