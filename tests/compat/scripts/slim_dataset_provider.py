"""slim: a data set of TFRecords, its decoder, its provider, prefetched batches."""
from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import os
import tempfile

import tensorflow as tf
import tensorflow.contrib.slim as slim

_FILE_PATTERN = 'points_%s_*.tfrecord'
SPLITS_TO_SIZES = {'train': 9, 'test': 4}
_NUM_CLASSES = 3
_ITEMS_TO_DESCRIPTIONS = {
    'point': 'Two coordinates.',
    'label': 'A single integer between 0 and 2',
}


def int64_feature(values):
  if not isinstance(values, (tuple, list)):
    values = [values]
  return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def bytes_feature(values):
  return tf.train.Feature(bytes_list=tf.train.BytesList(value=[values]))


def float_feature(values):
  return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def convert(dataset_dir):
  for split, size in sorted(SPLITS_TO_SIZES.items()):
    for part in range(2):
      path = os.path.join(dataset_dir,
                          'points_%s_%d.tfrecord' % (split, part))
      with tf.python_io.TFRecordWriter(path) as writer:
        for i in range(part, size, 2):
          example = tf.train.Example(features=tf.train.Features(feature={
              'point/xy': float_feature([i, i / 2]),
              'point/name': bytes_feature(b'p%d' % i),
              'point/tags': int64_feature(list(range(i % 3))),
              'point/label': int64_feature(i % _NUM_CLASSES),
          }))
          writer.write(example.SerializeToString())


def get_split(split_name, dataset_dir, file_pattern=None, reader=None):
  if split_name not in SPLITS_TO_SIZES:
    raise ValueError('split name %s was not recognized.' % split_name)
  if not file_pattern:
    file_pattern = _FILE_PATTERN
  file_pattern = os.path.join(dataset_dir, file_pattern % split_name)
  # Allowing None in the signature so that dataset_factory can use the default.
  if reader is None:
    reader = tf.TFRecordReader
  keys_to_features = {
      'point/xy': tf.FixedLenFeature([2], tf.float32),
      'point/name': tf.FixedLenFeature((), tf.string, default_value=''),
      'point/tags': tf.VarLenFeature(tf.int64),
      'point/label': tf.FixedLenFeature(
          [], tf.int64, default_value=0),
  }
  items_to_handlers = {
      'point': slim.tfexample_decoder.Tensor('point/xy', shape=[2]),
      'name': slim.tfexample_decoder.Tensor('point/name'),
      'tags': slim.tfexample_decoder.Tensor('point/tags', default_value=-1),
      'label': slim.tfexample_decoder.Tensor('point/label'),
      'total': slim.tfexample_decoder.ItemHandlerCallback(
          ['point/xy'], lambda tensors: tf.reduce_sum(tensors['point/xy'])),
  }
  decoder = slim.tfexample_decoder.TFExampleDecoder(
      keys_to_features, items_to_handlers)
  return slim.dataset.Dataset(
      data_sources=file_pattern,
      reader=reader,
      decoder=decoder,
      num_samples=SPLITS_TO_SIZES[split_name],
      items_to_descriptions=_ITEMS_TO_DESCRIPTIONS,
      num_classes=_NUM_CLASSES,
      labels_to_names=None)


def run(dataset, shuffle):
  with tf.Graph().as_default():
    with tf.device('/cpu:0'):
      provider = slim.dataset_data_provider.DatasetDataProvider(
          dataset, num_readers=2 if shuffle else 1, shuffle=shuffle,
          num_epochs=1, common_queue_capacity=20, common_queue_min=10)
      [point, name, label, total] = provider.get(
          ['point', 'name', 'label', 'total'])
      label -= 0
      points, names, labels, totals = tf.train.batch(
          [point, name, label, total], batch_size=4, num_threads=1,
          capacity=5 * 4, allow_smaller_final_batch=True)
      one_hot = tf.one_hot(labels, dataset.num_classes)
    print(sorted(provider.list_items()), provider.num_samples())
    seen = []
    with tf.Session() as sess:
      sess.run(tf.local_variables_initializer())
      with slim.queues.QueueRunners(sess):
        try:
          while True:
            p, n, h, t = sess.run([points, names, one_hot, totals])
            seen.extend(zip([one.decode() for one in n], p.tolist(),
                            h.argmax(1).tolist(), t.tolist()))
        except tf.errors.OutOfRangeError:
          pass
    for row in sorted(seen):
      print(row)


def main():
  dataset_dir = tempfile.mkdtemp()
  convert(dataset_dir)
  for split in sorted(SPLITS_TO_SIZES):
    dataset = get_split(split, dataset_dir)
    print(split, dataset.num_samples, sorted(dataset.items_to_descriptions))
    run(dataset, shuffle=split == 'train')
  try:
    get_split('validation', dataset_dir)
  except ValueError as e:
    print(e)


if __name__ == '__main__':
  main()
