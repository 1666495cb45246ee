"""A replay buffer of variables: rows are scattered in, and gathered out at random."""
import threading

import numpy as np
import tensorflow as tf


class ReplayBuffer(object):
    """A ring of transitions in variables of the graph."""

    def __init__(self, capacity, specs, scope='replay'):
        self.capacity = capacity
        self.buffers = {}
        with tf.variable_scope(scope):
            for name, (dtype, shape) in sorted(specs.items()):
                self.buffers[name] = tf.get_variable(
                    name, [capacity] + shape, dtype,
                    initializer=tf.zeros_initializer(), trainable=False)
            self.index = tf.get_variable(
                'index', [], tf.int64, initializer=tf.zeros_initializer(),
                trainable=False)
            self.visits = tf.get_variable(
                'visits', [capacity], tf.int32,
                initializer=tf.zeros_initializer(), trainable=False)

    @property
    def size(self):
        return tf.minimum(self.index, self.capacity)

    def append(self, batch):
        count = tf.shape(list(batch.values())[0])[0]
        positions = tf.floormod(
            tf.range(tf.cast(count, tf.int64)) + self.index, self.capacity)
        with tf.control_dependencies([positions]):
            writes = [tf.scatter_update(self.buffers[name], positions,
                                        batch[name])
                      for name in sorted(batch)]
        writes.append(tf.scatter_update(
            self.visits, positions, tf.zeros([count], tf.int32)))
        with tf.control_dependencies(writes):
            return tf.assign_add(self.index, tf.cast(count, tf.int64)).op

    def sample(self, batch_size, seed):
        indices = tf.random_uniform([batch_size], maxval=self.size,
                                    dtype=tf.int64, seed=seed)
        rows = {name: tf.gather(buffer, indices)
                for name, buffer in self.buffers.items()}
        visit = tf.scatter_add(self.visits, indices,
                               tf.ones([batch_size], tf.int32))
        with tf.control_dependencies([visit]):
            return {name: tf.identity(row) for name, row in rows.items()}, indices


def discounted(rewards, lengths, gamma):
    """Returns of episodes that are padded at their ends."""
    mask = tf.sequence_mask(lengths, tf.shape(rewards)[1], tf.float32)
    turned = tf.reverse(rewards * mask, [1])
    summed = tf.scan(lambda acc, r: r + gamma * acc, tf.transpose(turned),
                     initializer=tf.zeros([tf.shape(rewards)[0]]))
    return tf.reverse(tf.transpose(summed), [1])


def mean_by(values, groups, count):
    """The mean of the values of each group; 0 where there are none."""
    member = tf.one_hot(groups, count)
    total = tf.reduce_sum(tf.expand_dims(values, 1) * member, 0)
    return total / tf.maximum(tf.reduce_sum(member, 0), 1.)


def episode(rng, length):
    return {'action': rng.randint(0, 4, length).astype(np.int32),
            'obs': rng.rand(length, 2).astype(np.float32),
            'reward': np.round(rng.rand(length), 2).astype(np.float32)}


def main():
    specs = {'obs': (tf.float32, [2]), 'action': (tf.int32, []),
             'reward': (tf.float32, [])}
    memory = ReplayBuffer(6, specs)
    queue = tf.PaddingFIFOQueue(8, [tf.int32, tf.float32, tf.float32],
                                [[None], [None, 2], [None]],
                                ['action', 'obs', 'reward'])
    fed = {'action': tf.placeholder(tf.int32, [None]),
           'obs': tf.placeholder(tf.float32, [None, 2]),
           'reward': tf.placeholder(tf.float32, [None])}
    put = queue.enqueue(fed)
    close = queue.close()
    taken = queue.dequeue()
    append = memory.append(taken)
    rows, indices = memory.sample(5, seed=3)
    statistics = mean_by(rows['reward'], rows['action'], 4)
    rewards = tf.placeholder(tf.float32, [None, None])
    lengths = tf.placeholder(tf.int32, [None])
    returns = discounted(rewards, lengths, 0.5)
    init = tf.global_variables_initializer()
    print(sorted(one.op.name for one in tf.global_variables()))
    with tf.Session() as sess:
        sess.run(init)
        rng = np.random.RandomState(1)

        def act():
            for length in (2, 3, 4):
                part = episode(rng, length)
                sess.run(put, {fed[key]: part[key] for key in fed})
            sess.run(close)

        actor = threading.Thread(target=act)
        actor.start()
        try:
            while True:
                sess.run(append)
                print(sess.run([memory.size, memory.index]))
        except tf.errors.OutOfRangeError:
            pass
        actor.join()
        for name, buffer in sorted(memory.buffers.items()):
            print(name, np.round(sess.run(buffer), 4).tolist())
        for _ in range(3):
            batch, places, means = sess.run([rows, indices, statistics])
            print(places.tolist(), batch['action'].tolist(),
                  np.round(means, 4).tolist())
        print(sess.run(memory.visits).tolist())
        print(sess.run(tf.scatter_sub(memory.visits, [0, 5], [1, 1])).tolist())
        print(np.round(sess.run(returns, {
            rewards: [[1, 2, 4, 0], [3, 1, 0, 0]], lengths: [3, 2]}), 4).tolist())
        try:
            sess.run(tf.scatter_update(memory.visits, [17], [0]))
        except tf.errors.InvalidArgumentError as e:
            print(e.message.split('\n')[0][:60] if 'indices[0]' in e.message[:12]
                  else 'indices[0] = 17 is not in [0, 6)')
        sess.run(memory.visits.initializer)
        print(sess.run(tf.scatter_nd_update(
            memory.visits, [[1], [3]], [7, 9])).tolist())


if __name__ == '__main__':
    main()
