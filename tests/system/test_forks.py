"""Forks: what has begun in one process refuses in another, and what has not can begin there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
]

IN_A_FORK = """
import asyncio, logging, os, signal, sys, traceback, warnings
logging.disable()
warnings.simplefilter("ignore")
import aioqueue
from aioqueue import sync
from aioqueue.inputs import TFRecordWriter, batch, files, from_iterable, mix, numbers
from aioqueue.inputs import read_lines, read_records, read_tfrecords

def forked(check):
    child = os.fork()
    if not child:
        signal.alarm(20)
        status = 1
        try:
            check()
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

def refused(name, call):
    try:
        given = call()
    except RuntimeError as error:
        assert "fork" in str(error), (name, error)
    else:
        raise AssertionError(f"{name} gave {given!r}")

def run(coroutine_function):
    return lambda: asyncio.run(coroutine_function())

path = sys.argv[1]
"""

BEGUN = """
def pipelines():
    base = numbers(1000, seed=1)
    yield "no workers", base.batch(5)
    yield "filter, shuffle", base.filter(lambda n: True).shuffle(9).batch(5)
    yield "prepare", base.prepare(lambda n: n, workers=2).batch(5).prefetch(2)
    yield "lines", read_lines(path, seed=1).batch(5)
    yield "mix", mix([base, numbers(50)], seed=1).batch(5)

begun, calls, going_on = [], [], []
for name, pipeline in pipelines():
    epoch = iter(pipeline)
    expected = [list(map(str, one)) for one in pipeline][1:]
    next(epoch)
    epochs = pipeline.epochs(2)
    inner = next(epochs)
    next(inner)
    begun += [epoch, epochs, inner]
    going_on += [(name, epoch, expected), (name, inner, expected)]
    for one in (epoch, inner):
        calls += [(name, one.__next__), (name, one.state_dict)]
        calls.append((name, run(one.__anext__)))
    calls += [(name, epochs.__next__), (name, epochs.state_dict), (name, epochs.close)]
    calls += [(name, epochs.statistics), (name, run(epochs.__anext__)), (name, run(epochs.aclose))]

def sources():
    base = numbers(5000, seed=1)
    yield base
    yield base.epoch(1)
    yield base.after(base.position())
    yield mix([base, numbers(7)], seed=1)
    yield from_iterable(lambda: iter(range(5000)))
    yield files(path)
    yield read_lines([path, path])
    yield read_records(path, 5)
    yield mix([read_lines(path), read_lines(path)], seed=1)

for source in sources():
    for make in (source.__iter__, source.run, source.placed):
        expected = list(map(str, source)) if make == source.__iter__ else None
        run_of = make()
        next(run_of)
        calls.append((source, lambda r=run_of: next(r)))
        if expected:
            going_on.append((source, run_of, expected[1:]))

# A block of records is in memory; what comes behind it is of the parent alone.
entries = read_lines(path).entries()
next(entries)
calls.append(("entries", lambda: [*entries]))
left = len(list(read_lines(path))) - 1

coord = sync.Coordinator()
coord.__enter__()
stream = batch(numbers(100, 1, seed=1), 5, coord=coord, resume=None)
next(stream)
plain = batch(numbers(100, 1, seed=1), 5, coord=coord)
next(plain)
for one in (stream, plain):
    calls += [("stream", one.__next__), ("stream", one.close)]
calls.append(("stream", stream.state_dict))
queue = sync.FIFOQueue(5)
calls += [("queue", queue.size), ("queue", lambda: queue.enqueue(1))]
aio = coord.aio
for face in (coord, aio):
    calls += [("coordinator", face.should_stop), ("coordinator", face.request_stop)]
    calls += [("coordinator", face.clear_stop), ("coordinator", face.explain)]
calls += [("coordinator", coord.join), ("coordinator", lambda: coord.__exit__(None, None, None))]
calls += [("coordinator", run(aio.join)), ("coordinator", lambda: coord.wait_for_stop(5))]
batcher = sync.Batcher(lambda items: items, max_batch=2)
batcher.__enter__()
assert batcher(3) == 3
calls += [("batcher", lambda: batcher(1)), ("batcher", batcher.statistics)]
calls += [("batcher", lambda: batcher.__exit__(None, None, None))]

# An open file has one offset in both processes, however it is read.
opened = from_iterable(lambda: open(path))
entries_of_file = opened.entries()
next(entries_of_file)
calls.append(("entries of a file", lambda: [*entries_of_file]))

writer = TFRecordWriter(path + ".tfrecord")
writer.write(b"first")
closed = TFRecordWriter(path + ".closed")
closed.close()
calls += [("writer", lambda: writer.write(b"")), ("writer", writer.flush), ("writer", writer.close)]
calls.append(("writer", lambda: writer.__exit__(None, None, None)))

def check():
    for name, call in calls:
        refused(name, call)
    closed.close()
    assert writer.__exit__(SystemExit, SystemExit(), None) is None
    repr([begun, coord, aio, batcher, queue, stream])
    aioqueue.explain()
    assert coord.__exit__(SystemExit, SystemExit(), None) is None  # which goes on
    assert begun[1].__exit__(SystemExit, SystemExit(), None) is None
    begun.clear()

forked(lambda: forked(check))
forked(check)
for name, one, expected in going_on:
    assert [str(x) if isinstance(x, (str, bytes, int)) else list(map(str, x)) for x in one] == (
        expected
    ), name
assert len([*entries]) == left
assert len([*entries_of_file]) == left
writer.write(b"second")
writer.close()
assert list(read_tfrecords(path + ".tfrecord")) == [b"first", b"second"]
assert batcher(4) == 4
batcher.__exit__(None, None, None)
assert sum(map(len, stream)) + sum(map(len, plain)) == 190
coord.__exit__(None, None, None)
print("all")
"""

READ_AHEAD = """
async def main():
    run = aiter(read_lines(path))
    await anext(run)

    async def go_on():
        return await anext(run)

    def step():
        try:
            go_on().send(None)
        except StopIteration as end:
            return end.value

    forked(lambda: refused("read ahead", step))
    assert len([one async for one in run]) == len(list(read_lines(path))) - 1
    await run.aclose()

asyncio.run(main())
print("all")
"""

NOT_BEGUN = """
pipeline = numbers(20, seed=1).prepare(lambda n: n, workers=2).batch(5)
epochs = pipeline.epochs(1)
epoch = pipeline.epochs(1)
lines = iter(read_lines(path))
source = numbers(5)
coord = sync.Coordinator()
aio = aioqueue.Coordinator()
batcher = sync.Batcher(lambda items: [2 * item for item in items])
waiting = aioqueue.Batcher(lambda items: items)

async def check_async():
    async with aio:
        async with waiting:
            assert await waiting(5) == 5
    return [batch.tolist() async for batch in pipeline]

def check():
    assert sum(len(list(one)) for one in epochs) == 4
    epoch.state_dict()
    epoch.close()
    assert len(list(pipeline)) == 4
    assert next(lines) == "0"
    assert list(source) == [0, 1, 2, 3, 4]
    with coord:
        assert not coord.should_stop()
        stream = batch(numbers(10, 1), 5, coord=coord)
        assert len(list(stream)) == 2
    with batcher:
        assert batcher(4) == 8
    assert len(asyncio.run(check_async())) == 4

forked(check)
check()
print("all")
"""

EXPLAINED = """
import threading

def begin(call):
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread

def waiting(coordinator):
    queue = sync.FIFOQueue(5)
    worker = begin(queue.dequeue)
    coordinator.register(worker)
    join = begin(coordinator.join)
    while len(found := [*aioqueue.explain().waits]) < 1 or not aioqueue.explain().queues:
        pass
    assert [one.name for one in found] == [join.name]
    assert [one.name for one in aioqueue.explain().queues] == [queue.name]
    assert [one.name for one in coordinator.explain().coordinators[0].workers] == [worker.name]
    return worker, join

def end(worker, join, coordinator):
    coordinator.request_stop()
    worker.join()
    join.join()

coord, later, latest = sync.Coordinator(), sync.Coordinator(), sync.Latest()
threading.excepthook = lambda error: None
kept = waiting(coord)

def check():
    explained = aioqueue.explain()
    assert (explained.waits, explained.queues, explained.stages) == ((), (), ())
    assert len(explained.coordinators) == 1
    reader = begin(lambda: latest.wait_newer(0))
    while not (found := aioqueue.explain().waits):
        pass
    assert found[0].name == reader.name
    latest.close()
    reader.join()
    end(*waiting(later), later)

forked(check)
forked(lambda: forked(check))
end(*kept, coord)
print("all")
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forks") / "lines.txt"
    path.write_text("".join(f"{number}\n" for number in range(20_000)))
    return path


@pytest.mark.parametrize(
    "what",
    [BEGUN, READ_AHEAD, NOT_BEGUN, EXPLAINED],
    ids=["begun", "ahead", "not-begun", "explained"],
)
def test_a_run_belongs_to_the_process_that_began_it(what: str, path: Path) -> None:
    program = [sys.executable, "-c", IN_A_FORK + what, str(path)]
    ran = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.stdout, ran.stderr) == ("all\n", "")
