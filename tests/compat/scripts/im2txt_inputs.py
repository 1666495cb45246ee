"""im2txt: sequence examples of captions, shuffled in two queues, padded in batches."""
from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import os
import tempfile

import numpy as np
import tensorflow as tf


def parse_sequence_example(serialized, image_feature, caption_feature):
  context, sequence = tf.parse_single_sequence_example(
      serialized,
      context_features={
          image_feature: tf.FixedLenFeature([], dtype=tf.string)
      },
      sequence_features={
          caption_feature: tf.FixedLenSequenceFeature([], dtype=tf.int64),
      })
  encoded_image = context[image_feature]
  caption = sequence[caption_feature]
  return encoded_image, caption


def prefetch_input_data(reader, file_pattern, is_training, batch_size,
                        values_per_shard, input_queue_capacity_factor=16,
                        num_reader_threads=1, shard_queue_name="filename_queue",
                        value_queue_name="input_queue"):
  data_files = []
  for pattern in file_pattern.split(","):
    data_files.extend(sorted(tf.gfile.Glob(pattern)))
  if not data_files:
    tf.logging.fatal("Found no input files matching %s", file_pattern)
  else:
    tf.logging.info("Prefetching values from %d files matching %s",
                    len(data_files), file_pattern)
  if is_training:
    filename_queue = tf.train.string_input_producer(
        data_files, shuffle=True, capacity=16, seed=1, name=shard_queue_name)
    min_queue_examples = values_per_shard * input_queue_capacity_factor
    capacity = min_queue_examples + 100 * batch_size
    values_queue = tf.RandomShuffleQueue(
        capacity=capacity, min_after_dequeue=min_queue_examples,
        dtypes=[tf.string], seed=2, name="random_" + value_queue_name)
  else:
    filename_queue = tf.train.string_input_producer(
        data_files, shuffle=False, capacity=1, num_epochs=1,
        name=shard_queue_name)
    capacity = values_per_shard + 3 * batch_size
    values_queue = tf.FIFOQueue(capacity=capacity, dtypes=[tf.string],
                                name="fifo_" + value_queue_name)
  enqueue_ops = []
  for _ in range(num_reader_threads):
    _, value = reader.read(filename_queue)
    enqueue_ops.append(values_queue.enqueue([value]))
  tf.train.queue_runner.add_queue_runner(
      tf.train.queue_runner.QueueRunner(values_queue, enqueue_ops))
  tf.summary.scalar(
      "queue/%s/fraction_of_%d_full" % (values_queue.name, capacity),
      tf.cast(values_queue.size(), tf.float32) * (1. / capacity))
  return values_queue


def batch_with_dynamic_pad(images_and_captions, batch_size, queue_capacity,
                           add_summaries=True):
  enqueue_list = []
  for image, caption in images_and_captions:
    caption_length = tf.shape(caption)[0]
    input_length = tf.expand_dims(tf.subtract(caption_length, 1), 0)
    input_seq = tf.slice(caption, [0], input_length)
    target_seq = tf.slice(caption, [1], input_length)
    indicator = tf.ones(input_length, dtype=tf.int32)
    enqueue_list.append([image, input_seq, target_seq, indicator])
  images, input_seqs, target_seqs, mask = tf.train.batch_join(
      enqueue_list, batch_size=batch_size, capacity=queue_capacity,
      dynamic_pad=True, allow_smaller_final_batch=True,
      name="batch_and_pad")
  if add_summaries:
    lengths = tf.add(tf.reduce_sum(mask, 1), 1)
    tf.summary.scalar("caption_length/batch_min", tf.reduce_min(lengths))
    tf.summary.scalar("caption_length/batch_max", tf.reduce_max(lengths))
  return images, input_seqs, target_seqs, mask


def write_shards(folder):
  rng = np.random.RandomState(3)
  for shard in range(3):
    path = os.path.join(folder, "train-%05d-of-00003" % shard)
    with tf.python_io.TFRecordWriter(path) as writer:
      for i in range(5):
        words = [1] + rng.randint(3, 50, rng.randint(1, 7)).tolist() + [2]
        context = tf.train.Features(feature={
            "image/data": tf.train.Feature(bytes_list=tf.train.BytesList(
                value=[np.full(6, shard * 10 + i, np.float32).tobytes()])),
        })
        tokens = tf.train.FeatureList(feature=[
            tf.train.Feature(int64_list=tf.train.Int64List(value=[w]))
            for w in words])
        lists = tf.train.FeatureLists(feature_list={
            "image/caption_ids": tokens})
        writer.write(tf.train.SequenceExample(
            context=context, feature_lists=lists).SerializeToString())


def main():
  folder = tempfile.mkdtemp()
  write_shards(folder)
  for is_training in (False, True):
    with tf.Graph().as_default():
      queue = prefetch_input_data(
          tf.TFRecordReader(), os.path.join(folder, "train-?????-of-00003"),
          is_training=is_training, batch_size=4, values_per_shard=2,
          input_queue_capacity_factor=2)
      images_and_captions = []
      for _ in range(1):
        serialized = queue.dequeue()
        encoded, caption = parse_sequence_example(
            serialized, "image/data", "image/caption_ids")
        image = tf.reshape(tf.decode_raw(encoded, tf.float32), [6])
        images_and_captions.append([image, caption])
      batch = batch_with_dynamic_pad(images_and_captions, 4, 16)
      summaries = tf.summary.merge_all()
      print(is_training, summaries.dtype.name, [str(b.shape) for b in batch])
      with tf.Session() as sess:
        sess.run(tf.local_variables_initializer())
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess=sess, coord=coord)
        try:
          for _ in range(5):
            images, inputs, targets, mask = sess.run(batch)
            if is_training:  # the order is that of a race
              print(images.shape, inputs.shape == targets.shape)
            else:
              print(images[:, 0].astype(int).tolist(), inputs.tolist(),
                    targets[:, -1].tolist(), mask.sum(1).tolist())
        except tf.errors.OutOfRangeError:
          print("end of input")
        finally:
          coord.request_stop()
          coord.join(threads, stop_grace_period_secs=10)


if __name__ == "__main__":
  main()
