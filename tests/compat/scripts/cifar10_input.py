"""CIFAR-10: fixed-length records, distorted pictures, shuffled batches from queues."""
from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import os
import tempfile

import numpy as np
import tensorflow as tf

IMAGE_SIZE = 24
NUM_CLASSES = 10
NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN = 60
NUM_EXAMPLES_PER_EPOCH_FOR_EVAL = 20


def read_cifar10(filename_queue):
  """Reads and parses examples from CIFAR10 data files."""

  class CIFAR10Record(object):
    pass
  result = CIFAR10Record()

  label_bytes = 1
  result.height = 32
  result.width = 32
  result.depth = 3
  image_bytes = result.height * result.width * result.depth
  record_bytes = label_bytes + image_bytes

  reader = tf.FixedLengthRecordReader(record_bytes=record_bytes)
  result.key, value = reader.read(filename_queue)
  record_bytes = tf.decode_raw(value, tf.uint8)
  result.label = tf.cast(
      tf.strided_slice(record_bytes, [0], [label_bytes]), tf.int32)
  depth_major = tf.reshape(
      tf.strided_slice(record_bytes, [label_bytes],
                       [label_bytes + image_bytes]),
      [result.depth, result.height, result.width])
  result.uint8image = tf.transpose(depth_major, [1, 2, 0])
  return result


def _generate_image_and_label_batch(image, label, min_queue_examples,
                                    batch_size, shuffle):
  num_preprocess_threads = 1
  if shuffle:
    images, label_batch = tf.train.shuffle_batch(
        [image, label],
        batch_size=batch_size,
        num_threads=num_preprocess_threads,
        capacity=min_queue_examples + 3 * batch_size,
        min_after_dequeue=min_queue_examples, seed=11)
  else:
    images, label_batch = tf.train.batch(
        [image, label],
        batch_size=batch_size,
        num_threads=num_preprocess_threads,
        capacity=min_queue_examples + 3 * batch_size)
  tf.summary.image('images', images)
  return images, tf.reshape(label_batch, [batch_size])


def distorted_inputs(data_dir, batch_size):
  filenames = [os.path.join(data_dir, 'data_batch_%d.bin' % i)
               for i in range(1, 4)]
  for f in filenames:
    if not tf.gfile.Exists(f):
      raise ValueError('Failed to find file: ' + f)
  filename_queue = tf.train.string_input_producer(filenames, shuffle=False)
  with tf.name_scope('data_augmentation'):
    read_input = read_cifar10(filename_queue)
    reshaped_image = tf.cast(read_input.uint8image, tf.float32)
    distorted_image = tf.random_crop(reshaped_image,
                                     [IMAGE_SIZE, IMAGE_SIZE, 3], seed=1)
    distorted_image = tf.image.random_flip_left_right(distorted_image, seed=2)
    distorted_image = tf.image.random_brightness(distorted_image,
                                                 max_delta=63, seed=3)
    distorted_image = tf.image.random_contrast(distorted_image,
                                               lower=0.2, upper=1.8, seed=4)
    float_image = tf.image.per_image_standardization(distorted_image)
    float_image.set_shape([IMAGE_SIZE, IMAGE_SIZE, 3])
    read_input.label.set_shape([1])
    min_queue_examples = int(NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN * 0.4)
  return _generate_image_and_label_batch(float_image, read_input.label,
                                         min_queue_examples, batch_size,
                                         shuffle=True)


def inputs(data_dir, batch_size):
  filename_queue = tf.train.string_input_producer(
      [os.path.join(data_dir, 'test_batch.bin')], shuffle=False)
  read_input = read_cifar10(filename_queue)
  reshaped_image = tf.cast(read_input.uint8image, tf.float32)
  resized_image = tf.image.resize_image_with_crop_or_pad(
      reshaped_image, IMAGE_SIZE, IMAGE_SIZE)
  float_image = tf.image.per_image_standardization(resized_image)
  float_image.set_shape([IMAGE_SIZE, IMAGE_SIZE, 3])
  read_input.label.set_shape([1])
  return _generate_image_and_label_batch(float_image, read_input.label, 8,
                                         batch_size, shuffle=False)


def write_data(data_dir):
  rng = np.random.RandomState(0)
  names = ['data_batch_%d.bin' % i for i in range(1, 4)] + ['test_batch.bin']
  for name in names:
    rows = rng.randint(0, 256, (20, 1 + 32 * 32 * 3)).astype(np.uint8)
    rows[:, 0] = rng.randint(0, NUM_CLASSES, 20)
    rows.tofile(os.path.join(data_dir, name))


def main():
  data_dir = tempfile.mkdtemp()
  write_data(data_dir)
  for name, function in (('train', distorted_inputs), ('eval', inputs)):
    with tf.Graph().as_default():
      images, labels = function(data_dir, 8)
      print(name, images.shape, labels.shape)
      with tf.Session() as sess:
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess=sess, coord=coord)
        for _ in range(3):
          x, y = sess.run([images, labels])
          if name == 'train':  # the order is that of a race
            print(y.dtype.name, x.shape, '%.2f' % abs(x.mean()))
          else:
            print(y.tolist(), '%.3f %.3f' % (x[0, 0, 0, 0], np.abs(x).mean()))
        coord.request_stop()
        coord.join(threads)


if __name__ == '__main__':
  main()
