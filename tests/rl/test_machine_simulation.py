"""The machine in virtual time, against the rules that others wrote by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aioqueue.rl.machine import Order, RolloutMachine
from proofs.rollouts.simulation import (
    ROWS,
    Row,
    Simulation,
    run_formula,
    run_synchronously,
    trained_length,
)

LIMITS = (40, 48, 10**6)


@pytest.mark.parametrize("order", ["ready", "oldest"])
@pytest.mark.parametrize("steps_ahead", [0, 1, 2, 4])
def test_slots_are_the_formula_of_others(steps_ahead: int, order: Order) -> None:
    for limit in LIMITS:
        machine = RolloutMachine(batch_size=32, steps_ahead=steps_ahead, limit=limit, order=order)
        result = Simulation(machine, 20).run()
        expected = run_formula(32, steps_ahead, limit, 20, order)
        assert result.batches == expected.batches
        assert result.staleness == expected.staleness
        assert result.seconds == pytest.approx(expected.seconds)
        assert result.waited == pytest.approx(expected.waited)


def is_kept(ordinal: int) -> bool:
    return ordinal % 3 != 1


@pytest.mark.parametrize("group_size", [1, 4])
@pytest.mark.parametrize("accepts", [lambda ordinal: True, is_kept])
def test_a_strict_queue_without_steps_ahead_is_the_synchronous_loop(
    group_size: int, accepts: Callable[[int], bool]
) -> None:
    expected = run_synchronously(16, group_size, 20, accepts=accepts)
    machine = RolloutMachine(batch_size=16, steps_ahead=0, order="strict")
    result = Simulation(machine, 20, group_size=group_size, accepts=accepts).run()
    assert result.batches == expected.batches
    assert result.staleness == expected.staleness
    assert result.seconds == pytest.approx(expected.seconds)


# As the documentation shows them: mean and worst staleness, idle time in per cent, and the length
# of the trained groups, where that of all prompts is 3.63 to 3.66.
TABLE = {
    "0 oldest": (0.00, 0, 76, 3.63),
    "1 oldest": (1.00, 6, 26, 3.61),
    "1 strict": (1.00, 1, 57, 3.63),
    "1 wait, 2": (1.00, 2, 42, 3.61),
    "1 drop, 1": (0.84, 1, 28, 3.00),
    "1 drop, 1, again": (0.31, 1, 49, 3.42),
    "2 oldest": (2.00, 8, 1, 3.61),
    "2 strict": (2.00, 2, 43, 3.63),
    "2 wait, 3": (2.00, 3, 26, 3.61),
    "2 drop, 2": (1.68, 2, 1, 2.87),
    "2 drop, 2, again": (1.07, 2, 19, 3.39),
}


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.steps_ahead} {row}")
def test_the_table_of_orders(row: Row) -> None:
    result = row.run()
    mean, worst, idle, length = TABLE[f"{row.steps_ahead} {row}"]
    assert result.mean_staleness == pytest.approx(mean, abs=0.005)
    assert result.worst_staleness == worst
    assert 100 * result.idle == pytest.approx(idle, abs=0.5)
    trained, of_all = trained_length(result)
    assert trained == pytest.approx(length, abs=0.005)
    assert of_all == pytest.approx(3.64, abs=0.02)


def test_events_keep_nothing_of_the_past() -> None:
    def run(steps: int) -> RolloutMachine:
        machine = RolloutMachine(batch_size=10, steps_ahead=1)
        Simulation(machine, steps, latency=lambda ordinal, index: 1.0).run()
        return machine

    for machine in (run(10), run(1000)):
        assert len(machine.groups) <= 20
        assert machine.ended.ranges() == []
        assert machine.held == {}


@pytest.mark.slow
def test_ten_thousand_in_flight() -> None:
    machine = RolloutMachine(batch_size=128, steps_ahead=4)
    result = Simulation(machine, 10, group_size=16).run()
    assert result.most_in_flight == 128 * 5 * 16
    assert len(set(result.trained)) == 1280
