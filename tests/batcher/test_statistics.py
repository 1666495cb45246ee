"""The statistics of a batcher as a record: what is computed from its counts."""

from __future__ import annotations

import math
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.batcher.statistics import BatcherCounts


def with_latencies(*seconds: float) -> aioqueue.BatcherStatistics:
    counts = BatcherCounts()
    for one in seconds:
        counts.add_latency(one)
    record = object.__new__(aioqueue.BatcherStatistics)
    object.__setattr__(record, "latencies", counts.latencies())
    return record


def test_a_quantile_lies_in_the_bucket_of_its_request() -> None:
    record = with_latencies(*[0.004] * 50, *[0.02] * 49, 0.3)
    assert record.latency_quantile(0.25) == pytest.approx(0.00375)
    assert record.latency_quantile(0.5) == 0.005
    assert 0.01 < record.latency_quantile(0.51) <= 0.025
    assert record.latency_quantile(0.99) == 0.025
    assert 0.25 < record.latency_quantile(0.995) < record.latency_quantile(1) == 0.5


def test_a_quantile_is_finite() -> None:
    record = with_latencies(0.0, 60.0, 3600.0)
    assert record.latency_quantile(1) == 10.0
    assert math.isfinite(record.latency_quantile(0))
    assert with_latencies().latency_quantile(0.5) == 0.0


@pytest.mark.parametrize("share", [99, -0.1, math.nan, "0.5", None])
def test_a_share_is_a_number_from_0_to_1(share: Any) -> None:
    with pytest.raises(aioqueue.InvalidArgumentError, match=r"share: got .*; expected a number"):
        with_latencies(1.0).latency_quantile(share)


def test_a_batcher_has_them() -> None:
    def answer(values: list[int]) -> list[int]:
        return values

    with sync.Batcher(answer) as batcher:
        assert batcher(1) == 1
        assert 0 < batcher.statistics().latency_quantile(0.99) <= 10
