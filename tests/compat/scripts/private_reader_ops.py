"""A copied source: private modules, a decorator, sparse batches, its own batching function."""
import os
import tempfile

import tensorflow as tf
from tensorflow.python.framework import constant_op
from tensorflow.python.framework import dtypes
from tensorflow.python.framework import ops
from tensorflow.python.framework import sparse_tensor
from tensorflow.python.framework import tensor_shape
from tensorflow.python.ops import array_ops
from tensorflow.python.ops import control_flow_ops
from tensorflow.python.ops import data_flow_ops
from tensorflow.python.ops import io_ops
from tensorflow.python.ops import math_ops
from tensorflow.python.ops import parsing_ops
from tensorflow.python.platform import gfile
from tensorflow.python.platform import tf_logging as logging
from tensorflow.python.training import coordinator
from tensorflow.python.training import input as input_ops
from tensorflow.python.training import queue_runner
from tensorflow.python.util import compat
from tensorflow.python.util import nest

_LENGTH = 6


def _check_scalar(value, name):
  shape = ops.convert_to_tensor(value).get_shape()
  if not shape.is_compatible_with(tensor_shape.TensorShape([])):
    raise ValueError('%s must be a scalar, got %s' % (name, shape))


def read_lines(paths, num_epochs):
  """Keys and lines of some files, through a queue of this function's own."""
  names = input_ops.string_input_producer(
      [compat.as_bytes(path) for path in paths], num_epochs=num_epochs,
      shuffle=False, name='names')
  reader = io_ops.TextLineReader()
  key, line = reader.read(names)
  queue = data_flow_ops.FIFOQueue(10, [dtypes.string, dtypes.string],
                                  shapes=[[], []], name='lines')
  queue_runner.add_queue_runner(
      queue_runner.QueueRunner(queue, [queue.enqueue([key, line])]))
  return queue.dequeue()


def parse(line):
  _check_scalar(line, 'line')
  number, weight, tags = parsing_ops.decode_csv(
      line, [constant_op.constant([], dtypes.int32), [0.5], ['']])
  letters = tf.string_split([tags], ' ')
  doubled = math_ops.multiply(math_ops.cast(number, dtypes.float32), weight)
  with ops.control_dependencies([tf.assert_non_negative(number)]):
    doubled = array_ops.identity(doubled)
  checked = control_flow_ops.group(doubled.op, name='checked')
  with ops.control_dependencies([checked]):
    number = array_ops.identity(number)
  return {'number': number, 'product': doubled}, letters


def indicator(letters):
  """Which of the positions of a row have a tag."""
  rows = math_ops.cast(letters.indices[:, 1], dtypes.int32)
  ids = sparse_tensor.SparseTensor(letters.indices, rows,
                                   (1, math_ops.cast(_LENGTH, dtypes.int64)))
  return array_ops.reshape(tf.sparse_to_indicator(ids, _LENGTH), [_LENGTH])


def main():
  folder = tempfile.mkdtemp()
  paths = []
  for part in range(2):
    path = os.path.join(folder, 'part%d' % part)
    with gfile.GFile(path, 'w') as f:
      for i in range(4):
        f.write('%d,%s,%s\n' % (part * 10 + i, ['', '2.0'][i % 2],
                                ' '.join('abcd'[:i])))
    paths.append(path)
  logging.set_verbosity(logging.ERROR)
  with ops.Graph().as_default():
    key, line = read_lines(paths, num_epochs=1)
    features, letters = parse(line)
    tags = indicator(letters)
    example = [key, features, tags]
    flat = nest.flatten(example)
    batch = input_ops.batch(flat, 3, allow_smaller_final_batch=True)
    keys, columns, tags = nest.pack_sequence_as(example, batch)
    print(sorted(columns), [str(one.get_shape()) for one in batch])
    with tf.Session() as session:
      session.run(tf.local_variables_initializer())
      coord = coordinator.Coordinator()
      threads = queue_runner.start_queue_runners(session, coord)
      try:
        while not coord.should_stop():
          k, c, t = session.run([keys, columns, tags])
          print([os.path.basename(one).decode() for one in k],
                c['number'].tolist(), c['product'].tolist(),
                t.sum(1).tolist())
      except tf.errors.OutOfRangeError:
        print('done')
      finally:
        coord.request_stop()
        coord.join(threads)


if __name__ == '__main__':
  main()
