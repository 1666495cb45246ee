"""MNIST: arrays to TFRecords and back, fully connected reading with queues."""
import argparse
import os
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf

FLAGS = None
TRAIN_FILE = 'train.tfrecords'
VALIDATION_FILE = 'validation.tfrecords'
IMAGE_PIXELS = 28 * 28


def _int64_feature(value):
  return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def _bytes_feature(value):
  return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def convert_to(images, labels, name, directory):
  num_examples = len(labels)
  if images.shape[0] != num_examples:
    raise ValueError('Images size %d does not match label size %d.' %
                     (images.shape[0], num_examples))
  rows, cols, depth = images.shape[1:]
  filename = os.path.join(directory, name + '.tfrecords')
  writer = tf.python_io.TFRecordWriter(filename)
  for index in range(num_examples):
    image_raw = images[index].tobytes()
    example = tf.train.Example(features=tf.train.Features(feature={
        'height': _int64_feature(rows),
        'width': _int64_feature(cols),
        'depth': _int64_feature(depth),
        'label': _int64_feature(int(labels[index])),
        'image_raw': _bytes_feature(image_raw)}))
    writer.write(example.SerializeToString())
  writer.close()


def read_and_decode(filename_queue):
  reader = tf.TFRecordReader()
  _, serialized_example = reader.read(filename_queue)
  features = tf.parse_single_example(
      serialized_example,
      features={
          'image_raw': tf.FixedLenFeature([], tf.string),
          'label': tf.FixedLenFeature([], tf.int64),
      })
  image = tf.decode_raw(features['image_raw'], tf.uint8)
  image.set_shape([IMAGE_PIXELS])
  image = tf.cast(image, tf.float32) * (1. / 255) - 0.5
  label = tf.cast(features['label'], tf.int32)
  return image, label


def inputs(train, batch_size, num_epochs):
  if not num_epochs:
    num_epochs = None
  filename = os.path.join(FLAGS.train_dir,
                          TRAIN_FILE if train else VALIDATION_FILE)
  with tf.name_scope('input'):
    filename_queue = tf.train.string_input_producer([filename],
                                                    num_epochs=num_epochs)
    image, label = read_and_decode(filename_queue)
    images, sparse_labels = tf.train.shuffle_batch(
        [image, label], batch_size=batch_size, num_threads=1,
        capacity=30 + 3 * batch_size, min_after_dequeue=30, seed=21)
    return images, sparse_labels


def run_training():
  with tf.Graph().as_default():
    images, labels = inputs(train=True, batch_size=FLAGS.batch_size,
                            num_epochs=FLAGS.num_epochs)
    mean = tf.reduce_mean(images, axis=1)
    init_op = tf.group(tf.global_variables_initializer(),
                       tf.local_variables_initializer())
    sess = tf.Session()
    sess.run(init_op)
    coord = tf.train.Coordinator()
    threads = tf.train.start_queue_runners(sess=sess, coord=coord)
    step = 0
    total = 0
    try:
      while not coord.should_stop():
        start_time = time.time()
        values, classes = sess.run([mean, labels])
        duration = time.time() - start_time
        assert duration >= 0
        if step % 2 == 0:
          print('Step %d: %s %s' % (step, values.shape, classes.dtype.name))
        total += int(classes.sum())
        step += 1
    except tf.errors.OutOfRangeError:
      print('Done training for %d epochs, %d steps, %d.' % (
          FLAGS.num_epochs, step, total))
    finally:
      coord.request_stop()
    coord.join(threads)
    sess.close()


def count_records(path):
  total = 0
  for record in tf.python_io.tf_record_iterator(path):
    example = tf.train.Example()
    example.ParseFromString(record)
    total += example.features.feature['label'].int64_list.value[0]
  return total


def main(_):
  rng = np.random.RandomState(10)
  for name, count in (('train', 40), ('validation', 10)):
    images = rng.randint(0, 256, (count, 28, 28, 1)).astype(np.uint8)
    labels = rng.randint(0, 10, count)
    convert_to(images, labels, name, FLAGS.train_dir)
    path = os.path.join(FLAGS.train_dir, name + '.tfrecords')
    print(name, count_records(path) == labels.sum(), os.path.getsize(path))
  run_training()


if __name__ == '__main__':
  parser = argparse.ArgumentParser()
  parser.add_argument('--num_epochs', type=int, default=2)
  parser.add_argument('--batch_size', type=int, default=10)
  parser.add_argument('--train_dir', type=str, default=tempfile.mkdtemp())
  FLAGS, unparsed = parser.parse_known_args()
  tf.app.run(main=main, argv=[sys.argv[0]] + unparsed)
