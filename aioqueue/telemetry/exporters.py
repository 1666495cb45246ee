"""Exports the numbers of a run to TensorBoard, OpenTelemetry and Prometheus, by the same names.

`MEASURES` and `DISTRIBUTIONS` name each metric once; each exporter spells the names as is usual
there (``aioqueue.queue.size``, ``aioqueue_queue_size``).

OpenTelemetry has no asynchronous histograms, so each duration becomes two counters there:
``….time`` in seconds, and ``….count``. Its API comes with the extra ``opentelemetry``, that of
Prometheus with ``prometheus``. Every export reads the numbers of that moment; nothing is counted or
stored here. Several monitors may share a meter, registry or
writer: see `aioqueue.telemetry.side_by_side`.
"""

from __future__ import annotations

import logging
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Literal, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from aioqueue.base import extras
from aioqueue.base.arguments import checked_count, checked_labels
from aioqueue.base.display_text import on_one_line
from aioqueue.core.meters import BOUNDS, Histogram
from aioqueue.errors import InvalidArgumentError
from aioqueue.system.locks import synchronized
from aioqueue.telemetry.registry import MonitoredRun
from aioqueue.telemetry.side_by_side import (
    LOCK,
    SharedCollector,
    Shown,
    has_ended,
    in_place_of,
    numbered,
)
from aioqueue.telemetry.snapshots import (
    FunctionNumbers,
    QueueNumbers,
    Snapshot,
    StageNumbers,
    StepNumbers,
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

    Beside another open monitor of the same writer, its tags begin with ``data-2``, ``data-3``...

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
        self._watched = watched  # it lives as long as its sender
        self._writing = _ScalarWriting(watched, writer, checked_count(every, "every", least=1))

    def step(self, number: int | None = None) -> None:
        """Record that a training step has ended. The first failure of the writer is logged.

        Args:
            number: which step, from 0; `None` for the next one.
        """
        self._writing.step(number)

    def send(self, number: int) -> None:
        """Write the scalars of this moment as those of a step.

        Args:
            number: which step, from 0.
        """
        self._writing.send(number)


class _ScalarWriting:
    """The part of a sender that its monitor keeps. It keeps no monitor: that would be a circle."""

    def __init__(self, watched: MonitoredRun, writer: ScalarWriter, every: int) -> None:
        self._watched = weakref.ref(watched)
        self._writer = writer
        self._every = every
        self._step = 0
        self._has_failed = False
        self._group = _group_of_writer(watched, writer)

    def step(self, number: int | None = None) -> None:
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
        watched = self._watched()
        if watched is not None:
            for tag, value in watched.scalars().items():
                self._writer.add_scalar(self._group + tag.removeprefix("data"), value, number)


_writers: Final[WeakKeyDictionary[Any, list[Shown]]] = WeakKeyDictionary()


def _group_of_writer(watched: MonitoredRun, writer: ScalarWriter) -> str:
    """Return the first part of the tags of a run in a writer."""
    with LOCK:
        try:
            others = _writers.setdefault(writer, [])
        except TypeError:  # no weak references to it, or no hash
            return "data"
        # The records hold no monitor: a writer must not keep those alive that the user has dropped.
        alive = weakref.ref(watched)
        closed = getattr(watched, "_closed", None)

        def is_over() -> bool:
            return alive() is None or (closed is not None and closed.is_set())

        shown = numbered(Shown((), id(watched), is_over), others)
        others[:] = [*in_place_of(shown, others), shown]
    return "data" if shown.number == 1 else f"data-{shown.number}"


_UNITS: Final[dict[Unit, str]] = {"seconds": "s", "bytes": "By", "": "1"}
_FRESH: Final = 0.2
"""Seconds for which a snapshot is reused: an export reads all instruments one after another."""


def instrument(
    watched: MonitoredRun,
    meter: Any = None,
    attributes: Mapping[str, str | int | float | bool] | None = None,
) -> None:
    """Create instruments that read the numbers of a run, or add the run to those of the meter.

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
    meter = _default_meter(metrics) if meter is None else meter
    if not isinstance(meter, metrics.Meter):
        raise InvalidArgumentError(f"meter: got {meter!r}; expected a Meter of OpenTelemetry")
    common = checked_labels(attributes, "attributes")
    with LOCK:
        runs = _meters.get(meter)
        if runs is None:
            runs = _Runs(metrics.Observation)
            for name, kind, read, unit, meaning in runs.instruments():
                create = getattr(meter, f"create_observable_{kind}")
                create(name, callbacks=[read], unit=unit, description=meaning)
            _meters[meter] = runs  # last: a meter that fails gets its instruments the next time
        runs.add(watched, common)


_meters: Final[WeakKeyDictionary[Any, _Runs]] = WeakKeyDictionary()
_stand_ins: Final[list[Any]] = []


def _default_meter(metrics: Any) -> Any:
    """Return the meter named ``aioqueue`` of the global provider.

    Before there is a provider, it stands in for that of the provider to come, and then makes its
    instruments there. So it is the one to use afterwards, too.
    """
    meter = metrics.get_meter("aioqueue")
    with LOCK:
        if type(meter).__name__ == "_ProxyMeter" and not _stand_ins:
            _stand_ins.append(meter)
        return _stand_ins[0] if _stand_ins and isinstance(meter, metrics.Meter) else meter


_MOST_ENDED: Final = 100
"""How many monitors that have ended a meter goes on showing."""


class _Runs:
    """The runs that the instruments of one meter show. Thread-safe.

    OpenTelemetry keeps the first instrument of a name, and drops the callbacks of a second one. So
    there is one set of instruments per meter, and each observes all runs.

    Args:
        observation: makes an observation of a value and its attributes.
    """

    def __init__(self, observation: Callable[[float, Mapping[str, Any]], Any]) -> None:
        self._observation = observation
        self._shown: list[tuple[Shown, Mapping[str, Any], _Fresh]] = []

    def add(self, watched: MonitoredRun, common: Mapping[str, Any]) -> None:
        """Show a run, too, with these attributes."""
        key = frozenset((name, str(value)) for name, value in common.items())
        others = [shown for shown, _, _ in self._shown]
        shown = numbered(Shown(key, watched, lambda: has_ended(watched)), others)
        if shown.number > 1:
            common = {**common, "aioqueue.monitor": str(shown.number)}
        kept = in_place_of(shown, others)
        ended = [one for one in kept if one.has_ended()]
        dropped = ended[:-_MOST_ENDED]
        self._shown = [
            one for one in self._shown if any(one[0] is k for k in kept) and one[0] not in dropped
        ]
        self._shown.append((shown, common, _Fresh(watched)))

    def instruments(self) -> Iterator[tuple[str, str, Callable[[Any], Any], str, str]]:
        """Yield the name, kind, callback, unit and meaning of each instrument."""
        for measure in MEASURES:
            kind = "counter" if measure.is_counter else "gauge"
            unit = _UNITS[measure.unit]
            yield f"aioqueue.{measure.name}", kind, self._of(measure.read), unit, measure.meaning
        for distribution in DISTRIBUTIONS:
            for ending, number, unit in (
                ("time", _seconds_of(distribution), "s"),
                ("count", _count_of(distribution), "1"),
            ):
                name = f"aioqueue.{distribution.name}.{ending}"
                yield name, "counter", self._of(number), unit, distribution.meaning

    def _of(
        self, read: Callable[[Snapshot], Iterable[tuple[Labels, float]]]
    ) -> Callable[[Any], Iterable[Any]]:
        """Return the callback of an instrument."""

        def observe(options: Any) -> Iterable[Any]:
            return [
                self._observation(value, {**common, **_attributes(labels)})
                for _, common, fresh in self._shown
                for labels, value in read(fresh.snapshot())
            ]

        return observe


def _attributes(labels: Labels) -> dict[str, str]:
    return {f"aioqueue.{name}": on_one_line(label) for name, label in labels.items()}


def _seconds_of(distribution: Distribution) -> Callable[[Snapshot], _Values]:
    def read(snapshot: Snapshot) -> _Values:
        for labels, histogram in distribution.read(snapshot):
            yield labels, histogram.seconds

    return read


def _count_of(distribution: Distribution) -> Callable[[Snapshot], _Values]:
    def read(snapshot: Snapshot) -> _Values:
        for labels, histogram in distribution.read(snapshot):
            yield labels, histogram.count

    return read


class _Fresh:
    """Shares one snapshot among the instruments of an export. Thread-safe."""

    def __init__(self, watched: MonitoredRun) -> None:
        self._watched = watched
        self._lock = threading.RLock()  # guards all below
        self._latest: Snapshot | None = None
        self._until = 0.0

    @synchronized
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
_OURS: Final = frozenset(
    {"function", "kind", "le", "monitor", "outcome", "queue", "stage", "where", "within"}
)


class RunCollector(SharedCollector):
    """A Prometheus collector for the queues, stages and functions of a run, and its training step.

    Labels: ``queue``; ``stage`` and ``where``; ``function``, ``kind`` and ``within`` (the stage
    whose workers call the function, or nothing if the loop does). A registry takes any number of
    them: beside another open monitor with the same ``labels``, one also has ``monitor="2"``.

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
        super().__init__()
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

    def _shows(self) -> list[Shown]:
        labels = frozenset(self._labels.items())
        return [Shown(labels, self._watched, lambda: has_ended(self._watched))]

    def _families(self, numbers: list[int]) -> Iterator[Any]:
        (number,) = numbers
        snapshot = self._watched.snapshot() if number else None
        common = {**self._labels, **({"monitor": str(number)} if number > 1 else {})}
        for measure in MEASURES:
            family = self._family(measure, common)
            for labels, value in () if snapshot is None else measure.read(snapshot):
                family.add_metric(_values(common, labels), value)
            yield family
        for distribution in DISTRIBUTIONS:
            family = self._histogram(distribution, common)
            for labels, histogram in () if snapshot is None else distribution.read(snapshot):
                buckets = _buckets(histogram)
                family.add_metric(_values(common, labels), buckets, histogram.seconds)
            yield family

    def _family(self, measure: Measure, common: Labels) -> Any:
        families = _families()
        kind = families.CounterMetricFamily if measure.is_counter else families.GaugeMetricFamily
        unit = f"_{measure.unit}" if measure.unit else ""
        return kind(
            f"{_name(measure.name)}{unit}",
            measure.meaning,
            labels=[*common, *_own_labels(measure.name)],
        )

    def _histogram(self, distribution: Distribution, common: Labels) -> Any:
        return _families().HistogramMetricFamily(
            f"{_name(distribution.name)}_seconds",
            distribution.meaning,
            labels=[*common, *_own_labels(distribution.name)],
        )


def _values(common: Labels, labels: Labels) -> list[str]:
    return [*common.values(), *map(on_one_line, labels.values())]


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
