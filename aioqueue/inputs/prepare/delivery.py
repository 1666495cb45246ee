"""What a `prepare` delivers to a pipeline: items that have ended, each with its examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

__all__ = ("Counts", "Delivered", "Trouble")


class Counts(NamedTuple):
    """What has become of items that have ended; see `PrepareStatistics`."""

    prepared: int = 0
    examples: int = 0
    left_out: int = 0
    skipped: int = 0
    retried: int = 0


class Trouble(NamedTuple):
    """What went wrong with an item."""

    retried: int
    """How often it was tried again."""
    is_skipped: bool
    """Whether it was given up."""


Delivered: TypeAlias = tuple[int, int, int, Sequence[Any], Trouble | None]
"""An item that has ended, ``(epoch, number, index, examples, trouble)``: in the queue once, also if
it was skipped, and then without examples.

``number`` is its place among all items that were taken, from 0, and ``index`` its index in the
source; there is no ``trouble`` unless it has failed. The end of an epoch, an `EpochEnd` among the
items, is its own example. (A plain tuple: there is one of them for every item.)
"""
