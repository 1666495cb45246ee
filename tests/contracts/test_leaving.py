"""A pipeline that was left leaves nothing behind: not a file, nor a thread, nor a circle.

An open file ends with its reader, and a reader with its last reference: nothing waits for the
cyclic garbage collector, which may not come by before the system has no descriptors left.

Each kind runs in each way of leaving it, with the collector off. Afterwards there are as many
descriptors, mappings of files and threads of ours as before, and the collector finds nothing of
ours to collect.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import mmap
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import pytest

import aioqueue
from aioqueue import DataLossError, sync
from aioqueue.inputs import Retry, items
from aioqueue.pipeline.cache import CacheStore
from aioqueue.pipeline.sink import RowWriter
from tests.contracts.programs import (
    Program,
    asked,
    asked_formats,
    damaged_reader,
    programs_asked,
    sink_of,
    sinks_asked,
)
from tests.kit.examples import HAS_PYARROW, executed
from tests.kit.functions import refuses_five, refuses_five_in_a_task
from tests.kit.kinds import Kind, concrete
from tests.kit.left_behind import HAS_PROC, left_behind, opened
from tests.kit.resuming import How
from tests.kit.worlds import spin_until

WRONG = (aioqueue.InvalidArgumentError, ExceptionGroup, DataLossError)


class BodyError(Exception):
    """Of the loop's own body."""


def rows() -> list[dict[str, Any]]:
    return [{"a": n, "b": np.full(3, n)} for n in range(90)]


class Row:
    """Nothing that a file of a cache can hold."""


class Case(NamedTuple):
    """Something to leave.

    Args:
        name: for messages.
        make: makes it, of a folder for itself, and of one with the files of the examples.
    """

    name: str
    make: Callable[[Path, Path], Any]


def _program(program: Program) -> Case:
    return Case(str(program), lambda own, folder: program.pipeline(How(2), folder))


def _damaged(kind: Kind, on_error: str) -> Case:
    return Case(
        f"{kind.name} damaged, {on_error}",
        lambda own, folder: damaged_reader(kind, own, on_error=on_error),
    )


CACHES = [
    Case("cache in files", lambda own, folder: items(rows()).cache(own / "cache")),
    Case(
        "cache in files, of containers",
        lambda own, folder: (
            items(rows())
            .prepare(lambda row: (row["a"], row["b"], str(row["a"]), {"x": [row["a"]]}), workers=2)
            .cache(own / "cache")
            .shuffle(8)
        ),
    ),
    Case("cache in memory", lambda own, folder: items(rows()).cache()),
    Case(
        "cache that fails",
        lambda own, folder: items([*rows(), {"a": Row(), "b": 0}]).cache(own / "c"),
    ),
]


def cases() -> list[Case]:
    """What is left: the programs of all kinds, damaged files of all formats, and caches."""
    return [
        *(_program(one) for one in programs_asked("leaving") if not one.is_slow),
        *(
            _damaged(kind, on_error)
            for kind in asked_formats("leaving")
            for on_error in ("stop", "skip")
        ),
        *(CACHES if HAS_PYARROW else CACHES[2:3]),
    ]


def write_all(sink: Callable[..., Any], row: Callable[[int], Any], unfit: Any) -> None:
    items([row(number) for number in range(20)]).write(sink(rows_per_file=6))


def write_batches(sink: Callable[..., Any], row: Callable[[int], Any], unfit: Any) -> None:
    items([row(number) for number in range(20)]).batch(4).write(sink(rows_per_file=6))


def write_what_does_not_fit(
    sink: Callable[..., Any], row: Callable[[int], Any], unfit: Any
) -> None:
    items([row(0), row(1), unfit]).write(sink(rows_per_file=2))


def write_in_a_task(sink: Callable[..., Any], row: Callable[[int], Any], unfit: Any) -> None:
    asyncio.run(items([row(number) for number in range(20)]).awrite(sink(rows_per_file=6)))


def write_twice(sink: Callable[..., Any], row: Callable[[int], Any], unfit: Any) -> None:
    for _ in range(2):
        write_all(sink, row, unfit)


WRITING = (write_all, write_batches, write_what_does_not_fit, write_in_a_task, write_twice)


def test_each_cache_and_writer_is_in_use(tmp_path: Path, folder: Path) -> None:
    """Each class that the package derives from those that hold files open is left by a test."""
    classes = [*concrete(CacheStore), *concrete(RowWriter)]
    used: set[Any] = set()

    def noting(kind: Any, original: Any) -> Any:
        def made(self: Any, *given: Any, **options: Any) -> None:
            used.add(type(self))
            original(self, *given, **options)

        return made

    with pytest.MonkeyPatch.context() as patch:
        for cls in classes:
            patch.setattr(cls, "__init__", noting(cls, cls.__init__))
        for number, case in enumerate(CACHES):
            with suppress(*WRONG):
                list(case.make(tmp_path / f"cache {number}", folder))
        for kind, example, options in sinks_asked("leaving"):
            sink = sink_of(kind, tmp_path / f"sink {kind.name} {options}", options)
            write_all(sink, example.row, example.unfit)
    unused = sorted(one.__qualname__ for one in classes if one not in used)
    assert not unused, f"in use by no example of tests/kit/examples.py: {', '.join(unused)}"


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


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "aioqueue")  # a record keeps its exception


IN_GZIP = "BufferedWriter <_io.BufferedWriter>" if sys.version_info >= (3, 12) else None
"""What `gzip` itself keeps in a circle, in some versions of Python."""


def check_nothing_is_left(
    program: Any, *, is_failure: bool = False, allowed: str | None = None
) -> None:
    """Run a program; check what it leaves open, and what only the collector finds.

    Args:
        program: what runs.
        is_failure: whether an exception ends a coroutine or a generator of the program. Since
            Python 3.12 the frames of these keep their callers, and so the object that has the
            exception: then only the collector finds it. Nothing else may be open.
        allowed: what may be left.
    """
    opened, found = left_behind(program)
    if is_failure and sys.version_info >= (3, 12):
        assert opened == {} or allowed in opened
    else:
        assert (opened, [one for one in found if one != allowed]) == ({}, [])


# The quick run has a few ways of each case, and a few cases of each way.
PAIRS = [
    pytest.param(
        case,
        way,
        id=f"{case.name}, {way.__name__}",
        marks=[] if (at + 3 * number) % 17 == 0 else pytest.mark.slow,
    )
    for at, case in enumerate(cases())
    for number, way in enumerate(WAYS)
]


@pytest.mark.parametrize(("case", "way"), PAIRS)
def test_reading_leaves_nothing_to_the_collector(
    case: Case, way: Any, tmp_path: Path, folder: Path
) -> None:
    numbers = itertools.count()

    def program() -> None:
        own = tmp_path / str(next(numbers))
        own.mkdir()
        with suppress(*WRONG):
            way(case.make(own, folder))

    program()  # what is imported and made once
    is_damaged = "damaged, stop" in case.name or ("damaged" in case.name and way is two_epochs)
    in_task = way is fail_in_tasks
    # An example of a cache is memory of its file, and an argument of the function that fails.
    allowed = "mappings" if in_task and "cache" in case.name else None
    check_nothing_is_left(program, is_failure=is_damaged or in_task, allowed=allowed)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("way", WRITING)
@pytest.mark.parametrize(
    ("kind", "example", "options"),
    [
        pytest.param(*one, id=f"{one[0].name} {' '.join(map(str, one[2].values()))}")
        for one in sinks_asked("leaving")
    ],
)
def test_writing_leaves_nothing_to_the_collector(
    kind: Kind, example: Any, options: Any, way: Any, tmp_path: Path
) -> None:
    numbers = itertools.count()

    def program() -> None:
        with suppress(*WRONG):
            sink = sink_of(kind, tmp_path / str(next(numbers)), options)
            way(sink, example.row, example.unfit)

    program()
    check_nothing_is_left(program, allowed=IN_GZIP if "gzip" in options.values() else None)


@pytest.mark.slow(but=("thread", "task"))
@asked("leaving", of="executor")
def test_workers_that_wait_for_a_retry_end_at_once(program: Program) -> None:
    functions = (refuses_five, refuses_five_in_a_task)
    retry = Retry(1, backoff=60)
    pipeline = executed(program.kind.cls, How(2), functions, items(range(10)), on_error=retry)
    for value in pipeline:
        if value == 4:
            break
    begun = perf_counter()
    del pipeline
    spin_until(lambda: not opened()["threads"])
    assert perf_counter() - begun < 20, f"{program.kind}: its stop does not end what waits"


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
    check_nothing_is_left(program, is_failure=name == "failure in a task")


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
