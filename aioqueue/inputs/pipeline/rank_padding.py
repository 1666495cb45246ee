"""Padding of ranks, to make them equal: a rank that skips an item gives another row instead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any, Final, NamedTuple

from aioqueue.inputs.pipeline.node import END, Id, Node, Row, State
from aioqueue.inputs.pipeline.progress import id_of, id_text
from aioqueue.inputs.pipeline.provenance import named
from aioqueue.inputs.pipeline.transform_nodes import HoldingTransform

__all__ = ("RankPadding",)

_EXTRA: Final = 2**48
"""From this number on rows are counted that are given out again: beyond all others."""


class _Counts(NamedTuple):
    """What is known of an epoch, where there is no order."""

    epoch: int
    seen: int
    extra: int
    latest: list[Id]


class RankPadding(HoldingTransform):
    """As many rows in every epoch as there were items: what was skipped is made up for.

    So all ranks of a data-parallel training make the same number of steps, also where an item of
    one of them was skipped: then its latest examples come again.

    Args:
        upstream: where the rows come from, one of each item that was not skipped.
        items: how many items there were, asked at the end of an epoch.
        keep: how many of the latest rows may come again.
        apart: whether what comes again must be no object that has come before, since somebody may
            have written to that.
    """

    def __init__(
        self, upstream: Node, items: Callable[[], int], keep: int, *, apart: bool = False
    ) -> None:
        super().__init__(upstream)
        self._is_apart = apart
        self._items = items
        self._latest: deque[Row] = deque(maxlen=keep)
        self._seen = 0
        self._extra = 0  # rows that were given out again
        self._kept = 0  # of the latest rows, before a restart
        self._again: set[Id] = set()  # those that come another time, where there is no order
        self._before: _Counts | None = None  # until something of the next epoch is given

    def begin(self, epoch: int) -> None:
        self._seen = self._extra = 0
        self._latest.clear()  # epochs do not mix
        self._again.clear()

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        self._latest.extend(self._kept_apart(rows))
        if self._again:
            rows = [row for row in rows if not self._has_come(row)]
        self._seen += len(rows)
        return rows

    def finish(self) -> Iterable[Row]:
        missing = self._items() - self._seen - self._extra
        if missing < 0:
            raise RuntimeError(
                f"{self._seen} examples came of {self._items()} items of epoch {self._epoch}, so"
                " ranks cannot be made equal: a function that makes several of an item is one for"
                " `flat`, with shard(..., uneven='allow')"
            )
        if missing and not self._latest:
            raise RuntimeError(
                f"all {missing} items of epoch {self._epoch} were skipped on this rank, so nothing"
                " can make up for them, and the other ranks would wait for ever"
            )
        latest = list(self._latest)
        return self._kept_apart([latest[place % len(latest)] for place in range(missing)])

    def _kept_apart(self, rows: Sequence[Row]) -> Sequence[Row]:
        return [(_copy(value), *rest) for value, *rest in rows] if self._is_apart else rows

    def clear(self) -> None:
        self._latest.clear()

    def weight(self) -> int:
        return len(self._latest) + super().weight()

    def take_ready(self, n: int) -> list[Row]:
        rows = super().take_ready(n)
        if rows:
            self._before = None
        if not self._has_ended:
            return rows
        first = _EXTRA + self._extra
        self._extra += len(rows)
        return [  # their items were counted when they came first
            (value, number, index, sub, named(origin))
            for number, (value, _, index, sub, origin) in enumerate(rows, first)
        ]

    def _has_come(self, row: Row) -> bool:
        """Whether a row was given out before a restart, and comes for the sake of the latest."""
        (one,) = self._ids([row])
        if one not in self._again:
            return False
        self._again.remove(one)
        return True

    def state(self, held: Sequence[Id] = ()) -> State:
        before = self._before
        if held and before is not None and held[0][0] == before.epoch:
            # What nodes behind hold of an epoch that has ended: it is gone back to.
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
        """Where there is no order, the node before gives rows again: those that nodes behind hold,
        and the latest. What is ready was given out before, and is found anew at the end."""
        of_items = [one for one in held if one[1] < _EXTRA]
        latest = [] if has_ended else [one for one in counts.latest if one not in {*of_items}]
        shape = {
            "seen": counts.seen - len(of_items),
            "extra": counts.extra - (len(held) - len(of_items)),
            "latest": 0,
            "again": [id_text(one) for one in latest],
        }
        end = (counts.epoch if has_ended else counts.epoch - 1, END, 0)
        return {"shape": shape, "tape": self._tape.state_with([*of_items, *latest], end)}

    def _counts(self) -> _Counts:
        again = self._again.difference(latest := self._ids(self._latest))
        latest = [*latest, *sorted(again)][: self._latest.maxlen]
        return _Counts(self._epoch, self._seen, self._extra, latest)

    def _go_to(self, epoch: int) -> None:
        is_next = epoch == self._epoch + 1 and not self.is_ordered
        self._before = self._counts() if is_next else None
        super()._go_to(epoch)

    def _held(self) -> list[Id]:
        return self._ids([*self._latest, *self._ready])

    def _shape(self) -> State:
        return {"seen": self._seen, "extra": self._extra, "latest": len(self._latest)}

    def _reshape(self, state: State) -> None:
        self._seen, self._extra = state["seen"], state["extra"]
        self._kept = state["latest"]
        self._again = {id_of(one) for one in state.get("again", ())}

    def _put_back(self, rows: list[Row]) -> None:
        self._latest.extend(rows[: self._kept])
        self._ready = deque(rows[self._kept :])


def _copy(value: Any) -> Any:
    """A value that nobody else has; itself, if it cannot be copied."""
    try:
        return deepcopy(value)
    except Exception:
        return value
