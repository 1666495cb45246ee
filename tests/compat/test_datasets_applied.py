"""Functions for `Dataset.apply`, and what is asked of a dataset without effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import aioqueue.compat.v1 as tf
from tests.compat.test_datasets import listed

Dataset, experimental = tf.data.Dataset, tf.data.experimental


def quotients() -> Any:
    """12 divided by numbers, one of which is zero."""
    return Dataset.range(4).map(lambda n: tf.check_numerics(12.0 / tf.to_float(n), "not finite"))


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


def test_rows_of_batches(sess: Any) -> None:
    assert listed(sess, Dataset.range(5).batch(2).unbatch()) == list(range(5))


def test_the_form_of_elements() -> None:
    dataset = Dataset.from_tensors({"a": tf.SparseTensor([[0]], [1], [2]), "b": "x"})
    for one in (dataset, tf.data.make_one_shot_iterator(dataset)):
        assert tf.data.get_output_types(one) == {"a": tf.int32, "b": tf.string}
        assert tf.data.get_output_shapes(one)["b"] == []
        assert tf.data.get_output_classes(one) == {"a": tf.SparseTensor, "b": tf.Tensor}
