"""`tf.data`, as far as scripts with queues use it."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import Step

Dataset = tf.data.Dataset


def elements(sess: Any, dataset: Any) -> list[Any]:
    """All elements of a dataset."""
    following = dataset.make_one_shot_iterator().get_next()
    found = []
    while True:
        try:
            found.append(sess.run(following))
        except tf.errors.OutOfRangeError as error:
            assert error.message.startswith("End of sequence")
            return found


def listed(sess: Any, dataset: Any) -> list[Any]:
    """All elements, as Python has them."""
    return [np.asarray(one).tolist() for one in elements(sess, dataset)]


class TestSources:
    def test_slices(self, sess: Any) -> None:
        dataset = Dataset.from_tensor_slices({"a": [1, 2], "b": ([1.0, 2.0], ["x", "y"])})
        assert dataset.output_types == {"a": tf.int32, "b": (tf.float32, tf.string)}
        assert dataset.output_shapes == {"a": [], "b": ([], [])}
        assert elements(sess, dataset) == [
            {"a": 1, "b": (1.0, b"x")},
            {"a": 2, "b": (2.0, b"y")},
        ]

    def test_slices_of_arrays_are_the_callers_own(self, sess: Any) -> None:
        dataset = Dataset.from_tensor_slices(np.arange(6).reshape(3, 2)).repeat(2)
        found = elements(sess, dataset)
        found[0][:] = 9
        assert [one.tolist() for one in found[3:]] == [[0, 1], [2, 3], [4, 5]]

    def test_named_tuples_keep_their_class(self, sess: Any) -> None:
        pair = collections.namedtuple("pair", ["x", "y"])
        (first, _) = elements(sess, Dataset.from_tensor_slices(pair([1, 2], [3, 4])))
        assert first == pair(1, 3)
        assert type(first) is pair

    def test_what_cannot_be_sliced(self) -> None:
        with pytest.raises(ValueError, match="Unbatching a tensor is only supported for rank >= 1"):
            Dataset.from_tensor_slices(3)
        with pytest.raises(ValueError, match="Dimensions 2 and 3 are not compatible"):
            Dataset.from_tensor_slices(([1, 2], [1, 2, 3]))

    def test_one_element(self, sess: Any) -> None:
        assert listed(sess, Dataset.from_tensors([1, 2])) == [[1, 2]]

    @pytest.mark.parametrize("arguments", [(3,), (2, 5), (5, 0, -2)])
    def test_numbers(self, sess: Any, arguments: tuple[int, ...]) -> None:
        dataset = Dataset.range(*arguments)
        assert dataset.output_types == tf.int64
        assert listed(sess, dataset) == list(range(*arguments))

    def test_numbers_of_a_wrong_count(self) -> None:
        with pytest.raises(ValueError, match="Invalid arguments to RangeDataset"):
            Dataset.range()

    def test_a_generator(self, sess: Any) -> None:
        def generate(limit: Any) -> Any:
            for number in range(limit):
                yield number, [str(number)] * number

        dataset = Dataset.from_generator(
            generate, (tf.int32, tf.string), ([], [None]), args=[tf.constant(3)]
        )
        assert dataset.output_shapes == ([], [None])
        found = elements(sess, dataset.repeat(2))
        assert [(int(one), two.tolist()) for one, two in found] == [
            (0, []),
            (1, [b"1"]),
            (2, [b"2", b"2"]),
        ] * 2

    @pytest.mark.parametrize(
        ("shapes", "element", "message"),
        [
            (None, "a", "could not be converted to the expected type"),
            ([], [1, 2], r"an element of shape \(2,\) where an element of shape \(\) was"),
        ],
    )
    def test_what_a_generator_yields_is_checked(
        self, sess: Any, shapes: Any, element: Any, message: str
    ) -> None:
        dataset = Dataset.from_generator(lambda: iter([1, element, 3]), tf.int32, shapes)
        following = dataset.make_one_shot_iterator().get_next()
        assert sess.run(following) == 1
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            sess.run(following)
        assert sess.run(following) == 3

    def test_a_generator_that_yields_another_structure(self, sess: Any) -> None:
        dataset = Dataset.from_generator(lambda: [(1, 2, 3)], (tf.int32, tf.int32))
        with pytest.raises(tf.errors.InvalidArgumentError, match="did not match the expected str"):
            elements(sess, dataset)
        with pytest.raises(TypeError, match="`generator` must be callable"):
            Dataset.from_generator([1], tf.int32)  # type: ignore[arg-type]

    def test_files(self, sess: Any, tmp_path: Path) -> None:
        path = tmp_path / "a.txt"
        path.write_bytes(b"one\ntwo\r\n")
        names = [str(path), str(tmp_path / "missing"), str(path)]
        following = tf.data.TextLineDataset(names).make_one_shot_iterator().get_next()
        assert [sess.run(following) for _ in range(2)] == [b"one", b"two"]
        for _ in range(2):  # it is tried again
            with pytest.raises(tf.errors.NotFoundError, match="missing; No such file or directory"):
                sess.run(following)

    def test_records(self, sess: Any, tmp_path: Path) -> None:
        pytest.importorskip("google_crc32c", reason="the extra `tfrecord` is not installed")
        path = str(tmp_path / "r")
        with tf.python_io.TFRecordWriter(path, "GZIP") as writer:
            writer.write(b"one")
        assert elements(sess, tf.data.TFRecordDataset(path, "GZIP")) == [b"one"]


class TestStages:
    def test_map(self, sess: Any) -> None:
        dataset = Dataset.from_tensor_slices(([1, 2, 3], [4, 5, 6]))
        total = dataset.map(lambda x, y: {"sum": x + y, "pair": (x, np.multiply(y, 2))})
        assert total.output_types == {"sum": tf.int32, "pair": (tf.int32, tf.int32)}
        assert elements(sess, total)[1] == {"sum": 7, "pair": (2, 10)}

    def test_map_uses_what_is_outside(self, sess: Any) -> None:
        """With the value of the moment in which the iterator is initialised."""
        factor = tf.placeholder(tf.int64, [])
        iterator = Dataset.range(3).map(lambda x: x * factor).make_initializable_iterator()
        following = iterator.get_next()
        sess.run(iterator.initializer, {factor: 10})
        assert [sess.run(following) for _ in range(3)] == [0, 10, 20]

    def test_map_makes_random_numbers_for_each_element(self, sess: Any) -> None:
        dataset = Dataset.range(5).map(lambda x: tf.random_uniform([], seed=1))
        assert len(set(elements(sess, dataset))) == 5

    def test_a_failure_in_map_does_not_end_it(self, sess: Any) -> None:
        def check(number: Any) -> Any:
            if number == 1:
                raise ValueError("a broken one")
            return number

        dataset = Dataset.range(3).map(lambda x: tf.py_func(check, [x], tf.int64))
        following = dataset.make_one_shot_iterator().get_next()
        assert sess.run(following) == 0
        with pytest.raises(tf.errors.InvalidArgumentError, match="a broken one"):
            sess.run(following)
        assert sess.run(following) == 2

    def test_map_must_return_something(self) -> None:
        with pytest.raises(ValueError, match="must return at least one tensor"):
            Dataset.range(3).map(lambda x: None)

    def test_filter(self, sess: Any) -> None:
        assert listed(sess, Dataset.range(6).filter(lambda x: tf.equal(x % 2, 0))) == [0, 2, 4]
        with pytest.raises(ValueError, match=r"`predicate` must return a `tf\.bool` scalar"):
            Dataset.range(6).filter(lambda x: x)

    def test_batch(self, sess: Any) -> None:
        dataset = Dataset.range(5).batch(2)
        assert dataset.output_shapes == [None]
        assert listed(sess, dataset) == [[0, 1], [2, 3], [4]]
        dataset = Dataset.range(5).batch(2, drop_remainder=True)
        assert dataset.output_shapes == [2]
        assert listed(sess, dataset) == [[0, 1], [2, 3]]
        words = Dataset.from_tensor_slices(["a", "b"]).batch(2)
        assert listed(sess, words) == [[b"a", b"b"]]

    def test_what_cannot_be_batched(self, sess: Any) -> None:
        ragged = Dataset.from_generator(lambda: iter([[1], [1, 2]]), tf.int32)
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"Cannot batch tensors with different shapes in component 0\. First element had"
            r" shape \[1\] and element 1 had shape \[2\]\.",
        ):
            elements(sess, ragged.batch(2))
        with pytest.raises(tf.errors.InvalidArgumentError, match="Batch size must be greater"):
            elements(sess, Dataset.range(3).batch(0))

    def test_repeat(self, sess: Any) -> None:
        assert listed(sess, Dataset.range(2).repeat(3)) == [0, 1] * 3
        assert listed(sess, Dataset.range(2).repeat(0)) == []
        assert listed(sess, Dataset.range(2).repeat().take(5)) == [0, 1, 0, 1, 0]

    def test_to_repeat_nothing_for_ever_ends(self, sess: Any) -> None:
        assert listed(sess, Dataset.range(0).repeat()) == []

    def test_take_skip_concatenate_zip(self, sess: Any) -> None:
        first = Dataset.zip((Dataset.range(3), Dataset.range(5, 9)))
        assert elements(sess, first) == [(0, 5), (1, 6), (2, 7)]
        both = first.take(2).concatenate(first.skip(2)).prefetch(1)
        assert elements(sess, both) == [(0, 5), (1, 6), (2, 7)]
        assert listed(sess, Dataset.range(4).take(-1)) == [0, 1, 2, 3]
        assert listed(sess, Dataset.range(4).skip(-1)) == []
        named = Dataset.zip({"a": Dataset.range(1), "b": Dataset.range(1)})
        assert elements(sess, named.apply(lambda dataset: dataset.take(1))) == [{"a": 0, "b": 0}]
        with pytest.raises(TypeError, match="Two datasets to concatenate have different types"):
            Dataset.range(1).concatenate(Dataset.from_tensors(1))
        with pytest.raises(TypeError, match="must be a nested structure of `Dataset`"):
            Dataset.zip((1, 2))


class TestPartsOfThem:
    """What scripts for several workers do with a dataset, and with files of records."""

    def test_shards(self, sess: Any) -> None:
        shards = [listed(sess, Dataset.range(7).shard(3, index)) for index in range(3)]
        assert shards == [[0, 3, 6], [1, 4], [2, 5]]
        assert listed(sess, Dataset.range(3).shard(2, 1).repeat(2)) == [1, 1]

    @pytest.mark.parametrize(
        ("count", "index", "what"),
        [
            (3, 3, r"Index must be between 0 and 2 \(currently index = 3\)\."),
            (3, -1, r"Index must be between 0 and 2 \(currently index = -1\)\."),
            (0, 0, r"greater than zero \(currently num_shards = 0\)\."),
        ],
    )
    def test_shards_that_are_none(self, sess: Any, count: int, index: int, what: str) -> None:
        iterator = Dataset.range(7).shard(count, index).make_initializable_iterator()
        with pytest.raises(tf.errors.InvalidArgumentError, match=what):
            sess.run(iterator.initializer)

    def test_numbers(self, sess: Any) -> None:
        assert elements(sess, Dataset.from_tensor_slices(["a", "b"]).enumerate(5)) == [
            *((5, b"a"), (6, b"b")),
        ]

    def test_a_cache_remembers_what_has_been_seen_to_the_end(self, sess: Any) -> None:
        calls: list[int] = []

        def seen(number: Any) -> Any:
            calls.append(int(number))
            return number

        numbers = Dataset.range(4).map(lambda n: tf.py_func(seen, [n], tf.int64))
        assert listed(sess, numbers.cache().repeat(3)) == [0, 1, 2, 3] * 3
        assert calls == [0, 1, 2, 3]
        assert listed(sess, numbers.cache("a name").take(2).repeat(2)) == [0, 1, 0, 1]
        assert calls[4:] == [0, 1, 0, 1]

    def test_a_cache_keeps_the_order_of_a_shuffle(self, sess: Any) -> None:
        shuffled = Dataset.range(4).shuffle(4, seed=1)
        assert listed(sess, shuffled.cache().repeat(2)) == [0, 3, 1, 2] * 2
        assert listed(sess, Dataset.range(4).cache().shuffle(4, seed=1).repeat(2)) == [
            *(0, 3, 1, 2, 2, 3, 1, 0),
        ]

    def test_names_of_files(self, sess: Any, tmp_path: Path) -> None:
        for name in ("b.bin", "a.bin", "c.txt"):
            (tmp_path / name).touch()
        paths = [bytes(tmp_path / name) for name in ("a.bin", "b.bin", "c.txt")]
        assert listed(sess, Dataset.list_files(f"{tmp_path}/*.bin", shuffle=False)) == paths[:2]
        both = [f"{tmp_path}/*.bin", f"{tmp_path}/c*"]
        assert listed(sess, Dataset.list_files(both, shuffle=False)) == paths
        assert sorted(listed(sess, Dataset.list_files(both))) == paths
        missing = Dataset.list_files(f"{tmp_path}/*.png").make_initializable_iterator()
        with pytest.raises(tf.errors.InvalidArgumentError, match="No files matched pattern: "):
            sess.run(missing.initializer)

    def test_records_of_one_length(self, sess: Any, tmp_path: Path) -> None:
        for name, data in (("a", b"HHabcdefF"), ("b", b"HHghF"), ("odd", b"HHklmF")):
            (tmp_path / name).write_bytes(data)
        a, b, odd = (str(tmp_path / name) for name in ("a", "b", "odd"))
        records = tf.data.FixedLengthRecordDataset([a, b], 2, 2, 1)
        assert listed(sess, records) == [b"ab", b"cd", b"ef", b"gh"]
        assert listed(sess, tf.data.FixedLengthRecordDataset(b, 5)) == [b"HHghF"]
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"body length 3 bytes, which is not an exact multiple of the record length",
        ):
            listed(sess, tf.data.FixedLengthRecordDataset([a, odd], 2, 2, 1))
        for sizes, what in (((0,), "`record_bytes` must be > 0"), ((1, -1), "`header_bytes` must")):
            with pytest.raises(tf.errors.InvalidArgumentError, match=what):
                listed(sess, tf.data.FixedLengthRecordDataset(a, *sizes))
        with pytest.raises(tf.errors.NotFoundError, match="no_such"):
            listed(sess, tf.data.FixedLengthRecordDataset(str(tmp_path / "no_such"), 2))


class TestShuffle:
    """The same seeds give TensorFlow's order: these are orders of TensorFlow 2.21."""

    def test_a_small_buffer(self, sess: Any) -> None:
        expected = [4, 1, 0, 2, 7, 8, 10, 6, 9, 12, 5, 3, 15, 13, 17, 16, 14, 11, 18, 19]
        assert listed(sess, Dataset.range(20).shuffle(5, seed=3)) == expected

    def test_each_repetition_has_its_own_order(self, sess: Any) -> None:
        expected = [4, 2, 1, 0, 3, 6, 5, 7], [0, 5, 4, 6, 1, 2, 3, 7], [4, 6, 3, 0, 7, 5, 2, 1]
        dataset = Dataset.range(8).shuffle(100, seed=3).repeat(3)
        assert listed(sess, dataset) == [number for epoch in expected for number in epoch]

    def test_unless_asked_not_to(self, sess: Any) -> None:
        dataset = Dataset.range(8).shuffle(8, seed=3, reshuffle_each_iteration=False).repeat(2)
        assert listed(sess, dataset) == [7, 4, 6, 3, 0, 1, 2, 5] * 2

    def test_without_a_seed_the_order_is_another_one_each_time(self, sess: Any) -> None:
        dataset = Dataset.range(100).shuffle(100)
        first, second = listed(sess, dataset), listed(sess, dataset)
        assert sorted(first) == sorted(second) == list(range(100))
        assert first != second

    def test_a_buffer_holds_something(self, sess: Any) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError, match="buffer_size must be greater"):
            listed(sess, Dataset.range(3).shuffle(0))


class TestIterators:
    def test_an_initializable_one(self, sess: Any) -> None:
        numbers = tf.placeholder(tf.int64, [None])
        iterator = tf.data.make_initializable_iterator(Dataset.from_tensor_slices(numbers))
        following = iterator.get_next()
        assert following.name == "IteratorGetNext:0"
        assert iterator.initializer.type == "MakeIterator"
        with pytest.raises(tf.errors.FailedPreconditionError, match="has not been initialized"):
            sess.run(following)
        sess.run(iterator.initializer, {numbers: [5, 6]})
        assert [sess.run(following) for _ in range(2)] == [5, 6]
        for _ in range(2):
            with pytest.raises(tf.errors.OutOfRangeError, match=r"^End of sequence"):
                sess.run(following)
        sess.run(iterator.initializer, {numbers: [7]})
        assert sess.run(following) == 7

    def test_a_fed_array_may_be_changed_afterwards(self, sess: Any) -> None:
        numbers = tf.placeholder(tf.int64, [None])
        iterator = Dataset.from_tensor_slices(numbers).make_initializable_iterator()
        given = np.array([5, 6])
        sess.run(iterator.initializer, {numbers: given})
        given[:] = 0
        assert sess.run(iterator.get_next()) == 5

    def test_one_for_several_datasets(self, sess: Any) -> None:
        iterator = tf.data.Iterator.from_structure(tf.int64, [])
        following = iterator.get_next()
        for dataset, expected in ((Dataset.range(3), 0), (Dataset.range(7, 9), 7)):
            sess.run(iterator.make_initializer(dataset))
            assert sess.run(following) == expected
        with pytest.raises(TypeError, match="Expected output types"):
            iterator.make_initializer(Dataset.from_tensors(1))
        with pytest.raises(TypeError, match="Expected output shapes"):
            iterator.make_initializer(Dataset.range(3).batch(2))
        with pytest.raises(ValueError, match="Iterator does not have an initializer"):
            _ = iterator.initializer

    def test_a_one_shot_one_cannot_be_fed(self) -> None:
        numbers = tf.placeholder(tf.int64, [None], name="numbers")
        message = r"Cannot capture a placeholder \(name:numbers, type:Placeholder\) by value"
        with pytest.raises(ValueError, match=message):
            Dataset.from_tensor_slices(numbers + 1).make_one_shot_iterator()

    def test_each_session_begins_at_the_beginning(self, sess: Any, graph: Any) -> None:
        following = Dataset.range(3).make_one_shot_iterator().get_next()
        assert [sess.run(following) for _ in range(2)] == [0, 1]
        with tf.Session(graph=graph) as other:
            assert other.run(following) == 0

    def test_threads_share_it(self, sess: Any) -> None:
        following = Dataset.range(100).make_one_shot_iterator().get_next()

        def drain() -> list[int]:
            found = []
            while True:
                try:
                    found.append(int(sess.run(following)))
                except tf.errors.OutOfRangeError:
                    return found

        steps = [Step(drain) for _ in range(4)]
        assert sorted(number for step in steps for number in step.result()) == list(range(100))

    def test_two_in_one_run(self, sess: Any) -> None:
        following = Dataset.range(3).make_one_shot_iterator().get_next()
        assert sess.run([following, following]) == [0, 0]


class TestClearErrors:
    def test_what_is_not_there_says_so(self) -> None:
        with pytest.raises(AttributeError, match=r"tf\.data\.Dataset\.window is not in .*: tf"):
            _ = Dataset.range(3).window
        assert not hasattr(Dataset.range(3), "_private")

    def test_a_loop_over_it_is_refused(self) -> None:
        with pytest.raises(RuntimeError, match="has no values until a session runs it"):
            iter(Dataset.range(3))

    def test_repr(self) -> None:
        assert repr(Dataset.range(3)) == "<tf.data.Dataset shapes: (), types: <dtype: 'int64'>>"
        iterator = Dataset.range(3).make_one_shot_iterator()
        assert repr(iterator).startswith("<tf.data.Iterator 'OneShotIterator'")
