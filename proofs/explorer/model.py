"""The rules, with plain lists, and the callers that they are about."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from aioqueue.core.attempts import Attempt, AttemptState, QueueState
from aioqueue.core.machine import Machine
from proofs.explorer.stand_ins import weight_of

State = AttemptState

PENDING: Final = State.PENDING
GRANTED: Final = State.GRANTED
DONE: Final = State.DONE
FAILED: Final = State.FAILED
WITHDRAWN: Final = State.WITHDRAWN

PUTS: Final = ("put", "put_many")
WEIGHTY_PUTS: Final = ("put", "put_heavy", "put_many")
TAKES: Final = ("take", "take_many", "take_up_to")
LEASES: Final = ("take_leased", "take_many_leased", "take_up_to_leased")
NOWAIT: Final = ("put_nowait", "take_nowait")
_SIZES: Final = dict.fromkeys(("put_many", *TAKES[1:], *LEASES[1:]), 2)


@dataclass(frozen=True)
class Setting:
    """One world, and how far it is explored.

    Attributes:
        producers: one letter per producer, the waker it waits in: a capital for a two-step waker, a
            small letter for a one-step waker.
        consumers: the same for consumers.
        operations: how many operations each caller makes.
        capacity: of the queue.
        max_bytes: of the queue; rows have one byte or two, those of a ``put_heavy`` four.
        keep: ``min_after_dequeue``.
        storage: a key of `STORAGES`.
        puts: the kinds of operation a producer chooses from.
        takes: the same for consumers.
        withdrawals: how many there are in one path, at most.
        closes: the same for closes.
        resizes: the same for changes of the capacity.
        dones: the same for calls of ``task_done``; those that are refused do not count.
        failures: the same for closes by a failure.
        capacities: what it may be changed to.
        has_standby: whether calls for one row, of two-step wakers, also stand by.
        machine: the class to explore; another one only to see that mistakes are found.
    """

    producers: str
    consumers: str
    operations: int = 2
    capacity: int | None = 1
    keep: int = 0
    storage: str = "fifo"
    puts: tuple[str, ...] = PUTS
    takes: tuple[str, ...] = TAKES
    withdrawals: int = 2
    closes: int = 2
    machine: type[Machine] = Machine
    max_bytes: int | None = None
    resizes: int = 0
    dones: int = 0
    failures: int = 0
    capacities: tuple[int | None, ...] = (1, 2, None)
    has_standby: bool = False

    def __str__(self) -> str:
        return (
            f"producers {self.producers}, consumers {self.consumers}, operations {self.operations},"
            f" capacity {self.capacity}, bytes {self.max_bytes}, keep {self.keep}, {self.storage},"
            f" withdrawals {self.withdrawals}, closes {self.closes}, resizes {self.resizes},"
            f" dones {self.dones}, failures {self.failures}" + ", stands by" * self.has_standby
        )


class FakeWaker:
    """Where callers wait: it notes what was notified."""

    __slots__ = ("fresh", "letter", "line", "two_step")

    def __init__(self, letter: str) -> None:
        self.letter = letter
        self.two_step = letter.isupper()
        self.fresh: list[Attempt] = []  # notified by the event that is running
        self.line: list[Op] = []  # owners that are to run on, in the order of the notices

    def notify(self, attempt: Attempt, /) -> None:
        self.fresh.append(attempt)

    def wake(self, *, from_anywhere: bool = False) -> Collection[Attempt]:
        """Nobody sleeps here."""
        return ()

    def is_dead(self) -> bool:
        return False


class Op:
    """One operation in flight: what the model thinks of it, and the machine's attempt beside it."""

    __slots__ = (
        "attempt",
        "caller",
        "copies",
        "done",
        "error",
        "expired",
        "held",
        "kind",
        "leased",
        "n",
        "rows",
        "state",
        "two_step",
        "up_to",
        "waker",
        "was_in_standby",
    )

    def __init__(self, kind: str, caller: Caller, rows: list[int]) -> None:
        self.kind = kind
        self.caller = caller
        self.waker = caller.waker.letter
        self.leased = kind.endswith("_leased")  # kept until its owner, who is elsewhere, says so
        self.two_step = caller.waker.two_step or self.leased
        self.up_to = kind.startswith("take_up_to")
        self.n = _SIZES.get(kind, 1)
        self.rows = rows  # to put in
        self.done = 0  # how many of them are in
        self.held: list[int] = []  # taken
        self.copies = False  # it has its rows, and its owner is copying them
        self.expired = False
        self.was_in_standby = False  # and its owner has not begun it
        self.state = PENDING
        self.error: tuple[Any, ...] | None = None
        self.attempt: Any = None


class Caller:
    """One producer or consumer."""

    __slots__ = ("kinds", "left", "op", "waker")

    def __init__(self, waker: FakeWaker, kinds: tuple[str, ...], left: int) -> None:
        self.waker = waker
        self.kinds = kinds
        self.left = left  # operations it has still to begin
        self.op: Op | None = None


class Model:
    """The rules, with plain lists."""

    __slots__ = (
        "back",
        "came_back",
        "capacity",
        "dequeues",
        "enqueues",
        "entered",
        "finished",
        "granted",
        "has_failed",
        "inside",
        "joins",
        "keep",
        "max_bytes",
        "notified",
        "phase",
        "places",
        "progressive",
        "standby",
        "until",
    )

    def __init__(
        self, capacity: int | None, max_bytes: int | None, keep: int, progressive: bool
    ) -> None:
        self.capacity = capacity
        self.max_bytes = max_bytes
        self.keep = keep
        self.progressive = progressive
        self.phase = QueueState.OPEN
        self.inside: list[int] = []  # rows in line
        self.entered: list[int] = []  # all rows that ever went in, in order
        self.back: set[int] = set()  # rows that ever came back
        self.came_back = 0  # how many did in the event that is running
        self.enqueues: list[Op] = []
        self.dequeues: list[Op] = []
        self.until: list[Op] = []
        self.joins: list[Op] = []
        self.finished = 0  # rows that are done with
        self.has_failed = False  # a failure has closed it
        self.standby: list[Op] = []  # first in line, but looked at only by what is not fast
        self.places: list[Op] = []  # granted enqueues
        self.granted: list[Op] = []  # granted dequeues
        self.notified: list[Op] = []

    # What happens.

    def begin(self, op: Op, can_wait: bool, *, is_fast: bool = False) -> None:
        """An operation begins; where it cannot wait and would have to, it is withdrawn."""
        if op in self.standby:
            self.standby.remove(op)
        if not is_fast and self.line_up():
            self.settle()
        if op.rows and self.phase is not QueueState.OPEN:
            op.state, op.error = FAILED, ("closed", 0)
            return
        line = self.enqueues if op.rows else self.dequeues
        if op.kind in ("until_closed", "join"):
            line = self.until if op.kind == "until_closed" else self.joins
        if not can_wait and not self._at_once(op, line):
            op.state = WITHDRAWN
            return
        line.append(op)
        self.settle(op)

    def may_enter_standby(self, op: Op) -> bool:
        """Nobody waits, nobody stands by on its side, and it cannot proceed."""
        waits = self.enqueues or self.dequeues or self.phase is not QueueState.OPEN
        if waits or any(bool(other.rows) == bool(op.rows) for other in self.standby):
            return False
        if op.rows:
            return len(self.inside) + len(self.places) >= self.limit
        return len(self.inside) <= self.keep

    def retry(self, op: Op) -> bool:
        """It has stood by, and proceeds if it can, unless it is in line since."""
        if op not in self.standby:
            return False
        if op.rows:
            if len(self.inside) + len(self.places) >= self.limit:
                return False
            self._enter(op)
        else:
            if len(self.inside) <= self.keep:
                return False
            self._take(op, 1)
        self.standby.remove(op)
        op.state = DONE
        return True

    def line_up(self) -> bool:
        """Who stands by is in line from now on; whether there was anyone."""
        both, self.standby = self.standby, []
        for op in both:
            (self.enqueues if op.rows else self.dequeues).append(op)
        return bool(both)

    def commit(self, op: Op) -> None:
        """Its owner runs on."""
        if op.state is GRANTED:
            op.state = DONE
            if op.rows:
                self.line_up()
                self.places.remove(op)
                self._enter(op)
            else:
                self.granted.remove(op)
            self.settle()

    def withdraw(self, op: Op) -> None:
        """Its owner is cancelled."""
        if op in self.standby:
            self.standby.remove(op)
        self.line_up()
        was_done = op.state is DONE
        if op.state is FAILED or (was_done and not op.held):
            self.settle()
            return
        op.state = WITHDRAWN
        waiting = (self.until, self.joins)
        for line in (self.enqueues, self.places, self.dequeues, self.granted, *waiting):
            if op in line:
                line.remove(op)
        self._put_back(op)
        self.settle()

    def expire(self, op: Op) -> None:
        """Its deadline passes."""
        op.expired = True
        self.settle()

    def task_done(self, n: int) -> bool:
        """Rows are done with; whether so many were not."""
        if n > self.unfinished:
            return False
        self.finished += n
        self.settle_joins()
        return True

    @property
    def unfinished(self) -> int:
        """Rows that went in and are not done with."""
        return len(self.entered) - self.finished

    def settle_joins(self, calling: Op | None = None) -> None:
        """Release callers that wait until all is done, if it is, or a failure has closed the
        queue."""
        for op in list(self.joins):
            if self.has_failed:
                self._end(op, FAILED, calling, ("unfinished", self.unfinished))
            elif self.unfinished:
                continue
            else:
                self._end(op, DONE, calling)
            self.joins.remove(op)

    def close(self, cancel: bool, fails: bool = False) -> None:
        """Nothing more may begin to go in."""
        self.has_failed = self.has_failed or fails
        self.line_up()
        if self.phase is QueueState.OPEN:
            self.phase = QueueState.CLOSING
        if cancel:
            for op in self.places + self.enqueues:
                self._end(op, FAILED, None, ("closed", op.done))
            self.places.clear()
            self.enqueues.clear()
        self.settle()
        self.settle_joins()

    def resize(self, capacity: int | None) -> None:
        """More may be inside from now on, or fewer."""
        self.line_up()
        self.capacity = capacity
        self.settle()

    # What follows from it.

    @property
    def limit(self) -> float:
        """How many may be inside: more than the capacity, if a batch needs all at the same time."""
        limit = float("inf") if self.capacity is None else self.capacity
        return limit if self.progressive or not self.dequeues else max(limit, self.dequeues[0].n)

    def settle(self, calling: Op | None = None) -> None:
        """Let everything proceed that may: enqueues first, then dequeues, until nothing moves."""
        moved = True
        while moved:
            moved = False
            while self.enqueues and self._move_enqueue(self.enqueues[0], calling):
                moved = True
            if self.phase is QueueState.CLOSING and not self.enqueues and not self.places:
                self.phase = QueueState.CLOSED
            while self.dequeues and self._move_dequeue(self.dequeues[0], calling):
                moved = True
        if self.phase is QueueState.CLOSED:
            for op in self.until:
                self._end(op, DONE, calling)
            self.until.clear()
        if calling in self.joins:
            self.settle_joins(calling)

    def _move_enqueue(self, op: Op, calling: Op | None) -> bool:
        if len(self.inside) + len(self.places) >= self.limit:
            return False
        if not self._is_light_enough(op.rows[op.done : op.done + 1]):
            return False
        two_step = op.two_step and op.kind != "put_many"
        # It may join the places of its own waker, whose owners resume before it.
        joins = two_step and bool(self.places) and self.places[0].waker == op.waker
        if joins or (two_step and op is not calling and not self.places):
            self.places.append(self.enqueues.pop(0))
            self._end(op, GRANTED, None)
            return True
        if self.places:
            return False  # rows enter in the order of the grants
        self._enter(op)
        if op.done == op.n:
            del self.enqueues[0]
            self._end(op, DONE, calling)
        return True

    def _move_dequeue(self, op: Op, calling: Op | None) -> bool:
        closed = self.phase is QueueState.CLOSED
        available = max(0, len(self.inside) - (0 if closed else self.keep))
        missing = op.n - len(op.held)
        some_will_do = op.up_to and bool(op.held + self.inside)
        if available >= missing:
            self._take(op, missing)
        elif closed and self.granted and not some_will_do:
            # What others have been granted may yet come back, and is the last there will be.
            if self.progressive:
                self._take(op, available)
            return self.progressive and available > 0
        elif closed and not some_will_do:
            del self.dequeues[0]
            held = len(op.held)
            self._put_back(op)
            self._end(op, FAILED, calling, ("out of range", op.n, len(self.inside), held))
            return True
        elif closed or (op.expired and len(op.held) + available > 0):
            self._take(op, available)
        else:
            if self.progressive:
                self._take(op, available)
            return self.progressive and available > 0
        del self.dequeues[0]
        if op.leased or (op.two_step and op is not calling):
            self.granted.append(op)
            self._end(op, GRANTED, calling)
        else:
            self._end(op, DONE, calling)
        return True

    def _at_once(self, op: Op, line: list[Op]) -> bool:
        if op.kind == "join":
            return self.has_failed or not self.unfinished
        if op.rows:
            room = len(self.inside) < self.limit
            return room and not line and not self.places and self._is_light_enough(op.rows)
        keep = 0 if self.phase is QueueState.CLOSED else self.keep
        enough = len(self.inside) - keep >= op.n
        some_will_do = op.up_to and bool(self.inside)
        ended = self.phase is QueueState.CLOSED and (not self.granted or some_will_do)
        return not line and (enough or ended)

    def _is_light_enough(self, rows: list[int]) -> bool:
        """Whether rows may go in: they fit, or the next dequeue lacks so many at least."""
        if self.max_bytes is None:
            return True
        head = self.dequeues[0] if self.dequeues else None
        held = head.held if head else []
        lacks = 1 if head is None or head.expired else head.n
        lacks -= len(held) + len(self.inside) - self.keep + len(self.places)
        promised = [place.rows[0] for place in self.places]
        total = sum(map(weight_of, [*held, *self.inside, *promised]))
        for row in rows:
            total += weight_of(row)
            lacks -= 1
            if lacks < 0 and total > self.max_bytes:
                return False
        return True

    def _enter(self, op: Op) -> None:
        row = op.rows[op.done]
        op.done += 1
        self.inside.append(row)
        self.entered.append(row)

    def _take(self, op: Op, n: int) -> None:
        op.held += self.inside[:n]
        del self.inside[:n]

    def _put_back(self, op: Op) -> None:
        """What it held is first in line again; so a batch that waits has the first rows again."""
        if not op.held:
            return
        rows, op.held = op.held, []
        self.back.update(rows)
        self.came_back += len(rows)
        self.inside += rows
        head = self.dequeues[0] if self.dequeues else None
        count = len(head.held) if head else 0
        if head:
            self.inside += head.held
            head.held = []
        self.inside.sort(key=self.entered.index)
        if head:
            self._take(head, count)

    def _end(
        self, op: Op, state: State, calling: Op | None, error: tuple[Any, ...] | None = None
    ) -> None:
        op.state, op.error = state, error
        if op is not calling:
            self.notified.append(op)
