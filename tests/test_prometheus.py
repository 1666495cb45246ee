"""The metrics of batchers, as `prometheus_client` renders them and reads them back."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.prometheus import BatcherCollector
from tests.batcher.models import Model

prometheus_client = pytest.importorskip("prometheus_client", reason="needs the extra `prometheus`")


def scraped(collector: BatcherCollector) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return a scrape, rendered as text and parsed by Prometheus's parser."""
    from prometheus_client.parser import text_string_to_metric_families

    registry = prometheus_client.CollectorRegistry()
    registry.register(collector)
    page = prometheus_client.generate_latest(registry).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return (f"aioqueue_batcher_{name}", frozenset({"batcher": "scores", **labels}.items()))


def test_a_scrape_equals_the_statistics() -> None:
    queue = aioqueue.FIFOQueue(7)
    model = Model("task")

    async def main() -> None:
        async with aioqueue.Batcher(model.function, 4, 0, queue=queue, name="scores") as batcher:
            await asyncio.gather(*[batcher(number) for number in range(10)])
            await asyncio.gather(batcher("boom"), return_exceptions=True)
            record = batcher.statistics()
            found = scraped(BatcherCollector(batcher))
        assert found[key("requests_total", outcome="answered")] == 10
        assert found[key("requests_total", outcome="failed")] == 1
        assert found[key("requests_total", outcome="cancelled")] == 0
        assert found[key("requests_total", outcome="refused")] == 0
        assert found[key("waiting")] == found[key("waiting_for_room")] == 0
        assert found[key("in_flight")] == 0
        assert found[key("capacity")] == 7
        assert found[key("queue_seconds_total")] == record.queue_seconds
        assert found[key("function_seconds_total")] == record.function_seconds
        assert found[key("workers_died_total")] == record.workers_died
        assert found[key("batch_size_sum")] == 11
        assert found[key("batch_size_count")] == record.batches
        assert found[key("batch_size_bucket", le="4.0")] == record.batches
        assert found[key("batch_size_bucket", le="1.0")] == record.batch_sizes[1]
        assert found[key("latency_seconds_count")] == 11
        assert found[key("latency_seconds_sum")] == record.latency_seconds
        assert found[key("latency_seconds_bucket", le="+Inf")] == 11
        assert found[key("latency_seconds_bucket", le="0.001")] == record.latencies[0.001]

    asyncio.run(main())


def test_several_batchers_of_either_face_and_one_without_a_bound() -> None:
    model = Model("thread")
    unbounded = sync.Batcher(model.function, queue=sync.FIFOQueue(None), name="scores")
    found = scraped(BatcherCollector(unbounded, aioqueue.Batcher(model.function, name="other")))
    assert found[key("capacity")] == float("inf")
    assert found[key("capacity", batcher="other")] == 1024


@pytest.mark.parametrize(
    ("batchers", "message"),
    [
        ([3], "batchers: got 3; expected an aioqueue.Batcher"),
        (
            [aioqueue.Batcher(list, name="same"), sync.Batcher(list, name="same")],
            r"batchers: got the names \['same', 'same'\]; expected different ones",
        ),
    ],
)
def test_wrong_arguments_are_refused(batchers: list[Any], message: str) -> None:
    with pytest.raises(aioqueue.InvalidArgumentError, match=message):
        BatcherCollector(*batchers)


def test_a_missing_package_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[prometheus\]'"):
        BatcherCollector()


def test_a_name_that_cannot_be_encoded_hides_nothing_else() -> None:
    name = "lone\ud800\x1b[2J ftp://user:hunter2@host"
    answering: sync.Batcher[int, int] = sync.Batcher(list, name=name)
    with answering as batcher:
        labels = {label for _, labels in scraped(BatcherCollector(batcher)) for label in labels}
    names = {value for name, value in labels if name == "batcher"}
    assert names == {r"lone\ud800\x1b[2J ftp://user:***@host"}
