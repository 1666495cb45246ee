"""A regression under a Supervisor: stopped, started again from its checkpoint, and failing."""
import os
import tempfile
import threading

import numpy as np
import tensorflow as tf

SLOPE, OFFSET = 3.0, -1.0
RATE = 0.05


def numbers(folder):
    path = os.path.join(folder, 'numbers.csv')
    with open(path, 'w') as lines:
        for number in range(40):
            x = (number % 10) / 10.0
            lines.write('%r,%r\n' % (x, SLOPE * x + OFFSET))
    return path


def inputs(path, epochs):
    names = tf.train.string_input_producer([path], num_epochs=epochs, shuffle=False)
    reader = tf.TextLineReader()
    _, line = reader.read(names)
    x, y = tf.decode_csv(line, record_defaults=[[0.0], [0.0]])
    return tf.train.batch([x, y], batch_size=8)


class Model(object):
    """A line, fitted by hand: the gradients are written down."""

    def __init__(self, path, epochs):
        self.x, self.y = inputs(path, epochs)
        self.slope = tf.get_variable('slope', [], initializer=tf.zeros_initializer())
        self.offset = tf.get_variable('offset', [], initializer=tf.zeros_initializer())
        self.global_step = tf.train.get_or_create_global_step()
        error = self.slope * self.x + self.offset - self.y
        self.loss = tf.reduce_mean(tf.square(error))
        updates = [
            tf.assign_sub(self.slope, RATE * tf.reduce_mean(2.0 * error * self.x)),
            tf.assign_sub(self.offset, RATE * tf.reduce_mean(2.0 * error)),
        ]
        with tf.control_dependencies(updates):
            self.train_op = tf.assign_add(self.global_step, 1).op


def kept(folder):
    state = tf.train.get_checkpoint_state(folder)
    if state is None:
        return []
    return [os.path.basename(one) for one in state.all_model_checkpoint_paths]


def train(path, logdir, most, epochs=2):
    """Steps until the input ends, or there are enough of them; saves each fifth."""
    with tf.Graph().as_default() as graph:
        model = Model(path, epochs)
        sv = tf.train.Supervisor(logdir=logdir, save_model_secs=0, save_summaries_secs=0,
                                 saver=tf.train.Saver(max_to_keep=2))
        print('finalized', graph.finalized, 'path', os.path.basename(sv.save_path),
              'step', sv.global_step.name, 'chief', sv.is_chief)
        losses = []
        with sv.managed_session() as sess:
            begun = sess.run(model.global_step)
            while not sv.should_stop():
                _, loss = sess.run([model.train_op, model.loss])
                losses.append(loss)
                step = sess.run(sv.global_step)
                if step % 5 == 0:
                    saved = sv.saver.save(sess, sv.save_path, global_step=sv.global_step)
                    print('saved', os.path.basename(saved))
                if step >= most:
                    sv.request_stop()
        print('from', begun, 'to', step, 'better', bool(losses[-1] < losses[0]),
              'stopped', sv.should_stop(), 'kept', kept(logdir))


def services(path, logdir):
    """The thread that saves, a loop of the script's own, and runners that are started by hand."""
    with tf.Graph().as_default():
        model = Model(path, None)
        sv = tf.train.Supervisor(logdir=logdir, save_summaries_secs=0, save_model_secs=3600,
                                 checkpoint_basename='first')
        sess = sv.prepare_or_wait_for_session(start_standard_services=False)
        threads = sv.start_queue_runners(sess)
        print('threads', len(threads) >= 2, 'daemons', all(one.daemon for one in threads))
        looked = threading.Event()
        seen = []

        def look(session, what):
            seen.append(session.run(what) >= 0)
            looked.set()

        looper = sv.loop(3600, look, args=(sess,), kwargs={'what': model.global_step})
        saving = sv.start_standard_services(sess)
        looked.wait()
        while not kept(logdir):
            saving[0].join(0.01)
        for _ in range(3):
            sess.run(model.train_op)
        sv.stop()
        print('seen', seen, 'alive', looper.is_alive(), [one.is_alive() for one in saving])
        print('kept', kept(logdir), 'joined', sv.coord.joined, 'step', sess.run(sv.global_step))
        sess.close()


def failing(path):
    """What is raised in the block, in a thread of it, and before there is a session."""
    with tf.Graph().as_default():
        model = Model(path, None)
        sv = tf.train.Supervisor(saver=None, summary_op=None)
        try:
            with sv.managed_session() as sess:
                sess.run(model.train_op)
                raise ValueError('in the block')
        except ValueError as error:
            print('raised', error, sv.should_stop())

        def fail():
            with sv.stop_on_exception():
                raise KeyError('in a thread')

        try:
            with sv.managed_session(start_standard_services=False) as sess:
                thread = threading.Thread(target=fail)
                thread.start()
                sv.wait_for_stop()
                thread.join()
        except KeyError as error:
            print('raised', error, sv.should_stop())
        print('path', sv.save_path, 'saver', sv.saver, 'writer', sv.summary_writer)
        try:
            sv.summary_computed(None, b'')
        except RuntimeError as error:
            print('refused:', error)


def initialising():
    with tf.Graph().as_default():
        fed = tf.placeholder(tf.float32, [2])
        first = tf.Variable(fed, name='first', trainable=False, validate_shape=False)
        second = tf.Variable(tf.zeros([2]), name='second')
        table = tf.Variable(7, name='own', collections=[tf.GraphKeys.LOCAL_VARIABLES])
        load = tf.placeholder(tf.float32, [2])
        loading = second.assign(load)
        sv = tf.train.Supervisor(init_op=first.initializer, init_feed_dict={fed: [1.0, 2.0]},
                                 init_fn=lambda sess: sess.run(loading, {load: [3.0, 4.0]}))
        with sv.managed_session() as sess:
            print([value.tolist() for value in sess.run([first, second, table])])
    with tf.Graph().as_default():
        one = tf.Variable(1, name='one')
        tf.Variable(2, name='two')
        sv = tf.train.Supervisor(init_op=one.initializer)
        try:
            with sv.managed_session():
                print('not reached')
        except RuntimeError as error:
            print('RuntimeError', str(error).partition('error:')[2].strip())
        print('step', sv.global_step, 'ready', sv.ready_op.dtype == tf.string)


def main():
    folder = tempfile.mkdtemp()
    path = numbers(folder)
    logdir = os.path.join(folder, 'logs', 'deep')
    train(path, logdir, most=7)
    train(path, logdir, most=1000)
    train(path, logdir, most=18)
    services(path, os.path.join(folder, 'services'))
    failing(path)
    initialising()


main()
