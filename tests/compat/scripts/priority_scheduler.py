"""A crawler's frontier: a priority queue that several stages of a graph share."""

import numpy as np
import tensorflow as tf

LINKS = {0: [1, 2], 1: [3, 4], 2: [4, 5], 3: [6], 4: [6, 7], 5: [8],
         6: [9], 7: [9], 8: [9], 9: []}
COSTS = {(a, b): (a * 3 + b * 5) % 7 + 1 for a in LINKS for b in LINKS[a]}


def shortest_paths(start):
    """Dijkstra's algorithm, whose frontier is a queue of the graph."""
    frontier = tf.PriorityQueue(100, [tf.int32, tf.string], shapes=[[], []],
                                name='frontier')
    cost_in = tf.placeholder(tf.int64, [], 'cost')
    node_in = tf.placeholder(tf.int32, [], 'node')
    path_in = tf.placeholder(tf.string, [], 'path')
    push = frontier.enqueue([cost_in, node_in, path_in])
    pop = frontier.dequeue()
    size = frontier.size()
    best = {}
    with tf.Session() as sess:
        sess.run(push, {cost_in: 0, node_in: start, path_in: str(start)})
        while sess.run(size):
            cost, node, path = sess.run(pop)
            if int(node) in best:
                continue
            best[int(node)] = (int(cost), path.decode())
            for other in LINKS[int(node)]:
                sess.run(push, {
                    cost_in: cost + COSTS[int(node), other], node_in: other,
                    path_in: path.decode() + '>' + str(other)})
        sess.run(frontier.close())
        try:
            sess.run(pop)
        except tf.errors.OutOfRangeError as e:
            print('insufficient elements' in e.message)
    return best


def merge_sorted(lists):
    """Several sorted lists through one queue, in order."""
    queue = tf.PriorityQueue(-1, [tf.string], [[]])
    enqueues = []
    for number, values in enumerate(lists):
        names = np.array(['%d:%d' % (number, v) for v in values])
        enqueues.append(queue.enqueue_many(
            [np.array(values, np.int64), names]))
    close = queue.close()
    keys, names = queue.dequeue_many(4)
    with tf.Session() as sess:
        sess.run(enqueues)
        sess.run(close)
        order = []
        try:
            while True:
                order.append([keys_.tolist() for keys_ in [sess.run(keys)]][0])
        except tf.errors.OutOfRangeError:
            print('left over:', sess.run(queue.size()))
    return order, names.shape


def counted(words):
    """How often words come, by an index of the first that came."""
    text = tf.constant(words)
    unique, index, count = tf.unique_with_counts(text)
    parts = [tf.boolean_mask(tf.range(len(words)), tf.equal(index % 2, part)) for part in range(2)]
    joined = tf.scatter_nd(tf.expand_dims(tf.concat(parts, 0), 1), tf.concat(parts, 0) * 10, [len(words)])
    one_hot = tf.one_hot(index, tf.size(unique))
    with tf.Session() as sess:
        u, c, p, j, h = sess.run([unique, count, parts, joined, one_hot])
    return (dict(zip([w.decode() for w in u], c.tolist())),
            [one.tolist() for one in p], j.tolist(), h.sum(0).tolist())


def accumulated(values):
    with tf.Session() as sess:
        elems = tf.constant(values)
        squares = tf.map_fn(lambda x: x * x + 1, elems)
        total = tf.foldl(lambda a, x: a * 2 + x, elems)
        running = tf.scan(lambda a, x: a + x, elems)
        pair = tf.map_fn(lambda x: (x, -x), elems, dtype=(tf.int32, tf.int32))
        return [one.tolist() for one in sess.run(
            [squares, total, running, pair[0], pair[1]])]


def main():
    with tf.Graph().as_default():
        for node, found in sorted(shortest_paths(0).items()):
            print(node, found)
    with tf.Graph().as_default():
        order, shape = merge_sorted([[1, 4, 9], [2, 3, 10, 11], [0, 7, 8]])
        print(order, shape)
    with tf.Graph().as_default():
        for part in counted('b a c a b a'.split()):
            print(part)
    with tf.Graph().as_default():
        print(accumulated([3, 1, 4, 1, 5]))


if __name__ == '__main__':
    main()
