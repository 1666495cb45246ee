"""The guide's loops: a queue that Python threads feed, a coordinator, failures and stops."""
import threading

import numpy as np
import tensorflow as tf


def counter_graph():
    """Starts with zeros, and takes one out, adds one, puts it back."""
    q = tf.FIFOQueue(3, "float")
    init = q.enqueue_many(([0., 0., 0.],))
    x = q.dequeue()
    y = x + 1
    q_inc = q.enqueue([y])
    size = q.size()
    with tf.Session() as sess:
        init.run()
        for _ in range(4):
            q_inc.run()
        print([float(sess.run(x)) for _ in range(sess.run(size))])


def my_loop(coord, sess, enqueue, value, limit):
    try:
        count = 0
        while not coord.should_stop():
            sess.run(enqueue, {value: float(count)})
            count += 1
            if count >= limit:
                coord.request_stop()
    except Exception as e:
        coord.request_stop(e)


def stopping():
    queue = tf.FIFOQueue(1000, tf.float32, shapes=[[]])
    value = tf.placeholder(tf.float32, [])
    enqueue = queue.enqueue(value)
    total = tf.reduce_sum(queue.dequeue_many(50))
    with tf.Session() as sess:
        coord = tf.train.Coordinator()
        threads = [threading.Thread(target=my_loop,
                                    args=(coord, sess, enqueue, value, 50))
                   for _ in range(1)]
        for t in threads:
            t.start()
        coord.join(threads)
        print('total %.1f' % sess.run(total), coord.should_stop())


def named_components():
    queue = tf.PaddingFIFOQueue(10, [tf.int32, tf.string],
                                shapes=[[None], []], names=['ids', 'text'])
    ids = tf.placeholder(tf.int32, [None])
    text = tf.placeholder(tf.string, [])
    put = queue.enqueue({'ids': ids, 'text': text})
    batch = queue.dequeue_many(3)
    with tf.Session() as sess:
        for n in (2, 4, 1):
            sess.run(put, {ids: np.arange(n), text: 'n%d' % n})
        got = sess.run(batch)
        print(got['ids'].tolist(), [one.decode() for one in got['text']])
        for wrong in ({'ids': [1]}, [[1], 'x']):
            try:
                queue.enqueue(wrong)
            except ValueError as e:
                print(str(e).split('.')[0][:50])


def failing():
    numbers = tf.train.input_producer(np.arange(6), shuffle=False).dequeue()

    def inverse(n):
        return np.float32(12 // (int(n) - 4))
    made = tf.py_func(inverse, [numbers], tf.float32)
    batch = tf.train.batch([tf.reshape(made, [])], 2)
    with tf.Session() as sess:
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess, coord)
        try:
            while not coord.should_stop():
                sess.run(batch)  # how many there are is a race
        except tf.errors.OutOfRangeError as e:
            assert 'closed' in e.message
        coord.request_stop()
        try:
            coord.join(threads)
        except Exception as e:
            print('join raised', type(e).__name__, 'ZeroDivision' in str(e))


def shared():
    """Queues without a name that an index chooses among."""
    queues = [tf.FIFOQueue(5, tf.int32, [[]], name='q%d' % i)
              for i in range(3)]
    for i, q in enumerate(queues):
        tf.add_to_collection('fill', q.enqueue_many([np.arange(i, i + 3)]))
    index = tf.placeholder(tf.int32, [])
    chosen = tf.QueueBase.from_list(index, queues).dequeue()
    rest = tf.stack([q.size() for q in queues])
    closed = tf.group(*[q.close() for q in queues])
    with tf.Session() as sess:
        sess.run(tf.get_collection('fill'))
        print([int(sess.run(chosen, {index: i})) for i in (0, 1, 1, 2, 2, 2)])
        print(sess.run(rest).tolist())
        sess.run(closed)
        print([bool(sess.run(q.is_closed())) for q in queues])
        try:
            sess.run(queues[0].enqueue(1))
        except tf.errors.CancelledError as e:
            print('is closed' in e.message)


def main():
    for part in (counter_graph, stopping, named_components, failing, shared):
        print(part.__name__)
        with tf.Graph().as_default():
            part()


if __name__ == '__main__':
    main()
