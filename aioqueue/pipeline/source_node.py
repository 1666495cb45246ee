"""The first node of a pipeline, `SourceNode`, and the input of workers, `StageInput`.

An *addressed* source can begin at any item. Others can only be read from places that they name
themselves (`EpochStart`): so the node remembers the last such place, and drops the items between it
and the one that is wanted.

`StageInput` makes the rows of a node the source of a `prepare`. Workers run ahead of what the user
has received, and so do the nodes before them. A state describes what the user has received, so it
needs the state of the node before at an *earlier* item. That is why `StageInput` makes marks:
states of the node, by the number of the next item. To resume, the node goes back to the last mark
before the first item that is needed, and drops the items in between.

Items have two numbers. Their *number* counts the rows of the node within the epoch. Their *place*
counts the entries that were given to workers, over all epochs; `prepare` knows only that one. They
differ, because a resumed run omits items, and because the ends of epochs are entries, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from itertools import count, islice, repeat
from types import TracebackType
from typing import Any, TypeAlias

from aioqueue import OutOfRangeError
from aioqueue.base.tracebacks import FailureNote
from aioqueue.errors import add_note
from aioqueue.items.item import ClosingRun, Entry, EpochEnd
from aioqueue.items.provenance import UNKNOWN, RowOrigin
from aioqueue.items.quota import ItemQuota
from aioqueue.pipeline.batches.batch_shape import BatchShape
from aioqueue.pipeline.nodes.flow import Flow, RunOver, failure_of_step, reraise_unexpected_end
from aioqueue.pipeline.nodes.node import Node, Taken
from aioqueue.pipeline.nodes.rows import END, EpochRange, Id, State, WantedRows
from aioqueue.pipeline.queue_loans import LentEntries, LentRun
from aioqueue.pipeline.state.ranks.ledger import ItemNames, RankLedger
from aioqueue.sources.shards import EpochEntries, EpochStart


class SourceNode(Node):
    """Gives the entries of a source as rows, epoch after epoch.

    Args:
        source: the source.
        span: the epochs of the run.
        ledger: makes the provenance of rows; ``None`` if that is not recorded.
    """

    def __init__(
        self, source: EpochEntries, span: EpochRange, ledger: RankLedger | ItemNames | None = None
    ) -> None:
        super().__init__(span)
        self.source = source
        self.never_waits: bool = source.is_addressed and source.source._is_in_memory
        self.ledger = ledger
        self._firsts: dict[int, EpochStart] = {}  # beginnings of epochs that reading fills in
        self._start = self._first(self._epoch)  # the last place at which reading can begin
        self._wanted: WantedRows | None = None
        self._entries: Iterator[_NumberedEntry] | None = None
        self._entries_async: AsyncIterator[_NumberedEntry] | None = None
        self._lent: LentRun | None = None
        self._quota: ItemQuota | None = None  # of a thread that reads ahead, where is a limit
        self._given_before = 0  # how many rows of the epoch were given before it began
        self._is_closed = False

    @property
    def batch_shape(self) -> BatchShape | None:
        shape: BatchShape | None = self.source.source._batch_shape
        return shape

    def limit(self, rows: int) -> None:
        super().limit(rows)
        self._quota = ItemQuota(rows)

    def take(self, n: int) -> Flow[Taken]:
        if self._quota is not None:
            wanted = max(n, self._still_wanted)
            self._quota.allow(self._epoch, self._given - self._given_before + wanted)
        entries = yield _Entries(self, n)
        if not entries:
            return self.end()
        number, _, start = entries[-1]
        self._given = number + 1
        if start is not None:
            self._start = start
        origins = self._origins(entries) if self.ledger is not None else UNKNOWN
        return [
            (value, number, index, 0, origin)
            # Not strict: `UNKNOWN` repeats without end.
            for (number, (value, _, index), _), origin in zip(entries, origins, strict=False)
        ]

    def _skip_to(self, epoch: int) -> None:
        self._epoch, self._given = epoch, 0
        self._start, self._wanted = self._first(epoch), None
        self._drop_entries()

    def close(self) -> None:
        self._is_closed = True
        self._drop_entries()

    def state(self, held: Sequence[Id] = ()) -> State:
        return self.state_at(self._epoch, self._given, self._start)

    def first_state(self, epoch: int) -> State | None:
        """The state at the beginning of an epoch; ``None`` if the epoch's number says it all."""
        first = self._first(epoch)
        return None if first.place is None else self.state_at(epoch, 0, first)

    def _first(self, epoch: int) -> EpochStart:
        first = self._firsts.get(epoch) or self.source.beginning()
        if first.place is not None:
            # The object is filled in when the epoch is read, so all states must share one.
            self._firsts = {one: at for one, at in self._firsts.items() if one >= epoch - 1}
            self._firsts[epoch] = first
        return first

    def state_at(self, epoch: int, given: int, start: EpochStart) -> State:
        """The state behind a number of items of an epoch."""
        if not self.source.is_addressed:
            return {
                "epoch": epoch,
                "given": given,
                "start": start.number,
                "start_place": start.place,
            }
        return {"epoch": epoch, "given": given}

    @property
    def start(self) -> EpochStart:
        return self._start

    def note_read(self, given: int, start: EpochStart) -> None:
        """Note that a `StageInput` has read items itself.

        Args:
            given: how many items of the epoch were read.
            start: where reading can begin behind them.
        """
        if self.ledger is not None:
            self.ledger.remember(self._epoch, start)
        self._given, self._start = given, start

    def end(self) -> EpochEnd:
        """Note that all items of the epoch were given, here or by a `StageInput`.

        Returns:
            The end of the epoch.
        """
        end = EpochEnd(self._epoch, self._given)
        if self.ledger is not None:
            self.ledger.ended(*end)
        self.skip_to(self._epoch + 1)
        return end

    def restore(self, state: State, wanted: WantedRows | None = None) -> None:
        self._epoch, self._given = state["epoch"], state["given"]
        self._start = EpochStart(state.get("start", 0), state.get("start_place"))
        if self._start.place is not None:
            self.source.check_place(self._start.place)
        self._wanted = wanted if wanted is not None and wanted.epoch == self._epoch else None

    def calls_of(self, given: Sequence[Any], result: Any) -> int:
        return len(result) if result else 0

    def next_entries(self, n: int) -> list[_NumberedEntry]:
        """The next entries of this epoch, up to n; an empty list at its end."""
        self._check()
        if self._entries is None:
            self._entries = self._addressed() if self.source.is_addressed else self._read()
        try:
            return list(islice(self._entries, n))
        except BaseException as error:
            raise self._failure(error)  # noqa: B904  # it says its cause

    async def next_entries_async(self, n: int) -> list[_NumberedEntry]:
        """The next entries, for a task. A cancelled call has taken nothing."""
        if not self.source.blocking:
            return self.next_entries(n)
        self._check()
        if isinstance(self.source, LentEntries):
            return await self._next_lent(self.source)
        if self._entries_async is None:
            self._given_before = self._given
            if self._quota is not None:
                self._quota.begin_at(self._epoch, n)
                self._quota.allow(self._epoch, max(n, self._still_wanted))
            self._entries_async = self.source.in_background(self._read(), self._quota)
        try:
            entry = await anext(self._entries_async, None)
        except Exception as error:
            raise self._failure(error)  # noqa: B904  # it says its cause
        return [] if entry is None else [entry]

    async def _next_lent(self, source: LentEntries) -> list[_NumberedEntry]:
        if self._lent is None:
            self._lent = LentRun(source, self._epoch, self._start)
        while True:
            try:
                one = await self._lent.next_async()
            except Exception as error:
                raise self._failure(error)  # noqa: B904  # it says its cause
            if one is None:
                return []
            entry, start = one
            number, wanted = start.number - 1, self._wanted
            # An element that an earlier run has delivered is read again, to get behind it.
            is_new = wanted is None or number >= wanted.upto or number in wanted.numbers
            if number >= self._given and is_new:
                return [(number, entry, start)]
            source.passed_over(entry, self._epoch)

    def _failure(self, error: BaseException) -> BaseException:
        """Wrap an exception of the source in a failure that says where it happened."""
        failure = failure_of_step(error)
        if isinstance(failure, Exception) and not isinstance(failure, RunOver):
            add_note(failure, FailureNote("in the source of the pipeline", "the source failed"))
        return failure

    def _origins(self, entries: list[_NumberedEntry]) -> Sequence[RowOrigin]:
        assert self.ledger is not None
        start = entries[0][2]
        if start is not None:
            self.ledger.remember(self._epoch, start)
        numbers, indices = [], []
        for number, (_, _, index), _ in entries:
            numbers.append(number)
            indices.append(index)
        return self.ledger.take(self._epoch, numbers, indices)

    def _check(self) -> None:
        """Refuse to read a source again that was closed."""
        if self._is_closed:
            raise RunOver("the source was closed")

    def _drop_entries(self) -> None:
        entries, self._entries = self._entries, None
        self._entries_async = self._lent = None  # it ends when it is dropped
        if isinstance(entries, Generator):
            entries.close()

    def _addressed(self) -> Iterator[_NumberedEntry]:
        source, epoch, number, wanted = self.source, self._epoch, self._given, self._wanted
        if wanted is not None:
            kept = [one for one in wanted.numbers if one >= number]
            yield from zip(kept, source.picked(epoch, kept), repeat(None, len(kept)), strict=True)
            number = max(number, wanted.upto)
        if number < END:
            yield from zip(count(number), source.entries(epoch, number), repeat(None), strict=False)

    def _read(self) -> Generator[_NumberedEntry, None, None]:
        number, wanted = self._given, self._wanted
        kept = frozenset() if wanted is None else frozenset(wanted.numbers)
        upto = number if wanted is None else wanted.upto
        placed = self.source.placed(self._epoch, self._start)
        with closing_of(placed) as entries:
            for one, (entry, start) in enumerate(entries, self._start.number):
                if one >= number and (one >= upto or one in kept):
                    yield one, entry, start
                else:  # reading had to begin at an earlier place, and this item only leads on
                    self.source.passed_over(entry, self._epoch)


_NumberedEntry: TypeAlias = tuple[int, Entry[Any], EpochStart | None]
"""A number, the entry, and where reading can begin behind it; ``None`` for an addressed source."""


class _Entries:
    """The demand for entries of a source."""

    __slots__ = ("_n", "_node")

    def __init__(self, node: SourceNode, n: int) -> None:
        self._node = node
        self._n = n

    def take(self) -> list[_NumberedEntry]:
        return self._node.next_entries(self._n)

    async def take_async(self) -> list[_NumberedEntry]:
        return await self._node.next_entries_async(self._n)


class closing_of(ClosingRun[Any]):  # noqa: N801  # it is used as a function
    """Close an iterator over a source when the block ends; otherwise files would stay open.

    An `OutOfRangeError` that the source raises is a failure, and not the end of the source.
    """

    __slots__ = ()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        if isinstance(error, OutOfRangeError):
            raise reraise_unexpected_end(error)
