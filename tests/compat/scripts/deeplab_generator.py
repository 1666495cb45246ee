"""deeplab/slim style: data generator with Dataset.from_tensor_slices, TFRecordDataset, parse_single_example, resize & crop helpers."""

import collections
import os
import tempfile
import numpy as np
import tensorflow as tf

flags = tf.app.flags
FLAGS = flags.FLAGS
flags.DEFINE_multi_integer("crop", [9, 9], "crop size")
flags.DEFINE_multi_float("scales", [0.5, 1.0], "scales")
flags.DEFINE_float("ignore", 255, "ignore")
DatasetDescriptor = collections.namedtuple(
  "DatasetDescriptor", ["splits_to_sizes", "num_classes", "ignore_label"]
)
INFO = DatasetDescriptor({"train": 7, "val": 3}, 21, 255)


class ImageReader(object):
  def __init__(self, image_format="jpeg", channels=3):
    with tf.Graph().as_default():
      self._decode_data = tf.placeholder(dtype=tf.string)
      self._image_format = image_format
      self._session = tf.Session()
      if self._image_format in ("jpeg", "jpg"):
        self._decode = tf.image.decode_jpeg(
          self._decode_data, channels=channels
        )
      elif self._image_format == "png":
        self._decode = tf.image.decode_png(self._decode_data, channels=channels)

  def read_image_dims(self, image_data):
    image = self.decode_image(image_data)
    return image.shape[:2]

  def decode_image(self, image_data):
    image = self._session.run(
      self._decode, feed_dict={self._decode_data: image_data}
    )
    if len(image.shape) != 3 or image.shape[2] not in (1, 3):
      raise ValueError("The image channels not supported.")
    return image


def _int64_list_feature(values):
  if not isinstance(values, collections.abc.Iterable):
    values = [values]
  return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _bytes_list_feature(values):
  def norm2bytes(value):
    return value.encode() if isinstance(value, str) else value

  return tf.train.Feature(
    bytes_list=tf.train.BytesList(value=[norm2bytes(values)])
  )


def to_example(image_data, filename, height, width, seg):
  return tf.train.Example(
    features=tf.train.Features(
      feature={
        "image/encoded": _bytes_list_feature(image_data),
        "image/filename": _bytes_list_feature(filename),
        "image/format": _bytes_list_feature("png"),
        "image/height": _int64_list_feature(height),
        "image/width": _int64_list_feature(width),
        "image/channels": _int64_list_feature(3),
        "image/segmentation/class/encoded": _bytes_list_feature(seg),
        "image/segmentation/class/format": _bytes_list_feature("png"),
      }
    )
  )


def flip_dim(tensor_list, prob=0.5, dim=1):
  random_value = tf.random_uniform([], seed=5)

  def flip():
    flipped = []
    for tensor in tensor_list:
      if dim < 0 or dim >= len(tensor.get_shape().as_list()):
        raise ValueError("dim must represent a valid dimension.")
      flipped.append(tf.reverse_v2(tensor, [dim]))
    return flipped

  is_flipped = tf.less_equal(random_value, prob)
  outputs = tf.cond(is_flipped, flip, lambda: tensor_list)
  if not isinstance(outputs, (list, tuple)):
    outputs = [outputs]
  outputs.append(is_flipped)
  return outputs


def _image_dimensions(image, rank):
  if image.get_shape().is_fully_defined():
    return image.get_shape().as_list()
  static_shape = image.get_shape().with_rank(rank).as_list()
  dynamic_shape = tf.unstack(tf.shape(image), rank)
  return [
    s if s is not None else d for s, d in zip(static_shape, dynamic_shape)
  ]


def pad_to_bounding_box(
  image, offset_height, offset_width, target_height, target_width, pad_value
):
  with tf.name_scope(None, "pad_to_bounding_box", [image]):
    image = tf.convert_to_tensor(image, name="image")
    original_dtype = image.dtype
    if original_dtype != tf.float32 and original_dtype != tf.float64:
      image = tf.cast(image, tf.int32)
    image_rank_assert = tf.Assert(
      tf.logical_or(tf.equal(tf.rank(image), 3), tf.equal(tf.rank(image), 4)),
      ["Wrong image tensor rank."],
    )
    with tf.control_dependencies([image_rank_assert]):
      image -= pad_value
    image_shape = image.get_shape()
    is_batch = True
    if image_shape.ndims == 3:
      is_batch = False
      image = tf.expand_dims(image, 0)
    elif image_shape.ndims is None:
      is_batch = False
      image = tf.expand_dims(image, 0)
      image.set_shape([None] * 4)
    elif image.get_shape().ndims != 4:
      raise ValueError("Input image must have either 3 or 4 dimensions.")
    _, height, width, _ = _image_dimensions(image, rank=4)
    target_width_assert = tf.Assert(
      tf.greater_equal(target_width, width), ["target_width must be >= width"]
    )
    target_height_assert = tf.Assert(
      tf.greater_equal(target_height, height),
      ["target_height must be >= height"],
    )
    with tf.control_dependencies([target_width_assert]):
      after_padding_width = target_width - offset_width - width
    with tf.control_dependencies([target_height_assert]):
      after_padding_height = target_height - offset_height - height
    offset_assert = tf.Assert(
      tf.logical_and(
        tf.greater_equal(after_padding_width, 0),
        tf.greater_equal(after_padding_height, 0),
      ),
      ["target size not possible with the given target offsets"],
    )
    batch_params = tf.stack([0, 0])
    height_params = tf.stack([offset_height, after_padding_height])
    width_params = tf.stack([offset_width, after_padding_width])
    channel_params = tf.stack([0, 0])
    with tf.control_dependencies([offset_assert]):
      paddings = tf.stack(
        [batch_params, height_params, width_params, channel_params]
      )
    padded = tf.pad(image, paddings)
    if not is_batch:
      padded = tf.squeeze(padded, axis=[0])
    outputs = padded + pad_value
    if outputs.dtype != original_dtype:
      outputs = tf.cast(outputs, original_dtype)
    return outputs


def _crop(image, offset_height, offset_width, crop_height, crop_width):
  original_shape = tf.shape(image)
  if len(image.get_shape().as_list()) != 3:
    raise ValueError("input must have rank of 3")
  original_channels = image.get_shape().as_list()[2]
  rank_assertion = tf.Assert(
    tf.equal(tf.rank(image), 3), ["Rank of image must be equal to 3."]
  )
  with tf.control_dependencies([rank_assertion]):
    cropped_shape = tf.stack([crop_height, crop_width, original_shape[2]])
  size_assertion = tf.Assert(
    tf.logical_and(
      tf.greater_equal(original_shape[0], crop_height),
      tf.greater_equal(original_shape[1], crop_width),
    ),
    ["Crop size greater than the image size."],
  )
  offsets = tf.cast(tf.stack([offset_height, offset_width, 0]), tf.int32)
  with tf.control_dependencies([size_assertion]):
    image = tf.slice(image, offsets, cropped_shape)
  image = tf.reshape(image, cropped_shape)
  image.set_shape([crop_height, crop_width, original_channels])
  return image


def randomly_scale(image, label, scale):
  if scale == 1.0:
    return image, label
  new_dim = tf.cast(
    tf.cast([tf.shape(image)[0], tf.shape(image)[1]], tf.float32) * scale,
    tf.int32,
  )
  image = tf.squeeze(
    tf.image.resize_bilinear(
      tf.expand_dims(image, 0), new_dim, align_corners=True
    ),
    [0],
  )
  label = tf.squeeze(
    tf.image.resize_nearest_neighbor(
      tf.expand_dims(label, 0), new_dim, align_corners=True
    ),
    [0],
  )
  return image, label


def resolve_shape(tensor, rank=None, scope=None):
  with tf.name_scope(scope, "resolve_shape", [tensor]):
    if rank is not None:
      shape = tensor.get_shape().with_rank(rank).as_list()
    else:
      shape = tensor.get_shape().as_list()
    if None in shape:
      dynamic_shape = tf.shape(tensor)
      for i in range(len(shape)):
        if shape[i] is None:
          shape[i] = dynamic_shape[i]
  return shape


def main(unused_argv):
  folder = tempfile.mkdtemp()
  rng = np.random.RandomState(0)
  path = os.path.join(folder, "%s-%05d-of-%05d.tfrecord" % ("train", 0, 1))
  reader, label_reader = ImageReader("png", 3), ImageReader("png", 1)
  with (
    tf.Graph().as_default(),
    tf.Session("") as sess,
    tf.python_io.TFRecordWriter(path) as w,
  ):
    px = tf.placeholder(tf.uint8)
    enc = tf.image.encode_png(px)
    for i in range(7):
      h, wd = 5 + i % 3, 6 + i % 2
      img = sess.run(
        enc, {px: rng.randint(0, 255, (h, wd, 3)).astype(np.uint8)}
      )
      seg = sess.run(enc, {px: rng.randint(0, 3, (h, wd, 1)).astype(np.uint8)})
      assert reader.read_image_dims(img) == label_reader.read_image_dims(seg)
      w.write(to_example(img, "f%d" % i, h, wd, seg).SerializeToString())

  def _parse(example_proto):
    features = {
      "image/encoded": tf.FixedLenFeature((), tf.string, default_value=""),
      "image/filename": tf.FixedLenFeature((), tf.string, default_value=""),
      "image/format": tf.FixedLenFeature((), tf.string, default_value="jpeg"),
      "image/height": tf.FixedLenFeature((), tf.int64, default_value=0),
      "image/width": tf.FixedLenFeature((), tf.int64, default_value=0),
      "image/segmentation/class/encoded": tf.FixedLenFeature(
        (), tf.string, default_value=""
      ),
    }
    parsed = tf.parse_single_example(example_proto, features)

    def decode(content, channels):
      return tf.cond(
        tf.image.is_jpeg(content),
        lambda: tf.image.decode_jpeg(content, channels),
        lambda: tf.image.decode_png(content, channels),
      )

    image = decode(parsed["image/encoded"], 3)
    label = decode(parsed["image/segmentation/class/encoded"], 1)
    image_name = parsed["image/filename"]
    if image_name is None:
      image_name = tf.constant("")
    sample = {
      "image": image,
      "image_name": image_name,
      "height": parsed["image/height"],
      "width": parsed["image/width"],
    }
    if label is not None:
      if label.get_shape().ndims == 2:
        label = tf.expand_dims(label, 2)
      elif label.get_shape().ndims == 3 and label.shape.dims[2] == 1:
        pass
      else:
        raise ValueError(
          "Input label shape must be [height, width], or [height, width, 1]."
        )
      label.set_shape([None, None, 1])
      sample["labels_class"] = label
    return sample

  def _preprocess(sample):
    image, label = sample["image"], sample["labels_class"]
    processed = tf.cast(image, tf.float32)
    label = tf.cast(label, tf.int32)
    processed, label = randomly_scale(processed, label, FLAGS.scales[0])
    processed.set_shape([None, None, 3])
    image_shape = tf.shape(processed)
    image_height, image_width = image_shape[0], image_shape[1]
    target_height = image_height + tf.maximum(FLAGS.crop[0] - image_height, 0)
    target_width = image_width + tf.maximum(FLAGS.crop[1] - image_width, 0)
    mean_pixel = tf.reshape([127.5, 127.5, 127.5], [1, 1, 3])
    processed = pad_to_bounding_box(
      processed, 0, 0, target_height, target_width, mean_pixel
    )
    label = pad_to_bounding_box(
      label, 0, 0, target_height, target_width, int(FLAGS.ignore)
    )
    processed = _crop(processed, 0, 0, *FLAGS.crop)
    label = _crop(label, 0, 0, *FLAGS.crop)
    processed, label, _ = flip_dim([processed, label], 0.5, dim=1)
    processed.set_shape(FLAGS.crop + [3])
    label.set_shape(FLAGS.crop + [1])
    sample["image"] = processed
    sample["label"] = label
    sample.pop("labels_class", None)
    return sample

  files = tf.gfile.Glob(os.path.join(folder, "train-*"))
  dataset = (
    tf.data.TFRecordDataset(files, num_parallel_reads=1)
    .map(_parse, num_parallel_calls=2)
    .map(_preprocess, num_parallel_calls=2)
  )
  dataset = (
    dataset.shuffle(buffer_size=100, seed=3).repeat(1).batch(3).prefetch(3)
  )
  print(dataset.output_types)
  it = tf.data.make_one_shot_iterator(dataset)
  sample = it.get_next()
  print(sorted((k, str(v.shape), v.dtype.name) for k, v in sample.items()))
  print([str(d) for d in resolve_shape(sample["image"])[1:]])
  with tf.Session() as sess:
    while True:
      try:
        out = sess.run(sample)
        print(
          out["image_name"],
          out["image"].shape,
          out["image"].mean(axis=(1, 2)).round(1).tolist(),
          out["label"].sum(),
          out["height"].tolist(),
        )
      except tf.errors.OutOfRangeError:
        break
  print(INFO.num_classes, FLAGS.crop, FLAGS.scales)


if __name__ == "__main__":
  flags.mark_flag_as_required("crop")
  tf.app.run()
