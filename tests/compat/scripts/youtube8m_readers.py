"""youtube-8m: readers of video and frame level features, epochs, batch_join."""
import os
import tempfile

import numpy as np
import tensorflow as tf

flags = tf.flags
FLAGS = flags.FLAGS
flags.DEFINE_integer("batch_size", 3, "How many examples per batch.")
flags.DEFINE_integer("num_epochs", 1, "How many passes over the data.")
flags.DEFINE_integer("num_readers", 1, "How many threads to read with.")


def Dequantize(feat_vector, max_quantized_value=2, min_quantized_value=-2):
  """Dequantize the feature from the byte format to the float format."""
  assert max_quantized_value > min_quantized_value
  quantized_range = max_quantized_value - min_quantized_value
  scalar = quantized_range / 255.0
  bias = (quantized_range / 512.0) + min_quantized_value
  return feat_vector * scalar + bias


def resize_axis(tensor, axis, new_size, fill_value=0):
  """Truncates or pads a tensor to new_size on on a given axis."""
  tensor = tf.convert_to_tensor(tensor)
  shape = tf.unstack(tf.shape(tensor))
  pad_shape = shape[:]
  pad_shape[axis] = tf.maximum(0, new_size - shape[axis])
  shape[axis] = tf.minimum(shape[axis], new_size)
  shape = tf.stack(shape)
  resized = tf.concat([
      tf.slice(tensor, tf.zeros_like(shape), shape),
      tf.fill(tf.stack(pad_shape), tf.cast(fill_value, tensor.dtype))
  ], axis)
  new_shape = tensor.get_shape().as_list()
  new_shape[axis] = new_size
  resized.set_shape(new_shape)
  return resized


class BaseReader(object):
  def prepare_reader(self, unused_filename_queue):
    raise NotImplementedError()


class YT8MAggregatedFeatureReader(BaseReader):
  def __init__(self, num_classes=12, feature_sizes=(4,),
               feature_names=("mean_rgb",)):
    assert len(feature_names) == len(feature_sizes)
    self.num_classes = num_classes
    self.feature_sizes = list(feature_sizes)
    self.feature_names = list(feature_names)

  def prepare_reader(self, filename_queue, batch_size=4):
    reader = tf.TFRecordReader()
    _, serialized_examples = reader.read_up_to(filename_queue, batch_size)
    return self.prepare_serialized_examples(serialized_examples)

  def prepare_serialized_examples(self, serialized_examples):
    num_features = len(self.feature_names)
    assert num_features > 0, "self.feature_names is empty!"
    feature_map = {"video_id": tf.FixedLenFeature([], tf.string),
                   "labels": tf.VarLenFeature(tf.int64)}
    for feature_index in range(num_features):
      feature_map[self.feature_names[feature_index]] = tf.FixedLenFeature(
          [self.feature_sizes[feature_index]], tf.float32)
    features = tf.parse_example(serialized_examples, features=feature_map)
    labels = tf.sparse_to_indicator(features["labels"], self.num_classes)
    labels.set_shape([None, self.num_classes])
    concatenated_features = tf.concat(
        [features[name] for name in self.feature_names], 1)
    return (features["video_id"], concatenated_features, labels,
            tf.ones([tf.shape(serialized_examples)[0]]))


class YT8MFrameFeatureReader(BaseReader):
  def __init__(self, num_classes=12, feature_size=4, max_frames=5):
    self.num_classes = num_classes
    self.feature_size = feature_size
    self.max_frames = max_frames

  def prepare_reader(self, filename_queue, max_quantized_value=2,
                     min_quantized_value=-2):
    reader = tf.TFRecordReader()
    _, serialized_example = reader.read(filename_queue)
    contexts, features = tf.parse_single_sequence_example(
        serialized_example,
        context_features={"video_id": tf.FixedLenFeature([], tf.string),
                          "labels": tf.VarLenFeature(tf.int64)},
        sequence_features={
            "rgb": tf.FixedLenSequenceFeature([], dtype=tf.string)})
    labels = (tf.cast(
        tf.sparse_to_dense(contexts["labels"].values, (self.num_classes,), 1,
                           validate_indices=False), tf.bool))
    decoded_features = tf.reshape(
        tf.cast(tf.decode_raw(features["rgb"], tf.uint8), tf.float32),
        [-1, self.feature_size])
    num_frames = tf.minimum(tf.shape(decoded_features)[0], self.max_frames)
    feature_matrix = Dequantize(decoded_features, max_quantized_value,
                                min_quantized_value)
    feature_matrix = resize_axis(feature_matrix, 0, self.max_frames)
    return (tf.expand_dims(contexts["video_id"], 0),
            tf.expand_dims(feature_matrix, 0), tf.expand_dims(labels, 0),
            tf.expand_dims(num_frames, 0))


def get_input_data_tensors(reader, data_pattern):
  with tf.name_scope("train_input"):
    files = sorted(tf.gfile.Glob(data_pattern))
    if not files:
      raise IOError("Unable to find training files. data_pattern='" +
                    data_pattern + "'.")
    filename_queue = tf.train.string_input_producer(
        files, num_epochs=FLAGS.num_epochs, shuffle=False)
    training_data = [reader.prepare_reader(filename_queue)
                     for _ in range(FLAGS.num_readers)]
    return tf.train.batch_join(
        training_data, batch_size=FLAGS.batch_size,
        capacity=FLAGS.batch_size * 5, allow_smaller_final_batch=True,
        enqueue_many=True)


def _bytes(values):
  return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def _ints(values):
  return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def write_records(folder):
  rng = np.random.RandomState(5)
  for part in range(2):
    video = os.path.join(folder, "video%d.tfrecord" % part)
    frame = os.path.join(folder, "frame%d.tfrecord" % part)
    with tf.python_io.TFRecordWriter(video) as v, \
        tf.python_io.TFRecordWriter(frame) as f:
      for i in range(4):
        name = [("v%d%d" % (part, i)).encode()]
        labels = sorted(rng.choice(12, rng.randint(1, 4), False).tolist())
        rgb = tf.train.Feature(float_list=tf.train.FloatList(
            value=rng.rand(4).astype(np.float32)))
        v.write(tf.train.Example(features=tf.train.Features(feature={
            "video_id": _bytes(name), "labels": _ints(labels),
            "mean_rgb": rgb})).SerializeToString())
        frames = [_bytes([rng.bytes(4)]) for _ in range(rng.randint(2, 8))]
        f.write(tf.train.SequenceExample(
            context=tf.train.Features(feature={
                "video_id": _bytes(name), "labels": _ints(labels)}),
            feature_lists=tf.train.FeatureLists(feature_list={
                "rgb": tf.train.FeatureList(feature=frames)})
        ).SerializeToString())


def main(unused_argv):
  folder = tempfile.mkdtemp()
  write_records(folder)
  for reader, pattern in ((YT8MAggregatedFeatureReader(), "video*"),
                          (YT8MFrameFeatureReader(), "frame*")):
    with tf.Graph().as_default():
      tensors = get_input_data_tensors(reader, os.path.join(folder, pattern))
      print([str(one.shape) for one in tensors])
      with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(),
                  tf.local_variables_initializer()])
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess=sess, coord=coord)
        try:
          while not coord.should_stop():
            ids, features, labels, frames = sess.run(tensors)
            print([one.decode() for one in ids],
                  "%.4f" % features.sum(),
                  [np.flatnonzero(row).tolist() for row in labels],
                  frames.tolist())
        except tf.errors.OutOfRangeError:
          print("Done training -- epoch limit reached.")
        finally:
          coord.request_stop()
        coord.join(threads)


if __name__ == "__main__":
  tf.app.run()
