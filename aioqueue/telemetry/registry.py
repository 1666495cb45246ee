"""What a monitor watches: the queues and stages of a run, and how each tells its numbers.

What looks at a run, and what sends its numbers on, asks for this, and for no more.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, Protocol, TypeAlias

from aioqueue.durations import Counted
from aioqueue.locks import guarded
from aioqueue.meters import Tracer
from aioqueue.queues.core import QueueCore, QueueFace
from aioqueue.telemetry.bottleneck import Verdict
from aioqueue.telemetry.metrics import Histogram, QueueNumbers, Snapshot, StageNumbers
from aioqueue.telemetry.step_timer import StepMeter, StepMeters

__all__ = (
    "EndingPart",
    "Judge",
    "Listener",
    "MonitorTarget",
    "MonitoredRun",
    "QueuePart",
    "StagePart",
    "Watch",
    "WorkerChange",
)


_TENTHS: Final = 10
_STEP: Final = "training step"
_MOST_CHANGES: Final = 1000


@dataclass(frozen=True, slots=True)
class WorkerChange:
    """A change of the number of workers of a stage, by its tuning.

    Attributes:
        seconds: when, since the run began.
        stage: which stage.
        before: how many workers there were.
        after: how many there are from then on.
        why: in words.
    """

    seconds: float
    stage: str
    before: int
    after: int
    why: str


class EndingPart:
    """A part whose numbers outlive it. Monitors do not keep it; it says them when it goes."""

    _heirs: tuple[Callable[[Any, float], object], ...] = ()

    def bequeath(self, heir: Callable[[Any, float], object]) -> None:
        """Have somebody told of the last numbers, and of when that was, when this part goes.

        Args:
            heir: called by whatever thread drops the part. It may neither wait nor raise.
        """
        self._heirs = (*self._heirs, heir)

    def disinherit(self, heir: Callable[[Any, float], object]) -> None:
        """Tell it nothing."""
        self._heirs = tuple(one for one in self._heirs if one != heir)

    def __del__(self) -> None:
        if self._heirs:
            now = perf_counter()
            numbers = self.numbers(now)
            for heir in self._heirs:
                heir(numbers, now)

    def numbers(self, now: float) -> Any:
        """What it has done so far, on the clock of `time.perf_counter`."""
        raise NotImplementedError


class StagePart(Protocol):
    """A stage of a run: the workers that call one function. They are `EndingPart`."""

    name: str
    """Of the function."""

    @property
    def key(self) -> Hashable:
        """Names it among those of what is watched; later runs of the same have the same."""

    @property
    def is_over(self) -> bool:
        """Whether all its workers have ended."""

    def trace(self, tracer: Tracer | None) -> None:
        """Tell of each worker that there is, and that comes; ``None``: no more."""

    def queues(self) -> Iterable[QueueFace]:
        """The queues that are known to it: that it reads, and that it fills."""

    def look(self, now: float) -> None:
        """See what its workers are at, and have them measure themselves until nobody looks."""

    def look_no_more(self) -> None:
        """Nobody looks any more."""

    def numbers(self, now: float) -> StageNumbers:
        """What it has done so far, on the clock of `time.perf_counter`."""

    def bequeath(self, heir: Callable[[Any, float], object]) -> None:
        """Have somebody told of the last numbers: see `EndingPart`."""

    def disinherit(self, heir: Callable[[Any, float], object]) -> None:
        """Tell it nothing."""


class Listener(Protocol):
    """What is told of stages. It keeps those that it wants to know more of."""

    def take(self, stage: StagePart) -> None:
        """There is another one. May neither wait nor raise."""


class Watch:
    """The stages of what can be watched, as they come: a coordinator has one, and a pipeline.

    Stages are kept for as long as their runs keep them. Thread-safe.

    Args:
        comes_again: whether there is one run after another, of the same stages and queues: those
            of one have the keys and names of those before.
    """

    def __init__(self, *, comes_again: bool = False) -> None:
        self._lock = threading.RLock()  # guards all below
        self._stages: list[weakref.ref[Any]] = []
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        self._changes: list[WorkerChange] = []
        self._tracer: Tracer | None = None
        self.comes_again = comes_again
        self.tuning: Any = lambda: None  # a weak reference to what tunes its stages, if any does
        self.began = perf_counter()
        self.steps: StepMeters | None = None
        """Told of the steps of the loop, once anybody wants to know."""
        self.on_step: list[Callable[[int], None]] = []
        """Called with the number of each step that has ended, from 0, in the loop."""
        self.last_queue: str | None = None
        """Name of the queue that the loop waits at, where that is known."""

    @guarded
    def add(self, *stages: StagePart) -> None:
        """There are further ones."""
        known = [one for one in self._stages if one() is not None]
        self._stages = [*known, *map(weakref.ref, stages)]
        for stage in stages:
            for listener in list(self._listeners):
                listener.take(stage)
            if self._tracer is not None:
                stage.trace(self._tracer)

    @guarded
    def tell(self, listener: Listener) -> None:
        """Tell of each stage that is there, and from now on of each one that comes, once."""
        for stage in self.stages():
            listener.take(stage)
        self._listeners.add(listener)

    @guarded
    def watch_steps(self) -> StepMeters:
        """What is told of the steps of all loops, which somebody wants to know from now on."""
        if self.steps is None:
            self.steps = StepMeters(self.on_step)
            self.steps.tracer = self._trace_loop
        return self.steps

    @guarded
    def _trace_loop(self, meter: StepMeter) -> None:
        if self._tracer is not None:
            self._tracer(_STEP, meter.meter)

    @guarded
    def trace(self, tracer: Tracer) -> None:
        """Tell of each worker that there is, and that comes, the training loop included."""
        self._tracer = tracer
        for stage in self.stages():
            stage.trace(tracer)
        for meter in () if self.steps is None else self.steps.all():
            tracer(_STEP, meter.meter)

    @guarded
    def trace_no_more(self, tracer: Tracer) -> None:
        """Tell it no more, unless it is another by now."""
        if self._tracer == tracer:
            self._tracer = None
            for stage in self.stages():
                stage.trace(None)

    @guarded
    def note(self, change: WorkerChange) -> None:
        """The number of workers of a stage was changed."""
        self._changes = [*self._changes[-_MOST_CHANGES + 1 :], change]

    @guarded
    def changes(self) -> tuple[WorkerChange, ...]:
        """What was changed, the latest ones, in order."""
        return tuple(self._changes)

    @guarded
    def stages(self) -> list[StagePart]:
        """Those that are there, in the order in which they came."""
        found = [one() for one in self._stages]
        return [one for one in found if one is not None]


class MonitorTarget(Protocol):
    """What a monitor can watch."""

    def _watched(self) -> Watch:
        """Its stages."""


class QueuePart(EndingPart):
    """A queue, and what was seen of how full it is.

    It does not keep the queue; who wants to have it for as long as the queue lives adds it to the
    parts of that.

    Args:
        core: the queue.
        now: when one begins to look at it.
    """

    def __init__(self, core: QueueCore, now: float) -> None:
        self._core = weakref.ref(core)
        self._machine = core.machine
        self._keep = core.keep
        self.name = core.name
        self._kind = core.kind
        self._looked = now
        self._empty = self._full = 0.0
        self._occupancy = [0.0] * _TENTHS

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen to it."""
        if self._machine.state.value != "closed":
            return False
        counts = self._machine.statistics()
        return not counts.size and counts.enqueued == counts.dequeued

    @property
    def size(self) -> int:
        """How many elements are in it, without its lock."""
        return len(self._machine.storage)

    def is_of(self, core: QueueCore) -> bool:
        """Whether it is of this queue."""
        return self._core() is core

    def leave(self) -> None:
        """Nobody looks at the queue any more in this way."""
        core = self._core()
        if core is not None and self in core.parts:
            core.parts.remove(self)

    def look(self, now: float, share: float = 1.0) -> None:
        """See how full it is, without its lock: it was so since the last look, on the whole.

        Args:
            now: on the clock of `time.perf_counter`.
            share: what of the time is told to be its own: of those that share one place.
        """
        passed, self._looked = (now - self._looked) * share, now
        machine = self._machine
        size, most = len(machine.storage), machine.most
        if size <= self._keep:
            self._empty += passed
        if size >= most:
            self._full += passed
        if most != float("inf"):
            self._occupancy[min(int(size / most * _TENTHS), _TENTHS - 1)] += passed

    def numbers(self, now: float) -> QueueNumbers:
        """What it has done so far, on the clock of `time.perf_counter`."""
        waits = self._machine.waits()
        counts = waits.statistics
        return QueueNumbers(
            name=self.name,
            kind=self._kind,
            size=counts.size,
            capacity=counts.capacity,
            held=counts.enqueued - counts.dequeued - counts.size,
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
        )


def _histogram(counted: Counted) -> Histogram:
    return Histogram(*counted)


def _until(since: list[float], now: float) -> tuple[float, ...]:
    return tuple(max(0.0, now - began) for began in since)


Judge: TypeAlias = Callable[[Snapshot, Snapshot], Verdict]
"""Says what limited a run between two snapshots."""


class MonitoredRun(Protocol):
    """A run that is watched: a monitor, or what stands for one."""

    @property
    def history(self) -> Sequence[Snapshot]:
        """Snapshots of the last minutes, one per second, oldest first."""

    def snapshot(self) -> Snapshot:
        """The numbers of now."""

    def verdict(self, seconds: float = ...) -> Verdict:
        """What limited the run in the last seconds."""

    def scalars(self) -> Mapping[str, float]:
        """The same in short, as floats by name."""
