"""CTC: transcripts to sparse labels, batched from a queue of sparse rows."""
import os
import tempfile

import numpy as np
import tensorflow as tf

ALPHABET = 'abcdefghijklmnopqrstuvwxyz '


def encode(text):
    return np.array([ALPHABET.index(c) for c in text], np.int32)


def sparse_tuple_from(sequences, dtype=np.int32):
    """The usual helper: what a sparse placeholder is fed with."""
    indices, values = [], []
    for n, seq in enumerate(sequences):
        indices.extend(zip([n] * len(seq), range(len(seq))))
        values.extend(seq)
    shape = [len(sequences), np.asarray(indices).max(0)[1] + 1]
    return (np.asarray(indices, np.int64), np.asarray(values, dtype),
            np.asarray(shape, np.int64))


def label_batches(folder, batch_size):
    table = tf.constant(list(ALPHABET))
    files = tf.train.match_filenames_once(os.path.join(folder, '*.txt'))
    queue = tf.train.string_input_producer(files, num_epochs=1, shuffle=False)
    key, text = tf.WholeFileReader().read(queue)
    chars = tf.string_split([tf.string_strip(text)], delimiter='')
    same = tf.equal(tf.expand_dims(chars.values, 1), tf.expand_dims(table, 0))
    ids = tf.cast(tf.argmax(tf.cast(same, tf.int32), 1), tf.int32)
    label = tf.SparseTensor(chars.indices[:, 1:], ids, chars.dense_shape[1:])
    length = tf.size(ids)
    name = tf.string_split([key], '/').values[-1]
    return tf.train.batch([name, label, length], batch_size, capacity=8,
                          allow_smaller_final_batch=True)


def write(folder):
    for number, text in enumerate(['hello world', 'ctc', 'a b c', 'loss', 'speech']):
        with open(os.path.join(folder, 'u%d.txt' % number), 'w') as f:
            f.write(text + '\n')


def main():
    folder = tempfile.mkdtemp()
    write(folder)
    names, labels, lengths = label_batches(folder, 2)
    dense = tf.sparse_tensor_to_dense(labels, default_value=-1)
    counts = tf.sparse_reduce_sum(
        tf.SparseTensor(labels.indices, tf.ones_like(labels.values),
                        labels.dense_shape), axis=1)
    largest = tf.sparse_reduce_max(labels, 1, keep_dims=True)
    beginning = tf.sparse_slice(labels, [0, 0], [2, 3])
    filled, empty = tf.sparse_fill_empty_rows(
        tf.sparse_retain(labels, tf.less(labels.values, 5)), -7)
    both = tf.sparse_concat(1, [labels, beginning], expand_nonconcat_dim=True)
    turned = tf.reverse_sequence(dense, lengths, seq_axis=1, batch_axis=0)
    halves = tf.sparse_split(sp_input=labels, num_split=2, axis=1)
    tight = tf.sparse_reset_shape(
        tf.sparse_retain(labels, tf.greater(labels.values, 12)))
    blank = tf.sparse_transpose(labels)
    print(labels.shape, dense.shape, blank.indices.shape)
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(),
                  tf.local_variables_initializer()])
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess, coord)
        try:
            while not coord.should_stop():
                out = sess.run([names, dense, lengths, counts, largest,
                                beginning, filled, empty, both, turned,
                                halves, tight, blank])
                print([one.decode() for one in out[0]], out[2].tolist())
                print(out[1].tolist(), out[9].tolist())
                print(out[3].tolist(), out[4].tolist(), out[7].tolist())
                for one in (out[5], out[6], out[8], out[10][1], out[11], out[12]):
                    print(one.values.tolist(), one.indices[-1:].tolist(),
                          one.dense_shape.tolist())
        except tf.errors.OutOfRangeError:
            print('no more utterances')
        finally:
            coord.request_stop()
        coord.join(threads)
    fed = tf.sparse_placeholder(tf.int32)
    other = tf.sparse_placeholder(tf.int32)
    merged = tf.sparse_add(fed, other)
    both = tf.sparse_maximum(fed, other)
    with tf.Session() as sess:
        one = sparse_tuple_from([encode('abc'), encode('zz')])
        two = sparse_tuple_from([encode('cab'), encode('b')])
        for found in sess.run([merged, both], {fed: one, other: two}):
            print(found.indices.tolist(), found.values.tolist(),
                  found.dense_shape.tolist())


if __name__ == '__main__':
    main()
