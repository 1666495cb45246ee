"""Cases of ``tf.data``: sources, stages, iterators, and what is refused."""

from __future__ import annotations

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.compat.recorded import Report, full_outcome, outcome, unnamed

MOST = 40
"""So many elements are asked for at most."""


def rows(tf: Any, dataset: Any, most: int = MOST) -> Report:
    """All elements of a dataset, or those before it fails."""
    with tf.Session() as sess:
        following = dataset.make_one_shot_iterator().get_next()
        return full_outcome(lambda: drained(tf, sess, following, most))


def drained(tf: Any, sess: Any, following: Any, most: int = MOST) -> list[Any]:
    found: list[Any] = []
    while len(found) < most:
        try:
            found.append(sess.run(following))
        except tf.errors.OutOfRangeError:
            return [*found, "the end"]
        except tf.OpError as error:
            return [*found, type(error).__name__]
    return found


@unnamed
def slices(tf: Any) -> Any:
    dataset = tf.data.Dataset
    pair = collections.namedtuple("pair", ["x", "y"])
    made = [
        dataset.from_tensor_slices({"a": [1, 2], "b": ([1.0, 2.0], ["x", "y"])}),
        dataset.from_tensor_slices(np.arange(6).reshape(3, 2)).repeat(2),
        dataset.from_tensor_slices(pair([1, 2], [3, 4])),
        dataset.from_tensors([1, 2]),
        dataset.from_tensors(([1], {"b": "x"})),
    ]
    wrong = (3, ([1, 2], [1, 2, 3]))
    return [
        *(str(tf.data.get_output_types(one)) for one in made[:2]),
        *(str(tf.data.get_output_shapes(one)) for one in made[:2]),
        *(rows(tf, one) for one in made),
        *(outcome(dataset.from_tensor_slices, one) for one in wrong),
    ]


@unnamed
def ranges(tf: Any) -> Any:
    arguments = ((3,), (2, 5), (5, 0, -2), (0,))
    numbers = [tf.data.Dataset.range(*one) for one in arguments]
    return [*(rows(tf, one) for one in numbers), outcome(tf.data.Dataset.range)]


@unnamed
def generators(tf: Any) -> Any:
    def generate(limit: Any) -> Any:
        for number in range(limit):
            yield number, [str(number)] * number

    of = tf.data.Dataset.from_generator
    made = of(generate, (tf.int32, tf.string), ([], [None]), args=[tf.constant(3)])
    return [
        *(str(tf.data.get_output_shapes(made)), rows(tf, made.repeat(2))),
        *(rows(tf, of(lambda one=one: iter([1, one, 3]), tf.int32, [])) for one in ("a", [1, 2])),
        rows(tf, of(lambda: iter([(1, 2, 3)]), (tf.int32, tf.int32)), 2),
        outcome(lambda: of([1], tf.int32)),
    ]


@unnamed
def mapped(tf: Any) -> Any:
    def check(number: Any) -> Any:
        if number == 1:
            raise ValueError("a broken one")
        return number

    dataset, numbers = tf.data.Dataset, tf.data.Dataset.range(3)
    pairs = dataset.from_tensor_slices(([1, 2, 3], [4, 5, 6]))
    random = dataset.range(5).map(lambda x: tf.random_uniform([], seed=1))
    total = pairs.map(lambda x, y: {"sum": x + y, "pair": (x, tf.multiply(y, 2))})
    factor = tf.placeholder(tf.int64, [])
    iterator = numbers.map(lambda x: x * factor).make_initializable_iterator()
    following = iterator.get_next()
    with tf.Session() as sess:
        sess.run(iterator.initializer, {factor: 10})
        scaled = drained(tf, sess, following)
        drawn = drained(tf, sess, random.make_one_shot_iterator().get_next())
    return [
        *(str(tf.data.get_output_types(total)), rows(tf, total), scaled, len({*drawn})),
        rows(tf, numbers.map(lambda x: tf.py_func(check, [x], tf.int64)), 3),
        *(rows(tf, dataset.range(6).filter(lambda x: tf.equal(x % 2, 0))),),
        *(outcome(lambda: numbers.filter(lambda x: x)),),
    ]


@unnamed
def batched(tf: Any) -> Any:
    dataset = tf.data.Dataset
    made = [
        *(dataset.range(5).batch(2), dataset.range(5).batch(2, drop_remainder=True)),
        dataset.from_tensor_slices(["a", "b"]).batch(2),
    ]
    ragged = dataset.from_generator(lambda: iter([[1], [1, 2]]), tf.int32)
    return [
        *(str(tf.data.get_output_shapes(one)) for one in made),
        *(rows(tf, one) for one in [*made, ragged.batch(2), dataset.range(3).batch(0)]),
    ]


@unnamed
def padded(tf: Any) -> Any:
    numbers = tf.data.Dataset.range(1, 5)
    dataset = numbers.map(lambda n: (tf.fill([tf.cast(n, tf.int32)], n), tf.as_string(n)))
    arguments: tuple[Any, ...] = (
        *((2, ([None], [])), (3, ([5], [])), (3, ([-1], []), (tf.constant(7, tf.int64), "?"))),
        *((2, ([2], [])), (2, ([None, None], [])), (2, ([None],)), (0, ([None], []))),
    )
    return [
        *(outcome(lambda one: rows(tf, dataset.padded_batch(*one)), one) for one in arguments),
        str(tf.data.get_output_shapes(dataset.padded_batch(2, ([None], []), drop_remainder=True))),
        outcome(lambda: dataset.padded_batch(2, ([None], []), (0.5, ""))),
    ]


@unnamed
def parts(tf: Any) -> Any:
    dataset = tf.data.Dataset
    zipped = dataset.zip((dataset.range(3), dataset.range(5, 9)))
    named = dataset.zip({"a": dataset.range(1), "b": dataset.range(1)})
    calls: list[Callable[[], Any]] = [
        *(lambda: dataset.range(2).repeat(3), lambda: dataset.range(2).repeat(0)),
        *(lambda: dataset.range(2).repeat().take(5), lambda: dataset.range(0).repeat()),
        *(lambda: zipped, lambda: zipped.take(2).concatenate(zipped.skip(2)).prefetch(1)),
        *(lambda: dataset.range(4).take(-1), lambda: dataset.range(4).skip(-1)),
        *(lambda: named.apply(lambda one: one.take(1)), lambda: dataset.range(3).enumerate(5)),
        *(lambda: dataset.range(7).shard(3, 0), lambda: dataset.range(7).shard(3, 2)),
        *(lambda: dataset.range(3).shard(2, 1).repeat(2), lambda: dataset.range(7).shard(3, 3)),
        *(lambda: dataset.range(7).shard(3, -1), lambda: dataset.range(7).shard(0, 0)),
        lambda: dataset.range(3).flat_map(lambda n: dataset.range(n).repeat(2)),
        lambda: dataset.range(4).interleave(lambda n: dataset.range(n), 2, 1),
        lambda: dataset.range(1, 5).interleave(lambda n: dataset.from_tensors(n).repeat(n), 3, 2),
        lambda: dataset.range(4).batch(2).unbatch(),
        *(
            lambda: dataset.range(1).concatenate(dataset.from_tensors(1)),
            lambda: dataset.zip((1, 2)),
        ),
    ]
    return [outcome(lambda make: rows(tf, make()), one) for one in calls]


@unnamed
def cached(tf: Any) -> Any:
    calls: list[int] = []

    def seen(number: Any) -> Any:
        calls.append(int(number))
        return number

    dataset = tf.data.Dataset
    numbers = dataset.range(4).map(lambda n: tf.py_func(seen, [n], tf.int64))
    return [
        *(rows(tf, numbers.cache().repeat(3)), calls),
        rows(tf, dataset.range(4).shuffle(4, seed=1).cache().repeat(2)),
        rows(tf, dataset.range(4).cache().shuffle(4, seed=1).repeat(2)),
    ]


@unnamed
def shuffled(tf: Any) -> Any:
    dataset = tf.data.Dataset
    made = [
        *(dataset.range(20).shuffle(5, seed=3), dataset.range(8).shuffle(100, seed=3).repeat(3)),
        dataset.range(8).shuffle(8, seed=3, reshuffle_each_iteration=False).repeat(2),
        dataset.range(3).shuffle(0),
    ]
    return [rows(tf, one) for one in made]


@unnamed
def grouped(tf: Any) -> Any:
    dataset, experimental = tf.data.Dataset, tf.data.experimental
    lists = dataset.range(1, 8).map(lambda n: tf.fill([tf.cast(n, tf.int32)], n))

    def by_length(**options: Any) -> Any:
        return experimental.bucket_by_sequence_length(tf.size, [3, 5], [2, 2, 2], **options)

    def by_parity(**sizes: Any) -> Any:
        return experimental.group_by_window(
            lambda n: n % 2, lambda key, window: window.batch(3), **sizes
        )

    numbers = dataset.range(10)
    calls: list[Callable[[], Any]] = [
        lambda: numbers.apply(by_parity(window_size=3)),
        lambda: numbers.apply(by_parity(window_size_func=lambda key: key + 1)),
        lambda: numbers.apply(by_parity()),
        lambda: lists.apply(by_length()),
        lambda: lists.take(4).apply(by_length(pad_to_bucket_boundary=True)),
        lambda: lists.apply(by_length(drop_remainder=True)),
        lambda: numbers.apply(experimental.map_and_batch(lambda n: n + 1, 4)),
        lambda: numbers.apply(experimental.unbatch()),
        lambda: dataset.range(4).apply(experimental.shuffle_and_repeat(4, 2, seed=1)),
    ]
    return [outcome(lambda make: rows(tf, make()), one) for one in calls]


@unnamed
def iterators(tf: Any) -> Any:
    dataset, numbers = tf.data.Dataset, tf.placeholder(tf.int64, [None])
    iterator = tf.data.make_initializable_iterator(dataset.from_tensor_slices(numbers))
    following = iterator.get_next()
    shared = tf.data.Iterator.from_structure(tf.int64, [])
    once = dataset.range(3).make_one_shot_iterator().get_next()
    with tf.Session() as sess:
        found = [outcome(sess.run, following), iterator.initializer.type]
        sess.run(iterator.initializer, {numbers: [5, 6]})
        found += [drained(tf, sess, following), drained(tf, sess, following)]
        sess.run(iterator.initializer, {numbers: [7]})
        found += [drained(tf, sess, following), sess.run([once, once]), sess.run(once)]
        for one in (dataset.range(3), dataset.range(7, 9)):
            sess.run(shared.make_initializer(one))
            found.append(drained(tf, sess, shared.get_next()))
    with tf.Session() as other:
        found.append(other.run(once))
    wrong = (dataset.from_tensors(1), dataset.range(3).batch(2))
    return [
        *(*found, *(outcome(shared.make_initializer, one) for one in wrong)),
        outcome(lambda: shared.initializer),
        outcome(lambda: dataset.from_tensor_slices(numbers + 1).make_one_shot_iterator()),
    ]


@unnamed
def handles(tf: Any) -> Any:
    dataset = tf.data.Dataset
    handle = tf.placeholder(tf.string, [])
    first, second = (dataset.range(*one).make_one_shot_iterator() for one in ((3,), (10, 13)))
    chosen = tf.data.Iterator.from_string_handle(handle, tf.int64, []).get_next()
    kinds: tuple[Any, ...] = (*((tf.int32, []), (tf.int64, [2]), ((tf.int64, tf.int64), ([], []))),)
    wrong = [tf.data.Iterator.from_string_handle(handle, *one).get_next() for one in kinds]
    with tf.Session() as sess:
        given = sess.run([first.string_handle(), second.string_handle()])
        found = [sess.run(chosen, {handle: given[one]}) for one in (0, 1, 0, 1)]
        found += [outcome(sess.run, one, {handle: given[0]}) for one in wrong]
        found.append(outcome(sess.run, chosen, {handle: "nothing"}))
        return [*found, sess.run(first.get_next())]


@unnamed
def files_of_data(tf: Any) -> Any:
    Path("a.txt").write_bytes(b"one\ntwo\r\n")
    for name, data in (("a", b"HHabcdefF"), ("b", b"HHghF"), ("odd", b"HHklmF")):
        Path(name).write_bytes(data)
    for name in ("b.bin", "a.bin", "c.png"):
        Path(name).touch()
    with tf.python_io.TFRecordWriter("r", "GZIP") as writer:
        writer.write(b"one")
        writer.write(b"")
    data = tf.data
    fixed, names = data.FixedLengthRecordDataset, data.Dataset.list_files
    calls: list[Callable[[], Any]] = [
        *(lambda: data.TextLineDataset(["a.txt", "a.txt"]), lambda: data.TextLineDataset("none")),
        *(lambda: data.TFRecordDataset("r", "GZIP"), lambda: data.TFRecordDataset("none")),
        *(
            lambda: fixed(["a", "b"], 2, 2, 1),
            lambda: fixed("b", 5),
            lambda: fixed(["a", "odd"], 2, 2, 1),
        ),
        *(lambda: fixed("a", 0), lambda: fixed("a", 1, -1), lambda: fixed("none", 2)),
        *(lambda: names("*.bin", shuffle=False), lambda: names(["*.bin", "c*"], shuffle=False)),
        lambda: names("*.bin", seed=1),
    ]
    return [outcome(lambda make: rows(tf, make(), 6), one) for one in calls]
