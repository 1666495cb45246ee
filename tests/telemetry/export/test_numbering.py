"""A second monitor is a monitor: no exporter loses it, or mixes it up with another.

The generator opens and closes monitors at random, with equal and with different labels, on several
registries, meters and writers. A model says which labels each must have: beside another open one
the smallest free number, and after that one has ended the same labels as before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from aioqueue import Batcher, Monitor, sync
from aioqueue.inputs import numbers
from aioqueue.prometheus import BatcherCollector
from aioqueue.telemetry.views.trace import Trace

prometheus_client = pytest.importorskip("prometheus_client", reason="needs the extra `prometheus`")
parser = pytest.importorskip("prometheus_client.parser")
sdk = pytest.importorskip("opentelemetry.sdk.metrics", reason="needs opentelemetry-sdk")
export = pytest.importorskip("opentelemetry.sdk.metrics.export")

Seen = dict[frozenset[tuple[str, str]], float]


class Registry:
    """A registry of Prometheus, read by its page."""

    mark = "monitor"

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()

    def add(self, monitor: Monitor, labels: Mapping[str, str]) -> Any:
        collector = monitor.prometheus(labels)
        self.registry.register(collector)
        return collector

    def seen(self) -> Seen:
        page = prometheus_client.generate_latest(self.registry).decode()
        kinds = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
        assert len(kinds) == len(set(kinds)), "all lines of a metric have to be together"
        found: Seen = {}
        for family in parser.text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name == "aioqueue_step_batches_total":
                    key = frozenset(sample.labels.items())
                    assert key not in found
                    found[key] = sample.value
        return found


class MeterOf:
    """A meter of OpenTelemetry, and its reader."""

    mark = "aioqueue.monitor"

    def __init__(self) -> None:
        self.reader = export.InMemoryMetricReader()
        self.provider = sdk.MeterProvider(metric_readers=[self.reader])

    def add(self, monitor: Monitor, labels: Mapping[str, str]) -> None:
        monitor.opentelemetry(self.provider.get_meter("of-a-test"), labels)

    def seen(self) -> Seen:
        data = self.reader.get_metrics_data()
        points = [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == "aioqueue.step.batches"
            for point in metric.data.data_points
        ]
        found = {frozenset(point.attributes.items()): point.value for point in points}
        assert len(found) == len(points)
        return found


def consumed(count: int) -> Monitor:
    """A monitor that has seen a loop with this many batches."""
    pipeline = numbers(2 * count).batch(2)
    monitor = pipeline.monitor()
    assert len(list(pipeline)) == count
    return monitor


@pytest.mark.slow(but="0")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("place", [Registry, MeterOf])
def test_each_is_shown_under_its_labels(place: Callable[[], Any], seed: int) -> None:
    chance = random.Random(seed)
    places = [place(), place()]
    shown: list[dict[tuple[str, int], tuple[Monitor, int]]] = [{}, {}]
    opened: list[Monitor] = []
    for step in range(10):
        if opened and chance.random() < 0.4:
            opened.pop(chance.randrange(len(opened))).close()
        else:
            count = step + 1
            monitor = consumed(count)
            opened.append(monitor)
            at, run = chance.randrange(2), chance.choice(["", "", "train", "valid"])
            places[at].add(monitor, {"run": run} if run else {})
            model = shown[at]
            number = 1
            while (run, number) in model and not model[run, number][0]._closed.is_set():
                number += 1
            model[run, number] = (monitor, count)
        for at, model in enumerate(shown):
            assert places[at].seen() == {
                frozenset(
                    ({("run", run)} if run else set())
                    | ({(places[at].mark, str(number))} if number > 1 else set())
                ): count
                for (run, number), (_, count) in model.items()
            }
    for monitor in opened:
        monitor.close()


def test_an_unregistered_collector_frees_its_number() -> None:
    place = Registry()
    with consumed(1) as one, consumed(2) as two, consumed(3) as three:
        first = place.add(one, {})
        place.add(two, {})
        assert place.seen() == {frozenset(): 1, frozenset({("monitor", "2")}): 2}
        place.registry.unregister(first)
        assert place.seen() == {frozenset({("monitor", "2")}): 2}
        place.add(three, {})
        assert place.seen() == {frozenset(): 3, frozenset({("monitor", "2")}): 2}


def test_a_monitor_registered_twice_is_shown_once() -> None:
    place, meter = Registry(), MeterOf()
    with consumed(4) as one:
        for each in (place, meter, place, meter):
            each.add(one, {"run": "train"})
        assert place.seen() == meter.seen() == {frozenset({("run", "train")}): 4}


def test_a_restricted_registry_and_a_collector_without_registry() -> None:
    place = Registry()
    with consumed(1) as one, consumed(2) as two:
        place.add(one, {"run": "a"})
        collector = place.add(two, {"run": "b"})
        part = place.registry.restricted_registry(["aioqueue_step_batches_total"])
        (family,) = part.collect()
        assert [sample.value for sample in family.samples] == [1, 2]
        unregistered = {family.name: family for family in collector.collect()}
        assert [sample.value for sample in unregistered["aioqueue_step_batches"].samples] == [2]


class Writer:
    def __init__(self) -> None:
        self.tags: set[str] = set()

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> None:
        self.tags.add(tag.split("/")[0])


def test_scalars_of_several_monitors() -> None:
    writer = Writer()
    with consumed(1) as one:
        with consumed(1) as two:
            senders = [monitor.to(writer) for monitor in (one, two, one)]
            groups = []
            for sender in senders:
                writer.tags.clear()
                sender.send(0)
                groups += sorted(writer.tags)
            assert groups == ["data", "data-2", "data"]
        with consumed(1) as three:
            writer.tags.clear()
            three.to(writer).send(0)
            assert writer.tags == {"data-2"}
    dropped = consumed(1)
    dropped.to(writer)
    del dropped
    writer.tags.clear()
    with consumed(1) as last:
        last.to(writer).send(0)
    assert writer.tags == {"data"}


def test_two_traces_of_one_run(tmp_path: Path) -> None:
    """Each has the events of its time, also if one ends before the other."""
    pipeline = numbers(800).prepare(abs, workers=2).batch(2)
    with pipeline.monitor() as one, pipeline.monitor() as two:
        long, short = Trace(one, tmp_path / "long", 100), Trace(two, tmp_path / "short", 100)
        for step, _ in enumerate(pipeline):
            if step == 200:
                short.stop()
        long.stop()
    sizes = [(tmp_path / name).read_text().count("training step") for name in ("long", "short")]
    works = [(tmp_path / name).read_text().count('"ph":"X"') for name in ("long", "short")]
    assert min(sizes) >= 1
    assert works[0] > works[1] > 0


def test_two_collectors_of_batchers() -> None:
    registry = prometheus_client.CollectorRegistry()

    def answered() -> Seen:
        page = prometheus_client.generate_latest(registry).decode()
        kinds = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
        assert len(kinds) == len(set(kinds))
        return {
            frozenset(sample.labels.items()): sample.value
            for family in parser.text_string_to_metric_families(page)
            for sample in family.samples
            if sample.labels.get("outcome") == "answered"
        }

    def key(name: str, **more: str) -> Any:
        return frozenset({"batcher": name, "outcome": "answered", **more}.items())

    def made(name: str, calls: int) -> sync.Batcher[int, int]:
        batcher: sync.Batcher[int, int] = sync.Batcher(list, max_wait=0, name=name)
        batcher.__enter__()
        for number in range(calls):
            batcher(number)
        registry.register(BatcherCollector(batcher))
        return batcher

    one, other, same = made("scores", 1), made("words", 2), made("scores", 3)
    expected = {key("scores"): 1, key("words"): 2, key("scores", monitor="2"): 3}
    assert answered() == expected
    one.__exit__(None, None, None)
    again = made("scores", 4)
    assert answered() == expected | {key("scores"): 4}
    for batcher in (other, same, again):
        batcher.__exit__(None, None, None)
    assert isinstance(one.aio, Batcher)
