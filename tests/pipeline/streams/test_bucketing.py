"""Bucketing: what comes together, how it is padded, and that nothing is lost."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioqueue
from aioqueue import InvalidArgumentError, OutOfRangeError, sync
from aioqueue.inputs import items
from aioqueue.pipeline.streams.batch import batch
from aioqueue.pipeline.streams.bucketing import bucket_by_sequence_length
from tests.kit.pipelines import coordinated, failures_of, joined, rest, rest_until_failure, take
from tests.kit.worlds import World

Pairs = list[tuple[Any, Any]]


def sequences(lengths: list[int]) -> list[np.ndarray[Any, Any]]:
    """One sequence per length, each of another number, none of them 0."""
    return [np.full(length, number) for number, length in enumerate(lengths, 1)]


def bucketed(lengths: list[int], *arguments: Any, **options: Any) -> tuple[Pairs, Any]:
    """All batches, made in the world of threads, and the statistics at the end."""
    with sync.Coordinator() as coord:
        stream = bucket_by_sequence_length(sequences(lengths), *arguments, coord=coord, **options)
        pairs = list(stream)
    return pairs, stream.statistics()


def lengths_in(pairs: Pairs) -> list[list[int]]:
    return [lengths.tolist() for lengths, _ in pairs]


class TestBuckets:
    async def test_like_lengths_come_together(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = bucket_by_sequence_length(
                sequences([1, 7, 2, 3, 8, 9, 3]), [3, 8], 2, coord=coord
            )
            pairs = await rest(stream)
        assert lengths_in(pairs) == [[1, 2], [7, 3], [8, 9], [3]]
        assert pairs[0][1].tolist() == [[1, 0], [3, 3]]
        assert pairs[1][1].tolist() == [[2] * 7, [4] * 3 + [0] * 4]
        assert pairs[0][0].dtype == np.int64

    async def test_any_source_and_prepared_examples(self, world: World) -> None:
        lengths = [1, 5, 2, 6, 3]
        queue = aioqueue.FIFOQueue(10)
        queue.enqueue_nowait(np.ones(1))
        queue.close()

        async def asynchronous() -> Any:
            for sequence in sequences(lengths):
                yield sequence

        async with coordinated(world) as coord:
            prepared = bucket_by_sequence_length(
                lengths, [4], 3, coord=coord, function=np.ones, workers=2, ordered=True
            )
            assert lengths_in(await rest(prepared)) == [[1, 2, 3], [5, 6]]
            assert prepared.runner.statistics().prepared == 5
            awaited = bucket_by_sequence_length(asynchronous(), [4], 3, coord=coord)
            assert lengths_in(await rest(awaited)) == [[1, 2, 3], [5, 6]]
            queued = bucket_by_sequence_length(queue, [4], 3, coord=coord)
            assert lengths_in(await rest(queued)) == [[1]]

    def test_a_size_for_each_bucket(self) -> None:
        pairs, _ = bucketed([1, 1, 5, 1, 5, 5], [2], [3, 1])
        assert lengths_in(pairs) == [[5], [1, 1, 1], [5], [5]]

    def test_a_budget_of_tokens(self) -> None:
        pairs, _ = bucketed([2, 2, 2, 3, 3, 8, 1], [3], tokens_per_batch=8)
        assert lengths_in(pairs) == [[3, 3], [8], [2, 2, 2, 1]]

    def test_a_budget_that_the_next_one_would_break(self) -> None:
        pairs, _ = bucketed([2, 2, 5, 1], [9], tokens_per_batch=8)
        assert lengths_in(pairs) == [[2, 2], [5], [1]]

    def test_remainders_come_at_the_end_the_shortest_first(self) -> None:
        pairs, statistics = bucketed([9, 5, 1], [3, 8], 2)
        assert lengths_in(pairs) == [[1], [5], [9]]
        assert statistics.waiting == (0, 0, 0)

    def test_remainders_may_be_left_out_and_are_counted(self) -> None:
        pairs, statistics = bucketed([9, 5, 1, 2], [3, 8], 2, allow_smaller_final_batch=False)
        assert lengths_in(pairs) == [[1, 2]]
        assert statistics.waiting == (0, 1, 1)

    def test_empty_sequences_and_no_sequences(self) -> None:
        pairs, _ = bucketed([0, 0, 0], [1], tokens_per_batch=2)
        assert lengths_in(pairs) == [[0, 0], [0]]
        assert pairs[0][1].shape == (2, 0)
        assert bucketed([], [1], 2)[0] == []

    @pytest.mark.parametrize("first", [[], [3]], ids=["first", "later"])
    def test_an_empty_list_is_a_list_of_anything(self, first: list[int]) -> None:
        """NumPy would take it for one of floats, which do not fit ints."""
        with sync.Coordinator() as coord:
            batches = list(
                bucket_by_sequence_length([first, [], [], [1], [2]], [5], batch_size=2, coord=coord)
            )
        tokens = [rows for _, rows in batches]
        assert np.concatenate([rows.ravel() for rows in tokens]).tolist()[-1] == 2
        assert [rows.dtype for rows in tokens if rows.any()] == [np.dtype("int64")] * (
            3 if first else 2
        )

    def test_the_same_order_gives_the_same_batches(self) -> None:
        lengths = np.random.default_rng(1).integers(0, 30, 300).tolist()
        runs = [lengths_in(bucketed(lengths, [5, 10, 20], 8)[0]) for _ in range(2)]
        assert runs[0] == runs[1]


class TestPadding:
    def test_a_value_for_each_component(self) -> None:
        examples = [([1, 2], [3, 4], 5), ([6], [7], 8)]
        with sync.Coordinator() as coord:
            ((lengths, (tokens, tags, label)),) = bucket_by_sequence_length(
                examples, [9], 2, coord=coord, padding_value=(9, -100, 0)
            )
        assert lengths.tolist() == [2, 1]
        assert tokens.tolist() == [[1, 2], [6, 9]]
        assert tags.tolist() == [[3, 4], [7, -100]]
        assert label.tolist() == [5, 8]

    def test_by_name_with_a_length_of_ones_own(self) -> None:
        examples = [{"id": 1, "text": [1.0], "n": 7}, {"id": 2, "text": [], "n": 3}]
        with sync.Coordinator() as coord:
            first, second = bucket_by_sequence_length(
                examples,
                [5],
                1,
                coord=coord,
                length=lambda example: example["n"],
                padding_value={"text": 0.5},
            )
        assert [first[0].tolist(), second[0].tolist()] == [[7], [3]]
        assert second[1]["text"].shape == (1, 0)

    def test_the_first_component_with_a_dimension_has_the_length(self) -> None:
        with sync.Coordinator() as coord:
            ((lengths, _),) = bucket_by_sequence_length(
                [("name", 3, [1, 2, 3], np.zeros(9))], [5], 4, coord=coord
            )
        assert lengths.tolist() == [3]

    def test_to_the_boundary_there_is_one_shape_per_bucket(self) -> None:
        examples = [(np.ones(n, int), np.ones(2)) for n in (1, 3, 4, 7)]
        with sync.Coordinator() as coord:
            stream = bucket_by_sequence_length(
                examples, [4, 9], 2, coord=coord, pad_to_boundary=True
            )
            shapes = [(tokens.shape, other.shape) for _, (tokens, other) in stream]
            assert shapes == [((2, 3), (2, 2)), ((2, 8), (2, 2))]
            assert stream.statistics().padding == 2 + 5

    def test_to_the_boundary_within_a_budget(self) -> None:
        pairs, _ = bucketed([1, 2, 3, 3], [4], tokens_per_batch=7, pad_to_boundary=True)
        assert [tokens.shape for _, tokens in pairs] == [(2, 3), (2, 3)]

    def test_what_it_saves(self) -> None:
        _, statistics = bucketed([1, 9, 1, 9], [5], 2)
        assert (statistics.examples, statistics.batches) == (4, 2)
        assert (statistics.elements, statistics.padding) == (20, 0)
        assert (statistics.plain_elements, statistics.plain_padding) == (20, 16)
        assert statistics.padding_share == 0
        assert statistics.plain_padding_share == pytest.approx(16 / 36)

    def test_what_it_saves_is_what_plain_batches_show(self) -> None:
        lengths = np.random.default_rng(2).integers(1, 40, 205).tolist()
        _, statistics = bucketed(lengths, [10, 20, 30], 8)
        with sync.Coordinator() as coord:
            plain = batch(sequences(lengths), 8, coord=coord, dynamic_pad=True)
            cells = sum(tokens.size for tokens in plain)
        assert statistics.plain_padding == cells - sum(lengths)


def test_boundaries_and_sizes_may_be_arrays() -> None:
    limits: Any = (np.array([2]), np.array([2, 2]))
    pipeline = items([np.arange(n) for n in (1, 3, 1, 4)]).bucket(*limits)
    assert [lengths.tolist() for lengths, _ in pipeline] == [[1, 1], [3, 4]]
    assert "bucket 2 rows" not in repr(pipeline)
    assert "by length [2]" in repr(pipeline)
    with pipeline.epochs(1) as epochs:
        next(next(epochs))
        json.dumps(epochs.state_dict())


class TestTooLong:
    @pytest.mark.parametrize(
        ("options", "most"),
        [({"tokens_per_batch": 6}, 6), ({"batch_size": 2, "pad_to_boundary": True}, 3)],
    )
    async def test_fails(self, world: World, options: dict[str, Any], most: int) -> None:
        with pytest.raises(ExceptionGroup) as raised:
            async with coordinated(world) as coord:
                await rest(
                    bucket_by_sequence_length(sequences([1, 9]), [4], coord=coord, **options)
                )
        (message,) = failures_of(raised.value)
        assert f"got one of length 9; expected at most {most}" in message

    def test_or_is_skipped_and_counted(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "aioqueue"):
            pairs, statistics = bucketed(
                [1, 9, 2, 8], [4], tokens_per_batch=6, on_too_long="skip", name="lines"
            )
        assert lengths_in(pairs) == [[1, 2]]
        assert (statistics.examples, statistics.skipped) == (2, 2)
        assert "lines: 2 of 4 examples were too long and were skipped" in caplog.messages


class TestEnding:
    async def test_a_failing_source_is_reported_and_is_the_cause(self, world: World) -> None:
        def broken() -> Iterator[Any]:
            yield from sequences([1, 1, 1])
            raise ValueError("the text ends here")

        with pytest.raises(ExceptionGroup) as raised:
            async with coordinated(world) as coord:
                stream = bucket_by_sequence_length(broken(), [4], 2, coord=coord)
                assert lengths_in(await rest_until_failure(stream)) == [[1, 1]]
                with pytest.raises(OutOfRangeError) as end:
                    stream.queue.dequeue_nowait()
        assert failures_of(raised.value) == ["ValueError: the text ends here"]
        assert end.value.__cause__ is raised.value.exceptions[0]

    async def test_a_source_that_was_closed_by_a_failure_passes_it_on(self, world: World) -> None:
        failure = ValueError("no more text")
        queue = aioqueue.FIFOQueue(5)
        queue.enqueue_nowait(np.ones(2))
        queue.close(cause=failure)
        async with coordinated(world) as coord:
            stream = bucket_by_sequence_length(queue, [4], 2, coord=coord)
            assert lengths_in(await rest_until_failure(stream)) == [[2]]
            with pytest.raises(OutOfRangeError) as end:
                stream.queue.dequeue_nowait()
            assert end.value.__cause__ is failure

    @pytest.mark.parametrize("options", [{}, {"function": np.ones}], ids=["plain", "prepared"])
    async def test_closing_a_stream_ends_its_workers(
        self, world: World, options: dict[str, Any]
    ) -> None:
        def endless() -> Iterator[Any]:
            while True:
                yield 3 if options else np.ones(3)

        async with coordinated(world) as coord:
            stream = bucket_by_sequence_length(endless(), [4], 2, coord=coord, **options)
            await take(stream)
            stream.close()
            await joined(coord)

    async def test_a_stop_waits_for_no_element_that_never_comes(self, world: World) -> None:
        async with coordinated(world, stop_grace_period=5) as coord:
            stream = bucket_by_sequence_length(aioqueue.FIFOQueue(5), [4], 2, coord=coord)
            assert "of 2/2 examples in 2 buckets [4] from <" in repr(stream)

    async def test_an_example_of_another_rank_is_explained(self, world: World) -> None:
        with pytest.raises(ExceptionGroup) as raised:
            async with coordinated(world) as coord:
                examples = [np.ones(2), np.ones((2, 2))]
                await rest(bucket_by_sequence_length(examples, [4], 2, coord=coord))
        assert "component 0: got a value of shape [2, 2]" in failures_of(raised.value)[0]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), max_size=60),
    boundaries=st.lists(st.integers(1, 40), min_size=1, max_size=4, unique=True).map(sorted),
    size=st.integers(1, 7),
    by_tokens=st.booleans(),
)
def test_nothing_is_lost_repeated_misplaced_or_too_large(
    lengths: list[int], boundaries: list[int], size: int, by_tokens: bool
) -> None:
    limit = {"tokens_per_batch": 40 + size} if by_tokens else {"batch_size": size}
    pairs, statistics = bucketed(lengths, boundaries, **limit)
    seen = []
    for in_batch, tokens in pairs:
        assert 1 <= len(in_batch) == len(tokens)
        assert tokens.shape[1] == in_batch.max()
        if by_tokens:
            assert tokens.size <= 40 + size
        else:
            assert len(tokens) <= size
        assert np.ptp(np.searchsorted(boundaries, in_batch, side="right")) == 0  # one bucket
        for row, length in zip(tokens, in_batch, strict=True):
            assert not row[length:].any()
            assert len(set(row[:length])) <= 1
            seen.append((int(row[0]) if length else 0, int(length)))
    wanted = [(number if length else 0, length) for number, length in enumerate(lengths, 1)]
    assert sorted(seen) == sorted(wanted)
    assert statistics.elements == statistics.plain_elements == sum(lengths)
    assert statistics.padding == sum(tokens.size for _, tokens in pairs) - sum(lengths)
    assert statistics.examples == len(lengths)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"boundaries": []}, "boundaries: got []; expected at least one int"),
        ({"boundaries": 5}, "boundaries: got 5"),
        ({"boundaries": [3, 3]}, "boundaries: got [3, 3]; expected ascending ints"),
        ({"boundaries": [0]}, "boundaries: got 0; expected an int >= 1"),
        ({"batch_size": None}, "batch_size, tokens_per_batch: got None and None"),
        ({"tokens_per_batch": 5}, "batch_size, tokens_per_batch: got 2 and 5; expected just one"),
        ({"batch_size": [1, 2]}, "batch_size: got [1, 2]; expected an int >= 1, or a list of 3"),
        ({"batch_size": "2"}, "batch_size: got '2'"),
        ({"batch_size": 0}, "batch_size: got 0; expected an int >= 1"),
        ({"batch_size": None, "tokens_per_batch": 0}, "tokens_per_batch: got 0"),
        (
            {"batch_size": None, "tokens_per_batch": 5, "pad_to_boundary": True},
            "tokens_per_batch: got 5; expected at least 6",
        ),
        ({"on_too_long": "drop"}, "on_too_long: got 'drop'"),
        ({"length": 5}, "length: got 5"),
        ({"capacity": 0}, "capacity: got 0"),
        ({"pad_to_boundary": 1}, "pad_to_boundary: got 1"),
        ({"workers": 2}, "workers: got without a function"),
        ({"coord": 5}, "coord: got 5"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with sync.Coordinator() as coord:
        given = {"boundaries": [3, 7], "batch_size": 2, "coord": coord, **options}
        with pytest.raises(InvalidArgumentError) as raised:
            bucket_by_sequence_length([], **given)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("examples", "options", "message"),
    [
        ([5], {}, "example: got 5, which has no sequence"),
        ([[1]], {"length": lambda _: -1}, "length: returned -1"),
        ([[1]], {"padding_value": 0.5}, "padding_value: got 0.5 for component 0"),
        ([[1]], {"padding_value": (1, 2)}, "padding_value: got (1, 2); expected a number"),
        ([{"a": [1]}], {"padding_value": {"b": 1}}, "padding_value: got {'b': 1}; expected a"),
        ([[1]], {"padding_value": "x"}, "padding_value: got 'x'"),
    ],
)
def test_what_shows_only_at_the_first_example(
    examples: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ExceptionGroup) as raised, sync.Coordinator() as coord:
        list(bucket_by_sequence_length(examples, [3], 1, coord=coord, **options))
    assert message in failures_of(raised.value)[0]
