"""Row 39: what it costs to say where a pipeline is, and to go on there."""

from __future__ import annotations

import copy
import json
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from time import perf_counter, process_time, thread_time
from typing import Any

import numpy as np

from aioqueue import sync
from aioqueue.inputs import Pipeline, batch, numbers
from aioqueue.items.positions import sealed
from aioqueue.pipeline.nodes.deferred import settled
from aioqueue.pipeline.nodes.progress import ResumePoint, id_of, id_text, packed, unpacked
from aioqueue.pipeline.nodes.rows import END
from aioqueue.pipeline.nodes.stepping import RunLock
from aioqueue.pipeline.pipeline import Stages
from aioqueue.pipeline.run import ThreadRun
from aioqueue.telemetry import Watch
from benchmarks.harness import Comparison, Mode, Row, compare

__all__ = ("measure",)

ITEMS = 10_000_000
BUFFER = 10_000
BATCH = 128
LOCK_SECONDS = 1e-4
OVERHEAD, EACH = 1024, 4.2
"""Bytes that a state may have, and more of them for each element of a shuffle buffer."""

PICTURE = 1.6e-3
"""Seconds that it takes to decode a picture of 640 x 427 pixels."""

NUMBER = "39"


def itself(item: int) -> int:
    return item


class Working:
    """Some work that releases the GIL, as decoding a picture does.

    How many numbers are sorted in that time is found out first: it depends on the processor.
    """

    def __init__(self, seconds: float = 5e-4) -> None:
        self.data = np.random.default_rng(0).random(60_000)
        for _ in range(2):  # the first time tells about how many, the second one better
            took = statistics.median(self._timed() for _ in range(51))
            self.data = np.random.default_rng(0).random(round(len(self.data) * seconds / took))

    def _timed(self) -> float:
        began = thread_time()
        self(0)
        return thread_time() - began

    def __call__(self, item: int) -> np.ndarray[Any, Any]:
        return np.sort(self.data)[:64] + item


def state_at(pipeline: Stages[Any], items: int) -> dict[str, Any]:
    """The state of a pipeline of examples behind so many of an epoch."""
    with pipeline.batch(items).epochs(1) as epochs:
        next(next(epochs))
        return epochs.state_dict()


def moved(state: dict[str, Any], by: int) -> dict[str, Any]:
    """The state in which so many more items would have come, and as many been drawn.

    Each of them is equivalent to any other here, so nobody has to go through nearly all of an
    epoch.
    """
    if not by:
        return state
    read, *stages = copy.deepcopy([state["read"], *state["stages"]])
    for entry in (read, *stages[:-1]):  # all but the batch
        for key in {"given", "drawn", "next"} & entry.keys():
            entry[key] += by
        # Of a stage with workers that is a number, and of one that holds rows the name of a row.
        entry |= {key: _moved(entry[key], by) for key in {"from", "taken"} & entry.keys()}
        if entry.get("held"):
            entry["held"] = f"0:{packed([number + by for number in unpacked(entry['held'][2:])])}"
        if "counts" in entry:
            entry["counts"] = dict.fromkeys(entry["counts"])
    stages[-1]["taken"] = _moved(stages[-1]["taken"], by)
    seal = ("format", "version", "checksum")
    content = {key: value for key, value in state.items() if key not in seal}
    return sealed({**content, "read": read, "stages": stages})


def _moved(value: Any, by: int) -> Any:
    if isinstance(value, int):
        return value + by
    if value is None:
        return None
    epoch, number, sub = id_of(value)
    return id_text((epoch, number, sub) if number == END else (epoch, number + by, sub))


def seconds_to_first(pipeline: Pipeline[Any], state: Any = None) -> float:
    """Seconds from nothing to the first batch."""
    began = perf_counter()
    with pipeline.batch(BATCH).epochs(1, resume=state) as epochs:
        next(next(epochs))
        return perf_counter() - began


def first_batches(mode: Mode) -> Iterator[Comparison]:
    buffer = BUFFER if not mode.quick else BUFFER // 50
    source = numbers(ITEMS, shuffle=True, seed=1)
    shapes: dict[str, Pipeline[Any]] = {
        f"shuffle({buffer:,})": source.shuffle(buffer),
        f"prepare, shuffle({buffer:,})": source.prepare(itself, workers=2).shuffle(buffer),
    }
    for name, pipeline in shapes.items():
        begun = state_at(pipeline, ITEMS // 100)
        for share in (0.01, 0.99):
            state = moved(begun, round((share - 0.01) * ITEMS))
            yield compare(
                Row(
                    NUMBER,
                    f"{name}, first batch when resumed at {share:.0%} of {ITEMS:,} items",
                    "a fresh start",
                    1.2,
                    at_least=False,
                ),
                partial(seconds_to_first, pipeline),
                partial(seconds_to_first, pipeline, state),
                mode,
                names=("a fresh start", "resumed"),
                show=lambda seconds: f"{seconds * 1e3:.1f} ms",
            )


def locked(mode: Mode) -> Iterator[Comparison]:
    """How long nobody can take a batch because somebody asks for the state."""
    for size in (1_000, BUFFER):
        pipeline = numbers(ITEMS, shuffle=True, seed=1).shuffle(size).batch(BATCH)
        run = ThreadRun(pipeline, 1, ResumePoint(0), Watch(), RunLock())
        rounds, whole = [], []
        try:
            for _ in range(mode.rounds):
                times, totals = [], []
                for _ in range(mode.scaled(5_000) // 50):
                    run.take()
                    began = perf_counter()
                    with run._steps._lock:
                        resume_point = run._resume_point()
                    times.append(perf_counter() - began)
                    settled(resume_point.node)
                    totals.append(perf_counter() - began)
                rounds.append(statistics.median(times))
                whole.append(statistics.median(totals))
        finally:
            run.close()
        yield Comparison(
            Row(
                NUMBER, f"shuffle({size:,}): a state holds the lock", "0.1 ms", 1.0, at_least=False
            ),
            [seconds / LOCK_SECONDS for seconds in rounds],
            {
                "with the lock": f"{statistics.median(rounds) * 1e6:.0f} µs",
                "in all": f"{statistics.median(whole) * 1e6:.0f} µs",
            },
        )


def sizes(mode: Mode) -> Iterator[Comparison]:
    """How large a state is, when a buffer was filled several times."""
    for size in (0, 1_000, BUFFER, 10 * BUFFER):
        if mode.quick and size > BUFFER:
            continue
        source = numbers(ITEMS, shuffle=True, seed=1)
        state = state_at(source.shuffle(size) if size else source, 3 * max(size, BATCH))
        text = len(json.dumps(state, separators=(",", ":")))
        limit = OVERHEAD + EACH * size
        yield Comparison(
            Row(
                NUMBER,
                f"shuffle({size:,}): bytes of a state" if size else "no buffer: bytes of a state",
                f"1 KiB + {EACH} B per element",
                1.0,
                at_least=False,
            ),
            [text / limit],
            {"bytes": f"{text:,}", "per element": f"{text / size:.2f}" if size else "-"},
        )


def seconds_per_batch(
    make: Callable[[], Pipeline[Any]],
    batches: int,
    *,
    asks: bool,
    clock: Callable[[], float] = perf_counter,
) -> float:
    """Of a run through a pipeline, with or without asking for the state behind each."""
    with make().epochs(1) as epochs:
        epoch = next(epochs)
        next(epoch)
        began = clock()
        for _ in range(batches):
            next(epoch)
            if asks:
                epochs.state_dict()
        return (clock() - began) / batches


def throughput(mode: Mode) -> Iterator[Comparison]:
    source = numbers(ITEMS, shuffle=True, seed=1)
    short, long = Working(), Working(PICTURE)
    batches = 100 if not mode.quick else 5
    shapes: dict[str, Callable[[], Pipeline[Any]]] = {
        "0.5 ms per item, batch(32)": lambda: source.prepare(short, workers=2).batch(32),
        "0.5 ms per item, shuffle(1,000), batch(32)": lambda: (
            source.prepare(short, workers=2).shuffle(1_000).batch(32)
        ),
        "1.6 ms per item, shuffle(1,000), batch(32)": lambda: (
            source.prepare(long, workers=2).shuffle(1_000).batch(32)
        ),
    }
    clocks = {"": perf_counter, ", processor time": process_time}
    for (name, make), (of, clock) in product(shapes.items(), clocks.items()):
        yield compare(
            Row(NUMBER, f"{name}: batches with the state behind each{of}", "without", 0.98),
            partial(seconds_per_batch, make, batches, asks=True, clock=clock),
            partial(seconds_per_batch, make, batches, asks=False, clock=clock),
            mode,
            names=("with", "without"),
            show=lambda seconds: f"{seconds * 1e3:.2f} ms per batch",
        )


def seconds_of_stream(examples: int, work: Callable[[int], Any], **options: Any) -> float:
    """Per example of a stream made by hand, all in all."""
    with sync.Coordinator() as coord:
        source = numbers(examples, 1, shuffle=True, seed=1)
        stream = batch(source, 32, coord=coord, function=work, workers=2, ordered=True, **options)
        began = perf_counter()
        for _ in stream:
            pass
        return (perf_counter() - began) / examples


def tracking(mode: Mode) -> Iterator[Comparison]:
    """What it costs that a stream can be resumed, where nobody asks for its state."""
    works: dict[str, tuple[Callable[[int], Any], int]] = {
        "0.5 ms per item": (Working(), mode.scaled(3_000)),
        "no work": (itself, mode.scaled(60_000)),
    }
    for name, (work, examples) in works.items():
        yield compare(
            Row(NUMBER, f"batch(32), {name}: examples with resume=None", "without resume", 0.98),
            partial(seconds_of_stream, examples, work, resume=None),
            partial(seconds_of_stream, examples, work),
            mode,
            names=("with", "without"),
        )


def measure(mode: Mode) -> Iterator[Comparison]:
    """Row 39."""
    yield from sizes(mode)
    yield from locked(mode)
    yield from throughput(mode)
    yield from tracking(mode)
    yield from first_batches(mode)
