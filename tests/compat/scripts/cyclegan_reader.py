"""CycleGAN: a reader of TFRecords of pictures, resized, in shuffled batches."""
import os
import tempfile

import numpy as np
import tensorflow as tf


def convert2float(image):
  """Transfrom from int image ([0,255]) to float tensor ([-1.,1.])"""
  image = tf.image.convert_image_dtype(image, dtype=tf.float32)
  return (image / 127.5) - 1.0 if False else (image - 0.5) / 0.5


class Reader():
  def __init__(self, tfrecords_file, image_size=8, min_queue_examples=4,
               batch_size=1, num_threads=1, name=''):
    self.tfrecords_file = tfrecords_file
    self.image_size = image_size
    self.min_queue_examples = min_queue_examples
    self.batch_size = batch_size
    self.num_threads = num_threads
    self.reader = tf.TFRecordReader()
    self.name = name

  def feed(self):
    with tf.name_scope(self.name):
      filename_queue = tf.train.string_input_producer([self.tfrecords_file])
      reader = tf.TFRecordReader()

      _, serialized_example = self.reader.read(filename_queue)
      features = tf.parse_single_example(
          serialized_example,
          features={
              'image/file_name': tf.FixedLenFeature([], tf.string),
              'image/encoded_image': tf.FixedLenFeature([], tf.string),
          })

      image_buffer = features['image/encoded_image']
      image = tf.image.decode_png(image_buffer, channels=3)
      image = self._preprocess(image)
      images = tf.train.shuffle_batch(
          [image], batch_size=self.batch_size, num_threads=self.num_threads,
          capacity=self.min_queue_examples + 3 * self.batch_size,
          min_after_dequeue=self.min_queue_examples, seed=9)
      tf.summary.image('_input', images)
    return images

  def _preprocess(self, image):
    image = tf.image.resize_images(image, size=(self.image_size,
                                                self.image_size))
    image = image / 255.0
    image = (image - 0.5) / 0.5
    image.set_shape([self.image_size, self.image_size, 3])
    return image


def write_records(path, count, seed):
  rng = np.random.RandomState(seed)
  with tf.Graph().as_default(), tf.Session() as sess:
    pixels = tf.placeholder(tf.uint8, [None, None, 3])
    encoded = tf.image.encode_png(pixels)
    with tf.python_io.TFRecordWriter(path) as writer:
      for i in range(count):
        picture = rng.randint(0, 256, (12, 16, 3)).astype(np.uint8)
        data = sess.run(encoded, {pixels: picture})
        writer.write(tf.train.Example(features=tf.train.Features(feature={
            'image/file_name': tf.train.Feature(bytes_list=tf.train.BytesList(
                value=[b'%d.png' % i])),
            'image/encoded_image': tf.train.Feature(
                bytes_list=tf.train.BytesList(value=[data])),
        })).SerializeToString())


class ImagePool:
  """History of generated images."""
  def __init__(self, pool_size):
    self.pool_size = pool_size
    self.images = []
    self.random = np.random.RandomState(1)

  def query(self, image):
    if self.pool_size == 0:
      return image
    if len(self.images) < self.pool_size:
      self.images.append(image)
      return image
    if self.random.rand() > 0.5:
      random_id = self.random.randint(0, self.pool_size)
      tmp = self.images[random_id].copy()
      self.images[random_id] = image.copy()
      return tmp
    return image


def main():
  folder = tempfile.mkdtemp()
  files = []
  for number, name in enumerate(('apple', 'orange')):
    path = os.path.join(folder, name + '.tfrecords')
    write_records(path, 6, number)
    files.append(path)
  with tf.Graph().as_default():
    readers = [Reader(path, batch_size=2, name=name)
               for path, name in zip(files, 'XY')]
    x, y = [reader.feed() for reader in readers]
    print(x.shape, y.shape, x.op.name.split('/')[0])
    pool = ImagePool(3)
    sess = tf.Session()
    sess.run(tf.global_variables_initializer())
    coord = tf.train.Coordinator()
    threads = tf.train.start_queue_runners(sess=sess, coord=coord)
    try:
      step = 0
      while not coord.should_stop():
        batch_x, batch_y = sess.run([x, y])
        fake = pool.query(batch_x)
        print("Step %d:" % step, batch_x.shape, batch_y.shape, fake.shape,
              batch_x.min() >= -1, batch_y.max() <= 1)
        step += 1
        if step == 6:
          break
    except KeyboardInterrupt:
      coord.request_stop()
    except Exception as e:
      coord.request_stop(e)
    finally:
      coord.request_stop()
      coord.join(threads)
      sess.close()


if __name__ == '__main__':
  main()
