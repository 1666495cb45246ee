"""Batches of examples of like length, as a stage of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aioqueue.inputs.batches.buckets import Buckets
from aioqueue.inputs.pipeline.flow import Node, Row
from aioqueue.inputs.pipeline.transforms import Transform

__all__ = ("Bucketing",)


class Bucketing(Transform):
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

    def begin(self, epoch: int) -> None:
        self._made = 0

    def accept(self, rows: list[Row]) -> Iterable[Row]:
        return [self._row(batch) for value, *_ in rows for batch in self._buckets.add(value)]

    def finish(self) -> Iterable[Row]:
        rest = [] if self._drop_remainder else [self._row(batch) for batch in self._buckets.rest()]
        self._buckets.clear()
        return rest

    def defer(self) -> None:
        self._buckets.defer()

    def clear(self) -> None:
        self._buckets.clear()

    def _row(self, batch: Any) -> Row:
        number = self._made
        self._made += 1
        return batch, number, number, 0
