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
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy, deepcopy
from typing import Any, Final, NamedTuple

from aioqueue.inputs.core.base_source import BaseSource
from aioqueue.inputs.core.batch_shape import BatchShape
from aioqueue.inputs.core.items import Cut, EpochEnd, ItemLabel, ItemTicket, Origin, finish, named
from aioqueue.inputs.core.ranks import EpochEntries, EpochStart, Rank, RemainingItems
from aioqueue.inputs.pipeline.node import (
    END,
    ROW_ORIGIN,
    Flow,
    Id,
    Node,
    Row,
    State,
    Taken,
    WantedRows,
)
from aioqueue.inputs.pipeline.progress import DeferredState, id_of, id_text, packed, unpacked
from aioqueue.inputs.pipeline.transform_nodes import HoldingTransform
from aioqueue.locks import synchronized

MOST_APART: Final = 16
"""How many epochs one rank may be ahead of another."""

_EVERY: Final = 64
"""The least number of items between two remembered places of a source."""

_MOST_STARTS: Final = 4096


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
        gone: returns the parts of an item that an earlier number of ranks has delivered.
    """

    def __init__(self, shared: _Shared, epoch: int, gone: Callable[[int], Cut]) -> None:
        self.lock, self.lose, self.source = shared
        self.epoch = epoch
        self._gone = gone
        self._left: set[int] = set()  # items that were taken, and are not done
        self._upto = 0  # the first item that was not taken
        self._split: dict[
            int, ItemTicket
        ] = {}  # those of `_left` that have become several examples
        self._done: dict[int, Cut] = {}  # their parts that were done before a restart
        self._starts: list[EpochStart] = []  # where a source without random access can begin
        self.count: int | None = None
        """How many items the epoch has, once that is known."""

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
        return ItemTicket(self, number, index, None, self._gone(number), self._done.get(number, {}))

    def finished(self, number: int) -> None:
        """Note that an item is done."""
        self._left.discard(number)
        self._split.pop(number, None)
        self._done.pop(number, None)

    def was_split(self, number: int, ticket: ItemTicket) -> None:
        """Note that an item has become several examples."""
        if number in self._left:
            self._split[number] = ticket

    def remember(self, start: EpochStart) -> None:
        """Remember that a run can begin to read here.

        It forgets places before all items that are left, and thins the list out if it gets long.
        """
        starts = self._starts
        if not starts or start.number >= starts[-1].number + _EVERY:
            starts.append(start)
            if not len(starts) % _EVERY:  # not each time, because finding the first item is slow
                first = min(self._left, default=self._upto)
                del starts[: max(0, _count_before(starts, first) - 1)]
            if len(starts) > _MOST_STARTS:
                del starts[1::2]

    def copied(self) -> _Epoch:
        """A copy as of this moment. Its `state` can be made later, without the lock."""
        copied = copy(self)
        copied._left = self._left.copy()
        copied._starts = self._starts.copy()
        cuts = {number: ticket.cut() for number, ticket in self._split.items()}
        copied._done = {**self._done, **cuts}
        return copied

    def state(self) -> State:
        """The items that are left, in plain JSON types. It is slow, so call it on a copy."""
        left = sorted(self._left)
        state: State = {"missing": packed(left), "upto": self._upto}
        if self.count is not None and self._upto >= self.count:
            state["count"] = self.count
        # The last remembered place at or before the first item that is left.
        before = _count_before(self._starts, left[0] if left else self._upto)
        if before:
            start = self._starts[before - 1]
            state |= {"start": start.number, "start_place": start.place}
        cuts = {number: cut for number, cut in self._done.items() if cut}
        return {**state, "cut": cut_state(cuts)} if cuts else state

    def restore(self, state: State) -> None:
        """Restore the state of an earlier run."""
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
        self, shared: _Shared, entries: EpochEntries, cuts: Mapping[int, Mapping[int, Cut]]
    ) -> None:
        self._lock = shared.lock
        self._shared = shared
        self._entries = entries
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
        return self._epoch(epoch).copied(), self._ended.copy()

    def restore(self, epoch: int, state: State) -> None:
        """Restore the state of an earlier run."""
        self._epoch(epoch).restore(state)
        self._ended = dict(state.get("ended", ()))

    def forget(self, epoch: int) -> None:
        """Forget the epochs before this one. The caller holds the lock."""
        for number in [one for one in self._epochs if one < epoch]:
            self._ended[number] = self._epochs.pop(number).taken
        self._ended = {at: one for at, one in self._ended.items() if at >= epoch - MOST_APART}

    def _epoch(self, epoch: int) -> _Epoch:
        found = self._epochs.get(epoch)
        if found is None:
            found = self._epochs[epoch] = _Epoch(self._shared, epoch, self._gone_of(epoch))
            found.count = self._entries.length(epoch)
        return found

    def _gone_of(self, epoch: int) -> Callable[[int], Cut]:
        cuts, place_of = self._cuts.get(epoch), self._entries.place_of
        if not cuts:
            return lambda _: {}

        def gone(number: int) -> Cut:
            place = place_of(epoch, number)
            return {} if place is None else cuts.get(place, {})

        return gone


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
        return EpochEntries(source, rank), ItemNames(self._count - 1)


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
        self._lost: str | None = None

    def open(self, source: BaseSource[Any], rank: Rank) -> tuple[EpochEntries, RankLedger]:
        """The items of the next source, and their ledger."""
        at = len(self._ledgers)
        found = {epoch: one["sources"][at] for epoch, one in self._epochs.items()}
        entries = EpochEntries(source, rank, {at: rest_of(one) for at, one in found.items()})
        cuts = {epoch: cut_of(one.get("cut", ())) for epoch, one in found.items()}
        shared = _Shared(self._lock, self._lose, at)
        self._ledgers.append(RankLedger(shared, entries, cuts))
        return entries, self._ledgers[-1]

    def begun(self, epoch: int) -> int:
        """How many batches of an epoch each rank of an earlier number has delivered."""
        return int(self._epochs[epoch]["batches"]) if epoch in self._epochs else 0

    @synchronized
    def hand_out(self, taken: Taken) -> None:
        """Note that the user receives rows, or the end of an epoch."""
        if isinstance(taken, EpochEnd):
            self.go_to(taken.epoch + 1)
            return
        self.total += len(taken)
        for row in taken:
            finish(row[ROW_ORIGIN])

    @synchronized
    def go_to(self, epoch: int) -> None:
        """Forget the epochs before this one."""
        for ledger in self._ledgers:
            ledger.forget(epoch)

    def state(self, epoch: int) -> State:
        """What is left of an epoch, source by source."""
        total, lost, copies = self._copied(epoch)
        if lost is not None:
            return {"total": total, "lost": lost}
        return {"total": total, "left": DeferredState(lambda: [_left_in(*one) for one in copies])}

    @synchronized
    def _copied(self, epoch: int) -> tuple[int, str | None, list[tuple[_Epoch, dict[int, int]]]]:
        return self.total, self._lost, [one.copied(epoch) for one in self._ledgers]

    @synchronized
    def restore(self, epoch: int, state: State) -> None:
        """Restore the state of an earlier run of the same rank."""
        self.total = state["total"]
        self._lost = state.get("lost")
        for ledger, one in zip(self._ledgers, state.get("left", ()), strict=False):
            ledger.restore(epoch, one)

    def _lose(self, why: str) -> None:
        self._lost = why


class DeliveryNode(Node):
    """The last node of a rank. It records in the ledgers what the user receives.

    Args:
        upstream: the node before.
        books: the ledgers of the run.
    """

    def __init__(self, upstream: Node, books: RunLedgers) -> None:
        super().__init__(upstream.span)
        self.is_ordered: bool = upstream.is_ordered
        self._upstream = upstream
        self._books = books

    @property
    def batch_shape(self) -> BatchShape | None:
        return self._upstream.batch_shape

    def take(self, n: int) -> Flow[Taken]:
        taken = yield from self._upstream.take(n)
        self._books.hand_out(taken)  # in the same step, so that no state can be taken in between
        if isinstance(taken, EpochEnd):
            self._epoch = taken.epoch + 1
        return taken

    def take_ready(self, n: int) -> list[Row]:
        rows = self._upstream.take_ready(n)
        if rows:
            self._books.hand_out(rows)
        return rows

    def _skip_to(self, epoch: int) -> None:
        self._upstream.skip_to(epoch)
        self._books.go_to(epoch)
        self._epoch = epoch

    @property
    def given(self) -> tuple[int, int]:
        epoch, given = self._upstream.given
        return epoch, self._books.begun(epoch) + given

    def state(self, held: Sequence[Id] = ()) -> State:
        upstream = self._upstream.state(held)
        epoch = upstream["epoch"]
        return {
            "epoch": epoch,
            "given": self._books.begun(epoch) + upstream["given"],
            "upstream": upstream,
            **self._books.state(epoch),
        }

    def restore(self, state: State, wanted: WantedRows | None = None) -> None:
        self._epoch = state["epoch"]
        self._books.restore(self._epoch, state)
        self._upstream.restore(state["upstream"], wanted)

    def close(self) -> None:
        self._upstream.close()


def _left_in(epoch: _Epoch, ended: dict[int, int]) -> State:
    """What is left of an epoch, and how many items those before it had."""
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


def cut_of(state: Iterable[Sequence[Any]]) -> Cut:
    """Read from plain JSON types which parts of items were delivered."""
    return {part: None if one is None else cut_of(one) for part, one in state}


def cut_state(cut: Cut) -> list[list[Any]]:
    """Write delivered parts in plain JSON types: each part with its own parts, or ``None`` for the
    whole part."""
    return [[part, None if one is None else cut_state(one)] for part, one in cut.items()]


_EXTRA: Final = 2**48
"""Repeated rows have numbers from here on, which no other row has."""


class _Counts(NamedTuple):
    """The state of an epoch without order, in which rows have to be found again by their names.

    Attributes:
        epoch: the epoch.
        seen: how many rows of items were given out.
        extra: how many rows were repeated.
        latest: the names of the latest rows, which may be repeated.
    """

    epoch: int
    seen: int
    extra: int
    latest: list[Id]


class RankPadding(HoldingTransform):
    """Gives as many rows in every epoch as there were items. It repeats rows for skipped items.

    So all ranks of data-parallel training take the same number of steps. If a rank skips an item,
    its latest examples are repeated at the end of the epoch.

    Args:
        upstream: the node before, with one row for each item that was not skipped.
        items: returns how many items there were; called at the end of an epoch.
        keep: how many of the latest rows to keep for this.
        apart: whether to repeat a copy, because the user may have changed the original.
    """

    def __init__(
        self, upstream: Node, items: Callable[[], int], keep: int, *, apart: bool = False
    ) -> None:
        super().__init__(upstream)
        self._is_apart = apart
        self._items = items
        self._latest: deque[Row] = deque(maxlen=keep)
        self._seen = 0
        self._extra = 0  # how many rows were repeated
        self._kept = 0  # after a restore: how many of the rows that come back are the latest
        # Without order, after a restore: rows that were given out before. They come once more, only
        # to be kept as the latest.
        self._again: set[Id] = set()
        # The counts of the epoch before, until the first row of this one is given out.
        self._before: _Counts | None = None

    def begin(self, epoch: int) -> None:
        self._seen = self._extra = 0
        self._latest.clear()  # an epoch never repeats examples of another
        self._again.clear()

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        self._latest.extend(self._kept_apart(rows))
        if self._again:
            rows = [row for row in rows if not self._has_come(row)]
        self._seen += len(rows)
        return rows

    def finish(self) -> Iterable[Row]:
        # `_extra` counts repeated rows of this epoch that were given out before a restart.
        missing = self._items() - self._seen - self._extra
        if missing < 0:
            raise RuntimeError(
                f"got {self._seen} examples of {self._items()} items in epoch {self._epoch}, so"
                " ranks cannot take equal numbers of steps; expected one example per item: if your"
                " function makes several, use `flat` and shard(..., uneven='allow')"
            )
        if missing and not self._latest:
            raise RuntimeError(
                f"all {missing} items of epoch {self._epoch} were skipped on this rank, so it has"
                " no examples to repeat, and the other ranks would wait for ever"
            )
        latest = list(self._latest)
        return self._kept_apart([latest[place % len(latest)] for place in range(missing)])

    def _kept_apart(self, rows: Sequence[Row]) -> Sequence[Row]:
        return [(_copy(value), *rest) for value, *rest in rows] if self._is_apart else rows

    def clear(self) -> None:
        self._latest.clear()

    def weight(self) -> int:
        return len(self._latest) + super().weight()

    def take_ready(self, n: int) -> list[Row]:
        rows = super().take_ready(n)
        if rows:
            self._before = None
        if not self._has_ended:
            return rows
        first = _EXTRA + self._extra
        self._extra += len(rows)
        return [  # labels, not tickets: the items were counted when their rows came first
            (value, number, index, sub, named(origin))
            for number, (value, _, index, sub, origin) in enumerate(rows, first)
        ]

    def _has_come(self, row: Row) -> bool:
        """Whether a row was given out before a restart, and comes again only to be kept."""
        (one,) = self._ids([row])
        if one not in self._again:
            return False
        self._again.remove(one)
        return True

    def state(self, held: Sequence[Id] = ()) -> State:
        before = self._before
        if held and before is not None and held[0][0] == before.epoch:
            # A later node holds rows of the epoch that has just ended: the state goes back to it.
            state = self._state_with(held, before, has_ended=False)
            return {"epoch": before.epoch, "given": 0, **state}
        return super().state(held)

    def _own_state(self, held: Sequence[Id]) -> State:
        if self.is_ordered:
            return super()._own_state(held)
        if not self._has_begun:
            self._has_begun = True
            self.begin(self._epoch)
        has_ended = self._has_ended and not held and not self._ready
        return self._state_with(held, self._counts(), has_ended=has_ended)

    def _state_with(self, held: Sequence[Id], counts: _Counts, *, has_ended: bool) -> State:
        """The state without order.

        The node before has to give rows again: those that later nodes hold, and the latest. The
        state does not name repeated rows that are ready, because `finish` makes them again.
        """
        of_items = [one for one in held if one[1] < _EXTRA]
        latest = [] if has_ended else [one for one in counts.latest if one not in {*of_items}]
        shape = {
            "seen": counts.seen - len(of_items),
            "extra": counts.extra - (len(held) - len(of_items)),
            "latest": 0,
            "again": [id_text(one) for one in latest],
        }
        end = (counts.epoch if has_ended else counts.epoch - 1, END, 0)
        return {"shape": shape, "tape": self._tape.state_with([*of_items, *latest], end)}

    def _counts(self) -> _Counts:
        again = self._again.difference(latest := self._ids(self._latest))
        latest = [*latest, *sorted(again)][: self._latest.maxlen]
        return _Counts(self._epoch, self._seen, self._extra, latest)

    def _go_to(self, epoch: int) -> None:
        is_next = epoch == self._epoch + 1 and not self.is_ordered
        self._before = self._counts() if is_next else None
        super()._go_to(epoch)

    def _held(self) -> list[Id]:
        return self._ids([*self._latest, *self._ready])

    def _shape(self) -> State:
        return {"seen": self._seen, "extra": self._extra, "latest": len(self._latest)}

    def _reshape(self, state: State) -> None:
        self._seen, self._extra = state["seen"], state["extra"]
        self._kept = state["latest"]
        self._again = {id_of(one) for one in state.get("again", ())}

    def _put_back(self, rows: list[Row]) -> None:
        self._latest.extend(rows[: self._kept])
        self._ready = deque(rows[self._kept :])


def _copy(value: Any) -> Any:
    """A deep copy of a value; the value itself if it cannot be copied."""
    try:
        return deepcopy(value)
    except Exception:
        return value
