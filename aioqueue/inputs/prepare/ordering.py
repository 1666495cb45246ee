"""Putting prepared items back into the order of the source."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ("Reordering",)

T = TypeVar("T")


class Reordering(Generic[T]):
    """Holds what came too early until what belongs before it has come. Not thread-safe.

    It holds no more than what is in flight, which its users bound.
    """

    __slots__ = ("_held", "_next")

    def __init__(self) -> None:
        self._held: dict[int, T] = {}
        self._next = 0

    def __len__(self) -> int:
        """How many are held."""
        return len(self._held)

    def put(self, number: int, thing: T) -> None:
        """Bring what belongs at a place; places count from 0."""
        self._held[number] = thing

    def pop(self) -> T | None:
        """Take the one whose turn it is; ``None`` if it has not come yet."""
        thing = self._held.pop(self._next, None)
        if thing is not None:
            self._next += 1
        return thing
