"""Batches of examples of like length, as a stage of a pipeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from aioqueue.inputs.batches.buckets import Buckets
from aioqueue.inputs.pipeline.flow import Id, Node, Row, State, made_of
from aioqueue.inputs.pipeline.transforms import Holding
from aioqueue.inputs.sources.item import Traced

__all__ = ("Bucketing",)


class Bucketing(Holding):
    """The node that sorts rows into buckets; see `Stages.bucket`.

    Args:
        upstream: where the rows come from.
        buckets: what sorts them.
        drop_remainder: whether what is left in them at the end of an epoch is left out.
    """

    def __init__(self, upstream: Node, buckets: Buckets, *, drop_remainder: bool) -> None:
        super().__init__(upstream)
        self._buckets = buckets
        self._drop_remainder = drop_remainder
        self._made = 0  # batches of this epoch
        self._alone: Id | None = None  # the row that is the batch which is ready, if one is
        self._indices: dict[Id, int] = {}  # of the rows in the buckets, where they are traced

    def begin(self, epoch: int) -> None:
        self._made = 0
        self._indices.clear()

    def accept(self, rows: list[Row]) -> Iterable[Row]:
        batches = []
        for row, one in zip(rows, self._ids(rows), strict=True):
            if type(row[2]) is Traced:
                self._indices[one] = row[2]
            batches += [self._row(batch) for batch in self._buckets.add(row[0], one)]
            self._alone = one
        return batches

    def finish(self) -> Iterable[Row]:
        if self._drop_remainder:
            self._buckets.clear()
        return ()

    def more(self) -> Row | None:
        rest = self._buckets.rest() if self._has_ended else ()
        return next(map(self._row, rest), None)

    def defer(self) -> None:
        self._buckets.defer()

    def clear(self) -> None:
        self._buckets.clear()

    def weight(self) -> int:
        return len(self._buckets.tags()) + super().weight()

    def _held(self) -> list[Id]:
        alone = [self._alone] if self._ready and self._alone is not None else []
        return [*self._buckets.tags(), *alone]

    def _shape(self) -> State:
        return {"made": self._made - len(self._ready)}

    def _reshape(self, state: State) -> None:
        self._made = state["made"]

    def _put_back(self, rows: list[Row]) -> None:
        self._ready = deque(self.accept(rows))

    def _need(self, n: int) -> int:
        return max(1, n // 2)  # one row may make two batches

    def _row(self, batch: Any) -> Row:
        number = self._made
        self._made += 1
        if not self._indices:
            return batch, number, number, 0
        indices = [self._indices.pop(one) for one in self._buckets.latest]
        return batch, number, made_of(number, indices), 0
