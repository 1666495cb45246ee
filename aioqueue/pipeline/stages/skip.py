"""`skip`: all rows of each epoch but the first ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from aioqueue.items.provenance import finish
from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.nodes.rows import ROW_ORIGIN, Id, Row, State, WantedRows
from aioqueue.pipeline.stages.base import BuildContext
from aioqueue.pipeline.stages.counted import CountedStage
from aioqueue.pipeline.stages.transform import Transform

_SKIP_CHUNK: Final = 256
"""The most rows to ask for at a time, in order to leave them out."""


class SkipNode(Transform):
    """Leaves out the first rows of each epoch.

    Args:
        upstream: the node before.
        count: how many rows of an epoch to leave out.
    """

    def __init__(self, upstream: Node, count: int) -> None:
        super().__init__(upstream)
        self.never_waits: bool = upstream.never_waits
        self._count = count
        self._left = count  # to be left out

    def defer(self) -> None:
        self._upstream.defer()

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        if not self._left:
            return rows
        passed = rows[: self._left]
        self._left -= len(passed)
        for row in passed:
            finish(row[ROW_ORIGIN])
        return rows[len(passed) :]

    def _own_state(self, held: Sequence[Id]) -> State:
        return {"left": self._left, **super()._own_state(held)}

    def _restore_own(self, state: State, wanted: WantedRows | None) -> None:
        self._left = state["left"]
        super()._restore_own(state, None if self._left else wanted)  # those that it still counts

    def _need(self, n: int) -> int:
        return n + min(self._left, _SKIP_CHUNK)

    def _rows_for(self, rows: int) -> int:
        return rows + self._left if rows else 0

    def _go_to(self, epoch: int) -> None:
        super()._go_to(epoch)
        self._left = self._count


@dataclass(frozen=True)
class SkipRows(CountedStage):
    """Leaves out the first rows of each epoch."""

    name: ClassVar[str] = "skip"

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return SkipNode(upstream, int(self.count))

    def length(self, rows: int | None) -> int | None:
        return None if rows is None else max(0, rows - int(self.count))
