"""Inception: sharded examples in a shuffle queue, cropped by boxes, distorted case by case."""

import os
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_ops

FLAGS = tf.app.flags.FLAGS

tf.app.flags.DEFINE_integer('batch_size', 4, """Number of images to process in a batch.""")
tf.app.flags.DEFINE_integer('image_size', 12, """Provide square images of this size.""")
tf.app.flags.DEFINE_integer('num_preprocess_threads', 4, """A multiple of 4.""")
tf.app.flags.DEFINE_integer('num_readers', 1, """Parallel readers during train.""")
tf.app.flags.DEFINE_integer('input_queue_memory_factor', 1, """Size of the queue.""")


def _int64_feature(value):
  if not isinstance(value, list):
    value = [value]
  return tf.train.Feature(int64_list=tf.train.Int64List(value=value))


def _float_feature(value):
  if not isinstance(value, list):
    value = [value]
  return tf.train.Feature(float_list=tf.train.FloatList(value=value))


def _bytes_feature(value):
  return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def write_shards(directory, shards=2, per_shard=6):
  rng = np.random.RandomState(3)
  raw = tf.placeholder(tf.uint8, [None, None, 3])
  encoded = tf.image.encode_png(raw)
  with tf.Session() as sess:
    for shard in range(shards):
      name = 'train-%.5d-of-%.5d' % (shard, shards)
      with tf.python_io.TFRecordWriter(os.path.join(directory, name)) as writer:
        for i in range(per_shard):
          height, width = 14 + i, 20 - i
          pixels = rng.randint(0, 256, (height, width, 3)).astype(np.uint8)
          boxes = i % 3
          example = tf.train.Example(features=tf.train.Features(feature={
              'image/height': _int64_feature(height),
              'image/width': _int64_feature(width),
              'image/colorspace': _bytes_feature(b'RGB'),
              'image/class/label': _int64_feature(1 + shard * per_shard + i),
              'image/class/text': _bytes_feature(('class %d' % i).encode()),
              'image/object/bbox/xmin': _float_feature([0.1 * k for k in range(boxes)]),
              'image/object/bbox/xmax': _float_feature([0.5 + 0.1 * k for k in range(boxes)]),
              'image/object/bbox/ymin': _float_feature([0.2] * boxes),
              'image/object/bbox/ymax': _float_feature([0.9] * boxes),
              'image/filename': _bytes_feature(name.encode()),
              'image/encoded': _bytes_feature(sess.run(encoded, {raw: pixels}))}))
          writer.write(example.SerializeToString())


def apply_with_random_selector(x, func, num_cases, seed):
  sel = tf.random_uniform([], maxval=num_cases, dtype=tf.int32, seed=seed)
  # Pass the real x only to one of the func calls.
  return control_flow_ops.merge([
      func(control_flow_ops.switch(x, tf.equal(sel, case))[1], case)
      for case in range(num_cases)])[0]


def distort_color(image, color_ordering=0, fast_mode=True, scope=None):
  with tf.name_scope(scope, 'distort_color', [image]):
    if fast_mode:
      if color_ordering == 0:
        image = tf.image.random_brightness(image, max_delta=32. / 255., seed=21)
        image = tf.image.random_saturation(image, lower=0.5, upper=1.5, seed=22)
      else:
        image = tf.image.random_saturation(image, lower=0.5, upper=1.5, seed=23)
        image = tf.image.random_brightness(image, max_delta=32. / 255., seed=24)
    else:
      if color_ordering == 0:
        image = tf.image.random_brightness(image, max_delta=32. / 255., seed=25)
        image = tf.image.random_hue(image, max_delta=0.2, seed=26)
      elif color_ordering == 1:
        image = tf.image.random_contrast(image, lower=0.5, upper=1.5, seed=27)
      else:
        raise ValueError('color_ordering must be in [0, 1]')
    return tf.clip_by_value(image, 0.0, 1.0)


def distort_image(image, height, width, bbox, thread_id=0, scope=None):
  with tf.name_scope(scope, 'distort_image', [image, height, width, bbox]):
    image_with_box = tf.image.draw_bounding_boxes(tf.expand_dims(image, 0), bbox)
    if not thread_id:
      tf.summary.image('image_with_bounding_boxes', image_with_box)
    begin, size, distort_bbox = tf.image.sample_distorted_bounding_box(
        tf.shape(image),
        bounding_boxes=bbox,
        min_object_covered=0.1,
        aspect_ratio_range=[0.75, 1.33],
        area_range=[0.05, 1.0],
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
        seed=31)
    distorted = tf.slice(image, begin, size)
    # Restore the shape: a dynamic slice of the image has none.
    distorted.set_shape([None, None, 3])
    distorted = apply_with_random_selector(
        distorted,
        lambda x, method: tf.image.resize_images(x, [height, width], method=method),
        num_cases=4, seed=32)
    distorted.set_shape([height, width, 3])
    distorted = tf.image.random_flip_left_right(distorted, seed=33)
    distorted = apply_with_random_selector(
        distorted,
        lambda x, ordering: distort_color(x, ordering, fast_mode=thread_id % 2 == 0),
        num_cases=2, seed=34)
    return distorted


def parse_example_proto(example_serialized):
  feature_map = {
      'image/encoded': tf.FixedLenFeature([], dtype=tf.string, default_value=''),
      'image/class/label': tf.FixedLenFeature([1], dtype=tf.int64, default_value=-1),
      'image/class/text': tf.FixedLenFeature([], dtype=tf.string, default_value=''),
  }
  sparse_float32 = tf.VarLenFeature(dtype=tf.float32)
  feature_map.update({
      k: sparse_float32 for k in ['image/object/bbox/xmin', 'image/object/bbox/ymin',
                                  'image/object/bbox/xmax', 'image/object/bbox/ymax']})
  features = tf.parse_single_example(example_serialized, feature_map)
  label = tf.cast(features['image/class/label'], dtype=tf.int32)
  xmin = tf.expand_dims(features['image/object/bbox/xmin'].values, 0)
  ymin = tf.expand_dims(features['image/object/bbox/ymin'].values, 0)
  xmax = tf.expand_dims(features['image/object/bbox/xmax'].values, 0)
  ymax = tf.expand_dims(features['image/object/bbox/ymax'].values, 0)
  bbox = tf.concat(axis=0, values=[ymin, xmin, ymax, xmax])
  # Force the variable number of boxes into the shape [1, num_boxes, coords].
  bbox = tf.expand_dims(bbox, 0)
  bbox = tf.transpose(bbox, [0, 2, 1])
  return features['image/encoded'], label, bbox, features['image/class/text']


def batch_inputs(pattern, batch_size, num_preprocess_threads, num_readers=1):
  with tf.name_scope('batch_processing'):
    data_files = sorted(tf.gfile.Glob(pattern))
    if not data_files:
      raise ValueError('No data files found for this dataset')
    filename_queue = tf.train.string_input_producer(data_files, shuffle=True, capacity=16, seed=1)
    if num_preprocess_threads % 4:
      raise ValueError('Please make num_preprocess_threads a multiple of 4')
    examples_per_shard = 5
    min_queue_examples = examples_per_shard * FLAGS.input_queue_memory_factor
    examples_queue = tf.RandomShuffleQueue(
        capacity=min_queue_examples + 3 * batch_size,
        min_after_dequeue=min_queue_examples,
        dtypes=[tf.string], seed=2)
    enqueue_ops = []
    for _ in range(num_readers):
      reader = tf.TFRecordReader()
      _, value = reader.read(filename_queue)
      enqueue_ops.append(examples_queue.enqueue([value]))
    tf.train.queue_runner.add_queue_runner(
        tf.train.queue_runner.QueueRunner(examples_queue, enqueue_ops))
    example_serialized = examples_queue.dequeue()

    # The towers take turns here: a session runs one of them at a time.
    images_and_labels = []
    for thread_id in range(num_preprocess_threads):
      image_buffer, label_index, bbox, _ = parse_example_proto(example_serialized)
      image = tf.image.decode_jpeg(image_buffer, channels=3)
      image = tf.image.convert_image_dtype(image, dtype=tf.float32)
      image = distort_image(image, FLAGS.image_size, FLAGS.image_size, bbox, thread_id)
      image = tf.multiply(tf.subtract(image, 0.5), 2.0)
      images_and_labels.append([image, label_index])
    return images_and_labels


def main(_):
  directory = tempfile.mkdtemp()
  write_shards(directory)
  with tf.Graph().as_default():
    pairs = batch_inputs(os.path.join(directory, 'train-*'), FLAGS.batch_size,
                         FLAGS.num_preprocess_threads, FLAGS.num_readers)
    print([str(image.get_shape()) for image, _ in pairs])
    with tf.Session() as sess:
      coord = tf.train.Coordinator()
      # The readers fill the queue before anything is taken, so that its order is one.
      fill = tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS)
      print([runner.name for runner in fill])
      sess.run(fill[0].enqueue_ops)
      for _ in range(FLAGS.batch_size * 3):
        sess.run(fill[1].enqueue_ops)
      for step in range(4):
        image, label = sess.run(pairs[step])
        print(step, label, image.shape, '%.4f %.4f %.4f' % (image.mean(), image.min(), image.max()))
      coord.request_stop()
      coord.join([], stop_grace_period_secs=10)


if __name__ == '__main__':
  tf.app.run()
