"""Putting prepared items back into the order of the source."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ("Reordering",)

T = TypeVar("T")


class Reordering(Generic[T]):
    """Holds what came too early until what belongs before it has come. Not thread-safe.

    Who brings what everybody waits for hands on that, and then all that follows it; meanwhile
    others only lay down what they bring. It holds no more than what is in flight, which its users
    bound.
    """

    __slots__ = ("_held", "_is_handing_on", "_next")

    def __init__(self) -> None:
        self._held: dict[int, T] = {}
        self._next = 0
        self._is_handing_on = False  # somebody is

    def __len__(self) -> int:
        """How many are held."""
        return len(self._held)

    def bring(self, number: int, thing: T) -> T | None:
        """Bring what belongs at a place; places count from 0.

        Returns:
            The same, if the caller is to hand it on now, and then what is `following`.
        """
        if self._is_handing_on or number != self._next:
            self._held[number] = thing
            return None
        self._is_handing_on = True
        self._next += 1
        return thing

    def following(self) -> T | None:
        """What is to be handed on next by who has handed on the one before; ``None`` if that has
        not come: who brings it goes on from there."""
        thing = self._held.pop(self._next, None) if self._held else None
        if thing is None:
            self._is_handing_on = False
        else:
            self._next += 1
        return thing
