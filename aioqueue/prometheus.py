"""The statistics of batchers for Prometheus: a collector for `prometheus_client`.

That package is an extra: ``pip install '.[prometheus]'``. The collector keeps no counts of
its own. Each scrape reads the statistics of the batchers at that moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from typing import Any, Final

import aioqueue
from aioqueue import sync
from aioqueue.base import extras
from aioqueue.base.display_text import on_one_line
from aioqueue.telemetry.export.numbering import Exported
from aioqueue.telemetry.export.shared_collector import SharedCollector

__all__ = ("BatcherCollector",)

_OUTCOMES: Final = ("answered", "failed", "cancelled", "refused", "rejected")


class BatcherCollector(SharedCollector):
    """Metrics of batchers, each with the label ``batcher``, its name.

    A registry takes any number of them: beside another open batcher of the same name, one also has
    ``monitor="2"``.

    ======================================== ========= =============================================
    metric                                   kind      meaning
    ======================================== ========= =============================================
    aioqueue_batcher_requests_total          counter   calls that have ended, by ``outcome``:
                                                       answered, failed, cancelled, refused
                                                       for lack of room, or rejected by ``check``
    aioqueue_batcher_waiting                 gauge     requests that wait for a batch
    aioqueue_batcher_waiting_for_room        gauge     callers that wait for room in the queue
    aioqueue_batcher_capacity                gauge     requests that may wait; +Inf: no bound
    aioqueue_batcher_in_flight               gauge     requests that the function works on
    aioqueue_batcher_batch_size              histogram requests per batch
    aioqueue_batcher_latency_seconds         histogram from call to answer
    aioqueue_batcher_queue_seconds_total     counter   from call to batch, over all requests
    aioqueue_batcher_function_seconds_total  counter   in the function, over all batches
    aioqueue_batcher_workers_died_total      counter   worker processes that have died
    aioqueue_batcher_retried_total           counter   requests tried one by one after their batch
    ======================================== ========= =============================================

    Args:
        batchers: the batchers, as either of their faces; their names must differ.

    Raises:
        ImportError: `prometheus_client` is not installed.
        InvalidArgumentError: an argument is not a batcher, or two batchers have the same name.
    """

    def __init__(self, *batchers: aioqueue.Batcher[Any, Any] | sync.Batcher[Any, Any]) -> None:
        _families()
        super().__init__()
        for batcher in batchers:
            if not isinstance(batcher, aioqueue.Batcher | sync.Batcher):
                raise aioqueue.InvalidArgumentError(
                    f"batchers: got {batcher!r}; expected an aioqueue.Batcher"
                )
        names = [batcher.name for batcher in batchers]
        if len(set(names)) < len(names):
            raise aioqueue.InvalidArgumentError(
                f"batchers: got the names {names}; expected different ones (`name=`)"
            )
        self._batchers = batchers

    def _exported(self) -> list[Exported]:
        return [
            Exported(batcher.name, batcher._core, partial(_is_over, batcher))
            for batcher in self._batchers
        ]

    def _families(self, numbers: list[int]) -> Iterator[Any]:
        records = [
            (
                {"batcher": on_one_line(batcher.name)}
                | ({"monitor": str(number)} if number > 1 else {}),
                batcher.statistics(),
            )
            for batcher, number in zip(self._batchers, numbers, strict=True)
            if number
        ]
        yield from _counters(records)
        yield from _gauges(records)
        yield from _histograms(records)


def _is_over(batcher: aioqueue.Batcher[Any, Any] | sync.Batcher[Any, Any]) -> bool:
    return batcher._core.state.value in ("closed", "failed")


Records = list[tuple[dict[str, str], aioqueue.BatcherStatistics]]


def _counters(records: Records) -> Iterator[Any]:
    counter = _families().CounterMetricFamily
    requests = counter("aioqueue_batcher_requests", "Calls that have ended.")
    queue = counter("aioqueue_batcher_queue_seconds", "From call to batch.")
    function = counter("aioqueue_batcher_function_seconds", "In the function.")
    died = counter("aioqueue_batcher_workers_died", "Worker processes that have died.")
    retried = counter("aioqueue_batcher_retried", "Requests tried one by one after their batch.")
    for labels, record in records:
        for outcome in _OUTCOMES:
            _add(requests, {**labels, "outcome": outcome}, getattr(record, outcome))
        _add(queue, labels, record.queue_seconds)
        _add(function, labels, record.function_seconds)
        _add(died, labels, record.workers_died)
        _add(retried, labels, record.retried)
    yield from (requests, queue, function, died, retried)


def _gauges(records: Records) -> Iterator[Any]:
    meanings = {
        "waiting": "Requests that wait for a batch.",
        "waiting_for_room": "Callers that wait for room in the queue.",
        "capacity": "Requests that may wait.",
        "in_flight": "Requests that the function works on.",
    }
    for field, meaning in meanings.items():
        gauge = _families().GaugeMetricFamily(f"aioqueue_batcher_{field}", meaning)
        for labels, record in records:
            value = getattr(record, field)
            _add(gauge, labels, float("inf") if value is None else value)
        yield gauge


def _histograms(records: Records) -> Iterator[Any]:
    histogram = _families().HistogramMetricFamily
    sizes = histogram("aioqueue_batcher_batch_size", "Requests per batch.")
    latency = histogram("aioqueue_batcher_latency_seconds", "From call to answer.")
    for labels, record in records:
        total = sum(size * count for size, count in record.batch_sizes.items())
        _add(sizes, labels, _buckets(_by_powers_of_two(record.batch_sizes)), total)
        _add(latency, labels, _buckets(record.latencies), record.latency_seconds)
    yield from (sizes, latency)


def _add(family: Any, labels: dict[str, str], *values: Any) -> None:
    """Add a metric with labels of its own: not all have the same ones."""
    family._labelnames = tuple(labels)
    family.add_metric(list(labels.values()), *values)


def _by_powers_of_two(sizes: Mapping[int, int]) -> dict[float, int]:
    """Return batch counts in buckets of 1, 2, 4 up to 1024. Prometheus needs constant buckets."""
    bounds: Iterable[float] = (*(2.0**power for power in range(11)), float("inf"))
    counts: dict[float, int] = {}
    lower = 0.0
    for bound in bounds:
        counts[bound] = sum(count for size, count in sizes.items() if lower < size <= bound)
        lower = bound
    return counts


def _buckets(counts: Mapping[float, int]) -> list[tuple[str, float]]:
    """Return cumulative buckets, as Prometheus counts them: each includes the smaller ones."""
    floats = _floats()
    return [
        (floats(bound), float(count))
        for bound, count in zip(counts, accumulate(counts.values()), strict=True)
    ]


def _families() -> Any:
    """Import and return `prometheus_client`.

    Raises:
        ImportError: it is not installed.
    """
    try:
        from prometheus_client import core
    except ImportError as error:
        raise ImportError(
            f"BatcherCollector needs prometheus_client: {extras.command_for('prometheus')}"
        ) from error
    return core


def _floats() -> Any:
    from prometheus_client.utils import floatToGoString

    return floatToGoString
