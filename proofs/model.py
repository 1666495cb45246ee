"""What a queue should do: the rules, written naively, for every order in which callers may run on.

`Reference` knows lists and nothing else. It keeps no claims, no bounds and no hands of a waiting
batch: *the first rows in line simply belong to the caller that waits first*. What cannot be known,
the order in which the scheduler lets woken callers run on, is not guessed either: `follow` goes
through all orders that the promises allow, and what was observed must be the outcome of at least
one.

Rows are numbers. A row's place in line is decided by a key: its number of arrival; in a priority
queue its priority, then its arrival. A shuffle queue is given what was drawn, and checks that it
could be: how many may leave is a rule, which ones is chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from proofs.codec import priority_of

__all__ = ("Call", "Reference", "Rules", "follow")

Outcome = tuple[Any, ...]
"""How a call ended: ``("returned", rows)``, ``("out of range", requested, remaining, cause)``,
``("closed", enqueued, cause)``, ``("cancelled", enqueued)``, ``("timed out", enqueued)``."""

Rows = tuple[int, ...]

PUTS = ("enqueue", "enqueue_many")
TWO_STEP = "loop"
"""How the names of wakers begin whose callers can be cancelled between grant and commit."""


@dataclass(frozen=True)
class Rules:
    """What kind of queue it is.

    Attributes:
        in_turn: whether each call of a task lets others run after its move.
    """

    kind: str
    capacity: int | None
    keep: int = 0
    max_bytes: int | None = None
    weight_of: Callable[[int], int] = field(default=lambda row: 0, compare=False)
    in_turn: bool = False

    @property
    def takes_early(self) -> bool:
        return self.kind != "priority"


@dataclass(frozen=True)
class Call:
    """One call that may have to wait.

    Attributes:
        number: calls are numbered as they are made.
        method: of the queue.
        waker: where its caller lives.
        rows: what it puts in.
        n: how many rows it wants.
        max_wait: at what time it takes what is there.
        timeout: at what time it gives up.
        interrupted: whether its task is cancelled right after its first step.
    """

    number: int
    method: str
    waker: str
    rows: Rows = ()
    n: int = 1
    max_wait: float | None = None
    timeout: float | None = None
    interrupted: bool = False

    @property
    def is_put(self) -> bool:
        return self.method in PUTS

    @property
    def is_batch(self) -> bool:
        return self.method in ("dequeue_many", "dequeue_up_to")

    @property
    def two_step(self) -> bool:
        return self.waker.startswith(TWO_STEP) and self.method != "enqueue_many"


@dataclass
class Reference:
    """The state of one queue and its callers, of which `follow` makes as many as there are orders.

    Attributes:
        returned: the calls whose end was seen. A task that has ended but has not run on can still
            be cancelled.
    """

    rules: Rules
    returned: set[int] = field(default_factory=set)
    now: float = 0.0
    phase: str = "open"
    cause: str | None = None
    inside: list[int] = field(default_factory=list)
    arrival: dict[int, int] = field(default_factory=dict)
    enqueues: list[Call] = field(default_factory=list)
    dequeues: list[Call] = field(default_factory=list)
    closers: list[Call] = field(default_factory=list)
    joins: list[Call] = field(default_factory=list)
    finished: int = 0
    """Rows that somebody has said are done with."""
    done_rows: dict[int, int] = field(default_factory=dict)
    places: list[Call] = field(default_factory=list)
    claimed: dict[int, Rows] = field(default_factory=dict)
    """By the number of a granted dequeue: its rows."""
    claims: tuple[int, int] = (-1, 0)
    """Which batch found too few rows when it was its turn, and how many those were."""
    unknown: int = 0
    """Rows that were drawn by lot and are still in ``inside``, for it is not told yet which."""
    granted: list[Call] = field(default_factory=list)
    """All who were granted something and have not run on, in the order of the grants."""
    new: list[Call] = field(default_factory=list)
    pausing: set[int] = field(default_factory=set)
    """Those of them that had it at once, and only let others run."""
    cancelled: set[int] = field(default_factory=set)
    expired: set[int] = field(default_factory=set)
    ended: dict[int, Outcome] = field(default_factory=dict)

    def copy(self) -> Reference:
        """One more of the same."""
        twin = Reference(self.rules, self.returned, self.now, self.phase, self.cause)
        lines = ("inside", "enqueues", "dequeues", "closers", "joins", "places", "granted", "new")
        for name in lines:
            setattr(twin, name, list(getattr(self, name)))
        twin.unknown, twin.claims, twin.finished = self.unknown, self.claims, self.finished
        for name in ("arrival", "done_rows", "claimed", "ended"):
            setattr(twin, name, dict(getattr(self, name)))
        twin.cancelled, twin.expired = set(self.cancelled), set(self.expired)
        twin.pausing = set(self.pausing)
        return twin

    def key(self) -> Any:
        """Equal for states between which nothing can tell."""
        lines = (self.inside, self.enqueues, self.dequeues, self.closers, self.joins)
        more = (self.places, self.granted, self.new)
        return (
            self.phase,
            tuple(tuple(line) for line in (*lines, *more)),
            tuple(sorted(self.arrival.items())),
            tuple(sorted(self.done_rows.items())),
            tuple(sorted(self.claimed.items())),
            self.unknown,
            self.claims,
            self.finished,
            tuple(sorted(self.ended.items(), key=lambda item: item[0])),
            tuple(sorted(self.expired)),
            tuple(sorted(self.cancelled)),
            tuple(sorted(self.pausing)),
        )

    # What callers do.

    def begin(self, call: Call) -> None:
        """A call begins."""
        if call.n == 0:
            self._end(call, ("returned", ()))
            return
        if call.is_put and self.phase != "open":
            self._end(call, ("closed", 0, self.cause))
            return
        self._line(call).append(call)
        if call.max_wait is not None and call.max_wait <= self.now:
            self.expired.add(call.number)
        self.settle(calling=call)

    def enqueue_nowait(self, row: int) -> Outcome:
        if self.phase != "open":
            return ("closed", 0, self.cause)
        if self.enqueues or self.places or not self._may_enter(row):
            return ("full",)
        self._enter(row)
        self.settle()
        return ("returned", ())

    def dequeue_nowait(self, observed: Rows) -> Outcome:
        if self.dequeues:
            return ("empty",)
        if self._available() >= 1:
            rows = self._observe(self._take(1), observed)
            self.settle()
            return ("returned", rows)
        if self.phase == "closed" and not self.claimed:
            return ("out of range", 1, self.size(), self.cause)
        return ("empty",)

    def task_done(self, n: int) -> Outcome:
        if n > self.unfinished():
            return ("too many",)
        self.finished += n
        self.settle()
        return ("returned", ())

    def close(self, cancel: bool, cause: str | None) -> None:
        self.cause = self.cause or cause
        if self.phase == "open":
            self.phase = "closing"
        if cancel:
            for call in [*self.places, *self.enqueues]:
                self._end(call, ("closed", self.done_rows.get(call.number, 0), self.cause))
            self.granted = [call for call in self.granted if call not in self.places]
            self.places.clear()
            self.enqueues.clear()
        self.settle()

    def cancel(self, call: Call) -> None:
        """A task is asked to be cancelled; it learns of that when it runs."""
        if call.number not in self.returned:
            self.cancelled.add(call.number)

    # What may happen next, when callers are let run.

    def events(self) -> Iterator[Callable[[Reference], None]]:
        """All that may happen next; each is to be done to a copy."""
        first_new: set[str] = set()
        for call in self.new:
            # Tasks of one loop begin in the order in which they were made.
            if call.waker not in first_new:
                if call.waker.startswith(TWO_STEP):
                    first_new.add(call.waker)
                yield partial(Reference._run_new, call=call)
        for number in self.cancelled:
            yield partial(Reference._run_cancelled, number=number)
        seen: set[str] = set()
        for call in self.granted:
            if call.number in self.cancelled:
                continue
            if call.number in self.pausing:
                yield partial(Reference._run_on, call=call)
            elif call.waker not in seen:
                seen.add(call.waker)  # who was granted first runs on first
                yield partial(Reference._run_on, call=call)
        for call in (*self.enqueues, *self.dequeues, *self.closers, *self.joins):
            if call.timeout is not None and call.timeout <= self.now:
                yield partial(Reference._time_out, call=call)
            elif self._is_due(call):
                yield partial(Reference._expire, call=call)

    def _is_due(self, call: Call) -> bool:
        is_late = call.max_wait is not None and call.max_wait <= self.now
        return is_late and call.number not in self.expired

    def _run_new(self, call: Call) -> None:
        self.new.remove(call)
        if call.number in self.cancelled:
            self.cancelled.remove(call.number)
            self._end(call, ("cancelled", 0))
        else:
            self.begin(call)
            if call.interrupted and not self._is_over(call):
                self.cancelled.add(call.number)

    def _is_over(self, call: Call) -> bool:
        """Whether no cancellation can change what a call has come to in its first step.

        A task that lets others run is not over. But what it has put in is in, and a failure is one;
        who moves nothing is cancelled.
        """
        if call.number not in self.ended:
            return False
        moves = call.n > 0 and call.method not in ("wait_closed", "join")
        return moves or not self.rules.in_turn or self.ended[call.number][0] != "returned"

    def _run_on(self, call: Call) -> None:
        self.granted.remove(call)
        if call.is_put:
            self.places.remove(call)
            self._enter(call.rows[0])
            self._end(call, ("returned", ()))
        else:
            self._end(call, ("returned", self.claimed.pop(call.number)))
        self.settle()

    def _run_cancelled(self, number: int) -> None:
        """A cancelled task runs: whatever it waited for or was granted, it withdraws."""
        for call in self.new:
            if call.number == number:
                self._run_new(call)
                return
        self.cancelled.remove(number)
        self.ended[number] = ("cancelled", self.done_rows.get(number, 0))
        self._withdraw(number)

    def _time_out(self, call: Call) -> None:
        self.ended[call.number] = ("timed out", self.done_rows.get(call.number, 0))
        self._withdraw(call.number)

    def _withdraw(self, number: int) -> None:
        waiting = (self.enqueues, self.dequeues, self.closers, self.joins)
        for line in (*waiting, self.places, self.granted):
            line[:] = [call for call in line if call.number != number]
        rows = self.claimed.pop(number, ())
        self.unknown -= sum(row < 0 for row in rows)
        self.inside += [row for row in rows if row >= 0]
        self.inside.sort(key=self._place_in_line)
        self.settle()

    def _expire(self, call: Call) -> None:
        self.expired.add(call.number)
        self.settle()

    # What follows from it: enqueues are tried before dequeues, until nothing more can move.

    def settle(self, calling: Call | None = None) -> None:
        moved = True
        while moved:
            moved = False
            while self.enqueues and self._move_enqueue(self.enqueues[0], calling):
                moved = True
            if self.phase == "closing" and not self.enqueues and not self.places:
                self.phase, moved = "closed", True
            claims = self.claims
            while self.dequeues and self._move_dequeue(self.dequeues[0], calling):
                moved = True
            moved = moved or self.claims != claims
        if self.phase == "closed":
            for call in self.closers:
                self._end(call, ("returned", ()))
            self.closers.clear()
        if self.cause is not None or not self.unfinished():
            is_failed = self.cause is not None
            for call in self.joins:
                self._end(call, ("closed", 0, self.cause) if is_failed else ("returned", ()))
            self.joins.clear()

    def _move_enqueue(self, call: Call, calling: Call | None) -> bool:
        if not self._may_enter(call.rows[self.done_rows.get(call.number, 0)]):
            return False
        if self.places and not (call.two_step and call.waker == self.places[0].waker):
            return False  # rows enter in the order of the grants
        if call.two_step and (call is not calling or self.places):
            self.enqueues.pop(0)
            self.places.append(call)
            self.granted.append(call)
            return True
        done = self.done_rows.get(call.number, 0)
        self._enter(call.rows[done])
        self.done_rows[call.number] = done + 1
        if done + 1 == len(call.rows):
            self.enqueues.pop(0)
            self._end(call, ("returned", ()))
        return True

    def _move_dequeue(self, call: Call, calling: Call | None) -> bool:
        available = self._available()
        is_closed = self.phase == "closed"
        may_be_short = call.method == "dequeue_up_to" and available > 0
        if available >= call.n:
            n = call.n
        elif may_be_short and (is_closed or call.number in self.expired):
            n = available
        elif is_closed and not self.claimed:
            self.dequeues.pop(0)
            self._end(call, ("out of range", call.n, self.size(), self.cause))
            return True
        else:
            if self.rules.takes_early:
                self.claims = (call.number, available)
            return False
        self.dequeues.pop(0)
        rows = self._take(n)
        if call.two_step and (call is not calling or self.rules.in_turn):
            self.claimed[call.number] = rows
            self.granted.append(call)
            if call is calling:
                self.pausing.add(call.number)
        else:
            self._end(call, ("returned", rows))
        return True

    # Counting.

    def _first(self) -> list[int]:
        return [call.number for call in self.dequeues[:1]]

    def size(self) -> int:
        """Rows that nobody holds."""
        return len(self.inside) - self.unknown

    def owned(self) -> int:
        """Rows inside that belong to the batch that waits first, so they take up no room."""
        return min(self.claims[1], self.size()) if self.claims[0] in self._first() else 0

    def unfinished(self) -> int:
        """Rows that went in and are not done with."""
        return len(self.arrival) - self.finished

    def counts(self) -> tuple[int, ...]:
        """What statistics should say when everybody has run on: size, enqueued, dequeued, waiting
        enqueues and dequeues, granted, claimed, unfinished."""
        size, enqueued = self.size() - self.owned(), len(self.arrival)
        waiting = (len(self.enqueues), len(self.dequeues))
        held = (0, self.owned(), self.unfinished())
        return (size, enqueued, enqueued - self.size(), *waiting, *held)

    def is_waiting(self, call: Call) -> bool:
        lines = (self.enqueues, self.dequeues, self.closers, self.joins)
        return any(call in line for line in lines)

    def _available(self) -> int:
        keep = 0 if self.phase == "closed" else self.rules.keep
        return max(0, self.size() - keep)

    def _room(self) -> float:
        if self.rules.capacity is None:
            return float("inf")
        return self.rules.capacity - (self.size() - self.owned()) - len(self.places)

    def _may_enter(self, row: int) -> bool:
        """Whether there is room; by its size too, unless the next dequeue lacks rows."""
        rules = self.rules
        if self._room() < 1 or rules.max_bytes is None:
            return self._room() >= 1
        head = self.dequeues[0] if self.dequeues else None
        needed = 1 if head is None or head.number in self.expired else head.n
        rows = [*self.inside, *[call.rows[0] for call in self.places], row]
        return len(rows) <= needed or sum(map(rules.weight_of, rows)) <= rules.max_bytes

    def _enter(self, row: int) -> None:
        self.arrival[row] = len(self.arrival)
        self.inside.append(row)
        self.inside.sort(key=self._place_in_line)

    def _take(self, n: int) -> Rows:
        """Take the first n rows. One that is drawn by lot is known later: until then it is a number
        below zero, which tells how many had arrived, for it was one of those."""
        if self.rules.kind == "shuffle":
            self.unknown += n
            return (-1 - len(self.arrival),) * n
        rows = tuple(self.inside[:n])
        del self.inside[:n]
        return rows

    def observe(self, observed: dict[int, Rows]) -> None:
        """Say what the calls that have ended have drawn."""
        for number, rows in observed.items():
            outcome = self.ended.get(number)
            if outcome and outcome[0] == "returned":
                self.ended[number] = ("returned", self._observe(outcome[1], observed=rows))

    def _observe(self, rows: Rows, observed: Rows) -> Rows:
        unknown = [row for row in rows if row < 0]
        possible = len(unknown) == len(observed) == len(set(observed)) and all(
            row in self.inside and self.arrival[row] < -1 - limit
            for row, limit in zip(observed, unknown, strict=True)
        )
        if not unknown or not possible:
            return rows
        self.unknown -= len(unknown)
        self.inside = [row for row in self.inside if row not in observed]
        return observed

    def _place_in_line(self, row: int) -> tuple[int, int]:
        priority = priority_of(row) if self.rules.kind == "priority" else 0
        return priority, self.arrival[row]

    def _line(self, call: Call) -> list[Call]:
        if call.is_put:
            return self.enqueues
        others = {"wait_closed": self.closers, "join": self.joins}
        return others.get(call.method, self.dequeues)

    def _end(self, call: Call, outcome: Outcome) -> None:
        self.ended[call.number] = outcome


def follow(states: Iterable[Reference]) -> list[Reference]:
    """Let everybody run, in every order; return the states in which nobody has anything to do."""
    pending, seen, final = list(states), set(), []
    while pending:
        state = pending.pop()
        key = state.key()
        if key in seen:
            continue
        seen.add(key)
        events = list(state.events())
        if not events:
            final.append(state)
        for event in events:
            after = state.copy()
            event(after)
            pending.append(after)
    return final
