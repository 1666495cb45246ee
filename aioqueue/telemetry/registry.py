"""The interfaces between a run and its monitors: watches, stages and queues, and their numbers.

Views and exporters depend on these interfaces, and on nothing else of a run. The registry also
knows the coordinators and runs of this process and the places where callers may wait, for
explanations.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable

from aioqueue.core.meters import Counted, Meter, Tracer
from aioqueue.queues.core import QueueCore, QueueFace
from aioqueue.system.forks import LivingObjects
from aioqueue.system.locks import synchronized
from aioqueue.telemetry.step_timer import StepMeter, StepMeters

if TYPE_CHECKING:
    from aioqueue.core.meters import Histogram
    from aioqueue.telemetry.bottleneck import Verdict
    from aioqueue.telemetry.explanation import ExplainedCoordinator, ExplainedWait
    from aioqueue.telemetry.snapshots import QueueNumbers, Snapshot, StageNumbers

_TENTHS: Final = 10
_STEP: Final = "training step"
_MOST_CHANGES: Final = 1000


@dataclass(frozen=True, slots=True)
class WorkerChange:
    """A change that ``autotune`` made to the number of workers of a stage.

    Attributes:
        seconds: when, in seconds since the run began.
        stage: name of the stage.
        before: number of workers before.
        after: number of workers afterwards.
        why: the reason.
    """

    seconds: float
    stage: str
    before: int
    after: int
    why: str


class EndingPart:
    """A part whose numbers outlive it. Monitors do not keep it alive; it reports its last
    numbers."""

    _heirs: tuple[Callable[[Any, float], object], ...] = ()

    def bequeath(self, heir: Callable[[Any, float], object]) -> None:
        """Register a callback for the last numbers, and their time, when this part goes.

        Args:
            heir: called by any thread that drops the part. It must neither wait nor raise.
        """
        self._heirs = (*self._heirs, heir)

    def disinherit(self, heir: Callable[[Any, float], object]) -> None:
        """Remove such a callback."""
        self._heirs = tuple(one for one in self._heirs if one != heir)

    def __del__(self) -> None:
        if self._heirs:
            now = perf_counter()
            numbers = self.numbers(now)
            for heir in self._heirs:
                heir(numbers, now)

    def numbers(self, now: float) -> Any:
        """Return its numbers so far, on the clock of `time.perf_counter`."""
        raise NotImplementedError


class StagePart(Protocol):
    """A stage of a run: the workers that call one function. It is an `EndingPart`, too."""

    name: str
    """Name of the function."""

    @property
    def key(self) -> Hashable:
        """Identifies the stage within a watch; the same stage of a later run has the same key."""

    @property
    def is_over(self) -> bool:
        """Whether all its workers have ended."""

    def trace(self, tracer: Tracer | None) -> None:
        """Report each worker, existing or new; ``None`` to stop."""

    def queues(self) -> Iterable[QueueFace]:
        """Return the queues that it is known to read and to fill."""

    def look(self, now: float) -> None:
        """Sample its workers, and make them measure themselves until nobody samples any more."""

    def look_no_more(self) -> None:
        """Note that nobody samples it any more."""

    def numbers(self, now: float) -> StageNumbers:
        """Return its numbers so far, on the clock of `time.perf_counter`."""

    def bequeath(self, heir: Callable[[Any, float], object]) -> None:
        """Register a callback for the last numbers; see `EndingPart`."""

    def disinherit(self, heir: Callable[[Any, float], object]) -> None:
        """Remove such a callback."""


class Listener(Protocol):
    """Learns of stages. It keeps those that it wants to know more of."""

    def take(self, stage: StagePart) -> None:
        """Accept a stage. It must neither wait nor raise."""


class Watch:
    """The stages of a coordinator or a pipeline, as they appear.

    A run keeps its stages alive, and the watch does not. Thread-safe.

    Args:
        comes_again: whether there are consecutive runs of the same stages and queues, which then
            keep their keys and names.
    """

    def __init__(self, *, comes_again: bool = False) -> None:
        self._lock = threading.RLock()  # guards all below
        self._stages: list[weakref.ref[Any]] = []
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        self._changes: list[WorkerChange] = []
        self._tracers: list[Tracer] = []
        self.comes_again = comes_again
        self.tuning: Any = lambda: None  # a weak reference to the tuning of its stages
        self.began: float = perf_counter()
        self.steps: StepMeters | None = None
        """The meters of the loop's steps, once anybody wants them."""
        self.on_step: list[Callable[[int], None]] = []
        """Called in the loop with the number of each step that has ended, from 0."""
        self.last_queue: str | None = None
        """Name of the queue that the loop reads, if known."""

    @synchronized
    def add(self, *stages: StagePart) -> None:
        """Add stages."""
        known = [one for one in self._stages if one() is not None]
        self._stages = [*known, *map(weakref.ref, stages)]
        for stage in stages:
            for listener in list(self._listeners):
                listener.take(stage)
            if self._tracers:
                stage.trace(self._trace_all)

    @synchronized
    def tell(self, listener: Listener) -> None:
        """Report each existing stage, and each new one, once."""
        for stage in self.stages():
            listener.take(stage)
        self._listeners.add(listener)

    @synchronized
    def watch_steps(self) -> StepMeters:
        """Return the step meters of all loops, and meter steps from now on."""
        if self.steps is None:
            self.steps = StepMeters(self.on_step)
            self.steps.tracer = partial(_trace_loop, weakref.ref(self))
        return self.steps

    @synchronized
    def trace_loop(self, meter: StepMeter) -> None:
        """Report a training loop."""
        self._trace_all(_STEP, meter.meter)

    @synchronized
    def _trace_all(self, track: str, meter: Meter) -> None:
        for tracer in self._tracers:
            tracer(track, meter)

    @synchronized
    def trace(self, tracer: Tracer) -> None:
        """Report each worker, existing or new, including the training loop; some more than once."""
        self._tracers.append(tracer)
        for stage in self.stages():
            stage.trace(self._trace_all)
        for meter in () if self.steps is None else self.steps.all():
            tracer(_STEP, meter.meter)

    @synchronized
    def trace_no_more(self, tracer: Tracer) -> None:
        """Stop reporting to this callback."""
        if tracer in self._tracers:
            self._tracers.remove(tracer)
        if not self._tracers:
            for stage in self.stages():
                stage.trace(None)

    @synchronized
    def note(self, change: WorkerChange) -> None:
        """Record a change to the number of workers of a stage."""
        self._changes = [*self._changes[-_MOST_CHANGES + 1 :], change]

    @synchronized
    def changes(self) -> tuple[WorkerChange, ...]:
        """Return the latest changes, in order."""
        return tuple(self._changes)

    @synchronized
    def stages(self) -> list[StagePart]:
        """Return the current stages, in order of appearance."""
        found = [one() for one in self._stages]
        return [one for one in found if one is not None]


def _trace_loop(watch: weakref.ref[Watch], meter: StepMeter) -> None:
    """What the meters of a watch call, which must not hold it: it holds them."""
    found = watch()
    if found is not None:
        found.trace_loop(meter)


class MonitorTarget(Protocol):
    """An object that a monitor can watch."""

    def _watched(self) -> Watch:
        """Return its watch."""


class QueuePart(EndingPart):
    """A queue, with samples of how full it is.

    It does not keep the queue alive. To have it for the queue's whole life, add it to the queue's
    parts.

    Args:
        core: the queue.
        now: when sampling begins.
    """

    def __init__(self, core: QueueCore, now: float) -> None:
        self._core = weakref.ref(core)
        self._machine = core.machine
        self._keep = core.keep
        self.name: str = core.name
        self._kind = core.kind
        self._looked = now
        self._empty = self._full = 0.0
        self._occupancy = [0.0] * _TENTHS

    @property
    def is_over(self) -> bool:
        """Whether nothing more can happen to it."""
        if self._machine.state.value != "closed":
            return False
        counts = self._machine.statistics()
        return not counts.size and counts.enqueued == counts.dequeued

    @property
    def size(self) -> int:
        """Return its size, without its lock."""
        return len(self._machine.storage)

    def is_of(self, core: QueueCore) -> bool:
        """Return whether this belongs to a given queue."""
        return self._core() is core

    def leave(self) -> None:
        """Stop sampling the queue."""
        core = self._core()
        if core is not None and self in core.parts:
            core.parts.remove(self)

    def look(self, now: float, share: float = 1.0) -> None:
        """Sample its size without its lock; the sample stands for the time since the last one.

        Args:
            now: the time, on the clock of `time.perf_counter`.
            share: which share of the time counts as its own, if several parts share a place.
        """
        passed, self._looked = (now - self._looked) * share, now
        machine = self._machine
        size, most = len(machine.storage), machine.max_rows
        if size <= self._keep:
            self._empty += passed
        if size >= most:
            self._full += passed
        if most != float("inf"):
            self._occupancy[min(int(size / most * _TENTHS), _TENTHS - 1)] += passed

    def numbers(self, now: float) -> QueueNumbers:
        """Return its numbers so far, on the clock of `time.perf_counter`."""
        from aioqueue.telemetry.snapshots import QueueNumbers

        waits = self._machine.waits()
        counts = waits.statistics
        return QueueNumbers(
            name=self.name,
            kind=self._kind,
            size=counts.size,
            capacity=counts.capacity,
            held=counts.granted + counts.claimed,
            bytes=counts.bytes,
            max_bytes=counts.max_bytes,
            is_closed=self._machine.state.value != "open",
            enqueued=counts.enqueued,
            dequeued=counts.dequeued,
            enqueue_waits=_histogram(waits.enqueue_waits),
            dequeue_waits=_histogram(waits.dequeue_waits),
            enqueue_waiting=_until(waits.enqueues_since, now),
            dequeue_waiting=_until(waits.dequeues_since, now),
            seconds_empty=self._empty,
            seconds_full=self._full,
            occupancy=tuple(self._occupancy) if counts.capacity is not None else (),
            # Where nobody says what is done, the number grows for ever and says nothing.
            unfinished=counts.unfinished if counts.unfinished < counts.enqueued else None,
        )


def _histogram(counted: Counted) -> Histogram:
    from aioqueue.core.meters import Histogram

    return Histogram(*counted)


def _until(since: list[float], now: float) -> tuple[float, ...]:
    return tuple(max(0.0, now - began) for began in since)


Judge: TypeAlias = "Callable[[Snapshot, Snapshot], Verdict]"
"""Returns the verdict on a run between two snapshots."""


class MonitoredRun(Protocol):
    """A watched run: a monitor, or a stand-in."""

    @property
    def history(self) -> Sequence[Snapshot]:
        """Snapshots of the last minutes, one per second, oldest first."""

    def snapshot(self) -> Snapshot:
        """Return the numbers as of now."""

    def verdict(self, seconds: float = ...) -> Verdict:
        """Return the bottleneck of the last seconds."""

    def scalars(self) -> Mapping[str, float]:
        """Return the numbers as floats by name."""


class WaitPoint(Protocol):
    """A place where callers may wait other than at a queue."""

    def waits(self, frames: Mapping[int, FrameType]) -> Iterable[ExplainedWait]:
        """Return the current waits."""

    def waits_move(self) -> Hashable:
        """Return a value that changes when whatever the callers wait for makes progress."""

    def longest_of_waits(self) -> float:
        """Return the longest current wait in seconds; 0.0 if nobody waits."""

    def waits_for(self, coordinator: object) -> bool:
        """Return whether this belongs to what a coordinator (its core) watches."""


@runtime_checkable
class Serving(Protocol):
    """Such a place that takes the elements of a queue: a batcher."""

    @property
    def serves(self) -> int:
        """Identifies the queue: the id of its core."""


_waits: Final = LivingObjects()


def note_waits(waiting: WaitPoint) -> None:
    """Register a place where callers may wait; it is not kept alive."""
    _waits.add(waiting)


def known_waits() -> list[WaitPoint]:
    """Return all such places in this process."""
    return _waits.listed()


class Coordinating(Protocol):
    """The part of a coordinator that an explanation needs."""

    def explained(self, belonging: frozenset[int]) -> ExplainedCoordinator:
        """Return its state, with the workers that belong to no stage (by their keys)."""


_coordinators: Final = LivingObjects()


def note_coordinator(coordinator: Coordinating) -> None:
    """Register a coordinator; it is not kept alive."""
    _coordinators.add(coordinator)


def known_coordinators() -> list[Coordinating]:
    """Return the coordinators in this process."""
    return _coordinators.listed()


_runs: Final = LivingObjects()


def note_run(run: object) -> None:
    """Register a run of workers that fill a queue; it is not kept alive."""
    _runs.add(run)


def forget_run(run: object) -> None:
    """Forget a run that has ended."""
    _runs.discard(run)


def known_runs() -> list[Any]:
    """Return the runs in this process that have begun and not ended, of all queues."""
    return _runs.listed()
