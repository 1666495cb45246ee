"""`pack(cut=True)` fills rows to their ends; every token comes once, also after a merge."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="documents are drawn by hypothesis, not installed")

from hypothesis import given, settings
from hypothesis import strategies as st

from aioqueue import InvalidArgumentError, sync
from aioqueue.inputs import Pipeline, from_iterable, items, merge_positions, numbers
from tests.kit.going import results
from tests.kit.worlds import World

LENGTH = 8


def document(number: int) -> Any:
    """Tokens that say whose they are, and at which place; some documents are empty."""
    return np.arange(number * number * 7 % 31, dtype=np.int64) + 1000 * number


def tokens_of(rows: Any) -> Counter[int]:
    return Counter(int(token) for tokens, segments, *_ in rows for token in tokens[segments > 0])


def cut_directly(documents: list[Any], length: int) -> list[list[list[int]]]:
    """The rows, each as a list of its segments."""
    rows: list[list[list[int]]] = [[]]
    for one in documents:
        rest = one.tolist()
        while rest:
            left = length - sum(map(len, rows[-1]))
            if not left:
                rows.append([])
                continue
            rows[-1].append(rest[:left])
            rest = rest[left:]
    return [row for row in rows if row]


def segments_in(row: Any) -> list[list[int]]:
    tokens, segments = row[0], row[1]
    return [tokens[segments == one].tolist() for one in range(1, segments.max() + 1)]


class TestRows:
    @given(st.lists(st.integers(0, 30), max_size=20), st.integers(1, 12))
    def test_they_are_filled_to_their_ends(self, sizes: list[int], length: int) -> None:
        documents = [np.arange(size) + 100 * at for at, size in enumerate(sizes)]
        rows = list(items(documents).pack(length, cut=True)) if documents else []
        assert [segments_in(row) for row in rows] == cut_directly(documents, length)
        assert all((segments > 0).all() for _, segments, _ in rows[:-1])
        for tokens, segments, positions in rows:
            assert (np.diff(positions)[(np.diff(tokens) == 1) & (segments[1:] > 0)] == 1).all()

    async def test_in_every_world(self, world: World) -> None:
        documents = [np.array([1, 2, 3]), np.array([4, 5, 6, 7, 8]), np.array([9])]
        found = await results(world, items(documents).pack(4, cut=True, padding_value=-1))
        assert found == [
            ([1, 2, 3, 4], [1, 1, 1, 2], [0, 1, 2, 0]),
            ([5, 6, 7, 8], [1, 1, 1, 1], [0, 1, 2, 3]),
            ([9, -1, -1, -1], [1, 0, 0, 0], [0, 0, 0, 0]),
        ]

    def test_components_are_cut_alike(self) -> None:
        example = {"tokens": np.arange(5), "answers": np.array([0, 0, 1, 1, 1], bool)}
        rows = list(items([example, example]).pack(4, cut=True))
        assert [row["tokens"].tolist() for row in rows] == [
            [0, 1, 2, 3],
            [4, 0, 1, 2],
            [3, 4, 0, 0],
        ]
        assert [row["answers"].tolist() for row in rows][2] == [True, True, False, False]

    @pytest.mark.parametrize("cut", [False, True])
    def test_a_loss_mask_leaves_out_the_end_of_each_segment(self, cut: bool) -> None:
        sequences = items([{"tokens": np.arange(2)}, {"tokens": np.arange(3)}])
        (row,) = sequences.pack(7, cut=cut, loss_mask=True)
        assert row["loss_mask"].tolist() == [True, False, True, True, False, False, False]
        assert row["loss_mask"].dtype == bool
        pair = list(items([np.arange(2)]).pack(2, cut=cut, loss_mask=True))
        assert [part.tolist() for part in pair[0]] == [[0, 1], [1, 1], [0, 1], [True, False]]

    def test_its_keys_are_not_written_over(self) -> None:
        one = items([{"tokens": [1], "loss_mask": [True]}])
        assert next(iter(one.pack(2)))["loss_mask"].tolist() == [True, False]
        with pytest.raises(ExceptionGroup) as caught:
            list(one.pack(2, loss_mask=True))
        assert caught.group_contains(InvalidArgumentError, match="'positions' and 'loss_mask'")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"cut": 1}, "cut: got 1"),
            ({"loss_mask": "yes"}, "loss_mask: got 'yes'"),
            ({"cut": True, "on_too_long": "skip"}, "on_too_long: got 'skip' with cut=True"),
        ],
    )
    def test_wrong_options(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidArgumentError, match=f"^{message}"):
            numbers(3).pack(4, **options)


def packed_rows(ordered: bool = True, flat: bool = False, shuffle: int = 0) -> Pipeline[Any]:
    source = numbers(60, shuffle=True, seed=3)
    documents = (
        source.flat(lambda number: [document(2 * number), document(2 * number + 1)], workers=2)
        if flat
        else source.prepare(document, workers=2, ordered=ordered)
    )
    rows = documents.pack(LENGTH, cut=True)
    return rows.shuffle(shuffle) if shuffle else rows


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "unordered": {"ordered": False},
    "flat": {"flat": True},
    "shuffled": {"shuffle": 7},
}


def all_tokens(flat: bool) -> Counter[int]:
    documents = map(document, range(120 if flat else 60))
    return Counter(int(token) for one in documents for token in one)


class TestResume:
    @pytest.mark.parametrize("shape", SHAPES)
    def test_a_killed_run_continues_with_each_token_once(self, shape: str) -> None:
        pipeline = packed_rows(**SHAPES[shape])
        for stop in (1, 2, 7, 30, 70):
            first: list[Any] = []
            rest: list[Any] = []
            with pipeline.epochs(1) as epochs:
                for row in next(epochs):
                    first.append(row)
                    if len(first) == stop:
                        break
                position = json.loads(json.dumps(epochs.state_dict()))
            with pipeline.epochs(1, resume=position) as epochs:
                for epoch in epochs:
                    rest += epoch
            assert tokens_of(first + rest) == all_tokens(shape == "flat")
            if shape != "unordered":
                whole = [row[0].tolist() for row in pipeline]
                assert [row[0].tolist() for row in first + rest] == whole

    @pytest.mark.slow  # each example reads the whole in several runs
    @settings(max_examples=25, deadline=None)
    @given(
        st.sampled_from(sorted(SHAPES)),
        st.lists(st.tuples(st.integers(1, 4), st.integers(0, 12)), min_size=1, max_size=4),
        st.integers(1, 4),
    )
    def test_other_numbers_of_ranks_continue_with_the_rest(
        self, shape: str, runs: list[tuple[int, int]], last: int
    ) -> None:
        pipeline, rows, resume = packed_rows(**SHAPES[shape]), [], None
        for ranks, steps in runs:
            positions = []
            for rank in range(ranks):
                epochs = pipeline.shard(rank, ranks, uneven="allow").epochs(1, resume=resume)
                with epochs:
                    for epoch in epochs:
                        for _, row in zip(range(steps), epoch, strict=False):
                            rows.append(row)
                        break
                    positions.append(epochs.state_dict())
            resume = merge_positions(positions, lockstep=False)
        for rank in range(last):
            with pipeline.shard(rank, last, uneven="allow").epochs(1, resume=resume) as epochs:
                for epoch in epochs:
                    rows += epoch
        assert tokens_of(rows) == all_tokens(shape == "flat")

    def test_elements_of_a_queue_that_were_not_received_go_back(self) -> None:
        queue = sync.FIFOQueue(20)
        for number in range(20):
            queue.enqueue(np.full(5, number))
        rows = iter(from_iterable(queue).pack(8, cut=True))
        assert next(rows)[0].tolist() == [0] * 5 + [1] * 3
        del rows
        queue.close()
        assert [one[0] for one in queue] == list(range(2, 20))
