"""`StageInput`: the workers of a stage read the nodes before it."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Final

from aioqueue import OutOfRangeError
from aioqueue.items.index import derive_index
from aioqueue.items.item import Entry, EpochEnd
from aioqueue.items.positions import Place
from aioqueue.items.provenance import RowOrigin
from aioqueue.items.quota import ItemQuota
from aioqueue.pipeline.batches.batch_shape import BatchShape
from aioqueue.pipeline.nodes.flow import drive, drive_async, reraise_unexpected_end
from aioqueue.pipeline.nodes.node import Node, Taken
from aioqueue.pipeline.nodes.progress import KeptItems, StateMarks
from aioqueue.pipeline.nodes.rows import EpochRange, State
from aioqueue.pipeline.source_node import SourceNode, closing_of
from aioqueue.sources.base import BaseSource, EntryScan, Scan
from aioqueue.sources.shards import EpochEntries, EpochStart, aclosed
from aioqueue.system.locks import synchronized

_BURST: Final = 32
"""The most rows to take together, if they are ready."""

_MOST_MARKS: Final = 4096
"""The most marks to keep. If nothing says which ones are obsolete, they are thinned out."""


class StageInput(BaseSource[Any]):
    """The rows of a node as the source of a `prepare`. The end of each epoch is an entry, too.

    Args:
        node: the node before. From now on only this object takes its rows.
        seed: the seed of the generators that the function receives.
        blocking: whether taking a row may have to wait.
    """

    def __init__(self, node: Node, seed: int, *, blocking: bool) -> None:
        super().__init__("pipeline", seed)
        self.blocking = blocking
        self.span: EpochRange = node.span
        self.is_ordered: bool = node.is_ordered
        self._node = node
        self._epoch = node.span.start
        self._wanted = node.span.start  # the first epoch that is still wanted
        self._number = 0  # the number of the next row in its epoch
        self._kept = KeptItems()
        self._yielded = 0  # the place of the next entry
        self._lock = threading.RLock()  # guards everything below
        self._marks: StateMarks[tuple[int, int]] = StateMarks(node)
        self._quota: ItemQuota | None = None  # only where the later stages set a limit
        self._origins: dict[tuple[int, int], RowOrigin] = {}  # of the items that workers have
        # From place to number: from `_starts[i]` on, the number is the place plus `_offsets[i]`.
        self._starts: list[int] = [0]
        self._offsets: list[int] = [0]
        self._latest = (0, 0)  # the last of both: almost every lookup needs only this
        # The exception: a place, and the numbers of the entries from there on, one by one.
        self._listed: tuple[int, list[int]] = (0, [])

    @property
    def _batch_shape(self) -> BatchShape | None:
        return self._node.batch_shape

    @property
    def _is_in_memory(self) -> bool:
        return isinstance(self._node, SourceNode) and self._node.never_waits

    @property
    def _never_waits(self) -> bool:
        # Only then `_aentries` takes the same way as `entries`.
        node = self._node
        return isinstance(node, SourceNode) and node.source.is_addressed and not self.blocking

    def skip_to(self, epoch: int) -> None:
        """Drop the rest of the epochs before this one. Any thread may call it."""
        self._wanted = max(self._wanted, epoch)
        if self._quota is not None:
            self._quota.skip_to(epoch)

    def limit(self, rows: int) -> None:
        """Say that the later stages want at most this many rows of each epoch, for all that is
        known before it begins: of one example for each item. Called before anything is taken."""
        self._quota = ItemQuota(rows)
        self._node.limit(rows)

    def allow(self, epoch: int, items: int) -> None:
        """Let this many items of an epoch be given to the workers in all, where there is a limit.
        Any thread may call it."""
        if self._quota is not None:
            self._quota.allow(epoch, items)

    def restore(self, state: State | None, epoch: int, number: int, kept: KeptItems) -> None:
        """Restore a state of the node, before any row is taken.

        Args:
            state: the state; ``None`` for the beginning of the epoch.
            epoch: the epoch.
            number: the number of the next row at that state.
            kept: which items to prepare.
        """
        self._epoch = self._wanted = epoch
        self._number, self._kept = number, kept
        if self._quota is not None:
            self._quota.begin_at(epoch, 0)  # until the later stages say what they still want
        if state is None:
            self._node.skip_to(epoch)
            return
        self._node.restore(state)
        self._marks.restore((epoch, number), state)

    @synchronized
    def state_before(self, epoch: int, number: int) -> tuple[int, State | None]:
        """A state of the node at or before an item, and the number of the next item there.

        A state of ``None`` stands for the beginning of the epoch.
        """
        node = self._node
        if isinstance(node, SourceNode) and node.source.is_addressed:  # needs no marks
            return number, node.state_at(epoch, number, EpochStart())
        mark = self._marks.before((epoch, number))
        # Without a mark in this epoch, reading begins at the beginning of the epoch: an earlier
        # epoch would have to be read to its end first.
        if mark is None or mark.at[0] != epoch:
            return 0, node.first_state(epoch) if isinstance(node, SourceNode) else None
        return mark.at[1], mark.state

    @synchronized
    def forget(self, epoch: int, number: int) -> None:
        """Forget marks: no state will need items before this one."""
        self._marks.forget((epoch, number))

    @synchronized
    def origin_of(self, epoch: int, number: int, index: int) -> RowOrigin:
        """The provenance of an item that has arrived; ``None`` if it is not recorded."""
        found = self._origins.pop((epoch, number), None)
        if found is None and isinstance(self._node, SourceNode) and self._node.ledger is not None:
            return self._node.ledger.take(epoch, (number,), (index,))[0]
        return found

    @synchronized
    def forget_epochs_before(self, epoch: int) -> None:
        """Forget the provenance of items before this epoch, which will not arrive any more."""
        if self._origins:
            self._origins = {at: one for at, one in self._origins.items() if at[0] >= epoch}

    def numbers_of(self, places: Sequence[int]) -> Sequence[int]:
        """The numbers of the entries at some places, which ascend."""
        start, offset = self._latest
        if places[0] < start:
            return list(map(self.number_of, places))
        if isinstance(places, range):
            return range(places[0] + offset, places[-1] + offset + 1)
        return [place + offset for place in places]

    def number_of(self, place: int) -> int:
        # Without the lock, though a worker may be reading on in another thread. Both values are of
        # one tuple, and it was replaced before the first entry that it concerns was given to a
        # worker. So a caller that asks for a place finds the tuple of that place or of a later one.
        start, offset = self._latest
        if place >= start:
            return place + offset
        first, numbers = self._listed
        at = place - first
        return numbers[at] if 0 <= at < len(numbers) else self._earlier_number(place)

    def _scan(self, epoch: int | None, after: Place) -> Scan[Any]:
        return EntryScan(self.entries)

    def entries(self) -> Iterator[Entry[Any]]:
        node = self._node
        if isinstance(node, SourceNode) and node.source.is_addressed:
            return self._addressed_entries(node.source)
        return (
            self._entries_of_source(node)
            if isinstance(node, SourceNode)
            else self._entries_of_node()
        )

    def _entries_of_node(self) -> Iterator[Entry[Any]]:
        node = self._node
        try:
            while not self._is_over():
                if self._marks.is_due:
                    self._note_mark()  # before the row is taken, for a resume that needs this row
                self._announce_quota()
                entries = self._entries_of(drive(node.take(1)))
                yield from self._counted(entries)
        finally:
            node.close()

    async def _aentries(self) -> AsyncGenerator[Entry[Any], None]:
        node = self._node
        if isinstance(node, SourceNode):
            source = node.source
            if source.is_addressed and not self.blocking:
                for entry in self._addressed_entries(source):
                    yield entry
                return
            if source.source._is_async or source.source._reads_queue:
                async with aclosing(self._entries_of_async_source(node)) as entries:
                    async for entry in entries:
                        yield entry
                return
        try:
            while not self._is_over():
                if self._marks.is_due:
                    self._note_mark()
                self._announce_quota()
                found = self._entries_of(await drive_async(node.take(1)))
                for entry in self._counted(found):
                    yield entry
        finally:
            node.close()

    def _addressed_entries(self, source: EpochEntries) -> Iterator[Entry[Any]]:
        """The entries of an addressed source, without making rows of them: the fastest way."""
        while not self._is_over():
            epoch, kept = self._epoch, sorted(self._kept.numbers)
            first = self._number = max(self._number, self._kept.upto)
            if kept:
                self._number_listed(kept)
                for entry in self._counted(source.picked(epoch, kept)):
                    yield _in_epoch(epoch, entry)
                    self._yielded += 1
            self._number_next(first)
            if not self._kept.has_end:  # all items from `first` on are prepared
                # Most items take this way, so they are counted in a local, and the fields are set
                # behind the loop. Nobody needs these in between: one offset holds for all items of
                # the run, and a state needs no marks, because the source is addressed.
                given = 0
                with closing_of(source.entries(epoch, first)) as entries:
                    counted = enumerate(self._counted(entries), 1)
                    for given, entry in counted:  # noqa: B007  # the last counts
                        yield entry if entry[1] == epoch else _in_epoch(epoch, entry)
                        if self._wanted > epoch:  # the user has gone on to a later epoch
                            break
                self._number += given
                self._yielded += given
            # The end of an epoch that was left is no entry: nobody waits for it.
            if self._wanted <= epoch:
                yield Entry(self._end_epoch(epoch), epoch, 0)

    def _counted(self, entries: Iterable[Entry[Any]]) -> Iterable[Entry[Any]]:
        """The same entries; where there is a limit, each is counted when it is given."""
        return entries if self._quota is None else _counted(entries, self._quota)

    def _entries_of_source(self, node: SourceNode) -> Iterator[Entry[Any]]:
        """The entries of a source without random access.

        They are read one by one, because the next one may take any time.
        """
        try:
            while not self._is_over():
                epoch, number = self._epoch, node.start.number
                with closing_of(node.source.placed(epoch, node.start)) as entries:
                    # Each time before the next one is read, which would be lost.
                    while self._wanted <= epoch:
                        one = next(entries, None)
                        if one is None:
                            yield self._end_of_source(node)
                            break
                        entry, start = one
                        number += 1
                        if self._wanted <= epoch and self._is_wanted(node, number, start, entry):
                            yield _in_epoch(epoch, entry)
                            self._yielded += 1
        finally:
            node.close()

    async def _entries_of_async_source(self, node: SourceNode) -> AsyncGenerator[Entry[Any], None]:
        """The entries of a source that only ``async for`` can read."""
        while not self._is_over():
            epoch, at = self._epoch, node.start
            entries = node.source.of_task(epoch, at)
            try:
                number = at.number
                while self._wanted <= epoch:
                    one = await anext(entries, None)
                    if one is None:
                        yield self._end_of_source(node)
                        break
                    entry, start = one
                    number += 1
                    if self._wanted <= epoch and self._is_wanted(node, number, start, entry):
                        yield _in_epoch(epoch, entry)
                        self._yielded += 1
            except OutOfRangeError as error:
                raise reraise_unexpected_end(error)  # noqa: B904  # it says its cause
            finally:
                await aclosed(entries)

    def _is_wanted(
        self, node: SourceNode, number: int, start: EpochStart, entry: Entry[Any]
    ) -> bool:
        """Note that the next item was read. Returns whether to prepare it.

        Args:
            node: the node of the source.
            number: how many items of the epoch were read, including this one.
            start: where reading can begin behind it.
            entry: the item.
        """
        if number <= self._number:  # it was read before the restart, and only leads to the next
            node.source.passed_over(entry, self._epoch)
            return False
        if self._marks.is_due:
            self._note_mark()
        node.note_read(number, start)
        self._number = number
        self._marks.count(1)
        if not self._kept.keeps(number - 1):
            node.source.passed_over(entry, self._epoch)
            return False
        if self._quota is not None:
            self._quota.count()
        self._number_next(number - 1)
        return True

    def _end_of_source(self, node: SourceNode) -> Entry[Any]:
        """Note that all items of an epoch were read. Returns the entry for its end."""
        epoch = self._epoch
        node.end()
        return Entry(self._end_epoch(epoch), epoch, 0)

    def _end_epoch(self, epoch: int) -> EpochEnd:
        end = EpochEnd(epoch, self._number)
        self._yielded += 1
        self._begin_epoch(epoch + 1)
        return end

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch, self._number, self._kept = epoch, 0, KeptItems()
        if self._quota is not None:
            self._quota.begin(epoch)
        self._number_next(0)

    def _announce_quota(self) -> None:
        """Announce to the node how many of its rows the workers may still be given."""
        if self._quota is not None:
            self._node.expect(self._quota.remaining)

    def _is_over(self) -> bool:
        if self._wanted > self._epoch:
            self._node.skip_to(self._wanted)
            self._begin_epoch(self._wanted)
        return self.span.stop is not None and self._epoch >= self.span.stop

    def _entries_of(self, taken: Taken) -> Iterable[Entry[Any]]:
        epoch = self._epoch
        if isinstance(taken, EpochEnd):
            end = self._end_epoch(epoch)
            self._make_mark()
            return (Entry(end, epoch, 0),)
        # Take what is ready together, without waiting for more. Without order, rows are taken one
        # by one, and each has a mark: rows behind a mark would not come again in the same order.
        if self.is_ordered:
            taken = [*taken, *self._node.take_ready(_BURST - 1)]
        self._marks.count(len(taken))
        entries = []
        for value, _, index, sub, origin in taken:
            if self._kept.keeps(self._number):
                self._number_next(self._number)
                if origin is not None:
                    self._remember(origin)
                entries.append(Entry(value, epoch, derive_index(index, sub)))
                self._yielded += 1
            self._number += 1
        # Now, because a state may be taken before the next row is. With order, a resume would make
        # this row once more, which matters if it is a batch.
        if not self.is_ordered:
            self._make_mark()
        elif self._node.element.is_batch and self._marks.is_due:
            self._note_mark()
        return entries

    @synchronized
    def _remember(self, origin: RowOrigin) -> None:
        self._origins[self._epoch, self._number] = origin

    @synchronized
    def _note_mark(self) -> None:
        if self.is_ordered or not self._marks:
            self._marks.note((self._epoch, self._number))
        if len(self._marks) > _MOST_MARKS:
            self._marks.thin_out()

    @synchronized
    def _make_mark(self) -> None:
        self._marks.make((self._epoch, self._number))

    def _number_next(self, number: int) -> None:
        offset = number - self._yielded
        if offset != self._offsets[-1]:
            self._add_offset(offset)

    @synchronized
    def _add_offset(self, offset: int) -> None:
        self._offsets.append(offset)
        self._starts.append(self._yielded)
        self._latest = (self._yielded, offset)

    @synchronized
    def _number_listed(self, numbers: list[int]) -> None:
        self._listed = (self._yielded, numbers)
        self._latest = (self._yielded + len(numbers), 0)

    @synchronized
    def _earlier_number(self, place: int) -> int:
        return place + self._offsets[bisect_right(self._starts, place) - 1]


def _counted(entries: Iterable[Entry[Any]], quota: ItemQuota) -> Iterator[Entry[Any]]:
    for entry in entries:
        if type(entry.value) is not EpochEnd:
            quota.count()
        yield entry


def _in_epoch(epoch: int, entry: Entry[Any]) -> Entry[Any]:
    """Return an entry with the epoch of the pipeline, in place of the epoch of its source."""
    value, own, index = entry
    return entry if own == epoch else Entry(value, epoch, index)
