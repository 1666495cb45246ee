"""`unbatch`: batches become rows again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from aioqueue.items.positions import misplaced
from aioqueue.items.provenance import DROPPED, unbatched
from aioqueue.pipeline.batches.batch_shape import BatchShape, rows_in
from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.nodes.rows import Id, Row, State
from aioqueue.pipeline.nodes.state_fields import HELD, NUMBER, Fields
from aioqueue.pipeline.stages.base import BaseStage, BuildContext
from aioqueue.pipeline.stages.transform import HoldingTransform


@dataclass(frozen=True)
class Unbatch(BaseStage):
    """Splits batches into their rows."""

    name: ClassVar[str] = "unbatch"
    takes_apart: ClassVar[bool] = True
    state_fields: ClassVar[Fields] = {"left": NUMBER, **HELD}

    def details(self) -> str:
        return ""

    def makes_batches(self) -> bool:
        return False

    def depth_of_batches(self, depth: int) -> int:
        return max(0, depth - 1)

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return UnbatchNode(upstream)

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        return None

    def length(self, rows: int | None) -> int | None:
        return None


class UnbatchNode(HoldingTransform):
    """Gives the rows of the batches of the node before, one by one."""

    def __init__(self, upstream: Node) -> None:
        super().__init__(upstream)
        self._shape_of_batches = upstream.batch_shape
        self._batch: Row | None = None  # the batch whose rows are ready
        self._left = 0  # after a restore: how many of its rows are left

    @property
    def batch_shape(self) -> BatchShape | None:
        shape = self._shape_of_batches
        return None if shape is None else shape.within

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        (self._batch,) = rows
        batch, number, index, _, origin = self._batch
        values = rows_in(batch, self._shape_of_batches)
        origins = unbatched(origin, len(values))
        return [
            (value, number, index, sub, one)
            for sub, (value, one) in enumerate(zip(values, origins, strict=True), 1)
            if one is not DROPPED
        ]

    def _held(self) -> list[Id]:
        return self._ids([self._batch]) if self._batch is not None and self._ready else []

    def _held_count(self) -> int:
        return 1

    def _buffer_state(self) -> State:
        return {"left": len(self._ready)}

    def _restore_buffer(self, state: State) -> None:
        self._left = state["left"]

    def _put_back(self, rows: list[Row]) -> None:
        if len(rows) != 1:
            raise misplaced(f"{len(rows)} batches to take apart", "one")
        self._ready = deque(list(self.accept(rows))[-self._left :])

    def _need(self, n: int) -> int:
        return 1

    def _rows_for(self, rows: int) -> int:
        shape = self._shape_of_batches
        return -(-rows // (1 if shape is None else shape.rows or 1))
