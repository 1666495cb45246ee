"""What a `prepare` delivers to a pipeline: items that have ended, each with its examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ("Delivered",)


class Delivered(NamedTuple):
    """An item that has ended: it is in the queue once, also if it was skipped."""

    epoch: int
    number: int
    """Its place among all items that were taken, from 0."""
    index: int  # type: ignore[assignment]  # hides tuple.index
    """Its index in the source."""
    examples: Sequence[Any]
    """What became of it; none if it was left out. The end of an epoch is its own example."""
