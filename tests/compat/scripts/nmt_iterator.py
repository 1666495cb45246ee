"""NMT-like iterator: vocab tables, zip, filter, padded_batch, group_by_window, initializable iterators, namedtuple."""

import collections
import os
import tempfile
import tensorflow as tf
import numpy as np


class BatchedInput(
  collections.namedtuple(
    "BatchedInput",
    (
      "initializer",
      "source",
      "target_input",
      "target_output",
      "source_sequence_length",
      "target_sequence_length",
    ),
  )
):
  pass


def get_iterator(
  src_dataset,
  tgt_dataset,
  src_vocab_table,
  tgt_vocab_table,
  batch_size,
  sos,
  eos,
  random_seed,
  num_buckets,
  src_max_len=None,
  tgt_max_len=None,
  output_buffer_size=None,
  skip_count=None,
  num_shards=1,
  shard_index=0,
  reshuffle_each_iteration=True,
):
  if not output_buffer_size:
    output_buffer_size = batch_size * 1000
  src_eos_id = tf.cast(src_vocab_table.lookup(tf.constant(eos)), tf.int32)
  tgt_sos_id = tf.cast(tgt_vocab_table.lookup(tf.constant(sos)), tf.int32)
  tgt_eos_id = tf.cast(tgt_vocab_table.lookup(tf.constant(eos)), tf.int32)
  d = tf.data.Dataset.zip((src_dataset, tgt_dataset))
  d = d.shard(num_shards, shard_index)
  if skip_count is not None:
    d = d.skip(skip_count)
  d = d.shuffle(output_buffer_size, random_seed, reshuffle_each_iteration)
  d = d.map(
    lambda src, tgt: (
      tf.string_split([src]).values,
      tf.string_split([tgt]).values,
    ),
    num_parallel_calls=4,
  ).prefetch(output_buffer_size)
  d = d.filter(
    lambda src, tgt: tf.logical_and(tf.size(src) > 0, tf.size(tgt) > 0)
  )
  if src_max_len:
    d = d.map(lambda src, tgt: (src[:src_max_len], tgt), num_parallel_calls=4)
  if tgt_max_len:
    d = d.map(lambda src, tgt: (src, tgt[:tgt_max_len]), num_parallel_calls=4)
  d = d.map(
    lambda src, tgt: (
      tf.cast(src_vocab_table.lookup(src), tf.int32),
      tf.cast(tgt_vocab_table.lookup(tgt), tf.int32),
    )
  )
  d = d.map(
    lambda src, tgt: (
      src,
      tf.concat(([tgt_sos_id], tgt), 0),
      tf.concat((tgt, [tgt_eos_id]), 0),
    )
  )
  d = d.map(
    lambda src, tgt_in, tgt_out: (
      src,
      tgt_in,
      tgt_out,
      tf.size(src),
      tf.size(tgt_in),
    )
  )

  def batching_func(x):
    return x.padded_batch(
      batch_size,
      padded_shapes=(
        tf.TensorShape([None]),
        tf.TensorShape([None]),
        tf.TensorShape([None]),
        tf.TensorShape([]),
        tf.TensorShape([]),
      ),
      padding_values=(src_eos_id, tgt_eos_id, tgt_eos_id, 0, 0),
    )

  if num_buckets > 1:

    def key_func(unused_1, unused_2, unused_3, src_len, tgt_len):
      bucket_width = (
        (src_max_len + num_buckets - 1) // num_buckets if src_max_len else 10
      )
      bucket_id = tf.maximum(src_len // bucket_width, tgt_len // bucket_width)
      return tf.to_int64(tf.minimum(num_buckets, bucket_id))

    def reduce_func(unused_key, windowed_data):
      return batching_func(windowed_data)

    batched = d.apply(
      tf.data.experimental.group_by_window(
        key_func=key_func, reduce_func=reduce_func, window_size=batch_size
      )
    )
  else:
    batched = batching_func(d)
  it = (
    tf.data.make_initializable_iterator(batched)
    if hasattr(tf.data, "make_initializable_iterator")
    else batched.make_initializable_iterator()
  )
  (src_ids, tgt_in, tgt_out, src_len, tgt_len) = it.get_next()
  return BatchedInput(
    initializer=it.initializer,
    source=src_ids,
    target_input=tgt_in,
    target_output=tgt_out,
    source_sequence_length=src_len,
    target_sequence_length=tgt_len,
  )


def create_vocab(f, words):
  with tf.gfile.GFile(f, "w") as o:
    o.write("\n".join(words) + "\n")


def main(_):
  folder = tempfile.mkdtemp()
  rng = np.random.RandomState(4)
  words = ["<unk>", "<s>", "</s>"] + ["w%d" % i for i in range(12)]
  vocab = os.path.join(folder, "vocab")
  create_vocab(vocab, words)
  for side in "src", "tgt":
    with tf.gfile.Open(os.path.join(folder, side), mode="w") as f:
      for i in range(14):
        n = rng.randint(0, 8) if i % 5 else 0
        f.write(" ".join("w%d" % rng.randint(0, 15) for _ in range(n)) + "\n")
  graph = tf.Graph()
  with graph.as_default(), tf.container("train"):
    tables = [
      tf.contrib.lookup.index_table_from_file(vocab, default_value=0)
      if hasattr(tf, "contrib")
      else tf.lookup.StaticHashTable(
        tf.lookup.TextFileInitializer(
          vocab,
          tf.string,
          tf.lookup.TextFileIndex.WHOLE_LINE,
          tf.int64,
          tf.lookup.TextFileIndex.LINE_NUMBER,
        ),
        0,
      )
      for _ in range(2)
    ]
    skip = tf.placeholder(shape=(), dtype=tf.int64)
    it = get_iterator(
      tf.data.TextLineDataset(os.path.join(folder, "src")),
      tf.data.TextLineDataset(tf.gfile.Glob(os.path.join(folder, "t*t"))),
      tables[0],
      tables[1],
      3,
      "<s>",
      "</s>",
      7,
      3,
      6,
      6,
      skip_count=skip,
    )
    print(it._fields, [str(t.shape) for t in it[1:]])
  sess = tf.Session(
    graph=graph,
    config=tf.ConfigProto(
      intra_op_parallelism_threads=1, inter_op_parallelism_threads=2
    ),
  )
  with graph.as_default():
    sess.run(tf.tables_initializer())
  sess.run(it.initializer, feed_dict={skip: 2})
  step = 0
  for epoch in range(2):
    try:
      while True:
        src, ti, to, sl, tl = sess.run(it[1:])
        print(
          step, src.tolist(), ti.tolist(), to.tolist(), sl.tolist(), tl.tolist()
        )
        step += 1
    except tf.errors.OutOfRangeError:
      print("epoch", epoch)
      sess.run(it.initializer, feed_dict={skip: 0})
  with tf.gfile.GFile(vocab) as f:
    print(
      sum(1 for _ in f),
      tf.gfile.IsDirectory(folder),
      sorted(tf.gfile.ListDirectory(folder)),
    )


if __name__ == "__main__":
  tf.app.run(main=main)
