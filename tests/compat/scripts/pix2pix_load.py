"""pix2pix: pairs of pictures side by side, split, scaled, cropped alike."""
from __future__ import absolute_import, division, print_function

import collections
import glob
import math
import os
import random
import tempfile

import numpy as np
import tensorflow as tf

Examples = collections.namedtuple(
    "Examples", "paths, inputs, targets, count, steps_per_epoch")
CROP_SIZE = 16
SCALE_SIZE = 18
BATCH = 2


def preprocess(image):
    with tf.name_scope("preprocess"):
        return image * 2 - 1


def load_examples(input_dir, which_direction):
    if input_dir is None or not os.path.exists(input_dir):
        raise Exception("input_dir does not exist")
    input_paths = glob.glob(os.path.join(input_dir, "*.jpg"))
    decode = tf.image.decode_jpeg
    if len(input_paths) == 0:
        input_paths = glob.glob(os.path.join(input_dir, "*.png"))
        decode = tf.image.decode_png
    if len(input_paths) == 0:
        raise Exception("input_dir contains no image files")

    def get_name(path):
        name, _ = os.path.splitext(os.path.basename(path))
        return name

    if all(get_name(path).isdigit() for path in input_paths):
        input_paths = sorted(input_paths, key=lambda path: int(get_name(path)))
    else:
        input_paths = sorted(input_paths)

    with tf.name_scope("load_images"):
        path_queue = tf.train.string_input_producer(input_paths, shuffle=True,
                                                    seed=5)
        reader = tf.WholeFileReader()
        paths, contents = reader.read(path_queue)
        raw_input = decode(contents)
        raw_input = tf.image.convert_image_dtype(raw_input, dtype=tf.float32)
        assertion = tf.assert_equal(tf.shape(raw_input)[2], 3,
                                    message="image does not have 3 channels")
        with tf.control_dependencies([assertion]):
            raw_input = tf.identity(raw_input)
        raw_input.set_shape([None, None, 3])
        width = tf.shape(raw_input)[1]  # [height, width, channels]
        a_images = preprocess(raw_input[:, :width // 2, :])
        b_images = preprocess(raw_input[:, width // 2:, :])

    if which_direction == "AtoB":
        inputs, targets = [a_images, b_images]
    elif which_direction == "BtoA":
        inputs, targets = [b_images, a_images]
    else:
        raise Exception("invalid direction")

    seed = random.Random(3).randint(0, 2**31 - 1)

    def transform(image):
        r = image
        r = tf.image.random_flip_left_right(r, seed=seed)
        r = tf.image.resize_images(r, [SCALE_SIZE, SCALE_SIZE],
                                   method=tf.image.ResizeMethod.AREA)
        offset = tf.cast(tf.floor(tf.random_uniform(
            [2], 0, SCALE_SIZE - CROP_SIZE + 1, seed=seed)), dtype=tf.int32)
        if SCALE_SIZE > CROP_SIZE:
            r = tf.image.crop_to_bounding_box(r, offset[0], offset[1],
                                              CROP_SIZE, CROP_SIZE)
        elif SCALE_SIZE < CROP_SIZE:
            raise Exception("scale size cannot be less than crop size")
        return r

    with tf.name_scope("input_images"):
        input_images = transform(inputs)
    with tf.name_scope("target_images"):
        target_images = transform(targets)

    paths_batch, inputs_batch, targets_batch = tf.train.batch(
        [paths, input_images, target_images], batch_size=BATCH)
    steps_per_epoch = int(math.ceil(len(input_paths) / BATCH))
    return Examples(paths=paths_batch, inputs=inputs_batch,
                    targets=targets_batch, count=len(input_paths),
                    steps_per_epoch=steps_per_epoch)


def write_pictures(folder):
    rng = np.random.RandomState(1)
    with tf.Graph().as_default(), tf.Session() as sess:
        pixels = tf.placeholder(tf.uint8, [None, None, 3])
        encoded = tf.image.encode_png(pixels)
        for i in range(1, 7):
            picture = rng.randint(0, 256, (20, 40, 3)).astype(np.uint8)
            with open(os.path.join(folder, "%d.png" % i), "wb") as f:
                f.write(sess.run(encoded, {pixels: picture}))


def main():
    folder = tempfile.mkdtemp()
    write_pictures(folder)
    for direction in ("AtoB", "BtoA"):
        with tf.Graph().as_default():
            examples = load_examples(folder, direction)
            print("examples count = %d, steps = %d" % (
                examples.count, examples.steps_per_epoch))
            print(examples.inputs.shape, examples.targets.shape)
            sv_coord = tf.train.Coordinator()
            with tf.Session() as sess:
                threads = tf.train.start_queue_runners(sess, sv_coord)
                for _ in range(examples.steps_per_epoch):
                    paths, a, b = sess.run(
                        [examples.paths, examples.inputs, examples.targets])
                    names = [os.path.basename(p).decode() for p in paths]
                    print(names, "%.4f %.4f" % (a.mean(), b.mean()))
                sv_coord.request_stop()
                sv_coord.join(threads)


main()
