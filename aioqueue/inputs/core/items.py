"""Items, in each of their forms on the way through a run.

A source gives an `Entry`, or a `PlacedEntry` with the place behind it. A worker takes an `Item`. It
becomes a `Prepared` with its examples and outcome, or a `Quarantined` record if it was skipped.
`Reordering` restores the order of prepared items.
"""

from __future__ import annotations

import reprlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from aioqueue.display_text import without_secrets
from aioqueue.inputs.core.positions import Place
from aioqueue.public_names import public
from aioqueue.tracebacks import shorten

__all__ = (
    "ClosingRun",
    "Delivered",
    "Entry",
    "EpochEnd",
    "Item",
    "ItemCounts",
    "ItemFailure",
    "Origin",
    "PlacedEntry",
    "Prepared",
    "Quarantined",
    "Reordering",
    "brief",
    "closing_run",
    "safe_repr",
    "value_told",
)


class _Repr(reprlib.Repr):
    """Hides passwords in URLs, before it shortens them."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 120

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(without_secrets(x) if "://" in x else x, level)

    def repr_instance(self, x: Any, level: int) -> str:
        try:
            text = repr(x)
            text = without_secrets(text) if "://" in text else text
        except Exception:
            return super().repr_instance(x, level)  # says that it cannot
        if len(text) <= self.maxother:
            return text
        head = (self.maxother - 3) // 2
        return f"{text[:head]}...{text[head + 3 - self.maxother :]}"


_repr = _Repr()

_BRIEF = 80


class EpochEnd(NamedTuple):
    """Marks the end of an epoch among the items of a source."""

    epoch: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    """How many items the epoch had."""


@public("aioqueue.inputs")
class Origin(NamedTuple):
    """Identifies an item among all items of a pipeline."""

    source: int
    """The number of its source: 0 for the source of the pipeline; others were mixed in."""
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    """Its index there, as in `Entry`; `Source.locate` describes the item."""


class Item(NamedTuple):
    """One item of a source."""

    number: int
    """Its place among all that were taken, from 0."""
    value: Any
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index

    def describe(self) -> str:
        """Describe the item: its value, shortened, with its epoch and index."""
        return f"item {value_told(self.value)} (epoch {self.epoch}, index {self.index})"

    def title(self) -> str:
        """Describe the item for the title of a failure: only its value, in a few words."""
        return f"item {brief(self.value)}"


def value_told(value: Any) -> str:
    """The `repr` of the value of an item, shortened."""
    return safe_repr(value, _repr.repr)


def brief(value: Any) -> str:
    """The value of an item in a few words, on one line."""
    text = " ".join(value_told(value).split())
    return text if len(text) <= _BRIEF else f"{text[: _BRIEF - 3]}..."


@public("aioqueue.inputs")
@dataclass(frozen=True)
class Quarantined:
    """An item that could not be prepared, or a damaged file.

    Attributes:
        item: the item itself; of a damaged file, its path.
        epoch: the epoch of the source that it belongs to.
        index: its place in that epoch.
        error: the last failure, its class and message.
        traceback: that failure as Python prints it.
        attempts: how often its preparation was tried.
        seed: what the generator of the item is derived from, beside epoch and index.
        offset: of a damaged file, where the damage is, in bytes (decompressed); else ``None``.
    """

    item: Any
    epoch: int
    index: int
    error: str
    traceback: str
    attempts: int
    seed: int
    offset: int | None = None

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
    """The `repr` of a value, also if its class raises in it."""
    try:
        return describe(value)
    except Exception as error:
        return f"<{type(value).__name__} whose {describe.__name__} raises {type(error).__name__}>"


T = TypeVar("T")


@public("aioqueue.inputs")
class Entry(NamedTuple, Generic[T]):
    """An item of a source, with the epoch and index that identify it.

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
    """An entry, and the place of a run that has taken it.

    Attributes:
        entry: the item, with its epoch and index.
        place: behind it, for `Source.position` and `Source.placed_after`: ints, strings, ``None``,
            and sequences of them.
    """

    entry: Entry[T]
    place: Place


def closing_run(run: Iterator[T]) -> ClosingRun[T]:
    """Close a run through a source when its loop ends, because it may have open files."""
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
        self.examples: Any = examples  # a tuple, or an async generator that still makes them
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
