"""A trainer with MonitoredTrainingSession: hooks, steps, input from queues."""
from datetime import datetime  # noqa: F401
import time

import numpy as np
import tensorflow as tf

FLAGS = tf.app.flags.FLAGS
tf.app.flags.DEFINE_integer('max_steps', 12, """Number of batches to run.""")
tf.app.flags.DEFINE_integer('batch_size', 4, """Examples per step.""")
tf.app.flags.DEFINE_integer('log_frequency', 4, """How often to log.""")
tf.app.flags.DEFINE_boolean('log_device_placement', False, """Unused.""")


def inputs():
  """A line and noise around it, as tensors of a queue."""
  with tf.name_scope('input'):
    numbers = tf.train.range_input_producer(40, shuffle=True, seed=8)
    index = tf.cast(numbers.dequeue(), tf.float32)
    x = index / 40.0
    y = 3.0 * x + 0.5
    return tf.train.batch([x, y], FLAGS.batch_size, capacity=16)


def train():
  with tf.Graph().as_default():
    global_step = tf.train.get_or_create_global_step()
    with tf.device('/cpu:0'):
      xs, ys = inputs()
    weight = tf.get_variable('weight', [], initializer=tf.zeros_initializer())
    bias = tf.get_variable('bias', [], initializer=tf.zeros_initializer())
    error = weight * xs + bias - ys
    loss = tf.reduce_mean(tf.square(error), name='loss')
    # The gradients, by hand.
    with tf.control_dependencies([loss]):
      d_weight = tf.reduce_mean(2.0 * error * xs)
      d_bias = tf.reduce_mean(2.0 * error)
    with tf.control_dependencies([d_weight, d_bias]):
      updates = [tf.assign_sub(weight, 0.2 * d_weight),
                 tf.assign_sub(bias, 0.2 * d_bias)]
    with tf.control_dependencies(updates):
      train_op = tf.assign_add(global_step, 1)

    class _LoggerHook(tf.train.SessionRunHook):
      """Logs loss and runtime."""

      def begin(self):
        self._step = -1
        self._start_time = time.time()

      def before_run(self, run_context):
        self._step += 1
        return tf.train.SessionRunArgs(loss)  # Asks for loss value.

      def after_run(self, run_context, run_values):
        if self._step % FLAGS.log_frequency == 0:
          duration = time.time() - self._start_time
          assert duration >= 0
          print('step %d, loss = %.4f' % (self._step, run_values.results))

      def end(self, session):
        print('weight and bias: %.4f %.4f' % tuple(
            session.run([weight, bias])))

    class _NamesHook(tf.train.SessionRunHook):
      def after_create_session(self, session, coord):
        names = sorted(v.name for v in tf.global_variables())
        print(names, coord.should_stop())

    with tf.train.MonitoredTrainingSession(
        hooks=[tf.train.StopAtStepHook(last_step=FLAGS.max_steps),
               tf.train.NanTensorHook(loss),
               _NamesHook(),
               _LoggerHook()],
        config=tf.ConfigProto(
            log_device_placement=FLAGS.log_device_placement)) as mon_sess:
      steps = 0
      while not mon_sess.should_stop():
        step = mon_sess.run(train_op)
        steps += 1
      print('ran %d steps, the last one was %d' % (steps, step))


def evaluate():
  """An epoch that ends the session by running out."""
  with tf.Graph().as_default():
    values = np.arange(10, dtype=np.float32)
    queue = tf.train.input_producer(values, num_epochs=2, shuffle=False)
    batch = queue.dequeue_up_to(4)
    total = tf.Variable(0.0, trainable=False)
    add = tf.assign_add(total, tf.reduce_sum(batch))
    seen = []
    with tf.train.MonitoredSession() as session:
      while not session.should_stop():
        got, so_far = session.run([batch, add])
        seen.append((got.tolist(), float(so_far)))
    for row in seen:
      print(row)


def broken():
  """A failure within the loop comes out of it, and the threads end."""
  with tf.Graph().as_default():
    numbers = tf.train.range_input_producer(5, shuffle=False).dequeue()

    def check(number):
      if number == 3:
        raise ValueError('number three')
      return np.int32(number * 2)
    doubled = tf.py_func(check, [numbers], tf.int32)
    try:
      with tf.train.MonitoredSession() as session:
        while not session.should_stop():
          print(session.run(doubled))
    except tf.errors.InvalidArgumentError as e:
      print('failed:', 'number three' in str(e))


def main(argv=None):  # pylint: disable=unused-argument
  train()
  evaluate()
  broken()


if __name__ == '__main__':
  tf.app.run()
