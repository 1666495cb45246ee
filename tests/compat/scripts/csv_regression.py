"""CSV files: several readers, defaults, batches; a model trained in NumPy."""
import os
import tempfile

import numpy as np
import tensorflow as tf

COLUMNS = ['age', 'income', 'city', 'label']
DEFAULTS = [[30], [1.5], ['unknown'], [0]]
CITIES = [b'rome', b'paris', b'unknown']


def read_my_file_format(filename_queue):
    reader = tf.TextLineReader(skip_header_lines=1)
    key, record_string = reader.read(filename_queue)
    age, income, city, label = tf.decode_csv(record_string, DEFAULTS)
    features = tf.stack([tf.cast(age, tf.float32), income])
    city_id = tf.reduce_sum(
        tf.cast(tf.equal(city, CITIES), tf.int32) * tf.range(len(CITIES)))
    return key, features, city_id, label


def input_pipeline(filenames, batch_size, num_epochs=None, read_threads=1):
    filename_queue = tf.train.string_input_producer(
        filenames, num_epochs=num_epochs, shuffle=False)
    example_list = [read_my_file_format(filename_queue)
                    for _ in range(read_threads)]
    min_after_dequeue = 8
    capacity = min_after_dequeue + 3 * batch_size
    return tf.train.shuffle_batch_join(
        example_list, batch_size=batch_size, capacity=capacity,
        min_after_dequeue=min_after_dequeue, seed=13,
        allow_smaller_final_batch=True)


def batches_of_lines(filenames):
    """The same files, decoded many lines at once."""
    filename_queue = tf.train.string_input_producer(
        filenames, num_epochs=1, shuffle=False)
    reader = tf.TextLineReader(skip_header_lines=1)
    _, lines = reader.read_up_to(filename_queue, 5)
    columns = tf.decode_csv(lines, DEFAULTS)
    return dict(zip(COLUMNS, columns))


def write_files(folder):
    rng = np.random.RandomState(9)
    names = []
    for part in range(3):
        path = os.path.join(folder, 'part%d.csv' % part)
        with open(path, 'w') as f:
            f.write(','.join(COLUMNS) + '\n')
            for i in range(7):
                age = '' if i == 3 else str(rng.randint(18, 70))
                income = '%.2f' % rng.uniform(0, 9)
                city = ['rome', '"paris"', ''][rng.randint(3)]
                f.write('%s,%s,%s,%d\n' % (age, income, city, i % 2))
        names.append(path)
    return names


def train_step(weights, features, labels):
    scaled = np.concatenate(
        [features / [70.0, 9.0], np.ones((len(features), 1))], axis=1)
    chance = 1 / (1 + np.exp(-scaled @ weights))
    return weights - 0.5 * scaled.T @ (chance - labels) / len(labels)


def main():
    folder = tempfile.mkdtemp()
    names = write_files(folder)
    with tf.Graph().as_default():
        key, features, city, label = input_pipeline(names, 6, num_epochs=2)
        print(features.shape, city.shape, label.dtype.name)
        weights = np.zeros(3)
        count = 0
        seen = []
        with tf.Session() as sess:
            sess.run([tf.global_variables_initializer(),
                      tf.local_variables_initializer()])
            coord = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(coord=coord)
            try:
                while not coord.should_stop():
                    k, x, c, y = sess.run([key, features, city, label])
                    weights = train_step(weights, x, y)
                    count += len(y)
                    seen.extend(zip([os.path.basename(one).decode()
                                     for one in k], c.tolist(), y.tolist(),
                                    x.sum(1).round(2).tolist()))
            except tf.errors.OutOfRangeError:
                print('Done training, epoch reached:', count)
            finally:
                coord.request_stop()
            coord.join(threads)
        for row in sorted(seen)[::5]:
            print(row[0], row[1], row[2], '%.2f' % row[3])
        print('a model of', weights.shape[0], 'weights')
    with tf.Graph().as_default():
        columns = batches_of_lines(names)
        with tf.Session() as sess:
            sess.run(tf.local_variables_initializer())
            coord = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(sess, coord)
            try:
                while True:
                    got = sess.run(columns)
                    print(got['age'].tolist(), '%.2f' % got['income'].sum(),
                          [one.decode() for one in got['city']])
            except tf.errors.OutOfRangeError as e:
                print('closed' in str(e))
            coord.request_stop()
            coord.join(threads)


if __name__ == '__main__':
    main()
