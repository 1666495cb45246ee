"""Batches of examples that are read in lock-step: the same as one after another."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.parsing.batches import BatchReader, UnusualError
from aioqueue.compat.v1.parsing.columns import (
    Column,
    DenseColumn,
    PaddedColumn,
    SparseColumn,
    Values,
)
from aioqueue.compat.v1.parsing.records import RecordReader
from tests.compat.serialized import Slot, damaged, field, number, record

SLOTS = (
    Slot("label", "int64", 1), Slot("vector", "float", 3), Slot("word", "string", 1),
    Slot("ids", "int64"), Slot("words", "string"), Slot("pairs", "int64", 4),
    Slot("unwanted", "float"), Slot("key\0", "float"), Slot("", "int64", 2),
)  # fmt: skip
SPARSE = [SparseColumn(slot.key, slot.kind) for slot in SLOTS if slot.key != "unwanted"]
SHAPED: list[Column] = [
    DenseColumn("label", "int64", ()), DenseColumn("vector", "float", (3,)),
    DenseColumn("word", "string", ()), SparseColumn("ids", "int64"),
    PaddedColumn("words", "string", ()), PaddedColumn("pairs", "int64", (2,)),
]  # fmt: skip
KEYS = [slot.key for slot in SLOTS]
FIXED = [(slot, slot.count) for slot in SLOTS if slot.count]
COLUMNS = pytest.mark.parametrize("columns", [SPARSE, SHAPED], ids=["sparse", "shaped"])


def contents(values: Sequence[Values]) -> list[Any]:
    return [
        (
            one.flat.dtype,
            # NaN is not equal to itself, but its bytes are.
            one.flat.tolist() if one.flat.dtype == object else one.flat.tobytes(),
            (one.counts.dtype, one.counts.tolist()),
            (one.there.dtype, one.there.tolist()),
        )
        for one in values
    ]


def is_lock_step(
    records: list[bytes], columns: Sequence[Column], have_default: Sequence[str] = ()
) -> bool:
    """Whether the examples are read in lock-step; then, whether all is as one after another."""
    reader = RecordReader(columns, have_default)
    required = [one for one in columns if one.must_be_there and one.key not in have_default]
    names = [f"example {at}" for at in range(len(records))]
    try:
        at_once = contents(BatchReader(columns, required)(records))
    except UnusualError:
        results: list[list[Any] | str] = []
        for read in (reader.batch, reader.one_by_one):
            try:
                results.append(contents(read(records, names)))
            except tf.errors.InvalidArgumentError as error:
                results.append(error.message)
        assert results[0] == results[1]
        return False
    assert at_once == contents(reader.one_by_one(records, names))
    assert at_once == contents(reader.batch(records, names))
    return True


def batch(draw: random.Random, slots: Sequence[Slot] = SLOTS, count: int = 0) -> list[bytes]:
    """Examples as all common writers make them."""
    count = count or draw.choice((16, 40, 200))
    return [record(draw, slots, plain=True) for _ in range(count)]


def test_examples_of_common_writers_are_read_in_lock_step() -> None:
    for seed in range(40):
        draw = random.Random(seed)
        assert is_lock_step(batch(draw, SLOTS, 200), SPARSE), seed
        # A few long lists of texts in a small batch are read faster one by one.
        records = batch(draw, [slot for slot in SLOTS if slot.key != "words"])
        assert is_lock_step(records, SPARSE), seed
        shaped = [SHAPED[3], *(DenseColumn(slot.key, slot.kind, (count,)) for slot, count in FIXED)]
        assert is_lock_step(records, shaped, KEYS), seed
        assert not is_lock_step(records, shaped), seed


@COLUMNS
def test_unusual_examples_in_a_batch(columns: list[Column]) -> None:
    """Fields in any order, twice or not at all, lists that are not packed, wrong kinds."""
    for seed in range(40):
        draw = random.Random(seed)
        defaults = [one.key for one in columns if draw.random() < 0.9]
        for _ in range(4):
            records = batch(draw, count=20)
            for at in draw.sample(range(20), draw.choice((1, 3))):
                records[at] = record(draw, SLOTS, plain=False)
            is_lock_step(records, columns, defaults)


@COLUMNS
def test_damaged_examples_in_a_batch(columns: list[Column]) -> None:
    for seed in range(40):
        draw = random.Random(seed)
        records = batch(draw, SLOTS[: draw.choice((2, 5, 9))], count=16)
        for _ in range(20):
            at = draw.choice((0, 7, 15))
            odd = damaged(draw, records[at])
            is_lock_step([*records[:at], odd, *records[at + 1 :]], columns, KEYS)


@COLUMNS
def test_every_prefix_and_every_wrong_byte(columns: list[Column]) -> None:
    draw = random.Random(3)
    whole = record(draw, SLOTS[:3], plain=True)
    others = batch(draw, SLOTS[:3], count=15)
    for at in range(len(whole)):
        versions = [whole[:at]]
        versions += [
            whole[:at] + bytes([byte]) + whole[at + 1 :] for byte in (0, 10, 18, 128, whole[at] ^ 1)
        ]
        for version in versions:
            is_lock_step([*others, version], columns, KEYS)
            is_lock_step([version, *others], columns, KEYS)


def test_keys_in_any_order_and_long_lists() -> None:
    draw = random.Random(5)
    slots = [Slot("numbers", "int64", 500), Slot("texts", "string", 70), Slot("f", "float", 300)]
    columns = [SparseColumn(one.key, one.kind) for one in slots]
    records = []
    for _ in range(40):
        draw.shuffle(slots)
        records += batch(draw, slots, count=1)
    assert is_lock_step(records, columns)


def test_no_example_has_an_entry() -> None:
    columns = [SparseColumn("k" * 500, "int64"), SparseColumn("f", "float")]
    assert is_lock_step([field(0x0A, b"")] * 16, columns)
    assert not is_lock_step([b""] * 16, columns)


def entry(key: bytes, tag: int, contents: bytes) -> bytes:
    return field(0x0A, field(0x0A, key) + field(0x12, field(tag, field(0x0A, contents))))


def test_numbers_of_every_length() -> None:
    numbers = [
        sign * 2**power + more for power in range(63) for sign in (1, -1) for more in (-1, 0, 1)
    ]
    records = [field(0x0A, entry(b"i", 0x1A, number(one))) for one in numbers]
    assert is_lock_step(records, [SparseColumn("i", "int64")])
    for odd in (b"\x80", b"\xff" * 10 + b"\x01"):
        wrong = field(0x0A, entry(b"i", 0x1A, odd))
        assert not is_lock_step([*records, wrong], [SparseColumn("i", "int64")])


def test_lengths_of_every_size() -> None:
    columns = [SparseColumn("s", "string")]
    sizes = [0, 1, 127, 128, 16_383, 16_384, 2**21 - 1, 2**21]
    records = [field(0x0A, entry(b"s", 0x0A, b"x" * size)) for size in (*sizes, *[1] * 600)]
    assert is_lock_step(records, columns)
    long = b"\x0a\x80\x80\x80\x80\x00"
    assert not is_lock_step([*records[:200], long], columns)


def test_batches_that_are_faster_one_by_one() -> None:
    columns = [SparseColumn("s", "string")]
    one = field(0x0A, entry(b"s", 0x0A, b"x"))
    large = field(0x0A, entry(b"s", 0x0A, b"x" * 10_000))
    many = field(
        0x0A, field(0x0A, field(0x0A, b"s") + field(0x12, field(0x0A, b"\x0a\x01x" * 300)))
    )
    assert is_lock_step([one] * 16, columns)
    assert is_lock_step([many] * 16, columns)
    assert not is_lock_step([one] * 15, columns)
    assert not is_lock_step([large] * 16, columns)
    assert not is_lock_step([many] + [one] * 16, columns)


def test_parsed_arrays_may_be_changed() -> None:
    """As those of TensorFlow, whichever reader they come from."""
    records = [field(0x0A, entry(b"f", 0x12, b"abcd"))] * 20
    for count in (1, 20):
        parsed = tf.parse_example(records[:count], {"f": tf.FixedLenFeature([], tf.float32)})
        with tf.Session() as session:
            found = session.run(parsed["f"])
        found[0] = 5
        assert found[0] == 5
