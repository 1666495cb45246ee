"""Makes snapshots: which queues and stages a run has, their order, names and numbers."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import replace
from functools import partial, reduce
from itertools import count
from math import inf
from time import perf_counter, process_time, sleep, thread_time, time
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from aioqueue.base.display_text import on_one_line
from aioqueue.queues.queue_core import QueueCore
from aioqueue.system.forks import living_queues
from aioqueue.system.locks import synchronized
from aioqueue.system.processors import processors
from aioqueue.telemetry.metrics.counters import concurrent, consecutive, difference, never_less
from aioqueue.telemetry.metrics.queue_samples import QueuePart
from aioqueue.telemetry.metrics.snapshots import (
    FUNCTION,
    NO_STEPS,
    FunctionNumbers,
    QueueNumbers,
    Snapshot,
    StageNumbers,
    StepNumbers,
    final_queue_numbers,
    final_stage_numbers,
)
from aioqueue.telemetry.metrics.watch import StagePart, Watch

if TYPE_CHECKING:
    from aioqueue.telemetry.metrics.merging import ProcessNumbers

_BUDGET: Final = 0.005
"""Share of the time that making snapshots on request may take."""

_MOST_CREDIT: Final = 0.01
"""Processor seconds of that budget that can accumulate: enough for some hundred snapshots in a
row."""

_LABEL_LIMIT: Final = 256
"""Number of queue labels from which on those of dropped queues are removed."""

_GIL_PROBE: Final = 1e-5
"""Seconds for which a thread releases the GIL to see whether it gets it back."""

NumbersT = TypeVar("NumbersT", QueueNumbers, StageNumbers)


class _SeriesMember(Generic[NumbersT]):
    """A stage or a queue in a series. It is not kept alive.

    Args:
        part: the stage or the queue.
        now: since when it belongs to the series.
    """

    def __init__(self, part: Any, now: float) -> None:
        self._part = weakref.ref(part)
        self._since = now
        # A finalizer fills this, in any thread and at any allocation, perhaps while this very
        # thread holds the collector's lock: so it takes no lock. Appending to a deque is atomic.
        self._last: deque[tuple[NumbersT, float]] = deque()
        self._finalizer = _storing_in(self._last)
        part.add_finalizer(self._finalizer)

    def part(self) -> Any:
        return self._part()

    def numbers(self, now: float) -> NumbersT | None:
        """Return the numbers of the part; ``None`` if it was dropped."""
        part = self._part()
        return None if part is None else self._with_lifetime(part.numbers(now), now)

    def last_numbers(self, now: float) -> NumbersT | None:
        """Return the final numbers of the part; ``None`` while it still runs."""
        if self._last:
            return self._with_lifetime(*self._last[0])
        part = self._part()
        # With neither, the garbage collector has cleared the reference, and another thread runs the
        # finalizer now: the numbers come with the next reading.
        if part is None or not part.is_over:
            return None
        self.detach()
        return self._with_lifetime(part.numbers(now), now)

    def detach(self) -> None:
        part = self._part()
        if part is not None:
            part.remove_finalizer(self._finalizer)

    def _with_lifetime(self, numbers: NumbersT, now: float) -> NumbersT:
        if isinstance(numbers, StageNumbers):
            return replace(numbers, runs=now - self._since)
        return numbers


def _storing_in(last: deque[Any]) -> Callable[[Any, float], object]:
    """Return a finalizer that stores the last numbers. It refers to nothing else: the part keeps
    it, and must not keep the collector."""
    return lambda numbers, now: last.append((numbers, now))


class _Series(Generic[NumbersT]):
    """The numbers under one name: of all stages, or queues, that have it, one after another or at
    the same time, where several runs overlap.

    Args:
        name: the name.
        finalize: returns what remains of a part that has ended, from its last numbers.
    """

    def __init__(self, name: str, finalize: Callable[[NumbersT], NumbersT]) -> None:
        self.name = name
        self._finalize: Callable[[NumbersT], NumbersT] = finalize
        self._members: list[_SeriesMember[NumbersT]] = []
        self._ended: NumbersT | None = None  # the parts that have ended, together
        self._previous: NumbersT | None = None  # the last reading

    def add(self, part: Any, now: float) -> None:
        self.sweep(now)
        self._members.append(_SeriesMember(part, now))

    def parts(self) -> list[Any]:
        found = [member.part() for member in self._members]
        return [part for part in found if part is not None]

    def sweep(self, now: float) -> list[Any]:
        """Add up the parts that have ended; return those of them that still exist."""
        members, over = [], []
        for member in self._members:
            last = member.last_numbers(now)
            if last is None:
                members.append(member)
                continue
            last = self._finalize(last)
            self._ended = last if self._ended is None else consecutive(self._ended, last)
            part = member.part()
            if part is not None:
                over.append(part)
        self._members = members
        return over

    def numbers(self, now: float) -> NumbersT | None:
        """Return the numbers of all parts together; ``None`` if there were none."""
        self.sweep(now)
        found = [member.numbers(now) for member in self._members]
        live = [numbers for numbers in found if numbers is not None]
        numbers = self._ended
        if live:
            numbers = reduce(concurrent, live)
            if self._ended is not None:
                numbers = consecutive(self._ended, numbers)
        if numbers is not None and self._previous is not None:
            numbers = never_less(self._previous, numbers)
        self._previous = numbers
        return numbers

    def detach(self) -> None:
        for member in self._members:
            member.detach()


class Collector:
    """Makes snapshots of what is watched. Thread-safe.

    Args:
        watch: what is watched.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._lock = threading.RLock()  # guards all below
        self._stages: dict[Hashable, _Series[StageNumbers]] = {}
        self._queues: dict[Hashable, _Series[QueueNumbers]] = {}
        self._besides: set[str] = set()  # names of queues that are watched besides the stages
        self._labels: dict[str, str] = {}  # of queues whose name here differs from their own
        self._label_limit = _LABEL_LIMIT
        self._cores: Final = processors()
        self._gil_samples = self._gil_taken = 0
        self._is_sampling = True
        self._cached: tuple[float, Snapshot | None] = (0.0, None)  # until when to reuse it
        self._last: Snapshot | None = None
        self._credit, self._credited = _MOST_CREDIT, perf_counter()
        self._steps_before = _all_steps(watch)  # of loops under earlier monitors
        watch.add_listener(self)

    @synchronized
    def stage_added(self, stage: StagePart) -> None:
        now = perf_counter()
        self._stage_series(stage, now).add(stage, now)
        if self._is_sampling:
            stage.sample(now)  # so that its workers measure from the beginning
        if self._cached[0] < inf:
            self._cached = (0.0, None)  # the cached snapshot lacks the new stage

    @synchronized
    def add_queue(self, core: QueueCore) -> None:
        """Add a queue that no stage fills or reads."""
        key = self._queue_key(core, perf_counter())
        self._besides.add(self._queues[key].name)
        if self._cached[0] < inf:
            self._cached = (0.0, None)

    def sample(self) -> None:
        """Sample how full queues are and what workers do; called from time to time."""
        is_taken = _is_gil_taken()  # without the lock: it may wait for milliseconds
        self._sample(is_taken)

    @synchronized
    def _sample(self, is_gil_taken: bool) -> None:
        now = perf_counter()
        self._gil_samples += 1
        self._gil_taken += is_gil_taken
        for queues in self._queues.values():
            parts = queues.parts()
            for part in parts:  # the shares of one name must not exceed the time
                part.sample(now, 1 / len(parts))
            for part in queues.sweep(now):
                part.leave()
        for stages in self._stages.values():
            for stage in stages.parts():
                stage.sample(now)
            stages.sweep(now)

    @synchronized
    def stop_sampling(self) -> None:
        """Stop the workers' measurements of themselves."""
        self._is_sampling = False
        for series in self._stages.values():
            for part in series.parts():
                part.stop_sampling()

    @synchronized
    def detach(self) -> None:
        for stages in self._stages.values():
            stages.detach()
        for queues in self._queues.values():
            queues.detach()
            for part in queues.parts():
                part.leave()

    def recent_snapshot(self) -> Snapshot:
        """Return a snapshot, which is reused if making one per call would exceed `_BUDGET`."""
        until, cached = self._cached  # without the lock, since callers may be many
        if cached is not None and perf_counter() < until:
            return cached
        return self._renewed_snapshot()

    @synchronized
    def _renewed_snapshot(self) -> Snapshot:
        now = perf_counter()
        until, cached = self._cached
        if cached is not None and now < until:
            return cached  # another thread made one while this one waited for the lock
        # A token bucket of processor time: it fills at the rate of the budget, and a snapshot
        # empties it by what it took. In debt, the snapshot is reused until the debt is paid.
        self._credit = min(_MOST_CREDIT, self._credit + _BUDGET * (now - self._credited))
        self._credited = now
        began = thread_time()
        snapshot = self.snapshot()
        self._credit -= thread_time() - began
        self._cached = (now + max(0.0, -self._credit) / _BUDGET, snapshot)
        return snapshot

    @synchronized
    def sizes(self) -> dict[str, int]:
        queues = list(self._queues.values())
        names = _unique(series.name for series in queues)
        sizes = [sum(part.size for part in series.parts()) for series in queues]
        return dict(zip(names, sizes, strict=True))

    def freeze(self) -> None:
        """Keep the last snapshot for good, for a fork in which nothing runs."""
        self._lock = threading.RLock()  # a thread that the fork lacks may hold the old one
        self._stages, self._queues = {}, {}
        if self._last is not None:
            self._cached = (inf, self._last)

    @synchronized
    def snapshot(self) -> Snapshot:
        until, frozen = self._cached
        if until == inf and frozen is not None:
            return frozen
        elsewhere = self._watch.elsewhere
        if elsewhere is None:
            self._last = self._new_snapshot()
            return self._last
        from aioqueue.telemetry.metrics.merging import together  # most runs have one process

        numbers = elsewhere.numbers()
        self._add_queues_used_elsewhere(
            {identity for one in numbers for identity in one.shared.values()}
        )
        self._last = self._new_snapshot()
        return together(self._last, numbers)

    def _add_queues_used_elsewhere(self, identities: set[str]) -> None:
        """Add the queues of this process that stages of other processes use.

        Only their owner knows who waits there, and samples how full they are.
        """
        core: Any
        for core in living_queues() if identities else ():
            shared = core.shared
            if shared not in (None, core) and shared.identity in identities:
                self._queue_key(core, perf_counter())

    @synchronized
    def numbers_here(self, is_shared: Callable[[QueueCore], bool]) -> ProcessNumbers:
        """Return the numbers of this process alone.

        Args:
            is_shared: returns whether another process owns a queue.
        """
        from aioqueue.telemetry.metrics.merging import ProcessNumbers

        self._last = self._new_snapshot()
        names = _unique(series.name for series in self._queues.values())
        return ProcessNumbers(
            self._last,
            {
                name: part.identity
                for name, series in zip(names, self._queues.values(), strict=True)
                for part in series.parts()
                if part.is_such(is_shared)
            },
        )

    def _new_snapshot(self) -> Snapshot:
        now = perf_counter()
        read = [(key, series.name, series.numbers(now)) for key, series in self._stages.items()]
        found = [(key, name, self._labelled(one)) for key, name, one in read if one is not None]
        working = [(key, name, one) for key, name, one in found if one.where != FUNCTION]
        stages = _uniquely_named((name, one) for _, name, one in working)
        functions = _uniquely_named((name, one) for _, name, one in found if one.where == FUNCTION)
        names = {key: one.name for (key, _, _), one in zip(working, stages, strict=True)}
        queues = _uniquely_named(
            (series.name, series.numbers(now)) for series in self._queues.values()
        )
        return Snapshot(
            seconds=now - self._watch.began,
            time=time(),
            cores=self._cores,
            process_cpu=process_time(),
            queues=_queues_in_order(queues, stages, self._besides),
            stages=_stages_in_order(stages),
            steps=self._steps() or _steps_of_generations(stages),
            gil_looks=self._gil_samples,
            gil_taken=self._gil_taken,
            functions=tuple(_function(one, names) for one in functions),
        )

    def _labelled(self, numbers: StageNumbers) -> StageNumbers:
        """Return the numbers with the queue names used in snapshots."""
        into, source = (
            None if name is None else self._labels.get(name, name)
            for name in (numbers.into, numbers.source)
        )
        if (into, source) == (numbers.into, numbers.source):
            return numbers
        return replace(numbers, into=into, source=source)

    def _steps(self) -> StepNumbers | None:
        before = None if self._last is None else self._last.steps
        if self._watch.steps is None:
            return None  # a generation knows those of its trainer
        numbers = difference(self._steps_before, _all_steps(self._watch))
        if self._watch.last_queue is not None:
            numbers = replace(numbers, queue=self._watch.last_queue)
        return numbers if before is None else never_less(before, numbers)

    def _stage_series(self, stage: StagePart, now: float) -> _Series[StageNumbers]:
        """Return the series of a stage: that of earlier stages of its name with the same queues."""
        # Without repeats, stages of one name may be different things: their queues tell.
        queues = tuple(self._queue_key(face._core, now) for face in stage.queues())
        key = stage.key if self._watch.is_repeatable else (stage.name, queues)
        if key not in self._stages:
            # The series must not hold the collector, which holds them.
            finalize = partial(_final_stage_numbers, weakref.ref(self))
            self._stages[key] = _Series(stage.name, finalize)
        return self._stages[key]

    def _queue_key(self, core: QueueCore, now: float) -> Hashable:
        """Return the key of a queue's series, which is its name.

        An unnamed queue continues the first series of its kind that no active stage uses: so the
        queues of consecutive runs have one series, and those of concurrent runs have several.
        """
        if core.is_named:
            name = core.series_name or core.name
            self._add_queue(core, name, now)
            return name
        for number in count():
            key = (core.kind, number)
            parts = self._queues[key].parts() if key in self._queues else []
            if any(part.is_of(core) for part in parts) or not self._are_in_use(parts, now):
                self._add_queue(core, key, now)
                return key
        raise AssertionError("count() never ends")

    def _add_queue(self, core: QueueCore, key: Hashable, now: float) -> None:
        if key not in self._queues:
            self._queues[key] = _Series(core.series_name or core.name, final_queue_numbers)
        series = self._queues[key]
        if core.name != series.name:
            self._labels[core.name] = series.name
            self._forget_labels()
        if not any(part.is_of(core) for part in series.parts()):
            part = QueuePart(core, now)
            core.parts.append(part)
            series.add(part, now)

    def _forget_labels(self) -> None:
        """Occasionally remove the labels of dropped queues."""
        if len(self._labels) > self._label_limit:
            live = {part.name for series in self._queues.values() for part in series.parts()}
            self._labels = {name: label for name, label in self._labels.items() if name in live}
            self._label_limit = max(_LABEL_LIMIT, 2 * len(self._labels))

    def _are_in_use(self, parts: list[Any], now: float) -> bool:
        """Return whether active stages use these queues."""
        if not parts:
            return False
        for series in self._stages.values():
            series.sweep(now)
        stages = [stage for series in self._stages.values() for stage in series.parts()]
        cores = [face._core for stage in stages for face in stage.queues()]
        return any(part.is_of(core) for part in parts for core in cores)


def _final_stage_numbers(collector: weakref.ref[Collector], last: StageNumbers) -> StageNumbers:
    """Return what remains of a stage, with the queue names of now: labels are forgotten."""
    found = collector()
    return final_stage_numbers(last if found is None else found._labelled(last))


def _all_steps(watch: Watch) -> StepNumbers:
    steps = watch.steps
    if steps is None:
        return NO_STEPS
    return reduce(concurrent, steps.numbers(perf_counter()), NO_STEPS)


def _steps_of_generations(stages: Iterable[StageNumbers]) -> StepNumbers | None:
    """Return the steps of those that train on rollouts; ``None`` without a generation."""
    steps = [one.generation.steps_taken for one in stages if one.generation is not None]
    return reduce(concurrent, steps) if steps else None


def _function(numbers: StageNumbers, names: Mapping[Hashable, str]) -> FunctionNumbers:
    """Return the numbers of a stage without workers as a function; its key says which stage calls
    it."""
    within = names.get(numbers.into, numbers.into) or None
    return FunctionNumbers(
        numbers.name, numbers.source or "", within, numbers.service, numbers.busy
    )


def _uniquely_named(numbers: Iterable[tuple[str, NumbersT | None]]) -> list[NumbersT]:
    """Return the parts that exist, with unique names."""
    found = [(name, one) for name, one in numbers if one is not None]
    names = _unique(name for name, _ in found)
    return [
        one if name == one.name else replace(one, name=name)
        for name, (_, one) in zip(names, found, strict=True)
    ]


def _unique(names: Iterable[str]) -> list[str]:
    """Return the names, with a number appended to repeated ones, and to those that look the same
    where control characters are escaped."""
    found: dict[str, str] = {}
    for given in names:
        name, count = given, 1
        while on_one_line(name) in found:
            count += 1
            name = f"{given}-{count}"
        found[on_one_line(name)] = name
    return list(found.values())


def _stages_in_order(stages: list[StageNumbers]) -> tuple[StageNumbers, ...]:
    """Return each stage after those that fill what it reads, unless they form a cycle."""
    left, ordered = list(stages), []
    while left:
        into = {stage.into for stage in left if stage.into is not None}
        ready = [one for one in left if one.source not in into or one.source == one.into]
        ready = ready or left  # a cycle
        ordered += ready
        left = [stage for stage in left if stage not in ready]
    return tuple(ordered)


def _queues_in_order(
    queues: list[QueueNumbers], stages: list[StageNumbers], besides: Collection[str]
) -> tuple[QueueNumbers, ...]:
    """Return the queues in the order of the first stage that uses them.

    The last one is what the run makes, so queues besides the stages come first.
    """
    names: dict[str, None] = {}
    for stage in _stages_in_order(stages):
        if stage.source is not None:
            names.setdefault(stage.source)
        if stage.into is not None:
            names.setdefault(stage.into)
    by_name = {queue.name: queue for queue in queues}
    ordered = [by_name.pop(name) for name in names if name in by_name]
    first = [by_name.pop(name) for name in list(by_name) if name in besides]
    return (*first, *ordered, *by_name.values())


def _is_gil_taken() -> bool:
    """Return whether a thread that releases the GIL waits long to get it back, as it does while
    others compute."""
    began = perf_counter()
    sleep(_GIL_PROBE)
    return perf_counter() - began > max(sys.getswitchinterval() / 2, 4 * _GIL_PROBE)
