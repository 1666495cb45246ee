"""The quick form of `tests.proof.resume`: a few kills in a few shapes."""

from __future__ import annotations

import pytest

from tests.proof.resume import prove


@pytest.mark.parametrize(
    "name",
    [
        "shuffle after",
        "skips, listed",
        "lines, shuffled",
        "three in a row",
        "unordered:generators, shuffled",
    ],
)
def test_killed_runs_end_as_undisturbed_ones(name: str) -> None:
    outcome = prove(name, kills=3)
    assert outcome.kills >= 3
    assert not outcome.faults, str(outcome)
