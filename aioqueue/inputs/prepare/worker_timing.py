"""What each worker of a job has in hand at this moment, for whoever asks why it takes so long.

How the workers of a `prepare` spend their time.

A worker measures its own turns (take an item, prepare it, deliver the examples), and only while
somebody wants to know. To measure one takes about `_COST`, so where turns are quick only one in
some is measured, and stands for those since the last one: so that measuring takes `_SHARE` of the
time, at most. Whoever looks at a worker has its next turn measured, so that turns which have become
slow are no longer passed over. What workers wait at queues is counted there, always and exactly
(`Meter`).

All totals only grow, and what goes on is in them as far as it has come: who reads twice sees what
was spent in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from math import inf
from time import perf_counter
from typing import Any, Final, NamedTuple

from aioqueue.coordination.classify import owner_of_caller
from aioqueue.durations import BOUNDS, Counted, Durations
from aioqueue.inputs.core.items import EpochEnd, Item
from aioqueue.inputs.prepare.flow_control import Pending
from aioqueue.locks import guarded, holding
from aioqueue.meters import Meter, current_meter
from aioqueue.telemetry import WorkerNumbers
from aioqueue.telemetry.stacks import LockLooks

__all__ = ("Gauge", "InProgress", "InProgressTable", "Spent", "WorkerGauge")


class InProgress:
    """What one worker has in hand. Written by that worker, read by anyone.

    Attributes:
        item: what it prepares; ``None``: nothing.
        failures: how often that has failed before.
        began: when it took it, on the clock of `time.perf_counter`; of the last item, if it has
            none now.
        process: the process that does it, if one does.
        thread: the thread that does it, if that is another one than the worker's.
        pending: the same item, where keys are limited and items have a time limit.
    """

    __slots__ = ("began", "failures", "item", "pending", "process", "thread")

    def __init__(self) -> None:
        self.item: Item | None = None
        self.failures = 0
        self.began = perf_counter()
        self.process: Any = None
        self.thread: threading.Thread | None = None
        self.pending: Pending | None = None

    def take(self, item: Item, failures: int = 0) -> None:
        """An item comes into the hand."""
        self.failures = failures
        self.began = perf_counter()
        self.item = item  # last: who reads it finds the rest

    def let_go(self) -> None:
        """It has been prepared, or has failed."""
        self.item = None

    @property
    def seconds(self) -> float:
        """How long ago the item, or the last one, was taken."""
        return perf_counter() - self.began


class InProgressTable:
    """The hands of the workers of a job, by the keys of their threads or tasks.

    Args:
        lock: guards them.
    """

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._hands: dict[int, InProgress] = {}

    def give(self, worker: object, hand: InProgress) -> None:
        """A worker has this hand from now on: a thread or a task."""
        holding(self._lock, self._hands.__setitem__, id(worker), hand)

    def drop(self, worker: object) -> None:
        """The worker has ended."""
        holding(self._lock, self._hands.pop, id(worker), None)

    def all(self) -> Mapping[int, InProgress]:
        """All there are now."""
        return holding(self._lock, dict, self._hands)


_COST: Final = 6e-6
_SHARE: Final = 0.002
_TRACED: Final = 0.003
"""The share while a trace is taken."""

_MOST: Final = 512
"""Turns that one may stand for."""

_PASSED_OVER: Final = list(range(1, _MOST))


class Spent(NamedTuple):
    """How a worker has spent its time, but for its waits at queues."""

    busy: float = 0.0
    """Seconds in the function."""
    starved: float = 0.0
    """Seconds in which it waited for an item."""
    since: float = 0.0
    """When it began with what it does now; 0 if that is neither."""
    is_busy: bool = False
    """Which of both it does."""

    def busy_until(self, now: float) -> float:
        """Seconds in the function, what goes on included."""
        return self.busy + (max(0.0, now - self.since) if self.is_busy and self.since else 0.0)


class WorkerGauge(Meter):
    """How one worker spends its time. Written by that worker; see `Meter`.

    Attributes:
        hand: what it has in hand, for whoever asks why it takes so long.
        item: what it is at, in a turn that is measured.
        tell_item: tells that instead, where it is known to others.
        measures_all: whether each turn is measured, quick or not.
        deaths: how many of its processes have died.
        spent: where its time has gone.
        weight: how many turns the one stands for that is measured, or was last.
        service: how long the function took, each call once, or weighted so.
        cpu: processor seconds of the calls that took ``cpu_sampled`` seconds.
    """

    __slots__ = (
        "_blocked",
        "_busy",
        "_full",
        "_idle",
        "_key",
        "_passed_over",
        "_seen",
        "_stride",
        "_turn",
        "_turned",
        "cpu",
        "cpu_sampled",
        "deaths",
        "hand",
        "item",
        "measures_all",
        "service",
        "spent",
        "tell_item",
        "weight",
    )

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.began = perf_counter()
        self.owner = owner_of_caller()
        self.hand = InProgress()
        self.item: Item | None = None
        self.deaths = 0
        self.measures_all = False
        self.tell_item: Callable[[], Item | None] | None = None
        self.spent = Spent()
        self.service = Durations()
        self.cpu = self.cpu_sampled = 0.0
        self.weight = 1
        self._stride = 1  # what the weight is to be, if nobody looks meanwhile
        self._passed_over: list[int] = []
        self._turn = 0.0  # when the turn began that is measured
        self._turned = 0.0  # when the last one had ended
        self._blocked = 0.0  # seconds in enqueues until then
        self._busy = self._idle = 0.0  # of this turn
        self._key = 0.0  # of it, in which the item's key was asked for
        self._full: float | None = None  # seconds that no item had been let in when it asked
        self._seen: tuple[Item | None, float] = (None, 0.0)

    # One turn, step by step.

    def begins(self) -> None:
        """It begins to measure its turns: somebody wants to know."""
        self._stride, self._turned = 1, 0.0

    def passed_over(self) -> Iterable[int]:
        """The turns that are not measured until the next one that is, numbered from 1. They end
        early when somebody looks."""
        self._passed_over = turns = _PASSED_OVER[: self._stride - 1]
        return turns

    def asks(self, passed_over: int = 0, full: float | None = None) -> None:
        """It asks for an item, in a turn that is measured, after so many that were not.

        Args:
            passed_over: how many.
            full: seconds so far in which no item was let in, if it does not starve in such ones.
        """
        self.weight, self._full = passed_over + 1, full
        now = self._turn = perf_counter()
        self._busy = self._key = 0.0
        busy, starved, _, _ = self.spent
        self.spent = Spent(busy, starved, now, False)

    def asked_for_key(self, seconds: float) -> None:
        """A function of the user's has told the key of an item, in a turn that is measured."""
        _, _, since, is_busy = self.spent
        if since and not is_busy:
            self._key += seconds

    def got(self, item: Item, full: float = 0.0) -> None:
        """It has one, and begins to prepare it.

        Args:
            item: which one.
            full: seconds so far in which no item was let in.
        """
        self.item = item
        now = perf_counter()
        busy, starved, since, _ = self.spent
        self._idle = max(0.0, now - since - self._key - self._full_since(full))
        self._busy = self._key
        self.spent = Spent(busy + self._key, starved + self._idle, now, True)
        ring = self.ring
        if ring is not None:
            ring.waited("next item", since, now)

    def made(self, cpu: float | None = None) -> None:
        """The function has returned, or raised; of a generator, for now.

        Args:
            cpu: processor seconds that it took, if they are known.
        """
        now = perf_counter()
        busy, starved, since, _ = self.spent
        took = now - since
        self._busy += took
        if cpu is not None:
            self.cpu += cpu
            self.cpu_sampled += took
        self.spent = Spent(busy + took, starved)
        ring = self.ring
        item = self.item
        if ring is not None and item is not None and not isinstance(item.value, EpochEnd):
            ring.worked(since, now, item.index)

    def delivered(self, *, as_made: bool, began: float = 0.0, blocked: float = 0.0) -> None:
        """Its examples are on their way; so the turn ends.

        Args:
            as_made: whether the function, a generator, has run meanwhile.
            began: when that began, if so.
            blocked: seconds that it had waited in enqueues by then.
        """
        now = perf_counter()
        waited = self.waits.enqueues
        busy, starved, _, _ = self.spent
        if as_made:
            took = max(0.0, now - began - (waited - blocked))
            self._busy += took
            busy += took
            ring = self.ring
            if ring is not None:
                ring.worked(began, now)
        self.service.add(self._busy, self.weight)
        self.calls += self.weight
        if self.weight > 1 and self._turned:
            busy, starved = self._with_others(now, waited, busy, starved)
        self.spent = Spent(busy, starved)
        self._set_stride(now)
        self._turned, self._blocked = now, waited

    def _with_others(
        self, now: float, waited: float, busy: float, starved: float
    ) -> tuple[float, float]:
        """Take the turns since the last one that was measured to be like this one."""
        others = self._turn - self._turned - (waited - self._blocked)
        known = self._busy + self._idle
        if others > 0 and known > 0:
            factor = others / max(known, now - self._turn - (waited - self._blocked))
            busy += self._busy * factor
            starved += self._idle * factor
        return busy, starved

    def _set_stride(self, now: float) -> None:
        each = (now - (self._turned or self._turn)) / self.weight
        share = _SHARE if self.ring is None else _TRACED
        wanted = _COST / (share * each) if each > 0 else _MOST
        if not self.measures_all:
            self._stride = max(1, min(_MOST, 2 * self._stride, int(wanted)))

    # What is told by others: of processes.

    def is_starting(self) -> None:
        """Its process is only being started: it is not there yet."""
        self.began = inf

    def is_there(self) -> None:
        """The process can work; or another one in its place."""
        self.began = min(self.began, perf_counter())

    def has_items(self) -> None:
        """The thread of a process, which has asked for some, waits no more."""
        busy, starved, since, _ = self.spent
        idle = max(0.0, perf_counter() - since - self._key)
        self.spent = Spent(busy + self._key, starved + idle)

    def reported(self, seconds: float, cpu: float, cpu_sampled: float, calls: int) -> None:
        """The process has made so many calls, in so many seconds."""
        self.calls += calls
        self.service.add(seconds / calls, calls)
        self.cpu += cpu
        self.cpu_sampled += cpu_sampled
        busy, starved, since, is_busy = self.spent
        self.spent = Spent(busy + seconds, starved, since, is_busy)
        self._seen = (None, 0.0)
        ring = self.ring
        if ring is not None:
            now = perf_counter()
            ring.worked_elsewhere(max(now - seconds, self._turned), now, calls)
            self._turned = now

    # For who reads.

    def at_work(self) -> Any:
        """The task that is in the function, or the ident of the thread; ``None`` if none is."""
        hand = self.hand
        if hand.item is None or hand.process is not None or self.owner is None:
            return None
        return self.owner() if hand.thread is None else hand.thread.ident

    def look(self, now: float) -> None:
        """See what it is at, and have its next turn measured; from time to time, by one thread."""
        self._passed_over.clear()  # which ends the loop that goes through them
        item = self._at()
        if self._seen[0] is not item:
            self._seen = (item, now)

    def starved_until(self, now: float, full: float) -> float:
        """Seconds in which it waited for items, what goes on included.

        Args:
            now: when.
            full: seconds until then in which no item was let in.
        """
        _, starved, since, is_busy = self.spent
        if is_busy or not since:
            return starved
        return starved + max(0.0, now - since - self._full_since(full))

    def _full_since(self, full: float) -> float:
        """Seconds in which no item was let in, since it has asked; 0 if it starves in them, too."""
        return 0.0 if self._full is None else max(0.0, full - self._full)

    def busy_until(self, now: float) -> float:
        """Seconds in the function, what goes on included."""
        busy = self.spent.busy_until(now)
        if self.tell_item is not None and self._at() is not None:
            busy += now - self._since(now)
        return busy

    def numbers(self, now: float) -> WorkerNumbers:
        """What it has done."""
        busy, item = self.busy_until(now), self._at()
        return WorkerNumbers(
            name=self.name,
            busy=busy,
            idle=max(0.0, now - self.began - busy),
            items=self.calls,
            deaths=self.deaths,
            item=None if item is None else item.index,
            seconds=0.0 if item is None else now - self._since(now),
        )

    def _at(self) -> Item | None:
        if self.tell_item is not None:
            return self.tell_item()
        return self.item or self.hand.item

    def _since(self, now: float) -> float:
        """Since when it is known to be at what it is at."""
        spent, (item, seen) = self.spent, self._seen
        if spent.is_busy and spent.since:
            return min(now, spent.since)
        return min(now, seen) if item is not None and item is self._at() else now


class _Sum:
    """What workers have done, added up."""

    def __init__(self) -> None:
        self.service = Counted((0,) * (len(BOUNDS) + 1), 0.0, 0.0)
        self.busy = self.starved = self.blocked = self.fed = self.alive = 0.0
        self.cpu = self.cpu_sampled = 0.0
        self.deaths = 0

    def add(self, worker: WorkerGauge, now: float, full: float) -> None:
        """Add one; in so many seconds until now no item was let in."""
        self.alive += max(0.0, now - worker.began)
        self.busy += worker.busy_until(now)
        self.starved += worker.starved_until(now, full)
        blocked, fed = worker.waits.until(now)
        self.blocked += blocked
        self.fed += fed
        self.cpu += worker.cpu
        self.cpu_sampled += worker.cpu_sampled
        self.deaths += worker.deaths
        counts, seconds, longest = worker.service.counted()
        self.service = Counted(
            tuple(map(int.__add__, self.service.counts, counts)),
            self.service.seconds + seconds,
            max(self.service.longest, longest),
        )

    def copy(self) -> _Sum:
        """Another one that says the same."""
        other = _Sum()
        vars(other).update(vars(self))
        return other


def _until(spent: tuple[float, float], now: float) -> float:
    seconds, since = spent
    return seconds + (max(0.0, now - since) if since else 0.0)


class Gauge:
    """How all workers of a job spend their time. Thread-safe.

    Attributes:
        is_on: whether anybody wants to know.
        source_waits: how long the source took for an item. Who takes from it adds to it.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.source_waits = Durations()
        self._tracer: Callable[[WorkerGauge], None] | None = None
        self._full = (0.0, 0.0)  # seconds that no item was let in; since when, or 0
        self._bytes_full = (0.0, 0.0)  # the same where that was for their bytes
        self.locks = LockLooks()
        self._lock = threading.RLock()  # guards all below
        self._workers: list[WorkerGauge] = []
        self._gone = _Sum()
        self._helpers: list[Meter] = []

    @guarded
    def helper(self, name: str) -> None:
        """Who asks takes items for the workers."""
        meter = Meter(name)
        current_meter.set(meter)
        self._helpers.append(meter)

    @guarded
    def worker(self, name: str) -> WorkerGauge:
        """That of a new worker, which is the one that asks."""
        worker = WorkerGauge(name)
        current_meter.set(worker)
        self._workers.append(worker)
        if self._tracer is not None:
            self._tracer(worker)
        return worker

    @guarded
    def trace(self, tracer: Callable[[WorkerGauge], None] | None) -> None:
        """Tell of each worker that there is, and that comes; ``None``: no more."""
        self._tracer = tracer
        if tracer is not None:
            self.is_on = True
            for worker in self._workers:
                tracer(worker)

    @guarded
    def left(self, worker: WorkerGauge) -> None:
        """A worker has ended."""
        worker.item = None
        if worker in self._workers:
            self._workers.remove(worker)
            now = perf_counter()
            self._gone.add(worker, now, self.full_until(now))

    @guarded
    def workers(self) -> list[WorkerGauge]:
        """Those that are there."""
        return list(self._workers)

    @property
    def seconds_full(self) -> float:
        """Seconds that no item was let in, without what goes on."""
        return self._full[0]

    def is_full(self, *, by_bytes: bool = False) -> None:
        """No item is let in from now on. Called by who has the turn to take one.

        Args:
            by_bytes: whether that is for the bytes of those that wait.
        """
        now = perf_counter()
        self._full = (self._full[0], now)
        if by_bytes:
            self._bytes_full = (self._bytes_full[0], now)

    def has_room(self) -> None:
        """One is."""
        seconds, since = self._full
        if since:
            now = perf_counter()
            self._full = (seconds + now - since, 0.0)
            seconds, since = self._bytes_full
            self._bytes_full = (seconds + (now - since if since else 0.0), 0.0)

    def full_until(self, now: float) -> float:
        """Seconds that no item was let in, with what goes on."""
        return _until(self._full, now)

    def bytes_full_until(self, now: float) -> float:
        """The same of that in which it was for their bytes."""
        return _until(self._bytes_full, now)

    def look(self, now: float) -> None:
        """See what the workers are at, and which of them wait for a lock."""
        self.is_on = True
        workers = self.workers()
        for worker in workers:
            worker.look(now)
        self.locks.see(worker.at_work() for worker in workers)

    @guarded
    def sum(self, now: float) -> _Sum:
        """What all have done, those that have ended included."""
        total, full = self._gone.copy(), self.full_until(now)
        for worker in self._workers:
            total.add(worker, now, full)
        total.fed += sum(helper.waits.until(now)[1] for helper in self._helpers)
        return total
