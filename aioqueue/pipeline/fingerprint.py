"""What decides the elements of a pipeline, beside what its positions name.

A run that writes on compares the *options*: what the user has passed to the source and to the
stages, and what happens at errors. A cache also compares the *code*: the functions, with all that
they reach, the contents of the source, and when its files were changed. A position has neither, so
that code and options that only concern later elements may change.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Final, NamedTuple

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import function_name
from aioqueue.fingerprints.programs import is_program
from aioqueue.fingerprints.values import Leaves, Names, UnknownValueError, Walk, described_option
from aioqueue.items.positions import differences
from aioqueue.pipeline.stages.base import BasePipeline, BaseStage
from aioqueue.pipeline.stages.batch import Batch
from aioqueue.pipeline.stages.prefetch import Prefetch
from aioqueue.pipeline.stages.prepare import Prepare
from aioqueue.pipeline.stages.read import Read
from aioqueue.pipeline.stages.shard import Shard
from aioqueue.pipeline.stages.to_device import ToDevice
from aioqueue.sources.base import BaseSource
from aioqueue.workers.options import Retry

_NOT_COMPARED: Final = (Prefetch, Read, Shard, ToDevice)
"""Stages that change no element; what a shard is, the position and the names of files say."""

_OF_ROWS: Final = ("drop_none", "seed", "ordered")
"""The options of a `prepare` that decide which examples there are."""

_OWN: Final = frozenset({"_name", "_seed", "_seed_was_drawn", "_told_by", "_listing"})
"""The attributes of each source, which its position names, or which say nothing."""

_MOST_WALKS: Final = 32


class _NamedPart(NamedTuple):
    """A source or a stage of a pipeline, with its name in messages."""

    name: str
    thing: BaseSource[Any] | BaseStage
    key: str | None
    """What stands for its code; ``None`` if it is compared."""


def _places(
    pipeline: BasePipeline[Any], key: str | None = None, prefix: str = ""
) -> Iterator[_NamedPart]:
    """Yield all sources and stages of a pipeline, including those of pipelines inside it."""
    yield from _sources(pipeline.source, key, f"{prefix}source")
    for number, stage in enumerate(pipeline.stages):
        name = f"{prefix}{number} {stage.name}"
        for branch, other in enumerate(stage.branches()):
            yield from _places(other, key, f"{name}[{branch}] ")
        yield _NamedPart(name, stage, key)


def _called(stage: BaseStage) -> str:
    function = stage.worker_function()
    return "" if function is None else f" {function_name(function)}"


def _sources(source: BaseSource[Any], key: str | None, name: str) -> Iterator[_NamedPart]:
    yield _NamedPart(name, source, key)
    found = source._determined()
    for number, inner in enumerate(found.inner):
        yield from _sources(inner, key, f"{name}[{number}]")
    if found.pipeline is not None:
        yield from _places(found.pipeline, found.key if key is None else key, f"{name} cache ")


def options_of(pipeline: BasePipeline[Any], *, is_cache: bool) -> dict[str, Any]:
    """The options of the sources and stages of a pipeline, in plain JSON types.

    Args:
        pipeline: the pipeline.
        is_cache: whether the elements themselves are kept, so that the size of batches counts.
    """
    found = {}
    for name, thing, _ in _places(pipeline):
        if isinstance(thing, BaseSource):
            options = dict(thing._determined().options)
        elif isinstance(thing, _NOT_COMPARED):
            continue
        else:
            options = _options_of(thing, is_cache=is_cache)
        found[name] = {key: described_option(value) for key, value in options.items()}
    return {name: options for name, options in found.items() if options}


def _options_of(stage: BaseStage, *, is_cache: bool) -> dict[str, Any]:
    given = _given(stage)
    if isinstance(stage, Batch) and not is_cache:
        del given["size"]  # a position has it where it counts
    return {name: value for name, value in given.items() if not callable(value)}


def _given(stage: BaseStage) -> dict[str, Any]:
    """Return the arguments of a stage that determine its output."""
    given = {one.name: getattr(stage, one.name) for one in fields(stage)}  # type: ignore[arg-type]
    given.pop("others", None)  # they are pipelines
    if isinstance(stage, Prepare):
        options = given.pop("options")
        del given["buffer_size"]
        given |= {name: options[name] for name in _OF_ROWS if name in options}
        policy = options.get("on_error", "stop")
        given["on_error"] = policy.then if isinstance(policy, Retry) else policy
    return given


def code_of(pipeline: BasePipeline[Any]) -> dict[str, Any]:
    """The code and the values that make the elements of a pipeline, in plain JSON types.

    Raises:
        InvalidArgumentError: something there cannot be compared.
        ModuleNotFoundError: cloudpickle is not installed.
        OSError: a module of the program cannot be read.
    """
    found: dict[str, Any] = {}
    # Another version of Python compiles to other bytecode.
    packages = {"python": f"{sys.version_info[0]}.{sys.version_info[1]}"}
    start = Names()
    leaves: Leaves = {}
    stages: list[tuple[str, BaseStage, dict[str, Any]]] = []
    for name, thing, key in _places(pipeline):
        if key is not None:
            found[f"{name} key"] = key
        elif isinstance(thing, BaseSource):
            # What the items are may be read by anybody, so all of it counts.
            walk = Walk(has_code=True, leaves=leaves)
            parts = _walked(walk, name, _values_of(thing))
            if walk.reads_texts:
                walk = Walk(has_code=True, read=walk.found, leaves=leaves)
                parts = _walked(walk, name, _values_of(thing))
            start.add_all(walk.found)
            packages |= walk.packages
            if parts:
                found[name] = parts
        elif not isinstance(thing, _NOT_COMPARED):
            name = f"{name}{_called(thing)}"
            values = {one: value for one, value in _given(thing).items() if callable(value)}
            if values:
                stages.append((name, thing, values))
    packages |= _made(stages, start, leaves, found)
    return {"packages": packages, **found}


def times_of(pipeline: BasePipeline[Any]) -> dict[str, str]:
    """When the files of all sources were changed, as digests.

    Raises:
        OSError: a file cannot be looked at.
    """
    found = {}
    for name, thing, key in _places(pipeline):
        times = thing._determined().times if isinstance(thing, BaseSource) else None
        if times is not None and key is None:
            found[name] = times()
    return found


def _made(
    stages: list[tuple[str, BaseStage, dict[str, Any]]],
    start: Names,
    leaves: Leaves,
    found: dict[str, Any],
) -> dict[str, str]:
    """Find the parts of stages. Which attributes count depends on the code, and which code is
    reached depends on the attributes, so they are walked through until nothing is added. The last
    two walks must find the same, or something differs each time it is taken apart."""
    names, before = start, None
    for _ in range(_MOST_WALKS):
        reached = start.copy()
        parts: dict[str, Any] = {}
        packages: dict[str, str] = {}
        for name, _, values in stages:
            walk = Walk(has_code=True, names=names, leaves=leaves)
            parts[name] = _walked(walk, name, values)
            reached.add_all(walk.found)
            packages |= walk.packages
        if reached != names:
            names, before = reached, None
        elif before is None:
            before = parts
        else:
            _check_same(before, parts)
            break
    found.update(parts)
    return packages


def _check_same(before: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    for where, _, _ in differences(before, parts, ""):
        raise InvalidArgumentError(
            f"key: got none, and {where} is another one each time it is looked at; expected a"
            " string that stands for the code and its values, such as key='1'"
        )


def _values_of(source: BaseSource[Any]) -> dict[str, Any]:
    """Return the objects that determine which items a source has."""
    values = dict(source._determined().values)
    cls = type(source)
    if is_program(cls.__module__):
        values["class"] = cls
        values["attributes"] = {
            name: value for name, value in vars(source).items() if name not in _OWN
        }
    return values


def _walked(walk: Walk, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    try:
        for one, value in values.items():
            walk.take(one, value)
    except UnknownValueError as error:
        cure = "" if error.cure is None else f"{error.cure}; or "
        raise InvalidArgumentError(
            f"key: got none, and {name} uses {error.where}, {error.what}, which cannot be compared"
            f" with that of another run; expected {cure}a string that stands for the code and its"
            " values, such as key='1'"
        ) from error.__cause__
    except RecursionError as error:
        raise InvalidArgumentError(
            f"key: got none, and {name} holds objects nested too deeply to be compared; expected a"
            " string that stands for the code and its values, such as key='1'"
        ) from error
    return walk.parts
