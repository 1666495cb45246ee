"""What a `prepare` delivers to a pipeline: items that have ended, each with its examples.

An item that has been prepared.

Putting prepared items back into the order of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from aioqueue.inputs.core.items import EpochEnd, Item

__all__ = ("Delivered", "ItemCounts", "ItemFailure", "Prepared", "Reordering")


class ItemCounts(NamedTuple):
    """What has become of items that have ended; see `PrepareStatistics`."""

    prepared: int = 0
    examples: int = 0
    left_out: int = 0
    skipped: int = 0
    retried: int = 0


class ItemFailure(NamedTuple):
    """What went wrong with an item."""

    retried: int
    """How often it was tried again."""
    is_skipped: bool
    """Whether it was given up."""


Delivered: TypeAlias = tuple[int, int, int, Sequence[Any], ItemFailure | None]
"""An item that has ended, ``(epoch, number, index, examples, trouble)``: in the queue once, also if
it was skipped, and then without examples.

``number`` is its place among all items that were taken, from 0, and ``index`` its index in the
source; there is no ``trouble`` unless it has failed. The end of an epoch, an `EpochEnd` among the
items, is its own example. (A plain tuple: there is one of them for every item.)
"""


class Prepared:
    """An item that has ended: its examples, of which there are none if it was skipped."""

    __slots__ = (
        "count",
        "entered",
        "examples",
        "failures",
        "is_skipped",
        "item",
        "release",
        "size",
    )

    def __init__(
        self,
        item: Item,
        examples: Any = (),
        failures: int = 0,
        is_skipped: bool = False,
        release: Callable[[], None] | None = None,
    ) -> None:
        self.item = item
        self.examples = examples
        self.failures = failures  # after which it was tried again
        self.is_skipped = is_skipped
        self.release = release  # called when the examples are in the queue
        self.size = 0
        self.entered = 0  # how much of it is in the queue
        self.count: int | None = None  # of examples, if they are delivered together

    def pack(self) -> None:
        """Deliver the item as a whole, with whatever examples it has."""
        number, value, epoch, index = self.item
        examples = self.examples
        self.count = 0 if isinstance(value, EpochEnd) else len(examples)
        has_failed = self.failures or self.is_skipped
        trouble = ItemFailure(self.failures, self.is_skipped) if has_failed else None
        self.examples = ((epoch, number, index, examples, trouble),)


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
