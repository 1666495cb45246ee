"""Exports the numbers of a run to Prometheus: a collector for `prometheus_client`.

That package comes with the extra ``prometheus``. Each scrape reads the numbers of that moment. The
metrics have the names of `aioqueue.telemetry.exporters`, spelled as is usual in Prometheus.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, Final

from aioqueue import extras
from aioqueue.errors import InvalidArgumentError
from aioqueue.telemetry.exporters import DISTRIBUTIONS, MEASURES, Distribution, Labels, Measure
from aioqueue.telemetry.metrics import BOUNDS, Histogram, Snapshot
from aioqueue.telemetry.registry import MonitoredRun

__all__ = ("RunCollector",)

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
        self._labels = {name: str(value) for name, value in (labels or {}).items()}
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
