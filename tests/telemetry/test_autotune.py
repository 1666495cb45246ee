"""Autotune: what it does about what it sees, and what it leaves alone."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from aioqueue import InvalidArgumentError, inputs, sync
from aioqueue.telemetry import Snapshot, Tuner, Watch
from proofs.tuning import ENOUGH, judge_simulated
from tests.kit.functions import double
from tests.telemetry.simulation import Shape, StageShape, simulated
from tests.telemetry.tuned_runs import TunedRun, best_fixed


def shape(workers: int, *, waits: float = 0.02, computes: float = 0.0, step: float = 0.01) -> Shape:
    stage = StageShape("decode", "thread", workers, waits, computes, 0.0, True, 16 * workers, 64)
    return Shape(0.0, (stage,), 4, step)


class Tuned:
    """A tuner in virtual time: each call is some seconds later, with as many workers as it set.

    Args:
        made: the pipeline with so many workers.
        bounds: of the tuner.
        count: workers to begin with.
    """

    def __init__(self, made: Any, bounds: tuple[int, int] = (1, 32), count: int = 1) -> None:
        self.made, self.count = made, count
        self.watch = Watch()
        self.sizes: list[int] = []
        self.tuner = Tuner(
            self.watch, "decode", "queue-decode", bounds, lambda: self.count, self.resize
        )
        self.tuner.tuning.close()  # time is ours
        self.now = 0.0

    def resize(self, count: int) -> None:
        self.count = count
        self.sizes.append(count)

    def continues(self, seconds: int) -> None:
        """So many seconds pass, six of which are seen each time."""
        for _ in range(seconds // 6):
            self.now += 2.0  # to settle
            _, earlier, later = simulated(self.made(self.count), 1, 9.0)
            passed = later.seconds - earlier.seconds
            self.now += passed
            history = [_at(earlier, self.now - passed), _at(later, self.now)]
            self.tuner.tune(history)


def _at(snapshot: Snapshot, seconds: float) -> Snapshot:
    return replace(snapshot, seconds=seconds)


class TestSteadyRuns:
    def test_it_adds_workers_until_data_is_ahead(self) -> None:
        tuned = Tuned(shape)
        tuned.continues(30)
        assert tuned.sizes == sorted(tuned.sizes)
        assert 8 <= tuned.count <= 16  # 400 items a second of 20 ms each
        assert [change.after for change in tuned.watch.changes()] == tuned.sizes

    def test_it_stays_within_bounds(self) -> None:
        tuned = Tuned(shape, bounds=(1, 3))
        tuned.continues(30)
        assert tuned.count == 3

    def test_it_adds_no_threads_that_hold_the_gil(self) -> None:
        tuned = Tuned(lambda count: shape(count, waits=0.0, computes=0.005), count=4)
        tuned.continues(30)
        assert tuned.sizes == []

    def test_it_undoes_a_change_that_did_not_help(self) -> None:
        """The verdict sees calls that wait, but all of them wait for one resource."""
        tuned = Tuned(lambda count: shape(count, waits=0.02 * count), count=2)
        tuned.continues(24)
        assert tuned.count == 2
        assert len(tuned.sizes) == 2 * (len(tuned.sizes) // 2)
        assert any("no faster" in change.why for change in tuned.watch.changes())

    def test_it_does_not_change_a_stage_that_is_not_the_bottleneck(self) -> None:
        tuned = Tuned(lambda count: shape(count, step=1.0), count=1)
        tuned.continues(30)
        assert tuned.sizes == []

    def test_workers_that_cannot_start_are_not_retried_at_once(self) -> None:
        asked: list[int] = []

        class Refused(Tuned):
            def resize(self, count: int) -> None:
                asked.append(count)
                raise RuntimeError("can't start new thread")

        tuned = Refused(shape)
        tuned.continues(12)
        assert len(asked) == 1
        assert tuned.watch.changes() == ()


class TestInVirtualTime:
    """All seconds of a run, one by one, with workers that come and go; see `TunedRun`."""

    @pytest.mark.slow(but="3]")
    @pytest.mark.parametrize("seed", [0, 3, 5, 6, 9, 11])
    def test_it_comes_near_the_best_numbers_within_half_a_minute(self, seed: int) -> None:
        """The long form, `python -m proofs.tuning`, takes two hundred, and real pipelines."""
        share, _ = judge_simulated(seed)
        assert share >= ENOUGH

    @pytest.mark.slow
    def test_it_waits_for_workers_that_start_slowly(self) -> None:
        """Until they have started, throughput does not show whether they help."""
        made = shape(1)
        slow = replace(made.stages[0], where="process", starts=7.0)
        run = TunedRun(replace(made, stages=(slow,)), 1)
        run.continues(35)
        assert not [change for change in run.watch.changes() if change.after < change.before]
        assert run.continues(10) > 0.9 * best_fixed(replace(made, stages=(slow,)), 1)

    @pytest.mark.slow
    def test_a_stage_that_stops_being_the_bottleneck_keeps_its_workers(self) -> None:
        made = shape(1, step=0.004)
        twin = replace(made.stages[0], name="augment")
        run = TunedRun(replace(made, stages=(made.stages[0], twin)), 1)
        run.continues(30)
        assert not [change for change in run.watch.changes() if change.after < change.before]
        assert min(run.workers) >= 8

    def test_an_undone_change_is_redone_if_throughput_drops(self) -> None:
        """While four are tried the machine has other things to do, and then no longer."""
        run = TunedRun(shape(1), 1)
        [stage] = run.run.stages
        run.continues(3)
        assert run.workers == (4,)
        stage.shape = replace(stage.shape, waits=4 * stage.shape.waits)
        run.continues(3)
        assert run.workers == (1,), "it takes them back"
        stage.shape = replace(stage.shape, waits=stage.shape.waits / 4)
        stage.shape = replace(stage.shape, waits=1.5 * stage.shape.waits)
        run.continues(3)
        assert run.workers == (4,), "but one is slower still"
        assert "slower" in run.watch.changes()[-1].why

    def test_a_change_that_was_too_large_is_retried_smaller(self) -> None:
        run = TunedRun(shape(1), 1)
        [stage] = run.run.stages
        run.continues(3)
        assert run.workers == (4,)
        stage.shape = replace(stage.shape, waits=8 * stage.shape.waits)
        run.continues(4)
        assert run.workers == (1,)
        stage.shape = replace(stage.shape, waits=stage.shape.waits / 8)
        run.continues(4)
        assert run.workers == (2,)

    @pytest.mark.slow
    def test_one_change_at_a_time_per_run(self) -> None:
        stages = tuple(replace(shape(1).stages[0], name=name) for name in ("a", "b", "c"))
        run = TunedRun(Shape(0.0, stages, 4, 0.004), 1)
        run.continues(30)
        times = [change.seconds for change in run.watch.changes()]
        assert len(times) >= 5
        assert all(later - earlier > 2.5 for earlier, later in pairwise(times))

    def test_more_workers_are_tried_at_a_shared_source(self) -> None:
        """The source limits; but two can do without the time that one works after it."""
        made = replace(shape(1, waits=0.001, step=0.001), source=0.003)
        run = TunedRun(made, 1)
        run.continues(30)
        assert run.workers[0] > 1
        assert run.continues(10) > 0.95 * best_fixed(made, 1)


class TestTheOption:
    @pytest.mark.parametrize("autotune", [3, "yes", (1,), (0, 4), (4, 2), (1, 2, 3), None])
    def test_is_checked(self, autotune: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="autotune"):
            inputs.prepare(range(3), abs, into=sync.FIFOQueue(1), autotune=autotune)

    @pytest.mark.parametrize(
        ("autotune", "workers", "begins"), [((2, 8), 1, 2), ((2, 8), 9, 8), ((1, 3), 2, 2)]
    )
    def test_reports_the_initial_number_of_workers(
        self, autotune: tuple[int, int], workers: int, begins: int
    ) -> None:
        options: dict[str, Any] = {"workers": workers, "autotune": autotune}
        runner = inputs.prepare(range(3), abs, into=sync.FIFOQueue(1), **options)
        assert runner.workers == begins

    def test_loses_nothing_in_a_pipeline(self) -> None:
        pipeline = inputs.items(range(100)).prepare(double, autotune=True).batch(10)
        assert [list(batch) for batch in pipeline] == [
            [2 * number for number in range(first, first + 10)] for first in range(0, 100, 10)
        ]

    def test_ends_with_the_run(self) -> None:
        queue = sync.FIFOQueue(8)
        with sync.Coordinator() as coord:
            runner = inputs.prepare(range(10), abs, into=queue, autotune=(1, 4))
            before = set(threading.enumerate())
            coord.start(runner)
            (looker,) = (
                one
                for one in threading.enumerate()
                if one not in before and one.name == "aioqueue-monitor"
            )
            assert sorted(queue) == list(range(10))
            coord.request_stop()
        looker.join()  # which ends when the tuner is let go of
