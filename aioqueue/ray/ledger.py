"""The state that a queue needs after the death of its actor: numbers only, no elements.

A `QueueLedger` results from applying *records* in order. It says which batches are in, which
consumer leases which of their rows, and which leases are committed. `QueueLedger.records` returns
a short list of records with the same result. So a file (`aioqueue.ray.journal`) can hold the
ledger, and can drop obsolete records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

from aioqueue.base.arguments import is_int

Record: TypeAlias = list[Any]
"""The kind of a record, and its values, which are valid JSON."""

Key: TypeAlias = tuple[str, int]
"""A batch: the life of its producer, and the number of the call."""


def pairs_of(rows: Iterable[int]) -> list[int]:
    """Encode rows as the ends of runs: ``[0, 1, 2, 7]`` becomes ``[0, 3, 7, 8]``."""
    if isinstance(rows, range):  # the usual case
        return [rows.start, rows.stop] if rows else []
    pairs: list[int] = []
    for row in rows:
        if pairs and pairs[-1] == row:
            pairs[-1] = row + 1
        else:
            pairs += (row, row + 1)
    return pairs


def rows_of(pairs: list[int]) -> list[int]:
    """Decode the result of `pairs_of`."""
    ends = zip(pairs[::2], pairs[1::2], strict=True)
    return [row for start, stop in ends for row in range(start, stop)]


def add_applied_call(
    below: int, numbers: Iterable[int], number: int, known: int
) -> tuple[int, set[int]]:
    """Add a numbered call to those that have taken effect.

    Args:
        below: all calls below this number have.
        numbers: and these.
        number: the call.
        known: the caller has the answers of all calls below this number.
    """
    below = max(below, known)
    return below, {one for one in (*numbers, number) if one >= below}


class ConsumerProgress:
    """The progress of a consumer over all its lives, against which a new life is checked.

    Attributes:
        following: number of its next lease; no number is reused.
        committed: its last committed lease; -1 before the first.
    """

    __slots__ = ("committed", "following")

    def __init__(self, following: int = 0, committed: int = -1) -> None:
        self.following: int = following
        self.committed: int = committed

    def mark_delivered(self, number: int) -> None:
        self.following = max(self.following, number + 1)

    def commit(self, number: int) -> None:
        self.committed = max(self.committed, number)


class EnqueuedBatch:
    """One enqueued batch.

    Attributes:
        rows: number of rows.
        row_bytes: approximate bytes per row.
        keys: priorities of the rows, in a priority queue.
        inside: rows that are in for good; ``None`` while the enqueue is in progress.
        used: rows that were committed.
    """

    __slots__ = ("inside", "keys", "row_bytes", "rows", "used")

    def __init__(self, rows: int, row_bytes: int, keys: list[int] | None) -> None:
        self.rows: int = rows
        self.row_bytes: int = row_bytes
        self.keys: list[int] | None = keys
        self.inside: list[int] | None = None
        self.used: set[int] = set()

    @property
    def is_used(self) -> bool:
        return self.inside is not None and len(self.used) >= len(self.inside)


class QueueLedger:
    """The state that results from the records.

    Attributes:
        starts: how often the actor has started.
        lives: the lives that are served, with the names of their clients.
        dismissed: dismissed lives that may still call.
        progress: the progress of consumers; for named ones, over all their lives.
        batches: the enqueued batches in order, except those committed as a whole.
        leases: by life and number, the leased batches and their rows, as `pairs_of`.
        answered: enqueues that have ended, with their number of rows, until the producer is known
            to have the answer.
        producer_progress: for each replayable producer, the first batch that is not completely in,
            its rows that are in, as `pairs_of`, and its number of rows.
        closed: whether the queue is closed, and by which failure.
        unfinished: by life, how many elements it has committed and is not done with.
        done: by life and lease, how many elements of the lease it is done with already.
        applied_task_dones: by life, its calls of `task_done` that have taken effect, as
            `add_applied_call` returns them.
    """

    def __init__(self) -> None:
        self.starts: int = 0
        self.lives: dict[str, str] = {}
        self.dismissed: dict[str, str] = {}
        self.progress: dict[str, ConsumerProgress] = {}
        self.batches: dict[Key, EnqueuedBatch] = {}
        self.leases: dict[str, dict[int, list[list[Any]]]] = {}
        self.answered: dict[str, dict[int, int]] = {}
        self.producer_progress: dict[str, tuple[int, list[int], int]] = {}
        self.closed: list[Any] | None = None
        self.unfinished: dict[str, int] = {}
        self.done: dict[str, dict[int, int]] = {}
        self.applied_task_dones: dict[str, tuple[int, list[int]]] = {}
        self._freed: dict[str, list[int]] = {}

    @property
    def size(self) -> int:
        """Approximate number of records that it takes."""
        leases = sum(map(len, self.leases.values()))
        producers = len(self.answered) + len(self.producer_progress)
        clients = (
            len(self.lives) + 2 * len(self.dismissed) + len(self.progress) + len(self.unfinished)
        )
        return clients + len(self.batches) + leases + producers

    def apply(self, record: Record) -> None:
        """Apply a record.

        Raises:
            KeyError: there is no such record.
        """
        what, *rest = record
        _APPLY[what](self, *rest)

    def freed(self, life: str) -> list[int]:
        """Return the batches of a producer that have been committed as a whole since the last
        call."""
        return self._freed.pop(life, [])

    def producers_of_freed(self) -> list[str]:
        return list(self._freed)

    def leased(self) -> dict[Key, set[int]]:
        found: dict[Key, set[int]] = {}
        for leases in self.leases.values():
            for runs in leases.values():
                for producer, number, pairs in runs:
                    found.setdefault((producer, number), set()).update(rows_of(pairs))
        return found

    def records(self) -> Iterator[Record]:
        """Return the fewest records that result in the same state."""
        # The order matters: a life is met before it is dismissed, and before its leases, which
        # count for its client.
        yield ["start", self.starts]
        for life, client in self.dismissed.items():
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
        # After the batches: their "in" enters an answer for each, and this record replaces those.
        for life, answered in self.answered.items():
            yield ["answered", life, list(answered.items())]
        for life, leases in self.leases.items():
            for number, runs in leases.items():
                yield ["lease", life, number, runs]
        for life in {**self.unfinished, **self.done, **self.applied_task_dones}:
            done = [[number, count] for number, count in self.done.get(life, {}).items()]
            yield [
                "undone",
                life,
                self.unfinished.get(life, 0),
                done,
                *self.applied_task_dones.get(life, (0, [])),
            ]
        for producer, progress in self.producer_progress.items():
            yield ["fill", producer, *progress]
        if self.closed is not None:
            yield ["close", *self.closed]

    # Events.

    def _apply_start(self, starts: int) -> None:
        self.starts = starts

    def _apply_meet(self, life: str, client: str) -> None:
        self.lives[life] = client

    def _apply_progress(self, client: str, following: int, committed: int) -> None:
        self.progress[client] = ConsumerProgress(following, committed)

    def _progress_of(self, life: str) -> ConsumerProgress:
        return self.progress.setdefault(self.lives.get(life, life), ConsumerProgress())

    def _apply_departed(self, life: str) -> None:
        client = self.lives.pop(life, None)
        if client is not None:  # it may still call, and then learns why it is refused
            self.dismissed[life] = client
        self.progress.pop(life, None)  # an unnamed client has a single life
        # Nobody repeats its enqueues, and nobody keeps its batches any more.
        self.answered.pop(life, None)
        self._freed.pop(life, None)
        self._apply_back(life, None)
        self.unfinished.pop(life, None)
        self.applied_task_dones.pop(life, None)

    def _apply_forgotten(self, life: str) -> None:
        self.dismissed.pop(life, None)

    def _apply_put(
        self,
        life: str,
        number: int,
        known: int,
        rows: int,
        row_bytes: int,
        keys: list[int] | None,
        used: list[int] | None = None,
    ) -> None:
        # After a restart, the producer repeats an unanswered enqueue: then the batch is known, with
        # the rows that consumers have committed since.
        batch = self.batches.setdefault((life, number), EnqueuedBatch(rows, row_bytes, keys))
        batch.used.update(rows_of(used or []))
        answered = self.answered.get(life)
        if answered:  # of calls below `known` it has the answer, so it does not repeat them
            for old in [old for old in answered if old < known]:
                del answered[old]
            if not answered:
                del self.answered[life]

    def _apply_in(self, life: str, number: int, pairs: list[int]) -> None:
        rows = rows_of(pairs)
        if life in self.lives:  # otherwise nobody is there to repeat the call
            self.answered.setdefault(life, {})[number] = len(rows)
        batch = self.batches.get((life, number))
        if batch is not None:  # it may have been lost in the meantime
            batch.inside = rows
            # Consumers may have committed all of it while the enqueue still waited for an answer;
            # and a batch that was given up has no rows inside.
            self._drop_if_used((life, number), batch)

    def _apply_answered(self, life: str, answered: list[list[int]]) -> None:
        self.answered[life] = {int(number): int(rows) for number, rows in answered}

    def _apply_lease(self, life: str, number: int, runs: list[list[Any]]) -> None:
        self.leases.setdefault(life, {})[number] = runs
        self._progress_of(life).mark_delivered(number)

    def _apply_used(self, life: str, numbers: list[int]) -> None:
        for number in numbers:
            self._progress_of(life).commit(number)
            done = self._pop_done(life, number)
            # Also of batches that are lost by now: the consumer has received these rows.
            runs = self._pop(life, number)
            unfinished = sum(len(rows_of(pairs)) for _, _, pairs in runs) - done
            if unfinished > 0:
                self.unfinished[life] = self.unfinished.get(life, 0) + unfinished
            for producer, call, pairs in runs:
                batch = self.batches.get((producer, call))
                if batch is not None:
                    batch.used.update(rows_of(pairs))
                    self._drop_if_used((producer, call), batch)

    def _apply_back(self, life: str, numbers: list[int] | None) -> None:
        # The rows need no record of their own: rows that are inside, neither used nor leased, are
        # in the queue again. What was done with them is not done after all.
        for number in list(self.leases.get(life, ())) if numbers is None else numbers:
            self._pop_done(life, number)
            self._pop(life, number)

    def _apply_done(self, life: str, number: int, known: int, n: int) -> None:
        """A consumer is done with elements, in the order of `LeaseTable.task_done`."""
        below, numbers = add_applied_call(
            *self.applied_task_dones.get(life, (0, [])), number, known
        )
        self.applied_task_dones[life] = below, sorted(numbers)
        # As the table does: first those that cannot go back, then the leases from the oldest on.
        left = n - min(n, self.unfinished.get(life, 0))
        if life in self.unfinished:
            self.unfinished[life] -= n - left
            if not self.unfinished[life]:
                del self.unfinished[life]
        leases = self.leases.get(life, {})
        for lease in sorted(leases) if left else ():
            done = self.done.setdefault(life, {})
            before = done.get(lease, 0)
            rows = sum(len(rows_of(pairs)) for _, _, pairs in leases[lease])
            done[lease] = min(rows, before + left)
            left -= done[lease] - before

    def _apply_unfinished(
        self, life: str, unfinished: int, done: list[list[int]], below: int, numbers: list[int]
    ) -> None:
        if unfinished:
            self.unfinished[life] = unfinished
        if done:
            self.done[life] = {int(number): int(count) for number, count in done}
        if below or numbers:
            self.applied_task_dones[life] = below, numbers

    def _pop_done(self, life: str, number: int) -> int:
        done = self.done.get(life, {})
        count = done.pop(number, 0)
        if not done:
            self.done.pop(life, None)
        return count

    def _apply_lost(self, life: str, number: int) -> None:
        self.batches.pop((life, number), None)

    def _apply_fill(self, producer: str, following: int, pairs: list[int], rows: int) -> None:
        self.producer_progress[producer] = following, pairs, rows

    def _apply_close(self, cause: str | None) -> None:
        if self.closed is None:
            self.closed = [cause]

    def _pop(self, life: str, number: int) -> list[list[Any]]:
        leases = self.leases.get(life, {})
        runs = leases.pop(number, [])
        if not leases:
            self.leases.pop(life, None)
        return runs

    def _drop_if_used(self, key: Key, batch: EnqueuedBatch) -> None:
        # `is_used` is false while the enqueue is in progress: more rows may come.
        if batch.is_used:
            del self.batches[key]
            life, number = key
            if life in self.lives:  # it keeps the batch until it learns of this
                self._freed.setdefault(life, []).append(number)


_APPLY: Final[dict[str, Any]] = {
    "start": QueueLedger._apply_start,
    "meet": QueueLedger._apply_meet,
    "progress": QueueLedger._apply_progress,
    "gone": QueueLedger._apply_departed,
    "forgotten": QueueLedger._apply_forgotten,
    "put": QueueLedger._apply_put,
    "in": QueueLedger._apply_in,
    "answered": QueueLedger._apply_answered,
    "lease": QueueLedger._apply_lease,
    "used": QueueLedger._apply_used,
    "back": QueueLedger._apply_back,
    "lost": QueueLedger._apply_lost,
    "fill": QueueLedger._apply_fill,
    "close": QueueLedger._apply_close,
    "done": QueueLedger._apply_done,
    "undone": QueueLedger._apply_unfinished,
}


def _is_count(value: Any) -> bool:
    return is_int(value) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_ints(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_int, value))


def _is_pairs(value: Any) -> bool:
    """Return whether it is what `pairs_of` makes."""
    return _is_ints(value) and len(value) % 2 == 0 and [-1, *value] == sorted({-1, *value})


def _is_runs(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(run, list)
        and len(run) == 3
        and _is_text(run[0])
        and _is_count(run[1])
        and _is_pairs(run[2])
        for run in value
    )


def _is_answers(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, list) and len(one) == 2 and all(map(_is_count, one)) for one in value
    )


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


_FIELD_CHECKS: Final[dict[str, tuple[Callable[[Any], bool], ...]]] = {
    "start": (_is_count,),
    "meet": (_is_text, _is_text),
    "progress": (_is_text, _is_count, is_int),
    "gone": (_is_text,),
    "forgotten": (_is_text,),
    "put": (
        *(_is_text, _is_count, _is_count, _is_count, _is_count),
        *(_or_none(_is_ints), _or_none(_is_pairs)),
    ),
    "in": (_is_text, _is_count, _is_pairs),
    "answered": (_is_text, _is_answers),
    "lease": (_is_text, _is_count, _is_runs),
    "used": (_is_text, _is_ints),
    "back": (_is_text, _or_none(_is_ints)),
    "lost": (_is_text, _is_count),
    "fill": (_is_text, _is_count, _is_pairs, _is_count),
    "close": (_or_none(_is_text),),
    "done": (_is_text, _is_count, _is_count, _is_count),
    "undone": (_is_text, _is_count, _is_answers, _is_count, _is_ints),
}
"""What the values of each kind of record must be. Values that may be ``None`` may be left out at
the end."""


def check_record(record: Any) -> None:
    """Check a record that comes from a file.

    Raises:
        ValueError: it is not a record.
    """
    if not isinstance(record, list) or not record or record[0] not in tuple(_FIELD_CHECKS):
        raise ValueError("no record of a queue")
    kind, *values = record
    checks = _FIELD_CHECKS[kind]
    values += [None] * (len(checks) - len(values))
    if len(values) > len(checks) or not all(
        check(value) for check, value in zip(checks, values, strict=True)
    ):
        raise ValueError(f"a record of kind {kind!r} with wrong values")
