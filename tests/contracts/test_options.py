"""A position fits the options that it was made with, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aioqueue import InvalidArgumentError
from tests.contracts import programs
from tests.contracts.programs import Program, asked
from tests.kit.resuming import How, run


def stages_of(pipeline: Any) -> list[str]:
    return [stage.describe() for stage in pipeline.stages]


@asked("options", of="stage")
def test_a_position_refuses_other_options(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = program.pipeline(How(1), folder)
    _, state = run(pipeline, 1, 1)
    monkeypatch.setattr(programs, "N", programs.N + 1)
    other = program.pipeline(How(1), folder)
    if stages_of(other) == stages_of(pipeline):
        return  # none of its options changes the elements
    try:
        run(other, 1, None, state)
    except InvalidArgumentError:
        return
    raise AssertionError(
        f"{program.kind}: a position fits other options, {stages_of(pipeline)} and"
        f" {stages_of(other)}: its `fingerprint` lacks one"
    )
