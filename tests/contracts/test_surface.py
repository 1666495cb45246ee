"""What users see of a kind: its names, its docs, its docstrings, and its answers to other names."""

from __future__ import annotations

import inspect
import re
import tomllib
from typing import get_args

import pytest

from aioqueue import inputs
from aioqueue.pipeline.stages.base import BaseStage
from aioqueue.workers.executor import FILES
from aioqueue.workers.options import Where
from tests.kit import examples
from tests.kit.children import ROOT
from tests.kit.docstrings import entries, sections
from tests.kit.kinds import Kind, all_kinds, executor_kinds, function_of, queue_kinds, stage_kinds

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]

FUNCTIONS = [
    pytest.param(kind, function, id=f"{kind.family}-{function}")
    for kind in all_kinds()
    for function in kind.functions
]
functions = pytest.mark.parametrize(("kind", "function"), FUNCTIONS)


def first(dotted: str) -> str:
    return dotted.partition(".")[0]


@pytest.mark.parametrize("kind", stage_kinds(), ids=lambda one: one.name)
def test_a_stage_has_a_method_of_its_name(kind: Kind) -> None:
    example = examples.STAGES.get(kind.cls)
    if example is None or example.is_method:
        for cls in (inputs.Pipeline, inputs.Source):
            assert kind.name in dir(cls), (
                f"{kind} has no method {kind.name} in `Stages` (aioqueue/pipeline/pipeline.py), by"
                " which users add it"
            )


@pytest.mark.parametrize("kind", stage_kinds(), ids=lambda one: one.name)
def test_a_stage_has_a_name_in_its_class_and_one_file(kind: Kind) -> None:
    module = kind.cls.__module__.rpartition(".")[2]
    assert module == kind.name, f"{kind} is in {module}.py, where `stage_class` does not find it"


@functions
def test_a_function_is_listed(kind: Kind, function: str) -> None:
    name = first(function)
    assert hasattr(inputs, name), f"{kind}: there is no aioqueue.inputs.{name}"
    assert name in dir(inputs), f"{kind}: dir(aioqueue.inputs) has no {name}"
    assert name in inputs.__all__, f"{kind}: {name} is missing in aioqueue.inputs.__all__"
    owner = function.rpartition(".")[0]
    listed = dir(getattr(inputs, owner)) if owner else dir(inputs)
    assert function.rpartition(".")[2] in listed, f"{kind}: dir({owner or 'inputs'}) lacks it"


@functions
def test_a_page_of_the_docs_describes_it(kind: Kind, function: str) -> None:
    text = (ROOT / "docs" / kind.page).read_text(encoding="utf-8")
    name = function.rpartition(".")[2]
    in_code = re.search(rf"\b{name}\(|`(?:[\w.]*\.)?{name}`", text)
    assert in_code, f"{kind}: docs/{kind.page} has no `{name}`"


@functions
def test_the_reference_has_it(kind: Kind, function: str) -> None:
    text = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "docs/reference").glob("*.md")
    )
    name = first(function)
    assert name in text, f"{kind}: no page of docs/reference has {name}"


@functions
def test_its_docstring_is_complete(kind: Kind, function: str) -> None:
    found = function_of(kind, function)
    assert found.__doc__, f"{kind}: {function} has no docstring"
    parts = sections(found.__doc__)
    parameters = inspect.signature(found).parameters.values()
    names = [
        one.name for one in parameters if one.name != "self" and one.kind is not one.VAR_KEYWORD
    ]
    explained = entries(parts.get("Args", ""))
    missing = [name for name in names if name not in explained]
    assert not missing, f"{kind}: Args of {function} does not explain {', '.join(missing)}"
    assert parts.get("Raises") or not names, f"{kind}: {function} does not say what it raises"
    if inspect.iscoroutinefunction(inspect.unwrap(found)):
        assert parts.get("Cancellation"), f"{kind}: {function} has no Cancellation"


@functions
def test_an_unknown_keyword_gets_an_answer(kind: Kind, function: str) -> None:
    """The names that other libraries have lead to those here; see `base/hint_tables.py`."""
    found = function_of(kind, function)
    parameters = [one for one in inspect.signature(found).parameters.values() if one.name != "self"]
    if not parameters or parameters[-1].kind is inspect.Parameter.VAR_KEYWORD:
        return  # it takes any keyword, or none
    assert hasattr(found, "__wrapped__"), (
        f"{kind}: {function} is missing in the hint_keywords or hint_methods of its module"
    )
    with pytest.raises(TypeError, match="nothing_like_it") as error:
        found(nothing_like_it=1)
    assert ";" in str(error.value), f"{kind}: {function} refuses a keyword without advice"


@pytest.mark.parametrize("kind", all_kinds(), ids=str)
def test_an_extra_exists(kind: Kind) -> None:
    assert kind.extra is None or kind.extra in EXTRAS, f"{kind}: no extra {kind.extra!r}"


@pytest.mark.parametrize("kind", executor_kinds(), ids=lambda one: one.name)
def test_an_executor_can_be_chosen(kind: Kind) -> None:
    where, module = kind.cls.where, kind.cls.__module__.rpartition(".")[2]
    assert where in get_args(Where), f"{kind} is missing in `Where` (aioqueue/workers/options.py)"
    assert module in FILES[where], f"{kind}: FILES in workers/executor.py has no {module!r}"
    text = (ROOT / "docs" / kind.page).read_text(encoding="utf-8")
    assert f'"{where}"' in text, f"{kind}: docs/{kind.page} does not have it"


@pytest.mark.parametrize("kind", queue_kinds(), ids=lambda one: one.name)
def test_a_queue_is_in_the_reference(kind: Kind) -> None:
    text = (ROOT / "docs" / kind.page).read_text(encoding="utf-8")
    assert kind.name in text, f"{kind}: docs/{kind.page} does not have it"


@pytest.mark.parametrize("kind", stage_kinds(), ids=lambda one: one.name)
def test_a_stage_describes_itself(kind: Kind) -> None:
    """`print(pipeline)` and diagrams show what a stage says, with its most important options."""
    stage: type[BaseStage] = kind.cls
    assert stage.__doc__
    assert "dataclass" not in stage.__doc__
    assert stage.describe is BaseStage.describe, f"{kind}: override details, not describe"


def test_the_functions_of_the_kinds_are_all_there_are() -> None:
    """Each public function that reads or writes files is that of a kind."""
    known = {name for kind in all_kinds() for name in kind.functions}
    public = {name for name in inputs.__all__ if name.startswith(("read_", "to_"))}
    missing = public - known - {"read_journal"}  # which reads what a run has noted, no items
    assert not missing, f"no kind declares {', '.join(sorted(missing))}"


def test_what_a_sink_writes_can_be_read() -> None:
    reading = {kind.name for kind in all_kinds() if kind.family == "file format"}
    for kind in all_kinds():
        if kind.family == "sink":
            assert kind.cls._read_by in reading, f"{kind}: no format reads it: {kind.cls._read_by}"
