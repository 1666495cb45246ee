"""The stages that are done in order, by whoever asks: filters, shuffles, batches and the like.

What they make depends on what comes in, on the seed and on the epoch alone: not on workers, limits
or time. Every epoch begins anew, unless a stage was told to go on `across_epochs`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from aioqueue import InvalidArgumentError
from aioqueue.inputs.batches.collating import Collator, components_of
from aioqueue.inputs.pipeline.flow import Flow, Node, Row, Taken
from aioqueue.inputs.sources.item import EpochEnd
from aioqueue.philox import PhiloxWords

__all__ = (
    "Batching",
    "Filling",
    "Filtering",
    "Shuffling",
    "Taking",
    "Transform",
    "Unbatching",
    "rows_of",
)

_AT_ONCE: Final = 256
"""The most rows that are asked for at a time, in order to fill a buffer."""


class Transform(Node):
    """A node that makes rows of the rows of another one.

    Args:
        upstream: where its rows come from.
    """

    def __init__(self, upstream: Node) -> None:
        super().__init__(upstream.span)
        self._upstream = upstream
        self._has_begun = False
        self._has_ended = False  # upstream; what is left is ready

    def take(self, n: int) -> Flow[Taken]:
        while not self._ready and not self._has_ended:
            taken = yield from self._upstream.take(self._need(n))
            if not self._has_begun:
                self.begin(self._epoch)
                self._has_begun = True
            if isinstance(taken, EpochEnd):
                self._ready.extend(self.finish())
                self._has_ended = True
            else:
                self._ready.extend(self.accept(taken))
        return self.take_ready(n) if self._ready else self._turn()

    def _skip_to(self, epoch: int) -> None:
        self._upstream.skip_to(epoch)
        self._ready = deque()
        self._go_to(epoch)
        self.clear()

    def close(self) -> None:
        self._upstream.close()

    def _need(self, n: int) -> int:
        """How many rows to ask for, in order to give out n."""
        return n

    def begin(self, epoch: int) -> None:
        """An epoch begins."""

    @abstractmethod
    def accept(self, rows: list[Row]) -> Iterable[Row]:
        """Take rows in; return those that are ready by that."""

    def finish(self) -> Iterable[Row]:
        """The epoch has ended: return what is left of it."""
        return ()

    def clear(self) -> None:
        """Forget what is inside."""

    def _turn(self) -> EpochEnd:
        end = EpochEnd(self._epoch, self._given)
        self._go_to(self._epoch + 1)
        return end

    def _go_to(self, epoch: int) -> None:
        self._epoch, self._given = epoch, 0
        self._has_begun = self._has_ended = False


class Filtering(Transform):
    """Rows whose value a function says yes to."""

    def __init__(self, upstream: Node, predicate: Callable[[Any], Any]) -> None:
        super().__init__(upstream)
        self._predicate = predicate

    def accept(self, rows: list[Row]) -> Iterable[Row]:
        predicate = self._predicate
        return [row for row in rows if predicate(row[0])]


class Taking(Transform):
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

    def accept(self, rows: list[Row]) -> Iterable[Row]:
        self._left -= len(rows)
        return rows

    def _need(self, n: int) -> int:
        return min(n, self._left)

    def _go_to(self, epoch: int) -> None:
        super()._go_to(epoch)
        self._left = self._count


class Shuffling(Transform):
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
        self._size = size
        self._seed = seed
        self._buffer: list[Row] = []
        self._words = PhiloxWords((seed, 1))

    def begin(self, epoch: int) -> None:
        # The seed is the key and the epoch the upper half of the counter: no two epochs share one.
        self._words = PhiloxWords((self._seed, epoch + 1))

    def accept(self, rows: list[Row]) -> Iterable[Row]:
        buffer, size = self._buffer, self._size
        missing = size - len(buffer)
        if missing > 0:
            buffer += rows[:missing]
            rows = rows[missing:]
        drawn = []
        for row, word in zip(rows, self._words.take(len(rows)), strict=True):
            # The newcomer may be drawn itself; else it takes the place of the one that is.
            place = word % (size + 1)
            if place < size:
                row, buffer[place] = buffer[place], row
            drawn.append(row)
        return drawn

    def finish(self) -> Iterable[Row]:
        buffer, drawn = self._buffer, []
        for word in self._words.take(len(buffer)):
            place = word % len(buffer)
            buffer[place], buffer[-1] = buffer[-1], buffer[place]
            drawn.append(buffer.pop())
        return drawn

    def clear(self) -> None:
        self._buffer.clear()

    def _need(self, n: int) -> int:
        return max(n, min(_AT_ONCE, self._size - len(self._buffer) + n))


class Batching(Transform):
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
        self._collate = collate
        self._drop_remainder = drop_remainder
        self._across_epochs = across_epochs
        self._rows: list[Row] = []
        self._made = 0  # batches of this epoch

    def defer(self) -> None:
        if isinstance(self._collate, Collator):
            self._collate = self._collate.later

    def begin(self, epoch: int) -> None:
        self._made = 0

    def accept(self, rows: list[Row]) -> Iterable[Row]:
        self._rows += rows
        return [self._batch(self._size)] if len(self._rows) >= self._size else ()

    def finish(self) -> Iterable[Row]:
        if self._across_epochs and not self.span.is_last(self._epoch):
            return ()
        rest = () if self._drop_remainder or not self._rows else (self._batch(len(self._rows)),)
        self._rows = []
        return rest

    def clear(self) -> None:
        self._rows = []

    def _need(self, n: int) -> int:
        return self._size - len(self._rows)

    def _batch(self, size: int) -> Row:
        rows = self._rows[:size]
        batch = self._collate([row[0] for row in rows])
        del self._rows[:size]
        number = self._made
        self._made += 1
        return batch, number, number, 0


class Unbatching(Transform):
    """The rows of batches, one by one."""

    def accept(self, rows: list[Row]) -> Iterable[Row]:
        return [
            (value, number, index, sub)
            for batch, number, index, _ in rows
            for sub, value in enumerate(rows_of(batch), 1)
        ]

    def _need(self, n: int) -> int:
        return 1


class Filling(Transform):
    """As many rows in every epoch as there were items: what was skipped is made up for.

    So all ranks of a data-parallel training make the same number of steps, also where an item of
    one of them was skipped: then its latest examples come again.

    Args:
        upstream: where the rows come from, one of each item that was not skipped.
        items: how many items there were, asked at the end of an epoch.
        keep: how many of the latest rows may come again.
    """

    def __init__(self, upstream: Node, items: Callable[[], int], keep: int) -> None:
        super().__init__(upstream)
        self._items = items
        self._latest: deque[Row] = deque(maxlen=keep)
        self._seen = 0

    def begin(self, epoch: int) -> None:
        self._seen = 0
        self._latest.clear()  # epochs do not mix

    def accept(self, rows: list[Row]) -> Iterable[Row]:
        self._seen += len(rows)
        self._latest.extend(rows)
        return rows

    def finish(self) -> Iterable[Row]:
        missing = self._items() - self._seen
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
        return [latest[place % len(latest)] for place in range(missing)]

    def clear(self) -> None:
        self._latest.clear()


def rows_of(batch: Any) -> Iterable[Any]:
    """The examples that a batch was made of.

    Raises:
        InvalidArgumentError: it is none: its components differ in length, or have none.
    """
    if not isinstance(batch, tuple | Mapping):
        rows: Iterable[Any] = _checked_rows(batch)
        return rows
    labels, columns = components_of(batch)
    columns = [_checked_rows(column) for column in columns]
    if len({len(column) for column in columns}) > 1:
        lengths = {label: len(column) for label, column in zip(labels, columns, strict=True)}
        raise InvalidArgumentError(
            f"batch: got components of different lengths, {lengths}; expected as many rows in each"
        )
    tuples = zip(*columns, strict=True)
    if isinstance(batch, Mapping):
        return (dict(zip(labels, row, strict=True)) for row in tuples)
    return tuples


def _checked_rows(column: Any) -> Any:
    if not hasattr(column, "__len__") or isinstance(column, str | bytes):
        raise InvalidArgumentError(
            f"batch: got {type(column).__name__}; expected arrays or lists, one row per example"
        )
    return column
