"""A stage does to each leaf of a nested element what it does to a single number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.contracts import programs
from tests.contracts.programs import Program, asked
from tests.kit.exact import plain_form
from tests.kit.examples import collapsed, same, tree_of
from tests.kit.resuming import How, run


@asked("trees", of="stage")
def test_nested_elements_are_like_single_ones(program: Program, folder: Path) -> None:
    def values(function: object) -> list[object]:
        before = programs.rows().prepare(function, workers=1)
        pipeline = program.pipeline(How(2), folder, before)
        return [plain_form(collapsed(value.value)) for _, value in run(pipeline, 2)[0]]

    single, nested = values(same), values(tree_of)
    assert single == nested, f"{program.kind} treats the leaves of a nested element differently"


@asked("trees", of="stage")
def test_a_position_among_nested_elements(program: Program, folder: Path) -> None:
    def pipeline() -> Any:
        before = programs.rows().prepare(tree_of, workers=1)
        return program.pipeline(How(2), folder, before)

    whole, _ = run(pipeline(), 1)
    for at in range(1, len(whole) + 1, 2):
        head, state = run(pipeline(), 1, at)
        rest, _ = run(pipeline(), 1, None, state)
        assert head + rest == whole
