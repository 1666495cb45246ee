"""An item that has been prepared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioqueue.inputs.prepare.delivery import Trouble
from aioqueue.inputs.sources.item import EpochEnd, Item

__all__ = ("Prepared",)


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
        trouble = Trouble(self.failures, self.is_skipped) if has_failed else None
        self.examples = ((epoch, number, index, examples, trouble),)
