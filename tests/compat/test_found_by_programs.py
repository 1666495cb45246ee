"""What random programs beside TensorFlow have found: each was otherwise there."""

from __future__ import annotations

import re
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.queues.resources import QueueResource
from tests.kit.worlds import spin_until


@pytest.mark.parametrize(
    ("axis", "joined"),
    [([0, 1], b"acbd"), ([1, 0], b"abcd"), (None, b"abcd"), (-1, [b"ab", b"cd"])],
)
def test_reduce_join_joins_one_axis_after_another(sess: Any, axis: Any, joined: Any) -> None:
    made = sess.run(tf.reduce_join([["a", "b"], ["c", "d"]], axis))
    assert (made.tolist() if isinstance(joined, list) else made) == joined


def test_the_parts_of_a_sampled_box_have_names() -> None:
    sampled = tf.image.sample_distorted_bounding_box([20, 30, 3], [[[0.1, 0.2, 0.8, 0.9]]])
    assert sampled._fields == ("begin", "size", "bboxes")
    assert sampled.bboxes is sampled[2]


class TestSparseTensors:
    SPARSE = tf.SparseTensorValue([[0, 1], [1, 0]], [5, 6], [2, 2])

    def test_a_reshape_that_cannot_be_is_refused_at_once(self) -> None:
        given = tf.SparseTensor(*self.SPARSE)
        with pytest.raises(ValueError, match=r"4 elements to shape \[3, 5\] \(15 elements\)"):
            tf.sparse_reshape(given, [3, 5])
        assert tf.sparse_reshape(given, [4, -1]).dense_shape.shape.as_list() == [2]

    def test_what_is_left_open_in_a_new_shape_is_found(self, sess: Any) -> None:
        given = tf.SparseTensor(*self.SPARSE)
        made = tf.sparse_reshape(given, [1, -1])
        assert made.get_shape().as_list() == [1, 4]
        assert sess.run(made).dense_shape.tolist() == [1, 4]
        with pytest.raises(ValueError, match="At most one dimension can be inferred"):
            tf.sparse_reshape(given, [-1, -1])
        assert tf.sparse_reshape(given, [0, -1]).get_shape().as_list() == [0, None]

    def test_a_reshape_computes_with_indices_that_are_out_of_bounds(self, sess: Any) -> None:
        given = tf.SparseTensor([[3, 0], [1, 2]], [1, 2], [3, 4])
        assert sess.run(tf.sparse_reshape(given, [4, 3])).indices.tolist() == [[4, 0], [2, 0]]
        none = tf.SparseTensor(np.zeros((0, 2), np.int64), np.zeros(0, np.int32), [0, 4])
        assert sess.run(tf.sparse_reshape(none, [2, 0, 3])).indices.shape == (0, 3)

    @pytest.mark.parametrize(
        ("indices", "what"),
        [
            ([[0, 1], [0, 0], [2, 0]], r"indices\[1\] = \[0,0\] is out of order"),
            ([[0, 1], [2, 0], [0, 0]], r"indices\[1\] = \[2,0\] is out of bounds"),
            ([[0, 1], [0, 1], [2, 0]], r"indices\[1\] = \[0,1\] is repeated"),
        ],
    )
    def test_the_first_wrong_index_is_told(self, sess: Any, indices: Any, what: str) -> None:
        dense = tf.sparse_tensor_to_dense(tf.SparseTensor(indices, [1, 2, 3], [2, 2]))
        with pytest.raises(tf.errors.InvalidArgumentError, match=what):
            sess.run(dense)

    def test_the_size_of_a_sparse_feature_is_known(self) -> None:
        pytest.importorskip("google.protobuf", reason="the extra `tfrecord` is not installed")
        feature = {"s": tf.SparseFeature("places", "values", tf.float32, 400)}
        assert tf.parse_single_example(b"", feature)["s"].get_shape().as_list() == [400]
        assert tf.parse_example([b"", b""], feature)["s"].get_shape().as_list() == [2, 400]


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
            *("LogicalAnd/x", "LogicalAnd/y", "LogicalAnd"),
        ]

    def test_an_array_on_the_left_is_left_to_the_tensor(self) -> None:
        x = tf.constant([1.0, 2.0])
        made: list[Any] = [np.ones(2) - x, np.float64(2.5) * x, np.ones(2) < x, np.ones(2) >= x]
        assert [one.op.name for one in made] == ["sub", "mul", "Greater", "LessEqual"]

    def test_versions_of_ops(self) -> None:
        image = tf.zeros([2, 2, 3], tf.uint8)
        made = [
            tf.pad([1], [[1, 0]]),
            tf.pad([1], [[1, 0]], constant_values=7),
            tf.regex_replace(["ab"], "a", "b"),
            tf.regex_replace(["ab"], tf.constant("a"), "b"),
            tf.strings.split(["a b"]).values,
            tf.image.convert_image_dtype(image, tf.uint8),
        ]
        assert [one.op.name for one in made] == [
            *("Pad", "PadV2", "StaticRegexReplace", "RegexReplace"),
            *("StringSplit/StringSplitV2", "Identity"),
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
    def test_a_row_that_is_not_shown_to_its_end_has_dots(self, sess: Any) -> None:
        data = tf.constant([[1, 2], [3, 4], [5, 6]])
        failed = failure(sess, tf.Assert(tf.constant(False), [data], summarize=3))
        assert message(failed) == "assertion failed: [[1 2][3...]...]"
        failed = failure(sess, tf.Assert(tf.constant(False), [data], summarize=4))
        assert message(failed) == "assertion failed: [[1 2][3 4]...]"

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


@pytest.mark.parametrize(
    "spread",
    [
        lambda sparse: tf.sparse_to_indicator(sparse, 20),
        lambda sparse: tf.sparse_tensor_to_dense(sparse, validate_indices=False),
    ],
)
def test_an_index_beyond_the_shape_is_an_invalid_argument(sess: Any, spread: Any) -> None:
    sparse = tf.SparseTensor([[2, 0]], [4], [2, 1])
    failed = failure(sess, spread(tf.cast(sparse, tf.int64)))
    assert isinstance(failed, tf.errors.InvalidArgumentError)
    assert message(failed).startswith("Indices are not valid (out of bounds).  Shape: [2,")


def test_a_table_that_is_not_filled_has_no_keys(sess: Any) -> None:
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1]), -1)
    size = table.size()
    assert sess.run(size) == 0
    sess.run(table.init)
    assert sess.run(size) == 1


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


@pytest.mark.parametrize("delimiters", [",", ", "])
def test_nothing_has_no_pieces(sess: Any, delimiters: str) -> None:
    split = tf.string_split(["", "a,"], delimiters, skip_empty=False)
    assert sess.run(split).indices.tolist() == [[1, 0], [1, 1]]


def test_what_is_no_example_is_shown_as_there(sess: Any) -> None:
    pytest.importorskip("google.protobuf", reason="the extra `tfrecord` is not installed")
    parsed = tf.parse_single_example(b"no\xc3", {"a": tf.VarLenFeature(tf.int64)})
    failed = failure(sess, parsed)
    assert message(failed) == r"Could not parse example input, value: 'no\303'"
    batch = tf.parse_example([b"\xc3\xa9\t"], {"a": tf.VarLenFeature(tf.int64)})
    assert message(failure(sess, batch)) == "Could not parse example input, value: 'é\t'"


def test_what_comes_behind_the_last_column_need_not_make_sense(sess: Any) -> None:
    (column,) = tf.decode_csv('"a",1,b"', [[""]], select_cols=[0])
    assert sess.run(column) == b"a"
    failed = failure(sess, tf.decode_csv('"a",b",1', [[""]], select_cols=[2]))
    assert message(failed) == "Unquoted fields cannot have quotes/CRLFs inside"


def test_a_choice_tells_the_shape_of_what_is_chosen() -> None:
    x = tf.placeholder_with_default(np.ones([2, 3]), [None, 3])
    choice = tf.constant([[True] * 3] * 2)
    assert tf.where(choice, x, x).shape.as_list() == [2, 3]
    assert tf.where(choice[:, 0], x, x).shape.as_list() == [None, 3]


def test_nothing_is_no_tensor(sess: Any) -> None:
    failed = failure(sess, tf.parse_tensor(b"", tf.int32))
    assert message(failed) == "Cannot parse tensor from proto: "


def test_what_is_not_there_cannot_be_removed(tmp_path: Path) -> None:
    with pytest.raises(tf.errors.NotFoundError, match=r"/none not found$"):
        tf.gfile.DeleteRecursively(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("indices", "what"),
    [
        ([[0, 1], [3, 0]], r"indices[1] = [3,0] is out of bounds: need 0 <= index < [3,2]"),
        ([[1, 1], [0, 0]], "indices[1] = [0,0] is out of order."),
        ([[0, 0], [0, 0]], "indices[1] = [0,0] is repeated"),
    ],
)
def test_what_is_serialized_has_its_indices_in_order(
    sess: Any, indices: list[list[int]], what: str
) -> None:
    sparse = tf.SparseTensor(np.array(indices, "int64"), np.array([1.0, 2.0]), [3, 2])
    assert message(failure(sess, tf.serialize_many_sparse(sparse))).startswith(what)


def test_a_folder_in_the_way_of_a_copy_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").mkdir()
    with pytest.raises(tf.errors.FailedPreconditionError) as refused:
        tf.gfile.Copy(str(tmp_path / "a"), str(tmp_path / "b"), overwrite=True)
    assert refused.value.message == f"{tmp_path / 'b'}; Is a directory"


def test_a_producer_of_no_rows_tells_of_its_epochs_first() -> None:
    with pytest.raises(ValueError, match="num_epochs must be > 0 not -1"):
        tf.train.input_producer(5, num_epochs=-1)
    with pytest.raises(ValueError, match="must have rank at least 1"):
        tf.train.input_producer(5)


def test_a_copy_of_nothing_onto_a_folder_names_what_is_missing(tmp_path: Path) -> None:
    missing, folder = str(tmp_path / "none"), str(tmp_path)
    with pytest.raises(tf.errors.NotFoundError, match=f"^{re.escape(missing)}; No such file"):
        tf.gfile.Copy(missing, folder, overwrite=True)


def sparse(indices: Any, values: Any = (1.5, 2.5)) -> Any:
    """A sparse 3 by 2 matrix of which no static shape is known."""
    return tf.SparseTensor(
        tf.placeholder_with_default(np.array(indices, np.int64).reshape(-1, 2), [None, 2]),
        tf.placeholder_with_default(np.array(values, np.float32), [None]),
        tf.placeholder_with_default(np.array([3, 2], np.int64), [2]),
    )


def test_the_last_place_that_is_not_there_is_told(sess: Any) -> None:
    slices = tf.placeholder_with_default(np.ones(3, np.float32), [None])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"^indices\[2\] = \[7\] does not"):
        sess.run(tf.scatter_nd([[9], [0], [7]], slices, [5]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"^indices\[2\] = \[7\] does not"):
        sess.run(tf.gather_nd(slices, [[9], [0], [7]]))


def test_a_vocabulary_that_is_not_filled_has_the_numbers_beyond(sess: Any) -> None:
    source = tf.lookup.KeyValueTensorInitializer(["a"], [0], tf.string, tf.int64)
    table = tf.lookup.StaticVocabularyTable(source, 3)
    size = table.size()
    assert sess.run(size) == 3
    sess.run(tf.tables_initializer())
    assert sess.run(size) == 4


def test_what_is_repeated_no_times_has_no_rows() -> None:
    x = tf.placeholder(tf.int64, [None, 3, 0])
    assert tf.tile(x, [0, 2, 5]).shape.as_list() == [0, 6, 0]
    assert tf.tile(x, tf.placeholder(tf.int32, [3])).shape.as_list() == [None, None, 0]
    assert tf.tile(tf.placeholder(tf.int32), [3, 0]).shape.as_list() == [None, 0]
    assert tf.tile(tf.placeholder(tf.int32), []).shape.as_list() == []
    assert tf.tile(tf.placeholder(tf.int32, []), tf.placeholder(tf.int32)).shape.as_list() == []
    assert tf.tile(tf.placeholder(tf.int32), tf.placeholder(tf.int32)).shape.ndims is None


def test_old_names_of_divisions_name_ops() -> None:
    with tf.Graph().as_default():
        assert tf.floor_div(7, 2).op.name == "FloorDiv"
    with tf.Graph().as_default():
        assert tf.floordiv(7, 2).op.name == "floordiv"


def test_a_picture_of_which_nothing_is_left_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"must be > 0: \(1, 0, 2, 3\)"):
        tf.image.resize_image_with_pad(tf.zeros([3, 8, 3]), 8, 2)
    made = tf.image.resize_image_with_pad(tf.zeros([3, 8, 3]), tf.constant(2), tf.constant(9))
    assert made.shape.as_list() == [2, 9, 3]


def test_a_close_that_is_late_is_late_whatever_became_of_it(
    sess: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused_late(resource: Any, **options: Any) -> None:
        began = perf_counter()
        spin_until(lambda: perf_counter() > began + 0.002)
        raise tf.errors.CancelledError(None, None, "Queue is already closed.")

    close = tf.FIFOQueue(1, [tf.int32], [[]]).close()
    monkeypatch.setattr(QueueResource, "close", refused_late)
    with pytest.raises(tf.errors.CancelledError, match="is already closed"):
        sess.run(close)
    with pytest.raises(tf.errors.DeadlineExceededError, match=r"^Timed out waiting"):
        sess.run(close, options=tf.RunOptions(timeout_in_ms=1))
