"""A graph that takes a number out of a queue, adds one, and puts it back at the end."""

from __future__ import annotations

import aioqueue.compat.v1 as tf


def main() -> None:
    queue = tf.FIFOQueue(3, tf.float32, shapes=())
    init = queue.enqueue_many(([0.0, 0.0, 0.0],))
    number = queue.dequeue()
    increment = queue.enqueue(number + 1)

    with tf.Session() as sess:
        sess.run(init)
        for _ in range(4):
            sess.run(increment)
        print("the queue holds", [int(sess.run(number)) for _ in range(3)])


if __name__ == "__main__":
    main()
