"""How many items of one kind may be in preparation at a time: of one host, say, or one file."""

from __future__ import annotations

import reprlib
from collections import deque
from collections.abc import Callable, Hashable
from operator import itemgetter
from time import perf_counter
from typing import Any, Final

from aioqueue.checks import counted
from aioqueue.functions import Answers
from aioqueue.inputs.sources.item import EpochEnd, Item
from aioqueue.meters import current_meter

__all__ = ("NOTE_OF_KEY", "KeyLimit", "Pending")

NOTE_OF_KEY: Final = "while getting its key for limit_per"
"""Said of a failure, so that nobody looks for it in the function."""

_NO_KEY: Final[Any] = object()


class Pending:
    """An item that is to be prepared, and what it has been through.

    Attributes:
        item: which one.
        failures: how often its preparation has failed.
        deaths: how many processes have died of it.
        key: what its limit goes by, once that is known.
        has_place: whether it counts among those of its key that are in preparation.
    """

    __slots__ = ("deaths", "failures", "has_place", "item", "key")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.failures = 0
        self.deaths = 0
        self.key: Hashable = _NO_KEY
        self.has_place = False

    @property
    def has_key(self) -> bool:
        """Whether its key is known."""
        return self.key is not _NO_KEY


class KeyLimit:
    """Gives items their places among those of the same key, and puts aside those that get none.

    A place that is given back goes to the item of that key which was put aside first, before any
    that comes later; so keys do not starve each other, and items of one key keep their order.
    Nothing is kept of a key without items. Not thread-safe, but for `note_key`, and what tells
    how it is.

    Args:
        key_of: gives the key of an item's value.
        at_most: how many items of one key may have a place at the same time.
    """

    def __init__(self, key_of: Callable[[Any], Hashable], at_most: int) -> None:
        self._key_of = key_of
        self._answers = Answers("limit_per", key_of, "have it return the key itself")
        self.at_most = at_most
        self._inside: dict[Hashable, int] = {}
        self._aside: dict[Hashable, deque[Pending]] = {}
        self._waiting = 0  # workers that have nothing to do
        self._short = (0.0, 0.0)  # seconds in which one waited beside items; since when, or 0

    def note_key(self, pending: Pending) -> None:
        """Ask for the key of an item, if it is not known.

        Raises:
            BaseException: what the function has raised.
            TypeError: the key cannot be hashed, or would have to be awaited.
        """
        if not pending.has_key:
            value = pending.item.value
            began = perf_counter()
            key = None if isinstance(value, EpochEnd) else self._key_of(value)
            meter = current_meter.get()
            if meter is not None:
                meter.asked_for_key(perf_counter() - began)
            self._answers.check(key)
            hash(key)
            pending.key = key

    def admit(self, pending: Pending) -> bool:
        """Give an item its place; or put it aside, if there is none."""
        if pending.has_place:
            return True
        inside = self._inside.get(pending.key, 0)
        if inside >= self.at_most:
            self._aside.setdefault(pending.key, deque()).append(pending)
            self._note()
            return False
        self._inside[pending.key] = inside + 1
        pending.has_place = True
        return True

    def told(self) -> list[str]:
        """Which keys have all their places taken while others wait for one, in words."""
        return [
            f"limit_per: all {self.at_most} of key {key!r} are in preparation,"
            f" {counted(len(aside), 'item')} put aside"
            for key, aside in list(self._aside.items())
        ]

    def waits(self, more: int) -> None:
        """So many more workers wait for something to do; or fewer, if it is negative."""
        self._waiting += more
        self._note()

    def _note(self) -> None:
        """Items are put aside, and a worker could prepare one; or that has ended."""
        is_short = bool(self._waiting and self._aside)
        seconds, since = self._short
        if is_short != bool(since):
            now = perf_counter()
            self._short = (seconds, now) if is_short else (seconds + now - since, 0.0)

    def seconds_short(self, now: float) -> float:
        """Seconds in which a worker waited beside items that were put aside, with what goes on."""
        seconds, since = self._short
        return seconds + (max(0.0, now - since) if since else 0.0)

    def fullest(self) -> str | None:
        """The key of which most items are put aside, in a few letters; ``None`` if none are."""
        aside = [(len(pendings), key) for key, pendings in list(self._aside.items())]
        return reprlib.repr(max(aside, key=itemgetter(0))[1]) if aside else None

    def give_back(self, pending: Pending) -> Pending | None:
        """An item is not in preparation any more, if it was.

        Returns:
            The one that has its place now, and was put aside before.
        """
        if not pending.has_place:
            return None
        pending.has_place = False
        key = pending.key
        aside = self._aside.get(key)
        if aside is None:
            inside = self._inside.pop(key) - 1
            if inside:
                self._inside[key] = inside
            return None
        heir = aside.popleft()
        if not aside:
            del self._aside[key]
            self._note()
        heir.has_place = True
        return heir
