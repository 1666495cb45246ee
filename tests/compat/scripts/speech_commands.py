"""Speech commands: WAV files, shifted in time and mixed with background noise."""
import hashlib
import math
import os
import random
import re
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_audio_ops as contrib_audio
from tensorflow.python.ops import io_ops
from tensorflow.python.platform import gfile
from tensorflow.python.util import compat

MAX_NUM_WAVS_PER_CLASS = 2**27 - 1
SILENCE_LABEL = '_silence_'
SILENCE_INDEX = 0
UNKNOWN_WORD_LABEL = '_unknown_'
UNKNOWN_WORD_INDEX = 1
BACKGROUND_NOISE_DIR_NAME = '_background_noise_'
RANDOM_SEED = 59185


def prepare_words_list(wanted_words):
  return [SILENCE_LABEL, UNKNOWN_WORD_LABEL] + wanted_words


def which_set(filename, validation_percentage, testing_percentage):
  base_name = os.path.basename(filename)
  hash_name = re.sub(r'_nohash_.*$', '', base_name)
  hash_name_hashed = hashlib.sha1(compat.as_bytes(hash_name)).hexdigest()
  percentage_hash = ((int(hash_name_hashed, 16) %
                      (MAX_NUM_WAVS_PER_CLASS + 1)) *
                     (100.0 / MAX_NUM_WAVS_PER_CLASS))
  if percentage_hash < validation_percentage:
    return 'validation'
  if percentage_hash < (testing_percentage + validation_percentage):
    return 'testing'
  return 'training'


def load_wav_file(filename):
  with tf.Session(graph=tf.Graph()) as sess:
    wav_filename_placeholder = tf.placeholder(tf.string, [])
    wav_loader = io_ops.read_file(wav_filename_placeholder)
    wav_decoder = contrib_audio.decode_wav(wav_loader, desired_channels=1)
    return sess.run(
        wav_decoder,
        feed_dict={wav_filename_placeholder: filename}).audio.flatten()


def save_wav_file(filename, wav_data, sample_rate):
  with tf.Session(graph=tf.Graph()) as sess:
    wav_filename_placeholder = tf.placeholder(tf.string, [])
    sample_rate_placeholder = tf.placeholder(tf.int32, [])
    wav_data_placeholder = tf.placeholder(tf.float32, [None, 1])
    wav_encoder = contrib_audio.encode_wav(wav_data_placeholder,
                                           sample_rate_placeholder)
    wav_saver = io_ops.write_file(wav_filename_placeholder, wav_encoder)
    sess.run(
        wav_saver,
        feed_dict={
            wav_filename_placeholder: filename,
            sample_rate_placeholder: sample_rate,
            wav_data_placeholder: np.reshape(wav_data, (-1, 1))
        })


class AudioProcessor(object):

  def __init__(self, data_dir, unknown_percentage, wanted_words,
               desired_samples):
    self.data_dir = data_dir
    self.desired_samples = desired_samples
    self.prepare_data_index(unknown_percentage, wanted_words)
    self.prepare_background_data()
    self.prepare_processing_graph()

  def prepare_data_index(self, unknown_percentage, wanted_words):
    random.seed(RANDOM_SEED)
    wanted_words_index = {}
    for index, wanted_word in enumerate(wanted_words):
      wanted_words_index[wanted_word] = index + 2
    self.data_index = {'validation': [], 'testing': [], 'training': []}
    unknown_index = {'validation': [], 'testing': [], 'training': []}
    all_words = {}
    search_path = os.path.join(self.data_dir, '*', '*.wav')
    for wav_path in sorted(gfile.Glob(search_path)):
      _, word = os.path.split(os.path.dirname(wav_path))
      word = word.lower()
      if word == BACKGROUND_NOISE_DIR_NAME:
        continue
      all_words[word] = True
      set_index = which_set(wav_path, 20, 20)
      if word in wanted_words_index:
        self.data_index[set_index].append({'label': word, 'file': wav_path})
      else:
        unknown_index[set_index].append({'label': word, 'file': wav_path})
    if not all_words:
      raise Exception('No .wavs found at ' + search_path)
    silence_wav_path = self.data_index['training'][0]['file']
    for set_index in ['validation', 'testing', 'training']:
      set_size = len(self.data_index[set_index])
      self.data_index[set_index].append(
          {'label': SILENCE_LABEL, 'file': silence_wav_path})
      unknown_size = int(math.ceil(set_size * unknown_percentage / 100))
      self.data_index[set_index].extend(
          unknown_index[set_index][:unknown_size])
    self.words_list = prepare_words_list(wanted_words)
    self.word_to_index = {}
    for word in all_words:
      self.word_to_index[word] = wanted_words_index.get(
          word, UNKNOWN_WORD_INDEX)
    self.word_to_index[SILENCE_LABEL] = SILENCE_INDEX

  def prepare_background_data(self):
    self.background_data = []
    background_dir = os.path.join(self.data_dir, BACKGROUND_NOISE_DIR_NAME)
    if not gfile.Exists(background_dir):
      return
    with tf.Session(graph=tf.Graph()) as sess:
      wav_filename_placeholder = tf.placeholder(tf.string, [])
      wav_loader = io_ops.read_file(wav_filename_placeholder)
      wav_decoder = contrib_audio.decode_wav(wav_loader, desired_channels=1)
      for wav_path in sorted(gfile.Glob(os.path.join(background_dir, '*.wav'))):
        wav_data = sess.run(
            wav_decoder,
            feed_dict={wav_filename_placeholder: wav_path}).audio.flatten()
        self.background_data.append(wav_data)

  def prepare_processing_graph(self):
    self.wav_filename_placeholder_ = tf.placeholder(
        tf.string, [], name='wav_filename')
    wav_loader = io_ops.read_file(self.wav_filename_placeholder_)
    wav_decoder = contrib_audio.decode_wav(
        wav_loader, desired_channels=1, desired_samples=self.desired_samples)
    self.foreground_volume_placeholder_ = tf.placeholder(
        tf.float32, [], name='foreground_volume')
    scaled_foreground = tf.multiply(wav_decoder.audio,
                                    self.foreground_volume_placeholder_)
    self.time_shift_padding_placeholder_ = tf.placeholder(
        tf.int32, [2, 2], name='time_shift_padding')
    self.time_shift_offset_placeholder_ = tf.placeholder(
        tf.int32, [2], name='time_shift_offset')
    padded_foreground = tf.pad(
        scaled_foreground, self.time_shift_padding_placeholder_,
        mode='CONSTANT')
    sliced_foreground = tf.slice(padded_foreground,
                                 self.time_shift_offset_placeholder_,
                                 [self.desired_samples, -1])
    self.background_data_placeholder_ = tf.placeholder(
        tf.float32, [self.desired_samples, 1], name='background_data')
    self.background_volume_placeholder_ = tf.placeholder(
        tf.float32, [], name='background_volume')
    background_mul = tf.multiply(self.background_data_placeholder_,
                                 self.background_volume_placeholder_)
    background_add = tf.add(background_mul, sliced_foreground)
    self.output_ = tf.clip_by_value(background_add, -1.0, 1.0)

  def get_data(self, background_frequency, background_volume_range,
               time_shift, mode, sess):
    candidates = self.data_index[mode]
    data = np.zeros((len(candidates), self.desired_samples))
    labels = np.zeros(len(candidates))
    rng = np.random.RandomState(3)
    for i, sample in enumerate(candidates):
      time_shift_amount = rng.randint(-time_shift, time_shift)
      if time_shift_amount > 0:
        time_shift_padding = [[time_shift_amount, 0], [0, 0]]
        time_shift_offset = [0, 0]
      else:
        time_shift_padding = [[0, -time_shift_amount], [0, 0]]
        time_shift_offset = [-time_shift_amount, 0]
      input_dict = {
          self.wav_filename_placeholder_: sample['file'],
          self.time_shift_padding_placeholder_: time_shift_padding,
          self.time_shift_offset_placeholder_: time_shift_offset,
      }
      background_index = rng.randint(len(self.background_data))
      background_samples = self.background_data[background_index]
      background_offset = rng.randint(
          0, len(background_samples) - self.desired_samples)
      background_clipped = background_samples[background_offset:(
          background_offset + self.desired_samples)]
      background_volume = 0
      if rng.uniform(0, 1) < background_frequency:
        background_volume = rng.uniform(0, background_volume_range)
      input_dict[self.background_data_placeholder_] = (
          background_clipped.reshape([self.desired_samples, 1]))
      input_dict[self.background_volume_placeholder_] = background_volume
      input_dict[self.foreground_volume_placeholder_] = (
          0 if sample['label'] == SILENCE_LABEL else 1)
      data[i, :] = sess.run(self.output_, feed_dict=input_dict).flatten()
      labels[i] = self.word_to_index[sample['label']]
    return data, labels


def main():
  folder = tempfile.mkdtemp()
  rng = np.random.RandomState(0)
  for word, count in (('yes', 6), ('no', 5), ('cat', 4)):
    os.makedirs(os.path.join(folder, word))
    for i in range(count):
      path = os.path.join(folder, word, 'p%d_nohash_%d.wav' % (i, i % 2))
      save_wav_file(path, rng.uniform(-1.1, 1.1, 90 + 3 * i), 16000)
  os.makedirs(os.path.join(folder, BACKGROUND_NOISE_DIR_NAME))
  noise = os.path.join(folder, BACKGROUND_NOISE_DIR_NAME, 'hum.wav')
  save_wav_file(noise, rng.normal(0, 0.3, 400), 16000)
  print('%.5f' % np.abs(load_wav_file(noise)).mean())
  with tf.Session(graph=tf.Graph()) as sess:
    processor = AudioProcessor(folder, 50.0, ['yes', 'no'], 100)
    print(processor.words_list, [len(one) for one in
                                 processor.data_index.values()])
    for mode in ('training', 'validation', 'testing'):
      data, labels = processor.get_data(0.8, 0.1, 20, mode, sess)
      print(mode, labels.tolist(), data.shape,
            ['%.5f' % one for one in np.abs(data).sum(axis=1)])


if __name__ == '__main__':
  main()
