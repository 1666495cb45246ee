"""What travels with a row of a rank, so that it is known which items of the source were delivered.

A row that is one item has the `Ticket` of that item; an example that is one of several has one of
its own, below that of the item; a batch has the tickets of all its rows. When a row was handed to
the user, or was left out for good, its tickets are finished, and an item is done when all that was
made of it is. So whatever the stages are, an item counts as delivered when its examples were.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import repeat
from typing import Any, Final, Protocol, TypeAlias

from aioqueue.locks import holding

__all__ = ("GONE", "UNKNOWN", "Cut", "Keeper", "Origin", "Ticket", "finish", "joined", "split")

Cut: TypeAlias = dict[int, Any]
"""The parts of an item that were delivered: ``None`` by the place of a part, from 0, if all of it
was, and else the `Cut` of that part."""


class Keeper(Protocol):
    """Who is told of items that are done."""

    lock: threading.RLock
    """Held while tickets change."""

    def finished(self, number: int) -> None:
        """An item is done."""

    def was_split(self, number: int, ticket: Ticket) -> None:
        """An item has become several examples."""

    def lose(self, why: str) -> None:
        """It cannot be told any more what was delivered."""


class Ticket:
    """An item of a source, or one of several examples made of it, until it is done.

    Args:
        keeper: of the item.
        name: the number of the item; of an example its place among those of its item.
        above: what it is a part of; ``None`` for an item.
        gone: parts that come no more: an earlier number of ranks has delivered them.
        done: parts that come again, but were delivered.
    """

    __slots__ = ("_above", "_left", "_name", "_parts", "done", "gone", "keeper")

    def __init__(
        self, keeper: Keeper, name: int, above: Ticket | None, gone: Cut, done: Cut
    ) -> None:
        self.keeper = keeper
        self._name = name
        self._above = above
        self.gone = gone
        self.done = done
        self._left: set[int] | None = None  # the parts that are not done, once there are parts

    def split(self, count: int) -> list[Origin]:
        """The origins of so many parts; `GONE` for those that come no more."""
        self._left = {
            part for part in range(count) if part not in self.gone or self.gone[part] is not None
        }
        self._parts: dict[int, Ticket] = {}
        origins: list[Origin] = []
        for part in range(count):
            if part not in self._left:
                origins.append(GONE)
            elif part in self.done and self.done[part] is None:
                self._left.discard(part)
                origins.append(())
            else:
                below = self.gone.get(part) or {}, self.done.get(part) or {}
                self._parts[part] = Ticket(self.keeper, part, self, *below)
                origins.append(self._parts[part])
        if self._above is None:
            self.keeper.was_split(self._name, self)
        if not self._left:
            self.finish()
        return origins

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

Origin: TypeAlias = Ticket | tuple[Ticket, ...] | _Gone | None
"""What a row was made of. ``None`` where nobody wants to know."""

UNKNOWN: Final = repeat(None)
"""The origins of any number of examples, where nobody wants to know."""


def split(origin: Origin, count: int) -> Iterable[Origin]:
    """The origins of several examples that were made of one row."""
    if isinstance(origin, Ticket):
        return holding(origin.keeper.lock, origin.split, count)
    if isinstance(origin, tuple):
        if origin:
            origin[0].keeper.lose(
                "several examples are made of a batch, so that items cannot be told apart"
            )
        return [()] * count
    return [origin] * count


def joined(origins: Iterable[Origin]) -> Origin:
    """The origin of what is made of several rows: batches and the like."""
    tickets: list[Ticket] = []
    for origin in origins:
        if isinstance(origin, Ticket):
            tickets.append(origin)
        elif isinstance(origin, tuple):
            tickets += origin
        else:
            return None
    return tuple(tickets)


def finish(origin: Origin) -> None:
    """A row of this origin was handed out, or left out for good."""
    if isinstance(origin, Ticket):
        holding(origin.keeper.lock, origin.finish)
    elif isinstance(origin, tuple) and origin:
        holding(origin[0].keeper.lock, _finish_all, origin)


def _finish_all(tickets: tuple[Ticket, ...]) -> None:
    for ticket in tickets:
        ticket.finish()
