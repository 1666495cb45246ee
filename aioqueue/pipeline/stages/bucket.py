"""`bucket`: batches of rows of similar length."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from aioqueue.base.arguments import checked_flag, function_name
from aioqueue.items.provenance import finish, joined
from aioqueue.pipeline.batches.batch_shape import BatchShape, Beside, Collated
from aioqueue.pipeline.batches.buckets import Buckets, checked_buckets
from aioqueue.pipeline.batches.collation import Collator
from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.nodes.rows import ROW_ORIGIN, ROW_VALUE, Id, Row, State, origin_of
from aioqueue.pipeline.nodes.state_fields import HELD, LAYOUT, NUMBER, NUMBERS, Fields
from aioqueue.pipeline.stages.base import BaseStage, BuildContext
from aioqueue.pipeline.stages.transform import MakingTransform
from aioqueue.workers.statistics import BucketStatistics


class BucketNode(MakingTransform):
    """The node that sorts rows into buckets; see `Stages.bucket`.

    Args:
        upstream: the node before.
        buckets: the buckets.
        drop_remainder: whether to drop the examples that are left at the end of an epoch.
    """

    measured: tuple[Literal["_take_in"], Literal["more"]] = ("_take_in", "more")

    def __init__(self, upstream: Node, buckets: Buckets, *, drop_remainder: bool) -> None:
        super().__init__(upstream)
        self._buckets = buckets
        self.collator: Collator = buckets.collator
        self._drop_remainder = drop_remainder
        # One row may make two batches. The second is the row alone; it is ready while the first is
        # taken, and a state has to name the row.
        self._pending: Row | None = None

    @property
    def batch_shape(self) -> BatchShape | None:
        batches = Collated(self.collator, None, self._upstream.batch_shape)
        return Beside([None, batches])  # lengths, and a batch

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        batches: list[Row] = []
        try:
            for row in rows:
                skipped = self._buckets.skipped
                self._pending = tag = (None, *row[1:])
                batches += map(self._batch_row, self._buckets.add(row[ROW_VALUE], tag))
                if self._buckets.skipped > skipped:
                    finish(row[ROW_ORIGIN])
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
        """The counts so far. Any thread may call it."""
        return self._buckets.statistics()

    def defer(self) -> None:
        self._buckets.defer()

    def clear(self) -> None:
        self._buckets.clear()

    def _held(self) -> list[Id]:
        alone = [self._pending] if self._ready and self._pending is not None else []
        return self._ids([*self._buckets.tags(), *alone])

    def _held_count(self) -> int:
        return self._buckets.held

    def _buffer_state(self) -> State:
        return {"made": self._made - len(self._ready), "counts": self._buckets.counts()}

    def _restore_buffer(self, state: State) -> None:
        self._made = state["made"]
        self._buckets.restore_counts(state["counts"])

    def _put_back(self, rows: list[Row]) -> None:
        counts = self._buckets.counts()
        self._ready = deque(self.accept(rows))
        self._buckets.restore_counts(counts)  # putting rows back must not count them a second time

    def _need(self, n: int) -> int:
        return max(1, n // 2)  # one row may make two batches

    def _batch_row(self, batch: Any) -> Row:
        return self._row(batch, joined(map(origin_of, self._buckets.latest)))


@dataclass(frozen=True)
class Bucket(BaseStage):
    """Makes padded batches of rows of similar length."""

    name: ClassVar[str] = "bucket"
    state_fields: ClassVar[Fields] = {"made": NUMBER, "counts": NUMBERS, **HELD, **LAYOUT}
    boundaries: Any
    batch_size: Any
    tokens_per_batch: int | None
    of_length: Callable[[Any], int] | None
    padding_value: Any
    pad_to_boundary: bool
    on_too_long: Any
    drop_remainder: bool
    objects: Any = False

    def __post_init__(self) -> None:
        checked_flag(self.drop_remainder, "drop_remainder")
        self._buckets()

    def function_name(self) -> str:
        return self.name if self.of_length is None else function_name(self.of_length)

    def details(self) -> str:
        is_by_rows = self.batch_size is not None
        size = f"{self.batch_size} rows" if is_by_rows else f"{self.tokens_per_batch} tokens"
        return f"{size} by length {[int(one) for one in self.boundaries]}"

    def copies(self) -> bool:
        return True

    def makes_batches(self) -> bool:
        return True

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return BucketNode(upstream, self._buckets(), drop_remainder=self.drop_remainder)

    def fingerprint(self) -> dict[str, Any]:
        limit = self._buckets().limit
        return {
            "boundaries": list(limit.boundaries),
            "batch_size": None if limit.sizes is None else list(limit.sizes),
            "tokens_per_batch": limit.budget,
            "pad_to_boundary": limit.to_boundary,
            "on_too_long": self.on_too_long,
        }

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        return None

    def length(self, rows: int | None) -> int | None:
        return None

    def _buckets(self) -> Any:
        return checked_buckets(
            self.boundaries,
            self.batch_size,
            self.tokens_per_batch,
            length=self.of_length,
            padding_value=self.padding_value,
            pad_to_boundary=self.pad_to_boundary,
            on_too_long=self.on_too_long,
            objects=self.objects,
        )
