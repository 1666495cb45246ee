"""What a pipeline needs in order to go on after a restart: where its nodes are, and no data.

The state is that of what was handed to the user. What was taken but not delivered is forgotten, and
made again: every item has a generator of its own, so it becomes the same bytes. A node that holds
rows, as a shuffle does, tells which ones they are by their numbers, and is given them again first.

Most nodes cannot be asked for single rows. So from time to time a *mark* is made: the state of the
node before, and the row that it stood at. Who needs a row again goes back to the last mark before
it, and leaves out what was delivered since. Where items can be had one by one, or need not be
prepared, a `Wanted` tells the nodes before to save themselves the trouble.

While a state is taken nobody can take rows. So what takes long is put off: nodes copy what they
hold, and a `Later` in the state names it when they go on already.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np

from aioqueue.inputs.pipeline.flow import END, Flow, Id, Node, Row, State, Taken, Wanted
from aioqueue.inputs.sources.item import EpochEnd

__all__ = ("Later", "Marks", "Tape", "packed", "settled", "unpacked")

_EVERY: Final = 64
"""Rows from one mark to the next, at least."""

_AT_ONCE: Final = 256
"""Rows that are taken again together: more would have Python look for garbage among them."""

_EPOCH: Final = itemgetter(0)  # of an `Id`
_NUMBER: Final = itemgetter(1)  # of an `Id` and of a `Row`
_SUB: Final = itemgetter(3)  # of a `Row`

KeyT = TypeVar("KeyT", bound=tuple[int, ...])


def packed(numbers: Sequence[int]) -> str:
    """Ints of 64 bits as text: their differences, compressed.

    All lowest bytes come first, then all second ones, and so on: the upper ones are much alike.
    """
    if not numbers:
        return ""
    differences = np.diff(np.array(numbers, np.int64), prepend=np.int64(0))
    width = 4 if bool((np.abs(differences) < 2**31).all()) else 8
    planes = differences.astype(f"<i{width}").view(np.uint8).reshape(-1, width).T
    return f"{width}{b64encode(zlib.compress(planes.tobytes(), 1)).decode('ascii')}"


def unpacked(text: str) -> list[int]:
    """What `packed` was given."""
    if not text:
        return []
    width = int(text[0])
    planes = np.frombuffer(zlib.decompress(b64decode(text[1:])), np.uint8).reshape(width, -1)
    differences = np.ascontiguousarray(planes.T).view(f"<i{width}").ravel()
    numbers: list[int] = np.cumsum(differences, dtype=np.int64).tolist()
    return numbers


class Later:
    """A part of a state that is made of copies, when the nodes that it is of go on already.

    Args:
        make: makes it; called once.
    """

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def settled(state: Any) -> Any:
    """A state whose parts have all been made: plain JSON types."""
    if isinstance(state, Later):
        return settled(state.make())
    if isinstance(state, dict):
        return {key: settled(value) for key, value in state.items()}
    if isinstance(state, list) and state and isinstance(state[0], dict):
        return [settled(one) for one in state]
    return state


class _Mark(NamedTuple, Generic[KeyT]):
    at: KeyT
    state: State


class Marks(Generic[KeyT]):
    """States of a node, each with where it stood. Not thread-safe.

    Args:
        node: what has them.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._kept: deque[_Mark[KeyT]] = deque()
        self._since = 0

    def __len__(self) -> int:
        return len(self._kept)

    def count(self, rows: int) -> None:
        """So many rows were taken."""
        self._since += rows

    def note(self, at: KeyT) -> None:
        """Make a mark if it is worth it: a node whose state is large is asked for it seldom."""
        if not self._kept or self._since >= max(_EVERY, self._node.weight()):
            self.make(at)

    def make(self, at: KeyT) -> None:
        """Make a mark."""
        # At once: what is put off keeps the rows alive that it is to name.
        self._kept.append(_Mark(at, settled(self._node.state())))
        self._since = 0

    def copied(self) -> list[_Mark[KeyT]]:
        """All that there are, the last one first."""
        return list(reversed(self._kept))

    def restore(self, at: KeyT, state: State) -> None:
        """Begin with a mark of an earlier run."""
        self._kept.clear()
        self._kept.append(_Mark(at, state))

    def before(self, at: KeyT) -> _Mark[KeyT] | None:
        """The last one that is not behind this."""
        return next((mark for mark in reversed(self._kept) if mark.at <= at), None)

    def forget(self, at: KeyT) -> None:
        """Nobody goes back to before this."""
        kept = self._kept
        while len(kept) > 1 and kept[1].at <= at:
            kept.popleft()

    def thin_out(self) -> None:
        """Forget every second one but for the first."""
        self._kept = deque(mark for place, mark in enumerate(self._kept) if not place % 2)

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()


class Tape:
    """What a node takes in that holds some of it, so that it can be given that again.

    Args:
        node: where the rows come from.
        held: the rows that are held, in the order in which they are wanted back.
        copied: the same, without waiting for it: what names them later.
    """

    def __init__(
        self,
        node: Node,
        held: Callable[[], list[Id]],
        copied: Callable[[], Callable[[], list[Id]]],
    ) -> None:
        self.node = node
        self._held = held
        self._copied = copied
        self._marks: Marks[Id] = Marks(node)
        self._last: Id = (node.span.start - 1, END, 0)  # what was taken last
        self._restored: State | None = None
        self._ids: list[Id] = []
        self._found: dict[Id, Row] = {}
        self._at = self._last  # where `again` is
        self._prune_at = 8

    def take(self, n: int) -> Flow[Taken]:
        """The next rows, as `Node.take`."""
        if self.node.is_ordered:
            self._marks.note(self._last)
            if len(self._marks) > self._prune_at:
                self._prune()
        taken = yield from self.node.take(n)
        if isinstance(taken, EpochEnd):
            self._last = (taken.epoch, END, 0)
        else:
            _, number, _, sub, _ = taken[-1]
            self._last = (self.epoch, number, sub)
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
        found, wanted = self._found, set(self._ids)
        if self._last[1] != END:
            wanted.add(self._last)
        while self._at < self._last:
            left = len(wanted) - len(found)
            taken = yield from self.node.take(max(1, min(left, _AT_ONCE)))
            if isinstance(taken, EpochEnd):
                self._at = (taken.epoch, END, 0)
                continue
            epoch = self._at[0] + (self._at[1] == END)
            named = list(zip(repeat(epoch), map(_NUMBER, taken), map(_SUB, taken)))
            self._at = named[-1]
            if wanted.issuperset(named):
                found.update(zip(named, taken, strict=True))
            else:
                found.update(pair for pair in zip(named, taken, strict=True) if pair[0] in wanted)
        missing = wanted - found.keys()
        if missing or self._at != self._last:
            raise RuntimeError(
                f"the pipeline does not give the examples again that it gave before it was"
                f" resumed: got {self._at} (epoch, number, place within the item) where"
                f" {self._last} was expected; a function or file was changed"
            )
        rows = list(map(found.__getitem__, self._ids))
        self._restored, self._found = None, {}
        return rows

    def skip_to(self, epoch: int) -> None:
        """Forget the epochs before this one."""
        self.node.skip_to(epoch)
        self._marks.clear()
        self._restored, self._found = None, {}
        self._last = (epoch - 1, END, 0)

    def state(self, given: Sequence[Id] = ()) -> State | Later:
        """What is needed in order to have again what is held, and all that comes.

        Args:
            given: rows that were passed on as they are, and are to come again: of a node that is
                not ordered.
        """
        if self._restored is not None:
            return self._restored
        if not self.node.is_ordered:
            return self.state_with([*given, *self._held()])
        last = _plain_id(self._last)
        held, marks, current = self._copied(), self._marks.copied(), self.node.state()

        def made() -> State:
            ids = held()
            first = _before(min(ids)) if ids else None
            mark = next((one for one in marks if first is not None and one.at <= first), None)
            if mark is None:
                return {"last": last, "upstream": current}
            at, held_ids = _plain_id(mark.at), _packed_ids(ids)
            return {"last": last, "at": at, "held": held_ids, "upstream": mark.state}

        return Later(made)

    def state_with(self, held: Sequence[Id]) -> State:
        """The same of a node that is not ordered: it will give these rows again, in any order."""
        return {"last": _plain_id(self._last), "upstream": self.node.state(held)}

    def restore(self, state: State) -> None:
        """Go to a state; `again` is next where something was held."""
        self._last = _id_of(state["last"])
        if "held" not in state:
            self.node.restore(state["upstream"])
            return
        self._restored = state
        self._at = _id_of(state["at"])
        self._ids = _unpacked_ids(state["held"])
        self._marks.restore(self._at, state["upstream"])
        self.node.restore(state["upstream"], self._wanted())

    def _wanted(self) -> Wanted | None:
        """Of which rows the nodes before may save themselves the trouble."""
        epoch, last, _ = self._last
        if set(map(_EPOCH, self._ids)) != {epoch}:
            return None
        numbers = sorted(set(map(_NUMBER, self._ids)))
        return Wanted(epoch, numbers[: bisect_left(numbers, last)], last)

    def _prune(self) -> None:
        held = self._held()
        self._marks.forget(_before(min(held)) if held else self._last)
        self._prune_at = 2 * len(self._marks) + 8


def _before(one: Id) -> Id:
    """The last place before a row."""
    epoch, number, sub = one
    return (epoch, number, sub - 1)


def _plain_id(one: Id) -> list[int]:
    """For JSON, where the end of an epoch is written as -1."""
    epoch, number, sub = one
    return [epoch, -1 if number == END else number, sub]


def _id_of(given: Sequence[int]) -> Id:
    epoch, number, sub = given
    return (epoch, END if number == -1 else number, sub)


def _packed_ids(ids: list[Id]) -> list[str]:
    epochs, numbers, subs = zip(*ids, strict=True)
    first = epochs[0]
    return [
        packed(numbers),
        packed(subs) if any(subs) else "",
        packed([first] if len({*epochs}) == 1 else epochs),
    ]


def _unpacked_ids(columns: Sequence[str]) -> list[Id]:
    numbers, subs, epochs = map(unpacked, columns)
    count = len(numbers)
    if len(epochs) == 1:
        epochs *= count
    return list(zip(epochs, numbers, subs or [0] * count, strict=True))
