"""What travels with a row, where somebody wants to know which items of the sources it was made of.

A journal names the items of each batch, and a rank writes down which of its items were delivered.
The nodes carry the same for both: a row that is one item has the `ItemLabel` of that item if it is
only
to be named, or else its `ItemTicket`; a batch has those of all its rows.

An example that is one of several has a ticket of its own, below that of the item. When a row was
handed to the user, or was left out for good, its tickets are finished, and an item is done when all
that was made of it is. So whatever the stages are, an item counts as delivered when its examples
were. What is delivered a second time, or counted with others, has labels instead.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import repeat
from typing import Any, Final, Protocol, TypeAlias

from aioqueue.inputs.core.items import Origin
from aioqueue.locks import holding

__all__ = (
    "GONE",
    "UNKNOWN",
    "Cut",
    "ItemLabel",
    "ItemTicket",
    "ProvenanceListener",
    "RowOrigin",
    "finish",
    "items_of",
    "joined",
    "named",
    "split",
    "unbatched",
)

Cut: TypeAlias = dict[int, Any]
"""The parts of an item that were delivered: ``None`` by the place of a part, from 0, if all of it
was, and else the `Cut` of that part."""


class ProvenanceListener(Protocol):
    """Who is told of items that are done."""

    lock: threading.RLock
    """Held while tickets change."""
    source: int
    """Of which source the items are."""
    epoch: int
    """Of which epoch."""

    def finished(self, number: int) -> None:
        """An item is done."""

    def was_split(self, number: int, ticket: ItemTicket) -> None:
        """An item has become several examples."""

    def lose(self, why: str) -> None:
        """It cannot be told any more what was delivered."""


class ItemLabel:
    """An item of a source that is named, and of which nobody asks whether it is done."""

    __slots__ = ("item",)

    def __init__(self, item: Origin) -> None:
        self.item: Origin = item


class ItemTicket:
    """An item of a source, or one of several examples made of it, until it is done.

    Args:
        keeper: of the item.
        name: the number of the item; of an example its place among those of its item.
        index: of the item in its source.
        above: what it is a part of; ``None`` for an item.
        gone: parts that come no more: an earlier number of ranks has delivered them.
        done: parts that come again, but were delivered.
    """

    __slots__ = ("_above", "_index", "_left", "_name", "_parts", "done", "gone", "keeper")

    def __init__(
        self,
        keeper: ProvenanceListener,
        name: int,
        index: int,
        above: ItemTicket | None,
        gone: Cut,
        done: Cut,
    ) -> None:
        self.keeper: ProvenanceListener = keeper
        self._name = name
        self._index = index
        self._above = above
        self.gone: Cut = gone
        self.done: dict[int, Any | None] = done
        self._left: set[int] | None = None  # the parts that are not done, once there are parts

    @property
    def item(self) -> Origin:
        """The item that it is, or is a part of."""
        return Origin(self.keeper.source, self.keeper.epoch, self._index)

    def split(self, count: int) -> list[RowOrigin]:
        """The origins of so many parts; `GONE` for those that come no more."""
        self._left = {
            part for part in range(count) if part not in self.gone or self.gone[part] is not None
        }
        self._parts: dict[int, ItemTicket] = {}
        origins = [self._part(part) if part in self._left else GONE for part in range(count)]
        if self._above is None:
            self.keeper.was_split(self._name, self)
        if not self._left:
            self.finish()
        return origins

    def _part(self, part: int) -> RowOrigin:
        """The origin of a part that comes."""
        assert self._left is not None
        gone, done = self.gone.get(part) or {}, self.done.get(part, {})
        if done is not None:
            ticket = self._parts[part] = ItemTicket(
                self.keeper, part, self._index, self, gone, done
            )
            return ticket
        self._left.discard(part)
        # It comes again as it came before, which was without what is gone of it.
        return (
            ItemTicket(self.keeper, part, self._index, self, gone, {})
            if gone
            else ItemLabel(self.item)
        )

    def finish(self) -> None:
        """All of it was handed out, or left out for good. It may be said again."""
        if self._above is None:
            self.keeper.finished(self._name)
        else:
            self._above.part_finished(self._name)

    def part_finished(self, part: int) -> None:
        """One of its parts is done."""
        assert self._left is not None
        if part in self._left:
            self._left.remove(part)
            self.done = {**self.done, part: None}
            self._parts.pop(part, None)
            if not self._left:
                self.finish()

    def cut(self) -> Cut:
        """Its parts that were delivered since, as `done` of the ticket that goes on with it."""
        if self._left is None:
            return self.done
        below = {part: ticket.cut() for part, ticket in self._parts.items()}
        return {**self.done, **{part: cut for part, cut in below.items() if cut}}


class _Gone:
    """The origin of a part that comes no more."""


GONE: Final = _Gone()

RowOrigin: TypeAlias = ItemTicket | ItemLabel | tuple[ItemTicket | ItemLabel, ...] | _Gone | None
"""What a row was made of. ``None`` where nobody wants to know."""

UNKNOWN: Final = repeat(None)
"""The origins of any number of examples, where nobody wants to know."""


def split(origin: RowOrigin, count: int) -> Iterable[RowOrigin]:
    """The origins of several examples that were made of one row."""
    if isinstance(origin, ItemTicket):
        return holding(origin.keeper.lock, origin.split, count)
    if isinstance(origin, tuple):
        _lose(origin)
        return [named(origin)] * count
    return [origin] * count


def unbatched(origin: RowOrigin, count: int) -> Iterable[RowOrigin]:
    """The origins of the rows of a batch, of which each has one if there are as many."""
    if isinstance(origin, tuple) and len(origin) == count:
        _lose(origin)
        return [ItemLabel(one.item) for one in origin]
    return split(origin, count)


def named(origin: RowOrigin) -> RowOrigin:
    """The origin of what is made of a row again, or besides: it only says which items it has."""
    if isinstance(origin, ItemTicket):
        return ItemLabel(origin.item)
    if isinstance(origin, tuple):
        return tuple(ItemLabel(one.item) for one in origin)
    return origin


def joined(origins: Iterable[RowOrigin]) -> RowOrigin:
    """The origin of what is made of several rows: batches and the like."""
    found: list[ItemTicket | ItemLabel] = []
    for origin in origins:
        if isinstance(origin, ItemTicket | ItemLabel):
            found.append(origin)
        elif isinstance(origin, tuple):
            found += origin
        else:
            return None
    return tuple(found)


def finish(origin: RowOrigin) -> None:
    """A row of this origin was handed out, or left out for good."""
    if isinstance(origin, ItemTicket):
        holding(origin.keeper.lock, origin.finish)
    elif isinstance(origin, tuple):
        tickets = [one for one in origin if isinstance(one, ItemTicket)]
        if tickets:
            holding(tickets[0].keeper.lock, _finish_all, tickets)


def items_of(origin: RowOrigin) -> list[Origin]:
    """The items that a row was made of, in the order in which they are in it."""
    if isinstance(origin, ItemTicket | ItemLabel):
        return [origin.item]
    return [one.item for one in origin] if isinstance(origin, tuple) else []


def _lose(origin: Iterable[ItemTicket | ItemLabel]) -> None:
    """Several examples are made of rows that were made of several items."""
    ticket = next((one for one in origin if isinstance(one, ItemTicket)), None)
    if ticket is not None:
        ticket.keeper.lose(
            "several examples are made of a batch, so that items cannot be told apart"
        )


def _finish_all(tickets: Iterable[ItemTicket]) -> None:
    for ticket in tickets:
        ticket.finish()
