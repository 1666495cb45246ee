"""seq2seq: text files in parallel, index tables, buckets by length, padded batches."""
import collections
import os
import tempfile

import tensorflow as tf

BatchedInput = collections.namedtuple(
    "BatchedInput", ("initializer", "source", "target_input", "target_output",
                     "source_sequence_length", "target_sequence_length"))
UNK = "<unk>"
SOS = "<s>"
EOS = "</s>"
UNK_ID = 0


def create_vocab_tables(src_vocab_file, tgt_vocab_file):
  src_vocab_table = tf.lookup.StaticHashTable(
      tf.lookup.TextFileInitializer(
          src_vocab_file, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE,
          tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER), UNK_ID)
  tgt_vocab_table = tf.lookup.StaticHashTable(
      tf.lookup.TextFileInitializer(
          tgt_vocab_file, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE,
          tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER), UNK_ID)
  return src_vocab_table, tgt_vocab_table


def get_iterator(src_dataset, tgt_dataset, src_vocab_table, tgt_vocab_table,
                 batch_size, random_seed, num_buckets, src_max_len=None,
                 tgt_max_len=None):
  output_buffer_size = batch_size * 100
  src_eos_id = tf.cast(src_vocab_table.lookup(tf.constant(EOS)), tf.int32)
  tgt_sos_id = tf.cast(tgt_vocab_table.lookup(tf.constant(SOS)), tf.int32)
  tgt_eos_id = tf.cast(tgt_vocab_table.lookup(tf.constant(EOS)), tf.int32)

  src_tgt_dataset = tf.data.Dataset.zip((src_dataset, tgt_dataset))
  src_tgt_dataset = src_tgt_dataset.shuffle(output_buffer_size, random_seed)
  src_tgt_dataset = src_tgt_dataset.map(
      lambda src, tgt: (tf.string_split([src]).values,
                        tf.string_split([tgt]).values),
      num_parallel_calls=1).prefetch(output_buffer_size)
  # Filter zero length input sequences.
  src_tgt_dataset = src_tgt_dataset.filter(
      lambda src, tgt: tf.logical_and(tf.size(src) > 0, tf.size(tgt) > 0))
  if src_max_len:
    src_tgt_dataset = src_tgt_dataset.map(
        lambda src, tgt: (src[:src_max_len], tgt))
  if tgt_max_len:
    src_tgt_dataset = src_tgt_dataset.map(
        lambda src, tgt: (src, tgt[:tgt_max_len]))
  # Convert the word strings to ids.
  src_tgt_dataset = src_tgt_dataset.map(
      lambda src, tgt: (tf.cast(src_vocab_table.lookup(src), tf.int32),
                        tf.cast(tgt_vocab_table.lookup(tgt), tf.int32)))
  # Create a tgt_input prefixed with <sos> and a tgt_output suffixed with <eos>.
  src_tgt_dataset = src_tgt_dataset.map(
      lambda src, tgt: (src, tf.concat(([tgt_sos_id], tgt), 0),
                        tf.concat((tgt, [tgt_eos_id]), 0)))
  src_tgt_dataset = src_tgt_dataset.map(
      lambda src, tgt_in, tgt_out: (
          src, tgt_in, tgt_out, tf.size(src), tf.size(tgt_in)))

  def batching_func(x):
    return x.padded_batch(
        batch_size,
        padded_shapes=(tf.TensorShape([None]), tf.TensorShape([None]),
                       tf.TensorShape([None]), tf.TensorShape([]),
                       tf.TensorShape([])),
        padding_values=(src_eos_id, tgt_eos_id, tgt_eos_id, 0, 0))

  if num_buckets > 1:
    def key_func(unused_1, unused_2, unused_3, src_len, tgt_len):
      if src_max_len:
        bucket_width = (src_max_len + num_buckets - 1) // num_buckets
      else:
        bucket_width = 10
      bucket_id = tf.maximum(src_len // bucket_width, tgt_len // bucket_width)
      return tf.cast(tf.minimum(num_buckets, bucket_id), tf.int64)

    def reduce_func(unused_key, windowed_data):
      return batching_func(windowed_data)

    batched_dataset = src_tgt_dataset.apply(
        tf.data.experimental.group_by_window(
            key_func=key_func, reduce_func=reduce_func,
            window_size=batch_size))
  else:
    batched_dataset = batching_func(src_tgt_dataset)
  batched_iter = tf.data.make_initializable_iterator(batched_dataset)
  (src_ids, tgt_input_ids, tgt_output_ids, src_seq_len,
   tgt_seq_len) = batched_iter.get_next()
  return BatchedInput(
      initializer=batched_iter.initializer, source=src_ids,
      target_input=tgt_input_ids, target_output=tgt_output_ids,
      source_sequence_length=src_seq_len, target_sequence_length=tgt_seq_len)


SOURCE = ["hello world", "", "a b c d e f g", "the queue is full", "b a",
          "hello a", "c d e", "x y z hello world a b c", "is the queue"]
TARGET = ["ciao mondo", "x", "a b c d e", "la coda e piena", "b a", "ciao a",
          "c d e", "x y z ciao mondo", "e la coda"]


def write(folder, name, lines):
  path = os.path.join(folder, name)
  with open(path, "w") as f:
    f.write("\n".join(lines) + "\n")
  return path


def main():
  folder = tempfile.mkdtemp()
  files = {}
  for name, lines in (("src", SOURCE), ("tgt", TARGET)):
    words = sorted(set(" ".join(lines).split()) - {"x", "z"})
    files[name + "_vocab"] = write(folder, name + ".vocab",
                                   [UNK, SOS, EOS] + words)
    files[name] = write(folder, name + ".txt", lines)
  for num_buckets in (1, 3):
    with tf.Graph().as_default():
      tables = create_vocab_tables(files["src_vocab"], files["tgt_vocab"])
      iterator = get_iterator(
          tf.data.TextLineDataset(files["src"]),
          tf.data.TextLineDataset(files["tgt"]), tables[0], tables[1],
          batch_size=2, random_seed=3, num_buckets=num_buckets, src_max_len=6,
          tgt_max_len=5)
      print(num_buckets, iterator.source.shape)
      with tf.Session() as sess:
        sess.run(tf.tables_initializer())
        sess.run(iterator.initializer)
        while True:
          try:
            source, t_in, t_out, s_len, t_len = sess.run(iterator[1:])
            print(source.tolist(), t_in.tolist(), t_out[:, -1].tolist(),
                  s_len.tolist(), t_len.tolist())
          except tf.errors.OutOfRangeError:
            print("epoch done")
            break


if __name__ == "__main__":
  main()
