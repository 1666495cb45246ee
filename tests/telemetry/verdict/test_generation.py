"""What limits a run that trains on rollouts: the verdict of its queue, in any interval."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aioqueue.telemetry import Snapshot
from aioqueue.telemetry.metrics.counters import concurrent, consecutive, difference
from aioqueue.telemetry.metrics.intervals import Interval
from aioqueue.telemetry.verdict.bottleneck import verdict_of
from tests.telemetry.fluid_model import generating


@pytest.mark.parametrize(
    ("trainer", "slots", "gate", "cause"),
    [
        (0.4, 0.1, 0.0, "stage"),
        (0.4, 0.0, 0.1, "stage"),
        (0.01, 0.5, 0.0, "step"),
        (0.01, 0.5, 0.3, "step"),
        (0.2, 0.05, 0.3, "gate"),
    ],
)
def test_it_is_the_generation_the_trainer_or_the_gate(
    trainer: float, slots: float, gate: float, cause: str
) -> None:
    verdict = generating(trainer=trainer, slots=slots, gate=gate).verdict()
    assert (verdict.cause, verdict.advice, verdict.workers) == (cause, "none", 0)
    assert verdict.stage == ("grpo" if cause == "stage" else None)
    assert verdict.starved == pytest.approx(trainer)
    assert verdict.rate == pytest.approx(1)


def test_it_names_what_is_missing() -> None:
    assert str(generating().verdict()) == (
        "generation is the bottleneck: the trainer waits for 40 % of its time;"
        " 3 of 8 groups are missing"
    )


def stuck(seconds: float) -> Snapshot:
    """The last snapshot of a run whose trainer has waited for so long since."""
    now = generating().now
    (stage,) = now.stages
    generation = stage.generation
    assert generation is not None
    generation = replace(generation, waiting=seconds, seconds=generation.seconds + seconds)
    return replace(
        now,
        seconds=now.seconds + seconds,
        stages=(replace(stage, generation=generation),),
        steps=generation.steps_taken,
    )


def test_a_run_that_does_not_move_has_a_verdict() -> None:
    verdict = verdict_of(stuck(0.0), stuck(3600.0))
    assert (verdict.cause, verdict.starved, verdict.rate) == ("stage", 1.0, 0.0)
    assert "the trainer waits for 100 % of its time; 3 of 8 groups are missing" in str(verdict)


def test_before_the_first_step_there_is_none() -> None:
    watching = generating()
    assert verdict_of(watching.history[0], watching.history[0]).cause == "nothing"


def test_numbers_of_two_queues_of_one_name() -> None:
    one, two = (generating(seconds).now.stages[0] for seconds in (5, 20))
    for together in (concurrent(one, two), consecutive(one, two)):
        generation = together.generation
        assert generation is not None
        assert (generation.steps, generation.groups, generation.staleness) == (25, 200, 200)
        assert generation.version == 19  # of the latest
        assert generation.mean_staleness == 1.0
    change = difference(one, two).generation
    assert change is not None
    assert (change.steps, change.groups) == (15, 120)
    plain = replace(one, generation=None)
    assert difference(plain, two).generation == two.generation
    assert concurrent(one, plain).generation == one.generation
    assert concurrent(plain, plain).generation is None


def test_the_mean_staleness_of_an_interval_without_steps_is_that_of_all() -> None:
    (stage,) = Interval.between(stuck(0.0), stuck(60.0)).stages
    assert stage.generation is not None
    assert stage.generation.mean_staleness == 1.0
