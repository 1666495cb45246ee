"""Ranks that skip items make as many batches as the others, also when they were interrupted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from aioqueue.inputs import numbers
from tests.kit.resuming import Batches, How, examples, run, shuffled

EPOCHS = 2
RANKS = 4
GOOD = {index for epoch in range(EPOCHS) for index in list(shuffled().epoch(epoch))[: 61 - 22]}
"""Most of those at the end of an epoch are bad."""


def mostly_good(item: int, rng: np.random.Generator) -> tuple[int, float]:
    if item % 5 == 1:
        raise ValueError("bad")
    return item, float(rng.random())


def good_at_first(item: int, rng: np.random.Generator) -> tuple[int, float]:
    """Of the last items of both epochs few are good."""
    if item not in GOOD or item % 3:
        raise ValueError("bad")
    return item, float(rng.random())


def make(function: Any, rank: int, how: How, *, ordered: bool, shuffle: int) -> Any:
    prepared = how.prepare(shuffled(), function, on_error="skip", ordered=ordered)
    if shuffle:
        prepared = prepared.shuffle(shuffle)
    return prepared.batch(2).shard(rank, RANKS)


def in_pieces(how_made: Any, chance: random.Random) -> Batches:
    taken: Batches = []
    state = None
    while True:
        how = How(chance.randint(1, 4))
        more, state = run(how_made(how), EPOCHS, chance.randint(1, 3), state)
        taken += more
        if not more:
            return taken


@pytest.mark.slow
@pytest.mark.parametrize("function", [mostly_good, good_at_first])
@pytest.mark.parametrize("shuffle", [0, 3])
@pytest.mark.parametrize("ordered", [True, False])
def test_a_padded_rank_is_made_equal_over_many_runs(
    function: Any, shuffle: int, ordered: bool
) -> None:
    for rank in range(shuffle % 2, RANKS, 2):

        def made(how: How, rank: int = rank) -> Any:
            return make(function, rank, how, ordered=ordered, shuffle=shuffle)

        whole, _ = run(made(How()), EPOCHS)
        found = in_pieces(made, random.Random(rank))
        if ordered:
            assert found == whole
        # Which of the latest come again depends on the order, but never how many.
        assert Counter(epoch for epoch, _ in found) == Counter(epoch for epoch, _ in whole)
        assert {*examples([found])} == {*examples([whole])}
        assert sum(examples([found]).values()) == sum(examples([whole]).values())


@pytest.mark.parametrize("left", range(1, 8))
def test_interrupted_when_nothing_good_is_left(left: int) -> None:
    """All that comes behind the position is skipped: what came before it replaces that."""

    def some(item: int) -> int:
        if item >= 8:
            raise ValueError("bad")
        return item

    def made() -> Any:
        from aioqueue.inputs import numbers

        return numbers(32).prepare(some, on_error="skip", ordered=False).batch(2).shard(0, 2)

    whole, _ = run(made(), 1)
    assert len(whole) == 8
    head, state = run(made(), 1, 8 - left)
    rest, _ = run(made(), 1, None, state)
    assert len(head + rest) == 8
    assert {item for _, batch in head + rest for item in batch} == {*range(0, 8, 2)}


def good_at_three(item: int) -> np.ndarray[Any, Any]:
    if item > 3:
        raise ValueError("bad")
    return np.full(2, float(item))


def tenth(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array /= 10
    return array


@pytest.mark.parametrize("later", ["loop", "prepare", "collate"])
def test_what_was_written_to_does_not_come_again(later: str) -> None:
    """What replaces skipped items is as it was made, whatever became of that since."""
    prepared = numbers(10).prepare(good_at_three, on_error="skip")
    pipelines: dict[str, Callable[[], Iterable[Any]]] = {
        "loop": lambda: map(tenth, prepared.shard(0, 2)),
        "prepare": lambda: prepared.prepare(tenth, workers=1).shard(0, 2),
        "collate": lambda: prepared.batch(1, collate=lambda one: tenth(one[0])).shard(0, 2),
    }
    found = [array.tolist() for array in pipelines[later]()]
    assert found == [[0, 0], [0.2, 0.2], [0.2, 0.2], [0.2, 0.2], [0.2, 0.2]]
