"""The replay log: how a node that holds rows gets them back after a resume.

A shuffle holds rows in its buffer. Its state does not contain them, only their names (epoch, number
and sub). After a resume, the rows have to be made again. This works in five steps:

1. While it runs, the node takes its rows through a `ReplayLog`. The log makes a mark from time to
   time: a state of the node before, and the last row that was taken then.
2. The state of the node contains the names of the rows that it holds, the last row that it has
   taken, and the last mark before all held rows.
3. After a resume, `restore` restores the node before to that mark. It passes `WantedRows` on, so
   that nodes that can skip work give only the rows that are needed.
4. `replay` takes rows from the mark up to the last taken row, and picks out those that were held.
   The others were passed on long ago, and are dropped.
5. The node puts the held rows back in their order, and continues.

If the node before is not ordered, its rows do not come again in the same order, and marks do not
help. Then the state of the node before contains the names itself (`Node.state` with ``held``): it
gives these rows again, in any order, as if they were new.

A buffer may hold many rows, and a state may be taken behind each batch. So names are kept in
columns (`NameColumns`), and `KnownNames` updates them instead of looking up all of them again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from weakref import ref

import numpy as np

from aioqueue.items.item import EpochEnd
from aioqueue.pipeline.nodes.deferred import DeferredState
from aioqueue.pipeline.nodes.flow import Flow
from aioqueue.pipeline.nodes.node import Node, Taken
from aioqueue.pipeline.nodes.progress import (
    NUMBER,
    StateMarks,
    id_of,
    id_text,
    packed,
    packed_within,
    unpacked_array,
)
from aioqueue.pipeline.nodes.rows import (
    END,
    ROW_NUMBER,
    ROW_SUB,
    Id,
    Row,
    State,
    WantedRows,
    id_in,
    number_of,
    sub_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_REPLAY_CHUNK: Final = 256
"""How many rows to take again together. With more, Python's garbage collector would scan them."""

_MARKED_TOGETHER: Final = 32
"""The least number of examples in batches between two marks."""

_MOST_CHANGED: Final = 256
"""Up to so many changed rows of a buffer are looked up one by one; with more, all rows are."""


class Columns(NamedTuple):
    """The numbers and subs of rows. Subs are ``None`` if all of them are 0, which is usual."""

    numbers: NDArray[np.int64]
    subs: NDArray[np.int64] | None

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Columns:
        numbers = np.fromiter(map(number_of, rows), NUMBER, len(rows))
        has_subs = any(map(sub_of, rows))
        return cls(numbers, np.fromiter(map(sub_of, rows), NUMBER, len(rows)) if has_subs else None)

    def as_is(self) -> Columns:
        """Return the columns: a bound method in place of a lambda."""
        return self

    def copied(self) -> Columns:
        return Columns(self.numbers.copy(), None if self.subs is None else self.subs.copy())

    def with_rows(self, places: Sequence[int], rows: Sequence[Row]) -> Columns:
        """Write the rows that are at some places now into these columns."""
        numbers, subs = self
        for (
            place
        ) in places:  # one by one: for few places this is faster than NumPy's fancy indexing
            row = rows[place]
            numbers[place], sub = row[ROW_NUMBER], row[ROW_SUB]
            if subs is not None:
                subs[place] = sub
            elif sub:
                subs = np.zeros_like(numbers)
                subs[place] = sub
        return Columns(numbers, subs)


class NameColumns(NamedTuple):
    """The names of rows in columns, because a shuffle may hold very many."""

    epochs: Sequence[int]
    """The epoch of each row, or a single one for all."""
    numbers: NDArray[np.int64]
    subs: NDArray[np.int64] | None
    """``None`` if all are 0."""

    @classmethod
    def of(cls, ids: Sequence[Id]) -> NameColumns:
        epochs, numbers, subs = np.array(ids, NUMBER).reshape(-1, 3).T.copy()
        is_one = bool(len(ids)) and bool((epochs == epochs[0]).all())
        found = (epochs[:1] if is_one else epochs).tolist()
        return cls(found, numbers, subs if subs.any() else None)

    @classmethod
    def of_columns(cls, epoch: int, columns: Columns, rows: Sequence[Row]) -> NameColumns:
        """The columns of rows of one epoch: those in columns already, and some more rows."""
        numbers, subs = columns
        if rows:
            more = Columns.of(rows)
            if subs is not None or more.subs is not None:
                subs = np.concatenate([_subs_of(columns), _subs_of(more)])
            numbers = np.concatenate([numbers, more.numbers], dtype=NUMBER)
        return cls([epoch], numbers, subs)

    def first(self) -> Id:
        """The smallest name."""
        if len(self.epochs) > 1:
            subs = [0] * len(self.epochs) if self.subs is None else self.subs.tolist()
            return min(zip(self.epochs, self.numbers.tolist(), subs, strict=True))
        number = self.numbers[self.numbers.argmin()]
        sub = 0 if self.subs is None else self.subs[self.numbers == number].min()
        return self.epochs[0], int(number), int(sub)

    def packed(self, first: Id, last: Id) -> str:
        """Encode the names as text: ``epochs:rows``, or ``epochs:rows.parts``.

        Args:
            first: the smallest name.
            last: a name that is not before any of them.
        """
        subs = "" if self.subs is None else f".{packed(self.subs)}"
        span = last[1] - first[1] if first[0] == last[0] else END
        return f"{packed(self.epochs)}:{packed_within(self.numbers, span)}{subs}"


def _subs_of(columns: Columns) -> NDArray[np.int64]:
    return np.zeros_like(columns.numbers) if columns.subs is None else columns.subs


class KnownNames:
    """Remembers the names of the rows in a buffer from one state to the next.

    Between two batches only a few rows of a buffer change. So if you take a state behind each
    batch, only the names of the changed rows are looked up. Not thread-safe, except for the
    functions that `copied` returns.
    """

    def __init__(self) -> None:
        # The places that have changed since the last copy; None if they are too many or unknown.
        self._changed: list[int] | None = None
        # The names at a copy, and the list of changes that was begun then. The names are usable
        # only if that list is still the current one: a later copy has begun another.
        self._names: tuple[list[int], Columns] | None = None

    def change(self, places: Sequence[int], size: int) -> None:
        """Note that rows were put to these places. Those from ``size`` on are not in the buffer."""
        if self._changed is not None:
            self._changed += [place for place in places if place < size]
            if len(self._changed) > _MOST_CHANGED:
                self._changed = None

    def forget(self) -> None:
        """Note that any row may have changed."""
        self._changed = None

    def copied(self, rows: Sequence[Row]) -> Callable[[], Columns]:
        """Copy what is needed to name the rows that are there now. Returns a function that makes
        the names later, in any thread."""
        known, before = self._names, self._changed
        changed: list[int] = []
        self._changed = changed
        # The names belong to the list of changes that began with them. Another list means that too
        # much has changed, or that a later copy was made whose names nobody has asked for.
        if before is None or known is None or known[0] is not before:
            copy = list(rows)
            return lambda: self._remember(changed, Columns.of(copy))
        names = known[1].with_rows(before, rows)
        self._names = changed, names
        return names.copied().as_is

    def _remember(self, changed: list[int], names: Columns) -> Columns:
        self._names = changed, names.copied()  # unused if another state was taken meanwhile
        return names


class _RowFinder:
    """Finds rows by their names among all rows of a node, which come in ascending order.

    A shuffle may hold very many rows. So the names are in columns, sorted, and each list of rows
    that comes is first compared as a whole with the names that are sought next.

    Args:
        held: the result of `NameColumns.packed`, in the order in which the rows are wanted back.
            A name may occur several times.
        last: the last row that was taken. It is sought as well, so that the node does not omit it:
            when it comes, the node is where it was.
    """

    def __init__(self, held: str, last: Id) -> None:
        numbers, subs, epochs = map(unpacked_array, _columns_in(held))
        count = len(numbers)
        # The last taken row is sought as well, unless it is the end of an epoch, which is no row.
        ids = np.zeros((3, count + (last[1] != END)), np.int64)
        ids[0, :count], ids[1, :count] = epochs, numbers  # one epoch is broadcast to all
        if len(subs):
            ids[2, :count] = subs
        ids[:, count:] = np.reshape(last, (3, 1))
        # Rows come in the order of their names, while a shuffle holds them in any order.
        # Sort the names and drop duplicates. `_places` leads from each held row to its name.
        order = np.lexsort(ids[::-1])
        ids = ids[:, order]
        is_first = np.append(True, (ids[:, 1:] != ids[:, :-1]).any(axis=0))
        places = np.empty(len(order), np.int64)
        places[order] = is_first.cumsum() - 1
        self._places: list[int] = places[:count].tolist()
        self._epochs, self._numbers, self._subs = ids[:, is_first].tolist()
        self._found: list[Row] = []
        self._next: Id | None = self._next_sought()
        self._last = last

    @property
    def missing(self) -> int:
        """How many rows have not come yet."""
        return len(self._numbers) - len(self._found)

    def wanted(self) -> WantedRows | None:
        """Return which rows earlier nodes must give; they may omit the others. ``None`` for all."""
        epoch, last, _ = self._last
        # `WantedRows` speaks of one epoch. If rows of several are held (batches across epochs), the
        # nodes before give everything.
        if not self._epochs[0] == self._epochs[-1] == epoch:
            return None
        numbers = list(dict.fromkeys(self._numbers))  # several subs share a number
        # From `last` on everything is wanted, so the list ends before it.
        return WantedRows(epoch, numbers[: bisect_left(numbers, last)], last)

    def pick_from(self, epoch: int, rows: Sequence[Row]) -> None:
        """Pick the sought rows from the next rows of the node."""
        first = len(self._found)
        stop = first + len(rows)
        # The usual case: nodes gave only wanted rows, so that all of them are sought. Comparing
        # whole lists takes a fraction of the time of a loop.
        if (
            self._epochs[first:stop] == [epoch] * len(rows)
            and self._numbers[first:stop] == list(map(number_of, rows))
            and self._subs[first:stop] == list(map(sub_of, rows))
        ):
            self._found += rows
            self._next = self._next_sought()
            return
        for row in rows:
            if self._next == id_in(epoch, row):
                self._found.append(row)
                self._next = self._next_sought()

    def rows(self) -> list[Row]:
        """All held rows, in the order in which they are wanted back."""
        return list(map(self._found.__getitem__, self._places))

    def _next_sought(self) -> Id | None:
        """The name that is sought next; ``None`` if all rows have come."""
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
        """The names of the held rows, in the order in which they are wanted back."""

    def _copied(self) -> Callable[[], NameColumns] | None:
        """A function that makes these names later; ``None`` if no rows are held."""


class ReplayLog:
    """Takes rows for a node that holds some of them, and can take these again after a resume.

    Args:
        node: the node that gives the rows.
        holder: the node that holds them. The log refers to it weakly: together with the log, which
            it owns, it would be a cycle, and keep its rows until the garbage collector runs.
    """

    def __init__(self, node: Node, holder: HoldingNode) -> None:
        self.node = node
        self._holder = ref(holder)
        # Rows come here without a hop from thread to thread, so that a mark for each tiny batch
        # would be half of all work.
        self._marks: StateMarks[Id] = StateMarks(node, of_batches=_MARKED_TOGETHER)
        self._last: Id = (node.span.start - 1, END, 0)  # the last row that was taken
        self._restored: State | None = None  # the restored state, until `replay` has run
        self._finder: _RowFinder | None = None  # the held rows that `replay` has to find
        self._at = self._last  # the last row that `replay` has taken
        self._prune_at = 8  # the number of marks at which to forget some

    def take(self, n: int) -> Flow[Taken]:
        if self.node.is_ordered:
            # Each epoch begins with a mark, so that a resume need not read an earlier epoch.
            self._marks.note(self._last, is_due=self._last[1] == END)
            if len(self._marks) > self._prune_at:
                self._prune()
        taken = yield from self.node.take(n)
        # No wait comes between the step that takes rows and these lines, so no state can be taken
        # in which the rows are neither in the node before nor in this one.
        if isinstance(taken, EpochEnd):
            self._last = (taken.epoch, END, 0)
        else:
            self._last = id_in(self.epoch, taken[-1])
            self._marks.count(len(taken))
        return taken

    def take_ready(self, n: int) -> list[Row]:
        """Take up to n rows more that are ready, in the step of a `take` that has given some."""
        rows = self.node.take_ready(n)
        if rows:
            self._last = id_in(self.epoch, rows[-1])
            self._marks.count(len(rows))
        return rows

    @property
    def epoch(self) -> int:
        epoch, number, _ = self._last
        return epoch + 1 if number == END else epoch

    @property
    def needs_replay(self) -> bool:
        """Whether you have to call `replay` before `take`."""
        return self._restored is not None

    def replay(self) -> Flow[list[Row]]:
        """Take the rows from the mark up to where the node was. Returns those that were held.

        If it is interrupted, another call continues: all state is in the log.
        """
        # The place is in `_at` and the rows in the finder, not in this generator: a cancelled call
        # is dropped with its generator, and the next one goes on behind the last chunk.
        finder = self._finder
        assert finder is not None
        while self._at < self._last:
            # Not more than are missing, so that nothing behind the last taken row is taken here.
            taken = yield from self.node.take(max(1, min(finder.missing, _REPLAY_CHUNK)))
            if isinstance(taken, EpochEnd):
                self._at = (taken.epoch, END, 0)
                continue
            epoch = self._at[0] + (self._at[1] == END)  # behind an end, the next epoch begins
            self._at = id_in(epoch, taken[-1])
            finder.pick_from(epoch, taken)
        # The source and the functions must give the same rows as in the first run. If they do not,
        # the held rows are not found, or the last taken row is passed.
        if finder.missing or self._at != self._last:
            raise RuntimeError(
                f"the pipeline gives other examples than before it was resumed: got {self._at}"
                f" (epoch, number, place within the item); expected {self._last}. A function or"
                " the data must have changed since the state was saved"
            )
        self._restored = self._finder = None
        return finder.rows()

    def skip_to(self, epoch: int) -> None:
        # Also in the middle of a replay: the rows that it would bring back belong to epochs that
        # nobody wants any more.
        """Drop the rest of the epochs before this one."""
        self.node.skip_to(epoch)
        self._marks.clear()
        self._restored = self._finder = None
        self._last = (epoch - 1, END, 0)

    def has_ended(self, epoch: int) -> bool:
        """Whether the end of an epoch was taken last."""
        return self._last == (epoch, END, 0)

    def state(self, given: Sequence[Id] = ()) -> State | DeferredState:
        """The state from which a resumed run gets the held rows again, and all rows behind them.

        Args:
            given: rows that the holder has passed on, and that have to come again; only if the node
                is not ordered.
        """
        if self._restored is not None:  # `replay` has not finished: the restored state still holds
            return self._restored
        if not self.node.is_ordered:
            return self.state_with([*given, *self._held()], self._last)
        last, held = self._last, self._owner._copied()
        if held is None:  # nothing to replay: continue exactly where the node before is
            return {"taken": id_text(last), "upstream": self.node.state()}
        # Copies, because `made` runs later, in any thread, while the nodes go on.
        named, marks = held, self._marks.copied()

        def made() -> State:
            names = named()
            first = names.first()
            # The latest mark before the first held row: from there on the fewest rows are replayed.
            # There is always one, because each epoch begins with a mark, and `_prune` keeps it.
            at, upstream = next(mark for mark in marks if mark.at < first)
            return {
                "taken": id_text(last),
                "from": id_text(at),
                "held": names.packed(first, last),
                "upstream": upstream,
            }

        return DeferredState(made)

    def state_with(self, held: Sequence[Id], taken: Id) -> State:
        """The state if the node is not ordered: it will give these rows again, in any order.

        Args:
            held: the names of the rows.
            taken: the last row that a resumed run need not take again.
        """
        return {"taken": id_text(taken), "upstream": self.node.state(held)}

    def restore(self, state: State) -> None:
        """Restore a state. If rows were held, call `replay` next."""
        self._last = id_of(state["taken"])
        # Nothing was held; or the node before is not ordered, and gives held rows again by itself.
        if "held" not in state:
            self.node.restore(state["upstream"])
            return
        self._restored = state
        self._at = id_of(state["from"])
        self._finder = finder = _RowFinder(state["held"], self._last)
        # The restored mark is the only one, until the run has passed the held rows. A state that is
        # taken soon may need it again.
        self._marks.restore(self._at, state["upstream"])
        self.node.restore(state["upstream"], finder.wanted())

    @property
    def _owner(self) -> HoldingNode:
        holder = self._holder()
        assert holder is not None  # only the holder calls us
        return holder

    def _held(self) -> list[Id]:
        return self._owner._held()

    def _prune(self) -> None:
        held = self._held()
        # Keep the last mark before the first held row, and all later ones.
        self._marks.forget(_before(min(held)) if held else self._last)
        # Looking up all held rows is slow. Doubling makes it rare, whatever the buffer holds.
        self._prune_at = 2 * len(self._marks) + 8


def _before(one: Id) -> Id:
    """The last possible name before a row."""
    epoch, number, sub = one
    return (epoch, number, sub - 1)
