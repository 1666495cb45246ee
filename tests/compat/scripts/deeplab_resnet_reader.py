"""DeepLab-ResNet: lists of images and masks, scaled, mirrored, cropped and padded together."""

import os
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import dtypes, ops

IGNORE_LABEL = 255
IMG_MEAN = np.array((104.00698793, 116.66876762, 122.67891434), dtype=np.float32)


def image_scaling(img, label):
    """Randomly scales the images between 0.5 to 1.5 times the original size."""
    scale = tf.random_uniform([1], minval=0.5, maxval=1.5, dtype=tf.float32, seed=5)
    h_new = tf.to_int32(tf.multiply(tf.to_float(tf.shape(img)[0]), scale))
    w_new = tf.to_int32(tf.multiply(tf.to_float(tf.shape(img)[1]), scale))
    new_shape = tf.squeeze(tf.stack([h_new, w_new]), squeeze_dims=[1])
    img = tf.image.resize_images(img, new_shape)
    label = tf.image.resize_nearest_neighbor(tf.expand_dims(label, 0), new_shape)
    label = tf.squeeze(label, squeeze_dims=[0])
    return img, label


def image_mirroring(img, label):
    """Randomly mirrors the images."""
    distort_left_right_random = tf.random_uniform([1], 0, 1.0, dtype=tf.float32, seed=6)[0]
    mirror = tf.less(tf.stack([1.0, distort_left_right_random, 1.0]), 0.5)
    mirror = tf.boolean_mask([0, 1, 2], mirror)
    img = tf.reverse(img, mirror)
    label = tf.reverse(label, mirror)
    return img, label


def random_crop_and_pad_image_and_labels(image, label, crop_h, crop_w, ignore_label=255):
    """Randomly crop and pads the input images; padding of labels is ignored."""
    label = tf.cast(label, dtype=tf.float32)
    label = label - ignore_label  # Needs to be subtracted and later added due to 0 padding.
    combined = tf.concat(axis=2, values=[image, label])
    image_shape = tf.shape(image)
    combined_pad = tf.image.pad_to_bounding_box(
        combined, 0, 0, tf.maximum(crop_h, image_shape[0]), tf.maximum(crop_w, image_shape[1]))

    last_image_dim = tf.shape(image)[-1]
    combined_crop = tf.random_crop(combined_pad, [crop_h, crop_w, 4], seed=7)
    img_crop = combined_crop[:, :, :last_image_dim]
    label_crop = combined_crop[:, :, last_image_dim:]
    label_crop = label_crop + ignore_label
    label_crop = tf.cast(label_crop, dtype=tf.uint8)

    # Set static shape so that tensorflow knows shape at compile time.
    img_crop.set_shape((crop_h, crop_w, 3))
    label_crop.set_shape((crop_h, crop_w, 1))
    return img_crop, label_crop


def read_labeled_image_list(data_dir, data_list):
    images, masks = [], []
    with open(data_list, 'r') as f:
        for line in f:
            try:
                image, mask = line.strip("\n").split(' ')
            except ValueError:  # Adhoc for test.
                image = mask = line.strip("\n")
            images.append(data_dir + image)
            masks.append(data_dir + mask)
    return images, masks


def read_images_from_disk(input_queue, input_size, random_scale, random_mirror, ignore_label):
    img_contents = tf.read_file(input_queue[0])
    label_contents = tf.read_file(input_queue[1])

    img = tf.image.decode_jpeg(img_contents, channels=3)
    img_r, img_g, img_b = tf.split(axis=2, num_or_size_splits=3, value=img)
    img = tf.cast(tf.concat(axis=2, values=[img_b, img_g, img_r]), dtype=tf.float32)
    # Extract mean.
    img -= IMG_MEAN
    label = tf.image.decode_png(label_contents, channels=1)

    if input_size is not None:
        h, w = input_size
        if random_scale:
            img, label = image_scaling(img, label)
        if random_mirror:
            img, label = image_mirroring(img, label)
        img, label = random_crop_and_pad_image_and_labels(img, label, h, w, ignore_label)
    return img, label


class ImageReader(object):
    """Generic reader which reads images and corresponding masks from the disk with a queue."""

    def __init__(self, data_dir, data_list, input_size, random_scale, random_mirror,
                 ignore_label, coord):
        self.data_dir = data_dir
        self.data_list = data_list
        self.input_size = input_size
        self.coord = coord
        self.image_list, self.label_list = read_labeled_image_list(self.data_dir, self.data_list)
        self.images = ops.convert_to_tensor(self.image_list, dtype=tf.string)
        self.labels = ops.convert_to_tensor(self.label_list, dtype=dtypes.string)
        # Not shuffling if it is val.
        self.queue = tf.train.slice_input_producer([self.images, self.labels],
                                                   shuffle=input_size is not None, seed=8)
        self.image, self.label = read_images_from_disk(
            self.queue, self.input_size, random_scale, random_mirror, ignore_label)

    def dequeue(self, num_elements):
        return tf.train.batch([self.image, self.label], num_elements)


def write_data(directory):
    rng = np.random.RandomState(4)
    raw = tf.placeholder(tf.uint8, [None, None, None])
    png = tf.image.encode_png(raw)
    with tf.Session() as sess, open(os.path.join(directory, 'list.txt'), 'w') as listed:
        for i in range(5):
            height, width = 10 + 3 * i, 22 - 2 * i
            image = rng.randint(0, 256, (height, width, 3)).astype(np.uint8)
            mask = rng.randint(0, 21, (height, width, 1)).astype(np.uint8)
            for name, pixels in (('/%d.jpg' % i, image), ('/%d.png' % i, mask)):
                with tf.gfile.GFile(directory + name, 'wb') as f:
                    f.write(sess.run(png, {raw: pixels}))
            listed.write('/%d.jpg /%d.png\n' % (i, i))


def prepare_label(input_batch, new_size, num_classes, one_hot=True):
    """Resize masks and perform one-hot encoding."""
    with tf.name_scope('label_encode'):
        input_batch = tf.image.resize_nearest_neighbor(input_batch, new_size)
        input_batch = tf.squeeze(input_batch, squeeze_dims=[3])
        if one_hot:
            input_batch = tf.one_hot(input_batch, depth=num_classes)
    return input_batch


def main():
    directory = tempfile.mkdtemp()
    write_data(directory)
    tf.reset_default_graph()
    coord = tf.train.Coordinator()
    with tf.name_scope("create_inputs"):
        reader = ImageReader(directory, os.path.join(directory, 'list.txt'), (16, 16),
                             True, True, IGNORE_LABEL, coord)
        image_batch, label_batch = reader.dequeue(3)
    with tf.name_scope("evaluate_inputs"):
        val_reader = ImageReader(directory, os.path.join(directory, 'list.txt'), None,
                                 False, False, IGNORE_LABEL, coord)
        val_image = tf.expand_dims(val_reader.image, 0)
        val_label = tf.expand_dims(val_reader.label, 0)
    print(image_batch, label_batch)
    print(val_image.get_shape(), val_label.get_shape())

    small = prepare_label(label_batch, tf.stack([4, 4]), num_classes=21)
    raw_gt = tf.reshape(label_batch, [-1, ])
    indices = tf.squeeze(tf.where(tf.less_equal(raw_gt, 21 - 1)), 1)
    gt = tf.cast(tf.gather(raw_gt, indices), tf.int32)

    sess = tf.Session(config=tf.ConfigProto(gpu_options=tf.GPUOptions(allow_growth=True)))
    sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    threads = tf.train.start_queue_runners(coord=coord, sess=sess)
    for step in range(3):
        images, labels, hot, valid = sess.run([image_batch, label_batch, small, gt])
        print(step, images.shape, '%.3f' % images.mean(), labels.shape, labels.dtype,
              int(labels.sum()), hot.sum(), valid.size, int(valid.sum()))
    for step in range(5):
        image, label = sess.run([val_image, val_label])
        print(step, image.shape, '%.2f' % image.sum(), int(label.astype(int).sum()))
    coord.request_stop()
    coord.join(threads)
    sess.close()


if __name__ == '__main__':
    main()
