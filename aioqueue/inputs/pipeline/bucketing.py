"""Batches of examples of like length, as a stage of a pipeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from aioqueue.inputs.batches.buckets import Buckets
from aioqueue.inputs.pipeline.flow import Id, Node, Row, State
from aioqueue.inputs.pipeline.origins import finish, joined
from aioqueue.inputs.pipeline.transforms import Making
from aioqueue.inputs.statistics import BucketStatistics

__all__ = ("Bucketing",)


class Bucketing(Making):
    """The node that sorts rows into buckets; see `Stages.bucket`.

    Args:
        upstream: where the rows come from.
        buckets: what sorts them.
        drop_remainder: whether what is left in them at the end of an epoch is left out.
    """

    measured = ("_take_in", "more")

    def __init__(self, upstream: Node, buckets: Buckets, *, drop_remainder: bool) -> None:
        super().__init__(upstream)
        self._buckets = buckets
        self.collator = buckets.collator
        self._drop_remainder = drop_remainder
        self._alone: Row | None = None  # the row that is the batch which is ready, if one is

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        batches: list[Row] = []
        try:
            for row in rows:
                skipped = self._buckets.skipped
                self._alone = tag = (None, *row[1:])
                batches += map(self._batch_row, self._buckets.add(row[0], tag))
                if self._buckets.skipped > skipped:
                    finish(row[4])
        except BaseException:
            self._failed_at = (row,)
            raise
        return batches

    def finish(self) -> Iterable[Row]:
        if self._drop_remainder:
            self._buckets.clear()
        return ()

    def more(self) -> Row | None:
        rest = self._buckets.rest() if self._has_ended else ()
        return next(map(self._batch_row, rest), None)

    def statistics(self) -> BucketStatistics:
        """What it has done so far, for any thread."""
        return self._buckets.statistics()

    def defer(self) -> None:
        self._buckets.defer()

    def clear(self) -> None:
        self._buckets.clear()

    def weight(self) -> int:
        return len(self._buckets.tags()) + super().weight()

    def _held(self) -> list[Id]:
        alone = [self._alone] if self._ready and self._alone is not None else []
        return self._ids([*self._buckets.tags(), *alone])

    def _shape(self) -> State:
        return {"made": self._made - len(self._ready), "counts": self._buckets.counts()}

    def _reshape(self, state: State) -> None:
        self._made = state["made"]
        self._buckets.go_on(state["counts"])

    def _put_back(self, rows: list[Row]) -> None:
        counts = self._buckets.counts()
        self._ready = deque(self.accept(rows))
        self._buckets.go_on(counts)  # they were counted before

    def _need(self, n: int) -> int:
        return max(1, n // 2)  # one row may make two batches

    def _batch_row(self, batch: Any) -> Row:
        return self._row(batch, joined(tag[4] for tag in self._buckets.latest))
