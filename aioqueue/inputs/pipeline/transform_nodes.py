"""Nodes of the stages that run in order: filters, shuffles, batches, and copies to a device.

Their output depends only on the rows that come in, the seed and the epoch, and never on workers,
limits or time. Every epoch begins anew, unless a stage has ``across_epochs``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from aioqueue.arguments import Answers, function_name, refuse_awaitable
from aioqueue.coordination.classify import add_note
from aioqueue.inputs.collation.stack import Collator, Uncollated
from aioqueue.inputs.core.items import EpochEnd, value_told
from aioqueue.inputs.devices.target import BufferRing, Copied, DeviceCopier, mapped
from aioqueue.inputs.ownership import private
from aioqueue.inputs.pipeline.checkpoint_state import packed, unpacked
from aioqueue.inputs.pipeline.flattening import rows_of
from aioqueue.inputs.pipeline.node import (
    END,
    ROW_INDEX,
    ROW_ORIGIN,
    ROW_VALUE,
    Flow,
    Id,
    LazyRows,
    Node,
    NoPositionError,
    Row,
    State,
    Taken,
    WantedRows,
    briefly,
    failure_of_step,
    id_in,
    origin_of,
    value_of,
)
from aioqueue.inputs.pipeline.provenance import GONE, RowOrigin, finish, joined, unbatched
from aioqueue.inputs.pipeline.replay_log import KnownNames, NameColumns, ReplayLog
from aioqueue.philox import PhiloxWords
from aioqueue.tracebacks import FailureNote

__all__ = (
    "BatchNode",
    "DeviceArrivalNode",
    "DeviceCopyNode",
    "FilterNode",
    "HoldingTransform",
    "MakingTransform",
    "ShuffleNode",
    "TakeNode",
    "Transform",
    "UnbatchNode",
)


_PLAIN: Final = frozenset({int, np.bool_})  # what predicates mostly answer, besides a bool

_AT_ONCE: Final = 256
"""The most rows that are asked for at a time, in order to fill a buffer."""

_TOLD: Final = 8
"""Rows of which a failure tells the index."""


class Transform(Node):
    """A node that makes rows of the rows of another one.

    Args:
        upstream: where its rows come from.
    """

    measured: tuple[str, ...] = ("_take_in",)
    """Names of the methods in which its work is done."""

    def __init__(self, upstream: Node) -> None:
        super().__init__(upstream.span)
        self.is_ordered: bool = upstream.is_ordered
        self.stage = ""
        """What it does, for people, who are told where something has failed."""
        self._upstream = upstream
        self._has_begun = False
        self._has_ended = False  # upstream; what is left is ready
        self._failed_at: Sequence[Row] | None = None  # where that is known more exactly

    def take(self, n: int) -> Flow[Taken]:
        while not (self._ready or self._add_more()) and not self._has_ended:
            taken = yield from self._pull(self._need(n))
            if not self._has_begun:
                self.begin(self._epoch)
                self._has_begun = True
            self._take_in(taken)
        if self._ready or self._add_more():
            return self.take_ready(n)
        return self._turn()

    def calls_of(self, given: Sequence[Any], result: Any) -> int:
        return len(given[0]) if given and not isinstance(given[0], EpochEnd) else int(bool(result))

    def _take_in(self, taken: Taken) -> None:
        try:
            if isinstance(taken, EpochEnd):
                self._has_ended = True
                self._ready.extend(self.finish())
            else:
                self._ready.extend(self.accept(taken))
        except BaseException as error:
            rows = () if isinstance(taken, EpochEnd) else taken
            raise self._failure(error, self._failed_at or rows)  # noqa: B904  # has its cause

    def _failure(self, error: BaseException, rows: Sequence[Row]) -> BaseException:
        """What a function of the user's has raised, as a failure that says where it happened."""
        failure = failure_of_step(error)
        if isinstance(failure, Exception):
            at = f", at {_described(rows, self._epoch)}" if rows else f" (epoch {self._epoch})"
            on = f" on {briefly(rows)}" if rows else ""
            note = f"in the stage `{self.stage}`{at}"
            add_note(failure, FailureNote(note, f"{self.stage} failed{on}"))
        return failure

    def _skip_to(self, epoch: int) -> None:
        self._pass_over(epoch)
        self._ready = deque()
        self._go_to(epoch)
        self.clear()

    def close(self) -> None:
        self._upstream.close()

    def state(self, held: Sequence[Id] = ()) -> State:
        return {"epoch": self._epoch, "given": self._given - len(held), **self._own_state(held)}

    def restore(self, state: State, wanted: WantedRows | None = None) -> None:
        self._epoch, self._given = state["epoch"], state["given"]
        self._restore_own(state, wanted)

    def weight(self) -> int:
        return self._upstream.weight()

    def _pull(self, n: int) -> Flow[Taken]:
        return self._upstream.take(n)

    def _pass_over(self, epoch: int) -> None:
        self._upstream.skip_to(epoch)

    def _own_state(self, held: Sequence[Id]) -> State:
        """What it knows besides, and what the node before does."""
        return {"upstream": self._upstream.state(held)}

    def _restore_own(self, state: State, wanted: WantedRows | None) -> None:
        self._upstream.restore(state["upstream"], wanted)

    def _need(self, n: int) -> int:
        """How many rows to ask for, in order to give out n."""
        return n

    def begin(self, epoch: int) -> None:
        """An epoch begins."""

    @abstractmethod
    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        """Take rows in; return those that are ready by that."""

    def finish(self) -> Iterable[Row]:
        """The epoch has ended: return what is left of it."""
        return ()

    def clear(self) -> None:
        """Forget what is inside."""

    def more(self) -> Row | None:
        """The next of what is inside and can be given out at any time: for nodes of which one row
        makes several, so that those wait as what they are made of."""
        return None

    def _add_more(self) -> bool:
        try:
            row = self.more()
        except BaseException as error:
            raise self._failure(error, self._failed_at or ())  # noqa: B904  # it says its cause
        if row is not None:
            self._ready.append(row)
        return row is not None

    def _turn(self) -> EpochEnd:
        end = EpochEnd(self._epoch, self._given)
        self._go_to(self._epoch + 1)
        return end

    def _go_to(self, epoch: int) -> None:
        self._epoch, self._given = epoch, 0
        self._has_begun = self._has_ended = False


class HoldingTransform(Transform):
    """A node that holds rows while it gives out others.

    Args:
        upstream: where they come from.
    """

    passes_on = False
    """Whether what it gives has the names that it had when it came in."""

    def __init__(self, upstream: Node) -> None:
        super().__init__(upstream)
        self._tape = ReplayLog(upstream, self)
        self._restored: State = {}

    def take(self, n: int) -> Flow[Taken]:
        if self._tape.is_to_be_wound:
            self._put_back((yield from self._tape.again()))
        return (yield from super().take(n))

    @abstractmethod
    def _held(self) -> list[Id]:
        """The rows that it holds."""

    def _copied(self) -> Callable[[], NameColumns] | None:
        """What names them later, and takes no time now: for nodes that hold many. ``None`` if it
        holds none."""
        held = self._held()
        return (lambda: NameColumns.of(held)) if held else None

    @abstractmethod
    def _put_back(self, rows: list[Row]) -> None:
        """Take back what `_held` has named, after a restart."""

    @abstractmethod
    def _shape(self) -> State:
        """How it holds them."""

    @abstractmethod
    def _reshape(self, state: State) -> None:
        """Be about to take rows back, or begin without."""

    def _ids(self, rows: Iterable[Row]) -> list[Id]:
        return [id_in(self._epoch, row) for row in rows]

    def _pull(self, n: int) -> Flow[Taken]:
        return self._tape.take(n)

    def _pass_over(self, epoch: int) -> None:
        self._tape.skip_to(epoch)

    def _own_state(self, held: Sequence[Id]) -> State:
        if held and not self.passes_on:
            raise NoPositionError(
                "this pipeline has no position: examples come from workers that do not keep the"
                " order (ordered=False), and pass several stages that hold some of them; keep the"
                " order, or use one such stage"
            )
        if not self._has_begun:  # what was counted is of the epoch before
            self._has_begun = True
            self.begin(self._epoch)
        shape = self._restored if self._tape.is_to_be_wound else self._shape()
        if self.is_ordered:
            return {"shape": shape, "tape": self._tape.state()}
        # Where there is no order, the node before goes back and gives again what was held.
        held = [*held, *self._held()]
        ended = self._epoch if self._has_ended and not held else self._epoch - 1
        return {"shape": shape, "tape": self._tape.state_with(held, (ended, END, 0))}

    def _restore_own(self, state: State, wanted: WantedRows | None) -> None:
        self._has_begun = True
        self._restored = state["shape"]
        self.begin(self._epoch)
        self._tape.restore(state["tape"])
        self._has_ended = self._tape.has_ended(self._epoch)
        self._reshape(state["shape"])


class MakingTransform(HoldingTransform):
    """A node that makes rows of several others: they are numbered anew.

    Args:
        upstream: where the others come from.
    """

    collator: Collator | None = None
    """What looks at the first example, and has all that follow look like that."""

    def __init__(self, upstream: Node) -> None:
        super().__init__(upstream)
        self._made = 0  # of this epoch
        self.first: Callable[[int], int] = lambda _: 0
        """The number of the first row of an epoch, which other ranks may have begun."""

    def begin(self, epoch: int) -> None:
        self._made = self.first(epoch)

    def _row(self, value: Any, origin: RowOrigin) -> Row:
        number = self._made
        self._made += 1
        return value, number, number, 0, origin


class FilterNode(Transform):
    """Rows whose value a function says yes to."""

    def __init__(self, upstream: Node, predicate: Callable[[Any], Any]) -> None:
        super().__init__(upstream)
        self._predicate = predicate
        self._answers = Answers(
            "predicate", predicate, "write a coroutine function for `prepare(..., drop_none=True)`"
        )

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        predicate, plain = self._predicate, _PLAIN
        kept = []
        try:
            for row in rows:
                answer = predicate(row[ROW_VALUE])
                if answer is True or (answer and (type(answer) in plain or self._is_yes(answer))):
                    kept.append(row)
                else:
                    finish(row[ROW_ORIGIN])
        except BaseException:
            self._failed_at = (row,)
            raise
        return kept

    def _is_yes(self, answer: Any) -> bool:
        """Whether a yes is one: a coroutine would be, whatever it returns."""
        self._answers.check(answer)
        return True


class TakeNode(Transform):
    """The first rows of each epoch; the rest is not even prepared.

    Args:
        upstream: where the rows come from.
        count: how many of an epoch.
    """

    def __init__(self, upstream: Node, count: int) -> None:
        super().__init__(upstream)
        self._count = count
        self._left = count

    def take(self, n: int) -> Flow[Taken]:
        if not self._left and not self._ready and not self._has_ended:
            self._upstream.skip_to(self._epoch + 1)
            self._has_ended = True
        return (yield from super().take(n))

    def defer(self) -> None:
        self._upstream.defer()

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        self._left -= len(rows)
        return rows

    def _own_state(self, held: Sequence[Id]) -> State:
        return {"left": self._left + len(held), **super()._own_state(held)}

    def _restore_own(self, state: State, wanted: WantedRows | None) -> None:
        self._left = state["left"]
        super()._restore_own(state, None)  # it has to count all of them

    def _need(self, n: int) -> int:
        return min(n, self._left)

    def _go_to(self, epoch: int) -> None:
        super()._go_to(epoch)
        self._left = self._count


class ShuffleNode(HoldingTransform):
    """Rows in random order, each drawn uniformly from a buffer that is kept full.

    Which row is drawn depends on the seed, the epoch and how many were drawn before, and so the
    order of what comes out on nothing but the order of what goes in.

    Args:
        upstream: where the rows come from.
        size: how many rows the buffer holds.
        seed: of the draws.
    """

    def __init__(self, upstream: Node, size: int, seed: int) -> None:
        super().__init__(upstream)
        self.passes_on: bool = not upstream.is_ordered  # it has no order that numbers could show
        self._size = size
        self._seed = seed
        self._buffer: list[Row] = []
        self._names = KnownNames()  # of the buffer
        self._buffered = 0  # rows in the buffer before a restart; those behind them were ready
        self._words = self._words_of(0)
        self._drawn = 0  # words of this epoch

    def begin(self, epoch: int) -> None:
        self._words = self._words_of(epoch)
        self._drawn = 0

    def _words_of(self, epoch: int) -> PhiloxWords:
        # The seed is the key and the epoch the upper half of the counter: no two epochs share one.
        return PhiloxWords((self._seed, epoch + 1))

    def weight(self) -> int:
        return len(self._buffer) + super().weight()

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        buffer, size = self._buffer, self._size
        missing = size - len(buffer)
        if missing > 0:
            buffer += rows[:missing]
            rows = rows[missing:]
            self._names.forget()
        drawn = []
        places = [word % (size + 1) for word in self._draw(len(rows))]
        for row, place in zip(rows, places, strict=True):
            # The newcomer may be drawn itself; else it takes the place of the one that is.
            if place < size:
                row, buffer[place] = buffer[place], row
            drawn.append(row)
        self._names.change(places, size)
        return drawn

    def finish(self) -> Iterable[Row]:
        buffer, drawn = self._buffer, []
        self._names.forget()
        for word in self._draw(len(buffer)):
            place = word % len(buffer)
            buffer[place], buffer[-1] = buffer[-1], buffer[place]
            drawn.append(buffer.pop())
        return drawn

    def clear(self) -> None:
        self._buffer.clear()
        self._names.forget()

    def _draw(self, count: int) -> list[int]:
        self._drawn += count
        return self._words.take(count)

    def take_ready(self, n: int) -> list[Row]:
        if self.passes_on:
            return super().take_ready(n)
        # What comes out is numbered anew: in the order in which it does.
        first = self._given
        rows = super().take_ready(n)
        return [(value, number, *rest) for number, (value, _, *rest) in enumerate(rows, first)]

    def _held(self) -> list[Id]:
        return self._ids([*self._buffer, *self._ready])

    def _copied(self) -> Callable[[], NameColumns] | None:
        if not (self._buffer or self._ready):
            return None
        epoch, buffer, ready = self._epoch, self._names.copied(self._buffer), list(self._ready)
        return lambda: NameColumns.of_columns(epoch, buffer(), ready)

    def _shape(self) -> State:
        return {"drawn": self._drawn, "buffered": len(self._buffer), "ready": len(self._ready)}

    def _reshape(self, state: State) -> None:
        self._buffered = state["buffered"]
        self._drawn = state["drawn"]
        self._words.skip(self._drawn)

    def _put_back(self, rows: list[Row]) -> None:
        self._names.forget()
        self._buffer[:], self._ready = rows[: self._buffered], deque(rows[self._buffered :])

    def _need(self, n: int) -> int:
        return max(n, min(_AT_ONCE, self._size - len(self._buffer) + n))


class BatchNode(MakingTransform):
    """Batches of rows that follow each other.

    Args:
        upstream: where the rows come from.
        size: how many rows a batch has.
        collate: makes a batch of a list of examples.
        drop_remainder: whether rows that are too few for a batch are left out.
        across_epochs: whether they wait for the rows of the next epoch.
    """

    def __init__(
        self,
        upstream: Node,
        size: int,
        collate: Callable[[list[Any]], Any],
        *,
        drop_remainder: bool,
        across_epochs: bool,
    ) -> None:
        super().__init__(upstream)
        self._size = size
        self.collator: Collator | None = collate if isinstance(collate, Collator) else None
        self._collate = collate if self.collator is not None else _checking(collate)
        self._drop_remainder = drop_remainder
        self._across_epochs = across_epochs
        self._rows: list[Row] = []
        self._epochs: list[int] = []  # of the rows

    def defer(self) -> None:
        if self.collator is not None:
            self._collate = self.collator.later

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        if type(rows) is LazyRows and len(rows) == self._size and not self._rows:  # as most are
            return (self._row(self._collate(rows.values), None),)
        self._rows += rows
        self._epochs += [self._epoch] * len(rows)
        return [self._batch(self._size)] if len(self._rows) >= self._size else ()

    def calls_of(self, given: Sequence[Any], result: Any) -> int:
        return len(self._ready)  # each a batch that was made just now

    def finish(self) -> Iterable[Row]:
        if self._across_epochs and not self.span.is_last(self._epoch):
            return ()
        rest = () if self._drop_remainder or not self._rows else (self._batch(len(self._rows)),)
        self.clear()
        return rest

    def clear(self) -> None:
        self._rows, self._epochs = [], []

    def _held(self) -> list[Id]:
        return [id_in(epoch, row) for epoch, row in zip(self._epochs, self._rows, strict=True)]

    def _shape(self) -> State:
        epochs: State = {"epochs": packed(self._epochs)} if self._epochs else {}
        return {"made": self._made, **epochs}

    def _reshape(self, state: State) -> None:
        self._made = state["made"]
        self._restored_epochs = unpacked(state.get("epochs", ""))

    def _put_back(self, rows: list[Row]) -> None:
        self._rows, self._epochs = rows, self._restored_epochs
        while len(self._rows) >= self._size:  # batches may be smaller now
            self._ready.append(self._batch(self._size))

    def _need(self, n: int) -> int:
        return self._size - len(self._rows)

    def _batch(self, size: int) -> Row:
        rows = self._rows[:size]
        try:
            batch = self._collate(list(map(value_of, rows)))
        except BaseException:
            self._failed_at = rows
            raise
        del self._rows[:size], self._epochs[:size]
        return self._row(batch, joined(map(origin_of, rows)))


def _checking(collate: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """The same function of a user's, whose batch is not to be awaited, and is nobody else's."""
    what = f"collate: {function_name(collate)}"
    instead = "make batches there without awaiting, and await in a `prepare` behind `batch`"

    def checked(examples: list[Any]) -> Any:
        batch = collate(examples)
        refuse_awaitable(what, batch, instead)
        return private(batch, examples)

    return checked


class UnbatchNode(HoldingTransform):
    """The rows of batches, one by one.

    Args:
        upstream: where the batches come from.
    """

    def __init__(self, upstream: Node) -> None:
        super().__init__(upstream)
        self._batch: Row | None = None  # of which some rows are ready
        self._left = 0  # how many of them, before a restart

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        (self._batch,) = rows
        batch, number, index, _, origin = self._batch
        values = list(rows_of(batch))
        origins = unbatched(origin, len(values))
        return [
            (value, number, index, sub, one)
            for sub, (value, one) in enumerate(zip(values, origins, strict=True), 1)
            if one is not GONE
        ]

    def _held(self) -> list[Id]:
        return self._ids([self._batch]) if self._batch is not None and self._ready else []

    def _shape(self) -> State:
        return {"left": len(self._ready)}

    def _reshape(self, state: State) -> None:
        self._left = state["left"]

    def _put_back(self, rows: list[Row]) -> None:
        self._ready = deque(list(self.accept(rows))[-self._left :])

    def _need(self, n: int) -> int:
        return 1


def _described(rows: Sequence[Row], epoch: int) -> str:
    """Which rows these are, bounded, in the words of `Item.describe`."""
    if len(rows) == 1:
        value, _, index, _, _ = rows[0]
        return f"the example {value_told(value)} (epoch {epoch}, index {index})"
    indices = ", ".join(str(row[ROW_INDEX]) for row in rows[:_TOLD])
    more = ", ..." if len(rows) > _TOLD else ""
    return f"{len(rows)} examples (epoch {epoch}, index {indices}{more})"


class DeviceCopyNode:
    """Makes batches in a ring of memory, and copies them from there. One thread calls it.

    Args:
        copier: copies to the device.
    """

    def __init__(self, copier: DeviceCopier) -> None:
        self._copier = copier
        self._ring = BufferRing(copier.slots, copier.memory)

    def copy(self, batch: Any) -> Copied:
        """Copy a batch, or begin to; what is not yet collated is made for that."""
        slot = self._ring.next()

        def made(leaf: Any) -> Any:
            return leaf.make(slot.empty) if isinstance(leaf, Uncollated) else leaf

        copied = self._copier.copied(mapped(made, batch), slot)
        slot.keep_until(copied.wait)
        return copied


class DeviceArrivalNode(Transform):
    """Rows that are `Copied`, handed to whoever computes with them."""

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        return [(value.arrived(), *where) for value, *where in rows]
