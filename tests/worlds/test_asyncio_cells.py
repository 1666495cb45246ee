"""Blocking in the plain code of a notebook's cell, in whose thread an event loop runs.

The notebooks here are made up: a function with the name and the module of the one by which a
notebook executes its cells. `tests/project/test_notebooks.py` asks a real kernel.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from functools import partial
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.worlds.waker import in_event_loop
from tests.kit.worlds import PATIENCE, core_of, spin_until

Cell = Callable[[], Any]
Notebook = Callable[[Cell], Any]


def made_up(module: str, source: str) -> dict[str, Any]:
    """A module that is called so, of some source."""
    names: dict[str, Any] = {"__name__": module}
    exec(source, names)
    return names


def ipython(
    module: str = "IPython.core.async_helpers", runner: str = "_pseudo_sync_runner"
) -> Notebook:
    """What runs the plain code of a cell: a coroutine that is stepped once, as it never waits."""
    shell = made_up(
        "IPython.core.interactiveshell", "async def run_code(cell):\n    return cell()\n"
    )
    helpers = made_up(module, f"def {runner}(step, coroutine):\n    return step(coroutine)\n")
    return lambda cell: helpers[runner](step, shell["run_code"](cell))


def step(coroutine: Any) -> Any:
    """What a coroutine returns in its first step."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it has waited for something")


notebook = ipython()


@pytest.fixture(autouse=True)
def _a_notebook_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none has been imported, nobody looks for one."""
    for name in ("IPython", "marimo"):
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name, types.ModuleType(name)))


def run_in_cell(cell: Cell) -> Any:
    """Call a function in the plain code of a cell, within a loop of asyncio."""

    async def kernel() -> Any:
        return notebook(cell)

    return asyncio.run(kernel())


# Who may block.


def test_the_plain_code_of_a_cell_may_block() -> None:
    async def kernel() -> Any:
        assert in_event_loop()
        return notebook(in_event_loop)

    assert asyncio.run(kernel()) is False


def test_the_plain_code_of_a_cell_of_marimo_may_block_and_its_tasks_may_not() -> None:
    execute = made_up(
        "marimo._runtime.executor.executor",
        "async def execute_cell_async(cell):\n    return cell()\n",
    )["execute_cell_async"]
    evaluate = made_up(
        "marimo._runtime.runner.cell_runner",
        "async def evaluate_interruptible(coroutine):\n    return await coroutine\n",
    )["evaluate_interruptible"]

    async def kernel() -> None:
        assert await evaluate(execute(in_event_loop)) is False
        assert await evaluate(execute(lambda: step(asked()))) is True
        assert await evaluate(asyncio.create_task(execute(in_event_loop))) is True

    asyncio.run(kernel())


@pytest.mark.parametrize(
    ("module", "function"),
    [("service", "_pseudo_sync_runner"), ("IPython.core.async_helpers", "runner")],
)
def test_a_module_of_the_same_name_may_not(module: str, function: str) -> None:
    async def kernel() -> Any:
        return ipython(module, function)(in_event_loop)

    assert asyncio.run(kernel()) is True


def test_no_module_may_where_no_notebook_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPython", "marimo"):
        monkeypatch.delitem(sys.modules, name)

    async def service() -> Any:
        return notebook(in_event_loop)

    assert asyncio.run(service()) is True


def test_functions_generators_and_code_made_in_a_cell_are_its_plain_code() -> None:
    def steps() -> Iterator[bool]:
        yield in_event_loop()

    code = compile("seen.append(in_event_loop())", "<cell>", "exec")
    seen: list[bool] = []

    def cell() -> list[bool]:
        exec(code, {"in_event_loop": in_event_loop, "seen": seen})
        return [*seen, *steps(), *(in_event_loop() for _ in range(1))]

    assert run_in_cell(cell) == [False, False, False]


async def asked() -> bool:
    return in_event_loop()


async def asked_by_a_generator() -> bool:
    async def steps() -> AsyncIterator[bool]:
        yield in_event_loop()

    return await anext(steps())


async def asked_by_an_old_coroutine() -> bool:
    @types.coroutine
    def old() -> Generator[Any, Any, bool]:
        yield from ()
        return in_event_loop()

    return await old()


@pytest.mark.parametrize("coroutine", [asked, asked_by_a_generator, asked_by_an_old_coroutine])
def test_a_coroutine_may_not_though_a_cell_runs_it(
    coroutine: Callable[[], Awaitable[bool]],
) -> None:
    """As where loops were made to nest, or where tasks are eager."""
    assert run_in_cell(lambda: step(coroutine())) is True


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there are no eager tasks")
def test_an_eager_task_may_not() -> None:
    async def kernel() -> bool:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
        task = notebook(lambda: loop.create_task(asked()))
        return bool(await task)

    assert asyncio.run(kernel()) is True


def test_a_callback_of_the_loop_may_not_though_it_runs_within_a_cell() -> None:
    seen: list[bool] = []

    def cell() -> None:
        loop = asyncio.get_running_loop()
        # What a loop that was made to nest does with what is ready.
        asyncio.Handle(lambda: seen.append(in_event_loop()), (), loop)._run()

    run_in_cell(cell)
    assert seen == [True]


def test_a_cell_with_an_await_of_its_own_may_not_even_in_its_plain_lines() -> None:
    """An interrupt could not end its wait: it asks the loop to cancel the task."""
    run_code = made_up(
        "IPython.core.interactiveshell",
        "async def run_code(cell):\n    await sleep()\n    return cell()\n",
    )

    async def kernel() -> Any:
        run_code["sleep"] = partial(asyncio.sleep, 0)
        return await asyncio.create_task(run_code["run_code"](in_event_loop))

    assert asyncio.run(kernel()) is True


def test_a_cell_in_a_trio_run_may_block_and_its_tasks_may_not() -> None:
    trio = pytest.importorskip("trio")

    async def kernel() -> None:
        assert in_event_loop()
        assert notebook(in_event_loop) is False
        assert notebook(lambda: step(asked())) is True

    trio.run(kernel)


def test_a_cell_without_a_loop_may_block() -> None:
    assert notebook(in_event_loop) is False


# Blocking.


def test_a_cell_waits_for_a_thread() -> None:
    queue = sync.FIFOQueue(1)

    def fill() -> None:
        spin_until(lambda: queue.statistics().waiting_dequeues == 1)
        for number in range(3):
            queue.enqueue(number)
        queue.close()

    def cell() -> list[Any]:
        thread = threading.Thread(target=fill, daemon=True)
        thread.start()
        taken = list(queue)
        thread.join(PATIENCE)
        return taken

    assert run_in_cell(cell) == [0, 1, 2]


def test_a_cell_joins_threads() -> None:
    def cell() -> list[int]:
        seen: list[int] = []

        def work() -> None:
            seen.append(1)
            coord.request_stop()

        with sync.Coordinator() as coord:
            sync.LooperThread.loop(coord, None, work)
            coord.wait_for_stop()
        return seen

    assert run_in_cell(cell) == [1]


def test_what_a_cell_reports_is_named_by_its_thread() -> None:
    error = ValueError("seven")

    def cell() -> sync.Coordinator:
        coord = sync.Coordinator()
        coord.request_stop(error)
        return coord

    with pytest.raises(ExceptionGroup) as group:
        run_in_cell(cell).join()
    assert group.value.exceptions == (error,)
    assert error.__notes__ == [f"in worker {threading.current_thread().name}"]


# What waits for tasks of the loop that the cell blocks.


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def refused(cell: Cell, words: str) -> None:
    """A cell that would wait for ever gets an error at once."""
    with pytest.raises(RuntimeError, match=words):
        notebook(cell)


BEYOND = "would have to wait for tasks of the event loop that runs this cell"


class TestWaitingForTasksOfItsOwnLoop:
    """It is refused, nothing is lost, and the call in the message works."""

    def test_a_dequeue_that_needs_the_element_of_a_task(self) -> None:
        async def kernel() -> None:
            queue = aioqueue.FIFOQueue(1)
            await queue.enqueue(0)
            task = asyncio.create_task(queue.enqueue(1))
            await until(lambda: queue.statistics().waiting_enqueues == 1)
            assert notebook(queue.sync.dequeue) == 0
            refused(queue.sync.dequeue, rf"^dequeue on FIFOQueue '.*' {BEYOND}")
            assert await queue.sync.aio.dequeue() == 1
            await task

        asyncio.run(kernel())

    def test_an_enqueue_behind_a_task(self) -> None:
        async def kernel() -> None:
            queue = aioqueue.FIFOQueue(1)
            await queue.enqueue(0)
            task = asyncio.create_task(queue.enqueue(1))
            await until(lambda: queue.statistics().waiting_enqueues == 1)
            refused(lambda: queue.sync.enqueue(2), rf"^enqueue on .* {BEYOND}")
            assert [await queue.dequeue(), await queue.dequeue()] == [0, 1]
            await task
            assert queue.size() == 0

        asyncio.run(kernel())

    def test_an_enqueue_that_needs_room_from_a_task(self) -> None:
        async def kernel() -> None:
            queue = aioqueue.FIFOQueue(1)
            task = asyncio.create_task(queue.dequeue())
            await until(lambda: queue.statistics().waiting_dequeues == 1)

            def cell() -> None:
                for number in range(3):
                    queue.sync.enqueue(number)

            refused(cell, BEYOND)
            assert await task == 0
            assert [await queue.dequeue(), queue.size()] == [1, 0]

        asyncio.run(kernel())

    def test_a_dequeue_from_what_workers_fill_as_tasks(self) -> None:
        async def kernel() -> None:
            queue = aioqueue.FIFOQueue(1)
            never, began = asyncio.Event(), asyncio.Event()

            async def fill() -> None:
                began.set()
                await never.wait()

            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.QueueRunner(queue, fill))
                await began.wait()
                refused(queue.sync.dequeue, BEYOND)
                refused(queue.sync.wait_closed, rf"^wait_closed on .* {BEYOND}")
                queue.enqueue_nowait(4)
                refused(queue.sync.join, rf"^join on .* {BEYOND}")
                assert queue.dequeue_nowait() == 4
                notebook(lambda: queue.sync.enqueue(5))  # there is room
                thread = threading.Thread(target=self.take_when_two_wait, args=(queue,))
                thread.start()
                notebook(lambda: queue.sync.enqueue(6))  # a thread makes room
                thread.join(PATIENCE)
                coord.request_stop()
            assert not core_of(queue).fillers

        asyncio.run(kernel())

    @staticmethod
    def take_when_two_wait(queue: aioqueue.FIFOQueue) -> None:
        spin_until(lambda: queue.statistics().waiting_enqueues == 1)
        assert queue.sync.dequeue() == 5

    def test_no_refusal_where_the_tasks_are_of_another_loop(self) -> None:
        queue = sync.FIFOQueue(1)
        numbers = iter(range(3))

        async def fill() -> None:
            for number in numbers:
                await queue.aio.enqueue(number)
            raise aioqueue.OutOfRangeError("no more")

        def cell() -> list[Any]:
            taken: list[Any] = []
            with sync.Coordinator() as coord:
                coord.start(sync.QueueRunner(queue, fill))
                taken += queue
            return taken

        assert run_in_cell(cell) == [0, 1, 2]

    def test_no_refusal_by_a_task_that_only_waits_for_the_end(self) -> None:
        async def kernel() -> None:
            queue = aioqueue.FIFOQueue(1)
            task = asyncio.create_task(queue.wait_closed())
            await asyncio.sleep(0)

            def end() -> None:
                spin_until(lambda: queue.statistics().waiting_dequeues == 1)
                queue.close()

            thread = threading.Thread(target=end)
            thread.start()
            assert notebook(lambda: list(queue.sync)) == []
            thread.join(PATIENCE)
            await task

        asyncio.run(kernel())

    def test_a_timeout_of_nothing_times_out(self) -> None:
        async def kernel() -> None:
            queue = aioqueue.FIFOQueue(1)
            task = asyncio.create_task(queue.dequeue())
            await until(lambda: queue.statistics().waiting_dequeues == 1)
            with pytest.raises(TimeoutError):
                notebook(lambda: queue.sync.dequeue(timeout=0))
            await queue.enqueue(1)
            assert await task == 1

        asyncio.run(kernel())

    def test_a_join_of_a_task(self) -> None:
        async def kernel() -> None:
            coord = aioqueue.Coordinator()
            task = asyncio.create_task(asyncio.sleep(0), name="Seven")
            coord.register(task)
            refused(coord.sync.join, r"^join would have to wait for 1 task .*\(Seven\)")
            await coord.join()
            assert coord.joined

        asyncio.run(kernel())

    def test_a_join_of_a_worker_of_the_coordinator(self) -> None:
        async def kernel() -> None:
            queue = aioqueue.FIFOQueue(1)
            async with aioqueue.Coordinator() as coord:
                coord.start(aioqueue.QueueRunner(queue, asyncio.Event().wait))
                refused(coord.sync.join, "^join would have to wait for 1 task .*wait-0")
                coord.request_stop()

        asyncio.run(kernel())

    def test_a_block_that_is_left(self) -> None:
        async def kernel() -> None:
            coord = sync.Coordinator()
            task = asyncio.create_task(asyncio.sleep(0))

            def cell() -> None:
                with coord:
                    coord.register(task)

            refused(cell, "^join would have to wait for 1 task")
            await coord.aio.join()

        asyncio.run(kernel())

    def test_a_task_that_has_ended_is_joined(self) -> None:
        async def kernel() -> None:
            coord = sync.Coordinator()
            task = asyncio.create_task(asyncio.sleep(0))
            await task
            coord.register(task)
            notebook(coord.join)

        asyncio.run(kernel())

    def test_a_coroutine_gets_the_same_error_without_a_notebook(self) -> None:
        async def kernel() -> None:
            queue = aioqueue.FIFOQueue(1)
            other = asyncio.create_task(queue.dequeue())
            await until(lambda: queue.statistics().waiting_dequeues == 1)
            coord = sync.Coordinator()
            coord.register(other)
            with pytest.raises(RuntimeError, match="this thread's event loop is running: use"):
                queue.sync.dequeue()
            with pytest.raises(RuntimeError, match="this thread's event loop is running: use"):
                coord.join()
            other.cancel()

        asyncio.run(kernel())
