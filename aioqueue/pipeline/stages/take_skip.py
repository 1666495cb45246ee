"""`take` and `skip`: the first rows of each epoch, or all others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from aioqueue.base.arguments import checked_count
from aioqueue.items.provenance import finish
from aioqueue.pipeline.nodes.flow import Flow
from aioqueue.pipeline.nodes.node import Node, Taken
from aioqueue.pipeline.nodes.rows import ROW_ORIGIN, Id, Row, State, WantedRows
from aioqueue.pipeline.stages.base import BaseStage, BuildContext
from aioqueue.pipeline.stages.transform import Transform

_AT_ONCE: Final = 256
"""The most rows that are asked for at a time, in order to leave them out."""


class TakeNode(Transform):
    """Keeps the first rows of each epoch. The rest is not even prepared.

    Args:
        upstream: the node before.
        count: how many rows of an epoch to keep.
    """

    _is_told = False  # whether the nodes behind say how many they want

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
        self._is_told = True

    def _rows_for(self, rows: int) -> int:
        return min(rows, self._left) if self._is_told else self._left

    def _go_to(self, epoch: int) -> None:
        super()._go_to(epoch)
        self._left = self._count


class SkipNode(Transform):
    """Leaves out the first rows of each epoch.

    Args:
        upstream: the node before.
        count: how many rows of an epoch to leave out.
    """

    def __init__(self, upstream: Node, count: int) -> None:
        super().__init__(upstream)
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
        return n + min(self._left, _AT_ONCE)

    def _rows_for(self, rows: int) -> int:
        return rows + self._left if rows else 0

    def _go_to(self, epoch: int) -> None:
        super()._go_to(epoch)
        self._left = self._count


@dataclass(frozen=True)
class _Counted(BaseStage):
    """The base of stages that treat the first rows of each epoch in another way than the rest."""

    count: int

    def __post_init__(self) -> None:
        checked_count(self.count, "count")

    def details(self) -> str:
        return str(self.count)

    def passes_on(self) -> bool:
        return True

    def fingerprint(self) -> dict[str, Any]:
        return {"count": int(self.count)}

    def is_elastic(self) -> bool:
        return False  # it counts the rows of one rank, so its end depends on the number of ranks


@dataclass(frozen=True)
class Take(_Counted):
    """Keeps the first rows of each epoch."""

    name: ClassVar[str] = "take"

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return TakeNode(upstream, int(self.count))

    def length(self, rows: int | None) -> int | None:
        return None if rows is None else min(rows, int(self.count))


@dataclass(frozen=True)
class Skip(_Counted):
    """Leaves out the first rows of each epoch."""

    name: ClassVar[str] = "skip"

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return SkipNode(upstream, int(self.count))

    def length(self, rows: int | None) -> int | None:
        return None if rows is None else max(0, rows - int(self.count))
