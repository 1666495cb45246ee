"""Every order of events that a machine can meet, tried one by one against a naive model.

A *world* is a machine with a few producers and consumers, each of which makes a few operations,
one after the other. `explore` walks, breadth first, through all states that the world can reach
by these events, in any order:

* a caller begins an operation, of any kind: by the fast path (``try_*``) and, if that is
  refused, with an attempt, exactly as both faces of a queue do;
* a caller whose attempt has ended or was granted runs on and commits it. The callers of a
  *two-step* waker (asyncio) run on in the order in which their attempts were notified; those of a
  *one-step* waker (threads, trio) in any order;
* a caller in flight is withdrawn: while it waits, after it was granted, and after it has ended
  without having run on;
* a caller whose take is *leased*, wherever it waits, commits it at any time later, or withdraws it,
  even if it had its rows at once: it is on another machine;
* a caller that has its batch has copied it, without the lock, and lets go of the rows; or that
  fails, and it is withdrawn (with storages whose batches are copied by their owners);
* the deadline of a waiting ``take_up_to`` passes;
* the queue is closed, plainly or with its pending enqueues cancelled;
* its capacity is set to another one.

After every event the machine is compared with `Model`, which is written as the rules are told
(plain lists; a waiting batch simply takes its rows; no claims, no bounds, no tickets): the
state of every attempt, the rows in every hand and in the storage, in order, what was notified and
which wakers are to be woken, errors and statistics. Since the model lets everything proceed
that may, an attempt left waiting that could proceed is found too. The guarantees are asserted
once more on what was observed, without relying on how the model moves: no row lost or repeated,
rows in order, batches contiguous, capacity respected.

**What counts as one state.** Rows are renamed by the order in which they went in; callers of
one waker with as many operations left are interchangeable; what was delivered, the totals of the
statistics and tickets are left out, since the machine decides nothing by them. All else that
the machine keeps is in the key, its claims and bounds included. Keys are kept as 128-bit
digests.

**What bounds it.** Worlds are finite: every caller makes ``operations`` operations, of one row
or two. Withdrawals, closes and changes of the capacity are also bounded, to so many in one path
(``withdrawals``, ``closes``, ``resizes``); as many as there are operations is as good as no bound.
Closing a closed queue again, and plainly closing a closing one, are not tried: they change nothing
(`test_machine` shows it). Everything else within the stated size is tried, in every order.

Run it by hand, for one number of callers, all kinds of wakers and all capacities up to one::

    python -m tests.explorer --producers 3 --consumers 3 --operations 1 --capacity 3
    python -m tests.explorer --producers 3 --consumers 3 --operations 2 --capacity 3

The first ends within minutes; the second is for a machine with hours and tens of gigabytes, and
``--seconds`` lets it stop early and say so.
"""

from __future__ import annotations

import argparse
import itertools
import marshal
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import attrgetter
from typing import Any, Final

from aioqueue.attempts import (
    Attempt,
    AttemptState,
    Put,
    PutMany,
    QueueState,
    Take,
    UntilClosed,
    Waker,
)
from aioqueue.copying import Copier
from aioqueue.elements import Columns
from aioqueue.errors import OutOfRangeError, QueueClosedError
from aioqueue.locks import REFUSAL
from aioqueue.machine import NOTHING, Machine
from aioqueue.storage import Held, ObjectStorage

__all__ = (
    "EagerStorage",
    "FakeLock",
    "LendingStorage",
    "PlainStorage",
    "Result",
    "Setting",
    "ViolationError",
    "WholeStorage",
    "explore",
)

Event = tuple[Any, ...]
Path = tuple[Any, ...]
"""The path before its last event, and that event: so paths share what they have in common."""
State = AttemptState

PENDING: Final = State.PENDING
GRANTED: Final = State.GRANTED
DONE: Final = State.DONE
FAILED: Final = State.FAILED
WITHDRAWN: Final = State.WITHDRAWN
_STATES: Final = {state: index for index, state in enumerate(State)}
_PHASES: Final = {state: index for index, state in enumerate(QueueState)}

PUTS: Final = ("put", "put_many")
WEIGHTY_PUTS: Final = ("put", "put_heavy", "put_many")
TAKES: Final = ("take", "take_many", "take_up_to")
LEASES: Final = ("take_leased", "take_many_leased", "take_up_to_leased")
NOWAIT: Final = ("put_nowait", "take_nowait")
_KINDS: Final = (*PUTS, *TAKES, *NOWAIT, "until_closed", "put_heavy", *LEASES)
_SIZES: Final = dict.fromkeys(("put_many", *TAKES[1:], *LEASES[1:]), 2)
_WEIGHTS: Final = {"put_heavy": (4,), "put_many": (1, 2)}
"""Bytes of the rows that are put in, where bytes are bounded; else each has one."""


class ViolationError(AssertionError):
    """The machine and the rules disagree; the message tells the events that lead there."""


class FakeLock:
    """A lock for one thread, which costs nothing and knows whether it is held."""

    __slots__ = ("depth",)

    def __init__(self) -> None:
        self.depth = 0

    def acquire(self, blocking: bool = True, /) -> bool:
        self.depth += 1
        return True

    def release(self) -> None:
        if not self.depth:
            raise RuntimeError(*REFUSAL)
        self.depth -= 1

    def _is_owned(self) -> bool:
        return self.depth > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *args: object) -> None:
        self.depth -= 1


def weight_of(row: int) -> int:
    """The last digit of a row says how many bytes it is taken to have."""
    return row % 10


class PlainStorage(ObjectStorage):
    """First in, first out; it counts bytes as naively as can be."""

    @property
    def weight(self) -> int:
        back = [row for _, row in self.returned]
        return sum(map(weight_of, [*back, *self]))

    def weight_of(self, row: int) -> int:
        return weight_of(row)

    def weights(self, columns: Columns, start: int, stop: int) -> Iterator[int]:
        return map(weight_of, columns[start:stop])


class EagerStorage(PlainStorage):
    """First in, first out, but told of every row that comes, as a shuffle buffer is."""

    eager = True

    def claim(self, n: int) -> None:
        if n > self.size:
            raise ViolationError(f"claimed {n} rows of {self.size}")


class WholeStorage(PlainStorage):
    """First in, first out, but a batch may not take rows early, as from a heap."""

    progressive = False


class LendingStorage(PlainStorage):
    """First in, first out; batches are copied by their owners, as in blocks and on shelves.

    It notes what is being copied: memory that was reserved and not given back, or given back twice,
    is found, and so are rows in hands that were let go of too early, or never.
    """

    def __init__(self) -> None:
        super().__init__()
        self.staged: dict[int, int] = {}  # batches not all in, by first row: how many rows are
        self.lent: set[int] = set()  # rows in the hands of batches

    def is_large(self, n: int) -> bool:
        return True

    def fill(self, reserved: Any, columns: Columns, n: int) -> Columns:
        self.staged[columns[0]] = 0
        return columns

    def put_many(self, columns: Columns, start: int, stop: int) -> None:
        if self.staged.get(columns[0]) != start:
            raise ViolationError("a batch goes in that has no memory, or in another order")
        self.staged[columns[0]] = stop
        if stop == len(columns):
            del self.staged[columns[0]]
        super().put_many(columns, start, stop)

    def discard(self, columns: Columns, start: int) -> None:
        if self.staged.pop(columns[0], None) != start:
            raise ViolationError("memory was given back twice, or under rows that are in")

    def hold(self, held: Held, n: int) -> None:
        super().hold(held, n)
        self.lent.update(held.parts)

    def hold_one(self, held: Held) -> None:
        super().hold_one(held)
        self.lent.difference_update(held.parts)

    def restore(self, held: Held) -> None:
        self.lent.difference_update(held.parts)
        super().restore(held)

    def free(self, held: Held) -> None:
        if not self.lent.issuperset(held.parts):
            raise ViolationError("rows were let go of twice")
        self.lent.difference_update(held.parts)
        super().free(held)


STORAGES: Final = {
    "fifo": PlainStorage,
    "eager": EagerStorage,
    "whole": WholeStorage,
    "lending": LendingStorage,
}


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
        capacities: what it may be changed to.
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
    capacities: tuple[int | None, ...] = (1, 2, None)

    def __str__(self) -> str:
        return (
            f"producers {self.producers}, consumers {self.consumers}, operations {self.operations},"
            f" capacity {self.capacity}, bytes {self.max_bytes}, keep {self.keep}, {self.storage},"
            f" withdrawals {self.withdrawals}, closes {self.closes}, resizes {self.resizes}"
        )


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
    """The rules, told with plain lists."""

    __slots__ = (
        "back",
        "came_back",
        "capacity",
        "dequeues",
        "enqueues",
        "entered",
        "granted",
        "inside",
        "keep",
        "max_bytes",
        "notified",
        "phase",
        "places",
        "progressive",
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
        self.places: list[Op] = []  # granted enqueues
        self.granted: list[Op] = []  # granted dequeues
        self.notified: list[Op] = []

    # What happens.

    def begin(self, op: Op, can_wait: bool) -> None:
        """An operation begins; where it cannot wait and would have to, it is withdrawn."""
        if op.rows and self.phase is not QueueState.OPEN:
            op.state, op.error = FAILED, ("closed", 0)
            return
        line = self.enqueues if op.rows else self.dequeues
        if op.kind == "until_closed":
            line = self.until
        if not can_wait and not self._at_once(op, line):
            op.state = WITHDRAWN
            return
        line.append(op)
        self.settle(op)

    def commit(self, op: Op) -> None:
        """Its owner runs on."""
        if op.state is GRANTED:
            op.state = DONE
            if op.rows:
                self.places.remove(op)
                self._enter(op)
            else:
                self.granted.remove(op)
            self.settle()

    def withdraw(self, op: Op) -> None:
        """Its owner is cancelled."""
        was_done = op.state is DONE
        if op.state is FAILED or (was_done and not op.held):
            return
        op.state = WITHDRAWN
        for line in (self.enqueues, self.places, self.dequeues, self.granted, self.until):
            if op in line:
                line.remove(op)
        self._put_back(op)
        self.settle()

    def expire(self, op: Op) -> None:
        """Its deadline passes."""
        op.expired = True
        self.settle()

    def close(self, cancel: bool) -> None:
        """Nothing more may begin to go in."""
        if self.phase is QueueState.OPEN:
            self.phase = QueueState.CLOSING
        if cancel:
            for op in self.places + self.enqueues:
                self._end(op, FAILED, None, ("closed", op.done))
            self.places.clear()
            self.enqueues.clear()
        self.settle()

    def resize(self, capacity: int | None) -> None:
        """More may be inside from now on, or fewer."""
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


class World:
    """A machine, its callers, and the model beside it."""

    __slots__ = (
        "began",
        "callers",
        "closes",
        "delivered",
        "machine",
        "model",
        "resizes",
        "setting",
        "storage",
        "wakers",
        "withdrawals",
    )

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.storage = STORAGES[setting.storage]()
        self.machine = setting.machine(
            self.storage,
            FakeLock(),
            capacity=setting.capacity,
            max_bytes=setting.max_bytes,
            keep=setting.keep,
        )
        self.model = Model(
            setting.capacity, setting.max_bytes, setting.keep, self.storage.progressive
        )
        self.wakers = {
            letter: FakeWaker(letter) for letter in sorted({*setting.producers, *setting.consumers})
        }
        sides = ((setting.producers, setting.puts), (setting.consumers, setting.takes))
        self.callers = [
            Caller(self.wakers[letter], kinds, setting.operations)
            for letters, kinds in sides
            for letter in letters
        ]
        self.withdrawals = setting.withdrawals
        self.closes = setting.closes
        self.resizes = setting.resizes
        self.began = 0  # rows that were made so far
        self.delivered: list[int] = []

    # What can happen.

    def events(self) -> Iterator[Event]:
        """All that can happen now; one of several interchangeable callers stands for them."""
        seen = set()
        for index, caller in enumerate(self.callers):
            op = caller.op
            if op is None:
                alike = (caller.waker.letter, caller.left, caller.kinds)
                if caller.left and alike not in seen:
                    seen.add(alike)
                    for kind in caller.kinds:
                        yield "begin", index, kind
                continue
            in_any_order = op.copies or op.leased or not op.two_step
            runs = in_any_order or caller.waker.line[:1] == [op]
            if op.state is not PENDING and runs:
                yield "resume", index
            if self.withdrawals:
                yield "withdraw", index
            if op.up_to and op.state is PENDING and not op.expired:
                yield "expire", index
        if self.closes and self.model.phase is not QueueState.CLOSED:
            if self.model.phase is QueueState.OPEN:
                yield "close", False
            yield "close", True
        if self.resizes:
            for capacity in self.setting.capacities:
                if capacity != self.model.capacity:
                    yield "resize", capacity

    def apply(self, event: Event) -> None:
        """Make an event happen to the machine and to the model, and compare them."""
        for waker in self.wakers.values():
            waker.fresh.clear()
        self.model.notified.clear()
        self.model.came_back = 0
        before = self.machine.size + len(self.model.places)
        wakes = getattr(self, "_" + event[0])(*event[1:])
        self._check(wakes, before)

    def _begin(self, index: int, kind: str) -> Collection[Waker]:
        caller = self.callers[index]
        caller.left -= 1
        rows: list[int] = []
        if kind.startswith("put"):
            weights = _WEIGHTS.get(kind, (1,))
            rows = [10 * (self.began + index) + weight for index, weight in enumerate(weights)]
            self.began += len(rows)
        op = Op(kind, caller, rows)
        can_wait = not kind.endswith("_nowait")
        columns = self._columns(op)
        got = self._try(op, columns)
        if got is not None:
            self.model.begin(op, can_wait)
            _expect(op.state is DONE, "the fast path went where it had to wait", op)
            _expect(not self.model.notified, "the fast path passed by others", op)
            _expect(got == op.held, "the fast path took other rows", op, got)
            if not self._begins_to_copy(op):
                self._deliver(got)
            return ()
        attempt = op.attempt = _attempt(op, columns)
        wakes = self.machine.begin(attempt, caller.waker if can_wait else None)
        self.model.begin(op, can_wait)
        _expect(attempt.state is op.state, "began otherwise", op, attempt.state)
        if op.state is PENDING or op.state is GRANTED:  # it may join the places of its waker
            caller.op = op
        elif op.state is DONE:
            if not self._begins_to_copy(op):
                self._deliver(self._rows(attempt), op)
        elif op.state is FAILED:
            _check_error(op)
        return wakes

    def _columns(self, op: Op) -> Columns:
        """The batch that is to be put in, copied first where batches are."""
        if op.n > 1 and op.rows and self.storage.is_large(op.n):
            return Copier(self.storage, FakeLock()).copy_in(list(op.rows), op.n)
        return list(op.rows)

    def _try(self, op: Op, columns: Columns) -> list[int] | None:
        """The fast path: what it took, or None if it was refused."""
        machine = self.machine
        if op.rows:
            if op.n == 1:
                return [] if machine.try_enqueue(op.rows[0]) else None
            return [] if machine.try_enqueue_many(columns, op.n) else None
        if op.kind == "until_closed" or op.leased:
            return None
        if op.n == 1:
            row = machine.try_dequeue()
            return None if row is NOTHING else [row]
        if not self.storage.is_large(op.n):
            return machine.try_dequeue_many(op.n)
        op.attempt = Take(op.n)
        return self._rows(op.attempt) if machine.try_take(op.attempt) else None

    def _begins_to_copy(self, op: Op) -> bool:
        """Whether its owner has to copy the rows that it now has."""
        if op.n > 1 and op.held and self.storage.is_large(op.n):
            op.copies = True
            op.caller.op = op
        return op.copies

    def _resume(self, index: int) -> Collection[Waker]:
        caller = self.callers[index]
        op = caller.op
        assert op is not None
        if op.copies:
            self._deliver(Copier(self.storage, FakeLock()).copy_out(op.attempt), op)
            self._leave(caller, op)
            return ()
        wakes = self.machine.commit(op.attempt)
        self.model.commit(op)
        if op.state is FAILED:
            _check_error(op)
        elif self._begins_to_copy(op):
            if not op.leased:
                caller.waker.line.remove(op)
            return wakes
        else:
            self._deliver(self._rows(op.attempt), op)
        self._leave(caller, op)
        return wakes

    def _withdraw(self, index: int) -> Collection[Waker]:
        caller = self.callers[index]
        op = caller.op
        assert op is not None
        self.withdrawals -= 1
        # A timeout in a thread withdraws what still waits; an exception there whatever there is.
        only_pending = op.state is PENDING and not op.two_step
        wakes = self.machine.withdraw(op.attempt, if_pending=only_pending)
        self.model.withdraw(op)
        _expect(op.attempt.state is op.state, "withdrawn otherwise", op, op.attempt.state)
        _expect(not self._rows(op.attempt), "withdrawn with rows in its hands", op)
        self._leave(caller, op)
        return wakes

    def _expire(self, index: int) -> Collection[Waker]:
        op = self.callers[index].op
        assert op is not None
        wakes = self.machine.expire(op.attempt)
        self.model.expire(op)
        return wakes

    def _close(self, cancel: bool) -> Collection[Waker]:
        self.closes -= 1
        wakes = self.machine.close(cancel_pending_enqueues=cancel)
        self.model.close(cancel)
        return wakes

    def _resize(self, capacity: int | None) -> Collection[Waker]:
        self.resizes -= 1
        wakes = self.machine.resize(capacity)
        self.model.resize(capacity)
        return wakes

    def _leave(self, caller: Caller, op: Op) -> None:
        caller.op = None
        if op in caller.waker.line:
            caller.waker.line.remove(op)

    def _rows(self, attempt: Attempt) -> list[int]:
        if not isinstance(attempt, Take) or not attempt.held.count:
            return []
        if attempt.single:
            return [attempt.held.single]
        return list(self.storage.columns(attempt.held))

    def _deliver(self, rows: list[int], op: Op | None = None) -> None:
        if op is not None:
            _expect(rows == op.held, "delivered other rows", op, rows)
        for row in rows:
            _expect(row not in self.delivered, "delivered twice", row)
        self.delivered += rows

    # What must be so.

    def _check(self, wakes: Collection[Waker], before: int) -> None:
        model, machine, storage = self.model, self.machine, self.storage
        _expect(not machine.is_entered_here(), "the lock is still held")
        broken = machine.check_invariants()
        _expect(not broken, "; ".join(broken))
        _expect(machine.state is model.phase, "another state", machine.state, model.phase)
        notified: dict[str, list[Attempt]] = {letter: [] for letter in self.wakers}
        for op in model.notified:
            notified[op.waker].append(op.attempt)
            line = op.caller.waker.line
            if (
                op not in line and not op.leased
            ):  # a place that is cancelled by a close is notified twice
                line.append(op)
        for letter, waker in self.wakers.items():
            _expect(
                waker.fresh == notified[letter], "notified otherwise", waker.fresh, notified[letter]
            )
            _expect((waker in wakes) == bool(waker.fresh), "woken otherwise", letter)
        held: list[int] = []
        for caller in self.callers:
            if caller.op is not None:
                self._check_op(caller.op)
                held += caller.op.held
        head = model.dequeues[0] if model.dequeues else None
        aside = head.held if head else []
        stored = [row for _, row in storage.returned] + list(storage)
        _expect(stored == aside + model.inside, "stored otherwise", stored, aside, model.inside)
        self._check_guarantees(stored, held, head, before)
        self._check_statistics(len(held))
        if isinstance(storage, LendingStorage):
            ops = [caller.op for caller in self.callers if caller.op is not None]
            lent = [row for op in ops if op.n > 1 and op.state is not PENDING for row in op.held]
            _expect(storage.lent == set(lent), "rows in hands are not let go of", storage.lent)
            staged = {op.rows[0] for op in model.enqueues if op.kind == "put_many"}
            _expect(set(storage.staged) == staged, "memory is not given back", storage.staged)

    def _check_op(self, op: Op) -> None:
        attempt = op.attempt
        _expect(attempt.state is op.state, "in another state", op, attempt.state, op.state)
        if isinstance(attempt, Take):
            hands = self._rows(attempt)
            if op.state is PENDING:
                _expect(not hands, "holds rows that it has only claimed", op, hands)
            else:
                _expect(hands == op.held, "was given other rows", op, hands)
        elif isinstance(attempt, PutMany):
            _expect(attempt.done == op.done, "has put in otherwise", op, attempt.done)
        if op.state is FAILED:
            _check_error(op)

    def _check_guarantees(
        self, stored: list[int], held: list[int], head: Op | None, before: int
    ) -> None:
        """The promises, once more, without relying on how the model moves."""
        model = self.model
        aside = head.held if head else []
        rest = held[:]
        for row in aside:
            rest.remove(row)
        everywhere = sorted(stored + rest + self.delivered)
        _expect(everywhere == sorted(model.entered), "lost or repeated", everywhere, model.entered)
        if model.capacity is not None:
            # Only rows that come back may push it above the capacity; then nothing goes in.
            inside = self.machine.size + len(model.places)
            most = max(model.limit, before + model.came_back)
            _expect(inside <= most, "above the capacity", inside)
        if self.setting.max_bytes is not None and not (model.back or head or self.setting.keep):
            # Nor bytes, but for one row; or for those that a batch lacked which was then withdrawn.
            rows = [*stored, *[place.rows[0] for place in model.places]]
            is_above = sum(map(weight_of, rows)) > self.setting.max_bytes
            was_lacking = self.withdrawals < self.setting.withdrawals
            _expect(not is_above or len(rows) == 1 or was_lacking, "above the bytes", rows)
        if not model.back:
            # As long as nothing came back, what is out is exactly what went in first.
            first = model.entered[: len(model.entered) - len(stored)]
            _expect(sorted(self.delivered + rest) == sorted(first), "out of order", first)
        waiting = model.enqueues[0] if model.enqueues else None
        if waiting is not None and 0 < waiting.done < waiting.n:
            last = model.entered[-waiting.done :]
            _expect(last == waiting.rows[: waiting.done], "a batch was split", waiting)

    def _check_statistics(self, held: int) -> None:
        model = self.model
        counts = self.machine.statistics()
        # A dequeue that was done in one step counts as made, though its owner has not run on yet.
        made = sum(len(c.op.held) for c in self.callers if c.op is not None and c.op.state is DONE)
        _expect(counts.bytes == self.storage.weight, "another number of bytes", counts.bytes)
        expected = (
            len(model.inside),
            model.capacity,
            len(model.entered),
            len(self.delivered) + made,
            len(model.enqueues),
            len(model.dequeues),
        )
        found = (
            counts.size,
            counts.capacity,
            counts.enqueued,
            counts.dequeued,
            counts.waiting_enqueues,
            counts.waiting_dequeues,
        )
        _expect(found == expected, "counted otherwise", found, expected)
        _expect(self.machine.size == len(model.inside), "another size")
        _expect(counts.enqueued == counts.size + held + len(self.delivered), "adds up otherwise")

    def digest(self) -> bytes:
        """What tells one state from another; see the module's docstring."""
        machine, model, storage = self.machine, self.model, self.storage
        back = [row for _, row in storage.returned]
        rows = [*back, *storage]
        for caller in self.callers:
            if caller.op is not None:
                rows += self._rows(caller.op.attempt)
        rows.sort(key=model.entered.index)
        rank = {row: index for index, row in enumerate(rows)}

        def describe(op: Op) -> tuple[Any, ...]:
            if op.state is FAILED or (op.state is DONE and not op.held):
                # It has only to run on; what it was no longer matters.
                return (ord(op.waker), op.caller.left, bool(op.rows), -1)
            return (
                ord(op.waker),
                op.caller.left,
                _KINDS.index(op.kind),
                _STATES[op.state],
                op.done,
                op.expired,
                op.copies,
                *[rank[row] for row in self._rows(op.attempt)],
            )

        free = []
        idle = []
        for caller in self.callers:
            if caller.op is None:
                idle.append((ord(caller.waker.letter), caller.left, _KINDS.index(caller.kinds[0])))
            elif caller.op.copies or (
                caller.op.state is not PENDING and (caller.op.leased or not caller.op.two_step)
            ):
                free.append(describe(caller.op))
        key = (
            _PHASES[machine.state],
            machine._claimed,
            machine._bound_in,
            machine._bound_out,
            [rank[row] for row in back],
            [weight_of(row) for row in rows] if self.setting.max_bytes is not None else 0,
            len(storage),
            [describe(op) for op in model.enqueues],
            [describe(op) for op in model.dequeues],
            [describe(op) for op in model.until],
            [
                [describe(op) for op in waker.line]
                for waker in self.wakers.values()
                if waker.two_step
            ],
            sorted(free),
            sorted(idle),
            self.withdrawals,
            self.closes,
            self.resizes,
            machine.capacity,
        )
        # Version 2 writes equal values as equal bytes; later ones note shared objects.
        return blake2b(marshal.dumps(key, 2), digest_size=16).digest()

    # Going back to a state: everything that moves is saved and put back in place, which is some
    # twenty times quicker than a deep copy.

    def save(self) -> Saved:
        lines = self.machine._lines
        moving: list[Any] = [self, self.machine, lines, self.storage, self.model]
        moving += self.wakers.values()
        for caller in self.callers:
            moving.append(caller)
            if caller.op is not None:
                moving += (caller.op, caller.op.attempt)
                if isinstance(caller.op.attempt, Take):
                    moving.append(caller.op.attempt.held)
        values = []
        containers = []
        for thing in moving:
            read, write = _fields(type(thing))
            found = read(thing)
            values.append((write, thing, found))
            inside = [thing, *found] if isinstance(thing, deque) else found
            containers += [_content(value) for value in inside if isinstance(value, _CONTAINERS)]
        return values, containers

    @staticmethod
    def restore(saved: Saved) -> None:
        values, containers = saved
        for write, thing, found in values:
            write(thing, found)
        for container, fill, content in containers:
            container.clear()
            if content:
                fill(content)


Saved = tuple[list[tuple[Any, Any, Any]], list[tuple[Any, Any, Any]]]

_CONTAINERS: Final = (list, deque, dict, set)


def _content(container: Any) -> tuple[Any, Any, Any]:
    """A container, what fills it, and with what."""
    if isinstance(container, list | deque):
        return container, container.extend, list(container)
    return container, container.update, container.copy()


def _fields(kind: type) -> tuple[Callable[[Any], Any], Callable[[Any, Any], None]]:
    """What reads all fields of an object at once, and what writes them back."""
    if kind in _known_fields:
        return _known_fields[kind]
    names = [name for base in kind.__mro__ for name in base.__dict__.get("__slots__", ())]
    if issubclass(kind, ObjectStorage):
        names += vars(kind())  # no slots, but every object has the same fields
    # Compiled, since this is what exploring spends most of its time with.
    scope: dict[str, Any] = {}
    targets = ", ".join(f"thing.{name}" for name in names)
    exec(f"def write(thing, values):\n ({targets},) = values", scope)
    _known_fields[kind] = attrgetter(*names), scope["write"]
    return _known_fields[kind]


_known_fields: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], None]]] = {}


def _attempt(op: Op, columns: Columns) -> Attempt:
    if op.kind == "until_closed":
        return UntilClosed()
    if op.rows:
        return Put(op.rows[0]) if op.n == 1 else PutMany(columns, op.n)
    return Take(op.n, up_to=op.up_to, single=op.n == 1, leased=op.leased)


def _check_error(op: Op) -> None:
    error = op.attempt.error
    found: tuple[Any, ...]
    if isinstance(error, QueueClosedError):
        found = ("closed", error.enqueued)
    else:
        _expect(isinstance(error, OutOfRangeError), "another error", error)
        found = ("out of range", error.requested, error.remaining, error.held)
    _expect(found == op.error, "another error", found, op.error)


def _expect(so: bool, problem: str, *what: Any) -> None:
    if not so:
        shown = [
            f"{w.kind} on {w.waker}, {w.state.value}" if isinstance(w, Op) else w for w in what
        ]
        raise ViolationError(f"{problem}: {', '.join(map(str, shown))}")


@dataclass
class Result:
    """How much was explored."""

    states: int = 1
    transitions: int = 0
    depth: int = 0
    finished: bool = True
    kinds: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.states} states, {self.transitions} transitions, depth {self.depth}" + (
            "" if self.finished else ", NOT finished"
        )


def explore(setting: Setting, *, deadline: float | None = None, progress: bool = False) -> Result:
    """Visit every state that a world can reach.

    Args:
        setting: the world.
        deadline: when to give up, on `time.monotonic`'s clock; then the result is not ``finished``.
        progress: print each depth as it is done.

    Raises:
        ViolationError: the machine and the rules disagree, or the machine raised something.
    """
    world = World(setting)
    kinds = ("begin", "resume", "withdraw", "expire", "close", "resize")
    result = Result(kinds=dict.fromkeys(kinds, 0))
    visited = {world.digest()}
    frontier: list[tuple[Saved, Path]] = [(world.save(), ())]
    while frontier:
        deeper: list[tuple[Saved, Path]] = []
        frontier.reverse()
        while frontier:
            saved, path = frontier.pop()
            world.restore(saved)
            if deadline is not None and time.monotonic() > deadline:
                result.finished = False
                return result
            for event in list(world.events()):
                world.restore(saved)
                try:
                    world.apply(event)
                except Exception as error:
                    raise ViolationError(f"{error}\n{setting}\n{_told((path, event))}") from error
                result.transitions += 1
                result.kinds[event[0]] += 1
                digest = world.digest()
                if digest not in visited:
                    visited.add(digest)
                    deeper.append((world.save(), (path, event)))
        result.states = len(visited)
        if deeper:
            result.depth += 1
            if progress:
                print(f"  depth {result.depth}: {result.states} states", flush=True)
        frontier = deeper
    return result


def _told(path: Path) -> str:
    events: list[Event] = []
    while path:
        path, event = path
        events.append(event)
    return "\n".join(map(str, reversed(events)))


def wakers_of(name: str, producers: int, consumers: int) -> tuple[str, str]:
    """The wakers of so many callers: everybody in one loop, in two loops, in threads, or mixed."""
    letters = {
        "one-loop": "A",
        "two-loops": "AB",
        "threads": "t",
        "mixed": "AtB",
    }[name]
    cycle = itertools.cycle(letters)
    return "".join(itertools.islice(cycle, producers)), "".join(
        itertools.islice(itertools.cycle(letters), consumers)
    )


WORLDS: Final = ("one-loop", "two-loops", "threads", "mixed")


def main(arguments: list[str] | None = None) -> int:
    """Explore one size of world, with all wakers and all capacities asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.explorer", description=main.__doc__)
    parser.add_argument("--producers", type=int, default=2)
    parser.add_argument("--consumers", type=int, default=2)
    parser.add_argument("--operations", type=int, default=2, help="of each caller")
    parser.add_argument("--capacity", type=int, default=3, help="all from 1 to this one")
    parser.add_argument("--bytes", type=int, help="that fit; rows have 1, 2 or 4")
    parser.add_argument("--keep", type=int, nargs="*", default=[0], help="min_after_dequeue")
    parser.add_argument("--wakers", nargs="*", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--storage", choices=sorted(STORAGES), default="fifo")
    parser.add_argument("--withdrawals", type=int, default=2, help="in one path, at most")
    parser.add_argument("--closes", type=int, default=1, help="in one path, at most")
    parser.add_argument("--resizes", type=int, default=0, help="the same")
    parser.add_argument("--seconds", type=float, help="give up after this time")
    given = parser.parse_args(arguments)
    deadline = None if given.seconds is None else time.monotonic() + given.seconds
    began = time.monotonic()
    states = transitions = 0
    finished = True
    for wakers, capacity, keep in itertools.product(
        given.wakers, range(1, given.capacity + 1), given.keep
    ):
        if keep >= capacity:
            continue
        producers, consumers = wakers_of(wakers, given.producers, given.consumers)
        setting = Setting(
            producers,
            consumers,
            given.operations,
            capacity,
            keep,
            given.storage,
            puts=PUTS if given.bytes is None else WEIGHTY_PUTS,
            withdrawals=given.withdrawals,
            closes=given.closes,
            max_bytes=given.bytes,
            resizes=given.resizes,
        )
        print(setting, flush=True)
        result = explore(setting, deadline=deadline, progress=True)
        print(f"  {result}, {time.monotonic() - began:.0f} s so far", flush=True)
        states += result.states
        transitions += result.transitions
        finished &= result.finished
    print(f"all: {states} states, {transitions} transitions, {'' if finished else 'NOT '}finished")
    return 0 if finished else 1


if __name__ == "__main__":
    sys.exit(main())
