"""What a run shows its monitors: its stages as they appear, the meters of its loops, its changes.

Monitors depend on these interfaces, and on nothing else of a run.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from aioqueue.core.meters import Meter, Tracer
from aioqueue.queues.queue_core import QueueFace
from aioqueue.system.locks import synchronized
from aioqueue.telemetry.metrics.step_timer import StepMeter, StepMeters

if TYPE_CHECKING:
    from aioqueue.telemetry.metrics.merging import ProcessNumbers
    from aioqueue.telemetry.metrics.snapshots import StageNumbers

_LOOP_TRACK: Final = "training step"

_MOST_CHANGES: Final = 1000
"""How many changes of workers to keep."""


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

    _finalizers: tuple[Callable[[Any, float], object], ...] = ()

    def add_finalizer(self, finalizer: Callable[[Any, float], object]) -> None:
        """Register a callback for the last numbers, and their time, when this part is dropped.

        Args:
            finalizer: called by any thread that drops the part. It must neither wait nor raise.
        """
        self._finalizers = (*self._finalizers, finalizer)

    def remove_finalizer(self, finalizer: Callable[[Any, float], object]) -> None:
        """Remove such a callback."""
        self._finalizers = tuple(one for one in self._finalizers if one != finalizer)

    def __del__(self) -> None:
        if self._finalizers:
            now = perf_counter()
            numbers = self.numbers(now)
            for finalizer in self._finalizers:
                finalizer(numbers, now)

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

    def sample(self, now: float) -> None:
        """Sample its workers, and make them measure themselves until `stop_sampling`."""

    def stop_sampling(self) -> None:
        """Stop the measurements that `sample` has started."""

    def numbers(self, now: float) -> StageNumbers:
        """Return its numbers so far, on the clock of `time.perf_counter`."""

    def add_finalizer(self, finalizer: Callable[[Any, float], object]) -> None:
        """Register a callback for the last numbers; see `EndingPart`."""

    def remove_finalizer(self, finalizer: Callable[[Any, float], object]) -> None:
        """Remove such a callback."""


class Listener(Protocol):
    """Learns of stages. It keeps those that it wants to know more of."""

    def stage_added(self, stage: StagePart) -> None:
        """Accept a stage. It must neither wait nor raise."""


class OtherProcesses(Protocol):
    """The other processes that take part in a run."""

    def ask(self) -> threading.Event:
        """Ask them for their numbers, which come later: then the event is set."""

    def wait(self, answered: threading.Event) -> None:
        """Wait, for a limited time, for what was asked."""

    def numbers(self) -> Iterable[ProcessNumbers]:
        """Return the latest numbers of each process, and of those that have ended together."""


class Watch:
    """The stages of a coordinator or a pipeline, as they appear.

    A run keeps its stages alive, and the watch does not. Thread-safe.

    Args:
        is_repeatable: whether there may be several runs of the same stages and queues, which then
            keep their keys and names.
    """

    def __init__(self, *, is_repeatable: bool = False) -> None:
        self._lock = threading.RLock()  # guards all below
        self._stages: list[weakref.ref[Any]] = []
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        self._changes: list[WorkerChange] = []
        self._tracers: list[Tracer] = []
        self.is_repeatable = is_repeatable
        self.tuning: Any = lambda: None  # a weak reference to the tuning of its stages
        self.began: float = perf_counter()
        self.steps: StepMeters | None = None
        """The meters of the loop's steps, once anybody wants them."""
        self.on_step: list[Callable[[int], None]] = []
        """Called in the loop with the number of each step that has ended, from 0."""
        self.last_queue: str | None = None
        """Name of the queue that the loop reads, if known."""
        self.elsewhere: OtherProcesses | None = None
        """The other processes of the run, once its coordinator is shared."""

    @synchronized
    def add(self, *stages: StagePart) -> None:
        """Add stages."""
        known = [one for one in self._stages if one() is not None]
        self._stages = [*known, *map(weakref.ref, stages)]
        for stage in stages:
            for listener in list(self._listeners):
                listener.stage_added(stage)
            if self._tracers:
                stage.trace(self._trace_all)

    @synchronized
    def add_listener(self, listener: Listener) -> None:
        """Report each existing stage, and each new one, once. The listener is not kept alive."""
        for stage in self.stages():
            listener.stage_added(stage)
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
        self._trace_all(_LOOP_TRACK, meter.meter)

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
            tracer(_LOOP_TRACK, meter.meter)

    @synchronized
    def stop_tracing(self, tracer: Tracer) -> None:
        """Stop reporting to this callback."""
        if tracer in self._tracers:
            self._tracers.remove(tracer)
        if not self._tracers:
            for stage in self.stages():
                stage.trace(None)

    @synchronized
    def add_change(self, change: WorkerChange) -> None:
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
    # The meters call this. They must not hold their watch, which holds them.
    found = watch()
    if found is not None:
        found.trace_loop(meter)


class MonitorTarget(Protocol):
    """An object that a monitor can watch."""

    def _watched(self) -> Watch: ...
