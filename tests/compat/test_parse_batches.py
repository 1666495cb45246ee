"""Batches of examples that are parsed at once: the same as one after another, whatever they are."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.parsing.batches import BatchReader
from aioqueue.compat.v1.parsing.columns import Column, SparseColumn
from aioqueue.compat.v1.parsing.records import RecordReader
from aioqueue.compat.v1.parsing.values import Values
from aioqueue.compat.v1.parsing.wire import UnusualError, Wire, decoded
from tests.compat.serialized import Slot, damaged, field, number, record

SLOTS = (
    Slot("label", "int64", 1),
    Slot("vector", "float", 3),
    Slot("word", "string", 1),
    Slot("ids", "int64"),
    Slot("words", "string"),
    Slot("nobody's", "float"),
    Slot("key\0", "float"),
    Slot("", "int64", 2),
)
COLUMNS = [SparseColumn(slot.key, slot.kind) for slot in SLOTS if slot.key != "nobody's"]


def told(values: Sequence[Values]) -> list[Any]:
    return [
        (
            one.flat.dtype,
            # Bytes, since numbers may be none.
            one.flat.tolist() if one.flat.dtype == object else one.flat.tobytes(),
            one.counts.tolist(),
            one.there.tolist(),
        )
        for one in values
    ]


def one_by_one(records: list[bytes], columns: Sequence[Column] = COLUMNS) -> list[Any] | str:
    """What the exact reader gives, or the message of its error."""
    try:
        return told(RecordReader(columns, ()).batch(records, [None] * len(records)))
    except tf.errors.InvalidArgumentError as error:
        return str(error.message)


def at_once(records: list[bytes], columns: Sequence[Column] = COLUMNS) -> list[Any] | None:
    found = BatchReader(columns)(records)
    return None if found is None else told(found)


SEEDS = [range(6), pytest.param(range(6, 60), marks=pytest.mark.slow)]


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_batches_are_what_their_records_are(seeds: range) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        records = [record(draw, SLOTS, plain=True) for _ in range(draw.choice((1, 2, 30, 200)))]
        found = at_once(records)
        assert found is not None, f"seed {seed}: records as all common writers make them"
        assert found == one_by_one(records), seed


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_what_is_unusual_is_left_alone_or_read_right(seeds: range) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        for _ in range(8):
            records = [record(draw, SLOTS, plain=True) for _ in range(draw.choice((1, 9)))]
            records[draw.randrange(len(records))] = record(draw, SLOTS, plain=False)
            found = at_once(records)
            assert found is None or found == one_by_one(records), seed


@pytest.mark.slow
def test_every_prefix_and_every_wrong_byte() -> None:
    draw = random.Random(3)
    whole = record(draw, [Slot("label", "int64", 1), Slot("word", "string", 1)], plain=True)
    longer = record(draw, SLOTS, plain=True)
    for data in (whole, longer[:100]):
        for place in range(len(data)):
            versions = [data[:place]]
            versions += [
                data[:place] + bytes([byte]) + data[place + 1 :]
                for byte in (0, 10, 18, 128, data[place] ^ 1)
            ]
            for version in versions:
                records = [whole, version, longer]
                found = at_once(records)
                assert found is None or found == one_by_one(records), (place, version)


@pytest.mark.parametrize("count", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_random_damage(count: int) -> None:
    draw = random.Random(4)
    for _ in range(count):
        records = [record(draw, SLOTS[:4], plain=True) for _ in range(3)]
        records[1] = damaged(draw, records[1])
        found = at_once(records)
        assert found is None or found == one_by_one(records)


def test_long_lists_and_keys_in_any_order() -> None:
    draw = random.Random(5)
    slots = [Slot("numbers", "int64", 500), Slot("texts", "string", 70), Slot("f", "float", 300)]
    columns: list[Column] = [SparseColumn(one.key, one.kind) for one in slots]
    records = []
    for _ in range(40):
        draw.shuffle(slots)
        records.append(record(draw, slots, plain=True))
    found = at_once(records, columns)
    assert found is not None
    assert found == one_by_one(records, columns)


def test_a_key_that_no_record_has() -> None:
    columns = [SparseColumn("k" * 500, "int64"), SparseColumn("label", "int64")]
    records = [field(0x0A, b"")] * 9
    found = at_once(records, columns)
    assert found is not None
    assert found == one_by_one(records, columns)


def test_numbers_of_every_length() -> None:
    numbers = [
        sign * 2**power + more for power in range(63) for sign in (1, -1) for more in (-1, 0, 1)
    ]
    texts = [number(one) for one in numbers]
    sizes = np.array([len(text) for text in texts])
    values, counts = decoded(np.frombuffer(b"".join(texts), np.uint8), sizes)
    assert values.tolist() == numbers
    assert counts.tolist() == [1] * len(numbers)


def test_numbers_that_are_no_numbers() -> None:
    for text in (b"\x80", b"\xff" * 10 + b"\x01"):
        with pytest.raises(UnusualError):
            decoded(np.frombuffer(text, np.uint8), np.array([len(text)]))


def test_lengths_of_up_to_four_bytes() -> None:
    wire = Wire([number(5) + number(200) + number(70_000) + number(2**28 - 1) + b"xyz"])
    lengths, behind = wire.lengths(np.array([0, 1, 3, 6]))
    assert lengths.tolist() == [5, 200, 70_000, 2**28 - 1]
    assert behind.tolist() == [1, 3, 6, 10]
    with pytest.raises(UnusualError):
        Wire([b"\x80" * 5]).lengths(np.array([0]))


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
