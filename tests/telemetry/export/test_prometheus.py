"""A run as Prometheus sees it: scraped from an endpoint, and read by its own parser."""

from __future__ import annotations

import re
import sys
import urllib.request
from typing import Any

import pytest

from aioqueue import InvalidArgumentError, sync
from aioqueue.core.meters import BOUNDS
from aioqueue.inputs import prepare
from aioqueue.telemetry.export.metrics import DISTRIBUTIONS, MEASURES
from aioqueue.telemetry.export.prometheus import RunCollector
from tests.telemetry.fluid_model import Stage, Watching, generating, history, usual

prometheus_client = pytest.importorskip("prometheus_client", reason="needs the extra `prometheus`")


def scraped(*collectors: RunCollector) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What a scrape of an endpoint gets."""
    from prometheus_client.parser import text_string_to_metric_families

    registry = prometheus_client.CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry=registry)
    try:
        port = server.server_address[1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            page = answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return (f"aioqueue_{name}", frozenset(labels.items()))


def test_the_scraped_values_are_those_of_the_snapshot() -> None:
    watching = usual(60)
    now = watching.now
    assert now.steps is not None
    found = scraped(RunCollector(watching))
    queue = now.queue("decode-queue")
    at = {"queue": "decode-queue"}
    assert found[key("queue_size", **at)] == queue.size
    assert found[key("queue_capacity", **at)] == 64
    assert found[key("queue_memory_bytes", **at)] == queue.bytes
    assert found[key("queue_enqueued_total", **at)] == queue.enqueued
    assert found[key("queue_dequeued_total", **at)] == queue.dequeued
    assert found[key("queue_held", **at)] == queue.held
    assert found[key("queue_unfinished", **at)] == queue.unfinished
    assert found[key("queue_full_seconds_total", **at)] == queue.seconds_full
    assert found[key("queue_longest_wait_seconds", **at)] == 0
    assert found[key("queue_dequeue_wait_seconds_sum", **at)] == queue.dequeue_waits.seconds
    assert found[key("queue_dequeue_wait_seconds_count", **at)] == queue.dequeue_waits.count
    stage = now.stage("decode")
    at = {"stage": "decode", "where": "thread"}
    assert found[key("stage_workers", **at)] == 4
    assert found[key("stage_items_total", outcome="delivered", **at)] == stage.delivered
    assert found[key("stage_items_total", outcome="skipped", **at)] == stage.skipped
    assert found[key("stage_service_seconds_sum", **at)] == stage.service.seconds
    assert found[key("stage_starved_seconds_total", **at)] == stage.starved
    assert found[key("stage_blocked_seconds_total", **at)] == stage.blocked
    (function,), at = now.functions, {"function": "my_collate", "kind": "batch", "within": ""}
    assert found[key("function_busy_seconds_total", **at)] == function.busy > 0
    assert found[key("function_service_seconds_count", **at)] == function.service.count > 0
    assert found[key("step_batches_total")] == now.steps.steps
    assert found[key("step_wait_seconds_sum")] == now.steps.waits.seconds
    assert found[key("step_waiting_seconds")] == 0


def test_a_generation_is_a_stage_with_more() -> None:
    found = scraped(RunCollector(generating(10)))
    at = {"stage": "grpo", "where": "task"}
    assert found[key("stage_in_flight", **at)] == 24
    assert found[key("stage_max_in_flight", **at)] == 32
    assert found[key("generation_version", **at)] == 9
    assert found[key("generation_publish_lag", **at)] == 1
    assert found[key("generation_ready", **at)] == 5
    assert found[key("generation_existing", **at)] == 16
    assert found[key("generation_groups_total", **at)] == 80
    assert found[key("generation_staleness_total", **at)] == 80
    assert found[key("generation_worst_staleness", **at)] == 3
    assert found[key("generation_waited_for_slots_seconds_total", **at)] == pytest.approx(1.0)
    assert found[key("generation_waited_at_gate_seconds_total", **at)] == pytest.approx(0.2)
    assert found[key("generation_publishing_seconds_total", **at)] == pytest.approx(0.4)
    assert found[key("step_batches_total")] == 10
    assert found[key("step_wait_seconds_sum")] == pytest.approx(4.0)


def test_buckets_are_cumulative() -> None:
    watching = usual(60)
    service = watching.now.stage("decode").service
    at = {"stage": "decode", "where": "thread"}
    found = scraped(RunCollector(watching))
    buckets = {
        float(dict(labels)["le"]): value
        for (name, labels), value in found.items()
        if name == "aioqueue_stage_service_seconds_bucket" and set(at.items()) <= labels
    }
    assert sorted(buckets) == [*BOUNDS, float("inf")]
    values = [buckets[bound] for bound in sorted(buckets)]
    assert values == sorted(values)
    assert values[-1] == service.count
    assert values[12] == sum(service.counts[:13])


def test_names_that_are_equal_when_escaped_stay_distinct() -> None:
    """Prometheus refuses a scrape with two equal series."""
    queues = [sync.FIFOQueue(4, name=name) for name in ("a\nb", "a\\nb", "\ud800")]
    with sync.Coordinator() as coord, coord.monitor() as monitor:
        for queue in queues:
            coord.start(prepare(range(2), abs, into=queue, workers=1))
            assert list(queue) == [0, 1]
        registry = prometheus_client.CollectorRegistry()
        registry.register(monitor.prometheus({"rank": "half a character: \ud800"}))
        page = prometheus_client.generate_latest(registry).decode()
    sizes = [line for line in page.splitlines() if line.startswith("aioqueue_queue_size{")]
    assert len(set(sizes)) == 3


def test_labels_distinguish_ranks() -> None:
    run = usual(10)
    found = [scraped(RunCollector(run, {"rank": rank, "job": "x"})) for rank in range(2)]
    for rank, samples in enumerate(found):
        assert all({("rank", str(rank)), ("job", "x")} <= labels for _, labels in samples)


@pytest.mark.parametrize("labels", [5, "rank", [("rank", 3)], {3: "rank"}])
def test_labels_must_be_a_mapping(labels: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^labels: got .*; expected (a mapping|text)"):
        RunCollector(usual(10), labels)


@pytest.mark.parametrize("name", ["queue", "le", "__rank", "my rank", ""])
def test_invalid_label_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^labels: got the name "):
        RunCollector(usual(3), {name: "1"})


def test_absent_values_are_left_out() -> None:
    run = Watching(history([Stage("decode", capacity=None)], seconds=3, loop=False))
    names = {name for name, _ in scraped(RunCollector(run))}
    assert "aioqueue_queue_size" in names
    assert "aioqueue_queue_capacity" not in names
    assert not [name for name in names if name.startswith("aioqueue_step")]


def test_registering_reads_nothing() -> None:
    class Never(Watching):
        def snapshot(self) -> Any:
            raise AssertionError("read")

    run = usual(3)
    registry = prometheus_client.CollectorRegistry()
    registry.register(RunCollector(Never([*run.history, run.now])))
    registry.register(RunCollector(Never([*run.history, run.now]), {"rank": 1}))
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(prometheus_client.Gauge("aioqueue_queue_size", "ours", registry=None))


def test_the_docstring_lists_all_metrics() -> None:
    documented = set(re.findall(r"^ *(aioqueue_\w+) ", RunCollector.__doc__ or "", re.MULTILINE))
    documented = {
        f"aioqueue_{measure.name.replace('.', '_')}"
        + (f"_{measure.unit}" if measure.unit else "")
        + ("_total" if measure.is_counter else "")
        for measure in MEASURES
    }
    documented |= {f"aioqueue_{one.name.replace('.', '_')}_seconds" for one in DISTRIBUTIONS}
    assert documented == documented


def test_without_the_package_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[prometheus\]'"):
        RunCollector(usual(3))
