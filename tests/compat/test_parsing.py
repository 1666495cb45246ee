"""`tf.train.Example`: its messages, and the tensors that are parsed from them."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.serialized import Slot, damaged, field, number, record

pytest.importorskip("google.protobuf", reason="the extra `tfrecord` is not installed")

LISTS = {bytes: "bytes_list", float: "float_list", int: "int64_list"}


def feature(*values: Any) -> Any:
    """A feature of the kind of its values; of none without values."""
    if not values:
        return tf.train.Feature()
    kind = {bytes: tf.train.BytesList, float: tf.train.FloatList, int: tf.train.Int64List}
    made = kind[type(values[0])](value=values)
    return tf.train.Feature(**{LISTS[type(values[0])]: made})


def example(**features: list[Any]) -> bytes:
    lists = {name: feature(*values) for name, values in features.items()}
    message = tf.train.Example(features=tf.train.Features(feature=lists))
    data: bytes = message.SerializeToString()
    return data


FIRST = example(i=[1, 2, 3], s=[b"x"], f=[1.5], none=[])
SECOND = example(i=[4], s=[b"y", b"z"])
UNKNOWN = "Name: <unknown>, "


class TestMessages:
    def test_the_wire_format(self) -> None:
        """Field numbers and types are TensorFlow's."""
        assert example(i=[1, 300]) == b"\n\x0e\n\x0c\n\x01i\x12\x07\x1a\x05\n\x03\x01\xac\x02"
        assert example(s=[b"ab"]) == b"\n\x0d\n\x0b\n\x01s\x12\x06\n\x04\n\x02ab"
        assert example(f=[1.0]) == b"\n\x0f\n\x0d\n\x01f\x12\x08\x12\x06\n\x04\x00\x00\x80?"

    def test_they_read_what_they_write(self) -> None:
        message = tf.train.Example.FromString(FIRST)
        assert list(message.features.feature["i"].int64_list.value) == [1, 2, 3]
        assert message.features.feature["none"].WhichOneof("kind") is None
        assert message.SerializeToString(deterministic=True) == tf.train.Example.FromString(
            message.SerializeToString()
        ).SerializeToString(deterministic=True)

    def test_there_is_one_class_of_each(self) -> None:
        assert tf.train.Example is tf.train.Example
        assert tf.train.Example.DESCRIPTOR.full_name == "tensorflow.Example"

    def test_values_of_a_wrong_type_are_refused(self) -> None:
        with pytest.raises(TypeError):
            tf.train.Int64List(value=["a"])


class TestParseSingleExample:
    def test_features(self, sess: Any) -> None:
        parsed = tf.parse_single_example(
            FIRST,
            {
                "i": tf.FixedLenFeature([3], tf.int64),
                "s": tf.FixedLenFeature([], tf.string),
                "f": tf.VarLenFeature(tf.float32),
            },
        )
        assert parsed["i"].shape.as_list() == [3]
        assert parsed["s"].shape.as_list() == []
        assert parsed["f"].dtype == tf.float32
        values = sess.run(parsed)
        assert values["i"].tolist() == [1, 2, 3]
        assert values["s"] == b"x"
        assert isinstance(values["f"], tf.SparseTensorValue)
        assert [part.tolist() for part in values["f"]] == [[[0]], [1.5], [1]]

    def test_defaults_stand_for_what_is_missing(self, sess: Any) -> None:
        parsed = tf.parse_single_example(
            FIRST,
            {
                "z": tf.FixedLenFeature([], tf.int64, 7),
                "y": tf.FixedLenFeature([2], tf.float32, [1, 2]),
                "none": tf.FixedLenFeature([], tf.string, "text"),
                "i": tf.FixedLenFeature([3], tf.int64, [0, 0, 0]),
            },
        )
        values = sess.run(parsed)
        assert values["z"] == 7
        assert values["y"].tolist() == [1, 2]
        assert values["none"] == b"text"
        assert values["i"].tolist() == [1, 2, 3]

    def test_rows_of_any_number(self, sess: Any) -> None:
        parsed = tf.parse_single_example(
            FIRST,
            {
                "i": tf.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
                "z": tf.FixedLenSequenceFeature([2], tf.float32, allow_missing=True),
                "none": tf.VarLenFeature(tf.int64),
            },
        )
        assert parsed["z"].shape.as_list() == [None, 2]
        values = sess.run(parsed)
        assert values["i"].tolist() == [1, 2, 3]
        assert values["z"].shape == (0, 2)
        assert values["none"].indices.shape == (0, 1)

    @pytest.mark.parametrize(
        ("name", "wanted", "message"),
        [
            (
                "z",
                tf.FixedLenFeature([], tf.int64),
                r"^Feature: z \(data type: int64\) is required but could not be found\.",
            ),
            (
                "none",
                tf.FixedLenFeature([], tf.int64),
                r"^Feature: none \(data type: int64\) is required but could not be found\.",
            ),
            (
                "i",
                tf.FixedLenFeature([2], tf.int64),
                r"^Key: i\.  Can't parse serialized Example: Some int64_list slice was not"
                r" parsed\.",
            ),
            (
                "i",
                tf.FixedLenFeature([3], tf.float32),
                r"^Key: i\.  Data types don't match\. Data type: int64 but expected type: float",
            ),
            (
                "i",
                tf.VarLenFeature(tf.string),
                r"^Key: i\.  Data types don't match\. Expected type: string, Actual type: int64",
            ),
            (
                "i",
                tf.FixedLenSequenceFeature([2], tf.int64, allow_missing=True),
                r"^Error while parsing feature with key i: number of elements should be"
                r" divisible by 2, found 3 instead",
            ),
        ],
    )
    def test_what_does_not_fit_is_told(
        self, sess: Any, name: str, wanted: Any, message: str
    ) -> None:
        parsed = tf.parse_single_example(FIRST, {name: wanted})
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            sess.run(parsed)

    def test_what_is_no_example(self, sess: Any) -> None:
        parsed = tf.parse_single_example(b"abc", {"i": tf.VarLenFeature(tf.int64)})
        with pytest.raises(tf.errors.InvalidArgumentError, match="Could not parse example input"):
            sess.run(parsed)

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
        self, wanted: Any, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            tf.parse_single_example(FIRST, {"i": wanted})

    def test_wrong_arguments_are_refused_at_once(self) -> None:
        with pytest.raises(ValueError, match="features cannot be None"):
            tf.parse_single_example(FIRST, None)
        with pytest.raises(ValueError, match="features cannot be empty"):
            tf.parse_single_example(FIRST, {})
        with pytest.raises(ValueError, match="Input serialized must be a scalar"):
            tf.parse_single_example([FIRST], {"i": tf.VarLenFeature(tf.int64)})


class TestParseExample:
    def test_sparse_features(self, sess: Any) -> None:
        parsed = tf.parse_example([FIRST, SECOND], {"s": tf.VarLenFeature(tf.string)})
        found = sess.run(parsed["s"])
        assert found.indices.tolist() == [[0, 0], [1, 0], [1, 1]]
        assert found.values.tolist() == [b"x", b"y", b"z"]
        assert found.dense_shape.tolist() == [2, 2]

    def test_dense_features(self, sess: Any) -> None:
        parsed = tf.parse_example(
            [FIRST, SECOND],
            {
                "f": tf.FixedLenFeature([1], tf.float32, [0.0]),
                "i": tf.FixedLenSequenceFeature([], tf.int64, True, default_value=-1),
                "s": tf.FixedLenSequenceFeature([1], tf.string, True),
            },
        )
        assert parsed["f"].shape.as_list() == [2, 1]
        assert parsed["s"].shape.as_list() == [2, None, 1]
        values = sess.run(parsed)
        assert values["f"].tolist() == [[1.5], [0.0]]
        assert values["f"].dtype == np.float32
        assert values["i"].tolist() == [[1, 2, 3], [4, -1, -1]]
        assert values["s"].tolist() == [[[b"x"], [b""]], [[b"y"], [b"z"]]]

    def test_no_examples_at_all(self, sess: Any) -> None:
        serialized = tf.placeholder(tf.string, [None])
        parsed = tf.parse_example(
            serialized,
            {"f": tf.FixedLenFeature([2], tf.float32), "i": tf.VarLenFeature(tf.int64)},
        )
        values = sess.run(parsed, {serialized: np.array([], object)})
        assert values["f"].shape == (0, 2)
        assert [part.tolist() for part in values["i"]] == [[], [], [0, 0]]

    def test_a_sparse_feature_of_two(self, sess: Any) -> None:
        rows = [example(at=[2, 0], v=[5, 6]), example(), example(at=[1], v=[7])]
        sparse = tf.SparseFeature("at", "v", tf.int64, 4)
        found = sess.run(tf.parse_example(rows, {"sparse": sparse})["sparse"])
        assert found.indices.tolist() == [[0, 0], [0, 2], [2, 1]]
        assert found.values.tolist() == [6, 5, 7]
        assert found.dense_shape.tolist() == [3, 4]
        wrong = tf.parse_single_example(example(at=[1], v=[5, 6]), {"sparse": sparse})
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"\(1\) and values \(2\) do not"):
            sess.run(wrong["sparse"])

    @pytest.mark.parametrize(
        ("wanted", "message"),
        [
            (
                tf.FixedLenFeature([3], tf.int64),
                r"Key: i, Index: 1\.  Number of int64 values != expected\.  Values size: 1 but",
            ),
            (
                tf.VarLenFeature(tf.float32),
                r"Key: i, Index: 0\.  Data types don't match\. Expected type: float, Actual",
            ),
            (
                tf.FixedLenSequenceFeature([2], tf.int64, True),
                r"Key: i, Index: 0\.  Number of int64 values is not a multiple of stride length\."
                r" Saw 3 values but output shape is: \[\?,2\]",
            ),
        ],
    )
    def test_what_does_not_fit_is_told(self, sess: Any, wanted: Any, message: str) -> None:
        parsed = tf.parse_example([FIRST, SECOND], {"i": wanted})
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"^{UNKNOWN}{message}"):
            sess.run(parsed)

    def test_messages_call_examples_by_name(self, sess: Any) -> None:
        wanted = {"f": tf.FixedLenFeature([], tf.float32)}
        parsed = tf.parse_example([FIRST, SECOND], wanted, example_names=["A", "B"])
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"^Name: B, Feature: f \(data"):
            sess.run(parsed)

    def test_a_matrix_is_refused(self) -> None:
        with pytest.raises(ValueError, match="expected a vector of strings"):
            tf.parse_example([[FIRST]], {"i": tf.VarLenFeature(tf.int64)})


class TestSequences:
    DATA: bytes = tf.train.SequenceExample(
        context=tf.train.Features(feature={"c": feature(1, 2)}),
        feature_lists=tf.train.FeatureLists(
            feature_list={
                "l": tf.train.FeatureList(feature=[feature(3), feature(4)]),
                "v": tf.train.FeatureList(feature=[feature(b"3"), feature(b"4", b"5")]),
            }
        ),
    ).SerializeToString()

    def test_context_and_lists(self, sess: Any) -> None:
        context, lists = tf.parse_single_sequence_example(
            self.DATA,
            {"c": tf.FixedLenFeature([2], tf.int64), "z": tf.VarLenFeature(tf.int64)},
            {
                "l": tf.FixedLenSequenceFeature([], tf.int64),
                "v": tf.VarLenFeature(tf.string),
                "z": tf.FixedLenSequenceFeature([2], tf.int64, allow_missing=True),
            },
        )
        assert lists["z"].shape.as_list() == [None, 2]
        values, steps = sess.run([context, lists])
        assert values["c"].tolist() == [1, 2]
        assert steps["l"].tolist() == [3, 4]
        assert steps["v"].indices.tolist() == [[0, 0], [1, 0], [1, 1]]
        assert steps["v"].values.tolist() == [b"3", b"4", b"5"]
        assert steps["z"].shape == (0, 2)

    def test_what_does_not_fit_is_told(self, sess: Any) -> None:
        for name, message in (("zz", "Feature list 'zz' is required"), ("v", "Data types don't")):
            wanted = {name: tf.FixedLenSequenceFeature([], tf.int64)}
            _, lists = tf.parse_single_sequence_example(self.DATA, None, wanted)
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                sess.run(lists)
        with pytest.raises(ValueError, match="Both context_features and sequence_features are"):
            tf.parse_single_sequence_example(self.DATA)
        with pytest.raises(ValueError, match="Unsupported FixedLenFeature"):
            tf.parse_single_sequence_example(
                self.DATA, None, {"l": tf.FixedLenFeature([], tf.int64)}
            )


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
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"^Name: {shown}, {message}"):
            sess.run(made)


def test_steps_that_cannot_be_of_one_size_are_told_all_at_once(sess: Any) -> None:
    wanted = {"a": tf.FixedLenSequenceFeature((2,), tf.int64)}
    made = tf.parse_single_sequence_example(steps([1, 2], [1, 2, 3]), sequence_features=wanted)
    message = r"Total values size: 5 is not consistent with output shape: \[\?,2\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        sess.run(made)


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


class TestAsTensorFlowDoes:
    """What its parser makes of messages that protobuf would read otherwise, or not at all."""

    @staticmethod
    def ids(data: bytes) -> Any:
        with tf.Graph().as_default(), tf.Session() as session:
            parsed = tf.parse_example([data], {"i": tf.VarLenFeature(tf.int64)})
            return session.run(parsed["i"]).values.tolist()

    @staticmethod
    def entry(*values: int) -> bytes:
        packed = b"".join(map(number, values))
        feature = field(0x1A, field(0x0A, packed))
        return field(0x0A, field(0x0A, b"i") + field(0x12, feature))

    def test_the_last_of_two_entries_counts(self) -> None:
        assert self.ids(field(0x0A, self.entry(1, 2) + self.entry(3))) == [3]
        assert self.ids(field(0x0A, self.entry(1)) + field(0x0A, self.entry(2))) == [2]

    def test_only_the_first_packed_field_counts(self) -> None:
        lists = field(0x0A, number(1)) + field(0x0A, number(2))
        entry = field(0x0A, field(0x0A, b"i") + field(0x12, field(0x1A, lists)))
        assert self.ids(field(0x0A, entry)) == [1]

    def test_a_length_beyond_the_end_means_the_end(self) -> None:
        assert self.ids(field(0x0A, self.entry(1) + self.entry(2))[:-12]) == [1]

    def test_what_nobody_asks_for_may_be_anything(self) -> None:
        other = field(0x0A, field(0x0A, b"o") + field(0x12, b"anything"))
        assert self.ids(field(0x0A, self.entry(1) + other)) == [1]

    def test_lists_need_not_be_packed(self) -> None:
        lists = b"\x08" + number(1) + b"\x08" + number(-2)
        entry = field(0x0A, field(0x0A, b"i") + field(0x12, field(0x1A, lists)))
        assert self.ids(field(0x0A, entry)) == [1, -2]

    @pytest.mark.parametrize("entry", [b"\x0a\x01i", b"\x12\x00", b"\x0a\x01i\x12\x00\x12\x00"])
    def test_an_entry_has_two_fields(self, entry: bytes) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError, match="Could not parse example input"):
            self.ids(field(0x0A, field(0x0A, entry)))

    @pytest.mark.parametrize(
        ("kind", "feature", "alone", "in_batch"),
        [
            (
                tf.FixedLenFeature([2], tf.string),
                field(0x0A, field(0x0A, b"x")),
                "Key: i.  Can't parse serialized Example: Some bytes_list slice was not parsed.",
                "Number of bytes values != expected.  Values size: 1 but output shape: [2]",
            ),
            (
                tf.FixedLenFeature([], tf.string),
                field(0x0A, field(0x0A, b"x") * 2),
                "Key: i.  Can't parse serialized Example: Parsing bytes_list failed.",
                "Can't parse serialized Example.",
            ),
            (
                tf.VarLenFeature(tf.string),
                b"\x0a\x05\x0a\x10x",
                "Key: i.  Can't parse serialized Example: Could not get num elements in"
                " bytes_list.",
                "Can't parse serialized Example.",
            ),
            (
                tf.FixedLenFeature([2], tf.float32),
                field(0x12, field(0x0A, struct.pack("<f", 1))),
                "Key: i.  Can't parse serialized Example: Some float_list slice was not parsed.",
                "Number of float values != expected.  Values size: 1 but output shape: [2]",
            ),
            (
                tf.VarLenFeature(tf.float32),
                b"\x12\x03\x0a\x20x",
                "Key: i.  Can't parse serialized Example: Parsing float_list failed.",
                "Can't parse serialized Example.",
            ),
            (
                tf.VarLenFeature(tf.int64),
                b"\x1a\x03\x0a\x01\xff",
                "Key: i.  Can't parse serialized Example: Parsing int64_list failed.",
                "Can't parse serialized Example.",
            ),
            (tf.VarLenFeature(tf.int64), b"\x22\x01a", "Unsupported datatype.", ""),
        ],
    )
    def test_words(self, kind: Any, feature: bytes, alone: str, in_batch: str) -> None:
        entry = field(0x0A, field(0x0A, b"i") + field(0x12, feature))
        data = field(0x0A, entry)
        whole = f"Name: <unknown>, Key: i, Index: 0.  {in_batch}" if in_batch else alone
        with tf.Graph().as_default(), tf.Session() as session:
            for parsed, words in (
                (tf.parse_single_example(data, {"i": kind}), alone),
                (tf.parse_example([data], {"i": kind}), whole),
                (tf.parse_example([data] * 9, {"i": kind}), whole),
            ):
                with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                    session.run(parsed)
                assert caught.value.message.split("\n")[0].strip() == words


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


def test_the_first_wrong_example_is_told() -> None:
    """Whatever columns come first."""
    good = field(0x0A, TestAsTensorFlowDoes.entry(1))
    wanted = {"a": tf.VarLenFeature(tf.int64), "i": tf.FixedLenFeature([], tf.int64)}
    wrong = field(0x0A, field(0x0A, field(0x0A, b"a") + field(0x12, b"\x12\x02\x0a\x00")))
    with tf.Graph().as_default(), tf.Session() as session:
        parsed = tf.parse_example([good] * 8 + [field(0x0A, b""), wrong], wanted)
        with pytest.raises(tf.errors.InvalidArgumentError, match="Feature: i"):
            session.run(parsed)


NUMBERS = [sign * 2**power + more for power in range(63) for sign in (1, -1) for more in (-1, 0, 1)]


def test_numbers_of_every_length() -> None:
    packed = field(0x0A, b"".join(map(number, NUMBERS)))
    entry = field(0x0A, field(0x0A, b"i") + field(0x12, field(0x1A, packed)))
    assert TestAsTensorFlowDoes.ids(field(0x0A, entry)) == NUMBERS


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
