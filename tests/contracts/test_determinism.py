"""However many workers there are, and whatever is in flight, the values are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contracts import programs
from tests.contracts.programs import Program, asked
from tests.kit.resuming import How, run, slowly

HOWS = [How(3), How(4, limit=4), How(2, limit=9)]


@asked("determinism")
def test_workers_do_not_change_the_values(program: Program, folder: Path) -> None:
    whole, _ = run(program.pipeline(How(1), folder), 2)
    for how in HOWS:
        assert run(program.pipeline(how, folder), 2)[0] == whole, f"{program.kind} with {how}"


@asked("determinism", of="stage")
def test_a_stage_behind_slow_workers(program: Program, folder: Path) -> None:
    """Rows come late, and at other times in each run: the values are the same."""

    def pipeline(how: How) -> Any:
        return program.pipeline(how, folder, how.prepare(programs.rows(), slowly))

    whole, _ = run(pipeline(How(1)), 1)
    assert run(pipeline(How(4)), 1)[0] == whole


@pytest.mark.slow
@asked("determinism", of="stage")
def test_a_stage_between_two_others(program: Program, folder: Path) -> None:
    def pipeline(how: How) -> Any:
        return program.pipeline(how, folder, programs.rows().shuffle(4)).prefetch(2).shuffle(3)

    whole, _ = run(pipeline(How(1)), 2)
    for how in HOWS:
        assert run(pipeline(how), 2)[0] == whole
