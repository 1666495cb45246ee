"""`draw`: the shuffle of a stream, which draws as a full `RandomShuffleQueue` does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from aioqueue.core.elements.philox import PhiloxWords, Seed, resolve_seed
from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.nodes.state_fields import Fields
from aioqueue.pipeline.stages.base import BaseStage, BuildContext
from aioqueue.pipeline.stages.shuffle import Shuffle, ShuffleNode


@dataclass(frozen=True)
class Draw(BaseStage):
    """Draws rows as a full `RandomShuffleQueue` does."""

    name: ClassVar[str] = "draw"
    state_fields: ClassVar[Fields] = Shuffle.state_fields
    min_after_dequeue: int
    seed: Seed

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        return "which belongs to a stream, and streams have no ranks"

    def details(self) -> str:
        return f"from {self.min_after_dequeue + 1}"

    def node(self, upstream: Node, building: BuildContext) -> Node:
        seed = building.seed("shuffle")
        return DrawNode(upstream, self.min_after_dequeue, seed if self.seed is None else self.seed)

    def fingerprint(self) -> dict[str, Any]:
        pair = None if self.seed is None else list(resolve_seed(self.seed))
        return {"min_after_dequeue": self.min_after_dequeue, "seed": pair}


class DrawNode(ShuffleNode):
    """A shuffle that draws like a queue, which would hold the buffer and the newcomer."""

    def __init__(self, upstream: Node, size: int, seed: Seed) -> None:
        self._pair = resolve_seed(seed)
        super().__init__(upstream, size, 0)

    def _words_of(self, epoch: int) -> PhiloxWords:
        return PhiloxWords(self._pair)
