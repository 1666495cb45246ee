"""Where a pipeline begins: the entries of a source as rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from itertools import count, islice, repeat
from types import TracebackType
from typing import Any, TypeAlias

from aioqueue import OutOfRangeError
from aioqueue.inputs.core.items import ClosingRun, Entry, EpochEnd
from aioqueue.inputs.core.ranks import EpochEntries, EpochStart
from aioqueue.inputs.pipeline.node import (
    END,
    EpochRange,
    Flow,
    Id,
    Node,
    RunOver,
    State,
    Taken,
    WantedRows,
    failure_of_step,
    reraise_unexpected_end,
)
from aioqueue.inputs.pipeline.provenance import UNKNOWN, RowOrigin
from aioqueue.inputs.pipeline.rank_state import ItemNames, RankLedger

__all__ = ("SourceNode", "closing_of")


class SourceNode(Node):
    """The entries of a source as rows, epoch after epoch.

    Args:
        source: what has them.
        span: the epochs.
        ledger: what says which items these are, if anybody wants to know.
    """

    def __init__(
        self, source: EpochEntries, span: EpochRange, ledger: RankLedger | ItemNames | None = None
    ) -> None:
        super().__init__(span)
        self.source = source
        self.ledger = ledger
        self._firsts: dict[int, EpochStart] = {}  # where epochs begin, if that is known only later
        self._start = self._first(self._epoch)  # where to begin again
        self._wanted: WantedRows | None = None
        self._entries: Iterator[_Numbered] | None = None
        self._entries_async: AsyncIterator[_Numbered] | None = None
        self._is_closed = False

    def take(self, n: int) -> Flow[Taken]:
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
            for (number, (value, _, index), _), origin in zip(entries, origins, strict=False)
        ]

    def _skip_to(self, epoch: int) -> None:
        self._epoch, self._given = epoch, 0
        self._start, self._wanted = self._first(epoch), None
        self._leave()

    def close(self) -> None:
        self._is_closed = True
        self._leave()

    def state(self, held: Sequence[Id] = ()) -> State:
        return self.state_at(self._epoch, self._given, self._start)

    def first_state(self, epoch: int) -> State | None:
        """The state at the beginning of an epoch, if that says more than that it is there."""
        first = self._first(epoch)
        return None if first.place is None else self.state_at(epoch, 0, first)

    def _first(self, epoch: int) -> EpochStart:
        first = self._firsts.get(epoch) or self.source.beginning()
        if first.place is not None:
            # A run fills it in, so all have to have the same one.
            self._firsts = {one: at for one, at in self._firsts.items() if one >= epoch - 1}
            self._firsts[epoch] = first
        return first

    def state_at(self, epoch: int, given: int, start: EpochStart) -> State:
        """The state behind so many items of an epoch."""
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
        """Where to begin, in order to have what comes next."""
        return self._start

    def go_on_at(self, given: int, start: EpochStart) -> None:
        """So many items of the epoch were given by others; what follows begins there."""
        if self.ledger is not None:
            self.ledger.remember(self._epoch, start)
        self._given, self._start = given, start

    def end(self) -> EpochEnd:
        """All items of the epoch were given, by whomever."""
        end = EpochEnd(self._epoch, self._given)
        if self.ledger is not None:
            self.ledger.ended(*end)
        self.skip_to(self._epoch + 1)
        return end

    def restore(self, state: State, wanted: WantedRows | None = None) -> None:
        self._epoch, self._given = state["epoch"], state["given"]
        self._start = EpochStart(state.get("start", 0), state.get("start_place"))
        self._wanted = wanted if wanted is not None and wanted.epoch == self._epoch else None

    def calls_of(self, given: Sequence[Any], result: Any) -> int:
        return len(result) if result else 0

    def next_entries(self, n: int) -> list[_Numbered]:
        """The next of this epoch, up to n; none at its end."""
        self._check()
        if self._entries is None:
            self._entries = self._addressed() if self.source.is_addressed else self._read()
        try:
            return list(islice(self._entries, n))
        except BaseException as error:
            raise failure_of_step(error)  # noqa: B904  # it says its cause

    async def next_entries_async(self, n: int) -> list[_Numbered]:
        """The same, for a task. What is cancelled here has taken nothing."""
        if not self.source.blocking:
            return self.next_entries(n)
        self._check()
        if self._entries_async is None:
            self._entries_async = self.source.in_background(self._read())
        entry = await anext(self._entries_async, None)
        return [] if entry is None else [entry]

    def _origins(self, entries: list[_Numbered]) -> Sequence[RowOrigin]:
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
        """Nobody begins again with what was let go of."""
        if self._is_closed:
            raise RunOver("the source was let go of")

    def _leave(self) -> None:
        entries, self._entries = self._entries, None
        self._entries_async = None  # which ends when it is dropped
        if isinstance(entries, Generator):
            entries.close()

    def _addressed(self) -> Iterator[_Numbered]:
        source, epoch, number, wanted = self.source, self._epoch, self._given, self._wanted
        if wanted is not None:
            kept = [one for one in wanted.numbers if one >= number]
            yield from zip(kept, source.picked(epoch, kept), repeat(None, len(kept)), strict=True)
            number = max(number, wanted.upto)
        if number < END:
            yield from zip(count(number), source.entries(epoch, number), repeat(None), strict=False)

    def _read(self) -> Generator[_Numbered, None, None]:
        number, wanted = self._given, self._wanted
        kept = frozenset() if wanted is None else frozenset(wanted.numbers)
        upto = number if wanted is None else wanted.upto
        placed = self.source.placed(self._epoch, self._start)
        with closing_of(placed) as entries:
            for one, (entry, start) in enumerate(entries, self._start.number):
                if one >= number and (one >= upto or one in kept):
                    yield one, entry, start


_Numbered: TypeAlias = tuple[int, Entry[Any], EpochStart | None]
"""A number, the entry, and where to begin again behind it, which an addressed source computes."""


class _Entries:
    """The wish for entries of a source."""

    __slots__ = ("_n", "_node")

    def __init__(self, node: SourceNode, n: int) -> None:
        self._node = node
        self._n = n

    def take(self) -> list[_Numbered]:
        return self._node.next_entries(self._n)

    async def take_async(self) -> list[_Numbered]:
        return await self._node.next_entries_async(self._n)


class closing_of(ClosingRun[Any]):  # noqa: N801  # it is used as a function
    """Close what goes through a source when it is left: files stay open in it otherwise.

    That it runs into the end of something else is a failure, and not the end of the source.
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
