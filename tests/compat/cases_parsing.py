"""Cases of serialized examples: what is parsed, what is refused, and in which words."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from tests.compat.recorded import full_outcome, outcome, unnamed
from tests.compat.serialized import field, number

LISTS = {bytes: "bytes_list", float: "float_list", int: "int64_list"}


def feature(tf: Any, *values: Any) -> Any:
    """A feature of the kind of its values; of none without values."""
    if not values:
        return tf.train.Feature()
    kind = {bytes: tf.train.BytesList, float: tf.train.FloatList, int: tf.train.Int64List}
    made = kind[type(values[0])](value=values)
    return tf.train.Feature(**{LISTS[type(values[0])]: made})


def example(tf: Any, **features: list[Any]) -> bytes:
    lists = {name: feature(tf, *values) for name, values in features.items()}
    message = tf.train.Example(features=tf.train.Features(feature=lists))
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def two(tf: Any) -> tuple[bytes, bytes]:
    first = example(tf, i=[1, 2, 3], s=[b"x"], f=[1.5], none=[])
    return first, example(tf, i=[4], s=[b"y", b"z"])


def parsed(tf: Any, parse: Any, *arguments: Any, **options: Any) -> Any:
    """What is known of the parsed tensors, and their values; or the words of the refusal."""

    def make() -> Any:
        made = parse(*arguments, **options)
        with tf.Session() as sess:
            values = sess.run(made)
        parts = made if isinstance(made, tuple) else (made,)
        known = [
            [str(part[key].shape) for key in sorted(part) if hasattr(part[key], "value_index")]
            for part in parts
        ]
        return known, values

    return full_outcome(make)


@unnamed
def messages(tf: Any) -> Any:
    made = [example(tf, i=[1, 300]), example(tf, s=[b"ab"]), example(tf, f=[1.0]), *two(tf)]
    back = tf.train.Example.FromString(made[3]).features.feature
    return [
        *(*made, list(back["i"].int64_list.value), back["none"].WhichOneof("kind")),
        *(outcome(lambda: tf.train.Int64List(value=["a"])), tf.train.Example.DESCRIPTOR.full_name),
    ]


@unnamed
def single_examples(tf: Any) -> Any:
    first, _ = two(tf)
    fixed, several, any_number = tf.FixedLenFeature, tf.FixedLenSequenceFeature, tf.VarLenFeature
    wanted = [
        {"i": fixed([3], tf.int64), "s": fixed([], tf.string), "f": any_number(tf.float32)},
        {"z": fixed([], tf.int64, 7), "y": fixed([2], tf.float32, [1, 2])},
        {"none": fixed([], tf.string, "text"), "i": fixed([3], tf.int64, [0, 0, 0])},
        {"i": several([], tf.int64, allow_missing=True), "none": any_number(tf.int64)},
        {"z": several([2], tf.float32, allow_missing=True)},
        *({"z": fixed([], tf.int64)}, {"none": fixed([], tf.int64)}, {"i": fixed([2], tf.int64)}),
        *({"i": fixed([3], tf.float32)}, {"i": any_number(tf.string)}),
        {"i": several([2], tf.int64, allow_missing=True)},
    ]
    refused: tuple[Any, ...] = (
        *(3, several([], tf.int64), fixed([], tf.int32), fixed([None], tf.int64)),
        *(fixed([3, None], tf.int64), fixed([3], tf.int64, [1, 2]), fixed([3], tf.int64, 5)),
        *(fixed([], tf.int64, 1.5), tf.SparseFeature(["a", "b"], "i", tf.int64, [2])),
    )
    single, nothing = tf.parse_single_example, (None, dict[str, Any]())
    return [
        *(parsed(tf, single, first, one) for one in wanted),
        parsed(tf, single, b"abc", {"i": any_number(tf.int64)}),
        *(outcome(single, first, {"i": one}) for one in refused),
        *(outcome(single, first, one) for one in nothing),
        outcome(single, [first], {"i": any_number(tf.int64)}),
    ]


@unnamed
def batches_of_examples(tf: Any) -> Any:
    both = list(two(tf))
    fixed, several, any_number = tf.FixedLenFeature, tf.FixedLenSequenceFeature, tf.VarLenFeature
    wanted = [
        {"s": any_number(tf.string)},
        {
            "f": fixed([1], tf.float32, [0.0]),
            "i": several([], tf.int64, True, default_value=-1),
            "s": several([1], tf.string, True),
        },
        *({"i": fixed([3], tf.int64)}, {"i": any_number(tf.float32)}),
        {"i": several([2], tf.int64, True)},
    ]
    rows = [example(tf, at=[2, 0], v=[5, 6]), example(tf), example(tf, at=[1], v=[7])]
    sparse = {"sparse": tf.SparseFeature("at", "v", tf.int64, 4)}
    parse = tf.parse_example
    none = tf.placeholder_with_default(np.array([], object), [None])
    shared: dict[str, Any] = {
        "a": any_number(tf.string),
        "s": tf.SparseFeature("a", "v", tf.int64, 5),
    }
    sharing = (shared, {**shared, "a": fixed([], tf.int64)})
    return [
        *(parsed(tf, parse, both, one) for one in wanted),
        parsed(tf, parse, none, {"f": fixed([2], tf.float32), "i": any_number(tf.int64)}),
        parsed(tf, parse, rows, sparse),
        parsed(tf, tf.parse_single_example, example(tf, at=[1], v=[5, 6]), sparse),
        parsed(tf, parse, both, {"f": fixed([], tf.float32)}, example_names=["A", "B"]),
        *(outcome(parse, [b""], one) for one in sharing),
    ]


@unnamed
def sequence_examples(tf: Any) -> Any:
    data = tf.train.SequenceExample(
        context=tf.train.Features(feature={"c": feature(tf, 1, 2)}),
        feature_lists=tf.train.FeatureLists(
            feature_list={
                "l": tf.train.FeatureList(feature=[feature(tf, 3), feature(tf, 4)]),
                "v": tf.train.FeatureList(feature=[feature(tf, b"3"), feature(tf, b"4", b"5")]),
            }
        ),
    ).SerializeToString()
    of, several = tf.parse_single_sequence_example, tf.FixedLenSequenceFeature
    context = {"c": tf.FixedLenFeature([2], tf.int64), "z": tf.VarLenFeature(tf.int64)}
    lists = {
        "l": several([], tf.int64),
        "v": tf.VarLenFeature(tf.string),
        "z": several([2], tf.int64, allow_missing=True),
    }
    wrong = [{name: several([], tf.int64)} for name in ("zz", "v")]
    return [
        *(parsed(tf, of, data, context, lists), outcome(of, data)),
        *(outcome(lambda one: parsed(tf, of, data, None, one)[:20], one) for one in wrong),
        outcome(of, data, None, {"l": tf.FixedLenFeature([], tf.int64)}),
    ]


@unnamed
def what_protobuf_would_read_otherwise(tf: Any) -> Any:
    def entry(*values: int) -> bytes:
        packed = b"".join(map(number, values))
        return field(0x0A, field(0x0A, b"i") + field(0x12, field(0x1A, field(0x0A, packed))))

    def of(feature: bytes) -> bytes:
        return field(0x0A, field(0x0A, field(0x0A, b"i") + field(0x12, feature)))

    other = field(0x0A, field(0x0A, b"o") + field(0x12, b"anything"))
    numbers = [
        sign * 2**power + more for power in range(63) for sign in (1, -1) for more in (-1, 0, 1)
    ]
    ids = [
        *(field(0x0A, entry(1, 2) + entry(3)), field(0x0A, entry(1)) + field(0x0A, entry(2))),
        of(field(0x1A, field(0x0A, number(1)) + field(0x0A, number(2)))),
        *(field(0x0A, entry(1) + entry(2))[:-12], field(0x0A, entry(1) + other)),
        of(field(0x1A, b"\x08" + number(1) + b"\x08" + number(-2))),
        field(0x0A, entry(*numbers)),
        *(of(b"\x1a\x03\x0a\x01\xff"), of(b"\x22\x01a"), of(b"\x1a\x01\x80")),
    ]
    others = [
        (tf.FixedLenFeature([2], tf.string), field(0x0A, field(0x0A, b"x"))),
        (tf.FixedLenFeature([], tf.string), field(0x0A, field(0x0A, b"x") * 2)),
        (tf.VarLenFeature(tf.string), b"\x0a\x05\x0a\x10x"),
        (tf.FixedLenFeature([2], tf.float32), field(0x12, field(0x0A, struct.pack("<f", 1)))),
        (tf.VarLenFeature(tf.float32), b"\x12\x03\x0a\x20x"),
    ]
    wanted = [*((tf.VarLenFeature(tf.int64), one) for one in ids)]
    wanted += [(kind, of(one)) for kind, one in others]
    return [
        parsed(tf, parse, given, {"i": kind})
        for kind, data in wanted
        for parse, given in ((tf.parse_single_example, data), (tf.parse_example, [data]))
    ]
