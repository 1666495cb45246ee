"""A collector for Prometheus that reads the numbers of a run.

The client library comes with the extra ``prometheus``. Every scrape reads the numbers of that
moment; nothing is counted or stored here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, Final

from aioqueue.base import extras
from aioqueue.base.arguments import checked_labels
from aioqueue.base.display_text import on_one_line
from aioqueue.core.meters import BOUNDS, Histogram
from aioqueue.errors import InvalidArgumentError
from aioqueue.telemetry.export.metrics import DISTRIBUTIONS, MEASURES, Distribution, Labels, Measure
from aioqueue.telemetry.export.numbering import Exported, has_ended
from aioqueue.telemetry.export.shared_collector import SharedCollector
from aioqueue.telemetry.verdict.monitored_run import MonitoredRun

_LABEL_PATTERN: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_RESERVED_LABELS: Final = frozenset(
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

    Where calls are quick, the histograms of calls are made of samples, each with the weight of
    those that it stands for. So their count is about the number of calls;
    ``aioqueue_stage_items_total`` is exact.

    The generation of a `RolloutQueue` is a stage, with its queue's name, and has further metrics:

    ================================================== ======= =====================================
    metric                                             kind    meaning
    ================================================== ======= =====================================
    aioqueue_generation_version                        gauge   steps in the published weights
    aioqueue_generation_publish_lag                    gauge   steps handed out, minus the version
    aioqueue_generation_ready                          gauge   groups that wait to be handed out
    aioqueue_generation_existing                       gauge   groups that have a slot
    aioqueue_generation_groups_total                   counter groups handed out
    aioqueue_generation_staleness_total                counter their staleness, added up
    aioqueue_generation_worst_staleness                gauge   the highest of a group
    aioqueue_generation_waited_for_slots_seconds_total counter nothing ran, for want of slots
    aioqueue_generation_waited_at_gate_seconds_total   counter nothing ran: weights were published
    aioqueue_generation_publishing_seconds_total       counter weights were published
    ================================================== ======= =====================================

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
            if not _LABEL_PATTERN.fullmatch(name) or name in _RESERVED_LABELS:
                raise InvalidArgumentError(
                    f"labels: got the name {name!r}; expected letters, digits and underscores, and"
                    f" none of {', '.join(sorted(_RESERVED_LABELS))}"
                )

    def _exported(self) -> list[Exported]:
        labels = frozenset(self._labels.items())
        return [Exported(labels, self._watched, lambda: has_ended(self._watched))]

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
            labels=[*common, *_label_names(measure.name)],
        )

    def _histogram(self, distribution: Distribution, common: Labels) -> Any:
        return _families().HistogramMetricFamily(
            f"{_name(distribution.name)}_seconds",
            distribution.meaning,
            labels=[*common, *_label_names(distribution.name)],
        )


def _values(common: Labels, labels: Labels) -> list[str]:
    return [*common.values(), *map(on_one_line, labels.values())]


_LABELS_BY_PART: Final[dict[str, tuple[str, ...]]] = {
    "queue": ("queue",),
    "stage": ("stage", "where"),
    "generation": ("stage", "where"),
    "function": ("function", "kind", "within"),
    "step": (),
}


def _name(name: str) -> str:
    return f"aioqueue_{name.replace('.', '_')}"


def _label_names(name: str) -> tuple[str, ...]:
    """Return the label names of a measure, in the order in which it yields them."""
    of = _LABELS_BY_PART[name.split(".")[0]]
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
