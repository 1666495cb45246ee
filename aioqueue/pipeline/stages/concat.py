"""`concat`: several pipelines, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from aioqueue.items.item import EpochEnd
from aioqueue.pipeline.nodes.flow import Flow
from aioqueue.pipeline.nodes.node import Node, Taken
from aioqueue.pipeline.nodes.rows import State
from aioqueue.pipeline.nodes.state_fields import NUMBER, Fields
from aioqueue.pipeline.stages.base import BuildContext
from aioqueue.pipeline.stages.combining import CombiningNode, CombiningStage


class ConcatNode(CombiningNode):
    """The rows of each branch, one branch behind the other, in every epoch."""

    def __init__(self, branches: Sequence[Node]) -> None:
        super().__init__(branches)
        self._at = 0  # which branch is given out

    def limit(self, rows: int) -> None:
        self.is_limited = True
        for at, branch in enumerate(self._branches):
            branch.limit(0 if at else rows)  # a later one may not have its turn at all

    def take(self, n: int) -> Flow[Taken]:
        while self._at < len(self._branches):
            self._expect(n, self._branches[self._at])
            taken = yield from self._branches[self._at].take(n)
            if not isinstance(taken, EpochEnd):
                return self._renumbered(taken, self._at)
            self._at += 1
        return self._end_epoch()

    def _own_state(self) -> State:
        return {"chosen": self._at}

    def _restore_own(self, state: State) -> None:
        self._at = state["chosen"]

    def _go_to(self, epoch: int) -> None:
        super()._go_to(epoch)
        self._at = 0


@dataclass(frozen=True)
class Concat(CombiningStage):
    """Continues with the examples of other pipelines, one pipeline after the other."""

    name: ClassVar[str] = "concat"
    state_fields: ClassVar[Fields] = {"chosen": NUMBER}

    def details(self) -> str:
        return f"of {len(self.others) + 1}"

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return ConcatNode(self._nodes(upstream, building))

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        return None

    def length(self, rows: int | None) -> int | None:
        lengths = self._lengths(rows)
        return None if lengths is None else sum(lengths)
