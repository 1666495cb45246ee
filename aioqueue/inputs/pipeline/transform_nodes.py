"""Nodes that process rows one after another, without workers: filters, shuffles, batches.

Their output depends only on the rows that they receive, the seed and the epoch, and never on
workers, limits or time. That makes an exact resume possible. Every epoch begins anew, unless a
stage has ``across_epochs``. Nodes that hold rows have a replay log (`HoldingTransform`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from aioqueue.arguments import Answers, function_name, refuse_awaitable
from aioqueue.errors import add_note
from aioqueue.inputs.core.batch_shape import BatchShape, Collated, OwnBatches, rows_in
from aioqueue.inputs.core.collation import Collator, Uncollated
from aioqueue.inputs.core.items import (
    GONE,
    EpochEnd,
    RowOrigin,
    finish,
    joined,
    unbatched,
    value_told,
)
from aioqueue.inputs.core.positions import misplaced
from aioqueue.inputs.devices import BufferRing, Copied, DeviceCopier
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
from aioqueue.inputs.pipeline.progress import packed, unpacked
from aioqueue.inputs.pipeline.replay_log import KnownNames, NameColumns, ReplayLog
from aioqueue.ownership import copy_if_shared
from aioqueue.philox import PhiloxWords
from aioqueue.tracebacks import FailureNote
from aioqueue.trees import mapped

_PLAIN: Final = frozenset({int, np.bool_})  # what predicates usually return, besides a bool

_AT_ONCE: Final = 256
"""The most rows to take at a time in order to fill a buffer."""

_TOLD: Final = 8
"""How many rows a failure names by their index."""


class Transform(Node):
    """A node that makes its rows of the rows of the node before.

    Args:
        upstream: the node before.
    """

    measured: tuple[str, ...] = ("_take_in",)
    """The names of the methods that do its work, for monitors."""

    def __init__(self, upstream: Node) -> None:
        super().__init__(upstream.span)
        self.is_ordered: bool = upstream.is_ordered
        self.stage = ""
        """The description of the stage, for the notes of failures."""
        self._upstream = upstream
        self._has_begun = False
        self._has_ended = False  # whether `upstream` has ended the epoch; the rest is ready
        self._failed_at: Sequence[Row] | None = None  # the rows of a failure, if they are known

    @property
    def batch_shape(self) -> BatchShape | None:
        return self._upstream.batch_shape

    def take(self, n: int) -> Flow[Taken]:
        while not (self._ready or self._add_more()) and not self._has_ended:
            if self.is_limited:
                # Before each, because a row that was taken in may not have counted.
                self._upstream.expect(self._rows_for(max(n, self._still_wanted)))
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
        return failure_in(self.stage, error, rows, self._epoch)

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
        """The fields of a subclass, and the state of the node before."""
        return {"upstream": self._upstream.state(held)}

    def _restore_own(self, state: State, wanted: WantedRows | None) -> None:
        self._upstream.restore(state["upstream"], wanted)

    def _need(self, n: int) -> int:
        """How many rows to take in order to give n."""
        return n

    def _rows_for(self, rows: int) -> int:
        """How many more rows it takes, for all that is known, in order to give so many more."""
        return rows

    def limit(self, rows: int) -> None:
        super().limit(rows)
        self._upstream.limit(self._rows_for(rows))

    def begin(self, epoch: int) -> None:
        """Begin an epoch."""

    @abstractmethod
    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        """Take rows in. Returns the rows that are ready then."""

    def finish(self) -> Iterable[Row]:
        """End the epoch. Returns the rows that are left."""
        return ()

    def clear(self) -> None:
        """Drop all rows that are held."""

    def more(self) -> Row | None:
        """Make one more row of the rows that are held, if that is possible without another input:
        for nodes in which one row completes several. A state names the inputs of the others."""
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


def failure_in(stage: str, error: BaseException, rows: Sequence[Row], epoch: int) -> BaseException:
    """What a function of the user's has raised, as a failure that says where it happened.

    Args:
        stage: what the node does, for people.
        error: what was raised.
        rows: that it was called with; none at the end of an epoch.
        epoch: of the rows.
    """
    failure = failure_of_step(error)
    if isinstance(failure, Exception):
        at = f", at {_described(rows, epoch)}" if rows else f" (epoch {epoch})"
        on = f" on {briefly(rows)}" if rows else ""
        note = f"in the stage `{stage}`{at}"
        add_note(failure, FailureNote(note, f"{stage} failed{on}"))
    return failure


class HoldingTransform(Transform):
    """A node that holds rows while it gives out others.

    Args:
        upstream: the node before.
    """

    passes_on = False
    """Whether its rows keep the names (number and sub) that they had in the node before."""

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
        """The names of the rows that it holds."""

    def _copied(self) -> Callable[[], NameColumns] | None:
        """A function that makes these names later; ``None`` if it holds no rows. Nodes that hold
        many rows override it, so that taking a state costs little."""
        held = self._held()
        return (lambda: NameColumns.of(held)) if held else None

    @abstractmethod
    def _put_back(self, rows: list[Row]) -> None:
        """Take back the rows that `_held` has named, after a resume."""

    @abstractmethod
    def _shape(self) -> State:
        """The rest of its state: how it holds the rows, and its counts."""

    @abstractmethod
    def _reshape(self, state: State) -> None:
        """Restore `_shape`. If rows were held, `_put_back` follows."""

    def _ids(self, rows: Iterable[Row]) -> list[Id]:
        return [id_in(self._epoch, row) for row in rows]

    def _pull(self, n: int) -> Flow[Taken]:
        return self._tape.take(n)

    def _pass_over(self, epoch: int) -> None:
        self._tape.skip_to(epoch)

    def _own_state(self, held: Sequence[Id]) -> State:
        if held and not self.passes_on:
            raise NoPositionError(
                "this pipeline has no position: its workers do not keep the order (ordered=False),"
                " and several later stages hold examples; keep the order, or use only one such"
                " stage"
            )
        if not self._has_begun:  # the counts are still those of the epoch before
            self._has_begun = True
            self.begin(self._epoch)
        shape = self._restored if self._tape.is_to_be_wound else self._shape()
        if self.is_ordered:
            return {"shape": shape, "tape": self._tape.state()}
        # Without order, the node before has to give the held rows again, as if they were new.
        # It gives each once, though `pack` holds several pieces of a sequence.
        held = [*dict.fromkeys((*held, *self._held()))]
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
    """A node that makes each of its rows of several others. Its rows have new numbers.

    Args:
        upstream: the node before.
    """

    collator: Collator | None = None
    """Fixes the dtypes and shapes of all examples by the first one."""

    def __init__(self, upstream: Node) -> None:
        super().__init__(upstream)
        self._made = 0  # how many rows of this epoch were made
        self.first: Callable[[int], int] = lambda _: 0
        """Returns the number of the first row of an epoch; not 0 if earlier ranks have begun it."""

    def begin(self, epoch: int) -> None:
        self._made = self.first(epoch)

    def _row(self, value: Any, origin: RowOrigin) -> Row:
        number = self._made
        self._made += 1
        return value, number, number, 0, origin


class FilterNode(Transform):
    """Keeps the rows for whose value a function returns a true value."""

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
        """Check a true answer: a coroutine is true, too, whatever it would return."""
        self._answers.check(answer)
        return True


class ShuffleNode(HoldingTransform):
    """Gives rows in random order: each is drawn uniformly from a buffer that is kept full.

    Which row is drawn depends only on the seed, the epoch and the number of draws before. So the
    order of its output depends only on the order of its input.

    Args:
        upstream: the node before.
        size: how many rows the buffer holds.
        seed: the seed of the draws.
    """

    def __init__(self, upstream: Node, size: int, seed: int) -> None:
        super().__init__(upstream)
        # Without order, rows keep the names by which the node before can give them again.
        self.passes_on: bool = not upstream.is_ordered
        self._size = size
        self._seed = seed
        self._buffer: list[Row] = []
        self._names = KnownNames()  # the names of the rows in the buffer
        self._buffered = 0  # after a restore: so many of the rows were in the buffer, others ready
        self._words = self._words_of(0)
        self._drawn = 0  # how many random words of this epoch were used

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
        places = [word % (size + 1) for word in self._draw(len(rows))]  # one place per newcomer
        for row, place in zip(rows, places, strict=True):
            # The newcomer may be drawn itself. Otherwise it takes the place of the drawn row.
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
        # New numbers, in the order in which rows leave.
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
        return max(n, min(_AT_ONCE, self._rows_for(n)))

    def _rows_for(self, rows: int) -> int:
        return rows + self._size - len(self._buffer) if rows else 0


class BatchNode(MakingTransform):
    """Makes batches of consecutive rows.

    Args:
        upstream: the node before.
        size: how many rows a batch has.
        collate: makes a batch of a list of examples.
        drop_remainder: whether to drop the last rows if they do not fill a batch.
        across_epochs: whether they wait for the rows of the next epoch instead.
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
        self._epochs: list[int] = []  # the epoch of each of these rows

    @property
    def batch_shape(self) -> BatchShape | None:
        within = self._upstream.batch_shape
        if self.collator is None:
            return OwnBatches(self._size, within)
        return Collated(self.collator, self._size, within)

    def defer(self) -> None:
        if self.collator is not None:
            self._collate = self.collator.later

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        if type(rows) is LazyRows and len(rows) == self._size and not self._rows:  # the usual case
            return (self._row(self._collate(rows.values), None),)
        self._rows += rows
        self._epochs += [self._epoch] * len(rows)
        return [self._batch(self._size)] if len(self._rows) >= self._size else ()

    def calls_of(self, given: Sequence[Any], result: Any) -> int:
        return len(self._ready)  # all of them were made just now

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
        while len(self._rows) >= self._size:  # a resumed run may have a smaller batch size
            self._ready.append(self._batch(self._size))

    def _need(self, n: int) -> int:
        return self._size - len(self._rows)

    def _rows_for(self, rows: int) -> int:
        return max(0, rows * self._size - len(self._rows))

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
    """Wrap a user's ``collate``: refuse awaitables, and copy what shares memory with examples."""
    what = f"collate: {function_name(collate)}"
    instead = "make batches without awaiting, and await in a `prepare` after `batch`"

    def checked(examples: list[Any]) -> Any:
        batch = collate(examples)
        refuse_awaitable(what, batch, instead)
        return copy_if_shared(batch, examples)

    return checked


class UnbatchNode(HoldingTransform):
    """Gives the rows of the batches of the node before, one by one."""

    def __init__(self, upstream: Node) -> None:
        super().__init__(upstream)
        self._shape_of_batches = upstream.batch_shape
        self._batch: Row | None = None  # the batch whose rows are ready
        self._left = 0  # after a restore: how many of its rows are left

    @property
    def batch_shape(self) -> BatchShape | None:
        shape = self._shape_of_batches
        return None if shape is None else shape.within

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        (self._batch,) = rows
        batch, number, index, _, origin = self._batch
        values = rows_in(batch, self._shape_of_batches)
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
        if len(rows) != 1:
            raise misplaced(f"{len(rows)} batches to take apart", "one")
        self._ready = deque(list(self.accept(rows))[-self._left :])

    def _need(self, n: int) -> int:
        return 1

    def _rows_for(self, rows: int) -> int:
        shape = self._shape_of_batches
        return -(-rows // (1 if shape is None else shape.rows or 1))


def _described(rows: Sequence[Row], epoch: int) -> str:
    """Name rows for a failure, in the words of `Item.describe`, and with bounded length."""
    if len(rows) == 1:
        value, _, index, _, _ = rows[0]
        return f"the example {value_told(value)} (epoch {epoch}, index {index})"
    indices = ", ".join(str(row[ROW_INDEX]) for row in rows[:_TOLD])
    more = ", ..." if len(rows) > _TOLD else ""
    return f"{len(rows)} examples (epoch {epoch}, index {indices}{more})"


class DeviceCopyNode:
    """Makes batches in a ring of host memory, and copies them to the device. One thread calls it.

    Args:
        copier: copies to the device.
    """

    def __init__(self, copier: DeviceCopier) -> None:
        self._copier = copier
        self._ring = BufferRing(copier.slots, copier.memory)

    def copy(self, batch: Any) -> Copied:
        """Copy a batch, or begin to. Arrays that are not made yet are made in the ring."""
        slot = self._ring.next()

        def made(leaf: Any) -> Any:
            return leaf.make(slot.empty) if isinstance(leaf, Uncollated) else leaf

        copied = self._copier.copied(mapped(made, batch), slot)
        slot.keep_until(copied.wait)
        return copied


class DeviceArrivalNode(Transform):
    """Gives copied batches (`Copied`) to the consumer, whose stream waits for the copies."""

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        return [(value.arrived(), *where) for value, *where in rows]
