"""Which items of an epoch were delivered, and what has become of those that have arrived."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from aioqueue.inputs.pipeline.node import END, ROW_ORIGIN, Node, Row, WantedRows
from aioqueue.inputs.pipeline.provenance import items_of
from aioqueue.inputs.prepare.prepared_items import Delivered, ItemCounts

if TYPE_CHECKING:
    from aioqueue.inputs.core.journal import JournalWriter

__all__ = (
    "ArrivedItems",
    "DeliveredRows",
    "FinishedItems",
    "KeptItems",
    "PartialItem",
    "ProgressCounter",
)


class ArrivedItems(NamedTuple):
    """Items that have arrived: all of earlier epochs, and of one those below a number, and some."""

    epoch: int = 0
    low: int = 0
    above: frozenset[int] = frozenset()

    def has(self, epoch: int, number: int) -> bool:
        """Whether an item is one of them."""
        if epoch != self.epoch:
            return epoch < self.epoch
        return number < self.low or number in self.above

    def joined(self, other: ArrivedItems) -> ArrivedItems:
        """Both together."""
        if self.epoch != other.epoch:
            return max(self, other, key=lambda one: one.epoch)
        low = max(self.low, other.low)
        above = {number for number in self.above | other.above if number >= low}
        while low in above:
            above.remove(low)
            low += 1
        return ArrivedItems(self.epoch, low, frozenset(above))


class ProgressCounter:
    """Counts what has become of the items that have arrived, each once over all runs."""

    def __init__(self) -> None:
        self._counts = [0] * len(ItemCounts._fields)
        self.before = ArrivedItems()
        """What earlier runs have counted."""

    @property
    def counts(self) -> ItemCounts:
        """The counts so far."""
        return ItemCounts(*self._counts)

    def go_on(self, counts: ItemCounts, before: ArrivedItems) -> None:
        """Begin with the counts of earlier runs."""
        self._counts[:] = counts
        self.before = before

    def add_plain(self, items: int, examples: int) -> None:
        """Items have arrived, of which there are examples and nothing else to be told."""
        self._counts[0] += items
        self._counts[1] += examples

    def add(self, item: Delivered) -> None:
        """An item has arrived."""
        _, _, _, examples, trouble = item
        retried, is_skipped = trouble or (0, False)
        self._counts[4] += retried
        if is_skipped:
            self._counts[3] += 1
        elif examples:
            self.add_plain(1, len(examples))
        else:
            self._counts[2] += 1


class KeptItems(NamedTuple):
    """Of the items with a number below ``upto`` only these are prepared again."""

    numbers: frozenset[int] = frozenset()
    upto: int = 0

    @classmethod
    def of(cls, wanted: WantedRows, number: int) -> KeptItems:
        """Those that are wanted, of the items from a number on."""
        return cls(
            frozenset(one for one in wanted.numbers if one >= number), max(number, wanted.upto)
        )

    def keeps(self, number: int) -> bool:
        """Whether an item is one of them, or comes behind."""
        return number >= self.upto or number in self.numbers

    @property
    def has_end(self) -> bool:
        """Whether nothing comes behind them."""
        return self.upto >= END

    def left_out(self, items: int) -> int:
        """How many of so many items are not prepared."""
        return min(self.upto, items) - len(self.numbers)


class PartialItem(NamedTuple):
    """Of the examples of an item those from a place on are wanted, and these before it."""

    upto: int
    subs: frozenset[int] = frozenset()

    def keeps(self, sub: int) -> bool:
        """Whether an example is wanted."""
        return sub >= self.upto or sub in self.subs


class FinishedItems:
    """The items of an epoch all of whose examples were given out.

    Args:
        kept: those that an earlier run has left.
    """

    def __init__(self, kept: KeptItems = KeptItems()) -> None:  # noqa: B008  # it never changes
        self._low = min(kept.numbers, default=kept.upto)  # all below are done
        self._above = set(range(self._low, kept.upto)) - kept.numbers
        self._left: dict[int, int] = {}  # examples still to be given out, by item
        self._cut: set[int] = set()  # of these, those of which not all were to be given out

    def arrived(self, number: int, examples: int, *, is_cut: bool = False) -> None:
        """An item has come, of which so many examples are to be given out."""
        if not examples:
            self._finish(number)
            return
        self._left[number] = examples
        if is_cut:
            self._cut.add(number)

    def give(self, rows: Iterable[Row]) -> None:
        """Examples are given out."""
        left = self._left
        for _, number, *_ in rows:
            left[number] -= 1
            if left[number]:
                self._cut.add(number)
            else:
                del left[number]
                self._cut.discard(number)
                self._finish(number)

    def cut(self) -> Iterator[int]:
        """The items that are here and of which not all examples are still to be given out."""
        return iter(self._cut)

    def missing(self, again: Iterable[int]) -> KeptItems:
        """What is not done, or is to be done again."""
        upto = max(self._above, default=self._low - 1) + 1
        missing = {one for one in range(self._low, upto) if one not in self._above}
        return KeptItems(frozenset(missing | {one for one in again if one < upto}), upto)

    def arrived_in(self, epoch: int) -> ArrivedItems:
        """All that have come, of the epoch that this is."""
        return ArrivedItems(epoch, self._low).joined(
            ArrivedItems(epoch, self._low, frozenset(self._above | self._left.keys()))
        )

    def _finish(self, number: int) -> None:
        above = self._above
        above.add(number)
        while self._low in above:
            above.remove(self._low)
            self._low += 1


class DeliveredRows:
    """Counts the rows that are handed to the user.

    Args:
        count: how many there were before.
        journal: what notes the items of each.
    """

    def __init__(self, count: int, journal: JournalWriter | None) -> None:
        self.count = count
        self._journal = journal

    def add(self, node: Node, row: Row) -> None:
        """A row is handed out."""
        if self._journal is not None:
            epoch, given = node.given
            self._journal.add(self.count, epoch, given - 1, items_of(row[ROW_ORIGIN]))
        self.count += 1
