"""Verdicts: true of simulated and real pipelines, and worded so that they help."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from aioqueue.telemetry import FunctionNumbers, Histogram, Snapshot, Verdict
from aioqueue.telemetry.metrics.scalars import scalars_of
from aioqueue.telemetry.verdict.bottleneck import verdict_of
from proofs.verdicts import is_true
from tests.telemetry.advised_pipelines import Advised
from tests.telemetry.real_pipelines import measured
from tests.telemetry.simulation import Shape, StageShape, random_shape, rates, simulated

SEEDS = range(20)
"""The long form, `python -m proofs.verdicts`, takes two hundred, and real pipelines."""


def stage(name: str = "decode", **given: Any) -> StageShape:
    options: dict[str, Any] = {
        "where": "thread",
        "workers": 4,
        "waits": 0.01,
        "computes": 0.0,
        "spread": 0.3,
        "ordered": True,
        "max_in_flight": 64,
        "room": 64,
    }
    return StageShape(name=name, **(options | given))


@cache
def run(shape: Shape) -> tuple[Snapshot, Snapshot]:
    _, earlier, later = simulated(shape, 1, 6.0)
    return earlier, later


def verdict_on(shape: Shape) -> Verdict:
    return verdict_of(*run(shape))


class TestTruth:
    @pytest.mark.slow
    def test_the_verdict_names_the_part_that_limits_throughput(self) -> None:
        false = []
        for seed in SEEDS:
            shape = random_shape(seed)
            _, earlier, later = simulated(shape, seed, 4.0)
            verdict = verdict_of(earlier, later)
            if not is_true(verdict, rates(shape, seed, 4.0)):
                false.append((seed, str(verdict)))
        assert len(false) <= 0.05 * len(SEEDS), false

    @pytest.mark.slow
    def test_data_is_not_ahead_while_the_step_waits(self) -> None:
        for seed in range(100):
            _, earlier, later = simulated(random_shape(seed), seed, 1.0)
            verdict = verdict_of(earlier, later)
            assert verdict.cause != "step" or verdict.starved <= 0.05

    def test_the_verdict_depends_on_the_numbers_only(self) -> None:
        earlier, later = run(Shape(0, (stage(),), 4, 0.001))
        assert verdict_of(earlier, later) == verdict_of(earlier, later)


class TestFunctionsWithoutWorkers:
    """Functions between stages, bounds of bytes, and locks: on top of a run of a slow step."""

    def verdict_of(self, share: float, within: str | None, *, worked: float) -> Verdict:
        earlier, later = run(Shape(0, (stage(waits=0.001),), 4, 0.02))
        seconds = later.seconds - earlier.seconds
        assert earlier.steps is not None
        steps = replace(
            earlier.steps,
            steps=earlier.steps.steps + 100,
            worked=earlier.steps.worked + worked * seconds,
            waits=replace(
                earlier.steps.waits,
                seconds=earlier.steps.waits.seconds + (1 - worked) * seconds,
            ),
        )
        service = Histogram(counts=(0,) * 20 + (100,) + (0,) * 5, seconds=share * seconds)
        function = FunctionNumbers("my_collate", "batch", within, service, share * seconds)
        return verdict_of(earlier, replace(later, steps=steps, functions=(function,)))

    def test_prefetch_is_advised_for_a_collate_if_it_pays(self) -> None:
        verdict = self.verdict_of(0.55, None, worked=0.4)
        assert (verdict.advice, verdict.stage) == ("prefetch", "my_collate")
        assert "my_collate of batch" in str(verdict)

    @pytest.mark.parametrize("worked", [0.02, 0.15])
    def test_a_faster_collate_is_advised_if_prefetch_does_not_pay(self, worked: float) -> None:
        """A thread of its own would save at most the step takes."""
        verdict = self.verdict_of(0.99 - worked, None, worked=worked)
        assert (verdict.cause, verdict.advice, verdict.stage) == (
            "stage",
            "faster function",
            "my_collate",
        )
        assert f"prefetch(...) would save at most the {100 * worked:.0f} %" in str(verdict)

    def test_a_quick_function_is_not_the_bottleneck(self) -> None:
        assert self.verdict_of(0.05, None, worked=0.4).stage != "my_collate"

    def test_limit_bytes_is_the_bottleneck(self) -> None:
        earlier, later = run(Shape(0, (stage(waits=0.04),), 4, 0.002))
        (one,), seconds = later.stages, later.seconds - earlier.seconds
        full = replace(
            one,
            busy=earlier.stages[0].busy + 0.4 * (one.alive - earlier.stages[0].alive),
            seconds_window_full=earlier.stages[0].seconds_window_full + 0.9 * seconds,
            seconds_bytes_full=0.9 * seconds,
            limit_bytes=4096,
        )
        verdict = verdict_of(earlier, replace(later, stages=(full,)))
        assert verdict.advice == "higher limit_bytes"
        assert "limit_bytes: raise it above 4096" in str(verdict)

    @pytest.mark.parametrize("busy", [0.25, 0.75])
    def test_max_per_key_is_the_bottleneck(self, busy: float) -> None:
        """As many workers as may be are at work: more of them would not help."""
        earlier, later = run(Shape(0, (stage(waits=0.04),), 4, 0.002))
        (one,), seconds = later.stages, later.seconds - earlier.seconds
        full = replace(
            one,
            busy=earlier.stages[0].busy + busy * (one.alive - earlier.stages[0].alive),
            seconds_keys_full=0.95 * seconds,
            max_per_key=1,
            full_key="'example.org'",
        )
        verdict = verdict_of(earlier, replace(later, stages=(full,)))
        assert (verdict.advice, verdict.stage) == ("wider max_per_key", "decode")
        assert "max_per_key above 1" in str(verdict)
        assert "'example.org'" in str(verdict)
        by_rate = replace(full, max_per_key=None)
        verdict = verdict_of(earlier, replace(later, stages=(by_rate,)))
        assert (verdict.advice, verdict.stage) == ("higher rate", "decode")
        assert "while rate= defers items" in str(verdict)

    def test_workers_that_wait_for_a_lock(self) -> None:
        earlier, later = run(Shape(0, (stage(waits=0.04),), 4, 0.002))
        (one,) = later.stages
        in_line = replace(one, looks=100, in_line=70, lock="train.py:12")
        verdict = verdict_of(earlier, replace(later, stages=(in_line,)))
        assert verdict.advice == "less locking"
        assert "train.py:12" in str(verdict)
        call_with_lock = replace(in_line, cpu=in_line.cpu_sampled)  # who has it computes
        later_samples = replace(later, gil_looks=later.gil_looks + 100, gil_taken=100)
        verdict = verdict_of(earlier, replace(later_samples, stages=(call_with_lock,)))
        assert verdict.advice == "less locking"
        few = replace(one, looks=100, in_line=10, lock="train.py:12")
        assert verdict_of(earlier, replace(later, stages=(few,))).advice == "more workers"

    def test_tasks_that_block_their_event_loop(self) -> None:
        """One of them is in the function at any time, and holds up the loop of the others."""
        earlier, later = run(Shape(0, (stage(waits=0.04),), 4, 0.002))
        (one,), (before,) = later.stages, earlier.stages
        alive = one.alive - before.alive
        blocking = replace(
            one,
            where="task",
            busy=before.busy + alive / 4,
            starved=before.starved + 0.75 * alive,
            blocked=before.blocked,
            seconds_window_full=before.seconds_window_full,
            cpu=before.cpu,
        )
        verdict = verdict_of(earlier, replace(later, stages=(blocking,)))
        assert (verdict.advice, verdict.stage) == ("threads", "decode")
        assert "decode (4 tasks) waits without await" in str(verdict)
        two_at_once = replace(blocking, busy=before.busy + alive / 2)
        verdict = verdict_of(earlier, replace(later, stages=(two_at_once,)))
        assert verdict.advice == "none"

    def test_tags_stay_distinct_after_characters_are_replaced(self) -> None:
        earlier, later = run(Shape(0, (stage("a/b"), stage("a:b")), 4, 0.002))
        found = scalars_of(earlier, later)
        assert {"data/a_b/busy", "data/a_b-2/busy"} <= set(found)


@pytest.mark.slow
class TestRealPipelines:
    """What the user wrote is named, and not the stage before or behind it."""

    @pytest.mark.parametrize(
        ("case", "named", "advice"),
        [
            (Advised("collate", 0.02, 0.001, 2, 4), "my_collate of batch", "faster function"),
            (
                Advised("prefetch", 0.02, 0.001, 2, 4, prefetches=True),
                "my_collate of batch",
                "faster function",
            ),
            (Advised("filter", 0.004, 0.001, 2, 4), "my_filter of filter", "faster function"),
            (Advised("limit_bytes", 0.004, 0.001, 8, 4, 400_000), "uneven", "higher limit_bytes"),
            (Advised("lock", 0.004, 0.001, 4, 4), "locked", "less locking"),
        ],
        ids=lambda one: one.kind if isinstance(one, Advised) else "",
    )
    def test_the_bottleneck_is_named(self, case: Advised, named: str, advice: str) -> None:
        _, verdict = measured(case.pipeline(), case.step, 1.5)
        assert named in str(verdict)
        assert verdict.advice == advice


class TestSentences:
    def test_of_a_step_that_limits(self) -> None:
        verdict = verdict_on(Shape(0, (stage(waits=0.001),), 4, 0.02))
        assert (verdict.cause, verdict.advice, verdict.stage) == ("step", "none", None)
        assert str(verdict).startswith(
            "data is ahead: the training step is the bottleneck, and waits 0 %"
        )

    def test_of_a_stage_that_waits_for_something(self) -> None:
        verdict = verdict_on(Shape(0, (stage(waits=0.04),), 4, 0.02))
        assert (verdict.cause, verdict.stage, verdict.advice) == ("stage", "decode", "more workers")
        assert 3 <= verdict.workers <= 5  # it takes as many again
        assert "decode (4 threads) is saturated and mostly waits" in str(verdict)

    def test_of_threads_that_hold_the_lock(self) -> None:
        verdict = verdict_on(Shape(0, (stage(waits=0.0, computes=0.005),), 4, 0.01))
        assert (verdict.cause, verdict.stage, verdict.advice) == ("stage", "decode", "processes")
        assert str(verdict).endswith(
            "decode (4 threads) is saturated and holds the GIL: use where='process'"
        )

    def test_of_processes_that_compute_on_all_cores(self) -> None:
        shape = Shape(0, (stage(where="process", waits=0.0, computes=0.04),), 4, 0.01, cores=4.0)
        verdict = verdict_on(shape)
        assert (verdict.stage, verdict.advice) == ("decode", "more cores")

    def test_of_a_source(self) -> None:
        verdict = verdict_on(Shape(0.01, (stage(),), 4, 0.01))
        assert (verdict.cause, verdict.advice) == ("source", "faster source")
        assert verdict.stage == "decode"
        assert "the source of decode" in str(verdict)

    def test_of_the_slower_one_of_two_stages(self) -> None:
        stages = (stage("read", waits=0.01), stage("augment", waits=0.05))
        assert verdict_on(Shape(0, stages, 4, 0.01)).stage == "augment"
        assert verdict_on(Shape(0, stages[::-1], 4, 0.01)).stage == "augment"

    def test_of_slow_items_that_hold_up_others(self) -> None:
        shape = Shape(0, (stage(workers=16, spread=1.0, waits=0.02, max_in_flight=16),), 1, 0.0001)
        verdict = verdict_on(shape)
        assert (verdict.cause, verdict.stage) == ("stage", "decode")

    def test_of_a_run_that_has_not_begun(self) -> None:
        earlier, _ = run(Shape(0, (stage(),), 4, 0.001))
        verdict = verdict_of(earlier, earlier)
        assert (verdict.cause, verdict.advice, verdict.rate) == ("nothing", "none", 0.0)

    def test_of_a_loop_that_makes_its_own_batches(self) -> None:
        earlier, later = run(Shape(0, (stage(waits=0.001),), 4, 0.02))
        assert later.steps is not None
        waits = replace(later.steps.waits, seconds=later.steps.waits.seconds + 2.0)
        later = replace(later, steps=replace(later.steps, waits=waits))
        verdict = verdict_of(earlier, later)
        assert (verdict.cause, verdict.advice) == ("unknown", "prefetch")

    def test_of_workers_that_wait_for_something_unmeasured(self) -> None:
        earlier, later = run(Shape(0, (stage(waits=0.04),), 4, 0.02))
        idle = replace(later.stages[0], busy=0.0, starved=0.0, blocked=0.0)
        before = replace(earlier.stages[0], busy=0.0, starved=0.0, blocked=0.0)
        verdict = verdict_of(replace(earlier, stages=(before,)), replace(later, stages=(idle,)))
        assert (verdict.cause, verdict.stage) == ("unknown", None)


class TestScalars:
    def test_are_floats_by_names(self) -> None:
        scalars = scalars_of(*run(Shape(0, (stage(waits=0.04),), 4, 0.02)))
        assert all(type(value) is float for value in scalars.values())
        assert all(name.startswith("data/") for name in scalars)
        assert scalars["data/decode/workers"] == 4.0
        assert scalars["data/decode/busy"] == pytest.approx(1.0, abs=0.05)
        assert 0.3 < scalars["data/step_wait"] < 0.7
        assert scalars["data/queue-decode/fill"] < 0.2

    def test_a_function_of_the_name_of_a_stage_has_another(self) -> None:
        earlier, later = run(Shape(0, (stage(waits=0.04),), 4, 0.02))
        functions = tuple(
            FunctionNumbers(name, "filter", None, Histogram(), 0.1) for name in ("decode", "even")
        )
        scalars = scalars_of(earlier, replace(later, functions=functions))
        assert {"data/decode-filter/busy", "data/even/busy"} <= scalars.keys()
