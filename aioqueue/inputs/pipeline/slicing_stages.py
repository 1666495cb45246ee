"""The stages that go by the place of a row in its epoch; see `slicing_nodes` for what they do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from aioqueue import InvalidArgumentError
from aioqueue.arguments import checked_count, checked_flag, function_name
from aioqueue.inputs.core.collation import Collator
from aioqueue.inputs.core.example_components import checked_objects
from aioqueue.inputs.pipeline.description import BaseStage, BuildContext
from aioqueue.inputs.pipeline.node import Node
from aioqueue.inputs.pipeline.slicing_nodes import EnumerateNode, SkipNode, TakeNode, WindowNode
from aioqueue.inputs.pipeline.stages import check_collate

__all__ = ("Enumerate", "Skip", "Take", "Window")


@dataclass(frozen=True)
class _Counted(BaseStage):
    """The base of stages that treat the first rows of each epoch in another way than the rest."""

    count: int

    def __post_init__(self) -> None:
        checked_count(self.count, "count")

    def details(self) -> str:
        return str(self.count)

    def passes_on(self) -> bool:
        return True

    def fingerprint(self) -> dict[str, Any]:
        return {"count": int(self.count)}

    def is_elastic(self) -> bool:
        return False  # it counts the rows of one rank, so its end depends on the number of ranks


@dataclass(frozen=True)
class Take(_Counted):
    """Keeps the first rows of each epoch."""

    name: ClassVar[str] = "take"

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return TakeNode(upstream, int(self.count))

    def length(self, rows: int | None) -> int | None:
        return None if rows is None else min(rows, int(self.count))


@dataclass(frozen=True)
class Skip(_Counted):
    """Leaves out the first rows of each epoch."""

    name: ClassVar[str] = "skip"

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return SkipNode(upstream, int(self.count))

    def length(self, rows: int | None) -> int | None:
        return None if rows is None else max(0, rows - int(self.count))


@dataclass(frozen=True)
class Enumerate(BaseStage):
    """Numbers the rows of each epoch."""

    name: ClassVar[str] = "enumerate"
    start: int

    def __post_init__(self) -> None:
        checked_count(self.start, "start")

    def details(self) -> str:
        return f"from {self.start}"

    def passes_on(self) -> bool:
        return True

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return EnumerateNode(upstream, int(self.start))

    def fingerprint(self) -> dict[str, Any]:
        return {"start": int(self.start)}

    def is_elastic(self) -> bool:
        return False  # it counts what one rank is given


@dataclass(frozen=True)
class Window(BaseStage):
    """Makes windows of rows that follow each other, which may overlap."""

    name: ClassVar[str] = "window"
    size: int
    stride: int
    drop_remainder: bool
    collate: Callable[[list[Any]], Any] | None
    objects: Any = False

    def __post_init__(self) -> None:
        checked_count(self.size, "size", least=1)
        checked_count(self.stride, "stride", least=1)
        checked_flag(self.drop_remainder, "drop_remainder")
        check_collate(self.collate)
        if checked_objects(self.objects) and self.collate is not None:
            raise InvalidArgumentError(
                f"objects: got {self.objects!r} beside collate={function_name(self.collate)};"
                " expected only one of them"
            )

    def function_name(self) -> str:
        return self.name if self.collate is None else function_name(self.collate)

    def details(self) -> str:
        return f"{self.size} every {self.stride}"

    def copies(self) -> bool:
        return self.collate is None

    def makes_batches(self) -> bool:
        return True

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return WindowNode(
            upstream,
            int(self.size),
            int(self.stride),
            self.collate or Collator(objects=checked_objects(self.objects)),
            drop_remainder=self.drop_remainder,
        )

    def fingerprint(self) -> dict[str, Any]:
        rest = {} if self.drop_remainder else {"drop_remainder": False}
        return {"size": int(self.size), "stride": int(self.stride), **rest}

    def length(self, rows: int | None) -> int | None:
        if rows is None:
            return None
        first = self.size if self.drop_remainder else 1
        return max(0, (rows - first) // self.stride + 1)

    def needs(self) -> int:
        return int(self.size)

    def is_elastic(self) -> bool:
        return False  # a row is in several windows
