"""The parts of a pipeline's state: items that are done, names of rows, marks, and deferred parts.

A state says where the nodes of a pipeline are. It holds no data. It describes what was delivered to
the user; rows that were in flight are made again after a resume. Every item has a random generator
of its own, so the same bytes result. A node that holds rows, such as a shuffle, lists their
numbers in its state, and receives these rows again before anything else.

Most nodes cannot make a single row on demand. So a pipeline makes a *mark* from time to time: the
state of the node before, and the row at which it stood. To have a row again, a node goes back to
the last mark before that row, and drops the rows in between. If the source can give items one by
one, a `WantedRows` says which ones are needed, so that the others are neither read nor prepared.

Nodes cannot move while a state is taken. So slow work is deferred: nodes copy what they hold, and a
`DeferredState` turns the copies into text later, while the nodes run on.

Workers may finish items in any order. So a set of items is kept as a number below which all belong
to it, and the few others above it. These sets stay small, because items that are in flight are
close to each other.
"""

from __future__ import annotations

import zlib
from base64 import b64decode
from binascii import b2a_base64
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import numpy as np

from aioqueue.items.item import Delivered, ItemCounts
from aioqueue.items.provenance import items_of
from aioqueue.pipeline.nodes.node import Node, NoPositionError
from aioqueue.pipeline.nodes.rows import END, ROW_NUMBER, ROW_ORIGIN, Id, Row, State, WantedRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aioqueue.items.journal import JournalWriter
from aioqueue.pipeline.nodes.deferred import DeferredState, settled

_EVERY: Final = 256
"""The least number of examples between two marks."""


NUMBER: Final = np.dtype("<i8")
"""The dtype of row numbers: little-endian on every machine, because states keep its bytes."""


_WORD: Final = np.dtype("<u2")


_FEW: Final = 16
"""So few numbers are not shorter when they are compressed."""


_LISTED: Final = 8
"""So few numbers are written one by one, so that people can read them."""


_MOST_BYTES: Final = 2**30
"""The numbers of 128 million rows. A damaged state may have been compressed from more."""


KeyT = TypeVar("KeyT", bound=tuple[int, ...])


def packed(numbers: Sequence[int] | NDArray[np.int64]) -> str:
    """Encode 64-bit ints as text: ``3,5,7``, or the name of an encoding and its result.

    ``delta8(first)`` and ``delta16(first)`` hold the differences as ints of 8 or 16 bits. Ascending
    numbers, such as those of missing items, have similar differences: ``zlib32`` and ``zlib64``
    compress these, with all lowest bytes first, then all second ones, and so on. The order of a
    shuffle is random, so compression would be slow and gain little. For it, ``low16(first)`` holds
    the lowest 16 bits of each number; `packed_within` writes it. Bytes are in base64, and ints are
    little-endian.
    """
    if len(numbers) <= _LISTED:
        return ",".join(str(int(number)) for number in numbers)
    found = np.asarray(numbers, np.int64)
    differences = found[1:] - found[:-1]
    least, most = differences.min(), differences.max()
    # Small differences that do not ascend (or are few): compressing them gains little.
    if (least < 0 or found.size <= _FEW) and least >= -(2**15) and most < 2**15:
        width = 1 if least >= -(2**7) and most < 2**7 else 2
        text = _text(differences.astype(f"<i{width}").tobytes())
        return f"delta{8 * width}({int(found[0])}){text}"
    differences = np.concatenate((found[:1], differences))
    width = 4 if min(least, found[0]) >= -(2**31) and max(most, found[0]) < 2**31 else 8
    # Byte planes: the high bytes of similar differences are equal, so zlib finds long runs.
    planes = differences.astype(f"<i{width}").view(np.uint8).reshape(-1, width).T
    return f"zlib{8 * width}{_text(zlib.compress(planes.tobytes(), 1))}"


def packed_within(numbers: NDArray[np.int64], span: int) -> str:
    """Encode ints whose differences are bounded. If the bound is small, 16 bits of each suffice.

    This takes a fraction of the time of `packed`, which matters if you take a state behind every
    batch.

    Args:
        numbers: ints of dtype `NUMBER`.
        span: the most by which two of them may differ.
    """
    if span >= 2**15 or len(numbers) <= _FEW:
        return packed(numbers)
    return f"low16({int(numbers[0])}){_text(numbers.view(_WORD)[::4].tobytes())}"


def unpacked(text: str) -> list[int]:
    numbers: list[int] = unpacked_array(text).tolist()
    return numbers


def unpacked_array(text: str) -> NDArray[np.int64]:
    """Decode as `unpacked` does, into an array."""
    if not text:
        return np.empty(0, np.int64)
    if text.startswith("zlib"):
        width = int(text[4:6]) // 8
        inflate = zlib.decompressobj()
        data = inflate.decompress(b64decode(text[6:]), _MOST_BYTES)
        if not inflate.eof:
            raise ValueError("the numbers of rows are not whole, or too many")
        planes = np.frombuffer(data, np.uint8).reshape(width, -1)
        differences = np.ascontiguousarray(planes.T).view(f"<i{width}").ravel()
        return np.cumsum(differences, dtype=np.int64)
    encoding, has_encoding, rest = text.partition("(")
    if not has_encoding:
        return np.array(text.split(","), np.int64)
    first, _, content = rest.partition(")")
    if encoding == "low16":  # as ints of 16 bits, the differences from the first are exact
        words = np.frombuffer(b64decode(content), _WORD)
        numbers: NDArray[np.int64] = (words - words[0]).astype(np.int16) + np.int64(first)
        return numbers
    width = int(encoding.removeprefix("delta")) // 8
    differences = np.frombuffer(b64decode(content), f"<i{width}").astype(np.int64)
    return np.cumsum(np.append(np.int64(first), differences))


def id_text(one: Id) -> str:
    """Write the name of a row: ``epoch:row``, or ``epoch:row.part`` for one of several examples of
    an item. The end of an epoch is ``epoch:end``."""
    epoch, number, sub = one
    return f"{epoch}:{'end' if number == END else number}{f'.{sub}' if sub else ''}"


def id_of(text: str) -> Id:
    """Read the result of `id_text`."""
    epoch, _, row = text.partition(":")
    number, _, sub = row.partition(".")
    return int(epoch), END if number == "end" else int(number), int(sub or 0)


def _text(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode("ascii")


def _refused(error: NoPositionError) -> Any:
    """A deferred state that raises the error when it is made."""
    why = str(error)  # only the text: the traceback would keep the rows of its frames alive

    def refuse() -> State:
        raise NoPositionError(why)

    return DeferredState(refuse)


class _Mark(NamedTuple, Generic[KeyT]):
    at: KeyT
    state: State


class StateMarks(Generic[KeyT]):
    """States of a node, each with the row at which the node stood. Not thread-safe.

    Args:
        node: the node.
        of_batches: the least number of examples between two marks, if the rows are batches.
    """

    def __init__(self, node: Node, of_batches: int = 1) -> None:
        self._node = node
        self._kept: deque[_Mark[KeyT]] = deque()
        # What lies between a mark and the row that a resume needs is made once more. Of batches,
        # that is the work of all their examples, so that each of them may have a mark.
        self._every = of_batches if node.element.is_batch else _EVERY
        self._since = 0  # how many examples were taken since the last mark
        self._ask_at = self._every  # how many of them until the node is asked for its weight

    def __len__(self) -> int:
        return len(self._kept)

    def count(self, rows: int) -> None:
        self._since += rows * self._node.element.step

    def note(self, at: KeyT, *, is_due: bool = False) -> None:
        """Make a mark if enough examples were taken since the last one.

        The larger the state of the node is, the more it takes. So the marks cost at most a
        fixed share of the work.

        Args:
            at: where the node stands.
            is_due: make a mark whatever was taken since the last one.
        """
        if is_due and self._kept and self._kept[-1].at == at:
            return  # an interrupted call is repeated, and its mark exists already
        if is_due or (self.is_due and self._is_worth_it()):
            self.make(at)

    @property
    def is_due(self) -> bool:
        """Whether a call of `note` may make a mark; otherwise you can omit the call."""
        return self._since >= self._ask_at or not self._kept

    def _is_worth_it(self) -> bool:
        """Whether as many examples were taken as the state of the node names rows."""
        if not self._kept or self._since >= (weight := self._node.weight()):
            return True
        # A buffer may run dry meanwhile, so the node is asked again before so many are taken. But
        # not for each row: the nodes of a long chain would be asked one after another each time.
        self._ask_at = min(weight, self._since + self._every)
        return False

    def make(self, at: KeyT) -> None:
        try:
            # Deferred parts are made at once, because they would keep the rows that they name.
            state = settled(self._node.state())
        except NoPositionError as error:  # raised later, and only if a position is asked for
            state = _refused(error)
        self._kept.append(_Mark(at, state))
        self._since, self._ask_at = 0, self._every

    def copied(self) -> list[_Mark[KeyT]]:
        """All marks, the last one first."""
        return list(reversed(self._kept))

    def restore(self, at: KeyT, state: State) -> None:
        self._kept.clear()
        self._kept.append(_Mark(at, state))

    def before(self, at: KeyT) -> _Mark[KeyT] | None:
        """Return the last mark at or before a row; ``None`` if all marks come later."""
        return next((mark for mark in reversed(self._kept) if mark.at <= at), None)

    def forget(self, at: KeyT) -> None:
        """Forget the marks before a row, since nothing goes back that far."""
        kept = self._kept
        while len(kept) > 1 and kept[1].at <= at:
            kept.popleft()

    def thin_out(self) -> None:
        """Forget every second mark, but not the first one."""
        self._kept = deque(mark for place, mark in enumerate(self._kept) if not place % 2)

    def clear(self) -> None:
        self._kept.clear()


class ArrivedItems(NamedTuple):
    """The items that have arrived: all of earlier epochs, and of this one those with a number below
    ``low`` or in ``above``."""

    epoch: int = 0
    low: int = 0
    above: frozenset[int] = frozenset()

    def has(self, epoch: int, number: int) -> bool:
        if epoch != self.epoch:
            return epoch < self.epoch
        return number < self.low or number in self.above

    def joined(self, other: ArrivedItems) -> ArrivedItems:
        if self.epoch != other.epoch:
            return max(self, other, key=lambda one: one.epoch)
        low = max(self.low, other.low)
        above = {number for number in self.above | other.above if number >= low}
        while low in above:
            above.remove(low)
            low += 1
        return ArrivedItems(self.epoch, low, frozenset(above))


class ProgressCounter:
    """Counts items by their results. Each item counts once, also if a resumed run repeats it."""

    def __init__(self) -> None:
        self._counts = [0] * len(ItemCounts._fields)
        self.before: ArrivedItems = ArrivedItems()
        """The items that earlier runs have counted."""

    @property
    def counts(self) -> ItemCounts:
        return ItemCounts(*self._counts)

    def restore(self, counts: ItemCounts, before: ArrivedItems) -> None:
        """Continue the counts of earlier runs."""
        self._counts[:] = counts
        self.before = before

    def add_plain(self, items: int, examples: int) -> None:
        """Count items that have arrived with examples, without retries or failures."""
        self._counts[0] += items
        self._counts[1] += examples

    def add(self, item: Delivered) -> None:
        _, _, _, examples, failure = item
        retried, is_skipped = failure or (0, False)
        self._counts[4] += retried
        if is_skipped:
            self._counts[3] += 1
        elif examples:
            self.add_plain(1, len(examples))
        else:
            self._counts[2] += 1


class KeptItems(NamedTuple):
    """Which items of an epoch a resumed run prepares: these, and all from ``upto`` on."""

    numbers: frozenset[int] = frozenset()
    upto: int = 0

    @classmethod
    def of(cls, wanted: WantedRows, number: int) -> KeptItems:
        """The items that a later node wants, among those from a number on."""
        return cls(
            frozenset(one for one in wanted.numbers if one >= number), max(number, wanted.upto)
        )

    def keeps(self, number: int) -> bool:
        return number >= self.upto or number in self.numbers

    @property
    def has_end(self) -> bool:
        """Whether no item behind ``numbers`` is prepared."""
        return self.upto >= END

    def left_out(self, items: int) -> int:
        """How many of the first items of the epoch are not prepared."""
        return min(self.upto, items) - len(self.numbers)


class PartialItem(NamedTuple):
    """Which examples of an item are wanted: those from ``upto`` on, and the ones in ``subs``."""

    upto: int
    subs: frozenset[int] = frozenset()

    def keeps(self, sub: int) -> bool:
        """Whether an example is wanted."""
        return sub >= self.upto or sub in self.subs


class FinishedItems:
    """Which items of an epoch are finished: all their examples were given out.

    Args:
        kept: the items that an earlier run has left unfinished.
    """

    def __init__(self, kept: KeptItems = KeptItems()) -> None:  # noqa: B008  # it never changes
        self._low = min(kept.numbers, default=kept.upto)  # all items below are finished
        self._above = set(range(self._low, kept.upto)) - kept.numbers
        self._left: dict[int, int] = {}  # examples still to be given out, by item
        self._cut: set[int] = set()  # those of them that were given out in part

    def arrived(self, number: int, examples: int, *, is_cut: bool = False) -> None:
        """Note that an item has arrived, and how many of its examples will be given out.

        Args:
            number: the number of the item.
            examples: how many examples will be given out.
            is_cut: whether an earlier run may have given out others.
        """
        if not examples:
            self._finish((number,))
            return
        self._left[number] = examples
        if is_cut:
            self._cut.add(number)

    def give(self, rows: Iterable[Row]) -> None:
        left, cut = self._left, self._cut
        finished = []
        for row in rows:
            number = row[ROW_NUMBER]
            examples = left[number]
            if examples == 1:
                del left[number]
                finished.append(number)
            else:
                left[number] = examples - 1
                cut.add(number)
        if cut:
            cut.difference_update(finished)
        self._finish(finished)

    def cut(self) -> Iterator[int]:
        """Return the items that have arrived and were given out only in part."""
        return iter(self._cut)

    def missing(self, again: Iterable[int]) -> KeptItems:
        """The items that a resumed run has to prepare: the unfinished ones, and some again."""
        upto = max(self._above, default=self._low - 1) + 1  # behind the last finished item
        missing = {one for one in range(self._low, upto) if one not in self._above}
        return KeptItems(frozenset(missing | {one for one in again if one < upto}), upto)

    def arrived_in(self, epoch: int) -> ArrivedItems:
        return ArrivedItems(epoch, self._low).joined(
            ArrivedItems(epoch, self._low, frozenset(self._above | self._left.keys()))
        )

    def _finish(self, numbers: Iterable[int]) -> None:
        above, low = self._above, self._low
        above.update(numbers)
        while low in above:
            low += 1
        # Keep the set small: it is sorted and packed for each state. First the number, so that an
        # interruption in between leaves no item out.
        finished = range(self._low, low)
        self._low = low
        above.difference_update(finished)


class DeliveredRows:
    """Counts the rows that the user receives, and records them in the journal.

    Args:
        count: how many rows the runs before have delivered.
        journal: the journal; ``None`` for none.
    """

    def __init__(self, count: int, journal: JournalWriter | None) -> None:
        self.count: int = count
        self.deliver: Callable[[Sequence[Row]], object] | None = None
        """Called with the rows, if some of what they are made of was taken from a queue."""
        self._journal = journal

    def add(self, node: Node, rows: Sequence[Row]) -> None:
        """Note that the user receives the last rows that a node has returned."""
        if self._journal is not None:
            epoch, given = node.given
            for at, row in enumerate(rows):
                place = given - len(rows) + at
                self._journal.add(self.count + at, epoch, place, items_of(row[ROW_ORIGIN]))
        self.count += len(rows)
        if self.deliver is not None:
            self.deliver(rows)


class ResumePoint(NamedTuple):
    """Where a run through a pipeline stands."""

    epoch: int
    batches: int = 0
    """How many batches of the epoch were delivered."""
    skip: int = 0
    """How many of the next batches are dropped."""
    node: State | None = None
    """The state of the last node; ``None`` for the beginning of the epoch."""
    rest: State | None = None
    """What an earlier number of ranks has left, from `merge_positions`: ``total``, the number of
    batches that they had delivered, and ``epochs``, by number. ``None`` without such a run."""
    stages: Sequence[State] = ()
    """The counts of items of each stage with workers; empty if no run has begun."""
    handed: int = 0
    """How many batches were delivered, over all epochs, without those that were dropped."""
    run: str = ""
    """The name of the run in its journal; empty without a journal."""
    layouts: Sequence[Mapping[str, Any] | None] = ()
    """The dtypes and shapes that the first example has fixed, for each stage that makes batches or
    packed rows; empty before the first example."""
    length: int | None = None
    """How many items the run of a stream has, if its end has been seen."""
    examples: int = 0
    """How many examples a stream has delivered."""


def first_epoch_of(resume_point: ResumePoint) -> int:
    """The earliest epoch in which a node begins when the run resumes.

    A node that has to give rows again goes back to make them. That may lead into an earlier epoch
    than the one in which the run stands.
    """
    return min(_epochs_in(resume_point.node), default=resume_point.epoch)


def _epochs_in(state: Any) -> Iterator[int]:
    if isinstance(state, Mapping):
        if "epoch" in state:
            yield state["epoch"]
        for part in state.values():
            yield from _epochs_in(part)
    elif isinstance(state, list):
        for part in state:
            yield from _epochs_in(part)
