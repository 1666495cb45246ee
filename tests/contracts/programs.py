"""One pipeline for each kind that a pipeline can be made of: what the questions are asked about."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from aioqueue import inputs
from aioqueue.inputs import Pipeline, numbers
from tests.kit import examples
from tests.kit.functions import noise, noise_in_a_task
from tests.kit.kinds import (
    Kind,
    executor_kinds,
    format_kinds,
    function_of,
    sink_kinds,
    source_kinds,
    stage_kinds,
)
from tests.kit.resuming import How

N = 3
"""The number that changes the options of an example."""


def rows() -> Any:
    """What a stage is put behind."""
    return numbers(10, shuffle=True, seed=3)


def others() -> Any:
    """What a stage combines it with."""
    return numbers(5, seed=2)


class Program(NamedTuple):
    """A pipeline with one kind in it.

    Args:
        kind: what it is about.
        variant: the name of the example.
        make: makes the pipeline: of how it is run, of a folder, and of what is before the kind, if
            it is a stage.
        exceptions: the questions that it is not asked, with the reasons.
        parts: the examples in one of its values.
        is_slow: whether its workers take long to start.
        is_random: whether random pipelines have it.
    """

    kind: Kind
    variant: str
    make: Callable[[How, Path, Any], Any]
    exceptions: examples.Exceptions
    parts: Callable[[Any], Iterable[Any]] = examples.numbers_in
    is_slow: bool = False
    is_random: bool = False

    def pipeline(self, how: How, folder: Path, before: Any = None) -> Pipeline[Any]:
        """The pipeline.

        Args:
            how: what may differ between two runs of one pipeline.
            folder: where its files are, or will be.
            before: the pipeline before a stage; ``None`` for `rows`.
        """
        made = self.make(how, folder, before)
        return made if isinstance(made, Pipeline) else Pipeline(made)

    def __str__(self) -> str:
        return f"{self.kind.family}-{self.variant}"


def _stage(add: Any, combines: bool, how: How, folder: Path, before: Any) -> Any:
    before = rows() if before is None else before
    return add(before, others(), N) if combines else add(before, how, N)


def _source(make: examples.Make, how: How, folder: Path, before: Any) -> Any:
    return make(folder)


def _executor(cls: Any, how: How, folder: Path, before: Any) -> Any:
    before = rows() if before is None else before
    return examples.executed(cls, how, (noise, noise_in_a_task), before)


def read(kind: Kind, example: examples.FormatExample, folder: Path) -> Any:
    """The reader of an example of a format."""
    function = function_of(kind, kind.functions[0])
    paths = inputs.items(example.paths(folder), shuffle=True, seed=4)
    return function(paths, **example.options)


def programs(*, of: str = "") -> list[Program]:
    """The programs of all kinds that have an example, or of those of one family.

    The first variant of an example comes first. A test fails for a kind without an example.
    """
    found = []
    for kind in stage_kinds():
        stage = examples.STAGES.get(kind.cls)
        if stage is None:
            continue
        for name, add in stage.variants.items():
            make = partial(_stage, add, kind.cls.combines)
            found.append(
                Program(kind, name, make, stage.exceptions, stage.rows, is_random=stage.is_random)
            )
    for kind in source_kinds():
        source = examples.SOURCES.get(kind.cls)
        if source is None:
            continue
        for name, makes in source.variants.items():
            make = partial(_source, makes)
            found.append(Program(kind, name, make, source.exceptions, is_random=source.is_random))
    for kind in format_kinds():
        format_ = examples.FORMATS.get(kind.cls)
        if format_:
            make = partial(_source, partial(read, kind, format_))
            found.append(Program(kind, kind.name, make, format_.exceptions))
            for name, makes in format_.variants.items():
                found.append(Program(kind, name, partial(_source, makes), format_.exceptions))
    for kind in executor_kinds():
        executor = examples.EXECUTORS.get(kind.cls)
        if executor:
            make = partial(_executor, kind.cls)
            found.append(
                Program(kind, kind.name, make, executor.exceptions, is_slow=executor.is_slow)
            )
    return [one for one in found if one.kind.family.startswith(of)]


def is_asked(exceptions: examples.Exceptions, question: str) -> bool:
    """Whether an example is asked a question."""
    return not exceptions.keys() & {question, "*"}


def programs_asked(question: str, *, of: str = "") -> list[Program]:
    """The programs that are asked a question."""
    return [one for one in programs(of=of) if is_asked(one.exceptions, question)]


def asked_formats(question: str) -> list[Kind]:
    """The file formats that are asked a question."""
    return [
        kind
        for kind in format_kinds()
        if kind.cls in examples.FORMATS
        and is_asked(examples.FORMATS[kind.cls].exceptions, question)
    ]


def damaged_reader(kind: Kind, own: Path, **options: Any) -> Any:
    """A reader of two files; the first one is damaged at its end."""
    example = examples.FORMATS[kind.cls]
    function = function_of(kind, kind.functions[0])
    first, second = (example.write(own, name) for name in ("a", "b"))
    is_compressed = "compression" in inspect.signature(function).parameters
    first = examples.damage(first, is_compressed=is_compressed)
    return function(inputs.items([str(first), str(second)]), **example.options, **options)


def sinks_asked(question: str) -> list[tuple[Kind, examples.SinkExample, Mapping[str, Any]]]:
    """The sinks that are asked a question, with their examples and options."""
    found = [(kind, examples.SINKS.get(kind.cls)) for kind in sink_kinds()]
    return [
        (kind, example, {**example.options, **options})
        for kind, example in found
        if example is not None and is_asked(example.exceptions, question)
        for options in ({}, *example.variants.values())
    ]


def sink_of(kind: Kind, path: Path, options: Mapping[str, Any]) -> Callable[..., Any]:
    """What makes a sink that writes to a path."""
    return partial(function_of(kind, kind.functions[0]), path, **options)


def asked(question: str, *, of: str = "", first: bool = False) -> pytest.MarkDecorator:
    """Parametrize a test with the programs that are asked a question.

    The first variant of each kind is in the quick tests; the others are slow.

    Args:
        question: the name of the test's file.
        of: the family, or the beginning of its name; empty for all.
        first: only the first variant of each kind.
    """
    seen: set[Any] = set()
    cases = []
    for program in programs_asked(question, of=of):
        is_further = program.kind.cls in seen
        if is_further and first:
            continue
        marks = [pytest.mark.slow] if is_further or program.is_slow else []
        seen.add(program.kind.cls)
        cases.append(pytest.param(program, id=str(program), marks=marks))
    return pytest.mark.parametrize("program", cases)
