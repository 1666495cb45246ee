"""Functions for `Dataset.apply`, and what is asked of a dataset without effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import calling
from tests.compat.test_datasets import elements, listed

Dataset, experimental = tf.data.Dataset, tf.data.experimental


def quotients() -> Any:
    """12 divided by numbers, one of which is zero."""
    return Dataset.range(4).map(lambda n: tf.check_numerics(12.0 / tf.to_float(n), "not finite"))


def test_elements_that_cannot_be_made_are_left_out(sess: Any) -> None:
    assert listed(sess, quotients().apply(experimental.ignore_errors())) == [12.0, 6.0, 4.0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
        listed(sess, quotients())


def outcomes(sess: Any, dataset: Any, count: int) -> list[Any]:
    """What each of so many attempts gives: an element, or the class of an error."""
    element = tf.data.make_one_shot_iterator(dataset).get_next()
    found: list[Any] = []
    for _ in range(count):
        try:
            found.append(sess.run(element))
        except tf.errors.OpError as error:
            found.append(type(error))
    return found


def test_a_file_that_cannot_be_opened_is_tried_again(sess: Any, tmp_path: Path) -> None:
    good, missing = tmp_path / "good", tmp_path / "missing"
    good.write_bytes(b"one\ntwo\n")
    lines = tf.data.TextLineDataset([str(missing), str(good)])
    gone, end = tf.errors.NotFoundError, tf.errors.OutOfRangeError
    assert outcomes(sess, lines, 3) == [gone, gone, gone]
    assert listed(sess, lines.apply(experimental.ignore_errors())) == [b"one", b"two"]
    uneven = tf.data.FixedLengthRecordDataset([str(good), str(good)], 3)
    assert outcomes(sess, uneven, 2) == [tf.errors.InvalidArgumentError] * 2
    nested = Dataset.from_tensors(str(missing)).flat_map(tf.data.TextLineDataset)
    assert outcomes(sess, nested, 2) == [gone, gone]
    assert listed(sess, nested.apply(experimental.ignore_errors())) == []
    element = tf.data.make_one_shot_iterator(lines).get_next()
    with pytest.raises(gone):
        sess.run(element)
    missing.write_bytes(b"zero\n")
    assert [sess.run(element) for _ in range(3)] == [b"zero", b"one", b"two"]
    with pytest.raises(end):
        sess.run(element)


def test_a_file_that_is_damaged_is_passed_over(sess: Any, tmp_path: Path) -> None:
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
    assert outcomes(sess, tf.data.TFRecordDataset(names), 4) == [b"a", lost, b"a", b"b"]
    Path(names[0]).write_bytes(b"x" * 20)
    assert outcomes(sess, tf.data.TFRecordDataset(names), 3) == [lost, b"a", b"b"]


def test_what_belongs_together_stays_together_after_an_error(sess: Any) -> None:
    failed = tf.errors.InvalidArgumentError
    for order in (1, -1):
        pairs = Dataset.zip((quotients(), Dataset.range(4))[::order])
        first, *rest = outcomes(sess, pairs, 4)
        assert first is failed
        assert [sorted(map(float, pair)) for pair in rest] == [[1, 12], [2, 6], [3, 4]]


def test_a_run_that_is_cancelled_is_no_error_of_an_element(sess: Any) -> None:
    def cancelled(number: Any) -> Any:
        raise tf.errors.CancelledError(None, None, "the run has ended")

    made = Dataset.range(3).map(lambda n: calling(cancelled, tf.int64, [n]))
    with pytest.raises(tf.errors.CancelledError, match="the run has ended"):
        listed(sess, made.apply(experimental.ignore_errors()))


def test_elements_up_to_the_first_that_fails_a_test(sess: Any) -> None:
    made = Dataset.from_tensor_slices([1, 5, 2]).apply(experimental.take_while(lambda n: n < 4))
    assert listed(sess, made) == [1]
    with pytest.raises(TypeError, match=r"must return a `tf\.bool`"):
        Dataset.range(3).apply(experimental.take_while(lambda n: n))


def test_choices(sess: Any) -> None:
    inputs = [Dataset.range(2), Dataset.range(10, 14)]
    order = Dataset.from_tensor_slices(np.array([1, 0, 0, 0, 1, 1, 1, 1]))
    chosen = experimental.choose_from_datasets(inputs, order)
    assert listed(sess, chosen) == [10, 0, 1, 11, 12, 13]
    far = experimental.choose_from_datasets(inputs, Dataset.from_tensors(np.int64(2)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="out of range: 2 >= 2"):
        listed(sess, far)


def test_choices_that_do_not_fit() -> None:
    numbers = Dataset.range(2)
    with pytest.raises(TypeError, match="expected the same of all"):
        experimental.choose_from_datasets([numbers, Dataset.from_tensors("x")], numbers)
    with pytest.raises(TypeError, match=r"scalar `tf.int64`"):
        experimental.choose_from_datasets([numbers], Dataset.from_tensors("x"))


def test_numbers_without_an_end(sess: Any) -> None:
    assert listed(sess, experimental.Counter(3, 2).take(3)) == [3, 5, 7]
    small = experimental.Counter(dtype=tf.int32).take(2)
    assert small.output_types == tf.int32
    assert listed(sess, small) == [0, 1]
    pairs = Dataset.from_tensor_slices(["a", "b"]).apply(experimental.enumerate_dataset(4))
    assert elements(sess, pairs) == [(4, b"a"), (5, b"b")]


def test_rows_of_batches(sess: Any) -> None:
    assert listed(sess, Dataset.range(5).batch(2).unbatch()) == list(range(5))


def test_serialized_examples(sess: Any) -> None:
    pytest.importorskip("google.protobuf", reason="needs protobuf: aioqueue[tfrecord]")
    rows = [
        tf.train.Example(
            features=tf.train.Features(
                feature={"n": tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))}
            )
        ).SerializeToString()
        for number in (7, 8, 9)
    ]
    parse = experimental.parse_example_dataset({"n": tf.FixedLenFeature([], tf.int64)})
    made = Dataset.from_tensor_slices(rows).batch(2).apply(parse).map(lambda found: found["n"])
    assert listed(sess, made) == [[7, 8], [9]]


def test_what_has_no_effect(sess: Any) -> None:
    options: Any = tf.data.Options()
    assert options.experimental_deterministic is None
    options.experimental_deterministic = False
    options.experimental_optimization.map_fusion = True
    options.experimental_threading = experimental.ThreadingOptions()
    assert tf.data.Options().merge(options).experimental_deterministic is False
    made = Dataset.range(3).map(lambda n: n + 1, num_parallel_calls=experimental.AUTOTUNE)
    made = made.with_options(options).prefetch(tf.data.AUTOTUNE)
    made = made.apply(experimental.copy_to_device("/gpu:0"))
    made = made.apply(experimental.prefetch_to_device("/gpu:0", buffer_size=2))
    assert listed(sess, made) == [1, 2, 3]
    assert isinstance(made.options(), tf.data.Options)
    assert not hasattr(options, "_private")


def test_the_form_of_elements() -> None:
    dataset = Dataset.from_tensors({"a": tf.SparseTensor([[0]], [1], [2]), "b": "x"})
    for one in (dataset, tf.data.make_one_shot_iterator(dataset)):
        assert tf.data.get_output_types(one) == {"a": tf.int32, "b": tf.string}
        assert tf.data.get_output_shapes(one)["b"] == []
        assert tf.data.get_output_classes(one) == {"a": tf.SparseTensor, "b": tf.Tensor}
