"""`carry`: a worker reads the source of a stream that has no function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.nodes.state_fields import WORKERS, Fields, worker_fields
from aioqueue.pipeline.stages.base import BaseStage, BuildContext


@dataclass(frozen=True)
class Carry(BaseStage):
    """Reads the source on a worker, for a stream without a function."""

    name: ClassVar[str] = "carry"
    state_fields: ClassVar[Fields] = WORKERS
    buffer_size: int

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        return "which belongs to a stream, and streams have no ranks"

    @classmethod
    def blank_entry(cls, arguments: Mapping[str, Any], *, is_padded: bool) -> dict[str, Any]:
        return worker_fields(super().blank_entry(arguments, is_padded=is_padded), arguments)

    def details(self) -> str:
        return ""

    def node(self, upstream: Node, building: BuildContext) -> Node:
        options = {"workers": 1, "ordered": True}
        return building.workers(upstream, _itself, buffer_size=self.buffer_size, options=options)


def _itself(item: Any) -> Any:
    return item
