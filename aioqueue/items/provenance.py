"""Provenance: which items a row was made of, whatever splits, joins, drops or repeats it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final, Protocol, TypeAlias

from aioqueue.items.item import Origin
from aioqueue.system.locks import call_with_lock

DeliveredParts: TypeAlias = dict[int, Any]
"""Which parts of an item were delivered. The keys are the places of the parts, from 0, or other
numbers that a stage has given them (`split_into`). The value is ``None`` if the whole part was
delivered, and otherwise the `DeliveredParts` of that part."""


class ProvenanceListener(Protocol):
    """Is notified when items are done. The ledger of an epoch is one."""

    lock: threading.RLock
    """Held while tickets change."""
    source: int
    """The number of the source of the items."""
    epoch: int
    """The epoch of the items."""

    def finished(self, number: int) -> None:
        """Note that an item is done."""

    def was_split(self, number: int, ticket: ItemTicket) -> None:
        """Note that an item has become several examples."""

    def lose(self, why: str) -> None:
        """Note that the delivered items are no longer known, and why."""


class ItemLabel:
    """Names an item. Nothing is notified when the item is done."""

    __slots__ = ("item",)

    def __init__(self, item: Origin) -> None:
        self.item: Origin = item


class LoanListener(Protocol):
    """Knows what is on lease from a queue."""

    lock: threading.RLock
    """Held while loans change."""

    def gave_nothing(self, item: Origin, *, is_done: bool) -> None:
        """Note that nothing of an item will reach the user.

        Args:
            item: the item.
            is_done: whether a `prepare` has seen to it: it skipped the item, or its function made
                no example of it.
        """


class ItemLoan(ItemLabel):
    """Follows an item that was taken from a queue, until one of three ends is known.

    It was *delivered* with the first row that contains a part of it (`loaned`); it *gave
    nothing*, as all its parts were left out (`finish`, `make_none`); or neither, and it goes back.

    Args:
        item: the item.
        listener: is notified if it has given nothing.
    """

    __slots__ = ("_is_whole", "_listener", "_remaining")

    def __init__(self, item: Origin, listener: LoanListener) -> None:
        super().__init__(item)
        self._listener = listener
        self._remaining = 1  # the parts that are on their way
        self._is_whole = True  # whether it never had several

    def split(self, count: int) -> None:
        """Note that a part of it has become several."""
        # From now on, a part without examples does not say that the item is done.
        self._is_whole = False
        call_with_lock(self._listener.lock, self._change, count - 1, False)

    def finish(self) -> None:
        call_with_lock(self._listener.lock, self._change, -1, False)

    def make_none(self) -> None:
        """Note that a `prepare` has made nothing of it, or of a part of it."""
        call_with_lock(self._listener.lock, self._change, -1, self._is_whole)

    def _change(self, by: int, is_done: bool) -> None:
        self._remaining += by
        if not self._remaining:
            self._listener.gave_nothing(self.item, is_done=is_done)


class ItemTicket:
    """Follows an item of a source, or one of several examples made of it, until it is done.

    Args:
        listener: is notified when the item is done.
        name: the number of the item; for an example, its place among those of its item.
        index: the index of the item in its source.
        parent: the ticket that this is a part of; ``None`` for an item.
        dropped: the parts that an earlier number of ranks has delivered. They are dropped.
        done: the parts that were delivered before this run began, and that it makes again
            together with the others.
    """

    __slots__ = (
        "_index",
        "_name",
        "_parent",
        "_parts",
        "_remaining",
        "done",
        "dropped",
        "listener",
    )

    def __init__(
        self,
        listener: ProvenanceListener,
        name: int,
        index: int,
        parent: ItemTicket | None,
        dropped: DeliveredParts,
        done: DeliveredParts,
    ) -> None:
        self.listener: ProvenanceListener = listener
        self._name = name
        self._index = index
        self._parent = parent
        self.dropped: DeliveredParts = dropped
        self.done: dict[int, Any | None] = done
        self._remaining: set[int] | None = None  # the parts that are not done; None before a split

    @property
    def item(self) -> Origin:
        """The item that this ticket follows, or is a part of."""
        return Origin(self.listener.source, self.listener.epoch, self._index)

    def split(self, parts: Sequence[int]) -> list[RowOrigin]:
        """Split into parts with these numbers; return the origin of each, or `DROPPED` for parts
        that are dropped."""
        # A part remains unless all of it is dropped (``None``). Otherwise `dropped` has those parts
        # of it that are dropped, and the rest of it remains.
        self._remaining = {
            part for part in parts if part not in self.dropped or self.dropped[part] is not None
        }
        self._parts: dict[int, ItemTicket] = {}
        origins = [self._part(part) if part in self._remaining else DROPPED for part in parts]
        # Only the item's own ticket: the listener asks it for its `delivered_parts` when a state is
        # taken, and it asks the tickets below. Before `finish`, which takes it out again.
        if self._parent is None:
            self.listener.was_split(self._name, self)
        # No examples, or all of them dropped: no row will ever finish it.
        if not self._remaining:
            self.finish()
        return origins

    def _part(self, part: int) -> RowOrigin:
        assert self._remaining is not None
        dropped, done = self.dropped.get(part) or {}, self.done.get(part, {})
        # The part is not done, or only parts of it are: it is counted when the rest is delivered.
        if done is not None:
            ticket = self._parts[part] = ItemTicket(
                self.listener, part, self._index, self, dropped, done
            )
            return ticket
        # The part was delivered before this run began. It comes again because all examples of the
        # item are made again. So the item does not wait for it, and it needs no more than a label.
        # But what an earlier number of ranks has delivered of it must be dropped again, and only a
        # ticket says so. (In the end that ticket reports to this one, for which the part does not
        # remain.)
        self._remaining.discard(part)
        return (
            ItemTicket(self.listener, part, self._index, self, dropped, {})
            if dropped
            else ItemLabel(self.item)
        )

    def finish(self) -> None:
        """Note that the user has received all of it, or that a stage has dropped it for good.
        Further calls change nothing."""
        if self._parent is None:
            self.listener.finished(self._name)
        else:
            self._parent.part_finished(self._name)

    def part_finished(self, part: int) -> None:
        """Note that one of its parts is done."""
        assert self._remaining is not None
        # A part that was done before, or is finished once more, changes nothing.
        if part in self._remaining:
            self._remaining.remove(part)
            self.done = {**self.done, part: None}  # a new dict: a state may refer to the old one
            self._parts.pop(part, None)
            if not self._remaining:
                self.finish()

    def delivered_parts(self) -> DeliveredParts:
        """The parts that were delivered so far: the `done` of its ticket in a resumed run."""
        # Not split yet in this run: keep the parts recorded by the previous run.
        if self._remaining is None:
            return self.done
        # The parts that are done, and the delivered parts of those that are not.
        below = {part: ticket.delivered_parts() for part, ticket in self._parts.items()}
        return {**self.done, **{part: cut for part, cut in below.items() if cut}}


class _Loans(tuple[ItemTicket | ItemLabel, ...]):
    """The origins in a batch, if some of them are on lease from a queue.

    Attributes:
        rows: the origin of each of its rows, for when it is taken apart again: rows that the user
            has not received then go back, without those that were received.
    """

    rows: Sequence[RowOrigin]


class _Dropped:
    """The origin of a part that is dropped."""


DROPPED: Final = _Dropped()


RowOrigin: TypeAlias = ItemTicket | ItemLabel | tuple[ItemTicket | ItemLabel, ...] | _Dropped | None
"""The items that a row was made from. ``None`` if they are not recorded."""


UNKNOWN: Final = repeat(None)
"""The origins of any number of examples, if they are not recorded."""


def split(origin: RowOrigin, count: int) -> Iterable[RowOrigin]:
    """The origins of several examples that were made of one row. Without any, the row is done.

    If the row was made of several items, nothing says which example belongs to which item. Then
    each example is labelled with all of them, and the delivered items are no longer known.
    """
    return split_into(origin, range(count))


def split_into(origin: RowOrigin, parts: Sequence[int]) -> Iterable[RowOrigin]:
    """The same, for parts with other numbers than their places. No two of a row have the same one.

    If what a stage makes of a row depends on the rows around it, the places of the parts say
    nothing to another number of ranks, which has other rows around it. So these numbers must.
    """
    if isinstance(origin, ItemTicket):
        return call_with_lock(origin.listener.lock, origin.split, parts)
    count = len(parts)
    if not count:
        finish(origin)
        return ()
    for loan in _loans_in(origin):
        loan.split(count)
    if isinstance(origin, tuple):
        _lose_provenance(origin)
        return [as_labels(origin)] * count
    return [origin] * count


def dropped_parts(origin: RowOrigin) -> DeliveredParts:
    """Return the parts of a row that an earlier number of ranks has delivered."""
    return origin.dropped if isinstance(origin, ItemTicket) else {}


def make_none(origin: RowOrigin) -> None:
    """Finish a row from which a `prepare` has made no example."""
    if isinstance(origin, ItemLoan):
        origin.make_none()
    else:
        split(origin, 0)  # a batch, say, is no element of the queue


def share(origin: RowOrigin) -> None:
    """Note that a row is used in one more row than was known."""
    for loan in _loans_in(origin):
        loan.split(2)


def loaned(origin: RowOrigin) -> list[Origin]:
    """Return the items of a row that are on lease from a queue."""
    return [loan.item for loan in _loans_in(origin)]


def _loans_in(origin: RowOrigin) -> list[ItemLoan]:
    if isinstance(origin, ItemLoan):
        return [origin]
    if isinstance(origin, tuple):
        return [one for one in origin if isinstance(one, ItemLoan)]
    return []


def unbatched(origin: RowOrigin, count: int) -> Iterable[RowOrigin]:
    """Return the origins of a batch's rows; with as many items as rows, one item for each."""
    if isinstance(origin, _Loans) and len(origin.rows) == count:
        return origin.rows
    if isinstance(origin, tuple) and len(origin) == count:
        # Row i is of item i, unless a `collate` has reordered them. That is good enough for a
        # journal, but not to know which items were delivered.
        _lose_provenance(origin)
        return [one if isinstance(one, ItemLoan) else ItemLabel(one.item) for one in origin]
    return split(origin, count)


def as_labels(origin: RowOrigin) -> RowOrigin:
    """Return the origin of a row that repeats another one: the same items, without tickets."""
    if isinstance(origin, ItemTicket):
        return ItemLabel(origin.item)
    if isinstance(origin, tuple):
        return tuple(one if isinstance(one, ItemLoan) else ItemLabel(one.item) for one in origin)
    return origin


def joined(origins: Iterable[RowOrigin]) -> RowOrigin:
    """Return the origin of a row that is made of several others, such as a batch."""
    found: list[ItemTicket | ItemLabel] = []
    rows: list[RowOrigin] = []
    for origin in origins:
        if isinstance(origin, ItemTicket | ItemLabel):
            found.append(origin)
        elif isinstance(origin, tuple):
            found += origin
        else:  # one row without provenance: that of the whole is not known
            return None
        rows.append(origin)
    if any(isinstance(one, ItemLoan) for one in found):
        loans = _Loans(found)
        loans.rows = rows
        return loans
    return tuple(found)


def finish(origin: RowOrigin) -> None:
    """Finish the tickets of a row that the user receives, or that a stage drops for good."""
    for loan in _loans_in(origin):
        loan.finish()
    if isinstance(origin, ItemTicket):
        call_with_lock(origin.listener.lock, origin.finish)
    elif isinstance(origin, tuple):
        tickets = [one for one in origin if isinstance(one, ItemTicket)]
        if tickets:
            call_with_lock(tickets[0].listener.lock, _finish_all, tickets)


def items_of(origin: RowOrigin) -> list[Origin]:
    """Return the items that a row was made from, in their order in the row."""
    if isinstance(origin, ItemTicket | ItemLabel):
        return [origin.item]
    return [one.item for one in origin] if isinstance(origin, tuple) else []


def _lose_provenance(origin: Iterable[ItemTicket | ItemLabel]) -> None:
    """Note that rows of several items were split, so that the delivered items are unknown."""
    ticket = next((one for one in origin if isinstance(one, ItemTicket)), None)
    if ticket is not None:
        ticket.listener.lose(
            "a stage makes several examples of a batch, so that they belong to no single item"
        )


def _finish_all(tickets: Iterable[ItemTicket]) -> None:
    for ticket in tickets:
        ticket.finish()
