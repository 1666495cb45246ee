"""Super-resolution: patches of large pictures, small ones made of them, several reading threads."""
import collections
import glob
import math
import os
import tempfile

import numpy as np
import tensorflow as tf

Data = collections.namedtuple('Data', 'paths, inputs, targets, count, steps_per_epoch')
CROP, FACTOR = 8, 4


def preprocess(image):
    with tf.name_scope('preprocess'):
        return image * 2 - 1


def deprocess(image):
    with tf.name_scope('deprocess'):
        return (image + 1) / 2


def preprocess_lr(image):
    return tf.identity(image)


def write(folder):
    rnd = np.random.RandomState(2)
    os.makedirs(os.path.join(folder, 'hr'))
    with tf.Graph().as_default(), tf.Session() as sess:
        given = tf.placeholder(tf.uint8)
        encoded = tf.image.encode_png(given)
        for n in range(4):
            picture = rnd.randint(0, 256, (14 + n, 16 + 2 * n, 3)).astype(np.uint8)
            with open(os.path.join(folder, 'hr', 'image_%d.png' % n), 'wb') as f:
                f.write(sess.run(encoded, {given: picture}))


def data_loader(folder, batch_size):
    if not os.path.isdir(folder):
        raise ValueError('no such folder')
    names = sorted(glob.glob(os.path.join(folder, 'hr', '*.png')))
    with tf.variable_scope('load_image'):
        paths = tf.convert_to_tensor(names, dtype=tf.string)
        path = tf.train.slice_input_producer([paths], shuffle=True, seed=31, capacity=8)[0]
        image = tf.image.decode_png(tf.read_file(path), channels=3)
        image = tf.image.convert_image_dtype(image, dtype=tf.float32)
        assertion = tf.assert_equal(tf.shape(image)[2], 3, message='image does not have 3 channels')
        with tf.control_dependencies([assertion]):
            image = tf.identity(image)
        target = preprocess(image)

    with tf.name_scope('random_crop'):
        size = tf.shape(target)
        offset_w = tf.cast(tf.floor(tf.random_uniform(
            [], 0, tf.cast(size[1], tf.float32) - CROP, seed=32)), tf.int32)
        offset_h = tf.cast(tf.floor(tf.random_uniform(
            [], 0, tf.cast(size[0], tf.float32) - CROP, seed=33)), tf.int32)
        target = tf.image.crop_to_bounding_box(target, offset_h, offset_w, CROP, CROP)

    with tf.variable_scope('random_flip'):
        decision = tf.random_uniform([], 0, 1, dtype=tf.float32, seed=34)
        target = tf.cond(decision < 0.5, lambda: tf.image.flip_left_right(target),
                         lambda: tf.identity(target))
        target.set_shape([CROP, CROP, 3])

    small = tf.image.resize_images(tf.image.convert_image_dtype(deprocess(target), tf.uint8),
                                   [CROP // FACTOR] * 2, tf.image.ResizeMethod.BICUBIC)
    small = tf.saturate_cast(tf.round(small), tf.uint8)
    inputs = preprocess_lr(tf.image.convert_image_dtype(small, tf.float32))
    paths_batch, inputs_batch, targets_batch = tf.train.batch(
        [path, inputs, target], batch_size=batch_size, capacity=batch_size + 6, num_threads=1)
    inputs_batch.set_shape([batch_size, CROP // FACTOR, CROP // FACTOR, 3])
    return Data(paths_batch, inputs_batch, targets_batch, len(names),
                int(math.ceil(len(names) / batch_size)))


def psnr(one, other):
    error = tf.reduce_mean(tf.square(one - other), axis=[1, 2, 3])
    return -10.0 * tf.log(tf.maximum(error, 1e-6)) / tf.log(10.0)


def main():
    folder = tempfile.mkdtemp()
    write(folder)
    try:
        data_loader(os.path.join(folder, 'none'), 2)
    except ValueError as error:
        print('refused:', error)
    data = data_loader(folder, 2)
    print(data.count, data.steps_per_epoch, data.inputs.shape, data.targets.shape)
    upscaled = tf.image.resize_bicubic(data.inputs, [CROP, CROP])
    shown = tf.map_fn(lambda one: tf.shape(tf.image.decode_png(tf.image.encode_png(one))),
                      tf.image.convert_image_dtype(tf.clip_by_value(upscaled, 0, 1), tf.uint8),
                      dtype=tf.int32)
    variation = (
        tf.reduce_sum(tf.abs(data.targets[:, 1:] - data.targets[:, :-1]), [1, 2, 3]) +
        tf.reduce_sum(tf.abs(data.targets[:, :, 1:] - data.targets[:, :, :-1]), [1, 2, 3]))
    step = tf.train.get_or_create_global_step()
    advance = tf.assign_add(step, 1)
    supervisor = tf.train.Coordinator()
    with tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as sess:
        sess.run(tf.global_variables_initializer())
        threads = tf.train.start_queue_runners(sess, supervisor)
        while not supervisor.should_stop():
            names, small, quality, sizes, tv, number = sess.run(
                [data.paths, data.inputs, psnr(upscaled, deprocess(data.targets)), shown,
                 variation, advance])
            print(number, [os.path.basename(one).decode() for one in names],
                  np.round(small.mean((1, 2, 3)), 4).tolist(), np.round(quality, 3).tolist(),
                  sizes.tolist(), np.round(tv, 2).tolist())
            if number == 4:
                supervisor.request_stop()
        supervisor.join(threads)
        print(len(threads), tf.train.global_step(sess, step))


main()
