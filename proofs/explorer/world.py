"""A machine with its callers and the model beside it: what can happen, and what must then be so."""

from __future__ import annotations

import marshal
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator
from hashlib import blake2b
from operator import attrgetter
from typing import Any, Final

from aioqueue.core.attempts import (
    Attempt,
    Put,
    PutMany,
    QueueState,
    Take,
    UntilClosed,
    UntilDone,
    Waker,
)
from aioqueue.core.elements.spec import Columns
from aioqueue.core.fast_path import NOTHING
from aioqueue.core.storage.objects import ObjectStorage
from aioqueue.core.storage.protocol import BatchCopier
from aioqueue.errors import OutOfRangeError, QueueClosedError
from proofs.explorer.model import (
    DONE,
    FAILED,
    GRANTED,
    LEASES,
    NOWAIT,
    PENDING,
    PUTS,
    TAKES,
    Caller,
    FakeWaker,
    Model,
    Op,
    Setting,
    State,
)
from proofs.explorer.stand_ins import STORAGES, FakeLock, LendingStorage, ViolationError, weight_of
from tests.kit.invariants import violations

Event = tuple[Any, ...]

_STATES: Final = {state: index for index, state in enumerate(State)}
_PHASES: Final = {state: index for index, state in enumerate(QueueState)}
_KINDS: Final = (*PUTS, *TAKES, *NOWAIT, "until_closed", "put_heavy", *LEASES, "join")
_WEIGHTS: Final = {"put_heavy": (4,), "put_many": (1, 2)}
"""Bytes of the rows that are put in, where bytes are bounded; else each has one."""


class World:
    """A machine, its callers, and the model beside it."""

    __slots__ = (
        "began",
        "callers",
        "closes",
        "delivered",
        "dones",
        "failures",
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
        self.dones = setting.dones
        self.failures = setting.failures
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
                        may_stand_by = self.setting.has_standby and caller.waker.two_step
                        if may_stand_by and kind in ("put", "take"):
                            yield "enter_standby", index, kind
                continue
            if op.was_in_standby:
                yield "retry", index
                yield "start", index
            in_any_order = op.copies or op.leased or not op.two_step
            runs = in_any_order or caller.waker.line[:1] == [op]
            if op.state is not PENDING and runs and not op.was_in_standby:
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
        if self.dones:
            for n in range(min(self.model.unfinished, 2) + 1):
                yield "task_done", n + 1  # the last of them is one too many, or one of many
        if self.failures:
            yield ("fail",)

    def apply(self, event: Event) -> None:
        """Make an event happen to the machine and to the model, and compare them."""
        for waker in self.wakers.values():
            waker.fresh.clear()
        self.model.notified.clear()
        self.model.came_back = 0
        before = self.machine.size + len(self.model.places)
        wakes = getattr(self, "_" + event[0])(*event[1:])
        self._check(wakes, before)

    def _enter_standby(self, index: int, kind: str) -> Collection[Waker]:
        return self._begin(index, kind, may_stand_by=True)

    def _retry(self, index: int) -> Collection[Waker]:
        caller = self.callers[index]
        op = caller.op
        assert op is not None
        is_done = self.machine.retry(op.attempt, 0.0)
        _expect(is_done == self.model.retry(op), "tried again otherwise", op, is_done)
        if is_done:
            self._deliver(self._rows(op.attempt), op)
            self._leave(caller, op)
        return ()

    def _start(self, index: int) -> Collection[Waker]:
        """Begin what has stood by; it may be in line since, without its owner having noticed."""
        caller = self.callers[index]
        op = caller.op
        assert op is not None
        op.was_in_standby = False
        wakes = self.machine.begin(op.attempt, caller.waker)
        if op not in self.model.standby:
            _expect(op.attempt.waits, "in line, but nobody tells its owner", op)
            return wakes
        self.model.begin(op, True)
        _expect(op.attempt.state is op.state, "began otherwise", op, op.attempt.state)
        if op.state is DONE:
            self._deliver(self._rows(op.attempt), op)
            self._leave(caller, op)
        return wakes

    def _begin(self, index: int, kind: str, *, may_stand_by: bool = False) -> Collection[Waker]:
        caller = self.callers[index]
        caller.left -= 1
        rows: list[int] = []
        if kind.startswith("put"):
            weights = _WEIGHTS.get(kind, (1,))
            rows = [10 * (self.began + index) + weight for index, weight in enumerate(weights)]
            self.began += len(rows)
        op = Op(kind, caller, rows)
        can_wait = not kind.endswith("_nowait")
        if op.leased and self._leases_at_once(op):
            return ()
        columns = self._columns(op)
        got = self._try(op, columns)
        if got is not None:
            others = [bool(other.rows) for other in self.model.standby]
            _expect(bool(op.rows) not in others, "the fast path overtook who stands by", op)
            self.model.begin(op, can_wait, is_fast=True)
            _expect(op.state is DONE, "the fast path went where it had to wait", op)
            _expect(not self.model.notified, "the fast path passed by others", op)
            _expect(got == op.held, "the fast path took other rows", op, got)
            if not self._begins_to_copy(op):
                self._deliver(got)
            return ()
        attempt = op.attempt = _attempt(op, columns)
        if may_stand_by and self.machine.stand_by(attempt, caller.waker):
            _expect(self.model.may_enter_standby(op), "stands by where it may not", op)
            self.model.standby.append(op)
            op.was_in_standby = True
            caller.op = op
            return ()
        # A call that may not wait begins as it is: so both moves are explored.
        wakes = self.machine.serve(attempt) if kind == "put" else None
        _expect(wakes is None or attempt.state is DONE, "served, and not in", op)
        if wakes is None:
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

    def _leases_at_once(self, op: Op) -> bool:
        """Whether a lease had its rows by the fast path: they are granted, and no more."""
        attempt = _attempt(op, [])
        if not self.machine.try_grant(attempt, op.caller.waker):
            _expect(attempt.host is None, "refused, and not unchanged", op)
            return False
        _expect(all(other.rows for other in self.model.standby), "overtook who stands by", op)
        op.attempt = attempt
        self.model.begin(op, True, is_fast=True)
        _expect(op.state is GRANTED is attempt.state, "leased otherwise", op, attempt.state)
        _expect(not self.model.notified, "a lease passed by others", op)
        _expect(self._rows(attempt) == op.held, "leased other rows", op)
        op.caller.op = op
        return True

    def _columns(self, op: Op) -> Columns:
        """The batch that is to be put in, copied first where batches are."""
        if op.n > 1 and op.rows and self.storage.is_large(op.n):
            return BatchCopier(self.storage, FakeLock()).copy_in(list(op.rows), op.n)
        return list(op.rows)

    def _try(self, op: Op, columns: Columns) -> list[int] | None:
        """The fast path: what it took, or None if it was refused."""
        machine = self.machine
        if op.rows:
            if op.n == 1:
                return [] if machine.try_enqueue(op.rows[0]) else None
            return [] if machine.try_enqueue_many(columns, op.n) else None
        if op.kind in ("until_closed", "join") or op.leased:
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
            self._deliver(BatchCopier(self.storage, FakeLock()).copy_out(op.attempt.held), op)
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

    def _task_done(self, n: int) -> Collection[Waker]:
        wakes = self.machine.task_done(n)
        is_accepted = self.model.task_done(n)
        _expect(is_accepted is (wakes is not None), "refused otherwise", n, wakes)
        self.dones -= is_accepted
        return wakes or ()

    def _fail(self) -> Collection[Waker]:
        self.failures -= 1
        wakes = self.machine.close(cause=OSError())
        self.model.close(False, fails=True)
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
        broken = violations(machine)
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
            claimed = [row for op in ops if op.n > 1 and op.state is not PENDING for row in op.held]
            expected = set(claimed)
            _expect(storage.claimed == expected, "claimed rows are not released", storage.claimed)
            staged = {op.rows[0] for op in model.enqueues if op.kind == "put_many"}
            _expect(set(storage.staged) == staged, "memory is not given back", storage.staged)

    def _check_op(self, op: Op) -> None:
        attempt = op.attempt
        _expect(attempt.state is op.state, "in another state", op, attempt.state, op.state)
        if isinstance(attempt, Take):
            claimed = self._rows(attempt)
            if op.state is PENDING:
                _expect(not claimed, "holds rows that it has only claimed", op, claimed)
            else:
                _expect(claimed == op.held, "was given other rows", op, claimed)
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
        ops = [caller.op for caller in self.callers if caller.op is not None]
        copied = sum(len(op.held) for op in ops if op.copies)  # by owners that have run on
        granted = [op for op in ops if op.state in (GRANTED, DONE) and not op.copies]
        _expect(counts.bytes == self.storage.weight, "another number of bytes", counts.bytes)
        expected = (
            len(model.inside),
            model.capacity,
            len(model.entered),
            len(self.delivered) + copied,
            len(model.enqueues) + sum(bool(op.rows) for op in model.standby),
            len(model.dequeues) + sum(not op.rows for op in model.standby),
            sum(len(op.held) for op in granted),
            sum(len(op.held) for op in model.dequeues),
            model.unfinished,
        )
        found = (
            counts.size,
            counts.capacity,
            counts.enqueued,
            counts.dequeued,
            counts.waiting_enqueues,
            counts.waiting_dequeues,
            counts.granted,
            counts.claimed,
            counts.unfinished,
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
            is_over = op.state is FAILED or (op.state is DONE and not op.held)
            if is_over and not op.was_in_standby:
                # It has only to run on; what it was no longer matters.
                return (ord(op.waker), op.caller.left, bool(op.rows), -1)
            return (
                ord(op.waker),
                op.caller.left,
                _KINDS.index(op.kind),
                _STATES[op.state],
                op.done,
                op.expired,
                op.was_in_standby,
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
            [describe(op) for op in model.standby],
            [describe(op) for op in model.joins],
            model.unfinished if self.setting.dones else 0,
            (model.has_failed, self.dones, self.failures),
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
        lines = self.machine._wait_lists
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
    if op.kind == "join":
        return UntilDone()
    if op.kind == "until_closed":
        return UntilClosed()
    if op.rows:
        return Put(op.rows[0]) if op.n == 1 else PutMany(columns, op.n)
    return Take(op.n, up_to=op.up_to, single=op.n == 1, leased=op.leased)


def _check_error(op: Op) -> None:
    error = op.attempt.error
    found: tuple[Any, ...]
    if op.kind == "join":
        _expect(isinstance(error, QueueClosedError), "another error", error)
        (unfinished,) = re.findall(r"; (\d+) elements? (?:is|are) unfinished$", str(error))
        found = ("unfinished", int(unfinished))
    elif isinstance(error, QueueClosedError):
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
