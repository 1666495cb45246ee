"""Traces: by the rules of the format, and of what really happened."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any, Literal

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.coordination.runner_metrics import OpStage
from aioqueue.core.meters import Event, EventRing, Meter, Tracer
from aioqueue.inputs import numbers, prepare
from aioqueue.telemetry.metrics.snapshots import Snapshot
from aioqueue.telemetry.metrics.watch import Watch
from aioqueue.telemetry.views.trace import Trace, Track, events_of
from tests.kit.worlds import TaskWorld, spin_until
from tests.telemetry.fluid_model import usual
from tests.telemetry.growing import Growing
from tests.telemetry.views.trace_reader import opened, read


class TestRing:
    def test_it_keeps_the_latest(self) -> None:
        ring = EventRing()
        for number in range(70_000):
            ring.worked(number, number + 0.5, number)
        events = ring.events()
        assert len(events) == 65_536
        assert events[-1] == Event("works", 69_999, 69_999.5, 69_999)

    def test_it_can_be_read_while_its_worker_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("aioqueue.core.meters.deque", lambda maxlen: Growing((), 9))
        ring = EventRing()
        ring.worked(1.0, 2.0, 7)
        assert ring.events() == [Event("works", 1.0, 2.0, 7)]

    def test_very_short_waits_are_left_out(self) -> None:
        ring = EventRing()
        ring.waited("next item", 1.0, 1.0 + 1e-6)
        ring.waited("next item", 1.0, 1.0 + 1e-5)
        assert ring.events() == [Event("next item", 1.0, 1.0 + 1e-5)]


class TestFormat:
    def test_tracks_slices_and_counters(self) -> None:
        worked = [Event("works", 10.5, 10.625, 7), Event("waits for room", 10.625, 11.0)]
        tracks = [
            Track("decode", "decode-1", worked),
            Track("read", "read-1", [Event("works elsewhere", 9.0, 10.25, None, items=3)]),
            Track("decode", "decode-2", []),
        ]
        samples = [(10.0, {"q": 1}), (11.0, {"q": 0})]
        events = list(events_of(tracks, samples, 10.0, 12.0, ["read", "decode"]))
        assert read(events, 2.0).groups == ["read", "decode", "queues"]
        names = {
            (event["name"], event["pid"], event["tid"]): event["args"]
            for event in events
            if event["ph"] == "M"
        }
        assert names["process_name", 1, 0] == {"name": "read"}
        assert names["process_name", 2, 0] == {"name": "decode"}
        assert names["process_name", 3, 0] == {"name": "queues"}
        assert names["thread_name", 2, 1] == {"name": "decode-1"}
        assert names["thread_name", 2, 2] == {"name": "decode-2"}
        slices = [event for event in events if event["ph"] == "X"]
        assert [(one["name"], one["ts"], one["dur"], one["args"]) for one in slices] == [
            ("decode", 5e5, 1.25e5, {"item": 7}),
            ("waits for room", 6.25e5, 3.75e5, {}),
            ("read", 0.0, 2.5e5, {"items": 3}),
        ]
        counters = [(one["ts"], one["args"]) for one in events if one["ph"] == "C"]
        assert counters == [(0.0, {"elements": 1}), (1e6, {"elements": 0})]

    def test_slices_that_touch_never_overlap(self) -> None:
        """Not by a nanosecond, whatever the clock returns: viewers would drop one of them."""
        rng = random.Random(7)
        now, events = 86_400.123456789, list[Event]()
        for number in range(2000):
            began, now = now, now + rng.random() * 10 ** rng.randint(-7, -2)
            middle = began + (now - began) * rng.random()
            events.append(Event("waits for data", began, middle))  # it ends first
            events.append(Event("next item", began, now))
            began, now = now, now + rng.random() * 1e-5
            events.append(Event("works", began, now, number))
        shown = read(list(events_of([Track("a", "a", events)], [], 86_400.1, now)), now - 86_400.1)
        slices = shown.tracks["a", "a"]
        assert len(slices) == 6000
        assert max(one.depth for one in slices if one.end - one.begin > 1000) == 1
        items = [one.args["item"] for one in slices if one.name == "a"]
        assert sorted(items) == list(range(2000))

    def test_events_before_and_after_the_trace_are_left_out(self) -> None:
        before, after = Event("works", 1.0, 2.0, 0), Event("works", 13.0, 14.0, 1)
        events = events_of([Track("a", "a", [before, after])], [], 10.0, 12.0)
        assert not [event for event in events if event["ph"] == "X"]


class Run:
    """Something to be traced, whose workers are made by a test."""

    def __init__(self) -> None:
        self.watch = Watch()

    def snapshot(self) -> Snapshot:
        return usual(1).now

    def _sizes(self) -> dict[str, int]:
        return {queue.name: queue.size for queue in self.snapshot().queues}

    def _trace(self, tracer: Tracer) -> None:
        self.watch.trace(tracer)

    def _stop_tracing(self, tracer: Tracer) -> None:
        self.watch.stop_tracing(tracer)


def stage(*meters: Meter) -> OpStage:
    return OpStage("decode", "thread", list(meters), sync.FIFOQueue(1))


def ring_of(meter: Meter) -> EventRing | None:
    return meter.ring


class TestTrace:
    def test_workers_record_only_during_a_trace(self, tmp_path: Path) -> None:
        run, meter, late = Run(), Meter("one"), Meter("late")
        stages = [stage(meter), stage(late)]
        run.watch.add(stages[0])
        path = tmp_path / "run.json"
        with Trace(run, path, seconds=60) as trace:
            assert ring_of(meter) is not None
            run.watch.add(stages[1])
            assert late.ring is not None, "it comes, and writes from its beginning"
            now = time.perf_counter()
            late.ring.worked(now - 1e-5, now, 3)
            assert not path.exists()
        assert ring_of(meter) is ring_of(late) is None
        trace.wait()
        shown = opened(path, 60)
        [(track, [one])] = shown.tracks.items()
        assert (track, one.name, one.args) == (("decode", "late"), "decode", {"item": 3})
        assert [one.name for one in tmp_path.iterdir()] == ["run.json"]

    @pytest.mark.slow
    def test_many_events(self, tmp_path: Path) -> None:
        """Each is a line of the file, and no slice is lost."""
        run, meters = Run(), [Meter(f"worker {number}") for number in range(2)]
        stages = [stage(*meters)]
        run.watch.add(*stages)
        path = tmp_path / "run.json"
        with Trace(run, path, seconds=60):
            now = time.perf_counter()
            for meter in meters:
                assert meter.ring is not None
                for item in range(10_000):
                    meter.ring.worked(now + 1e-6 * item, now + 1e-6 * (item + 1), item)
            spin_until(lambda: time.perf_counter() > now + 0.05)  # what comes later is left out
        shown = opened(path, 60)
        for meter in meters:
            slices = shown.tracks["decode", meter.name]
            assert [one.args["item"] for one in slices] == list(range(10_000))
            assert {one.depth for one in slices} == {0}
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) > 20_000
        json.loads(lines[10_000].removesuffix(","))

    @pytest.mark.parametrize("seconds", [1e-6, 0.01])
    def test_it_ends_by_itself(self, seconds: float, tmp_path: Path) -> None:
        """With the sizes of the queues, also where its thread begins when its time is over."""
        run = Run()
        trace = Trace(run, tmp_path / "run.json", seconds=seconds)
        trace.wait()
        assert opened(tmp_path / "run.json", 20).counters
        trace.stop()  # which may be said again

    def test_a_file_that_cannot_be_written_raises(self, tmp_path: Path) -> None:
        run, meter = Run(), Meter("one")
        stages = [stage(meter)]
        run.watch.add(*stages)
        trace = Trace(run, tmp_path / "missing" / "run.json", seconds=60)
        with pytest.raises(FileNotFoundError):
            trace.stop()
        assert meter.ring is None

    def test_two_at_a_time(self, tmp_path: Path) -> None:
        """The later one has the workers; the earlier one ends without taking them from it."""
        run, meter = Run(), Meter("one")
        stages = [stage(meter)]
        run.watch.add(*stages)
        with Trace(run, tmp_path / "1.json", 60) as first:
            with Trace(run, tmp_path / "2.json", 60):
                latest = meter.ring
                first.stop()
                assert meter.ring is latest is not None
            assert meter.ring is None


def double(number: int) -> int:
    return 2 * number


async def double_async(number: int) -> int:
    return 2 * number


@pytest.mark.slow(but="thread")
@pytest.mark.parametrize("where", ["thread", "task", "process"])
def test_a_real_run(where: Literal["thread", "task", "process"], tmp_path: Path) -> None:
    """Every kind of worker has a track, and the training step; and what is there is true."""
    function: Any = double_async if where == "task" else double
    pipeline = numbers(4000).prepare(function, workers=2, where=where).batch(4)
    path = tmp_path / "run.json"
    with pipeline.monitor() as monitor, monitor.trace(path, seconds=50) as trace:
        count = in_a_loop(pipeline, trace) if where == "task" else in_a_thread(pipeline, trace)
    assert count == 4000
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    shown = opened(path, 50)
    assert set(shown.groups) == {function.__name__, "training step", "queues"}
    assert shown.counters
    work = [one for one in events if one["ph"] == "X" and one["cat"] == "work"]
    steps = [one["args"]["item"] for one in work if one["name"] == "training step"]
    assert steps == list(range(1000))
    calls = [one["args"] for one in work if one["name"] == function.__name__]
    assert calls
    if where == "process":
        assert sum(call.get("items", 1) for call in calls) >= 4000
    else:
        items = [call["item"] for call in calls]
        assert len(set(items)) == len(items)
        assert set(items) <= set(range(4000))


def test_tasks_of_every_world(task_world: TaskWorld, tmp_path: Path) -> None:
    """Tasks have names and tracks in trio too; and the loop that reads, where it is watched."""
    path = tmp_path / "run.json"

    async def body() -> None:
        queue = task_world.fifo(8)
        async with aioqueue.Coordinator() as coord:
            with coord.monitor() as monitor, monitor.trace(path, seconds=50):
                coord.start(prepare(range(200), double_async, into=queue, workers=2))
                count = 0
                async for _ in monitor.steps(queue):
                    count += 1
        assert count == 200

    task_world.run(body)
    opened(path, 50)
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    tracks = {one["args"]["name"]: one["pid"] for one in events if one["name"] == "process_name"}
    assert set(tracks) == {"double_async", "training step", "queues"}
    workers = {
        one["args"]["name"]
        for one in events
        if one["name"] == "thread_name" and one["pid"] == tracks["double_async"]
    }
    assert len(workers) == 2
    work = [one for one in events if one["ph"] == "X" and one["cat"] == "work"]
    items = [one["args"]["item"] for one in work if one["pid"] == tracks["double_async"]]
    assert items
    assert len(set(items)) == len(items)
    steps = [one["args"]["item"] for one in work if one["name"] == "training step"]
    assert steps == list(range(200))


def wait_for_a_sample(trace: Trace) -> None:
    """Wait until the queues were sampled; the run may be over before that."""
    spin_until(lambda: any(sizes for _, sizes in trace._samples))


def in_a_thread(pipeline: Any, trace: Trace) -> int:
    count = 0
    for batch in pipeline:
        wait_for_a_sample(trace)
        count += len(batch)
    return count


def in_a_loop(pipeline: Any, trace: Trace) -> int:
    async def main() -> int:
        count = 0
        async for batch in pipeline:
            wait_for_a_sample(trace)
            count += len(batch)
        return count

    return asyncio.run(main())
