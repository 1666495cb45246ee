"""wavenet: a thread of the script's own puts audio into a padding queue."""
import fnmatch
import os
import re
import tempfile
import threading
import wave

import numpy as np
import tensorflow as tf

FILE_PATTERN = r'p([0-9]+)_([0-9]+)\.wav'


def get_category_cardinality(files):
    id_reg_expression = re.compile(FILE_PATTERN)
    min_id = None
    max_id = None
    for filename in files:
        matches = id_reg_expression.findall(filename)[0]
        id, _ = [int(id_) for id_ in matches]
        if min_id is None or id < min_id:
            min_id = id
        if max_id is None or id > max_id:
            max_id = id
    return min_id, max_id


def find_files(directory, pattern='*.wav'):
    '''Recursively finds all files matching the pattern.'''
    files = []
    for root, dirnames, filenames in os.walk(directory):
        for filename in fnmatch.filter(sorted(filenames), pattern):
            files.append(os.path.join(root, filename))
    return files


def load_generic_audio(directory, sample_rate):
    '''Generator that yields audio waveforms from the directory.'''
    files = find_files(directory)
    id_reg_exp = re.compile(FILE_PATTERN)
    for filename in files:
        ids = id_reg_exp.findall(filename)
        category_id = None if not ids else int(ids[0][0])
        with wave.open(filename, 'rb') as f:
            audio = np.frombuffer(f.readframes(f.getnframes()), np.int16)
        audio = audio.astype(np.float32).reshape(-1, 1) / 32768
        yield audio, filename, category_id


def trim_silence(audio, threshold):
    '''Removes silence at the beginning and end of a sample.'''
    indices = np.nonzero(np.abs(audio[:, 0]) > threshold)[0]
    return audio[indices[0]:indices[-1] + 1] if indices.size else audio[0:0]


class AudioReader(object):
    '''Generic background audio reader that preprocesses audio files
    and enqueues them into a TensorFlow queue.'''

    def __init__(self, audio_dir, coord, sample_rate, gc_enabled,
                 receptive_field, sample_size=None, silence_threshold=None,
                 queue_size=32):
        self.audio_dir = audio_dir
        self.sample_rate = sample_rate
        self.coord = coord
        self.sample_size = sample_size
        self.receptive_field = receptive_field
        self.silence_threshold = silence_threshold
        self.gc_enabled = gc_enabled
        self.threads = []
        self.sample_placeholder = tf.placeholder(dtype=tf.float32, shape=None)
        self.queue = tf.PaddingFIFOQueue(queue_size, ['float32'],
                                         shapes=[(None, 1)])
        self.enqueue = self.queue.enqueue([self.sample_placeholder])
        if self.gc_enabled:
            self.id_placeholder = tf.placeholder(dtype=tf.int32, shape=())
            self.gc_queue = tf.PaddingFIFOQueue(queue_size, ['int32'],
                                                shapes=[()])
            self.gc_enqueue = self.gc_queue.enqueue([self.id_placeholder])
        files = find_files(audio_dir)
        if not files:
            raise ValueError("No audio files found in '{}'.".format(audio_dir))
        if self.gc_enabled:
            _, self.gc_category_cardinality = get_category_cardinality(files)
            self.gc_category_cardinality += 1
            print("Detected --gc_cardinality={}".format(
                self.gc_category_cardinality))

    def dequeue(self, num_elements):
        return self.queue.dequeue_many(num_elements)

    def dequeue_gc(self, num_elements):
        return self.gc_queue.dequeue_many(num_elements)

    def thread_main(self, sess):
        stop = False
        while not stop:
            iterator = load_generic_audio(self.audio_dir, self.sample_rate)
            for audio, filename, category_id in iterator:
                if self.coord.should_stop():
                    stop = True
                    break
                if self.silence_threshold is not None:
                    audio = trim_silence(audio, self.silence_threshold)
                    if audio.size == 0:
                        continue
                audio = np.pad(audio, [[self.receptive_field, 0], [0, 0]],
                               'constant')
                while self.sample_size and len(audio) > self.receptive_field:
                    piece = audio[:(self.receptive_field +
                                    self.sample_size), :]
                    try:
                        sess.run(self.enqueue,
                                 feed_dict={self.sample_placeholder: piece})
                        if self.gc_enabled:
                            sess.run(self.gc_enqueue, feed_dict={
                                self.id_placeholder: category_id})
                    except tf.errors.CancelledError:
                        return
                    audio = audio[self.sample_size:, :]

    def start_threads(self, sess, n_threads=1):
        for _ in range(n_threads):
            thread = threading.Thread(target=self.thread_main, args=(sess,))
            thread.daemon = True
            thread.start()
            self.threads.append(thread)
        return self.threads


def write_audio(folder):
    rng = np.random.RandomState(4)
    for speaker, count in ((2, 50), (5, 33), (7, 80)):
        path = os.path.join(folder, 'p%d_001.wav' % speaker)
        with wave.open(path, 'wb') as f:
            f.setnchannels(1)
            f.setsampwidth(2)
            f.setframerate(8000)
            noise = rng.randint(-20000, 20000, count)
            noise[:5] = 0
            f.writeframes(noise.astype('<i2').tobytes())


def main():
    folder = tempfile.mkdtemp()
    write_audio(folder)
    coord = tf.train.Coordinator()
    with tf.name_scope('create_inputs'):
        reader = AudioReader(folder, coord, sample_rate=8000, gc_enabled=True,
                             receptive_field=4, sample_size=20,
                             silence_threshold=0.01, queue_size=4)
        audio_batch = reader.dequeue(2)
        gc_id_batch = reader.dequeue_gc(2)
    print(audio_batch.shape, gc_id_batch.shape)
    sess = tf.Session(config=tf.ConfigProto(log_device_placement=False))
    sess.run(tf.global_variables_initializer())
    threads = tf.train.start_queue_runners(sess=sess, coord=coord)
    reader.start_threads(sess)
    for step in range(5):
        audio, ids = sess.run([audio_batch, gc_id_batch])
        print('step %d' % step, audio.shape, ids.tolist(),
              '%.4f' % np.abs(audio).sum())
    coord.request_stop()
    sess.run(reader.queue.close(cancel_pending_enqueues=True))
    sess.run(reader.gc_queue.close(cancel_pending_enqueues=True))
    coord.join(threads + reader.threads)
    print('stopped:', coord.should_stop())


if __name__ == '__main__':
    main()
