"""Threads of one's own feed a shuffle queue; a second pipeline reads lists of clips."""
import os
import tempfile
import threading
import time

import numpy as np
import tensorflow as tf


def data_iterator(images, labels, batch_size, epochs):
    """A simple data iterator."""
    rng = np.random.RandomState(0)
    batch_idx = 0
    for _ in range(epochs):
        idxs = np.arange(0, len(images))
        rng.shuffle(idxs)
        shuf_images = images[idxs]
        shuf_labels = labels[idxs]
        for batch_idx in range(0, len(images), batch_size):
            yield (shuf_images[batch_idx:batch_idx + batch_size],
                   shuf_labels[batch_idx:batch_idx + batch_size])


class CustomRunner(object):
    """Manages the background threads needed to fill a queue with data."""

    def __init__(self, images, labels, batch_size, n_threads=1):
        self.images, self.labels = images, labels
        self.batch_size = batch_size
        self.dataX = tf.placeholder(dtype=tf.float32, shape=[None, 6])
        self.dataY = tf.placeholder(dtype=tf.int64, shape=[None, ])
        self.queue = tf.RandomShuffleQueue(shapes=[[6], []],
                                           dtypes=[tf.float32, tf.int64],
                                           capacity=20, min_after_dequeue=5,
                                           seed=13)
        self.enqueue_op = self.queue.enqueue_many([self.dataX, self.dataY])
        self.close_op = self.queue.close()
        self.cancel_op = self.queue.close(cancel_pending_enqueues=True)
        self.size_op = self.queue.size()
        self.n_threads = n_threads

    def get_inputs(self):
        images_batch, labels_batch = self.queue.dequeue_many(self.batch_size)
        return images_batch, labels_batch

    def thread_main(self, sess, coord):
        try:
            for dataX, dataY in data_iterator(self.images, self.labels,
                                              self.batch_size, 3):
                if coord.should_stop():
                    return
                sess.run(self.enqueue_op, feed_dict={self.dataX: dataX,
                                                     self.dataY: dataY})
            sess.run(self.close_op)
        except tf.errors.CancelledError:
            print('cancelled')
        except Exception as e:  # pylint: disable=broad-except
            coord.request_stop(e)

    def start_threads(self, sess, coord):
        threads = []
        for _ in range(self.n_threads):
            t = threading.Thread(target=self.thread_main, args=(sess, coord))
            t.daemon = True
            t.start()
            threads.append(t)
            coord.register_thread(t)
        return threads


def read_clip(line, clip_length):
    """One line of a list, "folder frames label", to a clip of frames."""
    parts = tf.string_split([line], ' ').values
    folder, count, label = parts[0], parts[1], parts[2]
    count = tf.string_to_number(count, tf.int32)
    label = tf.string_to_number(label, tf.int32)
    start = tf.random_uniform([], 0, count - clip_length + 1, tf.int32, seed=5)

    def load(path, first):
        names = ['%s/%03d.raw' % (path.decode(), first + i)
                 for i in range(clip_length)]
        return np.stack([np.fromfile(name, np.uint8) for name in names])

    frames, = tf.py_func(load, [folder, start], [tf.uint8], stateful=False)
    frames = tf.reshape(frames, [clip_length, 4, 5, 1])
    frames = tf.map_fn(lambda frame: tf.image.resize_image_with_crop_or_pad(
        frame, 4, 4), frames)
    clip = tf.cast(frames, tf.float32) - 128.0
    return clip, label, start


def clips(folder):
    rng = np.random.RandomState(2)
    with open(os.path.join(folder, 'train.list'), 'w') as listing:
        for video in range(4):
            path = os.path.join(folder, 'v%d' % video)
            os.makedirs(path)
            count = 5 + video
            for i in range(count):
                rng.randint(0, 256, 20).astype(np.uint8).tofile(
                    os.path.join(path, '%03d.raw' % i))
            listing.write('%s %d %d\n' % (path, count, video % 3))
    return os.path.join(folder, 'train.list')


def train_from_threads():
    rng = np.random.RandomState(9)
    images = np.round(rng.rand(16, 6), 3).astype(np.float32)
    runner = CustomRunner(images, np.arange(16), 4)
    images_batch, labels_batch = runner.get_inputs()
    w = tf.Variable(tf.zeros([6, 1]))
    out = tf.matmul(images_batch, w) + 1.0
    loss = tf.reduce_mean(tf.squared_difference(
        out, tf.expand_dims(tf.to_float(labels_batch), 1)))
    seen = []
    with tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=8)) as sess:
        sess.run(tf.global_variables_initializer())
        coord = tf.train.Coordinator()
        threads = runner.start_threads(sess, coord)
        started = time.time()
        try:
            while not coord.should_stop():
                loss_val, numbers = sess.run([loss, labels_batch])
                seen.extend(numbers.tolist())
                assert loss_val > 0
        except tf.errors.OutOfRangeError as e:
            print(type(e).__name__)
        finally:
            coord.request_stop()
        coord.join(threads)
        assert time.time() >= started
        print(len(seen), sorted(set(seen)) == list(range(16)),
              [seen.count(one) for one in range(16)] == [3] * 16)
        print(sess.run(runner.size_op))
        try:
            sess.run(runner.enqueue_op, {runner.dataX: images[:1],
                                         runner.dataY: [0]})
        except tf.errors.CancelledError as e:
            print(type(e).__name__)
        sess.run(runner.cancel_op)


def train_from_lists():
    path = clips(tempfile.mkdtemp())
    queue = tf.train.string_input_producer([path], num_epochs=2, shuffle=False)
    _, line = tf.TextLineReader().read(queue)
    clip, label, start = read_clip(line, 3)
    batch = tf.train.batch([clip, label, start], 3, num_threads=1, capacity=6,
                           shapes=[[3, 4, 4, 1], [], []],
                           allow_smaller_final_batch=True)
    mirrored = tf.reverse(batch[0], [3 - 1])
    with tf.train.MonitoredTrainingSession(
            hooks=[tf.train.StopAtStepHook(last_step=2)]) if False else \
            tf.train.MonitoredSession() as sess:
        while not sess.should_stop():
            frames, labels, starts, turned = sess.run([*batch, mirrored])
            print(labels.tolist(), starts.tolist(), frames.shape,
                  frames.sum(axis=(1, 2, 3, 4)).tolist(),
                  bool((turned == frames[:, :, :, ::-1]).all()) or
                  float(turned[0, 0, 0, 0, 0]))


if __name__ == '__main__':
    train_from_threads()
    with tf.Graph().as_default():
        train_from_lists()
