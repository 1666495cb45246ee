"""The sums of a monitor agree while a pipeline runs; and what does not agree would be found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aioqueue.telemetry import Snapshot
from proofs.sums import BATCH, problems, whole_run
from tests.telemetry.fluid_model import usual


def test_in_all_snapshots_of_a_run() -> None:
    count, found = whole_run(2000)
    assert found == []
    assert count > 0


class TestWhatDoesNotAgree:
    @pytest.fixture
    def now(self) -> Snapshot:
        return usual(10).now

    def changed(self, now: Snapshot, **numbers: Any) -> Snapshot:
        """The same with other numbers of its last queue."""
        return replace(now, queues=(*now.queues[:-1], replace(now.queues[-1], **numbers)))

    def test_a_sum(self, now: Snapshot) -> None:
        queue = now.queues[-1]
        wrong = self.changed(now, enqueued=queue.enqueued + 1)
        assert f"{queue.name}: sum" in problems(now, wrong, BATCH)

    def test_a_counter_that_goes_back(self, now: Snapshot) -> None:
        queue = now.queues[-1]
        before = self.changed(now, seconds_empty=queue.seconds_empty + 1.0)
        assert any("seconds_empty goes back" in found for found in problems(before, now, BATCH))

    def test_what_is_further_down_than_it_can_be(self, now: Snapshot) -> None:
        stage = now.stages[-1]
        ahead = replace(stage, delivered=stage.delivered + 100, taken=stage.taken + 100)
        before = replace(now, stages=(*now.stages[:-1], ahead))
        queue = stage.into
        assert f"{stage.name}: delivers what is not in {queue}" in problems(before, now, BATCH)
