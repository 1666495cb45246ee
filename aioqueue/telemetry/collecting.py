"""From what is watched to its numbers: which queues and stages there are, in order, by name."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from math import inf
from time import perf_counter, process_time, sleep, thread_time, time
from typing import Any, Final, Generic, TypeVar

from aioqueue.locks import guarded
from aioqueue.queues.core import QueueCore
from aioqueue.telemetry.adding import never_less, queues_added, stages_added
from aioqueue.telemetry.numbers import QueueNumbers, Snapshot, StageNumbers, StepNumbers
from aioqueue.telemetry.parts import QueuePart, StagePart, Watch

__all__ = ("Collector", "cores")

_BUDGET: Final = 0.005
"""Share of the time that the making of snapshots may take that are asked for."""

_SAVED: Final = 0.01
"""Processor seconds of it that can be saved up: for some hundred snapshots in a row."""

_BLINK: Final = 1e-5
"""Seconds for which a thread lets go of the interpreter, to see whether it gets it back."""

NumbersT = TypeVar("NumbersT", QueueNumbers, StageNumbers)


class _Place(Generic[NumbersT]):
    """What is in one place of a run: a part, and what those before it in this place have done."""

    def __init__(self, add: Callable[[NumbersT, NumbersT], NumbersT]) -> None:
        self.part: Any = None
        self._before: NumbersT | None = None
        self._told: NumbersT | None = None
        self._add: Callable[[NumbersT, NumbersT], NumbersT] = add

    def take(self, part: Any, now: float) -> None:
        """A part is in this place now."""
        if self.part is not None:
            self._before = self.numbers(now)
        self.part = part

    def numbers(self, now: float) -> NumbersT:
        numbers: NumbersT = self.part.numbers(now)
        if self._before is not None:
            numbers = self._add(self._before, numbers)
        if self._told is not None:
            numbers = never_less(self._told, numbers)
        self._told = numbers
        return numbers


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
        self._cores: Final = cores()
        self._gil_looks = self._gil_taken = 0
        self._is_looking = True
        self._latest: tuple[float, Snapshot | None] = (0.0, None)  # until when it is shared
        self._last: Snapshot | None = None  # that was made
        self._credit, self._credited = _SAVED, perf_counter()
        watch.tell(self)

    @guarded
    def take(self, stage: StagePart) -> None:
        """Collect from one more stage, which may be in the place of one that was there before."""
        now = perf_counter()
        self._stages.setdefault(stage.key, _Place(stages_added)).take(stage, now)
        for face in stage.queues():
            self._take_queue(face._core, now)
        if self._is_looking:
            stage.look(now)  # its workers are to know from the beginning
        if self._latest[0] < inf:
            self._latest = (0.0, None)  # which does not know of it, however long it was to do

    def look(self) -> None:
        """See how full queues are, and what workers are at; from time to time."""
        is_taken = _is_taken()
        self._look(is_taken)

    @guarded
    def _look(self, is_taken: bool) -> None:
        now = perf_counter()
        self._gil_looks += 1
        self._gil_taken += is_taken
        for queue in self._queues.values():
            queue.part.look(now)
        for stage in self._stages.values():
            stage.part.look(now)

    @guarded
    def look_no_more(self) -> None:
        """Nobody looks any more."""
        self._is_looking = False
        for place in self._stages.values():
            place.part.look_no_more()

    def shared(self) -> Snapshot:
        """All numbers, as of now; or as they were just now, if it is asked for so often that making
        them each time would take more than `_BUDGET` of the time."""
        until, latest = self._latest  # without the lock: many may ask
        if latest is not None and perf_counter() < until:
            return latest
        return self._made_anew()

    @guarded
    def _made_anew(self) -> Snapshot:
        now = perf_counter()
        until, latest = self._latest
        if latest is not None and now < until:
            return latest  # somebody else has made it meanwhile
        self._credit = min(_SAVED, self._credit + _BUDGET * (now - self._credited))
        self._credited = now
        began = thread_time()
        latest = self.snapshot()
        self._credit -= thread_time() - began
        self._latest = (now + max(0.0, -self._credit) / _BUDGET, latest)
        return latest

    @guarded
    def sizes(self) -> dict[str, int]:
        """How many elements are in each queue, by the names that they have in a snapshot."""
        cores = [place.part.core for place in self._queues.values()]
        names = _apart(core.name for core in cores)
        return {name: len(core.machine.storage) for name, core in zip(names, cores, strict=True)}

    def freeze(self) -> None:
        """What was seen last stays as it is; for a process in which nothing goes on."""
        self._lock = threading.RLock()
        self._stages, self._queues = {}, {}
        if self._last is not None:
            self._latest = (inf, self._last)

    @guarded
    def snapshot(self) -> Snapshot:
        """All numbers, as of now."""
        until, frozen = self._latest
        if until == inf and frozen is not None:
            return frozen
        self._last = self._made()
        return self._last

    def _made(self) -> Snapshot:
        now = perf_counter()
        stages = _named_apart(place.numbers(now) for place in self._stages.values())
        queues = _named_apart(place.numbers(now) for place in self._queues.values())
        return Snapshot(
            seconds=now - self._watch.began,
            time=time(),
            cores=self._cores,
            process_cpu=process_time(),
            queues=_in_order(queues, stages),
            stages=_stages_in_order(stages),
            steps=self._steps(now),
            gil_looks=self._gil_looks,
            gil_taken=self._gil_taken,
        )

    def _steps(self, now: float) -> StepNumbers | None:
        steps, told = self._watch.steps, None if self._last is None else self._last.steps
        if steps is None:
            return None
        if self._watch.last_queue is not None:
            steps.queue = self._watch.last_queue
        numbers = steps.numbers(now)
        return numbers if told is None else never_less(told, numbers)

    def _take_queue(self, core: QueueCore, now: float) -> None:
        key = core.name if self._watch.comes_again else id(core)
        place = self._queues.setdefault(key, _Place(queues_added))
        if place.part is None or place.part.core is not core:
            place.take(QueuePart(core, now), now)


def _named_apart(numbers: Iterable[NumbersT]) -> list[NumbersT]:
    """The same with names that differ."""
    found = list(numbers)
    names = _apart(one.name for one in found)
    return [
        one if name == one.name else replace(one, name=name)
        for name, one in zip(names, found, strict=True)
    ]


def _apart(names: Iterable[str]) -> list[str]:
    """The names; what comes again has a number behind it."""
    found: dict[str, None] = {}
    for given in names:
        name, count = given, 1
        while name in found:
            count += 1
            name = f"{given}-{count}"
        found[name] = None
    return list(found)


def _stages_in_order(stages: list[StageNumbers]) -> tuple[StageNumbers, ...]:
    """Each after those that fill what it reads, as far as there is such an order."""
    left, ordered = list(stages), []
    while left:
        into = {stage.into for stage in left}
        ready = [one for one in left if one.source not in into or one.source == one.into]
        ready = ready or left  # a circle
        ordered += ready
        left = [stage for stage in left if stage not in ready]
    return tuple(ordered)


def _in_order(queues: list[QueueNumbers], stages: list[StageNumbers]) -> tuple[QueueNumbers, ...]:
    """By the first stage that has to do with them."""
    names: dict[str, None] = {}
    for stage in _stages_in_order(stages):
        if stage.source is not None:
            names.setdefault(stage.source)
        names.setdefault(stage.into)
    by_name = {queue.name: queue for queue in queues}
    ordered = [by_name.pop(name) for name in names if name in by_name]
    return (*ordered, *by_name.values())


def _is_taken() -> bool:
    """Whether a thread that lets go of the interpreter has to wait for it, as one does where
    others compute: for most of the time that these keep it."""
    began = perf_counter()
    sleep(_BLINK)
    return perf_counter() - began > max(sys.getswitchinterval() / 2, 4 * _BLINK)


def cores() -> float:
    """How many processor cores this process may use: by its affinity, and its control group."""
    try:
        count = float(len(os.sched_getaffinity(0)))
    except AttributeError:  # not everywhere
        count = float(os.cpu_count() or 1)
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        return count if quota == "max" else min(count, int(quota) / int(period))
    except (OSError, ValueError):
        return count
