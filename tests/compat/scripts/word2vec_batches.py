"""Skip-grams: a corpus counted and subsampled in Python, pairs put into a queue by two threads."""
import collections
import math
import os
import random
import tempfile
import threading

import numpy as np
import tensorflow as tf

TEXT = ('the quick brown fox jumps over the lazy dog while the other dog sleeps in the warm sun '
        'and the fox runs away from the dog over the hill into the dark forest near the river ')


class Options(object):
    def __init__(self):
        self.window, self.batch_size, self.num_sampled = 2, 8, 3
        self.subsample, self.min_count, self.emb_dim = 1e-1, 2, 4


def build_dataset(words, least):
    counts = [('UNK', -1)]
    counts += [(w, c) for w, c in sorted(collections.Counter(words).items(),
                                         key=lambda kv: (-kv[1], kv[0])) if c >= least]
    dictionary = {word: at for at, (word, _) in enumerate(counts)}
    data = [dictionary.get(word, 0) for word in words]
    counts[0] = ('UNK', data.count(0))
    return data, counts, dictionary


class Word2Vec(object):
    def __init__(self, options, words):
        self._options = options
        self.data, self.counts, self.dictionary = build_dataset(words, options.min_count)
        self._draw = random.Random(4)
        self.build_graph()

    def subsampled(self):
        total = float(len(self.data))
        for word in self.data:
            share = self.counts[word][1] / total
            keep = min(1.0, math.sqrt(self._options.subsample / share))
            if self._draw.random() < keep:
                yield word

    def pairs(self):
        kept = list(self.subsampled())
        for at, centre in enumerate(kept):
            width = self._draw.randint(1, self._options.window)
            for other in kept[max(0, at - width):at] + kept[at + 1:at + 1 + width]:
                yield centre, other

    def build_graph(self):
        opts = self._options
        self.centre = tf.placeholder(tf.int32, [], 'centre')
        self.context = tf.placeholder(tf.int32, [], 'context')
        self.queue = tf.FIFOQueue(64, [tf.int32, tf.int32], [[], []], name='pairs')
        self.enqueue = self.queue.enqueue([self.centre, self.context])
        self.close = self.queue.close()
        self.examples, self.labels = self.queue.dequeue_up_to(opts.batch_size)
        init = 0.5 / opts.emb_dim
        self.emb = tf.Variable(tf.random_uniform(
            [len(self.counts), opts.emb_dim], -init, init, seed=41), name='emb')
        self.sm_w = tf.Variable(tf.zeros([len(self.counts), opts.emb_dim]), name='sm_w')
        example_emb = tf.gather(self.emb, self.examples)
        true_w = tf.gather(self.sm_w, self.labels)
        self.logits = tf.reduce_sum(tf.multiply(example_emb, true_w), 1)
        unigram = np.array([count for _, count in self.counts], np.float64) ** 0.75
        self.cdf = tf.constant(np.cumsum(unigram / unigram.sum()), tf.float32)
        drawn = tf.random_uniform([opts.num_sampled], seed=42)
        self.sampled = tf.reduce_sum(tf.cast(drawn[:, None] > self.cdf[None, :], tf.int32), 1)
        pairs = self.examples * len(self.counts) + self.labels
        self.unique, _, self.times = tf.unique_with_counts(pairs)
        # Plain gradient steps by hand, as in scripts that train in the input process.
        self.train = tf.scatter_add(self.sm_w, self.labels, 0.5 * example_emb)
        norm = tf.sqrt(tf.reduce_sum(tf.square(self.emb), 1, keepdims=True))
        nemb = self.emb / norm
        self.distance = tf.matmul(nemb, nemb, transpose_b=True)
        self.near_ids = tf.argmax(self.distance - 2 * tf.eye(len(self.counts)), 1)


def feed(sess, model, coord, lock, source):
    try:
        while not coord.should_stop():
            with lock:
                centre, context = next(source)
                sess.run(model.enqueue, {model.centre: centre, model.context: context})
    except StopIteration:
        pass
    except (tf.errors.CancelledError, tf.errors.AbortedError):
        print('feeding was cancelled')


def main():
    path = os.path.join(tempfile.mkdtemp(), 'text8')
    with open(path, 'w') as f:
        f.write(TEXT * 2)
    with tf.gfile.GFile(path) as f:
        words = tf.compat.as_str(f.read()).split()
    model = Word2Vec(Options(), words)
    print(len(model.data), model.counts[:4], sorted(model.dictionary)[:3])
    print(model.examples.get_shape(), model.sampled.get_shape(), model.queue.name)
    sess = tf.Session()
    sess.run(tf.global_variables_initializer())
    coord, lock, source = tf.train.Coordinator(), threading.Lock(), model.pairs()
    threads = [threading.Thread(target=feed, args=(sess, model, coord, lock, source))
               for _ in range(2)]
    for thread in threads:
        thread.start()

    def close_when_done():
        for thread in threads:
            thread.join()
        sess.run(model.close)

    closer = threading.Thread(target=close_when_done)
    closer.start()
    total, batch = 0, 0
    while True:
        try:
            examples, labels, unique, times, negatives, _ = sess.run(
                [model.examples, model.labels, model.unique, model.times, model.sampled,
                 model.train])
        except tf.errors.OutOfRangeError as error:
            print(type(error).__name__, error.op.name)
            break
        total += len(examples)
        batch += 1
        if batch <= 3 or len(examples) < 8:
            print(batch, examples.tolist(), labels.tolist(), len(unique), int(times.max()),
                  negatives.tolist())
    coord.request_stop()
    coord.join(threads + [closer])
    weights, nearest = sess.run([model.sm_w, model.near_ids])
    print(batch, total, np.round(np.abs(weights).sum(), 4), nearest[:6].tolist())
    sess.close()


main()
