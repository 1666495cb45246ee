"""What a queue on a cluster must know again after its actor has died: numbers only, no elements.

A `QueueLedger` is made of *records*, one after another: which batches are in, which rows of them
were
leased to whom, which leases are used. Its records in short (`QueueLedger.records`) make the same
ledger.
So it can be kept in a file (`aioqueue.ray.journal`), and what is long past can leave that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

__all__ = (
    "ConsumerProgress",
    "EnqueuedBatch",
    "Key",
    "QueueLedger",
    "Record",
    "pairs_of",
    "rows_of",
)

Record: TypeAlias = list[Any]
"""What it is, and of what: all that JSON knows."""

Key: TypeAlias = tuple[str, int]
"""A batch: the life of its producer, and the number of the call."""


def pairs_of(rows: Iterable[int]) -> list[int]:
    """Rows in order as the ends of runs: ``[0, 1, 2, 7]`` becomes ``[0, 3, 7, 8]``."""
    if isinstance(rows, range):  # as almost always
        return [rows.start, rows.stop] if rows else []
    pairs: list[int] = []
    for row in rows:
        if pairs and pairs[-1] == row:
            pairs[-1] = row + 1
        else:
            pairs += (row, row + 1)
    return pairs


def rows_of(pairs: list[int]) -> list[int]:
    """The rows that `pairs_of` was given."""
    ends = zip(pairs[::2], pairs[1::2], strict=True)
    return [row for start, stop in ends for row in range(start, stop)]


class ConsumerProgress:
    """How far a consumer is, over all of its lives: what a new one is checked against.

    Attributes:
        following: the number of its next lease. None is used twice.
        committed: the last lease that was used for good; -1 if none was.
    """

    __slots__ = ("committed", "following")

    def __init__(self, following: int = 0, committed: int = -1) -> None:
        self.following = following
        self.committed = committed

    def hand_over(self, number: int) -> None:
        """It was told of a lease."""
        self.following = max(self.following, number + 1)

    def commit(self, number: int) -> None:
        """It has used a lease."""
        self.committed = max(self.committed, number)


class EnqueuedBatch:
    """What one enqueue puts in.

    Attributes:
        rows: how many rows it has.
        row_bytes: how many bytes each, about.
        keys: their priorities, in a queue that has some.
        inside: which of them are in for good; ``None`` while it goes on.
        used: which have been used.
    """

    __slots__ = ("inside", "keys", "row_bytes", "rows", "used")

    def __init__(self, rows: int, row_bytes: int, keys: list[int] | None) -> None:
        self.rows = rows
        self.row_bytes = row_bytes
        self.keys = keys
        self.inside: list[int] | None = None
        self.used: set[int] = set()

    @property
    def is_used(self) -> bool:
        """Whether nothing of it is left."""
        return self.inside is not None and len(self.used) >= len(self.inside)


class QueueLedger:
    """All that the records say.

    Attributes:
        starts: how often the actor has started.
        lives: whom it speaks to: the life, and what the client calls itself.
        gone: those that it speaks to no more, as long as they may still call.
        progress: how far consumers are: those that have names, over all of their lives.
        batches: what is in, in the order of coming, but for what is used.
        leases: who has what: per life and number the batches and their rows, as `pairs_of`.
        answered: the calls of producers that have ended, until they are known to know that: how
            many rows are in.
        fillings: of producers that have a book: the first batch that is not in as a whole, which
            rows of it are, as `pairs_of`, and how many it has.
        closed: whether, and by which failure, nothing more goes in.
    """

    def __init__(self) -> None:
        self.starts = 0
        self.lives: dict[str, str] = {}
        self.gone: dict[str, str] = {}
        self.progress: dict[str, ConsumerProgress] = {}
        self.batches: dict[Key, EnqueuedBatch] = {}
        self.leases: dict[str, dict[int, list[list[Any]]]] = {}
        self.answered: dict[str, dict[int, int]] = {}
        self.fillings: dict[str, tuple[int, list[int], int]] = {}
        self.closed: list[Any] | None = None
        self._freed: dict[str, list[int]] = {}

    @property
    def size(self) -> int:
        """How many records it would take, about."""
        leases = sum(map(len, self.leases.values()))
        producers = len(self.answered) + len(self.fillings)
        clients = len(self.lives) + 2 * len(self.gone) + len(self.progress)
        return clients + len(self.batches) + leases + producers

    def apply(self, record: Record) -> None:
        """Take note of what has happened.

        Raises:
            KeyError: there is no such record.
        """
        what, *rest = record
        _NOTES[what](self, *rest)

    def freed(self, life: str) -> list[int]:
        """The batches of a producer of which nothing is left, and that was not said before."""
        return self._freed.pop(life, [])

    def producers_of_freed(self) -> list[str]:
        """Those of which there are such batches."""
        return list(self._freed)

    def leased(self) -> dict[Key, set[int]]:
        """Which rows are leased."""
        found: dict[Key, set[int]] = {}
        for leases in self.leases.values():
            for runs in leases.values():
                for producer, number, pairs in runs:
                    found.setdefault((producer, number), set()).update(rows_of(pairs))
        return found

    def records(self) -> Iterator[Record]:
        """The same in as few records as there can be."""
        yield ["start", self.starts]
        for life, client in self.gone.items():
            yield ["meet", life, client]
            yield ["gone", life]
        for life, client in self.lives.items():
            yield ["meet", life, client]
        for client, one in self.progress.items():
            yield ["progress", client, one.following, one.committed]
        for (life, number), batch in self.batches.items():
            used = pairs_of(sorted(batch.used))
            yield ["put", life, number, 0, batch.rows, batch.row_bytes, batch.keys, used]
            if batch.inside is not None:
                yield ["in", life, number, pairs_of(batch.inside)]
        for life, answered in self.answered.items():
            yield ["answered", life, list(answered.items())]
        for life, leases in self.leases.items():
            for number, runs in leases.items():
                yield ["lease", life, number, runs]
        for producer, filling in self.fillings.items():
            yield ["fill", producer, *filling]
        if self.closed is not None:
            yield ["close", *self.closed]

    # What happens.

    def _start(self, starts: int) -> None:
        self.starts = starts

    def _meet(self, life: str, client: str) -> None:
        self.lives[life] = client

    def _progress(self, client: str, following: int, committed: int) -> None:
        self.progress[client] = ConsumerProgress(following, committed)

    def _progress_of(self, life: str) -> ConsumerProgress:
        return self.progress.setdefault(self.lives.get(life, life), ConsumerProgress())

    def _gone(self, life: str) -> None:
        client = self.lives.pop(life, None)
        if client is not None:
            self.gone[life] = client
        self.progress.pop(life, None)  # which has no other life
        self.answered.pop(life, None)
        self._freed.pop(life, None)
        self._back(life, None)

    def _forgotten(self, life: str) -> None:
        self.gone.pop(life, None)

    def _put(
        self,
        life: str,
        number: int,
        known: int,
        rows: int,
        row_bytes: int,
        keys: list[int] | None,
        used: list[int] | None = None,
    ) -> None:
        batch = self.batches.setdefault((life, number), EnqueuedBatch(rows, row_bytes, keys))
        batch.used.update(rows_of(used or []))
        answered = self.answered.get(life)
        if answered:
            for old in [old for old in answered if old < known]:
                del answered[old]
            if not answered:
                del self.answered[life]

    def _in(self, life: str, number: int, pairs: list[int]) -> None:
        rows = rows_of(pairs)
        if life in self.lives:
            self.answered.setdefault(life, {})[number] = len(rows)
        batch = self.batches.get((life, number))
        if batch is not None:
            batch.inside = rows
            self._look_for_use((life, number), batch)

    def _answered(self, life: str, answered: list[list[int]]) -> None:
        self.answered[life] = {int(number): int(rows) for number, rows in answered}

    def _lease(self, life: str, number: int, runs: list[list[Any]]) -> None:
        self.leases.setdefault(life, {})[number] = runs
        self._progress_of(life).hand_over(number)

    def _used(self, life: str, numbers: list[int]) -> None:
        for number in numbers:
            self._progress_of(life).commit(number)
            for producer, call, pairs in self._pop(life, number):
                batch = self.batches.get((producer, call))
                if batch is not None:
                    batch.used.update(rows_of(pairs))
                    self._look_for_use((producer, call), batch)

    def _back(self, life: str, numbers: list[int] | None) -> None:
        for number in list(self.leases.get(life, ())) if numbers is None else numbers:
            self._pop(life, number)

    def _lost(self, life: str, number: int) -> None:
        self.batches.pop((life, number), None)

    def _fill(self, producer: str, following: int, pairs: list[int], rows: int) -> None:
        self.fillings[producer] = following, pairs, rows

    def _close(self, cause: str | None) -> None:
        if self.closed is None:
            self.closed = [cause]

    def _pop(self, life: str, number: int) -> list[list[Any]]:
        leases = self.leases.get(life, {})
        runs = leases.pop(number, [])
        if not leases:
            self.leases.pop(life, None)
        return runs

    def _look_for_use(self, key: Key, batch: EnqueuedBatch) -> None:
        if batch.is_used:
            del self.batches[key]
            life, number = key
            if life in self.lives:
                self._freed.setdefault(life, []).append(number)


_NOTES: Final[dict[str, Any]] = {
    "start": QueueLedger._start,
    "meet": QueueLedger._meet,
    "progress": QueueLedger._progress,
    "gone": QueueLedger._gone,
    "forgotten": QueueLedger._forgotten,
    "put": QueueLedger._put,
    "in": QueueLedger._in,
    "answered": QueueLedger._answered,
    "lease": QueueLedger._lease,
    "used": QueueLedger._used,
    "back": QueueLedger._back,
    "lost": QueueLedger._lost,
    "fill": QueueLedger._fill,
    "close": QueueLedger._close,
}
