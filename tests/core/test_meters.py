"""Durations in buckets: where each falls, and what their sums say."""

from __future__ import annotations

from itertools import pairwise

import pytest

from aioqueue.core.meters import BOUNDS, Durations


def buckets(*seconds: float) -> list[int]:
    durations = Durations()
    for one in seconds:
        durations.add(one)
    return [bucket for bucket, count in enumerate(durations.counted().counts) if count]


def test_bounds_double_from_a_microsecond() -> None:
    assert BOUNDS[0] == 1e-6
    assert len(BOUNDS) == 25
    assert all(after == 2 * before for before, after in pairwise(BOUNDS))


@pytest.mark.parametrize("bucket", range(25))
def test_a_bound_belongs_to_its_bucket(bucket: int) -> None:
    assert buckets(BOUNDS[bucket]) == [bucket]
    assert buckets(BOUNDS[bucket] * 1.0001) == [bucket + 1]


def test_nothing_at_all_and_what_is_too_long_have_buckets_too() -> None:
    assert buckets(0.0) == [0]
    assert buckets(1e9) == [25]


def test_sum_count_and_longest() -> None:
    durations = Durations()
    durations.add(0.5)
    durations.add(0.25, weight=3)
    counts, seconds, longest = durations.counted()
    assert sum(counts) == 4
    assert seconds == 1.25
    assert longest == 0.5
