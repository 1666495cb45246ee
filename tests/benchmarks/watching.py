"""Rows 30, 31, 35 and 36: what it costs to watch a pipeline, to read what was seen, to trace it,
and that one could.

The differences are small, and so is the part of them that is not noise: so both sides take turns
many times, by processor time. What nobody's watching costs is too little to be found so: it is what
a worker asks once for each example, and that alone is timed.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import process_time, thread_time
from types import SimpleNamespace
from typing import Any

import numpy as np

from aioqueue import inputs, sync
from aioqueue.telemetry import Monitor
from tests.benchmarks.harness import Comparison, Mode, Row

__all__ = ("measure",)

EXAMPLES = 200_000
MORE = 4
"""Times as many rounds as elsewhere: the differences are small."""
BATCH = 128
EACH = 1e-5
"""Seconds of an example, at 100,000 a second."""
READERS = 20
HERTZ = 100

_FEATURES = [np.full(4, i, dtype="float32") for i in range(1024)]

ROWS = (
    Row("30", "tiny examples: processor time with a monitor", "without", 1.01, at_least=False),
    Row(
        "31",
        "with a monitor that 20 threads ask 100 times a second",
        "that they do not ask",
        1.02,
        at_least=False,
    ),
    Row(
        "35",
        "tiny examples: processor time while a trace is taken",
        "without",
        1.03,
        at_least=False,
    ),
)
OFF = Row(
    "36",
    "10 µs, and what a worker asks for each example while nobody watches",
    "10 µs",
    1.001,
    at_least=False,
)


def make(i: int) -> tuple[Any, int]:
    """About 0.3 µs."""
    return _FEATURES[i & 1023], i


def seconds_each(count: int, around: Callable[[Any], Any]) -> float:
    """Processor seconds per example of a worker thread, into batches: those of all threads, so
    that it matters little what else the machine does."""
    queue = sync.FIFOQueue(1024, ["float32", "int64"], [(4,), ()])
    with sync.Coordinator() as coord, around(coord):
        coord.start(inputs.prepare(range(count), make, into=queue, workers=1, limit=1024))
        began = process_time()
        seen = sum(len(labels) for _, labels in queue.batches(BATCH))
        seconds = process_time() - began
        assert seen == count
    return seconds / count


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
    gauge, rounds = SimpleNamespace(is_on=False), range(count)
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
    """A monitor is on, and many threads wake again and again, and ask it or do not."""
    over = threading.Event()
    with watched(coord) as monitor:

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


def measure(mode: Mode) -> Iterator[Comparison]:
    """All rows; both sides of each by turns."""
    sides: tuple[tuple[Callable[[Any], Any], Callable[[Any], Any]], ...] = (
        (watched, unwatched),
        (partial(among_readers, ask=True), partial(among_readers, ask=False)),
        (traced, unwatched),
    )
    for row, (ours, theirs) in zip(ROWS, sides, strict=True):
        count = mode.scaled(EXAMPLES)
        ratios, best = [], float("inf")
        for _ in range(mode.rounds * (1 if mode.quick else MORE)):
            one, other = seconds_each(count, ours), seconds_each(count, theirs)
            ratios.append(one / other)
            best = min(best, one)
        yield Comparison(row, ratios, {"aioqueue": f"{1e6 * best:.2f} µs of a core per example"})
    each = [seconds_of_asking(mode.scaled(10 * EXAMPLES)) for _ in range(mode.rounds)]
    yield Comparison(
        OFF,
        [(EACH + asking) / EACH for asking in each],
        {"aioqueue": f"{1e9 * min(each):.1f} ns of a core per example"},
    )
