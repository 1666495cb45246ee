"""The transformer's reader: interleaved files, filtered by length, batched by tokens."""
import math
import os
import tempfile

import numpy as np
import tensorflow as tf

_MIN_BOUNDARY = 4
_BOUNDARY_SCALE = 1.5


def _load_records(filename):
  """Read file and return a dataset of tf.Examples."""
  return tf.data.TFRecordDataset(filename, buffer_size=8 * 1000 * 1000)


def _parse_example(serialized_example):
  data_fields = {
      "inputs": tf.VarLenFeature(tf.int64),
      "targets": tf.VarLenFeature(tf.int64)
  }
  parsed = tf.parse_single_example(serialized_example, data_fields)
  inputs = tf.sparse_tensor_to_dense(parsed["inputs"])
  targets = tf.sparse_tensor_to_dense(parsed["targets"])
  return inputs, targets


def _filter_max_length(example, max_length=256):
  return tf.logical_and(tf.size(example[0]) <= max_length,
                        tf.size(example[1]) <= max_length)


def _get_example_length(example):
  length = tf.maximum(tf.shape(example[0])[0], tf.shape(example[1])[0])
  return length


def _create_min_max_boundaries(max_length, min_boundary=_MIN_BOUNDARY,
                               boundary_scale=_BOUNDARY_SCALE):
  bucket_boundaries = []
  x = min_boundary
  while x < max_length:
    bucket_boundaries.append(x)
    x = max(x + 1, int(x * boundary_scale))
  buckets_min = [0] + bucket_boundaries
  buckets_max = bucket_boundaries + [max_length + 1]
  return buckets_min, buckets_max


def _batch_examples(dataset, batch_size, max_length):
  buckets_min, buckets_max = _create_min_max_boundaries(max_length)
  bucket_batch_sizes = [batch_size // x for x in buckets_max]
  bucket_batch_sizes = tf.constant(bucket_batch_sizes, dtype=tf.int64)

  def example_to_bucket_id(example_input, example_target):
    seq_length = _get_example_length((example_input, example_target))
    conditions_c = tf.logical_and(
        tf.less_equal(buckets_min, seq_length),
        tf.less(seq_length, buckets_max))
    bucket_id = tf.reduce_min(tf.where(conditions_c))
    return bucket_id

  def window_size_fn(bucket_id):
    return bucket_batch_sizes[bucket_id]

  def batching_fn(bucket_id, grouped_dataset):
    bucket_batch_size = window_size_fn(bucket_id)
    return grouped_dataset.padded_batch(bucket_batch_size, ([None], [None]))

  return dataset.apply(tf.data.experimental.group_by_window(
      key_func=example_to_bucket_id,
      reduce_func=batching_fn,
      window_size=None,
      window_size_func=window_size_fn))


def _read_and_batch_from_files(file_pattern, batch_size, max_length, shuffle,
                               repeat):
  dataset = tf.data.Dataset.list_files(file_pattern, shuffle=False)
  if shuffle:
    dataset = dataset.shuffle(buffer_size=10, seed=1)
  dataset = dataset.interleave(_load_records, cycle_length=2, block_length=1,
                               num_parallel_calls=2)
  dataset = dataset.map(_parse_example,
                        num_parallel_calls=2)
  dataset = dataset.filter(lambda x, y: _filter_max_length((x, y), max_length))
  dataset = _batch_examples(dataset, batch_size, max_length)
  dataset = dataset.repeat(repeat)
  dataset = dataset.prefetch(buffer_size=4)
  return dataset


def write(folder):
  rng = np.random.RandomState(4)
  for part in range(3):
    path = os.path.join(folder, "wmt-train-%05d-of-00003" % part)
    with tf.python_io.TFRecordWriter(path) as writer:
      for _ in range(8):
        feature = {key: tf.train.Feature(int64_list=tf.train.Int64List(
            value=rng.randint(2, 99, rng.randint(1, 14)).tolist()))
            for key in ("inputs", "targets")}
        writer.write(tf.train.Example(features=tf.train.Features(
            feature=feature)).SerializeToString())


def main():
  folder = tempfile.mkdtemp()
  write(folder)
  dataset = _read_and_batch_from_files(
      os.path.join(folder, "*train*"), 24, 12, True, 2)
  print(tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset))
  iterator = tf.data.make_initializable_iterator(dataset)
  tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
  inputs, targets = iterator.get_next()
  weights = tf.cast(tf.not_equal(targets, 0), tf.float32)
  position = tf.cast(tf.range(tf.shape(inputs)[1]), tf.float32)
  scale = math.log(1e4) / 3
  timescales = tf.exp(tf.cast(tf.range(4), tf.float32) * -scale)
  signal = tf.concat([tf.sin(tf.expand_dims(position, 1) * timescales),
                      tf.cos(tf.expand_dims(position, 1) * timescales)], 1)
  with tf.Session() as sess:
    sess.run(tf.tables_initializer())
    tokens, batches = 0, 0
    while True:
      try:
        x, y, w, s = sess.run([inputs, targets, weights, signal])
      except tf.errors.OutOfRangeError:
        break
      tokens += int(w.sum())
      batches += 1
      if batches < 12:
        print(x.shape, y.shape, x[0].tolist(), int(w.sum()),
              "%.3f" % s.sum())
    print(batches, tokens)


if __name__ == "__main__":
  main()
