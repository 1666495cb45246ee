"""An open file ends with its reader, and a reader with its last reference: nothing waits for the
cyclic garbage collector, which may not come by before the system has no descriptors left.

The table has a program for each reader, source of files, cache and sink. A test compares it with
what the package offers, so that a new one has to be entered here. Each program runs in each way of
leaving it, with the collector off. Afterwards there are as many descriptors, mappings of files and
threads of ours as before, and the collector finds nothing of ours to collect.
"""

from __future__ import annotations

import asyncio
import gc
import glob
import importlib
import inspect
import itertools
import logging
import mmap
import os
import pkgutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import BuiltinFunctionType, CellType, FunctionType, GeneratorType, MethodType
from typing import Any, TypeAlias

import numpy as np
import pytest

import aioqueue
from aioqueue import DataLossError, inputs, sync
from aioqueue.inputs import items
from aioqueue.pipeline.cache import CacheStore
from aioqueue.pipeline.sink import RowWriter, Sink
from tests.kit.worlds import spin_until

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("google_crc32c", reason="google-crc32c is not installed")

Make: TypeAlias = Callable[[Path], Any]
"""Makes a source or pipeline of what is in a folder."""

WRONG = (aioqueue.InvalidArgumentError, ExceptionGroup, DataLossError)
ROWS = 90
HAS_PROC = os.path.isdir("/proc/self/fd")


class BodyError(Exception):
    """Of the loop's own body."""


def table() -> Any:
    return pa.table({"a": list(range(ROWS)), "text": [f"text {n}" for n in range(ROWS)]})


def rows() -> list[dict[str, Any]]:
    return [{"a": n, "b": np.full(3, n)} for n in range(ROWS)]


def parquet_files(folder: Path) -> str:
    items(rows()).write(inputs.to_parquet(folder / "parquet", rows_per_file=30))
    return str(folder / "parquet/*.parquet")


def arrow_file(folder: Path) -> str:
    with pa.ipc.new_file(str(folder / "a.arrow"), table().schema) as file:
        file.write_table(table(), max_chunksize=20)
    return str(folder / "a.arrow")


def arrow_stream(folder: Path) -> str:
    with pa.ipc.new_stream(str(folder / "s.arrow"), table().schema) as file:
        file.write_table(table(), max_chunksize=20)
    return str(folder / "s.arrow")


def text_file(folder: Path) -> str:
    (folder / "a.csv").write_text("a,b\n" + "".join(f"{n},x{n}\n" for n in range(ROWS)))
    return str(folder / "a.csv")


def lines(folder: Path, **options: Any) -> str:
    sink = inputs.to_json_lines(folder / "lines", rows_per_file=30, **options)
    items(rows()).write(sink)
    return str(folder / "lines/*.jsonl*")


def archives(folder: Path) -> str:
    samples = [{"x": b"%d" % n} for n in range(ROWS)]
    items(samples).write(inputs.to_tar(folder / "tar", rows_per_file=30))
    return str(folder / "tar/*.tar")


def records(folder: Path) -> str:
    found = [b"%d" % n for n in range(ROWS)]
    items(found).write(inputs.to_tfrecord(folder / "records", rows_per_file=30))
    return str(folder / "records/*.tfrecord")


def damaged(folder: Path) -> Any:
    """Half of these files are damaged."""
    for number in range(4):
        (folder / f"{number}.jsonl").write_text("1\n2\n" + ("x\n" if number % 2 else "3\n"))
    return inputs.read_json_lines(
        inputs.files(folder / "*.jsonl"), on_error="skip", quarantine=folder / "quarantine"
    )


def cut_short(path: str) -> str:
    """Damage the last of some files."""
    last = Path(max(glob.glob(path)))
    content = last.read_bytes()
    last.write_bytes(content[: len(content) * 2 // 3])
    return path


def quarantined(folder: Path) -> Any:
    list(damaged(folder))
    return inputs.read_quarantine(folder / "quarantine")


class Row:
    """Nothing that a file of a cache can hold."""


READERS: dict[str, Make] = {
    "read_parquet": lambda folder: inputs.read_parquet(inputs.files(parquet_files(folder))),
    "read_parquet batches": lambda folder: inputs.read_parquet(
        inputs.files(parquet_files(folder)), batch_size=7
    ),
    "read_parquet union": lambda folder: inputs.read_parquet(
        inputs.files(parquet_files(folder)), schema="union", filters=[("a", ">", 3)]
    ),
    "read_parquet interleaved": lambda folder: inputs.read_parquet(
        inputs.files(parquet_files(folder))
    ).interleave(2),
    "read_arrow": lambda folder: inputs.read_arrow(arrow_file(folder)),
    "read_arrow stream": lambda folder: inputs.read_arrow(arrow_stream(folder), batch_size=9),
    "read_csv": lambda folder: inputs.read_csv(
        text_file(folder), {"a": int, "b": str}, skip_header_lines=1
    ),
    "read_lines": lambda folder: inputs.read_lines(text_file(folder)).with_keys(),
    "read_json_lines": lambda folder: inputs.read_json_lines(
        inputs.files(lines(folder, compression="gzip"))
    ),
    "read_json_lines damaged": damaged,
    "read_quarantine": quarantined,
    "read_csv damaged": lambda folder: inputs.read_csv(
        text_file(folder), {"b": int}, skip_header_lines=1
    ),
    "read_lines damaged": lambda folder: inputs.read_lines(
        inputs.files(cut_short(lines(folder, compression="gzip"))), on_error="skip"
    ),
    "read_parquet damaged": lambda folder: inputs.read_parquet(
        inputs.files(cut_short(parquet_files(folder)))
    ),
    "read_arrow damaged": lambda folder: inputs.read_arrow(cut_short(arrow_stream(folder))),
    "read_tar damaged": lambda folder: inputs.read_tar(
        inputs.files(cut_short(archives(folder))), on_error="skip"
    ),
    "read_tfrecords damaged": lambda folder: inputs.read_tfrecords(
        inputs.files(cut_short(records(folder)))
    ),
    "read_records": lambda folder: inputs.read_records(text_file(folder), 1),
    "read_tar": lambda folder: inputs.read_tar(inputs.files(archives(folder))),
    "read_tfrecords": lambda folder: inputs.read_tfrecords(inputs.files(records(folder))),
    "read_whole_files": lambda folder: inputs.read_whole_files(inputs.files(lines(folder))),
    "cache in files": lambda folder: items(rows()).cache(folder / "cache"),
    "cache in files, of files": lambda folder: (
        inputs.read_parquet(inputs.files(parquet_files(folder)))
        .prepare(lambda row: (row["a"], row["b"], str(row["a"]), {"x": [row["a"]]}), workers=2)
        .cache(folder / "cache")
        .shuffle(8)
    ),
    "cache in memory": lambda folder: items(rows()).cache(),
    "cache that fails": lambda folder: items([*rows(), {"a": Row(), "b": 0}]).cache(folder / "c"),
    "mix of readers": lambda folder: inputs.mix(
        [inputs.read_lines(text_file(folder)), inputs.read_json_lines(inputs.files(lines(folder)))]
    ),
}
"""What reads files, by the function that makes it, and further variants of it."""

SINKS: dict[str, Callable[[Path], Any]] = {
    "to_parquet": lambda folder: items(rows()).write(inputs.to_parquet(folder, rows_per_file=30)),
    "to_parquet batches": lambda folder: (
        items(rows()).batch(7).write(inputs.to_parquet(folder, rows_per_file=30))
    ),
    "to_parquet that fails": lambda folder: items([*rows(), {"a": "x", "b": 0}]).write(
        inputs.to_parquet(folder, rows_per_file=30)
    ),
    "to_json_lines": lambda folder: items(rows()).write(inputs.to_json_lines(folder)),
    "to_json_lines gzip": lambda folder: items(rows()).write(
        inputs.to_json_lines(folder, compression="gzip")
    ),
    "to_json_lines that fails": lambda folder: items([*rows(), {"a": Row()}]).write(
        inputs.to_json_lines(folder, compression="xz")
    ),
    "to_tar": lambda folder: items([{"x": b"%d" % n} for n in range(ROWS)]).write(
        inputs.to_tar(folder, compression="bz2")
    ),
    "to_tar that fails": lambda folder: items([{"x": b"1"}, {"x": Row()}]).write(
        inputs.to_tar(folder)
    ),
    "to_tfrecord": lambda folder: items([b"1", b"2"]).write(inputs.to_tfrecord(folder)),
    "to_tfrecord that fails": lambda folder: items([b"1", 2]).write(inputs.to_tfrecord(folder)),
    "in tasks": lambda folder: asyncio.run(
        items(rows()).awrite(inputs.to_parquet(folder, rows_per_file=30))
    ),
    "that goes on": lambda folder: [
        items(rows()).write(inputs.to_json_lines(folder, rows_per_file=30)) for _ in range(2)
    ],
}
"""What writes files, by the function that makes it, and further variants of it."""

ELSEWHERE = {
    "read_journal": "tests of journals: it holds its lines in memory, and no file",
    "kafka": "a topic, and no file; see test_kafka.py",
    "ray_dataset": "blocks of Ray, and no file; see tests/ray",
    "huggingface_dataset": "a dataset that the user has opened; see test_huggingface.py",
}


def has_files(name: str) -> bool:
    """Whether a function of the package reads or writes files, or makes what does so."""
    found = getattr(inputs, name)
    if not inspect.isfunction(found):
        return False
    made = str(inspect.signature(found).return_annotation)
    is_dataset = name.endswith("_dataset") or made in ("Kafka", "RayDataset")
    return name.startswith("read_") or made.startswith(("Reader", "Sink")) or is_dataset


def test_each_reader_and_sink_is_in_the_table() -> None:
    known = {name.split()[0] for name in (*READERS, *SINKS)} | set(ELSEWHERE)
    assert {name for name in inputs.__all__ if has_files(name)} <= known


def _all_below(kind: Any) -> set[Any]:
    below = {one for each in kind.__subclasses__() for one in (each, *_all_below(each))}
    return {one for one in below if one.__module__.startswith("aioqueue.")}


def test_each_cache_and_writer_is_in_the_table(tmp_path: Path) -> None:
    """Each class that the package derives from those that hold files open is in use here."""
    for module in pkgutil.walk_packages(inputs.__path__, "aioqueue.inputs."):
        with suppress(ImportError):
            importlib.import_module(module.name)
    used: set[Any] = set()
    originals = {
        one: one.__init__ for kind in (CacheStore, RowWriter, Sink) for one in _all_below(kind)
    }

    def noting(kind: Any, original: Any) -> Any:
        def made(self: Any, *given: Any, **options: Any) -> None:
            used.add(type(self))
            original(self, *given, **options)

        return made

    with pytest.MonkeyPatch.context() as patch:
        for kind, original in originals.items():
            patch.setattr(kind, "__init__", noting(kind, original))
        for number, run in enumerate(SINKS.values()):
            with suppress(*WRONG):
                run(tmp_path / f"sink {number}")
        for number, make in enumerate(READERS.values()):
            folder = tmp_path / f"reader {number}"
            folder.mkdir()
            make(folder)
            with suppress(*WRONG):
                list(make(folder))
    assert used == {one for one in originals if not inspect.isabstract(one)}


def run_to_the_end(source: Any) -> None:
    for _ in source:
        pass


def break_at_once(source: Any) -> None:
    for _ in source:
        break


def fail_in_the_body(source: Any) -> None:
    with suppress(BodyError):
        for _ in source:
            raise BodyError


def prepare_on_threads(source: Any) -> None:
    for _ in source.prepare(lambda example: example, workers=2):
        pass


def break_behind_threads(source: Any) -> None:
    for _ in source.prepare(lambda example: example, workers=2):
        break


def fail_on_threads(source: Any) -> None:
    def bad(example: Any) -> None:
        raise BodyError

    with suppress(ExceptionGroup):
        for _ in source.prepare(bad, workers=2):
            pass


def two_epochs(source: Any) -> None:
    with source.batch(2, collate=list).epochs(2) as epochs:
        for epoch in epochs:
            for _ in epoch:
                pass


def resume(source: Any) -> None:
    pipeline = source.batch(2, collate=list)
    with pipeline.epochs(1) as epochs:
        for epoch in epochs:
            next(iter(epoch), None)
            state = epochs.state_dict()
            break
    with pipeline.epochs(1, resume=state) as epochs:
        for epoch in epochs:
            for _ in epoch:
                pass


def fail_in_tasks(source: Any) -> None:
    async def bad(example: Any) -> None:
        raise BodyError

    async def main() -> None:
        with suppress(ExceptionGroup):
            async for _ in source.prepare(bad, workers=2):
                pass

    asyncio.run(main())


def tasks_on_threads(source: Any) -> None:
    async def same(example: Any) -> Any:
        return example

    for _ in source.prepare(same, workers=2):
        pass


def in_a_task(source: Any) -> None:
    async def main() -> None:
        # `asyncio.run` would keep what this raises, in a circle of its own.
        with suppress(*WRONG):
            async for _ in source:
                pass

    asyncio.run(main())


def break_in_a_task(source: Any) -> None:
    async def main() -> None:
        with suppress(*WRONG):
            await until_the_break()

    async def until_the_break() -> None:
        async with source.batch(2, collate=list).epochs(1) as epochs:
            async for epoch in epochs:
                async for _ in epoch:
                    break

    asyncio.run(main())


WAYS = (
    *(run_to_the_end, break_at_once, fail_in_the_body, prepare_on_threads, break_behind_threads),
    *(
        fail_on_threads,
        fail_in_tasks,
        tasks_on_threads,
        two_epochs,
        resume,
        in_a_task,
        break_in_a_task,
    ),
)


def opened() -> dict[str, int]:
    """How many descriptors and mappings of files there are, and threads of ours."""
    found = {"threads": len([one for one in threading.enumerate() if "aioqueue" in one.name])}
    if HAS_PROC:
        found["descriptors"] = len(os.listdir("/proc/self/fd"))
        maps = Path("/proc/self/maps").read_text().splitlines()
        found["mappings"] = sum("pytest-" in line for line in maps)
    return found


_PLAIN = (FunctionType, MethodType, BuiltinFunctionType, GeneratorType, CellType)


def is_of_ours(thing: Any) -> bool:
    kind = type(thing)
    if kind.__module__.startswith(("aioqueue", "mmap", "pyarrow", "_io")):
        return True
    module = getattr(thing, "__module__", None)
    return isinstance(thing, _PLAIN) and isinstance(module, str) and module.startswith("aioqueue")


def left_behind(program: Callable[[], object]) -> tuple[dict[str, int], list[str]]:
    """Run a program with the collector off.

    Returns:
        What is open more than before it, and what of ours only the collector finds.
    """
    spin_until(lambda: not opened()["threads"])
    gc.collect()
    gc.disable()
    before = opened()
    try:
        program()
        spin_until(lambda: not opened()["threads"])  # who was told to end may take a moment
        after = opened()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        more = {name: after[name] - count for name, count in before.items() if after[name] > count}
        return more, sorted(
            {f"{type(one).__name__} {one!r:.80}" for one in gc.garbage if is_of_ours(one)}
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "aioqueue")  # a record keeps its exception


# The quick run has a few ways of each reader, and a few readers of each way.
PAIRS = [
    pytest.param(
        name,
        way,
        id=f"{name}, {way.__name__}",
        marks=[] if (at + 3 * number) % 7 == 0 else pytest.mark.slow,
    )
    for at, name in enumerate(READERS)
    for number, way in enumerate(WAYS)
]


@pytest.mark.parametrize(("name", "way"), PAIRS)
def test_reading_leaves_nothing_to_the_collector(name: str, way: Any, tmp_path: Path) -> None:
    numbers = itertools.count()

    def program() -> None:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        with suppress(*WRONG):
            way(READERS[name](folder))

    program()  # what is imported and made once
    assert left_behind(program) == ({}, [])


@pytest.mark.parametrize("name", SINKS)
def test_writing_leaves_nothing_to_the_collector(name: str, tmp_path: Path) -> None:
    numbers = itertools.count()

    def program() -> None:
        with suppress(*WRONG):
            SINKS[name](tmp_path / str(next(numbers)))

    program()
    assert left_behind(program) == ({}, [])


async def bad_async(example: Any) -> None:
    raise BodyError


def bad(example: Any) -> None:
    raise BodyError


def run_a_batcher() -> None:
    async def main() -> None:
        async with aioqueue.Batcher(sorted, max_batch=4) as batcher:
            await asyncio.gather(*map(batcher, range(9)))

    asyncio.run(main())


def run_a_batcher_that_fails() -> None:
    async def main() -> None:
        failing: Any = bad_async
        async with aioqueue.Batcher(failing, max_batch=4) as batcher:
            await asyncio.gather(*map(batcher, range(9)), return_exceptions=True)

    asyncio.run(main())


def run_a_runner() -> None:
    numbers = iter(range(20))

    def number() -> None:
        try:
            queue.enqueue(next(numbers))
        except StopIteration:
            raise aioqueue.OutOfRangeError("no more") from None

    queue = sync.FIFOQueue(4)
    with sync.Coordinator() as coordinator:
        coordinator.start(sync.QueueRunner(queue, [number] * 2))
        list(queue)


def sample_a_run() -> None:
    pipeline = items(range(30)).prepare(float, workers=2).batch(2)
    with pipeline.monitor() as monitor:
        list(pipeline)
        monitor.snapshot()


OTHERS: dict[str, Callable[[], object]] = {
    "batcher": run_a_batcher,
    "batcher that fails": run_a_batcher_that_fails,
    "monitor": sample_a_run,
    "runner": run_a_runner,
    "failure in a thread": lambda: list(items(range(30)).prepare(bad, workers=2)),
    "failure in a task": lambda: list(items(range(30)).prepare(bad_async, workers=2)),
    "failure under a timeout": lambda: list(
        items(range(30)).prepare(bad, workers=2, item_timeout=60)
    ),
    "failure of the first": lambda: list(items(range(30)).filter(bad)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_programs_leave_nothing_to_the_collector(name: str) -> None:
    def program() -> None:
        with suppress(*WRONG):
            OTHERS[name]()

    program()
    assert left_behind(program) == ({}, [])


def test_the_test_sees_what_is_left(tmp_path: Path) -> None:
    class Circle:
        def __init__(self) -> None:
            path = tmp_path / "x"
            path.write_bytes(b"x")
            with path.open("rb") as file:
                self.memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self.close = lambda: self.memory.close()

    more, garbage = left_behind(Circle)
    assert more == ({"descriptors": 1, "mappings": 1} if HAS_PROC else {})
    assert any("mmap" in one for one in garbage)
