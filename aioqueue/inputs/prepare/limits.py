"""How many items of one kind may be in preparation at a time: of one host, say, or one file."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final

from aioqueue.checks import counted
from aioqueue.functions import Answers
from aioqueue.inputs.sources.item import EpochEnd, Item

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
    Nothing is kept of a key without items. Not thread-safe, but for `note_key`.

    Args:
        key_of: gives the key of an item's value.
        at_most: how many items of one key may have a place at the same time.
    """

    def __init__(self, key_of: Callable[[Any], Hashable], at_most: int) -> None:
        self._key_of = key_of
        self._answers = Answers("limit_per", key_of, "have it return the key itself")
        self._at_most = at_most
        self._inside: dict[Hashable, int] = {}
        self._aside: dict[Hashable, deque[Pending]] = {}

    def note_key(self, pending: Pending) -> None:
        """Ask for the key of an item, if it is not known.

        Raises:
            BaseException: what the function has raised.
            TypeError: the key cannot be hashed, or would have to be awaited.
        """
        if not pending.has_key:
            value = pending.item.value
            key = None if isinstance(value, EpochEnd) else self._key_of(value)
            self._answers.check(key)
            hash(key)
            pending.key = key

    def admit(self, pending: Pending) -> bool:
        """Give an item its place; or put it aside, if there is none."""
        if pending.has_place:
            return True
        inside = self._inside.get(pending.key, 0)
        if inside >= self._at_most:
            self._aside.setdefault(pending.key, deque()).append(pending)
            return False
        self._inside[pending.key] = inside + 1
        pending.has_place = True
        return True

    def told(self) -> list[str]:
        """Which keys have all their places taken while others wait for one, in words."""
        return [
            f"limit_per: all {self._at_most} of key {key!r} are in preparation,"
            f" {counted(len(aside), 'item')} put aside"
            for key, aside in list(self._aside.items())
        ]

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
        heir.has_place = True
        return heir
