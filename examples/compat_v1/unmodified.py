"""A script of the old days, which names nothing of ours. Run it as it is::

python -m aioqueue.compat.v1 examples/compat_v1/unmodified.py --rows=1000
"""

from __future__ import annotations

import tensorflow as tf

tf.app.flags.DEFINE_integer("rows", 100, "how many numbers to sum")
tf.app.flags.DEFINE_integer("threads", 4, "how many threads make batches")
FLAGS = tf.app.flags.FLAGS


def main(argv: list[str]) -> None:
    index = tf.train.range_input_producer(FLAGS.rows, num_epochs=1, shuffle=True).dequeue()
    batch = tf.train.batch(
        [index, index * index],
        batch_size=32,
        num_threads=FLAGS.threads,
        allow_smaller_final_batch=True,
    )
    sums = tf.reduce_sum(batch[0]), tf.reduce_sum(batch[1])
    total, squares = 0, 0
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess=sess, coord=coord)
        try:
            while not coord.should_stop():
                one, two = sess.run(sums)
                total += int(one)
                squares += int(two)
        except tf.errors.OutOfRangeError:
            tf.logging.info("done")
        finally:
            coord.request_stop()
        coord.join(threads)
    print(f"numbers: {total}, squares: {squares}")


if __name__ == "__main__":
    tf.app.run()
