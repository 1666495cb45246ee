"""A CIFAR/AlexNet-like trainer with hooks, global step, Supervisor-less, name scopes, tensor names and graph introspection."""

import os
import tempfile
import math
from datetime import datetime
import numpy as np
import tensorflow as tf

FLAGS = tf.app.flags.FLAGS
tf.app.flags.DEFINE_integer("batch_size", 4, """Number of images.""")
tf.app.flags.DEFINE_string("data_dir", tempfile.mkdtemp(), """Path.""")
tf.app.flags.DEFINE_boolean(
  "use_fp16", False, """Train the model using fp16."""
)
tf.app.flags.DEFINE_integer("max_steps", 5, """steps""")


def read(filename_queue):
  class Record(object):
    pass

  result = Record()
  label_bytes = 2
  result.height = 4
  result.width = 4
  result.depth = 3
  image_bytes = result.height * result.width * result.depth
  record_bytes = label_bytes + image_bytes
  reader = tf.FixedLengthRecordReader(
    record_bytes=record_bytes, header_bytes=4, footer_bytes=2, hop_bytes=0
  )
  result.key, value = reader.read(filename_queue)
  record_bytes = tf.decode_raw(value, tf.uint8)
  result.label = tf.cast(
    tf.strided_slice(record_bytes, [0], [label_bytes]), tf.int32
  )
  depth_major = tf.reshape(
    tf.strided_slice(record_bytes, [label_bytes], [label_bytes + image_bytes]),
    [result.depth, result.height, result.width],
  )
  result.uint8image = tf.transpose(depth_major, [1, 2, 0])
  result.reader = reader
  return result


def inputs():
  names = [
    os.path.join(FLAGS.data_dir, "data_batch_%d.bin" % i) for i in range(1, 4)
  ]
  for f in names:
    if not tf.gfile.Exists(f):
      raise ValueError("Failed to find file: " + f)
  with tf.name_scope("data_augmentation"):
    fq = tf.train.string_input_producer(
      names, num_epochs=2, shuffle=True, seed=11
    )
    r = read(fq)
    reshaped = tf.cast(r.uint8image, tf.float32)
    image = tf.random_crop(reshaped, [3, 3, 3], seed=1)
    image = tf.image.random_flip_left_right(image, seed=2)
    image = tf.image.random_brightness(image, max_delta=63, seed=3)
    image = tf.image.random_contrast(image, lower=0.2, upper=1.8, seed=4)
    image = tf.image.per_image_standardization(image)
    r.label.set_shape([2])
    image.set_shape([3, 3, 3])
  images, labels = tf.train.batch(
    [image, r.label],
    batch_size=FLAGS.batch_size,
    num_threads=1,
    capacity=12,
    name="batching",
  )
  tf.summary.image("images", images)
  return images, tf.reshape(labels, [FLAGS.batch_size, 2]), r


class LoggerHook(tf.train.SessionRunHook):
  def __init__(self, loss):
    self._loss = loss

  def begin(self):
    self._step = -1
    print("begin", tf.get_default_graph().finalized)

  def after_create_session(self, session, coord):
    print(
      "created",
      isinstance(coord, tf.train.Coordinator),
      session.graph.finalized,
    )

  def before_run(self, run_context):
    self._step += 1
    return tf.train.SessionRunArgs(
      {"loss": self._loss, "step": tf.train.get_global_step()}
    )

  def after_run(self, run_context, run_values):
    print(
      "step %d, loss = %.3f (%d)"
      % (self._step, run_values.results["loss"], run_values.results["step"])
    )
    if self._step == FLAGS.max_steps - 2:
      run_context.request_stop()

  def end(self, session):
    print("end", session.run(tf.train.get_global_step()))


def main(argv=None):
  rng = np.random.RandomState(1)
  for i in range(1, 4):
    with open(os.path.join(FLAGS.data_dir, "data_batch_%d.bin" % i), "wb") as f:
      f.write(b"HEAD")
      for j in range(5):
        f.write(
          bytes([i, j]) + rng.randint(0, 256, 48).astype(np.uint8).tobytes()
        )
      f.write(b"ft")
  with tf.Graph().as_default() as g:
    global_step = tf.train.get_or_create_global_step()
    with tf.device("/cpu:0"):
      images, labels, r = inputs()
    with tf.variable_scope("local") as scope:
      w = tf.get_variable(
        "weights",
        [27, 2],
        initializer=tf.constant_initializer(0.1),
        dtype=tf.float16 if FLAGS.use_fp16 else tf.float32,
      )
      b = tf.get_variable("biases", [2], initializer=tf.zeros_initializer())
      act = tf.nn.relu(
        tf.matmul(tf.reshape(images, [FLAGS.batch_size, -1]), w) + b,
        name=scope.name,
      )
    loss = tf.reduce_mean(
      tf.square(act - tf.to_float(labels)), name="total_loss"
    )
    tf.add_to_collection("losses", loss)
    loss = tf.add_n(tf.get_collection("losses"), name="add_all")
    with tf.control_dependencies([loss]):
      train_op = tf.assign_add(global_step, 1)
    print(
      images.op.name,
      labels.name,
      w.op.name,
      w.name,
      act.op.name,
      loss.name,
      r.key.name,
    )
    print(
      [v.op.name for v in tf.trainable_variables()],
      [v.name for v in tf.local_variables()],
    )
    print(
      sorted(
        {o.type for o in g.get_operations()}
        & {
          "FixedLengthRecordReaderV2",
          "QueueDequeueManyV2",
          "FIFOQueueV2",
          "ReaderReadV2",
          "DecodeRaw",
        }
      )
    )
    print([q.name for q in tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS)])
    assert (
      images.dtype is tf.float32
      and images.get_shape()[0].value == FLAGS.batch_size
    )
    with tf.train.MonitoredTrainingSession(
      hooks=[
        tf.train.StopAtStepHook(last_step=FLAGS.max_steps),
        tf.train.NanTensorHook(loss),
        LoggerHook(loss),
      ],
      config=tf.ConfigProto(log_device_placement=False),
      save_summaries_steps=None,
      save_summaries_secs=None,
      log_step_count_steps=None,
    ) as mon_sess:
      while not mon_sess.should_stop():
        mon_sess.run(train_op)
  print(datetime.now() > datetime(2016, 1, 1), math.ceil(2.1))


if __name__ == "__main__":
  tf.app.run()
