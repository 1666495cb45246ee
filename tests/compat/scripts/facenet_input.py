"""facenet: slices of names and labels, several readers, batch_join of pictures."""
import os
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import data_flow_ops
from tensorflow.python.training import queue_runner  # noqa: F401

IMAGE_SIZE = 12


class ImageClass():
    "Stores the paths to images for a given class"
    def __init__(self, name, image_paths):
        self.name = name
        self.image_paths = image_paths

    def __str__(self):
        return self.name + ', ' + str(len(self.image_paths)) + ' images'

    def __len__(self):
        return len(self.image_paths)


def get_dataset(paths):
    dataset = []
    for path in paths.split(':'):
        path_exp = os.path.expanduser(path)
        classes = sorted(os.listdir(path_exp))
        for class_name in classes:
            facedir = os.path.join(path_exp, class_name)
            if os.path.isdir(facedir):
                image_paths = [os.path.join(facedir, img)
                               for img in sorted(os.listdir(facedir))]
                dataset.append(ImageClass(class_name, image_paths))
    return dataset


def get_image_paths_and_labels(dataset):
    image_paths_flat = []
    labels_flat = []
    for i in range(len(dataset)):
        image_paths_flat += dataset[i].image_paths
        labels_flat += [i] * len(dataset[i].image_paths)
    return image_paths_flat, labels_flat


def read_images_from_disk(input_queue):
    label = input_queue[1]
    file_contents = tf.read_file(input_queue[0])
    example = tf.image.decode_image(file_contents, channels=3)
    return example, label


def create_input_pipeline(image_list, label_list, batch_size, nrof_threads):
    images = ops.convert_to_tensor(image_list, dtype=tf.string)
    labels = ops.convert_to_tensor(label_list, dtype=tf.int32)
    input_queue = tf.train.slice_input_producer([images, labels],
                                                num_epochs=1, shuffle=False)
    images_and_labels = []
    for _ in range(nrof_threads):
        image, label = read_images_from_disk(input_queue)
        image.set_shape([None, None, 3])
        image = tf.image.resize_image_with_crop_or_pad(image, IMAGE_SIZE,
                                                       IMAGE_SIZE)
        image.set_shape((IMAGE_SIZE, IMAGE_SIZE, 3))
        image = tf.image.per_image_standardization(image)
        images_and_labels.append([image, label])
    return tf.train.batch_join(images_and_labels, batch_size=batch_size,
                               capacity=4 * nrof_threads * batch_size,
                               allow_smaller_final_batch=True)


def feed_by_hand(image_list, label_list):
    """The later version: a queue of rows that an epoch is put into."""
    image_paths_placeholder = tf.placeholder(tf.string, shape=(None, 3),
                                             name='image_paths')
    labels_placeholder = tf.placeholder(tf.int64, shape=(None, 3), name='labels')
    input_queue = data_flow_ops.FIFOQueue(capacity=100000,
                                          dtypes=[tf.string, tf.int64],
                                          shapes=[(3,), (3,)],
                                          shared_name=None, name=None)
    enqueue_op = input_queue.enqueue_many(
        [image_paths_placeholder, labels_placeholder])
    filenames, label = input_queue.dequeue()
    images = []
    for filename in tf.unstack(filenames):
        file_contents = tf.read_file(filename)
        image = tf.image.decode_png(file_contents, channels=3)
        image = tf.image.crop_to_bounding_box(image, 1, 1, 8, 8)
        images.append(tf.cast(image, tf.float32))
    image_batch, labels_batch = tf.train.batch_join(
        [[images, label]], batch_size=3, shapes=[(8, 8, 3), ()],
        enqueue_many=True, capacity=12, allow_smaller_final_batch=True)
    with tf.Session() as sess:
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(coord=coord, sess=sess)
        paths = np.reshape(np.array(image_list[:6]), (-1, 3))
        numbers = np.reshape(np.array(label_list[:6]), (-1, 3))
        sess.run(enqueue_op, {image_paths_placeholder: paths,
                              labels_placeholder: numbers})
        for _ in range(2):
            emb, lab = sess.run([image_batch, labels_batch])
            print(emb.shape, lab.tolist(), int(emb.sum()))
        coord.request_stop()
        sess.run(input_queue.close())
        coord.join(threads)


def write_faces(folder):
    rng = np.random.RandomState(2)
    with tf.Graph().as_default(), tf.Session() as sess:
        pixels = tf.placeholder(tf.uint8, [None, None, 3])
        encoded = tf.image.encode_png(pixels)
        for name, count in (('ada', 3), ('bob', 4), ('eve', 2)):
            os.makedirs(os.path.join(folder, name))
            for i in range(count):
                size = (rng.randint(10, 15), rng.randint(10, 15), 3)
                picture = rng.randint(0, 256, size).astype(np.uint8)
                path = os.path.join(folder, name, '%s_%04d.png' % (name, i))
                with open(path, 'wb') as f:
                    f.write(sess.run(encoded, {pixels: picture}))


if __name__ == '__main__':
    folder = tempfile.mkdtemp()
    write_faces(folder)
    train_set = get_dataset(folder)
    print([str(one) for one in train_set])
    image_list, label_list = get_image_paths_and_labels(train_set)
    with tf.Graph().as_default():
        batch = create_input_pipeline(image_list, label_list, 4, 1)
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            sess.run(tf.local_variables_initializer())
            coord = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(coord=coord, sess=sess)
            try:
                while not coord.should_stop():
                    faces, labels = sess.run(batch)
                    print(labels.tolist(), '%.4f' % np.abs(faces).mean())
            except tf.errors.OutOfRangeError:
                print('epoch done')
            finally:
                coord.request_stop()
            coord.join(threads)
    with tf.Graph().as_default():
        feed_by_hand(image_list, label_list)
