"""One item of a source, as it was taken, and what it says of itself."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ("EpochEnd", "Item", "safe_repr")

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 120


class EpochEnd(NamedTuple):
    """Stands among the items of a source after the last one of an epoch, for who has to know."""

    epoch: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    """How many items the epoch had."""


class Item(NamedTuple):
    """One item of a source."""

    number: int
    """Its place among all that were taken, from 0."""
    value: Any
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index

    def describe(self) -> str:
        """Its value, bounded, and where it comes from."""
        text = safe_repr(self.value, _repr.repr)
        return f"item {text} (epoch {self.epoch}, index {self.index})"


def safe_repr(value: Any, describe: Callable[[Any], str] = repr) -> str:
    """What a value says of itself, whatever its class makes of that."""
    try:
        return describe(value)
    except Exception as error:
        return f"<{type(value).__name__} whose {describe.__name__} raises {type(error).__name__}>"
