"""Click logs: text lines, hash buckets, sparse features of examples, serialized batches."""
import os
import tempfile

import numpy as np
import tensorflow as tf

FEATURES = {
    'label': tf.FixedLenFeature([], tf.float32),
    'age': tf.FixedLenFeature([1], tf.int64, default_value=[-1]),
    'clicks': tf.VarLenFeature(tf.int64),
    'words': tf.VarLenFeature(tf.string),
    'vector': tf.FixedLenSequenceFeature([2], tf.float32, allow_missing=True),
}


def make_example(number):
    feature = {
        'label': tf.train.Feature(float_list=tf.train.FloatList(
            value=[number % 2])),
        'clicks': tf.train.Feature(int64_list=tf.train.Int64List(
            value=list(range(number % 4)))),
        'words': tf.train.Feature(bytes_list=tf.train.BytesList(
            value=[b'w%d' % (number % 3), b'all'])),
    }
    if number % 3:
        feature['age'] = tf.train.Feature(int64_list=tf.train.Int64List(
            value=[20 + number]))
        feature['vector'] = tf.train.Feature(float_list=tf.train.FloatList(
            value=np.arange(2 * (number % 3)).tolist()))
    return tf.train.Example(features=tf.train.Features(feature=feature))


def write(folder):
    paths = []
    for part in range(2):
        path = os.path.join(folder, 'clicks%d' % part)
        with tf.python_io.TFRecordWriter(path) as writer:
            for i in range(5):
                writer.write(make_example(part * 5 + i).SerializeToString())
        paths.append(path)
    return paths


def input_fn(paths, batch_size):
    queue = tf.train.string_input_producer(paths, num_epochs=1, shuffle=False)
    _, serialized = tf.TFRecordReader().read(queue)
    batch = tf.train.batch([serialized], batch_size,
                           allow_smaller_final_batch=True)
    parsed = tf.parse_example(batch, FEATURES)
    label = parsed.pop('label')
    return parsed, label


def main():
    folder = tempfile.mkdtemp()
    paths = write(folder)
    with tf.Graph().as_default():
        features, label = input_fn(paths, 4)
        words = features['words']
        hashed = tf.lookup.StaticVocabularyTable(
            tf.lookup.KeyValueTensorInitializer(["all"], [0], tf.string, tf.int64), 100)
        buckets = tf.SparseTensor(
            words.indices, hashed.lookup(words.values),
            words.dense_shape)
        dense_buckets = tf.sparse_tensor_to_dense(buckets, -1)
        clicks = tf.sparse_to_indicator(features['clicks'], 5)
        counts = tf.cast(features['clicks'], tf.int32)
        summed = tf.reduce_sum(tf.sparse_tensor_to_dense(counts), 1)
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant(['w0', 'w1', 'all']),
                tf.constant([0, 1, 2], tf.int64)), -1)
        ids = table.lookup(words.values)
        rows = tf.serialize_many_sparse(features['clicks'])
        again = tf.deserialize_many_sparse(rows, tf.int64, rank=1)
        with tf.control_dependencies([
                tf.assert_rank(label, 1), tf.assert_greater_equal(ids, tf.cast(
                    -1, tf.int64)), tf.assert_less(buckets.values, tf.cast(
                        100, tf.int64))]):
            label = tf.identity(label)
        print(label.shape, clicks.shape, features['vector'].shape)
        with tf.Session() as sess:
            sess.run([tf.local_variables_initializer(),
                      tf.tables_initializer()])
            coord = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(sess, coord)
            try:
                while True:
                    l, a, b, c, s, i, v, w = sess.run([
                        label, features['age'], dense_buckets, clicks, summed,
                        ids, features['vector'], again])
                    print(l.tolist(), a.ravel().tolist(), b.tolist(),
                          c.sum(1).tolist(), s.tolist(), i.tolist())
                    print(v.shape, v.sum(), w.indices.tolist(),
                          w.values.tolist(), w.dense_shape.tolist())
            except tf.errors.OutOfRangeError:
                print('no more clicks')
            coord.request_stop()
            coord.join(threads)


if __name__ == '__main__':
    main()
