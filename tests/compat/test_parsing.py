"""Serialized examples, where no record of TensorFlow tells: words of our own, and damage."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.serialized import Slot, damaged, field, record
from tests.compat.steps import refused

pytest.importorskip("google.protobuf", reason="the extra `tfrecord` is not installed")


def test_there_is_one_class_of_each() -> None:
    assert tf.train.Example is tf.train.Example


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        (3, ValueError, "^Unsupported int 3 for key 'i'"),
        (tf.FixedLenSequenceFeature([], tf.int64), ValueError, "requires allow_missing"),
        (tf.FixedLenFeature([], tf.int32), TypeError, "DataType int32 not in list of allowed"),
        (
            tf.FixedLenFeature([None], tf.int64),
            ValueError,
            "^First dimension of shape for feature i unknown",
        ),
        (tf.FixedLenFeature([3, None], tf.int64), ValueError, "^All dimensions of shape for"),
        (tf.FixedLenFeature([3], tf.int64, [1, 2]), ValueError, "2 elements to shape"),
        (tf.FixedLenFeature([3], tf.int64, 5), ValueError, "1 elements to shape"),
        (tf.FixedLenFeature([], tf.int64, 1.5), TypeError, "Expected int64, but got 1.5"),
        (tf.SparseFeature(["a", "b"], "i", tf.int64, [2]), ValueError, "2 keys and 1 sizes"),
    ],
)
def test_wrong_features_are_refused_at_once(
    wanted: Any, error: type[Exception], message: str
) -> None:
    refused(error, message, tf.parse_single_example, b"", {"i": wanted})


def test_wrong_arguments_are_refused_at_once() -> None:
    refused(ValueError, "features cannot be None", tf.parse_single_example, b"", None)
    refused(ValueError, "features cannot be empty", tf.parse_single_example, b"", {})
    with pytest.raises(ValueError, match="Input serialized must be a scalar"):
        tf.parse_single_example([b""], {"i": tf.VarLenFeature(tf.int64)})
    with pytest.raises(ValueError, match="expected a vector of strings"):
        tf.parse_example([[b""]], {"i": tf.VarLenFeature(tf.int64)})
    with pytest.raises(ValueError, match="Unsupported FixedLenFeature"):
        tf.parse_single_sequence_example(b"", None, {"l": tf.FixedLenFeature([], tf.int64)})


@pytest.mark.parametrize("entry", [b"\x0a\x01i", b"\x12\x00", b"\x0a\x01i\x12\x00\x12\x00"])
def test_an_entry_has_two_fields(sess: Any, entry: bytes) -> None:
    data = field(0x0A, field(0x0A, entry))
    parsed = tf.parse_example([data], {"i": tf.VarLenFeature(tf.int64)})
    refused(tf.errors.InvalidArgumentError, "Could not parse example input", sess.run, parsed)
    sequence = tf.parse_single_sequence_example(data[:-1], {"i": tf.VarLenFeature(tf.int64)})
    with pytest.raises(tf.errors.InvalidArgumentError, match="Could not parse sequence example"):
        sess.run(sequence[0])


def test_a_batch_of_a_sparse_feature_knows_its_size() -> None:
    sparse = tf.SparseFeature("at", "v", tf.int64, 4)
    found = tf.parse_example([b"", b""], {"sparse": sparse})["sparse"]
    assert found.get_shape().as_list() == [2, 4]


def steps(*rows: Any) -> bytes:
    """A sequence example with one list, of int64, of bytes, or of nothing where None."""
    made = tf.train.SequenceExample()
    for row in rows:
        one = made.feature_lists.feature_list["a"].feature.add()
        if row is not None:
            kind = one.bytes_list if row and isinstance(row[0], bytes) else one.int64_list
            kind.value.extend(row)
    data: bytes = made.SerializeToString()
    return data


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        (([1, 2], [b"x"]), tf.FixedLenSequenceFeature((2,), tf.int64), "Feature list: a, Index: 1"),
        (([1], [b"x"]), tf.VarLenFeature(tf.int64), "Feature list: a, Index: 1"),
        (([1, 2], None), tf.FixedLenSequenceFeature((2,), tf.int64), "Key: a, Index: 1"),
        (([1], [1, 2, 3]), tf.FixedLenSequenceFeature((2,), tf.int64), "Key: a, Index: 0"),
    ],
)
def test_a_step_that_is_wrong_is_named(sess: Any, rows: Any, kind: Any, message: str) -> None:
    for name, shown in ((None, "<unknown>"), ("in1", "in1")):
        made = tf.parse_single_sequence_example(
            steps(*rows), sequence_features={"a": kind}, example_name=name
        )
        refused(tf.errors.InvalidArgumentError, f"^Name: {shown}, {message}", sess.run, made)


def test_steps_that_cannot_be_of_one_size_are_reported_all_at_once(sess: Any) -> None:
    wanted = {"a": tf.FixedLenSequenceFeature((2,), tf.int64)}
    made = tf.parse_single_sequence_example(steps([1, 2], [1, 2, 3]), sequence_features=wanted)
    message = r"Total values size: 5 is not consistent with output shape: \[\?,2\]"
    refused(tf.errors.InvalidArgumentError, message, sess.run, made)


def test_names_are_as_many_as_examples_or_none(sess: Any) -> None:
    features = {"a": tf.FixedLenFeature([], tf.int64, 3)}

    def parsed(names: Any) -> Any:
        found = tf.parse_example(["", ""], features, example_names=names)
        return sess.run(found["a"]).tolist()

    assert parsed(np.empty(0, object)) == parsed(["x", "y"]) == [3, 3]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"name\.shape=\[1\], ser\w+\.shape=\[2\]"
    ):
        parsed(["x"])


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            {"a": tf.FixedLenFeature([], tf.int64), "s": tf.SparseFeature("a", "v", tf.int64, 5)},
            "Dense and sparse keys must not intersect",
        ),
        (
            {"a": tf.VarLenFeature(tf.string), "s": tf.SparseFeature("a", "v", tf.int64, 5)},
            "Conflicting type string vs int64 for feature a",
        ),
    ],
)
def test_features_that_share_a_key(features: Any, message: str) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        tf.parse_example([b""], features)


def test_the_first_wrong_example_is_reported() -> None:
    """Whatever columns come first."""
    good = field(0x0A, field(0x0A, field(0x0A, b"i") + field(0x12, b"\x1a\x03\x0a\x01\x01")))
    wanted = {"a": tf.VarLenFeature(tf.int64), "i": tf.FixedLenFeature([], tf.int64)}
    wrong = field(0x0A, field(0x0A, field(0x0A, b"a") + field(0x12, b"\x12\x02\x0a\x00")))
    with tf.Graph().as_default(), tf.Session() as session:
        parsed = tf.parse_example([good] * 8 + [field(0x0A, b""), wrong], wanted)
        refused(tf.errors.InvalidArgumentError, "Feature: i", session.run, parsed)


NUMBERS = [sign * 2**power + more for power in range(63) for sign in (1, -1) for more in (-1, 0, 1)]


def test_damaged_records_are_refused_or_read() -> None:
    """Whatever is in them, nothing else is raised, and those around them are read as before."""
    slots = [Slot("i", "int64", 1), Slot("s", "string"), Slot("f", "float", 3)]
    draw = random.Random(4)
    serialized = tf.placeholder(tf.string, [None])
    wanted = {
        "i": tf.FixedLenFeature([], tf.int64, 5),
        "s": tf.VarLenFeature(tf.string),
        "f": tf.FixedLenFeature([3], tf.float32, [1.0, 2.0, 3.0]),
    }
    parsed = tf.parse_example(serialized, wanted)
    refused = 0
    with tf.Session() as session:
        for _ in range(300):
            whole = record(draw, slots, plain=True)
            odd = damaged(draw, record(draw, slots, plain=draw.random() < 0.5))
            try:
                found = session.run(parsed, {serialized: [whole, odd]})
            except tf.errors.InvalidArgumentError:
                refused += 1
            else:
                (single,) = session.run(parsed["i"], {serialized: [whole]})
                assert found["i"][0] == single
    assert 30 < refused < 270
