"""`prefetch`: a thread makes the next rows ahead. `Read` does so for a source alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from aioqueue.base.arguments import (
    checked_count,
)
from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.stages.base import BaseStage, BuildContext
from aioqueue.pipeline.stages.prepare import _LEAST_AHEAD


@dataclass(frozen=True)
class Read(BaseStage):
    """Reads an async iterable in a task of its own. `Builder` adds this stage, and not the user."""

    name: ClassVar[str] = "read"
    source: str

    def details(self) -> str:
        return self.source

    def node(self, upstream: Node, building: BuildContext) -> Node:
        options = {"workers": 1, "ordered": True, "max_in_flight": 1}
        return building.workers(upstream, _itself_async, buffer_size=_LEAST_AHEAD, options=options)


@dataclass(frozen=True)
class Prefetch(BaseStage):
    """Makes the next rows ahead, in a thread of its own."""

    name: ClassVar[str] = "prefetch"
    buffer_size: int

    def __post_init__(self) -> None:
        checked_count(self.buffer_size, "buffer_size", least=1)

    def details(self) -> str:
        return str(self.buffer_size)

    def passes_on(self) -> bool:
        return True

    def node(self, upstream: Node, building: BuildContext) -> Node:
        options = {"workers": 1, "ordered": True, "max_in_flight": 1}
        return building.workers(
            upstream, _itself, buffer_size=int(self.buffer_size), options=options
        )


def _itself(row: Any) -> Any:
    return row


async def _itself_async(row: Any) -> Any:
    return row
