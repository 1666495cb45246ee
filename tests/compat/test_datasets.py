"""`tf.data`, where no record of TensorFlow tells: copies, failures, threads, words of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import Step, refused

Dataset, Iterator = tf.data.Dataset, tf.data.Iterator


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


def attempts(sess: Any, dataset: Any, count: int) -> list[Any]:
    """What each of so many attempts gives: an element, or the class of an error."""
    element = tf.data.make_one_shot_iterator(dataset).get_next()
    found: list[Any] = []
    for _ in range(count):
        try:
            found.append(sess.run(element))
        except tf.errors.OpError as error:
            found.append(type(error))
    return found


def test_the_form_of_elements() -> None:
    dataset = Dataset.from_tensors({"a": tf.SparseTensor([[0]], [1], [2]), "b": "x"})
    for one in (dataset, tf.data.make_one_shot_iterator(dataset)):
        assert tf.data.get_output_types(one) == {"a": tf.int32, "b": tf.string}
        assert tf.data.get_output_shapes(one)["b"] == []
        assert tf.data.get_output_classes(one) == {"a": tf.SparseTensor, "b": tf.Tensor}
    assert repr(Dataset.range(3)) == "<tf.data.Dataset shapes: (), types: <dtype: 'int64'>>"
    iterator = Dataset.range(3).make_one_shot_iterator()
    assert repr(iterator).startswith("<tf.data.Iterator 'OneShotIterator_1'")


def test_slices_of_arrays_are_the_callers_own(sess: Any) -> None:
    dataset = Dataset.from_tensor_slices(np.arange(6).reshape(3, 2)).repeat(2)
    found = elements(sess, dataset)
    found[0][:] = 9
    assert [one.tolist() for one in found[3:]] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("shapes", "element", "message"),
    [
        (None, "a", "could not be converted to the expected type"),
        ([], [1, 2], r"an element of shape \(2,\) where an element of shape \(\) was"),
    ],
)
def test_what_a_generator_yields_is_checked(
    sess: Any, shapes: Any, element: Any, message: str
) -> None:
    dataset = Dataset.from_generator(lambda: iter([1, element, 3]), tf.int32, shapes)
    following = dataset.make_one_shot_iterator().get_next()
    assert sess.run(following) == 1
    refused(tf.errors.InvalidArgumentError, message, sess.run, following)
    assert sess.run(following) == 3


def test_a_generator_that_yields_another_structure(sess: Any) -> None:
    dataset = Dataset.from_generator(lambda: [(1, 2, 3)], (tf.int32, tf.int32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="did not match the expected str"):
        elements(sess, dataset)


def test_a_failure_in_map_is_reported_and_does_not_end_it(sess: Any) -> None:
    def check(number: Any) -> Any:
        if number == 1:
            raise ValueError("a broken one")
        return number

    dataset = Dataset.range(3).map(lambda x: tf.py_func(check, [x], tf.int64))
    following = dataset.make_one_shot_iterator().get_next()
    assert sess.run(following) == 0
    refused(tf.errors.InvalidArgumentError, "a broken one", sess.run, following)
    assert sess.run(following) == 2


def test_what_belongs_together_stays_together_after_an_error(sess: Any) -> None:
    quotients = Dataset.range(4).map(
        lambda n: tf.check_numerics(12.0 / tf.cast(n, tf.float32), "not finite")
    )
    for order in (1, -1):
        pairs = Dataset.zip((quotients, Dataset.range(4))[::order])
        first, *rest = attempts(sess, pairs, 4)
        assert first is tf.errors.InvalidArgumentError
        assert [sorted(map(float, pair)) for pair in rest] == [[1, 12], [2, 6], [3, 4]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Dataset.from_generator(lambda: iter([[1], [1, 2]]), tf.int32).batch(2),
            r"Cannot batch tensors with different shapes in component 0\. First element had"
            r" shape \[1\] and element 1 had shape \[2\]\.",
        ),
        (lambda: Dataset.range(3).batch(0), "Batch size must be greater"),
        (lambda: Dataset.range(3).shuffle(0), "buffer_size must be greater"),
        (lambda: Dataset.range(7).shard(3, 3), r"between 0 and 2 \(currently index = 3\)\."),
        (lambda: Dataset.range(7).shard(0, 0), r"greater than zero \(currently num_shards = 0\)"),
        (lambda: Dataset.list_files("no such*"), "No files matched pattern: "),
        (
            lambda: Dataset.range(6).apply(
                tf.data.experimental.bucket_by_sequence_length(
                    lambda n: n, [2], [2, 2], pad_to_bucket_boundary=True
                )
            ),
            "elements must have length < max",
        ),
        (
            lambda: Dataset.range(3).apply(
                tf.data.experimental.group_by_window(lambda n: n, lambda k, w: w, 0)
            ),
            "Window size must be greater than zero, but got 0",
        ),
    ],
)
def test_what_is_refused_when_it_runs(sess: Any, make: Any, message: str) -> None:
    refused(tf.errors.InvalidArgumentError, message, lambda: elements(sess, make()))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Dataset.range(), ValueError, "Invalid arguments to RangeDataset"),
        (lambda: Dataset.range(3).map(lambda x: None), ValueError, "at least one tensor"),
        (lambda: Dataset.range(3).filter(lambda x: x), ValueError, r"return a `tf\.bool` scalar"),
        (lambda: Dataset.range(3).window, AttributeError, r"Dataset\.window is not in .*: tf"),
        (lambda: iter(Dataset.range(3)), RuntimeError, "has no values until a session runs it"),
        (lambda: tf.data.TextLineDataset("a", "ZIP"), ValueError, "Not a valid compression_type"),
        (
            lambda: Dataset.range(3).flat_map(lambda n: n),
            TypeError,
            "`map_func` must return a `Dataset` object",
        ),
        (
            lambda: Dataset.from_tensors(tf.SparseTensor([[0]], [1], [2])).padded_batch(2),
            TypeError,
            "padded sparse tensors",
        ),
        (
            lambda: Dataset.range(3).apply(
                tf.data.experimental.group_by_window(lambda n: n, lambda k, w: k, 2)
            ),
            TypeError,
            "`reduce_func` must return a `Dataset`",
        ),
        (
            lambda: Dataset.range(3).apply(
                tf.data.experimental.group_by_window(lambda n: "a", lambda k, w: w, 2)
            ),
            ValueError,
            r"`key_func` must return a single `tf\.int64` scalar",
        ),
        (
            lambda: tf.data.experimental.bucket_by_sequence_length(tf.size, [2], [1]),
            ValueError,
            r"must equal len\(bucket_boundaries\)",
        ),
    ],
)
def test_what_is_refused_at_once(make: Any, error: type[Exception], message: str) -> None:
    refused(error, message, make)
    assert not hasattr(Dataset.range(3), "_private")


def test_a_cache_remembers_what_has_been_seen_to_the_end(sess: Any) -> None:
    calls: list[int] = []

    def seen(number: Any) -> Any:
        calls.append(int(number))
        return number

    numbers = Dataset.range(4).map(lambda n: tf.py_func(seen, [n], tf.int64))
    assert elements(sess, numbers.cache("a name").take(2).repeat(2)) == [0, 1, 0, 1]
    assert calls == [0, 1, 0, 1]


def test_without_a_seed_the_order_is_another_one_each_time(sess: Any) -> None:
    dataset = Dataset.range(100).shuffle(100)
    first, second = elements(sess, dataset), elements(sess, dataset)
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second


class TestFiles:
    def test_one_that_is_missing_is_tried_again(self, sess: Any, tmp_path: Path) -> None:
        path = tmp_path / "a.txt"
        path.write_bytes(b"one\ntwo\r\n")
        names = [str(path), str(tmp_path / "missing"), str(path)]
        missing = tf.errors.NotFoundError
        found = attempts(sess, tf.data.TextLineDataset(names), 4)
        assert found == [b"one", b"two", missing, missing]

    def test_one_that_is_damaged_is_passed_over(self, sess: Any, tmp_path: Path) -> None:
        pytest.importorskip("google_crc32c", reason="the extra `tfrecord` is not installed")
        names = [str(tmp_path / "damaged"), str(tmp_path / "good")]
        for name in names:
            with tf.python_io.TFRecordWriter(name) as writer:
                writer.write(b"a")
                writer.write(b"b")
        data = bytearray(Path(names[0]).read_bytes())
        data[-5] ^= 255
        Path(names[0]).write_bytes(data)
        lost = tf.errors.DataLossError
        assert attempts(sess, tf.data.TFRecordDataset(names), 4) == [b"a", lost, b"a", b"b"]
        Path(names[0]).write_bytes(b"x" * 20)
        assert attempts(sess, tf.data.TFRecordDataset(names), 3) == [lost, b"a", b"b"]

    def test_records_of_one_length_fill_it(self, sess: Any, tmp_path: Path) -> None:
        (tmp_path / "odd").write_bytes(b"HHklmF")
        odd = str(tmp_path / "odd")
        for sizes, what in (
            ((2, 2, 1), "body length 3 bytes, which is not an exact multiple of the record length"),
            ((0,), "`record_bytes` must be > 0"),
            ((1, -1), "`header_bytes` must be >= 0"),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match=what):
                elements(sess, tf.data.FixedLengthRecordDataset(odd, *sizes))


class TestIterators:
    def test_a_fed_array_may_be_changed_afterwards(self, sess: Any) -> None:
        numbers = tf.placeholder(tf.int64, [None])
        iterator = Dataset.from_tensor_slices(numbers).make_initializable_iterator()
        given = np.array([5, 6])
        sess.run(iterator.initializer, {numbers: given})
        given[:] = 0
        assert sess.run(iterator.get_next()) == 5

    def test_threads_share_one(self, sess: Any) -> None:
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

    @pytest.mark.parametrize(
        ("types", "shapes", "message"),
        [
            (tf.float32, None, "Data type mismatch at component 0: expected float but got int64"),
            (tf.int64, tf.TensorShape([2]), r"at component 0: expected \[2\] but got \[\]"),
            ((tf.int64, tf.int64), None, "does not match: expected 2 types but got 1"),
        ],
    )
    def test_a_handle_of_other_elements(
        self, sess: Any, types: Any, shapes: Any, message: str
    ) -> None:
        name = sess.run(tf.data.make_one_shot_iterator(Dataset.range(3)).string_handle())
        handle = tf.placeholder(tf.string, [])
        following = Iterator.from_string_handle(handle, types, shapes).get_next()
        refused(tf.errors.InvalidArgumentError, message, sess.run, following, {handle: name})
        with tf.Session() as other, pytest.raises(tf.errors.NotFoundError, match="in this session"):
            other.run(following, {handle: name})

    def test_a_handle_of_sparse_elements_and_of_no_dataset(self, sess: Any) -> None:
        dataset = Dataset.range(3, 5).map(
            lambda n: {"a": n, "b": tf.SparseTensor([[1]], tf.expand_dims(n * 2, 0), [4])}
        )
        iterator = Iterator.from_structure(dataset.output_types, dataset.output_shapes)
        assert iterator.output_classes == {"a": tf.Tensor, "b": tf.Tensor}
        name = sess.run(tf.data.make_one_shot_iterator(dataset).string_handle())
        following = Iterator.from_string_handle(
            tf.constant(name), dataset.output_types, dataset.output_shapes, dataset.output_classes
        ).get_next()
        found = sess.run({"a": following["a"], "b": following["b"]})
        assert found["a"] == 3
        assert found["b"].values.tolist() == [6]
        refused(ValueError, "dtype", lambda: Iterator.from_string_handle(tf.constant(3), tf.int64))
