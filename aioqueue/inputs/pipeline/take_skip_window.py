"""Stages that go by the place of a row in its epoch, and their nodes: the first, the rest, windows.

What they count is in their states, so they count on after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar, Final

from aioqueue import InvalidArgumentError
from aioqueue.arguments import checked_count, checked_flag, function_name
from aioqueue.inputs.core.batch_shape import BatchShape, Beside
from aioqueue.inputs.core.collation import Collator
from aioqueue.inputs.core.example_components import checked_objects
from aioqueue.inputs.core.items import finish, share
from aioqueue.inputs.pipeline.description import BaseStage, BuildContext
from aioqueue.inputs.pipeline.node import (
    ROW_ORIGIN,
    Flow,
    Id,
    Node,
    NoPositionError,
    Row,
    State,
    Taken,
    WantedRows,
)
from aioqueue.inputs.pipeline.stages import check_collate
from aioqueue.inputs.pipeline.transform_nodes import BatchNode, Transform
from aioqueue.ownership import copy_shared

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


class EnumerateNode(Transform):
    """Makes pairs of a row's place in its epoch, and its value.

    Args:
        upstream: the node before.
        start: the number of the first row.
    """

    def __init__(self, upstream: Node, start: int) -> None:
        super().__init__(upstream)
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


class WindowNode(BatchNode):
    """Batches of rows that follow each other, each a stride behind the one before.

    Args:
        upstream: the node before.
        size: how many rows a window has.
        stride: how many rows the next one begins behind the beginning of this one.
        collate: makes a window of a list of examples.
        drop_remainder: whether windows at the end of an epoch that have fewer rows are left out.
    """

    measured = ("_take_in", "more")

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

    def _shape(self) -> State:
        return {"made": self._made, "gap": self._gap}

    def _reshape(self, state: State) -> None:
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
    """The same function of a user's, whose examples are also in other windows."""

    @wraps(collate)
    def collated(examples: list[Any]) -> Any:
        return collate(list(map(copy_shared, examples)))

    return collated


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


@dataclass(frozen=True)
class Enumerate(BaseStage):
    """Numbers the rows of each epoch."""

    name: ClassVar[str] = "enumerate"
    start: int

    def __post_init__(self) -> None:
        checked_count(self.start, "start")

    def details(self) -> str:
        return f"from {self.start}"

    def passes_on(self) -> bool:
        return True

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return EnumerateNode(upstream, int(self.start))

    def fingerprint(self) -> dict[str, Any]:
        return {"start": int(self.start)}

    def is_elastic(self) -> bool:
        return False  # it counts what one rank is given


@dataclass(frozen=True)
class Window(BaseStage):
    """Makes windows of rows that follow each other, which may overlap."""

    name: ClassVar[str] = "window"
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

    def needs(self) -> int:
        return int(self.size)

    def is_elastic(self) -> bool:
        return False  # a row is in several windows
