"""What random programs beside TensorFlow have found, and no record tells: who failed, and when."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.queues.resources import QueueResource
from tests.compat.steps import refused
from tests.kit.worlds import spin_until


def test_the_parts_of_a_sampled_box_have_names() -> None:
    sampled = tf.image.sample_distorted_bounding_box([20, 30, 3], [[[0.1, 0.2, 0.8, 0.9]]])
    assert sampled._fields == ("begin", "size", "bboxes")
    assert sampled.bboxes is sampled[2]


class TestNamesOfOps:
    """Later ops and errors show them, as scripts print both."""

    def test_exclusive_or_is_made_of_others(self, sess: Any) -> None:
        few, many = (tf.placeholder_with_default([True] * count, None) for count in (3, 7))
        names = [tf.logical_xor(few, many).op.name, tf.logical_and(few, few).op.name]
        assert names == ["LogicalXor", "LogicalAnd_1"]
        assert failed_op(sess, tf.logical_xor(few, many)) == "LogicalOr_1"
        assert failed_op(sess, few ^ many) == "xor/LogicalOr"
        assert sess.run(tf.constant([True, True, False]) ^ few).tolist() == [False, False, True]

    def test_python_values_are_constants_within_the_op(self) -> None:
        tf.logical_and([True, False], True)
        assert [op.name for op in tf.get_default_graph().get_operations()] == [
            *("LogicalAnd/x", "LogicalAnd/y", "LogicalAnd")
        ]


@pytest.mark.parametrize("value", [[1, "a"], ["a", 1], [[1], [b"a"]], ["a", None], [None], {1: 2}])
def test_what_cannot_be_a_tensor_is_said_in_its_words(value: Any) -> None:
    with pytest.raises(TypeError, match="Consider casting elements to a supported type") as caught:
        tf.convert_to_tensor(value)
    assert repr(value) in str(caught.value)


def failure(sess: Any, fetch: Any) -> tf.OpError:
    with pytest.raises(tf.OpError) as caught:
        sess.run(fetch)
    return caught.value


def failed_op(sess: Any, fetch: Any) -> str:
    op = failure(sess, fetch).op
    assert op is not None
    return op.name


def message(error: tf.OpError) -> str:
    """What an error says, without the line that says where."""
    return error.message.partition("\n")[0]


class TestAssertions:
    def test_text_is_shown_as_c_spells_it(self, sess: Any) -> None:
        failed = failure(sess, tf.Assert(tf.constant(False), [b'a"b\n\xc3\\']))
        assert message(failed) == 'assertion failed: [a\\"b\\n\\303\\\\]'

    def test_they_are_named_as_there(self, sess: Any) -> None:
        x = tf.placeholder_with_default(-1, [])
        for made, scope in (
            (tf.assert_equal(x, 5), "assert_equal_1"),
            (tf.assert_non_negative(x), "assert_non_negative/assert_less_equal"),
            (tf.assert_positive(x), "assert_positive/assert_less"),
        ):
            failed = failure(sess, made)
            assert failed.op is not None
            assert failed.op.name.startswith(f"{scope}/Assert")

    def test_they_say_what_is_said_there(self, sess: Any) -> None:
        failed = failure(sess, tf.assert_non_positive(tf.placeholder_with_default(1, [])))
        assert "[Condition x <= 0 did not hold element-wise:x (" in failed.message


def test_tables_are_named_as_there(sess: Any) -> None:
    given = tf.lookup.KeyValueTensorInitializer(["a", "a"], [1, 2])
    table = tf.lookup.StaticHashTable(given, -1)
    assert table.init.name == "key_value_init/LookupTableImportV2"
    assert table.lookup(tf.constant("a")).op.name == "hash_table_Lookup"


def test_a_table_of_a_file_is_named_as_there(tmp_path: Path) -> None:
    given = tf.lookup.TextFileInitializer(
        str(tmp_path / "words"),
        tf.string,
        tf.lookup.TextFileIndex.WHOLE_LINE,
        tf.int64,
        tf.lookup.TextFileIndex.LINE_NUMBER,
    )
    table = tf.lookup.StaticHashTable(given, -1)
    assert table.init.name == "text_file_init/InitializeTableFromTextFileV2"


def test_what_is_no_example_is_shown_as_there(sess: Any) -> None:
    pytest.importorskip("google.protobuf", reason="the extra `tfrecord` is not installed")
    parsed = tf.parse_single_example(b"no\xc3", {"a": tf.VarLenFeature(tf.int64)})
    failed = failure(sess, parsed)
    assert message(failed) == r"Could not parse example input, value: 'no\303'"
    batch = tf.parse_example([b"\xc3\xa9\t"], {"a": tf.VarLenFeature(tf.int64)})
    assert message(failure(sess, batch)) == "Could not parse example input, value: 'é\t'"


def test_nothing_is_no_tensor(sess: Any) -> None:
    failed = failure(sess, tf.parse_tensor(b"", tf.int32))
    assert message(failed) == "Cannot parse tensor from proto: "


def test_the_last_place_that_is_not_there_is_reported(sess: Any) -> None:
    slices = tf.placeholder_with_default(np.ones(3, np.float32), [None])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"^indices\[2\] = \[7\] does not"):
        sess.run(tf.gather_nd(slices, [[9], [0], [7]]))


def test_a_close_that_is_late_is_late_whatever_became_of_it(
    sess: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused_late(resource: Any, **options: Any) -> None:
        began = perf_counter()
        spin_until(lambda: perf_counter() > began + 0.002)
        raise tf.errors.CancelledError(None, None, "Queue is already closed.")

    close = tf.FIFOQueue(1, [tf.int32], [[]]).close()
    monkeypatch.setattr(QueueResource, "close", refused_late)
    refused(tf.errors.CancelledError, "is already closed", sess.run, close)
    with pytest.raises(tf.errors.DeadlineExceededError, match=r"^Timed out waiting"):
        sess.run(close, options=tf.RunOptions(timeout_in_ms=1))
