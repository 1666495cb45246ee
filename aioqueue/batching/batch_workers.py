"""The workers of a batcher: they collect a batch, call the function, and return the results.

Only one worker collects at a time; the others wait for the lock. So requests that arrive together
form one batch, rather than one small batch per idle worker. A worker waits until a request is
there. If there are fewer than a full batch, it waits for more, at most ``max_wait`` seconds from
then on. Meanwhile they stay in the queue, where they count (`Machine.disable_claims`).

The list ``batch`` of a worker holds every request that it has taken out of the queue and not yet
answered. Whatever ends the worker, it passes that list to the core, so that no caller waits for
ever.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import TypeVar

import anyio

from aioqueue.batching.core import BatcherCore, Request
from aioqueue.batching.function_calls import CallsHere, FunctionCaller, call_async
from aioqueue.coordination.cancellations import is_cancellation
from aioqueue.coordination.tasks import Tasks
from aioqueue.coordination.workers import as_worker, when_all_ended
from aioqueue.core.attempts import Take
from aioqueue.errors import DeadlineExceededError, OutOfRangeError, QueueEmpty
from aioqueue.worlds.scopes import Gate
from aioqueue.worlds.waker import current_worker

T = TypeVar("T")

Batch = list[Request]


def start_threads(core: BatcherCore) -> list[threading.Thread]:
    """Start the workers as threads.

    Raises:
        RuntimeError: a thread cannot be started. Those that were started will end.
    """
    turn = threading.Lock()
    threads = []
    for number in range(core.workers):
        name = f"aioqueue-{core.name}-{number}"
        work = partial(_work, core, turn, name, _caller(core, number))
        thread = threading.Thread(
            target=contextvars.copy_context().run, args=(work,), name=name, daemon=True
        )
        _start(core, thread.start, core.workers - number)
        core.started.append(as_worker(thread))
        threads.append(thread)
    return threads


def _caller(core: BatcherCore, number: int) -> FunctionCaller:
    """Make the object that calls the function for a worker on a thread."""
    if core.where == "process":
        from aioqueue.batching.processes import ProcessCaller

        return ProcessCaller(core, f"aioqueue-{core.name}-{number}")
    return CallsHere(core.function)


def start_tasks(core: BatcherCore, tasks: Tasks) -> None:
    """Start the workers as tasks, all of one event loop."""
    turn = anyio.Lock()
    for number in range(core.workers):
        name = f"aioqueue-{core.name}-{number}"
        lost = partial(
            core.worker_ended, name, RuntimeError("the task was cancelled before its first step")
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


def lose_tasks(core: BatcherCore) -> None:
    """Answer for workers whose event loop is gone: they will never run again."""
    batches = [batch for _, batch, _ in list(core._in_work.values())]
    core._in_work.clear()  # it keeps the tasks alive
    for _ in range(core._left):
        core.worker_ended("whose event loop is gone", None, batches.pop() if batches else ())


def all_gone(core: BatcherCore, threads: list[threading.Thread]) -> Gate:
    """Return a gate that opens when all workers have ended, and their threads, too."""
    gone = Gate()
    try:
        when_all_ended(map(as_worker, threads), gone.open)
    except RuntimeError:  # no thread is available to join them
        return core.ended
    return gone if threads else core.ended


def _work(core: BatcherCore, turn: threading.Lock, name: str, caller: FunctionCaller) -> None:
    """Run a worker on a thread: the thread's main function."""
    current_worker.set(None)  # a worker may have started it, but its stop is not this one's
    batch: Batch = []
    error: BaseException | None = None
    try:
        with caller:
            while not core.is_stopped:
                batch.clear()
                caller.make_ready()
                with turn:
                    _collect(core, batch)
                # A stop may have come during the wait. `worker_ended` then refuses the batch.
                if not core.is_stopped:
                    batch[:] = core.begin(batch)
                    _answer(core, batch, caller)
    except OutOfRangeError:
        pass  # the queue is closed and empty
    except BaseException as raised:
        error = raised
    core.worker_ended(name, error, batch)


def _answer(core: BatcherCore, batch: Batch, caller: FunctionCaller) -> None:
    if batch:
        began = perf_counter()
        try:
            with core.calling():
                values = [request.value for request in batch]
                outcomes = caller(values, **core.more_arguments(batch))
            core.finish(batch, outcomes, perf_counter() - began)
        finally:
            # Break a cycle: outcomes -> failure -> traceback -> this frame -> outcomes.
            outcomes = []


def _collect(core: BatcherCore, batch: Batch) -> None:
    """Wait for a batch and add its requests; the result is empty if all of its callers have left.

    Raises:
        OutOfRangeError: the queue is closed and empty.
    """
    face, max_batch = core.sync, core.batch_now()
    if core.max_wait and face.size() < max_batch:
        if not face.size():
            face._complete(Take(1, peeks=True), "dequeue_up_to", None)
        with suppress(DeadlineExceededError):
            batch += core.requests_of(face.dequeue_up_to(max_batch, timeout=core.max_wait))
    else:
        batch += core.requests_of(face.dequeue_up_to(max_batch, max_wait=0))
    _take_what_is_there(core, batch)  # at the deadline; or it fills the places of those that left


def _take_what_is_there(core: BatcherCore, batch: Batch) -> None:
    batch[:] = core.pending(batch)
    while len(batch) < core.max_batch:
        try:
            batch += core.requests_of([core.aio.dequeue_nowait()])
        except (QueueEmpty, OutOfRangeError):
            return


async def _work_async(core: BatcherCore, turn: anyio.Lock, name: str) -> None:
    """Run a worker that is a task: the task's coroutine."""
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
        pass  # the queue is closed and empty
    except BaseException as raised:
        error = raised
        if is_cancellation(error) and not isinstance(error, asyncio.CancelledError):
            core.stop()  # in trio, only a scope around the whole block can have cancelled us
    try:
        core.worker_ended(name, error, batch)
        if error is not None and (is_cancellation(error) or isinstance(error, GeneratorExit)):
            raise error
    finally:
        del error  # its traceback contains this frame


async def _answer_async(core: BatcherCore, batch: Batch) -> None:
    if batch:
        began = perf_counter()
        try:
            with core.calling():
                values, more = [request.value for request in batch], core.more_arguments(batch)
                outcomes = await call_async(core.function, values, **more)
            core.finish(batch, outcomes, perf_counter() - began)
        finally:
            outcomes = []  # breaks the same cycle as in `_answer`


async def _collect_async(core: BatcherCore, batch: Batch) -> None:
    """Do in a task what `_collect` does on a thread."""
    face, max_batch = core.aio, core.batch_now()
    if core.max_wait and face.size() < max_batch:
        if not face.size():
            await face._complete(Take(1, peeks=True))
        with anyio.move_on_after(core.max_wait):
            batch += core.requests_of(await face.dequeue_up_to(max_batch))
    else:
        batch += core.requests_of(await face.dequeue_up_to(max_batch, max_wait=0))
    _take_what_is_there(core, batch)
