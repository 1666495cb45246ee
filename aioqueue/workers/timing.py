"""Timing of the workers: what each has in progress, and how it spends its time.

A worker measures its own turns (take an item, prepare it, deliver the examples), and only while a
monitor needs it. Measuring a turn costs about `_COST`. If turns are fast, the worker measures only
some of them, and each stands for all turns since the one before: so measuring takes at most
`_SHARE` of the time. When a monitor looks at a worker, the worker measures its next turn. So turns
that have become slow are noticed. The queues always count waits exactly (`Meter`).

All totals only grow, and include the part of the current activity that has passed. So the
difference of two readings is the time spent in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from math import inf
from time import perf_counter, thread_time
from typing import Any, Final, Generic, NamedTuple, TypeVar

from aioqueue.coordination.classify import owner_of_caller
from aioqueue.core.meters import BOUNDS, Counted, Durations, LockSamples, Meter, current_meter
from aioqueue.items.item import EpochEnd, Item, ItemFields
from aioqueue.system.locks import call_with_lock, synchronized
from aioqueue.telemetry import WorkerNumbers
from aioqueue.telemetry.explain.lock_waits import locks_of
from aioqueue.workers.flow_control import Pending


class InProgress:
    """What one worker has in progress. Only that worker writes it; any thread may read it.

    Attributes:
        item: the item that it prepares; ``None`` while it has no item.
        failures: how often the item has failed before.
        began: when it took the item, or the last item, by `time.perf_counter`.
        process: the process that prepares it, if any.
        thread: the thread that prepares it, if that is not the worker's own.
        pending: the same item, if there are a key limit and a time limit.
    """

    __slots__ = ("began", "failures", "item", "pending", "process", "thread")

    def __init__(self) -> None:
        self.item: ItemFields | None = None
        self.failures: int = 0
        self.began: float = perf_counter()
        self.process: Any = None
        self.thread: threading.Thread | None = None
        self.pending: Pending | None = None

    def begin(self, item: Item, failures: int = 0) -> None:
        self.failures = failures
        self.began = perf_counter()
        self.item = item  # last, so that a reader that sees it finds the rest

    def clear(self) -> None:
        self.item = None

    @property
    def seconds(self) -> float:
        """The seconds since the item, or the last one, was taken."""
        return perf_counter() - self.began


class InProgressTable:
    """What all workers of a job have in progress, by the keys of their threads or tasks.

    Args:
        lock: guards the table.
    """

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._entries: dict[int, InProgress] = {}

    def add(self, worker: object, in_progress: InProgress) -> None:
        call_with_lock(self._lock, self._entries.__setitem__, id(worker), in_progress)

    def remove(self, worker: object) -> None:
        call_with_lock(self._lock, self._entries.pop, id(worker), None)

    def all(self) -> Mapping[int, InProgress]:
        return call_with_lock(self._lock, dict, self._entries)


_COST: Final = 6e-6
_SHARE: Final = 0.002
_TRACED: Final = 0.003
"""The largest share of the time for measuring during a trace."""

_MOST: Final = 512
"""The most turns that one measured turn may stand for."""

_TURN_NUMBERS: Final = list(range(1, _MOST))


class Spent(NamedTuple):
    """How a worker has spent its time, except for its waits at queues."""

    busy: float = 0.0
    """Seconds in the function."""
    starved: float = 0.0
    """Seconds of waiting for an item."""
    since: float = 0.0
    """When its current activity began; 0 if it is neither of these."""
    is_busy: bool = False
    """Whether its current activity is the function."""

    def busy_until(self, now: float) -> float:
        """Return the seconds in the function, including the current call."""
        return self.busy + (max(0.0, now - self.since) if self.is_busy and self.since else 0.0)


class WorkerGauge(Meter):
    """How one worker spends its time. Only that worker writes it; see `Meter`.

    Attributes:
        in_progress: what the worker has in progress.
        item: the current item, in a measured turn.
        get_item: returns the current item instead, if another object knows it.
        measures_all: whether to measure every turn, fast or not.
        deaths: the number of its processes that have died.
        spent: how it has spent its time.
        weight: how many turns the current or last measured turn stands for.
        service: the durations of the function, weighted if not every call was measured.
        cpu: processor seconds of the calls that took ``cpu_sampled`` seconds.
    """

    calls: int
    __slots__ = (
        "_blocked",
        "_busy",
        "_full",
        "_idle",
        "_key",
        "_seen",
        "_skipped_turns",
        "_stride",
        "_turn",
        "_turned",
        "cpu",
        "cpu_sampled",
        "deaths",
        "get_item",
        "in_progress",
        "item",
        "measures_all",
        "service",
        "spent",
        "weight",
    )

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.began = perf_counter()
        self.owner: Callable[[], Any] = owner_of_caller()
        self.in_progress: InProgress = InProgress()
        self.item: Item | None = None
        self.deaths: int = 0
        self.measures_all: bool = False
        self.get_item: Callable[[], Item | None] | None = None
        self.spent: Spent = Spent()
        self.service: Durations = Durations()
        self.cpu: float = 0.0
        self.cpu_sampled: float = 0.0
        self.weight: int = 1
        self._stride = 1  # the next weight, unless a monitor looks meanwhile
        self._skipped_turns: list[int] = []
        self._turn = 0.0  # the start of the measured turn
        self._turned = 0.0  # the end of the last one
        self._blocked = 0.0  # seconds in enqueues until then
        self._busy = self._idle = 0.0  # in this turn
        self._key = 0.0  # the seconds of this turn in the key function
        self._full: float | None = None  # seconds at its request in which no item was let in
        self._seen: tuple[ItemFields | None, float] = (None, 0.0)

    # The steps of one turn.

    def start_measuring(self) -> None:
        self._stride, self._turned = 1, 0.0

    def skipped_turns(self) -> Iterable[int]:
        """Iterate over the unmeasured turns before the next measured one, from 1. The iteration
        ends early when a monitor looks."""
        self._skipped_turns = turns = _TURN_NUMBERS[: self._stride - 1]
        return turns

    def item_wait_started(self, skipped: int = 0, full: float | None = None) -> None:
        """Note the request for an item in a measured turn, after some unmeasured ones.

        Args:
            skipped: the number of unmeasured turns.
            full: the seconds so far in which no item was let in, unless these count as starving.
        """
        self.weight, self._full = skipped + 1, full
        now = self._turn = perf_counter()
        self._busy = self._key = 0.0
        busy, starved, _, _ = self.spent
        self.spent = Spent(busy, starved, now, False)

    def key_computed(self, seconds: float) -> None:
        """Note the seconds of the user's key function, in a measured turn."""
        _, _, since, is_busy = self.spent
        if since and not is_busy:
            self._key += seconds

    def item_received(self, item: Item, full: float = 0.0) -> None:
        """Note that it has an item and begins to prepare it.

        Args:
            item: the item.
            full: the seconds so far in which no item was let in.
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

    def call_finished(self, cpu: float | None = None) -> None:
        """Note that the function has returned or raised; a generator may run again.

        Args:
            cpu: the processor seconds of the call, if known.
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

    def delivery_finished(self, *, as_made: bool, began: float = 0.0, blocked: float = 0.0) -> None:
        """Note that its examples were delivered, which ends the turn.

        Args:
            as_made: whether the function, a generator, has run meanwhile.
            began: when that began, if so.
            blocked: the seconds that it had waited in enqueues by then.
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
        """Extrapolate this turn to the unmeasured turns since the last measured one."""
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

    # Reports about processes.

    def process_starting(self) -> None:
        """Note that its process is being started and is not ready yet."""
        self.began = inf

    def process_ready(self) -> None:
        """Note that its process, or a replacement, is ready."""
        self.began: float = min(self.began, perf_counter())

    def item_wait_ended(self) -> None:
        """Note that a process's thread, which has asked for items, no longer waits."""
        busy, starved, since, _ = self.spent
        idle = max(0.0, perf_counter() - since - self._key)
        self.spent = Spent(busy + self._key, starved + idle)

    def calls_reported(self, seconds: float, cpu: float, cpu_sampled: float, calls: int) -> None:
        """Note that the process has made this many calls in this many seconds."""
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

    # For monitors.

    def at_work(self) -> Any:
        """Return the task that is in the function, or the thread's ident; ``None`` if none is."""
        in_progress = self.in_progress
        if in_progress.item is None or in_progress.process is not None or self.owner is None:
            return None
        return self.owner() if in_progress.thread is None else in_progress.thread.ident

    def sample(self, now: float) -> None:
        """Sample its activity, and have its next turn measured. One thread calls it."""
        self._skipped_turns.clear()  # ends the loop over `skipped_turns`
        item = self._current_item()
        if self._seen[0] is not item:
            self._seen = (item, now)

    def starved_until(self, now: float, full: float) -> float:
        """Return the seconds of waiting for items, including the current wait.

        Args:
            now: the current time.
            full: the seconds until now in which no item was let in.
        """
        _, starved, since, is_busy = self.spent
        if is_busy or not since:
            return starved
        return starved + max(0.0, now - since - self._full_since(full))

    def _full_since(self, full: float) -> float:
        """Return the seconds without admission since its request; 0 if it starves in them too."""
        return 0.0 if self._full is None else max(0.0, full - self._full)

    def busy_until(self, now: float) -> float:
        busy = self.spent.busy_until(now)
        if self.get_item is not None and self._current_item() is not None:
            busy += now - self._since(now)
        return busy

    def numbers(self, now: float) -> WorkerNumbers:
        busy, item = self.busy_until(now), self._current_item()
        return WorkerNumbers(
            name=self.name,
            busy=busy,
            idle=max(0.0, now - self.began - busy),
            items=self.calls,
            deaths=self.deaths,
            item=None if item is None else item[3],  # its index
            seconds=0.0 if item is None else now - self._since(now),
        )

    def _current_item(self) -> ItemFields | None:
        if self.get_item is not None:
            return self.get_item()
        return self.item or self.in_progress.item

    def _since(self, now: float) -> float:
        """Return since when its current activity is known."""
        spent, (item, seen) = self.spent, self._seen
        if spent.is_busy and spent.since:
            return min(now, spent.since)
        return min(now, seen) if item is not None and item is self._current_item() else now


class _Sum:
    def __init__(self) -> None:
        self.service: Counted = Counted((0,) * (len(BOUNDS) + 1), 0.0, 0.0)
        self.busy: float = 0.0
        self.starved: float = 0.0
        self.blocked: float = 0.0
        self.fed: float = 0.0
        self.alive: float = 0.0
        self.cpu: float = 0.0
        self.cpu_sampled: float = 0.0
        self.deaths: int = 0

    def add(self, worker: WorkerGauge, now: float, full: float) -> None:
        """Add a worker; in ``full`` seconds until now no item was let in."""
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
        other = _Sum()
        vars(other).update(vars(self))
        return other


def _until(spent: tuple[float, float], now: float) -> float:
    seconds, since = spent
    return seconds + (max(0.0, now - since) if since else 0.0)


class Gauge:
    """How all workers of a job spend their time. Thread-safe.

    Attributes:
        is_on: whether a monitor needs it.
        source_waits: how long the source took per item. The reader of the source adds to it.
    """

    def __init__(self) -> None:
        self.is_on: bool = False
        self.source_waits: Durations = Durations()
        self._tracer: Callable[[WorkerGauge], None] | None = None
        self._full = (0.0, 0.0)  # seconds in which no item was let in; since when, or 0
        self._bytes_full = (0.0, 0.0)  # the same, if their bytes were the reason
        self.locks: LockSamples = LockSamples()
        self._lock = threading.RLock()  # guards all below
        self._workers: list[WorkerGauge] = []
        self._ended_workers = _Sum()
        self._helpers: list[Meter] = []

    @synchronized
    def helper(self, name: str) -> None:
        """Register the caller as a helper that takes items for the workers."""
        meter = Meter(name)
        current_meter.set(meter)
        self._helpers.append(meter)

    @synchronized
    def worker(self, name: str) -> WorkerGauge:
        worker = WorkerGauge(name)
        current_meter.set(worker)
        self._workers.append(worker)
        if self._tracer is not None:
            self._tracer(worker)
        return worker

    @synchronized
    def trace(self, tracer: Callable[[WorkerGauge], None] | None) -> None:
        self._tracer = tracer
        if tracer is not None:
            self.is_on = True
            for worker in self._workers:
                tracer(worker)

    @synchronized
    def worker_ended(self, worker: WorkerGauge) -> None:
        worker.item = None
        if worker in self._workers:
            self._workers.remove(worker)
            now = perf_counter()
            self._ended_workers.add(worker, now, self.full_until(now))

    @synchronized
    def workers(self) -> list[WorkerGauge]:
        return list(self._workers)

    @property
    def seconds_full(self) -> float:
        """The seconds in which no item was let in, without the current period."""
        return self._full[0]

    def is_full(self, *, by_bytes: bool = False) -> None:
        """Note that no item is let in from now on. The reader of the source calls it.

        Args:
            by_bytes: whether the reason is the bytes of waiting examples.
        """
        now = perf_counter()
        self._full = (self._full[0], now)
        if by_bytes:
            self._bytes_full = (self._bytes_full[0], now)

    def has_room(self) -> None:
        seconds, since = self._full
        if since:
            now = perf_counter()
            self._full = (seconds + now - since, 0.0)
            seconds, since = self._bytes_full
            self._bytes_full = (seconds + (now - since if since else 0.0), 0.0)

    def full_until(self, now: float) -> float:
        """Return the seconds in which no item was let in, including the current period."""
        return _until(self._full, now)

    def bytes_full_until(self, now: float) -> float:
        """Return the same for periods caused by bytes."""
        return _until(self._bytes_full, now)

    def sample(self, now: float) -> None:
        """Sample the workers, and which of them wait for a lock."""
        self.is_on = True
        workers = self.workers()
        for worker in workers:
            worker.sample(now)
        self.locks.add(locks_of(worker.at_work() for worker in workers))

    @synchronized
    def sum(self, now: float) -> _Sum:
        """Return the sum over all workers, including those that have ended."""
        total, full = self._ended_workers.copy(), self.full_until(now)
        for worker in self._workers:
            total.add(worker, now, full)
        total.fed += sum(helper.waits.until(now)[1] for helper in self._helpers)
        return total


T = TypeVar("T")


class Clocked(Generic[T]):
    """A coroutine for ``await`` that measures each of its steps, but not what the event loop does
    in between. In all else it behaves like the coroutine, in every event loop.

    Args:
        coroutine: the coroutine, to be awaited once.

    Attributes:
        cpu: processor seconds so far.
    """

    __slots__ = ("_coroutine", "cpu")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine  # `aioqueue.telemetry.explain.stacks` looks for this name
        self.cpu: float = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        return self  # an iterator with all of the coroutine's methods

    def __iter__(self) -> Clocked[T]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        began = thread_time()
        try:
            return self._coroutine.send(value)
        finally:
            self.cpu += thread_time() - began

    def throw(self, *raised: Any) -> Any:
        began = thread_time()
        try:
            return self._coroutine.throw(*raised)
        finally:
            self.cpu += thread_time() - began

    def close(self) -> None:
        self._coroutine.close()
