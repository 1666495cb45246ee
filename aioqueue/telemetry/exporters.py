"""Exports the numbers of a run to TensorBoard, OpenTelemetry and Prometheus, by the same names.

`MEASURES` and `DISTRIBUTIONS` name each metric once; each exporter spells the names as is usual
there (``aioqueue.queue.size``, ``aioqueue_queue_size``).

OpenTelemetry has no asynchronous histograms, so each duration becomes two counters there:
``….time`` in seconds, and ``….count``. Its API comes with the extra ``opentelemetry``, that of
Prometheus with ``prometheus``. Every export reads the numbers of that moment; nothing is counted or
stored here.
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

from aioqueue import extras
from aioqueue.arguments import checked_count, checked_labels
from aioqueue.display_text import on_one_line
from aioqueue.errors import InvalidArgumentError
from aioqueue.locks import guarded
from aioqueue.telemetry.registry import MonitoredRun
from aioqueue.telemetry.snapshots import (
    BOUNDS,
    FunctionNumbers,
    Histogram,
    QueueNumbers,
    Snapshot,
    StageNumbers,
    StepNumbers,
)

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
    """A number of each queue, stage, function between stages, or the training step.

    Attributes:
        name: its parts, joined by dots, such as ``"queue.size"``.
        is_counter: whether it only grows.
        unit: ``"seconds"``, ``"bytes"``, or empty for a count.
        meaning: a short description.
        read: returns the values in a snapshot, each with its labels.
    """

    name: str
    is_counter: bool
    unit: Unit
    meaning: str
    read: Callable[[Snapshot], Iterable[tuple[Labels, float]]]


@dataclass(frozen=True)
class Distribution:
    """Durations in seconds, of each queue, stage, function between stages, or the training step.

    Attributes:
        name: its parts, joined by dots, such as ``"queue.enqueue_wait"``.
        meaning: a short description.
        read: returns the histograms in a snapshot, each with its labels.
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
    Measure("queue.size", False, "", "Elements in the queue.", _of_queues(lambda q: q.size)),
    Measure(
        "queue.capacity",
        False,
        "",
        "Most elements that the queue holds; absent if it is unbounded.",
        _of_queues(lambda q: q.capacity),
    ),
    Measure(
        "queue.memory",
        False,
        "bytes",
        "Bytes of the elements in the queue.",
        _of_queues(lambda q: q.bytes),
    ),
    Measure(
        "queue.held",
        False,
        "",
        "Elements that dequeues have taken which have not ended.",
        _of_queues(lambda q: q.held),
    ),
    Measure(
        "queue.unfinished",
        False,
        "",
        "Elements enqueued without a task_done yet; absent until one is called.",
        _of_queues(lambda q: q.unfinished),
    ),
    Measure("queue.enqueued", True, "", "Elements enqueued.", _of_queues(lambda q: q.enqueued)),
    Measure("queue.dequeued", True, "", "Elements dequeued.", _of_queues(lambda q: q.dequeued)),
    Measure(
        "queue.enqueue_waiting",
        False,
        "",
        "Callers that wait to enqueue.",
        _of_queues(lambda q: len(q.enqueue_waiting)),
    ),
    Measure(
        "queue.dequeue_waiting",
        False,
        "",
        "Callers that wait to dequeue.",
        _of_queues(lambda q: len(q.dequeue_waiting)),
    ),
    Measure(
        "queue.longest_wait",
        False,
        "seconds",
        "How long the longest-waiting caller has waited.",
        _of_queues(lambda q: max((*q.enqueue_waiting, *q.dequeue_waiting), default=0.0)),
    ),
    Measure(
        "queue.empty",
        True,
        "seconds",
        "How long the queue was empty.",
        _of_queues(lambda q: q.seconds_empty),
    ),
    Measure(
        "queue.full",
        True,
        "seconds",
        "How long the queue was full.",
        _of_queues(lambda q: q.seconds_full),
    ),
    Measure("stage.workers", False, "", "Workers.", _of_stages(lambda s: len(s.workers))),
    Measure("stage.items", True, "", "Items delivered or skipped.", _items),
    Measure("stage.retried", True, "", "Calls retried.", _of_stages(lambda s: s.retried)),
    Measure(
        "stage.in_flight",
        False,
        "",
        "Items taken from the source and not yet delivered.",
        _of_stages(lambda s: s.in_flight),
    ),
    Measure(
        "stage.max_in_flight",
        False,
        "",
        "Most items in flight; absent if there is no bound.",
        _of_stages(lambda s: s.max_in_flight),
    ),
    Measure(
        "stage.starved",
        True,
        "seconds",
        "How long workers waited for items, summed over workers.",
        _of_stages(lambda s: s.starved),
    ),
    Measure(
        "stage.blocked",
        True,
        "seconds",
        "How long workers waited for room, summed over workers.",
        _of_stages(lambda s: s.blocked),
    ),
    Measure(
        "stage.full",
        True,
        "seconds",
        "How long max_in_flight or limit_bytes kept further items out.",
        _of_stages(lambda s: s.seconds_window_full),
    ),
    Measure(
        "stage.bytes_full",
        True,
        "seconds",
        "How long limit_bytes kept further items out.",
        _of_stages(lambda s: s.seconds_bytes_full),
    ),
    Measure(
        "stage.keys_full",
        True,
        "seconds",
        "How long workers were idle while concurrency_key deferred items.",
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
        "Time in a function between stages, including the current call.",
        _of_functions(lambda f: f.busy),
    ),
    Measure("step.batches", True, "", "Batches handed over.", _of_step(lambda step: step.steps)),
    Measure(
        "step.worked",
        True,
        "seconds",
        "Time in the body of the training loop.",
        _of_step(lambda step: step.worked),
    ),
    Measure(
        "step.waiting",
        False,
        "seconds",
        "How long the training loop has been waiting; 0 while it works.",
        _of_step(lambda step: step.waiting),
    ),
)

DISTRIBUTIONS: Final = (
    Distribution(
        "queue.enqueue_wait",
        "How long enqueues that had to wait waited.",
        lambda snapshot: [({"queue": q.name}, q.enqueue_waits) for q in snapshot.queues],
    ),
    Distribution(
        "queue.dequeue_wait",
        "How long dequeues that had to wait waited.",
        lambda snapshot: [({"queue": q.name}, q.dequeue_waits) for q in snapshot.queues],
    ),
    Distribution(
        "stage.service",
        "How long a call of the function took.",
        lambda snapshot: [(_stage(s), s.service) for s in snapshot.stages],
    ),
    Distribution(
        "stage.source_wait",
        "How long the source took to yield an item.",
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
    """Accepts scalars: a ``SummaryWriter`` of PyTorch or tensorboardX, or a similar object."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> Any:
        """Record the value of a step."""


class ScalarSender:
    """Writes the `scalars` of a run every few training steps.

    Args:
        watched: the run, a monitor.
        writer: an object with ``add_scalar(tag, value, step)``.
        every: write once per this many steps, >= 1.

    Raises:
        InvalidArgumentError: `writer` has no ``add_scalar``, or `every` is out of range.
    """

    def __init__(self, watched: MonitoredRun, writer: ScalarWriter, every: int = 100) -> None:
        if not callable(getattr(writer, "add_scalar", None)):
            raise InvalidArgumentError(
                f"writer: got {writer!r}; expected an object with add_scalar(tag, value, step),"
                " such as the SummaryWriter of torch.utils.tensorboard or tensorboardX"
            )
        self._watched = watched
        self._writer = writer
        self._every = checked_count(every, "every", least=1)
        self._step = 0
        self._has_failed = False

    def step(self, number: int | None = None) -> None:
        """Record that a training step has ended. The first failure of the writer is logged.

        Args:
            number: which step, from 0; `None` for the next one.
        """
        number = self._step if number is None else number
        self._step = number + 1
        if self._step % self._every == 0:
            try:
                self.send(number)
            except Exception:
                if not self._has_failed:  # log once: a full disk fails every later step, too
                    self._has_failed = True
                    _log.exception(
                        "%r cannot write scalars; training continues, and further failures of this"
                        " writer are not logged",
                        self._writer,
                    )

    def send(self, number: int) -> None:
        """Write the scalars of this moment as those of a step.

        Args:
            number: which step, from 0.
        """
        for tag, value in self._watched.scalars().items():
            self._writer.add_scalar(tag, value, number)


_UNITS: Final[dict[Unit, str]] = {"seconds": "s", "bytes": "By", "": "1"}
_FRESH: Final = 0.2
"""Seconds for which a snapshot is reused: an export reads all instruments one after another."""


def instrument(
    watched: MonitoredRun,
    meter: Any = None,
    attributes: Mapping[str, str | int | float | bool] | None = None,
) -> None:
    """Create instruments that read the numbers of a run.

    They exist for as long as the meter: OpenTelemetry cannot remove an instrument.

    Args:
        watched: the run, a monitor.
        meter: creates the instruments; `None` for the one named ``aioqueue`` of the global
            provider.
        attributes: added to every value, such as ``{"rank": 3}`` to identify each process of a
            training job.

    Raises:
        ImportError: `opentelemetry-api` is not installed.
        InvalidArgumentError: ``meter`` is no meter, or ``attributes`` no mapping.
    """
    metrics = _metrics()
    meter = metrics.get_meter("aioqueue") if meter is None else meter
    if not isinstance(meter, metrics.Meter):
        raise InvalidArgumentError(f"meter: got {meter!r}; expected a Meter of OpenTelemetry")
    fresh, common = _Fresh(watched), checked_labels(attributes, "attributes")

    def observation(labels: Labels, value: float) -> Any:
        named = {f"aioqueue.{name}": on_one_line(label) for name, label in labels.items()}
        return metrics.Observation(value, {**common, **named})

    for measure in MEASURES:
        kind = "counter" if measure.is_counter else "gauge"
        getattr(meter, f"create_observable_{kind}")(
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
    """Create the two counters that stand for a histogram."""

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
    """Shares one snapshot among the instruments of an export. Thread-safe."""

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
    """Import and return the API of OpenTelemetry.

    Raises:
        ImportError: it is not installed.
    """
    try:
        from opentelemetry import metrics
    except ImportError as error:
        raise ImportError(
            f"instruments require the OpenTelemetry API: {extras.command_for('opentelemetry')}"
        ) from error
    return metrics


_LABEL: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_OURS: Final = frozenset({"function", "kind", "le", "outcome", "queue", "stage", "where", "within"})


class RunCollector:
    """A Prometheus collector for the queues, stages and functions of a run, and its training step.

    Labels: ``queue``; ``stage`` and ``where``; ``function``, ``kind`` and ``within`` (the stage
    whose workers call the function, or nothing if the loop does).

    ======================================== ========= =============================================
    metric                                   kind      meaning
    ======================================== ========= =============================================
    aioqueue_queue_size                      gauge     elements in the queue
    aioqueue_queue_capacity                  gauge     most elements that it holds; absent if
                                                       unbounded
    aioqueue_queue_memory_bytes              gauge     of the elements in the queue
    aioqueue_queue_held                      gauge     elements that dequeues have taken which have
                                                       not ended
    aioqueue_queue_unfinished                gauge     elements enqueued without a `task_done` yet;
                                                       absent until one is called
    aioqueue_queue_enqueued_total            counter   elements enqueued
    aioqueue_queue_dequeued_total            counter   elements dequeued
    aioqueue_queue_enqueue_waiting           gauge     callers that wait to enqueue
    aioqueue_queue_dequeue_waiting           gauge     callers that wait to dequeue
    aioqueue_queue_longest_wait_seconds      gauge     wait of the longest-waiting caller
    aioqueue_queue_empty_seconds_total       counter   how long it was empty
    aioqueue_queue_full_seconds_total        counter   how long it was full
    aioqueue_queue_enqueue_wait_seconds      histogram waits of enqueues that had to wait
    aioqueue_queue_dequeue_wait_seconds      histogram waits of dequeues that had to wait
    aioqueue_stage_workers                   gauge     workers
    aioqueue_stage_items_total               counter   items, by ``outcome``: delivered or skipped
    aioqueue_stage_retried_total             counter   retried calls
    aioqueue_stage_in_flight                 gauge     items taken and not yet delivered
    aioqueue_stage_max_in_flight             gauge     most items in flight; absent if unbounded
    aioqueue_stage_starved_seconds_total     counter   workers waited for items, summed
    aioqueue_stage_blocked_seconds_total     counter   workers waited for room, summed
    aioqueue_stage_full_seconds_total        counter   ``max_in_flight`` or ``limit_bytes`` kept
                                                       further items out
    aioqueue_stage_bytes_full_seconds_total  counter   the part of it due to ``limit_bytes``
    aioqueue_stage_keys_full_seconds_total   counter   workers were idle while
                                                       ``concurrency_key`` deferred items
    aioqueue_stage_deaths_total              counter   workers that died and were replaced
    aioqueue_stage_service_seconds           histogram calls of the function
    aioqueue_stage_source_wait_seconds       histogram waits until the source yielded an item
    aioqueue_function_busy_seconds_total     counter   time in a function between stages
    aioqueue_function_service_seconds        histogram its calls
    aioqueue_step_batches_total              counter   batches handed over
    aioqueue_step_worked_seconds_total       counter   time in the body of the training loop
    aioqueue_step_waiting_seconds            gauge     current wait of the loop; 0 while it works
    aioqueue_step_wait_seconds               histogram waits of the loop for a batch
    ======================================== ========= =============================================

    Args:
        watched: the run, a monitor.
        labels: added to every metric, such as ``{"rank": "3"}`` to identify each process of a
            training job.

    Raises:
        ImportError: `prometheus_client` is not installed.
        InvalidArgumentError: a label has a name that Prometheus does not allow, or one of ours.
    """

    def __init__(self, watched: MonitoredRun, labels: Mapping[str, object] | None = None) -> None:
        _families()
        self._watched = watched
        self._labels = {
            name: str(value).encode("utf-8", "backslashreplace").decode()
            for name, value in checked_labels(labels, "labels").items()
        }
        for name in self._labels:
            if not _LABEL.fullmatch(name) or name in _OURS:
                raise InvalidArgumentError(
                    f"labels: got the name {name!r}; expected letters, digits and underscores, and"
                    f" none of {', '.join(sorted(_OURS))}"
                )

    def describe(self) -> Iterator[Any]:
        """Return the names of the metrics without reading any; the registry calls this."""
        for measure in MEASURES:
            yield self._family(measure)
        for distribution in DISTRIBUTIONS:
            yield self._histogram(distribution)

    def collect(self) -> Iterator[Any]:
        """Return the metric families; the registry calls this at every scrape."""
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
        return [*self._labels.values(), *map(on_one_line, labels.values())]


_LABELS: Final[dict[str, tuple[str, ...]]] = {
    "queue": ("queue",),
    "stage": ("stage", "where"),
    "function": ("function", "kind", "within"),
    "step": (),
}


def _name(name: str) -> str:
    return f"aioqueue_{name.replace('.', '_')}"


def _own_labels(name: str) -> tuple[str, ...]:
    """Return the label names of a measure, in the order in which it yields them."""
    of = _LABELS[name.split(".")[0]]
    return (*of, "outcome") if name == "stage.items" else of


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return cumulative buckets, as Prometheus expects."""
    from prometheus_client.utils import floatToGoString

    bounds = [*map(floatToGoString, BOUNDS), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))


def _families() -> Any:
    """Import and return the metric families of `prometheus_client`.

    Raises:
        ImportError: it is not installed.
    """
    try:
        from prometheus_client import core
    except ImportError as error:
        raise ImportError(
            f"metrics for Prometheus require prometheus_client: {extras.command_for('prometheus')}"
        ) from error
    return core
