"""An import loads what it needs, and no more; the names are all there, whichever comes first."""

from __future__ import annotations

import ast
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import aioqueue
from aioqueue import inputs, sync, telemetry

FACES = (aioqueue, sync, inputs)
STATIC = "typing.TYPE_CHECKING"
ROOT = Path(aioqueue.__file__).parents[1]

CORE = """
from aioqueue import FIFOQueue, PaddingFIFOQueue, PriorityQueue, RandomShuffleQueue
from aioqueue import Coordinator, LooperTask, QueueRunner, sync
sync.FIFOQueue, sync.QueueRunner, sync.Coordinator
"""
"""What programs with queues and runners use."""


def run(program: str, *arguments: str) -> list[str]:
    """What a program prints in a fresh interpreter, by words."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


LOADED = f"""
import sys

def ours():
    return {{name for name in sys.modules if name.split(".")[0] == "aioqueue"}}

import aioqueue
alone, has_loop = ours(), "asyncio" in sys.modules
{CORE}
core = ours()
from aioqueue.inputs import files
source = ours() - core
from aioqueue.workers import runner
others = {{"multiprocessing", "http", "email", "argparse", "unittest"}} & set(sys.modules)
kind = type(aioqueue.inputs.prepare).__name__
print(len(alone), has_loop, len(core), len(source), sorted(others), kind)
print(*sorted(core | source))
"""


@pytest.mark.slow
def test_an_import_loads_what_it_needs() -> None:
    alone, has_loop, core, source, others, kind, *names = run(LOADED)
    assert (int(alone) <= 4, has_loop) == (True, "False"), "`import aioqueue` loads no queue"
    assert int(core) <= 80
    assert int(source) <= 31  # folders included; what they cost, the next test says
    assert others == "[]"
    assert kind == "function"
    parts = {".".join(name.split(".")[1:3]) for name in names}
    assert "sources.kinds" in parts
    assert not parts & {
        "telemetry.monitor",
        "telemetry.views",
        "telemetry.export",
        "pipeline.batches",
        "pipeline.streams",
    }
    assert not {part.split(".")[0] for part in parts} & {"batcher", "processes", "torch", "ray"}


IN_A_LOOP = """
import asyncio, aioqueue
async def main():
    queue, source = aioqueue.FIFOQueue(10), iter(range(4))
    async def fill():
        for number in source:
            await queue.enqueue(number)
            return
        raise aioqueue.OutOfRangeError("no more")
    async with aioqueue.Coordinator(watchdog=60) as coord:
        coord.start(aioqueue.QueueRunner(queue, [fill] * 2))
        assert [await queue.dequeue(), *await queue.dequeue_many(3)] == [0, 1, 2, 3]
    assert aioqueue.explain().waits == ()
asyncio.run(main())
"""
IN_THREADS = """
from aioqueue import OutOfRangeError, sync
queue, source = sync.FIFOQueue(10, max_bytes=1000, name="numbers"), iter(range(4))
def fill():
    for number in source:
        queue.enqueue(number)
        return
    raise OutOfRangeError("no more")
with sync.Coordinator() as coord:
    coord.start(sync.QueueRunner(queue, [fill]))
    assert list(queue) == [0, 1, 2, 3]
"""
BY_PRIORITY = """
import aioqueue
queue = aioqueue.PriorityQueue(10)
for element in ((2, {"a": 1}), (-(2**63), None)):
    queue.enqueue_nowait(element)
assert queue.dequeue_nowait() == (-(2**63), None)
for wrong in ((2**63, 1), (1.5, 1), 7):
    try:
        queue.enqueue_nowait(wrong)
    except aioqueue.InvalidArgumentError as error:
        assert "got" in str(error)
    else:
        raise AssertionError(wrong)
"""


@pytest.mark.slow(but="IN_A_LOOP")
@pytest.mark.parametrize("program", ["IN_A_LOOP", "IN_THREADS", "BY_PRIORITY"])
def test_queues_of_objects_do_without_numpy(program: str) -> None:
    loaded = f"{globals()[program]}\nimport sys\nprint('numpy' in sys.modules)"
    assert run(loaded) == ["False"]


@pytest.mark.slow
def test_arrays_are_objects_of_a_queue_that_was_made_without_numpy() -> None:
    program = """
import sys
from aioqueue import InvalidArgumentError, sync
queue = sync.FIFOQueue(10)
sized = sync.FIFOQueue(10, max_bytes=900)
ordered = sync.PriorityQueue(10)
assert "numpy" not in sys.modules
import numpy as np

array = np.arange(6).reshape(3, 2)
queue.enqueue(array)
assert queue.dequeue() is array
queue.enqueue_many(array)
array[...] = 0
assert [row.tolist() for row in queue.dequeue_many(np.int64(3))] == [[0, 1], [2, 3], [4, 5]]
sized.enqueue(np.zeros(100))
try:
    sized.enqueue(np.zeros(100), timeout=0)
except TimeoutError:
    pass
else:
    raise AssertionError("the size of an array was not counted")
ordered.enqueue((np.int64(3), array))
priority, back = ordered.dequeue()
assert (type(priority), back is array) == (int, True)
for wrong in (np.timedelta64(1, "s"), np.bool_(True), np.float64(1)):
    try:
        ordered.enqueue((wrong, None))
    except InvalidArgumentError as error:
        assert "expected an int of 64 bits" in str(error)
    else:
        raise AssertionError(wrong)
try:
    queue.enqueue_many(np.zeros(()))
except InvalidArgumentError as error:
    assert "got an array float64[]" in str(error)
assert sync.FIFOQueue(np.int32(2)).capacity == 2
typed = sync.FIFOQueue(2, "float32", ())
typed.enqueue(1)
assert typed.dequeue().dtype == np.float32
"""
    assert run(program) == []


@pytest.mark.slow
def test_what_an_import_keeps_in_memory() -> None:
    """As `tracemalloc` counts it, besides what NumPy, anyio and asyncio have."""
    program = f"""
import gc, tracemalloc
import numpy, anyio, asyncio
tracemalloc.start()
import aioqueue
gc.collect()
alone = tracemalloc.get_traced_memory()[0]
{CORE}
gc.collect()
core = tracemalloc.get_traced_memory()[0]
from aioqueue.inputs import files
gc.collect()
print(alone, core, tracemalloc.get_traced_memory()[0] - core)
"""
    run(program)  # compiles what is not compiled yet
    alone, core, source = run(program)
    assert int(alone) < 2**18
    newer = 0.8 * 2**20 if sys.version_info >= (3, 13) else 0.0  # it keeps more of each function
    assert int(core) < 3.75 * 2**20 + newer
    assert int(source) < 2.1 * 2**20


@pytest.mark.parametrize("package", [*FACES, telemetry], ids=lambda package: package.__name__)
def test_type_checkers_see_the_names_that_are_there(package: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(package))
    seen = {
        alias.asname or alias.name: (node.module, alias.name)
        for branch in tree.body
        if isinstance(branch, ast.If) and ast.unparse(branch.test).lstrip("_") == STATIC
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for name, (module, attribute) in seen.items():
        shown, made = getattr(package, name), sys.modules.get(f"{module}.{attribute}")
        made = made or getattr(sys.modules[str(module)], attribute)
        assert inspect.unwrap(shown) is made if inspect.isfunction(shown) else shown is made, name
    unseen = {"__compiled__", "__version__"}
    assert set(seen) == set(package.__all__) - unseen


@pytest.mark.parametrize("package", FACES, ids=lambda package: package.__name__)
def test_classes_are_pickled_by_their_public_path(package: ModuleType) -> None:
    for name in package.__all__:
        thing = getattr(package, name)
        if isinstance(thing, type):
            path = f"{package.__name__}\n{name}\n".encode()
            assert pickle.dumps(thing, protocol=0).startswith(b"c" + path)
            assert pickle.loads(pickle.dumps(thing)) is thing


@pytest.mark.slow
@pytest.mark.parametrize("package", [*FACES, telemetry], ids=lambda package: package.__name__)
def test_each_name_can_be_the_first_one_used(package: ModuleType) -> None:
    program = """
import importlib, sys
package, *names = sys.argv[1:]

for name in names:
    for loaded in [one for one in sys.modules if one.split(".")[0] == "aioqueue"]:
        del sys.modules[loaded]
    thing = getattr(importlib.import_module(package), name)
    if isinstance(thing, type) and not package.endswith("telemetry"):
        assert (thing.__module__, thing.__qualname__) == (package, name), thing
"""
    run(program, package.__name__, *package.__all__)


@pytest.mark.parametrize("room", ["aioqueue.pipeline.stages", "aioqueue.workers.executors"])
def test_tools_that_follow_imports_find_what_is_imported_by_name(room: str) -> None:
    tree = ast.parse(inspect.getsource(inputs._imported_by_name))
    named = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == room
        for alias in node.names
    }
    folder = ROOT.joinpath(*room.split("."))
    assert named == {file.stem for file in folder.glob("*.py")} - {"__init__"}


def test_no_room_imports_its_own_modules_at_once() -> None:
    """Of two threads, one may import the folder and the other a module in it: each would wait for
    what the other has begun, and Python raises `_DeadlockError` in one of them."""
    for init in (ROOT / "aioqueue").rglob("__init__.py"):
        room = ".".join(init.parent.relative_to(ROOT).parts)
        if "compat" in room or room in ("aioqueue.ray", "aioqueue.torch"):
            continue  # what users import themselves, and whole
        for node in ast.parse(init.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                assert not f"{node.module}.".startswith(f"{room}.") or room == "aioqueue", room


@pytest.mark.slow
def test_threads_may_use_names_for_the_first_time_at_once() -> None:
    program = """
import random, sys, threading
import aioqueue
from aioqueue import inputs, sync, telemetry
rng = random.Random(int(sys.argv[1]))
packages = (aioqueue, sync, inputs, telemetry)
start, found, failed = threading.Barrier(8), [], []

def use(names):
    start.wait()
    try:
        found.append({(package, name): getattr(package, name) for package, name in names})
    except BaseException as error:
        failed.append(error)

names = [(package, name) for package in packages for name in package.__all__]
threads = [threading.Thread(target=use, args=(rng.sample(names, len(names)),)) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failed, failed
assert all(one[key] is found[0][key] for one in found for key in found[0])
"""
    for seed in range(3):
        run(program, str(seed))
