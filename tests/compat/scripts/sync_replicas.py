"""Synchronous replicas made by hand: gradients wait in a queue, and tokens let the workers go on."""
import collections
import os
import tempfile
import threading

import numpy as np
import tensorflow as tf

WORKERS = 4
NEEDED = 3  # gradients for a step: one worker may be late
STEPS = 6
RATE = 0.5


class SyncReplicas(object):
    """Collects gradients of the step that it is in, applies their mean, and hands out tokens."""

    def __init__(self, variables, global_step, needed, workers):
        self.needed, self.workers = needed, workers
        self.global_step = global_step
        self.variables = variables
        shapes = [[]] + [variable.get_shape().as_list() for variable in variables]
        types = [tf.int64] + [variable.dtype.base_dtype for variable in variables]
        self.gradients = tf.FIFOQueue(100, types, shapes, shared_name='gradients')
        self.tokens = tf.FIFOQueue(-1, tf.int64, shapes=[[]], shared_name='sync_token_q')
        self.local_step = tf.Variable(0, dtype=tf.int64, trainable=False, name='sync_rep_local_step',
                                      collections=[tf.GraphKeys.LOCAL_VARIABLES])
        self.stale = tf.Variable(0, trainable=False, name='stale')
        self.chief_queue_runner = None

    def push(self, step, gradients):
        """A worker gives its gradients, with the step that they are of."""
        return self.gradients.enqueue([step] + gradients)

    def token(self):
        """A worker waits until it may go on; the token says with which step."""
        return self.tokens.dequeue()

    def take_fresh(self):
        """The sums of so many gradients that are of this step; older ones are dropped."""
        zeros = [tf.zeros(variable.get_shape(), variable.dtype.base_dtype)
                 for variable in self.variables]

        def more(count, dropped, *sums):
            return count < self.needed

        def collect(count, dropped, *sums):
            element = self.gradients.dequeue()
            fresh = tf.equal(element[0], self.global_step)
            weight = tf.cast(fresh, tf.float32)
            sums = [total + weight * one for total, one in zip(sums, element[1:])]
            number = tf.cast(fresh, tf.int32)
            return [count + number, dropped + 1 - number] + sums

        found = tf.while_loop(more, collect, [tf.constant(0), tf.constant(0)] + zeros,
                              parallel_iterations=1)
        return found[1], found[2:]

    def apply(self):
        """The chief's step: one update, then a token for each worker."""
        dropped, sums = self.take_fresh()
        updates = [tf.assign_sub(variable, RATE * total / self.needed)
                   for variable, total in zip(self.variables, sums)]
        updates.append(tf.assign_add(self.stale, dropped))
        with tf.control_dependencies(updates):
            next_step = tf.assign_add(self.global_step, 1)
        with tf.control_dependencies([next_step]):
            step = tf.identity(next_step)
            sync_op = self.tokens.enqueue_many(tf.fill([self.workers], step))
        self.chief_queue_runner = tf.train.QueueRunner(self.tokens, [sync_op])
        return sync_op

    def init_tokens_op(self, number):
        step = tf.identity(self.global_step)
        return self.tokens.enqueue_many(tf.fill([number], step))


def build():
    weights = tf.get_variable('weights', [2], initializer=tf.ones_initializer())
    bias = tf.get_variable('bias', [], initializer=tf.zeros_initializer())
    step = tf.train.get_or_create_global_step()
    replicas = SyncReplicas([weights, bias], step, NEEDED, WORKERS)
    return weights, bias, step, replicas


def worker(sess, sv, number, token, push, feeds, done):
    """Waits for a token, and gives gradients that depend on the step alone."""
    step_feed, weights_feed, bias_feed = feeds
    with sv.stop_on_exception():
        while not sv.should_stop():
            try:
                step = sess.run(token)
            except (tf.errors.OutOfRangeError, tf.errors.CancelledError):
                break
            done[number].append(int(step))
            gradient = 1.0 / (step + 1)
            sess.run(push, {step_feed: step, weights_feed: [gradient, 2 * gradient],
                            bias_feed: gradient})


def in_threads(logdir):
    """Workers in threads; the chief updates in the main thread, until there are enough steps."""
    with tf.Graph().as_default():
        weights, bias, step, replicas = build()
        feeds = (tf.placeholder(tf.int64, []), tf.placeholder(tf.float32, [2]),
                 tf.placeholder(tf.float32, []))
        push = replicas.push(feeds[0], list(feeds[1:]))
        token = replicas.token()
        apply = replicas.apply()
        first = replicas.init_tokens_op(WORKERS)
        closing = [replicas.tokens.close(cancel_pending_enqueues=True),
                   replicas.gradients.close(cancel_pending_enqueues=True)]
        sv = tf.train.Supervisor(logdir=logdir, global_step=step, save_model_secs=0,
                                 save_summaries_secs=0)
        done = collections.defaultdict(list)
        with sv.managed_session() as sess:
            begun = sess.run(step)
            sess.run(first)
            threads = [
                threading.Thread(target=worker,
                                 args=(sess, sv, number, token, push, feeds, done))
                for number in range(WORKERS)
            ]
            for thread in threads:
                thread.start()
            for _ in range(STEPS):
                sess.run(apply)
                values = sess.run([step, weights, bias])
                print('step', values[0], [round(float(one), 4) for one in values[1]],
                      round(float(values[2]), 4))
            saved = sv.saver.save(sess, sv.save_path, global_step=step)
            print('saved', os.path.basename(saved))
            sv.request_stop()
            sess.run(closing)
            for thread in threads:
                thread.join()
        print('begun', begun, 'each in order',
              all(steps == sorted(steps) for steps in done.values()),
              'counted', sum(map(len, done.values())) >= STEPS * NEEDED)


def one_by_one():
    """The same queues without threads: a late gradient is dropped, tokens carry the step."""
    with tf.Graph().as_default():
        weights, bias, step, replicas = build()
        gradients = [tf.constant([1.0, 2.0]), tf.constant(3.0)]
        which = tf.placeholder(tf.int64, [])
        push = replicas.push(which, gradients)
        token = replicas.token()
        tokens = replicas.tokens.dequeue_many(WORKERS)
        replicas.apply()
        runner = replicas.chief_queue_runner
        first = replicas.init_tokens_op(2)
        waiting = replicas.tokens.size()
        with tf.Session() as sess:
            sess.run(tf.group(tf.global_variables_initializer(), tf.local_variables_initializer()))
            sess.run(first)
            print('tokens', sess.run(waiting), sess.run(token), sess.run(token))
            coord = tf.train.Coordinator()
            threads = runner.create_threads(sess, coord=coord, start=True)
            for given in (0, 0, 0, 0, 1, 0, 1, 1):
                sess.run(push, {which: given})
            print(sess.run(tokens).tolist(), sess.run(tokens).tolist())
            print(sess.run([step, replicas.stale, weights, bias]))
            sess.run(replicas.gradients.close())  # the end of what the runner waits for
            threads[0].join()
            coord.request_stop()
            coord.join(threads)
            print('left', sess.run(waiting), 'closed', sess.run(replicas.tokens.is_closed()))


def main():
    folder = os.path.join(tempfile.mkdtemp(), 'replicas')
    in_threads(folder)
    in_threads(folder)
    one_by_one()


main()
