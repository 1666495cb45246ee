"""Whether a history of overlapping calls could have happened one after the other.

A queue is *linearizable* (Herlihy and Wing, 1990) if every call seems to take effect at one moment
between its start and its end. `check` looks for such an order as Wing and Gong did (1993): take
any call that no other one ended before, see whether the queue allows it next, go on, and go back
when stuck. As in Lowe's version (2017), a set of calls that led to a state of the queue once before
is not followed twice. What else keeps it short:

* the two calls of a row narrow each other: it is not taken before it is put in, nor put in after;
* a call that changes nothing (the queue is full, say) is made as soon as it is allowed;
* in a queue that keeps an order, a row does not go in before one that certainly left before it;
  and the rows of a batch that was taken go in one right after the other.

**Calls that wait.** A call that waits takes effect when it is granted, which lies between its start
and its end. Where the promises of aioqueue are weaker than one moment, so is the rule:

* the rows of an `enqueue_many` go in one by one, in order, with no other enqueue in between;
* a batch that waits takes rows as they come: while one is under way, that many rows more fit;
* a cancelled or timed-out batch takes nothing, but may have had rows in its hands for a while;
* so may any dequeue of asyncio that was granted rows before it was cancelled: while one is under
  way, so many rows may be overtaken, or seem not to be there;
* an enqueue that waits in asyncio is granted a place first: while one is under way, there may be
  no room for others. If it is cancelled, it has put nothing in.

So the histories of runs in which nothing is interrupted are judged by the strict rules.

**Joins** are judged by themselves (`check_joins`): who calls ``task_done`` moves no row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

from proofs.codec import priority_of, weight_of

__all__ = (
    *("NotLinearizableError", "Op", "Spec", "UndecidedError", "Verdict", "check"),
    "check_joins",
)

OPEN, CLOSING, ENDED = range(3)
LARGEST = max(weight_of("weighty", row) for row in range(3))
"""Bytes of a row: which one a call could not put in is not in the history."""


@dataclass(slots=True)
class Op:
    """One call of a history.

    Attributes:
        method: of the queue.
        start: when it was made.
        end: when it returned or raised.
        outcome: "done", "full", "empty", "closed", "out of range" or "undone" (cancelled, timed
            out).
        rows: what it put in, or took out; of an interrupted batch those that are in.
        n: how many it wanted.
        expired: whether it takes what is there.
        cancels: whether it is a close that cancels the enqueues that wait.
        two_step: whether it was made by a task that may be cancelled when it is granted.
        caller: who made it, for messages.
    """

    method: str
    start: int
    end: int
    outcome: str = "done"
    rows: tuple[int, ...] = ()
    n: int = 1
    expired: bool = False
    cancels: bool = False
    two_step: bool = False
    caller: str = ""

    def __str__(self) -> str:
        what = f"{self.n} " if self.method.startswith("dequeue") and self.n > 1 else ""
        return f"{self.caller} {self.method} {what}{list(self.rows)}: {self.outcome}"

    @property
    def is_put(self) -> bool:
        return self.method.startswith("enqueue")

    @property
    def is_take(self) -> bool:
        return self.method.startswith("dequeue")

    @property
    def is_batch(self) -> bool:
        return self.method in ("dequeue_many", "dequeue_up_to")


@dataclass(frozen=True)
class Spec:
    """What kind of queue it is.

    Attributes:
        order: "fifo", "priority" or "shuffle".
        max_bytes: in a queue whose rows have the sizes of `codec.weight_of`.
    """

    order: str
    capacity: int | None = None
    keep: int = 0
    max_bytes: int | None = None

    def is_too_much(self, line: Iterable[int], more: int) -> bool:
        """Whether so many bytes more are too many beside these rows."""
        if self.max_bytes is None:
            return False
        return more + sum([weight_of("weighty", row) for row in line]) > self.max_bytes


@dataclass(frozen=True)
class Verdict:
    """What a check has found, and how much it looked at.

    Attributes:
        order: the calls in an order that explains them.
        configurations: how many sets of calls were looked at.
    """

    order: list[Op]
    configurations: int


class NotLinearizableError(AssertionError):
    """No order of the calls explains what they returned."""


class UndecidedError(AssertionError):
    """Too many orders would have to be looked at to know."""


State = tuple[Any, int, int]
"""The rows inside; how far closing is; the number of the row that must go in next, or -1."""


class _Move:
    """What must seem to happen at one moment: a call, or one row of an `enqueue_many`."""

    __slots__ = (
        "changes_nothing",
        "end",
        "followed_by",
        "hint",
        "is_first",
        "next",
        "op",
        "overtakes",
        "rank",
        "returned",
        "row",
        "slack",
        "start",
        "taken_from",
    )

    def __init__(self, op: Op, row: int | None = None) -> None:
        self.op = op
        self.row = row
        self.is_first = True
        self.next = -1  # the row of the same batch that must go in right after it
        self.start: float = op.start
        self.end: float = op.end
        self.slack = 0  # rows that interrupted or waiting calls may have in their hands meanwhile
        self.taken_from: float = inf  # when the call was made that took this row out
        self.returned: float = inf  # when that call had returned
        self.overtakes = 0  # how many rows that call may have overtaken
        self.followed_by: int | None = None  # the row that left right behind it
        self.changes_nothing = row is None and op.outcome in ("full", "empty", "closed")
        self.rank = int(row is not None)
        self.hint: float = op.end  # those with small ones are tried first


def check(history: Iterable[Op], spec: Spec, *, limit: int = 200_000) -> Verdict:
    """Find an order of the calls that explains a history.

    Args:
        history: all calls that were made.
        spec: what kind of queue it is.
        limit: how many configurations to look at.

    Raises:
        NotLinearizableError: there is none; the message tells how far it could be explained.
        UndecidedError: it was not found within the limit, and there may be one.
    """
    return _Search(list(history), spec).run(limit)


def check_joins(history: Iterable[Op]) -> int:
    """Check that each join which returned did so when all could have been done with.

    A row is in at the latest when its enqueue has ended. It is done with at the earliest when that
    was begun to be said. So at some moment of the join no more rows may certainly be in than may
    perhaps be done with.

    Args:
        history: all calls that were made; the queue was not closed by a failure.

    Returns:
        How many joins were looked at.

    Raises:
        NotLinearizableError: a join has ended too early.
    """
    ops = list(history)
    entered = sorted(op.end for op in ops if op.is_put for _ in op.rows)
    done = sorted(op.start for op in ops if op.method == "task_done" for _ in range(op.n))
    joins = [op for op in ops if op.method == "join" and op.outcome == "done"]
    for join in joins:
        # Only where something begins to be done with can the answer become yes.
        moments = [join.start, *(at for at in done if join.start < at <= join.end)]
        if not any(bisect_right(entered, at) <= bisect_right(done, at) for at in moments):
            unfinished = bisect_right(entered, join.start) - bisect_right(done, join.end)
            raise NotLinearizableError(f"{unfinished} rows or more were unfinished: {join}")
    return len(joins)


class _Search:
    def __init__(self, history: list[Op], spec: Spec) -> None:
        self.spec = spec
        self.closed_at = min((op.end for op in history if op.method == "close"), default=inf)
        self.moves = _moves(history)
        self.is_fifo = spec.order == "fifo"
        self.put_of = {
            move.row: index for index, move in enumerate(self.moves) if move.row is not None
        }
        self.by_departure = sorted(
            self.put_of.values(), key=lambda index: self.moves[index].returned
        )
        # Those that were taken when no one could be overtaken.
        self.in_turn = [index for index in self.by_departure if not self.moves[index].overtakes]
        self.configurations = 0

    def run(self, limit: int) -> Verdict:
        start: State = (frozenset() if self.spec.order == "shuffle" else (), OPEN, -1)
        seen = {(0, 0, start)}
        path: list[int] = []
        longest: tuple[int, ...] = ()
        # Of each step: the first move not made yet, which of those after it are made (as bits,
        # from there), the state, and the moves still to be tried from here.
        stack = [(0, 0, start, self.candidates(0, 0, start))]
        while stack and self.configurations < limit:
            base, made, state, candidates = stack[-1]
            if base == len(self.moves):
                return Verdict([self.moves[index].op for index in path], self.configurations)
            for index in candidates:
                after = self.step(self.moves[index], state)
                if after is None:
                    continue
                bits, first = made | 1 << (index - base), base
                while bits & 1:
                    bits >>= 1
                    first += 1
                key = (first, bits, after)
                if key in seen:
                    continue
                seen.add(key)
                self.configurations += 1
                path.append(index)
                if len(path) > len(longest):
                    longest = tuple(path)
                stack.append((first, bits, after, self.candidates(first, bits, after)))
                break
            else:
                stack.pop()
                if path:
                    path.pop()
        if stack:
            raise UndecidedError(self.description(longest))
        raise NotLinearizableError(self.description(longest))

    def candidates(self, base: int, made: int, state: State) -> Iterator[int]:
        """The moves that may come next: no other one has ended before they began."""
        moves = self.moves
        ended: float = inf
        found = []
        for index in range(base, len(moves)):
            if made >> (index - base) & 1:
                continue
            move = moves[index]
            if move.start > ended:
                break
            if move.end < ended:
                ended = move.end
            found.append(index)
        for index in found:
            move = moves[index]
            if move.changes_nothing and self.step(move, state) is not None:
                return iter((index,))
        # Rows leave as soon as they can, and come as late as they can, which leaves most room for
        # the others; unless someone has to see a full queue.
        fills = any(moves[index].op.outcome == "full" for index in found)
        found.sort(key=lambda index: (moves[index].rank ^ fills, moves[index].hint))
        if not self.is_fifo or state[2] >= 0:
            return iter(found)
        # First as if no one was overtaken.
        likely = self.pruned(found, base, made, state[0], self.by_departure)
        if len(self.in_turn) == len(self.by_departure):
            return iter(likely)
        possible = self.pruned(found, base, made, state[0], self.in_turn, overtaken=True)
        return iter((*likely, *(index for index in possible if index not in likely)))

    def pruned(
        self,
        found: list[int],
        base: int,
        made: int,
        line: tuple[int, ...],
        by_departure: list[int],
        *,
        overtaken: bool = False,
    ) -> list[int]:
        """Without the rows that would go in before one that certainly left before them.

        Args:
            by_departure: the rows to look at.
            overtaken: whether to allow for those that may have overtaken others.
        """
        moves = self.moves
        last = moves[self.put_of[line[-1]]] if line else None
        if last is not None and last.followed_by is not None:
            if not overtaken:
                return [i for i in found if moves[i].row in (None, last.followed_by)]
            if not last.overtakes:
                found = [
                    i
                    for i in found
                    if moves[i].row in (None, last.followed_by) or moves[i].overtakes
                ]
        for index in by_departure:
            if index >= base and not made >> (index - base) & 1:
                limit = moves[index].returned
                return [i for i in found if moves[i].row is None or moves[i].taken_from <= limit]
        return found

    # The queue, one call after the other.

    def step(self, move: _Move, state: State) -> State | None:
        """The state after a move; None if the queue does not allow it."""
        op, (line, phase, due) = move.op, state
        if move.row is not None:
            return self.put(move, state)
        if op.method == "close":
            return line, max(phase, ENDED if op.cancels else CLOSING), due
        if op.method == "wait_closed":
            return None if phase == OPEN or due >= 0 else (line, ENDED, due)
        if op.outcome == "done":
            return self.take(move, state)
        if op.outcome == "closed":
            return None if phase == OPEN else state
        if op.outcome == "out of range":
            n = 1 if op.method == "dequeue_up_to" else op.n
            return (line, ENDED, due) if phase != OPEN and len(line) < n and due < 0 else None
        capacity = self.spec.capacity
        if op.outcome == "full":
            is_full = capacity is not None and len(line) >= capacity
            is_full |= bool(line) and self.spec.is_too_much(line, LARGEST)
            return state if phase == OPEN and (is_full or move.slack or due >= 0) else None
        assert op.outcome == "empty", op
        keep = self.spec.keep if phase != ENDED else 0
        return state if len(line) - keep - move.slack <= 0 else None

    def put(self, move: _Move, state: State) -> State | None:
        line, phase, due = state
        row = move.row
        assert row is not None
        if due != (-1 if move.is_first else row) or phase == ENDED:
            return None
        if phase == CLOSING and move.op.start > self.closed_at:
            return None
        if self.spec.capacity is not None and len(line) - move.slack >= self.spec.capacity:
            return None
        if line and not move.slack and self.spec.is_too_much(line, weight_of("weighty", row)):
            return None
        if self.spec.order == "fifo":
            line = (*line, row)
        elif self.spec.order == "shuffle":
            line = line | {row}
        else:
            # Behind its equals, which came before it.
            place = bisect_left([priority_of(other) for other in line], priority_of(row) + 1)
            line = (*line[:place], row, *line[place:])
        return line, phase, move.next

    def take(self, move: _Move, state: State) -> State | None:
        line, phase, due = state
        op, rows = move.op, move.op.rows
        left = len(line) - len(rows)
        if left < self.spec.keep:
            if phase == OPEN or left < 0:
                return None
            phase = ENDED
        if len(rows) < op.n and not (op.expired and left - self.spec.keep <= move.overtakes):
            # Fewer than were wanted: it is closed, and these were the last.
            if phase == OPEN or left > move.overtakes:
                return None
            phase = ENDED
        if phase == ENDED and due >= 0:
            return None
        if self.spec.order == "shuffle":
            return (line - set(rows), phase, due) if line.issuperset(rows) else None
        if line[: len(rows)] == rows:
            return line[len(rows) :], phase, due
        return self.take_past_others(line, rows, move.overtakes, phase, due)

    def take_past_others(
        self, line: Any, rows: tuple[int, ...], slack: int, phase: int, due: int
    ) -> State | None:
        """Those in front may be in the hands of calls that were interrupted."""
        if not slack or not set(rows) <= set(line):
            return None
        places = [line.index(row) for row in rows]
        if places != sorted(places) or places[-1] + 1 - len(rows) > slack:
            return None
        return tuple(row for row in line if row not in rows), phase, due

    def description(self, longest: tuple[int, ...]) -> str:
        made = set(longest)
        state: State | None = (frozenset() if self.spec.order == "shuffle" else (), OPEN, -1)
        for index in longest:
            assert state is not None
            state = self.step(self.moves[index], state)
        left = [move for index, move in enumerate(self.moves) if index not in made]
        ended = min(move.end for move in left)
        return (
            f"{self.spec}: {len(longest)} of {len(self.moves)} moves can be explained; with\n"
            f"    {state} inside, none of these could come next:\n"
            + "\n".join(f"    {move.op}" for move in left if move.start <= ended)
            + "\nafter\n"
            + "\n".join(f"    {self.moves[index].op}" for index in longest[-12:])
        )


def _moves(history: list[Op]) -> list[_Move]:
    """The moves of a history, in the order of their starts."""
    moves: list[_Move] = []
    put: dict[int, _Move] = {}
    taken: dict[int, _Move] = {}
    closing = min((op.start for op in history if op.method == "close"), default=0)
    for op in history:
        if op.method in ("join", "task_done"):
            continue
        if op.is_put:
            batch = [_Move(op, row) for row in op.rows]
            for move, following in pairwise(batch):
                move.next = following.row if following.row is not None else -1
                following.is_first = False
            for move in batch:
                if move.row in put:
                    raise NotLinearizableError(f"{move.row} went in twice: {op}")
                put[int(move.row or 0)] = move
            moves += batch
        if op.outcome == "undone" or (op.is_put and op.outcome == "done"):
            continue
        move = _Move(op)
        moves.append(move)
        if op.outcome in ("closed", "out of range") or op.method == "wait_closed":
            move.start = max(move.start, closing)
        if op.is_take:
            for row in op.rows:
                if row in taken:
                    raise NotLinearizableError(f"{row} came out twice: {taken[row].op}, {op}")
                taken[row] = move
    for row, take in taken.items():
        if row not in put:
            raise NotLinearizableError(f"{row} came out and never went in: {take.op}")
        # Neither before it was put in, nor put in after it was taken.
        take.start = max(take.start, put[row].start)
        put[row].end = min(put[row].end, take.end)
    _give_slack(history, moves)
    for move in moves:
        if move.start > move.end:
            raise NotLinearizableError(f"it ended before it could begin: {move.op}")
    for row, take in taken.items():
        place = take.op.rows.index(row)
        move = put[row]
        move.taken_from, move.returned = take.start, take.end
        move.hint = min(move.end, take.end - len(take.op.rows) + place)
        move.overtakes = take.overtakes
        if place + 1 < len(take.op.rows):
            move.followed_by = take.op.rows[place + 1]
    return sorted(moves, key=lambda move: move.start)


def _give_slack(history: list[Op], moves: list[_Move]) -> None:
    """Count what calls that overlap with each move may have had in their hands."""
    ghosts = [op for op in history if op.is_take and op.outcome == "undone"]
    granted = [op for op in ghosts if op.two_step]
    ghosts = [op for op in ghosts if op.two_step or op.is_batch]
    batches = [op for op in history if op.is_batch and op.outcome != "undone"]
    places = [op for op in history if op.method == "enqueue" and op.two_step]
    for move in moves:
        op = move.op
        if op.outcome == "full":
            move.slack = sum(1 for other in places if _overlap(op, other))
            continue
        if op.is_take:
            move.overtakes = sum(other.n for other in granted if _overlap(op, other))
        move.slack = sum(other.n for other in ghosts if _overlap(op, other))
        if move.row is not None or op.outcome == "empty":
            largest = (other.n for other in batches if _overlap(op, other))
            move.slack += max(largest, default=0)


def _overlap(one: Op, other: Op) -> bool:
    return one is not other and one.start <= other.end and other.start <= one.end
