"""Going on with another number of ranks: each example of an epoch comes once over all runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from aioqueue.inputs import Pipeline, Position, merge_positions
from tests.inputs.pipeline.resuming import (
    Batches,
    How,
    examples,
    not_sevens,
    ordered_shapes,
    run,
    shuffled,
    through_json,
    unordered_shapes,
    write_files,
)

EPOCHS = 2

Uneven = Literal["pad", "drop", "allow"]
Made = Callable[[], Pipeline[Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("elastic"))


def on_ranks(
    make: Made,
    ranks: int,
    most: int | None,
    position: Any = None,
    *,
    uneven: Uneven = "allow",
    epochs: int = EPOCHS,
) -> tuple[list[Batches], list[Any]]:
    """What each of so many ranks is given, and where it stands then."""
    runs = [
        run(make().shard(rank, ranks, uneven=uneven), epochs, most, position)
        for rank in range(ranks)
    ]
    return [taken for taken, _ in runs], [state for _, state in runs]


def merged(states: list[Any], chance: random.Random | None = None, **options: Any) -> Any:
    """The position of all ranks, which come in any order."""
    states = list(states)
    (chance or random.Random(0)).shuffle(states)
    return Position(through_json(merge_positions(states, **options)))


NOT_ELASTIC = (
    "take",
    "take, shuffled",
    "across epochs",
    "long batches across epochs",
    "unbatch",
    "mix, stopped",
    "one rank",
    "a padded rank",
    "a padded rank that skips",
    "a rank of lines",
    "batches of batches",
    "drop the remainder",
    "prepared batches",
)
"""Shapes that leave something out, have ranks already, or are refused; see below."""

ORDERED = [name for name in ordered_shapes(Path()) if name not in NOT_ELASTIC]


class TestEachExampleComesOnce:
    @pytest.mark.parametrize("name", ORDERED)
    def test_where_the_order_is_kept(self, name: str, folder: Path) -> None:
        shape = ordered_shapes(folder)[name]
        self.check(lambda: shape(How(2)), random.Random(name))

    @pytest.mark.parametrize("name", unordered_shapes(Path()))
    def test_where_it_is_not(self, name: str, folder: Path) -> None:
        shape = unordered_shapes(folder)[name]
        self.check(lambda: shape(How(3)), random.Random(name))

    def check(self, make: Made, chance: random.Random) -> None:
        """Three numbers of ranks in a row, each left after some batches but for the last."""
        whole = examples([run(make(), EPOCHS)[0]])
        for _ in range(4):
            found: list[Batches] = []
            position = None
            for _ in range(2):
                most = chance.randint(1, 6)
                taken, states = on_ranks(make, chance.randint(1, 8), most, position)
                found += taken
                # Some ranks have less in an epoch; they may be in the next one.
                lockstep = all(len(one) == most for one in taken)
                position = merged(states, chance, lockstep=lockstep)
            found += on_ranks(make, chance.randint(1, 8), None, position)[0]
            assert examples(found) == whole

    @pytest.mark.parametrize("ranks", range(1, 9))
    @pytest.mark.parametrize("others", range(1, 9))
    def test_any_number_of_ranks(self, ranks: int, others: int) -> None:
        def make() -> Any:
            return shuffled().prepare(not_sevens, workers=2, on_error="skip").shuffle(5).batch(2)

        whole = examples([run(make(), EPOCHS)[0]])
        head, states = on_ranks(make, ranks, 3)
        rest, _ = on_ranks(make, others, None, merged(states, lockstep=ranks < 8))
        assert examples(head + rest) == whole
