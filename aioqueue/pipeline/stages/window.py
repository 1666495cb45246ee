"""`window`: windows of consecutive rows, which may overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import checked_count, checked_flag, function_name
from aioqueue.core.elements.ownership import copy_shared
from aioqueue.items.provenance import finish, share
from aioqueue.pipeline.batches.collation import Collator
from aioqueue.pipeline.batches.layout import checked_objects
from aioqueue.pipeline.nodes.node import Node, NoPositionError
from aioqueue.pipeline.nodes.rows import ROW_ORIGIN, Id, Row, State
from aioqueue.pipeline.nodes.state_fields import HELD, LAYOUT, NUMBER, Fields
from aioqueue.pipeline.stages.base import BaseStage, BuildContext
from aioqueue.pipeline.stages.batch import BatchNode, check_collate


class WindowNode(BatchNode):
    """Batches of rows that follow each other, each a stride behind the one before.

    Args:
        upstream: the node before.
        size: how many rows a window has.
        stride: how many rows the next one begins behind the beginning of this one.
        collate: makes a window of a list of examples.
        drop_remainder: whether windows at the end of an epoch that have fewer rows are left out.
    """

    measured: tuple[str, ...] = ("_take_in", "more")

    def __init__(
        self,
        upstream: Node,
        size: int,
        stride: int,
        collate: Callable[[list[Any]], Any],
        *,
        drop_remainder: bool,
    ) -> None:
        if not isinstance(collate, Collator):
            collate = _given_copies(collate)
        super().__init__(
            upstream, size, collate, drop_remainder=drop_remainder, across_epochs=False
        )
        self._stride = stride
        self._gap = 0  # rows to pass over before the next window

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        if self._gap:
            passed = min(self._gap, len(rows))
            self._gap -= passed
            for row in rows[:passed]:
                finish(row[ROW_ORIGIN])
            rows = rows[passed:]
        self._rows += rows
        self._epochs += [self._epoch] * len(rows)
        return [self._batch(self._size)] if len(self._rows) >= self._size else ()

    def finish(self) -> Iterable[Row]:
        if self._drop_remainder:
            self.clear()
        return ()

    def more(self) -> Row | None:
        # One at a time, so that the others wait as the rows that they are made of.
        return self._batch(len(self._rows)) if self._has_ended and self._rows else None

    def clear(self) -> None:
        super().clear()
        self._gap = 0

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        self._gap = 0

    def _own_state(self, held: Sequence[Id]) -> State:
        if not self.is_ordered:
            raise NoPositionError(
                "this pipeline has no position: `window` has examples in the order in which they"
                " come, and workers before it do not keep that (ordered=False); keep the order"
            )
        return super()._own_state(held)

    def _buffer_state(self) -> State:
        return {"made": self._made, "gap": self._gap}

    def _restore_buffer(self, state: State) -> None:
        self._made, self._gap = state["made"], state["gap"]

    def _put_back(self, rows: list[Row]) -> None:
        self._rows, self._epochs = rows, [self._epoch] * len(rows)

    def _need(self, n: int) -> int:
        return self._size - len(self._rows) + self._gap

    def _rows_for(self, rows: int) -> int:
        if not rows:
            return 0
        return max(0, self._need(1) + (rows - 1) * self._stride)

    def _batch(self, size: int) -> Row:
        rows, epochs = self._rows[self._stride :], self._epochs[self._stride :]
        gap = max(0, self._stride - len(self._rows))
        for row in self._rows[self._stride : size]:
            share(row[ROW_ORIGIN])  # it is in the next window, too
        window = super()._batch(size)
        self._rows, self._epochs, self._gap = rows, epochs, gap
        return window


def _given_copies(collate: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Return the user's function, called with copies: its examples are also in other windows."""

    @wraps(collate)
    def collated(examples: list[Any]) -> Any:
        return collate(list(map(copy_shared, examples)))

    return collated


@dataclass(frozen=True)
class Window(BaseStage):
    """Makes windows of rows that follow each other, which may overlap."""

    name: ClassVar[str] = "window"
    state_fields: ClassVar[Fields] = {"made": NUMBER, "gap": NUMBER, **HELD, **LAYOUT}
    size: int
    stride: int
    drop_remainder: bool
    collate: Callable[[list[Any]], Any] | None
    objects: Any = False

    def __post_init__(self) -> None:
        checked_count(self.size, "size", least=1)
        checked_count(self.stride, "stride", least=1)
        checked_flag(self.drop_remainder, "drop_remainder")
        check_collate(self.collate)
        objects = checked_objects(self.objects)
        if objects and self.collate is not None:
            raise InvalidArgumentError(
                f"objects: got {self.objects!r} beside collate={function_name(self.collate)};"
                " expected only one of them"
            )
        object.__setattr__(self, "objects", objects)  # as a `Collator` wants it

    def function_name(self) -> str:
        return self.name if self.collate is None else function_name(self.collate)

    def details(self) -> str:
        return f"{self.size} every {self.stride}"

    def copies(self) -> bool:
        return self.collate is None

    def makes_batches(self) -> bool:
        return False  # a window is one example: its rows are in others, too

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return WindowNode(
            upstream,
            int(self.size),
            int(self.stride),
            self.collate or Collator(objects=self.objects, pad_option=None),
            drop_remainder=self.drop_remainder,
        )

    def fingerprint(self) -> dict[str, Any]:
        rest = {} if self.drop_remainder else {"drop_remainder": False}
        return {"size": int(self.size), "stride": int(self.stride), **rest}

    def length(self, rows: int | None) -> int | None:
        if rows is None:
            return None
        first = self.size if self.drop_remainder else 1
        return max(0, (rows - first) // self.stride + 1)

    def rows_per_output(self) -> int:
        return int(self.size)

    def rows_for(self, outputs: int) -> int:
        return int(self.size) + (outputs - 1) * int(self.stride)

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        return "whose windows overlap on one rank"
