"""Counting instructions: what one element costs on each path, whatever else the machine does.

``python -m benchmarks.instructions [--check] [--write] [--only NAME ...] [--no-peers]``

A clock on a shared machine scatters by a tenth and more; the instructions that CPython executes for
one loop repeat to the instruction. Valgrind counts them (``callgrind``), in one process for all
paths: the child runs a path twice, with n elements and with three times as many, and calls
`os.getppid` around each run, before which callgrind writes its counter down. The difference of both
runs, divided by 2n, is the figure; so what a path costs once is left out. The child runs each path
before it counts, with Python's collector off and a fixed seed for hashes.

Threads take turns in valgrind, and are some fifty times slower. So the child multiplies the switch
interval: otherwise Python would interrupt a thread every few elements, as it never does in earnest.
It does the same with the times that tell quick items from slow ones, in `prepare`.
What remains is chance: which thread goes first, and so how often one of them sleeps.

**The ratchet.** ``instructions.json`` holds the figures per version of Python. ``--check`` fails if
one has grown by more than its tolerance, and says which; ``--write`` records new ones, and lays out
the table in ``docs/performance.md``. A figure that has grown is counted again in a process of its
own: CPython caches the attributes of all classes in one small table, from which the paths of one
process displace each other. Another build of the same version may need more instructions for the
same code, so each record has a yardstick, code that is not ours, by which it is scaled.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import importlib.util
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import rollouts
from benchmarks.callgrind import SLOWER, counters
from benchmarks.rollouts import GROUP

__all__ = ("PATHS", "Record", "compare", "counted", "table")

RECORDS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- instructions: begin -->", "<!-- instructions: end -->"
YARDSTICK = "one loop, capacity 50: asyncio.Queue"
ALONE = 0.03
"""By how much a figure may grow; those of one thread repeat to some hundredths of a per cent."""
THREADS = 0.08
"""The same where several threads take turns: how often one must sleep is up to chance."""

SCHEDULED = 0.15
"""The same for a pipeline: its threads also divide the items among themselves, as they come."""

Run = Callable[[int], object]


@dataclass(frozen=True)
class Way:
    """One way of an element through the library, or through a peer's."""

    title: str
    make: Callable[[], Run]
    """Returns a function that moves n elements; it may be called more than once."""
    n: int = 640  # a whole number of the rounds after which a loop lets others run
    tolerance: float = ALONE
    peer_of: str = ""
    """The title of the path of ours that this is compared with."""
    needs: str = ""
    """The package that must be installed."""

    @property
    def is_there(self) -> bool:
        return not self.needs or importlib.util.find_spec(self.needs) is not None


def _in_loop(main: Callable[[int], Any]) -> Run:
    """A run in one event loop, which stays open between the runs."""
    loop = asyncio.new_event_loop()
    return lambda n: loop.run_until_complete(main(n))


def _one_loop(capacity: int, make: Callable[[int], Any], put: str, get: str) -> Run:
    async def main(n: int) -> None:
        channel = make(capacity)
        enqueue, dequeue = getattr(channel, put), getattr(channel, get)

        async def produce() -> None:
            for i in range(n):
                await enqueue(i)

        task = asyncio.create_task(produce())
        for _ in range(n):
            await dequeue()
        await task

    return _in_loop(main)


def _without_waiting(make: Callable[[int], Any], put: str, get: str) -> Run:
    async def main(n: int) -> None:
        channel = make(50)
        enqueue, dequeue = getattr(channel, put), getattr(channel, get)
        for i in range(n):
            await enqueue(i)
            await dequeue()

    return _in_loop(main)


def _blocking(enqueue: Callable[[Any], object], dequeue: Callable[[], object], row: Any) -> Run:
    def run(n: int) -> None:
        for _ in range(n):
            enqueue(row)
            dequeue()

    return run


def _between_threads(capacity: int, make: Callable[[int], Any], put: str, get: str) -> Run:
    def run(n: int) -> None:
        channel = make(capacity)
        enqueue, dequeue = getattr(channel, put), getattr(channel, get)

        def produce() -> None:
            for i in range(n):
                enqueue(i)

        thread = threading.Thread(target=produce)
        thread.start()
        for _ in range(n):
            dequeue()
        thread.join()

    return run


def _thread_to_loop(make: Callable[[], Any], put: Callable[[Any], Any], get: str) -> Run:
    async def main(n: int) -> None:
        channel = make()
        enqueue, dequeue = put(channel), getattr(getattr(channel, "async_q", channel), get)

        def produce() -> None:
            for i in range(n):
                enqueue(i)

        thread = threading.Thread(target=produce)
        thread.start()
        for _ in range(n):
            await dequeue()
        thread.join()

    return _in_loop(main)


def _fifo(capacity: int) -> Any:
    import aioqueue

    return aioqueue.FIFOQueue(capacity)


def _sync(capacity: int) -> Any:
    from aioqueue import sync

    return sync.FIFOQueue(capacity)


def _typed() -> Any:
    from aioqueue import sync

    return sync.FIFOQueue(50, ["float32", "int64"], [(4,), ()])


def _typed_rows() -> Run:
    import numpy as np

    channel = _typed()
    return _blocking(channel.enqueue, channel.dequeue, (np.zeros(4, "float32"), np.int64(1)))


def _objects() -> Run:
    channel = _sync(50)
    return _blocking(channel.enqueue, channel.dequeue, 1)


def _standard() -> Run:
    channel: queue.Queue[Any] = queue.Queue(50)
    return _blocking(channel.put, channel.get, 1)


def _batches(make: Callable[[], Any], batch: Any) -> Run:
    channel = make()
    n = 32

    def run(rows: int) -> None:
        for _ in range(rows // n):
            channel.enqueue_many(batch)
            channel.dequeue_many(n)

    return run


def _object_batches() -> Run:
    return _batches(lambda: _sync(64), list(range(32)))


def _typed_batches() -> Run:
    import numpy as np

    return _batches(_typed, (np.zeros((32, 4), "float32"), np.zeros(32, "int64")))


def _batch_producer() -> Run:
    async def main(n: int) -> None:
        channel = _fifo(1000)

        def produce() -> None:
            for i in range(n):
                channel.sync.enqueue(i)  # looked up for each element, as users write it

        thread = threading.Thread(target=produce)
        thread.start()
        for _ in range(n // 100):
            await channel.dequeue_many(100)
        thread.join()

    return _in_loop(main)


def _faces() -> Run:
    channel = _fifo(1)

    def run(n: int) -> None:
        for _ in range(n):
            channel.sync  # noqa: B018

    return run


def _tiny() -> Run:
    import numpy as np

    import aioqueue
    from aioqueue.inputs import numbers, prepare

    rows = np.zeros((4096, 4), "float32")

    def tiny(i: int) -> Any:
        return rows[i & 4095], np.int64(i & 1)

    async def main(n: int) -> None:
        channel = aioqueue.FIFOQueue(512, ["float32", "int64"], [(4,), ()])
        async with aioqueue.Coordinator() as coord:
            source = numbers(n, epochs=1)
            coord.start(prepare(source, tiny, into=channel, workers=2, where="thread"))
            async for _ in channel.batches(128):
                pass

    return _in_loop(main)


def _scalars() -> Run:
    import numpy as np

    return _pipeline(np.float32, 2)


def _pipeline(function: Callable[[int], Any], workers: int) -> Run:
    from aioqueue.inputs import numbers

    def run(n: int) -> None:
        for _ in numbers(n).prepare(function, workers=workers).batch(128):
            pass

    return run


async def _one_round(i: int) -> int:
    await asyncio.sleep(0)
    return i


def _tasks(workers: int = 4, ordered: bool = True) -> Run:
    from aioqueue.inputs import numbers

    async def main(n: int) -> None:
        pipeline = numbers(n).prepare(_one_round, workers=workers, ordered=ordered)
        async for _ in pipeline.batch(64):
            pass

    return _in_loop(main)


def _bare_tasks() -> Run:
    async def main(n: int) -> None:
        items = iter(range(n))

        async def work() -> list[int]:
            return [await _one_round(i) for i in items]

        await asyncio.gather(*[work() for _ in range(4)])

    return _in_loop(main)


def _rollouts(train: Callable[[Any, int], Any]) -> Run:
    async def generate(prompt: Any, rollout: Any) -> Any:
        return await _one_round(prompt)

    return _in_loop(lambda n: train(generate, n // GROUP))


def _session() -> Run:
    import aioqueue.compat.v1 as tf

    graph = tf.Graph()
    with graph.as_default():
        channel = tf.FIFOQueue(50, [tf.float32, tf.int32], [[4], []])
        enqueue = channel.enqueue([tf.constant([1.0, 2, 3, 4]), tf.constant(3)])
        dequeue = channel.dequeue()
    session = tf.Session(graph=graph)
    return _blocking(lambda _: session.run(enqueue), lambda: session.run(dequeue), None)


def _of_peer(package: str) -> Run:
    channels = importlib.import_module(package)
    return _thread_to_loop(lambda: channels.Queue(50), lambda c: c.sync_q.put, "get")


_ASYNCIO = "asyncio.Queue"
_QUEUE = "queue.Queue"


def _paths() -> Iterator[Way]:
    ours = ("enqueue", "dequeue")
    theirs = ("put", "get")
    for capacity, n in ((50, 640), (1, 128)):
        title = f"one loop, capacity {capacity}"
        yield Way(title, partial(_one_loop, capacity, _fifo, *ours), n)
        peer = f"{title}: {_ASYNCIO}"
        yield Way(peer, partial(_one_loop, capacity, asyncio.Queue, *theirs), n, peer_of=title)
    title = "`await` enqueue and dequeue, nobody waits"
    yield Way(title, lambda: _without_waiting(_fifo, *ours))
    yield Way(
        f"{title}: {_ASYNCIO}", lambda: _without_waiting(asyncio.Queue, *theirs), peer_of=title
    )
    title = "blocking enqueue and dequeue, nobody waits"
    yield Way(title, _objects)
    yield Way(f"{title}: {_QUEUE}", _standard, peer_of=title)
    yield Way("the same, rows of two arrays", _typed_rows)
    yield Way("`queue.sync`", _faces)
    yield Way("32 objects in and out, per row", _object_batches)
    yield Way("32 rows of two arrays in and out, per row", _typed_batches)
    for capacity, n in ((50, 1000), (1, 200)):
        title = f"thread to thread, capacity {capacity}"
        yield Way(title, partial(_between_threads, capacity, _sync, *ours), n, THREADS)
        yield Way(
            f"{title}: {_QUEUE}",
            partial(_between_threads, capacity, queue.Queue, *theirs),
            n,
            THREADS,
            peer_of=title,
        )
    title = "thread to coroutine, capacity 50"
    yield Way(
        title,
        lambda: _thread_to_loop(lambda: _fifo(50), lambda c: c.sync.enqueue, "dequeue"),
        2000,
        THREADS,
    )
    for package in ("culsans", "janus"):
        yield Way(
            f"{title}: {package}",
            partial(_of_peer, package),
            1000,
            THREADS,
            peer_of=title,
            needs=package,
        )
    yield Way("thread to coroutine, in batches of 100", _batch_producer, 2000, THREADS)
    yield Way("`prepare` of a tiny function on two threads", _tiny, 512, SCHEDULED)
    yield Way("a pipeline of scalars on two threads", _scalars, 1280, SCHEDULED)
    title = "a pipeline on eight threads, with a function that does nothing"
    yield Way(title, partial(_pipeline, int, 8), 1280, SCHEDULED)
    title = "a pipeline on four tasks, which wait for a round"
    yield Way(title, _tasks, 1280)
    yield Way(f"{title}: bare tasks", _bare_tasks, 1280, peer_of=title)
    title = "a rollout of a group of 8, which waits for a round"
    yield Way(title, partial(_rollouts, rollouts.ours), 320)
    yield Way(f"{title}: by hand", partial(_rollouts, rollouts.manual), 320, peer_of=title)
    title = "a rollout of a group of 8, all of them in flight at once"
    yield Way(title, lambda: _in_loop(rollouts.all_at_once), 1280)
    yield Way(f"{title}: bare tasks", lambda: _in_loop(rollouts.bare_at_once), 1280, peer_of=title)
    for ordered, how in ((True, "in order"), (False, "as they come")):
        title = f"a pipeline on a hundred such tasks, {how}"
        yield Way(title, partial(_tasks, 100, ordered), 1280)
    yield Way("two calls of `Session.run`", _session, 100)


PATHS: Mapping[str, Way] = {path.title: path for path in _paths()}


# Counting.


def run_paths(titles: Iterable[str]) -> None:
    """Run paths, and mark the runs that count: what the child of `counted` does."""
    sys.setswitchinterval(sys.getswitchinterval() * SLOWER)
    flow_control = importlib.import_module("aioqueue.workers.flow_control")
    # The seconds below which items are read and enqueued together, and after which tasks pause.
    for name in ("_QUICK_SECONDS", "_READ_AHEAD_SECONDS", "_SLICE_SECONDS"):
        setattr(flow_control, name, getattr(flow_control, name) * SLOWER)
    runs = [(PATHS[title].make(), PATHS[title].n) for title in titles]
    gc.collect()
    gc.freeze()
    gc.disable()
    for run, n in runs:
        run(n)  # so that CPython has specialised the code
        for times in (1, 3):
            os.getppid()
            run(times * n)
        os.getppid()


def counted(titles: Iterable[str]) -> dict[str, float]:
    """Count the instructions per element of each path.

    Raises:
        RuntimeError: valgrind is not installed, or the child failed.
    """
    titles = list(titles)
    return per_element(titles, counters("benchmarks.instructions", ["--run", *titles]))


def per_element(titles: Iterable[str], sums: Sequence[int]) -> dict[str, float]:
    """Return the instructions per element of each path.

    Args:
        titles: the paths.
        sums: three counters for each, the second and third of them for n and 3n elements.
    """
    titles = list(titles)
    if len(sums) < 3 * len(titles):
        raise RuntimeError(f"got {len(sums)} counters for {len(titles)} paths")
    thrice = zip(titles, sums[1::3], sums[2::3], strict=False)
    return {title: (large - small) / (2 * PATHS[title].n) for title, small, large in thrice}


# Comparing.


@dataclass
class Record:
    """The figures of one version of Python, with the pure or the compiled core."""

    figures: dict[str, int]

    @property
    def yardstick(self) -> float:
        return self.figures[YARDSTICK]


def version() -> str:
    """The name of the record that counts here."""
    import aioqueue

    core = "compiled" if aioqueue.__compiled__ else "pure"
    return f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}, {core}"


def read_records() -> dict[str, Record]:
    records = json.loads(RECORDS.read_text(encoding="utf-8")) if RECORDS.exists() else {}
    return {name: Record(figures) for name, figures in records.items()}


def compare(record: Record, figures: Mapping[str, float]) -> dict[str, str]:
    """Return what has grown by more than its tolerance, with a line for each."""
    scale = figures[YARDSTICK] / record.yardstick
    grown = {}
    for title, now in figures.items():
        path, before = PATHS[title], record.figures.get(title)
        if path.peer_of or before is None:
            continue
        growth = now / (before * scale) - 1
        if growth > path.tolerance:
            grown[title] = (
                f"{title}: {now:,.0f} instructions, {growth:+.1%} over {before * scale:,.0f}"
                f" (at most {path.tolerance:+.0%})"
            )
    return grown


def grown_alone(
    record: Record,
    titles: Iterable[str],
    count: Callable[[Iterable[str]], Mapping[str, float]] = counted,
) -> list[str]:
    """Count each of some paths alone; return what has grown so, too, a line for each."""
    lines: list[str] = []
    for title in titles:
        lines += compare(record, count([title, YARDSTICK])).values()
    return lines


def table(record: Record) -> str:
    """Lay out the figures as a table in Markdown."""
    lines = ["| per element | aioqueue | peer |", "|---|---|---|"]
    for title, path in PATHS.items():
        if path.peer_of or title not in record.figures:
            continue
        peers = (
            f"{peer.title.removeprefix(f'{title}: ')} {record.figures[peer.title]:,}"
            for peer in PATHS.values()
            if peer.peer_of == title and peer.title in record.figures
        )
        lines.append(f"| {title} | {record.figures[title]:,} | {', '.join(peers) or '—'} |")
    return "\n".join(lines)


def write(figures: Mapping[str, float]) -> None:
    """Record new figures, and lay out the page's table if they are the ones that it shows."""
    records = read_records()
    kept = records.get(version(), Record({})).figures
    records[version()] = Record({**kept, **{title: round(n) for title, n in figures.items()}})
    plain = {
        name: {title: record.figures[title] for title in PATHS if title in record.figures}
        for name, record in sorted(records.items())
    }
    RECORDS.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    lay_out(records)


def lay_out(records: Mapping[str, Record]) -> None:
    """Write the tables into the page."""
    page = PAGE.read_text(encoding="utf-8")
    tables = "\n\n".join(f"{name}:\n\n{table(record)}" for name, record in sorted(records.items()))
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Count, print, and compare or record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions")
    parser.add_argument("--check", action="store_true", help="fail if a figure has grown")
    parser.add_argument("--write", action="store_true", help="record the figures")
    parser.add_argument("--only", nargs="+", choices=PATHS, metavar="NAME", help="some paths")
    parser.add_argument("--no-peers", action="store_true", help="leave the peers out")
    parser.add_argument("--run", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run_paths(options.run)
        return
    titles = [
        title
        for title, path in PATHS.items()
        if path.is_there
        and (options.only is None or title in options.only)
        and not (path.peer_of and (options.check or options.no_peers))
    ]
    if YARDSTICK not in titles:
        titles.append(YARDSTICK)
    figures = counted(titles)
    for title, figure in figures.items():
        print(f"{figure:10,.0f}  {title}")
    if options.write:
        write(figures)
    if options.check:
        record = read_records().get(version())
        if record is None:
            print(f"no figures of {version()} are recorded: nothing to compare with")
            return
        grown = grown_alone(record, compare(record, figures))
        for line in grown:
            print(f"GROWN: {line}")
        if grown:
            sys.exit(1)
        print("No figure has grown.")


if __name__ == "__main__":
    main()
