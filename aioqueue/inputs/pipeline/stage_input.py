"""What workers are fed with: the rows of the node before, as the source of a `prepare`."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from aioqueue import OutOfRangeError
from aioqueue.inputs.core.base_source import BaseSource
from aioqueue.inputs.core.items import Entry, EpochEnd
from aioqueue.inputs.core.ranks import EpochEntries, EpochStart, aclosed
from aioqueue.inputs.pipeline.checkpoint_state import StateMarks
from aioqueue.inputs.pipeline.node import (
    Node,
    State,
    Taken,
    drive,
    drive_async,
    reraise_unexpected_end,
    told_apart,
)
from aioqueue.inputs.pipeline.progress import KeptItems
from aioqueue.inputs.pipeline.provenance import RowOrigin
from aioqueue.inputs.pipeline.source_node import SourceNode, closing_of
from aioqueue.locks import guarded

if TYPE_CHECKING:
    from aioqueue.inputs.pipeline.node import EpochRange

__all__ = ("StageInput",)

_AT_ONCE: Final = 32
"""Rows that are taken together, if they are there."""

_MOST_MARKS: Final = 4096
"""Marks that are kept where nobody says which are needed no more."""


class StageInput(BaseSource[Any]):
    """The rows of a node as the source of a `prepare`, with the ends of epochs among them.

    Workers are ahead of what was delivered, and so is the node. So marks are made: its states, by
    the number of the item that came next.

    Args:
        node: where the rows come from; from now on only this one takes them.
        seed: of the generators that the function is given.
        blocking: whether taking one may have to wait.
    """

    def __init__(self, node: Node, seed: int, *, blocking: bool) -> None:
        super().__init__("pipeline", seed)
        self.blocking = blocking
        self.span: EpochRange = node.span
        self.is_ordered: bool = node.is_ordered
        self._node = node
        self._epoch = node.span.start
        self._wanted = node.span.start  # nobody wants earlier ones
        self._number = 0  # of the next row in its epoch
        self._kept = KeptItems()
        self._yielded = 0  # entries in all, as whoever takes them counts
        self._lock = threading.RLock()  # guards all below
        self._marks: StateMarks[tuple[int, int]] = StateMarks(node)
        self._origins: dict[tuple[int, int], RowOrigin] = {}  # of the items that workers have
        self._starts: list[int] = [0]  # where numbers do not go on as the count of entries does,
        self._offsets: list[int] = [0]  # and what is added to that from there on
        self._latest = (0, 0)  # the last of both
        self._listed: tuple[int, list[int]] = (0, [])  # and numbers from a place on

    @property
    def _is_in_memory(self) -> bool:
        node = self._node
        if not isinstance(node, SourceNode):
            return False
        return node.source.is_addressed and node.source.source._is_in_memory

    def skip_to(self, epoch: int) -> None:
        """Nobody wants the epochs before this one any more. May be called from any thread."""
        self._wanted = max(self._wanted, epoch)

    def restore(self, state: State | None, epoch: int, number: int, kept: KeptItems) -> None:
        """Go to a state of the node, before anything was taken.

        Args:
            state: ``None`` for the beginning of the epoch.
            epoch: which.
            number: that of the next row there.
            kept: what is to be prepared.
        """
        self._epoch = self._wanted = epoch
        self._number, self._kept = number, kept
        if state is None:
            self._node.skip_to(epoch)
            return
        self._node.restore(state)
        self._marks.restore((epoch, number), state)

    @guarded
    def state_before(self, epoch: int, number: int) -> tuple[int, State | None]:
        """A state of the node at or before an item, and the number of the item that is next there.

        ``None`` is the beginning of the epoch.
        """
        node = self._node
        if isinstance(node, SourceNode) and node.source.is_addressed:
            return number, node.state_at(epoch, number, EpochStart())
        mark = self._marks.before((epoch, number))
        if mark is None or mark.at[0] != epoch:
            return 0, node.first_state(epoch) if isinstance(node, SourceNode) else None
        return mark.at[1], mark.state

    @guarded
    def forget(self, epoch: int, number: int) -> None:
        """Nobody goes back to before this item."""
        self._marks.forget((epoch, number))

    @guarded
    def origin_of(self, epoch: int, number: int, index: int) -> RowOrigin:
        """What an item was made of that has arrived, where somebody wants to know."""
        found = self._origins.pop((epoch, number), None)
        if found is None and isinstance(self._node, SourceNode) and self._node.ledger is not None:
            return self._node.ledger.take(epoch, (number,), (index,))[0]
        return found

    @guarded
    def let_go(self, epoch: int) -> None:
        """No item of the epochs before this one will arrive."""
        if self._origins:
            self._origins = {at: one for at, one in self._origins.items() if at[0] >= epoch}

    def numbers_of(self, places: Sequence[int]) -> Sequence[int]:
        """The numbers within their epoch of entries that were given out at places, ascending."""
        start, offset = self._latest
        if places[0] < start:
            return list(map(self.number_of, places))
        if isinstance(places, range):
            return range(places[0] + offset, places[-1] + offset + 1)
        return [place + offset for place in places]

    def number_of(self, place: int) -> int:
        """The number within its epoch of the entry that was given out at a place."""
        start, offset = self._latest
        if place >= start:
            return place + offset
        first, numbers = self._listed
        at = place - first
        return numbers[at] if 0 <= at < len(numbers) else self._earlier_number(place)

    def entries(self) -> Iterator[Entry[Any]]:
        node = self._node
        if isinstance(node, SourceNode) and node.source.is_addressed:
            return self._straight(node.source)
        return self._of_source(node) if isinstance(node, SourceNode) else self._of_node()

    def _of_node(self) -> Iterator[Entry[Any]]:
        node = self._node
        try:
            while not self._is_over():
                self._note()
                yield from self._entries_of(drive(node.take(1)))
        finally:
            node.close()

    async def _aentries(self) -> AsyncGenerator[Entry[Any], None]:
        node = self._node
        if isinstance(node, SourceNode):
            source = node.source
            if source.is_addressed and not self.blocking:
                for entry in self._straight(source):
                    yield entry
                return
            if source.source._is_async:
                async with aclosing(self._straight_async(node)) as entries:
                    async for entry in entries:
                        yield entry
                return
        try:
            while not self._is_over():
                self._note()
                for entry in self._entries_of(await drive_async(node.take(1))):
                    yield entry
        finally:
            node.close()

    def _straight(self, source: EpochEntries) -> Iterator[Entry[Any]]:
        """The entries of a source with nothing in between: without making rows of them."""
        while not self._is_over():
            epoch, kept = self._epoch, sorted(self._kept.numbers)
            first = self._number = max(self._number, self._kept.upto)
            if kept:
                self._list(kept)
                for entry in source.picked(epoch, kept):
                    yield _within(epoch, entry)
                    self._yielded += 1
            self._go_on_at(first)
            if not self._kept.has_end:
                given = 0  # counted here: the way of most items is as short as it can be
                with closing_of(source.entries(epoch, first)) as entries:
                    for given, entry in enumerate(entries, 1):  # noqa: B007  # the last counts
                        yield entry if entry[1] == epoch else _within(epoch, entry)
                        if self._wanted > epoch:
                            break
                self._number += given
                self._yielded += given
            if self._wanted <= epoch:
                yield Entry(self._end(epoch), epoch, 0)

    def _of_source(self, node: SourceNode) -> Iterator[Entry[Any]]:
        """The entries of a source that can be gone through only from its beginning: one by one,
        for nobody knows how long the next one takes."""
        try:
            while not self._is_over():
                epoch, number = self._epoch, node.start.number
                with closing_of(node.source.placed(epoch, node.start)) as entries:
                    for entry, start in entries:
                        if self._wanted > epoch:
                            break
                        number += 1
                        if self._comes(node, number, start):
                            yield _within(epoch, entry)
                            self._yielded += 1
                    else:
                        yield self._end_of(node)
        finally:
            node.close()

    async def _straight_async(self, node: SourceNode) -> AsyncGenerator[Entry[Any], None]:
        """The same for tasks, of what is gone through by ``async for``."""
        while not self._is_over():
            epoch, at = self._epoch, node.start
            entries = node.source.of_task(epoch, at)
            try:
                number = at.number
                async for entry, start in entries:
                    if self._wanted > epoch:
                        break
                    number += 1
                    if self._comes(node, number, start):
                        yield _within(epoch, entry)
                        self._yielded += 1
                else:
                    yield self._end_of(node)
            except OutOfRangeError as error:
                raise reraise_unexpected_end(error)  # noqa: B904  # it says its cause
            finally:
                await aclosed(entries)

    def _comes(self, node: SourceNode, number: int, start: EpochStart) -> bool:
        """The next item has come from a source; tell whether it is wanted.

        Args:
            node: where it stands.
            number: how many have come with this one.
            start: where to begin again behind it.
        """
        if number <= self._number:  # which was passed before
            return False
        if self._marks.is_due:
            self._note()
        node.go_on_at(number, start)
        self._number = number
        self._marks.count(1)
        if not self._kept.keeps(number - 1):
            return False
        self._go_on_at(number - 1)
        return True

    def _end_of(self, node: SourceNode) -> Entry[Any]:
        """All items of an epoch have come."""
        epoch = self._epoch
        node.end()
        return Entry(self._end(epoch), epoch, 0)

    def _end(self, epoch: int) -> EpochEnd:
        end = EpochEnd(epoch, self._number)
        self._yielded += 1
        self._begin(epoch + 1)
        return end

    def _begin(self, epoch: int) -> None:
        self._epoch, self._number, self._kept = epoch, 0, KeptItems()
        self._go_on_at(0)

    def _is_over(self) -> bool:
        if self._wanted > self._epoch:
            self._node.skip_to(self._wanted)
            self._begin(self._wanted)
        return self.span.stop is not None and self._epoch >= self.span.stop

    def _entries_of(self, taken: Taken) -> Iterable[Entry[Any]]:
        epoch = self._epoch
        if isinstance(taken, EpochEnd):
            end = self._end(epoch)
            self._mark()
            return (Entry(end, epoch, 0),)
        # What is there is taken together; nobody waits for one who could be given another. What
        # does not come in the same order again must not be taken again: each has its mark.
        if self.is_ordered:
            taken = [*taken, *self._node.take_ready(_AT_ONCE - 1)]
        self._marks.count(len(taken))
        entries = []
        for value, _, index, sub, origin in taken:
            if self._kept.keeps(self._number):
                self._go_on_at(self._number)
                if origin is not None:
                    self._remember(origin)
                entries.append(Entry(value, epoch, told_apart(index, sub)))
                self._yielded += 1
            self._number += 1
        if not self.is_ordered:  # whoever asks may have the row before the next one is asked for
            self._mark()
        return entries

    @guarded
    def _remember(self, origin: RowOrigin) -> None:
        self._origins[self._epoch, self._number] = origin

    @guarded
    def _note(self) -> None:
        if self.is_ordered or not self._marks:
            self._marks.note((self._epoch, self._number))
        if len(self._marks) > _MOST_MARKS:
            self._marks.thin_out()

    @guarded
    def _mark(self) -> None:
        self._marks.make((self._epoch, self._number))

    def _go_on_at(self, number: int) -> None:
        """The next entry has this number."""
        offset = number - self._yielded
        if offset != self._offsets[-1]:
            self._add_offset(offset)

    @guarded
    def _add_offset(self, offset: int) -> None:
        self._offsets.append(offset)
        self._starts.append(self._yielded)
        self._latest = (self._yielded, offset)

    @guarded
    def _list(self, numbers: list[int]) -> None:
        """The next entries have these numbers."""
        self._listed = (self._yielded, numbers)
        self._latest = (self._yielded + len(numbers), 0)

    @guarded
    def _earlier_number(self, place: int) -> int:
        return place + self._offsets[bisect_right(self._starts, place) - 1]


def _within(epoch: int, entry: Entry[Any]) -> Entry[Any]:
    """An entry as one of an epoch of the pipeline, whichever its source takes it for."""
    value, own, index = entry
    return entry if own == epoch else Entry(value, epoch, index)
