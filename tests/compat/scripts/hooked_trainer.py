"""A trainer made of hooks: warm start, best checkpoints, a crash, and an evaluator beside it."""
import os
import tempfile

import numpy as np
import tensorflow as tf

BATCH = 5
ROWS = 20


class Crash(Exception):
    """What a machine does."""


class EpochHook(tf.train.SessionRunHook):
    """Says what it sees of each epoch, and in which order it is called."""

    def __init__(self, loss, steps_per_epoch):
        self.loss, self.steps_per_epoch = loss, steps_per_epoch
        self.calls, self.losses = [], []

    def begin(self):
        self.step = tf.train.get_global_step()
        self.calls.append('begin')

    def after_create_session(self, session, coord):
        self.calls.append('created at %d' % session.run(self.step))
        self.threads = coord is not None and not coord.should_stop()

    def before_run(self, run_context):
        return tf.train.SessionRunArgs({'loss': self.loss, 'step': self.step})

    def after_run(self, run_context, run_values):
        self.losses.append(run_values.results['loss'])
        if len(self.losses) == self.steps_per_epoch:
            print('epoch loss %.4f' % np.mean(self.losses))
            self.losses = []

    def end(self, session):
        self.calls.append('end at %d' % session.run(self.step))


class CrashHook(tf.train.SessionRunHook):
    """Fails behind so many steps of this run."""

    def __init__(self, steps):
        self.left = steps

    def after_run(self, run_context, run_values):
        self.left -= 1
        if not self.left:
            raise Crash('the machine is gone')

    def end(self, session):
        print('not called after a crash')


class BestListener(tf.train.CheckpointSaverListener):
    """Keeps a copy of the best variables with a Saver of its own."""

    def __init__(self, folder, loss):
        self.folder, self.loss, self.best = folder, loss, None

    def begin(self):
        self.saver = tf.train.Saver(tf.trainable_variables(), max_to_keep=1)

    def after_save(self, session, global_step_value):
        loss = float(np.sum(session.run(self.loss)))
        if self.best is None or loss < self.best:
            self.best = loss
            path = self.saver.save(session, os.path.join(self.folder, 'best'),
                                   global_step=global_step_value, latest_filename='best_state')
            print('best', os.path.basename(path), '%.4f' % loss)


def inputs(epochs):
    """Rows of a table, in order; the batch is the same in each epoch."""
    table = np.arange(ROWS, dtype=np.float32) / ROWS
    x, y = tf.train.slice_input_producer([tf.constant(table), tf.constant(2 * table + 1)],
                                         num_epochs=epochs, shuffle=False)
    return tf.train.batch([x, y], BATCH)


def model(x, y):
    with tf.variable_scope('model'):
        weight = tf.get_variable('weight', [], initializer=tf.constant_initializer(0.0))
        bias = tf.get_variable('bias', [], initializer=tf.constant_initializer(0.0))
        error = weight * x + bias - y
        loss = tf.reduce_mean(tf.square(error), name='loss')
        slow = tf.get_variable('slow_weight', [], trainable=False,
                               initializer=tf.constant_initializer(0.0))
    step = tf.train.get_or_create_global_step()
    updates = [weight.assign_sub(0.1 * tf.reduce_mean(2 * error * x)),
               bias.assign_sub(0.1 * tf.reduce_mean(2 * error))]
    with tf.control_dependencies(updates):
        slowly = slow.assign(0.5 * slow + 0.5 * updates[0])
    with tf.control_dependencies([slowly]):
        train = tf.assign_add(step, 1)
    whole = tf.linspace(0.0, 1.0, 11)
    check = tf.square(weight * whole + bias - (2 * whole + 1))
    return loss, train, step, check, slow


def names_of(folder):
    state = tf.train.get_checkpoint_state(folder)
    return [os.path.basename(one) for one in state.all_model_checkpoint_paths]


def train(folder, last_step, crash_after=None, warm=None, epochs=None):
    with tf.Graph().as_default():
        loss, train_op, step, check, slow = model(*inputs(epochs))
        warm_saver = tf.train.Saver(tf.trainable_variables())

        def warm_start(scaffold, session):
            if warm is not None:
                warm_saver.restore(session, tf.train.latest_checkpoint(warm, 'best_state'))
                print('warm', session.run(step))

        scaffold = tf.train.Scaffold(init_fn=warm_start,
                                     saver=tf.train.Saver(max_to_keep=3, pad_step_number=True))
        seen = EpochHook(loss, ROWS // BATCH)
        hooks = [
            seen,
            tf.train.NanTensorHook(loss),
            tf.train.StopAtStepHook(last_step=last_step),
            tf.train.CheckpointSaverHook(folder, save_steps=4, scaffold=scaffold,
                                         listeners=[BestListener(folder, check)]),
            tf.train.FinalOpsHook({'step': step, 'slow': slow}),
        ]
        if crash_after:
            hooks.append(CrashHook(crash_after))
        try:
            with tf.train.MonitoredTrainingSession(
                    checkpoint_dir=folder, scaffold=scaffold, hooks=hooks,
                    save_checkpoint_secs=None, save_checkpoint_steps=None,
                    save_summaries_steps=None, save_summaries_secs=None,
                    log_step_count_steps=None) as sess:
                while not sess.should_stop():
                    sess.run(train_op)
            final = hooks[4].final_ops_values
            print('final', final['step'], '%.4f' % final['slow'])
        except Crash as error:
            print('crashed:', error)
        print(seen.calls, seen.threads, names_of(folder))


def evaluate(folder):
    """Beside the trainer: each checkpoint that there is, with a graph and a Saver of its own."""
    with tf.Graph().as_default():
        weight = tf.Variable(0.0, name='weight')
        bias = tf.Variable(0.0, name='bias')
        saver = tf.train.Saver({'model/weight': weight, 'model/bias': bias})
        truth = tf.square(weight - 2.0) + tf.square(bias - 1.0)
        last = tf.train.latest_checkpoint(folder)
        state = tf.train.get_checkpoint_state(folder)
        with tf.Session() as sess:
            distances = []
            for path in state.all_model_checkpoint_paths:
                saver.restore(sess, path)
                distances.append(float(sess.run(truth)))
            print('evaluated', os.path.basename(last), ['%.3f' % one for one in distances],
                  'nearer', distances == sorted(distances, reverse=True))
            missing = tf.train.Saver({'model/other': bias})
            try:
                missing.restore(sess, last)
            except tf.errors.NotFoundError:
                print('not found', '%.3f' % sess.run(bias))


def failing(folder):
    """A loss that is no number ends the loop, and what was saved stays."""
    with tf.Graph().as_default():
        step = tf.train.get_or_create_global_step()
        number = tf.assign_add(step, 1)
        loss = tf.where(number > 2, tf.constant(np.nan), tf.constant(1.0))
        for fails in (True, False):
            hooks = [tf.train.NanTensorHook(loss, fail_on_nan_loss=fails),
                     tf.train.CheckpointSaverHook(folder, save_steps=1)]
            try:
                with tf.train.SingularMonitoredSession(hooks=hooks, checkpoint_dir=folder) as sess:
                    while not sess.should_stop():
                        sess.run(number)
                print('ended')
            except tf.train.NanLossDuringTrainingError as error:
                print('NaN:', error)


def main():
    folder = tempfile.mkdtemp()
    first, second = os.path.join(folder, 'first'), os.path.join(folder, 'second')
    train(first, 30, crash_after=10)
    evaluate(first)
    train(first, 18)
    evaluate(first)
    train(second, 100, warm=first, epochs=2)
    failing(os.path.join(folder, 'nan'))


main()
