"""Items, in each of their forms on the way through a run; and provenance: which items made a row.

There are three forms, each of its own room:

- An **entry** comes from a source: `Entry`, or `PlacedEntry` with the place behind it.
- An **item** is with the workers. It is taken as an `Item`. `Pending` adds what happens before it
  is prepared, where it may have to wait, and `Prepared` its examples and outcome. If the workers
  fill the queue of a pipeline, it goes there as a `Delivered`, without its value. If it was
  skipped, a `Quarantined` record stays.
- A **row** is with the nodes of a pipeline: one example, in `aioqueue.pipeline.nodes.rows`.

`Reordering` restores the order of prepared items.

**Provenance.** Three features need it. A journal names the items of each batch. A rank records
which of its items were delivered, so that the number of ranks can change. And what was taken from a
queue goes back unless it was delivered. Without them rows have no
provenance (``None``), because it would cost time.

A row carries a *label* if its item is only named (`ItemLabel`), or a *ticket* if somebody has to
know when the item is done (`ItemTicket`). A batch carries those of all its rows. An item that was
taken from a queue has a label that also follows it (`ItemLoan`).

If several examples are made of one item, each has a ticket of its own below that of the item. When
the user receives a row, or a stage drops it for good, its tickets are finished. An item is done
when all tickets below it are. So an item counts as delivered when all its examples were, whatever
stages they have passed. A row that repeats others, such as rank padding, has labels, so that it
does not count twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from aioqueue.base.public_names import public
from aioqueue.items.positions import Place
from aioqueue.items.value_text import format_value, short_value


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
        return f"item {format_value(self.value)} (epoch {self.epoch}, index {self.index})"

    def title(self) -> str:
        """Describe the item for the title of a failure: only its value, in a few words."""
        return f"item {short_value(self.value)}"


ItemFields: TypeAlias = tuple[int, Any, int, int]
"""The fields of an `Item`, in a plain tuple: so quick items come to the workers, because to make a
named tuple takes three times as long. An `Item` is one, too."""


def as_item(fields: ItemFields) -> Item:
    return fields if type(fields) is Item else tuple.__new__(Item, fields)


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
    """Wrap a run through a source so that its loop closes it at the end: files may be open."""
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
    """How an item has failed before it ended."""

    retried: int
    """The number of retries."""
    is_skipped: bool
    """Whether it was skipped."""


Delivered: TypeAlias = tuple[int, int, int, Sequence[Any], ItemFailure | None]
"""An item that has ended, ``(epoch, number, index, examples, failure)``. It is in the queue once,
even if it was skipped, and then without examples.

``number`` counts all items that were taken, from 0, and ``index`` is the index in the source.
``failure`` is ``None`` unless the item has failed at least once. The end of an epoch, an `EpochEnd`
among the items, is its own example.

It says the same as a `Prepared`, but that one keeps the item's value, such as the bytes of a file,
which the queue must not hold. And it is a plain tuple, because there is one for every item: making
a named tuple takes six times as long, and reading one place of many by `map` twice as long. The
places have names where they are read for many items at once: `delivered_number` and the others.
"""

delivered_number: Final = itemgetter(1)
"""Gets the number of a `Delivered`, for `map`; the following three get other places."""

delivered_index: Final = itemgetter(2)

delivered_examples: Final = itemgetter(3)

delivered_failure: Final = itemgetter(4)


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
        failure = ItemFailure(self.failures, self.is_skipped) if has_failed else None
        self.examples = ((epoch, number, index, examples, failure),)
