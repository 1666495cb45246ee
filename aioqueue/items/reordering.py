"""`Reordering`: results that arrive in any order leave in the order of their numbers."""

from __future__ import annotations

from typing import Generic

from aioqueue.items.item import T


class Reordering(Generic[T]):
    """Holds results that come too early until the earlier ones have come. Not thread-safe.

    The caller that brings the next result in order passes it on, and then all that follow it;
    meanwhile other callers only hand in theirs. It holds no more than what is in flight, which its
    users bound.
    """

    __slots__ = ("_held", "_is_draining", "_next")

    def __init__(self) -> None:
        self._held: dict[int, T] = {}
        self._next = 0
        self._is_draining = False  # a caller is passing results on

    def __len__(self) -> int:
        return len(self._held)

    def add(self, number: int, thing: T) -> T | None:
        """Hand in the result with this number, from 0.

        Returns:
            The same, if the caller must pass it on now, and then what is `following`.
        """
        if self._is_draining or number != self._next:
            self._held[number] = thing
            return None
        self._is_draining = True
        self._next += 1
        return thing

    def is_only(self, number: int) -> bool:
        """Return whether the result with this number is the next, and no other one is there."""
        return number == self._next and not (self._is_draining or self._held)

    def skip(self) -> None:
        """Note that the next result was passed on by itself, as `is_only` allows."""
        self._next += 1

    def following(self) -> T | None:
        """Return the next result for the caller that has passed on the one before; ``None`` if it
        has not come yet: then the caller that brings it continues from there."""
        thing = self._held.pop(self._next, None) if self._held else None
        if thing is None:
            self._is_draining = False
        else:
            self._next += 1
        return thing
