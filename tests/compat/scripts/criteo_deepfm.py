"""Click-through models: lines of "label id:value ..." into sparse tensors, by segments."""
import os
import tempfile

import numpy as np
import tensorflow as tf

flags = tf.app.flags
FLAGS = flags.FLAGS
flags.DEFINE_integer("feature_size", 40, "Number of features")
flags.DEFINE_integer("field_size", 4, "Number of fields")
flags.DEFINE_integer("batch_size", 4, "Number of batch size")
flags.DEFINE_integer("num_threads", 2, "Number of threads")


def input_fn(filenames, batch_size=32, num_epochs=1, perform_shuffle=False):
    print('Parsing', [os.path.basename(one) for one in filenames])

    def decode_libsvm(line):
        columns = tf.string_split([line], ' ')
        labels = tf.string_to_number(columns.values[0], out_type=tf.float32)
        splits = tf.string_split(columns.values[1:], ':')
        id_vals = tf.reshape(splits.values, splits.dense_shape)
        feat_ids, feat_vals = tf.split(id_vals, num_or_size_splits=2, axis=1)
        feat_ids = tf.string_to_number(feat_ids, out_type=tf.int32)
        feat_vals = tf.string_to_number(feat_vals, out_type=tf.float32)
        return {"feat_ids": feat_ids, "feat_vals": feat_vals}, labels

    dataset = tf.data.TextLineDataset(filenames).map(
        decode_libsvm, num_parallel_calls=10).prefetch(500000)
    if perform_shuffle:
        dataset = dataset.shuffle(buffer_size=256, seed=4)
    dataset = dataset.repeat(num_epochs)
    dataset = dataset.batch(batch_size)
    iterator = tf.data.make_one_shot_iterator(dataset)
    batch_features, batch_labels = iterator.get_next()
    return batch_features, batch_labels


def sparse_reader(filename, batch_size):
    """The older way: a queue of lines, and one sparse matrix for each batch."""
    queue = tf.train.string_input_producer([filename], num_epochs=1,
                                           shuffle=False)
    reader = tf.TextLineReader()
    _, lines = reader.read_up_to(queue, batch_size)
    columns = tf.string_split(lines, ' ')
    n = tf.size(lines)
    first = tf.sparse_slice(columns, [0, 0],
                            tf.cast(tf.stack([n, 1]), tf.int64))
    labels = tf.string_to_number(first.values)
    keep = tf.greater(columns.indices[:, 1], 0)
    pairs = tf.sparse_retain(columns, keep)
    parts = tf.string_split(pairs.values, ':')
    parts = tf.reshape(parts.values, [-1, 2])
    ids = tf.string_to_number(parts[:, 0], tf.int64)
    vals = tf.string_to_number(parts[:, 1], tf.float32)
    sp_ids = tf.SparseTensor(pairs.indices, ids, pairs.dense_shape)
    sp_vals = tf.SparseTensor(pairs.indices, vals, pairs.dense_shape)
    features = tf.sparse_merge(sp_ids, sp_vals, FLAGS.feature_size)
    return labels, sp_ids, sp_vals, features


def write(folder, number, rows):
    rng = np.random.RandomState(number)
    path = os.path.join(folder, 'part-%d.libsvm' % number)
    with open(path, 'w') as f:
        for _ in range(rows):
            ids = rng.choice(FLAGS.feature_size, FLAGS.field_size, False)
            vals = rng.randint(1, 9, FLAGS.field_size) / 4.0
            pairs = ' '.join('%d:%s' % pair for pair in zip(ids, vals))
            f.write('%d %s\n' % (rng.randint(2), pairs))
    return path


def main(_):
    folder = tempfile.mkdtemp()
    files = [write(folder, number, 5) for number in range(2)]
    with tf.Graph().as_default():
        features, labels = input_fn(files, FLAGS.batch_size,
                                    perform_shuffle=True)
        ids = tf.reshape(features['feat_ids'], [-1, FLAGS.field_size])
        vals = tf.reshape(features['feat_vals'], [-1, FLAGS.field_size])
        weights = tf.get_variable('w', [FLAGS.feature_size],
                                  initializer=tf.constant_initializer(0.5))
        wide = tf.reduce_sum(tf.multiply(tf.gather(weights, ids), vals), 1)
        print(ids.shape, labels.shape)
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            try:
                while True:
                    i, y, w = sess.run([ids, labels, wide])
                    print(i[:, 0].tolist(), y.tolist(), w.tolist())
            except tf.errors.OutOfRangeError:
                print('End of training')
    with tf.Graph().as_default():
        labels, sp_ids, sp_vals, merged = sparse_reader(files[0], 3)
        row = sp_vals.indices[:, 0]
        totals = tf.segment_sum(sp_vals.values, row)
        means = tf.segment_mean(sp_vals.values, row)
        largest = tf.unsorted_segment_max(sp_vals.values, sp_ids.values % 3, 3)
        linear = tf.sparse_tensor_dense_matmul(
            merged, tf.ones([FLAGS.feature_size, 1]))
        counts = tf.bincount(tf.to_int32(sp_ids.values % 5), minlength=5)
        with tf.Session() as sess:
            sess.run(tf.local_variables_initializer())
            coord = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(sess, coord)
            try:
                while not coord.should_stop():
                    out = sess.run([labels, totals, means, largest, linear,
                                    counts, merged])
                    print([one.tolist() for one in out[:6]])
                    print(out[6].indices[:3].tolist(), out[6].dense_shape)
                    print(sess.run(tf.shape(merged.values)).tolist() if False
                          else len(out[6].values))
            except tf.errors.OutOfRangeError:
                print('epoch limit reached')
            finally:
                coord.request_stop()
            coord.join(threads)


if __name__ == '__main__':
    tf.logging.set_verbosity(tf.logging.ERROR)
    tf.app.run()
