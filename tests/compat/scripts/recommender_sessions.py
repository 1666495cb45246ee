"""Sessions of clicks as sequence examples: items by a vocabulary, buckets by length, negatives."""
import os
import tempfile

import numpy as np
import tensorflow as tf

VOCABULARY = ['shoes', 'hat', 'coat', 'socks', 'scarf', 'gloves', 'belt']


def make_sequence(user, items, times, liked):
    example = tf.train.SequenceExample()
    example.context.feature['user'].int64_list.value.append(user)
    if liked is not None:
        example.context.feature['liked'].bytes_list.value.extend(liked)
    clicks = example.feature_lists.feature_list['items']
    stamps = example.feature_lists.feature_list['times']
    for item, time in zip(items, times):
        clicks.feature.add().bytes_list.value.append(item.encode())
        stamps.feature.add().float_list.value.append(time)
    return example.SerializeToString()


def write(folder):
    rnd = np.random.RandomState(3)
    with open(os.path.join(folder, 'vocab.txt'), 'w') as f:
        f.write('\n'.join(VOCABULARY) + '\n')
    path = os.path.join(folder, 'sessions.tfrecord')
    with tf.python_io.TFRecordWriter(path) as writer:
        for user in range(14):
            length = 1 + user * 5 % 7
            items = [(VOCABULARY + ['unknown', 'new'])[rnd.randint(9)] for _ in range(length)]
            times = np.cumsum(rnd.rand(length)).tolist()
            liked = None if user % 3 == 0 else [b'hat', b'belt'][:user % 3]
            writer.write(make_sequence(user, items, times, liked))
    return path


class Sessions(object):
    def __init__(self, path, vocabulary, batch_size):
        self.table = tf.lookup.StaticVocabularyTable(
            tf.lookup.TextFileInitializer(
                vocabulary, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER), 2)
        data = tf.data.TFRecordDataset([path]).map(self.parse)
        data = data.filter(lambda user, items, gaps, liked: tf.greater(tf.size(items), 1))
        data = data.map(self.shift).apply(tf.data.experimental.bucket_by_sequence_length(
            lambda user, x, y, gaps, liked: tf.shape(x)[0], [3, 5], [batch_size, 2, 2],
            padded_shapes=([], [None], [None], [None], []), padding_values=(
                np.int64(0), np.int64(-1), np.int64(-1), 0.0, np.int64(0))))
        self.iterator = tf.data.make_initializable_iterator(data)
        self.user, self.x, self.y, self.gaps, self.liked = self.iterator.get_next()
        self.mask = tf.not_equal(self.y, -1)
        self.lengths = tf.reduce_sum(tf.cast(self.mask, tf.int32), 1)

    def parse(self, serialized):
        context, steps = tf.parse_single_sequence_example(
            serialized,
            {'user': tf.FixedLenFeature([], tf.int64), 'liked': tf.VarLenFeature(tf.string)},
            {'items': tf.FixedLenSequenceFeature([], tf.string),
             'times': tf.FixedLenSequenceFeature([], tf.float32)})
        times = steps['times']
        gaps = times - tf.concat([times[:1], times[:-1]], 0)
        liked = tf.reduce_sum(self.table.lookup(tf.sparse_tensor_to_dense(
            context['liked'], default_value='?')))
        return context['user'], self.table.lookup(steps['items']), gaps, liked

    def shift(self, user, items, gaps, liked):
        return user, items[:-1], items[1:], tf.round(gaps[1:] * 100) / 100, liked


def sampled(y, mask, count, vocabulary_size):
    """Negatives by popularity that are no targets of their row."""
    weights = tf.log(tf.range(1, vocabulary_size + 1, dtype=tf.float32))
    with tf.control_dependencies([y]):
        weights = tf.identity(weights)
    drawn = tf.multinomial(weights[tf.newaxis, :], count, seed=9)[0]
    hits = tf.equal(y[:, :, tf.newaxis], drawn)
    hits = tf.logical_and(hits, mask[:, :, tf.newaxis])
    return drawn, tf.logical_not(tf.reduce_any(hits, axis=1))


def main():
    folder = tempfile.mkdtemp()
    path = write(folder)
    model = Sessions(path, os.path.join(folder, 'vocab.txt'), 3)
    drawn, allowed = sampled(model.y, model.mask, 4, 9)
    popularity = tf.Variable(tf.zeros([9], tf.int32), name='popularity')
    seen = tf.boolean_mask(model.y, model.mask)
    count = tf.scatter_add(popularity, seen, tf.ones_like(seen, tf.int32))
    print(model.x.get_shape().as_list(), model.user.get_shape().as_list(), drawn.dtype.name)
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.tables_initializer()])
        for epoch in range(2):
            sess.run(model.iterator.initializer)
            batches = 0
            while True:
                try:
                    user, x, y, gaps, liked, lengths, negative, ok, _ = sess.run(
                        [model.user, model.x, model.y, model.gaps, model.liked, model.lengths,
                         drawn, allowed, count])
                except tf.errors.OutOfRangeError:
                    break
                batches += 1
                print(user.tolist(), x.tolist(), y.tolist(), np.round(gaps, 2).tolist(),
                      liked.tolist(), lengths.tolist(), negative.tolist(), ok.tolist())
            print('epoch', epoch, 'batches', batches, sess.run(popularity).tolist())


main()
