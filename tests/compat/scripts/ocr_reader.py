"""OCR: lines of images and texts, labels as sparse tensors, batched for CTC."""
import os
import tempfile

import numpy as np
import tensorflow as tf

CHARSET = 'abcdefghijklmnopqrstuvwxyz '
HEIGHT = 8


def _get_image_filename_and_label(path):
    reader = tf.TextLineReader(skip_header_lines=1)
    queue = tf.train.string_input_producer([path], num_epochs=1, shuffle=False)
    _, line = reader.read(queue)
    name, width, text = tf.decode_csv(line, [[''], [0], ['']])
    return name, width, text


def _text_to_labels(text):
    """A sparse row of the numbers of the letters of a text."""
    letters = tf.string_split([text], delimiter='')
    table_keys = tf.constant(list(CHARSET))
    matches = tf.equal(tf.expand_dims(letters.values, 1), table_keys)
    numbers = tf.cast(tf.argmax(tf.cast(matches, tf.int32), axis=1), tf.int32)
    return tf.SparseTensor(letters.indices, numbers, letters.dense_shape)


def _preprocess_image(folder, name, width):
    data = tf.read_file(tf.string_join([folder, name], separator=os.sep))
    pixels = tf.decode_raw(data, tf.uint8)
    image = tf.reshape(pixels, tf.stack([HEIGHT, width, 1]))
    image = tf.cast(image, tf.float32) / 127.5 - 1.0
    first_row = tf.zeros_like(image[:1])
    return tf.concat([first_row, image[1:]], axis=0)


def bucketed_input_pipeline(folder, path, batch_size):
    name, width, text = _get_image_filename_and_label(path)
    image = _preprocess_image(folder, name, width)
    image.set_shape([HEIGHT, None, 1])
    label = _text_to_labels(text)
    length = tf.cast(tf.size(label.values), tf.int32)
    image, width, label, length, text = tf.train.batch(
        [image, width, label, length, text], batch_size=batch_size,
        dynamic_pad=True, allow_smaller_final_batch=True)
    return image, width, label, length, text


def decode(dense):
    return [''.join(CHARSET[n] for n in row if n >= 0) for row in dense]


def edit_distance(one, two):
    row = list(range(len(two) + 1))
    for i, a in enumerate(one, 1):
        previous, row[0] = row[0], i
        for j, b in enumerate(two, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1,
                                           previous + (a != b))
    return row[-1]


def write_data(folder):
    rng = np.random.RandomState(7)
    words = ['hello', 'a queue', 'of', 'training', 'pictures', 'with', 'text']
    lines = ['name,width,text']
    for i, word in enumerate(words):
        width = 4 * len(word)
        pixels = rng.randint(0, 256, (HEIGHT, width)).astype(np.uint8)
        pixels.tofile(os.path.join(folder, '%d.raw' % i))
        lines.append('%d.raw,%d,%s' % (i, width, word))
    path = os.path.join(folder, 'lines.csv')
    with open(path, 'w') as f:
        f.write('\n'.join(lines) + '\n')
    return path


def main():
    folder = tempfile.mkdtemp()
    path = write_data(folder)
    with tf.Graph().as_default():
        image, width, label, length, text = bucketed_input_pipeline(
            folder, path, 3)
        dense = tf.sparse_tensor_to_dense(label[0] if isinstance(
            label, list) else label, default_value=-1)
        dense = tf.reshape(dense, [tf.shape(dense)[0], -1])
        print(image.shape, width.shape, length.dtype.name)
        init_op = tf.group(tf.global_variables_initializer(),
                           tf.local_variables_initializer())
        with tf.Session() as sess:
            sess.run(init_op)
            coord = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(sess=sess, coord=coord)
            try:
                while not coord.should_stop():
                    x, w, d, n, t = sess.run([image, width, dense, length,
                                              text])
                    truth = [one.decode() for one in t]
                    read = decode(d)
                    print(x.shape, w.tolist(), n.tolist(), read,
                          [edit_distance(a, b) for a, b in zip(read, truth)],
                          '%.4f' % x.sum())
            except tf.errors.OutOfRangeError:
                print('all lines were read')
            finally:
                coord.request_stop()
            coord.join(threads)


if __name__ == '__main__':
    main()
