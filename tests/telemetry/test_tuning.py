"""Autotune: what it does about what it sees, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aioqueue import InvalidArgumentError, inputs, sync
from aioqueue.telemetry import Snapshot, Tuner, Watch
from tests.inputs.functions import double
from tests.telemetry.simulation import Shape, StageShape, simulated


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
        self.tuner._tuning.close()  # time is ours
        self.now = 0.0

    def resize(self, count: int) -> None:
        self.count = count
        self.sizes.append(count)

    def goes_on(self, seconds: int) -> None:
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


class TestWhatItDoes:
    def test_it_adds_workers_until_data_are_ahead(self) -> None:
        tuned = Tuned(shape)
        tuned.goes_on(30)
        assert tuned.sizes == sorted(tuned.sizes)
        assert 8 <= tuned.count <= 16  # 400 items a second of 20 ms each
        assert [change.after for change in tuned.watch.changes()] == tuned.sizes

    def test_it_stays_within_bounds(self) -> None:
        tuned = Tuned(shape, bounds=(1, 3))
        tuned.goes_on(30)
        assert tuned.count == 3

    def test_it_gives_none_to_threads_that_hold_the_lock(self) -> None:
        tuned = Tuned(lambda count: shape(count, waits=0.0, computes=0.005), count=4)
        tuned.goes_on(30)
        assert tuned.sizes == []

    def test_it_takes_back_what_has_not_helped(self) -> None:
        """As long as it says that it waits; but all wait for one thing."""
        tuned = Tuned(lambda count: shape(count, waits=0.02 * count), count=2)
        tuned.goes_on(24)
        assert tuned.count == 2
        assert len(tuned.sizes) == 2 * (len(tuned.sizes) // 2)
        assert any("no faster" in change.why for change in tuned.watch.changes())

    def test_it_leaves_a_stage_alone_that_does_not_limit(self) -> None:
        tuned = Tuned(lambda count: shape(count, step=1.0), count=1)
        tuned.goes_on(30)
        assert tuned.sizes == []

    def test_what_cannot_be_started_is_not_asked_for_again_at_once(self) -> None:
        tuned = Tuned(shape)
        asked: list[int] = []

        def refuse(count: int) -> None:
            asked.append(count)
            raise RuntimeError("can't start new thread")

        tuned.tuner._resize = refuse
        tuned.goes_on(12)
        assert len(asked) == 1
        assert tuned.watch.changes() == ()


class TestTheOption:
    @pytest.mark.parametrize("autotune", [3, "yes", (1,), (0, 4), (4, 2), (1, 2, 3), None])
    def test_is_checked(self, autotune: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="autotune"):
            inputs.prepare(range(3), abs, into=sync.FIFOQueue(1), autotune=autotune)

    @pytest.mark.parametrize(
        ("autotune", "workers", "begins"), [((2, 8), 1, 2), ((2, 8), 9, 8), ((1, 3), 2, 2)]
    )
    def test_says_with_how_many_it_begins(
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
            coord.start(runner)
            assert runner._tuner is not None
            looker = runner._tuner._tuning._looker
            assert sorted(queue) == list(range(10))
            coord.request_stop()
        looker.join()  # which ends when the tuner is let go of
