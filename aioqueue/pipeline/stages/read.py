"""`read`: a task reads an async source. The builder adds this stage, and not the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.nodes.state_fields import WORKERS, Fields
from aioqueue.pipeline.stages.base import BaseStage, BuildContext

_MOST_AHEAD: Final = 64
"""The most items that may wait. What is read ahead of an iterable may be lost, if the loop is
left."""


@dataclass(frozen=True)
class Read(BaseStage):
    """Reads an async iterable in a task of its own."""

    name: ClassVar[str] = "read"
    state_fields: ClassVar[Fields] = WORKERS
    source: str

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        return None  # that its source is async already decides

    def details(self) -> str:
        return self.source

    def keeps_rows_apart(self) -> bool:
        return True

    def node(self, upstream: Node, building: BuildContext) -> Node:
        options = {"workers": 1, "ordered": True, "max_in_flight": 1}
        buffer_size = min(_MOST_AHEAD, building.buffer_size())
        return building.workers(upstream, _itself, buffer_size=buffer_size, options=options)


async def _itself(row: Any) -> Any:
    return row
