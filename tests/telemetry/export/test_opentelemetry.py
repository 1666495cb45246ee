"""A run as OpenTelemetry's SDK collects it, in this process."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from aioqueue import InvalidArgumentError
from aioqueue.telemetry.export.metrics import DISTRIBUTIONS, MEASURES
from aioqueue.telemetry.export.opentelemetry import instrument
from tests.telemetry.fluid_model import Watching, generating, usual

sdk = pytest.importorskip("opentelemetry.sdk.metrics", reason="needs opentelemetry-sdk")
export = pytest.importorskip("opentelemetry.sdk.metrics.export")


def collected(watching: Watching, attributes: Any = None) -> dict[str, Any]:
    """What a reader collects, by the names of the instruments."""
    reader = export.InMemoryMetricReader()
    provider = sdk.MeterProvider(metric_readers=[reader])
    try:
        instrument(watching, provider.get_meter("of-a-test"), attributes)
        data = reader.get_metrics_data()
    finally:
        provider.shutdown()
    metrics = data.resource_metrics[0].scope_metrics[0].metrics
    return {metric.name: metric for metric in metrics}


def values(metric: Any) -> dict[frozenset[tuple[str, Any]], float]:
    return {frozenset(point.attributes.items()): point.value for point in metric.data.data_points}


def test_the_collected_values_are_those_of_the_snapshot() -> None:
    watching = usual(60)
    now = watching.now
    found = collected(watching)
    queue = now.queue("decode-queue")
    at = frozenset({("aioqueue.queue", "decode-queue")})
    assert values(found["aioqueue.queue.size"])[at] == queue.size
    assert values(found["aioqueue.queue.enqueued"])[at] == queue.enqueued
    assert values(found["aioqueue.queue.enqueue_wait.time"])[at] == queue.enqueue_waits.seconds
    assert values(found["aioqueue.queue.enqueue_wait.count"])[at] == queue.enqueue_waits.count
    stage = now.stage("decode")
    where = {("aioqueue.stage", "decode"), ("aioqueue.where", "thread")}
    assert values(found["aioqueue.stage.service.time"])[frozenset(where)] == stage.service.seconds
    delivered = frozenset({*where, ("aioqueue.outcome", "delivered")})
    assert values(found["aioqueue.stage.items"])[delivered] == stage.delivered
    assert now.steps is not None
    assert values(found["aioqueue.step.batches"])[frozenset()] == now.steps.steps


def test_a_generation_is_a_stage_with_more() -> None:
    found = collected(generating(10))
    at = frozenset({("aioqueue.stage", "grpo"), ("aioqueue.where", "task")})
    for name, value in (
        ("stage.in_flight", 24),
        ("generation.publish_lag", 1),
        ("generation.staleness", 80),
        ("generation.worst_staleness", 3),
        ("generation.waited_for_slots", 1.0),
    ):
        assert values(found[f"aioqueue.{name}"])[at] == pytest.approx(value)
    assert values(found["aioqueue.step.batches"])[frozenset()] == 10


def test_all_metrics_have_their_unit_and_kind() -> None:
    found = {**collected(usual(10)), **collected(generating(10))}
    expected = {f"aioqueue.{measure.name}" for measure in MEASURES}
    for distribution in DISTRIBUTIONS:
        expected |= {f"aioqueue.{distribution.name}.{end}" for end in ("time", "count")}
    assert set(found) == expected
    for measure in MEASURES:
        metric = found[f"aioqueue.{measure.name}"]
        assert metric.description == measure.meaning
        assert metric.unit == {"seconds": "s", "bytes": "By", "": "1"}[measure.unit]
        assert isinstance(metric.data, export.Sum if measure.is_counter else export.Gauge)
        if measure.is_counter:
            assert metric.data.is_monotonic
            assert metric.data.aggregation_temporality is export.AggregationTemporality.CUMULATIVE


def test_one_export_reads_one_snapshot() -> None:
    class Counting(Watching):
        read = 0

        def snapshot(self) -> Any:
            self.read += 1
            return super().snapshot()

    run = usual(5)
    watching = Counting([*run.history, run.now])
    collected(watching)
    assert 1 <= watching.read <= 3, "one, or a few where the machine is slow"


def test_attributes_distinguish_ranks() -> None:
    found = collected(usual(5), {"rank": 3})
    for metric in found.values():
        assert all(point.attributes["rank"] == 3 for point in metric.data.data_points)


@pytest.mark.parametrize(
    ("name", "value"),
    [("meter", 5), ("meter", "aioqueue"), ("attributes", 5), ("attributes", {3: 4})],
)
def test_wrong_arguments(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{name}: got .*; expected "):
        instrument(usual(10), **{name: value})


def test_without_a_meter_it_is_that_of_the_global_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from opentelemetry import metrics

    asked: list[str] = []

    def get_meter(name: str) -> Any:
        asked.append(name)
        return metrics.NoOpMeterProvider().get_meter(name)

    monkeypatch.setattr(metrics, "get_meter", get_meter)
    instrument(usual(3))
    assert asked == ["aioqueue"]


def test_without_the_package_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[opentelemetry\]'"):
        instrument(usual(3))
