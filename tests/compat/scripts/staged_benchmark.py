"""A benchmark of an input: records in random order, staged one step ahead, under a Supervisor."""
import os
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import data_flow_ops

SHARDS, PER_SHARD = 3, 8
SIDE = 4
BATCH = 4
DEVICES = 2


def example(number):
    image = np.full([SIDE, SIDE], number % 256, np.uint8)
    return tf.train.Example(features=tf.train.Features(feature={
        'image': tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
        'label': tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
    }))


def write_shards(folder):
    for shard in range(SHARDS):
        path = os.path.join(folder, 'train-%05d-of-%05d' % (shard, SHARDS))
        with tf.python_io.TFRecordWriter(path) as writer:
            for number in range(PER_SHARD):
                writer.write(example(shard * PER_SHARD + number).SerializeToString())
    return os.path.join(folder, 'train-*')


def parse(record):
    features = tf.parse_single_example(record, {
        'image': tf.FixedLenFeature([], tf.string),
        'label': tf.FixedLenFeature([], tf.int64),
    })
    image = tf.reshape(tf.decode_raw(features['image'], tf.uint8), [SIDE, SIDE])
    return tf.cast(image, tf.float32), tf.cast(features['label'], tf.int32)


class Preprocessor(object):
    """Splits what a RecordInput yields among the devices."""

    def __init__(self, pattern, batch, devices):
        self.batch, self.devices = batch, devices
        self.record_input = data_flow_ops.RecordInput(
            file_pattern=pattern, seed=301, parallelism=2, buffer_size=10,
            batch_size=batch * devices, shift_ratio=0.5, name='record_input')

    def minibatch(self):
        with tf.name_scope('batch_processing'):
            records = self.record_input.get_yield_op()
            pieces = tf.split(records, self.batch * self.devices, 0)
            pieces = [tf.reshape(piece, []) for piece in pieces]
            images = [[] for _ in range(self.devices)]
            labels = [[] for _ in range(self.devices)]
            for index, piece in enumerate(pieces):
                image, label = parse(piece)
                images[index % self.devices].append(image)
                labels[index % self.devices].append(label)
            return ([tf.stack(one) for one in images],
                    [tf.stack(one) for one in labels])


class Towers(object):
    """One tower a device: each takes what was staged for it a step before."""

    def __init__(self, pattern):
        self.global_step = tf.train.get_or_create_global_step()
        self.seen = tf.get_variable('seen', [], tf.int32, initializer=tf.zeros_initializer())
        images, labels = Preprocessor(pattern, BATCH, DEVICES).minibatch()
        self.areas, puts, outputs = [], [], []
        for device in range(DEVICES):
            with tf.device('/cpu:0'), tf.name_scope('tower_%d' % device):
                shapes = [images[device].get_shape(), labels[device].get_shape()]
                area = data_flow_ops.StagingArea([tf.float32, tf.int32], shapes=shapes,
                                                 names=['images', 'labels'], capacity=2)
                puts.append(area.put({'images': images[device], 'labels': labels[device]}))
                taken = area.get()
                outputs.append((taken['images'], taken['labels']))
                self.areas.append(area)
        self.staging_ops = tf.group(*puts)
        self.sizes = [area.size() for area in self.areas]
        self.labels = tf.concat([labels for _, labels in outputs], 0)
        fits = [tf.reduce_all(tf.equal(tf.reduce_mean(image, axis=[1, 2]), tf.cast(label, tf.float32)))
                for image, label in outputs]
        self.fits = tf.reduce_all(tf.stack(fits))
        with tf.control_dependencies([tf.assign_add(self.seen, tf.size(self.labels))]):
            self.train_op = tf.assign_add(self.global_step, 1)


def epochs(labels):
    """Whether each epoch has each record once, whatever the order."""
    size = SHARDS * PER_SHARD
    parts = [labels[begin:begin + size] for begin in range(0, len(labels), size)]
    return [sorted(part) == list(range(size)) for part in parts]


def benchmark(pattern, logdir, steps):
    with tf.Graph().as_default():
        towers = Towers(pattern)
        print([(area.name, [str(shape) for shape in area.shapes], area.capacity)
               for area in towers.areas])
        sv = tf.train.Supervisor(is_chief=True, logdir=logdir, saver=tf.train.Saver(),
                                 global_step=towers.global_step, summary_op=None,
                                 save_model_secs=0)
        with sv.managed_session(start_standard_services=False) as sess:
            begun = sess.run([towers.global_step, towers.seen])
            sess.run(towers.staging_ops)  # the first step takes what this one stages
            found, fit = [], []
            for _ in range(steps):
                labels, fits, _, _ = sess.run(
                    [towers.labels, towers.fits, towers.train_op, towers.staging_ops])
                found += labels.tolist()
                fit.append(bool(fits))
            print('begun', begun, 'steps', sess.run(towers.global_step), 'fit', all(fit))
            print('epochs', epochs(found), 'shuffled', found[:24] != sorted(found[:24]))
            print('staged', sess.run(towers.sizes), 'seen', sess.run(towers.seen))
            path = sv.saver.save(sess, sv.save_path, global_step=towers.global_step)
            print('saved', os.path.basename(path))


def batches(pattern):
    """Several batches of a run, as lists of scalars."""
    with tf.Graph().as_default():
        made = data_flow_ops.RecordInput(pattern, batch_size=2, buffer_size=5, batches=3,
                                         seed=7, name='several')
        rows = made.get_yield_op()
        print([[str(one.get_shape()) for one in row] for row in rows])
        labels = [parse(one)[1] for row in rows for one in row]
        with tf.Session() as sess:
            found = [int(label) for _ in range(8) for label in sess.run(labels)]
        print('epochs', epochs(found))
    with tf.Graph().as_default():
        records = data_flow_ops.RecordInput(pattern + '-none').get_yield_op()
        with tf.Session() as sess:
            try:
                sess.run(records)
            except tf.errors.NotFoundError as error:
                print('NotFoundError', 'Found no files at' in error.message)


def staging():
    """What an area is in itself: order, looking, room, dropping."""
    with tf.Graph().as_default():
        area = data_flow_ops.StagingArea([tf.int64, tf.string], capacity=3)
        number = tf.placeholder(tf.int64, [])
        put = area.put([number, tf.as_string(number)])
        get, size, clear = area.get(), area.size(), area.clear()
        peeks = [area.peek(index) for index in range(2)]
        limited = data_flow_ops.StagingArea([tf.float32], memory_limit=64)
        fits, too_large = limited.put([tf.zeros([16])]), limited.put([tf.zeros([17])])
        with tf.Session() as sess:
            for value in (5, 6, 7):
                sess.run(put, {number: value})
            print(sess.run(size), sess.run(peeks), sess.run(get), sess.run(size))
            sess.run(clear)
            print(sess.run(size), sess.run([put, get], {number: 8})[1])
            sess.run(fits)
            print([value.shape for value in sess.run(limited.get())])
            try:
                sess.run(too_large)
            except tf.errors.ResourceExhaustedError:
                print('too large', sess.run(limited.size()))
        for wrong in (lambda: area.put({'a': number}), lambda: area.put([number, number]),
                      lambda: data_flow_ops.StagingArea([tf.int32], shapes=[[], []])):
            try:
                wrong()
            except ValueError as error:
                print('ValueError', error)


def main():
    folder = tempfile.mkdtemp()
    pattern = write_shards(folder)
    benchmark(pattern, os.path.join(folder, 'logs'), 6)
    benchmark(pattern, os.path.join(folder, 'logs'), 3)
    batches(pattern)
    staging()


main()
