"""Rows: the examples that nodes hand on, with the numbers that name them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias, overload

from aioqueue.items.item import Delivered, delivered_index
from aioqueue.items.provenance import RowOrigin
from aioqueue.items.value_text import short_value

Row: TypeAlias = tuple[Any, int, int, int, RowOrigin]
"""An example with its provenance: ``(value, number, index, sub, origin)``.

- ``number`` and ``sub`` name the row among those of its node in this epoch. They grow from row to
  row. ``number`` is the place of its item among all items of the epoch at this node.
- ``index`` is the index of that item in its source, whatever the order.
- ``sub`` is the place of the example, from 1, among the examples of its item; 0 for the only one.
- ``origin`` is the provenance: the items of the sources that the example was made from, if a run
  records them.

``index`` and ``sub`` select the random generator that later functions receive.

A row is a plain tuple, because every example has one: making a named tuple takes four times as
long, which would cost a pipeline without user functions a third more time. The places have names:
`ROW_VALUE` and the others.
"""


ROW_VALUE: Final = 0


ROW_NUMBER: Final = 1


ROW_INDEX: Final = 2


ROW_SUB: Final = 3


ROW_ORIGIN: Final = 4


value_of: Final = itemgetter(ROW_VALUE)
"""Gets the value of a row, for `map`; the following three get other places."""


number_of: Final = itemgetter(ROW_NUMBER)


sub_of: Final = itemgetter(ROW_SUB)


origin_of: Final = itemgetter(ROW_ORIGIN)


Id: TypeAlias = tuple[int, int, int]
"""The name of a row among those of a node: its epoch, ``number`` and ``sub``."""


def id_in(epoch: int, row: Row) -> Id:
    return epoch, row[ROW_NUMBER], row[ROW_SUB]


END: Final = 2**62
"""A number that stands for the end of an epoch, behind its last row."""


State: TypeAlias = dict[str, Any]
"""The position of a node, in plain JSON types."""


class Element(NamedTuple):
    """What the value of each row of a node is."""

    examples: int = 1
    """How many examples it has, as far as that is known."""
    step: int = 1
    """How many examples behind its beginning the next one begins: windows may overlap."""
    is_batch: bool = False

    @property
    def item_size(self) -> int:
        """As how many examples it counts among those that are ahead: a batch as more than any."""
        return sys.maxsize if self.is_batch else self.examples


class WantedRows(NamedTuple):
    """Which rows of an epoch a resume needs: these, and all from a number on."""

    epoch: int
    numbers: list[int]
    """Ascending."""
    upto: int


class EpochRange(NamedTuple):
    """The epochs of a run."""

    start: int
    stop: int | None
    """The first epoch that is not part of the run; ``None`` without an end."""

    def is_last(self, epoch: int) -> bool:
        return self.stop is not None and epoch + 1 >= self.stop


class LazyRows(Sequence[Row]):
    """Rows that are made on demand. A batch needs only their values, so most are never made.

    Each row is the only example of its item, and its provenance is not recorded.

    Args:
        values: the examples.
        numbers: the numbers of their items, ascending.
        items: the items as the workers delivered them.
    """

    __slots__ = ("_items", "_numbers", "values")

    def __init__(
        self, values: list[Any], numbers: Sequence[int], items: Sequence[Delivered]
    ) -> None:
        self.values: list[Any] = values
        self._numbers = numbers
        self._items = items

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Row]:
        indices = map(delivered_index, self._items)
        return zip(self.values, self._numbers, indices, repeat(0), repeat(None), strict=False)

    @overload
    def __getitem__(self, at: int) -> Row: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Row]: ...

    def __getitem__(self, at: int | slice) -> Row | Sequence[Row]:
        if isinstance(at, slice):
            return list(self)[at]
        return self.values[at], self._numbers[at], delivered_index(self._items[at]), 0, None


def format_rows(rows: Sequence[Row]) -> str:
    """Return how the title of a failure names rows: by the value of a single one, or a count."""
    return f"item {short_value(rows[0][0])}" if len(rows) == 1 else f"{len(rows)} items"
