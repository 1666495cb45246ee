"""Rows 35 to 38: what it costs to watch a pipeline, to read what was seen, and to trace it.

The last one is of a snapshot after many epochs.

One worker prepares 100,000 examples a second, so each has 10 µs of a processor. The differences are
small, and so is the part of them that is not noise: so the sides take turns in rounds of a fraction
of a second, as A B B A, which leaves nothing of a machine that becomes slower meanwhile. What
counts is the median of many such rounds, by the processor time of all threads. The cost of
watching that nobody reads is too small to be found so: it is what a worker asks once for each
example, and that alone is timed.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, process_time, thread_time
from typing import Any

import numpy as np

from aioqueue import inputs, sync
from aioqueue.telemetry import Monitor
from aioqueue.workers.timing import Gauge
from benchmarks.harness import Comparison, Mode, Row

__all__ = ("measure",)

EXAMPLES = 25_600
"""Of one turn of a side: a quarter of a second."""
ROUNDS = 40
BATCH = 128
EACH = 1e-5
"""Seconds of an example, at 100,000 a second."""
READERS = 20
HERTZ = 100

_FEATURES = [np.full(4, i, dtype="float32") for i in range(1024)]

ROWS = (
    Row("35", "100,000 examples/s: processor time with a monitor", "without", 1.01, False),
    Row(
        "36",
        "the same, while 20 threads ask it 100 times a second each",
        "while they do not ask",
        1.02,
        False,
    ),
    Row("37", "100,000 examples/s: processor time while a trace is taken", "without", 1.03, False),
)
OFF = Row(
    "38",
    "10 µs, and what a worker asks for each example while nobody watches",
    "10 µs",
    1.001,
    False,
)


SNAPSHOTS = Row(
    "46",
    "a snapshot after 1,000 epochs by hand",
    "after one",
    2.0,
    False,
)
EPOCHS = (1, 100, 1000)


@dataclass(frozen=True)
class Spent:
    """Seconds per example: of processors, and on the clock."""

    processor: float
    clock: float


class Make:
    """Makes an example, with so much to do that all of its way takes `EACH`."""

    def __init__(self, effort: int) -> None:
        self._work = range(effort)

    def __call__(self, i: int) -> tuple[Any, int]:
        for _ in self._work:
            pass
        return _FEATURES[i & 1023], i


def calibrated() -> Make:
    """One that takes as long as it should on this machine, now."""
    low, high = 0, 2000
    few = min(spent(EXAMPLES // 4, Make(low), unwatched).processor for _ in range(3))
    many = min(spent(EXAMPLES // 4, Make(high), unwatched).processor for _ in range(3))
    return Make(max(0, round(high * (EACH - few) / max(many - few, 1e-9))))


def spent(count: int, make: Make, around: Callable[[Any], Any]) -> Spent:
    """What the examples of a worker thread take, into batches: of all threads together."""
    queue = sync.FIFOQueue(1024, ["float32", "int64"], [(4,), ()])
    with sync.Coordinator() as coord, around(coord):
        coord.start(inputs.prepare(range(count), make, into=queue, workers=1, max_in_flight=1024))
        clock, processor = perf_counter(), process_time()
        seen = sum(len(labels) for _, labels in queue.batches(BATCH))
        processor, clock = process_time() - processor, perf_counter() - clock
        assert seen == count
    return Spent(processor / count, clock / count)


@contextmanager
def unwatched(coord: Any) -> Iterator[None]:
    """Nobody looks."""
    yield


@contextmanager
def watched(coord: Any) -> Iterator[Monitor]:
    """A monitor is on."""
    with Monitor(coord) as monitor:
        yield monitor


@contextmanager
def traced(coord: Any) -> Iterator[None]:
    """A monitor is on, and every worker writes down what it does."""
    with tempfile.TemporaryDirectory() as folder, watched(coord) as monitor:
        trace = monitor.trace(Path(folder) / "run.json", seconds=600)
        yield
        trace.stop()


def seconds_of_asking(count: int) -> float:
    """What `while not gauge.is_on` takes, beside `while True`."""
    gauge, rounds = Gauge(), range(count)
    began = thread_time()
    for _ in rounds:
        if gauge.is_on:
            raise AssertionError
    asking = thread_time() - began
    began = thread_time()
    for _ in rounds:
        pass
    return max(0.0, asking - (thread_time() - began)) / count


@contextmanager
def among_readers(coord: Any, *, ask: bool) -> Iterator[None]:
    """A monitor is on, and many threads wake again and again, and ask it or do not. What a monitor
    has to spare for an occasional reader is used up before, on either side."""
    over = threading.Event()
    with watched(coord) as monitor:
        while monitor.snapshot() is not monitor.snapshot():
            pass

        def read() -> None:
            while not over.wait(1 / HERTZ):
                if ask:
                    monitor.snapshot()

        readers = [threading.Thread(target=read) for _ in range(READERS)]
        for reader in readers:
            reader.start()
        try:
            yield
        finally:
            over.set()
            for reader in readers:
                reader.join()


def compared(
    row: Row, ours: Callable[[Any], Any], theirs: Callable[[Any], Any], make: Make, mode: Mode
) -> Comparison:
    """Both sides, alternating."""
    count, ratios, clocks, mine = mode.scaled(EXAMPLES), [], [], []
    for _ in range(1 if mode.quick else ROUNDS):
        a, b, c, d = (spent(count, make, side) for side in (ours, theirs, theirs, ours))
        ratios.append((a.processor + d.processor) / (b.processor + c.processor))
        clocks.append((a.clock + d.clock) / (b.clock + c.clock))
        mine += [a.processor, d.processor]
    figures = {
        "aioqueue": f"{1e6 * statistics.median(mine):.2f} µs of a core per example",
        "by the clock": f"{statistics.median(clocks):.3f}",
    }
    if len(ratios) > 1:
        low, _, high = statistics.quantiles(ratios, n=4)
        figures[f"half of the {len(ratios)} rounds"] = f"{low:.3f} to {high:.3f}"
    return Comparison(row, ratios, figures)


def seconds_of_a_snapshot(epochs: int) -> float:
    """What one takes after so many epochs, each with a queue and a stage of its own."""
    with sync.Coordinator() as coord, watched(coord) as monitor:
        for _ in range(epochs):
            queue = sync.FIFOQueue(4, name="same")
            coord.start(inputs.prepare(range(2), float, into=queue, workers=1))
            assert len(list(queue)) == 2
        assert len(monitor._collector.snapshot().queues) == 1
        began = thread_time()
        for _ in range(20):
            monitor._collector.snapshot()
        return (thread_time() - began) / 20


def measure(mode: Mode) -> Iterator[Comparison]:
    """All rows."""
    make = Make(100) if mode.quick else calibrated()
    sides: tuple[tuple[Callable[[Any], Any], Callable[[Any], Any]], ...] = (
        (watched, unwatched),
        (partial(among_readers, ask=True), partial(among_readers, ask=False)),
        (traced, unwatched),
    )
    for row, (ours, theirs) in zip(ROWS, sides, strict=True):
        yield compared(row, ours, theirs, make, mode)
    each = [seconds_of_asking(40 * mode.scaled(EXAMPLES)) for _ in range(mode.rounds)]
    yield Comparison(
        OFF,
        [(EACH + asking) / EACH for asking in each],
        {"aioqueue": f"{1e9 * statistics.median(each):.1f} ns of a core per example"},
    )
    taken = {count: seconds_of_a_snapshot(mode.scaled(count)) for count in EPOCHS}
    yield Comparison(
        SNAPSHOTS,
        [taken[EPOCHS[-1]] / taken[EPOCHS[0]]],
        {f"{count:,} epochs": f"{1e6 * seconds:.0f} µs" for count, seconds in taken.items()},
    )
