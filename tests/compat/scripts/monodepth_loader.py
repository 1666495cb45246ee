"""Stereo pairs named line by line in a text file: flipped together, and recoloured at random."""
import os
import tempfile

import numpy as np
import tensorflow as tf


def string_length_tf(t):
    return tf.py_func(len, [t], [tf.int64])


class StereoLoader(object):
    """Reads left and right pictures, and makes batches of them."""

    def __init__(self, data_path, filenames_file, height, width, batch_size, mode):
        self.data_path = data_path
        self.height, self.width = height, width
        self.mode = mode
        self.left_batch = None
        self.right_batch = None

        queue = tf.train.string_input_producer([filenames_file], shuffle=False)
        _, line = tf.TextLineReader().read(queue)
        parts = tf.string_split([line]).values
        self.line = line
        left = self.read_image(tf.string_join([self.data_path, parts[0]], separator='/'))
        right = self.read_image(tf.string_join([self.data_path, parts[1]], separator='/'))

        if mode == 'train':
            do_flip = tf.random_uniform([], 0, 1, seed=3)
            left_o = tf.cond(do_flip > 0.5, lambda: tf.image.flip_left_right(right), lambda: left)
            right_o = tf.cond(do_flip > 0.5, lambda: tf.image.flip_left_right(left),
                              lambda: right)
            do_augment = tf.random_uniform([], 0, 1, seed=4)
            left, right = tf.cond(do_augment > 0.5,
                                  lambda: self.augment(left_o, right_o),
                                  lambda: (left_o, right_o))
            left.set_shape([None, None, 3])
            right.set_shape([None, None, 3])
            self.left_batch, self.right_batch = tf.train.batch(
                [left, right], batch_size, num_threads=1, capacity=12,
                shapes=[[height, width, 3]] * 2)
        else:
            self.left_batch = tf.stack([left, tf.image.flip_left_right(left)], 0)
            self.left_batch.set_shape([2, None, None, 3])

    def augment(self, left, right):
        gamma = tf.random_uniform([], 0.8, 1.2, seed=5)
        left_aug, right_aug = left ** gamma, right ** gamma
        brightness = tf.random_uniform([], 0.5, 2.0, seed=6)
        left_aug, right_aug = left_aug * brightness, right_aug * brightness
        colors = tf.random_uniform([3], 0.8, 1.2, seed=8)
        white = tf.ones([tf.shape(left)[0], tf.shape(left)[1]])
        color_image = tf.stack([white * colors[i] for i in range(3)], axis=2)
        return (tf.clip_by_value(left_aug * color_image, 0, 1),
                tf.clip_by_value(right_aug * color_image, 0, 1))

    def read_image(self, path):
        path_length = string_length_tf(path)[0]
        extension = tf.substr(path, path_length - 3, 3)
        is_png = tf.equal(extension, 'png')
        image = tf.cond(is_png, lambda: tf.image.decode_png(tf.read_file(path)),
                        lambda: tf.image.decode_jpeg(tf.read_file(path)))
        image = tf.image.convert_image_dtype(image, tf.float32)
        image = tf.image.resize_images(image, [self.height, self.width],
                                       tf.image.ResizeMethod.AREA)
        return image


def scale_pyramid(img, num_scales):
    scaled = [img]
    s = tf.shape(img)
    for i in range(num_scales - 1):
        ratio = 2 ** (i + 1)
        scaled.append(tf.image.resize_area(img, [s[1] // ratio, s[2] // ratio]))
    return scaled


def write(folder):
    rnd = np.random.RandomState(0)
    with tf.Graph().as_default(), tf.Session() as sess:
        data = tf.placeholder(tf.uint8)
        png = tf.image.encode_png(data)
        for n in range(5):
            base = rnd.randint(0, 255, (12, 20, 3))
            for side, shift in (('l', 0), ('r', 2)):
                picture = np.roll(base, shift, 1).astype(np.uint8)
                with open(os.path.join(folder, '%s%d.png' % (side, n)), 'wb') as f:
                    f.write(sess.run(png, {data: picture}))
    with open(os.path.join(folder, 'pairs.txt'), 'w') as f:
        for n in range(5):
            f.write('l%d.png r%d.png\n' % (n, n))


def main():
    folder = tempfile.mkdtemp()
    write(folder)
    for mode in ('train', 'test'):
        with tf.Graph().as_default():
            loader = StereoLoader(folder, os.path.join(folder, 'pairs.txt'), 8, 16, 2, mode)
            fetches = {'left': scale_pyramid(loader.left_batch, 3)}
            if mode == 'train':
                fetches['right'] = loader.right_batch
            print(mode, loader.left_batch.get_shape(), fetches['left'][1].get_shape())
            with tf.Session() as sess:
                sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
                coord = tf.train.Coordinator()
                threads = tf.train.start_queue_runners(sess=sess, coord=coord)
                for _ in range(3):
                    got = sess.run(fetches)
                    for level in got['left']:
                        print(' left', level.shape, '%.4f %.4f' % (level.mean(), level.std()))
                    if 'right' in got:
                        print(' right', '%.4f' % got['right'].mean(),
                              '%.4f' % np.abs(got['right'] - got['left'][0]).mean())
                coord.request_stop()
                coord.join(threads)


main()
