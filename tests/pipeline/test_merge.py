"""Positions that do not belong together are refused, by the field that differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import Position, merge_positions, numbers, read_lines
from tests.kit.resuming import noisy, run, shuffled, through_json

RANKS = 3

Make = Callable[[], Any]


def made() -> Any:
    return shuffled().prepare(noisy, workers=2).shuffle(5).batch(2)


def states_of(make: Make = made, ranks: int = RANKS, most: int = 3, **options: Any) -> list[Any]:
    return [run(make().shard(rank, ranks, **options), 2, most)[1] for rank in range(ranks)]


def refused(positions: Any, match: str, **options: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        merge_positions(positions, **options)


class TestOneOfEachRank:
    def test_missing(self) -> None:
        states = states_of()
        refused([states[2], states[0]], r"positions: got those of the ranks \[0, 2\] of 3; .*\[1\]")
        refused([], "positions: got none")

    def test_doubled(self) -> None:
        states = states_of()
        refused([*states, states[1]], r"got rank 1 twice, as positions\[1\] and positions\[3\]")

    def test_of_other_numbers_of_ranks(self) -> None:
        """A file of an earlier run with more ranks is still there."""
        refused([*states_of(), states_of(ranks=4)[3]], "got ranks 4 of rank 3 and 3 of rank 0")
        refused([*states_of()[:2], states_of(ranks=5)[2]], "got ranks 5 of rank 2 and 3 of rank 0")

    def test_in_any_order(self) -> None:
        first, second, third = states_of()
        assert merge_positions([third, first, second]) == merge_positions((first, second, third))


class TestOfOneRun:
    @pytest.mark.parametrize(
        ("field", "make"),
        [
            ("source.seed", lambda: numbers(61, shuffle=True, seed=8).shuffle(5).batch(2)),
            ("source.length", lambda: numbers(60, shuffle=True, seed=7).shuffle(5).batch(2)),
            ("stages.0..buffer", lambda: shuffled().shuffle(6).batch(2)),
            ("stages", lambda: shuffled().batch(2)),
        ],
    )
    def test_another_pipeline(self, field: str, make: Make) -> None:
        states = states_of(lambda: shuffled().shuffle(5).batch(2))
        states[1] = states_of(make)[1]
        refused(states, f"got {field} .* of rank 1 and .* of rank 0; .* different runs")

    def test_seeds_that_every_rank_draws_are_explained(self) -> None:
        refused(states_of(lambda: numbers(61).batch(2)), "source has no seed")

    def test_other_batches(self) -> None:
        """Killed while they saved: one rank has the position of a later step."""
        states = states_of()
        states[2] = states_of(most=4)[2]
        refused(states, "got 4 batches of rank 2 and 3 of rank 0 .* one checkpoint")
        states[2] = states_of(most=14)[2]
        refused(states, "got 14 batches of rank 2 and 3 of rank 0")

    def test_other_skips(self) -> None:
        states = states_of()
        states[1] = Position(states[1]).skip(2)
        refused(states, "got skip 2 of rank 1 and 0 of rank 0")

    def test_a_rank_that_resumed_from_another_merge(self) -> None:
        """As many batches, but not after the same change of ranks."""

        def continued(ranks: int, most: int) -> list[Any]:
            merged = merge_positions(states_of(ranks=ranks, most=most))
            return [run(made().shard(rank, 2), 2, 5 - most, merged)[1] for rank in range(2)]

        refused(
            [continued(3, 3)[0], continued(3, 2)[1]], r"got rest.epochs.0.batches 2 of rank 1 and 3"
        )

    def test_ranks_that_are_far_apart(self) -> None:
        pipeline = shuffled().batch(2)
        first = run(pipeline.shard(0, 2, uneven="allow"), 40, 3)[1]
        second = run(pipeline.shard(1, 2, uneven="allow"), 40, 15 * 18)[1]
        refused([first, second], "got epoch 17 of rank 1 and epoch 0 of", lockstep=False)


class TestAtTheirOwnPace:
    def test_ranks_may_differ_on_request(self) -> None:
        states = [
            run(made().shard(rank, RANKS, uneven="allow"), 2, most)
            for rank, most in enumerate((2, 9, 14))
        ]
        refused([state for _, state in states], "batches", lockstep=True)
        merged = merge_positions([state for _, state in states], lockstep=False)
        rest = [run(made().shard(rank, 2, uneven="allow"), 2, None, merged)[0] for rank in range(2)]
        found = [
            row for batches in [*(taken for taken, _ in states), *rest] for row in rows(batches)
        ]
        assert sorted(found) == sorted(rows(run(made(), 2)[0]))

    def test_what_is_no_flag(self) -> None:
        refused(states_of(), "^lockstep: got 1", lockstep=1)


def rows(batches: Any) -> list[Any]:
    return [(epoch, row) for epoch, batch in batches for row in zip(*batch, strict=True)]


class TestStages:
    @pytest.mark.parametrize(
        ("stage", "make"),
        [
            ("`take`", lambda: shuffled().batch(2).take(5)),
            ("`batch`, across epochs", lambda: shuffled().batch(2, across_epochs=True)),
            (
                "`mix`, .*stop='first'",
                lambda: shuffled().mix(numbers(9, seed=1), stop="first").batch(2),
            ),
            ("`take`", lambda: shuffled().mix(numbers(9, seed=1).take(3)).batch(2)),
        ],
    )
    def test_that_count_per_rank(self, stage: str, make: Make) -> None:
        refused(states_of(make, uneven="allow"), rf"^positions\[0\]: got .*{stage}")

    def test_no_ranks(self) -> None:
        refused([run(made(), 2, 3)[1]], r"^positions\[0\]: .* without ranks; .*shard\(0, 1\)")

    def test_what_is_mixed_in_has_none(self) -> None:
        states = [
            run(shuffled().shard(rank, 2, uneven="allow").mix(numbers(9, seed=1)).batch(2), 2, 3)[1]
            for rank in range(2)
        ]
        refused(states, r"without ranks; expected .* in it, after mix")

    def test_examples_of_a_batch(self) -> None:
        states = states_of(lambda: shuffled().batch(4).unbatch().batch(3), uneven="allow")
        refused(states, r"^positions\[0\]: .*\(a stage makes several examples of a batch")

    def test_items_that_are_batches_can_be_taken_apart(self) -> None:
        def make() -> Any:
            return numbers(20, shuffle=True, seed=1).prepare(triple).unbatch().batch(4)

        heads = [run(make().shard(rank, 2, uneven="allow"), 1, 2) for rank in range(2)]
        merged = merge_positions([state for _, state in heads])
        rest = [run(make().shard(rank, 3, uneven="allow"), 1, None, merged)[0] for rank in range(3)]
        found = [
            n for batches in [*(one for one, _ in heads), *rest] for _, b in batches for n in b
        ]
        assert sorted(found) == sorted(n for _, batch in run(make(), 1)[0] for n in batch)


def triple(item: int) -> list[int]:
    return [item, 100 + item, 200 + item]


class TestPositions:
    def test_that_are_none(self) -> None:
        states = states_of()
        refused([*states[:2], {"step": 3}], r"^positions\[2\]: got \{'step': 3\}")
        refused(states[0], "got a dict; expected a list")
        refused(3, "got an int; expected a list")

    def test_that_are_damaged(self) -> None:
        states = states_of()
        changed = through_json(states[1])
        changed["read"]["given"] += 1
        refused([states[0], changed, states[2]], r"^positions\[1\]: got checksum")

    def test_of_sources(self) -> None:
        refused([numbers(5).position()], r"^positions\[0\]: ")

    def test_that_were_merged_already(self) -> None:
        refused([merge_positions(states_of())], "that merge_positions has returned")


class TestLoading:
    def test_a_merged_position_fits_any_rank_of_the_same_pipeline_only(self) -> None:
        merged = merge_positions(states_of())
        other: Any = numbers(61, shuffle=True, seed=8).prepare(noisy).shuffle(5).batch(2)
        for pipeline, field in (
            (other.shard(0, 2), "source.seed"),
            (made(), "stages"),
            (made().shard(0, 2, uneven="drop"), "uneven"),
        ):
            with pytest.raises(InvalidArgumentError, match=field):
                pipeline.epochs(2, resume=merged)

    def test_a_position_of_a_rank_still_fits_that_rank_alone(self) -> None:
        (_, second, _) = states_of()
        with pytest.raises(InvalidArgumentError, match=r"stages\[3\].rank 1; expected 0"):
            made().shard(0, RANKS).epochs(2, resume=second)

    def test_every_change_of_a_merged_position_is_noticed(self) -> None:
        merged = through_json(merge_positions(states_of()))
        merged["rest"]["batches"][0] += 1
        with pytest.raises(InvalidArgumentError, match="checksum"):
            made().shard(0, 2).epochs(2, resume=merged)

    def test_a_source_that_comes_once_has_no_position_of_ranks(self) -> None:
        with pytest.raises(InvalidArgumentError, match="paths"):
            read_lines(iter([])).batch(2).shard(0, 2).epochs(1).state_dict()
