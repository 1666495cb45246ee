"""What `take` and `skip` share: stages that count the first rows of each epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from aioqueue.base.arguments import checked_count
from aioqueue.pipeline.nodes.state_fields import NUMBER, Fields
from aioqueue.pipeline.stages.base import BaseStage


@dataclass(frozen=True)
class CountedStage(BaseStage):
    """The base of stages that handle the first `count` rows of each epoch specially."""

    state_fields: ClassVar[Fields] = {"left": NUMBER}
    count: int

    def __post_init__(self) -> None:
        checked_count(self.count, "count")

    def details(self) -> str:
        return str(self.count)

    def is_passthrough(self) -> bool:
        return True

    def keeps_rows_apart(self) -> bool:
        return True

    def fingerprint(self) -> dict[str, Any]:
        return {"count": int(self.count)}

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        return "which counts what one rank is given"
