"""aioqueue in a notebook, asked of a real kernel.

One kernel runs all scenarios, each a small notebook of its own, since a start takes a second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")
BlockingKernelClient = pytest.importorskip("jupyter_client").BlockingKernelClient
run_sync = pytest.importorskip("jupyter_core.utils").run_sync

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 50.0

Cells = Callable[..., list[str]]


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    """A client whose kernel runs; `nb` is set anew for each scenario."""
    client = nbclient.NotebookClient(
        nbformat.v4.new_notebook(),
        timeout=PATIENCE,
        allow_errors=True,
        resources={"metadata": {"path": str(ROOT)}},
    )
    with client.setup_kernel():
        yield client


def texts(cell: Any) -> str:
    """What a cell has printed, shown, or raised: the error by its class and its message."""
    shown = []
    for output in cell.outputs:
        if output.output_type == "error":
            shown.append(f"{output.ename}: {output.evalue}")
        elif output.output_type == "stream":
            shown.append(output.text)
        else:
            shown.append(output.data["text/plain"])
    return "".join(shown).strip()


@pytest.fixture
def run(kernel: Any) -> Cells:
    """Run a notebook of some cells; returns what each has put out."""

    def run_cells(*sources: str) -> list[str]:
        kernel.nb = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(source) for source in sources]
        )
        kernel.reset_execution_trackers()
        for index, cell in enumerate(kernel.nb.cells):
            kernel.execute_cell(cell, index)
        return [texts(cell) for cell in kernel.nb.cells]

    return run_cells


REFUSED = (
    "RuntimeError: dequeue would have to wait, and this thread's event loop is running:"
    " use `await queue.aio.dequeue(...)` here"
)
FILLING = """
import asyncio, threading
import aioqueue
from aioqueue import sync
from tests.kit.worlds import spin_until

def fill(queue, count):
    spin_until(lambda: queue.statistics().waiting_dequeues)
    for number in range(count):
        queue.enqueue(number)
    queue.close()

def filled(count, capacity=2):
    queue = sync.FIFOQueue(capacity, "int64", ())
    threading.Thread(target=fill, args=(queue, count), daemon=True).start()
    return queue
"""


# As in a script.


@pytest.mark.slow
def test_the_plain_loops_over_a_queue(run: Cells) -> None:
    _, elements, batches, timed = run(
        FILLING,
        "for number in filled(5):\n    print(number, end=' ')",
        "[batch.tolist() for batch in filled(5).batches(2)]",
        "%%capture\n%%time\nassert sum(filled(5)) == 10",
    )
    assert elements == "0 1 2 3 4"
    assert batches == "[[0, 1], [2, 3], [4]]"
    assert timed == ""


@pytest.mark.slow
def test_a_stream_of_batches_within_a_coordinator(run: Cells) -> None:
    _, shapes = run(
        """
import numpy as np
from aioqueue import sync
from aioqueue.inputs import batch, numbers

def prepare(number):
    return np.full(3, number, np.float32)
""",
        """
with sync.Coordinator() as coord:
    stream = batch(numbers(100, epochs=1), 32, coord=coord, function=prepare, workers=2)
    for rows in stream:
        print(rows.shape, end=" ")
""",
    )
    assert shapes == "(32, 3) (32, 3) (32, 3) (4, 3)"


@pytest.mark.slow
def test_pipelines(run: Cells) -> None:
    _, direct, epochs, first, second, closed, awaited, refused = run(
        "from aioqueue.inputs import numbers\n"
        "pipeline = numbers(5).prepare(lambda number: 10 * number, workers=2).batch(2)",
        "for batch in pipeline:\n    print(batch.tolist(), end=' ')",
        "[[len(batch) for batch in epoch] for epoch in pipeline.epochs(2)]",
        "epochs = pipeline.epochs(None)\nepoch = next(iter(epochs))\nnext(epoch).tolist()",
        "next(epoch).tolist()",
        "epochs.close()",
        "[batch.tolist() async for batch in pipeline]",
        "import asyncio\nawait asyncio.sleep(0)\nlist(pipeline)",
    )
    assert direct == "[0, 10] [20, 30] [40]"
    assert epochs == "[[2, 2, 1], [2, 2, 1]]"
    assert (first, second, closed) == ("[0, 10]", "[20, 30]", "")
    assert awaited == "[[0, 10], [20, 30], [40]]"
    assert refused.startswith("RuntimeError: a `for` loop waits for batches")
    assert refused.endswith("use `async for` here")


@pytest.mark.slow
def test_the_live_table(run: Cells) -> None:
    """It is below the cell, once; in the end, as the run has ended."""
    pytest.importorskip("rich", reason="needs the extra `rich`")
    _, shown = run(
        """
from aioqueue.inputs import numbers

pipeline = numbers(40).prepare(abs, workers=2).batch(4)
""",
        """
with pipeline.monitor() as monitor, monitor.live(every=0.01):
    print(len(list(pipeline)), "batches")
""",
    )
    assert shown.count("batches/s") == 1
    assert "10 batches" in shown
    assert re.search(r"abs +\d thread", shown)
    assert "\x1b" not in shown


@pytest.mark.slow(but="")  # the one that the default run has: its kernel takes a while
def test_a_coordinator_that_lives_from_cell_to_cell(run: Cells) -> None:
    outputs = run(
        FILLING,
        """
coord = sync.Coordinator()
queue = sync.FIFOQueue(4, "int64", ())
numbers = iter(range(10**9))
runner = sync.QueueRunner(queue, [lambda: queue.enqueue(next(numbers))])
threads = coord.start(runner)
""",
        "queue.dequeue_many(6).tolist()",
        "queue.dequeue_many(2).tolist()",
        "coord.request_stop()\ncoord.wait_for_stop()\ncoord.join()\nqueue.is_closed()",
    )
    assert outputs[2:] == ["[0, 1, 2, 3, 4, 5]", "[6, 7]", "True"]


@pytest.mark.slow
def test_a_failure_of_a_worker_ends_the_block(run: Cells) -> None:
    _, failure = run(
        FILLING,
        """
def fail():
    raise ValueError("seven")

queue = sync.FIFOQueue(4)
try:
    with sync.Coordinator() as coord:
        coord.start(sync.QueueRunner(queue, [fail]))
        for element in queue:
            pass
except* ValueError as group:
    print(group.exceptions[0], group.exceptions[0].__notes__)
""",
    )
    assert failure.startswith("seven ['in worker aioqueue-")


@pytest.mark.slow
def test_a_session_of_tensorflow_1(run: Cells) -> None:
    outputs = run(
        """
import aioqueue.compat.v1 as tf

queue = tf.FIFOQueue(8, tf.int32, shapes=[()])
enqueue = queue.enqueue_many([tf.range(4)])
tf.train.add_queue_runner(tf.train.QueueRunner(queue, [enqueue]))
batch = queue.dequeue_many(6)
""",
        """
with tf.Session() as sess:
    coord = tf.train.Coordinator()
    threads = tf.train.start_queue_runners(sess, coord)
    print(sess.run(batch), sess.run(batch))
    coord.request_stop()
    coord.join(threads)
""",
    )
    assert outputs[1] == "[0 1 2 3 0 1] [2 3 0 1 2 3]"


@pytest.mark.slow
def test_async_code_does_as_ever(run: Cells) -> None:
    _, batches, ended = run(
        FILLING,
        """
queue = aioqueue.FIFOQueue(4, "int64", ())
numbers = iter(range(5))

async def put():
    number = next(numbers, None)
    if number is None:
        raise aioqueue.OutOfRangeError("no more")
    await queue.enqueue(number)

async with aioqueue.Coordinator() as coord:
    coord.start(aioqueue.QueueRunner(queue, put))
    async for batch in queue.batches(2):
        print(batch.tolist(), end=" ")
""",
        "queue.is_closed()",
    )
    assert batches == "[0, 1] [2, 3] [4]"
    assert ended == "True"


@pytest.mark.slow
def test_an_async_block_entered_in_one_cell_and_left_in_another(run: Cells) -> None:
    outputs = run(
        FILLING
        + """
queue = aioqueue.FIFOQueue(4, "int64", ())
numbers = iter(range(5))

async def put():
    try:
        await queue.enqueue(next(numbers))
    except StopIteration:
        raise ValueError("no more") from None
""",
        "coord = aioqueue.Coordinator()\nopened = await coord.__aenter__()",
        "coord.start(aioqueue.QueueRunner(queue, put))",
        "(await queue.dequeue_many(4)).tolist()",
        "await coord.wait_for_stop()",
        "try:\n    await coord.__aexit__(None, None, None)\n"
        "except* ValueError as group:\n    print(group.exceptions)",
        "coord, int(queue.sync.dequeue()), len(queue)",
    )
    assert outputs[3] == "[0, 1, 2, 3]"
    assert outputs[4:6] == ["True", "(ValueError('no more'),)"]
    assert outputs[6] == "(<aioqueue.Coordinator joined, 1 failure>, 4, 0)"


# What is refused.


@pytest.mark.slow
def test_a_coroutine_may_not_block(run: Cells) -> None:
    outputs = run(
        FILLING + "empty = sync.FIFOQueue(1)",
        "async def serve():\n    empty.dequeue()",
        "task = asyncio.create_task(serve())",
        "await task",
        "await serve()",
    )
    assert outputs[3:] == [REFUSED, REFUSED]


@pytest.mark.slow
def test_a_cell_with_an_await_of_its_own_may_not_block(run: Cells) -> None:
    _, blocking, waiting = run(
        FILLING,
        "await asyncio.sleep(0)\nsync.FIFOQueue(1).dequeue()",
        "queue = filled(3)\n[int(number) async for number in queue.aio]",
    )
    assert blocking == REFUSED
    assert waiting == "[0, 1, 2]"


@pytest.mark.slow
def test_a_callback_of_the_loop_may_not_block(run: Cells) -> None:
    outputs = run(
        FILLING
        + """
called = asyncio.get_running_loop().create_future()

def callback():
    try:
        called.set_result(sync.FIFOQueue(1).dequeue())
    except BaseException as error:
        called.set_exception(error)
""",
        "handle = asyncio.get_running_loop().call_soon(callback)",
        "await called",
    )
    assert outputs[2] == REFUSED


@pytest.mark.slow
def test_waiting_for_a_task_of_the_kernels_loop_is_refused(run: Cells) -> None:
    outputs = run(
        FILLING
        + """
queue = aioqueue.FIFOQueue(1, "int64", (), name="letters")

async def produce():
    for number in range(4):
        await queue.enqueue(number)
    queue.close()

task = asyncio.create_task(produce(), name="producer")
""",
        "for number in queue.sync:\n    print(number)",
        "coord = sync.Coordinator()\ncoord.register(task)\ncoord.join()",
        "[int(number) async for number in queue]",
        "await coord.aio.join()\ncoord.joined",
    )
    beyond = "the event loop that runs this cell"
    assert outputs[1].startswith("0\nRuntimeError: dequeue on FIFOQueue 'letters' would have")
    assert beyond in outputs[1]
    assert outputs[1].endswith("`await queue.aio.dequeue(...)` here, or run the tasks on threads")
    assert outputs[2].startswith(f"RuntimeError: join would have to wait for 1 task of {beyond}")
    assert outputs[3:] == ["[1, 2, 3]", "True"]


# Interrupted, and run again.


class Caller:
    """A client that looks on while a cell runs, and can interrupt it."""

    def __init__(self, kernel: Any) -> None:
        self._manager = kernel.km
        self._client = BlockingKernelClient()
        self._client.load_connection_info(kernel.km.get_connection_info())
        self._client.start_channels()
        self._client.wait_for_ready(timeout=PATIENCE)

    def close(self) -> None:
        self._client.stop_channels()

    def run(self, source: str, *, interrupt_at: str | None = None) -> list[str]:
        """The lines that a cell has put out, the last one its error; interrupted at a line.

        An interrupt that comes just before the main thread falls asleep does not wake it: then
        another one comes.
        """
        request = self._client.execute(source)
        text = ""
        is_interrupted = False
        while True:
            try:
                message = self._client.get_iopub_msg(timeout=5 if is_interrupted else PATIENCE)
            except Empty:
                assert is_interrupted, text
                run_sync(self._manager.interrupt_kernel)()
                continue
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    text += content["text"]
                    if interrupt_at is not None and interrupt_at in text:
                        interrupt_at, is_interrupted = None, True
                        run_sync(self._manager.interrupt_kernel)()
                case "error":
                    text += f"{content['ename']}\n"
                case "status" if content["execution_state"] == "idle":
                    assert self._client.get_shell_msg(timeout=PATIENCE)
                    return text.split()


@pytest.fixture
def caller(kernel: Any) -> Iterator[Caller]:
    caller = Caller(kernel)
    try:
        yield caller
    finally:
        caller.close()


PRINT_WHEN_BLOCKED = """
def say_when_blocked():
    spin_until(lambda: queue.statistics().waiting_dequeues)
    print("blocked", flush=True)

def watched():
    thread = threading.Thread(target=say_when_blocked, daemon=True)
    thread.start()
"""


@pytest.mark.slow
def test_an_interrupted_loop_loses_nothing_and_runs_again(caller: Caller) -> None:
    caller.run(FILLING + PRINT_WHEN_BLOCKED + "queue = sync.FIFOQueue(8, 'int64', ())")
    caller.run("for number in range(3):\n    queue.enqueue(number)")
    loop = "for number in queue:\n    print(number, flush=True)"
    watch = "    if number == 2: watched()"
    first = caller.run(f"{loop}\n{watch}", interrupt_at="blocked")
    assert first == ["0", "1", "2", "blocked", "KeyboardInterrupt"]
    batch = caller.run("watched()\nqueue.dequeue_many(4)", interrupt_at="blocked")
    assert batch == ["blocked", "KeyboardInterrupt"]
    state = "stats = queue.statistics()\nprint(stats.waiting_dequeues, stats.size)"
    caller.run("for number in range(3, 6):\n    queue.enqueue(number)")
    assert caller.run(state) == ["0", "3"]
    caller.run("queue.close()")
    assert caller.run(loop) == ["3", "4", "5"]
    assert caller.run(loop) == []


@pytest.mark.slow
def test_an_interrupted_block_stops_its_workers_and_runs_again(caller: Caller) -> None:
    caller.run(FILLING + PRINT_WHEN_BLOCKED + "numbers = iter(range(5))")
    block = """
queue = sync.FIFOQueue(8, "int64", ())

def put():
    number = next(numbers, None)
    if number is None:
        coord.wait_for_stop()
    else:
        queue.enqueue(number)

with sync.Coordinator() as coord:
    threads = coord.start(sync.QueueRunner(queue, put))
    print("sum", sum(int(queue.dequeue()) for _ in range(5)), flush=True)
    {then}
"""
    first = caller.run(block.format(then="watched(); queue.dequeue()"), interrupt_at="blocked")
    assert first == ["sum", "10", "blocked", "KeyboardInterrupt"]
    assert caller.run("print(coord.joined, [t.is_alive() for t in threads])") == ["True", "[False]"]
    again = "numbers = iter(range(5, 10))" + block.format(then="pass")
    assert caller.run(again) == ["sum", "35"]


@pytest.mark.slow
def test_an_interrupted_pipeline_stops_its_workers_and_runs_again(caller: Caller) -> None:
    caller.run(
        """
import threading
from aioqueue.inputs import Retry, numbers

fails = [3]

def shaky(number):
    if number in fails:
        print("waiting", flush=True)
        raise OSError("try again")
    return number

pipeline = numbers(6).prepare(shaky, workers=1, on_error=Retry(1, backoff=3600))
before = threading.active_count()
"""
    )
    # Nothing is printed in between: the interrupt might strike there.
    loop = "got = []\nfor number in pipeline:\n    got.append(number)\nprint(*got)"
    assert caller.run(loop, interrupt_at="waiting") == ["waiting", "KeyboardInterrupt"]
    assert caller.run("print(3 in got)") == ["False"]
    ended = "spin_until(lambda: threading.active_count() == before)"
    assert caller.run(f"from tests.kit.worlds import spin_until\n{ended}") == []
    caller.run("fails.clear()")
    assert caller.run(loop) == ["0", "1", "2", "3", "4", "5"]


# The example.


def data_of(output: Any) -> dict[str, str]:
    """What a cell has shown, by its kind."""
    return dict(output.get("data", {}))


def names_of_threads(kernel: Any) -> str:
    """The threads that run in the kernel."""
    source = "import threading\n[thread.name for thread in threading.enumerate()]"
    kernel.nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    kernel.execute_cell(kernel.nb.cells[0], 0)
    return texts(kernel.nb.cells[0])


@pytest.mark.slow
def test_the_example_draws_and_trains(kernel: Any) -> None:
    pytest.importorskip("matplotlib", reason="the extra `notebook` (matplotlib) is not installed")
    pytest.importorskip("sklearn", reason="the extra `notebook` (scikit-learn) is not installed")
    pytest.importorskip("tqdm", reason="the extra `notebook` (tqdm) is not installed")
    kernel.nb = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in kernel.nb.cells), "commit it without outputs"
    kernel.reset_execution_trackers()
    for index, cell in enumerate(kernel.nb.cells):
        kernel.execute_cell(cell, index)
    outputs = [output for cell in kernel.nb.cells for output in cell.get("outputs", ())]
    assert [output for output in outputs if output.output_type == "error"] == []
    pictures = [output for output in outputs if "image/png" in output.get("data", ())]
    assert len(pictures) == 2
    drawings = [data["image/svg+xml"] for data in map(data_of, outputs) if "image/svg+xml" in data]
    assert ["augment on 2 threads" in drawing for drawing in drawings] == [True]
    shown = "".join(texts(cell) for cell in kernel.nb.cells if cell.cell_type == "code")
    right = re.search(r"right of 359 held out: (\d+)%", shown)
    assert right is not None
    assert int(right[1]) > 80
    whole = re.findall(r"epoch (\d): 100%\|[^|]*\| 22/22", shown)  # a bar is drawn more than once
    assert set(whole) == set("0123456789")
    assert not re.search("prepare|pipeline", names_of_threads(kernel))


@pytest.mark.slow
def test_functions_of_cells_are_not_for_processes(run: Cells) -> None:
    """They are refused where they are said, and not by the first call or batch."""
    outputs = run(
        "from aioqueue import sync\nfrom aioqueue.inputs import numbers\n"
        "def double(values): return [2 * value for value in values]",
        "sync.Batcher(double, where='process')",
        "numbers(3).prepare(double, where='process')",
        "with sync.Batcher(double) as doubled: print(doubled(3))",
    )
    for refused in outputs[1:3]:
        assert refused.startswith("InvalidArgumentError: function: got 'double'")
        assert "'double' is defined in a cell of a notebook" in refused
    assert outputs[3] == "6"


# Loops that were made to nest. The last test: this cannot be undone in a kernel.


@pytest.mark.slow
def test_loops_that_nest_change_nothing(run: Cells) -> None:
    outputs = run(
        FILLING
        + """
try:
    import nest_asyncio2 as nest_asyncio
except ImportError:
    import nest_asyncio
nest_asyncio.apply()

async def serve():
    sync.FIFOQueue(1).dequeue()

def callback():
    try:
        serve().send(None)
    except RuntimeError as error:
        print(error)
""",
        "[int(number) for number in filled(3)]",
        "asyncio.run(serve())",
        "loop = asyncio.get_event_loop()\nhandle = loop.call_soon(callback)\n"
        "loop.run_until_complete(asyncio.sleep(0))",
    )
    assert outputs[1:] == ["[0, 1, 2]", REFUSED, REFUSED.removeprefix("RuntimeError: ")]
