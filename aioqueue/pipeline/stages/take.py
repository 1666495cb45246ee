"""`take`: the first rows of each epoch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from aioqueue.pipeline.nodes.flow import Flow
from aioqueue.pipeline.nodes.node import Node, Taken
from aioqueue.pipeline.nodes.rows import Id, Row, State, WantedRows
from aioqueue.pipeline.stages.base import BuildContext
from aioqueue.pipeline.stages.counted import CountedStage
from aioqueue.pipeline.stages.transform import Transform


class TakeNode(Transform):
    """Keeps the first rows of each epoch. The rest is not even prepared.

    Args:
        upstream: the node before.
        count: how many rows of an epoch to keep.
    """

    _has_demand = False  # whether the nodes behind say how many they want

    def __init__(self, upstream: Node, count: int) -> None:
        super().__init__(upstream)
        self._count = count
        self._left = count
        self.limit(count)

    def limit(self, rows: int) -> None:
        self.is_limited = True
        self._upstream.limit(min(rows, self._count))

    def take(self, n: int) -> Flow[Taken]:
        if not self._left and not self._ready and not self._has_ended:
            self._upstream.skip_to(self._epoch + 1)
            self._has_ended = True
        return (yield from super().take(n))

    def defer(self) -> None:
        self._upstream.defer()

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        self._left -= len(rows)
        return rows

    def _own_state(self, held: Sequence[Id]) -> State:
        return {"left": self._left + len(held), **super()._own_state(held)}

    def _restore_own(self, state: State, wanted: WantedRows | None) -> None:
        self._left = state["left"]
        super()._restore_own(state, None)  # no `wanted`: it has to count every row

    def _need(self, n: int) -> int:
        return min(n, self._left)

    def expect(self, rows: int) -> None:
        super().expect(rows)
        self._has_demand = True

    def _rows_for(self, rows: int) -> int:
        return min(rows, self._left) if self._has_demand else self._left

    def _go_to(self, epoch: int) -> None:
        super()._go_to(epoch)
        self._left = self._count


@dataclass(frozen=True)
class TakeRows(CountedStage):
    """Keeps the first rows of each epoch."""

    name: ClassVar[str] = "take"
    may_follow_device: ClassVar[bool] = True

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return TakeNode(upstream, int(self.count))

    def length(self, rows: int | None) -> int | None:
        return None if rows is None else min(rows, int(self.count))
