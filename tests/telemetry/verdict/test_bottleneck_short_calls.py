"""Functions that take microseconds: the verdict advises larger items instead of threads."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from aioqueue.core.meters import BOUNDS, Histogram
from aioqueue.inputs import numbers
from aioqueue.telemetry.verdict.bottleneck import verdict_of
from tests.telemetry.fluid_model import Stage, history


def of_calls(seconds: float, count: int) -> Histogram:
    """Calls that take so long; one in a hundred loses the GIL and takes milliseconds."""
    counts = [0] * (len(BOUNDS) + 1)
    for duration, how_many in ((seconds, count - count // 100), (0.008, count // 100)):
        counts[next(at for at, bound in enumerate((*BOUNDS, 1e9)) if duration <= bound)] += how_many
    return Histogram(tuple(counts), seconds * count + 0.00008 * count, 0.008)


@pytest.mark.parametrize(
    ("microseconds", "rate", "gil", "advice"),
    [
        (5, 40_000, 0.3, "larger items"),
        (5, 40_000, 0.0, "larger items"),
        (20, 30_000, 0.6, "larger items"),
        (100, 6_000, 0.6, "larger items"),
        (100, 6_000, 0.1, "more workers"),  # it waits, for a cache in memory perhaps
        (300, 3_000, 0.1, "more workers"),
        (5, 1_000, 0.3, "more workers"),  # too few to be the reason
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_advice(
    microseconds: float, rate: float, gil: float, advice: str, workers: int
) -> None:
    seconds = 20
    snapshots = history([Stage("tiny", workers, 0.02, on_cpu=0.1)], seconds=seconds)
    earlier, later = snapshots[0], snapshots[-1]
    (stage,) = later.stages
    stage = replace(
        stage,
        delivered=int(rate * seconds),
        service=of_calls(microseconds * 1e-6, int(rate * seconds)),
    )
    earlier = replace(
        earlier, stages=(replace(earlier.stages[0], delivered=0, service=of_calls(1, 0)),)
    )
    later = replace(later, stages=(stage,), gil_looks=100, gil_taken=int(100 * gil))
    verdict = verdict_of(replace(earlier, gil_looks=0, gil_taken=0), later)
    assert (verdict.advice, verdict.stage) == (advice, "tiny"), str(verdict)
    assert (verdict.workers > 0) is (advice == "more workers")
    if advice == "larger items":
        assert "more threads do not help; give each call more work" in str(verdict)


def identity(number: int) -> int:
    return number


def squares(number: int) -> int:
    return [i * i for i in range(200)][-1]


def waiting(number: int) -> int:
    time.sleep(0.002)
    return number


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "advice"),
    [(identity, "larger items"), (squares, "larger items"), (waiting, "more workers")],
)
@pytest.mark.parametrize("workers", [1, 3])
def test_real_ones(function: Any, advice: str, workers: int) -> None:
    pipeline = numbers(10**9).prepare(function, workers=workers).batch(100)
    began = time.monotonic()
    with pipeline.monitor() as monitor:
        for _ in pipeline:
            if time.monotonic() - began > 2:
                break
        verdict = monitor.verdict()
    assert verdict.advice == advice, str(verdict)
