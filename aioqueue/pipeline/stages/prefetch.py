"""`prefetch`: a thread makes the next rows ahead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from aioqueue.base.arguments import checked_count
from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.nodes.state_fields import WORKERS, Fields, worker_fields
from aioqueue.pipeline.stages.base import BaseStage, BuildContext


@dataclass(frozen=True)
class Prefetch(BaseStage):
    """Makes the next rows ahead, in a thread of its own."""

    name: ClassVar[str] = "prefetch"
    state_fields: ClassVar[Fields] = WORKERS
    buffer_size: int

    def __post_init__(self) -> None:
        checked_count(self.buffer_size, "buffer_size", least=1)

    def details(self) -> str:
        return str(self.buffer_size)

    def is_passthrough(self) -> bool:
        return True

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        return None

    @classmethod
    def blank_entry(cls, arguments: Mapping[str, Any], *, is_padded: bool) -> dict[str, Any]:
        return worker_fields(super().blank_entry(arguments, is_padded=is_padded), arguments)

    def node(self, upstream: Node, building: BuildContext) -> Node:
        options = {"workers": 1, "ordered": True, "max_in_flight": 1}
        return building.workers(
            upstream, _itself, buffer_size=int(self.buffer_size), options=options
        )


def _itself(row: Any) -> Any:
    return row
