"""Training and validation by the handles of iterators; features made by py_func, fed and cached."""

import collections
import os
import tempfile

import numpy as np
import tensorflow as tf

tf.flags.DEFINE_integer("batch_size", 4, "rows in a batch")
tf.flags.DEFINE_integer("epochs", 2, "passes over the training set")
tf.flags.DEFINE_string("data", "", "folder of the kaldi-like archives")
FLAGS = tf.flags.FLAGS

Batch = collections.namedtuple("Batch", ("features", "lengths", "labels"))


def write_archives(folder):
    rng = np.random.RandomState(12)
    for split, count in (("train", 10), ("valid", 5)):
        with open(os.path.join(folder, split + ".scp"), "w") as index:
            for number in range(count):
                path = os.path.join(folder, "%s_%02d.npy" % (split, number))
                np.save(path, rng.normal(size=(3 + number % 4, 5)).astype(np.float32))
                index.write("utt%02d %s %d\n" % (number, path, number % 3))


def read_scp(path):
    names, files, labels = [], [], []
    with tf.gfile.Open(path) as index:
        for line in index:
            name, file_, label = line.split()
            names.append(name)
            files.append(file_)
            labels.append(int(label))
    return names, files, labels


def _load(path):
    matrix = np.load(path.decode())
    return matrix - matrix.mean(axis=0, keepdims=True), np.int32(len(matrix))


def load(path, label):
    features, length = tf.py_func(_load, [path], [tf.float32, tf.int32], stateful=False)
    features.set_shape([None, 5])
    length.set_shape([])
    return features, length, label


def splice(features, length, label):
    left = tf.concat([features[:1], features[:-1]], axis=0)
    right = tf.concat([features[1:], features[-1:]], axis=0)
    return tf.concat([left, features, right], axis=1), length, label


def make_dataset(path, is_training):
    _, files, labels = read_scp(path)
    dataset = tf.data.Dataset.from_tensor_slices((files, labels))
    if is_training:
        dataset = dataset.shuffle(len(files), seed=77, reshuffle_each_iteration=False)
    dataset = dataset.map(load, num_parallel_calls=2).map(splice)
    dataset = dataset.filter(lambda features, length, label: tf.greater(length, 3))
    dataset = dataset.padded_batch(
        FLAGS.batch_size, padded_shapes=([None, 15], [], []), padding_values=(0.0, 0, -1))
    dataset = dataset.map(lambda *columns: Batch(*columns))
    return dataset.prefetch(1)


def main(_):
    folder = FLAGS.data or tempfile.mkdtemp()
    write_archives(folder)

    train = make_dataset(os.path.join(folder, "train.scp"), True)
    valid = make_dataset(os.path.join(folder, "valid.scp"), False)

    handle = tf.placeholder(tf.string, shape=[], name="handle")
    iterator = tf.data.Iterator.from_string_handle(handle, train.output_types, train.output_shapes)
    batch = iterator.get_next()
    print(type(batch).__name__, batch.features.get_shape(), batch.labels.dtype.name)
    train_iterator = train.make_initializable_iterator()
    valid_iterator = valid.make_initializable_iterator()

    mask = tf.sequence_mask(batch.lengths, tf.shape(batch.features)[1], dtype=tf.float32)
    masked = batch.features * tf.expand_dims(mask, -1)
    pooled = tf.reduce_sum(masked, 1) / tf.to_float(tf.expand_dims(batch.lengths, -1))
    histogram = tf.reduce_sum(tf.one_hot(batch.labels, 3, dtype=tf.int32), 0)

    def evaluate(sess, handles):
        sess.run(valid_iterator.initializer)
        rows = 0
        total = np.zeros(3, np.int64)
        while True:
            try:
                values, counted = sess.run([pooled, histogram], {handle: handles["valid"]})
            except tf.errors.OutOfRangeError:
                break
            rows += len(values)
            total += counted
        return rows, total.tolist()

    with tf.Session() as sess:
        sess.run(tf.tables_initializer())
        handles = {
            "train": sess.run(train_iterator.string_handle()),
            "valid": sess.run(valid_iterator.string_handle()),
        }
        print(sorted(handles), handles["train"] != handles["valid"])
        try:
            sess.run(pooled, {handle: handles["train"]})
        except tf.errors.FailedPreconditionError:
            print("not initialized")
        step = 0
        for epoch in range(FLAGS.epochs):
            sess.run(train_iterator.initializer)
            while True:
                try:
                    values, lengths = sess.run(
                        [pooled, batch.lengths], feed_dict={handle: handles["train"]})
                except tf.errors.OutOfRangeError:
                    break
                step += 1
                print(epoch, step, values.shape, lengths, "%.4f" % np.abs(values).sum())
                if step % 2 == 0:
                    print("  valid", evaluate(sess, handles))


if __name__ == "__main__":
    tf.app.run()
