"""`shard`: one rank reads its part of the source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.stages.base import BaseStage, BuildContext
from aioqueue.sources.shards import Rank


@dataclass(frozen=True)
class Shard(BaseStage):
    """Reads one rank's shard of the source."""

    name: ClassVar[str] = "shard"
    has_state: ClassVar[bool] = False
    may_follow_device: ClassVar[bool] = True
    rank: Rank

    @classmethod
    def of(cls, rank: Any, ranks: Any, uneven: Any, by: Any = "item") -> Shard:
        return cls(Rank.checked(rank, ranks, uneven, by))

    def details(self) -> str:
        rank, ranks, uneven, by = self.rank
        return f"{rank} of {ranks}, uneven={uneven!r}" + (", by='file'" if by == "file" else "")

    def is_passthrough(self) -> bool:
        return True

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return upstream  # the source node reads only the shard, so there is nothing left to do

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        return None

    def fingerprint(self) -> dict[str, Any]:
        found = dict(self.rank._asdict())
        if self.rank.by == "item":
            del found["by"]  # as in positions from before this option
        return found


def rank_of(stages: Iterable[BaseStage]) -> Rank:
    """Return which shard of the source some stages read."""
    return next((stage.rank for stage in stages if isinstance(stage, Shard)), Rank())
