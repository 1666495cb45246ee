"""A training loop that logs: summaries of a pipeline, a writer, intervals, a final report."""
import os
import shutil
import tempfile

import numpy as np
import tensorflow as tf

tf.logging.set_verbosity(tf.logging.ERROR)


def variable_summaries(var, name):
    """Attach a lot of summaries to a Tensor."""
    with tf.name_scope('summaries'):
        mean = tf.reduce_mean(var)
        tf.summary.scalar('mean/' + name, mean)
        with tf.name_scope('stddev'):
            stddev = tf.sqrt(tf.reduce_mean(tf.square(var - mean)))
        tf.summary.scalar('stddev/' + name, stddev)
        tf.summary.scalar('max/' + name, tf.reduce_max(var))
        tf.summary.histogram(name, var)
    return mean, stddev


def pipeline(batch_size):
    data = np.linspace(-1, 1, 24, dtype=np.float32).reshape(12, 2)
    labels = (data.sum(1) > 0).astype(np.int32)
    row, label = tf.train.slice_input_producer([data, labels], shuffle=False)
    noisy = row + tf.constant([0.5, -0.5])
    return tf.train.batch([noisy, label], batch_size)


class Meter(object):
    def __init__(self):
        self.values = []

    def update(self, value):
        self.values.append(float(value))

    @property
    def average(self):
        return sum(self.values) / len(self.values)


def train(log_dir, steps):
    with tf.Graph().as_default() as graph:
        rows, labels = pipeline(4)
        mean, stddev = variable_summaries(rows, 'rows')
        weights = tf.Variable(tf.ones([2]), name='weights')
        scores = tf.reduce_sum(rows * weights, 1)
        loss = tf.reduce_mean(tf.maximum(
            0.0, 1.0 - scores * (2.0 * tf.cast(labels, tf.float32) - 1.0)))
        tf.summary.scalar('loss', loss)
        global_step = tf.train.get_or_create_global_step()
        next_step = tf.assign_add(global_step, 1)
        merged = tf.summary.merge_all()
        names = [one.op.name for one in tf.get_collection(
            tf.GraphKeys.SUMMARIES)]
        print(len(names), merged.dtype.name, merged.shape)
        for name in names:
            print(' ', name)
        meter = Meter()
        writer = tf.summary.FileWriter(os.path.join(log_dir, 'train'), graph)
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            coord = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(sess=sess, coord=coord)
            for _ in range(steps):
                summary, value, m, s, step = sess.run(
                    [merged, loss, mean, stddev, next_step])
                writer.add_summary(summary, step)
                meter.update(value)
                if step % 3 == 0:
                    print('step %d: loss %.4f, mean %.4f, stddev %.4f' % (
                        step, value, m, s))
            own = tf.Summary(value=[tf.Summary.Value(
                tag='average', simple_value=meter.average)])
            writer.add_summary(own, steps)
            writer.flush()
            print('average %.4f' % own.value[0].simple_value)
            coord.request_stop()
            coord.join(threads)
        writer.close()


def old_names():
    """Merging some of them only."""
    with tf.Graph().as_default():
        first = tf.summary.scalar('first', 1.0, collections=['some'])
        tf.summary.scalar('second', 2.0)
        second = tf.summary.merge_all('some')
        both = tf.summary.merge([first, first])
        print(second.op.type, both.op.type, tf.summary.merge_all('none'),
              len(tf.get_collection(tf.GraphKeys.SUMMARIES)))


def main():
    log_dir = tempfile.mkdtemp()
    train(log_dir, 9)
    old_names()
    shutil.rmtree(log_dir)


if __name__ == '__main__':
    main()
