"""What the nodes of stages share: those that transform rows, and those that hold rows back."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from aioqueue.base.tracebacks import FailureNote
from aioqueue.errors import add_note
from aioqueue.items.item import EpochEnd
from aioqueue.items.provenance import RowOrigin
from aioqueue.items.value_text import format_value
from aioqueue.pipeline.batches.batch_shape import BatchShape
from aioqueue.pipeline.batches.collation import Collator
from aioqueue.pipeline.nodes.flow import Flow, failure_of_step
from aioqueue.pipeline.nodes.node import Node, NoPositionError, Taken
from aioqueue.pipeline.nodes.replay_log import NameColumns, ReplayLog
from aioqueue.pipeline.nodes.rows import (
    END,
    ROW_INDEX,
    Id,
    Row,
    State,
    WantedRows,
    format_rows,
    id_in,
)

_MOST_INDICES: Final = 8
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
        self._makes_more = type(self).more is not Transform.more  # asked for each row

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
        return self._end_epoch()

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
        """Return how many more input rows it needs, as far as is known, for that many more rows."""
        return rows

    def limit(self, rows: int) -> None:
        super().limit(rows)
        self._upstream.limit(self._rows_for(rows))

    def begin(self, epoch: int) -> None: ...

    @abstractmethod
    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        """Take rows in. Returns the rows that are ready then."""

    def finish(self) -> Iterable[Row]:
        """End the epoch. Returns the rows that are left."""
        return ()

    def clear(self) -> None: ...

    def more(self) -> Row | None:
        """Make one more row of the rows that are held, if that is possible without another input:
        for nodes in which one row completes several. A state names the inputs of the others."""
        return None

    def _add_more(self) -> bool:
        if not self._makes_more:
            return False
        try:
            row = self.more()
        except BaseException as error:
            raise self._failure(error, self._failed_at or ())  # noqa: B904  # it says its cause
        if row is not None:
            self._ready.append(row)
        return row is not None

    def _end_epoch(self) -> EpochEnd:
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
        on = f" on {format_rows(rows)}" if rows else ""
        note = f"in the stage `{stage}`{at}"
        add_note(failure, FailureNote(note, f"{stage} failed{on}"))
    return failure


class HoldingTransform(Transform):
    """A node that holds rows while it gives out others.

    Args:
        upstream: the node before.
    """

    keeps_row_ids = False
    """Whether its rows keep the names (number and sub) that they had in the node before."""

    def __init__(self, upstream: Node) -> None:
        super().__init__(upstream)
        self._log = ReplayLog(upstream, self)
        self._restored: State = {}

    def take(self, n: int) -> Flow[Taken]:
        if self._log.needs_replay:
            self._put_back((yield from self._log.replay()))
        return (yield from super().take(n))

    def weight(self) -> int:
        return self._held_count() + super().weight()

    @abstractmethod
    def _held(self) -> list[Id]:
        """The names of the rows that it holds."""

    @abstractmethod
    def _held_count(self) -> int:
        """About how many names `_held` returns, without making them."""

    def _copied(self) -> Callable[[], NameColumns] | None:
        """A function that makes these names later; ``None`` if it holds no rows. Nodes that hold
        many rows override it, so that taking a state costs little."""
        held = self._held()
        return (lambda: NameColumns.of(held)) if held else None

    @abstractmethod
    def _put_back(self, rows: list[Row]) -> None:
        """Take back the rows that `_held` has named, after a resume."""

    @abstractmethod
    def _buffer_state(self) -> State:
        """The rest of its state: how it holds the rows, and its counts."""

    @abstractmethod
    def _restore_buffer(self, state: State) -> None:
        """Restore `_buffer_state`. If rows were held, `_put_back` follows."""

    def _ids(self, rows: Iterable[Row]) -> list[Id]:
        return [id_in(self._epoch, row) for row in rows]

    def _pull(self, n: int) -> Flow[Taken]:
        return self._log.take(n)

    def _pass_over(self, epoch: int) -> None:
        self._log.skip_to(epoch)

    def _own_state(self, held: Sequence[Id]) -> State:
        if held and not self.keeps_row_ids:
            raise NoPositionError(
                "this pipeline has no position: its workers do not keep the order (ordered=False),"
                " and several later stages hold examples; keep the order, or use only one such"
                " stage"
            )
        # Between two epochs, `begin` has not been called yet: the counts are those of the epoch
        # before, while the position is that of the next one.
        if not self._has_begun:
            self._has_begun = True
            self.begin(self._epoch)
        # Until the rows have come back, the buffer is empty, and the restored state still holds.
        buffer = self._restored if self._log.needs_replay else self._buffer_state()
        if self.is_ordered:
            return {"buffer": buffer, "log": self._log.state()}
        # Without order, the node before has to give the held rows again, as if they were new.
        # It gives each once, though `pack` holds several pieces of a sequence.
        held = [*dict.fromkeys((*held, *self._held()))]
        ended = self._epoch if self._has_ended and not held else self._epoch - 1
        return {"buffer": buffer, "log": self._log.state_with(held, (ended, END, 0))}

    def _restore_own(self, state: State, wanted: WantedRows | None) -> None:
        self._has_begun = True  # or the first `take` would begin again, and reset the counts
        self._restored = state["buffer"]
        self.begin(self._epoch)
        self._log.restore(state["log"])
        self._has_ended = self._log.has_ended(self._epoch)
        self._restore_buffer(state["buffer"])


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


def _described(rows: Sequence[Row], epoch: int) -> str:
    """Name rows for a failure, in the words of `Item.describe`, and with bounded length."""
    if len(rows) == 1:
        value, _, index, _, _ = rows[0]
        return f"the example {format_value(value)} (epoch {epoch}, index {index})"
    indices = ", ".join(str(row[ROW_INDEX]) for row in rows[:_MOST_INDICES])
    more = ", ..." if len(rows) > _MOST_INDICES else ""
    return f"{len(rows)} examples (epoch {epoch}, index {indices}{more})"
