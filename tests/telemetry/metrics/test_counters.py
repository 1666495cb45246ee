"""Readings of a part over time: those of several runs add up, and none shrinks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aioqueue.telemetry.metrics.counters import consecutive, never_less
from aioqueue.telemetry.metrics.snapshots import StageNumbers
from tests.telemetry.fluid_model import usual


@pytest.fixture
def stage() -> StageNumbers:
    return usual(10).now.stages[0]


class TestNeverLess:
    """A program that subtracts counters, as Prometheus does, would take a smaller value for a
    restart."""

    @pytest.mark.parametrize(
        "name", ["busy", "blocked", "starved", "alive", "fed", "seconds_window_full"]
    )
    def test_seconds_that_shrink_are_raised_to_the_last_reading(
        self, stage: StageNumbers, name: str
    ) -> None:
        before = replace(stage, **{name: getattr(stage, name) + 0.001})
        now = replace(stage, delivered=stage.delivered + 1)
        assert never_less(before, now) == replace(before, delivered=now.delivered)

    def test_values_that_grow_are_unchanged(self, stage: StageNumbers) -> None:
        now = replace(stage, busy=stage.busy + 1.0)
        assert never_less(stage, now) is now

    def test_the_body_of_the_loop(self) -> None:
        steps = usual(10).now.steps
        assert steps is not None
        before = replace(steps, worked=steps.worked + 0.001)
        assert never_less(before, steps).worked == before.worked


def test_deaths_of_earlier_runs_are_counted(stage: StageNumbers) -> None:
    both = consecutive(replace(stage, deaths=2), replace(stage, deaths=1))
    assert both.deaths == 3
