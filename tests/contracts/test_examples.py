"""Each kind has an example, so that it is asked all questions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aioqueue.pipeline.stages.base import BaseStage
from aioqueue.sources.base import BaseSource
from aioqueue.sources.kinds.source import BuiltinSource
from tests.contracts import programs
from tests.contracts.programs import Program
from tests.kit import examples
from tests.kit.kinds import (
    Kind,
    concrete,
    executor_kinds,
    format_kinds,
    sink_kinds,
    source_kinds,
    stage_kinds,
)
from tests.kit.resuming import How

FAMILIES: list[tuple[str, list[Kind], Mapping[type[Any], Any]]] = [
    ("stage", stage_kinds(), examples.STAGES),
    ("source", source_kinds(), examples.SOURCES),
    ("file format", format_kinds(), examples.FORMATS),
    ("sink", sink_kinds(), examples.SINKS),
    ("executor", executor_kinds(), examples.EXECUTORS),
]
families = pytest.mark.parametrize(
    ("kinds", "table"), [one[1:] for one in FAMILIES], ids=[one[0] for one in FAMILIES]
)
QUESTIONS = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}


@families
def test_each_kind_has_an_example(kinds: list[Kind], table: Mapping[type[Any], Any]) -> None:
    assert kinds
    for kind in kinds:
        assert kind.cls in table, f"{kind} has no example in tests/kit/examples.py: give it one"


@families
def test_each_example_is_of_a_kind(kinds: list[Kind], table: Mapping[type[Any], Any]) -> None:
    classes = {kind.cls for kind in kinds}
    for cls in table:
        assert cls in classes, f"{cls.__qualname__} has an example, and no registry has it"


@families
def test_exceptions_have_reasons(kinds: list[Kind], table: Mapping[type[Any], Any]) -> None:
    for cls, example in table.items():
        for question, reason in example.exceptions.items():
            assert question in {*QUESTIONS, "*"}, f"{cls.__qualname__}: no question {question!r}"
            assert reason


@pytest.mark.parametrize("program", programs.programs(), ids=str)
def test_an_example_has_its_kind(program: Program, folder: Path) -> None:
    if "*" in program.exceptions:
        pytest.skip(program.exceptions["*"])
    pipeline = program.pipeline(How(2), folder)
    found: list[type[Any]]
    if program.kind.family == "stage" and program.kind.name != "read":
        found = [type(stage) for stage in pipeline.stages]
    elif program.kind.family == "source":
        found = [type(pipeline.source)]
    else:
        return
    assert program.kind.cls in found, f"the example of {program.kind} has no {program.kind.name}"


def test_no_stage_is_unregistered() -> None:
    for cls in concrete(BaseStage):
        assert any("name" in vars(base) for base in cls.__mro__), (
            f"{cls.__qualname__} is a stage without a name: no position and no rank finds it"
        )


def test_no_source_is_unregistered() -> None:
    known = {kind.cls for kind in source_kinds()}
    # Inside a pipeline: what it begins with after a cache, in a stage, and with workers of others.
    inner = {"CachedSource", "StageInput", "WholeRun", "WholeRunInput", "_SizedRun"}
    for cls in concrete(BaseSource):
        if cls not in known and cls is not BuiltinSource and cls.__qualname__ not in inner:
            raise AssertionError(f"{cls.__qualname__} is a source that no registry has")
