"""The names of the rows in a buffer, at any time and in any order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aioqueue.inputs import items, numbers
from aioqueue.pipeline.nodes.progress import StateMarks
from aioqueue.pipeline.nodes.replay_log import Columns, KnownNames
from aioqueue.pipeline.nodes.rows import Row
from aioqueue.pipeline.stages.shuffle import ShuffleNode
from aioqueue.pipeline.stages.transform import HoldingTransform
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


class TestMarks:
    """What a mark names is bounded by the rows since the last one, whatever a stage holds."""

    N = 5_000

    def skips(self, number: int) -> int:
        if number % 10:
            raise ValueError("not this one")
        return number

    @pytest.mark.slow("window", "padding")
    @pytest.mark.parametrize("kind", ["shuffle", "window", "pack", "bucket", "padding"])
    def test_the_names_are_linear(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        makes: dict[str, Callable[[], Any]] = {
            # The whole epoch waits in the buffer, and leaves it at the end.
            "shuffle": lambda: numbers(self.N).shuffle(self.N).batch(10),
            "window": lambda: numbers(self.N).window(1000, drop_remainder=True).batch(10),
            # One sequence becomes all rows.
            "pack": lambda: items([np.zeros(4 * self.N)]).pack(4, on_too_long="split").batch(10),
            "bucket": lambda: (
                items([np.zeros(1)] * self.N).bucket([2], self.N).unbatch().batch(10, collate=list)
            ),
            # Nine of ten rows are repeated at the end.
            "padding": lambda: (
                numbers(2 * self.N).prepare(self.skips, on_error="skip").shard(0, 2).batch(10)
            ),
        }
        named = 0
        make = StateMarks.make

        def counting(marks: StateMarks[Any], at: Any) -> None:
            nonlocal named
            node = marks._node
            named += len(node._held()) if isinstance(node, HoldingTransform) else 0
            make(marks, at)

        monkeypatch.setattr(StateMarks, "make", counting)
        batches: list[Any] = list(makes[kind]())
        examples = sum([len(batch[0] if kind == "pack" else batch) for batch in batches])
        assert examples >= self.N - 1000
        assert named <= 2.5 * self.N

    def test_a_node_is_not_asked_for_its_weight_behind_each_row(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = 0
        weight = ShuffleNode.weight

        def counting(node: ShuffleNode) -> int:
            nonlocal asked
            asked += 1
            return weight(node)

        monkeypatch.setattr(ShuffleNode, "weight", counting)
        for _ in numbers(self.N).shuffle(self.N).batch(1):
            pass
        assert asked <= self.N / 100
