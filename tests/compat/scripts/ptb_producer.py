"""PTB: words to ids, and a producer of slices of a long text."""
from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import collections
import os
import tempfile

import tensorflow as tf

TEXT = """the queue feeds the step and the step eats the batch
a batch of words comes out of the queue when the queue is full
we stop the threads and join the threads at the end of the text
nothing is lost and nothing is seen twice in one epoch of the text
""" * 3


def _read_words(filename):
  with tf.gfile.GFile(filename, "r") as f:
    return f.read().replace("\n", "<eos>").replace("<eos>", " <eos> ").split()


def _build_vocab(filename):
  data = _read_words(filename)
  counter = collections.Counter(data)
  count_pairs = sorted(counter.items(), key=lambda x: (-x[1], x[0]))
  words, _ = list(zip(*count_pairs))
  word_to_id = dict(zip(words, range(len(words))))
  return word_to_id


def _file_to_word_ids(filename, word_to_id):
  data = _read_words(filename)
  return [word_to_id[word] for word in data if word in word_to_id]


def ptb_raw_data(data_path=None):
  train_path = os.path.join(data_path, "ptb.train.txt")
  valid_path = os.path.join(data_path, "ptb.valid.txt")
  word_to_id = _build_vocab(train_path)
  train_data = _file_to_word_ids(train_path, word_to_id)
  valid_data = _file_to_word_ids(valid_path, word_to_id)
  vocabulary = len(word_to_id)
  return train_data, valid_data, vocabulary


def ptb_producer(raw_data, batch_size, num_steps, name=None):
  with tf.name_scope(name, "PTBProducer", [raw_data, batch_size, num_steps]):
    raw_data = tf.convert_to_tensor(raw_data, name="raw_data", dtype=tf.int32)
    data_len = tf.size(raw_data)
    batch_len = data_len // batch_size
    data = tf.reshape(raw_data[0: batch_size * batch_len],
                      [batch_size, batch_len])
    epoch_size = (batch_len - 1) // num_steps
    assertion = tf.assert_positive(
        epoch_size,
        message="epoch_size == 0, decrease batch_size or num_steps")
    with tf.control_dependencies([assertion]):
      epoch_size = tf.identity(epoch_size, name="epoch_size")
    i = tf.train.range_input_producer(epoch_size, shuffle=False).dequeue()
    x = tf.strided_slice(data, [0, i * num_steps],
                         [batch_size, (i + 1) * num_steps])
    x.set_shape([batch_size, num_steps])
    y = tf.strided_slice(data, [0, i * num_steps + 1],
                         [batch_size, (i + 1) * num_steps + 1])
    y.set_shape([batch_size, num_steps])
    return x, y


class PTBInput(object):
  """The input data."""

  def __init__(self, config, data, name=None):
    self.batch_size = batch_size = config["batch_size"]
    self.num_steps = num_steps = config["num_steps"]
    self.epoch_size = ((len(data) // batch_size) - 1) // num_steps
    self.input_data, self.targets = ptb_producer(
        data, batch_size, num_steps, name=name)


def run_epoch(session, inputs, verbose=False):
  """Counts how often the next word is the same letter's word."""
  total = 0
  for step in range(inputs.epoch_size):
    x, y = session.run([inputs.input_data, inputs.targets])
    total += int((y - x).sum())
    if verbose:
      print("%.3f" % (step * 1.0 / inputs.epoch_size), x.tolist())
  return total


def main():
  folder = tempfile.mkdtemp()
  for name, text in (("train", TEXT), ("valid", TEXT[:200])):
    with open(os.path.join(folder, "ptb.%s.txt" % name), "w") as f:
      f.write(text)
  train_data, valid_data, vocabulary = ptb_raw_data(folder)
  print(len(train_data), len(valid_data), vocabulary)
  config = {"batch_size": 4, "num_steps": 6}
  eval_config = {"batch_size": 1, "num_steps": 3}
  with tf.Graph().as_default():
    with tf.name_scope("Train"):
      train_input = PTBInput(config, train_data, name="TrainInput")
      print(train_input.input_data.op.name, train_input.targets.shape)
    with tf.name_scope("Valid"):
      valid_input = PTBInput(eval_config, valid_data, name="ValidInput")
    with tf.Session() as session:
      coord = tf.train.Coordinator()
      threads = tf.train.start_queue_runners(session, coord)
      for epoch in range(2):
        print("Epoch: %d" % (epoch + 1),
              run_epoch(session, train_input, verbose=epoch == 0),
              run_epoch(session, valid_input))
      coord.request_stop()
      coord.join(threads)
  with tf.Graph().as_default():
    too_long = PTBInput({"batch_size": 4, "num_steps": 600}, train_data)
    with tf.Session() as session:
      coord = tf.train.Coordinator()
      threads = tf.train.start_queue_runners(session, coord)
      try:
        session.run(too_long.input_data)
      except (tf.errors.OutOfRangeError, tf.errors.InvalidArgumentError) as e:
        print("no epoch:", type(e).__name__)
      coord.request_stop()
      try:
        coord.join(threads)
      except tf.errors.InvalidArgumentError as e:
        print("decrease batch_size" in str(e))


if __name__ == "__main__":
  main()
