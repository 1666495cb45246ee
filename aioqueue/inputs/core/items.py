"""Items, in each of their forms on the way through a run; and provenance: which items made a row.

A source gives an `Entry`, or a `PlacedEntry` with the place behind it. A worker takes an `Item`. It
becomes a `Prepared` with its examples and outcome, or a `Quarantined` record if it was skipped.
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

import reprlib
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import repeat
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from aioqueue.display_text import without_secrets
from aioqueue.inputs.core.positions import Place
from aioqueue.locks import call_with_lock
from aioqueue.public_names import public
from aioqueue.tracebacks import shorten, text_of


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
    traceback: str = field(repr=False)
    attempts: int
    seed: int
    offset: int | None = None

    def __repr__(self) -> str:
        shown = [one.name for one in fields(self) if one.repr]
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return without_secrets(f"{type(self).__name__}({told})")

    @classmethod
    def of(cls, item: Item, error: Exception, attempts: int, seed: int) -> Quarantined:
        """The record of an item and its last failure."""
        shorten(error)
        lines = text_of(error, traceback.format_exception_only).splitlines()
        return cls(
            item.value,
            item.epoch,
            item.index,
            # The first lines may be code.
            without_secrets(next(line for line in lines if not line.startswith(" "))),
            without_secrets(text_of(error)),
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


Cut: TypeAlias = dict[int, Any]
"""Which parts of an item were delivered. The keys are the places of the parts, from 0. The value is
``None`` if the whole part was delivered, and otherwise the `Cut` of that part."""


class ProvenanceListener(Protocol):
    """Is notified when items are done. The ledger of an epoch is one."""

    lock: threading.RLock
    """Held while tickets change."""
    source: int
    """The number of the source of the items."""
    epoch: int
    """The epoch of the items."""

    def finished(self, number: int) -> None:
        """Note that an item is done."""

    def was_split(self, number: int, ticket: ItemTicket) -> None:
        """Note that an item has become several examples."""

    def lose(self, why: str) -> None:
        """Note that the delivered items are no longer known, and why."""


class ItemLabel:
    """Names an item. Nothing is notified when the item is done."""

    __slots__ = ("item",)

    def __init__(self, item: Origin) -> None:
        self.item: Origin = item


class LoanKeeper(Protocol):
    """Knows what is on lease from a queue."""

    lock: threading.RLock
    """Held while loans change."""

    def gave_nothing(self, item: Origin, *, is_done: bool) -> None:
        """Note that nothing of an item will reach the user.

        Args:
            item: the item.
            is_done: whether a `prepare` has seen to it: it skipped the item, or its function made
                no example of it.
        """


class ItemLoan(ItemLabel):
    """Follows an item that was taken from a queue, until one of three ends is known.

    It was *handed out* with the first row that contains a part of it (`handed_out`); it *gave
    nothing*, as all its parts were left out (`finish`, `make_none`); or neither, and it goes back.

    Args:
        item: the item.
        keeper: is notified if it has given nothing.
    """

    __slots__ = ("_is_whole", "_keeper", "_left")

    def __init__(self, item: Origin, keeper: LoanKeeper) -> None:
        super().__init__(item)
        self._keeper = keeper
        self._left = 1  # the parts that are on their way
        self._is_whole = True  # whether it never had several

    def split(self, count: int) -> None:
        """Note that a part of it has become several."""
        self._is_whole = False
        call_with_lock(self._keeper.lock, self._change, count - 1, False)

    def finish(self) -> None:
        """Note that a stage has left a part of it out."""
        call_with_lock(self._keeper.lock, self._change, -1, False)

    def make_none(self) -> None:
        """Note that a `prepare` has made nothing of it, or of a part of it."""
        call_with_lock(self._keeper.lock, self._change, -1, self._is_whole)

    def _change(self, by: int, is_done: bool) -> None:
        self._left += by
        if not self._left:
            self._keeper.gave_nothing(self.item, is_done=is_done)


class ItemTicket:
    """Follows an item of a source, or one of several examples made of it, until it is done.

    Args:
        keeper: is notified when the item is done.
        name: the number of the item; for an example, its place among those of its item.
        index: the index of the item in its source.
        above: the ticket that this is a part of; ``None`` for an item.
        gone: the parts that an earlier number of ranks has delivered. They are dropped.
        done: the parts that were delivered before this run began, and that it makes again
            together with the others.
    """

    __slots__ = ("_above", "_index", "_left", "_name", "_parts", "done", "gone", "keeper")

    def __init__(
        self,
        keeper: ProvenanceListener,
        name: int,
        index: int,
        above: ItemTicket | None,
        gone: Cut,
        done: Cut,
    ) -> None:
        self.keeper: ProvenanceListener = keeper
        self._name = name
        self._index = index
        self._above = above
        self.gone: Cut = gone
        self.done: dict[int, Any | None] = done
        self._left: set[int] | None = None  # the parts that are not done; None before a split

    @property
    def item(self) -> Origin:
        """The item that this ticket follows, or is a part of."""
        return Origin(self.keeper.source, self.keeper.epoch, self._index)

    def split(self, count: int) -> list[RowOrigin]:
        """Split into parts. Returns the origin of each; `GONE` for parts that are dropped."""
        # A part is left unless all of it is gone. A cut in `gone` means that only parts of it are.
        self._left = {
            part for part in range(count) if part not in self.gone or self.gone[part] is not None
        }
        self._parts: dict[int, ItemTicket] = {}
        origins = [self._part(part) if part in self._left else GONE for part in range(count)]
        if self._above is None:  # the keeper asks the ticket for its `cut` when a state is taken
            self.keeper.was_split(self._name, self)
        if not self._left:  # no examples, or all of them gone: nothing will finish it later
            self.finish()
        return origins

    def _part(self, part: int) -> RowOrigin:
        """The origin of a part that is not dropped."""
        assert self._left is not None
        gone, done = self.gone.get(part) or {}, self.done.get(part, {})
        if done is not None:
            ticket = self._parts[part] = ItemTicket(
                self.keeper, part, self._index, self, gone, done
            )
            return ticket
        self._left.discard(part)
        # The part was delivered before, and is repeated, without what was gone of it then. So it
        # only needs a label; or a ticket, if parts of it have to be dropped again.
        return (
            ItemTicket(self.keeper, part, self._index, self, gone, {})
            if gone
            else ItemLabel(self.item)
        )

    def finish(self) -> None:
        """Note that the user has received all of it, or that a stage has dropped it for good.
        Further calls change nothing."""
        if self._above is None:
            self.keeper.finished(self._name)
        else:
            self._above.part_finished(self._name)

    def part_finished(self, part: int) -> None:
        """Note that one of its parts is done."""
        assert self._left is not None
        if part in self._left:
            self._left.remove(part)
            self.done = {**self.done, part: None}  # a new dict: a state may refer to the old one
            self._parts.pop(part, None)
            if not self._left:
                self.finish()

    def cut(self) -> Cut:
        """The parts that were delivered so far: the `done` of its ticket in a resumed run."""
        if self._left is None:  # not split yet in this run: what a run before knew still holds
            return self.done
        # The parts that are done, and the delivered parts of those that are not.
        below = {part: ticket.cut() for part, ticket in self._parts.items()}
        return {**self.done, **{part: cut for part, cut in below.items() if cut}}


class _Loans(tuple[ItemTicket | ItemLabel, ...]):
    """The origins in a batch, if some of them are on lease from a queue.

    Attributes:
        rows: the origin of each of its rows, for when it is taken apart again: rows that the user
            has not received then go back, without those that were received.
    """

    rows: Sequence[RowOrigin]


class _Gone:
    """The origin of a part that is dropped."""


GONE: Final = _Gone()

RowOrigin: TypeAlias = ItemTicket | ItemLabel | tuple[ItemTicket | ItemLabel, ...] | _Gone | None
"""The items that a row was made from. ``None`` if they are not recorded."""

UNKNOWN: Final = repeat(None)
"""The origins of any number of examples, if they are not recorded."""


def split(origin: RowOrigin, count: int) -> Iterable[RowOrigin]:
    """The origins of several examples that were made of one row. Without any, the row is done.

    If the row was made of several items, nothing says which example belongs to which item. Then
    each example is labelled with all of them, and the delivered items are no longer known.
    """
    if isinstance(origin, ItemTicket):
        return call_with_lock(origin.keeper.lock, origin.split, count)
    if not count:
        finish(origin)
        return ()
    for loan in _loans_in(origin):
        loan.split(count)
    if isinstance(origin, tuple):
        _lose(origin)
        return [named(origin)] * count
    return [origin] * count


def make_none(origin: RowOrigin) -> None:
    """Finish a row from which a `prepare` has made no example."""
    if isinstance(origin, ItemLoan):
        origin.make_none()
    else:
        split(origin, 0)  # a batch, say, is no element of the queue


def share(origin: RowOrigin) -> None:
    """Note that a row is a part of one more row than is known."""
    for loan in _loans_in(origin):
        loan.split(2)


def loaned(origin: RowOrigin) -> list[Origin]:
    """The items of a row that are on lease from a queue."""
    return [loan.item for loan in _loans_in(origin)]


def _loans_in(origin: RowOrigin) -> list[ItemLoan]:
    if isinstance(origin, ItemLoan):
        return [origin]
    if isinstance(origin, tuple):
        return [one for one in origin if isinstance(one, ItemLoan)]
    return []


def unbatched(origin: RowOrigin, count: int) -> Iterable[RowOrigin]:
    """The origins of the rows of a batch. If there are as many items as rows, each row has one."""
    if isinstance(origin, _Loans) and len(origin.rows) == count:
        return origin.rows
    if isinstance(origin, tuple) and len(origin) == count:
        # Row i is of item i, unless a `collate` has reordered them. That is good enough for a
        # journal, but not to know which items were delivered.
        _lose(origin)
        return [one if isinstance(one, ItemLoan) else ItemLabel(one.item) for one in origin]
    return split(origin, count)


def named(origin: RowOrigin) -> RowOrigin:
    """The origin of a row that repeats another one: it names the same items, without tickets."""
    if isinstance(origin, ItemTicket):
        return ItemLabel(origin.item)
    if isinstance(origin, tuple):
        return tuple(one if isinstance(one, ItemLoan) else ItemLabel(one.item) for one in origin)
    return origin


def joined(origins: Iterable[RowOrigin]) -> RowOrigin:
    """The origin of a row that is made of several others, such as a batch."""
    found: list[ItemTicket | ItemLabel] = []
    rows: list[RowOrigin] = []
    for origin in origins:
        if isinstance(origin, ItemTicket | ItemLabel):
            found.append(origin)
        elif isinstance(origin, tuple):
            found += origin
        else:  # one row without provenance: that of the whole is not known
            return None
        rows.append(origin)
    if any(isinstance(one, ItemLoan) for one in found):
        loans = _Loans(found)
        loans.rows = rows
        return loans
    return tuple(found)


def finish(origin: RowOrigin) -> None:
    """Finish the tickets of a row that the user receives, or that a stage drops for good."""
    for loan in _loans_in(origin):
        loan.finish()
    if isinstance(origin, ItemTicket):
        call_with_lock(origin.keeper.lock, origin.finish)
    elif isinstance(origin, tuple):
        tickets = [one for one in origin if isinstance(one, ItemTicket)]
        if tickets:
            call_with_lock(tickets[0].keeper.lock, _finish_all, tickets)


def items_of(origin: RowOrigin) -> list[Origin]:
    """The items that a row was made from, in their order in the row."""
    if isinstance(origin, ItemTicket | ItemLabel):
        return [origin.item]
    return [one.item for one in origin] if isinstance(origin, tuple) else []


def _lose(origin: Iterable[ItemTicket | ItemLabel]) -> None:
    """Note that rows of several items were split, so that the delivered items are unknown."""
    ticket = next((one for one in origin if isinstance(one, ItemTicket)), None)
    if ticket is not None:
        ticket.keeper.lose(
            "a stage makes several examples of a batch, so that they belong to no single item"
        )


def _finish_all(tickets: Iterable[ItemTicket]) -> None:
    for ticket in tickets:
        ticket.finish()
