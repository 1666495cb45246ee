"""What is sent of a snapshot, under which names: the same for all that it is sent to.

`aioqueue.telemetry.exporters` and `aioqueue.telemetry.exporters` spell the names as is usual
there.

A few numbers of a run on the way of the metrics of the training: for TensorBoard's writers.

What a run does, for OpenTelemetry: asynchronous instruments, which are read when it exports.

The API comes with the extra: ``pip install 'aioqueue[opentelemetry]'``; what is exported where is
for the application to set up. Names are as ``aioqueue.queue.size``, with the attributes
``aioqueue.queue``, ``aioqueue.stage``, ``aioqueue.where`` and ``aioqueue.outcome``, and, of
functions between stages, ``aioqueue.function``, ``aioqueue.kind`` and ``aioqueue.within``. There
are no asynchronous histograms: durations come as two counters, ``….time`` in seconds and
``….count``.

What a run does, for Prometheus: a collector for the registry of `prometheus_client`.

That package comes with the extra: ``pip install 'aioqueue[prometheus]'``. Nothing is counted twice
and nothing is kept here: a scrape reads the numbers of that moment.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Literal, Protocol, TypeAlias

from aioqueue.arguments import checked_count
from aioqueue.errors import InvalidArgumentError
from aioqueue.locks import guarded
from aioqueue.telemetry.metrics import (
    BOUNDS,
    FunctionNumbers,
    Histogram,
    QueueNumbers,
    Snapshot,
    StageNumbers,
    StepNumbers,
)
from aioqueue.telemetry.registry import MonitoredRun

__all__ = (
    "DISTRIBUTIONS",
    "MEASURES",
    "Distribution",
    "Labels",
    "Measure",
    "RunCollector",
    "ScalarSender",
    "ScalarWriter",
    "Unit",
    "instrument",
)


Labels: TypeAlias = Mapping[str, str]
Unit: TypeAlias = Literal["", "seconds", "bytes"]


@dataclass(frozen=True)
class Measure:
    """A number of each queue, each stage, each function between stages, or the training step.

    Attributes:
        name: in parts, as ``"queue.size"``.
        is_counter: it only ever grows.
        unit: ``"seconds"``, ``"bytes"``, or none: it counts things.
        meaning: in a few words.
        read: the values in a snapshot, each with its labels.
    """

    name: str
    is_counter: bool
    unit: Unit
    meaning: str
    read: Callable[[Snapshot], Iterable[tuple[Labels, float]]]


@dataclass(frozen=True)
class Distribution:
    """Durations of each queue, each stage, each function between stages, or the training step, in
    seconds.

    Attributes:
        name: in parts, as ``"queue.enqueue_wait"``.
        meaning: in a few words.
        read: the histograms in a snapshot, each with its labels.
    """

    name: str
    meaning: str
    read: Callable[[Snapshot], Iterable[tuple[Labels, Histogram]]]


def _of_queues(of: Callable[[QueueNumbers], float | None]) -> Callable[[Snapshot], _Values]:
    def read(snapshot: Snapshot) -> _Values:
        for queue in snapshot.queues:
            value = of(queue)
            if value is not None:
                yield {"queue": queue.name}, value

    return read


def _of_stages(of: Callable[[StageNumbers], float | None]) -> Callable[[Snapshot], _Values]:
    def read(snapshot: Snapshot) -> _Values:
        for stage in snapshot.stages:
            value = of(stage)
            if value is not None:
                yield _stage(stage), value

    return read


def _of_functions(
    of: Callable[[FunctionNumbers], float],
) -> Callable[[Snapshot], _Values]:
    def read(snapshot: Snapshot) -> _Values:
        for function in snapshot.functions:
            yield _function(function), of(function)

    return read


def _of_step(of: Callable[[StepNumbers], float]) -> Callable[[Snapshot], _Values]:
    def read(snapshot: Snapshot) -> _Values:
        if snapshot.steps is not None:
            yield {}, of(snapshot.steps)

    return read


def _items(snapshot: Snapshot) -> _Values:
    for stage in snapshot.stages:
        for outcome in ("delivered", "skipped"):
            yield {**_stage(stage), "outcome": outcome}, getattr(stage, outcome)


def _stage(stage: StageNumbers) -> Labels:
    return {"stage": stage.name, "where": stage.where}


def _function(function: FunctionNumbers) -> Labels:
    return {"function": function.name, "kind": function.kind, "within": function.within or ""}


_Values: TypeAlias = Iterator[tuple[Labels, float]]

MEASURES: Final = (
    Measure("queue.size", False, "", "Elements inside.", _of_queues(lambda q: q.size)),
    Measure(
        "queue.capacity",
        False,
        "",
        "Elements that there may be inside; none where there is no bound.",
        _of_queues(lambda q: q.capacity),
    ),
    Measure(
        "queue.memory", False, "bytes", "Of the elements inside.", _of_queues(lambda q: q.bytes)
    ),
    Measure("queue.enqueued", True, "", "Elements put in.", _of_queues(lambda q: q.enqueued)),
    Measure("queue.dequeued", True, "", "Elements taken out.", _of_queues(lambda q: q.dequeued)),
    Measure(
        "queue.enqueue_waiting",
        False,
        "",
        "Callers that wait to put in.",
        _of_queues(lambda q: len(q.enqueue_waiting)),
    ),
    Measure(
        "queue.dequeue_waiting",
        False,
        "",
        "Callers that wait to take out.",
        _of_queues(lambda q: len(q.dequeue_waiting)),
    ),
    Measure(
        "queue.longest_wait",
        False,
        "seconds",
        "How long the caller has waited that waits longest now.",
        _of_queues(lambda q: max((*q.enqueue_waiting, *q.dequeue_waiting), default=0.0)),
    ),
    Measure(
        "queue.empty",
        True,
        "seconds",
        "In which it was empty.",
        _of_queues(lambda q: q.seconds_empty),
    ),
    Measure(
        "queue.full", True, "seconds", "In which it was full.", _of_queues(lambda q: q.seconds_full)
    ),
    Measure("stage.workers", False, "", "Workers.", _of_stages(lambda s: len(s.workers))),
    Measure("stage.items", True, "", "Items that have ended.", _items),
    Measure("stage.retried", True, "", "Calls made again.", _of_stages(lambda s: s.retried)),
    Measure(
        "stage.in_flight",
        False,
        "",
        "Items taken and not yet delivered.",
        _of_stages(lambda s: s.in_flight),
    ),
    Measure(
        "stage.max_in_flight",
        False,
        "",
        "Items that may be in flight; none where there is no bound.",
        _of_stages(lambda s: s.max_in_flight),
    ),
    Measure(
        "stage.starved",
        True,
        "seconds",
        "That workers waited for an item, over all workers.",
        _of_stages(lambda s: s.starved),
    ),
    Measure(
        "stage.blocked",
        True,
        "seconds",
        "That workers waited for room, over all workers.",
        _of_stages(lambda s: s.blocked),
    ),
    Measure(
        "stage.full",
        True,
        "seconds",
        "In which no more items were let in, for limit or limit_bytes.",
        _of_stages(lambda s: s.seconds_window_full),
    ),
    Measure(
        "stage.bytes_full",
        True,
        "seconds",
        "The part of these that was for limit_bytes.",
        _of_stages(lambda s: s.seconds_bytes_full),
    ),
    Measure(
        "stage.keys_full",
        True,
        "seconds",
        "In which workers had nothing to do beside items put aside by concurrency_key.",
        _of_stages(lambda s: s.seconds_keys_full),
    ),
    Measure(
        "stage.deaths",
        True,
        "",
        "Workers that died and were replaced.",
        _of_stages(lambda s: s.deaths),
    ),
    Measure(
        "function.busy",
        True,
        "seconds",
        "Spent in a function between stages, the call that goes on included.",
        _of_functions(lambda f: f.busy),
    ),
    Measure("step.batches", True, "", "Batches handed over.", _of_step(lambda step: step.steps)),
    Measure(
        "step.worked",
        True,
        "seconds",
        "In the body of the training loop.",
        _of_step(lambda step: step.worked),
    ),
    Measure(
        "step.waiting",
        False,
        "seconds",
        "That the training loop has waited now; 0 while it works.",
        _of_step(lambda step: step.waiting),
    ),
)

DISTRIBUTIONS: Final = (
    Distribution(
        "queue.enqueue_wait",
        "How long enqueues waited that had to.",
        lambda snapshot: [({"queue": q.name}, q.enqueue_waits) for q in snapshot.queues],
    ),
    Distribution(
        "queue.dequeue_wait",
        "How long dequeues waited that had to.",
        lambda snapshot: [({"queue": q.name}, q.dequeue_waits) for q in snapshot.queues],
    ),
    Distribution(
        "stage.service",
        "How long a call of the function took.",
        lambda snapshot: [(_stage(s), s.service) for s in snapshot.stages],
    ),
    Distribution(
        "stage.source_wait",
        "How long the source took to give an item.",
        lambda snapshot: [(_stage(s), s.source_waits) for s in snapshot.stages],
    ),
    Distribution(
        "function.service",
        "How long a call of a function between stages took.",
        lambda snapshot: [(_function(f), f.service) for f in snapshot.functions],
    ),
    Distribution(
        "step.wait",
        "How long the training loop waited for a batch.",
        lambda snapshot: [] if snapshot.steps is None else [({}, snapshot.steps.waits)],
    ),
)


_log: Final = logging.getLogger("aioqueue")


class ScalarWriter(Protocol):
    """What takes scalars: a ``SummaryWriter`` of PyTorch or tensorboardX, or one like it."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> Any:
        """Note a value of a step."""


class ScalarSender:
    """Writes `scalars` of a run as the training goes on: once in so many steps.

    Args:
        watched: the run, a monitor.
        writer: has ``add_scalar(tag, value, step)``.
        every: how many steps there are from one to the next, >= 1.

    Raises:
        InvalidArgumentError: `writer` has no ``add_scalar``, or `every` is out of range.
    """

    def __init__(self, watched: MonitoredRun, writer: ScalarWriter, every: int = 100) -> None:
        if not callable(getattr(writer, "add_scalar", None)):
            raise InvalidArgumentError(
                f"writer: got {writer!r}; expected one with add_scalar(tag, value, step), as the"
                " SummaryWriter of torch.utils.tensorboard or tensorboardX"
            )
        self._watched = watched
        self._writer = writer
        self._every = checked_count(every, "every", least=1)
        self._step = 0
        self._has_failed = False

    def step(self, number: int | None = None) -> None:
        """A step of the training has ended. The first failure of the writer goes to the log.

        Args:
            number: which, from 0; `None`: the next one.
        """
        number = self._step if number is None else number
        self._step = number + 1
        if self._step % self._every == 0:
            try:
                self.send(number)
            except Exception:
                if not self._has_failed:  # once: the disk stays full for the next thousand, too
                    self._has_failed = True
                    _log.exception(
                        "%r cannot write scalars; the training goes on, and further failures of"
                        " this kind are not logged",
                        self._writer,
                    )

    def send(self, number: int) -> None:
        """Write the scalars now, as those of a step.

        Args:
            number: which step, from 0.
        """
        for tag, value in self._watched.scalars().items():
            self._writer.add_scalar(tag, value, number)


_UNITS: Final[dict[Unit, str]] = {"seconds": "s", "bytes": "By", "": "1"}
_FRESH: Final = 0.2
"""Seconds for which a snapshot is good: all instruments are read in a row, one by one."""


def instrument(
    watched: MonitoredRun,
    meter: Any = None,
    attributes: Mapping[str, str | int | float | bool] | None = None,
) -> None:
    """Make instruments that read the numbers of a run.

    They are there for as long as the meter is: OpenTelemetry has no way to take one back.

    Args:
        watched: the run, a monitor.
        meter: makes the instruments; `None`: the one named ``aioqueue`` of the global provider.
        attributes: put on every value, as ``{"rank": 3}``, by which the processes of one training
            are told apart.

    Raises:
        ImportError: `opentelemetry-api` is not installed.
    """
    metrics = _metrics()
    if meter is None:
        meter = metrics.get_meter("aioqueue")
    fresh = _Fresh(watched)
    common = dict(attributes or {})

    def observation(labels: Labels, value: float) -> Any:
        named = {f"aioqueue.{name}": label for name, label in labels.items()}
        return metrics.Observation(value, {**common, **named})

    for measure in MEASURES:
        make = (
            meter.create_observable_counter if measure.is_counter else meter.create_observable_gauge
        )
        make(
            f"aioqueue.{measure.name}",
            callbacks=[_reading(measure, fresh, observation)],
            unit=_UNITS[measure.unit],
            description=measure.meaning,
        )
    for distribution in DISTRIBUTIONS:
        _count(meter, distribution, fresh, observation)


def _reading(
    measure: Measure, fresh: _Fresh, observation: Callable[[Labels, float], Any]
) -> Callable[[Any], Iterable[Any]]:
    def read(options: Any) -> Iterable[Any]:
        return [observation(labels, value) for labels, value in measure.read(fresh.snapshot())]

    return read


def _count(
    meter: Any,
    distribution: Distribution,
    fresh: _Fresh,
    observation: Callable[[Labels, float], Any],
) -> None:
    """The two counters of what is a histogram elsewhere."""

    def seconds(options: Any) -> Iterable[Any]:
        found = distribution.read(fresh.snapshot())
        return [observation(labels, histogram.seconds) for labels, histogram in found]

    def count(options: Any) -> Iterable[Any]:
        found = distribution.read(fresh.snapshot())
        return [observation(labels, histogram.count) for labels, histogram in found]

    for ending, read, unit in (("time", seconds, "s"), ("count", count, "1")):
        meter.create_observable_counter(
            f"aioqueue.{distribution.name}.{ending}",
            callbacks=[read],
            unit=unit,
            description=distribution.meaning,
        )


class _Fresh:
    """The snapshot of one export. Thread-safe."""

    def __init__(self, watched: MonitoredRun) -> None:
        self._watched = watched
        self._lock = threading.RLock()  # guards all below
        self._latest: Snapshot | None = None
        self._until = 0.0

    @guarded
    def snapshot(self) -> Snapshot:
        now = time.monotonic()
        if self._latest is None or now > self._until:
            self._latest = self._watched.snapshot()
            self._until = now + _FRESH
        return self._latest


def _metrics() -> Any:
    """The API of OpenTelemetry.

    Raises:
        ImportError: it is not installed.
    """
    try:
        from opentelemetry import metrics
    except ImportError as error:
        raise ImportError(
            "instruments need the API of OpenTelemetry: pip install 'aioqueue[opentelemetry]'"
        ) from error
    return metrics


_LABEL: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_OURS: Final = frozenset({"function", "kind", "le", "outcome", "queue", "stage", "where", "within"})


class RunCollector:
    """Metrics of queues (label ``queue``), stages (labels ``stage``, ``where``), functions between
    stages, such as a ``collate`` (labels ``function``, ``kind``, and ``within``: the stage whose
    workers call it, or nothing where the loop does), and the training step.

    ======================================== ========= =============================================
    metric                                   kind      meaning
    ======================================== ========= =============================================
    aioqueue_queue_size                      gauge     elements inside
    aioqueue_queue_capacity                  gauge     elements that there may be inside; none where
                                                       there is no bound
    aioqueue_queue_memory_bytes              gauge     of the elements inside
    aioqueue_queue_enqueued_total            counter   elements put in
    aioqueue_queue_dequeued_total            counter   elements taken out
    aioqueue_queue_enqueue_waiting           gauge     callers that wait to put in
    aioqueue_queue_dequeue_waiting           gauge     callers that wait to take out
    aioqueue_queue_longest_wait_seconds      gauge     of the caller that waits longest now
    aioqueue_queue_empty_seconds_total       counter   in which it was empty
    aioqueue_queue_full_seconds_total        counter   in which it was full
    aioqueue_queue_enqueue_wait_seconds      histogram enqueues that had to wait, until they ended
    aioqueue_queue_dequeue_wait_seconds      histogram dequeues that had to wait, until they ended
    aioqueue_stage_workers                   gauge     workers
    aioqueue_stage_items_total               counter   items that have ended, by ``outcome``:
                                                       delivered or skipped
    aioqueue_stage_retried_total             counter   calls made again
    aioqueue_stage_in_flight                 gauge     items taken and not yet delivered
    aioqueue_stage_max_in_flight             gauge     items that may be; none where there is no
                                                       bound
    aioqueue_stage_starved_seconds_total     counter   that workers waited for an item, over all
    aioqueue_stage_blocked_seconds_total     counter   that workers waited for room, over all
    aioqueue_stage_full_seconds_total        counter   no more items were let in, for ``limit`` or
                                                       ``limit_bytes``
    aioqueue_stage_bytes_full_seconds_total  counter   the part of these for ``limit_bytes``
    aioqueue_stage_keys_full_seconds_total   counter   workers had nothing to do beside items put
                                                       aside by ``concurrency_key``
    aioqueue_stage_deaths_total              counter   workers that died and were replaced
    aioqueue_stage_service_seconds           histogram a call of the function
    aioqueue_stage_source_wait_seconds       histogram until the source had given an item
    aioqueue_function_busy_seconds_total     counter   in a function between stages
    aioqueue_function_service_seconds        histogram a call of it
    aioqueue_step_batches_total              counter   batches handed over
    aioqueue_step_worked_seconds_total       counter   in the body of the training loop
    aioqueue_step_waiting_seconds            gauge     that the loop has waited now; 0: it works
    aioqueue_step_wait_seconds               histogram that the loop waited for a batch
    ======================================== ========= =============================================

    Args:
        watched: the run, a monitor.
        labels: put on every metric, as ``{"rank": "3"}``, by which the processes of one training
            are told apart.

    Raises:
        ImportError: `prometheus_client` is not installed.
        InvalidArgumentError: a label has a name that Prometheus does not allow, or one of ours.
    """

    def __init__(self, watched: MonitoredRun, labels: Mapping[str, object] | None = None) -> None:
        _families()
        self._watched = watched
        self._labels = {name: str(value) for name, value in (labels or {}).items()}
        for name in self._labels:
            if not _LABEL.fullmatch(name) or name in _OURS:
                raise InvalidArgumentError(
                    f"labels: got the name {name!r}; expected letters, digits and underscores, and"
                    f" none of {', '.join(sorted(_OURS))}"
                )

    def describe(self) -> Iterator[Any]:
        """The names of the metrics, for which nothing is read; called by the registry."""
        for measure in MEASURES:
            yield self._family(measure)
        for distribution in DISTRIBUTIONS:
            yield self._histogram(distribution)

    def collect(self) -> Iterator[Any]:
        """The metric families; called by the registry, at every scrape."""
        snapshot = self._watched.snapshot()
        for measure in MEASURES:
            yield self._filled(measure, snapshot)
        for distribution in DISTRIBUTIONS:
            family = self._histogram(distribution)
            for labels, histogram in distribution.read(snapshot):
                buckets = _buckets(histogram)
                family.add_metric(self._values(labels), buckets, histogram.seconds)
            yield family

    def _filled(self, measure: Measure, snapshot: Snapshot) -> Any:
        family = self._family(measure)
        for labels, value in measure.read(snapshot):
            family.add_metric(self._values(labels), value)
        return family

    def _family(self, measure: Measure) -> Any:
        families = _families()
        kind = families.CounterMetricFamily if measure.is_counter else families.GaugeMetricFamily
        unit = f"_{measure.unit}" if measure.unit else ""
        return kind(
            f"{_name(measure.name)}{unit}",
            measure.meaning,
            labels=[*self._labels, *_own_labels(measure.name)],
        )

    def _histogram(self, distribution: Distribution) -> Any:
        return _families().HistogramMetricFamily(
            f"{_name(distribution.name)}_seconds",
            distribution.meaning,
            labels=[*self._labels, *_own_labels(distribution.name)],
        )

    def _values(self, labels: Labels) -> list[str]:
        return [*self._labels.values(), *labels.values()]


_LABELS: Final[dict[str, tuple[str, ...]]] = {
    "queue": ("queue",),
    "stage": ("stage", "where"),
    "function": ("function", "kind", "within"),
    "step": (),
}


def _name(name: str) -> str:
    return f"aioqueue_{name.replace('.', '_')}"


def _own_labels(name: str) -> tuple[str, ...]:
    """The names of the labels of a measure, in the order in which it gives them."""
    of = _LABELS[name.split(".")[0]]
    return (*of, "outcome") if name == "stage.items" else of


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Buckets as Prometheus counts them, each with what is in the smaller ones."""
    from prometheus_client.utils import floatToGoString

    bounds = [*map(floatToGoString, BOUNDS), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))


def _families() -> Any:
    """`prometheus_client`, where the families are.

    Raises:
        ImportError: it is not installed.
    """
    try:
        from prometheus_client import core
    except ImportError as error:
        raise ImportError(
            "metrics for Prometheus need prometheus_client: pip install 'aioqueue[prometheus]'"
        ) from error
    return core
