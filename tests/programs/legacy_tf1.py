"""A script of TensorFlow 1's time, as such scripts were: the loop just ends, and nothing is joined.

It fits a line to the rows of CSV files. Its workers would go on for ever: `num_epochs` is not set.
"""

import sys

import aioqueue.compat.v1 as tf

filenames = tf.train.string_input_producer(sys.argv[1:], seed=7)
reader = tf.TextLineReader()
key, line = reader.read(filenames)
x, y = tf.decode_csv(line, record_defaults=[[0.0], [0.0]])
x_batch, y_batch = tf.train.shuffle_batch(
    [x, y], batch_size=20, capacity=100, min_after_dequeue=50, num_threads=4, seed=7
)

slope, offset = 0.0, 0.0
sess = tf.Session()
sess.run(tf.global_variables_initializer())
tf.train.start_queue_runners(sess=sess)
for _ in range(300):
    xs, ys = sess.run([x_batch, y_batch])
    error = slope * xs + offset - ys
    slope -= 0.5 * (error * xs).mean()
    offset -= 0.5 * error.mean()
print(f"y = {slope:.2f} x + {offset:.2f}")
