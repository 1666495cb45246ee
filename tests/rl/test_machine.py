"""The machine of a `RolloutQueue`: what it keeps does not grow with what was done."""

from __future__ import annotations

import pickle

import pytest

from aioqueue.rl.indexes import OrdinalSet, SortedIndex
from aioqueue.rl.machine import RolloutMachine
from benchmarks.growth.rollouts import train_groups


@pytest.mark.slow
@pytest.mark.parametrize("order", ["ready", pytest.param("oldest", marks=pytest.mark.long)])
def test_a_million_groups_leave_nothing_behind(order: str) -> None:
    """Not even if one prompt never ends, and all others overtake it."""
    options = {"batch_size": 16, "steps_ahead": 1, "order": order, "stuck": 5}
    few, many = (train_groups(n, **options) for n in (10_000, 1_000_000))  # type: ignore[arg-type]
    assert many.trained > 900_000
    assert len(pickle.dumps(many)) <= len(pickle.dumps(few)) + 200


def test_removed_values_do_not_fill_an_index() -> None:
    index: SortedIndex[int] = SortedIndex()
    index.add(0, 0)
    for number in range(1, 1000):
        index.add(number, number)
        index.discard(number)
    assert len(index._heap) < 40
    assert (index.first_key(), index.pop(), index.first_key()) == (0, 0, None)


def test_an_index_keeps_the_order_of_keys() -> None:
    index: SortedIndex[str] = SortedIndex()
    for key in (5, 1, 3, 1, 4):
        index.add(key, str(key))
    index.discard(3)
    index.add(3, "again")
    assert [index.pop() for _ in range(len(index.values))] == ["1", "again", "4", "5"]
    assert index.first_key() is None


def test_ordinals_are_merged_into_ranges() -> None:
    ordinals = OrdinalSet()
    for one in (3, 5, 4, 0, 8):
        ordinals.add(one)
    assert (ordinals.lowest_open, ordinals.ranges()) == (1, [[3, 6], [8, 9]])
    again = OrdinalSet(ordinals.lowest_open, ordinals.ranges())
    assert [again.first_open(one) for one in (0, 1, 3, 6, 8)] == [1, 1, 6, 6, 9]
    for one in (2, 1):
        ordinals.add(one)
    assert (ordinals.lowest_open, ordinals.ranges()) == (6, [[8, 9]])


def test_what_is_asked_before_the_beginning_waits_for_it() -> None:
    machine = RolloutMachine(batch_size=1)
    assert machine.take().pull is None
    assert machine.begin().pull == 0


def test_the_mean_of_the_last_weights_is_the_estimate() -> None:
    """Before one is known, a group counts as a batch: else the first burst could be any size."""
    machine = RolloutMachine(batch_size=10, steps_ahead=1, is_weighed=True)
    effects = machine.begin()
    for prompt in range(2):
        group, effects = machine.prompt(prompt, 1)
        for call in effects.starts:
            machine.enter(call)
            machine.finished(call)
    assert effects.pull is None
    assert group is not None
    assert machine.judged(group, weight=2).pull == 2
