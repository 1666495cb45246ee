"""Clouds of points kept as raw floats in TFRecords: turned, jittered, and dropped at random."""
import os
import tempfile

import numpy as np
import tensorflow as tf

NUM_POINTS, SHARDS = 16, 3


def _bytes(value):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def _int64(values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def convert(folder):
    rnd = np.random.RandomState(5)
    options = tf.python_io.TFRecordOptions(tf.python_io.TFRecordCompressionType.ZLIB)
    for shard in range(SHARDS):
        name = os.path.join(folder, 'train-%05d-of-%05d' % (shard, SHARDS))
        with tf.python_io.TFRecordWriter(name, options=options) as writer:
            for at in range(4):
                count = NUM_POINTS + 2 * at
                points = rnd.randn(count, 3).astype('<f4')
                normals = rnd.randn(count, 3).astype('>f8')
                parts = rnd.randint(0, 5, count).astype(np.uint8)
                writer.write(tf.train.Example(features=tf.train.Features(feature={
                    'points': _bytes(points.tobytes()),
                    'normals': _bytes(normals.tobytes()),
                    'parts': _bytes(parts.tobytes()),
                    'shape': _int64([count, 3]),
                    'label': _int64([shard * 4 + at]),
                })).SerializeToString())


def parse(serialized):
    found = tf.parse_single_example(serialized, {
        'points': tf.FixedLenFeature([], tf.string),
        'normals': tf.FixedLenFeature((), tf.string, default_value=''),
        'parts': tf.FixedLenFeature([], tf.string),
        'shape': tf.FixedLenFeature([2], tf.int64),
        'label': tf.FixedLenFeature([], tf.int64),
        'weight': tf.FixedLenFeature([], tf.float32, default_value=1.0),
    })
    shape = tf.to_int32(found['shape'])
    points = tf.reshape(tf.decode_raw(found['points'], tf.float32), shape)
    normals = tf.decode_raw(found['normals'], tf.float64, little_endian=False)
    normals = tf.cast(tf.reshape(normals, shape), tf.float32)
    parts = tf.cast(tf.decode_raw(found['parts'], tf.uint8), tf.int32)
    return {'points': points, 'normals': normals, 'parts': parts,
            'label': found['label'], 'weight': found['weight']}


def augment(cloud):
    order = tf.random_shuffle(tf.range(tf.shape(cloud['points'])[0]), seed=21)[:NUM_POINTS]
    points = tf.gather(cloud['points'], order)
    normals = tf.gather(cloud['normals'], order)
    angle = tf.random_uniform([], 0, 2 * np.pi, seed=22)
    c, s, one, zero = tf.cos(angle), tf.sin(angle), tf.ones([]), tf.zeros([])
    turn = tf.stack([tf.stack([c, zero, s]), tf.stack([zero, one, zero]),
                     tf.stack([-s, zero, c])])
    noise = tf.clip_by_value(tf.random_normal([NUM_POINTS, 3], stddev=0.01, seed=23), -0.05, 0.05)
    points = tf.matmul(points, turn) + noise
    points -= tf.reduce_mean(points, 0, keepdims=True)
    points /= tf.reduce_max(tf.sqrt(tf.reduce_sum(tf.square(points), 1)))
    keep = tf.random_uniform([NUM_POINTS], seed=24) > 0.2
    points = tf.where(tf.tile(keep[:, tf.newaxis], [1, 3]), points,
                      tf.tile(points[:1], [NUM_POINTS, 1]))
    return dict(cloud, points=points, normals=tf.matmul(normals, turn),
                parts=tf.where(keep, tf.gather(cloud['parts'], order), -tf.ones_like(order)))


def input_fn(folder, batch_size):
    files = tf.data.Dataset.list_files(os.path.join(folder, 'train-*'), shuffle=False)
    data = files.interleave(
        lambda name: tf.data.TFRecordDataset(name, compression_type='ZLIB'), cycle_length=2,
        block_length=1)
    data = data.shuffle(5, seed=25).map(parse, num_parallel_calls=4)
    data = data.filter(lambda cloud: tf.not_equal(cloud['label'] % 5, 4))
    data = data.map(augment).repeat(2).batch(batch_size, drop_remainder=True)
    iterator = tf.data.make_initializable_iterator(data.prefetch(1))
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def main():
    folder = tempfile.mkdtemp()
    convert(folder)
    tf.set_random_seed(1)
    batch = input_fn(folder, 3)
    for name in sorted(batch):
        print(name, batch[name].dtype.name, batch[name].get_shape().as_list())
    centre = tf.reduce_mean(batch['points'], 1)
    histogram = tf.reduce_sum(
        tf.one_hot(batch['parts'] + 1, 6, dtype=batch['parts'].dtype), [0, 1])
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.tables_initializer()])
        while True:
            try:
                label, weight, parts, middle, points, normals = sess.run(
                    [batch['label'], batch['weight'], histogram, centre, batch['points'],
                     batch['normals']])
            except tf.errors.OutOfRangeError:
                print('end')
                break
            print(label.tolist(), weight.tolist(), parts.tolist(),
                  np.round(np.abs(points).max(), 3), np.round(np.linalg.norm(normals), 3),
                  points.shape)


main()
