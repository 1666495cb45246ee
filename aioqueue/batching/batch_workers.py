"""The workers of a batcher: they collect a batch, call the function, and hand out what it returns.

One worker collects at a time, and the others wait for their turn: so requests that come together
get into one batch, and not into one per worker that was idle. It takes what is there, at once; if
that is less than a batch, it waits for the rest, for ``max_wait`` seconds from then on.

All that a worker has taken out of the queue is in its list ``batch`` until it is answered, so that
whatever ends the worker, the core is told of it.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import TypeVar

import anyio

from aioqueue.batching.core import BatcherCore, Request
from aioqueue.batching.function_calls import CallsHere, FunctionCaller, call_async
from aioqueue.batching.processes import ProcessCaller
from aioqueue.coordination.classify import is_cancellation
from aioqueue.coordination.tasks import Tasks
from aioqueue.coordination.workers import as_worker, when_all_ended
from aioqueue.errors import DeadlineExceededError, OutOfRangeError, QueueEmpty
from aioqueue.waiting import Gate

__all__ = ("all_gone", "start_tasks", "start_threads")

T = TypeVar("T")

Batch = list[Request]


def start_threads(core: BatcherCore) -> list[threading.Thread]:
    """Start the workers as threads.

    Raises:
        RuntimeError: no thread can be started. Those that were are going to end.
    """
    turn = threading.Lock()
    threads = []
    for number in range(core.workers):
        name = f"BatcherThread-{core.name}-{number}"
        work = partial(_work, core, turn, name, _caller(core, number))
        thread = threading.Thread(
            target=contextvars.copy_context().run, args=(work,), name=name, daemon=True
        )
        _start(core, thread.start, core.workers - number)
        core.started.append(as_worker(thread))
        threads.append(thread)
    return threads


def _caller(core: BatcherCore, number: int) -> FunctionCaller:
    """Who calls the function for a worker that is a thread."""
    if core.where == "process":
        return ProcessCaller(core, f"aioqueue-{core.name}-{number}")
    return CallsHere(core.function)


def start_tasks(core: BatcherCore, tasks: Tasks) -> None:
    """Start the workers as tasks, all of one event loop."""
    turn = anyio.Lock()
    for number in range(core.workers):
        name = f"BatcherTask-{core.name}-{number}"
        lost = partial(
            core.worker_ended, name, RuntimeError("it was cancelled before it had begun")
        )
        start = partial(tasks.start, name, partial(_work_async, core, turn, name), lost)
        core.started.append(_start(core, start, core.workers - number)[0])


def _start(core: BatcherCore, start: Callable[[], T], left: int) -> T:
    try:
        return start()
    except BaseException as error:
        core.stop(error)
        for _ in range(left):
            core.worker_ended("that was not started")
        raise


def all_gone(core: BatcherCore, threads: list[threading.Thread]) -> Gate:
    """A gate that opens when all workers have ended, and so have the threads that they run on."""
    gone = Gate()
    try:
        when_all_ended(map(as_worker, threads), gone.open)
    except RuntimeError:  # no thread is left that could wait for them
        return core.ended
    return gone if threads else core.ended


def _work(core: BatcherCore, turn: threading.Lock, name: str, caller: FunctionCaller) -> None:
    """The life of a worker that is a thread."""
    batch: Batch = []
    error: BaseException | None = None
    try:
        with caller:
            while not core.is_stopped:
                batch.clear()
                caller.make_ready()
                with turn:
                    _collect(core, batch)
                if not core.is_stopped:
                    batch[:] = core.begin(batch)
                    _answer(core, batch, caller)
    except OutOfRangeError:
        pass  # closed, and nothing is left
    except BaseException as raised:
        error = raised
    core.worker_ended(name, error, batch)


def _answer(core: BatcherCore, batch: Batch, caller: FunctionCaller) -> None:
    if batch:
        began = perf_counter()
        with core.calling():
            outcomes = caller([request.value for request in batch])
        core.finish(batch, outcomes, perf_counter() - began)


def _collect(core: BatcherCore, batch: Batch) -> None:
    """Wait for a batch, and add it; perhaps nothing, if all of its callers have gone.

    Raises:
        OutOfRangeError: the queue is closed, and nothing is left.
    """
    batch += core.requests_of(core.sync.dequeue_up_to(core.max_batch, max_wait=0))
    if not core.max_wait:
        _take_what_is_there(core, batch)  # in place of those who have gone
        return
    deadline = perf_counter() + core.max_wait
    while _lacks_some(core, batch):
        missing, left = core.max_batch - len(batch), deadline - perf_counter()
        try:
            batch += core.requests_of(core.sync.dequeue_up_to(missing, timeout=max(left, 0)))
        except DeadlineExceededError:
            _take_what_is_there(core, batch)
            return
        except OutOfRangeError:
            return  # these are the last ones


def _lacks_some(core: BatcherCore, batch: Batch) -> bool:
    """Whether a batch has begun and is not full, without those whose callers have gone."""
    batch[:] = core.pending(batch)
    return 0 < len(batch) < core.max_batch


def _take_what_is_there(core: BatcherCore, batch: Batch) -> None:
    batch[:] = core.pending(batch)
    while len(batch) < core.max_batch:
        try:
            batch += core.requests_of([core.aio.dequeue_nowait()])
        except (QueueEmpty, OutOfRangeError):
            return


async def _work_async(core: BatcherCore, turn: anyio.Lock, name: str) -> None:
    """The life of a worker that is a task."""
    batch: Batch = []
    error: BaseException | None = None
    try:
        while not core.is_stopped:
            batch.clear()
            async with turn:
                await _collect_async(core, batch)
            if not core.is_stopped:
                batch[:] = core.begin(batch)
                await _answer_async(core, batch)
    except OutOfRangeError:
        pass  # closed, and nothing is left
    except BaseException as raised:
        error = raised
        if is_cancellation(error) and not isinstance(error, asyncio.CancelledError):
            core.stop()  # in trio nobody can cancel us but together with the block around us
    core.worker_ended(name, error, batch)
    if error is not None and (is_cancellation(error) or isinstance(error, GeneratorExit)):
        raise error


async def _answer_async(core: BatcherCore, batch: Batch) -> None:
    if batch:
        began = perf_counter()
        with core.calling():
            outcomes = await call_async(core.function, [request.value for request in batch])
        core.finish(batch, outcomes, perf_counter() - began)


async def _collect_async(core: BatcherCore, batch: Batch) -> None:
    """As `_collect`, in a task."""
    batch += core.requests_of(await core.aio.dequeue_up_to(core.max_batch, max_wait=0))
    if not core.max_wait:
        _take_what_is_there(core, batch)
        return
    with anyio.move_on_after(core.max_wait) as scope:
        while _lacks_some(core, batch):
            missing = core.max_batch - len(batch)
            try:
                batch += core.requests_of(await core.aio.dequeue_up_to(missing))
            except OutOfRangeError:
                return  # these are the last ones
    if scope.cancelled_caught:
        _take_what_is_there(core, batch)
