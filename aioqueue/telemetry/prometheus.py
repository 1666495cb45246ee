"""What a run does, for Prometheus: a collector for the registry of `prometheus_client`.

That package comes with the extra: ``pip install 'aioqueue[prometheus]'``. Nothing is counted twice
and nothing is kept here: a scrape reads the numbers of that moment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, Final

from aioqueue.errors import InvalidArgumentError
from aioqueue.telemetry.measures import DISTRIBUTIONS, MEASURES, Distribution, Labels, Measure
from aioqueue.telemetry.numbers import BOUNDS, Histogram, Snapshot
from aioqueue.telemetry.watched import Watched

__all__ = ("RunCollector",)

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
    aioqueue_stage_in_flight_limit           gauge     items that may be; none where there is no
                                                       bound
    aioqueue_stage_starved_seconds_total     counter   that workers waited for an item, over all
    aioqueue_stage_blocked_seconds_total     counter   that workers waited for room, over all
    aioqueue_stage_full_seconds_total        counter   no more items were let in, for ``limit`` or
                                                       ``limit_bytes``
    aioqueue_stage_bytes_full_seconds_total  counter   the part of these for ``limit_bytes``
    aioqueue_stage_keys_full_seconds_total   counter   workers had nothing to do beside items put
                                                       aside by ``limit_per``
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

    def __init__(self, watched: Watched, labels: Mapping[str, object] | None = None) -> None:
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
