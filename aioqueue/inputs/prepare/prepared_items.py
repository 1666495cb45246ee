"""Prepared items: their examples and outcome, and `Reordering`, which restores their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from aioqueue.inputs.core.items import EpochEnd, Item

__all__ = ("Delivered", "ItemCounts", "ItemFailure", "Prepared", "Reordering")


class ItemCounts(NamedTuple):
    """The counts of outcomes; see `PrepareStatistics`."""

    prepared: int = 0
    examples: int = 0
    left_out: int = 0
    skipped: int = 0
    retried: int = 0


class ItemFailure(NamedTuple):
    """The trouble with an item."""

    retried: int
    """The number of retries."""
    is_skipped: bool
    """Whether it was skipped."""


Delivered: TypeAlias = tuple[int, int, int, Sequence[Any], ItemFailure | None]
"""An item that has ended, ``(epoch, number, index, examples, trouble)``. It is in the queue once,
even if it was skipped, and then without examples.

``number`` counts all items that were taken, from 0, and ``index`` is the index in the source.
``trouble`` is ``None`` unless the item has failed at least once. The end of an epoch, an `EpochEnd`
among the items, is its own example. (It is a plain tuple, because there is one for every item.)
"""


class Prepared:
    """An item that has ended, with its examples; it has none if it was skipped."""

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
        self.item: Item = item
        self.examples: tuple[tuple[int, int, int, Any, ItemFailure | None]] = examples
        self.failures: int = failures  # before it succeeded or was skipped
        self.is_skipped: bool = is_skipped
        self.release: Callable[[], None] | None = (
            release  # called when the examples are in the queue
        )
        self.size: int = 0
        self.entered: int = 0  # the number of its examples that are in the queue
        self.count: int | None = None  # the number of examples, if they are delivered together

    def pack(self) -> None:
        """Convert it to a whole item for delivery, with all its examples."""
        number, value, epoch, index = self.item
        examples = self.examples
        self.count = 0 if isinstance(value, EpochEnd) else len(examples)
        has_failed = self.failures or self.is_skipped
        trouble = ItemFailure(self.failures, self.is_skipped) if has_failed else None
        self.examples = ((epoch, number, index, examples, trouble),)


T = TypeVar("T")


class Reordering(Generic[T]):
    """Holds results that come too early until the earlier ones have come. Not thread-safe.

    The caller that brings the next result in order passes it on, and then all that follow it;
    meanwhile other callers only hand in theirs. It holds no more than what is in flight, which its
    users bound.
    """

    __slots__ = ("_held", "_is_handing_on", "_next")

    def __init__(self) -> None:
        self._held: dict[int, T] = {}
        self._next = 0
        self._is_handing_on = False  # a caller is passing results on

    def __len__(self) -> int:
        """The number of results that it holds."""
        return len(self._held)

    def bring(self, number: int, thing: T) -> T | None:
        """Hand in the result with this number, from 0.

        Returns:
            The same, if the caller must pass it on now, and then what is `following`.
        """
        if self._is_handing_on or number != self._next:
            self._held[number] = thing
            return None
        self._is_handing_on = True
        self._next += 1
        return thing

    def following(self) -> T | None:
        """Return the next result for the caller that has passed on the one before; ``None`` if it
        has not come yet: then the caller that brings it continues from there."""
        thing = self._held.pop(self._next, None) if self._held else None
        if thing is None:
            self._is_handing_on = False
        else:
            self._next += 1
        return thing
