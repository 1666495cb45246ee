"""Instruments of OpenTelemetry that read the numbers of runs.

OpenTelemetry has no asynchronous histograms, so each duration becomes two counters:
``….time`` in seconds, and ``….count``. The API comes with the extra ``opentelemetry``. Every export
reads the numbers of that moment; nothing is counted or stored here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from aioqueue.base import extras
from aioqueue.base.arguments import checked_labels
from aioqueue.base.display_text import on_one_line
from aioqueue.errors import InvalidArgumentError
from aioqueue.system.locks import synchronized
from aioqueue.telemetry.export.metrics import (
    DISTRIBUTIONS,
    MEASURES,
    Distribution,
    Labels,
    Unit,
    Values,
)
from aioqueue.telemetry.export.numbering import (
    LOCK,
    Exported,
    has_ended,
    with_number,
    without_replaced,
)
from aioqueue.telemetry.metrics.snapshots import Snapshot
from aioqueue.telemetry.verdict.monitored_run import MonitoredRun

_UNITS: Final[dict[Unit, str]] = {"seconds": "s", "bytes": "By", "": "1"}
_REUSED_SECONDS: Final = 0.2
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
    metrics = _opentelemetry_metrics()
    meter = _default_meter(metrics) if meter is None else meter
    if not isinstance(meter, metrics.Meter):
        raise InvalidArgumentError(f"meter: got {meter!r}; expected a Meter of OpenTelemetry")
    common = checked_labels(attributes, "attributes")
    with LOCK:
        runs = _meters.get(meter)
        if runs is None:
            runs = _ExportedRuns(metrics.Observation)
            for name, kind, read, unit, meaning in runs.instruments():
                create = getattr(meter, f"create_observable_{kind}")
                create(name, callbacks=[read], unit=unit, description=meaning)
            _meters[meter] = runs  # last: a meter that fails gets its instruments the next time
        runs.add(watched, common)


_meters: Final[WeakKeyDictionary[Any, _ExportedRuns]] = WeakKeyDictionary()
_proxy_meters: Final[list[Any]] = []


def _default_meter(metrics: Any) -> Any:
    """Return the meter named ``aioqueue`` of the global provider.

    Before there is a provider, it stands in for that of the provider to come, and then makes its
    instruments there. So it is the one to use afterwards, too.
    """
    meter = metrics.get_meter("aioqueue")
    with LOCK:
        if type(meter).__name__ == "_ProxyMeter" and not _proxy_meters:
            _proxy_meters.append(meter)
        return _proxy_meters[0] if _proxy_meters and isinstance(meter, metrics.Meter) else meter


_MOST_ENDED_RUNS: Final = 100
"""How many monitors that have ended a meter goes on showing."""


class _ExportedRuns:
    """The runs that the instruments of one meter show. Thread-safe.

    OpenTelemetry keeps the first instrument of a name, and drops the callbacks of a second one. So
    there is one set of instruments per meter, and each observes all runs.

    Args:
        observation: makes an observation of a value and its attributes.
    """

    def __init__(self, observation: Callable[[float, Mapping[str, Any]], Any]) -> None:
        self._observation = observation
        self._exported_runs: list[tuple[Exported, Mapping[str, Any], _SharedSnapshot]] = []

    def add(self, watched: MonitoredRun, common: Mapping[str, Any]) -> None:
        """Show a run, too, with these attributes."""
        key = frozenset((name, str(value)) for name, value in common.items())
        others = [shown for shown, _, _ in self._exported_runs]
        shown = with_number(Exported(key, watched, lambda: has_ended(watched)), others)
        if shown.number > 1:
            common = {**common, "aioqueue.monitor": str(shown.number)}
        kept = without_replaced(shown, others)
        ended = [one for one in kept if one.has_ended()]
        dropped = ended[:-_MOST_ENDED_RUNS]
        self._exported_runs = [
            one
            for one in self._exported_runs
            if any(one[0] is k for k in kept) and one[0] not in dropped
        ]
        self._exported_runs.append((shown, common, _SharedSnapshot(watched)))

    def instruments(self) -> Iterator[tuple[str, str, Callable[[Any], Any], str, str]]:
        """Yield the name, kind, callback, unit and meaning of each instrument."""
        for measure in MEASURES:
            kind = "counter" if measure.is_counter else "gauge"
            unit = _UNITS[measure.unit]
            name, read = f"aioqueue.{measure.name}", self._callback(measure.read)
            yield name, kind, read, unit, measure.meaning
        for distribution in DISTRIBUTIONS:
            for ending, number, unit in (
                ("time", _seconds_of(distribution), "s"),
                ("count", _count_of(distribution), "1"),
            ):
                name = f"aioqueue.{distribution.name}.{ending}"
                yield name, "counter", self._callback(number), unit, distribution.meaning

    def _callback(
        self, read: Callable[[Snapshot], Iterable[tuple[Labels, float]]]
    ) -> Callable[[Any], Iterable[Any]]:
        def observe(options: Any) -> Iterable[Any]:
            return [
                self._observation(value, {**common, **_attributes(labels)})
                for _, common, shared in self._exported_runs
                for labels, value in read(shared.snapshot())
            ]

        return observe


def _attributes(labels: Labels) -> dict[str, str]:
    return {f"aioqueue.{name}": on_one_line(label) for name, label in labels.items()}


def _seconds_of(distribution: Distribution) -> Callable[[Snapshot], Values]:
    def read(snapshot: Snapshot) -> Values:
        for labels, histogram in distribution.read(snapshot):
            yield labels, histogram.seconds

    return read


def _count_of(distribution: Distribution) -> Callable[[Snapshot], Values]:
    def read(snapshot: Snapshot) -> Values:
        for labels, histogram in distribution.read(snapshot):
            yield labels, histogram.count

    return read


class _SharedSnapshot:
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
            self._until = now + _REUSED_SECONDS
        return self._latest


def _opentelemetry_metrics() -> Any:
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
