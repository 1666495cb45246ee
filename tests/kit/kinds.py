"""All kinds that the package has: stages, sources, file formats, sinks, executors and queues.

Nothing is listed here: each family has a registry, or is found as the subclasses of its root.
`tests.kit.examples` has a small example of each kind, and `tests/contracts` asks all of them the
same questions.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import aioqueue
from aioqueue import inputs
from aioqueue.pipeline import stages as stage_files
from aioqueue.pipeline.sink import SINKS
from aioqueue.pipeline.stages.base import BaseStage
from aioqueue.readers.reader import FORMATS
from aioqueue.sources.kinds.source import SOURCES
from aioqueue.workers import executors as executor_files
from aioqueue.workers.executor import Executor


class Kind(NamedTuple):
    """One kind of a family."""

    family: str
    """What one of them is, such as ``"stage"``."""
    cls: type[Any]
    name: str
    """What users call it."""
    functions: tuple[str, ...]
    """What makes it: names in `aioqueue.inputs` (of queues: in `aioqueue`), with dots."""
    page: str
    """The page of the docs that describes it."""
    extra: str | None = None
    """The extra that it needs."""

    def __str__(self) -> str:
        return f"{self.family} {self.name!r}"


def import_all(package: Any) -> None:
    """Import all modules of a package, so that their classes are registered."""
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)


def below(root: type[Any]) -> Iterator[type[Any]]:
    """All subclasses of a class that are the package's own."""
    for cls in root.__subclasses__():
        if cls.__module__.partition(".")[0] == "aioqueue":
            yield cls
        yield from below(cls)


def concrete(root: type[Any]) -> list[type[Any]]:
    """Its concrete subclasses, each once."""
    return [cls for cls in dict.fromkeys(below(root)) if not inspect.isabstract(cls)]


def stage_kinds() -> list[Kind]:
    """Those of `BaseStage`."""
    import_all(stage_files)
    found = []
    for cls in concrete(BaseStage):
        name = vars(cls).get("name")
        if name is not None:
            method = (f"Pipeline.{name}",) if hasattr(inputs.Pipeline, name) else ()
            found.append(Kind("stage", cls, name, method, "pipelines.md"))
    return sorted(found, key=str)


def source_kinds() -> list[Kind]:
    """Those of `Source`."""
    kinds: Iterable[Any] = SOURCES.kinds()
    return [
        Kind("source", cls, cls.__qualname__, tuple(cls._functions), cls._page, cls._extra)
        for cls in kinds
    ]


def format_kinds() -> list[Kind]:
    """Those of `FileFormat`."""
    kinds: Iterable[Any] = FORMATS.kinds()
    return [
        Kind("file format", cls, cls.function, (cls.function,), cls.page, cls.extra)
        for cls in kinds
    ]


def sink_kinds() -> list[Kind]:
    """Those of `Sink`."""
    kinds: Iterable[Any] = SINKS.kinds()
    return [
        Kind("sink", cls, cls._function, (cls._function,), cls._page, cls._extra) for cls in kinds
    ]


def queue_kinds() -> list[Kind]:
    """Those of `AsyncQueue`, except for queues elsewhere."""
    importlib.import_module("aioqueue.queues")
    import_all(importlib.import_module("aioqueue.queues"))
    found = dict.fromkeys(below(aioqueue.AsyncQueue))
    return [
        Kind("queue", cls, cls.__name__, (cls.__name__,), "reference/queues.md")
        for cls in found
        # A private subclass elsewhere, such as that of a stream, may have been imported before.
        if not cls.__name__.startswith("_")
        and (cls.__module__ == "aioqueue" or cls.__module__.startswith("aioqueue.queues."))
    ]


def executor_kinds() -> list[Kind]:
    """Those of `Executor`."""
    import_all(executor_files)
    found = []
    for cls in concrete(Executor):
        if not hasattr(cls, "where"):
            continue  # what several executors share
        name = f"{cls.where}, timed" if cls.is_timed else cls.where
        found.append(Kind("executor", cls, name, (), "howto/prepare.md"))
    return found


def all_kinds() -> list[Kind]:
    """Those of all families but queues and executors, which no function makes."""
    return [*stage_kinds(), *source_kinds(), *format_kinds(), *sink_kinds()]


def function_of(kind: Kind, dotted: str) -> Any:
    """A function that makes something of a kind."""
    found: Any = aioqueue if kind.family == "queue" else inputs
    for name in dotted.split("."):
        found = getattr(found, name)
    return found
