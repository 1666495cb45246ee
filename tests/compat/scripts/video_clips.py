"""Clips of videos kept as folders of frames: sampled frames, one crop for all, batches of clips."""
import os
import tempfile

import numpy as np
import tensorflow as tf

FLAGS = tf.app.flags.FLAGS
tf.app.flags.DEFINE_integer('num_frames', 4, 'Frames of a clip.')
tf.app.flags.DEFINE_integer('crop', 6, 'Height and width.')
tf.app.flags.DEFINE_integer('batch', 2, 'Clips of a batch.')
tf.app.flags.DEFINE_boolean('flip', True, 'Whether to mirror clips.')
SIZES = [(8, 10), (9, 9), (10, 8), (8, 8)]


def write_videos(root):
    rnd = np.random.RandomState(1)
    listing = []
    with tf.Graph().as_default(), tf.Session() as sess:
        frame = tf.placeholder(tf.uint8, [None, None, 3])
        encoded = tf.image.encode_png(frame)
        for number, (height, width) in enumerate(SIZES):
            folder = os.path.join(root, 'v_%02d' % number)
            tf.gfile.MakeDirs(folder)
            count = 5 + number
            for at in range(count):
                picture = rnd.randint(0, 256, (height, width, 3)).astype(np.uint8)
                with tf.gfile.GFile(os.path.join(folder, 'frame%04d.png' % at), 'wb') as f:
                    f.write(sess.run(encoded, {frame: picture}))
            listing.append('%s,%d,%d' % (folder, count, number % 3))
    path = os.path.join(root, 'train.csv')
    with tf.gfile.GFile(path, 'w') as f:
        f.write('\n'.join(listing) + '\n')
    return path


def frame_names(folder, count):
    """Every other frame, from the start, as often round as it takes."""
    at = tf.mod(tf.range(FLAGS.num_frames) * 2, count)
    numbers = tf.as_string(at, width=4, fill='0')
    return tf.map_fn(lambda n: tf.string_join([folder, '/frame', n, '.png']), numbers)


def read_clip(queue):
    reader = tf.TextLineReader()
    key, line = reader.read(queue)
    folder, count, label = tf.decode_csv(line, [[''], [0], [0]])
    names = frame_names(folder, count)

    def decode(name):
        image = tf.image.decode_png(tf.read_file(name), channels=3)
        image = tf.image.resize_images(image, [FLAGS.crop + 2, FLAGS.crop + 2])
        return image

    clip = tf.map_fn(decode, names, dtype=tf.float32)
    clip.set_shape([FLAGS.num_frames, None, None, 3])
    return key, clip, label


def distort(clip):
    size = FLAGS.crop
    clip = tf.random_crop(clip, [FLAGS.num_frames, size, size, 3], seed=11)
    if FLAGS.flip:
        mirror = tf.less(tf.random_uniform([], seed=12), 0.5)
        clip = tf.cond(mirror, lambda: tf.reverse(clip, [2]), lambda: clip)
    mean = tf.reduce_mean(clip, axis=[0, 1, 2], keepdims=True)
    clip = (clip - mean) / tf.maximum(tf.sqrt(tf.reduce_mean(tf.square(clip - mean))), 1e-3)
    return tf.transpose(clip, [3, 0, 1, 2])


def main(_):
    root = tempfile.mkdtemp()
    listing = write_videos(root)
    queue = tf.train.string_input_producer([listing], num_epochs=2, shuffle=False)
    key, clip, label = read_clip(queue)
    clip = distort(clip)
    with tf.name_scope('batching'):
        keys, clips, labels = tf.train.batch(
            [tf.string_split([key], ':').values[-1], clip, tf.one_hot(label, 3)],
            FLAGS.batch, capacity=4, allow_smaller_final_batch=True)
    print(clips.name, clips.get_shape().as_list(), labels.dtype.name)
    counts = tf.Variable(tf.zeros([3]), trainable=False, name='counts')
    update = tf.assign_add(counts, tf.reduce_sum(labels, 0))
    with tf.train.MonitoredTrainingSession() as sess:
        step = 0
        while not sess.should_stop():
            try:
                k, c, l, total = sess.run([keys, clips, labels, update])
            except tf.errors.OutOfRangeError:
                break
            step += 1
            print(step, [one.decode() for one in k], c.shape, l.argmax(1).tolist(),
                  np.round(c.std(axis=(1, 2, 3, 4)), 3).tolist(), total.tolist())


if __name__ == '__main__':
    tf.app.run()
