"""`batch`: consecutive rows become one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import (
    checked_count,
    checked_flag,
    function_name,
    is_async,
    refuse_awaitable,
)
from aioqueue.core.elements.ownership import copy_if_shared
from aioqueue.items.provenance import joined
from aioqueue.pipeline.batches.batch_shape import BatchShape, Collated, OwnBatches
from aioqueue.pipeline.batches.collation import Collator
from aioqueue.pipeline.batches.layout import checked_objects
from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.nodes.progress import packed, unpacked
from aioqueue.pipeline.nodes.rows import Id, LazyRows, Row, State, id_in, origin_of, value_of
from aioqueue.pipeline.nodes.state_fields import HELD, LAYOUT, NUMBER, TEXT, Fields
from aioqueue.pipeline.stages.base import BaseStage, BuildContext
from aioqueue.pipeline.stages.transform import MakingTransform


@dataclass(frozen=True)
class Batch(BaseStage):
    """Makes batches of consecutive rows."""

    name: ClassVar[str] = "batch"
    state_fields: ClassVar[Fields] = {"made": NUMBER, "epochs": TEXT, **HELD, **LAYOUT}
    size: int
    drop_remainder: bool
    pad: bool
    padding_value: Any
    collate: Callable[[list[Any]], Any] | None
    across_epochs: bool
    objects: Any = False

    @classmethod
    def of_size(cls, size: Any) -> Batch:
        return cls(size, False, False, 0, None, False)

    def __post_init__(self) -> None:
        checked_count(self.size, "size", least=1)
        for name in ("drop_remainder", "pad", "across_epochs"):
            checked_flag(getattr(self, name), name)
        check_collate(self.collate)
        objects = checked_objects(self.objects)
        if self.collate is not None and (self.pad or objects or not _is_zero(self.padding_value)):
            name = "pad" if self.pad else "objects" if objects else "padding_value"
            raise InvalidArgumentError(
                f"{name}: got {getattr(self, name)!r} beside collate={function_name(self.collate)};"
                " expected only one of them: your function makes the batch, so let it do the"
                f" {'rest' if objects else 'padding'}"
            )
        object.__setattr__(self, "objects", objects)  # as a `Collator` wants it

    def function_name(self) -> str:
        return self.name if self.collate is None else function_name(self.collate)

    def details(self) -> str:
        flags = ("drop_remainder", "pad", "across_epochs")
        return " ".join([str(self.size), *(flag for flag in flags if getattr(self, flag))])

    def copies(self) -> bool:
        return self.collate is None

    def makes_batches(self) -> bool:
        return True

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return BatchNode(
            upstream,
            int(self.size),
            self.collate
            or Collator(
                pad=self.pad,
                padding_value=self.padding_value,
                objects=self.objects,
            ),
            drop_remainder=self.drop_remainder,
            across_epochs=self.across_epochs,
        )

    def length(self, rows: int | None) -> int | None:
        if rows is None or (self.across_epochs and rows % self.size):
            return None
        return rows // self.size if self.drop_remainder else -(-rows // self.size)

    def spans_epochs(self) -> bool:
        return self.across_epochs

    def fingerprint(self) -> dict[str, Any]:
        return {"across_epochs": True} if self.across_epochs else {}

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        is_across = arguments.get("across_epochs")
        return "across epochs, so that no epoch can continue by itself" if is_across else None

    @classmethod
    def blank_entry(cls, arguments: Mapping[str, Any], *, is_padded: bool) -> dict[str, Any]:
        blank = super().blank_entry(arguments, is_padded=is_padded)
        if not arguments.get("across_epochs"):
            del blank["epochs"]
        return blank

    def depends_on_data(self) -> bool:
        return False  # across epochs it depends on the epoch, but that is the same on all ranks

    def rows_per_output(self) -> int:
        return int(self.size)


def check_collate(collate: Any) -> None:
    """Check a function of a user's that makes a batch of examples.

    Raises:
        InvalidArgumentError: it is neither a plain function nor ``None``.
    """
    if collate is not None and (not callable(collate) or is_async(collate)):
        raise InvalidArgumentError(f"collate: got {collate!r}; expected a plain function or None")


def _is_zero(value: Any) -> bool:
    return isinstance(value, int | float) and value == 0


class BatchNode(MakingTransform):
    """Makes batches of consecutive rows.

    Args:
        upstream: the node before.
        size: how many rows a batch has.
        collate: makes a batch of a list of examples.
        drop_remainder: whether to drop the last rows if they do not fill a batch.
        across_epochs: whether they wait for the rows of the next epoch instead.
    """

    def __init__(
        self,
        upstream: Node,
        size: int,
        collate: Callable[[list[Any]], Any],
        *,
        drop_remainder: bool,
        across_epochs: bool,
    ) -> None:
        super().__init__(upstream)
        self._size = size
        self.collator: Collator | None = collate if isinstance(collate, Collator) else None
        self._collate = collate if self.collator is not None else _checking(collate)
        self._drop_remainder = drop_remainder
        self._across_epochs = across_epochs
        self._rows: list[Row] = []
        self._epochs: list[int] = []  # the epoch of each of these rows

    @property
    def batch_shape(self) -> BatchShape | None:
        within = self._upstream.batch_shape
        if self.collator is None:
            return OwnBatches(self._size, within)
        return Collated(self.collator, self._size, within)

    def defer(self) -> None:
        if self.collator is not None:
            self._collate = self.collator.later

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        if type(rows) is LazyRows and len(rows) == self._size and not self._rows:  # the usual case
            return (self._row(self._collate(rows.values), None),)
        self._rows += rows
        self._epochs += [self._epoch] * len(rows)
        return [self._batch(self._size)] if len(self._rows) >= self._size else ()

    def calls_of(self, given: Sequence[Any], result: Any) -> int:
        return len(self._ready)  # all of them were made just now

    def finish(self) -> Iterable[Row]:
        if self._across_epochs and not self.span.is_last(self._epoch):
            return ()
        rest = () if self._drop_remainder or not self._rows else (self._batch(len(self._rows)),)
        self.clear()
        return rest

    def clear(self) -> None:
        self._rows, self._epochs = [], []

    def _held(self) -> list[Id]:
        return [id_in(epoch, row) for epoch, row in zip(self._epochs, self._rows, strict=True)]

    def _held_count(self) -> int:
        return len(self._rows)

    def _buffer_state(self) -> State:
        epochs: State = {"epochs": packed(self._epochs)} if self._epochs else {}
        return {"made": self._made, **epochs}

    def _restore_buffer(self, state: State) -> None:
        self._made = state["made"]
        self._restored_epochs = unpacked(state.get("epochs", ""))

    def _put_back(self, rows: list[Row]) -> None:
        self._rows, self._epochs = rows, self._restored_epochs

    def more(self) -> Row | None:
        # A resumed run may have a smaller batch size: then the rows that came back are several
        # batches. One at a time, because a state names the rows of the others, and no batches.
        return self._batch(self._size) if len(self._rows) >= self._size else None

    def _need(self, n: int) -> int:
        return self._size - len(self._rows)

    def _rows_for(self, rows: int) -> int:
        return max(0, rows * self._size - len(self._rows))

    def _batch(self, size: int) -> Row:
        rows = self._rows[:size]
        try:
            batch = self._collate(list(map(value_of, rows)))
        except BaseException:
            self._failed_at = rows
            raise
        del self._rows[:size], self._epochs[:size]
        return self._row(batch, joined(map(origin_of, rows)))


def _checking(collate: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Wrap a user's ``collate``: refuse awaitables, and copy what shares memory with examples."""
    what = f"collate: {function_name(collate)}"
    instead = "make batches without awaiting, and await in a `prepare` after `batch`"

    def checked(examples: list[Any]) -> Any:
        batch = collate(examples)
        refuse_awaitable(what, batch, instead)
        return copy_if_shared(batch, examples)

    return checked
