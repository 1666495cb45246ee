"""`enumerate`: numbers the rows of each epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from aioqueue.base.arguments import checked_count
from aioqueue.pipeline.batches.batch_shape import BatchShape, Beside
from aioqueue.pipeline.nodes.node import Node, NoPositionError
from aioqueue.pipeline.nodes.rows import Id, Row, State, WantedRows
from aioqueue.pipeline.stages.base import BaseStage, BuildContext
from aioqueue.pipeline.stages.transform import Transform


class EnumerateNode(Transform):
    """Makes pairs of a row's place in its epoch, and its value.

    Args:
        upstream: the node before.
        start: the number of the first row.
    """

    def __init__(self, upstream: Node, start: int) -> None:
        super().__init__(upstream)
        self.never_waits: bool = upstream.never_waits
        self._start = start

    @property
    def batch_shape(self) -> BatchShape | None:
        shape = self._upstream.batch_shape
        return None if shape is None else Beside([None, shape])

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        first = self._start + self._given + len(self._ready)
        return [
            ((place, value), number, index, sub, origin)
            for place, (value, number, index, sub, origin) in enumerate(rows, first)
        ]

    def _own_state(self, held: Sequence[Id]) -> State:
        if held:
            raise NoPositionError(
                "this pipeline has no position: a stage after `enumerate` holds examples that come"
                " from workers which do not keep the order (ordered=False), so that they would"
                " get other numbers; keep the order, or move that stage before it"
            )
        return super()._own_state(held)

    def _restore_own(self, state: State, wanted: WantedRows | None) -> None:
        super()._restore_own(state, None)  # it has to count all of them


@dataclass(frozen=True)
class Enumerate(BaseStage):
    """Numbers the rows of each epoch."""

    name: ClassVar[str] = "enumerate"
    start: int

    def __post_init__(self) -> None:
        checked_count(self.start, "start")

    def details(self) -> str:
        return f"from {self.start}"

    def is_passthrough(self) -> bool:
        return True

    def keeps_rows_apart(self) -> bool:
        return True

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return EnumerateNode(upstream, int(self.start))

    def fingerprint(self) -> dict[str, Any]:
        return {"start": int(self.start)}

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        return "which counts what one rank is given"
