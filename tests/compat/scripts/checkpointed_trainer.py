"""A trainer that is cut off and goes on: a Saver by hand, then hooks and a folder of checkpoints."""
import os
import re
import tempfile

import numpy as np
import tensorflow as tf


class Told(tf.train.CheckpointSaverListener):
    def __init__(self, last=None):
        self.last = last

    def begin(self):
        print('begin', isinstance(tf.train.get_global_step(), tf.Variable))

    def before_save(self, session, global_step_value):
        print('before', global_step_value)

    def after_save(self, session, global_step_value):
        print('after', global_step_value)
        return self.last is not None and global_step_value >= self.last

    def end(self, session, global_step_value):
        print('end', global_step_value)


def kept(folder):
    state = tf.train.get_checkpoint_state(folder)
    if state is None:
        return None
    return (os.path.basename(state.model_checkpoint_path),
            [os.path.basename(one) for one in state.all_model_checkpoint_paths])


def model():
    queue = tf.train.range_input_producer(4, shuffle=False)
    number = tf.cast(queue.dequeue(), tf.float32)
    weight = tf.get_variable('weight', [], initializer=tf.constant_initializer(1.0))
    names = tf.Variable([b'a', b'bc'], trainable=False, name='names')
    step = tf.train.get_or_create_global_step()
    with tf.control_dependencies([tf.assign_add(weight, number)]):
        train = tf.assign_add(step, 1)
    return weight, names, step, train


def by_hand(folder):
    with tf.Graph().as_default():
        weight, names, step, train = model()
        saver = tf.train.Saver(max_to_keep=2)
        with tf.Session() as sess:
            latest = tf.train.latest_checkpoint(folder)
            if latest:
                saver.restore(sess, latest)
                begun = int(re.search(r'-(\d+)$', latest).group(1))
            else:
                sess.run(tf.global_variables_initializer())
                begun = 0
            print('begun', begun, sess.run([step, weight, names]))
            coord = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(sess, coord)
            for _ in range(3):
                sess.run(train)
                path = saver.save(sess, os.path.join(folder, 'model.ckpt'), global_step=step)
                print(os.path.basename(path), kept(folder))
            coord.request_stop()
            coord.join(threads)
            print([os.path.basename(one) for one in saver.last_checkpoints])
            other = tf.Variable(np.zeros(3, np.float32), name='other')
            for wanted in ({'weight': other}, [other]):
                try:
                    tf.train.Saver(wanted).restore(sess, path)
                except tf.errors.OpError as error:
                    print(type(error).__name__)


def monitored(folder, last, **options):
    with tf.Graph().as_default():
        weight, names, step, train = model()
        with tf.train.MonitoredTrainingSession(
                checkpoint_dir=folder, save_summaries_steps=None, save_summaries_secs=None,
                log_step_count_steps=None,
                hooks=[tf.train.StopAtStepHook(last_step=last)], **options) as sess:
            print('begun', sess.run([weight, names]))
            while not sess.should_stop():
                sess.run(train)
        print(kept(folder))


def hooked(folder, listener):
    with tf.Graph().as_default():
        weight, names, step, train = model()
        scaffold = tf.train.Scaffold(saver=tf.train.Saver([weight, step], max_to_keep=3))
        hook = tf.train.CheckpointSaverHook(folder, save_steps=2, scaffold=scaffold,
                                            checkpoint_basename='best', listeners=[listener])
        steps = 0
        with tf.train.SingularMonitoredSession(hooks=[hook], scaffold=scaffold) as sess:
            while not sess.should_stop() and steps < 5:
                steps = sess.run(train)
        print(steps, kept(folder))
        with tf.Session() as sess:
            scaffold.saver.restore(sess, tf.train.latest_checkpoint(folder))
            print(sess.run([weight, step]))
        for bad in (dict(saver=scaffold.saver, scaffold=scaffold, save_steps=1), dict(),
                    dict(save_steps=1, save_secs=1)):
            try:
                tf.train.CheckpointSaverHook(folder, **bad)
            except ValueError as error:
                print('refused:', str(error).split('.')[0])


def main():
    first, second, third, fourth = (os.path.join(tempfile.mkdtemp(), name) for name in 'abcd')
    os.makedirs(first)
    print(kept(first), tf.train.latest_checkpoint(first))
    by_hand(first)
    by_hand(first)
    monitored(first, 8, save_checkpoint_steps=1)
    monitored(second, 3)
    monitored(second, 5, save_checkpoint_secs=None, save_checkpoint_steps=2)
    monitored(second, 9, save_checkpoint_secs=None)
    hooked(third, Told())
    hooked(fourth, Told(4))


main()
