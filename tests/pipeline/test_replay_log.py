"""The names of the rows in a buffer, at any time and in any order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from aioqueue.pipeline.nodes.replay_log import Columns, KnownNames
from aioqueue.pipeline.nodes.rows import Row
from tests.kit.resuming import run, shuffled

SIZE = 40


def row(number: int) -> Row:
    return None, number, 0, number % 3, None


def names_in(rows: list[Row]) -> list[list[int]]:
    return [[number for _, number, *_ in rows], [sub for *_, sub, _ in rows]]


def lists_of(columns: Columns) -> list[list[int]]:
    numbers, subs = columns
    return [numbers.tolist(), [0] * len(numbers) if subs is None else subs.tolist()]


@pytest.mark.parametrize("seed", range(20))
def test_they_are_those_of_the_moment(seed: int) -> None:
    """States are copied one after another, and made later, in any order; some never."""
    chance = random.Random(seed)
    names, rows, next_number = KnownNames(), [row(number) for number in range(SIZE)], SIZE
    waiting: list[tuple[Callable[[], Any], list[list[int]]]] = []
    for _ in range(400):
        what = chance.random()
        if what < 0.5:
            # A place of SIZE is that of no row: the newcomer itself was drawn.
            places = [chance.randint(0, SIZE) for _ in range(chance.choice((1, 5, 90)))]
            for place in places:
                if place < SIZE:
                    rows[place] = row(next_number)
                    next_number += 1
            names.change(places, SIZE)
        elif what < 0.55:
            names.forget()
            rows = [row(next_number + place) for place in range(chance.choice((SIZE, SIZE // 2)))]
            rows += [row(0)] * (SIZE - len(rows))
        elif what < 0.8:
            waiting.append((names.copied(rows), names_in(rows)))
        elif waiting:
            made, expected = waiting.pop(chance.randrange(len(waiting)))
            assert lists_of(made()) == expected
    for made, expected in waiting:
        assert lists_of(made()) == expected


def test_what_is_made_later_is_not_changed_by_the_next_one() -> None:
    names, rows = KnownNames(), [row(number) for number in range(SIZE)]
    names.copied(rows)()
    first, before = names.copied(rows), names_in(rows)
    rows[7] = row(99)
    names.change([7], SIZE)
    second = names.copied(rows)
    assert lists_of(first()) == before
    assert lists_of(second()) == names_in(rows)


def test_a_state_behind_each_batch_is_that_of_a_single_one() -> None:
    """Whether somebody has asked before makes no difference, through buffers that fill and run
    dry."""
    pipeline = shuffled().shuffle(9).batch(2)
    count = len(run(pipeline, 2)[0])
    with pipeline.epochs(2) as epochs:
        states = [epochs.state_dict() for epoch in epochs for _ in epoch]
    assert len(states) == count
    for most in range(1, count + 1, 3):
        assert states[most - 1] == run(pipeline, 2, most)[1]
