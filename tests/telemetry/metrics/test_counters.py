"""Numbers of a part over time: those of several runs are added up, and none goes back."""

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
    """Or who differences counters, as Prometheus does, takes it for one that began anew."""

    @pytest.mark.parametrize(
        "name", ["busy", "blocked", "starved", "alive", "fed", "seconds_window_full"]
    )
    def test_seconds_that_went_on_for_longer_than_was_written_down(
        self, stage: StageNumbers, name: str
    ) -> None:
        told = replace(stage, **{name: getattr(stage, name) + 0.001})
        now = replace(stage, delivered=stage.delivered + 1)
        assert never_less(told, now) == replace(told, delivered=now.delivered)

    def test_what_is_more_is_left(self, stage: StageNumbers) -> None:
        now = replace(stage, busy=stage.busy + 1.0)
        assert never_less(stage, now) is now

    def test_the_body_of_the_loop(self) -> None:
        steps = usual(10).now.steps
        assert steps is not None
        told = replace(steps, worked=steps.worked + 0.001)
        assert never_less(told, steps).worked == told.worked


def test_deaths_of_runs_before_are_counted(stage: StageNumbers) -> None:
    both = consecutive(replace(stage, deaths=2), replace(stage, deaths=1))
    assert both.deaths == 3
