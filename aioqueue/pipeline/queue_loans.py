"""Queues as sources of pipelines: what a run takes is on lease until it is known what became of it.

`aioqueue.queues.leases` says what that means for the queue. Here, each item that a run has taken
has an `ItemLoan` in the rows that are made of it. Rows that the user receives commit the leases of
their items (`RunLoans.deliver`). An item that leaves no rows commits its lease too. At the end of
the run, after its workers have ended, all others go back (`RunLoans.give_back`).
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any, Final, Protocol

from aioqueue import OutOfRangeError
from aioqueue.core.elements.ownership import copy_if_shared
from aioqueue.items.item import Entry, Origin
from aioqueue.items.provenance import ItemLabel, ItemLoan, loaned
from aioqueue.pipeline.nodes.rows import ROW_ORIGIN, Row
from aioqueue.pipeline.state.ranks.ledger import ItemNames, RunItemNames
from aioqueue.sources.base import BaseSource
from aioqueue.sources.shards import EpochEntries, EpochStart, Rank

_BEGINNING: Final = EpochStart()


class Leases(Protocol):
    """The leases of one queue; see `aioqueue.queues.leases.QueueLeases`."""

    def set_user(self) -> None:
        """Note that the caller waits for the loop, or uses what it gives."""

    def take(self, key: Any) -> Any:
        """Take the next element on lease, in a thread."""

    async def take_async(self, key: Any) -> Any:
        """Take the next element on lease, in a task."""

    def commit(self, keys: Any, *, is_done: bool = False) -> None: ...

    def commit_all(self) -> None: ...

    def give_back(self) -> None: ...


class LentEntries(EpochEntries):
    """The entries of a source over a queue, which are on lease.

    Args:
        source: the source.
        rank: the rank.
        leases: the leases of its queue, by epoch and index.
    """

    def __init__(self, source: BaseSource[Any], rank: Rank, leases: Leases) -> None:
        super().__init__(source, rank)
        self.leases = leases

    def placed(
        self, epoch: int, start: EpochStart = _BEGINNING
    ) -> Generator[tuple[Entry[Any], EpochStart], None, None]:
        run = LentRun(self, epoch, start)
        while (one := run.next()) is not None:
            yield one

    async def of_task(
        self, epoch: int, start: EpochStart = _BEGINNING
    ) -> AsyncGenerator[tuple[Entry[Any], EpochStart], None]:
        run = LentRun(self, epoch, start)
        while (one := await run.next_async()) is not None:
            yield one

    def passed_over(self, entry: Entry[Any], epoch: int) -> None:
        self.leases.commit([(epoch, entry.index)])


class LentRun:
    """One run through an epoch of a source over a queue.

    Args:
        entries: of the source.
        epoch: the epoch.
        start: where it begins.
    """

    def __init__(self, entries: LentEntries, epoch: int, start: EpochStart) -> None:
        self._leases = entries.leases
        self._epoch = epoch
        self._rank = entries.rank
        self._placing = entries.source._placing_in(start.place)
        self._number, _ = start
        self._index = 0 if self._placing is None else self._placing.taken
        self._round: list[tuple[Any, Any]] = []
        self._is_over = False

    def next(self) -> tuple[Entry[Any], EpochStart] | None:
        """The next entry of this rank, and where a run can begin behind it; ``None`` at the end."""
        while not self._is_over:
            try:
                value = self._leases.take((self._epoch, self._index))
            except OutOfRangeError as end:
                self._end(end)
                break
            found = self._come(value)
            if found is not None:
                return found
        return None

    async def next_async(self) -> tuple[Entry[Any], EpochStart] | None:
        """Do the same in a task.

        Cancellation:
            A cancelled call has taken nothing.
        """
        while not self._is_over:
            try:
                value = await self._leases.take_async((self._epoch, self._index))
            except OutOfRangeError as end:
                self._end(end)
                break
            found = self._come(value)
            if found is not None:
                return found
        return None

    def _come(self, value: Any) -> tuple[Entry[Any], EpochStart] | None:
        index, placing = self._index, self._placing
        self._index += 1
        place = None if placing is None else placing.next()
        rank, ranks = self._rank[:2]
        is_other = index % ranks != rank
        if is_other or (placing is not None and placing.is_behind):
            self._leases.commit([(self._epoch, index)])  # of another rank, or delivered before
            return None
        self._number += 1
        return Entry(copy_if_shared(value), self._epoch, index), EpochStart(self._number, place)

    def _end(self, end: OutOfRangeError) -> None:
        self._is_over = True
        if end.__cause__ is not None:  # a failure is not an end
            raise end
        if self._placing is not None:
            self._placing.end()


class _LentItems(ItemNames):
    """Makes the loans of the items of one source."""

    def __init__(self, source: int, leases: Leases, lock: threading.RLock) -> None:
        super().__init__(source)
        self.lock = lock
        self._leases = leases

    def take(self, epoch: int, numbers: Sequence[int], indices: Sequence[int]) -> list[ItemLabel]:
        return [ItemLoan(one.item, self) for one in super().take(epoch, numbers, indices)]

    def gave_nothing(self, item: Origin, *, is_done: bool) -> None:
        self._leases.commit([(item.epoch, item.index)], is_done=is_done)


class RunLoans(RunItemNames):
    """What a run has on lease, from all its queues."""

    def __init__(self) -> None:
        super().__init__()
        self._leases: dict[int, Leases] = {}  # by the number of the source
        self._lock = threading.RLock()

    def open(self, source: BaseSource[Any], rank: Rank) -> tuple[EpochEntries, ItemNames]:
        leases = source._leases()
        if leases is None:
            return super().open(source, rank)
        number, self._count = self._count, self._count + 1
        self._leases[number] = leases
        return LentEntries(source, rank, leases), _LentItems(number, leases, self._lock)

    def deliver(self, rows: Sequence[Row]) -> None:
        """Note that the user receives rows, in the thread or task that calls."""
        used: dict[int, list[tuple[int, int]]] = {number: [] for number in self._leases}
        for row in rows:
            origin = row[ROW_ORIGIN]
            if origin is None:  # it does not say what it was made of: rather lose it than repeat it
                for leases in self._leases.values():
                    leases.commit_all()
            for item in loaned(origin):
                used[item.source].append((item.epoch, item.index))
        for number, keys in used.items():
            leases = self._leases[number]
            leases.set_user()
            leases.commit(keys)

    def set_user(self) -> None:
        """Note that the calling thread or task waits for the next row."""
        for leases in self._leases.values():
            leases.set_user()

    def give_back(self) -> None:
        """Give back what nobody has received. Call it after the workers have ended."""
        for leases in self._leases.values():
            leases.give_back()
