"""Four threads fill a FIFO queue of fifty places with a thousand labelled rows; a loop empties it.

The rows of one `enqueue_many` stay together, so every run of a thousand elements is a whole copy of
the data, whichever thread has put it in.
"""

from __future__ import annotations

import numpy as np

import aioqueue.compat.v1 as tf

ROWS = 1000
THREADS = 4


def main() -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(10.0, 1.0, size=(ROWS, 4))  # float64: becomes float32 without a word
    target = rng.integers(0, 2, size=ROWS)

    queue = tf.FIFOQueue(capacity=50, dtypes=[tf.float32, tf.int32], shapes=[[4], []])
    enqueue = queue.enqueue_many([data, target])
    features, label = queue.dequeue()
    runner = tf.train.QueueRunner(queue, [enqueue] * THREADS)

    with tf.Session() as sess:
        coord = tf.train.Coordinator()
        threads = runner.create_threads(sess, coord=coord, start=True)
        seen = 0
        for step in range(ROWS):
            if coord.should_stop():
                break
            row, is_positive = sess.run([features, label])
            seen += np.array_equal(row, data[step].astype(np.float32))
            seen += bool(is_positive == target[step])
        coord.request_stop()
        coord.join(threads)
    print(f"{seen // 2} of {ROWS} rows as they were, from {THREADS} threads, all ended")


if __name__ == "__main__":
    main()
