"""What a `prepare` delivers to a pipeline: items that have ended, each with its examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

__all__ = ("Delivered",)

Delivered: TypeAlias = tuple[int, int, int, Sequence[Any]]
"""An item that has ended, ``(epoch, number, index, examples)``: in the queue once, also if it was
skipped, and then without examples.

``number`` is its place among all items that were taken, from 0, and ``index`` its index in the
source. The end of an epoch, an `EpochEnd` among the items, is its own example. (A plain tuple:
there is one of them for every item.)
"""
