"""Data-parallel ranks: ledgers of delivered items, and the padding that keeps ranks in step.

A rank has a `RankLedger` for each of its sources. The ledger records which items the rank has
taken, and which of these are done. A position contains the items that are not done. So
`merge_positions` needs only the positions of all ranks in order to know what is left of an epoch,
whatever the stages are and whatever they hold, and their number can change.

**Rank padding.** A rank that skips items repeats others, so that all ranks stay in step.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Final, NamedTuple

from aioqueue.items.item import EpochEnd, Origin
from aioqueue.items.provenance import DeliveredParts, ItemLabel, ItemTicket, finish
from aioqueue.pipeline.nodes.deferred import DeferredState
from aioqueue.pipeline.nodes.node import Taken
from aioqueue.pipeline.nodes.progress import packed, unpacked
from aioqueue.pipeline.nodes.rows import ROW_ORIGIN, State
from aioqueue.sources.base import BaseSource
from aioqueue.sources.file_parts import (
    FileSegment,
    partly_delivered,
    segments_between,
    segments_in,
)
from aioqueue.sources.shards import EpochEntries, EpochStart, Rank, RemainingItems, entries_of
from aioqueue.system.locks import synchronized

MOST_APART: Final = 16
"""How many epochs one rank may be ahead of another."""


_EVERY: Final = 64
"""The least number of items between two remembered places of a source."""


_MOST_STARTS: Final = 4096


class _Loss:
    """Whether some delivered items are unknown, and why. The ledgers of a run share it, and not the
    run's method: with that, each ledger would refer back to all of them."""

    def __init__(self) -> None:
        self.why: str | None = None

    def note(self, why: str) -> None:
        # For good: items of such batches never finish, so that no later state would be right.
        self.why = why


class _Shared(NamedTuple):
    """What the epochs of a ledger share."""

    lock: threading.RLock
    lose: Callable[[str], None]
    source: int
    """The number of the source."""


class _Epoch:
    """Records which items of one epoch were taken, and which of these are done.

    It is the `ProvenanceListener` of these items.

    Args:
        shared: what the epochs of the ledger share; its lock guards everything here.
        epoch: the number of the epoch.
        parts_before: returns the parts of an item that an earlier number of ranks has delivered.
    """

    def __init__(
        self, shared: _Shared, epoch: int, parts_before: Callable[[int], DeliveredParts]
    ) -> None:
        self.lock, self.lose, self.source = shared
        self.epoch = epoch
        self._parts_before = parts_before
        self._left: set[int] = set()  # items that were taken, and are not done
        self._upto = 0  # the first item that was not taken
        self._split: dict[
            int, ItemTicket
        ] = {}  # those of `_left` that have become several examples
        self._done: dict[int, DeliveredParts] = {}  # their parts that were done before a restart
        self._starts: list[EpochStart] = []  # where a source without random access can begin
        self.count: int | None = None
        """How many items the epoch has, once that is known."""
        self.files: list[FileSegment] | None = None
        """In a copy: where its files begin, if ranks divide these."""
        self.file_count = 0
        """In a copy: how many files the rank has."""

    @property
    def taken(self) -> int:
        """How many items the epoch has, or how many were taken so far."""
        return self._upto if self.count is None else self.count

    def take(self, number: int, index: int) -> ItemTicket:
        """Note that an item was taken. Returns its ticket."""
        if number >= self._upto:
            # Items may arrive out of order. Those in between are in flight, so they are left, too.
            self._left.update(range(self._upto, number + 1))
            self._upto = number + 1
        return ItemTicket(
            self, number, index, None, self._parts_before(number), self._done.get(number, {})
        )

    def finished(self, number: int) -> None:
        # `discard`, not `remove`: a ticket may finish more than once.
        self._left.discard(number)
        self._split.pop(number, None)
        self._done.pop(number, None)

    def was_split(self, number: int, ticket: ItemTicket) -> None:
        # A copied state asks the ticket which parts are done. An item that is done already needs
        # none, and would keep its ticket for the rest of the epoch.
        if number in self._left:
            self._split[number] = ticket

    def remember(self, start: EpochStart) -> None:
        """Remember that a run can begin to read here.

        It forgets places before all items that are left, and thins the list out if it gets long.
        """
        starts = self._starts
        if not starts or start.number >= starts[-1].number + _EVERY:
            starts.append(start)
            # The last place before the first item that is left has to stay: reading begins there.
            if not len(starts) % _EVERY:  # not each time, because finding the first item is slow
                first = min(self._left, default=self._upto)
                del starts[: max(0, _count_before(starts, first) - 1)]
            # One item that is never finished keeps all places behind it. Every second one may go:
            # a run that begins earlier only reads more.
            if len(starts) > _MOST_STARTS:
                del starts[1::2]

    def copied(self) -> _Epoch:
        """A copy as of this moment. Its `state` can be made later, without the lock."""
        copied = copy(self)
        # What changes in place is copied. The dicts of `_done` are replaced by others when they
        # change (`ItemTicket.part_finished`), so that a copy may refer to them.
        copied._left = self._left.copy()
        copied._starts = self._starts.copy()
        cuts = {number: ticket.delivered_parts() for number, ticket in self._split.items()}
        copied._done = {**self._done, **cuts}
        return copied

    def state(self) -> State:
        """The items that are left, in plain JSON types. It is slow, so call it on a copy."""
        left = sorted(self._left)
        state: State = {"missing": packed(left), "upto": self._upto}
        # `count` says that this rank has taken all of its items. `merge_positions` then looks for
        # none behind `upto`.
        if self.count is not None and self._upto >= self.count:
            state["count"] = self.count
        # The last remembered place at or before the first item that is left.
        before = _count_before(self._starts, left[0] if left else self._upto)
        if before:
            start = self._starts[before - 1]
            state |= {"start": start.number, "start_place": start.place}
        if self.files is not None:
            first = left[0] if left else self._upto
            state["files"] = [list(one) for one in segments_between(self.files, first, self._upto)]
            state["file_count"] = self.file_count
        cuts = {number: cut for number, cut in self._done.items() if cut}
        return {**state, "cut": cut_state(cuts)} if cuts else state

    def restore(self, state: State) -> None:
        self._left = set(unpacked(state["missing"]))
        self._upto = state["upto"]
        self._done = cut_of(state.get("cut", ()))
        self.count = state.get("count")
        if "start" in state:
            self._starts = [start_of(state)]


class RankLedger:
    """Records which items of one source a rank has taken, and which are done. Thread-safe.

    Args:
        shared: what its epochs share.
        entries: the items of the rank.
        cuts: the parts of items that an earlier number of ranks has delivered, by epoch and by
            place in the common order of all ranks.
    """

    def __init__(
        self,
        shared: _Shared,
        entries: EpochEntries,
        cuts: Mapping[int, Mapping[int, DeliveredParts]],
    ) -> None:
        self._lock = shared.lock
        self._shared = shared
        self._entries = entries
        entries.keep_segments()
        self._cuts = cuts
        self._epochs: dict[int, _Epoch] = {}
        # How many items ended epochs had. Another rank may still be in one of them when the
        # positions are merged.
        self._ended: dict[int, int] = {}

    @synchronized
    def take(self, epoch: int, numbers: Sequence[int], indices: Sequence[int]) -> list[ItemTicket]:
        """Note that items were taken. Returns their tickets."""
        return list(map(self._epoch(epoch).take, numbers, indices))

    @synchronized
    def remember(self, epoch: int, start: EpochStart) -> None:
        """Remember that a run can begin to read an epoch here."""
        self._epoch(epoch).remember(start)

    @synchronized
    def ended(self, epoch: int, count: int) -> None:
        """Note how many items an epoch has."""
        self._epoch(epoch).count = count

    def copied(self, epoch: int) -> tuple[_Epoch, dict[int, int]]:
        """A copy of an epoch, and how many items the epochs before it had, as far as remembered.

        The caller holds the lock.
        """
        copied, entries = self._epoch(epoch).copied(), self._entries
        copied.files = entries.segments(epoch)
        if copied.files is not None:
            copied.file_count = entries.counted(epoch, copied.taken)
        return copied, self._ended.copy()

    def restore(self, epoch: int, state: State) -> None:
        self._epoch(epoch).restore(state)
        if "files" in state:
            self._entries.restore_segments(epoch, segments_in(state))
        self._ended = dict(state.get("ended", ()))

    def forget(self, epoch: int) -> None:
        """Forget the epochs before this one. The caller holds the lock."""
        # A slower rank may save its position in an epoch that this one has ended. The merge then
        # needs to know how many items this rank had there: all of them are done.
        for number in [one for one in self._epochs if one < epoch]:
            taken = self._epochs.pop(number).taken
            self._ended[number] = self._entries.counted(number, taken)
        self._ended = {at: one for at, one in self._ended.items() if at >= epoch - MOST_APART}
        self._entries.forget(epoch)

    def _epoch(self, epoch: int) -> _Epoch:
        found = self._epochs.get(epoch)
        if found is None:
            found = self._epochs[epoch] = _Epoch(self._shared, epoch, self._parts_before_of(epoch))
            found.count = self._entries.length(epoch)
        return found

    def _parts_before_of(self, epoch: int) -> Callable[[int], DeliveredParts]:
        # `cuts` go by places in the common order of all ranks, and tickets by the numbers of this
        # rank. A number without a place is a copy that pads the last round: nothing of it was
        # delivered before.
        cuts, place_of = self._cuts.get(epoch), self._entries.place_of
        if not cuts:
            return lambda _: {}

        def parts_before(number: int) -> DeliveredParts:
            place = place_of(epoch, number)
            return {} if place is None else cuts.get(place, {})

        return parts_before


class ItemNames:
    """Labels the items of one source for a journal. It does not record which were delivered.

    It has the methods of a `RankLedger` that a source node calls.

    Args:
        source: the number of the source.
    """

    def __init__(self, source: int) -> None:
        self._source = source

    def take(self, epoch: int, numbers: Sequence[int], indices: Sequence[int]) -> list[ItemLabel]:
        """Return the labels of items that were taken."""
        return [ItemLabel(Origin(self._source, epoch, index)) for index in indices]

    def remember(self, epoch: int, start: EpochStart) -> None:
        """Do nothing: a journal does not need places to begin at."""

    def ended(self, epoch: int, count: int) -> None:
        """Do nothing: a journal does not need the number of items."""


class RunItemNames:
    """The `ItemNames` of all sources of a run; it takes the place of `RunLedgers`."""

    def __init__(self) -> None:
        self._count = 0

    def open(self, source: BaseSource[Any], rank: Rank) -> tuple[EpochEntries, ItemNames]:
        """The items of the next source, and what labels them."""
        self._count += 1
        return entries_of(source, rank), ItemNames(self._count - 1)


class RunLedgers:
    """The ledgers of all sources of a run.

    Args:
        rest: what an earlier number of ranks has left, from `merge_positions`; ``None`` without
            such a run.
    """

    def __init__(self, rest: State | None) -> None:
        self._lock = threading.RLock()
        self._ledgers: list[RankLedger] = []
        self._epochs: dict[int, State] = {
            int(epoch): one for epoch, one in (rest or {}).get("epochs", {}).items()
        }
        self.total: int = (rest or {}).get("total", 0)
        """How many batches this rank has delivered, over all runs."""
        self._loss = _Loss()

    def open(self, source: BaseSource[Any], rank: Rank) -> tuple[EpochEntries, RankLedger]:
        """The items of the next source, and their ledger."""
        at = len(self._ledgers)
        found = {epoch: one["sources"][at] for epoch, one in self._epochs.items()}
        cuts = {epoch: cut_of(one.get("cut", ())) for epoch, one in found.items()}
        rests = {at: rest_of(one) for at, one in found.items()}
        entries = entries_of(source, rank, rests, cuts)
        if rank.by == "file":
            cuts = {epoch: partly_delivered(parts) for epoch, parts in cuts.items()}
        shared = _Shared(self._lock, self._loss.note, at)
        self._ledgers.append(RankLedger(shared, entries, cuts))
        return entries, self._ledgers[-1]

    def begun(self, epoch: int) -> int:
        """How many batches of an epoch each rank of an earlier number has delivered."""
        return int(self._epochs[epoch]["batches"]) if epoch in self._epochs else 0

    @synchronized
    def deliver(self, taken: Taken) -> None:
        """Note that the user receives rows, or the end of an epoch."""
        if isinstance(taken, EpochEnd):
            self.go_to(taken.epoch + 1)
            return
        self.total += len(taken)
        # The tickets have the same lock, which this thread may take again.
        for row in taken:
            finish(row[ROW_ORIGIN])

    @synchronized
    def go_to(self, epoch: int) -> None:
        """Forget the epochs before this one."""
        for ledger in self._ledgers:
            ledger.forget(epoch)

    def state(self, epoch: int) -> State:
        """Return what is left of an epoch, source by source."""
        # Copies are made under the lock, and turned into text without it, so that workers which
        # finish items do not wait for that.
        total, lost, copies = self._copied(epoch)
        if lost is not None:
            return {"total": total, "lost": lost}
        return {"total": total, "left": DeferredState(lambda: [_left_in(*one) for one in copies])}

    @synchronized
    def _copied(self, epoch: int) -> tuple[int, str | None, list[tuple[_Epoch, dict[int, int]]]]:
        return self.total, self._loss.why, [one.copied(epoch) for one in self._ledgers]

    @synchronized
    def restore(self, epoch: int, state: State) -> None:
        """Restore the state of an earlier run of the same rank."""
        self.total = state["total"]
        self._loss.why = state.get("lost")
        for ledger, one in zip(self._ledgers, state.get("left", ()), strict=False):
            ledger.restore(epoch, one)


def _left_in(epoch: _Epoch, ended: dict[int, int]) -> State:
    """Return what is left of an epoch, and how many items the earlier epochs had."""
    return {**epoch.state(), **({"ended": [list(one) for one in ended.items()]} if ended else {})}


def _count_before(starts: Sequence[EpochStart], number: int) -> int:
    """How many of the places are at or before an item."""
    return bisect_right(starts, number, key=lambda start: start.number)


def rest_of(state: State) -> RemainingItems:
    """Read from plain JSON types what is left of an epoch of a source."""
    begin = start_of(state)
    return RemainingItems(
        unpacked(state["missing"]), state.get("upto"), (begin.number, begin.place)
    )


def start_of(state: State) -> EpochStart:
    """Read from plain JSON types where a run can begin to read an epoch."""
    return EpochStart(state.get("start", 0), state.get("start_place"))


def cut_of(state: Iterable[Sequence[Any]]) -> DeliveredParts:
    """Read from plain JSON types which parts of items were delivered."""
    return {part: None if one is None else cut_of(one) for part, one in state}


def cut_state(cut: DeliveredParts) -> list[list[Any]]:
    """Write delivered parts in plain JSON types: each part with its own parts, or ``None`` for the
    whole part."""
    return [[part, None if one is None else cut_state(one)] for part, one in cut.items()]


_EXTRA: Final = 2**48
"""Repeated rows have numbers from here on, which no other row has."""
