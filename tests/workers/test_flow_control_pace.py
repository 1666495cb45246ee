"""How many items are read together, by how long the function takes."""

from __future__ import annotations

from aioqueue.workers.flow_control import ReadPace

QUICK = 1e-6
"""Seconds for an item."""


def grown(seconds: float) -> tuple[ReadPace, list[int]]:
    """A new pace for a function of one speed, and how many items it reads each time."""
    pace = ReadPace()
    return pace, [pace.next(float("inf")), *(pace.next(seconds) for _ in range(9))]


def test_one_at_first_and_then_twice_as_many_each_time() -> None:
    pace, sizes = grown(QUICK)
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 64, 64, 64]
    assert pace.is_quick


def test_no_more_than_last_half_a_millisecond() -> None:
    assert grown(2.0**-16)[1][-1] == 32  # of 15.3 µs each


def test_one_by_one_where_the_function_needs_more_than_50_microseconds() -> None:
    pace, sizes = grown(51e-6)
    assert sizes == [1] * 10
    assert not pace.is_quick
    assert grown(49e-6)[1][-1] > 1


def test_a_slow_item_ends_it_at_once() -> None:
    pace, _ = grown(QUICK)
    assert pace.next(0.01) == 1
    assert not pace.is_quick
    assert pace.next(QUICK) == 2


def test_a_clock_that_stands_still() -> None:
    assert grown(0.0)[1][-1] == 64
