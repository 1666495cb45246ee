"""tacotron: a feeder thread that sorts examples into batches of alike lengths."""
import threading

import numpy as np
import tensorflow as tf

_batches_per_group = 4
_pad = 0


class HParams(object):
    batch_size = 3
    outputs_per_step = 2
    num_mels = 2


class DataFeeder(threading.Thread):
    '''Feeds batches of data into a queue on a background thread.'''

    def __init__(self, coordinator, metadata, hparams):
        super(DataFeeder, self).__init__()
        self._coord = coordinator
        self._hparams = hparams
        self._offset = 0
        self._metadata = metadata
        hours = sum(int(x[1]) for x in self._metadata) * 0.0125 / 3600
        print('Loaded metadata for %d examples (%.4f hours)' % (
            len(self._metadata), hours))
        # Placeholders for inputs and targets.
        self._placeholders = [
            tf.placeholder(tf.int32, [None, None], 'inputs'),
            tf.placeholder(tf.int32, [None], 'input_lengths'),
            tf.placeholder(tf.float32, [None, None, hparams.num_mels],
                           'mel_targets'),
        ]
        # Create queue for buffering data:
        queue = tf.FIFOQueue(8, [tf.int32, tf.int32, tf.float32],
                             name='input_queue')
        self._enqueue_op = queue.enqueue(self._placeholders)
        self.inputs, self.input_lengths, self.mel_targets = queue.dequeue()
        self.inputs.set_shape(self._placeholders[0].shape)
        self.input_lengths.set_shape(self._placeholders[1].shape)
        self.mel_targets.set_shape(self._placeholders[2].shape)
        self.random = np.random.RandomState(6)

    def start_in_session(self, session):
        self._session = session
        self.start()

    def run(self):
        try:
            while not self._coord.should_stop():
                self._enqueue_next_group()
        except Exception as e:
            self._coord.request_stop(e)

    def _enqueue_next_group(self):
        # Read a group of examples:
        n = self._hparams.batch_size
        r = self._hparams.outputs_per_step
        examples = [self._get_next_example()
                    for i in range(n * _batches_per_group)]
        # Bucket examples based on similar output sequence length:
        examples.sort(key=lambda x: x[-1])
        batches = [examples[i:i + n] for i in range(0, len(examples), n)]
        self.random.shuffle(batches)
        for batch in batches:
            feed_dict = dict(zip(self._placeholders, _prepare_batch(batch, r)))
            self._session.run(self._enqueue_op, feed_dict=feed_dict)

    def _get_next_example(self):
        '''Loads a single example (input, mel_target, length).'''
        if self._offset >= len(self._metadata):
            self._offset = 0
            self.random.shuffle(self._metadata)
        meta = self._metadata[self._offset]
        self._offset += 1
        text, frames = meta
        input_data = np.asarray([ord(c) - 96 for c in text], dtype=np.int32)
        mel_target = np.full((frames, self._hparams.num_mels), len(text),
                             np.float32)
        return (input_data, mel_target, len(mel_target))


def _prepare_batch(batch, outputs_per_step):
    inputs = _prepare_inputs([x[0] for x in batch])
    input_lengths = np.asarray([len(x[0]) for x in batch], dtype=np.int32)
    mel_targets = _prepare_targets([x[1] for x in batch], outputs_per_step)
    return (inputs, input_lengths, mel_targets)


def _prepare_inputs(inputs):
    max_len = max((len(x) for x in inputs))
    return np.stack([_pad_input(x, max_len) for x in inputs])


def _prepare_targets(targets, alignment):
    max_len = max((len(t) for t in targets)) + 1
    return np.stack([_pad_target(t, _round_up(max_len, alignment))
                     for t in targets])


def _pad_input(x, length):
    return np.pad(x, (0, length - x.shape[0]), mode='constant',
                  constant_values=_pad)


def _pad_target(t, length):
    return np.pad(t, [(0, length - t.shape[0]), (0, 0)], mode='constant',
                  constant_values=_pad)


def _round_up(x, multiple):
    remainder = x % multiple
    return x if remainder == 0 else x + multiple - remainder


def main():
    words = ['abc', 'zebra', 'to', 'queue', 'of', 'training', 'x', 'steps',
             'hello', 'world']
    metadata = [(word, 3 + 2 * i) for i, word in enumerate(words)]
    coord = tf.train.Coordinator()
    with tf.variable_scope('datafeeder'):
        feeder = DataFeeder(coord, metadata, HParams())
    global_step = tf.Variable(0, name='global_step', trainable=False)
    loss = tf.reduce_mean(feeder.mel_targets)
    tf.summary.scalar('loss', loss)
    stats = tf.summary.merge_all()
    train_op = tf.assign_add(global_step, 1)
    print(feeder.inputs.shape, feeder.mel_targets.shape, stats is not None)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        feeder.start_in_session(sess)
        while not coord.should_stop():
            step, inputs, lengths, targets, value = sess.run(
                [train_op, feeder.inputs, feeder.input_lengths,
                 feeder.mel_targets, loss])
            print('Step %d' % step, inputs.tolist(), lengths.tolist(),
                  targets.shape, '%.4f' % value)
            if step == 9:
                coord.request_stop()
    try:
        coord.join([feeder], stop_grace_period_secs=10)
    except tf.errors.OpError as e:
        print('feeder ended:', type(e).__name__)
    except RuntimeError as e:
        print('feeder ended:', type(e).__name__)


if __name__ == '__main__':
    main()
