"""The first example decides what batches look like; later runs keep to that.

Examples of one component may be of several dtypes that fit each other. What the first of them was
is decided once, by the first example of the whole run, and not by the first one after a restart.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from aioqueue import InvalidArgumentError, sync
from aioqueue.inputs import (
    batch,
    bucket_by_sequence_length,
    merge_positions,
    numbers,
    shuffle_batch,
)
from aioqueue.pipeline.batches.collation import Collator
from aioqueue.pipeline.batches.layout import Layout, dtype_of, text_of
from tests.kit.exact import Exact
from tests.kit.going import packed
from tests.kit.resuming import Pair, through_json

ITEMS = 48
FIRST = 8
"""Of the items, those that are of another kind than all others."""


def number(item: int) -> Any:
    return float(item) if item < FIRST else item


def narrow(item: int) -> Any:
    return np.float32(item) if item < FIRST else np.float64(item / 3)


def pair(item: int) -> Any:
    return number(item), "x" * item


def named(item: int) -> Any:
    return Pair(narrow(item), {"any": "object"})


def mapping(item: int) -> Any:
    given = {"b": narrow(item), "a": [number(item)] * 2}
    return given if item < FIRST else dict(sorted(given.items()))


def text(item: int) -> Any:
    return np.array(["x" * item, ""])


def record(item: int) -> Any:
    return np.array([(item / 3, item)], [("a", "<f4"), ("b", "<i2", (2,))])


def day(item: int) -> Any:
    return np.datetime64("2026-11-22", "s" if item < FIRST else "D")


def sequence(item: int) -> Any:
    length = 1 + item % 5
    return np.full(length, item / 3, np.float32 if item < FIRST else np.float64)


def named_sequences(item: int) -> Any:
    given = {"tokens": sequence(item), "marks": [item] * (1 + item % 5)}
    return given if item < FIRST else dict(sorted(given.items()))


def empty_first(item: int) -> Any:
    """The first of them says nothing."""
    return [] if item < 3 else [number(item)] * (item % 4)


MAKERS: dict[str, Callable[[int], Any]] = {
    "numbers": number,
    "narrow numbers": narrow,
    "tuples": pair,
    "named tuples": named,
    "mappings": mapping,
    "text": text,
    "records": record,
    "times": day,
}

SEQUENCES: dict[str, Callable[[int], Any]] = {
    "sequences": sequence,
    "named sequences": named_sequences,
    "some are empty": empty_first,
}

SHAPES: dict[str, Callable[[Any], Any]] = {
    "batch": lambda made: made.batch(3),
    "shuffle": lambda made: made.shuffle(4).batch(3),
    "prefetch": lambda made: made.batch(3).prefetch(4),
    "batches of batches": lambda made: made.batch(2).batch(2).prefetch(1),
    "unbatch": lambda made: made.batch(4).unbatch().batch(3),
    "shuffled batches": lambda made: made.batch(2).shuffle(3),
    "across epochs": lambda made: made.batch(5, across_epochs=True),
}

PADDED: dict[str, Callable[[Any], Any]] = {
    "batch": lambda made: made.batch(3, pad=True),
    "bucket": lambda made: made.bucket([3, 4], 4, length=length_of),
    "bucket, prefetch": lambda made: made.bucket([3, 4], tokens_per_batch=12, length=length_of)
    .prefetch(2),
}  # fmt: skip

PACKED: dict[str, Callable[[Any], Any]] = {
    "pack": lambda made: packed(made, 8, 2),
    "pack, batch": lambda made: packed(made, 8, 3).batch(2).prefetch(2),
}


def length_of(example: Any) -> int:
    return len(example["tokens"] if isinstance(example, dict) else example)


def taken(pipeline: Any, most: int | None = None, state: Any = None) -> tuple[list[Any], Any]:
    found: list[Any] = []
    with pipeline.epochs(2, resume=state) as epochs:
        for epoch in epochs:
            for made in epoch:
                found.append(Exact(made))
                if len(found) == most:
                    return found, through_json(epochs.state_dict())
        return found, through_json(epochs.state_dict())


def assert_same(pipeline: Callable[[], Any]) -> None:
    whole, _ = taken(pipeline())
    for first in (1, len(whole) // 2 - 2, len(whole) - 3):
        head, state = taken(pipeline(), first)
        middle, state = taken(pipeline(), 2, state)
        rest, _ = taken(pipeline(), None, state)
        assert head + middle + rest == whole


def made_by(maker: Callable[[int], Any], ordered: bool = True) -> Any:
    return numbers(ITEMS, seed=1).prepare(maker, workers=2, ordered=ordered)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("maker", MAKERS)
def test_what_examples_may_be(maker: str) -> None:
    assert_same(lambda: made_by(MAKERS[maker]).batch(3))


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_makes_batches(shape: str) -> None:
    assert_same(lambda: SHAPES[shape](made_by(pair)))


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("shape", PADDED)
@pytest.mark.parametrize("maker", SEQUENCES)
def test_padded_ones(maker: str, shape: str) -> None:
    assert_same(lambda: PADDED[shape](made_by(SEQUENCES[maker])))


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("shape", PACKED)
@pytest.mark.parametrize("maker", ["sequences", "named sequences"])
def test_packed_ones(maker: str, shape: str) -> None:
    assert_same(lambda: PACKED[shape](made_by(SEQUENCES[maker])))


def test_what_is_mixed() -> None:
    def pipeline() -> Any:
        other = made_by(lambda item: -number(item)).batch(2)
        return made_by(number).batch(2).mix(other).unbatch().batch(3)

    assert_same(pipeline)


def test_an_epoch_that_was_left_before_workers() -> None:
    """What the first example of the run has decided is known where nothing else is of it."""
    source = numbers(ITEMS, shuffle=True, seed=1)
    first = next(iter(source))

    def prepared(item: int) -> Any:
        return float(item) if item == first else item

    pipeline = source.prepare(prepared).batch(3).prepare(lambda made: made)
    with pipeline.epochs(2) as epochs:
        next(next(epochs))
        epoch = next(epochs)
        state = through_json(epochs.state_dict())
        rest = [Exact(made) for made in epoch]
    assert {one.value.dtype for one in rest} == {np.dtype(np.float64)}
    assert taken(pipeline, None, state)[0] == rest


def test_where_there_is_no_order() -> None:
    """The first example to arrive has decided; any would do, but it stays so."""

    def dtypes(most: int | None, state: Any = None) -> tuple[set[str], Any]:
        pipeline = made_by(number, ordered=False).batch(3)
        found, after = taken(pipeline, most, state)
        return {str(one.value.dtype) for one in found}, after

    first, state = dtypes(6)
    rest, _ = dtypes(None, state)
    assert len(first) == 1
    assert rest == first


def test_what_is_refused_later_is_refused_after_a_restart() -> None:
    def whole_then_broken(item: int) -> Any:
        return item if item < 24 else item + 0.5

    pipeline = made_by(whole_then_broken).batch(3)
    _, state = taken(pipeline, 8)
    for begin in (None, state):
        with pytest.raises(ExceptionGroup) as failed:
            taken(pipeline, None, begin)
        assert "the first example had int64" in str(failed.value.exceptions[0])


STREAMS: dict[str, Callable[..., Any]] = {
    "batch": partial(batch, batch_size=3, function=number),
    "batch, padded": partial(batch, batch_size=3, function=sequence, dynamic_pad=True),
    "shuffle_batch": partial(shuffle_batch, batch_size=3, min_after_dequeue=4, function=number),
    "bucket_by_sequence_length": partial(
        bucket_by_sequence_length, boundaries=[3, 4], batch_size=4, function=sequence
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_made_without_a_pipeline(name: str) -> None:
    def taken_from(most: int | None, state: Any) -> tuple[list[Any], Any]:
        found: list[Any] = []
        with sync.Coordinator() as coord:
            stream = STREAMS[name](
                numbers(ITEMS, 1, seed=1), coord=coord, workers=2, ordered=True, resume=state
            )
            for made in stream:
                found.append(Exact(made))
                if len(found) == most:
                    break
            return found, through_json(stream.state_dict())

    whole, _ = taken_from(None, None)
    head, state = taken_from(5, None)
    middle, state = taken_from(2, state)
    assert head + middle + taken_from(None, state)[0] == whole


def on_ranks(
    pipeline: Any, ranks: int, most: int | None = None, position: Any = None
) -> tuple[list[Any], list[Any]]:
    """The batches of all ranks, and where each of them stands."""
    runs = [
        taken(pipeline.shard(rank, ranks, uneven="allow"), most, position) for rank in range(ranks)
    ]
    return [one.value for found, _ in runs for one in found], [state for _, state in runs]


class TestOtherRanks:
    """What ranks have decided holds when another number of them goes on."""

    @pytest.mark.slow(every=2)
    @pytest.mark.parametrize("shape", [*PADDED, *PACKED])
    def test_it_stays_decided(self, shape: str) -> None:
        def marked(item: int) -> Any:
            return np.full(1 + item % 5, item, np.float64 if item < FIRST else np.int16)

        pipeline = {**PADDED, **PACKED}[shape](made_by(marked))
        _, states = on_ranks(pipeline, 2, 3)
        for _ in range(2):
            found, states = on_ranks(pipeline, 3, 1, merge_positions(states, lockstep=False))
            for made in found:
                sequences = made[shape.startswith("bucket")] if isinstance(made, tuple) else made
                assert sequences.dtype == np.float64

    def test_before_the_first_batch_of_some(self) -> None:
        pipeline = made_by(number).batch(3)
        _, (first, _) = on_ranks(pipeline, 2, 3)
        second = pipeline.shard(1, 2, uneven="allow").epochs(2).state_dict()
        found, _ = on_ranks(pipeline, 2, None, merge_positions([first, second], lockstep=False))
        assert {one.dtype for one in found} == {np.dtype(np.float64)}

    def test_the_dtype_that_has_the_values_of_all(self) -> None:
        def of_rank(item: int) -> Any:
            kinds: list[Any] = [np.float32, np.int16, np.float64]
            return {"value": kinds[item % 3](item), "text": "x"}

        pipeline = made_by(of_rank).batch(3)
        _, states = on_ranks(pipeline, 3, 2)
        found, _ = on_ranks(pipeline, 2, None, merge_positions(states))
        assert {one["value"].dtype for one in found} == {np.dtype(np.float64)}

    def test_what_does_not_go_together_is_refused(self) -> None:
        def of_rank(item: int) -> Any:
            return (item, str(item)) if item % 2 else (item, item)

        _, states = on_ranks(made_by(of_rank).batch(3), 2, 2)
        with pytest.raises(InvalidArgumentError, match=r"^positions: got layouts\.0 .* of rank 1"):
            merge_positions(states)


@pytest.mark.parametrize(
    ("one", "other", "joined"),
    [
        (1, 2, 1),
        (1, 1.5, 1.5),
        (1.5, np.int32(1), 1.5),
        (np.int8(1), np.uint8(1), None),
        (np.float32(1), np.int64(1), None),
        (np.float32(1), np.int16(1), np.float32(1)),
        (True, 1, 1),
        ("a", "b", "a"),
        ("a", 1, None),
        (np.array(["a"]), [1], None),
        (np.zeros(3), np.zeros(4, np.float32), np.zeros(3)),
        (np.zeros(3), np.zeros((3, 1)), None),
        (np.datetime64(1, "D"), np.datetime64(1, "s"), np.datetime64(1, "s")),
        (np.datetime64(1, "D"), 1, None),
        (np.zeros((), "i4,f4"), np.zeros((), "i4,f4"), np.zeros((), "i4,f4")),
        (np.zeros((), "i4,f4"), np.zeros((), "i4,f8"), None),
        ((1, True), (False, 2), (1, 2)),
        ((1, 2), (1, 2, 3), None),
        ((1, 2), Pair(1, 2), None),
        ({"a": True, "b": 2}, {"b": True, "a": 2}, {"a": 1, "b": 1}),
        ({"a": 1}, {"b": 1}, None),
        (
            {"x": {"b": 1, "a": True}, "y": [{"c": 1.5}]},
            {"y": [{"c": 1}], "x": {"a": 1, "b": True}},
            {"x": {"b": 1, "a": 1}, "y": [{"c": 1.5}]},
        ),
        ({"x": {"a": 1}}, {"x": {"b": 1}}, None),
        ({"x": {"a": 1}}, {"x": 1}, None),
        ({"x": None, "y": 1}, {"x": None, "y": 1.5}, {"x": None, "y": 1.5}),
        ({"x": None, "y": 1}, {"x": 1, "y": 1}, None),
        ([{"a": 1}], [{"a": 1}] * 2, None),
    ],
)
def test_what_two_first_examples_can_be(one: Any, other: Any, joined: Any) -> None:
    def layout(example: Any) -> Any:
        collator = Collator()
        collator([example])
        return Layout.of_plain(collator.layout or {})

    assert layout(one).joined(layout(other)) == (None if joined is None else layout(joined))


class TestCollating:
    def test_what_is_made_later_is_decided_at_once(self) -> None:
        """The consumer of batches may be behind the caller that takes the state."""
        collator = Collator()
        later = collator.later([1.5])
        assert collator.layout == {"example": "one", "components": ["<f8"]}
        collator([2])
        assert later.make(np.empty).dtype == np.float64

    def test_an_empty_example_leaves_the_layout_to_the_next(self) -> None:
        collator = Collator(pad=True)
        collator([[], []])
        assert collator.layout is None
        collator([[1.5]])
        assert collator.layout == {"example": "one", "components": ["<f8[1]"]}

    @pytest.mark.parametrize(
        "example", [1, (1, 2.5), Pair([1], "x"), {"b": np.zeros((2, 3)), "a": object()}]
    )
    def test_other_structures_are_refused_as_before(self, example: Any) -> None:
        first, second = Collator(objects=True), Collator(objects=True)
        made = first([example, example])
        second.restore_layout(json.loads(json.dumps(first.layout)))
        assert Exact(second([example, example])) == Exact(made)
        if isinstance(example, tuple | dict):
            for collator in (first, second):
                for other in ((1, 2, 3), {"c": 1}):
                    with pytest.raises(InvalidArgumentError, match="the first one"):
                        collator([other])

    def test_paddings_are_those_of_now(self) -> None:
        first, second = Collator(pad=True), Collator(pad=True, padding_value=-1)
        first([([1.5], 3)])
        second.restore_layout(first.layout)
        rows, labels = second([([1], 3), ([], 4)])
        assert rows.tolist() == [[1.0], [-1.0]]
        assert labels.tolist() == [3, 4]


class TestDtypes:
    @pytest.mark.parametrize(
        "dtype",
        [
            *("bool", "int8", ">i2", "uint64", "float16", "<f4", "complex64", "O", "U", "S"),
            *("M8[ns]", "m8[7D]", "V3", [("a", "<i4"), ("b", ">f8", (2, 3))]),
            [("point", [("x", "f4"), ("y", "f4")]), ("name", "U5")],
            np.dtype([("a", "i1"), ("b", "i8")], align=True),
        ],
    )
    def test_they_come_back(self, dtype: Any) -> None:
        found = text_of(np.dtype(dtype))
        assert found is not None
        assert dtype_of(found) == np.dtype(dtype)

    @pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="they came with NumPy 2")
    def test_strings_of_any_length(self) -> None:
        assert text_of(np.dtypes.StringDType()) == "T"

    @pytest.mark.parametrize(
        "dtype",
        [
            {"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 0]},
            (np.record, [("a", "i4")]),
        ],
    )
    def test_what_has_no_text_is_left_to_the_next_example(self, dtype: Any) -> None:
        assert text_of(np.dtype(dtype)) is None
        collator = Collator()
        collator([np.zeros(2, np.dtype(dtype))])
        assert collator.layout is None

    def test_those_of_other_libraries(self) -> None:
        ml_dtypes = pytest.importorskip("ml_dtypes")
        dtype = np.dtype(ml_dtypes.bfloat16)
        assert text_of(dtype) == "bfloat16"
        assert dtype_of("bfloat16") == dtype
