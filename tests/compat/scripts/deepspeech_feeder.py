"""DeepSpeech: data sets that threads feed to padding queues; transcripts become sparse labels."""

import codecs
import os
import tempfile
from math import ceil
from threading import Thread

import numpy as np
import tensorflow as tf


SPACE_INDEX = 0
FIRST_INDEX = ord('a') - 1


def text_to_char_array(original):
    result = original.replace(" ", "  ").split(" ")
    result = np.hstack([['<space>'] if xt == '' else list(xt) for xt in result])
    return np.asarray([SPACE_INDEX if xt == '<space>' else ord(xt) - FIRST_INDEX for xt in result])


def audiofile_to_input_vector(audio_filename, numcep, numcontext):
    """Frames of a file with their neighbours, standardised."""
    orig_inputs = np.fromfile(audio_filename, np.float32).reshape(-1, numcep)[::2]
    num_strides = len(orig_inputs)
    empty_context = np.zeros((numcontext, numcep), dtype=orig_inputs.dtype)
    padded = np.concatenate((empty_context, orig_inputs, empty_context))
    window_size = 2 * numcontext + 1
    train_inputs = np.stack([padded[i:i + window_size].ravel() for i in range(num_strides)])
    return (train_inputs - np.mean(train_inputs)) / np.std(train_inputs)


def ctc_label_dense_to_sparse(labels, label_lengths, batch_size):
    # The second dimension of labels must be equal to the longest label length in the batch
    correct_shape_assert = tf.assert_equal(tf.shape(labels)[1], tf.reduce_max(label_lengths))
    with tf.control_dependencies([correct_shape_assert]):
        labels = tf.identity(labels)

    label_shape = tf.shape(labels)
    num_batches_tns = tf.stack([label_shape[0]])
    max_num_labels_tns = tf.stack([label_shape[1]])

    def range_less_than(previous_state, current_input):
        return tf.expand_dims(tf.range(label_shape[1]), 0) < current_input

    init = tf.cast(tf.fill(max_num_labels_tns, 0), tf.bool)
    init = tf.expand_dims(init, 0)
    dense_mask = tf.scan(range_less_than, label_lengths, initializer=init, parallel_iterations=1)
    dense_mask = dense_mask[:, 0, :]

    label_array = tf.reshape(tf.tile(tf.range(0, label_shape[1]), num_batches_tns), label_shape)
    label_ind = tf.boolean_mask(label_array, dense_mask)

    batch_array = tf.transpose(tf.reshape(
        tf.tile(tf.range(0, label_shape[0]), max_num_labels_tns), tf.reverse(label_shape, [0])))
    batch_ind = tf.boolean_mask(batch_array, dense_mask)

    indices = tf.transpose(tf.reshape(tf.concat([batch_ind, label_ind], 0), [2, -1]))
    shape = [batch_size, tf.reduce_max(label_lengths)]
    vals_sparse = tf.gather_nd(labels, indices)
    return tf.SparseTensor(tf.to_int64(indices), vals_sparse, tf.to_int64(label_shape)), shape


class DataSet(object):
    def __init__(self, rows, thread_count, batch_size, next_index=lambda x: x + 1):
        self.files = rows
        self.thread_count = thread_count
        self.batch_size = batch_size
        self.next_index = next_index
        self.total_batches = int(ceil(len(self.files) / batch_size))


class _ModelFeeder(object):
    """Feeds data to a model; switches between data sets by a placeholder."""

    def __init__(self, numcep, numcontext, train, dev):
        self.numcep, self.numcontext = numcep, numcontext
        self.ph_x = tf.placeholder(tf.float32, [None, numcep + (2 * numcep * numcontext)])
        self.ph_x_length = tf.placeholder(tf.int32, [])
        self.ph_y = tf.placeholder(tf.int32, [None, ])
        self.ph_y_length = tf.placeholder(tf.int32, [])
        self.ph_queue_selector = tf.placeholder(tf.int32, name='Queue_Selector')
        self.sets = (train, dev)
        self._alternatives = {}
        self._loaders = [_DataSetLoader(self, data_set) for data_set in self.sets]

    def start_queue_threads(self, session, coord):
        threads = []
        for loader in self._loaders:
            threads += loader.start_queue_threads(session, coord)
        return threads

    def close_queues(self, session):
        for loader in self._loaders:
            loader.close_queue(session)

    def set_data_set(self, feed_dict, data_set):
        feed_dict[self.ph_queue_selector] = self.sets.index(data_set)

    def next_batch(self):
        queue = tf.QueueBase.from_list(self.ph_queue_selector,
                                       [loader.queue for loader in self._loaders])
        source, source_lengths, target, target_lengths = queue.dequeue_many(self.sets[0].batch_size)
        sparse_labels, _ = ctc_label_dense_to_sparse(target, target_lengths, self.sets[0].batch_size)
        return source, source_lengths, sparse_labels


class _DataSetLoader(object):
    """Fills a queue from its own threads."""

    def __init__(self, model_feeder, data_set):
        self._model_feeder = model_feeder
        self._data_set = data_set
        context = model_feeder.numcep + (2 * model_feeder.numcep * model_feeder.numcontext)
        self.queue = tf.PaddingFIFOQueue(
            shapes=[[None, context], [], [None, ], []],
            dtypes=[tf.float32, tf.int32, tf.int32, tf.int32], capacity=data_set.batch_size * 2)
        self._enqueue_op = self.queue.enqueue([model_feeder.ph_x, model_feeder.ph_x_length,
                                               model_feeder.ph_y, model_feeder.ph_y_length])
        self._close_op = self.queue.close(cancel_pending_enqueues=True)

    def start_queue_threads(self, session, coord):
        queue_threads = [Thread(target=self._populate_batch_queue, args=(session, coord))
                         for i in range(self._data_set.thread_count)]
        for queue_thread in queue_threads:
            coord.register_thread(queue_thread)
            queue_thread.daemon = True
            queue_thread.start()
        return queue_threads

    def close_queue(self, session):
        session.run(self._close_op)

    def _populate_batch_queue(self, session, coord):
        file_count = len(self._data_set.files)
        index = -1
        while not coord.should_stop():
            index = self._data_set.next_index(index) % file_count
            wav_file, transcript = self._data_set.files[index]
            source = audiofile_to_input_vector(wav_file, self._model_feeder.numcep,
                                               self._model_feeder.numcontext)
            target = text_to_char_array(transcript)
            if len(source) < len(target):
                raise ValueError('Error: Audio file {} is too short'.format(wav_file))
            try:
                session.run(self._enqueue_op, feed_dict={
                    self._model_feeder.ph_x: source,
                    self._model_feeder.ph_x_length: len(source),
                    self._model_feeder.ph_y: target,
                    self._model_feeder.ph_y_length: len(target)})
            except tf.errors.CancelledError:
                return


def main():
    directory = tempfile.mkdtemp()
    rng = np.random.RandomState(9)
    words = ["to be or", "not", "that is", "a question of words", "so", "it goes"]
    rows = []
    with codecs.open(os.path.join(directory, 'train.csv'), 'w', 'utf-8') as listing:
        for i, text in enumerate(words):
            path = os.path.join(directory, '%d.feat' % i)
            rng.normal(size=(2 * len(text) + 10 + i, 4)).astype(np.float32).tofile(path)
            listing.write(u'%s,%s\n' % (path, text))
    with codecs.open(os.path.join(directory, 'train.csv'), 'r', 'utf-8') as listing:
        rows = [line.strip().split(',') for line in listing]

    with tf.Graph().as_default():
        train, dev = DataSet(rows, 1, 3), DataSet(rows[::-1][:3], 1, 3)
        feeder = _ModelFeeder(4, 2, train, dev)
        source, lengths, labels = feeder.next_batch()
        dense = tf.sparse_tensor_to_dense(labels, default_value=-1)
        print(source.get_shape(), lengths.get_shape(), labels.dtype)
        coord = tf.train.Coordinator()
        with tf.Session() as session:
            feeder.start_queue_threads(session, coord)
            for data_set in (train, dev, train, train, dev):
                feed_dict = {}
                feeder.set_data_set(feed_dict, data_set)
                x, n, y, sparse = session.run([source, lengths, dense, labels], feed_dict)
                print(x.shape, n, '%.3f' % np.abs(x).sum(), sparse.dense_shape, len(sparse.values))
                for row in y:
                    print('  ', ''.join(' ' if c == 0 else chr(c + FIRST_INDEX)
                                        for c in row if c >= 0))
            coord.request_stop()
            feeder.close_queues(session)
            coord.join(stop_grace_period_secs=20)
    print('stopped:', coord.should_stop())


if __name__ == '__main__':
    main()
