"""How many items are taken together, at times that the test makes up."""

from __future__ import annotations

import pytest

from aioqueue.workers import flow_control as module
from aioqueue.workers.flow_control import ReadPace

QUICK = 1e-6
"""Seconds for an item."""


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in seconds, as its only member."""
    clock = [100.0]
    monkeypatch.setattr(module, "perf_counter", lambda: clock[0])
    return clock


def taken(pace: ReadPace, now: list[float], seconds: float, workers: int = 1) -> int:
    """How many are taken, when each of those before took so long."""
    now[0] += seconds
    return pace.next(workers)


def grown(now: list[float], seconds: float, workers: int = 1) -> tuple[ReadPace, list[int]]:
    """A new pace at a constant speed, and how many items it reads each time."""
    pace = ReadPace()
    sizes = [taken(pace, now, 0.0, workers)]
    for _ in range(9):
        sizes.append(taken(pace, now, sizes[-1] * seconds, workers))
    return pace, sizes


def test_one_at_first_and_then_twice_as_many_each_time(now: list[float]) -> None:
    pace, sizes = grown(now, QUICK)
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 64, 64, 64]
    assert pace.is_quick


def test_no_more_than_last_half_a_millisecond(now: list[float]) -> None:
    assert grown(now, 2.0**-16)[1][-1] == 32  # of 15.3 µs each


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_one_by_one_where_a_worker_needs_more_than_50_microseconds(
    now: list[float], workers: int
) -> None:
    pace, sizes = grown(now, 51e-6 / workers, workers)
    assert sizes == [1] * 10
    assert not pace.is_quick
    assert grown(now, 49e-6 / workers, workers)[1][-1] > 1


def test_a_slow_item_ends_it_at_once(now: list[float]) -> None:
    pace, sizes = grown(now, QUICK)
    assert taken(pace, now, sizes[-1] * QUICK + 0.01) == 1
    assert not pace.is_quick
    assert taken(pace, now, QUICK) == 2


def test_a_clock_that_stands_still(now: list[float]) -> None:
    assert grown(now, 0.0)[1][-1] == 64
