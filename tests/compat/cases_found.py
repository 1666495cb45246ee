"""Cases that random programs beside TensorFlow have found: each was otherwise there, once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.compat.recorded import Report, full_outcome, unnamed


def reports(tf: Any, *makers: Callable[[], Any]) -> list[Report]:
    """What each of some expressions gives when a session runs it, or how it is refused."""

    def value(make: Callable[[], Any]) -> Any:
        with tf.Session() as sess:
            return sess.run(make())

    return [full_outcome(value, make) for make in makers]


@unnamed
def text_that_was_found(tf: Any) -> Any:
    letters = [["a", "b"], ["c", "d"]]
    return [
        *reports(
            tf, *(lambda axis=axis: tf.reduce_join(letters, axis) for axis in ([0, 1], [1, 0]))
        ),
        *reports(tf, lambda: tf.reduce_join(letters, None), lambda: tf.reduce_join(letters, -1)),
        *reports(
            tf,
            *(
                lambda marks=marks: tf.string_split(["", "a,"], marks, skip_empty=False).indices
                for marks in (",", ", ")
            ),
            lambda: tf.decode_csv('"a",1,b"', [[""]], select_cols=[0]),
            lambda: tf.decode_csv('"a",b",1', [[""]], select_cols=[2]),
        ),
    ]


@unnamed
def sparse_that_was_found(tf: Any) -> Any:
    given = tf.SparseTensor([[0, 1], [1, 0]], [5, 6], [2, 2])
    beyond = tf.SparseTensor([[3, 0], [1, 2]], [1, 2], [3, 4])
    none = tf.SparseTensor(np.zeros((0, 2), np.int64), np.zeros(0, np.int32), [0, 4])
    wrong = (*([[0, 1], [0, 0], [2, 0]], [[0, 1], [2, 0], [0, 0]], [[0, 1], [0, 1], [2, 0]]),)

    def fed(indices: Any) -> Any:
        return tf.SparseTensor(
            tf.placeholder_with_default(np.array(indices, np.int64), [None, 2]),
            tf.placeholder_with_default(np.array([1.5, 2.5], np.float32), [None]),
            tf.placeholder_with_default(np.array([3, 2], np.int64), [2]),
        )

    unordered = ([[0, 1], [3, 0]], [[1, 1], [0, 0]], [[0, 0], [0, 0]])
    out = tf.cast(tf.SparseTensor([[2, 0]], [4], [2, 1]), tf.int64)
    return [
        *(tf.sparse_reshape(given, one).get_shape() for one in ([1, -1],)),
        *reports(
            tf,
            *(
                lambda shape=shape: tf.sparse_reshape(given, shape)
                for shape in ([1, -1], [-1, -1], [4, -1])
            ),
            lambda: tf.sparse_reshape(beyond, [4, 3]),
            lambda: tf.sparse_reshape(none, [2, 0, 3]),
            *(
                lambda one=one: tf.sparse_tensor_to_dense(tf.SparseTensor(one, [1, 2, 3], [2, 2]))
                for one in wrong
            ),
            *(lambda one=one: tf.serialize_many_sparse(fed(one)) for one in unordered),
            lambda: tf.sparse_to_indicator(out, 20),
            lambda: tf.sparse_tensor_to_dense(out, validate_indices=False),
        ),
    ]


@unnamed
def names_that_were_found(tf: Any) -> Any:
    few, many = (tf.placeholder_with_default([True] * count, None) for count in (3, 7))
    x, image = tf.constant([1.0, 2.0]), tf.zeros([2, 2, 3], tf.uint8)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1]), -1)
    made = [
        *(tf.logical_xor(few, many), tf.logical_and(few, few), tf.logical_and([True], True)),
        *(np.ones(2) - x, np.float64(2.5) * x, np.ones(2) < x, np.ones(2) >= x),
        *(tf.pad([1], [[1, 0]]), tf.pad([1], [[1, 0]], constant_values=7)),
        *(tf.regex_replace(["ab"], "a", "b"), tf.regex_replace(["ab"], tf.constant("a"), "b")),
        tf.image.convert_image_dtype(image, tf.uint8),
        *(tf.floor_div(7, 2), tf.floordiv(7, 2), tf.realdiv(1.5, 2.0)),
    ]
    return [*(one.op.name for one in made), table.initializer.name]


@unnamed
def assertions_that_were_found(tf: Any) -> Any:
    data, no = tf.constant([[1, 2], [3, 4], [5, 6]]), tf.constant(False)
    return reports(
        tf, lambda: tf.Assert(no, [data], summarize=3), lambda: tf.Assert(no, [data], summarize=4)
    )


@unnamed
def tables_that_were_found(tf: Any) -> Any:
    lookup = tf.lookup
    table = lookup.StaticHashTable(lookup.KeyValueTensorInitializer(["a"], [1]), -1)
    source = lookup.KeyValueTensorInitializer(["a"], [0], tf.string, tf.int64)
    words, sizes = lookup.StaticVocabularyTable(source, 3), []
    with tf.Session() as sess:
        for _ in range(2):
            sizes += [sess.run([table.size(), words.size()])]
            sess.run(tf.tables_initializer())
    return sizes


@unnamed
def shapes_that_were_found(tf: Any) -> Any:
    x, choice = tf.placeholder(tf.int64, [None, 3, 0]), tf.constant([[True] * 3] * 2)
    y = tf.placeholder_with_default(np.ones([2, 3]), [None, 3])
    sizes, count, any_shape = (tf.placeholder(tf.int32, one) for one in ([3], [], None))
    slices = tf.placeholder_with_default(np.ones(3, np.float32), [None])
    pad = tf.image.resize_image_with_pad
    feature = {"s": tf.SparseFeature("places", "values", tf.float32, 400)}
    return [
        *(tf.where(one, y, y).shape for one in (choice, choice[:, 0])),
        *(tf.tile(x, [0, 2, 5]).shape, tf.tile(x, sizes).shape, tf.tile(any_shape, [3, 0]).shape),
        *(tf.tile(any_shape, []).shape, tf.tile(count, any_shape).shape),
        tf.tile(any_shape, any_shape).shape,
        *(full_outcome(lambda: pad(tf.zeros([3, 8, 3]), 8, 2)),),
        pad(tf.zeros([3, 8, 3]), tf.constant(2), tf.constant(9)).shape,
        tf.parse_single_example(b"", feature)["s"].get_shape(),
        *reports(tf, lambda: tf.scatter_nd([[9], [0], [7]], slices, [5])),
    ]


@unnamed
def files_that_were_found(tf: Any) -> Any:
    Path("a").write_text("one")
    Path("b").mkdir()
    calls: list[Callable[[], Any]] = [
        *(lambda: tf.gfile.DeleteRecursively("none"), lambda: tf.gfile.Copy("a", "b", True)),
        lambda: tf.gfile.Copy("none", "b", True),
        lambda: tf.train.input_producer(5, num_epochs=-1),
    ]
    return [full_outcome(one) for one in calls]


@unnamed
def shuffled_queues(tf: Any) -> Any:
    """The same seeds, the same order: of queues, producers and batches."""

    def of_queue(graph_seed: int | None, seed: int | None, **options: Any) -> Any:
        with tf.Graph().as_default(), tf.Session() as sess:
            if graph_seed is not None:
                tf.set_random_seed(graph_seed)
            queue = tf.RandomShuffleQueue(100, 2, tf.int32, (), seed=seed, **options)
            one = queue.dequeue()
            sess.run(queue.enqueue_many([np.arange(8)]))
            found = [sess.run(one) for _ in range(3)]
            sess.run(queue.enqueue_many([np.arange(8, 12)]))
            found += [*sess.run(queue.dequeue_many(4)), sess.run(one), sess.run(one)]
            sess.run(queue.close())
            return [int(number) for number in [*found, *sess.run(queue.dequeue_up_to(9))]]

    def of_runner(make: Callable[[], Any], graph_seed: int | None = None) -> Any:
        with tf.Graph().as_default(), tf.Session() as sess:
            tf.set_random_seed(graph_seed)
            made, coord, found = make(), tf.train.Coordinator(), []
            sess.run(tf.local_variables_initializer())
            threads = tf.train.start_queue_runners(sess, coord)
            try:
                while True:
                    found.append(sess.run(made))
            except tf.errors.OutOfRangeError:
                coord.request_stop()
                coord.join(threads)
            return found

    def batches() -> Any:
        rows = np.arange(20, dtype=np.int64)
        source = tf.train.input_producer(rows, num_epochs=1, shuffle=False)
        return tf.train.shuffle_batch([source.dequeue_many(20)], 4, 40, 6, 1, 5, True)

    def strings(count: int, seed: int) -> Any:
        names = list("abcdefghi"[:count])
        return tf.train.string_input_producer(names, num_epochs=3, seed=seed).dequeue()

    most, train = 2**31 - 1, tf.train
    seeds = ((None, 1), (None, 7), (5, 3), (5, 0), (0, 0), (most, 2**31), (None, -3))
    rows = [np.arange(6), np.arange(12).reshape(6, 2)]
    return [
        *(of_queue(*one) for one in seeds),
        of_queue(11, None, shared_name="abc"),
        *(
            of_runner(partial(strings, n, seed))
            for n, seed in ((1, 1), (2, 1), (2, 7), (5, 1), (5, 7), (9, 1), (9, 7))
        ),
        of_runner(lambda: train.range_input_producer(6, num_epochs=2, seed=3).dequeue(), 11),
        of_runner(lambda: train.slice_input_producer(rows, num_epochs=2, seed=3)),
        of_runner(batches),
    ]
