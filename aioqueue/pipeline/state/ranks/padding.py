"""Rank padding: a rank that skips items repeats others, so that all ranks stay in step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from aioqueue.items.provenance import as_labels
from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.nodes.progress import id_of, id_text
from aioqueue.pipeline.nodes.rows import END, Id, Row, State
from aioqueue.pipeline.stages.transform import HoldingTransform
from aioqueue.pipeline.state.ranks.ledger import _EXTRA


class _Counts(NamedTuple):
    """The state of an epoch without order, in which rows have to be found again by their names.

    Attributes:
        epoch: the epoch.
        seen: how many rows of items were given out.
        extra: how many rows were repeated.
        latest: the names of the latest rows, which may be repeated.
    """

    epoch: int
    seen: int
    extra: int
    latest: list[Id]


class RankPadding(HoldingTransform):
    """Gives as many rows in every epoch as there were items. It repeats rows for skipped items.

    So all ranks of data-parallel training take the same number of steps. If a rank skips an item,
    its latest examples are repeated at the end of the epoch.

    Args:
        upstream: the node before, with one row for each item that was not skipped.
        items: returns how many items there were; called at the end of an epoch.
        keep: how many of the latest rows to keep for this.
        apart: whether to repeat a copy, because the user may have changed the original.
    """

    def __init__(
        self, upstream: Node, items: Callable[[], int], keep: int, *, apart: bool = False
    ) -> None:
        super().__init__(upstream)
        self._is_shared = apart
        self._items = items
        self._latest: deque[Row] = deque(maxlen=keep)
        self._seen = 0
        self._extra = 0  # how many rows were repeated
        self._kept = 0  # after a restore: how many of the rows that come back are the latest
        # Without order, after a restore: rows that were given out before. They come once more, only
        # to be kept as the latest.
        self._replayed: set[Id] = set()
        # The counts of the epoch before, until the first row of this one is given out.
        self._before: _Counts | None = None

    def begin(self, epoch: int) -> None:
        self._seen = self._extra = 0
        self._latest.clear()  # an epoch never repeats examples of another
        self._replayed.clear()

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        # First all rows, then those that are new: a row that was given out before a restart has to
        # be among the latest again, but must not reach the user twice.
        self._latest.extend(self._copied_if_shared(rows))
        if self._replayed:
            rows = [row for row in rows if not self._is_replayed(row)]
        self._seen += len(rows)
        return rows

    def finish(self) -> Iterable[Row]:
        # `_extra` counts repeated rows of this epoch that were given out before a restart.
        missing = self._items() - self._seen - self._extra
        if missing < 0:
            raise RuntimeError(
                f"got {self._seen} examples of {self._items()} items in epoch {self._epoch}, so"
                " ranks cannot take equal numbers of steps; expected one example per item: if your"
                " function makes several, use `flat` and shard(..., uneven='allow')"
            )
        if missing and not self._latest:
            raise RuntimeError(
                f"all {missing} items of epoch {self._epoch} were skipped on this rank, so it has"
                " no examples to repeat, and the other ranks would wait for ever"
            )
        # Round robin, so that no example is repeated more often than the others. Each repetition is
        # a copy of its own, because the user may change that one, too.
        latest = list(self._latest)
        return self._copied_if_shared([latest[place % len(latest)] for place in range(missing)])

    def _copied_if_shared(self, rows: Sequence[Row]) -> Sequence[Row]:
        return [(_copy(value), *rest) for value, *rest in rows] if self._is_shared else rows

    def clear(self) -> None:
        self._latest.clear()

    def take_ready(self, n: int) -> list[Row]:
        rows = super().take_ready(n)
        if rows:  # a later node has rows of this epoch now, so it holds none of the one before
            self._before = None
        # `take` gives all rows of items before it asks for more input. So what is ready behind the
        # end are repeated rows only.
        if not self._has_ended:
            return rows
        first = _EXTRA + self._extra
        self._extra += len(rows)
        return [  # labels, not tickets: the items were counted when their rows came first
            (value, number, index, sub, as_labels(origin))
            for number, (value, _, index, sub, origin) in enumerate(rows, first)
        ]

    def _is_replayed(self, row: Row) -> bool:
        """Whether a row was given out before a restart, and comes again only to be kept."""
        (one,) = self._ids([row])
        if one not in self._replayed:
            return False
        self._replayed.remove(one)
        return True

    def state(self, held: Sequence[Id] = ()) -> State:
        before = self._before
        if held and before is not None and held[0][0] == before.epoch:
            # A later node holds rows of the epoch that has just ended: the state goes back to it.
            state = self._state_with(held, before, has_ended=False)
            return {"epoch": before.epoch, "given": 0, **state}
        return super().state(held)

    def _own_state(self, held: Sequence[Id]) -> State:
        if self.is_ordered:
            return super()._own_state(held)
        if not self._has_begun:
            self._has_begun = True
            self.begin(self._epoch)
        has_ended = self._has_ended and not held and not self._ready
        return self._state_with(held, self._counts(), has_ended=has_ended)

    def _state_with(self, held: Sequence[Id], counts: _Counts, *, has_ended: bool) -> State:
        """The state without order.

        The node before has to give rows again: those that later nodes hold, and the latest. The
        state does not name repeated rows that are ready, because `finish` makes them again.
        """
        of_items = [one for one in held if one[1] < _EXTRA]
        latest = [] if has_ended else [one for one in counts.latest if one not in {*of_items}]
        buffer = {
            "seen": counts.seen - len(of_items),
            "extra": counts.extra - (len(held) - len(of_items)),
            "latest": 0,
            "again": [id_text(one) for one in latest],
        }
        # Without order the state names an end of an epoch as the last row that was taken: behind
        # it all rows come again that are not finished.
        end = (counts.epoch if has_ended else counts.epoch - 1, END, 0)
        return {"buffer": buffer, "log": self._log.state_with([*of_items, *latest], end)}

    def _counts(self) -> _Counts:
        # Right after a restart, some of the latest rows have not come again yet. Their names stay.
        again = self._replayed.difference(latest := self._ids(self._latest))
        latest = [*latest, *sorted(again)][: self._latest.maxlen]
        return _Counts(self._epoch, self._seen, self._extra, latest)

    def _go_to(self, epoch: int) -> None:
        # Later nodes may hold rows of the epoch that ends, until they take one of the next epoch.
        # If more than one epoch is passed, they have dropped these rows.
        is_next = epoch == self._epoch + 1 and not self.is_ordered
        self._before = self._counts() if is_next else None
        super()._go_to(epoch)

    def _held(self) -> list[Id]:
        return self._ids([*self._latest, *self._ready])

    def _held_count(self) -> int:
        return len(self._latest) + len(self._ready)

    def _buffer_state(self) -> State:
        return {"seen": self._seen, "extra": self._extra, "latest": len(self._latest)}

    def _restore_buffer(self, state: State) -> None:
        self._seen, self._extra = state["seen"], state["extra"]
        self._kept = state["latest"]
        self._replayed = {id_of(one) for one in state.get("again", ())}

    def _put_back(self, rows: list[Row]) -> None:
        self._latest.extend(rows[: self._kept])
        self._ready = deque(rows[self._kept :])


def _copy(value: Any) -> Any:
    """A deep copy of a value; the value itself if it cannot be copied."""
    try:
        return deepcopy(value)
    except Exception:
        return value
