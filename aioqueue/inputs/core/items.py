"""One item of a source, as it was taken, what it says of itself, and its record if it failed.

Items of sources as runs have them: with what tells each from the others, and where it is.
"""

from __future__ import annotations

import reprlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar

from aioqueue.inputs.core.positions import Place
from aioqueue.public_names import public
from aioqueue.tracebacks import shorten

__all__ = (
    "ClosingRun",
    "Entry",
    "EpochEnd",
    "Item",
    "Origin",
    "PlacedEntry",
    "Quarantined",
    "brief",
    "closing_run",
    "safe_repr",
    "value_told",
)


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 120

_BRIEF = 80


class EpochEnd(NamedTuple):
    """Stands among the items of a source after the last one of an epoch, for who has to know."""

    epoch: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    """How many items the epoch had."""


@public("aioqueue.inputs")
class Origin(NamedTuple):
    """Which item it is, of all that a pipeline goes through."""

    source: int
    """Of which source: 0 is the one that the pipeline begins with; others were mixed in."""
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    """Its index there, as `Entry` has it: what it leads to, `Source.locate` tells."""


class Item(NamedTuple):
    """One item of a source."""

    number: int
    """Its place among all that were taken, from 0."""
    value: Any
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index

    def describe(self) -> str:
        """Its value, bounded, and where it comes from."""
        return f"item {value_told(self.value)} (epoch {self.epoch}, index {self.index})"

    def title(self) -> str:
        """The same for the title of a failure: its value alone, in a few words."""
        return f"item {brief(self.value)}"


def value_told(value: Any) -> str:
    """What the value of an item says of itself, bounded."""
    return safe_repr(value, _repr.repr)


def brief(value: Any) -> str:
    """The value of an item in a few words, on one line."""
    text = " ".join(value_told(value).split())
    return text if len(text) <= _BRIEF else f"{text[: _BRIEF - 3]}..."


@public("aioqueue.inputs")
@dataclass(frozen=True)
class Quarantined:
    """An item that could not be prepared.

    Attributes:
        item: the item itself.
        epoch: the epoch of the source that it belongs to.
        index: its place in that epoch.
        error: the last failure, its class and message.
        traceback: that failure as Python prints it.
        attempts: how often its preparation was tried.
        seed: what the generator of the item is derived from, beside epoch and index.
    """

    item: Any
    epoch: int
    index: int
    error: str
    traceback: str
    attempts: int
    seed: int

    @classmethod
    def of(cls, item: Item, error: Exception, attempts: int, seed: int) -> Quarantined:
        """The record of an item and its last failure."""
        shorten(error)
        lines = "".join(traceback.format_exception_only(error)).splitlines()
        return cls(
            item.value,
            item.epoch,
            item.index,
            next(line for line in lines if not line.startswith(" ")),  # first may be code
            "".join(traceback.format_exception(error)),
            attempts,
            seed,
        )


def safe_repr(value: Any, describe: Callable[[Any], str] = repr) -> str:
    """What a value says of itself, whatever its class makes of that."""
    try:
        return describe(value)
    except Exception as error:
        return f"<{type(value).__name__} whose {describe.__name__} raises {type(error).__name__}>"


T = TypeVar("T")


@public("aioqueue.inputs")
class Entry(NamedTuple, Generic[T]):
    """An item of a source, and what tells it from every other one.

    Attributes:
        value: the item itself.
        epoch: the epoch of the source, from 0.
        index: its place in the whole sequence, before sharding and shuffling, from 0.
    """

    value: T
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody misses here


@public("aioqueue.inputs")
class PlacedEntry(NamedTuple, Generic[T]):
    """An entry, and where a run stands that has taken it.

    Attributes:
        entry: the item, with its epoch and index.
        place: behind it, for `Source.position` and `Source.placed_after`: ints, strings, ``None``,
            and sequences of them.
    """

    entry: Entry[T]
    place: Place


def closing_run(run: Iterator[T]) -> ClosingRun[T]:
    """Close a run through a source when it is left, if that can be: files are open in it."""
    return ClosingRun(run)


class ClosingRun(Generic[T]):
    """A block at whose end a run through a source is closed. `closing_run` makes it.

    It is not a `contextlib.contextmanager`, which writes to the exceptions that leave it: a frozen
    one refuses that, and would be replaced by its refusal.

    Args:
        run: what is closed.
    """

    __slots__ = ("_run",)

    def __init__(self, run: Iterator[T]) -> None:
        self._run = run

    def __enter__(self) -> Iterator[T]:
        return self._run

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        getattr(self._run, "close", bool)()
