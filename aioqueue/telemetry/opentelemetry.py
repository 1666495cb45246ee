"""What a run does, for OpenTelemetry: asynchronous instruments, which are read when it exports.

The API comes with the extra: ``pip install 'aioqueue[opentelemetry]'``; what is exported where is
for the application to set up. Names are as ``aioqueue.queue.size``, with the attributes
``aioqueue.queue``, ``aioqueue.stage``, ``aioqueue.where`` and ``aioqueue.outcome``, and, of
functions between stages, ``aioqueue.function``, ``aioqueue.kind`` and ``aioqueue.within``. There
are no asynchronous histograms: durations come as two counters, ``….time`` in seconds and
``….count``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from aioqueue.locks import guarded
from aioqueue.telemetry.measures import DISTRIBUTIONS, MEASURES, Distribution, Labels, Measure, Unit
from aioqueue.telemetry.numbers import Snapshot
from aioqueue.telemetry.watched import Watched

__all__ = ("instrument",)

_UNITS: Final[dict[Unit, str]] = {"seconds": "s", "bytes": "By", "": "1"}
_FRESH: Final = 0.2
"""Seconds for which a snapshot is good: all instruments are read in a row, one by one."""


def instrument(
    watched: Watched,
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

    def __init__(self, watched: Watched) -> None:
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
