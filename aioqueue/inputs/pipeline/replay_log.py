"""What a node takes in that holds some of it, so that it can be given that again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from weakref import ref

import numpy as np

from aioqueue.inputs.core.items import EpochEnd
from aioqueue.inputs.pipeline.checkpoint_state import (
    NUMBER,
    DeferredState,
    StateMarks,
    id_of,
    id_text,
    packed,
    packed_within,
    unpacked_array,
)
from aioqueue.inputs.pipeline.node import (
    END,
    ROW_NUMBER,
    ROW_SUB,
    Flow,
    Id,
    Node,
    Row,
    State,
    Taken,
    WantedRows,
    id_in,
    number_of,
    sub_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ("Columns", "HoldingNode", "KnownNames", "NameColumns", "ReplayLog")

_AT_ONCE: Final = 256
"""Rows that are taken again together: more would have Python look for garbage among them."""

_MOST_CHANGED: Final = 256
"""Rows of a buffer that are worth being looked up one by one."""


class Columns(NamedTuple):
    """The numbers of rows, and their subs: ``None`` where all of these are 0, as of most rows."""

    numbers: NDArray[np.int64]
    subs: NDArray[np.int64] | None

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Columns:
        """Those of these rows."""
        numbers = np.fromiter(map(number_of, rows), NUMBER, len(rows))
        has_subs = any(map(sub_of, rows))
        return cls(numbers, np.fromiter(map(sub_of, rows), NUMBER, len(rows)) if has_subs else None)

    def itself(self) -> Columns:
        """These."""
        return self

    def copied(self) -> Columns:
        """The same, which does not change with these."""
        return Columns(self.numbers.copy(), None if self.subs is None else self.subs.copy())

    def with_rows(self, places: Sequence[int], rows: Sequence[Row]) -> Columns:
        """These, changed to what is at some places now."""
        numbers, subs = self
        for place in places:  # they are few: to hand them over together takes longer
            row = rows[place]
            numbers[place], sub = row[ROW_NUMBER], row[ROW_SUB]
            if subs is not None:
                subs[place] = sub
            elif sub:
                subs = np.zeros_like(numbers)
                subs[place] = sub
        return Columns(numbers, subs)


class NameColumns(NamedTuple):
    """What names rows of a node, in columns: there may be as many as a shuffle holds."""

    epochs: Sequence[int]
    """One of each, or one for all."""
    numbers: NDArray[np.int64]
    subs: NDArray[np.int64] | None
    """``None`` where all are 0."""

    @classmethod
    def of(cls, ids: Sequence[Id]) -> NameColumns:
        """Those of the rows that have these."""
        epochs, numbers, subs = np.array(ids, NUMBER).reshape(-1, 3).T.copy()
        is_one = bool(len(ids)) and bool((epochs == epochs[0]).all())
        found = (epochs[:1] if is_one else epochs).tolist()
        return cls(found, numbers, subs if subs.any() else None)

    @classmethod
    def of_columns(cls, epoch: int, columns: Columns, rows: Sequence[Row]) -> NameColumns:
        """Those of rows of one epoch, and of some more."""
        numbers, subs = columns
        if rows:
            more = Columns.of(rows)
            if subs is not None or more.subs is not None:
                subs = np.concatenate([_subs_of(columns), _subs_of(more)])
            numbers = np.concatenate([numbers, more.numbers], dtype=NUMBER)
        return cls([epoch], numbers, subs)

    def first(self) -> Id:
        """The first of them all."""
        if len(self.epochs) > 1:
            subs = [0] * len(self.epochs) if self.subs is None else self.subs.tolist()
            return min(zip(self.epochs, self.numbers.tolist(), subs, strict=True))
        number = self.numbers[self.numbers.argmin()]
        sub = 0 if self.subs is None else self.subs[self.numbers == number].min()
        return self.epochs[0], int(number), int(sub)

    def packed(self, first: Id, last: Id) -> str:
        """All of it as text: ``epochs:rows``, or ``epochs:rows.parts``.

        Args:
            first: the first of them.
            last: none is behind it.
        """
        subs = "" if self.subs is None else f".{packed(self.subs)}"
        span = last[1] - first[1] if first[0] == last[0] else END
        return f"{packed(self.epochs)}:{packed_within(self.numbers, span)}{subs}"


def _subs_of(columns: Columns) -> NDArray[np.int64]:
    return np.zeros_like(columns.numbers) if columns.subs is None else columns.subs


class KnownNames:
    """The names of the rows in a buffer, most of which are where they were at the last state.

    Whoever wants a state behind each batch need not have them all looked up again: only those that
    have changed are, if they are few. Not thread-safe, but for what `copied` returns.
    """

    def __init__(self) -> None:
        # Where rows have changed since all names were copied; ``None`` if that is not known.
        self._changed: list[int] | None = None
        # The names then, with the list of the changes since.
        self._known: tuple[list[int], Columns] | None = None

    def change(self, places: Sequence[int], size: int) -> None:
        """Rows were put to these places, if these are below a size."""
        if self._changed is not None:
            self._changed += [place for place in places if place < size]
            if len(self._changed) > _MOST_CHANGED:
                self._changed = None

    def forget(self) -> None:
        """All may be others."""
        self._changed = None

    def copied(self, rows: Sequence[Row]) -> Callable[[], Columns]:
        """What makes later the names of what there is now."""
        known, before = self._known, self._changed
        changed: list[int] = []
        self._changed = changed
        if before is None or known is None or known[0] is not before:
            copy = list(rows)
            return lambda: self._know(changed, Columns.of(copy))
        names = known[1].with_rows(before, rows)
        self._known = changed, names
        return names.copied().itself

    def _know(self, changed: list[int], names: Columns) -> Columns:
        self._known = changed, names.copied()  # of use if there was no other state meanwhile
        return names


class _Sought:
    """Rows that are looked for among all that a node gives, which comes in ascending order.

    There may be as many as a shuffle holds. So they are columns of numbers, and what comes is
    compared by whole lists with what is sought next.

    Args:
        held: `NameColumns.packed`, in the order in which the rows are wanted back; some may be
            there more than once.
        last: the row at which the node stood. It is sought as well, lest the node leave it out:
            who has it has come to where the node was.
    """

    def __init__(self, held: str, last: Id) -> None:
        numbers, subs, epochs = map(unpacked_array, _columns_in(held))
        count = len(numbers)
        ids = np.zeros((3, count + (last[1] != END)), np.int64)
        ids[0, :count], ids[1, :count] = epochs, numbers  # of one epoch, or each with its own
        if len(subs):
            ids[2, :count] = subs
        ids[:, count:] = np.reshape(last, (3, 1))
        order = np.lexsort(ids[::-1])
        ids = ids[:, order]
        is_first = np.append(True, (ids[:, 1:] != ids[:, :-1]).any(axis=0))
        places = np.empty(len(order), np.int64)
        places[order] = is_first.cumsum() - 1
        self._places: list[int] = places[:count].tolist()
        self._epochs, self._numbers, self._subs = ids[:, is_first].tolist()
        self._found: list[Row] = []
        self._next: Id | None = self._next_one()
        self._last = last

    @property
    def missing(self) -> int:
        """How many have not come."""
        return len(self._numbers) - len(self._found)

    def wanted(self) -> WantedRows | None:
        """Of which rows the nodes before may save themselves the trouble."""
        epoch, last, _ = self._last
        if not self._epochs[0] == self._epochs[-1] == epoch:
            return None
        numbers = list(dict.fromkeys(self._numbers))
        return WantedRows(epoch, numbers[: bisect_left(numbers, last)], last)

    def look_among(self, epoch: int, rows: Sequence[Row]) -> None:
        """Find those that are sought among the next rows of the node."""
        first = len(self._found)
        stop = first + len(rows)
        if (
            self._epochs[first:stop] == [epoch] * len(rows)
            and self._numbers[first:stop] == list(map(number_of, rows))
            and self._subs[first:stop] == list(map(sub_of, rows))
        ):
            self._found += rows
            self._next = self._next_one()
            return
        for row in rows:
            if self._next == id_in(epoch, row):
                self._found.append(row)
                self._next = self._next_one()

    def rows(self) -> list[Row]:
        """All that were held."""
        return list(map(self._found.__getitem__, self._places))

    def _next_one(self) -> Id | None:
        """What is sought next; ``None`` if all have come."""
        if not self.missing:
            return None
        at = len(self._found)
        return self._epochs[at], self._numbers[at], self._subs[at]


def _columns_in(held: str) -> tuple[str, str, str]:
    """The packed numbers, parts and epochs of rows in what `NameColumns.packed` has made."""
    epochs, _, rows = held.partition(":")
    numbers, _, subs = rows.partition(".")
    return numbers, subs, epochs


class HoldingNode(Protocol):
    """A node that holds rows."""

    def _held(self) -> list[Id]:
        """The rows that are held, in the order in which they are wanted back."""

    def _copied(self) -> Callable[[], NameColumns] | None:
        """The same, without waiting for it: what names them later; ``None`` if none are held."""


class ReplayLog:
    """What a node takes in that holds some of it, so that it can be given that again.

    Args:
        node: where the rows come from.
        holder: whose tape this is. It is not kept alive: with the tape, which it owns, it would be
            a cycle that keeps its rows until the garbage collector runs.
    """

    def __init__(self, node: Node, holder: HoldingNode) -> None:
        self.node = node
        self._holder = ref(holder)
        self._marks: StateMarks[Id] = StateMarks(node)
        self._last: Id = (node.span.start - 1, END, 0)  # what was taken last
        self._restored: State | None = None
        self._sought: _Sought | None = None  # what was held, and is to be taken again
        self._at = self._last  # where `again` is
        self._prune_at = 8

    def take(self, n: int) -> Flow[Taken]:
        """The next rows, as `Node.take`."""
        if self.node.is_ordered:
            # Each epoch has one, lest whoever goes on in it has to go through earlier ones.
            self._marks.note(self._last, is_due=self._last[1] == END)
            if len(self._marks) > self._prune_at:
                self._prune()
        taken = yield from self.node.take(n)
        if isinstance(taken, EpochEnd):
            self._last = (taken.epoch, END, 0)
        else:
            self._last = id_in(self.epoch, taken[-1])
            self._marks.count(len(taken))
        return taken

    @property
    def epoch(self) -> int:
        """The one that the next row is of."""
        epoch, number, _ = self._last
        return epoch + 1 if number == END else epoch

    @property
    def is_to_be_wound(self) -> bool:
        """Whether rows that were held have to be taken `again` first."""
        return self._restored is not None

    def again(self) -> Flow[list[Row]]:
        """The rows that were held, after a restart; and all up to where it was are passed."""
        sought = self._sought
        assert sought is not None
        while self._at < self._last:
            taken = yield from self.node.take(max(1, min(sought.missing, _AT_ONCE)))
            if isinstance(taken, EpochEnd):
                self._at = (taken.epoch, END, 0)
                continue
            epoch = self._at[0] + (self._at[1] == END)
            self._at = id_in(epoch, taken[-1])
            sought.look_among(epoch, taken)
        if sought.missing or self._at != self._last:
            raise RuntimeError(
                f"the pipeline does not give the examples again that it gave before it was"
                f" resumed: got {self._at} (epoch, number, place within the item) where"
                f" {self._last} was expected; a function or file was changed"
            )
        self._restored = self._sought = None
        return sought.rows()

    def skip_to(self, epoch: int) -> None:
        """Forget the epochs before this one."""
        self.node.skip_to(epoch)
        self._marks.clear()
        self._restored = self._sought = None
        self._last = (epoch - 1, END, 0)

    def has_ended(self, epoch: int) -> bool:
        """Whether the last that was taken is the end of an epoch."""
        return self._last == (epoch, END, 0)

    def state(self, given: Sequence[Id] = ()) -> State | DeferredState:
        """What is needed in order to have again what is held, and all that comes.

        Args:
            given: rows that were passed on as they are, and are to come again: of a node that is
                not ordered.
        """
        if self._restored is not None:
            return self._restored
        if not self.node.is_ordered:
            return self.state_with([*given, *self._held()], self._last)
        last, held = self._last, self._owner._copied()
        if held is None:
            return {"taken": id_text(last), "upstream": self.node.state()}
        named, marks = held, self._marks.copied()

        def made() -> State:
            names = named()
            first = names.first()
            at, upstream = next(mark for mark in marks if mark.at < first)
            return {
                "taken": id_text(last),
                "from": id_text(at),
                "held": names.packed(first, last),
                "upstream": upstream,
            }

        return DeferredState(made)

    def state_with(self, held: Sequence[Id], taken: Id) -> State:
        """The same of a node that is not ordered: it will give these rows again, in any order.

        Args:
            held: the rows.
            taken: the last row that a run which goes on from there need not take again.
        """
        return {"taken": id_text(taken), "upstream": self.node.state(held)}

    def restore(self, state: State) -> None:
        """Go to a state; `again` is next where something was held."""
        self._last = id_of(state["taken"])
        if "held" not in state:
            self.node.restore(state["upstream"])
            return
        self._restored = state
        self._at = id_of(state["from"])
        self._sought = sought = _Sought(state["held"], self._last)
        self._marks.restore(self._at, state["upstream"])
        self.node.restore(state["upstream"], sought.wanted())

    @property
    def _owner(self) -> HoldingNode:
        holder = self._holder()
        assert holder is not None  # nobody else calls us
        return holder

    def _held(self) -> list[Id]:
        return self._owner._held()

    def _prune(self) -> None:
        held = self._held()
        self._marks.forget(_before(min(held)) if held else self._last)
        self._prune_at = 2 * len(self._marks) + 8


def _before(one: Id) -> Id:
    """The last place before a row."""
    epoch, number, sub = one
    return (epoch, number, sub - 1)
