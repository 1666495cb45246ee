"""Rows 9 to 12, 17 to 19, 43, 44: whole pipelines, alternating, each peer in its own process.

``python -m benchmarks.pipelines WORKLOAD PEER COUNT`` runs one and prints its figures as
JSON.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import resource
import statistics
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter, sleep, thread_time
from typing import Any

import numpy as np

import aioqueue
from aioqueue.inputs import numbers, prepare
from benchmarks.harness import Comparison, Mode, Row, for_build, installed

__all__ = ("measure",)

BUSY_IO, WIDE_IO = "io beside a busy task", "io on 1,000 tasks"
IO_WORKERS = {"io": 64, BUSY_IO: 64, WIDE_IO: 1000}
BATCHES = {"tiny": 128, "jpeg": 32, "pycpu": 32, **dict.fromkeys(IO_WORKERS, 32)}
COUNTS = {
    "tiny": 400_000,
    "jpeg": 6_400,
    "io": 40_000,
    BUSY_IO: 16_000,
    WIDE_IO: 160_000,
    "pycpu": 16_000,
}
# How many times fewer of them for peers that would take too long.
SLOWER = {"tiny": {"spdl": 40, "torch": 4}, "jpeg": {"spdl": 2, "torch": 2, "grain": 2}}
ROUNDS = 5
IO_SECONDS = 0.005
BUSY_SECONDS = 0.001
"""What the busy task computes in each round of the event loop."""

# The workloads: how one example is made.

_FEATURES = [np.full(4, i, dtype="float32") for i in range(1024)]


def make_tiny(i: int) -> tuple[Any, int]:
    """About 0.3 µs."""
    return _FEATURES[i & 1023], i


@cache
def jpeg_source() -> bytes:
    import cv2

    y, x = np.mgrid[0:427, 0:640]
    noise = np.random.default_rng(0).integers(0, 60, (427, 640))
    image = np.stack(((x + noise) % 256, (y + noise) % 256, (x + y) % 256), axis=-1)
    return bytes(cv2.imencode(".jpg", image.astype("uint8"), [cv2.IMWRITE_JPEG_QUALITY, 90])[1])


class MakeJpeg:
    """Decode a 640x427 picture and resize it to 224x224; OpenCV releases the GIL."""

    def __init__(self) -> None:
        import cv2

        cv2.setNumThreads(1)
        self.cv2 = cv2
        self.data = np.frombuffer(jpeg_source(), dtype="uint8")

    def __call__(self, i: int) -> tuple[Any, int]:
        image = self.cv2.imdecode(self.data, self.cv2.IMREAD_COLOR)
        return self.cv2.resize(image, (224, 224)), i


class MakeInPython:
    """Hold the GIL for about 0.4 ms, as a tokenizer written in Python would."""

    def __call__(self, i: int) -> tuple[Any, int]:
        total = i
        for step in range(7_000):
            total = (total * 31 + step) & 0xFFFFFF
        return _FEATURES[total & 1023], i


def maker(workload: str) -> Callable[[int], tuple[Any, int]]:
    if workload == "jpeg":
        return MakeJpeg()
    return MakeInPython() if workload == "pycpu" else make_tiny


# The peers: async iterators over batches.


def queue_for(workload: str) -> aioqueue.FIFOQueue:
    shape = (4,) if workload != "jpeg" else (224, 224, 3)
    dtype = "uint8" if workload == "jpeg" else "float32"
    return aioqueue.FIFOQueue(8 * BATCHES[workload], [dtype, "int64"], [shape, ()])


async def batches_of(queue: aioqueue.FIFOQueue, workload: str) -> AsyncIterator[Any]:
    """Batches as a training step takes them: large ones into arrays that it uses again."""
    size = BATCHES[workload]
    if workload != "jpeg":
        async for examples in queue.batches(size):
            yield examples
        return
    shape = (size, 224, 224, 3)
    own = [(np.empty(shape, "uint8"), np.empty(size, "int64")) for _ in range(2)]
    try:
        while True:
            own.reverse()
            yield await queue.dequeue_many(size, out=own[0])
    except aioqueue.OutOfRangeError:
        return


async def by_aioqueue(workload: str, count: int) -> AsyncIterator[Any]:
    queue = queue_for(workload)
    remaining = iter(range(count))
    lock = threading.Lock()

    def next_number() -> int:
        with lock:
            try:
                return next(remaining)
            except StopIteration:
                raise aioqueue.OutOfRangeError("no more numbers") from None

    ops: list[Callable[[], Any]]
    ends: tuple[type[BaseException], ...] = (aioqueue.OutOfRangeError, StopIteration)
    if workload in IO_WORKERS:

        async def fetch() -> None:
            i = next_number()
            await asyncio.sleep(IO_SECONDS)
            await queue.enqueue((_FEATURES[i & 1023], i))

        ops = [fetch] * IO_WORKERS[workload]
    elif workload == "tiny":
        enqueue = queue.sync.enqueue

        def prepare() -> None:
            enqueue(make_tiny(next(remaining)))

        ops = [prepare]
    else:
        make, put = maker(workload), queue.sync.enqueue

        def prepare_one_of_many() -> None:
            put(make(next_number()))

        ops = [prepare_one_of_many] * 2
    runner = aioqueue.QueueRunner(queue, ops, queue_closed_exception_types=ends)
    async with aioqueue.Coordinator() as coord:
        coord.start(runner)
        async for examples in batches_of(queue, workload):
            yield examples


async def fetch(i: int) -> tuple[Any, int]:
    """An example that takes a wait, for those who await."""
    await asyncio.sleep(IO_SECONDS)
    return _FEATURES[i & 1023], i


async def by_prepare(
    workload: str, count: int, ordered: bool = False, on_threads: bool = False
) -> AsyncIterator[Any]:
    """What users write: the function, and where it is to run."""
    queue, source = queue_for(workload), numbers(count, epochs=1)
    if workload in IO_WORKERS:
        workers = IO_WORKERS[workload]
        runner = prepare(source, fetch, into=queue, workers=workers, where="task", ordered=ordered)
    else:
        where: Any = "process" if workload == "pycpu" and not on_threads else "thread"
        make = maker(workload)
        runner = prepare(source, make, into=queue, workers=2, where=where, ordered=ordered)
    async with aioqueue.Coordinator() as coord:
        coord.start(runner)
        async for examples in batches_of(queue, workload):
            yield examples


def by_prepare_in_order(workload: str, count: int) -> AsyncIterator[Any]:
    return by_prepare(workload, count, ordered=True)


def by_prepare_on_threads(workload: str, count: int) -> AsyncIterator[Any]:
    return by_prepare(workload, count, on_threads=True)


async def by_limit(workload: str, count: int) -> AsyncIterator[Any]:
    """The same function in two bare threads, nothing else."""
    make = maker(workload)

    def run(start: int) -> None:
        for i in range(start, count, 2):
            make(i)

    await asyncio.gather(*(asyncio.to_thread(run, start) for start in range(2)))
    for _ in range(count // BATCHES[workload]):
        yield None


def run_bare(workload: str, start: int, count: int, seconds: Any) -> None:
    """One bare process: the function, and nothing else."""
    make = maker(workload)
    began = perf_counter()
    for i in range(start, count, 2):
        make(i)
    seconds.put(perf_counter() - began)


async def by_processes(workload: str, count: int) -> AsyncIterator[Any]:
    """The same function in two bare processes; starting them is not counted."""
    context = multiprocessing.get_context("spawn")
    seconds: Any = context.Queue()
    processes = [
        context.Process(target=run_bare, args=(workload, start, count, seconds))
        for start in range(2)
    ]
    for process in processes:
        process.start()
    took = max([seconds.get() for _ in processes])
    for process in processes:
        process.join()
    yield None
    await asyncio.sleep(took)  # as long as the slower one took, all batches but the first
    for _ in range(count // BATCHES[workload] - 1):
        yield None


async def by_tasks(workload: str, count: int) -> AsyncIterator[Any]:
    """The same waits in as many bare tasks, which stack what they get; nothing bounds them."""
    numbers_left = iter(range(count))
    batches: asyncio.Queue[Any] = asyncio.Queue()
    examples: list[tuple[Any, int]] = []

    async def work() -> None:
        for i in numbers_left:
            examples.append(await fetch(i))
            if len(examples) == BATCHES[workload]:
                batches.put_nowait(stack(examples))
                examples.clear()

    tasks = [asyncio.create_task(work()) for _ in range(IO_WORKERS[workload])]
    for _ in range(count // BATCHES[workload]):
        yield await batches.get()
    await asyncio.gather(*tasks)


def by_torch_alone(workload: str, count: int) -> AsyncIterator[Any]:
    """In the consumer's own thread, without a worker."""
    return by_torch(workload, count, workers=0)


class Examples:
    """A dataset of PyTorch's kind. Its workers may begin as new programs, so it can be sent there.

    Args:
        workload: what it has examples of.
        count: how many.
    """

    def __init__(self, workload: str, count: int) -> None:
        self.workload = workload
        self.count = count
        self._make: Callable[[int], Any] | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        if self._make is None:
            self._make = maker(self.workload)
        return self._make(i)


async def by_torch(workload: str, count: int, workers: int = 2) -> AsyncIterator[Any]:
    import torch

    examples: Any = Examples(workload, count)
    loader = torch.utils.data.DataLoader(
        examples,
        batch_size=BATCHES[workload],
        num_workers=workers,
        prefetch_factor=4 if workers else None,
    )
    iterator = iter(loader)
    done = object()
    while (batch := await asyncio.to_thread(next, iterator, done)) is not done:
        yield batch


def stack(examples: list[tuple[Any, int]]) -> tuple[Any, Any]:
    return np.stack([x for x, _ in examples]), np.array([i for _, i in examples])


async def by_spdl(workload: str, count: int) -> AsyncIterator[Any]:
    from spdl.pipeline import PipelineBuilder

    builder: Any = PipelineBuilder().add_source(range(count))
    if workload in IO_WORKERS:
        builder = builder.pipe(fetch, concurrency=IO_WORKERS[workload])
    else:
        builder = builder.pipe(maker(workload), concurrency=2)
    builder = builder.aggregate(BATCHES[workload]).pipe(stack).add_sink(4)
    pipeline = builder.build(num_threads=2)
    done = object()
    with pipeline.auto_stop():
        iterator = iter(pipeline)
        while (batch := await asyncio.to_thread(next, iterator, done)) is not done:
            yield batch


def sleep_and_make(i: int) -> tuple[Any, int]:
    """An example that takes a wait, for those who have a thread for it."""
    sleep(IO_SECONDS)
    return _FEATURES[i & 1023], i


async def by_grain(workload: str, count: int) -> AsyncIterator[Any]:
    import grain

    make = sleep_and_make if workload in IO_WORKERS else maker(workload)
    threads = IO_WORKERS.get(workload, 2)
    dataset = (
        grain.MapDataset.range(count)
        .map(make)
        .to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=128))
        .batch(BATCHES[workload])
    )
    iterator = iter(dataset)
    done = object()
    while (batch := await asyncio.to_thread(next, iterator, done)) is not done:
        yield batch


PEERS: dict[str, tuple[str, Callable[[str, int], AsyncIterator[Any]]]] = {
    "aioqueue": ("aioqueue", by_aioqueue),
    "prepare": ("aioqueue", by_prepare),
    "in order": ("aioqueue", by_prepare_in_order),
    "on threads": ("aioqueue", by_prepare_on_threads),
    "limit": ("numpy", by_limit),
    "processes": ("numpy", by_processes),
    "bare tasks": ("numpy", by_tasks),
    "torch": ("torch", by_torch),
    "torch, no workers": ("torch", by_torch_alone),
    "spdl": ("spdl", by_spdl),
    "grain": ("grain", by_grain),
}


def own_peak() -> int:
    """KiB. (``ru_maxrss`` of a process counts what its parent had when it forked.)"""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


async def be_busy() -> None:
    """Compute for a while in each round of the event loop, as another task of a service would."""
    while True:
        until = thread_time() + BUSY_SECONDS
        while thread_time() < until:
            pass
        await asyncio.sleep(0)


async def consume(workload: str, peer: str, count: int) -> dict[str, float]:
    maker(workload)  # what it imports is not the peer's to answer for
    beside = asyncio.create_task(be_busy()) if workload == BUSY_IO else None
    start = perf_counter()
    first = 0.0
    batches = 0
    async for _ in PEERS[peer][1](workload, count):
        batches += 1
        first = first or perf_counter() - start
    seconds = perf_counter() - start
    if beside is not None:
        beside.cancel()
    usages = [
        resource.getrusage(target) for target in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    size = BATCHES[workload]
    return {
        "rate": batches * size / seconds,
        "steady": (batches - 1) * size / (seconds - first),  # without what starting takes
        "first": first,
        "cpu": sum(usage.ru_utime + usage.ru_stime for usage in usages) / count,
        "memory": (own_peak() + usages[1].ru_maxrss) * 1024.0,
    }


def main(workload: str, peer: str, count: int) -> None:
    """Run one pipeline in this process and print its figures."""
    run = asyncio.run
    if workload in IO_WORKERS and installed("uvloop"):
        import uvloop

        run = uvloop.run
    print(json.dumps(run(consume(workload, peer, count))))


def run_apart(workload: str, peer: str, count: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.pipelines", workload, peer, str(count)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures: dict[str, float] = json.loads(output.splitlines()[-1])
    return figures


@dataclass(frozen=True)
class Aim:
    """What one of our pipelines must reach, in examples per second over those of a peer."""

    number: str
    ours: str
    peer: str
    ratio: float
    rate: str = "rate"


def threads_run_at_once() -> bool:
    """Whether there is no global interpreter lock, and none was turned on again."""
    is_enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)
    return is_enabled is not None and not is_enabled()


# The order of the rows is that of the runs: who is compared closely runs one after the other.
AIMS = {
    "tiny": [
        Aim("9", "aioqueue", "spdl", 100.0),
        Aim("9", "aioqueue", "torch", 5.0),
        Aim("43", "prepare", "torch, no workers", for_build(0.7, 1.0), "steady"),
        Aim("43", "prepare", "spdl", for_build(65, 100), "steady"),
    ],
    "jpeg": [
        Aim("10", "aioqueue", "limit", 0.97),
        Aim("18", "prepare", "limit", 0.97),
        Aim("19", "in order", "prepare", 0.95),
        Aim("10", "aioqueue", "torch", 1.05),
        Aim("10", "aioqueue", "spdl", 1.6),
        Aim("10", "aioqueue", "grain", 1.0),
    ],
    "io": [
        Aim("11", "aioqueue", "ideal", 0.95),
        Aim("44", "prepare", "bare tasks", for_build(0.94, 0.95), "steady"),
        Aim("44", "prepare", "grain", for_build(0.9, 0.92), "steady"),
    ],
    BUSY_IO: [Aim("44", "prepare", "bare tasks", 0.9, "steady")],
    WIDE_IO: [Aim("44", "prepare", "bare tasks", 0.25, "steady")],
    "pycpu": [
        Aim("17", "prepare", "processes", 0.9, "steady"),
        Aim("17", "prepare", "torch", 1.25),
    ],
}
if threads_run_at_once():
    AIMS["pycpu"] += [
        Aim("45", "on threads", "limit", 0.97),
        Aim("45", "on threads", "torch", for_build(1.1, 1.2)),
    ]


def measure_workload(workload: str, mode: Mode) -> Iterator[Comparison]:
    """All peers that are installed, alternately."""
    count = COUNTS[workload] // (50 if mode.quick else 1)
    aims = AIMS[workload]
    if workload == "jpeg" and not installed("cv2"):
        return
    names = [name for aim in aims for name in (aim.ours, aim.peer)]
    names += ["spdl"] if workload == "io" else []
    names = [name for name in dict.fromkeys(names) if name != "ideal"]
    names = [name for name in names if installed(PEERS[name][0])]
    slower = SLOWER.get(workload, {})
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(1 if mode.quick else ROUNDS):
        for name in names:
            runs[name].append(run_apart(workload, name, count // slower.get(name, 1)))
    for aim in aims:
        if aim.peer != "ideal" and aim.peer not in runs:
            continue
        mine = [figures[aim.rate] for figures in runs[aim.ours]]
        theirs = [IO_WORKERS.get(workload, 0) / IO_SECONDS] * len(mine)
        if aim.peer != "ideal":
            theirs = [figures[aim.rate] for figures in runs[aim.peer]]
        what = workload if aim.ours == "aioqueue" else f"{workload} by {TITLES[aim.ours]}"
        row = Row(aim.number, f"{what}, batches of {BATCHES[workload]}", aim.peer, aim.ratio)
        shown = {aim.ours: statistics.median(mine), aim.peer: statistics.median(theirs)}
        yield Comparison(
            row,
            [a / b for a, b in zip(mine, theirs, strict=True)],
            {name: f"{rate:,.0f} examples/s" for name, rate in shown.items()},
        )
    if "aioqueue" in runs:
        peers = {"aioqueue", "torch", "spdl", "grain"}
        yield from side_figures(workload, {k: v for k, v in runs.items() if k in peers})


TITLES = {
    "prepare": "prepare",
    "in order": "prepare(ordered=True)",
    "on threads": 'prepare(where="thread")',
}


def side_figures(workload: str, runs: dict[str, list[dict[str, float]]]) -> Iterator[Comparison]:
    """Row 12: what else it costs, over the best peer."""
    ways: dict[str, tuple[str, Callable[[float], str]]] = {
        "first": ("time to the first batch", lambda v: f"{v * 1e3:.1f} ms"),
        "cpu": ("CPU time per example", lambda v: f"{v * 1e6:.1f} µs"),
        "memory": ("peak memory", lambda v: f"{v / 2**20:.0f} MiB"),
    }
    if len(runs) < 2:
        return
    for key, (title, show) in ways.items():
        medians = {n: statistics.median(f[key] for f in figures) for n, figures in runs.items()}
        best = min(value for name, value in medians.items() if name != "aioqueue")
        yield Comparison(
            Row("12", f"{workload}: {title}", "the best peer", 1.1, at_least=False),
            [medians["aioqueue"] / best],
            {name: show(value) for name, value in medians.items()},
        )


def measure(mode: Mode) -> Iterator[Comparison]:
    """Rows 9 to 12, 17 to 19, 43 and 44."""
    for workload in AIMS:
        yield from measure_workload(workload, mode)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
