"""Collects snapshots: which queues and stages a run has, their order, names and numbers."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from functools import partial, reduce
from itertools import count
from math import inf
from time import perf_counter, process_time, sleep, thread_time, time
from typing import Any, Final, Generic, TypeVar

from aioqueue.base.display_text import on_one_line
from aioqueue.queues.core import QueueCore
from aioqueue.system.locks import synchronized
from aioqueue.system.processors import processors
from aioqueue.telemetry.registry import QueuePart, StagePart, Watch
from aioqueue.telemetry.snapshots import (
    FUNCTION,
    NO_STEPS,
    FunctionNumbers,
    QueueNumbers,
    Snapshot,
    StageNumbers,
    StepNumbers,
    never_less,
    queue_ended,
    queues_added,
    queues_beside,
    stage_ended,
    stages_added,
    stages_beside,
    steps_beside,
    steps_since,
)

_BUDGET: Final = 0.005
"""Share of the time that making snapshots on request may take."""

_SAVED: Final = 0.01
"""Processor seconds of that budget that can accumulate: enough for some hundred snapshots in a
row."""

_MANY: Final = 256
"""Number of queue labels from which on those of dropped queues are removed."""

_BLINK: Final = 1e-5
"""Seconds for which a thread releases the GIL to see whether it gets it back."""

NumbersT = TypeVar("NumbersT", QueueNumbers, StageNumbers)


class _Live(Generic[NumbersT]):
    """A part that is in a place now; not kept alive.

    Args:
        part: a stage or a queue.
        now: since when it has been there.
    """

    def __init__(self, part: Any, now: float) -> None:
        self.part = weakref.ref(part)
        self.since = now
        self._last: deque[tuple[NumbersT, float]] = (
            deque()
        )  # the last numbers, once the part has gone
        self._heir = _heir_of(self._last)
        part.bequeath(self._heir)

    def left(self) -> tuple[NumbersT, float] | None:
        """Return its last numbers and their time, if it has gone."""
        return self._last[0] if self._last else None

    def drop(self) -> None:
        """Stop watching the part."""
        part = self.part()
        if part is not None:
            part.disinherit(self._heir)


def _heir_of(last: deque[Any]) -> Callable[[Any, float], object]:
    """Return a callback that stores the last numbers; a finalizer calls it, so it takes no lock."""
    return lambda numbers, now: last.append((numbers, now))


class _Place(Generic[NumbersT]):
    """The parts in one place of a run, and the sum of those that have ended.

    It keeps no part alive. There are several at once where several runs overlap.

    Args:
        name: the name of all of them.
        after: adds the numbers of a part to those of earlier ones.
        beside: adds the numbers of two parts that exist at the same time.
        ended: returns the final numbers of a part that has ended.
    """

    def __init__(
        self,
        name: str,
        after: Callable[[NumbersT, NumbersT], NumbersT],
        beside: Callable[[NumbersT, NumbersT], NumbersT],
        ended: Callable[[NumbersT], NumbersT],
    ) -> None:
        self.name = name
        self._after: Callable[[NumbersT, NumbersT], NumbersT] = after
        self._beside: Callable[[NumbersT, NumbersT], NumbersT] = beside
        self._ended: Callable[[NumbersT], NumbersT] = ended
        self._live: list[_Live[NumbersT]] = []
        self._before: NumbersT | None = None
        self._previous: NumbersT | None = None
        self._runs = 0.0  # total lifetime of the parts that have ended

    def take(self, part: Any, now: float) -> None:
        """Add a part to this place."""
        self.sweep(now)
        self._live.append(_Live(part, now))

    def parts(self) -> list[Any]:
        """Return the current parts."""
        found = [one.part() for one in self._live]
        return [one for one in found if one is not None]

    def sweep(self, now: float) -> list[Any]:
        """Add parts that have ended to the sum; return those of them that still exist."""
        live, over = [], []
        for one in self._live:
            part, left = one.part(), one.left()
            if left is None and part is not None and part.is_over:
                left = part.numbers(now), now
                one.drop()
                over.append(part)
            if left is not None:
                self._add(left[0])
                self._runs += left[1] - one.since
            elif part is not None:
                live.append(one)
        self._live = live
        return over

    def _add(self, numbers: NumbersT) -> None:
        numbers = self._ended(numbers)
        self._before = numbers if self._before is None else self._after(self._before, numbers)

    def numbers(self, now: float) -> NumbersT | None:
        """Return the numbers of all parts together; ``None`` if there are none."""
        self.sweep(now)
        numbers, runs = self._before, self._runs
        told = [(part, one.since) for one in self._live if (part := one.part()) is not None]
        if told:
            numbers = reduce(self._beside, [part.numbers(now) for part, _ in told])
            runs += sum(now - since for _, since in told)
            if self._before is not None:
                numbers = self._after(self._before, numbers)
        if isinstance(numbers, StageNumbers):
            numbers = replace(numbers, runs=runs)
        if numbers is not None and self._previous is not None:
            numbers = never_less(self._previous, numbers)
        self._previous = numbers
        return numbers

    def drop(self) -> None:
        """Stop watching all parts."""
        for one in self._live:
            one.drop()


class Collector:
    """Makes snapshots of what is watched. Thread-safe.

    Args:
        watch: what is watched.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._lock = threading.RLock()  # guards all below
        self._stages: dict[Hashable, _Place[StageNumbers]] = {}
        self._queues: dict[Hashable, _Place[QueueNumbers]] = {}
        self._labels: dict[str, str] = {}  # of queues whose name here differs from their own
        self._many = _MANY
        self._cores: Final = processors()
        self._gil_looks = self._gil_taken = 0
        self._is_looking = True
        self._latest: tuple[float, Snapshot | None] = (0.0, None)  # until when to reuse it
        self._last: Snapshot | None = None  # the last one made
        self._credit, self._credited = _SAVED, perf_counter()
        self._earlier = _all_steps(watch)  # of loops under earlier monitors
        watch.tell(self)

    @synchronized
    def take(self, stage: StagePart) -> None:
        """Add a stage, which may follow another one in the same place."""
        now = perf_counter()
        self._stage_place(stage, now).take(stage, now)
        if self._is_looking:
            stage.look(now)  # so that its workers measure from the beginning
        if self._latest[0] < inf:
            self._latest = (0.0, None)  # the cached snapshot lacks the new stage

    def look(self) -> None:
        """Sample how full queues are and what workers do; called from time to time."""
        is_taken = _is_taken()
        self._look(is_taken)

    @synchronized
    def _look(self, is_taken: bool) -> None:
        now = perf_counter()
        self._gil_looks += 1
        self._gil_taken += is_taken
        for queues in self._queues.values():
            parts = queues.parts()
            for part in parts:
                part.look(now, 1 / len(parts))
            for part in queues.sweep(now):
                part.leave()
        for stages in self._stages.values():
            for stage in stages.parts():
                stage.look(now)
            stages.sweep(now)

    @synchronized
    def look_no_more(self) -> None:
        """Stop sampling."""
        self._is_looking = False
        for place in self._stages.values():
            for part in place.parts():
                part.look_no_more()

    @synchronized
    def end(self) -> None:
        """Stop watching all parts."""
        for stages in self._stages.values():
            stages.drop()
        for queues in self._queues.values():
            queues.drop()
            for part in queues.parts():
                part.leave()

    def shared(self) -> Snapshot:
        """Return a snapshot, which is reused if making one per call would exceed `_BUDGET`."""
        until, latest = self._latest  # without the lock, since callers may be many
        if latest is not None and perf_counter() < until:
            return latest
        return self._made_anew()

    @synchronized
    def _made_anew(self) -> Snapshot:
        now = perf_counter()
        until, latest = self._latest
        if latest is not None and now < until:
            return latest  # another thread has made one in the meantime
        self._credit = min(_SAVED, self._credit + _BUDGET * (now - self._credited))
        self._credited = now
        began = thread_time()
        latest = self.snapshot()
        self._credit -= thread_time() - began
        self._latest = (now + max(0.0, -self._credit) / _BUDGET, latest)
        return latest

    @synchronized
    def sizes(self) -> dict[str, int]:
        """Return the size of each queue, by its name in snapshots."""
        places = list(self._queues.values())
        names = _apart(place.name for place in places)
        sizes = [sum(part.size for part in place.parts()) for place in places]
        return dict(zip(names, sizes, strict=True))

    def freeze(self) -> None:
        """Keep the last snapshot for good, for a fork in which nothing runs."""
        self._lock = threading.RLock()
        self._stages, self._queues = {}, {}
        if self._last is not None:
            self._latest = (inf, self._last)

    @synchronized
    def snapshot(self) -> Snapshot:
        """Return all numbers as of now."""
        until, frozen = self._latest
        if until == inf and frozen is not None:
            return frozen
        self._last = self._made()
        return self._last

    def _made(self) -> Snapshot:
        now = perf_counter()
        told = [(key, place.name, place.numbers(now)) for key, place in self._stages.items()]
        found = [(key, name, self._labelled(one)) for key, name, one in told if one is not None]
        working = [(key, name, one) for key, name, one in found if one.where != FUNCTION]
        stages = _named_apart((name, one) for _, name, one in working)
        functions = _named_apart((name, one) for _, name, one in found if one.where == FUNCTION)
        names = {key: one.name for (key, _, _), one in zip(working, stages, strict=True)}
        queues = _named_apart((place.name, place.numbers(now)) for place in self._queues.values())
        return Snapshot(
            seconds=now - self._watch.began,
            time=time(),
            cores=self._cores,
            process_cpu=process_time(),
            queues=_in_order(queues, stages),
            stages=_stages_in_order(stages),
            steps=self._steps(),
            gil_looks=self._gil_looks,
            gil_taken=self._gil_taken,
            functions=tuple(_function(one, names) for one in functions),
        )

    def _labelled(self, numbers: StageNumbers) -> StageNumbers:
        """Return the numbers with the queue names used in snapshots."""
        into = self._labels.get(numbers.into, numbers.into)
        source = (
            None if numbers.source is None else self._labels.get(numbers.source, numbers.source)
        )
        if (into, source) == (numbers.into, numbers.source):
            return numbers
        return replace(numbers, into=into, source=source)

    def _steps(self) -> StepNumbers | None:
        told = None if self._last is None else self._last.steps
        if self._watch.steps is None:
            return None
        numbers = steps_since(self._earlier, _all_steps(self._watch))
        if self._watch.last_queue is not None:
            numbers = replace(numbers, queue=self._watch.last_queue)
        return numbers if told is None else never_less(told, numbers)

    def _stage_place(self, stage: StagePart, now: float) -> _Place[StageNumbers]:
        """Return the place of a stage: that of earlier stages of its name with the same queues."""
        queues = tuple(self._queue_key(face._core, now) for face in stage.queues())
        key = stage.key if self._watch.comes_again else (stage.name, queues)
        return self._place(
            self._stages,
            key,
            # The places must not hold the collector: it holds them.
            lambda: _Place(
                stage.name,
                stages_added,
                stages_beside,
                partial(_stage_ended, weakref.ref(self)),
            ),
        )

    def _queue_key(self, core: QueueCore, now: float) -> Hashable:
        """Return the key of a queue's place: that of its name, or for an unnamed queue the first
        place for its kind where no stage is active."""
        if core.is_named:
            self._put(core, core.name, now)
            return core.name
        for number in count():
            key = (core.kind, number)
            parts = self._queues[key].parts() if key in self._queues else []
            if any(part.is_of(core) for part in parts) or not self._are_in_use(parts, now):
                self._put(core, key, now)
                return key
        raise AssertionError("count() never ends")

    def _put(self, core: QueueCore, key: Hashable, now: float) -> None:
        place = self._place(
            self._queues, key, lambda: _Place(core.name, queues_added, queues_beside, queue_ended)
        )
        if core.name != place.name:
            self._labels[core.name] = place.name
            self._forget_labels()
        if not any(part.is_of(core) for part in place.parts()):
            part = QueuePart(core, now)
            core.parts.append(part)
            place.take(part, now)

    def _forget_labels(self) -> None:
        """Occasionally remove the labels of dropped queues."""
        if len(self._labels) > self._many:
            live = {part.name for place in self._queues.values() for part in place.parts()}
            self._labels = {name: told for name, told in self._labels.items() if name in live}
            self._many = max(_MANY, 2 * len(self._labels))

    def _are_in_use(self, parts: list[Any], now: float) -> bool:
        """Return whether active stages use these queues."""
        if not parts:
            return False
        for place in self._stages.values():
            place.sweep(now)
        stages = [stage for place in self._stages.values() for stage in place.parts()]
        cores = [face._core for stage in stages for face in stage.queues()]
        return any(part.is_of(core) for part in parts for core in cores)

    @staticmethod
    def _place(
        places: dict[Hashable, _Place[NumbersT]],
        key: Hashable,
        make: Callable[[], _Place[NumbersT]],
    ) -> _Place[NumbersT]:
        if key not in places:
            places[key] = make()
        return places[key]


def _stage_ended(collector: weakref.ref[Collector], last: StageNumbers) -> StageNumbers:
    found = collector()
    return stage_ended(last if found is None else found._labelled(last))


def _all_steps(watch: Watch) -> StepNumbers:
    """Return the steps of all loops that were ever watched."""
    steps = watch.steps
    if steps is None:
        return NO_STEPS
    return reduce(steps_beside, steps.numbers(perf_counter()), NO_STEPS)


def _function(numbers: StageNumbers, names: Mapping[Hashable, str]) -> FunctionNumbers:
    """Return the numbers of a stage without workers as a function; its key says which stage calls
    it."""
    within = names.get(numbers.into, numbers.into) or None
    return FunctionNumbers(
        numbers.name, numbers.source or "", within, numbers.service, numbers.busy
    )


def _named_apart(numbers: Iterable[tuple[str, NumbersT | None]]) -> list[NumbersT]:
    """Return the parts that exist, with unique names."""
    found = [(name, one) for name, one in numbers if one is not None]
    names = _apart(name for name, _ in found)
    return [
        one if name == one.name else replace(one, name=name)
        for name, (_, one) in zip(names, found, strict=True)
    ]


def _apart(names: Iterable[str]) -> list[str]:
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
        into = {stage.into for stage in left}
        ready = [one for one in left if one.source not in into or one.source == one.into]
        ready = ready or left  # a cycle
        ordered += ready
        left = [stage for stage in left if stage not in ready]
    return tuple(ordered)


def _in_order(queues: list[QueueNumbers], stages: list[StageNumbers]) -> tuple[QueueNumbers, ...]:
    """Return the queues in the order of the first stage that uses them."""
    names: dict[str, None] = {}
    for stage in _stages_in_order(stages):
        if stage.source is not None:
            names.setdefault(stage.source)
        names.setdefault(stage.into)
    by_name = {queue.name: queue for queue in queues}
    ordered = [by_name.pop(name) for name in names if name in by_name]
    return (*ordered, *by_name.values())


def _is_taken() -> bool:
    """Return whether a thread that releases the GIL waits long to get it back, as it does while
    others compute."""
    began = perf_counter()
    sleep(_BLINK)
    return perf_counter() - began > max(sys.getswitchinterval() / 2, 4 * _BLINK)
