"""Who called what, what it came to, and whether that can be: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import aioqueue
from aioqueue.core.attempts import QueueState
from aioqueue.errors import DeadlineExceededError, OutOfRangeError, QueueClosedError

__all__ = ("CallRecord", "Entry")

_PUTS = ("enqueue", "enqueue_many", "enqueue_nowait")
_OUTCOMES = {
    asyncio.CancelledError: "cancelled",
    DeadlineExceededError: "timed out",
    OutOfRangeError: "out of range",
    QueueClosedError: "closed",
}


@dataclass(eq=False)
class Entry:
    """One call.

    Attributes:
        rows: what it puts in; or what it took.
        n: how many it wants.
        outcome: empty as long as it has not ended.
        entered: how many of its rows went in.
        has_left: whether its event loop was closed, so that it never will end.
    """

    method: str
    rows: list[int]
    n: int = 1
    outcome: str = ""
    entered: int = 0
    has_left: bool = False

    @property
    def is_put(self) -> bool:
        return self.method in _PUTS

    @property
    def is_alive(self) -> bool:
        return not self.outcome and not self.has_left

    def __str__(self) -> str:
        return f"{self.method}({self.rows if self.is_put else self.n}): {self.outcome or 'waits'}"


class CallRecord:
    """Every call of one queue of plain objects, which are whole numbers.

    Args:
        capacity: of the queue.
        inside: how many numbers are inside at first: 0, 1, ...
    """

    def __init__(self, capacity: int, inside: int = 0) -> None:
        self.queue = aioqueue.FIFOQueue(capacity)
        self.capacity = capacity
        self.entries: list[Entry] = []
        for row in range(inside):
            self.now("enqueue_nowait", row)

    def now(self, method: str, *arguments: Any) -> None:
        """A call that does not wait."""
        entry = self._entered(method, arguments)
        try:
            self._ended(entry, getattr(self.queue, method)(*arguments))
        except asyncio.QueueFull:
            entry.outcome = "full"
        except asyncio.QueueEmpty:
            entry.outcome = "empty"
        except (OutOfRangeError, QueueClosedError) as error:
            self._failed(entry, error)

    async def task(self, method: str, *arguments: Any) -> None:
        """A call of a task."""
        entry = self._entered(method, arguments)
        try:
            self._ended(entry, await getattr(self.queue, method)(*arguments))
        except BaseException as error:
            self._failed(entry, error)

    def thread(self, method: str, *arguments: Any, **options: Any) -> Callable[[], None]:
        """A call of a thread."""
        return partial(self._call, method, arguments, options)

    def close(self, cancel: bool = False) -> None:
        """Close the queue."""
        self.queue.close(cancel_pending_enqueues=cancel)

    def alive(self) -> list[Entry]:
        """The calls that should be waiting."""
        return [entry for entry in self.entries if entry.is_alive]

    def check_sleepers(self) -> None:
        """When nobody has anything to do: those who have not ended really have to wait."""
        statistics, state = self.queue.statistics(), self.queue.state
        alive = self.alive()
        found = f"{', '.join(map(str, self.entries))}; {statistics}, {state}"
        puts = [entry for entry in alive if entry.is_put]
        takes = [entry for entry in alive if entry.method.startswith("dequeue")]
        assert len(puts) == statistics.waiting_enqueues, f"nobody woke an enqueue: {found}"
        assert len(takes) == statistics.waiting_dequeues, f"nobody woke a dequeue: {found}"
        if puts:
            assert statistics.size >= self.capacity, f"an enqueue waits, and there is room: {found}"
        inside = statistics.enqueued - statistics.dequeued
        if takes:
            assert inside < max(entry.n for entry in takes), f"a dequeue waits for nothing: {found}"
            assert state is not QueueState.CLOSED, f"a dequeue waits for nothing: {found}"
        if state is QueueState.CLOSING:
            assert puts, f"closing never ends: {found}"
        if state is QueueState.CLOSED:
            assert not alive, f"it is closed, and somebody waits: {found}"

    def check(self, *, in_turn: bool = False) -> None:
        """When all have ended: take out what is left, and count everything.

        Args:
            in_turn: whether the calls began in the order of the entries, so that they were served
                in that order.
        """
        assert not self.alive(), f"never ended: {', '.join(map(str, self.alive()))}"
        found = ", ".join(map(str, self.entries))
        left = [self.queue.dequeue_nowait() for _ in range(len(self.queue))]
        taken = [row for entry in self.entries if not entry.is_put for row in entry.rows]
        put: list[int] = []
        for entry in self.entries:
            if entry.has_left and entry.method == "enqueue_many":
                # Nobody was there to be told how many rows went in, before its loop was closed.
                entry.entered = sum(row in taken or row in left for row in entry.rows)
            if entry.is_put:
                put += entry.rows[: entry.entered]
        assert sorted([*taken, *left]) == sorted(put), f"{found}; put: {put}, left: {left}"
        for batch in (left, *(entry.rows for entry in self.entries)):
            for entry in self.entries:
                rows = [row for row in batch if entry.is_put and row in entry.rows]
                assert rows == sorted(rows), f"out of order: {found}; left: {left}"
        if in_turn:
            assert left == sorted(left, key=put.index), f"out of turn: {left}; {found}"
            if not any(entry.outcome == "cancelled" or entry.has_left for entry in self.entries):
                assert taken == sorted(taken, key=put.index), f"out of turn: {found}"

    def _entered(self, method: str, arguments: tuple[Any, ...]) -> Entry:
        if method in _PUTS:
            rows = arguments[0] if method == "enqueue_many" else [arguments[0]]
            entry = Entry(method, list(rows))
        else:
            entry = Entry(method, [], n=arguments[0] if arguments else 1)
        self.entries.append(entry)
        return entry

    def _ended(self, entry: Entry, result: Any) -> None:
        entry.outcome = "done"
        if entry.is_put:
            entry.entered = len(entry.rows)
        elif entry.method.startswith("dequeue"):
            entry.rows = list(result) if isinstance(result, list) else [result]

    def _failed(self, entry: Entry, error: BaseException) -> None:
        if isinstance(error, GeneratorExit):
            raise error
        (entry.outcome,) = (name for kind, name in _OUTCOMES.items() if isinstance(error, kind))
        entry.entered = getattr(error, "enqueued", 0)

    def _call(self, method: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        entry = self._entered(method, arguments)
        try:
            self._ended(entry, getattr(self.queue.sync, method)(*arguments, **options))
        except (DeadlineExceededError, OutOfRangeError, QueueClosedError) as error:
            self._failed(entry, error)
